//! The collections of measurements, kept for as long as the catalog does not change.
//!
//! Each request asks for the collections of its measurements, which may be hundreds, and the catalog seldom changes. The version is
//! read before the collections are looked up: a change meanwhile makes the next request look again.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nilometer::catalog::CatalogVersion;
use nilometer_bson::Document;
use nilometer_influx::schema::{self, Found};

/// Names whose collections are kept. Beyond that all are forgotten.
const COLLECTIONS_KEPT_MAX: usize = 20_000;

/// What was found at one version, by database and name.
#[derive(Default)]
struct FoundCollections {
    version: Option<CatalogVersion>,
    by_database: HashMap<String, HashMap<String, Found>>,
    count: usize,
}

impl FoundCollections {
    /// Returns the collections of all names, if all are known.
    fn get(&self, version: CatalogVersion, db: &str, names: &[&str]) -> Option<Vec<Found>> {
        if self.version != Some(version) {
            return None;
        }
        let known = self.by_database.get(db)?;
        names.iter().map(|name| known.get(*name).cloned()).collect()
    }

    fn put(&mut self, version: CatalogVersion, db: &str, names: &[&str], found: &[Found]) {
        if self.version != Some(version) || self.count + names.len() > COLLECTIONS_KEPT_MAX {
            *self = Self {
                version: Some(version),
                ..Self::default()
            };
        }
        if names.len() > COLLECTIONS_KEPT_MAX {
            return;
        }
        let known = self.by_database.entry(db.to_owned()).or_default();
        let before = known.len();
        for (name, found) in names.iter().zip(found) {
            known.insert((*name).to_owned(), found.clone());
        }
        self.count += known.len() - before;
    }
}

/// The collections of measurements.
#[derive(Default)]
pub(super) struct CollectionCache(Mutex<FoundCollections>);

impl CollectionCache {
    fn lock(&self) -> MutexGuard<'_, FoundCollections> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the collections of measurements, in their order. `version` was read before; `run` runs the command that looks them up, unless
    /// all are known.
    pub(super) fn find_all(
        &self,
        version: CatalogVersion,
        db: &str,
        names: &[&str],
        run: &mut dyn FnMut(Document) -> Result<Document, String>,
    ) -> Result<Vec<Found>, String> {
        if let Some(found) = self.lock().get(version, db, names) {
            return Ok(found);
        }
        let found = schema::find_all(run, db, names)?;
        self.lock().put(version, db, names, &found);
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use nilometer::{ClientSession, Database, Request};
    use nilometer_bson::doc;

    use super::*;

    fn run(database: &Database, body: Document) -> Result<Document, String> {
        let reply = database.run_command(&mut ClientSession::embedded(), &Request::new(body));
        match reply.get("ok").as_exact_i64() {
            Some(1) => Ok(reply),
            _ => Err(format!("{reply:?}")),
        }
    }

    /// A cache beside the database, and the look-ups so far.
    struct Looked<'d> {
        database: &'d Database,
        cache: CollectionCache,
        lookups: usize,
    }

    impl Looked<'_> {
        fn find(&mut self, names: &[&str]) -> Vec<Found> {
            let Self {
                database,
                cache,
                lookups,
            } = self;
            let version = database.catalog_version();
            let found = cache.find_all(version, "d", names, &mut |command| {
                *lookups += 1;
                run(database, command)
            });
            found.unwrap()
        }
    }

    fn series(name: &str, time: &str) -> Document {
        doc! {"create": name, "timeseries": doc! {"timeField": time}, "$db": "d"}
    }

    fn time_of(found: &Found) -> &str {
        match found {
            Found::TimeSeries(_, names) => &names.time,
            Found::Missing => "missing",
            Found::Other => "other",
        }
    }

    #[test]
    fn collections_are_looked_up_again_after_each_change_of_the_catalog() {
        let database = &Database::in_memory().unwrap();
        let mut looked = Looked {
            database,
            cache: CollectionCache::default(),
            lookups: 0,
        };
        let names = ["a", "b"];
        let steps = [
            (series("a", "t"), ["t", "missing"]),
            (doc! {"create": "b", "$db": "d"}, ["t", "other"]),
            (doc! {"drop": "a", "$db": "d"}, ["missing", "other"]),
            (series("a", "u"), ["u", "other"]),
            (
                doc! {"collMod": "a", "expireAfterSeconds": 60_i64, "$db": "d"},
                ["u", "other"],
            ),
            (
                doc! {"renameCollection": "d.b", "to": "d.c", "$db": "admin"},
                ["u", "missing"],
            ),
            (series("b", "v"), ["u", "v"]),
            (doc! {"dropDatabase": 1, "$db": "d"}, ["missing", "missing"]),
        ];
        for (number, (change, expected)) in steps.into_iter().enumerate() {
            run(database, change).unwrap();
            for _ in 0..3 {
                let found = looked.find(&names);
                assert_eq!(found.iter().map(time_of).collect::<Vec<_>>(), expected);
            }
            assert_eq!(looked.lookups, number + 1);
        }
        // A measurement is not the one that had its name.
        run(database, series("a", "t")).unwrap();
        let before = looked.find(&["a"]);
        run(database, doc! {"drop": "a", "$db": "d"}).unwrap();
        run(database, series("a", "t")).unwrap();
        assert_ne!(looked.find(&["a"]), before);
    }

    #[test]
    fn a_full_cache_forgets() {
        let database = &Database::in_memory().unwrap();
        run(database, series("a", "t")).unwrap();
        let mut looked = Looked {
            database,
            cache: CollectionCache::default(),
            lookups: 0,
        };
        let texts: Vec<String> = (0..COLLECTIONS_KEPT_MAX).map(|n| n.to_string()).collect();
        let many: Vec<&str> = texts.iter().map(String::as_str).collect();
        looked.find(&many);
        looked.find(&many);
        assert_eq!(looked.lookups, 1);
        assert_eq!(time_of(&looked.find(&["a"])[0]), "t");
        assert_eq!(looked.cache.lock().count, 1);
        looked.find(&[&many[..], &["a"]].concat());
        assert_eq!(looked.cache.lock().count, 0);
    }

    /// Creates and drops a collection beside readers: who has seen the end of a change finds what it has made.
    #[test]
    fn no_collection_is_found_after_its_end() {
        let database = &Database::in_memory().unwrap();
        let cache = &CollectionCache::default();
        let find = || {
            let version = database.catalog_version();
            let found = cache.find_all(version, "d", &["a"], &mut |body| run(database, body));
            found.unwrap().remove(0)
        };
        let is_done = &AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !is_done.load(Ordering::Relaxed) {
                        find();
                    }
                });
            }
            for _ in 0..200 {
                run(database, series("a", "t")).unwrap();
                assert_eq!(time_of(&find()), "t");
                run(database, doc! {"drop": "a", "$db": "d"}).unwrap();
                assert_eq!(time_of(&find()), "missing");
            }
            is_done.store(true, Ordering::Relaxed);
        });
    }
}

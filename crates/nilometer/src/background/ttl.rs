//! The TTL monitor: removes expired documents every `ttlMonitorSleepSecs`.

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use nilometer_bson::ValueRef;

use super::{BackgroundContext, check_running};
use crate::catalog::{Catalog, Collection, Storage};
use crate::error::Result;
use crate::index::Index;
use crate::services::Services;
use crate::timeseries::Timeseries;
use crate::write::Records;

/// The time of the last pass.
pub(super) struct TtlMonitor {
    last: Duration,
}

impl TtlMonitor {
    /// Schedules the first pass one interval from now.
    pub(super) fn new(services: &Services) -> Self {
        Self {
            last: services.clock.monotonic(),
        }
    }

    /// Runs a pass if one is due, until it is complete or the database is closed.
    pub(super) fn tick(&mut self, context: &BackgroundContext, stopped: &Receiver<()>) {
        let services = &context.services;
        let sleep = u64::try_from(services.parameters.ttl_monitor_sleep_secs()).unwrap_or(60);
        let now = services.clock.monotonic();
        if now.saturating_sub(self.last) < Duration::from_secs(sleep) {
            return;
        }
        self.last = now;
        if services.parameters.ttl_monitor_enabled() == 0 {
            return;
        }
        let check_interrupt = || check_running(stopped);
        for collection in context.catalog.collections() {
            if check_interrupt().is_err() {
                return;
            }
            let now_ms = services.clock.now_ms();
            if let Some(after) = expire_after_ms(&collection) {
                let cutoff_ms = now_ms.saturating_sub(after);
                // Rollups that are not complete keep their measurements.
                match (context.freeze_rollups)(&collection, cutoff_ms, &check_interrupt) {
                    Ok(true) => {}
                    _ => continue,
                }
            }
            // A collection that fails, for instance because it was dropped, is tried again in the next pass.
            let _ = expire(
                &context.catalog,
                &collection,
                &context.timeseries,
                now_ms,
                &check_interrupt,
            );
            let _ = expire_records(&collection, &context.records, now_ms, &check_interrupt);
        }
    }
}

/// Removes expired buckets of one collection; returns their number.
fn expire(
    catalog: &Catalog,
    collection: &Arc<Collection>,
    timeseries: &Arc<Timeseries>,
    now_ms: i64,
    check_interrupt: &dyn Fn() -> Result<()>,
) -> Result<usize> {
    let by_indexes = timeseries.expire_by_indexes(catalog, collection, now_ms, check_interrupt)?;
    let of_buckets = expire_after_ms(collection).filter(|_| collection.timeseries.is_some());
    match of_buckets {
        Some(after) => {
            let all = timeseries.expire(catalog, collection, now_ms.saturating_sub(after))?;
            Ok(all + by_indexes)
        }
        None => Ok(by_indexes),
    }
}

/// Removes documents of an ordinary collection that expired under its indexes; returns their number.
fn expire_records(
    collection: &Collection,
    records: &Records,
    now_ms: i64,
    check_interrupt: &dyn Fn() -> Result<()>,
) -> Result<u64> {
    let mut removed = 0;
    if collection.is_clustered()
        && let Some(after) = expire_after_ms(collection)
    {
        let limit_ms = now_ms.saturating_sub(after);
        removed += records.expire_clustered(collection, limit_ms, check_interrupt)?;
    }
    if let Storage::Records { .. } = collection.storage {
        for stored in collection.indexes.all().iter() {
            let Some(seconds) = stored.spec.expire_after_seconds else {
                continue;
            };
            let index = Index::of(stored)?;
            let is_ordered = index.parts().iter().all(|part| part.is_ordered());
            // A compound index expires nothing.
            if stored.is_ready() && is_ordered && index.parts().len() == 1 {
                let limit_ms = now_ms.saturating_sub(seconds.saturating_mul(1000));
                removed += records.expire(collection, &index, limit_ms, check_interrupt)?;
            }
        }
    }
    Ok(removed)
}

/// Returns `expireAfterSeconds` of a collection, in ms.
fn expire_after_ms(collection: &Collection) -> Option<i64> {
    match collection.options.get("expireAfterSeconds") {
        ValueRef::Missing => None,
        seconds => seconds
            .as_exact_i64()
            .map(|seconds| seconds.saturating_mul(1000)),
    }
}

#[cfg(test)]
mod tests {
    use nilometer_bson::doc;
    use nilometer_storage::{LongKeyEngine, MemoryEngine};

    use super::*;
    use crate::Database;
    use crate::catalog::{IndexSpec, Namespace};
    use crate::error::{Error, ErrorCode};
    use crate::operation::OperationContext;
    use crate::services::Environment;

    /// Returns a database in memory, and one whose keys are cut after a few bytes, so that nearly all are stored as long ones.
    fn databases() -> [Database; 2] {
        let cut = LongKeyEngine::with_lengths(Arc::new(MemoryEngine::new()), 8, 8).unwrap();
        let cut = Database::with_engine(Arc::new(cut), Environment::default());
        [Database::in_memory().unwrap(), cut.unwrap()]
    }

    /// Returns the ids of the remaining documents, whose dates are around the expiry limit.
    fn left(key: nilometer_bson::Document, partial: Option<nilometer_bson::Document>) -> Vec<i32> {
        let [plain, cut] =
            databases().map(|database| left_in(&database, key.clone(), partial.clone()));
        assert_eq!(plain, cut);
        plain
    }

    fn left_in(
        database: &Database,
        key: nilometer_bson::Document,
        partial: Option<nilometer_bson::Document>,
    ) -> Vec<i32> {
        const AFTER_SECONDS: i64 = 10;
        let ms = |back: i64| bson::DateTime::from_millis(NOW_MS - AFTER_SECONDS * 1000 - back);
        let plain = database.collection::<bson::Document>("db", "c");
        plain
            .insert_many([
                bson::doc! { "_id": 1, "d": ms(0) },
                bson::doc! { "_id": 2, "d": ms(-1) },
                // An entry that is long in every database.
                bson::doc! { "_id": 3, "d": [ms(-5), ms(5), "x".repeat(70_000)] },
                bson::doc! { "_id": 4, "d": bson::DateTime::from_millis(i64::MIN), "k": 1 },
                bson::doc! { "_id": 5, "d": "x" },
                bson::doc! { "_id": 6, "d": 5 },
                bson::doc! { "_id": 7 },
                bson::doc! { "_id": 8, "d": bson::DateTime::MAX },
            ])
            .unwrap();
        let many = (100..3000).map(|i| bson::doc! { "_id": i, "d": ms(i64::from(i)), "k": 1 });
        plain.insert_many(many).unwrap();
        let name = Namespace::new("db", "c").unwrap();
        let collection = database.catalog().collection(&name).unwrap();
        let operation = OperationContext::internal(database.services().clock.clone(), "db");
        let spec = IndexSpec {
            key,
            name: "ttl".into(),
            partial_filter: partial,
            expire_after_seconds: Some(AFTER_SECONDS),
            ..IndexSpec::default()
        };
        database
            .create_indexes(&collection, &operation, |_| Ok(vec![spec]))
            .unwrap();
        expire_records(&collection, database.records(), NOW_MS, &|| Ok(())).unwrap();
        let check = database
            .command("db", &bson::doc! { "validate": "c" })
            .unwrap();
        assert!(check.get_bool("valid").unwrap(), "{check:?}");
        let found = plain.find(bson::doc! {}).unwrap();
        found.map(|d| d.unwrap().get_i32("_id").unwrap()).collect()
    }

    #[test]
    fn documents_past_the_limit_expire() {
        let stays = [2, 5, 6, 7, 8];
        assert_eq!(left(doc! { "d": 1 }, None), stays);
        assert_eq!(left(doc! { "d": -1 }, None), stays);
        let partial = Some(doc! { "k": 1 });
        assert_eq!(left(doc! { "d": 1 }, partial), [1, 2, 3, 5, 6, 7, 8]);
        assert_eq!(left(doc! { "d": 1, "e": 1 }, None).len(), 2908);
    }

    /// A filter of many conditions on a document with a long array.
    #[test]
    fn a_slow_partial_filter_is_interrupted_while_documents_expire() {
        let database = Database::in_memory().unwrap();
        let plain = database.collection::<bson::Document>("db", "c");
        let numbers: Vec<i32> = (0..4_000).collect();
        let date = bson::DateTime::from_millis(NOW_MS - 3_600_000);
        plain
            .insert_many([bson::doc! { "_id": 1, "d": date, "a": numbers }])
            .unwrap();
        let name = Namespace::new("db", "c").unwrap();
        let collection = database.catalog().collection(&name).unwrap();
        let operation = OperationContext::internal(database.services().clock.clone(), "db");
        let below = |limit: i32| -> nilometer_bson::Value {
            doc! { "a": doc! { "$lt": -1 - limit } }.into()
        };
        let mut clauses: Vec<_> = (0..100).map(below).collect();
        clauses.push(doc! { "a": 3_999 }.into());
        let spec = IndexSpec {
            key: doc! { "d": 1 },
            name: "ttl".into(),
            partial_filter: Some(doc! { "$or": clauses }),
            expire_after_seconds: Some(10),
            ..IndexSpec::default()
        };
        database
            .create_indexes(&collection, &operation, |_| Ok(vec![spec]))
            .unwrap();
        let checks = std::cell::Cell::new(0);
        let check_interrupt = || {
            checks.set(checks.get() + 1);
            match checks.get() > 100 {
                true => Err(Error::new(ErrorCode::InterruptedAtShutdown, "the end")),
                false => Ok(()),
            }
        };
        let ended = expire_records(&collection, database.records(), NOW_MS, &check_interrupt);
        assert_eq!(ended.unwrap_err().code, ErrorCode::InterruptedAtShutdown);
        assert_eq!(plain.count(bson::doc! {}).unwrap(), 1);
        let gone = expire_records(&collection, database.records(), NOW_MS, &|| Ok(())).unwrap();
        assert_eq!(gone, 1);
    }

    #[test]
    fn a_clustered_collection_expires_by_its_ids() {
        databases().iter().for_each(expires_by_ids);
    }

    fn expires_by_ids(database: &Database) {
        let create = bson::doc! {
            "create": "c",
            "clusteredIndex": { "key": { "_id": 1 }, "unique": true },
            "expireAfterSeconds": 10,
        };
        database.command("db", &create).unwrap();
        let events = database.collection::<bson::Document>("db", "c");
        let ms = |back: i64| bson::DateTime::from_millis(NOW_MS - 10_000 - back);
        let old = (0..3000).map(|i| bson::doc! { "_id": ms(i), "k": 1 });
        events.insert_many(old).unwrap();
        let others = [
            bson::doc! { "_id": ms(-1) },
            bson::doc! { "_id": 5 },
            bson::doc! { "_id": "x" },
        ];
        events.insert_many(others).unwrap();
        let name = Namespace::new("db", "c").unwrap();
        let collection = database.catalog().collection(&name).unwrap();
        let gone = expire_records(&collection, database.records(), NOW_MS, &|| Ok(())).unwrap();
        assert_eq!(gone, 3000);
        assert_eq!(events.count(bson::doc! {}).unwrap(), 3);
        // The expiry of buckets ignores ordinary collections.
        let catalog = database.catalog();
        assert_eq!(
            expire(
                catalog,
                &collection,
                database.timeseries(),
                i64::MAX,
                &|| Ok(())
            )
            .unwrap(),
            0
        );
    }

    const SPAN_MS: i64 = 3_600_000;
    const NOW_MS: i64 = 1_700_000_000_000;

    /// A time-series collection of measurements at these times, each in series "a" and in series "b".
    struct Series {
        database: Database,
        session: crate::session::ClientSession,
    }

    impl Series {
        fn new(options: nilometer_bson::Document, times: &[i64]) -> Self {
            Self::of(Database::in_memory().unwrap(), options, times)
        }

        fn of(database: Database, options: nilometer_bson::Document, times: &[i64]) -> Self {
            let mut series = Self {
                database,
                session: crate::session::ClientSession::embedded(),
            };
            series.run(options);
            // The metadata has a key that is long in every database.
            let long = "x".repeat(70_000);
            for name in ["a", "b"] {
                let at = |ms: &i64| -> nilometer_bson::Value {
                    let time = nilometer_bson::Value::DateTime(*ms);
                    doc! { "t": time, "m": doc! { "s": name, "x": long.as_str() } }.into()
                };
                let documents: Vec<_> = times.iter().map(at).collect();
                series.run(doc! { "insert": "ts", "documents": documents });
            }
            series
        }

        fn run(&mut self, command: nilometer_bson::Document) -> nilometer_bson::Document {
            let mut body = nilometer_bson::DocumentBuilder::new();
            for element in command.iter() {
                body.append_element(element);
            }
            body.append("$db", "db");
            let request = crate::operation::Request::new(body.finish());
            let reply = self.database.run_command(&mut self.session, &request);
            assert_eq!(reply.get("ok").as_exact_i64(), Some(1), "{reply:?}");
            reply
        }

        /// Creates an index on the time that expires the measurements `filter` selects.
        fn expiring(&mut self, direction: i32, seconds: i64, filter: nilometer_bson::Document) {
            let index = doc! {
                "key": doc! { "t": direction },
                "name": "ttl",
                "expireAfterSeconds": seconds,
                "partialFilterExpression": filter,
            };
            self.run(doc! { "createIndexes": "ts", "indexes": nilometer_bson::array![index] });
        }

        /// Runs a pass of the monitor; returns the number of removed buckets.
        fn expire(&self, now_ms: i64) -> usize {
            let catalog = self.database.catalog();
            let name = Namespace::new("db", "ts").unwrap();
            let collection = catalog.timeseries(&name).unwrap();
            expire(
                catalog,
                &collection,
                self.database.timeseries(),
                now_ms,
                &|| Ok(()),
            )
            .unwrap()
        }

        /// Returns the remaining measurements as series and ms before now.
        fn left(&mut self) -> Vec<(String, i64)> {
            let sort = doc! { "m.s": 1, "t": -1 };
            let reply = self.run(doc! { "find": "ts", "sort": sort, "batchSize": 1000 });
            let cursor = reply.get("cursor").as_document().unwrap();
            let batch = cursor.get("firstBatch").as_array().unwrap();
            let of = |document: ValueRef<'_>| {
                let document = document.as_document().unwrap();
                let ValueRef::DateTime(at) = document.get("t") else {
                    panic!("no time");
                };
                let series = document.get("m").as_document().unwrap().get("s").as_str();
                (series.unwrap().to_owned(), NOW_MS - at)
            };
            batch.iter().map(of).collect()
        }

        fn assert_valid(&mut self) {
            let reply = self.run(doc! { "validate": "ts" });
            assert!(
                matches!(reply.get("valid"), ValueRef::Bool(true)),
                "{reply:?}"
            );
        }
    }

    fn is_left(series: &mut Series, expected: &[(&str, i64)]) {
        let expected: Vec<_> = expected
            .iter()
            .map(|(s, at)| ((*s).to_owned(), *at))
            .collect();
        assert_eq!(series.left(), expected);
        series.assert_valid();
    }

    /// A time-series collection whose measurements expire after `seconds`, if given.
    fn create(seconds: Option<i64>) -> nilometer_bson::Document {
        doc! {
            "create": "ts",
            "timeseries": doc! { "timeField": "t", "metaField": "m" },
            "expireAfterSeconds": seconds,
        }
    }

    #[test]
    fn an_index_on_the_time_expires_whole_buckets_its_filter_selects() {
        let both = databases().into_iter().map(|database| (1, database));
        let both = both.chain(databases().into_iter().map(|database| (-1, database)));
        for (direction, database) in both {
            let old = SPAN_MS + 100_000;
            // The second measurement has expired, but its bucket may still hold later ones.
            let times = [NOW_MS - old, NOW_MS - 90_000];
            let mut series = Series::of(database, create(None), &times);
            series.expiring(direction, 10, doc! { "m.s": "a" });
            assert_eq!(series.expire(NOW_MS), 1);
            is_left(&mut series, &[("a", 90_000), ("b", 90_000), ("b", old)]);
            assert_eq!(series.expire(NOW_MS), 0);
            // An hour later the second bucket expires as well.
            assert_eq!(series.expire(NOW_MS + SPAN_MS), 1);
            is_left(&mut series, &[("b", 90_000), ("b", old)]);
        }
    }

    #[test]
    fn an_index_expires_beside_the_expiry_of_the_collection() {
        let (older, old) = (3 * SPAN_MS, SPAN_MS + 100_000);
        let times = [NOW_MS - older, NOW_MS - old, NOW_MS - 1000];
        // The collection keeps an hour and a half, its index on "a" ten seconds.
        let mut series = Series::new(create(Some(5400)), &times);
        series.expiring(
            1,
            10,
            doc! { "m.s": doc! { "$in": nilometer_bson::array!["a", "c"] } },
        );
        assert_eq!(series.expire(NOW_MS), 3);
        is_left(&mut series, &[("a", 1000), ("b", 1000), ("b", old)]);
        // An index that keeps longer than the collection has no effect.
        let mut series = Series::new(create(Some(10)), &times);
        series.expiring(1, 1_000_000, doc! { "m.s": "a" });
        assert_eq!(series.expire(NOW_MS), 4);
        is_left(&mut series, &[("a", 1000), ("b", 1000)]);
    }

    #[test]
    fn an_index_expires_dates_before_1970_and_keeps_those_after_2038() {
        let (before, after) = (-500_000_000_000, 5_000_000_000_000);
        let far = i64::from(u32::MAX) * 1000 + 10 * SPAN_MS;
        let times = [before, NOW_MS - 1000, after, far];
        for direction in [1, -1] {
            let mut series = Series::new(create(None), &times);
            series.expiring(direction, 10, doc! { "m.s": "a" });
            assert_eq!(series.expire(NOW_MS), 1);
            let kept = |at: i64| NOW_MS - at;
            is_left(
                &mut series,
                &[
                    ("a", kept(after)),
                    ("a", kept(far)),
                    ("a", 1000),
                    ("b", kept(after)),
                    ("b", kept(far)),
                    ("b", 1000),
                    ("b", kept(before)),
                ],
            );
        }
        let mut series = Series::new(create(Some(10)), &times);
        assert_eq!(series.expire(NOW_MS), 2);
        series.assert_valid();
    }

    #[test]
    fn expiry_uses_the_current_filter_and_age_of_an_index() {
        let mut series = Series::new(create(None), &[NOW_MS - SPAN_MS - 100_000]);
        series.expiring(1, 1_000_000, doc! { "m.s": "a" });
        assert_eq!(series.expire(NOW_MS), 0);
        let index = doc! { "name": "ttl", "expireAfterSeconds": 10 };
        series.run(doc! { "collMod": "ts", "index": index });
        // Now in another series, which the filter does not select.
        let change = doc! { "$set": doc! { "m.s": "c" } };
        let statement = doc! { "q": doc! { "m.s": "a" }, "u": change, "multi": true };
        series.run(doc! { "update": "ts", "updates": nilometer_bson::array![statement] });
        assert_eq!(series.expire(NOW_MS), 0);
        let change = doc! { "$set": doc! { "m.s": "a" } };
        let statement = doc! { "q": doc! { "m.s": "b" }, "u": change, "multi": true };
        series.run(doc! { "update": "ts", "updates": nilometer_bson::array![statement] });
        assert_eq!(series.expire(NOW_MS), 1);
        is_left(&mut series, &[("c", SPAN_MS + 100_000)]);
    }
}

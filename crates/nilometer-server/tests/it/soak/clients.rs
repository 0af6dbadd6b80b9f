//! The clients of a soak besides the writers: they create and drop collections, insert expiring documents, make
//! backups, and abandon cursors.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nilometer_bson::{Document, Value, array, doc};

use super::SoakState;
use crate::client::{Client, body, code, is_ok, op_msg, sequence};
use crate::random::Random;
use crate::server::{Directory, nilometer};

/// Maximum collections of the definer.
const COLLECTIONS_MAX: usize = 8;

/// Maximum documents of the expirer that do not expire.
const KEPT_MAX: usize = 2000;

/// Time in which expired documents must disappear.
const EXPIRY_PATIENCE: Duration = Duration::from_secs(30);

/// Time between two backups.
const BACKUP_EVERY: Duration = Duration::from_secs(15);

/// An expired time: September 2001.
const EXPIRED_MS: i64 = 1_000_000_000_000;

/// A time that does not expire.
const KEPT_MS: i64 = 4_000_000_000_000;

fn ask(client: &mut Client, database: &str, command: &Document) -> Option<Document> {
    let mut with_database = nilometer_bson::DocumentBuilder::new();
    for element in command.iter() {
        with_database.append_element(element);
    }
    with_database.append("$db", database);
    client.ask_or_lose(&op_msg(0, &[body(&with_database.finish())]))
}

/// The known state of a collection.
#[derive(Clone, Debug, PartialEq)]
struct CollectionState {
    /// `None` if a command was in flight.
    exists: Option<bool>,
    /// Names of its indexes; `None` if a command was in flight.
    indexes: BTreeMap<String, Option<bool>>,
    expires_after: Option<i64>,
}

/// Creates, changes and drops collections of the database `ddl`.
pub(super) struct Definer {
    random: Random,
    collections: BTreeMap<String, CollectionState>,
    pub(super) made: u64,
}

impl Definer {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            random: Random(seed),
            collections: BTreeMap::new(),
            made: 0,
        }
    }

    pub(super) fn work(&mut self, port: u16, shared: &SoakState) {
        let mut client = Client::connect(port);
        let mut random = Random(self.random.below(u64::MAX));
        shared.work(&mut random, 40, || self.change_one(&mut client));
    }

    fn change_one(&mut self, client: &mut Client) -> bool {
        let names: Vec<String> = self.collections.keys().cloned().collect();
        let choice = self.random.below(10);
        if names.is_empty() || choice < 3 && names.len() < COLLECTIONS_MAX {
            return self.make(client);
        }
        let name = names[self.random.below(names.len() as u64) as usize].clone();
        match choice {
            0..=3 => self.drop_one(client, &name),
            4..=5 => self.make_index(client, &name),
            6 => self.drop_index(client, &name),
            7 => self.set_expiry(client, &name),
            _ => fill(client, &name),
        }
    }

    fn make(&mut self, client: &mut Client) -> bool {
        self.made += 1;
        let name = format!("made{}", self.made);
        let create = doc! {
            "create": name.as_str(),
            "timeseries": doc! {"timeField": "t", "metaField": "m"},
            "expireAfterSeconds": 630_720_000i64,
        };
        let known = CollectionState {
            exists: None,
            indexes: BTreeMap::new(),
            expires_after: Some(630_720_000),
        };
        let known = self.collections.entry(name.clone()).or_insert(known);
        let Some(reply) = ask(client, "ddl", &create) else {
            return false;
        };
        assert!(is_ok(&reply), "{reply:?}");
        known.exists = Some(true);
        fill(client, &name)
    }

    fn drop_one(&mut self, client: &mut Client, name: &str) -> bool {
        let reply = ask(client, "ddl", &doc! {"drop": name});
        if let Some(reply) = &reply {
            assert!(is_ok(reply), "{reply:?}");
            self.collections.remove(name);
        } else if let Some(known) = self.collections.get_mut(name) {
            known.exists = None;
        }
        reply.is_some()
    }

    fn make_index(&mut self, client: &mut Client, name: &str) -> bool {
        let field = ["v", "w", "m.s"][self.random.below(3) as usize];
        let mut key = nilometer_bson::DocumentBuilder::new();
        key.append(field, 1);
        let index = doc! {"key": key.finish(), "name": field};
        let command = doc! {"createIndexes": name, "indexes": array![index]};
        self.change_index(client, name, field, &command, true)
    }

    fn drop_index(&mut self, client: &mut Client, name: &str) -> bool {
        let known = &self.collections[name];
        let Some(field) = known.indexes.keys().next().cloned() else {
            return true;
        };
        let command = doc! {"dropIndexes": name, "index": field.as_str()};
        self.change_index(client, name, &field, &command, false)
    }

    fn change_index(
        &mut self,
        client: &mut Client,
        name: &str,
        field: &str,
        command: &Document,
        there: bool,
    ) -> bool {
        let reply = ask(client, "ddl", command);
        let indexes = &mut self.collections.get_mut(name).expect("known").indexes;
        match &reply {
            None => drop(indexes.insert(field.to_owned(), None)),
            Some(reply) => {
                assert!(is_ok(reply), "{command:?}: {reply:?}");
                if there {
                    indexes.insert(field.to_owned(), Some(true));
                } else {
                    indexes.remove(field);
                }
            }
        }
        reply.is_some()
    }

    fn set_expiry(&mut self, client: &mut Client, name: &str) -> bool {
        let seconds = 630_720_000 + i64::from(self.random.int(1000));
        let reply = ask(
            client,
            "ddl",
            &doc! {"collMod": name, "expireAfterSeconds": seconds},
        );
        let known = self.collections.get_mut(name).expect("known");
        known.expires_after = reply.as_ref().map(|_| seconds);
        if let Some(reply) = &reply {
            assert!(is_ok(reply), "{reply:?}");
        }
        reply.is_some()
    }

    /// Checks that acknowledged collections are complete and dropped ones gone.
    pub(super) fn check(&mut self, client: &mut Client) {
        let listed = client.find_all("ddl", &doc! {"listCollections": 1});
        let mut found: BTreeMap<&str, &Document> = BTreeMap::new();
        for collection in &listed {
            found.insert(collection.get("name").as_str().expect("a name"), collection);
        }
        self.collections.retain(|name, known| {
            let there = found.remove(name.as_str());
            let buckets = found.remove(format!("system.buckets.{name}").as_str());
            assert_eq!(
                there.is_some(),
                buckets.is_some(),
                "half of {name} is there"
            );
            assert_eq!(
                known.exists.unwrap_or(there.is_some()),
                there.is_some(),
                "{name}"
            );
            let Some(there) = there else { return false };
            known.exists = Some(true);
            let options = there.get("options").as_document().expect("options");
            let seconds = options.get("expireAfterSeconds").as_exact_i64();
            assert!(
                known.expires_after.is_none() || known.expires_after == seconds,
                "{there:?}"
            );
            known.expires_after = seconds;
            let indexes = client.find_all("ddl", &doc! {"listIndexes": name.as_str()});
            let names: BTreeSet<&str> = indexes
                .iter()
                .filter_map(|i| i.get("name").as_str())
                .collect();
            known.indexes.retain(|index, expected| {
                let there = names.contains(index.as_str());
                assert_eq!(expected.unwrap_or(there), there, "{name}: index {index}");
                *expected = Some(true);
                there
            });
            let more = names
                .iter()
                .filter(|index| !known.indexes.contains_key(**index));
            let more: Vec<_> = more.filter(|index| **index != "m_1_t_1").collect();
            assert!(more.is_empty(), "{name}: {more:?}");
            true
        });
        found.remove("system.views");
        assert!(
            found.is_empty(),
            "never made, or dropped: {:?}",
            found.keys()
        );
    }
}

/// Writes into a collection, so that it has buckets and queued maintenance when it is dropped.
fn fill(client: &mut Client, name: &str) -> bool {
    let documents: Vec<Document> = (0..200)
        .map(|at| doc! {"t": Value::DateTime(KEPT_MS + at * 20_000), "m": doc! {"s": at % 3}, "v": at, "w": "w"})
        .collect();
    let insert = doc! {"insert": name, "$db": "ddl"};
    let message = op_msg(0, &[body(&insert), sequence("documents", &documents)]);
    let reply = client.ask_or_lose(&message);
    if let Some(reply) = &reply {
        assert!(is_ok(reply), "{reply:?}");
    }
    reply.is_some()
}

/// Writes documents that expire and others that do not.
pub(super) struct Expirer {
    random: Random,
    fresh: i64,
    /// Documents that do not expire, of each collection: acknowledged ones, and those of a command in flight.
    kept: [BTreeSet<i64>; 2],
    doubtful: [BTreeSet<i64>; 2],
}

const EXPIRING: [&str; 2] = ["brief", "fleeting"];

impl Expirer {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            random: Random(seed),
            fresh: 0,
            kept: Default::default(),
            doubtful: Default::default(),
        }
    }

    pub(super) fn work(&mut self, port: u16, shared: &SoakState) {
        let mut client = Client::connect(port);
        let mut random = Random(self.random.below(u64::MAX));
        shared.work(&mut random, 30, || self.write_one(&mut client));
    }

    fn write_one(&mut self, client: &mut Client) -> bool {
        let at = self.random.below(2) as usize;
        if self.kept[at].len() > KEPT_MAX {
            return self.forget(client, at);
        }
        let stays = self.random.below(3) == 0;
        let ms = if stays { KEPT_MS } else { EXPIRED_MS };
        let ids: Vec<i64> = (0..1 + self.random.below(100))
            .map(|_| {
                self.fresh += 1;
                self.fresh
            })
            .collect();
        let documents = ids.iter().map(|id| {
            let time = Value::DateTime(ms + id % 600_000 * 1000);
            doc! {"_id": *id, "t": time.clone(), "at": time, "m": id % 5}
        });
        let documents: Vec<Document> = documents.collect();
        let insert = doc! {"insert": EXPIRING[at], "$db": "test"};
        let message = op_msg(0, &[body(&insert), sequence("documents", &documents)]);
        let reply = client.ask_or_lose(&message);
        match &reply {
            Some(reply) => {
                assert!(is_ok(reply), "{reply:?}");
                if stays {
                    self.kept[at].extend(ids);
                }
            }
            None if stays => self.doubtful[at].extend(ids),
            None => {}
        }
        reply.is_some()
    }

    fn forget(&mut self, client: &mut Client, at: usize) -> bool {
        let until = *self.kept[at].iter().nth(KEPT_MAX / 2).expect("many");
        let later = self.kept[at].split_off(&until);
        let gone = std::mem::replace(&mut self.kept[at], later);
        let statement = doc! {"q": doc! {"_id": doc! {"$lt": until}}, "limit": 0};
        let command = doc! {"delete": EXPIRING[at], "deletes": array![statement]};
        let reply = ask(client, "test", &command);
        match &reply {
            Some(reply) => assert!(is_ok(reply), "{reply:?}"),
            None => self.doubtful[at].extend(gone),
        }
        reply.is_some()
    }

    /// Checks that expired documents disappear and others stay.
    pub(super) fn check(&mut self, client: &mut Client) {
        for (at, collection) in EXPIRING.into_iter().enumerate() {
            let end = Instant::now() + EXPIRY_PATIENCE;
            let found = loop {
                let documents = client.find_all("test", &doc! {"find": collection});
                let expired = |d: &&Document| matches!(d.get("t"), nilometer_bson::ValueRef::DateTime(ms) if ms < KEPT_MS);
                let left = documents.iter().filter(expired).count();
                if left == 0 {
                    break documents;
                }
                assert!(
                    Instant::now() < end,
                    "{collection}: {left} have not expired"
                );
                std::thread::sleep(Duration::from_millis(100));
            };
            let ids = found
                .iter()
                .map(|d| d.get("_id").as_exact_i64().expect("an id"));
            let ids: BTreeSet<i64> = ids.collect();
            assert_eq!(ids.len(), found.len(), "{collection}: one is there twice");
            let (kept, doubtful) = (&self.kept[at], &self.doubtful[at]);
            let lost: Vec<_> = kept.difference(&ids).take(5).collect();
            assert!(lost.is_empty(), "{collection}: lost {lost:?}");
            let more = |id: &&i64| !kept.contains(*id) && !doubtful.contains(*id);
            let more: Vec<_> = ids.iter().filter(more).take(5).collect();
            assert!(more.is_empty(), "{collection}: too many {more:?}");
            self.kept[at] = ids;
            self.doubtful[at].clear();
        }
    }
}

/// Makes backups and verifies them.
pub(super) struct Saver {
    directory: PathBuf,
    pub(super) made: u64,
}

impl Saver {
    pub(super) fn new(directory: &Directory) -> Self {
        Self {
            directory: directory.0.join("copy"),
            made: 0,
        }
    }

    pub(super) fn work(&mut self, port: u16, shared: &SoakState) {
        let mut client = Client::connect(port);
        let copy = self.directory.clone();
        let mut next = Instant::now();
        while !shared.stops() {
            std::thread::sleep(Duration::from_millis(50));
            if Instant::now() < next {
                continue;
            }
            next = Instant::now() + BACKUP_EVERY;
            drop(std::fs::remove_dir_all(&copy));
            let text = copy.to_str().expect("a path");
            let Some(reply) = ask(&mut client, "admin", &doc! {"nilometerBackup": text}) else {
                return;
            };
            assert!(is_ok(&reply), "{reply:?}");
            verify(&copy);
            self.made += 1;
        }
    }

    /// Makes a backup in `target`.
    pub(super) fn save(&self, client: &mut Client, target: &Path) {
        drop(std::fs::remove_dir_all(&self.directory));
        let reply = client.run(&doc! {"nilometerBackup": target.to_str().expect("a path")});
        assert!(is_ok(&reply), "{reply:?}");
    }
}

/// Runs `nilometer verify` on a directory that is not served.
pub(super) fn verify(directory: &Path) {
    let path = directory.to_str().expect("a path");
    let told = nilometer(&["verify", path]).output().expect("it runs");
    let text = String::from_utf8_lossy(&[told.stdout, told.stderr].concat()).into_owned();
    assert_eq!(told.status.code(), Some(0), "{path}: {text}");
}

/// Opens cursors, continues some, and abandons them; sometimes reads the server's statistics.
pub(super) fn leave_cursors(port: u16, seed: u64, shared: &SoakState) {
    let mut client = Client::connect(port);
    let mut random = Random(seed);
    let mut rest = Random(seed ^ 1);
    shared.work(&mut rest, 60, || {
        let spread = doc! {"_id": "$_id", "n": doc! {"$push": "$$ROOT"}};
        let (database, command) = match random.below(6) {
            0 => (
                "test",
                doc! {"find": "ts", "batchSize": 20, "sort": doc! {"n": 1}},
            ),
            1 => ("test", doc! {"find": "plain", "batchSize": 3}),
            2 => (
                "test",
                doc! {
                    "aggregate": "ts",
                    "pipeline": array![doc! {"$group": spread}, doc! {"$sort": doc! {"_id": -1}}],
                    "cursor": doc! {"batchSize": 5},
                },
            ),
            3 => ("admin", doc! {"serverStatus": 1}),
            4 => ("admin", doc! {"currentOp": 1}),
            _ => ("test", doc! {"collStats": "ts"}),
        };
        let Some(reply) = ask(&mut client, database, &command) else {
            return false;
        };
        assert!(is_ok(&reply), "{command:?}: {reply:?}");
        let Some(cursor) = reply.get("cursor").as_document() else {
            return true;
        };
        let id = cursor.get("id").as_exact_i64().expect("an id");
        if id == 0 || random.below(2) == 0 {
            return true;
        }
        let collection = command.iter().next().expect("a command");
        let more = doc! {"getMore": id, "collection": collection.value(), "batchSize": 7};
        match ask(&mut client, database, &more) {
            None => false,
            // It timed out, or its collection was replaced.
            Some(reply) => is_ok(&reply) || [43, 175].contains(&code(&reply)),
        }
    });
}

//! Caches between queries agree with the store: the same queries repeated, between writes of all kinds,
//! against a list of the writes.

use std::collections::BTreeMap;

use nilometer::{ClientSession, Database, Request};
use nilometer_bson::{Document, DocumentBuilder, Value, ValueRef, array, doc};
use nilometer_storage::testing::Effort;

use crate::support::{TemporaryDirectory, show};

const HOUR_MS: i64 = 3_600_000;
const FROM_MS: i64 = 1_700_000_000_000 / HOUR_MS * HOUR_MS;
const SERIES: i64 = 4;
const HOURS: i64 = 30;
/// Histories of a run.
const HISTORIES: Effort = Effort {
    fast: 2,
    long: 20,
    soak: 400,
};
const STEPS: usize = 60;

struct NumberGenerator(u64);

impl NumberGenerator {
    fn below(&mut self, end: i64) -> i64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as i64 % end
    }
}

/// A database with its expected contents: time, series and value of each measurement.
struct History<'d> {
    database: &'d Database,
    session: ClientSession,
    there: BTreeMap<i64, (i64, i64, i64)>,
    next_id: i64,
}

impl History<'_> {
    fn run(&mut self, command: Document) -> Document {
        let mut body = DocumentBuilder::new();
        for element in command.iter() {
            body.append_element(element);
        }
        body.append("$db", "test");
        let request = Request::new(body.finish());
        let reply = self.database.run_command(&mut self.session, &request);
        let is_fine = reply.get("ok").as_exact_i64() == Some(1);
        assert!(
            is_fine && reply.get("writeErrors").is_missing(),
            "{}",
            show(&reply)
        );
        reply
    }

    fn insert(&mut self, draw: &mut NumberGenerator) {
        let series = draw.below(SERIES);
        let from = FROM_MS + draw.below(HOURS) * HOUR_MS + draw.below(2) * draw.below(HOUR_MS);
        let count = 1 + draw.below(120);
        let one = |at: i64| {
            let (id, time, value) = (self.next_id + at, from + at * 20_000, draw.below(1000));
            self.there.insert(id, (time, series, value));
            let time = Value::DateTime(time);
            Value::from(doc! {"_id": id, "t": time, "m": doc! {"s": series}, "v": value})
        };
        let documents: Vec<Value> = (0..count).map(one).collect();
        self.next_id += count;
        self.run(doc! {"insert": "ts", "documents": documents});
    }

    fn change(&mut self, draw: &mut NumberGenerator) {
        let (series, below) = (draw.below(SERIES), draw.below(200));
        match draw.below(3) {
            0 => {
                let filter = doc! {"m.s": series, "v": doc! {"$lt": below}};
                self.run(doc! {"delete": "ts", "deletes": array![doc! {"q": filter, "limit": 0}]});
                self.there
                    .retain(|_, (_, s, v)| *s != series || *v >= below);
            }
            1 => {
                let filter = doc! {"m.s": series, "v": doc! {"$lt": below}};
                let set = doc! {"$set": doc! {"v": 5000}};
                let update = doc! {"q": filter, "u": set, "multi": true};
                self.run(doc! {"update": "ts", "updates": array![update]});
                for (_, s, v) in self.there.values_mut() {
                    if *s == series && *v < below {
                        *v = 5000;
                    }
                }
            }
            _ => {
                // All of a series, whose metadata changes.
                let to = draw.below(SERIES);
                let set = doc! {"$set": doc! {"m": doc! {"s": to}}};
                let update = doc! {"q": doc! {"m.s": series}, "u": set, "multi": true};
                self.run(doc! {"update": "ts", "updates": array![update]});
                for (_, s, _) in self.there.values_mut() {
                    if *s == series {
                        *s = to;
                    }
                }
            }
        }
    }

    fn rows(&mut self, command: Document) -> Vec<Document> {
        let reply = self.run(command);
        let cursor = reply.get("cursor").as_document().unwrap();
        assert_eq!(cursor.get("id").as_exact_i64(), Some(0));
        let rows = cursor.get("firstBatch").as_array().unwrap();
        rows.iter()
            .map(|row| row.as_document().unwrap().to_document())
            .collect()
    }

    /// Queries sums by hour and series within a window, all its measurements from either end, and the
    /// newest of each series.
    fn ask(&mut self, draw: &mut NumberGenerator) {
        let from = FROM_MS + draw.below(HOURS) * HOUR_MS - draw.below(3) * 1_800_000;
        let to = from + draw.below(HOURS) * HOUR_MS;
        let window = doc! {"t": doc! {"$gte": Value::DateTime(from), "$lt": Value::DateTime(to)}};
        let within = self.there.iter();
        let within: Vec<_> = within
            .filter(|(_, (t, ..))| (from..to).contains(t))
            .map(|(id, (t, s, v))| (*id, *t, *s, *v))
            .collect();
        let hour = doc! {"$dateTrunc": doc! {"date": "$t", "unit": "hour"}};
        let group = doc! {
            "_id": doc! {"h": hour, "s": "$m.s"}, "n": doc! {"$sum": 1}, "v": doc! {"$sum": "$v"}, "a": doc! {"$avg": "$v"},
        };
        let stages = array![doc! {"$match": window.clone()}, doc! {"$group": group}];
        let batch = doc! {"batchSize": 1_000_000};
        let mut expected: BTreeMap<(i64, i64), (i64, i64)> = BTreeMap::new();
        for (_, t, s, v) in &within {
            let group = expected.entry((t - t % HOUR_MS, *s)).or_default();
            *group = (group.0 + 1, group.1 + v);
        }
        let command = doc! {"aggregate": "ts", "pipeline": stages, "cursor": batch.clone()};
        let mut found = BTreeMap::new();
        for row in self.rows(command) {
            let key = row.get("_id").as_document().unwrap();
            let ValueRef::DateTime(hour) = key.get("h") else {
                panic!("{}", show(&row))
            };
            let number = |name: &str| row.get(name).as_exact_i64().unwrap();
            let (n, v) = (number("n"), number("v"));
            assert!(matches!(row.get("a"), ValueRef::Double(a) if a == v as f64 / n as f64));
            found.insert((hour, key.get("s").as_exact_i64().unwrap()), (n, v));
        }
        assert_eq!(found, expected);
        for direction in [1, -1] {
            let sort = doc! {"t": direction};
            let find =
                doc! {"find": "ts", "filter": window.clone(), "sort": sort, "batchSize": 1_000_000};
            let number = |row: &Document, name: &str| row.get(name).as_exact_i64().unwrap();
            let rows = self.rows(find);
            let mut found: Vec<_> = rows
                .iter()
                .map(|row| (number(row, "_id"), number(row, "v")))
                .collect();
            found.sort_unstable();
            let expected: Vec<_> = within.iter().map(|(id, _, _, v)| (*id, *v)).collect();
            assert_eq!(found, expected);
        }
        let top = doc! {"$top": doc! {"sortBy": doc! {"t": -1}, "output": array!["$t", "$v"]}};
        let stages = array![doc! {"$group": doc! {"_id": "$m.s", "last": top}}];
        let command = doc! {"aggregate": "ts", "pipeline": stages, "cursor": batch};
        let mut newest: BTreeMap<i64, i64> = BTreeMap::new();
        for (t, s, _) in self.there.values() {
            let known = newest.entry(*s).or_insert(*t);
            *known = (*t).max(*known);
        }
        let rows = self.rows(command);
        assert_eq!(rows.len(), newest.len());
        for row in rows {
            let series = row.get("_id").as_exact_i64().unwrap();
            let mut last = row.get("last").as_array().unwrap().iter();
            let Some(ValueRef::DateTime(time)) = last.next() else {
                panic!("{}", show(&row))
            };
            assert_eq!(newest.get(&series), Some(&time));
            let value = last.next().and_then(|value| value.as_exact_i64());
            let is_there =
                |(t, s, v): &(i64, i64, i64)| *t == time && *s == series && Some(*v) == value;
            assert!(self.there.values().any(is_there), "{}", show(&row));
        }
    }
}

fn exercise(database: &Database, seed: u64) {
    let mut draw = NumberGenerator(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let mut history = History {
        database,
        session: ClientSession::embedded(),
        there: BTreeMap::new(),
        next_id: 0,
    };
    let options = doc! {"timeField": "t", "metaField": "m"};
    history.run(doc! {"create": "ts", "timeseries": options});
    for _ in 0..8 {
        history.insert(&mut draw);
    }
    for _ in 0..STEPS {
        match draw.below(10) {
            0 | 1 => history.insert(&mut draw),
            2 => history.change(&mut draw),
            3 => database.settle().unwrap(),
            _ => history.ask(&mut draw),
        }
    }
    history.ask(&mut draw);
}

#[test]
fn cached_answers_equal_stored_data() {
    for seed in 1..=HISTORIES.requested() {
        exercise(&Database::in_memory().unwrap(), seed);
        let directory = TemporaryDirectory::new();
        let database = Database::open(&directory.0).unwrap();
        exercise(&database, seed);
        database.close().unwrap();
    }
}

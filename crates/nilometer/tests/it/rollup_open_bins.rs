//! Open bins of a rollup over another one, whose stored bins below are merged once and kept in memory.

use std::sync::Arc;

use nilometer_bson::{Document, DocumentBuilder, Value, array, doc};
use nilometer_storage::testing::effort;
use nilometer_storage::{Engine, MemoryEngine};

use crate::random::Random;
use crate::rollups::{HOUR_MS, START_MS, opened, trunc};
use crate::support::{Fixture, show};

const BEDS: [&str; 3] = ["a", "b", "c"];

fn rolled(name: &str, source: &str, unit: &str, fields: Document) -> Document {
    let bed = match source {
        "ts" => "$m.bed",
        _ => "$bed",
    };
    let stages = array![grouped(unit, bed, fields)];
    let rollup = doc! {"source": source, "pipeline": stages, "lateness": 0, "refresh": 0};
    doc! {"create": name, "rollup": rollup}
}

fn grouped(unit: &str, bed: &str, fields: Document) -> Document {
    let mut group = DocumentBuilder::new();
    group.append("_id", doc! {"bed": bed, "t": trunc(unit, 1, "$t")});
    group.append_all(fields.as_ref());
    doc! {"$group": group.finish()}
}

fn fields() -> Document {
    doc! {"sum": doc! {"$sum": "$v"}, "high": doc! {"$max": "$v"}, "n": doc! {"$count": doc! {}}}
}

/// Compares the rollup by day, and groups of the source by day, with groups that no rule rewrites.
fn check(fixture: &mut Fixture, what: &str) {
    let set = |names: Value| doc! {"setParameter": 1, "internalNilometerDisabledRules": names};
    let few = doc! {"high": doc! {"$max": "$v"}};
    for fields in [fields(), few] {
        let stages = array![
            grouped("day", "$m.bed", fields),
            doc! {"$sort": doc! {"_id": 1}}
        ];
        let command = doc! {"aggregate": "ts", "pipeline": stages, "cursor": doc! {}};
        let found = fixture.all(command.clone());
        fixture.reply_on("admin", set(array!["UseRollup"]));
        let expected = fixture.all(command);
        fixture.reply_on("admin", set(array![]));
        let shown = |all: &[Document]| -> Vec<String> { all.iter().map(show).collect() };
        assert_eq!(shown(&found), shown(&expected), "{what}");
        if expected
            .first()
            .is_some_and(|row| row.get("n").is_missing())
        {
            continue;
        }
        let parts = doc! {"_id": 1, "sum": 1, "high": 1, "n": 1};
        let find = doc! {"find": "daily", "projection": parts, "sort": doc! {"_id": 1}};
        assert_eq!(shown(&fixture.all(find)), shown(&expected), "{what}");
    }
}

#[test]
fn open_bins_follow_the_bins_below() {
    let first = std::env::var("NILOMETER_SEED").map_or(0, |seed| seed.parse().unwrap());
    for seed in first..first + effort(3, 60, 5_000) {
        let mut random = Random::new(seed);
        let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
        let clock = Arc::default();
        let mut fixture = opened(&engine, &clock);
        let options = doc! {"timeField": "t", "metaField": "m"};
        fixture.run(doc! {"create": "ts", "timeseries": options});
        fixture.run(rolled("hourly", "ts", "hour", fields()));
        let merged = doc! {
            "sum": doc! {"$sum": "$sum"}, "high": doc! {"$max": "$high"}, "n": doc! {"$sum": "$n"},
        };
        fixture.run(rolled("daily", "hourly", "day", merged));
        let mut newest = 4;
        for step in 0..24 {
            match random.below(8) {
                0..=3 => {
                    // Mostly late, so that the span of stored bins stays.
                    newest += i64::from(random.below(4) == 0);
                    let hour = random.below(newest as u64 + 1) as i64;
                    let bed = BEDS[random.below(3) as usize];
                    let at = START_MS + hour * HOUR_MS + random.below(60) as i64 * 60_000;
                    let value = random.below(100) as i32 - 50;
                    let row = doc! {"t": Value::DateTime(at), "m": doc! {"bed": bed}, "v": value};
                    fixture.run(doc! {"insert": "ts", "documents": array![row]});
                }
                4 => {
                    let low = random.below(100) as i32 - 50;
                    let filter = doc! {"v": doc! {"$gte": low, "$lt": low + 10}};
                    let delete = doc! {"q": filter, "limit": 0};
                    fixture.run(doc! {"delete": "ts", "deletes": array![delete]});
                }
                5 | 6 => {
                    fixture.run(doc! {"refreshRollup": "hourly"});
                }
                _ => {
                    fixture.run(doc! {"refreshRollup": "daily"});
                }
            }
            check(&mut fixture, &format!("seed {seed}, step {step}"));
        }
    }
}

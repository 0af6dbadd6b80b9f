//! Documents before and after changes: how long streams show them.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use nilometer::Database;
use nilometer::operation::Clock;
use nilometer::services::Environment;
use nilometer_bson::{Document, Value, ValueRef, array, doc};

use super::{Stream, watch};
use crate::support::{Fixture, TemporaryDirectory, primary_environment, show};

/// A clock that the test sets.
#[derive(Default)]
struct SetClock(AtomicI64);

impl Clock for SetClock {
    fn now_ms(&self) -> i64 {
        1_700_000_000_000 + self.0.load(Ordering::Relaxed)
    }

    fn monotonic(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed).unsigned_abs())
    }
}

fn expire_after(seconds: impl Into<Value>) -> Document {
    let images = doc! {"expireAfterSeconds": seconds.into()};
    doc! {"setClusterParameter": doc! {"changeStreamOptions": doc! {"preAndPostImages": images}}}
}

#[test]
fn images_expire_after_the_time_of_the_cluster_parameter() {
    let directory = TemporaryDirectory::new();
    let clock = Arc::new(SetClock::default());
    let open = || {
        let environment = Environment {
            clock: clock.clone(),
            ..primary_environment()
        };
        Fixture::of(Database::open_with(&directory.0, environment).unwrap())
    };
    let mut fixture = open();
    let images = doc! {"enabled": true};
    fixture.run(doc! {"create": "c", "changeStreamPreAndPostImages": images});
    let start = fixture.run(doc! {"insert": "c", "documents": array![doc! {"_id": 1, "n": 0}]});
    let start = start.get("operationTime").to_value();
    let statement = doc! {"q": doc! {"_id": 1}, "u": doc! {"$inc": doc! {"n": 1}}};
    fixture.run(doc! {"update": "c", "updates": array![statement]});
    let has_images = |fixture: &mut Fixture| {
        let options = doc! {
            "startAtOperationTime": start.clone(), "fullDocument": "whenAvailable",
            "fullDocumentBeforeChange": "whenAvailable"
        };
        let mut stream = Stream::open(fixture, watch("c", options, vec![]));
        let update = stream.read(fixture)[1].clone();
        let [before, after] = ["fullDocumentBeforeChange", "fullDocument"]
            .map(|name| matches!(update.get(name), ValueRef::Document(_)));
        assert_eq!(before, after);
        before
    };
    assert!(has_images(&mut fixture));
    assert_eq!(get(&mut fixture), r#"String("off")"#);
    let set = fixture.reply_on("admin", expire_after(100));
    assert_eq!(set.get("ok").as_exact_i64(), Some(1), "{}", show(&set));
    assert_eq!(get(&mut fixture), "Int64(100)");
    clock.0.store(99_000, Ordering::Relaxed);
    assert!(has_images(&mut fixture));
    clock.0.store(100_000, Ordering::Relaxed);
    assert!(!has_images(&mut fixture));
    // The parameter is stored.
    drop(fixture);
    let mut fixture = open();
    assert_eq!(get(&mut fixture), "Int64(100)");
    assert!(!has_images(&mut fixture));
    fixture.reply_on("admin", expire_after("off"));
    assert!(has_images(&mut fixture));
}

/// Returns the time as `getClusterParameter` shows it.
fn get(fixture: &mut Fixture) -> String {
    let command = doc! {"getClusterParameter": "changeStreamOptions"};
    let reply = fixture.reply_on("admin", command);
    let all = reply.get("clusterParameters").as_array().unwrap();
    let one = all
        .iter()
        .next()
        .unwrap()
        .as_document()
        .unwrap()
        .to_document();
    let images = one.get("preAndPostImages").as_document().unwrap();
    format!("{:?}", images.get("expireAfterSeconds"))
}

#[test]
fn wrong_cluster_parameters_are_refused() {
    let mut fixture = Fixture::of(Database::in_memory_with(primary_environment()).unwrap());
    for (command, code) in [
        (doc! {"setClusterParameter": doc! {"other": doc! {}}}, 4),
        (doc! {"setClusterParameter": doc! {}}, 72),
        (
            doc! {"setClusterParameter": doc! {"changeStreamOptions": 1}},
            14,
        ),
        (expire_after(0), 2),
        (expire_after("never"), 2),
        (doc! {"getClusterParameter": "other"}, 4),
        (doc! {"getClusterParameter": 1}, 14),
        (doc! {"getClusterParameter": array![]}, 2),
    ] {
        let reply = fixture.reply_on("admin", command);
        assert_eq!(
            reply.get("code").as_exact_i64(),
            Some(code),
            "{}",
            show(&reply)
        );
    }
    let reply = fixture.reply_on(
        "admin",
        doc! {"getClusterParameter": array!["changeStreamOptions"]},
    );
    assert_eq!(reply.get("ok").as_exact_i64(), Some(1), "{}", show(&reply));
    let mut alone = Fixture::new();
    let reply = alone.reply_on("admin", doc! {"getClusterParameter": "*"});
    assert_eq!(
        reply.get("code").as_exact_i64(),
        Some(76),
        "{}",
        show(&reply)
    );
}

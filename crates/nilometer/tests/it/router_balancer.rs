//! The balancer of a router spreads what is new, and moves documents.

use nilometer_bson::{Document, Value, ValueRef, array, doc};

use crate::random::Random;
use crate::router::{Cluster, create};
use crate::support::show;

fn balance(cluster: &Cluster) {
    cluster.router.database.balance().unwrap();
}

fn mode(cluster: &mut Cluster) -> String {
    let status = cluster.admin(doc! {"balancerStatus": 1});
    status.get("mode").as_str().unwrap().to_owned()
}

fn config(cluster: &mut Cluster, name: &str) -> Vec<Document> {
    let found = cluster.router.reply_on("config", doc! {"find": name});
    cluster.router.rest(found)
}

/// Inserts measurements of hosts, each at its own rate, and returns how many.
fn write(cluster: &mut Cluster, hosts: &[(i32, i64)], from: i64) -> i64 {
    let one = |host: i32, at: i64| -> Value {
        doc! {"t": Value::DateTime((from + at) * 1000), "m": doc! {"host": host}, "x": at}.into()
    };
    let list = hosts
        .iter()
        .flat_map(|(host, rate)| (0..*rate).map(|at| one(*host, at)));
    let list: Vec<Value> = list.collect();
    let count = list.len() as i64;
    cluster
        .router
        .run(doc! {"insert": "ts", "documents": list, "ordered": false});
    count
}

fn update_settings(cluster: &mut Cluster, id: &str, update: Document) -> i64 {
    let one = doc! {"q": doc! {"_id": id}, "u": update, "upsert": true};
    let update = doc! {"update": "settings", "updates": array![one]};
    let reply = cluster.router.reply_on("config", update);
    reply.get("code").as_exact_i64().unwrap_or(0)
}

#[test]
fn new_measurements_are_spread_and_nothing_is_lost() {
    for (seed, key) in [
        (1, doc! {"m.host": 1}),
        (2, doc! {"m.host": 1, "t": 1}),
        (3, doc! {"m.host": "hashed"}),
    ] {
        let mut random = Random::new(seed);
        let mut cluster = Cluster::new(4);
        cluster.router.run(create());
        cluster.admin(doc! {"shardCollection": "test.ts", "key": key.clone()});
        // All chunks begin in one partition.
        let min = |value: Value| {
            let mut out = nilometer_bson::DocumentBuilder::new();
            for field in key.iter() {
                let name = match field.name() {
                    "t" => "control.min.t".to_owned(),
                    name => name.replace("m.", "meta."),
                };
                out.append(&name, value.clone());
            }
            out.finish()
        };
        let (low, high) = (min(Value::MinKey), min(Value::MaxKey));
        cluster.admin(doc! {"moveRange": "test.ts", "min": low, "max": high, "toShard": "p0001"});
        let hosts: Vec<(i32, i64)> = (0..60)
            .map(|host| (host, 20 + i64::from(random.int(30))))
            .collect();
        let mut written = write(&mut cluster, &hosts, 0);
        // It is off at first.
        balance(&cluster);
        assert_eq!(mode(&mut cluster), "off");
        cluster.admin(doc! {"balancerStart": 1});
        assert_eq!(mode(&mut cluster), "full");
        balance(&cluster);
        written += write(&mut cluster, &hosts, 1000);
        balance(&cluster);
        let before = cluster.counts("ts");
        let new = write(&mut cluster, &hosts, 2000);
        written += new;
        let after = cluster.counts("ts");
        for (now, then) in after.iter().zip(&before) {
            let share = (now - then) as f64 / new as f64;
            assert!(
                (0.15..=0.32).contains(&share),
                "{seed}: {before:?} {after:?}"
            );
        }
        assert_eq!(after.iter().sum::<i64>(), written);
        // What is even stays.
        let moves = config(&mut cluster, "changelog").len();
        balance(&cluster);
        assert_eq!(config(&mut cluster, "changelog").len(), moves);
        for (host, rate) in &hosts {
            let count = doc! {"count": "ts", "query": doc! {"m.host": *host}};
            let found = cluster.router.run(count).get("n").as_exact_i64();
            assert_eq!(found, Some(rate * 3), "{seed} {host}");
        }
        let log = config(&mut cluster, "actionlog");
        assert_eq!(log.len(), 1, "{log:?}");
        assert_eq!(log[0].get("what").as_str(), Some("balancer.round"));
        // Stopped, it does nothing.
        cluster.admin(doc! {"balancerStop": 1});
        let one = [(7, 2000)];
        for turn in 0..2 {
            write(&mut cluster, &one, 5000 + turn * 3000);
            balance(&cluster);
        }
        assert_eq!(config(&mut cluster, "changelog").len(), moves);
        let status = cluster.admin(doc! {"balancerStatus": 1});
        assert_eq!(status.get("numBalancerRounds").as_exact_i64(), Some(3));
    }
}

#[test]
fn documents_move_until_partitions_are_even() {
    let mut cluster = Cluster::new(3);
    cluster.admin(doc! {"shardCollection": "test.c", "key": doc! {"k": 1}});
    let text = "x".repeat(20_000);
    let list: Vec<Value> = (0..500)
        .map(|k| doc! {"_id": k, "k": k, "s": text.as_str()}.into())
        .collect();
    cluster.router.run(doc! {"insert": "c", "documents": list});
    assert_eq!(
        update_settings(&mut cluster, "chunksize", doc! {"$set": doc! {"value": 1}}),
        0
    );
    cluster.admin(doc! {"balancerStart": 1});
    for _ in 0..20 {
        balance(&cluster);
    }
    let counts = cluster.counts("c");
    assert!(counts.iter().all(|count| *count > 80), "{counts:?}");
    assert_eq!(counts.iter().sum::<i64>(), 500);
    for k in [0, 77, 250, 499] {
        let count = doc! {"count": "c", "query": doc! {"k": k}};
        assert_eq!(cluster.router.run(count).get("n").as_exact_i64(), Some(1));
    }
    let moves = config(&mut cluster, "changelog").len();
    balance(&cluster);
    assert_eq!(config(&mut cluster, "changelog").len(), moves);
}

#[test]
fn settings_without_a_meaning_are_refused() {
    let mut cluster = Cluster::new(2);
    let window = |start: &str, stop: &str| {
        let window = doc! {"start": start, "stop": stop};
        doc! {"$set": doc! {"activeWindow": window}}
    };
    assert_eq!(
        update_settings(&mut cluster, "balancer", window("1:00", "4:30")),
        0
    );
    for (id, update) in [
        ("balancer", window("1:00", "25:30")),
        ("balancer", doc! {"$set": doc! {"_secondaryThrottle": true}}),
        ("balancer", doc! {"$set": doc! {"stopped": 1}}),
        ("balancer", doc! {"$set": doc! {"mode": "autoSplitOnly"}}),
        ("chunksize", doc! {"$set": doc! {"value": 0}}),
        ("autosplit", doc! {"$set": doc! {"enabled": 1}}),
        ("automerge", doc! {"$set": doc! {"other": true}}),
        ("other", doc! {"$set": doc! {"enabled": true}}),
    ] {
        let text = show(&update);
        assert_eq!(update_settings(&mut cluster, id, update), 2, "{text}");
    }
    let found = config(&mut cluster, "settings");
    assert_eq!(found.len(), 3, "{found:?}");
    assert!(show(&found[0]).contains("4:30"), "{found:?}");
    // A window does not switch it on.
    assert_eq!(mode(&mut cluster), "off");
    cluster.admin(doc! {"balancerStart": 1});
    assert_eq!(mode(&mut cluster), "full");
    // Other collections of `config` are not written.
    let other = doc! {"update": "shards", "updates": array![doc! {"q": doc! {}, "u": doc! {"$set": doc! {"x": 1}}}]};
    let reply = cluster.router.reply_on("config", other);
    assert_eq!(
        reply.get("code").as_exact_i64(),
        Some(115),
        "{}",
        show(&reply)
    );
    assert_eq!(
        cluster.admin_code(doc! {"balancerStart": 1, "other": 1}),
        40_415
    );
}

#[test]
fn outside_its_window_the_balancer_rests() {
    let mut cluster = Cluster::new(3);
    cluster.router.run(create());
    cluster.admin(doc! {"shardCollection": "test.ts", "key": doc! {"m.host": 1}});
    cluster.admin(doc! {"balancerStart": 1});
    let now_ms = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_millis() as i64;
    let hour = now_ms / 3_600_000 % 24;
    let at = |from: i64, to: i64| {
        let time = |hour: i64| format!("{}:00", hour.rem_euclid(24));
        doc! {"$set": doc! {"activeWindow": doc! {"start": time(from), "stop": time(to)}}}
    };
    let hosts: Vec<(i32, i64)> = (0..30).map(|host| (host, 50)).collect();
    for (turn, (from, to, moves)) in [(3, 6, false), (-2, 3, true)].into_iter().enumerate() {
        assert_eq!(
            update_settings(&mut cluster, "balancer", at(hour + from, hour + to)),
            0
        );
        for part in 0..2 {
            balance(&cluster);
            write(&mut cluster, &hosts, turn as i64 * 1000 + part * 200);
        }
        balance(&cluster);
        let has_moved = !config(&mut cluster, "changelog").is_empty();
        assert_eq!(has_moved, moves, "{turn}");
    }
}

/// Returns the reply to an update of `config.collections`.
fn update_collections(cluster: &mut Cluster, filter: Document, update: Document) -> Document {
    let one = doc! {"q": filter, "u": update, "multi": true};
    let update = doc! {"update": "collections", "updates": array![one]};
    cluster.router.reply_on("config", update)
}

#[test]
fn collections_that_are_exempt_are_left_alone() {
    let mut cluster = Cluster::new(3);
    cluster.admin(doc! {"shardCollection": "test.c", "key": doc! {"k": 1}});
    cluster.router.run(create());
    cluster.admin(doc! {"shardCollection": "test.ts", "key": doc! {"m.host": 1}});
    let text = "x".repeat(20_000);
    let list: Vec<Value> = (0..500)
        .map(|k| doc! {"_id": k, "k": k, "s": text.as_str()}.into())
        .collect();
    cluster.router.run(doc! {"insert": "c", "documents": list});
    let chunks = doc! {"$set": doc! {"value": 1}};
    assert_eq!(update_settings(&mut cluster, "chunksize", chunks), 0);
    cluster.admin(doc! {"balancerStart": 1});
    let exempt = |is: bool| doc! {"$set": doc! {"noBalance": is}};
    let reply = update_collections(&mut cluster, Document::new(), exempt(true));
    let figures = |reply: &Document| {
        (
            reply.get("n").as_exact_i64(),
            reply.get("nModified").as_exact_i64(),
        )
    };
    assert_eq!(figures(&reply), (Some(2), Some(2)), "{}", show(&reply));
    let hosts: Vec<(i32, i64)> = (0..30).map(|host| (host, 50)).collect();
    for turn in 0..3 {
        write(&mut cluster, &hosts, turn * 1000);
        balance(&cluster);
    }
    assert_eq!(config(&mut cluster, "changelog").len(), 0);
    // Ranges move by command nevertheless.
    cluster.admin(doc! {"moveRange": "test.c", "min": doc! {"k": 490}, "max": doc! {"k": 500}, "toShard": "p0002"});
    let shown = config(&mut cluster, "collections");
    let flags = shown
        .iter()
        .map(|one| matches!(one.get("noBalance"), ValueRef::Bool(true)));
    assert_eq!(flags.collect::<Vec<_>>(), [true, true]);
    let one = doc! {"_id": "test.c"};
    assert_eq!(
        figures(&update_collections(&mut cluster, one.clone(), exempt(true))),
        (Some(1), Some(0))
    );
    assert_eq!(
        figures(&update_collections(
            &mut cluster,
            doc! {"_id": "test.none"},
            exempt(true)
        )),
        (Some(0), Some(0))
    );
    assert_eq!(
        figures(&update_collections(&mut cluster, one, exempt(false))),
        (Some(1), Some(1))
    );
    balance(&cluster);
    let log = config(&mut cluster, "changelog");
    assert!(
        log.len() > 1
            && log
                .iter()
                .all(|entry| entry.get("ns").as_str() == Some("test.c")),
        "{log:?}"
    );
    assert_eq!(cluster.counts("c").iter().sum::<i64>(), 500);
    // Nothing else is written.
    for (update, code) in [
        (doc! {"$set": doc! {"noBalance": 1}}, 2),
        (doc! {"$set": doc! {"unique": true}}, 115),
        (
            doc! {"$set": doc! {"noBalance": false, "key": doc! {"x": 1}}},
            115,
        ),
    ] {
        let reply = update_collections(&mut cluster, Document::new(), update);
        assert_eq!(
            reply.get("code").as_exact_i64(),
            Some(code),
            "{}",
            show(&reply)
        );
    }
    let upsert = doc! {"q": doc! {"_id": "test.new"}, "u": exempt(true), "upsert": true};
    let upsert = doc! {"update": "collections", "updates": array![upsert]};
    let reply = cluster.router.reply_on("config", upsert);
    assert_eq!(
        reply.get("code").as_exact_i64(),
        Some(115),
        "{}",
        show(&reply)
    );
    let left = config(&mut cluster, "collections");
    let flags = left
        .iter()
        .map(|one| matches!(one.get("noBalance"), ValueRef::Bool(true)));
    assert_eq!(flags.collect::<Vec<_>>(), [false, true]);
}

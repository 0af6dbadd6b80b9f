//! More active connections than threads: waiting commands must not block others.

use std::sync::atomic::{AtomicUsize, Ordering};

use nilometer_bson::{ValueRef, doc};
use nilometer_server::limits::DEDICATED_THREADS_MAX;

use crate::client::{Client, is_ok};
use crate::server::Server;

/// Time after which a waiting command ends without a document.
const WAIT_MS: i64 = 120_000;

#[test]
fn commands_that_wait_hold_up_nobody_where_threads_are_shared() {
    let server = Server::start();
    let mut clients: Vec<Client> = (0..DEDICATED_THREADS_MAX * 3)
        .map(|_| server.connect())
        .collect();
    let create = doc! {"create": "log", "capped": true, "size": 4096};
    assert!(is_ok(&clients[0].run_on("test", &create)));
    let one = doc! {"insert": "log", "documents": nilometer_bson::array![doc! {"_id": 1}]};
    assert!(is_ok(&clients[0].run_on("test", &one)));
    let (waiting, others) = clients.split_at_mut(DEDICATED_THREADS_MAX * 2);
    let tail = doc! {"find": "log", "tailable": true, "awaitData": true};
    let cursors: Vec<i64> = waiting
        .iter_mut()
        .map(|client| {
            let reply = client.run_on("test", &tail);
            let cursor = reply.get("cursor").as_document().expect("a cursor");
            match cursor.get("id") {
                ValueRef::Int64(id) if id != 0 => id,
                other => panic!("no cursor: {other:?}"),
            }
        })
        .collect();
    let answered = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for (client, cursor) in waiting.iter_mut().zip(cursors) {
            let more = doc! {"getMore": cursor, "collection": "log", "maxTimeMS": WAIT_MS};
            let answered = &answered;
            scope.spawn(move || {
                assert!(is_ok(&client.run_on("test", &more)));
                answered.fetch_add(1, Ordering::SeqCst);
            });
        }
        for _ in 0..5 {
            for client in others.iter_mut() {
                assert!(is_ok(&client.run_on("admin", &doc! {"ping": 1})));
            }
        }
        // If the others had waited for them, they would have ended by now.
        let before = answered.load(Ordering::SeqCst);
        let two = doc! {"insert": "log", "documents": nilometer_bson::array![doc! {"_id": 2}]};
        assert!(is_ok(&others[0].run_on("test", &two)));
        assert_eq!(before, 0, "others had to wait");
    });
}

//! Work inside one document ends when it is killed, when its client is gone, and when the server is stopped.
//!
//! The expression would take years. So a test that ends at all shows that the work was ended; no time is measured.

use nilometer_bson::{Document, Value, array, doc};
use nilometer_storage::testing::effort;

use crate::client::{Client, body, is_ok, op_msg};
use crate::server::Server;

/// `currentOp` is asked so many times at most, which takes far longer than any of these operations may.
const POLLS_MAX: usize = 100_000;

/// Returns a command with work for years in one document, in reach of `currentOp` by its comment.
fn endless(comment: &str) -> Document {
    let range = || doc! {"$range": array![0, "$n"]};
    let mut work: Value = range().into();
    for _ in 0..4 {
        let sum = doc! {"$sum": work};
        work = doc! {"$map": doc! {"input": range(), "in": sum}}.into();
    }
    doc! {
        "aggregate": "c", "$db": "test", "cursor": doc! {}, "comment": comment,
        "pipeline": array![doc! {"$set": doc! {"x": doc! {"$sum": work}}}],
    }
}

/// Returns the numbers of the operations with this comment.
fn operations(client: &mut Client, comment: &str) -> Vec<i64> {
    let reply = client.run(&doc! {"currentOp": 1, "$all": true});
    assert!(is_ok(&reply), "{reply:?}");
    let list = reply.get("inprog").as_array().expect("operations");
    let documents = list.iter().filter_map(|operation| operation.as_document());
    let named = documents.filter(|operation| {
        let command = operation.get("command").as_document();
        command.is_some_and(|command| command.get("comment").as_str() == Some(comment))
    });
    named
        .filter_map(|operation| operation.get("opid").as_exact_i64())
        .collect()
}

/// Waits until an operation with this comment runs; returns its number.
fn running(client: &mut Client, comment: &str) -> i64 {
    for _ in 0..POLLS_MAX {
        if let Some(id) = operations(client, comment).first() {
            return *id;
        }
    }
    panic!("{comment} does not begin")
}

fn wait_until_gone(client: &mut Client, comment: &str) {
    for _ in 0..POLLS_MAX {
        if operations(client, comment).is_empty() {
            return;
        }
    }
    panic!("{comment} does not end")
}

fn with_document(server: &Server) -> Client {
    let mut client = server.connect();
    let documents = array![doc! {"_id": 1, "n": 100_000}];
    assert!(is_ok(
        &client.run_on("test", &doc! {"insert": "c", "documents": documents})
    ));
    client
}

fn begin(server: &Server, client: &mut Client, comment: &str) -> (Client, i64) {
    let mut worker = server.connect();
    worker.send(&op_msg(0, &[body(&endless(comment))]));
    let id = running(client, comment);
    (worker, id)
}

#[test]
fn killing_the_operation_ends_it() {
    let server = Server::start();
    let mut client = with_document(&server);
    let (mut worker, id) = begin(&server, &mut client, "killed");
    assert!(is_ok(&client.run(&doc! {"killOp": 1, "op": id})));
    let reply = worker.receive().document();
    assert_eq!(reply.get("code").as_exact_i64(), Some(11601), "{reply:?}");
    wait_until_gone(&mut client, "killed");
}

#[test]
fn a_closed_socket_ends_it() {
    let server = Server::start();
    let mut client = with_document(&server);
    let (worker, _) = begin(&server, &mut client, "left");
    drop(worker);
    wait_until_gone(&mut client, "left");
}

#[test]
fn a_signal_ends_it_with_the_server() {
    let mut server = Server::start();
    let mut client = with_document(&server);
    let workers: Vec<Client> = (0..effort(1, 4, 4))
        .map(|at| begin(&server, &mut client, &format!("stopped {at}")).0)
        .collect();
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
    drop(workers);
}

#[test]
fn a_time_limit_ends_it() {
    let server = Server::start();
    let mut client = with_document(&server);
    let mut limited = nilometer_bson::DocumentBuilder::new();
    for element in endless("limited").iter() {
        limited.append_element(element);
    }
    limited.append("maxTimeMS", 50);
    let reply = client.ask(&op_msg(0, &[body(&limited.finish())]));
    assert_eq!(reply.get("code").as_exact_i64(), Some(50), "{reply:?}");
}

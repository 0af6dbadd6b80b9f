//! Sessions with transactions: what `$currentOp` shows of them, and which ones patterns end.

use nilometer_bson::{Binary, Document, Value, ValueRef, array, doc};
use sha2::{Digest, Sha256};

use super::{Session, code, fixture, insert};
use crate::support::{Fixture, show};

fn current_op(f: &mut Fixture, options: Document) -> Vec<Document> {
    let pipeline = array![doc! { "$currentOp": options }];
    let command = doc! { "aggregate": 1, "pipeline": pipeline, "cursor": doc! {} };
    let reply = f.reply_on("admin", command);
    let cursor = reply.get("cursor").as_document().unwrap();
    let shown = cursor.get("firstBatch").as_array().unwrap();
    let shown = shown
        .iter()
        .map(|shown| shown.as_document().unwrap().to_document());
    shown.collect()
}

fn idle(shown: &[Document]) -> Vec<&Document> {
    let is_idle = |shown: &&Document| shown.get("type").as_str() == Some("idleSession");
    shown.iter().filter(is_idle).collect()
}

#[test]
fn an_idle_transaction_is_listed() {
    let mut f = fixture();
    let (mut one, mut two) = (Session::new(1), Session::new(2));
    one.run(&mut f, insert("c", vec![doc! { "_id": 1 }.into()]));
    let read = doc! { "find": "c", "readConcern": doc! { "level": "snapshot" } };
    two.run(&mut f, read);
    let shown = current_op(&mut f, doc! {});
    let listed = idle(&shown);
    assert_eq!(listed.len(), 2);
    for shown in listed {
        assert!(matches!(shown.get("active"), ValueRef::Bool(false)));
        assert_eq!(shown.get("desc").as_str(), Some("inactive transaction"));
        let lsid = shown.get("lsid").as_document().unwrap();
        assert!(!lsid.get("uid").is_missing());
        let transaction = shown.get("transaction").as_document().unwrap();
        let parameters = transaction.get("parameters").as_document().unwrap();
        assert_eq!(parameters.get("txnNumber").as_exact_i64(), Some(1));
        let reads_snapshot = !parameters.get("readConcern").is_missing();
        let ValueRef::Timestamp(read) = transaction.get("readTimestamp") else {
            panic!("{}", show(shown));
        };
        assert_eq!(read.to_u64() > 0, reads_snapshot);
        let micros = |name: &str| transaction.get(name).as_exact_i64().unwrap();
        let (active, inactive) = (micros("timeActiveMicros"), micros("timeInactiveMicros"));
        assert_eq!(micros("timeOpenMicros"), active + inactive);
    }
    // The command shows the same; without idle sessions none.
    let filter = doc! { "currentOp": 1, "transaction.parameters.autocommit": false };
    let reply = f.reply_on("admin", filter);
    assert_eq!(reply.get("inprog").as_array().unwrap().iter().count(), 2);
    let shown = current_op(&mut f, doc! { "idleSessions": false });
    assert!(idle(&shown).is_empty());
    one.commit(&mut f);
    two.end(&mut f, "abortTransaction");
    assert!(idle(&current_op(&mut f, doc! {})).is_empty());
}

fn binary(bytes: &[u8]) -> Value {
    Value::Binary(Binary {
        subtype: 0,
        bytes: bytes.into(),
    })
}

#[test]
fn patterns_end_sessions() {
    let mut f = fixture();
    let kill = |f: &mut Fixture, pattern: Document| {
        let command = doc! { "killAllSessionsByPattern": array![pattern] };
        code(&f.reply_on("admin", command))
    };
    let (mut one, mut two) = (Session::new(1), Session::new(2));
    let begin = |f: &mut Fixture, session: &mut Session| {
        session.run(f, doc! { "find": "c" });
    };
    begin(&mut f, &mut one);
    begin(&mut f, &mut two);
    let lsid = doc! { "id": one.lsid() };
    assert_eq!(kill(&mut f, doc! { "lsid": lsid.clone() }), None);
    assert_eq!(code(&one.end(&mut f, "commitTransaction")), Some(251));
    two.commit(&mut f);
    // Without a login the digest is that of the empty name. All fields of a pattern must hold.
    let (own, other) = (Sha256::digest(""), Sha256::digest("ann@admin"));
    begin(&mut f, &mut one);
    begin(&mut f, &mut two);
    assert_eq!(kill(&mut f, doc! { "uid": binary(&other) }), None);
    let both = doc! { "lsid": lsid, "uid": binary(&other) };
    assert_eq!(kill(&mut f, both), None);
    one.commit(&mut f);
    assert_eq!(kill(&mut f, doc! { "uid": binary(&own) }), None);
    assert_eq!(code(&two.end(&mut f, "commitTransaction")), Some(251));
    // No pattern means all.
    begin(&mut f, &mut one);
    let all = doc! { "killAllSessionsByPattern": array![] };
    assert_eq!(code(&f.reply_on("admin", all)), None);
    assert_eq!(code(&one.end(&mut f, "commitTransaction")), Some(251));
    let wrong = [
        (doc! { "other": 1 }, 40415),
        (doc! { "uid": "x" }, 14),
        (doc! { "lsid": 1 }, 14),
        (doc! { "lsid": doc! { "id": 1 } }, 14),
        (doc! { "users": doc! {} }, 14),
        (doc! { "roles": array![1] }, 14),
    ];
    for (pattern, expected) in wrong {
        assert_eq!(kill(&mut f, pattern.clone()), Some(expected), "{pattern:?}");
    }
    let command = doc! { "killAllSessionsByPattern": array![1] };
    assert_eq!(code(&f.reply_on("admin", command)), Some(14));
}

#[test]
fn the_number_of_a_statement_is_a_long() {
    let mut f = fixture();
    let id = doc! { "id": Session::new(1).lsid() };
    let documents = array![doc! { "_id": 1 }];
    let insert = doc! { "insert": "c", "documents": documents, "lsid": id, "txnNumber": 1_i32 };
    assert_eq!(code(&f.reply(insert)), Some(14));
    assert_eq!(f.counted("c"), 0);
}

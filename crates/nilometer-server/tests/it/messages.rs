//! Valid messages in every form.

use std::io::{Read, Write};

use nilometer_bson::{Document, array, doc};

use crate::client::{
    COMPRESSED, MSG, REPLY, REQUEST_ID, body, code, is_ok, message, op_msg, op_msg_body,
    op_msg_checked, op_query, sequence,
};
use crate::server::Server;

fn ping() -> Document {
    doc! {"ping": 1, "$db": "admin"}
}

#[test]
fn a_legacy_handshake_is_answered_in_kind() {
    let server = Server::start();
    let mut client = server.connect();
    let hello = doc! {
        "ismaster": 1,
        "helloOk": true,
        "backpressure": "2",
        "client": doc! {"driver": doc! {"name": "it", "version": "1"}},
        "compression": array!["none", "zlib", "snappy"],
        "saslSupportedMechs": "admin.me",
        "speculativeAuthenticate": doc! {"saslStart": 1},
    };
    client.send(&op_query("admin.$cmd", &hello));
    let reply = client.receive();
    assert_eq!(reply.opcode, REPLY);
    let reply = reply.document();
    assert!(is_ok(&reply));
    assert_eq!(format!("{:?}", reply.get("ismaster")), "Bool(true)");
    assert_eq!(format!("{:?}", reply.get("helloOk")), "Bool(true)");
    for (field, value) in [
        ("maxBsonObjectSize", 16_777_216),
        ("maxMessageSizeBytes", 48_000_000),
        ("maxWriteBatchSize", 100_000),
        ("logicalSessionTimeoutMinutes", 30),
        ("minWireVersion", 0),
        ("maxWireVersion", 25),
    ] {
        assert_eq!(reply.get(field).as_exact_i64(), Some(value), "{field}");
    }
    let compression = reply.get("compression").as_array().expect("compressors");
    let names: Vec<_> = compression.iter().filter_map(|v| v.as_str()).collect();
    assert_eq!(names, ["snappy", "zlib"]);
    for absent in ["setName", "msg", "hosts"] {
        assert!(reply.get(absent).is_missing(), "{absent}");
    }
    // The same connection continues with OP_MSG.
    assert!(is_ok(&client.ask(&op_msg(0, &[body(&ping())]))));
}

#[test]
fn hello_is_answered_at_once_even_if_an_exhaust_stream_is_allowed() {
    let server = Server::start();
    let mut client = server.connect();
    let hello = doc! {"hello": 1, "$db": "admin"};
    let reply = client.ask(&op_msg(0x1_0000, &[body(&hello)]));
    assert!(is_ok(&reply));
    assert_eq!(
        format!("{:?}", reply.get("isWritablePrimary")),
        "Bool(true)"
    );
    assert!(reply.get("helloOk").is_missing());
    assert!(client.is_silent());
}

#[test]
fn an_exhaust_get_more_is_answered_by_all_batches() {
    let server = Server::start();
    let mut client = server.connect();
    let documents: Vec<nilometer_bson::Value> = (0..10).map(|n| doc! {"_id": n}.into()).collect();
    let insert = doc! {"insert": "c", "documents": documents, "$db": "a"};
    assert!(is_ok(&client.ask(&op_msg(0, &[body(&insert)]))));
    let find = doc! {"find": "c", "batchSize": 1, "$db": "a"};
    let opened = client.ask(&op_msg(0x1_0000, &[body(&find)]));
    let id = opened
        .get("cursor")
        .as_document()
        .expect("a cursor")
        .get("id")
        .to_value();
    let more = doc! {"getMore": id, "collection": "c", "batchSize": 4, "$db": "a"};
    client.send(&op_msg(0x1_0000, &[body(&more)]));
    let mut sizes = Vec::new();
    let mut answered = REQUEST_ID;
    loop {
        let mut reply = client.receive();
        assert_eq!(reply.response_to, answered, "each answers the one before");
        answered = reply.request_id;
        let flags = u32::from_le_bytes(reply.body[..4].try_into().expect("flags"));
        reply.body[..4].fill(0);
        let document = reply.document();
        let cursor = document.get("cursor").as_document().expect("a cursor");
        sizes.push(cursor.get("nextBatch").as_array().expect("a batch").len());
        let ended = cursor.get("id").as_exact_i64() == Some(0);
        assert_eq!(flags, if ended { 0 } else { 2 });
        if ended {
            break;
        }
    }
    assert_eq!(sizes.iter().sum::<usize>(), 9);
    assert!(sizes.len() >= 3, "{sizes:?}");
    // An error ends the stream, and the connection continues.
    let lost = doc! {"getMore": 4711_i64, "collection": "c", "$db": "a"};
    assert_eq!(code(&client.ask(&op_msg(0x1_0000, &[body(&lost)]))), 43);
    assert!(client.is_silent());
}

#[test]
fn a_legacy_query_that_is_no_handshake_is_refused() {
    let server = Server::start();
    let mut client = server.connect();
    let reply = client.ask(&op_query("a.$cmd", &doc! {"find": "c"}));
    assert_eq!(code(&reply), 352);
    let reply = client.ask(&op_query("a.c", &doc! {"x": 1}));
    assert_eq!(code(&reply), 352);
    assert!(is_ok(&client.ask(&op_msg(0, &[body(&ping())]))));
}

#[test]
fn a_right_checksum_passes_and_a_wrong_one_ends_the_connection() {
    let server = Server::start();
    let mut client = server.connect();
    assert!(is_ok(&client.ask(&op_msg_checked(&[body(&ping())], 0))));
    client.send(&op_msg_checked(&[body(&ping())], 1));
    assert!(!is_ok(&client.receive().document()));
    assert!(client.is_closed());
}

#[test]
fn sections_come_in_any_order() {
    let server = Server::start();
    let mut client = server.connect();
    let command = body(&doc! {"endSessions": array![], "$db": "admin"});
    assert!(is_ok(
        &client.ask(&op_msg(0, std::slice::from_ref(&command)))
    ));
    // A sequence is a field of the command, known or not, and may not occur twice.
    let sections = [sequence("what", &[doc! {}]), command.clone()];
    assert_eq!(code(&client.ask(&op_msg(0, &sections))), 40_415);
    let sections = [command, sequence("what", &[doc! {}])];
    assert_eq!(code(&client.ask(&op_msg(0, &sections))), 40_415);
}

#[test]
fn a_message_that_wants_no_answer_gets_none() {
    let server = Server::start();
    let mut client = server.connect();
    client.send(&op_msg(2, &[body(&ping())]));
    client.send(&op_msg(2, &[body(&doc! {"nonsense": 1, "$db": "admin"})]));
    client.send(&op_msg(2, &[vec![9]]));
    assert!(client.is_silent());
    assert!(is_ok(&client.ask(&op_msg(0, &[body(&ping())]))));
}

#[test]
fn messages_may_be_sent_ahead_and_in_pieces() {
    let server = Server::start();
    let mut client = server.connect();
    let one = op_msg(0, &[body(&ping())]);
    client.send(&one.repeat(3));
    for _ in 0..3 {
        assert!(is_ok(&client.receive().document()));
    }
    for piece in one.chunks(3) {
        client.send(piece);
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert!(is_ok(&client.receive().document()));
}

/// Compresses like a driver.
fn compress(compressor: u8, plain: &[u8]) -> Vec<u8> {
    match compressor {
        1 => snap::raw::Encoder::new().compress_vec(plain).unwrap(),
        2 => {
            let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), Default::default());
            encoder.write_all(plain).unwrap();
            encoder.finish().unwrap()
        }
        3 => zstd::bulk::compress(plain, 3).unwrap(),
        _ => plain.to_vec(),
    }
}

fn decompress(compressor: u8, bytes: &[u8], length: usize) -> Vec<u8> {
    match compressor {
        1 => snap::raw::Decoder::new().decompress_vec(bytes).unwrap(),
        2 => {
            let mut plain = Vec::new();
            let mut decoder = flate2::read::ZlibDecoder::new(bytes);
            decoder.read_to_end(&mut plain).unwrap();
            plain
        }
        3 => zstd::bulk::decompress(bytes, length).unwrap(),
        _ => bytes.to_vec(),
    }
}

#[test]
fn every_compressor_works_both_ways() {
    let server = Server::start();
    let mut client = server.connect();
    let plain = op_msg_body(0, &[body(&doc! {"listCommands": 1, "$db": "admin"})]);
    for compressor in 0..=3u8 {
        let length = i32::try_from(plain.len()).unwrap();
        let wrapped = [
            MSG.to_le_bytes().as_slice(),
            &length.to_le_bytes(),
            &[compressor],
            &compress(compressor, &plain),
        ]
        .concat();
        client.send(&message(COMPRESSED, &wrapped));
        let reply = client.receive();
        assert_eq!(reply.opcode, COMPRESSED);
        let (front, packed) = reply.body.split_at(9);
        assert_eq!(front[..4], MSG.to_le_bytes());
        let length = i32::from_le_bytes(front[4..8].try_into().unwrap());
        let length = usize::try_from(length).unwrap();
        assert_eq!(front[8], compressor);
        let inside = decompress(compressor, packed, length);
        assert_eq!(inside.len(), length);
        let document = Document::from_bytes(inside[5..].to_vec()).expect("a document");
        assert!(is_ok(&document));
        assert!(document.get("commands").as_document().is_some());
    }
}

//! Golden bytes, edge cases, and random bytes.

use nilometer_bson::{Document, doc};

use super::compression::compressed_body;
use super::*;
use crate::limits;

/// Returns a message with this opcode and body.
fn message(opcode: i32, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let length = i32::try_from(HEADER_BYTES + body.len()).unwrap();
    for field in [length, 7, 0, opcode] {
        bytes.extend_from_slice(&field.to_le_bytes());
    }
    bytes.extend_from_slice(body);
    bytes
}

fn body_section(document: &Document) -> Vec<u8> {
    [&[0], document.as_bytes()].concat()
}

fn sequence_section(name: &str, documents: &[Document]) -> Vec<u8> {
    let mut inside: Vec<u8> = name.as_bytes().to_vec();
    inside.push(0);
    inside.extend(documents.iter().flat_map(|d| d.as_bytes()));
    let length = u32::try_from(inside.len() + 4).unwrap();
    [&[1], length.to_le_bytes().as_slice(), &inside].concat()
}

fn op_msg(flags: u32, sections: &[Vec<u8>]) -> Vec<u8> {
    let mut body = flags.to_le_bytes().to_vec();
    body.extend(sections.concat());
    message(2013, &body)
}

fn with_checksum(mut bytes: Vec<u8>) -> Vec<u8> {
    let length = u32::try_from(bytes.len() + 4).unwrap();
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    let sum = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes
}

fn read(bytes: &[u8]) -> Result<Incoming, WireError> {
    let head = bytes.first_chunk().ok_or(WireError::Truncated("header"))?;
    parse(Header::parse(head)?, bytes.to_vec())
}

fn read_msg(bytes: &[u8]) -> Result<OpMsg, WireError> {
    match read(bytes)?.message {
        Message::Msg(msg) => Ok(msg),
        Message::Query(_) => panic!("an OP_QUERY"),
    }
}

fn problem(bytes: &[u8]) -> WireError {
    match read(bytes) {
        Err(problem) => problem,
        Ok(incoming) => match incoming.message {
            Message::Msg(OpMsg { request, .. }) | Message::Query(OpQuery { request }) => {
                request.expect_err("an error")
            }
        },
    }
}

#[test]
fn golden_ping() {
    let golden = b"\x2c\0\0\0\x07\0\0\0\0\0\0\0\xdd\x07\0\0\0\0\0\0\0\
        \x17\0\0\0\x10ping\0\x01\0\0\0\x02$db\0\x02\0\0\0a\0\0";
    let mut golden = golden.to_vec();
    let body = doc! {"ping": 1, "$db": "a"};
    golden[0] = u8::try_from(HEADER_BYTES + 5 + body.as_bytes().len()).unwrap();
    golden[21] = u8::try_from(body.as_bytes().len()).unwrap();
    assert_eq!(op_msg(0, &[body_section(&body)]), golden);
    let msg = read_msg(&golden).unwrap();
    assert!(!msg.more_to_come);
    assert_eq!(msg.request.unwrap().body, body);
}

#[test]
fn golden_reply() {
    let form = ReplyForm {
        response_to: 7,
        opcode: OpCode::Msg,
        compressor: None,
        more_to_come: false,
    };
    let front = reply(9, form, &doc! {"ok": 1.0}, 1000).unwrap();
    assert_eq!(
        front.bytes,
        b"\x26\0\0\0\x09\0\0\0\x07\0\0\0\xdd\x07\0\0\0\0\0\0\0\
          \x11\0\0\0\x01ok\0\0\0\0\0\0\0\xf0\x3f\0"
    );
    assert!(!front.document_follows);
    let legacy = ReplyForm {
        opcode: OpCode::Reply,
        ..form
    };
    let front = reply(9, legacy, &doc! {"ok": 1.0}, 1000).unwrap();
    assert_eq!(
        front.bytes,
        b"\x35\0\0\0\x09\0\0\0\x07\0\0\0\x01\0\0\0\
          \x08\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\
          \x11\0\0\0\x01ok\0\0\0\0\0\0\0\xf0\x3f\0"
    );
}

#[test]
fn a_large_reply_leaves_its_document_to_the_caller() {
    let document = doc! {"text": "x".repeat(100)};
    let form = ReplyForm {
        response_to: 7,
        opcode: OpCode::Msg,
        compressor: None,
        more_to_come: false,
    };
    let front = reply(9, form, &document, 50).unwrap();
    assert!(front.document_follows);
    let whole = [front.bytes.as_slice(), document.as_bytes()].concat();
    assert_eq!(read_msg(&whole).unwrap().request.unwrap().body, document);
}

#[test]
fn sequences_are_borrowed_from_the_message() {
    let body = doc! {"insert": "c", "$db": "a"};
    let documents = [doc! {"a": 1}, doc! {"a": 2}, doc! {}];
    for sections in [
        [
            body_section(&body),
            sequence_section("documents", &documents),
        ],
        [
            sequence_section("documents", &documents),
            body_section(&body),
        ],
    ] {
        let request = read_msg(&op_msg(2, &sections)).unwrap();
        assert!(request.more_to_come);
        let request = request.request.unwrap();
        let sequence = request.sequence("documents").unwrap();
        let read: Vec<_> = sequence.iter().map(|d| d.to_document()).collect();
        assert_eq!(read, documents);
    }
    let empty = [body_section(&body), sequence_section("documents", &[])];
    let request = read_msg(&op_msg(0, &empty)).unwrap().request.unwrap();
    assert!(request.sequence("documents").unwrap().is_empty());
}

#[test]
fn the_checksum_counts() {
    let mut good = with_checksum(op_msg(1, &[body_section(&doc! {"ping": 1})]));
    assert!(read_msg(&good).unwrap().request.is_ok());
    good[30] ^= 1;
    assert!(matches!(problem(&good), WireError::Checksum { .. }));
    assert!(problem(&message(2013, &1u32.to_le_bytes()[..3])) == WireError::Truncated("flags"));
}

#[test]
fn required_flags_are_checked_and_optional_ones_ignored() {
    let body = [body_section(&doc! {"ping": 1})];
    for bit in 2..16 {
        assert_eq!(
            problem(&op_msg(1 << bit, &body)),
            WireError::Flags(1 << bit)
        );
    }
    for bit in 16..32 {
        assert!(read_msg(&op_msg(1 << bit, &body)).unwrap().request.is_ok());
    }
}

#[test]
fn sections_must_make_one_command() {
    let body = body_section(&doc! {"ping": 1});
    assert_eq!(problem(&op_msg(0, &[])), WireError::BodySections(0));
    let twice = [body.clone(), body.clone()];
    assert_eq!(problem(&op_msg(0, &twice)), WireError::BodySections(2));
    let unknown = [body.clone(), vec![2, 0, 0]];
    assert_eq!(problem(&op_msg(0, &unknown)), WireError::SectionKind(2));
    let many = vec![sequence_section("d", &[]); limits::SECTIONS_MAX + 1];
    assert!(matches!(problem(&op_msg(0, &many)), WireError::Sections(_)));
    for length in [0i32, -1, 3, i32::MAX] {
        let lying = [
            body.clone(),
            [&[1], length.to_le_bytes().as_slice(), b"d\0"].concat(),
        ];
        assert!(matches!(
            problem(&op_msg(0, &lying)),
            WireError::Truncated(_)
        ));
    }
    let nameless = [body, vec![1, 6, 0, 0, 0, b'd', b'd']];
    assert!(matches!(problem(&op_msg(0, &nameless)), WireError::Text(_)));
}

#[test]
fn documents_with_false_lengths_are_refused() {
    let good = doc! {"ping": 1};
    for length in [-1, 0, 4, i32::MAX, i32::MIN] {
        let mut bytes = good.as_bytes().to_vec();
        bytes[..4].copy_from_slice(&i32::to_le_bytes(length));
        let found = problem(&op_msg(0, &[[&[0], bytes.as_slice()].concat()]));
        assert!(
            matches!(
                found,
                WireError::Bson(_) | WireError::DocumentTooLarge { .. }
            ),
            "{length}: {found}"
        );
    }
    let mut open = good.as_bytes().to_vec();
    *open.last_mut().unwrap() = 1;
    let found = problem(&op_msg(0, &[[&[0], open.as_slice()].concat()]));
    assert!(matches!(found, WireError::Bson(_)));
}

#[test]
fn false_headers_are_fatal() {
    for length in [-1, 0, 15, 48_000_001, i32::MAX] {
        let mut bytes = message(2013, &[]);
        bytes[..4].copy_from_slice(&i32::to_le_bytes(length));
        let found = problem(&bytes);
        assert!(matches!(found, WireError::Length { .. }) && found.is_fatal());
    }
    for opcode in [1, 2001, 2002, 2005, 2006, 2007, 2010, 2011, 0, -1] {
        assert_eq!(problem(&message(opcode, &[])), WireError::OpCode(opcode));
    }
    let mut largest = message(2013, &[]);
    largest[..4].copy_from_slice(&48_000_000i32.to_le_bytes());
    assert!(Header::parse(largest.first_chunk().unwrap()).is_ok());
}

fn op_query(collection: &str, query: &Document) -> Vec<u8> {
    let mut body = vec![4, 0, 0, 0];
    body.extend_from_slice(collection.as_bytes());
    body.extend_from_slice(b"\0\0\0\0\0\xff\xff\xff\xff");
    body.extend_from_slice(query.as_bytes());
    message(2004, &body)
}

#[test]
fn a_legacy_query_must_be_a_handshake() {
    let plain = op_query("admin.$cmd", &doc! {"isMaster": 1, "helloOk": true});
    let wrapped = op_query("admin.$cmd", &doc! {"$query": doc! {"ismaster": 1}});
    for bytes in [plain, wrapped] {
        let incoming = read(&bytes).unwrap();
        assert_eq!(incoming.form.opcode, OpCode::Reply);
        let Message::Query(query) = incoming.message else {
            panic!("an OP_MSG");
        };
        assert_eq!(
            query.request.unwrap().body.get("$db").as_str(),
            Some("admin")
        );
    }
    let found = problem(&op_query("admin.$cmd", &doc! {"find": "c"}));
    assert_eq!(found.to_error().code.0, 352);
    let found = problem(&op_query("a.c", &doc! {"a": 1}));
    assert_eq!(found.to_error().code.0, 352);
    let mut longer = op_query("admin.$cmd", &doc! {"isMaster": 1});
    longer.extend_from_slice(doc! {}.as_bytes());
    longer.push(0);
    let length = u32::try_from(longer.len()).unwrap();
    longer[..4].copy_from_slice(&length.to_le_bytes());
    assert_eq!(problem(&longer), WireError::TrailingBytes(1));
}

const COMPRESSORS: [Compressor; 4] = [
    Compressor::Noop,
    Compressor::Snappy,
    Compressor::Zlib,
    Compressor::Zstd,
];

#[test]
fn compressed_messages_are_read_and_answered_alike() {
    let command = doc! {"ping": 1, "text": "ab".repeat(1000), "$db": "a"};
    let plain = op_msg(0, &[body_section(&command)]);
    for compressor in COMPRESSORS {
        let inside = compressed_body(compressor, OpCode::Msg, &plain[HEADER_BYTES..]).unwrap();
        let incoming = read(&message(2012, &inside)).unwrap();
        assert_eq!(incoming.uncompressed_bytes, plain.len());
        assert_eq!(incoming.form.compressor, Some(compressor));
        let front = reply(1, incoming.form, &command, 10).unwrap();
        assert!(!front.document_follows);
        let answered = read_msg(&front.bytes).unwrap();
        assert_eq!(answered.request.unwrap().body, command);
    }
}

#[test]
fn false_compressed_messages_are_fatal() {
    let plain = op_msg(0, &[body_section(&doc! {"text": "ab".repeat(1000)})]);
    for compressor in COMPRESSORS {
        let good = compressed_body(compressor, OpCode::Msg, &plain[HEADER_BYTES..]).unwrap();
        for length in [-1i32, 0, 10, 100_000, 47_999_984, 47_999_985, i32::MAX] {
            let mut bad = good.clone();
            bad[4..8].copy_from_slice(&length.to_le_bytes());
            assert!(
                problem(&message(2012, &bad)).is_fatal(),
                "{compressor:?} {length}"
            );
        }
        for end in 9..good.len() {
            assert!(
                read(&message(2012, &good[..end])).is_err(),
                "{compressor:?} {end}"
            );
        }
        let mut unknown = good.clone();
        unknown[8] = 4;
        assert_eq!(problem(&message(2012, &unknown)), WireError::Compressor(4));
        let mut nested = good;
        nested[..4].copy_from_slice(&2012i32.to_le_bytes());
        assert_eq!(problem(&message(2012, &nested)), WireError::OpCode(2012));
    }
}

#[test]
fn a_decompression_bomb_stops_at_its_announced_size() {
    let zeros = vec![0u8; 30_000_000];
    for compressor in [Compressor::Zlib, Compressor::Zstd, Compressor::Snappy] {
        let mut bomb = compressed_body(compressor, OpCode::Msg, &zeros).unwrap();
        bomb[4..8].copy_from_slice(&1000i32.to_le_bytes());
        let found = problem(&message(2012, &bomb));
        assert!(matches!(found, WireError::Decompression(_)), "{found}");
    }
}

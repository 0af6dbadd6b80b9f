//! Targets that are bytes or text: messages, BSON, extended JSON, columns.
//!
//! Inputs are damaged valid ones, and noise. In the corpus bytes are lines of hexadecimal digits, text is itself.

use std::fmt::Write;

use nilometer_bson::column;
use nilometer_bson::extjson::{parse_document, to_canonical, to_relaxed};
use nilometer_bson::fuzz::{Numbers, column_bytes, column_decode};
use nilometer_bson::key_string::{KeyOrder, encode};
use nilometer_bson::order::{compare_documents, equal};
use nilometer_bson::validate::{Limits, validate_document};
use nilometer_bson::{DocRef, Document, ValueRef};
use nilometer_server::wire::{self, Compressor, HEADER_BYTES, Header, Message, OpCode, ReplyForm};

use crate::mutation::{mutate, pick};
use crate::runner::Runner;
use crate::scripts::Seeds;
use crate::tree::Node;

/// Inputs of one seed.
const BATCH: u64 = 200;

/// Replies up to this size are copied after their header.
const COPIED_BYTES_MAX: usize = 64 * 1024;

pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Runs each line of hexadecimal digits; other lines are comments.
pub(crate) fn replay_bytes(text: &str, runner: &mut Runner, run: fn(&[u8]) -> bool) {
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let pairs = line.as_bytes().chunks(2);
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        if let Some(bytes) = pairs.map(byte).collect::<Option<Vec<u8>>>() {
            runner.one(|| line.to_owned(), || run(&bytes));
        }
    }
}

/// Damages bytes in a few places.
pub(crate) fn damage(numbers: &mut Numbers, bytes: &mut Vec<u8>) {
    for _ in 0..numbers.below(5) {
        if bytes.is_empty() {
            return;
        }
        let at = numbers.below(bytes.len() as u64) as usize;
        match numbers.below(7) {
            0 => bytes[at] = numbers.next_u64() as u8,
            1 => bytes[at] ^= 1 << numbers.below(8),
            2 => bytes.truncate(at),
            3 => bytes.insert(at, numbers.next_u64() as u8),
            4 => drop(bytes.remove(at)),
            // A length, most likely.
            5 => {
                let length = [
                    0u32,
                    1,
                    4,
                    5,
                    u32::MAX,
                    0x7FFF_FFFF,
                    0x8000_0000,
                    48_000_001,
                ];
                let length = *pick(numbers, &length);
                for (byte, new) in bytes.iter_mut().skip(at).zip(length.to_le_bytes()) {
                    *byte = new;
                }
            }
            _ => {
                let end = (at + numbers.below(40) as usize).min(bytes.len());
                let part = bytes[at..end].to_vec();
                bytes.extend(part);
            }
        }
    }
}

pub(crate) fn noise(numbers: &mut Numbers) -> Vec<u8> {
    (0..numbers.below(300))
        .map(|_| numbers.next_u64() as u8)
        .collect()
}

/// Returns a document of the scripts, sometimes changed.
pub(crate) fn some_document(numbers: &mut Numbers, seeds: &Seeds) -> Document {
    let mut node = match numbers.below(3) {
        0 => pick(numbers, &seeds.documents).clone(),
        1 => pick(numbers, &seeds.parts).clone(),
        _ => {
            let script = pick(numbers, &seeds.scripts);
            script.first().map_or(Node::Fields(Vec::new()), |command| {
                Node::of(command.as_ref())
            })
        }
    };
    if numbers.below(2) == 0 {
        mutate(numbers, seeds, &mut node);
    }
    match node {
        Node::Fields(_) => node.document(),
        other => Node::Fields(vec![("x".to_owned(), other)]).document(),
    }
}

/// Runs messages: damaged valid ones and noise.
pub fn wire_batch(seeds: &Seeds, seed: u64, runner: &mut Runner) {
    let numbers = &mut Numbers::new(seed);
    for _ in 0..BATCH {
        let mut bytes = message(numbers, seeds);
        if numbers.below(3) != 0 {
            damage(numbers, &mut bytes);
        }
        // A message with a wrong length is refused for that alone.
        if numbers.below(4) != 0
            && let (Ok(length), Some(field)) = (u32::try_from(bytes.len()), bytes.get_mut(..4))
        {
            field.copy_from_slice(&length.to_le_bytes());
        }
        runner.one(|| hexadecimal(&bytes), || read_message(&bytes));
    }
}

/// Replays messages.
pub fn wire_replay(text: &str, runner: &mut Runner) {
    replay_bytes(text, runner, read_message);
}

fn framed(opcode: i32, body: &[u8]) -> Vec<u8> {
    let length = (body.len() + HEADER_BYTES) as i32;
    let mut bytes = Vec::new();
    for field in [length, 4711, 0, opcode] {
        bytes.extend_from_slice(&field.to_le_bytes());
    }
    bytes.extend_from_slice(body);
    bytes
}

fn message(numbers: &mut Numbers, seeds: &Seeds) -> Vec<u8> {
    let document = some_document(numbers, seeds);
    let opcode = *pick(numbers, &[2004, 2012, 2013]);
    if numbers.below(10) == 0 {
        return framed(opcode, &noise(numbers));
    }
    let mut body = Vec::new();
    match numbers.below(6) {
        0 => {
            body.extend([0; 4]);
            body.extend(b"admin.$cmd\0");
            body.extend([0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF]);
            body.extend(document.as_bytes());
            return framed(2004, &body);
        }
        // Messages written by the server are valid compressed messages.
        1 | 2 => {
            let form = ReplyForm {
                response_to: 1,
                opcode: OpCode::Msg,
                compressor: Some(*pick(numbers, Compressor::OFFERED)),
                more_to_come: false,
            };
            let reply = wire::reply(7, form, &document, COPIED_BYTES_MAX);
            return reply.map(|front| front.bytes).unwrap_or_default();
        }
        _ => {}
    }
    body.extend((numbers.below(3) as u32 & 2).to_le_bytes());
    body.push(0);
    body.extend(document.as_bytes());
    for _ in 0..numbers.below(3) {
        let mut inside = b"documents\0".to_vec();
        for _ in 0..numbers.below(4) {
            inside.extend(some_document(numbers, seeds).as_bytes());
        }
        body.push(1);
        body.extend((inside.len() as u32 + 4).to_le_bytes());
        body.extend(inside);
    }
    framed(2013, &body)
}

/// Parses a message and everything in it; the reply must be readable, too.
pub fn read_message(bytes: &[u8]) -> bool {
    let Some(head) = bytes.first_chunk() else {
        return false;
    };
    let Ok(header) = Header::parse(head) else {
        return false;
    };
    let Ok(incoming) = wire::parse(header, bytes.to_vec()) else {
        return false;
    };
    let form = incoming.form;
    let request = match incoming.message {
        Message::Msg(msg) => msg.request,
        Message::Query(query) => query.request,
    };
    let Ok(request) = request else { return false };
    for sequence in &request.sequences {
        for document in sequence.iter() {
            walk(document);
        }
    }
    walk(request.body.as_ref());
    let reply = wire::reply(1, form, &request.body, COPIED_BYTES_MAX);
    assert!(reply.is_ok(), "a command can be sent back");
    true
}

/// Visits every value of a document that was validated. Reads every value. False if the options of a regular expression
/// are not in alphabetical order, as BSON requires.
fn walk(document: DocRef<'_>) -> bool {
    let mut is_ordered = true;
    for element in document {
        is_ordered &= match element.value() {
            ValueRef::Missing => panic!("a validated value can be read"),
            ValueRef::Document(inner) => walk(inner),
            ValueRef::Array(inner) => walk(inner.as_document()),
            ValueRef::Regex { options, .. } => options.chars().is_sorted(),
            _ => true,
        };
    }
    is_ordered
}

/// Runs damaged documents.
pub fn bson_batch(seeds: &Seeds, seed: u64, runner: &mut Runner) {
    let numbers = &mut Numbers::new(seed);
    for _ in 0..BATCH {
        let mut bytes = match numbers.below(10) {
            0 => noise(numbers),
            _ => some_document(numbers, seeds).into_bytes(),
        };
        if numbers.below(4) != 0 {
            damage(numbers, &mut bytes);
        }
        runner.one(|| hexadecimal(&bytes), || read_bson(&bytes));
    }
}

/// Replays documents.
pub fn bson_replay(text: &str, runner: &mut Runner) {
    replay_bytes(text, runner, read_bson);
}

/// Parses bytes as a document in every way; all ways must agree on a valid one.
pub fn read_bson(bytes: &[u8]) -> bool {
    let sound = validate_document(bytes, &Limits::default()).is_ok();
    // Inspecting a document must be safe, valid or not.
    let Some(document) = DocRef::new(bytes) else {
        assert!(!sound, "a sound document has a frame");
        return false;
    };
    let relaxed = to_relaxed(document);
    let canonical = to_canonical(document);
    let _ = encode(document.iter().map(|e| e.value()), KeyOrder::ASCENDING);
    let whole = ValueRef::Document(document);
    let _ = compare_documents(document, document, None);
    if !sound {
        return false;
    }
    let is_ordered = walk(document);
    assert!(equal(whole, whole), "a document is equal to itself");
    let read = |text: &str| parse_document(text).unwrap_or_else(|e| panic!("{e} in {text}"));
    let once = read(&canonical);
    let read_again = ValueRef::Document(once.as_ref());
    if is_ordered {
        assert!(equal(read_again, whole), "{canonical} has changed");
    } else {
        // Parsing sorts the options; a parsed document stays the same.
        let twice = read(&to_canonical(once.as_ref()));
        let same = equal(ValueRef::Document(twice.as_ref()), read_again);
        assert!(same, "{canonical} is read differently each time");
    }
    let again = parse_document(&relaxed);
    assert!(again.is_ok(), "{relaxed}");
    true
}

/// Runs damaged texts.
pub fn extjson_batch(seeds: &Seeds, seed: u64, runner: &mut Runner) {
    let numbers = &mut Numbers::new(seed);
    for _ in 0..BATCH {
        let document = some_document(numbers, seeds);
        let text = match numbers.below(2) {
            0 => to_relaxed(document.as_ref()),
            _ => to_canonical(document.as_ref()),
        };
        let mut bytes = text.into_bytes();
        damage(numbers, &mut bytes);
        if numbers.below(4) == 0 && !bytes.is_empty() {
            let at = numbers.below(bytes.len() as u64) as usize;
            let word = [
                "{\"$",
                "\"$date\":",
                "\"$numberLong\":",
                "[[[[",
                "\\u",
                "1e999",
                "-",
                "\"$binary\":{",
                "null",
            ];
            let word = pick(numbers, &word).bytes();
            drop(bytes.splice(at..at, word));
        }
        let text = String::from_utf8_lossy(&bytes).into_owned();
        runner.one(|| text.clone(), || read_text(&text));
    }
}

/// Replays texts, one per line.
pub fn extjson_replay(text: &str, runner: &mut Runner) {
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        runner.one(|| line.to_owned(), || read_text(line));
    }
}

/// Runs one text.
pub fn read_extjson(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_ok_and(read_text)
}

fn read_text(text: &str) -> bool {
    let Ok(document) = parse_document(text) else {
        return false;
    };
    let bytes = document.as_bytes();
    assert!(
        DocRef::new(bytes).is_some(),
        "a document that was read has a frame"
    );
    if validate_document(bytes, &Limits::default()).is_ok() {
        read_bson(bytes);
    }
    true
}

/// Runs columns, and bytes that resemble them.
pub fn column_batch(_: &Seeds, seed: u64, runner: &mut Runner) {
    let numbers = &mut Numbers::new(seed);
    for number in 0..BATCH {
        let mut bytes = match numbers.below(10) {
            0 => noise(numbers),
            _ => column_bytes(seed.wrapping_mul(BATCH) + number),
        };
        if numbers.below(3) == 0 {
            damage(numbers, &mut bytes);
        }
        runner.one(|| hexadecimal(&bytes), || read_column(&bytes));
    }
}

/// Replays columns.
pub fn column_replay(text: &str, runner: &mut Runner) {
    replay_bytes(text, runner, read_column);
}

/// Maximum values of a column here.
const VALUES_MAX: usize = 6000;

/// Decodes bytes as a column in every way.
pub fn read_column(bytes: &[u8]) -> bool {
    column_decode(bytes);
    let _ = column::decode_path(bytes, VALUES_MAX, "a.b");
    column::validate(bytes, VALUES_MAX).is_ok()
}

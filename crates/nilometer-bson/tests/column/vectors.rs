//! Vectors of the shared vector file: decoded, and encoded where a builder writes them.
//!
//! The file is located by `NILOMETER_SHARED`, or next to the repository; without it these tests
//! print a message and pass.

use std::path::{Path, PathBuf};

use nilometer_bson::column::{self, ColumnBuilder, RawValue, test_words};
use nilometer_bson::fuzz;
use serde_json::Value as Json;

use crate::extended_json::{base64, hex, values};

const NAME: &str = "reference/bson-column-vectors.json";
const LIMIT: usize = 1 << 20;

#[expect(clippy::print_stderr, reason = "a skipped test says so")]
fn load() -> Option<Json> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let places = [
        std::env::var_os("NILOMETER_SHARED").map(PathBuf::from),
        Some(root.join("../shared")),
        Some(root.join("../../shared")),
    ];
    let file = places
        .into_iter()
        .flatten()
        .flat_map(|place| {
            [
                place.join(NAME),
                place.join(NAME.trim_start_matches("reference/")),
            ]
        })
        .find(|file| file.exists());
    let Some(file) = file else {
        eprintln!("skipped: no {NAME} beside the repository or in NILOMETER_SHARED");
        return None;
    };
    Some(serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap())
}

fn list<'a>(vectors: &'a Json, name: &str) -> impl Iterator<Item = (&'a str, &'a Json)> {
    let items = vectors[name].as_array().unwrap().iter();
    items.map(|item| (item["name"].as_str().unwrap(), item))
}

fn bytes(item: &Json) -> Vec<u8> {
    match item.get("hex") {
        Some(text) => hex(text.as_str().unwrap()),
        None => base64(item["base64"].as_str().unwrap()),
    }
}

fn encode(values: &[RawValue]) -> Vec<u8> {
    let mut builder = ColumnBuilder::new();
    for value in values {
        builder.append_raw(value.tag, &value.bytes).unwrap();
    }
    builder.finish()
}

fn show(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn every_vector_decodes() {
    let Some(vectors) = load() else { return };
    let mut failed = Vec::new();
    for (name, item) in list(&vectors, "vectors") {
        let expected = values(&item["expected"]);
        match column::decode_raw(&bytes(item), LIMIT) {
            Ok(found) if found == expected => {
                // The same as a block, and all properties of the fuzz target.
                fuzz::column_decode(&bytes(item));
            }
            Ok(found) => {
                let at = found.iter().zip(&expected).position(|(a, b)| a != b);
                failed.push(format!(
                    "{name}: {} of {} values, first difference {at:?}",
                    found.len(),
                    expected.len()
                ));
            }
            Err(error) => failed.push(format!("{name}: {error}")),
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn every_vector_encodes_to_the_same_bytes() {
    let Some(vectors) = load() else { return };
    let mut failed = Vec::new();
    let mut count = 0;
    for (name, item) in list(&vectors, "vectors") {
        if item.get("encode") == Some(&Json::Bool(false)) {
            continue;
        }
        count += 1;
        let (expected, found) = (bytes(item), encode(&values(&item["expected"])));
        if found != expected {
            failed.push(format!("{name}\n  {}\n  {}", show(&expected), show(&found)));
        }
    }
    assert!(
        failed.is_empty(),
        "{} of {count}:\n{}",
        failed.len(),
        failed.join("\n")
    );
}

#[test]
fn invalid_columns_are_refused() {
    let Some(vectors) = load() else { return };
    for (name, item) in list(&vectors, "invalid") {
        let result = column::decode_raw(&bytes(item), LIMIT);
        assert!(result.is_err(), "{name}: {result:?}");
        assert!(column::decode_block(&bytes(item), LIMIT).is_err(), "{name}");
    }
}

fn unsigned(text: &str) -> u128 {
    u128::from_str_radix(text.trim_start_matches("0x"), 16).unwrap()
}

fn slot(json: &Json) -> Option<u128> {
    json.as_str().map(unsigned)
}

#[test]
fn words_both_ways() {
    let Some(vectors) = load() else { return };
    let mut failed = Vec::new();
    for (name, item) in list(&vectors, "simple8b") {
        let wide = item["width"] == 128;
        let (words, _) =
            bytes(item)
                .as_chunks::<8>()
                .0
                .iter()
                .fold((Vec::new(), 0), |(mut words, at), word| {
                    words.push(u64::from_le_bytes(*word));
                    (words, at + 1)
                });
        let mut expected = Vec::new();
        for value in item["values"].as_array().unwrap() {
            match value.as_array() {
                Some(pair) => {
                    let count = pair[0].as_u64().unwrap() as usize;
                    expected.extend(std::iter::repeat_n(slot(&pair[1]), count));
                }
                None => expected.push(slot(value)),
            }
        }
        if test_words::unpack(&words, wide) != Some(expected.clone()) {
            failed.push(format!("{name}: read"));
        }
        if item.get("encode") != Some(&Json::Bool(false))
            && test_words::pack(expected, wide) != Some(words)
        {
            failed.push(format!("{name}: written"));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn values_too_wide_for_a_word_are_rejected() {
    let Some(vectors) = load() else { return };
    for (name, item) in list(&vectors, "unencodable") {
        let value = unsigned(item["value"].as_str().unwrap());
        let packed = test_words::pack([Some(value)], item["width"] == 128);
        assert_eq!(packed, None, "{name}");
    }
}

#[test]
fn diffs_are_the_same() {
    let Some(vectors) = load() else { return };
    for (name, item) in list(&vectors, "diffs") {
        let mut builder = ColumnBuilder::new();
        let mut column = Vec::new();
        for (at, step) in item["steps"].as_array().unwrap().iter().enumerate() {
            for value in values(&step["append"]) {
                builder.append_raw(value.tag, &value.bytes).unwrap();
            }
            let diff = builder.diff();
            assert_eq!(
                diff.offset as u64,
                step["offset"].as_u64().unwrap(),
                "{name} step {at}"
            );
            assert_eq!(
                diff.bytes,
                base64(step["base64"].as_str().unwrap()),
                "{name} step {at}"
            );
            diff.apply(&mut column);
            assert_eq!(column, builder.to_bytes(), "{name} step {at}");
        }
    }
}

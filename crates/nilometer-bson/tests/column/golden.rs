//! Golden columns, compared byte for byte: every type, every shape of word, scales, sections.
//!
//! `golden.json` holds values as canonical Extended JSON and the bytes of their column.
//! `UPDATE_EXPECT=1` rewrites the bytes, which is only correct after an extension of the format: a
//! stored column never changes.

use nilometer_bson::column::{self, ColumnBuilder};
use nilometer_bson::fuzz;
use serde_json::Value as Json;

use crate::extended_json::{hex, values};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/column/golden.json");

fn load() -> Vec<Json> {
    let text = std::fs::read_to_string(FILE).unwrap();
    serde_json::from_str::<Json>(&text)
        .unwrap()
        .as_array()
        .unwrap()
        .clone()
}

fn encode(item: &Json) -> String {
    let mut builder = ColumnBuilder::new();
    for value in values(&item["expected"]) {
        builder.append_raw(value.tag, &value.bytes).unwrap();
    }
    let column = builder.finish();
    column.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn golden_columns() {
    let mut items = load();
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        for item in &mut items {
            item["hex"] = encode(item).into();
        }
        let lines: Vec<String> = items.iter().map(Json::to_string).collect();
        std::fs::write(FILE, format!("[\n{}\n]\n", lines.join(",\n"))).unwrap();
    }
    for item in &items {
        let name = item["name"].as_str().unwrap();
        let text = item["hex"].as_str().unwrap();
        assert_eq!(encode(item), text, "{name}");
        let column = hex(text);
        let read = column::decode_raw(&column, 10_000).unwrap();
        assert_eq!(read, values(&item["expected"]), "{name}");
        fuzz::column_decode(&column);
    }
}

/// A name `selector S, …` or `selector S extension E, …` marks one literal and one word of that
/// shape.
#[test]
fn golden_columns_cover_every_word_shape() {
    let mut shapes = std::collections::BTreeSet::new();
    for item in load() {
        let name = item["name"].as_str().unwrap();
        let Some(rest) = name.strip_prefix("selector ") else {
            continue;
        };
        let number = |text: &str| text.trim().parse::<u8>().unwrap();
        let (shape, _) = rest.split_once(',').unwrap();
        let (selector, extension) = shape.split_once(" extension ").unwrap_or((shape, "0"));
        let code = number(extension) << 4 | number(selector);
        let column = hex(item["hex"].as_str().unwrap());
        let block = if column[0] == 0x13 { 18 } else { 10 };
        let word = &column[block + 1..];
        let plain = !matches!(number(selector), 7 | 8);
        let low = if plain { word[0] & 15 } else { word[0] };
        assert_eq!(low, code, "{name}");
        shapes.insert(code);
    }
    assert_eq!(shapes.len(), 14 + 9 + 7 + 6);
}

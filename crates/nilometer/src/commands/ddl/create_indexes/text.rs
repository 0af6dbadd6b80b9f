//! Text indexes: the key pattern and the options as they are stored and listed.
//!
//! ```text
//! {a: 1, t: "text", "b.c": "text", z: -1}, weights: {t: 5}
//!     key      {a: 1, _fts: "text", _ftsx: 1, z: -1}
//!     weights  {"b.c": 1, t: 5}     by name; every field of the pattern, and those of the option
//! ```
//!
//! A pattern that has `_fts` and `_ftsx` already, as in a dump, has its fields in the weights alone. All errors have
//! code 67.

use std::collections::BTreeMap;

use nilometer_bson::number::Number;
use nilometer_bson::{Document, DocumentBuilder, ValueRef};

use super::key::refused;
use crate::args::{Args, truncated_i64};
use crate::catalog::IndexSpec;
use crate::error::Result;
use crate::index::{TEXT_SCORE, TEXT_TERMS};
use crate::text::{TextLanguage, WEIGHT_MAX, WHOLE_DOCUMENT};

/// The version of text indexes. Earlier ones fold case and diacritics otherwise.
const TEXT_INDEX_VERSION: i32 = 3;

/// The field that names the language of a document, by default.
const LANGUAGE_OVERRIDE: &str = "language";

/// The options of text indexes.
const OPTIONS: &[&str] = &[
    "weights",
    "default_language",
    "language_override",
    "textIndexVersion",
];

/// Refuses the options of text indexes, for other indexes.
pub(super) fn refuse_options(args: &Args<'_>) -> Result<()> {
    match OPTIONS.iter().find(|name| !args.value(name).is_missing()) {
        Some(name) => Err(refused(format!("'{name}' is for text indexes"))),
        None => Ok(()),
    }
}

/// Replaces the key pattern and the options of a text index by their stored form.
pub(super) fn settle(spec: &mut IndexSpec, args: &Args<'_>) -> Result<()> {
    let mut weights = weights(args)?;
    spec.key = key(&spec.key, &mut weights)?;
    if weights.is_empty() {
        return Err(refused("a text index needs a field, or weights"));
    }
    let mut out = DocumentBuilder::new();
    for element in spec.others.iter() {
        out.append_element(element);
    }
    out.begin_document("weights");
    for (name, weight) in &weights {
        out.append(name, *weight);
    }
    out.end();
    out.append("default_language", default_language(args)?);
    out.append("language_override", language_override(args)?);
    check_version(args)?;
    out.append("textIndexVersion", TEXT_INDEX_VERSION);
    spec.others = out.finish();
    Ok(())
}

/// Where a field of the pattern stands.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    Before,
    Text,
    Behind,
}

/// Returns the stored key pattern, and adds its fields to the weights.
fn key(pattern: &Document, weights: &mut BTreeMap<String, i32>) -> Result<Document> {
    let mut out = DocumentBuilder::new();
    let mut place = Place::Before;
    for element in pattern.iter() {
        let name = element.name();
        let is_text = matches!(element.value(), ValueRef::String(_));
        let is_score = name == TEXT_SCORE && place == Place::Text;
        match (is_text, place) {
            (true, Place::Behind) => {
                return Err(refused("'text' fields in index must all be adjacent"));
            }
            (true, before) => {
                if before == Place::Before {
                    place = Place::Text;
                    out.append(TEXT_TERMS, "text");
                    out.append(TEXT_SCORE, 1);
                }
                if name != TEXT_TERMS {
                    weights.entry(name.to_owned()).or_insert(1);
                }
            }
            (false, _) if is_score => {}
            (false, before) => {
                if before == Place::Text {
                    place = Place::Behind;
                }
                if !matches!(element.value().as_exact_i64(), Some(1 | -1)) {
                    return Err(refused(format!(
                        "the field '{name}' beside the text of an index is indexed by 1 or -1"
                    )));
                }
                out.append_element(element);
            }
        }
    }
    Ok(out.finish())
}

/// Reads the weights, by name.
fn weights(args: &Args<'_>) -> Result<BTreeMap<String, i32>> {
    let given = match args.value("weights") {
        ValueRef::Missing => return Ok(BTreeMap::new()),
        ValueRef::Document(given) => given,
        _ => return Err(refused("text index option 'weights' must be an object")),
    };
    let mut weights = BTreeMap::new();
    for element in given {
        let name = element.name();
        let is_path = !name
            .split('.')
            .any(|part| part.is_empty() || part.starts_with('$'));
        if !is_path && name != WHOLE_DOCUMENT {
            return Err(refused(format!(
                "weight for text index has an illegal field name: '{name}'"
            )));
        }
        if Number::of(element.value()).is_none() {
            return Err(refused("weight for text index needs numeric type"));
        }
        let weight = truncated_i64(element.value()).and_then(|weight| i32::try_from(weight).ok());
        match weight {
            Some(weight) if (1..=WEIGHT_MAX).contains(&weight) => {
                weights.insert(name.to_owned(), weight);
            }
            _ => {
                return Err(refused(format!(
                    "text index weight must be from 1 to {WEIGHT_MAX}, but the weight of '{name}' is not"
                )));
            }
        }
    }
    Ok(weights)
}

fn default_language<'a>(args: &Args<'a>) -> Result<&'a str> {
    match args.value("default_language") {
        ValueRef::Missing => Ok(TextLanguage::default().name()),
        ValueRef::String(name) if TextLanguage::named(name).is_some() => Ok(name),
        ValueRef::String(_) => Err(refused("default_language is not valid")),
        _ => Err(refused("default_language needs a string type")),
    }
}

fn language_override<'a>(args: &Args<'a>) -> Result<&'a str> {
    match args.value("language_override") {
        ValueRef::Missing => Ok(LANGUAGE_OVERRIDE),
        ValueRef::String(name) if !name.is_empty() && !name.starts_with('$') => Ok(name),
        _ => Err(refused("language_override is not valid")),
    }
}

fn check_version(args: &Args<'_>) -> Result<()> {
    let version = args.value("textIndexVersion");
    if version.is_missing() || version.as_exact_i64() == Some(i64::from(TEXT_INDEX_VERSION)) {
        return Ok(());
    }
    Err(refused(format!(
        "only text indexes of version {TEXT_INDEX_VERSION} are supported"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nilometer_bson::{Value, doc};

    fn settled(description: &Document) -> Result<IndexSpec> {
        let args = Args::new("createIndexes.indexes", description.as_ref());
        let mut spec = IndexSpec {
            key: args.required_document("key")?.to_document(),
            ..IndexSpec::default()
        };
        settle(&mut spec, &args)?;
        Ok(spec)
    }

    #[test]
    fn the_stored_form_has_weights_by_name() {
        let spec = settled(&doc! {
            "key": doc! { "a": 1, "t": "text", "b.c": "text", "z": -1 },
            "weights": doc! { "t": 5.9, "other": 2i64 },
            "default_language": "de",
        })
        .unwrap();
        assert_eq!(
            spec.key,
            doc! { "a": 1, "_fts": "text", "_ftsx": 1, "z": -1 }
        );
        let options = doc! {
            "weights": doc! { "b.c": 1, "other": 2, "t": 5 },
            "default_language": "de",
            "language_override": "language",
            "textIndexVersion": 3,
        };
        assert_eq!(spec.others, options);
        // As a dump has it.
        let mut again = doc! { "key": spec.key.clone() };
        again = {
            let mut out = DocumentBuilder::new();
            again.iter().chain(options.iter()).for_each(|element| {
                out.append_element(element);
            });
            out.finish()
        };
        assert_eq!(settled(&again).unwrap(), spec);
    }

    #[test]
    fn impossible_text_indexes_are_refused() {
        let text = || doc! { "a": "text" };
        let with = |name: &str, value: Value| {
            let mut out = DocumentBuilder::new();
            out.append("key", text());
            out.append(name, value);
            out.finish()
        };
        for refused in [
            doc! { "key": doc! { "a": "text", "b": 1, "c": "text" } },
            doc! { "key": doc! { "a": 2, "b": "text" } },
            doc! { "key": doc! { "_fts": "text", "_ftsx": 1 } },
            with("weights", 5.into()),
            with("weights", doc! { "a": "5" }.into()),
            with("weights", doc! { "a": 0 }.into()),
            with("weights", doc! { "a": 100_000 }.into()),
            with("weights", doc! { "$a": 1 }.into()),
            with("weights", doc! { "a..b": 1 }.into()),
            with("default_language", "klingon".into()),
            with("default_language", 5.into()),
            with("language_override", 5.into()),
            with("language_override", "".into()),
            with("textIndexVersion", 2.into()),
            with("textIndexVersion", "3".into()),
        ] {
            let error = settled(&refused).unwrap_err();
            assert_eq!(error.code.0, 67, "{refused:?}");
        }
    }
}

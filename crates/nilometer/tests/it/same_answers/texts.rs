//! Strings that are equal under a collation, and their canonical form for the comparison.

use super::*;

/// The strings made by [`vary`] that a collation considers equal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fold {
    /// None.
    Nothing,
    /// Numbers with and without leading zeros.
    Zeros,
    /// Lower and upper case.
    Case,
    /// Case and accents.
    Marks,
}

pub(crate) const FOLDS: [Fold; 4] = [Fold::Nothing, Fold::Zeros, Fold::Case, Fold::Marks];

impl Fold {
    /// Returns the collation.
    pub(crate) fn collation(self) -> Document {
        match self {
            Self::Nothing => doc! {"locale": "simple"},
            Self::Zeros => doc! {"locale": "en", "numericOrdering": true},
            Self::Case => doc! {"locale": "en", "strength": 2},
            Self::Marks => doc! {"locale": "en", "strength": 1},
        }
    }

    /// Returns the canonical form of equal strings.
    pub(crate) fn fold(self, text: &str) -> String {
        match self {
            Self::Nothing => text.to_owned(),
            Self::Zeros => text.replace('0', "").replace('1', "10"),
            Self::Case => text.to_lowercase(),
            Self::Marks => text.to_lowercase().replace('á', "a").replace('é', "e"),
        }
    }
}

/// Returns the value with its plain strings in other forms, some of which are equal under a collation.
pub(crate) fn vary(random: &mut Random, value: ValueRef<'_>) -> Value {
    let forms: &[&str] = match value {
        ValueRef::Document(inner) => return vary_fields(random, inner.to_document(), &[]).into(),
        ValueRef::Array(inner) => {
            let values = inner.iter().map(|v| vary(random, v));
            return Value::Array(values.collect::<Array>());
        }
        ValueRef::String("a") => &["a", "A", "á", "Á"],
        ValueRef::String("b") => &["b", "B"],
        ValueRef::String("c") => &["10", "9", "010", "c", "C"],
        ValueRef::String("ab") => &["ab", "AB", "áb", "a10", "a9", "a09"],
        ValueRef::String("é") => &["é", "e", "E", "É"],
        other => return other.to_value(),
    };
    Value::from(*random.pick(forms))
}

/// Strings of which some are equal under a collation.
pub(crate) const TEXTS: [&str; 20] = [
    "", "a", "A", "á", "Á", "ab", "AB", "áb", "b", "B", "e", "É", "9", "10", "010", "a9", "a10",
    "a09", "Z", "z",
];

/// Returns the document with strings in `a` and in `b.x`, and mostly in its metadata.
pub(crate) fn with_texts(random: &mut Random, document: Document) -> Document {
    let mut out = DocumentBuilder::new();
    for element in document.iter() {
        match element.name() {
            "a" | "b" => {}
            "m" if random.below(4) > 0 => {
                let text = *random.pick(&["a", "A", "á", "b", "9", "09"]);
                out.append("m", text);
            }
            _ => {
                out.append_element(element);
            }
        }
    }
    if random.below(10) > 0 {
        out.append("a", *random.pick(&TEXTS));
    }
    if random.below(10) > 0 {
        out.append("b", doc! {"x": *random.pick(&TEXTS)});
    }
    out.finish()
}

/// Returns a filter that compares strings, which bounds of buckets may exclude.
pub(crate) fn text_filter(random: &mut Random) -> Document {
    let path = *random.pick(&["a", "b.x", "m"]);
    let text = *random.pick(&TEXTS);
    let operator = *random.pick(&["$eq", "$gt", "$gte", "$lt", "$lte"]);
    let mut comparison = DocumentBuilder::new();
    match random.below(4) {
        0 => {
            comparison.append("$in", array![text, *random.pick(&TEXTS)]);
        }
        1 => {
            comparison.append(operator, array![format!("${path}"), text]);
            return doc! {"$expr": comparison.finish()};
        }
        _ => {
            comparison.append(operator, text);
        }
    }
    let mut filter = DocumentBuilder::new();
    filter.append(path, comparison.finish());
    filter.finish()
}

/// Returns the document with its strings varied, except the fields called `names`.
pub(crate) fn vary_fields(random: &mut Random, document: Document, names: &[&str]) -> Document {
    let mut out = DocumentBuilder::new();
    for element in document.iter() {
        if names.contains(&element.name()) {
            out.append_element(element);
        } else {
            out.append(element.name(), vary(random, element.value()));
        }
    }
    out.finish()
}

//! The strings of a document that a text index covers, and the scores of their terms.
//!
//! The score of a term in one string is
//!
//! ```text
//! weight × (1 + 1/2 + 1/4 + …, one for each occurrence) × (1/2 + occurrences / (2 × terms)) × bonus
//! ```
//!
//! The bonus is 1.1 where the term is the whole string, else 1. Scores of several strings add up.
//!
//! An embedded document may name the language of its strings; else it is that of the document around it.

use std::collections::{BTreeMap, HashMap};

use nilometer_bson::number::Number;
use nilometer_bson::{ArrayRef, DocRef, ValueRef};
use xxhash_rust::xxh3::xxh3_128;

use super::TextLanguage;
use super::query::TextSensitivity;
use super::tokenizer::visit_terms;
use crate::error::{Error, Result, location};

/// The name that covers every string of a document.
pub const WHOLE_DOCUMENT: &str = "$**";

/// The greatest weight of a field.
pub const WEIGHT_MAX: i32 = 99_999;

/// The score of a term that is the whole string is multiplied by this.
const WHOLE_STRING_BONUS: f64 = 1.1;

/// The largest number of terms of a document.
const TERMS_MAX: usize = 400_000;

/// The longest term in an index, in bytes. A longer one ends with its hash.
const TERM_BYTES_MAX: usize = 256;

/// The bytes of a long term that are kept before its hash.
const TERM_BYTES_BEFORE_HASH: usize = TERM_BYTES_MAX - 32;

/// Deepest nesting of documents and arrays that is read: above that of stored documents.
const DEPTH_MAX: usize = 250;

/// The fields of a text index.
#[derive(Clone, Debug)]
pub struct TextSpec {
    /// The weights of fields by their paths.
    weights: BTreeMap<String, f64>,
    /// The weight of all other strings, if the index covers them.
    wildcard: Option<f64>,
    default_language: TextLanguage,
    /// The field that names the language of a document.
    language_override: String,
}

/// An indexed string.
#[derive(Clone, Copy, Debug)]
pub(super) struct IndexedString<'a> {
    pub(super) text: &'a str,
    pub(super) language: TextLanguage,
    pub(super) weight: f64,
}

type StringVisitor<'v, 'a> = dyn FnMut(IndexedString<'a>) -> Result<()> + 'v;

impl TextSpec {
    /// Reads the options of a stored text index; `None` if they are of no text index.
    pub fn of(options: DocRef<'_>) -> Option<Self> {
        let mut weights = BTreeMap::new();
        for element in options.get("weights").as_document()? {
            let weight = Number::of(element.value())?.to_f64();
            weights.insert(element.name().to_owned(), weight);
        }
        Some(Self {
            wildcard: weights.remove(WHOLE_DOCUMENT),
            weights,
            default_language: TextLanguage::named(options.get("default_language").as_str()?)?,
            language_override: options.get("language_override").as_str()?.to_owned(),
        })
    }

    /// Returns the language of documents and queries that name none.
    pub fn default_language(&self) -> TextLanguage {
        self.default_language
    }

    /// Returns the terms of a document with their scores. Fails for a language that is not known (17262) or no string
    /// (17261), and for too many terms (16732).
    pub fn term_scores(&self, document: DocRef<'_>) -> Result<HashMap<String, f64>> {
        let mut scores: HashMap<String, f64> = HashMap::new();
        self.visit_strings(document, true, &mut |string| {
            let mut counts = TermCounts::default();
            let folded = TextSensitivity::default();
            visit_terms(string.text, string.language, folded, &mut |term| {
                term.into_iter().for_each(|term| counts.add(term));
                Ok(())
            })?;
            for (term, score) in counts.scores(string) {
                *scores.entry(term).or_default() += score;
            }
            if scores.len() > TERMS_MAX {
                return Err(Error::location(
                    location::TEXT_TERMS_TOO_MANY,
                    format!(
                        "too many unique keys for a single document to have a text index: {} > {TERMS_MAX}",
                        scores.len()
                    ),
                ));
            }
            Ok(())
        })?;
        Ok(scores)
    }

    /// Visits the indexed strings of a document. `is_strict` refuses documents whose language is not known; else such a
    /// document has the language of the one around it.
    pub(super) fn visit_strings<'a>(
        &self,
        document: DocRef<'a>,
        is_strict: bool,
        visit: &mut StringVisitor<'_, 'a>,
    ) -> Result<()> {
        let mut walk = StringWalk {
            spec: self,
            is_strict,
            visit,
        };
        walk.document(document, "", self.default_language, 0)
    }

    /// Returns the weight of the strings at a path.
    fn weight(&self, path: &str) -> Option<f64> {
        self.weights.get(path).copied().or(self.wildcard)
    }

    /// True if a string below `path` may be indexed.
    fn leads_to(&self, path: &str) -> bool {
        if self.wildcard.is_some() {
            return true;
        }
        let from = format!("{path}.");
        let mut at_or_behind = self.weights.range(from.clone()..);
        at_or_behind
            .next()
            .is_some_and(|(known, _)| known.starts_with(&from))
    }
}

/// A walk over the indexed strings of a document.
struct StringWalk<'s, 'v, 'a> {
    spec: &'s TextSpec,
    is_strict: bool,
    visit: &'v mut StringVisitor<'v, 'a>,
}

impl<'a> StringWalk<'_, '_, 'a> {
    fn document(
        &mut self,
        document: DocRef<'a>,
        path: &str,
        around: TextLanguage,
        depth: usize,
    ) -> Result<()> {
        let language = self.language(document, around)?;
        for element in document {
            let name = element.name();
            if name == self.spec.language_override {
                continue;
            }
            let path = match path {
                "" => name.to_owned(),
                path => format!("{path}.{name}"),
            };
            self.value(element.value(), &path, language, depth)?;
        }
        Ok(())
    }

    fn language(&self, document: DocRef<'a>, around: TextLanguage) -> Result<TextLanguage> {
        match document.get(&self.spec.language_override) {
            ValueRef::Missing => Ok(around),
            ValueRef::String(name) => match TextLanguage::named(name) {
                Some(language) => Ok(language),
                None if !self.is_strict => Ok(around),
                None => Err(Error::location(
                    location::TEXT_LANGUAGE_UNKNOWN,
                    format!("language override unsupported: {name}"),
                )),
            },
            _ if !self.is_strict => Ok(around),
            _ => Err(Error::location(
                location::TEXT_LANGUAGE_TYPE,
                "found language override field in document with non-string type",
            )),
        }
    }

    fn value(
        &mut self,
        value: ValueRef<'a>,
        path: &str,
        language: TextLanguage,
        depth: usize,
    ) -> Result<()> {
        if depth > DEPTH_MAX {
            return Ok(());
        }
        match value {
            ValueRef::String(text) => match self.spec.weight(path) {
                Some(weight) => (self.visit)(IndexedString {
                    text,
                    language,
                    weight,
                }),
                None => Ok(()),
            },
            ValueRef::Document(inner) if self.spec.leads_to(path) => {
                self.document(inner, path, language, depth + 1)
            }
            ValueRef::Array(array) => self.array(array, path, language, depth + 1),
            _ => Ok(()),
        }
    }

    fn array(
        &mut self,
        array: ArrayRef<'a>,
        path: &str,
        language: TextLanguage,
        depth: usize,
    ) -> Result<()> {
        for element in array.iter() {
            self.value(element, path, language, depth)?;
        }
        Ok(())
    }
}

/// The occurrences of terms in one string.
#[derive(Default)]
pub(super) struct TermCounts {
    counts: HashMap<String, TermCount>,
    /// The number of terms, counting each occurrence.
    total: usize,
}

struct TermCount {
    occurrences: usize,
    /// 1 + 1/2 + 1/4 + …
    frequency: f64,
    /// What the next occurrence adds.
    step: f64,
}

impl TermCounts {
    /// Adds an occurrence of a term.
    pub(super) fn add(&mut self, term: String) {
        let count = self.counts.entry(term).or_insert(TermCount {
            occurrences: 0,
            frequency: 0.0,
            step: 1.0,
        });
        count.occurrences += 1;
        count.frequency += count.step;
        count.step /= 2.0;
        self.total += 1;
    }

    /// Counts an occurrence of a term whose score is not wanted.
    pub(super) fn add_other(&mut self) {
        self.total += 1;
    }

    /// Returns the scores of the terms in the string.
    pub(super) fn scores(self, of: IndexedString<'_>) -> impl Iterator<Item = (String, f64)> {
        let total = self.total as f64;
        self.counts.into_iter().map(move |(term, count)| {
            let share = 0.5 * (count.occurrences as f64) / total + 0.5;
            let bonus = if term.eq_ignore_ascii_case(of.text) {
                WHOLE_STRING_BONUS
            } else {
                1.0
            };
            let score = of.weight * count.frequency * share * bonus;
            (term, score)
        })
    }
}

/// Returns the form of a term in an index: shorter terms themselves, longer ones a prefix and a hash.
pub fn index_term(term: &str) -> String {
    if term.len() <= TERM_BYTES_MAX {
        return term.to_owned();
    }
    let mut end = TERM_BYTES_BEFORE_HASH;
    while !term.is_char_boundary(end) {
        end -= 1;
    }
    let prefix = term.get(..end).unwrap_or_default();
    format!("{prefix}{:032x}", xxh3_128(term.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nilometer_bson::{Document, Value, array, doc};

    fn spec(weights: Document) -> TextSpec {
        let options = doc! {
            "weights": weights, "default_language": "english", "language_override": "language",
        };
        TextSpec::of(options.as_ref()).unwrap()
    }

    fn scores(weights: Document, document: Document) -> Vec<(String, f64)> {
        let scores = spec(weights).term_scores(document.as_ref()).unwrap();
        let mut scores: Vec<_> = scores.into_iter().collect();
        scores.sort_by(|a, b| a.0.cmp(&b.0));
        scores
    }

    fn terms(weights: Document, document: Document) -> Vec<String> {
        let scores = scores(weights, document).into_iter();
        scores.map(|(term, _)| term).collect()
    }

    #[test]
    fn a_term_counts_by_its_share_of_the_string() {
        let one = |text: &str| scores(doc! { "a": 1 }, doc! { "a": text });
        assert_eq!(one("Rock"), [("rock".to_owned(), 1.1)]);
        assert_eq!(one("Rocks"), [("rock".to_owned(), 1.0)]);
        assert_eq!(one("Rock paper")[1], ("rock".to_owned(), 0.75));
        let third = one("Rock paper scissors");
        assert!((third[1].1 - 2.0 / 3.0).abs() < 1e-12);
        // Two occurrences of three: (1 + 1/2) × (1/2 + 2/6).
        let twice = one("rock rock paper");
        assert!((twice[1].1 - 1.25).abs() < 1e-12);
        assert_eq!(one("the of"), []);
    }

    #[test]
    fn scores_of_fields_add_up_by_their_weights() {
        let found = scores(
            doc! { "a": 10, "b.c": 2 },
            doc! { "a": "cat", "b": array![doc! { "c": array!["cat", "dog cat"] }, "cat"] },
        );
        let cat = found.iter().find(|(term, _)| term == "cat").unwrap();
        assert!((cat.1 - (11.0 + 2.2 + 1.5)).abs() < 1e-12);
    }

    #[test]
    fn a_wildcard_covers_every_string() {
        let document = doc! {
            "_id": "key", "a": "cats", "b": doc! { "c": array![array!["dogs"], 5] }, "language": "en",
        };
        assert_eq!(
            terms(doc! { "$**": 1 }, document.clone()),
            ["cat", "dog", "key"]
        );
        assert_eq!(terms(doc! { "b.c": 1 }, document.clone()), ["dog"]);
        assert_eq!(terms(doc! { "b": 1 }, document), [""; 0]);
        let heavy = scores(doc! { "$**": 1, "a": 5 }, doc! { "a": "x", "b": "y" });
        assert_eq!(heavy, [("x".to_owned(), 5.5), ("y".to_owned(), 1.1)]);
    }

    #[test]
    fn embedded_documents_have_their_own_language() {
        let document = doc! {
            "t": "running",
            "p": array![
                doc! { "language": "none", "t": "running the", "q": doc! { "t": "cats" } },
                doc! { "t": "walking" },
            ],
        };
        let weights = doc! { "t": 1, "p.t": 1, "p.q.t": 1 };
        assert_eq!(
            terms(weights, document),
            ["cats", "run", "running", "the", "walk"]
        );
        let code = |language: Value| {
            let document = doc! { "a": "x", "language": language };
            let refused = spec(doc! { "a": 1 }).term_scores(document.as_ref());
            refused.unwrap_err().code.0
        };
        assert_eq!(code("klingon".into()), 17_262);
        assert_eq!(code(5.into()), 17_261);
    }

    #[test]
    fn long_terms_are_hashed() {
        let long = "ä".repeat(200);
        let other = format!("{long}b");
        assert_eq!(index_term("short"), "short");
        assert!(index_term(&long).len() <= TERM_BYTES_MAX);
        assert_ne!(index_term(&long), index_term(&other));
    }

    #[test]
    fn a_document_has_only_so_many_terms() {
        if !nilometer_storage::testing::is_long() {
            return;
        }
        let words: Vec<String> = (0..=TERMS_MAX).map(|at| format!("{at:x}z")).collect();
        let document = doc! { "a": words.join(" ") };
        let refused = spec(doc! { "a": 1 }).term_scores(document.as_ref());
        assert_eq!(refused.unwrap_err().code.0, 16_732);
    }
}

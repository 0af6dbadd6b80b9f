//! The search string of `$text`, and its evaluation on a document.
//!
//! ```text
//! coffee "iced tea" -milk -"green tea"
//!   terms            coffee, ice, tea      a document has one of them
//!   phrases          iced tea              its strings contain all of them
//!   negated terms    milk                  it has none of them
//!   negated phrases  green tea             its strings contain none of them
//! ```
//!
//! A hyphen negates the word or the phrase that follows it, if white space or nothing precedes it. The words of a phrase
//! are terms too, those of a negated phrase are not. A quote without a second one is a delimiter.
//!
//! The score of a document is the sum of the scores of its terms. Case and diacritics decide which documents match, not
//! how they score.

use std::collections::{BTreeSet, HashMap};

use nilometer_bson::{Array, DocRef, Document, Value, doc};

use super::TextLanguage;
use super::fold::{lower, without_diacritics};
use super::spec::{IndexedString, TermCounts, TextSpec, index_term};
use super::tokenizer::{term, visit_terms, words};
use crate::error::Result;

/// The work of stemming a word, as bytes that are read.
const WORD_BYTES: usize = 64;

/// Which differences between words matter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TextSensitivity {
    /// `$caseSensitive`.
    pub case: bool,
    /// `$diacriticSensitive`.
    pub diacritics: bool,
}

/// A parsed search string.
#[derive(Clone, Debug)]
pub struct TextQuery {
    language: TextLanguage,
    sensitivity: TextSensitivity,
    /// The terms as the index has them.
    terms: BTreeSet<String>,
    /// The terms with the case and diacritics that matter.
    own_terms: BTreeSet<String>,
    negated_terms: BTreeSet<String>,
    phrases: Vec<Phrase>,
    negated_phrases: Vec<Phrase>,
}

/// A phrase.
#[derive(Clone, Debug)]
struct Phrase {
    written: String,
    /// Without the case and diacritics that do not matter.
    folded: String,
}

/// A part of a search string.
struct QueryPart<'a> {
    text: &'a str,
    is_phrase: bool,
    is_negated: bool,
}

impl TextQuery {
    /// Parses a search string.
    pub fn parse(search: &str, language: TextLanguage, sensitivity: TextSensitivity) -> Self {
        let mut out = Self {
            language,
            sensitivity,
            terms: BTreeSet::new(),
            own_terms: BTreeSet::new(),
            negated_terms: BTreeSet::new(),
            phrases: Vec::new(),
            negated_phrases: Vec::new(),
        };
        for part in parts(search, language) {
            match (part.is_phrase, part.is_negated) {
                (true, true) => {
                    let phrase = out.phrase(part.text);
                    out.negated_phrases.push(phrase);
                }
                (true, false) => {
                    let phrase = out.phrase(part.text);
                    out.phrases.push(phrase);
                    for (_, word) in words(part.text, language) {
                        out.add_word(word);
                    }
                }
                (false, true) => {
                    let own = term(part.text, language, sensitivity);
                    out.negated_terms.extend(own);
                }
                (false, false) => out.add_word(part.text),
            }
        }
        out
    }

    fn phrase(&self, written: &str) -> Phrase {
        Phrase {
            written: written.to_owned(),
            folded: self.folded(written),
        }
    }

    fn add_word(&mut self, word: &str) {
        let term = |sensitivity| term(word, self.language, sensitivity);
        self.terms.extend(term(TextSensitivity::default()));
        self.own_terms.extend(term(self.sensitivity));
    }

    /// Returns the language of its words.
    pub fn language(&self) -> TextLanguage {
        self.language
    }

    /// Returns the terms as the index has them.
    pub fn index_terms(&self) -> impl Iterator<Item = String> {
        self.terms.iter().map(|term| index_term(term))
    }

    /// True if every document with one of the terms matches.
    pub fn is_terms_alone(&self) -> bool {
        self.sensitivity == TextSensitivity::default()
            && self.negated_terms.is_empty()
            && self.phrases.is_empty()
            && self.negated_phrases.is_empty()
            && self.terms.iter().all(|term| index_term(term) == *term)
    }

    /// Returns the parts, as explain shows them.
    pub fn to_document(&self) -> Document {
        let set = |terms: &BTreeSet<String>| -> Value {
            let terms = terms.iter().map(|term| Value::from(term.as_str()));
            Value::Array(terms.collect::<Array>())
        };
        let list = |phrases: &[Phrase]| -> Value {
            let phrases = phrases.iter();
            let phrases = phrases.map(|phrase| Value::from(phrase.written.as_str()));
            Value::Array(phrases.collect::<Array>())
        };
        doc! {
            "terms": set(&self.own_terms),
            "negatedTerms": set(&self.negated_terms),
            "phrases": list(&self.phrases),
            "negatedPhrases": list(&self.negated_phrases),
        }
    }

    /// Returns the score of a document, or `None` if it does not match. `charge` receives the bytes that are read, and may
    /// interrupt.
    pub fn evaluate(
        &self,
        spec: &TextSpec,
        document: DocRef<'_>,
        charge: &dyn Fn(usize) -> Result<()>,
    ) -> Result<Option<f64>> {
        if self.terms.is_empty() {
            return Ok(None);
        }
        let mut state = Evaluation {
            query: self,
            charge,
            scores: HashMap::new(),
            has_own_term: false,
            phrases: vec![false; self.phrases.len()],
            is_refused: false,
        };
        spec.visit_strings(document, false, &mut |string| state.read(string))?;
        let passes = !state.is_refused
            && state.has_own_term
            && !state.scores.is_empty()
            && state.phrases.iter().all(|found| *found);
        // In the order of the terms, so that rounding is the same each time.
        let scores = self.terms.iter().filter_map(|term| state.scores.get(term));
        Ok(passes.then(|| scores.sum()))
    }

    /// Folds what does not matter in phrases.
    fn folded(&self, text: &str) -> String {
        let cased = match self.sensitivity.case {
            true => text.to_owned(),
            false => lower(text, self.language),
        };
        match self.sensitivity.diacritics {
            true => cased,
            false => without_diacritics(&cased).into_owned(),
        }
    }
}

/// The evaluation of a query on one document.
struct Evaluation<'q> {
    query: &'q TextQuery,
    charge: &'q dyn Fn(usize) -> Result<()>,
    scores: HashMap<String, f64>,
    has_own_term: bool,
    /// Whether each phrase was met.
    phrases: Vec<bool>,
    /// A negated term or phrase was met.
    is_refused: bool,
}

impl Evaluation<'_> {
    fn read(&mut self, string: IndexedString<'_>) -> Result<()> {
        if self.is_refused {
            return Ok(());
        }
        let query = self.query;
        let mut counts = TermCounts::default();
        let folded = TextSensitivity::default();
        let is_folded = query.sensitivity == folded;
        visit_terms(string.text, string.language, folded, &mut |term| {
            (self.charge)(WORD_BYTES)?;
            let Some(term) = term else {
                return Ok(());
            };
            self.is_refused |= is_folded && query.negated_terms.contains(&term);
            if query.terms.contains(&term) {
                self.has_own_term |= is_folded;
                counts.add(term);
            } else {
                counts.add_other();
            }
            Ok(())
        })?;
        for (term, score) in counts.scores(string) {
            *self.scores.entry(term).or_default() += score;
        }
        if !is_folded {
            let own = query.sensitivity;
            visit_terms(string.text, string.language, own, &mut |term| {
                (self.charge)(WORD_BYTES)?;
                if let Some(term) = term {
                    self.is_refused |= query.negated_terms.contains(&term);
                    self.has_own_term |= query.own_terms.contains(&term);
                }
                Ok(())
            })?;
        }
        self.read_phrases(string)
    }

    fn read_phrases(&mut self, string: IndexedString<'_>) -> Result<()> {
        let query = self.query;
        if query.phrases.is_empty() && query.negated_phrases.is_empty() {
            return Ok(());
        }
        (self.charge)(string.text.len())?;
        let text = query.folded(string.text);
        for (phrase, found) in query.phrases.iter().zip(&mut self.phrases) {
            (self.charge)(text.len())?;
            *found = *found || text.contains(&phrase.folded);
        }
        for phrase in &query.negated_phrases {
            (self.charge)(text.len())?;
            self.is_refused |= text.contains(&phrase.folded);
        }
        Ok(())
    }
}

/// Splits a search string into words and phrases.
fn parts(search: &str, language: TextLanguage) -> Vec<QueryPart<'_>> {
    let mut out = Vec::new();
    let mut at = 0;
    while let Some(open) = find_from(search, at, '"') {
        let Some(close) = find_from(search, open + 1, '"') else {
            break;
        };
        let is_negated = is_negation(search, open);
        add_words(search, at, open, language, &mut out);
        let text = search.get(open + 1..close).unwrap_or_default();
        if !text.is_empty() {
            out.push(QueryPart {
                text,
                is_phrase: true,
                is_negated,
            });
        }
        at = close + 1;
    }
    add_words(search, at, search.len(), language, &mut out);
    out
}

fn find_from(search: &str, at: usize, wanted: char) -> Option<usize> {
    search.get(at..)?.find(wanted).map(|offset| at + offset)
}

fn add_words<'a>(
    search: &'a str,
    start: usize,
    end: usize,
    language: TextLanguage,
    out: &mut Vec<QueryPart<'a>>,
) {
    let text = search.get(start..end).unwrap_or_default();
    for (offset, word) in words(text, language) {
        out.push(QueryPart {
            text: word,
            is_phrase: false,
            is_negated: is_negation(search, start + offset),
        });
    }
}

/// True if a hyphen that belongs to no word precedes the offset.
fn is_negation(search: &str, at: usize) -> bool {
    let before = search.get(..at).unwrap_or_default();
    before
        .strip_suffix('-')
        .is_some_and(|before| before.chars().next_back().is_none_or(char::is_whitespace))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SENSITIVE: TextSensitivity = TextSensitivity {
        case: true,
        diacritics: true,
    };

    fn shown(search: &str) -> Document {
        let folded = TextSensitivity::default();
        TextQuery::parse(search, TextLanguage::English, folded).to_document()
    }

    #[test]
    fn search_strings_have_terms_and_phrases() {
        let lists = |terms: Value, negated: Value, phrases: Value, negated_phrases: Value| {
            doc! {
                "terms": terms, "negatedTerms": negated, "phrases": phrases,
                "negatedPhrases": negated_phrases,
            }
        };
        let none = || nilometer_bson::array![];
        let list = |items: &[&str]| {
            let items = items.iter().map(|item| Value::from(*item));
            Value::Array(items.collect::<Array>())
        };
        assert_eq!(
            shown("The coffee shops"),
            lists(list(&["coffe", "shop"]), none(), none(), none())
        );
        assert_eq!(
            shown("cake -Coffee pre-market"),
            lists(
                list(&["cake", "market", "pre"]),
                list(&["coffe"]),
                none(),
                none()
            )
        );
        assert_eq!(
            shown("\"Iced Tea\" -\"green tea\" x"),
            lists(
                list(&["ice", "tea", "x"]),
                none(),
                list(&["Iced Tea"]),
                list(&["green tea"])
            )
        );
        assert_eq!(
            shown("a1 \"open end"),
            lists(list(&["a1", "end", "open"]), none(), none(), none())
        );
        assert_eq!(
            shown("- x \"\""),
            lists(list(&["x"]), none(), none(), none())
        );
        assert_eq!(shown(""), lists(none(), none(), none(), none()));
    }

    fn score(search: &str, sensitivity: TextSensitivity, text: &str) -> Option<f64> {
        let options = doc! {
            "weights": doc! { "a": 1 }, "default_language": "english", "language_override": "language",
        };
        let spec = TextSpec::of(options.as_ref()).unwrap();
        let query = TextQuery::parse(search, TextLanguage::English, sensitivity);
        let document = doc! { "a": text };
        query
            .evaluate(&spec, document.as_ref(), &|_| Ok(()))
            .unwrap()
    }

    #[test]
    fn documents_match_by_terms_phrases_and_their_negation() {
        let of = |search: &str, text: &str| score(search, TextSensitivity::default(), text);
        assert_eq!(of("coffee shop", "Coffee"), Some(1.0));
        assert_eq!(of("cat dog", "cat dog"), Some(1.5));
        assert_eq!(of("cat", "dog"), None);
        assert_eq!(of("cat -dog", "cat dogs"), None);
        assert_eq!(of("-dog", "cat"), None);
        assert_eq!(of("\"big cat\"", "a BIG cat"), Some(1.5));
        assert_eq!(of("\"big cat\" mouse", "mouse"), None);
        assert_eq!(of("cat -\"big cat\"", "a big cat"), None);
        assert_eq!(of("cat -\"big cat\"", "a cat, big"), Some(0.75));
        assert_eq!(of("the", "the"), None);
        assert_eq!(of("cafe", "CAFÉ"), Some(1.0));
    }

    #[test]
    fn case_and_diacritics_matter_where_asked_for() {
        let of = |search: &str, text: &str| score(search, SENSITIVE, text).is_some();
        assert!(of("Cat", "Cat") && !of("Cat", "cat") && !of("cat", "Cat"));
        assert!(of("é", "é") && !of("e", "é") && !of("é", "e"));
        assert!(of("cat -Dog", "cat dog") && !of("cat -Dog", "cat Dog"));
        assert!(of("\"Big cat\"", "Big cat") && !of("\"Big cat\"", "big cat"));
    }
}

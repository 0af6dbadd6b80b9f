//! `$text`: parsing, and the test of one document.
//!
//! A `$text` searches the strings of the collection's text index, so its terms are known once the planner has found the
//! index ([`MatchExpression::with_text_index`]). A document is tested by its own strings; the index only leads to
//! documents. The test gives a score, which `{$meta: "textScore"}` returns.
//!
//! It is valid where a query has an index to read: in the filter of a command and the first `$match` of a pipeline, there
//! at the top or in `$and` and `$or`, once.

use std::sync::Arc;

use nilometer_bson::{DocRef, Document, DocumentBuilder, Element, ValueRef};

use super::MatchExpression;
use super::geo::NearAllowance;
use super::operators::only_top_level;
use super::parse::FilterParser;
use crate::error::{Error, ErrorCode, Result};
use crate::eval::{EvalContext, ParseContext};
use crate::text::{TextLanguage, TextQuery, TextSensitivity, TextSpec};

/// Whether a `$text` is allowed at the current place of a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TextAllowance {
    /// Not allowed in this filter.
    Forbidden,
    /// Allowed.
    Allowed,
    /// Allowed in this filter, but not at this place.
    Elsewhere,
}

impl TextAllowance {
    /// Returns the allowance inside an operator other than `$and` and `$or`.
    pub(super) fn deeper(self) -> Self {
        match self {
            Self::Forbidden => Self::Forbidden,
            Self::Allowed | Self::Elsewhere => Self::Elsewhere,
        }
    }
}

/// A `$text`.
#[derive(Debug)]
pub struct TextTest {
    search: String,
    language: Option<TextLanguage>,
    sensitivity: TextSensitivity,
    /// The search in the words of an index; `None` before the index is known.
    indexed: Option<IndexedSearch>,
}

/// A search in the words of an index.
#[derive(Debug)]
struct IndexedSearch {
    spec: Arc<TextSpec>,
    query: TextQuery,
}

impl TextTest {
    /// Returns the test in the words of an index.
    fn on(&self, spec: &Arc<TextSpec>) -> Self {
        let language = self.language.unwrap_or(spec.default_language());
        Self {
            search: self.search.clone(),
            language: self.language,
            sensitivity: self.sensitivity,
            indexed: Some(IndexedSearch {
                spec: Arc::clone(spec),
                query: TextQuery::parse(&self.search, language, self.sensitivity),
            }),
        }
    }

    /// Returns the search, once the index is known.
    pub fn query(&self) -> Option<&TextQuery> {
        self.indexed.as_ref().map(|indexed| &indexed.query)
    }

    /// Returns the score of a document; `None` if it does not match.
    pub fn score(&self, document: DocRef<'_>, ctx: &EvalContext<'_>) -> Result<Option<f64>> {
        let Some(IndexedSearch { spec, query }) = &self.indexed else {
            return Err(index_required());
        };
        query.evaluate(spec, document, &|bytes| ctx.charge_bytes(bytes))
    }

    /// Returns the operand, as explain shows it.
    pub(super) fn to_document(&self) -> Document {
        let language = self.query().map(TextQuery::language).or(self.language);
        let mut out = DocumentBuilder::new();
        out.append("$search", self.search.as_str());
        // Without it the index decides, which a router does not know.
        if let Some(language) = language {
            out.append("$language", language.name());
        }
        out.append("$caseSensitive", self.sensitivity.case);
        out.append("$diacriticSensitive", self.sensitivity.diacritics);
        out.finish()
    }
}

/// Returns the error for a `$text` on a collection without a text index.
pub fn index_required() -> Error {
    Error::new(
        ErrorCode::IndexNotFound,
        "text index required for $text query",
    )
}

impl MatchExpression {
    /// Parses a filter that may have a `$text`.
    pub fn parse_with_text(filter: DocRef<'_>, ctx: &ParseContext) -> Result<Self> {
        let mut parser = FilterParser::new(ctx, NearAllowance::Forbidden);
        parser.text = TextAllowance::Allowed;
        let parsed = parser.document(filter)?;
        parsed.check_texts()?;
        Ok(parsed)
    }

    /// Returns the `$text` of the filter.
    pub fn text(&self) -> Option<&Arc<TextTest>> {
        match self {
            Self::Text(test) => Some(test),
            Self::And(arms) | Self::Or(arms) => arms.iter().find_map(Self::text),
            _ => None,
        }
    }

    /// Returns the filter with its `$text` in the words of an index.
    #[must_use]
    pub fn with_text_index(self, spec: &Arc<TextSpec>) -> Self {
        let all = |arms: Vec<Self>| -> Vec<Self> {
            let arms = arms.into_iter();
            arms.map(|arm| arm.with_text_index(spec)).collect()
        };
        match self {
            Self::Text(test) => Self::Text(Arc::new(test.on(spec))),
            Self::And(arms) => Self::And(all(arms)),
            Self::Or(arms) => Self::Or(all(arms)),
            other => other,
        }
    }

    /// Refuses a second `$text`, and a `$text` beside a `$near`.
    pub(super) fn check_texts(&self) -> Result<()> {
        let (mut texts, mut nears) = (0, 0);
        self.count(&mut texts, &mut nears);
        if texts > 1 {
            return Err(Error::bad_value("Too many text expressions"));
        }
        if texts > 0 && nears > 0 {
            return Err(Error::bad_value(
                "text and geoNear not allowed in same query",
            ));
        }
        Ok(())
    }

    fn count(&self, texts: &mut usize, nears: &mut usize) {
        match self {
            Self::Text(_) => *texts += 1,
            Self::Near { .. } => *nears += 1,
            Self::And(arms) | Self::Or(arms) => {
                arms.iter().for_each(|arm| arm.count(texts, nears));
            }
            _ => {}
        }
    }
}

/// Parses a `$text`.
pub(super) fn parse(parser: FilterParser<'_>, element: Element<'_>) -> Result<MatchExpression> {
    only_top_level(parser, "$text")?;
    match parser.text {
        TextAllowance::Allowed => {}
        TextAllowance::Forbidden => {
            return Err(Error::bad_value("$text is not allowed in this context"));
        }
        TextAllowance::Elsewhere => {
            return Err(Error::bad_value("text expression not allowed in nor"));
        }
    }
    let ValueRef::Document(operand) = element.value() else {
        return Err(Error::bad_value("$text expects an object"));
    };
    let mut search = None;
    let mut language = None;
    let mut sensitivity = TextSensitivity::default();
    for option in operand {
        let (name, value) = (option.name(), option.value());
        match name {
            "$search" => search = Some(string(name, value)?),
            "$language" => language = Some(parse_language(string(name, value)?)?),
            "$caseSensitive" => sensitivity.case = boolean(name, value)?,
            "$diacriticSensitive" => sensitivity.diacritics = boolean(name, value)?,
            _ => return Err(Error::bad_value("extra fields in $text")),
        }
    }
    let Some(search) = search else {
        return Err(Error::new(
            ErrorCode::NoSuchKey,
            "Missing expected field \"$search\"",
        ));
    };
    Ok(MatchExpression::Text(Arc::new(TextTest {
        search: search.to_owned(),
        language,
        sensitivity,
        indexed: None,
    })))
}

fn string<'v>(name: &str, value: ValueRef<'v>) -> Result<&'v str> {
    value.as_str().ok_or_else(|| {
        Error::type_mismatch(format!(
            "\"{name}\" had the wrong type. Expected string, found {}",
            value.type_name()
        ))
    })
}

fn boolean(name: &str, value: ValueRef<'_>) -> Result<bool> {
    match value {
        ValueRef::Bool(value) => Ok(value),
        other => Err(Error::type_mismatch(format!(
            "\"{name}\" had the wrong type. Expected bool, found {}",
            other.type_name()
        ))),
    }
}

fn parse_language(name: &str) -> Result<TextLanguage> {
    TextLanguage::named(name).ok_or_else(|| {
        Error::bad_value(format!(
            "unsupported language: \"{name}\" for text index version 3"
        ))
    })
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{array, doc};

    use super::*;
    use crate::eval::limits::STEPS_PER_CHECK;
    use crate::eval::{EvaluationCounters, EvaluationLimits, Interrupt};

    fn parsed(filter: Document) -> Result<MatchExpression> {
        MatchExpression::parse_with_near(filter.as_ref(), &ParseContext::new())
    }

    fn code(filter: Document) -> i32 {
        parsed(filter).unwrap_err().code.0
    }

    fn text(search: &str) -> Document {
        doc! { "$text": doc! { "$search": search } }
    }

    #[test]
    fn a_text_stands_once_where_an_index_can_be_read() {
        let deep = doc! { "$and": array![doc! { "$or": array![text("x"), doc! { "a": 1 }] }] };
        assert!(parsed(deep).unwrap().text().is_some());
        for refused in [
            doc! { "$and": array![text("x"), text("y")] },
            doc! { "$nor": array![text("x")] },
            doc! { "$or": array![doc! { "$nor": array![text("x")] }] },
            doc! { "a": doc! { "$elemMatch": text("x") } },
            doc! { "$text": doc! { "$search": "x" }, "p": doc! { "$near": array![1, 1] } },
            doc! { "$text": 5 },
            doc! { "$text": doc! { "$search": "x", "$language": "klingon" } },
            doc! { "$text": doc! { "$search": "x", "$other": 1 } },
        ] {
            assert_eq!(code(refused.clone()), 2, "{refused:?}");
        }
        assert_eq!(code(doc! { "$text": doc! {} }), 4);
        assert_eq!(code(doc! { "$text": doc! { "$search": 5 } }), 14);
        let flag = doc! { "$text": doc! { "$search": "x", "$caseSensitive": 1 } };
        assert_eq!(code(flag), 14);
        let elsewhere = MatchExpression::parse(text("x").as_ref(), &ParseContext::new());
        assert_eq!(elsewhere.unwrap_err().code.0, 2);
    }

    #[test]
    fn a_text_is_tested_in_the_words_of_an_index() {
        let options = doc! {
            "weights": doc! { "a": 2 }, "default_language": "english", "language_override": "language",
        };
        let spec = Arc::new(TextSpec::of(options.as_ref()).unwrap());
        let filter = doc! { "$or": array![text("Cats"), doc! { "b": 1 }] };
        let bare = parsed(filter).unwrap();
        // It means the same at a process that has the index.
        let again = parsed(bare.to_document()).unwrap();
        assert_eq!(again.to_document(), bare.to_document());
        let context = EvalContext::default();
        let document = doc! { "a": "cat" };
        let error = bare.matches(document.as_ref(), &context).unwrap_err();
        assert_eq!(error.code, ErrorCode::IndexNotFound);
        let filter = bare.with_text_index(&spec);
        let matches = |document: Document| filter.matches(document.as_ref(), &context).unwrap();
        assert!(matches(document) && matches(doc! { "b": 1 }) && !matches(doc! { "a": "dog" }));
        let test = filter.text().unwrap();
        let score = test.score(doc! { "a": "cat" }.as_ref(), &context).unwrap();
        assert_eq!(score, Some(2.2));
        let shown = doc! {
            "$search": "Cats", "$language": "english", "$caseSensitive": false,
            "$diacriticSensitive": false,
        };
        assert_eq!(test.to_document(), shown);
    }

    struct Interrupted;

    impl Interrupt for Interrupted {
        fn check_interrupt(&self) -> Result<()> {
            Err(Error::new(ErrorCode::Interrupted, "interrupted"))
        }
    }

    #[test]
    fn a_search_in_one_long_string_is_interrupted() {
        let options = doc! {
            "weights": doc! { "a": 1 }, "default_language": "english", "language_override": "language",
        };
        let spec = Arc::new(TextSpec::of(options.as_ref()).unwrap());
        let counters = EvaluationCounters::default();
        let context = EvalContext {
            limits: Some(EvaluationLimits {
                counters: &counters,
                interrupt: &Interrupted,
                clock: None,
            }),
            ..EvalContext::default()
        };
        for text_of in ["the ", "word "] {
            let document = doc! { "a": text_of.repeat(STEPS_PER_CHECK as usize) };
            let filter = parsed(text("word")).unwrap().with_text_index(&spec);
            let ended = filter.matches(document.as_ref(), &context);
            assert_eq!(ended.unwrap_err().code, ErrorCode::Interrupted, "{text_of}");
        }
    }
}

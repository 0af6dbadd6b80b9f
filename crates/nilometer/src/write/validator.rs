//! The validator of an ordinary collection, and its effect on documents that do not conform.
//!
//! ```text
//!                       off     moderate                    strict
//! inserted              –       checked                     checked
//! changed               –       if it conformed before      checked
//! not conforming        error: refused with code 121        warn: logged and written
//! ```
//!
//! The filter is the option `validator` of the collection, parsed once and kept with the collection. It
//! uses the collation of the collection and no variables of the command. An update by operators or a pipeline that changes
//! nothing is not checked; a replacement is.
//!
//! Does not know buckets: `timeseries` validates them.

use std::sync::Arc;

use nilometer_bson::extjson::value_to_relaxed;
use nilometer_bson::{DocRef, Document, ValueRef, doc};
use tracing::warn;

use crate::catalog::Collection;
use crate::error::{Error, ErrorCode, Result};
use crate::eval::matcher::MatchExpression;
use crate::eval::{Collation, EvalContext, EvaluationLimits, ParseContext};
use crate::operation::Bypass;

/// The number MongoDB logs such a warning under.
const WARNING_ID: i32 = 20_294;

/// A compiled validator.
#[derive(Debug)]
pub struct Validator {
    source: Document,
    filter: MatchExpression,
    expressions: ParseContext,
    collation: Collation,
    level: ValidationLevel,
    warns: bool,
}

/// The validation level: which changes are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ValidationLevel {
    Off,
    Moderate,
    Strict,
}

/// How the documents of a statement are checked.
#[derive(Clone, Copy, Default)]
pub struct DocumentChecks<'a> {
    /// The checks that are skipped.
    pub bypass: Bypass,
    /// Time and randomness.
    pub eval: EvalContext<'a>,
}

impl Validator {
    /// Returns the validator of `collection`, if it has one.
    pub fn of(collection: &Collection) -> Result<Option<Arc<Self>>> {
        let ValueRef::Document(source) = collection.options.get("validator") else {
            return Ok(None);
        };
        if collection.timeseries.is_some() || source.is_empty() {
            return Ok(None);
        }
        let parse = || Self::parse(source, collection.options.as_ref());
        collection.get_or_compile_validator(parse).map(Some)
    }

    /// Parses the options of a collection.
    fn parse(source: DocRef<'_>, options: DocRef<'_>) -> Result<Self> {
        let collation = Collation::of_stored(options)?;
        let expressions = ParseContext::new().with_collator(collation.shared());
        Ok(Self {
            filter: MatchExpression::parse(source, &expressions)?.simplify(),
            source: source.to_document(),
            expressions,
            collation,
            level: match options.get("validationLevel").as_str() {
                Some("off") => ValidationLevel::Off,
                Some("moderate") => ValidationLevel::Moderate,
                _ => ValidationLevel::Strict,
            },
            warns: options.get("validationAction").as_str() == Some("warn"),
        })
    }

    /// Checks a document that will replace `before`, if that exists.
    pub(super) fn check(
        &self,
        collection: &Collection,
        before: Option<DocRef<'_>>,
        after: DocRef<'_>,
        checking: DocumentChecks<'_>,
    ) -> Result<()> {
        let eval = EvalContext {
            variables: &[],
            collator: self.collation.collator(),
            ..checking.eval
        };
        let ignored = checking.bypass.validation || self.level == ValidationLevel::Off;
        if ignored || self.filter.matches(after, &eval)? {
            return Ok(());
        }
        if let (ValidationLevel::Moderate, Some(before)) = (self.level, before)
            && !self.filter.matches(before, &eval)?
        {
            return Ok(());
        }
        let source = self.source.as_ref();
        let details = MatchExpression::explain_failure(source, after, &self.expressions, &eval)?;
        let info = doc! { "failingDocumentId": after.get("_id"), "details": details };
        if self.warns {
            let shown =
                |document: &Document| value_to_relaxed(ValueRef::Document(document.as_ref()));
            warn!(
                c = "STORAGE",
                id = WARNING_ID,
                namespace = %collection.namespace,
                json.document = %value_to_relaxed(ValueRef::Document(after)),
                json.errInfo = %shown(&info),
                "Document would fail validation"
            );
            return Ok(());
        }
        let error = Error::new(
            ErrorCode::DocumentValidationFailure,
            "Document failed validation",
        );
        Err(error.with_details(doc! { "errInfo": info }))
    }

    /// True if a stored document conforms.
    pub(super) fn accepts(
        &self,
        document: DocRef<'_>,
        limits: EvaluationLimits<'_>,
    ) -> Result<bool> {
        let eval = EvalContext {
            collator: self.collation.collator(),
            limits: Some(limits),
            ..EvalContext::default()
        };
        self.filter.matches(document, &eval)
    }
}

//! `$match`: a filter.

use nilometer_bson::{Document, ValueRef};

use super::needs::Needs;
use super::{PipelineContext, Place, Stage};
use crate::error::{Error, Result, location};
use crate::eval::matcher::MatchExpression;

/// A parsed `$match`.
#[derive(Clone, Debug)]
pub struct MatchStage {
    /// The condition that documents must pass.
    pub filter: MatchExpression,
    /// The filter as written, or as rewritten by rules.
    pub source: Document,
}

impl MatchStage {
    /// Returns a `$match` with this filter.
    pub fn new(filter: MatchExpression) -> Self {
        let source = filter.to_document();
        Self { filter, source }
    }

    /// Returns the fields that the filter reads.
    pub fn needs(&self) -> Needs {
        Needs::of(&self.filter.dependencies())
    }

    /// True if the result for one document may differ between evaluations.
    pub fn is_random(&self) -> bool {
        self.filter.dependencies().random
    }

    /// Returns the conjunction of both filters.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self::new(MatchExpression::and(vec![self.filter, other.filter]))
    }

    /// Separates the conjuncts whose paths are all accepted by `belongs` from the others.
    pub fn split(self, belongs: impl Fn(&str) -> bool) -> (Option<Self>, Option<Self>) {
        let (inside, outside) = self.filter.split(belongs);
        let stage = |filter| match filter {
            MatchExpression::AlwaysTrue => None,
            filter => Some(Self::new(filter)),
        };
        (stage(inside), stage(outside))
    }
}

/// Returns the error for a `$text` that is not in the first stage.
pub(crate) fn text_not_first() -> Error {
    Error::location(
        location::TEXT_MATCH_NOT_FIRST,
        "$match with $text is only allowed as the first pipeline stage",
    )
}

/// Parses `$match`.
pub(super) fn parse(
    cx: &PipelineContext,
    _: &'static str,
    value: ValueRef<'_>,
    out: &mut Vec<Stage>,
) -> Result<()> {
    let Some(document) = value.as_document() else {
        return Err(Error::location(
            location::MATCH_NOT_OBJECT,
            "the match filter must be an expression in an object",
        ));
    };
    let filter = MatchExpression::parse_with_text(document, &cx.expressions)?.simplify();
    if filter.text().is_some() {
        if cx.place == Place::Facet {
            return Err(Error::location(
                location::STAGE_NOT_IN_FACET,
                "$match with $text is not allowed to be used within a $facet stage",
            ));
        }
        if !out.is_empty() {
            return Err(text_not_first());
        }
    }
    out.push(Stage::Match(MatchStage {
        filter,
        source: document.to_document(),
    }));
    Ok(())
}

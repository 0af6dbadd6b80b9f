//! `$match`: a filter.

use nilometer_bson::{Document, ValueRef};

use super::needs::Needs;
use super::{PipelineContext, Stage};
use crate::error::{Error, Result, location};
use crate::eval::matcher::MatchExpression;

/// `$match`, parsed.
#[derive(Clone, Debug)]
pub struct MatchStage {
    /// What passes.
    pub filter: MatchExpression,
    /// The filter as written, or as rules left it.
    pub source: Document,
}

impl MatchStage {
    /// A stage of a filter.
    pub fn new(filter: MatchExpression) -> Self {
        let source = filter.to_document();
        Self { filter, source }
    }

    /// The fields the filter reads.
    pub fn needs(&self) -> Needs {
        Needs::of(&self.filter.dependencies())
    }

    /// True if the same document may pass once and not again.
    pub fn is_random(&self) -> bool {
        self.filter.dependencies().random
    }

    /// This filter and then another.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self::new(MatchExpression::and(vec![self.filter, other.filter]))
    }

    /// Separates the conjuncts that read only paths `belongs` accepts.
    pub fn split(self, belongs: impl Fn(&str) -> bool) -> (Option<Self>, Option<Self>) {
        let (inside, outside) = self.filter.split(belongs);
        let stage = |filter| match filter {
            MatchExpression::AlwaysTrue => None,
            filter => Some(Self::new(filter)),
        };
        (stage(inside), stage(outside))
    }
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
    let filter = MatchExpression::parse(document, &cx.expressions)?.simplify();
    out.push(Stage::Match(MatchStage {
        filter,
        source: document.to_document(),
    }));
    Ok(())
}

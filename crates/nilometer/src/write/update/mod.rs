//! The update language: the effect of a modification on one document.
//!
//! ```text
//! {$set: {"a.b": 1}, $push: {c: 2}}     operators    ──▶ tree of paths with a modifier at each end
//! {a: 1, b: 2}                          replacement  ──▶ the document, `_id` kept
//! [{$set: {a: "$b"}}, {$unset: "b"}]    pipeline     ──▶ stages in sequence
//! {$v: 2, diff: {u: {a: 1}}}            difference   ──▶ of an oplog, for `applyOps` alone
//!                                                │
//! old document, matched array position ──────────┴──▶ new document, or `None` if it does not change
//! ```
//!
//! The operators of one update form one tree ([`tree`]), so that two operators on the same path are found
//! when the update is parsed (code 40) or, where `$` and `$[…]` select the element, when it is applied.
//! Each family of modifiers is a file with a pure function from the value at its path to the outcome
//! ([`modifier`]). Walking to the path, creating missing objects, padding arrays and refusing paths through
//! scalars is done once, in [`apply`].
//!
//! New fields are created in the order of their names, numbers in numeric order, as in MongoDB, not in the
//! order of the update.
//!
//! Pure like [`crate::eval`]: no storage, no catalog, no clock. The caller decides whether `_id` may change
//! ([`check::id_unchanged`]): not in an ordinary collection, but in a time-series collection.

mod add_to_set;
mod apply;
mod arithmetic;
mod array_filters;
mod bit;
pub mod check;
mod current_date;
mod delta;
mod min_max;
mod modifier;
mod node;
mod path;
mod pipeline;
mod pop;
mod pull;
mod push;
mod rename;
mod replacement;
mod set;
mod tree;
mod upsert;

#[cfg(test)]
mod interrupt_tests;
#[cfg(test)]
mod random_tests;
#[cfg(test)]
mod tests;

use nilometer_bson::{ArrayRef, DocRef, Document, ValueRef};

use crate::error::{Error, Result};
use crate::eval::{EvalContext, ParseContext};
use array_filters::ArrayFilters;
use delta::Delta;
use pipeline::UpdatePipeline;
use tree::Operators;

pub use modifier::MODIFIER_NAMES;
pub use upsert::document_of_filter;

/// A parsed modification.
#[derive(Debug)]
pub struct Update {
    kind: UpdateKind,
}

#[derive(Debug)]
enum UpdateKind {
    Operators(Operators),
    Replacement(Document),
    Pipeline(UpdatePipeline),
    Delta(Delta),
}

impl Update {
    /// Parses the `u` of an update statement with its `arrayFilters`. The collation and the variables of
    /// pipelines come from `ctx`.
    pub fn parse(
        update: ValueRef<'_>,
        array_filters: Option<ArrayRef<'_>>,
        ctx: &ParseContext,
    ) -> Result<Self> {
        let refuse_filters = |kind: &str| match array_filters {
            Some(filters) if !filters.is_empty() => Err(Error::failed_to_parse(format!(
                "arrayFilters may not be specified for {kind}-style updates"
            ))),
            _ => Ok(()),
        };
        let kind = match update {
            ValueRef::Array(stages) => {
                refuse_filters("pipeline")?;
                UpdateKind::Pipeline(UpdatePipeline::parse(stages, ctx)?)
            }
            ValueRef::Document(document) if is_operators(document) => {
                let filters = ArrayFilters::parse(array_filters, ctx)?;
                UpdateKind::Operators(Operators::parse(document, filters, ctx)?)
            }
            ValueRef::Document(document) => {
                refuse_filters("replacement")?;
                UpdateKind::Replacement(document.to_document())
            }
            _ => {
                return Err(Error::failed_to_parse(
                    "Update argument must be either an object or an array",
                ));
            }
        };
        Ok(Self { kind })
    }

    /// Parses the `o` of an update in an oplog: a difference, operators, or a whole document.
    pub fn of_oplog(update: DocRef<'_>, ctx: &ParseContext) -> Result<Self> {
        if !delta::is_delta(update) {
            return Self::parse(ValueRef::Document(update), None, ctx);
        }
        let kind = UpdateKind::Delta(Delta::parse(update)?);
        Ok(Self { kind })
    }

    /// True for a difference, which changes documents that exist.
    pub fn is_difference(&self) -> bool {
        matches!(self.kind, UpdateKind::Delta(_))
    }

    /// Makes the replacement by a document, even if its first name starts with `$`.
    pub fn replacement(document: DocRef<'_>) -> Self {
        Self {
            kind: UpdateKind::Replacement(document.to_document()),
        }
    }

    /// True for a replacement document, which may update at most one document.
    pub fn is_replacement(&self) -> bool {
        matches!(self.kind, UpdateKind::Replacement(_))
    }

    /// True for a pipeline.
    pub fn is_pipeline(&self) -> bool {
        matches!(self.kind, UpdateKind::Pipeline(_))
    }

    /// True if [`Update::apply`] needs the array position the filter matched.
    pub fn needs_position(&self) -> bool {
        match &self.kind {
            UpdateKind::Operators(operators) => operators.needs_position(),
            _ => false,
        }
    }

    /// True if it consists of operators on the field `name` and fields within it only.
    pub fn touches_only(&self, name: &str) -> bool {
        match &self.kind {
            UpdateKind::Operators(operators) => operators.touches_only(name),
            _ => false,
        }
    }

    /// Returns the document after the update; `None` if its bytes do not change. `position` is the array
    /// index the filter matched, for the positional `$`.
    pub fn apply(
        &self,
        doc: DocRef<'_>,
        position: Option<usize>,
        ctx: &EvalContext<'_>,
    ) -> Result<Option<Document>> {
        let after = match &self.kind {
            UpdateKind::Operators(operators) => {
                let Some(after) = operators.apply(doc, position, false, ctx)? else {
                    return Ok(None);
                };
                after
            }
            UpdateKind::Replacement(new) => {
                replacement::check_names(new.as_ref())?;
                replacement::with_id_of(new.as_ref(), doc)
            }
            UpdateKind::Pipeline(pipeline) => {
                let new = pipeline.apply(doc, ctx)?;
                replacement::with_id_of(new.as_ref(), doc)
            }
            UpdateKind::Delta(delta) => delta.apply(doc),
        };
        if after.as_bytes() == doc.as_bytes() {
            return Ok(None);
        }
        check::storable(&after)?;
        Ok(Some(after))
    }

    /// Returns the document an upsert inserts, starting from the result of [`document_of_filter`]. It may
    /// lack an `_id`.
    pub fn apply_to_new(&self, base: &Document, ctx: &EvalContext<'_>) -> Result<Document> {
        let base = base.as_ref();
        let made = match &self.kind {
            UpdateKind::Operators(operators) => operators
                .apply(base, None, true, ctx)?
                .unwrap_or_else(|| base.to_document()),
            UpdateKind::Replacement(new) => replacement::with_id_of(new.as_ref(), base),
            UpdateKind::Pipeline(pipeline) => {
                let new = pipeline.apply(base, ctx)?;
                replacement::with_id_of(new.as_ref(), base)
            }
            UpdateKind::Delta(delta) => delta.apply(base),
        };
        let made = check::with_id_first(made);
        check::storable(&made)?;
        Ok(made)
    }
}

/// True if the first name of an update document is an operator; an empty document is a replacement.
fn is_operators(document: DocRef<'_>) -> bool {
    document
        .iter()
        .next()
        .is_some_and(|first| first.name().starts_with('$'))
}

//! Projections: `find`'s second argument, `$project`, `$addFields`/`$set`, `$unset`.
//!
//! ```text
//! specification ──parse──▶ tree of names ──apply(document)──▶ bytes of the new document
//!
//! {"a.b": 1, c: {$add: […]}}        a ─ b keep
//!                                   c   computed
//! ```
//!
//! A document is copied element by element while the tree is traversed in parallel; kept values are
//! copied as bytes and not decoded. The three modes differ only in the treatment of fields that are
//! not in the tree:
//!
//! | mode      | fields not named | scalar where the tree has names below            |
//! |-----------|------------------|--------------------------------------------------|
//! | inclusion | left out         | left out (also as an array element)              |
//! | exclusion | copied           | copied                                           |
//! | addition  | copied           | replaced by an object of the computed names      |
//!
//! Arrays are traversed element by element, including arrays in arrays. Included fields keep the
//! document's order; computed ones follow in the order of the specification, except that in
//! addition mode an existing field keeps its position. Expressions read the input document, even if
//! the same specification redefines a field. An expression that returns missing leaves its field
//! out.
//!
//! `$slice`, `$elemMatch` and the positional `$` exist only in `find` (see `array_operators`).

mod add_fields;
mod apply;
mod array_operators;
mod parse;
mod tree;

#[cfg(test)]
mod tests;

use nilometer_bson::{DocRef, Document, DocumentBuilder, Value, ValueRef, doc};

pub use add_fields::{AddFields, FieldWriter};
pub use array_operators::Slice;

use crate::error::{Error, Result, location};
use crate::eval::{Dependencies, EvalContext, Expression};
use apply::{ApplyContext, write_fields};
use array_operators::apply_positional;
use tree::{FieldAction, ProjectionNode};

/// Treatment of the fields that a projection does not name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Left out.
    Inclusion,
    /// Kept.
    Exclusion,
}

/// Values about a document that are not part of it, for `$meta` and the positional `$`.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProjectionInput<'a> {
    /// The array element that made the document match
    /// ([`crate::eval::matcher::MatchExpression::matches_with_position`]).
    pub position: Option<usize>,
    /// `{$meta: "sortKey"}`: the values the document was sorted by.
    pub sort_key: Option<&'a Value>,
}

/// What `$meta` returns about a document.
///
/// The values travel with the document as fields with names of their own, which the stage that knows the value adds and
/// the last stage that reads it removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaField {
    /// The values the document was sorted by.
    SortKey,
    /// The distance that `$geoNear` or `$near` computed.
    GeoNearDistance,
    /// The location the distance was measured to.
    GeoNearPoint,
    /// The record id of the document.
    RecordId,
    /// The key of the index by which the document was found; missing without an index.
    IndexKey,
    /// The score of a `$text`.
    TextScore,
}

impl MetaField {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::SortKey,
        Self::GeoNearDistance,
        Self::GeoNearPoint,
        Self::RecordId,
        Self::IndexKey,
        Self::TextScore,
    ];

    /// Returns the operand of `$meta` that names it.
    pub fn operand(self) -> &'static str {
        self.carrier().trim_start_matches('$')
    }

    /// Returns the name of the field that carries the value.
    pub fn carrier(self) -> &'static str {
        match self {
            Self::SortKey => "$sortKey",
            Self::GeoNearDistance => "$geoNearDistance",
            Self::GeoNearPoint => "$geoNearPoint",
            Self::RecordId => "$recordId",
            Self::IndexKey => "$indexKey",
            Self::TextScore => "$textScore",
        }
    }

    /// Returns the metadata that `{$meta: operand}` names.
    pub fn of_operand(operand: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|field| field.operand() == operand)
    }

    /// True if a query that lacks the metadata fails; else the value is missing.
    pub fn is_required(self) -> bool {
        !matches!(self, Self::RecordId | Self::IndexKey)
    }

    /// Returns the error for metadata that the query does not have.
    pub fn unavailable(self) -> Error {
        let name = match self {
            Self::SortKey => "sort key",
            Self::GeoNearDistance => "$geoNear distance",
            Self::GeoNearPoint => "$geoNear point",
            Self::RecordId => "record id",
            Self::IndexKey => "index key",
            Self::TextScore => "text score",
        };
        Error::location(
            location::TEXT_SCORE_MISSING,
            format!("query requires {name} metadata, but it is not available"),
        )
    }
}

/// A parsed projection of `find` or `$project`.
#[derive(Clone, Debug)]
pub struct Projection {
    mode: Mode,
    root: ProjectionNode,
    /// Path to the array of which one element is kept.
    positional: Option<Vec<String>>,
    source: Document,
}

impl Projection {
    /// Returns the treatment of fields not named.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns the specification as written by the user.
    pub fn source(&self) -> &Document {
        &self.source
    }

    /// True if every document is returned unchanged.
    pub fn is_identity(&self) -> bool {
        self.mode == Mode::Exclusion && self.root.children.is_empty()
    }

    /// True if [`ProjectionInput::position`] is needed.
    pub fn needs_position(&self) -> bool {
        self.positional.is_some()
    }

    /// True if `field` of [`ProjectionInput`] is needed.
    pub fn needs_meta(&self, field: MetaField) -> bool {
        self.root
            .any_item(&|item| matches!(item, FieldAction::Meta(meta) if *meta == field))
    }

    /// Returns the projection that adds the sort key as a field of the document.
    pub fn of_sort_key() -> Self {
        let field = MetaField::SortKey;
        let mut root = ProjectionNode::default();
        root.set(field.carrier(), FieldAction::Meta(field));
        root.close();
        Self {
            mode: Mode::Exclusion,
            root,
            positional: None,
            source: single(field, doc! { "$meta": field.operand() }),
        }
    }

    /// Returns the projection that removes the field of some metadata.
    pub fn without(field: MetaField) -> Self {
        let mut out = Self {
            mode: Mode::Exclusion,
            root: ProjectionNode::default(),
            positional: None,
            source: single(field, false),
        };
        out.leave_out(field);
        out
    }

    /// Keeps the field of some metadata for a later stage.
    pub fn keep(&mut self, field: MetaField) {
        if self.mode == Mode::Inclusion {
            self.root.set(field.carrier(), FieldAction::Keep);
        }
    }

    /// Removes the field of some metadata.
    pub fn leave_out(&mut self, field: MetaField) {
        if self.mode == Mode::Exclusion {
            self.root.set(field.carrier(), FieldAction::Drop);
        }
    }

    /// True if nothing is computed, sliced or picked: the projection is a list of paths.
    pub fn is_simple(&self) -> bool {
        !self.needs_position()
            && !self.root.any_item(&|item| {
                !matches!(
                    item,
                    FieldAction::Keep | FieldAction::Drop | FieldAction::Nested(_)
                )
            })
    }

    /// True if the projection only keeps, drops and computes fields.
    pub fn only_selects_fields(&self) -> bool {
        let is_other = |item: &FieldAction| {
            matches!(
                item,
                FieldAction::Slice(_)
                    | FieldAction::ElemMatch(_)
                    | FieldAction::Meta(_)
                    | FieldAction::Slot(_)
            )
        };
        !self.needs_position() && !self.root.any_item(&is_other)
    }

    /// Returns the paths kept unchanged, in an inclusion (sliced arrays count as kept).
    pub fn included_paths(&self) -> Vec<String> {
        self.root
            .paths(&|item| matches!(item, FieldAction::Keep | FieldAction::Slice(_)))
    }

    /// Returns the paths left out, in an exclusion.
    pub fn excluded_paths(&self) -> Vec<String> {
        self.root.paths(&|item| matches!(item, FieldAction::Drop))
    }

    /// Returns the paths that receive metadata.
    pub fn meta_paths(&self) -> Vec<String> {
        self.root
            .paths(&|item| matches!(item, FieldAction::Meta(_)))
    }

    /// Returns the computed paths with their expressions.
    pub fn computed(&self) -> Vec<(String, &Expression)> {
        self.root.computed()
    }

    /// Adds the inputs of the output. An inclusion reads the fields it names. An exclusion adds
    /// only the inputs of its expressions, since later stages determine which of the other fields
    /// are needed.
    pub fn dependencies(&self, into: &mut Dependencies) {
        self.root.dependencies(into);
    }

    /// Returns the new document.
    pub fn apply(&self, doc: DocRef<'_>, ctx: &EvalContext<'_>) -> Result<Document> {
        self.apply_with(doc, ctx, &ProjectionInput::default())
    }

    /// Returns the new document, for projections with inputs besides the document.
    pub fn apply_with(
        &self,
        doc: DocRef<'_>,
        ctx: &EvalContext<'_>,
        input: &ProjectionInput<'_>,
    ) -> Result<Document> {
        if self.is_identity() && self.positional.is_none() {
            return Ok(doc.to_document());
        }
        let mut out = DocumentBuilder::with_capacity(match self.mode {
            Mode::Inclusion => 128,
            Mode::Exclusion => doc.as_bytes().len(),
        });
        let environment = ApplyContext {
            mode: match self.mode {
                Mode::Inclusion => apply::Mode::Include,
                Mode::Exclusion => apply::Mode::Exclude,
            },
            root: doc,
            ctx,
            input,
            slots: &[],
            in_nested_array: false,
            mark: ctx.mark(),
        };
        let written = write_fields(&self.root, &environment, doc, &mut out);
        ctx.release(environment.mark);
        written?;
        let projected = out.finish();
        match &self.positional {
            Some(path) => apply_positional(projected.as_ref(), path, input.position),
            None => Ok(projected),
        }
    }
}

/// Returns the specification of the field that carries some metadata.
fn single(field: MetaField, value: impl Into<Value>) -> Document {
    let mut out = DocumentBuilder::new();
    out.append(field.carrier(), value);
    out.finish()
}

impl ProjectionInput<'_> {
    /// Returns the metadata of the document `root`.
    fn meta<'d>(&'d self, field: MetaField, root: DocRef<'d>) -> Result<ValueRef<'d>> {
        if let (MetaField::SortKey, Some(key)) = (field, self.sort_key) {
            return Ok(key.as_ref());
        }
        match root.get(field.carrier()) {
            // In an `$or`, a document that does not match the `$text` has no score.
            ValueRef::Missing if field.is_required() && field != MetaField::TextScore => {
                Err(field.unavailable())
            }
            value => Ok(value),
        }
    }
}

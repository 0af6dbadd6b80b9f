//! Parsing of a filter document to a [`MatchExpression`]: the structure.
//!
//! ```text
//! {a: 1}              equality, or a pattern if the value is a regular expression
//! {a: {$gt: 1, …}}    operators on a path: table in [`super::operators`]
//! {$or: […]}          operators on documents: table in [`super::operators`]
//! {a: {b: 1}}         equality with a whole object, as its first name is no operator
//! ```
//!
//! The fields of a document, and the operators of one path, are combined by and.

use nilometer_bson::path::REFERENCE_NAMES;
use nilometer_bson::{DocRef, Element, ValueRef};

use super::comparison::{CompareOp, Comparison};
use super::geo::NearAllowance;
use super::operators;
use super::path::MatchPath;
use super::regex::Pattern;
use super::text::TextAllowance;
use super::{MatchExpression, rewrite};
use crate::error::{Error, Result};
use crate::eval::{Collation, ParseContext};

/// Maximum nesting of `$and`, `$or`, `$nor`, `$not`, `$elemMatch`.
pub const FILTER_DEPTH_MAX: usize = 100;

/// The place of a document in a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FilterLevel {
    /// The filter, or an arm of `$and`, `$or`, `$nor` in it: tests the whole document.
    Document,
    /// Inside `$elemMatch`: tests one array element.
    Element,
}

/// State of parsing a filter.
#[derive(Clone, Copy, Debug)]
pub(super) struct FilterParser<'c> {
    pub(super) ctx: &'c ParseContext,
    pub(super) level: FilterLevel,
    pub(super) near: NearAllowance,
    pub(super) text: TextAllowance,
    depth: usize,
}

impl MatchExpression {
    /// Parses a filter. `ctx` provides the variables of `$expr` and the collation.
    pub fn parse(filter: DocRef<'_>, ctx: &ParseContext) -> Result<Self> {
        FilterParser::new(ctx, NearAllowance::Forbidden).document(filter)
    }
}

impl<'c> FilterParser<'c> {
    /// Creates a parser of a whole filter.
    pub(super) fn new(ctx: &'c ParseContext, near: NearAllowance) -> Self {
        Self {
            ctx,
            level: FilterLevel::Document,
            near,
            text: TextAllowance::Forbidden,
            depth: 0,
        }
    }

    /// Returns the parser for the next nesting level.
    pub(super) fn deeper(self, level: FilterLevel) -> Result<Self> {
        if self.depth >= FILTER_DEPTH_MAX {
            return Err(Error::bad_value(format!(
                "exceeded maximum query tree depth of {FILTER_DEPTH_MAX}"
            )));
        }
        Ok(Self {
            level,
            near: self.near.deeper(),
            text: self.text.deeper(),
            depth: self.depth + 1,
            ..self
        })
    }

    /// Parses a filter document.
    pub(super) fn document(self, filter: DocRef<'_>) -> Result<MatchExpression> {
        let mut parts = Vec::new();
        for element in filter {
            let name = element.name();
            if name.starts_with('$') && !REFERENCE_NAMES.contains(&name) {
                parts.extend(operators::parse_top_level(self, element)?);
            } else {
                self.field(element, &mut parts)?;
            }
        }
        Ok(rewrite::and(parts))
    }

    /// Parses `{path: value}` or `{path: {$op: …}}`.
    fn field(self, element: Element<'_>, parts: &mut Vec<MatchExpression>) -> Result<()> {
        let path = MatchPath::new(element.name());
        match element.value() {
            ValueRef::Document(doc) if is_operator_document(doc) => {
                self.operators(&path, doc, parts)
            }
            ValueRef::Regex { pattern, options } => {
                parts.push(MatchExpression::Regex {
                    path,
                    pattern: Pattern::parse_within(pattern, options, self.ctx.folding())?,
                });
                Ok(())
            }
            value => {
                parts.push(self.compare(path, CompareOp::Eq, value)?);
                Ok(())
            }
        }
    }

    /// Parses `{$op: …, $op: …}` on one path.
    pub(super) fn operators(
        self,
        path: &MatchPath,
        operators: DocRef<'_>,
        parts: &mut Vec<MatchExpression>,
    ) -> Result<()> {
        for element in operators {
            parts.extend(operators::parse_on_path(self, path, element, operators)?);
        }
        Ok(())
    }

    /// Creates a comparison with `value`.
    pub(super) fn compare(
        self,
        path: MatchPath,
        op: CompareOp,
        value: ValueRef<'_>,
    ) -> Result<MatchExpression> {
        match value {
            ValueRef::Undefined => {
                return Err(Error::bad_value("cannot compare to undefined"));
            }
            ValueRef::Regex { .. } if op != CompareOp::Eq => {
                return Err(Error::bad_value(format!(
                    "Can't have RegEx as arg to predicate over field '{}'.",
                    path.as_str()
                )));
            }
            _ => {}
        }
        Ok(MatchExpression::Compare(Comparison {
            path,
            op,
            value: value.to_value(),
            collation: Collation::of(self.ctx),
        }))
    }
}

/// True if the document consists of operators and is not a value: its first name starts with `$`
/// and it is not a database reference.
pub(super) fn is_operator_document(doc: DocRef<'_>) -> bool {
    doc.iter().next().is_some_and(|first| {
        let name = first.name();
        name.starts_with('$') && !REFERENCE_NAMES.contains(&name)
    })
}

//! The filter language: `find`'s filter, `$match`, partial index filters, array filters of updates.
//!
//! ```text
//! filter document ──parse──▶ MatchExpression ──matches(document)──▶ yes or no
//!                                 │  rewrite: simplify, split by field, rename a prefix
//!                                 │  serialize: back to a document, as explain shows it
//!                                 ▼
//!                        planner: bounds on buckets;  executor: comparisons over columns
//! ```
//!
//! [`MatchExpression::matches`] on one plain document defines the result that every faster method
//! (bucket bounds, indexes, column kernels) must reproduce. Operators behave as in MongoDB 8.0 or
//! are rejected with its error code when the filter is parsed; none is ignored.
//!
//! The least obvious rules are in three modules: which values a path finds in arrays ([`path`]),
//! which types a comparison compares ([`comparison`]), and how patterns differ from Rust's
//! ([`regex`]).
//!
//! Not supported: `$where` (no JavaScript), which is a parse error.

pub mod comparison;
mod evaluate;
pub mod expr;
mod failure;
pub mod geo;
pub mod json_schema;
mod operators;
mod parse;
pub mod path;
pub mod regex;
mod regex_backtrack;
mod regex_search;
mod regex_syntax;
mod rewrite;
mod serialize;
pub mod text;
pub mod value_tests;

use std::sync::Arc;

use crate::geo::{GeoTest, NearQuery};

pub use comparison::{CompareOp, Comparison, InList};
pub use expr::ExprTest;
pub use geo::BucketGeoTest;
pub use json_schema::JsonSchema;
pub use operators::{PATH_OPERATOR_NAMES, REFUSED_OPERATOR_NAMES, TOP_LEVEL_OPERATOR_NAMES};
pub use parse::FILTER_DEPTH_MAX;
pub use path::{LeafArrays, MatchPath};
pub use regex::Pattern;
pub use text::TextTest;
pub use value_tests::{BitTest, BitTestKind, ModTest, TypeSet};

/// A parsed filter.
#[derive(Clone, Debug, Default)]
pub enum MatchExpression {
    /// All must match; true if empty.
    And(Vec<MatchExpression>),
    /// At least one must match; false if empty.
    Or(Vec<MatchExpression>),
    /// None may match.
    Nor(Vec<MatchExpression>),
    /// Must not match.
    Not(Box<MatchExpression>),
    /// Matches every document.
    #[default]
    AlwaysTrue,
    /// Matches no document.
    AlwaysFalse,
    /// `$eq $gt $gte $lt $lte`: type-bracketed, traverses arrays. (`$ne` is `Not` of `$eq`.)
    Compare(Comparison),
    /// `$_internalExprEq` …: order over all types, does not traverse arrays.
    ExprCompare(Comparison),
    /// `$in` (`$nin` is `Not` of it).
    In(InList),
    /// `$exists: true` (`false` is `Not` of it).
    Exists(MatchPath),
    /// `$type`.
    Type {
        /// The path.
        path: MatchPath,
        /// The types that match.
        types: TypeSet,
    },
    /// `$regex`, or a regular expression as a value.
    Regex {
        /// The path.
        path: MatchPath,
        /// The pattern.
        pattern: Pattern,
    },
    /// `$mod`.
    Mod {
        /// The path.
        path: MatchPath,
        /// Divisor and remainder.
        test: ModTest,
    },
    /// `$size`.
    Size {
        /// The path.
        path: MatchPath,
        /// The required number of elements.
        size: i64,
    },
    /// `$elemMatch: {field: …}`: an element that is an object (or array) and matches the filter.
    ElemMatchObject {
        /// The path.
        path: MatchPath,
        /// The filter on the element.
        filter: Box<MatchExpression>,
    },
    /// `$elemMatch: {$gt: …}`: an element that passes all tests; their path is
    /// [`MatchPath::itself`].
    ElemMatchValue {
        /// The path.
        path: MatchPath,
        /// The tests of the element.
        tests: Vec<MatchExpression>,
    },
    /// `$bitsAllSet`, `$bitsAllClear`, `$bitsAnySet`, `$bitsAnyClear`.
    Bits {
        /// The path.
        path: MatchPath,
        /// The bits.
        test: BitTest,
    },
    /// `$geoWithin`, `$geoIntersects`.
    Geo {
        /// The path.
        path: MatchPath,
        /// The test of the geometry.
        test: Arc<GeoTest>,
    },
    /// `$near`, `$nearSphere`: a geometry within a range of distances.
    Near {
        /// The path.
        path: MatchPath,
        /// Centre and distances.
        query: Arc<NearQuery>,
    },
    /// `$_internalBucketGeoWithin`, on bucket documents.
    BucketGeo(Arc<BucketGeoTest>),
    /// `$expr`, and `$sampleRate`, which is parsed to one.
    Expr(Arc<ExprTest>),
    /// `$jsonSchema`.
    JsonSchema(Arc<JsonSchema>),
    /// `$text`.
    Text(Arc<TextTest>),
}

#[cfg(test)]
mod tests;

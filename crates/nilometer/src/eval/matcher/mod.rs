//! The filter language: `find`'s filter, `$match`, partial filters, update array filters.
//!
//! ```text
//! filter document ──parse──▶ MatchExpression ──matches(document)──▶ yes or no
//!                                 │  rewrite: simplify, split by field, rename a prefix
//!                                 │  serialize: back to a document, as explain shows it
//!                                 ▼
//!                        planner: bounds on buckets;  executor: comparisons over columns
//! ```
//!
//! The promise: [`MatchExpression::matches`] on one plain document is the truth that every faster
//! way (bucket bounds, indexes, column kernels) is held to. Operators either mean what MongoDB 8.0
//! means or are refused with its code when the filter is parsed; nothing is skipped.
//!
//! What surprises newcomers is kept in three places: which values a path finds in arrays
//! ([`path`]), which types a comparison compares ([`comparison`]), and how the patterns differ from
//! Rust's ([`regex`]).
//!
//! Not here: `$where` (no JavaScript) and `$text` (refused when parsed).

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
mod regex_syntax;
mod rewrite;
mod serialize;
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
pub use value_tests::{BitTest, BitTestKind, ModTest, TypeSet};

/// A parsed filter.
#[derive(Clone, Debug, Default)]
pub enum MatchExpression {
    /// All of them; true when empty.
    And(Vec<MatchExpression>),
    /// At least one of them; false when empty.
    Or(Vec<MatchExpression>),
    /// None of them.
    Nor(Vec<MatchExpression>),
    /// Not that.
    Not(Box<MatchExpression>),
    /// Every document.
    #[default]
    AlwaysTrue,
    /// No document.
    AlwaysFalse,
    /// `$eq $gt $gte $lt $lte`: typed, walks into arrays. (`$ne` is `Not` of `$eq`.)
    Compare(Comparison),
    /// `$_internalExprEq` …: order over all types, does not walk into arrays.
    ExprCompare(Comparison),
    /// `$in` (`$nin` is `Not` of it).
    In(InList),
    /// `$exists: true` (`false` is `Not` of it).
    Exists(MatchPath),
    /// `$type`.
    Type {
        /// Where.
        path: MatchPath,
        /// The types that match.
        types: TypeSet,
    },
    /// `$regex`, or a regular expression as a value.
    Regex {
        /// Where.
        path: MatchPath,
        /// What to find.
        pattern: Pattern,
    },
    /// `$mod`.
    Mod {
        /// Where.
        path: MatchPath,
        /// Divisor and remainder.
        test: ModTest,
    },
    /// `$size`.
    Size {
        /// Where.
        path: MatchPath,
        /// The number of elements wanted.
        size: i64,
    },
    /// `$elemMatch: {field: …}`: an element that is an object (or array) the filter matches.
    ElemMatchObject {
        /// Where.
        path: MatchPath,
        /// What the element must match.
        filter: Box<MatchExpression>,
    },
    /// `$elemMatch: {$gt: …}`: an element that passes all tests; their path is
    /// [`MatchPath::itself`].
    ElemMatchValue {
        /// Where.
        path: MatchPath,
        /// What the element must pass.
        tests: Vec<MatchExpression>,
    },
    /// `$bitsAllSet` and its three sisters.
    Bits {
        /// Where.
        path: MatchPath,
        /// The bits.
        test: BitTest,
    },
    /// `$geoWithin`, `$geoIntersects`.
    Geo {
        /// Where.
        path: MatchPath,
        /// What the geometry there must do.
        test: Arc<GeoTest>,
    },
    /// `$near` and its kin: a geometry there at a distance of interest.
    Near {
        /// Where.
        path: MatchPath,
        /// From where, and how far.
        query: Arc<NearQuery>,
    },
    /// `$_internalBucketGeoWithin`: on bucket documents.
    BucketGeo(Arc<BucketGeoTest>),
    /// `$expr`, and `$sampleRate`, which is one.
    Expr(Arc<ExprTest>),
    /// `$jsonSchema`.
    JsonSchema(Arc<JsonSchema>),
}

#[cfg(test)]
mod tests;

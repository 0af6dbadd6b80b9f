//! The table of accumulators.

use super::AccumulatorKind as K;
use super::parse::{self, ParseFn};

/// A row of the table.
pub struct AccumulatorRow {
    /// The name, with its dollar sign.
    pub name: &'static str,
    /// The operator; `None` for one that is rejected.
    pub kind: Option<K>,
    pub(super) parse: ParseFn,
}

impl std::fmt::Debug for AccumulatorRow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

const fn row(name: &'static str, kind: K, parse: ParseFn) -> AccumulatorRow {
    AccumulatorRow {
        name,
        kind: Some(kind),
        parse,
    }
}

/// All accumulators.
pub const ACCUMULATORS: &[AccumulatorRow] = &[
    row("$sum", K::Sum, parse::unary),
    row("$avg", K::Avg, parse::unary),
    row("$min", K::Min, parse::unary),
    row("$max", K::Max, parse::unary),
    row("$first", K::First, parse::unary),
    row("$last", K::Last, parse::unary),
    row("$push", K::Push, parse::unary),
    row("$addToSet", K::AddToSet, parse::unary),
    row("$concatArrays", K::ConcatArrays, parse::unary),
    row("$setUnion", K::SetUnion, parse::unary),
    row("$count", K::Count, parse::count),
    row("$mergeObjects", K::MergeObjects, parse::unary),
    row("$stdDevPop", K::StdDevPop, parse::unary),
    row("$stdDevSamp", K::StdDevSamp, parse::unary),
    row("$firstN", K::FirstN, parse::several),
    row("$lastN", K::LastN, parse::several),
    row("$minN", K::MinN, parse::several),
    row("$maxN", K::MaxN, parse::several),
    row("$top", K::Top, parse::ranked),
    row("$bottom", K::Bottom, parse::ranked),
    row("$topN", K::TopN, parse::ranked),
    row("$bottomN", K::BottomN, parse::ranked),
    row("$percentile", K::Percentile, parse::percentile),
    row("$median", K::Median, parse::percentile),
    AccumulatorRow {
        name: "$accumulator",
        kind: None,
        parse: parse::javascript,
    },
];

/// Returns the name of an accumulator.
pub(super) fn name(kind: K) -> &'static str {
    ACCUMULATORS
        .iter()
        .find(|row| row.kind == Some(kind))
        .map_or("", |row| row.name)
}

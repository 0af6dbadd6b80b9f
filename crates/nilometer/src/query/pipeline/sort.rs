//! `$sort`: a pattern of paths and directions, and, once a rule has found one, a limit.

use nilometer_bson::{Document, DocumentBuilder, Value, ValueRef, doc};

use super::{PipelineContext, Stage};
use crate::error::{Error, ErrorCode, Result, location};
use crate::eval::Dependencies;
use crate::eval::sort_key::{SortKey, SortPattern};
use crate::query::batch::MeasurementBlock;
use crate::query::planner::needs::Needs;

/// `$sort`, parsed.
#[derive(Clone, Debug)]
pub struct SortStage {
    /// By what.
    pub pattern: SortPattern,
    /// Only so many are asked for.
    pub limit: Option<u64>,
    /// Buckets come in the order of time this sort begins with.
    pub arrival: Option<BucketArrival>,
    /// Buckets are put in order before their measurements are.
    pub buckets: Option<BucketOrder>,
    /// Blocks are as good as rows to the stage behind it.
    pub as_blocks: bool,
}

/// The order of buckets that a sort of measurements is made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BucketOrder {
    /// By metadata, which is all the sort reads.
    Metadata,
    /// They come by their starts: rising, or falling with the longest span in milliseconds.
    Arrival(Option<i64>),
    /// They come by so many parts of metadata, and then by their starts: rising, or falling with the longest span in
    /// milliseconds.
    Indexed {
        /// How many.
        parts: usize,
        /// The span, where starts fall.
        span_ms: Option<i64>,
    },
    /// By so many parts of metadata, and then by a bound of their times.
    Bounds {
        /// How many.
        parts: usize,
    },
}

/// Asserts that a bucket's times lie within so many milliseconds of its start.
///
/// Who reads buckets by falling starts takes it for granted that a bucket which comes later has no time beyond its start
/// and the span. Every write keeps that, or has the collection treated as one whose ids tell no times; so a bucket
/// that breaks it is damaged, and fails the query instead of coming in the wrong place.
pub fn assert_span(block: &MeasurementBlock, span_ms: i64) -> Result<()> {
    let id = block.bucket.id();
    let last_ms = i64::from(id.timestamp_seconds())
        .saturating_mul(1000)
        .saturating_add(span_ms);
    match block.bucket.max(&block.shape.time_field) {
        ValueRef::DateTime(at) if at > last_ms => Err(Error::new(
            ErrorCode::DataCorruptionDetected,
            format!(
                "the bucket {} holds a time later than {} seconds after its start",
                id.to_hex(),
                span_ms / 1000
            ),
        )),
        _ => Ok(()),
    }
}

/// How buckets come in, where that lets a sort with a limit stop early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BucketArrival {
    /// By rising id, sorted by rising time.
    OldestFirst,
    /// By falling id, sorted by falling time; no bucket spans more than this.
    NewestFirst {
        /// The longest span in milliseconds.
        span_ms: i64,
    },
}

impl SortStage {
    /// A sort of everything.
    pub fn new(pattern: SortPattern) -> Self {
        Self {
            pattern,
            limit: None,
            arrival: None,
            buckets: None,
            as_blocks: false,
        }
    }

    /// True if neither this block nor any later one has a row that comes before one with the key
    /// `worst`.
    pub fn is_past(&self, block: &MeasurementBlock, worst: &SortKey) -> bool {
        let (Some(arrival), Some(Value::DateTime(worst))) = (self.arrival, worst.values().first())
        else {
            return false;
        };
        let opened_ms = i64::from(block.bucket.id().timestamp_seconds()) * 1000;
        match arrival {
            BucketArrival::OldestFirst => opened_ms > *worst,
            BucketArrival::NewestFirst { span_ms } => opened_ms.saturating_add(span_ms) < *worst,
        }
    }

    /// How long a bucket may span for this sort to be right, where it relies on that.
    pub fn guarded_span_ms(&self) -> Option<i64> {
        if let Some(BucketArrival::NewestFirst { span_ms }) = self.arrival {
            return Some(span_ms);
        }
        match self.buckets? {
            BucketOrder::Arrival(span_ms) | BucketOrder::Indexed { span_ms, .. } => span_ms,
            BucketOrder::Metadata | BucketOrder::Bounds { .. } => None,
        }
    }

    /// The bound of buckets that says which rows nothing can come before.
    fn bound(&self) -> Option<Document> {
        if let Some(arrival) = self.arrival {
            let offset_ms = match arrival {
                BucketArrival::OldestFirst => 0,
                BucketArrival::NewestFirst { span_ms } => span_ms,
            };
            return Some(doc! {"base": "min", "offsetSeconds": offset_ms / 1000});
        }
        let (base, offset_ms) = match self.buckets? {
            BucketOrder::Metadata => return None,
            BucketOrder::Arrival(span_ms) | BucketOrder::Indexed { span_ms, .. } => {
                ("min", span_ms.unwrap_or(0))
            }
            BucketOrder::Bounds { parts } => match self.pattern.parts().get(parts) {
                Some(part) if part.descending => ("max", 0),
                _ => ("min", 0),
            },
        };
        Some(doc! {"base": base, "offsetSeconds": offset_ms / 1000})
    }

    /// True if the order is drawn anew each time.
    pub fn is_random(&self) -> bool {
        let mut dependencies = Dependencies::default();
        self.pattern.dependencies(&mut dependencies);
        dependencies.random
    }

    /// The fields the pattern reads.
    pub fn needs(&self) -> Needs {
        let mut dependencies = Dependencies::default();
        self.pattern.dependencies(&mut dependencies);
        Needs::of(&dependencies)
    }

    /// Writes the stage as explain shows it.
    pub fn explain(&self, out: &mut DocumentBuilder) {
        let bound = self.bound();
        out.begin_document(if bound.is_some() {
            "$_internalBoundedSort"
        } else {
            "$sort"
        });
        out.append("sortKey", self.pattern.to_document());
        out.append("bound", bound);
        if let Some(limit) = self.limit {
            out.append("limit", i64::try_from(limit).unwrap_or(i64::MAX));
        }
        if self.as_blocks {
            out.append("blocks", true);
        }
        out.end();
    }
}

/// Parses `$sort`.
pub(super) fn parse(
    cx: &PipelineContext,
    _: &'static str,
    value: ValueRef<'_>,
    out: &mut Vec<Stage>,
) -> Result<()> {
    let Some(document) = value.as_document() else {
        return Err(Error::location(
            location::SORT_NOT_OBJECT,
            "the $sort key specification must be an object",
        ));
    };
    let pattern = SortPattern::parse(document, &cx.expressions)?;
    out.push(Stage::Sort(SortStage::new(pattern)));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::testing::code;
    use nilometer_bson::{array, doc};

    #[test]
    fn arguments_are_checked() {
        assert_eq!(code(array![doc! {"$sort": doc! {"a": 1, "b.c": -1}}]), 0);
        assert_eq!(code(array![doc! {"$sort": 1}]), 15_973);
        assert_eq!(code(array![doc! {"$sort": doc! {}}]), 15_976);
        assert_eq!(code(array![doc! {"$sort": doc! {"a": 2}}]), 15_975);
        assert_eq!(code(array![doc! {"$sort": doc! {"a": "x"}}]), 15_974);
    }
}

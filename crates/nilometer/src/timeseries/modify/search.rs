//! The search of a statement: which buckets may hold a match of its filter, and which of their rows match.

use std::collections::BTreeSet;
use std::sync::Arc;

use nilometer_bson::block::ColumnBlock;
use nilometer_bson::{Document, DocumentBuilder, Value, ValueRef, doc};

use super::MeasurementSelection;
use crate::catalog::{Collection, TimeseriesOptions};
use crate::error::Result;
use crate::eval::matcher::MatchExpression;
use crate::eval::{Collation, EvalContext};
use crate::timeseries::cache::opened_bucket::StoredBucket;
use crate::timeseries::rewrite::{BucketPredicate, BucketRewriter, FilterContext, IdBounds};
use crate::timeseries::scan::BucketRange;

/// A filter on measurements, split into predicates on buckets and on rows.
pub(super) struct BucketSearch<'a> {
    options: &'a TimeseriesOptions,
    /// Holds for every bucket with a match; contains the whole filter if it is on metadata alone.
    pub(super) buckets: BucketPredicate,
    /// The ids between which they are; `None` if no bucket can match.
    range: Option<BucketRange>,
    /// The predicate on rows; always true if metadata alone decides.
    pub(super) residual: MatchExpression,
    /// If it holds for a bucket, all its rows match.
    whole: Option<BucketPredicate>,
    /// The columns that the predicate on rows reads; `None` for all.
    reads: Option<BTreeSet<String>>,
    closed_too: bool,
}

/// Returns the rewriter of a collection for one statement.
fn rewriter_of(
    collection: &Collection,
    options: &TimeseriesOptions,
    selection: &MeasurementSelection<'_>,
) -> Result<BucketRewriter> {
    Ok(BucketRewriter {
        time_field: options.time_field.as_str().into(),
        meta_field: options.meta_field.as_deref().map(Arc::from),
        max_span_seconds: i64::from(options.span_seconds),
        extended_range: collection.has_extended_range(),
        mixed_schema: collection.may_have_mixed_schema(),
        bounds_collation: Collation::of_stored(collection.options.as_ref())?,
        context: FilterContext {
            now_ms: selection.eval.now_ms,
            variables: selection.eval.variables.into(),
            collator: selection.collator.cloned(),
            ..FilterContext::default()
        },
    })
}

impl<'a> BucketSearch<'a> {
    pub(super) fn new(
        collection: &Collection,
        options: &'a TimeseriesOptions,
        selection: &MeasurementSelection<'_>,
    ) -> Result<Self> {
        let rewriter = rewriter_of(collection, options, selection)?;
        let (meta, events) = selection
            .filter
            .clone()
            .split(|path| rewriter.is_meta_path(path));
        let by_meta = match &meta {
            MatchExpression::AlwaysTrue => Some(BucketPredicate::Always),
            meta => rewriter.meta_test(meta),
        };
        let (by_meta, residual) = match by_meta {
            Some(test) => (test, events),
            // Unreachable by the split; evaluating the filter on rows is always right.
            None => (
                BucketPredicate::Always,
                MatchExpression::and(vec![meta, events]),
            ),
        };
        let range = match rewriter.id_bounds(rewriter.time_range(&residual)) {
            IdBounds::Empty => None,
            IdBounds::Within { min, max } => Some(BucketRange {
                min: min.map(|seconds| id_at(seconds, 0)),
                max: max.map(|seconds| id_at(seconds, 0xFF)),
                backward: selection.backward,
            }),
        };
        let whole = match residual {
            MatchExpression::AlwaysTrue => Some(BucketPredicate::Always),
            _ => rewriter.whole(&residual),
        };
        let dependencies = residual.dependencies();
        let reads = (!dependencies.whole).then(|| {
            let fields = dependencies.top_level_fields();
            fields.into_iter().map(str::to_owned).collect()
        });
        Ok(Self {
            options,
            buckets: BucketPredicate::all([by_meta, rewriter.loose(&residual)]),
            range,
            residual,
            whole,
            reads,
            closed_too: selection.closed_too,
        })
    }

    /// Returns the range of ids to read; `None` if nothing can match.
    pub(super) fn range(&self) -> Option<BucketRange> {
        self.range
    }

    /// Returns the predicate on buckets as a filter on bucket documents.
    pub(super) fn bucket_filter(&self) -> Document {
        let not_closed = doc! {"control.closed": doc! {"$not": doc! {"$eq": true}}};
        let parts: Vec<Document> = match &self.buckets {
            BucketPredicate::Always => Vec::new(),
            BucketPredicate::All(parts) => parts.iter().map(|part| part.to_document()).collect(),
            other => vec![other.to_document()],
        };
        if parts.is_empty() {
            return not_closed;
        }
        let all: Vec<Value> = [not_closed]
            .into_iter()
            .chain(parts)
            .map(Value::from)
            .collect();
        doc! {"$and": all}
    }

    /// True if the filter depends on metadata alone.
    pub(super) fn is_by_series(&self) -> bool {
        matches!(self.residual, MatchExpression::AlwaysTrue)
    }

    /// True if a row of the bucket may match, judged by its header.
    pub(super) fn may_match(&self, bucket: &StoredBucket, eval: &EvalContext<'_>) -> Result<bool> {
        let may_change = self.closed_too || !bucket.is_closed();
        Ok(may_change && self.buckets.may_match(bucket, eval.limits)?)
    }

    /// Returns the rows that match, `limit` at most.
    pub(super) fn rows(
        &self,
        bucket: &StoredBucket,
        limit: usize,
        eval: &EvalContext<'_>,
    ) -> Result<Vec<usize>> {
        if let Some(whole) = &self.whole
            && whole.surely_matches(bucket, eval.limits)?
        {
            return Ok((0..bucket.count().min(limit)).collect());
        }
        let rows = BucketRows::of(bucket, self.options, self.reads.as_ref())?;
        let mut found = Vec::new();
        for row in 0..bucket.count() {
            if self.residual.matches(rows.document(row).as_ref(), eval)? {
                found.push(row);
                if found.len() >= limit {
                    break;
                }
            }
        }
        Ok(found)
    }
}

fn id_at(seconds: u32, rest: u8) -> [u8; 12] {
    let mut id = [rest; 12];
    id[..4].copy_from_slice(&seconds.to_be_bytes());
    id
}

/// The measurements of a bucket as documents: `_id` first, then time and metadata, then the others.
pub(super) struct BucketRows<'b> {
    id: Option<&'b Arc<ColumnBlock>>,
    time: (&'b str, Option<&'b Arc<ColumnBlock>>),
    meta: (&'b str, ValueRef<'b>),
    columns: Vec<(&'b str, &'b Arc<ColumnBlock>)>,
}

impl<'b> BucketRows<'b> {
    /// Reads the columns of the fields in `only`, or all.
    pub(super) fn of(
        bucket: &'b StoredBucket,
        options: &'b TimeseriesOptions,
        only: Option<&BTreeSet<String>>,
    ) -> Result<Self> {
        let wanted = |name: &str| only.is_none_or(|only| only.contains(name));
        let time = &*options.time_field;
        let meta = options.meta_field.as_deref();
        let mut columns = Vec::new();
        for (at, name) in bucket.shown() {
            let is_other = **name != *time && Some(&**name) != meta && **name != *"_id";
            if is_other
                && wanted(name)
                && let Some(column) = bucket.column_at(at)?
            {
                columns.push((&**name, column));
            }
        }
        let has_id = wanted("_id") && time != "_id" && meta != Some("_id");
        Ok(Self {
            id: match has_id {
                true => bucket.column("_id")?,
                false => None,
            },
            time: match wanted(time) {
                true => (time, bucket.column(time)?),
                false => (time, None),
            },
            meta: match meta {
                Some(name) => (name, bucket.meta()),
                None => ("", ValueRef::Missing),
            },
            columns,
        })
    }

    /// Returns one measurement.
    pub(super) fn document(&self, row: usize) -> Document {
        let mut out = DocumentBuilder::with_capacity(128);
        if let Some(column) = &self.id {
            out.append_ref("_id", column.value(row));
        }
        if let (name, Some(column)) = &self.time {
            out.append_ref(name, column.value(row));
        }
        out.append_ref(self.meta.0, self.meta.1);
        for (name, column) in &self.columns {
            out.append_ref(name, column.value(row));
        }
        out.finish()
    }
}

//! Reading: records of an ordinary collection, buckets of a time-series collection.
//!
//! ```text
//! RecordScan   access path ─► filter ─► rows; a tailable scan continues after its last record
//! BucketScan   id bounds, header predicate (in the source) ─► whole-bucket filter, event filter ─► blocks
//! MetaScan     an index of metadata ─► rows, without buckets
//!
//! index_fetch    records by index: fetched, or rows built from keys; pulls keys from
//!   index_scan, index_union, sort_merge
//! block_parts    the output of a scan of buckets, by several threads
//! record_parts   the rest of a scan of records, by several threads
//! rest_by_scan   ends a read by index that leads to much of a collection
//! nearest        the nearest few records by a geographic index
//! bucket_sample  measurements of randomly chosen buckets
//! unpack_bucket  bucket documents to measurements, where a client names the stage
//! ```

pub(super) mod block_parts;
pub mod bucket_sample;
pub mod index_fetch;
pub mod index_scan;
#[cfg(test)]
mod index_tests;
pub mod index_union;
pub(crate) mod merged_bins;
pub mod nearest;
pub mod partitions;
mod record_parts;
mod rest_by_scan;
pub(crate) mod returned_records;
pub(crate) mod rollup;
pub mod sort_merge;
pub mod trial;
pub mod unpack_bucket;
pub mod write_candidates;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nilometer_bson::{Document, DocumentBuilder, Value};

use self::record_parts::RecordParts;
use super::row::filter::matching;
use super::row::project::{ProjectStep, project};
use super::vector::block_selection::BlockSelection;
use super::{BlockSteps, ExecContext, Operator, RowBatch};
use crate::error::{Error, ErrorCode, Result};
use crate::eval::projection::MetaField;
use crate::query::batch::{Batch, BlockRun, FieldSet};
use crate::query::planner::access::cluster::ClusterBound;
use crate::query::planner::physical::{
    AccessPath, BucketInput, IndexChoice, MetaInput, RecordInput, Unpack,
};
use crate::query::source::{
    self, Bucket, BucketIter, RecordIter, RecordKey, RecordSource, ScanCounters, highest_id,
    lowest_id,
};

/// Buckets examined per call; between calls interrupts are checked.
const BUCKETS_PER_CALL: usize = 64;

/// Returns no documents.
pub struct Nothing;

impl Operator for Nothing {
    fn next(&mut self, _: &ExecContext<'_>) -> Result<Option<Batch>> {
        Ok(None)
    }

    fn is_exhausted(&self) -> bool {
        true
    }
}

/// Reads records.
pub struct RecordScan {
    input: RecordInput,
    counters: Arc<ScanCounters>,
    state: RecordState,
    /// The record read last, if the scan is tailable; before, the record after which it starts.
    last: Option<RecordKey>,
    /// Where a tailable scan that finds no record continues.
    end: Option<RecordKey>,
    /// True once a call has found no record.
    is_ended: bool,
    /// Batches that the query's thread has read.
    batches: usize,
}

enum RecordState {
    Unopened,
    Open(RecordIter),
    Parts(Box<RecordParts>),
    Done,
}

impl RecordScan {
    /// Reads `input` and counts what it examines.
    pub fn new(input: RecordInput, counters: Arc<ScanCounters>) -> Self {
        Self {
            last: input.start_after.clone(),
            end: None,
            input,
            counters,
            state: RecordState::Unopened,
            is_ended: false,
            batches: 0,
        }
    }

    fn open(&mut self) -> Result<()> {
        let (min, max) = match &self.input.access {
            AccessPath::IdLookup(id) => {
                if let Some(found) = self.input.source.find_by_id(id.as_ref()) {
                    self.counters.keys.fetch_add(1, Ordering::Relaxed);
                    self.state = RecordState::Open(Box::new(found?.map(Ok).into_iter()));
                    return Ok(());
                }
                (None, None)
            }
            // Reading by index is a separate operator.
            AccessPath::CollectionScan | AccessPath::Index(_) => (None, None),
            AccessPath::ClusteredScan { min, max } => {
                let key = |bound: &Option<ClusterBound>| bound.as_ref().map(|b| b.key.clone());
                (key(min), key(max))
            }
        };
        if self.input.is_tail {
            self.end = self.input.source.end_position();
        }
        let scan = source::RecordScanOptions {
            direction: self.input.direction,
            min,
            max,
            start_after: self.last.clone(),
            reads_all: false,
        };
        self.state = RecordState::Open(self.input.source.scan(&scan)?);
        Ok(())
    }
}

/// The error of a tailable scan whose position was removed.
fn position_lost(source: &dyn RecordSource, last: &RecordKey) -> Error {
    let id = match source.record_id(last) {
        Value::Int64(id) => id.to_string(),
        _ => String::new(),
    };
    Error::new(
        ErrorCode::CappedPositionLost,
        format!(
            "CollectionScan died due to position in capped collection being deleted. Last seen \
             record id: RecordId({id})"
        ),
    )
}

impl RecordScan {
    /// Fails if the last record was removed: later ones may have been removed unread.
    fn check_position(&self) -> Result<()> {
        let starts = matches!(self.state, RecordState::Unopened);
        let source = &*self.input.source;
        match &self.last {
            Some(last) if self.input.is_tail && !source.is_position_kept(last)? => {
                Err(position_lost(source, last))
            }
            Some(last) if starts && !self.input.is_tail && !source.is_position_kept(last)? => {
                Err(Error::new(
                    ErrorCode::KeyNotFound,
                    "the record after which the scan should continue no longer exists",
                ))
            }
            _ => Ok(()),
        }
    }
}

impl Operator for RecordScan {
    fn next(&mut self, cx: &ExecContext<'_>) -> Result<Option<Batch>> {
        self.check_position()?;
        if matches!(self.state, RecordState::Unopened) {
            self.open()?;
        }
        if let RecordState::Parts(parts) = &mut self.state {
            if let Some(rows) = parts.next(&self.counters, cx)? {
                return Ok(Some(Batch::Rows(rows)));
            }
            let since = source::RecordScanOptions {
                start_after: Some(parts.end().clone()),
                ..source::RecordScanOptions::default()
            };
            self.state = RecordState::Open(self.input.source.scan(&since)?);
        }
        let RecordState::Open(records) = &mut self.state else {
            self.is_ended = true;
            return Ok(None);
        };
        let (rows, last) = next_batch(&self.input, records)?;
        let is_end = !rows.is_full();
        self.batches = self.batches.saturating_add(1);
        let parts = match &last {
            Some(last) if !is_end => {
                RecordParts::behind(&self.input, last, (&rows, self.batches), cx)?
            }
            _ => None,
        };
        if let Some(parts) = parts {
            self.state = RecordState::Parts(Box::new(parts));
        }
        if self.input.is_tail {
            self.last = last.or(self.last.take());
        }
        let mut rows = rows.into_rows();
        let read = rows.len();
        self.counters
            .documents
            .fetch_add(read as u64, Ordering::Relaxed);
        if is_end {
            if read == 0 {
                self.last = self.end.take().or(self.last.take());
            }
            // A tailable scan that has started continues after its last record.
            self.state = match self.last {
                Some(_) if self.input.is_tail => RecordState::Unopened,
                _ => RecordState::Done,
            };
            if read == 0 {
                self.is_ended = true;
                return Ok(None);
            }
        }
        if let Some(filter) = &self.input.filter {
            rows = matching(rows, filter, cx)?;
        }
        Ok(Some(Batch::Rows(rows)))
    }

    /// As in MongoDB, a scan knows its end only after looking for another record: a cursor whose last batch is full stays open.
    fn is_exhausted(&self) -> bool {
        let is_single = matches!(self.input.access, AccessPath::IdLookup(_));
        matches!(self.state, RecordState::Done) && (self.is_ended || is_single)
    }
}

/// Returns the next documents, and the key of the last one; fewer than a batch holds at the end.
fn next_batch(
    input: &RecordInput,
    records: &mut RecordIter,
) -> Result<(RowBatch, Option<RecordKey>)> {
    let (mut rows, mut last) = (RowBatch::default(), None);
    while !rows.is_full() {
        let Some((key, document)) = records.next().transpose()? else {
            break;
        };
        rows.push(shown(input, &key, document));
        last = Some(key);
    }
    Ok((rows, last))
}

/// Returns the document of a record as the scan returns it.
fn shown(input: &RecordInput, key: &RecordKey, document: Document) -> Document {
    if !input.show_record_id {
        return document;
    }
    let id = input.source.record_id(key);
    with_field(&document, MetaField::RecordId.carrier(), id)
}

/// Returns the document with one more field.
pub(super) fn with_field(
    document: &Document,
    name: &str,
    value: nilometer_bson::Value,
) -> Document {
    let mut out = DocumentBuilder::with_capacity(document.as_bytes().len() + 32);
    for element in document.iter() {
        out.append_element(element);
    }
    out.append(name, value);
    out.finish()
}

/// Reads buckets.
pub struct BucketScan {
    input: BucketInput,
    counters: Arc<ScanCounters>,
    selection: Arc<BlockSelection>,
    /// The caller selects measurements.
    is_deferred: bool,
    buckets: Option<BucketIter>,
    /// Measurements still to return, if there is a limit.
    left: Option<u64>,
    done: bool,
}

impl BucketScan {
    /// Reads `input` and counts what it examines.
    pub fn new(input: BucketInput, counters: Arc<ScanCounters>) -> Self {
        Self {
            selection: Arc::new(BlockSelection::new(&input)),
            is_deferred: false,
            left: input.limit,
            input,
            counters,
            buckets: None,
            done: false,
        }
    }

    fn open(&self) -> Result<BucketIter> {
        let choice = &self.input.buckets;
        let scan = source::BucketScanOptions {
            direction: self.input.direction,
            id_min: choice.id_min.map(lowest_id),
            id_max: choice.id_max.map(highest_id),
            index: choice.index.as_ref().map(IndexChoice::scan),
            summaries: choice.summaries,
            times: choice.times,
            columns: needed_columns(&self.input.unpack),
            examined: Arc::clone(&self.counters),
        };
        self.input.source.scan(&scan)
    }

    /// Returns the measurements of a bucket that pass the filter.
    fn unpack(&self, bucket: Arc<dyn Bucket>, cx: &ExecContext<'_>) -> Result<Batch> {
        let mut block = self.selection.begin(bucket, cx)?;
        if self.is_deferred {
            return Ok(Batch::Block(block));
        }
        self.selection.apply(&mut block, cx)?;
        let mut batch = if cx.settings.plan.options.force_rows {
            Batch::Rows(block.to_rows()?)
        } else {
            Batch::Block(block)
        };
        for stage in &self.input.unpack.computed {
            if batch.is_empty() {
                break;
            }
            batch = project(stage, batch, cx)?;
        }
        Ok(batch)
    }
}

impl Operator for BucketScan {
    fn next(&mut self, cx: &ExecContext<'_>) -> Result<Option<Batch>> {
        self.done |= self.left == Some(0);
        if self.done {
            return Ok(None);
        }
        let mut buckets = match self.buckets.take() {
            Some(buckets) => buckets,
            None => self.open()?,
        };
        for _ in 0..BUCKETS_PER_CALL {
            let Some(bucket) = buckets.next() else {
                self.done = true;
                return Ok(None);
            };
            let bucket = bucket?;
            if !self
                .input
                .buckets
                .predicate
                .may_match(&*bucket, cx.eval.limits)?
            {
                continue;
            }
            self.counters.returned.fetch_add(1, Ordering::Relaxed);
            let batch = self.unpack(bucket, cx)?;
            if !batch.is_empty() {
                let given = batch.len() as u64;
                self.left = self.left.map(|left| left.saturating_sub(given));
                self.buckets = Some(buckets);
                return Ok(Some(batch));
            }
        }
        self.buckets = Some(buckets);
        Ok(Some(Batch::Rows(Vec::new())))
    }

    fn is_exhausted(&self) -> bool {
        self.done
    }

    fn next_run(&mut self, cx: &ExecContext<'_>) -> Result<Option<BlockRun>> {
        let may = !self.done && self.left.is_none() && self.input.unpack.computed.is_empty();
        if !may || cx.settings.plan.options.force_rows {
            return Ok(None);
        }
        if self.buckets.is_none() {
            self.buckets = Some(self.open()?);
        }
        let Some(buckets) = &mut self.buckets else {
            return Ok(None);
        };
        let selection = &self.selection;
        let predicate = &self.input.buckets.predicate;
        let run = buckets.next_run(&mut |run| selection.count_of_whole(run, predicate, cx))?;
        Ok(run.map(|buckets| {
            let count = buckets.bucket_count() as u64;
            self.counters.returned.fetch_add(count, Ordering::Relaxed);
            self.selection.run(buckets)
        }))
    }

    fn defer_selection(&mut self) -> Option<Arc<BlockSelection>> {
        let may = self.left.is_none() && self.input.unpack.computed.is_empty();
        self.is_deferred |= may;
        may.then(|| Arc::clone(&self.selection))
    }

    fn defer_steps(&mut self) -> Option<BlockSteps> {
        if self.left.is_some() {
            return None;
        }
        self.is_deferred = true;
        let mut steps = BlockSteps::of_scan(Arc::clone(&self.selection));
        for stage in &self.input.unpack.computed {
            steps = steps.and_then(ProjectStep(stage.clone()));
        }
        Some(steps)
    }
}

/// Reads metadata from an index.
pub struct MetaScan {
    input: MetaInput,
    counters: Arc<ScanCounters>,
    /// Where to continue; `None` at the start.
    next: Option<Vec<u8>>,
    done: bool,
}

impl MetaScan {
    /// Reads `input` and counts what it examines.
    pub fn new(input: MetaInput, counters: Arc<ScanCounters>) -> Self {
        Self {
            input,
            counters,
            next: None,
            done: false,
        }
    }
}

impl Operator for MetaScan {
    fn next(&mut self, cx: &ExecContext<'_>) -> Result<Option<Batch>> {
        if self.done {
            return Ok(None);
        }
        let MetaInput {
            source,
            index,
            components,
            filter,
            start,
            end,
            ..
        } = &self.input;
        let (mut metas, next) = source.distinct_metas(
            index,
            *components,
            (start, end.as_deref()),
            self.next.as_deref(),
            &self.counters,
        )?;
        self.done = next.is_none();
        self.next = next;
        if let Some(filter) = filter {
            let mut passed = Vec::with_capacity(metas.len());
            for meta in metas {
                if filter.matches(meta.as_ref(), &cx.eval)? {
                    passed.push(meta);
                }
            }
            metas = passed;
        }
        let given = metas.len() as u64;
        self.counters.returned.fetch_add(given, Ordering::Relaxed);
        Ok(Some(Batch::Rows(metas)))
    }

    fn is_exhausted(&self) -> bool {
        self.done
    }
}

/// Returns the columns that are shown or that the filter reads; `None` for all.
fn needed_columns(unpack: &Unpack) -> Option<Arc<[Arc<str>]>> {
    let FieldSet::Only(fields) = &unpack.fields else {
        return None;
    };
    let mut names: BTreeSet<Arc<str>> = fields.clone();
    if let Some(filter) = &unpack.event_filter {
        let dependencies = filter.dependencies();
        if dependencies.whole {
            return None;
        }
        names.extend(dependencies.top_level_fields().into_iter().map(Arc::from));
    }
    Some(names.into_iter().collect())
}

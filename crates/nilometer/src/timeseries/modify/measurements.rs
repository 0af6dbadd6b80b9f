//! Changes of measurements in buckets: update and delete by a filter. The level of statements is `modify/measurements.rs`.
//!
//! ```text
//! filter ──► by metadata │ by bounds │ residual
//!                └─ index, or scan of headers ─► rows that match? ─► claim the bucket ─► decide row by row
//!                                                                                               │
//!          no row is left: remove the bucket ◄──┬────────────────────────────────────────────────┘
//!   same series and span: rewrite the bucket ◄──┤   one engine batch for some buckets
//!  another, or no longer fits: pack elsewhere ◄─┘
//! ```
//!
//! Promises:
//!
//! - **Each measurement once.** A bucket is read once; a measurement that moves goes to a bucket made for it, which this
//!   statement skips. The write lock keeps other statements out.
//! - **Never lost, never doubled.** The bucket that loses a measurement and the one that gets it are written in one engine
//!   batch.
//! - **Decided on current data.** A bucket is decided on after it was claimed ([`super::bucket_changes`]), with everything
//!   acknowledged in it.
//! - **Whole buckets are cheap.** Where metadata or times decide for a whole bucket, no column is read to find the matches,
//!   and none at all if the bucket is removed.
//!
//! A statement that fails keeps the batches before the failure, and nothing of the batch in which it failed.

use std::collections::HashSet;
use std::sync::Arc;

use nilometer_bson::{Document, ValueRef};
use nilometer_storage::Durability;

use super::assemble::{AssembledBucket, BucketContents, Row};
use super::bucket_changes::BucketChanges;
use super::pack::{self, MovedMeasurement};
use super::search::{BucketRows, BucketSearch};
use super::{
    BUCKETS_PER_INTERRUPT_CHECK, CHANGE_BATCH_BUCKETS_MAX, CHANGE_BATCH_BYTES_MAX,
    MeasurementAction, MeasurementChange, MeasurementSelection, ModifyStats, buckets_of,
    options_of,
};
use crate::catalog::{Catalog, Collection, TimeseriesOptions};
use crate::error::Result;
use crate::timeseries::Timeseries;
use crate::timeseries::bucket_catalog::field_scanner::examine;
use crate::timeseries::cache::opened_bucket::StoredBucket;
use crate::timeseries::format::bucket_document::{BucketDocument, Layout};
use crate::timeseries::format::series_key::SeriesMeta;
use crate::timeseries::scan::BucketRange;

/// One statement.
pub(super) struct ModifyRun<'r, 'd> {
    timeseries: &'r Arc<Timeseries>,
    catalog: &'r Catalog,
    collection: &'r Arc<Collection>,
    options: &'r TimeseriesOptions,
    layout: Layout<'r>,
    selection: MeasurementSelection<'r>,
    search: BucketSearch<'r>,
    action: MeasurementAction<'d>,
    /// Buckets written by this statement, whose measurements are changed already.
    packed: HashSet<[u8; 12]>,
    stats: ModifyStats,
}

/// The changes decided for the rows of a bucket.
#[derive(Default)]
struct RowChanges {
    matched: bool,
    /// Rows to remove.
    removed: HashSet<usize>,
    /// Rows to replace.
    replaced: Vec<(usize, Document)>,
}

impl<'r, 'd> ModifyRun<'r, 'd> {
    pub(super) fn new(
        timeseries: &'r Arc<Timeseries>,
        catalog: &'r Catalog,
        collection: &'r Arc<Collection>,
        selection: MeasurementSelection<'r>,
        action: MeasurementAction<'d>,
    ) -> Result<Self> {
        let options = options_of(collection)?;
        Ok(Self {
            timeseries,
            catalog,
            collection,
            options,
            layout: Layout::of(collection, options)?,
            search: BucketSearch::new(collection, options, &selection)?,
            selection,
            action,
            packed: HashSet::new(),
            stats: ModifyStats::default(),
        })
    }

    pub(super) fn run(mut self) -> Result<ModifyStats> {
        if let Some(range) = self.search.range() {
            self.run_within(range)?;
        }
        Ok(self.stats)
    }

    fn run_within(&mut self, range: BucketRange) -> Result<()> {
        let together = match self.selection.multi {
            true => CHANGE_BATCH_BUCKETS_MAX,
            false => 1,
        };
        let mut found = Vec::new();
        let mut looked_at = 0;
        let buckets = buckets_of(self.timeseries, self.collection, &self.selection, range)?;
        for bucket in buckets {
            let bucket = bucket?;
            looked_at += 1;
            if looked_at % BUCKETS_PER_INTERRUPT_CHECK == 0 {
                (self.selection.check_interrupt)()?;
            }
            if !self.is_candidate(&bucket)? {
                continue;
            }
            if self.selection.dry {
                if self.decide(&bucket)?.matched && !self.selection.multi {
                    return Ok(());
                }
                continue;
            }
            found.push(bucket.id().0);
            if found.len() >= together {
                if self.change(&found)? {
                    return Ok(());
                }
                found.clear();
            }
        }
        self.change(&found)?;
        Ok(())
    }

    /// True if a measurement of the bucket matches. Other buckets are not claimed.
    fn is_candidate(&mut self, bucket: &StoredBucket) -> Result<bool> {
        let eval = &self.selection.eval;
        if self.packed.contains(&bucket.id().0) || !self.search.may_match(bucket, eval)? {
            return Ok(false);
        }
        self.stats.unpacked += 1;
        let rows = self.search.rows(bucket, 1, &self.selection.eval)?;
        Ok(!rows.is_empty())
    }

    /// Changes the buckets, in one engine batch unless it grows too large. Returns true when a statement on one measurement
    /// has found it.
    fn change(&mut self, found: &[[u8; 12]]) -> Result<bool> {
        let mut moved = Vec::new();
        let mut moved_bytes = 0;
        let mut changes = self.timeseries.change_buckets(self.collection)?;
        for id in found {
            (self.selection.check_interrupt)()?;
            let Some(document) = changes.claim(*id)? else {
                continue;
            };
            let bucket = StoredBucket::from_document(document.clone(), &self.options.time_field)?;
            if !self.search.may_match(&bucket, &self.selection.eval)? {
                continue;
            }
            let decided = self.decide(&bucket)?;
            let matched = decided.matched;
            let before = moved.len();
            self.rewrite(&mut changes, &document, &bucket, decided, &mut moved)?;
            let new = moved.iter().skip(before);
            moved_bytes += new
                .map(|one: &MovedMeasurement| one.document.as_bytes().len())
                .sum::<usize>();
            if matched && !self.selection.multi {
                self.commit(changes, &moved)?;
                return Ok(true);
            }
            if changes.bytes() + moved_bytes > CHANGE_BATCH_BYTES_MAX {
                self.commit(changes, &moved)?;
                moved.clear();
                moved_bytes = 0;
                changes = self.timeseries.change_buckets(self.collection)?;
            }
        }
        self.commit(changes, &moved)?;
        Ok(false)
    }

    fn commit(&mut self, mut changes: BucketChanges<'_>, moved: &[MovedMeasurement]) -> Result<()> {
        let ids = pack::pack(
            self.timeseries,
            &mut changes,
            self.options,
            &self.layout,
            moved,
        )?;
        self.packed.extend(ids);
        changes.record(self.selection.record);
        changes.commit(self.catalog, Durability::Buffered)
    }

    /// Decides the changes of the rows that match.
    fn decide(&mut self, bucket: &StoredBucket) -> Result<RowChanges> {
        let limit = if self.selection.multi { usize::MAX } else { 1 };
        let rows = self.search.rows(bucket, limit, &self.selection.eval)?;
        self.stats.matched += u64::try_from(rows.len()).unwrap_or(u64::MAX);
        let mut decided = RowChanges {
            matched: !rows.is_empty(),
            ..RowChanges::default()
        };
        let decide = match &mut self.action {
            MeasurementAction::Remove => {
                decided.removed = rows.into_iter().collect();
                return Ok(decided);
            }
            MeasurementAction::Decide(decide) => decide,
        };
        let documents = BucketRows::of(bucket, self.options, None)?;
        for row in rows {
            match decide(&documents.document(row))? {
                MeasurementChange::Keep => {}
                MeasurementChange::Remove => {
                    decided.removed.insert(row);
                }
                MeasurementChange::Replace(after) => decided.replaced.push((row, after)),
            }
        }
        Ok(decided)
    }

    /// Writes the changes of a bucket; measurements that cannot stay in it are added to `moved`.
    fn rewrite(
        &self,
        changes: &mut BucketChanges<'_>,
        document: &Document,
        bucket: &StoredBucket,
        decided: RowChanges,
        moved: &mut Vec<MovedMeasurement>,
    ) -> Result<()> {
        let id = bucket.id().0;
        if decided.replaced.is_empty() && decided.removed.is_empty() {
            return Ok(());
        }
        self.note(changes, bucket, &decided)?;
        if decided.removed.len() == bucket.count() {
            changes.notes.bucket_gone(id);
            changes.remove(id)?;
            return Ok(());
        }
        let parsed = BucketDocument::parse(document.as_ref(), &self.options.time_field)?;
        let start_ms = parsed.start_ms(&self.options.time_field)?;
        let series = SeriesMeta::of(parsed.meta);
        // By row: those that may stay, those that must leave.
        let (mut staying, mut leaving) = (Vec::new(), Vec::new());
        for (row, after) in decided.replaced {
            let (meta, measurement) = examine(after.as_ref(), self.options)?;
            let (meta, time_ms) = (SeriesMeta::of_element(meta), measurement.time_ms);
            let fits = self.options.spans(start_ms, time_ms) && meta == series;
            let one = MovedMeasurement {
                meta,
                time_ms,
                document: after,
            };
            match fits {
                true => staying.push((row, one)),
                false => leaving.push((row, one)),
            }
        }
        let mut gone = decided.removed;
        gone.extend(leaving.iter().map(|(row, _)| *row));
        let attempt = self.assemble(document, bucket, (id, start_ms), &gone, &staying)?;
        let limit = self.timeseries.bucket_catalog.limits().bytes_max;
        let keeps = attempt.as_ref().is_none_or(|attempt| {
            let bytes = attempt.document.as_bytes().len();
            attempt.uniform && bytes <= limit.max(document.as_bytes().len())
        });
        let result = if keeps || staying.is_empty() {
            attempt
        } else {
            gone.extend(staying.iter().map(|(row, _)| *row));
            leaving.append(&mut staying);
            self.assemble(document, bucket, (id, start_ms), &gone, &[])?
        };
        match result {
            Some(result) => changes.replace(id, result.document.as_ref())?,
            None => {
                changes.notes.bucket_gone(id);
                changes.remove(id)?;
            }
        }
        moved.extend(leaving.into_iter().map(|(_, one)| one));
        Ok(())
    }

    /// Notes the changes of the rows of a bucket.
    fn note(
        &self,
        changes: &mut BucketChanges<'_>,
        bucket: &StoredBucket,
        decided: &RowChanges,
    ) -> Result<()> {
        if !changes.notes.are_kept() {
            return Ok(());
        }
        let documents = BucketRows::of(bucket, self.options, None)?;
        let mut removed = decided.removed.iter().copied().collect::<Vec<_>>();
        removed.sort_unstable();
        for row in removed {
            let before = documents.document(row);
            changes.notes.measurement_deleted(before.as_ref());
        }
        for (row, after) in &decided.replaced {
            let before = documents.document(*row);
            changes
                .notes
                .measurement_updated(before.as_ref(), after.as_ref());
        }
        Ok(())
    }

    /// Returns the bucket without the rows `gone`, and with others `replaced`; `None` if no row is left.
    fn assemble(
        &self,
        document: &Document,
        bucket: &StoredBucket,
        (id, start_ms): ([u8; 12], i64),
        gone: &HashSet<usize>,
        replaced: &[(usize, MovedMeasurement)],
    ) -> Result<Option<AssembledBucket>> {
        let mut rows: Vec<(i64, Row<'_>)> = Vec::with_capacity(bucket.count());
        let times = bucket.column(&self.options.time_field)?;
        let mut news = replaced.iter().peekable();
        let mut times_changed = false;
        for row in 0..bucket.count() {
            let new = news.next_if(|(at, _)| *at == row);
            if gone.contains(&row) {
                continue;
            }
            let old_time = match times.as_ref().map(|times| times.value(row)) {
                Some(ValueRef::DateTime(at)) => at,
                _ => i64::MIN,
            };
            rows.push(match new {
                Some((_, new)) => {
                    times_changed |= new.time_ms != old_time;
                    (new.time_ms, Row::New(new.document.as_ref()))
                }
                None => (old_time, Row::Old(row)),
            });
        }
        if rows.is_empty() {
            return Ok(None);
        }
        let reordered = times_changed && bucket.is_sorted();
        if reordered {
            rows.sort_by_key(|(at, _)| *at);
        }
        let rows: Vec<Row<'_>> = rows.into_iter().map(|(_, row)| row).collect();
        let parts = BucketContents {
            bucket: Some((document, bucket)),
            in_place: !reordered && rows.len() == bucket.count(),
            rows: &rows,
            layout: &self.layout,
            meta_field: self.options.meta_field.as_deref(),
        };
        parts.assemble(id, start_ms, bucket.meta()).map(Some)
    }
}

//! Updates and deletes of measurements: what happens through a time-series collection.
//!
//! ```text
//! filter ──► by metadata │ by bounds │ residual
//!                └─ index, or scan of headers ─► rows that match? ─► claim the bucket ─► decide row by row
//!                                                                                     │
//!          no row left: the bucket goes ◄──┬──────────────────────────────────────────┘
//!   the same series and span: rewritten ◄──┤   one engine batch for some buckets
//!  another, or it would not fit: packed ◄──┘
//! ```
//!
//! Promises:
//!
//! - **Each measurement once.** A measurement that stays in its bucket is not met again because a
//!   bucket is looked at once; one that moves goes to a bucket made for it, which this statement
//!   skips. Statements on one collection take turns ([`write_lock`]).
//! - **Never nowhere, never twice.** The bucket that loses a measurement and the one that gets it are
//!   written in one engine batch.
//! - **Nothing is lost.** A bucket is decided about after it was claimed ([`self::bucket_changes`]), with all
//!   that was acknowledged in it.
//! - **Whole buckets are cheap.** Where metadata or times decide for a whole bucket no column is read
//!   to find what matches, and none at all if it is then removed or only its metadata changes.
//!
//! A statement that fails leaves the batches before the failure; nothing of the batch in which it
//! failed. Buckets that are marked as closed are not looked into by statements. What an update makes of a
//! measurement the caller says.

mod assemble;
pub(crate) mod bucket_changes;
pub(crate) mod expire;
mod pack;
pub(crate) mod raw;
mod search;
mod write_lock;

use std::collections::HashSet;
use std::sync::Arc;

use nilometer_bson::{Document, DocumentBuilder, Value, ValueRef};
use nilometer_storage::Durability;

use self::bucket_changes::BucketChanges;
use super::Timeseries;
use super::cache::opened_bucket::StoredBucket;
use super::format::bucket_document::{BucketDocument, Layout};
use super::format::series_key::SeriesMeta;
use super::insert::field_scanner::examine;
use super::scan::{BucketRange, BucketScan};
use crate::catalog::{Catalog, Collection, TimeseriesOptions};
use crate::error::{Error, Result};
use crate::eval::EvalContext;
use crate::eval::matcher::MatchExpression;
use crate::eval::variables::SharedCollator;
use assemble::{Parts, Row};
use pack::Moved;
use search::{Rows, Search};
pub use write_lock::Turn;
pub(crate) use write_lock::Turns;

/// Buckets changed in one engine batch at most, so that others do not wait long.
const CHANGE_BATCH_BUCKETS_MAX: usize = 64;

/// Bytes of documents that one engine batch may gather.
const CHANGE_BATCH_BYTES_MAX: usize = 32 << 20;

/// Buckets looked at between two looks whether the statement was interrupted.
const BUCKETS_PER_INTERRUPT_CHECK: u64 = 64;

/// Which measurements a statement is about.
#[derive(Clone, Copy)]
pub struct MeasurementSelection<'a> {
    /// What they match.
    pub filter: &'a MatchExpression,
    /// All of them, or any one.
    pub multi: bool,
    /// True to look at the latest buckets first.
    pub backward: bool,
    /// Time, variables, randomness.
    pub eval: EvalContext<'a>,
    /// How strings compare, if not by bytes.
    pub collator: Option<&'a SharedCollator>,
    /// Ends the statement from outside.
    pub check_interrupt: &'a dyn Fn() -> Result<()>,
    /// Find out what would be done, and do nothing.
    pub dry: bool,
    /// Finds the buckets to look at; if `None`, all between two ids.
    pub find: Option<&'a FindBuckets<'a>>,
    /// Look into buckets that are marked as closed too.
    pub closed_too: bool,
}

/// The buckets of a range that may hold a match. Asked when the statement's turn has come, so that it
/// knows what the statements before have done.
pub type FindBuckets<'f> = dyn Fn(BucketRange) -> Result<BucketScan> + 'f;

/// What becomes of a measurement.
#[derive(Debug)]
pub enum MeasurementFate {
    /// Nothing.
    Keep,
    /// This one takes its place.
    Replace(Document),
    /// It goes.
    Remove,
}

/// Decides about a measurement.
pub type DecideMeasurement<'d> = dyn FnMut(&Document) -> Result<MeasurementFate> + 'd;

/// Decides about a bucket by a document with its metadata and the number of measurements.
pub type DecideSeries<'d> = dyn FnMut(&Document, u64) -> Result<SeriesFate> + 'd;

/// What to do with what is selected.
pub enum MeasurementAction<'d> {
    /// Remove it.
    Remove,
    /// Ask about each.
    Decide(&'d mut DecideMeasurement<'d>),
}

/// What becomes of all measurements of a bucket.
#[derive(Debug)]
pub enum SeriesFate {
    /// Nothing.
    Keep,
    /// They have this metadata now; missing for none.
    Meta(Value),
    /// They go.
    Remove,
}

/// What a statement found.
#[derive(Clone, Copy, Debug, Default)]
pub struct MeasurementsChanged {
    /// Measurements that were selected.
    pub matched: u64,
    /// Buckets whose measurements were looked at.
    pub unpacked: u64,
}

/// A filter on measurements, taken apart, as explain shows it.
#[derive(Clone, Debug)]
pub struct ExplainedSelection {
    /// What buckets are asked.
    pub bucket_filter: Document,
    /// What measurements are asked.
    pub residual_filter: Document,
    /// Between which ids buckets are read; none if no bucket can hold a match.
    pub range: Option<BucketRange>,
}

/// A statement under way.
struct Run<'r, 'd> {
    timeseries: &'r Arc<Timeseries>,
    catalog: &'r Catalog,
    collection: &'r Arc<Collection>,
    options: &'r TimeseriesOptions,
    layout: Layout<'r>,
    selection: MeasurementSelection<'r>,
    search: Search<'r>,
    action: MeasurementAction<'d>,
    /// Buckets this statement made: what is in them was changed already.
    made: HashSet<[u8; 12]>,
    stats: MeasurementsChanged,
}

impl Timeseries {
    /// How a statement's filter comes apart.
    pub fn explain_selection(
        &self,
        collection: &Collection,
        selection: &MeasurementSelection<'_>,
    ) -> Result<ExplainedSelection> {
        let search = Search::new(collection, options_of(collection)?, selection)?;
        Ok(ExplainedSelection {
            bucket_filter: search.bucket_filter(),
            residual_filter: search.residual.to_document(),
            range: search.range(),
        })
    }

    /// True if the filter decides by metadata alone, or not at all.
    pub fn is_by_series(
        &self,
        collection: &Collection,
        selection: &MeasurementSelection<'_>,
    ) -> Result<bool> {
        Ok(Search::new(collection, options_of(collection)?, selection)?.is_by_series())
    }

    /// Changes or removes measurements. Does not wait for the disk.
    pub fn change_measurements(
        self: &Arc<Self>,
        _turn: &Turn<'_>,
        catalog: &Catalog,
        collection: &Arc<Collection>,
        selection: MeasurementSelection<'_>,
        action: MeasurementAction<'_>,
    ) -> Result<MeasurementsChanged> {
        let options = options_of(collection)?;
        let mut run = Run {
            timeseries: self,
            catalog,
            collection,
            options,
            layout: Layout::of(collection, options)?,
            search: Search::new(collection, options, &selection)?,
            selection,
            action,
            made: HashSet::new(),
            stats: MeasurementsChanged::default(),
        };
        run.run()?;
        Ok(run.stats)
    }

    /// Changes or removes whole buckets, by their metadata alone: `decide` is given a document with
    /// the metadata, and the number of measurements. Does not wait for the disk.
    pub fn change_series(
        self: &Arc<Self>,
        _turn: &Turn<'_>,
        catalog: &Catalog,
        collection: &Arc<Collection>,
        selection: MeasurementSelection<'_>,
        decide: &mut DecideSeries<'_>,
    ) -> Result<()> {
        let options = options_of(collection)?;
        let search = Search::new(collection, options, &selection)?;
        let Some(range) = search.range() else {
            return Ok(());
        };
        let mut found = Vec::new();
        let mut looked_at = 0;
        for bucket in self.buckets_of(collection, &selection, range)? {
            let bucket = bucket?;
            looked_at += 1;
            if looked_at % BUCKETS_PER_INTERRUPT_CHECK == 0 {
                (selection.check_interrupt)()?;
            }
            if !search.may_match(&bucket)? {
                continue;
            }
            if selection.dry {
                let count = u64::try_from(bucket.count()).unwrap_or(u64::MAX);
                decide(&meta_document(options, bucket.meta()), count)?;
                continue;
            }
            found.push(bucket.id().0);
            if found.len() >= CHANGE_BATCH_BUCKETS_MAX {
                self.change_series_found(catalog, collection, &selection, &found, decide)?;
                found.clear();
            }
        }
        self.change_series_found(catalog, collection, &selection, &found, decide)
    }

    fn buckets_of(
        self: &Arc<Self>,
        collection: &Arc<Collection>,
        selection: &MeasurementSelection<'_>,
        range: BucketRange,
    ) -> Result<BucketScan> {
        match selection.find {
            Some(find) => find(range),
            None => self.scan(collection, range),
        }
    }

    fn change_series_found(
        &self,
        catalog: &Catalog,
        collection: &Arc<Collection>,
        selection: &MeasurementSelection<'_>,
        found: &[[u8; 12]],
        decide: &mut DecideSeries<'_>,
    ) -> Result<()> {
        let options = options_of(collection)?;
        let search = Search::new(collection, options, selection)?;
        (selection.check_interrupt)()?;
        let mut changes = self.change_buckets(collection)?;
        for id in found {
            let Some(document) = changes.claim(*id)? else {
                continue;
            };
            let bucket = StoredBucket::from_document(document.clone(), &options.time_field)?;
            if !search.may_match(&bucket)? {
                continue;
            }
            let count = u64::try_from(bucket.count()).unwrap_or(u64::MAX);
            match decide(&meta_document(options, bucket.meta()), count)? {
                SeriesFate::Keep => {}
                SeriesFate::Remove => changes.remove(*id)?,
                SeriesFate::Meta(meta) => {
                    let meta = SeriesMeta::of(meta.as_ref()).value().to_value();
                    let after = assemble::with_meta(document.as_ref(), &meta);
                    changes.replace(*id, after.as_ref())?;
                }
            }
            if changes.bytes() > CHANGE_BATCH_BYTES_MAX {
                changes.commit(catalog, Durability::Buffered)?;
                changes = self.change_buckets(collection)?;
            }
        }
        changes.commit(catalog, Durability::Buffered)
    }

    /// A measurement as it is stored: its time must be a date, its metadata is normalised.
    pub fn stored_form(&self, collection: &Collection, document: Document) -> Result<Document> {
        let options = options_of(collection)?;
        let (meta, _) = examine(document.as_ref(), options)?;
        let Some(meta) = meta else {
            return Ok(document);
        };
        let normal = SeriesMeta::of_element(Some(meta));
        let mut out = DocumentBuilder::with_capacity(document.as_bytes().len());
        for element in document.iter() {
            if element.name_bytes() == meta.name_bytes() {
                out.append_ref(element.name(), normal.value());
            } else {
                out.append_element(element);
            }
        }
        Ok(out.finish())
    }
}

fn options_of(collection: &Collection) -> Result<&TimeseriesOptions> {
    let options = collection.timeseries.as_ref();
    options.ok_or_else(|| Error::bad_value("not a time-series collection"))
}

/// A document with only the metadata, under its name.
fn meta_document(options: &TimeseriesOptions, meta: ValueRef<'_>) -> Document {
    let mut out = DocumentBuilder::new();
    if let Some(name) = &options.meta_field {
        out.append_ref(name, meta);
    }
    out.finish()
}

/// What was decided about the rows of a bucket.
#[derive(Default)]
struct Decided {
    matched: bool,
    /// Rows that go.
    removed: HashSet<usize>,
    /// Rows that become something else.
    replaced: Vec<(usize, Document)>,
}

impl Run<'_, '_> {
    fn run(&mut self) -> Result<()> {
        let Some(range) = self.search.range() else {
            return Ok(());
        };
        let together = match self.selection.multi {
            true => CHANGE_BATCH_BUCKETS_MAX,
            false => 1,
        };
        let mut found = Vec::new();
        let mut looked_at = 0;
        let buckets = self
            .timeseries
            .buckets_of(self.collection, &self.selection, range)?;
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

    /// True if something in the bucket matches. Buckets without a match are left to their writers.
    fn is_candidate(&mut self, bucket: &StoredBucket) -> Result<bool> {
        if self.made.contains(&bucket.id().0) || !self.search.may_match(bucket)? {
            return Ok(false);
        }
        self.stats.unpacked += 1;
        let rows = self.search.rows(bucket, 1, &self.selection.eval)?;
        Ok(!rows.is_empty())
    }

    /// Changes the buckets, in one engine batch if it does not grow too large; true when the one
    /// measurement that was meant has been found.
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
            if !self.search.may_match(&bucket)? {
                continue;
            }
            let decided = self.decide(&bucket)?;
            let matched = decided.matched;
            let before = moved.len();
            self.rewrite(&mut changes, &document, &bucket, decided, &mut moved)?;
            let new = moved.iter().skip(before);
            moved_bytes += new
                .map(|one: &Moved| one.document.as_bytes().len())
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

    fn commit(&mut self, mut changes: BucketChanges<'_>, moved: &[Moved]) -> Result<()> {
        let ids = pack::pack(
            self.timeseries,
            &mut changes,
            self.options,
            &self.layout,
            moved,
        )?;
        self.made.extend(ids);
        changes.commit(self.catalog, Durability::Buffered)
    }

    /// Asks about the rows that match.
    fn decide(&mut self, bucket: &StoredBucket) -> Result<Decided> {
        let limit = if self.selection.multi { usize::MAX } else { 1 };
        let rows = self.search.rows(bucket, limit, &self.selection.eval)?;
        self.stats.matched += u64::try_from(rows.len()).unwrap_or(u64::MAX);
        let mut decided = Decided {
            matched: !rows.is_empty(),
            ..Decided::default()
        };
        let ask = match &mut self.action {
            MeasurementAction::Remove => {
                decided.removed = rows.into_iter().collect();
                return Ok(decided);
            }
            MeasurementAction::Decide(ask) => ask,
        };
        let documents = Rows::of(bucket, self.options, None)?;
        for row in rows {
            match ask(&documents.document(row))? {
                MeasurementFate::Keep => {}
                MeasurementFate::Remove => {
                    decided.removed.insert(row);
                }
                MeasurementFate::Replace(after) => decided.replaced.push((row, after)),
            }
        }
        Ok(decided)
    }

    /// Writes what was decided about a bucket; what cannot stay in it goes to `moved`.
    fn rewrite(
        &self,
        changes: &mut BucketChanges<'_>,
        document: &Document,
        bucket: &StoredBucket,
        decided: Decided,
        moved: &mut Vec<Moved>,
    ) -> Result<()> {
        let id = bucket.id().0;
        if decided.replaced.is_empty() && decided.removed.is_empty() {
            return Ok(());
        }
        if decided.removed.len() == bucket.count() {
            changes.remove(id)?;
            return Ok(());
        }
        let parsed = BucketDocument::parse(document.as_ref(), &self.options.time_field)?;
        let start_ms = parsed.start_ms(&self.options.time_field)?;
        let series = SeriesMeta::of(parsed.meta);
        // What may stay, by row; what has to leave.
        let (mut staying, mut leaving) = (Vec::new(), Vec::new());
        for (row, after) in decided.replaced {
            let (meta, measurement) = examine(after.as_ref(), self.options)?;
            let (meta, time_ms) = (SeriesMeta::of_element(meta), measurement.time_ms);
            let fits = self.options.spans(start_ms, time_ms) && meta == series;
            let one = Moved {
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
            None => changes.remove(id)?,
        }
        moved.extend(leaving.into_iter().map(|(_, one)| one));
        Ok(())
    }

    /// The bucket without the rows that are gone and with others in their place; `None` if nothing
    /// is left.
    fn assemble(
        &self,
        document: &Document,
        bucket: &StoredBucket,
        (id, start_ms): ([u8; 12], i64),
        gone: &HashSet<usize>,
        replaced: &[(usize, Moved)],
    ) -> Result<Option<assemble::Assembled>> {
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
        let parts = Parts {
            bucket: Some((document, bucket)),
            in_place: !reordered && rows.len() == bucket.count(),
            rows: &rows,
            layout: &self.layout,
            meta_field: self.options.meta_field.as_deref(),
        };
        parts.assemble(id, start_ms, bucket.meta()).map(Some)
    }
}

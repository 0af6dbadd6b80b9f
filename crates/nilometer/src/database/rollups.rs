//! Refreshing rollups: bins that have closed are computed and stored, dirty ones are computed again.
//!
//! ```text
//! begin  a new generation, and the time up to which bins are closed, under the list's write lock:
//!        writers of earlier generations have committed, later ones mark what they change below that time
//! extend bins that have closed since, chunk by chunk in order of time
//! fold   marks of earlier generations, series by series; each batch stores bins and removes their marks
//! freeze before measurements or bins expire, what stands on them is complete, and keeps its value
//! ```
//!
//! A reader sees the header, the marks and the bins of one snapshot, so it may read at any moment. A crash leaves marks to
//! fold, and bins beyond the header that the next refresh removes.

mod bin_batch;
mod fold;
mod indexes;
mod schedule;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nilometer_bson::{DocRef, Document, ValueRef, doc};
use nilometer_storage::{Durability, Engine, WriteBatch};

use crate::catalog::{Catalog, Collection, Namespace, RollupProgress, StoredRollup};
use crate::database::collections::StoredCollections;
use crate::error::{Error, ErrorCode, Result};
use crate::eval::ParseContext;
use crate::operation::OperationContext;
use crate::query::QueryServices;
use crate::query::exec::build::Builder;
use crate::query::exec::{BoxOperator, ExecContext, ExecSettings, live_bins};
use crate::query::pipeline::{PipelineContext, parse_pipeline};
use crate::query::planner;
use crate::query::planner::logical::{LogicalPlan, LogicalSource};
use crate::query::planner::resolve::measurements;
use crate::query::source::RollupSource;
use crate::rollup::RollupView;
use crate::rollup::view::{KEY_FIELD, TimeSpan, put_header, put_mark, put_version};
use crate::services::Services;

use self::bin_batch::BinBatch;
pub(crate) use self::schedule::{freezing, schedule};

/// Bytes of bins in one engine batch.
const BATCH_BYTES_MAX: u64 = 1 << 20;

/// Bytes of a stored bin. A larger one stays dirty, and is computed when it is read.
const BIN_BYTES_MAX: usize = 4 << 20;

/// Bins of time that one computation covers, at most and at first.
const CHUNK_BINS_MAX: usize = 1 << 16;
const CHUNK_BINS_FIRST: usize = 16;

/// Groups that one computation should return.
const CHUNK_GROUPS: usize = 4_096;

/// Attempts to fold the marks before a freeze, while writers add others.
const FREEZE_ATTEMPTS: usize = 8;

/// Counts of all refreshes.
#[derive(Debug, Default)]
pub(crate) struct RollupCounters {
    refreshes: AtomicU64,
    failed: AtomicU64,
    bins_stored: AtomicU64,
    marks_folded: AtomicU64,
}

impl RollupCounters {
    /// Returns the counts for `serverStatus`.
    pub(crate) fn to_document(&self) -> Document {
        let count = |of: &AtomicU64| i64::try_from(of.load(Ordering::Relaxed)).unwrap_or(i64::MAX);
        doc! {
            "refreshes": count(&self.refreshes),
            "failedRefreshes": count(&self.failed),
            "binsStored": count(&self.bins_stored),
            "marksFolded": count(&self.marks_folded),
        }
    }
}

/// The time up to which a refresh stores bins.
#[derive(Clone, Copy)]
pub(crate) enum RefreshExtent {
    /// All bins that have closed.
    Closed,
    /// The same. Bins of a rollup over a rollup that is refreshed as often or more often close no earlier than those below
    /// are stored, so that each measurement is read once.
    StoredBelow,
    /// All bins that have closed, and all that start before this time in ms.
    AtLeast(i64),
}

/// Computes and stores the bins of rollups.
#[derive(Clone)]
pub(crate) struct RollupRefresher {
    pub(crate) services: Arc<Services>,
    pub(crate) collections: Arc<StoredCollections>,
    settings: Arc<ExecSettings>,
    pub(crate) counters: Arc<RollupCounters>,
}

/// Called between two steps: waits, or fails to end the work.
pub(crate) type Pace<'p> = &'p dyn Fn() -> Result<()>;

impl RollupRefresher {
    pub(crate) fn new(
        services: Arc<Services>,
        collections: Arc<StoredCollections>,
        query: &QueryServices,
    ) -> Self {
        let settings = ExecSettings {
            ids: Arc::clone(&query.ids),
            limits: query.limits,
            memory: Arc::clone(&query.memory),
            spill: query.spill.clone(),
            plans: Arc::clone(&query.plans),
            ..ExecSettings::default()
        };
        Self {
            services,
            collections,
            settings: Arc::new(settings),
            counters: Arc::default(),
        }
    }

    fn catalog(&self) -> &Catalog {
        &self.collections.catalog
    }

    fn engine(&self) -> &dyn Engine {
        &*self.collections.engine
    }

    /// Refreshes a rollup.
    pub(crate) fn refresh(
        &self,
        namespace: &Namespace,
        rollup: &Arc<StoredRollup>,
        extent: RefreshExtent,
        pace: Pace<'_>,
    ) -> Result<()> {
        let _refreshing = rollup.lock_refresh();
        let run = self.run(namespace, rollup, pace)?;
        let refreshed = run.store_and_fold(extent);
        let counter = match refreshed {
            Ok(()) => &self.counters.refreshes,
            Err(_) => &self.counters.failed,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        refreshed
    }

    /// Completes what stands directly on `name` and keeps its bins that start before `cutoff_ms`: what they are computed
    /// from is about to expire. False if writers kept changing them; then nothing may expire yet.
    pub(crate) fn freeze(&self, name: &Namespace, cutoff_ms: i64, pace: Pace<'_>) -> Result<bool> {
        for namespace in self.catalog().rollups_on(name) {
            let Some(rollup) = self.catalog().rollup(&namespace) else {
                continue;
            };
            let has_bins = rollup.progress().closed_ms != i64::MIN;
            if !has_bins && self.collections.rollup(&namespace, &rollup).is_err() {
                // It was created before the series, does not fit to it, and has nothing to keep.
                continue;
            }
            let _refreshing = rollup.lock_refresh();
            let run = self.run(&namespace, &rollup, pace)?;
            if !run.freeze(cutoff_ms)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Freezes the rollups on a time series before its measurements expire. False if writers kept changing them; then nothing
    /// may expire yet.
    pub(crate) fn freeze_series(
        &self,
        collection: &Arc<Collection>,
        cutoff_ms: i64,
        pace: Pace<'_>,
    ) -> Result<bool> {
        match collection.namespace.timeseries_view() {
            Some(name) if !collection.rollups.lock_shared().is_empty() => {
                self.freeze(&name, cutoff_ms, pace)
            }
            _ => Ok(true),
        }
    }

    /// Removes the expired bins of a rollup.
    pub(crate) fn expire(
        &self,
        namespace: &Namespace,
        rollup: &Arc<StoredRollup>,
        pace: Pace<'_>,
    ) -> Result<()> {
        let Some(seconds) = rollup.options().expire_after_seconds else {
            return Ok(());
        };
        let after_ms = seconds.saturating_mul(1000);
        let cutoff_ms = self.services.clock.now_ms().saturating_sub(after_ms);
        let source = self.collections.rollup(namespace, rollup)?;
        let cutoff_ms = source.definition.bins.floor(cutoff_ms);
        if cutoff_ms <= rollup.progress().expired_ms || !self.freeze(namespace, cutoff_ms, pace)? {
            return Ok(());
        }
        let _refreshing = rollup.lock_refresh();
        let run = self.run(namespace, rollup, pace)?;
        run.change_progress(|progress| progress.expired_ms = cutoff_ms)?;
        run.delete_bins((i64::MIN, cutoff_ms))
    }

    fn run<'r>(
        &'r self,
        namespace: &Namespace,
        rollup: &'r Arc<StoredRollup>,
        pace: Pace<'r>,
    ) -> Result<RefreshRun<'r>> {
        let clock = Arc::clone(&self.services.clock);
        let collections: Arc<StoredCollections> = Arc::clone(&self.collections);
        Ok(RefreshRun {
            refresher: self,
            source: self.collections.rollup(namespace, rollup)?,
            rollup,
            namespace: namespace.clone(),
            operation: OperationContext::internal(clock, &namespace.database),
            builder: Builder {
                collections,
                database: namespace.database.as_str().into(),
                collection: None,
                settings: Arc::clone(&self.settings),
                depth: 0,
            },
            pace,
        })
    }
}

/// The refresh of one rollup, while its lock is held.
struct RefreshRun<'r> {
    refresher: &'r RollupRefresher,
    rollup: &'r Arc<StoredRollup>,
    namespace: Namespace,
    source: Arc<RollupSource>,
    operation: OperationContext,
    builder: Builder,
    pace: Pace<'r>,
}

impl RefreshRun<'_> {
    /// Stores the bins of an extent, and folds all marks.
    fn store_and_fold(&self, extent: RefreshExtent) -> Result<()> {
        self.rollup.take_touch();
        let target = self.end_of(extent)?;
        let generation = self.begin(target)?;
        self.extend(target)?;
        self.fold(generation)
    }

    /// Returns the time before which bins are stored.
    fn end_of(&self, extent: RefreshExtent) -> Result<i64> {
        match extent {
            RefreshExtent::Closed => self.closed_time(),
            RefreshExtent::AtLeast(time_ms) => Ok(self.closed_time()?.max(time_ms)),
            RefreshExtent::StoredBelow => match self.parent_as_often() {
                None => self.closed_time(),
                Some(parent) => self.closed_by(parent),
            },
        }
    }

    /// Returns the time before which bins have closed by what the rollup below has stored.
    fn closed_by(&self, parent: &StoredRollup) -> Result<i64> {
        drop(parent.lock_refresh());
        if parent.is_touched() {
            // It will store more.
            self.rollup.touch();
        }
        let stored_ms = RollupView::open(self.refresher.engine(), parent)?
            .progress
            .closed_ms;
        // The newest measurement is later than the bins that are stored, at least by the lateness of the rollup below.
        let lateness_ms = self.rollup.options().lateness_ms;
        let more_ms = lateness_ms.saturating_sub(parent.options().lateness_ms);
        let closed_ms = stored_ms.saturating_sub(more_ms.max(0));
        Ok(self.source.definition.bins.floor(closed_ms))
    }

    /// Returns the rollup below if it is refreshed as often as this one, or more often.
    fn parent_as_often(&self) -> Option<&StoredRollup> {
        let parent = &*self.source.parent.as_ref()?.stored;
        let refresh_ms = parent.options().refresh_ms;
        (refresh_ms > 0 && refresh_ms <= self.rollup.options().refresh_ms).then_some(parent)
    }

    /// Returns the time before which bins are closed.
    fn closed_time(&self) -> Result<i64> {
        let now_ms = self.refresher.services.clock.now_ms();
        let lateness_ms = self.rollup.options().lateness_ms;
        Ok(match self.edge(-1)? {
            Some(newest) => {
                if newest > now_ms {
                    // More bins close as time passes.
                    self.rollup.touch();
                }
                let newest = newest.min(now_ms);
                let bins = &self.source.definition.bins;
                bins.floor(newest.saturating_sub(lateness_ms))
            }
            None => i64::MIN,
        })
    }

    /// Returns the time of the first measurement in an order of the time.
    fn edge(&self, order: i32) -> Result<Option<i64>> {
        let field = &*self.source.definition.series_time_field;
        let by = |value: i32| {
            let mut out = nilometer_bson::DocumentBuilder::new();
            out.append(field, value);
            out.finish()
        };
        let stages = [
            doc! {"$sort": by(order)},
            doc! {"$limit": 1},
            doc! {"$project": by(1)},
        ];
        let context = PipelineContext::top(ParseContext::new());
        let stages = parse_pipeline(&context, stages.iter().map(Document::as_ref))?;
        let series = Arc::clone(&self.source.series);
        let scan = measurements(series, self.source.series_namespace.clone());
        let plan = LogicalPlan::new(LogicalSource::Measurements(Box::new(scan)), stages);
        let plan = planner::optimize(plan, self.builder.settings.choice(None))?;
        let mut found = None;
        self.each_row(self.builder.build(plan)?, &mut |row| {
            found = match row.get(field) {
                ValueRef::DateTime(at) => Some(at),
                _ => None,
            };
            Ok(())
        })?;
        Ok(found)
    }

    /// Passes all rows of an operator to `add`.
    fn each_row(
        &self,
        mut operator: BoxOperator,
        add: &mut dyn FnMut(Document) -> Result<()>,
    ) -> Result<()> {
        let settings = Arc::clone(&self.builder.settings);
        let cx = ExecContext::new(&self.operation, &settings);
        while let Some(batch) = operator.next(&cx)? {
            batch.into_rows()?.into_iter().try_for_each(&mut *add)?;
        }
        Ok(())
    }

    /// Begins a generation in which bins that start before `target` are closed. Returns its number.
    fn begin(&self, target: i64) -> Result<u64> {
        let Some(list) = self.rollup.list() else {
            return Err(gone());
        };
        let _writers = list.lock_exclusive();
        let mut progress = self.rollup.progress();
        progress.generation += 1;
        progress.closed_ms = progress.closed_ms.max(target);
        self.rollup.set_progress(progress);
        Ok(progress.generation)
    }

    fn view(&self) -> Result<RollupView> {
        RollupView::open(self.refresher.engine(), self.rollup)
    }

    fn catalog(&self) -> &Catalog {
        self.refresher.catalog()
    }

    fn commit_batch(&self, batch: WriteBatch) -> Result<()> {
        if !batch.is_empty() {
            self.refresher
                .engine()
                .commit(batch, Durability::Buffered)?;
        }
        Ok(())
    }

    /// Commits a batch that changes bins, if it does, with another version of them.
    fn commit_bins(&self, mut batch: WriteBatch) -> Result<()> {
        if !batch.is_empty() {
            // Two processes that both believed to be the writer never choose the same.
            let version = self.refresher.services.ids.random();
            put_version(&mut batch, self.rollup, version);
        }
        self.commit_batch(batch)
    }

    /// Stores the bins that have closed since the last refresh.
    fn extend(&self, target: i64) -> Result<()> {
        let mut header = self.view()?.progress;
        if target <= header.closed_ms {
            return Ok(());
        }
        // What a refresh that did not end has left.
        self.delete_bins((header.closed_ms, i64::MAX))?;
        let bins = &self.source.definition.bins;
        let mut from = header.closed_ms;
        if from == i64::MIN {
            from = self.edge(1)?.map_or(target, |first| bins.floor(first));
            if from >= target {
                // The bins are empty, and closed like others.
                self.store_span((target, target), &mut header)?;
            }
        }
        let mut chunk = CHUNK_BINS_FIRST;
        while from < target {
            (self.pace)()?;
            let mut to = from;
            for _ in 0..chunk {
                to = bins.next(to).min(target);
                if to >= target {
                    break;
                }
            }
            match self.store_span((from, to), &mut header) {
                Ok(groups) if groups > CHUNK_GROUPS => chunk = (chunk / 2).max(1),
                Ok(groups) if groups < CHUNK_GROUPS / 4 => chunk = (chunk * 2).min(CHUNK_BINS_MAX),
                Ok(_) => {}
                Err(error) if is_memory(&error) && chunk > 1 => {
                    chunk = (chunk / 4).max(1);
                    continue;
                }
                Err(error) => return Err(error),
            }
            from = to;
        }
        Ok(())
    }

    /// Stores the bins of a span, and then that they are closed. Returns their number.
    fn store_span(&self, span: TimeSpan, header: &mut RollupProgress) -> Result<usize> {
        let (mut out, mut groups) = (self.new_batch()?, 0);
        let operator = live_bins(&self.builder, &self.source, span, None, None, false)?;
        self.each_row(operator, &mut |bin| {
            groups += 1;
            self.store(&mut out, bin)?;
            if out.batch.bytes() > BATCH_BYTES_MAX {
                self.commit(std::mem::replace(&mut out, self.new_batch()?))?;
            }
            Ok(())
        })?;
        header.closed_ms = span.1;
        let known = self.rollup.progress();
        header.generation = known.generation;
        header.has_arrays = known.has_arrays;
        put_header(&mut out.batch, self.rollup, header);
        self.commit(out)?;
        self.count_stored(groups);
        Ok(groups)
    }

    fn count_stored(&self, bins: usize) {
        let counter = &self.refresher.counters.bins_stored;
        counter.fetch_add(bins as u64, Ordering::Relaxed);
    }

    /// Adds a bin to a batch. A large one, and one that cannot be indexed, stays dirty.
    fn store(&self, out: &mut BinBatch, bin: Document) -> Result<()> {
        let definition = &self.source.definition;
        let key = bin.get(KEY_FIELD).as_document().unwrap_or(DocRef::EMPTY);
        let start = definition
            .time_of(key)
            .ok_or_else(|| Error::new(ErrorCode::InternalError, "a bin of a rollup has no time"))?;
        if definition.has_arrays(key) && !self.rollup.progress().has_arrays {
            self.note_arrays()?;
        }
        if bin.as_bytes().len() <= BIN_BYTES_MAX
            && let Some(shown) = self.indexed(out, bin.as_ref())?
        {
            return self.put(out, start, bin, shown);
        }
        let span = (start, definition.bins.next(start));
        let generation = self.rollup.progress().generation;
        put_mark(
            &mut out.batch,
            self.rollup,
            generation,
            span,
            Some(&key.to_document()),
        );
        Ok(())
    }

    /// Stores, before such a bin, that a key has an array.
    fn note_arrays(&self) -> Result<()> {
        self.change_progress(|progress| progress.has_arrays = true)
    }

    /// Changes the header, and what writers know of it.
    fn change_progress(&self, change: impl Fn(&mut RollupProgress)) -> Result<()> {
        let Some(list) = self.rollup.list() else {
            return Err(gone());
        };
        let _writers = list.lock_exclusive();
        self.change_locked(self.view()?.progress, change)
    }

    /// The same, of the header that is stored. The caller holds the list for writing.
    fn change_locked(
        &self,
        mut header: RollupProgress,
        change: impl Fn(&mut RollupProgress),
    ) -> Result<()> {
        change(&mut header);
        let mut batch = WriteBatch::new();
        put_header(&mut batch, self.rollup, &header);
        self.commit_batch(batch)?;
        let mut known = self.rollup.progress();
        change(&mut known);
        self.rollup.set_progress(known);
        Ok(())
    }

    /// Keeps the bins that start before `cutoff_ms`; false if writers kept changing them.
    fn freeze(&self, cutoff_ms: i64) -> Result<bool> {
        let frozen_ms = self.source.definition.bins.ceil(cutoff_ms);
        if frozen_ms <= self.rollup.progress().frozen_ms {
            return Ok(true);
        }
        for _ in 0..FREEZE_ATTEMPTS {
            self.store_and_fold(RefreshExtent::AtLeast(frozen_ms))?;
            let Some(list) = self.rollup.list() else {
                return Err(gone());
            };
            let _writers = list.lock_exclusive();
            let view = self.view()?;
            let first = view.marks()?.next().transpose()?;
            if first.is_some_and(|mark| mark.span.0 < frozen_ms) {
                continue;
            }
            self.change_locked(view.progress, |progress| progress.frozen_ms = frozen_ms)?;
            return Ok(true);
        }
        Ok(false)
    }
}

/// True if a query had too little memory.
fn is_memory(error: &Error) -> bool {
    matches!(
        error.code,
        ErrorCode::ExceededMemoryLimit | ErrorCode::QueryExceededMemoryLimitNoDiskUseAllowed
    )
}

fn gone() -> Error {
    Error::new(
        ErrorCode::NamespaceNotFound,
        "the source of the rollup is gone",
    )
}

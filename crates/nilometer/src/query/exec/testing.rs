//! In-memory collections for tests: ordinary ones, and time-series ones with buckets of any kind.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nilometer_bson::block::ColumnBlock;
use nilometer_bson::column::values_at_path;
use nilometer_bson::order::compare;
use nilometer_bson::{DocRef, Document, DocumentBuilder, ObjectId, Value, ValueRef};

use super::{ExecContext, ExecLimits, ExecSettings, Executor};
use crate::error::{ErrorCode, Result};
use crate::eval::Collation;
use crate::eval::ParseContext;
use crate::eval::accumulator::ColumnTotal;
use crate::operation::{OperationContext, SystemClock};
use crate::query::exec::build::Builder;
use crate::query::exec::workers::{QueryThreads, Workers};
use crate::query::pipeline::{PipelineContext, parse_pipeline_value};
use crate::query::planner::settings::{PlanOptions, PlanSettings};
use crate::query::source::*;
use crate::session::UserName;

/// Documents in key order.
pub(crate) struct MemoryRecords(pub(crate) Vec<Document>);

/// Returns the key of the document at a position: some numbers between are missing.
fn memory_key(at: usize) -> RecordKey {
    let id = at as u64 + 1 + at as u64 / 1000 * 5000;
    id.to_be_bytes().to_vec()
}

impl RecordSource for MemoryRecords {
    fn scan(&self, scan: &RecordScanOptions) -> Result<RecordIter> {
        let keyed = self.0.iter().enumerate();
        let is_backward = scan.direction == Direction::Backward;
        let follows = |key: &RecordKey| match &scan.start_after {
            Some(after) if is_backward => key < after,
            Some(after) => key > after,
            None => true,
        };
        let is_wanted = |key: &RecordKey| {
            scan.min.as_ref().is_none_or(|min| key >= min)
                && scan.max.as_ref().is_none_or(|max| key <= max)
                && follows(key)
        };
        let mut all: Vec<(RecordKey, Document)> = keyed
            .map(|(at, document)| (memory_key(at), document))
            .filter(|(key, _)| is_wanted(key))
            .map(|(key, document)| (key, document.clone()))
            .collect();
        if is_backward {
            all.reverse();
        }
        Ok(Box::new(all.into_iter().map(Ok)))
    }

    fn key_behind(&self, key: &RecordKey, count: u64) -> Option<RecordKey> {
        let id = u64::from_be_bytes(*key.first_chunk()?);
        Some(id.saturating_add(count).to_be_bytes().to_vec())
    }

    fn count_estimate(&self) -> Result<u64> {
        Ok(self.0.len() as u64)
    }
}

/// A bucket built from measurements.
pub(crate) struct MemoryBucket {
    id: ObjectId,
    meta: Value,
    count: u32,
    version: i32,
    names: Vec<Arc<str>>,
    /// Column positions in display order.
    shown: Vec<usize>,
    columns: BTreeMap<Arc<str>, Arc<ColumnBlock>>,
    bounds: BTreeMap<Arc<str>, (Value, Value)>,
    read: Arc<AtomicU64>,
}

impl BucketHeader for MemoryBucket {
    fn id(&self) -> ObjectId {
        self.id
    }

    fn meta(&self) -> ValueRef<'_> {
        self.meta.as_ref()
    }

    fn meta_id(&self) -> Option<NonZeroU64> {
        let ValueRef::Document(meta) = self.meta.as_ref() else {
            return None;
        };
        NonZeroU64::new(xxhash_rust::xxh3::xxh3_64(meta.as_bytes()))
    }

    fn known_constants_id(&self) -> Option<NonZeroU64> {
        // For some buckets the number is not computed yet.
        let number = (!self.count.is_multiple_of(2)).then(|| self.constants_id());
        number.and_then(|number| number.ok().flatten())
    }

    fn constants(&self) -> Result<Document> {
        let mut out = DocumentBuilder::new();
        for (name, column) in &self.columns {
            if let Some(value) = column.common_value() {
                out.append(name, value);
            }
        }
        Ok(out.finish())
    }

    fn min(&self, field: &str) -> ValueRef<'_> {
        self.bounds
            .get(field)
            .map_or(ValueRef::Missing, |(min, _)| min.as_ref())
    }

    fn max(&self, field: &str) -> ValueRef<'_> {
        self.bounds
            .get(field)
            .map_or(ValueRef::Missing, |(_, max)| max.as_ref())
    }

    fn count(&self) -> u32 {
        self.count
    }
}

impl Bucket for MemoryBucket {
    fn version(&self) -> i32 {
        self.version
    }

    fn is_sorted(&self) -> bool {
        self.version == 2
    }

    fn columns(&self) -> &[Arc<str>] {
        &self.names
    }

    fn place_shown(&self, nth: usize) -> Option<usize> {
        self.shown.get(nth).copied()
    }

    fn column_at(&self, at: usize) -> Result<Option<&Arc<ColumnBlock>>> {
        self.read.fetch_add(1, Ordering::Relaxed);
        let name = self.names.get(at);
        Ok(name.and_then(|name| self.columns.get(name)))
    }

    fn path_at(&self, at: usize, below: &str) -> Result<Option<Arc<ColumnBlock>>> {
        let column = self.column_at(at)?;
        Ok(column.and_then(|column| values_at_path(column, below).map(Arc::new)))
    }

    fn has_column_at(&self, _: usize) -> bool {
        true
    }

    fn total_at(&self, at: usize) -> Result<Option<ColumnTotal>> {
        let column = self.column_at(at)?;
        Ok(column.and_then(|column| ColumnTotal::of(column)))
    }

    fn has_total_at(&self, at: usize) -> bool {
        // For some buckets the total is not known yet.
        let is_known = !self.count.is_multiple_of(3);
        is_known && matches!(self.total_at(at), Ok(Some(_)))
    }

    fn total_of_first(&self, at: usize, count: usize) -> Result<Option<ColumnTotal>> {
        // For some buckets the column costs less.
        let column = match self.count.is_multiple_of(5) {
            true => None,
            false => self.column_at(at)?,
        };
        let values = column.map(|column| column.iter().take(count).map(ValueRef::to_value));
        let first = values.map(|values| ColumnBlock::from_values(&values.collect::<Vec<_>>()));
        Ok(first.as_ref().and_then(ColumnTotal::of))
    }

    fn constants_id(&self) -> Result<Option<NonZeroU64>> {
        let constants = self.constants()?;
        let hash = xxhash_rust::xxh3::xxh3_64(constants.as_bytes());
        Ok(NonZeroU64::new(hash).filter(|_| !constants.is_empty()))
    }
}

/// A time-series collection: measurements are cut into buckets of a fixed count in input order.
pub(crate) struct MemoryBuckets {
    options: BucketOptions,
    buckets: Vec<Arc<MemoryBucket>>,
    /// Number of columns read.
    pub(crate) columns_read: Arc<AtomicU64>,
}

impl MemoryBuckets {
    /// Creates buckets of at most `most` measurements of one series (equal metadata) within an hour.
    pub(crate) fn new(measurements: &[Document], most: usize) -> Self {
        let mut open: Vec<(Value, i64, Vec<Document>)> = Vec::new();
        for measurement in measurements {
            let meta = measurement.get("m").to_value();
            let ValueRef::DateTime(at) = measurement.get("t") else {
                panic!("a measurement without a time")
            };
            let hour = at.div_euclid(SPAN_MS);
            let found = open.iter_mut().rev().find(|(known, of, list)| {
                *of == hour && list.len() < most && compare(known.as_ref(), meta.as_ref()).is_eq()
            });
            match found {
                Some((_, _, list)) => list.push(measurement.clone()),
                None => open.push((meta, hour, vec![measurement.clone()])),
            }
        }
        open.sort_by_key(|(_, hour, _)| *hour);
        let read = Arc::<AtomicU64>::default();
        let buckets = open.into_iter().enumerate();
        let mut buckets: Vec<Arc<MemoryBucket>> = buckets
            .map(|(at, (meta, _, list))| Arc::new(bucket(at, meta, &list, &read)))
            .collect();
        // In id order, as in any scan.
        buckets.sort_by_key(|bucket| bucket.id.0);
        let extended_range = measurements.iter().any(|m| {
            !matches!(m.get("t"), ValueRef::DateTime(at) if (0..=i64::from(i32::MAX) * 1000).contains(&at))
        });
        Self {
            options: BucketOptions {
                time_field: "t".into(),
                meta_field: Some("m".into()),
                bucket_max_span_seconds: SPAN_MS / 1000,
                bucket_rounding_seconds: 60,
                extended_range,
                mixed_schema: false,
                // Buckets never cross the hour.
                fixed_buckets: measurements.len().is_multiple_of(2),
                collation: Collation::SIMPLE,
            },
            buckets,
            columns_read: read,
        }
    }

    /// Returns the same buckets in a collection with this maximum bucket span.
    pub(crate) fn promising(mut self, max_span_seconds: i64) -> Self {
        self.options.bucket_max_span_seconds = max_span_seconds;
        self
    }

    /// Returns the bucket that is read first.
    pub(crate) fn first_bucket(&self) -> Arc<dyn Bucket> {
        Arc::clone(&self.buckets[0]) as Arc<dyn Bucket>
    }

    /// Returns all measurements, in bucket order.
    pub(crate) fn measurements(&self) -> Vec<Document> {
        let mut all = Vec::new();
        for bucket in &self.buckets {
            for row in 0..bucket.count as usize {
                let mut out = DocumentBuilder::new();
                out.append_ref("t", bucket.columns["t"].value(row));
                out.append_ref("m", bucket.meta.as_ref());
                let names = shown_columns(&**bucket).map(|(_, name)| name);
                for name in names.filter(|n| &***n != "t") {
                    out.append_ref(name, bucket.columns[name].value(row));
                }
                all.push(out.finish());
            }
        }
        all
    }
}

const SPAN_MS: i64 = 3_600_000;

fn bucket(at: usize, meta: Value, list: &[Document], read: &Arc<AtomicU64>) -> MemoryBucket {
    let mut names: Vec<Arc<str>> = vec!["t".into()];
    for document in list {
        for element in document.iter() {
            if element.name() != "m" && !names.iter().any(|n| &**n == element.name()) {
                names.push(element.name().into());
            }
        }
    }
    let mut columns = BTreeMap::new();
    let mut bounds = BTreeMap::new();
    for name in &names {
        let values: Vec<Value> = list.iter().map(|d| d.get(name).to_value()).collect();
        bounds.extend(bounds_of(&values).map(|bounds| (Arc::clone(name), bounds)));
        // Covers longs stored in 16 bits and in 64 bits.
        let column = match ColumnBlock::from_values(&values) {
            column if at.is_multiple_of(2) => column.shortened(),
            column => column,
        };
        columns.insert(Arc::clone(name), Arc::new(column));
    }
    let times: Vec<i64> = list
        .iter()
        .map(|d| match d.get("t") {
            ValueRef::DateTime(at) => at,
            _ => 0,
        })
        .collect();
    let least = times.iter().copied().min().unwrap_or(0);
    // Rounded towards 1970, as stored.
    let rounded = least / 60_000 * 60_000;
    if let Some((min, _)) = bounds.get_mut("t") {
        *min = Value::DateTime(rounded);
    }
    let mut id = [0; 12];
    id[..4].copy_from_slice(&((rounded.div_euclid(1000)) as u32).to_be_bytes());
    id[4..].copy_from_slice(&(at as u64).to_be_bytes());
    let mut by_place = names.clone();
    by_place.sort();
    let shown = names.iter().map(|name| place_of(&by_place, name).unwrap());
    MemoryBucket {
        shown: shown.collect(),
        id: ObjectId(id),
        meta,
        count: u32::try_from(list.len()).unwrap(),
        version: if times.is_sorted() { 2 } else { 3 },
        names: by_place,
        columns,
        bounds,
        read: Arc::clone(read),
    }
}

/// Returns bounds as buckets store them: objects and arrays member by member, other types by value.
fn bounds_of(values: &[Value]) -> Option<(Value, Value)> {
    let present = values.iter().filter(|v| !v.is_missing());
    let order = |a: &&Value, b: &&Value| compare(a.as_ref(), b.as_ref());
    let min = present.clone().min_by(order)?.clone();
    let max = present.clone().max_by(order)?.clone();
    let members = |value: &Value| match value {
        Value::Document(d) => Some(d.clone()),
        _ => None,
    };
    let Some(documents) = values
        .iter()
        .filter(|v| !v.is_missing())
        .map(members)
        .collect::<Option<Vec<_>>>()
    else {
        return Some((min, max));
    };
    let mut names: Vec<String> = Vec::new();
    for element in documents.iter().flat_map(Document::iter) {
        if !names.iter().any(|n| n == element.name()) {
            names.push(element.name().to_owned());
        }
    }
    let (mut low, mut high) = (DocumentBuilder::new(), DocumentBuilder::new());
    for name in &names {
        let inner: Vec<Value> = documents.iter().map(|d| d.get(name).to_value()).collect();
        if let Some((min, max)) = bounds_of(&inner) {
            low.append(name, min);
            high.append(name, max);
        }
    }
    Some((low.finish().into(), high.finish().into()))
}

impl BucketSource for MemoryBuckets {
    fn options(&self) -> &BucketOptions {
        &self.options
    }

    fn scan(&self, scan: &BucketScanOptions) -> Result<BucketIter> {
        let mut chosen = VecDeque::new();
        for bucket in &self.buckets {
            let id = bucket.id.0;
            if scan.id_min.is_some_and(|min| id < min) || scan.id_max.is_some_and(|max| id > max) {
                continue;
            }
            scan.examined.documents.fetch_add(1, Ordering::Relaxed);
            chosen.push_back(Arc::clone(bucket));
        }
        if scan.direction == Direction::Backward {
            chosen = chosen.into_iter().rev().collect();
        }
        Ok(Box::new(MemoryScan(chosen)))
    }

    fn bucket_ids(&self, at_most: usize) -> Result<Option<Vec<[u8; 12]>>> {
        let ids = self.buckets.iter().map(|bucket| bucket.id.0);
        Ok((self.buckets.len() <= at_most).then(|| ids.collect()))
    }

    fn bucket_count_estimate(&self) -> Result<u64> {
        Ok(self.buckets.len() as u64)
    }
}

/// The buckets of a scan that are left.
struct MemoryScan(VecDeque<Arc<MemoryBucket>>);

/// Buckets in a run, at most.
const RUN_MAX: usize = 7;

impl Buckets for MemoryScan {
    fn next(&mut self) -> Option<Result<Arc<dyn Bucket>>> {
        Some(Ok(self.0.pop_front()?))
    }

    fn next_run(
        &mut self,
        accept: &mut dyn FnMut(&dyn BucketRun) -> Result<usize>,
    ) -> Result<Option<Box<dyn BucketRun>>> {
        let Some(first) = self.0.front() else {
            return Ok(None);
        };
        let same = self.0.iter().take_while(|next| next.names == first.names);
        let mut run = MemoryRun::of(same.take(RUN_MAX).cloned().collect());
        let count = accept(&run)?;
        if count == 0 {
            return Ok(None);
        }
        run.buckets.truncate(count);
        self.0.drain(..count);
        Ok(Some(Box::new(MemoryRun::of(run.buckets))))
    }
}

/// Buckets with the same columns.
struct MemoryRun {
    buckets: Vec<Arc<MemoryBucket>>,
    /// The bounds of each column, if they are dates.
    dates: Vec<Option<Vec<[i64; 2]>>>,
}

impl MemoryRun {
    fn of(buckets: Vec<Arc<MemoryBucket>>) -> Self {
        let dates = |name: &Arc<str>| {
            let bounds = buckets.iter().map(|bucket| match bucket.bounds(name) {
                (ValueRef::DateTime(min), ValueRef::DateTime(max)) => Some([min, max]),
                _ => None,
            });
            bounds.collect()
        };
        Self {
            dates: buckets[0].names.iter().map(dates).collect(),
            buckets,
        }
    }
}

impl BucketRun for MemoryRun {
    fn bucket_count(&self) -> usize {
        self.buckets.len()
    }

    fn bucket(&self, at: usize) -> Arc<dyn Bucket> {
        self.buckets[at].clone()
    }

    fn columns(&self) -> &[Arc<str>] {
        &self.buckets[0].names
    }

    fn count(&self, at: usize) -> u32 {
        self.buckets[at].count
    }

    fn meta_id(&self, at: usize) -> Option<NonZeroU64> {
        self.buckets[at].meta_id()
    }

    fn dates(&self, column: usize) -> Option<&[[i64; 2]]> {
        self.dates.get(column)?.as_deref()
    }

    fn totals(&self, column: usize) -> Vec<ColumnTotal> {
        let known = |bucket: &Arc<MemoryBucket>| match bucket.has_total_at(column) {
            true => bucket.total_at(column).unwrap(),
            false => None,
        };
        self.buckets.iter().map_while(known).collect()
    }
}

/// Collections by name.
#[derive(Default)]
pub(crate) struct MemoryCollections(pub(crate) BTreeMap<String, Resolved>);

impl Collections for MemoryCollections {
    fn resolve(&self, _: &str, coll: &str) -> Result<Resolved> {
        Ok(self.0.get(coll).cloned().unwrap_or(Resolved::Absent))
    }

    fn introspect(
        &self,
        _: &str,
        _: Option<&str>,
        stage: &str,
        _: DocRef<'_>,
        _: Option<&UserName>,
    ) -> Result<Vec<Document>> {
        Ok(vec![nilometer_bson::doc! {"stage": stage}])
    }
}

impl MemoryCollections {
    /// Returns collections with one collection named "c".
    pub(crate) fn of(resolved: Resolved) -> Arc<dyn Collections> {
        Arc::new(Self(BTreeMap::from([("c".to_owned(), resolved)])))
    }
}

/// Returns an operation without limits.
pub(crate) fn operation() -> OperationContext {
    OperationContext::internal(Arc::new(SystemClock::default()), "test")
}

/// Returns settings with a fixed time.
pub(crate) fn settings(options: PlanOptions, limits: ExecLimits) -> ExecSettings {
    ExecSettings {
        plans: Arc::default(),
        plan: PlanSettings {
            now_ms: 1_700_000_000_000,
            variables: Arc::new([]),
            collator: None,
            strict_api: false,
            options,
        },
        user: None,
        ids: Arc::default(),
        limits,
        memory: Arc::default(),
        is_merge_identified: false,
        spill: None,
        threads: None,
    }
}

/// Returns settings without limits for a query of one thread.
pub(crate) fn alone() -> ExecSettings {
    settings(PlanOptions::default(), ExecLimits::default())
}

/// Returns the same for several threads, which begin after two batches.
pub(crate) fn with_threads(workers: &Arc<Workers>, count: usize) -> ExecSettings {
    ExecSettings {
        threads: Some(QueryThreads {
            batches_before: 2,
            batches_per_task: 3,
            ..QueryThreads::new(Arc::clone(workers), count)
        }),
        ..alone()
    }
}

/// Asserts that two and three threads return what one does.
pub(crate) fn assert_same_with_threads(
    collections: &Arc<dyn Collections>,
    stages: &Value,
    workers: &Arc<Workers>,
) {
    let expected = run_with(collections, stages, alone()).unwrap();
    for threads in [2, 3] {
        let found = run_with(collections, stages, with_threads(workers, threads));
        assert!(found.unwrap() == expected, "{stages:?}, {threads} threads");
    }
}

/// Returns how many rows a query returns before it fails, and the code of the error.
pub(crate) fn rows_before_error(mut query: Executor) -> (usize, ErrorCode) {
    let (operation, mut rows) = (operation(), 0);
    loop {
        match query.next_rows(&operation) {
            Ok(more) => rows += more.expect("an error at the end").len(),
            Err(error) => return (rows, error.code),
        }
    }
}

/// Calls a function that needs the context of a query.
pub(crate) fn in_context(call: impl FnOnce(&ExecContext<'_>)) {
    let (operation, settings) = (
        operation(),
        settings(PlanOptions::default(), ExecLimits::default()),
    );
    call(&ExecContext::new(&operation, &settings));
}

/// Runs a pipeline over the collection "c".
pub(crate) fn run(
    collections: &Arc<dyn Collections>,
    stages: &Value,
    options: PlanOptions,
) -> Result<Vec<Document>> {
    run_limited(collections, stages, options, ExecLimits::default())
}

/// Runs a pipeline over the collection "c" with limits.
pub(crate) fn run_limited(
    collections: &Arc<dyn Collections>,
    stages: &Value,
    options: PlanOptions,
    limits: ExecLimits,
) -> Result<Vec<Document>> {
    run_with(collections, stages, settings(options, limits))
}

/// Builds an executor of a pipeline over the collection "c".
pub(crate) fn executor(collections: &Arc<dyn Collections>, stages: &Value) -> Executor {
    let settings = settings(PlanOptions::default(), ExecLimits::default());
    executor_with(collections, stages, settings).unwrap()
}

/// Runs a pipeline over the collection "c" with settings.
pub(crate) fn run_with(
    collections: &Arc<dyn Collections>,
    stages: &Value,
    settings: ExecSettings,
) -> Result<Vec<Document>> {
    executor_with(collections, stages, settings)?.drain(&operation())
}

/// Builds an executor with settings.
pub(crate) fn executor_with(
    collections: &Arc<dyn Collections>,
    stages: &Value,
    settings: ExecSettings,
) -> Result<Executor> {
    let cx = PipelineContext::top(ParseContext::new());
    let stages = parse_pipeline_value(&cx, "pipeline", stages.as_ref())?;
    let settings = Arc::new(settings);
    let builder = Builder {
        collections: Arc::clone(collections),
        database: "test".into(),
        collection: Some("c".into()),
        settings: Arc::clone(&settings),
        depth: 0,
    };
    let root = builder.pipeline(Some("c"), stages)?;
    Ok(Executor::new(root, settings))
}

/// Runs a pipeline over documents with limits, spilling to `folder`.
pub(crate) fn run_spilling(
    stages: &Value,
    documents: Vec<Document>,
    limits: ExecLimits,
    folder: &std::path::Path,
) -> Result<Vec<Document>> {
    let source = Resolved::Ordinary(Arc::new(MemoryRecords(documents)));
    let collections = MemoryCollections::of(source);
    let mut settings = settings(PlanOptions::default(), limits);
    settings.spill = Some(folder.into());
    run_with(&collections, stages, settings)
}

/// Runs a pipeline over documents.
pub(crate) fn run_stages(stages: Value, documents: Vec<Document>) -> Result<Vec<Document>> {
    let source = Resolved::Ordinary(Arc::new(MemoryRecords(documents)));
    run(
        &MemoryCollections::of(source),
        &stages,
        PlanOptions::default(),
    )
}

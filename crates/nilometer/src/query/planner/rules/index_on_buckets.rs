//! Choosing between the clustered scan of buckets and the indexes over them.

use std::cell::OnceCell;
use std::cmp::Ordering;
use std::sync::Arc;

use nilometer_bson::Value;
use nilometer_bson::key_string::KeyStringError;
use nilometer_bson::order::compare_with;

use super::PhysicalRule;
use crate::error::{Error, ErrorCode, Result};
use crate::eval::Collation;
use crate::eval::ParseContext;
use crate::eval::matcher::{CompareOp, Comparison, InList, MatchExpression, MatchPath};
use crate::index::IndexPartKind;
use crate::index::buckets::{BucketIndex, IndexKeyFilter, KeyLimit, KeyPosition};
use crate::query::planner::access::{safety, shape_of, wildcard};
use crate::query::planner::bounds::{IndexBounds, IndexShape, KeyBounds, Position};
use crate::query::planner::physical::{BucketInput, IndexChoice, Input, PhysicalPlan};
use crate::query::planner::settings::PlanSettings;
use crate::query::source::{BucketEntries, BucketPredicate};
use crate::timeseries::rewrite::{BoundTest, Side, TimeRange};

/// An index that leads to at most this many buckets is chosen without estimating the scan.
const FEW_BUCKETS: u64 = 64;

/// The number of adjacent buckets whose scan costs about as much as fetching one bucket by id.
const FETCH_COST: u64 = 4;

/// A scan of fewer buckets is not compared with reading the buckets of single series.
const SERIES_SCAN_MIN: u64 = 256;

/// Metadata of as many series is tested rather than the header of one bucket: the estimate of a scan may be too low, and an open bucket
/// costs more than a header.
const SERIES_PER_BUCKET: u64 = 2;

/// Reads an index before a scan of buckets if it leads to few of them.
///
/// The conditions on buckets (the header predicate and the times) are turned into a filter on bucket documents, and
/// that into bounds on each index. An index is a candidate if
///
/// - its first part is bounded;
/// - it holds every bucket that can have a match: sparse and partial indexes only where that is proven;
/// - its bounds on measurements are reliable: not if buckets may mix types in a field;
/// - it has more parts than the time, for which bucket ids serve as well, unless dates lie outside the range of ids.
///
/// An index whose first part is the whole metadata, as the default index, also serves conditions on parts of the
/// metadata: they are evaluated once for each series, and the index is read from one matching series to the next.
///
/// A wildcard index serves as an index of one path at a time, as long as it holds no elements of arrays.
///
/// The candidate with the fewest keys is chosen if fetching its buckets is cheaper than scanning. The keys are counted,
/// up to the number at which scanning is cheaper, or until a quarter of a list of values shows that there are more. A
/// hinted index is always used, even where it leaves buckets out; the hint `$natural` uses no index.
///
/// The header predicate still applies, so an index may lead to more buckets than needed. The buckets read and their
/// order do not change.
pub struct IndexOnBuckets;

impl PhysicalRule for IndexOnBuckets {
    fn name(&self) -> &'static str {
        "IndexOnBuckets"
    }

    fn apply(&self, plan: &mut PhysicalPlan, settings: &PlanSettings) -> bool {
        let Input::Buckets(input) = &mut plan.input else {
            return false;
        };
        if input.buckets.index.is_some() || input.is_natural {
            return false;
        }
        // An index that cannot be read now is skipped; if the scan fails too, its error says why.
        let Ok(Some(choice)) = choose(input, settings) else {
            return false;
        };
        input.buckets.index = Some(choice);
        true
    }
}

fn choose(input: &BucketInput, settings: &PlanSettings) -> Result<Option<IndexChoice>> {
    let collation = Collation::from(settings.collator.clone());
    let conjuncts = bucket_conjuncts(input, &collation);
    if let Some(hinted) = &input.hint {
        return Ok(
            candidate(input, hinted, &conjuncts, &collation).or_else(|| whole(hinted, &collation))
        );
    }
    let scan = ScanEstimate::of(input);
    let mut cheapest = Cheapest {
        scan: &scan,
        choice: None,
    };
    let mut others = Vec::new();
    let mut is_meta_bounded = false;
    for index in input.source.indexes()? {
        let found = if let Some(found) = by_points(input, &index) {
            found
        } else if !may_use(input, &index, &conjuncts, &collation)? {
            continue;
        } else if let Some(found) = candidate(input, &index, &conjuncts, &collation) {
            found
        } else {
            others.push(index);
            continue;
        };
        is_meta_bounded |= bounds_all_meta(&found, &conjuncts);
        cheapest.consider(input, found)?;
    }
    // An index with bounds for all conditions on metadata leads to the buckets of the same series.
    others.retain(|_| !is_meta_bounded);
    for index in others {
        if let Some(found) = by_series(input, &index, &scan)? {
            cheapest.consider(input, found)?;
        }
    }
    Ok(cheapest.choice.map(|(choice, _)| choice))
}

/// The estimated number of buckets that a scan reads. To compute it the first and the last bucket may be read.
struct ScanEstimate<'a> {
    input: &'a BucketInput,
    buckets: OnceCell<u64>,
}

impl<'a> ScanEstimate<'a> {
    fn of(input: &'a BucketInput) -> Self {
        Self {
            input,
            buckets: OnceCell::new(),
        }
    }

    fn buckets(&self) -> Result<u64> {
        if let Some(known) = self.buckets.get() {
            return Ok(*known);
        }
        let BucketInput {
            source, buckets, ..
        } = self.input;
        let estimate = source.buckets_between_estimate(buckets.id_min, buckets.id_max)?;
        Ok(*self.buckets.get_or_init(|| estimate))
    }
}

/// The choice with the fewest keys so far.
struct Cheapest<'a> {
    scan: &'a ScanEstimate<'a>,
    /// The choice, and its keys.
    choice: Option<(IndexChoice, u64)>,
}

impl Cheapest<'_> {
    fn consider(&mut self, input: &BucketInput, mut found: IndexChoice) -> Result<()> {
        let (BucketEntries::Within(keys) | BucketEntries::InIdOrder(keys)) = &found.entries else {
            return Ok(());
        };
        let mut limit = match &self.choice {
            Some((_, keys)) => KeyLimit::exactly(*keys),
            None => KeyLimit::at_least(FEW_BUCKETS, || Ok(self.scan.buckets()? / FETCH_COST)),
        };
        let source = &input.source;
        let counted = source.count_keys(&found.index, &**keys, &mut limit)?;
        found.scanned = counted.scanned;
        if counted.keys < limit.keys() {
            self.choice = Some((found, counted.keys));
        }
        Ok(())
    }
}

/// True if every condition on metadata is a comparison with a part of the index.
fn bounds_all_meta(choice: &IndexChoice, conjuncts: &[MatchExpression]) -> bool {
    let kept = choice.index.index();
    conjuncts.iter().all(|condition| {
        let path = match condition {
            MatchExpression::Compare(test) | MatchExpression::ExprCompare(test) => &test.path,
            MatchExpression::In(list) => &list.path,
            _ => return false,
        };
        let of_bucket = path.as_str().starts_with("control.");
        of_bucket || kept.parts().iter().any(|part| part.name() == path.as_str())
    })
}

/// Returns an index that begins with the whole metadata, bounded to the series that pass all conditions on metadata.
/// `None` if the scan is short or there are many more series than it has buckets.
fn by_series(
    input: &BucketInput,
    index: &Arc<BucketIndex>,
    scan: &ScanEstimate<'_>,
) -> Result<Option<IndexChoice>> {
    let tests = conjuncts_of(&input.buckets.predicate).iter();
    let tests = tests.filter_map(|part| match part {
        BucketPredicate::Meta(test) if is_cheap(&test.filter) => Some(test),
        _ => None,
    });
    let tests: Vec<_> = tests.collect();
    if tests.is_empty() || !begins_with_meta(index) {
        return Ok(None);
    }
    let scan = scan.buckets()?;
    if scan < SERIES_SCAN_MIN {
        return Ok(None);
    }
    let at_most = scan.saturating_mul(SERIES_PER_BUCKET);
    let at_most = usize::try_from(at_most).unwrap_or(usize::MAX);
    let Some(series) = input.source.series(index, at_most)? else {
        return Ok(None);
    };
    if series.has_lists() {
        return Ok(None);
    }
    let metas = series.passing(&tests)?;
    // If series have about as many buckets each, these have more than are worth fetching.
    if metas.len() as u64 * FETCH_COST > scan.min(series.len() as u64).max(FEW_BUCKETS) {
        return Ok(None);
    }
    if metas.is_empty() {
        return Ok(Some(by_ranges(index, Vec::new())));
    }
    let path = MatchPath::new("meta");
    let list = InList::new(path, metas, Vec::new(), Collation::SIMPLE);
    let mut conjuncts = vec![MatchExpression::In(list)];
    conjuncts.extend(start_conjuncts(input));
    Ok(candidate(input, index, &conjuncts, &Collation::SIMPLE))
}

/// True for filters whose evaluation is a few comparisons, because planning is not interrupted. Types are not compared:
/// equal numbers of several types are one series.
fn is_cheap(filter: &MatchExpression) -> bool {
    match filter {
        MatchExpression::And(parts) | MatchExpression::Or(parts) | MatchExpression::Nor(parts) => {
            parts.iter().all(is_cheap)
        }
        MatchExpression::Not(inner) => is_cheap(inner),
        MatchExpression::In(list) => list.patterns().is_empty(),
        MatchExpression::AlwaysTrue
        | MatchExpression::AlwaysFalse
        | MatchExpression::Compare(_)
        | MatchExpression::ExprCompare(_)
        | MatchExpression::Exists(_) => true,
        _ => false,
    }
}

/// True if the first part of an index is the whole metadata of every bucket, stored as its value.
fn begins_with_meta(index: &BucketIndex) -> bool {
    let kept = index.index();
    index.is_static()
        && index.stored.multikey() == 0
        && kept.collation().collator().is_none()
        && kept.parts().first().is_some_and(|part| {
            let is_value = matches!(
                part.kind,
                IndexPartKind::Ascending | IndexPartKind::Descending
            );
            is_value && part.name() == "meta"
        })
}

/// Returns an index that begins with the points of a geographic test. A match of the test is a point, and the index
/// holds every bucket with a point.
fn by_points(input: &BucketInput, index: &Arc<BucketIndex>) -> Option<IndexChoice> {
    let path = index.points().first()?;
    let whole = index.partial_filter().is_none() && !index.stored.spec.sparse;
    let mut tests = conjuncts_of(&input.buckets.predicate).iter();
    let ranges = tests.find_map(|part| match part {
        BucketPredicate::Geo(bound) if *bound.path == **path && whole => bound.test.cell_ranges(),
        _ => None,
    })?;
    let ranges = ranges.into_iter().map(|range| index.cell_keys(range));
    Some(by_ranges(index, ranges.collect::<Option<Vec<_>>>()?))
}

/// Returns the entries of an index with keys in `ranges`.
fn by_ranges(index: &Arc<BucketIndex>, ranges: Vec<(Vec<u8>, Vec<u8>)>) -> IndexChoice {
    IndexChoice {
        index: index.clone(),
        entries: BucketEntries::Within(Arc::new(WantedRanges(ranges))),
        scanned: None,
        shape: Arc::default(),
        bounds: IndexBounds::all(0),
    }
}

/// True if an index may be used without a hint.
fn may_use(
    input: &BucketInput,
    index: &BucketIndex,
    conjuncts: &[MatchExpression],
    collation: &Collation,
) -> Result<bool> {
    let kept = index.index();
    if kept.is_wildcard() {
        // A path without a key has no value that passes the filter behind the bounds.
        return Ok(index.is_static() && kept.partial_filter().is_none());
    }
    let Some(mut shape) = shape_of(&kept, collation) else {
        return Ok(false);
    };
    if !index.is_static() && input.source.options().mixed_schema {
        return Ok(false);
    }
    let only_time = kept.parts().len() == 1 && index.time_part() == Some(0);
    if only_time && kept.partial_filter().is_none() && !input.source.options().extended_range {
        return Ok(false);
    }
    if index.stored.spec.sparse && !index.is_static() {
        return Ok(false);
    }
    if index.is_static() {
        return Ok(safety::holds_all(&kept, conjuncts, &shape));
    }
    if kept.partial_filter().is_none() {
        return Ok(true);
    }
    // The user's filter selects the buckets in the index; the query must imply it.
    let original = index.stored.spec.original_spec.as_ref();
    let filter = original.map(|spec| spec.get("partialFilterExpression"));
    let Some(filter) = filter.and_then(nilometer_bson::ValueRef::as_document) else {
        return Ok(false);
    };
    let parsing = ParseContext::new().with_collator(kept.collation().shared());
    let filter = MatchExpression::parse(filter, &parsing)?.simplify();
    // Strings under a collation are not compared here.
    shape.same_collation &= collation.is_simple();
    let texts = safety::Texts::of(&shape);
    Ok(safety::implies(&user_conjuncts(input), &filter, texts))
}

/// Returns the index with its bounds; `None` if its first part is not bounded.
fn candidate(
    input: &BucketInput,
    index: &Arc<BucketIndex>,
    conjuncts: &[MatchExpression],
    collation: &Collation,
) -> Option<IndexChoice> {
    let kept = index.index();
    if kept.is_wildcard() {
        return by_one_path(input, index, conjuncts, collation);
    }
    let shape = shape_of(&kept, collation)?;
    let filter = MatchExpression::and(conjuncts.to_vec());
    let bounds = IndexBounds::of(&filter, &shape)?;
    Some(with_bounds(input, index, shape, bounds))
}

/// Returns a wildcard index as an index of the first path that the filter bounds. An index with elements of arrays
/// is skipped.
fn by_one_path(
    input: &BucketInput,
    index: &Arc<BucketIndex>,
    conjuncts: &[MatchExpression],
    collation: &Collation,
) -> Option<IndexChoice> {
    if index.stored.multikey() != 0 {
        return None;
    }
    let mut readings = wildcard::readings(&index.index(), conjuncts, collation).into_iter();
    let (shape, assigned) = readings.next()?;
    Some(with_bounds(input, index, shape, assigned.bounds))
}

/// The bounds a metadata filter puts on an index: its shape and the bounds of each part.
pub(super) fn bounds_on_meta(
    input: &BucketInput,
    index: &BucketIndex,
    collation: &Collation,
) -> Option<(IndexShape, IndexBounds)> {
    let shape = shape_of(&index.index(), collation)?;
    let filter = MatchExpression::and(bucket_conjuncts(input, collation));
    let bounds = IndexBounds::of(&filter, &shape)?;
    (!bounds.is_empty()).then_some((shape, bounds))
}

/// Returns the part of an index that may hold matches: all of it if nothing bounds it.
pub(super) fn part_of(
    input: &BucketInput,
    index: &Arc<BucketIndex>,
    collation: &Collation,
) -> Option<IndexChoice> {
    let conjuncts = bucket_conjuncts(input, collation);
    candidate(input, index, &conjuncts, collation).or_else(|| whole(index, collation))
}

/// Returns all of an index, for a hint without bounds.
fn whole(index: &Arc<BucketIndex>, collation: &Collation) -> Option<IndexChoice> {
    let kept = index.index();
    let shape = shape_of(&kept, collation).unwrap_or_default();
    let bounds = IndexBounds::all(shape.parts.len());
    let keys: Arc<dyn IndexKeyFilter> = Arc::new(KeyBoundsFilter(KeyBounds::new(&bounds, &shape)));
    Some(IndexChoice {
        index: index.clone(),
        entries: BucketEntries::Within(keys),
        scanned: None,
        shape: Arc::new(shape),
        bounds,
    })
}

fn with_bounds(
    input: &BucketInput,
    index: &Arc<BucketIndex>,
    shape: IndexShape,
    bounds: IndexBounds,
) -> IndexChoice {
    let keys: Arc<dyn IndexKeyFilter> = Arc::new(KeyBoundsFilter(KeyBounds::new(&bounds, &shape)));
    let entries = if is_in_id_order(input, index, &shape, &bounds) {
        BucketEntries::InIdOrder(keys)
    } else {
        BucketEntries::Within(keys)
    };
    IndexChoice {
        index: index.clone(),
        entries,
        scanned: None,
        shape: Arc::new(shape),
        bounds,
    }
}

/// True if the entries within the bounds are one run sorted by start, and so by id: every part before the time has one
/// value, and the time has one interval. Ids begin with the start in seconds, so dates outside their range break the
/// order. A bucket has one entry where nothing is an array.
fn is_in_id_order(
    input: &BucketInput,
    index: &BucketIndex,
    shape: &IndexShape,
    bounds: &IndexBounds,
) -> bool {
    let Some(time) = index.time_part() else {
        return false;
    };
    let time_is_last = time + 1 == shape.parts.len();
    index.is_static()
        && time_is_last
        && !input.source.options().extended_range
        && index.stored.multikey() == 0
        && shape.parts.get(time).is_some_and(|part| !part.descending)
        && bounds.leading_points(&shape.collation) >= time
        && bounds
            .parts
            .get(time)
            .is_some_and(|part| part.intervals.len() == 1)
}

/// Returns the filter on measurements, with the user's field names.
fn user_conjuncts(input: &BucketInput) -> Vec<MatchExpression> {
    let mut all = Vec::new();
    for part in conjuncts_of(&input.buckets.predicate) {
        if let BucketPredicate::Meta(test) = part {
            all.extend(test.filter.clone().into_conjuncts());
        }
    }
    if let Some(filter) = &input.unpack.event_filter {
        all.extend(filter.clone().into_conjuncts());
    }
    all
}

fn conjuncts_of(predicate: &BucketPredicate) -> &[BucketPredicate] {
    match predicate {
        BucketPredicate::All(parts) => parts,
        other => std::slice::from_ref(other),
    }
}

/// Returns the conditions on buckets as filters on bucket documents, as they are indexed.
fn bucket_conjuncts(input: &BucketInput, collation: &Collation) -> Vec<MatchExpression> {
    let mut all = Vec::new();
    for part in conjuncts_of(&input.buckets.predicate) {
        if let Some(filter) = on_documents(part, collation) {
            all.extend(filter.into_conjuncts());
        }
    }
    all.extend(start_conjuncts(input));
    all
}

/// Returns the conditions on the starts of buckets.
fn start_conjuncts(input: &BucketInput) -> impl Iterator<Item = MatchExpression> {
    let options = input.source.options();
    let start = format!("control.min.{}", options.time_field);
    let (earliest, latest) = starts(input.buckets.times, options.bucket_max_span_seconds);
    let bound = move |op, at: i64| {
        MatchExpression::ExprCompare(Comparison {
            path: MatchPath::new(&start),
            op,
            value: Value::DateTime(at),
            collation: Collation::default(),
        })
    };
    let earliest = earliest.map(|at| (CompareOp::Gt, at));
    let latest = latest.map(|at| (CompareOp::Lte, at));
    let all = earliest.into_iter().chain(latest);
    all.map(move |(op, at)| bound(op, at))
}

/// Returns the range of starts of buckets with measurements in `times`: lower end exclusive, upper end inclusive.
///
/// Starts before 1970 may be rounded towards 1970, so a start may be after its measurements, but never after 1970.
fn starts(times: TimeRange, span_seconds: i64) -> (Option<i64>, Option<i64>) {
    let span_ms = span_seconds.saturating_mul(1000);
    let earliest = (times.min != i64::MIN).then(|| times.min.saturating_sub(span_ms));
    let latest = (times.max != i64::MAX).then_some(times.max.max(0));
    (earliest, latest)
}

/// Converts a header predicate to a filter on bucket documents. Every bucket that passes the predicate and is in an index
/// over its fields passes the filter. `None` if there is no such form. [`starts`] handles times.
fn on_documents(predicate: &BucketPredicate, collation: &Collation) -> Option<MatchExpression> {
    match predicate {
        BucketPredicate::Never => Some(MatchExpression::AlwaysFalse),
        BucketPredicate::Always | BucketPredicate::Geo(_) => None,
        BucketPredicate::Meta(test) => test.filter.renamed(&test.field, "meta"),
        BucketPredicate::Bound(test) if test.is_time => None,
        BucketPredicate::Bound(test) => Some(bound(test, collation)),
        BucketPredicate::Values(test) if test.is_time() => None,
        BucketPredicate::Values(test) => on_documents(&test.to_comparisons(), collation),
        BucketPredicate::All(parts) => {
            let parts = parts
                .iter()
                .filter_map(|part| on_documents(part, collation));
            Some(MatchExpression::and(parts.collect()))
        }
        BucketPredicate::Any(parts) => {
            let hull = hull(parts).into_iter().map(|test| bound(&test, collation));
            let parts = parts.iter().map(|part| on_documents(part, collation));
            let or = parts.collect::<Option<_>>().map(MatchExpression::or);
            let all: Vec<MatchExpression> = or.into_iter().chain(hull).collect();
            (!all.is_empty()).then(|| MatchExpression::and(all))
        }
    }
}

/// Returns the tests of bounds that all alternatives imply: for `$in`, that the bound lies between the least and the
/// greatest value.
fn hull(alternatives: &[BucketPredicate]) -> Vec<BoundTest> {
    let mut alternatives = alternatives.iter().map(bounds_of);
    let mut common = alternatives.next().unwrap_or_default();
    for other in alternatives {
        common.retain_mut(|test| {
            let same = |one: &&BoundTest| {
                one.side == test.side && one.path == test.path && one.op == test.op
            };
            let Some(found) = other.iter().find(same) else {
                return false;
            };
            let order = compare_with(
                found.operand.as_ref(),
                test.operand.as_ref(),
                test.collation.collator(),
            );
            if order == loosens(test.op) {
                test.operand = found.operand.clone();
            }
            true
        });
    }
    common
}

/// Returns the bounds a predicate implies, both ends included.
fn bounds_of(predicate: &BucketPredicate) -> Vec<BoundTest> {
    let mut bounds = Vec::new();
    for part in conjuncts_of(predicate) {
        match part {
            BucketPredicate::Bound(test) if !test.is_time => {
                let op = match test.op {
                    CompareOp::Lt | CompareOp::Lte => CompareOp::Lte,
                    CompareOp::Gt | CompareOp::Gte => CompareOp::Gte,
                    CompareOp::Eq => continue,
                };
                bounds.push(BoundTest { op, ..test.clone() });
            }
            BucketPredicate::Values(test) if !test.is_time() => bounds.extend(test.hull()),
            _ => {}
        }
    }
    bounds
}

/// Returns how a weaker operand compares with the operand of a bound.
fn loosens(op: CompareOp) -> Ordering {
    match op {
        CompareOp::Gt | CompareOp::Gte => Ordering::Less,
        _ => Ordering::Greater,
    }
}

/// Compares over all types, as bounds do: a bucket of another type is in the range if the order of types puts it there.
/// No bound in an index is an array.
fn bound(test: &BoundTest, collation: &Collation) -> MatchExpression {
    let side = match test.side {
        Side::Min => "min",
        Side::Max => "max",
    };
    MatchExpression::ExprCompare(Comparison {
        path: MatchPath::new(&format!("control.{side}.{}", test.path)),
        op: test.op,
        value: test.operand.clone(),
        collation: collation.clone(),
    })
}

/// Returns disjoint ranges of key strings, ascending.
#[derive(Debug)]
struct WantedRanges(Vec<(Vec<u8>, Vec<u8>)>);

impl IndexKeyFilter for WantedRanges {
    fn start(&self) -> Vec<u8> {
        self.0
            .first()
            .map(|(start, _)| start.clone())
            .unwrap_or_default()
    }

    fn end(&self) -> Option<Vec<u8>> {
        self.0.last().map(|(_, end)| end.clone())
    }

    fn position(&self, key: &[u8]) -> Result<KeyPosition> {
        let next = self.0.partition_point(|(_, end)| end.as_slice() <= key);
        Ok(match self.0.get(next) {
            None => KeyPosition::Past,
            Some((start, _)) if start.as_slice() <= key => KeyPosition::Inside,
            Some((start, _)) => KeyPosition::Seek(start.clone()),
        })
    }

    fn progress(&self, key: &[u8]) -> Option<(usize, usize)> {
        let before = self.0.partition_point(|(_, end)| end.as_slice() <= key);
        Some((before, self.0.len()))
    }
}

/// Returns bounds as a key filter for index scans.
#[derive(Debug)]
pub(super) struct KeyBoundsFilter(pub(super) KeyBounds);

impl IndexKeyFilter for KeyBoundsFilter {
    fn start(&self) -> Vec<u8> {
        self.0.start()
    }

    fn end(&self) -> Option<Vec<u8>> {
        self.0.end()
    }

    fn position(&self, key: &[u8]) -> Result<KeyPosition> {
        let position = self.0.check_forward(key).map_err(|error: KeyStringError| {
            Error::new(
                ErrorCode::DataCorruptionDetected,
                format!("an index entry cannot be read: {error}"),
            )
        })?;
        Ok(match position {
            Position::Inside => KeyPosition::Inside,
            Position::Seek(target) => KeyPosition::Seek(target),
            Position::Past => KeyPosition::Past,
        })
    }

    fn progress(&self, key: &[u8]) -> Option<(usize, usize)> {
        self.0.progress(key)
    }
}

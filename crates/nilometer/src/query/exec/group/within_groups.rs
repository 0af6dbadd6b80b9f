//! A sort by time in front of a `$group` whose key has parts of the metadata: only the rows of one group must be in order.
//!
//! ```text
//! {h: a} ▪▪▪▪▪▪ 9:00   ▪▪▪▪▪▪ 10:00     the first bucket is returned once the second one of the same key arrives, or at the end
//! {h: b}  ▪▪▪▪▪▪ 9:00    ▪▪▪▪▪▪ 10:00   buckets of other keys do not matter
//! ```
//!
//! Buckets arrive by their start, in the direction of the sort. Those of one key are in a [`BlockPool`], which merges what
//! overlaps. Where blocks do not suffice (rows in the place of blocks, buckets of different columns, arrays in the metadata by which
//! the sort orders, too many keys for the memory limit), what is left is sorted row by row: it is behind all that was returned of its groups.

use std::collections::{BTreeMap, VecDeque};

use foldhash::fast::RandomState;
use nilometer_bson::{Value, ValueRef};

use super::keys::{MetasMet, SeriesList};
use crate::error::Result;
use crate::eval::expression::FieldPath;
use crate::eval::memory_bytes;
use crate::query::batch::{Batch, MeasurementBlock};
use crate::query::exec::memory::MemoryGauge;
use crate::query::exec::sort::block_pool::{BlockPool, PoolOutput};
use crate::query::exec::sort::external_sort::Sorter;
use crate::query::exec::sort::merged_bucket::MergedMetas;
use crate::query::exec::sort::{ByPattern, Everything, assert_span, everything, gauge};
use crate::query::exec::{BoxOperator, ExecContext, Operator, ROWS_PER_BATCH, next_filled};
use crate::query::planner::physical::{PhysicalSort, WithinGroups};

/// Bytes counted for a bucket besides those that are stored and its times.
const BUCKET_OVERHEAD: usize = 512;

/// Bytes counted for a key besides its values.
const KEY_OVERHEAD: usize = 192;

/// Orders the input of a `$group` within each group.
pub(crate) struct SortWithinGroups {
    /// `None` once it is read.
    input: Option<BoxOperator>,
    sort: PhysicalSort,
    within: WithinGroups,
    /// The longest span of a bucket, if the sort descends.
    span_ms: Option<i64>,
    keys: SeriesList,
    metas: MetasMet,
    hasher: RandomState,
    /// By the number of the key: in the order in which keys were met.
    pools: BTreeMap<u32, BlockPool>,
    /// Blocks to return.
    ready: VecDeque<MeasurementBlock>,
    /// What is left, sorted row by row.
    rows: Option<Everything>,
    arrivals: u64,
    memory: Option<MemoryGauge>,
}

impl SortWithinGroups {
    /// Sorts `input`, whose buckets arrive by start: descending if they span at most `span_ms`.
    pub(crate) fn new(
        input: BoxOperator,
        sort: PhysicalSort,
        within: WithinGroups,
        span_ms: Option<i64>,
    ) -> Self {
        Self {
            input: Some(input),
            sort,
            within,
            span_ms,
            keys: SeriesList::default(),
            metas: MetasMet::default(),
            hasher: RandomState::default(),
            pools: BTreeMap::new(),
            ready: VecDeque::new(),
            rows: None,
            arrivals: 0,
            memory: None,
        }
    }

    /// Returns the number of a block's key; `None` if a part of the sort before the time is an array.
    fn key_of(&mut self, block: &MeasurementBlock, cx: &ExecContext<'_>) -> Result<Option<u32>> {
        let (number, known) = self.metas.get(|| block.meta_id());
        if known.is_some() {
            return Ok(known);
        }
        let is_plain = |path: &FieldPath| match (path.len(), block.meta()) {
            (1, meta) => !matches!(meta, ValueRef::Array(_)),
            (_, ValueRef::Document(_)) => {
                let value = block.plain_meta(path);
                value.is_some_and(|value| !matches!(value, ValueRef::Array(_)))
            }
            (_, meta) => !matches!(meta, ValueRef::Array(_)),
        };
        if !self.within.prefix.iter().all(is_plain) {
            return Ok(None);
        }
        let constants = block.constant_document();
        let parts = self.within.parts.iter();
        let has_one_part = self.within.has_one_part;
        let values = parts.map(|part| {
            let value = part.evaluate(constants.as_ref(), &cx.eval)?;
            Ok(match value {
                value if has_one_part && value.as_ref().is_nullish() => Value::Null,
                value => value,
            })
        });
        let values = values.collect::<Result<Vec<_>>>()?;
        let collator = cx.eval.collator;
        let known = self.keys.len();
        let at = self.keys.number_of(&values, &self.hasher, collator, || 0);
        if self.keys.len() > known {
            let bytes: usize = values.iter().map(memory_bytes).sum();
            // Too much is seen when the block is added.
            let _ = self.memory(cx).add(KEY_OVERHEAD + bytes);
        }
        // Parts that compare equal are of one group.
        let key = self.keys.class(at);
        self.metas.remember(number, key);
        Ok(Some(key))
    }

    /// Returns whose metadata the merged buckets of a key may show.
    fn metas_of_merged(&self) -> MergedMetas {
        match self.within.reads_key_alone {
            true => MergedMetas::First,
            false => MergedMetas::Same,
        }
    }

    fn memory(&mut self, cx: &ExecContext<'_>) -> &mut MemoryGauge {
        self.memory.get_or_insert_with(|| gauge(cx))
    }

    fn add(&mut self, block: MeasurementBlock, cx: &ExecContext<'_>) -> Result<()> {
        if let Some(span_ms) = self.span_ms {
            assert_span(&block, span_ms)?;
        }
        let Some(key) = self.key_of(&block, cx)? else {
            return self.sort_rest(Some(Batch::Block(block)), cx);
        };
        let start_ms = i64::from(block.bucket.id().timestamp_seconds()) * 1000;
        let bound = start_ms.saturating_add(self.span_ms.unwrap_or(0));
        let arrival = self.arrivals;
        self.arrivals += u64::from(block.bucket.count());
        if !self.release(key, Some(bound), cx)? {
            return self.sort_rest(Some(Batch::Block(block)), cx);
        }
        let (is_descending, metas) = (self.span_ms.is_some(), self.metas_of_merged());
        let pool = self.pools.entry(key);
        let pool = pool.or_insert_with(|| BlockPool::new(is_descending, metas));
        let times = block.bucket.count() as usize * size_of::<i64>();
        let bytes = block.bucket.stored_bytes() + BUCKET_OVERHEAD + times;
        let bytes = pool.add(block, arrival, bytes)?;
        if self.memory(cx).add(bytes).is_ok() {
            return Ok(());
        }
        // Keys without later buckets may hold blocks that are complete by now.
        let keys: Vec<u32> = self.pools.keys().copied().collect();
        for key in keys {
            if !self.release(key, Some(bound), cx)? {
                return self.sort_rest(None, cx);
            }
        }
        match self.memory(cx).is_exceeded() {
            true => self.sort_rest(None, cx),
            false => Ok(()),
        }
    }

    /// Takes the blocks of a key before the bound of later ones; false if they must be sorted row by row.
    fn release(&mut self, key: u32, bound: Option<i64>, cx: &ExecContext<'_>) -> Result<bool> {
        loop {
            let Some(pool) = self.pools.get_mut(&key) else {
                return Ok(true);
            };
            match pool.take(bound)? {
                PoolOutput::Block(block, bytes) => {
                    self.memory(cx).release(bytes);
                    self.ready.push_back(block);
                }
                PoolOutput::Nothing => {
                    if pool.is_empty() {
                        self.pools.remove(&key);
                    }
                    return Ok(true);
                }
                PoolOutput::Rows => return Ok(false),
            }
        }
    }

    /// Sorts what is left row by row.
    fn sort_rest(&mut self, next: Option<Batch>, cx: &ExecContext<'_>) -> Result<()> {
        self.memory = None;
        self.keys = SeriesList::default();
        self.metas = MetasMet::default();
        let pools = std::mem::take(&mut self.pools).into_values();
        let mut blocks: Vec<_> = pools.flat_map(BlockPool::into_blocks).collect();
        blocks.sort_by_key(|(arrival, _)| *arrival);
        let pattern = self.sort.stage.pattern.clone();
        let mut sorter = Sorter::new(ByPattern(pattern), gauge(cx));
        let blocks = blocks.into_iter().map(|(_, block)| Batch::Block(block));
        for batch in blocks.chain(next) {
            for row in batch.into_rows()? {
                sorter.add(row, cx)?;
            }
        }
        self.rows = Some(match self.input.take() {
            Some(mut input) => everything(sorter, &mut input, None, cx)?,
            None => Everything::of(sorter, None, cx)?,
        });
        Ok(())
    }

    /// Takes what is left of one key; false at the end.
    fn drain(&mut self, cx: &ExecContext<'_>) -> Result<bool> {
        let Some(key) = self.pools.keys().next().copied() else {
            return Ok(false);
        };
        if !self.release(key, None, cx)? {
            self.sort_rest(None, cx)?;
        }
        Ok(true)
    }
}

impl Operator for SortWithinGroups {
    fn next(&mut self, cx: &ExecContext<'_>) -> Result<Option<Batch>> {
        loop {
            if let Some(block) = self.ready.pop_front() {
                return Ok(Some(Batch::Block(block)));
            }
            if let Some(rows) = &mut self.rows {
                let rows = rows.take(ROWS_PER_BATCH, cx)?;
                return Ok((!rows.is_empty()).then_some(Batch::Rows(rows)));
            }
            match &mut self.input {
                Some(input) => match next_filled(input, cx)? {
                    Some(Batch::Block(block)) => self.add(block, cx)?,
                    Some(rows) => self.sort_rest(Some(rows), cx)?,
                    None => self.input = None,
                },
                None => {
                    if !self.drain(cx)? {
                        return Ok(None);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use nilometer_bson::{Document, Value, array, doc};

    use crate::query::exec::ExecLimits;
    use crate::query::exec::testing::{MemoryBuckets, MemoryCollections, run, run_with, settings};
    use crate::query::planner::settings::PlanOptions;
    use crate::query::source::Resolved;

    /// Measurements of nine series that overlap in time and arrive in any order; some series have an array in their metadata.
    fn measurements(with_arrays: bool) -> Vec<Document> {
        let measurement = |at: i64| {
            let host = match at % 9 {
                8 if with_arrays => array![1, 2],
                host @ 0..2 => [Value::Null, Value::Missing][host as usize].clone(),
                host => Value::from(host as i32 / 2),
            };
            doc! {
                "t": Value::DateTime(1_700_000_000_000 + at * 7919 % 1500 * 2000),
                "m": doc! {"host": host, "rack": (at % 9) as i32},
                "v": at as i32,
            }
        };
        (0..2000).map(measurement).collect()
    }

    fn check(order: &Document, with_arrays: bool, key: &Value, groups: usize) {
        let folder = tempfile::tempdir().unwrap();
        let buckets = Arc::new(MemoryBuckets::new(&measurements(with_arrays), 50));
        let series = MemoryCollections::of(Resolved::TimeSeries(buckets));
        let all = doc! {"$push": doc! {"t": "$t", "v": "$v"}};
        let group = doc! {"_id": key.clone(), "all": all, "most": doc! {"$max": "$v"}};
        let stages = array![
            doc! {"$sort": order.clone()},
            doc! {"$group": group},
            doc! {"$sort": doc! {"_id": 1}},
        ];
        let naive = PlanOptions {
            force_rows: true,
            no_rules: true,
            ..PlanOptions::default()
        };
        let expected = run(&series, &stages, naive).unwrap();
        assert_eq!(expected.len(), groups);
        for bytes in [2_000, 40_000, 200_000, u64::MAX] {
            let limits = ExecLimits {
                sort_bytes_max: bytes,
                ..ExecLimits::default()
            };
            let mut settings = settings(PlanOptions::default(), limits);
            settings.spill = Some(folder.path().into());
            let found = run_with(&series, &stages, settings).unwrap();
            assert!(found == expected, "{order:?} {bytes} {key:?}");
        }
    }

    #[test]
    fn what_does_not_fit_is_sorted_row_by_row() {
        for (order, with_arrays) in [
            (doc! {"t": 1}, false),
            (doc! {"t": -1}, false),
            (doc! {"m.host": 1, "t": 1}, false),
            (doc! {"m.host": -1, "t": 1}, true),
        ] {
            // Null and missing are one key, but not where the key has several parts.
            check(&order, with_arrays, &"$m.host".into(), 5);
            check(&order, with_arrays, &doc! {"h": "$m.host"}.into(), 5);
            let half = doc! {"$gt": array!["$m.rack", 4]};
            let both = doc! {"h": "$m.host", "half": half};
            check(&order, with_arrays, &both.into(), 7);
        }
    }
}

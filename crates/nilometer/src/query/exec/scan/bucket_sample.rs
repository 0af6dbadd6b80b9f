//! Draws random measurements without reading all buckets.
//!
//! ```text
//! draw     a bucket, and a position from 0 to 999     uniformly
//! take     the measurement at that position           if none, or taken already: draw again
//! ```
//!
//! So every measurement is equally likely, however full its bucket is. Where buckets are so empty that most draws
//! fail, drawing costs more than reading: then all measurements are returned, and the `$sample` above draws.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::BucketScan;
use crate::error::Result;
use crate::query::batch::{Batch, MeasurementBlock, Selection};
use crate::query::exec::{BoxOperator, ExecContext, Operator};
use crate::query::planner::physical::{BUCKET_PLACES, BucketInput};
use crate::query::source::{self, Bucket, ScanCounters};

/// Largest number of buckets whose ids are listed.
const BUCKETS_MAX: usize = 1 << 20;

/// Drawing is abandoned when it has opened more than one in this many buckets.
const OPENED_SHARE: usize = 4;

/// Drawing is abandoned after this many draws per requested measurement.
const DRAWS_EACH: u64 = 100;

/// Draws measurements, or returns all of them.
pub struct BucketSample {
    input: BucketInput,
    counters: Arc<ScanCounters>,
    size: u64,
    /// The drawn measurements.
    drawn: Vec<MeasurementBlock>,
    /// All measurements, if drawing was abandoned.
    all: Option<BoxOperator>,
    started: bool,
}

impl BucketSample {
    /// Draws `size` measurements.
    pub fn new(input: BucketInput, size: u64, counters: Arc<ScanCounters>) -> Self {
        Self {
            input,
            counters,
            size,
            drawn: Vec::new(),
            all: None,
            started: false,
        }
    }

    fn draw(&self, cx: &ExecContext<'_>) -> Result<Option<Vec<MeasurementBlock>>> {
        let Some(ids) = self.input.source.bucket_ids(BUCKETS_MAX)? else {
            return Ok(None);
        };
        let mut opened: HashMap<usize, Option<Arc<dyn Bucket>>> = HashMap::new();
        let mut taken: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
        let mut left = self.size;
        for _ in 0..self.size.saturating_mul(DRAWS_EACH) {
            if left == 0 || ids.is_empty() {
                break;
            }
            cx.operation.check_interrupt()?;
            let random = cx.settings.ids.random();
            let at = usize::try_from((random >> 32) % ids.len() as u64).unwrap_or(0);
            let place = (random & u64::from(u32::MAX)) as u32 % BUCKET_PLACES;
            let bucket = match opened.get(&at) {
                Some(known) => known.clone(),
                None => {
                    if opened.len() > ids.len() / OPENED_SHARE {
                        return Ok(None);
                    }
                    let bucket = self.open(ids.get(at).copied())?;
                    opened.insert(at, bucket.clone());
                    bucket
                }
            };
            let Some(bucket) = bucket else {
                continue;
            };
            if bucket.count() > BUCKET_PLACES {
                return Ok(None);
            }
            let places = taken.entry(at).or_default();
            if place < bucket.count() && !places.contains(&place) {
                places.push(place);
                left -= 1;
            }
        }
        if left > 0 {
            return Ok(None);
        }
        let shape = Arc::new(self.input.shape());
        let blocks = taken.into_iter().filter_map(|(at, mut places)| {
            places.sort_unstable();
            let bucket = opened.get(&at)?.clone()?;
            let mut block = MeasurementBlock::all(bucket, Arc::clone(&shape));
            block.selection = Selection::from_rows(places);
            Some(block)
        });
        Ok(Some(blocks.collect()))
    }

    /// Opens the bucket, if it still exists.
    fn open(&self, id: Option<[u8; 12]>) -> Result<Option<Arc<dyn Bucket>>> {
        let scan = source::BucketScanOptions {
            id_min: id,
            id_max: id,
            examined: Arc::clone(&self.counters),
            ..source::BucketScanOptions::default()
        };
        self.counters.returned.fetch_add(1, Ordering::Relaxed);
        self.input.source.scan(&scan)?.next().transpose()
    }
}

impl Operator for BucketSample {
    fn next(&mut self, cx: &ExecContext<'_>) -> Result<Option<Batch>> {
        if !self.started {
            self.started = true;
            match self.draw(cx)? {
                Some(drawn) => self.drawn = drawn,
                None => {
                    let all = BucketScan::new(self.input.clone(), Arc::clone(&self.counters));
                    self.all = Some(Box::new(all));
                }
            }
        }
        if let Some(all) = &mut self.all {
            return all.next(cx);
        }
        let Some(block) = self.drawn.pop() else {
            return Ok(None);
        };
        Ok(Some(match cx.settings.plan.options.force_rows {
            true => Batch::Rows(block.to_rows()?),
            false => Batch::Block(block),
        }))
    }

    fn is_exhausted(&self) -> bool {
        self.started
            && self.drawn.is_empty()
            && self.all.as_ref().is_none_or(|all| all.is_exhausted())
    }
}

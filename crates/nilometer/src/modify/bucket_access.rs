//! Access to the buckets that a statement on measurements may change, planned as a query for the
//! measurements would be.
//!
//! An index may lead to more buckets than hold a match, and a hinted one to fewer. `timeseries` tests
//! the measurements in them, and skips the buckets that the statement itself has written.

use std::sync::Arc;

use super::measurements::Measurements;
use crate::error::{Error, Result};
use crate::query::planner::logical::{LogicalPlan, LogicalSource};
use crate::query::planner::physical::{BucketInput, Input, lower};
use crate::query::planner::resolve;
use crate::query::planner::rules::{IndexOnBuckets, PhysicalRule};
use crate::query::planner::settings::PlanSettings;
use crate::query::source::{Direction, ScanCounters};
use crate::timeseries::{BucketRange, StoredBuckets};

impl Measurements<'_> {
    /// Plans the access to buckets.
    pub(crate) fn plan(self) -> Result<BucketInput> {
        let statement = self.statement;
        let selector = statement.selector;
        let source = self.cx.buckets.source(self.collection)?;
        let mut scan = resolve::measurements(source, self.collection.namespace.to_string());
        scan.is_natural = selector.hint.natural.is_some();
        scan.hint = selector.hint.bucket_index.clone();
        if statement.is_backward() {
            scan.direction = Direction::Backward;
        }
        scan.filter = Some(selector.filter.clone().into_owned());
        let settings = PlanSettings {
            now_ms: statement.eval.now_ms,
            variables: statement.eval.variables.into(),
            collator: statement.collator.cloned(),
            ..PlanSettings::default()
        };
        let source = LogicalSource::Measurements(Box::new(scan));
        let mut plan = lower(LogicalPlan::new(source, Vec::new()), &settings);
        IndexOnBuckets.apply(&mut plan, &settings);
        match plan.input {
            Input::Buckets(input) => Ok(*input),
            // Rules on buckets leave them buckets.
            _ => Err(Error::bad_value("not a time-series collection")),
        }
    }

    /// Reads the buckets between two ids that may hold a match.
    pub(super) fn find(
        self,
        range: BucketRange,
        counters: &Arc<ScanCounters>,
    ) -> Result<StoredBuckets> {
        match self.plan()?.buckets.index {
            Some(choice) => {
                let access = self.cx.buckets;
                access.by_index(self.collection, &choice.scan(), range, counters)
            }
            None => self.cx.timeseries.reader.scan(self.collection, range),
        }
    }
}

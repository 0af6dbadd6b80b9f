//! How the buckets are found that a change of measurements looks at: planned as a query for the
//! measurements would be.
//!
//! An index may lead to more buckets than hold a match, and one of a hint to fewer. What is in them is
//! asked by [`crate::timeseries`], which also knows which of them the statement has made itself.

use std::sync::Arc;

use super::view_change::Measurements;
use crate::error::{Error, Result};
use crate::eval::matcher::MatchExpression;
use crate::query::exec::ExecSettings;
use crate::query::pipeline::{MatchStage, Stage};
use crate::query::planner::rules::{IndexOnBuckets, MatchOnBuckets, Rule};
use crate::query::planner::{BucketInput, Input, LogicalPlan, resolve};
use crate::query::source::{Direction, ScanCounters};
use crate::timeseries::{BucketRange, BucketScan};
use crate::write::Selection;

impl Measurements<'_> {
    /// How the buckets of a selection are read.
    pub(crate) fn plan(self, selection: &Selection<'_>) -> Result<BucketInput> {
        let source = Arc::new(self.stored.buckets(self.collection.clone())?);
        let mut input = resolve::buckets(source, self.collection.namespace.to_string());
        input.is_natural = selection.natural;
        input.hint = selection.hinted.cloned();
        if selection.backward {
            input.direction = Direction::Backward;
        }
        let filter = selection.filter.clone();
        let stages = match filter {
            MatchExpression::AlwaysTrue => Vec::new(),
            filter => vec![Stage::Match(MatchStage::new(filter))],
        };
        let settings = ExecSettings {
            now_ms: selection.eval.now_ms,
            variables: selection.eval.variables.into(),
            collator: selection.collator.cloned(),
            ..ExecSettings::default()
        };
        let mut plan = LogicalPlan::new(Input::Buckets(Box::new(input)), stages);
        MatchOnBuckets.apply(&mut plan, &settings);
        IndexOnBuckets.apply(&mut plan, &settings);
        match plan.input {
            Input::Buckets(input) => Ok(*input),
            // Rules on buckets leave them buckets.
            _ => Err(Error::bad_value("not a time-series collection")),
        }
    }

    /// The buckets of a selection that lie between two ids.
    pub(crate) fn find(
        self,
        selection: &Selection<'_>,
        range: BucketRange,
        counters: &Arc<ScanCounters>,
    ) -> Result<BucketScan> {
        match self.plan(selection)?.buckets.index {
            Some(choice) => {
                let buckets = self.stored.buckets(self.collection.clone())?;
                buckets.by_index(&choice.scan(), range, counters)
            }
            None => self.stored.timeseries.reader.scan(self.collection, range),
        }
    }
}

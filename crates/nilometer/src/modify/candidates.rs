//! Access to the documents of an ordinary collection that a statement may change, planned as a query for
//! them would be.

use std::sync::Arc;

use super::ModifyStatement;
use crate::error::Result;
use crate::eval::matcher::MatchExpression;
use crate::query::exec::ExecSettings;
use crate::query::exec::build::Builder;
use crate::query::exec::scan::trial::Trials;
use crate::query::exec::scan::write_candidates::Targets;
use crate::query::pipeline::{MatchStage, SortStage, Stage};
use crate::query::planner::access::hint::Forced;
use crate::query::planner::logical::{LogicalPlan, LogicalSource};
use crate::query::planner::physical::PhysicalPlan;
use crate::query::planner::{self, resolve};
use crate::query::source::{Collections, Direction, Resolved};

impl ModifyStatement<'_> {
    /// Plans the query that finds the documents; `None` if the namespace is no ordinary collection.
    pub(crate) fn plan(
        &self,
        collections: &Arc<dyn Collections>,
        settings: ExecSettings,
    ) -> Result<Option<(Builder, PhysicalPlan)>> {
        let (namespace, selector) = (self.namespace, self.selector);
        let Resolved::Ordinary(source) =
            collections.resolve(&namespace.database, &namespace.collection)?
        else {
            return Ok(None);
        };
        let hint = &selector.hint;
        let mut scan = resolve::records(source, namespace.to_string());
        scan.is_natural = hint.natural.is_some();
        scan.direction = hint.natural.unwrap_or(Direction::Forward);
        scan.forced = hint.index.clone().map(|hint| Forced {
            hint,
            min: None,
            max: None,
        });
        let mut stages = Vec::new();
        if !matches!(*selector.filter, MatchExpression::AlwaysTrue) {
            let filter = selector.filter.clone().into_owned();
            stages.push(Stage::Match(MatchStage::new(filter)));
        }
        if let Some(pattern) = &selector.sort {
            stages.push(Stage::Sort(SortStage::new(pattern.clone())));
        }
        let settings = Arc::new(settings);
        let plan = LogicalPlan::new(LogicalSource::Records(Box::new(scan)), stages);
        let trials = Trials {
            settings: &settings,
            operation: self.operation,
        };
        let plan = planner::optimize(plan, settings.choice(Some(&trials)))?;
        let builder = Builder {
            collections: Arc::clone(collections),
            database: self.operation.database.as_str().into(),
            collection: Some(namespace.collection.as_str().into()),
            settings,
            depth: 0,
        };
        Ok(Some((builder, plan)))
    }

    /// Looks for an index that leads to the documents.
    pub(crate) fn find_candidates(
        &mut self,
        collections: &Arc<dyn Collections>,
        settings: ExecSettings,
    ) -> Result<()> {
        let memory = Arc::clone(&settings.memory);
        let planned = self.plan(collections, settings)?;
        self.candidates = planned.and_then(|(_, plan)| Targets::of(&plan, &memory));
        Ok(())
    }
}

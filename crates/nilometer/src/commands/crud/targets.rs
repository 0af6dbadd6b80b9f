//! How the documents of a write statement are found: planned as a query for them would be.

use std::sync::Arc;

use nilometer_bson::{Document, Value};

use super::change::Selected;
use super::query::settings;
use crate::catalog::Namespace;
use crate::database::Database;
use crate::error::Result;
use crate::eval::Collation;
use crate::eval::matcher::MatchExpression;
use crate::operation::OperationContext;
use crate::query::pipeline::{MatchStage, SortStage, Stage};
use crate::query::planner::access::hint::Forced;
use crate::query::planner::access::targets::Targets;
use crate::query::planner::{Builder, Input, LogicalPlan, access, resolve, rules};
use crate::query::source::{Collections, Direction, Resolved};

impl Selected {
    /// The query that finds what the statement means, and what builds it; `None` if there is no
    /// ordinary collection of that name.
    pub(crate) fn plan(
        &self,
        database: &Database,
        operation: &OperationContext,
        namespace: &Namespace,
        variables: &[Value],
        collation: &Collation,
    ) -> Result<Option<(Builder, LogicalPlan)>> {
        let collections = database.collections();
        let Resolved::Ordinary(source) =
            collections.resolve(&namespace.database, &namespace.collection)?
        else {
            return Ok(None);
        };
        let mut input = resolve::records(source, namespace.to_string());
        input.is_natural = self.natural.is_some();
        input.direction = self.natural.unwrap_or(Direction::Forward);
        input.forced = self.hint.clone().map(|hint| Forced {
            hint,
            min: None,
            max: None,
        });
        let mut stages = Vec::new();
        if !matches!(self.filter, MatchExpression::AlwaysTrue) {
            stages.push(Stage::Match(MatchStage::new(self.filter.clone())));
        }
        if let Some(pattern) = &self.sort {
            stages.push(Stage::Sort(SortStage::new(pattern.clone())));
        }
        let settings = Arc::new(settings(
            database,
            operation,
            variables.into(),
            Some(false),
            collation,
        ));
        let mut plan = LogicalPlan::new(Input::Records(Box::new(input)), stages);
        rules::apply_all(&mut plan, &settings);
        access::choose::choose(&mut plan, &settings, Some(operation))?;
        let builder = Builder {
            collections: Arc::clone(&database.queries().collections),
            database: operation.database.as_str().into(),
            collection: Some(namespace.collection.as_str().into()),
            settings,
            depth: 0,
        };
        Ok(Some((builder, plan)))
    }

    /// Looks up what the statement means in an index, if there is one that knows.
    pub(crate) fn find_targets(
        &mut self,
        database: &Database,
        operation: &OperationContext,
        namespace: &Namespace,
        variables: &[Value],
        collation: &Collation,
    ) -> Result<()> {
        let planned = self.plan(database, operation, namespace, variables, collation)?;
        self.targets = planned.and_then(|(_, plan)| Targets::of(&plan));
        Ok(())
    }
}

/// The name and figures of what a write does to the documents found, for explain.
#[derive(Clone, Debug)]
pub(crate) struct WriteStep {
    /// `UPDATE` or `DELETE`.
    pub(crate) name: &'static str,
    /// What would be done.
    pub(crate) figures: Document,
}

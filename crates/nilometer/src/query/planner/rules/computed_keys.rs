//! Merges a stage that computes group keys into its `$group`.

use std::collections::BTreeSet;
use std::sync::Arc;

use nilometer_bson::{Document, DocumentBuilder, Value, ValueRef};

use super::LogicalRule;
use crate::eval::Dependencies;
use crate::eval::expression::Expression;
use crate::query::pipeline::{GroupStage, ProjectStage, Stage};
use crate::query::planner::logical::{LogicalPlan, LogicalSource};
use crate::query::planner::settings::PlanSettings;

/// Merges `$addFields` (or `$project`) and a `$group` by its computed fields into one `$group`.
///
/// Keys of metadata and of time bins are then found in blocks, whichever way the pipeline spells them.
///
/// Conditions: every computed field is a part of the key, or the date of a `$dateTrunc` in the key, and has no other
/// reader; the other fields the group reads are unchanged by the stage; no computed expression is random or an object
/// (a key would show missing members of an object as null).
pub struct ComputedKeys;

impl LogicalRule for ComputedKeys {
    fn name(&self) -> &'static str {
        "ComputedKeys"
    }

    fn apply(&self, plan: &mut LogicalPlan, _: &PlanSettings) -> bool {
        // The text of the new stage is for explain: partitions merge the stages themselves.
        if matches!(plan.source, LogicalSource::Partitions(_)) {
            return false;
        }
        for at in 1..plan.stages.len() {
            let Some([Stage::Project(project), Stage::Group(group)]) =
                plan.stages.get(at - 1..at + 1)
            else {
                continue;
            };
            if let Some(group) = by_itself(project, group) {
                plan.stages.splice(at - 1..at + 1, [Stage::Group(group)]);
                return true;
            }
        }
        false
    }
}

fn by_itself(project: &ProjectStage, group: &GroupStage) -> Option<GroupStage> {
    let computed = project.computed();
    if computed.is_empty() {
        return None;
    }
    for (path, expression) in &computed {
        let mut dependencies = Dependencies::default();
        expression.dependencies(&mut dependencies);
        let is_object = matches!(expression, Expression::Object(_));
        if path.contains('.') || is_object || dependencies.random {
            return None;
        }
    }
    let mut read = Dependencies::default();
    for (_, spec) in group.fields.iter() {
        spec.dependencies(&mut read);
    }
    if read.whole || !read.paths.iter().all(|path| project.leaves_alone(path)) {
        return None;
    }
    let mut keys = Keys {
        project,
        computed: &computed,
        used: BTreeSet::new(),
    };
    let key = keys.rewritten(&group.key)?;
    if keys.used.len() < computed.len() {
        return None;
    }
    let source = keys.shown(&group.source);
    Some(GroupStage::new(key, Arc::clone(&group.fields), source))
}

struct Keys<'p> {
    project: &'p ProjectStage,
    computed: &'p [(String, &'p Expression)],
    used: BTreeSet<String>,
}

impl Keys<'_> {
    /// Rewrites a key, or a part of one, to the fields the computing stage reads.
    fn rewritten(&mut self, key: &Expression) -> Option<Expression> {
        match key {
            Expression::FieldPath(path) if !self.project.leaves_alone(path.as_str()) => {
                let found = self.computed.iter().find(|(name, _)| name == path.as_str());
                let (name, expression) = found?;
                self.used.insert(name.clone());
                Some((*expression).clone())
            }
            Expression::Object(members) => {
                let members = members.iter().map(|(name, part)| {
                    let part = self.rewritten(part)?;
                    Some((Arc::clone(name), part))
                });
                members.collect::<Option<_>>().map(Expression::Object)
            }
            // With constant bins it reads the date only.
            Expression::DateTrunc(trunc) if trunc.constant_bins().is_some() => {
                let mut trunc = trunc.clone();
                trunc.date = self.rewritten(&trunc.date)?;
                Some(Expression::DateTrunc(trunc))
            }
            other => self.reads_nothing_computed(other).then(|| other.clone()),
        }
    }

    /// True if the computing stage leaves the fields the expression reads unchanged.
    fn reads_nothing_computed(&self, expression: &Expression) -> bool {
        let mut dependencies = Dependencies::default();
        expression.dependencies(&mut dependencies);
        let mut paths = dependencies.paths.iter();
        !dependencies.whole && paths.all(|path| self.project.leaves_alone(path))
    }

    /// Returns the argument of the group with the rewritten key.
    fn shown(&self, source: &Document) -> Document {
        let mut out = DocumentBuilder::new();
        for field in source.iter() {
            match field.name() {
                "_id" => out.append("_id", self.written(field.value())),
                _ => out.append_element(field),
            };
        }
        out.finish()
    }

    fn written(&self, key: ValueRef<'_>) -> Value {
        match key {
            ValueRef::String(text) => {
                let name = text
                    .strip_prefix('$')
                    .filter(|name| self.used.contains(*name));
                let found = name.zip(self.project.source.as_ref().as_document());
                found.map_or_else(
                    || text.into(),
                    |(name, written)| written.get(name).to_value(),
                )
            }
            ValueRef::Document(members) => {
                let mut out = DocumentBuilder::new();
                for member in members {
                    out.append(member.name(), self.written(member.value()));
                }
                out.finish().into()
            }
            other => other.to_value(),
        }
    }
}

//! A `$group` by what a stage before it computes.

use std::collections::BTreeSet;
use std::sync::Arc;

use nilometer_bson::{Document, DocumentBuilder, Value, ValueRef};

use super::LogicalRule;
use crate::eval::Dependencies;
use crate::eval::expression::Expression;
use crate::query::pipeline::{GroupStage, ProjectStage, Stage};
use crate::query::planner::logical::LogicalPlan;
use crate::query::planner::settings::PlanSettings;

/// `$addFields` (or `$project`) and a `$group` by what it computes are a `$group` that computes its key itself.
///
/// So keys of metadata and of bins of time are found in the blocks, however they are written.
///
/// Conditions: every field computed is a part of the key, or the date of a `$dateTrunc` that is one, and is read
/// by nothing else; what else the group reads is as it was before; nothing computed is random, or an object, whose
/// missing members a key would show as null.
pub struct ComputedKeys;

impl LogicalRule for ComputedKeys {
    fn name(&self) -> &'static str {
        "ComputedKeys"
    }

    fn apply(&self, plan: &mut LogicalPlan, _: &PlanSettings) -> bool {
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
    /// A key, or a part of one, in terms of what the computing stage reads.
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
            // With constant bins the date is all it reads.
            Expression::DateTrunc(trunc) if trunc.constant_bins().is_some() => {
                let mut trunc = trunc.clone();
                trunc.date = self.rewritten(&trunc.date)?;
                Some(Expression::DateTrunc(trunc))
            }
            other => self.reads_nothing_computed(other).then(|| other.clone()),
        }
    }

    /// True if what an expression reads is the same before.
    fn reads_nothing_computed(&self, expression: &Expression) -> bool {
        let mut dependencies = Dependencies::default();
        expression.dependencies(&mut dependencies);
        let mut paths = dependencies.paths.iter();
        !dependencies.whole && paths.all(|path| self.project.leaves_alone(path))
    }

    /// The argument of the group with its key as it is now.
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

//! The cut of a pipeline over a collection in several partitions: a part that each partition runs, and the rest, which
//! runs here over what they return.
//!
//! | stage | in each partition | here |
//! |---|---|---|
//! | works on one document: `$match`, `$project`, `$unwind`, … | the stage | |
//! | `$group` that merges exactly | the groups with their states | merges the states |
//! | `$sort` | sorts, up to the limit | merges by sort key, up to the limit |
//! | `$limit n`, also behind `$skip s` | the first n, or s + n | the same stages again |
//! | `$geoNear`, `$near` | the stage, up to the limit | merges by distance, up to the limit |
//! | `$text` | the stage; documents bring their scores if these are read | |
//! | any other | | the stage |
//!
//! A rollup is read in another way: its bins are groups, so those that several partitions have parts of are merged first.
//!
//! The cut is behind the first stage that is not of the first row. In front of it the partitions drop the fields that the
//! rest does not need. If only one partition is read, stages of the other rows that read nothing else run there, too.
//!
//! A part is text. So a stage stays here if its text is not the whole stage: the projection of a `find`, `$meta`, variables
//! whose names are not known. The plan before the cut has been through the logical rules, and the partitions apply all
//! rules again to the part, with their indexes and bounds.

use std::sync::Arc;

use nilometer_bson::{DocRef, Document, DocumentBuilder, doc};

use super::logical::{LogicalPartitions, LogicalPlan};
use super::physical::{
    Input, PartitionsInput, PhysicalGroup, PhysicalPlan, PhysicalStage, key_filter, merges_exactly,
    needs_of,
};
use super::settings::PlanSettings;
use crate::error::{Error, ErrorCode, Result};
use crate::eval::Collation;
use crate::eval::matcher::MatchExpression;
use crate::eval::projection::MetaField;
use crate::eval::sort_key::SortPattern;
use crate::operation::PartMetadata;
use crate::query::partitions::{Part, PartForm};
use crate::query::pipeline::needs::Needs;
use crate::query::pipeline::{PIPELINE_STAGES_MAX, Stage};

/// The name explain shows where a part has stages.
const NAME: &str = "CutAtPartitions";

/// Cuts a plan over `scan`.
pub fn cut(
    mut plan: LogicalPlan,
    scan: LogicalPartitions,
    settings: &PlanSettings,
) -> Result<PhysicalPlan> {
    let filter = match plan.stages.first() {
        Some(Stage::Match(stage)) => Some(&stage.filter),
        Some(Stage::GeoNear(near)) => near.query.as_ref(),
        _ => None,
    };
    let targets = scan.source.targets(filter)?;
    // What one partition has of a rollup is the rollup.
    if scan.rollup.is_some() && targets.len() > 1 {
        return Ok(bins(plan, scan, targets, settings));
    }
    let mut sides = Sides {
        is_single: targets.len() == 1,
        knows_variables: settings.variables.is_empty() || scan.variables.is_some(),
        ..Sides::default()
    };
    let mut fired = plan.fired;
    sides.take_indexed(&mut plan.stages)?;
    if settings.options.no_rules {
        sides.rest.extend(plan.stages.into_iter().map(Into::into));
    } else {
        sides.divide(plan.stages);
        sides.drop_fields(&plan.wanted);
        if !sides.stages.is_empty() {
            fired.push(NAME);
        }
    }
    let names = scan.variables.unwrap_or_default();
    let mut variables = DocumentBuilder::new();
    for (name, value) in names.iter().zip(&*settings.variables) {
        variables.append_ref(name, value.as_ref());
    }
    let part = Part {
        stages: sides.stages,
        form: sides.form,
        now_ms: settings.now_ms,
        variables: variables.finish(),
        collation: Collation::from(settings.collator.clone()).to_document(),
        hint: scan.hint,
        allows_disk_use: scan.allows_disk_use,
        metadata: sides.metadata,
    };
    Ok(PhysicalPlan {
        input: Input::Partitions(Box::new(PartitionsInput {
            source: scan.source,
            namespace: scan.namespace,
            targets,
            part,
            order: sides.order,
            rollup: None,
        })),
        stages: sides.rest,
        wanted: plan.wanted,
        distinct: plan.distinct,
        fired,
    })
}

/// Returns the plan over a rollup: the partitions return bins with their states, those whose keys may pass. Everything else runs
/// here, over documents of merged bins.
fn bins(
    plan: LogicalPlan,
    scan: LogicalPartitions,
    targets: Vec<usize>,
    settings: &PlanSettings,
) -> PhysicalPlan {
    let mut part = Part {
        stages: Vec::new(),
        form: PartForm::States,
        now_ms: settings.now_ms,
        variables: Document::new(),
        // Keys are compared byte by byte.
        collation: Collation::SIMPLE.to_document(),
        hint: scan.hint,
        allows_disk_use: scan.allows_disk_use,
        metadata: PartMetadata::default(),
    };
    if let Some(Stage::Match(stage)) = plan.stages.first()
        && let Some(rollup) = &scan.rollup
        && settings.collator.is_none()
        && !settings.options.no_rules
    {
        let (of_key, _) = key_filter(&rollup.definition, stage.filter.clone());
        let text = of_key.to_document();
        if !matches!(of_key, MatchExpression::AlwaysTrue) && !names_variable(text.as_ref()) {
            part.stages.push(doc! {"$match": text});
        }
    }
    PhysicalPlan {
        input: Input::Partitions(Box::new(PartitionsInput {
            source: scan.source,
            namespace: scan.namespace,
            targets,
            part,
            order: None,
            rollup: scan.rollup,
        })),
        stages: plan.stages.into_iter().map(Into::into).collect(),
        wanted: plan.wanted,
        distinct: plan.distinct,
        fired: plan.fired,
    }
}

/// The two sides of a cut.
#[derive(Default)]
struct Sides {
    is_single: bool,
    knows_variables: bool,
    /// The stages of the part.
    stages: Vec<Document>,
    form: PartForm,
    order: Option<SortPattern>,
    /// The field by which the last stage of the part, a `$geoNear`, sorts.
    distance_field: Option<Arc<str>>,
    metadata: PartMetadata,
    rest: Vec<PhysicalStage>,
}

impl Sides {
    /// Moves the stages to the part that only an index answers, which the partitions have: with or without rules.
    fn take_indexed(&mut self, stages: &mut Vec<Stage>) -> Result<()> {
        let is_indexed = |stage: &Stage| match stage {
            Stage::Match(stage) => stage.filter.text().is_some(),
            Stage::GeoNear(_) | Stage::TextScore(_) => true,
            _ => false,
        };
        while let Some(stage) = stages.first().filter(|stage| is_indexed(stage)) {
            let text = self.text(stage).ok_or_else(|| {
                not_over_partitions("$geoNear or $text with variables of an outer pipeline")
            })?;
            match stage {
                Stage::GeoNear(near) => {
                    let field = near.output.distance_field.clone();
                    self.metadata.is_near = field.is_none();
                    let adds = &near.output.adds;
                    self.metadata.distance = adds.contains(&MetaField::GeoNearDistance);
                    self.metadata.point = adds.contains(&MetaField::GeoNearPoint);
                    let carrier = MetaField::GeoNearDistance.carrier();
                    self.distance_field = Some(field.unwrap_or_else(|| carrier.into()));
                }
                Stage::TextScore(_) => self.metadata.score = true,
                _ => {}
            }
            self.stages.extend(text);
            stages.remove(0);
        }
        Ok(())
    }

    /// True if the partitions have sorted so already, by distance.
    fn is_sorted_so(&mut self, stage: &Stage) -> bool {
        let Some(field) = self.distance_field.take() else {
            return false;
        };
        match stage {
            Stage::Sort(sort) => {
                let by = sort.pattern.single_field();
                by.is_some_and(|(path, descending)| path.as_str() == &*field && !descending)
            }
            _ => false,
        }
    }

    fn divide(&mut self, stages: Vec<Stage>) {
        let mut stages = stages.into_iter().peekable();
        while let Some(stage) = stages.peek() {
            // One stage for the fields that are dropped, and one for a limit.
            if self.stages.len() + 2 > PIPELINE_STAGES_MAX {
                break;
            }
            if self.is_sorted_so(stage) {
                let limit = match stages.next() {
                    Some(Stage::Sort(sort)) => {
                        self.order = Some(sort.pattern);
                        sort.limit
                    }
                    _ => None,
                };
                if let Some(most) = limit {
                    let amount = i64::try_from(most).unwrap_or(i64::MAX);
                    self.stages.push(doc! {"$limit": amount});
                    self.rest.push(PhysicalStage::Limit(most));
                }
                if !self.is_single {
                    break;
                }
                continue;
            }
            // A stage that makes other documents would lose what they bring.
            if self.metadata.is_any() && !keeps_all_fields(stage) {
                break;
            }
            let Some(text) = self.text(stage) else {
                break;
            };
            if !self.is_single && !is_of_one_document(stage) {
                let stage = stages.next();
                if let Some(stage) = stage {
                    self.share(stage, stages.peek());
                }
                break;
            }
            self.stages.extend(text);
            stages.next();
        }
        self.rest.extend(stages.map(Into::into));
    }

    /// Divides a stage that works on many documents. `next` is the stage behind it.
    fn share(&mut self, stage: Stage, next: Option<&Stage>) {
        let amount = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        let limit = |n: u64| doc! {"$limit": amount(n)};
        match stage {
            Stage::Group(group) if merges_exactly(&group) => {
                self.stages
                    .push(doc! {"$group": group.accumulator_source()});
                self.form = PartForm::States;
                let merging = PhysicalGroup::of_states(group);
                self.rest.push(PhysicalStage::Group(merging));
            }
            Stage::Sort(sort) if !sort.is_random() => {
                self.stages.push(doc! {"$sort": sort.pattern.to_document()});
                if let Some(most) = sort.limit {
                    self.stages.push(limit(most));
                    self.rest.push(PhysicalStage::Limit(most));
                }
                self.order = Some(sort.pattern);
            }
            Stage::Limit(most) => {
                self.stages.push(limit(most));
                self.rest.push(PhysicalStage::Limit(most));
            }
            Stage::Skip(skipped) => {
                if let Some(Stage::Limit(most)) = next
                    && let Some(most) = skipped.checked_add(*most)
                {
                    self.stages.push(limit(most));
                }
                self.rest.push(PhysicalStage::Skip(skipped));
            }
            other => self.rest.push(other.into()),
        }
    }

    /// Returns a stage as text; `None` if it must run here.
    fn text(&self, stage: &Stage) -> Option<Vec<Document>> {
        let amount = |n: u64| i64::try_from(n).ok();
        let text = match stage {
            // A rule has put a condition or an order on a field that carries metadata.
            Stage::Match(stage) if reads_carrier(&stage.needs()) => return None,
            Stage::Sort(sort)
                if !sort.pattern.reads_text_score() && reads_carrier(&sort.needs()) =>
            {
                return None;
            }
            Stage::Match(stage) => vec![doc! {"$match": stage.source.clone()}],
            Stage::GeoNear(_) => vec![stage.explain()],
            Stage::TextScore(_) => Vec::new(),
            Stage::Project(stage) if stage.is_as_written => {
                let mut out = DocumentBuilder::new();
                out.append(stage.name(), stage.source.clone());
                vec![out.finish()]
            }
            Stage::Group(group) => vec![doc! {"$group": group.source.clone()}],
            Stage::Sort(sort) => {
                let mut out = vec![doc! {"$sort": sort.pattern.to_document()}];
                if let Some(limit) = sort.limit {
                    out.push(doc! {"$limit": amount(limit)?});
                }
                out
            }
            Stage::Limit(n) => vec![doc! {"$limit": amount(*n)?}],
            Stage::Skip(n) => vec![doc! {"$skip": amount(*n)?}],
            Stage::Unwind(_) | Stage::ReplaceRoot(_) | Stage::Redact(_) | Stage::Sample(_) => {
                vec![stage.explain()]
            }
            _ => return None,
        };
        let is_known =
            |document: &Document| self.knows_variables || !names_variable(document.as_ref());
        text.iter().all(is_known).then_some(text)
    }

    /// Lets the partitions drop the fields that the rest does not read.
    fn drop_fields(&mut self, wanted: &Needs) {
        // What documents bring is in a field that no projection names.
        if self.form == PartForm::States || self.metadata.is_any() {
            return;
        }
        let mut needed = needs_of(&self.rest, wanted);
        for path in self.order.iter().flat_map(SortPattern::paths) {
            needed.add_path(path.as_str());
        }
        let Needs::Fields(fields) = needed else {
            return;
        };
        let is_plain = |name: &Arc<str>| {
            !name.is_empty() && !name.starts_with('$') && !name.contains(['.', '\0'])
        };
        if !fields.iter().all(is_plain) {
            return;
        }
        let shown = fields.iter().any(|name| **name != *"_id");
        if !shown && !fields.contains("_id") {
            self.stages
                .push(doc! {"$replaceWith": doc! {"$literal": doc! {}}});
            return;
        }
        let mut project = DocumentBuilder::new();
        project.append("_id", fields.contains("_id"));
        for name in fields.iter().filter(|name| ***name != *"_id") {
            project.append(name, true);
        }
        self.stages.push(doc! {"$project": project.finish()});
    }
}

/// True if a stage makes of each document any number of documents, whatever the others are.
fn is_of_one_document(stage: &Stage) -> bool {
    matches!(
        stage,
        Stage::Match(_)
            | Stage::Project(_)
            | Stage::Unwind(_)
            | Stage::ReplaceRoot(_)
            | Stage::Redact(_)
    )
}

/// True if one of the fields is that of some metadata: no client can name it.
fn reads_carrier(needs: &Needs) -> bool {
    match needs {
        Needs::Fields(fields) => fields.iter().any(|name| name.starts_with('$')),
        Needs::All => false,
    }
}

/// True if the documents that leave a stage are among those that enter it.
fn keeps_all_fields(stage: &Stage) -> bool {
    matches!(
        stage,
        Stage::Match(_) | Stage::Sort(_) | Stage::Limit(_) | Stage::Skip(_)
    )
}

/// True if the text may read a user's variable: `$$` and a letter that is no capital.
fn names_variable(text: DocRef<'_>) -> bool {
    let bytes = text.as_bytes().windows(3);
    bytes.into_iter().any(
        |at| matches!(at, [b'$', b'$', first] if first.is_ascii_lowercase() || !first.is_ascii()),
    )
}

/// Returns the error for what no cut can divide, and the rest cannot do either.
pub fn not_over_partitions(what: &str) -> Error {
    Error::new(
        ErrorCode::CommandNotSupported,
        format!("{what} is not supported on a collection in several partitions"),
    )
}

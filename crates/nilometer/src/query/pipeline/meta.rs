//! `$meta` in a pipeline: the stage that knows a value adds it as a field, the last stage that reads it removes it.
//!
//! ```text
//! {$sort: …} ── adds $sortKey ──► stages that keep their documents ──► {$project: {k: {$meta: "sortKey"}}}
//! ```
//!
//! | metadata | comes from |
//! |---|---|
//! | `sortKey` | the last `$sort` before its first reader |
//! | `geoNearDistance`, `geoNearPoint` | `$geoNear` |
//! | `recordId`, `indexKey` | the collection; the command asks the plan for them ([`reads`]) |
//!
//! A stage that makes new documents, such as `$group`, ends the way: a reader behind it gets error 40218, for record ids
//! and index keys a missing value.

use super::needs::Needs;
use super::{GeoNearStage, ProjectStage, Stage};
use crate::error::Result;
use crate::eval::projection::MetaField;
use nilometer_bson::DocRef;
use std::sync::Arc;

/// True if the text of a pipeline contains `$meta`. Without it, no stage reads metadata: the fields that its stages need
/// are then not asked for, which costs more than planning the stages.
pub fn is_mentioned(stages: &[DocRef<'_>]) -> bool {
    const META: &[u8] = b"$meta";
    stages
        .iter()
        .any(|stage| stage.as_bytes().windows(META.len()).any(|at| at == META))
}

/// Connects the readers of metadata with the stages that know it.
pub(super) fn settle(stages: &mut Vec<Stage>) -> Result<()> {
    for field in MetaField::ALL {
        let (Some(first), Some(last)) = (
            stages.iter().position(|stage| is_reader(stage, field)),
            stages.iter().rposition(|stage| is_reader(stage, field)),
        ) else {
            continue;
        };
        let start = match field {
            MetaField::SortKey => {
                let before = stages.get(..first).unwrap_or_default();
                before
                    .iter()
                    .rposition(|stage| matches!(stage, Stage::Sort(_)))
            }
            MetaField::GeoNearDistance | MetaField::GeoNearPoint => {
                matches!(stages.first(), Some(Stage::GeoNear(_))).then_some(0)
            }
            MetaField::RecordId | MetaField::IndexKey => Some(0),
        };
        let way = start.and_then(|start| stages.get(start..last));
        let arrives = way.is_some_and(|way| way.iter().all(keeps_documents));
        match (start, arrives) {
            (Some(start), true) => carry(field, stages, start, last),
            _ if field.is_required() => return Err(field.unavailable()),
            _ => {}
        }
    }
    Ok(())
}

/// True if a stage reads this metadata.
pub fn reads(stages: &[Stage], field: MetaField) -> bool {
    stages.iter().any(|stage| is_reader(stage, field))
}

fn is_reader(stage: &Stage, field: MetaField) -> bool {
    if let Stage::Project(project) = stage
        && project.returns(field)
    {
        return true;
    }
    match stage.needs(&Needs::none()) {
        Needs::Fields(fields) => fields.contains(field.carrier()),
        Needs::All => false,
    }
}

/// True if the documents of the output are those of the input, with other fields.
fn keeps_documents(stage: &Stage) -> bool {
    matches!(
        stage,
        Stage::Match(_)
            | Stage::Project(_)
            | Stage::Sort(_)
            | Stage::Limit(_)
            | Stage::Skip(_)
            | Stage::Unwind(_)
            | Stage::GeoNear(_)
            | Stage::Sample(_)
    )
}

/// Lets the field exist from the stage at `start` to that at `last`.
fn carry(field: MetaField, stages: &mut Vec<Stage>, start: usize, last: usize) {
    for (at, stage) in stages
        .iter_mut()
        .enumerate()
        .skip(start)
        .take(last - start + 1)
    {
        match stage {
            Stage::Project(project) => *project = project.carrying(field, at < last),
            Stage::GeoNear(near) => {
                let mut adding = GeoNearStage::clone(near);
                adding.output.adds.push(field);
                *near = Arc::new(adding);
            }
            _ => {}
        }
    }
    if !matches!(stages.get(last), Some(Stage::Project(_) | Stage::Group(_))) {
        stages.insert(last + 1, Stage::Project(ProjectStage::without(field)));
    }
    if field == MetaField::SortKey {
        add_sort_keys(stages, start, last);
    }
}

/// Adds the key behind each sort between `start` and `last`, and behind the limits that belong to it.
fn add_sort_keys(stages: &mut Vec<Stage>, start: usize, last: usize) {
    for at in (start..last).rev() {
        let Some(Stage::Sort(sort)) = stages.get(at) else {
            continue;
        };
        let adding = ProjectStage::of_sort_key(sort.pattern.clone());
        let behind = stages.iter().skip(at + 1).take(last - at - 1);
        let limits = behind.take_while(|stage| matches!(stage, Stage::Limit(_) | Stage::Skip(_)));
        let place = at + 1 + limits.count();
        stages.insert(place, Stage::Project(adding));
    }
}

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
//! | `textScore` | a stage behind the first `$match`, if that has a `$text` |
//! | `recordId`, `indexKey` | the collection; the command asks the plan for them ([`reads`]) |
//!
//! A stage that makes new documents, such as `$group`, ends the way: a reader behind it gets error 40218, for record ids
//! and index keys a missing value.

use super::needs::Needs;
use super::{GeoNearStage, ProjectStage, Stage, TextScoreStage};
use crate::error::Result;
use crate::eval::matcher::TextTest;
use crate::eval::projection::MetaField;
use crate::operation::PartMetadata;
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
    let mut fields = MetaField::ALL.into_iter();
    fields.try_for_each(|field| settle_one(stages, field))
}

/// Connects the readers of the text score of a `find` with its `$match`.
pub fn settle_text_score(stages: &mut Vec<Stage>) -> Result<()> {
    settle_one(stages, MetaField::TextScore)
}

fn settle_one(stages: &mut Vec<Stage>, field: MetaField) -> Result<()> {
    let readers = |stages: &[Stage]| {
        let first = stages.iter().position(|stage| is_reader(stage, field));
        first.zip(stages.iter().rposition(|stage| is_reader(stage, field)))
    };
    let Some((first, last)) = readers(stages) else {
        return Ok(());
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
        MetaField::TextScore => text_of(stages).map(|_| 0),
    };
    let way = start.and_then(|start| stages.get(start..last));
    let arrives = way.is_some_and(|way| way.iter().all(keeps_documents));
    match (start, arrives) {
        (Some(start), true) => {
            carry(field, stages, start, last);
            Ok(())
        }
        _ if field.is_required() => Err(field.unavailable()),
        _ => Ok(()),
    }
}

/// Lets the documents of a part that a router asks for bring metadata. Behind its first stage a part with metadata has nothing but
/// stages that keep documents as they are.
pub fn settle_part(stages: &mut Vec<Stage>, wanted: PartMetadata) {
    if let Some(Stage::GeoNear(near)) = stages.first_mut() {
        let output = &mut Arc::make_mut(near).output;
        let fields = [
            (wanted.distance, MetaField::GeoNearDistance),
            (wanted.point, MetaField::GeoNearPoint),
        ];
        let asked = fields.into_iter().filter(|(is, _)| *is);
        output.adds = asked.map(|(_, field)| field).collect();
        if wanted.is_near {
            output.distance_field = None;
            output.is_ordered = wanted.distance;
        }
    }
    if let Some(test) = text_of(stages).filter(|_| wanted.score).map(Arc::clone) {
        // A sort by the score has a stage that takes it out again.
        stages.retain(|stage| !matches!(stage, Stage::Project(_) | Stage::TextScore(_)));
        stages.insert(1, TextScoreStage::of(test));
    }
}

/// Returns the `$text` of the first stage.
fn text_of(stages: &[Stage]) -> Option<&Arc<TextTest>> {
    match stages.first() {
        Some(Stage::Match(stage)) => stage.filter.text(),
        _ => None,
    }
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
            | Stage::TextScore(_)
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
    match field {
        MetaField::SortKey => add_sort_keys(stages, start, last),
        MetaField::TextScore => {
            if let Some(test) = text_of(stages).map(Arc::clone) {
                stages.insert(start + 1, TextScoreStage::of(test));
            }
        }
        _ => {}
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

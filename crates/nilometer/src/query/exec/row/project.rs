//! `$project`, `$set` and `$unset`. Where only whole fields are kept, dropped or computed, a block stays a block with
//! other visible columns.

use std::sync::Arc;

use nilometer_bson::Document;

use super::row_by_row::OneByOne;
use crate::error::Result;
use crate::eval::projection::ProjectionInput;
use crate::query::batch::{Batch, FieldSet, MeasurementShape};
use crate::query::exec::vector::computed_columns::over_block;
use crate::query::exec::{BlockStep, BlockSteps, BoxOperator, ExecContext, Operator, next_filled};
use crate::query::pipeline::{ProjectKind, ProjectStage};

/// Changes fields.
pub struct Project {
    input: BoxOperator,
    stage: ProjectStage,
    rows: OneByOne,
    /// Blocks are left to the caller.
    is_deferred: bool,
}

impl Project {
    /// Changes fields of the documents of `input`.
    pub fn new(input: BoxOperator, stage: ProjectStage) -> Self {
        Self {
            input,
            stage,
            rows: OneByOne::default(),
            is_deferred: false,
        }
    }
}

/// Applies the stage to a batch.
pub(crate) fn project(stage: &ProjectStage, batch: Batch, cx: &ExecContext<'_>) -> Result<Batch> {
    let rows = match whole(stage, batch, cx)? {
        Whole::Projected(batch) => return Ok(batch),
        Whole::Rows(rows) => rows,
    };
    let rows = rows.iter().map(|row| {
        cx.operation.check_interrupt()?;
        project_row(stage, row, cx)
    });
    Ok(Batch::Rows(rows.collect::<Result<_>>()?))
}

/// A finished batch, or the rows to change one by one.
enum Whole {
    Projected(Batch),
    Rows(Vec<Document>),
}

fn whole(stage: &ProjectStage, batch: Batch, cx: &ExecContext<'_>) -> Result<Whole> {
    let mut block = match batch {
        Batch::Rows(rows) => return Ok(Whole::Rows(rows)),
        Batch::Block(block) => block,
    };
    if let Some(fields) = stage.narrows(&block.shape.fields) {
        block.shape = Arc::new(MeasurementShape {
            fields,
            ..(*block.shape).clone()
        });
        return Ok(Whole::Projected(Batch::Block(block)));
    }
    if let Some(computed) = over_block(stage, &block, cx)? {
        return Ok(Whole::Projected(Batch::Block(computed)));
    }
    Ok(Whole::Rows(block.to_rows()?))
}

fn project_row(stage: &ProjectStage, row: &Document, cx: &ExecContext<'_>) -> Result<Document> {
    match &*stage.kind {
        ProjectKind::AddFields(fields) => fields.apply(row.as_ref(), &cx.eval),
        ProjectKind::Projection {
            projection,
            position_of: None,
            sort_key_of: None,
        } => projection.apply(row.as_ref(), &cx.eval),
        ProjectKind::Projection {
            projection,
            position_of,
            sort_key_of,
        } => {
            let position = match position_of {
                Some(filter) => filter.matches_with_position(row.as_ref(), &cx.eval)?.1,
                None => None,
            };
            let sort_key = match sort_key_of {
                Some(pattern) => Some(pattern.extract(row.as_ref(), &cx.eval)?.to_array()),
                None => None,
            };
            let input = ProjectionInput {
                position,
                sort_key: sort_key.as_ref(),
            };
            projection.apply_with(row.as_ref(), &cx.eval, &input)
        }
    }
}

/// True if the stage keeps, drops and computes top-level fields only: other stages change rows, a few at a time.
fn changes_whole_fields(stage: &ProjectStage) -> bool {
    let any = MeasurementShape {
        time_field: "".into(),
        meta_field: None,
        fields: FieldSet::All,
    };
    stage.narrows(&any.fields).is_some() || stage.shown_behind(&any).is_some()
}

/// The stage, applied to whole batches.
pub(crate) struct ProjectStep(pub(crate) ProjectStage);

impl BlockStep for ProjectStep {
    fn apply(&self, batch: Batch, cx: &ExecContext<'_>) -> Result<Batch> {
        project(&self.0, batch, cx)
    }
}

impl Operator for Project {
    fn next(&mut self, cx: &ExecContext<'_>) -> Result<Option<Batch>> {
        if self.rows.is_done() {
            let Some(batch) = next_filled(&mut self.input, cx)? else {
                return Ok(None);
            };
            if self.is_deferred && matches!(batch, Batch::Block(_)) {
                return Ok(Some(batch));
            }
            match whole(&self.stage, batch, cx)? {
                Whole::Projected(batch) => return Ok(Some(batch)),
                Whole::Rows(rows) => self.rows.begin(rows),
            }
        }
        let stage = &self.stage;
        let projected = self.rows.change(cx, |row| project_row(stage, row, cx))?;
        Ok(Some(Batch::Rows(projected)))
    }

    fn defer_steps(&mut self) -> Option<BlockSteps> {
        if !changes_whole_fields(&self.stage) {
            return None;
        }
        let steps = self.input.defer_steps()?;
        self.is_deferred = true;
        Some(steps.and_then(ProjectStep(self.stage.clone())))
    }

    fn is_exhausted(&self) -> bool {
        self.rows.is_done() && self.input.is_exhausted()
    }
}

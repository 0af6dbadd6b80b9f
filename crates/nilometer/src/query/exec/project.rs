//! `$project` and its kin. Where only whole fields are kept or dropped, a block stays a block that
//! shows fewer columns.

use std::sync::Arc;

use nilometer_bson::Document;

use super::{BoxOperator, ExecContext, Operator, next_filled};
use crate::error::Result;
use crate::eval::projection::ProjectionInput;
use crate::query::batch::{Batch, MeasurementShape};
use crate::query::pipeline::{ProjectKind, ProjectStage};

/// Changes fields.
pub struct Project {
    input: BoxOperator,
    stage: ProjectStage,
}

impl Project {
    /// Changes fields of what `input` gives.
    pub fn new(input: BoxOperator, stage: ProjectStage) -> Self {
        Self { input, stage }
    }

    fn project(&self, row: &Document, cx: &ExecContext<'_>) -> Result<Document> {
        match &*self.stage.kind {
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
                    record_id: None,
                };
                projection.apply_with(row.as_ref(), &cx.eval, &input)
            }
        }
    }
}

impl Operator for Project {
    fn next(&mut self, cx: &ExecContext<'_>) -> Result<Option<Batch>> {
        let rows = match next_filled(&mut self.input, cx)? {
            None => return Ok(None),
            Some(Batch::Rows(rows)) => rows,
            Some(Batch::Block(mut block)) => match self.stage.narrows(&block.shape.fields) {
                Some(fields) => {
                    block.shape = Arc::new(MeasurementShape {
                        fields,
                        ..(*block.shape).clone()
                    });
                    return Ok(Some(Batch::Block(block)));
                }
                None => block.to_rows()?,
            },
        };
        let rows = rows.iter().map(|row| self.project(row, cx));
        Ok(Some(Batch::Rows(rows.collect::<Result<_>>()?)))
    }

    fn is_exhausted(&self) -> bool {
        self.input.is_exhausted()
    }
}

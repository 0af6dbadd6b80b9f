//! `$replaceRoot`: replaces each document with a computed one.

use nilometer_bson::{Document, Value};

use super::row_by_row::OneByOne;
use crate::error::{Error, Result, location};
use crate::query::batch::Batch;
use crate::query::exec::{BoxOperator, ExecContext, Operator, next_filled};
use crate::query::pipeline::ReplaceRootStage;

/// Replaces documents with the result of an expression.
pub struct ReplaceRoot {
    input: BoxOperator,
    stage: ReplaceRootStage,
    rows: OneByOne,
}

impl ReplaceRoot {
    /// Replaces the documents of `input`.
    pub fn new(input: BoxOperator, stage: ReplaceRootStage) -> Self {
        Self {
            input,
            stage,
            rows: OneByOne::default(),
        }
    }
}

fn replace(stage: &ReplaceRootStage, row: &Document, cx: &ExecContext<'_>) -> Result<Document> {
    match stage.expression.evaluate(row.as_ref(), &cx.eval)? {
        Value::Document(document) => Ok(document),
        other => Err(Error::location(
            location::NEW_ROOT_NOT_OBJECT,
            format!(
                "PlanExecutor error during aggregation :: caused by :: {} must evaluate to an object, but the type of the resulting value was: '{}'",
                stage.called,
                other.type_name()
            ),
        )),
    }
}

impl Operator for ReplaceRoot {
    fn next(&mut self, cx: &ExecContext<'_>) -> Result<Option<Batch>> {
        if self.rows.is_done() {
            let Some(batch) = next_filled(&mut self.input, cx)? else {
                return Ok(None);
            };
            self.rows.begin(batch.into_rows()?);
        }
        let replaced = self.rows.change(cx, |row| replace(&self.stage, row, cx))?;
        Ok(Some(Batch::Rows(replaced)))
    }

    fn is_exhausted(&self) -> bool {
        self.rows.is_done() && self.input.is_exhausted()
    }
}

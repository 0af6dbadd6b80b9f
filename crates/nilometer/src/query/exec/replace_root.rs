//! `$replaceRoot`: a computed document takes each one's place.

use nilometer_bson::{Document, Value};

use super::{BoxOperator, ExecContext, Operator, next_filled};
use crate::error::{Error, Result};
use crate::query::batch::Batch;
use crate::query::pipeline::ReplaceRootStage;

/// Replaces documents by what an expression gives.
pub struct ReplaceRoot {
    input: BoxOperator,
    stage: ReplaceRootStage,
}

impl ReplaceRoot {
    /// Replaces the documents of `input`.
    pub fn new(input: BoxOperator, stage: ReplaceRootStage) -> Self {
        Self { input, stage }
    }

    fn replace(&self, row: &Document, cx: &ExecContext<'_>) -> Result<Document> {
        match self.stage.expression.evaluate(row.as_ref(), &cx.eval)? {
            Value::Document(document) => Ok(document),
            other => Err(Error::location(
                40_228,
                format!(
                    "PlanExecutor error during aggregation :: caused by :: {} must evaluate to an object, but the type of the resulting value was: '{}'",
                    self.stage.called,
                    other.type_name()
                ),
            )),
        }
    }
}

impl Operator for ReplaceRoot {
    fn next(&mut self, cx: &ExecContext<'_>) -> Result<Option<Batch>> {
        let Some(batch) = next_filled(&mut self.input, cx)? else {
            return Ok(None);
        };
        let rows = batch.into_rows()?;
        let rows = rows.iter().map(|row| self.replace(row, cx));
        Ok(Some(Batch::Rows(rows.collect::<Result<_>>()?)))
    }

    fn is_exhausted(&self) -> bool {
        self.input.is_exhausted()
    }
}

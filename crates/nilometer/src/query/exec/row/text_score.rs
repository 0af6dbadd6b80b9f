//! Adds the score of a `$text` to documents.

use std::sync::Arc;

use nilometer_bson::{Document, DocumentBuilder};

use crate::error::Result;
use crate::eval::projection::MetaField;
use crate::query::batch::Batch;
use crate::query::exec::{BoxOperator, ExecContext, Operator, next_filled};
use crate::query::pipeline::TextScoreStage;

/// Adds scores.
pub struct TextScore {
    input: BoxOperator,
    stage: Arc<TextScoreStage>,
}

impl TextScore {
    /// Adds the scores of the documents of `input`.
    pub fn new(input: BoxOperator, stage: Arc<TextScoreStage>) -> Self {
        Self { input, stage }
    }
}

impl Operator for TextScore {
    fn next(&mut self, cx: &ExecContext<'_>) -> Result<Option<Batch>> {
        let Some(batch) = next_filled(&mut self.input, cx)? else {
            return Ok(None);
        };
        let mut rows = Vec::new();
        for row in batch.into_rows()? {
            cx.operation.check_interrupt()?;
            let score = self.stage.test.score(row.as_ref(), &cx.eval)?;
            rows.push(match score {
                Some(score) => with_score(&row, score),
                None => row,
            });
        }
        Ok(Some(Batch::Rows(rows)))
    }

    fn is_exhausted(&self) -> bool {
        self.input.is_exhausted()
    }
}

fn with_score(row: &Document, score: f64) -> Document {
    let mut out = DocumentBuilder::with_capacity(row.as_bytes().len() + 32);
    for element in row.iter() {
        out.append_element(element);
    }
    out.append(MetaField::TextScore.carrier(), score);
    out.finish()
}

//! `$merge` into a collection of other databases: sends its input in batches, which are written there.
//!
//! A batch is what [`Merge`](super::merge::Merge) writes before it reports an error, so that both stop at the same document.

use nilometer_bson::validate::SIZE_MAX;
use nilometer_bson::{Document, DocumentBuilder};

use crate::error::{Error, ErrorCode, Result};
use crate::eval::Collation;
use crate::query::batch::Batch;
use crate::query::exec::build::Builder;
use crate::query::exec::{BoxOperator, ExecContext, Operator, next_filled};
use crate::query::pipeline::{MergeStage, WhenNotMatched};
use crate::query::source::{DistantMerge, DistantMergeStage};

/// Bytes of the documents of a batch, unless it has one document.
const BATCH_BYTES_MAX: usize = SIZE_MAX;

/// Has documents written elsewhere.
pub struct MergeElsewhere {
    input: Option<BoxOperator>,
    stage: DistantMergeStage,
    writer: Box<dyn DistantMerge>,
}

impl MergeElsewhere {
    /// Has `writer` write the documents of `input` as `stage` says.
    pub fn new(
        input: BoxOperator,
        stage: &MergeStage,
        writer: Box<dyn DistantMerge>,
        builder: &Builder,
    ) -> Result<Self> {
        let settings = &builder.settings.plan;
        let collation = Collation::from(settings.collator.clone());
        let named = stage.names_on.then_some(&*stage.on);
        let on = writer.identity(named, &collation)?;
        let mut variables = DocumentBuilder::new();
        for (name, value) in stage.outer.iter().zip(&*settings.variables) {
            variables.append_ref(name, value.as_ref());
        }
        Ok(Self {
            input: Some(input),
            stage: DistantMergeStage {
                database: builder.database.clone(),
                stage: stage.identified_by(&on),
                on,
                inserts: stage.not_matched == WhenNotMatched::Insert,
                variables: variables.finish(),
                collation: collation.to_document(),
            },
            writer,
        })
    }
}

impl Operator for MergeElsewhere {
    fn next(&mut self, cx: &ExecContext<'_>) -> Result<Option<Batch>> {
        let Some(mut input) = self.input.take() else {
            return Ok(None);
        };
        let mut waiting: Vec<Document> = Vec::new();
        let mut bytes = 0;
        let mut has_written = false;
        loop {
            let batch = next_filled(&mut input, cx);
            let batch = batch.map_err(|error| match has_written {
                true => not_again(error),
                false => error,
            })?;
            let Some(batch) = batch else {
                break;
            };
            for row in batch.into_rows()? {
                let length = row.as_bytes().len();
                if bytes + length > BATCH_BYTES_MAX && !waiting.is_empty() {
                    has_written = true;
                    let full = std::mem::take(&mut waiting);
                    self.writer.write(&self.stage, full, cx.operation)?;
                    bytes = 0;
                }
                bytes += length;
                waiting.push(row);
            }
        }
        if !waiting.is_empty() {
            self.writer.write(&self.stage, waiting, cx.operation)?;
        }
        Ok(None)
    }

    fn is_exhausted(&self) -> bool {
        self.input.is_none()
    }
}

/// Returns an error after which the command does not begin again: part of its documents are written.
fn not_again(error: Error) -> Error {
    match error.code {
        ErrorCode::StaleConfig => Error::new(
            ErrorCode::QueryPlanKilled,
            format!("{}; a part of the result is written", error.message),
        ),
        _ => error,
    }
}

//! `$_unpackBucket` and `$_internalUnpackBucket`: turns bucket documents into measurements, one bucket at a time.

use nilometer_bson::Document;

use crate::error::{Error, ErrorCode, Result};
use crate::query::batch::Batch;
use crate::query::exec::row::filter::matching;
use crate::query::exec::{BoxOperator, ExecContext, Operator, ROWS_PER_BATCH, next_filled};
use crate::query::pipeline::UnpackBucketStage;
use crate::timeseries::unpack::measurements;

/// Unpacks the bucket documents of its input.
pub struct UnpackBucket {
    input: BoxOperator,
    stage: UnpackBucketStage,
    /// Pending buckets.
    waiting: std::vec::IntoIter<Document>,
}

impl UnpackBucket {
    /// Unpacks the documents of `input` as `stage` says.
    pub fn new(input: BoxOperator, stage: UnpackBucketStage) -> Self {
        Self {
            input,
            stage,
            waiting: Vec::new().into_iter(),
        }
    }

    fn unpack(&self, bucket: &Document, cx: &ExecContext<'_>) -> Result<Vec<Document>> {
        let stage = &self.stage;
        let found = measurements(bucket.as_ref(), &stage.shown(), |name| stage.shows(name));
        let found = found.map_err(not_a_bucket)?;
        let Some(filter) = &self.stage.event_filter else {
            return Ok(found);
        };
        let passes_as_a_whole = match &self.stage.whole_bucket_filter {
            Some(whole) => whole.matches(bucket.as_ref(), &cx.eval)?,
            None => false,
        };
        match passes_as_a_whole {
            true => Ok(found),
            false => matching(found, filter, cx),
        }
    }
}

/// Reports a malformed bucket as an error of the pipeline, not as corruption of the store: the input was read as valid
/// documents, which are just not buckets.
fn not_a_bucket(mut error: Error) -> Error {
    if error.code == ErrorCode::DataCorruptionDetected {
        error.code = ErrorCode::BadValue;
        error = error.context("unpacking takes bucket documents only");
    }
    error
}

impl Operator for UnpackBucket {
    fn next(&mut self, cx: &ExecContext<'_>) -> Result<Option<Batch>> {
        let mut rows = Vec::new();
        while rows.len() < ROWS_PER_BATCH {
            cx.operation.check_interrupt()?;
            let Some(bucket) = self.waiting.next() else {
                let Some(batch) = next_filled(&mut self.input, cx)? else {
                    break;
                };
                self.waiting = batch.into_rows()?.into_iter();
                continue;
            };
            rows.extend(self.unpack(&bucket, cx)?);
        }
        Ok((!rows.is_empty()).then_some(Batch::Rows(rows)))
    }

    fn is_exhausted(&self) -> bool {
        self.waiting.len() == 0 && self.input.is_exhausted()
    }
}

//! `$facet`: the input is gathered once; each pipeline then reads it from the start.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use nilometer_bson::{Document, DocumentBuilder, ValueRef};

use super::memory::MemoryGauge;
use super::{BoxOperator, ExecContext, Operator, ROWS_PER_BATCH, next_filled};
use crate::error::{Error, ErrorCode, Result};
use crate::query::batch::Batch;
use crate::query::pipeline::Stage;
use crate::query::planner::Builder;

/// The largest document the answer may be.
const DOCUMENT_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Several pipelines over one input.
pub struct Facet {
    input: Option<BoxOperator>,
    facets: Vec<(Arc<str>, BoxOperator, SharedQueue)>,
}

/// Documents on their way to one of the pipelines.
type SharedQueue = Arc<Mutex<VecDeque<Document>>>;

impl Facet {
    /// The operators of `facets` over what `input` gives.
    pub fn build(
        input: BoxOperator,
        facets: Vec<(Arc<str>, Vec<Stage>)>,
        builder: &Builder,
    ) -> Result<BoxOperator> {
        let mut built = Vec::new();
        for (name, stages) in facets {
            let queue = SharedQueue::default();
            let reader = Box::new(Queue(Arc::clone(&queue)));
            built.push((name, builder.over(reader, stages)?, queue));
        }
        Ok(Box::new(Self {
            input: Some(input),
            facets: built,
        }))
    }
}

/// Gives what was put into a queue.
struct Queue(SharedQueue);

impl Operator for Queue {
    fn next(&mut self, _: &ExecContext<'_>) -> Result<Option<Batch>> {
        let mut queue = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let most = queue.len().min(ROWS_PER_BATCH);
        let rows: Vec<Document> = queue.drain(..most).collect();
        Ok((!rows.is_empty()).then_some(Batch::Rows(rows)))
    }
}

impl Operator for Facet {
    fn next(&mut self, cx: &ExecContext<'_>) -> Result<Option<Batch>> {
        let Some(mut input) = self.input.take() else {
            return Ok(None);
        };
        let mut memory = MemoryGauge::gather("$facet", cx);
        let mut all = Vec::new();
        while let Some(batch) = next_filled(&mut input, cx)? {
            for row in batch.into_rows()? {
                memory.add(row.as_bytes().len())?;
                all.push(row);
            }
        }
        drop(input);
        let mut out = DocumentBuilder::new();
        for (name, pipeline, queue) in &mut self.facets {
            {
                let mut queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
                queue.extend(all.iter().cloned());
            }
            out.begin_array(name);
            let mut at = 0;
            while let Some(batch) = next_filled(pipeline, cx)? {
                for row in batch.into_rows()? {
                    out.append_indexed(at, ValueRef::Document(row.as_ref()));
                    at += 1;
                    if out.len() > DOCUMENT_BYTES_MAX {
                        return Err(Error::new(
                            ErrorCode::BSONObjectTooLarge,
                            format!(
                                "document constructed by $facet is {} bytes, which exceeds the limit of {DOCUMENT_BYTES_MAX} bytes",
                                out.len()
                            ),
                        ));
                    }
                }
            }
            out.end();
        }
        Ok(Some(Batch::Rows(vec![out.finish()])))
    }

    fn is_exhausted(&self) -> bool {
        self.input.is_none()
    }
}

#[cfg(test)]
mod tests {
    use crate::query::exec::testing::run_stages;
    use nilometer_bson::{array, doc};

    #[test]
    fn every_pipeline_sees_all_documents() {
        let facets = doc! {
            "few": array![doc! {"$limit": 1}],
            "sum": array![doc! {"$group": doc! {"_id": nilometer_bson::Value::Null, "n": doc! {"$sum": "$a"}}}],
            "all": array![],
        };
        let documents = vec![doc! {"a": 1}, doc! {"a": 2}];
        let rows = run_stages(array![doc! {"$facet": facets}], documents.clone()).unwrap();
        assert_eq!(
            rows,
            [doc! {
                "few": array![doc! {"a": 1}],
                "sum": array![doc! {"_id": nilometer_bson::Value::Null, "n": 3}],
                "all": array![documents[0].clone(), documents[1].clone()],
            }]
        );
        let empty = run_stages(array![doc! {"$facet": doc! {"x": array![]}}], vec![]).unwrap();
        assert_eq!(empty, [doc! {"x": array![]}]);
    }
}

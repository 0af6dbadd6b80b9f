//! `$out`: writes its input into a hidden collection, then renames it to the target.
//!
//! The target stays unchanged until the last document is written, and after an error. The operator returns no
//! documents.

use std::sync::Arc;

use nilometer_bson::Document;

use crate::catalog::{Namespace, TimeseriesOptions};
use crate::error::{Error, Result, location};
use crate::query::batch::Batch;
use crate::query::exec::build::Builder;
use crate::query::exec::{BoxOperator, ExecContext, Operator, next_filled};
use crate::query::source::{Collections, outputs_of};

/// Documents per insert.
const DOCUMENTS_PER_INSERT: usize = 1000;

/// Replaces a collection.
pub struct Out {
    input: Option<BoxOperator>,
    target: Namespace,
    timeseries: Option<TimeseriesOptions>,
    collections: Arc<dyn Collections>,
}

impl Out {
    /// Replaces the collection `target` with the documents of `input`.
    pub fn new(
        input: BoxOperator,
        target: Namespace,
        timeseries: Option<TimeseriesOptions>,
        builder: &Builder,
    ) -> Result<Self> {
        if target.is_in_internal_database() {
            return Err(Error::location(
                location::OUT_TO_INTERNAL_DATABASE,
                format!("Can't $out to internal database: {}", target.database),
            ));
        }
        let collections = Arc::clone(&builder.collections);
        outputs_of(&*collections)?.check_replaceable(&target, timeseries.as_ref())?;
        Ok(Self {
            input: Some(input),
            target,
            timeseries,
            collections,
        })
    }
}

impl Operator for Out {
    fn next(&mut self, cx: &ExecContext<'_>) -> Result<Option<Batch>> {
        let Some(mut input) = self.input.take() else {
            return Ok(None);
        };
        let outputs = outputs_of(&*self.collections)?;
        let mut replacement = outputs.replace(&self.target, self.timeseries.as_ref())?;
        let mut waiting: Vec<Document> = Vec::new();
        while let Some(batch) = next_filled(&mut input, cx)? {
            waiting.extend(batch.into_rows()?);
            if waiting.len() >= DOCUMENTS_PER_INSERT {
                replacement.insert(&waiting, cx.operation)?;
                waiting.clear();
            }
        }
        replacement.insert(&waiting, cx.operation)?;
        // The input may be reading the collection to replace.
        drop(input);
        cx.operation.check_interrupt()?;
        replacement.finish(cx.operation)?;
        Ok(None)
    }

    fn is_exhausted(&self) -> bool {
        self.input.is_none()
    }
}

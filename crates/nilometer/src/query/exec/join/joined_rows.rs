//! The rows of a `$lookup` whose array is unwound: one for each joined document, without the array.

use nilometer_bson::{Document, Value, ValueRef};

use crate::error::Result;
use crate::query::exec::memory::MemoryGauge;
use crate::query::exec::row::unwind::{unwound, with_value_at};
use crate::query::exec::{ExecContext, RowBatch};
use crate::query::pipeline::UnwindStage;

/// The rows of one input row at a time.
pub(super) struct JoinedRows {
    unwind: UnwindStage,
    row: Option<JoinedRow>,
    /// Counts the joined documents.
    memory: Option<MemoryGauge>,
}

/// An input row, and the joined documents that have not been returned.
struct JoinedRow {
    row: Document,
    joined: std::iter::Enumerate<std::vec::IntoIter<Document>>,
}

impl JoinedRows {
    /// Returns rows as `unwind` returns them for the array.
    pub(super) fn new(unwind: UnwindStage) -> Self {
        Self {
            unwind,
            row: None,
            memory: None,
        }
    }

    /// True if there are rows to return.
    pub(super) fn is_open(&self) -> bool {
        self.row.is_some()
    }

    /// Begins the rows of `row` with the documents that join it. Those of the row before must have been returned.
    pub(super) fn begin(
        &mut self,
        row: Document,
        joined: Vec<Document>,
        cx: &ExecContext<'_>,
    ) -> Result<()> {
        let memory = self
            .memory
            .get_or_insert_with(|| MemoryGauge::of_results("$lookup", cx));
        memory.set(
            joined
                .iter()
                .map(|document| document.as_bytes().len())
                .sum(),
        )?;
        let row = match joined.is_empty() {
            false => row,
            // The path leads through objects afterwards, whatever was there.
            true if self.unwind.preserve_empty => {
                let empty = Value::from(Vec::<Value>::new());
                with_value_at(row.as_ref(), &self.unwind.path, empty.as_ref())
            }
            true => return Ok(()),
        };
        self.row = Some(JoinedRow {
            row,
            joined: joined.into_iter().enumerate(),
        });
        Ok(())
    }

    /// Adds rows until the batch is full, or none is left.
    pub(super) fn fill(&mut self, out: &mut RowBatch) {
        let Some(JoinedRow { row, joined }) = &mut self.row else {
            return;
        };
        if joined.len() == 0 {
            // It was empty from the beginning.
            out.push(unwound(&self.unwind, row, ValueRef::Missing, Value::Null));
        }
        while !out.is_full()
            && let Some((at, document)) = joined.next()
        {
            let element = ValueRef::Document(document.as_ref());
            let at = Value::Int64(i64::try_from(at).unwrap_or(i64::MAX));
            out.push(unwound(&self.unwind, row, element, at));
        }
        if joined.len() == 0 {
            self.row = None;
        }
    }
}

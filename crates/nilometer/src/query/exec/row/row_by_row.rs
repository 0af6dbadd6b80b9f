//! Changes rows one by one, in output batches of bounded size: the output of a batch may be much larger than the batch.

use nilometer_bson::Document;

use crate::error::Result;
use crate::query::exec::ExecContext;

/// Bytes of changed rows after which they are returned, leaving the others pending.
const MADE_BYTES_MAX: usize = 4 << 20;

/// Rows still to be changed.
#[derive(Default)]
pub(crate) struct OneByOne {
    waiting: std::vec::IntoIter<Document>,
}

impl OneByOne {
    /// Sets the rows to change; the preceding ones must be finished.
    pub(crate) fn begin(&mut self, rows: Vec<Document>) {
        self.waiting = rows.into_iter();
    }

    /// True if no rows are pending.
    pub(crate) fn is_done(&self) -> bool {
        self.waiting.len() == 0
    }

    /// Changes rows until none are left or `MADE_BYTES_MAX` bytes have been produced.
    pub(crate) fn change(
        &mut self,
        cx: &ExecContext<'_>,
        mut change: impl FnMut(&Document) -> Result<Document>,
    ) -> Result<Vec<Document>> {
        let mut made = Vec::with_capacity(self.waiting.len());
        let mut bytes = 0;
        while bytes < MADE_BYTES_MAX
            && let Some(row) = self.waiting.next()
        {
            cx.operation.check_interrupt()?;
            let changed = change(&row)?;
            bytes += changed.as_bytes().len();
            made.push(changed);
        }
        Ok(made)
    }
}

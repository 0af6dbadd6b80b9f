//! The batches of a cursor in the place of a reply with documents: what a program that embeds the database turns into
//! columns, without a document in between.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::query::batch::Batch;

/// Bytes that a value of a block counts.
const VALUE_BYTES: usize = 8;

/// Takes the batches of a cursor, whose replies then have no documents: see
/// [`CursorRegistry::collect_into`](super::cursor::CursorRegistry::collect_into).
#[derive(Debug)]
pub struct BatchCollector {
    rows_max: usize,
    bytes_max: usize,
    taken: Mutex<CollectedBatches>,
}

#[derive(Debug, Default)]
struct CollectedBatches {
    batches: Vec<Batch>,
    rows: usize,
    bytes: usize,
}

impl BatchCollector {
    /// Creates a collector that is full from `rows_max` documents or `bytes_max` bytes on; it may exceed them by one batch.
    pub fn new(rows_max: usize, bytes_max: usize) -> Self {
        Self {
            rows_max,
            bytes_max,
            taken: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, CollectedBatches> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the batches collected since the last call.
    pub fn take(&self) -> Vec<Batch> {
        std::mem::take(&mut *self.lock()).batches
    }

    /// Adds a batch.
    pub(crate) fn push(&self, batch: Batch) {
        let mut taken = self.lock();
        taken.rows += batch.len();
        taken.bytes += match &batch {
            Batch::Rows(rows) => rows.iter().map(|row| row.as_bytes().len()).sum(),
            Batch::Block(block) => batch.len() * block.bucket.columns().len() * VALUE_BYTES,
        };
        taken.batches.push(batch);
    }

    /// True if no further batch should be added.
    pub(crate) fn is_full(&self) -> bool {
        let taken = self.lock();
        taken.rows >= self.rows_max || taken.bytes >= self.bytes_max
    }
}

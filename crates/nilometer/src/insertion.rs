//! Options and results of an insert, for all kinds of collections, and what a write stores beside its changes.

use nilometer_bson::{Document, ObjectId};
use nilometer_storage::{Durability, WriteBatch};

use crate::error::{Error, Result};

/// A document that was not inserted.
#[derive(Clone, Debug)]
pub struct WriteError {
    /// Its position in the command.
    pub index: usize,
    /// The reason.
    pub error: Error,
}

/// The result of an insert.
#[derive(Clone, Debug, Default)]
pub struct InsertOutcome {
    /// Documents stored.
    pub inserted: usize,
    /// Documents refused.
    pub errors: Vec<WriteError>,
}

impl InsertOutcome {
    /// Fails with the first error, if any document was refused.
    pub fn all(self) -> Result<()> {
        match self.errors.into_iter().next() {
            Some(refused) => Err(refused.error),
            None => Ok(()),
        }
    }
}

/// The options of an insert.
#[derive(Clone, Copy)]
pub struct InsertOptions<'a> {
    /// Stop at the first refused document.
    pub ordered: bool,
    /// When the command may be answered.
    pub durability: Durability,
    /// Generates the `_id` of documents without one.
    pub new_id: &'a dyn Fn() -> ObjectId,
    /// What is stored beside the documents, if the command may be repeated.
    pub record: Option<&'a dyn BatchRecord>,
}

/// Decides whether an update may change a document as it would.
pub trait ChangeGuard {
    /// Fails if the document must not change so. The position is that of the array element that the filter matched.
    fn check(&self, before: &Document, after: &Document, position: Option<usize>) -> Result<()>;
}

/// What a write that clients may repeat stores in the engine batches of its changes, so that a repetition is recognized.
///
/// The writer notes each change before it commits the batch that has it, and adds the record to every batch that changes
/// something.
pub trait BatchRecord {
    /// Notes that the document at this position of an insert is in the next batch.
    fn inserted(&self, index: usize) {
        let _ = index;
    }

    /// Notes the change of the one document of an update or delete: `None` before, if it is inserted, or after, if it is
    /// removed. The position is that of the array element that the filter matched.
    fn changed(
        &self,
        before: Option<&Document>,
        after: Option<&Document>,
        position: Option<usize>,
    ) {
        let _ = (before, after, position);
    }

    /// Adds what was noted to a batch.
    fn add_to(&self, batch: &mut WriteBatch);
}

//! How documents are inserted and what became of them, whatever kind of collection they go to.

use nilometer_bson::ObjectId;
use nilometer_storage::Durability;

use crate::error::{Error, Result};

/// One document that could not be inserted.
#[derive(Clone, Debug)]
pub struct WriteError {
    /// Its place in the command.
    pub index: usize,
    /// Why.
    pub error: Error,
}

/// What became of an insert.
#[derive(Clone, Debug, Default)]
pub struct InsertOutcome {
    /// Documents stored.
    pub inserted: usize,
    /// Documents refused.
    pub errors: Vec<WriteError>,
}

impl InsertOutcome {
    /// The first document's error, if any was refused.
    pub fn all(self) -> Result<()> {
        match self.errors.into_iter().next() {
            Some(refused) => Err(refused.error),
            None => Ok(()),
        }
    }
}

/// How an insert shall go.
#[derive(Clone, Copy)]
pub struct InsertOptions<'a> {
    /// Stop at the first document that is refused.
    pub ordered: bool,
    /// When the command may be answered.
    pub durability: Durability,
    /// Makes the `_id` of documents that come without one.
    pub new_id: &'a dyn Fn() -> ObjectId,
}

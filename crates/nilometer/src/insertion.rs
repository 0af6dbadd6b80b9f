//! Options and results of an insert, for all kinds of collections.

use nilometer_bson::ObjectId;
use nilometer_storage::Durability;

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
}

//! Filling the indexes of a command.

use std::sync::Arc;
use std::time::Duration;

use crate::catalog::{Collection, StoredIndex};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::operation::OperationContext;

/// Pause between two looks at an index that another command builds.
const WAIT: Duration = Duration::from_millis(5);

/// Fills `added` from what the collection holds. If that fails they are gone again.
pub(super) fn run(
    database: &Database,
    _: &OperationContext,
    collection: &Arc<Collection>,
    added: &[Arc<StoredIndex>],
) -> Result<()> {
    let catalog = database.catalog();
    if database.collections().sizes(collection)?.count > 0 {
        let mine: Vec<_> = added.iter().map(|index| index.keyspace).collect();
        catalog.drop_indexes(collection, |_| Ok(mine))?;
        return Err(Error::new(
            ErrorCode::CommandNotSupported,
            "indexes on collections that hold documents are not supported yet",
        ));
    }
    for index in added {
        catalog.finish_index(collection, index)?;
    }
    Ok(())
}

/// Waits until these indexes are built; false if one of them was given up.
pub(super) fn wait(
    operation: &OperationContext,
    collection: &Collection,
    known: &[Arc<StoredIndex>],
) -> Result<bool> {
    for index in known {
        while !index.is_ready() {
            operation.check_interrupt()?;
            let there = collection.indexes.all();
            if !there.iter().any(|i| i.keyspace == index.keyspace) {
                return Ok(false);
            }
            std::thread::sleep(WAIT);
        }
    }
    Ok(true)
}

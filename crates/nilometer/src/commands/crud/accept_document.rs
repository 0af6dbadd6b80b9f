//! A document of another partition, whose shard key an update has changed: it is inserted here.

use super::change::{StatementContext, eval_context};
use crate::error::{Error, ErrorCode, Result};
use crate::eval::matcher::MatchExpression;
use crate::modify::{Modified, WriteTarget};
use crate::operation::AcceptedDocument;
use crate::write::{ChangedDocument, Selection};

/// Inserts a document of another partition, as what the update has done.
pub(super) fn run(place: StatementContext<'_>, accepted: &AcceptedDocument) -> Result<Modified> {
    let StatementContext {
        database,
        operation,
        namespace,
        ..
    } = place;
    let WriteTarget::Records(collection) = WriteTarget::of(database.catalog(), namespace)? else {
        let text = format!("{namespace} is no ordinary collection");
        return Err(Error::new(ErrorCode::NamespaceNotFound, text));
    };
    let (expressions, filter) = (&place.options.expressions, MatchExpression::AlwaysTrue);
    let eval = eval_context(database, operation, &[], expressions);
    let check_interrupt = || operation.check_interrupt();
    let selection = Selection {
        durability: place.durability,
        bypass: operation.bypass,
        record: place.record,
        ..Selection::first(&filter, eval, &check_interrupt)
    };
    let change = ChangedDocument {
        before: Some(accepted.before.clone()),
        after: Some(accepted.after.clone()),
        position: accepted.position,
    };
    let new_id = || database.services().ids.object_id(operation.now_ms);
    let records = database.records();
    let updated = records.accept(&collection, selection, change, &new_id)?;
    Ok(updated.into())
}

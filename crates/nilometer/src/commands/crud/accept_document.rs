//! A document of another partition, whose shard key an update has changed: it is inserted here.

use nilometer_bson::Document;
use nilometer_storage::WriteBatch;

use super::change::{StatementContext, eval_context};
use crate::database::AcceptanceMark;
use crate::error::{Error, ErrorCode, Result};
use crate::eval::matcher::MatchExpression;
use crate::insertion::BatchRecord;
use crate::modify::{Modified, WriteTarget};
use crate::operation::{AcceptedDocument, Bypass};
use crate::write::{ChangedDocument, Selection};

/// What the insertion stores beside the document.
struct AcceptanceRecord<'r> {
    /// The result of the update.
    update: Option<&'r dyn BatchRecord>,
    mark: AcceptanceMark,
}

impl BatchRecord for AcceptanceRecord<'_> {
    fn changed(
        &self,
        before: Option<&Document>,
        after: Option<&Document>,
        position: Option<usize>,
    ) {
        if let Some(update) = self.update {
            update.changed(before, after, position);
        }
    }

    fn add_to(&self, batch: &mut WriteBatch) {
        if let Some(update) = self.update {
            update.add_to(batch);
        }
        self.mark.add_to(batch);
    }
}

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
    let placement = operation.routed.as_ref();
    let placement = placement.and_then(|routed| routed.placement.as_ref());
    let placement = placement.ok_or_else(|| Error::bad_value("a placement is missing"))?;
    let record = AcceptanceRecord {
        update: place.record,
        mark: AcceptanceMark::new(&**database.engine(), placement)?,
    };
    let (expressions, filter) = (&place.options.expressions, MatchExpression::AlwaysTrue);
    let eval = eval_context(database, operation, &[], expressions);
    let check_interrupt = || operation.check_interrupt();
    let selection = Selection {
        durability: place.durability,
        // The partition that ran the update has checked the document.
        bypass: Bypass::ALL,
        record: Some(&record),
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

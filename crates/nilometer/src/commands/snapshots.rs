//! Reads with `readConcern: {level: "snapshot"}` outside of transactions: what they read, and the time in their replies.

use nilometer_bson::{Document, DocumentBuilder, Timestamp, Value, ValueRef};

use super::generic::SnapshotArgs;
use super::transactions::{self, collection_of};
use crate::database::Database;
use crate::database::snapshots::SnapshotAt;
use crate::error::{Error, ErrorCode, Result};
use crate::operation::Request;

/// The field of a reply with the time of its snapshot.
const TIME: &str = "atClusterTime";

/// Returns the snapshot that a command reads.
pub(super) fn open(
    database: &Database,
    request: &Request,
    args: SnapshotArgs,
) -> Result<SnapshotAt> {
    if let Some(stage) = transactions::refused_stage(request) {
        return Err(Error::invalid_options(format!(
            "{stage} cannot be used with a 'snapshot' read concern"
        )));
    }
    let Some(log) = database.change_log() else {
        return Err(Error::new(
            ErrorCode::SnapshotUnavailable,
            "snapshots of this member are not kept",
        ));
    };
    let found = database.snapshots().open(database, log, args.at)?;
    let body = request.body.as_ref();
    let name = body.get("$db").as_str().unwrap_or_default();
    if let Some(collection) = collection_of(body) {
        let catalog = found.database.catalog();
        catalog.check_in_snapshot(name, collection)?;
    }
    Ok(found)
}

/// Adds the time to a reply: to the cursor, if it has one.
pub(super) fn with_time(reply: &Document, time: Timestamp) -> Document {
    let time = Value::Timestamp(time);
    let mut out = DocumentBuilder::new();
    let mut has_cursor = false;
    for element in reply.iter() {
        match element.value() {
            ValueRef::Document(cursor) if element.name() == "cursor" => {
                let mut with_time = DocumentBuilder::extending(cursor.to_document());
                with_time.append(TIME, time.clone());
                out.append("cursor", with_time.finish());
                has_cursor = true;
            }
            _ => {
                out.append_element(element);
            }
        }
    }
    if !has_cursor {
        out.append(TIME, time);
    }
    out.finish()
}

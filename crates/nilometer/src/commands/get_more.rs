//! `getMore`: the next batch of a cursor.

use nilometer_bson::{Document, DocumentBuilder, ValueRef};

use super::args::Args;
use super::query::{limit_time, namespace_of};
use super::{Access, CommandContext, CommandSpec, Counted, Fields};
use crate::database::Database;
use crate::error::{Error, Result};
use crate::operation::Request;
use crate::query::cursor::BatchRequest;

pub(super) const SPEC: CommandSpec = CommandSpec {
    access: Access::Read,
    in_api_v1: true,
    counted: Counted::GetMore,
    fields: Fields::Only(&[
        "collection",
        "batchSize",
        "lastKnownCommittedOpTime",
        "term",
    ]),
    ..CommandSpec::new("getMore", "Gives the next batch of a cursor.", run)
};

fn run(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let args = Args::new("getMore", request.body.as_ref());
    let id = match args.value("getMore") {
        ValueRef::Int64(id) => id,
        other => return Err(args.wrong_type("getMore", other, "long")),
    };
    let collection = args.required_string("collection")?;
    let size = args.integer_at_least("batchSize", 0)?;
    let operation = &mut context.operation;
    if operation.max_time_ms > 0 {
        return Err(Error::bad_value(
            "cannot set maxTimeMS on getMore command for a non-awaitData cursor",
        ));
    }
    let namespace = namespace_of(operation, collection);
    let cursors = &database.queries().cursors;
    let mut pinned = cursors.check_out(id, &namespace, operation)?;
    let cursor = pinned.cursor_mut()?;
    limit_time(operation, cursor.time_left);
    let mut reply = DocumentBuilder::with_capacity(4096);
    reply.begin_document("cursor");
    reply.begin_array("nextBatch");
    // No size, or size 0, is as many as fit.
    let batch = BatchRequest {
        documents: size.and_then(|n| u64::try_from(n).ok()).filter(|n| *n > 0),
    };
    let more = cursor.fill(operation, batch, &mut reply)?;
    cursor.time_left = operation.time_left();
    reply.end();
    if more {
        pinned.keep(operation.clock().monotonic());
    }
    reply.append("id", if more { id } else { 0 });
    reply.append("ns", namespace);
    reply.end();
    Ok(reply.finish())
}

//! Updates of the collections of `config` that clients change, as mongosh does: the settings of the balancer, and `noBalance` of a
//! sharded collection.
//!
//! An update runs on a copy of the documents in memory first. What it makes of them is checked before anything is stored.

use nilometer_bson::{Array, Document, DocumentBuilder, Value, ValueRef, doc};

use super::change::without_ok;
use super::{balancer, elsewhere, router_of, sharding};
use crate::catalog::{CONFIG, Namespace};
use crate::commands::CommandContext;
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::operation::Request;
use crate::router::{Router, batch_of, error_of};
use crate::session::ClientSession;

/// The collection of the sharded collections.
const COLLECTIONS: &str = "collections";

/// Where an update runs first.
const TRIAL: &str = "trial";

/// Documents that are copied at once.
const COPIED_AT_ONCE: usize = 1000;

/// Fields of a command that decide what it does to documents.
const DECIDING: [&str; 4] = ["update", "updates", "ordered", "let"];

/// Runs an `update` of a collection of `config` that clients may update; `None` if it is none.
pub(super) fn run(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Option<Result<Document>> {
    if context.database_name() != CONFIG {
        return None;
    }
    let name = request.body.get("update").as_str()?;
    let run = match name {
        balancer::SETTINGS => settings,
        COLLECTIONS => collections,
        _ => return None,
    };
    Some(match router_of(database).elsewhere() {
        Some(_) => elsewhere::run(database, context, request),
        None => run(database, context, request),
    })
}

/// `update` of `config.settings`: nothing changes if the outcome has no meaning.
fn settings(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let _changes = router_of(database).lock_changes();
    balancer::store_defaults(database, &context.operation)?;
    let (_, outcome) = tried(&balancer::settings_of(database)?, request)?;
    balancer::check(&outcome)?;
    (context.spec.handler)(database, context, request)
}

/// `update` of `config.collections`: nothing but `noBalance` may change.
fn collections(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let router = router_of(database);
    let before = router.config_documents(COLLECTIONS, "").unwrap_or_default();
    let (reply, outcome) = tried(&before, request)?;
    let mut changes = Vec::new();
    if before.len() != outcome.len() {
        return Err(not_written());
    }
    for (was, is) in before.iter().zip(&outcome) {
        if was.as_bytes() == is.as_bytes() {
            continue;
        }
        let without = |document: &Document| super::read(document.as_ref(), &["noBalance"]);
        let (was_else, is_else) = (without(was), without(is));
        let is_same = was_else.as_bytes() == is_else.as_bytes();
        let is_exempt = match is.get("noBalance") {
            ValueRef::Bool(is_exempt) => is_exempt,
            ValueRef::Missing => false,
            _ => return Err(Error::bad_value("'noBalance' is true or false")),
        };
        if !is_same {
            return Err(not_written());
        }
        changes.push((sharded(router, was)?, is_exempt));
    }
    for (namespace, is_exempt) in changes {
        // The round that runs may be about to change the collection.
        drop(router.balancing());
        sharding::change_sharding((router, &context.operation), &namespace, |sharding| {
            sharding.is_exempt = is_exempt;
            Ok(())
        })?;
    }
    Ok(reply)
}

/// Returns the collection that a document of `config.collections` describes.
fn sharded(router: &Router, document: &Document) -> Result<Namespace> {
    let id = document.get("_id").as_str().unwrap_or_default();
    let placements = router.placements();
    let found = placements.iter().find(|(namespace, placement)| {
        let sharding = placement.sharding.as_ref();
        sharding.is_some_and(|sharding| sharding.key.namespace(namespace) == id)
    });
    found
        .map(|(namespace, _)| namespace.clone())
        .ok_or_else(not_written)
}

fn not_written() -> Error {
    Error::new(
        ErrorCode::CommandNotSupported,
        "of config.collections an update changes 'noBalance' alone",
    )
}

/// Returns the reply of an update on copies of documents, and what becomes of these.
fn tried(documents: &[Document], request: &Request) -> Result<(Document, Vec<Document>)> {
    let trial = Database::in_memory()?;
    let name = request.body.get("update").as_str().unwrap_or_default();
    for part in documents.chunks(COPIED_AT_ONCE) {
        let part: Array = part.iter().cloned().map(Value::from).collect();
        trial.call(TRIAL, doc! {"insert": name, "documents": part})?;
    }
    let mut body = DocumentBuilder::new();
    for element in request.body.iter() {
        if DECIDING.contains(&element.name()) {
            body.append_element(element);
        }
    }
    body.append("$db", TRIAL);
    let update = Request {
        body: body.finish(),
        sequences: request.sequences.clone(),
        routed: None,
    };
    let reply = trial.run_command(&mut ClientSession::embedded(), &update);
    if reply.get("ok").as_exact_i64() != Some(1) {
        return Err(error_of(reply.as_ref(), &["ok", "codeName"]));
    }
    let mut reply_of_read = trial.call(TRIAL, doc! {"find": name})?;
    let mut outcome = Vec::new();
    loop {
        let (rows, cursor) = batch_of(&reply_of_read)?;
        outcome.extend(rows);
        if cursor == 0 {
            return Ok((without_ok(&reply), outcome));
        }
        reply_of_read = trial.call(TRIAL, doc! {"getMore": cursor, "collection": name})?;
    }
}

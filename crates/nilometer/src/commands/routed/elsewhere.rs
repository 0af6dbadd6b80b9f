//! Commands that change the catalog of the cluster, at a router that only reads it.
//!
//! The user's privileges are checked here. The router with the catalog trusts those of its cluster.

use std::sync::Arc;

use nilometer_bson::{Document, DocumentBuilder};

use super::change::without_ok;
use super::router_of;
use crate::commands::CommandContext;
use crate::database::Database;
use crate::error::Result;
use crate::operation::{OperationContext, Request};
use crate::router::{Coordinator, checked, wait};
use crate::session::ClientSession;

/// Fields that concern the session of the client here.
const OF_THE_CLIENT: [&str; 4] = ["$clusterTime", "$readPreference", "lsid", "txnNumber"];

/// Runs the command at the router that has the catalog. Then this router sees what it did.
pub(super) fn run(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let mut body = DocumentBuilder::with_capacity(request.body.as_bytes().len());
    for element in request.body.iter() {
        if !OF_THE_CLIENT.contains(&element.name()) {
            body.append_element(element);
        }
    }
    let request = Request {
        body: body.finish(),
        sequences: request.sequences.clone(),
        routed: None,
    };
    let router = router_of(database);
    match router.elsewhere() {
        Some(coordinator) => send(coordinator, request, &context.operation),
        None => run_here(database, &request),
    }
}

/// Runs the command here: this router has got the catalog since the command began.
fn run_here(database: &Database, request: &Request) -> Result<Document> {
    let newest = database.newest_router();
    let database = newest.as_deref().unwrap_or(database);
    let reply = database.run_command(&mut ClientSession::embedded(), request);
    checked(reply).map(|reply| without_ok(&reply))
}

/// Sends a command to the router that has the catalog, and waits until this router sees what it did.
fn send(
    coordinator: &Arc<dyn Coordinator>,
    request: Request,
    operation: &OperationContext,
) -> Result<Document> {
    let reply = wait(&mut *coordinator.send(request), operation);
    // Also a command that failed may have changed something.
    coordinator.catch_up()?;
    Ok(without_ok(&reply?))
}

//! Commands that change the catalog of the cluster, at a router that only reads it.
//!
//! The user's privileges are checked here. The router with the catalog trusts those of its cluster.

use nilometer_bson::{Document, DocumentBuilder};

use super::change::without_ok;
use super::router_of;
use crate::commands::CommandContext;
use crate::database::Database;
use crate::error::Result;
use crate::operation::{OperationContext, Request};
use crate::router::{Router, wait};

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
    send(router_of(database), request, &context.operation)
}

/// Sends a command to the router that has the catalog, and waits until this router sees what it did.
pub(super) fn send(
    router: &Router,
    request: Request,
    operation: &OperationContext,
) -> Result<Document> {
    let coordinator = router.elsewhere();
    let coordinator = coordinator.expect("only a router without the catalog sends commands to it");
    let reply = wait(&mut *coordinator.send(request), operation);
    // Also a command that failed may have changed something.
    coordinator.catch_up()?;
    Ok(without_ok(&reply?))
}

//! `refreshRollup`: stores the bins of a rollup that have closed, and computes dirty ones again. It is no command of MongoDB.

use std::sync::Arc;

use nilometer_bson::Document;

use crate::args::Args;
use crate::auth::Action;
use crate::catalog::{Namespace, StoredRollup};
use crate::commands::{Access, Authorization, CommandContext, CommandSpec, OnRouter};
use crate::database::Database;
use crate::database::rollups::RefreshExtent;
use crate::error::{Error, ErrorCode, Result};
use crate::operation::Request;

pub(crate) const SPEC: CommandSpec = CommandSpec {
    access: Access::Write,
    ..CommandSpec::new(
        "refreshRollup",
        "Refreshes a rollup now.",
        Authorization::OnCollection(&[Action::CollMod]),
        OnRouter::Own,
        run,
    )
};

fn run(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let (namespace, rollup) = named_rollup(database, context, request, SPEC.name)?;
    let operation = &context.operation;
    let pace = || operation.check_interrupt();
    let rollups = database.rollups();
    rollups.expire(&namespace, &rollup, &pace)?;
    rollups.refresh(&namespace, &rollup, RefreshExtent::Closed, &pace)?;
    Ok(Document::new())
}

/// Returns the rollup that a command names in the field with its own name.
pub(crate) fn named_rollup(
    database: &Database,
    context: &CommandContext<'_>,
    request: &Request,
    command: &'static str,
) -> Result<(Namespace, Arc<StoredRollup>)> {
    let args = Args::new(command, request.body.as_ref());
    let name = args.required_string(command)?;
    let namespace = Namespace::new(context.database_name(), name)?;
    match database.catalog().rollup(&namespace) {
        Some(rollup) => Ok((namespace, rollup)),
        None => Err(Error::new(
            ErrorCode::NamespaceNotFound,
            format!("{namespace} is no rollup"),
        )),
    }
}

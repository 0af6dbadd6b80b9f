//! `refreshRollup`: stores the bins of a rollup that have closed, and computes dirty ones again. It is no command of MongoDB.

use nilometer_bson::Document;

use crate::args::Args;
use crate::auth::Action;
use crate::catalog::Namespace;
use crate::commands::{Access, Authorization, CommandContext, CommandSpec, OnRouter};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::operation::Request;

pub(crate) const SPEC: CommandSpec = CommandSpec {
    access: Access::Write,
    ..CommandSpec::new(
        "refreshRollup",
        "Refreshes a rollup now.",
        Authorization::OnCollection(&[Action::CollMod]),
        OnRouter::Refused,
        run,
    )
};

fn run(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let args = Args::new("refreshRollup", request.body.as_ref());
    let name = args.required_string("refreshRollup")?;
    let namespace = Namespace::new(context.database_name(), name)?;
    let Some(rollup) = database.catalog().rollup(&namespace) else {
        return Err(Error::new(
            ErrorCode::NamespaceNotFound,
            format!("{namespace} is no rollup"),
        ));
    };
    let operation = &context.operation;
    let pace = || operation.check_interrupt();
    let rollups = database.rollups();
    rollups.expire(&namespace, &rollup, &pace)?;
    rollups.refresh(&namespace, &rollup, &pace)?;
    Ok(Document::new())
}

//! `getCmdLineOpts`: the command line of the server.

use nilometer_bson::{Document, Value, doc};

use crate::auth::Action;
use crate::commands::{Authorization, CommandContext, CommandSpec, OnRouter};
use crate::database::Database;
use crate::error::Result;
use crate::operation::Request;

pub(crate) const SPEC: CommandSpec = CommandSpec {
    admin_only: true,
    ..CommandSpec::new(
        "getCmdLineOpts",
        "Returns the command line and the configuration.",
        Authorization::OnCluster(&[Action::GetCmdLineOpts]),
        OnRouter::Same,
        run,
    )
};

fn run(database: &Database, _: &mut CommandContext<'_>, _: &Request) -> Result<Document> {
    let host = &database.services().host;
    let argv: Vec<Value> = host.argv.iter().map(Value::from).collect();
    Ok(doc! {"argv": argv, "parsed": host.parsed_options.clone()})
}

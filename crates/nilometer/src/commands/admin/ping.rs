//! `ping`: replies if the server runs.

use nilometer_bson::Document;

use crate::commands::{Authorization, CommandContext, CommandSpec, OnRouter};
use crate::database::Database;
use crate::error::Result;
use crate::operation::Request;

pub(crate) const SPEC: CommandSpec = CommandSpec {
    in_api_v1: true,
    ..CommandSpec::new(
        "ping",
        "Replies, and does nothing else.",
        Authorization::Open,
        OnRouter::Same,
        run,
    )
};

fn run(_: &Database, _: &mut CommandContext<'_>, _: &Request) -> Result<Document> {
    Ok(Document::new())
}

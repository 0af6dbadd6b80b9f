//! `ping`: is the server there?

use nilometer_bson::Document;

use super::{Authorization, CommandContext, CommandSpec};
use crate::database::Database;
use crate::error::Result;
use crate::operation::Request;

pub(super) const SPEC: CommandSpec = CommandSpec {
    in_api_v1: true,
    ..CommandSpec::new(
        "ping",
        "Answers, and does nothing else.",
        Authorization::Open,
        run,
    )
};

fn run(_: &Database, _: &mut CommandContext<'_>, _: &Request) -> Result<Document> {
    Ok(Document::new())
}

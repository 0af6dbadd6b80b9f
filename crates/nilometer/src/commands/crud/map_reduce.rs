//! `mapReduce`: refused by name, because its functions are JavaScript and this server runs none.

use nilometer_bson::Document;

use crate::auth::Action;
use crate::commands::{Access, Authorization, CommandContext, CommandSpec, Fields, OnRouter};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::operation::Request;

pub(crate) const SPEC: CommandSpec = CommandSpec {
    access: Access::Read,
    fields: Fields::Any,
    aliases: &["mapreduce"],
    ..CommandSpec::new(
        "mapReduce",
        "Refused: JavaScript is not supported; use an aggregation.",
        Authorization::OnCollection(&[Action::Find]),
        OnRouter::Refused,
        refuse,
    )
};

fn refuse(_: &Database, _: &mut CommandContext<'_>, _: &Request) -> Result<Document> {
    Err(Error::new(
        ErrorCode::CommandNotSupported,
        "mapReduce is not supported: this server does not run JavaScript. Use an aggregation instead",
    ))
}

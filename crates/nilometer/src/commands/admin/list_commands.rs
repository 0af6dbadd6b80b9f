//! `listCommands`: the command table, for clients.

use nilometer_bson::{Document, DocumentBuilder, Value, array, doc};

use crate::commands::admin::fail_point;
use crate::commands::{Access, Authorization, COMMANDS, CommandContext, CommandSpec, OnRouter};
use crate::database::Database;
use crate::error::Result;
use crate::operation::Request;

pub(crate) const SPEC: CommandSpec = CommandSpec {
    aliases: &["listcommands"],
    ..CommandSpec::new(
        "listCommands",
        "Lists the commands of this server.",
        Authorization::LoggedIn,
        OnRouter::Same,
        run,
    )
};

fn run(database: &Database, _: &mut CommandContext<'_>, _: &Request) -> Result<Document> {
    let mut commands = DocumentBuilder::with_capacity(8192);
    let has_test_commands = database.services().parameters.enable_test_commands() != 0;
    for command in COMMANDS {
        if command.name == fail_point::SPEC.name && !has_test_commands {
            continue;
        }
        let versions = if command.in_api_v1 {
            array!["1"]
        } else {
            array![]
        };
        commands.append(
            command.name,
            doc! {
                "help": command.help,
                "requiresAuth": command.authorization.needs_login(),
                "secondaryOk": command.access != Access::Write,
                "adminOnly": command.admin_only,
                "apiVersions": versions,
                "deprecatedApiVersions": array![],
            },
        );
    }
    Ok(doc! {"commands": Value::from(commands.finish())})
}

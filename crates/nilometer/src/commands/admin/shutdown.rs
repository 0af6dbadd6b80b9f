//! `shutdown`: ends the server.
//!
//! Only for clients on the same machine if there is no access control. An embedded database has no server to
//! end and refuses the command.

use nilometer_bson::Document;

use crate::args::Args;
use crate::auth::Action;
use crate::commands::{Authorization, CommandContext, CommandSpec, Fields, OnRouter};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::operation::Request;

pub(crate) const SPEC: CommandSpec = CommandSpec {
    admin_only: true,
    fields: Fields::Only(&["force", "timeoutSecs"]),
    ..CommandSpec::new(
        "shutdown",
        "Shuts the server down.",
        Authorization::OnCluster(&[Action::Shutdown]),
        OnRouter::Same,
        run,
    )
};

fn run(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let args = Args::new("shutdown", request.body.as_ref());
    args.lenient_boolean("force")?;
    args.integer_at_least("timeoutSecs", 0)?;
    let Some(end) = database.services().shutdown.get() else {
        return Err(Error::new(
            ErrorCode::CommandNotSupported,
            "shutdown: this database is not served by a process of its own",
        ));
    };
    if !context.session.client.same_machine {
        return Err(Error::new(
            ErrorCode::Unauthorized,
            "shutdown must run from localhost when running db without auth",
        ));
    }
    end();
    Ok(Document::new())
}

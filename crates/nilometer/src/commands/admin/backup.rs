//! `nilometerBackup`: a copy of the whole database while it runs.
//!
//! Not a command of MongoDB. Its argument is an absolute path on the server's machine; the directory must be
//! empty or absent.

use std::path::Path;

use nilometer_bson::{Document, doc};

use crate::args::Args;
use crate::auth::Action;
use crate::commands::{Authorization, CommandContext, CommandSpec, Fields};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::operation::Request;

pub(crate) const SPEC: CommandSpec = CommandSpec {
    admin_only: true,
    fields: Fields::Only(&[]),
    ..CommandSpec::new(
        "nilometerBackup",
        "Copies the whole database into a directory on the server's machine.",
        Authorization::OnCluster(&[Action::AppendOplogNote, Action::ListDatabases]),
        run,
    )
};

fn run(database: &Database, _: &mut CommandContext<'_>, request: &Request) -> Result<Document> {
    let args = Args::new("nilometerBackup", request.body.as_ref());
    let directory = Path::new(args.required_string("nilometerBackup")?);
    if !directory.is_absolute() {
        return Err(Error::bad_value(format!(
            "nilometerBackup takes the absolute path of a directory on the server's machine, not '{}'",
            directory.display()
        )));
    }
    let clock = &database.services().clock;
    let started = clock.monotonic();
    // Errors of the file system about the directory are the caller's, not internal ones.
    let copied = database.checkpoint(directory).map_err(|e| match e.code {
        ErrorCode::InternalError => Error::new(ErrorCode::OperationFailed, e.message),
        _ => e,
    });
    copied?;
    let took = clock.monotonic().saturating_sub(started);
    Ok(doc! {
        "directory": directory.display().to_string(),
        "durationMillis": i64::try_from(took.as_millis()).unwrap_or(i64::MAX),
    })
}

//! `nilometerBackup`: a copy of the whole database while it runs.
//!
//! Not a command of MongoDB. Its argument is an absolute path on the server's machine, of a directory that is empty or
//! absent; or the URL of backups in an object store, with `keep` and `keepDays` for those that stay.

use std::path::Path;

use nilometer_bson::{Document, doc};

use crate::args::Args;
use crate::auth::Action;
use crate::commands::{Authorization, CommandContext, CommandSpec, Fields, OnRouter};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::operation::Request;
use crate::services::ObjectBackupRequest;

pub(crate) const SPEC: CommandSpec = CommandSpec {
    admin_only: true,
    fields: Fields::Only(&["keep", "keepDays", "endpoint", "region"]),
    ..CommandSpec::new(
        "nilometerBackup",
        "Copies the whole database into a directory on the server's machine, or into an object store.",
        Authorization::OnCluster(&[Action::AppendOplogNote, Action::ListDatabases]),
        OnRouter::Refused,
        run,
    )
};

fn run(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let args = Args::new("nilometerBackup", request.body.as_ref());
    let place = args.required_string("nilometerBackup")?;
    if place.contains("://") {
        return to_object_store(database, context, &args, place);
    }
    for option in ["keep", "keepDays", "endpoint", "region"] {
        if args.element(option).is_some() {
            return Err(Error::bad_value(format!(
                "the option {option} of nilometerBackup needs a URL such as s3://bucket/prefix, not '{place}'"
            )));
        }
    }
    let directory = Path::new(place);
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

fn to_object_store(
    database: &Database,
    context: &CommandContext<'_>,
    args: &Args<'_>,
    url: &str,
) -> Result<Document> {
    let Some(back_up) = database.services().object_backup.get() else {
        return Err(Error::new(
            ErrorCode::CommandNotSupported,
            "this server was built without object storage",
        ));
    };
    let Some(source) = database.backup_source() else {
        return Err(Error::new(
            ErrorCode::CommandNotSupported,
            "only a database in a directory is backed up to an object store; copy this one with `nilometer copy`",
        ));
    };
    let request = ObjectBackupRequest {
        url: url.to_owned(),
        endpoint: args.string("endpoint")?.map(str::to_owned),
        region: args.string("region")?.map(str::to_owned),
        keep: (args.integer_at_least("keep", 1)?).and_then(|keep| u64::try_from(keep).ok()),
        keep_days: (args.integer_within("keepDays", 0, i32::MAX.into())?)
            .and_then(|days| u32::try_from(days).ok()),
    };
    back_up(source, &request, &|| context.operation.check_interrupt())
}

//! `fsync` and `fsyncUnlock`: makes all acknowledged writes durable.
//!
//! The lock against writers is refused: a checkpoint makes a consistent copy without a lock.

use nilometer_bson::{Document, doc};

use crate::args::Args;
use crate::auth::Action;
use crate::commands::{Authorization, CommandContext, CommandSpec, Fields, OnRouter};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::operation::Request;

pub(crate) const FSYNC: CommandSpec = CommandSpec {
    admin_only: true,
    fields: Fields::Only(&["lock", "fsyncLockAcquisitionTimeoutMillis"]),
    ..CommandSpec::new(
        "fsync",
        "Writes everything to disk.",
        Authorization::OnCluster(&[Action::Fsync]),
        OnRouter::Refused,
        fsync,
    )
};

pub(crate) const UNLOCK: CommandSpec = CommandSpec {
    admin_only: true,
    ..CommandSpec::new(
        "fsyncUnlock",
        "Refused: there is no lock to release.",
        Authorization::OnCluster(&[Action::Unlock]),
        OnRouter::Refused,
        unlock,
    )
};

fn fsync(database: &Database, _: &mut CommandContext<'_>, request: &Request) -> Result<Document> {
    let args = Args::new("fsync", request.body.as_ref());
    args.integer_at_least("fsyncLockAcquisitionTimeoutMillis", 0)?;
    if args.lenient_boolean("lock")?.unwrap_or(false) {
        return Err(Error::new(
            ErrorCode::CommandNotSupported,
            "fsync with lock is not supported; a checkpoint copies the database without a lock",
        ));
    }
    database.engine().sync()?;
    // Only the journal needs a sync; tables were synced when they were written.
    Ok(doc! {"numFiles": 1})
}

fn unlock(_: &Database, _: &mut CommandContext<'_>, _: &Request) -> Result<Document> {
    Err(Error::new(
        ErrorCode::IllegalOperation,
        "fsyncUnlock called when not locked",
    ))
}

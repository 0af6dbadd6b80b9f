//! `rotateCertificates`: the transport reads its certificates again.
//!
//! Open connections keep theirs; new connections get the new ones. Unusable files are reported, and nothing
//! changes.

use nilometer_bson::Document;

use crate::args::Args;
use crate::auth::Action;
use crate::commands::{Authorization, CommandContext, CommandSpec, Fields, OnRouter};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::operation::Request;

pub(crate) const SPEC: CommandSpec = CommandSpec {
    admin_only: true,
    fields: Fields::Only(&["message"]),
    ..CommandSpec::new(
        "rotateCertificates",
        "Reloads the server's certificates.",
        Authorization::OnCluster(&[Action::RotateCertificates]),
        OnRouter::Same,
        run,
    )
};

fn run(database: &Database, _: &mut CommandContext<'_>, request: &Request) -> Result<Document> {
    let args = Args::new("rotateCertificates", request.body.as_ref());
    let message = args.string("message")?;
    let Some(rotate) = database.services().rotate_certificates.get() else {
        return Err(Error::new(
            ErrorCode::CommandFailed,
            "there are no certificates to rotate: the server was started without TLS",
        ));
    };
    rotate().map_err(|reason| {
        Error::new(
            ErrorCode::InvalidSSLConfiguration,
            format!("the certificates stay as they were: {reason}"),
        )
    })?;
    tracing::info!(
        c = "NETWORK",
        id = 4_913_400,
        message,
        "Rotated certificates"
    );
    Ok(Document::new())
}

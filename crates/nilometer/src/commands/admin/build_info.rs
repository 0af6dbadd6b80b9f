//! `buildInfo`: the version of the server.
//!
//! The version at the top is that of the MongoDB whose behaviour is offered, because clients choose features
//! by it; the product and its own version are in `nilometer`.

use nilometer_bson::{Document, Value, array, doc};

use crate::commands::server_version::{MONGODB_VERSION, MONGODB_VERSION_ARRAY, STORAGE_ENGINE};
use crate::commands::{Authorization, CommandContext, CommandSpec, OnRouter};
use crate::database::Database;
use crate::error::Result;
use crate::limits;
use crate::operation::Request;

pub(crate) const SPEC: CommandSpec = CommandSpec {
    aliases: &["buildinfo"],
    ..CommandSpec::new(
        "buildInfo",
        "Returns the server's version and build.",
        Authorization::Open,
        OnRouter::Same,
        run,
    )
};

fn run(_: &Database, _: &mut CommandContext<'_>, _: &Request) -> Result<Document> {
    let version: Vec<Value> = MONGODB_VERSION_ARRAY.map(Value::from).to_vec();
    Ok(doc! {
        "version": MONGODB_VERSION,
        "gitVersion": option_env!("NILOMETER_GIT_VERSION").unwrap_or("unknown"),
        "modules": array![],
        "allocator": "system",
        "javascriptEngine": "none",
        "sysInfo": "deprecated",
        "versionArray": version,
        "openssl": doc! {"running": "disabled", "compiled": "disabled"},
        "buildEnvironment": doc! {
            "target_arch": std::env::consts::ARCH,
            "target_os": std::env::consts::OS,
        },
        "bits": i32::try_from(usize::BITS).unwrap_or(64),
        "debug": cfg!(debug_assertions),
        "maxBsonObjectSize": i32::try_from(limits::DOCUMENT_BYTES_MAX).unwrap_or(i32::MAX),
        "storageEngines": array![STORAGE_ENGINE],
        "nilometer": doc! {"version": env!("CARGO_PKG_VERSION")},
    })
}

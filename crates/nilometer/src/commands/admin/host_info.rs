//! `hostInfo`: the known facts about the server's machine.

use nilometer_bson::{Document, Value, doc};

use crate::auth::Action;
use crate::commands::{Authorization, CommandContext, CommandSpec, OnRouter};
use crate::database::Database;
use crate::error::Result;
use crate::operation::Request;

const MIB: u64 = 1024 * 1024;

pub(crate) const SPEC: CommandSpec = CommandSpec {
    admin_only: true,
    ..CommandSpec::new(
        "hostInfo",
        "Describes the machine the server runs on.",
        Authorization::OnCluster(&[Action::HostInfo]),
        OnRouter::Same,
        run,
    )
};

fn run(database: &Database, _: &mut CommandContext<'_>, _: &Request) -> Result<Document> {
    let services = database.services();
    let host = &services.host;
    let text = |text: &str| (!text.is_empty()).then(|| Value::from(text));
    let megabytes =
        |bytes: u64| (bytes > 0).then(|| i64::try_from(bytes / MIB).unwrap_or(i64::MAX));
    let cores = i32::try_from(host.cores).unwrap_or(i32::MAX);
    let hostname = if host.port == 0 {
        host.hostname.clone()
    } else {
        format!("{}:{}", host.hostname, host.port)
    };
    Ok(doc! {
        "system": doc! {
            "currentTime": Value::DateTime(services.clock.now_ms()),
            "hostname": hostname,
            "cpuAddrSize": i32::try_from(usize::BITS).unwrap_or(64),
            "memSizeMB": megabytes(host.memory_bytes),
            "memLimitMB": megabytes(host.memory_limit_bytes),
            "numCores": cores,
            "numCoresAvailableToProcess": cores,
            "cpuArch": std::env::consts::ARCH,
        },
        "os": doc! {
            "type": host.os_type.as_str(),
            "name": text(&host.os_name),
            "version": text(&host.os_version),
        },
        "extra": doc! {
            "versionString": text(&host.kernel),
            "cpuFrequencyMHz": text(&host.cpu_mhz),
        },
    })
}

//! Tests over Azure's protocol, with Azurite on this machine.
//!
//! npm installs it into the target folder, once, with 374 packages; so no other task runs these tests.

use std::process::Command;

use crate::ci::with_threads_and_memory;
use crate::object_store::{StoreProcess, tool};
use crate::process::{Outcome, cargo, exists, run, run_quietly};

/// The version of Azurite.
const VERSION: &str = "3.35.0";

/// The account and key that Azurite has, which its documentation publishes.
const AZURE_ACCOUNT: &str = "devstoreaccount1";
const AZURE_KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// Creates a container, for which Azurite has no option: a signed request of Azure's protocol.
const CREATE_CONTAINER: &str = r#"
const [endpoint, container, account, key] = process.argv.slice(1);
const date = new Date().toUTCString(), version = "2021-08-06";
const resource = `/${account}/${account}/${container}\nrestype:container`;
const words = `PUT${"\n".repeat(12)}x-ms-date:${date}\nx-ms-version:${version}\n${resource}`;
const hmac = require("crypto").createHmac("sha256", Buffer.from(key, "base64"));
const authorization = `SharedKey ${account}:${hmac.update(words).digest("base64")}`;
const headers = {"x-ms-date": date, "x-ms-version": version, authorization};
fetch(`${endpoint}/${account}/${container}?restype=container`, {method: "PUT", headers})
  .then(reply => process.exit(reply.status == 201 ? 0 : 1));
"#;

/// The container of the tests.
const CONTAINER: &str = "tests";

/// Runs the tests.
pub(crate) fn run_tests() -> Outcome {
    let azurite = start()?;
    let mut test = cargo(["test", "--locked", "--quiet", "--package"]);
    test.args(["nilometer-cluster", "--test", "it"])
        .env("AZURE_STORAGE_USE_EMULATOR", "true")
        .env("AZURE_STORAGE_ACCOUNT_NAME", AZURE_ACCOUNT)
        .env(
            "AZURITE_BLOB_STORAGE_URL",
            format!("http://127.0.0.1:{}", azurite.port),
        )
        .env("NILOMETER_AZURE_CONTAINER", CONTAINER);
    run(with_threads_and_memory(&mut test).args(["--", "azure::"]))
}

/// Starts Azurite with an empty container.
fn start() -> Outcome<StoreProcess> {
    let folder = tool("azurite", VERSION);
    let program = folder.join("node_modules/.bin/azurite-blob");
    if !program.is_file() {
        if !exists("npm", "--version") {
            return Err("npm, which installs Azurite, is missing".to_owned());
        }
        let mut install = Command::new("npm");
        install.args(["install", "--no-audit", "--no-fund", "--prefix"]);
        run(install.arg(&folder).arg(format!("azurite@{VERSION}")))?;
    }
    let azurite = StoreProcess::start("azurite", |folder, port| {
        let mut command = Command::new(&program);
        command
            .args(["--silent", "--disableTelemetry", "--skipApiVersionCheck"])
            .args(["--blobHost", "127.0.0.1", "--blobPort", &port.to_string()])
            .arg("--location")
            .arg(folder);
        Ok(command)
    })?;
    let endpoint = format!("http://127.0.0.1:{}", azurite.port);
    let create = ["-e", CREATE_CONTAINER, &endpoint, CONTAINER];
    run_quietly(
        Command::new("node")
            .args(create)
            .args([AZURE_ACCOUNT, AZURE_KEY]),
    )?;
    Ok(azurite)
}

//! Sets the commit that the program is built from: `NILOMETER_COMMIT` of the environment, else the commit that git
//! reports, else `unknown`.

use std::process::Command;

/// Length of an abbreviated commit.
const SHORT: &str = "--short=12";

fn main() {
    println!("cargo::rerun-if-env-changed=NILOMETER_COMMIT");
    let given = std::env::var("NILOMETER_COMMIT").ok();
    let commit = given.filter(|text| !text.is_empty()).or_else(|| {
        for name in ["HEAD", "logs/HEAD"] {
            if let Some(path) = git(&["rev-parse", "--git-path", name]) {
                println!("cargo::rerun-if-changed={path}");
            }
        }
        git(&["rev-parse", SHORT, "HEAD"])
    });
    let commit = commit.unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=NILOMETER_COMMIT={commit}");
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

//! Directories written by earlier builds still open with all their data.
//!
//! `testdata/format-N.tar.gz` is a directory of format N left by a killed server: sealed and open buckets of versions 2
//! and 3, documents in tables and only in the log, indexes, a capped and a clustered collection, a view. A new format
//! gets a new file. Existing files are never rewritten, because databases in use are not rewritten, either.

use std::path::Path;
use std::process::Command;

use nilometer_bson::{ValueRef, doc};

use crate::client::Client;
use crate::server::{Directory, nilometer};

/// Measurements in order, and those in reverse order.
const MEASUREMENTS: usize = 2200 + 30;

/// Documents, one of which was removed.
const DOCUMENTS: usize = 599;

fn unpack(name: &str) -> Directory {
    let directory = Directory::new();
    let archive = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("testdata")
        .join(name);
    let unpacked = Command::new("tar")
        .arg("-xzf")
        .arg(archive)
        .arg("-C")
        .arg(&directory.0)
        .status();
    assert!(unpacked.expect("tar runs").success());
    directory
}

fn check(client: &mut Client) {
    let measurements = client.find_all("shop", &doc! {"find": "ts"});
    assert_eq!(measurements.len(), MEASUREMENTS);
    for measurement in &measurements {
        let n = measurement.get("n").as_exact_i64().expect("a number");
        let (time, value) = (measurement.get("t"), measurement.get("v"));
        assert!(matches!(time, ValueRef::DateTime(ms) if ms == (1_700_000_000 + n * 60) * 1000));
        assert!(matches!(value, ValueRef::Double(v) if v == n as f64 / 3.0));
        let word = format!("word {}", n % 3);
        assert_eq!(measurement.get("w").as_str(), Some(word.as_str()));
    }
    assert_eq!(
        client.find_all("shop", &doc! {"find": "plain"}).len(),
        DOCUMENTS
    );
    for (name, count) in [("cap", 10), ("clustered", 10), ("view", 86)] {
        assert_eq!(
            client.find_all("shop", &doc! {"find": name}).len(),
            count,
            "{name}"
        );
    }
    for (name, filter, hint) in [
        ("plain", doc! {"a": 3}, "by a"),
        ("ts", doc! {"v": doc! {"$gt": 700}}, "by v"),
    ] {
        let by_index = doc! {"find": name, "filter": filter.clone(), "hint": hint};
        let by_scan = doc! {"find": name, "filter": filter, "hint": doc! {"$natural": 1}};
        let (by_index, by_scan) = (
            client.find_all("shop", &by_index).len(),
            client.find_all("shop", &by_scan).len(),
        );
        assert!(
            by_index > 0 && by_index == by_scan,
            "{name}: {by_index} {by_scan}"
        );
    }
}

#[test]
fn a_directory_of_the_first_format_opens_with_everything_in_it() {
    let directory = unpack("format-1.tar.gz");
    let mut server = directory.serve();
    check(&mut server.connect());
    server.signal("TERM");
    server.wait();
    let data = directory.0.join("data");
    let verified = nilometer(&["verify", data.to_str().expect("a path")]).output();
    let verified = verified.expect("the program runs");
    let told = String::from_utf8_lossy(&verified.stdout).into_owned();
    assert!(verified.status.success(), "{told}");
    // Check again after writes of this build.
    check(&mut directory.serve().connect());
}

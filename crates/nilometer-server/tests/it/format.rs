//! Directories written by earlier builds still open with all their data.
//!
//! `testdata/format-N.tar.gz` is a directory of format N left by a killed server: sealed and open buckets of versions 2
//! and 3, documents in tables and only in the log, indexes, a capped and a clustered collection, a view. A new format
//! gets a new file. Existing files are never rewritten, because databases in use are not rewritten, either. The directory of
//! format 2 is that of format 1 with long keys added, in tables and in the log.

use std::path::Path;
use std::process::Command;

use nilometer_bson::{Document, ValueRef, doc};

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

/// Checks the long `_id`s, indexed values and metadata of format 2.
fn check_long_keys(client: &mut Client) {
    let numbers = |found: Vec<Document>| -> Vec<i64> {
        let numbers = found.iter().map(|found| found.get("n").as_exact_i64());
        numbers.map(|n| n.expect("a number")).collect()
    };
    let id = |n: i64| format!("{}{n}", "x".repeat(70_000));
    let from = doc! {"_id": doc! {"$gt": id(1), "$lte": id(4)}};
    let found = client.find_all("shop", &doc! {"find": "long", "filter": from});
    assert_eq!(numbers(found), [2, 3, 4]);
    let backward = doc! {"find": "long", "sort": doc! {"a": 1}, "hint": "by a"};
    assert_eq!(
        numbers(client.find_all("shop", &backward)),
        [0, 1, 2, 3, 4, 5]
    );
    let meta = doc! {"m": format!("{}1", "m".repeat(200_000))};
    let found = client.find_all("shop", &doc! {"find": "long ts", "filter": meta});
    assert_eq!(numbers(found), [1, 3, 5]);
}

#[test]
fn a_directory_of_the_first_format_opens_with_everything_in_it() {
    check_directory("format-1.tar.gz", check);
}

#[test]
fn a_directory_of_the_second_format_opens_with_its_long_keys() {
    check_directory("format-2.tar.gz", |client| {
        check(client);
        check_long_keys(client);
    });
}

#[test]
fn salvage_copies_long_keys() {
    let (source, target) = (unpack("format-2.tar.gz"), Directory::new());
    let paths = [&source, &target].map(|directory| directory.0.join("data"));
    let [from, to] = paths.each_ref().map(|path| path.to_str().expect("a path"));
    let salvaged = nilometer(&["salvage", from, to]).output();
    let salvaged = salvaged.expect("the program runs");
    let told = String::from_utf8_lossy(&salvaged.stdout).into_owned();
    assert!(salvaged.status.success(), "{told}");
    check_long_keys(&mut target.serve().connect());
}

fn check_directory(archive: &str, check: impl Fn(&mut Client)) {
    let directory = unpack(archive);
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

//! Backups in an object store by the program: of a directory, of a running server, and continuously.

use std::path::Path;
use std::time::{Duration, Instant};

use bson::doc;

use crate::s3::s3_url;
use crate::server::{Server, command, contents, fill, fill_more, refused, run, url};
use crate::support::Scratch;

/// Runs a command line that must succeed. Returns what it prints.
fn succeed(arguments: &[&str]) -> String {
    let ended = run(arguments);
    assert!(ended.status.success(), "{arguments:?}: {ended:?}");
    String::from_utf8_lossy(&ended.stdout).into_owned()
}

fn uri(server: &Server) -> String {
    format!("mongodb://127.0.0.1:{}", server.port)
}

#[test]
fn a_database_is_backed_up_in_an_object_store() {
    let directory = Scratch::new("server-backup");
    back_up(directory.path(), &url(&directory.path().join("store")));
    // An object that the newest backup needs is lost.
    let files = directory.path().join("store/nilometer/backups/files");
    let folder = std::fs::read_dir(&files).expect("the objects").next();
    let folder = folder.expect("a backup").expect("a folder").path();
    std::fs::remove_file(folder.join("0")).expect("removed");
    let store = url(&directory.path().join("store"));
    let ended = run(&["verify", &store]);
    assert_eq!(ended.status.code(), Some(3), "{ended:?}");
    let told = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert!(told.contains("DAMAGED  nilometer/backups/files/"), "{told}");
    assert!(told.contains("is missing: it has"), "{told}");
    let target = directory.path().join("damaged");
    let told = refused(&["restore", &store, target.to_str().expect("a path")], 3);
    assert!(told.contains("no object"), "{told}");
}

#[test]
fn a_database_is_backed_up_over_s3() {
    let directory = Scratch::new("server-backup-s3");
    if let Some(url) = s3_url("backup") {
        back_up(directory.path(), &url);
    }
}

fn back_up(directory: &Path, store: &str) {
    let path = |name: &str| directory.join(name).display().to_string();
    let server = Server::start(&["--dbpath", &path("data")]);
    fill(&server);
    let first = contents(&server);
    let told = succeed(&["backup", "--uri", &uri(&server), store]);
    assert!(told.contains("Backup 1 in"), "{told}");
    fill_more(&server);
    let second = contents(&server);
    succeed(&["backup", "--uri", &uri(&server), store]);
    server.stop();
    let told = succeed(&["backups", store]);
    let listed = told.lines().filter(|line| line.contains(" of 20"));
    assert_eq!(listed.count(), 2, "{told}");
    assert!(told.contains("\n1 of 20"), "{told}");
    succeed(&["verify", store]);
    for (arguments, target, expected) in [
        (&["--number", "1"][..], "first", &first),
        (&[], "second", &second),
    ] {
        let target = path(target);
        succeed(&[&["restore", store, &target], arguments].concat());
        let verified = succeed(&["verify", &target]);
        assert!(verified.contains("no problem was found"), "{verified}");
        let server = Server::start(&["--dbpath", &target]);
        assert_eq!(contents(&server), *expected);
        server.stop();
    }
    let told = succeed(&["backup", "--dbpath", &path("data"), store, "--keep", "1"]);
    assert!(told.contains("Removed: 1, 2."), "{told}");
    assert!(succeed(&["backups", store]).contains("\n3 of 20"));
    succeed(&["verify", store]);
    let told = refused(&["restore", store, &path("second")], 100);
    assert!(told.contains("is not empty"), "{told}");
    let told = refused(
        &[
            "restore",
            store,
            &path("new"),
            "--at",
            "1970-01-01T00:00:00Z",
        ],
        100,
    );
    assert!(told.contains("every backup is of a later time"), "{told}");
}

#[test]
fn options_that_need_the_url_of_backups_are_refused_with_a_directory() {
    let directory = Scratch::new("server-backup-options");
    let path = directory.path().display().to_string();
    for (arguments, text) in [
        (
            &["backup", "--dbpath", &path, "copy", "--keep", "3"][..],
            "--keep needs a URL",
        ),
        (
            &["restore", &path, "new", "--number", "3"],
            "--number needs a URL",
        ),
        (
            &["verify", &path, "--storageRegion", "x"],
            "--storageRegion needs a URL",
        ),
        (&["backups", &path], "is not a URL of backups"),
        (
            &["backup", "--dbpath", &path, "ftp://x/y"],
            "the scheme is none of",
        ),
        (
            &["restore", "file:///x", "new", "--at", "noon"],
            "--at takes a time such as",
        ),
        (
            &["serve", "--backup", "s3://a/b", "--backupIntervalSecs", "0"],
            "--backupIntervalSecs must be",
        ),
        (&["serve", "--backupKeep", "1"], "needs --backup"),
    ] {
        let told = refused(arguments, 2);
        assert!(told.contains(text), "{arguments:?}: {told}");
    }
    let told = refused(&["backups", &url(&directory.path().join("nothing"))], 100);
    assert!(told.contains("is not a directory"), "{told}");
}

fn now_ms() -> i64 {
    bson::DateTime::now().timestamp_millis()
}

/// A server is killed and its disk is lost: the backup has every write but those of the last interval, and every moment
/// before can be restored.
#[test]
fn a_lost_disk_costs_at_most_the_last_interval() {
    let directory = Scratch::new("lost-disk");
    let path = |name: &str| directory.path().join(name).display().to_string();
    let store = url(&directory.path().join("store"));
    let backup = [
        "--backup",
        &store,
        "--backupIntervalSecs",
        "1",
        "--backupKeepDays",
        "2",
    ];
    let server = Server::start(&[&["--dbpath", &path("data")], &backup[..]].concat());
    server.line("The files of the database are backed up");
    let mut times = Vec::new();
    let end = Instant::now() + Duration::from_secs(6);
    while Instant::now() < end {
        let document = doc! { "_id": i64::try_from(times.len()).expect("a number") };
        let collection = format!("beds{}", times.len() / 500);
        let begun = now_ms();
        command(
            &server,
            doc! { "insert": collection, "documents": [document] },
        );
        times.push((begun, now_ms()));
    }
    let killed = now_ms();
    drop(server);
    std::fs::remove_dir_all(path("data")).expect("the disk is lost");
    succeed(&["verify", &store]);
    let count =
        |is_over: &dyn Fn(&(i64, i64)) -> bool| times.iter().filter(|time| is_over(time)).count();
    let middle = times[times.len() / 2].0;
    for (target, at) in [("latest", None), ("middle", Some(middle))] {
        let target = path(target);
        let text = at.map(|at| {
            bson::DateTime::from_millis(at)
                .try_to_rfc3339_string()
                .expect("a date")
        });
        let mut arguments = vec!["restore", &store, &target];
        arguments.extend(text.iter().flat_map(|text| ["--at", text.as_str()]));
        succeed(&arguments);
        let verified = succeed(&["verify", &target]);
        assert!(verified.contains("no problem was found"), "{verified}");
        let server = Server::start(&["--dbpath", &target]);
        let mut found = 0;
        for part in 0..=times.len() / 500 {
            let reply = command(&server, doc! { "count": format!("beds{part}") });
            found += usize::try_from(reply.get_i32("n").expect("a count")).expect("a count");
        }
        server.stop();
        // An interval of a second, and the time to store a part.
        let least = at.map_or(killed - 3000, |at| at - 1000);
        assert!(
            found >= count(&|(_, after)| *after < least),
            "{found} of {}",
            times.len()
        );
        assert!(
            found <= count(&|(before, _)| *before <= at.unwrap_or(i64::MAX)),
            "{found}"
        );
    }
}

//! Backup, restore, verify, salvage and inspect on the command line.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use nilometer::auth::Mechanism;
use nilometer_bson::{Document, Value, array, doc};

use crate::client::{Client, body, code, is_ok, op_msg, sequence};
use crate::server::{Directory, Server, nilometer};

/// Measurements in order; then some out of order follow.
const MEASUREMENTS: i64 = 3000;

const DOCUMENTS: i64 = 4000;

/// Exit code for damage.
const DAMAGED: Option<i32> = Some(3);

fn insert(client: &mut Client, collection: &str, documents: &[Document]) {
    for documents in documents.chunks(500) {
        let command = doc! {"insert": collection, "$db": "shop"};
        let reply = client.ask(&op_msg(
            0,
            &[body(&command), sequence("documents", documents)],
        ));
        assert!(
            is_ok(&reply) && reply.get("writeErrors").as_array().is_none(),
            "{reply:?}"
        );
    }
}

fn measurement(at: i64, series: i64) -> Document {
    doc! {
        "t": Value::DateTime(1_700_000_000_000 + at * 60_000),
        "m": doc! {"s": series},
        "v": at as f64 / 3.0,
        "w": format!("word {}", at % 3),
    }
}

/// Creates a time series with buckets of versions 2 and 3, sealed and open; documents, indexes, options, a view.
pub(crate) fn fill(client: &mut Client) {
    let run = |client: &mut Client, command: Document| {
        let reply = client.run_on("shop", &command);
        assert!(is_ok(&reply), "{reply:?}");
    };
    run(
        client,
        doc! {
            "create": "ts",
            "timeseries": doc! {"timeField": "t", "metaField": "m", "granularity": "minutes"},
            "expireAfterSeconds": 4_000_000_000i64,
        },
    );
    let ascending: Vec<Document> = (0..MEASUREMENTS).map(|i| measurement(i, i % 4)).collect();
    insert(client, "ts", &ascending);
    // One by one in reverse order: these buckets have version 3.
    for at in (0..30).rev() {
        insert(client, "ts", &[measurement(at, 9)]);
    }
    let documents = (0..DOCUMENTS).map(|i| doc! {"_id": i, "a": i % 7, "text": "x".repeat(100)});
    insert(client, "plain", &documents.collect::<Vec<_>>());
    let by_a: Vec<Value> = vec![doc! {"key": doc! {"a": 1}, "name": "by a"}.into()];
    run(client, doc! {"createIndexes": "plain", "indexes": by_a});
    let by_v: Vec<Value> = vec![doc! {"key": doc! {"v": -1}, "name": "by v"}.into()];
    run(client, doc! {"createIndexes": "ts", "indexes": by_v});
    let pipeline: Vec<Value> = vec![doc! {"$match": doc! {"a": 1}}.into()];
    run(
        client,
        doc! {"create": "view", "viewOn": "plain", "pipeline": pipeline},
    );
}

/// Returns everything a client can see: collections with options, indexes, documents, bucket documents.
pub(crate) fn everything(client: &mut Client) -> Vec<Document> {
    let mut all = client.find_all("shop", &doc! {"listCollections": 1});
    all.sort_by(|a, b| a.get("name").as_str().cmp(&b.get("name").as_str()));
    for name in ["ts", "plain"] {
        let mut indexes = client.find_all("shop", &doc! {"listIndexes": name});
        indexes.sort_by(|a, b| a.get("name").as_str().cmp(&b.get("name").as_str()));
        all.extend(indexes);
    }
    for name in ["system.buckets.ts", "plain", "view"] {
        all.extend(client.find_all("shop", &doc! {"find": name, "sort": doc! {"_id": 1}}));
    }
    all
}

fn run(arguments: &[&str]) -> (Option<i32>, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = nilometer(arguments).output().expect("the program runs");
    let text = [stdout, stderr].concat();
    (status.code(), String::from_utf8_lossy(&text).into_owned())
}

fn succeed(arguments: &[&str]) -> String {
    let (code, text) = run(arguments);
    assert_eq!(code, Some(0), "{arguments:?}: {text}");
    text
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a UTF-8 path")
}

/// Makes a database with flushed tables that is not served. Returns its directory.
fn at_rest(directory: &Directory) -> (PathBuf, Vec<Document>) {
    let mut server = directory.serve();
    let mut client = server.connect();
    fill(&mut client);
    assert!(is_ok(&client.run_on("shop", &doc! {"compact": "plain"})));
    let none: Vec<Value> = Vec::new();
    let role = doc! {"createRole": "clerk", "privileges": none, "roles": array!["read"]};
    assert!(is_ok(&client.run_on("shop", &role)));
    let user = doc! {"createUser": "ada", "pwd": "pencil", "roles": array!["clerk"]};
    assert!(is_ok(&client.run_on("shop", &user)));
    let seen = everything(&mut client);
    server.signal("TERM");
    server.wait();
    (directory.0.join("data"), seen)
}

#[test]
fn a_backup_of_a_running_server_verifies_and_is_served_as_what_it_was() {
    let server = Server::start();
    let mut client = server.connect();
    fill(&mut client);
    let seen = everything(&mut client);
    let directory = Directory::new();
    let (copy, restored) = (directory.0.join("copy"), directory.0.join("data"));
    let uri = format!("mongodb://127.0.0.1:{}", server.port);
    succeed(&["backup", "--uri", &uri, text(&copy)]);
    // Later writes are not in the backup.
    insert(&mut client, "plain", &[doc! {"_id": -1}]);
    let told = succeed(&["verify", text(&copy)]);
    assert!(told.contains("no problem was found"), "{told}");
    assert!(
        told.contains(&format!("shop.plain: {DOCUMENTS} checked")),
        "{told}"
    );
    succeed(&["restore", text(&copy), text(&restored)]);
    let other = directory.serve();
    assert_eq!(everything(&mut other.connect()), seen);
    let again = client.run(&doc! {"nilometerBackup": text(&copy)});
    assert_eq!(code(&again), 2, "it is not empty: {again:?}");
    assert_eq!(code(&client.run(&doc! {"nilometerBackup": "here"})), 2);
    // A system error for the directory is not an internal error.
    let impossible = client.run(&doc! {"nilometerBackup": "/proc/nowhere"});
    assert_eq!(code(&impossible), 96, "{impossible:?}");
    assert_eq!(
        code(&client.run_on("shop", &doc! {"nilometerBackup": "/x"})),
        13
    );
}

#[test]
fn nothing_is_copied_into_itself() {
    let directory = Directory::new();
    let (data, _) = at_rest(&directory);
    let inside = data.join("some/where");
    for arguments in [
        vec!["restore", text(&data), text(&inside)],
        vec!["salvage", text(&data), text(&inside)],
        vec!["backup", "--dbpath", text(&data), text(&inside)],
    ] {
        let (code, told) = run(&arguments);
        assert_eq!(code, Some(100), "{arguments:?}: {told}");
        assert!(told.contains("lies within"), "{told}");
        assert!(!data.join("some").exists(), "{arguments:?}");
    }
    let server = directory.serve();
    let reply = server
        .connect()
        .run(&doc! {"nilometerBackup": text(&inside)});
    assert_eq!(code(&reply), 2, "{reply:?}");
}

#[test]
fn what_is_served_cannot_be_looked_at_from_beside() {
    let directory = Directory::new();
    let _server = directory.serve();
    let data = directory.0.join("data");
    for arguments in [
        vec!["verify", text(&data)],
        vec!["inspect", text(&data)],
        vec!["restore", text(&data), "/nowhere/at/all"],
        vec!["salvage", text(&data), "/nowhere/at/all"],
        vec!["backup", "--dbpath", text(&data), "/nowhere/at/all"],
    ] {
        let (code, told) = run(&arguments);
        assert_eq!(code, Some(100), "{arguments:?}: {told}");
        assert!(told.contains("in use by another process"), "{told}");
    }
    let (code, told) = run(&["verify", "/nowhere/at/all"]);
    assert_eq!(code, Some(100));
    assert!(
        told.contains("there is no database in /nowhere/at/all"),
        "{told}"
    );
}

#[test]
fn a_directory_is_explained() {
    let directory = Directory::new();
    let (data, _) = at_rest(&directory);
    let told = succeed(&["inspect", text(&data)]);
    for part in [
        "shop.view: a view",
        "shop.plain: an ordinary collection",
        "shop.system.buckets.ts: buckets of a time series",
        "3030 measurements in",
        "of version 2",
        "of version 3",
        "column v:",
        "index by a:",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    let log = data.join("wal");
    for file in std::fs::read_dir(&log).expect("list") {
        let path = file.expect("an entry").path();
        let told = succeed(&["inspect", text(&path)]);
        assert!(told.contains("segment"), "{told}");
    }
    let told = succeed(&["inspect", text(&data.join("TREES"))]);
    assert!(told.contains("catalog"), "{told}");
}

/// Returns the largest file of tables or values.
fn largest_table(data: &Path) -> PathBuf {
    let mut found = Vec::new();
    for tree in std::fs::read_dir(data.join("trees")).expect("list") {
        for folder in ["tables", "blobs"] {
            let folder = tree.as_ref().expect("an entry").path().join(folder);
            for file in std::fs::read_dir(folder).into_iter().flatten() {
                let path = file.expect("an entry").path();
                found.push((std::fs::metadata(&path).expect("a file").len(), path));
            }
        }
    }
    found.into_iter().max().expect("a table").1
}

#[test]
fn damage_is_found_and_the_rest_is_saved() {
    let directory = Directory::new();
    let (data, _) = at_rest(&directory);
    let offline = directory.0.join("offline");
    succeed(&["backup", "--dbpath", text(&data), text(&offline)]);
    let table = largest_table(&data);
    let mut bytes = std::fs::read(&table).expect("read");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    // A hard link in the backup must not be damaged, too.
    std::fs::remove_file(&table).expect("remove");
    std::fs::write(&table, bytes).expect("write");
    let (code, told) = run(&["inspect", text(&table)]);
    assert_eq!(code, Some(0), "{told}");
    assert!(told.contains("DAMAGED"), "{told}");
    let (code, told) = run(&["verify", text(&data)]);
    assert_eq!(code, DAMAGED, "{told}");
    assert!(told.contains("DAMAGED"), "{told}");
    assert!(told.contains("nilometer salvage"), "{told}");
    let saved = directory.0.join("saved");
    let (code, told) = run(&["salvage", text(&data), text(&saved)]);
    assert_eq!(code, DAMAGED, "{told}");
    assert!(told.contains("damage in "), "{told}");
    assert!(
        told.contains(", 0 lost"),
        "the other collection is whole: {told}"
    );
    let told = succeed(&["verify", text(&saved)]);
    assert!(told.contains("no problem was found"), "{told}");
    // The saved documents are unchanged, and most are saved.
    let found = count_documents(&saved);
    let all = count_documents(&offline);
    assert!(found < all && found > all / 2, "{found} of {all}");
    // An undamaged database is saved completely.
    let whole = directory.0.join("whole");
    let told = succeed(&["salvage", text(&offline), text(&whole)]);
    assert!(told.contains("Nothing was lost."), "{told}");
    assert!(told.contains("1 users and 1 roles kept, 0 lost"), "{told}");
    assert_eq!(count_documents(&whole), all);
    let arguments = ["serve", "--auth", "--port", "0", "--dbpath", text(&whole)];
    let server = Server::spawn(&mut nilometer(&arguments));
    let mut client = server.connect();
    let reply = client.log_in(Mechanism::Sha256, "shop", "ada", "pencil");
    assert!(is_ok(&reply), "{reply:?}");
    assert!(is_ok(&client.run_on("shop", &doc! {"find": "plain"})));
    let elsewhere = client.run_on("other", &doc! {"find": "plain"});
    assert_eq!(crate::client::code(&elsewhere), 13);
}

fn count_documents(data: &Path) -> i64 {
    let arguments = ["serve", "--port", "0", "--quiet", "--dbpath", text(data)];
    let server = Server::spawn(&mut nilometer(&arguments));
    let mut client = server.connect();
    let mut sum = 0;
    for name in ["ts", "plain"] {
        let found = client.find_all("shop", &doc! {"find": name});
        for document in &found {
            let as_written = match document.get("t") {
                nilometer_bson::ValueRef::DateTime(ms) => {
                    let at = (ms - 1_700_000_000_000) / 60_000;
                    matches!(document.get("v"), nilometer_bson::ValueRef::Double(v) if v == at as f64 / 3.0)
                }
                _ => {
                    document.get("a").as_exact_i64()
                        == document.get("_id").as_exact_i64().map(|id| id % 7)
                }
            };
            assert!(as_written, "{document:?}");
        }
        sum += i64::try_from(found.len()).expect("a count");
    }
    sum
}

#[test]
fn what_is_not_there_is_said_not_to_be_there() {
    let directory = Directory::new();
    let path = |name: &str| directory.0.join(name).to_str().expect("a path").to_owned();
    let (nothing, target) = (path("nothing"), path("target"));
    for arguments in [
        &["restore", &nothing, &target][..],
        &["verify", &nothing],
        &["inspect", &nothing],
    ] {
        let ended = nilometer(arguments).output().expect("the program");
        let told = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(100), "{told}");
        assert!(told.contains("there is no database in"), "{told}");
    }
}

#[test]
fn who_sits_at_a_terminal_is_told_how_to_connect() {
    let directory = Directory::new();
    let program = env!("CARGO_BIN_EXE_nilometer");
    let serve = format!(
        "exec timeout 5 '{program}' serve --port 0 --dbpath '{}'",
        directory.0.join("data").display()
    );
    // `script` provides a terminal.
    let script = std::process::Command::new("script")
        .args(["-qec", &serve, "/dev/null"])
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::piped())
        .spawn();
    let Ok(mut script) = script else { return };
    let mut shown = String::new();
    for line in BufReader::new(script.stdout.take().expect("a pipe")).lines() {
        shown += &line.expect("text");
        shown.push('\n');
        if shown.contains("  connect ") {
            break;
        }
    }
    // The server ends with its terminal, or by `timeout`.
    script.kill().expect("it runs, or has ended");
    script.wait().expect("a status");
    assert!(
        shown.contains("  connect   mongosh mongodb://127.0.0.1:"),
        "{shown}"
    );
    assert!(shown.contains("  data      /"), "{shown}");
}

/// Returns the newest log file with records, and the offset of its last record.
fn last_record(data: &Path) -> (PathBuf, usize) {
    let files = std::fs::read_dir(data.join("wal")).expect("list");
    let mut files: Vec<PathBuf> = files.map(|file| file.expect("an entry").path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "log"));
    files.sort();
    let places = files.into_iter().rev().filter_map(|path| {
        let bytes = std::fs::read(&path).expect("read");
        let (mut at, mut last) = (64, None);
        while bytes.get(at..at + 4) == Some(b"NLr1") {
            last = Some(at);
            let length = u32::from_le_bytes(bytes[at + 4..at + 8].try_into().expect("4 bytes"));
            at = (at + 48 + length as usize).next_multiple_of(8);
        }
        last.map(|at| (path, at))
    });
    places.max().expect("a record")
}

#[test]
fn a_flipped_byte_in_the_last_batch_is_said_aloud() {
    let directory = Directory::new();
    let data = directory.0.join("data");
    let (image, served) = (directory.0.join("image"), directory.0.join("served"));
    // What is written when the log falls idle proves the damage: then opening is refused, and the kill was too late.
    let (file, offset) = (0..20)
        .find_map(|_| {
            drop(std::fs::remove_dir_all(&data));
            for copy in [&image, &served] {
                drop(std::fs::remove_dir_all(copy));
            }
            let mut server = directory.serve();
            let mut client = server.connect();
            insert(&mut client, "plain", &[doc! {"_id": 0}]);
            let documents = (1..=200).map(|i| doc! {"_id": i, "text": "x".repeat(100)});
            insert(&mut client, "plain", &documents.collect::<Vec<_>>());
            server.signal("KILL");
            server.wait();
            let (file, offset) = last_record(&data);
            let mut bytes = std::fs::read(&file).expect("read");
            bytes[offset + 48 + 1000] ^= 1;
            std::fs::write(&file, bytes).expect("write");
            for copy in [&image, &served] {
                succeed(&["restore", text(&data), text(copy)]);
            }
            let (code, told) = run(&["inspect", text(&data)]);
            if code == DAMAGED {
                return None;
            }
            assert!(told.contains("may have been acknowledged"), "{told}");
            Some((file, offset))
        })
        .expect("a kill right after an insert");
    // The data was opened and the image was not: both report it.
    for directory in [&data, &image, &image] {
        let (code, told) = run(&["verify", text(directory)]);
        assert_eq!(code, DAMAGED, "{told}");
        let name = file.file_name().and_then(|name| name.to_str());
        assert!(told.contains(name.expect("a name")), "{told}");
        assert!(told.contains(&format!("at byte {offset}: ")), "{told}");
        assert!(told.contains("everything else"), "{told}");
    }
    let arguments = ["serve", "--port", "0", "--quiet", "--dbpath", text(&served)];
    let server = Server::spawn(&mut nilometer(&arguments));
    let log = server.connect().startup_warnings();
    let name = text(&file).rsplit('/').next().expect("a name");
    for part in [
        name,
        &format!("\"offset\":{offset}"),
        "\"bytes\":",
        "may have been acknowledged",
    ] {
        assert!(log.contains(part), "{part}: {log}");
    }
}

#[test]
fn a_copy_without_the_newest_log_file_is_refused_and_salvaged() {
    let directory = Directory::new();
    let data = directory.0.join("data");
    let mut server = directory.serve();
    let mut client = server.connect();
    insert(&mut client, "plain", &[doc! {"_id": 0}]);
    assert!(is_ok(&client.run_on("shop", &doc! {"compact": "plain"})));
    insert(&mut client, "plain", &[doc! {"_id": 1}]);
    server.signal("KILL");
    server.wait();
    std::fs::remove_file(last_record(&data).0).expect("remove");
    for command in ["verify", "inspect"] {
        let (code, told) = run(&[command, text(&data)]);
        assert_eq!(code, DAMAGED, "{told}");
        assert!(told.contains("expected the newest segment"), "{told}");
    }
    let serve = ["serve", "--port", "0", "--quiet", "--dbpath", text(&data)];
    assert_eq!(run(&serve).0, Some(100));
    let saved = directory.0.join("saved");
    let (code, told) = run(&["salvage", text(&data), text(&saved)]);
    assert_eq!(code, DAMAGED, "{told}");
    assert!(told.contains("damage in the log"), "{told}");
    succeed(&["verify", text(&saved)]);
}

#[cfg(unix)]
#[test]
fn data_is_readable_for_its_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    fn check(folder: &Path) -> usize {
        let mode = |path: &Path| {
            std::fs::metadata(path)
                .expect("a file")
                .permissions()
                .mode()
                & 0o777
        };
        assert_eq!(mode(folder), 0o700, "{}", folder.display());
        let mut files = 0;
        for entry in std::fs::read_dir(folder).expect("list") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                files += check(&path);
            } else {
                assert_eq!(mode(&path), 0o600, "{}", path.display());
                files += 1;
            }
        }
        files
    }
    let directory = Directory::new();
    let (data, seen) = at_rest(&directory);
    assert!(!seen.is_empty() && check(&data) > 10);
    let path = |name: &str| directory.0.join(name);
    succeed(&["backup", "--dbpath", text(&data), text(&path("backup"))]);
    // Copies made by other tools are readable for others.
    let loose = Command::new("chmod")
        .args(["-R", "a+rX", text(&path("backup"))])
        .status();
    assert!(loose.expect("chmod runs").success());
    succeed(&["restore", text(&path("backup")), text(&path("restored"))]);
    succeed(&["salvage", text(&path("backup")), text(&path("salvaged"))]);
    for name in ["restored", "salvaged"] {
        assert!(check(&path(name)) > 10, "{name}");
    }
    let server = directory.serve();
    let target = path("online");
    let reply = server
        .connect()
        .run(&doc! {"nilometerBackup": text(&target)});
    assert!(is_ok(&reply), "{reply:?}");
    assert!(
        std::fs::metadata(&target).is_ok_and(|found| found.permissions().mode() & 0o777 == 0o700)
    );
}

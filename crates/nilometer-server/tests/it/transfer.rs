//! Import and export of lines of text.

use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use nilometer::auth::Mechanism;
use nilometer_bson::{Document, Value, ValueRef, array, doc};

use crate::client::{Client, is_ok};
use crate::server::{Directory, Server, nilometer};

/// Runs the program against a server. Returns its exit code and output.
fn run(server: &Server, arguments: &[&str], input: &str) -> (Option<i32>, String) {
    let uri = format!("mongodb://127.0.0.1:{}", server.port);
    run_at(&uri, &[arguments, &["--db", "db"]].concat(), &[], input)
}

/// Runs the program with a connection string and environment variables.
pub(crate) fn run_at(
    uri: &str,
    arguments: &[&str],
    environment: &[(&str, &str)],
    input: &str,
) -> (Option<i32>, String) {
    let mut command = nilometer(arguments);
    command.args(["--uri", uri]);
    command.envs(environment.iter().copied());
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program runs");
    let mut stdin = child.stdin.take().expect("a pipe");
    // It may end without reading everything.
    drop(stdin.write_all(input.as_bytes()));
    drop(stdin);
    let ended = child.wait_with_output().expect("the program ends");
    let told = [ended.stdout, ended.stderr].concat();
    (
        ended.status.code(),
        String::from_utf8_lossy(&told).into_owned(),
    )
}

fn all(client: &mut Client, collection: &str) -> Vec<Document> {
    client.find_all("db", &doc! {"find": collection, "sort": doc! {"_id": 1}})
}

fn write(directory: &Directory, name: &str, text: &str) -> String {
    let path = directory.0.join(name);
    std::fs::write(&path, text).expect("a file");
    path.to_str().expect("a path").to_owned()
}

#[test]
fn json_goes_in_and_comes_out_as_it_was() {
    let server = Server::start();
    let directory = Directory::new();
    let mut client = server.connect();
    let text: String = (0..2500)
        .map(|i| {
            format!(
                "{{\"_id\": {i}, \"t\": {{\"$date\": \"2024-05-01T00:00:00Z\"}}, \"v\": {i}.5}}\n"
            )
        })
        .collect();
    let file = write(&directory, "in.json", &text);
    let (code, told) = run(&server, &["import", &file, "--collection", "c"], "");
    assert_eq!(code, Some(0), "{told}");
    assert!(
        told.contains("2500 documents inserted, 0 lines wrong, 2500 lines done"),
        "{told}"
    );
    let found = all(&mut client, "c");
    assert_eq!(found.len(), 2500);
    let expected = doc! {"_id": 7, "t": Value::DateTime(1_714_521_600_000), "v": 7.5};
    assert_eq!(found[7], expected);
    // Export, and import under another name from the standard input.
    let out = directory.0.join("out.json");
    let out = out.to_str().expect("a path");
    let (code, told) = run(
        &server,
        &["export", out, "--collection", "c", "--canonical"],
        "",
    );
    assert_eq!(code, Some(0), "{told}");
    let exported = std::fs::read_to_string(out).expect("a file");
    let (code, told) = run(&server, &["import", "--collection", "d"], &exported);
    assert_eq!(code, Some(0), "{told}");
    assert_eq!(all(&mut client, "d"), found);
    let some = [
        "export",
        "--collection",
        "c",
        "--query",
        "{\"_id\": {\"$lt\": 2}}",
        "--fields",
        "v",
    ];
    let (code, told) = run(&server, &some, "");
    assert_eq!(
        (code, told.as_str()),
        (Some(0), "{\"v\":0.5}\n{\"v\":1.5}\n")
    );
}

#[test]
fn lines_that_are_wrong_are_told_by_number_and_left_out() {
    let server = Server::start();
    let mut client = server.connect();
    let text = "{\"_id\": 1}\n\n{\"_id\": \n{\"_id\": 1}\nnothing\n{\"_id\": 2}\n";
    let (code, told) = run(&server, &["import", "--collection", "c"], text);
    assert_eq!(code, Some(100), "{told}");
    for part in [
        "line 3: ",
        "line 4: E11000",
        "line 5: ",
        "2 documents inserted, 3 lines wrong",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    assert_eq!(all(&mut client, "c"), [doc! {"_id": 1}, doc! {"_id": 2}]);
    // Lines done before are skipped.
    let text = "{\"_id\": 8}\n{\"_id\": 9}\n{\"_id\": 10}\n";
    let (code, told) = run(
        &server,
        &["import", "--collection", "c", "--skip", "2"],
        text,
    );
    assert_eq!(code, Some(0), "{told}");
    assert_eq!(all(&mut client, "c").len(), 3);
}

#[test]
fn an_interrupted_import_says_where_to_continue() {
    let server = Server::start();
    let mut client = server.connect();
    let view: Vec<Value> = Vec::new();
    let view = doc! {"create": "v", "viewOn": "c", "pipeline": view};
    assert!(is_ok(&client.run_on("db", &view)));
    let (code, told) = run(
        &server,
        &["import", "--collection", "v", "--skip", "1"],
        "{}\n{}\n",
    );
    assert_eq!(code, Some(100), "{told}");
    assert!(told.contains("continue with  --skip 1"), "{told}");
}

#[test]
fn invalid_files_are_reported() {
    let server = Server::start();
    let mut client = server.connect();
    let csv = ["import", "--collection", "c", "--format", "csv"];
    // The value of the second line would swallow all others.
    let open = "_id,text\n1,a\n2,\"b\n3,c\n4,d\n";
    let (code, told) = run(&server, &csv, open);
    assert_eq!(code, Some(100), "{told}");
    assert!(told.contains("line 3: a quote is opened"), "{told}");
    assert_eq!(all(&mut client, "c").len(), 1);
    for (text, expected) in [
        ("a,a\n1,2\n", "two columns 'a'"),
        ("a,a.b\n1,2\n", "conflict: one is a value"),
    ] {
        let (code, told) = run(&server, &csv, text);
        assert_eq!(code, Some(2), "{told}");
        assert!(
            told.contains(expected) && !told.contains("continue with"),
            "{told}"
        );
    }
    let skipped = ["import", "--collection", "c", "--skip", "3"];
    let (code, told) = run(&server, &skipped, "{}\n{}\n");
    assert_eq!(code, Some(2), "{told}");
    assert!(told.contains("--skip 3 exceeds the 2 lines"), "{told}");
    let (code, told) = run(&server, &["import", "/", "--collection", "c"], "");
    assert_eq!(code, Some(100), "{told}");
    assert!(told.contains("cannot read /: "), "{told}");
    let full = ["export", "/dev/full", "--collection", "c"];
    let (code, told) = run(&server, &full, "");
    assert_eq!(code, Some(100), "{told}");
    assert!(told.contains("cannot write /dev/full: "), "{told}");
}

#[test]
fn csv_has_types_and_goes_both_ways() {
    let server = Server::start();
    let directory = Directory::new();
    let mut client = server.connect();
    let create = doc! {
        "create": "soil", "timeseries": doc! {"timeField": "time", "metaField": "bed"},
    };
    assert!(is_ok(&client.run_on("db", &create)));
    let text = "_id,time.date(),bed.name.string(),moisture.double()\n\
                1,2024-05-01T06:00:00Z,\"roses, red\",31\n\
                2,2024-05-01T06:01:00Z,herbs,\n\
                3,yesterday,herbs,1\n";
    let file = write(&directory, "in.csv", text);
    let (code, told) = run(&server, &["import", &file, "--collection", "soil"], "");
    assert_eq!(code, Some(100), "{told}");
    assert!(
        told.contains("line 4: the column 'time' holds 'yesterday'"),
        "{told}"
    );
    let found = all(&mut client, "soil");
    assert_eq!(found.len(), 2);
    let moisture = found[0].get("moisture");
    assert!(matches!(moisture, ValueRef::Double(n) if n == 31.0));
    let out = directory.0.join("out.csv");
    let fields = "_id,time,bed.name,moisture";
    let arguments = [
        "export",
        out.to_str().expect("a path"),
        "--collection",
        "soil",
        "--fields",
        fields,
        "--sort",
        "{\"_id\": 1}",
    ];
    let (code, told) = run(&server, &arguments, "");
    assert_eq!(code, Some(0), "{told}");
    assert_eq!(
        std::fs::read_to_string(Path::new(&out)).expect("a file"),
        "_id,time,bed.name,moisture\n1,2024-05-01T06:00:00Z,\"roses, red\",31\n\
         2,2024-05-01T06:01:00Z,herbs,\n"
    );
    let (code, told) = run(
        &server,
        &["export", "--collection", "soil", "--format", "csv"],
        "",
    );
    assert_eq!(code, Some(2), "{told}");
}

#[test]
fn commands_log_in() {
    let server = Server::start_with(&["--auth"]);
    let directory = Directory::new();
    let mut admin = server.connect();
    let root = doc! {"createUser": "root", "pwd": "pencil", "roles": array!["root"]};
    assert!(is_ok(&admin.run(&root)));
    let reply = admin.log_in(Mechanism::Sha256, "admin", "root", "pencil");
    assert!(is_ok(&reply), "{reply:?}");
    let roles = array!["readWrite"];
    for (name, pwd, mechanisms) in [
        ("new", "a@b:c/%", array!["SCRAM-SHA-256"]),
        ("old", "x", array!["SCRAM-SHA-1"]),
    ] {
        let create = doc! {
            "createUser": name, "pwd": pwd, "roles": roles.clone(), "mechanisms": mechanisms,
        };
        assert!(is_ok(&admin.run_on("db", &create)));
    }
    let password_file = write(&directory, "password", "a@b:c/%\nnot this\n");
    let uri = |login: &str| format!("mongodb://{login}127.0.0.1:{}", server.port);
    let at = |path: &str| format!("{}{path}", uri("new:a%40b%3Ac%2F%25@"));
    let import = ["import", "--collection", "c"];
    type Environment<'a> = &'a [(&'a str, &'a str)];
    let good: [(&str, &[&str], Environment<'_>); 6] = [
        (&at("/db"), &[], &[]),
        (&at("/?authSource=db"), &["--db", "db"], &[]),
        (&at("/db?authMechanism=SCRAM-SHA-256"), &[], &[]),
        (
            &format!("{}/db", uri("new@")),
            &["--passwordFile", &password_file],
            &[],
        ),
        (
            &format!("{}/db", uri("new@")),
            &[],
            &[("NILOMETER_PASSWORD", "a@b:c/%")],
        ),
        (&format!("{}/db", uri("old:x@")), &[], &[]),
    ];
    for (uri, more, environment) in good {
        let (code, told) = run_at(uri, &[&import, more].concat(), environment, "{}\n");
        assert_eq!(code, Some(0), "{uri}: {told}");
    }
    assert_eq!(admin.find_all("db", &doc! {"find": "c"}).len(), good.len());
    let bad: [(&str, &[&str], i32, &str); 7] = [
        (&uri(""), &["--db", "db"], 100, "requires authentication"),
        (
            &at(""),
            &["--db", "db"],
            100,
            "cannot log in as new on the database admin",
        ),
        (
            &at("/db?authMechanism=SCRAM-SHA-1"),
            &[],
            100,
            "cannot log in as new",
        ),
        (
            &format!("{}/db", uri("old:y@")),
            &[],
            100,
            "Authentication failed",
        ),
        (
            &at("/?authSource=db"),
            &["--db", "other"],
            100,
            "not authorized on other",
        ),
        (
            &format!("{}/db", uri("new@")),
            &[],
            2,
            "use --passwordFile, or set NILOMETER_PASSWORD",
        ),
        (
            &at("/?authSource=db"),
            &[],
            2,
            "use --db, or name it in --uri",
        ),
    ];
    for (uri, more, exit, expected) in bad {
        let (code, told) = run_at(uri, &[&import, more].concat(), &[], "{}\n");
        assert_eq!(code, Some(exit), "{uri}: {told}");
        assert!(told.contains(expected), "{uri}: {told}");
        assert!(
            !told.contains("a@b:c/%") && !told.contains("a%40b"),
            "{uri}: {told}"
        );
    }
    let copy = directory.0.join("copy");
    let backup = ["backup", copy.to_str().expect("a path")];
    let (code, told) = run_at(&at("/db"), &backup, &[], "");
    assert_eq!(code, Some(100), "a reader may not: {told}");
    let (code, told) = run_at(&uri("root:pencil@"), &backup, &[], "");
    assert_eq!(code, Some(0), "{told}");
}

/// Written by another program: see `docs/testing.md`.
const PARQUET: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/garden.parquet");

#[cfg(not(feature = "parquet"))]
#[test]
fn a_program_without_parquet_says_so() {
    let server = Server::start();
    let (code, told) = run(&server, &["import", PARQUET, "--collection", "c"], "");
    assert_eq!(code, Some(2), "{told}");
    assert!(told.contains("--features parquet"), "{told}");
}

#[cfg(not(feature = "arrow"))]
#[test]
fn a_program_without_arrow_says_so() {
    let server = Server::start();
    for arguments in [
        ["import", "--collection", "c", "in.arrow"],
        ["export", "--collection", "c", "out.arrow"],
        ["export", "--collection", "c", "out.parquet"],
    ] {
        let directory = Directory::new();
        let file = write(&directory, arguments[3], "");
        let (code, told) = run(&server, &[&arguments[..3], &[&file]].concat(), "");
        assert_eq!(code, Some(2), "{told}");
        assert!(told.contains("--features arrow"), "{told}");
    }
}

#[cfg(feature = "parquet")]
#[test]
fn parquet_comes_in() {
    let server = Server::start();
    let mut client = server.connect();
    let (code, told) = run(&server, &["import", PARQUET, "--collection", "c"], "");
    assert_eq!(code, Some(100), "{told}");
    for part in [
        "row 5: the column 'unsigned' holds 9223372036854775808",
        "5 documents inserted, 1 rows wrong, 6 rows done",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    let found = all(&mut client, "c");
    let date = |ms: i64| Value::DateTime(1_714_543_200_000 + ms);
    let decimal = |text: &str| {
        let json = format!("{{\"v\": {{\"$numberDecimal\": \"{text}\"}}}}");
        let read = nilometer_bson::extjson::parse_document(&json).expect("JSON");
        read.get("v").to_value()
    };
    let raw = |bytes: [u8; 2]| {
        let bytes = bytes.as_slice().into();
        Value::from(nilometer_bson::Binary { subtype: 0, bytes })
    };
    let third = doc! {
        "_id": 3, "ms": date(120_000), "us": date(3), "ns": date(2),
        "day": Value::DateTime(1_714_694_400_000), "bed": doc! {"name": "ß", "row": 2},
        "long": 1_999_999_999_999i64, "unsigned": 2i64, "small": 202, "double": 2.0 / 3.0,
        "float": 1.0, "flag": true, "price": decimal("-3.00"), "raw": raw([2, 255]),
        "list": array![2, Value::Null, 3], "struct": doc! {"a": 2}, "map": doc! {"k2": 2.0},
    };
    assert_eq!(found[2], third);
    for name in ["us", "double"] {
        assert!(matches!(found[3].get(name), ValueRef::Missing));
    }
    assert_eq!(found[0].get("list").as_array().map(|a| a.len()), Some(0));
    let at = found[3]
        .get("struct")
        .as_document()
        .expect("a document")
        .get("at");
    assert!(matches!(at, ValueRef::DateTime(1_714_543_200_000)));
    // Rows imported before are skipped, also within a row group.
    for (skip, done) in [("5", 1), ("2", 3), ("6", 0)] {
        let into = ["import", PARQUET, "--collection", skip, "--skip", skip];
        let (_, told) = run(&server, &into, "");
        assert!(told.contains("6 rows done"), "{told}");
        assert_eq!(all(&mut client, skip).len(), done, "{told}");
    }
    let (code, told) = run(
        &server,
        &["import", "--collection", "c", "--format", "parquet"],
        "",
    );
    assert_eq!(code, Some(2), "{told}");
    assert!(told.contains("needs the name of a file"), "{told}");
    let directory = Directory::new();
    let mut bytes = std::fs::read(PARQUET).expect("a file");
    bytes.truncate(5000);
    let cut = directory.0.join("cut.parquet");
    std::fs::write(&cut, bytes).expect("a file");
    let cut = cut.to_str().expect("a path");
    let (code, told) = run(&server, &["import", cut, "--collection", "e"], "");
    assert_eq!(code, Some(100), "{told}");
    assert!(told.contains("cannot be read"), "{told}");
}

#[cfg(feature = "arrow")]
#[test]
fn parquet_goes_out_and_comes_back() {
    // More than one batch.
    const MANY: i32 = 25_000;
    let server = Server::start();
    let mut client = server.connect();
    let directory = Directory::new();
    let file = directory.0.join("out.parquet");
    let file = file.to_str().expect("a path");
    let date = |ms: i64| Value::DateTime(1_714_543_200_000 + ms);
    let raw = nilometer_bson::Binary {
        subtype: 0,
        bytes: [1, 2].as_slice().into(),
    };
    let document = |i: i32| {
        let (time, long) = (date(i.into()), i64::from(i) << 33);
        doc! {
            "_id": i, "t": time, "long": long, "x": f64::from(i) / 3.0, "flag": i % 2 == 0,
            "bed": doc! {"name": format!("bed {i}"), "row": i}, "raw": raw.clone(),
        }
    };
    // Some values are absent.
    let documents: Vec<Document> = (0..MANY)
        .map(|i| match i % 5 {
            0 => doc! {"_id": i, "bed": doc! {"row": i}},
            _ => document(i),
        })
        .collect();
    for part in documents.chunks(5000) {
        let part: Vec<Value> = part.iter().cloned().map(Value::from).collect();
        let insert = doc! {"insert": "c", "documents": part};
        assert!(is_ok(&client.run_on("db", &insert)));
    }
    let fields = "_id,t,long,x,flag,bed.name,bed.row,raw";
    let sort = ["--sort", "{\"_id\": 1}"];
    let export = ["export", "--collection", "c", "--fields", fields, file];
    let (code, told) = run(&server, &[&export[..], &sort].concat(), "");
    assert_eq!(code, Some(0), "{told}");
    assert!(told.contains("25000 documents in"), "{told}");
    let (code, told) = run(&server, &["import", file, "--collection", "back"], "");
    assert_eq!(code, Some(0), "{told}");
    let back = all(&mut client, "back");
    assert_eq!(back.len(), documents.len());
    for (found, expected) in back.iter().zip(&documents) {
        assert_eq!(found, expected);
    }
    // Mixed types and arrays come back, too.
    let odd: Vec<Value> = vec![
        doc! {"_id": 1, "v": 1, "w": array![1, "a"]}.into(),
        doc! {"_id": 2, "v": "two"}.into(),
        doc! {"_id": 3, "v": 3.5, "w": Value::Null}.into(),
    ];
    assert!(is_ok(
        &client.run_on("db", &doc! {"insert": "odd", "documents": odd})
    ));
    let export = [
        "export",
        "--collection",
        "odd",
        "--fields",
        "_id,v,w,none",
        file,
    ];
    let (code, told) = run(&server, &export, "");
    assert_eq!(code, Some(0), "{told}");
    let (code, told) = run(&server, &["import", file, "--collection", "odd2"], "");
    assert_eq!(code, Some(0), "{told}");
    let expected = [
        doc! {"_id": 1, "v": 1, "w": array![1, "a"]},
        doc! {"_id": 2, "v": "two"},
        doc! {"_id": 3, "v": 3.5},
    ];
    assert_eq!(all(&mut client, "odd2"), expected);
    // A given type is kept, or the value that does not fit is named.
    let refuse = [
        "export",
        "--collection",
        "odd",
        "--fields",
        "v.int32()",
        file,
    ];
    let (code, told) = run(&server, &refuse, "");
    assert_eq!(code, Some(100), "{told}");
    assert!(
        told.contains("document 2: the field 'v' has the type 'string'"),
        "{told}"
    );
}

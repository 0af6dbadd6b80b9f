//! The commands of mongodump, mongoexport, mongorestore and mongoimport, sent one by one as those tools send them. The
//! tools themselves are not run.
//!
//! A dump of a time series holds its bucket documents. Restored with options and indexes into a new server, they must
//! be the same bytes. The same holds for bucket documents with columns written by MongoDB; they are in a file of
//! reference vectors that not every checkout has beside it.

use std::path::{Path, PathBuf};

use nilometer_bson::extjson::{parse_document, value_to_canonical};
use nilometer_bson::{Binary, Document, DocumentBuilder, ObjectId, Value, ValueRef, doc, order};

use crate::client::{Client, body, is_ok, op_msg, sequence};
use crate::server::Server;
use crate::upkeep::{everything, fill};

const DATABASE: &str = "shop";

/// A dumped collection: options and indexes in its metadata, documents as stored.
struct DumpedCollection {
    name: String,
    kind: String,
    options: Document,
    indexes: Vec<Document>,
    documents: Vec<Document>,
}

/// Returns the collection that holds the documents of a collection.
fn data_of(name: &str, kind: &str) -> String {
    match kind {
        "timeseries" => format!("system.buckets.{name}"),
        _ => name.to_owned(),
    }
}

fn dump(client: &mut Client) -> Vec<DumpedCollection> {
    let mut dumped = Vec::new();
    for listed in client.find_all(DATABASE, &doc! {"listCollections": 1, "cursor": doc! {}}) {
        let text = |name: &str| listed.get(name).as_str().expect("a text").to_owned();
        let (name, kind) = (text("name"), text("type"));
        // Buckets are dumped under the name of their series, views only with their options.
        if name.starts_with("system.") {
            continue;
        }
        let (mut indexes, mut documents) = (Vec::new(), Vec::new());
        if kind != "view" {
            indexes = client.find_all(DATABASE, &doc! {"listIndexes": name.as_str()});
            let find = doc! {"find": data_of(&name, &kind), "hint": doc! {"_id": 1}};
            let natural = doc! {"find": data_of(&name, &kind)};
            let command = if kind == "timeseries" { natural } else { find };
            documents = client.find_all(DATABASE, &command);
        }
        let options = listed.get("options").as_document().expect("options");
        dumped.push(DumpedCollection {
            name,
            kind,
            options: options.to_document(),
            indexes,
            documents,
        });
    }
    dumped
}

fn restore(client: &mut Client, dumped: &[DumpedCollection]) {
    let succeed = |client: &mut Client, command: Document| {
        let reply = client.run_on(DATABASE, &command);
        assert!(is_ok(&reply), "{command:?}: {reply:?}");
    };
    // Views last: the tool restores them after their sources.
    let mut ordered: Vec<&DumpedCollection> = dumped.iter().collect();
    ordered.sort_by_key(|one| one.kind == "view");
    for one in ordered {
        let filter = doc! {"name": one.name.as_str()};
        let there = client.find_all(DATABASE, &doc! {"listCollections": 1, "filter": filter});
        assert!(there.is_empty());
        let mut create = DocumentBuilder::new();
        create.append("create", one.name.as_str());
        for element in one.options.iter() {
            create.append_element(element);
        }
        succeed(client, create.finish());
        for documents in one.documents.chunks(100) {
            let insert = doc! {
                "insert": data_of(&one.name, &one.kind),
                "ordered": false,
                "bypassDocumentValidation": true,
                "bypassEmptyTsReplacement": true,
                "$db": DATABASE,
            };
            let message = op_msg(0, &[body(&insert), sequence("documents", documents)]);
            let reply = client.ask(&message);
            let errors = reply.get("writeErrors");
            assert!(is_ok(&reply) && errors.as_array().is_none(), "{reply:?}");
        }
        let indexes: Vec<Value> = one.indexes.iter().map(|i| Value::from(i.clone())).collect();
        if !indexes.is_empty() {
            let create = doc! {
                "createIndexes": one.name.as_str(),
                "indexes": indexes,
                "ignoreUnknownIndexOptions": true,
            };
            succeed(client, create);
        }
    }
}

/// Removes the UUID, which is new in a new database.
fn without_info(documents: Vec<Document>) -> Vec<Document> {
    let strip = |document: Document| {
        let mut out = DocumentBuilder::new();
        let is_listed = document.get("options").as_document().is_some();
        for element in document
            .iter()
            .filter(|e| !(is_listed && e.name() == "info"))
        {
            out.append_element(element);
        }
        out.finish()
    };
    documents.into_iter().map(strip).collect()
}

#[test]
fn a_dump_comes_back_byte_for_byte() {
    let from = Server::start();
    let mut client = from.connect();
    fill(&mut client);
    let before = without_info(everything(&mut client));
    let dumped = dump(&mut client);
    let names: Vec<&str> = dumped.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names, ["plain", "ts", "view"]);
    let into = Server::start();
    let mut other = into.connect();
    restore(&mut other, &dumped);
    assert_eq!(without_info(everything(&mut other)), before);
    let found = other.find_all(DATABASE, &doc! {"find": "ts", "sort": doc! {"_id": 1}});
    let expected = client.find_all(DATABASE, &doc! {"find": "ts", "sort": doc! {"_id": 1}});
    assert_eq!(found, expected);
    let valid = other.run_on(DATABASE, &doc! {"validate": "ts"});
    assert!(
        matches!(valid.get("valid"), ValueRef::Bool(true)),
        "{valid:?}"
    );
    // Inserts continue after the restore.
    let more = doc! {"insert": "ts", "documents": vec![Value::from(doc! {
        "t": Value::DateTime(1_700_000_000_000), "m": doc! {"s": 1}, "v": 0.0,
    })]};
    assert!(is_ok(&other.run_on(DATABASE, &more)));
    let count = other.find_all(DATABASE, &doc! {"find": "ts"}).len();
    assert_eq!(count, expected.len() + 1);
}

/// Sends the commands of mongoexport: list, count for the progress bar, read.
fn export(client: &mut Client, name: &str) -> Vec<String> {
    let filter = doc! {"name": name};
    let listed = client.find_all(DATABASE, &doc! {"listCollections": 1, "filter": filter});
    let [listed] = listed.as_slice() else {
        panic!("{listed:?}");
    };
    let counted = client.run_on(DATABASE, &doc! {"count": name});
    // In the order of `_id` if it has an index.
    let find = match listed.get("type").as_str() {
        Some("collection") => {
            doc! {"find": name, "filter": doc! {}, "hint": doc! {"_id": 1}, "noCursorTimeout": true}
        }
        _ => doc! {"find": name, "filter": doc! {}, "noCursorTimeout": true},
    };
    let found = client.find_all(DATABASE, &find);
    assert_eq!(counted.get("n").as_exact_i64(), Some(found.len() as i64));
    let lines = found.iter();
    lines
        .map(|document| value_to_canonical(ValueRef::Document(document.as_ref())))
        .collect()
}

/// The `--mode` of mongoimport.
#[derive(Clone, Copy, Debug)]
enum Mode {
    Insert,
    Upsert,
    Merge,
    Delete,
}

/// Sends the commands of mongoimport: unordered batches.
fn import(client: &mut Client, name: &str, lines: &[String], mode: Mode) {
    let documents: Vec<Document> = lines
        .iter()
        .map(|line| parse_document(line).expect("extended JSON"))
        .collect();
    for documents in documents.chunks(100) {
        let statements = documents.iter().map(|document| {
            let q = doc! {"_id": document.get("_id").to_value()};
            match mode {
                Mode::Insert => document.clone(),
                Mode::Upsert => {
                    doc! {"q": q, "u": document.clone(), "upsert": true, "multi": false}
                }
                Mode::Merge => {
                    let set = doc! {"$set": document.clone()};
                    doc! {"q": q, "u": set, "upsert": true, "multi": false}
                }
                Mode::Delete => doc! {"q": q, "limit": 1},
            }
        });
        let (command, kind) = match mode {
            Mode::Insert => ("insert", "documents"),
            Mode::Upsert | Mode::Merge => ("update", "updates"),
            Mode::Delete => ("delete", "deletes"),
        };
        let mut sent = DocumentBuilder::new();
        sent.append(command, name)
            .append("ordered", false)
            .append("writeConcern", doc! {"w": "majority"})
            .append("$db", DATABASE);
        if !matches!(mode, Mode::Delete) {
            sent.append("bypassDocumentValidation", true);
        }
        let statements: Vec<Document> = statements.collect();
        let sections = [body(&sent.finish()), sequence(kind, &statements)];
        let reply = client.ask(&op_msg(0, &sections));
        let errors = reply.get("writeErrors");
        assert!(
            is_ok(&reply) && errors.as_array().is_none(),
            "{mode:?}: {reply:?}"
        );
    }
}

#[test]
fn what_is_exported_is_imported() {
    let from = Server::start();
    let mut client = from.connect();
    fill(&mut client);
    let into = Server::start();
    let mut other = into.connect();
    let series = doc! {"timeField": "t", "metaField": "m"};
    let created = other.run_on(DATABASE, &doc! {"create": "ts", "timeseries": series});
    assert!(is_ok(&created), "{created:?}");
    for name in ["plain", "ts", "view"] {
        let mut lines = export(&mut client, name);
        import(&mut other, name, &lines, Mode::Insert);
        let mut found = export(&mut other, name);
        // Measurements are returned in the order of their buckets.
        lines.sort();
        found.sort();
        assert_eq!(found, lines, "{name}");
    }
    let changed = [r#"{"_id": 1, "a": "other"}"#.to_owned()];
    let one = |client: &mut Client| {
        let found = client.find_all(DATABASE, &doc! {"find": "plain", "filter": doc! {"_id": 1}});
        found.first().cloned()
    };
    import(&mut other, "plain", &changed, Mode::Merge);
    let merged = one(&mut other).expect("it is there");
    assert_eq!(merged.get("a").as_str(), Some("other"));
    assert!(merged.as_ref().contains("text"), "{merged:?}");
    import(&mut other, "plain", &changed, Mode::Upsert);
    assert_eq!(one(&mut other), Some(doc! {"_id": 1, "a": "other"}));
    import(&mut other, "plain", &changed, Mode::Delete);
    assert_eq!(one(&mut other), None);
}

/// A column of a bucket written by MongoDB, with its values.
struct Column {
    name: String,
    bytes: Vec<u8>,
    values: Vec<Value>,
}

const VECTORS: &str = "reference/bson-column-vectors.json";

#[expect(clippy::print_stderr, reason = "a skipped test says so")]
fn vectors() -> Option<serde_json::Value> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let given = std::env::var_os("NILOMETER_SHARED").map(PathBuf::from);
    let places = [root.join("../shared"), root.join("../../shared")];
    let file = given
        .into_iter()
        .chain(places)
        .map(|place| place.join(VECTORS));
    let Some(file) = file.into_iter().find(|file| file.exists()) else {
        eprintln!("skipped: no {VECTORS} beside the repository or in NILOMETER_SHARED");
        return None;
    };
    let text = std::fs::read_to_string(file).expect("a file");
    Some(serde_json::from_str(&text).expect("JSON"))
}

fn columns(vectors: &serde_json::Value, bucket: &str) -> Vec<Column> {
    let all = vectors["vectors"].as_array().expect("a list").iter();
    let of_bucket = all.filter_map(|vector| {
        let name = vector["name"]
            .as_str()?
            .strip_prefix(bucket)?
            .strip_prefix('.')?;
        let hex = vector["hex"].as_str().expect("hex");
        let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex");
        let expected = parse_document(&format!("{{\"v\": {}}}", vector["expected"]));
        let expected = expected.expect("extended JSON");
        let values = expected.get("v").as_array().expect("a list");
        Some(Column {
            name: name.to_owned(),
            bytes: (0..hex.len()).step_by(2).map(byte).collect(),
            values: values.iter().map(ValueRef::to_value).collect(),
        })
    });
    of_bucket.collect()
}

/// Returns a bucket document with real columns, and its measurements.
fn bucket(columns: &[Column], time: &str, version: i32) -> (Document, Vec<Document>) {
    let times = columns.iter().find(|c| c.name == time).expect("a time");
    let millis = times.values.iter().map(|value| match value {
        Value::DateTime(ms) => *ms,
        other => panic!("{other:?}"),
    });
    // Buckets of seconds begin on the minute.
    let start = millis.min().expect("a time").div_euclid(60_000) * 60_000;
    let seconds = u32::try_from(start / 1000).expect("a time");
    let mut id = [7; 12];
    id[..4].copy_from_slice(&seconds.to_be_bytes());
    let (mut min, mut max) = (DocumentBuilder::new(), DocumentBuilder::new());
    let mut data = DocumentBuilder::new();
    for column in columns {
        let ordered = |a: &&Value, b: &&Value| order::compare(a.as_ref(), b.as_ref());
        let least = column.values.iter().min_by(ordered).expect("a value");
        let greatest = column.values.iter().max_by(ordered).expect("a value");
        match column.name == time {
            true => min.append(time, Value::DateTime(start)),
            false => min.append(&column.name, least.clone()),
        };
        max.append(&column.name, greatest.clone());
        let binary = Binary {
            subtype: 7,
            bytes: column.bytes.clone().into(),
        };
        data.append(&column.name, Value::Binary(binary));
    }
    let count = i32::try_from(times.values.len()).expect("a count");
    let document = doc! {
        "_id": Value::ObjectId(ObjectId(id)),
        "control": doc! {
            "version": version, "min": min.finish(), "max": max.finish(), "count": count,
        },
        "data": data.finish(),
    };
    let measurements = (0..times.values.len()).map(|row| {
        let mut out = DocumentBuilder::new();
        for column in columns {
            out.append(&column.name, column.values[row].clone());
        }
        out.finish()
    });
    (document, measurements.collect())
}

/// Returns the fields of a document ordered by name, with their types.
fn sorted(document: &Document) -> Vec<(String, String)> {
    let fields = document
        .iter()
        .map(|e| (e.name().to_owned(), value_to_canonical(e.value())));
    let mut fields: Vec<_> = fields.collect();
    fields.sort();
    fields
}

#[test]
fn buckets_that_mongodb_wrote_restore_and_read_back() {
    let Some(vectors) = vectors() else { return };
    let server = Server::start();
    let mut client = server.connect();
    for (name, time, version) in [
        ("bucket_v2_two_same_time", "t", 2),
        ("bucket_v2_prices", "date", 2),
        ("bucket_v3_unsorted", "t", 3),
        ("bucket_v3_letters", "date", 3),
    ] {
        let columns = columns(&vectors, name);
        assert!(columns.len() > 1, "{name}");
        let (document, measurements) = bucket(&columns, time, version);
        let options = doc! {"timeseries": doc! {
            "timeField": time, "granularity": "seconds", "bucketMaxSpanSeconds": 3600,
        }};
        let dumped = DumpedCollection {
            name: name.to_owned(),
            kind: "timeseries".to_owned(),
            options,
            indexes: Vec::new(),
            documents: vec![document.clone()],
        };
        restore(&mut client, &[dumped]);
        let stored = client.find_all(DATABASE, &doc! {"find": format!("system.buckets.{name}")});
        assert_eq!(stored, [document], "{name}");
        let mut found: Vec<_> = client
            .find_all(DATABASE, &doc! {"find": name})
            .iter()
            .map(sorted)
            .collect();
        let mut expected: Vec<_> = measurements.iter().map(sorted).collect();
        found.sort();
        expected.sort();
        assert_eq!(found, expected, "{name}");
    }
}

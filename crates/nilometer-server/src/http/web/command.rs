//! The commands of the web page, with bounds.
//!
//! Most only read. The others add collections and documents of the user's databases, and set the profiler. So neither a bug
//! in the page nor a bypass of the checks of [`super`] can change or remove data. The database authorizes each as for
//! every client.
//!
//! ```text
//! {db, command} ─► is it allowed? ─► limit its time and its batch ─► run
//!       {reply, more, micros} ◄─ canonical extended JSON ◄─ cursor closed ◄─┘
//! ```

use std::time::{Duration, Instant};

use nilometer::{ClientSession, Database, Request};
use nilometer_bson::extjson::to_canonical;
use nilometer_bson::{DocRef, Document, DocumentBuilder, ValueRef, array, doc};

use crate::command;

/// Maximum documents in a response.
pub(super) const DOCUMENTS_MAX: i64 = 5_000;

/// Maximum time of a command.
pub(super) const TIME_MAX: Duration = Duration::from_secs(30);

/// Maximum bytes of a reply, as BSON. As JSON it may be four times as long.
const REPLY_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Allowed commands that only read, by their names in the table of commands.
const READING: &[&str] = &[
    "aggregate",
    "buildInfo",
    "collStats",
    "connectionStatus",
    "count",
    "currentOp",
    "dbStats",
    "distinct",
    "explain",
    "find",
    "getParameter",
    "hello",
    "listCollections",
    "listDatabases",
    "listIndexes",
    "ping",
    "rollupStatus",
    "serverStatus",
    "top",
];

/// Allowed commands that add or set something, and the fields that they may have.
const ADDING: &[(&str, &[&str])] = &[
    ("create", &["timeseries", "expireAfterSeconds"]),
    ("insert", &["documents", "ordered"]),
    ("profile", &["slowms"]),
];

/// Databases to which the page adds nothing.
const INTERNAL_DATABASES: &[&str] = &["admin", "config", "local"];

/// Stages that write.
pub(in crate::http) const WRITING_STAGES: &[&str] = &["$merge", "$out"];

/// Returns the command for the database `db` with its bounds, or why it is refused.
pub(super) fn bounded(given: DocRef<'_>, db: &str) -> Result<Document, String> {
    let name = given
        .iter()
        .next()
        .map_or("", |first| first.name())
        .to_owned();
    if !is_addition(given, db)? {
        check(given)?;
    }
    let mut out = DocumentBuilder::with_capacity(given.as_bytes().len() + 64);
    let mut batched = false;
    for element in given {
        match (name.as_str(), element.name()) {
            // Set below.
            (_, "$db" | "maxTimeMS") => {}
            ("find", "batchSize") => {
                batched = true;
                append_batch_size(&mut out, element.value());
            }
            ("aggregate" | "listCollections" | "listIndexes", "cursor") => {
                batched = true;
                match element.value() {
                    ValueRef::Document(cursor) => append_cursor(&mut out, cursor),
                    other => {
                        out.append("cursor", other);
                    }
                }
            }
            _ => {
                out.append_element(element);
            }
        }
    }
    match name.as_str() {
        "find" if !batched => {
            out.append("batchSize", DOCUMENTS_MAX);
        }
        "aggregate" | "listCollections" | "listIndexes" if !batched => {
            append_cursor(&mut out, DocRef::EMPTY);
        }
        _ => {}
    }
    let time_max = i64::try_from(TIME_MAX.as_millis()).unwrap_or(i64::MAX);
    match given.get("maxTimeMS") {
        ValueRef::Missing => out.append("maxTimeMS", time_max),
        other => match other.as_exact_i64() {
            Some(time) if time <= 0 || time > time_max => out.append("maxTimeMS", time_max),
            _ => out.append("maxTimeMS", other),
        },
    };
    out.append("$db", db);
    Ok(out.finish())
}

/// True for a command that adds or sets something. Fails if it has other fields than the page sends, or if it would add to
/// a collection or database of the server itself.
fn is_addition(command: DocRef<'_>, db: &str) -> Result<bool, String> {
    let Some(first) = command.iter().next() else {
        return Ok(false);
    };
    let Some((name, fields)) = ADDING.iter().find(|(name, _)| *name == first.name()) else {
        return Ok(false);
    };
    let mut others = command.iter().skip(1).map(|field| field.name());
    if let Some(other) = others.find(|other| !is_generic(other) && !fields.contains(other)) {
        return Err(format!(
            "The web page sends '{name}' without '{other}'. Use mongosh or a driver."
        ));
    }
    if let Some(collection) = first.value().as_str()
        && (collection.starts_with("system.") || INTERNAL_DATABASES.contains(&db))
    {
        return Err(format!(
            "The web page adds nothing to '{db}.{collection}'. Use mongosh or a driver."
        ));
    }
    Ok(true)
}

/// True for a field that is replaced by the page's own value.
fn is_generic(field: &str) -> bool {
    matches!(field, "$db" | "maxTimeMS")
}

/// Fails unless the command is read-only.
fn check(command: DocRef<'_>) -> Result<(), String> {
    let Some(first) = command.iter().next() else {
        return Err("The command is empty.".to_owned());
    };
    let name = first.name();
    if !READING.contains(&name) {
        return Err(format!(
            "The web page changes nothing: '{name}' is not sent from here. Use mongosh or a driver. It sends {}.",
            READING.join(", ")
        ));
    }
    // A field may occur twice; check each.
    let fields = command.iter().map(|field| (field.name(), field.value()));
    for (field, value) in fields {
        match (name, field, value) {
            ("aggregate", "pipeline", ValueRef::Array(stages)) => {
                for stage in stages.iter().filter_map(ValueRef::as_document) {
                    check_stage(stage)?;
                }
            }
            ("explain", "explain", ValueRef::Document(explained)) => {
                // Explain does not nest.
                if explained
                    .iter()
                    .next()
                    .is_some_and(|e| e.name() == "explain")
                {
                    return Err("An explain cannot be explained.".to_owned());
                }
                check(explained)?;
            }
            _ => {}
        }
    }
    Ok(())
}

fn check_stage(stage: DocRef<'_>) -> Result<(), String> {
    match stage.iter().find(|e| WRITING_STAGES.contains(&e.name())) {
        None => Ok(()),
        Some(writing) => Err(format!(
            "The web page changes nothing: '{}' writes. Use mongosh or a driver.",
            writing.name()
        )),
    }
}

fn append_batch_size(out: &mut DocumentBuilder, given: ValueRef<'_>) {
    match given.as_exact_i64() {
        Some(size) if size > DOCUMENTS_MAX => out.append("batchSize", DOCUMENTS_MAX),
        _ => out.append("batchSize", given),
    };
}

fn append_cursor(out: &mut DocumentBuilder, given: DocRef<'_>) {
    let mut cursor = DocumentBuilder::new();
    let mut batched = false;
    for element in given {
        if element.name() == "batchSize" {
            batched = true;
            append_batch_size(&mut cursor, element.value());
        } else {
            cursor.append_element(element);
        }
    }
    if !batched {
        cursor.append("batchSize", DOCUMENTS_MAX);
    }
    out.append("cursor", cursor.finish());
}

/// Runs a bounded command. Returns the text of the response or the error.
pub(super) fn run(
    database: &Database,
    session: &mut ClientSession,
    command: Document,
) -> Result<String, String> {
    let started = Instant::now();
    let request = Request::new(command);
    let (reply, _) = command::run(database, session, &request);
    let micros = started.elapsed().as_micros();
    let more = close_cursor(database, session, &request, &reply);
    let length = reply.as_bytes().len();
    if length > REPLY_BYTES_MAX {
        return Err(format!(
            "The answer has {length} bytes; the web page takes at most {REPLY_BYTES_MAX}. \
             Ask for fewer documents ($limit) or fewer fields ($project)."
        ));
    }
    let reply = to_canonical(reply.as_ref());
    Ok(format!(
        "{{\"micros\":{micros},\"more\":{more},\"reply\":{reply}}}"
    ))
}

/// Closes the cursor of a reply. True if there was one, so that there are more documents.
fn close_cursor(
    database: &Database,
    session: &mut ClientSession,
    request: &Request,
    reply: &Document,
) -> bool {
    let cursor = reply.get("cursor").as_document().unwrap_or(DocRef::EMPTY);
    let id = cursor.get("id").as_exact_i64().unwrap_or(0);
    let Some((_, collection)) = cursor.get("ns").as_str().and_then(|ns| ns.split_once('.')) else {
        return false;
    };
    if id != 0 {
        let close = doc! {
            "killCursors": collection,
            "cursors": array![id],
            "$db": request.body.get("$db").to_value(),
        };
        // It may have timed out already.
        drop(command::run(database, session, &Request::new(close)));
    }
    id != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use nilometer::commands::{Access, COMMANDS};
    use nilometer_bson::extjson::parse_document;
    use nilometer_bson::fuzz::Numbers;

    #[test]
    fn only_commands_that_exist_and_change_nothing_are_sent() {
        for name in READING {
            let spec = COMMANDS.iter().find(|spec| spec.name == *name);
            let spec = spec.unwrap_or_else(|| panic!("no command {name}"));
            assert!(spec.access != Access::Write, "{name}");
        }
        for (name, fields) in ADDING {
            let spec = COMMANDS.iter().find(|spec| spec.name == *name);
            assert!(spec.is_some(), "no command {name}");
            assert!(!fields.iter().any(|field| is_generic(field)), "{name}");
        }
        for refused in [
            doc! {},
            doc! {"explain": doc! {"insert": "c", "documents": array![]}},
            doc! {"insert": "system.buckets.c", "documents": array![]},
            doc! {"insert": "c", "documents": array![], "bypassDocumentValidation": true},
            doc! {"insert": "c", "insert": "system.buckets.c"},
            doc! {"create": "c", "viewOn": "d", "pipeline": array![]},
            doc! {"profile": 2, "filter": doc! {}},
            doc! {"update": "c", "updates": array![]},
            doc! {"dropDatabase": 1},
            doc! {"logout": 1},
            doc! {"saslStart": 1},
            doc! {"aggregate": "c", "pipeline": array![doc! {"$out": "d"}], "cursor": doc! {}},
            doc! {"aggregate": "c", "pipeline": array![doc! {}, doc! {"$merge": "d"}]},
            doc! {"aggregate": "c", "pipeline": array![], "pipeline": array![doc! {"$out": "d"}]},
            doc! {"explain": doc! {"delete": "c", "deletes": array![]}},
            doc! {"explain": doc! {"explain": doc! {"find": "c"}}},
            doc! {"explain": doc! {"aggregate": "c", "pipeline": array![doc! {"$out": "d"}]}},
        ] {
            assert!(bounded(refused.as_ref(), "a").is_err(), "{refused:?}");
        }
        let insert = doc! {"insert": "c", "documents": array![], "ordered": false};
        let create =
            doc! {"create": "c", "timeseries": doc! {"timeField": "t"}, "expireAfterSeconds": 60};
        for adding in [&insert, &create] {
            assert!(bounded(adding.as_ref(), "a").is_ok(), "{adding:?}");
            for internal in INTERNAL_DATABASES {
                assert!(bounded(adding.as_ref(), internal).is_err(), "{adding:?}");
            }
        }
        let profile = doc! {"profile": -1};
        assert!(bounded(profile.as_ref(), "admin").is_ok());
    }

    #[test]
    fn fuzz_web_commands() {
        const SOUND: [&str; 4] = [
            r#"{"insert": "c", "documents": [{"a": 1}], "ordered": false}"#,
            r#"{"find": "c", "filter": {"t": {"$date": "2024-01-01T00:00:00Z"}}, "batchSize": 7}"#,
            r#"{"aggregate": "c", "pipeline": [{"$match": {}}, {"$out": "d"}], "cursor": {"batchSize": 7}}"#,
            r#"{"explain": {"aggregate": "c", "pipeline": [{"$merge": {"into": "d"}}]}, "maxTimeMS": 7}"#,
        ];
        for seed in crate::testing::seeds() {
            let mut numbers = Numbers::new(seed);
            let mut text = SOUND[(seed % 4) as usize].as_bytes().to_vec();
            for _ in 0..numbers.below(5) {
                let at = numbers.below(text.len() as u64) as usize;
                let from = numbers.below(text.len() as u64) as usize;
                text[at] = text[from];
            }
            let text = String::from_utf8(text).unwrap();
            let Ok(command) = parse_document(&text) else {
                continue;
            };
            let run = std::panic::catch_unwind(|| bounded(command.as_ref(), "a"));
            let Ok(bounded) = run else {
                panic!("seed {seed}: {text}");
            };
            // A bounded command never writes.
            if let Ok(bounded) = bounded {
                let shown = to_canonical(bounded.as_ref());
                assert!(shown.contains("maxTimeMS"), "seed {seed}: {shown}");
                // Other field names are unknown.
                let writes = [r#"{"$out":"#, r#"{"$merge":"#];
                let pipeline = shown.contains(r#""pipeline":["#);
                let writes = pipeline && writes.iter().any(|stage| shown.contains(stage));
                assert!(!writes, "seed {seed}: {shown}");
            }
        }
    }

    #[test]
    fn time_and_batch_are_cut_to_the_bounds() {
        let time = i64::try_from(TIME_MAX.as_millis()).unwrap();
        for (given, expected) in [
            (
                doc! {"find": "c", "$db": "other", "batchSize": 10, "maxTimeMS": 5},
                doc! {"find": "c", "batchSize": 10, "maxTimeMS": 5, "$db": "a"},
            ),
            (
                doc! {"find": "c", "batchSize": 1_000_000, "maxTimeMS": 0},
                doc! {"find": "c", "batchSize": DOCUMENTS_MAX, "maxTimeMS": time, "$db": "a"},
            ),
            (
                doc! {"aggregate": "c", "pipeline": array![], "cursor": doc! {"batchSize": 1e9}},
                doc! {
                    "aggregate": "c", "pipeline": array![],
                    "cursor": doc! {"batchSize": DOCUMENTS_MAX}, "maxTimeMS": time, "$db": "a",
                },
            ),
            (
                doc! {"listCollections": 1},
                doc! {
                    "listCollections": 1,
                    "cursor": doc! {"batchSize": DOCUMENTS_MAX}, "maxTimeMS": time, "$db": "a",
                },
            ),
            (
                doc! {"serverStatus": 1, "maxTimeMS": "x"},
                doc! {"serverStatus": 1, "maxTimeMS": "x", "$db": "a"},
            ),
        ] {
            assert_eq!(bounded(given.as_ref(), "a").unwrap(), expected);
        }
    }
}

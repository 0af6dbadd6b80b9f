//! `profile`, and the records of operations in the log and in `system.profile`.
//!
//! [`finished`] is called once for every command, when its reply is known. An entry holds the command, the plan, the
//! numbers of keys and documents examined, the result, and the duration. Nothing is estimated; unknown values are omitted.
//!
//! `system.profile` is a capped collection, created by the first entry. Commands that write to it are not
//! recorded, nor is the handshake that drivers repeat.

use std::sync::Arc;
use std::time::Duration;

use nilometer_bson::extjson::value_to_relaxed;
use nilometer_bson::{Document, DocumentBuilder, Value, ValueRef, doc};
use nilometer_storage::Durability;
use tracing::{info, warn};

use crate::args::Args;
use crate::auth::Action;
use crate::catalog::{CatalogEntry, Collection, Namespace};
use crate::commands::{Authorization, CommandContext, CommandSpec, Fields, OnRouter};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::eval::matcher::MatchExpression;
use crate::eval::{EvalContext, ParseContext};
use crate::insertion::InsertOptions;
use crate::operation::{OperationContext, Request};
use crate::services::ProfilerSettings;
use crate::services::describe;
use crate::write::DocumentChecks;

pub(crate) const SPEC: CommandSpec = CommandSpec {
    fields: Fields::Only(&["slowms", "sampleRate", "filter"]),
    ..CommandSpec::new(
        "profile",
        "Sets which operations are recorded in system.profile and in the log.",
        Authorization::OnDatabase(&[Action::EnableProfiler]),
        OnRouter::Refused,
        run,
    )
};

/// The collection of entries.
const COLLECTION: &str = "system.profile";

/// Its size in bytes: 1 MiB.
const COLLECTION_BYTES: i64 = 1 << 20;

/// The largest command that an entry holds completely, in bytes.
const ENTRY_COMMAND_BYTES_MAX: usize = 50_000;

/// Commands that are not recorded.
const UNTOLD: [&str; 2] = ["hello", "isMaster"];

const FILTER_NOTE: &str = "When a filter expression is set, slowms and sampleRate are not used for \
                           profiling and slow-query log lines.";

fn run(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let args = Args::new("profile", request.body.as_ref());
    let name = context.database_name().to_owned();
    let profiler = &database.services().profiler;
    let before = profiler.of(&name);
    let (slow_ms, rate) = (profiler.slow_ms(), profiler.sample_rate());
    let level = args.integer("profile")?.unwrap_or(-1);
    let level = i32::try_from(level).ok().filter(|l| (-1..=2).contains(l));
    let level = level.ok_or_else(|| {
        Error::bad_value("profile takes -1 (tell the settings), 0, 1 or 2 as its level")
    })?;
    let mut after = before.clone();
    if level >= 0 {
        after.level = level;
    }
    let new_slow_ms = args.integer("slowms")?;
    let new_rate = sample_rate(&args)?;
    match args.value("filter") {
        ValueRef::Missing => {}
        ValueRef::String("unset") => after.filter = None,
        ValueRef::Document(filter) => {
            let parsed = MatchExpression::parse(filter, &ParseContext::default())?;
            after.filter = Some((filter.to_document(), Arc::new(parsed)));
        }
        other => {
            return Err(Error::type_mismatch(format!(
                "profile.filter must be an object, or the string \"unset\", not {}",
                other.type_name()
            )));
        }
    }
    if let Some(ms) = new_slow_ms {
        profiler.set_slow_ms(ms);
    }
    if let Some(rate) = new_rate {
        profiler.set_sample_rate(rate);
    }
    let filter = after.filter.as_ref().map(|(given, _)| given.clone());
    profiler.set(&name, after);
    let mut reply = DocumentBuilder::new();
    reply.append("was", before.level);
    reply.append("slowms", i32::try_from(slow_ms).unwrap_or(i32::MAX));
    reply.append("sampleRate", rate);
    if let Some(filter) = filter {
        reply.append("filter", filter);
        reply.append("note", FILTER_NOTE);
    }
    Ok(reply.finish())
}

fn sample_rate(args: &Args<'_>) -> Result<Option<f64>> {
    let rate = match args.value("sampleRate") {
        ValueRef::Missing => return Ok(None),
        ValueRef::Double(rate) => rate,
        ValueRef::Int32(rate) => f64::from(rate),
        ValueRef::Int64(rate) => rate as f64,
        other => {
            return Err(Error::type_mismatch(format!(
                "profile.sampleRate must be a number, not {}",
                other.type_name()
            )));
        }
    };
    match (0.0..=1.0).contains(&rate) {
        true => Ok(Some(rate)),
        false => Err(Error::bad_value(
            "'sampleRate' must be between 0.0 and 1.0 inclusive",
        )),
    }
}

/// A command with its reply.
pub(crate) struct FinishedCommand<'a> {
    pub(crate) spec: &'static CommandSpec,
    pub(crate) request: &'a Request,
    pub(crate) namespace: &'a str,
    pub(crate) operation: &'a OperationContext,
    pub(crate) took: Duration,
    pub(crate) outcome: &'a Result<Document>,
}

/// Records a command where that is enabled.
pub(crate) fn finished(database: &Database, finished: &FinishedCommand<'_>) {
    if UNTOLD.contains(&finished.spec.name) {
        return;
    }
    let services = database.services();
    let name = finished.operation.database.as_str();
    let millis = i64::try_from(finished.took.as_millis()).unwrap_or(i64::MAX);
    let asked = services.profiler.of(name);
    let told = match &asked.filter {
        None => services.profiler.is_slow(millis, || services.ids.random()),
        Some(_) => is_wanted(&asked, finished),
    };
    if told {
        log(finished, millis);
    }
    let is_kept = asked.level == 2 || (asked.level == 1 && told);
    let kept = is_kept && !database.engine().is_read_only();
    let own = Namespace {
        database: name.to_owned(),
        collection: COLLECTION.to_owned(),
    };
    let writes_there = finished.spec.access == crate::commands::Access::Write
        && finished.namespace == own.to_string();
    if kept
        && !writes_there
        && let Err(error) = keep(database, own, &entry(finished, ENTRY_COMMAND_BYTES_MAX))
    {
        warn!(c = "COMMAND", id = 20_703, database = name, error = %error.message, "Profiling an operation failed");
    }
}

fn is_wanted(asked: &ProfilerSettings, finished: &FinishedCommand<'_>) -> bool {
    let Some((_, filter)) = &asked.filter else {
        return false;
    };
    let evaluation = EvalContext {
        now_ms: finished.operation.now_ms,
        limits: Some(finished.operation.evaluation_limits()),
        ..EvalContext::default()
    };
    let entry = entry(finished, ENTRY_COMMAND_BYTES_MAX);
    // A filter that fails on an entry rejects it.
    filter.matches(entry.as_ref(), &evaluation).unwrap_or(false)
}

/// Returns the entry of a command in `system.profile`.
fn entry(finished: &FinishedCommand<'_>, command_bytes_max: usize) -> Document {
    let operation = finished.operation;
    let mut out = DocumentBuilder::with_capacity(1024);
    out.append("op", describe::kind(finished.spec.name));
    out.append("ns", finished.namespace);
    out.append(
        "command",
        describe::shown_command(
            &crate::commands::security::authorization::shown(finished.spec, &finished.request.body),
            command_bytes_max,
        ),
    );
    append_figures(&mut out, finished);
    match finished.outcome {
        Ok(reply) => {
            let length = i32::try_from(reply.as_bytes().len()).unwrap_or(i32::MAX);
            out.append("responseLength", length);
        }
        Err(error) => {
            out.append("ok", 0.0);
            out.append("errMsg", error.message.as_str());
            out.append("errName", error.code.name());
            out.append("errCode", error.code.0);
        }
    }
    out.append("protocol", "op_msg");
    let millis = i64::try_from(finished.took.as_millis()).unwrap_or(i64::MAX);
    out.append("millis", short(millis));
    out.append("planSummary", operation.usage().plan());
    out.append("ts", Value::DateTime(operation.now_ms));
    out.append("client", remote_host(&operation.client.remote));
    out.append("appName", operation.client.application_name());
    out.finish()
}

/// Adds the counts of examined, returned and changed documents.
fn append_figures(out: &mut DocumentBuilder, finished: &FinishedCommand<'_>) {
    let usage = finished.operation.usage();
    let number = |n: u64| short(i64::try_from(n).unwrap_or(i64::MAX));
    if usage.plan().is_some() {
        out.append("keysExamined", number(usage.keys_examined()));
        out.append("docsExamined", number(usage.documents_examined()));
    }
    let Ok(reply) = finished.outcome else {
        return;
    };
    if let Some(cursor) = reply.get("cursor").as_document() {
        out.append("nreturned", number(usage.returned()));
        let id = cursor.get("id").as_exact_i64().filter(|id| *id != 0);
        out.append("cursorid", id);
    }
    let counted = |name: &str| reply.get(name).as_exact_i64();
    let names: &[(&str, &str)] = match finished.spec.name {
        "insert" => &[("n", "ninserted")],
        "delete" => &[("n", "ndeleted")],
        "update" => &[("n", "nMatched"), ("nModified", "nModified")],
        _ => &[],
    };
    for (from, to) in names {
        if let Some(count) = counted(from) {
            out.append(to, short(count));
        }
    }
}

/// Returns a count as an int32, if it fits.
fn short(count: i64) -> Value {
    i32::try_from(count).map_or(Value::Int64(count), Value::Int32)
}

fn remote_host(remote: &str) -> Option<&str> {
    remote.rsplit_once(':').map(|(host, _)| host)
}

/// Writes an entry.
fn keep(database: &Database, namespace: Namespace, entry: &Document) -> Result<()> {
    let collection = collection(database, namespace)?;
    let ids = &database.services().ids;
    let now_ms = database.services().clock.now_ms();
    let options = InsertOptions {
        ordered: true,
        durability: Durability::Buffered,
        new_id: &|| ids.object_id(now_ms),
        record: None,
    };
    let entries = std::iter::once(entry.as_ref());
    database
        .records()
        .insert(&collection, entries, options, DocumentChecks::default())?
        .all()
}

fn collection(database: &Database, namespace: Namespace) -> Result<Arc<Collection>> {
    let catalog = database.catalog();
    match catalog.get(&namespace) {
        Some(CatalogEntry::Collection(found)) => Ok(found),
        Some(CatalogEntry::View(_)) => Err(Error::new(
            ErrorCode::CommandNotSupportedOnView,
            format!("{namespace} is a view"),
        )),
        None => {
            let uuid = database.services().ids.uuid();
            let options = doc! { "capped": true, "size": COLLECTION_BYTES };
            Ok(catalog.find_or_create(&namespace, uuid, options)?.0)
        }
    }
}

/// Logs a slow operation.
fn log(finished: &FinishedCommand<'_>, millis: i64) {
    let entry = entry(finished, describe::COMMAND_BYTES_MAX);
    let number = |name: &str| entry.get(name).as_exact_i64();
    let text = |name: &str| entry.get(name).as_str();
    info!(
        c = "COMMAND",
        id = 51_803,
        r#type = "command",
        ns = finished.namespace,
        appName = text("appName"),
        json.command = value_to_relaxed(entry.get("command")),
        planSummary = text("planSummary"),
        keysExamined = number("keysExamined"),
        docsExamined = number("docsExamined"),
        nreturned = number("nreturned"),
        cursorid = number("cursorid"),
        ninserted = number("ninserted"),
        nMatched = number("nMatched"),
        nModified = number("nModified"),
        ndeleted = number("ndeleted"),
        errCode = number("errCode"),
        errMsg = text("errMsg"),
        reslen = number("responseLength"),
        remote = finished.operation.client.remote.as_str(),
        durationMillis = millis,
        "Slow query"
    );
}

#[cfg(test)]
mod tests {
    use crate::Database;
    use bson::{Document, doc};

    fn entries(database: &Database) -> Vec<Document> {
        let profile = database.collection::<Document>("db", "system.profile");
        let found = profile.find(doc! { "ns": "db.c" }).unwrap();
        found.collect::<crate::Result<_>>().unwrap()
    }

    fn profile(database: &Database, command: Document) -> Document {
        database.command("db", &command).unwrap()
    }

    #[test]
    fn level_two_keeps_every_operation_with_its_figures() {
        let database = Database::in_memory().unwrap();
        let was = profile(&database, doc! { "profile": 2 });
        assert_eq!(was.get_i32("was").unwrap(), 0);
        assert_eq!(was.get_i32("slowms").unwrap(), 100);
        let c = database.collection::<Document>("db", "c");
        c.insert_many((0..300).map(|i| doc! { "_id": i, "a": i % 10 }))
            .unwrap();
        let create =
            doc! { "createIndexes": "c", "indexes": [{ "key": { "a": 1 }, "name": "a_1" }] };
        profile(&database, create);
        let found = c.find(doc! { "a": 3 }).unwrap().count();
        assert_eq!(found, 30);
        assert_eq!(c.find(doc! { "b": 3 }).unwrap().count(), 0);
        c.find(doc! {}).unwrap().count();
        let update = doc! { "update": "c", "updates": [
            { "q": { "a": { "$lt": 2 } }, "u": { "$set": { "x": 1 } }, "multi": true },
        ] };
        profile(&database, update);
        assert!(
            database
                .command("db", &doc! { "find": "c", "filter": { "$x": 1 } })
                .is_err()
        );
        let told = entries(&database);
        let one = |op: &str, at: usize| {
            let of = told.iter().filter(|e| e.get_str("op").unwrap() == op);
            of.clone()
                .nth(at)
                .unwrap_or_else(|| panic!("{op} {at} of {told:?}"))
                .clone()
        };
        assert_eq!(one("insert", 0).get_i32("ninserted").unwrap(), 300);
        let by_index = one("query", 0);
        assert_eq!(by_index.get_str("planSummary").unwrap(), "IXSCAN { a: 1 }");
        assert_eq!(by_index.get_i32("docsExamined").unwrap(), 30);
        assert!(by_index.get_i32("keysExamined").unwrap() >= 30);
        assert_eq!(by_index.get_i32("nreturned").unwrap(), 30);
        let scan = one("query", 1);
        assert_eq!(scan.get_str("planSummary").unwrap(), "COLLSCAN");
        assert_eq!(scan.get_i32("docsExamined").unwrap(), 300);
        assert_eq!(scan.get_i32("nreturned").unwrap(), 0);
        let first = one("query", 2);
        assert_eq!(first.get_i32("nreturned").unwrap(), 101);
        assert!(first.get_i64("cursorid").unwrap() != 0);
        let more = one("getmore", 0);
        assert_eq!(more.get_i32("nreturned").unwrap(), 199);
        assert_eq!(one("update", 0).get_i32("nModified").unwrap(), 60);
        let failed = one("query", 3);
        assert_eq!(failed.get_i32("errCode").unwrap(), 2);
        assert!(!failed.contains_key("responseLength"));
        // Profiling is off: nothing is recorded.
        assert_eq!(
            profile(&database, doc! { "profile": 0 })
                .get_i32("was")
                .unwrap(),
            2
        );
        let kept = entries(&database).len();
        assert_eq!(c.count(doc! {}).unwrap(), 300);
        assert_eq!(entries(&database).len(), kept);
        let status = database
            .command("admin", &doc! { "serverStatus": 1 })
            .unwrap();
        let metrics = status.get_document("metrics").unwrap();
        let returned = metrics
            .get_document("document")
            .unwrap()
            .get_i64("returned")
            .unwrap();
        assert!(returned >= 330, "{returned}");
    }

    #[test]
    fn a_filter_takes_the_place_of_time_and_chance() {
        let database = Database::in_memory().unwrap();
        profile(
            &database,
            doc! { "profile": 1, "slowms": 1_000_000, "filter": { "op": "remove" } },
        );
        let told = profile(&database, doc! { "profile": -1 });
        assert_eq!(told.get_i32("was").unwrap(), 1);
        assert_eq!(
            told.get_document("filter").unwrap(),
            &doc! { "op": "remove" }
        );
        assert!(told.contains_key("note"));
        let c = database.collection::<Document>("db", "c");
        c.insert_one(doc! { "_id": 1 }).unwrap();
        profile(
            &database,
            doc! { "delete": "c", "deletes": [{ "q": {}, "limit": 0 }] },
        );
        let told = entries(&database);
        assert_eq!(told.len(), 1, "{told:?}");
        assert_eq!(told[0].get_i32("ndeleted").unwrap(), 1);
        // The collection is capped; the first entry creates it.
        let listed = profile(
            &database,
            doc! { "listCollections": 1, "filter": { "name": "system.profile" } },
        );
        let batch = listed
            .get_document("cursor")
            .unwrap()
            .get_array("firstBatch")
            .unwrap();
        let options = batch[0]
            .as_document()
            .unwrap()
            .get_document("options")
            .unwrap();
        assert!(options.get_bool("capped").unwrap());
        // Slow operations only, without the filter.
        profile(&database, doc! { "profile": 1, "filter": "unset" });
        profile(
            &database,
            doc! { "delete": "c", "deletes": [{ "q": {}, "limit": 0 }] },
        );
        assert_eq!(entries(&database).len(), 1);
        profile(&database, doc! { "profile": 1, "slowms": -1 });
        profile(
            &database,
            doc! { "delete": "c", "deletes": [{ "q": {}, "limit": 0 }] },
        );
        assert_eq!(entries(&database).len(), 2);
    }

    #[test]
    fn nonsense_is_refused() {
        let database = Database::in_memory().unwrap();
        for (command, code) in [
            (doc! { "profile": 3 }, 2),
            (doc! { "profile": "x" }, 14),
            (doc! { "profile": 1, "sampleRate": 2.0 }, 2),
            (doc! { "profile": 1, "sampleRate": "x" }, 14),
            (doc! { "profile": 1, "filter": 1 }, 14),
            (doc! { "profile": 1, "filter": { "$x": 1 } }, 2),
            (doc! { "profile": 1, "more": 1 }, 40_415),
        ] {
            let error = database.command("db", &command).unwrap_err();
            assert_eq!(error.code.0, code, "{command}: {error}");
        }
    }
}

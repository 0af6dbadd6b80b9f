//! `aggregate` with `$changeStream`: opens a stream of changes.

use nilometer_bson::{DocRef, Document, ValueRef};

use super::aggregate::{collection_of, first_batch, stages_of};
use super::query::{QueryOptions, builder, namespace_of};
use crate::args::Args;
use crate::catalog::{BUCKETS_PREFIX, CatalogEntry, Namespace};
use crate::change_log::StreamScope;
use crate::commands::cursor_reply::{self, FirstBatch};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result, location};
use crate::operation::OperationContext;
use crate::query::cursor::{StreamPosition, Tail};
use crate::query::exec::Executor;
use crate::query::exec::change_stream;
use crate::query::pipeline::change_stream::{
    BeforeChange, ChangeStreamOptions, FullDocument, NAME, StreamStart, following, of_pipeline,
    only_on_sets,
};
use crate::query::pipeline::{PipelineContext, Stage, parse_pipeline, text_not_first};

/// True if the pipeline begins with `$changeStream`.
pub(super) fn is_stream(args: &Args<'_>) -> Result<bool> {
    Ok(of_pipeline(&stages_of(args)?).is_some())
}

/// Refuses a stream where a plan is needed, as by `explain`.
pub(super) fn check_not_planned(database: &Database, stages: &[DocRef<'_>]) -> Result<()> {
    if of_pipeline(stages).is_none() || database.change_log().is_none() {
        return Ok(());
    }
    Err(Error::new(
        ErrorCode::CommandNotSupported,
        "a $changeStream cannot be explained: it follows the change log",
    ))
}

/// Returns the error of a server without a change log. A router does not become a replica set.
fn no_log(database: &Database) -> Error {
    match database.as_router() {
        None => only_on_sets(),
        Some(_) => Error::new(
            ErrorCode::CommandNotSupported,
            "change streams are not supported on a router",
        ),
    }
}

/// Opens the stream, and returns its first batch.
pub(super) fn open(
    database: &Database,
    operation: &OperationContext,
    args: &Args<'_>,
    cursor: Option<Args<'_>>,
    command: &Document,
) -> Result<Document> {
    let collection = collection_of(args)?;
    let documents = stages_of(args)?;
    let argument = of_pipeline(&documents).unwrap_or_default();
    let log = database.change_log().ok_or_else(|| no_log(database))?;
    let (following, splits) = following(documents.get(1..).unwrap_or_default())?;
    let mut stream = parse_options(argument, splits)?;
    stream.of_buckets = collection.is_some_and(|name| name.starts_with(BUCKETS_PREFIX));
    check_read_concern(args)?;
    let scope = scope(database, operation, collection, stream.of_cluster)?;
    // Events are no documents of the collection: its collation does not apply.
    let options = QueryOptions::parse(database, operation, args, None)?;
    let cx = PipelineContext::top(options.expressions.clone());
    let stages = parse_pipeline(&cx, following.iter().copied())?;
    if stages.iter().any(has_text) {
        return Err(text_not_first());
    }
    let builder = builder(database, operation, &options, collection);
    let arrivals = log.arrivals(&scope);
    let (root, progress) = change_stream::open(&builder, log, scope, &stream, stages)?;
    let first = FirstBatch {
        tail: Some(Tail {
            arrivals,
            awaits: true,
        }),
        stream: Some(StreamPosition::new(progress)),
        ..first_batch(cursor)?
    };
    let namespace = namespace_of(operation, collection.unwrap_or("$cmd.aggregate"));
    let executor = Executor::new(root, builder.settings);
    cursor_reply::open(database, operation, namespace, executor, first, command)
}

/// True if a stage searches texts, which no stage behind another can.
fn has_text(stage: &Stage) -> bool {
    matches!(stage, Stage::Match(stage) if stage.filter.text().is_some())
}

/// Errors after which a client may resume the stream, here or on another member; those of sharded clusters come from fail points
/// alone.
const RESUMABLE: [ErrorCode; 18] = [
    ErrorCode::HostUnreachable,
    ErrorCode::HostNotFound,
    ErrorCode::CursorNotFound,
    ErrorCode::StaleShardVersion,
    ErrorCode::NetworkTimeout,
    ErrorCode::ShutdownInProgress,
    ErrorCode::FailedToSatisfyReadPreference,
    ErrorCode::StaleEpoch,
    ErrorCode::PrimarySteppedDown,
    ErrorCode::RetryChangeStream,
    ErrorCode::ExceededTimeLimit,
    ErrorCode::SocketException,
    ErrorCode::NotWritablePrimary,
    ErrorCode::InterruptedAtShutdown,
    ErrorCode::InterruptedDueToReplStateChange,
    ErrorCode::StaleConfig,
    ErrorCode::NotPrimaryNoSecondaryOk,
    ErrorCode::NotPrimaryOrSecondary,
];

/// Adds the label by which drivers resume a stream to the errors after which they may.
pub(super) fn with_label(mut error: Error) -> Error {
    if RESUMABLE.contains(&error.code) {
        error.labels.push("ResumableChangeStreamError");
    }
    error
}

/// Refuses another read concern than `majority`, which is the default.
fn check_read_concern(args: &Args<'_>) -> Result<()> {
    let concern = args.value("readConcern").as_document();
    let level = concern.and_then(|concern| concern.get("level").as_str());
    match level {
        None | Some("majority") => Ok(()),
        Some(other) => Err(Error::invalid_options(format!(
            "$changeStream cannot run with a readConcern other than 'majority'. Current readConcern: {other}"
        ))),
    }
}

/// Returns what the stream watches.
fn scope(
    database: &Database,
    operation: &OperationContext,
    collection: Option<&str>,
    of_cluster: bool,
) -> Result<StreamScope> {
    let db = &operation.database;
    match (collection, of_cluster) {
        (None, true) if db == "admin" => Ok(StreamScope::Cluster),
        (_, true) => Err(Error::invalid_options(
            "A $changeStream with 'allChangesForCluster:true' may only be opened on the 'admin' database, and with no collection name",
        )),
        _ if matches!(db.as_str(), "admin" | "config" | "local") => Err(Error::new(
            ErrorCode::InvalidNamespace,
            format!("$changeStream may not be opened on the internal {db} database"),
        )),
        (None, false) => Ok(StreamScope::Database(db.clone())),
        (Some(name), false) => {
            let namespace = Namespace {
                database: db.clone(),
                collection: name.to_owned(),
            };
            if let Some(series) = namespace.timeseries_view() {
                return Ok(StreamScope::Collection(series.to_string()));
            }
            if namespace.is_system() {
                return Err(Error::new(
                    ErrorCode::InvalidNamespace,
                    format!(
                        "$changeStream may not be opened on the internal {namespace} collection"
                    ),
                ));
            }
            let catalog = database.catalog();
            let is_view = matches!(catalog.get(&namespace), Some(CatalogEntry::View(view)) if view.rollup.is_none());
            if is_view && catalog.timeseries(&namespace).is_none() {
                return Err(Error::new(
                    ErrorCode::CommandNotSupportedOnView,
                    format!(
                        "Namespace {namespace} is a view, not a collection: $changeStream cannot be opened on it"
                    ),
                ));
            }
            Ok(StreamScope::Collection(namespace.to_string()))
        }
    }
}

/// Parses the argument of the stage.
fn parse_options(argument: ValueRef<'_>, splits: bool) -> Result<ChangeStreamOptions> {
    let Some(document) = argument.as_document() else {
        return Err(Error::location(
            location::CHANGE_STREAM_NOT_OBJECT,
            format!(
                "the $changeStream stage must be specified as an object, but found {}",
                argument.type_name()
            ),
        ));
    };
    let args = Args::new(NAME, document);
    args.check_names(&[
        "allChangesForCluster",
        "fullDocument",
        "fullDocumentBeforeChange",
        "resumeAfter",
        "showExpandedEvents",
        "startAfter",
        "startAtOperationTime",
    ])?;
    let full_document = match args.string("fullDocument")? {
        None | Some("default") => FullDocument::Default,
        Some("updateLookup") => FullDocument::UpdateLookup,
        Some("whenAvailable") => FullDocument::WhenAvailable,
        Some("required") => FullDocument::Required,
        Some(other) => return Err(unknown("fullDocument", other)),
    };
    let before_change = match args.string("fullDocumentBeforeChange")? {
        None | Some("off") => BeforeChange::Off,
        Some("whenAvailable") => BeforeChange::WhenAvailable,
        Some("required") => BeforeChange::Required,
        Some(other) => return Err(unknown("fullDocumentBeforeChange", other)),
    };
    Ok(ChangeStreamOptions {
        start: start(&args)?,
        full_document,
        before_change,
        is_expanded: args.boolean("showExpandedEvents")?.unwrap_or(false),
        splits,
        of_buckets: false,
        of_cluster: args.boolean("allChangesForCluster")?.unwrap_or(false),
    })
}

fn unknown(option: &str, value: &str) -> Error {
    Error::bad_value(format!(
        "Enumeration value '{value}' for field '$changeStream.{option}' is not a valid value."
    ))
}

fn start(args: &Args<'_>) -> Result<StreamStart> {
    let resume_after = args.document("resumeAfter")?;
    let start_after = args.document("startAfter")?;
    let time = match args.value("startAtOperationTime") {
        ValueRef::Missing | ValueRef::Null => None,
        ValueRef::Timestamp(time) => Some(time),
        other => return Err(args.wrong_type("startAtOperationTime", other, "timestamp")),
    };
    match (resume_after, start_after, time) {
        (None, None, None) => Ok(StreamStart::Now),
        (Some(token), None, None) => Ok(StreamStart::ResumeAfter(token.to_document())),
        (None, Some(token), None) => Ok(StreamStart::StartAfter(token.to_document())),
        (None, None, Some(time)) => Ok(StreamStart::AtOperationTime(time)),
        _ => Err(Error::location(
            location::CHANGE_STREAM_STARTS_TWICE,
            "Only one type of resume option is allowed, but multiple were found.",
        )),
    }
}

//! `create`: ordinary collections, time-series collections, views.

use nilometer_bson::{DocRef, Document, DocumentBuilder, ValueRef};

use super::args::Args;
use super::{Access, CommandContext, CommandSpec, Fields};
use crate::catalog::{BUCKETS_PREFIX, CatalogEntry, Namespace, TimeseriesOptions, View};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::eval::{Collation, ParseContext};
use crate::operation::Request;
use crate::query::pipeline::{PipelineContext, parse_pipeline_value};
use crate::query::planner::resolve::VIEW_DEPTH_MAX;

pub(super) const SPEC: CommandSpec = CommandSpec {
    access: Access::Write,
    write_concern: true,
    in_api_v1: true,
    fields: Fields::Only(&[
        "timeseries",
        "expireAfterSeconds",
        "clusteredIndex",
        "viewOn",
        "pipeline",
        "collation",
        "capped",
        "size",
        "max",
        "validator",
        "validationLevel",
        "validationAction",
        "idIndex",
        "storageEngine",
        "indexOptionDefaults",
        "changeStreamPreAndPostImages",
        "encryptedFields",
        "autoIndexId",
        "flags",
        "temp",
    ]),
    ..CommandSpec::new(
        "create",
        "Creates a collection, a time-series collection or a view.",
        run,
    )
};

/// The largest `expireAfterSeconds`: the seconds a date of 64-bit milliseconds can span.
const EXPIRE_AFTER_SECONDS_MAX: i64 = i64::MAX / 1000;

/// Options no kind of collection takes yet.
const UNSUPPORTED: &[&str] = &[
    "clusteredIndex",
    "validator",
    "validationLevel",
    "validationAction",
    "capped",
    "size",
    "max",
    "changeStreamPreAndPostImages",
    "encryptedFields",
    "autoIndexId",
    "flags",
    "temp",
    "idIndex",
];

/// Options a time-series collection never takes.
const NOT_WITH_TIMESERIES: &[&str] = &[
    "capped",
    "size",
    "max",
    "idIndex",
    "validator",
    "validationLevel",
    "validationAction",
    "viewOn",
    "pipeline",
    "clusteredIndex",
    "autoIndexId",
    "temp",
];

fn run(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let body = request.body.as_ref();
    let args = Args::new("create", body);
    let name = args.required_string("create")?;
    let namespace = Namespace::new(context.database_name(), name)?;
    if let Some(timeseries) = args.document("timeseries")? {
        if let Some(refused) = first_given(body, NOT_WITH_TIMESERIES) {
            return Err(Error::invalid_options(format!(
                "'timeseries' is not allowed with '{refused}'"
            )));
        }
        refuse_unsupported(body)?;
        let timeseries = TimeseriesOptions::parse(timeseries)?;
        let options = timeseries_options(&args)?;
        return create_timeseries(database, namespace, options, timeseries);
    }
    if name.starts_with(BUCKETS_PREFIX) {
        return Err(Error::new(
            ErrorCode::IllegalOperation,
            format!("the name {name} is for the buckets of time-series collections"),
        ));
    }
    if name.starts_with("system.") {
        return Err(Error::new(
            ErrorCode::InvalidNamespace,
            format!("cannot create a collection in the reserved namespace {namespace}"),
        ));
    }
    if let Some(expire) = args.integer("expireAfterSeconds")? {
        return Err(Error::invalid_options(format!(
            "'expireAfterSeconds' ({expire}) is only for time-series and clustered collections"
        )));
    }
    refuse_unsupported(body)?;
    match args.string("viewOn")? {
        Some(view_on) => create_view(database, namespace, view_on, &args),
        None if args.array("pipeline")?.is_some() => Err(Error::invalid_options(
            "'pipeline' requires 'viewOn' to be specified",
        )),
        None => create_collection(database, namespace, kept_options(&args)?),
    }
}

fn first_given<'n>(body: DocRef<'_>, names: &[&'n str]) -> Option<&'n str> {
    // Drivers send `capped: false`, which asks for nothing.
    let asks = |name: &&&str| !matches!(body.get(name), ValueRef::Missing | ValueRef::Bool(false));
    names.iter().find(asks).copied()
}

fn refuse_unsupported(body: DocRef<'_>) -> Result<()> {
    match first_given(body, UNSUPPORTED) {
        Some(option) => Err(Error::new(
            ErrorCode::CommandNotSupported,
            format!("the option 'create.{option}' is not supported yet"),
        )),
        None => Ok(()),
    }
}

/// The options a time-series collection keeps.
fn timeseries_options(args: &Args<'_>) -> Result<Document> {
    let mut options = DocumentBuilder::new();
    if let Some(seconds) = args.integer("expireAfterSeconds")? {
        check_expire_after(seconds)?;
        options.append("expireAfterSeconds", seconds);
    }
    for element in kept_options(args)?.iter() {
        options.append_element(element);
    }
    Ok(options.finish())
}

/// Seconds after which measurements may expire: anything that can be added to a date.
pub(super) fn check_expire_after(seconds: i64) -> Result<()> {
    if !(0..=EXPIRE_AFTER_SECONDS_MAX).contains(&seconds) {
        return Err(Error::invalid_options(format!(
            "'expireAfterSeconds' must be between 0 and {EXPIRE_AFTER_SECONDS_MAX}, got {seconds}"
        )));
    }
    Ok(())
}

/// Options that are kept and shown: those without effect here, as MongoDB does, and the collation.
fn kept_options(args: &Args<'_>) -> Result<Document> {
    let mut kept = DocumentBuilder::new();
    for name in ["storageEngine", "indexOptionDefaults"] {
        if let Some(value) = args.document(name)? {
            kept.append(name, value);
        }
    }
    for element in collation_option(args)?.iter() {
        kept.append_element(element);
    }
    Ok(kept.finish())
}

/// The option `collation` with every field, as it is kept; empty for the order of bytes.
fn collation_option(args: &Args<'_>) -> Result<Document> {
    let mut kept = DocumentBuilder::new();
    if let Some(spec) = args.document("collation")? {
        let collation = Collation::parse(spec, "create.collation")?;
        kept.append("collation", collation.to_document());
    }
    Ok(kept.finish())
}

fn exists(namespace: &Namespace) -> Error {
    Error::new(
        ErrorCode::NamespaceExists,
        format!("Collection {namespace} already exists."),
    )
}

fn create_timeseries(
    database: &Database,
    namespace: Namespace,
    options: Document,
    timeseries: TimeseriesOptions,
) -> Result<Document> {
    let catalog = database.catalog();
    let uuid = database.services().ids.uuid();
    let bare_buckets = namespace.view_of_buckets().is_some();
    let buckets = if bare_buckets {
        namespace.clone()
    } else {
        namespace.buckets()
    };
    let same = catalog.collection(&buckets).is_some_and(|known| {
        known.timeseries.as_ref() == Some(&timeseries) && known.options == options
    });
    if catalog.get(&namespace).is_some() {
        let is_series = bare_buckets || catalog.timeseries(&namespace).is_some();
        return if same && is_series {
            Ok(Document::new())
        } else {
            Err(exists(&namespace))
        };
    }
    if bare_buckets {
        catalog.create_collection(namespace, uuid, options, Some(timeseries))?;
    } else {
        catalog.create_timeseries(namespace, uuid, options, timeseries)?;
    }
    Ok(Document::new())
}

fn create_view(
    database: &Database,
    namespace: Namespace,
    view_on: &str,
    args: &Args<'_>,
) -> Result<Document> {
    Namespace::new(&namespace.database, view_on)?;
    let options = collation_option(args)?;
    let collation = Collation::of_stored(options.as_ref())?;
    let expressions = ParseContext::new().with_collator(collation.shared());
    let mut pipeline = Vec::new();
    if let Some(stages) = args.array("pipeline")? {
        // Parsed for the errors alone: a view is stored as it was given.
        let context = PipelineContext::view(expressions);
        parse_pipeline_value(&context, "'pipeline'", ValueRef::Array(stages))?;
        pipeline.extend(
            stages
                .iter()
                .filter_map(ValueRef::as_document)
                .map(|s| s.to_document()),
        );
    }
    let view = View {
        namespace: namespace.clone(),
        view_on: view_on.to_owned(),
        pipeline,
        options,
    };
    match database.catalog().get(&namespace) {
        None => {
            refuse_ring(database, &view)?;
            refuse_other_collation(database, &view, &collation)?;
            database.catalog().create_view(view)?;
        }
        Some(CatalogEntry::View(known)) if *known == view => {}
        Some(_) => return Err(exists(&namespace)),
    }
    Ok(Document::new())
}

/// A view may not stand, through others, on itself, nor on too many. What two commands at once make
/// of their two halves is refused when it is read.
fn refuse_ring(database: &Database, view: &View) -> Result<()> {
    let mut on = view.view_on.clone();
    for _ in 0..VIEW_DEPTH_MAX {
        let below = Namespace::new(&view.namespace.database, &on)?;
        if below == view.namespace {
            return Err(Error::new(
                ErrorCode::GraphContainsCycle,
                format!("the view {below} would stand on itself"),
            ));
        }
        match database.catalog().get(&below) {
            Some(CatalogEntry::View(next)) if !next.is_timeseries() => on.clone_from(&next.view_on),
            _ => return Ok(()),
        }
    }
    Err(Error::new(
        ErrorCode::ViewDepthLimitExceeded,
        format!("views may stand on one another {VIEW_DEPTH_MAX} deep at most"),
    ))
}

/// A view on a view has its collation.
fn refuse_other_collation(database: &Database, view: &View, collation: &Collation) -> Result<()> {
    let below = Namespace::new(&view.namespace.database, &view.view_on)?;
    match database.catalog().get(&below) {
        Some(CatalogEntry::View(next))
            if !next.is_timeseries()
                && Collation::of_stored(next.options.as_ref())? != *collation =>
        {
            Err(Error::new(
                ErrorCode::OptionNotSupportedOnView,
                format!(
                    "View {} has conflicting collation with view {below}",
                    view.namespace
                ),
            ))
        }
        _ => Ok(()),
    }
}

fn create_collection(
    database: &Database,
    namespace: Namespace,
    options: Document,
) -> Result<Document> {
    match database.catalog().get(&namespace) {
        None => {
            let uuid = database.services().ids.uuid();
            database
                .catalog()
                .create_collection(namespace, uuid, options, None)?;
        }
        Some(CatalogEntry::Collection(known)) if known.options == options => {}
        Some(_) => return Err(exists(&namespace)),
    }
    Ok(Document::new())
}

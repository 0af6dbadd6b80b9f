//! `update`: statements that change documents, or insert one if none matches.

use nilometer_bson::{DocRef, Document, DocumentBuilder, Value, ValueRef};

use super::accept_document;
use super::change::{
    StatementContext, Statements, append_errors, count_value, eval_context, make_durable, selector,
    upserted, with_constants,
};
use super::retryable;
use super::retryable::{append_retried, refuse_many};
use crate::args::Args;
use crate::commands::ddl::collection_uuid;
use crate::commands::generic::RAW_DATA;
use crate::commands::security::authorization::rules;
use crate::commands::{
    Access, Authorization, CommandContext, CommandSpec, Fields, OnRouter, OperationCounter,
};
use crate::database::Database;
use crate::error::{Error, Result, location};
use crate::eval::ParseContext;
use crate::modify::{Modified, ModifyAction, Selector, WriteTarget};
use crate::operation::{OperationContext, Request};
use crate::retryable_writes::StatementKind;
use crate::router::KeyGuard;
use crate::services::LatencyClass;
use crate::write::update::Update;

/// The options of the command.
pub(crate) const FIELDS: &[&str] = &[
    "updates",
    "ordered",
    "bypassDocumentValidation",
    "bypassEmptyTsReplacement",
    "let",
    RAW_DATA,
    collection_uuid::NAME,
];

pub(crate) const SPEC: CommandSpec = CommandSpec {
    access: Access::Write,
    latency: LatencyClass::Write,
    takes_memory: true,
    write_concern: true,
    in_api_v1: true,
    retryable: true,
    counted: OperationCounter::Update,
    fields: Fields::Only(FIELDS),
    ..CommandSpec::new(
        "update",
        "Updates documents.",
        Authorization::ByRule(rules::update),
        OnRouter::Own,
        run,
    )
};

/// The fields of a statement.
pub(crate) const STATEMENT: &[&str] = &[
    "q",
    "u",
    "c",
    "multi",
    "upsert",
    "upsertSupplied",
    "arrayFilters",
    "collation",
    "hint",
    "sort",
];

/// The field names of a statement.
pub(crate) struct Names {
    pub(crate) filter: &'static str,
    pub(crate) update: &'static str,
    pub(crate) constants: &'static str,
}

const NAMES: Names = Names {
    filter: "q",
    update: "u",
    constants: "c",
};

#[derive(Default)]
struct Totals {
    matched: u64,
    modified: u64,
    upserted: Vec<(usize, Value)>,
    retried: Vec<usize>,
}

/// Returns the statements of a command, whose fields have the right names and types.
pub(crate) fn checked<'r>(
    database: &Database,
    operation: &OperationContext,
    request: &'r Request,
) -> Result<Statements<'r>> {
    let statements =
        Statements::parse("update", "updates", STATEMENT, database, operation, request)?;
    let args = Args::new("update", request.body.as_ref());
    collection_uuid::check(database, &args, &statements.namespace)?;
    for document in statements.documents.clone() {
        let statement = Args::new("update.updates", document);
        statement.required_document("q")?;
        check_update(&statement, statement.value("u"), "u")?;
    }
    WriteTarget::of(database.catalog(), &statements.namespace)?;
    Ok(statements)
}

fn run(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let operation = &context.operation;
    let statements = checked(database, operation, request)?;
    let mut totals = Totals::default();
    let counters = &database.services().counters;
    let only_one =
        statements.is_one_change(|s| !matches!(s.lenient_boolean("multi"), Ok(None | Some(false))));
    let retryable = retryable::begin(database, operation)?;
    for document in statements.documents.clone() {
        let many = Args::new("update.updates", document).lenient_boolean("multi")?;
        refuse_many(operation, many == Some(true), "multi=true")?;
    }
    let errors = statements.run(|index, document| {
        counters.operations.update.increment();
        let statement = Args::new("update.updates", document);
        let number = (index, StatementKind::Update);
        let run_by = (database, operation);
        let retryable = retryable.as_ref();
        let (updated, was_retried) = retryable::statement(run_by, retryable, number, |record| {
            let place = statements.context(database, operation, only_one, record);
            one(place, &statement, &NAMES)
        })?;
        if was_retried {
            totals.retried.push(index);
        }
        totals.matched += updated.matched;
        totals.modified += updated.modified;
        if let Some(id) = updated.upserted {
            totals.upserted.push((index, id));
        }
        Ok(())
    })?;
    if !only_one {
        make_durable(database, operation)?;
    }
    let mut reply = DocumentBuilder::new();
    let inserted = u64::try_from(totals.upserted.len()).unwrap_or(u64::MAX);
    reply.append("n", count_value(totals.matched + inserted));
    if !totals.upserted.is_empty() {
        let list = upserted(totals.upserted);
        let list: Vec<Value> = list.into_iter().map(Value::Document).collect();
        reply.append("upserted", list);
    }
    append_errors(&mut reply, errors);
    reply.append("nModified", count_value(totals.modified));
    append_retried(&mut reply, &totals.retried);
    Ok(reply.finish())
}

/// A parsed statement.
struct Parsed<'s> {
    multi: bool,
    upsert: bool,
    supplied: Option<DocRef<'s>>,
    expressions: ParseContext,
    variables: Vec<Value>,
    selector: Selector<'static>,
    update: Update,
}

impl<'s> Parsed<'s> {
    fn of(place: StatementContext<'_>, statement: &'s Args<'_>, names: &Names) -> Result<Self> {
        let flag = |name| Ok::<_, Error>(statement.lenient_boolean(name)?.unwrap_or(false));
        let (multi, upsert) = (flag("multi")?, flag("upsert")?);
        let constants = statement.document(names.constants)?;
        let supplied = match (flag("upsertSupplied")?, upsert, constants) {
            (false, ..) => None,
            (true, true, Some(constants)) => Some(supplied_document(constants)?),
            (true, ..) => {
                return Err(Error::failed_to_parse(
                    "upsertSupplied needs upsert: true and the document as the constant 'new'",
                ));
            }
        };
        if multi && statement.document("sort")?.is_some_and(|d| !d.is_empty()) {
            return Err(Error::failed_to_parse(
                "Cannot specify sort with multi=true",
            ));
        }
        let (expressions, variables) = with_constants(place, statement, constants)?;
        let filter = statement.required_document(names.filter)?;
        let (database, namespace) = (place.database, place.namespace);
        let selector = selector(database, namespace, statement, filter, &expressions)?;
        let update = Update::parse(
            statement.value(names.update),
            statement.array("arrayFilters")?,
            &expressions,
        )?;
        check_combination(&update, multi, constants.is_some())?;
        Ok(Self {
            multi,
            upsert,
            supplied,
            expressions,
            variables,
            selector,
            update,
        })
    }
}

/// Runs one statement and counts the changed documents.
pub(crate) fn one(
    place: StatementContext<'_>,
    statement: &Args<'_>,
    names: &Names,
) -> Result<Modified> {
    let parsed = Parsed::of(place, statement, names)?;
    let StatementContext {
        database,
        operation,
        ..
    } = place;
    let counters = &database.services().counters.documents;
    if let Some(accepted) = operation.accepted() {
        let updated = accept_document::run(place, accepted)?;
        counters.updated.add(updated.modified);
        return Ok(updated);
    }
    let action = ModifyAction::Update {
        update: &parsed.update,
        upsert: parsed.upsert,
        supplied: operation.upserted().or(parsed.supplied),
    };
    let (selector, multi) = (&parsed.selector, parsed.multi);
    let (variables, expressions) = (&parsed.variables, &parsed.expressions);
    let mut statement = place.statement(selector, multi, action, variables, expressions);
    let guard = operation.guarded_key().map(KeyGuard::of).transpose()?;
    statement.guard = guard.as_ref().map(|guard| guard as _);
    place.find_candidates(&mut statement)?;
    let updated = statement.run(database.collections().modify())?;
    counters.updated.add(updated.modified);
    counters.inserted.add(u64::from(updated.upserted.is_some()));
    Ok(updated)
}

/// Returns the document that an upsert of the command `update` inserts if nothing matches.
pub(crate) fn new_document(place: StatementContext<'_>, statement: DocRef<'_>) -> Result<Document> {
    let statement = Args::new("update.updates", statement);
    let parsed = Parsed::of(place, &statement, &NAMES)?;
    let (database, operation) = (place.database, place.operation);
    let filter = &parsed.selector.filter;
    let eval = eval_context(database, operation, &parsed.variables, &parsed.expressions);
    let new_id = || database.services().ids.object_id(operation.now_ms);
    crate::modify::new_document(filter, &parsed.update, parsed.supplied, (&eval, &new_id))
}

pub(crate) fn check_combination(update: &Update, multi: bool, constants: bool) -> Result<()> {
    if multi && update.is_replacement() {
        return Err(Error::failed_to_parse(
            "multi update is not supported for replacement-style update",
        ));
    }
    if constants && !update.is_pipeline() {
        return Err(Error::location(
            location::CONSTANTS_WITHOUT_PIPELINE,
            "Constant values may only be specified for pipeline updates",
        ));
    }
    Ok(())
}

fn supplied_document(constants: DocRef<'_>) -> Result<DocRef<'_>> {
    constants.get("new").as_document().ok_or_else(|| {
        Error::failed_to_parse(
            "the parameter 'c.new' must be an object when upsertSupplied is true",
        )
    })
}

/// Checks the type of an update.
pub(crate) fn check_update(statement: &Args<'_>, update: ValueRef<'_>, name: &str) -> Result<()> {
    match update {
        ValueRef::Missing => Err(statement.missing(name)),
        ValueRef::Document(_) | ValueRef::Array(_) => Ok(()),
        _ => Err(Error::failed_to_parse(
            "Update argument must be either an object or an array",
        )),
    }
}

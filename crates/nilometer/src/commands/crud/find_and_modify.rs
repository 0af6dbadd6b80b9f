//! `findAndModify`: changes or removes one document and returns it, as it was before or after.
//!
//! On a time series [`crate::modify`] runs the statement (`modify/measurements.rs`), which refuses a sort.

use std::sync::Arc;

use nilometer_bson::{DocRef, Document, DocumentBuilder, Value};

use super::accept_document;
use super::change::{StatementContext, durability, eval_context, selector};
use super::query::QueryOptions;
use super::retryable;
use super::update::check_update;
use crate::args::Args;
use crate::catalog::Namespace;
use crate::commands::generic::RAW_DATA;
use crate::commands::security::authorization::rules;
use crate::commands::{Access, Authorization, CommandContext, CommandSpec, Fields, OnRouter};
use crate::database::Database;
use crate::error::{Error, Result};
use crate::eval::matcher::TextTest;
use crate::eval::projection::{MetaField, Projection, ProjectionInput};
use crate::eval::{EvalContext, ParseContext};
use crate::modify::{Modified, ModifyAction, Selector, WriteTarget};
use crate::operation::{OperationContext, Request};
use crate::retryable_writes::StatementKind;
use crate::router::KeyGuard;
use crate::services::LatencyClass;
use crate::write::update::Update;

/// The options of the command.
pub(crate) const FIELDS: &[&str] = &[
    "query",
    "sort",
    "remove",
    "update",
    "new",
    "fields",
    "upsert",
    "bypassDocumentValidation",
    "bypassEmptyTsReplacement",
    "arrayFilters",
    "collation",
    "hint",
    "let",
    RAW_DATA,
];

pub(crate) const SPEC: CommandSpec = CommandSpec {
    aliases: &["findandmodify"],
    access: Access::Write,
    latency: LatencyClass::Write,
    takes_memory: true,
    write_concern: true,
    in_api_v1: true,
    retryable: true,
    fields: Fields::Only(FIELDS),
    ..CommandSpec::new(
        "findAndModify",
        "Changes or removes one document and returns it.",
        Authorization::ByRule(rules::find_and_modify),
        OnRouter::Own,
        run,
    )
};

/// The form of the command.
enum ModifyForm {
    Remove,
    Update {
        update: Update,
        upsert: bool,
        new: bool,
    },
}

impl ModifyForm {
    fn kind(&self) -> StatementKind {
        match self {
            Self::Remove => StatementKind::FindAndRemove,
            Self::Update { new: false, .. } => StatementKind::FindAndUpdate,
            Self::Update { new: true, .. } => StatementKind::FindAndUpdateNew,
        }
    }

    /// `supplied` is the document that an upsert inserts, if it is given.
    fn action<'a>(&'a self, supplied: Option<DocRef<'a>>) -> ModifyAction<'a> {
        match self {
            Self::Remove => ModifyAction::Delete,
            Self::Update { update, upsert, .. } => ModifyAction::Update {
                update,
                upsert: *upsert,
                supplied,
            },
        }
    }
}

fn run(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let operation = &context.operation;
    let args = Args::new("findAndModify", request.body.as_ref());
    let name = args.required_string(request.command_name())?;
    let namespace = Namespace::new(&operation.database, name)?;
    let options = QueryOptions::parse(database, operation, &args, Some(name))?;
    let form = form(&args, &options)?;
    WriteTarget::of(database.catalog(), &namespace)?;
    let filter = args.document("query")?.unwrap_or(DocRef::EMPTY);
    let expressions = &options.expressions;
    let selector = selector(database, &namespace, &args, filter, expressions)?;
    let projection = match args.document("fields")?.filter(|d| !d.is_empty()) {
        Some(fields) => Some(Projection::parse_find(fields, expressions)?),
        None => None,
    };
    let projection = ReplyProjection::of(projection, &selector, &form)?;
    let retryable = retryable::begin(database, operation)?;
    let statement = (0, form.kind());
    let run_by = (database, operation);
    let retryable = retryable.as_ref();
    let (modified, was_retried) = retryable::statement(run_by, retryable, statement, |record| {
        let place = StatementContext {
            database,
            operation,
            namespace: &namespace,
            options: &options,
            durability: durability(operation, true),
            record,
        };
        let modified = match operation.accepted() {
            Some(accepted) => accept_document::run(place, accepted).map_err(while_modifying),
            None => modify(place, &form, &selector, expressions),
        }?;
        let counters = &database.services().counters.documents;
        counters.deleted.add(modified.deleted);
        counters.updated.add(modified.modified);
        counters
            .inserted
            .add(u64::from(modified.upserted.is_some()));
        Ok(modified)
    })?;
    let eval = eval_context(database, operation, &options.variables, expressions);
    let mut out = reply(&form, modified, &projection, &eval)?;
    if was_retried {
        out.append("retriedStmtId", 0);
    }
    Ok(out.finish())
}

/// Changes or removes the first document.
fn modify(
    place: StatementContext<'_>,
    form: &ModifyForm,
    selector: &Selector<'_>,
    expressions: &ParseContext,
) -> Result<Modified> {
    let action = form.action(place.operation.upserted());
    let variables = &place.options.variables;
    let mut statement = place.statement(selector, false, action, variables, expressions);
    let guard = place.operation.guarded_key();
    let guard = guard.map(KeyGuard::of).transpose()?;
    statement.guard = guard.as_ref().map(|guard| guard as _);
    place.find_candidates(&mut statement)?;
    statement
        .run(place.database.collections().modify())
        .map_err(while_modifying)
}

fn while_modifying(error: Error) -> Error {
    error.context("Plan executor error during findAndModify")
}

/// Returns the document that an upsert inserts if nothing matches.
pub(crate) fn new_document(
    database: &Database,
    operation: &OperationContext,
    namespace: &Namespace,
    command: DocRef<'_>,
) -> Result<Document> {
    let args = Args::new("findAndModify", command);
    let options = QueryOptions::parse(database, operation, &args, Some(&namespace.collection))?;
    let ModifyForm::Update { update, .. } = form(&args, &options)? else {
        return Err(Error::failed_to_parse("a removal inserts nothing"));
    };
    let filter = args.document("query")?.unwrap_or(DocRef::EMPTY);
    let selector = selector(database, namespace, &args, filter, &options.expressions)?;
    let eval = eval_context(
        database,
        operation,
        &options.variables,
        &options.expressions,
    );
    let new_id = || database.services().ids.object_id(operation.now_ms);
    crate::modify::new_document(&selector.filter, &update, None, (&eval, &new_id))
}

/// The projection of the returned document.
struct ReplyProjection {
    projection: Option<Projection>,
    /// The `$text` whose score it returns.
    score: Option<Arc<TextTest>>,
}

impl ReplyProjection {
    /// Checks that the score the projection returns exists: documents that are returned as they became have none.
    fn of(
        mut projection: Option<Projection>,
        selector: &Selector<'_>,
        form: &ModifyForm,
    ) -> Result<Self> {
        let field = MetaField::TextScore;
        let reading = projection.as_mut().filter(|p| p.needs_meta(field));
        let Some(reading) = reading else {
            return Ok(Self {
                projection,
                score: None,
            });
        };
        reading.leave_out(field);
        let is_new = matches!(form, ModifyForm::Update { new: true, .. });
        match selector.filter.text().filter(|_| !is_new).map(Arc::clone) {
            Some(test) => Ok(Self {
                projection,
                score: Some(test),
            }),
            None => Err(field.unavailable()),
        }
    }

    /// Returns the document as the reply shows it.
    fn apply(
        &self,
        document: Document,
        position: Option<usize>,
        eval: &EvalContext<'_>,
    ) -> Result<Document> {
        let Some(projection) = &self.projection else {
            return Ok(document);
        };
        let mut document = document;
        if let Some(test) = &self.score
            && let Some(score) = test.score(document.as_ref(), eval)?
        {
            let mut scored = DocumentBuilder::new();
            document.iter().for_each(|element| {
                scored.append_element(element);
            });
            scored.append(MetaField::TextScore.carrier(), score);
            document = scored.finish();
        }
        let input = ProjectionInput {
            position,
            ..ProjectionInput::default()
        };
        projection.apply_with(document.as_ref(), eval, &input)
    }
}

fn form(args: &Args<'_>, options: &QueryOptions) -> Result<ModifyForm> {
    let flag = |name| Ok::<_, Error>(args.lenient_boolean(name)?.unwrap_or(false));
    let (remove, new, upsert) = (flag("remove")?, flag("new")?, flag("upsert")?);
    let update = args.value("update");
    let filters = args.array("arrayFilters")?;
    let refused = |text: &str| Err(Error::failed_to_parse(text));
    if !remove {
        if update.is_missing() {
            return refused("Either an update or remove=true must be specified");
        }
        check_update(args, update, "update")?;
        return Ok(ModifyForm::Update {
            update: Update::parse(update, filters, &options.expressions)?,
            upsert,
            new,
        });
    }
    if !update.is_missing() {
        refused("Cannot specify both an update and remove=true")
    } else if upsert {
        refused("Cannot specify both upsert=true and remove=true")
    } else if new {
        refused(
            "Cannot specify both new=true and remove=true; 'remove' always returns the deleted \
             document",
        )
    } else if filters.is_some() {
        refused("Cannot specify arrayFilters and remove=true")
    } else {
        Ok(ModifyForm::Remove)
    }
}

/// `{lastErrorObject, value}`.
fn reply(
    form: &ModifyForm,
    modified: Modified,
    projection: &ReplyProjection,
    eval: &EvalContext<'_>,
) -> Result<DocumentBuilder> {
    let mut out = DocumentBuilder::new();
    out.begin_document("lastErrorObject");
    out.append("n", i32::from(modified.document.is_some()));
    if matches!(form, ModifyForm::Update { .. }) {
        let existed = modified.document.is_some() && modified.upserted.is_none();
        out.append("updatedExisting", existed);
    }
    if let Some(id) = modified.upserted {
        out.append("upserted", id);
    }
    out.end();
    let (shown, position) = match (form, modified.document) {
        (_, None) => (None, None),
        (ModifyForm::Update { new: true, .. }, Some(changed)) => (changed.after, changed.position),
        (_, Some(changed)) => (changed.before, changed.position),
    };
    let shown = match shown {
        Some(document) => Some(projection.apply(document, position, eval)?),
        None => None,
    };
    out.append("value", shown.map_or(Value::Null, Value::Document));
    Ok(out)
}

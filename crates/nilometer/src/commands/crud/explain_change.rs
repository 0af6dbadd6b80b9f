//! `explain` of `update`, `delete` and `findAndModify` of measurements: `TS_MODIFY` over buckets, or a delete
//! of whole buckets. Nothing is changed.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use nilometer_bson::{DocRef, Document, DocumentBuilder, ValueRef, doc};
use nilometer_storage::Durability;

use super::change::{StatementContext, count_value, selector, with_constants};
use super::explain::{GENERIC_FIELDS, Verbosity, with_server};
use super::query::QueryOptions;
use super::update::check_combination;
use super::{delete, find_and_modify, update};
use crate::args::Args;
use crate::catalog::{Collection, Namespace};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::modify::measurements::{Measurements, ModifyStrategy, Outcome};
use crate::modify::{ModifyAction, WriteTarget};
use crate::operation::OperationContext;
use crate::query::explain::buckets_read;
use crate::query::planner::physical::BucketInput;
use crate::timeseries::ExplainedSelection;
use crate::write::update::Update;

/// The explained statement.
struct ExplainedStatement<'c> {
    args: Args<'c>,
    filter: DocRef<'c>,
    /// The update; missing for a delete.
    update: ValueRef<'c>,
    constants: Option<DocRef<'c>>,
    multi: bool,
    upsert: bool,
    /// The projection of `findAndModify`.
    fields: Option<DocRef<'c>>,
}

impl ExplainedStatement<'_> {
    fn removes(&self) -> bool {
        self.update.is_missing()
    }

    fn op_type(&self) -> &'static str {
        match (self.removes(), self.multi) {
            (false, false) => "updateOne",
            (false, true) => "updateMany",
            (true, false) => "deleteOne",
            (true, true) => "deleteMany",
        }
    }
}

/// Parses the explained command.
fn statement<'c>(name: &'static str, command: DocRef<'c>) -> Result<ExplainedStatement<'c>> {
    let args = Args::new(name, command);
    let (fields, list): (&[&str], _) = match name {
        "update" => (update::FIELDS, Some(("updates", update::STATEMENT))),
        "delete" => (delete::FIELDS, Some(("deletes", delete::STATEMENT))),
        _ => (find_and_modify::FIELDS, None),
    };
    let first = command.iter().next().map_or("", |element| element.name());
    args.check_names_with(|field| {
        field == first || fields.contains(&field) || GENERIC_FIELDS.contains(&field)
    })?;
    let flag = |args: &Args<'c>, name| Ok::<_, Error>(args.lenient_boolean(name)?.unwrap_or(false));
    let Some((list, known)) = list else {
        let remove = flag(&args, "remove")?;
        let update = args.value("update");
        if remove != update.is_missing() {
            return Err(Error::failed_to_parse(
                "Either an update or remove=true must be specified",
            ));
        }
        return Ok(ExplainedStatement {
            filter: args.document("query")?.unwrap_or(DocRef::EMPTY),
            update,
            constants: None,
            multi: false,
            upsert: flag(&args, "upsert")?,
            fields: args.document("fields")?.filter(|fields| !fields.is_empty()),
            args,
        });
    };
    let statements = args.array(list)?.ok_or_else(|| args.missing(list))?;
    let mut statements = statements.iter();
    let (Some(ValueRef::Document(only)), None) = (statements.next(), statements.next()) else {
        return Err(Error::new(
            ErrorCode::InvalidLength,
            "explained write batches must be of size 1",
        ));
    };
    let args = Args::new(format!("{name}.{list}"), only);
    args.check_names(known)?;
    let removes = name == "delete";
    if !removes {
        update::check_update(&args, args.value("u"), "u")?;
    }
    Ok(ExplainedStatement {
        filter: args.required_document("q")?,
        update: args.value("u"),
        constants: args.document("c")?,
        multi: match removes {
            true => delete::is_multi(&args)?,
            false => flag(&args, "multi")?,
        },
        upsert: !removes && flag(&args, "upsert")?,
        fields: None,
        args,
    })
}

/// Explains a change of measurements; `None` if the command changes other documents.
pub(crate) fn explained(
    database: &Database,
    operation: &OperationContext,
    name: &str,
    command: DocRef<'_>,
    verbosity: Verbosity,
) -> Result<Option<Document>> {
    let name = match name {
        "update" => "update",
        "delete" => "delete",
        _ => "findAndModify",
    };
    let statement = statement(name, command)?;
    let first = command.iter().next().map(|element| element.value());
    let Some(ValueRef::String(collection)) = first else {
        return Err(Error::failed_to_parse(format!(
            "'{name}' takes the name of a collection"
        )));
    };
    let namespace = Namespace::new(&operation.database, collection)?;
    let WriteTarget::Measurements(buckets) = WriteTarget::of(database.catalog(), &namespace)?
    else {
        return Ok(None);
    };
    let clock = operation.clock();
    let from = clock.monotonic();
    let options = QueryOptions::parse(database, operation, &Args::new("explain", command), None)?;
    let place = StatementContext {
        database,
        operation,
        namespace: &namespace,
        options: &options,
        durability: Durability::Buffered,
        record: None,
    };
    let explained = dry_run(place, &statement, verbosity, &buckets)?;
    let spent = clock.monotonic().saturating_sub(from);
    let millis = i64::try_from(spent.as_millis()).unwrap_or(i64::MAX);
    let executed = (verbosity == Verbosity::ExecutionStats).then_some(millis);
    let explanation = describe(&buckets.namespace, &statement, &explained, executed);
    Ok(Some(with_server(database, &explanation, command)))
}

/// Plans the statement and, unless only the plan is needed, counts the measurements it would change.
fn dry_run(
    place: StatementContext<'_>,
    statement: &ExplainedStatement<'_>,
    verbosity: Verbosity,
    collection: &Arc<Collection>,
) -> Result<DryRun> {
    let (database, namespace) = (place.database, place.namespace);
    let (expressions, variables) = with_constants(place, &statement.args, statement.constants)?;
    let selector = selector(
        database,
        namespace,
        &statement.args,
        statement.filter,
        &expressions,
    )?;
    let update = match statement.removes() {
        true => None,
        false => {
            let filters = statement.args.array("arrayFilters")?;
            let update = Update::parse(statement.update, filters, &expressions)?;
            check_combination(&update, statement.multi, statement.constants.is_some())?;
            Some(update)
        }
    };
    let action = match &update {
        None => ModifyAction::Delete,
        Some(update) => ModifyAction::Update {
            update,
            upsert: statement.upsert,
            supplied: None,
        },
    };
    let planned = place.statement(&selector, statement.multi, action, &variables, &expressions);
    let measurements = Measurements {
        cx: database.collections().modify(),
        collection,
        statement: &planned,
    };
    Ok(DryRun {
        selection: measurements.explain_selection()?,
        input: measurements.plan()?,
        outcome: measurements.explain(verbosity != Verbosity::QueryPlanner)?,
    })
}

/// The plan of a statement, and the counts of its dry run.
struct DryRun {
    selection: ExplainedSelection,
    /// The access to buckets.
    input: BucketInput,
    outcome: Outcome,
}

impl DryRun {
    /// Describes the access to buckets.
    fn input_stage(&self) -> Document {
        if self.selection.range.is_none() {
            return doc! {"stage": "EOF"};
        }
        buckets_read(&self.input, Some(self.selection.bucket_filter.clone()))
    }
}

/// Describes the stage that changes buckets, with `figures` if given.
fn change_stage(statement: &ExplainedStatement<'_>, explained: &DryRun, figures: bool) -> Document {
    let (selection, outcome) = (&explained.selection, &explained.outcome);
    let mut out = DocumentBuilder::new();
    let whole = statement.removes() && outcome.strategy == ModifyStrategy::WholeBuckets;
    out.append("stage", if whole { "BATCHED_DELETE" } else { "TS_MODIFY" });
    if whole {
        if figures {
            out.append("nReturned", 0);
            out.append("nWouldDelete", count_value(outcome.modified.deleted));
        }
    } else {
        out.append("opType", statement.op_type());
        out.append("bucketFilter", selection.bucket_filter.clone());
        out.append("residualFilter", selection.residual_filter.clone());
        if figures {
            append_figures(&mut out, statement, outcome);
        }
    }
    out.append("inputStage", explained.input_stage());
    let stage = out.finish();
    match statement.fields {
        None => stage,
        Some(fields) => doc! {
            "stage": "PROJECTION_DEFAULT",
            "transformBy": fields.to_document(),
            "inputStage": stage,
        },
    }
}

fn append_figures(
    out: &mut DocumentBuilder,
    statement: &ExplainedStatement<'_>,
    outcome: &Outcome,
) {
    let matched = match statement.removes() {
        true => outcome.modified.deleted,
        false => outcome.modified.matched,
    };
    out.append("nReturned", 0);
    out.append("nBucketsUnpacked", count_value(outcome.stats.unpacked));
    out.append("nMeasurementsMatched", count_value(matched));
    if statement.removes() {
        out.append(
            "nMeasurementsDeleted",
            count_value(outcome.modified.deleted),
        );
        return;
    }
    out.append(
        "nMeasurementsUpdated",
        count_value(outcome.modified.modified),
    );
    let upserts = statement.upsert && matched == 0;
    out.append("nMeasurementsUpserted", count_value(u64::from(upserts)));
}

fn describe(
    namespace: &Namespace,
    statement: &ExplainedStatement<'_>,
    explained: &DryRun,
    executed: Option<i64>,
) -> Document {
    let (selection, outcome) = (&explained.selection, &explained.outcome);
    let mut out = DocumentBuilder::new();
    out.append("explainVersion", "1");
    out.append(
        "queryPlanner",
        doc! {
            "namespace": namespace.to_string(),
            "parsedQuery": selection.bucket_filter.clone(),
            "indexFilterSet": false,
            "maxIndexedOrSolutionsReached": false,
            "maxIndexedAndSolutionsReached": false,
            "maxScansToExplodeReached": false,
            "winningPlan": change_stage(statement, explained, false),
            "rejectedPlans": Vec::<nilometer_bson::Value>::new(),
        },
    );
    if let Some(millis) = executed {
        let keys = outcome.examined.keys.load(Ordering::Relaxed);
        let keys = i64::try_from(keys).unwrap_or(i64::MAX);
        out.append(
            "executionStats",
            doc! {
                "executionSuccess": true,
                "nReturned": 0,
                "executionTimeMillis": millis,
                "totalKeysExamined": keys,
                "totalDocsExamined": count_value(outcome.stats.unpacked),
                "executionStages": change_stage(statement, explained, true),
            },
        );
    }
    out.finish()
}

//! `explain` of `update`, `delete` and `findAndModify` on ordinary collections: the access to the documents
//! and a dry run of the change.

use nilometer_bson::{DocRef, Document, Value, ValueRef, doc};
use nilometer_storage::Durability;

use super::change::{StatementContext, eval_context, selector, statement_settings, with_constants};
use super::query::QueryOptions;
use crate::args::Args;
use crate::catalog::Namespace;
use crate::database::Database;
use crate::error::{Error, Result};
use crate::eval::ParseContext;
use crate::modify::{ModifyAction, Selector, WriteTarget};
use crate::operation::OperationContext;
use crate::query::exec::Executor;
use crate::query::exec::build::Builder;
use crate::query::planner::physical::{Input, PhysicalPlan, PhysicalStage};
use crate::write::update::Update;

/// A planned write, to be explained.
pub(crate) struct PlannedWrite {
    pub(crate) namespace: Namespace,
    pub(crate) builder: Builder,
    pub(crate) plan: PhysicalPlan,
    selector: Selector<'static>,
    update: Option<Update>,
    upsert: bool,
    variables: Vec<Value>,
    expressions: ParseContext,
}

/// The stage that changes the found documents, with its figures.
#[derive(Clone, Debug)]
pub(crate) struct WriteStep {
    /// `UPDATE` or `DELETE`.
    pub(crate) name: &'static str,
    /// The counts of the dry run.
    pub(crate) figures: Document,
}

/// The parts of a statement under the names of its command.
struct StatementParts<'a> {
    namespace: Namespace,
    statement: Args<'a>,
    filter: DocRef<'a>,
    update: Option<ValueRef<'a>>,
    multi: bool,
    upsert: bool,
}

/// Plans the only statement of a write.
pub(crate) fn plan(
    database: &Database,
    operation: &OperationContext,
    name: &str,
    command: DocRef<'_>,
) -> Result<PlannedWrite> {
    let parts = parts(operation, name, command)?;
    let args = Args::new(name.to_owned(), command);
    let options = QueryOptions::parse(database, operation, &args, None)?;
    let place = StatementContext {
        database,
        operation,
        namespace: &parts.namespace,
        options: &options,
        durability: Durability::Buffered,
        record: None,
    };
    let constants = match name {
        "update" => parts.statement.document("c")?,
        _ => None,
    };
    let (expressions, variables) = with_constants(place, &parts.statement, constants)?;
    WriteTarget::of(database.catalog(), &parts.namespace)?;
    let selector = selector(
        database,
        &parts.namespace,
        &parts.statement,
        parts.filter,
        &expressions,
    )?;
    let update = match parts.update {
        Some(update) => {
            let filters = parts.statement.array("arrayFilters")?;
            Some(Update::parse(update, filters, &expressions)?)
        }
        None => None,
    };
    let action = match &update {
        None => ModifyAction::Delete,
        Some(update) => ModifyAction::Update {
            update,
            upsert: parts.upsert,
            supplied: None,
        },
    };
    let statement = place.statement(&selector, parts.multi, action, &variables, &expressions);
    let settings = statement_settings(database, &statement);
    let planned = statement.plan(&database.queries().collections, settings)?;
    let (builder, mut plan) = match planned {
        Some(planned) => planned,
        None => nothing(database, operation, &parts.namespace)?,
    };
    if !parts.multi {
        plan.stages.push(PhysicalStage::Limit(1));
        if let Input::Records(input) = &mut plan.input {
            input.limit = (plan.stages.len() == 1).then_some(1);
        }
    }
    Ok(PlannedWrite {
        namespace: parts.namespace,
        builder,
        plan,
        selector,
        update,
        upsert: parts.upsert,
        variables,
        expressions,
    })
}

/// Returns the plan over a collection that does not exist.
fn nothing(
    database: &Database,
    operation: &OperationContext,
    namespace: &Namespace,
) -> Result<(Builder, PhysicalPlan)> {
    let none = Args::new("explain", DocRef::EMPTY);
    super::query::plan(
        database,
        operation,
        &QueryOptions::parse(database, operation, &none, None)?,
        Some(&namespace.collection),
        Vec::new(),
        crate::query::pipeline::needs::Needs::All.into(),
        |_| Ok(()),
    )
}

fn parts<'a>(
    operation: &OperationContext,
    name: &str,
    command: DocRef<'a>,
) -> Result<StatementParts<'a>> {
    let args = Args::new(name.to_owned(), command);
    let namespace = Namespace::new(&operation.database, args.required_string(name)?)?;
    let flag = |args: &Args<'_>, name| Ok::<_, Error>(args.lenient_boolean(name)?.unwrap_or(false));
    if !matches!(name, "update" | "delete") {
        let remove = flag(&args, "remove")?;
        return Ok(StatementParts {
            namespace,
            filter: args.document("query")?.unwrap_or(DocRef::EMPTY),
            update: (!remove).then(|| args.value("update")),
            multi: false,
            upsert: flag(&args, "upsert")?,
            statement: args,
        });
    }
    let list = args.required_array(if name == "update" {
        "updates"
    } else {
        "deletes"
    })?;
    let mut statements = list.iter();
    let (Some(ValueRef::Document(only)), None) = (statements.next(), statements.next()) else {
        return Err(Error::new(
            crate::error::ErrorCode::InvalidLength,
            "explained write batches must be of size 1",
        ));
    };
    let statement = Args::new(format!("{name}.{name}s"), only);
    let filter = statement.required_document("q")?;
    Ok(if name == "update" {
        StatementParts {
            namespace,
            filter,
            update: Some(statement.value("u")),
            multi: flag(&statement, "multi")?,
            upsert: flag(&statement, "upsert")?,
            statement,
        }
    } else {
        StatementParts {
            namespace,
            filter,
            update: None,
            multi: statement.integer("limit")? == Some(0),
            upsert: false,
            statement,
        }
    })
}

impl PlannedWrite {
    /// Returns the stage without figures.
    pub(crate) fn step(&self) -> WriteStep {
        WriteStep {
            name: match self.update {
                Some(_) => "UPDATE",
                None => "DELETE",
            },
            figures: Document::new(),
        }
    }

    /// Runs the dry run over the documents of `executor`; returns the stage with its figures, and the number
    /// of documents.
    pub(crate) fn run(
        &self,
        database: &Database,
        operation: &OperationContext,
        executor: &mut Executor,
    ) -> Result<(WriteStep, u64)> {
        let eval = eval_context(database, operation, &self.variables, &self.expressions);
        let (mut matched, mut modified) = (0u64, 0u64);
        while let Some(rows) = executor.next_rows(operation)? {
            for row in rows {
                matched += 1;
                if let Some(update) = &self.update {
                    let filter = &self.selector.filter;
                    let (_, position) = filter.matches_with_position(row.as_ref(), &eval)?;
                    let after = update.apply(row.as_ref(), position, &eval)?;
                    modified += u64::from(after.is_some());
                }
            }
        }
        let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        let mut step = self.step();
        step.figures = match self.update {
            Some(_) => doc! {
                "nMatched": number(matched),
                "nWouldModify": number(modified),
                "nWouldUpsert": i64::from(self.upsert && matched == 0),
            },
            None => doc! {"nWouldDelete": number(matched)},
        };
        Ok((step, matched))
    }
}

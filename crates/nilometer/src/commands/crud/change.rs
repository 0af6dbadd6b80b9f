//! The parts that `update`, `delete`, `findAndModify` and `bulkWrite` share: from the options of a
//! statement to a [`ModifyStatement`], the batch of statements of a command, and their errors.

use std::borrow::Cow;

use nilometer_bson::order::Collator;
use nilometer_bson::{Array, DocRef, Document, DocumentBuilder, Value, ValueRef};
use nilometer_storage::Durability;

use super::find::natural_direction_of;
use super::insert::{write_batch, write_error};
use super::query::{QueryOptions, default_collation, given_collation};
use crate::args::Args;
use crate::catalog::Namespace;
use crate::commands::cursor_reply::settings;
use crate::database::Database;
use crate::error::{Error, Result};
use crate::eval::matcher::MatchExpression;
use crate::eval::projection::MetaField;
use crate::eval::sort_key::SortPattern;
use crate::eval::{Collation, EvalContext, ParseContext};
use crate::insertion::BatchRecord;
use crate::modify::{ModifyAction, ModifyStatement, Selector, StatementHint};
use crate::operation::{Documents, OperationContext, Request};
use crate::query::exec::ExecSettings;
use crate::query::planner::access::hint::{self, Hint};
use crate::query::planner::text;
use crate::query::source::{Collections, Direction, Resolved};

/// The command of a statement, and the collection it is for.
#[derive(Clone, Copy)]
pub(crate) struct StatementContext<'a> {
    pub(crate) database: &'a Database,
    pub(crate) operation: &'a OperationContext,
    pub(crate) namespace: &'a Namespace,
    pub(crate) options: &'a QueryOptions,
    pub(crate) durability: Durability,
    /// What is stored beside the change, if the statement may be repeated.
    pub(crate) record: Option<&'a dyn BatchRecord>,
}

impl<'a> StatementContext<'a> {
    /// Returns the statement, not yet planned.
    pub(crate) fn statement(
        self,
        selector: &'a Selector<'a>,
        multi: bool,
        action: ModifyAction<'a>,
        variables: &'a [Value],
        expressions: &'a ParseContext,
    ) -> ModifyStatement<'a> {
        ModifyStatement {
            operation: self.operation,
            namespace: self.namespace,
            selector,
            multi,
            action,
            eval: eval_context(self.database, self.operation, variables, expressions),
            collator: expressions.collator(),
            durability: self.durability,
            record: self.record,
            guard: None,
            candidates: None,
        }
    }

    /// Looks for an index that leads to the documents of the statement.
    pub(crate) fn find_candidates(self, statement: &mut ModifyStatement<'_>) -> Result<()> {
        let settings = statement_settings(self.database, statement);
        statement.find_candidates(&self.database.queries().collections, settings)
    }
}

/// Returns the settings of the query that finds the documents of a statement.
pub(crate) fn statement_settings(
    database: &Database,
    statement: &ModifyStatement<'_>,
) -> ExecSettings {
    settings(
        database,
        statement.operation,
        statement.eval.variables.into(),
        Some(false),
        &Collation::from(statement.collator.cloned()),
    )
}

/// Parses `sort` and `hint` of a statement, and its filter.
pub(crate) fn selector(
    database: &Database,
    namespace: &Namespace,
    statement: &Args<'_>,
    filter: DocRef<'_>,
    expressions: &ParseContext,
) -> Result<Selector<'static>> {
    let mut hint = hint_of(database, namespace, statement.value("hint"))?;
    let mut sort = None;
    if let Some(pattern) = statement.document("sort")?.filter(|d| !d.is_empty()) {
        match natural_direction_of(pattern)? {
            Some(direction) => hint.natural = Some(direction),
            None => {
                let bad = |e: Error| Error::bad_value(e.message);
                sort = Some(SortPattern::parse(pattern, expressions).map_err(bad)?);
            }
        }
    }
    let filter = MatchExpression::parse_with_text(filter, expressions)?.simplify();
    let filter = with_text(database, namespace, filter, &hint)?;
    if let Some(pattern) = sort.take_if(|pattern: &mut SortPattern| pattern.reads_text_score()) {
        let test = filter.text();
        let test = test.ok_or_else(|| MetaField::TextScore.unavailable())?;
        sort = Some(pattern.scoring(test));
    }
    Ok(Selector {
        filter: Cow::Owned(filter),
        sort,
        hint,
    })
}

/// Puts the `$text` of a filter in the words of the collection's text index.
fn with_text(
    database: &Database,
    namespace: &Namespace,
    filter: MatchExpression,
    hint: &StatementHint,
) -> Result<MatchExpression> {
    if filter.text().is_none() {
        return Ok(filter);
    }
    let collections = database.collections();
    let source = match collections.resolve(&namespace.database, &namespace.collection)? {
        Resolved::Ordinary(source) => Some(source),
        _ => None,
    };
    let is_hinted = hint.natural.is_some() || hint.index.is_some() || hint.bucket_index.is_some();
    text::settle_filter(filter, source.as_deref(), is_hinted)
}

/// Resolves a hint; refuses one that names no index.
fn hint_of(
    database: &Database,
    namespace: &Namespace,
    hint: ValueRef<'_>,
) -> Result<StatementHint> {
    match hint {
        ValueRef::Missing | ValueRef::Null => return Ok(StatementHint::default()),
        ValueRef::Document(document) if document.is_empty() => return Ok(StatementHint::default()),
        ValueRef::Document(document) => {
            if let Some(direction) = natural_direction_of(document)? {
                return Ok(StatementHint {
                    natural: Some(direction),
                    ..StatementHint::default()
                });
            }
        }
        ValueRef::String(_) => {}
        _ => return Err(Error::failed_to_parse("Hint must be a string or an object")),
    }
    let collections = database.collections();
    let source = match collections.resolve(&namespace.database, &namespace.collection)? {
        Resolved::Ordinary(source) => source,
        Resolved::TimeSeries(source) => match source.hinted(hint)? {
            Some(index) => {
                return Ok(StatementHint {
                    bucket_index: Some(index),
                    ..StatementHint::default()
                });
            }
            None => return Err(hint::unknown()),
        },
        // There are no documents.
        _ => return Ok(StatementHint::default()),
    };
    if source.is_clustered() && source.knows_index(hint) {
        Ok(StatementHint {
            natural: Some(Direction::Forward),
            ..StatementHint::default()
        })
    } else if source.view()?.is_some() {
        let hint = Hint::of(hint);
        if let Some(hint) = &hint {
            hint.find(&source.all_indexes()?)?;
        }
        Ok(StatementHint {
            index: hint,
            ..StatementHint::default()
        })
    } else if source.knows_index(hint) {
        Ok(StatementHint::default())
    } else {
        Err(hint::unknown())
    }
}

/// Returns the context of expressions during the command.
pub(crate) fn eval_context<'a>(
    database: &'a Database,
    operation: &'a OperationContext,
    variables: &'a [Value],
    expressions: &'a ParseContext,
) -> EvalContext<'a> {
    EvalContext {
        now_ms: operation.now_ms,
        variables,
        collator: expressions.collator().map(|c| &**c as &dyn Collator),
        random: Some(&*database.queries().ids),
        limits: Some(operation.evaluation_limits()),
        ..EvalContext::default()
    }
}

/// Returns the durability of a change: it waits for the disk if it is the only one of its command and the
/// client requires it.
pub(crate) fn durability(operation: &OperationContext, only_one: bool) -> Durability {
    if only_one && waits_for_disk(operation) {
        Durability::Sync
    } else {
        Durability::Buffered
    }
}

/// Waits for the disk after many changes, if the client requires it.
pub(crate) fn make_durable(database: &Database, operation: &OperationContext) -> Result<()> {
    if waits_for_disk(operation) {
        database.records().sync()?;
    }
    Ok(())
}

fn waits_for_disk(operation: &OperationContext) -> bool {
    operation.write_concern.journaled && operation.write_concern.acknowledged
}

/// The statements of a command, and the options of all of them.
pub(crate) struct Statements<'r> {
    pub(crate) namespace: Namespace,
    pub(crate) options: QueryOptions,
    pub(crate) documents: Documents<'r>,
    ordered: bool,
}

impl<'r> Statements<'r> {
    /// Parses the options of `command` and checks the field names of its statements, which are in the field
    /// `field`.
    pub(crate) fn parse(
        command: &'static str,
        field: &str,
        known: &[&str],
        database: &Database,
        operation: &OperationContext,
        request: &'r Request,
    ) -> Result<Self> {
        let args = Args::new(command, request.body.as_ref());
        let namespace = Namespace::new(&operation.database, args.required_string(command)?)?;
        let ordered = args.boolean("ordered")?.unwrap_or(true);
        let documents = write_batch(request, &args, field)?;
        for document in documents.clone() {
            Args::new(format!("{command}.{field}"), document).check_names(known)?;
        }
        Ok(Self {
            namespace,
            options: QueryOptions::parse(database, operation, &args, None)?,
            documents,
            ordered,
        })
    }

    /// True if the command is one statement that changes one document at most, by `is_multi`.
    pub(crate) fn is_one_change(&self, is_multi: impl Fn(&Args<'_>) -> bool) -> bool {
        let mut documents = self.documents.clone();
        match (documents.next(), documents.next()) {
            (Some(only), None) => !is_multi(&Args::new("", only)),
            _ => false,
        }
    }

    /// Returns what a statement needs of its command. `only_one` is as [`Self::is_one_change`] says.
    pub(crate) fn context<'a>(
        &'a self,
        database: &'a Database,
        operation: &'a OperationContext,
        only_one: bool,
        record: Option<&'a dyn BatchRecord>,
    ) -> StatementContext<'a> {
        StatementContext {
            database,
            operation,
            namespace: &self.namespace,
            options: &self.options,
            durability: durability(operation, only_one),
            record,
        }
    }

    /// Runs the statements in order; each failure becomes an entry of `writeErrors`, and the first one ends
    /// an ordered command.
    pub(crate) fn run(
        &self,
        mut statement: impl FnMut(usize, DocRef<'_>) -> Result<()>,
    ) -> Result<Vec<Value>> {
        let mut errors = Vec::new();
        for (index, document) in self.documents.clone().enumerate() {
            if let Err(error) = statement(index, document) {
                if error.is_of_command() {
                    return Err(error);
                }
                errors.push(write_error(index, &error));
                if self.ordered {
                    break;
                }
            }
        }
        Ok(errors)
    }
}

/// Appends `writeErrors` to a reply, if there are any.
pub(crate) fn append_errors(reply: &mut DocumentBuilder, errors: Vec<Value>) {
    if !errors.is_empty() {
        reply.append(
            "writeErrors",
            Value::Array(errors.into_iter().collect::<Array>()),
        );
    }
}

/// Returns a count in the type of replies: int32 if it fits.
pub(crate) fn count_value(count: u64) -> Value {
    match i32::try_from(count) {
        Ok(count) => Value::Int32(count),
        Err(_) => Value::Int64(i64::try_from(count).unwrap_or(i64::MAX)),
    }
}

/// Returns the variables of a statement, under its collation or else the collection's.
pub(crate) fn expressions_of(
    place: StatementContext<'_>,
    statement: &Args<'_>,
) -> Result<ParseContext> {
    let Namespace {
        database,
        collection,
    } = place.namespace;
    let collation = match given_collation(statement)? {
        Some(given) => given,
        None => default_collation(place.database, database, collection)?,
    };
    let expressions = place.options.expressions.clone();
    Ok(expressions.with_collator(collation.shared()))
}

/// Adds the constants of a statement (`c`) to the variables of the command.
pub(crate) fn with_constants(
    place: StatementContext<'_>,
    statement: &Args<'_>,
    constants: Option<DocRef<'_>>,
) -> Result<(ParseContext, Vec<Value>)> {
    let mut expressions = expressions_of(place, statement)?;
    let options = place.options;
    let mut variables = options.variables.to_vec();
    for element in constants.into_iter().flatten() {
        crate::eval::variables::check_user_name(element.name())?;
        expressions.define(element.name());
        variables.push(element.value().to_value());
    }
    Ok((expressions, variables))
}

/// Returns the entries of `upserted`.
pub(crate) fn upserted(list: Vec<(usize, Value)>) -> Vec<Document> {
    let entries = list.into_iter().map(|(index, id)| {
        let mut entry = DocumentBuilder::new();
        entry.append("index", i32::try_from(index).unwrap_or(i32::MAX));
        entry.append("_id", id);
        entry.finish()
    });
    entries.collect()
}

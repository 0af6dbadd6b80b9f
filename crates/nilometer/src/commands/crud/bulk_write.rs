//! `bulkWrite`: inserts, updates and deletes over several collections in one command, with a cursor over
//! their results.
//!
//! ```text
//! nsInfo: [{ns: "db.a"}, {ns: "db.b"}]
//! ops:    [{insert: 0, document: …}, {update: 1, filter: …, updateMods: …}, {delete: 0, filter: …}]
//!                    └── position in nsInfo
//! ```
//!
//! Consecutive inserts into one collection are one batch. If the order does not matter and the command cannot be repeated,
//! consecutive inserts into all time series are one ([`Bulk::measurements`]).

use std::collections::HashMap;
use std::sync::Arc;

use nilometer_bson::{DocRef, Document, DocumentBuilder, Value};
use nilometer_storage::Durability;

use super::change::{StatementContext, count_value, make_durable};
use super::insert::{buckets, insert_measurements, write_batch};
use super::query;
use super::query::{PlannedQuery, QueryOptions, open_cursor};
use super::retryable::{append_retried, refuse_many};
use super::update::Names;
use super::{delete, retryable, update};
use crate::args::Args;
use crate::catalog::{Collection, Namespace};
use crate::commands::cursor_reply::FirstBatch;
use crate::commands::ddl::collection_uuid;
use crate::commands::generic::RAW_DATA;
use crate::commands::security::authorization::rules;
use crate::commands::{
    Access, Authorization, CommandContext, CommandSpec, Fields, OnRouter, OperationCounter,
};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::insertion::BatchRecord;
use crate::operation::{OperationContext, Request};
use crate::query::pipeline::given_documents;
use crate::query::pipeline::needs::Needs;
use crate::retryable_writes::{RetryableCommand, StatementKind};
use crate::services::LatencyClass;

pub(crate) const SPEC: CommandSpec = CommandSpec {
    admin_only: true,
    access: Access::Write,
    latency: LatencyClass::Write,
    takes_memory: true,
    write_concern: true,
    in_api_v1: true,
    retryable: true,
    // Each operation is counted separately, like the command it corresponds to.
    counted: OperationCounter::Update,
    fields: Fields::Only(&[
        "ops",
        "nsInfo",
        "ordered",
        "bypassDocumentValidation",
        "bypassEmptyTsReplacement",
        "let",
        "errorsOnly",
        "cursor",
        RAW_DATA,
    ]),
    ..CommandSpec::new(
        "bulkWrite",
        "Inserts, updates and deletes in several collections.",
        Authorization::ByRule(rules::bulk_write),
        OnRouter::Own,
        run,
    )
};

const INSERT: &[&str] = &["insert", "document"];
const UPDATE: &[&str] = &[
    "update",
    "filter",
    "updateMods",
    "multi",
    "upsert",
    "upsertSupplied",
    "arrayFilters",
    "collation",
    "constants",
    "hint",
    "sort",
];
const DELETE: &[&str] = &["delete", "filter", "multi", "collation", "hint"];

const UPDATE_NAMES: Names = Names {
    filter: "filter",
    update: "updateMods",
    constants: "constants",
};

/// The kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpKind {
    Insert,
    Update,
    Delete,
}

/// An operation with checked field names.
pub(crate) struct Op<'r> {
    pub(crate) kind: OpKind,
    /// Position in `nsInfo`.
    pub(crate) namespace: usize,
    pub(crate) document: DocRef<'r>,
    /// The document that an insert inserts.
    pub(crate) inserted: Option<DocRef<'r>>,
    args: Args<'r>,
}

/// The inserts of a run into one time series.
struct SeriesInsert<'o> {
    collection: Arc<Collection>,
    /// Positions in the run.
    positions: Vec<usize>,
    /// One for each position.
    documents: Vec<DocRef<'o>>,
}

/// The result of one operation.
#[derive(Default)]
pub(crate) struct OpResult {
    pub(crate) n: u64,
    pub(crate) modified: Option<u64>,
    pub(crate) upserted: Option<Value>,
    /// True if it ran before.
    pub(crate) was_retried: bool,
    pub(crate) error: Option<Error>,
}

#[derive(Default)]
struct Totals {
    errors: u64,
    inserted: u64,
    matched: u64,
    modified: u64,
    upserted: u64,
    deleted: u64,
}

/// The state of a running command.
pub(crate) struct Bulk<'r> {
    pub(crate) database: &'r Database,
    pub(crate) operation: &'r OperationContext,
    pub(crate) namespaces: Vec<Namespace>,
    pub(crate) ops: Vec<Op<'r>>,
    pub(crate) options: QueryOptions,
    pub(crate) ordered: bool,
    errors_only: bool,
    retryable: Option<RetryableCommand<'r>>,
    totals: Totals,
    results: Vec<Document>,
    /// Positions of the operations that ran before.
    retried: Vec<usize>,
}

fn run(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let operation = &context.operation;
    run_by(database, operation, request, |bulk| {
        bulk.retryable = retryable::begin(database, operation)?;
        bulk.perform()?;
        make_durable(database, operation)
    })
}

/// Checks the command, lets `perform` run its operations, and returns the reply.
pub(crate) fn run_by<'r>(
    database: &'r Database,
    operation: &'r OperationContext,
    request: &'r Request,
    perform: impl FnOnce(&mut Bulk<'r>) -> Result<()>,
) -> Result<Document> {
    let args = Args::new("bulkWrite", request.body.as_ref());
    let namespaces = namespaces(database, &args, request)?;
    let ops = ops(&args, request, namespaces.len())?;
    let batch_size = match args.nested("cursor", &["batchSize"])? {
        Some(cursor) => cursor.integer_at_least("batchSize", 0)?,
        None => None,
    };
    let mut bulk = Bulk {
        database,
        operation,
        namespaces,
        ops,
        options: QueryOptions::parse(database, operation, &args, None)?,
        ordered: args.boolean("ordered")?.unwrap_or(true),
        errors_only: args.boolean("errorsOnly")?.unwrap_or(false),
        retryable: None,
        totals: Totals::default(),
        results: Vec::new(),
        retried: Vec::new(),
    };
    for op in &bulk.ops {
        let many = op.kind != OpKind::Insert && op.args.lenient_boolean("multi")? == Some(true);
        refuse_many(operation, many, "multi=true")?;
    }
    perform(&mut bulk)?;
    let (totals, results) = (bulk.totals, bulk.results);
    let mut out = reply(database, operation, totals, results, batch_size, request)?;
    append_retried(&mut out, &bulk.retried);
    Ok(out.finish())
}

fn namespaces(stored: &Database, args: &Args<'_>, request: &Request) -> Result<Vec<Namespace>> {
    let infos = request
        .documents("bulkWrite", "nsInfo")?
        .ok_or_else(|| args.missing("nsInfo"))?;
    let mut out: Vec<Namespace> = Vec::new();
    for info in infos {
        let info = Args::new("bulkWrite.nsInfo", info);
        info.check_names(&["ns", collection_uuid::NAME])?;
        let name = info.required_string("ns")?;
        let (database, collection) = name.split_once('.').ok_or_else(|| {
            Error::new(
                ErrorCode::InvalidNamespace,
                format!("Invalid namespace specified '{name}'"),
            )
        })?;
        let namespace = Namespace::new(database, collection)?;
        collection_uuid::check(stored, &info, &namespace)?;
        out.push(namespace);
    }
    Ok(out)
}

fn ops<'r>(args: &Args<'_>, request: &'r Request, namespaces: usize) -> Result<Vec<Op<'r>>> {
    let documents = write_batch(request, args, "ops")?;
    let mut ops = Vec::with_capacity(documents.remaining());
    for document in documents {
        ops.push(op(document, namespaces)?);
    }
    Ok(ops)
}

/// Bytes of an insert before the position of its namespace, after its length: type and name.
const INSERT_HEAD: &[u8] = b"\x10insert\0";

/// Bytes of an insert behind that position.
const DOCUMENT_HEAD: &[u8] = b"\x03document\0";

/// Returns an insert in the form in which drivers write it: `{insert: <int32>, document: {…}}`. Others are parsed field by field.
fn plain_insert(document: DocRef<'_>, namespaces: usize) -> Option<Op<'_>> {
    let (_, rest) = document.as_bytes().split_first_chunk::<4>()?;
    let (namespace, rest) = rest.strip_prefix(INSERT_HEAD)?.split_first_chunk::<4>()?;
    let [inserted @ .., 0] = rest.strip_prefix(DOCUMENT_HEAD)? else {
        return None;
    };
    let inserted =
        DocRef::new(inserted).filter(|found| found.as_bytes().len() == inserted.len())?;
    let namespace = usize::try_from(i32::from_le_bytes(*namespace)).ok()?;
    (namespace < namespaces).then_some(Op {
        kind: OpKind::Insert,
        namespace,
        document,
        inserted: Some(inserted),
        args: Args::new("bulkWrite.ops", document),
    })
}

fn op(document: DocRef<'_>, namespaces: usize) -> Result<Op<'_>> {
    match plain_insert(document, namespaces) {
        Some(insert) => Ok(insert),
        None => op_by_fields(document, namespaces),
    }
}

fn op_by_fields(document: DocRef<'_>, namespaces: usize) -> Result<Op<'_>> {
    let name = document.iter().next().map_or("", |first| first.name());
    let (kind, known) = match name {
        "insert" => (OpKind::Insert, INSERT),
        "update" => (OpKind::Update, UPDATE),
        "delete" => (OpKind::Delete, DELETE),
        other => {
            return Err(Error::new(
                ErrorCode::BadValue,
                format!("Unrecognized op type in bulkWrite: '{other}'"),
            ));
        }
    };
    let args = Args::new("bulkWrite.ops", document);
    args.check_names(known)?;
    let namespace = args.integer(name)?.ok_or_else(|| args.missing(name))?;
    let namespace = usize::try_from(namespace)
        .ok()
        .filter(|at| *at < namespaces)
        .ok_or_else(|| {
            Error::bad_value(format!(
                "BulkWrite ops entry {name} has an invalid nsInfo index: {namespace}"
            ))
        })?;
    let mut inserted = None;
    match kind {
        OpKind::Insert => inserted = Some(args.required_document("document")?),
        OpKind::Update => {
            args.required_document("filter")?;
            update::check_update(&args, args.value("updateMods"), "updateMods")?;
        }
        OpKind::Delete => {
            args.required_document("filter")?;
        }
    }
    Ok(Op {
        kind,
        namespace,
        document,
        inserted,
        args,
    })
}

impl Bulk<'_> {
    fn perform(&mut self) -> Result<()> {
        let mut at = 0;
        while let Some(op) = self.ops.get(at) {
            let (outcomes, failed) = match op.kind {
                OpKind::Insert => match self.measurements(at) {
                    Some((count, errors)) => {
                        self.record_inserts(at..at + count, errors)?;
                        at += count;
                        continue;
                    }
                    None => self.inserts(at),
                },
                OpKind::Update | OpKind::Delete => self.change(at, op),
            };
            for outcome in outcomes {
                if let Some(error) = outcome.error.as_ref().filter(|error| error.is_of_command()) {
                    return Err(error.clone());
                }
                self.record(at, outcome);
                at += 1;
            }
            if failed && self.ordered {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Inserts the run of inserts at `at` into one collection; true if one failed.
    fn inserts(&self, at: usize) -> (Vec<OpResult>, bool) {
        let rest = self.ops.get(at..).unwrap_or_default();
        let namespace = rest.first().map_or(0, |op| op.namespace);
        let together = rest
            .iter()
            .take_while(|op| op.kind == OpKind::Insert && op.namespace == namespace)
            .count();
        let group = || rest.iter().take(together);
        let documents = group().filter_map(|op| op.inserted);
        let counters = &self.database.services().counters.operations;
        counters.insert.add(u64::try_from(together).unwrap_or(0));
        let inserted = self
            .namespaces
            .get(namespace)
            .ok_or_else(|| Error::bad_value("no such namespace"))
            .and_then(|namespace| {
                // The command waits for the disk once, at its end.
                let place = (self.database, self.operation, Durability::Buffered);
                let retryable = self.retryable.as_ref().map(|command| (command, at));
                retryable::insert(place, namespace, documents, self.ordered, retryable)
            });
        let fine = || OpResult {
            n: 1,
            ..OpResult::default()
        };
        let mut outcomes: Vec<OpResult> = group().map(|_| fine()).collect();
        let (errors, retried) = match inserted {
            Ok(inserted) => (inserted.errors, inserted.retried),
            Err(error) => {
                let errors = (0..together).map(|at| (at, error.clone()));
                (errors.collect(), Vec::new())
            }
        };
        for index in retried {
            if let Some(outcome) = outcomes.get_mut(index) {
                outcome.was_retried = true;
            }
        }
        let failed = !errors.is_empty();
        if self.ordered
            && let Some((first, _)) = errors.first()
        {
            outcomes.truncate(*first + 1);
        }
        for (index, error) in errors {
            if let Some(outcome) = outcomes.get_mut(index) {
                *outcome = OpResult {
                    error: Some(error),
                    ..OpResult::default()
                };
            }
        }
        (outcomes, failed)
    }

    /// Inserts the run of inserts at `at` into time series with one engine batch. `None` if each collection is to have its own:
    /// because the first that fails ends the command, because what is stored for a repetition belongs to one collection, or
    /// because there is only one. Returns the number of inserts, and those that failed, by their positions in the run.
    fn measurements(&self, at: usize) -> Option<(usize, HashMap<usize, Error>)> {
        if self.ordered || self.retryable.is_some() {
            return None;
        }
        let rest = self.ops.get(at..).unwrap_or_default();
        let inserts = self.by_series_collection(rest);
        if inserts.len() < 2 {
            return None;
        }
        let count = inserts.iter().map(|insert| insert.positions.len()).sum();
        let counters = &self.database.services().counters.operations;
        counters.insert.add(u64::try_from(count).unwrap_or(0));
        let documents: Vec<_> = inserts
            .iter()
            .map(|insert| (insert.collection.clone(), insert.documents.iter().copied()))
            .collect();
        let inserted = insert_measurements((self.database, self.operation), &documents);
        let mut failed = HashMap::new();
        for (SeriesInsert { positions, .. }, inserted) in inserts.iter().zip(inserted) {
            let errors = match inserted {
                Ok((_, errors)) => errors,
                Err(error) => (0..positions.len()).map(|at| (at, error.clone())).collect(),
            };
            failed.extend(errors.into_iter().map(|(at, error)| (positions[at], error)));
        }
        Some((count, failed))
    }

    /// Counts inserts, of which these failed, by their positions within the range.
    fn record_inserts(
        &mut self,
        range: std::ops::Range<usize>,
        mut errors: HashMap<usize, Error>,
    ) -> Result<()> {
        if errors.is_empty() && self.errors_only {
            self.totals.inserted += range.len() as u64;
            return Ok(());
        }
        for (number, at) in range.enumerate() {
            let error = errors.remove(&number);
            if let Some(error) = error.as_ref().filter(|error| error.is_of_command()) {
                return Err(error.clone());
            }
            let n = u64::from(error.is_none());
            let outcome = OpResult {
                n,
                error,
                ..OpResult::default()
            };
            self.record(at, outcome);
        }
        Ok(())
    }

    /// Returns the inserts that `ops` begins with, up to the first that is not into a time series, by their collections.
    fn by_series_collection<'o>(&self, ops: &[Op<'o>]) -> Vec<SeriesInsert<'o>> {
        let mut places: Vec<Option<usize>> = vec![None; self.namespaces.len()];
        let mut by_uuid: HashMap<[u8; 16], usize> = HashMap::new();
        let mut inserts: Vec<SeriesInsert<'o>> = Vec::new();
        for (position, op) in ops.iter().enumerate() {
            let Some(document) = op.inserted else { break };
            let place = match places[op.namespace] {
                Some(place) => place,
                None => {
                    let namespace = &self.namespaces[op.namespace];
                    let Some((collection, false)) = buckets(self.database, namespace) else {
                        break;
                    };
                    // Two entries of nsInfo may have one name.
                    let place = *by_uuid.entry(collection.uuid).or_insert(inserts.len());
                    if place == inserts.len() {
                        inserts.push(SeriesInsert {
                            collection,
                            positions: Vec::new(),
                            documents: Vec::new(),
                        });
                    }
                    *places[op.namespace].insert(place)
                }
            };
            let insert = &mut inserts[place];
            insert.positions.push(position);
            insert.documents.push(document);
        }
        inserts
    }

    fn place<'b>(
        &'b self,
        op: &Op<'_>,
        record: Option<&'b dyn BatchRecord>,
    ) -> Result<StatementContext<'b>> {
        let namespace = self.namespaces.get(op.namespace);
        Ok(StatementContext {
            database: self.database,
            operation: self.operation,
            namespace: namespace.ok_or_else(|| Error::bad_value("no such namespace"))?,
            options: &self.options,
            durability: Durability::Buffered,
            record,
        })
    }

    /// Runs an update or a delete in the collections of this database; true if it failed.
    pub(crate) fn change(&self, at: usize, op: &Op<'_>) -> (Vec<OpResult>, bool) {
        single(match op.kind {
            OpKind::Delete => self.delete(at, op),
            _ => self.update(at, op),
        })
    }

    fn update(&self, at: usize, op: &Op<'_>) -> Result<OpResult> {
        let counters = &self.database.services().counters.operations;
        counters.update.increment();
        let number = (at, StatementKind::Update);
        let retryable = self.retryable.as_ref();
        let run_by = (self.database, self.operation);
        let (updated, was_retried) = retryable::statement(run_by, retryable, number, |record| {
            update::one(self.place(op, record)?, &op.args, &UPDATE_NAMES)
        })?;
        Ok(OpResult {
            n: updated.matched + u64::from(updated.upserted.is_some()),
            modified: Some(updated.modified),
            upserted: updated.upserted,
            was_retried,
            error: None,
        })
    }

    fn delete(&self, at: usize, op: &Op<'_>) -> Result<OpResult> {
        let counters = &self.database.services().counters.operations;
        counters.delete.increment();
        let filter = op.args.required_document("filter")?;
        let multi = op.args.lenient_boolean("multi")?.unwrap_or(false);
        let number = (at, StatementKind::Delete);
        let retryable = self.retryable.as_ref();
        let run_by = (self.database, self.operation);
        let (removed, was_retried) = retryable::statement(run_by, retryable, number, |record| {
            delete::one(self.place(op, record)?, &op.args, filter, multi)
        })?;
        Ok(OpResult {
            n: removed.deleted,
            was_retried,
            ..OpResult::default()
        })
    }

    /// Counts a result and appends its entry to the cursor. Results come in the order of the operations.
    pub(crate) fn record(&mut self, at: usize, outcome: OpResult) {
        let Some(op) = self.ops.get(at) else { return };
        if outcome.was_retried {
            self.retried.push(at);
        }
        let totals = &mut self.totals;
        match (&outcome.error, op.kind) {
            (Some(_), _) => totals.errors += 1,
            (None, OpKind::Insert) => totals.inserted += outcome.n,
            (None, OpKind::Delete) => totals.deleted += outcome.n,
            (None, OpKind::Update) => {
                let upserted = u64::from(outcome.upserted.is_some());
                totals.matched += outcome.n - upserted;
                totals.modified += outcome.modified.unwrap_or(0);
                totals.upserted += upserted;
            }
        }
        if self.errors_only && outcome.error.is_none() {
            return;
        }
        let mut out = DocumentBuilder::new();
        out.append("ok", if outcome.error.is_some() { 0.0 } else { 1.0 });
        out.append("idx", i32::try_from(at).unwrap_or(i32::MAX));
        if let Some(error) = &outcome.error {
            out.append("code", error.code.0);
            out.append("errmsg", error.message.as_str());
            for element in error.details.iter().flat_map(Document::iter) {
                out.append_element(element);
            }
        }
        out.append("n", count_value(outcome.n));
        if op.kind == OpKind::Update {
            out.append("nModified", count_value(outcome.modified.unwrap_or(0)));
        }
        if let Some(id) = outcome.upserted {
            out.begin_document("upserted");
            out.append("_id", id);
            out.end();
        }
        self.results.push(out.finish());
    }
}

fn single(outcome: Result<OpResult>) -> (Vec<OpResult>, bool) {
    let outcome = outcome.unwrap_or_else(|error| OpResult {
        error: Some(error),
        ..OpResult::default()
    });
    let failed = outcome.error.is_some();
    (vec![outcome], failed)
}

/// `{cursor, nErrors, nInserted, …}`.
fn reply(
    database: &Database,
    operation: &OperationContext,
    totals: Totals,
    results: Vec<Document>,
    batch_size: Option<i64>,
    request: &Request,
) -> Result<DocumentBuilder> {
    let none = Args::new("bulkWrite", DocRef::EMPTY);
    let (builder, plan) = query::plan(
        database,
        operation,
        &QueryOptions::parse(database, operation, &none, None)?,
        None,
        vec![given_documents(results)],
        Needs::All.into(),
        |_| Ok(()),
    )?;
    let planned = PlannedQuery {
        namespace: "admin.$cmd.bulkWrite".to_owned(),
        builder,
        plan,
    };
    // All that fit into a reply.
    let first = FirstBatch::of(batch_size.map_or(u64::MAX, |n| u64::try_from(n).unwrap_or(0)));
    let cursor = open_cursor(database, operation, planned, first, &request.body)?;
    let mut out = DocumentBuilder::with_capacity(cursor.as_bytes().len() + 128);
    for element in cursor.iter() {
        out.append_element(element);
    }
    for (name, count) in [
        ("nErrors", totals.errors),
        ("nInserted", totals.inserted),
        ("nMatched", totals.matched),
        ("nModified", totals.modified),
        ("nUpserted", totals.upserted),
        ("nDeleted", totals.deleted),
    ] {
        out.append(name, count_value(count));
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nilometer_bson::doc;

    #[test]
    fn plain_inserts_are_read_as_field_by_field() {
        let inner = doc! {"a": 1, "b": "x"};
        let mut cut = doc! {"insert": 1, "document": inner.clone()}
            .as_bytes()
            .to_vec();
        let at = cut.len() - 1 - inner.as_bytes().len();
        cut[at] -= 1;
        let documents = [
            doc! {"insert": 0, "document": inner.clone()},
            doc! {"insert": 1, "document": Document::new()},
            doc! {"insert": 2, "document": inner.clone()},
            doc! {"insert": -1, "document": inner.clone()},
            doc! {"insert": 1_i64, "document": inner.clone()},
            doc! {"insert": 1.0, "document": inner.clone()},
            doc! {"document": inner.clone(), "insert": 1},
            doc! {"insert": 1, "document": inner.clone(), "multi": true},
            doc! {"insert": 1, "document": 5},
            doc! {"insert": 1, "documents": inner.clone()},
            doc! {"insert": 1},
            Document::from_bytes(cut).unwrap(),
            doc! {"delete": 1, "filter": inner.clone()},
        ];
        let shown = |op: Result<Op<'_>>| match op {
            Ok(op) => format!("{:?} {} {:?}", op.kind, op.namespace, op.inserted),
            Err(error) => error.message,
        };
        for document in &documents {
            let document = document.as_ref();
            assert_eq!(shown(op(document, 2)), shown(op_by_fields(document, 2)));
        }
        let is_plain = |document: &&Document| plain_insert(document.as_ref(), 2).is_some();
        assert_eq!(documents.iter().filter(is_plain).count(), 2);
    }
}

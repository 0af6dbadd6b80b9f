//! `bulkWrite` on a router.
//!
//! ```text
//! operations of one collection that is not sharded   bulkWrite ─► its partition
//! inserts into a sharded one                         insert    ─► the partition of each document
//! an update or delete of a sharded one               update    ─► the partitions that may have its documents
//! ```
//!
//! An operation keeps the number that it has in the client's command, so a repetition is answered by the partition that
//! has run it. Nothing waits for the storage before the end of the command.

use std::collections::BTreeMap;

use nilometer_bson::{DocRef, Document, DocumentBuilder, Value, ValueRef, doc};

use super::buffered::BufferedWrites;
use super::change::{DELETE, Statements, UPDATE};
use super::insert::{BATCH_BYTES_MAX, Insert, Numbered, WithIds, dropped, placed, unsettled};
use super::{PLACEMENT_CHANGES_MAX, forwarded, number, router_of, statement_number, writable};
use crate::args::Args;
use crate::catalog::Namespace;
use crate::commands::CommandContext;
use crate::commands::crud::bulk_write::{self, Bulk, Op, OpKind, OpResult};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::operation::{Request, RoutedRequest};
use crate::router::{
    Placement, Router, batch_of, command, error_of, version_asked, wait, write_request,
};

/// Fields of the command that its parts do not have.
const NOT_OF_PARTS: [&str; 5] = ["bulkWrite", "ops", "nsInfo", "ordered", "errorsOnly"];

/// Most operations of a part: their results fit into a reply if few fail.
const PART_OPERATIONS_MAX: usize = 20_000;

pub(super) fn run(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let operation = &context.operation;
    let router = router_of(database);
    let mut options = NOT_OF_PARTS.to_vec();
    options.push("cursor");
    let body = forwarded(request.body.as_ref(), &options, operation);
    bulk_write::run_by(database, operation, request, |bulk| {
        let mut parts = Parts {
            router,
            bulk,
            body,
            buffered: BufferedWrites::new(operation),
            results: BTreeMap::new(),
        };
        parts.perform()?;
        parts.buffered.sync(router, operation)?;
        for (at, result) in parts.results {
            bulk.record(at, result);
        }
        Ok(())
    })
}

/// The parts of a command, and what they did.
struct Parts<'b, 'r> {
    router: &'b Router,
    bulk: &'b Bulk<'r>,
    /// The options of the command that its parts have, too.
    body: Document,
    buffered: BufferedWrites,
    results: BTreeMap<usize, OpResult>,
}

impl<'b> Parts<'b, '_> {
    fn perform(&mut self) -> Result<()> {
        let all = 0..self.bulk.ops.len();
        // Without an order, what is of one collection goes together.
        let mut sequences = BTreeMap::<usize, Vec<usize>>::new();
        for at in all {
            let key = match self.bulk.ordered {
                true => 0,
                false => self.op(at).namespace,
            };
            sequences.entry(key).or_default().push(at);
        }
        let is_one = sequences.len() <= 1 && {
            let mut namespaces = self.bulk.ops.iter().map(|op| op.namespace);
            let first = namespaces.next();
            let kinds = |kind| self.bulk.ops.iter().all(|op| op.kind == kind);
            namespaces.all(|other| Some(other) == first) && kinds(OpKind::Insert)
        };
        // The parts of inserts are known when their placement is.
        self.buffered.expect(match is_one {
            true => 1,
            false => self.bulk.ops.len(),
        });
        for sequence in sequences.into_values() {
            self.sequence(&sequence)?;
        }
        Ok(())
    }

    fn op(&self, at: usize) -> &'b Op<'b> {
        &self.bulk.ops[at]
    }

    /// Runs operations one after the other; those that are alike and neighbours together.
    fn sequence(&mut self, sequence: &[usize]) -> Result<()> {
        let mut rest = sequence;
        let mut changes = 0;
        while let Some(first) = rest.first() {
            let (done, has_failed) = self.next(*first, rest)?;
            if has_failed && self.bulk.ordered {
                return Ok(());
            }
            changes = if done == 0 { changes + 1 } else { 0 };
            if changes > PLACEMENT_CHANGES_MAX {
                return Err(unsettled(self.namespace(self.op(*first))));
            }
            rest = rest.get(done..).unwrap_or_default();
        }
        Ok(())
    }

    fn namespace(&self, op: &Op<'_>) -> &'b Namespace {
        &self.bulk.namespaces[op.namespace]
    }

    /// Runs the operations at the beginning of `rest`. Returns how many; 0 if the placement has changed. True if one failed.
    fn next(&mut self, at: usize, rest: &[usize]) -> Result<(usize, bool)> {
        let op = self.op(at);
        let namespace = self.namespace(op);
        let is_creating = match op.kind {
            OpKind::Insert => true,
            OpKind::Update => is_upsert(op),
            OpKind::Delete => false,
        };
        if let Err(error) = self.prepare(namespace, is_creating) {
            return self.record(at, failed(error));
        }
        let _write = self.router.begin_write();
        match self.router.placement(namespace) {
            // The router's own catalog says what is wrong with it, or has nothing.
            None if !is_creating => {
                let (mut results, _) = self.bulk.change(at, op);
                self.record(at, results.pop().unwrap_or_default())
            }
            None => self.record(at, failed(dropped(namespace))),
            Some(placement) if placement.sharding.is_none() => {
                self.whole(namespace, &placement, rest)
            }
            Some(_) if op.kind == OpKind::Insert => self.inserts(namespace, rest),
            Some(_) => {
                let result = self.statement(namespace, at)?;
                self.record(at, result)
            }
        }
    }

    /// Checks that a collection can be written; creates it if needed.
    fn prepare(&self, namespace: &Namespace, is_creating: bool) -> Result<()> {
        let (database, operation) = (self.bulk.database, self.bulk.operation);
        writable(&namespace.database, &namespace.collection)?;
        match is_creating {
            true => placed(database, operation, self.router, namespace).map(drop),
            false => self.router.newest_placement(namespace).map(drop),
        }
    }

    /// Keeps the result of one operation.
    fn record(&mut self, at: usize, result: OpResult) -> Result<(usize, bool)> {
        if let Some(error) = result.error.as_ref().filter(|error| is_of_command(error)) {
            return Err(error.clone());
        }
        let has_failed = result.error.is_some();
        self.results.insert(at, result);
        Ok((1, has_failed))
    }

    /// Runs neighbours in one collection that is not sharded, in its partition.
    fn whole(
        &mut self,
        namespace: &Namespace,
        placement: &Placement,
        rest: &[usize],
    ) -> Result<(usize, bool)> {
        let collection = self.op(rest[0]).namespace;
        let part = self.neighbours(rest, |op| op.namespace == collection);
        let mut body = DocumentBuilder::new();
        body.append("bulkWrite", 1);
        body.append_all(self.buffered.body(&self.body).as_ref());
        body.append("ordered", self.bulk.ordered);
        body.append(
            "nsInfo",
            vec![Value::from(doc! {"ns": namespace.to_string()})],
        );
        body.begin_array("ops");
        for (position, at) in part.iter().enumerate() {
            let op = of_first_collection(self.op(*at).document);
            body.append_indexed(position, ValueRef::Document(op.as_ref()));
        }
        body.end();
        let operation = self.bulk.operation;
        let routed = RoutedRequest {
            placement: Some(placement.version_of(namespace)),
            statements: match operation.txn_number {
                Some(_) => part.iter().map(|at| statement_number(*at)).collect(),
                None => Vec::new(),
            },
            ..RoutedRequest::default()
        };
        let request = write_request("admin", body.finish(), operation, routed);
        let sent = self.router.send(placement.primary, request);
        let reply = match sent.and_then(|mut reply| wait(&mut *reply, operation)) {
            Ok(reply) => reply,
            Err(error) => {
                let wanted = version_asked(&error).ok_or(error)?;
                self.router.settle(&wanted, operation)?;
                return Ok((0, false));
            }
        };
        self.buffered.note(placement.primary, &reply)?;
        let results = self.results_of(placement.primary, &reply)?;
        let mut has_failed = false;
        for (position, result) in results {
            has_failed |= result.error.is_some();
            if let Some(at) = part.get(position) {
                self.results.insert(*at, result);
            }
        }
        Ok((part.len(), has_failed))
    }

    /// Returns the operations at the beginning of `rest` that go together.
    fn neighbours<'s>(&self, rest: &'s [usize], is_alike: impl Fn(&Op<'_>) -> bool) -> &'s [usize] {
        let mut bytes = 0;
        let fits = |at: &&usize| {
            let op = self.op(**at);
            bytes += op.document.as_bytes().len();
            is_alike(op) && bytes <= BATCH_BYTES_MAX
        };
        let alike = rest.iter().take_while(fits).count();
        let count = alike.clamp(1, PART_OPERATIONS_MAX);
        rest.get(..count).unwrap_or(rest)
    }

    /// Returns the results in the cursor of a partition's reply, by position.
    fn results_of(&self, partition: usize, reply: &Document) -> Result<Vec<(usize, OpResult)>> {
        let operation = self.bulk.operation;
        let retried = reply.get("retriedStmtIds").as_array();
        let retried = retried.iter().flat_map(|list| list.iter());
        let retried: Vec<i64> = retried.map(number).collect();
        let (mut rows, mut id) = batch_of(reply)?;
        while id != 0 {
            let more = doc! {"getMore": id, "collection": "$cmd.bulkWrite"};
            let session = operation.lsid.filter(|_| operation.txn_number.is_some());
            let session = session.map(|id| id.of_user(operation.user.as_ref()));
            let more = Request::new(command("admin", more, operation, session));
            let mut more = self.router.send(partition, more)?;
            let (next, following) = batch_of(&wait(&mut *more, operation)?)?;
            rows.extend(next);
            id = following;
        }
        let results = rows.into_iter().map(|row| {
            let at = number(row.get("idx"));
            let count = |name: &str| u64::try_from(number(row.get(name))).unwrap_or(0);
            let modified = (!row.get("nModified").is_missing()).then(|| count("nModified"));
            let upserted = row.get("upserted").as_document();
            let is_fine = row.get("ok").as_exact_i64() == Some(1);
            let others = ["ok", "idx", "n", "nModified"];
            let result = OpResult {
                n: count("n"),
                modified,
                upserted: upserted.map(|new| new.get("_id").to_value()),
                was_retried: retried.binary_search(&at).is_ok(),
                error: (!is_fine).then(|| error_of(row.as_ref(), &others)),
            };
            (usize::try_from(at).unwrap_or(usize::MAX), result)
        });
        Ok(results.collect())
    }

    /// Inserts neighbours into one sharded collection.
    fn inserts(&mut self, namespace: &Namespace, rest: &[usize]) -> Result<(usize, bool)> {
        let collection = self.op(rest[0]).namespace;
        let is_alike = |op: &Op<'_>| op.kind == OpKind::Insert && op.namespace == collection;
        let part = self.neighbours(rest, is_alike);
        let documents = part.iter().filter_map(|at| {
            let document = self.op(*at).inserted;
            document.map(|document| (*at, document))
        });
        let documents: Vec<Numbered<'_>> = documents.collect();
        let (database, operation) = (self.bulk.database, self.bulk.operation);
        let with_ids = WithIds::of(database, operation, self.router, namespace, &documents);
        let documents = with_ids.documents(&documents);
        let counters = &database.services().counters.operations;
        counters.insert.add(u64::try_from(part.len()).unwrap_or(0));
        let mut body = self.command("insert", namespace);
        body.append("ordered", self.bulk.ordered);
        let mut insert = Insert::new((self.router, operation), namespace, body.finish());
        insert.run(database, documents, self.bulk.ordered, &mut self.buffered)?;
        let first_error = insert.errors.iter().map(|(at, _)| *at).min();
        let end = first_error.filter(|_| self.bulk.ordered);
        for at in part.iter().filter(|at| end.is_none_or(|end| **at <= end)) {
            let was_retried = insert.retried.contains(at);
            let result = OpResult {
                n: 1,
                was_retried,
                ..OpResult::default()
            };
            self.results.insert(*at, result);
        }
        for (at, error) in insert.errors {
            self.results
                .insert(at, failed(error_of(error.as_ref(), &["index"])));
        }
        Ok((part.len(), first_error.is_some()))
    }

    /// Runs an update or a delete on a sharded collection.
    fn statement(&mut self, namespace: &Namespace, at: usize) -> Result<OpResult> {
        let op = self.op(at);
        let (kind, statement) = match op.kind {
            OpKind::Delete => (&DELETE, delete_statement(op.document)),
            _ => (&UPDATE, update_statement(op.document)),
        };
        let database = self.bulk.database;
        let counters = &database.services().counters.operations;
        let name = match op.kind {
            OpKind::Delete => {
                counters.delete.increment();
                "delete"
            }
            _ => {
                counters.update.increment();
                "update"
            }
        };
        let statements = Statements {
            database,
            router: self.router,
            operation: self.bulk.operation,
            namespace,
            body: self.command(name, namespace).finish(),
            options: &self.bulk.options,
            kind,
            count: self.bulk.ops.len(),
        };
        let done = match statements.run(at, statement.as_ref(), &mut self.buffered) {
            Ok(done) => done,
            Err(error) => return Ok(failed(error)),
        };
        let count = |n: i64| u64::try_from(n).unwrap_or(0);
        let error = done.error.as_ref();
        Ok(OpResult {
            n: count(done.n),
            modified: (op.kind == OpKind::Update).then(|| count(done.modified)),
            upserted: done.upserted,
            was_retried: done.was_retried,
            error: error.map(|error| error_of(error.as_ref(), &["index"])),
        })
    }

    /// Begins a command on one collection with the options of this one.
    fn command(&self, name: &str, namespace: &Namespace) -> DocumentBuilder {
        let mut out = DocumentBuilder::new();
        out.append(name, namespace.collection.as_str());
        out.append_all(self.body.as_ref());
        out
    }
}

/// True for an error that ends the whole command: drivers retry it, or it is unknown which operations were executed.
fn is_of_command(error: &Error) -> bool {
    error.is_of_command()
        || matches!(
            error.code,
            ErrorCode::HostUnreachable
                | ErrorCode::Interrupted
                | ErrorCode::MaxTimeMSExpired
                | ErrorCode::ConflictingOperationInProgress
        )
}

fn failed(error: Error) -> OpResult {
    OpResult {
        error: Some(error),
        ..OpResult::default()
    }
}

fn is_upsert(op: &Op<'_>) -> bool {
    let args = Args::new("bulkWrite.ops", op.document);
    matches!(args.lenient_boolean("upsert"), Ok(Some(true)))
}

/// Returns an operation on the first collection of its command.
fn of_first_collection(op: DocRef<'_>) -> Document {
    let mut out = DocumentBuilder::with_capacity(op.as_bytes().len());
    for (at, element) in op.iter().enumerate() {
        match at {
            0 => out.append(element.name(), 0),
            _ => out.append_element(element),
        };
    }
    out.finish()
}

/// Returns an operation as a statement of the command `update`.
fn update_statement(op: DocRef<'_>) -> Document {
    let mut out = DocumentBuilder::with_capacity(op.as_bytes().len());
    for element in op.iter().skip(1) {
        let name = match element.name() {
            "filter" => "q",
            "updateMods" => "u",
            "constants" => "c",
            other => other,
        };
        out.append_ref(name, element.value());
    }
    out.finish()
}

/// Returns an operation as a statement of the command `delete`.
fn delete_statement(op: DocRef<'_>) -> Document {
    let args = Args::new("bulkWrite.ops", op);
    let is_multi = matches!(args.lenient_boolean("multi"), Ok(Some(true)));
    let mut out = DocumentBuilder::with_capacity(op.as_bytes().len());
    for element in op.iter().skip(1) {
        match element.name() {
            "filter" => out.append_ref("q", element.value()),
            "multi" => continue,
            other => out.append_ref(other, element.value()),
        };
    }
    out.append("limit", i32::from(!is_multi));
    out.finish()
}

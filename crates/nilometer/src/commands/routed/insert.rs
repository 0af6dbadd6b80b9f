//! `insert` on a router: each document goes to the partition of its key.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nilometer_bson::{Array, DocRef, Document, DocumentBuilder, Value};

use super::buffered::BufferedWrites;
use super::{PLACEMENT_CHANGES_MAX, forwarded, number, router_of, statement_number, writable};
use crate::args::Args;
use crate::catalog::Namespace;
use crate::commands::CommandContext;
use crate::commands::crud::insert::{write_batch, write_error};
use crate::commands::crud::retryable::append_retried;
use crate::commands::ddl::collection_uuid;
use crate::database::Database;
pub(super) use crate::database::dropped;
use crate::error::{Error, ErrorCode, Result};
use crate::operation::{
    DocumentSequence, OperationContext, PlacementVersion, Request, RoutedRequest,
};
use crate::router::{
    PartitionCache, PendingReply, Placement, Router, version_asked, wait, write_request,
};
use crate::write::with_id;

pub(super) fn run(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let router = router_of(database);
    let args = Args::new("insert", request.body.as_ref());
    let namespace = writable(context.database_name(), args.required_string("insert")?)?;
    collection_uuid::check(database, &args, &namespace)?;
    let is_ordered = args.boolean("ordered")?.unwrap_or(true);
    let documents: Vec<DocRef<'_>> = write_batch(request, &args, "documents")?.collect();
    let _write = router.begin_write();
    let operation = &context.operation;
    let body = forwarded(
        request.body.as_ref(),
        &["documents", "collectionUUID"],
        operation,
    );
    let counters = &database.services().counters;
    counters.operations.insert.add(documents.len() as u64);
    let mut insert = Insert::new((router, operation), &namespace, body);
    let mut buffered = BufferedWrites::new(operation);
    let documents: Vec<Numbered<'_>> = documents.into_iter().enumerate().collect();
    let with_ids = WithIds::of(database, operation, router, &namespace, &documents);
    let numbered = with_ids.documents(&documents);
    insert.run(database, numbered, is_ordered, &mut buffered)?;
    buffered.sync(router, operation)?;
    Ok(insert.reply())
}

/// Returns where the documents of a collection are; creates an ordinary collection if there is none.
pub(super) fn placed(
    database: &Database,
    operation: &OperationContext,
    router: &Router,
    namespace: &Namespace,
) -> Result<Arc<Placement>> {
    // It may have got the catalog since the command began.
    let newest = database.newest_router();
    let database = newest.as_deref().unwrap_or(database);
    crate::database::placed(database.collections(), operation, router, namespace)
}

/// Returns the error of a write whose placement changes again and again.
pub(super) fn unsettled(namespace: &Namespace) -> Error {
    Error::new(
        ErrorCode::ConflictingOperationInProgress,
        format!("the placement of {namespace} changes all the time"),
    )
}

/// A document with its position in the command.
pub(super) type Numbered<'d> = (usize, DocRef<'d>);

/// Documents that get an `_id` here, because it may decide where they go.
pub(super) struct WithIds(BTreeMap<usize, Document>);

impl WithIds {
    /// Makes the ids that documents for a sharded collection lack.
    pub(super) fn of(
        database: &Database,
        operation: &OperationContext,
        router: &Router,
        namespace: &Namespace,
        documents: &[Numbered<'_>],
    ) -> Self {
        let sharding = router.sharding(namespace);
        if sharding.is_none_or(|sharding| sharding.key.is_timeseries()) {
            return Self(BTreeMap::new());
        }
        let ids = &database.services().ids;
        let new_id = || ids.object_id(operation.now_ms);
        let lacking = documents.iter().filter(|(_, d)| !d.contains("_id"));
        let made = lacking.map(|(at, d)| (*at, with_id(d.to_document(), &new_id)));
        Self(made.collect())
    }

    /// Returns the documents with their ids.
    pub(super) fn documents<'d>(&'d self, documents: &[Numbered<'d>]) -> Vec<Numbered<'d>> {
        let documents = documents.iter();
        let documents = documents.map(|(at, given)| match self.0.get(at) {
            Some(made) => (*at, made.as_ref()),
            None => (*at, *given),
        });
        documents.collect()
    }
}

/// The placement that a partition asks for, and the documents that it refused.
type Refused<'d> = Option<(PlacementVersion, Vec<Numbered<'d>>)>;

/// Documents for one partition, with their positions in the command.
struct Batch<'d> {
    partition: usize,
    documents: Vec<Numbered<'d>>,
    bytes: usize,
}

/// Bytes of the documents of a batch, unless it has one document: with all else a message has at most 48,000,000.
pub(super) const BATCH_BYTES_MAX: usize = 32 << 20;

/// Documents of one collection on their way to their partitions.
pub(super) struct Insert<'c> {
    router: &'c Router,
    operation: &'c OperationContext,
    namespace: &'c Namespace,
    /// The command without documents.
    body: Document,
    inserted: i64,
    /// By position in the command.
    pub(super) errors: Vec<(usize, Document)>,
    /// Positions of the documents that were inserted before.
    pub(super) retried: Vec<usize>,
}

impl<'c> Insert<'c> {
    pub(super) fn new(
        (router, operation): (&'c Router, &'c OperationContext),
        namespace: &'c Namespace,
        body: Document,
    ) -> Self {
        Self {
            router,
            operation,
            namespace,
            body,
            inserted: 0,
            errors: Vec::new(),
            retried: Vec::new(),
        }
    }

    /// Inserts documents. The caller makes what is buffered durable.
    pub(super) fn run(
        &mut self,
        database: &Database,
        documents: Vec<Numbered<'_>>,
        is_ordered: bool,
        buffered: &mut BufferedWrites,
    ) -> Result<()> {
        let mut open = documents;
        for _ in 0..PLACEMENT_CHANGES_MAX {
            let placement = placed(database, self.operation, self.router, self.namespace)?;
            open = self.without_repeated(&placement, open, buffered)?;
            let Some((wanted, rest)) = self.send_all(&placement, &open, is_ordered, buffered)?
            else {
                return Ok(());
            };
            self.router.settle(&wanted, self.operation)?;
            open = rest;
        }
        Err(unsettled(self.namespace))
    }

    /// Counts the documents of a repeated write that were inserted before their range was assigned to another partition, and
    /// returns the others.
    fn without_repeated<'d>(
        &mut self,
        placement: &Placement,
        documents: Vec<Numbered<'d>>,
        buffered: &mut BufferedWrites,
    ) -> Result<Vec<Numbered<'d>>> {
        if self.operation.txn_number.is_none() {
            return Ok(documents);
        }
        let mut asked: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (at, document) in &documents {
            for partition in placement.partitions_before(*document, self.operation.now_ms) {
                asked.entry(partition).or_default().push(*at);
            }
        }
        let pending = asked.iter().map(|(partition, positions)| {
            let documents = positions.iter().map(|_| Value::from(Document::new()));
            let mut body = DocumentBuilder::extending(self.body.clone());
            body.append("documents", documents.collect::<Array>());
            let routed = RoutedRequest {
                statements: positions.iter().map(|at| statement_number(*at)).collect(),
                repeats_only: true,
                ..RoutedRequest::default()
            };
            let database = &self.namespace.database;
            let request = write_request(database, body.finish(), self.operation, routed);
            self.router.send(*partition, request)
        });
        let pending: Vec<_> = pending.collect();
        let mut repeated = BTreeSet::<usize>::new();
        for ((partition, positions), reply) in asked.iter().zip(pending) {
            let reply = wait(&mut *reply?, self.operation)?;
            buffered.note(*partition, &reply)?;
            let found = reply.get("retriedStmtIds").as_array();
            for at in found.iter().flat_map(|found| found.iter()) {
                let at = usize::try_from(number(at)).ok();
                repeated.extend(at.and_then(|at| positions.get(at)));
            }
        }
        self.inserted += i64::try_from(repeated.len()).unwrap_or(i64::MAX);
        self.retried.extend(&repeated);
        let is_new = |(at, _): &Numbered<'_>| !repeated.contains(at);
        Ok(documents.into_iter().filter(is_new).collect())
    }

    /// Sends documents to their partitions. Returns those that were refused because the placement has changed.
    fn send_all<'d>(
        &mut self,
        placement: &Placement,
        documents: &[Numbered<'d>],
        is_ordered: bool,
        buffered: &mut BufferedWrites,
    ) -> Result<Refused<'d>> {
        let (batches, unplaced) = self.batches(placement, documents, is_ordered);
        match is_ordered {
            true => self.one_by_one(placement, documents, (&batches, unplaced), buffered),
            false => self.at_once(placement, &batches, buffered),
        }
    }

    /// Divides documents by partition. In order, only neighbours go together, and nothing behind the first document without a
    /// place, whose error is returned.
    fn batches<'d>(
        &mut self,
        placement: &Placement,
        documents: &[Numbered<'d>],
        is_ordered: bool,
    ) -> (Vec<Batch<'d>>, Option<(usize, Document)>) {
        let mut batches: Vec<Batch<'d>> = Vec::new();
        let mut partitions = PartitionCache::new(placement);
        for (at, document) in documents {
            let partition = match partition_of(placement, &mut partitions, *document) {
                Ok(partition) => partition,
                Err(error) => {
                    let error = write_error(*at, &error);
                    if let Some(error) = error.as_ref().as_document() {
                        let error = (*at, error.to_document());
                        if is_ordered {
                            return (batches, Some(error));
                        }
                        self.errors.push(error);
                    }
                    continue;
                }
            };
            let bytes = document.as_bytes().len();
            let mut known = batches.iter_mut().rev();
            let known = match is_ordered {
                true => known.next().filter(|batch| batch.partition == partition),
                false => known.find(|batch| batch.partition == partition),
            };
            match known.filter(|batch| batch.bytes + bytes <= BATCH_BYTES_MAX) {
                Some(batch) => {
                    batch.documents.push((*at, *document));
                    batch.bytes += bytes;
                }
                None => batches.push(Batch {
                    partition,
                    documents: vec![(*at, *document)],
                    bytes,
                }),
            }
        }
        (batches, None)
    }

    fn one_by_one<'d>(
        &mut self,
        placement: &Placement,
        documents: &[Numbered<'d>],
        (batches, unplaced): (&[Batch<'d>], Option<(usize, Document)>),
        buffered: &mut BufferedWrites,
    ) -> Result<Refused<'d>> {
        buffered.expect(batches.len());
        for batch in batches {
            let mut sent = self.send(placement, batch, buffered)?;
            let reply = wait(&mut *sent, self.operation);
            if let Some(wanted) = reply.as_ref().err().and_then(version_asked) {
                let from = batch.documents.first().map_or(0, |(at, _)| *at);
                let rest = documents.iter().filter(|(at, _)| *at >= from);
                return Ok(Some((wanted, rest.copied().collect())));
            }
            let reply = reply?;
            buffered.note(batch.partition, &reply)?;
            self.note(batch, &reply);
            if !self.errors.is_empty() {
                return Ok(None);
            }
        }
        self.errors.extend(unplaced);
        Ok(None)
    }

    fn at_once<'d>(
        &mut self,
        placement: &Placement,
        batches: &[Batch<'d>],
        buffered: &mut BufferedWrites,
    ) -> Result<Refused<'d>> {
        let pending = batches.iter();
        let pending = pending.map(|batch| self.send(placement, batch, buffered));
        let pending: Vec<_> = pending.collect();
        let (mut failed, mut wanted, mut rest) = (None, None, Vec::new());
        for (batch, pending) in batches.iter().zip(pending) {
            match pending.and_then(|mut reply| wait(&mut *reply, self.operation)) {
                Ok(reply) => {
                    buffered.note(batch.partition, &reply)?;
                    self.note(batch, &reply);
                }
                Err(error) => match version_asked(&error) {
                    Some(version) => {
                        wanted = Some(version);
                        rest.extend(batch.documents.iter().copied());
                    }
                    None => failed = failed.or(Some(error)),
                },
            }
        }
        match failed {
            Some(error) => Err(error),
            None => Ok(wanted.map(|wanted| (wanted, rest))),
        }
    }

    fn send(
        &self,
        placement: &Placement,
        batch: &Batch<'_>,
        buffered: &BufferedWrites,
    ) -> Result<Box<dyn PendingReply>> {
        let mut buffer = Vec::with_capacity(batch.bytes);
        for (_, document) in &batch.documents {
            buffer.extend_from_slice(document.as_bytes());
        }
        let all = 0..buffer.len();
        let documents = DocumentSequence::new("documents".to_owned(), Arc::new(buffer), all);
        let numbers = batch.documents.iter().map(|(at, _)| statement_number(*at));
        let routed = RoutedRequest {
            placement: Some(placement.version_of(self.namespace)),
            statements: match self.operation.txn_number {
                Some(_) => numbers.collect(),
                None => Vec::new(),
            },
            ..RoutedRequest::default()
        };
        let database = &self.namespace.database;
        let body = buffered.body(&self.body);
        let mut request = write_request(database, body, self.operation, routed);
        request.sequences.extend(documents);
        self.router.send(batch.partition, request)
    }

    /// Adds the reply of a partition.
    fn note(&mut self, batch: &Batch<'_>, reply: &Document) {
        self.inserted += number(reply.get("n"));
        let errors = reply.get("writeErrors").as_array();
        for error in errors.iter().flat_map(|errors| errors.iter()) {
            let Some(error) = error.as_document() else {
                continue;
            };
            let at = usize::try_from(number(error.get("index"))).unwrap_or(0);
            let at = batch.documents.get(at).map_or(0, |(at, _)| *at);
            self.errors.push((at, with_index(error, at)));
        }
        let retried = reply.get("retriedStmtIds").as_array();
        for at in retried.iter().flat_map(|retried| retried.iter()) {
            let at = usize::try_from(number(at)).ok();
            let at = at.and_then(|at| batch.documents.get(at));
            self.retried.extend(at.map(|(at, _)| *at));
        }
    }

    fn reply(mut self) -> Document {
        let mut out = DocumentBuilder::new();
        out.append("n", i32::try_from(self.inserted).unwrap_or(i32::MAX));
        if !self.errors.is_empty() {
            self.errors.sort_by_key(|(at, _)| *at);
            let errors = self.errors.into_iter().map(|(_, error)| Value::from(error));
            out.append("writeErrors", errors.collect::<Array>());
        }
        self.retried.sort_unstable();
        append_retried(&mut out, &self.retried);
        out.finish()
    }
}

/// Returns the partition for a new document.
fn partition_of(
    placement: &Placement,
    partitions: &mut PartitionCache<'_>,
    document: DocRef<'_>,
) -> Result<usize> {
    let sharding = placement.sharding.as_ref();
    let is_by_key = sharding.is_some_and(|sharding| !sharding.key.is_timeseries());
    if is_by_key && !document.contains("_id") {
        return Err(Error::new(
            ErrorCode::ConflictingOperationInProgress,
            "the collection was sharded while the insert began: repeat it",
        ));
    }
    partitions.partition_of(document)
}

/// Returns an entry of `writeErrors` with another position.
pub(super) fn with_index(error: DocRef<'_>, at: usize) -> Document {
    let mut out = DocumentBuilder::new();
    out.append("index", i32::try_from(at).unwrap_or(i32::MAX));
    for element in error.iter().filter(|element| element.name() != "index") {
        out.append_element(element);
    }
    out.finish()
}

//! `insert` on a router: each document goes to the partition of its key.

use std::sync::Arc;

use nilometer_bson::{Array, DocRef, Document, DocumentBuilder, Value, ValueRef};

use super::{forwarded, number, router_of, writable};
use crate::args::Args;
use crate::catalog::Namespace;
use crate::commands::CommandContext;
use crate::commands::crud::insert::{write_batch, write_error};
use crate::commands::ddl::collection_uuid;
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::operation::{OperationContext, Request};
use crate::router::{Placement, Router, command, wait};

pub(in crate::commands) fn run(
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
    placed(database, &context.operation, router, &namespace)?;
    let _write = router.begin_write();
    let placement = router
        .placement(&namespace)
        .ok_or_else(|| dropped(&namespace))?;
    let operation = &context.operation;
    let body = forwarded(
        request.body.as_ref(),
        &["documents", "collectionUUID"],
        operation,
    );
    let counters = &database.services().counters;
    counters.operations.insert.add(documents.len() as u64);
    let mut insert = Insert {
        router,
        operation,
        body,
        inserted: 0,
        errors: Vec::new(),
    };
    insert.run(&placement, &documents, is_ordered)?;
    Ok(insert.reply())
}

/// Returns where the documents of a collection are; creates an ordinary collection if there is none.
pub(super) fn placed(
    database: &Database,
    operation: &OperationContext,
    router: &Router,
    namespace: &Namespace,
) -> Result<Arc<Placement>> {
    if let Some(placement) = router.placement(namespace) {
        return Ok(placement);
    }
    let _changes = router.lock_changes();
    if router.placement(namespace).is_none() {
        database
            .collections()
            .modify()
            .find_or_create(operation, namespace)?;
        let placement = Placement {
            primary: router.new_primary(),
            uuid: router.new_uuid(),
            sharding: None,
        };
        router.set_placement(namespace, Some(placement))?;
    }
    let placement = router.placement(namespace);
    Ok(placement.expect("it was set under the lock"))
}

/// Returns the error for a collection that is dropped while a write begins.
pub(super) fn dropped(namespace: &Namespace) -> Error {
    Error::new(
        ErrorCode::QueryPlanKilled,
        format!("collection dropped: {namespace}"),
    )
}

/// Documents for one partition, with their positions in the command.
struct Batch<'d> {
    partition: usize,
    documents: Vec<(usize, DocRef<'d>)>,
}

struct Insert<'c> {
    router: &'c Router,
    operation: &'c OperationContext,
    /// The command without documents.
    body: Document,
    inserted: i64,
    /// By position in the command.
    errors: Vec<(usize, Document)>,
}

impl Insert<'_> {
    fn run(
        &mut self,
        placement: &Placement,
        documents: &[DocRef<'_>],
        is_ordered: bool,
    ) -> Result<()> {
        let mut batches: Vec<Batch<'_>> = Vec::new();
        let mut unplaced = None;
        for (at, document) in documents.iter().enumerate() {
            let partition = match placement.partition_of(*document) {
                Ok(partition) => partition,
                Err(error) => {
                    let error = write_error(at, &error);
                    if let Some(error) = error.as_ref().as_document() {
                        let error = (at, error.to_document());
                        if is_ordered {
                            unplaced = Some(error);
                            break;
                        }
                        self.errors.push(error);
                    }
                    continue;
                }
            };
            // In order, only neighbours may go together.
            let known = match is_ordered {
                true => batches
                    .last_mut()
                    .filter(|batch| batch.partition == partition),
                false => batches
                    .iter_mut()
                    .find(|batch| batch.partition == partition),
            };
            match known {
                Some(batch) => batch.documents.push((at, *document)),
                None => batches.push(Batch {
                    partition,
                    documents: vec![(at, *document)],
                }),
            }
        }
        if is_ordered {
            for batch in &batches {
                let reply = wait(&mut *self.send(batch)?, self.operation)?;
                self.note(batch, &reply);
                if !self.errors.is_empty() {
                    return Ok(());
                }
            }
            self.errors.extend(unplaced);
            return Ok(());
        }
        let pending: Vec<_> = batches.iter().map(|batch| self.send(batch)).collect();
        let mut failed = None;
        for (batch, pending) in batches.iter().zip(pending) {
            match pending.and_then(|mut reply| wait(&mut *reply, self.operation)) {
                Ok(reply) => self.note(batch, &reply),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(()), Err)
    }

    fn send(&self, batch: &Batch<'_>) -> Result<Box<dyn crate::router::PendingReply>> {
        let bytes: usize = batch
            .documents
            .iter()
            .map(|(_, d)| d.as_bytes().len() + 16)
            .sum();
        let mut out = DocumentBuilder::with_capacity(self.body.as_bytes().len() + bytes + 64);
        out.append_all(self.body.as_ref());
        out.begin_array("documents");
        for (at, (_, document)) in batch.documents.iter().enumerate() {
            out.append_indexed(at, ValueRef::Document(*document));
        }
        out.end();
        let database = &self.operation.database;
        let request = command(database, out.finish(), self.operation, None);
        self.router.send(batch.partition, Request::new(request))
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
    }

    fn reply(mut self) -> Document {
        let mut out = DocumentBuilder::new();
        out.append("n", i32::try_from(self.inserted).unwrap_or(i32::MAX));
        if !self.errors.is_empty() {
            self.errors.sort_by_key(|(at, _)| *at);
            let errors = self.errors.into_iter().map(|(_, error)| Value::from(error));
            out.append("writeErrors", errors.collect::<Array>());
        }
        out.finish()
    }
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

//! Updates of one document that put it into another partition, because they change its shard key.
//!
//! ```text
//! 1  all partitions raise the next version: they refuse other requests on the collection, and its running reads and writes have ended
//! 2  all partitions have not run the update: a repetition, sent to another router, may have been faster
//! 3  the source     runs the update, which fails with the document before and after
//! 4  the catalog    a record of the move
//! 5  the target     inserts the document after, with the result of the update and the version of the request: from here on it is done
//! 6  the source     loses the document before
//! 7  the catalog    the placement by the new version, in one batch with the end of the record
//! ```
//!
//! An update that ends before step 5 has done nothing. One that ends behind it is finished by the next command on the collection, as
//! a move of a range is ([`super::moves`]): if the target has stored the version of the insertion, the source loses the document.
//! The presence of the new document does not decide: a TTL index may have removed it. No request sees both documents: the
//! partitions refuse all others until then.

use std::sync::Arc;

use nilometer_bson::{DocRef, Document, DocumentBuilder, Value, ValueRef, doc};

use super::key_guard::key_change;
use super::moves::{DocumentMove, MovedDocuments};
use super::partition::{PendingReply, command, wait};
use super::versions::{ACCEPTED_FIELD, MOVE_COMMAND, Reads, named};
use super::{Placement, Router, Sharding};
use crate::catalog::Namespace;
use crate::error::{Error, ErrorCode, Result};
use crate::operation::{
    AcceptedDocument, GuardedKey, OperationContext, PlacementVersion, Request, RoutedRequest,
};

/// An update of one document, as a partition receives it.
pub(crate) struct KeyUpdate {
    /// The command, with its database, session and number.
    pub(crate) body: Document,
    /// The number of its statement.
    pub(crate) statement: u32,
    /// The document as it was when the update was tried.
    pub(crate) before: Document,
}

impl KeyUpdate {
    fn to_command(&self, namespace: &Namespace) -> Document {
        let mut out = DocumentBuilder::new();
        out.append(MOVE_COMMAND, namespace.to_string());
        out.append("update", self.body.clone());
        out.append("statement", i64::from(self.statement));
        out.append("before", self.before.clone());
        out.finish()
    }

    fn of_command(command: DocRef<'_>) -> Result<(Namespace, Self)> {
        let malformed = || Error::bad_value("an update of a shard key is malformed");
        let document = |name| command.get(name).as_document().ok_or_else(malformed);
        let namespace = command.get(MOVE_COMMAND).as_str().ok_or_else(malformed)?;
        let statement = command.get("statement").as_exact_i64();
        let statement = statement.and_then(|number| u32::try_from(number).ok());
        let update = Self {
            body: document("update")?.to_document(),
            statement: statement.ok_or_else(malformed)?,
            before: document("before")?.to_document(),
        };
        Ok((named(namespace)?, update))
    }
}

/// What the requests of an update of a shard key need.
struct KeyMover<'m> {
    router: &'m Router,
    namespace: &'m Namespace,
    /// The version that its requests follow.
    version: i64,
    operation: &'m OperationContext,
}

impl Router {
    /// Runs an update that puts a document into another partition. Returns the reply of a partition. The caller does not hold
    /// [`Self::lock_changes`].
    pub(crate) fn move_document(
        &self,
        namespace: &Namespace,
        update: &KeyUpdate,
        operation: &OperationContext,
    ) -> Result<Document> {
        let Some(coordinator) = self.elsewhere() else {
            return self.move_document_here(namespace, update, operation);
        };
        let body = command("admin", update.to_command(namespace), operation, None);
        let moved = wait(&mut *coordinator.send(Request::new(body)), operation);
        // Also an update that failed has changed the version.
        coordinator.catch_up()?;
        let reply = moved?.get("reply").as_document().map(|d| d.to_document());
        reply.ok_or_else(|| {
            Error::new(
                ErrorCode::InternalError,
                "the router with the catalog answered without a reply",
            )
        })
    }

    /// Runs what another router has asked for.
    pub(crate) fn move_document_for(
        &self,
        request: &Request,
        operation: &OperationContext,
    ) -> Result<Document> {
        let (namespace, update) = KeyUpdate::of_command(request.body.as_ref())?;
        let reply = self.move_document_here(&namespace, &update, operation)?;
        Ok(doc! {"reply": reply, "ok": 1.0})
    }

    /// Does so at the router that has the catalog.
    fn move_document_here(
        &self,
        namespace: &Namespace,
        update: &KeyUpdate,
        operation: &OperationContext,
    ) -> Result<Document> {
        let _changes = self.lock_changes();
        self.end_move(namespace, operation)?;
        let placement = self.placement(namespace);
        let sharding = placement.as_ref().and_then(|placement| {
            let sharding = placement.sharding.as_ref()?;
            Some((placement, sharding))
        });
        let Some((placement, sharding)) = sharding.filter(|(_, s)| !s.key.is_timeseries()) else {
            return Err(Error::new(
                ErrorCode::ConflictingOperationInProgress,
                format!("{namespace} has changed: repeat the update"),
            ));
        };
        let from = placement.partition_of(update.before.as_ref())?;
        let version = self.stored().next_version();
        self.raise(namespace, placement, version, Reads::Awaited, operation)?;
        let mover = KeyMover {
            router: self,
            namespace,
            version,
            operation,
        };
        mover.run(update, from, placement, sharding)
    }

    /// Ends an update of a shard key that was interrupted. True if the target has inserted the document.
    pub(super) fn end_key_move(
        &self,
        moved: &DocumentMove,
        placement: &Placement,
        operation: &OperationContext,
    ) -> Result<bool> {
        let MovedDocuments::One {
            id,
            from,
            to,
            inserted_by,
        } = &moved.what
        else {
            return Ok(false);
        };
        let (namespace, version) = (&moved.namespace, moved.version);
        let raised = self.raise(namespace, placement, version, Reads::Awaited, operation)?;
        let mover = KeyMover {
            router: self,
            namespace,
            version,
            operation,
        };
        let of_target = raised.iter().find(|(partition, _)| partition == to);
        let accepted = of_target.and_then(|(_, reply)| reply.get(ACCEPTED_FIELD).as_exact_i64());
        let is_done = accepted.is_some_and(|accepted| accepted >= *inserted_by);
        if is_done {
            mover.remove(*from, id.as_ref())?;
        }
        mover.end(placement)?;
        Ok(is_done)
    }
}

impl KeyMover<'_> {
    fn run(
        &self,
        update: &KeyUpdate,
        from: usize,
        placement: &Placement,
        sharding: &Sharding,
    ) -> Result<Document> {
        let guarded = |allowed| RoutedRequest {
            guarded_key: Some(GuardedKey {
                key: sharding.key.written(),
                allowed,
            }),
            ..RoutedRequest::default()
        };
        match self.repeated(update, placement) {
            Ok(None) => {}
            Ok(Some(reply)) => return self.unmoved(placement, Ok(reply)),
            Err(error) => return self.unmoved(placement, Err(error)),
        }
        let tried = self.update(update, from, guarded(None));
        let Some(change) = key_change(&tried) else {
            return self.unmoved(placement, tried);
        };
        let after = change.after.as_ref();
        let to = placement.partition_of(after)?;
        if to == from {
            let key = sharding.key.of(after)?;
            let changed = self.update(update, from, guarded(Some(sharding.key.shown(&key))));
            return self.unmoved(placement, changed);
        }
        self.carry_out(update, change, (from, to), placement)
    }

    /// Moves the document that the source has reported.
    fn carry_out(
        &self,
        update: &KeyUpdate,
        change: AcceptedDocument,
        (from, to): (usize, usize),
        placement: &Placement,
    ) -> Result<Document> {
        let id = change.before.get("_id").to_value();
        let moved = DocumentMove {
            namespace: self.namespace.clone(),
            uuid: placement.uuid,
            what: MovedDocuments::One {
                id: id.clone(),
                from,
                to,
                inserted_by: self.version,
            },
            version: self.version,
            at_ms: self.operation.now_ms,
        };
        self.router.stored().set_move(&moved, &self.router.names)?;
        let accepted = RoutedRequest {
            accepted: Some(change),
            ..RoutedRequest::default()
        };
        let reply = self.update(update, to, accepted);
        let is_accepted = |reply: &Document| reply.get("writeErrors").is_missing();
        let ended = match &reply {
            Ok(reply) if is_accepted(reply) => {
                let removed = self.remove(from, id.as_ref());
                removed.and_then(|()| self.end(placement))
            }
            _ => Ok(()),
        };
        if matches!((&reply, &ended), (Ok(reply), Ok(())) if is_accepted(reply)) {
            return reply;
        }
        // What ended the operation must not keep back those that wait for the collection. If this fails, it ends later.
        let clock = Arc::clone(self.operation.clock());
        let own = OperationContext::internal(clock, &self.namespace.database);
        let is_done = self.router.end_move(self.namespace, &own);
        match ended {
            Err(error) if !matches!(is_done, Ok(true)) => Err(error),
            _ => reply,
        }
    }

    /// Returns the reply of the partition that has run the update before; `None` if none has.
    fn repeated(&self, update: &KeyUpdate, placement: &Placement) -> Result<Option<Document>> {
        let partitions = placement.partitions(self.router.count());
        let pending = partitions.into_iter().map(|partition| {
            let routed = RoutedRequest {
                repeats_only: true,
                ..RoutedRequest::default()
            };
            self.send_update(update, partition, routed)
        });
        let pending: Vec<_> = pending.collect();
        let replies = pending.into_iter();
        let replies = replies.map(|reply| wait(&mut *reply?, self.operation));
        let replies: Vec<Result<Document>> = replies.collect();
        let replies: Vec<Document> = replies.into_iter().collect::<Result<_>>()?;
        Ok(replies.into_iter().find(has_run_before))
    }

    /// Runs the update in a partition. It waits for the storage.
    fn update(
        &self,
        update: &KeyUpdate,
        partition: usize,
        routed: RoutedRequest,
    ) -> Result<Document> {
        let mut reply = self.send_update(update, partition, routed)?;
        wait(&mut *reply, self.operation)
    }

    fn send_update(
        &self,
        update: &KeyUpdate,
        partition: usize,
        routed: RoutedRequest,
    ) -> Result<Box<dyn PendingReply>> {
        let mut body = DocumentBuilder::with_capacity(update.body.as_bytes().len());
        for element in update.body.iter() {
            if element.name() != "writeConcern" {
                body.append_element(element);
            }
        }
        body.append("writeConcern", doc! {"w": 1, "j": true});
        let routed = RoutedRequest {
            statements: vec![update.statement],
            ..routed
        };
        self.send(partition, body.finish(), routed)
    }

    fn send(
        &self,
        partition: usize,
        body: Document,
        routed: RoutedRequest,
    ) -> Result<Box<dyn PendingReply>> {
        let mut request = Request::new(body);
        request.routed = Some(Arc::new(RoutedRequest {
            placement: Some(PlacementVersion {
                namespace: self.namespace.to_string(),
                number: self.version,
            }),
            ..routed
        }));
        self.router.send(partition, request)
    }

    /// Removes the document from a partition, if it is there.
    fn remove(&self, partition: usize, id: ValueRef<'_>) -> Result<()> {
        let one = doc! {"q": by_id(id), "limit": 1, "collation": doc! {"locale": "simple"}};
        let delete = doc! {
            "delete": self.namespace.collection.as_str(), "deletes": vec![Value::from(one)],
            "writeConcern": doc! {"w": 1, "j": true},
        };
        let delete = command(&self.namespace.database, delete, self.operation, None);
        let mut reply = self.send(partition, delete, RoutedRequest::default())?;
        let reply = wait(&mut *reply, self.operation)?;
        let errors = reply.get("writeErrors").as_array();
        match errors.and_then(|errors| errors.get(0).as_document()) {
            Some(error) => Err(super::error_of(error, &["index"])),
            None => Ok(()),
        }
    }

    /// Admits other requests again, and returns the answer of a partition. No document has moved.
    fn unmoved(&self, placement: &Placement, answer: Result<Document>) -> Result<Document> {
        let placement = Some(Placement::clone(placement));
        let (stored, names) = (self.router.stored(), &self.router.names);
        let settled = stored.set(self.namespace, placement, self.version, names);
        answer.and_then(|reply| settled.map(|()| reply))
    }

    /// Admits other requests again. The same batch removes the record.
    fn end(&self, placement: &Placement) -> Result<()> {
        let placement = Some(Placement::clone(placement));
        let (stored, names) = (self.router.stored(), &self.router.names);
        stored.end_move(self.namespace, placement, self.version, names)
    }
}

fn by_id(id: ValueRef<'_>) -> Document {
    let mut out = DocumentBuilder::new();
    out.begin_document("_id");
    out.append_ref("$eq", id);
    out.end();
    out.finish()
}

/// True if the reply to an update says that it ran before.
fn has_run_before(reply: &Document) -> bool {
    let mut fields = ["retriedStmtIds", "retriedStmtId"].into_iter();
    fields.any(|field| !reply.get(field).is_missing())
}

//! Updates of one document that put it into another partition, because they change its shard key.
//!
//! ```text
//! 1  all partitions raise the next version: they refuse other requests on the collection, and its running reads and writes have ended
//! 2  the source     runs the update, which fails with the document before and after
//! 3  the target     has no document with that `_id`
//! 4  the catalog    a record of the move
//! 5  the target     inserts the document after, with the result of the update if it is repeated: from here on it is done
//! 6  the source     loses the document before
//! 7  the catalog    the placement by the new version, in one batch with the end of the record
//! ```
//!
//! If an update ends before step 5, it has done nothing. One that ends behind it is finished by the next command on the collection, as
//! a move of a range is ([`super::moves`]): if the target has the document, the source loses it. Nobody sees both: the partitions
//! refuse all requests until then.

use std::sync::Arc;

use nilometer_bson::{DocRef, Document, DocumentBuilder, Value, ValueRef, doc};

use super::key_guard::key_change;
use super::moves::{DocumentMove, MovedDocuments};
use super::partition::{command, wait};
use super::source::batch_of;
use super::versions::{MOVE_COMMAND, Reads, named};
use super::{Placement, Router, Sharding};
use crate::catalog::Namespace;
use crate::error::{Error, ErrorCode, Result};
use crate::operation::{GuardedKey, OperationContext, PlacementVersion, Request, RoutedRequest};

/// An update of one document, as a partition is asked for it.
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

    /// Ends an update of a shard key that was interrupted. True if the document is in the target.
    pub(super) fn end_key_move(
        &self,
        moved: &DocumentMove,
        (id, from, to): (ValueRef<'_>, usize, usize),
        placement: &Placement,
        operation: &OperationContext,
    ) -> Result<bool> {
        let mover = KeyMover {
            router: self,
            namespace: &moved.namespace,
            version: moved.version,
            operation,
        };
        let is_done = mover.has(to, id)?;
        if is_done {
            mover.remove(from, id)?;
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
        let id = change.before.get("_id").to_value();
        match self.has(to, id.as_ref()) {
            Ok(false) => {}
            Ok(true) => return self.unmoved(placement, Err(is_there(id.as_ref()))),
            Err(error) => return self.unmoved(placement, Err(error)),
        }
        let what = MovedDocuments::One {
            id: id.clone(),
            from,
            to,
        };
        let moved = DocumentMove {
            namespace: self.namespace.clone(),
            uuid: placement.uuid,
            what,
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

    /// Runs the update in a partition. It waits for the storage.
    fn update(
        &self,
        update: &KeyUpdate,
        partition: usize,
        routed: RoutedRequest,
    ) -> Result<Document> {
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
        self.ask(partition, body.finish(), routed)
    }

    fn ask(&self, partition: usize, body: Document, routed: RoutedRequest) -> Result<Document> {
        let mut request = Request::new(body);
        request.routed = Some(Arc::new(RoutedRequest {
            placement: Some(PlacementVersion {
                namespace: self.namespace.to_string(),
                number: self.version,
            }),
            ..routed
        }));
        wait(&mut *self.router.send(partition, request)?, self.operation)
    }

    /// True if a partition has a document with this `_id`.
    fn has(&self, partition: usize, id: ValueRef<'_>) -> Result<bool> {
        let find = doc! {
            "find": self.namespace.collection.as_str(), "filter": by_id(id), "limit": 1, "singleBatch": true,
            "projection": doc! {"_id": 1}, "collation": doc! {"locale": "simple"},
        };
        let find = command(&self.namespace.database, find, self.operation, None);
        let reply = self.ask(partition, find, RoutedRequest::default())?;
        Ok(!batch_of(&reply)?.0.is_empty())
    }

    /// Removes the document from a partition, if it is there.
    fn remove(&self, partition: usize, id: ValueRef<'_>) -> Result<()> {
        let one = doc! {"q": by_id(id), "limit": 1, "collation": doc! {"locale": "simple"}};
        let delete = doc! {
            "delete": self.namespace.collection.as_str(), "deletes": vec![Value::from(one)],
            "writeConcern": doc! {"w": 1, "j": true},
        };
        let delete = command(&self.namespace.database, delete, self.operation, None);
        let reply = self.ask(partition, delete, RoutedRequest::default())?;
        let errors = reply.get("writeErrors").as_array();
        match errors.and_then(|errors| errors.get(0).as_document()) {
            Some(error) => Err(super::error_of(error, &["index"])),
            None => Ok(()),
        }
    }

    /// Lets others go on, and returns what a partition has answered. Nothing has moved.
    fn unmoved(&self, placement: &Placement, answer: Result<Document>) -> Result<Document> {
        let placement = Some(Placement::clone(placement));
        let (stored, names) = (self.router.stored(), &self.router.names);
        let settled = stored.set(self.namespace, placement, self.version, names);
        answer.and_then(|reply| settled.map(|()| reply))
    }

    /// Lets others go on, and forgets the record in the same batch.
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

/// Returns the error of a document whose new partition has another one with its `_id`.
fn is_there(id: ValueRef<'_>) -> Error {
    let mut value = DocumentBuilder::new();
    value.append_ref("_id", id);
    let error = Error::new(
        ErrorCode::DuplicateKey,
        "Failed to update document's shard key field: its new partition has another document with this _id",
    );
    let error = error.with_detail("keyPattern", doc! {"_id": 1});
    error.with_detail("keyValue", value.finish())
}

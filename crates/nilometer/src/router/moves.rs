//! Moves of documents of sharded ordinary collections from one partition to another.
//!
//! ```text
//! 1  the catalog    a record of the move, with the version that is raised for it
//! 2  all partitions raise that version: they refuse other requests on the collection, and its running reads and writes have ended
//! 3  the target     gets copies
//! 4  the catalog    the record says that all are copied
//! 5  the source     loses its documents
//! 6  the catalog    the placement with the new chunks, in one batch with the end of the record
//! ```
//!
//! A move that ends before step 4 is undone: the copies go. One that ends behind it is finished. Both raise another version
//! first, so partitions refuse late requests of the interrupted attempt. Until the move ends, commands on the collection wait.
//! The next command on the collection ends an interrupted move ([`Router::settle_here`], [`Router::begin_change`]).

use std::sync::Arc;

use nilometer_bson::{Array, DocRef, Document, DocumentBuilder, Value, ValueRef, doc};

use super::partition::{command, wait};
use super::shard_key::{KeyBound, ShardKey};
use super::source::batch_of;
use super::versions::Reads;
use super::{Placement, Router};
use crate::catalog::Namespace;
use crate::error::{Error, ErrorCode, Result};
use crate::operation::{
    DocumentSequence, OperationContext, PlacementVersion, Request, RoutedRequest,
};

/// Documents that are read at once to be copied. The partition returns fewer if they are large.
const COPIED_AT_ONCE: i32 = 1000;

/// Documents that are deleted by one command.
const DELETED_AT_ONCE: i32 = 1000;

/// Documents that move together: for so long the collection has no answers.
const STEP_DOCUMENTS_MAX: i64 = 10_000;

/// Bytes of the documents that move together, by their mean size.
const STEP_BYTES: i64 = 16 << 20;

/// A range of keys, without its end unless that is the end of all keys, and the partitions between which it moves.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Passage {
    pub(crate) low: KeyBound,
    pub(crate) high: KeyBound,
    pub(crate) from: usize,
    pub(crate) to: usize,
}

/// A move of documents as the catalog has it.
#[derive(Clone, Debug)]
pub(super) struct DocumentMove {
    pub(super) namespace: Namespace,
    /// The collection whose documents move.
    pub(super) uuid: [u8; 16],
    pub(super) what: MovedDocuments,
    /// The version that its requests follow.
    pub(super) version: i64,
    /// When it began, in ms since 1970.
    pub(super) at_ms: i64,
}

/// What moves.
#[derive(Clone, Debug)]
pub(super) enum MovedDocuments {
    /// The documents of a range.
    Range {
        passage: Passage,
        /// True if the target has all of them.
        is_copied: bool,
    },
    /// The document with this `_id`, whose shard key an update changes ([`super::key_moves`]).
    One {
        id: Value,
        from: usize,
        to: usize,
        /// The version of the request that inserts it in the target.
        inserted_by: i64,
    },
}

/// What a request of a move needs.
#[derive(Clone, Copy)]
struct Mover<'m> {
    router: &'m Router,
    moved: &'m DocumentMove,
    passage: &'m Passage,
    key: &'m ShardKey,
    operation: &'m OperationContext,
}

impl Router {
    /// Moves the documents of a range, which one partition has, and then the range. The caller holds [`Self::lock_changes`].
    pub(crate) fn move_documents(
        &self,
        namespace: &Namespace,
        placement: &Placement,
        passage: Passage,
        operation: &OperationContext,
    ) -> Result<()> {
        let stored = self.stored();
        let moved = DocumentMove {
            namespace: namespace.clone(),
            uuid: placement.uuid,
            what: MovedDocuments::Range {
                passage: passage.clone(),
                is_copied: false,
            },
            version: stored.next_version(),
            at_ms: operation.now_ms,
        };
        stored.set_move(&moved, &self.names)?;
        let done = self.carry_out(moved, passage, placement, operation);
        if done.is_ok() {
            return Ok(());
        }
        // What ended the operation must not keep back those that wait for the collection.
        let own = OperationContext::internal(Arc::clone(operation.clock()), &namespace.database);
        match self.end_move(namespace, &own) {
            Ok(true) => Ok(()),
            // It ends later, if not now.
            Ok(false) | Err(_) => done,
        }
    }

    fn carry_out(
        &self,
        mut moved: DocumentMove,
        passage: Passage,
        placement: &Placement,
        operation: &OperationContext,
    ) -> Result<()> {
        let Some(sharding) = &placement.sharding else {
            return Ok(());
        };
        let (namespace, version) = (&moved.namespace, moved.version);
        self.raise(namespace, placement, version, Reads::Ended, operation)?;
        self.mover(&moved, &passage, &sharding.key, operation)
            .copy()?;
        moved.what = MovedDocuments::Range {
            passage: passage.clone(),
            is_copied: true,
        };
        self.stored().set_move(&moved, &self.names)?;
        let mover = self.mover(&moved, &passage, &sharding.key, operation);
        mover.remove_from(passage.from)?;
        self.store_moved(&moved, &passage, placement)
    }

    fn mover<'m>(
        &'m self,
        moved: &'m DocumentMove,
        passage: &'m Passage,
        key: &'m ShardKey,
        operation: &'m OperationContext,
    ) -> Mover<'m> {
        Mover {
            router: self,
            moved,
            passage,
            key,
            operation,
        }
    }

    /// Stores the placement in which the range has moved, and that nothing moves any more.
    fn store_moved(
        &self,
        moved: &DocumentMove,
        passage: &Passage,
        placement: &Placement,
    ) -> Result<()> {
        let mut placement = Placement::clone(placement);
        if let Some(sharding) = &mut placement.sharding {
            let Passage { low, high, to, .. } = passage.clone();
            Arc::make_mut(sharding).assign((low, high), to, moved.at_ms)?;
        }
        let namespace = &moved.namespace;
        let stored = self.stored();
        stored.end_move(namespace, Some(placement), moved.version, &self.names)
    }

    /// Ends a move of the collection that was interrupted. True if its documents are in the target. The caller holds
    /// [`Self::lock_changes`].
    pub(crate) fn end_move(
        &self,
        namespace: &Namespace,
        operation: &OperationContext,
    ) -> Result<bool> {
        let stored = self.stored();
        let Some(mut moved) = stored.move_of(namespace) else {
            return Ok(false);
        };
        let placement = self.placement(namespace);
        let same = placement
            .as_ref()
            .filter(|placement| placement.uuid == moved.uuid);
        let Some((placement, sharding)) =
            same.and_then(|placement| Some((placement, placement.sharding.as_ref()?)))
        else {
            // The collection is gone.
            let placement = placement.as_deref().cloned();
            stored.end_move(namespace, placement, moved.version, &self.names)?;
            return Ok(false);
        };
        moved.version = stored.next_version().max(moved.version + 1);
        stored.set_move(&moved, &self.names)?;
        let (passage, is_copied) = match &moved.what {
            MovedDocuments::Range { passage, is_copied } => (passage, *is_copied),
            MovedDocuments::One { .. } => return self.end_key_move(&moved, placement, operation),
        };
        self.raise(namespace, placement, moved.version, Reads::Ended, operation)?;
        let mover = self.mover(&moved, passage, &sharding.key, operation);
        if is_copied {
            mover.remove_from(passage.from)?;
            self.store_moved(&moved, passage, placement)?;
            return Ok(true);
        }
        mover.remove_from(passage.to)?;
        let unchanged = Some(Placement::clone(placement));
        stored.end_move(namespace, unchanged, moved.version, &self.names)?;
        Ok(false)
    }

    /// Returns the part of a range that moves at once: it begins where the range does. The partition answers by the placement of
    /// before.
    pub(crate) fn first_step(
        &self,
        namespace: &Namespace,
        key: &ShardKey,
        passage: &Passage,
        operation: &OperationContext,
    ) -> Result<Passage> {
        let stats = doc! {"collStats": namespace.collection.as_str()};
        let stats = self.ask_all(&[passage.from], &namespace.database, &stats, operation)?;
        let mean = stats
            .first()
            .and_then(|stats| stats.get("avgObjSize").as_exact_i64());
        let most = (STEP_BYTES / mean.unwrap_or(0).max(1)).clamp(1, STEP_DOCUMENTS_MAX);
        self.step_of(namespace, key, passage, most, operation)
    }

    /// Returns the part of a range that has about so many documents, from its begin.
    pub(crate) fn step_of(
        &self,
        namespace: &Namespace,
        key: &ShardKey,
        passage: &Passage,
        most: i64,
        operation: &OperationContext,
    ) -> Result<Passage> {
        let (database, name) = (&namespace.database, namespace.collection.as_str());
        let index = self.index_of(namespace, passage.from, key, operation)?;
        let Some(index) = index else {
            // Without an order there is no middle.
            return Ok(passage.clone());
        };
        let mut find = DocumentBuilder::extending(range_query(name, key, passage, Some(&index)));
        find.append("skip", most);
        find.append("limit", 1_i64);
        let found = self.ask_all(&[passage.from], database, &find.finish(), operation)?;
        let rows = found
            .first()
            .map(batch_of)
            .transpose()?
            .unwrap_or_default()
            .0;
        let behind = rows.first().map(|row| key.of(row.as_ref())).transpose()?;
        let mut step = passage.clone();
        // Documents with one key stay together, however many they are.
        if let Some(behind) = behind.filter(|behind| *behind > step.low && *behind < step.high) {
            step.high = behind;
        }
        Ok(step)
    }

    /// Returns the key of an index that has all documents in the order of the shard key; `None` if there is none.
    fn index_of(
        &self,
        namespace: &Namespace,
        partition: usize,
        key: &ShardKey,
        operation: &OperationContext,
    ) -> Result<Option<Document>> {
        let list = doc! {"listIndexes": namespace.collection.as_str()};
        let listed = self.ask_all(&[partition], &namespace.database, &list, operation)?;
        let mut indexes = Vec::new();
        for reply in &listed {
            indexes.extend(batch_of(reply)?.0);
        }
        let serves = |index: &&Document| {
            let is_hidden = matches!(index.get("hidden"), ValueRef::Bool(true));
            let of = index.get("key").as_document();
            let mut fields = of.unwrap_or(DocRef::EMPTY).iter();
            // `min` and `max` have ascending and hashed parts.
            let is_ascending = fields.all(|field| {
                field.value().as_exact_i64() == Some(1) || field.value().as_str() == Some("hashed")
            });
            !is_hidden && is_ascending && key.is_served_by(index.as_ref(), false)
        };
        let found = indexes.iter().find(serves);
        let key = found.and_then(|index| index.get("key").as_document());
        Ok(key.map(|key| key.to_document()))
    }
}

impl Mover<'_> {
    /// Sends a request of the move to a partition, and returns the reply.
    fn ask(
        &self,
        partition: usize,
        body: Document,
        documents: Option<Vec<u8>>,
    ) -> Result<Document> {
        let namespace = &self.moved.namespace;
        let mut request = Request::new(command(&namespace.database, body, self.operation, None));
        if let Some(buffer) = documents {
            let all = 0..buffer.len();
            let documents = DocumentSequence::new("documents".to_owned(), Arc::new(buffer), all);
            request.sequences.extend(documents);
        }
        request.routed = Some(Arc::new(RoutedRequest {
            placement: Some(PlacementVersion {
                namespace: namespace.to_string(),
                number: self.moved.version,
            }),
            ..RoutedRequest::default()
        }));
        let reply = wait(&mut *self.router.send(partition, request)?, self.operation)?;
        let errors = reply.get("writeErrors").as_array();
        let error = errors.and_then(|errors| errors.get(0).as_document());
        match error {
            Some(error) => {
                Err(super::error_of(error, &["index"]).context("a document cannot be moved"))
            }
            None => Ok(reply),
        }
    }

    fn query(&self, partition: usize) -> Result<Document> {
        let Self {
            router, moved, key, ..
        } = self;
        let namespace = &moved.namespace;
        let index = router.index_of(namespace, partition, key, self.operation)?;
        let name = &namespace.collection;
        Ok(range_query(name, key, self.passage, index.as_ref()))
    }

    /// Copies the documents to the target.
    fn copy(&self) -> Result<()> {
        let Passage { from, to, .. } = *self.passage;
        let name = self.moved.namespace.collection.as_str();
        let mut query = DocumentBuilder::extending(self.query(from)?);
        query.append("batchSize", COPIED_AT_ONCE);
        let mut reply = self.ask(from, query.finish(), None)?;
        loop {
            let (rows, id) = batch_of(&reply)?;
            if !rows.is_empty() {
                let bytes = rows.iter().flat_map(|row| row.as_bytes().iter().copied());
                let insert = doc! {
                    "insert": name, "ordered": true, "bypassDocumentValidation": true,
                    "writeConcern": doc! {"w": 1, "j": true},
                };
                self.ask(to, insert, Some(bytes.collect()))?;
            }
            if id == 0 {
                return Ok(());
            }
            let more = doc! {"getMore": id, "collection": name, "batchSize": COPIED_AT_ONCE};
            reply = self.ask(from, more, None)?;
        }
    }

    /// Deletes the documents of the range in a partition.
    fn remove_from(&self, partition: usize) -> Result<()> {
        let name = self.moved.namespace.collection.as_str();
        let mut find = DocumentBuilder::extending(self.query(partition)?);
        find.append("projection", doc! {"_id": 1});
        find.append("limit", i64::from(DELETED_AT_ONCE));
        find.append("singleBatch", true);
        let find = find.finish();
        loop {
            let (rows, _) = batch_of(&self.ask(partition, find.clone(), None)?)?;
            if rows.is_empty() {
                return Ok(());
            }
            let ids = rows.iter().map(|row| row.get("_id").to_value());
            let q = doc! {"_id": doc! {"$in": ids.collect::<Array>()}};
            let one = doc! {"q": q, "limit": 0, "collation": doc! {"locale": "simple"}};
            let delete = doc! {
                "delete": name, "deletes": vec![Value::from(one)],
                "writeConcern": doc! {"w": 1, "j": true},
            };
            let reply = self.ask(partition, delete, None)?;
            if reply.get("n").as_exact_i64() == Some(0) {
                return Err(Error::new(
                    ErrorCode::InternalError,
                    "documents that have moved cannot be deleted",
                ));
            }
        }
    }
}

/// Returns a `find` of the documents of a range: by an index in its order, or by looking at all.
fn range_query(
    name: &str,
    key: &ShardKey,
    passage: &Passage,
    index: Option<&Document>,
) -> Document {
    let mut out = DocumentBuilder::new();
    out.append("find", name);
    out.append("filter", key.between(&passage.low, &passage.high));
    out.append("collation", doc! {"locale": "simple"});
    let Some(index) = index else {
        return out.finish();
    };
    let limit = |bound: &KeyBound| {
        let mut limit = DocumentBuilder::new();
        for (at, part) in index.iter().enumerate() {
            let value = bound.0.get(at).map_or(ValueRef::MinKey, Value::as_ref);
            limit.append_ref(part.name(), value);
        }
        limit.finish()
    };
    out.append("hint", index.clone());
    out.append("min", limit(&passage.low));
    if passage.high != key.whole().1 {
        out.append("max", limit(&passage.high));
    }
    out.finish()
}

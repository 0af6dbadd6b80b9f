//! The targets of `$out` and `$merge` on a router: what the partitions with the targets are sent.
//!
//! ```text
//! $merge   documents ─► aggregate [{$merge}] with the documents in front of it ─► the partition of each document
//! $out     documents ─► _replaceContents, batch by batch ─► the partition of the target, which hides them
//!          at the end ─► _replaceContents {finish: true} ─► the partition installs them as one server does
//! ```
//!
//! So the meaning of both stages, and their errors, are those of one server. A target that does not exist is created in the
//! catalog of the cluster with the first document of a `$merge`, and right before the end of an `$out`. If the process of the
//! partition is lost before the end, the new contents are, too: the command fails, and the target is as it was.

use std::collections::BTreeMap;
use std::sync::Arc;

use nilometer_bson::path::FieldPath;
use nilometer_bson::{DocRef, Document, DocumentBuilder, Value, ValueRef, doc};

use super::hosted::REPLACE_COMMAND;
use crate::catalog::{Collection, Namespace, TimeseriesOptions};
use crate::database::collections::StoredCollections;
use crate::database::routed::RoutedCollections;
use crate::error::{Error, ErrorCode, Result, location};
use crate::eval::Collation;
use crate::eval::expression::parse_path;
use crate::modify::WriteTarget;
use crate::operation::{DocumentSequence, OperationContext, Request, RoutedRequest};
use crate::query::source::{DistantMerge, DistantMergeStage, MergeTarget, Outputs, Replacement};
use crate::router::{
    Coordinator, GIVEN_SEQUENCE, KeyChange, PLACE_COMMAND, PendingReply, Placement, Router,
    ShardKey, batch_of, command, constants, version_asked, wait, write_request,
};
use crate::write::with_id;

/// How often a write begins again because its placement has changed.
const PLACEMENT_CHANGES_MAX: usize = 100;

/// Bytes of the documents of an `$out` that are sent at once, unless it is one document.
const BATCH_BYTES_MAX: usize = 16 << 20;

impl Outputs for RoutedCollections {
    fn check_replaceable(
        &self,
        target: &Namespace,
        timeseries: Option<&TimeseriesOptions>,
    ) -> Result<()> {
        self.own.check_replaceable(target, timeseries)?;
        let placement = self.router.placement(target);
        match placement.filter(|placement| placement.sharding.is_some()) {
            None => Ok(()),
            Some(_) => Err(sharded(target)),
        }
    }

    fn replace(
        &self,
        target: &Namespace,
        timeseries: Option<&TimeseriesOptions>,
    ) -> Result<Box<dyn Replacement>> {
        self.check_replaceable(target, timeseries)?;
        let placement = self.router.placement(target);
        Ok(Box::new(RoutedReplacement {
            router: Arc::clone(&self.router),
            own: Arc::clone(&self.own),
            target: target.clone(),
            timeseries: timeseries.cloned(),
            partition: placement
                .as_ref()
                .map_or_else(|| self.router.new_primary(), |known| known.primary),
            placement,
            id: self.router.new_uuid(),
            has_begun: false,
            pending: None,
            is_finished: false,
        }))
    }

    fn merge_into(&self, target: &Namespace) -> Result<Box<dyn MergeTarget>> {
        self.own.merge_into(target)
    }

    fn merge_elsewhere(&self, target: &Namespace) -> Result<Option<Box<dyn DistantMerge>>> {
        let sharding = self.router.sharding(target);
        if sharding.is_some_and(|sharding| sharding.key.is_timeseries()) {
            return Err(Error::new(
                ErrorCode::CommandNotSupported,
                format!("$merge cannot write to the sharded time-series collection {target}"),
            ));
        }
        Ok(Some(Box::new(RoutedMerge {
            router: Arc::clone(&self.router),
            own: Arc::clone(&self.own),
            target: target.clone(),
        })))
    }
}

fn sharded(target: &Namespace) -> Error {
    Error::location(
        location::OUT_TO_SHARDED,
        format!("namespace '{target}' is sharded so it can't be used for $out"),
    )
}

fn changed_meanwhile(target: &Namespace) -> Error {
    Error::new(
        ErrorCode::CommandFailed,
        format!("collection {target} changed while it was being replaced"),
    )
}

fn unsettled(target: &Namespace) -> Error {
    Error::new(
        ErrorCode::ConflictingOperationInProgress,
        format!("the placement of {target} changes all the time"),
    )
}

/// Returns documents as a sequence of a message.
fn sequence<'d>(
    name: &str,
    documents: impl Iterator<Item = DocRef<'d>>,
) -> Option<DocumentSequence> {
    let mut buffer = Vec::new();
    for document in documents {
        buffer.extend_from_slice(document.as_bytes());
    }
    let all = 0..buffer.len();
    DocumentSequence::new(name.to_owned(), Arc::new(buffer), all)
}

/// New contents of a collection that its partition keeps until they are complete.
struct RoutedReplacement {
    router: Arc<Router>,
    own: Arc<StoredCollections>,
    target: Namespace,
    timeseries: Option<TimeseriesOptions>,
    partition: usize,
    /// `None` if the target did not exist.
    placement: Option<Arc<Placement>>,
    id: [u8; 16],
    has_begun: bool,
    /// The reply to the batch before.
    pending: Option<Box<dyn PendingReply>>,
    is_finished: bool,
}

impl RoutedReplacement {
    fn command(&self) -> DocumentBuilder {
        replacing(&self.id, &self.target)
    }

    /// Sends a batch when the one before is stored.
    fn send<'d>(
        &mut self,
        documents: impl Iterator<Item = DocRef<'d>>,
        operation: &OperationContext,
    ) -> Result<()> {
        self.await_reply(operation)?;
        let mut body = self.command();
        if !self.has_begun {
            body.append("begin", true);
            if let Some(options) = &self.timeseries {
                body.append("timeseries", options.to_document());
            }
        }
        body.append("bypassDocumentValidation", operation.bypass.validation);
        body.append(
            "bypassEmptyTsReplacement",
            operation.bypass.empty_timestamps,
        );
        let placement = self.placement.as_ref();
        let routed = RoutedRequest {
            placement: placement.map(|placement| placement.version_of(&self.target)),
            ..RoutedRequest::default()
        };
        let database = &self.target.database;
        let body = command(database, body.finish(), operation, None);
        let request = Request {
            body,
            sequences: sequence("documents", documents).into_iter().collect(),
            // A batch after the first belongs to what has begun, whatever happens to the target.
            routed: (!self.has_begun).then(|| Arc::new(routed)),
        };
        self.has_begun = true;
        self.pending = Some(self.router.send(self.partition, request)?);
        Ok(())
    }

    fn await_reply(&mut self, operation: &OperationContext) -> Result<()> {
        match self.pending.take() {
            None => Ok(()),
            Some(mut reply) => wait(&mut *reply, operation).map(drop),
        }
    }

    /// Puts the target into the catalog of the cluster, in the partition with its contents, which are its own then.
    fn create(&self, operation: &OperationContext) -> Result<()> {
        match self.router.elsewhere() {
            None => {
                let by = (&*self.own, &*self.router);
                let contents = (self.partition, &self.id[..]);
                place_new(by, &self.target, self.timeseries.as_ref(), contents)
            }
            Some(coordinator) => {
                let mut place = DocumentBuilder::new();
                place.append(PLACE_COMMAND, self.target.to_string());
                place.append("partition", self.router.name(self.partition));
                let id = ValueRef::Binary {
                    subtype: 4,
                    bytes: &self.id,
                };
                place.append_ref("contents", id);
                if let Some(options) = &self.timeseries {
                    place.append("timeseries", options.to_document());
                }
                let place = command("admin", place.finish(), operation, None);
                let placed = wait(&mut *coordinator.send(Request::new(place)), operation);
                coordinator.catch_up()?;
                placed.map(drop)
            }
        }
    }

    /// Returns the target's placement, if it is still the collection that is replaced.
    fn settled(&self, before: &Placement) -> Result<Arc<Placement>> {
        let now = self.router.placement(&self.target);
        match now {
            Some(now) if now.sharding.is_some() => Err(sharded(&self.target)),
            Some(now) if now.uuid == before.uuid && now.primary == self.partition => Ok(now),
            _ => Err(changed_meanwhile(&self.target)),
        }
    }
}

impl Replacement for RoutedReplacement {
    fn insert(&mut self, documents: &[Document], operation: &OperationContext) -> Result<()> {
        let mut rest = documents;
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = |document: &&Document| {
                bytes += document.as_bytes().len();
                bytes <= BATCH_BYTES_MAX
            };
            let count = rest.iter().take_while(fits).count().max(1);
            let (batch, later) = rest.split_at(count);
            self.send(batch.iter().map(Document::as_ref), operation)?;
            rest = later;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>, operation: &OperationContext) -> Result<()> {
        if !self.has_begun {
            self.send(std::iter::empty(), operation)?;
        }
        self.await_reply(operation)?;
        let router = Arc::clone(&self.router);
        let _write = router.begin_write();
        let Some(placement) = self.placement.take() else {
            self.create(operation)?;
            self.is_finished = true;
            return Ok(());
        };
        let mut placement = self.settled(&placement)?;
        for _ in 0..PLACEMENT_CHANGES_MAX {
            let mut body = self.command();
            body.append("finish", true);
            let body = command(&self.target.database, body.finish(), operation, None);
            let mut request = Request::new(body);
            request.routed = Some(Arc::new(RoutedRequest {
                placement: Some(placement.version_of(&self.target)),
                ..RoutedRequest::default()
            }));
            let finished = self.router.send(self.partition, request);
            match finished.and_then(|mut reply| wait(&mut *reply, operation)) {
                Ok(_) => {
                    self.is_finished = true;
                    return Ok(());
                }
                Err(error) => {
                    let wanted = version_asked(&error).ok_or(error)?;
                    self.router.settle(&wanted, operation)?;
                    placement = self.settled(&placement)?;
                }
            }
        }
        Err(unsettled(&self.target))
    }
}

impl Drop for RoutedReplacement {
    fn drop(&mut self) {
        if self.has_begun && !self.is_finished {
            let mut body = self.command();
            body.append("abort", true);
            body.append("$db", self.target.database.as_str());
            // A partition that is gone has nothing to forget.
            let _ = self
                .router
                .send(self.partition, Request::new(body.finish()));
        }
    }
}

/// Begins a request about the contents that a partition keeps for an `$out`.
fn replacing(id: &[u8], target: &Namespace) -> DocumentBuilder {
    let mut out = DocumentBuilder::new();
    let id = ValueRef::Binary {
        subtype: 4,
        bytes: id,
    };
    out.append_ref(REPLACE_COMMAND, id);
    out.append("target", target.collection.as_str());
    out
}

/// Creates the target of an `$out` in the catalog of the cluster. First the partition installs the contents that it keeps by this
/// id, then the target gets its placement: no write reaches a target without its contents.
pub(in crate::database) fn place_new(
    (own, router): (&StoredCollections, &Router),
    target: &Namespace,
    timeseries: Option<&TimeseriesOptions>,
    (partition, id): (usize, &[u8]),
) -> Result<()> {
    let _changes = router.lock_changes();
    if router.placement(target).is_some() {
        return Err(changed_meanwhile(target));
    }
    let clock = own.services.clock.clone();
    let operation = OperationContext::internal(clock, &target.database);
    if own.catalog.get(target).is_some() {
        clear((router, &operation), target, |other| other != partition)?;
    }
    own.replace(target, timeseries)?.finish(&operation)?;
    let mut finish = replacing(id, target);
    finish.append("finish", true);
    router.ask_all(&[partition], &target.database, &finish.finish(), &operation)?;
    let placement = Placement::whole(partition, router.new_uuid());
    router.set_placement(target, Some(placement))
}

/// A collection in partitions to merge into.
struct RoutedMerge {
    router: Arc<Router>,
    own: Arc<StoredCollections>,
    target: Namespace,
}

impl RoutedMerge {
    /// Returns the request for a batch.
    fn request(
        &self,
        merge: &DistantMergeStage,
        documents: &[Document],
        placement: Option<&Placement>,
        operation: &OperationContext,
    ) -> Request {
        let collation = merge.collation.clone();
        let body = doc! {
            "aggregate": 1,
            "pipeline": vec![Value::from(merge.stage.clone())],
            "cursor": Document::new(),
            "let": constants(&merge.variables),
            "collation": collation.unwrap_or_else(|| doc! {"locale": "simple"}),
            "bypassDocumentValidation": operation.bypass.validation,
            "writeConcern": doc! {"w": 1, "j": operation.write_concern.journaled},
        };
        let routed = RoutedRequest {
            placement: placement.map(|placement| placement.version_of(&self.target)),
            merge_now_ms: Some(operation.now_ms),
            ..RoutedRequest::default()
        };
        let mut request = write_request(&merge.database, body, operation, routed);
        let documents = documents.iter().map(Document::as_ref);
        request
            .sequences
            .extend(sequence(GIVEN_SEQUENCE, documents));
        request
    }
}

impl DistantMerge for RoutedMerge {
    fn identity(
        &self,
        named: Option<&[FieldPath]>,
        collation: &Collation,
    ) -> Result<Arc<[FieldPath]>> {
        let own = self.own.merge_into(&self.target)?;
        let sharding = self.router.sharding(&self.target);
        let id = [parse_path("_id")?];
        let (fields, unique, has_key) = match (named, &sharding) {
            (Some(named), sharding) => {
                let sharding = sharding.as_ref();
                let has_key = sharding.is_none_or(|sharding| names_key(&sharding.key, named));
                (named.to_vec(), named, has_key)
            }
            (None, None) => (id.to_vec(), &id[..], true),
            // Documents of one key are in one partition, in which no two have the same `_id`.
            (None, Some(sharding)) => {
                let key = sharding.key.parts().iter().map(|part| part.path.clone());
                let mut fields: Vec<FieldPath> = key.collect();
                if !fields.contains(&id[0]) {
                    fields.extend_from_slice(&id);
                }
                (fields, &id[..], true)
            }
        };
        match has_key && own.has_unique_index_on(unique, collation)? {
            true => Ok(fields.into()),
            false => Err(Error::location(
                location::MERGE_ON_NOT_UNIQUE_ON_ROUTER,
                "Cannot find index to verify that join fields will be unique",
            )),
        }
    }

    fn write(
        &mut self,
        merge: &DistantMergeStage,
        documents: Vec<Document>,
        operation: &OperationContext,
    ) -> Result<()> {
        let mut open = documents;
        for _ in 0..PLACEMENT_CHANGES_MAX {
            let _write = self.router.begin_write();
            let placement = match self.router.placement(&self.target) {
                None if merge.inserts => {
                    Some(placed(&self.own, operation, &self.router, &self.target)?)
                }
                found => found,
            };
            let groups = self.groups(merge, open, placement.as_deref(), operation)?;
            let pending = groups.iter().map(|(partition, documents)| {
                let request = self.request(merge, documents, placement.as_deref(), operation);
                self.router.send(*partition, request)
            });
            let pending: Vec<_> = pending.collect();
            let (mut refused, mut failed, mut rest) = (None, None, Vec::new());
            for (sent, (_, documents)) in pending.into_iter().zip(groups) {
                match sent.and_then(|mut reply| wait(&mut *reply, operation)) {
                    Ok(_) => {}
                    Err(error) => match version_asked(&error) {
                        Some(wanted) => {
                            refused = Some(wanted);
                            rest.extend(documents);
                        }
                        None => failed = failed.or(Some(error)),
                    },
                }
            }
            match (failed, refused) {
                (Some(error), _) => return Err(error),
                (None, None) => return Ok(()),
                (None, Some(wanted)) => self.router.settle(&wanted, operation)?,
            }
            open = rest;
        }
        Err(unsettled(&self.target))
    }
}

impl RoutedMerge {
    /// Divides documents by the partitions in which they are written.
    fn groups(
        &self,
        merge: &DistantMergeStage,
        documents: Vec<Document>,
        placement: Option<&Placement>,
        operation: &OperationContext,
    ) -> Result<Vec<(usize, Vec<Document>)>> {
        // Without a target no document has a match, in any partition.
        let Some(placement) = placement else {
            return Ok(vec![(0, documents)]);
        };
        let Some(sharding) = &placement.sharding else {
            return Ok(vec![(placement.primary, documents)]);
        };
        if sharding.key.is_timeseries() || !names_key(&sharding.key, &merge.on) {
            return Err(changed_meanwhile(&self.target));
        }
        let options = merge.stage.get("$merge").as_document();
        let matched = options.map_or(ValueRef::Missing, |options| options.get("whenMatched"));
        if let ValueRef::Array(_) = matched {
            let change = sharding.key.change_by(matched, false)?;
            if change != KeyChange::None {
                return Err(Error::new(
                    ErrorCode::CommandNotSupported,
                    "$merge does not change the shard key of documents",
                ));
            }
        }
        let new_id = || self.own.services.ids.object_id(operation.now_ms);
        // One that is identified otherwise keeps the `_id` of its match.
        let is_on_id = merge.on.iter().any(|path| path.as_str() == "_id");
        let mut groups: BTreeMap<usize, Vec<Document>> = BTreeMap::new();
        for document in documents {
            let document = match is_on_id {
                true => with_id(document, &new_id),
                false => document,
            };
            let partition = placement.partition_of(document.as_ref())?;
            groups.entry(partition).or_default().push(document);
        }
        Ok(groups.into_iter().collect())
    }
}

/// True if the fields that identify a document include the shard key.
fn names_key(key: &ShardKey, fields: &[FieldPath]) -> bool {
    let mut parts = key.parts().iter();
    parts.all(|part| fields.contains(&part.path))
}

/// Returns where the documents of a collection are; creates an ordinary collection if there is none. `own` is the router's own
/// catalog.
pub(crate) fn placed(
    own: &StoredCollections,
    operation: &OperationContext,
    router: &Router,
    namespace: &Namespace,
) -> Result<Arc<Placement>> {
    if let Some(placement) = router.placement(namespace) {
        return Ok(placement);
    }
    // Views are refused.
    WriteTarget::of(&own.catalog, namespace)?;
    if let Some(coordinator) = router.elsewhere() {
        return placed_elsewhere((router, coordinator), operation, namespace);
    }
    let _changes = router.lock_changes();
    if router.placement(namespace).is_none() {
        if own.catalog.get(namespace).is_some() {
            clear((router, operation), namespace, |_| true)?;
        }
        let collection = match own.catalog.timeseries(namespace) {
            Some(buckets) => buckets,
            None => own.modify().find_or_create(operation, namespace)?,
        };
        let create = creation_of(namespace, &collection);
        place((router, operation), namespace, &create)?;
    }
    let placement = router.placement(namespace);
    Ok(placement.expect("it was set under the lock"))
}

/// Returns the command that creates a collection as the catalog has it.
fn creation_of(namespace: &Namespace, collection: &Collection) -> Document {
    let mut create = DocumentBuilder::new();
    create.append("create", namespace.collection.as_str());
    create.append_all(collection.options.as_ref());
    let timeseries = collection.timeseries.as_ref();
    create.append(
        "timeseries",
        timeseries.map(|options| options.to_document()),
    );
    create.finish()
}

/// Makes a collection that is new in the catalog in a partition, and then its placement. The caller holds
/// [`Router::lock_changes`].
pub(crate) fn place(
    by: (&Router, &OperationContext),
    namespace: &Namespace,
    create: &Document,
) -> Result<()> {
    let router = by.0;
    let primary = router.new_primary();
    router.ask_all(&[primary], &namespace.database, create, by.1)?;
    let placement = Placement::whole(primary, router.new_uuid());
    router.set_placement(namespace, Some(placement))
}

/// Drops what interrupted commands have left in partitions of a collection that the catalog has without a placement. The caller holds
/// [`Router::lock_changes`].
pub(crate) fn clear(
    (router, operation): (&Router, &OperationContext),
    namespace: &Namespace,
    is_cleared: impl Fn(usize) -> bool,
) -> Result<()> {
    let partitions: Vec<usize> = (0..router.count()).filter(|p| is_cleared(*p)).collect();
    let drop_it = doc! {"drop": namespace.collection.as_str()};
    let dropped = router.ask_all(&partitions, &namespace.database, &drop_it, operation);
    dropped.map(drop)
}

/// Creates a collection in partitions that have no documents of it by its placement, in the place of what an interrupted command has
/// left there. Fails if that has documents. The caller holds [`Router::lock_changes`].
pub(crate) fn create_anew(
    (router, operation): (&Router, &OperationContext),
    namespace: &Namespace,
    partitions: &[usize],
    create: &Document,
) -> Result<()> {
    let (db, name) = (&namespace.database, namespace.collection.as_str());
    let find = doc! {"find": name, "limit": 1, "singleBatch": true};
    for reply in router.ask_all(partitions, db, &find, operation)? {
        if !batch_of(&reply)?.0.is_empty() {
            return Err(Error::new(
                ErrorCode::NamespaceExists,
                format!("a partition has documents of {namespace} that are not of the cluster"),
            ));
        }
    }
    router.ask_all(partitions, db, &doc! {"drop": name}, operation)?;
    router.ask_all(partitions, db, create, operation).map(drop)
}

/// Does so at the router that has the catalog.
fn placed_elsewhere(
    (router, coordinator): (&Router, &Arc<dyn Coordinator>),
    operation: &OperationContext,
    namespace: &Namespace,
) -> Result<Arc<Placement>> {
    coordinator.catch_up()?;
    if let Some(placement) = router.placement(namespace) {
        return Ok(placement);
    }
    let create = doc! {"create": namespace.collection.as_str()};
    let create = command(&namespace.database, create, operation, None);
    let created = wait(&mut *coordinator.send(Request::new(create)), operation);
    // Also a command that failed may have changed something.
    coordinator.catch_up()?;
    match created {
        // Another client was faster.
        Err(error) if error.code != ErrorCode::NamespaceExists => return Err(error),
        _ => {}
    }
    router
        .placement(namespace)
        .ok_or_else(|| dropped(namespace))
}

/// Returns the error for a collection that is dropped while a write begins.
pub(crate) fn dropped(namespace: &Namespace) -> Error {
    Error::new(
        ErrorCode::QueryPlanKilled,
        format!("collection dropped: {namespace}"),
    )
}

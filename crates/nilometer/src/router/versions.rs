//! Changes of placements when there are several routers.
//!
//! One router has the catalog of the cluster and changes it; the others read it and send it their changes
//! ([`Coordinator`]). Every request that follows a placement names its version. Before a placement is replaced, the
//! partitions are told to refuse the versions before ([`Router::begin_change`]), so no router follows one that was replaced:
//! its request fails with code 13388, and it reads the placements again ([`Router::settle`]).
//!
//! A change that fails half-way has raised a version that no placement has. The router with the catalog then gives the
//! placement that version when it is asked to settle.

use std::sync::Arc;

use nilometer_bson::{Document, DocumentBuilder, ObjectId, Value, doc};

use super::partition::{PendingReply, wait};
use super::report::{PartitionMove, RouterReport};
use super::{Placement, Router};
use crate::catalog::Namespace;
use crate::error::{Error, ErrorCode, Result};
use crate::operation::{OperationContext, PlacementVersion, Request};

/// What a partition is told before a placement is replaced.
pub(crate) const RAISE_COMMAND: &str = "_raisePlacement";

/// What the router with the catalog is told by one whose placement was refused.
pub(crate) const SETTLE_COMMAND: &str = "_settlePlacement";

/// What the router with the catalog is told by one that is about to change shard keys of documents.
pub(crate) const NOTE_COMMAND: &str = "_noteAnyKey";

/// What the router with the catalog is told by one whose update would put a document into another partition.
pub(crate) const MOVE_COMMAND: &str = "_moveDocument";

/// What the router with the catalog is told by one whose `$out` creates its target.
pub(crate) const PLACE_COMMAND: &str = "_placeOutput";

/// What a partition is told when the writes of a command that it has buffered are to be durable: its argument is the opening.
pub(crate) const SYNC_COMMAND: &str = "_syncPartition";

/// The field of the reply to a write that identifies the opening of the partition: what it has buffered is lost with it.
pub(crate) const OPENING_FIELD: &str = "partitionOpening";

/// The field of [`RAISE_COMMAND`] that says whether reads are waited for.
pub(crate) const READS_FIELD: &str = "reads";

/// The field of [`RAISE_COMMAND`] that says whether cursors end, too.
pub(crate) const CURSORS_FIELD: &str = "cursors";

/// The field of the reply to [`RAISE_COMMAND`] with the version by which the partition last got a document of another one.
pub(crate) const ACCEPTED_FIELD: &str = "accepted";

/// What a change of a placement waits for, or ends, beside the writes by the placement before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reads {
    /// They continue.
    Continue,
    /// Those that run are waited for. Cursors stay open.
    Awaited,
    /// Those that run are waited for. Cursors end.
    Ended,
}

/// The field of an error that names the version which a partition asks for.
const WANTED: &str = "vWanted";

/// Reaches the router that has the catalog of the cluster.
pub trait Coordinator: Send + Sync {
    /// Sends a command to the router that has the catalog. Does not wait for the reply.
    fn send(&self, request: Request) -> Box<dyn PendingReply>;

    /// Waits until this router sees the catalog as it was when the call began.
    fn catch_up(&self) -> Result<()>;

    /// Returns what identifies the cluster.
    fn cluster_id(&self) -> ObjectId;

    /// Returns the routers of the cluster.
    fn routers(&self) -> Vec<RouterReport>;

    /// Returns the last moves of partitions between processes that this one has seen, the earliest first.
    fn moves(&self) -> Vec<PartitionMove>;
}

/// Returns the error of a request that follows a placement which was replaced.
pub(crate) fn stale(namespace: &str, wanted: i64) -> Error {
    let text = format!("the placement of {namespace} has changed");
    let error = Error::new(ErrorCode::StaleConfig, text);
    error.with_detail(WANTED, version_document(namespace, wanted))
}

/// Returns the version that a partition asks for in an error; `None` for other errors.
pub(crate) fn version_asked(error: &Error) -> Option<PlacementVersion> {
    if error.code != ErrorCode::StaleConfig {
        return None;
    }
    let wanted = error.details.as_ref()?.get(WANTED).as_document()?;
    super::read_placement(wanted).ok()
}

fn version_document(namespace: &str, number: i64) -> Document {
    doc! {"ns": namespace, "number": number}
}

/// Returns a command whose first field is a version.
fn about(name: &str, namespace: &str, number: i64) -> Document {
    let mut out = DocumentBuilder::new();
    out.append(name, Value::from(version_document(namespace, number)));
    out.finish()
}

impl Router {
    /// Returns the router that changes the catalog, if that is another one.
    pub(crate) fn elsewhere(&self) -> Option<&Arc<dyn Coordinator>> {
        self.coordinator
            .as_ref()
            .filter(|_| self.stored().is_view())
    }

    /// Returns where the documents of a collection are, as [`Self::placement`]. If this router knows no placement, it looks
    /// for a newer catalog first: another router may have created the collection a moment ago.
    pub(crate) fn newest_placement(&self, namespace: &Namespace) -> Result<Option<Arc<Placement>>> {
        let known = self.placement(namespace);
        match self.elsewhere() {
            Some(coordinator) if known.is_none() => {
                coordinator.catch_up()?;
                Ok(self.placement(namespace))
            }
            _ => Ok(known),
        }
    }

    /// Lets no partition answer requests that follow the placement of the collection, which is about to be replaced. The
    /// caller holds [`Self::lock_changes`].
    pub(crate) fn begin_change(
        &self,
        namespace: &Namespace,
        operation: &OperationContext,
    ) -> Result<()> {
        self.end_move(namespace, operation)?;
        match self.placement(namespace) {
            None => Ok(()),
            Some(placement) => {
                let next = self.stored().next_version();
                let raised = self.raise(namespace, &placement, next, Reads::Continue, operation);
                raised.map(drop)
            }
        }
    }

    /// Lets no partition answer requests that follow an earlier version. Waits for the writes by them that run. Returns the replies of
    /// the partitions.
    pub(super) fn raise(
        &self,
        namespace: &Namespace,
        placement: &Placement,
        number: i64,
        reads: Reads,
        operation: &OperationContext,
    ) -> Result<Vec<(usize, Document)>> {
        let mut raise =
            DocumentBuilder::extending(about(RAISE_COMMAND, &namespace.to_string(), number));
        raise.append(READS_FIELD, reads != Reads::Continue);
        raise.append(CURSORS_FIELD, reads == Reads::Ended);
        let partitions = placement.partitions(self.count());
        let replies = self.ask_all(&partitions, "admin", &raise.finish(), operation)?;
        Ok(partitions.into_iter().zip(replies).collect())
    }

    /// Makes this router see a placement of the version that a partition asks for. The caller does not hold
    /// [`Self::lock_changes`].
    pub(crate) fn settle(
        &self,
        wanted: &PlacementVersion,
        operation: &OperationContext,
    ) -> Result<()> {
        let Some(coordinator) = self.elsewhere() else {
            return self.settle_here(wanted, operation);
        };
        coordinator.catch_up()?;
        if self.has_settled(wanted)? {
            return Ok(());
        }
        let settle = about(SETTLE_COMMAND, &wanted.namespace, wanted.number);
        let settle = super::command("admin", settle, operation, None);
        wait(&mut *coordinator.send(Request::new(settle)), operation)?;
        coordinator.catch_up()
    }

    /// Gives the placement of the collection that version at least, if it has an earlier one.
    pub(crate) fn settle_here(
        &self,
        wanted: &PlacementVersion,
        operation: &OperationContext,
    ) -> Result<()> {
        // A change that runs ends first.
        let _changes = self.lock_changes();
        let namespace = namespace_of(wanted)?;
        self.end_move(&namespace, operation)?;
        if self.has_settled(wanted)? {
            return Ok(());
        }
        let placement = self.placement(&namespace);
        let placement = placement.map(|placement| Placement::clone(&placement));
        self.stored()
            .set(&namespace, placement, wanted.number, &self.names)
    }

    /// Notes that documents of these partitions may have any key from now on. The caller does not hold
    /// [`Self::lock_changes`].
    pub(crate) fn note_any_key(
        &self,
        namespace: &Namespace,
        partitions: &[usize],
        operation: &OperationContext,
    ) -> Result<()> {
        let Some(coordinator) = self.elsewhere() else {
            return self.note_any_key_here(namespace, partitions, operation);
        };
        let names = partitions.iter().map(|partition| self.name(*partition));
        let names: Vec<Value> = names.map(Value::from).collect();
        let mut note = DocumentBuilder::new();
        note.append(NOTE_COMMAND, namespace.to_string());
        note.append("partitions", names);
        let note = super::command("admin", note.finish(), operation, None);
        let noted = wait(&mut *coordinator.send(Request::new(note)), operation);
        coordinator.catch_up()?;
        noted.map(drop)
    }

    /// Does so at the router that has the catalog.
    fn note_any_key_here(
        &self,
        namespace: &Namespace,
        partitions: &[usize],
        operation: &OperationContext,
    ) -> Result<()> {
        let _changes = self.lock_changes();
        let Some(placement) = self.placement(namespace) else {
            return Ok(());
        };
        let mut noted = Placement::clone(&placement);
        let sharding = noted.sharding.as_mut().map(Arc::make_mut);
        if sharding.is_some_and(|sharding| sharding.note_anywhere(partitions)) {
            self.begin_change(namespace, operation)?;
            self.set_placement(namespace, Some(noted))?;
        }
        Ok(())
    }

    /// Notes what another router has asked for.
    pub(crate) fn note_for(&self, request: &Request, operation: &OperationContext) -> Result<()> {
        let malformed = || Error::bad_value("a collection or its partitions are missing");
        let body = request.body.as_ref();
        let name = body.get(NOTE_COMMAND).as_str().ok_or_else(malformed)?;
        let (database, collection) = name.split_once('.').ok_or_else(malformed)?;
        let names = body.get("partitions").as_array().ok_or_else(malformed)?;
        let numbers = names.iter().map(|name| {
            let name = name.as_str().ok_or_else(malformed)?;
            self.number_of(name)
        });
        let numbers = numbers.collect::<Result<Vec<usize>>>()?;
        let namespace = Namespace::new(database, collection)?;
        self.note_any_key_here(&namespace, &numbers, operation)
    }

    /// True if the collection has a placement of that version or none.
    fn has_settled(&self, wanted: &PlacementVersion) -> Result<bool> {
        let placement = self.placement(&namespace_of(wanted)?);
        Ok(placement.is_none_or(|placement| placement.version >= wanted.number))
    }
}

fn namespace_of(version: &PlacementVersion) -> Result<Namespace> {
    named(&version.namespace)
}

/// Reads a name as `db.coll`.
pub(super) fn named(name: &str) -> Result<Namespace> {
    let (database, collection) = name.split_once('.').unwrap_or_default();
    Namespace::new(database, collection)
}

//! A database of this process as a partition of a cluster with several routers.
//!
//! A router follows placements that it has read, and others change them. So a partition knows of each collection the least
//! version of a placement by which it may be asked:
//!
//! ```text
//! request, version 4 ── least 4 ──► runs
//! change to version 5:  raise(5) ─── refuses 4 from now on, waits for the writes by 4 that run ─► the change is stored
//! request, version 4 ── least 5 ──► code 13388, and the router reads placements again
//! ```
//!
//! After `raise` no read and no write by the placement before is answered anywhere, so a change of a placement is atomic for
//! all routers. What was raised is stored: the next process with the partition knows it.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nilometer_bson::{Document, DocumentBuilder, ValueRef, doc};
use nilometer_storage::{Direction, Durability, KeyspaceId, KeyspaceOptions, WriteBatch};

use super::Database;
use super::outputs::hosted::{HostedReplacements, REPLACE_COMMAND};
use crate::catalog::PLACEMENTS_KEYSPACE;
use crate::error::{Error, ErrorCode, Result};
use crate::operation::{Access, PlacementVersion, Request, RoutedRequest};
use crate::router::{
    GIVEN_SEQUENCE, OPENING_FIELD, RAISE_COMMAND, SYNC_COMMAND, read_placement, stale,
};
use crate::session::ClientSession;

/// Longest wait for the writes that follow a placement which is replaced.
const DRAIN_MAX: Duration = Duration::from_secs(30);

/// A database as a partition.
pub struct HostedPartition {
    database: Arc<Database>,
    keyspace: KeyspaceId,
    /// Identifies this opening of the partition.
    opening: i64,
    state: Mutex<PlacementState>,
    /// A write has ended.
    ended: Condvar,
    /// The collections that an `$out` of a router replaces.
    replacements: HostedReplacements,
}

/// What is known of placements, by the names of collections.
#[derive(Default)]
struct PlacementState {
    least: BTreeMap<String, i64>,
    /// The versions by which writes run, and how many.
    running: BTreeMap<(String, i64), usize>,
}

/// Counts a write that runs.
struct RunningWrite<'p> {
    partition: &'p HostedPartition,
    placement: &'p PlacementVersion,
}

impl Drop for RunningWrite<'_> {
    fn drop(&mut self) {
        let PlacementVersion { namespace, number } = self.placement;
        let key = (namespace.clone(), *number);
        let mut state = self.partition.lock();
        if let Some(count) = state.running.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                state.running.remove(&key);
            }
        }
        drop(state);
        self.partition.ended.notify_all();
    }
}

/// Returns a request whose sequence of given documents is where its command looks for them; `None` if it has none.
fn with_given(request: &Request) -> Option<Request> {
    let given = request.sequence(GIVEN_SEQUENCE)?;
    let routed = request.routed.as_deref()?;
    let mut moved = request.clone();
    moved
        .sequences
        .retain(|sequence| sequence.name() != GIVEN_SEQUENCE);
    moved.routed = Some(Arc::new(RoutedRequest {
        given: Some(given.clone()),
        ..routed.clone()
    }));
    Some(moved)
}

impl HostedPartition {
    /// Makes a partition of a database, with what it has stored of placements.
    pub fn new(database: Arc<Database>) -> Result<Self> {
        let engine = database.engine();
        let all = engine.keyspaces();
        let keyspace = match all.iter().find(|known| known.name == PLACEMENTS_KEYSPACE) {
            Some(known) => known.id,
            None => engine.create_keyspace(PLACEMENTS_KEYSPACE, KeyspaceOptions::default())?,
        };
        let mut least = BTreeMap::new();
        let snapshot = engine.snapshot()?;
        for entry in snapshot.scan(keyspace, &[], None, Direction::Forward)? {
            let (key, value) = entry?;
            let number = value.as_ref().try_into().map(i64::from_be_bytes);
            let name = std::str::from_utf8(&key).map(str::to_owned);
            let (Ok(name), Ok(number)) = (name, number) else {
                return Err(Error::new(
                    ErrorCode::DataCorruptionDetected,
                    "a stored version of a placement is damaged",
                ));
            };
            least.insert(name, number);
        }
        drop(snapshot);
        let opening = i64::from_be_bytes(database.services().ids.random().to_be_bytes());
        Ok(Self {
            database,
            keyspace,
            opening,
            state: Mutex::new(PlacementState {
                least,
                ..PlacementState::default()
            }),
            ended: Condvar::new(),
            replacements: HostedReplacements::default(),
        })
    }

    /// Returns the database.
    pub fn database(&self) -> &Arc<Database> {
        &self.database
    }

    fn lock(&self) -> MutexGuard<'_, PlacementState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs the request of a router and returns its reply; a failure is a reply, too.
    pub fn run(&self, request: &Request) -> Document {
        let outcome = match request.command_name() {
            RAISE_COMMAND => self.raise(request),
            SYNC_COMMAND => self.sync(request),
            REPLACE_COMMAND => self.replace(request),
            _ => match with_given(request) {
                Some(moved) => self.run_placed(&moved),
                None => self.run_placed(request),
            },
        };
        Database::reply_of(outcome)
    }

    /// Runs a request about the new contents of a collection.
    fn replace(&self, request: &Request) -> Result<Document> {
        let routed = request.routed.as_deref();
        let placement = routed.and_then(|routed| routed.placement.as_ref());
        let entered = placement.map(|placement| self.enter(placement, Access::Write));
        let _running = entered.transpose()?;
        self.replacements.run(&self.database, request)
    }

    fn run_placed(&self, request: &Request) -> Result<Document> {
        let routed = request.routed.as_deref();
        let placement = routed.and_then(|routed| routed.placement.as_ref());
        let writes_given = routed.is_some_and(|routed| routed.given.is_some());
        let access = match writes_given {
            true => Access::Write,
            false => Database::access_of(request),
        };
        let running = match placement {
            Some(placement) => self.enter(placement, access)?,
            None => None,
        };
        let mut session = ClientSession::embedded();
        let reply = self.database.run_command(&mut session, request);
        drop(running);
        if routed.is_none() || access != Access::Write {
            return Ok(reply);
        }
        let mut reply = DocumentBuilder::extending(reply);
        reply.append(OPENING_FIELD, self.opening);
        Ok(reply.finish())
    }

    /// Makes all writes durable that this opening has buffered. Fails for an earlier one: what it had buffered may be lost.
    fn sync(&self, request: &Request) -> Result<Document> {
        if request.body.get(SYNC_COMMAND).as_exact_i64() != Some(self.opening) {
            return Err(Error::new(
                ErrorCode::HostUnreachable,
                "another process has opened the partition before the write was durable",
            ));
        }
        self.database.engine().sync()?;
        Ok(doc! {"ok": 1.0})
    }

    /// Refuses a request by a placement that was replaced. Counts a write.
    fn enter<'p>(
        &'p self,
        placement: &'p PlacementVersion,
        access: Access,
    ) -> Result<Option<RunningWrite<'p>>> {
        let mut state = self.lock();
        let least = state.least.get(&placement.namespace).copied();
        if let Some(least) = least.filter(|least| placement.number < *least) {
            return Err(stale(&placement.namespace, least));
        }
        if access != Access::Write {
            return Ok(None);
        }
        let key = (placement.namespace.clone(), placement.number);
        *state.running.entry(key).or_default() += 1;
        drop(state);
        Ok(Some(RunningWrite {
            partition: self,
            placement,
        }))
    }

    /// Refuses requests by earlier placements from now on, and waits for the writes that follow one.
    fn raise(&self, request: &Request) -> Result<Document> {
        let given = match request.body.get(RAISE_COMMAND) {
            ValueRef::Document(given) => read_placement(given)?,
            _ => return Err(Error::bad_value("a placement is missing")),
        };
        let PlacementVersion { namespace, number } = given;
        let mut state = self.lock();
        if state
            .least
            .get(&namespace)
            .is_none_or(|least| *least < number)
        {
            let mut batch = WriteBatch::new();
            let key = namespace.clone().into_bytes();
            batch.put(self.keyspace, key, number.to_be_bytes().to_vec());
            self.database.engine().commit(batch, Durability::Sync)?;
            state.least.insert(namespace.clone(), number);
        }
        let until = Instant::now() + DRAIN_MAX;
        let runs = |state: &PlacementState| {
            let from = (namespace.clone(), i64::MIN);
            let to = (namespace.clone(), number);
            state.running.range(from..to).next().is_some()
        };
        while runs(&state) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::new(
                    ErrorCode::LockTimeout,
                    format!("writes of {namespace} run on; repeat the command later"),
                ));
            }
            let waited = self.ended.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(doc! {"ok": 1.0})
    }
}

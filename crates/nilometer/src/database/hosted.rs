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
//!
//! Before ranges of documents move, `raise` closes the cursors over the collection, too: they would miss what has left, or find it
//! again. A single document that an update moves is met by them as one whose indexed field changes.
//!
//! The batch that inserts such a document stores the version of its request, too. The reply to `raise` has it: a router that ends an
//! interrupted move decides by it, whatever has become of the document since.
//!
//! A router ends a part that it has not read whole. Requests of one part take several connections, so its end may arrive before a
//! request that was sent earlier, or while that request opens its cursor. So the ends are remembered:
//!
//! ```text
//! aggregate, session S ───────────────────────── opens a cursor ── S has ended: the cursor is closed
//! end of S ───────────── remembered, what S has is closed
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nilometer_bson::{Document, DocumentBuilder, ValueRef, doc};
use nilometer_storage::{Direction, Durability, Engine, KeyspaceId, KeyspaceOptions, WriteBatch};

use super::Database;
use super::outputs::hosted::{HostedReplacements, REPLACE_COMMAND};
use crate::catalog::PLACEMENTS_KEYSPACE;
use crate::error::{Error, ErrorCode, Result};
use crate::operation::{Access, PlacementVersion, Request, RoutedRequest};
use crate::query::cursor::Closing;
use crate::router::{
    ACCEPTED_FIELD, CURSORS_FIELD, END_COMMAND, GIVEN_SEQUENCE, OPENING_FIELD, RAISE_COMMAND,
    READS_FIELD, SYNC_COMMAND, read_placement, stale,
};
use crate::session::{ClientSession, SessionId, UserName};

/// Longest wait for the writes that follow a placement which is replaced.
const DRAIN_MAX: Duration = Duration::from_secs(30);

/// Longest wait for the reads that follow a placement, if documents are about to move. Others wait meanwhile.
const READ_DRAIN_MAX: Duration = Duration::from_secs(5);

/// Most ends of parts that a partition remembers. A request that more ends overtake may leave a cursor, which the idle timeout
/// closes.
const ENDS_MAX: usize = 1000;

/// A database as a partition.
pub struct HostedPartition {
    database: Arc<Database>,
    keyspace: KeyspaceId,
    /// Identifies this opening of the partition.
    opening: i64,
    state: Mutex<PlacementState>,
    /// A request has ended.
    ended: Condvar,
    /// The sessions of the parts that routers have ended, the oldest first.
    ended_parts: Mutex<VecDeque<SessionId>>,
    /// The collections that an `$out` of a router replaces.
    replacements: HostedReplacements,
}

/// What is known of placements, by the names of collections.
#[derive(Default)]
struct PlacementState {
    least: BTreeMap<String, i64>,
    /// The versions by which writes run, and how many.
    writes: Running,
    /// The same for reads. One that has returned its first batch reads what was there then.
    reads: Running,
}

/// Numbers of requests that run, by collection and version.
type Running = BTreeMap<(String, i64), usize>;

impl PlacementState {
    fn running(&mut self, access: Access) -> &mut Running {
        match access {
            Access::Write => &mut self.writes,
            _ => &mut self.reads,
        }
    }
}

/// Counts a request that runs.
struct RunningRequest<'p> {
    partition: &'p HostedPartition,
    placement: &'p PlacementVersion,
    access: Access,
}

impl Drop for RunningRequest<'_> {
    fn drop(&mut self) {
        let PlacementVersion { namespace, number } = self.placement;
        let key = (namespace.clone(), *number);
        let mut state = self.partition.lock();
        let running = state.running(self.access);
        if let Some(count) = running.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                running.remove(&key);
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

/// The key of the version by which the collection got a document of another partition begins so. No collection has such a name.
const ACCEPTED_KEY: &str = "\0accepted:";

/// What identifies the insertion of a document of another partition: it is stored in the same batch.
pub(crate) struct AcceptanceMark {
    keyspace: KeyspaceId,
    key: Vec<u8>,
    number: i64,
}

impl AcceptanceMark {
    /// Makes the mark of a request that follows this placement. Fails if the database is no partition.
    pub(crate) fn new(engine: &dyn Engine, placement: &PlacementVersion) -> Result<Self> {
        let all = engine.keyspaces();
        let keyspace = all.iter().find(|known| known.name == PLACEMENTS_KEYSPACE);
        let keyspace = keyspace.ok_or_else(|| {
            Error::new(ErrorCode::IllegalOperation, "the database is no partition")
        })?;
        Ok(Self {
            keyspace: keyspace.id,
            key: accepted_key(&placement.namespace),
            number: placement.number,
        })
    }

    /// Adds the mark to a batch.
    pub(crate) fn add_to(&self, batch: &mut WriteBatch) {
        let number = self.number.to_be_bytes().to_vec();
        batch.put(self.keyspace, self.key.clone(), number);
    }
}

fn accepted_key(namespace: &str) -> Vec<u8> {
    format!("{ACCEPTED_KEY}{namespace}").into_bytes()
}

/// Reads a stored version.
fn stored_number(value: &[u8]) -> Result<i64> {
    let number = value.try_into().map(i64::from_be_bytes);
    number.map_err(|_| {
        Error::new(
            ErrorCode::DataCorruptionDetected,
            "a stored version of a placement is damaged",
        )
    })
}

/// The version of a `getMore` that names none: its cursor is closed if it may not go on.
const OF_CURSOR: i64 = -1;

/// Returns the session of the part that a request opens or reads on; `None` for other requests, which have no cursor.
fn part_of(request: &Request) -> Option<SessionId> {
    match request.command_name() {
        "aggregate" | "getMore" => SessionId::parse(request.body.get("lsid"), "lsid").ok(),
        _ => None,
    }
}

/// Returns the collection that a `getMore` reads on.
fn continued(request: &Request) -> Option<PlacementVersion> {
    let body = &request.body;
    if request.command_name() != "getMore" {
        return None;
    }
    let database = body.get("$db").as_str()?;
    let collection = body.get("collection").as_str()?;
    Some(PlacementVersion {
        namespace: format!("{database}.{collection}"),
        number: OF_CURSOR,
    })
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
            if key.starts_with(ACCEPTED_KEY.as_bytes()) {
                continue;
            }
            let number = stored_number(&value)?;
            let name = std::str::from_utf8(&key).map_err(|_| {
                Error::new(
                    ErrorCode::DataCorruptionDetected,
                    "the name of a placed collection is damaged",
                )
            })?;
            least.insert(name.to_owned(), number);
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
            ended_parts: Mutex::default(),
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
            END_COMMAND => self.end_part(request),
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
        let continued = continued(request);
        let running = match placement.or(continued.as_ref()) {
            Some(placement) => Some(self.enter(placement, access)?),
            None => None,
        };
        let part = part_of(request);
        let has_ended = || part.filter(|part| self.ends().contains(part));
        if has_ended().is_some() {
            let gone = "the router needs no more of this part";
            return Err(Error::new(ErrorCode::Interrupted, gone));
        }
        let mut session = ClientSession::embedded();
        let reply = self.database.run_command(&mut session, request);
        if let Some(part) = has_ended() {
            self.close_part(part);
        }
        drop(running);
        if routed.is_none() || access != Access::Write {
            return Ok(reply);
        }
        let mut reply = DocumentBuilder::extending(reply);
        reply.append(OPENING_FIELD, self.opening);
        Ok(reply.finish())
    }

    fn ends(&self) -> MutexGuard<'_, VecDeque<SessionId>> {
        let ends = self.ended_parts.lock();
        ends.unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends what the session of a part runs and has open, and what it will open.
    fn end_part(&self, request: &Request) -> Result<Document> {
        let part = SessionId::parse(request.body.get(END_COMMAND), END_COMMAND)?;
        let mut ends = self.ends();
        if ends.len() == ENDS_MAX {
            ends.pop_front();
        }
        ends.push_back(part);
        drop(ends);
        self.close_part(part);
        Ok(doc! {"ok": 1.0})
    }

    fn close_part(&self, part: SessionId) {
        let concerns = |id, _: Option<&UserName>| id == part;
        self.database.kill_sessions_where(None, concerns);
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

    /// Refuses a request by a placement that was replaced. Counts another one.
    fn enter<'p>(
        &'p self,
        placement: &'p PlacementVersion,
        access: Access,
    ) -> Result<RunningRequest<'p>> {
        let mut state = self.lock();
        let least = state.least.get(&placement.namespace).copied();
        let refuses = |least: &i64| (0..*least).contains(&placement.number);
        if let Some(least) = least.filter(refuses) {
            return Err(stale(&placement.namespace, least));
        }
        let key = (placement.namespace.clone(), placement.number);
        *state.running(access).entry(key).or_default() += 1;
        drop(state);
        Ok(RunningRequest {
            partition: self,
            placement,
            access,
        })
    }

    /// Refuses requests by earlier placements from now on, and waits for the writes that follow one, and for the reads if it is
    /// told to.
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
        let state = self.drain(state, Access::Write, (&namespace, number), DRAIN_MAX)?;
        let is_set = |field| matches!(request.body.get(field), ValueRef::Bool(true));
        if is_set(READS_FIELD) {
            let ends_cursors = is_set(CURSORS_FIELD);
            let close = || {
                if ends_cursors {
                    let cursors = &self.database.queries().cursors;
                    cursors.close_over(std::slice::from_ref(&namespace), Closing::Moved);
                }
            };
            close();
            let state = self.drain(state, Access::Read, (&namespace, number), READ_DRAIN_MAX)?;
            // Those that were opened or read meanwhile. No other begins to be read before.
            close();
            drop(state);
        }
        let mut reply = DocumentBuilder::new();
        if let Some(accepted) = self.accepted(&namespace)? {
            reply.append(ACCEPTED_FIELD, accepted);
        }
        reply.append("ok", 1.0);
        Ok(reply.finish())
    }

    /// Returns the version by which the collection last got a document of another partition.
    fn accepted(&self, namespace: &str) -> Result<Option<i64>> {
        let snapshot = self.database.engine().snapshot()?;
        let stored = snapshot.get(self.keyspace, &accepted_key(namespace))?;
        stored.map(|value| stored_number(&value)).transpose()
    }

    /// Waits until no request by an earlier version runs.
    fn drain<'p>(
        &'p self,
        mut state: MutexGuard<'p, PlacementState>,
        access: Access,
        (namespace, number): (&str, i64),
        at_most: Duration,
    ) -> Result<MutexGuard<'p, PlacementState>> {
        let until = Instant::now() + at_most;
        let range = (namespace.to_owned(), i64::MIN)..(namespace.to_owned(), number);
        while state.running(access).range(range.clone()).next().is_some() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::new(
                    ErrorCode::LockTimeout,
                    format!("commands on {namespace} run on; repeat the command later"),
                ));
            }
            let waited = self.ended.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(state)
    }
}

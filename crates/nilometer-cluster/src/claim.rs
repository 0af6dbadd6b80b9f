//! Which of several processes writes to a database: numbered claims, and a heartbeat of the process that has the last one.
//!
//! ```text
//! <path>/claims/<term>        created only if absent: the process that creates the next term may open the database
//! <path>/heartbeats/<term>    overwritten by that process: a number, its address, its last write, when its turn began, each in a line;
//!                             "released" when it has closed the database
//! ```
//!
//! A waiting process looks at the last term. If its heartbeat has not changed for a while, by the clock of the process that
//! looks, or says that the database was closed, the process claims the next term. Claims make one process open the
//! database at a time; they are not what makes it safe. A process that was paused, and opens or writes late, is fenced by
//! the engine or fences the one after it, and an acknowledged write stays in either case.
//!
//! Heartbeats come from a thread of their own, so they say nothing of a process that waits for something that never comes. So they
//! end when the process begins to close the database ([`Claim::fall_silent`]), and when it has not opened it in time
//! ([`ClaimIntervals::opening`]): another takes its turn after the silence.
//!
//! The process that has the last term answers from memory as long as its lease lasts: from the begin of a request for a
//! heartbeat, less long than others wait. When it has passed, as after a pause, the engine asks the store before each answer
//! ([`Lease`]), and the process claims a further term: a late heartbeat might come when another has just decided.
//!
//! A process without a claim writes none of these objects, so a single server pays for no heartbeat.
//!
//! The processes of a cluster look at the claims of all its databases at once: see [`crate::ClaimBoard`], which has the heartbeats in
//! another folder.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::TryStreamExt;
use nilometer_storage::Result;
use object_store::path::Path;
use object_store::{Error as StoreError, ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::engine::runtime;
use crate::error::store_error;
use crate::lock::lock;
use crate::presence::now_ms;

const CLAIMS: &str = "claims";
const HEARTBEATS: &str = "heartbeats";

/// The contents of the last heartbeat. Every other one is longer: it has a time.
pub(crate) const RELEASED: &[u8] = b"released";

/// Claims that are kept. Older ones are deleted; the last one gives the next term.
const CLAIMS_KEPT: u64 = 4;

/// Digits of a term, so that names are in the order of terms.
pub(crate) const TERM_DIGITS: usize = 20;

/// Intervals of claims.
#[derive(Clone, Copy, Debug)]
pub struct ClaimIntervals {
    /// Between two heartbeats.
    pub heartbeat: Duration,
    /// Between two looks of a process that waits.
    pub look: Duration,
    /// The time without a heartbeat after which a process counts as ended. Several heartbeats, so that a slow store
    /// does not end one.
    pub silence: Duration,
    /// The longest time from a claim until the database is open ([`Claim::note_open`]). After it the process falls silent.
    pub opening: Duration,
}

impl Default for ClaimIntervals {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_secs(1),
            look: Duration::from_millis(400),
            silence: Duration::from_secs(5),
            // Far more than the opening of a large database on a slow store: one that always took longer would never be open.
            opening: Duration::from_secs(120),
        }
    }
}

/// A process that waits for its turn to write.
pub struct Claimant {
    objects: Arc<ClaimObjects>,
    runtime: Runtime,
    intervals: ClaimIntervals,
    seen: Option<Seen>,
    host: String,
    last_write_ms: Arc<AtomicI64>,
}

/// What a look at the claims has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look {
    /// The term that this process has claimed, if it was its turn, and when the request for it began. It may open the
    /// database.
    pub claimed: Option<(u64, Instant)>,
    /// The address of the process that writes, if there is one that says so and is not silent.
    pub writer: Option<String>,
    /// The last write of that process, in ms since 1970; 0 if unknown.
    pub last_write_ms: i64,
    /// When the turn of that process began, in ms since 1970; 0 if unknown.
    pub since_ms: i64,
    /// The last term that was seen; 0 if there is none.
    pub term: u64,
}

/// The time for which no other process takes over from this one, after its last heartbeat. A process that was paused finds
/// that it has passed.
#[derive(Clone, Debug, Default)]
pub struct Lease {
    /// When the request of the last heartbeat that succeeded began, or that of the claim.
    last: Arc<Mutex<Option<Instant>>>,
    length: Duration,
}

impl Lease {
    /// True if no other process can have taken over, because none waits for less time.
    pub(crate) fn is_valid(&self) -> bool {
        lock(&self.last).is_some_and(|last| last.elapsed() < self.length)
    }

    fn set(&self, begun: Instant) {
        *lock(&self.last) = Some(begun);
    }
}

/// The turn of this process to write, until it is dropped.
pub struct Claim {
    objects: Arc<ClaimObjects>,
    runtime: Option<Runtime>,
    /// It grows if the process was paused, and no other has claimed a term meanwhile.
    term: Arc<AtomicU64>,
    heartbeats: JoinHandle<()>,
    lease: Lease,
    /// True once the database is open.
    is_open: Arc<AtomicBool>,
}

/// The objects of the claims of one database, as this process names them.
pub(crate) struct ClaimObjects {
    store: Arc<dyn ObjectStore>,
    /// The folder of the claims.
    claims: Path,
    /// The folder of the heartbeats.
    heartbeats: Path,
    /// What follows the term in the names of the heartbeats of this process.
    suffix: String,
    /// Terms whose heartbeats are kept beside the last one.
    heartbeats_kept: u64,
    /// What this process writes into its claims: no other process writes the same.
    name: String,
}

/// What the heartbeats of a process say.
pub(crate) struct Says {
    pub(crate) host: String,
    pub(crate) last_write_ms: Arc<AtomicI64>,
    pub(crate) since_ms: i64,
}

/// The heartbeat that was seen last.
struct Seen {
    term: u64,
    heartbeat: Option<Vec<u8>>,
    since: Instant,
}

impl Says {
    fn encode(&self, number: u64) -> Vec<u8> {
        let Self { host, since_ms, .. } = self;
        let last_write_ms = self.last_write_ms.load(Ordering::Relaxed);
        format!("{number}\n{host}\n{last_write_ms}\n{since_ms}\n").into_bytes()
    }
}

/// What a heartbeat says.
struct Heartbeat {
    host: String,
    last_write_ms: i64,
    since_ms: i64,
}

impl Seen {
    /// Returns what the heartbeat says; `None` if it is no heartbeat of a process that writes.
    fn writer(&self) -> Option<Heartbeat> {
        let text = std::str::from_utf8(self.heartbeat.as_deref()?).ok()?;
        let mut lines = text.lines().skip(1);
        Some(Heartbeat {
            host: lines.next()?.to_owned(),
            last_write_ms: lines.next()?.parse().ok()?,
            since_ms: lines.next()?.parse().ok()?,
        })
    }
}

impl Claimant {
    /// Creates a claimant for the database at `path` in `store`.
    pub fn new(store: Arc<dyn ObjectStore>, path: &str, intervals: ClaimIntervals) -> Result<Self> {
        let objects = ClaimObjects::new(store, &Path::from(path));
        Ok(Self {
            objects: Arc::new(objects),
            runtime: runtime(path, 1)?,
            intervals,
            seen: None,
            host: String::new(),
            last_write_ms: Arc::default(),
        })
    }

    /// Puts an address into the heartbeats, and the last write that `last_write_ms` has.
    #[must_use]
    pub fn at(mut self, host: &str, last_write_ms: Arc<AtomicI64>) -> Self {
        host.clone_into(&mut self.host);
        self.last_write_ms = last_write_ms;
        self
    }

    /// Waits until no other process writes, and claims the next term. `None` if `is_ended` says so meanwhile. A store that
    /// fails is asked again.
    pub fn wait(mut self, is_ended: impl Fn() -> bool) -> Option<Claim> {
        loop {
            if is_ended() {
                return None;
            }
            if let Ok(Look {
                claimed: Some(turn),
                ..
            }) = self.look(true)
            {
                return Some(self.begin(turn));
            }
            std::thread::sleep(self.intervals.look);
        }
    }

    /// Returns the time between two looks.
    pub fn look_interval(&self) -> Duration {
        self.intervals.look
    }

    /// Reads the state of the claims once. Claims the next term if there is no writer and this process may write.
    pub fn look(&mut self, may_claim: bool) -> Result<Look> {
        let (silence, begun) = (self.intervals.silence, Instant::now());
        let looked = self.objects.look(&mut self.seen, silence, may_claim);
        let looked = self.runtime.block_on(looked);
        let claimed = looked.map_err(|error| store_error("look at the claims", &error))?;
        let heard = self.seen.as_ref();
        let heard = heard.filter(|seen| claimed.is_none() && seen.since.elapsed() < silence);
        let said = heard.and_then(Seen::writer);
        Ok(Look {
            claimed: claimed.map(|term| (term, begun)),
            last_write_ms: said.as_ref().map_or(0, |said| said.last_write_ms),
            since_ms: said.as_ref().map_or(0, |said| said.since_ms),
            writer: said.map(|said| said.host).filter(|host| !host.is_empty()),
            term: self.seen.as_ref().map_or(0, |seen| seen.term),
        })
    }

    /// Begins the turn of this process, which has claimed a term by a request that began at that time.
    pub fn begin(self, turn: (u64, Instant)) -> Claim {
        let says = Says {
            host: self.host,
            last_write_ms: self.last_write_ms,
            since_ms: now_ms(),
        };
        Claim::begin(self.objects, self.runtime, self.intervals, says, turn)
    }
}

impl ClaimObjects {
    /// Returns those of the database at `path`.
    fn new(store: Arc<dyn ObjectStore>, path: &Path) -> Self {
        let random = RandomState::new().build_hasher().finish();
        Self {
            store,
            claims: path.clone().join(CLAIMS),
            heartbeats: path.clone().join(HEARTBEATS),
            suffix: String::new(),
            heartbeats_kept: CLAIMS_KEPT - 1,
            name: format!("process {} {random:016x}", std::process::id()),
        }
    }

    /// Returns those of a database whose heartbeats are in a folder with names that end with `suffix`, and of which only the last
    /// one is kept.
    pub(crate) fn listed(
        store: Arc<dyn ObjectStore>,
        path: &Path,
        (heartbeats, suffix): (Path, String),
    ) -> Self {
        Self {
            heartbeats,
            suffix,
            heartbeats_kept: 0,
            ..Self::new(store, path)
        }
    }

    fn claim(&self, term: u64) -> Path {
        self.claims.clone().join(format!("{term:0TERM_DIGITS$}"))
    }

    fn heartbeat(&self, term: u64) -> Path {
        let name = format!("{term:0TERM_DIGITS$}{}", self.suffix);
        self.heartbeats.clone().join(name)
    }

    /// Looks at the last term once. Returns the term that this process has claimed, if it was its turn.
    async fn look(
        &self,
        seen: &mut Option<Seen>,
        silence: Duration,
        may_claim: bool,
    ) -> std::result::Result<Option<u64>, StoreError> {
        let last = match seen {
            Some(seen) => seen.term,
            None => match self.last_term().await? {
                Some(last) => last,
                None if may_claim => return self.create(1).await,
                None => return Ok(None),
            },
        };
        // A process that was paused after the answer must not count its pause as silence.
        let begun = Instant::now();
        let heartbeat = match self.store.get(&self.heartbeat(last)).await {
            Ok(found) => Some(found.bytes().await?.to_vec()),
            Err(StoreError::NotFound { .. }) => None,
            Err(error) => return Err(error),
        };
        let is_released = heartbeat.as_deref() == Some(RELEASED);
        let same = |seen: &&mut Seen| seen.term == last && seen.heartbeat == heartbeat;
        let is_silent = match seen.as_mut().filter(same) {
            Some(seen) => begun.saturating_duration_since(seen.since) >= silence,
            None => {
                *seen = Some(Seen {
                    term: last,
                    heartbeat,
                    since: Instant::now(),
                });
                false
            }
        };
        if !is_released && !is_silent {
            return Ok(None);
        }
        // Others may have had their turn meanwhile, and the claim after `last` may be deleted again.
        let next = match self.last_term().await? {
            Some(latest) if latest > last => None,
            _ if !may_claim => return Ok(None),
            _ => self.create(last + 1).await?,
        };
        if next.is_none() {
            *seen = None;
        }
        Ok(next)
    }

    /// Returns the last term that was claimed. The list costs more than reading an object, so it is not read at each look.
    pub(crate) async fn last_term(&self) -> std::result::Result<Option<u64>, StoreError> {
        let terms = self.objects_in(&self.claims).await?;
        Ok(terms.into_iter().map(|(term, _)| term).max())
    }

    /// Returns the objects of a folder whose names begin with a term.
    async fn objects_in(&self, folder: &Path) -> std::result::Result<Vec<(u64, Path)>, StoreError> {
        let listed = self.store.list(Some(folder));
        let named = listed.map_ok(|object| {
            let digits = object.location.filename()?.get(..TERM_DIGITS)?;
            Some((digits.parse().ok()?, object.location))
        });
        let terms: Vec<Option<(u64, Path)>> = named.try_collect().await?;
        Ok(terms.into_iter().flatten().collect())
    }

    /// Creates a claim. Returns its term if this process got it.
    pub(crate) async fn create(&self, term: u64) -> std::result::Result<Option<u64>, StoreError> {
        let object = self.claim(term);
        let options = PutOptions::from(PutMode::Create);
        let contents = self.name.clone().into();
        match self.store.put_opts(&object, contents, options).await {
            Ok(_) => {}
            Err(StoreError::AlreadyExists { .. } | StoreError::Precondition { .. }) => {
                // It may be the own one: the reply to the request that created it was lost, and it was repeated.
                let found = self.store.get(&object).await?.bytes().await?;
                if found[..] != *self.name.as_bytes() {
                    return Ok(None);
                }
            }
            Err(error) => return Err(error),
        }
        // A process that was paused for long may create a claim that others had, and that is deleted again.
        let latest = self.last_term().await?;
        Ok(latest.is_none_or(|latest| latest <= term).then_some(term))
    }

    /// Claims the next term if the lease of the last one has passed: others may be about to claim it. False if another
    /// process has it.
    async fn renew(
        &self,
        term: &AtomicU64,
        lease: &Lease,
    ) -> std::result::Result<bool, StoreError> {
        if lease.is_valid() {
            return Ok(true);
        }
        let begun = Instant::now();
        match self.create(term.load(Ordering::Acquire) + 1).await? {
            Some(next) => {
                term.store(next, Ordering::Release);
                lease.set(begun);
                Ok(true)
            }
            None => Ok(false),
        }
    }

    async fn beat(&self, term: u64, contents: Vec<u8>) -> std::result::Result<(), StoreError> {
        let object = self.heartbeat(term);
        self.store.put(&object, contents.into()).await.map(drop)
    }

    /// Deletes the claims long before a term, and the heartbeats that are not kept.
    async fn remove_before(&self, term: u64) -> std::result::Result<(), StoreError> {
        let mut old = self.objects_in(&self.claims).await?;
        old.retain(|(old, _)| old + CLAIMS_KEPT <= term);
        let heartbeats = self.objects_in(&self.heartbeats).await?;
        let is_old = |(old, _): &(u64, Path)| old + self.heartbeats_kept < term;
        old.extend(heartbeats.into_iter().filter(is_old));
        for (_, object) in old {
            match self.store.delete(&object).await {
                Ok(()) | Err(StoreError::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl Claim {
    /// Begins the turn of this process, which has claimed a term by a request that began at that time.
    pub(crate) fn begin(
        objects: Arc<ClaimObjects>,
        runtime: Runtime,
        intervals: ClaimIntervals,
        says: Says,
        (term, begun): (u64, Instant),
    ) -> Self {
        let interval = intervals.heartbeat;
        let lease = Lease {
            last: Arc::new(Mutex::new(Some(begun))),
            length: intervals.silence.saturating_sub(interval),
        };
        let term = Arc::new(AtomicU64::new(term));
        let is_open = Arc::<AtomicBool>::default();
        let (of_claim, of_lease, of_open) =
            (Arc::clone(&term), lease.clone(), Arc::clone(&is_open));
        let of_task = Arc::clone(&objects);
        let heartbeats = runtime.spawn(async move {
            let (objects, mut removed_before) = (of_task, 0);
            for number in 0u64.. {
                if !of_open.load(Ordering::Acquire) && begun.elapsed() >= intervals.opening {
                    return;
                }
                if let Ok(false) = objects.renew(&of_claim, &of_lease).await {
                    // Another process has its turn.
                    return;
                }
                let (term, begun) = (of_claim.load(Ordering::Acquire), Instant::now());
                let beat = objects.beat(term, says.encode(number)).await;
                // If it fails, the next one follows soon. One that comes too late says nothing.
                if beat.is_ok() && of_lease.is_valid() {
                    of_lease.set(begun);
                }
                // The first of a term.
                if removed_before != term && objects.remove_before(term).await.is_ok() {
                    removed_before = term;
                }
                tokio::time::sleep(interval).await;
            }
        });
        Self {
            objects,
            runtime: Some(runtime),
            term,
            heartbeats,
            lease,
            is_open,
        }
    }

    /// Notes that the database is open, so that the turn has no end.
    pub fn note_open(&self) {
        self.is_open.store(true, Ordering::Release);
    }

    /// Ends the heartbeats, for a process that begins to close the database: if that takes longer than the silence for which
    /// others wait, they take over without [`Self::release`].
    pub fn fall_silent(&self) {
        self.heartbeats.abort();
    }

    /// The number of the claim.
    pub fn term(&self) -> u64 {
        self.term.load(Ordering::Acquire)
    }

    /// True if no other process can have taken over.
    pub fn is_held(&self) -> bool {
        self.lease.is_valid()
    }

    /// True if another process has claimed a later term, or will because this one has fallen silent.
    pub fn is_lost(&self) -> bool {
        self.heartbeats.is_finished()
    }

    /// Returns the time for which no other process takes over.
    pub fn lease(&self) -> Lease {
        self.lease.clone()
    }

    /// Hands over: a process that waits may open the database at its next look. Call it after the database was closed.
    pub fn release(mut self) -> Result<()> {
        self.heartbeats.abort();
        let Some(runtime) = self.runtime.take() else {
            return Ok(());
        };
        let released = runtime.block_on(async {
            // A heartbeat that is in flight could otherwise overwrite the last one.
            let _ = (&mut self.heartbeats).await;
            let term = self.term.load(Ordering::Acquire);
            self.objects.beat(term, RELEASED.to_vec()).await
        });
        released.map_err(|error| store_error("hand over", &error))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.heartbeats.abort();
        if let Some(runtime) = self.runtime.take() {
            // Does not wait for a request that is in flight.
            runtime.shutdown_background();
        }
    }
}

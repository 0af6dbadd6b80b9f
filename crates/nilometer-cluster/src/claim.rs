//! Which of several processes writes to a database: numbered claims, and a heartbeat of the process that has the last one.
//!
//! ```text
//! <path>/claims/<term>        created only if absent: the process that creates the next term may open the database
//! <path>/heartbeats/<term>    overwritten by that process; "released" when it has closed the database
//! ```
//!
//! A waiting process looks at the last term. If its heartbeat has not changed for a while, by the clock of the process that
//! looks, or says that the database was closed, the process claims the next term. Claims make one process open the
//! database at a time; they are not what makes it safe. A process that was paused, and opens or writes late, is fenced by
//! the engine or fences the one after it, and an acknowledged write stays in either case.
//!
//! A process without a claim writes none of these objects, so a single server pays for no heartbeat.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::TryStreamExt;
use nilometer_storage::Result;
use object_store::path::Path;
use object_store::{Error as StoreError, ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::engine::runtime;
use crate::error::store_error;

const CLAIMS: &str = "claims";
const HEARTBEATS: &str = "heartbeats";

/// The contents of the last heartbeat.
const RELEASED: &[u8] = b"released";

/// Claims that are kept. Older ones are deleted; the last one gives the next term.
const CLAIMS_KEPT: u64 = 4;

/// Digits of a term, so that names are in the order of terms.
const TERM_DIGITS: usize = 20;

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
}

impl Default for ClaimIntervals {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_secs(1),
            look: Duration::from_millis(400),
            silence: Duration::from_secs(5),
        }
    }
}

/// A process that waits for its turn to write.
pub struct Claimant {
    objects: Arc<ClaimObjects>,
    runtime: Runtime,
    intervals: ClaimIntervals,
}

/// The turn of this process to write, until it is dropped.
pub struct Claim {
    objects: Arc<ClaimObjects>,
    runtime: Option<Runtime>,
    term: u64,
    heartbeats: JoinHandle<()>,
}

struct ClaimObjects {
    store: Arc<dyn ObjectStore>,
    path: Path,
    /// What this process writes into its claims: no other process writes the same.
    name: String,
}

/// The heartbeat that was seen last.
struct Seen {
    term: u64,
    heartbeat: Option<Vec<u8>>,
    since: Instant,
}

impl Claimant {
    /// Creates a claimant for the database at `path` in `store`.
    pub fn new(store: Arc<dyn ObjectStore>, path: &str, intervals: ClaimIntervals) -> Result<Self> {
        let random = RandomState::new().build_hasher().finish();
        let objects = ClaimObjects {
            store,
            path: Path::from(path),
            name: format!("process {} {random:016x}", std::process::id()),
        };
        Ok(Self {
            objects: Arc::new(objects),
            runtime: runtime(path, 1)?,
            intervals,
        })
    }

    /// Waits until no other process writes, and claims the next term. `None` if `is_ended` says so meanwhile. A store that
    /// fails is asked again.
    pub fn wait(self, is_ended: impl Fn() -> bool) -> Option<Claim> {
        let mut seen = None;
        loop {
            if is_ended() {
                return None;
            }
            let looked = self
                .runtime
                .block_on(self.objects.look(&mut seen, self.intervals.silence));
            if let Ok(Some(term)) = looked {
                return Some(self.begin(term));
            }
            std::thread::sleep(self.intervals.look);
        }
    }

    fn begin(self, term: u64) -> Claim {
        let (objects, interval) = (Arc::clone(&self.objects), self.intervals.heartbeat);
        let heartbeats = self.runtime.spawn(async move {
            for number in 0u64.. {
                // The next one follows soon.
                let _ = objects.beat(term, number.to_string().into_bytes()).await;
                if number == 0 {
                    let _ = objects.remove_before(term).await;
                }
                tokio::time::sleep(interval).await;
            }
        });
        Claim {
            objects: self.objects,
            runtime: Some(self.runtime),
            term,
            heartbeats,
        }
    }
}

impl ClaimObjects {
    fn claim(&self, term: u64) -> Path {
        let folder = self.path.clone().join(CLAIMS);
        folder.join(format!("{term:0TERM_DIGITS$}"))
    }

    fn heartbeat(&self, term: u64) -> Path {
        let folder = self.path.clone().join(HEARTBEATS);
        folder.join(format!("{term:0TERM_DIGITS$}"))
    }

    /// Looks at the last term once. Returns the term that this process has claimed, if it was its turn.
    async fn look(
        &self,
        seen: &mut Option<Seen>,
        silence: Duration,
    ) -> std::result::Result<Option<u64>, StoreError> {
        let last = match seen {
            Some(seen) => seen.term,
            None => match self.last_term().await? {
                Some(last) => last,
                None => return self.create(1).await,
            },
        };
        let heartbeat = match self.store.get(&self.heartbeat(last)).await {
            Ok(found) => Some(found.bytes().await?.to_vec()),
            Err(StoreError::NotFound { .. }) => None,
            Err(error) => return Err(error),
        };
        let is_released = heartbeat.as_deref() == Some(RELEASED);
        let same = |seen: &&mut Seen| seen.term == last && seen.heartbeat == heartbeat;
        let is_silent = match seen.as_mut().filter(same) {
            Some(seen) => seen.since.elapsed() >= silence,
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
            _ => self.create(last + 1).await?,
        };
        if next.is_none() {
            *seen = None;
        }
        Ok(next)
    }

    /// Returns the last term that was claimed. The list costs more than reading an object, so it is not read at each look.
    async fn last_term(&self) -> std::result::Result<Option<u64>, StoreError> {
        Ok(self.terms().await?.into_iter().max())
    }

    async fn terms(&self) -> std::result::Result<Vec<u64>, StoreError> {
        let folder = self.path.clone().join(CLAIMS);
        let listed = self.store.list(Some(&folder));
        let named = listed.map_ok(|object| object.location.filename()?.parse().ok());
        let terms: Vec<Option<u64>> = named.try_collect().await?;
        Ok(terms.into_iter().flatten().collect())
    }

    /// Creates a claim. Returns its term if this process got it.
    async fn create(&self, term: u64) -> std::result::Result<Option<u64>, StoreError> {
        let object = self.claim(term);
        let options = PutOptions::from(PutMode::Create);
        let contents = self.name.clone().into();
        match self.store.put_opts(&object, contents, options).await {
            Ok(_) => Ok(Some(term)),
            Err(StoreError::AlreadyExists { .. } | StoreError::Precondition { .. }) => {
                // It may be the own one: the reply to the request that created it was lost, and it was repeated.
                let found = self.store.get(&object).await?.bytes().await?;
                Ok((found[..] == *self.name.as_bytes()).then_some(term))
            }
            Err(error) => Err(error),
        }
    }

    async fn beat(&self, term: u64, contents: Vec<u8>) -> std::result::Result<(), StoreError> {
        let object = self.heartbeat(term);
        self.store.put(&object, contents.into()).await.map(drop)
    }

    /// Deletes the claims long before a term.
    async fn remove_before(&self, term: u64) -> std::result::Result<(), StoreError> {
        for old in self.terms().await? {
            if old + CLAIMS_KEPT > term {
                continue;
            }
            for object in [self.heartbeat(old), self.claim(old)] {
                match self.store.delete(&object).await {
                    Ok(()) | Err(StoreError::NotFound { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }
}

impl Claim {
    /// The number of the claim.
    pub fn term(&self) -> u64 {
        self.term
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
            self.objects.beat(self.term, RELEASED.to_vec()).await
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

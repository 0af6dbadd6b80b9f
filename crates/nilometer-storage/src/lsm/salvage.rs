//! Reading the undamaged part of a damaged database.
//!
//! A [`SalvageEngine`] opens a **copy** of a directory and shows its readable part: trees without the files that do not
//! open, the log without its damaged batches, and scans that continue after damaged blocks. [`SalvageEngine::losses`]
//! lists what was skipped, with its keyspace.
//!
//! Entries whose deletion was in a lost file may reappear. Batches may be partial. The caller copies the entries into a
//! new database and checks their consistency.
//!
//! After damage a scan searches for the next readable key: it steps away from the last key in doubling strides until a
//! read succeeds, then bisects for the first readable one. If a stride skips readable entries between two damaged
//! places, they are missed; the loss then names the whole gap.

use std::path::Path;
use std::sync::{Arc, Mutex};

use super::LsmEngine;
use super::options::LsmOptions;
use super::recovery::{self, Recovery};
use crate::bytes::Bytes;
use crate::engine::{
    Direction, Durability, Engine, Keyspace, KeyspaceId, Scan, ScanEntries, Snapshot, WriteBatch,
};
use crate::error::{Error, Result};
use crate::forward_engine;
use crate::lock::lock;

/// Maximum number of losses recorded.
const LOSSES_MAX: usize = 10_000;

/// Bytes of a key that strides are counted in; the following bytes count as zeros.
const STEP_BYTES: usize = 16;

/// Something that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Its keyspace; `None` for the log.
    pub keyspace: Option<KeyspaceId>,
    /// A description for people.
    pub what: String,
    /// The gap, if a scan skipped the damage.
    pub gap: Option<Gap>,
}

/// The keys around damage that a scan skipped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gap {
    /// The last key read before the damage.
    pub before: Option<Vec<u8>>,
    /// The first key read after it.
    pub behind: Option<Vec<u8>>,
}

type Losses = Arc<Mutex<Vec<Loss>>>;

/// The readable part of a damaged database. See the module head.
pub struct SalvageEngine {
    inner: Arc<LsmEngine>,
    losses: Losses,
}

impl SalvageEngine {
    /// Opens the copy at `path`. Changes its files.
    pub fn open(path: impl AsRef<Path>, options: LsmOptions) -> Result<Self> {
        let losses = Losses::default();
        let core = recovery::open_damaged(
            path.as_ref(),
            options.normalized(),
            &mut |keyspace, what| {
                note(
                    &losses,
                    Loss {
                        keyspace,
                        what,
                        gap: None,
                    },
                );
            },
        )?;
        // Without threads: nothing is flushed or merged, so no background task hits the damage.
        let inner = LsmEngine {
            core: Arc::new(core),
            recovery: Recovery::default(),
            threads: Mutex::default(),
        };
        Ok(Self {
            inner: Arc::new(inner),
            losses,
        })
    }

    /// Returns the losses found so far.
    pub fn losses(&self) -> Vec<Loss> {
        lock(&self.losses).clone()
    }
}

fn note(losses: &Losses, loss: Loss) {
    let mut losses = lock(losses);
    if losses.len() < LOSSES_MAX && !losses.contains(&loss) {
        losses.push(loss);
    }
}

impl Engine for SalvageEngine {
    forward_engine!(inner: create_keyspaces, keyspaces, drop_keyspace, sync, verify,
        keyspace_statistics, statistics, close);

    fn commit(&self, batch: WriteBatch, durability: Durability) -> Result<u64> {
        self.inner.commit(batch, durability)
    }

    fn snapshot(&self) -> Result<Box<dyn Snapshot>> {
        Ok(Box::new(SalvageSnapshot {
            engine: Arc::clone(&self.inner),
            losses: Arc::clone(&self.losses),
        }))
    }

    fn settle(&self) -> Result<()> {
        Err(Error::Unsupported {
            operation: "settling a damaged copy",
        })
    }

    fn checkpoint(&self, _target: &Path) -> Result<()> {
        Err(Error::Unsupported {
            operation: "a checkpoint of a damaged copy",
        })
    }
}

/// A snapshot in which unreadable entries are absent.
struct SalvageSnapshot {
    engine: Arc<LsmEngine>,
    losses: Losses,
}

impl Snapshot for SalvageSnapshot {
    fn keyspaces(&self) -> Vec<Keyspace> {
        self.engine.keyspaces()
    }

    fn get(&self, keyspace: KeyspaceId, key: &[u8]) -> Result<Option<Bytes>> {
        match self.engine.snapshot()?.get(keyspace, key) {
            Err(Error::Corruption { .. }) => Ok(None),
            other => other,
        }
    }

    fn scan(
        &self,
        keyspace: KeyspaceId,
        start: &[u8],
        end: Option<&[u8]>,
        direction: Direction,
    ) -> Result<Scan> {
        if direction == Direction::Backward {
            // Copying reads forward. A backward scan ends at the damage.
            return self
                .engine
                .snapshot()?
                .scan(keyspace, start, end, direction);
        }
        Ok(Box::new(SalvageScan {
            engine: Arc::clone(&self.engine),
            losses: Arc::clone(&self.losses),
            keyspace,
            scan: None,
            next: Some(start.to_vec()),
            end: end.map(<[u8]>::to_vec),
            last: None,
        }))
    }
}

/// A scan that continues after damage.
struct SalvageScan {
    engine: Arc<LsmEngine>,
    losses: Losses,
    keyspace: KeyspaceId,
    /// The open scan.
    scan: Option<Scan>,
    /// Where to continue if no scan is open; `None` at the end.
    next: Option<Vec<u8>>,
    end: Option<Vec<u8>>,
    last: Option<Vec<u8>>,
}

impl SalvageScan {
    fn open(&self, start: &[u8]) -> Result<Scan> {
        let snapshot = self.engine.snapshot()?;
        snapshot.scan(
            self.keyspace,
            start,
            self.end.as_deref(),
            Direction::Forward,
        )
    }

    /// Returns the key of the first entry at or after `start`. Fails if it is unreadable.
    fn probe(&self, start: &[u8]) -> Result<Option<Vec<u8>>> {
        match self.open(start)?.next() {
            None => Ok(None),
            Some(entry) => Ok(Some(entry?.0.to_vec())),
        }
    }

    /// Finds the next readable key after `from` and records the gap.
    fn pass_over(&mut self, from: &[u8], error: &Error) {
        let base = number_of(from);
        let (mut unreadable, mut readable) = (0u128, None);
        for power in 0..u128::BITS {
            let stride = 1u128 << power;
            let Some(at) = base.checked_add(stride) else {
                break;
            };
            let key = key_of(at);
            if self.end.as_ref().is_some_and(|end| key >= *end) {
                break;
            }
            if self.probe(&key).is_ok() {
                readable = Some(stride);
                break;
            }
            unreadable = stride;
        }
        let found = readable.and_then(|mut readable| {
            while readable - unreadable > 1 {
                let middle = unreadable + (readable - unreadable) / 2;
                match self.probe(&key_of(base + middle)) {
                    Ok(_) => readable = middle,
                    Err(_) => unreadable = middle,
                }
            }
            let key = key_of(base + readable);
            self.probe(&key).ok().flatten()
        });
        note(
            &self.losses,
            Loss {
                keyspace: Some(self.keyspace),
                what: error.to_string(),
                gap: Some(Gap {
                    before: self.last.clone(),
                    behind: found.clone(),
                }),
            },
        );
        self.next = found;
    }
}

/// Returns the first bytes of a key as a number.
fn number_of(key: &[u8]) -> u128 {
    let mut bytes = [0; STEP_BYTES];
    for (to, from) in bytes.iter_mut().zip(key) {
        *to = *from;
    }
    u128::from_be_bytes(bytes)
}

fn key_of(number: u128) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

impl ScanEntries for SalvageScan {}

impl Iterator for SalvageScan {
    type Item = Result<(Bytes, Bytes)>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if self.scan.is_none() {
                let start = self.next.take()?;
                match self.open(&start) {
                    Ok(scan) => self.scan = Some(scan),
                    Err(Error::Corruption { .. }) => return None,
                    Err(error) => return Some(Err(error)),
                }
                self.next = Some(start);
            }
            match self.scan.as_mut().and_then(Iterator::next) {
                None => {
                    (self.scan, self.next) = (None, None);
                    return None;
                }
                Some(Ok((key, value))) => {
                    self.last = Some(key.to_vec());
                    return Some(Ok((key, value)));
                }
                Some(Err(error @ Error::Corruption { .. })) => {
                    self.scan = None;
                    let start = self.next.take().unwrap_or_default();
                    let from = self.last.clone().filter(|last| *last >= start);
                    self.pass_over(&from.unwrap_or(start), &error);
                }
                Some(Err(error)) => return Some(Err(error)),
            }
        }
    }
}

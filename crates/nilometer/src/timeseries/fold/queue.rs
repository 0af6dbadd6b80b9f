//! Folding and sealing behind the inserts.
//!
//! One thread does what inserts leave behind, in order. The queue has a limit; when it is full the
//! insert that would add to it does its chore itself, so that writers cannot outrun the folding; only the
//! sealing of buckets that left memory is left out then, as a million idle series would make it wait.
//! Folds wait a while: a bucket that fills within seconds is then written once, when it is sealed, and not twice before that.
//! With nothing to do, the thread lets the engine settle where chores removed much.
//! Chores lost by a crash are found again at start: every bucket that has a tail is sealed then.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nilometer_storage::{Direction, Engine, KeyspaceId};

use super::{BucketKeyspaces, Folding, Target};
use crate::catalog::{Collection, Storage};
use crate::error::{Error, ErrorCode, Result};
use crate::timeseries::Timeseries;
use crate::timeseries::bucket_catalog::{BucketCatalog, Chore};
use crate::timeseries::cache::prefetch::Fresh;
use crate::timeseries::fold;
use crate::timeseries::format::bucket_document::Layout;
use crate::timeseries::format::sealed::Dictionaries;
use crate::timeseries::format::tail;
use crate::timeseries::index::maintenance::Maintained;

/// Chores that may wait.
const CHORES_WAITING_MAX: usize = 4096;

/// Time without a chore after which what chores removed is let go.
const IDLE: Duration = Duration::from_secs(1);

/// Time for which a fold waits whether the bucket is sealed.
const FOLD_DELAY: Duration = Duration::from_secs(5);

/// Folds that may wait so; more are done at once.
const FOLDS_WAITING_MAX: usize = 65_536;

/// What is needed to read a collection is kept for so long after it was dropped, at least.
const DROPPED_KEPT: Duration = Duration::from_secs(30);

/// Fewer removed entries are left for the engine to merge away.
const SETTLED_ENTRIES_MIN: usize = 1000;

enum Job {
    Chore(Arc<Collection>, Chore),
    /// Answers when everything queued before it is done.
    Barrier(SyncSender<()>),
}

type HeldChore = (Arc<Collection>, Chore);

/// Folds that wait, each bucket once, in the order in which they are due.
#[derive(Default)]
struct Folds {
    waiting: VecDeque<(Instant, HeldChore)>,
    buckets: HashSet<([u8; 16], [u8; 12])>,
}

impl Folds {
    /// Lets a fold wait; gives back what has to be done now.
    fn postpone(&mut self, collection: Arc<Collection>, chore: Chore) -> Result<(), HeldChore> {
        let bucket = (collection.uuid, chore.bucket());
        if !matches!(chore, Chore::Fold(..)) {
            self.buckets.remove(&bucket);
            return Err((collection, chore));
        }
        if self.waiting.len() >= FOLDS_WAITING_MAX {
            return Err((collection, chore));
        }
        if self.buckets.insert(bucket) {
            let due = Instant::now() + FOLD_DELAY;
            self.waiting.push_back((due, (collection, chore)));
        }
        Ok(())
    }

    /// Time until the next is due.
    fn next_in(&self) -> Option<Duration> {
        let (due, _) = self.waiting.front()?;
        Some(due.saturating_duration_since(Instant::now()))
    }

    /// The next that is due, unless its bucket has been sealed.
    fn due(&mut self) -> Option<HeldChore> {
        self.next_in().filter(Duration::is_zero)?;
        let (_, held) = self.waiting.pop_front()?;
        self.is_wanted(&held).then_some(held)
    }

    /// All of them, due or not.
    fn all(&mut self) -> Vec<HeldChore> {
        let all = std::mem::take(&mut self.waiting);
        let wanted = all.into_iter().map(|(_, held)| held);
        wanted.filter(|held| self.is_wanted(held)).collect()
    }

    fn is_wanted(&mut self, (collection, chore): &HeldChore) -> bool {
        self.buckets.remove(&(collection.uuid, chore.bucket()))
    }
}

/// The queue and its thread. Dropping it ends the thread; what waits is left for the next start.
pub(crate) struct ChoreQueue {
    worker: Arc<Worker>,
    /// Where chores wait for whoever does them, if no thread shall: in simulations.
    held: Option<Mutex<Vec<HeldChore>>>,
    sender: Option<SyncSender<Job>>,
    thread: Option<JoinHandle<()>>,
}

/// What folding has removed from the keyspaces of a collection since they were settled.
struct Removed {
    open: KeyspaceId,
    entries: usize,
}

struct Worker {
    engine: Arc<dyn Engine>,
    bucket_catalog: Arc<BucketCatalog>,
    dictionaries: Arc<Dictionaries>,
    /// Held while a bucket is rewritten or removed.
    rewriting: Mutex<()>,
    /// By the keyspace of the tails.
    removed: Mutex<HashMap<KeyspaceId, Removed>>,
    /// What was sealed lately.
    fresh: Arc<Fresh>,
    /// The last failure of a chore; the data stays readable from the tail.
    failure: Mutex<Option<Error>>,
}

impl BucketKeyspaces {
    /// The keyspaces of a bucket collection; `None` for an ordinary one.
    pub(crate) fn of(collection: &Collection) -> Option<Self> {
        match collection.storage {
            Storage::Buckets {
                open,
                sealed,
                tail,
                series,
            } => Some(Self {
                open,
                sealed,
                tail,
                series,
            }),
            Storage::Records { .. } => None,
        }
    }
}

impl Worker {
    fn new(
        engine: Arc<dyn Engine>,
        bucket_catalog: Arc<BucketCatalog>,
        dictionaries: Arc<Dictionaries>,
    ) -> Self {
        Self {
            engine,
            bucket_catalog,
            dictionaries,
            rewriting: Mutex::default(),
            removed: Mutex::default(),
            fresh: Arc::default(),
            failure: Mutex::default(),
        }
    }

    fn run(&self, jobs: &Receiver<Job>) {
        let mut folds = Folds::default();
        loop {
            let patience = folds.next_in().unwrap_or(IDLE);
            match jobs.recv_timeout(patience) {
                Ok(Job::Chore(collection, chore)) => match folds.postpone(collection, chore) {
                    Ok(()) => {}
                    Err((collection, chore)) => self.perform(&collection, &chore),
                },
                Ok(Job::Barrier(done)) => {
                    for (collection, chore) in folds.all() {
                        self.perform(&collection, &chore);
                    }
                    // Whoever waited may be gone.
                    let _ = done.send(());
                }
                Err(RecvTimeoutError::Timeout) => match folds.due() {
                    Some((collection, chore)) => self.perform(&collection, &chore),
                    None if folds.waiting.is_empty() => self.settle(),
                    None => {}
                },
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Lets go of what was removed from tails and open buckets, where it is most of what is there: readers pass over it
    /// otherwise until it is merged away. What fails is tried again when as much has been removed once more.
    fn settle(&self) {
        let mut due = Vec::new();
        self.held_removed().retain(|&tail, removed| {
            let Ok(left) = self.engine.keyspace_statistics(tail) else {
                return false;
            };
            let most = removed.entries as u64 >= left.keys_estimate / 2;
            if removed.entries < SETTLED_ENTRIES_MIN || !most {
                return true;
            }
            due.extend([tail, removed.open]);
            false
        });
        for keyspace in due {
            // Nothing is wrong with the data then.
            let _ = self.engine.settle_keyspace(keyspace);
        }
    }

    fn held_removed(&self) -> MutexGuard<'_, HashMap<KeyspaceId, Removed>> {
        self.removed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn perform(&self, collection: &Collection, chore: &Chore) {
        if let Err(error) = self.try_perform(collection, chore) {
            if error.code == ErrorCode::DataCorruptionDetected {
                // Readers are told what is wrong with it; writers go on elsewhere.
                self.bucket_catalog.freeze(collection.uuid, chore.bucket());
                return;
            }
            let tail = BucketKeyspaces::of(collection).map(|keyspaces| keyspaces.tail);
            let dropped = tail.is_some_and(|tail| self.engine.keyspace_statistics(tail).is_err());
            if dropped {
                return;
            }
            let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
            *failure = Some(error);
        }
    }

    fn try_perform(&self, collection: &Collection, chore: &Chore) -> Result<()> {
        let _alone = self
            .rewriting
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let (Some(keyspaces), Some(options)) =
            (BucketKeyspaces::of(collection), &collection.timeseries)
        else {
            return Ok(());
        };
        let layout = &Layout::of(collection, options)?;
        let indexes = Maintained::hold(collection)?;
        let folding = Folding {
            engine: &*self.engine,
            bucket_catalog: &self.bucket_catalog,
            dictionaries: &self.dictionaries,
            collection: collection.uuid,
            keyspaces,
            indexes: &indexes,
            layout,
        };
        let folded = match chore {
            Chore::Seal(_, id) | Chore::SealIdle(_, id) => {
                let folded = folding.fold(*id, None, Target::Sealed)?;
                if folded.written.is_some() {
                    self.fresh.add(collection.uuid, *id);
                }
                folded
            }
            Chore::Fold(key, id) => {
                let Some(upto) = self.bucket_catalog.begin_fold(key, *id) else {
                    return Ok(());
                };
                let folded = folding.fold(*id, Some(upto), Target::Open)?;
                if let Some((rows, bytes)) = folded.written {
                    self.bucket_catalog.end_fold(key, *id, rows, bytes);
                }
                folded
            }
        };
        let mut removed = self.held_removed();
        let removed = removed.entry(keyspaces.tail).or_insert(Removed {
            open: keyspaces.open,
            entries: 0,
        });
        removed.entries += folded.removed;
        Ok(())
    }
}

impl ChoreQueue {
    pub(crate) fn start(
        engine: Arc<dyn Engine>,
        bucket_catalog: Arc<BucketCatalog>,
        dictionaries: Arc<Dictionaries>,
    ) -> Self {
        let worker = Arc::new(Worker::new(engine, bucket_catalog, dictionaries));
        let (sender, jobs) = sync_channel(CHORES_WAITING_MAX);
        let thread = std::thread::Builder::new()
            .name("bucket-chores".into())
            .spawn({
                let worker = worker.clone();
                move || worker.run(&jobs)
            });
        // Without a thread every insert does its own chores.
        let (sender, thread) = match thread {
            Ok(thread) => (Some(sender), Some(thread)),
            Err(_) => (None, None),
        };
        Self {
            worker,
            held: None,
            sender,
            thread,
        }
    }

    /// A queue without a thread, whose chores wait for [`ChoreQueue::perform_held`].
    #[cfg(test)]
    pub(crate) fn holding(
        engine: Arc<dyn Engine>,
        bucket_catalog: Arc<BucketCatalog>,
        dictionaries: Arc<Dictionaries>,
    ) -> Self {
        Self {
            worker: Arc::new(Worker::new(engine, bucket_catalog, dictionaries)),
            held: Some(Mutex::default()),
            sender: None,
            thread: None,
        }
    }

    /// Does one of the chores that wait, which `choose` picks among so many.
    #[cfg(test)]
    pub(crate) fn perform_held(&self, choose: impl FnOnce(usize) -> usize) {
        let held = self.held.as_ref().expect("a holding queue");
        let mut held = held.lock().unwrap_or_else(PoisonError::into_inner);
        if held.is_empty() {
            return;
        }
        let at = choose(held.len());
        let (collection, chore) = held.remove(at);
        drop(held);
        self.worker.perform(&collection, &chore);
    }

    fn add(&self, collection: &Arc<Collection>, chore: Chore) {
        if let Some(held) = &self.held {
            let mut held = held.lock().unwrap_or_else(PoisonError::into_inner);
            return held.push((collection.clone(), chore));
        }
        let Some(sender) = &self.sender else {
            return self.worker.perform(collection, &chore);
        };
        match sender.try_send(Job::Chore(collection.clone(), chore)) {
            Ok(()) | Err(TrySendError::Full(Job::Chore(_, Chore::SealIdle(..)))) => {}
            Err(TrySendError::Full(job) | TrySendError::Disconnected(job)) => {
                if let Job::Chore(collection, chore) = job {
                    self.worker.perform(&collection, &chore);
                }
            }
        }
    }

    /// Where what was sealed lately waits for [`Timeseries::open_fresh`].
    pub(crate) fn fresh(&self) -> Arc<Fresh> {
        Arc::clone(&self.worker.fresh)
    }

    /// Keeps every bucket from being rewritten as long as the guard lives.
    pub(crate) fn exclusive(&self) -> MutexGuard<'_, ()> {
        self.worker
            .rewriting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until everything queued so far is done.
    fn wait(&self) {
        if let Some(sender) = &self.sender {
            let (done, waiting) = sync_channel(1);
            if sender.send(Job::Barrier(done)).is_ok() {
                // An error means the thread ended: nothing is left to wait for.
                let _ = waiting.recv();
            }
        }
    }
}

impl Drop for ChoreQueue {
    fn drop(&mut self) {
        self.sender = None;
        if let Some(thread) = self.thread.take() {
            // A panic in the thread has been reported where it happened.
            let _ = thread.join();
        }
    }
}

impl Timeseries {
    /// Queues what an insert left behind.
    pub(crate) fn hand_over(&self, chores: Vec<Chore>) {
        for chore in chores {
            // One that was dropped has no chores.
            if let Some(collection) = self.collection_at_hand(chore.collection()) {
                self.chores.add(&collection, chore);
            }
        }
    }

    /// A collection that was inserted into, unless it was dropped.
    pub(crate) fn collection_at_hand(&self, uuid: [u8; 16]) -> Option<Arc<Collection>> {
        let known = self.collections.read();
        let known = known.unwrap_or_else(PoisonError::into_inner);
        known.get(&uuid).cloned()
    }

    /// Keeps a collection at hand for the chores of its buckets.
    pub(crate) fn remember(&self, collection: &Arc<Collection>) {
        let known = self
            .collections
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        if known.contains_key(&collection.uuid) {
            return;
        }
        drop(known);
        self.collections
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(collection.uuid, collection.clone());
    }

    /// Forgets what is in memory of a collection that was dropped.
    pub fn forget(&self, collection: &Collection) {
        let uuid = collection.uuid;
        self.bucket_catalog.forget(uuid);
        self.claims.forget(uuid);
        self.dictionaries.forget(uuid);
        if let Some(keyspaces) = BucketKeyspaces::of(collection) {
            self.rosters.forget(keyspaces.sealed);
        }
        self.collections
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&uuid);
    }

    /// Lets go of what was kept of dropped collections for those who read them then. A reader looks at one snapshot.
    pub(crate) fn let_dropped_go(&self) {
        let waited = self.dictionaries.dropped_for();
        if waited.is_none_or(|waited| waited < DROPPED_KEPT) {
            return;
        }
        let oldest = Duration::from_millis(self.engine.statistics().oldest_snapshot_ms);
        // What fails stays in the catalog until the next start.
        let _ = self.dictionaries.let_go(DROPPED_KEPT.max(oldest));
    }

    /// The size of a bucket's document with its tail folded in, in bytes.
    pub(crate) fn measure(&self, collection: &Collection, id: [u8; 12]) -> Result<usize> {
        let (Some(keyspaces), Some(options)) =
            (BucketKeyspaces::of(collection), &collection.timeseries)
        else {
            return Ok(0);
        };
        let parts = fold::read_parts(&*self.engine.snapshot()?, keyspaces, id, None)?;
        let layout = Layout::of(collection, options)?;
        let document = parts.document(id, &layout)?;
        Ok(document.map_or(0, |document| document.as_bytes().len()))
    }

    /// Queues the sealing of every bucket that has a tail: at start, when no bucket is open yet.
    pub fn seal_leftovers(&self, collection: &Arc<Collection>) -> Result<usize> {
        let Some(keyspaces) = BucketKeyspaces::of(collection) else {
            return Ok(0);
        };
        let scan = self
            .engine
            .snapshot()?
            .scan(keyspaces.tail, &[], None, Direction::Forward)?;
        let mut last = None;
        let mut found = 0;
        for item in scan {
            let (id, _) = tail::split_key(&item?.0)?;
            if last != Some(id) {
                last = Some(id);
                found += 1;
                self.chores
                    .add(collection, Chore::Seal(collection.uuid, id));
            }
        }
        Ok(found)
    }

    /// Waits until no folding or sealing is left to do; fails with the last failure of one.
    pub fn wait_for_chores(&self) -> Result<()> {
        self.chores.wait();
        let mut failure = self
            .chores
            .worker
            .failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        failure.take().map_or(Ok(()), Err)
    }

    /// Closes every open bucket of a collection and seals it: for `compact`, benches and tests.
    pub fn seal_all(&self, collection: &Arc<Collection>) -> Result<()> {
        self.bucket_catalog.clear(collection.uuid);
        self.wait_for_chores()?;
        self.seal_leftovers(collection)?;
        if let Some(keyspaces) = BucketKeyspaces::of(collection) {
            let scan =
                self.engine
                    .snapshot()?
                    .scan(keyspaces.open, &[], None, Direction::Forward)?;
            for item in scan {
                if let Ok(id) = <[u8; 12]>::try_from(&item?.0[..]) {
                    self.chores
                        .add(collection, Chore::Seal(collection.uuid, id));
                }
            }
        }
        self.wait_for_chores()
    }
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{Value, doc};

    use super::*;
    use crate::timeseries::BucketLimits;
    use crate::timeseries::tests::{Fixture, on_disk};

    #[test]
    fn what_was_folded_is_let_go_when_there_is_nothing_to_do() {
        on_disk("settling", |engine| {
            let options = doc! { "timeField": "t", "metaField": "m" };
            let f = Fixture::over(engine, BucketLimits::default(), options);
            for minute in 0..20 {
                let measurement = |m| doc! { "t": Value::DateTime(minute * 60_000), "m": m };
                let batch: Vec<_> = (0..100).map(measurement).collect();
                assert!(f.insert(&batch, true).errors.is_empty());
            }
            let tail = BucketKeyspaces::of(&f.collection).unwrap().tail;
            let entries = || f.engine.keyspace_statistics(tail).unwrap().keys_estimate;
            assert!(entries() >= 2000);
            f.timeseries.seal_all(&f.collection).unwrap();
            let start = Instant::now();
            while entries() > 0 && start.elapsed() < 30 * IDLE {
                std::thread::sleep(IDLE / 10);
            }
            assert_eq!(entries(), 0);
            assert_eq!(f.buckets(false).len(), 100);
        });
    }
}

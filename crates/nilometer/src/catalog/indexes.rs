//! The indexes of a collection, shared by all versions of it.
//!
//! ```text
//! readers   all()          the current list; never blocks
//! writers   lock_shared()  the list, which does not change while the guard is held: from choosing the
//!                          entries of a document until the engine has committed them
//! changes                  wait until no guard is held, store, then change the list
//! ```
//!
//! When a new index becomes visible, every writer that did not know it has committed, so a walk over the
//! documents that starts then misses none.
//!
//! A stored index has a definition, which never changes (a change makes a new [`StoredIndex`]), and a
//! state, which its successors share: whether it is built, which parts are multikey, and how often it was
//! used.
//!
//! The bins of a rollup have such a list, too; only what holds the lock of the rollup writes their entries and changes the list.
//!
//! Does not know the layout of entries: the module `index` does.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use nilometer_bson::{Array, DocRef, Document, Value, ValueRef, doc};
use nilometer_storage::KeyspaceId;

use super::compiled::CompiledSlot;
use super::index_spec::IndexSpec;
use crate::error::{Error, Result};

/// An index of a collection.
pub struct StoredIndex {
    /// The definition.
    pub spec: IndexSpec,
    /// The keyspace of its entries.
    pub keyspace: KeyspaceId,
    state: Arc<IndexState>,
    /// The compiled definition, set once by the module `index`.
    compiled: CompiledSlot,
}

/// The mutable state of an index.
struct IndexState {
    ready: AtomicBool,
    multikey: AtomicU32,
    /// The number of queries that used it.
    uses: Arc<AtomicU64>,
    since_ms: AtomicI64,
    /// The state stored by the catalog, or about to be: never behind the fields above.
    stored: Mutex<DurableIndexState>,
    /// The record key after which an interrupted build resumes.
    resume_after: Mutex<Option<Vec<u8>>>,
    /// The reason why the build cannot succeed.
    failure: Mutex<Option<Error>>,
}

/// The part of the state that survives a restart.
#[derive(Clone, Copy)]
pub(super) struct DurableIndexState {
    pub(super) ready: bool,
    pub(super) multikey: u32,
}

impl StoredIndex {
    /// Makes an index whose entries are still to be built, created at `since_ms`.
    pub(super) fn building(spec: IndexSpec, keyspace: KeyspaceId, since_ms: i64) -> Self {
        let durable = DurableIndexState {
            ready: false,
            multikey: 0,
        };
        Self::with_state(spec, keyspace, durable, since_ms)
    }

    /// Makes an index that has the entries of all documents, created at `since_ms`.
    pub(super) fn complete(spec: IndexSpec, keyspace: KeyspaceId, since_ms: i64) -> Self {
        let durable = DurableIndexState {
            ready: true,
            multikey: 0,
        };
        Self::with_state(spec, keyspace, durable, since_ms)
    }

    /// Notes that documents have arrays at the parts in `bits`, before the catalog stores the index.
    pub fn note_arrays(&self, bits: u32) {
        self.stored().multikey |= bits;
        self.publish();
    }

    /// Makes the index of `_id` of an ordinary collection, which is not in the list: its entries belong to
    /// the collection, and its collation is that of the collection. `list` counts its uses.
    pub fn id_index(keyspace: KeyspaceId, collation: Option<Document>, list: &IndexList) -> Self {
        let spec = IndexSpec {
            key: doc! { "_id": 1 },
            name: "_id_".to_owned(),
            collation,
            ..IndexSpec::default()
        };
        let durable = DurableIndexState {
            ready: true,
            multikey: 0,
        };
        Self::counted(spec, keyspace, durable, 0, Arc::clone(&list.id_uses))
    }

    /// Makes an index without stored entries.
    #[cfg(test)]
    pub(crate) fn for_tests(spec: IndexSpec, keyspace: KeyspaceId, multikey: u32) -> Self {
        let index = Self::complete(spec, keyspace, 0);
        index.note_arrays(multikey);
        index
    }

    fn with_state(
        spec: IndexSpec,
        keyspace: KeyspaceId,
        durable: DurableIndexState,
        since_ms: i64,
    ) -> Self {
        Self::counted(spec, keyspace, durable, since_ms, Arc::default())
    }

    fn counted(
        spec: IndexSpec,
        keyspace: KeyspaceId,
        durable: DurableIndexState,
        since_ms: i64,
        uses: Arc<AtomicU64>,
    ) -> Self {
        Self {
            spec,
            keyspace,
            state: Arc::new(IndexState {
                ready: AtomicBool::new(durable.ready),
                multikey: AtomicU32::new(durable.multikey),
                uses,
                since_ms: AtomicI64::new(since_ms),
                stored: Mutex::new(durable),
                resume_after: Mutex::default(),
                failure: Mutex::default(),
            }),
            compiled: CompiledSlot::default(),
        }
    }

    /// Returns the same index with another definition.
    pub(super) fn modified(&self, spec: IndexSpec) -> Self {
        Self {
            spec,
            keyspace: self.keyspace,
            state: self.state.clone(),
            compiled: CompiledSlot::default(),
        }
    }

    /// Makes an index that belongs to no collection, to compute keys with.
    pub fn detached(spec: IndexSpec) -> Self {
        Self::complete(spec, KeyspaceId(0), 0)
    }

    /// True once it has the entries of every document.
    pub fn is_ready(&self) -> bool {
        self.state.ready.load(Ordering::Acquire)
    }

    /// True if queries may use it: ready and not hidden.
    pub fn is_usable(&self) -> bool {
        self.is_ready() && !self.spec.hidden
    }

    /// Returns one bit per part of the key, set once a document had an array there. Bits are never cleared.
    pub fn multikey(&self) -> u32 {
        self.state.multikey.load(Ordering::Acquire)
    }

    /// Counts a query that used it.
    pub fn count_use(&self) {
        self.state.uses.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of queries that used it.
    pub fn uses(&self) -> u64 {
        self.state.uses.load(Ordering::Relaxed)
    }

    /// Returns the time in ms since 1970 from which uses are counted: its creation, or 0 if it existed when
    /// the database was opened.
    pub fn since_ms(&self) -> i64 {
        self.state.since_ms.load(Ordering::Relaxed)
    }

    /// Resets the use counter, as after a change of the definition.
    pub fn reset_uses(&self, now_ms: i64) {
        self.state.uses.store(0, Ordering::Relaxed);
        self.state.since_ms.store(now_ms, Ordering::Relaxed);
    }

    /// Returns the key of the last record an interrupted build has processed.
    pub fn resume_after(&self) -> Option<Vec<u8>> {
        lock(&self.state.resume_after).clone()
    }

    pub(super) fn set_resume_after(&self, after: Vec<u8>) {
        *lock(&self.state.resume_after) = Some(after);
    }

    /// Returns the reason why the build must fail, if a writer has found one.
    pub fn build_failure(&self) -> Option<Error> {
        lock(&self.state.failure).clone()
    }

    pub(super) fn set_build_failure(&self, failure: Error) {
        lock(&self.state.failure).get_or_insert(failure);
    }

    /// Returns the compiled definition, which `compile` computes the first time.
    pub fn get_or_compile<T: Send + Sync + 'static>(
        &self,
        compile: impl FnOnce() -> Result<T>,
    ) -> Result<Arc<T>> {
        self.compiled.get_or_compile(compile)
    }

    pub(super) fn stored(&self) -> MutexGuard<'_, DurableIndexState> {
        lock(&self.state.stored)
    }

    /// Makes the stored state visible.
    pub(super) fn publish(&self) {
        let stored = *self.stored();
        self.state
            .multikey
            .fetch_or(stored.multikey, Ordering::AcqRel);
        self.state.ready.store(stored.ready, Ordering::Release);
    }

    fn encode(&self) -> Value {
        let stored = *self.stored();
        let keyspace = i64::try_from(self.keyspace.0).unwrap_or(i64::MAX);
        Value::from(doc! {
            "spec": self.spec.to_document(),
            "keyspace": keyspace,
            "ready": stored.ready,
            "multikey": i64::from(stored.multikey),
        })
    }

    fn decode(stored: DocRef<'_>) -> Option<Self> {
        let spec = IndexSpec::from_document(stored.get("spec").as_document()?)?;
        let keyspace = u64::try_from(stored.get("keyspace").as_exact_i64()?).ok()?;
        let durable = DurableIndexState {
            ready: matches!(stored.get("ready"), ValueRef::Bool(true)),
            multikey: u32::try_from(stored.get("multikey").as_exact_i64()?).ok()?,
        };
        Some(Self::with_state(spec, KeyspaceId(keyspace), durable, 0))
    }
}

impl std::fmt::Debug for StoredIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoredIndex")
            .field("spec", &self.spec)
            .field("keyspace", &self.keyspace)
            .field("ready", &self.is_ready())
            .field("multikey", &self.multikey())
            .finish_non_exhaustive()
    }
}

/// An immutable list of indexes.
pub type Indexes = Arc<[Arc<StoredIndex>]>;

/// The indexes of a collection, except the index of `_id`.
#[derive(Debug, Default)]
pub struct IndexList {
    now: RwLock<Option<Indexes>>,
    gate: RwLock<()>,
    /// Uses of the index of `_id`, which is not in the list.
    id_uses: Arc<AtomicU64>,
}

/// The indexes of a collection, unchanged while the guard is held. A thread that holds one must not acquire
/// a second one of the same collection.
#[derive(Debug)]
pub struct IndexListGuard<'a> {
    indexes: Indexes,
    _gate: RwLockReadGuard<'a, ()>,
}

impl Deref for IndexListGuard<'_> {
    type Target = [Arc<StoredIndex>];

    fn deref(&self) -> &Self::Target {
        &self.indexes
    }
}

impl IndexList {
    /// Returns the current indexes.
    pub fn all(&self) -> Indexes {
        let now = self.now.read().unwrap_or_else(PoisonError::into_inner);
        now.clone().unwrap_or_default()
    }

    /// Counts a query that looked a document up by its `_id`.
    pub fn count_id_use(&self) {
        self.id_uses.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of queries that used the index of `_id`.
    pub fn id_uses(&self) -> u64 {
        self.id_uses.load(Ordering::Relaxed)
    }

    /// Returns the index called `name`.
    pub fn named(&self, name: &str) -> Option<Arc<StoredIndex>> {
        self.all().iter().find(|i| i.spec.name == name).cloned()
    }

    /// Locks the list for a writer and returns the indexes to maintain, unchanged while the guard is held.
    pub fn lock_shared(&self) -> IndexListGuard<'_> {
        let gate = self.gate.read().unwrap_or_else(PoisonError::into_inner);
        IndexListGuard {
            indexes: self.all(),
            _gate: gate,
        }
    }

    /// Waits until no writer holds the list, and blocks new ones.
    pub(crate) fn lock_exclusive(&self) -> RwLockWriteGuard<'_, ()> {
        self.gate.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the list.
    pub(super) fn set(&self, indexes: Indexes) {
        *self.now.write().unwrap_or_else(PoisonError::into_inner) = Some(indexes);
    }

    pub(super) fn keyspaces(&self) -> Vec<KeyspaceId> {
        self.all().iter().map(|index| index.keyspace).collect()
    }
}

/// Returns the list of a new collection: an index of no documents is complete.
pub(super) fn complete_list(spec: IndexSpec, keyspace: KeyspaceId) -> Indexes {
    [Arc::new(StoredIndex::complete(spec, keyspace, 0))].into()
}

/// Encodes a list for the catalog entry.
pub(super) fn encode(indexes: &[Arc<StoredIndex>]) -> Value {
    let stored = indexes.iter().map(|index| index.encode());
    Value::Array(stored.collect::<Array>())
}

/// Decodes a list; `None` if it is damaged. Entries from before indexes existed have none.
pub(super) fn decode(stored: ValueRef<'_>) -> Option<IndexList> {
    let list = IndexList::default();
    let indexes: Option<Vec<_>> = match stored {
        ValueRef::Missing => return Some(list),
        stored => stored
            .as_array()?
            .iter()
            .map(|index| StoredIndex::decode(index.as_document()?).map(Arc::new))
            .collect(),
    };
    list.set(indexes?.into());
    Some(list)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

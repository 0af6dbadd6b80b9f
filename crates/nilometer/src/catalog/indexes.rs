//! The indexes of a collection, shared by all who hold the collection.
//!
//! ```text
//! readers   all()    the list as it is now; never waits for anybody
//! writers   hold()   the list, which does not change while the guard is held: from choosing which
//!                    entries a document has until the engine has committed them
//! changes            wait until no guard is held, store, then change the list
//! ```
//!
//! So when a new index is in the list, every writer that did not know it has committed, and a walk
//! over the documents that begins then misses none.
//!
//! A stored index is a definition, which never changes (a change makes a new [`StoredIndex`]), and a
//! state, which is shared by its successors: whether it is built, which parts were ever found to
//! be arrays (multikey), and how often it was used.
//!
//! Does not know what entries look like: that is the index room's.

use std::any::Any;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{
    Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
};

use nilometer_bson::{Array, DocRef, Document, Value, ValueRef, doc};
use nilometer_storage::KeyspaceId;

use super::index_spec::IndexSpec;
use crate::error::Error;

/// An index of a collection.
pub struct StoredIndex {
    /// Its definition.
    pub spec: IndexSpec,
    /// Where its entries are.
    pub keyspace: KeyspaceId,
    state: Arc<State>,
    /// What the index room made of the definition, so that it is done once.
    compiled: OnceLock<Arc<dyn Any + Send + Sync>>,
}

/// What changes in the life of an index.
struct State {
    ready: AtomicBool,
    multikey: AtomicU32,
    /// How many queries have used it.
    uses: Arc<AtomicU64>,
    since_ms: AtomicI64,
    /// What the catalog has stored, or is about to: ahead of the above.
    stored: Mutex<Durable>,
    /// Where an interrupted build goes on.
    resume_after: Mutex<Option<Vec<u8>>>,
    /// Why the build cannot succeed any more.
    failure: Mutex<Option<Error>>,
}

/// The part of the state that survives.
#[derive(Clone, Copy)]
pub(super) struct Durable {
    pub(super) ready: bool,
    pub(super) multikey: u32,
}

impl StoredIndex {
    /// An index whose entries are still to be made, there since `since_ms`.
    pub(super) fn building(spec: IndexSpec, keyspace: KeyspaceId, since_ms: i64) -> Self {
        let durable = Durable {
            ready: false,
            multikey: 0,
        };
        Self::with_state(spec, keyspace, durable, since_ms)
    }

    /// The index of `_id` of an ordinary collection, which is not in the list: its entries are the
    /// collection's own, and its collation is that of the collection. Its uses count in `list`.
    pub fn of_ids(keyspace: KeyspaceId, collation: Option<Document>, list: &IndexList) -> Self {
        let spec = IndexSpec {
            key: doc! { "_id": 1 },
            name: "_id_".to_owned(),
            collation,
            ..IndexSpec::default()
        };
        let durable = Durable {
            ready: true,
            multikey: 0,
        };
        Self::counted(spec, keyspace, durable, 0, Arc::clone(&list.id_uses))
    }

    /// An index of nothing that is stored.
    #[cfg(test)]
    pub(crate) fn for_tests(spec: IndexSpec, keyspace: KeyspaceId, multikey: u32) -> Self {
        let durable = Durable {
            ready: true,
            multikey,
        };
        Self::with_state(spec, keyspace, durable, 0)
    }

    fn with_state(spec: IndexSpec, keyspace: KeyspaceId, durable: Durable, since_ms: i64) -> Self {
        Self::counted(spec, keyspace, durable, since_ms, Arc::default())
    }

    fn counted(
        spec: IndexSpec,
        keyspace: KeyspaceId,
        durable: Durable,
        since_ms: i64,
        uses: Arc<AtomicU64>,
    ) -> Self {
        Self {
            spec,
            keyspace,
            state: Arc::new(State {
                ready: AtomicBool::new(durable.ready),
                multikey: AtomicU32::new(durable.multikey),
                uses,
                since_ms: AtomicI64::new(since_ms),
                stored: Mutex::new(durable),
                resume_after: Mutex::default(),
                failure: Mutex::default(),
            }),
            compiled: OnceLock::new(),
        }
    }

    /// The same index, defined differently.
    pub(super) fn modified(&self, spec: IndexSpec) -> Self {
        Self {
            spec,
            keyspace: self.keyspace,
            state: self.state.clone(),
            compiled: OnceLock::new(),
        }
    }

    /// An index that no collection has, to compute keys with.
    pub fn detached(spec: IndexSpec) -> Self {
        let durable = Durable {
            ready: true,
            multikey: 0,
        };
        Self::with_state(spec, KeyspaceId(0), durable, 0)
    }

    /// True once it has an entry for every document.
    pub fn is_ready(&self) -> bool {
        self.state.ready.load(Ordering::Acquire)
    }

    /// True when queries may use it: ready, and not hidden.
    pub fn is_usable(&self) -> bool {
        self.is_ready() && !self.spec.hidden
    }

    /// One bit for each part of the key, set once a document had an array there. Never cleared.
    pub fn multikey(&self) -> u32 {
        self.state.multikey.load(Ordering::Acquire)
    }

    /// Counts a query that used it.
    pub fn count_use(&self) {
        self.state.uses.fetch_add(1, Ordering::Relaxed);
    }

    /// How many queries have used it.
    pub fn uses(&self) -> u64 {
        self.state.uses.load(Ordering::Relaxed)
    }

    /// Since when uses are counted: when it was made, in ms since 1970; 0 if it was there when the
    /// database was opened.
    pub fn since_ms(&self) -> i64 {
        self.state.since_ms.load(Ordering::Relaxed)
    }

    /// Begins to count uses anew, as after a change of the definition.
    pub fn forget_uses(&self, now_ms: i64) {
        self.state.uses.store(0, Ordering::Relaxed);
        self.state.since_ms.store(now_ms, Ordering::Relaxed);
    }

    /// The key of the last record an interrupted build has dealt with.
    pub fn resume_after(&self) -> Option<Vec<u8>> {
        lock(&self.state.resume_after).clone()
    }

    pub(super) fn set_resume_after(&self, after: Vec<u8>) {
        *lock(&self.state.resume_after) = Some(after);
    }

    /// Why the build of this index must fail, if a writer has found a reason.
    pub fn build_failure(&self) -> Option<Error> {
        lock(&self.state.failure).clone()
    }

    pub(super) fn set_build_failure(&self, failure: Error) {
        lock(&self.state.failure).get_or_insert(failure);
    }

    /// Room for what is made of the definition once and kept with it.
    pub fn compiled(&self) -> &OnceLock<Arc<dyn Any + Send + Sync>> {
        &self.compiled
    }

    pub(super) fn stored(&self) -> MutexGuard<'_, Durable> {
        lock(&self.state.stored)
    }

    /// Shows everybody what is stored now.
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
        let durable = Durable {
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

/// A list of indexes at one moment.
pub type Indexes = Arc<[Arc<StoredIndex>]>;

/// The indexes of a collection besides that of `_id`.
#[derive(Debug, Default)]
pub struct IndexList {
    now: RwLock<Option<Indexes>>,
    gate: RwLock<()>,
    /// Uses of the index of `_id`, which is not in the list.
    id_uses: Arc<AtomicU64>,
}

/// The indexes of a collection, which stay the same while this is held. One thread must not ask for
/// a second one of the same collection while it holds one.
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
    /// The indexes there are.
    pub fn all(&self) -> Indexes {
        let now = self.now.read().unwrap_or_else(PoisonError::into_inner);
        now.clone().unwrap_or_default()
    }

    /// A query looks a document up by its `_id`.
    pub fn count_id_use(&self) {
        self.id_uses.fetch_add(1, Ordering::Relaxed);
    }

    /// How many queries have used the index of `_id`.
    pub fn id_uses(&self) -> u64 {
        self.id_uses.load(Ordering::Relaxed)
    }

    /// The index called `name`.
    pub fn named(&self, name: &str) -> Option<Arc<StoredIndex>> {
        self.all().iter().find(|i| i.spec.name == name).cloned()
    }

    /// The indexes a writer must keep up to date, unchanging while the guard is held.
    pub fn hold(&self) -> IndexListGuard<'_> {
        let gate = self.gate.read().unwrap_or_else(PoisonError::into_inner);
        IndexListGuard {
            indexes: self.all(),
            _gate: gate,
        }
    }

    /// Waits until no writer holds the list, and keeps new ones out.
    pub(super) fn close(&self) -> RwLockWriteGuard<'_, ()> {
        self.gate.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The list is this from now on.
    pub(super) fn set(&self, indexes: Indexes) {
        *self.now.write().unwrap_or_else(PoisonError::into_inner) = Some(indexes);
    }

    pub(super) fn keyspaces(&self) -> Vec<KeyspaceId> {
        self.all().iter().map(|index| index.keyspace).collect()
    }
}

/// The list of a collection that is just made: an index of nothing is complete.
pub(super) fn complete(spec: IndexSpec, keyspace: KeyspaceId) -> Indexes {
    let durable = Durable {
        ready: true,
        multikey: 0,
    };
    [Arc::new(StoredIndex::with_state(
        spec, keyspace, durable, 0,
    ))]
    .into()
}

/// A list as the catalog stores it.
pub(super) fn encode(indexes: &[Arc<StoredIndex>]) -> Value {
    let stored = indexes.iter().map(|index| index.encode());
    Value::Array(stored.collect::<Array>())
}

/// Reads such a list; `None` if it is damaged. Entries of before there were indexes have none.
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

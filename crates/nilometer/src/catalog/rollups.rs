//! Rollups in the catalog: what is stored of each, and the list of those that stand on a collection.
//!
//! ```text
//! view entry ── rollup: {uuid, keyspace, source, pipeline, lateness, refresh, expireAfterSeconds, indexes}
//!                        │
//!                        └─ keyspace   [0]  header: how far the stored bins are closed, frozen and expired
//!                                      [0 1] version of the bins
//!                                      [1…] marks of bins that have changed since they were stored
//!                                      [2…] bins
//! ```
//!
//! A rollup is listed with the time series at the bottom, also if it stands on another rollup. Writers hold the list for
//! reading from the choice of their marks until the commit. [`RollupProgress`] changes only under the write lock: a refresh
//! that has taken it knows that every writer of an earlier generation has committed.
//!
//! The meaning of a definition, marks and bins belongs to the module `rollup`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{
    Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak,
};

use nilometer_bson::{DocRef, Document, DocumentBuilder, Value, ValueRef, doc};
use nilometer_storage::{KeyspaceId, Snapshot};

use super::collection::{pipeline_value, uuid_value};
use super::compiled::CompiledSlot;
use super::indexes::{self, IndexList};
use crate::error::{Error, ErrorCode, Result};

/// The key of the header in the keyspace of a rollup.
pub const HEADER_KEY: &[u8] = &[0];

/// The key of the version of the bins in the keyspace of a rollup.
pub const BINS_VERSION_KEY: &[u8] = &[0, 1];

/// The options of a rollup that `collMod` changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RollupOptions {
    /// Bins that end less than this before the newest measurement are open, in ms.
    pub lateness_ms: i64,
    /// The time between two refreshes, in ms.
    pub refresh_ms: i64,
    /// The age in seconds after which bins are removed.
    pub expire_after_seconds: Option<i64>,
}

/// How far a rollup is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RollupProgress {
    /// The number of refreshes begun; marks carry it.
    pub generation: u64,
    /// Bins that start before this are closed: a change of them needs a mark.
    pub closed_ms: i64,
    /// Bins that start before this keep their value, whatever happens to the source.
    pub frozen_ms: i64,
    /// Bins that start before this are removed.
    pub expired_ms: i64,
    /// Some stored bin has an array in its key.
    pub has_arrays: bool,
}

impl Default for RollupProgress {
    fn default() -> Self {
        Self {
            generation: 0,
            closed_ms: i64::MIN,
            frozen_ms: i64::MIN,
            expired_ms: i64::MIN,
            has_arrays: false,
        }
    }
}

impl RollupProgress {
    /// Reads the header of a rollup.
    pub fn read(snapshot: &dyn Snapshot, keyspace: KeyspaceId) -> Result<Self> {
        let Some(bytes) = snapshot.get(keyspace, HEADER_KEY)? else {
            return Ok(Self::default());
        };
        let header = DocRef::new(&bytes).and_then(Self::decode);
        header.ok_or_else(|| {
            Error::new(
                ErrorCode::DataCorruptionDetected,
                "the header of a rollup cannot be read",
            )
        })
    }

    fn decode(header: DocRef<'_>) -> Option<Self> {
        let number = |name: &str| header.get(name).as_exact_i64();
        Some(Self {
            generation: u64::try_from(number("generation")?).ok()?,
            closed_ms: number("closed")?,
            frozen_ms: number("frozen")?,
            expired_ms: number("expired")?,
            has_arrays: matches!(header.get("arrays"), ValueRef::Bool(true)),
        })
    }

    /// Returns the header as it is stored.
    pub fn encode(&self) -> Document {
        doc! {
            "generation": i64::try_from(self.generation).unwrap_or(i64::MAX),
            "closed": self.closed_ms,
            "frozen": self.frozen_ms,
            "expired": self.expired_ms,
            "arrays": self.has_arrays,
        }
    }

    /// Returns the first instant whose bin is not frozen and not removed.
    pub fn changeable_from_ms(&self) -> i64 {
        self.frozen_ms.max(self.expired_ms)
    }
}

/// States that open bins of a rollup get from the bins that the rollup below has stored, kept for later queries.
#[derive(Debug)]
pub struct OpenBins {
    /// The version of the bins below.
    pub version: u64,
    /// The first instant, and the first after it, of the bins below.
    pub span: (i64, i64),
    /// Keys with states, as `$group` returns them; `None` if they are too large to be kept.
    pub groups: Option<Vec<Document>>,
}

/// A rollup as the catalog stores it.
#[derive(Debug)]
pub struct StoredRollup {
    /// An identity that no other collection or rollup ever had.
    pub uuid: [u8; 16],
    /// The keyspace of its bins.
    pub keyspace: KeyspaceId,
    /// The time series or rollup that it stands on, in the same database.
    pub source: String,
    /// The stages as written.
    pub pipeline: Vec<Document>,
    /// The indexes of its bins. They change while [`StoredRollup::lock_refresh`] is held.
    pub indexes: IndexList,
    options: RwLock<RollupOptions>,
    /// What writers know; written under the lock of the list.
    progress: RwLock<RollupProgress>,
    /// The source has changed since the last refresh began.
    is_touched: AtomicBool,
    /// Held by what computes bins.
    refreshing: Mutex<()>,
    definition: CompiledSlot,
    open_bins: Mutex<Option<Arc<OpenBins>>>,
    /// The list in which it is, and the rollup it stands on, if it does.
    place: OnceLock<RollupPlace>,
}

/// What a rollup stands on.
type RollupPlace = (Weak<RollupList>, Option<Arc<StoredRollup>>);

impl StoredRollup {
    /// Returns a rollup without bins.
    pub fn new(
        uuid: [u8; 16],
        keyspace: KeyspaceId,
        (source, pipeline): (String, Vec<Document>),
        options: RollupOptions,
    ) -> Self {
        Self {
            uuid,
            keyspace,
            source,
            pipeline,
            indexes: IndexList::default(),
            options: RwLock::new(options),
            progress: RwLock::default(),
            is_touched: AtomicBool::new(true),
            refreshing: Mutex::default(),
            definition: CompiledSlot::default(),
            open_bins: Mutex::default(),
            place: OnceLock::new(),
        }
    }

    /// Returns all keyspaces, including those of its indexes.
    pub fn keyspaces(&self) -> Vec<KeyspaceId> {
        let mut all = vec![self.keyspace];
        all.extend(self.indexes.keyspaces());
        all
    }

    /// Returns the options.
    pub fn options(&self) -> RollupOptions {
        *self.options.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_options(&self, options: RollupOptions) {
        *self.options.write().unwrap_or_else(PoisonError::into_inner) = options;
    }

    /// Returns what writers know of the progress.
    pub fn progress(&self) -> RollupProgress {
        *self.progress.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets what writers know. The caller holds the list of the source for writing, or no writer knows the rollup.
    pub fn set_progress(&self, progress: RollupProgress) {
        *self
            .progress
            .write()
            .unwrap_or_else(PoisonError::into_inner) = progress;
    }

    /// Notes that the source changes.
    pub fn touch(&self) {
        if !self.is_touched.load(Ordering::Relaxed) {
            self.is_touched.store(true, Ordering::Relaxed);
        }
    }

    /// True if the source has changed since the last call of [`Self::take_touch`].
    pub fn is_touched(&self) -> bool {
        self.is_touched.load(Ordering::Relaxed)
    }

    /// True if the source has changed since the last call.
    pub fn take_touch(&self) -> bool {
        self.is_touched.swap(false, Ordering::Relaxed)
    }

    /// Waits for what computes bins, and keeps others from it.
    pub fn lock_refresh(&self) -> MutexGuard<'_, ()> {
        self.refreshing
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the compiled definition, which `compile` computes the first time.
    pub fn get_or_compile<T: Send + Sync + 'static>(
        &self,
        compile: impl FnOnce() -> Result<T>,
    ) -> Result<Arc<T>> {
        self.definition.get_or_compile(compile)
    }

    /// Returns what was kept of its open bins.
    pub fn open_bins(&self) -> Option<Arc<OpenBins>> {
        let kept = self.open_bins.lock();
        kept.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Keeps states of its open bins instead of the earlier ones.
    pub fn keep_open_bins(&self, states: Arc<OpenBins>) {
        let kept = self.open_bins.lock();
        *kept.unwrap_or_else(PoisonError::into_inner) = Some(states);
    }

    /// Returns the list that the rollup is in; `None` if its source is gone.
    pub fn list(&self) -> Option<Arc<RollupList>> {
        self.place.get()?.0.upgrade()
    }

    /// Returns the rollup that it stands on; `None` if it stands on a time series.
    pub fn parent(&self) -> Option<&Arc<StoredRollup>> {
        self.place.get()?.1.as_ref()
    }

    /// Returns the definition as `create` takes it.
    pub fn to_document(&self) -> Document {
        let options = self.options();
        let mut out = DocumentBuilder::new();
        out.append("source", self.source.as_str());
        out.append("pipeline", pipeline_value(&self.pipeline));
        out.append("lateness", options.lateness_ms / 1000);
        out.append("refresh", options.refresh_ms / 1000);
        let indexes = self.indexes.all();
        if !indexes.is_empty() {
            // Dumps hold the definitions of views, and no indexes of them.
            let specs = indexes.iter().map(|index| index.spec.to_document());
            out.append("indexes", specs.map(Value::Document).collect::<Vec<_>>());
        }
        out.finish()
    }

    pub(super) fn encode(&self) -> Document {
        let options = self.options();
        let mut out = DocumentBuilder::new();
        out.append("uuid", uuid_value(self.uuid));
        let keyspace = i64::try_from(self.keyspace.0).unwrap_or(i64::MAX);
        out.append("keyspace", keyspace);
        out.append("source", self.source.as_str());
        out.append("pipeline", pipeline_value(&self.pipeline));
        out.append("latenessMillis", options.lateness_ms);
        out.append("refreshMillis", options.refresh_ms);
        out.append("expireAfterSeconds", options.expire_after_seconds);
        out.append("indexes", indexes::encode(&self.indexes.all()));
        out.finish()
    }

    pub(super) fn decode(stored: DocRef<'_>) -> Option<Self> {
        let uuid = match stored.get("uuid") {
            ValueRef::Binary { bytes, .. } => bytes.try_into().ok()?,
            _ => return None,
        };
        let number = |name: &str| stored.get(name).as_exact_i64();
        let stages = stored.get("pipeline").as_array()?;
        let pipeline = stages
            .iter()
            .map(|stage| stage.as_document().map(DocRef::to_document))
            .collect::<Option<Vec<_>>>()?;
        let options = RollupOptions {
            lateness_ms: number("latenessMillis")?,
            refresh_ms: number("refreshMillis")?,
            expire_after_seconds: number("expireAfterSeconds"),
        };
        let keyspace = KeyspaceId(u64::try_from(number("keyspace")?).ok()?);
        let source = stored.get("source").as_str()?.to_owned();
        let mut rollup = Self::new(uuid, keyspace, (source, pipeline), options);
        rollup.indexes = indexes::decode(stored.get("indexes"))?;
        Some(rollup)
    }
}

impl PartialEq for StoredRollup {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source
            && self.pipeline == other.pipeline
            && self.options() == other.options()
    }
}

/// The rollups that stand on a collection, directly or not. All versions of the collection share it.
#[derive(Debug, Default)]
pub struct RollupList(RwLock<Vec<Arc<StoredRollup>>>);

/// The list, which does not change while this exists.
pub type RollupListGuard<'l> = RwLockReadGuard<'l, Vec<Arc<StoredRollup>>>;

impl RollupList {
    /// Returns the rollups.
    pub fn all(&self) -> Vec<Arc<StoredRollup>> {
        self.lock_shared().clone()
    }

    /// Holds the list for reading.
    pub fn lock_shared(&self) -> RollupListGuard<'_> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no writer holds the list, and blocks new ones. Take no lock of the catalog before.
    pub fn lock_exclusive(&self) -> RwLockWriteGuard<'_, Vec<Arc<StoredRollup>>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a rollup, which stands on `parent`, if any, to the list, which the caller has locked.
    pub(super) fn attach_locked(
        self: &Arc<Self>,
        list: &mut Vec<Arc<StoredRollup>>,
        rollup: &Arc<StoredRollup>,
        parent: Option<Arc<StoredRollup>>,
    ) {
        // A rollup is attached once, when it is created or read.
        let _ = rollup.place.set((Arc::downgrade(self), parent));
        list.push(rollup.clone());
    }

    /// Removes a rollup; waits until no writer knows it.
    pub(super) fn detach(&self, rollup: &StoredRollup) {
        self.lock_exclusive()
            .retain(|known| known.uuid != rollup.uuid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_and_headers_are_read_again() {
        let options = RollupOptions {
            lateness_ms: 1_500,
            refresh_ms: 10_000,
            expire_after_seconds: Some(60),
        };
        let pipeline = vec![doc! {"$group": doc! {"_id": doc! {"t": "$t"}}}];
        let rollup = StoredRollup::new([7; 16], KeyspaceId(9), ("ts".into(), pipeline), options);
        let again = StoredRollup::decode(rollup.encode().as_ref()).unwrap();
        assert_eq!(again, rollup);
        assert_eq!((again.uuid, again.keyspace), ([7; 16], KeyspaceId(9)));
        assert!(StoredRollup::decode(doc! {"uuid": 1}.as_ref()).is_none());
        let progress = RollupProgress {
            generation: 3,
            closed_ms: -5,
            has_arrays: true,
            ..RollupProgress::default()
        };
        let read = RollupProgress::decode(progress.encode().as_ref());
        assert_eq!(read, Some(progress));
    }
}

//! Trains dictionaries on the buckets of each collection.
//!
//! ```text
//! sealed ─► samples … SAMPLES ─► trained ─► stored in the catalog ─► used for the next writes
//!              ▲                                                                  │
//!              └────────────── skeletons grew by half ◄────────────────┘
//! ```
//!
//! The skeletons of a collection differ in a few numbers; the dictionary holds names, metadata and common numbers once. A
//! dictionary is kept as long as its collection, whose buckets refer to it, and a while longer for readers of a dropped
//! collection.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nilometer_bson::DocRef;

use super::dictionary::Dictionary;
use super::{Columns, Split, seal_whole};
use crate::catalog::Catalog;
use crate::error::Result;

/// Skeletons that a dictionary is trained on.
pub(crate) const SAMPLES: usize = 64;

/// Bytes of samples after which fewer skeletons suffice.
const SAMPLE_BYTES_MAX: usize = 512 << 10;

/// The least number of samples.
const SAMPLES_MIN: usize = 16;

/// Collections that are sampled at a time; others wait.
const LEARNING_MAX: usize = 64;

/// A collection stops sampling after this many skeletons of others without one of its own.
const STALE_AFTER: u64 = 4096;

/// Size of a dictionary: that of this many samples, within these limits in bytes.
const SAMPLES_HELD: usize = 8;
const DICTIONARY_BYTES: std::ops::RangeInclusive<usize> = 2048..=65_536;

/// Dictionaries of a collection, at most.
const DICTIONARIES_MAX: usize = 16;

/// Skeletons after which the dictionary is evaluated.
const WINDOW: usize = 1024;

/// The dictionaries of all collections; every write of a stored bucket passes through them.
pub(crate) struct Dictionaries {
    catalog: Arc<Catalog>,
    /// Skeletons to sample before training.
    samples: usize,
    collections: Mutex<HashMap<[u8; 16], Learnt>>,
    /// The dictionaries of dropped collections.
    dropped: Mutex<Vec<Dropped>>,
    /// Skeletons seen.
    seen: AtomicU64,
}

/// Dictionaries of a collection that was dropped.
struct Dropped {
    collection: [u8; 16],
    dictionaries: Vec<Arc<Dictionary>>,
    at: Instant,
}

/// The dictionaries of a collection, and its samples.
#[derive(Default)]
struct Learnt {
    /// The last one is used for writes.
    dictionaries: Vec<Arc<Dictionary>>,
    phase: Phase,
}

enum Phase {
    /// Samples skeletons.
    Learning(Samples),
    /// Another thread trains a dictionary.
    Training,
    /// Measures the compressed sizes of this window and of the first one.
    Watching {
        count: usize,
        bytes: usize,
        first: Option<usize>,
    },
}

impl Default for Phase {
    fn default() -> Self {
        Self::Learning(Samples::default())
    }
}

/// Sampled skeletons, concatenated.
#[derive(Default)]
struct Samples {
    bytes: Vec<u8>,
    lengths: Vec<usize>,
    /// Their compressed sizes.
    stored: usize,
    /// Skeletons seen in all collections when the last sample was added.
    added_at: u64,
}

impl Samples {
    fn add(&mut self, skeleton: &[u8], stored: usize, now: u64) {
        self.added_at = now;
        self.bytes.extend_from_slice(skeleton);
        self.lengths.push(skeleton.len());
        self.stored += stored;
    }

    fn are_enough(&self, samples: usize) -> bool {
        let many = self.lengths.len() >= SAMPLES_MIN.min(samples);
        self.lengths.len() >= samples || (many && self.bytes.len() >= SAMPLE_BYTES_MAX)
    }

    /// Trains a dictionary on three quarters of the samples; `None` if it does not shrink the others enough.
    fn train(&self) -> Option<Vec<u8>> {
        let length = self.bytes.len() / self.lengths.len().max(1) * SAMPLES_HELD;
        let length = length.clamp(*DICTIONARY_BYTES.start(), *DICTIONARY_BYTES.end());
        let (seen, unseen) = self.lengths.split_at(self.lengths.len() / 4 * 3);
        let (known, mut rest) = self.bytes.split_at_checked(seen.iter().sum())?;
        let mut bytes = zstd::dict::from_continuous(known, seen, length).ok()?;
        // The id within a frame takes one byte: the stored number identifies the dictionary.
        if let Some(id) = bytes.get_mut(4..8) {
            id.copy_from_slice(&1u32.to_le_bytes());
        }
        let dictionary = Dictionary::of(&bytes);
        let mut stored = 0;
        for &length in unseen {
            let (skeleton, behind) = rest.split_at_checked(length)?;
            rest = behind;
            stored += dictionary.compress(skeleton).ok()?.len();
        }
        let before = self.stored / self.lengths.len().max(1) * unseen.len();
        // It must save a quarter.
        (stored < before / 4 * 3).then_some(bytes)
    }
}

impl Dictionaries {
    /// Returns the catalog that stores them.
    pub(crate) fn catalog(&self) -> &Arc<Catalog> {
        &self.catalog
    }

    /// Loads the dictionaries of all collections from the catalog. New ones are trained on `samples` skeletons.
    pub(crate) fn open(catalog: Arc<Catalog>, samples: usize) -> Result<Self> {
        let mut collections: HashMap<[u8; 16], Learnt> = HashMap::new();
        for kept in catalog.dictionaries()? {
            // A damaged dictionary makes the buckets that refer to it unreadable.
            if Dictionary::number_of(&kept.bytes) == kept.number {
                let learnt = collections.entry(kept.collection).or_default();
                learnt.dictionaries.push(Dictionary::of(&kept.bytes));
                learnt.watch();
            }
        }
        Ok(Self {
            catalog,
            samples,
            collections: Mutex::new(collections),
            dropped: Mutex::default(),
            seen: AtomicU64::new(0),
        })
    }

    /// Returns the stored form of a bucket document of a collection.
    pub(crate) fn store(
        &self,
        collection: [u8; 16],
        document: DocRef<'_>,
        how: Columns,
    ) -> Result<Vec<u8>> {
        match Split::of(document, how) {
            Some(split) => self.store_split(collection, &split, how != Columns::AsTheyAre),
            None => Ok(seal_whole(document)),
        }
    }

    /// Returns the stored form of a split document, and samples its skeleton.
    pub(crate) fn store_split(
        &self,
        collection: [u8; 16],
        split: &Split,
        is_done: bool,
    ) -> Result<Vec<u8>> {
        let in_use = self.held().get(&collection).and_then(Learnt::in_use);
        let stored = split.seal(&in_use.unwrap_or_else(Dictionary::built_in))?;
        if is_done {
            let took = stored.len() - split.columns.len();
            self.learn(collection, split.skeleton.as_bytes(), took);
        }
        Ok(stored)
    }

    /// Removes a dropped collection. Its stored buckets stay readable until [`Self::release_dropped`].
    pub(crate) fn forget(&self, collection: [u8; 16]) {
        let learnt = self.held().remove(&collection).unwrap_or_default();
        if !learnt.dictionaries.is_empty() {
            self.dropped().push(Dropped {
                collection,
                dictionaries: learnt.dictionaries,
                at: Instant::now(),
            });
        }
    }

    /// Returns the time since the oldest of the dropped collections was dropped.
    pub(crate) fn dropped_for(&self) -> Option<Duration> {
        self.dropped().first().map(|first| first.at.elapsed())
    }

    /// Releases the dictionaries of collections that were dropped at least this long ago.
    pub(crate) fn release_dropped(&self, ago: Duration) -> Result<()> {
        let is_due = |one: &mut Dropped| one.at.elapsed() >= ago;
        let due: Vec<Dropped> = self.dropped().extract_if(.., is_due).collect();
        for one in due {
            let numbers: Vec<u64> = one.dictionaries.iter().map(|d| d.number()).collect();
            self.catalog.remove_dictionaries(one.collection, &numbers)?;
        }
        Ok(())
    }

    fn dropped(&self) -> MutexGuard<'_, Vec<Dropped>> {
        self.dropped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn held(&self) -> MutexGuard<'_, HashMap<[u8; 16], Learnt>> {
        self.collections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a skeleton and its compressed size.
    fn learn(&self, collection: [u8; 16], skeleton: &[u8], took: usize) {
        let Some(samples) = self.full_samples(collection, skeleton, took) else {
            return;
        };
        let trained = samples.train().filter(|bytes| {
            // A dictionary that is not in the catalog must not be used for writes.
            let number = Dictionary::number_of(bytes);
            let kept = self.catalog.put_dictionary(collection, number, bytes);
            kept.is_ok()
        });
        let mut collections = self.held();
        let learnt = collections.entry(collection).or_default();
        learnt
            .dictionaries
            .extend(trained.map(|bytes| Dictionary::of(&bytes)));
        learnt.watch();
    }

    /// Adds a sample if needed; returns the set when it is complete.
    fn full_samples(&self, collection: [u8; 16], skeleton: &[u8], took: usize) -> Option<Samples> {
        let now = self.seen.fetch_add(1, Ordering::Relaxed);
        let mut collections = self.held();
        if !collections.contains_key(&collection) && !make_room(&mut collections, now) {
            return None;
        }
        let learnt = collections.entry(collection).or_default();
        match &mut learnt.phase {
            Phase::Learning(samples) => {
                samples.add(skeleton, took, now);
                if !samples.are_enough(self.samples) {
                    return None;
                }
                let full = std::mem::take(samples);
                learnt.phase = Phase::Training;
                Some(full)
            }
            Phase::Training => None,
            Phase::Watching {
                count,
                bytes,
                first,
            } => {
                (*count, *bytes) = (*count + 1, *bytes + took);
                if *count == WINDOW {
                    let was = *first.get_or_insert(*bytes);
                    let worse = *bytes > was + was / 2;
                    (*count, *bytes) = (0, 0);
                    if worse && learnt.dictionaries.len() < DICTIONARIES_MAX {
                        learnt.phase = Phase::default();
                    }
                }
                None
            }
        }
    }
}

/// True if one more collection may be sampled; an idle one is removed to make room.
fn make_room(collections: &mut HashMap<[u8; 16], Learnt>, now: u64) -> bool {
    let learning = collections.iter().filter_map(|(id, learnt)| {
        let Phase::Learning(samples) = &learnt.phase else {
            return None;
        };
        Some((samples.added_at, *id))
    });
    let learning: Vec<_> = learning.collect();
    if learning.len() < LEARNING_MAX {
        return true;
    }
    match learning.into_iter().min() {
        Some((added_at, stale)) if added_at + STALE_AFTER < now => {
            give_up(collections, stale);
            true
        }
        _ => false,
    }
}

/// Stops the sampling of a collection. Its dictionaries stay.
fn give_up(collections: &mut HashMap<[u8; 16], Learnt>, collection: [u8; 16]) {
    if let Some(learnt) = collections.get_mut(&collection) {
        learnt.watch();
        if learnt.dictionaries.is_empty() {
            collections.remove(&collection);
        }
    }
}

impl Learnt {
    fn in_use(&self) -> Option<Arc<Dictionary>> {
        self.dictionaries.last().cloned()
    }

    fn watch(&mut self) {
        self.phase = Phase::Watching {
            count: 0,
            bytes: 0,
            first: None,
        };
    }
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{Binary, Document, Value, doc};
    use nilometer_storage::{Engine, MemoryEngine};

    use super::*;
    use crate::catalog::Namespace;
    use crate::timeseries::format::sealed;

    const COLLECTION: [u8; 16] = [1; 16];

    fn catalog(engine: &Arc<dyn Engine>) -> Arc<Catalog> {
        let catalog = Catalog::open(engine.clone()).unwrap();
        let name = Namespace::new("db", "c").unwrap();
        if catalog.get(&name).is_none() {
            let made = catalog.create_collection(name, COLLECTION, Document::new(), None);
            made.unwrap();
        }
        Arc::new(catalog)
    }

    fn bucket(number: i32, word: &str) -> Document {
        let column = Value::Binary(Binary {
            subtype: 7,
            bytes: [1, 2, 3].into(),
        });
        let bounds = |by: i32| doc! { "temperature": number % 7 + by, "pressure": number % 11 };
        doc! {
            "_id": number,
            "control": doc! { "min": bounds(0), "max": bounds(40), "count": 3 },
            "meta": doc! { "sensor": format!("{word} {}", number % 13), "place": "the same for all" },
            "data": doc! { "temperature": column.clone(), "pressure": column },
        }
    }

    /// Stores buckets and reads them back; returns the stored size of the last.
    fn store(dictionaries: &Dictionaries, count: i32, word: &str) -> usize {
        let mut last = 0;
        for number in 0..count {
            let bucket = bucket(number, word);
            let stored = dictionaries.store(COLLECTION, bucket.as_ref(), Columns::Packed);
            let stored = stored.unwrap();
            assert_eq!(sealed::load(&stored).unwrap(), bucket);
            last = stored.len();
        }
        last
    }

    #[test]
    fn buckets_take_less_once_enough_of_them_were_seen() {
        let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
        let dictionaries = Dictionaries::open(catalog(&engine), SAMPLES).unwrap();
        let before = store(&dictionaries, SAMPLES as i32, "sensor");
        let stored = dictionaries
            .store(COLLECTION, bucket(1, "sensor").as_ref(), Columns::AsTheyAre)
            .unwrap();
        assert!(stored.len() * 2 < before, "{} {before}", stored.len());
        let number: [u8; 8] = stored[5..13].try_into().unwrap();
        drop(dictionaries);
        let missing = sealed::load(&stored).unwrap_err();
        assert!(missing.to_string().contains("dictionary"), "{missing}");
        let again = Dictionaries::open(catalog(&engine), SAMPLES).unwrap();
        assert_eq!(sealed::load(&stored).unwrap(), bucket(1, "sensor"));
        let more = again.store(COLLECTION, bucket(2, "sensor").as_ref(), Columns::Packed);
        assert_eq!(more.unwrap()[5..13], number);
    }

    #[test]
    fn what_was_learnt_of_a_dropped_collection_goes_when_nobody_reads_it() {
        let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
        let catalog = catalog(&engine);
        let dictionaries = Dictionaries::open(catalog.clone(), SAMPLES).unwrap();
        store(&dictionaries, SAMPLES as i32, "to be dropped");
        let bucket = bucket(1, "to be dropped");
        let stored = dictionaries.store(COLLECTION, bucket.as_ref(), Columns::AsTheyAre);
        let stored = stored.unwrap();
        assert!(dictionaries.dropped_for().is_none());
        dictionaries.forget(COLLECTION);
        assert!(dictionaries.dropped_for().is_some());
        dictionaries
            .release_dropped(Duration::from_secs(3600))
            .unwrap();
        assert_eq!(sealed::load(&stored).unwrap(), bucket);
        dictionaries.release_dropped(Duration::ZERO).unwrap();
        let missing = sealed::load(&stored).unwrap_err();
        assert!(missing.to_string().contains("dictionary"), "{missing}");
        assert!(catalog.dictionaries().unwrap().is_empty());
        assert!(dictionaries.dropped_for().is_none());
    }

    #[test]
    fn when_buckets_change_a_dictionary_is_learnt_anew() {
        let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
        let catalog = catalog(&engine);
        let dictionaries = Dictionaries::open(catalog.clone(), SAMPLES).unwrap();
        store(&dictionaries, (SAMPLES + WINDOW) as i32, "sensor");
        assert_eq!(catalog.dictionaries().unwrap().len(), 1);
        let strange = "a long name that nobody could have foreseen, of another kind altogether";
        store(&dictionaries, (2 * WINDOW + SAMPLES) as i32, strange);
        assert_eq!(catalog.dictionaries().unwrap().len(), 2);
    }

    #[test]
    fn collections_nothing_is_heard_of_keep_nobody_from_learning() {
        let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
        let catalog = catalog(&engine);
        let dictionaries = Dictionaries::open(catalog.clone(), SAMPLES).unwrap();
        for quiet in 0..LEARNING_MAX as u8 {
            let bucket = bucket(1, "quiet");
            let stored = dictionaries.store([quiet + 100; 16], bucket.as_ref(), Columns::Packed);
            stored.unwrap();
        }
        store(&dictionaries, 1000, "sensor");
        assert!(catalog.dictionaries().unwrap().is_empty());
        store(&dictionaries, STALE_AFTER as i32, "sensor");
        assert_eq!(catalog.dictionaries().unwrap().len(), 1);
    }

    #[test]
    fn what_has_nothing_in_common_teaches_nothing() {
        let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
        let catalog = catalog(&engine);
        let dictionaries = Dictionaries::open(catalog.clone(), SAMPLES).unwrap();
        let mut draw = 7_u64;
        for _ in 0..SAMPLES + 5 {
            let mut words = (0..100).map(|_| {
                draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (draw >> 16).to_string()
            });
            let meta = words.by_ref().take(20).collect::<Vec<_>>().join("x");
            let bucket = doc! { "control": doc! { "count": 1 }, "meta": meta, "data": doc! {} };
            let stored = dictionaries.store(COLLECTION, bucket.as_ref(), Columns::Packed);
            assert_eq!(sealed::load(&stored.unwrap()).unwrap(), bucket);
        }
        assert!(catalog.dictionaries().unwrap().is_empty());
    }
}

//! Where the documents of collections are.
//!
//! ```text
//! chunks    key ──► partition         where new buckets and documents of a sharded collection go, now
//! history   range ──► partition …     the partitions that may have any of a range: entries are only added
//! primary                             the partition of a collection that is not sharded
//! ```
//!
//! A read of a time series asks the partitions of the history; one of an ordinary collection those of the chunks. An entry is added before a write can follow it, so a read never misses a
//! document. The whole map is replaced at each change; readers keep the one they began with.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nilometer_bson::{DocRef, Document, DocumentBuilder, Value, ValueRef, doc};
use nilometer_storage::{Direction, Durability, Engine, KeyspaceId, KeyspaceOptions, WriteBatch};

use super::shard_key::{KeyBound, ShardKey};
use super::targets::{KeyRange, ranges_of};
use crate::catalog::{Namespace, PLACEMENTS_KEYSPACE, TimeseriesOptions};
use crate::error::{Error, ErrorCode, Result};
use crate::eval::matcher::MatchExpression;
use crate::operation::PlacementVersion;

/// Most chunks of one collection.
const CHUNKS_MAX: usize = 100_000;

/// Where the documents of a collection are.
#[derive(Clone, Debug)]
pub(crate) struct Placement {
    /// The partition of the collection while it is not sharded, and of its first chunk.
    pub(crate) primary: usize,
    /// Identifies the collection in `config`.
    pub(crate) uuid: [u8; 16],
    /// The number of the change that made the placement: later changes, of any collection, have greater ones.
    pub(crate) version: i64,
    /// How a sharded collection is divided.
    pub(crate) sharding: Option<Sharding>,
}

/// How a collection is divided.
#[derive(Clone, Debug)]
pub(crate) struct Sharding {
    pub(crate) key: ShardKey,
    /// By their lower bounds; each ends where the next begins.
    pub(crate) chunks: Vec<Chunk>,
    /// Ranges and the partitions that had them.
    history: Vec<HeldRange>,
    /// Partitions with documents that may have any key.
    anywhere: BTreeSet<usize>,
    /// True if the shard key was declared to be unique.
    pub(crate) is_unique: bool,
    /// Counts the changes.
    pub(crate) version: i64,
    /// When a range was last assigned to another partition, in ms since 1970; 0 if never.
    moved_ms: i64,
}

/// A range and a partition that has or had it.
#[derive(Clone, Debug)]
struct HeldRange {
    range: KeyRange,
    partition: usize,
    /// When the range was assigned to it, in ms since 1970; 0 if unknown.
    since_ms: i64,
}

/// A range that was assigned to another partition.
pub(crate) struct RangeMove<'s> {
    pub(crate) low: &'s KeyBound,
    pub(crate) high: &'s KeyBound,
    /// The partitions that had it before.
    pub(crate) from: BTreeSet<usize>,
    pub(crate) to: usize,
    pub(crate) at_ms: i64,
}

/// Time for which a driver may repeat a numbered write: a session that is not used for so long ends.
const REPEATED_FOR_MS: i64 = 30 * 60 * 1000;

/// A range of keys and the partition of what is new in it.
#[derive(Clone, Debug)]
pub(crate) struct Chunk {
    pub(crate) min: KeyBound,
    pub(crate) partition: usize,
}

impl Placement {
    /// Places a new collection in one partition.
    pub(crate) fn whole(primary: usize, uuid: [u8; 16]) -> Self {
        Self {
            primary,
            uuid,
            version: 0,
            sharding: None,
        }
    }

    /// Returns the version that a request which follows the placement names.
    pub(crate) fn version_of(&self, namespace: &Namespace) -> PlacementVersion {
        PlacementVersion {
            namespace: namespace.to_string(),
            number: self.version,
        }
    }

    /// Returns the partitions that may have documents which pass `filter`.
    pub(crate) fn targets(&self, filter: Option<&MatchExpression>) -> Vec<usize> {
        let Some(sharding) = &self.sharding else {
            return vec![self.primary];
        };
        let ranges = filter.and_then(|filter| ranges_of(&sharding.key, filter));
        if !sharding.key.is_timeseries() {
            return sharding.owners(ranges.as_deref());
        }
        let mut found = sharding.anywhere.clone();
        for HeldRange {
            range: held,
            partition,
            ..
        } in &sharding.history
        {
            let may_hold = ranges.as_ref().is_none_or(|ranges| {
                let meets = |range: &KeyRange| range.low <= held.high && held.low <= range.high;
                ranges.iter().any(meets)
            });
            if may_hold {
                found.insert(*partition);
            }
        }
        found.into_iter().collect()
    }

    /// Returns the partitions that have the collection.
    pub(crate) fn partitions(&self, all: usize) -> Vec<usize> {
        match self.sharding {
            None => vec![self.primary],
            Some(_) => (0..all).collect(),
        }
    }

    /// Returns other partitions in which a write that is repeated at `now_ms` may have inserted the document before its range was
    /// assigned to another one.
    pub(crate) fn partitions_before(&self, document: DocRef<'_>, now_ms: i64) -> Vec<usize> {
        let Some(sharding) = &self.sharding else {
            return Vec::new();
        };
        let may_be_repeated = now_ms.saturating_sub(sharding.moved_ms) < REPEATED_FOR_MS;
        let Ok(key) = sharding.key.of(document) else {
            return Vec::new();
        };
        if !may_be_repeated {
            return Vec::new();
        }
        let target = sharding.chunk_of(&key).partition;
        let history = sharding.history.iter();
        let held = history.filter(|held| held.range.low <= key && key <= held.range.high);
        let held = held.map(|held| held.partition);
        let others: BTreeSet<usize> = held.filter(|partition| *partition != target).collect();
        others.into_iter().collect()
    }

    /// Returns the partition for a new document.
    pub(crate) fn partition_of(&self, document: DocRef<'_>) -> Result<usize> {
        match &self.sharding {
            None => Ok(self.primary),
            Some(sharding) => {
                let key = sharding.key.of(document)?;
                Ok(sharding.chunk_of(&key).partition)
            }
        }
    }
}

impl Sharding {
    /// Divides a collection by `key`. A collection with documents is one chunk in its primary; an empty one with a hashed
    /// first part has a chunk in each partition.
    pub(crate) fn new(
        key: ShardKey,
        primary: usize,
        spread_over: Option<usize>,
        since_ms: i64,
    ) -> Self {
        let (low, high) = key.whole();
        let held = |range, partition| HeldRange {
            range,
            partition,
            since_ms,
        };
        let mut new = Self {
            key,
            chunks: vec![Chunk {
                min: low.clone(),
                partition: primary,
            }],
            history: vec![held(KeyRange { low, high }, primary)],
            anywhere: BTreeSet::new(),
            is_unique: false,
            version: 1,
            moved_ms: 0,
        };
        let is_hashed = new.key.parts().first().is_some_and(|part| part.is_hashed);
        if let Some(count) = spread_over.filter(|count| is_hashed && *count > 1) {
            new.chunks.clear();
            new.history.clear();
            let step = u64::MAX / count as u64;
            for at in 0..count {
                let mut min = new.key.whole().0;
                if let Some(first) = min.0.first_mut().filter(|_| at > 0) {
                    let from = i128::from(i64::MIN) + i128::from(step) * at as i128;
                    *first = Value::Int64(i64::try_from(from).unwrap_or(i64::MAX));
                }
                let partition = (primary + at) % count;
                new.chunks.push(Chunk { min, partition });
            }
            for at in 0..count {
                let range = KeyRange {
                    low: new.min_of(at),
                    high: new.max_of(at),
                };
                new.history.push(held(range, new.chunks[at].partition));
            }
        }
        new
    }

    /// Returns the partitions whose chunks have keys of these ranges; `None` means all keys. A document of an ordinary
    /// collection is in the chunk of its key.
    fn owners(&self, ranges: Option<&[KeyRange]>) -> Vec<usize> {
        let last = self.chunks.len() - 1;
        let meets = |at: usize| {
            ranges.is_none_or(|ranges| {
                let (min, max) = (self.min_of(at), self.max_of(at));
                let ends_behind = |range: &KeyRange| range.low < max || at == last;
                let mut ranges = ranges.iter();
                ranges.any(|range| min <= range.high && ends_behind(range))
            })
        };
        let chunks = self.chunks.iter().enumerate();
        let found = chunks.filter(|(at, _)| meets(*at));
        let found: BTreeSet<usize> = found.map(|(_, chunk)| chunk.partition).collect();
        found.into_iter().collect()
    }

    /// Returns the partitions of what is new between two keys, without the second.
    pub(crate) fn owners_between(&self, low: &KeyBound, high: &KeyBound) -> Vec<usize> {
        let chunks = (0..self.chunks.len()).filter(|at| {
            let (min, max) = (&self.chunks[*at].min, self.max_of(*at));
            min < high && *low < max
        });
        let found: BTreeSet<usize> = chunks.map(|at| self.chunks[at].partition).collect();
        found.into_iter().collect()
    }

    fn number_of(&self, key: &KeyBound) -> usize {
        self.chunks
            .partition_point(|chunk| chunk.min <= *key)
            .saturating_sub(1)
    }

    fn chunk_of(&self, key: &KeyBound) -> &Chunk {
        &self.chunks[self.number_of(key)]
    }

    fn min_of(&self, at: usize) -> KeyBound {
        self.chunks[at].min.clone()
    }

    /// Returns the upper bound of a chunk.
    pub(crate) fn max_of(&self, at: usize) -> KeyBound {
        let next = self.chunks.get(at + 1);
        next.map_or_else(|| self.key.whole().1, |next| next.min.clone())
    }

    /// Divides the chunk that contains `at` there; fails if a chunk begins there.
    pub(crate) fn split(&mut self, at: KeyBound) -> Result<()> {
        let number = self.number_of(&at);
        if self.chunks[number].min == at {
            return Err(Error::bad_value("a chunk begins at this key already"));
        }
        if self.chunks.len() >= CHUNKS_MAX {
            return Err(Error::new(
                ErrorCode::ExceededMemoryLimit,
                format!("a collection has at most {CHUNKS_MAX} chunks"),
            ));
        }
        let partition = self.chunks[number].partition;
        self.chunks.insert(number + 1, Chunk { min: at, partition });
        self.version += 1;
        Ok(())
    }

    /// Lets what is new between two keys go to a partition.
    pub(crate) fn assign(
        &mut self,
        (low, high): (KeyBound, KeyBound),
        partition: usize,
        now_ms: i64,
    ) -> Result<()> {
        if low >= high {
            return Err(Error::bad_value("the range must not be empty"));
        }
        let end = self.key.whole().1;
        for bound in [&low, &high] {
            let begins = self.chunks.iter().any(|chunk| chunk.min == *bound);
            if !begins && *bound != end {
                self.split(bound.clone())?;
            }
        }
        for chunk in &mut self.chunks {
            if chunk.min >= low && chunk.min < high {
                chunk.partition = partition;
            }
        }
        self.history.push(HeldRange {
            range: KeyRange { low, high },
            partition,
            since_ms: now_ms,
        });
        self.moved_ms = now_ms;
        self.merge_chunks();
        self.version += 1;
        Ok(())
    }

    /// Returns for each chunk the partitions that had it and since when, in ms since 1970, the earliest first.
    pub(crate) fn chunk_histories(&self) -> Vec<Vec<(usize, i64)>> {
        let mut out = vec![Vec::new(); self.chunks.len()];
        for held in &self.history {
            let first = self.number_of(&held.range.low);
            let end = self
                .chunks
                .partition_point(|chunk| chunk.min < held.range.high);
            for chunk in out.get_mut(first..end).unwrap_or_default() {
                chunk.push((held.partition, held.since_ms));
            }
        }
        out
    }

    /// Returns the ranges that were assigned to another partition, the earliest first. Of an assignment of which the time is
    /// not known nothing is returned.
    pub(crate) fn moves(&self) -> Vec<RangeMove<'_>> {
        let mut owners: Vec<Option<usize>> = vec![None; self.chunks.len()];
        let mut out = Vec::new();
        for held in &self.history {
            let (low, high) = (&held.range.low, &held.range.high);
            let end = self.chunks.partition_point(|chunk| chunk.min < *high);
            let chunks = owners.get_mut(self.number_of(low)..end);
            let mut from = BTreeSet::new();
            for owner in chunks.unwrap_or_default() {
                from.extend(owner.replace(held.partition));
            }
            if !from.is_empty() && held.since_ms > 0 {
                out.push(RangeMove {
                    low,
                    high,
                    from,
                    to: held.partition,
                    at_ms: held.since_ms,
                });
            }
        }
        out
    }

    /// Returns the bounds of the chunk that contains a key.
    pub(crate) fn chunk_around(&self, key: &KeyBound) -> (KeyBound, KeyBound) {
        let at = self.number_of(key);
        (self.min_of(at), self.max_of(at))
    }

    /// Returns the lower bound of the chunk in front of a bound.
    pub(crate) fn chunk_below(&self, bound: &KeyBound) -> KeyBound {
        let before = self.chunks.iter().rev().find(|chunk| chunk.min < *bound);
        before.map_or_else(|| self.key.whole().0, |chunk| chunk.min.clone())
    }

    /// Notes that documents of these partitions may have any key. True if that is new.
    pub(crate) fn note_anywhere(&mut self, partitions: &[usize]) -> bool {
        let before = self.anywhere.len();
        self.anywhere.extend(partitions);
        let is_new = self.anywhere.len() > before;
        self.version += i64::from(is_new);
        is_new
    }

    /// True if it is known that documents of these partitions may have any key.
    pub(crate) fn may_have_any_key(&self, partitions: &[usize]) -> bool {
        let mut partitions = partitions.iter();
        partitions.all(|partition| self.anywhere.contains(partition))
    }

    fn merge_chunks(&mut self) {
        // Neighbours that clients split stay apart: only repeated bounds go.
        self.chunks
            .dedup_by(|later, earlier| later.min == earlier.min);
    }
}

/// The placements of all collections.
pub(crate) type PlacementMap = BTreeMap<Namespace, Arc<Placement>>;

/// The key of the number of the last change. No collection has such a name.
const LAST_VERSION_KEY: &[u8] = b"\0version";

/// The stored placements.
pub(crate) struct Placements {
    engine: Arc<dyn Engine>,
    /// `None` in a view of a cluster without placements.
    keyspace: Option<KeyspaceId>,
    state: Mutex<PlacementsState>,
}

#[derive(Default)]
struct PlacementsState {
    map: Arc<PlacementMap>,
    /// The number of the last change.
    last_version: i64,
}

impl Placements {
    /// Reads the stored placements. `options_of` returns the options of a time series.
    pub(crate) fn open(
        engine: Arc<dyn Engine>,
        partitions: &[String],
        options_of: impl Fn(&Namespace) -> Option<TimeseriesOptions>,
    ) -> Result<Self> {
        let all = engine.keyspaces();
        let keyspace = match all.iter().find(|known| known.name == PLACEMENTS_KEYSPACE) {
            Some(known) => Some(known.id),
            None if engine.is_read_only() => None,
            None => {
                let options = KeyspaceOptions::default();
                Some(engine.create_keyspace(PLACEMENTS_KEYSPACE, options)?)
            }
        };
        let mut state = PlacementsState::default();
        let mut map = PlacementMap::new();
        if let Some(keyspace) = keyspace {
            let snapshot = engine.snapshot()?;
            for entry in snapshot.scan(keyspace, &[], None, Direction::Forward)? {
                let (key, value) = entry?;
                let stored = Document::from_bytes(value.to_vec()).ok_or_else(damaged)?;
                if key.as_ref() == LAST_VERSION_KEY {
                    let last = stored.get("number").as_exact_i64();
                    state.last_version = last.ok_or_else(damaged)?;
                    continue;
                }
                let (namespace, placement) = read(stored.as_ref(), partitions, &options_of)?;
                map.insert(namespace, Arc::new(placement));
            }
        }
        state.map = Arc::new(map);
        Ok(Self {
            engine,
            keyspace,
            state: Mutex::new(state),
        })
    }

    fn lock(&self) -> MutexGuard<'_, PlacementsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if another router changes the placements.
    pub(crate) fn is_view(&self) -> bool {
        self.engine.is_read_only()
    }

    /// Returns the placements as they are now.
    pub(crate) fn now(&self) -> Arc<PlacementMap> {
        Arc::clone(&self.lock().map)
    }

    /// Returns the version that the next change gives a placement at least.
    pub(crate) fn next_version(&self) -> i64 {
        self.lock().last_version + 1
    }

    /// Stores the placement of a collection, then lets it be seen; `None` removes it. Its version is the next one, or
    /// `at_least` if that is greater.
    pub(crate) fn set(
        &self,
        namespace: &Namespace,
        mut placement: Option<Placement>,
        at_least: i64,
        partitions: &[String],
    ) -> Result<()> {
        let Some(keyspace) = self.keyspace else {
            return Err(Error::new(
                ErrorCode::NotWritablePrimary,
                "the placements of the cluster are changed by another router",
            ));
        };
        let mut state = self.lock();
        let version = (state.last_version + 1).max(at_least);
        let key = namespace.to_string().into_bytes();
        let mut batch = WriteBatch::new();
        let last = doc! {"number": version};
        batch.put(keyspace, LAST_VERSION_KEY.to_vec(), last.into_bytes());
        match &mut placement {
            Some(placement) => {
                placement.version = version;
                let stored = written(namespace, placement, partitions);
                batch.put(keyspace, key, stored.into_bytes());
            }
            None => batch.delete(keyspace, key),
        }
        self.engine.commit(batch, Durability::Sync)?;
        let mut changed = PlacementMap::clone(&state.map);
        match placement {
            Some(placement) => changed.insert(namespace.clone(), Arc::new(placement)),
            None => changed.remove(namespace),
        };
        state.map = Arc::new(changed);
        state.last_version = version;
        Ok(())
    }
}

/// Returns a placement as it is stored.
fn written(namespace: &Namespace, placement: &Placement, partitions: &[String]) -> Document {
    let name = |partition: usize| partitions.get(partition).map_or("", String::as_str);
    let values = |bound: &KeyBound| Value::from(bound.0.clone());
    let mut out = DocumentBuilder::new();
    out.append("_id", namespace.to_string());
    out.append("primary", name(placement.primary));
    out.append_ref(
        "uuid",
        ValueRef::Binary {
            subtype: 4,
            bytes: &placement.uuid,
        },
    );
    out.append("placed", placement.version);
    if let Some(sharding) = &placement.sharding {
        out.append("key", sharding.key.written());
        out.append("version", sharding.version);
        out.append("moved", sharding.moved_ms);
        if sharding.is_unique {
            out.append("unique", true);
        }
        let chunks = sharding.chunks.iter();
        let chunks = chunks.map(|chunk| {
            Value::from(doc! {"min": values(&chunk.min), "shard": name(chunk.partition)})
        });
        out.append("chunks", chunks.collect::<Vec<_>>());
        let history = sharding.history.iter().map(|held| {
            Value::from(doc! {
                "min": values(&held.range.low), "max": values(&held.range.high),
                "shard": name(held.partition), "since": held.since_ms,
            })
        });
        out.append("history", history.collect::<Vec<_>>());
        let anywhere = sharding.anywhere.iter().map(|p| Value::from(name(*p)));
        out.append("anywhere", anywhere.collect::<Vec<_>>());
    }
    out.finish()
}

/// Returns the partition that a stored name names.
fn number_of(name: ValueRef<'_>, partitions: &[String]) -> Result<usize> {
    let name = name.as_str().ok_or_else(damaged)?;
    let found = partitions.iter().position(|known| known == name);
    found.ok_or_else(|| {
        Error::new(
            ErrorCode::ShardNotFound,
            format!("the partition {name} has documents, but is not there"),
        )
    })
}

/// Reads a stored bound.
fn bound_of(value: ValueRef<'_>) -> Result<KeyBound> {
    let values = value.as_array().ok_or_else(damaged)?;
    Ok(KeyBound(values.iter().map(ValueRef::to_value).collect()))
}

/// Reads a stored list of documents.
fn list_of(value: ValueRef<'_>) -> Result<Vec<Document>> {
    let values = value.as_array().ok_or_else(damaged)?;
    let documents = values
        .iter()
        .map(|v| v.as_document().map(|d| d.to_document()));
    documents.collect::<Option<_>>().ok_or_else(damaged)
}

/// Reads a stored placement.
fn read(
    stored: DocRef<'_>,
    partitions: &[String],
    options_of: impl Fn(&Namespace) -> Option<TimeseriesOptions>,
) -> Result<(Namespace, Placement)> {
    let name = stored
        .get("_id")
        .as_str()
        .and_then(|name| name.split_once('.'));
    let (database, collection) = name.ok_or_else(damaged)?;
    let namespace = Namespace::new(database, collection)?;
    let uuid = match stored.get("uuid") {
        ValueRef::Binary { bytes, .. } => bytes.try_into().map_err(|_| damaged())?,
        _ => return Err(damaged()),
    };
    let sharding = match stored.get("key") {
        ValueRef::Document(key) => {
            let key = ShardKey::parse(key, options_of(&namespace).as_ref())?;
            Some(read_sharding(stored, key, partitions)?)
        }
        _ => None,
    };
    let placement = Placement {
        primary: number_of(stored.get("primary"), partitions)?,
        uuid,
        // A placement of before there were versions is the oldest.
        version: stored.get("placed").as_exact_i64().unwrap_or(0),
        sharding,
    };
    Ok((namespace, placement))
}

/// Reads the chunks and the history of a stored placement.
fn read_sharding(stored: DocRef<'_>, key: ShardKey, partitions: &[String]) -> Result<Sharding> {
    let mut chunks = Vec::new();
    for chunk in list_of(stored.get("chunks"))? {
        chunks.push(Chunk {
            min: bound_of(chunk.get("min"))?,
            partition: number_of(chunk.get("shard"), partitions)?,
        });
    }
    let is_whole = chunks
        .first()
        .is_some_and(|chunk| chunk.min == key.whole().0);
    if !is_whole {
        return Err(damaged());
    }
    let mut history = Vec::new();
    for entry in list_of(stored.get("history"))? {
        let range = KeyRange {
            low: bound_of(entry.get("min"))?,
            high: bound_of(entry.get("max"))?,
        };
        history.push(HeldRange {
            range,
            partition: number_of(entry.get("shard"), partitions)?,
            // An entry of before there were times has none.
            since_ms: entry.get("since").as_exact_i64().unwrap_or(0),
        });
    }
    let anywhere = stored.get("anywhere").as_array().ok_or_else(damaged)?;
    let anywhere = anywhere.iter().map(|name| number_of(name, partitions));
    Ok(Sharding {
        key,
        chunks,
        history,
        anywhere: anywhere.collect::<Result<_>>()?,
        is_unique: matches!(stored.get("unique"), ValueRef::Bool(true)),
        version: stored.get("version").as_exact_i64().ok_or_else(damaged)?,
        moved_ms: stored.get("moved").as_exact_i64().unwrap_or(0),
    })
}

fn damaged() -> Error {
    Error::new(
        ErrorCode::DataCorruptionDetected,
        "a stored placement is damaged",
    )
}

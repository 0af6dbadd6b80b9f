//! Finding buckets by an index.
//!
//! ```text
//! bounds ─► entries of the index ─► ids, sorted, each once ─► buckets in the order of their ids
//!           buckets with a tail ──┘ (dynamic indexes)           as a scan of all of them reads them
//! ```
//!
//! Where the order of an index is asked for, its entries are read piece by piece instead ([`Stream`]): a bucket keeps its
//! place in an index of metadata and time for as long as it is there.
//!
//! Else all ids are collected under one snapshot before the first bucket is read. Buckets keep their ids
//! when they are folded or sealed, so a scan by index neither skips nor repeats one that is there
//! throughout; it sees the buckets that existed when it began. The order of buckets is that of their
//! ids whatever the index, so everything above that relies on it holds.
//!
//! Entries are read as the bounds say, not more: behind a key outside them the scan goes on at the
//! next that can be inside.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use nilometer_bson::key_string::{self, KeyOrder};
use nilometer_storage::{Bytes, Direction, KeyspaceId, Snapshot};

use super::BucketRange;
use super::storage_iterator::behind;
use crate::catalog::Collection;
use crate::error::{Error, ErrorCode, Result};
use crate::index::buckets::{BucketIndex, IndexKeyFilter, KeyCount, KeyPosition, ScannedBuckets};
use crate::timeseries::Timeseries;
use crate::timeseries::fold::BucketKeyspaces;
use crate::timeseries::format::tail;

/// Bytes of a bucket's id, which end every entry.
const ID_BYTES: usize = 12;

/// Ids collected at most: twelve megabytes. A scan that would find more reads all buckets instead.
pub const CANDIDATES_MAX: usize = 1 << 20;

/// Entries of one bucket's tail that are passed before the scan jumps to the next bucket.
const TAIL_ENTRIES_PASSED_MAX: usize = 4;

/// Entries passed one by one before a jump: a short way is walked, a long one jumped.
pub(crate) const ENTRIES_WALKED_MAX: usize = 8;

/// After a way that was too long to be walked, so many are jumped at once: where values that are wanted have many entries
/// between them, the next way is long as well.
const JUMPS_AFTER_LONG_WAY: usize = 16;

/// A walk over the entries of an index that are wanted.
pub(crate) struct IndexWalk<'w> {
    snapshot: &'w dyn Snapshot,
    keyspace: KeyspaceId,
    wanted: &'w dyn IndexKeyFilter,
    end: Option<Vec<u8>>,
    scan: nilometer_storage::Scan,
    /// Keys looked at, wanted or not.
    pub(crate) examined: u64,
    /// Below this nothing is wanted: entries are walked to it, or jumped.
    seek: Option<(Vec<u8>, usize)>,
    /// Ways that will not be tried on foot.
    jumps: usize,
    done: bool,
}

impl<'w> IndexWalk<'w> {
    /// The wanted entries of an index, ascending.
    pub(crate) fn new(
        snapshot: &'w dyn Snapshot,
        keyspace: KeyspaceId,
        wanted: &'w dyn IndexKeyFilter,
    ) -> Result<Self> {
        let end = wanted.end();
        let start = wanted.start();
        let scan = snapshot.scan(keyspace, &start, end.as_deref(), Direction::Forward)?;
        Ok(Self {
            snapshot,
            keyspace,
            wanted,
            end,
            scan,
            examined: 0,
            seek: None,
            jumps: 0,
            done: false,
        })
    }

    /// Goes on at `key`.
    fn jump(&mut self, key: &[u8]) -> Result<()> {
        self.seek = None;
        if self.end.as_deref().is_some_and(|end| end <= key) {
            self.done = true;
            return Ok(());
        }
        self.scan =
            self.snapshot
                .scan(self.keyspace, key, self.end.as_deref(), Direction::Forward)?;
        Ok(())
    }

    /// The next wanted entry: its key with the bucket's id behind it, and its type bits.
    pub(crate) fn next(&mut self) -> Result<Option<(Bytes, Bytes)>> {
        while !self.done {
            let Some(item) = self.scan.next() else {
                break;
            };
            let (entry, type_bits) = item?;
            if let Some((target, walked)) = &mut self.seek {
                if &*entry < target.as_slice() {
                    *walked += 1;
                    if *walked > ENTRIES_WALKED_MAX {
                        let target = std::mem::take(target);
                        self.jumps = JUMPS_AFTER_LONG_WAY;
                        self.jump(&target)?;
                    }
                    continue;
                }
                self.seek = None;
            }
            self.examined += 1;
            let (key, _) = split(&entry)?;
            match self.wanted.position(key)? {
                KeyPosition::Inside => return Ok(Some((entry, type_bits))),
                KeyPosition::Seek(target) if self.jumps > 0 => {
                    self.jumps -= 1;
                    self.jump(&target)?;
                }
                KeyPosition::Seek(target) => self.seek = Some((target, 0)),
                KeyPosition::Past => break,
            }
        }
        self.done = true;
        Ok(None)
    }
}

/// The key string and the bucket's id of an entry.
pub(crate) fn split(entry: &[u8]) -> Result<(&[u8], [u8; ID_BYTES])> {
    entry.split_last_chunk().map_or_else(
        || {
            Err(Error::new(
                ErrorCode::DataCorruptionDetected,
                "an index entry is too short to name a bucket",
            ))
        },
        |(key, id)| Ok((key, *id)),
    )
}

/// The first `components` components of a key string.
pub(crate) fn prefix(key: &[u8], order: KeyOrder, components: usize) -> Result<&[u8]> {
    let rest = key_string::skip(key, order, components).map_err(|error| {
        Error::new(
            ErrorCode::DataCorruptionDetected,
            format!("an index entry cannot be read: {error}"),
        )
    })?;
    Ok(key.get(..key.len() - rest.len()).unwrap_or(key))
}

/// Buckets that may hold what is looked for.
#[derive(Debug, Default)]
pub struct Found {
    /// Ascending, each once.
    pub ids: Vec<[u8; ID_BYTES]>,
    /// Keys looked at.
    pub keys_examined: u64,
}

/// Which buckets a scan reads.
pub(crate) enum Candidates {
    /// All in its range.
    All,
    /// These; the next one last.
    Listed(Vec<[u8; ID_BYTES]>),
    /// These, which lie close together; the next one last.
    Outermost(Vec<[u8; ID_BYTES]>),
    /// Those an index names one after the other, in its order.
    Streamed(Stream),
}

/// Buckets in the order in which an index names them. Entries are read as they are asked for.
pub struct Stream {
    keyspace: KeyspaceId,
    low: Vec<u8>,
    high: Option<Vec<u8>>,
    /// Which entries of those between the two; all if it is not said.
    wanted: Option<Arc<dyn IndexKeyFilter>>,
    range: BucketRange,
    backward: bool,
    count: Box<dyn Fn(u64) + Send>,
}

impl Stream {
    /// The wanted entries of `index`, from the last to the first if `backward`.
    pub fn new(
        index: &BucketIndex,
        wanted: &Arc<dyn IndexKeyFilter>,
        (range, backward): (BucketRange, bool),
        count: Box<dyn Fn(u64) + Send>,
    ) -> Self {
        Self {
            wanted: Some(Arc::clone(wanted)),
            backward,
            ..Self::run(index, &**wanted, range, count)
        }
    }

    /// All entries of `index` from the first that is wanted to the last: those of one series, or of anything that is
    /// one value up to the time. Their order is that of the ids, as ids begin with the start.
    pub fn run(
        index: &BucketIndex,
        wanted: &dyn IndexKeyFilter,
        range: BucketRange,
        count: Box<dyn Fn(u64) + Send>,
    ) -> Self {
        Self {
            keyspace: index.stored.keyspace,
            low: wanted.start(),
            high: wanted.end(),
            wanted: None,
            range,
            backward: range.backward,
            count,
        }
    }

    fn is_wanted(&self, key: &[u8]) -> Result<bool> {
        Ok(match &self.wanted {
            Some(wanted) => matches!(wanted.position(key)?, KeyPosition::Inside),
            None => true,
        })
    }

    /// The next ids, at most so many; none when nothing is left.
    pub(crate) fn next(
        &mut self,
        snapshot: &dyn Snapshot,
        at_most: usize,
    ) -> Result<Vec<[u8; ID_BYTES]>> {
        let direction = match self.backward {
            true => Direction::Backward,
            false => Direction::Forward,
        };
        let scan = snapshot.scan(self.keyspace, &self.low, self.high.as_deref(), direction)?;
        let mut found = Vec::new();
        let mut last = None;
        let mut examined = 0;
        for item in scan {
            let (entry, _) = item?;
            examined += 1;
            let (key, id) = split(&entry)?;
            if self.range.contains(id) && self.is_wanted(key)? {
                found.push(id);
            }
            last = Some(entry);
            if found.len() >= at_most {
                break;
            }
        }
        (self.count)(examined);
        match (last, self.backward) {
            (Some(last), true) => self.high = Some(last.to_vec()),
            (Some(last), false) => self.low = [&*last, &[0]].concat(),
            (None, _) => {}
        }
        Ok(found)
    }
}

impl Timeseries {
    /// The buckets an index leads to, of those whose ids are in `range`; `None` if there are more
    /// than [`CANDIDATES_MAX`]. The index is not read if nothing has come into it since it was `walked`.
    pub fn candidates(
        &self,
        collection: &Collection,
        index: &BucketIndex,
        (wanted, walked): (&dyn IndexKeyFilter, Option<&ScannedBuckets>),
        range: BucketRange,
    ) -> Result<Option<Found>> {
        let Some(keyspaces) = BucketKeyspaces::of(collection) else {
            return Ok(Some(Found::default()));
        };
        let snapshot = self.engine.snapshot()?;
        let mut found = Found::default();
        let keyspace = index.stored.keyspace;
        let walked = walked.filter(|walked| {
            walked.keyspace == keyspace && Some(walked.version) == snapshot.version(keyspace)
        });
        if let Some(walked) = walked {
            let within = walked.ids.iter().filter(|id| range.contains(**id));
            found.ids.extend(within);
            found.keys_examined = walked.keys_examined;
        } else {
            let mut walk = IndexWalk::new(&*snapshot, keyspace, wanted)?;
            while let Some((entry, _)) = walk.next()? {
                let (_, id) = split(&entry)?;
                if range.contains(id) {
                    found.ids.push(id);
                }
                if found.ids.len() > CANDIDATES_MAX {
                    return Ok(None);
                }
            }
            found.keys_examined = walk.examined;
        }
        if !index.is_static() {
            buckets_with_tail(&*snapshot, keyspaces, range, |id| found.ids.push(id))?;
        }
        found.ids.sort_unstable();
        found.ids.dedup();
        Ok((found.ids.len() <= CANDIDATES_MAX).then_some(found))
    }

    /// How many wanted entries an index has, counted up to `limit`.
    pub fn count_keys(
        &self,
        index: &BucketIndex,
        wanted: &dyn IndexKeyFilter,
        limit: u64,
    ) -> Result<KeyCount> {
        let snapshot = self.engine.snapshot()?;
        let keyspace = index.stored.keyspace;
        let version = snapshot.version(keyspace);
        let mut walk = IndexWalk::new(&*snapshot, keyspace, wanted)?;
        let (mut ids, mut count) = (Vec::new(), 0);
        while count < limit && walk.examined < limit.saturating_mul(2) {
            let Some((entry, _)) = walk.next()? else {
                break;
            };
            count += 1;
            if ids.len() < CANDIDATES_MAX {
                ids.push(split(&entry)?.1);
            }
        }
        let walked = version.filter(|_| walk.done && ids.len() < CANDIDATES_MAX);
        Ok(KeyCount {
            keys: count.max(walk.examined / 2),
            scanned: walked.map(|version| {
                Arc::new(ScannedBuckets {
                    keyspace,
                    version,
                    ids,
                    keys_examined: walk.examined,
                })
            }),
        })
    }

    /// About how many buckets have ids between the given seconds, if ids are spread evenly over the
    /// time between the first and the last.
    pub fn clustered_estimate(
        &self,
        collection: &Collection,
        id_min: Option<u32>,
        id_max: Option<u32>,
    ) -> Result<u64> {
        let Some(keyspaces) = BucketKeyspaces::of(collection) else {
            return Ok(0);
        };
        let all = self.engine.keys_estimate(keyspaces.series)?;
        if id_min.is_none() && id_max.is_none() {
            return Ok(all);
        }
        let Some((first, last)) = self.start_range(keyspaces, all)? else {
            return Ok(0);
        };
        let last = last.max(first);
        let low = id_min.map_or(first, |min| min.max(first));
        let high = id_max.map_or(last, |max| max.min(last));
        if low > high {
            // What came since the range was looked at may lie there.
            return Ok(all / START_RANGE_SLACK);
        }
        let span = u64::from(last - first) + 1;
        let within = u64::from(high - low) + 1;
        let share = u128::from(all) * u128::from(within) / u128::from(span);
        Ok(u64::try_from(share).unwrap_or(u64::MAX).max(1))
    }
}

/// Between which seconds buckets start, by the keyspace of sealed ones, and how many there were when that was
/// looked at.
pub(crate) type StartRanges = Mutex<HashMap<KeyspaceId, (u64, (u32, u32))>>;

/// Collections whose range is remembered.
const START_RANGES_MAX: usize = 10_000;

/// The range is looked at anew when there are more or fewer buckets than then by one in so many.
const START_RANGE_SLACK: u64 = 16;

impl Timeseries {
    /// The seconds in which the first and the last bucket start, of about `all` there are, as they were
    /// not long ago: looking means passing every tail entry that is deleted and not yet gone.
    fn start_range(&self, keyspaces: BucketKeyspaces, all: u64) -> Result<Option<(u32, u32)>> {
        let lock = || {
            let ranges = self.start_ranges.lock();
            ranges.unwrap_or_else(PoisonError::into_inner)
        };
        if let Some((known, range)) = lock().get(&keyspaces.sealed)
            && known.abs_diff(all) <= known / START_RANGE_SLACK
        {
            return Ok(Some(*range));
        }
        let range = self.find_start_range(keyspaces)?;
        if let Some(range) = range {
            let mut ranges = lock();
            if ranges.len() >= START_RANGES_MAX {
                ranges.clear();
            }
            ranges.insert(keyspaces.sealed, (all, range));
        }
        Ok(range)
    }

    fn find_start_range(&self, keyspaces: BucketKeyspaces) -> Result<Option<(u32, u32)>> {
        let snapshot = self.engine.snapshot()?;
        let edge = |keyspace, direction| -> Result<Option<u32>> {
            let first = snapshot.scan(keyspace, &[], None, direction)?.next();
            let key = first.transpose()?.map(|(key, _)| key);
            Ok(key.and_then(|key| key.first_chunk().copied().map(u32::from_be_bytes)))
        };
        // What was folded or sealed leaves traces where it was, which a scan from there walks over: the
        // oldest buckets are among the sealed ones, if there are any.
        let mut first = None;
        let mut last = None;
        for keyspace in [keyspaces.sealed, keyspaces.open, keyspaces.tail] {
            if first.is_none() {
                first = edge(keyspace, Direction::Forward)?;
            }
            last = last.max(edge(keyspace, Direction::Backward)?);
        }
        Ok(first.zip(last))
    }
}

/// Names every bucket that has a tail.
pub(crate) fn buckets_with_tail(
    snapshot: &dyn Snapshot,
    keyspaces: BucketKeyspaces,
    range: BucketRange,
    mut found: impl FnMut([u8; ID_BYTES]),
) -> Result<()> {
    let start = range.min.map(|id| id.to_vec()).unwrap_or_default();
    let mut scan = snapshot.scan(keyspaces.tail, &start, None, Direction::Forward)?;
    let mut last = None;
    let mut passed = 0;
    while let Some(item) = scan.next() {
        let (id, _) = tail::split_key(&item?.0)?;
        if range.max.is_some_and(|max| id > max) {
            break;
        }
        if last == Some(id) {
            passed += 1;
            if passed > TAIL_ENTRIES_PASSED_MAX {
                scan = snapshot.scan(keyspaces.tail, &behind(id), None, Direction::Forward)?;
                passed = 0;
            }
            continue;
        }
        last = Some(id);
        passed = 0;
        found(id);
    }
    Ok(())
}

//! Reads buckets by their ids.
//!
//! A bucket may have entries in three keyspaces ([`super::storage_iterator`]). There are four ways to read a list of buckets:
//!
//! - [`buckets_of`] looks up each key. It is used where the buckets lie far apart: an iterator would skip the tails of all
//!   buckets between them, and their tombstones.
//! - [`mostly_sealed`] does so for the buckets that have an open document or a tail. Which these are is known, or is read first
//!   if there are few ([`unsealed_buckets`]); of all others it reads the sealed documents, together.
//! - [`neighbours`] steps an iterator over each keyspace from one bucket to the next. It is used where the buckets lie close
//!   together, as the newest of all series do: while the next open document or tail entry belongs to a later bucket, these
//!   two keyspaces need no lookup.
//! - [`with_unsealed_parts`] is given all open documents and tails of a range, which were read to find out which buckets have them.

use std::collections::{BTreeMap, BTreeSet};

use nilometer_storage::{Bytes, Direction, KeyspaceId, Scan, Snapshot, seek};

use super::storage_iterator::{RawBucket, StoredForm};
use crate::error::Result;
use crate::timeseries::format::key_range::{KeyRange, bucket_of, end_of};
use crate::timeseries::format::keyspaces::BucketKeyspaces;
use crate::timeseries::format::tail;

/// Open documents and entries of tails, deleted ones included, for each bucket to read: to step over more of them costs more than
/// to look up those of the bucket.
const ENTRIES_PER_BUCKET: u64 = 16;

/// Entries to step over before a seek.
const STEPS_MAX: usize = 8;

/// Distant documents after which the iterator over sealed documents is given up.
const DISTANT_MAX: usize = 4;

/// Returns the buckets with these ids that exist, in the order of `ids`.
pub(crate) fn buckets_of(
    snapshot: &dyn Snapshot,
    keyspaces: BucketKeyspaces,
    ids: &[[u8; 12]],
) -> Result<Vec<RawBucket>> {
    let mut found = Vec::with_capacity(ids.len());
    for id in ids.iter().copied() {
        let document = match snapshot.get(keyspaces.open, &id)? {
            Some(stored) => Some(StoredForm::Open(stored)),
            None => snapshot.get(keyspaces.sealed, &id)?.map(StoredForm::Sealed),
        };
        let (start, end) = (tail::key(id, 0), end_of(id));
        let tail = snapshot.scan(keyspaces.tail, &start, Some(&end), Direction::Forward)?;
        let tail = tail.collect::<Result<Vec<_>, _>>()?;
        found.extend(raw_bucket(id, document, tail));
    }
    Ok(found)
}

/// Returns the buckets with these ids that exist, in the order of `ids`. Those that have an open document or a tail are all
/// in `unsealed`, which ascends.
pub(crate) fn mostly_sealed(
    snapshot: &dyn Snapshot,
    keyspaces: BucketKeyspaces,
    ids: &[[u8; 12]],
    unsealed: &[[u8; 12]],
) -> Result<Vec<RawBucket>> {
    let is_sealed = |id: &[u8; 12]| unsealed.binary_search(id).is_err();
    let keys = ids.iter().filter(|id| is_sealed(id));
    let keys: Vec<&[u8]> = keys.map(|id| &id[..]).collect();
    let mut documents = snapshot.get_all(keyspaces.sealed, &keys)?.into_iter();
    let mut found = Vec::with_capacity(ids.len());
    for id in ids {
        if is_sealed(id) {
            let document = documents.next().flatten();
            found.extend(raw_bucket(
                *id,
                document.map(StoredForm::Sealed),
                Vec::new(),
            ));
        } else {
            found.extend(buckets_of(snapshot, keyspaces, &[*id])?);
        }
    }
    Ok(found)
}

/// Returns the ids of all buckets that have an open document or a tail, ascending; `None` if that may cost more than to look up
/// those of `buckets` buckets.
pub(crate) fn unsealed_buckets(
    snapshot: &dyn Snapshot,
    keyspaces: BucketKeyspaces,
    buckets: usize,
) -> Result<Option<Vec<[u8; 12]>>> {
    let both = [keyspaces.open, keyspaces.tail];
    let entries = both.map(|keyspace| snapshot.entries_max(keyspace));
    let entries: Option<u64> = entries.into_iter().sum();
    if entries.is_none_or(|entries| entries > buckets as u64 * ENTRIES_PER_BUCKET) {
        return Ok(None);
    }
    unsealed_within(snapshot, keyspaces, &KeyRange::all()).map(Some)
}

/// Returns the ids of all buckets in a range that have an open document or a tail, ascending.
pub(super) fn unsealed_within(
    snapshot: &dyn Snapshot,
    keyspaces: BucketKeyspaces,
    range: &KeyRange,
) -> Result<Vec<[u8; 12]>> {
    let mut ids = BTreeSet::new();
    for keyspace in [keyspaces.open, keyspaces.tail] {
        let (start, end) = (&range.start, range.end.as_deref());
        for entry in snapshot.scan(keyspace, start, end, Direction::Forward)? {
            ids.insert(bucket_of(&entry?.0)?);
        }
    }
    Ok(ids.into_iter().collect())
}

/// The open document and the tail of a bucket.
#[derive(Default)]
pub(super) struct UnsealedParts {
    open: Option<Bytes>,
    tail: Vec<(Bytes, Bytes)>,
}

/// Returns what buckets in a range have besides sealed documents.
pub(super) fn unsealed_parts_within(
    snapshot: &dyn Snapshot,
    keyspaces: BucketKeyspaces,
    range: &KeyRange,
) -> Result<BTreeMap<[u8; 12], UnsealedParts>> {
    let mut found: BTreeMap<_, UnsealedParts> = BTreeMap::new();
    let (start, end) = (&range.start, range.end.as_deref());
    for entry in snapshot.scan(keyspaces.open, start, end, Direction::Forward)? {
        let (key, stored) = entry?;
        found.entry(bucket_of(&key)?).or_default().open = Some(stored);
    }
    let mut tails = LookaheadIterator::of_scan(
        snapshot,
        keyspaces.tail,
        snapshot.scan(keyspaces.tail, start, end, Direction::Forward)?,
    )?;
    while let Some((id, ..)) = tails.next {
        let tail = &mut found.entry(id).or_default().tail;
        while let Some(entry) = tails.take(id)? {
            tail.push(entry);
        }
    }
    Ok(found)
}

/// Returns the buckets with these ids that exist, which ascend. `unsealed` has all that they have besides sealed documents.
pub(super) fn with_unsealed_parts(
    snapshot: &dyn Snapshot,
    keyspaces: BucketKeyspaces,
    ids: &[[u8; 12]],
    mut unsealed: BTreeMap<[u8; 12], UnsealedParts>,
) -> Result<Vec<RawBucket>> {
    let Some(last) = ids.last() else {
        return Ok(Vec::new());
    };
    let mut sealed = Sealed {
        iterator: LookaheadIterator::new(snapshot, keyspaces.sealed, *last),
        distant: 0,
    };
    let mut found = Vec::with_capacity(ids.len());
    for id in ids {
        let UnsealedParts { open, tail } = unsealed.remove(id).unwrap_or_default();
        let document = match open {
            Some(stored) => Some(StoredForm::Open(stored)),
            None => {
                let stored = sealed.document(snapshot, keyspaces.sealed, *id)?;
                stored.map(StoredForm::Sealed)
            }
        };
        found.extend(raw_bucket(*id, document, tail));
    }
    Ok(found)
}

/// Returns a bucket, or `None` if it has neither a document nor a tail.
fn raw_bucket(
    id: [u8; 12],
    document: Option<StoredForm>,
    tail: Vec<(Bytes, Bytes)>,
) -> Option<RawBucket> {
    (document.is_some() || !tail.is_empty()).then(|| RawBucket {
        id,
        is_sealed: matches!(document, Some(StoredForm::Sealed(_))),
        document,
        tail,
    })
}

/// Returns the buckets with these ids that exist. The ids ascend or descend and lie close together.
pub(crate) fn neighbours(
    snapshot: &dyn Snapshot,
    keyspaces: BucketKeyspaces,
    ids: &[[u8; 12]],
) -> Result<Vec<RawBucket>> {
    let is_descending = ids.first() > ids.last();
    let ascending = ids.iter().copied();
    let ascending: Vec<[u8; 12]> = match is_descending {
        true => ascending.rev().collect(),
        false => ascending.collect(),
    };
    let Some(last) = ascending.last().copied() else {
        return Ok(Vec::new());
    };
    let mut open = LookaheadIterator::new(snapshot, keyspaces.open, last);
    let mut tails = LookaheadIterator::new(snapshot, keyspaces.tail, last);
    let mut sealed = Sealed {
        iterator: LookaheadIterator::new(snapshot, keyspaces.sealed, last),
        distant: 0,
    };
    let mut found = Vec::with_capacity(ids.len());
    for id in ascending {
        let document = match open.take(id)? {
            Some((_, stored)) => Some(StoredForm::Open(stored)),
            None => sealed
                .document(snapshot, keyspaces.sealed, id)?
                .map(StoredForm::Sealed),
        };
        let mut tail = Vec::new();
        while let Some(entry) = tails.take(id)? {
            tail.push(entry);
        }
        found.extend(raw_bucket(id, document, tail));
    }
    if is_descending {
        found.reverse();
    }
    Ok(found)
}

/// Reads sealed documents: an iterator steps from one to the next while they are adjacent, else each key is looked up, which
/// costs more than a step and less than a seek.
struct Sealed<'s> {
    iterator: LookaheadIterator<'s>,
    /// How many documents were distant.
    distant: usize,
}

impl Sealed<'_> {
    fn document(
        &mut self,
        snapshot: &dyn Snapshot,
        keyspace: KeyspaceId,
        id: [u8; 12],
    ) -> Result<Option<Bytes>> {
        if self.distant < DISTANT_MAX {
            if self.iterator.scan.is_none() || self.iterator.step_to(id)? {
                return Ok(self.iterator.take(id)?.map(|(_, stored)| stored));
            }
            self.distant += 1;
        }
        Ok(snapshot.get(keyspace, &id)?)
    }
}

/// An iterator over one keyspace with one entry of lookahead, for buckets with ascending ids.
struct LookaheadIterator<'s> {
    snapshot: &'s dyn Snapshot,
    keyspace: KeyspaceId,
    /// The end of the keys of the last bucket.
    end: Vec<u8>,
    scan: Option<Scan>,
    next: Option<([u8; 12], Bytes, Bytes)>,
}

impl<'s> LookaheadIterator<'s> {
    fn new(snapshot: &'s dyn Snapshot, keyspace: KeyspaceId, last: [u8; 12]) -> Self {
        Self {
            snapshot,
            keyspace,
            end: end_of(last),
            scan: None,
            next: None,
        }
    }

    /// Returns an iterator that steps through a scan and is not moved to other keys.
    fn of_scan(snapshot: &'s dyn Snapshot, keyspace: KeyspaceId, scan: Scan) -> Result<Self> {
        let mut iterator = Self {
            snapshot,
            keyspace,
            end: Vec::new(),
            scan: Some(scan),
            next: None,
        };
        iterator.pull()?;
        Ok(iterator)
    }

    /// Returns the next entry of a bucket, or `None` if there is no other.
    fn take(&mut self, id: [u8; 12]) -> Result<Option<(Bytes, Bytes)>> {
        self.seek(id)?;
        let Some((_, key, value)) = self.next.take_if(|(next, ..)| *next == id) else {
            return Ok(None);
        };
        self.pull()?;
        Ok(Some((key, value)))
    }

    /// Moves to the first entry of the bucket, or of a later one.
    fn seek(&mut self, id: [u8; 12]) -> Result<()> {
        match self.step_to(id)? {
            true => Ok(()),
            false => self.seek_to(id),
        }
    }

    /// Moves there by steps. False if it is too far.
    fn step_to(&mut self, id: [u8; 12]) -> Result<bool> {
        if self.scan.is_none() {
            return Ok(false);
        }
        let mut steps = 0;
        while let Some((next, ..)) = &self.next
            && *next < id
        {
            steps += 1;
            if steps > STEPS_MAX {
                return Ok(false);
            }
            self.pull()?;
        }
        Ok(true)
    }

    fn seek_to(&mut self, id: [u8; 12]) -> Result<()> {
        let (snapshot, end) = (self.snapshot, Some(&self.end[..]));
        match &mut self.scan {
            Some(scan) => seek(scan, snapshot, self.keyspace, &id, end)?,
            None => {
                self.scan = Some(snapshot.scan(self.keyspace, &id, end, Direction::Forward)?);
            }
        }
        self.pull()
    }

    fn pull(&mut self) -> Result<()> {
        let entry = self.scan.as_mut().and_then(Iterator::next).transpose()?;
        self.next = match entry {
            Some((key, value)) => Some((bucket_of(&key)?, key, value)),
            None => None,
        };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use nilometer_storage::{Durability, Engine, KeyspaceOptions, MemoryEngine, WriteBatch};

    use super::*;

    fn id(n: u8) -> [u8; 12] {
        let mut id = [0; 12];
        id[3] = n;
        id
    }

    #[test]
    fn what_is_fetched_is_what_is_there() {
        let engine = MemoryEngine::default();
        let mut made = ["sealed", "open", "tail", "series"].map(|name| {
            engine
                .create_keyspace(name, KeyspaceOptions::default())
                .unwrap()
        });
        made.sort_unstable();
        let [sealed, open, tails, series] = made;
        let keyspaces = BucketKeyspaces {
            sealed,
            open,
            tail: tails,
            series,
            summaries: None,
            registry: None,
        };
        let mut batch = WriteBatch::default();
        // Every third is sealed, every fifth open, every seventh has a tail of its number.
        for n in 0..200u8 {
            if n % 3 == 0 {
                batch.put(sealed, id(n).to_vec(), vec![n, 0]);
            }
            if n % 5 == 0 {
                batch.put(open, id(n).to_vec(), vec![n, 1]);
            }
            if n % 7 == 0 {
                for sequence in 0..u32::from(n % 20) {
                    batch.put(tails, tail::key(id(n), sequence), vec![n]);
                }
            }
        }
        engine.commit(batch, Durability::Buffered).unwrap();
        let snapshot = engine.snapshot().unwrap();
        let check = |asked: Vec<[u8; 12]>| {
            let plain = |found: Vec<RawBucket>| -> Vec<([u8; 12], Option<Vec<u8>>, usize)> {
                let found = found.into_iter();
                let plain = found.map(|b| (b.id, b.stored().map(|s| s.to_vec()), b.tail.len()));
                plain.collect()
            };
            let found = plain(neighbours(&*snapshot, keyspaces, &asked).unwrap());
            let apart = plain(buckets_of(&*snapshot, keyspaces, &asked).unwrap());
            let unsealed = unsealed_buckets(&*snapshot, keyspaces, 200).unwrap();
            let mostly = mostly_sealed(&*snapshot, keyspaces, &asked, &unsealed.unwrap());
            let mostly = plain(mostly.unwrap());
            let expected = asked.iter().map(|id| {
                let n = id[3];
                let stored = match (n % 5, n % 3) {
                    (0, _) => Some(vec![n, 1]),
                    (_, 0) => Some(vec![n, 0]),
                    _ => None,
                };
                let tail = if n % 7 == 0 { usize::from(n % 20) } else { 0 };
                (*id, stored, tail)
            });
            let expected: Vec<_> = expected
                .filter(|(_, stored, tail)| stored.is_some() || *tail > 0)
                .collect();
            assert_eq!(found, expected);
            assert_eq!(apart, expected);
            assert_eq!(mostly, expected);
            if asked.is_sorted() {
                let parts = unsealed_parts_within(&*snapshot, keyspaces, &KeyRange::all());
                let in_one = with_unsealed_parts(&*snapshot, keyspaces, &asked, parts.unwrap());
                assert_eq!(plain(in_one.unwrap()), expected);
            }
        };
        for step in [1, 2, 11, 35, 120] {
            check((0..200).step_by(step).map(id).collect());
            check((0..200).rev().step_by(step).map(id).collect());
        }
        check(vec![id(21)]);
        check(Vec::new());
        assert!(
            unsealed_buckets(&*snapshot, keyspaces, 2)
                .unwrap()
                .is_none()
        );
    }
}

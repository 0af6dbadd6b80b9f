//! Buckets fetched by their ids.
//!
//! Each bucket may lie in three keyspaces ([`super::storage_iterator`]). Where the buckets that are asked for lie close together, as
//! the newest of all series do, sealed documents are walked from one to the next, and open documents and tails beside them: as long as the next one that is
//! there belongs to a later bucket, nothing needs to be asked of these two. Elsewhere such a walk would pass over the tails
//! of all that lies between, and over what of them is deleted and not yet gone: each bucket is asked for by its key.

use nilometer_storage::{Bytes, Direction, KeyspaceId, Scan, Snapshot};

use super::storage_iterator::{Lying, RawBucket, behind, bucket_of};
use crate::error::Result;
use crate::timeseries::fold::BucketKeyspaces;
use crate::timeseries::format::tail;

/// Entries passed one by one before a jump.
const ENTRIES_PASSED_MAX: usize = 8;

/// Documents that lay far off, after which a walk is given up.
const FAR_MAX: usize = 4;

/// Those of the buckets called `ids` that are there, in the order asked for.
pub(crate) fn buckets_of(
    snapshot: &dyn Snapshot,
    keyspaces: BucketKeyspaces,
    ids: &[[u8; 12]],
) -> Result<Vec<RawBucket>> {
    let mut found = Vec::with_capacity(ids.len());
    for id in ids.iter().copied() {
        let document = match snapshot.get(keyspaces.open, &id)? {
            Some(stored) => Some(Lying::Open(stored)),
            None => snapshot.get(keyspaces.sealed, &id)?.map(Lying::Sealed),
        };
        let (start, end) = (tail::key(id, 0), behind(id));
        let tail = snapshot.scan(keyspaces.tail, &start, Some(&end), Direction::Forward)?;
        let tail = tail.collect::<Result<Vec<_>, _>>()?;
        found.extend(raw_bucket(id, document, tail));
    }
    Ok(found)
}

/// What was found of a bucket; none if there is neither a document nor a tail.
fn raw_bucket(
    id: [u8; 12],
    document: Option<Lying>,
    tail: Vec<(Bytes, Bytes)>,
) -> Option<RawBucket> {
    (document.is_some() || !tail.is_empty()).then(|| RawBucket {
        id,
        is_sealed: matches!(document, Some(Lying::Sealed(_))),
        document,
        tail,
    })
}

/// The same for buckets that lie close together: ascending, or descending.
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
    let mut open = Ahead::new(snapshot, keyspaces.open, last);
    let mut tails = Ahead::new(snapshot, keyspaces.tail, last);
    let mut sealed = Sealed {
        walk: Ahead::new(snapshot, keyspaces.sealed, last),
        far: 0,
    };
    let mut found = Vec::with_capacity(ids.len());
    for id in ascending {
        let document = match open.take(id)? {
            Some((_, stored)) => Some(Lying::Open(stored)),
            None => sealed
                .document(snapshot, keyspaces.sealed, id)?
                .map(Lying::Sealed),
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

/// Sealed documents: walked from one to the next as long as they lie side by side, else asked for by their keys, which
/// costs more than a step and less than a jump.
struct Sealed<'s> {
    walk: Ahead<'s>,
    /// How often the next one lay far off.
    far: usize,
}

impl Sealed<'_> {
    fn document(
        &mut self,
        snapshot: &dyn Snapshot,
        keyspace: KeyspaceId,
        id: [u8; 12],
    ) -> Result<Option<Bytes>> {
        if self.far < FAR_MAX {
            if self.walk.scan.is_none() || self.walk.walk_to(id)? {
                return Ok(self.walk.take(id)?.map(|(_, stored)| stored));
            }
            self.far += 1;
        }
        Ok(snapshot.get(keyspace, &id)?)
    }
}

/// A keyspace with its next entry looked at, to be asked for buckets whose ids do not fall.
struct Ahead<'s> {
    snapshot: &'s dyn Snapshot,
    keyspace: KeyspaceId,
    /// Behind the last bucket that will be asked for.
    end: Vec<u8>,
    scan: Option<Scan>,
    next: Option<([u8; 12], Bytes, Bytes)>,
}

impl<'s> Ahead<'s> {
    fn new(snapshot: &'s dyn Snapshot, keyspace: KeyspaceId, last: [u8; 12]) -> Self {
        Self {
            snapshot,
            keyspace,
            end: behind(last),
            scan: None,
            next: None,
        }
    }

    /// The next entry of a bucket; none if there is no other.
    fn take(&mut self, id: [u8; 12]) -> Result<Option<(Bytes, Bytes)>> {
        self.seek(id)?;
        let Some((_, key, value)) = self.next.take_if(|(next, ..)| *next == id) else {
            return Ok(None);
        };
        self.pull()?;
        Ok(Some((key, value)))
    }

    /// Goes on to the first entry of the bucket, or of a later one.
    fn seek(&mut self, id: [u8; 12]) -> Result<()> {
        match self.walk_to(id)? {
            true => Ok(()),
            false => self.jump(id),
        }
    }

    /// The same if it is near.
    fn walk_to(&mut self, id: [u8; 12]) -> Result<bool> {
        if self.scan.is_none() {
            return Ok(false);
        }
        let mut passed = 0;
        while let Some((next, ..)) = &self.next
            && *next < id
        {
            passed += 1;
            if passed > ENTRIES_PASSED_MAX {
                return Ok(false);
            }
            self.pull()?;
        }
        Ok(true)
    }

    fn jump(&mut self, id: [u8; 12]) -> Result<()> {
        let (snapshot, end) = (self.snapshot, Some(&self.end[..]));
        self.scan = Some(snapshot.scan(self.keyspace, &id, end, Direction::Forward)?);
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
        };
        for step in [1, 2, 11, 35, 120] {
            check((0..200).step_by(step).map(id).collect());
            check((0..200).rev().step_by(step).map(id).collect());
        }
        check(vec![id(21)]);
        check(Vec::new());
    }
}

//! Lists of the buckets of each collection, from one scan to the next.
//!
//! ```text
//! ids       ────[ covered: every sealed document in this range is listed, at one version of their keyspace ]────►
//!               b1   b2   b3        b4   b5   b6             the opened buckets, while the bucket cache holds them
//!           ──────[ known: every bucket with an open document or a tail is listed, at one version of those two ]──►
//!                                        u1   u2             the ids of these buckets
//! ```
//!
//! A scan within the covered range takes opened buckets from the list. Within the known range it reads nothing from
//! storage if the bucket cache has the unsealed buckets at its versions. Versions come from the snapshot that the scan would
//! read ([`Snapshot::version`]): two snapshots with the same version show the same keys, so a write shows as another version and
//! writers need not invalidate the list. Sealed documents change when a bucket is sealed or modified. Tails change with every
//! insert, and a scan then reads them, and open documents, beside the list. A listed sealed bucket may have a tail, too, if it was
//! reopened: then it is in both lists.
//!
//! Each collection has one covered range, the one that was read last; a read of an adjacent range extends it. The same is true of
//! the known range. A reader of single buckets uses that alone: what it does not list is sealed and has no tail. The list
//! holds weak references: the bucket cache decides what stays in memory ([`super::bucket_cache`]).

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use nilometer_storage::{Direction, KeyspaceId, Snapshot};

use super::opened_bucket::StoredBucket;
use crate::budget::Budgeted;
use crate::timeseries::format::key_range::{KeyRange, end_of};
use crate::timeseries::format::keyspaces::BucketKeyspaces;

/// Memory of a listed bucket: its entry, and the allocation that a weak reference keeps after the eviction.
const LISTED_BYTES: usize =
    size_of::<ListedBucket>() + size_of::<StoredBucket>() + 2 * size_of::<usize>();

/// Memory of the id of an unsealed bucket.
const UNSEALED_BYTES: usize = size_of::<[u8; 12]>();

/// Default limit of all lists together, in bytes.
pub(crate) const SEALED_LIST_BYTES_MAX: usize = (1 << 17) * LISTED_BYTES;

/// The versions of a collection's keyspaces in one snapshot. Snapshots with equal versions show the same buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyspaceVersions {
    /// The keyspace of sealed documents, which identifies the collection.
    of: KeyspaceId,
    sealed: u64,
    open: u64,
    tail: u64,
}

impl KeyspaceVersions {
    /// Returns the versions in a snapshot; `None` while a write is in flight.
    pub(crate) fn of(snapshot: &dyn Snapshot, keyspaces: BucketKeyspaces) -> Option<Self> {
        Some(Self {
            of: keyspaces.sealed,
            sealed: snapshot.version(keyspaces.sealed)?,
            open: snapshot.version(keyspaces.open)?,
            tail: snapshot.version(keyspaces.tail)?,
        })
    }
}

/// The id of a bucket, and the opened bucket while the cache holds it.
pub(crate) type ListedBucket = ([u8; 12], Weak<StoredBucket>);

/// The lists of one collection.
#[derive(Default)]
struct CollectionLists {
    sealed: Option<SealedBucketList>,
    unsealed: Option<UnsealedBuckets>,
}

/// The sealed buckets of a range.
struct SealedBucketList {
    /// The version of the sealed documents.
    sealed: u64,
    covered: KeyRange,
    /// Ascending. Evicted ones are read from storage.
    buckets: Vec<ListedBucket>,
}

/// The buckets of a range that have an open document or a tail.
struct UnsealedBuckets {
    /// The versions of the open documents and of the tails.
    versions: (u64, u64),
    range: KeyRange,
    /// Ascending.
    ids: Vec<[u8; 12]>,
}

/// Sealed buckets that a scan takes from the list.
pub(crate) struct ListedRange {
    /// In the order of the scan, each as its sealed document alone: a tail that it has got since is in none.
    pub(crate) buckets: Vec<Arc<StoredBucket>>,
    /// The range in which these are all sealed buckets.
    pub(crate) range: KeyRange,
    /// The range is all that the scan requested.
    pub(crate) all: bool,
    /// The buckets of the range with an open document or a tail, in the order of the scan; `None` if that is not known.
    pub(crate) unsealed: Option<Vec<[u8; 12]>>,
}

impl ListedRange {
    /// Adds the first unsealed buckets, at most `buckets_max`. The range ends at the last one if others follow.
    fn add_unsealed(&mut self, known: &UnsealedBuckets, direction: Direction, buckets_max: usize) {
        let within = known.within(&self.range);
        let cut = within.len().saturating_sub(buckets_max);
        let ids: Vec<[u8; 12]> = match direction {
            Direction::Forward => within.iter().take(buckets_max).copied().collect(),
            Direction::Backward => within.iter().rev().take(buckets_max).copied().collect(),
        };
        if let Some(last) = ids.last().filter(|_| cut > 0) {
            self.all = false;
            match direction {
                Direction::Forward => self.range.end = Some(end_of(*last)),
                Direction::Backward => self.range.start = last.to_vec(),
            }
            let range = &self.range;
            let is_within = |id: [u8; 12]| range.start[..] <= id[..] && range.ends_after(&id);
            self.buckets.retain(|bucket| is_within(bucket.id().0));
        }
        self.unsealed = Some(ids);
    }
}

/// The lists of one database.
pub(crate) struct SealedBucketLists(Budgeted<HashMap<KeyspaceId, CollectionLists>>);

impl Default for SealedBucketLists {
    fn default() -> Self {
        Self(Budgeted::new(SEALED_LIST_BYTES_MAX))
    }
}

/// Returns the memory of all lists, in bytes.
fn listed_bytes(lists: &HashMap<KeyspaceId, CollectionLists>) -> usize {
    let listed = lists.values().map(|lists| {
        let sealed = lists.sealed.as_ref();
        let sealed = sealed.map_or(0, |list| list.buckets.capacity());
        let unsealed = lists.unsealed.as_ref();
        let unsealed = unsealed.map_or(0, |known| known.ids.capacity());
        sealed * LISTED_BYTES + unsealed * UNSEALED_BYTES
    });
    listed.sum()
}

impl SealedBucketLists {
    /// Changes the limit. It takes effect with the next recorded range.
    pub(crate) fn set_bytes_max(&self, bytes: usize) {
        self.0.set_bytes_max(bytes);
    }

    /// Returns the memory in use, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        listed_bytes(&self.0.lock())
    }

    /// Returns the first buckets of a range, at most `buckets_max`. `None` if the scan has to read storage.
    pub(crate) fn first_of(
        &self,
        versions: KeyspaceVersions,
        range: &KeyRange,
        direction: Direction,
        buckets_max: usize,
    ) -> Option<ListedRange> {
        let lists = self.0.lock();
        let CollectionLists { sealed, unsealed } = lists.get(&versions.of)?;
        let list = sealed.as_ref()?;
        if list.sealed != versions.sealed {
            return None;
        }
        let mut listed = match direction {
            Direction::Forward => list.first(range, buckets_max),
            Direction::Backward => list.last(range, buckets_max),
        }?;
        let unsealed = unsealed.as_ref();
        if let Some(known) = unsealed.filter(|known| known.knows(versions, &listed.range)) {
            listed.add_unsealed(known, direction, buckets_max);
        }
        Some(listed)
    }

    /// Returns the buckets of a range that have an open document or a tail, ascending; `None` if they are not known.
    pub(crate) fn unsealed_within(
        &self,
        versions: KeyspaceVersions,
        range: &KeyRange,
    ) -> Option<Vec<[u8; 12]>> {
        let lists = self.0.lock();
        let unsealed = lists.get(&versions.of)?.unsealed.as_ref();
        let known = unsealed.filter(|known| known.knows(versions, range))?;
        Some(known.within(range).to_vec())
    }

    /// Records all sealed buckets of a range, ascending.
    pub(crate) fn record(
        &self,
        versions: KeyspaceVersions,
        range: KeyRange,
        found: Vec<ListedBucket>,
    ) {
        let mut lists = self.0.lock();
        match &mut lists.entry(versions.of).or_default().sealed {
            Some(list) if list.sealed == versions.sealed && list.covered.touches(&range) => {
                list.add(&range, found);
            }
            known => {
                *known = Some(SealedBucketList {
                    sealed: versions.sealed,
                    covered: range,
                    buckets: found,
                });
            }
        }
        self.make_room(&mut lists, versions.of);
    }

    /// Forgets lists if they take too much memory, that of `of` last.
    fn make_room(&self, lists: &mut HashMap<KeyspaceId, CollectionLists>, of: KeyspaceId) {
        let bytes_max = self.0.bytes_max();
        if listed_bytes(lists) > bytes_max {
            lists.retain(|other, _| *other == of);
        }
        if listed_bytes(lists) > bytes_max {
            lists.clear();
        }
    }

    /// Removes the list of a dropped collection, given the keyspace of its sealed documents.
    pub(crate) fn forget(&self, of: KeyspaceId) {
        self.0.lock().remove(&of);
    }

    /// Records all buckets of a range that have an open document or a tail, ascending.
    pub(crate) fn record_unsealed(
        &self,
        versions: KeyspaceVersions,
        range: KeyRange,
        ids: Vec<[u8; 12]>,
    ) {
        let mut lists = self.0.lock();
        let of = (versions.open, versions.tail);
        match &mut lists.entry(versions.of).or_default().unsealed {
            Some(known) if known.versions == of && known.range.touches(&range) => {
                known.add(&range, ids);
            }
            known => {
                *known = Some(UnsealedBuckets {
                    versions: of,
                    range,
                    ids,
                });
            }
        }
        self.make_room(&mut lists, versions.of);
    }
}

impl UnsealedBuckets {
    /// True if these are all of the range at these versions.
    fn knows(&self, versions: KeyspaceVersions, range: &KeyRange) -> bool {
        self.versions == (versions.open, versions.tail) && self.range.contains(range)
    }

    /// Returns those in a range.
    fn within(&self, range: &KeyRange) -> &[[u8; 12]] {
        let from = self.ids.partition_point(|id| id[..] < range.start[..]);
        let to = self.ids.partition_point(|id| range.ends_after(id));
        self.ids.get(from..to).unwrap_or_default()
    }

    fn add(&mut self, range: &KeyRange, found: Vec<[u8; 12]>) {
        let from = self.ids.partition_point(|id| id[..] < range.start[..]);
        let to = self.ids.partition_point(|id| range.ends_after(id));
        self.ids.splice(from..to.max(from), found);
        self.range.extend(range);
    }
}

impl SealedBucketList {
    fn add(&mut self, range: &KeyRange, found: Vec<ListedBucket>) {
        let from = self
            .buckets
            .partition_point(|(id, _)| id[..] < range.start[..]);
        let to = self.buckets.partition_point(|(id, _)| range.ends_after(id));
        self.buckets.splice(from..to.max(from), found);
        self.covered.extend(range);
    }

    /// Returns the first buckets of a range that begins within the covered one.
    fn first(&self, range: &KeyRange, buckets_max: usize) -> Option<ListedRange> {
        let is_known = self.covered.start <= range.start && self.covered.ends_after(&range.start);
        if !is_known {
            return None;
        }
        let known = KeyRange {
            start: range.start.clone(),
            end: range.lower_end(&self.covered),
        };
        let from = self
            .buckets
            .partition_point(|(id, _)| id[..] < known.start[..]);
        let listed = self.buckets.get(from..).unwrap_or(&[]).iter();
        let within = listed.take_while(|(id, _)| known.ends_after(id));
        let (buckets, is_cut) = take(within, buckets_max);
        let all = !is_cut && known.end == range.end;
        let end = match all {
            true => range.end.clone(),
            // The scan continues after the last bucket, so there must be one.
            false => Some(end_of(buckets.last()?.id().0)),
        };
        Some(ListedRange {
            range: KeyRange { end, ..known },
            buckets,
            all,
            unsealed: None,
        })
    }

    /// Returns the last buckets, descending, of a range that ends within the covered one.
    fn last(&self, range: &KeyRange, buckets_max: usize) -> Option<ListedRange> {
        let is_known = match (&range.end, &self.covered.end) {
            (_, None) => true,
            (None, Some(_)) => false,
            (Some(end), Some(known)) => end <= known,
        };
        if !is_known || !range.ends_after(&self.covered.start) {
            return None;
        }
        let start = (&range.start).max(&self.covered.start).clone();
        let known = KeyRange {
            start,
            end: range.end.clone(),
        };
        let to = self.buckets.partition_point(|(id, _)| known.ends_after(id));
        let listed = self.buckets.get(..to).unwrap_or(&[]).iter().rev();
        let within = listed.take_while(|(id, _)| id[..] >= known.start[..]);
        let (buckets, is_cut) = take(within, buckets_max);
        let all = !is_cut && known.start == range.start;
        let start = match all {
            true => range.start.clone(),
            false => buckets.last()?.id().0.to_vec(),
        };
        Some(ListedRange {
            range: KeyRange { start, ..known },
            buckets,
            all,
            unsealed: None,
        })
    }
}

/// Returns the listed buckets up to the first evicted one, at most `buckets_max`, and whether others follow.
fn take<'l>(
    listed: impl Iterator<Item = &'l ListedBucket>,
    buckets_max: usize,
) -> (Vec<Arc<StoredBucket>>, bool) {
    let mut buckets = Vec::new();
    for (_, bucket) in listed {
        let has_room = buckets.len() < buckets_max;
        let Some(bucket) = has_room.then(|| bucket.upgrade()).flatten() else {
            return (buckets, true);
        };
        bucket.mark_read();
        buckets.push(bucket);
    }
    (buckets, false)
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{Binary, ObjectId, Value, doc};

    use super::*;

    fn bucket(id: u8) -> Arc<StoredBucket> {
        let mut column = nilometer_bson::column::ColumnBuilder::new();
        column.append_datetime(0);
        let column = Binary {
            subtype: 7,
            bytes: column.finish().into(),
        };
        let bounds = || doc! { "t": Value::DateTime(0) };
        let control = doc! { "version": 2, "min": bounds(), "max": bounds(), "count": 1 };
        let document =
            doc! { "_id": ObjectId([id; 12]), "control": control, "data": doc! { "t": column } };
        Arc::new(StoredBucket::from_document(document, "t").unwrap())
    }

    fn range(start: u8, end: Option<u8>) -> KeyRange {
        KeyRange {
            start: vec![start],
            end: end.map(|end| vec![end]),
        }
    }

    fn versions(sealed: u64, tail: u64) -> KeyspaceVersions {
        KeyspaceVersions {
            of: KeyspaceId(7),
            sealed,
            open: 1,
            tail,
        }
    }

    /// True if a range is known to have no open document and no tail.
    fn is_sealed(listed: &ListedRange) -> bool {
        listed.unsealed.as_ref().is_some_and(Vec::is_empty)
    }

    /// The ids of a listed range, whether it is all, and whether it is sealed.
    fn shown(listed: Option<ListedRange>) -> Option<(Vec<u8>, bool, bool)> {
        listed.map(|listed| {
            let ids = listed
                .buckets
                .iter()
                .map(|bucket| bucket.id().0[0])
                .collect();
            (ids, listed.all, is_sealed(&listed))
        })
    }

    #[test]
    fn a_scan_gets_the_buckets_that_were_recorded() {
        let lists = SealedBucketLists::default();
        let held: Vec<_> = (0..100).map(bucket).collect();
        let listed = |ids: std::ops::Range<usize>| -> Vec<ListedBucket> {
            ids.map(|at| (held[at].id().0, Arc::downgrade(&held[at])))
                .collect()
        };
        let first = |from, to, buckets_max| {
            shown(lists.first_of(
                versions(1, 1),
                &range(from, to),
                Direction::Forward,
                buckets_max,
            ))
        };
        let last = |from, to, buckets_max| {
            shown(lists.first_of(
                versions(1, 1),
                &range(from, to),
                Direction::Backward,
                buckets_max,
            ))
        };
        lists.record(versions(1, 1), range(20, Some(30)), listed(20..30));
        lists.record(versions(1, 1), range(30, Some(40)), listed(30..40));
        lists.record(versions(1, 1), range(10, Some(25)), listed(10..25));
        assert_eq!(
            first(12, Some(15), 9),
            Some((vec![12, 13, 14], true, false))
        );
        assert_eq!(first(12, Some(15), 2), Some((vec![12, 13], false, false)));
        assert_eq!(first(38, Some(50), 9), Some((vec![38, 39], false, false)));
        assert_eq!(first(38, None, 9), Some((vec![38, 39], false, false)));
        assert_eq!(first(9, Some(15), 9), None);
        assert_eq!(first(40, Some(45), 9), None);
        assert_eq!(last(12, Some(15), 2), Some((vec![14, 13], false, false)));
        assert_eq!(last(5, Some(12), 9), Some((vec![11, 10], false, false)));
        assert_eq!(last(10, Some(12), 9), Some((vec![11, 10], true, false)));
        assert_eq!(last(5, Some(41), 9), None);
        assert_eq!(last(5, None, 9), None);
        lists.record(versions(1, 1), range(40, None), listed(40..100));
        assert_eq!(last(98, None, 9), Some((vec![99, 98], true, false)));
        assert_eq!(first(98, None, 9), Some((vec![98, 99], true, false)));
        // Another version, and a range that does not touch the first.
        assert!(
            lists
                .first_of(versions(2, 1), &range(12, None), Direction::Forward, 9)
                .is_none()
        );
        lists.record(versions(2, 1), range(50, Some(60)), listed(50..60));
        assert_eq!(first(12, Some(15), 9), None);
        lists.record(versions(2, 1), range(70, Some(75)), listed(70..75));
        let known =
            |start| lists.first_of(versions(2, 1), &range(start, None), Direction::Backward, 9);
        assert!(known(50).is_none());
        lists.record(versions(2, 1), range(75, None), listed(75..100));
        assert!(known(98).is_some());
        lists.forget(KeyspaceId(7));
        assert!(known(98).is_none());
    }

    #[test]
    fn a_range_is_sealed_at_one_version_only() {
        let lists = SealedBucketLists::default();
        let held: Vec<_> = (0..10).map(bucket).collect();
        let listed = held.iter().map(|b| (b.id().0, Arc::downgrade(b))).collect();
        lists.record(versions(1, 1), range(0, None), listed);
        lists.record_unsealed(versions(1, 1), range(2, Some(5)), Vec::new());
        lists.record_unsealed(versions(1, 1), range(5, Some(7)), Vec::new());
        let sealed = |versions, from, to| {
            let listed = lists.first_of(versions, &range(from, Some(to)), Direction::Forward, 99);
            is_sealed(&listed.unwrap())
        };
        assert!(sealed(versions(1, 1), 2, 7) && sealed(versions(1, 1), 3, 4));
        assert!(!sealed(versions(1, 1), 1, 7) && !sealed(versions(1, 1), 2, 8));
        assert!(!sealed(versions(1, 2), 3, 4));
        lists.record_unsealed(versions(1, 2), range(3, Some(4)), Vec::new());
        assert!(sealed(versions(1, 2), 3, 4) && !sealed(versions(1, 1), 3, 4));
    }

    #[test]
    fn unsealed_buckets_are_listed_in_the_order_of_the_scan() {
        let lists = SealedBucketLists::default();
        let held: Vec<_> = (0..20).step_by(2).map(bucket).collect();
        let listed = held.iter().map(|b| (b.id().0, Arc::downgrade(b))).collect();
        lists.record(versions(1, 1), range(0, None), listed);
        let ids = |ids: &[u8]| ids.iter().map(|id| [*id; 12]).collect::<Vec<_>>();
        lists.record_unsealed(versions(1, 1), range(8, None), ids(&[9, 11, 30, 31, 32]));
        // Neighbours, of which one was read again.
        lists.record_unsealed(versions(1, 1), range(0, Some(10)), ids(&[3, 5, 9]));
        let read = |from, to, direction, buckets_max| {
            let listed = lists.first_of(versions(1, 1), &range(from, to), direction, buckets_max);
            let listed = listed.unwrap();
            let sealed: Vec<u8> = listed.buckets.iter().map(|b| b.id().0[0]).collect();
            let unsealed = listed.unsealed.unwrap();
            let unsealed: Vec<u8> = unsealed.iter().map(|id| id[0]).collect();
            (sealed, unsealed, listed.all)
        };
        let (forward, backward) = (Direction::Forward, Direction::Backward);
        assert_eq!(
            read(4, Some(10), forward, 9),
            (vec![4, 6, 8], vec![5, 9], true)
        );
        assert_eq!(
            read(4, Some(10), backward, 9),
            (vec![8, 6, 4], vec![9, 5], true)
        );
        // What is behind the last of too many is left for the next chunk.
        assert_eq!(read(2, None, forward, 99).1, vec![3, 5, 9, 11, 30, 31, 32]);
        assert_eq!(
            read(2, Some(12), forward, 3),
            (vec![2, 4, 6], vec![3, 5], false)
        );
        assert_eq!(
            read(9, None, forward, 2),
            (vec![10, 12], vec![9, 11], false)
        );
        assert_eq!(read(19, None, forward, 2), (vec![], vec![30, 31], false));
        assert_eq!(
            read(3, Some(12), backward, 2),
            (vec![10, 8], vec![11, 9], false)
        );
        assert_eq!(read(17, None, backward, 2), (vec![], vec![32, 31], false));
        let newer = lists.first_of(versions(1, 2), &range(4, None), forward, 9);
        assert!(newer.unwrap().unsealed.is_none());
    }

    #[test]
    fn unsealed_buckets_are_known_without_sealed_ones() {
        let lists = SealedBucketLists::default();
        let within = |tail, from, to| {
            let found = lists.unsealed_within(versions(1, tail), &range(from, to));
            found.map(|ids| ids.iter().map(|id| id[0]).collect::<Vec<_>>())
        };
        assert_eq!(within(1, 3, None), None);
        let ids = vec![[3; 12], [5; 12], [7; 12]];
        lists.record_unsealed(versions(1, 1), range(0, None), ids);
        assert_eq!(within(1, 4, None), Some(vec![5, 7]));
        assert_eq!(within(1, 4, Some(7)), Some(vec![5]));
        assert_eq!(within(2, 4, Some(7)), None);
        let first = lists.first_of(versions(1, 1), &range(0, None), Direction::Forward, 9);
        assert!(first.is_none());
        lists.record_unsealed(versions(1, 2), range(4, Some(6)), vec![[5; 12]]);
        assert_eq!(within(2, 4, Some(6)), Some(vec![5]));
        assert_eq!(within(2, 4, Some(7)), None);
        lists.forget(KeyspaceId(7));
        assert_eq!(within(2, 4, Some(6)), None);
    }

    #[test]
    fn lists_over_the_limit_are_evicted() {
        let lists = SealedBucketLists::default();
        let held: Vec<_> = (0..10).map(bucket).collect();
        let note = |of: u64| {
            let listed = held.iter().map(|b| (b.id().0, Arc::downgrade(b))).collect();
            let versions = KeyspaceVersions {
                of: KeyspaceId(of),
                ..versions(1, 1)
            };
            lists.record(versions, range(0, None), listed);
        };
        lists.set_bytes_max(15 * LISTED_BYTES);
        note(1);
        let one = lists.memory_bytes();
        assert!(
            (10 * LISTED_BYTES..=15 * LISTED_BYTES).contains(&one),
            "{one}"
        );
        note(2);
        assert_eq!(lists.memory_bytes(), one, "the other one is gone");
        lists.set_bytes_max(5 * LISTED_BYTES);
        note(3);
        assert_eq!(lists.memory_bytes(), 0);
    }

    #[test]
    fn evicted_buckets_are_read_again() {
        let lists = SealedBucketLists::default();
        let mut held: Vec<_> = (0..10).map(bucket).collect();
        let listed = held.iter().map(|b| (b.id().0, Arc::downgrade(b))).collect();
        lists.record(versions(1, 1), range(0, None), listed);
        held.remove(4);
        let first = |from| {
            shown(lists.first_of(versions(1, 1), &range(from, None), Direction::Forward, 99))
        };
        assert_eq!(first(2), Some((vec![2, 3], false, false)));
        assert_eq!(first(4), None);
        assert_eq!(first(5), Some((vec![5, 6, 7, 8, 9], true, false)));
    }
}

//! Bucket documents and the entries of their indexes in one snapshot, for reads of `system.buckets.<name>` by an index as if
//! it were an ordinary collection.
//!
//! Such a read relies on exact entries, so a bucket with a tail appears under the keys of the document that folding would
//! produce: in a dynamic index they replace the stored ones.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashSet};
use std::iter::Peekable;
use std::sync::Arc;

use nilometer_bson::Document;
use nilometer_storage::{Direction, Engine, Scan, Snapshot};

use super::maintenance::IndexMaintainer;
use crate::catalog::{Collection, StoredIndex};
use crate::error::{Error, Result};
use crate::index::buckets::BucketIndex;
use crate::index::entry;
use crate::timeseries::format::bucket_document::Layout;
use crate::timeseries::format::keyspaces::BucketKeyspaces;
use crate::timeseries::scan::BucketRange;
use crate::timeseries::scan::bucket_parts;
use crate::timeseries::scan::index_scan::{buckets_with_tail, split};

/// The buckets of a collection in one snapshot.
pub struct BucketView {
    collection: Arc<Collection>,
    keyspaces: BucketKeyspaces,
    time_field: String,
    snapshot: Box<dyn Snapshot>,
}

/// A stored entry: key string and id, and the type bits.
type Pair = (Vec<u8>, Vec<u8>);

impl BucketView {
    /// Takes a snapshot of the buckets of a collection.
    pub(super) fn open(engine: &dyn Engine, collection: &Arc<Collection>) -> Result<Self> {
        let (Some(keyspaces), Some(options)) =
            (BucketKeyspaces::of(collection), &collection.timeseries)
        else {
            return Err(Error::bad_value("not a bucket collection"));
        };
        Ok(Self {
            collection: collection.clone(),
            keyspaces,
            time_field: options.time_field.clone(),
            snapshot: engine.snapshot()?,
        })
    }

    /// Returns a bucket's document with its tail folded in.
    pub fn document(&self, id: [u8; 12]) -> Result<Option<Document>> {
        let parts = bucket_parts::read_parts(&*self.snapshot, self.keyspaces, id, None)?;
        match &self.collection.timeseries {
            Some(options) => parts.document(id, &Layout::of(&self.collection, options)?),
            None => Ok(None),
        }
    }

    /// Returns the entries between `start` (inclusive) and `end` (exclusive).
    pub fn entries(
        &self,
        index: &Arc<StoredIndex>,
        start: &[u8],
        end: Option<&[u8]>,
        direction: Direction,
    ) -> Result<BucketEntries> {
        let scan = self.snapshot.scan(index.keyspace, start, end, direction)?;
        let mut folded = BTreeMap::new();
        let mut with_tail = HashSet::new();
        if !BucketIndex::of(index, &self.time_field)?.is_static() {
            let range = BucketRange::default();
            buckets_with_tail(&*self.snapshot, self.keyspaces, range, |id| {
                with_tail.insert(id);
            })?;
            self.fold_in(index, &with_tail, &mut folded)?;
            folded.retain(|key, _| &**key >= start && end.is_none_or(|end| key.as_slice() < end));
        }
        let folded: Vec<Pair> = match direction {
            Direction::Forward => folded.into_iter().collect(),
            Direction::Backward => folded.into_iter().rev().collect(),
        };
        Ok(BucketEntries {
            stored: scan.peekable(),
            folded: folded.into_iter().peekable(),
            with_tail,
            direction,
        })
    }

    /// Returns the entries that buckets with a tail would have after folding.
    fn fold_in(
        &self,
        index: &Arc<StoredIndex>,
        ids: &HashSet<[u8; 12]>,
        into: &mut BTreeMap<Vec<u8>, Vec<u8>>,
    ) -> Result<()> {
        let indexes = IndexMaintainer::only(&self.collection, std::slice::from_ref(index))?;
        for id in ids {
            let Some(document) = self.document(*id)? else {
                continue;
            };
            let document = document.as_ref();
            let Some((meta, start_ms)) =
                bucket_parts::opened_as(Some(document), &[], &self.time_field)
            else {
                continue;
            };
            for (_, keys) in indexes.expected(Some(document), meta.as_ref(), start_ms)? {
                for key in keys.keys {
                    into.insert(entry::key(&key, id), key.type_bits);
                }
            }
        }
        Ok(())
    }
}

/// The entries of an index in order.
pub struct BucketEntries {
    stored: Peekable<Scan>,
    folded: Peekable<std::vec::IntoIter<Pair>>,
    /// Buckets whose stored entries are replaced.
    with_tail: HashSet<[u8; 12]>,
    direction: Direction,
}

impl Iterator for BucketEntries {
    /// Key string, type bits, bucket.
    type Item = Result<(Vec<u8>, Vec<u8>, [u8; 12])>;

    fn next(&mut self) -> Option<Self::Item> {
        let parted = |entry: &[u8], bits: Vec<u8>| {
            let (key, id) = split(entry)?;
            Ok((key.to_vec(), bits, id))
        };
        loop {
            let stored = match self.stored.peek() {
                Some(Ok((entry, _))) => Some(&**entry),
                // Reported when the entry is read.
                Some(Err(_)) => Some(&[][..]),
                None => None,
            };
            let folded = self.folded.peek().map(|(entry, _)| entry.as_slice());
            let take_stored = match (stored, folded) {
                (None, None) => return None,
                (Some(_), None) | (Some([]), _) => true,
                (None, Some(_)) => false,
                (Some(a), Some(b)) => {
                    let order = match self.direction {
                        Direction::Forward => a.cmp(b),
                        Direction::Backward => b.cmp(a),
                    };
                    order == Ordering::Less
                }
            };
            if !take_stored {
                // The same entry may be stored as well; the loop skips it as a replaced one.
                let (entry, bits) = self.folded.next()?;
                return Some(parted(&entry, bits));
            }
            let (entry, bits) = match self.stored.next()? {
                Ok(found) => found,
                Err(error) => return Some(Err(error.into())),
            };
            let found = parted(&entry, bits.to_vec());
            match &found {
                Ok((_, _, id)) if self.with_tail.contains(id) => {}
                _ => return Some(found),
            }
        }
    }
}

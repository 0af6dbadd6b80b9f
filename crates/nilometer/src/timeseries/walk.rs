//! Buckets as they are stored, some at a time, in the order of their ids.
//!
//! A bucket may be a document among the open or the sealed ones, a tail, or a document and a tail.
//! [`next_buckets`] merges the three keyspaces under one snapshot. Sealed documents are read first, and
//! the other two only as far as those reach: the keyspaces of open documents and of tails hold many
//! entries that are deleted and not yet gone, and looking for the next that is not, only to stop before
//! it, would pass over all of them again for every chunk.

use std::collections::VecDeque;

use nilometer_storage::{Bytes, Direction, KeyspaceId, Scan, Snapshot};

use super::bucket_document::damaged;
use super::fold::BucketKeyspaces;
use super::tail;
use crate::error::Result;

/// A bucket as it is stored; nothing of it has been decoded.
pub(super) struct RawBucket {
    pub(super) id: [u8; 12],
    /// The stored form of the document, if one was written.
    pub(super) stored: Option<Bytes>,
    /// Keys and values of the tail, in the order of their sequence numbers.
    pub(super) tail: Vec<(Bytes, Bytes)>,
}

/// Which buckets a chunk takes.
#[derive(Clone, Copy)]
pub(super) struct ChunkBounds<'b> {
    /// Keys from here on.
    pub(super) start: &'b [u8],
    /// Keys below this.
    pub(super) end: Option<&'b [u8]>,
    pub(super) direction: Direction,
    /// Buckets at most.
    pub(super) buckets_max: usize,
    /// Bytes of documents after which it ends.
    pub(super) bytes_max: usize,
}

/// The bucket a key of one of its keyspaces belongs to.
pub(super) fn bucket_of(key: &[u8]) -> Result<[u8; 12]> {
    key.first_chunk().copied().ok_or_else(|| {
        damaged(
            nilometer_bson::ValueRef::Missing,
            "it is stored under a key that is too short",
        )
    })
}

/// Every key of a bucket, tail keys too, is below this.
pub(super) fn behind(id: [u8; 12]) -> Vec<u8> {
    [&id[..], &[0xFF; tail::KEY_BYTES - 11]].concat()
}

/// The next buckets within the bounds; and whether there are none behind them.
pub(super) fn next_buckets(
    snapshot: &dyn Snapshot,
    keyspaces: BucketKeyspaces,
    bounds: ChunkBounds<'_>,
) -> Result<(Vec<RawBucket>, bool)> {
    let backward = bounds.direction == Direction::Backward;
    let mut reach = Reach {
        start: bounds.start.to_vec(),
        end: bounds.end.map(<[u8]>::to_vec),
        all: true,
    };
    let mut sealed = reach.documents(snapshot, keyspaces.sealed, bounds)?;
    let mut open = reach.documents(snapshot, keyspaces.open, bounds)?;
    sealed.retain(|(id, _)| reach.has(*id));
    let tails = snapshot.scan(
        keyspaces.tail,
        &reach.start,
        reach.end.as_deref(),
        bounds.direction,
    )?;
    let mut tails = Cursor::new(tails)?;
    let mut found = Vec::new();
    while found.len() < bounds.buckets_max {
        let ids = [front(&sealed), front(&open), tails.id()];
        let Some(id) = first(ids, backward) else {
            return Ok((found, reach.all));
        };
        let of_bucket = |documents: &mut Documents| {
            let is_it = front(documents) == Some(id);
            is_it.then(|| documents.pop_front()).flatten()
        };
        let (sealed, open) = (of_bucket(&mut sealed), of_bucket(&mut open));
        let mut tail = Vec::new();
        while let Some(entry) = tails.take(id)? {
            tail.push(entry);
        }
        if backward {
            tail.reverse();
        }
        found.push(RawBucket {
            id,
            stored: open.or(sealed).map(|(_, stored)| stored),
            tail,
        });
    }
    Ok((found, false))
}

type Documents = VecDeque<([u8; 12], Bytes)>;

fn front(documents: &Documents) -> Option<[u8; 12]> {
    documents.front().map(|(id, _)| *id)
}

/// How far a chunk reaches: as far as its bounds, or to the last document it has room for.
struct Reach {
    start: Vec<u8>,
    end: Option<Vec<u8>>,
    /// It is as far as its bounds.
    all: bool,
}

impl Reach {
    fn has(&self, id: [u8; 12]) -> bool {
        let end = self.end.as_deref();
        self.start[..] <= id[..] && end.is_none_or(|end| id[..] < *end)
    }

    /// The documents within reach; if they are too many, it ends at the last there is room for.
    fn documents(
        &mut self,
        snapshot: &dyn Snapshot,
        keyspace: KeyspaceId,
        bounds: ChunkBounds<'_>,
    ) -> Result<Documents> {
        let (start, end) = (&self.start, self.end.as_deref());
        let mut cursor = Cursor::new(snapshot.scan(keyspace, start, end, bounds.direction)?)?;
        let mut found = Documents::new();
        let mut bytes = 0;
        while let Some(id) = cursor.id() {
            if found.len() == bounds.buckets_max || bytes > bounds.bytes_max {
                self.end_at(found.back().map_or(id, |(last, _)| *last), bounds.direction);
                break;
            }
            if let Some((_, stored)) = cursor.take(id)? {
                bytes += stored.len();
                found.push_back((id, stored));
            }
        }
        Ok(found)
    }

    fn end_at(&mut self, last: [u8; 12], direction: Direction) {
        self.all = false;
        match direction {
            Direction::Forward => self.end = Some(behind(last)),
            Direction::Backward => self.start = last.to_vec(),
        }
    }
}

/// The one that comes first.
fn first(ids: [Option<[u8; 12]>; 3], backward: bool) -> Option<[u8; 12]> {
    let ids = ids.into_iter().flatten();
    if backward { ids.max() } else { ids.min() }
}

/// Bucket id, key and value of an entry.
type KeyedEntry = ([u8; 12], Bytes, Bytes);

/// One keyspace of a walk, with its next entry looked at.
struct Cursor {
    scan: Scan,
    next: Option<KeyedEntry>,
}

impl Cursor {
    /// The bucket the next entry belongs to.
    fn id(&self) -> Option<[u8; 12]> {
        self.next.as_ref().map(|(id, ..)| *id)
    }

    fn new(mut scan: Scan) -> Result<Self> {
        let next = Self::pull(&mut scan)?;
        Ok(Self { scan, next })
    }

    fn pull(scan: &mut Scan) -> Result<Option<KeyedEntry>> {
        let Some(item) = scan.next() else {
            return Ok(None);
        };
        let (key, value) = item?;
        Ok(Some((bucket_of(&key)?, key, value)))
    }

    /// The next entry if it belongs to `id`.
    fn take(&mut self, id: [u8; 12]) -> Result<Option<(Bytes, Bytes)>> {
        match self.next.take_if(|(next, ..)| *next == id) {
            Some((_, key, value)) => {
                self.next = Self::pull(&mut self.scan)?;
                Ok(Some((key, value)))
            }
            None => Ok(None),
        }
    }
}

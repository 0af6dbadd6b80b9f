//! Buckets as they are stored, some at a time, in the order of their ids.
//!
//! A bucket may be a document among the open or the sealed ones, a tail, or a document and a tail.
//! [`next_buckets`] merges the three keyspaces under one snapshot. Sealed documents are read first, and
//! the other two only as far as those reach: the keyspaces of open documents and of tails hold many
//! entries that are deleted and not yet gone, and looking for the next that is not, only to stop before
//! it, would pass over all of them again for every chunk.

use std::collections::VecDeque;
use std::sync::Arc;

use nilometer_storage::{Bytes, Direction, KeyspaceId, Scan, Snapshot};

use crate::error::Result;
use crate::timeseries::cache::opened_bucket::StoredBucket;
use crate::timeseries::cache::sealed_bucket_list::Part;
use crate::timeseries::fold::BucketKeyspaces;
use crate::timeseries::format::bucket_document::damaged;
use crate::timeseries::format::tail;

/// A bucket as it is stored; nothing of it has been decoded.
pub(crate) struct RawBucket {
    pub(crate) id: [u8; 12],
    /// The document, if one was written.
    pub(crate) document: Option<Lying>,
    /// There is one among the sealed ones, though it need not be this.
    pub(crate) is_sealed: bool,
    /// Keys and values of the tail, in the order of their sequence numbers.
    pub(crate) tail: Vec<(Bytes, Bytes)>,
}

/// A document where it lies.
pub(crate) enum Lying {
    /// In its stored form.
    Sealed(Bytes),
    /// The same, among the open ones.
    Open(Bytes),
    /// Opened before, among the sealed ones.
    Opened(Arc<StoredBucket>),
}

impl Lying {
    /// Its stored form.
    pub(crate) fn stored(&self) -> &Bytes {
        match self {
            Self::Sealed(stored) | Self::Open(stored) => stored,
            Self::Opened(bucket) => bucket.stored(),
        }
    }
}

impl RawBucket {
    /// Its stored form, if a document was written.
    pub(crate) fn stored(&self) -> Option<&Bytes> {
        self.document.as_ref().map(Lying::stored)
    }

    /// It is all in a sealed document.
    pub(crate) fn is_sealed_alone(&self) -> bool {
        let is_sealed = matches!(self.document, Some(Lying::Sealed(_) | Lying::Opened(_)));
        is_sealed && self.tail.is_empty()
    }
}

/// A stretch of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// Keys from here on.
    pub(crate) start: Vec<u8>,
    /// Keys below this; none: to the last.
    pub(crate) end: Option<Vec<u8>>,
}

impl Span {
    /// True if the key is below the end.
    pub(crate) fn ends_behind(&self, key: &[u8]) -> bool {
        self.end.as_deref().is_none_or(|end| key < end)
    }

    /// True if all of the other lies within.
    pub(crate) fn holds(&self, other: &Self) -> bool {
        self.start <= other.start && self.last_end(other) == self.end
    }

    /// True if there is nothing between the two.
    pub(crate) fn touches(&self, other: &Self) -> bool {
        let reaches = |a: &Self, b: &Self| a.end.as_ref().is_none_or(|end| b.start <= *end);
        reaches(self, other) && reaches(other, self)
    }

    /// Takes in another that touches it.
    pub(crate) fn widen(&mut self, other: &Self) {
        self.end = self.last_end(other);
        if other.start < self.start {
            self.start.clone_from(&other.start);
        }
    }

    /// The end that comes first.
    pub(crate) fn first_end(&self, other: &Self) -> Option<Vec<u8>> {
        match (&self.end, &other.end) {
            (Some(a), Some(b)) => Some(a.min(b).clone()),
            (one, None) | (None, one) => one.clone(),
        }
    }

    /// The end that comes last.
    fn last_end(&self, other: &Self) -> Option<Vec<u8>> {
        match (&self.end, &other.end) {
            (Some(a), Some(b)) => Some(a.max(b).clone()),
            _ => None,
        }
    }
}

/// Which buckets a chunk takes.
#[derive(Clone, Copy)]
pub(crate) struct ChunkBounds<'b> {
    /// Keys from here on.
    pub(crate) start: &'b [u8],
    /// Keys below this.
    pub(crate) end: Option<&'b [u8]>,
    pub(crate) direction: Direction,
    /// Buckets at most.
    pub(crate) buckets_max: usize,
    /// Bytes of documents after which it ends.
    pub(crate) bytes_max: usize,
}

/// The bucket a key of one of its keyspaces belongs to.
pub(crate) fn bucket_of(key: &[u8]) -> Result<[u8; 12]> {
    key.first_chunk().copied().ok_or_else(|| {
        damaged(
            nilometer_bson::ValueRef::Missing,
            "it is stored under a key that is too short",
        )
    })
}

/// Every key of a bucket, tail keys too, is below this.
pub(crate) fn behind(id: [u8; 12]) -> Vec<u8> {
    [&id[..], &[0xFF; tail::KEY_BYTES - 11]].concat()
}

/// What a walk has found.
pub(crate) struct Walked {
    /// In order.
    pub(crate) found: Vec<RawBucket>,
    /// There are none behind them.
    pub(crate) all: bool,
    /// Where there is neither an open document nor a tail.
    pub(crate) quiet: Option<Span>,
}

/// The next buckets within the bounds. Sealed documents that are `known` are not read.
pub(crate) fn next_buckets(
    snapshot: &dyn Snapshot,
    keyspaces: BucketKeyspaces,
    bounds: ChunkBounds<'_>,
    known: Option<Part>,
) -> Result<Walked> {
    let backward = bounds.direction == Direction::Backward;
    let (mut reach, mut sealed) = match known {
        Some(part) => {
            let opened = part.buckets.into_iter();
            let listed = opened.map(|bucket| (bucket.id().0, Lying::Opened(bucket)));
            let reach = Reach {
                span: part.span,
                all: part.all,
            };
            (reach, listed.collect())
        }
        None => {
            let mut reach = Reach {
                span: bounds.span(),
                all: true,
            };
            let stored = reach.documents(snapshot, keyspaces.sealed, bounds, Lying::Sealed)?;
            (reach, stored)
        }
    };
    let mut open = reach.documents(snapshot, keyspaces.open, bounds, Lying::Open)?;
    sealed.retain(|(id, _)| reach.has(*id));
    let (start, end) = (&reach.span.start, reach.span.end.as_deref());
    let tails = snapshot.scan(keyspaces.tail, start, end, bounds.direction)?;
    let mut tails = Cursor::new(tails)?;
    let is_quiet = open.is_empty() && tails.id().is_none();
    let mut walked = Walked {
        found: Vec::new(),
        all: reach.all,
        quiet: is_quiet.then_some(reach.span),
    };
    while walked.found.len() < bounds.buckets_max {
        let ids = [front(&sealed), front(&open), tails.id()];
        let Some(id) = first(ids, backward) else {
            return Ok(walked);
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
        walked.found.push(RawBucket {
            id,
            is_sealed: sealed.is_some(),
            document: open.or(sealed).map(|(_, document)| document),
            tail,
        });
    }
    walked.all = false;
    Ok(walked)
}

type Documents = VecDeque<([u8; 12], Lying)>;

fn front(documents: &Documents) -> Option<[u8; 12]> {
    documents.front().map(|(id, _)| *id)
}

impl ChunkBounds<'_> {
    fn span(&self) -> Span {
        Span {
            start: self.start.to_vec(),
            end: self.end.map(<[u8]>::to_vec),
        }
    }
}

/// How far a chunk reaches: as far as its bounds, or to the last document it has room for.
struct Reach {
    span: Span,
    /// It is as far as its bounds.
    all: bool,
}

impl Reach {
    fn has(&self, id: [u8; 12]) -> bool {
        self.span.start[..] <= id[..] && self.span.ends_behind(&id)
    }

    /// The documents within reach; if they are too many, it ends at the last there is room for.
    fn documents(
        &mut self,
        snapshot: &dyn Snapshot,
        keyspace: KeyspaceId,
        bounds: ChunkBounds<'_>,
        lying: fn(Bytes) -> Lying,
    ) -> Result<Documents> {
        let (start, end) = (&self.span.start, self.span.end.as_deref());
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
                found.push_back((id, lying(stored)));
            }
        }
        Ok(found)
    }

    fn end_at(&mut self, last: [u8; 12], direction: Direction) {
        self.all = false;
        match direction {
            Direction::Forward => self.span.end = Some(behind(last)),
            Direction::Backward => self.span.start = last.to_vec(),
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

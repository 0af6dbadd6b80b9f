//! Reads buckets in their stored form, in chunks, in the order of their ids.
//!
//! A bucket is an open or a sealed document, a tail, or a document and a tail. [`next_buckets`] merges the three keyspaces
//! under one snapshot. It reads sealed documents first, and the other two keyspaces only as far as those extent: open
//! documents and tails leave many tombstones, and a search for the next live entry beyond the chunk would skip all of them
//! again for every chunk.

use std::collections::VecDeque;
use std::sync::Arc;

use nilometer_storage::{Bytes, Direction, KeyspaceId, Scan, Snapshot};

use crate::error::Result;
use crate::timeseries::cache::opened_bucket::StoredBucket;
use crate::timeseries::cache::sealed_bucket_list::ListedRange;
use crate::timeseries::format::key_range::{KeyRange, bucket_of, end_of};
use crate::timeseries::format::keyspaces::BucketKeyspaces;

/// A bucket in its stored form; nothing of it is decoded.
pub(crate) struct RawBucket {
    pub(crate) id: [u8; 12],
    /// The document; `None` if the bucket has only a tail.
    pub(crate) document: Option<StoredForm>,
    /// The bucket has a sealed document, though `document` may be an open one.
    pub(crate) is_sealed: bool,
    /// Keys and values of the tail, ascending by sequence number.
    pub(crate) tail: Vec<(Bytes, Bytes)>,
}

/// The document of a bucket, by where it was found.
pub(crate) enum StoredForm {
    /// Among the sealed documents.
    Sealed(Bytes),
    /// Among the open documents.
    Open(Bytes),
    /// Among the sealed documents, and in the cache.
    Opened(Arc<StoredBucket>),
}

impl StoredForm {
    /// Returns the stored bytes.
    pub(crate) fn stored(&self) -> &Bytes {
        match self {
            Self::Sealed(stored) | Self::Open(stored) => stored,
            Self::Opened(bucket) => bucket.stored(),
        }
    }
}

impl RawBucket {
    /// Returns the stored bytes of the document, if there is one.
    pub(crate) fn stored(&self) -> Option<&Bytes> {
        self.document.as_ref().map(StoredForm::stored)
    }

    /// True if a sealed document is all there is.
    pub(crate) fn is_sealed_alone(&self) -> bool {
        let is_sealed = matches!(
            self.document,
            Some(StoredForm::Sealed(_) | StoredForm::Opened(_))
        );
        is_sealed && self.tail.is_empty()
    }
}

/// The bounds of a chunk.
#[derive(Clone, Copy)]
pub(crate) struct ChunkBounds<'b> {
    /// The first key.
    pub(crate) start: &'b [u8],
    /// The end of the keys, exclusive.
    pub(crate) end: Option<&'b [u8]>,
    pub(crate) direction: Direction,
    /// The largest number of buckets.
    pub(crate) buckets_max: usize,
    /// Bytes of documents after which the chunk ends.
    pub(crate) bytes_max: usize,
}

/// One chunk of buckets.
pub(crate) struct BucketChunk {
    /// In the order of the scan.
    pub(crate) buckets: Vec<RawBucket>,
    /// No bucket follows within the bounds.
    pub(crate) all: bool,
    /// The range in which these are all buckets.
    pub(crate) range: KeyRange,
}

/// Returns the next buckets within the bounds. Sealed documents in `listed` are not read.
pub(crate) fn next_buckets(
    snapshot: &dyn Snapshot,
    keyspaces: BucketKeyspaces,
    bounds: ChunkBounds<'_>,
    listed: Option<ListedRange>,
) -> Result<BucketChunk> {
    let backward = bounds.direction == Direction::Backward;
    let (mut extent, mut sealed) = match listed {
        Some(listed) => {
            let opened = listed.buckets.into_iter();
            let opened = opened.map(|bucket| (bucket.id().0, StoredForm::Opened(bucket)));
            let extent = ChunkExtent {
                range: listed.range,
                all: listed.all,
            };
            (extent, opened.collect())
        }
        None => {
            let mut extent = ChunkExtent {
                range: bounds.range(),
                all: true,
            };
            let stored =
                extent.documents(snapshot, keyspaces.sealed, bounds, StoredForm::Sealed)?;
            (extent, stored)
        }
    };
    let mut open = extent.documents(snapshot, keyspaces.open, bounds, StoredForm::Open)?;
    sealed.retain(|(id, _)| extent.contains(*id));
    let (start, end) = (&extent.range.start, extent.range.end.as_deref());
    let tails = snapshot.scan(keyspaces.tail, start, end, bounds.direction)?;
    let mut tails = Cursor::new(tails)?;
    let mut buckets: Vec<RawBucket> = Vec::new();
    while let Some(id) = first([front(&sealed), front(&open), tails.id()], backward) {
        if let Some(last) = buckets
            .last()
            .filter(|_| buckets.len() >= bounds.buckets_max)
        {
            extent.end_at(last.id, bounds.direction);
            break;
        }
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
        buckets.push(RawBucket {
            id,
            is_sealed: sealed.is_some(),
            document: open.or(sealed).map(|(_, document)| document),
            tail,
        });
    }
    Ok(BucketChunk {
        buckets,
        all: extent.all,
        range: extent.range,
    })
}

/// Documents with the ids of their buckets, in the order of the scan.
type Documents = VecDeque<([u8; 12], StoredForm)>;

fn front(documents: &Documents) -> Option<[u8; 12]> {
    documents.front().map(|(id, _)| *id)
}

impl ChunkBounds<'_> {
    fn range(&self) -> KeyRange {
        KeyRange {
            start: self.start.to_vec(),
            end: self.end.map(<[u8]>::to_vec),
        }
    }
}

/// The range of a chunk: its bounds, or less if they hold too many documents.
struct ChunkExtent {
    range: KeyRange,
    /// The range is that of the bounds.
    all: bool,
}

impl ChunkExtent {
    fn contains(&self, id: [u8; 12]) -> bool {
        self.range.start[..] <= id[..] && self.range.ends_after(&id)
    }

    /// Returns the documents in the range. If there are too many, the range is shortened to end at the last one that fits.
    fn documents(
        &mut self,
        snapshot: &dyn Snapshot,
        keyspace: KeyspaceId,
        bounds: ChunkBounds<'_>,
        form: fn(Bytes) -> StoredForm,
    ) -> Result<Documents> {
        let (start, end) = (&self.range.start, self.range.end.as_deref());
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
                found.push_back((id, form(stored)));
            }
        }
        Ok(found)
    }

    fn end_at(&mut self, last: [u8; 12], direction: Direction) {
        self.all = false;
        match direction {
            Direction::Forward => self.range.end = Some(end_of(last)),
            Direction::Backward => self.range.start = last.to_vec(),
        }
    }
}

/// Returns the id that comes first in the order of the scan.
fn first(ids: [Option<[u8; 12]>; 3], backward: bool) -> Option<[u8; 12]> {
    let ids = ids.into_iter().flatten();
    if backward { ids.max() } else { ids.min() }
}

/// Bucket id, key and value of an entry.
type KeyedEntry = ([u8; 12], Bytes, Bytes);

/// An iterator over one keyspace with one entry of lookahead.
struct Cursor {
    scan: Scan,
    next: Option<KeyedEntry>,
}

impl Cursor {
    /// Returns the bucket of the next entry.
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

    /// Returns the next entry if it belongs to `id`.
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

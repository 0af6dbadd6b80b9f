//! Reading buckets in the order of their ids, wherever they lie.
//!
//! A bucket may be a document among the open or the sealed ones, a tail, or a document and a tail.
//! A scan merges the three keyspaces under one snapshot and hands out [`StoredBucket`]s; one with a
//! tail is folded in memory first. What was opened is kept for the next reader ([`bucket_cache`]).
//!
//! A snapshot lives for one chunk of a scan. The next chunk takes a new one and goes on behind the
//! last id: buckets keep their ids when they are folded or sealed, so none is skipped or repeated.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use nilometer_bson::block::ColumnBlock;
use nilometer_bson::column::{self, ColumnError};
use nilometer_bson::{DocRef, Document, ObjectId, ValueRef};
use nilometer_storage::{Bytes, Direction};

use super::Timeseries;
use super::ahead;
use super::bucket_cache;
use super::bucket_document::{BucketDocument, COLUMN_SUBTYPE, Layout, Version, damaged};
use super::fold::{self, BucketKeyspaces};
use super::index_scan::{Candidates, Stream};
use super::sealed::{self, ColumnPlace, Stored};
use super::tail;
use super::walk::{self, ChunkBounds, RawBucket, behind};
use crate::catalog::Collection;
use crate::error::{Error, Result};
use crate::eval::Collation;

/// Buckets looked at under one snapshot.
const CHUNK_BUCKETS_MAX: usize = 512;

/// Buckets looked at under the first one: a reader of the newest may be content with these.
const FIRST_BUCKETS: usize = 64;

/// Each chunk of a scan of all is so many times as long as the one before.
const CHUNK_GROWTH: usize = 4;

/// Buckets an index has found that are fetched under one snapshot at most.
const CHUNK_CANDIDATES_MAX: usize = 64;

/// Buckets fetched under the first one: a reader may want no more than the newest.
const FIRST_CANDIDATES: usize = 2;

/// A bucket as read: its header at hand, its columns decoded when asked for.
pub struct StoredBucket {
    id: [u8; 12],
    version: Version,
    count: usize,
    /// The document, with lengths in place of columns if `stored` holds those.
    document: Document,
    stored: Bytes,
    names: Arc<[Arc<str>]>,
    places: Vec<Option<ColumnPlace>>,
    header: HeaderPlaces,
    decoded: Vec<OnceLock<Arc<ColumnBlock>>>,
}

/// Where in a bucket document lies what every query asks for.
struct HeaderPlaces {
    min: Range<usize>,
    max: Range<usize>,
    /// The metadata, if it is a document.
    meta: Option<Range<usize>>,
    /// Start and end, which every query by time asks for, and which column they are of.
    times: Option<(usize, i64, i64)>,
}

impl HeaderPlaces {
    fn of(bucket: &BucketDocument<'_>, document: &Document) -> Self {
        let whole = document.as_bytes().as_ptr() as usize;
        let place = |part: DocRef<'_>| {
            let start = (part.as_bytes().as_ptr() as usize).saturating_sub(whole);
            start..start + part.as_bytes().len()
        };
        Self {
            min: place(bucket.min),
            max: place(bucket.max),
            meta: document.get("meta").as_document().map(place),
            times: None,
        }
    }

    /// The same with the bounds of the time.
    fn with_times(self, bucket: &BucketDocument<'_>, names: &[Arc<str>], time_field: &str) -> Self {
        let at = names.iter().position(|name| **name == *time_field);
        let times = match (at, bucket.min.get(time_field), bucket.max.get(time_field)) {
            (Some(at), ValueRef::DateTime(min), ValueRef::DateTime(max)) => Some((at, min, max)),
            _ => None,
        };
        Self { times, ..self }
    }
}

impl StoredBucket {
    /// Opens the stored form of a bucket; `like` lends its column names if they are the same.
    fn open(stored: Bytes, time_field: &str, like: Option<&StoredBucket>) -> Result<Self> {
        let (document, places) = match sealed::open(&stored)? {
            Stored::Whole(document) => (document, Vec::new()),
            Stored::Split { skeleton, columns } => (
                skeleton,
                columns.into_iter().map(|(_, place)| Some(place)).collect(),
            ),
        };
        Self::new(document, stored, places, time_field, like)
    }

    /// A bucket document that lies nowhere in this form.
    pub(crate) fn from_document(document: Document, time_field: &str) -> Result<Self> {
        Self::new(document, Bytes::default(), Vec::new(), time_field, None)
    }

    fn new(
        document: Document,
        stored: Bytes,
        mut places: Vec<Option<ColumnPlace>>,
        time_field: &str,
        like: Option<&StoredBucket>,
    ) -> Result<Self> {
        let parsed = BucketDocument::parse(document.as_ref(), time_field)?;
        let (id, version, count) = (parsed.id, parsed.version, parsed.count);
        let header = HeaderPlaces::of(&parsed, &document);
        let names = match like {
            Some(other)
                if parsed
                    .data
                    .iter()
                    .map(|e| e.name())
                    .eq(other.names.iter().map(|n| &**n)) =>
            {
                other.names.clone()
            }
            _ => parsed.data.iter().map(|e| Arc::from(e.name())).collect(),
        };
        let header = header.with_times(&parsed, &names, time_field);
        places.resize(names.len(), None);
        let decoded = (0..names.len()).map(|_| OnceLock::new()).collect();
        Ok(Self {
            id,
            version,
            count,
            document,
            stored,
            names,
            places,
            header,
            decoded,
        })
    }

    /// Its `_id`.
    pub fn id(&self) -> ObjectId {
        ObjectId(self.id)
    }

    /// Bytes it may take in memory with every column decoded.
    pub(super) fn memory_bytes(&self) -> usize {
        /// A decoded value, or its place in a dictionary.
        const VALUE_BYTES: usize = 8;
        let decoded = self.names.len() * self.count * VALUE_BYTES;
        self.document.as_bytes().len() + self.stored.len() + decoded
    }

    /// True if these are the very bytes it was opened from, which it holds on to: nothing else can lie there.
    pub(super) fn is_opened_from(&self, stored: &[u8]) -> bool {
        !stored.is_empty() && std::ptr::eq(&*self.stored, stored)
    }

    /// Number of measurements.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Format version: 1, 2 or 3.
    pub fn version(&self) -> i32 {
        self.version as i32
    }

    /// True when measurements are known to ascend in time.
    pub fn is_sorted(&self) -> bool {
        self.version == Version::Sorted
    }

    /// True when it takes no more measurements and is not changed through the collection.
    pub fn is_closed(&self) -> bool {
        let control = self.document.get("control").as_document();
        control.is_some_and(|control| matches!(control.get("closed"), ValueRef::Bool(true)))
    }

    /// The metadata, missing if there is none.
    pub fn meta(&self) -> ValueRef<'_> {
        match &self.header.meta {
            Some(place) => ValueRef::Document(self.part(place)),
            None => self.document.get("meta"),
        }
    }

    /// Start and end, if the field is the time.
    fn times_of(&self, field: &str) -> Option<(i64, i64)> {
        let (at, min, max) = self.header.times?;
        let name = self.names.get(at)?;
        (**name == *field).then_some((min, max))
    }

    /// `control.min.<field>`.
    pub fn min(&self, field: &str) -> ValueRef<'_> {
        match self.times_of(field) {
            Some((min, _)) => ValueRef::DateTime(min),
            None => self.part(&self.header.min).get(field),
        }
    }

    /// `control.max.<field>`.
    pub fn max(&self, field: &str) -> ValueRef<'_> {
        match self.times_of(field) {
            Some((_, max)) => ValueRef::DateTime(max),
            None => self.part(&self.header.max).get(field),
        }
    }

    /// `control.min` or `control.max`.
    pub(super) fn control_bounds(&self, side: &str) -> Option<DocRef<'_>> {
        let control = self.document.get("control").as_document();
        control.and_then(|control| control.get(side).as_document())
    }

    fn part(&self, place: &Range<usize>) -> DocRef<'_> {
        let bytes = self.document.as_bytes().get(place.clone());
        bytes.and_then(DocRef::new).unwrap_or(DocRef::EMPTY)
    }

    /// Its columns, in the order of `data`.
    pub fn columns(&self) -> &[Arc<str>] {
        &self.names
    }

    /// Bytes of a column as it is stored; `None` if it is not stored by itself.
    pub fn stored_column_bytes(&self, name: &str) -> Option<usize> {
        let at = self.names.iter().position(|n| **n == *name)?;
        self.places.get(at)?.as_ref().map(ColumnPlace::stored_bytes)
    }

    /// The bucket document.
    pub fn to_document(&self) -> Result<Document> {
        if self.places.iter().all(Option::is_none) {
            return Ok(self.document.clone());
        }
        sealed::load(&self.stored)
    }

    /// One column, decoded now if it was not before; `None` if there is no such field.
    pub fn column(&self, name: &str) -> Result<Option<Arc<ColumnBlock>>> {
        let Some(at) = self.names.iter().position(|n| **n == *name) else {
            return Ok(None);
        };
        let Some(slot) = self.decoded.get(at) else {
            return Ok(None);
        };
        if let Some(block) = slot.get() {
            return Ok(Some(block.clone()));
        }
        let block = Arc::new(self.decode(at, name)?);
        Ok(Some(slot.get_or_init(|| block).clone()))
    }

    fn decode(&self, at: usize, name: &str) -> Result<ColumnBlock> {
        let bad = |what: &str| damaged(ValueRef::ObjectId(self.id()), what);
        if let Some(Some(place)) = self.places.get(at) {
            return self.whole_column(place.decode(&self.stored, self.count));
        }
        let data = self
            .document
            .get("data")
            .as_document()
            .unwrap_or(DocRef::EMPTY);
        match (self.version, data.get(name)) {
            (Version::Plain, ValueRef::Document(entries)) => {
                let values = super::bucket_document::plain_values(entries, self.count)
                    .ok_or_else(|| bad("a plain column has entries beyond its measurements"))?;
                Ok(ColumnBlock::from_values(&values))
            }
            (
                _,
                ValueRef::Binary {
                    subtype: COLUMN_SUBTYPE,
                    bytes,
                },
            ) => self.whole_column(column::decode_block(bytes, self.count)),
            _ => Err(bad("a column has the wrong type for its version")),
        }
    }

    /// A decoded column as long as the bucket.
    fn whole_column(&self, decoded: Result<ColumnBlock, ColumnError>) -> Result<ColumnBlock> {
        let bad = |what: &str| damaged(ValueRef::ObjectId(self.id()), what);
        let block = decoded.map_err(|e| bad(&e.to_string()))?;
        if block.len() == self.count {
            return Ok(block);
        }
        // A shorter column is missing from there on.
        let mut values = block.to_values();
        values.resize(self.count, nilometer_bson::Value::Missing);
        Ok(ColumnBlock::from_values(&values))
    }
}

/// Which buckets to read.
#[derive(Clone, Copy, Debug, Default)]
pub struct BucketRange {
    /// Lowest id, inclusive.
    pub min: Option<[u8; 12]>,
    /// Highest id, inclusive.
    pub max: Option<[u8; 12]>,
    /// Descending ids.
    pub backward: bool,
}

impl BucketRange {
    /// True if the id lies between the bounds.
    pub fn contains(&self, id: [u8; 12]) -> bool {
        self.min.is_none_or(|min| min <= id) && self.max.is_none_or(|max| id <= max)
    }
}

/// A scan of a bucket collection.
pub struct BucketScan {
    timeseries: Arc<Timeseries>,
    collection: Arc<Collection>,
    keyspaces: BucketKeyspaces,
    range: BucketRange,
    candidates: Candidates,
    /// Buckets looked at, or candidates fetched, under the next snapshot.
    chunk: usize,
    /// The last id of the chunk before.
    after: Option<[u8; 12]>,
    ready: VecDeque<Result<Arc<StoredBucket>>>,
    done: bool,
    last: Option<Arc<StoredBucket>>,
}

impl Timeseries {
    /// Reads the buckets of a collection in the order of their ids.
    pub fn scan(
        self: &Arc<Self>,
        collection: &Arc<Collection>,
        range: BucketRange,
    ) -> Result<BucketScan> {
        let keyspaces = BucketKeyspaces::of(collection)
            .ok_or_else(|| Error::bad_value("not a bucket collection"))?;
        Ok(BucketScan {
            timeseries: self.clone(),
            collection: collection.clone(),
            keyspaces,
            range,
            candidates: Candidates::All,
            chunk: FIRST_BUCKETS,
            after: None,
            ready: VecDeque::new(),
            done: false,
            last: None,
        })
    }

    /// Reads those of the buckets called `ids`, ascending, that are there.
    pub fn scan_listed(
        self: &Arc<Self>,
        collection: &Arc<Collection>,
        mut ids: Vec<[u8; 12]>,
        range: BucketRange,
    ) -> Result<BucketScan> {
        if !range.backward {
            ids.reverse();
        }
        let mut scan = self.scan(collection, range)?;
        scan.candidates = Candidates::Listed(ids);
        scan.chunk = FIRST_CANDIDATES;
        Ok(scan)
    }

    /// Reads the newest, or the oldest, bucket of each series, which lie close together as a rule.
    pub fn scan_outermost(
        self: &Arc<Self>,
        collection: &Arc<Collection>,
        ids: Vec<[u8; 12]>,
        range: BucketRange,
    ) -> Result<BucketScan> {
        let mut scan = self.scan_listed(collection, ids, range)?;
        if let Candidates::Listed(ids) = scan.candidates {
            scan.candidates = Candidates::Outermost(ids);
            scan.chunk = CHUNK_CANDIDATES_MAX;
        }
        Ok(scan)
    }

    /// Reads the buckets an index names, as it names them.
    pub fn scan_streamed(
        self: &Arc<Self>,
        collection: &Arc<Collection>,
        stream: Stream,
        range: BucketRange,
    ) -> Result<BucketScan> {
        let mut scan = self.scan(collection, range)?;
        scan.candidates = Candidates::Streamed(stream);
        scan.chunk = FIRST_CANDIDATES;
        Ok(scan)
    }

    /// About how many buckets there are: each has one entry in the series index, whose entries the
    /// engine estimates without reading them.
    pub fn bucket_count(&self, collection: &Collection) -> Result<u64> {
        let Some(keyspaces) = BucketKeyspaces::of(collection) else {
            return Ok(0);
        };
        Ok(self.engine.keys_estimate(keyspaces.series)?)
    }

    /// The ids of all buckets, if there are no more than so many: each has one entry in the series index.
    pub fn bucket_ids(
        &self,
        collection: &Collection,
        at_most: usize,
    ) -> Result<Option<Vec<[u8; 12]>>> {
        let Some(keyspaces) = BucketKeyspaces::of(collection) else {
            return Ok(Some(Vec::new()));
        };
        let snapshot = self.engine.snapshot()?;
        let mut ids = Vec::new();
        for item in snapshot.scan(keyspaces.series, &[], None, Direction::Forward)? {
            let (key, _) = item?;
            if ids.len() >= at_most {
                return Ok(None);
            }
            ids.extend(key.last_chunk().copied());
        }
        Ok(Some(ids))
    }

    /// How many buckets there are, counted: each has one entry in the series index.
    pub fn count_buckets(&self, collection: &Collection) -> Result<u64> {
        let Some(keyspaces) = BucketKeyspaces::of(collection) else {
            return Ok(0);
        };
        let snapshot = self.engine.snapshot()?;
        let mut count = 0;
        for item in snapshot.scan(keyspaces.series, &[], None, Direction::Forward)? {
            item?;
            count += 1;
        }
        Ok(count)
    }

    /// A bucket's document with its tail folded in, and the sequence number behind its tail.
    pub(super) fn load(
        &self,
        collection: &Collection,
        id: [u8; 12],
    ) -> Result<Option<(Document, u32)>> {
        let (Some(keyspaces), Some(options)) =
            (BucketKeyspaces::of(collection), &collection.timeseries)
        else {
            return Ok(None);
        };
        let parts = fold::read_parts(&*self.engine.snapshot()?, keyspaces, id, None)?;
        let next_sequence = parts.next_sequence()?;
        let document = parts.document(id, &Layout::of(collection, options)?)?;
        Ok(document.map(|document| (document, next_sequence)))
    }
}

impl BucketScan {
    /// Bounds of keys still to be read: `start` inclusive, `end` exclusive.
    fn bounds(&self) -> (Vec<u8>, Option<Vec<u8>>) {
        let mut start = self.range.min.map(|id| id.to_vec()).unwrap_or_default();
        let mut end = self.range.max.map(behind);
        match (self.after, self.range.backward) {
            (Some(last), false) => start = behind(last),
            (Some(last), true) => end = Some(last.to_vec()),
            (None, _) => {}
        }
        (start, end)
    }

    /// Reads the next of the buckets an index has found. Those that were removed since are left out.
    fn refill_from_index(&mut self) -> Result<()> {
        let snapshot = self.timeseries.engine.snapshot()?;
        let ids = match &mut self.candidates {
            Candidates::All => Vec::new(),
            Candidates::Listed(ids) | Candidates::Outermost(ids) => {
                let mut next = ids.split_off(ids.len().saturating_sub(self.chunk));
                next.reverse();
                next
            }
            Candidates::Streamed(stream) => stream.next(&*snapshot, self.chunk)?,
        };
        self.done = ids.len() < self.chunk;
        self.chunk = (self.chunk * 2).min(CHUNK_CANDIDATES_MAX);
        let found = match self.candidates {
            Candidates::Outermost(_) => ahead::neighbours(&*snapshot, self.keyspaces, &ids)?,
            _ => ahead::buckets_of(&*snapshot, self.keyspaces, &ids)?,
        };
        for RawBucket { id, stored, tail } in found {
            let bucket = self.assemble(id, stored, tail);
            if let Ok(bucket) = &bucket {
                self.last = Some(bucket.clone());
            }
            self.ready.push_back(bucket);
        }
        Ok(())
    }

    fn refill(&mut self) -> Result<()> {
        if !matches!(self.candidates, Candidates::All) {
            return self.refill_from_index();
        }
        let (start, end) = self.bounds();
        if end.as_ref().is_some_and(|end| *end <= start) {
            self.done = true;
            return Ok(());
        }
        let direction = if self.range.backward {
            Direction::Backward
        } else {
            Direction::Forward
        };
        let snapshot = self.timeseries.engine.snapshot()?;
        let bounds = ChunkBounds {
            start: &start,
            end: end.as_deref(),
            direction,
            buckets_max: self.chunk,
            bytes_max: usize::MAX,
        };
        self.chunk = (self.chunk * CHUNK_GROWTH).min(CHUNK_BUCKETS_MAX);
        let (found, all) = walk::next_buckets(&*snapshot, self.keyspaces, bounds)?;
        self.done = all;
        for RawBucket { id, stored, tail } in found {
            self.after = Some(id);
            let bucket = self.assemble(id, stored, tail);
            if let Ok(bucket) = &bucket {
                self.last = Some(bucket.clone());
            }
            self.ready.push_back(bucket);
        }
        Ok(())
    }

    fn assemble(
        &self,
        id: [u8; 12],
        stored: Option<Bytes>,
        tail: Vec<(Bytes, Bytes)>,
    ) -> Result<Arc<StoredBucket>> {
        let options = self.collection.timeseries.as_ref();
        let time_field = options.map_or("", |options| &*options.time_field);
        if let Some(stored) = stored.as_deref().filter(|_| tail.is_empty())
            && let Some(known) = self.timeseries.bucket_cache.get_like(id, stored)
        {
            return Ok(known);
        }
        let state = bucket_cache::state(stored.as_deref(), &tail);
        if let Some(known) = self.timeseries.bucket_cache.get(id, state) {
            return Ok(known);
        }
        let bucket = match stored {
            Some(stored) if tail.is_empty() => {
                StoredBucket::open(stored, time_field, self.last.as_deref())?
            }
            stored => {
                let document = stored.map(|bytes| sealed::load(&bytes)).transpose()?;
                let document = document.as_ref().map(Document::as_ref);
                let mut entries = Vec::with_capacity(tail.len());
                for (key, value) in tail {
                    entries.push((key.to_vec(), tail::decode(&value)?));
                }
                let layout = Layout {
                    time_field,
                    collation: Collation::of_stored(self.collection.options.as_ref())?,
                };
                let image = fold::image(document, &entries, id, &layout)?;
                let image = image.ok_or_else(|| {
                    damaged(ValueRef::ObjectId(ObjectId(id)), "there is nothing of it")
                })?;
                StoredBucket::from_document(image.into_document(), time_field)?
            }
        };
        let bucket = Arc::new(bucket);
        self.timeseries.bucket_cache.put(id, state, bucket.clone());
        Ok(bucket)
    }
}

impl Iterator for BucketScan {
    type Item = Result<Arc<StoredBucket>>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.ready.is_empty() && !self.done {
            if let Err(error) = self.refill() {
                self.done = true;
                return Some(Err(error));
            }
        }
        self.ready.pop_front()
    }
}

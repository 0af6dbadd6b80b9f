//! Scans: buckets in the order of their ids, or as an index names them.
//!
//! ```text
//! ids within bounds ─► roster: listed, and quiet?  ─► opened buckets
//!                         └ else walk the store ─► bytes and tails ─► cache: this very state? ─► opened bucket
//! ids from an index ─► cache: seen at these versions? └ else by key ─┘       └ else open, fold ─┘
//! ```
//!
//! A snapshot lives for one chunk of a scan. The next chunk takes a new one and goes on behind the
//! last id: buckets keep their ids when they are folded or sealed, so none is skipped or repeated. What is
//! remembered answers for versions of the keyspaces ([`Versions`]) that the chunk's own snapshot shows.

pub(crate) mod distinct_metas;
pub(crate) mod index_scan;
pub(crate) mod latest_buckets;
pub(crate) mod point_reads;
pub(crate) mod storage_iterator;

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use nilometer_bson::{Document, ObjectId, ValueRef};
use nilometer_storage::{Direction, Snapshot};

use self::index_scan::{Candidates, Stream};
use self::storage_iterator::{ChunkBounds, Lying, RawBucket, Span, Walked, behind};
use super::Timeseries;
use super::cache::bucket_cache;
use super::cache::opened_bucket::StoredBucket;
use super::cache::sealed_bucket_list::{Listed, Versions};
use super::fold::{self, BucketKeyspaces};
use super::format::bucket_document::{Layout, damaged};
use super::format::sealed;
use super::format::tail;
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
            scan.chunk = CHUNK_BUCKETS_MAX;
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
}

impl BucketScan {
    /// Keys still to be read.
    fn span(&self) -> Span {
        let mut start = self.range.min.map(|id| id.to_vec()).unwrap_or_default();
        let mut end = self.range.max.map(behind);
        match (self.after, self.range.backward) {
            (Some(last), false) => start = behind(last),
            (Some(last), true) => end = Some(last.to_vec()),
            (None, _) => {}
        }
        Span { start, end }
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
        self.chunk = (self.chunk * 2).min(CHUNK_CANDIDATES_MAX.max(self.chunk));
        let versions = Versions::of(&*snapshot, self.keyspaces);
        let known = self.timeseries.bucket_cache.seen(versions, &ids);
        let unknown = ids.iter().zip(&known);
        let unknown = unknown.filter(|(_, bucket)| bucket.is_none());
        let unknown: Vec<[u8; 12]> = unknown.map(|(id, _)| *id).collect();
        let mut read = self.fetch(&*snapshot, &unknown)?.into_iter().peekable();
        for (id, known) in ids.iter().zip(known) {
            let bucket = match known {
                Some(bucket) => Ok(bucket),
                None => match read.next_if(|raw| raw.id == *id) {
                    Some(raw) => self.assemble(raw, versions),
                    None => continue,
                },
            };
            self.ready.push_back(bucket);
        }
        Ok(())
    }

    /// Buckets by their ids.
    fn fetch(&self, snapshot: &dyn Snapshot, ids: &[[u8; 12]]) -> Result<Vec<RawBucket>> {
        match self.candidates {
            _ if ids.is_empty() => Ok(Vec::new()),
            Candidates::Outermost(_) => point_reads::neighbours(snapshot, self.keyspaces, ids),
            _ => point_reads::buckets_of(snapshot, self.keyspaces, ids),
        }
    }

    fn refill(&mut self) -> Result<()> {
        if !matches!(self.candidates, Candidates::All) {
            return self.refill_from_index();
        }
        let span = self.span();
        if !span.ends_behind(&span.start) {
            self.done = true;
            return Ok(());
        }
        let direction = match self.range.backward {
            true => Direction::Backward,
            false => Direction::Forward,
        };
        let snapshot = self.timeseries.engine.snapshot()?;
        let most = self.chunk;
        self.chunk = (self.chunk * CHUNK_GROWTH).min(CHUNK_BUCKETS_MAX);
        let versions = Versions::of(&*snapshot, self.keyspaces);
        let rosters = &self.timeseries.rosters;
        let known = versions.and_then(|v| rosters.part(v, &span, direction, most));
        if let Some(part) = known.as_ref().filter(|part| part.is_quiet) {
            self.done = part.all;
            self.after = part.buckets.last().map(|bucket| bucket.id().0);
            self.ready.extend(part.buckets.iter().cloned().map(Ok));
            return Ok(());
        }
        let was_known = known.is_some();
        let bounds = ChunkBounds {
            start: &span.start,
            end: span.end.as_deref(),
            direction,
            buckets_max: most,
            bytes_max: usize::MAX,
        };
        let walked = storage_iterator::next_buckets(&*snapshot, self.keyspaces, bounds, known)?;
        let Walked { found, all, quiet } = walked;
        self.done = all;
        let mut listed = Vec::with_capacity(found.len());
        for raw in found {
            let id = raw.id;
            self.after = Some(id);
            let (is_sealed, is_alone) = (raw.is_sealed, raw.is_sealed_alone());
            let bucket = self.assemble(raw, versions);
            if is_sealed {
                // What is damaged, or has more to it, is read again.
                let held = bucket.as_ref().ok().filter(|_| is_alone);
                listed.push((id, held.map_or_else(Weak::new, Arc::downgrade)));
            }
            self.ready.push_back(bucket);
        }
        if let Some(versions) = versions.filter(|_| self.timeseries.bucket_cache.keeps()) {
            if !was_known {
                self.note(versions, span, listed);
            }
            if let Some(quiet) = quiet {
                self.timeseries.rosters.note_quiet(versions, quiet);
            }
        }
        Ok(())
    }

    /// Takes note of the sealed buckets that were read of a span, as far as it was read.
    fn note(&self, versions: Versions, mut span: Span, mut listed: Vec<Listed>) {
        match (self.done, self.after, self.range.backward) {
            (false, Some(last), false) => span.end = Some(behind(last)),
            (false, Some(last), true) => span.start = last.to_vec(),
            (false, None, _) => return,
            (true, ..) => {}
        }
        if self.range.backward {
            listed.reverse();
        }
        self.timeseries.rosters.note(versions, span, listed);
    }

    fn assemble(&self, bucket: RawBucket, versions: Option<Versions>) -> Result<Arc<StoredBucket>> {
        let cache = &self.timeseries.bucket_cache;
        let RawBucket {
            id, document, tail, ..
        } = bucket;
        let stored = match document {
            Some(Lying::Opened(known)) if tail.is_empty() => return Ok(known),
            Some(document) => Some(document.stored().clone()),
            None => None,
        };
        if let Some(stored) = stored.as_deref().filter(|_| tail.is_empty())
            && let Some(known) = cache.get_like(id, stored, versions)
        {
            return Ok(known);
        }
        let state = bucket_cache::state(stored.as_deref(), &tail);
        if let Some(known) = cache.get(id, state, versions) {
            return Ok(known);
        }
        let options = self.collection.timeseries.as_ref();
        let time_field = options.map_or("", |options| &*options.time_field);
        let bucket = match stored {
            Some(stored) if tail.is_empty() => {
                StoredBucket::open(stored, time_field, &self.timeseries.column_names)?
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
                let names = &self.timeseries.column_names;
                StoredBucket::put_together(image.into_document(), time_field, names)?
            }
        };
        let bucket = Arc::new(bucket.numbered(&self.timeseries.metas));
        cache.put(id, state, bucket.clone(), versions);
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

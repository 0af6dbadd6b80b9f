//! A sealed bucket by its summary: the bucket itself is read when something of it is requested that the summary does not have.
//!
//! While the cache has room, a requested bucket is opened and cached. Otherwise the requested columns are decoded from the stored
//! bytes, to which the summary knows the way.

use std::num::NonZeroU64;
use std::sync::{Arc, OnceLock};

use nilometer_bson::block::ColumnBlock;
use nilometer_bson::{Document, ObjectId, ValueRef};
use nilometer_storage::{Bytes, Snapshot};

use super::read_ahead::ReadAhead;
use super::storage_iterator::{RawBucket, StoredForm};
use super::{BucketReader, StoredBuckets};
use crate::catalog::Collection;
use crate::error::Result;
use crate::eval::accumulator::ColumnTotal;
use crate::timeseries::cache::document_content::{path_of_bucket, whole_column};
use crate::timeseries::cache::opened_bucket::StoredBucket;
use crate::timeseries::cache::sealed_bucket_list::KeyspaceVersions;
use crate::timeseries::cache::summary_blocks::OpenedSummaries;
use crate::timeseries::format::bucket_document::damaged;
use crate::timeseries::format::keyspaces::BucketKeyspaces;
use crate::timeseries::format::sealed::{self, ColumnPlace};
use crate::timeseries::format::summary::{SummaryColumn, SummaryRow};

/// One part in this many of the cache is not filled by scans.
const RESERVED_SHARE: usize = 8;

/// Reads the buckets of one chunk that are requested after all.
pub(super) struct ChunkReader {
    reader: Arc<BucketReader>,
    collection: Arc<Collection>,
    keyspaces: BucketKeyspaces,
    snapshot: Arc<dyn Snapshot>,
    versions: Option<KeyspaceVersions>,
    /// The cache has room: buckets are opened.
    opens_buckets: bool,
    ahead: ReadAhead,
}

impl ChunkReader {
    /// Returns a reader of buckets of one block of summaries in the snapshot of a chunk of `scan`.
    pub(super) fn new(
        scan: &StoredBuckets,
        snapshot: &Arc<dyn Snapshot>,
        versions: Option<KeyspaceVersions>,
    ) -> Self {
        Self {
            reader: Arc::clone(&scan.reader),
            collection: Arc::clone(&scan.collection),
            keyspaces: scan.keyspaces,
            snapshot: Arc::clone(snapshot),
            versions,
            opens_buckets: scan.reader.cache.buckets.has_room(RESERVED_SHARE),
            ahead: ReadAhead::default(),
        }
    }

    fn cached(&self, id: [u8; 12]) -> Option<Arc<StoredBucket>> {
        let cache = &self.reader.cache.buckets;
        cache.get_at(self.versions, &[id]).pop().flatten()
    }

    /// Returns the sealed document of a row of a block, if there is one.
    fn sealed(&self, rows: &[SummaryRow], row: usize) -> Result<Option<Bytes>> {
        let from = (&*self.snapshot, self.keyspaces.sealed);
        self.ahead.document(rows, row, from)
    }

    fn bucket(&self, rows: &[SummaryRow], row: usize) -> Result<Arc<StoredBucket>> {
        let id = rows[row].id;
        if let Some(bucket) = self.cached(id) {
            return Ok(bucket);
        }
        let stored = self.sealed(rows, row)?.ok_or_else(|| {
            damaged(
                ValueRef::ObjectId(ObjectId(id)),
                "it has a summary and is not stored",
            )
        })?;
        // It has neither an open document nor a tail in this snapshot, or the scan would not show its summary.
        let found = RawBucket {
            id,
            document: Some(StoredForm::Sealed(stored)),
            is_sealed: true,
            tail: Vec::new(),
        };
        self.reader.assemble(&self.collection, found, self.versions)
    }
}

/// The stored columns of a bucket that is not opened, in the order of `data`.
struct StoredColumns {
    stored: Bytes,
    places: Vec<ColumnPlace>,
    decoded: Box<[OnceLock<Arc<ColumnBlock>>]>,
}

impl StoredColumns {
    fn column(&self, shown: usize, row: &SummaryRow) -> Result<Option<&Arc<ColumnBlock>>> {
        let (Some(place), Some(decoded)) = (self.places.get(shown), self.decoded.get(shown)) else {
            return Ok(None);
        };
        if let Some(known) = decoded.get() {
            return Ok(Some(known));
        }
        let count = row.count as usize;
        let column = whole_column(row.id, count, place.decode(&self.stored, count))?;
        Ok(Some(decoded.get_or_init(|| Arc::new(column))))
    }

    /// Returns the first values of a column; `None` if all of them are decoded, or must be.
    fn first(&self, shown: usize, row: &SummaryRow, first: usize) -> Result<Option<ColumnBlock>> {
        let (Some(place), Some(decoded)) = (self.places.get(shown), self.decoded.get(shown)) else {
            return Ok(None);
        };
        if decoded.get().is_some() {
            return Ok(None);
        }
        let found = place.decode_first(&self.stored, row.count as usize, first);
        found.map_err(|error| {
            let id = ValueRef::ObjectId(ObjectId(row.id));
            damaged(id, &error.to_string())
        })
    }
}

/// A sealed bucket by its summary.
pub struct SummarizedBucket {
    pub(super) block: Arc<OpenedSummaries>,
    pub(super) row: usize,
    pub(super) chunk: Arc<ChunkReader>,
    whole: OnceLock<Arc<StoredBucket>>,
    /// `None` if it must be opened.
    columns: OnceLock<Option<StoredColumns>>,
}

impl SummarizedBucket {
    pub(super) fn new(block: Arc<OpenedSummaries>, row: usize, chunk: Arc<ChunkReader>) -> Self {
        Self {
            block,
            row,
            chunk,
            whole: OnceLock::new(),
            columns: OnceLock::new(),
        }
    }

    fn row(&self) -> &SummaryRow {
        &self.block.rows()[self.row]
    }

    /// Its `_id`.
    pub fn id(&self) -> ObjectId {
        ObjectId(self.row().id)
    }

    /// Number of measurements.
    pub fn count(&self) -> usize {
        self.row().count as usize
    }

    /// Format version: 2 or 3.
    pub fn version(&self) -> i32 {
        match self.row().is_sorted() {
            true => 2,
            false => 3,
        }
    }

    /// Returns the stored size of its columns in bytes.
    pub fn stored_bytes(&self) -> usize {
        let columns = self.block.stored_columns(self.row()).unwrap_or(&[]);
        let bytes = columns.iter().flatten().map(|column| column.bytes as usize);
        bytes.sum()
    }

    /// True if times ascend.
    pub fn is_sorted(&self) -> bool {
        self.row().is_sorted()
    }

    /// True if it takes no more measurements.
    pub fn is_closed(&self) -> bool {
        self.row().is_closed()
    }

    /// The metadata, missing if there is none.
    pub fn meta(&self) -> ValueRef<'_> {
        self.block.meta(self.row())
    }

    /// Returns the id of the metadata, if that is a document. Equal ids mean equal metadata.
    pub fn meta_id(&self) -> Option<NonZeroU64> {
        self.block.meta_id(self.row)
    }

    /// Returns the names of the columns by place.
    pub fn columns(&self) -> &[Arc<str>] {
        self.block
            .order(self.row())
            .map_or(&[], |order| &order.names)
    }

    /// Returns the place of the `nth` column of `data`.
    pub fn place_shown(&self, nth: usize) -> Option<usize> {
        let order = self.block.order(self.row())?;
        order.shown.get(nth).map(|at| *at as usize)
    }

    fn summary(&self, at: usize) -> Option<(&SummaryColumn, usize)> {
        let row = self.row();
        let column = self.block.column(row, at).ok().flatten()?;
        Some((column, row.place as usize))
    }

    /// Returns the bounds of a field.
    pub fn bounds(&self, field: &str) -> (ValueRef<'_>, ValueRef<'_>) {
        let place = self.columns().iter().position(|name| **name == *field);
        place.map_or((ValueRef::Missing, ValueRef::Missing), |at| {
            self.bounds_at(at)
        })
    }

    /// Returns `control.min.<field>`.
    pub fn min(&self, field: &str) -> ValueRef<'_> {
        self.bounds(field).0
    }

    /// Returns `control.max.<field>`.
    pub fn max(&self, field: &str) -> ValueRef<'_> {
        self.bounds(field).1
    }

    /// Returns the bounds of the column at a place.
    pub fn bounds_at(&self, at: usize) -> (ValueRef<'_>, ValueRef<'_>) {
        match self.summary(at) {
            Some((column, place)) => column.bounds(place),
            // There is no such column, or its summary does not parse.
            None => match self.whole() {
                Ok(bucket) => bucket.bounds_at(at),
                Err(_) => (ValueRef::Missing, ValueRef::Missing),
            },
        }
    }

    /// Returns the total of the column at a place; `None` if it has none.
    pub fn total_at(&self, at: usize) -> Result<Option<ColumnTotal>> {
        Ok(self.known_total_at(at))
    }

    fn known_total_at(&self, at: usize) -> Option<ColumnTotal> {
        let (column, place) = self.summary(at)?;
        column.total(place, self.row().count)
    }

    /// True if the column at a place has a total.
    pub fn has_total_at(&self, at: usize) -> bool {
        self.known_total_at(at).is_some()
    }

    /// Returns the total of the first values of the column at a place, if that costs less than to decode the column.
    pub fn total_of_first(&self, at: usize, count: usize) -> Result<Option<ColumnTotal>> {
        let (Some(columns), row) = (self.stored_columns()?, self.row()) else {
            return Ok(None);
        };
        let Some(shown) = self.block.shown_at(row, at) else {
            return Ok(None);
        };
        let first = columns.first(shown, row, count)?;
        #[cfg(test)]
        if first.is_some() {
            cov_mark::hit!(total_of_first);
        }
        Ok(first.as_ref().and_then(ColumnTotal::of))
    }

    /// Returns the bucket, which it reads if necessary.
    pub fn whole(&self) -> Result<&Arc<StoredBucket>> {
        if let Some(known) = self.whole.get() {
            return Ok(known);
        }
        let read = self.chunk.bucket(self.block.rows(), self.row)?;
        Ok(self.whole.get_or_init(|| read))
    }

    #[cfg(test)]
    pub(super) fn is_opened(&self) -> bool {
        self.whole.get().is_some()
    }

    /// Compares the summary with the bucket. Returns how they differ.
    pub(crate) fn difference(&self) -> Result<Option<&'static str>> {
        let bucket = self.whole()?;
        let same_header = self.id() == bucket.id()
            && self.count() == bucket.count()
            && self.version() == bucket.version()
            && self.is_closed() == bucket.is_closed()
            && self.columns() == bucket.columns();
        if !same_header {
            return Ok(Some("another header"));
        }
        let shown = |nth| self.place_shown(nth);
        if !(0..self.columns().len())
            .map(shown)
            .eq((0..self.columns().len()).map(|nth| bucket.place_shown(nth)))
        {
            return Ok(Some("another order of fields"));
        }
        let is_same = |a: ValueRef<'_>, b: ValueRef<'_>| {
            let document = |value| nilometer_bson::doc! { "": ValueRef::to_value(value) };
            a.is_missing() == b.is_missing() && document(a) == document(b)
        };
        if !is_same(self.meta(), bucket.meta()) {
            return Ok(Some("other metadata"));
        }
        if self.constants()? != bucket.constants()? {
            return Ok(Some("other constant fields"));
        }
        for at in 0..self.columns().len() {
            let ((min, max), (least, greatest)) = (self.bounds_at(at), bucket.bounds_at(at));
            if !is_same(min, least) || !is_same(max, greatest) {
                return Ok(Some("other bounds"));
            }
            if self.known_total_at(at) != bucket.known_total_at(at)? {
                return Ok(Some("other totals"));
            }
            let sizes = self.block.stored_columns(self.row());
            let shown = self.block.shown_at(self.row(), at);
            let size = sizes.zip(shown).and_then(|(sizes, shown)| sizes.get(shown));
            if size != Some(&bucket.stored_column_at(at)) {
                return Ok(Some("other sizes of columns"));
            }
        }
        Ok(None)
    }

    /// Returns the stored columns if the bucket need not be opened.
    fn stored_columns(&self) -> Result<Option<&StoredColumns>> {
        if self.chunk.opens_buckets || self.whole.get().is_some() {
            return Ok(None);
        }
        if let Some(known) = self.columns.get() {
            return Ok(known.as_ref());
        }
        let id = self.row().id;
        if let Some(cached) = self.chunk.cached(id) {
            self.whole.get_or_init(|| cached);
            return Ok(None);
        }
        let sizes = self.block.stored_columns(self.row());
        let sizes = sizes.and_then(|sizes| sizes.iter().copied().collect::<Option<Vec<_>>>());
        let stored = self.chunk.sealed(self.block.rows(), self.row)?;
        let found = match (sizes, stored) {
            (Some(sizes), Some(stored)) => {
                #[cfg(test)]
                cov_mark::hit!(columns_of_an_unopened_bucket);
                let places = sealed::places(&stored, sizes.into_iter())?;
                places.map(|places| StoredColumns {
                    decoded: places.iter().map(|_| OnceLock::new()).collect(),
                    places,
                    stored,
                })
            }
            _ => None,
        };
        Ok(self.columns.get_or_init(|| found).as_ref())
    }

    /// Returns the column at a place.
    pub fn column_at(&self, at: usize) -> Result<Option<&Arc<ColumnBlock>>> {
        match self.stored_columns()? {
            Some(columns) => match self.block.shown_at(self.row(), at) {
                Some(shown) => columns.column(shown, self.row()),
                None => Ok(None),
            },
            None => self.whole()?.column_at(at),
        }
    }

    /// Returns the values at a path below those of the column at a place; `None` if they must be found in these.
    pub fn path_at(&self, at: usize, below: &str) -> Result<Option<Arc<ColumnBlock>>> {
        let Some(columns) = self.stored_columns()? else {
            return self.whole()?.path_at(at, below);
        };
        let row = self.row();
        let place = self.block.shown_at(row, at);
        let Some(place) = place.and_then(|shown| columns.places.get(shown)) else {
            return Ok(None);
        };
        let found = place.decode_path(&columns.stored, row.count as usize, below);
        path_of_bucket(row.id, row.count as usize, found)
    }

    /// True if the column at a place is known without reading anything.
    pub fn has_column_at(&self, at: usize) -> bool {
        let is_opened = |bucket: &Arc<StoredBucket>| bucket.has_column_at(at);
        let is_decoded = |columns: &StoredColumns| {
            let shown = self.block.shown_at(self.row(), at);
            let decoded = shown.and_then(|shown| columns.decoded.get(shown));
            decoded.is_some_and(|decoded| decoded.get().is_some())
        };
        at >= self.columns().len()
            || self.whole.get().is_some_and(is_opened)
            || self
                .columns
                .get()
                .and_then(Option::as_ref)
                .is_some_and(is_decoded)
    }

    /// Returns the fields that have one value in all measurements.
    pub fn constants(&self) -> Result<Document> {
        self.block.constants(self.row())
    }

    /// Returns the id of these fields; `None` if there are none. Equal ids mean equal fields and values.
    pub fn constants_id(&self) -> Result<Option<NonZeroU64>> {
        Ok(self.known_constants_id())
    }

    /// The same; a summary always knows it.
    pub fn known_constants_id(&self) -> Option<NonZeroU64> {
        self.block.constants_id(self.row)
    }
}

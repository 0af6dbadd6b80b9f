//! Maintains the indexes over buckets as buckets change.
//!
//! ```text
//! a bucket is opened (its first tail entry)      static indexes: entries by metadata and start
//! its document is folded or sealed               dynamic indexes: difference of old and new document
//! its document is written raw, or removed        both, with the document as it was stored
//! ```
//!
//! The entries are in the engine batch of the change itself, and the list of indexes is locked ([`IndexMaintainer`]) from
//! the choice of the entries until the engine has committed them.
//!
//! A reader may rely on the following, in any one snapshot:
//!
//! 1. *A static index has the entries of every stored bucket.* The first stored part of a bucket is a tail entry with the
//!    header. Every tail entry that has the header comes with the index entries; several may, until one is known to be
//!    committed, and they are equal. The entries depend on metadata and start, which change only by raw writes and removals;
//!    those claim the bucket from the writers first and replace everything in one batch.
//! 2. *A dynamic index has the entries of every stored bucket document.* Documents change under one lock, that of
//!    maintenance (`rewriting`): folds, seals, raw writes, removals and builds take it, so each reads the document that its
//!    batch replaces. Appends do not take it and do not change documents. A bucket with a tail may hold measurements that
//!    its entries do not cover: every scan of a dynamic index includes it.
//! 3. *A ready index has entries for buckets older than itself too.* Adding the index waits until no writer holds the list.
//!    So a bucket of a writer that did not know the index is committed before the build takes its first snapshot; a
//!    later bucket gets its entries from its writer, whatever the position of the build; and while the build processes a
//!    chunk, under the lock of maintenance, no document changes. Entries that both write are equal.
//!
//! A bucket that an index names and that does not exist was removed in between. A batch that fails to commit stores neither
//! its tail entry nor its index entries.
//!
//! An index over measurements cannot hold arrays, because both bounds would be arrays, nor keys beyond the engine's limit.
//! Both are refused at the insert ([`IndexMaintainer::check_measurement`]), so folding never fails. Metadata is checked once
//! for each series of a command.
//!
//! Lock order: maintenance, list of indexes, changes of the catalog. One thread holds the list of a collection at most
//! once: a maintenance task that an insert performs itself runs after the commit.

use std::cell::RefCell;
use std::sync::Arc;

use nilometer_bson::{DocRef, ValueRef};
use nilometer_storage::WriteBatch;

use crate::catalog::{Catalog, Collection, IndexListGuard, StoredIndex, TimeseriesOptions};
use crate::error::{Error, ErrorCode, Result, location};
use crate::eval::matcher::MatchExpression;
use crate::eval::{Collation, EvalContext, EvaluationLimits, ParseContext};
use crate::geo::bucket_cells;
use crate::index::buckets::{BucketIndex, opening_document};
use crate::index::{
    DocumentKeys, KEYS_BYTES_MAX, delete_entries, diff_entries, keys_too_long, put_entries,
};
use crate::rollup::RollupMarks;
use crate::timeseries::bucket_catalog::SeriesKey;
use crate::timeseries::format::series_key::has_arrays;
use crate::timeseries::rewrite::{BucketHeader, BucketPredicate, BucketRewriter, FilterContext};

/// Bytes of a key string reserved for type bytes, terminators and times.
const KEY_BYTES_RESERVED: usize = 1_000;

/// Bytes of a key per byte of a value: both bounds are in the key, and an escaped byte takes two.
const KEY_BYTES_PER_VALUE_BYTE: usize = 4;

/// Bytes of a key per byte of a text under a collation: sort keys are longer than the text.
const KEY_BYTES_PER_COLLATED_BYTE: usize = 24;

/// The indexes of a bucket collection, which do not change while this exists.
pub(crate) struct IndexMaintainer<'c> {
    collection: &'c Collection,
    options: &'c TimeseriesOptions,
    indexes: Vec<Arc<BucketIndex>>,
    /// The limits of partial filters. A fold has none: once begun, it is completed.
    limits: Option<EvaluationLimits<'c>>,
    _list: Option<IndexListGuard<'c>>,
    /// Marks the bins of rollups; locked as long as the list of indexes is.
    rollups: Option<RollupMarks<'c>>,
    /// Multikey flags to record in the catalog before the commit of the batch.
    multikey: RefCell<Vec<(Arc<StoredIndex>, u32)>>,
}

impl<'c> IndexMaintainer<'c> {
    /// Locks the list of indexes of a bucket collection.
    pub(crate) fn lock(collection: &'c Collection) -> Result<Self> {
        let list = collection.indexes.lock_shared();
        let stored = list.to_vec();
        let mut maintainer = Self::new(collection, &stored, Some(list))?;
        maintainer.rollups = Some(RollupMarks::lock(collection)).filter(|all| !all.is_empty());
        Ok(maintainer)
    }

    /// Returns what marks the bins of rollups; `None` if there are no rollups.
    pub(crate) fn rollups(&self) -> Option<&RollupMarks<'c>> {
        self.rollups.as_ref()
    }

    /// Returns a maintainer of the indexes `chosen`: for a build, which must not lock the list.
    pub(crate) fn only(collection: &'c Collection, chosen: &[Arc<StoredIndex>]) -> Result<Self> {
        Self::new(collection, chosen, None)
    }

    fn new(
        collection: &'c Collection,
        stored: &[Arc<StoredIndex>],
        list: Option<IndexListGuard<'c>>,
    ) -> Result<Self> {
        let Some(options) = &collection.timeseries else {
            return Err(Error::bad_value("not a bucket collection"));
        };
        let made = stored
            .iter()
            .map(|index| BucketIndex::of(index, &options.time_field));
        Ok(Self {
            collection,
            options,
            indexes: made.collect::<Result<_>>()?,
            limits: None,
            _list: list,
            rollups: None,
            multikey: RefCell::default(),
        })
    }

    /// Evaluates partial filters within the limits of an operation.
    pub(crate) fn within(mut self, limits: Option<EvaluationLimits<'c>>) -> Self {
        self.limits = limits;
        self
    }

    /// True if there are no indexes.
    pub(crate) fn is_empty(&self) -> bool {
        self.indexes.is_empty()
    }

    /// True if an index depends on stored documents.
    pub(crate) fn needs_documents(&self) -> bool {
        self.indexes.iter().any(|index| !index.is_static())
    }

    /// True if an index depends on columns, not on headers alone.
    pub(crate) fn needs_columns(&self) -> bool {
        self.indexes.iter().any(|index| !index.points().is_empty())
    }

    /// True if an index is partial and depends on stored documents: a bucket that it excludes now may belong to it after more
    /// inserts.
    pub(crate) fn may_take_buckets_later(&self) -> bool {
        let mut indexes = self.indexes.iter();
        indexes.any(|index| !index.is_static() && index.partial_filter().is_some())
    }

    /// Refuses a bucket with values that an index cannot hold, whether a partial filter selects it or not.
    pub(crate) fn check_document(&self, document: DocRef<'_>) -> Result<()> {
        for index in &self.indexes {
            all_keys(index, document)?;
        }
        Ok(())
    }

    /// Writes the entries of a bucket that is older than its indexes.
    pub(crate) fn bucket_found(
        &self,
        batch: &mut WriteBatch,
        id: [u8; 12],
        stored: Option<DocRef<'_>>,
        meta: ValueRef<'_>,
        start_ms: i64,
    ) -> Result<()> {
        let has_arrays = has_arrays(meta);
        for (index, keys) in self.expected(stored, meta, start_ms)? {
            self.remember_arrays(&index, &keys);
            put_entries(batch, &index.unfiltered(), &keys, &id);
            if has_arrays && !index.is_static() && stored.is_none() {
                let opened = opening_document(meta, &self.options.time_field, start_ms);
                self.remember_arrays(&index, &index.keys(opened.as_ref())?);
            }
        }
        Ok(())
    }

    /// Writes the entries of a bucket that is being opened.
    pub(crate) fn bucket_opened(
        &self,
        batch: &mut WriteBatch,
        meta: ValueRef<'_>,
        start_ms: i64,
        id: [u8; 12],
    ) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        let opened = opening_document(meta, &self.options.time_field, start_ms);
        let has_arrays = has_arrays(meta);
        for index in &self.indexes {
            if index.is_static() {
                let keys = self.keys(index, opened.as_ref(), None)?;
                self.remember_arrays(index, &keys);
                put_entries(batch, &index.unfiltered(), &keys, &id);
            } else if has_arrays {
                // The entries follow with the document; the multikey flag is known now.
                self.remember_arrays(index, &all_keys(index, opened.as_ref())?);
            }
        }
        Ok(())
    }

    /// Writes the changes of entries when a bucket's tail is folded into its document.
    pub(crate) fn document_folded(
        &self,
        batch: &mut WriteBatch,
        id: [u8; 12],
        before: Option<DocRef<'_>>,
        after: DocRef<'_>,
    ) -> Result<()> {
        let dynamic = self.indexes.iter().filter(|index| !index.is_static());
        for index in dynamic {
            let (old, new) = (
                self.keys_if_any(index, before),
                self.keys_if_any(index, Some(after)),
            );
            match (old, new) {
                (Ok(old), Ok(new)) => diff_entries(batch, &index.unfiltered(), &old, &new, &id),
                // An older bucket may have values that the index cannot hold: its build finds the bucket and fails.
                (Err(_), _) | (_, Err(_)) if !index.stored.is_ready() => {}
                (Err(error), _) | (_, Err(error)) => return Err(error),
            }
        }
        Ok(())
    }

    /// Deletes all entries of a bucket: those of the stored document if there is one, else those of its header.
    pub(crate) fn bucket_removed(
        &self,
        batch: &mut WriteBatch,
        id: [u8; 12],
        stored: Option<DocRef<'_>>,
        meta: ValueRef<'_>,
        start_ms: i64,
    ) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        for (index, keys) in self.expected(stored, meta, start_ms)? {
            delete_entries(batch, &index.unfiltered(), &keys, &id);
        }
        Ok(())
    }

    /// Writes all entries of a bucket whose document is written directly.
    pub(crate) fn document_added(
        &self,
        batch: &mut WriteBatch,
        id: [u8; 12],
        document: DocRef<'_>,
    ) -> Result<()> {
        let keys = self
            .indexes
            .iter()
            .map(|index| self.keys_if_any(index, Some(document)));
        // All or none: a refused bucket must leave nothing in the batch.
        let keys = keys.collect::<Result<Vec<_>>>()?;
        for (index, keys) in self.indexes.iter().zip(&keys) {
            self.remember_arrays(index, keys);
            put_entries(batch, &index.unfiltered(), keys, &id);
        }
        Ok(())
    }

    /// Returns the keys that each index should have for a bucket, by position in the list.
    pub(crate) fn expected(
        &self,
        stored: Option<DocRef<'_>>,
        meta: ValueRef<'_>,
        start_ms: i64,
    ) -> Result<Vec<(Arc<BucketIndex>, DocumentKeys)>> {
        let opened = opening_document(meta, &self.options.time_field, start_ms);
        let expected = self.indexes.iter().map(|index| {
            let keys = match index.is_static() {
                true => self.keys(index, opened.as_ref(), None)?,
                false => self.keys_if_any(index, stored)?,
            };
            Ok((index.clone(), keys))
        });
        expected.collect()
    }

    /// Records multikey flags in the catalog. To be called before the commit of the batch.
    pub(crate) fn mark_multikey(&self, catalog: &Catalog) -> Result<()> {
        for (index, bits) in self.multikey.take() {
            catalog.mark_multikey(self.collection, &index, bits)?;
        }
        Ok(())
    }

    fn remember_arrays(&self, index: &BucketIndex, keys: &DocumentKeys) {
        if keys.multikey & !index.stored.multikey() == 0 {
            return;
        }
        let mut met = self.multikey.borrow_mut();
        match met
            .iter_mut()
            .find(|(known, _)| known.keyspace == index.stored.keyspace)
        {
            Some((_, bits)) => *bits |= keys.multikey,
            None => met.push((index.stored.clone(), keys.multikey)),
        }
    }

    fn keys_if_any(
        &self,
        index: &BucketIndex,
        document: Option<DocRef<'_>>,
    ) -> Result<DocumentKeys> {
        match document {
            Some(document) => self.keys(index, document, Some(document)),
            None => Ok(DocumentKeys::default()),
        }
    }

    /// Returns the keys of a bucket in one index. `header` is the document if its bounds are valid.
    fn keys(
        &self,
        index: &BucketIndex,
        document: DocRef<'_>,
        header: Option<DocRef<'_>>,
    ) -> Result<DocumentKeys> {
        if !self.belongs_into(index, document, header)? {
            return Ok(DocumentKeys::default());
        }
        all_keys(index, document)
    }

    /// True if a partial index includes the bucket: its filter on buckets selects it, or the bounds do not exclude a measurement
    /// that the user's filter selects. The filter alone would exclude buckets whose bounds are arrays or objects.
    fn belongs_into(
        &self,
        index: &BucketIndex,
        document: DocRef<'_>,
        header: Option<DocRef<'_>>,
    ) -> Result<bool> {
        let Some(filter) = index.partial_filter() else {
            return Ok(true);
        };
        let collation = index.index();
        let context = EvalContext {
            collator: collation.collation().collator(),
            limits: self.limits,
            ..EvalContext::default()
        };
        if filter.matches(document, &context)? {
            return Ok(true);
        }
        let (Some(header), false) = (header, index.is_static()) else {
            return Ok(false);
        };
        match self.user_filter(index)? {
            Some(predicate) => predicate.may_match(&DocumentHeader(header), self.limits),
            None => Ok(false),
        }
    }

    /// Returns the user's partial filter as a predicate that accepts every bucket with a match.
    fn user_filter(&self, index: &BucketIndex) -> Result<Option<BucketPredicate>> {
        let original = index.stored.spec.original_spec.as_ref();
        let filter = original.map(|spec| spec.get("partialFilterExpression"));
        let Some(ValueRef::Document(filter)) = filter else {
            return Ok(None);
        };
        let as_kept = index.index();
        let collation = as_kept.collation();
        let parsing = ParseContext::new().with_collator(collation.shared());
        let filter = MatchExpression::parse(filter, &parsing)?;
        let rewriter = BucketRewriter {
            time_field: self.options.time_field.as_str().into(),
            meta_field: self.options.meta_field.as_deref().map(Arc::from),
            max_span_seconds: i64::from(self.options.span_seconds),
            extended_range: true,
            // The keys of a bucket depend on the bucket alone, not on a flag of its collection: queries do not use indexes over
            // measurements where types may be mixed.
            mixed_schema: false,
            bounds_collation: Collation::of_stored(self.collection.options.as_ref())?,
            context: FilterContext {
                collator: collation.shared(),
                ..FilterContext::default()
            },
        };
        Ok(Some(rewriter.loose(&filter)))
    }

    /// Refuses a measurement that an index over measurements cannot hold. Free if there is no such index.
    pub(crate) fn check_measurement(&self, measurement: DocRef<'_>) -> Result<()> {
        let over_measurements = |index: &&Arc<BucketIndex>| {
            !index.measurements().is_empty() || !index.points().is_empty()
        };
        for index in self.indexes.iter().filter(over_measurements) {
            let weight = match index.index().collation().collator() {
                None => KEY_BYTES_PER_VALUE_BYTE,
                Some(_) => KEY_BYTES_PER_COLLATED_BYTE,
            };
            let mut bytes = KEY_BYTES_RESERVED;
            for path in index.measurements() {
                bytes += weight * check_value(measurement, path)?;
            }
            for path in index.points() {
                bucket_cells([point_at(measurement, path)?])?;
            }
            if bytes > KEYS_BYTES_MAX {
                return Err(Error::new(
                    ErrorCode::KeyTooLong,
                    format!(
                        "the measurement's values are too long for the index '{}'",
                        index.stored.spec.name
                    ),
                ));
            }
        }
        Ok(())
    }

    /// Refuses metadata that an index cannot hold.
    pub(crate) fn check_meta(&self, series: &SeriesKey) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        let has_arrays = series.has_arrays;
        // The common case.
        let key_bytes = series.meta.len() * KEY_BYTES_PER_COLLATED_BYTE + KEY_BYTES_RESERVED;
        let may_be_long = key_bytes * self.indexes.len() > KEYS_BYTES_MAX;
        let refusing = |index: &Arc<BucketIndex>| index.may_refuse_meta();
        if !has_arrays && !may_be_long && !self.indexes.iter().any(refusing) {
            return Ok(());
        }
        let meta = series.meta.value();
        let mut bytes = 0;
        for index in &self.indexes {
            if has_arrays || may_be_long || index.may_refuse_meta() {
                let opened = opening_document(meta, &self.options.time_field, 0);
                bytes += index.keys(opened.as_ref())?.entry_bytes(&[0; 12]);
            }
        }
        match bytes > KEYS_BYTES_MAX {
            true => Err(keys_too_long("all indexes")),
            false => Ok(()),
        }
    }
}

/// Returns the keys of a bucket, regardless of a partial filter.
fn all_keys(index: &BucketIndex, document: DocRef<'_>) -> Result<DocumentKeys> {
    index.keys(document).map_err(|error| {
        let on_measurements = !index.measurements().is_empty();
        match error.code {
            ErrorCode::CannotIndexParallelArrays if on_measurements => is_array(&error.message),
            _ => error,
        }
    })
}

/// A bucket document as the header that predicates evaluate.
struct DocumentHeader<'d>(DocRef<'d>);

impl DocumentHeader<'_> {
    fn bound(&self, side: &str, field: &str) -> ValueRef<'_> {
        let control = self.0.get("control").as_document();
        let bounds = control.and_then(|control| control.get(side).as_document());
        bounds.map_or(ValueRef::Missing, |bounds| bounds.get(field))
    }
}

impl BucketHeader for DocumentHeader<'_> {
    fn id(&self) -> nilometer_bson::ObjectId {
        match self.0.get("_id") {
            ValueRef::ObjectId(id) => id,
            _ => nilometer_bson::ObjectId::default(),
        }
    }

    fn meta(&self) -> ValueRef<'_> {
        self.0.get("meta")
    }

    fn min(&self, field: &str) -> ValueRef<'_> {
        self.bound("min", field)
    }

    fn max(&self, field: &str) -> ValueRef<'_> {
        self.bound("max", field)
    }

    fn count(&self) -> u32 {
        0
    }
}

fn is_array(what: &str) -> Error {
    Error::location(
        location::INDEXED_MEASUREMENT_IS_ARRAY,
        format!("Indexed measurement field contains an array value: {what}"),
    )
}

/// Returns the bytes of the value at a path; fails if the path leads through or to an array.
fn check_value(measurement: DocRef<'_>, path: &str) -> Result<usize> {
    let mut value = ValueRef::Document(measurement);
    for part in path.split('.') {
        value = match value {
            ValueRef::Document(inner) => inner.get(part),
            _ => return Ok(0),
        };
        if matches!(value, ValueRef::Array(_)) {
            return Err(is_array(path));
        }
    }
    Ok(bytes_of(value))
}

/// Returns the value at the path of an indexed point; fails if the path leads through an array.
fn point_at<'a>(measurement: DocRef<'a>, path: &str) -> Result<ValueRef<'a>> {
    let mut value = ValueRef::Document(measurement);
    for part in path.split('.') {
        value = match value {
            ValueRef::Document(inner) => inner.get(part),
            ValueRef::Array(_) => {
                return Err(Error::location(
                    location::INDEXED_POINT_IN_ARRAY,
                    format!("Can't extract geo keys: '{path}' leads through an array"),
                ));
            }
            _ => return Ok(ValueRef::Missing),
        };
    }
    Ok(value)
}

/// Returns the bytes of values without a fixed length, which determine the length of a key.
fn bytes_of(value: ValueRef<'_>) -> usize {
    match value {
        ValueRef::String(text) => text.len(),
        ValueRef::Binary { bytes, .. } => bytes.len(),
        ValueRef::Document(inner) => inner.as_bytes().len(),
        ValueRef::Array(inner) => inner.as_document().as_bytes().len(),
        _ => 0,
    }
}

/// True if buckets may be reopened by a query when a measurement finds none open: an index that is not partial begins with metadata
/// and time, or with the time if there is no metadata.
pub(crate) fn supports_reopening(collection: &Collection) -> bool {
    let Some(options) = &collection.timeseries else {
        return false;
    };
    let bounds = ["min", "max"].map(|side| format!("control.{side}.{}", options.time_field));
    collection.indexes.all().iter().any(|index| {
        let mut parts = index.spec.key.iter();
        let begins = match options.meta_field {
            Some(_) => parts.next().is_some_and(|part| {
                part.name() == "meta" && nilometer_bson::number::Number::of(part.value()).is_some()
            }),
            None => true,
        };
        let is_bound = |part: nilometer_bson::Element<'_>| bounds.iter().any(|b| b == part.name());
        index.is_usable()
            && index.spec.partial_filter.is_none()
            && begins
            && parts.next().is_some_and(is_bound)
    })
}

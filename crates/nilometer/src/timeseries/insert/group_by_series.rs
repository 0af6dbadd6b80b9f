//! Grouping the documents of an insert by series.
//!
//! ```text
//! document ─► time? metadata? ─► bytes known? ─ no ─► bytes known in the order of names? ─ no ─► normalise, find the series
//!                                     │ yes                           │ yes                          │
//!                                     └─────────────► group ◄─────────┴──────────────────────────────┘
//! ```
//!
//! Metadata is looked up in this command and in the series cache, by the bytes that were sent. A client that sends its fields in
//! another order each time misses there; its metadata is put in one order ([`super::reorder_meta`]) and looked up by that. Once
//! misses are frequent, the first lookup is left out.

use std::sync::Arc;

use hashbrown::HashTable;
use nilometer_bson::{DocRef, Element, ValueRef};

use super::reorder_meta::MetaReorderer;
use super::statement::InsertStatement;
use crate::error::{Error, Result};
use crate::insertion::{InsertOutcome, WriteError};
use crate::timeseries::bucket_catalog::field_scanner::{FieldScanner, refuse_column};
use crate::timeseries::bucket_catalog::{
    BucketCatalog, CachedSeries, FieldLayout, FieldNames, Measurement, SeriesKey,
};
use crate::timeseries::format::key_range::in_ordinary_range;
use crate::timeseries::format::series_key::SeriesMeta;
use crate::timeseries::index::maintenance::IndexMaintainer;

/// After this many lookups of known series by bytes as sent, their rate of hits is judged …
const RAW_LOOKUPS_MIN: usize = 32;

/// … and must have at most one miss in this many.
const RAW_LOOKUPS_PER_MISS: usize = 4;

/// Series of a command to reserve memory for.
const SERIES_EXPECTED_MAX: usize = 4096;

/// The documents of an insert by series, and the outcome so far: which were refused.
pub(super) struct GroupedMeasurements<'a> {
    pub(super) groups: Vec<SeriesGroup<'a>>,
    /// The fields of their measurements.
    pub(super) layout: FieldLayout,
    pub(super) outcome: InsertOutcome,
}

/// The measurements of one series.
pub(super) struct SeriesGroup<'a> {
    pub(super) key: Arc<SeriesKey>,
    /// Why an index does not accept the metadata.
    rejection: Option<Error>,
    /// Measurements it will have.
    count: usize,
    pub(super) measurements: Vec<Measurement<'a>>,
}

/// Parses the documents and groups them by series. Documents that are no measurements, or that an index does not accept,
/// become write errors; an ordered insert ends at the first.
pub(super) fn group<'a>(
    insert: &InsertStatement<'_>,
    indexes: &IndexMaintainer<'_>,
    documents: impl Iterator<Item = DocRef<'a>>,
) -> Result<GroupedMeasurements<'a>> {
    let collection = insert.collection;
    let Some(timeseries) = &collection.timeseries else {
        return Err(Error::bad_value("not a time-series collection"));
    };
    let mut outcome = InsertOutcome::default();
    let (expected, _) = documents.size_hint();
    let (bucket_catalog, uuid) = (&insert.timeseries.bucket_catalog, collection.uuid);
    let names = bucket_catalog.names(uuid);
    let mut grouper = Grouper::new(bucket_catalog, uuid, indexes, names.meta, expected);
    let mut scanner = FieldScanner::new(timeseries, names.fields);
    for (index, document) in documents.enumerate() {
        let added = scanner.examine(document).and_then(|(meta, measurement)| {
            indexes.check_measurement(document)?;
            grouper.add(
                meta,
                Measurement {
                    index,
                    ..measurement
                },
            )
        });
        if index == 0 {
            scanner.layout.reserve(expected);
        }
        match added {
            Ok(()) => outcome.inserted += 1,
            Err(error) => outcome.errors.push(WriteError { index, error }),
        }
        if insert.options.ordered && !outcome.errors.is_empty() {
            break;
        }
    }
    bucket_catalog.store_names(uuid, |known| &mut known.meta, &grouper.reorderer.names);
    if grouper.extended {
        insert.catalog.mark_extended_range(collection)?;
    }
    Ok(GroupedMeasurements {
        groups: grouper.finish(),
        layout: scanner.layout,
        outcome,
    })
}

/// Metadata that this command has met, with its fields in some order.
struct KnownMeta {
    cached: CachedSeries,
    group: usize,
}

/// Lookups of known series by bytes as sent, and how many were hits.
#[derive(Default)]
struct RawLookupStats {
    lookups: usize,
    hits: usize,
}

impl RawLookupStats {
    /// True if metadata mostly repeats byte for byte.
    fn are_worthwhile(&self) -> bool {
        let misses = self.lookups - self.hits;
        self.lookups < RAW_LOOKUPS_MIN || misses * RAW_LOOKUPS_PER_MISS <= self.lookups
    }
}

/// Groups under construction.
struct Grouper<'g, 'a> {
    bucket_catalog: &'g BucketCatalog,
    collection: [u8; 16],
    indexes: &'g IndexMaintainer<'g>,
    groups: Vec<SeriesGroup<'a>>,
    /// Measurements in the order given, each with the index of its group.
    measurements: Vec<(usize, Measurement<'a>)>,
    known: HashTable<KnownMeta>,
    raw_stats: RawLookupStats,
    reorderer: MetaReorderer,
    /// Holds what it returns.
    buffer: Vec<u8>,
    /// Indexes into `groups`.
    by_key: HashTable<usize>,
    without_meta: Option<usize>,
    /// Some time is outside of the ordinary range.
    extended: bool,
}

impl<'g, 'a> Grouper<'g, 'a> {
    fn new(
        bucket_catalog: &'g BucketCatalog,
        collection: [u8; 16],
        indexes: &'g IndexMaintainer<'g>,
        meta_names: FieldNames,
        documents: usize,
    ) -> Self {
        let series = documents.min(SERIES_EXPECTED_MAX);
        Self {
            bucket_catalog,
            collection,
            indexes,
            groups: Vec::new(),
            measurements: Vec::with_capacity(documents),
            known: HashTable::with_capacity(series),
            raw_stats: RawLookupStats::default(),
            reorderer: MetaReorderer::new(meta_names),
            buffer: Vec::new(),
            by_key: HashTable::with_capacity(series),
            without_meta: None,
            extended: false,
        }
    }

    /// Adds a measurement to the group of its series.
    fn add(&mut self, meta: Option<Element<'a>>, measurement: Measurement<'a>) -> Result<()> {
        let at = match (meta, self.without_meta) {
            (Some(meta), _) => self.group_of_meta(meta)?,
            (None, Some(at)) => at,
            (None, None) => {
                let at = self.group_of(self.key(SeriesMeta::absent()));
                *self.without_meta.insert(at)
            }
        };
        let group = &mut self.groups[at];
        if let Some(error) = &group.rejection {
            return Err(error.clone());
        }
        group.count += 1;
        self.extended |= !in_ordinary_range(measurement.time_ms);
        self.measurements.push((at, measurement));
        Ok(())
    }

    /// Returns the groups with their measurements, in the order given.
    fn finish(self) -> Vec<SeriesGroup<'a>> {
        let mut groups = self.groups;
        for group in &mut groups {
            group.measurements.reserve_exact(group.count);
        }
        for (at, measurement) in self.measurements {
            groups[at].measurements.push(measurement);
        }
        groups
    }

    fn key(&self, meta: SeriesMeta) -> Arc<SeriesKey> {
        self.bucket_catalog.series_key(self.collection, meta)
    }

    /// Returns the group of metadata.
    fn group_of_meta(&mut self, meta: Element<'a>) -> Result<usize> {
        let ValueRef::Document(document) = meta.value() else {
            refuse_column(meta)?;
            return Ok(self.group_of(self.key(SeriesMeta::of_element(Some(meta)))));
        };
        let sent = document.as_bytes();
        let try_sent = self.raw_stats.are_worthwhile();
        let hash_sent = try_sent.then(|| self.hash(sent));
        if let Some(group) = hash_sent.and_then(|hash| self.find(hash, sent)) {
            self.raw_stats.lookups += 1;
            self.raw_stats.hits += 1;
            return Ok(group);
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        let reordered = self.reorderer.reorder(document, &mut buffer);
        let hash = self.hash(reordered);
        let group = match self.find(hash, reordered) {
            Some(group) => {
                self.raw_stats.lookups += 1;
                group
            }
            None => {
                refuse_column(meta)?;
                let group = self.group_of(self.key(SeriesMeta::of_element(Some(meta))));
                self.learn(hash, reordered, group);
                group
            }
        };
        if let Some(hash_sent) = hash_sent.filter(|hash_sent| *hash_sent != hash) {
            self.learn(hash_sent, sent, group);
        }
        self.buffer = buffer;
        Ok(group)
    }

    fn hash(&self, meta: &[u8]) -> u64 {
        let cache = self.bucket_catalog.series_cache();
        cache.hash(self.collection, meta)
    }

    /// Returns the group of metadata with these bytes, if this command or the series cache knows them.
    fn find(&mut self, hash: u64, meta: &[u8]) -> Option<usize> {
        let is_it = |known: &KnownMeta| *known.cached.meta == *meta;
        if let Some(known) = self.known.find(hash, is_it) {
            return Some(known.group);
        }
        let cache = self.bucket_catalog.series_cache();
        let cached = cache.get(hash, self.collection, meta)?;
        let group = self.group_of(cached.key.clone());
        self.add_known(KnownMeta { cached, group });
        Some(group)
    }

    /// Adds metadata with these bytes to this command and to the series cache.
    fn learn(&mut self, hash: u64, meta: &[u8], group: usize) {
        let key = self.groups[group].key.clone();
        let meta = meta.into();
        let cached = CachedSeries { hash, meta, key };
        self.bucket_catalog.series_cache().put(cached.clone());
        self.add_known(KnownMeta { cached, group });
    }

    fn add_known(&mut self, known: KnownMeta) {
        let hash = |known: &KnownMeta| known.cached.hash;
        self.known.insert_unique(known.cached.hash, known, hash);
    }

    /// Returns the group of a series; adds it if there is none.
    fn group_of(&mut self, key: Arc<SeriesKey>) -> usize {
        let groups = &mut self.groups;
        let is_it = |at: &usize| groups[*at].key == key;
        if let Some(at) = self.by_key.find(key.hash(), is_it) {
            return *at;
        }
        let next = groups.len();
        self.by_key
            .insert_unique(key.hash(), next, |at| groups[*at].key.hash());
        let rejection = self.indexes.check_meta(&key).err();
        groups.push(SeriesGroup {
            key,
            rejection,
            count: 0,
            measurements: Vec::new(),
        });
        next
    }
}

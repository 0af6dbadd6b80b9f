//! Grouping the documents of an insert by series.
//!
//! ```text
//! document ─► time? metadata? ─► same bytes in this command? ─ no ─► in the series cache? ─ no ─► normalise, find the series
//!                                        │ yes                             │ yes                        │
//!                                        └──────────────► group ◄──────────┴────────────────────────────┘
//! ```
//!
//! Metadata is looked up by the bytes that were sent. A client that sends its fields in another order each time misses
//! there; once misses are frequent, metadata is put in the order of its names first ([`super::normalize_meta`]) and looked up
//! by that. Documents are taken in blocks, so that the cache lines of a whole block are fetched at once.

use std::sync::Arc;

use hashbrown::HashTable;
use nilometer_bson::{DocRef, Element, ValueRef};

use super::normalize_meta::{MetaNormalizer, NormalizedMeta};
use super::statement::InsertStatement;
use crate::error::{Error, Result};
use crate::insertion::{InsertOutcome, WriteError};
use crate::timeseries::bucket_catalog::field_scanner::{FieldScanner, refuse_column};
use crate::timeseries::bucket_catalog::{
    BucketCatalog, FieldLayout, FieldNames, Measurement, SeriesCacheReader, SeriesKey,
};
use crate::timeseries::format::key_range::in_ordinary_range;
use crate::timeseries::format::series_key::SeriesMeta;
use crate::timeseries::index::maintenance::IndexMaintainer;

/// After this many lookups by bytes as sent, their rate of hits is judged …
const RAW_LOOKUPS_MIN: usize = 64;

/// … and must have at most one miss in this many.
const RAW_LOOKUPS_PER_MISS: usize = 4;

/// Series of a command to reserve memory for.
const SERIES_EXPECTED_MAX: usize = 4096;

/// Documents that are looked up together.
const BLOCK: usize = 32;

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
    let ordered = insert.options.ordered;
    let mut outcome = InsertOutcome::default();
    let (expected, _) = documents.size_hint();
    let (catalog, uuid) = (&insert.timeseries.bucket_catalog, collection.uuid);
    let names = catalog.names(uuid);
    let mut grouper = Grouper::new(catalog, uuid, indexes, names.meta, expected);
    let mut scanner = FieldScanner::new(timeseries, names.fields);
    let mut block = Vec::with_capacity(BLOCK);
    for (index, document) in documents.enumerate() {
        let scanned = scanner.examine(document);
        if index == 0 {
            scanner.layout.reserve(expected);
        }
        let checked = scanned.and_then(|scanned| {
            indexes.check_measurement(document)?;
            Ok(scanned)
        });
        match checked {
            Ok((meta, mut measurement)) => {
                measurement.index = index;
                block.push(ParsedMeasurement {
                    meta,
                    measurement,
                    lookup: MetaLookup::Value,
                });
            }
            Err(error) => {
                // The documents before it come first.
                grouper.add_block(&mut block, &mut outcome, ordered);
                if !ordered || outcome.errors.is_empty() {
                    outcome.errors.push(WriteError { index, error });
                }
            }
        }
        if block.len() == BLOCK {
            grouper.add_block(&mut block, &mut outcome, ordered);
        }
        if ordered && !outcome.errors.is_empty() {
            break;
        }
    }
    grouper.add_block(&mut block, &mut outcome, ordered);
    catalog.store_names(uuid, |known| &mut known.meta, grouper.normalizer.names());
    if grouper.extended {
        insert.catalog.mark_extended_range(collection)?;
    }
    Ok(GroupedMeasurements {
        groups: grouper.finish(),
        layout: scanner.layout,
        outcome,
    })
}

/// A measurement whose series is not known yet.
struct ParsedMeasurement<'a> {
    meta: Option<Element<'a>>,
    measurement: Measurement<'a>,
    lookup: MetaLookup,
}

/// How metadata is looked up.
enum MetaLookup {
    /// By the bytes that were sent; this is their hash.
    Bytes(u64),
    /// By its normalised bytes; `None` if only [`SeriesMeta`] can normalise it.
    Normalized(Option<NormalizedLookup>),
    /// By value: it is not a document.
    Value,
}

/// Normalised metadata, and its series if the cache has it.
struct NormalizedLookup {
    meta: NormalizedMeta,
    /// Of its bytes.
    hash: u64,
    cached: Option<CachedMatch>,
}

/// A hit in the series cache.
struct CachedMatch {
    series: SeriesRef,
    /// The fields came in the same order the last time.
    same_order: bool,
}

enum SeriesRef {
    /// It has a group.
    Group(usize),
    /// It is new in this command.
    Key(Arc<SeriesKey>),
}

/// Metadata as it was sent, and its group.
struct RawMeta<'a> {
    hash: u64,
    bytes: &'a [u8],
    group: usize,
}

/// Lookups by bytes as sent, and how many were hits.
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
    catalog: &'g BucketCatalog,
    collection: [u8; 16],
    indexes: &'g IndexMaintainer<'g>,
    groups: Vec<SeriesGroup<'a>>,
    /// Measurements in the order given, each with the index of its group.
    measurements: Vec<(usize, Measurement<'a>)>,
    raws: Vec<RawMeta<'a>>,
    /// Indexes into `raws`.
    by_raw: HashTable<usize>,
    raw_stats: RawLookupStats,
    /// Holds the normalised metadata of the current block.
    normalizer: MetaNormalizer,
    /// Indexes into `groups`.
    by_key: HashTable<usize>,
    without_meta: Option<usize>,
    /// Some time is outside of the ordinary range.
    extended: bool,
}

impl<'g, 'a> Grouper<'g, 'a> {
    fn new(
        catalog: &'g BucketCatalog,
        collection: [u8; 16],
        indexes: &'g IndexMaintainer<'g>,
        meta_names: FieldNames,
        documents: usize,
    ) -> Self {
        Self {
            catalog,
            collection,
            indexes,
            groups: Vec::new(),
            measurements: Vec::with_capacity(documents),
            raws: Vec::new(),
            by_raw: HashTable::with_capacity(documents.min(SERIES_EXPECTED_MAX)),
            raw_stats: RawLookupStats::default(),
            normalizer: MetaNormalizer::new(meta_names),
            by_key: HashTable::with_capacity(documents.min(SERIES_EXPECTED_MAX)),
            without_meta: None,
            extended: false,
        }
    }

    /// Adds the measurements of a block and empties it; where order matters, up to the first that is refused.
    fn add_block(
        &mut self,
        block: &mut Vec<ParsedMeasurement<'a>>,
        outcome: &mut InsertOutcome,
        ordered: bool,
    ) {
        if block.is_empty() {
            return;
        }
        self.look_up_block(block);
        for parsed in block.drain(..) {
            let (index, time_ms) = (parsed.measurement.index, parsed.measurement.time_ms);
            match self.add(parsed) {
                Ok(()) => {
                    self.extended |= !in_ordinary_range(time_ms);
                    outcome.inserted += 1;
                }
                Err(error) => {
                    outcome.errors.push(WriteError { index, error });
                    if ordered {
                        break;
                    }
                }
            }
        }
    }

    /// Hashes the metadata of a block and prefetches its entries of the series cache, all at once: one after the other, each
    /// would wait for memory.
    fn look_up_block(&mut self, block: &mut [ParsedMeasurement<'a>]) {
        self.normalizer.clear();
        let cache = self.catalog.series_cache();
        let use_raw = self.raw_stats.are_worthwhile();
        let mut hashes = [None; BLOCK];
        for (parsed, wanted) in block.iter_mut().zip(&mut hashes) {
            let Some(ValueRef::Document(document)) = parsed.meta.map(|meta| meta.value()) else {
                continue;
            };
            parsed.lookup = if use_raw {
                let hash = cache.hash(self.collection, document.as_bytes());
                *wanted = Some(hash);
                MetaLookup::Bytes(hash)
            } else {
                let normalized = self.normalize(document, parsed.measurement.document);
                *wanted = normalized.as_ref().map(|normalized| normalized.hash);
                MetaLookup::Normalized(normalized)
            };
        }
        let cached = cache.read();
        cached.prefetch(&hashes);
        for parsed in block {
            if let MetaLookup::Normalized(Some(normalized)) = &mut parsed.lookup {
                normalized.cached = self.find_normalized(&cached, normalized);
            }
        }
    }

    /// Adds a measurement to the group of its series.
    fn add(&mut self, parsed: ParsedMeasurement<'a>) -> Result<()> {
        let ParsedMeasurement {
            meta,
            measurement,
            lookup,
        } = parsed;
        let at = match meta {
            Some(element) => match (element.value(), lookup) {
                (ValueRef::Document(document), MetaLookup::Bytes(hash)) => {
                    self.group_by_bytes(element, (document, measurement.document), hash)?
                }
                (ValueRef::Document(document), MetaLookup::Normalized(normalized)) => {
                    self.raw_stats.lookups += 1;
                    self.group_by_normalized(element, document, normalized)?
                }
                _ => {
                    refuse_column(element)?;
                    self.group_of(self.key(SeriesMeta::of_element(meta)))
                }
            },
            None => match self.without_meta {
                Some(at) => at,
                None => {
                    let at = self.group_of(self.key(SeriesMeta::absent()));
                    *self.without_meta.insert(at)
                }
            },
        };
        let group = &mut self.groups[at];
        if let Some(error) = &group.rejection {
            return Err(error.clone());
        }
        group.count += 1;
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
        self.catalog.series_key(self.collection, meta)
    }

    /// Normalises metadata; `document` is the measurement that holds it.
    fn normalize(&mut self, meta: DocRef<'_>, document: DocRef<'_>) -> Option<NormalizedLookup> {
        let onward = document.bytes_from(meta).unwrap_or_default();
        let meta = self.normalizer.add(meta, onward)?;
        let (cache, bytes) = (self.catalog.series_cache(), self.normalizer.bytes(&meta));
        Some(NormalizedLookup {
            hash: cache.hash_normalized(self.collection, bytes),
            meta,
            cached: None,
        })
    }

    fn find_normalized(
        &self,
        cache: &SeriesCacheReader<'_>,
        lookup: &NormalizedLookup,
    ) -> Option<CachedMatch> {
        let NormalizedLookup { meta, hash, .. } = lookup;
        let bytes = self.normalizer.bytes(meta);
        let found = cache.get_normalized(*hash, self.collection, bytes, meta.field_order);
        found.map(|(key, same_order)| CachedMatch {
            series: match self.find_group(key) {
                Some(at) => SeriesRef::Group(at),
                None => SeriesRef::Key(key.clone()),
            },
            same_order,
        })
    }

    /// Returns the group of metadata that is a document, found by its bytes, which have this hash: in this command, in the
    /// series cache, and at last normalised.
    fn group_by_bytes(
        &mut self,
        meta: Element<'a>,
        (document, within): (DocRef<'a>, DocRef<'a>),
        hash: u64,
    ) -> Result<usize> {
        let (cache, bytes) = (self.catalog.series_cache(), document.as_bytes());
        self.raw_stats.lookups += 1;
        let raws = &self.raws;
        if let Some(&at) = self.by_raw.find(hash, |at| raws[*at].bytes == bytes) {
            self.raw_stats.hits += 1;
            return Ok(raws[at].group);
        }
        let cached = cache.read().get(hash, self.collection, bytes);
        let group = match cached {
            Some(key) => {
                self.raw_stats.hits += 1;
                self.group_of(key)
            }
            None => {
                let normalized = self.normalize(document, within);
                self.group_by_normalized(meta, document, normalized)?
            }
        };
        let raws = &mut self.raws;
        self.by_raw
            .insert_unique(hash, raws.len(), |at| raws[*at].hash);
        raws.push(RawMeta { hash, bytes, group });
        Ok(group)
    }

    /// Returns the group of metadata that is a document, found by its normalised bytes. Metadata that comes in the same order
    /// as the last time is added to the cache by its bytes as sent.
    fn group_by_normalized(
        &mut self,
        meta: Element<'a>,
        document: DocRef<'a>,
        mut normalized: Option<NormalizedLookup>,
    ) -> Result<usize> {
        let cache = self.catalog.series_cache();
        if let Some(lookup) = &mut normalized {
            // A miss may have been added since the block was looked up.
            let cached = lookup.cached.take();
            let cached = cached.or_else(|| self.find_normalized(&cache.read(), lookup));
            if let Some(CachedMatch { series, same_order }) = cached {
                let at = match series {
                    SeriesRef::Group(at) => at,
                    SeriesRef::Key(key) => self.group_of(key),
                };
                if same_order {
                    self.raw_stats.hits += 1;
                    let bytes = document.as_bytes();
                    let hash = cache.hash(self.collection, bytes);
                    cache.put(hash, bytes, self.groups[at].key.clone());
                }
                return Ok(at);
            }
        }
        refuse_column(meta)?;
        let key = self.key(SeriesMeta::of_element(Some(meta)));
        if let Some(NormalizedLookup { meta, hash, .. }) = normalized {
            cache.put_normalized(hash, meta.field_order, key.clone());
        }
        Ok(self.group_of(key))
    }

    /// Returns the group of a series, if there is one.
    fn find_group(&self, key: &Arc<SeriesKey>) -> Option<usize> {
        let is_it = |at: &usize| self.groups[*at].key == *key;
        self.by_key.find(key.hash(), is_it).copied()
    }

    /// Returns the group of a series; adds it if there is none.
    fn group_of(&mut self, key: Arc<SeriesKey>) -> usize {
        if let Some(at) = self.find_group(&key) {
            return at;
        }
        let groups = &mut self.groups;
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

//! Measurements of an insert by series.
//!
//! ```text
//! document ─► time? metadata? ─► bytes met in this command? ── no ─► remembered, as it is or in order? ── no ─► normalise
//!                                        │ yes                              │ yes                          │
//!                                        └────────────► group ◄─────────────┴──────── series ◄─────────────┘
//! ```

use std::sync::Arc;

use hashbrown::HashTable;
use nilometer_bson::{DocRef, Element, ValueRef};

use super::field_scanner::{Walker, refuse_column};
use super::in_ordinary_range;
use super::normalize_meta::{InOrder, NormalOrder};
use crate::catalog::{Catalog, Collection};
use crate::error::{Error, Result};
use crate::insertion::{InsertOptions, InsertOutcome, WriteError};
use crate::timeseries::Timeseries;
use crate::timeseries::bucket_catalog::{
    BucketCatalog, KnownAliases, Measurement, Names, Plan, SeriesKey,
};
use crate::timeseries::format::series_key::SeriesMeta;
use crate::timeseries::index::maintenance::Maintained;

/// After so many looks at metadata as bytes it is decided whether that is worth while …
const RAW_LOOKS_MIN: usize = 64;

/// … which it is if of so many all but one find something.
const RAW_LOOKS_FOR_A_MISS: usize = 4;

/// The measurements of one series.
pub(crate) struct Group<'a> {
    pub(crate) key: Arc<SeriesKey>,
    /// Why an index does not take the metadata.
    refused: Option<Error>,
    /// Measurements it is to have.
    count: usize,
    pub(crate) measurements: Vec<Measurement<'a>>,
}

/// Series of a command that room is made for beforehand.
const SERIES_EXPECTED_MAX: usize = 4096;

/// Documents that are looked at together.
const BLOCK: usize = 32;

/// A document that was looked at.
struct Examined<'a> {
    meta: Option<Element<'a>>,
    measurement: Measurement<'a>,
    looked_for: LookedFor,
}

/// What metadata is looked for by.
enum LookedFor {
    /// A hash of its bytes.
    Bytes(u64),
    /// Its bytes when in order, where that is simple.
    InOrder(Option<Ordered>),
    /// It is no document.
    Value,
}

/// Metadata in order.
struct Ordered {
    place: InOrder,
    /// Of its bytes.
    hash: u64,
    /// What is remembered of it.
    known: Option<Known>,
}

/// The series of metadata that was met before.
struct Known {
    series: KnownSeries,
    /// It came in the same order the last time.
    as_before: bool,
}

enum KnownSeries {
    /// That of a group.
    Group(usize),
    /// One that is new in this command.
    Key(Arc<SeriesKey>),
}

/// The documents of an insert by series, and what became of those that are none.
pub(crate) struct Grouped<'a> {
    pub(crate) groups: Vec<Group<'a>>,
    /// The fields of their measurements.
    pub(crate) plan: Plan,
    pub(crate) outcome: InsertOutcome,
}

/// Metadata as it was sent, and the group it belongs to.
struct Raw<'a> {
    hash: u64,
    bytes: &'a [u8],
    group: usize,
}

/// How often metadata was looked for as bytes, and how often that was found.
#[derive(Default)]
struct RawLooks {
    looks: usize,
    finds: usize,
}

impl RawLooks {
    /// True if metadata mostly comes as the same bytes again; clients that send its fields in another order
    /// each time need no table of bytes.
    fn pay(&self) -> bool {
        let misses = self.looks - self.finds;
        self.looks < RAW_LOOKS_MIN || misses * RAW_LOOKS_FOR_A_MISS <= self.looks
    }
}

/// Groups by series; the bytes of the metadata are looked up first, so that a series is found once.
struct Groups<'g, 'a> {
    catalog: &'g BucketCatalog,
    collection: [u8; 16],
    indexes: &'g Maintained<'g>,
    groups: Vec<Group<'a>>,
    /// Measurements, each with the place of its group, in the order given.
    members: Vec<(usize, Measurement<'a>)>,
    raws: Vec<Raw<'a>>,
    /// Places in `raws`.
    by_raw: HashTable<usize>,
    raw_looks: RawLooks,
    /// Puts metadata in order; it holds that of the documents that are looked at now.
    order: NormalOrder,
    /// Places in `groups`.
    by_key: HashTable<usize>,
    without_meta: Option<usize>,
    /// Some time is outside of what an ordinary collection holds.
    extended: bool,
}

impl<'g, 'a> Groups<'g, 'a> {
    fn new(
        catalog: &'g BucketCatalog,
        collection: [u8; 16],
        indexes: &'g Maintained<'g>,
        meta_names: Names,
        documents: usize,
    ) -> Self {
        Self {
            catalog,
            collection,
            indexes,
            groups: Vec::new(),
            members: Vec::with_capacity(documents),
            raws: Vec::new(),
            by_raw: HashTable::with_capacity(documents.min(SERIES_EXPECTED_MAX)),
            raw_looks: RawLooks::default(),
            order: NormalOrder::new(meta_names),
            by_key: HashTable::with_capacity(documents.min(SERIES_EXPECTED_MAX)),
            without_meta: None,
            extended: false,
        }
    }

    /// Looks at a block of documents. What their metadata is looked for with is brought near first, for all of them: one
    /// after the other each would wait for memory.
    fn prepare(&mut self, block: &mut [Examined<'a>]) {
        self.order.clear();
        let aliases = self.catalog.aliases();
        let pays = self.raw_looks.pay();
        let mut wanted = [None; BLOCK];
        for (examined, wanted) in block.iter_mut().zip(&mut wanted) {
            let Some(ValueRef::Document(document)) = examined.meta.map(|meta| meta.value()) else {
                continue;
            };
            examined.looked_for = if pays {
                let hash = aliases.hash(self.collection, document.as_bytes());
                *wanted = Some(hash);
                LookedFor::Bytes(hash)
            } else {
                let ordered = self.in_order(document, examined.measurement.document);
                *wanted = ordered.as_ref().map(|ordered| ordered.hash);
                LookedFor::InOrder(ordered)
            };
        }
        let known = aliases.read();
        known.bring_near(&wanted);
        for examined in block {
            if let LookedFor::InOrder(Some(ordered)) = &mut examined.looked_for {
                ordered.known = self.known_in_order(&known, ordered);
            }
        }
    }

    fn add(&mut self, examined: Examined<'a>) -> Result<()> {
        let Examined {
            meta,
            measurement,
            looked_for,
        } = examined;
        let at = match meta {
            Some(element) => match (element.value(), looked_for) {
                (ValueRef::Document(document), LookedFor::Bytes(hash)) => {
                    self.of_bytes(element, (document, measurement.document), hash)?
                }
                (ValueRef::Document(document), LookedFor::InOrder(ordered)) => {
                    self.raw_looks.looks += 1;
                    self.of_fields(element, document, ordered)?
                }
                _ => {
                    refuse_column(element)?;
                    self.find(self.key(SeriesMeta::of_element(meta)))
                }
            },
            None => match self.without_meta {
                Some(at) => at,
                None => {
                    let at = self.find(self.key(SeriesMeta::absent()));
                    *self.without_meta.insert(at)
                }
            },
        };
        if let Some(group) = self.groups.get_mut(at) {
            if let Some(error) = &group.refused {
                return Err(error.clone());
            }
            group.count += 1;
            self.members.push((at, measurement));
        }
        Ok(())
    }

    /// Adds the documents of a block and empties it; where order matters, up to the first that is refused.
    fn add_block(
        &mut self,
        block: &mut Vec<Examined<'a>>,
        outcome: &mut InsertOutcome,
        ordered: bool,
    ) {
        if block.is_empty() {
            return;
        }
        self.prepare(block);
        for examined in block.drain(..) {
            let (index, time_ms) = (examined.measurement.index, examined.measurement.time_ms);
            match self.add(examined) {
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

    /// The groups with their measurements, in the order given.
    fn finish(self) -> Vec<Group<'a>> {
        let mut groups = self.groups;
        for group in &mut groups {
            group.measurements.reserve_exact(group.count);
        }
        for (at, measurement) in self.members {
            if let Some(group) = groups.get_mut(at) {
                group.measurements.push(measurement);
            }
        }
        groups
    }

    fn key(&self, meta: SeriesMeta) -> Arc<SeriesKey> {
        self.catalog.series_key(self.collection, meta)
    }

    /// Metadata in order; `within` is the document it is in.
    fn in_order(&mut self, meta: DocRef<'_>, within: DocRef<'_>) -> Option<Ordered> {
        let onward = within.bytes_from(meta).unwrap_or_default();
        let place = self.order.add(meta, onward)?;
        let (aliases, bytes) = (self.catalog.aliases(), self.order.bytes(&place));
        Some(Ordered {
            hash: aliases.hash_in_order(self.collection, bytes),
            place,
            known: None,
        })
    }

    fn known_in_order(&self, aliases: &KnownAliases<'_>, ordered: &Ordered) -> Option<Known> {
        let Ordered { place, hash, .. } = ordered;
        let bytes = self.order.bytes(place);
        let found = aliases.get_in_order(*hash, self.collection, bytes, place.sent_as);
        found.map(|(key, as_before)| Known {
            series: match self.group_of(key) {
                Some(at) => KnownSeries::Group(at),
                None => KnownSeries::Key(key.clone()),
            },
            as_before,
        })
    }

    /// The group of metadata that is a document, by its bytes as they are, which have this hash; then by those in order, and at last by what it is when normalised.
    fn of_bytes(
        &mut self,
        meta: Element<'a>,
        (document, within): (DocRef<'a>, DocRef<'a>),
        hash: u64,
    ) -> Result<usize> {
        let (aliases, bytes) = (self.catalog.aliases(), document.as_bytes());
        self.raw_looks.looks += 1;
        let is_it = |at: &usize| self.raws.get(*at).is_some_and(|raw| raw.bytes == bytes);
        if let Some(raw) = self
            .by_raw
            .find(hash, is_it)
            .and_then(|at| self.raws.get(*at))
        {
            self.raw_looks.finds += 1;
            return Ok(raw.group);
        }
        let known = aliases.read().get(hash, self.collection, bytes);
        let group = match known {
            Some(key) => {
                self.raw_looks.finds += 1;
                self.find(key)
            }
            None => {
                let ordered = self.in_order(document, within);
                self.of_fields(meta, document, ordered)?
            }
        };
        let raws = &mut self.raws;
        let hash_at = |at: &usize| raws.get(*at).map_or(0, |raw| raw.hash);
        self.by_raw.insert_unique(hash, raws.len(), hash_at);
        raws.push(Raw { hash, bytes, group });
        Ok(group)
    }

    /// The group of metadata that is a document, by its bytes when in order. Where it comes in the same order as the last
    /// time, it is looked for by its bytes as they are from then on.
    fn of_fields(
        &mut self,
        meta: Element<'a>,
        document: DocRef<'a>,
        mut ordered: Option<Ordered>,
    ) -> Result<usize> {
        let aliases = self.catalog.aliases();
        if let Some(ordered) = &mut ordered {
            // What was not remembered may have come a moment ago.
            let known = ordered.known.take();
            let known = known.or_else(|| self.known_in_order(&aliases.read(), ordered));
            if let Some(Known { series, as_before }) = known {
                let at = match series {
                    KnownSeries::Group(at) => at,
                    KnownSeries::Key(key) => self.find(key),
                };
                if as_before && let Some(group) = self.groups.get(at) {
                    self.raw_looks.finds += 1;
                    let bytes = document.as_bytes();
                    let hash = aliases.hash(self.collection, bytes);
                    aliases.put(hash, bytes, group.key.clone());
                }
                return Ok(at);
            }
        }
        refuse_column(meta)?;
        let key = self.key(SeriesMeta::of_element(Some(meta)));
        if let Some(Ordered { place, hash, .. }) = ordered {
            aliases.put_in_order(hash, place.sent_as, key.clone());
        }
        Ok(self.find(key))
    }

    /// The group of a series, if there is one.
    fn group_of(&self, key: &Arc<SeriesKey>) -> Option<usize> {
        let is_it = |at: &usize| self.groups.get(*at).is_some_and(|group| group.key == *key);
        self.by_key.find(key.hash(), is_it).copied()
    }

    /// The group of a series, which is made if there is none.
    fn find(&mut self, key: Arc<SeriesKey>) -> usize {
        if let Some(at) = self.group_of(&key) {
            return at;
        }
        let groups = &mut self.groups;
        let next = groups.len();
        let hash_at = |at: &usize| groups.get(*at).map_or(0, |group| group.key.hash());
        self.by_key.insert_unique(key.hash(), next, hash_at);
        let refused = self.indexes.check_meta(&key).err();
        groups.push(Group {
            key,
            refused,
            count: 0,
            measurements: Vec::new(),
        });
        next
    }
}

impl Timeseries {
    /// Looks at the documents and groups them by series.
    pub(crate) fn group<'a>(
        &self,
        catalog: &Catalog,
        collection: &Arc<Collection>,
        indexes: &Maintained<'_>,
        documents: impl Iterator<Item = DocRef<'a>>,
        options: InsertOptions<'_>,
    ) -> Result<Grouped<'a>> {
        let Some(timeseries) = &collection.timeseries else {
            return Err(Error::bad_value("not a time-series collection"));
        };
        let mut outcome = InsertOutcome::default();
        let (expected, _) = documents.size_hint();
        let (buckets, uuid) = (&self.bucket_catalog, collection.uuid);
        let names = buckets.names(uuid);
        let mut groups = Groups::new(buckets, uuid, indexes, names.meta, expected);
        let mut walker = Walker::new(timeseries, names.fields);
        let mut block = Vec::with_capacity(BLOCK);
        for (index, document) in documents.enumerate() {
            let examined = walker.examine(document);
            if index == 0 {
                walker.plan.reserve(expected);
            }
            let checked = examined.and_then(|examined| {
                indexes.check_measurement(document)?;
                Ok(examined)
            });
            match checked {
                Ok((meta, mut measurement)) => {
                    measurement.index = index;
                    block.push(Examined {
                        meta,
                        measurement,
                        looked_for: LookedFor::Value,
                    });
                }
                Err(error) => {
                    // Those before it have their turn first.
                    groups.add_block(&mut block, &mut outcome, options.ordered);
                    if !options.ordered || outcome.errors.is_empty() {
                        outcome.errors.push(WriteError { index, error });
                    }
                }
            }
            if block.len() == BLOCK {
                groups.add_block(&mut block, &mut outcome, options.ordered);
            }
            if options.ordered && !outcome.errors.is_empty() {
                break;
            }
        }
        groups.add_block(&mut block, &mut outcome, options.ordered);
        buckets.keep_names(uuid, |known| &mut known.meta, groups.order.names());
        if groups.extended {
            catalog.mark_extended_range(collection)?;
        }
        Ok(Grouped {
            groups: groups.finish(),
            plan: walker.plan,
            outcome,
        })
    }
}

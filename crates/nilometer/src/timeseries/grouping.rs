//! Measurements of an insert by series.
//!
//! ```text
//! document ─► time? metadata? ─► bytes met in this command? ── no ─► bytes or fields remembered? ── no ─► normalise
//!                                        │ yes                              │ yes                          │
//!                                        └────────────► group ◄─────────────┴──────── series ◄─────────────┘
//! ```

use std::sync::Arc;

use hashbrown::HashTable;
use nilometer_bson::document::Elements;
use nilometer_bson::{DocRef, Element, ValueRef, type_code};

use super::Timeseries;
use super::bucket_catalog::{BucketCatalog, Measurement, SeriesKey};
use super::bucket_document::COLUMN_SUBTYPE;
use super::index_maintenance::Maintained;
use super::insert::in_ordinary_range;
use super::meta::SeriesMeta;
use crate::catalog::{Catalog, Collection, TimeseriesOptions};
use crate::error::{Error, ErrorCode, Result};
use crate::insertion::{InsertOptions, InsertOutcome, WriteError};

/// The largest bucket document, in bytes: the largest BSON document.
const BUCKET_BYTES_MAX: usize = 16 << 20;

/// Fields of a measurement that are remembered for the next.
const SHAPE_FIELDS_MAX: usize = 256;

/// After so many looks at metadata as bytes it is decided whether that is worth while …
const RAW_LOOKS_MIN: usize = 64;

/// … which it is if one of so many finds something.
const RAW_LOOKS_FOR_A_FIND: usize = 4;

/// The measurements of one series.
pub(super) struct Group<'a> {
    pub(super) key: Arc<SeriesKey>,
    /// Why an index does not take the metadata.
    refused: Option<Error>,
    pub(super) measurements: Vec<Measurement<'a>>,
}

/// The documents of an insert by series, and what became of those that are none.
pub(super) struct Grouped<'a> {
    pub(super) groups: Vec<Group<'a>>,
    pub(super) outcome: InsertOutcome,
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
    /// True if metadata comes as the same bytes again; clients that send its fields in another order
    /// each time need no table of bytes.
    fn pay(&self) -> bool {
        self.looks < RAW_LOOKS_MIN || self.finds * RAW_LOOKS_FOR_A_FIND >= self.looks
    }
}

/// Groups by series; the bytes of the metadata are looked up first, so that a series is found once.
struct Groups<'g, 'a> {
    catalog: &'g BucketCatalog,
    collection: [u8; 16],
    indexes: &'g Maintained<'g>,
    groups: Vec<Group<'a>>,
    raws: Vec<Raw<'a>>,
    /// Places in `raws`.
    by_raw: HashTable<usize>,
    raw_looks: RawLooks,
    /// Places in `groups`.
    by_key: HashTable<usize>,
    without_meta: Option<usize>,
}

impl<'g, 'a> Groups<'g, 'a> {
    fn new(catalog: &'g BucketCatalog, collection: [u8; 16], indexes: &'g Maintained<'g>) -> Self {
        Self {
            catalog,
            collection,
            indexes,
            groups: Vec::new(),
            raws: Vec::new(),
            by_raw: HashTable::new(),
            raw_looks: RawLooks::default(),
            by_key: HashTable::new(),
            without_meta: None,
        }
    }

    fn add(&mut self, meta: Option<Element<'a>>, measurement: Measurement<'a>) -> Result<()> {
        let at = match meta {
            Some(element) => match element.value() {
                ValueRef::Document(document) => self.of_document(element, document)?,
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
            group.measurements.push(measurement);
        }
        Ok(())
    }

    fn key(&self, meta: SeriesMeta) -> Arc<SeriesKey> {
        self.catalog.series_key(self.collection, meta)
    }

    /// The group of metadata that is a document: by its bytes, by its fields, by what it is when normalised.
    fn of_document(&mut self, meta: Element<'a>, document: DocRef<'a>) -> Result<usize> {
        if !self.raw_looks.pay() {
            let key = self.key_by_fields(meta, document)?;
            return Ok(self.find(key));
        }
        let bytes = document.as_bytes();
        let aliases = self.catalog.aliases();
        let hash = aliases.hash(self.collection, bytes);
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
        let key = match aliases.get(hash, self.collection, bytes) {
            Some(key) => {
                self.raw_looks.finds += 1;
                key
            }
            None => {
                let key = self.key_by_fields(meta, document)?;
                aliases.put(hash, bytes, key.clone());
                key
            }
        };
        let group = self.find(key);
        let raws = &mut self.raws;
        let hash_at = |at: &usize| raws.get(*at).map_or(0, |raw| raw.hash);
        self.by_raw.insert_unique(hash, raws.len(), hash_at);
        raws.push(Raw { hash, bytes, group });
        Ok(group)
    }

    fn key_by_fields(&self, meta: Element<'a>, document: DocRef<'a>) -> Result<Arc<SeriesKey>> {
        let aliases = self.catalog.aliases();
        let hashes = aliases.hash_fields(self.collection, document);
        let known = hashes
            .as_ref()
            .and_then(|hashes| aliases.get_by_fields(hashes, self.collection, document));
        if let Some(known) = known {
            return Ok(known);
        }
        refuse_column(meta)?;
        let key = self.key(SeriesMeta::of_element(Some(meta)));
        if let Some(hashes) = hashes {
            aliases.put_fields(&hashes, key.clone());
        }
        Ok(key)
    }

    fn find(&mut self, key: Arc<SeriesKey>) -> usize {
        let groups = &mut self.groups;
        let is_it = |at: &usize| groups.get(*at).is_some_and(|group| group.key == key);
        if let Some(&at) = self.by_key.find(key.hash(), is_it) {
            return at;
        }
        let next = groups.len();
        let hash_at = |at: &usize| groups.get(*at).map_or(0, |group| group.key.hash());
        self.by_key.insert_unique(key.hash(), next, hash_at);
        let refused = self.indexes.check_meta(&key).err();
        groups.push(Group {
            key,
            refused,
            measurements: Vec::new(),
        });
        next
    }
}

/// Looks at one document: its time, and the element that names its series.
pub(super) fn examine<'a>(
    document: DocRef<'a>,
    options: &TimeseriesOptions,
) -> Result<(Option<Element<'a>>, Measurement<'a>)> {
    let (meta, measurement) = examine_fields(document, options, &mut Shape::default())?;
    meta.map_or(Ok(()), refuse_column)?;
    Ok((meta, measurement))
}

/// What a field of a measurement is.
#[derive(Clone, Copy)]
enum Role {
    Time,
    Meta,
    Id,
    Other,
}

impl Role {
    fn of(name: &[u8], options: &TimeseriesOptions) -> Self {
        let meta_field = options.meta_field.as_deref();
        match name {
            _ if name == options.time_field.as_bytes() => Self::Time,
            _ if meta_field.is_some_and(|meta| meta.as_bytes() == name) => Self::Meta,
            b"_id" => Self::Id,
            _ => Self::Other,
        }
    }
}

/// The fields of the measurement before, in their order: mostly the next one has the same.
#[derive(Default)]
struct Shape<'a>(Vec<(&'a [u8], Role)>);

impl<'a> Shape<'a> {
    /// The next element, which is the one at `at`, and what it is.
    #[inline]
    fn next(
        &mut self,
        at: usize,
        elements: &mut Elements<'a>,
        options: &TimeseriesOptions,
    ) -> Option<(Element<'a>, Role)> {
        let known = self.0.get(at).copied();
        let expected = known.and_then(|(name, role)| Some((elements.next_named(name)?, role)));
        if expected.is_some() {
            return expected;
        }
        let element = elements.next()?;
        let name = element.name_bytes();
        let role = Role::of(name, options);
        match self.0.get_mut(at) {
            Some(known) => *known = (name, role),
            None if at < SHAPE_FIELDS_MAX => self.0.push((name, role)),
            None => {}
        }
        Some((element, role))
    }
}

/// The same; what the metadata holds is left for a look at the series.
fn examine_fields<'a>(
    document: DocRef<'a>,
    options: &TimeseriesOptions,
    shape: &mut Shape<'a>,
) -> Result<(Option<Element<'a>>, Measurement<'a>)> {
    let (mut time, mut meta, mut has_id) = (None, None, false);
    let mut elements = document.iter();
    let mut at = 0;
    while let Some((element, role)) = shape.next(at, &mut elements, options) {
        at += 1;
        match role {
            Role::Time => time = time.or(Some(element)),
            Role::Meta => {
                meta = meta.or(Some(element));
                continue;
            }
            Role::Id => has_id = true,
            Role::Other => {}
        }
        refuse_column(element)?;
    }
    let Some(ValueRef::DateTime(time_ms)) = time.map(|element| element.value()) else {
        return Err(Error::bad_value(format!(
            "'{}' must be present and contain a valid BSON UTC datetime value",
            options.time_field
        )));
    };
    let meta_bytes = meta.map_or(0, |element| element.value_bytes().len());
    // In a bucket of its own each value stands in data, control.min and control.max.
    let bucket_bytes = (document.as_bytes().len() - meta_bytes) * 3 + meta_bytes;
    if bucket_bytes > BUCKET_BYTES_MAX {
        return Err(Error::new(
            ErrorCode::BSONObjectTooLarge,
            format!(
                "the measurement needs a bucket of {bucket_bytes} bytes; at most {BUCKET_BYTES_MAX} fit"
            ),
        ));
    }
    let measurement = Measurement {
        index: 0,
        time_ms,
        lacks_id: !has_id,
        generated_id: None,
        document,
    };
    Ok((meta, measurement))
}

/// Refuses a value with a compressed column anywhere in it: one cannot be compressed again.
fn refuse_column(element: Element<'_>) -> Result<()> {
    if holds_column(element) {
        return Err(Error::bad_value(
            "a measurement cannot hold binary data of subtype 7, which buckets are made of",
        ));
    }
    Ok(())
}

fn holds_column(element: Element<'_>) -> bool {
    // Most values need no decoding to be told apart.
    match element.type_code() {
        type_code::BINARY => matches!(
            element.value(),
            ValueRef::Binary { subtype, .. } if subtype == COLUMN_SUBTYPE
        ),
        type_code::DOCUMENT | type_code::ARRAY => match element.value() {
            ValueRef::Document(inner) => inner.iter().any(holds_column),
            ValueRef::Array(inner) => inner.as_document().iter().any(holds_column),
            _ => false,
        },
        _ => false,
    }
}

impl Timeseries {
    /// Looks at the documents and groups them by series.
    pub(super) fn group<'a>(
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
        let mut groups = Groups::new(&self.bucket_catalog, collection.uuid, indexes);
        let mut extended = false;
        let mut shape = Shape::default();
        for (index, document) in documents.enumerate() {
            let examined = examine_fields(document, timeseries, &mut shape);
            let added = examined.and_then(|(meta, mut measurement)| {
                measurement.index = index;
                indexes.check_measurement(document)?;
                let time_ms = measurement.time_ms;
                groups.add(meta, measurement)?;
                Ok(time_ms)
            });
            match added {
                Ok(time_ms) => {
                    extended |= !in_ordinary_range(time_ms);
                    outcome.inserted += 1;
                }
                Err(error) => {
                    outcome.errors.push(WriteError { index, error });
                    if options.ordered {
                        break;
                    }
                }
            }
        }
        if extended {
            catalog.mark_extended_range(collection)?;
        }
        Ok(Grouped {
            groups: groups.groups,
            outcome,
        })
    }
}

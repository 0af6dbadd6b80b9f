//! Packing measurements that leave their bucket into new buckets.
//!
//! They are packed series by series in order of time, and a bucket is closed where an open bucket would be: at its span, its
//! count, its size, another schema. Only this statement writes to a packed bucket before the commit; later it may be reopened
//! like any other.

use std::collections::HashMap;

use nilometer_bson::Document;

use super::assemble::{BucketContents, Row};
use super::bucket_changes::BucketChanges;
use crate::catalog::TimeseriesOptions;
use crate::error::{ErrorCode, Result};
use crate::timeseries::Timeseries;
use crate::timeseries::bucket_catalog::BucketLimits;
use crate::timeseries::format::bucket_document::Layout;
use crate::timeseries::format::schema::Schema;
use crate::timeseries::format::series_key::SeriesMeta;

/// Ids to try when one is taken.
const ID_TRIES_MAX: usize = 16;

/// The size at which a bucket of few large measurements is closed: 16 MiB less 4 MiB.
const LARGE_BUCKET_BYTES_MAX: usize = 12 << 20;

/// A measurement that leaves its bucket.
pub(super) struct MovedMeasurement {
    pub(super) meta: SeriesMeta,
    pub(super) time_ms: i64,
    pub(super) document: Document,
}

/// A bucket being packed.
struct PackedBucket<'m> {
    start_ms: i64,
    bytes: usize,
    schemas: HashMap<&'m str, Schema>,
    members: Vec<&'m Document>,
}

/// Adds buckets that hold the measurements; returns their ids.
pub(super) fn pack(
    timeseries: &Timeseries,
    changes: &mut BucketChanges<'_>,
    options: &TimeseriesOptions,
    layout: &Layout<'_>,
    moved: &[MovedMeasurement],
) -> Result<Vec<[u8; 12]>> {
    let limits = timeseries.bucket_catalog.limits();
    let mut series: Vec<(&SeriesMeta, Vec<&MovedMeasurement>)> = Vec::new();
    let mut places: HashMap<&SeriesMeta, usize> = HashMap::new();
    for one in moved {
        let at = *places.entry(&one.meta).or_insert(series.len());
        if at == series.len() {
            series.push((&one.meta, Vec::new()));
        }
        series[at].1.push(one);
    }
    let mut ids = Vec::new();
    for (meta, mut members) in series {
        members.sort_by_key(|one| one.time_ms);
        let mut open: Option<PackedBucket<'_>> = None;
        for one in members {
            if let Some(full) = open.take_if(|open| !open.takes(one, options, limits)) {
                ids.push(full.add(timeseries, changes, options, layout, meta)?);
            }
            let open = open.get_or_insert_with(|| PackedBucket {
                start_ms: options.round_down_ms(one.time_ms),
                bytes: 0,
                schemas: HashMap::new(),
                members: Vec::new(),
            });
            open.push(one, options);
        }
        if let Some(last) = open {
            ids.push(last.add(timeseries, changes, options, layout, meta)?);
        }
    }
    Ok(ids)
}

impl<'m> PackedBucket<'m> {
    fn takes(
        &self,
        one: &MovedMeasurement,
        options: &TimeseriesOptions,
        limits: BucketLimits,
    ) -> bool {
        let bytes = self.bytes + one.document.as_bytes().len();
        let fits = match self.members.len() < limits.count_min {
            // Each value may be stored in data, control.min and control.max.
            true => bytes.saturating_mul(3) <= LARGE_BUCKET_BYTES_MAX,
            false => bytes <= limits.bytes_max,
        };
        options.spans(self.start_ms, one.time_ms)
            && self.members.len() < limits.count_max
            && fits
            && one.document.iter().all(|element| {
                let known = self.schemas.get(element.name());
                known.is_none_or(|known| {
                    known.accepts_scalar(element.type_code()) || known.accepts(element.value())
                })
            })
    }

    fn push(&mut self, one: &'m MovedMeasurement, options: &TimeseriesOptions) {
        self.bytes += one.document.as_bytes().len();
        for element in one.document.iter() {
            if options.meta_field.as_deref() == Some(element.name()) {
                continue;
            }
            match self.schemas.get_mut(element.name()) {
                Some(known) => known.learn(element.value()),
                None => {
                    let schema = Schema::of(element.value());
                    self.schemas.insert(element.name(), schema);
                }
            }
        }
        self.members.push(&one.document);
    }

    fn add(
        self,
        timeseries: &Timeseries,
        changes: &mut BucketChanges<'_>,
        options: &TimeseriesOptions,
        layout: &Layout<'_>,
        meta: &SeriesMeta,
    ) -> Result<[u8; 12]> {
        let rows: Vec<Row<'_>> = self.members.iter().map(|m| Row::New(m.as_ref())).collect();
        let parts = BucketContents {
            bucket: None,
            rows: &rows,
            in_place: false,
            layout,
            meta_field: options.meta_field.as_deref(),
        };
        let mut tries = 0;
        loop {
            let id = timeseries.bucket_catalog.new_bucket_id(self.start_ms);
            let bucket = parts.assemble(id, self.start_ms, meta.value())?;
            match changes.add(bucket.document.as_ref()) {
                Ok(()) => {
                    changes.notes.bucket_image(bucket.document.as_ref());
                    return Ok(id);
                }
                Err(error) if error.code == ErrorCode::DuplicateKey && tries < ID_TRIES_MAX => {
                    tries += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

//! Statements on whole buckets, selected and changed by their metadata alone. No column is read.

use std::sync::Arc;

use nilometer_bson::{Document, DocumentBuilder, ValueRef};
use nilometer_storage::Durability;

use super::bucket_changes::BucketChanges;
use super::search::BucketSearch;
use super::{
    BUCKETS_PER_INTERRUPT_CHECK, CHANGE_BATCH_BUCKETS_MAX, CHANGE_BATCH_BYTES_MAX, DecideSeries,
    MeasurementSelection, SeriesChange, assemble, buckets_of, options_of,
};
use crate::catalog::{Catalog, Collection, TimeseriesOptions};
use crate::error::Result;
use crate::timeseries::Timeseries;
use crate::timeseries::cache::opened_bucket::StoredBucket;
use crate::timeseries::format::series_key::SeriesMeta;
use crate::timeseries::unpack;
use crate::timeseries::unpack::Shown;

/// Changes or removes the buckets that the selection matches, as `decide` says.
pub(super) fn modify(
    timeseries: &Arc<Timeseries>,
    catalog: &Catalog,
    collection: &Arc<Collection>,
    selection: &MeasurementSelection<'_>,
    decide: &mut DecideSeries<'_>,
) -> Result<()> {
    let options = options_of(collection)?;
    let search = BucketSearch::new(collection, options, selection)?;
    let Some(range) = search.range() else {
        return Ok(());
    };
    let mut found = Vec::new();
    let mut read = 0;
    for bucket in buckets_of(timeseries, collection, selection, range)? {
        let bucket = bucket?;
        read += 1;
        if read % BUCKETS_PER_INTERRUPT_CHECK == 0 {
            (selection.check_interrupt)()?;
        }
        if !search.may_match(&bucket, &selection.eval)? {
            continue;
        }
        if selection.dry {
            let count = u64::try_from(bucket.count()).unwrap_or(u64::MAX);
            decide(&meta_document(options, bucket.meta()), count)?;
            continue;
        }
        found.push(bucket.id().0);
        if found.len() >= CHANGE_BATCH_BUCKETS_MAX {
            modify_found(timeseries, catalog, collection, selection, &found, decide)?;
            found.clear();
        }
    }
    modify_found(timeseries, catalog, collection, selection, &found, decide)
}

/// Claims the buckets that were found, and changes those that still match.
fn modify_found(
    timeseries: &Timeseries,
    catalog: &Catalog,
    collection: &Arc<Collection>,
    selection: &MeasurementSelection<'_>,
    found: &[[u8; 12]],
    decide: &mut DecideSeries<'_>,
) -> Result<()> {
    let options = options_of(collection)?;
    let search = BucketSearch::new(collection, options, selection)?;
    (selection.check_interrupt)()?;
    let mut changes = timeseries.change_buckets(collection)?;
    for id in found {
        let Some(document) = changes.claim(*id)? else {
            continue;
        };
        let bucket = StoredBucket::from_document(document.clone(), &options.time_field)?;
        if !search.may_match(&bucket, &selection.eval)? {
            continue;
        }
        let count = u64::try_from(bucket.count()).unwrap_or(u64::MAX);
        match decide(&meta_document(options, bucket.meta()), count)? {
            SeriesChange::Keep => {}
            SeriesChange::Remove => {
                changes.notes.bucket_removed(document.as_ref());
                changes.remove(*id)?;
            }
            SeriesChange::Meta(meta) => {
                let meta = SeriesMeta::of(meta.as_ref()).value().to_value();
                let after = assemble::with_meta(document.as_ref(), &meta);
                note_meta(&mut changes, options, (&document, &after))?;
                changes.replace(*id, after.as_ref())?;
            }
        }
        if changes.bytes() > CHANGE_BATCH_BYTES_MAX {
            changes.commit(catalog, Durability::Buffered)?;
            changes = timeseries.change_buckets(collection)?;
        }
    }
    changes.commit(catalog, Durability::Buffered)
}

/// Notes that the metadata of all measurements of a bucket has changed.
fn note_meta(
    changes: &mut BucketChanges<'_>,
    options: &TimeseriesOptions,
    (before, after): (&Document, &Document),
) -> Result<()> {
    if !changes.notes.are_kept() {
        return Ok(());
    }
    let shown = Shown::new(&options.time_field, options.meta_field.as_deref());
    let [before, after] =
        [before, after].map(|bucket| unpack::measurements(bucket.as_ref(), &shown, |_| true));
    for (before, after) in before?.iter().zip(&after?) {
        changes
            .notes
            .measurement_updated(before.as_ref(), after.as_ref());
    }
    Ok(())
}

/// A document with only the metadata, under its name.
fn meta_document(options: &TimeseriesOptions, meta: ValueRef<'_>) -> Document {
    let mut out = DocumentBuilder::new();
    if let Some(name) = &options.meta_field {
        out.append_ref(name, meta);
    }
    out.finish()
}

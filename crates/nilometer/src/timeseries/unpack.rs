//! Measurements of a bucket document, for stages that unpack buckets read as documents.
//!
//! Queries on a time-series collection read columns instead. This module reads one document as given, and fails on anything
//! that is not a bucket.

use std::sync::Arc;

use nilometer_bson::{DocRef, Document, DocumentBuilder, Value, ValueRef};

use super::format::bucket_document::BucketDocument;
use crate::error::{Error, Result, location};

/// The fields of the measurements, and their names.
pub struct Shown<'s> {
    /// Name of the time field.
    pub time_field: &'s str,
    /// Name of the metadata field.
    pub meta_field: Option<&'s str>,
    /// Fields of the bucket document copied into each measurement.
    pub copied: &'s [Arc<str>],
}

/// Returns the measurements of a bucket document, with the fields that `shows` accepts: the time, the metadata, and the
/// rest in the order of its columns.
pub fn measurements(
    document: DocRef<'_>,
    shown: &Shown<'_>,
    shows: impl Fn(&str) -> bool,
) -> Result<Vec<Document>> {
    let is_copied = |name: &str| shown.copied.iter().any(|copied| **copied == *name);
    let mut bare = DocumentBuilder::new();
    for element in document.iter().filter(|e| !is_copied(e.name())) {
        bare.append_element(element);
    }
    let bare = bare.finish();
    let bucket = BucketDocument::parse(bare.as_ref(), shown.time_field)?;
    let meta = match (shown.meta_field, bucket.meta) {
        (_, ValueRef::Undefined) => {
            return Err(Error::location(
                location::BUCKET_META_UNDEFINED,
                "metadata of the type undefined cannot be unpacked",
            ));
        }
        (None, ValueRef::Missing) => None,
        (None, _) => {
            return Err(Error::location(
                location::BUCKET_META_UNNAMED,
                "the buckets hold metadata, but no metaField is given",
            ));
        }
        (Some(name), meta) => shows(name).then_some((name, meta)),
    };
    let mut columns: Vec<(&str, Vec<Value>)> = Vec::new();
    for element in bucket.data {
        if !shows(element.name()) {
            continue;
        }
        let column = (element.name(), bucket.values(element)?);
        match column.0 == shown.time_field {
            true => columns.insert(0, column),
            false => columns.push(column),
        }
    }
    let copied: Vec<(&str, ValueRef<'_>)> = shown
        .copied
        .iter()
        .map(|name| (&**name, document.get(name)))
        .collect();
    let mut out = Vec::with_capacity(bucket.count);
    for row in 0..bucket.count {
        let mut measurement = DocumentBuilder::new();
        let mut meta = meta.filter(|(name, _)| !is_copied(name));
        for (name, values) in &columns {
            if *name != shown.time_field {
                append_meta(&mut measurement, &mut meta);
            }
            if let Some(value) = values.get(row).filter(|_| !is_copied(name)) {
                measurement.append_ref(name, value.as_ref());
            }
        }
        append_meta(&mut measurement, &mut meta);
        for (name, value) in &copied {
            measurement.append_ref(name, *value);
        }
        out.push(measurement.finish());
    }
    Ok(out)
}

/// Appends the metadata, once.
fn append_meta(out: &mut DocumentBuilder, meta: &mut Option<(&str, ValueRef<'_>)>) {
    if let Some((name, value)) = meta.take() {
        out.append_ref(name, value);
    }
}

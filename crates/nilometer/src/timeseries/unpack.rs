//! Measurements of a bucket document, for stages that unpack buckets read as documents, and of a tail entry, for change streams.
//!
//! Queries on a time-series collection read columns instead. This module reads one document as given, and fails on anything
//! that is not a bucket.

use std::sync::Arc;

use nilometer_bson::{DocRef, Document, DocumentBuilder, Value, ValueRef};
use nilometer_storage::Bytes;

use super::format::bucket_document::{BucketDocument, BucketImage, Layout};
use super::format::tail;
use super::format::tail::EntrySink;
use crate::change_entry::BucketHeader;
use crate::error::{Error, ErrorCode, Result, location};
use crate::eval::Collation;

/// The fields of the measurements, and their names.
pub struct Shown<'s> {
    /// Name of the time field.
    pub time_field: &'s str,
    /// Name of the metadata field.
    pub meta_field: Option<&'s str>,
    /// Fields of the bucket document copied into each measurement.
    pub copied: &'s [Arc<str>],
}

impl<'s> Shown<'s> {
    /// Names the time field and the metadata field; nothing is copied.
    pub fn new(time_field: &'s str, meta_field: Option<&'s str>) -> Self {
        Self {
            time_field,
            meta_field,
            copied: &[],
        }
    }
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

/// Returns the bucket that the bytes of a tail entry open, with the measurements in them; `None` if they add to one that is there. Its
/// bounds are those of the simple collation.
pub(crate) fn new_bucket(tail: &[u8], id: [u8; 12], time_field: &str) -> Result<Option<Document>> {
    let entry = tail::decode(&Bytes::copy_from(tail))?;
    let Some(header) = &entry.header else {
        return Ok(None);
    };
    let layout = Layout {
        time_field,
        collation: Collation::SIMPLE,
    };
    // Before an entry with the header is committed, no entry leaves names out.
    let mut image = BucketImage::new(id, header, &layout);
    image.append_entry(&entry)?;
    Ok(Some(image.into_document()))
}

/// Returns the number of measurements in the bytes of a tail entry.
pub(crate) fn tail_rows(tail: &[u8]) -> Result<usize> {
    tail::rows(tail)
}

/// Returns the measurements in the bytes of a tail entry. `header` returns what earlier entries of the bucket say; it is called
/// with the number of columns that it must name if the entry leaves that out.
pub(crate) fn tail_measurements(
    tail: &[u8],
    shown: &Shown<'_>,
    header: impl FnOnce(usize) -> Result<Arc<BucketHeader>>,
) -> Result<Vec<Document>> {
    let entry = tail::decode(&Bytes::copy_from(tail))?;
    let mut columns = TailColumns::default();
    entry.visit(&mut columns)?;
    let unnamed = columns.0.iter().filter(|column| column.name.is_none());
    let needed = unnamed.map(|column| column.id + 1).max().unwrap_or(0);
    let known = match entry.header.is_some() && needed == 0 {
        true => None,
        false => Some(header(needed)?),
    };
    let meta = match (&entry.header, &known) {
        (Some(header), _) => header.meta.as_ref(),
        (None, Some(known)) => known.meta.as_ref(),
        (None, None) => ValueRef::Missing,
    };
    let named = columns.0.iter().map(|column| {
        let known = known.as_ref().and_then(|known| known.names.get(column.id));
        let name = column.name.as_deref().or_else(|| known.map(|name| &**name));
        let name = name.ok_or_else(|| {
            Error::new(
                ErrorCode::DataCorruptionDetected,
                "a tail entry refers to a column without a name",
            )
        })?;
        Ok((name, column))
    });
    let named = named.collect::<Result<Vec<_>>>()?;
    let mut out = Vec::with_capacity(entry.rows);
    for row in 0..entry.rows {
        let mut measurement = DocumentBuilder::with_capacity(128);
        for (name, column) in &named {
            let value = column.values.get(row);
            measurement.append_ref(name, value.map_or(ValueRef::Missing, Value::as_ref));
            if let (0, Some(name)) = (column.id, shown.meta_field) {
                measurement.append_ref(name, meta);
            }
        }
        out.push(measurement.finish());
    }
    Ok(out)
}

/// A column of a tail entry.
struct TailColumn {
    id: usize,
    name: Option<String>,
    values: Vec<Value>,
}

/// The columns of a tail entry, in order; that of the time is the first.
#[derive(Default)]
struct TailColumns(Vec<TailColumn>);

impl EntrySink for TailColumns {
    fn column(&mut self, id: usize, name: Option<&str>) -> Result<()> {
        self.0.push(TailColumn {
            id,
            name: name.map(str::to_owned),
            values: Vec::new(),
        });
        Ok(())
    }

    fn value(&mut self, _: usize, value: ValueRef<'_>) -> Result<()> {
        if let Some(column) = self.0.last_mut() {
            column.values.push(value.to_value());
        }
        Ok(())
    }
}

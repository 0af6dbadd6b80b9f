//! Assembling a bucket document from rows: some of an existing bucket, some new.

use std::collections::HashSet;
use std::sync::Arc;

use nilometer_bson::block::ColumnBlock;
use nilometer_bson::column::ColumnBuilder;
use nilometer_bson::{DocRef, Document, Value, ValueRef};

use crate::error::Result;
use crate::timeseries::cache::opened_bucket::StoredBucket;
use crate::timeseries::format::bucket_document::{
    BucketDocument, COLUMN_SUBTYPE, Layout, Version, WrittenBucket, WrittenColumn,
};
use crate::timeseries::format::min_max::{Extreme, Side};
use crate::timeseries::format::schema::Schema;
use crate::timeseries::format::tail;

/// A row of the assembled bucket.
#[derive(Clone, Copy)]
pub(super) enum Row<'a> {
    /// This row of the existing bucket.
    Old(usize),
    /// A replaced or new measurement.
    New(DocRef<'a>),
}

/// The contents of the assembled bucket.
pub(super) struct BucketContents<'a> {
    /// The existing bucket, as document and opened.
    pub(super) bucket: Option<(&'a Document, &'a StoredBucket)>,
    /// Its rows.
    pub(super) rows: &'a [Row<'a>],
    /// True if row n replaces row n of the existing bucket, for all rows.
    pub(super) in_place: bool,
    /// The layout of the collection's buckets.
    pub(super) layout: &'a Layout<'a>,
    /// Name of the metadata field.
    pub(super) meta_field: Option<&'a str>,
}

/// An assembled bucket.
pub(super) struct AssembledBucket {
    pub(super) document: Document,
    /// True if no field has values of two canonical types.
    pub(super) uniform: bool,
}

impl BucketContents<'_> {
    /// Assembles the bucket. Fields without a value are left out.
    pub(super) fn assemble(
        &self,
        id: [u8; 12],
        start_ms: i64,
        meta: ValueRef<'_>,
    ) -> Result<AssembledBucket> {
        let mut columns = Vec::new();
        let (mut uniform, mut sorted) = (true, true);
        for name in self.names() {
            let column = match self.unchanged(&name)? {
                Some(column) => column,
                None => {
                    let column = self.encode(name)?;
                    if column.max.is_missing() {
                        continue;
                    }
                    uniform &= Schema::of(column.min.as_ref()).accepts(column.max.as_ref());
                    column
                }
            };
            columns.push(column);
        }
        let time = self.block(self.layout.time_field)?;
        let mut last = i64::MIN;
        for row in self.rows {
            if let ValueRef::DateTime(at) = value(*row, time, self.layout.time_field) {
                sorted &= at >= last;
                last = at;
            }
        }
        let written = WrittenBucket {
            id,
            start_ms,
            meta,
            rows: self.rows.len(),
            sorted,
            closed: false,
        };
        Ok(AssembledBucket {
            document: written.to_document(&columns),
            uniform,
        })
    }

    /// Returns the names of the fields, the time first.
    fn names(&self) -> Vec<Arc<str>> {
        let mut names: Vec<Arc<str>> = vec![self.layout.time_field.into()];
        let mut known: HashSet<Arc<str>> = names.iter().cloned().collect();
        known.extend(self.meta_field.map(Arc::from));
        let old = self.bucket.iter().flat_map(|(_, bucket)| bucket.shown());
        for (_, name) in old {
            if known.insert(name.clone()) {
                names.push(name.clone());
            }
        }
        for row in self.rows {
            let Row::New(document) = row else { continue };
            for element in *document {
                if !known.contains(element.name()) {
                    let name: Arc<str> = element.name().into();
                    known.insert(name.clone());
                    names.push(name);
                }
            }
        }
        names
    }

    fn block(&self, name: &str) -> Result<Option<&ColumnBlock>> {
        match self.bucket {
            Some((_, bucket)) => Ok(bucket.column(name)?.map(|column| &**column)),
            None => Ok(None),
        }
    }

    /// Returns a column whose values do not change, as stored; `None` if it must be encoded.
    fn unchanged(&self, name: &str) -> Result<Option<WrittenColumn>> {
        let Some((document, _)) = self.bucket.filter(|_| self.in_place) else {
            return Ok(None);
        };
        let Some(block) = self.block(name)? else {
            return Ok(None);
        };
        for (at, row) in self.rows.iter().enumerate() {
            if let Row::New(new) = row
                && !is_same(block.value(at), new.get(name))
            {
                return Ok(None);
            }
        }
        let bucket = BucketDocument::parse(document.as_ref(), self.layout.time_field)?;
        match (bucket.version, bucket.data.get(name)) {
            (
                Version::Sorted | Version::Unsorted,
                ValueRef::Binary {
                    subtype: COLUMN_SUBTYPE,
                    bytes,
                },
            ) => Ok(Some(WrittenColumn {
                name: name.into(),
                min: bucket.min.get(name).to_value(),
                max: bucket.max.get(name).to_value(),
                bytes: bytes.to_vec(),
            })),
            _ => Ok(None),
        }
    }

    fn encode(&self, name: Arc<str>) -> Result<WrittenColumn> {
        let block = self.block(&name)?;
        let mut builder = ColumnBuilder::new();
        let (mut min, mut max) = (Extreme::none(), Extreme::none());
        for row in self.rows {
            let value = value(*row, block, &name);
            tail::append_value(&mut builder, value)?;
            min.update(value, Side::Min, &self.layout.collation);
            max.update(value, Side::Max, &self.layout.collation);
        }
        Ok(WrittenColumn {
            name,
            min: min.to_value(),
            max: max.to_value(),
            bytes: builder.to_bytes(),
        })
    }
}

fn value<'a>(row: Row<'a>, block: Option<&'a ColumnBlock>, name: &str) -> ValueRef<'a> {
    match (row, block) {
        (Row::Old(at), Some(block)) => block.value(at),
        (Row::Old(_), None) => ValueRef::Missing,
        (Row::New(document), _) => document.get(name),
    }
}

/// True for values of the same type and bytes.
fn is_same(a: ValueRef<'_>, b: ValueRef<'_>) -> bool {
    if a.type_code() != b.type_code() || a.is_missing() || b.is_missing() {
        return a.is_missing() && b.is_missing();
    }
    let bytes = |value| {
        let mut out = Vec::new();
        nilometer_bson::document::write_value(&mut out, value);
        out
    };
    match (a, b) {
        (ValueRef::Int32(a), ValueRef::Int32(b)) => a == b,
        (ValueRef::Int64(a), ValueRef::Int64(b)) => a == b,
        (ValueRef::DateTime(a), ValueRef::DateTime(b)) => a == b,
        (ValueRef::Double(a), ValueRef::Double(b)) => a.to_bits() == b.to_bits(),
        (ValueRef::ObjectId(a), ValueRef::ObjectId(b)) => a == b,
        (a, b) => bytes(a) == bytes(b),
    }
}

/// Returns a copy of a bucket document with another meta.
pub(super) fn with_meta(document: DocRef<'_>, meta: &Value) -> Document {
    let mut out = nilometer_bson::DocumentBuilder::with_capacity(document.as_bytes().len() + 64);
    for element in document {
        match element.name() {
            "meta" => {}
            // The metadata comes before the data, as in any bucket.
            "data" => {
                out.append_ref("meta", meta.as_ref());
                out.append_element(element);
            }
            _ => {
                out.append_element(element);
            }
        }
    }
    out.finish()
}

//! An open bucket in memory: what is needed to decide on the next measurement.
//!
//! It holds no measurements: those are in storage. A bucket with ten fields takes a few hundred bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nilometer_bson::{Element, ObjectId, ValueRef, type_code};

use super::field_layout::FieldRange;
use super::field_names::FieldNames;
use super::series::SERIES_MEMORY_BYTES;
use super::staging::StagedEntry;
use crate::catalog::TimeseriesOptions;
use crate::timeseries::format::schema::Schema;

/// Bytes of a bucket document before its first measurement, without meta.
const BUCKET_BASE_BYTES: usize = 128;

/// Memory of an open bucket without its columns and its metadata.
const BUCKET_MEMORY_BYTES: usize = size_of::<OpenBucket>() + SERIES_MEMORY_BYTES;

/// Memory of a column of an open bucket, without its name, which is shared.
const COLUMN_MEMORY_BYTES: usize = size_of::<BucketColumn>();

/// A parsed measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measurement<'a> {
    /// Its place in the command.
    pub(crate) index: usize,
    /// Its time in ms.
    pub(crate) time_ms: i64,
    /// True if it came without an `_id`.
    pub(crate) lacks_id: bool,
    /// The `_id` the server generated then.
    pub(crate) generated_id: Option<ObjectId>,
    /// Its fields.
    pub(crate) document: nilometer_bson::DocRef<'a>,
    /// Its fields in the layout of the command, if they fit there.
    pub(crate) layout_range: Option<FieldRange>,
}

impl<'a> Measurement<'a> {
    /// Iterates over the fields except the meta field, a generated `_id` first.
    pub(crate) fn fields<'m>(
        &self,
        meta_field: Option<&'m str>,
    ) -> impl Iterator<Item = Field<'a>> + use<'a, 'm> {
        let id = self.generated_id.map(|id| Field {
            name: b"_id",
            type_code: type_code::OBJECT_ID,
            bytes: 12,
            value: FieldValue::Id(id),
        });
        let meta_field = meta_field.map(str::as_bytes);
        let elements = self.document.iter();
        let stored = elements
            .filter(move |element| Some(element.name_bytes()) != meta_field)
            .map(|element| Field {
                name: element.name_bytes(),
                type_code: element.type_code(),
                bytes: element.value_bytes().len(),
                value: FieldValue::Element(element),
            });
        id.into_iter().chain(stored)
    }
}

/// A field of a measurement, not decoded yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Field<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) type_code: u8,
    /// Bytes of its value.
    pub(crate) bytes: usize,
    value: FieldValue<'a>,
}

#[derive(Clone, Copy, Debug)]
enum FieldValue<'a> {
    Id(ObjectId),
    Element(Element<'a>),
}

impl<'a> Field<'a> {
    pub(crate) fn value(&self) -> ValueRef<'a> {
        match self.value {
            FieldValue::Id(id) => ValueRef::ObjectId(id),
            FieldValue::Element(element) => element.value(),
        }
    }
}

/// The memory of all buckets of the catalog.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    /// Bytes of memory.
    pub(crate) bytes: AtomicUsize,
    /// Buckets, open or archived.
    pub(crate) buckets: AtomicUsize,
}

/// One bucket's part of the memory, released when it is dropped.
#[derive(Debug)]
pub(crate) struct MemoryUse {
    usage: Arc<Usage>,
    bytes: usize,
}

impl MemoryUse {
    pub(crate) fn new(usage: Arc<Usage>) -> Self {
        usage.buckets.fetch_add(1, Ordering::Relaxed);
        Self { usage, bytes: 0 }
    }

    /// Returns the part of another bucket.
    pub(crate) fn another(&self) -> Self {
        Self::new(self.usage.clone())
    }

    pub(crate) fn add(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.usage.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl Drop for MemoryUse {
    fn drop(&mut self) {
        self.usage.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        self.usage.buckets.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A column of an open bucket.
#[derive(Debug)]
pub(crate) struct BucketColumn {
    pub(crate) name: Arc<str>,
    /// Of the name: most other names differ in it.
    fingerprint: u64,
    schema: Schema,
    /// True once an entry that names it has been committed.
    pub(crate) committed: bool,
}

impl BucketColumn {
    fn new(name: Arc<str>, schema: Schema) -> Self {
        Self {
            fingerprint: fingerprint(name.as_bytes()),
            name,
            schema,
            committed: false,
        }
    }
}

/// Computes a number from a name's length, beginning and end.
fn fingerprint(name: &[u8]) -> u64 {
    let mut short = [0; 8];
    let (first, last) = match (name.first_chunk(), name.last_chunk()) {
        (Some(first), Some(last)) => (*first, *last),
        _ => {
            for (to, from) in short.iter_mut().zip(name) {
                *to = *from;
            }
            (short, [0; 8])
        }
    };
    let last = u64::from_le_bytes(last).rotate_left(29);
    u64::from_le_bytes(first) ^ last ^ (name.len() as u64)
}

/// A header of a bucket in the change log: the part of the log, and the number of columns it names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LoggedHeader {
    pub(crate) part: u64,
    pub(crate) columns: usize,
}

/// A bucket that takes measurements.
#[derive(Debug)]
pub(crate) struct OpenBucket {
    pub(crate) id: [u8; 12],
    pub(crate) start_ms: i64,
    pub(crate) columns: Vec<BucketColumn>,
    /// Measurements, those in flight included.
    pub(crate) count: usize,
    /// The greatest time; an entry that starts before it makes the bucket unsorted.
    pub(crate) last_ms: i64,
    pub(crate) sorted: bool,
    pub(crate) next_sequence: u32,
    /// Entries staged and not known to be committed.
    pub(crate) in_flight: u32,
    /// True once an entry with the header has been committed.
    pub(crate) header_committed: bool,
    /// The last header of it that is in the change log.
    pub(crate) logged: LoggedHeader,
    /// Size of the bucket document when last measured, in bytes.
    pub(crate) measured_bytes: usize,
    /// Bytes of the values added since, uncompressed: with the above, an upper bound of the size.
    pub(crate) unmeasured_bytes: usize,
    /// Measurements in the bucket document as stored.
    pub(crate) folded_count: usize,
    /// Measurements when its fold was last queued.
    pub(crate) fold_asked_at: usize,
    /// True if it takes no more measurements; it is sealed when nothing is in flight.
    pub(crate) closing: bool,
    /// True once it was counted as above the size limit with few measurements.
    pub(crate) kept_open: bool,
    /// Clear operations before it was opened.
    pub(crate) era: u64,
    /// By name id, where the column was found last.
    column_of_name: [u8; CACHED_NAMES],
    memory: MemoryUse,
}

/// Name ids for which a bucket remembers the column.
const CACHED_NAMES: usize = 32;

/// Returns the id of a bucket: the low 32 bits of the seconds of its start, and a unique suffix.
pub(super) fn id_of(start_ms: i64, suffix: [u8; 8]) -> [u8; 12] {
    let seconds = (start_ms.div_euclid(1000) as u32).to_be_bytes();
    let mut id = [0; 12];
    id[..4].copy_from_slice(&seconds);
    id[4..].copy_from_slice(&suffix);
    id
}

impl OpenBucket {
    /// A new bucket for a first measurement at `time_ms`.
    pub(crate) fn new(
        id_suffix: [u8; 8],
        options: &TimeseriesOptions,
        time_ms: i64,
        meta_bytes: usize,
        mut memory: MemoryUse,
        names: &mut FieldNames,
    ) -> Self {
        memory.add(BUCKET_MEMORY_BYTES + meta_bytes);
        let start_ms = options.round_down_ms(time_ms);
        let id = id_of(start_ms, id_suffix);
        let name = names.intern(options.time_field.as_bytes());
        let time = BucketColumn::new(name, Schema::Scalar(type_code::DATE_TIME));
        Self {
            id,
            start_ms,
            columns: vec![time],
            count: 0,
            last_ms: i64::MIN,
            sorted: true,
            next_sequence: 0,
            in_flight: 0,
            header_committed: false,
            logged: LoggedHeader::default(),
            measured_bytes: BUCKET_BASE_BYTES + meta_bytes,
            unmeasured_bytes: 0,
            folded_count: 0,
            fold_asked_at: 0,
            closing: false,
            kept_open: false,
            era: 0,
            column_of_name: [0; CACHED_NAMES],
            memory,
        }
    }

    /// Adds a column of a stored bucket, with a schema from its extremes; `None` if those disagree.
    pub(crate) fn restore_column(
        &mut self,
        name: &str,
        min: ValueRef<'_>,
        max: ValueRef<'_>,
        names: &mut FieldNames,
    ) -> Option<()> {
        // A column without extremes holds only missing values.
        let mut schema = Schema::of(min);
        if !schema.accepts(max) {
            return None;
        }
        schema.learn(max);
        self.memory.add(COLUMN_MEMORY_BYTES);
        let name = names.intern(name.as_bytes());
        let mut column = BucketColumn::new(name, schema);
        column.committed = true;
        self.columns.push(column);
        Some(())
    }

    /// Its part of the memory of the catalog.
    pub(crate) fn memory(&self) -> &MemoryUse {
        &self.memory
    }

    /// Returns an upper bound of the size of its document, in bytes.
    pub(crate) fn bytes_bound(&self) -> usize {
        self.measured_bytes + self.unmeasured_bytes
    }

    /// Records that one of its entries was committed.
    pub(crate) fn entry_committed(&mut self, entry: &StagedEntry) {
        self.in_flight -= 1;
        self.header_committed |= entry.with_header;
        if let Some(logged) = entry.logged {
            self.logged = self.logged.max(logged);
        }
        for at in &entry.named {
            self.columns[*at].committed = true;
        }
    }

    /// Returns the column called `name`. Tries `hint` first: measurements repeat their field order.
    #[inline]
    pub(crate) fn find_column(&self, name: &[u8], hint: usize) -> Option<usize> {
        if self
            .columns
            .get(hint)
            .is_some_and(|c| c.name.as_bytes() == name)
        {
            return Some(hint);
        }
        let fingerprint = fingerprint(name);
        self.columns
            .iter()
            .position(|c| c.fingerprint == fingerprint && c.name.as_bytes() == name)
    }

    /// Returns the column of a name with this id, if the column accepts scalars of this type. Shares the name with the
    /// column.
    #[inline]
    pub(crate) fn find_scalar(
        &mut self,
        name: &Arc<str>,
        name_id: u16,
        type_code: u8,
    ) -> Option<usize> {
        let kept = self.column_of_name.get(usize::from(name_id));
        let mut at = kept.map_or(0, |at| usize::from(*at));
        // Another command may give the id to another name.
        let is_it = |column: &BucketColumn| Arc::ptr_eq(&column.name, name);
        if !self.columns.get(at).is_some_and(is_it) {
            at = self.find_by_name(name, name_id)?;
        }
        let schema = &self.columns[at].schema;
        schema.accepts_scalar(type_code).then_some(at)
    }

    #[inline(never)]
    fn find_by_name(&mut self, name: &Arc<str>, name_id: u16) -> Option<usize> {
        let shared = |column: &BucketColumn| Arc::ptr_eq(&column.name, name);
        let at = match self.columns.iter().position(shared) {
            Some(at) => at,
            None => {
                let at = self.find_column(name.as_bytes(), usize::from(name_id))?;
                self.columns[at].name = name.clone();
                at
            }
        };
        if let (Some(kept), Ok(at)) = (
            self.column_of_name.get_mut(usize::from(name_id)),
            u8::try_from(at),
        ) {
            *kept = at;
        }
        Some(at)
    }

    /// True if the column accepts the field's value.
    pub(crate) fn accepts(&self, column: usize, field: &Field<'_>) -> bool {
        let schema = &self.columns[column].schema;
        schema.accepts_scalar(field.type_code) || schema.accepts(field.value())
    }

    /// Adds a field's type to the schema of its column, or adds the column. Returns the column.
    pub(crate) fn learn(
        &mut self,
        column: Option<usize>,
        field: &Field<'_>,
        names: &mut FieldNames,
    ) -> usize {
        // A first appearance is stored three times: in data, control.min and control.max.
        let mut weight = 1;
        let at = match column {
            Some(at) => {
                let schema = &mut self.columns[at].schema;
                if !schema.accepts_scalar(field.type_code) {
                    schema.learn(field.value());
                }
                at
            }
            None => {
                weight = 3;
                self.memory.add(COLUMN_MEMORY_BYTES);
                let at = self.columns.len();
                let name = names.intern(field.name);
                self.columns
                    .push(BucketColumn::new(name, Schema::of(field.value())));
                at
            }
        };
        self.unmeasured_bytes += weight * field.bytes;
        at
    }
}

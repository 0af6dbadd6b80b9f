//! Incremental building of blocks: for the uncompressed tail of a bucket, and tests.
//!
//! The first present value determines the form. A value that does not fit it turns the block into a
//! mixed one.

use std::ops::Range;

use super::{BlockData, ColumnBlock, DistinctValues, Interner, Presence};
use crate::value::{ObjectId, Timestamp, Value, ValueRef};

/// Builds a [`ColumnBlock`] value by value and chooses the form.
///
/// ```
/// use nilometer_bson::{ValueRef, block::ColumnBlockBuilder};
///
/// let mut builder = ColumnBlockBuilder::new();
/// builder.push(ValueRef::Int32(7));
/// builder.push(ValueRef::Missing);
/// let block = builder.finish();
/// assert_eq!(block.as_i32().map(<[i32]>::len), Some(2));
/// assert!(block.is_missing(1));
/// ```
#[derive(Debug, Clone)]
pub struct ColumnBlockBuilder {
    data: BlockData,
    len: usize,
    gaps: Vec<usize>,
    /// The values of a dictionary.
    codes: Interner,
}

impl Default for ColumnBlockBuilder {
    fn default() -> Self {
        ColumnBlockBuilder {
            data: BlockData::Missing,
            len: 0,
            gaps: Vec::new(),
            codes: Interner::default(),
        }
    }
}

impl ColumnBlockBuilder {
    /// Creates a builder with no values.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of values pushed.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if no value was pushed.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a value.
    pub fn push(&mut self, value: ValueRef<'_>) {
        if value.is_missing() {
            self.push_missing();
            return;
        }
        if matches!(self.data, BlockData::Missing) {
            self.data = self.first_form(value);
        }
        let pushed = match (&mut self.data, value) {
            (BlockData::Int32(values), ValueRef::Int32(value)) => push(values, value),
            (BlockData::Int64(values), ValueRef::Int64(value)) => push(values, value),
            (BlockData::Double(values), ValueRef::Double(value)) => push(values, value),
            (BlockData::DateTime(values), ValueRef::DateTime(value)) => push(values, value),
            (BlockData::Bool(values), ValueRef::Bool(value)) => push(values, value),
            (BlockData::Timestamp(values), ValueRef::Timestamp(value)) => push(values, value),
            (BlockData::ObjectId(values), ValueRef::ObjectId(value)) => push(values, value),
            (BlockData::Dictionary { codes, .. }, value) if is_coded(value) => {
                push(codes, self.codes.code(value))
            }
            (BlockData::Mixed(values), value) => push(values, value.to_value()),
            _ => false,
        };
        if !pushed {
            let mut values = self.values();
            values.push(value.to_value());
            self.data = BlockData::Mixed(values);
        }
        self.len += 1;
    }

    /// Appends the positions `places` of a block; numbers without gaps as one slice.
    pub fn append(&mut self, block: &ColumnBlock, places: Range<usize>) {
        if !self.append_slices(block, &places) {
            places.for_each(|at| self.push(block.value(at)));
        }
    }

    /// Appends numbers stored as slices in both; returns false and appends nothing if they are not.
    fn append_slices(&mut self, block: &ColumnBlock, places: &Range<usize>) -> bool {
        fn extend<T: Copy>(all: &mut Vec<T>, values: &[T], places: &Range<usize>) -> bool {
            let values = values.get(places.clone());
            values.map(|values| all.extend_from_slice(values)).is_some()
        }
        if block.presence().is_some() || places.is_empty() {
            return false;
        }
        if matches!(self.data, BlockData::Missing) {
            self.data = match block.data() {
                BlockData::Int32(_) => BlockData::Int32(vec![0; self.len]),
                BlockData::Int64(_) | BlockData::ShortInt64(_) => {
                    BlockData::Int64(vec![0; self.len])
                }
                BlockData::Double(_) => BlockData::Double(vec![0.0; self.len]),
                BlockData::DateTime(_) => BlockData::DateTime(vec![0; self.len]),
                _ => return false,
            };
        }
        let appended = match (&mut self.data, block.data()) {
            (BlockData::Int32(all), BlockData::Int32(values)) => extend(all, values, places),
            (BlockData::Int64(all), BlockData::Int64(values))
            | (BlockData::DateTime(all), BlockData::DateTime(values)) => {
                extend(all, values, places)
            }
            (BlockData::Int64(all), BlockData::ShortInt64(values)) => {
                let values = values.get(places.clone());
                let values = values.map(|values| values.iter().map(|value| i64::from(*value)));
                values.map(|values| all.extend(values)).is_some()
            }
            (BlockData::Double(all), BlockData::Double(values)) => extend(all, values, places),
            _ => false,
        };
        if appended {
            self.len += places.len();
        }
        appended
    }

    /// Returns the bytes of all positions, without heap data of values.
    pub fn place_bytes(&self) -> usize {
        self.data.place_bytes() * self.len + self.gaps.len() * size_of::<usize>()
    }

    /// Adds a missing value.
    pub fn push_missing(&mut self) {
        self.gaps.push(self.len);
        self.len += 1;
        match &mut self.data {
            BlockData::Missing | BlockData::Constant(_) => {}
            BlockData::Int32(values) => values.push(0),
            BlockData::Int64(values) | BlockData::DateTime(values) => values.push(0),
            BlockData::ShortInt64(values) => values.push(0),
            BlockData::Double(values) => values.push(0.0),
            BlockData::Bool(values) => values.push(false),
            BlockData::Timestamp(values) => values.push(Timestamp::default()),
            BlockData::ObjectId(values) => values.push(ObjectId::default()),
            BlockData::Dictionary { codes, .. } => codes.push(0),
            BlockData::Mixed(values) => values.push(Value::Missing),
        }
    }

    /// Returns the block of all values pushed.
    pub fn finish(self) -> ColumnBlock {
        let presence = self.presence();
        let data = match self.data {
            BlockData::Dictionary { codes, .. } => dictionary(codes, self.codes),
            data => data,
        };
        ColumnBlock::from_parts(self.len, data, presence)
    }

    fn presence(&self) -> Option<Presence> {
        if self.gaps.is_empty() {
            return None;
        }
        let mut presence = Presence::all(self.len);
        self.gaps.iter().for_each(|&gap| presence.clear(gap));
        Some(presence)
    }

    /// Returns the form for a block whose first present value, after `self.len` missing ones, is
    /// `value`.
    fn first_form(&self, value: ValueRef<'_>) -> BlockData {
        let len = self.len;
        match value {
            ValueRef::Int32(_) => BlockData::Int32(vec![0; len]),
            ValueRef::Int64(_) => BlockData::Int64(vec![0; len]),
            ValueRef::Double(_) => BlockData::Double(vec![0.0; len]),
            ValueRef::DateTime(_) => BlockData::DateTime(vec![0; len]),
            ValueRef::Bool(_) => BlockData::Bool(vec![false; len]),
            ValueRef::Timestamp(_) => BlockData::Timestamp(vec![Timestamp::default(); len]),
            ValueRef::ObjectId(_) => BlockData::ObjectId(vec![ObjectId::default(); len]),
            value if is_coded(value) => BlockData::Dictionary {
                codes: vec![0; len],
                values: DistinctValues::default(),
            },
            _ => BlockData::Mixed(vec![Value::Missing; len]),
        }
    }

    fn values(&mut self) -> Vec<Value> {
        let data = match std::mem::replace(&mut self.data, BlockData::Missing) {
            BlockData::Mixed(values) => return values,
            BlockData::Dictionary { codes, .. } => {
                dictionary(codes, std::mem::take(&mut self.codes))
            }
            data => data,
        };
        ColumnBlock::from_parts(self.len, data, self.presence()).to_values()
    }
}

/// Returns the form of a block with these codes: a constant if there is one value.
pub(crate) fn dictionary(codes: Vec<u32>, values: Interner) -> BlockData {
    let values = values.finish(codes.len());
    match values.len() {
        0 => BlockData::Missing,
        1 => BlockData::Constant(values.to_value(0).unwrap_or_default()),
        _ => BlockData::Dictionary { codes, values },
    }
}

fn push<T>(values: &mut Vec<T>, value: T) -> bool {
    values.push(value);
    true
}

/// True if values of this type are stored in a dictionary: those without a vector form, except
/// documents.
fn is_coded(value: ValueRef<'_>) -> bool {
    !matches!(
        value,
        ValueRef::Int32(_)
            | ValueRef::Int64(_)
            | ValueRef::Double(_)
            | ValueRef::DateTime(_)
            | ValueRef::Bool(_)
            | ValueRef::Timestamp(_)
            | ValueRef::ObjectId(_)
            | ValueRef::Document(_)
            | ValueRef::Array(_)
            | ValueRef::Missing
    )
}

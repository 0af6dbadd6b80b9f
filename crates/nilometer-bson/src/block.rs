//! Decoded columns in memory: input of filter and group kernels.
//!
//! A [`ColumnBlock`] holds the values of one field for consecutive measurements, missing ones
//! included, so position `i` is the same measurement in every block of a bucket.
//!
//! ```text
//! len 5        data      Int32 [7, 7, 0, 9, 9]          one vector per type; arbitrary where missing
//!              presence  0b11011  (bit i: value i is there; no bitmap when nothing is missing)
//!
//! other forms  ShortInt64   two bytes each                longs of a packed column that are all small
//!              Constant     one value, len times           tags, and columns that never changed
//!              Dictionary   codes [0, 1, 0, …] of values   strings and whatever else is not a number
//!              Mixed        one Value each                 fields that changed type; objects and arrays
//!              Missing      nothing there at all
//! ```
//!
//! The values of a dictionary are distinct as bytes: equal codes mean equal values, but two numbers
//! of different types may still compare equal.
//!
//! Blocks have no comparison or hash; see [`crate::order`] for values.

mod builder;
mod distinct_values;

use std::ops::Range;

use crate::value::{ObjectId, Timestamp, Value, ValueRef};

pub use builder::ColumnBlockBuilder;
pub(crate) use builder::dictionary;
pub use distinct_values::DistinctValues;
pub(crate) use distinct_values::Interner;

/// A bitmap with one bit for each value of a block, set if the value is present.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Presence {
    words: Vec<u64>,
    len: usize,
}

impl Presence {
    /// Creates a bitmap of `len` present values.
    pub fn all(len: usize) -> Self {
        let mut words = vec![u64::MAX; len.div_ceil(64)];
        if let (Some(last), 1..) = (words.last_mut(), len % 64) {
            *last = u64::MAX >> (64 - len % 64);
        }
        Presence { words, len }
    }

    /// True if value `at` is present.
    pub fn get(&self, at: usize) -> bool {
        self.words
            .get(at / 64)
            .is_some_and(|word| word >> (at % 64) & 1 == 1)
    }

    /// Returns the bits, 64 values to a word, lowest first; bits after the last value are 0.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// Returns the number of present values.
    pub fn count(&self) -> usize {
        self.words
            .iter()
            .map(|word| word.count_ones() as usize)
            .sum()
    }

    fn clear(&mut self, at: usize) {
        if let Some(word) = self.words.get_mut(at / 64) {
            *word &= !(1 << (at % 64));
        }
    }
}

/// Builder of a [`Presence`], which allocates once a value is missing.
#[derive(Debug, Clone)]
pub(crate) struct PresenceBuilder {
    presence: Option<Presence>,
    len: usize,
}

impl PresenceBuilder {
    pub(crate) fn new(len: usize) -> Self {
        PresenceBuilder {
            presence: None,
            len,
        }
    }

    /// Marks the values from `at` on whose bits are set as missing.
    pub(crate) fn clear_bits(&mut self, at: usize, bits: u64) {
        let words = &mut self.get_mut().words;
        let shift = at % 64;
        if let Some(word) = words.get_mut(at / 64) {
            *word &= !(bits << shift);
        }
        if shift > 0
            && let Some(word) = words.get_mut(at / 64 + 1)
        {
            *word &= !(bits >> (64 - shift));
        }
    }

    /// Marks `count` values from `at` on as missing.
    pub(crate) fn clear_range(&mut self, at: usize, count: usize) {
        let end = at + count;
        let mut at = at;
        while at < end {
            let now = (64 - at % 64).min(end - at);
            self.clear_bits(at, u64::MAX >> (64 - now));
            at += now;
        }
    }

    fn get_mut(&mut self) -> &mut Presence {
        self.presence.get_or_insert_with(|| Presence::all(self.len))
    }

    pub(crate) fn finish(self) -> Option<Presence> {
        self.presence
    }
}

/// The values of a block. Positions without a value hold arbitrary data.
#[derive(Debug, Clone)]
pub enum BlockData {
    /// All values are missing.
    Missing,
    /// All present values are this one.
    Constant(Value),
    /// 32-bit integers.
    Int32(Vec<i32>),
    /// 64-bit integers.
    Int64(Vec<i64>),
    /// 64-bit integers that all fit into 16 bits.
    ShortInt64(Vec<i16>),
    /// Doubles.
    Double(Vec<f64>),
    /// Dates, in milliseconds since 1970.
    DateTime(Vec<i64>),
    /// Bools.
    Bool(Vec<bool>),
    /// Timestamps.
    Timestamp(Vec<Timestamp>),
    /// ObjectIds.
    ObjectId(Vec<ObjectId>),
    /// Distinct values with a code for each position.
    Dictionary {
        /// For each position an index into `values`.
        codes: Vec<u32>,
        /// Distinct values, in order of first appearance.
        values: DistinctValues,
    },
    /// Values of any type; [`Value::Missing`] where there is none.
    Mixed(Vec<Value>),
}

impl BlockData {
    /// Returns the bytes of one position, without heap data of its value.
    fn place_bytes(&self) -> usize {
        match self {
            Self::Missing | Self::Constant(_) => 0,
            Self::Bool(_) => 1,
            Self::ShortInt64(_) => 2,
            Self::Int32(_) | Self::Dictionary { .. } => 4,
            Self::ObjectId(_) => 12,
            Self::Mixed(_) => size_of::<Value>(),
            _ => 8,
        }
    }
}

/// The values of one field for consecutive measurements. See the module.
#[derive(Debug, Clone)]
pub struct ColumnBlock {
    len: usize,
    data: BlockData,
    presence: Option<Presence>,
}

impl ColumnBlock {
    /// Creates a block of `len` missing values.
    pub fn missing(len: usize) -> Self {
        Self::from_parts(len, BlockData::Missing, None)
    }

    /// Creates a block of one value, `len` times.
    pub fn constant(len: usize, value: Value) -> Self {
        if value.is_missing() {
            return Self::missing(len);
        }
        Self::from_parts(len, BlockData::Constant(value), None)
    }

    /// Creates a block of dates without gaps: a time column.
    pub fn from_datetimes(values: Vec<i64>) -> Self {
        Self::from_parts(values.len(), BlockData::DateTime(values), None)
    }

    /// Creates a block of ints without gaps.
    pub fn from_i32s(values: Vec<i32>) -> Self {
        Self::from_parts(values.len(), BlockData::Int32(values), None)
    }

    /// Creates a block of longs without gaps.
    pub fn from_i64s(values: Vec<i64>) -> Self {
        Self::from_parts(values.len(), BlockData::Int64(values), None)
    }

    /// Creates a block of doubles without gaps.
    pub fn from_f64s(values: Vec<f64>) -> Self {
        Self::from_parts(values.len(), BlockData::Double(values), None)
    }

    /// Creates a block of bools without gaps.
    pub fn from_bools(values: Vec<bool>) -> Self {
        Self::from_parts(values.len(), BlockData::Bool(values), None)
    }

    /// Creates a block from a list of values, in the best form.
    pub fn from_values(values: &[Value]) -> Self {
        let mut builder = ColumnBlockBuilder::new();
        for value in values {
            builder.push(value.as_ref());
        }
        builder.finish()
    }

    pub(crate) fn from_parts(len: usize, data: BlockData, presence: Option<Presence>) -> Self {
        let presence = presence.filter(|_| !matches!(data, BlockData::Missing));
        ColumnBlock {
            len,
            data,
            presence,
        }
    }

    /// Returns the number of positions, missing values included.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if it has no positions.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the values, by form.
    pub fn data(&self) -> &BlockData {
        &self.data
    }

    /// Returns which values are present, if some are present and some missing: `None` for a block
    /// without gaps, and for one that is all missing ([`is_all_missing`](Self::is_all_missing)).
    pub fn presence(&self) -> Option<&Presence> {
        self.presence.as_ref()
    }

    /// True if all values are missing.
    pub fn is_all_missing(&self) -> bool {
        matches!(self.data, BlockData::Missing)
    }

    /// True if all values are present.
    pub fn is_all_present(&self) -> bool {
        self.presence.is_none() && !self.is_all_missing()
    }

    /// True if value `at` is missing or beyond the end.
    pub fn is_missing(&self, at: usize) -> bool {
        if at >= self.len || self.is_all_missing() {
            return true;
        }
        self.presence
            .as_ref()
            .is_some_and(|presence| !presence.get(at))
    }

    /// Returns the number of present values.
    pub fn present_count(&self) -> usize {
        match &self.presence {
            _ if self.is_all_missing() => 0,
            Some(presence) => presence.count(),
            None => self.len,
        }
    }

    /// Returns value `at`; missing beyond the end.
    pub fn value(&self, at: usize) -> ValueRef<'_> {
        if self.is_missing(at) {
            return ValueRef::Missing;
        }
        let value = match &self.data {
            BlockData::Missing => None,
            BlockData::Constant(value) => Some(value.as_ref()),
            BlockData::Int32(values) => values.get(at).map(|value| ValueRef::Int32(*value)),
            BlockData::Int64(values) => values.get(at).map(|value| ValueRef::Int64(*value)),
            BlockData::ShortInt64(values) => {
                let value = values.get(at).copied();
                value.map(|value| ValueRef::Int64(value.into()))
            }
            BlockData::Double(values) => values.get(at).map(|value| ValueRef::Double(*value)),
            BlockData::DateTime(values) => values.get(at).map(|value| ValueRef::DateTime(*value)),
            BlockData::Bool(values) => values.get(at).map(|value| ValueRef::Bool(*value)),
            BlockData::Timestamp(values) => values.get(at).map(|value| ValueRef::Timestamp(*value)),
            BlockData::ObjectId(values) => values.get(at).map(|value| ValueRef::ObjectId(*value)),
            BlockData::Dictionary { codes, values } => {
                codes.get(at).and_then(|code| values.get(*code as usize))
            }
            BlockData::Mixed(values) => values.get(at).map(Value::as_ref),
        };
        value.unwrap_or(ValueRef::Missing)
    }

    /// Returns value `at`, owned; shares heap data with the block.
    pub fn to_value(&self, at: usize) -> Value {
        if self.is_missing(at) {
            return Value::Missing;
        }
        match &self.data {
            BlockData::Constant(value) => value.clone(),
            BlockData::Dictionary { codes, values } => {
                let code = codes.get(at).map_or(0, |code| *code as usize);
                values.to_value(code).unwrap_or_default()
            }
            BlockData::Mixed(values) => values.get(at).cloned().unwrap_or_default(),
            _ => self.value(at).to_value(),
        }
    }

    /// Returns all values in order, missing ones included.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = ValueRef<'_>> + '_ {
        (0..self.len).map(|at| self.value(at))
    }

    /// Returns all values, owned.
    pub fn to_values(&self) -> Vec<Value> {
        (0..self.len).map(|at| self.to_value(at)).collect()
    }

    /// Returns the 32-bit integers, if the block has that form.
    pub fn as_i32(&self) -> Option<&[i32]> {
        match &self.data {
            BlockData::Int32(values) => Some(values),
            _ => None,
        }
    }

    /// Returns the 64-bit integers, if the block has that form.
    pub fn as_i64(&self) -> Option<&[i64]> {
        match &self.data {
            BlockData::Int64(values) => Some(values),
            _ => None,
        }
    }

    /// Returns the doubles, if the block has that form.
    pub fn as_f64(&self) -> Option<&[f64]> {
        match &self.data {
            BlockData::Double(values) => Some(values),
            _ => None,
        }
    }

    /// Returns the dates in milliseconds, if the block has that form.
    pub fn as_datetime(&self) -> Option<&[i64]> {
        match &self.data {
            BlockData::DateTime(values) => Some(values),
            _ => None,
        }
    }

    /// Returns the value of a constant block.
    pub fn as_constant(&self) -> Option<&Value> {
        match &self.data {
            BlockData::Constant(value) => Some(value),
            _ => None,
        }
    }

    /// Returns the value that all positions share, if this is cheap to detect; numbers must be
    /// identical bit by bit.
    pub fn common_value(&self) -> Option<Value> {
        fn same<T: Copy + PartialEq>(values: &[T]) -> Option<T> {
            let first = *values.first()?;
            values.iter().all(|value| *value == first).then_some(first)
        }
        if !self.is_all_present() {
            return None;
        }
        match &self.data {
            BlockData::Constant(value) => Some(value.clone()),
            BlockData::Int32(values) => same(values).map(Value::Int32),
            BlockData::Int64(values) => same(values).map(Value::Int64),
            BlockData::ShortInt64(values) => same(values).map(|value| Value::Int64(value.into())),
            BlockData::Double(values) => {
                let first = *values.first()?;
                let is_first = |value: &f64| value.to_bits() == first.to_bits();
                values.iter().all(is_first).then_some(Value::Double(first))
            }
            _ => None,
        }
    }

    /// Returns codes and values, if the block is a dictionary.
    pub fn as_dictionary(&self) -> Option<(&[u32], &DistinctValues)> {
        match &self.data {
            BlockData::Dictionary { codes, values } => Some((codes, values)),
            _ => None,
        }
    }

    /// Returns the smallest and greatest value if all are of one numeric or time type. NaN is the
    /// smallest double.
    pub fn min_max(&self) -> Option<(Value, Value)> {
        let range = |values: &[i64]| self.range(values, i64::cmp);
        match &self.data {
            BlockData::Constant(value) if self.len > 0 => Some((value.clone(), value.clone())),
            BlockData::Int32(values) => self
                .range(values, i32::cmp)
                .map(|(min, max)| (Value::Int32(min), Value::Int32(max))),
            BlockData::Int64(values) => {
                range(values).map(|(min, max)| (Value::Int64(min), Value::Int64(max)))
            }
            BlockData::ShortInt64(values) => self
                .range(values, i16::cmp)
                .map(|(min, max)| (Value::Int64(min.into()), Value::Int64(max.into()))),
            BlockData::DateTime(values) => {
                range(values).map(|(min, max)| (Value::DateTime(min), Value::DateTime(max)))
            }
            BlockData::Double(values) => {
                let order = |a: &f64, b: &f64| match (a.is_nan(), b.is_nan()) {
                    (false, false) => a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal),
                    (a, b) => b.cmp(&a),
                };
                self.range(values, order)
                    .map(|(min, max)| (Value::Double(min), Value::Double(max)))
            }
            _ => None,
        }
    }

    fn range<T: Copy>(
        &self,
        values: &[T],
        order: impl Fn(&T, &T) -> std::cmp::Ordering,
    ) -> Option<(T, T)> {
        let mut range: Option<(T, T)> = None;
        if self.presence.is_none() {
            let mut all = values.iter().copied();
            let first = all.next()?;
            return Some(all.fold((first, first), |(min, max), value| {
                let min = if order(&value, &min).is_lt() {
                    value
                } else {
                    min
                };
                let max = if order(&value, &max).is_gt() {
                    value
                } else {
                    max
                };
                (min, max)
            }));
        }
        for (at, value) in values.iter().enumerate() {
            if self.presence.as_ref().is_some_and(|there| !there.get(at)) {
                continue;
            }
            let (min, max) = range.get_or_insert((*value, *value));
            if order(value, min).is_lt() {
                *min = *value;
            }
            if order(value, max).is_gt() {
                *max = *value;
            }
        }
        range
    }

    /// Returns the approximate memory use in bytes. Shared values count in full.
    pub fn size_bytes(&self) -> usize {
        let each = self.data.place_bytes();
        let presence = self
            .presence
            .as_ref()
            .map_or(0, |bits| bits.words.len() * 8);
        size_of::<Self>() + each * self.len + presence
    }

    /// Returns the positions `range`, clipped to the block.
    pub fn slice(&self, range: Range<usize>) -> ColumnBlock {
        let end = range.end.min(self.len);
        let start = range.start.min(end);
        match self.slice_full(start..end) {
            Some(block) => block,
            None => self.gather(end - start, start..end),
        }
    }

    /// Fast path of [`slice`](Self::slice) for numbers without gaps, copied as one slice.
    fn slice_full(&self, range: Range<usize>) -> Option<ColumnBlock> {
        fn cut<T: Copy>(values: &[T], range: Range<usize>) -> Option<Vec<T>> {
            values.get(range).map(<[T]>::to_vec)
        }
        if self.presence.is_some() || range.is_empty() {
            return None;
        }
        let len = range.len();
        let data = match &self.data {
            BlockData::Int32(values) => BlockData::Int32(cut(values, range)?),
            BlockData::Int64(values) => BlockData::Int64(cut(values, range)?),
            BlockData::ShortInt64(values) => BlockData::ShortInt64(cut(values, range)?),
            BlockData::Double(values) => BlockData::Double(cut(values, range)?),
            BlockData::DateTime(values) => BlockData::DateTime(cut(values, range)?),
            _ => return None,
        };
        Some(ColumnBlock::from_parts(len, data, None))
    }

    /// Returns the positions `indices`, in that order; positions beyond the end are missing.
    pub fn select(&self, indices: &[u32]) -> ColumnBlock {
        self.gather(indices.len(), indices.iter().map(|at| *at as usize))
    }

    fn gather(&self, len: usize, places: impl Iterator<Item = usize> + Clone) -> ColumnBlock {
        let mut presence = PresenceBuilder::new(len);
        let mut gaps = 0;
        for (to, from) in places.clone().enumerate() {
            if self.is_missing(from) {
                presence.clear_bits(to, 1);
                gaps += 1;
            }
        }
        if gaps == len {
            return ColumnBlock::missing(len);
        }
        if let BlockData::Dictionary { values, .. } = &self.data
            && len < values.len() / FEW
        {
            let mut builder = ColumnBlockBuilder::new();
            places.for_each(|from| builder.push(self.value(from)));
            return builder.finish();
        }
        let data = match &self.data {
            BlockData::Missing => BlockData::Missing,
            BlockData::Constant(value) => BlockData::Constant(value.clone()),
            BlockData::Int32(values) => BlockData::Int32(pick(values, places)),
            BlockData::Int64(values) => BlockData::Int64(pick(values, places)),
            BlockData::ShortInt64(values) => BlockData::ShortInt64(pick(values, places)),
            BlockData::Double(values) => BlockData::Double(pick(values, places)),
            BlockData::DateTime(values) => BlockData::DateTime(pick(values, places)),
            BlockData::Bool(values) => BlockData::Bool(pick(values, places)),
            BlockData::Timestamp(values) => BlockData::Timestamp(pick(values, places)),
            BlockData::ObjectId(values) => BlockData::ObjectId(pick(values, places)),
            BlockData::Dictionary { codes, values } => BlockData::Dictionary {
                codes: pick(codes, places),
                values: values.for_len(len),
            },
            BlockData::Mixed(values) => BlockData::Mixed(pick(values, places)),
        };
        ColumnBlock::from_parts(len, data, presence.finish())
    }

    /// Converts longs to 16 bits if all of them fit.
    pub fn shortened(mut self) -> ColumnBlock {
        if let BlockData::Int64(values) = &self.data {
            let shorts: Result<Vec<i16>, _> = values.iter().map(|v| i16::try_from(*v)).collect();
            if let Ok(shorts) = shorts {
                self.data = BlockData::ShortInt64(shorts);
            }
        }
        self
    }

    /// Expands a constant into a vector, or into a dictionary for types without one.
    pub fn flatten(self) -> ColumnBlock {
        let BlockData::Constant(value) = self.data else {
            return self;
        };
        let len = self.len;
        let data = match value {
            Value::Int32(value) => BlockData::Int32(vec![value; len]),
            Value::Int64(value) => BlockData::Int64(vec![value; len]),
            Value::Double(value) => BlockData::Double(vec![value; len]),
            Value::DateTime(value) => BlockData::DateTime(vec![value; len]),
            Value::Bool(value) => BlockData::Bool(vec![value; len]),
            Value::Timestamp(value) => BlockData::Timestamp(vec![value; len]),
            Value::ObjectId(value) => BlockData::ObjectId(vec![value; len]),
            value => BlockData::Dictionary {
                codes: vec![0; len],
                values: vec![value].into(),
            },
        };
        ColumnBlock::from_parts(len, data, self.presence)
    }
}

/// A selection of less than one in so many distinct values has a dictionary of its own.
const FEW: usize = 4;

fn pick<T: Clone + Default>(values: &[T], places: impl Iterator<Item = usize>) -> Vec<T> {
    places
        .map(|at| values.get(at).cloned().unwrap_or_default())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(values: &[Value]) -> ColumnBlock {
        ColumnBlock::from_values(values)
    }

    #[test]
    fn the_form_follows_the_values() {
        let form = |values: &[Value]| block(values).data;
        assert!(matches!(form(&[]), BlockData::Missing));
        assert!(matches!(form(&[Value::Missing]), BlockData::Missing));
        assert!(matches!(form(&[1.into(), 2.into()]), BlockData::Int32(_)));
        assert!(matches!(
            form(&["a".into(), "b".into()]),
            BlockData::Dictionary { .. }
        ));
        assert!(matches!(
            form(&["a".into(), "a".into()]),
            BlockData::Constant(_)
        ));
        assert!(matches!(form(&[1.into(), 2.5.into()]), BlockData::Mixed(_)));
        let strings = block(&["a".into(), Value::Null, "a".into()]);
        let (codes, values) = strings.as_dictionary().unwrap();
        assert_eq!((codes, values.len()), (&[0, 1, 0][..], 2));
    }

    #[test]
    fn appended_blocks_hold_all_values() {
        let parts = [
            vec![],
            vec![Value::Missing],
            vec![7.into(), 8.into(), 9.into()],
            vec![7i64.into(), 9i64.into()],
            vec![7i64.into(), (1i64 << 40).into()],
            vec![0.5.into(), f64::NAN.into()],
            vec![Value::DateTime(4), Value::DateTime(5)],
            vec!["a".into(), "b".into(), "a".into()],
            vec![7.into(), Value::Missing, 8.into()],
            vec![1.into(), 2.5.into(), Value::Null],
        ];
        for first in &parts {
            for second in &parts {
                for third in &parts {
                    let mut builder = ColumnBlockBuilder::new();
                    let mut expected = Vec::new();
                    for part in [first, second, third] {
                        // Not the first position, and one beyond the end.
                        let from = part.len().min(1);
                        builder.append(&block(part).shortened(), from..part.len() + 1);
                        expected.extend(part.iter().skip(1).cloned());
                        expected.push(Value::Missing);
                        builder.append(&block(part).shortened(), 0..part.len());
                        expected.extend(part.iter().cloned());
                    }
                    let shown = |values: &[Value]| format!("{values:?}");
                    let found = builder.finish().to_values();
                    assert_eq!(shown(&found), shown(&expected));
                }
            }
        }
    }

    #[test]
    fn gaps_are_bits() {
        let block = block(&[7.into(), Value::Missing, 9.into()]);
        assert_eq!(block.presence().unwrap().words(), [0b101]);
        assert_eq!((block.len(), block.present_count()), (3, 2));
        assert!(block.is_missing(1) && block.is_missing(3) && !block.is_missing(2));
        assert!(matches!(block.value(2), ValueRef::Int32(9)));
        assert_eq!(block.as_i32(), Some(&[7, 0, 9][..]));

        let mut builder = PresenceBuilder::new(200);
        builder.clear_range(60, 70);
        builder.clear_bits(190, 0b11);
        let presence = builder.finish().unwrap();
        let there: Vec<usize> = (0..200).filter(|at| presence.get(*at)).collect();
        let expected = (0..200).filter(|at| !(60..130).contains(at) && !(190..192).contains(at));
        assert_eq!(there, expected.collect::<Vec<_>>());
        assert_eq!(presence.count(), 128);
        assert_eq!(presence.words()[3] >> 8, 0, "nothing behind the last value");
    }

    #[test]
    fn small_longs_take_two_bytes() {
        let longs = |values: &[i64]| {
            let values = values.iter().map(|value| Value::Int64(*value));
            block(&values.collect::<Vec<_>>()).shortened()
        };
        let shorts = longs(&[-32_768, 0, 32_767]);
        assert!(matches!(shorts.data(), BlockData::ShortInt64(_)));
        assert!(matches!(shorts.value(0), ValueRef::Int64(-32_768)));
        assert!(matches!(
            shorts.min_max(),
            Some((Value::Int64(-32_768), Value::Int64(32_767)))
        ));
        assert_eq!(shorts.size_bytes(), size_of::<ColumnBlock>() + 6);
        for wide in [32_768, -32_769, i64::MAX] {
            assert_eq!(longs(&[1, wide]).as_i64(), Some(&[1, wide][..]));
        }
        let gap = block(&[Value::Int64(7), Value::Missing]).shortened();
        assert!(matches!(gap.value(0), ValueRef::Int64(7)) && gap.is_missing(1));
    }

    #[test]
    fn smallest_and_greatest() {
        let range = |values: &[Value]| {
            let (min, max) = block(values).min_max()?;
            Some((format!("{:?}", min.as_ref()), format!("{:?}", max.as_ref())))
        };
        let text = |a: &str, b: &str| Some((a.to_owned(), b.to_owned()));
        assert_eq!(
            range(&[3.into(), Value::Missing, (-1).into()]),
            text("Int32(-1)", "Int32(3)")
        );
        let doubles = [2.5.into(), f64::NAN.into(), 1.0.into()];
        assert_eq!(range(&doubles), text("Double(NaN)", "Double(2.5)"));
        assert_eq!(range(&["a".into(), "b".into()]), None);
        assert_eq!(range(&[Value::Missing]), None);
    }

    #[test]
    fn selecting_beyond_the_end_gives_missing() {
        let block = block(&[1.into(), 2.into()]);
        let selected = block.select(&[1, 5, 0]);
        assert!(selected.is_missing(1));
        assert!(matches!(selected.value(2), ValueRef::Int32(1)));
        assert!(block.slice(5..9).is_empty());
        assert!(block.select(&[7]).is_all_missing());
    }
}

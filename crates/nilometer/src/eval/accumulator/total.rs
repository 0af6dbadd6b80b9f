//! `$sum` and `$avg`: a total over numbers of all types.
//!
//! Values that are not numbers are skipped, including dates and booleans. The total has the widest
//! type among its numbers; an int total that overflows becomes long, a long total double. An
//! average is a double, or a decimal if a decimal was among the numbers, and null for none.

use nilometer_bson::block::{BlockData, ColumnBlock};
use nilometer_bson::number::{DoubleSum, Number, NumberSum};
use nilometer_bson::{Decimal128, ValueRef};

/// Integers added at a time.
const WHOLE_CHUNK: usize = 1024;
/// A chunk of integers below this absolute value has a sum that fits in 64 bits.
const WHOLE_SMALL: i64 = i64::MAX / WHOLE_CHUNK as i64;

// What the first byte of a saved total says.
const HAS_LONG: u8 = 1;
const HAS_DOUBLE: u8 = 2;
const HAS_DECIMAL: u8 = 4;

/// Bytes of a saved total of an average with everything in it.
const SAVED_BYTES_MAX: usize = 1 + 16 + 32 + 16 + 8;

/// A running total. Integers, doubles and decimals are kept apart until the end, each exact, so
/// that the result does not depend on order or on how they were added.
#[derive(Clone, Debug)]
pub struct Total(Form);

/// Most totals are of one type and need few bytes: a `$group` keeps one for each group and accumulator.
#[derive(Clone, Debug)]
enum Form {
    /// Ints and longs, or nothing.
    Whole { sum: i64, has_long: bool },
    /// Finite doubles alone: the sum, and the compensation.
    Doubles { sum: f64, rest: f64 },
    /// Anything.
    Wide(Box<WideTotal>),
}

impl Default for Total {
    fn default() -> Self {
        Self(Form::Whole {
            sum: 0,
            has_long: false,
        })
    }
}

impl From<WideTotal> for Total {
    fn from(wide: WideTotal) -> Self {
        let [sum, rest, _, special] = wide.doubles.to_parts();
        let sum_of_whole = i64::try_from(wide.whole);
        Self(match (&wide.decimals, wide.has_double, sum_of_whole) {
            (None, false, Ok(sum)) => Form::Whole {
                sum,
                has_long: wide.has_long,
            },
            (None, true, Ok(0)) if !wide.has_long && special == 0.0 => Form::Doubles { sum, rest },
            _ => Form::Wide(Box::new(wide)),
        })
    }
}

impl Total {
    /// Creates the total of ints, or of ints and longs.
    pub(crate) fn of_whole(whole: i128, has_long: bool) -> Self {
        let mut total = Self::default();
        total.add_sum(whole, has_long);
        total
    }

    /// Returns the bytes beside the total itself.
    #[inline]
    pub(super) fn heap_bytes(&self) -> usize {
        match &self.0 {
            Form::Whole { .. } | Form::Doubles { .. } => 0,
            Form::Wide(wide) => {
                let decimals = wide.decimals.as_ref();
                size_of::<WideTotal>() + decimals.map_or(0, |_| size_of::<NumberSum>())
            }
        }
    }

    fn to_wide(&self) -> WideTotal {
        match &self.0 {
            Form::Whole { sum, has_long } => WideTotal {
                whole: i128::from(*sum),
                has_long: *has_long,
                ..WideTotal::default()
            },
            Form::Doubles { sum, rest } => WideTotal {
                doubles: DoubleSum::from_parts([*sum, *rest, 0.0, 0.0]),
                has_double: true,
                ..WideTotal::default()
            },
            Form::Wide(wide) => WideTotal::clone(wide),
        }
    }

    fn widen(&mut self) -> &mut WideTotal {
        if !matches!(self.0, Form::Wide(_)) {
            self.0 = Form::Wide(Box::new(self.to_wide()));
        }
        match &mut self.0 {
            Form::Wide(wide) => wide,
            _ => unreachable!("the total was widened"),
        }
    }

    /// Adds a sum of ints, or of ints and longs.
    #[inline]
    fn add_sum(&mut self, whole: i128, is_long: bool) {
        match &mut self.0 {
            Form::Whole { sum, has_long } => {
                if let Ok(more) = i64::try_from(i128::from(*sum) + whole) {
                    *sum = more;
                    *has_long |= is_long;
                    return;
                }
            }
            _ if whole == 0 && !is_long => return,
            _ => {}
        }
        let wide = self.widen();
        wide.whole += whole;
        wide.has_long |= is_long;
    }

    /// Changes the sum of doubles.
    #[inline]
    fn change_doubles(&mut self, change: impl FnOnce(&mut DoubleSum)) {
        let (sum, rest) = match &self.0 {
            Form::Doubles { sum, rest } => (*sum, *rest),
            Form::Whole {
                sum: 0,
                has_long: false,
            } => (0.0, 0.0),
            _ => {
                let wide = self.widen();
                change(&mut wide.doubles);
                wide.has_double = true;
                return;
            }
        };
        let mut doubles = DoubleSum::from_parts([sum, rest, 0.0, 0.0]);
        change(&mut doubles);
        let [sum, rest, _, special] = doubles.to_parts();
        self.0 = match special == 0.0 {
            true => Form::Doubles { sum, rest },
            false => Form::Wide(Box::new(WideTotal {
                doubles,
                has_double: true,
                ..WideTotal::default()
            })),
        };
    }

    /// Adds a value; returns false if it is not a number.
    #[inline]
    pub fn add(&mut self, value: ValueRef<'_>) -> bool {
        match value {
            ValueRef::Double(v) => self.change_doubles(|doubles| doubles.add(v)),
            ValueRef::Int32(v) => self.add_sum(i128::from(v), false),
            ValueRef::Int64(v) => self.add_sum(i128::from(v), true),
            ValueRef::Decimal128(v) => {
                let decimals = &mut self.widen().decimals;
                decimals.get_or_insert_default().add(Number::Decimal(v));
            }
            _ => return false,
        }
        true
    }

    /// Adds doubles in order.
    pub fn add_f64s(&mut self, values: &[f64]) {
        if !values.is_empty() {
            self.change_doubles(|doubles| doubles.add_all(values));
        }
    }

    /// Adds ints or longs; `wrap` names the type.
    pub(super) fn add_whole<T: Copy + Into<i64>>(
        &mut self,
        values: &[T],
        wrap: fn(T) -> ValueRef<'static>,
    ) {
        let Some(first) = values.first() else {
            return;
        };
        let is_long = matches!(wrap(*first), ValueRef::Int64(_));
        for values in values.chunks(WHOLE_CHUNK) {
            // A loop without carries, which can be vectorised: correct as long as no value is so
            // large that the sum might overflow.
            let (mut sum, mut bits) = (0i64, 0i64);
            for value in values {
                let value: i64 = (*value).into();
                sum = sum.wrapping_add(value);
                bits |= value ^ (value >> 63);
            }
            let sum = if bits < WHOLE_SMALL {
                i128::from(sum)
            } else {
                let wide = values.iter().map(|value| i128::from((*value).into()));
                wide.sum::<i128>()
            };
            self.add_sum(sum, is_long);
        }
    }

    /// Adds an int or long `count` times; returns false for other values, which must be added one
    /// by one.
    pub(super) fn add_whole_repeated(&mut self, value: ValueRef<'_>, count: u64) -> bool {
        let (value, is_long) = match value {
            ValueRef::Int32(v) => (i128::from(v), false),
            ValueRef::Int64(v) => (i128::from(v), true),
            _ => return false,
        };
        self.add_sum(value * i128::from(count), is_long && count > 0);
        true
    }

    /// Merges another total.
    pub fn merge(&mut self, other: &Self) {
        match &other.0 {
            Form::Whole { sum, has_long } => self.add_sum(i128::from(*sum), *has_long),
            Form::Doubles { sum, rest } => {
                let other = DoubleSum::from_parts([*sum, *rest, 0.0, 0.0]);
                self.change_doubles(|doubles| doubles.merge(&other));
            }
            Form::Wide(other) => self.widen().merge(other),
        }
    }

    /// Returns the total as bytes, with everything that was kept apart.
    pub(super) fn save(&self) -> Vec<u8> {
        self.to_wide().save()
    }

    /// Restores a total from the start of `saved`; returns it with the bytes that follow.
    pub(super) fn restore(saved: &[u8]) -> Option<(Self, &[u8])> {
        let (total, rest) = WideTotal::restore(saved)?;
        Some((total.into(), rest))
    }

    /// Returns the average of a saved total that is followed by the number of its values, where one double holds the total: without
    /// the total between both. `None` for others, and for none.
    pub(super) fn simple_average(saved: &[u8]) -> Option<f64> {
        WideTotal::simple_average(saved)
    }

    /// Returns the total.
    pub fn total(&self) -> Number {
        match &self.0 {
            Form::Whole { sum, has_long } => {
                let int = i32::try_from(*sum).ok().filter(|_| !has_long);
                int.map_or(Number::Long(*sum), Number::Int)
            }
            Form::Doubles { sum, rest } => Number::Double(sum + rest),
            Form::Wide(wide) => wide.total(),
        }
    }

    /// Returns the total divided by `count`; `None` if `count` is 0.
    pub fn average(&self, count: u64) -> Option<Number> {
        if count == 0 {
            return None;
        }
        match &self.0 {
            Form::Whole { sum, .. } if sum.unsigned_abs() <= 1 << f64::MANTISSA_DIGITS => {
                Some(Number::Double(*sum as f64 / count as f64))
            }
            Form::Doubles { sum, rest } => Some(Number::Double((sum + rest) / count as f64)),
            Form::Wide(wide) => wide.average(count),
            Form::Whole { .. } => self.to_wide().average(count),
        }
    }
}

/// A total of numbers of any types.
#[derive(Clone, Debug, Default)]
struct WideTotal {
    /// Sum of ints and longs, exact.
    whole: i128,
    has_long: bool,
    doubles: DoubleSum,
    has_double: bool,
    decimals: Option<Box<NumberSum>>,
}

impl WideTotal {
    fn merge(&mut self, other: &Self) {
        self.whole += other.whole;
        self.has_long |= other.has_long;
        if other.has_double {
            self.doubles.merge(&other.doubles);
            self.has_double = true;
        }
        if let Some(decimals) = &other.decimals {
            self.decimals.get_or_insert_default().merge(decimals);
        }
    }

    /// Returns the total as bytes:
    ///
    /// ```text
    /// parts (1)  whole numbers (16)  doubles (32, if there are any)  decimal (16, if there is one)
    /// ```
    fn save(&self) -> Vec<u8> {
        let flag = |bit: u8, is_set: bool| if is_set { bit } else { 0 };
        let parts = flag(HAS_LONG, self.has_long)
            | flag(HAS_DOUBLE, self.has_double)
            | flag(HAS_DECIMAL, self.decimals.is_some());
        let mut out = Vec::with_capacity(SAVED_BYTES_MAX);
        out.push(parts);
        out.extend_from_slice(&self.whole.to_le_bytes());
        if self.has_double {
            let parts = self.doubles.to_parts();
            out.extend(parts.iter().flat_map(|part| part.to_le_bytes()));
        }
        if let Some(decimals) = &self.decimals {
            out.extend_from_slice(&decimals.total_decimal().to_le_bytes());
        }
        out
    }

    fn restore(saved: &[u8]) -> Option<(Self, &[u8])> {
        let (parts, rest) = saved.split_first()?;
        let (whole, mut rest) = rest.split_first_chunk()?;
        let mut total = Self {
            whole: i128::from_le_bytes(*whole),
            has_long: parts & HAS_LONG != 0,
            ..Self::default()
        };
        if parts & HAS_DOUBLE != 0 {
            (total.doubles, rest) = saved_doubles(rest)?;
            total.has_double = true;
        }
        if parts & HAS_DECIMAL != 0 {
            let (decimal, after) = rest.split_first_chunk()?;
            let decimal = Number::Decimal(Decimal128::from_le_bytes(*decimal));
            total.decimals.get_or_insert_default().add(decimal);
            rest = after;
        }
        Some((total, rest))
    }

    fn simple_average(saved: &[u8]) -> Option<f64> {
        let (parts, rest) = saved.split_first()?;
        let (whole, rest) = rest.split_first_chunk()?;
        let whole = i128::from_le_bytes(*whole);
        let (total, count) = match parts & (HAS_DOUBLE | HAS_DECIMAL) {
            0 if whole.unsigned_abs() <= 1 << f64::MANTISSA_DIGITS => (whole as f64, rest),
            HAS_DOUBLE if whole == 0 => {
                let (doubles, count) = saved_doubles(rest)?;
                (doubles.total(), count)
            }
            _ => return None,
        };
        let count = u64::from_le_bytes(count.try_into().ok()?);
        (count != 0).then(|| total / count as f64)
    }

    fn total(&self) -> Number {
        if self.decimals.is_some() {
            self.with_decimals().total()
        } else if self.has_double {
            Number::Double(self.as_doubles().total())
        } else {
            let int = i32::try_from(self.whole).ok().filter(|_| !self.has_long);
            match (int, i64::try_from(self.whole)) {
                (Some(int), _) => Number::Int(int),
                (None, Ok(long)) => Number::Long(long),
                (None, Err(_)) => Number::Double(self.as_doubles().total()),
            }
        }
    }

    fn average(&self, count: u64) -> Option<Number> {
        if count == 0 {
            return None;
        }
        if self.decimals.is_some() {
            return self.with_decimals().average(count);
        }
        if let Some(whole) = self.as_small_whole() {
            return Some(Number::Double(whole / count as f64));
        }
        Some(Number::Double(self.as_doubles().total() / count as f64))
    }

    /// Returns the total of the integers, if a double represents it exactly.
    fn as_small_whole(&self) -> Option<f64> {
        let whole = i64::try_from(self.whole).ok()?;
        let is_exact = !self.has_double && whole.unsigned_abs() <= 1 << f64::MANTISSA_DIGITS;
        is_exact.then_some(whole as f64)
    }

    /// Returns the total of integers and doubles.
    fn as_doubles(&self) -> DoubleSum {
        let mut sum = self.doubles;
        let mut rest = self.whole;
        while rest != 0 {
            let piece = rest.clamp(i128::from(i64::MIN), i128::from(i64::MAX));
            sum.add_i64(piece as i64);
            rest -= piece;
        }
        sum
    }

    fn with_decimals(&self) -> NumberSum {
        let mut sum = self.decimals.as_deref().copied().unwrap_or_default();
        sum.add_doubles(&self.as_doubles());
        sum
    }
}

/// Returns the saved sum of doubles, and the bytes after it.
fn saved_doubles(saved: &[u8]) -> Option<(DoubleSum, &[u8])> {
    let (doubles, rest) = saved.split_first_chunk::<32>()?;
    let (doubles, _) = doubles.as_chunks::<8>();
    let mut numbers = [0.0; 4];
    for (number, bytes) in numbers.iter_mut().zip(doubles) {
        *number = f64::from_le_bytes(*bytes);
    }
    Some((DoubleSum::from_parts(numbers), rest))
}

/// The total of a column of numbers of one type without gaps: computed once, it replaces adding
/// each value.
///
/// Whole numbers are added exactly. Doubles are added in pairs of doubles, as in every [`Total`];
/// the order of addition is visible only if the exact sum is within 2^-100 of the middle between
/// two doubles.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ColumnTotal {
    /// Ints or longs.
    Whole {
        /// Number of values.
        count: u32,
        /// True if they are longs.
        is_long: bool,
        /// Their sum.
        sum: i64,
    },
    /// Doubles, all of them finite.
    Doubles {
        /// Number of values.
        count: u32,
        /// Their sum, rounded.
        sum: f64,
        /// Compensation: the part of the total not in `sum`.
        rest: f64,
    },
}

impl ColumnTotal {
    /// Computes the total of a column; `None` if it holds anything else, or the sum does not fit.
    pub fn of(column: &ColumnBlock) -> Option<Self> {
        if !column.is_all_present() {
            return None;
        }
        let count = u32::try_from(column.len()).ok()?;
        let mut total = Total::default();
        match column.data() {
            BlockData::Int32(values) => total.add_whole(values, ValueRef::Int32),
            BlockData::Int64(values) => total.add_whole(values, ValueRef::Int64),
            BlockData::ShortInt64(values) => {
                total.add_whole(values, |value| ValueRef::Int64(value.into()));
            }
            BlockData::Double(values) => total.add_f64s(values),
            BlockData::Constant(value) => {
                if !total.add_whole_repeated(value.as_ref(), u64::from(count)) {
                    return None;
                }
            }
            _ => return None,
        }
        match total.0 {
            Form::Whole { sum, has_long } => Some(Self::Whole {
                count,
                is_long: has_long,
                sum,
            }),
            Form::Doubles { sum, rest } => {
                let is_finite = sum.is_finite() && rest.is_finite();
                is_finite.then_some(Self::Doubles { count, sum, rest })
            }
            Form::Wide(_) => None,
        }
    }

    /// Returns the number of values.
    pub fn count(&self) -> u64 {
        match self {
            Self::Whole { count, .. } | Self::Doubles { count, .. } => u64::from(*count),
        }
    }

    /// Returns the total of the values behind the first, of which `first` is the total; `None` if it is not exactly their difference.
    pub fn behind(&self, first: &Self) -> Option<Self> {
        match (self, first) {
            (
                Self::Whole {
                    count,
                    is_long,
                    sum,
                },
                Self::Whole {
                    count: count_first,
                    is_long: first_is_long,
                    sum: sum_first,
                },
            ) if is_long == first_is_long => Some(Self::Whole {
                count: count.checked_sub(*count_first)?,
                is_long: *is_long,
                sum: sum.checked_sub(*sum_first)?,
            }),
            _ => None,
        }
    }
}

impl Total {
    /// Adds the numbers of a column.
    pub fn add_column(&mut self, column: &ColumnTotal) {
        match column {
            ColumnTotal::Whole { is_long, sum, .. } => self.add_sum(i128::from(*sum), *is_long),
            ColumnTotal::Doubles { sum, rest, .. } => {
                let column = DoubleSum::from_parts([*sum, *rest, 0.0, 0.0]);
                self.change_doubles(|doubles| doubles.merge(&column));
            }
        }
    }
}

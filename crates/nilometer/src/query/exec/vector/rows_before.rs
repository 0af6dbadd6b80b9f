//! The rows of a block that may be among the first few: what a sort with a limit, or a `$top`, reads of a block.
//!
//! ```text
//! {v: -1, t: 1}, worst kept row {v: 90, t: 10:00}
//!
//! control.max.v 88               no row, and no column is decoded
//! column v   |95 90 12 90|       row 0, and of the rows that are equal in v those before 10:00
//!
//! the first two of the block     row 0, and of the rows with 90 the one with the least time
//! ```
//!
//! The answer may have rows too many, never too few: the reader compares the keys of those it gets.

use std::cmp::Ordering;

use nilometer_bson::block::{BlockData, ColumnBlock};
use nilometer_bson::order::{CanonicalType, canonical_type};
use nilometer_bson::{Value, ValueRef};

use super::arithmetic::order_of_doubles;
use super::compare::select_compare;
use super::filter::without;
use crate::error::Result;
use crate::eval::matcher::CompareOp;
use crate::eval::sort_key::{SortBy, SortKey, SortPart, SortPattern};
use crate::query::batch::{MeasurementBlock, MeasurementShape, Selection};
use crate::query::source::place_of;

/// Fields other than the time behind the first one by which a sort may order, at most: with two, a row that the first excludes may
/// have arrays in both, which is an error.
const FURTHER_MAX: usize = 1;

/// An end of the rows in the order of a pattern.
#[derive(Clone, Copy)]
pub(crate) struct SortEnd<'p> {
    pattern: &'p SortPattern,
    /// Wants the last rows, and of equal ones the later; else the first, and of equal ones the earlier.
    last: bool,
}

/// The selected rows of a block, compared with one part of a key.
struct Compared {
    /// Certainly wanted.
    wanted: Selection,
    /// Equal: the next part decides.
    equal: Selection,
}

impl Compared {
    fn all(selection: &Selection, order: Ordering) -> Self {
        let rows = |is: bool| match is {
            true => selection.clone(),
            false => Selection::none(),
        };
        Self {
            wanted: rows(order.is_lt()),
            equal: rows(order.is_eq()),
        }
    }
}

impl<'p> SortEnd<'p> {
    /// Looks for the first rows in the order of the pattern, or the last.
    pub(crate) fn new(pattern: &'p SortPattern, last: bool) -> Self {
        Self { pattern, last }
    }

    /// Returns the selected rows of a block of which `count` at most are wanted, and rows before them are in others: those
    /// with keys before `worst`, or with the last rows those behind it or equal. The rows are in their order in the block.
    pub(crate) fn rows(
        &self,
        block: &MeasurementBlock,
        worst: Option<&SortKey>,
        count: usize,
    ) -> Result<Selection> {
        if !self.may_leave_out(&block.shape) {
            return Ok(block.selection.clone());
        }
        let mut rows = block.selection.clone();
        if let Some(worst) = worst {
            if !self.may_be_in(block, worst)? {
                return Ok(Selection::none());
            }
            rows = self.rows_beyond(worst, 0, block, &rows)?;
        }
        self.best(count, 0, block, &rows)
    }

    /// False if the key of a row that is left out may be an error.
    fn may_leave_out(&self, shape: &MeasurementShape) -> bool {
        let mut further = 0;
        for (at, part) in self.pattern.parts().iter().enumerate() {
            let SortBy::Field(path) = &part.by else {
                return false;
            };
            let is_meta = shape.meta_field.as_deref() == Some(path.first());
            // A number in a path may name an element and a member.
            if path.len() > 1 && !is_meta {
                return false;
            }
            further += usize::from(at > 0 && path.as_str() != &*shape.time_field);
        }
        further <= FURTHER_MAX
    }

    /// Returns the best rows of `selection`, equal in all parts before `at`.
    fn best(
        &self,
        count: usize,
        at: usize,
        block: &MeasurementBlock,
        selection: &Selection,
    ) -> Result<Selection> {
        if selection.len() <= count {
            return Ok(selection.clone());
        }
        if count == 0 {
            return Ok(Selection::none());
        }
        let Some(part) = self.pattern.parts().get(at) else {
            let from = if self.last {
                selection.len() - count
            } else {
                0
            };
            return Ok(selection.part(from..from + count));
        };
        let SortBy::Field(path) = &part.by else {
            return Ok(selection.clone());
        };
        if block.shape.meta_field.as_deref() == Some(path.first()) {
            return self.best(count, at + 1, block, selection);
        }
        if path.len() > 1 {
            return Ok(selection.clone());
        }
        let Some(column) = block.column(path.as_str())? else {
            return self.best(count, at + 1, block, selection);
        };
        let descending = part.descending != self.last;
        let Some(bound) = nth(column, selection, count, descending) else {
            return Ok(selection.clone());
        };
        let Some(compared) = self.compared(part, &bound, block, selection)? else {
            return Ok(selection.clone());
        };
        let left = count.saturating_sub(compared.wanted.len());
        let equal = self.best(left, at + 1, block, &compared.equal)?;
        Ok(merged(&compared.wanted, &equal))
    }

    /// Returns the rows of `selection`, equal in all parts before `at`, that are beyond a key.
    fn rows_beyond(
        &self,
        key: &SortKey,
        at: usize,
        block: &MeasurementBlock,
        selection: &Selection,
    ) -> Result<Selection> {
        let part = self.pattern.parts().get(at);
        let Some((part, bound)) = part.zip(key.values().get(at)) else {
            return Ok(match self.last {
                true => selection.clone(),
                false => Selection::none(),
            });
        };
        let Some(compared) = self.compared(part, bound, block, selection)? else {
            return Ok(selection.clone());
        };
        if compared.equal.is_empty() {
            return Ok(compared.wanted);
        }
        let equal = self.rows_beyond(key, at + 1, block, &compared.equal)?;
        Ok(match (compared.wanted.is_empty(), equal.is_empty()) {
            (_, true) => compared.wanted,
            (true, _) => equal,
            _ => merged(&compared.wanted, &equal),
        })
    }

    /// Returns how a value sorts relative to a bound of a part: less if it is wanted.
    fn order(&self, part: &SortPart, value: ValueRef<'_>, bound: &Value) -> Ordering {
        let value = match value {
            ValueRef::Missing => ValueRef::Null,
            value => value,
        };
        let collator = self.pattern.collator();
        let order = nilometer_bson::order::compare_with(value, bound.as_ref(), collator);
        match part.descending != self.last {
            true => order.reverse(),
            false => order,
        }
    }

    /// Compares rows with a part of the key; `None` if columns do not tell.
    fn compared(
        &self,
        part: &SortPart,
        bound: &Value,
        block: &MeasurementBlock,
        selection: &Selection,
    ) -> Result<Option<Compared>> {
        let SortBy::Field(path) = &part.by else {
            return Ok(None);
        };
        if block.shape.meta_field.as_deref() == Some(path.first()) {
            let value = block.plain_meta(path);
            return Ok(value.map(|value| Compared::all(selection, self.order(part, value, bound))));
        }
        if path.len() > 1 {
            return Ok(None);
        }
        let missing = self.order(part, ValueRef::Missing, bound);
        let Some(column) = block.column(path.as_str())? else {
            return Ok(Some(Compared::all(selection, missing)));
        };
        let Some(kind) = common_type(column) else {
            return Ok(match column.is_all_missing() {
                true => Some(Compared::all(selection, missing)),
                false => None,
            });
        };
        let is_gap = |row: u32| column.is_missing(row as usize);
        let Some(mut found) = self.compared_values(part, bound, (column, kind), selection) else {
            return Ok(None);
        };
        if !column.is_all_present() {
            let gaps = Compared::all(&selection.filter(is_gap), missing);
            found.wanted = merged(&found.wanted, &gaps.wanted);
            found.equal = merged(&found.equal, &gaps.equal);
        }
        Ok(Some(found))
    }

    /// Compares the present values of a column of one type.
    fn compared_values(
        &self,
        part: &SortPart,
        bound: &Value,
        (column, kind): (&ColumnBlock, CanonicalType),
        selection: &Selection,
    ) -> Option<Compared> {
        let present;
        let present = match column.is_all_present() {
            true => selection,
            false => {
                present = selection.filter(|row| !column.is_missing(row as usize));
                &present
            }
        };
        if let BlockData::Constant(value) = column.data() {
            let order = self.order(part, value.as_ref(), bound);
            return Some(Compared::all(present, order));
        }
        let is_descending = part.descending != self.last;
        let order = kind.cmp(&canonical_type(bound.as_ref()));
        if order.is_ne() {
            let order = if is_descending {
                order.reverse()
            } else {
                order
            };
            return Some(Compared::all(present, order));
        }
        let select = |op| select_compare(column, op, bound, present);
        // NaN sorts before all numbers, and no comparison selects it.
        let wanted = match is_descending {
            true => select(CompareOp::Gt)?,
            false => without(present, &select(CompareOp::Gte)?),
        };
        // A bound between two values of the type is equal to none.
        let equal = select(CompareOp::Eq).or_else(|| is_fraction(bound).then(Selection::none))?;
        Some(Compared { wanted, equal })
    }

    /// False if the bounds of the bucket exclude all rows, judged without decoding a column.
    fn may_be_in(&self, block: &MeasurementBlock, key: &SortKey) -> Result<bool> {
        let (Some(part), Some(key)) = (self.pattern.parts().first(), key.values().first()) else {
            return Ok(true);
        };
        let SortBy::Field(path) = &part.by else {
            return Ok(true);
        };
        let name = path.as_str();
        // The bound of the time is rounded.
        if path.len() > 1 || !block.shape.shows_column(name) || *name == *block.shape.time_field {
            return Ok(true);
        }
        let (min, max) = (block.bucket.min(name), block.bucket.max(name));
        // Values between two numbers are numbers.
        let is_number = |bound| canonical_type(bound) == CanonicalType::Number;
        if !is_number(min) || !is_number(max) {
            return Ok(true);
        }
        let is_descending = part.descending != self.last;
        let best = match is_descending {
            true => max,
            // A measurement without the field would sort before.
            false if !has_all_numbers(block, name)? => return Ok(true),
            false => min,
        };
        Ok(match self.order(part, best, key) {
            Ordering::Less => true,
            Ordering::Equal => self.last || self.pattern.parts().len() > 1,
            // A missing value is less than any number.
            Ordering::Greater => is_descending && self.order(part, ValueRef::Missing, key).is_le(),
        })
    }
}

/// Returns the value that sorts at place `count` among the selected ones of a column of numbers or dates without gaps.
fn nth(
    column: &ColumnBlock,
    selection: &Selection,
    count: usize,
    descending: bool,
) -> Option<Value> {
    fn place<T: Copy>(
        values: &[T],
        selection: &Selection,
        at: usize,
        compare: impl Fn(&T, &T) -> Ordering,
    ) -> Option<T> {
        let mut list = Vec::with_capacity(selection.len());
        selection.for_each(|row| list.extend(values.get(row as usize).copied()));
        if at == 0 {
            return list.into_iter().min_by(compare);
        }
        let (_, found, _) = (at < list.len()).then(|| list.select_nth_unstable_by(at, compare))?;
        Some(*found)
    }
    /// Orders values for the direction.
    fn directed<T>(
        descending: bool,
        compare: impl Fn(&T, &T) -> Ordering,
    ) -> impl Fn(&T, &T) -> Ordering {
        move |a, b| match descending {
            true => compare(b, a),
            false => compare(a, b),
        }
    }
    let at = count.checked_sub(1)?;
    if !column.is_all_present() {
        return None;
    }
    match column.data() {
        BlockData::Int32(values) => {
            place(values, selection, at, directed(descending, i32::cmp)).map(Value::Int32)
        }
        BlockData::Int64(values) => {
            place(values, selection, at, directed(descending, i64::cmp)).map(Value::Int64)
        }
        BlockData::ShortInt64(values) => {
            let found = place(values, selection, at, directed(descending, i16::cmp));
            found.map(|value| Value::Int64(value.into()))
        }
        BlockData::Double(values) => {
            let compare = |a: &f64, b: &f64| order_of_doubles(*a, *b);
            place(values, selection, at, directed(descending, compare)).map(Value::Double)
        }
        BlockData::DateTime(values) => {
            place(values, selection, at, directed(descending, i64::cmp)).map(Value::DateTime)
        }
        BlockData::Constant(value) => Some(value.clone()),
        _ => None,
    }
}

/// True if it is known without decoding that all measurements of the bucket have a number as this field.
fn has_all_numbers(block: &MeasurementBlock, name: &str) -> Result<bool> {
    let Some(at) = place_of(block.bucket.columns(), name) else {
        return Ok(false);
    };
    if !block.bucket.has_total_at(at) {
        return Ok(false);
    }
    let total = block.bucket.total_at(at)?;
    Ok(total.is_some_and(|total| total.count() == u64::from(block.bucket.count())))
}

/// Returns the type of all present values of a column that kernels can compare.
fn common_type(column: &ColumnBlock) -> Option<CanonicalType> {
    match column.data() {
        BlockData::Int32(_)
        | BlockData::Int64(_)
        | BlockData::ShortInt64(_)
        | BlockData::Double(_) => Some(CanonicalType::Number),
        BlockData::DateTime(_) => Some(CanonicalType::Date),
        BlockData::Constant(Value::Array(_)) => None,
        BlockData::Constant(value) => Some(canonical_type(value.as_ref())),
        _ => None,
    }
}

fn is_fraction(bound: &Value) -> bool {
    matches!(bound, Value::Double(bound) if bound.fract() != 0.0)
}

/// Returns the rows of two selections without common rows.
fn merged(a: &Selection, b: &Selection) -> Selection {
    if a.is_empty() || b.is_empty() {
        return if a.is_empty() { b.clone() } else { a.clone() };
    }
    let mut rows = a.to_vec();
    rows.extend(b.to_vec());
    rows.sort_unstable();
    Selection::from_rows(rows)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use nilometer_bson::{DocumentBuilder, array, doc};

    use super::*;
    use crate::eval::ParseContext;
    use crate::query::batch::{FieldSet, MeasurementShape};
    use crate::query::exec::testing::{MemoryBuckets, in_context};

    /// Columns of one type, with and without gaps, with NaN, of several types, constant, and with arrays.
    fn block() -> MeasurementBlock {
        let doubles = [0.5, f64::NAN, -0.0, 0.0, 7.0, 7.0, f64::INFINITY, -3.5];
        let list: Vec<_> = (0..16usize)
            .map(|at| {
                let mut out = DocumentBuilder::new();
                out.append("t", Value::DateTime(1_700_000_000_000 + (at / 2) as i64));
                out.append("m", doc! {"k": 3});
                out.append("i", (at * 7 % 5) as i32);
                out.append("l", (at as i64 % 3) << 40);
                out.append("d", doubles[at % 8]);
                if at % 4 != 1 {
                    out.append("g", (at * 11 % 6) as f64 / 2.0);
                }
                out.append(
                    "x",
                    [
                        Value::from(2),
                        "a".into(),
                        Value::Null,
                        2.5.into(),
                        array![1, 9],
                    ][at % 5]
                        .clone(),
                );
                out.append("c", 2);
                out.finish()
            })
            .collect();
        let bucket = MemoryBuckets::new(&list, 20).first_bucket();
        MeasurementBlock {
            selection: Selection::all(bucket.count()),
            bucket,
            shape: Arc::new(MeasurementShape {
                time_field: "t".into(),
                meta_field: Some("m".into()),
                fields: FieldSet::All,
            }),
        }
    }

    #[test]
    fn the_first_rows_are_among_those_returned() {
        let block = block();
        let fields = ["i", "l", "d", "g", "x", "c", "t", "m.k", "none"];
        let mut left_out = 0;
        for (first, second) in fields.iter().flat_map(|a| fields.map(|b| (*a, b))) {
            for directions in [[1, 1], [1, -1], [-1, 1], [-1, -1]] {
                let mut pattern = DocumentBuilder::new();
                pattern.append(first, directions[0]);
                if second != first {
                    pattern.append(second, directions[1]);
                }
                let pattern = pattern.finish();
                let pattern = SortPattern::parse(pattern.as_ref(), &ParseContext::new()).unwrap();
                for selection in [
                    Selection::all(16),
                    Selection::Rows(vec![1, 2, 5, 6, 11, 12, 13]),
                ] {
                    let block = MeasurementBlock {
                        selection: selection.clone(),
                        ..block.clone()
                    };
                    in_context(|cx| {
                        let key = |document: &_| {
                            let document: &nilometer_bson::Document = document;
                            pattern.extract(document.as_ref(), &cx.eval).unwrap()
                        };
                        let keys: Vec<SortKey> = block.to_rows().unwrap().iter().map(key).collect();
                        let worst = keys.iter().map(Some).chain([None]);
                        for (worst, last) in worst.flat_map(|worst| [(worst, false), (worst, true)])
                        {
                            let mut rows: Vec<(u32, &SortKey)> =
                                selection.to_vec().into_iter().zip(&keys).collect();
                            rows.retain(|(_, key)| {
                                worst.is_none_or(|worst| match last {
                                    true => pattern.compare(key, worst).is_ge(),
                                    false => pattern.compare(key, worst).is_lt(),
                                })
                            });
                            rows.sort_by(|(_, a), (_, b)| pattern.compare(a, b));
                            if last {
                                rows.reverse();
                            }
                            for count in [1, 2, 5, 100] {
                                let end = SortEnd::new(&pattern, last);
                                let found = end.rows(&block, worst, count).unwrap().to_vec();
                                assert!(found.is_sorted());
                                left_out += selection.len() - found.len();
                                for (row, _) in rows.iter().take(count) {
                                    let what = (first, second, directions, last, count, worst);
                                    assert!(found.contains(row), "{row} of {found:?}: {what:?}");
                                }
                            }
                        }
                    });
                }
            }
        }
        assert!(left_out > 100_000, "{left_out}");
    }
}

//! Keys that differ between the measurements of a bucket: numbers of values, and rows in the order of their groups.
//!
//! ```text
//! key {level: {$floor: {$divide: ["$v", 10]}}, host: "$m.host"}
//!
//! column v   |12.0 31.0 12.0 17.5|
//! numbers    |  0    1    0    0 |    of results; the expression is evaluated once for each distinct value
//! groups     |  4    7    4    4 |    looked up once for each number and series of a block
//! rows       |  0    2    3 |  1 |    two runs, each in the order of the bucket
//! ```
//!
//! A part that reads one column is evaluated for values that were not met before. Any other part is computed as a
//! column of the block first ([`computed_columns`](crate::query::exec::vector::computed_columns)). The numbers are kept
//! from block to block, up to a limit, with the groups of the table they belong to.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;
use nilometer_bson::block::{BlockData, ColumnBlock};
use nilometer_bson::document::write_value;
use nilometer_bson::{Document, DocumentBuilder, Value, ValueRef};

use super::Table;
use super::vectorized::{BlockGroupPlan, GroupRun, KeyPart, series_of_block};
use crate::error::Result;
use crate::eval::{Dependencies, Expression};
use crate::query::batch::{MeasurementBlock, MeasurementShape, Selection};
use crate::query::exec::ExecContext;
use crate::query::exec::vector::computed_columns::column_of;

/// Values and pairs of numbers that are kept from block to block, at most; one block may add more.
const NUMBERS_MAX: usize = if cfg!(test) { 16 } else { 65_536 };

/// Bytes of values that are kept from block to block, at most; one block may add more.
const VALUE_BYTES_MAX: usize = 4 << 20;

/// A part of a key that is not constant in a block.
pub(super) struct RowPart {
    expression: Expression,
    /// The column it reads, if it reads no other field.
    column: Option<Box<str>>,
}

impl RowPart {
    /// Returns the part for an expression; `None` if it must be evaluated on whole documents.
    pub(super) fn of(expression: &Expression, shape: &MeasurementShape) -> Option<Self> {
        let mut reads = Dependencies::default();
        expression.dependencies(&mut reads);
        if reads.whole || reads.random {
            return None;
        }
        let mut fields = reads.top_level_fields().into_iter();
        let column = fields.next().filter(|name| shape.shows_column(name));
        Some(Self {
            column: column.filter(|_| fields.next().is_none()).map(Box::from),
            expression: expression.clone(),
        })
    }
}

impl RowPart {
    /// Returns the column it reads, if it reads no other field.
    pub(super) fn column(&self) -> Option<&str> {
        self.column.as_deref()
    }
}

/// The results of a part by the values it reads.
enum Results<'p, 'c> {
    /// The values themselves.
    Values,
    /// Those of an expression that reads the values as a field.
    Of(&'p Expression, &'p str, &'p ExecContext<'c>),
}

impl Results<'_, '_> {
    /// Returns the result for a value; `None` if it is the value.
    fn of(&self, value: ValueRef<'_>) -> Result<Option<Value>> {
        let Self::Of(expression, name, cx) = self else {
            return Ok(None);
        };
        let mut out = DocumentBuilder::new();
        out.append_ref(name, value);
        let result = expression.evaluate(out.finish().as_ref(), &cx.eval)?;
        Ok(Some(result))
    }
}

/// The type of values that are numbered by their bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Int,
    Long,
    Double,
    Date,
}

/// Values that are remembered by a hash of their bits, at most: a power of two.
pub(super) const RECENT: usize = 1024;

/// Numbers of the results of one part, by the values it reads.
#[derive(Default)]
struct PartNumbers {
    /// By type and bits.
    typed: HashMap<(Kind, u64), u32, RandomState>,
    /// Some of these of one type, with their bits, by a hash of the bits.
    recent: Vec<Option<(u64, u32)>>,
    kind: Option<Kind>,
    /// By number: the bits and the number of the date that followed last. Buckets of many series have the same times.
    next_dates: Vec<Option<(u64, u32)>>,
    /// Values of other types, and of mixed columns, by type and BSON.
    others: HashMap<Box<[u8]>, u32, RandomState>,
    /// Buffer of such a key.
    key: Vec<u8>,
    /// Numbers of results, as BSON: several values may give the same one.
    of_results: HashMap<Box<[u8]>, u32, RandomState>,
    results: Vec<Value>,
    bytes: usize,
}

/// Returns a document with one value.
fn bson(value: ValueRef<'_>) -> Document {
    let mut out = DocumentBuilder::new();
    out.append_ref("", value);
    out.finish()
}

impl PartNumbers {
    fn len(&self) -> usize {
        self.typed.len() + self.others.len()
    }

    /// Returns the number of the result for a value that was not met before.
    fn of_new(&mut self, value: ValueRef<'_>, result: &Results<'_, '_>) -> Result<u32> {
        let next = self.results.len() as u32;
        let Some(result) = result.of(value)? else {
            // Each value is its own result.
            self.results.push(value.to_value());
            return Ok(next);
        };
        let key = bson(result.as_ref());
        self.bytes += 2 * key.as_bytes().len();
        let number = *self.of_results.entry(key.as_bytes().into()).or_insert(next);
        if number == next {
            self.results.push(result);
        }
        Ok(number)
    }

    /// Returns the number of the result for a value of a type with few bits.
    fn of_typed(
        &mut self,
        bits: (Kind, u64),
        value: impl FnOnce() -> ValueRef<'static>,
        results: &Results<'_, '_>,
    ) -> Result<u32> {
        if let Some(number) = self.typed.get(&bits) {
            return Ok(*number);
        }
        let number = self.of_new(value(), results)?;
        self.typed.insert(bits, number);
        Ok(number)
    }

    /// Returns the number of the result for a value.
    fn of_other(&mut self, value: ValueRef<'_>, result: &Results<'_, '_>) -> Result<u32> {
        self.key.clear();
        self.key.push(value.type_code());
        write_value(&mut self.key, value);
        if let Some(number) = self.others.get(self.key.as_slice()) {
            return Ok(*number);
        }
        let number = self.of_new(value, result)?;
        self.bytes += 2 * self.key.len();
        self.others.insert(self.key.as_slice().into(), number);
        Ok(number)
    }

    /// Appends the numbers of a part's results in the selected rows of a block.
    fn of_block(
        &mut self,
        part: &RowPart,
        block: &MeasurementBlock,
        out: &mut Vec<u32>,
        cx: &ExecContext<'_>,
    ) -> Result<()> {
        let path = part.expression.as_field_path();
        let is_field = path.is_some_and(|path| path.len() == 1);
        // Values at a path are found without their objects in some blocks. Numbers are by results in all of them, then.
        let is_computed = path.is_some() && !is_field;
        let Some(name) = part.column.as_deref().filter(|_| !is_computed) else {
            let missing = || Arc::new(ColumnBlock::missing(block.bucket.count() as usize));
            let column = column_of(&part.expression, block, cx)?.unwrap_or_else(missing);
            return self.of_column(&column, &block.selection, out, &Results::Values);
        };
        let results = match is_field {
            true => Results::Values,
            false => Results::Of(&part.expression, name, cx),
        };
        match block.column(name)? {
            Some(column) => self.of_column(column, &block.selection, out, &results),
            None => {
                let number = self.of_other(ValueRef::Missing, &results)?;
                out.resize(block.selection.len(), number);
                Ok(())
            }
        }
    }

    /// Appends the numbers of the results for the selected values of a column.
    fn of_column(
        &mut self,
        column: &ColumnBlock,
        selection: &Selection,
        out: &mut Vec<u32>,
        results: &Results<'_, '_>,
    ) -> Result<()> {
        if let BlockData::Constant(value) = column.data()
            && column.is_all_present()
        {
            let number = self.of_other(value.as_ref(), results)?;
            out.resize(selection.len(), number);
            return Ok(());
        }
        if column.is_all_present() {
            let mut typed = Typed {
                numbers: self,
                selection,
                out,
                results,
            };
            match column.data() {
                BlockData::Int32(values) => {
                    let bits = |value| i64::from(value) as u64;
                    return typed.add(Kind::Int, values, bits, ValueRef::Int32);
                }
                BlockData::Int64(values) => {
                    return typed.add(Kind::Long, values, |value| value as u64, ValueRef::Int64);
                }
                BlockData::ShortInt64(values) => {
                    let bits = |value| i64::from(value) as u64;
                    let value = |value| ValueRef::Int64(i64::from(value));
                    return typed.add(Kind::Long, values, bits, value);
                }
                BlockData::Double(values) => {
                    return typed.add(Kind::Double, values, f64::to_bits, ValueRef::Double);
                }
                BlockData::DateTime(values) => {
                    return typed.add(Kind::Date, values, |at| at as u64, ValueRef::DateTime);
                }
                _ => {}
            }
        }
        // Numbers of the codes of a dictionary.
        let values = column.as_dictionary().map_or(0, |(_, values)| values.len());
        let mut of_codes: Vec<Option<u32>> = vec![None; values];
        for at in 0..selection.len() {
            let row = selection.get(at).unwrap_or_default() as usize;
            let value = column.value(row);
            let number = match column.as_dictionary() {
                Some((codes, _)) if !column.is_missing(row) => {
                    let code = codes.get(row).map_or(0, |code| *code as usize);
                    let known = of_codes.get(code).copied().flatten();
                    let number = match known {
                        Some(number) => number,
                        None => self.of_other(value, results)?,
                    };
                    if let Some(known) = of_codes.get_mut(code) {
                        *known = Some(number);
                    }
                    number
                }
                _ => self.of_other(value, results)?,
            };
            out.push(number);
        }
        Ok(())
    }
}

/// The selected values of a column without gaps, of one type.
struct Typed<'n, 'r, 'p, 'c> {
    numbers: &'n mut PartNumbers,
    selection: &'n Selection,
    out: &'n mut Vec<u32>,
    results: &'r Results<'p, 'c>,
}

impl Typed<'_, '_, '_, '_> {
    /// Appends the numbers of the results.
    fn add<T: Copy>(
        &mut self,
        kind: Kind,
        values: &[T],
        bits: impl Fn(T) -> u64,
        value: impl Fn(T) -> ValueRef<'static>,
    ) -> Result<()> {
        if self.numbers.kind != Some(kind) {
            self.numbers.kind = Some(kind);
            self.numbers.recent.clear();
            self.numbers.recent.resize(RECENT, None);
        }
        // Results of expressions repeat, so no number tells the date that follows.
        let remembers_next = kind == Kind::Date && matches!(self.results, Results::Values);
        let mut last: Option<u32> = None;
        let mut number = |of: T| {
            let bits = bits(of);
            if remembers_next && let Some(before) = last {
                if let Some(Some((known, number))) = self.numbers.next_dates.get(before as usize)
                    && *known == bits
                {
                    last = Some(*number);
                    return Ok::<u32, crate::error::Error>(*number);
                }
                let number = self
                    .numbers
                    .of_typed((kind, bits), || value(of), self.results)?;
                set_place(
                    &mut self.numbers.next_dates,
                    before,
                    Some((bits, number)),
                    None,
                );
                last = Some(number);
                return Ok(number);
            }
            let place = recent_place(bits);
            if let Some(Some((known, number))) = self.numbers.recent.get(place)
                && *known == bits
            {
                last = Some(*number);
                return Ok(*number);
            }
            let number = self
                .numbers
                .of_typed((kind, bits), || value(of), self.results)?;
            last = Some(number);
            if let Some(recent) = self.numbers.recent.get_mut(place) {
                *recent = Some((bits, number));
            }
            Ok(number)
        };
        match self.selection {
            Selection::Range(range) => {
                let values = values.get(range.start as usize..range.end as usize);
                for of in values.unwrap_or(&[]) {
                    self.out.push(number(*of)?);
                }
            }
            Selection::Rows(rows) => {
                for of in rows.iter().filter_map(|row| values.get(*row as usize)) {
                    self.out.push(number(*of)?);
                }
            }
        }
        Ok(())
    }
}

/// Returns the place of bits among the recent ones: the upper bits of a product, which depend on all of them.
pub(super) fn recent_place(bits: u64) -> usize {
    const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;
    (bits.wrapping_mul(FACTOR) >> (64 - RECENT.ilog2())) as usize
}

/// Numbers of pairs of numbers.
#[derive(Default)]
struct PairNumbers {
    numbers: HashMap<(u32, u32), u32, RandomState>,
    pairs: Vec<(u32, u32)>,
}

impl PairNumbers {
    fn of(&mut self, pair: (u32, u32)) -> u32 {
        let next = self.pairs.len() as u32;
        let number = *self.numbers.entry(pair).or_insert(next);
        if number == next {
            self.pairs.push(pair);
        }
        number
    }
}

/// Groups by series and number.
#[derive(Default)]
struct GroupNumbers {
    /// By series, then by number; `NO_GROUP` where none is known.
    dense: Vec<Vec<u32>>,
    dense_len: usize,
    /// Those of further series and numbers.
    sparse: HashMap<(u32, u32), u32, RandomState>,
    len: usize,
}

/// Groups found by an index in place of a hash, and lists of them, at most.
const DENSE_MAX: usize = if cfg!(test) { 64 } else { 1 << 20 };

/// Stands for a number without a known group.
const NO_GROUP: u32 = u32::MAX;

impl GroupNumbers {
    fn get(&self, series: u32, number: u32) -> Option<u32> {
        let dense = self.dense.get(series as usize);
        let group = dense.and_then(|groups| groups.get(number as usize));
        match group {
            Some(group) if *group != NO_GROUP => Some(*group),
            _ if self.sparse.is_empty() => None,
            _ => self.sparse.get(&(series, number)).copied(),
        }
    }

    fn insert(&mut self, series: u32, number: u32, group: u32) {
        self.len += 1;
        let (series_at, number_at) = (series as usize, number as usize);
        let known = self.dense.get(series_at).map_or(0, Vec::len);
        let more = (number_at + 1).saturating_sub(known);
        let lists = (series_at + 1).saturating_sub(self.dense.len());
        if self.dense_len + more + lists > DENSE_MAX {
            self.sparse.insert((series, number), group);
            return;
        }
        if lists > 0 {
            self.dense.resize_with(series_at + 1, Vec::new);
            self.dense_len += lists;
        }
        if let Some(groups) = self.dense.get_mut(series_at) {
            set_place(groups, number, group, NO_GROUP);
            self.dense_len += more;
        }
    }
}

/// A group of a block.
struct BlockGroupRows {
    group: u32,
    count: u32,
}

/// The numbers of the keys of a table's rows.
#[derive(Default)]
pub(super) struct RowKeys {
    /// By part.
    parts: Vec<PartNumbers>,
    /// The pairs of a number for all parts before, and that of a further part.
    pairs: Vec<PairNumbers>,
    groups: GroupNumbers,
    /// By number, and by group: the last block it occurred in, and its place among the groups of that block.
    places: Vec<(u32, u32)>,
    places_of_groups: Vec<(u32, u32)>,
    block: u32,
    /// Buffers.
    numbers: Vec<u32>,
    further: Vec<u32>,
}

impl RowKeys {
    fn is_full(&self) -> bool {
        let values: usize = self.parts.iter().map(PartNumbers::len).sum();
        let pairs: usize = self.pairs.iter().map(|pairs| pairs.pairs.len()).sum();
        let bytes: usize = self.parts.iter().map(|part| part.bytes).sum();
        values + pairs + self.groups.len > NUMBERS_MAX
            || bytes > VALUE_BYTES_MAX
            || self.block == u32::MAX
    }

    /// Finds the groups of a block's rows, in row order, and their runs. Returns the block with its rows in the order of
    /// the runs, those of a group as in the bucket, unless they are in that order or it does not matter.
    fn runs_of(
        &mut self,
        plan: &BlockGroupPlan,
        block: &MeasurementBlock,
        table: &mut Table,
        runs: &mut Vec<GroupRun>,
        cx: &ExecContext<'_>,
    ) -> Result<Option<MeasurementBlock>> {
        if self.is_full() {
            *self = Self::default();
        }
        let series = series_of_block(plan, block, table, cx)?;
        self.number_rows(plan, block, cx)?;
        let mut numbers = std::mem::take(&mut self.numbers);
        let groups = self.place_rows(&mut numbers, plan, series, table, cx)?;
        let changes = numbers
            .windows(2)
            .filter(|pair| pair.first() != pair.last());
        let is_in_order = !plan.reads_rows() || changes.count() < groups.len();
        let mut from = 0;
        // Where the next row of each group belongs.
        let mut ends = Vec::with_capacity(groups.len());
        for found in &groups {
            let end = from + found.count as usize;
            runs.push(GroupRun {
                group: found.group,
                rows: from..end,
            });
            ends.push(from);
            from = end;
        }
        let mut ordered = None;
        if !is_in_order {
            let mut rows = vec![0; numbers.len()];
            for (at, place) in numbers.iter().enumerate() {
                if let Some(end) = ends.get_mut(*place as usize)
                    && let Some(row) = rows.get_mut(*end)
                {
                    *row = block.selection.get(at).unwrap_or_default();
                    *end += 1;
                }
            }
            ordered = Some(MeasurementBlock {
                selection: Selection::Rows(rows),
                ..block.clone()
            });
        }
        self.numbers = numbers;
        Ok(ordered)
    }

    /// Numbers the results of all parts together, for each selected row.
    fn number_rows(
        &mut self,
        plan: &BlockGroupPlan,
        block: &MeasurementBlock,
        cx: &ExecContext<'_>,
    ) -> Result<()> {
        self.numbers.clear();
        let parts = plan.row_parts();
        for (at, part) in parts.enumerate() {
            if at == self.parts.len() {
                self.parts.push(PartNumbers::default());
            }
            let Some(known) = self.parts.get_mut(at) else {
                continue;
            };
            let Some(before) = at.checked_sub(1) else {
                known.of_block(part, block, &mut self.numbers, cx)?;
                continue;
            };
            self.further.clear();
            known.of_block(part, block, &mut self.further, cx)?;
            if before == self.pairs.len() {
                self.pairs.push(PairNumbers::default());
            }
            if let Some(pairs) = self.pairs.get_mut(before) {
                let rows = self.numbers.iter_mut().zip(&self.further);
                rows.for_each(|(number, further)| *number = pairs.of((*number, *further)));
            }
        }
        Ok(())
    }

    /// Replaces each row's number by the place of its group among those of the block, in order of first occurrence.
    fn place_rows(
        &mut self,
        numbers: &mut [u32],
        plan: &BlockGroupPlan,
        series: u32,
        table: &mut Table,
        cx: &ExecContext<'_>,
    ) -> Result<Vec<BlockGroupRows>> {
        self.block += 1;
        let mut found: Vec<BlockGroupRows> = Vec::new();
        for number in numbers {
            let place = match self.places.get(*number as usize) {
                Some((block, place)) if *block == self.block => *place,
                _ => {
                    let group = self.group_of(*number, plan, series, table, cx)?;
                    // Several numbers may have one group: 1 and 1.0.
                    let place = match self.places_of_groups.get(group as usize) {
                        Some((block, place)) if *block == self.block => *place,
                        _ => {
                            let place = found.len() as u32;
                            set_place(
                                &mut self.places_of_groups,
                                group,
                                (self.block, place),
                                (0, 0),
                            );
                            found.push(BlockGroupRows { group, count: 0 });
                            place
                        }
                    };
                    set_place(&mut self.places, *number, (self.block, place), (0, 0));
                    place
                }
            };
            if let Some(found) = found.get_mut(place as usize) {
                found.count += 1;
            }
            *number = place;
        }
        Ok(found)
    }

    /// Returns the group of a series and a number.
    fn group_of(
        &mut self,
        number: u32,
        plan: &BlockGroupPlan,
        series: u32,
        table: &mut Table,
        cx: &ExecContext<'_>,
    ) -> Result<u32> {
        if let Some(group) = self.groups.get(series, number) {
            return Ok(group);
        }
        let key = self.key_of(number, plan, table.keys.series.values(series));
        let key = table.normal_key(key);
        let group = table.number_of(key, cx)?;
        self.groups.insert(series, number, group);
        Ok(group)
    }

    /// Returns the key with the results of a number: `constants` are the other parts.
    fn key_of(&self, number: u32, plan: &BlockGroupPlan, constants: &[Value]) -> Value {
        // From the last part to the first.
        let mut of_parts = Vec::with_capacity(self.parts.len());
        let mut number = number;
        for pairs in self.pairs.iter().rev() {
            let (before, last) = pairs
                .pairs
                .get(number as usize)
                .copied()
                .unwrap_or_default();
            of_parts.push(last);
            number = before;
        }
        of_parts.push(number);
        let mut results = self.parts.iter().zip(of_parts.iter().rev());
        let values = plan.parts.iter().zip(constants);
        plan.form.key(values.map(|(part, constant)| match part {
            KeyPart::Row(_) => {
                let result = results.next();
                let result = result.and_then(|(part, number)| part.results.get(*number as usize));
                result.map_or(ValueRef::Missing, Value::as_ref)
            }
            KeyPart::Constant(_) | KeyPart::Bin => constant.as_ref(),
        }))
    }
}

/// Sets an element of a list, which grows by elements that are `none`.
fn set_place<T: Clone>(places: &mut Vec<T>, at: u32, place: T, none: T) {
    let at = at as usize;
    if at >= places.len() {
        places.resize(at + 1, none);
    }
    if let Some(known) = places.get_mut(at) {
        *known = place;
    }
}

/// Finds the groups of a block whose key differs between its rows, and their runs: see [`RowKeys::runs_of`].
pub(super) fn find_row_runs(
    plan: &BlockGroupPlan,
    block: &MeasurementBlock,
    table: &mut Table,
    runs: &mut Vec<GroupRun>,
    cx: &ExecContext<'_>,
) -> Result<Option<MeasurementBlock>> {
    table.keys.set_form(&plan.form, cx.eval.collator);
    let mut keys = std::mem::take(&mut table.keys.rows);
    let found = keys.runs_of(plan, block, table, runs, cx);
    table.keys.rows = keys;
    found
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{array, doc};

    use super::*;
    use crate::query::exec::testing::{MemoryBuckets, MemoryCollections, run};
    use crate::query::planner::settings::PlanOptions;
    use crate::query::source::Resolved;

    fn grouped(list: &[Document], group: &Document, force_rows: bool) -> Result<Vec<Document>> {
        let buckets = Arc::new(MemoryBuckets::new(list, 5));
        let series = MemoryCollections::of(Resolved::TimeSeries(buckets));
        let options = PlanOptions {
            force_rows,
            ..PlanOptions::default()
        };
        run(&series, &array![doc! {"$group": group.clone()}], options)
    }

    /// Numbers of several types, gaps and more distinct values than are kept.
    fn measurements() -> Vec<Document> {
        let awkward = [
            Value::from(1),
            1.0.into(),
            1i64.into(),
            Value::Missing,
            Value::Null,
            "a".into(),
            f64::NAN.into(),
            (-0.0).into(),
            0.into(),
            array![1],
        ];
        let one = |at: i32| {
            let mut out = DocumentBuilder::new();
            out.append(
                "t",
                Value::DateTime(1_700_000_000_000 + i64::from(at) * 1000),
            );
            out.append("m", ["x", "y"][(at / 10 % 2) as usize]);
            out.append("at", at);
            out.append("v", awkward[(at * 7 % 10) as usize].clone());
            out.append("d", f64::from(at * 31 % 23) / 2.0);
            out.append("i", at % 3);
            out.finish()
        };
        (0..200).map(one).collect()
    }

    #[test]
    fn groups_see_their_rows_in_order() {
        let list = measurements();
        for key in [
            Value::from("$v"),
            "$d".into(),
            "$i".into(),
            "$none".into(),
            doc! {"v": "$v"}.into(),
            doc! {"v": "$v", "d": "$d", "m": "$m"}.into(),
            doc! {"$floor": "$d"}.into(),
            doc! {"$second": "$t"}.into(),
            doc! {"s": doc! {"$second": "$t"}, "t": doc! {"$dateTrunc": doc! {"date": "$t", "unit": "minute"}}}
                .into(),
            doc! {"$add": array!["$i", "$d"]}.into(),
            doc! {"$concat": array!["$m", "-", doc! {"$toString": "$i"}]}.into(),
            doc! {"$type": "$v"}.into(),
        ] {
            for accumulators in [
                doc! {"all": doc! {"$push": "$at"}, "last": doc! {"$last": "$v"}, "sum": doc! {"$sum": "$d"}},
                doc! {"n": doc! {"$sum": 1}},
                doc! {"top": doc! {"$top": doc! {"sortBy": doc! {"t": -1}, "output": "$at"}}, "n": doc! {"$count": doc! {}}},
                doc! {"even": doc! {"$sum": doc! {"$cond": array![doc! {"$eq": array!["$i", 0]}, "$d", 1]}}},
            ] {
                let mut group = DocumentBuilder::new();
                group.append("_id", key.clone());
                for element in accumulators.as_ref() {
                    group.append_ref(element.name(), element.value());
                }
                let group = group.finish();
                let expected = grouped(&list, &group, true).unwrap();
                assert_eq!(grouped(&list, &group, false).unwrap(), expected, "{group:?}");
            }
        }
    }

    #[test]
    fn an_error_of_a_key_is_that_of_its_row() {
        let list = measurements();
        for key in [
            doc! {"$divide": array![1, "$i"]},
            doc! {"$divide": array!["$d", "$i"]},
            doc! {"$toUpper": "$v"},
            doc! {"$abs": "$v"},
        ] {
            let group = doc! {"_id": key, "n": doc! {"$sum": 1}};
            let read = |found: Result<Vec<Document>>| found.map_err(|error| error.to_string());
            let expected = read(grouped(&list, &group, true));
            assert_eq!(read(grouped(&list, &group, false)), expected, "{group:?}");
        }
    }
}

//! One row for each window: accumulators of `$group`, and what follows from their order.
//!
//! Most functions pass over documents without their field, so one pipeline computes them all. `first` and `last` need documents
//! that have it, and distinct values are grouped twice: each such field has a pipeline of its own.

use std::collections::{BTreeMap, HashMap};

use nilometer_bson::{DocRef, Document, DocumentBuilder, Value, ValueRef, array, doc};

use super::super::cell::Cell;
use super::super::condition::is_value;
use super::super::times::{NS_PER_MS, TimeRange};
use super::super::transform::Transform;
use super::super::{POINTS_MAX, Store};
use super::plan::{Aggregate, AggregateFunction, Leaf};
use super::{Query, Row, SeriesKey, check_points};
use crate::influxql::ast::Fill;
use crate::line_protocol::FieldType;

/// The rank of the larger of the two values in the middle: of up to a billion values.
const ABOVE_HALF: f64 = 0.500_000_000_001;

/// The values of the aggregates of a window, by their number.
pub(super) type WindowValues = Vec<Cell>;

/// The windows of a series, by their begin in ms.
pub(super) type SeriesWindows = BTreeMap<i64, WindowValues>;

/// Windows with values, by series. Keys are compared by their text, which is unique among values of one type.
pub(super) struct Collected {
    aggregates: Vec<Aggregate>,
    positions: HashMap<String, usize>,
    series: Vec<(SeriesKey, SeriesWindows)>,
    points: usize,
}

impl Collected {
    /// Returns the values of a window.
    fn window(&mut self, (window, key): (i64, SeriesKey)) -> Result<&mut WindowValues, String> {
        let count = self.aggregates.len();
        let text = format!("{key:?}");
        let next = self.series.len();
        let at = *self.positions.entry(text).or_insert(next);
        if at == next {
            self.series.push((key, BTreeMap::new()));
        }
        let windows = &mut self.series[at].1;
        if !windows.contains_key(&window) {
            self.points += count;
            check_points(self.points)?;
        }
        Ok(windows
            .entry(window)
            .or_insert_with(|| vec![Cell::Null; count]))
    }

    /// Returns the series.
    pub(super) fn series(&self) -> Vec<(SeriesKey, &SeriesWindows)> {
        let series = self.series.iter();
        series
            .map(|(key, windows)| (key.clone(), windows))
            .collect()
    }

    /// Computes the rows of a series.
    pub(super) fn rows(
        &self,
        query: &Query<'_>,
        windows: &SeriesWindows,
    ) -> Result<Vec<Row>, String> {
        rows(query, &self.aggregates, windows)
    }
}

/// Computes the windows of a statement that have values.
pub(super) fn collect(store: &dyn Store, query: &Query<'_>) -> Result<Collected, String> {
    let mut aggregates: Vec<Aggregate> = Vec::new();
    for aggregate in query.plan.leaves.iter().filter_map(Leaf::aggregate) {
        if !aggregates.contains(aggregate) {
            aggregates.push(aggregate.clone());
        }
    }
    let range = extended(query);
    let mut collected = Collected {
        aggregates: aggregates.clone(),
        positions: HashMap::new(),
        series: Vec::new(),
        points: 0,
    };
    read(store, query, range, &aggregates, &mut collected)?;
    Ok(collected)
}

/// Returns the range that is read: functions of values before the first window need some windows more.
fn extended(query: &Query<'_>) -> TimeRange {
    let transforms = query.plan.leaves.iter().map(|leaf| match leaf {
        Leaf::Transform(kind, _) => kind.windows_before(),
        _ => 0,
    });
    let before = transforms.max().unwrap_or(0);
    let (Some(windows), Some(from)) = (query.windows, query.range.first_ms()) else {
        return query.range;
    };
    if before == 0 {
        return query.range;
    }
    let start = windows.start(from);
    let more = windows.length_ms.saturating_mul(before);
    let start = windows.start(start.saturating_sub(more));
    TimeRange {
        from: Some(start.saturating_mul(NS_PER_MS)),
        ..query.range
    }
}

/// Runs the pipelines.
fn read(
    store: &dyn Store,
    query: &Query<'_>,
    range: TimeRange,
    aggregates: &[Aggregate],
    collected: &mut Collected,
) -> Result<(), String> {
    let numbered = || aggregates.iter().enumerate();
    let needs_value = |function| {
        matches!(
            function,
            AggregateFunction::First | AggregateFunction::Last | AggregateFunction::CountDistinct
        )
    };
    let together: Vec<(usize, &Aggregate)> = numbered()
        .filter(|(_, one)| !needs_value(one.function))
        .collect();
    if !together.is_empty() {
        let stages = [
            query.match_stage(range, None)?,
            Some(group(query, range, &together)),
        ];
        let stages = stages.into_iter().flatten().collect();
        read_groups(store, query, range, stages, &together, collected)?;
    }
    for (number, aggregate) in numbered().filter(|(_, one)| needs_value(one.function)) {
        let one = [(number, aggregate)];
        if aggregate.function != AggregateFunction::CountDistinct
            && read_edges(store, query, range, &one, collected)?
        {
            continue;
        }
        let mut stages: Vec<Document> = query
            .match_stage(range, Some(&aggregate.path))?
            .into_iter()
            .collect();
        if aggregate.function == AggregateFunction::CountDistinct {
            let value = format!("${}", aggregate.path);
            let key = doc! {"k": query.group_key(range), "v": value};
            stages.push(doc! {"$group": doc! {"_id": key}});
            let mut count = DocumentBuilder::new();
            count.append("_id", "$_id.k");
            count.append(&format!("a{number}"), doc! {"$sum": 1});
            stages.push(doc! {"$group": count.finish()});
        } else {
            stages.push(group(query, range, &one));
        }
        read_groups(store, query, range, stages, &one, collected)?;
    }
    Ok(())
}

/// Reads the first or last documents of groups, whether they have the field or not: in most measurements all have. False if one
/// has it not; then nothing was read.
fn read_edges(
    store: &dyn Store,
    query: &Query<'_>,
    range: TimeRange,
    aggregate: &[(usize, &Aggregate); 1],
    collected: &mut Collected,
) -> Result<bool, String> {
    let [(number, one)] = aggregate;
    let stages = [
        query.match_stage(range, None)?,
        Some(group(query, range, aggregate)),
    ];
    let shift = query.window_shift(range);
    let (mut found, mut all_have) = (Vec::new(), true);
    query.aggregate(
        store,
        stages.into_iter().flatten().collect(),
        &mut |document| {
            let value = value(document, *number, one);
            all_have &= !value.is_null();
            found.push((query.read_key(document.get("_id"), shift), value));
            check_points(found.len())?;
            Ok(all_have)
        },
    )?;
    if all_have {
        for (key, value) in found {
            collected.window(key)?[*number] = value;
        }
    }
    Ok(all_have)
}

fn read_groups(
    store: &dyn Store,
    query: &Query<'_>,
    range: TimeRange,
    stages: Vec<Document>,
    aggregates: &[(usize, &Aggregate)],
    collected: &mut Collected,
) -> Result<(), String> {
    let shift = query.window_shift(range);
    query.aggregate(store, stages, &mut |document| {
        let key = query.read_key(document.get("_id"), shift);
        let values = aggregates
            .iter()
            .map(|(number, one)| (*number, value(document, *number, one)));
        let values: Vec<(usize, Cell)> = values.collect();
        let is_lone = |(number, one): &(usize, &Aggregate)| {
            let other = document.get(&format!("b{number}"));
            one.function == AggregateFunction::StdDev && !Cell::of(other).is_null()
        };
        if values.iter().any(|(_, value)| !value.is_null()) || aggregates.iter().any(is_lone) {
            let window = collected.window(key)?;
            for (number, value) in values {
                window[number] = value;
            }
        }
        Ok(true)
    })
}

/// Returns the `$group` of aggregates.
fn group(query: &Query<'_>, range: TimeRange, aggregates: &[(usize, &Aggregate)]) -> Document {
    let mut group = DocumentBuilder::new();
    group.append("_id", query.group_key(range));
    for (number, aggregate) in aggregates {
        let field = format!("${}", aggregate.path);
        let name = format!("a{number}");
        let by_time = |direction: i32| {
            let mut sort = DocumentBuilder::new();
            sort.append(&query.schema.names.time, direction);
            doc! {"$top": doc! {"sortBy": sort.finish(), "output": field.as_str()}}
        };
        let percentile = |ranks: Value| {
            doc! {"$percentile": doc! {"input": field.as_str(), "p": ranks, "method": "approximate"}}
        };
        let accumulator = match aggregate.function {
            AggregateFunction::Count => {
                let one = doc! {"$cond": array![is_value(&aggregate.path), 1, 0]};
                doc! {"$sum": one}
            }
            AggregateFunction::CountDistinct => doc! {"$sum": 1},
            AggregateFunction::Sum => {
                // The sum of no values is 0; the largest of none is null.
                group.append(&format!("b{number}"), doc! {"$max": field.as_str()});
                doc! {"$sum": field.as_str()}
            }
            AggregateFunction::Mean => doc! {"$avg": field.as_str()},
            AggregateFunction::Min => doc! {"$min": field.as_str()},
            AggregateFunction::Max => doc! {"$max": field.as_str()},
            AggregateFunction::Spread => {
                group.append(&format!("b{number}"), doc! {"$min": field.as_str()});
                doc! {"$max": field.as_str()}
            }
            AggregateFunction::StdDev => {
                // That of one value is null, and the window is not empty.
                group.append(&format!("b{number}"), doc! {"$max": field.as_str()});
                doc! {"$stdDevSamp": field.as_str()}
            }
            AggregateFunction::Median => percentile(array![0.5, ABOVE_HALF]),
            AggregateFunction::Percentile(percent) => percentile(array![percent / 100.0]),
            AggregateFunction::First => by_time(1),
            AggregateFunction::Last => by_time(-1),
        };
        group.append(&name, accumulator);
    }
    doc! {"$group": group.finish()}
}

/// Returns the value of an aggregate of a group.
fn value(group: DocRef<'_>, number: usize, aggregate: &Aggregate) -> Cell {
    let first = Cell::of(group.get(&format!("a{number}")));
    let second = || Cell::of(group.get(&format!("b{number}")));
    match aggregate.function {
        AggregateFunction::Count if first == Cell::Integer(0) => Cell::Null,
        AggregateFunction::Sum if second().is_null() => Cell::Null,
        AggregateFunction::Spread => super::super::cell::arithmetic(
            crate::influxql::ast::Operator::Subtract,
            &first,
            &second(),
        ),
        AggregateFunction::Median | AggregateFunction::Percentile(_) => {
            let ValueRef::Array(values) = group.get(&format!("a{number}")) else {
                return Cell::Null;
            };
            let values: Vec<f64> = values
                .iter()
                .filter_map(|value| Cell::of(value).as_f64())
                .collect();
            match values[..] {
                [below, above] => Cell::finite(below + (above - below) / 2.0),
                #[allow(clippy::cast_possible_truncation, reason = "it is one of the integers")]
                [one] if aggregate.is_integer => Cell::Integer(one as i64),
                [one] => Cell::finite(one),
                _ => Cell::Null,
            }
        }
        _ => first,
    }
}

/// Computes the rows of a series.
fn rows(
    query: &Query<'_>,
    aggregates: &[Aggregate],
    windows: &SeriesWindows,
) -> Result<Vec<Row>, String> {
    let starts = window_starts(query, windows)?;
    let fill = match query.windows {
        Some(_) => query.select.fill,
        None => Fill::None,
    };
    let mut table: Vec<WindowValues> = starts
        .iter()
        .map(|start| {
            let known = windows.get(start).cloned();
            known.unwrap_or_else(|| vec![Cell::Null; aggregates.len()])
        })
        .collect();
    for (number, aggregate) in aggregates.iter().enumerate() {
        fill_column(&mut table, number, aggregate, fill);
    }
    let first = match (query.windows, query.range.first_ms()) {
        (Some(windows), Some(from)) => windows.start(from),
        _ => i64::MIN,
    };
    let leaves = query.plan.leaves.iter();
    let mut transforms: Vec<Option<Transform>> = leaves
        .clone()
        .map(|leaf| match leaf {
            Leaf::Transform(kind, _) => Some(Transform::new(kind.clone())),
            _ => None,
        })
        .collect();
    let without_field: Vec<Cell> = leaves.map(|leaf| fill_without_field(leaf, fill)).collect();
    let shows_empty = fill != Fill::None && has_aggregate(query, |_| true);
    let has_deviation = has_aggregate(query, |one| one.function == AggregateFunction::StdDev);
    let mut out = Vec::new();
    for (start, values) in starts.iter().zip(&table) {
        let time = query.row_time(*start);
        let mut leaves = without_field.clone();
        // The deviation of one value is a point without a value; no other function leaves a window without any.
        let is_lone = has_deviation && values.iter().all(Cell::is_null);
        // A point makes a row, also if nothing can be computed of it.
        let mut has_point = shows_empty || is_lone;
        let each = query.plan.leaves.iter().zip(&mut transforms);
        for ((leaf, transform), cell) in each.zip(&mut leaves) {
            let Some(aggregate) = leaf.aggregate() else {
                continue;
            };
            let number = aggregates.iter().position(|known| known == aggregate);
            let value = number.and_then(|number| values.get(number)).cloned();
            let value = value.unwrap_or_default();
            *cell = match transform {
                Some(transform) => transform.push(time, &value),
                None => value,
            };
            has_point |= !cell.is_null();
        }
        if *start < first {
            continue;
        }
        let columns = query.plan.columns.iter();
        let cells: Vec<Cell> = columns
            .map(|column| column.node.evaluate(&leaves))
            .collect();
        if has_point || cells.iter().any(|cell| !cell.is_null()) {
            out.push((time, cells));
        }
    }
    Ok(out)
}

/// True if a statement has such an aggregate, and not only inside a function of its values.
fn has_aggregate(query: &Query<'_>, is_it: impl Fn(&Aggregate) -> bool) -> bool {
    let mut leaves = query.plan.leaves.iter();
    leaves.any(|leaf| matches!(leaf, Leaf::Aggregate(one) if is_it(one)))
}

/// Returns the value that a function of a field that the measurement does not have shows in all windows. Only a number is shown, as in
/// InfluxDB by functions whose type does not depend on the field.
fn fill_without_field(leaf: &Leaf, fill: Fill) -> Cell {
    match (fill, leaf.type_without_field()) {
        (Fill::Value(value), Some(kind)) => fill_number(value, kind == FieldType::Integer),
        _ => Cell::Null,
    }
}

/// Returns the number that windows without a value show.
#[allow(clippy::cast_possible_truncation, reason = "as InfluxDB does")]
fn fill_number(value: f64, is_integer: bool) -> Cell {
    match is_integer {
        true => Cell::Integer(value as i64),
        false => Cell::Float(value),
    }
}

/// Returns the windows of a series: those with values, or all of the range.
fn window_starts(query: &Query<'_>, known: &SeriesWindows) -> Result<Vec<i64>, String> {
    let (Some(windows), Some(first_known), Some(last_known)) =
        (query.windows, known.keys().next(), known.keys().next_back())
    else {
        return Ok(known.keys().copied().collect());
    };
    if query.select.fill == Fill::None {
        return Ok(known.keys().copied().collect());
    }
    let from = query.range.first_ms().map(|from| windows.start(from));
    let first = from.map_or(*first_known, |from| from.min(*first_known));
    let last = query
        .range
        .last_ms()
        .unwrap_or(query.now_ms.max(*last_known));
    let mut out = Vec::new();
    let mut start = first;
    while start <= last {
        out.push(start);
        if out.len() > POINTS_MAX {
            check_points(out.len())?;
        }
        start = windows.next(start);
    }
    Ok(out)
}

/// Gives windows without a value one.
#[allow(clippy::cast_precision_loss, reason = "positions of windows")]
fn fill_column(table: &mut [WindowValues], number: usize, aggregate: &Aggregate, fill: Fill) {
    let is_count = matches!(
        aggregate.function,
        AggregateFunction::Count | AggregateFunction::CountDistinct
    );
    let constant = match fill {
        Fill::Null if is_count => Some(Cell::Integer(0)),
        Fill::Value(value) => Some(fill_number(value, aggregate.is_integer)),
        _ => None,
    };
    let mut last: Option<(usize, Cell)> = None;
    for at in 0..table.len() {
        let cell = table[at][number].clone();
        if !cell.is_null() {
            if let (Fill::Linear, Some((before, value))) = (fill, &last)
                && let (Some(from), Some(to)) = (value.as_f64(), cell.as_f64())
            {
                let step = (to - from) / (at - before) as f64;
                for (place, row) in table[before + 1..at].iter_mut().enumerate() {
                    let value = from + step * (place + 1) as f64;
                    #[allow(clippy::cast_possible_truncation, reason = "as InfluxDB does")]
                    let filled = match aggregate.is_integer {
                        true => Cell::Integer(value as i64),
                        false => Cell::finite(value),
                    };
                    row[number] = filled;
                }
            }
            last = Some((at, cell));
            continue;
        }
        match (&constant, fill, &last) {
            (Some(value), _, _) => table[at][number] = value.clone(),
            (None, Fill::Previous, Some((_, value))) => table[at][number] = value.clone(),
            _ => {}
        }
    }
}

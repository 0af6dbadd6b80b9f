//! Functions that select documents: one of each window with further columns, or with its time; several of each window.

use std::collections::BTreeMap;

use nilometer_bson::{DocRef, Document, DocumentBuilder, Value, ValueRef, doc};

use super::super::Store;
use super::super::cell::Cell;
use super::super::times::NS_PER_MS;
use super::plan::{Aggregate, AggregateFunction, Leaf, Multiple};
use super::{Query, Row, SeriesKey, check_points, compare_keys};

/// Returns the documents that a function selects, as rows.
pub(super) fn selected(
    store: &dyn Store,
    query: &Query<'_>,
    at: usize,
) -> Result<Vec<(SeriesKey, Vec<Row>)>, String> {
    let Some(Aggregate { function, path, .. }) =
        query.plan.leaves.get(at).and_then(Leaf::aggregate)
    else {
        return Ok(Vec::new());
    };
    let time = query.schema.names.time.as_str();
    let mut sort = DocumentBuilder::new();
    match function {
        AggregateFunction::First => sort.append(time, 1),
        AggregateFunction::Last => sort.append(time, -1),
        AggregateFunction::Min => sort.append(path, 1).append(time, 1),
        _ => sort.append(path, -1).append(time, 1),
    };
    let top = doc! {"$top": doc! {"sortBy": sort.finish(), "output": output(query, path)}};
    let group = doc! {"_id": query.group_key(query.range), "p": top};
    let stages = [
        query.match_stage(query.range, Some(path))?,
        Some(doc! {"$group": group}),
    ];
    let shift = query.window_shift(query.range);
    let mut all = Series::default();
    query.aggregate(
        store,
        stages.into_iter().flatten().collect(),
        &mut |group| {
            let (window, key) = query.read_key(group.get("_id"), shift);
            let document = group.get("p").as_document().unwrap_or(DocRef::EMPTY);
            all.add(key, row(query, at, window, document))?;
            Ok(true)
        },
    )?;
    Ok(all.finish())
}

/// Returns the rows of a function that gives several.
pub(super) fn collect(
    store: &dyn Store,
    query: &Query<'_>,
    multiple: &Multiple,
) -> Result<Vec<(SeriesKey, Vec<Row>)>, String> {
    match multiple {
        Multiple::Distinct(path) => distinct(store, query, path),
        Multiple::Top(path, tags, count, largest) => {
            let order = if *largest { -1 } else { 1 };
            top(store, query, path, tags, *count, order)
        }
    }
}

fn distinct(
    store: &dyn Store,
    query: &Query<'_>,
    path: &str,
) -> Result<Vec<(SeriesKey, Vec<Row>)>, String> {
    let key = doc! {"k": query.group_key(query.range), "v": format!("${path}")};
    let stages = [
        query.match_stage(query.range, Some(path))?,
        Some(doc! {"$group": doc! {"_id": key}}),
    ];
    let shift = query.window_shift(query.range);
    let mut all = Series::default();
    query.aggregate(
        store,
        stages.into_iter().flatten().collect(),
        &mut |group| {
            let id = group.get("_id").as_document().unwrap_or(DocRef::EMPTY);
            let (window, key) = query.read_key(id.get("k"), shift);
            let value = Cell::of(id.get("v"));
            if !value.is_null() {
                all.add(key, (query.row_time(window), vec![value]))?;
            }
            Ok(true)
        },
    )?;
    Ok(all.finish())
}

fn top(
    store: &dyn Store,
    query: &Query<'_>,
    path: &str,
    tags: &[String],
    count: i64,
    order: i32,
) -> Result<Vec<(SeriesKey, Vec<Row>)>, String> {
    let time = query.schema.names.time.as_str();
    let group_key = query.group_key(query.range);
    let mut stages: Vec<Document> = query
        .match_stage(query.range, Some(path))?
        .into_iter()
        .collect();
    let mut sort = DocumentBuilder::new();
    sort.append(path, order).append(time, 1);
    let best = |sort: Document, output: Value| doc! {"sortBy": sort, "output": output, "n": count};
    let group = if tags.is_empty() {
        let top = best(sort.finish(), output(query, path).into());
        doc! {"_id": group_key, "p": doc! {"$topN": top}}
    } else {
        // The best of each value of the tags, and then the best of these.
        let mut values = DocumentBuilder::new();
        for (number, tag) in tags.iter().enumerate() {
            values.append(&format!("t{number}"), format!("${tag}"));
        }
        let key = doc! {"k": group_key, "t": values.finish()};
        let one = doc! {"sortBy": sort.finish(), "output": output(query, path)};
        stages.push(doc! {"$group": doc! {"_id": key, "p": doc! {"$top": one}}});
        let sort = doc! {"p.v": order, "p.t": 1};
        doc! {"_id": "$_id.k", "p": doc! {"$topN": best(sort, "$p".into())}}
    };
    stages.push(doc! {"$group": group});
    let shift = query.window_shift(query.range);
    let mut all = Series::default();
    query.aggregate(store, stages, &mut |group| {
        let (_, key) = query.read_key(group.get("_id"), shift);
        let documents = group.get("p").as_array();
        let documents = documents.iter().flat_map(|documents| documents.iter());
        for document in documents.filter_map(ValueRef::as_document) {
            // Each keeps its own time, also in windows.
            let ValueRef::DateTime(ms) = document.get("t") else {
                continue;
            };
            let mut row = row(query, 0, 0, document);
            row.0 = ms.saturating_mul(NS_PER_MS);
            all.add(key.clone(), row)?;
        }
        Ok(true)
    })?;
    Ok(all.finish())
}

/// Returns what is kept of a document: its time, the value of the function and those of other columns.
fn output(query: &Query<'_>, path: &str) -> Document {
    let mut output = DocumentBuilder::new();
    output.append("t", format!("${}", query.schema.names.time));
    output.append("v", format!("${path}"));
    for (number, leaf) in query.plan.leaves.iter().enumerate() {
        if let Leaf::Value(path, _) = leaf {
            output.append(&format!("x{number}"), format!("${path}"));
        }
    }
    output.finish()
}

/// Returns the row of a kept document; leaf `at` is the function.
fn row(query: &Query<'_>, at: usize, window: i64, document: DocRef<'_>) -> Row {
    let leaves = query.plan.leaves.iter().enumerate();
    let leaves: Vec<Cell> = leaves
        .map(|(number, _)| match number == at {
            true => Cell::of(document.get("v")),
            false => Cell::of(document.get(&format!("x{number}"))),
        })
        .collect();
    let time = match (query.windows, document.get("t")) {
        (None, ValueRef::DateTime(ms)) => ms.saturating_mul(NS_PER_MS),
        _ => query.row_time(window),
    };
    let columns = query.plan.columns.iter();
    (
        time,
        columns
            .map(|column| column.node.evaluate(&leaves))
            .collect(),
    )
}

/// Rows by series.
#[derive(Default)]
struct Series {
    all: BTreeMap<String, (SeriesKey, Vec<Row>)>,
    points: usize,
}

impl Series {
    fn add(&mut self, key: SeriesKey, row: Row) -> Result<(), String> {
        self.points += 1;
        check_points(self.points)?;
        let text = format!("{key:?}");
        let entry = self.all.entry(text).or_insert_with(|| (key, Vec::new()));
        entry.1.push(row);
        Ok(())
    }

    /// Returns the series, with rows in order of times and values.
    fn finish(self) -> Vec<(SeriesKey, Vec<Row>)> {
        let mut all: Vec<_> = self.all.into_values().collect();
        for (_, rows) in &mut all {
            rows.sort_by(|a, b| a.0.cmp(&b.0).then_with(|| compare_keys(&a.1, &b.1)));
        }
        all
    }
}

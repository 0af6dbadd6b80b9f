//! `SELECT … FROM (SELECT …)`: the rows of the inner statements are the documents of the outer one.
//!
//! ```text
//! inner statements ─► rows, by measurement ─► {time, columns, tags of GROUP BY} ─► [{$documents}, stages of the outer statement]
//! ```
//!
//! Columns become fields and the tags of the inner `GROUP BY` stay tags, so the outer statement is planned and evaluated like
//! one over a measurement. As in InfluxDB an inner statement has
//!
//! - the times of both `WHERE`; the outer one does not test the times of rows again: the first row of a window may be earlier,
//! - the window of the outer `GROUP BY time`, if it has none, and functions,
//! - the tags that the outer `GROUP BY` names, beside its own,
//! - the order and the zone of the outer one, and no rows for windows without values, unless `fill` asks for them.

use std::collections::BTreeMap;

use nilometer_bson::{Document, DocumentBuilder, Value, doc};

use super::super::Store;
use super::super::cell::Cell;
use super::super::output::{Rows, SeriesHead};
use super::super::times::{NS_PER_MS, TimeRange};
use super::{Dimension, check_points, plan, run_within};
use crate::influxql::Select;
use crate::influxql::ast::Fill;
use crate::line_protocol::{FieldType, Names};
use crate::schema::MeasurementSchema;

/// Bytes of the rows of the subqueries of a statement: they are one array of a command.
const ROWS_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The path of the time.
const TIME: &str = "time";

/// The document of the tags.
const TAGS: &str = "tags of the subquery";

/// The rows of subqueries that have one measurement.
#[derive(Default)]
pub(super) struct InnerRows {
    documents: Vec<Document>,
    fields: BTreeMap<String, FieldType>,
    /// The tags and their paths.
    tags: BTreeMap<String, String>,
}

impl InnerRows {
    /// Returns what the outer statement knows of the rows.
    pub(super) fn schema(&self) -> MeasurementSchema {
        MeasurementSchema {
            collection: String::new(),
            names: Names {
                time: TIME.to_owned(),
                tags: Some(TAGS.to_owned()),
            },
            fields: self.fields.clone(),
            tags: self.tags.clone(),
            are_tags_mapped: true,
        }
    }

    /// Returns the stage whose output the rows are.
    pub(super) fn stage(self) -> Document {
        let rows = self.documents.into_iter().map(Value::from);
        let rows = Value::Array(rows.collect());
        // Texts that begin with `$` are no paths.
        doc! {"$documents": doc! {"$literal": rows}}
    }
}

/// Collects rows.
#[derive(Default)]
struct Collector {
    by_measurement: BTreeMap<String, InnerRows>,
    head: SeriesHead,
    /// The tags of the series.
    tags: Document,
    rows: usize,
    bytes: usize,
}

impl Rows for Collector {
    fn begin_series(&mut self, head: SeriesHead) -> Result<(), String> {
        for column in head.columns.iter().skip(1) {
            let is_path = column.contains('.') || column.starts_with('$') || column.is_empty();
            if is_path || column == TAGS || column.eq_ignore_ascii_case(TIME) {
                return Err(format!(
                    "the column \"{column}\" of a subquery needs another name, by AS"
                ));
            }
        }
        let known = self.by_measurement.entry(head.name.clone()).or_default();
        let mut tags = DocumentBuilder::new();
        for (name, value) in &head.tags {
            let number = known.tags.len();
            let path = known.tags.entry(name.clone());
            let path = path.or_insert_with(|| format!("{TAGS}.t{number}"));
            let short = path.rsplit('.').next().unwrap_or_default();
            if !value.is_empty() {
                tags.append(short, value.as_str());
            }
        }
        self.tags = tags.finish();
        self.head = head;
        Ok(())
    }

    fn row(&mut self, cells: &[Cell]) -> Result<(), String> {
        let Some(known) = self.by_measurement.get_mut(&self.head.name) else {
            return Err("a row outside of a series".to_owned());
        };
        let mut row = DocumentBuilder::new();
        for (name, cell) in self.head.columns.iter().zip(cells) {
            let kind = match cell {
                Cell::Null => continue,
                Cell::Time(ns) => {
                    row.append(TIME, Value::DateTime(ns.div_euclid(NS_PER_MS)));
                    continue;
                }
                Cell::Integer(value) => {
                    row.append(name, *value);
                    FieldType::Integer
                }
                Cell::Float(value) => {
                    row.append(name, *value);
                    FieldType::Float
                }
                Cell::String(text) => {
                    row.append(name, text.as_str());
                    FieldType::String
                }
                Cell::Boolean(value) => {
                    row.append(name, *value);
                    FieldType::Boolean
                }
            };
            let first = *known.fields.entry(name.clone()).or_insert(kind);
            // Integers that overflow, and values of a fill, are doubles.
            if first == FieldType::Integer && kind == FieldType::Float {
                known.fields.insert(name.clone(), kind);
            }
        }
        row.append(TAGS, self.tags.clone());
        let row = row.finish();
        self.rows += 1;
        check_points(self.rows)?;
        self.bytes += row.as_bytes().len();
        if self.bytes > ROWS_BYTES_MAX {
            return Err(format!(
                "the rows of subqueries have more than {ROWS_BYTES_MAX} bytes: use a shorter range, longer windows or fewer series"
            ));
        }
        known.documents.push(row);
        Ok(())
    }
}

/// Executes the subqueries of a statement, whose range is `range`. Returns their rows by the names of measurements.
pub(super) fn rows(
    store: &dyn Store,
    db: Option<&str>,
    outer: &Select,
    range: TimeRange,
) -> Result<BTreeMap<String, InnerRows>, String> {
    let mut collector = Collector::default();
    for inner in &outer.subqueries {
        if inner.descending && !outer.descending {
            return Err(
                "subqueries must be ordered in the same direction as the query itself".to_owned(),
            );
        }
        let inner = inherited(inner, outer);
        run_within(store, db, &inner, range, &mut collector)?;
    }
    Ok(collector.by_measurement)
}

/// Returns an inner statement with what it has of the outer one.
fn inherited(inner: &Select, outer: &Select) -> Select {
    let mut select = inner.clone();
    select.descending = outer.descending;
    if select.time_zone.is_none() {
        select.time_zone.clone_from(&outer.time_zone);
    }
    if select.interval.is_none() && plan::has_aggregates(inner) {
        select.interval.clone_from(&outer.interval);
    }
    if select.fill == Fill::Null {
        select.fill = Fill::None;
    }
    for dimension in &outer.dimensions {
        if matches!(dimension, Dimension::Tag(_)) && !select.dimensions.contains(dimension) {
            select.dimensions.push(dimension.clone());
        }
    }
    select
}

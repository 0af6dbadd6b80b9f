//! `SELECT … INTO`: rows as points of a measurement.
//!
//! ```text
//! rows of a series: its tags, time, columns ─► points, at most [`POINTS_MAX`] ─► Store::write ─► the number of points
//! ```
//!
//! The tags of `GROUP BY` are tags of the points, and the columns are their fields, also those that show tags. A row without values is no point.
//! Points are written while others are read: an error ends the statement, and what was written before stays, as in InfluxDB.

use std::collections::HashSet;
use std::sync::Arc;

use super::super::cell::Cell;
use super::super::output::{Rows, SeriesHead};
use super::super::times::NS_PER_MS;
use super::super::{RETENTION_POLICY, Store, database};
use super::run_rows;
use crate::influxql::Select;
use crate::influxql::ast::IntoTarget;
use crate::line_protocol::{BatchWriter, FieldValue, Point, Text};

/// Points that are written together, as in InfluxDB.
const POINTS_MAX: usize = 10_000;

/// Bytes of texts after which points are written.
const TEXT_BYTES_MAX: usize = 4 * 1024 * 1024;

/// A row that was read.
struct PendingPoint {
    /// Position in the heads.
    head: usize,
    time_ms: i64,
    /// The values of the columns behind the time.
    cells: Vec<Cell>,
}

/// Rows until they are written.
struct PointRows<'s> {
    store: &'s dyn Store,
    db: &'s str,
    target: &'s IntoTarget,
    /// Those of the pending points, and of the series that is read.
    heads: Vec<SeriesHead>,
    points: Vec<PendingPoint>,
    text_bytes: usize,
    written: i64,
}

/// Executes a statement and writes its rows; then gives `output` their number.
pub(super) fn run(
    store: &dyn Store,
    db: Option<&str>,
    (select, target): (&Select, &IntoTarget),
    output: &mut dyn Rows,
) -> Result<(), String> {
    if let Some(policy) = target
        .policy
        .as_deref()
        .filter(|name| *name != RETENTION_POLICY)
    {
        return Err(format!("retention policy not found: {policy}"));
    }
    let mut rows = PointRows {
        store,
        db: database(db, target.db.as_deref())?,
        target,
        heads: Vec::new(),
        points: Vec::new(),
        text_bytes: 0,
        written: 0,
    };
    run_rows(store, db, select, &mut rows)?;
    rows.flush()?;
    output.begin_series(SeriesHead {
        name: "result".to_owned(),
        tags: Vec::new(),
        columns: vec!["time".to_owned(), "written".to_owned()],
    })?;
    output.row(&[Cell::Time(0), Cell::Integer(rows.written)])
}

impl Rows for PointRows<'_> {
    fn begin_series(&mut self, head: SeriesHead) -> Result<(), String> {
        let mut names = HashSet::new();
        for column in &head.columns {
            let is_name = !column.is_empty() && !column.contains('\0');
            if !is_name || !names.insert(column) {
                return Err(format!(
                    "the column \"{}\" cannot be a field: it occurs twice, or its name is empty or has a zero byte",
                    column.escape_default()
                ));
            }
        }
        // The last series has no points if all its rows were empty.
        let used = self.points.last().map_or(0, |last| last.head + 1);
        self.heads.truncate(used);
        self.heads.push(head);
        Ok(())
    }

    fn row(&mut self, cells: &[Cell]) -> Result<(), String> {
        let Some((Cell::Time(ns), cells)) = cells.split_first() else {
            return Err("a row without a time".to_owned());
        };
        if cells.iter().all(Cell::is_null) {
            return Ok(());
        }
        let texts = cells.iter().map(|cell| match cell {
            Cell::String(text) => text.len(),
            _ => 0,
        });
        self.text_bytes += texts.sum::<usize>();
        self.points.push(PendingPoint {
            head: self.heads.len().saturating_sub(1),
            time_ms: ns.div_euclid(NS_PER_MS),
            cells: cells.to_vec(),
        });
        match self.points.len() >= POINTS_MAX || self.text_bytes >= TEXT_BYTES_MAX {
            true => self.flush(),
            false => Ok(()),
        }
    }
}

impl PointRows<'_> {
    /// Writes the points that were read.
    fn flush(&mut self) -> Result<(), String> {
        let points = std::mem::take(&mut self.points);
        self.text_bytes = 0;
        if points.is_empty() {
            return Ok(());
        }
        let (heads, name) = (&self.heads, self.target.name.as_deref());
        let now_ms = self.store.now_ms();
        let rejections = self.store.write(self.db, &mut |schemas| {
            let schema = &mut |measurement: &str| {
                let mut known = schemas(&[measurement]);
                known.pop().unwrap_or_else(|| Ok(Arc::default()))
            };
            let mut writer = BatchWriter::new(now_ms, schema);
            let mut rejections = Vec::new();
            for (number, one) in (1..).zip(&points) {
                let point = point(one, heads.get(one.head), name);
                rejections.extend(writer.add(&point, number).err());
            }
            writer.finish(rejections)
        })?;
        if let Some(first) = rejections.first() {
            let (message, dropped) = (&first.message, rejections.len());
            return Err(format!("partial write: {message} dropped={dropped}"));
        }
        self.written += i64::try_from(points.len()).unwrap_or(i64::MAX);
        // The series that is read goes on.
        self.heads.drain(..self.heads.len().saturating_sub(1));
        Ok(())
    }
}

/// Returns a row as a point of the measurement `name`, or of its own.
fn point<'p>(
    row: &'p PendingPoint,
    head: Option<&'p SeriesHead>,
    name: Option<&'p str>,
) -> Point<'p> {
    let mut point = Point {
        time_ms: Some(row.time_ms),
        ..Point::default()
    };
    let Some(head) = head else {
        return point;
    };
    point.measurement = Text::plain(name.unwrap_or(&head.name));
    let tags = head.tags.iter().filter(|(_, value)| !value.is_empty());
    point.tags = tags
        .map(|(key, value)| (Text::plain(key), Text::plain(value)))
        .collect();
    for (column, cell) in head.columns.iter().skip(1).zip(&row.cells) {
        let value = match cell {
            Cell::Null => continue,
            Cell::Integer(value) | Cell::Time(value) => FieldValue::Integer(*value),
            Cell::Float(value) => FieldValue::Float(*value),
            Cell::Boolean(value) => FieldValue::Boolean(*value),
            Cell::String(text) => FieldValue::String(text.as_bytes(), false),
        };
        point.fields.push((Text::plain(column), value));
    }
    point
}

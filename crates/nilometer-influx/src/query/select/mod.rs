//! `SELECT`.
//!
//! Each measurement is read by pipelines of its own. Its series are those that differ in the tags of `GROUP BY`, in order of
//! their values. Times ascend within a series, or descend. The rows of subqueries are read like measurements ([`subquery`]).

mod aggregates;
mod into;
mod multiple;
mod plan;
mod raw;
mod subquery;

use std::cmp::Ordering;
use std::collections::BTreeSet;

use jiff::tz::TimeZone;
use nilometer_bson::{DocRef, Document, DocumentBuilder, Value, ValueRef, doc};

use super::cell::Cell;
use super::condition;
use super::output::{Rows, SeriesHead};
use super::times::{NS_PER_MS, PieceBegin, TimeRange, Windows, constant};
use super::{POINTS_MAX, RETENTION_POLICY, Store, database};
use crate::influxql::ast::{Dimension, Source, SourceName};
use crate::influxql::{Expr, Select};
use crate::schema::{self, MeasurementSchema, for_each};
use plan::{Plan, PlanKind};

/// Measurements that one statement reads.
const MEASUREMENTS_MAX: usize = 10_000;

/// What a statement means for every measurement.
struct StatementScope<'a> {
    select: &'a Select,
    range: TimeRange,
    conjuncts: &'a [&'a Expr],
    windows: Option<&'a Windows>,
    now_ms: i64,
}

/// What a statement needs to know of a measurement.
struct MeasurementPlan {
    schema: MeasurementSchema,
    tags: TagPaths,
    columns: Plan,
}

/// A statement for one measurement.
struct Query<'a> {
    select: &'a Select,
    db: &'a str,
    measurement: &'a str,
    schema: &'a MeasurementSchema,
    plan: &'a Plan,
    range: TimeRange,
    conjuncts: &'a [&'a Expr],
    tags: &'a TagPaths,
    windows: Option<&'a Windows>,
    now_ms: i64,
    /// The stage with the rows of subqueries, if they are read and not a collection.
    given: Option<&'a Document>,
}

/// The values of the tags of `GROUP BY`.
type SeriesKey = Vec<Cell>;

/// Time in ns, and the values of the columns.
type Row = (i64, Vec<Cell>);

/// Returns the zone of a statement.
pub(super) fn zone(select: &Select) -> Result<Option<TimeZone>, String> {
    let Some(name) = &select.time_zone else {
        return Ok(None);
    };
    let zone = TimeZone::get(name);
    zone.map(Some)
        .map_err(|_| format!("unable to find time zone {name}"))
}

/// Executes a statement.
pub(super) fn run(
    store: &dyn Store,
    db: Option<&str>,
    select: &Select,
    output: &mut dyn Rows,
) -> Result<(), String> {
    match &select.into {
        None => run_rows(store, db, select, output),
        Some(target) => into::run(store, db, (select, target), output),
    }
}

/// Executes a statement up to its rows.
fn run_rows(
    store: &dyn Store,
    db: Option<&str>,
    select: &Select,
    output: &mut dyn Rows,
) -> Result<(), String> {
    run_within(store, db, select, TimeRange::ALL, output)
}

/// Executes a statement over the times that are in `bounds`, too.
fn run_within(
    store: &dyn Store,
    db: Option<&str>,
    select: &Select,
    bounds: TimeRange,
    output: &mut dyn Rows,
) -> Result<(), String> {
    let zone = zone(select)?;
    let now_ms = store.now_ms();
    let (range, conjuncts) = condition::split(select.condition.as_ref(), now_ms, zone.as_ref())?;
    let range = range.intersection(bounds);
    let windows = windows(select, zone, now_ms)?;
    let scope = StatementScope {
        select,
        range,
        conjuncts: &conjuncts,
        windows: windows.as_ref(),
        now_ms,
    };
    for (db, measurement) in measurements(store, db, &select.sources)? {
        let Some(plan) = planned(store, select, db, &measurement)? else {
            // Who must not read does not learn which fields there are.
            let schema = store.schema(db, &measurement, false)?;
            let collection = schema.map_or(measurement, |schema| schema.collection.clone());
            may_read(store, db, &collection)?;
            continue;
        };
        let query = scope.query((db, &measurement), &plan, None);
        query.run(store, output)?;
    }
    if select.subqueries.is_empty() {
        return Ok(());
    }
    let db = database(db, None)?;
    for (measurement, rows) in subquery::rows(store, Some(db), select, range)? {
        let Some(plan) = planned_for(select, &rows.schema())? else {
            continue;
        };
        let stage = rows.stage();
        let query = scope.query((db, &measurement), &plan, Some(&stage));
        query.run(store, output)?;
    }
    Ok(())
}

impl<'a> StatementScope<'a> {
    /// Returns the statement for one measurement; `given` is the stage with the rows of subqueries, if it shows those.
    fn query(
        &self,
        (db, measurement): (&'a str, &'a str),
        plan: &'a MeasurementPlan,
        given: Option<&'a Document>,
    ) -> Query<'a> {
        Query {
            select: self.select,
            db,
            measurement,
            schema: &plan.schema,
            plan: &plan.columns,
            range: self.range,
            conjuncts: self.conjuncts,
            tags: &plan.tags,
            windows: self.windows,
            now_ms: self.now_ms,
            given,
        }
    }
}

fn windows(
    select: &Select,
    zone: Option<TimeZone>,
    now_ms: i64,
) -> Result<Option<Windows>, String> {
    let Some(interval) = &select.interval else {
        return Ok(None);
    };
    let offset = interval.offset.as_ref();
    let offset = offset.map(|offset| constant(offset, now_ms, zone.as_ref()));
    let offset = offset.transpose()?.unwrap_or(0);
    Windows::new(interval.length_ns, offset, zone).map(Some)
}

/// The tags of `GROUP BY`, and their paths where the measurement has them.
type TagPaths = Vec<(String, Option<String>)>;

/// Plans a statement for a measurement. `None` if it does not exist or has none of the fields.
fn planned(
    store: &dyn Store,
    select: &Select,
    db: &str,
    measurement: &str,
) -> Result<Option<MeasurementPlan>, String> {
    let mut exact = has_wildcard(select);
    loop {
        let Some(schema) = store.schema(db, measurement, exact)? else {
            return Ok(None);
        };
        if !exact && !knows_names(select, &schema) {
            exact = true;
            continue;
        }
        return planned_for(select, &schema);
    }
}

/// Plans a statement for a schema. `None` if it has none of the fields.
fn planned_for(
    select: &Select,
    schema: &MeasurementSchema,
) -> Result<Option<MeasurementPlan>, String> {
    let tags = dimensions(select, schema)?;
    let names: Vec<String> = tags.iter().map(|(name, _)| name.clone()).collect();
    let columns = plan::plan(select, schema, &names)?;
    Ok(columns.map(|columns| MeasurementPlan {
        schema: schema.clone(),
        tags,
        columns,
    }))
}

/// Fails unless the user may read a collection.
pub(super) fn may_read(store: &dyn Store, db: &str, collection: &str) -> Result<(), String> {
    let find = doc! {"find": collection, "limit": 1, "singleBatch": true, "$db": db};
    store.run(find).map(drop)
}

/// True if the columns depend on all names of the measurement.
fn has_wildcard(select: &Select) -> bool {
    let mut found = select
        .dimensions
        .iter()
        .any(|dimension| !matches!(dimension, Dimension::Tag(_)));
    for field in &select.fields {
        field.expr.walk(&mut |one| {
            found |= matches!(one, Expr::Wildcard(_) | Expr::Regex(_));
        });
    }
    found
}

/// True if the schema has all names of the statement.
fn knows_names(select: &Select, schema: &MeasurementSchema) -> bool {
    let knows = |name: &str| {
        name.eq_ignore_ascii_case("time")
            || schema.fields.contains_key(name)
            || schema.tags.contains_key(name)
    };
    let mut all = true;
    let expressions = select.fields.iter().map(|field| &field.expr);
    for expr in expressions.chain(&select.condition) {
        expr.walk(&mut |one| {
            if let Expr::Name(name, _) = one {
                all &= knows(name);
            }
        });
    }
    let mut dimensions = select.dimensions.iter();
    all && dimensions.all(|dimension| match dimension {
        Dimension::Tag(name) => schema.tags.contains_key(name),
        _ => true,
    })
}

/// Returns the tags of `GROUP BY`, each once, and their paths.
fn dimensions(select: &Select, schema: &MeasurementSchema) -> Result<TagPaths, String> {
    let mut names: Vec<String> = Vec::new();
    for dimension in &select.dimensions {
        match dimension {
            Dimension::Tag(name) => names.push(name.clone()),
            Dimension::All => names.extend(schema.tags.keys().cloned()),
            Dimension::Regex(pattern) => {
                let pattern = condition::compile(pattern)?;
                let matching = schema.tags.keys().filter(|name| pattern.is_match(name));
                names.extend(matching.cloned());
            }
        }
    }
    names.sort();
    names.dedup();
    let path = |name: &String| schema.tags.get(name).cloned();
    Ok(names
        .into_iter()
        .map(|name| (name.clone(), path(&name)))
        .collect())
}

/// Returns the names of all measurements of a database whose collections the user may see, in order.
pub(super) fn all_measurements(store: &dyn Store, db: &str) -> Result<Vec<String>, String> {
    let collections = schema::measurements(&mut |command| store.run(command), db)?;
    let mut names: BTreeSet<String> = collections.iter().cloned().collect();
    for (name, mapping) in store.mappings(db)? {
        match collections.contains(&mapping.collection) {
            true => names.insert(name),
            // What a mapping hides is not the collection of its name.
            false => names.remove(&name),
        };
    }
    Ok(names.into_iter().collect())
}

/// Returns databases and names of the measurements that are read.
pub(super) fn measurements<'a>(
    store: &dyn Store,
    db: Option<&'a str>,
    sources: &'a [Source],
) -> Result<Vec<(&'a str, String)>, String> {
    let mut out: Vec<(&str, String)> = Vec::new();
    for source in sources {
        let db = database(db, source.db.as_deref())?;
        if let Some(policy) = source
            .policy
            .as_deref()
            .filter(|name| *name != RETENTION_POLICY)
        {
            return Err(format!("retention policy not found: {policy}"));
        }
        let names = match &source.name {
            SourceName::Name(name) => vec![name.clone()],
            filter => {
                let mut names = all_measurements(store, db)?;
                let matches = name_filter(filter)?;
                names.retain(|name| matches(name));
                names
            }
        };
        for name in names {
            if !out.iter().any(|known| known.0 == db && known.1 == name) {
                out.push((db, name));
            }
        }
        if out.len() > MEASUREMENTS_MAX {
            return Err(format!(
                "the query reads more than {MEASUREMENTS_MAX} measurements"
            ));
        }
    }
    out.sort();
    Ok(out)
}

/// Returns the test of names of a source.
#[allow(clippy::type_complexity, reason = "a test of names")]
pub(super) fn name_filter(filter: &SourceName) -> Result<Box<dyn Fn(&str) -> bool + '_>, String> {
    Ok(match filter {
        SourceName::Name(known) => Box::new(move |name| name == known),
        SourceName::Not(known) => Box::new(move |name| name != known),
        SourceName::Regex(pattern) => {
            let pattern = condition::compile(pattern)?;
            Box::new(move |name| pattern.is_match(name))
        }
        SourceName::NotRegex(pattern) => {
            let pattern = condition::compile(pattern)?;
            Box::new(move |name| !pattern.is_match(name))
        }
    })
}

impl Query<'_> {
    /// Writes the rows of the statement.
    fn run(&self, store: &dyn Store, output: &mut dyn Rows) -> Result<(), String> {
        match &self.plan.kind {
            PlanKind::Raw => raw::run(store, self, output),
            PlanKind::Aggregates => {
                let collected = aggregates::collect(store, self)?;
                let rows = |windows| collected.rows(self, windows);
                self.write(collected.series(), rows, output)
            }
            PlanKind::Selector(at) => {
                let series = multiple::selected(store, self, *at)?;
                self.write(series, Ok, output)
            }
            PlanKind::Multiple(multiple) => {
                let series = multiple::collect(store, self, multiple)?;
                self.write(series, Ok, output)
            }
        }
    }

    /// Returns the stage that selects documents of a range, and of these those with a value at a path.
    fn match_stage(
        &self,
        range: TimeRange,
        with: Option<&str>,
    ) -> Result<Option<Document>, String> {
        // The rows of subqueries were selected by the time already.
        let range = match self.given {
            None => range,
            Some(_) => TimeRange::ALL,
        };
        let filter = condition::filter(range, self.conjuncts, self.schema)?;
        let exists = with.map(|path| {
            let mut exists = DocumentBuilder::new();
            exists.append(path, doc! {"$exists": true, "$ne": Value::Null});
            exists.finish()
        });
        let filter = match (filter.is_empty(), exists) {
            (true, None) => return Ok(None),
            (true, Some(exists)) => exists,
            (false, None) => filter,
            (false, Some(exists)) => {
                let both: Vec<Value> = vec![filter.into(), exists.into()];
                doc! {"$and": Value::Array(both.into_iter().collect())}
            }
        };
        Ok(Some(doc! {"$match": filter}))
    }

    /// Returns the key of groups: the window and the tags.
    fn group_key(&self, range: TimeRange) -> Value {
        let mut key = DocumentBuilder::new();
        if let Some(windows) = self.windows {
            key.append("w", self.window_start(windows, range));
        }
        for (number, (_, path)) in self.tags.iter().enumerate() {
            if let Some(path) = path {
                key.append(&format!("d{number}"), format!("${path}"));
            }
        }
        match key.is_empty() {
            true => Value::Null,
            false => key.finish().into(),
        }
    }

    /// Returns the expression for the begin of a document's window, less a constant where all windows have one: see
    /// [`Self::window_shift`].
    fn window_start(&self, windows: &Windows, range: TimeRange) -> Value {
        let time = format!("${}", self.schema.names.time);
        if let (true, Some(zone)) = (windows.are_days(), &self.select.time_zone) {
            return doc! {"$dateTrunc": doc! {"date": time, "unit": "day", "timezone": zone.as_str()}}
                .into();
        }
        let pieces = self.pieces(windows, range);
        let [one] = &pieces[..] else {
            let mut otherwise = Value::Null;
            let mut branches: Vec<Value> = Vec::new();
            for (number, piece) in pieces.iter().enumerate().rev() {
                let begin: Value = match piece.begin {
                    PieceBegin::Window(begin) => Value::DateTime(begin),
                    PieceBegin::Shift(shift) => {
                        let bin = truncated(windows.length_ms, shifted(&time, shift));
                        doc! {"$add": nilometer_bson::array![bin, shift]}.into()
                    }
                };
                if number == 0 {
                    otherwise = begin;
                    continue;
                }
                let from = Value::DateTime(piece.from_ms);
                let case = doc! {"$gte": nilometer_bson::array![time.as_str(), from]};
                branches.push(doc! {"case": case, "then": begin}.into());
            }
            let branches = Value::Array(branches.into_iter().collect());
            return doc! {"$switch": doc! {"branches": branches, "default": otherwise}}.into();
        };
        match &one.begin {
            PieceBegin::Window(begin) => Value::DateTime(*begin),
            PieceBegin::Shift(shift) => truncated(windows.length_ms, shifted(&time, *shift)),
        }
    }

    /// Returns the pieces of the range in which windows differ from bins by a constant.
    fn pieces(&self, windows: &Windows, range: TimeRange) -> Vec<super::times::Piece> {
        let to = range.last_ms().unwrap_or(self.now_ms);
        windows.pieces(range.first_ms().unwrap_or(0).min(to), to)
    }

    /// Returns the constant that [`Self::window_start`] leaves out.
    fn window_shift(&self, range: TimeRange) -> i64 {
        let Some(windows) = self.windows.filter(|windows| !windows.are_days()) else {
            return 0;
        };
        match self.pieces(windows, range)[..] {
            [
                super::times::Piece {
                    begin: PieceBegin::Shift(shift),
                    ..
                },
            ] => shift,
            _ => 0,
        }
    }

    /// Reads the key of a group: its window in ms, 0 if there are none, and its tags.
    fn read_key(&self, id: ValueRef<'_>, shift: i64) -> (i64, SeriesKey) {
        let id = id.as_document().unwrap_or(DocRef::EMPTY);
        let window = match id.get("w") {
            ValueRef::DateTime(ms) => ms + shift,
            _ => 0,
        };
        let tags = (0..self.tags.len()).map(|number| Cell::of(id.get(&format!("d{number}"))));
        (window, tags.collect())
    }

    /// Returns the time of rows of a window, in ns.
    fn row_time(&self, window_ms: i64) -> i64 {
        match self.windows {
            Some(_) => window_ms.saturating_mul(NS_PER_MS),
            None => self.range.from.unwrap_or(0),
        }
    }

    /// Runs a pipeline over the measurement.
    fn aggregate(
        &self,
        store: &dyn Store,
        stages: Vec<Document>,
        visit: &mut dyn FnMut(DocRef<'_>) -> Result<bool, String>,
    ) -> Result<(), String> {
        let source = match self.given {
            None => Value::from(self.schema.collection.as_str()),
            Some(_) => Value::Int32(1),
        };
        let stages = self.given.cloned().into_iter().chain(stages);
        let stages: Vec<Value> = stages.map(Value::from).collect();
        let command = doc! {
            "aggregate": source,
            "pipeline": Value::Array(stages.into_iter().collect()),
            "cursor": doc! {},
            "allowDiskUse": true,
            "$db": self.db,
        };
        for_each(&mut |command| store.run(command), self.db, command, visit)
    }

    /// Returns the head of a series.
    fn head(&self, key: &SeriesKey) -> SeriesHead {
        let tags = self.tags.iter().zip(key).map(|((name, _), value)| {
            let mut text = String::new();
            match value {
                Cell::String(value) => text.clone_from(value),
                Cell::Null => {}
                other => other.write_json(&mut text),
            }
            (name.clone(), text)
        });
        let mut columns = vec!["time".to_owned()];
        columns.extend(self.plan.columns.iter().map(|column| column.name.clone()));
        SeriesHead {
            name: self.measurement.to_owned(),
            tags: tags.collect(),
            columns,
        }
    }

    /// Writes collected series in the order and within the limits of the statement. `rows` returns the rows of one, which ascend
    /// in time.
    fn write<T>(
        &self,
        mut series: Vec<(SeriesKey, T)>,
        mut rows: impl FnMut(T) -> Result<Vec<Row>, String>,
        output: &mut dyn Rows,
    ) -> Result<(), String> {
        series.sort_by(|a, b| compare_keys(&a.0, &b.0));
        let limits = self.select.limits;
        let mut count = 0_u64;
        for (key, collected) in series {
            if limits.slimit > 0 && count >= limits.soffset.saturating_add(limits.slimit) {
                break;
            }
            let mut rows = rows(collected)?;
            if rows.is_empty() {
                continue;
            }
            count += 1;
            if count <= limits.soffset {
                continue;
            }
            if self.select.descending {
                rows.reverse();
            }
            let mut begun = false;
            for (time, mut cells) in limited(rows, limits.offset, limits.limit) {
                if !begun {
                    output.begin_series(self.head(&key))?;
                    begun = true;
                }
                cells.insert(0, Cell::Time(time));
                output.row(&cells)?;
            }
        }
        Ok(())
    }
}

/// Fails if a statement collects too much.
fn check_points(count: usize) -> Result<(), String> {
    match count <= POINTS_MAX {
        true => Ok(()),
        false => Err(format!(
            "the query has more than {POINTS_MAX} points: use a shorter range, longer windows or fewer series"
        )),
    }
}

/// Returns elements after `offset`, at most `limit` of them; 0 is no limit.
fn limited<T>(all: Vec<T>, offset: u64, limit: u64) -> impl Iterator<Item = T> {
    let most = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
    let limit = if limit == 0 { usize::MAX } else { most(limit) };
    all.into_iter().skip(most(offset)).take(limit)
}

fn compare_keys(a: &SeriesKey, b: &SeriesKey) -> Ordering {
    let pairs = a.iter().zip(b).map(|(a, b)| a.order(b));
    pairs.fold(Ordering::Equal, Ordering::then)
}

/// Returns the time less a constant.
fn shifted(time: &str, shift: i64) -> Value {
    match shift {
        0 => Value::from(time),
        shift => doc! {"$subtract": nilometer_bson::array![time, shift]}.into(),
    }
}

/// Returns the begin of the bin of a time, for bins of a length in ms.
fn truncated(length_ms: i64, date: Value) -> Value {
    let (unit, size) = match length_ms {
        ms if ms % 3_600_000 == 0 => ("hour", ms / 3_600_000),
        ms if ms % 60_000 == 0 => ("minute", ms / 60_000),
        ms if ms % 1_000 == 0 => ("second", ms / 1_000),
        ms => ("millisecond", ms),
    };
    doc! {"$dateTrunc": doc! {"date": date, "unit": unit, "binSize": size}}.into()
}

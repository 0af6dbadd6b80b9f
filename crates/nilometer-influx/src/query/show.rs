//! `SHOW`: databases, measurements, tags, fields, series, retention.

use std::collections::{BTreeMap, BTreeSet};

use nilometer_bson::{DocRef, Document, ValueRef, doc};

use super::cell::Cell;
use super::condition;
use super::output::{Output, SeriesHead};
use super::select::{all_measurements, may_read, measurements, name_filter};
use super::{POINTS_MAX, RETENTION_COLLECTION, RETENTION_POLICY, Store, database};
use crate::influxql::Statement;
use crate::influxql::ast::{KeyFilter, Limits, Show, Source, SourceName};
use crate::schema::{self, MeasurementSchema, for_each_series};

/// Databases of the server itself.
const HIDDEN: [&str; 3] = ["admin", "config", "local"];

/// Executes a statement.
pub(super) fn run(
    store: &dyn Store,
    db: Option<&str>,
    statement: &Statement,
    output: &mut Output<'_>,
) -> Result<(), String> {
    match statement {
        Statement::ShowDatabases => databases(store, output),
        Statement::ShowMeasurements(show) => show_measurements(store, db, show, output),
        Statement::ShowTagKeys(show) => tag_keys(store, db, show, output),
        Statement::ShowTagValues(show, keys) => tag_values(store, db, show, keys, output),
        Statement::ShowFieldKeys(show) => field_keys(store, db, show, output),
        Statement::ShowSeries(show) => series(store, db, show, output),
        Statement::ShowRetentionPolicies(named) => {
            retention(store, database(db, named.as_deref())?, output)
        }
        other => Err(format!("{other:?} shows nothing")),
    }
}

/// Writes a series of texts, within limits.
fn write(
    output: &mut Output<'_>,
    name: &str,
    columns: &[&str],
    rows: Vec<Vec<Cell>>,
    limits: Limits,
) -> Result<(), String> {
    let most = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
    let limit = match limits.limit {
        0 => usize::MAX,
        limit => most(limit),
    };
    let mut rows = rows
        .into_iter()
        .skip(most(limits.offset))
        .take(limit)
        .peekable();
    if rows.peek().is_none() {
        return Ok(());
    }
    output.begin_series(SeriesHead {
        name: name.to_owned(),
        tags: Vec::new(),
        columns: columns.iter().map(|&column| column.to_owned()).collect(),
    })?;
    rows.try_for_each(|row| output.row(&row))
}

fn text(text: impl Into<String>) -> Cell {
    Cell::String(text.into())
}

fn databases(store: &dyn Store, output: &mut Output<'_>) -> Result<(), String> {
    let list = doc! {
        "listDatabases": 1, "nameOnly": true, "authorizedDatabases": true, "$db": "admin",
    };
    let reply = store.run(list)?;
    let all = reply.get("databases").as_array();
    let all = all.iter().flat_map(|all| all.iter());
    let names = all.filter_map(|one| one.as_document()?.get("name").as_str());
    let names = names.filter(|name| !HIDDEN.contains(name));
    let rows: Vec<Vec<Cell>> = names.map(|name| vec![text(name)]).collect();
    // Clients expect the columns also if there is no database.
    output.begin_series(SeriesHead {
        name: "databases".to_owned(),
        tags: Vec::new(),
        columns: vec!["name".to_owned()],
    })?;
    rows.iter().try_for_each(|row| output.row(row))
}

/// Takes a measurement: its database, its name, what is known of it.
type VisitMeasurement<'v> =
    dyn FnMut(&dyn Store, &str, &str, &MeasurementSchema) -> Result<(), String> + 'v;

/// Calls `visit` with the measurements of a statement.
fn for_each_measurement(
    store: &dyn Store,
    db: Option<&str>,
    show: &Show,
    visit: &mut VisitMeasurement<'_>,
) -> Result<(), String> {
    let all = [Source {
        db: None,
        policy: None,
        name: SourceName::Regex(String::new()),
    }];
    let sources = match show.sources.is_empty() {
        true => &all[..],
        false => &show.sources,
    };
    let db = show.db.as_deref().or(db);
    for (db, name) in measurements(store, db, sources)? {
        let Some(schema) = store.schema(db, &name, true)? else {
            continue;
        };
        // What is known may be the server's knowledge; the user must be allowed to read.
        may_read(store, db, &schema.collection)?;
        visit(store, db, &name, &schema)?;
    }
    Ok(())
}

/// Returns the filter of a statement for a measurement; `None` if it has no condition.
fn filter(
    store: &dyn Store,
    show: &Show,
    schema: &MeasurementSchema,
) -> Result<Option<Document>, String> {
    let (range, conjuncts) = condition::split(show.condition.as_ref(), store.now_ms(), None)?;
    let filter = condition::filter(range, &conjuncts, schema)?;
    Ok((!filter.is_empty()).then_some(filter))
}

fn show_measurements(
    store: &dyn Store,
    db: Option<&str>,
    show: &Show,
    output: &mut Output<'_>,
) -> Result<(), String> {
    let db = database(db, show.db.as_deref())?;
    let mut names = all_measurements(store, db)?;
    if let Some(source) = show.sources.first() {
        let matches = name_filter(&source.name)?;
        names.retain(|name| matches(name));
    }
    let mut rows = Vec::new();
    for name in names {
        if show.condition.is_some() {
            let Some(schema) = store.schema(db, &name, true)? else {
                continue;
            };
            let filter = filter(store, show, &schema)?.unwrap_or_default();
            let find = doc! {
                "find": schema.collection.as_str(), "filter": filter, "limit": 1, "singleBatch": true,
                "$db": db,
            };
            let reply = store.run(find)?;
            let cursor = reply.get("cursor").as_document().unwrap_or(DocRef::EMPTY);
            let found = cursor.get("firstBatch").as_array();
            if found.is_none_or(|batch| batch.is_empty()) {
                continue;
            }
        }
        rows.push(vec![text(name)]);
    }
    write(output, "measurements", &["name"], rows, show.limits)
}

fn tag_keys(
    store: &dyn Store,
    db: Option<&str>,
    show: &Show,
    output: &mut Output<'_>,
) -> Result<(), String> {
    for_each_measurement(store, db, show, &mut |store, db, name, schema| {
        let keys: BTreeSet<String> = match filter(store, show, schema)? {
            None => schema.tags.keys().cloned().collect(),
            Some(filter) => {
                let mut keys = BTreeSet::new();
                let run = &mut |command| store.run(command);
                for_each_series(run, db, schema, Some(&filter), &mut |tags| {
                    keys.extend(tags.keys().cloned());
                    Ok(true)
                })?;
                keys
            }
        };
        let rows = keys.into_iter().map(|key| vec![text(key)]).collect();
        write(output, name, &["tagKey"], rows, show.limits)
    })
}

fn field_keys(
    store: &dyn Store,
    db: Option<&str>,
    show: &Show,
    output: &mut Output<'_>,
) -> Result<(), String> {
    for_each_measurement(store, db, show, &mut |_, _, name, schema| {
        let fields = schema.fields.iter();
        let rows = fields.map(|(field, kind)| vec![text(field.as_str()), text(kind.name())]);
        write(
            output,
            name,
            &["fieldKey", "fieldType"],
            rows.collect(),
            show.limits,
        )
    })
}

fn tag_values(
    store: &dyn Store,
    db: Option<&str>,
    show: &Show,
    keys: &KeyFilter,
    output: &mut Output<'_>,
) -> Result<(), String> {
    let matches: Box<dyn Fn(&str) -> bool> = match keys {
        KeyFilter::OneOf(names) => Box::new(move |key| names.iter().any(|name| name == key)),
        KeyFilter::Not(name) => Box::new(move |key| key != name),
        KeyFilter::Matches(pattern) => {
            let pattern = condition::compile(pattern)?;
            Box::new(move |key| pattern.is_match(key))
        }
        KeyFilter::MatchesNot(pattern) => {
            let pattern = condition::compile(pattern)?;
            Box::new(move |key| !pattern.is_match(key))
        }
    };
    for_each_measurement(store, db, show, &mut |store, db, name, schema| {
        let filter = filter(store, show, schema)?;
        let mut values: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let mut count = 0;
        for (key, path) in schema.tags.iter().filter(|(key, _)| matches(key)) {
            let found = values.entry(key.clone()).or_default();
            let group = doc! {"$group": doc! {"_id": format!("${path}")}};
            let pipeline = match &filter {
                Some(filter) => nilometer_bson::array![doc! {"$match": filter.clone()}, group],
                None => nilometer_bson::array![group],
            };
            let aggregate = doc! {
                "aggregate": schema.collection.as_str(), "pipeline": pipeline, "cursor": doc! {},
                "allowDiskUse": true, "$db": db,
            };
            let run = &mut |command| store.run(command);
            schema::for_each(run, db, aggregate, &mut |group| {
                found.extend(schema::tag_text(group.get("_id")));
                count += 1;
                match count <= POINTS_MAX {
                    true => Ok(true),
                    false => Err(format!("there are more than {POINTS_MAX} values")),
                }
            })?;
        }
        let pairs = values.into_iter().flat_map(|(key, values)| {
            let pair = move |value| vec![text(key.as_str()), text(value)];
            values.into_iter().map(pair).collect::<Vec<_>>()
        });
        write(
            output,
            name,
            &["key", "value"],
            pairs.collect(),
            show.limits,
        )
    })
}

fn series(
    store: &dyn Store,
    db: Option<&str>,
    show: &Show,
    output: &mut Output<'_>,
) -> Result<(), String> {
    let mut rows = Vec::new();
    for_each_measurement(store, db, show, &mut |store, db, name, schema| {
        let filter = filter(store, show, schema)?;
        let mut keys = BTreeSet::new();
        let run = &mut |command| store.run(command);
        for_each_series(run, db, schema, filter.as_ref(), &mut |tags| {
            let mut key = escaped(name);
            for (tag, (_, value)) in tags {
                key.push_str(&format!(",{}={}", escaped(tag), escaped(value)));
            }
            keys.insert(key);
            match keys.len() <= POINTS_MAX {
                true => Ok(true),
                false => Err(format!("there are more than {POINTS_MAX} series")),
            }
        })?;
        rows.extend(keys.into_iter().map(|key| vec![text(key)]));
        Ok(())
    })?;
    write(output, "", &["key"], rows, show.limits)
}

/// Returns a name or tag value as line protocol writes it.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        if matches!(character, ',' | '=' | ' ') {
            out.push('\\');
        }
        out.push(character);
    }
    out
}

fn retention(store: &dyn Store, db: &str, output: &mut Output<'_>) -> Result<(), String> {
    let find = doc! {
        "find": RETENTION_COLLECTION, "filter": doc! {"_id": "retention"}, "limit": 1,
        "singleBatch": true, "$db": db,
    };
    let reply = store.run(find)?;
    let cursor = reply.get("cursor").as_document().unwrap_or(DocRef::EMPTY);
    let batch = cursor.get("firstBatch").as_array();
    let found = batch.and_then(|batch| batch.get(0).as_document());
    let seconds = found.map_or(ValueRef::Missing, |found| found.get("seconds"));
    let seconds = seconds.as_exact_i64().unwrap_or(0);
    let duration = match seconds {
        0 => "0s".to_owned(),
        seconds => format!("{}h{}m{}s", seconds / 3600, seconds / 60 % 60, seconds % 60),
    };
    let row = vec![
        text(RETENTION_POLICY),
        text(duration),
        text("168h0m0s"),
        Cell::Integer(1),
        Cell::Boolean(true),
    ];
    let columns = [
        "name",
        "duration",
        "shardGroupDuration",
        "replicaN",
        "default",
    ];
    write(output, "", &columns, vec![row], Limits::default())
}

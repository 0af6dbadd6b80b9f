//! Measurements as collections: which there are, their fields and their tags.
//!
//! ```text
//! listCollections ─► timeField, metaField ─► bounds in the headers of buckets ─► fields and types
//!                                        └► distinct metadata ─► tags and their paths
//! ```
//!
//! Any time series is a measurement. Tags are the parts of its metadata, by their paths; metadata that is no document is one tag
//! with the name of the metadata field. Fields are the other fields of its documents that hold numbers, texts or truth values.

use std::collections::{BTreeMap, HashMap};

use nilometer_bson::{Array, DocRef, Document, DocumentBuilder, Value, ValueRef, array, doc};

use crate::line_protocol::{FieldType, Names};

/// Runs a command; an error is its text.
pub type Run<'r> = dyn FnMut(Document) -> Result<Document, String> + 'r;

/// What the names of bucket collections begin with.
const BUCKETS_PREFIX: &str = "system.buckets.";

/// Documents that a cursor returns at once when a schema is read.
const BATCH: i64 = 10_000;

/// How deep tags are looked for in metadata.
const DEPTH_MAX: usize = 8;

/// Tags of a measurement; further ones are not shown.
const TAGS_MAX: usize = 10_000;

/// What is known of a measurement.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MeasurementSchema {
    /// Its collection.
    pub collection: String,
    /// The names in its collection.
    pub names: Names,
    /// Fields and their types.
    pub fields: BTreeMap<String, FieldType>,
    /// Tags and their paths in documents.
    pub tags: BTreeMap<String, String>,
    /// The tags are those of a mapping, not all parts of the metadata.
    pub are_tags_mapped: bool,
}

/// Reads what is known of a collection that is a time series.
pub fn read(
    run: &mut Run<'_>,
    db: &str,
    collection: &str,
    names: &Names,
) -> Result<MeasurementSchema, String> {
    Ok(MeasurementSchema {
        collection: collection.to_owned(),
        names: names.clone(),
        fields: field_types(run, db, collection, names)?
            .into_iter()
            .collect(),
        tags: tags(run, db, collection, names)?,
        are_tags_mapped: false,
    })
}

/// The collection of a measurement.
#[derive(Clone, Debug, PartialEq)]
pub enum Found {
    /// There is none.
    Missing,
    /// A time series: the UUID of its buckets, and names.
    TimeSeries(Vec<u8>, Names),
    /// Another kind of collection.
    Other,
}

/// Calls `visit` with the documents of a cursor that `command` opens, until all were visited or `visit` returns false.
pub fn for_each(
    run: &mut Run<'_>,
    db: &str,
    command: Document,
    visit: &mut dyn FnMut(DocRef<'_>) -> Result<bool, String>,
) -> Result<(), String> {
    let mut reply = run(command)?;
    let mut batch = "firstBatch";
    loop {
        let cursor = reply.get("cursor").as_document().unwrap_or(DocRef::EMPTY);
        let id = cursor.get("id").as_exact_i64().unwrap_or(0);
        let collection = cursor.get("ns").as_str().and_then(|ns| ns.split_once('.'));
        let collection = collection.map_or("", |(_, name)| name).to_owned();
        let documents = cursor.get(batch).as_array();
        let documents = documents.iter().flat_map(|batch| batch.iter());
        let mut visited = Ok(true);
        for document in documents.filter_map(ValueRef::as_document) {
            visited = visit(document);
            if !matches!(visited, Ok(true)) {
                break;
            }
        }
        if id == 0 {
            return visited.map(drop);
        }
        if !matches!(visited, Ok(true)) {
            // It may have ended meanwhile.
            drop(run(
                doc! {"killCursors": collection, "cursors": array![id], "$db": db},
            ));
            return visited.map(drop);
        }
        reply = run(doc! {"getMore": id, "collection": collection, "$db": db})?;
        batch = "nextBatch";
    }
}

/// Looks for the collection of a measurement.
pub fn find(run: &mut Run<'_>, db: &str, measurement: &str) -> Result<Found, String> {
    let mut found = find_all(run, db, &[measurement])?;
    Ok(found.pop().unwrap_or(Found::Missing))
}

/// Looks for the collections of measurements by one listing; returns them in the same order.
pub fn find_all<'m>(
    run: &mut Run<'_>,
    db: &str,
    measurements: &[&'m str],
) -> Result<Vec<Found>, String> {
    let missing = |name: &&'m str| (*name, (Vec::new(), Found::Missing));
    let mut by_name: HashMap<&str, (Vec<u8>, Found)> = measurements.iter().map(missing).collect();
    let names = by_name.keys();
    let names = names.flat_map(|name| [(*name).to_owned(), format!("{BUCKETS_PREFIX}{name}")]);
    let names: Array = names.map(Value::from).collect();
    let list = doc! {
        "listCollections": 1, "filter": doc! {"name": doc! {"$in": names}}, "$db": db,
        "cursor": doc! {"batchSize": BATCH},
    };
    for_each(run, db, list, &mut |entry| {
        let name = entry.get("name").as_str().unwrap_or("");
        if let Some((_, found)) = by_name.get_mut(name) {
            *found = match names_of(entry) {
                Some(names) => Found::TimeSeries(Vec::new(), names),
                None => Found::Other,
            };
        }
        let buckets = name.strip_prefix(BUCKETS_PREFIX);
        if let Some((uuid, _)) = buckets.and_then(|name| by_name.get_mut(name)) {
            let info = entry.get("info").as_document().unwrap_or(DocRef::EMPTY);
            if let ValueRef::Binary { bytes, .. } = info.get("uuid") {
                *uuid = bytes.to_vec();
            }
        }
        Ok(true)
    })?;
    let found = |name: &&str| match by_name.get(*name) {
        Some((uuid, Found::TimeSeries(_, names))) => Found::TimeSeries(uuid.clone(), names.clone()),
        Some((_, other)) => other.clone(),
        None => Found::Missing,
    };
    Ok(measurements.iter().map(found).collect())
}

/// Returns the names of a time series in the list of collections.
fn names_of(entry: DocRef<'_>) -> Option<Names> {
    let options = entry.get("options").as_document()?;
    let options = options.get("timeseries").as_document()?;
    Some(Names {
        time: options.get("timeField").as_str()?.to_owned(),
        tags: options.get("metaField").as_str().map(str::to_owned),
    })
}

/// Returns the names of all measurements of a database, in order.
pub fn measurements(run: &mut Run<'_>, db: &str) -> Result<Vec<String>, String> {
    let list = doc! {
        "listCollections": 1, "filter": doc! {"type": "timeseries"}, "nameOnly": true,
        "authorizedCollections": true, "$db": db,
    };
    let mut names = Vec::new();
    for_each(run, db, list, &mut |entry| {
        names.extend(entry.get("name").as_str().map(str::to_owned));
        Ok(true)
    })?;
    names.sort();
    Ok(names)
}

/// Returns the types of the fields of a measurement, from the bounds of its buckets.
pub fn field_types(
    run: &mut Run<'_>,
    db: &str,
    measurement: &str,
    names: &Names,
) -> Result<HashMap<String, FieldType>, String> {
    let bounds = doc! {"$objectToArray": "$control.min"};
    let kind = doc! {"name": "$bounds.k", "type": doc! {"$type": "$bounds.v"}};
    let aggregate = doc! {
        "aggregate": format!("{BUCKETS_PREFIX}{measurement}"),
        "pipeline": array![
            doc! {"$project": doc! {"bounds": bounds}},
            doc! {"$unwind": "$bounds"},
            doc! {"$group": doc! {"_id": kind}},
        ],
        "cursor": doc! {"batchSize": BATCH},
        "allowDiskUse": true,
        "$db": db,
    };
    let mut types = HashMap::new();
    for_each(run, db, aggregate, &mut |group| {
        let id = group.get("_id").as_document().unwrap_or(DocRef::EMPTY);
        let (Some(name), Some(kind)) = (id.get("name").as_str(), id.get("type").as_str()) else {
            return Ok(true);
        };
        let is_field = name != names.time && name != "_id" && names.tags.as_deref() != Some(name);
        if let (true, Some(kind)) = (is_field, FieldType::of_bson(kind)) {
            // Of several types, which other clients may write, the first in their order counts.
            let known = types.entry(name.to_owned()).or_insert(kind);
            *known = kind.min(*known);
        }
        Ok(true)
    })?;
    Ok(types)
}

/// The tags of a series: path and text of each.
pub type SeriesTags = BTreeMap<String, (String, String)>;

/// Takes the tags of a series. False ends the reading.
pub type VisitSeries<'v> = dyn FnMut(&SeriesTags) -> Result<bool, String> + 'v;

/// Calls `visit` with the tags of each series of a measurement.
pub fn for_each_series(
    run: &mut Run<'_>,
    db: &str,
    schema: &MeasurementSchema,
    filter: Option<&Document>,
    visit: &mut VisitSeries<'_>,
) -> Result<(), String> {
    if !schema.are_tags_mapped {
        let names = &schema.names;
        return for_each_metadata(run, db, &schema.collection, names, filter, visit);
    }
    let mut key = DocumentBuilder::new();
    for (number, path) in schema.tags.values().enumerate() {
        key.append(&format!("t{number}"), format!("${path}"));
    }
    let key = Value::Document(key.finish());
    let groups = groups(db, &schema.collection, key, filter);
    for_each(run, db, groups, &mut |group| {
        let id = group.get("_id").as_document().unwrap_or(DocRef::EMPTY);
        let mut tags = BTreeMap::new();
        for (number, (name, path)) in schema.tags.iter().enumerate() {
            if let Some(text) = tag_text(id.get(&format!("t{number}"))) {
                tags.insert(name.clone(), (path.clone(), text));
            }
        }
        visit(&tags)
    })
}

/// Returns the command that groups the documents of a collection by an expression.
fn groups(db: &str, collection: &str, key: Value, filter: Option<&Document>) -> Document {
    let group = doc! {"$group": doc! {"_id": key}};
    let pipeline = match filter {
        Some(filter) => array![doc! {"$match": filter.clone()}, group],
        None => array![group],
    };
    doc! {
        "aggregate": collection,
        "pipeline": pipeline,
        "cursor": doc! {"batchSize": BATCH},
        "allowDiskUse": true,
        "$db": db,
    }
}

/// Calls `visit` with the parts of each metadata of a collection.
fn for_each_metadata(
    run: &mut Run<'_>,
    db: &str,
    collection: &str,
    names: &Names,
    filter: Option<&Document>,
    visit: &mut VisitSeries<'_>,
) -> Result<(), String> {
    let Some(meta) = &names.tags else {
        visit(&BTreeMap::new())?;
        return Ok(());
    };
    let groups = groups(db, collection, format!("${meta}").into(), filter);
    for_each(run, db, groups, &mut |group| {
        let mut tags = BTreeMap::new();
        match group.get("_id") {
            ValueRef::Document(document) => flatten(document, "", meta, 0, &mut tags),
            value => {
                if let Some(text) = tag_text(value) {
                    tags.insert(meta.clone(), (meta.clone(), text));
                }
            }
        }
        visit(&tags)
    })
}

/// Adds the scalar parts of metadata: name, path and text.
fn flatten(document: DocRef<'_>, prefix: &str, path: &str, depth: usize, out: &mut SeriesTags) {
    for element in document {
        let name = format!("{prefix}{}", element.name());
        let path = format!("{path}.{}", element.name());
        match element.value() {
            ValueRef::Document(inner) if depth < DEPTH_MAX => {
                flatten(inner, &format!("{name}."), &path, depth + 1, out);
            }
            value => {
                if let Some(text) = tag_text(value) {
                    out.insert(name, (path, text));
                }
            }
        }
    }
}

/// Returns a value of metadata as the text of a tag. Values without one are no tags.
pub fn tag_text(value: ValueRef<'_>) -> Option<String> {
    match value {
        ValueRef::String(text) => Some(text.to_owned()),
        ValueRef::Bool(value) => Some(value.to_string()),
        ValueRef::Double(value) => Some(value.to_string()),
        ValueRef::Int32(value) => Some(value.to_string()),
        ValueRef::Int64(value) => Some(value.to_string()),
        _ => None,
    }
}

/// Returns the tags of a measurement and their paths.
fn tags(
    run: &mut Run<'_>,
    db: &str,
    measurement: &str,
    names: &Names,
) -> Result<BTreeMap<String, String>, String> {
    let mut all = BTreeMap::new();
    for_each_metadata(run, db, measurement, names, None, &mut |tags| {
        for (name, (path, _)) in tags {
            if all.len() < TAGS_MAX && !all.contains_key(name) {
                all.insert(name.clone(), path.clone());
            }
        }
        Ok(true)
    })?;
    Ok(all)
}

//! Measurements that show a collection in another way than by its name and metadata.
//!
//! ```text
//! nilometer.measurements  {_id: "weather", collection: "readings", tags: {station: "sensor.id"}, fields: ["temp"]}
//!                                │                     │                    │                       │
//! the measurement ◄──────────────┘                     │      names of tags and their paths     fields that are shown
//!                      a time series of the database ◄─┘
//! ```
//!
//! Without `tags` the parts of the metadata are the tags, without `fields` all fields are shown, except those that are tags. A
//! mapping is read with each statement, so it applies at once. It only shows: such a measurement is not written.

use std::collections::{BTreeMap, BTreeSet};

use nilometer_bson::{DocRef, ValueRef, doc};

use crate::schema::{self, Found, MeasurementSchema, Run, for_each};

/// The collection of a database whose documents are its mappings.
pub const MAPPINGS_COLLECTION: &str = "nilometer.measurements";

/// Mappings of a database.
const MAPPINGS_MAX: usize = 10_000;

/// Tags of a mapping.
const TAGS_MAX: usize = 256;

/// How a measurement shows a collection.
#[derive(Clone, Debug, PartialEq)]
pub struct Mapping {
    /// The measurement.
    pub measurement: String,
    /// The collection, of the same database.
    pub collection: String,
    /// Tags and their paths in documents.
    tags: Option<BTreeMap<String, String>>,
    /// The fields that are shown.
    fields: Option<BTreeSet<String>>,
}

impl Mapping {
    /// Reads a document of the collection of mappings.
    fn parse(document: DocRef<'_>) -> Result<Self, String> {
        let ValueRef::String(measurement) = document.get("_id") else {
            return Err(format!(
                "a mapping in {MAPPINGS_COLLECTION} has no text as _id, which is the name of the measurement"
            ));
        };
        let bad = |text: &str| {
            format!("the mapping of \"{measurement}\" in {MAPPINGS_COLLECTION}: {text}")
        };
        let mut mapping = Self {
            measurement: measurement.to_owned(),
            collection: measurement.to_owned(),
            tags: None,
            fields: None,
        };
        for element in document {
            match (element.name(), element.value()) {
                ("_id", _) => {}
                ("collection", ValueRef::String(name)) => mapping.collection = name.to_owned(),
                ("collection", _) => return Err(bad("\"collection\" must be a text")),
                ("tags", ValueRef::Document(tags)) => {
                    mapping.tags = Some(tag_paths(tags).map_err(|text| bad(&text))?);
                }
                ("tags", _) => {
                    return Err(bad("\"tags\" must be a document of names and paths"));
                }
                ("fields", ValueRef::Array(names)) => {
                    let names = names.iter().map(|name| name.as_str().map(str::to_owned));
                    let names: Option<BTreeSet<_>> = names.collect();
                    mapping.fields =
                        Some(names.ok_or_else(|| bad("\"fields\" must be an array of names"))?);
                }
                ("fields", _) => return Err(bad("\"fields\" must be an array of names")),
                (other, _) => {
                    return Err(bad(&format!(
                        "there is no option \"{other}\"; there are collection, tags and fields"
                    )));
                }
            }
        }
        Ok(mapping)
    }

    /// Returns what the measurement shows of its collection.
    pub fn apply(&self, schema: &MeasurementSchema) -> MeasurementSchema {
        let mut shown = schema.clone();
        if let Some(tags) = &self.tags {
            shown.tags.clone_from(tags);
            shown.are_tags_mapped = true;
            let paths: BTreeSet<&String> = tags.values().collect();
            shown.fields.retain(|name, _| !paths.contains(name));
        }
        if let Some(fields) = &self.fields {
            shown.fields.retain(|name, _| fields.contains(name));
        }
        shown
    }
}

/// Returns the tags of a mapping and their paths.
fn tag_paths(tags: DocRef<'_>) -> Result<BTreeMap<String, String>, String> {
    let mut out = BTreeMap::new();
    for element in tags {
        let name = element.name();
        let ValueRef::String(path) = element.value() else {
            return Err(format!("the path of the tag \"{name}\" must be a text"));
        };
        let is_path = |part: &str| !part.is_empty() && !part.starts_with('$');
        if name.is_empty() || name == "time" || !path.split('.').all(is_path) {
            return Err(format!("\"{name}: {path}\" names no tag and its path"));
        }
        out.insert(name.to_owned(), path.to_owned());
    }
    match out.len() <= TAGS_MAX {
        true => Ok(out),
        false => Err(format!("there are more than {TAGS_MAX} tags")),
    }
}

/// Returns the mapping of a measurement, if it has one.
pub fn of(run: &mut Run<'_>, db: &str, measurement: &str) -> Result<Option<Mapping>, String> {
    let filter = doc! {"_id": doc! {"$eq": measurement}};
    let find = doc! {"find": MAPPINGS_COLLECTION, "filter": filter, "limit": 1, "$db": db};
    let mut found = None;
    for_each(run, db, find, &mut |document| {
        found = Some(Mapping::parse(document)?);
        Ok(true)
    })?;
    Ok(found)
}

/// Reads what is known of a measurement, if it exists.
pub fn read(
    run: &mut Run<'_>,
    db: &str,
    measurement: &str,
) -> Result<Option<MeasurementSchema>, String> {
    let mapping = of(run, db, measurement)?;
    let collection = mapping.as_ref().map_or(measurement, |one| &one.collection);
    let Found::TimeSeries(_, names) = schema::find(run, db, collection)? else {
        return Ok(None);
    };
    let read = schema::read(run, db, collection, &names)?;
    Ok(Some(match mapping {
        Some(mapping) => mapping.apply(&read),
        None => read,
    }))
}

/// Returns all mappings of a database, by the names of their measurements.
pub fn all(run: &mut Run<'_>, db: &str) -> Result<BTreeMap<String, Mapping>, String> {
    let find = doc! {"find": MAPPINGS_COLLECTION, "$db": db};
    let mut all = BTreeMap::new();
    for_each(run, db, find, &mut |document| {
        let mapping = Mapping::parse(document)?;
        all.insert(mapping.measurement.clone(), mapping);
        match all.len() <= MAPPINGS_MAX {
            true => Ok(true),
            false => Err(format!(
                "{MAPPINGS_COLLECTION} has more than {MAPPINGS_MAX} documents"
            )),
        }
    })?;
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nilometer_bson::{Document, array};

    fn refusal(document: &Document) -> String {
        Mapping::parse(document.as_ref()).unwrap_err()
    }

    #[test]
    fn options_are_checked() {
        let whole = doc! {
            "_id": "weather", "collection": "readings", "tags": doc! {"station": "sensor.id"}, "fields": array!["temp"],
        };
        let mapping = Mapping::parse(whole.as_ref()).unwrap();
        assert_eq!(mapping.collection, "readings");
        assert_eq!(
            mapping.tags.unwrap().into_iter().collect::<Vec<_>>(),
            [("station".to_owned(), "sensor.id".to_owned())]
        );
        for (bad, why) in [
            (doc! {"_id": 1}, "has no text as _id"),
            (doc! {"_id": "w", "tag": doc! {}}, "no option \"tag\""),
            (doc! {"_id": "w", "collection": 1}, "must be a text"),
            (doc! {"_id": "w", "tags": array!["a"]}, "names and paths"),
            (
                doc! {"_id": "w", "tags": doc! {"a": 1}},
                "\"a\" must be a text",
            ),
            (
                doc! {"_id": "w", "tags": doc! {"a": "b..c"}},
                "names no tag",
            ),
            (doc! {"_id": "w", "tags": doc! {"a": "$b"}}, "names no tag"),
            (
                doc! {"_id": "w", "tags": doc! {"time": "b"}},
                "names no tag",
            ),
            (doc! {"_id": "w", "fields": "temp"}, "array of names"),
            (doc! {"_id": "w", "fields": array![1]}, "array of names"),
        ] {
            let text = refusal(&bad);
            assert!(text.contains(why), "{text}");
        }
    }
}

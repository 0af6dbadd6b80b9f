//! The shard key of a collection: which fields decide where new buckets or documents go.
//!
//! A key value is a list with one value for each part, compared part by part as values are. A missing field counts as null.
//! A hashed part has the 64-bit hash of its value. Values that compare equal have the same place.

use std::cmp::Ordering;
use std::sync::Arc;

use nilometer_bson::extjson::value_to_relaxed;
use nilometer_bson::order::compare;
use nilometer_bson::path::FieldPath;
use nilometer_bson::path::keys::plain_value;
use nilometer_bson::{DocRef, Document, DocumentBuilder, Value, ValueRef, array, doc};

use crate::catalog::{Namespace, TimeseriesOptions};
use crate::error::{Error, ErrorCode, Result};
use crate::eval::Collation;
use crate::eval::expression::hashed_index_key;
use crate::eval::matcher::MatchExpression;

/// Most parts of a shard key: as many as an index may have.
const PARTS_MAX: usize = 32;

/// How the stored name of the time begins.
const TIME_PREFIX: &str = "control.min.";

/// A part of a shard key.
#[derive(Clone, Debug)]
pub(crate) struct KeyPart {
    /// The path in documents and measurements.
    pub(crate) path: FieldPath,
    /// The name in the stored key: `meta.host`, `control.min.time`.
    stored: String,
    pub(crate) is_hashed: bool,
}

/// A shard key.
#[derive(Clone, Debug)]
pub(crate) struct ShardKey {
    parts: Arc<[KeyPart]>,
    is_timeseries: bool,
}

impl ShardKey {
    /// Parses the key of a collection; `timeseries` has the options of a time series.
    pub(crate) fn parse(key: DocRef<'_>, timeseries: Option<&TimeseriesOptions>) -> Result<Self> {
        let mut parts = Vec::new();
        for element in key {
            let is_hashed = match element.value() {
                ValueRef::String("hashed") => true,
                value if value.as_exact_i64() == Some(1) => false,
                _ => {
                    return Err(Error::bad_value(format!(
                        "The shard key can contain either a single 'hashed' field or multiple numerical fields set to a value of 1, but '{}' is neither",
                        element.name()
                    )));
                }
            };
            let name = element.name();
            let path = FieldPath::parse(name).map_err(|_| {
                Error::bad_value(format!("'{name}' is not a path that a shard key can have"))
            })?;
            let stored = match timeseries {
                None => name.to_owned(),
                Some(options) => stored_name(&path, is_hashed, options)?,
            };
            parts.push(KeyPart {
                path,
                stored,
                is_hashed,
            });
        }
        check(&parts, timeseries)?;
        Ok(Self {
            parts: parts.into(),
            is_timeseries: timeseries.is_some(),
        })
    }

    /// True for the key of a time series, whose buckets may be outside of the chunks of their keys.
    pub(crate) fn is_timeseries(&self) -> bool {
        self.is_timeseries
    }

    /// True if a part of the key is hashed.
    pub(crate) fn is_hashed(&self) -> bool {
        self.parts.iter().any(|part| part.is_hashed)
    }

    /// True if a part of the key is the time of measurements.
    pub(crate) fn has_time(&self) -> bool {
        let mut parts = self.parts.iter();
        self.is_timeseries && parts.any(|part| part.stored.starts_with(TIME_PREFIX))
    }

    /// True if a filter names a value for each part, and so fixes the key.
    pub(crate) fn is_fixed_by(&self, filter: &MatchExpression) -> bool {
        super::targets::is_fixed(self, filter)
    }

    /// True if an index with this key begins with the shard key.
    pub(crate) fn is_prefix_of(&self, index: DocRef<'_>) -> bool {
        let mut fields = index.iter();
        self.parts.iter().all(|part| {
            let field = fields.next();
            field.is_some_and(|field| {
                let fits = match part.is_hashed {
                    true => field.value().as_str() == Some("hashed"),
                    false => field.value().is_number(),
                };
                fits && field.name() == part.path.as_str()
            })
        })
    }

    /// True if an index, as it is listed, finds all documents by the shard key.
    pub(crate) fn is_served_by(&self, index: DocRef<'_>, is_unique: bool) -> bool {
        let is_true = |name: &str| matches!(index.get(name), ValueRef::Bool(true));
        let of = index.get("key").as_document().unwrap_or(DocRef::EMPTY);
        let is_same = of.iter().count() == self.parts.len();
        let is_id = is_same && self.parts.iter().all(|part| part.path.as_str() == "_id");
        let collation = index.get("collation").as_document();
        let collation = collation.map(|collation| Collation::parse(collation, "collation"));
        let is_simple =
            collation.is_none_or(|parsed| parsed.is_ok_and(|parsed| parsed.is_simple()));
        let is_whole = index.get("partialFilterExpression").is_missing();
        is_simple
            && is_whole
            && !is_true("sparse")
            && self.is_prefix_of(of)
            && (!is_unique || is_id || is_same && is_true("unique"))
    }

    /// True if a unique index with this key is unique in the whole collection, because equal keys are in one partition.
    pub(crate) fn allows_unique(&self, index: DocRef<'_>) -> bool {
        !self.is_timeseries && !self.is_hashed() && self.is_prefix_of(index)
    }

    /// Returns a filter of documents with keys from `low` to `high`, without `high` unless it is the end of all keys.
    pub(crate) fn between(&self, low: &KeyBound, high: &KeyBound) -> Document {
        let values = self.parts.iter().map(KeyPart::expression);
        let key: Value = values.collect::<Vec<_>>().into();
        let bound = |bound: &KeyBound| doc! {"$literal": bound.0.clone()};
        let mut all = vec![Value::from(doc! {"$gte": array![key.clone(), bound(low)]})];
        if *high != self.whole().1 {
            all.push(doc! {"$lt": array![key, bound(high)]}.into());
        }
        doc! {"$expr": doc! {"$and": all}}
    }

    /// Returns expressions of the parts but the time, which is the last one.
    pub(crate) fn without_time(&self) -> Vec<Value> {
        let parts = self.parts.iter();
        let parts =
            parts.filter(|part| !(self.is_timeseries && part.stored.starts_with(TIME_PREFIX)));
        parts.map(KeyPart::expression).collect()
    }

    /// Returns the namespace that the key is for: that of the buckets for a time series.
    pub(crate) fn namespace(&self, namespace: &Namespace) -> String {
        match self.is_timeseries {
            true => namespace.buckets().to_string(),
            false => namespace.to_string(),
        }
    }

    /// Returns the parts.
    pub(crate) fn parts(&self) -> &[KeyPart] {
        &self.parts
    }

    /// Returns the key as it is stored and shown: that of buckets for a time series.
    pub(crate) fn stored(&self) -> Document {
        self.document(|part| &part.stored)
    }

    /// Returns the key in the names of the user.
    pub(crate) fn written(&self) -> Document {
        self.document(|part| part.path.as_str())
    }

    fn document<'k>(&'k self, name: impl Fn(&'k KeyPart) -> &'k str) -> Document {
        let mut out = DocumentBuilder::new();
        for part in self.parts.iter() {
            let value = if part.is_hashed {
                Value::from("hashed")
            } else {
                Value::from(1)
            };
            out.append(name(part), value);
        }
        out.finish()
    }

    /// Returns the key of a document or measurement.
    pub(crate) fn of(&self, document: DocRef<'_>) -> Result<KeyBound> {
        let values = self.parts.iter().map(|part| {
            let value =
                plain_value(&part.path, document).filter(|v| !matches!(v, ValueRef::Array(_)));
            let value = value.ok_or_else(|| has_array(&part.path))?;
            Ok(part.place(value))
        });
        values.collect::<Result<Vec<Value>>>().map(KeyBound)
    }

    /// Returns the bounds of all keys.
    pub(crate) fn whole(&self) -> (KeyBound, KeyBound) {
        let bound = |value: Value| KeyBound(vec![value; self.parts.len()]);
        (bound(Value::MinKey), bound(Value::MaxKey))
    }

    /// Reads a bound that a client names: a document with the stored or the written names of the parts.
    pub(crate) fn bound(&self, bound: DocRef<'_>) -> Result<KeyBound> {
        let values = self.named(bound)?;
        let is_hash =
            |value: &Value| matches!(value, Value::Int64(_) | Value::MinKey | Value::MaxKey);
        let mut parts = self.parts.iter().zip(&values.0);
        match parts.all(|(part, value)| !part.is_hashed || is_hash(value)) {
            true => Ok(values),
            // A value in the place of its hash would bound nothing that is meant.
            false => Err(Error::bad_value(format!(
                "a bound of a hashed shard key is a hash, a 64-bit integer, unlike {}: config.chunks has those of the chunks",
                value_to_relaxed(ValueRef::Document(bound))
            ))),
        }
    }

    /// Reads the values of the parts that a client names.
    fn named(&self, bound: DocRef<'_>) -> Result<KeyBound> {
        let mut given = bound.iter();
        let values = self.parts.iter().map(|part| {
            let element = given.next()?;
            let is_named = element.name() == part.stored || element.name() == part.path.as_str();
            is_named.then(|| element.value().to_value())
        });
        let values = values.collect::<Option<Vec<Value>>>();
        match (values, given.next()) {
            (Some(values), None) => Ok(KeyBound(values)),
            _ => Err(Error::bad_value(format!(
                "The bound {} does not have the fields of the shard key {}",
                value_to_relaxed(ValueRef::Document(bound)),
                value_to_relaxed(ValueRef::Document(self.stored().as_ref()))
            ))),
        }
    }

    /// Returns the key that a client names by a document of measurements, or by the stored names of the parts.
    pub(crate) fn place_of(&self, named: DocRef<'_>) -> Result<KeyBound> {
        match self.named(named) {
            Ok(given) => {
                let parts = self.parts.iter().zip(&given.0);
                let values = parts.map(|(part, value)| part.place(value.as_ref()));
                Ok(KeyBound(values.collect()))
            }
            Err(_) => self.of(named),
        }
    }

    /// Returns a bound as clients see it.
    pub(crate) fn shown(&self, bound: &KeyBound) -> Document {
        let mut out = DocumentBuilder::new();
        for (part, value) in self.parts.iter().zip(&bound.0) {
            out.append_ref(&part.stored, value.as_ref());
        }
        out.finish()
    }
}

/// Returns the error of a document with an array in its shard key.
pub(super) fn has_array(path: &FieldPath) -> Error {
    Error::new(
        ErrorCode::ShardKeyNotFound,
        format!(
            "Shard key cannot contain array values or array descendants, but '{}' does",
            path.as_str()
        ),
    )
}

impl KeyPart {
    /// Returns an expression of the value of the part in the key of a document.
    fn expression(&self) -> Value {
        let path = format!("${}", self.path.as_str());
        let value = doc! {"$ifNull": array![path, Value::Null]};
        match self.is_hashed {
            true => doc! {"$toHashedIndexKey": value}.into(),
            false => value.into(),
        }
    }

    /// Returns the value of the part in a key.
    pub(crate) fn place(&self, value: ValueRef<'_>) -> Value {
        let value = match value {
            ValueRef::Missing | ValueRef::Undefined => ValueRef::Null,
            value => value,
        };
        match self.is_hashed {
            true => Value::Int64(hashed_index_key::hash(value)),
            false => value.to_value(),
        }
    }
}

/// Returns the name that the path of a measurement has in buckets.
fn stored_name(path: &FieldPath, is_hashed: bool, options: &TimeseriesOptions) -> Result<String> {
    let time_field = options.time_field.as_str();
    if path.as_str() == time_field {
        if is_hashed {
            return Err(Error::invalid_options(
                "the time field of a time-series collection cannot be hashed in its shard key",
            ));
        }
        return Ok(format!("{TIME_PREFIX}{time_field}"));
    }
    match options.meta_field.as_deref() {
        Some(meta) if path.first() == meta => Ok(format!(
            "meta{}",
            path.as_str().get(meta.len()..).unwrap_or("")
        )),
        _ => Err(Error::invalid_options(format!(
            "only the time field or the meta field can be part of the shard key of a time-series collection, not '{}'",
            path.as_str()
        ))),
    }
}

fn check(parts: &[KeyPart], timeseries: Option<&TimeseriesOptions>) -> Result<()> {
    if parts.is_empty() || parts.len() > PARTS_MAX {
        return Err(Error::bad_value(format!(
            "Shard keys must have between 1 and {PARTS_MAX} fields"
        )));
    }
    if parts.iter().filter(|part| part.is_hashed).count() > 1 {
        return Err(Error::bad_value(
            "A shard key can have one hashed field at most",
        ));
    }
    for (at, part) in parts.iter().enumerate() {
        if parts.iter().take(at).any(|known| known.path == part.path) {
            return Err(Error::bad_value(format!(
                "The field '{}' occurs twice in the shard key",
                part.path.as_str()
            )));
        }
        let is_time = timeseries.is_some_and(|o| part.path.as_str() == o.time_field.as_str());
        if is_time && at + 1 < parts.len() {
            return Err(Error::invalid_options(format!(
                "the time field '{}' can be only at the end of the shard key",
                part.path.as_str()
            )));
        }
    }
    Ok(())
}

/// A key, or a bound between keys. A bound that ends with the least or the greatest value is that of all keys with the
/// values in front.
#[derive(Clone, Debug)]
pub(crate) struct KeyBound(pub(crate) Vec<Value>);

impl Ord for KeyBound {
    fn cmp(&self, other: &Self) -> Ordering {
        let parts = self.0.iter().zip(&other.0);
        let mut orders = parts.map(|(a, b)| compare(a.as_ref(), b.as_ref()));
        orders
            .find(|order| order.is_ne())
            .unwrap_or(Ordering::Equal)
    }
}

impl PartialOrd for KeyBound {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for KeyBound {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for KeyBound {}

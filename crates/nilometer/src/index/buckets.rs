//! Indexes of bucket collections: their stored form.
//!
//! ```text
//! as listed            meta | control.min.t | control.max.t | control.min.x | control.max.x
//! as stored            meta |    control.min.t (start)      | control.min.x | control.max.x
//! ```
//!
//! The two bounds of the time are stored as one component, the start of the bucket. It is fixed when the
//! bucket is opened, and as no bucket spans more than its collection allows, it bounds the other one. So an
//! index of metadata and time is **static**: its entries are made when a bucket is opened, and no
//! measurement added later changes them. Any other index is **dynamic**: its entries describe the bucket
//! document as stored and change together with it.
//!
//! The record key is the id of the bucket (12 bytes).
//!
//! An index on the points of a measurement field stores the cells that cover the box around all points of
//! the bucket; a bucket without points is not in it.
//!
//! [`BucketIndex::keys`] does not apply partial filters: which buckets may hold a measurement that matches
//! a filter is more than a comparison of bounds can decide. The module `timeseries` decides it.

use std::sync::Arc;

use nilometer_bson::key_string::{self, KeyBuilder, KeyOrder};
use nilometer_bson::{DocRef, Document, DocumentBuilder, Element, ValueRef};
use nilometer_storage::KeyspaceId;

use super::compile::CompiledIndex;
use super::{DocumentKeys, Index, IndexPartKind};
use crate::catalog::{IndexSpec, StoredIndex};
use crate::error::Result;
use crate::eval::matcher::MatchExpression;
use crate::geo::CellRange;

/// The metadata field of a bucket.
const META: &str = "meta";

/// An index of a bucket collection, compiled to compute the keys of buckets.
#[derive(Clone, Debug)]
pub struct BucketIndex {
    /// The definition and state.
    pub stored: Arc<StoredIndex>,
    compiled: Arc<CompiledBucketIndex>,
}

/// The position of a key string relative to the wanted keys of a scan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyPosition {
    /// Wanted.
    Inside,
    /// Not wanted; the next wanted key is at or after this one.
    Seek(Vec<u8>),
    /// Not wanted; no later key is wanted.
    Past,
}

/// The keys a scan of an index selects.
pub trait IndexKeyFilter: Send + Sync + std::fmt::Debug {
    /// Returns a lower bound of the wanted key strings.
    fn start(&self) -> Vec<u8>;

    /// Returns an exclusive upper bound of the wanted key strings; `None` if there is none.
    fn end(&self) -> Option<Vec<u8>>;

    /// Classifies a key string.
    fn position(&self, key: &[u8]) -> Result<KeyPosition>;

    /// Returns how many of the values, or intervals, that are wanted of a part lie before a wanted key, and how many there are;
    /// `None` if the wanted keys are not known as such a list. Used to estimate the count of all wanted keys from that of the first.
    fn progress(&self, key: &[u8]) -> Option<(usize, usize)> {
        let _ = key;
        None
    }
}

/// The result of a complete count of index entries, reused by the scan that follows.
#[derive(Debug)]
pub struct ScannedBuckets {
    /// The keyspace of the entries.
    pub keyspace: KeyspaceId,
    /// The version of the keyspace when it was read ([`nilometer_storage::Snapshot::version`]).
    pub version: u64,
    /// The buckets of the entries, in index order.
    pub ids: Vec<[u8; 12]>,
    /// The number of keys examined.
    pub keys_examined: u64,
}

/// The number of wanted entries of an index.
#[derive(Debug)]
pub struct KeyCount {
    /// The number of entries, or the limit at which counting stopped.
    pub keys: u64,
    /// The buckets found, if the count is complete and no write to the index is in flight.
    pub scanned: Option<Arc<ScannedBuckets>>,
}

/// The number of keys at which a count of them ends. Its exact value is computed when there are that many.
pub struct KeyLimit<'a> {
    keys: u64,
    exact: Option<Box<dyn FnOnce() -> Result<u64> + 'a>>,
}

impl<'a> KeyLimit<'a> {
    /// Returns a limit of `keys`, or of what `exact` returns if that is more.
    pub fn at_least(keys: u64, exact: impl FnOnce() -> Result<u64> + 'a) -> Self {
        Self {
            keys,
            exact: Some(Box::new(exact)),
        }
    }

    /// Returns a limit of `keys`.
    pub fn exactly(keys: u64) -> Self {
        Self { keys, exact: None }
    }

    /// The limit as it is known.
    pub fn keys(&self) -> u64 {
        self.keys
    }

    /// Computes the exact limit. Returns true if it is more than was known.
    pub(crate) fn raise(&mut self) -> Result<bool> {
        let known = self.keys;
        if let Some(exact) = self.exact.take() {
            self.keys = known.max(exact()?);
        }
        Ok(self.keys > known)
    }
}

/// The compiled definition.
#[derive(Debug)]
struct CompiledBucketIndex {
    /// The stored parts, with the partial filter.
    whole: Arc<CompiledIndex>,
    /// The same without the filter.
    unfiltered: Arc<CompiledIndex>,
    is_static: bool,
    measurements: Vec<String>,
    /// Paths of points below `data`, and the bits of their parts.
    points: Vec<String>,
    point_parts: u32,
    /// The part that stands for both bounds of the time.
    time_part: Option<usize>,
}

impl BucketIndex {
    /// Compiles the index `stored` over buckets whose time field is `time_field`.
    pub fn of(stored: &Arc<StoredIndex>, time_field: &str) -> Result<Arc<Self>> {
        let compiled =
            stored.get_or_compile(|| CompiledBucketIndex::new(&stored.spec, time_field))?;
        Ok(Arc::new(Self {
            stored: stored.clone(),
            compiled,
        }))
    }

    /// Fails if `spec`, in bucket form, cannot be an index.
    pub fn check(spec: &IndexSpec, time_field: &str) -> Result<()> {
        CompiledBucketIndex::new(spec, time_field).map(drop)
    }

    /// Returns the index as stored, for readers.
    pub fn index(&self) -> Index {
        Index {
            stored: self.stored.clone(),
            compiled: self.compiled.whole.clone(),
        }
    }

    /// True if no measurement added to a bucket changes its entries.
    pub fn is_static(&self) -> bool {
        self.compiled.is_static
    }

    /// Returns the keys of a bucket, regardless of the partial filter.
    pub fn keys(&self, bucket: DocRef<'_>) -> Result<DocumentKeys> {
        let mut keys = self.unfiltered().keys(bucket)?;
        // Several cells do not imply arrays in documents.
        keys.multikey &= !self.compiled.point_parts;
        Ok(keys)
    }

    /// Returns the key strings of the cells from the first to the last, both included, in an index that
    /// begins with points; `None` for other indexes.
    pub fn cell_keys(&self, range: CellRange) -> Option<(Vec<u8>, Vec<u8>)> {
        let first = self.compiled.whole.parts.first()?;
        (first.kind == IndexPartKind::TwoDSphereBucket).then(|| {
            let key = |cell: i64| {
                let mut builder = KeyBuilder::new(KeyOrder::ASCENDING);
                builder.push(ValueRef::Int64(cell));
                builder.finish().0
            };
            let end = key_string::prefix_end(key(range.max.0));
            (key(range.min.0), end.unwrap_or_default())
        })
    }

    /// Returns the index without its filter, used to write entries.
    pub fn unfiltered(&self) -> Index {
        Index {
            stored: self.stored.clone(),
            compiled: self.compiled.unfiltered.clone(),
        }
    }

    /// Returns the filter on bucket documents.
    pub fn partial_filter(&self) -> Option<&MatchExpression> {
        self.compiled.whole.partial_filter.as_ref()
    }

    /// Returns the measurement fields whose bounds are indexed, by their names in measurements. None may be
    /// an array.
    pub fn measurements(&self) -> &[String] {
        &self.compiled.measurements
    }

    /// Returns the measurement fields whose points are indexed, by their names in measurements.
    pub fn points(&self) -> &[String] {
        &self.compiled.points
    }

    /// Returns the part that stands for both bounds of the time, if the time is in the key.
    pub fn time_part(&self) -> Option<usize> {
        self.compiled.time_part
    }

    /// True if a part on metadata is not stored as its value: such a part may refuse some values.
    pub fn may_refuse_meta(&self) -> bool {
        self.compiled.whole.parts.iter().any(|part| {
            !matches!(
                part.kind,
                IndexPartKind::Ascending
                    | IndexPartKind::Descending
                    | IndexPartKind::TwoDSphereBucket
            )
        })
    }
}

impl CompiledBucketIndex {
    fn new(spec: &IndexSpec, time_field: &str) -> Result<Self> {
        let bounds = [
            format!("control.min.{time_field}"),
            format!("control.max.{time_field}"),
        ];
        let mut key = DocumentBuilder::new();
        let mut parts = spec.key.iter().peekable();
        let (mut is_static, mut time_part) = (true, None);
        let (mut measurements, mut points) = (Vec::new(), Vec::new());
        let mut point_parts = 0;
        let mut place = 0u32;
        while let Some(part) = parts.next() {
            let name = part.name();
            let follows = parts.peek().copied();
            if follows.is_some_and(|next| is_pair(part, next, &bounds)) {
                parts.next();
                key.append_ref(&bounds[0], part.value());
                time_part = time_part.or(usize::try_from(place).ok());
            } else if let Some(path) = name.strip_prefix("data.")
                && part.value().as_str() == Some("2dsphere_bucket")
            {
                key.append_element(part);
                points.push(path.to_owned());
                point_parts |= 1u32.checked_shl(place).unwrap_or(0);
                is_static = false;
            } else {
                key.append_element(part);
                is_static &= name == bounds[0] || is_at_or_below(name, META);
                if let Some(path) = measurement_of(name, &bounds)
                    && !measurements.contains(&path)
                {
                    measurements.push(path);
                }
            }
            place += 1;
        }
        let kept = IndexSpec {
            key: key.finish(),
            ..spec.clone()
        };
        let whole = CompiledIndex::new(&kept)?;
        let unfiltered = CompiledIndex::new(&IndexSpec {
            partial_filter: None,
            ..kept
        })?;
        if let Some(filter) = &whole.partial_filter {
            let reads = filter.dependencies();
            is_static &= !reads.whole
                && !reads.random
                && reads.paths.iter().all(|path| is_at_or_below(path, META));
        }
        Ok(Self {
            whole: Arc::new(whole),
            unfiltered: Arc::new(unfiltered),
            is_static,
            measurements,
            points,
            point_parts,
            time_part,
        })
    }
}

/// True if the two parts are the bounds of the time in the order their direction requires. The module
/// `timeseries` makes such pairs.
fn is_pair(first: Element<'_>, second: Element<'_>, bounds: &[String; 2]) -> bool {
    let direction = |part: Element<'_>| {
        let number = nilometer_bson::number::Number::of(part.value())?;
        Some(number.to_f64() < 0.0)
    };
    let [min, max] = bounds;
    match (direction(first), direction(second)) {
        (Some(false), Some(false)) => first.name() == min && second.name() == max,
        (Some(true), Some(true)) => first.name() == max && second.name() == min,
        _ => false,
    }
}

/// Returns the measurement field that a part bounds; `None` for the time field.
fn measurement_of(name: &str, time_bounds: &[String; 2]) -> Option<String> {
    if time_bounds.iter().any(|bound| bound == name) {
        return None;
    }
    let path = name
        .strip_prefix("control.min.")
        .or_else(|| name.strip_prefix("control.max."))?;
    Some(path.to_owned())
}

fn is_at_or_below(path: &str, prefix: &str) -> bool {
    path.strip_prefix(prefix)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Returns the fields of a bucket that static indexes read, for a bucket that has no document yet.
pub fn opening_document(meta: ValueRef<'_>, time_field: &str, start_ms: i64) -> Document {
    let mut out = DocumentBuilder::with_capacity(128);
    out.begin_document("control");
    out.begin_document("min");
    out.append_ref(time_field, ValueRef::DateTime(start_ms));
    out.end();
    out.end();
    out.append_ref(META, meta);
    out.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nilometer_bson::{Value, doc};

    fn compiled(key: Document, filter: Option<Document>) -> CompiledBucketIndex {
        let spec = IndexSpec {
            key,
            name: "i".into(),
            partial_filter: filter,
            ..IndexSpec::default()
        };
        CompiledBucketIndex::new(&spec, "t").unwrap()
    }

    fn kept(compiled: &CompiledBucketIndex) -> Vec<&str> {
        compiled
            .whole
            .parts
            .iter()
            .map(|part| part.name())
            .collect()
    }

    #[test]
    fn bounds_of_the_time_are_one_part() {
        let default = compiled(
            doc! { "meta": 1, "control.min.t": 1, "control.max.t": 1 },
            None,
        );
        assert_eq!(kept(&default), ["meta", "control.min.t"]);
        assert!(default.is_static);
        assert_eq!(default.time_part, Some(1));
        let descending = compiled(doc! { "control.max.t": -1, "control.min.t": -1 }, None);
        assert_eq!(kept(&descending), ["control.min.t"]);
        assert_eq!(descending.whole.parts[0].kind, IndexPartKind::Descending);
        assert!(descending.is_static);
    }

    #[test]
    fn indexes_that_change_with_measurements_are_dynamic() {
        let is_static = |key, filter| compiled(key, filter).is_static;
        assert!(is_static(doc! { "meta.a": 1, "control.min.t": 1 }, None));
        assert!(!is_static(doc! { "meta.a": 1, "control.max.t": 1 }, None));
        assert!(!is_static(
            doc! { "control.max.t": 1, "control.min.t": 1 },
            None
        ));
        assert!(!is_static(doc! { "metadata": 1 }, None));
        assert!(!is_static(doc! { "data.x": "2dsphere_bucket" }, None));
        assert!(is_static(
            doc! { "meta": "hashed" },
            Some(doc! { "meta.a": 1 })
        ));
        let bounded = doc! { "control.min.x": doc! { "$_internalExprLt": 5 } };
        assert!(!is_static(doc! { "meta": 1 }, Some(bounded)));
        let both = compiled(
            doc! { "control.max.x": -1, "control.min.x": -1, "control.min.y.z": 1, "control.max.y.z": 1 },
            None,
        );
        assert_eq!(both.measurements, ["x", "y.z"]);
        assert!(!both.is_static);
    }

    #[test]
    fn an_opening_bucket_has_metadata_and_start() {
        let meta = Value::from(doc! { "a": 5 });
        let opened = opening_document(meta.as_ref(), "t", 60_000);
        let expected = doc! {
            "control": doc! { "min": doc! { "t": Value::DateTime(60_000) } },
            "meta": doc! { "a": 5 },
        };
        assert_eq!(opened, expected);
        let none = opening_document(ValueRef::Missing, "t", 0);
        assert!(none.get("meta").is_missing());
    }
}

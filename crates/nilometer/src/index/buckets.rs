//! Indexes of bucket collections: what is physically kept of them.
//!
//! ```text
//! as listed            meta | control.min.t | control.max.t | control.min.x | control.max.x
//! as kept              meta |    control.min.t (start)      | control.min.x | control.max.x
//! ```
//!
//! The two bounds of the time are kept as one component, the start of the bucket. It is fixed when
//! the bucket is opened, and as no bucket spans more than its collection allows, it bounds the other
//! one. So an index of metadata and time is **static**: its entries are made when a bucket is
//! opened, and no measurement added later changes them. Any other index is **dynamic**: its entries
//! describe the bucket document as stored and change together with it.
//!
//! The key of a record is the bucket's id (12 bytes).
//!
//! An index on the points of a measurement field keeps the cells that cover the box around all points of
//! the bucket, in place of the column; a bucket without points is not in it.
//!
//! Partial filters are not applied by [`BucketIndex::keys`]: which buckets may hold a measurement
//! that a filter picks is more than a comparison of bounds can say, and is decided by the
//! time-series room.

use std::sync::Arc;

use nilometer_bson::key_string::{self, KeyBuilder, KeyOrder};
use nilometer_bson::{DocRef, Document, DocumentBuilder, Element, ValueRef};
use nilometer_storage::KeyspaceId;

use super::compile::Compiled;
use super::{Index, Keys, PartKind};
use crate::catalog::{IndexSpec, StoredIndex};
use crate::error::Result;
use crate::eval::matcher::MatchExpression;
use crate::geo::CellRange;

/// The metadata of a bucket.
const META: &str = "meta";

/// An index of a bucket collection, ready to say which keys buckets have.
#[derive(Clone, Debug)]
pub struct BucketIndex {
    /// Its definition and state.
    pub stored: Arc<StoredIndex>,
    made: Arc<Made>,
}

/// Where a key string lies with respect to what a scan wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyPosition {
    /// Wanted.
    Inside,
    /// Not wanted, and nothing before this key is.
    Seek(Vec<u8>),
    /// Not wanted, and nothing behind it is.
    Past,
}

/// What a scan wants of an index.
pub trait WantedKeys: Send + Sync + std::fmt::Debug {
    /// The least key string that may be wanted.
    fn start(&self) -> Vec<u8>;

    /// The least key string above all that may be wanted; none if there is no end.
    fn end(&self) -> Option<Vec<u8>>;

    /// Where a key string lies.
    fn position(&self, key: &[u8]) -> Result<KeyPosition>;
}

/// The wanted entries of an index that were counted to the end, so that they need not be looked for again.
#[derive(Debug)]
pub struct Walked {
    /// Where the entries lie.
    pub keyspace: KeyspaceId,
    /// What the keyspace was like when they were read ([`nilometer_storage::Snapshot::version`]).
    pub version: u64,
    /// The buckets they lead to, in their order.
    pub ids: Vec<[u8; 12]>,
    /// Keys looked at.
    pub keys_examined: u64,
}

/// How many entries of an index are wanted.
#[derive(Debug)]
pub struct KeyCount {
    /// So many, or the number at which counting was to end.
    pub keys: u64,
    /// Where they lead, if all were looked at and nothing is on its way into the index.
    pub walked: Option<Arc<Walked>>,
}

/// What is made of a definition once.
#[derive(Debug)]
struct Made {
    /// Parts as kept, with the partial filter.
    whole: Arc<Compiled>,
    /// The same without the filter.
    unfiltered: Arc<Compiled>,
    is_static: bool,
    measurements: Vec<String>,
    /// Paths of points below `data`, and which parts they are.
    points: Vec<String>,
    point_parts: u32,
    /// The part that stands for both bounds of the time.
    time_part: Option<usize>,
}

impl BucketIndex {
    /// The index that `stored` defines over buckets whose time field is `time_field`.
    pub fn of(stored: &Arc<StoredIndex>, time_field: &str) -> Result<Arc<Self>> {
        let slot = stored.compiled();
        let known = slot.get().cloned().map(Arc::downcast::<Made>);
        let made = match known {
            Some(Ok(made)) => made,
            _ => {
                let made = Arc::new(Made::new(&stored.spec, time_field)?);
                // Two threads may meet here; what they made is the same.
                let _ = slot.set(made.clone());
                made
            }
        };
        Ok(Arc::new(Self {
            stored: stored.clone(),
            made,
        }))
    }

    /// Whether `spec`, in terms of buckets, can be an index at all, without making it one.
    pub fn check(spec: &IndexSpec, time_field: &str) -> Result<()> {
        Made::new(spec, time_field).map(drop)
    }

    /// The index as it is kept, for whoever reads it.
    pub fn index(&self) -> Index {
        Index {
            stored: self.stored.clone(),
            compiled: self.made.whole.clone(),
        }
    }

    /// True if nothing that is added to a bucket changes its entries.
    pub fn is_static(&self) -> bool {
        self.made.is_static
    }

    /// The keys of a bucket, whatever the partial filter says of it.
    pub fn keys(&self, bucket: DocRef<'_>) -> Result<Keys> {
        let mut keys = self.unfiltered().keys(bucket)?;
        // That there are several cells says nothing of arrays in documents.
        keys.multikey &= !self.made.point_parts;
        Ok(keys)
    }

    /// The key strings of cells from the first to the last, both included, in an index that begins
    /// with points; `None` for any other.
    pub fn cell_keys(&self, range: CellRange) -> Option<(Vec<u8>, Vec<u8>)> {
        let first = self.made.whole.parts.first()?;
        (first.kind == PartKind::TwoDSphereBucket).then(|| {
            let key = |cell: i64| {
                let mut builder = KeyBuilder::new(KeyOrder::ASCENDING);
                builder.push(ValueRef::Int64(cell));
                builder.finish().0
            };
            let end = key_string::prefix_end(key(range.max.0));
            (key(range.min.0), end.unwrap_or_default())
        })
    }

    /// The index without its filter: what entries are written with.
    pub fn unfiltered(&self) -> Index {
        Index {
            stored: self.stored.clone(),
            compiled: self.made.unfiltered.clone(),
        }
    }

    /// The filter on bucket documents, if there is one.
    pub fn partial_filter(&self) -> Option<&MatchExpression> {
        self.made.whole.partial_filter.as_ref()
    }

    /// The measurement fields whose bounds are indexed, as the user calls them. None may be an array.
    pub fn measurements(&self) -> &[String] {
        &self.made.measurements
    }

    /// The measurement fields whose points are indexed, as the user calls them.
    pub fn points(&self) -> &[String] {
        &self.made.points
    }

    /// The part that stands for both bounds of the time, if the time is in the key.
    pub fn time_part(&self) -> Option<usize> {
        self.made.time_part
    }

    /// True if a part on metadata is kept otherwise than as its value: such a part may refuse some.
    pub fn may_refuse_meta(&self) -> bool {
        self.made.whole.parts.iter().any(|part| {
            !matches!(
                part.kind,
                PartKind::Ascending | PartKind::Descending | PartKind::TwoDSphereBucket
            )
        })
    }
}

impl Made {
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
        let whole = Compiled::new(&kept)?;
        let unfiltered = Compiled::new(&IndexSpec {
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

/// Both bounds of the time in the order their direction asks for; see the time-series room, which
/// makes such pairs.
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

/// The measurement field a part bounds; none for the time field.
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

/// What static indexes read of a bucket: for one that has no document yet.
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

    fn made(key: Document, filter: Option<Document>) -> Made {
        let spec = IndexSpec {
            key,
            name: "i".into(),
            partial_filter: filter,
            ..IndexSpec::default()
        };
        Made::new(&spec, "t").unwrap()
    }

    fn kept(made: &Made) -> Vec<&str> {
        made.whole.parts.iter().map(|part| part.name()).collect()
    }

    #[test]
    fn bounds_of_the_time_are_one_part() {
        let default = made(
            doc! { "meta": 1, "control.min.t": 1, "control.max.t": 1 },
            None,
        );
        assert_eq!(kept(&default), ["meta", "control.min.t"]);
        assert!(default.is_static);
        assert_eq!(default.time_part, Some(1));
        let descending = made(doc! { "control.max.t": -1, "control.min.t": -1 }, None);
        assert_eq!(kept(&descending), ["control.min.t"]);
        assert_eq!(descending.whole.parts[0].kind, PartKind::Descending);
        assert!(descending.is_static);
    }

    #[test]
    fn what_changes_with_measurements_is_dynamic() {
        let is_static = |key, filter| made(key, filter).is_static;
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
        let both = made(
            doc! { "control.max.x": -1, "control.min.x": -1, "control.min.y.z": 1, "control.max.y.z": 1 },
            None,
        );
        assert_eq!(both.measurements, ["x", "y.z"]);
        assert!(!both.is_static);
    }

    #[test]
    fn a_bucket_that_is_just_opened_has_metadata_and_start() {
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

//! Keys of indexes with a geographic part: cells and hashes instead of values.
//!
//! ```text
//! "2dsphere"          crate::geo::index_cells of every value at the path, as longs
//! "2d"                PlaneGrid::index_keys of every value at the path, as longs
//! "2dsphere_bucket"   data.x of a bucket: crate::geo::bucket_cells of the values in its column
//! 1, -1 beside them   the value, one key for each element of an array
//! ```
//!
//! A document has one key per combination of the values of its parts. A document without a value in any
//! geographic part has no key, sparse or not; with values in only some of them, the others are null.

use nilometer_bson::column::decode_values;
use nilometer_bson::path::FieldPath;
use nilometer_bson::path::keys::visit_keys_with_gaps;
use nilometer_bson::{DocRef, Value, ValueRef};

use super::{KeyCollector, refused};
use crate::error::{Error, ErrorCode, Result, location};
use crate::eval::matcher::{LeafArrays, MatchPath};
use crate::geo::{PlaneGrid, bucket_cells, index_cells};
use crate::index::{Index, IndexPart, IndexPartKind};

/// Most values of a column: more than any bucket holds; bounds the memory a damaged column can take.
const COLUMN_VALUES_MAX: usize = 1 << 20;

/// The binary subtype of a compressed column.
const COLUMN: u8 = 7;

/// True if a part is geographic.
pub(super) fn is_geo(part: &IndexPart) -> bool {
    matches!(
        part.kind,
        IndexPartKind::TwoD { .. } | IndexPartKind::TwoDSphere | IndexPartKind::TwoDSphereBucket
    )
}

/// Adds the keys of `document`, unsorted and possibly repeated.
pub(super) fn keys(index: &Index, document: DocRef<'_>, out: &mut KeyCollector) -> Result<()> {
    let mut failed = None;
    let multikey = combinations(index.parts(), document, &mut |values| {
        if failed.is_none() {
            let key = index.encode(values.iter().copied());
            failed = key.and_then(|key| out.add(index, key)).err();
        }
    })?;
    out.multikey |= multikey;
    failed.map_or(Ok(()), Err)
}

/// Visits the component values of each key. Returns a bit for each part with several values.
fn combinations(
    parts: &[IndexPart],
    document: DocRef<'_>,
    visit: &mut dyn FnMut(&[ValueRef<'_>]),
) -> Result<u32> {
    let mut multikey = 0;
    let mut cells: Vec<Option<Vec<i64>>> = Vec::with_capacity(parts.len());
    let mut plain: Vec<FieldPath> = Vec::new();
    for (at, part) in parts.iter().enumerate() {
        if !is_geo(part) {
            if !part.is_ordered() {
                return Err(Error::new(
                    ErrorCode::CannotCreateIndex,
                    "an index with a geographic part has only ascending and descending ones beside it",
                ));
            }
            plain.extend(part.path.clone());
            cells.push(None);
            continue;
        }
        let keys = keys_of_part(part, document)?;
        multikey |= u32::from(keys.len() > 1) << at;
        cells.push(Some(keys));
    }
    if cells.iter().flatten().all(Vec::is_empty) {
        return Ok(0);
    }
    if plain.is_empty() {
        combine(&cells, &[], visit);
        return Ok(multikey);
    }
    let expanded = visit_keys_with_gaps(&plain, document, &mut |values| {
        combine(&cells, values, visit);
    })
    .map_err(|error| refused(&error))?;
    let places = parts.iter().enumerate().filter(|(_, part)| !is_geo(part));
    for ((at, _), expanded) in places.zip(expanded) {
        multikey |= u32::from(expanded) << at;
    }
    Ok(multikey)
}

/// Visits every combination of one key per geographic part with the values of the other parts.
fn combine(
    cells: &[Option<Vec<i64>>],
    plain: &[ValueRef<'_>],
    visit: &mut dyn FnMut(&[ValueRef<'_>]),
) {
    let many = |keys: &Option<Vec<i64>>| keys.as_ref().map_or(1, |keys| keys.len().max(1));
    let total: usize = cells.iter().map(many).product();
    for choice in 0..total {
        let mut rest = choice;
        let mut plain = plain.iter();
        let values: Vec<ValueRef<'_>> = cells
            .iter()
            .map(|keys| match keys {
                None => plain.next().copied().unwrap_or(ValueRef::Missing),
                Some(keys) => {
                    let count = keys.len().max(1);
                    let key = keys.get(rest % count);
                    rest /= count;
                    key.map_or(ValueRef::Null, |key| ValueRef::Int64(*key))
                }
            })
            .collect();
        visit(&values);
    }
}

fn keys_of_part(part: &IndexPart, document: DocRef<'_>) -> Result<Vec<i64>> {
    let root = ValueRef::Document(document);
    let longs = |value: ValueRef<'_>| -> Result<Vec<i64>> {
        match part.kind {
            IndexPartKind::TwoD { bits, min, max } => {
                PlaneGrid::new(bits, min, max)?.index_keys(value)
            }
            _ => Ok(index_cells(value)?.into_iter().map(|key| key.0).collect()),
        }
    };
    if part.kind == IndexPartKind::TwoDSphereBucket {
        return column_keys(part.name(), root);
    }
    let mut keys = Vec::new();
    MatchPath::new(part.name()).visit(root, LeafArrays::Whole, &mut |value, _| {
        keys.extend(longs(value)?);
        Ok(false)
    })?;
    keys.sort_unstable();
    keys.dedup();
    Ok(keys)
}

/// Returns the keys of the column of a bucket at `data.x`, or of the values below `x` in it.
fn column_keys(path: &str, bucket: ValueRef<'_>) -> Result<Vec<i64>> {
    let inner = path.strip_prefix("data.").unwrap_or(path);
    let (field, below) = match inner.split_once('.') {
        Some((field, below)) => (field, MatchPath::new(below)),
        None => (inner, MatchPath::itself()),
    };
    let data = bucket
        .as_document()
        .map_or(ValueRef::Missing, |b| b.get("data"));
    let column = data
        .as_document()
        .map_or(ValueRef::Missing, |d| d.get(field));
    let values: Vec<Value> = match column {
        ValueRef::Binary { subtype, bytes } if subtype == COLUMN => {
            decode_values(bytes, COLUMN_VALUES_MAX).map_err(|error| {
                Error::new(
                    ErrorCode::DataCorruptionDetected,
                    format!("the column '{field}' of a bucket cannot be read: {error}"),
                )
            })?
        }
        ValueRef::Document(values) => values.iter().map(|v| v.value().to_value()).collect(),
        _ => return Ok(Vec::new()),
    };
    let mut points = Vec::with_capacity(values.len());
    for value in &values {
        let point = match value {
            value if below.is_itself() => Some(value.as_ref()),
            Value::Document(document) => below.value_without_arrays(document.as_ref()),
            Value::Array(_) => None,
            _ => Some(ValueRef::Missing),
        };
        points.push(point.ok_or_else(|| {
            Error::location(
                location::INDEXED_POINT_IN_ARRAY,
                format!("Can't extract geo keys: there is an array on the way to '{inner}'"),
            )
        })?);
    }
    Ok(bucket_cells(points)?.into_iter().map(|key| key.0).collect())
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{Document, array, doc};

    use super::*;

    fn part(name: &str, kind: IndexPartKind, component: usize) -> IndexPart {
        IndexPart {
            path: FieldPath::parse(name).ok(),
            kind,
            component,
        }
    }

    const FLAT: IndexPartKind = IndexPartKind::TwoD {
        bits: 26,
        min: -180.0,
        max: 180.0,
    };

    fn rows(parts: &[IndexPart], document: &Document) -> Result<(Vec<Vec<Value>>, u32)> {
        let mut rows = Vec::new();
        let multikey = combinations(parts, document.as_ref(), &mut |values| {
            rows.push(values.iter().map(|v| v.to_value()).collect());
        })?;
        Ok((rows, multikey))
    }

    fn point(lng: i32, lat: i32) -> Value {
        doc! {"type": "Point", "coordinates": array![lng, lat]}.into()
    }

    #[test]
    fn documents_without_geography_have_no_key() {
        let parts = [
            part("a", IndexPartKind::Ascending, 0),
            part("p", IndexPartKind::TwoDSphere, 1),
            part("q", IndexPartKind::TwoDSphere, 2),
        ];
        let of = |document: Document| rows(&parts, &document).unwrap();
        assert!(of(doc! {"a": 1}).0.is_empty());
        assert!(of(doc! {"a": 1, "p": Value::Null}).0.is_empty());
        let (found, multikey) = of(doc! {"a": array![1, 2], "p": point(3, 4)});
        assert_eq!((found.len(), multikey), (2, 1));
        assert!(matches!(
            found[0][..],
            [Value::Int32(1), Value::Int64(_), Value::Null]
        ));
        let (found, multikey) = of(doc! {"p": array![point(3, 4), point(5, 6)], "q": array![0, 0]});
        assert_eq!((found.len(), multikey), (2, 2));
        assert!(matches!(
            found[0][..],
            [Value::Missing, Value::Int64(_), Value::Int64(_)]
        ));
        let error = rows(&parts, &doc! {"p": 5}).unwrap_err();
        assert_eq!(error.code.0, 16_755);
    }

    #[test]
    fn planes_have_one_key_for_each_point() {
        let parts = [part("o.p", FLAT, 0)];
        let of = |document: Document| rows(&parts, &document).unwrap();
        assert_eq!(of(doc! {"o": doc! {"p": array![1, 2]}}).0.len(), 1);
        let many = doc! {"o": array![doc! {"p": array![1, 2]}, doc! {"p": array![3, 4]}]};
        assert_eq!((of(many.clone()).0.len(), of(many).1), (2, 1));
        assert_eq!(of(doc! {"o": 1}).0.len(), 0);
    }

    #[test]
    fn buckets_have_keys_of_their_columns() {
        let parts = [
            part("control.min.v", IndexPartKind::Ascending, 0),
            part("data.p", IndexPartKind::TwoDSphereBucket, 1),
        ];
        let bucket = |p: Value| {
            doc! {"control": doc! {"min": doc! {"v": 1}}, "data": doc! {"p": p}}
        };
        let plain = bucket(doc! {"0": point(3, 4), "2": point(3, 4)}.into());
        let mut encoder = nilometer_bson::column::ColumnBuilder::new();
        for value in [point(3, 4), Value::Missing, point(3, 4)] {
            encoder.append(value.as_ref()).unwrap();
        }
        let bytes = encoder.finish();
        let packed = ValueRef::Binary {
            subtype: COLUMN,
            bytes: &bytes,
        };
        let packed = bucket(packed.to_value());
        let (found, _) = rows(&parts, &plain).unwrap();
        assert_eq!(found.len(), 1);
        let again = rows(&parts, &packed).unwrap().0;
        assert_eq!(format!("{again:?}"), format!("{found:?}"));
        assert_eq!(
            rows(&parts, &doc! {"data": doc! {"v": 1}}).unwrap().0.len(),
            0
        );
        let line = doc! {"type": "LineString", "coordinates": array![array![0, 0], array![1, 1]]};
        let bad = bucket(doc! {"0": line}.into());
        assert_eq!(rows(&parts, &bad).unwrap_err().code.0, 183_493);
        let damaged = ValueRef::Binary {
            subtype: COLUMN,
            bytes: &[9, 9, 9],
        };
        let damaged = bucket(damaged.to_value());
        assert_eq!(
            rows(&parts, &damaged).unwrap_err().code,
            ErrorCode::DataCorruptionDetected
        );
        let deep = [part("data.o.p", IndexPartKind::TwoDSphereBucket, 0)];
        let of = |o: Value| doc! {"data": doc! {"o": doc! {"0": o}}};
        assert_eq!(
            rows(&deep, &of(doc! {"p": array![1, 2]}.into()))
                .unwrap()
                .0
                .len(),
            1
        );
        let hidden = of(array![doc! {"p": array![1, 2]}]);
        assert_eq!(rows(&deep, &hidden).unwrap_err().code.0, 183_934);
    }
}

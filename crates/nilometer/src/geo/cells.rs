//! Keys of `2dsphere` indexes: cells of S2.
//!
//! ```text
//! S2 cell id (64 bits)   3 bits face, 2 bits for each level down to 30, a 1, zeros
//!                        every id inside a cell is between its range_min and range_max
//! CellKey                the id as a signed number with the highest bit flipped, so that keys
//!                        order as ids do and are stored as longs
//!
//! stored point           one key: its leaf cell (level 30)
//! stored line, polygon   keys of a covering: at most CELLS_PER_PART_MAX cells for each part, none
//!                        finer than FINEST_LEVEL
//! query region           ranges of keys: for each cell of its covering all ids inside it, and each
//!                        of its ancestors exactly (a stored cell may be larger than a queried one)
//! ```
//!
//! Guarantee: if a stored geometry and a region have a point in common, some key of the geometry is
//! in some range of the region. The converse does not hold: a reader of the index must test the
//! geometry.

use nilometer_bson::ValueRef;
use s2rst::s2::region_coverer::RegionCoverer;
use s2rst::s2::{CellId, Level};

use super::bucket::BucketPoints;
use super::coordinates::LngLat;
use super::parse::{Geometry, ParsePurpose};
use super::query::{GeoTest, GeoTestKind, Region};
use super::sphere::{CoverableShape, Disc, SphereGeometry, SphereRegion};
use crate::error::{Error, Result, location};

/// Maximum number of cells in the covering of one stored line or polygon.
const CELLS_PER_PART_MAX: usize = 20;

/// The finest level of a covering: cells about one metre wide.
const FINEST_LEVEL: u8 = 23;

/// Maximum number of cells in the covering of a query region.
const CELLS_PER_QUERY_MAX: usize = 20;

/// A cell as stored in an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CellKey(pub i64);

/// An inclusive range of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellRange {
    /// First key.
    pub min: CellKey,
    /// Last key.
    pub max: CellKey,
}

impl CellKey {
    fn of(id: CellId) -> Self {
        Self(ordered_long(id.id()))
    }
}

/// Converts an unsigned to a signed number, preserving order, by flipping the highest bit.
pub fn ordered_long(number: u64) -> i64 {
    (number ^ (1 << 63)) as i64
}

impl CellRange {
    /// True if a key is in the range.
    pub fn contains(self, key: CellKey) -> bool {
        self.min <= key && key <= self.max
    }
}

fn coverer(cells: usize) -> RegionCoverer {
    let finest = Level::try_from(FINEST_LEVEL).unwrap_or(Level::MAX);
    RegionCoverer::new().max_level(finest).max_cells(cells)
}

/// Returns the key of a point.
pub fn point_cells(place: LngLat) -> CellKey {
    CellKey::of(CellId::from_point(&place.to_unit()))
}

/// Returns the keys of a value in a `2dsphere` index, ascending and distinct. A missing value,
/// null, an empty array or an empty object has none; an array that is not a legacy pair has those
/// of all its elements; any other value that is not a geometry is error 16755.
pub fn index_cells(value: ValueRef<'_>) -> Result<Vec<CellKey>> {
    if let ValueRef::Array(array) = value
        && matches!(array.get(0), ValueRef::Array(_) | ValueRef::Document(_))
    {
        let mut keys = Vec::new();
        for element in array.iter() {
            keys.extend(cells_of_one(element)?);
        }
        keys.sort_unstable();
        keys.dedup();
        return Ok(keys);
    }
    cells_of_one(value)
}

fn cells_of_one(value: ValueRef<'_>) -> Result<Vec<CellKey>> {
    let has_none = match value {
        ValueRef::Missing | ValueRef::Null | ValueRef::Undefined => true,
        ValueRef::Array(array) => array.is_empty(),
        ValueRef::Document(document) => document.is_empty(),
        _ => {
            let kind = value.type_name();
            return Err(Error::location(
                location::GEOMETRY_NOT_INDEXABLE,
                format!("geo element must be an array or object, not {kind}"),
            ));
        }
    };
    if has_none {
        return Ok(Vec::new());
    }
    let geometry = Geometry::parse(value, ParsePurpose::Stored).map_err(|error| {
        Error::location(
            location::GEOMETRY_NOT_INDEXABLE,
            format!("Can't extract geo keys: {}", error.message),
        )
    })?;
    let pair = geometry.plane_point();
    let shape = geometry.into_sphere().ok_or_else(|| {
        let (x, y) = pair.map_or((f64::NAN, f64::NAN), |p| (p.x, p.y));
        Error::location(
            location::GEOMETRY_NOT_INDEXABLE,
            format!(
                "Can't extract geo keys: longitude/latitude is out of bounds, lng: {x} lat: {y}"
            ),
        )
    })?;
    Ok(keys_of(&shape))
}

fn keys_of(shape: &SphereGeometry) -> Vec<CellKey> {
    let mut keys: Vec<CellKey> = shape.points.iter().map(|p| point_cells(*p)).collect();
    let coverer = coverer(CELLS_PER_PART_MAX);
    for part in shape.coverable_parts() {
        keys.extend(
            coverer
                .covering(&part)
                .cell_ids()
                .iter()
                .map(|id| CellKey::of(*id)),
        );
    }
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// Returns disjoint ascending ranges of keys that contain a key of every geometry that intersects
/// the region.
pub fn query_cells(region: &SphereRegion) -> Vec<CellRange> {
    ranges_of(region.coverable_parts())
}

impl SphereGeometry {
    /// Returns disjoint ascending ranges of keys that contain a key of every geometry that
    /// intersects this one.
    pub fn query_cells(&self) -> Vec<CellRange> {
        // A disc of almost no radius represents a point, with the border thickness of all shapes.
        let points = self.points.iter().map(|center| {
            SphereRegion::Disc(Disc {
                center: *center,
                radius: 0.0,
            })
        });
        let points: Vec<SphereRegion> = points.collect();
        let discs = points.iter().flat_map(SphereRegion::coverable_parts);
        ranges_of(discs.chain(self.coverable_parts()).collect())
    }
}

fn ranges_of(parts: Vec<CoverableShape<'_>>) -> Vec<CellRange> {
    let coverer = coverer(CELLS_PER_QUERY_MAX);
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for part in parts {
        for &cell in coverer.covering(&part).cell_ids() {
            ranges.push((cell.range_min().id(), cell.range_max().id()));
            let mut up = cell;
            while !up.is_face() {
                up = up.parent();
                ranges.push((up.id(), up.id()));
            }
        }
    }
    ranges.sort_unstable();
    let mut apart: Vec<(u64, u64)> = Vec::with_capacity(ranges.len());
    for (min, max) in ranges {
        match apart.last_mut() {
            Some(last) if min <= last.1.saturating_add(1) => last.1 = last.1.max(max),
            _ => apart.push((min, max)),
        }
    }
    apart
        .into_iter()
        .map(|(min, max)| CellRange {
            min: CellKey::of(CellId(min)),
            max: CellKey::of(CellId(max)),
        })
        .collect()
}

/// Returns the keys of a bucket in a `2dsphere_bucket` index.
///
/// `values` are the values of the field in the bucket's measurements. Each must be a point or
/// absent (missing, null): values that cannot be parsed are error 183934, other geometries 183493.
/// The keys cover the box of latitudes and longitudes around all points, so that their number does
/// not grow with the measurements; a single point has its leaf cell.
pub fn bucket_cells<'v>(values: impl IntoIterator<Item = ValueRef<'v>>) -> Result<Vec<CellKey>> {
    let mut points: Option<BucketPoints> = None;
    for value in values {
        if value.is_nullish() {
            continue;
        }
        let malformed = |reason: &str| {
            Error::location(
                location::INDEXED_POINT_IN_ARRAY,
                format!("Can't extract geo keys: {reason}"),
            )
        };
        let geometry = Geometry::parse(value, ParsePurpose::Stored)
            .map_err(|error| malformed(&error.message))?;
        if matches!(geometry, Geometry::Shape(_)) {
            return Err(Error::location(
                location::INDEXED_GEOMETRY_NOT_POINT,
                "Time-series collections '2dsphere' indexes only support point data",
            ));
        }
        let place = geometry
            .place()
            .ok_or_else(|| malformed("longitude/latitude is out of bounds"))?;
        match &mut points {
            Some(points) => points.add(place),
            None => points = Some(BucketPoints::of(place)),
        }
    }
    Ok(points.map_or_else(Vec::new, |points| points.cells()))
}

impl BucketPoints {
    /// Returns the keys that cover the box around the points.
    pub fn cells(&self) -> Vec<CellKey> {
        if self.low() == self.high() {
            return vec![point_cells(self.low())];
        }
        let covering = coverer(CELLS_PER_PART_MAX).covering(&self.rect());
        covering
            .cell_ids()
            .iter()
            .map(|id| CellKey::of(*id))
            .collect()
    }
}

impl GeoTest {
    /// Returns the ranges of a `2dsphere` index that contain a key of every stored value that
    /// passes; `None` if the index cannot be used because the test is on the plane.
    pub fn cell_ranges(&self) -> Option<Vec<CellRange>> {
        match self.kind() {
            GeoTestKind::Within(Region::Sphere(region))
            | GeoTestKind::Reach(_, Region::Sphere(region)) => Some(query_cells(region)),
            GeoTestKind::Intersects(geometry) => Some(geometry.query_cells()),
            GeoTestKind::Within(Region::Plane(_)) | GeoTestKind::Reach(_, Region::Plane(_)) => None,
        }
    }
}

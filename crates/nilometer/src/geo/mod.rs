//! Geometry: GeoJSON and legacy pairs, shapes on the sphere and on the plane, and their relations.
//!
//! ```text
//! coordinates   numbers in documents ─► longitude and latitude, or x and y
//! parse         GeoJSON, {x, y}, [x, y] ─► Geometry
//! edge          great circle arcs: near, touching, split
//! polygon       rings of arcs; relations of polygons
//! sphere        points, lines, polygons and discs together: within, intersects, distance
//! plane         boxes, polygons and circles without a globe
//! query         $geoWithin, $geoIntersects, $near: operands parsed, values tested
//! cells         keys of 2dsphere indexes and ranges of keys for a region
//! hash2d        keys of 2d indexes and ranges of keys for a box
//! bucket        conclusions from the bounds of a bucket
//! ```
//!
//! Pure computation, without panics for any input. Arithmetic on the sphere (sides of arcs,
//! crossings, cells) is that of the crate `s2rst`, a port of Google's S2. Shapes built on it here
//! are *closed*: they include their border. Borders have a thickness above rounding errors
//! ([`edge::ON_EDGE_RADIANS`]), so that a point computed to be on an arc is on it.
//!
//! The sphere has MongoDB's radius, [`EARTH_RADIUS_METERS`].

mod bucket;
mod cells;
mod coordinates;
mod edge;
mod hash2d;
mod parse;
mod plane;
mod polygon;
mod query;
mod sphere;

pub use bucket::{BucketPoints, may_contain};
pub use cells::{
    CellKey, CellRange, bucket_cells, index_cells, ordered_long, point_cells, query_cells,
};
pub use coordinates::{LngLat, PlanePoint};
pub use hash2d::{BITS_DEFAULT, BITS_MAX, HashRange, PlaneGrid};
pub use parse::{Geometry, ParsePurpose, VERTICES_MAX};
pub use plane::PlaneRegion;
pub use query::{GeoTest, Metric, NearQuery, Region, find_near_operator, read_distance};
pub use sphere::{Disc, SphereGeometry, SphereRegion};

/// The earth's radius in metres: converts distances on the unit sphere to metres.
pub const EARTH_RADIUS_METERS: f64 = 6_378_100.0;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

//! Geometry: GeoJSON and legacy pairs, shapes on the sphere and on the plane, and what lies in what.
//!
//! ```text
//! coordinates   numbers in documents ─► longitude and latitude, or x and y
//! parse         GeoJSON, {x, y}, [x, y] ─► Geometry                 what a document stores
//! edge          great circle arcs: near, touching, split
//! polygon       rings of arcs; what a polygon covers and touches
//! sphere        points, lines, polygons and discs together: within, intersects, distance
//! plane         boxes, polygons and circles without a globe
//! query         $geoWithin, $geoIntersects, $near: operands parsed, values tested
//! cells         keys of 2dsphere indexes and ranges of keys for a region
//! hash2d        keys of 2d indexes and ranges of keys for a box
//! bucket        what the bounds of a bucket say about the points in it
//! ```
//!
//! Pure: values in, answers out, and no input makes it panic. Arithmetic on the sphere (which side of
//! an arc, crossings, cells) is that of the crate `s2rst`, a port of Google's S2; what is built on it
//! here treats every shape as *closed*: its border belongs to it. Borders are as thick as rounding
//! makes them ([`edge::ON_EDGE_RADIANS`]), so that a point computed to lie on an arc does.
//!
//! The sphere has the radius MongoDB uses, [`EARTH_RADIUS_METERS`].

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

pub use bucket::{BucketPoints, may_hold};
pub use cells::{
    CellKey, CellRange, bucket_cells, index_cells, ordered_long, point_cells, query_cells,
};
pub use coordinates::{LngLat, PlanePoint};
pub use hash2d::{BITS_DEFAULT, BITS_MAX, HashRange, PlaneGrid};
pub use parse::{Geometry, ParsePurpose, VERTICES_MAX};
pub use plane::PlaneRegion;
pub use query::{GeoTest, Metric, NearQuery, Region, find_near_operator, read_distance};
pub use sphere::{Disc, SphereGeometry, SphereRegion};

/// The earth's radius in metres: what turns distances on the unit sphere into metres.
pub const EARTH_RADIUS_METERS: f64 = 6_378_100.0;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

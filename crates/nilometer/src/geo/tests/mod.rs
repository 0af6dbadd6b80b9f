//! Geometry compared with simple oracles.
//!
//! Projected from the centre of the globe onto a tangent plane (gnomonic projection), great circles
//! are straight lines. So shapes within a hemisphere have the same relations as flat ones, and
//! plane geometry is the oracle for arcs on the sphere. Distances are compared with the haversine
//! formula.

mod keys;
mod operands;
mod shapes;

use nilometer_bson::{Document, DocumentBuilder, Value, ValueRef, array, doc};

use super::testing::{TestRandom, destination, haversine, line, point, polygon, position};
use super::*;

type Degrees = (f64, f64);

/// Returns the point on the plane tangent to the globe at `middle`; `None` in the other hemisphere.
fn project(middle: Degrees, (lng, lat): Degrees) -> Option<(f64, f64)> {
    let (lat0, lat) = (middle.1.to_radians(), lat.to_radians());
    let turn = (lng - middle.0).to_radians();
    let cos = lat0.sin() * lat.sin() + lat0.cos() * lat.cos() * turn.cos();
    (cos > 1e-3).then(|| {
        let x = lat.cos() * turn.sin() / cos;
        let y = (lat0.cos() * lat.sin() - lat0.sin() * lat.cos() * turn.cos()) / cos;
        (x, y)
    })
}

fn cross(o: (f64, f64), a: (f64, f64), b: (f64, f64)) -> f64 {
    (a.0 - o.0) * (b.1 - o.1) - (a.1 - o.1) * (b.0 - o.0)
}

fn sides<T: Copy>(ring: &[T]) -> impl Iterator<Item = (T, T)> + '_ {
    (0..ring.len()).map(|at| (ring[at], ring[(at + 1) % ring.len()]))
}

/// Returns whether a point is inside, or `None` if it is too near to a side.
fn flat_contains(ring: &[(f64, f64)], p: (f64, f64)) -> Option<bool> {
    let mut inside = false;
    for (a, b) in sides(ring) {
        let length = (b.0 - a.0).hypot(b.1 - a.1);
        if cross(a, b, p).abs() < 1e-9 * length {
            return None;
        }
        if (a.1 > p.1) != (b.1 > p.1) && p.0 < a.0 + (p.1 - a.1) / (b.1 - a.1) * (b.0 - a.0) {
            inside = !inside;
        }
    }
    Some(inside)
}

fn flat_cross(a: (f64, f64), b: (f64, f64), c: (f64, f64), d: (f64, f64)) -> bool {
    cross(a, b, c) * cross(a, b, d) < 0.0 && cross(c, d, a) * cross(c, d, b) < 0.0
}

fn within(shape: Document) -> GeoTest {
    let operand = doc! {"$geometry": shape};
    GeoTest::within(ValueRef::Document(operand.as_ref())).unwrap()
}

fn intersects(shape: Document) -> GeoTest {
    let operand = doc! {"$geometry": shape};
    GeoTest::intersects(ValueRef::Document(operand.as_ref())).unwrap()
}

fn passes(test: &GeoTest, shape: &Document) -> bool {
    test.test(ValueRef::Document(shape.as_ref()))
}

fn flat(middle: Degrees, ring: &[Degrees]) -> Vec<(f64, f64)> {
    ring.iter().map(|p| project(middle, *p).unwrap()).collect()
}

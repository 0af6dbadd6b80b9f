//! Helpers of geometry tests: random points and shapes, deterministic for a seed.

use nilometer_bson::{Document, Value, array, doc};

/// A small pseudo-random number generator.
pub(crate) struct TestRandom(u64);

impl TestRandom {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }

    pub(crate) fn within(&mut self, low: f64, high: f64) -> f64 {
        let unit = self.below(1 << 53) as f64 / (1u64 << 53) as f64;
        low + (high - low) * unit
    }

    /// Returns a random point, sometimes at edge cases.
    pub(crate) fn place(&mut self) -> (f64, f64) {
        match self.below(12) {
            0 => (180.0, self.within(-90.0, 90.0)),
            1 => (-180.0, self.within(-90.0, 90.0)),
            2 => (self.within(-180.0, 180.0), 90.0),
            3 => (self.within(-180.0, 180.0), -90.0),
            4 => (0.0, 0.0),
            5 => (self.below(37) as f64 * 10.0 - 180.0, 0.0),
            _ => {
                let z = self.within(-1.0, 1.0);
                (self.within(-180.0, 180.0), z.asin().to_degrees())
            }
        }
    }

    /// Returns a random point near another.
    pub(crate) fn near(&mut self, (lng, lat): (f64, f64), degrees: f64) -> (f64, f64) {
        let lng = lng + self.within(-degrees, degrees);
        let lng = if lng > 180.0 {
            lng - 360.0
        } else if lng < -180.0 {
            lng + 360.0
        } else {
            lng
        };
        let lat = (lat + self.within(-degrees, degrees)).clamp(-90.0, 90.0);
        (lng, lat)
    }

    /// Returns the corners of a ring around a centre, without repeating the first. The ring is
    /// star-shaped as seen from the centre; `size` is the maximum distance, in degrees.
    pub(crate) fn ring(&mut self, middle: (f64, f64), size: f64) -> Vec<(f64, f64)> {
        let corners = 3 + self.below(6);
        let turned = self.within(0.0, 360.0);
        (0..corners)
            .map(|at| {
                let bearing = turned + at as f64 / corners as f64 * 360.0;
                let reach = self.within(0.3, 1.0) * size;
                destination(middle, bearing, reach)
            })
            .collect()
    }
}

/// Returns the destination from a point by bearing and distance, all in degrees. Computed with
/// vectors, so that poles need no special case.
pub(crate) fn destination((lng, lat): (f64, f64), bearing: f64, reach: f64) -> (f64, f64) {
    let (sin_lng, cos_lng) = lng.to_radians().sin_cos();
    let (sin_lat, cos_lat) = lat.to_radians().sin_cos();
    let (sin_turn, cos_turn) = bearing.to_radians().sin_cos();
    let (sin_reach, cos_reach) = reach.to_radians().sin_cos();
    let here = [cos_lat * cos_lng, cos_lat * sin_lng, sin_lat];
    let east = [-sin_lng, cos_lng, 0.0];
    let north = [-sin_lat * cos_lng, -sin_lat * sin_lng, cos_lat];
    let [x, y, z] = [0, 1, 2].map(|i: usize| {
        here[i] * cos_reach + (north[i] * cos_turn + east[i] * sin_turn) * sin_reach
    });
    (y.atan2(x).to_degrees(), z.atan2(x.hypot(y)).to_degrees())
}

/// Returns `[lng, lat]`.
pub(crate) fn position((lng, lat): (f64, f64)) -> Value {
    array![lng, lat]
}

/// Returns a GeoJSON point.
pub(crate) fn point(at: (f64, f64)) -> Document {
    doc! {"type": "Point", "coordinates": position(at)}
}

/// Returns a GeoJSON polygon; the first corner of each ring is repeated here.
pub(crate) fn polygon(rings: &[Vec<(f64, f64)>]) -> Document {
    let ring = |ring: &Vec<(f64, f64)>| -> Value {
        let closed = ring.iter().chain(ring.first());
        closed.map(|at| position(*at)).collect::<Vec<_>>().into()
    };
    let rings: Vec<Value> = rings.iter().map(ring).collect();
    doc! {"type": "Polygon", "coordinates": rings}
}

/// Returns a GeoJSON line.
pub(crate) fn line(points: &[(f64, f64)]) -> Document {
    let points: Vec<Value> = points.iter().map(|at| position(*at)).collect();
    doc! {"type": "LineString", "coordinates": points}
}

/// Returns the distance in radians by the haversine formula, as the test oracle.
pub(crate) fn haversine(a: (f64, f64), b: (f64, f64)) -> f64 {
    let (lng1, lat1) = (a.0.to_radians(), a.1.to_radians());
    let (lng2, lat2) = (b.0.to_radians(), b.1.to_radians());
    let half = |x: f64| (x / 2.0).sin().powi(2);
    let h = half(lat2 - lat1) + lat1.cos() * lat2.cos() * half(lng2 - lng1);
    2.0 * h.clamp(0.0, 1.0).sqrt().asin()
}

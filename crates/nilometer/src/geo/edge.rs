//! Arcs of great circles: points on an arc, contact of two arcs, and splitting.

use s2rst::s1::ChordAngle;
use s2rst::s2::edge_crossings::{Crossing, crossing_sign, intersection};
use s2rst::s2::edge_distances::{distance_from_segment, is_distance_less};
use s2rst::s2::latlng_rect_bounder::LatLngRectBounder;
use s2rst::s2::{LatLng, Point, Rect};

/// Objects nearer than this touch: about sixty nanometres on the ground, far above rounding errors
/// of unit vectors and far below any measurement.
pub(super) const ON_EDGE_RADIANS: f64 = 1e-14;

/// Margin added to bounds, so that objects that touch by [`ON_EDGE_RADIANS`] are not excluded.
const BOUND_MARGIN_RADIANS: f64 = 1e-12;

/// An arc with its bounding rectangle of latitudes and longitudes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Edge {
    pub(super) a: Point,
    pub(super) b: Point,
    pub(super) bound: Rect,
}

/// Returns [`ON_EDGE_RADIANS`] as an S2 chord angle.
pub(super) fn on_edge() -> ChordAngle {
    ChordAngle::from_length2(ON_EDGE_RADIANS * ON_EDGE_RADIANS)
}

/// Returns a bound with the margin for objects that touch.
pub(super) fn widened(bound: Rect) -> Rect {
    if bound.is_empty() {
        return bound;
    }
    let margin = LatLng::from_radians(BOUND_MARGIN_RADIANS, BOUND_MARGIN_RADIANS);
    bound.expanded(margin).polar_closure()
}

/// Returns the angle between two points.
pub(super) fn angle(a: Point, b: Point) -> f64 {
    a.stable_angle(b).radians()
}

impl Edge {
    /// Creates the shorter arc from `a` to `b`, which must not be antipodal.
    pub(super) fn new(a: Point, b: Point) -> Self {
        let mut bounder = LatLngRectBounder::new();
        bounder.add_point(a);
        bounder.add_point(b);
        Self {
            a,
            b,
            bound: widened(bounder.get_bound()),
        }
    }

    /// True if the point is on the arc.
    pub(super) fn contains(&self, point: Point) -> bool {
        is_distance_less(point, self.a, self.b, on_edge())
    }

    /// Returns the distance of a point from the arc, in radians.
    pub(super) fn distance(&self, point: Point) -> f64 {
        distance_from_segment(point, self.a, self.b).radians()
    }

    /// True if the arcs have a point in common.
    pub(super) fn touches(&self, other: &Edge) -> bool {
        self.bound.intersects(other.bound)
            && (crossing_sign(self.a, self.b, other.a, other.b) != Crossing::DoNotCross
                || self.contains(other.a)
                || self.contains(other.b)
                || other.contains(self.a)
                || other.contains(self.b))
    }

    /// True if the arcs cross in the interior of both.
    pub(super) fn crosses(&self, other: &Edge) -> bool {
        self.bound.intersects(other.bound)
            && crossing_sign(self.a, self.b, other.a, other.b) == Crossing::Cross
    }

    /// Returns the midpoints of the pieces into which `cutters` split the arc.
    ///
    /// No polygon made of these cutters is entered or left inside a piece, so the midpoint
    /// represents the whole piece.
    pub(super) fn midpoints<'e>(&self, cutters: impl Iterator<Item = &'e Edge>) -> Vec<Point> {
        let mut cuts = vec![self.a, self.b];
        for cutter in cutters.filter(|c| c.bound.intersects(self.bound)) {
            if crossing_sign(self.a, self.b, cutter.a, cutter.b) == Crossing::Cross {
                cuts.push(intersection(self.a, self.b, cutter.a, cutter.b));
            }
            cuts.extend(
                [cutter.a, cutter.b]
                    .into_iter()
                    .filter(|p| self.contains(*p)),
            );
        }
        let mut cuts: Vec<(f64, Point)> = cuts.into_iter().map(|p| (angle(self.a, p), p)).collect();
        cuts.sort_by(|x, y| x.0.total_cmp(&y.0));
        cuts.windows(2)
            .filter_map(|pair| match pair {
                [(from, a), (to, b)] if to - from > 4.0 * ON_EDGE_RADIANS => Some(midpoint(*a, *b)),
                _ => None,
            })
            .collect()
    }
}

/// Returns the midpoint between two points that are not antipodal.
pub(super) fn midpoint(a: Point, b: Point) -> Point {
    Point((a.0 + b.0).normalize())
}

/// Returns the arcs of a chain of points.
pub(super) fn chain(points: &[Point]) -> Vec<Edge> {
    points
        .windows(2)
        .filter_map(|pair| match pair {
            [a, b] => Some(Edge::new(*a, *b)),
            _ => None,
        })
        .collect()
}

/// True if the point is on any of the arcs.
pub(super) fn any_contains(edges: &[Edge], point: Point) -> bool {
    let place = LatLng::from_point(point);
    edges
        .iter()
        .any(|edge| edge.bound.contains_lat_lng(place) && edge.contains(point))
}

/// Sorts arcs by the lower latitude of their bounds.
pub(super) fn by_latitude<'e, T>(
    edges: impl Iterator<Item = (T, &'e Edge)>,
) -> impl Iterator<Item = (T, &'e Edge)> {
    let mut edges: Vec<(T, &Edge)> = edges.collect();
    edges.sort_by(|x, y| x.1.bound.lat.lo.total_cmp(&y.1.bound.lat.lo));
    edges.into_iter()
}

/// True if the test holds for a pair of arcs, one from each set. Only arcs near the other set are
/// compared, by ascending latitude, and only with arcs at common latitudes.
pub(super) fn any_pair(
    some: &[Edge],
    others: &[Edge],
    test: impl Fn(&Edge, &Edge) -> bool,
) -> bool {
    let hull = |edges: &[Edge]| {
        let bounds = edges.iter().map(|edge| edge.bound);
        bounds.fold(Rect::empty(), Rect::union)
    };
    let (near_some, near_others) = (hull(some), hull(others));
    if !near_some.intersects(near_others) {
        return false;
    }
    let some = some.iter().filter(|e| e.bound.intersects(near_others));
    let others = others.iter().filter(|e| e.bound.intersects(near_some));
    let both = some.map(|e| (true, e)).chain(others.map(|e| (false, e)));
    let (mut active_some, mut active_others): (Vec<&Edge>, Vec<&Edge>) = (Vec::new(), Vec::new());
    for (is_some, edge) in by_latitude(both) {
        let (own, other) = if is_some {
            (&mut active_some, &mut active_others)
        } else {
            (&mut active_others, &mut active_some)
        };
        other.retain(|met| met.bound.lat.hi >= edge.bound.lat.lo);
        let meets = |met: &&Edge| {
            if is_some {
                test(edge, met)
            } else {
                test(met, edge)
            }
        };
        if other.iter().any(meets) {
            return true;
        }
        own.push(edge);
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(lng: f64, lat: f64) -> Point {
        LatLng::from_degrees(lat, lng).to_point()
    }

    #[test]
    fn points_on_an_arc_are_found() {
        let edge = Edge::new(at(0.0, 0.0), at(10.0, 20.0));
        for step in 0..=10 {
            let t = f64::from(step) / 10.0;
            let p = s2rst::s2::edge_distances::interpolate(t, edge.a, edge.b);
            assert!(edge.contains(p), "{step}");
            assert!(edge.bound.contains_point(p));
        }
        assert!(
            !edge.contains(at(5.0, 10.0)),
            "the middle in degrees lies aside"
        );
    }

    #[test]
    fn arcs_touch_at_ends_insides_and_crossings() {
        let edge = Edge::new(at(0.0, 0.0), at(10.0, 0.0));
        let touches = |a: (f64, f64), b: (f64, f64)| {
            let other = Edge::new(at(a.0, a.1), at(b.0, b.1));
            assert_eq!(edge.touches(&other), other.touches(&edge));
            edge.touches(&other)
        };
        assert!(touches((5.0, -1.0), (5.0, 1.0)));
        assert!(touches((10.0, 0.0), (20.0, 5.0)));
        assert!(touches((5.0, 0.0), (5.0, 9.0)), "begins on it");
        assert!(touches((2.0, 0.0), (3.0, 0.0)), "part of it");
        assert!(!touches((5.0, 0.001), (5.0, 9.0)));
        assert!(!touches((11.0, 0.0), (12.0, 0.0)));
    }

    #[test]
    fn pieces_have_middles() {
        let edge = Edge::new(at(0.0, 0.0), at(10.0, 0.0));
        assert_eq!(edge.midpoints([].into_iter()).len(), 1);
        let cutters = [
            Edge::new(at(5.0, -1.0), at(5.0, 1.0)),
            Edge::new(at(7.0, 0.0), at(7.0, 3.0)),
            Edge::new(at(-5.0, 0.0), at(2.0, 0.0)),
        ];
        let midpoints = edge.midpoints(cutters.iter());
        let degrees: Vec<f64> = midpoints
            .iter()
            .map(|p| (LatLng::from_point(*p).lng.degrees() * 1e6).round() / 1e6)
            .collect();
        assert_eq!(degrees, [1.0, 3.5, 6.0, 8.5]);
    }
}

//! Relations of shapes on the sphere: within, intersects, distance.
//!
//! A geometry is a collection of points, lines and polygons. It is *within* a region if each of its
//! parts is within one part of the region; it *intersects* if any two parts have a point in common.
//! Distances are to the nearest part, in radians.

use std::f64::consts::PI;

use s2rst::s1::{self, Angle};
use s2rst::s2::{Cap, Cell, CellId, LatLng, Point, Rect, Region};

use super::coordinates::LngLat;
use super::edge::{Edge, ON_EDGE_RADIANS, angle, any_contains, any_pair, widened};
use super::polygon::{SpherePolygon, edge_touches_cell, nearest};

/// A GeoJSON geometry on the sphere, as a collection of parts.
#[derive(Clone, Debug, Default)]
pub struct SphereGeometry {
    pub(super) points: Vec<LngLat>,
    pub(super) lines: Vec<Line>,
    pub(super) polygons: Vec<SpherePolygon>,
}

/// A chain of at least one arc.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) edges: Vec<Edge>,
}

/// A circle on the globe and its interior.
#[derive(Clone, Copy, Debug)]
pub struct Disc {
    /// Centre.
    pub center: LngLat,
    /// Radius in radians.
    pub radius: f64,
}

/// The region of `$geoWithin` on the sphere.
#[derive(Clone, Debug)]
pub enum SphereRegion {
    /// Polygons: `$geometry`.
    Polygons(SphereGeometry),
    /// A disc: `$centerSphere`.
    Disc(Disc),
}

impl SphereGeometry {
    /// Creates a geometry of one point.
    pub fn point(at: LngLat) -> Self {
        Self {
            points: vec![at],
            ..Self::default()
        }
    }

    /// True if it has no parts.
    pub fn is_empty(&self) -> bool {
        self.points.is_empty() && self.lines.is_empty() && self.polygons.is_empty()
    }

    /// True if both have a point in common.
    pub fn intersects(&self, other: &SphereGeometry) -> bool {
        self.points.iter().any(|p| other.touches_point(p.to_unit()))
            || self.lines.iter().any(|l| other.touches_line(l))
            || self.polygons.iter().any(|p| other.touches_polygon(p))
    }

    /// True if a point is on or in some part.
    pub(super) fn touches_point(&self, point: Point) -> bool {
        let near = |other: &LngLat| angle(other.to_unit(), point) <= ON_EDGE_RADIANS;
        self.points.iter().any(near)
            || self.lines.iter().any(|line| line.contains(point))
            || self.polygons.iter().any(|polygon| polygon.covers(point))
    }

    fn touches_line(&self, line: &Line) -> bool {
        self.points.iter().any(|p| line.contains(p.to_unit()))
            || self.lines.iter().any(|own| own.touches(line))
            || self
                .polygons
                .iter()
                .any(|own| line.edges.iter().any(|edge| own.touches_edge(edge)))
    }

    fn touches_polygon(&self, polygon: &SpherePolygon) -> bool {
        self.points.iter().any(|p| polygon.covers(p.to_unit()))
            || self
                .lines
                .iter()
                .any(|own| own.edges.iter().any(|edge| polygon.touches_edge(edge)))
            || self.polygons.iter().any(|own| own.touches_polygon(polygon))
    }

    /// Returns the distance of the nearest part from a point, in radians; `None` if there are no
    /// parts.
    pub fn distance(&self, from: LngLat) -> Option<f64> {
        let from = from.to_unit();
        let points = self.points.iter().map(|p| angle(p.to_unit(), from));
        let lines = self.lines.iter().map(|l| nearest(l.edges.iter(), from));
        let polygons = self.polygons.iter().map(|p| p.distance(from));
        points.chain(lines).chain(polygons).reduce(f64::min)
    }

    /// Returns the bounding rectangles of its parts.
    pub(super) fn bounds(&self) -> impl Iterator<Item = Rect> {
        let points = self.points.iter().map(|p| point_bound(p.to_unit()));
        let lines = self.lines.iter().map(Line::bound);
        let polygons = self.polygons.iter().map(SpherePolygon::bound);
        points.chain(lines).chain(polygons)
    }
}

fn point_bound(point: Point) -> Rect {
    widened(Rect::from_lat_lng(LatLng::from_point(point)))
}

impl Line {
    fn contains(&self, point: Point) -> bool {
        any_contains(&self.edges, point)
    }

    fn touches(&self, other: &Line) -> bool {
        any_pair(&self.edges, &other.edges, Edge::touches)
    }

    fn bound(&self) -> Rect {
        let bounds = self.edges.iter().map(|edge| edge.bound);
        bounds.fold(Rect::empty(), Rect::union)
    }
}

impl Disc {
    /// True if it is the whole sphere.
    pub fn is_everything(&self) -> bool {
        self.radius >= PI
    }

    /// True if a point is inside.
    pub fn covers(&self, place: LngLat) -> bool {
        self.is_everything() || angle(self.center.to_unit(), place.to_unit()) <= self.radius
    }

    /// True only if another disc is inside.
    pub(super) fn covers_disc(&self, other: &Disc) -> bool {
        let apart = angle(self.center.to_unit(), other.center.to_unit());
        self.is_everything() || apart + other.radius + ON_EDGE_RADIANS <= self.radius
    }

    /// True if an arc is inside: no point of the arc is nearer to the antipode of the centre than
    /// the disc is.
    fn covers_edge(&self, edge: &Edge) -> bool {
        self.is_everything() || edge.distance(self.opposite()) >= PI - self.radius
    }

    fn covers_polygon(&self, polygon: &SpherePolygon) -> bool {
        self.is_everything()
            || (polygon.edges().all(|edge| self.covers_edge(edge))
                && !polygon.covers(self.opposite()))
    }

    fn opposite(&self) -> Point {
        Point(-self.center.to_unit().0)
    }

    fn cap(&self) -> Cap {
        if self.is_everything() {
            return Cap::full();
        }
        // Slightly wider, so that points on the border are inside.
        let radius = (self.radius + 100.0 * ON_EDGE_RADIANS).min(PI);
        Cap::from_center_angle(self.center.to_unit(), Angle::from_radians(radius))
    }
}

impl SphereRegion {
    /// True if the whole geometry is in the region.
    pub fn covers(&self, geometry: &SphereGeometry) -> bool {
        if geometry.is_empty() {
            return false;
        }
        geometry.points.iter().all(|p| self.covers_point(*p))
            && geometry.lines.iter().all(|line| self.covers_line(line))
            && geometry.polygons.iter().all(|p| self.covers_polygon(p))
    }

    /// True if a point is in the region.
    pub fn covers_point(&self, place: LngLat) -> bool {
        match self {
            Self::Disc(disc) => disc.covers(place),
            Self::Polygons(area) => {
                let point = place.to_unit();
                area.polygons.iter().any(|polygon| polygon.covers(point))
            }
        }
    }

    fn covers_line(&self, line: &Line) -> bool {
        match self {
            Self::Disc(disc) => line.edges.iter().all(|edge| disc.covers_edge(edge)),
            Self::Polygons(area) => area
                .polygons
                .iter()
                .any(|polygon| line.edges.iter().all(|edge| polygon.covers_edge(edge))),
        }
    }

    fn covers_polygon(&self, polygon: &SpherePolygon) -> bool {
        match self {
            Self::Disc(disc) => disc.covers_polygon(polygon),
            Self::Polygons(area) => area.polygons.iter().any(|own| own.covers_polygon(polygon)),
        }
    }

    /// True if the region may have a point with longitude and latitude in these ranges of degrees;
    /// always true if it has one.
    pub(super) fn may_touch_rect(&self, low: LngLat, high: LngLat) -> bool {
        may_touch_bounds(self.bounds(), low, high)
            && match self {
                Self::Disc(disc) if !disc.is_everything() => {
                    let center = LatLng::from_degrees(disc.center.lat(), disc.center.lng());
                    let distance = rect(low, high).get_distance_to_latlng(center);
                    distance.radians() <= disc.radius + 1e-9
                }
                _ => true,
            }
    }

    fn bounds(&self) -> Vec<Rect> {
        match self {
            Self::Disc(disc) => vec![widened(disc.cap().rect_bound())],
            Self::Polygons(area) => area.bounds().collect(),
        }
    }
}

/// True if any of the rectangles intersects the one between two corners.
pub(super) fn may_touch_bounds(
    bounds: impl IntoIterator<Item = Rect>,
    low: LngLat,
    high: LngLat,
) -> bool {
    let rect = widened(rect(low, high));
    bounds.into_iter().any(|bound| bound.intersects(rect))
}

/// Returns the rectangle between two corners in longitude and latitude. It never crosses the
/// antimeridian, since the numbers do not.
fn rect(low: LngLat, high: LngLat) -> Rect {
    let lat = s2rst::r1::Interval::new(low.lat().to_radians(), high.lat().to_radians());
    let whole_turn = high.lng() - low.lng() >= 360.0 - 1e-9;
    let lng = if whole_turn {
        s1::Interval::full()
    } else {
        s1::Interval::new(low.lng().to_radians(), high.lng().to_radians())
    };
    Rect::new(lat, lng).polar_closure()
}

/// A shape that S2 can cover with cells.
#[derive(Clone, Copy, Debug)]
pub(super) enum CoverableShape<'g> {
    Line(&'g Line),
    Polygon(&'g SpherePolygon),
    Disc(Cap),
}

impl SphereRegion {
    /// Returns the parts to be covered with cells.
    pub(super) fn coverable_parts(&self) -> Vec<CoverableShape<'_>> {
        match self {
            Self::Disc(disc) => vec![CoverableShape::Disc(disc.cap())],
            Self::Polygons(area) => area.coverable_parts().collect(),
        }
    }
}

impl SphereGeometry {
    /// Returns its lines and polygons, to be covered with cells.
    pub(super) fn coverable_parts(&self) -> impl Iterator<Item = CoverableShape<'_>> {
        let lines = self.lines.iter().map(CoverableShape::Line);
        lines.chain(self.polygons.iter().map(CoverableShape::Polygon))
    }
}

impl Region for CoverableShape<'_> {
    fn cap_bound(&self) -> Cap {
        match self {
            Self::Disc(cap) => *cap,
            _ => self.rect_bound().cap_bound(),
        }
    }

    fn rect_bound(&self) -> Rect {
        match self {
            Self::Line(line) => line.bound(),
            Self::Polygon(polygon) => polygon.bound(),
            Self::Disc(cap) => cap.rect_bound(),
        }
    }

    fn cell_union_bound(&self) -> Vec<CellId> {
        self.cap_bound().cell_union_bound()
    }

    fn contains_cell(&self, cell: &Cell) -> bool {
        match self {
            Self::Line(_) => false,
            Self::Polygon(polygon) => polygon.surely_covers_cell(cell),
            Self::Disc(cap) => Region::contains_cell(cap, cell),
        }
    }

    fn intersects_cell(&self, cell: &Cell) -> bool {
        match self {
            Self::Line(line) => line.edges.iter().any(|edge| edge_touches_cell(edge, cell)),
            Self::Polygon(polygon) => polygon.may_touch_cell(cell),
            Self::Disc(cap) => Region::intersects_cell(cap, cell),
        }
    }

    fn contains_point(&self, point: &Point) -> bool {
        match self {
            Self::Line(line) => line.contains(*point),
            Self::Polygon(polygon) => polygon.covers(*point),
            Self::Disc(cap) => Cap::contains_point(*cap, *point),
        }
    }
}

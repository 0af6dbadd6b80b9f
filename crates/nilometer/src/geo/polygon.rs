//! Polygons on the sphere: one outer ring with holes.
//!
//! A ring splits the sphere in two; its interior is the smaller part, in either order of points.
//! Only with strict winding (big polygons) it is the part to the left of the points, of any size.
//!
//! ```text
//! covers (point)    inside, or on a ring
//! covers (arc)      the arc, cut wherever rings meet it: the midpoints of all pieces, and its ends
//! covers (polygon)  its rings, one point of its inside, and no ring of ours inside it
//! touches           some arcs touch, or one polygon has a corner of the other
//! ```

use std::collections::HashSet;

use s2rst::s2::{Cell, Loop, Point, Rect, Region};

use super::edge::{Edge, any_contains, any_pair, by_latitude, chain, midpoint, widened};

/// Points nearer than this to antipodal count as antipodal: six millimetres on the ground.
const OPPOSITE_RADIANS: f64 = 1e-9;

/// Why points do not form a polygon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RingFault {
    /// Fewer than three distinct points.
    TooFewPoints,
    /// A point occurs twice.
    DuplicateVertices,
    /// Two neighbours are antipodal, so the arc between them is undefined.
    OppositeNeighbours,
    /// Two arcs cross or touch.
    EdgesCross,
    /// A further ring is not a hole in the first.
    NotAHole,
}

impl RingFault {
    /// Returns a clause for error messages.
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::TooFewPoints => "Loop must have at least 3 different vertices",
            Self::DuplicateVertices => "Duplicate vertices",
            Self::OppositeNeighbours => "Adjacent vertices are antipodal",
            Self::EdgesCross => "Edges cross",
            Self::NotAHole => {
                "Secondary loops not contained by first exterior loop - secondary loops must be holes"
            }
        }
    }
}

/// A closed chain of arcs and its interior.
#[derive(Clone, Debug)]
pub(super) struct Ring {
    inside: Loop,
    pub(super) edges: Vec<Edge>,
    bound: Rect,
}

impl Ring {
    /// Creates a ring around the smaller part of the sphere, or with `strict` around the part to
    /// its left. `points` does not repeat the first point at the end.
    pub(super) fn new(mut points: Vec<Point>, strict: bool) -> Result<Self, RingFault> {
        points.dedup();
        while points.len() > 1 && points.first() == points.last() {
            points.pop();
        }
        if points.len() < 3 {
            return Err(RingFault::TooFewPoints);
        }
        let bits = |p: &Point| [p.x(), p.y(), p.z()].map(|v| (v + 0.0).to_bits());
        let different: HashSet<[u64; 3]> = points.iter().map(bits).collect();
        if different.len() < points.len() {
            return Err(RingFault::DuplicateVertices);
        }
        let mut closed = points.clone();
        closed.extend(points.first());
        if has_opposite_neighbours(&closed) {
            return Err(RingFault::OppositeNeighbours);
        }
        let edges = chain(&closed);
        if crosses_itself(&edges) {
            return Err(RingFault::EdgesCross);
        }
        let mut inside = Loop::new(points);
        if !strict {
            inside.normalize();
        }
        let bound = widened(inside.bound());
        Ok(Self {
            inside,
            edges,
            bound,
        })
    }

    fn contains(&self, point: Point) -> bool {
        self.bound.contains_point(point) && self.inside.contains_point(&point)
    }

    fn has_on_edge(&self, point: Point) -> bool {
        self.bound.contains_point(point) && any_contains(&self.edges, point)
    }

    fn vertices(&self) -> &[Point] {
        self.inside.vertices()
    }
}

/// True if two consecutive points are antipodal.
pub(super) fn has_opposite_neighbours(points: &[Point]) -> bool {
    points.windows(2).any(|pair| match pair {
        // Nearer to antipodal than this, the arc is determined by rounding errors.
        [a, b] => (a.0 + b.0).norm() < OPPOSITE_RADIANS,
        _ => false,
    })
}

/// True if arcs that are not neighbours touch. Arcs are compared by ascending latitude, and only
/// with those at common latitudes.
fn crosses_itself(edges: &[Edge]) -> bool {
    let mut active: Vec<(usize, &Edge)> = Vec::new();
    for (at, edge) in by_latitude(edges.iter().enumerate()) {
        active.retain(|(_, other)| other.bound.lat.hi >= edge.bound.lat.lo);
        let meets = |(other, met): &(usize, &Edge)| {
            let apart = at.abs_diff(*other);
            if apart == 1 || apart == edges.len() - 1 {
                folds_back(edge, met)
            } else {
                edge.touches(met)
            }
        };
        if active.iter().any(meets) {
            return true;
        }
        active.push((at, edge));
    }
    false
}

/// True if two arcs with a common end overlap.
fn folds_back(x: &Edge, y: &Edge) -> bool {
    let (own, other) = if x.a == y.b { (x.b, y.a) } else { (x.a, y.b) };
    x.contains(other) || y.contains(own)
}

/// A polygon with holes.
#[derive(Clone, Debug)]
pub(super) struct SpherePolygon {
    shell: Ring,
    holes: Vec<Ring>,
}

impl SpherePolygon {
    /// Creates a polygon from its rings.
    pub(super) fn new(shell: Ring, holes: Vec<Ring>) -> Result<Self, RingFault> {
        for (at, hole) in holes.iter().enumerate() {
            let others = holes.iter().take(at).chain([&shell]);
            for other in others {
                if any_pair(&hole.edges, &other.edges, Edge::crosses) {
                    return Err(RingFault::EdgesCross);
                }
            }
            let lies_in = |p: &Point| shell.contains(*p) || shell.has_on_edge(*p);
            // A hole as large as the shell leaves nothing.
            let in_shell = |p: &Point| shell.vertices().contains(p);
            let is_shell = hole.vertices().len() == shell.vertices().len()
                && hole.vertices().iter().all(in_shell);
            if is_shell || !hole.vertices().iter().all(lies_in) {
                return Err(RingFault::NotAHole);
            }
            let overlaps = holes.iter().take(at).any(|other| {
                let strictly = |of: &Ring, p: &Point| of.contains(*p) && !of.has_on_edge(*p);
                hole.vertices().iter().any(|p| strictly(other, p))
                    || other.vertices().iter().any(|p| strictly(hole, p))
            });
            if overlaps {
                return Err(RingFault::NotAHole);
            }
        }
        Ok(Self { shell, holes })
    }

    /// Returns the bounding rectangle.
    pub(super) fn bound(&self) -> Rect {
        self.shell.bound
    }

    fn rings(&self) -> impl Iterator<Item = &Ring> {
        std::iter::once(&self.shell).chain(&self.holes)
    }

    /// Returns all arcs.
    pub(super) fn edges(&self) -> impl Iterator<Item = &Edge> {
        self.rings().flat_map(|ring| &ring.edges)
    }

    /// Returns a corner of the outer ring.
    pub(super) fn corner(&self) -> Option<Point> {
        self.shell.vertices().first().copied()
    }

    fn contains(&self, point: Point) -> bool {
        self.shell.contains(point) && !self.holes.iter().any(|hole| hole.contains(point))
    }

    fn has_on_edge(&self, point: Point) -> bool {
        self.rings().any(|ring| ring.has_on_edge(point))
    }

    /// True if the point is in the polygon or on a ring.
    pub(super) fn covers(&self, point: Point) -> bool {
        self.bound().contains_point(point) && (self.contains(point) || self.has_on_edge(point))
    }

    fn has_strictly_inside(&self, point: Point) -> bool {
        self.contains(point) && !self.has_on_edge(point)
    }

    /// True if the whole arc is in the polygon.
    pub(super) fn covers_edge(&self, edge: &Edge) -> bool {
        self.covers(edge.a)
            && self.covers(edge.b)
            && edge
                .midpoints(self.edges())
                .into_iter()
                .all(|middle| self.covers(middle))
    }

    /// True if the whole other polygon is in this one.
    pub(super) fn covers_polygon(&self, other: &SpherePolygon) -> bool {
        if !other.edges().all(|edge| self.covers_edge(edge)) {
            return false;
        }
        let reaches_inside = |edge: &Edge| {
            other.has_strictly_inside(edge.a)
                || (edge.bound.intersects(other.bound())
                    && edge
                        .midpoints(other.edges())
                        .into_iter()
                        .any(|middle| other.has_strictly_inside(middle)))
        };
        if self.edges().any(reaches_inside) {
            return false;
        }
        other.inner_point().is_none_or(|point| self.covers(point))
    }

    /// Returns an interior point away from the rings; `None` for slivers too thin to have one.
    fn inner_point(&self) -> Option<Point> {
        // Tries points to either side of each arc, from a third of its length downwards.
        for edge in self.edges() {
            let across = edge.a.point_cross(edge.b).0.normalize();
            let length = (edge.b.0 - edge.a.0).norm();
            for step in [0.3, 0.03, 1e-3, 1e-6] {
                for side in [1.0, -1.0] {
                    let from = midpoint(edge.a, edge.b).0;
                    let point = Point((from + across * (side * step * length)).normalize());
                    if self.has_strictly_inside(point) {
                        return Some(point);
                    }
                }
            }
        }
        None
    }

    /// True if the arc and the polygon have a point in common.
    pub(super) fn touches_edge(&self, edge: &Edge) -> bool {
        edge.bound.intersects(self.bound())
            && (self.contains(edge.a) || self.edges().any(|own| own.touches(edge)))
    }

    /// True if the polygons have a point in common.
    pub(super) fn touches_polygon(&self, other: &SpherePolygon) -> bool {
        if !self.bound().intersects(other.bound()) {
            return false;
        }
        let has_corner = |of: &SpherePolygon, from: &SpherePolygon| {
            from.corner().is_some_and(|corner| of.contains(corner))
        };
        has_corner(self, other)
            || has_corner(other, self)
            || self.rings().any(|mine| {
                let meets = |theirs: &Ring| any_pair(&mine.edges, &theirs.edges, Edge::touches);
                other.rings().any(meets)
            })
    }

    /// Returns the distance of a point in radians; 0 inside.
    pub(super) fn distance(&self, point: Point) -> f64 {
        if self.covers(point) {
            return 0.0;
        }
        nearest(self.edges(), point)
    }

    /// True if a cell and the polygon may have a point in common; always true if they have.
    pub(super) fn may_touch_cell(&self, cell: &Cell) -> bool {
        let bound = widened(cell.rect_bound());
        if !self.bound().intersects(bound) {
            return false;
        }
        self.contains(cell.center())
            || self
                .edges()
                .any(|edge| edge.bound.intersects(bound) && edge_touches_cell(edge, cell))
    }

    /// True if a cell is certainly inside the polygon.
    pub(super) fn surely_covers_cell(&self, cell: &Cell) -> bool {
        let bound = widened(cell.rect_bound());
        self.contains(cell.center())
            && !self
                .edges()
                .any(|edge| edge.bound.intersects(bound) && edge_touches_cell(edge, cell))
    }
}

/// True if an arc is near enough to a cell to touch it.
pub(super) fn edge_touches_cell(edge: &Edge, cell: &Cell) -> bool {
    // The square of twice the border thickness, as an S2 chord length, with a margin for rounding.
    cell.distance_to_edge(edge.a, edge.b).length2() <= 1e-24
}

/// Returns the smallest distance of a point from any of the arcs.
pub(super) fn nearest<'e>(edges: impl Iterator<Item = &'e Edge>, point: Point) -> f64 {
    edges
        .map(|edge| edge.distance(point))
        .fold(f64::INFINITY, f64::min)
}

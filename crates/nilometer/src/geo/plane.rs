//! Shapes of the plane: `$box`, `$polygon`, `$center`. Coordinates are numbers without a unit and
//! do not wrap. Shapes include their border.

use super::coordinates::PlanePoint;

/// The region of `$geoWithin` on the plane.
#[derive(Clone, Debug, PartialEq)]
pub enum PlaneRegion {
    /// `$box`: between two corners.
    Box {
        /// Smallest coordinates.
        low: PlanePoint,
        /// Largest coordinates.
        high: PlanePoint,
    },
    /// `$polygon`: its corners; the last is connected to the first.
    Polygon(Vec<PlanePoint>),
    /// `$center`.
    Circle {
        /// Centre.
        center: PlanePoint,
        /// Radius.
        radius: f64,
    },
}

impl PlaneRegion {
    /// Creates a box from two opposite corners.
    pub fn of_corners(a: PlanePoint, b: PlanePoint) -> Self {
        Self::Box {
            low: PlanePoint {
                x: a.x.min(b.x),
                y: a.y.min(b.y),
            },
            high: PlanePoint {
                x: a.x.max(b.x),
                y: a.y.max(b.y),
            },
        }
    }

    /// True if a point is in the region.
    pub fn covers(&self, point: PlanePoint) -> bool {
        match self {
            Self::Box { low, high } => {
                (low.x..=high.x).contains(&point.x) && (low.y..=high.y).contains(&point.y)
            }
            Self::Polygon(corners) => polygon_covers(corners, point),
            Self::Circle { center, radius } => center.distance(point) <= *radius,
        }
    }

    /// Returns the corners of the bounding box.
    pub fn bound(&self) -> (PlanePoint, PlanePoint) {
        match self {
            Self::Box { low, high } => (*low, *high),
            Self::Polygon(corners) => {
                let (mut low, mut high) = (
                    PlanePoint {
                        x: f64::INFINITY,
                        y: f64::INFINITY,
                    },
                    PlanePoint {
                        x: f64::NEG_INFINITY,
                        y: f64::NEG_INFINITY,
                    },
                );
                for corner in corners {
                    low.x = low.x.min(corner.x);
                    low.y = low.y.min(corner.y);
                    high.x = high.x.max(corner.x);
                    high.y = high.y.max(corner.y);
                }
                (low, high)
            }
            Self::Circle { center, radius } => (
                PlanePoint {
                    x: center.x - radius,
                    y: center.y - radius,
                },
                PlanePoint {
                    x: center.x + radius,
                    y: center.y + radius,
                },
            ),
        }
    }

    /// True if the region may have a point in a box; always true if it has one.
    pub fn may_touch_box(&self, low: PlanePoint, high: PlanePoint) -> bool {
        let (own_low, own_high) = self.bound();
        let meets = own_low.x <= high.x
            && low.x <= own_high.x
            && own_low.y <= high.y
            && low.y <= own_high.y;
        match self {
            Self::Circle { center, radius } => {
                let nearest = PlanePoint {
                    x: center.x.clamp(low.x, high.x.max(low.x)),
                    y: center.y.clamp(low.y, high.y.max(low.y)),
                };
                // The nearest point of the box is exact, its distance nearly.
                meets && center.distance(nearest) <= radius * (1.0 + 1e-12)
            }
            _ => meets,
        }
    }
}

/// Counts the sides crossed by a ray to the right; points on a side are inside.
fn polygon_covers(corners: &[PlanePoint], point: PlanePoint) -> bool {
    let mut inside = false;
    let Some(mut from) = corners.last().copied() else {
        return false;
    };
    for &to in corners {
        if is_on_side(from, to, point) {
            return true;
        }
        if (from.y > point.y) != (to.y > point.y) {
            let x = from.x + (point.y - from.y) / (to.y - from.y) * (to.x - from.x);
            if point.x < x {
                inside = !inside;
            }
        }
        from = to;
    }
    inside
}

fn is_on_side(a: PlanePoint, b: PlanePoint, p: PlanePoint) -> bool {
    let within = (a.x.min(b.x)..=a.x.max(b.x)).contains(&p.x)
        && (a.y.min(b.y)..=a.y.max(b.y)).contains(&p.y);
    within && (b.x - a.x) * (p.y - a.y) == (b.y - a.y) * (p.x - a.x)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn p(x: f64, y: f64) -> PlanePoint {
        PlanePoint { x, y }
    }

    #[test]
    fn borders_belong_to_the_shape() {
        let shapes = [
            PlaneRegion::of_corners(p(4.0, 4.0), p(0.0, 0.0)),
            PlaneRegion::Polygon(vec![p(0.0, 0.0), p(4.0, 0.0), p(4.0, 4.0), p(0.0, 4.0)]),
        ];
        for shape in shapes {
            for (x, y) in [(0.0, 0.0), (4.0, 2.0), (2.0, 4.0), (4.0, 4.0), (1.0, 1.0)] {
                assert!(shape.covers(p(x, y)), "{shape:?} {x} {y}");
            }
            for (x, y) in [(-0.1, 0.0), (4.1, 2.0), (2.0, 4.1), (f64::NAN, 1.0)] {
                assert!(!shape.covers(p(x, y)), "{shape:?} {x} {y}");
            }
        }
        let circle = PlaneRegion::Circle {
            center: p(1.0, 1.0),
            radius: 2.0,
        };
        assert!(circle.covers(p(3.0, 1.0)));
        assert!(!circle.covers(p(3.0, 1.1)));
    }

    #[test]
    fn polygons_may_be_hollow_on_one_side() {
        let u = PlaneRegion::Polygon(vec![
            p(0.0, 0.0),
            p(6.0, 0.0),
            p(6.0, 6.0),
            p(4.0, 6.0),
            p(4.0, 2.0),
            p(2.0, 2.0),
            p(2.0, 6.0),
            p(0.0, 6.0),
        ]);
        assert!(u.covers(p(1.0, 5.0)));
        assert!(u.covers(p(5.0, 5.0)));
        assert!(!u.covers(p(3.0, 5.0)));
        assert!(u.covers(p(3.0, 1.0)));
        assert!(u.covers(p(3.0, 2.0)));
    }

    #[test]
    fn boxes_are_excluded_only_without_common_points() {
        let circle = PlaneRegion::Circle {
            center: p(0.0, 0.0),
            radius: 1.0,
        };
        assert!(circle.may_touch_box(p(-3.0, -3.0), p(3.0, 3.0)));
        assert!(circle.may_touch_box(p(1.0, 0.0), p(2.0, 0.0)));
        assert!(!circle.may_touch_box(p(0.9, 0.9), p(2.0, 2.0)), "a corner");
    }
}

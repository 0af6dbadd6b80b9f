//! Conclusions from the bounds of a bucket about the points in it.
//!
//! ```text
//! control.min.f   {type: "Point", coordinates: [lng, lat]}     the smallest of each number
//! control.max.f   {type: "Point", coordinates: [lng, lat]}     the largest of each number
//!                 every point of the bucket is in the box between them
//! ```
//!
//! Bounds are updated position by position in arrays and field by field in objects, so the box is
//! valid only if all values have the same form. It is used if both bounds have exactly one of the
//! forms of a point: an array of two numbers; an object with only `type` "Point" and `coordinates`;
//! an object with two numbers, in either order. In all other cases, including a missing bound,
//! nothing is known and the bucket is kept.
//!
//! The box is one of longitudes and latitudes as numbers: it never crosses the antimeridian, and
//! its upper and lower sides are parallels, not great circles.

use nilometer_bson::{ArrayRef, DocRef, ValueRef};
use s2rst::s1;
use s2rst::s2::Rect;

use super::coordinates::{LngLat, PlanePoint, finite};
use super::edge::widened;
use super::query::{GeoTest, GeoTestKind, Region};
use super::sphere::may_touch_bounds;

/// True if a bucket may contain a measurement that passes the test, according to the bounds of the
/// field. False only if certainly none does.
pub fn may_contain(test: &GeoTest, min: ValueRef<'_>, max: ValueRef<'_>) -> bool {
    match boxes(min, max) {
        None => true,
        Some(boxes) => boxes
            .into_iter()
            .flatten()
            .any(|(low, high)| may_pass(test, low, high)),
    }
}

type PlaneBox = (PlanePoint, PlanePoint);

/// Returns the boxes of which one contains each point; `None` if the bounds do not determine them.
fn boxes(min: ValueRef<'_>, max: ValueRef<'_>) -> Option<[Option<PlaneBox>; 2]> {
    match (min, max) {
        (ValueRef::Array(min), ValueRef::Array(max)) => {
            if min.len() != 2 || max.len() != 2 {
                return None;
            }
            Some([Some((numbers(min)?, numbers(max)?)), None])
        }
        (ValueRef::Document(min), ValueRef::Document(max)) => {
            if let (Some(min), Some(max)) = (geo_json_point(min), geo_json_point(max)) {
                return Some([Some((min, max)), None]);
            }
            let (min, max) = (two_numbers(min)?, two_numbers(max)?);
            if min.names != max.names {
                return None;
            }
            // A measurement may store the two numbers in the other order, which is another point.
            let swapped = |p: PlanePoint| PlanePoint { x: p.y, y: p.x };
            Some([
                Some((min.point, max.point)),
                Some((swapped(min.point), swapped(max.point))),
            ])
        }
        _ => None,
    }
}

fn numbers(array: ArrayRef<'_>) -> Option<PlanePoint> {
    Some(PlanePoint {
        x: finite(array.get(0))?,
        y: finite(array.get(1))?,
    })
}

/// Returns the coordinates of an object with only `type: "Point"` and `coordinates`.
fn geo_json_point(document: DocRef<'_>) -> Option<PlanePoint> {
    if document.iter().count() != 2 || document.get("type").as_str() != Some("Point") {
        return None;
    }
    let coordinates = document.get("coordinates").as_array()?;
    // Further coordinates are ignored.
    numbers(coordinates)
}

struct TwoNumbers<'a> {
    names: [&'a str; 2],
    point: PlanePoint,
}

fn two_numbers(document: DocRef<'_>) -> Option<TwoNumbers<'_>> {
    let mut members = document.iter();
    let (first, second) = (members.next()?, members.next()?);
    if members.next().is_some() {
        return None;
    }
    Some(TwoNumbers {
        names: [first.name(), second.name()],
        point: PlanePoint {
            x: finite(first.value())?,
            y: finite(second.value())?,
        },
    })
}

fn may_pass(test: &GeoTest, low: PlanePoint, high: PlanePoint) -> bool {
    match test.kind() {
        GeoTestKind::Within(Region::Plane(region))
        | GeoTestKind::Reach(_, Region::Plane(region)) => region.may_touch_box(low, high),
        GeoTestKind::Within(Region::Sphere(region))
        | GeoTestKind::Reach(_, Region::Sphere(region)) => match globe_box(low, high) {
            Some((low, high)) => region.may_touch_rect(low, high),
            None => false,
        },
        GeoTestKind::Intersects(geometry) => match globe_box(low, high) {
            Some((low, high)) => may_touch_bounds(geometry.bounds(), low, high),
            None => false,
        },
    }
}

/// Returns the part of a box within the range of valid coordinates; `None` if it is empty.
fn globe_box(low: PlanePoint, high: PlanePoint) -> Option<(LngLat, LngLat)> {
    let low = LngLat::new(low.x.max(-180.0), low.y.max(-90.0))?;
    let high = LngLat::new(high.x.min(180.0), high.y.min(90.0))?;
    Some((low, high))
}

/// The box of longitudes and latitudes around points, for the keys of a bucket.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BucketPoints {
    low: (f64, f64),
    high: (f64, f64),
    first: LngLat,
}

impl BucketPoints {
    /// Creates the box of one point.
    pub fn of(place: LngLat) -> Self {
        let corner = (place.lng(), place.lat());
        Self {
            low: corner,
            high: corner,
            first: place,
        }
    }

    /// Extends the box by a point.
    pub fn add(&mut self, place: LngLat) {
        self.low = (self.low.0.min(place.lng()), self.low.1.min(place.lat()));
        self.high = (self.high.0.max(place.lng()), self.high.1.max(place.lat()));
    }

    /// Returns the corner with the smallest numbers.
    pub fn low(&self) -> LngLat {
        // The extremes of valid numbers are valid.
        LngLat::new(self.low.0, self.low.1).unwrap_or(self.first)
    }

    /// Returns the corner with the largest numbers.
    pub fn high(&self) -> LngLat {
        LngLat::new(self.high.0, self.high.1).unwrap_or(self.first)
    }

    pub(super) fn rect(&self) -> Rect {
        let lat = s2rst::r1::Interval::new(self.low.1.to_radians(), self.high.1.to_radians());
        let lng = if self.high.0 - self.low.0 >= 360.0 {
            s1::Interval::full()
        } else {
            s1::Interval::new(self.low.0.to_radians(), self.high.0.to_radians())
        };
        widened(Rect::new(lat, lng).polar_closure())
    }
}

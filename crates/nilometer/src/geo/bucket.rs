//! What the bounds of a bucket say about the points in it.
//!
//! ```text
//! control.min.f   {type: "Point", coordinates: [lng, lat]}     the smallest of each number
//! control.max.f   {type: "Point", coordinates: [lng, lat]}     the largest of each number
//!                 every point of the bucket lies in the box between them
//! ```
//!
//! Bounds track arrays position by position and objects field by field, so the box holds only where
//! nothing else can hide behind it. It is taken where both bounds have exactly one of the forms a
//! point has: an array of two numbers; an object with `type` "Point" and `coordinates`, nothing more;
//! an object with two numbers, whichever of them comes first in a measurement. Everything else, and a
//! missing bound, says nothing, and the bucket is kept.
//!
//! The box is one of longitudes and latitudes, as the numbers are: it never reaches across the date
//! line, and its upper and lower sides are parallels, no great circles.

use nilometer_bson::{ArrayRef, DocRef, ValueRef};
use s2rst::s1;
use s2rst::s2::Rect;

use super::coordinates::{LngLat, PlanePoint, finite};
use super::edge::widened;
use super::query::{GeoKind, GeoTest, Region};
use super::sphere::may_touch_bounds;

/// Whether a bucket may hold a measurement that passes the test, by the bounds of the field. It says
/// no only if surely none does.
pub fn may_hold(test: &GeoTest, min: ValueRef<'_>, max: ValueRef<'_>) -> bool {
    match boxes(min, max) {
        None => true,
        Some(boxes) => boxes
            .into_iter()
            .flatten()
            .any(|(low, high)| may_pass(test, low, high)),
    }
}

type PlaneBox = (PlanePoint, PlanePoint);

/// The boxes in one of which each point lies; none if the bounds do not tell.
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
            // A measurement may write the two the other way round, and then means another point.
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

/// The coordinates of an object that has `type: "Point"` and `coordinates` and nothing else.
fn geo_json_point(document: DocRef<'_>) -> Option<PlanePoint> {
    if document.iter().count() != 2 || document.get("type").as_str() != Some("Point") {
        return None;
    }
    let coordinates = document.get("coordinates").as_array()?;
    // Further coordinates mean nothing.
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
        GeoKind::Within(Region::Plane(region)) | GeoKind::Reach(_, Region::Plane(region)) => {
            region.may_touch_box(low, high)
        }
        GeoKind::Within(Region::Sphere(region)) | GeoKind::Reach(_, Region::Sphere(region)) => {
            match globe_box(low, high) {
                Some((low, high)) => region.may_touch_rect(low, high),
                None => false,
            }
        }
        GeoKind::Intersects(geometry) => match globe_box(low, high) {
            Some((low, high)) => may_touch_bounds(geometry.bounds(), low, high),
            None => false,
        },
    }
}

/// The part of a box that consists of places; none if no point of it is one.
fn globe_box(low: PlanePoint, high: PlanePoint) -> Option<(LngLat, LngLat)> {
    let low = LngLat::new(low.x.max(-180.0), low.y.max(-90.0))?;
    let high = LngLat::new(high.x.min(180.0), high.y.min(90.0))?;
    Some((low, high))
}

/// The box of longitudes and latitudes around some places, for keys of a bucket.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BucketPoints {
    low: (f64, f64),
    high: (f64, f64),
    first: LngLat,
}

impl BucketPoints {
    /// The box of one place.
    pub fn of(place: LngLat) -> Self {
        let corner = (place.lng(), place.lat());
        Self {
            low: corner,
            high: corner,
            first: place,
        }
    }

    /// Takes in another place.
    pub fn add(&mut self, place: LngLat) {
        self.low = (self.low.0.min(place.lng()), self.low.1.min(place.lat()));
        self.high = (self.high.0.max(place.lng()), self.high.1.max(place.lat()));
    }

    /// The corner with the smallest numbers.
    pub fn low(&self) -> LngLat {
        // Extremes of valid numbers are valid.
        LngLat::new(self.low.0, self.low.1).unwrap_or(self.first)
    }

    /// The corner with the largest numbers.
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

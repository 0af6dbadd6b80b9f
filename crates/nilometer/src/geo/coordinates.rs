//! Coordinates: two numbers of a document as a point on the plane or on the globe.

use nilometer_bson::ValueRef;
use nilometer_bson::number::Number;
use s2rst::s2::{LatLng, Point};

/// A point of the plane.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlanePoint {
    /// The first number.
    pub x: f64,
    /// The second number.
    pub y: f64,
}

impl PlanePoint {
    /// Returns the distance to another point.
    pub fn distance(self, other: Self) -> f64 {
        (self.x - other.x).hypot(self.y - other.y)
    }

    /// Returns the point on the globe with the same numbers, if they are in range.
    pub fn to_lng_lat(self) -> Option<LngLat> {
        LngLat::new(self.x, self.y)
    }
}

/// A point on the globe in degrees: longitude in [-180, 180], latitude in [-90, 90].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LngLat {
    lng: f64,
    lat: f64,
}

impl LngLat {
    /// Creates a point; `None` if a number is out of range or NaN.
    pub fn new(lng: f64, lat: f64) -> Option<Self> {
        let valid = (-180.0..=180.0).contains(&lng) && (-90.0..=90.0).contains(&lat);
        valid.then_some(Self { lng, lat })
    }

    /// Returns the longitude in degrees, east positive.
    pub fn lng(self) -> f64 {
        self.lng
    }

    /// Returns the latitude in degrees, north positive.
    pub fn lat(self) -> f64 {
        self.lat
    }

    /// Returns the point on the plane with the same numbers.
    pub fn to_plane(self) -> PlanePoint {
        PlanePoint {
            x: self.lng,
            y: self.lat,
        }
    }

    /// Returns the point on the unit sphere.
    pub(super) fn to_unit(self) -> Point {
        // -180 and 180 are the same meridian, and every longitude is the same at a pole. S2
        // compares points by their coordinates, so each point must have one representation.
        if self.lat.abs() == 90.0 {
            return Point::from_coords(0.0, 0.0, self.lat.signum());
        }
        let lng = if self.lng == -180.0 { 180.0 } else { self.lng };
        LatLng::from_degrees(self.lat, lng).to_point()
    }
}

/// Returns a finite number; `None` for any other value.
pub(super) fn finite(value: ValueRef<'_>) -> Option<f64> {
    let number = Number::of(value)?.to_f64();
    number.is_finite().then_some(number)
}

/// Returns the first two members of an array or object, if both are finite numbers: a legacy pair.
///
/// Further members are ignored, as in MongoDB.
pub(super) fn legacy_pair(value: ValueRef<'_>) -> Option<PlanePoint> {
    let members = match value {
        ValueRef::Document(doc) => doc,
        ValueRef::Array(array) => array.as_document(),
        _ => return None,
    };
    let mut members = members.iter();
    let x = finite(members.next()?.value())?;
    let y = finite(members.next()?.value())?;
    Some(PlanePoint { x, y })
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{Value, array, doc};

    use super::*;

    #[test]
    fn legacy_pairs_are_two_leading_numbers() {
        let pair = |value: &Value| legacy_pair(value.as_ref()).map(|p| (p.x, p.y));
        assert_eq!(pair(&array![1, 2.5]), Some((1.0, 2.5)));
        assert_eq!(pair(&array![1, 2, "up"]), Some((1.0, 2.0)));
        let object = Value::from(doc! {"lng": 3i64, "lat": 4, "name": "x"});
        assert_eq!(pair(&object), Some((3.0, 4.0)));
        for bad in [
            array![1],
            array!["1", 2],
            array![1, f64::NAN],
            array![f64::INFINITY, 1],
            Value::from(doc! {"type": "Point"}),
            Value::from(5),
        ] {
            assert_eq!(pair(&bad), None, "{bad:?}");
        }
    }

    #[test]
    fn one_place_is_one_point() {
        let unit = |lng, lat| LngLat::new(lng, lat).unwrap().to_unit();
        assert_eq!(unit(-180.0, 10.0), unit(180.0, 10.0));
        assert_eq!(unit(12.0, 90.0), unit(-100.0, 90.0));
        assert_eq!(unit(12.0, -90.0), unit(-100.0, -90.0));
        assert!(LngLat::new(180.1, 0.0).is_none());
        assert!(LngLat::new(0.0, f64::NAN).is_none());
    }
}

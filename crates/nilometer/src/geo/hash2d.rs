//! Keys of `2d` indexes: the interleaved bits of both coordinates.
//!
//! ```text
//! cell of x      floor((x - min) / (max - min) · 2^bits)        a number of `bits` bits, x in [min, max)
//! hash           x y x y … from the highest bits down: 2·bits bits, in the low end of a u64
//! key            the hash as a long of the same order: its highest bit flipped
//! ```
//!
//! An aligned square of cells whose side is a power of two is one range of hashes. A box is covered
//! with such squares, large ones inside and the smallest at its border.

use std::collections::BinaryHeap;

use nilometer_bson::ValueRef;

use super::cells::ordered_long;
use super::coordinates::PlanePoint;
use super::parse::Geometry;
use super::plane::PlaneRegion;
use super::query::{GeoTest, GeoTestKind, Region};
use crate::error::{Error, Result, location};

/// Default number of bits of each coordinate.
pub const BITS_DEFAULT: u32 = 26;

/// Maximum number of bits of each coordinate.
pub const BITS_MAX: u32 = 32;

/// Number of ranges in a covering above which squares are no longer split.
const RANGES_MAX: usize = 32;

/// The area and resolution of a `2d` index.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlaneGrid {
    bits: u32,
    min: f64,
    max: f64,
}

/// An inclusive range of hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HashRange {
    /// First hash.
    pub min: u64,
    /// Last hash.
    pub max: u64,
}

impl HashRange {
    /// Returns the first and the last key.
    pub fn keys(self) -> (i64, i64) {
        (ordered_long(self.min), ordered_long(self.max))
    }
}

impl Default for PlaneGrid {
    fn default() -> Self {
        Self {
            bits: BITS_DEFAULT,
            min: -180.0,
            max: 180.0,
        }
    }
}

impl PlaneGrid {
    /// Creates a grid; error 72 for bits outside 1 to 32 or an empty or infinite interval.
    pub fn new(bits: u32, min: f64, max: f64) -> Result<Self> {
        if !(1..=BITS_MAX).contains(&bits) {
            return Err(Error::invalid_options(format!(
                "bits for hash must be > 0 and <= {BITS_MAX}, but {bits} bits were specified"
            )));
        }
        let is_interval = min.is_finite() && max.is_finite() && min < max;
        if !is_interval || !(max - min).is_finite() {
            return Err(Error::invalid_options(
                "region for hash must be valid and have positive area",
            ));
        }
        Ok(Self { bits, min, max })
    }

    /// Returns the number of cells on one side.
    fn side(&self) -> u64 {
        1u64 << self.bits
    }

    /// Returns the cell of a coordinate; coordinates outside are clamped to the nearest cell.
    fn cell(&self, coordinate: f64) -> u64 {
        let scaled = (coordinate - self.min) / (self.max - self.min) * self.side() as f64;
        // The cast saturates at both ends and converts NaN to 0.
        (scaled.floor() as u64).min(self.side() - 1)
    }

    /// Returns the hash of a point; error 13027 if it is outside.
    pub fn hash(&self, point: PlanePoint) -> Result<u64> {
        let inside = |v: f64| self.min <= v && v < self.max;
        // The upper end is included: 180 degrees east is a common value.
        if !(inside(point.x) || point.x == self.max) || !(inside(point.y) || point.y == self.max) {
            return Err(Error::location(
                location::GEO_2D_OUT_OF_BOUNDS,
                format!(
                    "point not in interval of [ {}, {} ] :: caused by :: {{ : {}, : {} }}",
                    self.min, self.max, point.x, point.y
                ),
            ));
        }
        Ok(interleave(
            self.cell(point.x),
            self.cell(point.y),
            self.bits,
        ))
    }

    /// Returns the keys of a value in a `2d` index, ascending and distinct. A missing value, null,
    /// an empty array or an empty object has none; an array that is not a pair has those of all its
    /// elements; other values are error 13026, points outside the grid error 13027.
    pub fn index_keys(&self, value: ValueRef<'_>) -> Result<Vec<i64>> {
        if let ValueRef::Array(array) = value
            && matches!(array.get(0), ValueRef::Array(_) | ValueRef::Document(_))
        {
            let mut keys = Vec::new();
            for element in array.iter() {
                keys.extend(self.key_of_one(element)?);
            }
            keys.sort_unstable();
            keys.dedup();
            return Ok(keys);
        }
        Ok(self.key_of_one(value)?.into_iter().collect())
    }

    fn key_of_one(&self, value: ValueRef<'_>) -> Result<Option<i64>> {
        let has_none = match value {
            ValueRef::Missing | ValueRef::Null | ValueRef::Undefined => true,
            ValueRef::Array(array) => array.is_empty(),
            ValueRef::Document(document) => document.is_empty(),
            _ => false,
        };
        if has_none {
            return Ok(None);
        }
        // An object is a pair of numbers, whatever their names. GeoJSON is for the other kind of index.
        let is_pair = value
            .as_document()
            .and_then(|document| document.iter().next())
            .is_none_or(|first| first.value().is_number());
        let point = Geometry::stored(value).and_then(|geometry| geometry.plane_point());
        let point = point.filter(|_| is_pair);
        let point = point.ok_or_else(|| {
            Error::location(
                location::GEO_2D_NOT_POINT,
                "geo values must be 'legacy coordinate pairs' for 2d indexes",
            )
        })?;
        self.hash(point).map(|hash| Some(ordered_long(hash)))
    }

    /// Returns the ranges of the index that contain a hash of every stored value that passes;
    /// `None` if the index cannot be used because the test is on the sphere.
    pub fn test_ranges(&self, test: &GeoTest) -> Option<Vec<HashRange>> {
        match test.kind() {
            GeoTestKind::Within(Region::Plane(region))
            | GeoTestKind::Reach(_, Region::Plane(region)) => Some(self.covering(region)),
            _ => None,
        }
    }

    /// Returns disjoint ascending ranges of hashes that contain the hash of every point in the
    /// region.
    pub fn covering(&self, region: &PlaneRegion) -> Vec<HashRange> {
        let (low, high) = region.bound();
        // A margin of one cell for rounding errors in the edges of cells and regions.
        let first = (
            self.cell(low.x).saturating_sub(1),
            self.cell(low.y).saturating_sub(1),
        );
        let last_cell = self.side() - 1;
        let last = (
            (self.cell(high.x) + 1).min(last_cell),
            (self.cell(high.y) + 1).min(last_cell),
        );
        let whole = Square {
            level: self.bits,
            x: 0,
            y: 0,
        };
        let mut open = BinaryHeap::from([whole]);
        let mut done: Vec<Square> = Vec::new();
        while let Some(square) = open.pop() {
            let splits = square.level > 0 && open.len() + done.len() + 4 <= RANGES_MAX;
            if square.is_within(first, last) || !splits {
                done.push(square);
                continue;
            }
            open.extend(
                square
                    .quarters()
                    .into_iter()
                    .filter(|q| q.meets(first, last)),
            );
        }
        let mut ranges: Vec<HashRange> = done.iter().map(|s| s.range(self.bits)).collect();
        ranges.sort_unstable();
        let mut apart: Vec<HashRange> = Vec::with_capacity(ranges.len());
        for range in ranges {
            match apart.last_mut() {
                Some(last) if range.min <= last.max.saturating_add(1) => {
                    last.max = last.max.max(range.max);
                }
                _ => apart.push(range),
            }
        }
        apart
    }
}

/// A square with a side of `2^level` cells; larger squares order first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Square {
    level: u32,
    x: u64,
    y: u64,
}

impl Square {
    fn last(self) -> (u64, u64) {
        let reach = (1u64 << self.level) - 1;
        (self.x + reach, self.y + reach)
    }

    fn is_within(self, first: (u64, u64), last: (u64, u64)) -> bool {
        let end = self.last();
        first.0 <= self.x && first.1 <= self.y && end.0 <= last.0 && end.1 <= last.1
    }

    fn meets(self, first: (u64, u64), last: (u64, u64)) -> bool {
        let end = self.last();
        self.x <= last.0 && self.y <= last.1 && first.0 <= end.0 && first.1 <= end.1
    }

    fn quarters(self) -> [Self; 4] {
        let level = self.level - 1;
        let half = 1u64 << level;
        [(0, 0), (half, 0), (0, half), (half, half)].map(|(x, y)| Self {
            level,
            x: self.x + x,
            y: self.y + y,
        })
    }

    fn range(self, bits: u32) -> HashRange {
        let min = interleave(self.x, self.y, bits);
        let (x, y) = self.last();
        HashRange {
            min,
            max: interleave(x, y, bits),
        }
    }
}

/// Interleaves the low `bits` bits of both, x first.
fn interleave(x: u64, y: u64, bits: u32) -> u64 {
    (0..bits).rev().fold(0, |hash, bit| {
        (hash << 2) | ((x >> bit & 1) << 1) | (y >> bit & 1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn p(x: f64, y: f64) -> PlanePoint {
        PlanePoint { x, y }
    }

    #[test]
    fn bits_take_turns() {
        let grid = PlaneGrid::new(2, 0.0, 4.0).unwrap();
        let hash = |x, y| grid.hash(p(x, y)).unwrap();
        assert_eq!(hash(0.0, 0.0), 0);
        assert_eq!(hash(0.5, 1.5), 0b0001);
        assert_eq!(hash(1.5, 0.5), 0b0010);
        assert_eq!(hash(2.5, 3.5), 0b1101);
        assert_eq!(hash(4.0, 4.0), 0b1111, "the end itself is the last cell");
        assert_eq!(
            grid.hash(p(4.1, 0.0)).unwrap_err().code.0,
            location::GEO_2D_OUT_OF_BOUNDS
        );
        assert_eq!(
            grid.hash(p(-0.1, 0.0)).unwrap_err().code.0,
            location::GEO_2D_OUT_OF_BOUNDS
        );
    }

    #[test]
    fn grids_are_checked() {
        for (bits, min, max) in [
            (0, 0.0, 1.0),
            (33, 0.0, 1.0),
            (5, 1.0, 1.0),
            (5, f64::NAN, 1.0),
        ] {
            assert_eq!(PlaneGrid::new(bits, min, max).unwrap_err().code.0, 72);
        }
        let full = PlaneGrid::new(32, -180.0, 180.0).unwrap();
        assert_eq!(full.hash(p(180.0, 180.0)).unwrap(), u64::MAX);
    }

    #[test]
    fn values_have_keys_in_the_order_of_hashes() {
        use nilometer_bson::{Value, array, doc};
        let grid = PlaneGrid::default();
        let keys = |value: Value| grid.index_keys(value.as_ref());
        assert_eq!(keys(array![-180, -180]).unwrap(), [i64::MIN]);
        assert_eq!(keys(Value::Null).unwrap(), [0i64; 0]);
        let named = doc! {"lng": 1, "lat": 2};
        assert_eq!(keys(named.into()).unwrap(), keys(array![1, 2]).unwrap());
        let point = doc! {"type": "Point", "coordinates": array![1, 2]};
        assert_eq!(
            keys(point.into()).unwrap_err().code.0,
            location::GEO_2D_NOT_POINT
        );
        let two = keys(array![array![1, 2], array![-1, 2]]).unwrap();
        assert!(two.len() == 2 && two[0] < two[1]);
        assert_eq!(
            keys("x".into()).unwrap_err().code.0,
            location::GEO_2D_NOT_POINT
        );
        assert_eq!(
            keys(array![181, 0]).unwrap_err().code.0,
            location::GEO_2D_OUT_OF_BOUNDS
        );
    }

    #[test]
    fn coverings_hold_every_point() {
        let mut draw = super::super::testing::TestRandom::new(7);
        for bits in [1, 5, 26, 32] {
            let grid = PlaneGrid::new(bits, -180.0, 180.0).unwrap();
            for _ in 0..300 {
                let a = p(draw.within(-200.0, 200.0), draw.within(-200.0, 200.0));
                let size = 10f64.powf(draw.within(-6.0, 2.0));
                let region = PlaneRegion::Circle {
                    center: a,
                    radius: size,
                };
                let ranges = grid.covering(&region);
                assert!(ranges.len() <= RANGES_MAX);
                assert!(ranges.windows(2).all(|w| w[0].max < w[1].min));
                for _ in 0..20 {
                    let at = p(
                        a.x + draw.within(-size, size),
                        a.y + draw.within(-size, size),
                    );
                    let Ok(hash) = grid.hash(at) else { continue };
                    if region.covers(at) {
                        let found = ranges.iter().any(|r| (r.min..=r.max).contains(&hash));
                        assert!(found, "{at:?} in {region:?} with {bits} bits");
                    }
                }
            }
        }
    }
}

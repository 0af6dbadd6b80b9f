//! Parsing of geometry in documents: GeoJSON, or a legacy pair of numbers.
//!
//! ```text
//! [x, y]  {x: …, y: …}                          two leading numbers: a legacy pair, whatever follows
//! {type: "Point", coordinates: [lng, lat]}      GeoJSON: Point, MultiPoint, LineString,
//!                                               MultiLineString, Polygon, MultiPolygon,
//!                                               GeometryCollection (not nested)
//! crs: {type: "name", properties: {name: …}}    CRS84, EPSG:4326; strict winding in queries only
//! ```
//!
//! GeoJSON is on the sphere; its points can be used on the plane too. A legacy pair is on the
//! plane, and on the sphere if its numbers are a valid longitude and latitude. A third coordinate
//! is ignored.

use std::borrow::Cow;

use nilometer_bson::{ArrayRef, DocRef, ValueRef};
use s2rst::s2::Point;

use super::coordinates::{LngLat, PlanePoint, finite, legacy_pair};
use super::edge::chain;
use super::polygon::{Ring, RingFault, SpherePolygon, has_opposite_neighbours};
use super::sphere::{Line, SphereGeometry};
use crate::error::{Error, Result};

/// Names of the default coordinate system: degrees of longitude and latitude.
const CRS_NAMES: [&str; 2] = ["urn:ogc:def:crs:OGC:1.3:CRS84", "EPSG:4326"];

/// The name of the coordinate system in which the order of a polygon's points determines its
/// interior.
const CRS_STRICT_WINDING: &str = "urn:x-mongodb:crs:strictwinding:EPSG:4326";

/// Maximum number of vertices in one geometry. The time to compare two shapes is at worst
/// proportional to the product of theirs.
pub const VERTICES_MAX: usize = 100_000;

/// The origin of a geometry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParsePurpose {
    /// In a stored document.
    Stored,
    /// In a query, which may contain polygons larger than a hemisphere.
    Query,
}

/// A geometry.
#[derive(Clone, Debug)]
pub enum Geometry {
    /// A legacy pair.
    Legacy(PlanePoint),
    /// A GeoJSON point.
    Point(LngLat),
    /// Any other GeoJSON.
    Shape(SphereGeometry),
}

/// Why a value is not a geometry.
type GeometryFault = Cow<'static, str>;
type ParseResult<T> = Result<T, GeometryFault>;

impl Geometry {
    /// Parses a geometry; error 2 with the reason if it is invalid.
    pub fn parse(value: ValueRef<'_>, purpose: ParsePurpose) -> Result<Self> {
        geometry(value, purpose).map_err(|fault| Error::bad_value(fault.into_owned()))
    }

    /// Parses a stored value; `None` if it is not a geometry.
    pub fn stored(value: ValueRef<'_>) -> Option<Self> {
        geometry(value, ParsePurpose::Stored).ok()
    }

    /// Returns the point on the plane, if it is a point.
    pub fn plane_point(&self) -> Option<PlanePoint> {
        match self {
            Self::Legacy(point) => Some(*point),
            Self::Point(place) => Some(place.to_plane()),
            Self::Shape(_) => None,
        }
    }

    /// Returns the point on the globe, if it is a point there.
    pub fn place(&self) -> Option<LngLat> {
        match self {
            Self::Legacy(point) => point.to_lng_lat(),
            Self::Point(place) => Some(*place),
            Self::Shape(_) => None,
        }
    }

    /// Returns the geometry on the sphere; `None` for a legacy pair out of range.
    pub fn into_sphere(self) -> Option<SphereGeometry> {
        match self {
            Self::Shape(shape) => Some(shape),
            point => point.place().map(SphereGeometry::point),
        }
    }
}

fn geometry(value: ValueRef<'_>, purpose: ParsePurpose) -> ParseResult<Geometry> {
    if let Some(pair) = legacy_pair(value) {
        return Ok(Geometry::Legacy(pair));
    }
    match value {
        ValueRef::Document(document) => geo_json(document, purpose),
        ValueRef::Array(_) => Err("Point must only contain numeric elements".into()),
        _ => Err("geometry must be an array or object".into()),
    }
}

fn geo_json(document: DocRef<'_>, purpose: ParsePurpose) -> ParseResult<Geometry> {
    let kind = match document.get("type") {
        ValueRef::String(kind) => kind,
        ValueRef::Missing => return Err("unknown GeoJSON type: no member 'type'".into()),
        _ => return Err("GeoJSON 'type' must be a string".into()),
    };
    let strict = strict_winding(document, purpose)?;
    if strict && kind != "Polygon" {
        return Err("Strict winding order is only supported by polygon".into());
    }
    if kind == "GeometryCollection" {
        return collection(document).map(Geometry::Shape);
    }
    if kind == "Point" {
        return position(document.get("coordinates")).map(Geometry::Point);
    }
    let mut reader = ShapeBuilder {
        shape: SphereGeometry::default(),
        vertices_left: VERTICES_MAX,
    };
    reader.add(kind, document.get("coordinates"), strict)?;
    Ok(Geometry::Shape(reader.shape))
}

/// A shape under construction.
struct ShapeBuilder {
    shape: SphereGeometry,
    vertices_left: usize,
}

impl ShapeBuilder {
    /// Parses a type that consists of coordinates.
    fn add(&mut self, kind: &str, coordinates: ValueRef<'_>, strict: bool) -> ParseResult<()> {
        let members = || members(coordinates, kind);
        match kind {
            "Point" => self.shape.points.push(position(coordinates)?),
            "MultiPoint" => {
                for point in members()?.iter() {
                    self.shape.points.push(position(point)?);
                }
            }
            "LineString" => self.line(coordinates)?,
            "MultiLineString" => {
                for one in members()?.iter() {
                    self.line(one)?;
                }
            }
            "Polygon" => self.polygon(coordinates, strict)?,
            "MultiPolygon" => {
                for one in members()?.iter() {
                    self.polygon(one, false)?;
                }
            }
            other => return Err(format!("unknown GeoJSON type: {other}").into()),
        }
        Ok(())
    }

    /// Parses the points of a line or ring.
    fn vertices(&mut self, value: ValueRef<'_>, kind: &str) -> ParseResult<Vec<Point>> {
        let mut points = Vec::new();
        for vertex in members(value, kind)?.iter() {
            let left = self.vertices_left.checked_sub(1);
            self.vertices_left =
                left.ok_or_else(|| format!("geometry has more than {VERTICES_MAX} vertices"))?;
            points.push(position(vertex)?.to_unit());
        }
        Ok(points)
    }

    fn line(&mut self, value: ValueRef<'_>) -> ParseResult<()> {
        let mut points = self.vertices(value, "LineString")?;
        points.dedup();
        if points.len() < 2 {
            return Err("GeoJSON LineString must have at least 2 vertices".into());
        }
        if has_opposite_neighbours(&points) {
            return Err("GeoJSON LineString has adjacent vertices that are antipodal".into());
        }
        let edges = chain(&points);
        self.shape.lines.push(Line { edges });
        Ok(())
    }

    fn polygon(&mut self, value: ValueRef<'_>, strict: bool) -> ParseResult<()> {
        let rings = members(value, "Polygon")?;
        if strict && rings.len() > 1 {
            return Err("Only one simple loop is allowed in a big polygon".into());
        }
        let mut parsed = Vec::with_capacity(rings.len());
        for ring in rings.iter() {
            parsed.push(self.ring(ring, strict)?);
        }
        let mut parsed = parsed.into_iter();
        let shell = parsed.next().ok_or("Polygon has no loops")?;
        let polygon = SpherePolygon::new(shell, parsed.collect());
        self.shape.polygons.push(polygon.map_err(RingFault::text)?);
        Ok(())
    }

    fn ring(&mut self, value: ValueRef<'_>, strict: bool) -> ParseResult<Ring> {
        let points = self.vertices(value, "Polygon loop")?;
        if points.first() != points.last() || points.len() < 2 {
            return Err("Loop is not closed".into());
        }
        if points.len() < 4 {
            return Err("Loop must have at least 3 different vertices".into());
        }
        Ring::new(points, strict)
            .map_err(|fault| format!("Loop is not valid: {}", fault.text()).into())
    }
}

fn members<'a>(coordinates: ValueRef<'a>, kind: &str) -> ParseResult<ArrayRef<'a>> {
    let array = coordinates
        .as_array()
        .ok_or_else(|| GeometryFault::from(format!("{kind} coordinates must be an array")))?;
    if array.is_empty() {
        return Err(format!("{kind} coordinates must have at least 1 element").into());
    }
    Ok(array)
}

fn collection(document: DocRef<'_>) -> ParseResult<SphereGeometry> {
    let geometries = document
        .get("geometries")
        .as_array()
        .filter(|list| !list.is_empty())
        .ok_or("GeometryCollection geometries must be a non-empty array")?;
    let mut reader = ShapeBuilder {
        shape: SphereGeometry::default(),
        vertices_left: VERTICES_MAX,
    };
    for one in geometries.iter() {
        let one = one
            .as_document()
            .ok_or("GeometryCollection geometries must be objects")?;
        let kind = one.get("type").as_str().unwrap_or_default();
        if kind == "GeometryCollection" {
            return Err("GeometryCollection must not contain a GeometryCollection".into());
        }
        reader.add(kind, one.get("coordinates"), false)?;
    }
    Ok(reader.shape)
}

/// True if the coordinate system requires strict winding.
fn strict_winding(document: DocRef<'_>, purpose: ParsePurpose) -> ParseResult<bool> {
    let crs = match document.get("crs") {
        ValueRef::Missing => return Ok(false),
        ValueRef::Document(crs) => crs,
        _ => return Err("GeoJSON CRS must be an object".into()),
    };
    if crs.get("type").as_str() != Some("name") {
        return Err("GeoJSON CRS must have field \"type\": \"name\"".into());
    }
    let name = match crs.get("properties") {
        ValueRef::Document(properties) => properties.get("name").as_str(),
        _ => None,
    };
    match name {
        Some(name) if CRS_NAMES.contains(&name) => Ok(false),
        Some(CRS_STRICT_WINDING) if purpose == ParsePurpose::Query => Ok(true),
        Some(CRS_STRICT_WINDING) => {
            Err("can't store or index geometry with strict winding order".into())
        }
        Some(name) => Err(format!("Unknown CRS name: {name}").into()),
        None => Err("GeoJSON CRS must have a string 'properties.name'".into()),
    }
}

/// Parses `[lng, lat, …]`.
fn position(value: ValueRef<'_>) -> ParseResult<LngLat> {
    let array = value
        .as_array()
        .ok_or("Point must be an array of numbers")?;
    let mut numbers = array.iter().map(finite);
    let (Some(Some(lng)), Some(Some(lat))) = (numbers.next(), numbers.next()) else {
        return Err("Point must have two numeric coordinates".into());
    };
    LngLat::new(lng, lat)
        .ok_or_else(|| format!("longitude/latitude is out of bounds, lng: {lng} lat: {lat}").into())
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{Document, Value, array, doc};

    use super::*;

    fn reason(value: impl Into<Value>) -> String {
        match Geometry::parse(value.into().as_ref(), ParsePurpose::Stored) {
            Ok(_) => String::new(),
            Err(error) => {
                assert_eq!(error.code.0, 2);
                error.message
            }
        }
    }

    fn shape(kind: &str, coordinates: Value) -> Document {
        doc! {"type": kind, "coordinates": coordinates}
    }

    fn square(low: f64, high: f64) -> Value {
        array![
            array![low, low],
            array![high, low],
            array![high, high],
            array![low, high],
            array![low, low]
        ]
    }

    #[test]
    fn all_types_are_read() {
        let line = array![array![0, 0], array![1, 1]];
        for good in [
            shape("Point", array![1, 2, 300]),
            shape("MultiPoint", array![array![1, 2], array![3, 4]]),
            shape("LineString", line.clone()),
            shape("MultiLineString", array![line]),
            shape("Polygon", array![square(0.0, 9.0), square(1.0, 2.0)]),
            shape("MultiPolygon", array![array![square(0.0, 9.0)]]),
            doc! {"type": "GeometryCollection", "geometries": array![
            shape("Point", array![1, 2]), shape("Polygon", array![square(0.0, 1.0)])]},
            doc! {"type": "Point", "coordinates": array![1, 2], "name": "x",
            "crs": doc! {"type": "name", "properties": doc! {"name": "EPSG:4326"}}},
            doc! {"lng": 500, "lat": 3},
        ] {
            assert_eq!(reason(good.clone()), "", "{good:?}");
        }
        let legacy_first = doc! {"x": 1, "y": 2, "type": "Point", "coordinates": array![3, 4]};
        let read = Geometry::stored(ValueRef::Document(legacy_first.as_ref())).unwrap();
        assert_eq!(read.plane_point(), Some(PlanePoint { x: 1.0, y: 2.0 }));
    }

    #[test]
    fn faults_are_named() {
        let bow_tie = array![
            array![0, 0],
            array![4, 4],
            array![4, 0],
            array![0, 4],
            array![0, 0]
        ];
        let twice = array![
            array![0, 0],
            array![4, 0],
            array![2, 2],
            array![4, 4],
            array![2, 2],
            array![0, 0]
        ];
        let open = array![array![0, 0], array![4, 0], array![4, 4], array![1, 1]];
        let collection = |of: Value| doc! {"type": "GeometryCollection", "geometries": of};
        for (bad, part) in [
            (shape("Point", array!["bad", 0]), "numeric"),
            (shape("Point", array![181, 0]), "out of bounds"),
            (shape("Point", 5.into()), "array of numbers"),
            (
                shape("Circle", array![1, 2]),
                "unknown GeoJSON type: Circle",
            ),
            (shape("MultiPoint", array![]), "at least 1"),
            (
                shape("LineString", array![array![1, 1], array![1, 1]]),
                "2 vertices",
            ),
            (
                shape("LineString", array![array![0, 0], array![180, 0]]),
                "antipodal",
            ),
            (shape("Polygon", array![1, 2]), "must be an array"),
            (shape("Polygon", array![open]), "not closed"),
            (shape("Polygon", array![bow_tie]), "Edges cross"),
            (shape("Polygon", array![twice]), "Duplicate"),
            (
                shape("Polygon", array![square(0.0, 1.0), square(5.0, 6.0)]),
                "must be holes",
            ),
            (
                shape("Polygon", array![square(0.0, 3.0), square(1.0, 6.0)]),
                "Edges cross",
            ),
            (collection(array![]), "non-empty"),
            (collection(array![collection(array![])]), "must not contain"),
            (doc! {"a": "b"}, "unknown GeoJSON type"),
            (
                doc! {"type": "Point", "coordinates": array![1, 2], "crs": doc! {"type": "name",
                "properties": doc! {"name": "EPSG:1"}}},
                "Unknown CRS name",
            ),
        ] {
            let found = reason(bad.clone());
            assert!(found.contains(part), "{bad:?}: {found}");
        }
        assert!(reason("x").contains("array or object"));
    }

    #[test]
    fn strict_winding_is_for_queries() {
        let mut big = shape("Polygon", array![square(0.0, 9.0)]);
        let properties = doc! {"name": CRS_STRICT_WINDING};
        let mut builder = nilometer_bson::DocumentBuilder::new();
        for element in big.iter() {
            builder.append_element(element);
        }
        builder.append("crs", doc! {"type": "name", "properties": properties});
        big = builder.finish();
        let value = ValueRef::Document(big.as_ref());
        assert!(Geometry::parse(value, ParsePurpose::Query).is_ok());
        assert!(Geometry::parse(value, ParsePurpose::Stored).is_err());
    }
}

//! The geospatial operators of a filter: parsing of operands, and tests of values.
//!
//! ```text
//! $geoWithin      {$geometry: polygon(s)} {$centerSphere: […]}             on the sphere
//!                 {$box: […]} {$polygon: […]} {$center: […]}               on the plane
//! $geoIntersects  {$geometry: any}                                         on the sphere
//! $near           {$geometry: point, $maxDistance, $minDistance}           metres on the sphere
//!                 [x, y] or {x, y}, distances beside it                    units of the plane
//! $nearSphere     the first form, or a pair with distances beside it       radians on the sphere
//! ```
//!
//! Values are tested as stored: a value that is not a geometry passes no test, without an error.
//! Lines and polygons do not exist on the plane, and pairs out of range do not exist on the sphere.

use nilometer_bson::number::Number;
use nilometer_bson::{ArrayRef, DocRef, Document, Value, ValueRef, array, doc};

use super::EARTH_RADIUS_METERS;
use super::coordinates::{LngLat, PlanePoint, legacy_pair};
use super::parse::{Geometry, ParsePurpose};
use super::plane::PlaneRegion;
use super::sphere::{Disc, SphereGeometry, SphereRegion};
use crate::error::{Error, Result};

/// The region of `$geoWithin`.
#[derive(Clone, Debug)]
pub enum Region {
    /// On the plane.
    Plane(PlaneRegion),
    /// On the sphere.
    Sphere(SphereRegion),
}

impl Region {
    /// Parses the operand of `$geoWithin`: one shape.
    pub fn parse(operand: ValueRef<'_>) -> Result<Self> {
        let document = object(operand, "$geoWithin")?;
        let mut region = None;
        for element in document {
            let value = element.value();
            let shape = match element.name() {
                "$geometry" => Self::Sphere(area(value)?),
                "$box" => Self::Plane(box_(value)?),
                "$polygon" => Self::Plane(polygon(value)?),
                "$center" => Self::Plane(center(value)?),
                "$centerSphere" => Self::Sphere(center_sphere(value)?),
                // Without effect for many versions.
                "$uniqueDocs" => continue,
                name => {
                    return Err(Error::bad_value(format!("unknown geo specifier: {name}")));
                }
            };
            if region.replace(shape).is_some() {
                return Err(Error::bad_value(
                    "$geoWithin takes one shape, but more than one was given",
                ));
            }
        }
        region.ok_or_else(|| Error::bad_value("$geoWithin has no shape"))
    }

    /// True if a stored value is within the region.
    pub fn covers(&self, value: ValueRef<'_>) -> bool {
        Geometry::stored(value).is_some_and(|geometry| self.covers_geometry(geometry))
    }

    /// True only if the whole region is within another.
    fn lies_within(&self, outer: &Region) -> bool {
        match (self, outer) {
            (Self::Plane(inner), Self::Plane(outer @ PlaneRegion::Box { .. })) => {
                let (low, high) = inner.bound();
                outer.covers(low) && outer.covers(high)
            }
            (Self::Sphere(SphereRegion::Polygons(inner)), Self::Sphere(outer)) => {
                outer.covers(inner)
            }
            (Self::Sphere(SphereRegion::Disc(inner)), Self::Sphere(SphereRegion::Disc(outer))) => {
                outer.covers_disc(inner)
            }
            _ => false,
        }
    }

    fn covers_geometry(&self, geometry: Geometry) -> bool {
        match self {
            Self::Plane(region) => geometry.plane_point().is_some_and(|p| region.covers(p)),
            Self::Sphere(region) => match geometry {
                Geometry::Shape(shape) => region.covers(&shape),
                point => point.place().is_some_and(|p| region.covers_point(p)),
            },
        }
    }
}

/// A geospatial test of one value.
#[derive(Clone, Debug)]
pub struct GeoTest {
    kind: GeoTestKind,
    operand: Document,
}

#[derive(Clone, Debug)]
pub(super) enum GeoTestKind {
    Within(Region),
    Intersects(SphereGeometry),
    /// Within the distances of a near query; the region contains everything within the maximum
    /// distance.
    Reach(Box<NearQuery>, Region),
}

impl GeoTest {
    /// Parses `$geoWithin`.
    pub fn within(operand: ValueRef<'_>) -> Result<Self> {
        Ok(Self {
            kind: GeoTestKind::Within(Region::parse(operand)?),
            operand: operand_of(operand),
        })
    }

    /// Parses `$geoIntersects`.
    pub fn intersects(operand: ValueRef<'_>) -> Result<Self> {
        let document = object(operand, "$geoIntersects")?;
        let mut fields = document.iter();
        let (Some(only), None) = (fields.next(), fields.next()) else {
            return Err(Error::bad_value("$geoIntersects takes one $geometry"));
        };
        if only.name() != "$geometry" {
            return Err(Error::bad_value(format!(
                "$geoIntersects not supported with provided geometry: {}",
                only.name()
            )));
        }
        let geometry = Geometry::parse(only.value(), ParsePurpose::Query)?
            .into_sphere()
            .ok_or_else(|| Error::bad_value("$geoIntersects needs a place on the globe"))?;
        Ok(Self {
            kind: GeoTestKind::Intersects(geometry),
            operand: operand_of(operand),
        })
    }

    /// Returns the operator's name in a filter.
    pub fn name(&self) -> &'static str {
        match self.kind {
            GeoTestKind::Within(_) | GeoTestKind::Reach(..) => "$geoWithin",
            GeoTestKind::Intersects(_) => "$geoIntersects",
        }
    }

    /// Returns the operand as written.
    pub fn operand(&self) -> &Document {
        &self.operand
    }

    /// Returns the region of a `$geoWithin`.
    pub fn region(&self) -> Option<&Region> {
        match &self.kind {
            GeoTestKind::Within(region) | GeoTestKind::Reach(_, region) => Some(region),
            GeoTestKind::Intersects(_) => None,
        }
    }

    /// Creates the test that a value is within the distances of a query. Shown as a `$geoWithin` of
    /// a circle.
    pub fn reach(query: &NearQuery) -> Self {
        Self {
            operand: query.reach_document(),
            kind: GeoTestKind::Reach(Box::new(query.clone()), query.reach()),
        }
    }

    /// True only if every value that passes this test also passes `wider`: for partial indexes.
    /// Conservative: may be false although the implication holds.
    pub fn implies(&self, wider: &GeoTest) -> bool {
        if self.name() == wider.name() && self.operand == wider.operand {
            return true;
        }
        match (&self.kind, &wider.kind) {
            (GeoTestKind::Within(inner), GeoTestKind::Within(outer)) => inner.lies_within(outer),
            _ => false,
        }
    }

    pub(super) fn kind(&self) -> &GeoTestKind {
        &self.kind
    }

    /// True if a stored value passes.
    pub fn test(&self, value: ValueRef<'_>) -> bool {
        match &self.kind {
            GeoTestKind::Within(region) => region.covers(value),
            GeoTestKind::Reach(query, _) => query.distance(value).is_some_and(|d| query.accepts(d)),
            GeoTestKind::Intersects(wanted) => match Geometry::stored(value) {
                Some(Geometry::Shape(shape)) => wanted.intersects(&shape),
                Some(point) => point
                    .place()
                    .is_some_and(|place| wanted.touches_point(place.to_unit())),
                None => false,
            },
        }
    }
}

fn operand_of(operand: ValueRef<'_>) -> Document {
    operand
        .as_document()
        .map_or_else(Document::new, DocRef::to_document)
}

fn object<'a>(operand: ValueRef<'a>, name: &str) -> Result<DocRef<'a>> {
    let document = operand
        .as_document()
        .ok_or_else(|| Error::bad_value(format!("{name} expects an object as its operand")))?;
    if document.is_empty() {
        return Err(Error::bad_value(format!("{name} has no shape")));
    }
    Ok(document)
}

fn area(value: ValueRef<'_>) -> Result<SphereRegion> {
    let kind = value.as_document().map_or("", |document| {
        document.get("type").as_str().unwrap_or_default()
    });
    match Geometry::parse(value, ParsePurpose::Query)? {
        Geometry::Shape(shape) if matches!(kind, "Polygon" | "MultiPolygon") => {
            Ok(SphereRegion::Polygons(shape))
        }
        _ => Err(Error::bad_value(
            "$geoWithin not supported with provided geometry: it must be a Polygon or MultiPolygon",
        )),
    }
}

/// Returns the members of an array, or of an object whose names are ignored.
fn members<'a>(value: ValueRef<'a>, shape: &str) -> Result<ArrayRef<'a>> {
    match value {
        ValueRef::Array(array) => Ok(array),
        ValueRef::Document(document) => Ok(ArrayRef::new(document)),
        _ => Err(Error::bad_value(format!(
            "{shape} must be an array or an object"
        ))),
    }
}

fn pair(value: ValueRef<'_>, shape: &str) -> Result<PlanePoint> {
    legacy_pair(value)
        .ok_or_else(|| Error::bad_value(format!("{shape}: Point must be two finite numbers")))
}

fn box_(value: ValueRef<'_>) -> Result<PlaneRegion> {
    let corners = members(value, "$box")?;
    if corners.len() != 2 {
        return Err(Error::bad_value("$box must have two corners"));
    }
    let (a, b) = (pair(corners.get(0), "$box")?, pair(corners.get(1), "$box")?);
    Ok(PlaneRegion::of_corners(a, b))
}

fn polygon(value: ValueRef<'_>) -> Result<PlaneRegion> {
    let corners = members(value, "$polygon")?;
    let points: Result<Vec<_>> = corners.iter().map(|c| pair(c, "$polygon")).collect();
    let points = points?;
    if points.len() < 3 {
        return Err(Error::bad_value("Polygon must have at least 3 points"));
    }
    Ok(PlaneRegion::Polygon(points))
}

fn circle(value: ValueRef<'_>, shape: &str) -> Result<(PlanePoint, f64)> {
    let parts = members(value, shape)?;
    if parts.len() != 2 {
        return Err(Error::bad_value(format!(
            "{shape} must have a center and a radius"
        )));
    }
    let center = pair(parts.get(0), shape)?;
    let radius = Number::of(parts.get(1)).map_or(f64::NAN, Number::to_f64);
    if radius.is_nan() || radius < 0.0 {
        return Err(Error::bad_value(format!(
            "{shape}: radius must be a non-negative number"
        )));
    }
    Ok((center, radius))
}

fn center(value: ValueRef<'_>) -> Result<PlaneRegion> {
    let (center, radius) = circle(value, "$center")?;
    Ok(PlaneRegion::Circle { center, radius })
}

fn center_sphere(value: ValueRef<'_>) -> Result<SphereRegion> {
    let (center, radius) = circle(value, "$centerSphere")?;
    let center = place(center)?;
    Ok(SphereRegion::Disc(Disc { center, radius }))
}

fn place(point: PlanePoint) -> Result<LngLat> {
    point.to_lng_lat().ok_or_else(|| {
        Error::bad_value(format!(
            "longitude/latitude is out of bounds, lng: {} lat: {}",
            point.x, point.y
        ))
    })
}

/// The unit of distances.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Metric {
    /// On the plane, in the units of its coordinates.
    Plane,
    /// On the sphere, in metres.
    Meters,
    /// On the sphere, in radians.
    Radians,
}

/// The parameters of a near query: centre, unit and limits of the distance.
#[derive(Clone, Debug)]
pub struct NearQuery {
    center: PlanePoint,
    /// The centre on the globe; present unless the metric is that of the plane.
    place: Option<LngLat>,
    metric: Metric,
    /// Minimum distance, inclusive.
    pub min: f64,
    /// Maximum distance, inclusive.
    pub max: f64,
    /// The operators as written.
    source: Document,
}

/// Names of the operators of near queries.
const NEAR_NAMES: [&str; 3] = ["$near", "$nearSphere", "$geoNear"];

/// Returns the near operator among `operators`, if there is one.
pub fn find_near_operator(operators: DocRef<'_>) -> Option<&str> {
    operators
        .iter()
        .map(|element| element.name())
        .find(|name| NEAR_NAMES.contains(name))
}

impl NearQuery {
    /// Creates a query from a point: distances are in metres for GeoJSON, and for a pair in radians
    /// (`spherical`) or units of the plane.
    pub fn from_point(near: ValueRef<'_>, spherical: bool) -> Result<Self> {
        let metric_of_pair = if spherical {
            Metric::Radians
        } else {
            Metric::Plane
        };
        let (center, metric) = match Geometry::parse(near, ParsePurpose::Query)? {
            Geometry::Legacy(pair) => (pair, metric_of_pair),
            Geometry::Point(place) => (place.to_plane(), Metric::Meters),
            Geometry::Shape(_) => {
                return Err(Error::bad_value(
                    "$near requires a point, not another geometry",
                ));
            }
        };
        let place = match metric {
            Metric::Plane => None,
            _ => Some(self::place(center)?),
        };
        Ok(Self {
            center,
            place,
            metric,
            min: 0.0,
            max: f64::INFINITY,
            source: Document::new(),
        })
    }

    /// Parses `$near`, `$nearSphere` or `$geoNear` among all operators on a path.
    pub fn parse(operators: DocRef<'_>) -> Result<Self> {
        let mut query = None;
        let (mut min, mut max) = (None, None);
        for element in operators {
            let value = element.value();
            match element.name() {
                name if NEAR_NAMES.contains(&name) => {
                    let parsed = Self::operand(name, value)?;
                    if query.replace(parsed).is_some() {
                        return Err(Error::bad_value("Too many geoNear expressions"));
                    }
                }
                "$minDistance" => min = Some(read_distance("$minDistance", value)?),
                "$maxDistance" => max = Some(read_distance("$maxDistance", value)?),
                name => {
                    return Err(Error::bad_value(format!(
                        "invalid argument in geo near query: {name}"
                    )));
                }
            }
        }
        let mut query = query.ok_or_else(|| {
            Error::bad_value("$minDistance and $maxDistance are only valid with $near")
        })?;
        if query.metric == Metric::Meters && (min.is_some() || max.is_some()) {
            return Err(Error::bad_value(
                "geo near accepts just one argument when querying for a GeoJSON point",
            ));
        }
        query.min = min.unwrap_or(query.min);
        query.max = max.unwrap_or(query.max);
        query.source = operators.to_document();
        Ok(query)
    }

    /// Parses the operand of one operator.
    fn operand(name: &str, value: ValueRef<'_>) -> Result<Self> {
        let spherical = name == "$nearSphere";
        let document = match value {
            ValueRef::Document(document) if document.contains("$geometry") => document,
            ValueRef::Document(_) | ValueRef::Array(_) => {
                let mut query = Self::from_point(value, spherical)?;
                // In the oldest form a third number is the maximum distance.
                if query.metric != Metric::Meters
                    && let Some(array) = value.as_array()
                    && array.len() > 2
                {
                    query.max = read_distance("$maxDistance", array.get(2))?;
                }
                return Ok(query);
            }
            _ => {
                return Err(Error::bad_value(
                    "near must be first in query: it needs a point",
                ));
            }
        };
        let mut query = Self::from_point(document.get("$geometry"), true)?;
        query.metric = Metric::Meters;
        for element in document {
            let value = element.value();
            match element.name() {
                "$geometry" => {}
                "$minDistance" => query.min = read_distance("$minDistance", value)?,
                "$maxDistance" => query.max = read_distance("$maxDistance", value)?,
                name => {
                    return Err(Error::bad_value(format!(
                        "invalid argument in geo near query: {name}"
                    )));
                }
            }
        }
        Ok(query)
    }

    /// Returns the query with the maximum distance limited to `max`.
    #[must_use]
    pub fn with_max_distance(&self, max: f64) -> Self {
        Self {
            max,
            ..self.clone()
        }
    }

    /// Returns the centre as a client writes it: a point of GeoJSON if distances are in metres, else a pair.
    pub fn point(&self) -> Value {
        let pair = array![self.center.x, self.center.y];
        match self.metric {
            Metric::Meters => doc! {"type": "Point", "coordinates": pair}.into(),
            Metric::Plane | Metric::Radians => pair,
        }
    }

    /// Returns the unit of distances.
    pub fn metric(&self) -> Metric {
        self.metric
    }

    /// True if distances are measured on the sphere.
    pub fn is_spherical(&self) -> bool {
        self.metric != Metric::Plane
    }

    /// Returns the operators as written.
    pub fn source(&self) -> &Document {
        &self.source
    }

    /// Returns the distance of a stored value, in the unit of the metric; `None` if it is not a
    /// geometry of this kind.
    pub fn distance(&self, value: ValueRef<'_>) -> Option<f64> {
        let geometry = Geometry::stored(value)?;
        let Some(from) = self.place else {
            return geometry.plane_point().map(|p| self.center.distance(p));
        };
        let radians = geometry.into_sphere()?.distance(from)?;
        Some(match self.metric {
            Metric::Meters => radians * EARTH_RADIUS_METERS,
            _ => radians,
        })
    }

    /// True if a distance is within the limits.
    pub fn accepts(&self, distance: f64) -> bool {
        self.min <= distance && distance <= self.max
    }

    /// Returns a region slightly larger than the maximum distance: everything outside is too far.
    pub fn reach(&self) -> Region {
        let max = self.max * (1.0 + 1e-9);
        match (self.place, self.metric) {
            (None, _) => Region::Plane(PlaneRegion::Circle {
                center: self.center,
                radius: max,
            }),
            (Some(center), Metric::Radians) => Region::Sphere(SphereRegion::Disc(Disc {
                center,
                radius: max + 1e-9,
            })),
            (Some(center), _) => Region::Sphere(SphereRegion::Disc(Disc {
                center,
                radius: max / EARTH_RADIUS_METERS + 1e-9,
            })),
        }
    }

    /// Returns the reach as the operand of a `$geoWithin`, for explain.
    fn reach_document(&self) -> Document {
        let center = nilometer_bson::array![self.center.x, self.center.y];
        match self.metric {
            Metric::Plane => doc! {"$center": nilometer_bson::array![center, self.max]},
            Metric::Radians => doc! {"$centerSphere": nilometer_bson::array![center, self.max]},
            Metric::Meters => {
                doc! {"$centerSphere": nilometer_bson::array![center, self.max / EARTH_RADIUS_METERS]}
            }
        }
    }
}

/// Parses a distance: a number that is not negative.
pub fn read_distance(name: &str, value: ValueRef<'_>) -> Result<f64> {
    let number = Number::of(value)
        .map(Number::to_f64)
        .filter(|number| !number.is_nan())
        .ok_or_else(|| Error::bad_value(format!("{name} must be a number")))?;
    if number < 0.0 {
        return Err(Error::bad_value(format!("{name} must be non-negative")));
    }
    Ok(number)
}

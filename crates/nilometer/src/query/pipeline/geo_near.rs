//! `$geoNear`, and the order that `$near` gives to a `find`.
//!
//! ```text
//! {$geoNear: {near, distanceField, …}}  ── parse ──►   GeoNearStage     the options
//!                                       ── settle ─►   $match of `query` and of the distance limits
//!                                                      GeoDistance: writes distance and location
//!                                                      $sort by the distance
//! ```
//!
//! The geometry field, and whether an index allows the stage, depend on the collection. The planner therefore settles
//! the stage when it knows the collection. A `find` with a `$near` is planned in the same way but writes no fields:
//! [`GeoDistanceStage`] itself sorts the documents.

use std::sync::Arc;

use nilometer_bson::number::Number;
use nilometer_bson::{DocumentBuilder, Value, ValueRef, doc};

use super::needs::Needs;
use super::{PipelineContext, PipelineStage, Stage};
use crate::error::{Error, ErrorCode, Result, location};
use crate::eval::expression::parse_path;
use crate::eval::matcher::{MatchExpression, MatchPath};
use crate::eval::projection::MetaField;
use crate::eval::{Dependencies, Expression, ParseContext};
use crate::geo::NearQuery;

/// Removed options with their error codes.
const GONE: [(&str, i32); 3] = [("start", 50_856), ("num", 50_857), ("limit", 50_858)];

/// The point of reference and the distance limits.
#[derive(Clone, Debug)]
pub enum NearFrom {
    /// Options of the stage: constant expressions, which may use variables.
    Stage {
        /// The point of reference.
        near: Expression,
        /// True if a coordinate pair is a location on the sphere.
        spherical: bool,
        /// Smallest distance.
        min: Option<Expression>,
        /// Largest distance.
        max: Option<Expression>,
    },
    /// The `$near` in the filter of a `find`.
    Find(Arc<NearQuery>),
}

/// The parsed options, before the collection is known.
#[derive(Clone, Debug)]
pub struct GeoNearStage {
    /// The point of reference and the distance limits.
    pub from: NearFrom,
    /// The path of the geometry.
    pub key: Option<MatchPath>,
    /// Further conditions on documents.
    pub query: Option<MatchExpression>,
    /// The fields to write and the order of documents.
    pub output: GeoNearOutput,
}

/// The fields to write and the order of documents.
#[derive(Clone, Debug)]
pub struct GeoNearOutput {
    /// The field that receives the distance.
    pub distance_field: Option<Arc<str>>,
    /// The field that receives the location measured to.
    pub include_locs: Option<Arc<str>>,
    /// The metadata that later stages read, added as fields.
    pub adds: Vec<MetaField>,
    /// Factor applied to the distance.
    pub multiplier: f64,
    /// True if documents are returned nearest first without a `$sort`.
    pub is_ordered: bool,
    source: Value,
}

impl GeoNearStage {
    /// Returns the stage for the `$near` of a `find` and the rest of its filter. `is_ordered` is true unless the `find`
    /// specifies another order.
    pub fn of_find(
        path: MatchPath,
        near: Arc<NearQuery>,
        rest: MatchExpression,
        is_ordered: bool,
    ) -> Self {
        Self {
            output: GeoNearOutput {
                distance_field: None,
                include_locs: None,
                adds: Vec::new(),
                multiplier: 1.0,
                is_ordered,
                source: near.source().clone().into(),
            },
            from: NearFrom::Find(near),
            key: Some(path),
            query: Some(rest).filter(|rest| !matches!(rest, MatchExpression::AlwaysTrue)),
        }
    }

    /// Returns the stage in the form in which a client writes it, with the values of its constants. That of a `find` names a
    /// field for the distance, which is not written.
    #[must_use]
    pub fn with_constants(&self, query: &NearQuery) -> Self {
        let mut spec = DocumentBuilder::new();
        spec.append("near", doc! {"$literal": query.point()});
        let field = self.output.distance_field.as_deref();
        spec.append("distanceField", field.unwrap_or("distance"));
        if let Some(key) = &self.key {
            spec.append("key", key.as_str());
        }
        spec.append("spherical", query.is_spherical());
        spec.append("minDistance", query.min);
        if query.max.is_finite() {
            spec.append("maxDistance", query.max);
        }
        match (&self.from, self.output.source.as_ref()) {
            (NearFrom::Stage { .. }, ValueRef::Document(written)) => {
                if let Some(conditions) = written.get("query").as_document() {
                    spec.append("query", conditions.to_document());
                }
            }
            _ => {
                if let Some(conditions) = &self.query {
                    spec.append("query", conditions.to_document());
                }
            }
        }
        spec.append("distanceMultiplier", self.output.multiplier);
        if let Some(field) = self.output.include_locs.as_deref() {
            spec.append("includeLocs", field);
        }
        let mut out = self.clone();
        out.output.source = spec.finish().into();
        out
    }

    /// Wraps the unsettled specification in a stage.
    pub fn into_stage(self) -> Stage {
        Stage::GeoNear(Arc::new(self))
    }
}

impl PipelineStage for GeoNearStage {
    fn name(&self) -> &'static str {
        "$geoNear"
    }

    fn explain(&self, name: &str, out: &mut DocumentBuilder) {
        out.append(name, self.output.source.clone());
    }

    fn needs(&self, _: &Needs) -> Needs {
        Needs::All
    }
}

/// Returns the error for a `$geoNear` that is not the first stage.
pub(crate) fn not_first() -> Error {
    Error::location(
        location::GEO_NEAR_NOT_FIRST,
        "$geoNear was not the first stage in the pipeline after optimization. Is optimization \
         disabled or inhibited?",
    )
}

/// A settled `$geoNear`: measures distances, drops documents outside the limits, writes fields or sorts.
#[derive(Clone, Debug)]
pub struct GeoDistanceStage {
    /// The path of the geometry.
    pub path: MatchPath,
    /// The point of reference and the distance limits.
    pub query: Arc<NearQuery>,
    /// The fields to write and the order of documents.
    pub output: GeoNearOutput,
}

impl PipelineStage for GeoDistanceStage {
    fn name(&self) -> &'static str {
        "$geoNear"
    }

    fn explain(&self, name: &str, out: &mut DocumentBuilder) {
        out.append(name, self.output.source.clone());
    }

    fn needs(&self, after: &Needs) -> Needs {
        let mut needs = after.clone();
        needs.add_path(self.path.as_str());
        // A dotted field is written into an existing object.
        let written = [&self.output.distance_field, &self.output.include_locs];
        for field in written.into_iter().flatten() {
            needs.add_path(field);
        }
        needs
    }
}

#[derive(Default)]
struct Options<'a> {
    near: Option<ValueRef<'a>>,
    distance_field: Option<&'a str>,
    include_locs: Option<&'a str>,
    key: Option<&'a str>,
    spherical: bool,
    query: Option<ValueRef<'a>>,
    min: Option<ValueRef<'a>>,
    max: Option<ValueRef<'a>>,
    multiplier: Option<f64>,
}

impl<'a> Options<'a> {
    fn read(&mut self, name: &str, value: ValueRef<'a>) -> Result<()> {
        match name {
            "near" => self.near = Some(value),
            "distanceField" => {
                self.distance_field = Some(string(
                    value,
                    name,
                    ErrorCode(location::GEO_NEAR_DISTANCE_FIELD_NOT_STRING),
                )?);
            }
            "includeLocs" => {
                self.include_locs = Some(string(
                    value,
                    name,
                    ErrorCode(location::GEO_NEAR_INCLUDE_LOCS_NOT_STRING),
                )?);
            }
            "key" => {
                let key = string(value, name, ErrorCode::TypeMismatch)?;
                if key.is_empty() {
                    return Err(Error::bad_value(
                        "$geoNear parameter 'key' cannot be the empty string",
                    ));
                }
                self.key = Some(key);
            }
            "spherical" => self.spherical = crate::eval::expression::is_true(value),
            "query" => match value {
                ValueRef::Document(_) => self.query = Some(value),
                _ => return Err(Error::type_mismatch("$geoNear 'query' must be an object")),
            },
            "minDistance" => self.min = Some(value),
            "maxDistance" => self.max = Some(value),
            "distanceMultiplier" => self.multiplier = Some(multiplier(value)?),
            // This option has had no effect for many versions.
            "uniqueDocs" => {}
            name => {
                if let Some((_, code)) = GONE.iter().find(|(gone, _)| *gone == name) {
                    return Err(Error::location(
                        *code,
                        format!(
                            "$geoNear no longer supports the '{name}' parameter. Use a $limit stage instead."
                        ),
                    ));
                }
                return Err(Error::unknown_field(format_args!("$geoNear.{name}")));
            }
        }
        Ok(())
    }
}

fn string<'a>(value: ValueRef<'a>, name: &str, code: ErrorCode) -> Result<&'a str> {
    value.as_str().ok_or_else(|| {
        Error::new(
            code,
            format!(
                "$geoNear requires that '{name}' is a string, found {}",
                value.type_name()
            ),
        )
    })
}

fn multiplier(value: ValueRef<'_>) -> Result<f64> {
    let number = Number::of(value)
        .map(Number::to_f64)
        .ok_or_else(|| Error::type_mismatch("$geoNear 'distanceMultiplier' must be a number"))?;
    if number.is_nan() || number < 0.0 {
        return Err(Error::bad_value(
            "$geoNear 'distanceMultiplier' must be nonnegative",
        ));
    }
    Ok(number)
}

/// Parses an expression that must not read the document.
fn constant(value: ValueRef<'_>, cx: &ParseContext, name: &str, code: i32) -> Result<Expression> {
    let expression = Expression::parse(value, cx)?;
    let mut dependencies = Dependencies::default();
    expression.dependencies(&mut dependencies);
    if !dependencies.reads_nothing() || dependencies.random {
        return Err(Error::location(
            code,
            format!("$geoNear requires '{name}' to be a constant expression"),
        ));
    }
    Ok(expression)
}

/// Reads the options without checking which ones are missing.
fn read_options(value: ValueRef<'_>) -> Result<Options<'_>> {
    let Some(spec) = value.as_document() else {
        return Err(Error::location(
            location::OBJECT_EXPECTED,
            "invalid parameter: expected an object ($geoNear)",
        ));
    };
    let mut options = Options::default();
    for element in spec {
        options.read(element.name(), element.value())?;
    }
    Ok(options)
}

/// Parses `$geoNear`.
pub(super) fn parse(
    cx: &PipelineContext,
    _: &'static str,
    value: ValueRef<'_>,
    out: &mut Vec<Stage>,
) -> Result<()> {
    let options = read_options(value)?;
    let near = options.near.ok_or_else(|| {
        Error::location(
            location::GEO_NEAR_NEAR_MISSING,
            "$geoNear requires a 'near' argument",
        )
    })?;
    let distance_field = options.distance_field.ok_or_else(|| {
        Error::location(
            location::GEO_NEAR_DISTANCE_FIELD_NOT_STRING,
            "$geoNear requires a 'distanceField' option as a String",
        )
    })?;
    parse_path(distance_field)?;
    if let Some(path) = options.include_locs {
        parse_path(path)?;
    }
    let expressions = &cx.expressions;
    let limit = |value: Option<ValueRef<'_>>, name, code| {
        let parsed = value.map(|value| constant(value, expressions, name, code));
        parsed.transpose()
    };
    let query = match options.query {
        Some(ValueRef::Document(query)) => {
            Some(MatchExpression::parse(query, expressions)?.simplify())
        }
        _ => None,
    };
    let stage = GeoNearStage {
        from: NearFrom::Stage {
            near: constant(
                near,
                expressions,
                "near",
                location::GEO_NEAR_NEAR_NOT_CONSTANT,
            )?,
            spherical: options.spherical,
            min: limit(
                options.min,
                "minDistance",
                location::GEO_NEAR_MIN_NOT_CONSTANT,
            )?,
            max: limit(
                options.max,
                "maxDistance",
                location::GEO_NEAR_MAX_NOT_CONSTANT,
            )?,
        },
        key: options.key.map(MatchPath::new),
        query,
        output: GeoNearOutput {
            distance_field: Some(distance_field.into()),
            include_locs: options.include_locs.map(Arc::from),
            adds: Vec::new(),
            multiplier: options.multiplier.unwrap_or(1.0),
            is_ordered: false,
            source: value.to_value(),
        },
    };
    out.push(stage.into_stage());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::testing::code;
    use nilometer_bson::{Value, array, doc};

    #[test]
    fn arguments_are_checked() {
        let of = |spec: nilometer_bson::Document| code(array![doc! {"$geoNear": spec}]);
        let near = array![1, 2];
        assert_eq!(of(doc! {"near": near.clone(), "distanceField": "d"}), 0);
        let mut full = nilometer_bson::DocumentBuilder::new();
        for (name, value) in [
            ("near", near.clone()),
            ("distanceField", "a.d".into()),
            ("key", "loc".into()),
            ("spherical", true.into()),
            ("minDistance", 1.into()),
            ("maxDistance", doc! {"$add": array![1, 2]}.into()),
            ("query", doc! {"a": 1}.into()),
            ("distanceMultiplier", 2.into()),
            ("includeLocs", "l".into()),
        ] {
            full.append(name, value);
        }
        assert_eq!(of(full.finish()), 0);
        assert_eq!(code(array![doc! {"$geoNear": 1}]), 10_065);
        assert_eq!(
            of(doc! {"distanceField": "d"}),
            crate::error::location::GEO_NEAR_NEAR_MISSING
        );
        assert_eq!(of(doc! {"near": near.clone()}), 16_606);
        for (name, value, expected) in [
            ("distanceField", Value::from(1), 16_606),
            ("includeLocs", 1.into(), 16_607),
            ("key", 1.into(), 14),
            ("key", "".into(), 2),
            ("query", 1.into(), 14),
            (
                "query",
                doc! {"l": doc! {"$near": array![1, 2]}}.into(),
                5_626_500,
            ),
            ("minDistance", "$a".into(), 7_555_701),
            ("maxDistance", "$a".into(), 7_555_702),
            ("distanceMultiplier", (-1).into(), 2),
            ("distanceMultiplier", "x".into(), 14),
            ("num", 1.into(), 50_857),
            ("limit", 1.into(), 50_858),
            ("foo", 1.into(), 40_415),
        ] {
            let mut spec = nilometer_bson::DocumentBuilder::new();
            spec.append("near", near.clone());
            if name != "distanceField" {
                spec.append("distanceField", "d");
            }
            spec.append(name, value);
            assert_eq!(of(spec.finish()), expected, "{name}");
        }
        let behind = array![
            doc! {"$limit": 1},
            doc! {"$geoNear": doc! {"near": near, "distanceField": "d"}}
        ];
        assert_eq!(code(behind), 40_602);
    }
}

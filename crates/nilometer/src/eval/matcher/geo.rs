//! Geospatial operators: parsing and testing of one document for `$geoWithin`, `$geoIntersects`,
//! `$near`, `$nearSphere` and `$_internalBucketGeoWithin`. [`crate::geo`] defines the shapes.
//!
//! A `$near` is a test (the distance is between minimum and maximum) and an order (nearest first).
//! The test is evaluated here; a caller that sorts by distance takes the `$near` out of the filter
//! with [`MatchExpression::take_near`]. It is valid only where the order applies to the whole
//! query: in the filter of a `find`, or in an `$and` there. Elsewhere it is a parse error.

use std::sync::Arc;

use nilometer_bson::{DocRef, Document, Element, ValueRef, doc};

use super::MatchExpression;
use super::parse::{FilterLevel, FilterParser};
use super::path::{LeafArrays, MatchPath};
use super::text::TextAllowance;
use crate::error::{Error, ErrorCode, Result, location};
use crate::eval::ParseContext;
use crate::geo::{GeoTest, NearQuery, find_near_operator, may_contain};

/// Whether a `$near` is allowed at the current place of a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NearAllowance {
    /// Not allowed in this filter.
    Forbidden,
    /// Allowed.
    Allowed,
    /// Allowed in this filter, but not at this depth.
    TooDeep,
}

impl NearAllowance {
    /// Returns the allowance inside an operator other than `$and`.
    pub(super) fn deeper(self) -> Self {
        match self {
            Self::Forbidden => Self::Forbidden,
            Self::Allowed | Self::TooDeep => Self::TooDeep,
        }
    }
}

/// `$_internalBucketGeoWithin`: tests a bucket document by the bounds of a field.
#[derive(Clone, Debug)]
pub struct BucketGeoTest {
    test: GeoTest,
    field: Arc<str>,
    min: MatchPath,
    max: MatchPath,
}

impl BucketGeoTest {
    /// Creates a test of the bounds of `field`.
    pub fn new(test: GeoTest, field: &str) -> Self {
        Self {
            test,
            field: field.into(),
            min: MatchPath::new(&format!("control.min.{field}")),
            max: MatchPath::new(&format!("control.max.{field}")),
        }
    }

    /// True if the bucket may contain a measurement that passes.
    pub fn matches(&self, bucket: DocRef<'_>) -> bool {
        let bound = |path: &MatchPath| path.value_without_arrays(bucket);
        match (bound(&self.min), bound(&self.max)) {
            (Some(min), Some(max)) => may_contain(&self.test, min, max),
            // The path leads into an array.
            _ => true,
        }
    }

    /// Returns the paths it reads.
    pub fn paths(&self) -> [&MatchPath; 2] {
        [&self.min, &self.max]
    }

    /// Returns the operator as a filter on buckets.
    pub fn to_document(&self) -> Document {
        bucket_document(&self.test, &self.field)
    }
}

/// Returns `{$_internalBucketGeoWithin: …}`.
pub fn bucket_document(test: &GeoTest, field: &str) -> Document {
    let operand = doc! {"withinRegion": test.operand().clone(), "field": field};
    doc! {"$_internalBucketGeoWithin": operand}
}

/// The field and the parameters of a `$near`.
pub type NearCondition = (MatchPath, Arc<NearQuery>);

impl MatchExpression {
    /// Parses a filter in which a `$near` may define the order, and which may have a `$text`.
    pub fn parse_with_near(filter: DocRef<'_>, ctx: &ParseContext) -> Result<Self> {
        let mut parser = FilterParser::new(ctx, NearAllowance::Allowed);
        parser.text = TextAllowance::Allowed;
        let parsed = parser.document(filter)?;
        parsed.check_texts()?;
        Ok(parsed)
    }

    /// Splits the filter into its `$near` and the rest.
    pub fn take_near(self) -> Result<(Option<NearCondition>, Self)> {
        let mut near = None;
        let mut rest = Vec::new();
        for conjunct in self.into_conjuncts() {
            match conjunct {
                Self::Near { path, query } => {
                    if near.replace((path, query)).is_some() {
                        return Err(Error::bad_value("Too many geoNear expressions"));
                    }
                }
                other => rest.push(other),
            }
        }
        Ok((near, super::rewrite::and(rest)))
    }
}

/// Returns the smallest distance within the limits of a value at the path.
pub fn near_distance(
    path: &MatchPath,
    query: &NearQuery,
    root: ValueRef<'_>,
) -> Result<Option<(f64, nilometer_bson::Value)>> {
    let mut nearest: Option<(f64, nilometer_bson::Value)> = None;
    path.visit(root, LeafArrays::Expand, &mut |value, _| {
        let distance = query.distance(value).filter(|d| query.accepts(*d));
        if let Some(distance) = distance
            && nearest.as_ref().is_none_or(|(known, _)| distance < *known)
        {
            nearest = Some((distance, value.to_value()));
        }
        Ok(false)
    })?;
    Ok(nearest)
}

/// Parses `$geoWithin` and its old name.
pub(super) fn within(path: &MatchPath, element: Element<'_>) -> Result<MatchExpression> {
    Ok(MatchExpression::Geo {
        path: path.clone(),
        test: Arc::new(GeoTest::within(element.value())?),
    })
}

/// Parses `$geoIntersects`.
pub(super) fn intersects(path: &MatchPath, element: Element<'_>) -> Result<MatchExpression> {
    Ok(MatchExpression::Geo {
        path: path.clone(),
        test: Arc::new(GeoTest::intersects(element.value())?),
    })
}

/// Parses `$near` or `$nearSphere` with the operators beside it.
pub(super) fn near(
    parser: FilterParser<'_>,
    path: &MatchPath,
    operators: DocRef<'_>,
) -> Result<MatchExpression> {
    match parser.near {
        NearAllowance::Forbidden => Err(Error::location(
            location::NEAR_NOT_ALLOWED,
            "$geoNear, $near, and $nearSphere are not allowed in this context, as these operators \
             require sorting geospatial data. If you do not need sort, consider using $geoWithin \
             instead.",
        )),
        NearAllowance::TooDeep => Err(Error::bad_value("geoNear must be top-level expr")),
        NearAllowance::Allowed => Ok(MatchExpression::Near {
            path: path.clone(),
            query: Arc::new(NearQuery::parse(operators)?),
        }),
    }
}

/// Checks `$minDistance`, `$maxDistance`, which are parsed with their `$near`.
pub(super) fn distance_limit(element: Element<'_>, operators: DocRef<'_>) -> Result<()> {
    match find_near_operator(operators) {
        Some(_) => Ok(()),
        None => Err(Error::bad_value(format!(
            "{} is only valid beside $near or $nearSphere",
            element.name()
        ))),
    }
}

/// Parses `$_internalBucketGeoWithin: {withinRegion, field}`.
pub(super) fn bucket(parser: FilterParser<'_>, element: Element<'_>) -> Result<MatchExpression> {
    const NAME: &str = "$_internalBucketGeoWithin";
    if parser.level == FilterLevel::Element {
        return Err(Error::new(
            ErrorCode::QueryFeatureNotAllowed,
            format!("{NAME} is not allowed within $elemMatch"),
        ));
    }
    let operand = element
        .value()
        .as_document()
        .ok_or_else(|| Error::type_mismatch(format!("{NAME} must be an object")))?;
    let (mut region, mut field) = (None, None);
    for element in operand {
        match (element.name(), element.value()) {
            ("withinRegion", value @ ValueRef::Document(_)) => region = Some(value),
            ("field", ValueRef::String(name)) => field = Some(name),
            (name @ ("withinRegion" | "field"), value) => {
                return Err(Error::type_mismatch(format!(
                    "{NAME}: '{name}' must not be of type {}",
                    value.type_name()
                )));
            }
            (name, _) => {
                return Err(Error::failed_to_parse(format!(
                    "{NAME}: unknown parameter '{name}'"
                )));
            }
        }
    }
    let (Some(region), Some(field)) = (region, field) else {
        return Err(Error::failed_to_parse(format!(
            "{NAME} needs 'withinRegion' and 'field'"
        )));
    };
    let test = match GeoTest::within(region) {
        // The form of a `$geoIntersects` with lines or points.
        Err(_) if matches!(region, ValueRef::Document(d) if d.contains("$geometry")) => {
            GeoTest::intersects(region)?
        }
        parsed => parsed?,
    };
    Ok(MatchExpression::BucketGeo(Arc::new(BucketGeoTest::new(
        test, field,
    ))))
}

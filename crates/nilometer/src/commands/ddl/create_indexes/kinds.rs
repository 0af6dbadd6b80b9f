//! Options and rules of hashed, geometric, wildcard and text indexes.

use nilometer_bson::number::Number;
use nilometer_bson::{Document, DocumentBuilder, ValueRef};

use super::key::{KeyShape, refused};
use super::spec::{flag, keep};
use super::text;
use crate::args::Args;
use crate::catalog::IndexSpec;
use crate::error::{Error, Result, location};

/// The accepted versions of the `2dsphere` index, and the created one.
const SPHERE_VERSIONS: std::ops::RangeInclusive<i64> = 1..=3;
const SPHERE_VERSION: i32 = 3;

/// The accepted bits of a coordinate of a `2d` index.
const PLANE_BITS: std::ops::RangeInclusive<i64> = 1..=32;

/// The levels of cells of a `2dsphere` index.
const SPHERE_LEVELS: std::ops::RangeInclusive<i64> = 0..=30;

/// Returns the options of one index type, checked, and stored unchanged.
pub(super) fn options(args: &Args<'_>, shape: KeyShape) -> Result<Document> {
    if !args.value("bucketSize").is_missing() {
        return Err(refused(
            "'bucketSize' is for kinds of index that are not supported",
        ));
    }
    if shape.plugin != Some("text") {
        text::refuse_options(args)?;
    }
    let mut kept = DocumentBuilder::new();
    flag(args, "background")?;
    flag(args, "dropDups")?;
    if let Some(engines) = args.document("storageEngine")? {
        for engine in engines {
            if !matches!(engine.value(), ValueRef::Document(_)) {
                return Err(Error::bad_value(format!(
                    "'storageEngine.{}' has to be an embedded document",
                    engine.name()
                )));
            }
        }
    }
    keep(args, &["background", "storageEngine"], &mut kept);
    sphere(args, shape, &mut kept)?;
    plane(args)?;
    keep(args, &["bits", "min", "max"], &mut kept);
    projection(args, shape)?;
    keep(args, &["wildcardProjection"], &mut kept);
    Ok(kept.finish())
}

fn sphere(args: &Args<'_>, shape: KeyShape, kept: &mut DocumentBuilder) -> Result<()> {
    let version = args.value("2dsphereIndexVersion");
    let is_sphere = matches!(shape.plugin, Some("2dsphere" | "2dsphere_bucket"));
    match version.as_exact_i64() {
        Some(given) if SPHERE_VERSIONS.contains(&given) => {
            keep(args, &["2dsphereIndexVersion"], kept);
        }
        None if version.is_missing() => {
            kept.append("2dsphereIndexVersion", is_sphere.then_some(SPHERE_VERSION));
        }
        _ => {
            return Err(refused(
                "unsupported geo index version, only support versions: [1,2,3]",
            ));
        }
    }
    for name in ["finestIndexedLevel", "coarsestIndexedLevel"] {
        let level = args.value(name);
        let fits = level
            .as_exact_i64()
            .is_some_and(|level| SPHERE_LEVELS.contains(&level));
        if !level.is_missing() && !fits {
            return Err(refused(format!("'{name}' must be a level from 0 to 30")));
        }
    }
    keep(args, &["finestIndexedLevel", "coarsestIndexedLevel"], kept);
    Ok(())
}

fn plane(args: &Args<'_>) -> Result<()> {
    let number = |name: &str| match args.value(name) {
        ValueRef::Missing => Ok(None),
        value => match Number::of(value).map(Number::to_f64) {
            Some(number) => Ok(Some(number)),
            None => Err(args.wrong_type(name, value, "number")),
        },
    };
    let (bits, min, max) = (number("bits")?, number("min")?, number("max")?);
    if bits.is_some() {
        let whole = args.value("bits").as_exact_i64();
        if !whole.is_some_and(|bits| PLANE_BITS.contains(&bits)) {
            return Err(Error::invalid_options(
                "bits in geo index must be between 1 and 32",
            ));
        }
    }
    let (min, max) = (min.unwrap_or(-180.0), max.unwrap_or(180.0));
    let has_area = min < max && (max - min).is_finite();
    if has_area {
        Ok(())
    } else {
        Err(Error::invalid_options(
            "region for hash must be valid and have positive area",
        ))
    }
}

fn projection(args: &Args<'_>, shape: KeyShape) -> Result<()> {
    let given = match args.value("wildcardProjection") {
        ValueRef::Missing if shape.is_whole_wildcard && shape.fields > 1 => {
            return Err(refused(
                "A compound wildcard index over '$**' needs a 'wildcardProjection' that leaves out its other fields",
            ));
        }
        ValueRef::Missing => return Ok(()),
        ValueRef::Document(given) => given,
        other => return Err(args.wrong_type("wildcardProjection", other, "object")),
    };
    if shape.plugin != Some("wildcard") {
        return Err(Error::bad_value(
            "The field 'wildcardProjection' is only allowed in a wildcard index",
        ));
    }
    if !shape.is_whole_wildcard {
        return Err(Error::failed_to_parse(
            "The field 'wildcardProjection' is only allowed when 'key' is {\"$**\": ±1}",
        ));
    }
    if given.is_empty() {
        return Err(Error::failed_to_parse(
            "The 'wildcardProjection' field can't be an empty object",
        ));
    }
    Ok(())
}

/// Refuses options that this index type cannot have.
pub(super) fn check(spec: &IndexSpec, shape: KeyShape, plugin: &str) -> Result<()> {
    if plugin == "hashed" && spec.refuses_duplicates() {
        return Err(Error::location(
            location::HASHED_UNIQUE,
            "Currently hashed indexes cannot guarantee uniqueness. Use a regular index.",
        ));
    }
    if plugin == "wildcard" {
        let refusals = [
            (spec.refuses_duplicates(), "unique"),
            (spec.sparse, "sparse"),
            (spec.expire_after_seconds.is_some(), "expireAfterSeconds"),
        ];
        if let Some((_, option)) = refusals.iter().find(|(given, _)| *given) {
            return Err(refused(format!(
                "Index type 'wildcard' does not support the '{option}' option"
            )));
        }
        if shape.fields > 1 && spec.key.iter().any(|e| e.value().as_str().is_some()) {
            return Err(refused(
                "a compound wildcard index has ascending and descending fields only",
            ));
        }
    }
    if matches!(plugin, "2d" | "text") && spec.collation.is_some() {
        return Err(refused(format!(
            "Index type '{plugin}' does not support collation; give it {{collation: {{locale: \"simple\"}}}}"
        )));
    }
    if plugin == "text" && spec.expire_after_seconds.is_some() {
        return Err(refused(
            "TTL indexes are single-field indexes, compound indexes do not support TTL",
        ));
    }
    Ok(())
}

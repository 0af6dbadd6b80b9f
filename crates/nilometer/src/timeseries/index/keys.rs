//! Converts keys of indexes between the user's fields and those of bucket documents.
//!
//! | user | buckets |
//! |---|---|
//! | `m`, `m.a` (any kind), `m.$**` | `meta`, `meta.a`, `meta.$**` |
//! | `t: 1` or `x: 1` | `control.min.x: 1, control.max.x: 1` |
//! | `t: -1` or `x: -1` | `control.max.x: -1, control.min.x: -1` |
//! | `x: "2dsphere"` | `data.x: "2dsphere_bucket"` |
//!
//! The minimum is first in ascending and the maximum in descending keys, so a scan reads the buckets in the order of their
//! first relevant measurement.

use nilometer_bson::{DocRef, Document, DocumentBuilder, Element, ValueRef};

use crate::catalog::TimeseriesOptions;
use crate::error::{Error, ErrorCode, Result};

/// The name of the metadata in a bucket document.
const META: &str = "meta";

/// The end of a wildcard path.
const WILDCARD: &str = "$**";

/// A key over buckets, and the kinds of fields in the user's key.
#[derive(Debug)]
pub(crate) struct BucketKey {
    pub(crate) key: Document,
    /// The number of the user's parts.
    pub(crate) user_parts: usize,
    /// One part is the time field.
    pub(crate) has_time: bool,
    /// One part is a measurement field.
    pub(crate) has_measurement: bool,
}

fn refused(reason: impl Into<String>) -> Error {
    Error::new(ErrorCode::CannotCreateIndex, reason)
}

/// Returns true for a descending part and false for an ascending one; `None` if the value is not a direction.
fn is_descending(value: ValueRef<'_>) -> Option<bool> {
    let number = match value {
        ValueRef::Int32(n) => f64::from(n),
        ValueRef::Int64(n) => n as f64,
        ValueRef::Double(n) => n,
        ValueRef::Decimal128(n) => n.to_f64(),
        _ => return None,
    };
    // Zero and NaN are not directions.
    (number != 0.0 && !number.is_nan()).then_some(number < 0.0)
}

/// Returns the rest of a path at or below the metadata field, with its leading dot.
fn below_meta<'p>(options: &TimeseriesOptions, path: &'p str) -> Option<&'p str> {
    let rest = path.strip_prefix(options.meta_field.as_deref()?)?;
    (rest.is_empty() || rest.starts_with('.')).then_some(rest)
}

/// Returns the name of a metadata path in buckets; `None` for another path.
pub fn rename_meta(options: &TimeseriesOptions, path: &str) -> Option<String> {
    below_meta(options, path).map(|rest| format!("{META}{rest}"))
}

/// Converts the user's key to one over buckets.
pub(crate) fn to_buckets(options: &TimeseriesOptions, key: DocRef<'_>) -> Result<BucketKey> {
    let mut found = BucketKey {
        key: Document::new(),
        user_parts: 0,
        has_time: false,
        has_measurement: false,
    };
    let mut out = DocumentBuilder::new();
    for part in key {
        found.user_parts += 1;
        if part.value().as_str() == Some("text") {
            return Err(Error::invalid_options(
                "Text indexes are not supported on time-series collections",
            ));
        }
        if let Some(rest) = below_meta(options, part.name()) {
            check_meta_part(part)?;
            out.append_ref(&format!("{META}{rest}"), part.value());
            continue;
        }
        let is_time = part.name() == options.time_field;
        found.has_time |= is_time;
        found.has_measurement |= !is_time;
        add_measurement_part(&mut out, part, is_time)?;
    }
    if found.user_parts == 0 {
        return Err(refused("Index keys cannot be an empty object"));
    }
    found.key = out.finish();
    Ok(found)
}

fn check_meta_part(part: Element<'_>) -> Result<()> {
    let is_wildcard = part.name().ends_with(WILDCARD);
    match part.value() {
        value if is_descending(value).is_some() => Ok(()),
        ValueRef::String("hashed" | "2d" | "2dsphere") if !is_wildcard => Ok(()),
        _ => Err(refused(format!(
            "Values of the key pattern of '{}' must be 1, -1, 'hashed', '2d' or '2dsphere'",
            part.name()
        ))),
    }
}

fn add_measurement_part(out: &mut DocumentBuilder, part: Element<'_>, is_time: bool) -> Result<()> {
    let path = part.name();
    if path == WILDCARD || path.ends_with(".$**") {
        return Err(refused(
            "Wildcard indexes on time-series collections are only allowed on the metadata",
        ));
    }
    if path.starts_with('$') {
        return Err(refused(format!("Index key cannot name the field '{path}'")));
    }
    let (min, max) = (format!("control.min.{path}"), format!("control.max.{path}"));
    match (is_descending(part.value()), part.value()) {
        (Some(false), direction) => {
            out.append_ref(&min, direction);
            out.append_ref(&max, direction);
        }
        (Some(true), direction) => {
            out.append_ref(&max, direction);
            out.append_ref(&min, direction);
        }
        (None, ValueRef::String("2dsphere")) if !is_time => {
            out.append(&format!("data.{path}"), "2dsphere_bucket");
        }
        (None, _) => {
            return Err(refused(format!(
                "Values of the key pattern of '{path}' on a time-series collection must be 1, -1 or \
                 '2dsphere'"
            )));
        }
    }
    Ok(())
}

/// Converts a key over buckets to the user's key; `None` if no user's key converts to it.
pub(crate) fn to_user(options: &TimeseriesOptions, key: DocRef<'_>) -> Option<Document> {
    let mut out = DocumentBuilder::new();
    let mut parts = key.iter();
    while let Some(part) = parts.next() {
        let name = part.name();
        if let Some(rest) = name.strip_prefix(META)
            && (rest.is_empty() || rest.starts_with('.'))
        {
            let meta = options.meta_field.as_deref()?;
            out.append_ref(&format!("{meta}{rest}"), part.value());
            continue;
        }
        if let Some(path) = name.strip_prefix("data.") {
            if part.value().as_str() != Some("2dsphere_bucket") {
                return None;
            }
            out.append(path, "2dsphere");
            continue;
        }
        let second = parts.next()?;
        let path = pair_path(part, second)?;
        if below_meta(options, path).is_some() {
            return None;
        }
        out.append_ref(path, part.value());
    }
    Some(out.finish())
}

/// Returns the field whose two bounds these parts are, in the order of their direction.
fn pair_path<'a>(first: Element<'a>, second: Element<'a>) -> Option<&'a str> {
    let (leads, follows) = match is_descending(first.value())? {
        false => ("control.min.", "control.max."),
        true => ("control.max.", "control.min."),
    };
    let path = first.name().strip_prefix(leads)?;
    let same_path = second.name().strip_prefix(follows) == Some(path);
    let same_direction = is_descending(first.value()) == is_descending(second.value());
    (same_path && same_direction).then_some(path)
}

/// True if the parts are both bounds of the time field as `t: ±1` converts to them.
pub fn is_time_pair(first: Element<'_>, second: Element<'_>, time_field: &str) -> bool {
    pair_path(first, second) == Some(time_field)
}

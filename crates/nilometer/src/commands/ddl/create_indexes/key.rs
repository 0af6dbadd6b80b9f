//! Checks of the key pattern of an index.

use nilometer_bson::number::Number;
use nilometer_bson::path::REFERENCE_NAMES;
use nilometer_bson::{DocRef, ValueRef};

use super::IndexTarget;
use crate::error::{Error, ErrorCode, Result, location};

/// The largest number of fields of an index.
const FIELDS_MAX: usize = 32;

/// The last part of a wildcard.
pub(super) const WILDCARD: &str = "$**";

/// Error 67.
pub(super) fn refused(reason: impl Into<String>) -> Error {
    Error::new(ErrorCode::CannotCreateIndex, reason)
}

/// The properties of a key pattern.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct KeyShape {
    /// The number of fields.
    pub(super) fields: usize,
    /// The index type other than values: the string in the pattern, or `wildcard`.
    pub(super) plugin: Option<&'static str>,
    /// It is `{_id: ±1}`.
    pub(super) is_id: bool,
    /// A wildcard over the whole document.
    pub(super) is_whole_wildcard: bool,
}

/// Strings that name an index type.
const PLUGINS: [&str; 5] = ["hashed", "2d", "2dsphere", "2dsphere_bucket", "text"];

/// Checks a key pattern.
pub(super) fn check(key: DocRef<'_>, target: IndexTarget) -> Result<KeyShape> {
    let mut shape = KeyShape::default();
    let mut names: Vec<&str> = Vec::new();
    let (mut hashed, mut planes) = (0, 0);
    for element in key {
        let name = element.name();
        check_name(name)?;
        if names.contains(&name) {
            return Err(Error::bad_value(format!(
                "The field '{name}' appears multiple times in the index key pattern"
            )));
        }
        let is_wildcard = name == WILDCARD || name.ends_with(".$**");
        let plugin = check_value(name, element.value(), target)?;
        let is_whole_text = name == WILDCARD && plugin == Some("text");
        if let (true, false, Some(plugin)) = (is_wildcard, is_whole_text, plugin) {
            return Err(refused(format!(
                "A wildcard field is indexed by 1, not '{plugin}'"
            )));
        }
        let plugin = plugin.or(is_wildcard.then_some("wildcard"));
        hashed += i32::from(plugin == Some("hashed"));
        planes += i32::from(plugin == Some("2d"));
        if plugin == Some("2d") && !names.is_empty() && planes == 1 {
            return Err(Error::location(
                location::GEO_2D_FIELD_NOT_FIRST,
                "2d has to be first in index",
            ));
        }
        match (shape.plugin, plugin) {
            (Some("wildcard"), Some("wildcard")) => {
                return Err(refused("An index has at most one wildcard field"));
            }
            (Some(one), Some(other)) if one != other => {
                return Err(refused(
                    "Can't use more than one index plugin for a single index.",
                ));
            }
            (None, Some(_)) => shape.plugin = plugin,
            _ => {}
        }
        shape.is_whole_wildcard |= name == WILDCARD && !is_whole_text;
        names.push(name);
    }
    if hashed > 1 {
        return Err(Error::location(
            location::TWO_HASHED_FIELDS,
            format!("A maximum of one index field is allowed to be hashed but found {hashed}"),
        ));
    }
    if planes > 1 {
        return Err(Error::location(
            location::TWO_2D_FIELDS,
            "can't have 2 geo fields",
        ));
    }
    match names.len() {
        0 => return Err(refused("Index keys cannot be an empty object")),
        count if count > FIELDS_MAX => {
            return Err(Error::location(
                location::TOO_MANY_KEY_FIELDS,
                format!("too many compound keys: {count}, at most {FIELDS_MAX} are allowed"),
            ));
        }
        count => shape.fields = count,
    }
    check_wildcard_neighbours(&names)?;
    shape.is_id = names == ["_id"] && matches!(key.get("_id").as_exact_i64(), Some(1 | -1));
    Ok(shape)
}

fn check_name(name: &str) -> Result<()> {
    if name.is_empty() || name.split('.').any(str::is_empty) {
        return Err(refused("Index keys cannot contain an empty field."));
    }
    let count = name.split('.').count();
    for (at, part) in name.split('.').enumerate() {
        let is_wildcard = part == WILDCARD && at + 1 == count;
        let is_reference = at > 0 && REFERENCE_NAMES.contains(&part);
        if part.starts_with('$') && !is_wildcard && !is_reference {
            return Err(refused(format!(
                "Index key contains an illegal field name: field name starts with '$': {name}"
            )));
        }
    }
    Ok(())
}

/// Checks one value: a number is a direction, a string an index type, which is returned.
fn check_value(
    name: &str,
    value: ValueRef<'_>,
    target: IndexTarget,
) -> Result<Option<&'static str>> {
    if let Some(number) = Number::of(value) {
        let number = number.to_f64();
        if number < 0.0 && (name == WILDCARD || name.ends_with(".$**")) {
            return Err(refused(format!(
                "A numeric value in a $** index key pattern must be positive: '{name}'"
            )));
        }
        return if number == 0.0 || number.is_nan() {
            Err(refused(format!(
                "Values in the index key pattern cannot be 0 or NaN: '{name}'"
            )))
        } else {
            Ok(None)
        };
    }
    let ValueRef::String(plugin) = value else {
        return Err(refused(format!(
            "Values in v:2 index key pattern cannot be of type {}. Only numbers > 0, numbers < 0, and strings are allowed.",
            value.type_name()
        )));
    };
    match PLUGINS.iter().find(|known| **known == plugin) {
        Some(&"text") if target != IndexTarget::Ordinary => Err(Error::invalid_options(
            "Text indexes are not supported on time-series collections",
        )),
        Some(&"2dsphere_bucket") if target != IndexTarget::Buckets => Err(refused(
            "Index type '2dsphere_bucket' is for buckets of time-series collections",
        )),
        Some(known) => Ok(Some(known)),
        None if plugin.is_empty() => Err(refused(
            "Values in the index key pattern cannot be empty strings",
        )),
        None => Err(refused(format!("Unknown index plugin '{plugin}'"))),
    }
}

/// Refuses fields beside a wildcard that covers them.
fn check_wildcard_neighbours(names: &[&str]) -> Result<()> {
    let root = names.iter().find_map(|name| name.strip_suffix(".$**"));
    let Some(root) = root else {
        return Ok(());
    };
    let is_below = |name: &str, above: &str| {
        name.strip_prefix(above)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    let overlaps =
        |name: &&&str| !name.ends_with(".$**") && (is_below(name, root) || is_below(root, name));
    match names.iter().find(overlaps) {
        Some(name) => Err(refused(format!(
            "The field '{name}' overlaps the wildcard '{root}.$**'"
        ))),
        None => Ok(()),
    }
}

/// Returns the name drivers give an index: fields and directions, joined.
pub(super) fn default_name(key: DocRef<'_>) -> String {
    let part = |value: ValueRef<'_>| match value {
        ValueRef::String(plugin) => plugin.to_owned(),
        value => match value.as_exact_i64() {
            Some(whole) => whole.to_string(),
            None => Number::of(value).map_or_else(String::new, |n| n.to_f64().to_string()),
        },
    };
    let parts: Vec<String> = key
        .iter()
        .map(|element| format!("{}_{}", element.name(), part(element.value())))
        .collect();
    parts.join("_")
}

#[cfg(test)]
mod tests {
    use super::*;
    use nilometer_bson::{Document, DocumentBuilder, Value, doc};

    fn code(key: Document) -> i32 {
        check(key.as_ref(), IndexTarget::Ordinary).map_or_else(|error| error.code.0, |_| 0)
    }

    #[test]
    fn patterns_that_can_be_indexed() {
        for key in [
            doc! { "a": 1 },
            doc! { "a.b": -1.5, "c": 7i64 },
            doc! { "_id": "hashed" },
            doc! { "a": "2d", "b": 1 },
            doc! { "b": 1, "a": "2dsphere", "c": "2dsphere" },
            doc! { "$**": 1 },
            doc! { "a.$**": 1, "b": -1 },
            doc! { "a.$**": 1, "b": 1 },
            doc! { "a.$id": 1 },
            doc! { "a": "text", "b.c": "text", "$**": "text" },
        ] {
            assert_eq!(code(key.clone()), 0, "{key:?}");
        }
        assert!(
            check(doc! { "_id": 1.0 }.as_ref(), IndexTarget::Ordinary)
                .unwrap()
                .is_id
        );
    }

    #[test]
    fn patterns_that_cannot() {
        for key in [
            doc! {},
            doc! { "": 1 },
            doc! { "a.": 1 },
            doc! { ".a": 1 },
            doc! { "a..b": 1 },
            doc! { "$natural": 1 },
            doc! { "a.$b": 1 },
            doc! { "$**.a": 1 },
            doc! { "a": 0 },
            doc! { "a": f64::NAN },
            doc! { "a": true },
            doc! { "a": doc! {} },
            doc! { "a": Value::Null },
            doc! { "a": "" },
            doc! { "a.$**": "text" },
            doc! { "a": "text", "b": "2dsphere" },
            doc! { "a": "text", "$**": 1 },
            doc! { "a": "geoHaystack" },
            doc! { "a": "2dsphere_bucket" },
            doc! { "$**": "hashed" },
            doc! { "a.$**": 1, "b.$**": 1 },
            doc! { "a.$**": 1, "a.b": 1 },
            doc! { "a.b.$**": 1, "a": 1 },
            doc! { "a": "hashed", "b": "2dsphere" },
        ] {
            assert_eq!(code(key.clone()), 67, "{key:?}");
        }
        assert_eq!(
            code(doc! { "a": "hashed", "b": "hashed" }),
            location::TWO_HASHED_FIELDS
        );
        assert_eq!(code(doc! { "a": "2d", "b": "2d" }), location::TWO_2D_FIELDS);
        assert_eq!(
            code(doc! { "a": 1, "b": "2d" }),
            location::GEO_2D_FIELD_NOT_FIRST
        );
        let wide = |count: usize| {
            let mut key = DocumentBuilder::new();
            (0..count).for_each(|at| {
                key.append(&format!("f{at}"), 1);
            });
            key.finish()
        };
        assert_eq!(code(wide(32)), 0);
        assert_eq!(code(wide(33)), location::TOO_MANY_KEY_FIELDS);
    }

    #[test]
    fn names_are_made_of_fields_and_directions() {
        let key = doc! { "a.b": 1.0, "c": -1, "d": "2dsphere" };
        assert_eq!(default_name(key.as_ref()), "a.b_1_c_-1_d_2dsphere");
    }
}

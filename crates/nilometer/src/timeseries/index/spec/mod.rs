//! Specifications of indexes on time-series collections: the user's, and the stored ones over buckets.
//!
//! ```text
//! user      {m: 1, t: 1}                                 {x: -1}
//!             │  to_buckets                 to_user ▲      │
//!             ▼                                     │      ▼
//! buckets   {meta: 1, control.min.t: 1, control.max.t: 1}  {control.max.x: -1, control.min.x: -1}
//! ```
//!
//! Both have the same name, made of the user's key. Specifications that cannot be converted back (keys with measurements, partial
//! filters) are stored as `originalSpec`.
//!
//! [`super::keys`] converts keys and [`super::partial_filter`] filters; this file has the rules about options and
//! `originalSpec`. Does not read storage.

#[cfg(test)]
mod tests;

use nilometer_bson::{DocRef, Document, DocumentBuilder, ValueRef};

use crate::catalog::{IndexSpec, TimeseriesOptions};
use crate::error::{Error, ErrorCode, Result};

pub use super::keys::{is_time_pair, rename_meta};

/// The version of every index.
const INDEX_VERSION: i32 = 2;

/// The origin of an index's collation.
#[derive(Clone, Copy, Debug, Default)]
pub struct CollationOrigin<'a> {
    /// The user specified it with the index, even if it is the collection's.
    pub is_given: bool,
    /// The collection's default, normalised; `None` for the simple one.
    pub default: Option<&'a Document>,
}

/// Converts a user's index to one over buckets.
///
/// `user` is the requested index with its collation (inherited or specified). Fails with MongoDB's code if a time-series
/// collection cannot have such an index.
pub fn to_buckets(
    options: &TimeseriesOptions,
    user: &IndexSpec,
    collation: CollationOrigin<'_>,
) -> Result<IndexSpec> {
    let key = super::keys::to_buckets(options, user.key.as_ref())?;
    if user.unique {
        return Err(Error::invalid_options(
            "Unique indexes are not supported on time-series collections",
        ));
    }
    if user.sparse && key.has_measurement {
        return Err(Error::invalid_options(
            "Sparse indexes are not supported on time-series measurements",
        ));
    }
    check_expiry(options, user, &key)?;
    if user.partial_filter.is_some() && collation.is_given {
        return Err(Error::new(
            ErrorCode::IndexOptionsConflict,
            "A partial index on a time-series collection takes the collection's collation",
        ));
    }
    let partial_filter = match &user.partial_filter {
        Some(filter) => Some(super::partial_filter::to_buckets(options, filter.as_ref())?),
        None => None,
    };
    let original_spec = match &user.original_spec {
        Some(given) => {
            check_original(given.as_ref(), user, collation.default)?;
            Some(given.clone())
        }
        None if key.has_measurement || partial_filter.is_some() => Some(original_of(user)),
        None => None,
    };
    Ok(IndexSpec {
        key: key.key,
        partial_filter,
        original_spec,
        ..user.clone()
    })
}

/// Converts an index over buckets to the user's; `None` if no user's index converts to it.
pub fn to_user(options: &TimeseriesOptions, buckets: &IndexSpec) -> Option<IndexSpec> {
    let (key, partial_filter) = match &buckets.original_spec {
        Some(original) => {
            let filter = original.get("partialFilterExpression").as_document();
            let key = original.get("key").as_document()?;
            (key.to_document(), filter.map(DocRef::to_document))
        }
        None => {
            let key = super::keys::to_user(options, buckets.key.as_ref())?;
            let filter = match &buckets.partial_filter {
                Some(filter) => Some(super::partial_filter::to_user(options, filter.as_ref())?),
                None => None,
            };
            (key, filter)
        }
    };
    Some(IndexSpec {
        key,
        partial_filter,
        original_spec: None,
        ..buckets.clone()
    })
}

/// Checks `expireAfterSeconds`: only `{time: ±1}` with a partial filter on the metadata may have it. For all measurements there is
/// the collection's own `expireAfterSeconds`.
fn check_expiry(
    options: &TimeseriesOptions,
    user: &IndexSpec,
    key: &super::keys::BucketKey,
) -> Result<()> {
    if user.expire_after_seconds.is_none() {
        return Ok(());
    }
    if key.user_parts > 1 {
        return Err(Error::new(
            ErrorCode::CannotCreateIndex,
            "TTL indexes are single-field indexes, compound indexes do not support TTL",
        ));
    }
    let on_time = key.user_parts == 1 && key.has_time;
    let on_meta_alone = user.partial_filter.as_ref().is_some_and(|filter| {
        !filter.is_empty() && super::partial_filter::reads_only_meta(options, filter.as_ref())
    });
    if on_time && on_meta_alone {
        return Ok(());
    }
    Err(Error::invalid_options(
        "TTL indexes on time-series collections must be on the time field, with a partial filter \
         on the meta field alone",
    ))
}

/// Returns the user's specification, to be stored with the index over buckets.
fn original_of(user: &IndexSpec) -> Document {
    let mut out = DocumentBuilder::new();
    out.append("key", user.key.clone());
    out.append("name", user.name.as_str());
    out.append("partialFilterExpression", user.partial_filter.clone());
    for element in user.others.iter() {
        out.append_element(element);
    }
    out.append("collation", user.collation.clone());
    out.append("v", INDEX_VERSION);
    out.finish()
}

/// Checks that an `originalSpec`, as in a dump, has the collation of the index; an absent one means the collection's.
fn check_original(
    original: DocRef<'_>,
    user: &IndexSpec,
    default: Option<&Document>,
) -> Result<()> {
    let index = user.collation.as_ref().map(Document::as_ref);
    let agrees = match original.get("collation") {
        ValueRef::Missing => same_collation(default.map(Document::as_ref), index),
        ValueRef::Document(given) => same_collation(Some(given), index),
        _ => false,
    };
    if agrees {
        return Ok(());
    }
    Err(Error::new(
        ErrorCode::InvalidIndexSpecificationOption,
        "The collation in 'originalSpec' must be that of the index",
    ))
}

/// True if two collations are equal; either may omit defaults.
fn same_collation(given: Option<DocRef<'_>>, full: Option<DocRef<'_>>) -> bool {
    /// Returns the default of an option.
    const DEFAULTS: [(&str, ValueRef<'static>); 8] = [
        ("caseLevel", ValueRef::Bool(false)),
        ("caseFirst", ValueRef::String("off")),
        ("strength", ValueRef::Int32(3)),
        ("numericOrdering", ValueRef::Bool(false)),
        ("alternate", ValueRef::String("non-ignorable")),
        ("maxVariable", ValueRef::String("punct")),
        ("normalization", ValueRef::Bool(false)),
        ("backwards", ValueRef::Bool(false)),
    ];
    let simple = |c: Option<DocRef<'_>>| {
        c.is_none_or(|c| c.is_empty() || c.get("locale").as_str() == Some("simple"))
    };
    let (Some(given), Some(full)) = (given, full) else {
        return simple(given) && simple(full);
    };
    if simple(Some(given)) || simple(Some(full)) {
        return simple(Some(given)) && simple(Some(full));
    }
    let option = |of: DocRef<'_>, name: &str, default: ValueRef<'_>| match of.get(name) {
        ValueRef::Missing => default.to_value(),
        found => found.to_value(),
    };
    let equal = |name: &str, default: ValueRef<'_>| {
        let (a, b) = (option(given, name, default), option(full, name, default));
        nilometer_bson::order::compare(a.as_ref(), b.as_ref()).is_eq()
    };
    equal("locale", ValueRef::Missing) && DEFAULTS.iter().all(|(name, value)| equal(name, *value))
}

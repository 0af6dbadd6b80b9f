//! `collMod` with `index`: hides an index, changes its expiry, or makes it unique.

use nilometer_bson::number::Number;
use nilometer_bson::{Document, DocumentBuilder, ValueRef};

use super::unique;
use crate::args::{Args, truncated_i64};
use crate::commands::ddl::indexes::IndexOwner;
use crate::database::Database;
use crate::database::indexes::ListedIndex;
use crate::error::{Error, Result};

/// The fields of `index`.
const FIELDS: &[&str] = &[
    "name",
    "keyPattern",
    "hidden",
    "expireAfterSeconds",
    "unique",
    "prepareUnique",
];

/// Parses the change of an index, if the command has one.
pub(super) fn parse(args: &Args<'_>, owner: &IndexOwner) -> Result<Option<IndexChange>> {
    let Some(given) = args.nested("index", FIELDS)? else {
        return Ok(None);
    };
    let which = which(&given)?;
    let hidden = given.lenient_boolean("hidden")?;
    let expiry = given.value("expireAfterSeconds");
    let unique = given.boolean("unique")?;
    let prepare_unique = given.boolean("prepareUnique")?;
    if hidden.is_none() && expiry.is_missing() && unique.is_none() && prepare_unique.is_none() {
        return Err(Error::invalid_options(
            "no expireAfterSeconds, hidden, unique, or prepareUnique field",
        ));
    }
    if owner.is_id_index(which) {
        return Err(match hidden {
            Some(true) => Error::bad_value("can't hide _id index"),
            _ => Error::invalid_options("the _id index cannot be changed"),
        });
    }
    let index = match which {
        ValueRef::String(name) => owner.named(name)?,
        ValueRef::Document(key) => owner.with_key(key)?,
        _ => return Ok(None),
    };
    if (unique.is_some() || prepare_unique.is_some()) && !is_ordinary(owner) {
        return Err(Error::invalid_options(
            "unique indexes are not for time-series collections",
        ));
    }
    let dry_run = args.lenient_boolean("dryRun")?.unwrap_or(false);
    let becomes_unique = match unique {
        None if dry_run => return Err(dry_run_alone()),
        None => false,
        Some(false) => {
            return Err(Error::bad_value(
                "collMod does not support converting an index to non-unique",
            ));
        }
        Some(true) => unique::may_become(&index.spec)?,
    };
    if prepare_unique == Some(true) {
        unique::check_kind(&index.spec)?;
    }
    let expire_after_seconds = match expiry {
        ValueRef::Missing => None,
        value => Some(seconds(value, owner, &index)?),
    };
    Ok(Some(IndexChange {
        index,
        hidden,
        expire_after_seconds,
        prepare_unique,
        becomes_unique,
        dry_run,
    }))
}

/// True if these are the indexes of an ordinary collection.
fn is_ordinary(owner: &IndexOwner) -> bool {
    owner
        .collection()
        .is_some_and(|collection| collection.timeseries.is_none())
}

/// Refuses `dryRun` without `unique`.
pub(super) fn dry_run_alone() -> Error {
    Error::invalid_options("dryRun mode is only supported for the conversion to a unique index")
}

/// Finds the index by name or key.
fn which<'a>(given: &Args<'a>) -> Result<ValueRef<'a>> {
    match (given.string("name")?, given.document("keyPattern")?) {
        (Some(_), Some(_)) => Err(Error::invalid_options(
            "Cannot specify both key pattern and name.",
        )),
        (None, None) => Err(Error::invalid_options(
            "Must specify either index name or key pattern.",
        )),
        (Some(name), None) => Ok(ValueRef::String(name)),
        (None, Some(key)) => Ok(ValueRef::Document(key)),
    }
}

/// Checks that the index may expire documents: it does already, or could have been created so.
fn seconds(value: ValueRef<'_>, owner: &IndexOwner, index: &ListedIndex) -> Result<i64> {
    let Some(seconds) = truncated_i64(value) else {
        return Err(Error::invalid_options(
            "expireAfterSeconds field must be a number",
        ));
    };
    let is_nan = Number::of(value).is_some_and(|n| n.to_f64().is_nan());
    if is_nan || !(0..=i64::from(i32::MAX)).contains(&seconds) {
        return Err(Error::invalid_options(format!(
            "TTL index 'expireAfterSeconds' option must be within an acceptable range: {seconds}"
        )));
    }
    let spec = &index.spec;
    if spec.expire_after_seconds.is_none() {
        let is_single = spec.key.iter().count() == 1;
        if !is_ordinary(owner) || !is_single {
            return Err(Error::invalid_options(format!(
                "TTL indexes are single-field indexes made as such; '{}' is none",
                spec.name
            )));
        }
    }
    Ok(seconds)
}

/// The change of an index.
pub(super) struct IndexChange {
    index: ListedIndex,
    hidden: Option<bool>,
    expire_after_seconds: Option<i64>,
    prepare_unique: Option<bool>,
    becomes_unique: bool,
    dry_run: bool,
}

impl IndexChange {
    /// Applies the change; reports old and new values.
    pub(super) fn apply(self, database: &Database, owner: &IndexOwner) -> Result<Document> {
        let spec = &self.index.spec;
        let mut reply = DocumentBuilder::new();
        if let Some(collection) = owner.collection().filter(|_| self.becomes_unique) {
            unique::convert(database, collection, &self.index.stored, self.dry_run)?;
            if !self.dry_run {
                reply.append("unique_new", true);
            }
        }
        if let Some(seconds) = self.expire_after_seconds {
            reply.append("expireAfterSeconds_old", spec.expire_after_seconds);
            reply.append("expireAfterSeconds_new", seconds);
        }
        let mut differs = self.expire_after_seconds.is_some();
        for (name, old, new) in [
            ("hidden", spec.hidden, self.hidden),
            ("prepareUnique", spec.prepare_unique, self.prepare_unique),
        ] {
            if let Some(new) = new.filter(|new| *new != old) {
                reply.append(&format!("{name}_old"), old);
                reply.append(&format!("{name}_new"), new);
                differs = true;
            }
        }
        if self.dry_run || !differs {
            return Ok(reply.finish());
        }
        let changed = owner.modify(database, self.index.stored.keyspace, |spec| {
            if let Some(hidden) = self.hidden {
                spec.hidden = hidden;
            }
            if let Some(prepare) = self.prepare_unique {
                spec.prepare_unique = prepare && !spec.unique;
            }
            if self.expire_after_seconds.is_some() {
                spec.expire_after_seconds = self.expire_after_seconds;
            }
        })?;
        changed.reset_uses(database.services().clock.now_ms());
        Ok(reply.finish())
    }
}

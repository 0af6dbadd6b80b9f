//! Options of several kinds of collections.

use nilometer_bson::{DocRef, Document, DocumentBuilder, ValueRef, doc};

use super::Creation;
use super::clustered;
use crate::args::Args;
use crate::catalog::Namespace;
use crate::commands::ddl::{capped, validation};
use crate::error::{Error, ErrorCode, Result, location};
use crate::eval::Collation;

/// The largest `expireAfterSeconds`: the seconds a date of 64-bit milliseconds can span.
pub(super) const EXPIRE_AFTER_SECONDS_MAX: i64 = i64::MAX / 1000;

/// Checks `expireAfterSeconds`: anything that can be added to a date.
pub(in crate::commands) fn check_expire_after(seconds: i64) -> Result<()> {
    if !(0..=EXPIRE_AFTER_SECONDS_MAX).contains(&seconds) {
        return Err(Error::invalid_options(format!(
            "'expireAfterSeconds' must be between 0 and {EXPIRE_AFTER_SECONDS_MAX}, got {seconds}"
        )));
    }
    Ok(())
}

/// The option that asks for pre- and post-images in change streams.
pub(in crate::commands) const IMAGES: &str = "changeStreamPreAndPostImages";

/// Returns whether pre- and post-images are asked for. A standalone stores the option, as MongoDB's does, for the day
/// its data is restored into a replica set; it has no change streams that could show them.
pub(in crate::commands) fn images(args: &Args<'_>, namespace: &Namespace) -> Result<Option<bool>> {
    let Some(images) = args.nested(IMAGES, &["enabled"])? else {
        return Ok(None);
    };
    let Some(enabled) = images.boolean("enabled")? else {
        return Err(images.missing("enabled"));
    };
    if enabled && matches!(namespace.database.as_str(), "admin" | "config" | "local") {
        return Err(Error::invalid_options(format!(
            "'{IMAGES}' is not supported on the database '{}'",
            namespace.database
        )));
    }
    Ok(Some(enabled))
}

/// Returns the stored form of the option.
pub(in crate::commands) fn stored_images(enabled: bool) -> Option<Document> {
    enabled.then(|| doc! {"enabled": true})
}

/// Returns the collation of the new collection or view.
pub(super) fn collation(args: &Args<'_>) -> Result<Collation> {
    match args.document("collation")? {
        None => Ok(Collation::SIMPLE),
        Some(given) => Collation::parse(given, "create.collation"),
    }
}

/// Adds options without effect, which are stored and shown as in MongoDB.
fn append_kept(args: &Args<'_>, kept: &mut DocumentBuilder) -> Result<()> {
    for name in ["storageEngine", "indexOptionDefaults"] {
        let Some(value) = args.document(name)? else {
            continue;
        };
        for engine in value {
            // The index defaults are `{storageEngine: {<engine>: {…}}}`, one level deeper.
            let is_known = name == "storageEngine" || engine.name() == "storageEngine";
            if !is_known {
                return Err(Error::new(
                    ErrorCode::IDLUnknownField,
                    format!(
                        "BSON field 'create.{name}.{}' is an unknown field.",
                        engine.name()
                    ),
                ));
            }
            if !matches!(engine.value(), ValueRef::Document(_)) {
                return Err(Error::bad_value(format!(
                    "'{name}.{}' has to be an embedded document",
                    engine.name()
                )));
            }
        }
        kept.append(name, value);
    }
    Ok(())
}

impl Creation<'_> {
    /// Returns the stored options of a time-series collection.
    pub(super) fn timeseries_options(&self) -> Result<Document> {
        let mut options = DocumentBuilder::new();
        if let Some(seconds) = self.args.integer("expireAfterSeconds")? {
            check_expire_after(seconds)?;
            options.append("expireAfterSeconds", seconds);
        }
        append_kept(self.args, &mut options)?;
        options.append("collation", collation(self.args)?.to_document());
        Ok(options.finish())
    }

    /// Adds `clusteredIndex` and the expiry that belongs to it.
    fn append_clustered(&self, options: &mut DocumentBuilder) -> Result<()> {
        let index = match self.args.value("clusteredIndex") {
            ValueRef::Missing => return Ok(()),
            ValueRef::Document(index) => clustered::checked(index)?,
            ValueRef::Bool(_) => {
                return Err(Error::location(
                    location::CLUSTERED_INDEX_FORMAT,
                    "'clusteredIndex' as a boolean is for the buckets of time-series collections",
                ));
            }
            other => {
                return Err(self
                    .args
                    .wrong_type("clusteredIndex", other, "bool, object"));
            }
        };
        if let Some(other) = self.given(&["capped", "idIndex"]) {
            return Err(Error::invalid_options(format!(
                "'clusteredIndex' is not allowed with '{other}'"
            )));
        }
        options.append("clusteredIndex", index);
        if let Some(seconds) = self.args.integer("expireAfterSeconds")? {
            check_expire_after(seconds)?;
            options.append("expireAfterSeconds", seconds);
        }
        Ok(())
    }

    /// Returns the stored options of an ordinary collection.
    pub(super) fn ordinary_options(&self) -> Result<Document> {
        let mut options = DocumentBuilder::new();
        let collation = collation(self.args)?;
        capped::append_options(self.args, &mut options)?;
        append_kept(self.args, &mut options)?;
        validation::ValidationOptions::parse(self.args, &self.namespace, &collation)?
            .append_over(DocRef::EMPTY, &mut options);
        self.append_clustered(&mut options)?;
        let images = images(self.args, &self.namespace)?.unwrap_or(false);
        options.append(IMAGES, stored_images(images));
        options.append("collation", collation.to_document());
        Ok(options.finish())
    }
}

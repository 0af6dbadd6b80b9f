//! `system.buckets.<name>` created by itself: the buckets without their view.
//!
//! Its options are those that `listCollections` shows of such a collection, so a restore can use them: the
//! validator of every bucket collection, and `clusteredIndex: true`.

use nilometer_bson::{DocRef, ValueRef, order};

use super::Creation;
use crate::catalog::{TimeseriesOptions, bucket_validator};
use crate::error::{Error, ErrorCode, Result, location};

/// Options that buckets do not take.
const NOT_WITH_BUCKETS: &[&str] = &[
    "capped",
    "size",
    "max",
    "idIndex",
    "validationLevel",
    "validationAction",
    "viewOn",
    "pipeline",
    "autoIndexId",
    "temp",
    "changeStreamPreAndPostImages",
    "encryptedFields",
    "flags",
];

impl Creation<'_> {
    /// Creates a bucket collection.
    pub(super) fn create_buckets(&self, timeseries: DocRef<'_>) -> Result<()> {
        if let Some(refused) = self.given(NOT_WITH_BUCKETS) {
            return Err(Error::invalid_options(format!(
                "'timeseries' is not allowed with '{refused}'"
            )));
        }
        self.check_clustered_index()?;
        let timeseries = TimeseriesOptions::parse(timeseries)?;
        if let Some(validator) = self.args.document("validator")? {
            let own = bucket_validator(&timeseries.time_field);
            if !same_fields(validator, own.as_ref()) {
                return Err(Error::invalid_options(
                    "'validator' must be the one every bucket collection has",
                ));
            }
        }
        let options = self.timeseries_options()?;
        let catalog = self.database.catalog();
        if catalog.get(&self.namespace).is_some() {
            let same = catalog.collection(&self.namespace).is_some_and(|known| {
                known.timeseries.as_ref() == Some(&timeseries)
                    && known.options == options
                    && self.has_uuid(&known)
            });
            return if same { Ok(()) } else { Err(self.exists()) };
        }
        self.store(options, Some(timeseries))
    }

    fn check_clustered_index(&self) -> Result<()> {
        match self.args.value("clusteredIndex") {
            ValueRef::Missing | ValueRef::Bool(true) => Ok(()),
            ValueRef::Bool(false) => Err(Error::invalid_options(
                "buckets are always clustered: 'clusteredIndex' cannot be false",
            )),
            ValueRef::Document(spec) => {
                for name in ["key", "unique"] {
                    if !spec.contains(name) {
                        return Err(Error::new(
                            ErrorCode::IDLFailedToParse,
                            format!(
                                "BSON field 'create.clusteredIndex.{name}' is missing but a required field"
                            ),
                        ));
                    }
                }
                Err(Error::location(
                    location::CLUSTERED_INDEX_FORMAT,
                    "the clustered index of buckets is not spelt out: 'clusteredIndex' must be true",
                ))
            }
            other => Err(self
                .args
                .wrong_type("clusteredIndex", other, "bool, object")),
        }
    }
}

/// True if both have the same fields with equal values, in any order.
fn same_fields(a: DocRef<'_>, b: DocRef<'_>) -> bool {
    let count = |d: DocRef<'_>| d.iter().count();
    count(a) == count(b)
        && a.iter()
            .all(|element| match (element.value(), b.get(element.name())) {
                (ValueRef::Document(a), ValueRef::Document(b)) => same_fields(a, b),
                (a, b) => order::compare(a, b).is_eq(),
            })
}

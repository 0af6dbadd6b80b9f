//! `$out` and `$merge` into time-series collections.
//!
//! Two measurements are the same if their metadata and times are equal, or, by default, their `_id`. No
//! unique index forbids a second one, so `$merge` searches first where it must not find one.

use std::sync::Arc;

use nilometer_bson::path::FieldPath;
use nilometer_bson::{DocRef, Document, ObjectId, doc};

use super::super::collections::StoredCollections;
use crate::catalog::{Collection, Granularity, Namespace, TimeseriesOptions};
use crate::error::{Error, ErrorCode, Result, location};
use crate::eval::Collation;
use crate::modify::{Modified, Selector};
use crate::operation::OperationContext;
use crate::query::source::{Change, MergeTarget};

/// Fails unless the options of `$out` agree with those of the collection. Widths are compared only if they
/// were set.
pub(super) fn check_options(
    wanted: &TimeseriesOptions,
    found: &Collection,
    name: &Namespace,
) -> Result<()> {
    let Some(known) = &found.timeseries else {
        return Ok(());
    };
    let widths = |options: &TimeseriesOptions| (options.span_seconds, options.rounding_seconds);
    let left_out = wanted.granularity == Some(Granularity::Seconds);
    let same = wanted.time_field == known.time_field
        && wanted.meta_field == known.meta_field
        && (left_out || widths(wanted) == widths(known));
    if same {
        return Ok(());
    }
    Err(Error::location(
        location::OUT_OTHER_TIMESERIES_OPTIONS,
        format!(
            "the time-series options given to $out are not those of the existing collection {name}"
        ),
    ))
}

/// A time-series collection to merge into.
pub(super) struct MergeTimeSeries {
    /// The name.
    pub(super) name: Namespace,
    pub(super) stored: StoredCollections,
    /// The bucket collection.
    pub(super) collection: Arc<Collection>,
}

impl MergeTimeSeries {
    fn apply(&self, change: &Change<'_>, operation: &OperationContext) -> Result<Modified> {
        let selector = Selector::matching(change.wanted);
        let statement = super::statement(change, &selector, &self.name, operation);
        statement.run_on_measurements(self.stored.modify(), &self.collection)
    }
}

impl MergeTarget for MergeTimeSeries {
    fn has_unique_index_on(&self, fields: &[FieldPath], _: &Collation) -> Result<bool> {
        let Some(options) = &self.collection.timeseries else {
            return Ok(false);
        };
        let mut names: Vec<&str> = fields.iter().map(FieldPath::as_str).collect();
        names.sort_unstable();
        let mut series: Vec<&str> = options.meta_field.as_deref().into_iter().collect();
        series.push(&options.time_field);
        series.sort_unstable();
        Ok(names == ["_id"] || names == series)
    }

    fn new_id(&self, operation: &OperationContext) -> ObjectId {
        self.stored.services.ids.object_id(operation.now_ms)
    }

    fn prepared(&self, document: Document) -> Result<Document> {
        self.stored
            .timeseries
            .stored_form(&self.collection, document)
    }

    fn insert_new(&mut self, change: Change<'_>, operation: &OperationContext) -> Result<()> {
        if self.apply(&change, operation)?.matched == 0 {
            return Ok(());
        }
        let key = change.wanted.to_document();
        Err(Error::new(
            ErrorCode::DuplicateKey,
            format!(
                "E11000 duplicate key error collection: {} dup key: {}",
                self.name,
                nilometer_bson::extjson::to_relaxed(key.as_ref())
            ),
        )
        .with_details(doc! { "keyValue": key }))
    }

    fn insert(&mut self, document: DocRef<'_>, operation: &OperationContext) -> Result<()> {
        let ids = &self.stored.services.ids;
        let new_id = || ids.object_id(operation.now_ms);
        let outcome = self.stored.timeseries.insert(
            &self.stored.catalog,
            &self.collection,
            std::iter::once(document),
            StoredCollections::insert_options(&new_id),
        )?;
        outcome.all()
    }

    fn change(&mut self, change: Change<'_>, operation: &OperationContext) -> Result<bool> {
        Ok(self.apply(&change, operation)?.matched > 0)
    }

    fn finish(&mut self, operation: &OperationContext) -> Result<()> {
        let concern = operation.write_concern;
        if concern.journaled && concern.acknowledged {
            self.stored.records.sync()?;
        }
        Ok(())
    }
}

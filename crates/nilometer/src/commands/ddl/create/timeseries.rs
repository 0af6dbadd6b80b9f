//! Time-series collections: the buckets, unless they exist, and the view over them.

use nilometer_bson::DocRef;

use super::Creation;
use crate::catalog::TimeseriesOptions;
use crate::error::{Error, Result};

/// Options that time-series collections do not take.
const NOT_WITH_TIMESERIES: &[&str] = &[
    "capped",
    "size",
    "max",
    "idIndex",
    "validator",
    "validationLevel",
    "validationAction",
    "viewOn",
    "pipeline",
    "clusteredIndex",
    "autoIndexId",
    "temp",
    "changeStreamPreAndPostImages",
    "encryptedFields",
    "flags",
];

impl Creation<'_> {
    /// Creates a time-series collection.
    pub(super) fn create_timeseries(&self, timeseries: DocRef<'_>) -> Result<()> {
        if let Some(refused) = self.given(NOT_WITH_TIMESERIES) {
            return Err(Error::invalid_options(format!(
                "'timeseries' is not allowed with '{refused}'"
            )));
        }
        let timeseries = TimeseriesOptions::parse(timeseries)?;
        let options = self.timeseries_options()?;
        let catalog = self.database.catalog();
        if catalog.get(&self.namespace).is_some() {
            let same = catalog.timeseries(&self.namespace).is_some_and(|known| {
                let now = known.timeseries.as_ref();
                now.is_some_and(|now| now.satisfies(&timeseries)) && known.options == options
            });
            return if same { Ok(()) } else { Err(self.exists()) };
        }
        let uuid = self.database.services().ids.uuid();
        catalog.create_timeseries(self.namespace.clone(), uuid, options, timeseries)?;
        Ok(())
    }
}

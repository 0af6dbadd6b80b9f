//! Parameters of a replica set, as they are stored in `config.clusterParameters`.

use nilometer_bson::{Document, Timestamp, Value, doc};

use super::collections::StoredCollections;
use crate::catalog::CONFIG;
use crate::error::Result;
use crate::query::source::Collections;

/// The collection of the parameters.
pub(crate) const CLUSTER_PARAMETERS: &str = "clusterParameters";

/// The parameter that says how long streams show documents before and after their changes.
pub(crate) const CHANGE_STREAM_OPTIONS: &str = "changeStreamOptions";

impl StoredCollections {
    /// Returns the parameter `changeStreamOptions`.
    pub(crate) fn change_stream_options(&self) -> Result<Document> {
        let id = Value::from(CHANGE_STREAM_OPTIONS);
        let stored = self.find_by_id(CONFIG, CLUSTER_PARAMETERS, id.as_ref())?;
        Ok(stored.unwrap_or_else(|| {
            doc! {
                "_id": CHANGE_STREAM_OPTIONS,
                "clusterParameterTime": Value::Timestamp(Timestamp::from_u64(0)),
                "preAndPostImages": doc! {"expireAfterSeconds": "off"}
            }
        }))
    }

    /// Sets in the change log what the stored parameter says.
    pub(super) fn apply_change_stream_options(&self) -> Result<()> {
        let Some(log) = &self.change_log else {
            return Ok(());
        };
        let options = self.change_stream_options()?;
        let images = options.get("preAndPostImages").as_document();
        let seconds = images.and_then(|images| images.get("expireAfterSeconds").as_exact_i64());
        log.set_image_expiry(seconds.filter(|seconds| *seconds > 0));
        Ok(())
    }
}

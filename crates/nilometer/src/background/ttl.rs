//! Removing what has expired, every `ttlMonitorSleepSecs`.

use std::sync::Arc;
use std::time::Duration;

use nilometer_bson::ValueRef;

use crate::catalog::{Catalog, Collection};
use crate::error::Result;
use crate::services::Services;
use crate::timeseries::Timeseries;

/// When the last round was.
pub(super) struct TtlMonitor {
    last: Duration,
}

impl TtlMonitor {
    /// The first round comes a full interval from now.
    pub(super) fn new(services: &Services) -> Self {
        Self {
            last: services.clock.monotonic(),
        }
    }

    /// Does a round if it is time for one.
    pub(super) fn tick(
        &mut self,
        services: &Services,
        catalog: &Catalog,
        timeseries: &Arc<Timeseries>,
    ) {
        let sleep = u64::try_from(services.parameters.ttl_monitor_sleep_secs()).unwrap_or(60);
        let now = services.clock.monotonic();
        if now.saturating_sub(self.last) < Duration::from_secs(sleep) {
            return;
        }
        self.last = now;
        if services.parameters.ttl_monitor_enabled() != 0 {
            for collection in catalog.collections() {
                // A collection that fails, as one just dropped does, is tried again next time.
                let _ = expire(catalog, &collection, timeseries, services.clock.now_ms());
            }
        }
    }
}

/// Removes what has expired from one collection; returns how many buckets went.
fn expire(
    catalog: &Catalog,
    collection: &Arc<Collection>,
    timeseries: &Arc<Timeseries>,
    now_ms: i64,
) -> Result<usize> {
    let by_indexes = timeseries.expire_by_indexes(catalog, collection, now_ms)?;
    match expire_after_ms(collection) {
        Some(after) => {
            let all = timeseries.expire(catalog, collection, now_ms.saturating_sub(after))?;
            Ok(all + by_indexes)
        }
        None => Ok(by_indexes),
    }
}

/// `expireAfterSeconds` of a collection, in ms.
fn expire_after_ms(collection: &Collection) -> Option<i64> {
    match collection.options.get("expireAfterSeconds") {
        ValueRef::Missing => None,
        seconds => seconds
            .as_exact_i64()
            .map(|seconds| seconds.saturating_mul(1000)),
    }
}

//! Removing what has expired, every `ttlMonitorSleepSecs`.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;

use nilometer_bson::ValueRef;

use super::Needs;
use crate::catalog::{Catalog, Collection, Storage};
use crate::error::{Error, ErrorCode, Result};
use crate::index::Index;
use crate::services::Services;
use crate::timeseries::Timeseries;
use crate::write::Records;

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

    /// Does a round if it is time for one, until it is done or the database is closed.
    pub(super) fn tick(&mut self, needs: &Needs, stopped: &Receiver<()>) {
        let services = &needs.services;
        let sleep = u64::try_from(services.parameters.ttl_monitor_sleep_secs()).unwrap_or(60);
        let now = services.clock.monotonic();
        if now.saturating_sub(self.last) < Duration::from_secs(sleep) {
            return;
        }
        self.last = now;
        if services.parameters.ttl_monitor_enabled() == 0 {
            return;
        }
        let check_interrupt = || match stopped.try_recv() {
            Err(TryRecvError::Empty) => Ok(()),
            _ => Err(Error::new(
                ErrorCode::InterruptedAtShutdown,
                "interrupted at shutdown",
            )),
        };
        for collection in needs.catalog.collections() {
            if check_interrupt().is_err() {
                return;
            }
            let now_ms = services.clock.now_ms();
            // A collection that fails, as one just dropped does, is tried again next time.
            let _ = expire(&needs.catalog, &collection, &needs.timeseries, now_ms);
            let _ = expire_records(&collection, &needs.records, now_ms, &check_interrupt);
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

/// Removes from an ordinary collection what has expired under its indexes. Tells how many documents.
fn expire_records(
    collection: &Collection,
    records: &Records,
    now_ms: i64,
    check_interrupt: &dyn Fn() -> Result<()>,
) -> Result<u64> {
    let mut removed = 0;
    if let Storage::Records { .. } = collection.storage {
        for stored in collection.indexes.all().iter() {
            let Some(seconds) = stored.spec.expire_after_seconds else {
                continue;
            };
            let index = Index::of(stored)?;
            let is_ordered = index.parts().iter().all(|part| part.is_ordered());
            // An index on several fields expires nothing.
            if stored.is_ready() && is_ordered && index.parts().len() == 1 {
                let limit_ms = now_ms.saturating_sub(seconds.saturating_mul(1000));
                removed += records.expire(collection, &index, limit_ms, check_interrupt)?;
            }
        }
    }
    Ok(removed)
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

#[cfg(test)]
mod tests {
    use nilometer_bson::doc;

    use super::*;
    use crate::Database;
    use crate::catalog::{IndexSpec, Namespace};
    use crate::operation::OperationContext;

    /// The ids of the documents left of those with dates around a second ago.
    fn left(key: nilometer_bson::Document, partial: Option<nilometer_bson::Document>) -> Vec<i32> {
        const NOW_MS: i64 = 1_700_000_000_000;
        const AFTER_SECONDS: i64 = 10;
        let database = Database::in_memory().unwrap();
        let ms = |back: i64| bson::DateTime::from_millis(NOW_MS - AFTER_SECONDS * 1000 - back);
        let plain = database.collection::<bson::Document>("db", "c");
        plain
            .insert_many([
                bson::doc! { "_id": 1, "d": ms(0) },
                bson::doc! { "_id": 2, "d": ms(-1) },
                bson::doc! { "_id": 3, "d": [ms(-5), ms(5), "x"] },
                bson::doc! { "_id": 4, "d": bson::DateTime::from_millis(i64::MIN), "k": 1 },
                bson::doc! { "_id": 5, "d": "x" },
                bson::doc! { "_id": 6, "d": 5 },
                bson::doc! { "_id": 7 },
                bson::doc! { "_id": 8, "d": bson::DateTime::MAX },
            ])
            .unwrap();
        let many = (100..3000).map(|i| bson::doc! { "_id": i, "d": ms(i64::from(i)), "k": 1 });
        plain.insert_many(many).unwrap();
        let name = Namespace::new("db", "c").unwrap();
        let collection = database.catalog().collection(&name).unwrap();
        let operation = OperationContext::internal(database.services().clock.clone(), "db");
        let spec = IndexSpec {
            key,
            name: "ttl".into(),
            partial_filter: partial,
            expire_after_seconds: Some(AFTER_SECONDS),
            ..IndexSpec::default()
        };
        database
            .create_indexes(&collection, &operation, |_| Ok(vec![spec]))
            .unwrap();
        expire_records(&collection, database.records(), NOW_MS, &|| Ok(())).unwrap();
        let found = plain.find(bson::doc! {}).unwrap();
        found.map(|d| d.unwrap().get_i32("_id").unwrap()).collect()
    }

    #[test]
    fn what_is_old_enough_goes() {
        let stays = [2, 5, 6, 7, 8];
        assert_eq!(left(doc! { "d": 1 }, None), stays);
        assert_eq!(left(doc! { "d": -1 }, None), stays);
        let partial = Some(doc! { "k": 1 });
        assert_eq!(left(doc! { "d": 1 }, partial), [1, 2, 3, 5, 6, 7, 8]);
        assert_eq!(left(doc! { "d": 1, "e": 1 }, None).len(), 2908);
    }
}

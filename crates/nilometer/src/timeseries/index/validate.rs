//! Checks the entries of indexes over buckets against those computed from the buckets.
//!
//! The check has two directions: every bucket has the entries it should have, and every entry belongs to a bucket that
//! should have it. Each step reads index and bucket in one snapshot, in which they agree even while writes continue.

use std::sync::Arc;

use nilometer_bson::Document;
use nilometer_storage::{Direction, Engine, Snapshot};

use super::maintenance::IndexMaintainer;
use crate::catalog::Collection;
use crate::error::{Error, Result};
use crate::eval::{EvaluationCounters, InterruptCheck};
use crate::index::DocumentKeys;
use crate::index::buckets::BucketIndex;
use crate::index::entry;
use crate::timeseries::format::keyspaces::BucketKeyspaces;
use crate::timeseries::scan::bucket_parts;
use crate::timeseries::scan::index_scan::split;
use crate::validation::Validation;

/// Entries to check in one snapshot.
const CHUNK_ENTRIES_MAX: usize = 256;

/// Checks the indexes of one collection.
pub(crate) struct IndexValidator<'v> {
    pub(crate) engine: &'v dyn Engine,
    pub(crate) collection: &'v Collection,
}

impl IndexValidator<'_> {
    /// Describes the missing entries of one bucket. Indexes under construction are skipped.
    pub(crate) fn missing_entries(
        &self,
        id: [u8; 12],
        check_interrupt: &dyn Fn() -> Result<()>,
    ) -> Result<Vec<String>> {
        let collection = self.collection;
        let (interrupt, counters) = (
            InterruptCheck(check_interrupt),
            EvaluationCounters::default(),
        );
        let indexes = IndexMaintainer::lock(collection)?;
        let indexes = indexes.within(Some(counters.limits(&interrupt)));
        let snapshot = self.engine.snapshot()?;
        let mut missing = Vec::new();
        for (index, keys) in expected(&*snapshot, collection, &indexes, id)? {
            if !index.stored.is_ready() {
                continue;
            }
            for key in &keys.keys {
                let entry = entry::key(key, &id);
                if snapshot.get(index.stored.keyspace, &entry)?.is_none() {
                    let name = &index.stored.spec.name;
                    missing.push(format!("the index '{name}' does not lead to it"));
                }
            }
        }
        Ok(missing)
    }

    /// Checks every entry of every index.
    pub(crate) fn check_entries(
        &self,
        found: &mut Validation,
        check_interrupt: &dyn Fn() -> Result<()>,
    ) -> Result<()> {
        let collection = self.collection;
        let (interrupt, counters) = (
            InterruptCheck(check_interrupt),
            EvaluationCounters::default(),
        );
        for stored in collection.indexes.all().iter() {
            let name = &stored.spec.name;
            let mut from = Vec::new();
            let mut count = 0;
            loop {
                check_interrupt()?;
                let indexes = IndexMaintainer::lock(collection)?;
                let indexes = indexes.within(Some(counters.limits(&interrupt)));
                let there = collection.indexes.all();
                if !there.iter().any(|index| index.keyspace == stored.keyspace) {
                    break;
                }
                let snapshot = self.engine.snapshot()?;
                let scan = snapshot.scan(stored.keyspace, &from, None, Direction::Forward)?;
                let mut taken = 0;
                for item in scan.take(CHUNK_ENTRIES_MAX) {
                    let (entry, type_bits) = item?;
                    taken += 1;
                    from = [&*entry, &[0]].concat();
                    let (key, id) = split(&entry)?;
                    // An unreadable bucket was reported with the buckets.
                    let Ok(wanted) = expected(&*snapshot, collection, &indexes, id) else {
                        continue;
                    };
                    let keys = wanted
                        .iter()
                        .find(|(index, _)| index.stored.keyspace == stored.keyspace);
                    let should_be = keys.is_some_and(|(_, keys)| {
                        let mut keys = keys.keys.iter();
                        keys.any(|one| one.key == key && one.type_bits == *type_bits)
                    });
                    if !should_be {
                        let id = nilometer_bson::ObjectId(id).to_hex();
                        let problem =
                            format!("the index '{name}' has a wrong entry for bucket {id}");
                        found.note(problem);
                    }
                }
                count += taken as u64;
                if taken < CHUNK_ENTRIES_MAX {
                    break;
                }
            }
            found.keys_per_index.push((name.clone(), count));
        }
        Ok(())
    }
}

/// Returns the keys that each index should have for a bucket in a snapshot; `None` if there is no such bucket.
fn expected(
    snapshot: &dyn Snapshot,
    collection: &Collection,
    indexes: &IndexMaintainer<'_>,
    id: [u8; 12],
) -> Result<Vec<(Arc<BucketIndex>, DocumentKeys)>> {
    let (Some(keyspaces), Some(options)) =
        (BucketKeyspaces::of(collection), &collection.timeseries)
    else {
        return Err(Error::bad_value("not a bucket collection"));
    };
    let parts = bucket_parts::read_parts(snapshot, keyspaces, id, None)?;
    let document = parts.stored_document()?;
    let document = document.as_ref().map(Document::as_ref);
    match bucket_parts::opened_as(document, &parts.tail, &options.time_field) {
        Some((meta, start_ms)) => indexes.expected(document, meta.as_ref(), start_ms),
        None => Ok(Vec::new()),
    }
}

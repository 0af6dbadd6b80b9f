//! The commit of a transaction on time-series collections.
//!
//! A transaction changes buckets over a snapshot, and inserts into buckets of its own. When it commits, buckets that it has
//! changed are claimed, and compared with the snapshot measurement by measurement: one that both have changed is a conflict. The
//! measurements of its own buckets are inserted into the buckets that all share.
//!
//! ```text
//! changed buckets ─► claim ─► merge with the stored one ─► replace, remove ─┐
//! own buckets ─► their measurements ─► stage ────────────────────────────┴─► one engine batch
//! ```

use std::collections::BTreeSet;
use std::sync::Arc;

use nilometer_bson::Document;
use nilometer_bson::order::equal;
use nilometer_storage::{OverlayWrites, Snapshot, WriteBatch};

use super::modify::bucket_changes::BucketChanges;
use super::modify::merge::{BucketChange, merge};
use crate::catalog::{Catalog, Collection, DuplicatePolicy};
use crate::error::{Error, ErrorCode, Result};
use crate::insertion::InsertOptions;
use crate::timeseries::Timeseries;
use crate::timeseries::format::bucket_document::Layout;
use crate::timeseries::format::key_range::bucket_of;
use crate::timeseries::format::keyspaces::BucketKeyspaces;
use crate::timeseries::insert::{InsertStatement, StagedInsert, stage_transaction};
use crate::timeseries::measurement_counts::CountedChange;
use crate::timeseries::scan::bucket_parts;
use crate::timeseries::unpack::{self, Shown};

/// A stored bucket that a transaction has changed.
struct ChangedBucket {
    id: [u8; 12],
    before: Document,
    /// `None` if it is removed.
    after: Option<Document>,
}

/// The changes of the measurements of a collection by a transaction.
pub(crate) struct MeasurementChanges {
    collection: Arc<Collection>,
    buckets: Vec<ChangedBucket>,
    inserted: Vec<Document>,
}

impl MeasurementChanges {
    /// Compares the buckets of a collection that a transaction has written, which `after` shows, with the snapshot below.
    pub(crate) fn new(
        collection: Arc<Collection>,
        below: &dyn Snapshot,
        (writes, after): (&OverlayWrites, &dyn Snapshot),
    ) -> Result<Self> {
        let mut found = Self {
            collection,
            buckets: Vec::new(),
            inserted: Vec::new(),
        };
        let collection = found.collection.clone();
        let (Some(keyspaces), Some(options)) =
            (BucketKeyspaces::of(&collection), &collection.timeseries)
        else {
            return Ok(found);
        };
        let mut written = BTreeSet::new();
        for keyspace in [keyspaces.sealed, keyspaces.open, keyspaces.tail] {
            let keys = writes.get(&keyspace).into_iter();
            for key in keys.flat_map(|writes| writes.keys()) {
                written.insert(bucket_of(key)?);
            }
        }
        if written.is_empty() {
            return Ok(found);
        }
        let layout = Layout::of(&collection, options)?;
        let document = |snapshot: &dyn Snapshot, id| -> Result<Option<Document>> {
            let parts = bucket_parts::read_parts(snapshot, keyspaces, id, None)?;
            parts.document(id, &layout)
        };
        let shown = Shown::new(&options.time_field, options.meta_field.as_deref());
        for id in written {
            match (document(below, id)?, document(after, id)?) {
                (Some(before), after) if after.as_ref() == Some(&before) => {}
                (Some(before), after) => found.buckets.push(ChangedBucket { id, before, after }),
                (None, Some(own)) => {
                    let rows = unpack::measurements(own.as_ref(), &shown, |_| true)?;
                    found.inserted.extend(rows);
                }
                (None, None) => {}
            }
        }
        Ok(found)
    }

    /// True if nothing is changed.
    pub(crate) fn is_empty(&self) -> bool {
        self.buckets.is_empty() && self.inserted.is_empty()
    }

    /// Claims the changed buckets and adds their changes. Code 112 if others have changed the same measurements since.
    fn change_buckets(&self, changes: &mut BucketChanges<'_>, bytes_max: usize) -> Result<()> {
        let Some(options) = &self.collection.timeseries else {
            return Ok(());
        };
        let layout = Layout::of(&self.collection, options)?;
        for bucket in &self.buckets {
            let Some(now) = changes.claim(bucket.id)? else {
                return Err(Error::write_conflict());
            };
            let change = BucketChange {
                before: &bucket.before,
                after: bucket.after.as_ref(),
            };
            let after = merge(change, &now, (options, &layout), bytes_max)?;
            match &after {
                Some(after) => changes.replace(bucket.id, after.as_ref())?,
                None => changes.remove(bucket.id)?,
            }
            self.note(changes, &now, after.as_ref())?;
        }
        Ok(())
    }

    /// Notes the changes of the measurements of a bucket: they are matched by their `_id`.
    fn note(
        &self,
        changes: &mut BucketChanges<'_>,
        before: &Document,
        after: Option<&Document>,
    ) -> Result<()> {
        let notes = &mut changes.notes;
        let Some(options) = self
            .collection
            .timeseries
            .as_ref()
            .filter(|_| notes.are_kept())
        else {
            return Ok(());
        };
        let Some(after) = after else {
            notes.bucket_removed(before.as_ref());
            return Ok(());
        };
        let shown = Shown::new(&options.time_field, options.meta_field.as_deref());
        let rows = |bucket: &Document| unpack::measurements(bucket.as_ref(), &shown, |_| true);
        let (before, mut after) = (rows(before)?, rows(after)?);
        after.reverse();
        for row in before {
            // Rows keep their order, so the one with the same `_id` is near the end of what is left.
            let is_it = |other: &Document| equal(other.get("_id"), row.get("_id"));
            match after.iter().rposition(is_it) {
                Some(at) => {
                    let now = after.remove(at);
                    if now != row {
                        notes.measurement_updated(row.as_ref(), now.as_ref());
                    }
                }
                None => notes.measurement_deleted(row.as_ref()),
            }
        }
        for row in after.iter().rev() {
            notes.inserted(row.as_ref());
        }
        Ok(())
    }
}

/// What is staged in all collections.
#[derive(Default)]
struct StagedChanges<'t> {
    changes: Vec<BucketChanges<'t>>,
    inserts: Vec<StagedInsert>,
    counts: Vec<CountedChange>,
}

/// What a commit of a transaction needs.
#[derive(Clone, Copy)]
pub(crate) struct TransactionCommit<'c> {
    pub(crate) catalog: &'c Catalog,
    pub(crate) options: InsertOptions<'c>,
    pub(crate) check_interrupt: &'c dyn Fn() -> Result<()>,
}

impl Timeseries {
    /// Adds the changes of a transaction to `batch`, and calls `commit` with it. The collections are in the order of their
    /// UUIDs.
    pub(crate) fn commit_together(
        self: &Arc<Self>,
        all: &[MeasurementChanges],
        context: TransactionCommit<'_>,
        mut batch: WriteBatch,
        commit: impl FnOnce(WriteBatch) -> Result<()>,
    ) -> Result<()> {
        if all.is_empty() {
            return commit(batch);
        }
        let locks = all.iter().filter(|of| !of.buckets.is_empty());
        let locks = locks.map(|of| {
            self.write_locks
                .lock(&of.collection, context.check_interrupt)
        });
        let locks = locks.collect::<Result<Vec<_>>>()?;
        let rewriting = self.maintenance.lock_rewriting();
        let mut staged = StagedChanges::default();
        let outcome = self
            .stage_together(all, context, &mut staged, &mut batch)
            .and_then(|()| {
                staged.changes.iter().for_each(BucketChanges::forget_series);
                let committed = commit(batch);
                staged.changes.iter().for_each(BucketChanges::forget_series);
                committed
            });
        if outcome.is_ok() {
            for count in staged.counts {
                count.committed();
            }
            staged.inserts.iter_mut().for_each(StagedInsert::committed);
            staged.changes.into_iter().for_each(BucketChanges::finish);
        } else {
            drop(staged.changes);
        }
        drop(rewriting);
        drop(locks);
        // Not under the lock: it may fold buckets.
        for insert in staged.inserts {
            insert.finish(self, outcome.clone())?;
        }
        outcome
    }

    fn stage_together<'t>(
        self: &'t Arc<Self>,
        all: &'t [MeasurementChanges],
        context: TransactionCommit<'_>,
        staged: &mut StagedChanges<'t>,
        batch: &mut WriteBatch,
    ) -> Result<()> {
        for of in all {
            let mut changes = BucketChanges::begin_locked(self, &of.collection, None)?;
            of.change_buckets(&mut changes, self.bucket_catalog.limits().bytes_max)?;
            if !of.inserted.is_empty() {
                let insert = InsertStatement {
                    timeseries: self,
                    catalog: context.catalog,
                    collection: &of.collection,
                    options: context.options,
                };
                let rows = of.inserted.iter().map(Document::as_ref);
                let mut insert = stage_transaction(&insert, changes.indexes(), rows)?;
                let ready = insert.take_batch();
                staged.inserts.push(insert);
                batch.append(ready?);
            }
            let (of_changes, count) = changes.take_batch(context.catalog)?;
            batch.append(of_changes);
            staged.counts.extend(count);
            staged.changes.push(changes);
        }
        Ok(())
    }
}

/// Fails if a transaction cannot insert into the collection.
pub(crate) fn check_insertable(collection: &Collection) -> Result<()> {
    let rule = collection.duplicates.read();
    let policy = rule.map_or(DuplicatePolicy::Keep, |rule| rule.policy);
    match policy {
        DuplicatePolicy::Keep => Ok(()),
        _ => Err(Error::new(
            ErrorCode::OperationNotSupportedInTransaction,
            "Cannot insert into a time-series collection that looks for duplicates in a transaction",
        )),
    }
}

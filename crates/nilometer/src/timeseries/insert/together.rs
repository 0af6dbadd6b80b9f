//! Inserts into several collections with one engine batch.
//!
//! ```text
//! inserts, in order of UUIDs ─► lock all ─► group all, lock their series ─► stage all ─► one batch ─► finish each
//! ```
//!
//! A remote write of Prometheus has some samples of each of a hundred metrics: with a batch for each, a third of the time of
//! its insert goes into commits.
//!
//! Two such inserts cannot wait for each other: each takes the locks of its collections in the order of their UUIDs, first all
//! policies and lists of indexes, then all series. Nothing is staged before all locks are taken, so what waits until a bucket
//! has no entry in flight waits for a commit alone, as it does for an insert into one collection.
//!
//! If the engine refuses the batch without writing it, because one of the collections was dropped or because the batch is
//! too large, each insert runs alone, so that one does not fail for the others.

use std::sync::Arc;

use nilometer_bson::DocRef;
use nilometer_storage::{Durability, Error as StorageError, WriteBatch};

use super::duplicates::PolicyOutcome;
use super::group_by_series::GroupedMeasurements;
use super::staged_insert::StagedInsert;
use super::{InsertStatement, LockedInsert};
use crate::catalog::{Catalog, Collection};
use crate::error::Result;
use crate::insertion::{InsertOptions, InsertOutcome};
use crate::timeseries::Timeseries;

impl Timeseries {
    /// Inserts measurements into collections, and returns the result of each. The new measurements of all are stored together,
    /// written but not synced; replacements follow. A collection that occurs twice would wait for itself.
    ///
    /// # Panics
    ///
    /// If a collection occurs twice.
    pub fn insert_together<'a, D>(
        self: &Arc<Self>,
        catalog: &Catalog,
        inserts: &[(Arc<Collection>, D)],
        options: InsertOptions<'_>,
    ) -> Vec<Result<InsertOutcome>>
    where
        D: Iterator<Item = DocRef<'a>> + Clone,
    {
        let options = InsertOptions {
            durability: Durability::Buffered,
            record: None,
            ..options
        };
        let mut order: Vec<usize> = (0..inserts.len()).collect();
        order.sort_unstable_by_key(|at| inserts[*at].0.uuid);
        let is_same = |pair: &[usize]| inserts[pair[0]].0.uuid == inserts[pair[1]].0.uuid;
        assert!(!order.windows(2).any(is_same), "a collection occurs twice");
        let sorted = order.iter().map(|at| {
            let (collection, documents) = &inserts[*at];
            let statement = InsertStatement {
                timeseries: self,
                catalog,
                collection,
                options,
            };
            (statement, documents.clone())
        });
        let sorted: Vec<_> = sorted.collect();
        let results = run(&sorted).unwrap_or_else(|Refused| {
            let alone = order.iter().map(|at| {
                let (collection, documents) = &inserts[*at];
                self.insert(catalog, collection, documents.clone(), options)
            });
            alone.collect()
        });
        let mut all: Vec<_> = order.into_iter().zip(results).collect();
        all.sort_unstable_by_key(|(at, _)| *at);
        all.into_iter().map(|(_, result)| result).collect()
    }
}

/// The engine wrote nothing of the batch, because of one of its inserts or its size.
struct Refused;

type Grouped<'a> = (GroupedMeasurements<'a>, PolicyOutcome);

fn commit(timeseries: &Timeseries, batch: WriteBatch) -> nilometer_storage::Result<()> {
    if !batch.is_empty() {
        timeseries.engine.commit(batch, Durability::Buffered)?;
    }
    Ok(())
}

/// Runs inserts, which are in the order of the UUIDs of their collections.
fn run<'a>(
    inserts: &[(
        InsertStatement<'_>,
        impl Iterator<Item = DocRef<'a>> + Clone,
    )],
) -> std::result::Result<Vec<Result<InsertOutcome>>, Refused> {
    let Some((InsertStatement { timeseries, .. }, _)) = inserts.first() else {
        return Ok(Vec::new());
    };
    let locked: Vec<Result<LockedInsert<'_>>> =
        inserts.iter().map(|(insert, _)| insert.lock()).collect();
    let grouped: Vec<Result<Grouped<'a>>> = locked
        .iter()
        .zip(inserts)
        .map(|(locked, (_, documents))| {
            let locked = locked.as_ref().map_err(Clone::clone)?;
            locked.group(documents.clone())
        })
        .collect();
    let mut batch = WriteBatch::new();
    let mut staged: Vec<Result<(StagedInsert, PolicyOutcome)>> = Vec::new();
    for (locked, grouped) in locked.iter().zip(grouped) {
        staged.push(grouped.and_then(|(grouped, policy)| {
            let locked = locked.as_ref().map_err(Clone::clone)?;
            let mut one = locked.stage(grouped);
            // One that could not be staged keeps its reason, and is finished with the others.
            if let Ok(of_one) = one.take_batch() {
                batch.append(of_one);
            }
            Ok((one, policy))
        }));
    }
    let committed = commit(timeseries, batch);
    let is_refused = matches!(
        committed,
        Err(StorageError::UnknownKeyspace { .. } | StorageError::TooLarge { .. })
    );
    let committed = committed.map_err(Into::into);
    let staged = staged.into_iter().map(|one| {
        let (mut staged, mut policy) = one?;
        let replacements = std::mem::take(&mut policy.replacements);
        let committed = staged.ready.clone().and(committed.clone());
        if committed.is_ok() {
            staged.committed();
        }
        policy.release(committed.is_ok());
        Ok((staged, replacements, committed))
    });
    let staged: Vec<Result<_>> = staged.collect();
    // What follows may fold buckets, which takes locks that come before these.
    drop(locked);
    let finished = staged.into_iter().map(|one| {
        let (staged, replacements, committed) = one?;
        Ok((staged.finish(timeseries, committed)?, replacements))
    });
    let finished: Vec<Result<_>> = finished.collect();
    if is_refused {
        return Err(Refused);
    }
    let results = finished.into_iter().zip(inserts).map(|(one, (insert, _))| {
        let (outcome, replacements) = one?;
        insert.replace(replacements, None)?;
        Ok(outcome)
    });
    Ok(results.collect())
}

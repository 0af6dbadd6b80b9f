//! Updates and deletes of bucket documents in `system.buckets.<name>`.
//!
//! ```text
//! {_id: x, …}       that bucket
//! anything else     scan by _id ──▶ test ──▶ claim ──▶ test again ──▶ change
//! ```
//!
//! A bucket is tested twice: once while it is found, and once when it has been taken from the
//! writers, with all that was on its way into it. The scan goes by `_id`, which cannot change, so
//! none is met twice. A statement that fails half-way leaves what it changed before.

use std::sync::Arc;

use nilometer_bson::{DocRef, Document, ObjectId, ValueRef};

use crate::catalog::Collection;
use crate::database::Database;
use crate::error::Result;
use crate::eval::Collation;
use crate::eval::sort_key::SortKey;
use crate::insertion::InsertOptions;
use crate::operation::OperationContext;
use crate::timeseries::{BucketChange, BucketRange, RawChangeOptions};
use crate::write::update::{self, Update};
use crate::write::{Changed, Selection, Updated, ids_of, new_document};

/// Buckets found before they are changed together.
const FOUND_MAX: usize = 128;

/// Where buckets are changed.
#[derive(Clone, Copy)]
pub(crate) struct Buckets<'a> {
    pub(crate) database: &'a Database,
    pub(crate) collection: &'a Arc<Collection>,
}

impl Buckets<'_> {
    /// Updates what is selected.
    pub(crate) fn update(self, selection: Selection<'_>, change: &Update) -> Result<Updated> {
        let mut out = Updated::default();
        self.change(selection, &mut |document, position| {
            let after = change.apply(document.as_ref(), position, &selection.eval)?;
            if let Some(after) = &after {
                update::check::id_unchanged(change, document.as_ref(), after)?;
            }
            out.count(document, after.as_ref(), position, !selection.multi);
            Ok(after.map_or(BucketChange::Keep, BucketChange::Replace))
        })?;
        Ok(out)
    }

    /// Updates what is selected, or inserts a bucket if nothing is.
    pub(crate) fn upsert(
        self,
        operation: &OperationContext,
        selection: Selection<'_>,
        change: &Update,
        supplied: Option<DocRef<'_>>,
    ) -> Result<Updated> {
        let updated = self.update(selection, change)?;
        if updated.matched > 0 {
            return Ok(updated);
        }
        let ids = &self.database.services().ids;
        let new_id = || ids.object_id(operation.now_ms);
        let document = match supplied {
            Some(document) => document.to_document(),
            None => new_document(selection, change, &new_id)?,
        };
        let options = InsertOptions {
            ordered: true,
            durability: selection.durability,
            new_id: &new_id,
        };
        let outcome = self.database.timeseries().insert_buckets(
            self.database.catalog(),
            self.collection,
            std::iter::once(document.as_ref()),
            options,
        )?;
        outcome.all()?;
        Ok(Updated::by_insert(document))
    }

    /// Removes what is selected; tells how many and, if only one was meant, which.
    pub(crate) fn delete(self, selection: Selection<'_>) -> Result<(u64, Option<Changed>)> {
        let (mut deleted, mut removed) = (0, None);
        self.change(selection, &mut |document, position| {
            deleted += 1;
            if !selection.multi {
                removed = Some(Changed::removed(document, position));
            }
            Ok(BucketChange::Remove)
        })?;
        Ok((deleted, removed))
    }

    /// Lets `decide` choose what becomes of each selected bucket, and does it.
    fn change(self, selection: Selection<'_>, decide: &mut Decide<'_>) -> Result<()> {
        if !selection.multi && selection.sort.is_some() {
            // Another writer may change the first between the search and the claim.
            while let Some(first) = self.first(selection)? {
                if self.change_found(selection, &[first], decide)? {
                    break;
                }
            }
            return Ok(());
        }
        let wanted = if selection.multi { FOUND_MAX } else { 1 };
        let mut found = Vec::new();
        for range in ranges(selection) {
            for bucket in self
                .database
                .timeseries()
                .reader
                .scan(self.collection, range)?
            {
                let bucket = bucket?;
                let document = bucket.to_document()?;
                let matches = selection
                    .filter
                    .matches(document.as_ref(), &selection.eval)?;
                if matches {
                    found.push(bucket.id());
                }
                if found.len() >= wanted {
                    let changed = self.change_found(selection, &found, decide)?;
                    if changed && !selection.multi {
                        return Ok(());
                    }
                    found.clear();
                }
            }
        }
        self.change_found(selection, &found, decide)?;
        Ok(())
    }

    /// Changes those of the buckets that still match; true if any does.
    fn change_found(
        self,
        selection: Selection<'_>,
        found: &[ObjectId],
        decide: &mut Decide<'_>,
    ) -> Result<bool> {
        let how = RawChangeOptions {
            check_interrupt: selection.check_interrupt,
            durability: selection.durability,
        };
        let mut any = false;
        self.database.timeseries().modify_buckets(
            self.database.catalog(),
            self.collection,
            found,
            how,
            &mut |document| {
                let (matches, position) = selection
                    .filter
                    .matches_with_position(document.as_ref(), &selection.eval)?;
                if !matches {
                    return Ok(BucketChange::Keep);
                }
                any = true;
                decide(document, position)
            },
        )?;
        Ok(any)
    }

    /// The first bucket in the order asked for.
    fn first(self, selection: Selection<'_>) -> Result<Option<ObjectId>> {
        let Some(pattern) = selection.sort else {
            return Ok(None);
        };
        let mut best: Option<(SortKey, ObjectId)> = None;
        for range in ranges(selection) {
            for bucket in self
                .database
                .timeseries()
                .reader
                .scan(self.collection, range)?
            {
                (selection.check_interrupt)()?;
                let bucket = bucket?;
                let document = bucket.to_document()?;
                if !selection
                    .filter
                    .matches(document.as_ref(), &selection.eval)?
                {
                    continue;
                }
                let key = pattern.extract(document.as_ref(), &selection.eval)?;
                let better = best
                    .as_ref()
                    .is_none_or(|(known, _)| pattern.compare(&key, known).is_lt());
                if better {
                    best = Some((key, bucket.id()));
                }
            }
        }
        Ok(best.map(|(_, id)| id))
    }
}

/// Decides about a bucket document; the position is the array element the filter matched.
type Decide<'d> = dyn FnMut(&Document, Option<usize>) -> Result<BucketChange> + 'd;

/// Where the selected buckets are: by their ids if the filter says them.
fn ranges(selection: Selection<'_>) -> Vec<BucketRange> {
    let backward = selection.backward;
    // Bucket ids are no text: they compare alike under any collation.
    match ids_of(selection.filter, &Collation::SIMPLE) {
        Some(ids) => ids
            .into_iter()
            .filter_map(|id| match id {
                ValueRef::ObjectId(id) => Some(BucketRange {
                    min: Some(id.0),
                    max: Some(id.0),
                    backward,
                }),
                _ => None,
            })
            .collect(),
        None => vec![BucketRange {
            backward,
            ..BucketRange::default()
        }],
    }
}

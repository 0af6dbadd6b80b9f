//! Updates and deletes of bucket documents in `system.buckets.<name>`.
//!
//! ```text
//! {_id: x, …}       that bucket
//! anything else     scan by _id ──▶ test ──▶ claim ──▶ test again ──▶ change
//! ```
//!
//! A bucket is tested twice: by the scan, and after it is claimed, when it holds the inserts that were in
//! flight. The scan follows `_id`, which cannot change, so no bucket is met twice. A statement that fails
//! half-way keeps its earlier changes.

use std::sync::Arc;

use nilometer_bson::{DocRef, Document, ObjectId, ValueRef};

use super::ModifyContext;
use crate::catalog::Collection;
use crate::error::Result;
use crate::eval::Collation;
use crate::eval::sort_key::SortKey;
use crate::insertion::InsertOptions;
use crate::timeseries::{BucketChange, BucketRange, RawChangeOptions};
use crate::write::update::{self, Update};
use crate::write::{ChangedDocument, Selection, UpdateResult, ids_of, new_document};

/// Buckets changed together at most.
const FOUND_MAX: usize = 128;

/// The bucket documents of a time-series collection.
#[derive(Clone, Copy)]
pub(super) struct RawBuckets<'a> {
    pub(super) cx: ModifyContext<'a>,
    pub(super) collection: &'a Arc<Collection>,
}

impl RawBuckets<'_> {
    /// Updates the selected buckets.
    pub(super) fn update(self, selection: Selection<'_>, change: &Update) -> Result<UpdateResult> {
        let mut out = UpdateResult::default();
        self.change(selection, &mut |document, position| {
            let after = change.apply(document.as_ref(), position, &selection.eval)?;
            if let Some(after) = &after {
                update::check::id_unchanged(change, document.as_ref(), after)?;
            }
            out.count(document, after.as_ref(), position, !selection.multi);
            if let Some(after) = &after {
                selection.note(Some(document), Some(after), position);
            }
            Ok(after.map_or(BucketChange::Keep, BucketChange::Replace))
        })?;
        Ok(out)
    }

    /// Updates the selected buckets, or inserts one if none is.
    pub(super) fn upsert(
        self,
        selection: Selection<'_>,
        change: &Update,
        supplied: Option<DocRef<'_>>,
        new_id: &dyn Fn() -> ObjectId,
    ) -> Result<UpdateResult> {
        let updated = self.update(selection, change)?;
        if updated.matched > 0 {
            return Ok(updated);
        }
        let document = match supplied {
            Some(document) => document.to_document(),
            None => new_document(selection, change, new_id)?,
        };
        let options = InsertOptions {
            ordered: true,
            durability: selection.durability,
            new_id,
            record: selection.record,
        };
        selection.note(None, Some(&document), None);
        let outcome = self.cx.timeseries.insert_buckets(
            self.cx.catalog,
            self.collection,
            std::iter::once(document.as_ref()),
            options,
        )?;
        outcome.all()?;
        Ok(UpdateResult::by_insert(document))
    }

    /// Removes the selected buckets; returns their number and, if one was meant, the bucket.
    pub(super) fn delete(self, selection: Selection<'_>) -> Result<(u64, Option<ChangedDocument>)> {
        let (mut deleted, mut removed) = (0, None);
        self.change(selection, &mut |document, position| {
            deleted += 1;
            if !selection.multi {
                removed = Some(ChangedDocument::removed(document, position));
            }
            selection.note(Some(document), None, position);
            Ok(BucketChange::Remove)
        })?;
        Ok((deleted, removed))
    }

    /// Applies the decision of `decide` to each selected bucket.
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
            for bucket in self.cx.timeseries.reader.scan(self.collection, range)? {
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
            record: selection.record,
        };
        let mut any = false;
        self.cx.timeseries.modify_buckets(
            self.cx.catalog,
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

    /// Returns the first bucket in the sort order.
    fn first(self, selection: Selection<'_>) -> Result<Option<ObjectId>> {
        let Some(pattern) = selection.sort else {
            return Ok(None);
        };
        let mut best: Option<(SortKey, ObjectId)> = None;
        for range in ranges(selection) {
            for bucket in self.cx.timeseries.reader.scan(self.collection, range)? {
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

/// Decides on a bucket document; the position is the array element that the filter matched.
type Decide<'d> = dyn FnMut(&Document, Option<usize>) -> Result<BucketChange> + 'd;

/// Returns the id ranges of the selected buckets: single ids if the filter names them.
fn ranges(selection: Selection<'_>) -> Vec<BucketRange> {
    let backward = selection.backward;
    // Collations do not affect object ids.
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

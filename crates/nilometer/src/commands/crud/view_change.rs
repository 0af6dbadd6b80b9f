//! Updates and deletes of measurements, through a time-series collection.
//!
//! ```text
//! the filter reads metadata alone, or nothing    all of them: whole buckets, nothing decompressed
//! anything else, or one measurement              bucket by bucket, measurement by measurement
//! ```
//!
//! What an ordinary collection allows is allowed here. Two things differ: `_id` may change, as nothing
//! depends on it, and an order in which to look for the one measurement cannot be asked for.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use nilometer_bson::{DocRef, Document, ValueRef};
use nilometer_storage::Durability;

use crate::catalog::Collection;
use crate::database::StoredCollections;
use crate::error::{Error, Result};
use crate::insertion::InsertOptions;
use crate::operation::OperationContext;
use crate::query::source::ScanCounters;
use crate::timeseries::{
    FindBuckets, MeasurementAction, MeasurementChange, MeasurementSelection, ModifyStats,
    SeriesChange, WriteLockGuard,
};
use crate::write::update::{Update, document_of_filter};
use crate::write::{Changed, Selection, Updated, with_id};

/// Where measurements are changed.
#[derive(Clone, Copy)]
pub(crate) struct Measurements<'a> {
    pub(crate) stored: &'a StoredCollections,
    /// The collection of the buckets.
    pub(crate) collection: &'a Arc<Collection>,
}

/// How a statement goes about it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Way {
    /// Whole buckets, by their metadata.
    Series,
    /// Measurement by measurement.
    #[default]
    Measurements,
}

/// What a statement did, or would do, and how.
#[derive(Debug, Default)]
pub(crate) struct Effect {
    pub(crate) way: Way,
    pub(crate) updated: Updated,
    pub(crate) deleted: u64,
    pub(crate) stats: ModifyStats,
    /// What was looked at to find the buckets.
    pub(crate) examined: Arc<ScanCounters>,
}

pub(crate) fn measurement_selection<'a>(
    selection: Selection<'a>,
    dry: bool,
    find: Option<&'a FindBuckets<'a>>,
) -> MeasurementSelection<'a> {
    MeasurementSelection {
        filter: selection.filter,
        multi: selection.multi,
        backward: selection.backward,
        eval: selection.eval,
        collator: selection.collator,
        check_interrupt: selection.check_interrupt,
        dry,
        find,
        closed_too: false,
    }
}

fn count(counter: &AtomicI64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl<'a> Measurements<'a> {
    /// Refuses an order in which to look: measurements have none that could be kept.
    fn check(self, selection: &Selection<'_>) -> Result<()> {
        match selection.sort {
            Some(_) => Err(Error::invalid_options(
                "Cannot perform an update or a remove with a sort on a time-series collection",
            )),
            None => Ok(()),
        }
    }

    fn turn(self, selection: &Selection<'_>) -> Result<WriteLockGuard<'a>> {
        let timeseries = &self.stored.timeseries;
        timeseries.lock_writes(self.collection, selection.check_interrupt)
    }

    /// Waits for the disk behind a change, outside of the turn.
    fn settle(self, selection: &Selection<'_>) -> Result<()> {
        if selection.durability == Durability::Sync {
            self.stored.records.sync()?;
        }
        Ok(())
    }

    /// Removes what is selected; tells how many and, if only one was meant, which.
    pub(crate) fn delete(self, selection: Selection<'_>) -> Result<(u64, Option<Changed>)> {
        self.check(&selection)?;
        let turn = self.turn(&selection)?;
        let mut removed = None;
        let effect = self.remove(&turn, selection, false, &mut removed)?;
        drop(turn);
        let metrics = &self.stored.timeseries.metrics;
        count(match effect.way {
            Way::Series => &metrics.meta_delete,
            Way::Measurements => &metrics.measurement_delete,
        });
        self.settle(&selection)?;
        Ok((effect.deleted, removed))
    }

    /// What an update would do; unless it is to be tried, only how it would go about it.
    pub(crate) fn would_update(
        self,
        selection: Selection<'_>,
        change: &Update,
        tried: bool,
    ) -> Result<Effect> {
        self.check(&selection)?;
        match tried {
            true => self.apply(&self.turn(&selection)?, selection, change, true),
            false => Ok(Effect::default()),
        }
    }

    /// What a delete would do; unless it is to be tried, only how it would go about it.
    pub(crate) fn would_delete(self, selection: Selection<'_>, tried: bool) -> Result<Effect> {
        self.check(&selection)?;
        match tried {
            true => self.remove(&self.turn(&selection)?, selection, true, &mut None),
            false => Ok(Effect {
                way: self.delete_way(selection)?,
                ..Effect::default()
            }),
        }
    }

    fn remove(
        self,
        turn: &WriteLockGuard<'_>,
        selection: Selection<'_>,
        dry: bool,
        removed: &mut Option<Changed>,
    ) -> Result<Effect> {
        let timeseries = &self.stored.timeseries;
        let catalog = &self.stored.catalog;
        let examined = Arc::<ScanCounters>::default();
        let find = |range| self.find(&selection, range, &examined);
        let wanted = measurement_selection(selection, dry, Some(&find));
        let way = self.delete_way(selection)?;
        let mut deleted = 0;
        let mut stats = ModifyStats::default();
        match way {
            Way::Series => timeseries.modify_series(
                turn,
                catalog,
                self.collection,
                wanted,
                &mut |_, count| {
                    deleted += count;
                    Ok(SeriesChange::Remove)
                },
            )?,
            Way::Measurements => {
                let mut take = |document: &Document| {
                    let position = self.position(selection, document)?;
                    *removed = Some(Changed::removed(document, position));
                    Ok(MeasurementChange::Remove)
                };
                let action = match selection.multi {
                    true => MeasurementAction::Remove,
                    false => MeasurementAction::Decide(&mut take),
                };
                stats = timeseries.modify_measurements(
                    turn,
                    catalog,
                    self.collection,
                    wanted,
                    action,
                )?;
                deleted = stats.matched;
            }
        }
        Ok(Effect {
            way,
            updated: Updated::default(),
            deleted,
            stats,
            examined,
        })
    }

    /// How a delete goes about it.
    pub(crate) fn delete_way(self, selection: Selection<'_>) -> Result<Way> {
        let timeseries = &self.stored.timeseries;
        let wanted = measurement_selection(selection, false, None);
        Ok(
            match selection.multi && timeseries.is_by_series(self.collection, &wanted)? {
                true => Way::Series,
                false => Way::Measurements,
            },
        )
    }

    /// The array element the filter matched, for those who ask for it.
    fn position(self, selection: Selection<'_>, document: &Document) -> Result<Option<usize>> {
        let matched = selection
            .filter
            .matches_with_position(document.as_ref(), &selection.eval)?;
        Ok(matched.1)
    }

    /// Updates what is selected.
    pub(crate) fn update(self, selection: Selection<'_>, change: &Update) -> Result<Updated> {
        self.check(&selection)?;
        let turn = self.turn(&selection)?;
        let effect = self.apply(&turn, selection, change, false)?;
        drop(turn);
        self.count_update(&effect);
        self.settle(&selection)?;
        Ok(effect.updated)
    }

    fn count_update(self, effect: &Effect) {
        let metrics = &self.stored.timeseries.metrics;
        count(match effect.way {
            Way::Series => &metrics.meta_update,
            Way::Measurements => &metrics.measurement_update,
        });
    }

    fn apply(
        self,
        turn: &WriteLockGuard<'_>,
        selection: Selection<'_>,
        change: &Update,
        dry: bool,
    ) -> Result<Effect> {
        let timeseries = &self.stored.timeseries;
        let examined = Arc::<ScanCounters>::default();
        let find = |range| self.find(&selection, range, &examined);
        let wanted = measurement_selection(selection, dry, Some(&find));
        let options = self.collection.timeseries.as_ref();
        let meta_field = options.and_then(|options| options.meta_field.as_deref());
        let by_series = selection.multi
            && meta_field.is_some_and(|meta_field| change.touches_only(meta_field))
            && timeseries.is_by_series(self.collection, &wanted)?;
        if by_series {
            return self.apply_to_series(turn, selection, change, dry);
        }
        let mut updated = Updated::default();
        let mut decide = |document: &Document| {
            let position = match change.needs_position() || !selection.multi {
                true => self.position(selection, document)?,
                false => None,
            };
            let after = change.apply(document.as_ref(), position, &selection.eval)?;
            let after = match after {
                Some(after) => Some(timeseries.stored_form(self.collection, after)?),
                None => None,
            };
            updated.count(document, after.as_ref(), position, !selection.multi);
            Ok(after.map_or(MeasurementChange::Keep, MeasurementChange::Replace))
        };
        let stats = timeseries.modify_measurements(
            turn,
            &self.stored.catalog,
            self.collection,
            wanted,
            MeasurementAction::Decide(&mut decide),
        )?;
        Ok(Effect {
            way: Way::Measurements,
            updated,
            deleted: 0,
            stats,
            examined,
        })
    }

    /// The metadata of all measurements of a bucket changes alike.
    fn apply_to_series(
        self,
        turn: &WriteLockGuard<'_>,
        selection: Selection<'_>,
        change: &Update,
        dry: bool,
    ) -> Result<Effect> {
        let timeseries = &self.stored.timeseries;
        let mut updated = Updated::default();
        let examined = Arc::<ScanCounters>::default();
        let find = |range| self.find(&selection, range, &examined);
        timeseries.modify_series(
            turn,
            &self.stored.catalog,
            self.collection,
            measurement_selection(selection, dry, Some(&find)),
            &mut |meta, count| {
                let position = self.position(selection, meta)?;
                let after = change.apply(meta.as_ref(), position, &selection.eval)?;
                updated.matched += count;
                let Some(after) = after else {
                    return Ok(SeriesChange::Keep);
                };
                updated.modified += count;
                let meta = after.iter().next().map(|element| element.value());
                let meta = meta.unwrap_or(ValueRef::Missing).to_value();
                Ok(SeriesChange::Meta(meta))
            },
        )?;
        let stats = ModifyStats {
            matched: updated.matched,
            unpacked: 0,
        };
        Ok(Effect {
            way: Way::Series,
            updated,
            deleted: 0,
            stats,
            examined,
        })
    }

    /// Updates what is selected, or inserts a measurement if nothing is. `supplied` is inserted
    /// instead of what filter and update make.
    pub(crate) fn upsert(
        self,
        operation: &OperationContext,
        selection: Selection<'_>,
        change: &Update,
        supplied: Option<DocRef<'_>>,
    ) -> Result<Updated> {
        self.check(&selection)?;
        let turn = self.turn(&selection)?;
        let effect = self.apply(&turn, selection, change, false)?;
        self.count_update(&effect);
        let mut updated = effect.updated;
        if updated.matched == 0 {
            updated = self.insert(&turn, operation, selection, change, supplied)?;
        }
        drop(turn);
        self.settle(&selection)?;
        Ok(updated)
    }

    fn insert(
        self,
        turn: &WriteLockGuard<'_>,
        operation: &OperationContext,
        selection: Selection<'_>,
        change: &Update,
        supplied: Option<DocRef<'_>>,
    ) -> Result<Updated> {
        let ids = &self.stored.services.ids;
        let new_id = || ids.object_id(operation.now_ms);
        let made = match supplied {
            Some(document) => document.to_document(),
            None => {
                let base = document_of_filter(selection.filter, change)?;
                change.apply_to_new(&base, &selection.eval)?
            }
        };
        let timeseries = &self.stored.timeseries;
        let document = timeseries.stored_form(self.collection, with_id(made, &new_id))?;
        let options = InsertOptions {
            ordered: true,
            durability: Durability::Buffered,
            new_id: &new_id,
        };
        let outcome = timeseries.insert_with_lock(
            &self.stored.catalog,
            self.collection,
            std::iter::once(document.as_ref()),
            options,
            Some(turn),
        )?;
        outcome.all()?;
        Ok(Updated::by_insert(document))
    }
}

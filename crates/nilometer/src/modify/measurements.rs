//! Updates and deletes of measurements, through a time-series collection.
//!
//! ```text
//! all matches, filter reads metadata at most    whole buckets, nothing decompressed
//! one match, or any other filter                bucket by bucket, measurement by measurement
//! ```
//!
//! This is the level of statements; `timeseries/modify/measurements.rs` changes the buckets.
//!
//! Two things differ from ordinary collections: `_id` may change, because no index depends on it, and a
//! sort order is refused.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use nilometer_bson::{DocRef, Document, ValueRef};
use nilometer_storage::Durability;

use super::{Modified, ModifyAction, ModifyContext, ModifyStatement, new_document};
use crate::catalog::Collection;
use crate::error::{Error, Result};
use crate::insertion::InsertOptions;
use crate::query::source::ScanCounters;
use crate::timeseries::{
    DecideSeries, ExplainedSelection, FindBuckets, MeasurementAction, MeasurementChange,
    MeasurementSelection, ModifyStats, SeriesChange, WriteLockGuard,
};
use crate::write::update::Update;
use crate::write::{ChangedDocument, UpdateResult};

/// The measurements of a time-series collection, and the statement that changes them.
#[derive(Clone, Copy)]
pub(crate) struct Measurements<'a> {
    pub(crate) cx: ModifyContext<'a>,
    /// The collection of the buckets.
    pub(crate) collection: &'a Arc<Collection>,
    pub(crate) statement: &'a ModifyStatement<'a>,
}

/// How a statement changes measurements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ModifyStrategy {
    /// Whole buckets, by their metadata.
    WholeBuckets,
    /// Measurement by measurement.
    #[default]
    Measurements,
}

/// The result of a statement, or of its dry run.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) strategy: ModifyStrategy,
    pub(crate) modified: Modified,
    pub(crate) stats: ModifyStats,
    /// Index keys and buckets examined to find the buckets.
    pub(crate) examined: Arc<ScanCounters>,
}

impl<'a> Measurements<'a> {
    /// Runs the statement.
    pub(super) fn run(self) -> Result<Modified> {
        self.check()?;
        let statement = self.statement;
        let lock = self.lock()?;
        let outcome = self.apply(&lock, false)?;
        self.count(&outcome);
        let mut modified = outcome.modified;
        if modified.matched == 0
            && let ModifyAction::Update {
                update,
                upsert: true,
                supplied,
            } = statement.action
        {
            modified = self.insert(&lock, update, supplied)?;
        }
        drop(lock);
        if statement.durability == Durability::Sync {
            self.cx.records.sync()?;
        }
        Ok(modified)
    }

    /// Finds the strategy and, if `execute`, the counts of a run that changes nothing.
    pub(crate) fn explain(self, execute: bool) -> Result<Outcome> {
        self.check()?;
        if execute {
            return self.apply(&self.lock()?, true);
        }
        let strategy = match self.statement.action {
            ModifyAction::Delete => self.delete_strategy()?,
            ModifyAction::Update { .. } => ModifyStrategy::default(),
        };
        Ok(Outcome {
            strategy,
            ..Outcome::default()
        })
    }

    /// Returns the parts of the filter, for `explain`.
    pub(crate) fn explain_selection(self) -> Result<ExplainedSelection> {
        let check_interrupt = || self.statement.operation.check_interrupt();
        let selection = self.selection(true, None, &check_interrupt);
        self.cx
            .timeseries
            .explain_selection(self.collection, &selection)
    }

    /// Refuses a sort order: measurements have none that could be kept.
    fn check(self) -> Result<()> {
        match self.statement.selector.sort {
            Some(_) => Err(Error::invalid_options(
                "Cannot perform an update or a remove with a sort on a time-series collection",
            )),
            None => Ok(()),
        }
    }

    /// Notes the change of a measurement.
    fn note(self, before: Option<&Document>, after: Option<&Document>, position: Option<usize>) {
        if let Some(record) = self.statement.record {
            record.changed(before, after, position);
        }
    }

    fn lock(self) -> Result<WriteLockGuard<'a>> {
        let check_interrupt = || self.statement.operation.check_interrupt();
        let timeseries = self.cx.timeseries;
        timeseries.lock_writes(self.collection, &check_interrupt)
    }

    /// Counts the statement in `serverStatus`.
    fn count(self, outcome: &Outcome) {
        let metrics = &self.cx.timeseries.metrics;
        let counter = match (self.statement.action, outcome.strategy) {
            (ModifyAction::Delete, ModifyStrategy::WholeBuckets) => &metrics.meta_delete,
            (ModifyAction::Delete, ModifyStrategy::Measurements) => &metrics.measurement_delete,
            (_, ModifyStrategy::WholeBuckets) => &metrics.meta_update,
            (_, ModifyStrategy::Measurements) => &metrics.measurement_update,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    fn apply(self, lock: &WriteLockGuard<'_>, dry: bool) -> Result<Outcome> {
        let examined = Arc::<ScanCounters>::default();
        let find = |range| self.find(range, &examined);
        let check_interrupt = || self.statement.operation.check_interrupt();
        let selection = self.selection(dry, Some(&find), &check_interrupt);
        let mut outcome = match self.statement.action {
            ModifyAction::Delete => self.remove(lock, selection)?,
            ModifyAction::Update { update, .. } => self.update(lock, selection, update)?,
        };
        outcome.examined = examined;
        Ok(outcome)
    }

    fn remove(
        self,
        lock: &WriteLockGuard<'_>,
        selection: MeasurementSelection<'_>,
    ) -> Result<Outcome> {
        let strategy = self.delete_strategy()?;
        if strategy == ModifyStrategy::WholeBuckets {
            let mut deleted = 0;
            self.change_buckets(lock, selection, &mut |_, count| {
                deleted += count;
                Ok(SeriesChange::Remove)
            })?;
            return Ok(Outcome {
                strategy,
                modified: Modified::by_delete((deleted, None)),
                ..Outcome::default()
            });
        }
        let mut removed = None;
        let mut take = |document: &Document| {
            let position = self.position(document)?;
            self.note(Some(document), None, position);
            removed = Some(ChangedDocument::removed(document, position));
            Ok(MeasurementChange::Remove)
        };
        let action = match selection.multi {
            true => MeasurementAction::Remove,
            false => MeasurementAction::Decide(&mut take),
        };
        let stats = self.change(lock, selection, action)?;
        Ok(Outcome {
            strategy,
            modified: Modified::by_delete((stats.matched, removed)),
            stats,
            ..Outcome::default()
        })
    }

    /// Returns how a delete is carried out.
    fn delete_strategy(self) -> Result<ModifyStrategy> {
        let check_interrupt = || self.statement.operation.check_interrupt();
        let selection = self.selection(false, None, &check_interrupt);
        let timeseries = self.cx.timeseries;
        Ok(
            match self.statement.multi && timeseries.is_by_series(self.collection, &selection)? {
                true => ModifyStrategy::WholeBuckets,
                false => ModifyStrategy::Measurements,
            },
        )
    }

    fn update(
        self,
        lock: &WriteLockGuard<'_>,
        selection: MeasurementSelection<'_>,
        update: &Update,
    ) -> Result<Outcome> {
        let timeseries = self.cx.timeseries;
        let options = self.collection.timeseries.as_ref();
        let meta_field = options.and_then(|options| options.meta_field.as_deref());
        let by_series = selection.multi
            && meta_field.is_some_and(|meta_field| update.touches_only(meta_field))
            && timeseries.is_by_series(self.collection, &selection)?;
        if by_series {
            return self.update_buckets(lock, selection, update);
        }
        let mut updated = UpdateResult::default();
        let mut decide = |document: &Document| {
            let position = match update.needs_position() || !selection.multi {
                true => self.position(document)?,
                false => None,
            };
            let after = update.apply(document.as_ref(), position, &selection.eval)?;
            let after = match after {
                Some(after) => Some(timeseries.stored_form(self.collection, after)?),
                None => None,
            };
            updated.count(document, after.as_ref(), position, !selection.multi);
            if let Some(after) = &after {
                self.note(Some(document), Some(after), position);
            }
            Ok(after.map_or(MeasurementChange::Keep, MeasurementChange::Replace))
        };
        let stats = self.change(lock, selection, MeasurementAction::Decide(&mut decide))?;
        Ok(Outcome {
            strategy: ModifyStrategy::Measurements,
            modified: updated.into(),
            stats,
            ..Outcome::default()
        })
    }

    /// Changes the metadata of whole buckets.
    fn update_buckets(
        self,
        lock: &WriteLockGuard<'_>,
        selection: MeasurementSelection<'_>,
        update: &Update,
    ) -> Result<Outcome> {
        let mut modified = Modified::default();
        self.change_buckets(lock, selection, &mut |meta, count| {
            let position = self.position(meta)?;
            let after = update.apply(meta.as_ref(), position, &selection.eval)?;
            modified.matched += count;
            let Some(after) = after else {
                return Ok(SeriesChange::Keep);
            };
            modified.modified += count;
            let meta = after.iter().next().map(|element| element.value());
            let meta = meta.unwrap_or(ValueRef::Missing).to_value();
            Ok(SeriesChange::Meta(meta))
        })?;
        let stats = ModifyStats {
            matched: modified.matched,
            unpacked: 0,
        };
        Ok(Outcome {
            strategy: ModifyStrategy::WholeBuckets,
            modified,
            stats,
            ..Outcome::default()
        })
    }

    /// Inserts the document of an upsert that matched nothing.
    fn insert(
        self,
        lock: &WriteLockGuard<'_>,
        update: &Update,
        supplied: Option<DocRef<'_>>,
    ) -> Result<Modified> {
        let statement = self.statement;
        let new_id = || self.cx.ids.object_id(statement.operation.now_ms);
        let filter = &statement.selector.filter;
        let made = new_document(filter, update, supplied, (&statement.eval, &new_id))?;
        let timeseries = self.cx.timeseries;
        let document = timeseries.stored_form(self.collection, made)?;
        let options = InsertOptions {
            ordered: true,
            durability: Durability::Buffered,
            new_id: &new_id,
            record: statement.record,
        };
        self.note(None, Some(&document), None);
        let outcome = timeseries.insert_with_lock(
            self.cx.catalog,
            self.collection,
            std::iter::once(document.as_ref()),
            options,
            Some(lock),
        )?;
        outcome.all()?;
        Ok(UpdateResult::by_insert(document).into())
    }

    fn change(
        self,
        lock: &WriteLockGuard<'_>,
        selection: MeasurementSelection<'_>,
        action: MeasurementAction<'_>,
    ) -> Result<ModifyStats> {
        let (timeseries, catalog) = (self.cx.timeseries, self.cx.catalog);
        timeseries.modify_measurements(lock, catalog, self.collection, selection, action)
    }

    fn change_buckets(
        self,
        lock: &WriteLockGuard<'_>,
        selection: MeasurementSelection<'_>,
        decide: &mut DecideSeries<'_>,
    ) -> Result<()> {
        let (timeseries, catalog) = (self.cx.timeseries, self.cx.catalog);
        timeseries.modify_series(lock, catalog, self.collection, selection, decide)
    }

    /// Returns the position of the array element that the filter matched.
    fn position(self, document: &Document) -> Result<Option<usize>> {
        let statement = self.statement;
        let filter = &statement.selector.filter;
        let matched = filter.matches_with_position(document.as_ref(), &statement.eval)?;
        Ok(matched.1)
    }

    /// The selection as `timeseries` takes it.
    fn selection<'s>(
        self,
        dry: bool,
        find: Option<&'s FindBuckets<'s>>,
        check_interrupt: &'s dyn Fn() -> Result<()>,
    ) -> MeasurementSelection<'s>
    where
        'a: 's,
    {
        let statement = self.statement;
        MeasurementSelection {
            filter: &statement.selector.filter,
            multi: statement.multi,
            backward: statement.is_backward(),
            eval: statement.eval,
            collator: statement.collator,
            check_interrupt,
            dry,
            find,
            closed_too: false,
            record: statement.record,
        }
    }
}

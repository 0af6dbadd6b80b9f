//! One update or delete statement: what it selects, what it does, and its run.

use std::borrow::Cow;
use std::sync::Arc;

use nilometer_bson::{DocRef, Document, ObjectId, Value};
use nilometer_storage::Durability;

use super::measurements::Measurements;
use super::raw_buckets::RawBuckets;
use super::{ModifyContext, WriteTarget};
use crate::catalog::{Collection, Namespace};
use crate::error::Result;
use crate::eval::EvalContext;
use crate::eval::matcher::MatchExpression;
use crate::eval::sort_key::SortPattern;
use crate::eval::variables::SharedCollator;
use crate::index::buckets::BucketIndex;
use crate::insertion::{BatchRecord, ChangeGuard};
use crate::operation::OperationContext;
use crate::query::exec::scan::write_candidates::Targets;
use crate::query::planner::access::hint::Hint;
use crate::query::source::Direction;
use crate::write::update::{Update, document_of_filter};
use crate::write::{ChangedDocument, Selection, UpdateResult, with_id};

/// An update or delete statement.
pub(crate) struct ModifyStatement<'a> {
    /// The command or stage that runs it: time, limits, bypassed checks.
    pub(crate) operation: &'a OperationContext,
    pub(crate) namespace: &'a Namespace,
    pub(crate) selector: &'a Selector<'a>,
    /// All matching documents, or the first.
    pub(crate) multi: bool,
    pub(crate) action: ModifyAction<'a>,
    /// Variables, time, randomness and collation of its expressions.
    pub(crate) eval: EvalContext<'a>,
    /// The collation of strings, if not binary: the same as in `eval`, shared.
    pub(crate) collator: Option<&'a SharedCollator>,
    /// Whether each commit waits for the disk.
    pub(crate) durability: Durability,
    /// What is stored beside the change of the one document, if the statement may be repeated.
    pub(crate) record: Option<&'a dyn BatchRecord>,
    /// What must allow each update of a document of an ordinary collection.
    pub(crate) guard: Option<&'a dyn ChangeGuard>,
    /// The records an index leads to; all if `None` ([`Self::find_candidates`]).
    pub(crate) candidates: Option<Targets>,
}

/// The documents that a statement means.
pub(crate) struct Selector<'f> {
    pub(crate) filter: Cow<'f, MatchExpression>,
    /// Which document is the first, if one is meant.
    pub(crate) sort: Option<SortPattern>,
    pub(crate) hint: StatementHint,
}

/// The `hint` of a statement, resolved.
#[derive(Default)]
pub(crate) struct StatementHint {
    /// A scan in this direction, without an index.
    pub(crate) natural: Option<Direction>,
    /// An index of an ordinary collection.
    pub(crate) index: Option<Hint>,
    /// An index over buckets.
    pub(crate) bucket_index: Option<Arc<BucketIndex>>,
}

/// What a statement does to the documents it selects.
#[derive(Clone, Copy)]
pub(crate) enum ModifyAction<'a> {
    /// Removes them.
    Delete,
    /// Changes them.
    Update {
        update: &'a Update,
        /// Inserts a document if none matches.
        upsert: bool,
        /// The document to insert, instead of one made from filter and update.
        supplied: Option<DocRef<'a>>,
    },
}

impl ModifyAction<'_> {
    fn upserts(self) -> bool {
        matches!(self, Self::Update { upsert: true, .. })
    }
}

/// The result of a statement.
#[derive(Debug, Default)]
pub(crate) struct Modified {
    /// Documents that an update matched.
    pub(crate) matched: u64,
    /// Documents that an update changed.
    pub(crate) modified: u64,
    /// Documents that a delete removed.
    pub(crate) deleted: u64,
    /// The `_id` of the document an upsert inserted.
    pub(crate) upserted: Option<Value>,
    /// The document before and after, if one was meant.
    pub(crate) document: Option<ChangedDocument>,
}

impl From<UpdateResult> for Modified {
    fn from(updated: UpdateResult) -> Self {
        Self {
            matched: updated.matched,
            modified: updated.modified,
            deleted: 0,
            upserted: updated.upserted,
            document: updated.document,
        }
    }
}

impl Modified {
    pub(super) fn by_delete((deleted, document): (u64, Option<ChangedDocument>)) -> Self {
        Self {
            deleted,
            document,
            ..Self::default()
        }
    }
}

/// Returns the document that an upsert inserts: `supplied`, or one made of its filter and its update. It has an `_id`.
pub(crate) fn new_document(
    filter: &MatchExpression,
    update: &Update,
    supplied: Option<DocRef<'_>>,
    (eval, new_id): (&EvalContext<'_>, &dyn Fn() -> ObjectId),
) -> Result<Document> {
    let made = match supplied {
        Some(document) => document.to_document(),
        None => {
            let base = document_of_filter(filter, update)?;
            update.apply_to_new(&base, eval)?
        }
    };
    Ok(with_id(made, new_id))
}

impl<'f> Selector<'f> {
    /// Selects by a filter alone.
    pub(crate) fn matching(filter: &'f MatchExpression) -> Self {
        Self {
            filter: Cow::Borrowed(filter),
            sort: None,
            hint: StatementHint::default(),
        }
    }
}

impl ModifyStatement<'_> {
    /// Runs the statement on the collection of its namespace; an upsert creates the collection if it needs one.
    pub(crate) fn run(&self, cx: ModifyContext<'_>) -> Result<Modified> {
        let target = match WriteTarget::of(cx.catalog, self.namespace)? {
            WriteTarget::Absent if self.action.upserts() => {
                WriteTarget::Records(cx.find_or_create(self.operation, self.namespace)?)
            }
            target => target,
        };
        match &target {
            WriteTarget::Absent => Ok(Modified::default()),
            WriteTarget::Records(collection) => self.run_on_records(cx, collection),
            WriteTarget::Buckets(collection) => self.run_on_buckets(cx, collection),
            WriteTarget::Measurements(collection) => self.run_on_measurements(cx, collection),
        }
    }

    /// Runs the statement on an ordinary collection.
    pub(crate) fn run_on_records(
        &self,
        cx: ModifyContext<'_>,
        collection: &Collection,
    ) -> Result<Modified> {
        let check_interrupt = || self.operation.check_interrupt();
        let selection = self.selection(&check_interrupt);
        let records = cx.records;
        match self.action {
            ModifyAction::Delete => Ok(Modified::by_delete(records.delete(collection, selection)?)),
            ModifyAction::Update {
                update,
                upsert: false,
                ..
            } => Ok(records.update(collection, selection, update)?.into()),
            ModifyAction::Update {
                update, supplied, ..
            } => {
                let new_id = || cx.ids.object_id(self.operation.now_ms);
                let updated = records.upsert(collection, selection, update, supplied, &new_id)?;
                Ok(updated.into())
            }
        }
    }

    fn run_on_buckets(
        &self,
        cx: ModifyContext<'_>,
        collection: &Arc<Collection>,
    ) -> Result<Modified> {
        let buckets = RawBuckets { cx, collection };
        let check_interrupt = || self.operation.check_interrupt();
        let selection = self.selection(&check_interrupt);
        match self.action {
            ModifyAction::Delete => Ok(Modified::by_delete(buckets.delete(selection)?)),
            ModifyAction::Update {
                update,
                upsert: false,
                ..
            } => Ok(buckets.update(selection, update)?.into()),
            ModifyAction::Update {
                update, supplied, ..
            } => {
                let new_id = || cx.ids.object_id(self.operation.now_ms);
                let updated = buckets.upsert(selection, update, supplied, &new_id)?;
                Ok(updated.into())
            }
        }
    }

    /// Runs the statement on the measurements of a bucket collection.
    pub(crate) fn run_on_measurements(
        &self,
        cx: ModifyContext<'_>,
        collection: &Arc<Collection>,
    ) -> Result<Modified> {
        let measurements = Measurements {
            cx,
            collection,
            statement: self,
        };
        measurements.run()
    }

    /// True if documents are searched from the newest to the oldest.
    pub(super) fn is_backward(&self) -> bool {
        self.selector.hint.natural == Some(Direction::Backward)
    }

    /// The selection as `write` takes it.
    fn selection<'s>(&'s self, check_interrupt: &'s dyn Fn() -> Result<()>) -> Selection<'s> {
        Selection {
            filter: &self.selector.filter,
            sort: self.selector.sort.as_ref(),
            multi: self.multi,
            backward: self.is_backward(),
            candidates: self.candidates.as_ref().map(|targets| targets as _),
            durability: self.durability,
            eval: self.eval,
            bypass: self.operation.bypass,
            check_interrupt,
            record: self.record,
            guard: self.guard,
        }
    }
}

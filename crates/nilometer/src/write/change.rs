//! Changing and removing the records that a filter selects.
//!
//! ```text
//! {_id: x, …}, {_id: {$in: […]}, …}      look-ups in the _id index
//! index scans                            candidates in chunks ──▶ as below
//! anything else                          scan in chunks ──▶ test ──▶ change ──▶ one engine batch per chunk
//! ```
//!
//! The write lock of the collection is held from the reading of a chunk to its commit, so that no other
//! writer changes a record between the test and the change. It is released between chunks, so that a long
//! statement does not block others. A record keeps its key when it changes and the scan follows the keys,
//! so no record is met twice. If a sort order decides which record is changed, the lock is held over the
//! whole scan.
//!
//! A statement that fails half-way keeps its earlier changes: each document is atomic, the statement is
//! not, as in MongoDB.
//!
//! A command of one change waits for the disk in its commit, together with other writers; a command of many
//! commits them without waiting and calls [`Records::sync`] once, before it answers.

use nilometer_bson::{DocRef, Document, ObjectId, Value, ValueRef};
use nilometer_storage::{Durability, KeyspaceId, Snapshot, WriteBatch};

use super::candidates::Candidates;
use super::capped::{CappedState, CollectionSize, bytes_of};
use super::insert::with_id;
use super::maintenance::IndexMaintenance;
use super::records::{CollectionState, Records, id_key, keyspaces};
use super::update::{self, Update};
use super::validator::{DocumentChecks, Validator};
use crate::catalog::Collection;
use crate::change_entry::ChangeNotes;
use crate::error::{Error, ErrorCode, Result};
use crate::eval::collation::has_text;
use crate::eval::matcher::{CompareOp, MatchExpression};
use crate::eval::sort_key::{SortKey, SortPattern};
use crate::eval::{Collation, EvalContext};
use crate::insertion::{BatchRecord, ChangeGuard, InsertOptions};
use crate::operation::Bypass;

/// Retries of an upsert after another writer has inserted the document it searched for.
const UPSERT_RETRIES_MAX: usize = 10;

/// Look-ups by `_id` under one acquisition of the write lock.
const IDS_PER_LOCK: usize = 256;

/// Bytes of an engine batch after which the next begins.
const BATCH_BYTES_MAX: u64 = 32 << 20;

/// The records a statement selects, and how they are found.
#[derive(Clone, Copy)]
pub struct Selection<'a> {
    /// The condition they match.
    pub filter: &'a MatchExpression,
    /// The order that decides which record comes first, if only one is selected.
    pub sort: Option<&'a SortPattern>,
    /// True to select all matching records, false to select the first.
    pub multi: bool,
    /// True to scan from the newest record.
    pub backward: bool,
    /// The records to search; all if `None`.
    pub candidates: Option<&'a dyn Candidates>,
    /// Whether each batch waits for the disk. With many batches, one [`Records::sync`] after the last is
    /// cheaper.
    pub durability: Durability,
    /// Time, variables, randomness.
    pub eval: EvalContext<'a>,
    /// Checks that are skipped for the written documents.
    pub bypass: Bypass,
    /// Fails if the statement was interrupted.
    pub check_interrupt: &'a dyn Fn() -> Result<()>,
    /// What is stored beside the change of the one document, if the statement may be repeated.
    pub record: Option<&'a dyn BatchRecord>,
    /// What must allow each update of a document.
    pub guard: Option<&'a dyn ChangeGuard>,
}

impl<'a> Selection<'a> {
    /// Selects the first record that matches; nothing waits for the disk. Strings compare by the collation
    /// of the filter.
    pub fn first(
        filter: &'a MatchExpression,
        eval: EvalContext<'a>,
        check_interrupt: &'a dyn Fn() -> Result<()>,
    ) -> Self {
        Self {
            filter,
            sort: None,
            multi: false,
            backward: false,
            candidates: None,
            durability: Durability::Buffered,
            eval,
            bypass: Bypass::default(),
            check_interrupt,
            record: None,
            guard: None,
        }
    }

    /// Notes the change of a document.
    pub(crate) fn note(
        &self,
        before: Option<&Document>,
        after: Option<&Document>,
        position: Option<usize>,
    ) {
        if let Some(record) = self.record {
            record.changed(before, after, position);
        }
    }

    /// Returns how changed documents are checked.
    fn checking(&self) -> DocumentChecks<'a> {
        DocumentChecks {
            bypass: self.bypass,
            eval: self.eval,
        }
    }
}

/// The result of an update statement.
#[derive(Clone, Debug, Default)]
pub struct UpdateResult {
    /// The number of documents the filter matched.
    pub matched: u64,
    /// The number of documents that changed.
    pub modified: u64,
    /// The `_id` of the document an upsert inserted.
    pub upserted: Option<Value>,
    /// The first document before and after, if requested.
    pub document: Option<ChangedDocument>,
}

impl UpdateResult {
    /// Returns the result of an upsert that matched nothing and inserted `document`.
    pub fn by_insert(document: Document) -> Self {
        Self {
            upserted: Some(document.get("_id").to_value()),
            document: Some(ChangedDocument {
                before: None,
                after: Some(document),
                position: None,
            }),
            ..Self::default()
        }
    }

    /// Counts a matching document; `after` is `None` if it does not change. `keep` is true if the caller
    /// returns the document.
    pub fn count(
        &mut self,
        before: &Document,
        after: Option<&Document>,
        position: Option<usize>,
        keep: bool,
    ) {
        self.matched += 1;
        self.modified += u64::from(after.is_some());
        if keep && self.document.is_none() {
            self.document = Some(ChangedDocument {
                before: Some(before.clone()),
                after: Some(after.unwrap_or(before).clone()),
                position,
            });
        }
    }
}

/// One document before and after.
#[derive(Clone, Debug)]
pub struct ChangedDocument {
    /// The document before; `None` if an upsert inserted it.
    pub before: Option<Document>,
    /// The document after; `None` if it was removed.
    pub after: Option<Document>,
    /// The array element the filter matched.
    pub position: Option<usize>,
}

impl ChangedDocument {
    /// Returns the change of a removed document.
    pub fn removed(document: &Document, position: Option<usize>) -> Self {
        Self {
            before: Some(document.clone()),
            after: None,
            position,
        }
    }
}

/// The change of one record.
pub(super) enum RecordChange {
    Keep,
    /// Fields were changed.
    Update(Document),
    /// The document is another one.
    Replace(Document),
    Remove,
}

/// Decides the change of a record; the position is the array element the filter matched.
pub(super) type DecideChange<'d> = dyn FnMut(&Document, Option<usize>) -> Result<RecordChange> + 'd;

impl Records {
    /// Updates the selected records.
    pub fn update(
        &self,
        collection: &Collection,
        selection: Selection<'_>,
        change: &Update,
    ) -> Result<UpdateResult> {
        let mut out = UpdateResult::default();
        let validator = Validator::of(collection)?;
        let result = self.change(collection, selection, &mut |document, position| {
            let mut after = change.apply(document.as_ref(), position, &selection.eval)?;
            if change.is_replacement() {
                after = after.map(|after| self.with_timestamps(after, selection.checking()));
            }
            if let Some(after) = &after {
                update::check::id_unchanged(change, document.as_ref(), after)?;
            }
            // A replacement is checked even if it changes nothing.
            let checked = match &after {
                None if change.is_replacement() => Some(document),
                after => after.as_ref(),
            };
            if let (Some(validator), Some(checked)) = (&validator, checked) {
                let before = Some(document.as_ref());
                validator.check(collection, before, checked.as_ref(), selection.checking())?;
            }
            if let (Some(guard), Some(after)) = (selection.guard, &after) {
                guard.check(document, after, position)?;
            }
            out.count(document, after.as_ref(), position, !selection.multi);
            if let Some(after) = &after {
                selection.note(Some(document), Some(after), position);
            }
            Ok(match after {
                None => RecordChange::Keep,
                Some(after) if change.is_replacement() => RecordChange::Replace(after),
                Some(after) => RecordChange::Update(after),
            })
        });
        result.map(|()| out)
    }

    /// Updates the selected records, or inserts a document if there is none. `supplied` is inserted in
    /// place of the document derived from filter and update.
    pub fn upsert(
        &self,
        collection: &Collection,
        selection: Selection<'_>,
        change: &Update,
        supplied: Option<DocRef<'_>>,
        new_id: &dyn Fn() -> ObjectId,
    ) -> Result<UpdateResult> {
        let mut tries = 0;
        loop {
            let updated = self.update(collection, selection, change)?;
            if updated.matched > 0 {
                return Ok(updated);
            }
            let document = match supplied {
                Some(document) => document.to_document(),
                None => new_document(selection, change, new_id)?,
            };
            let document = self.with_timestamps(document, selection.checking());
            let options = InsertOptions {
                ordered: true,
                durability: selection.durability,
                new_id,
                record: selection.record,
            };
            selection.note(None, Some(&document), None);
            let only = std::iter::once(document.as_ref());
            let outcome = self.insert(collection, only, options, selection.checking())?;
            match outcome.errors.into_iter().next() {
                None => return Ok(UpdateResult::by_insert(document)),
                // If another upsert inserted the same `_id`, the filter finds its document now.
                Some(failed)
                    if failed.error.code == ErrorCode::DuplicateKey
                        && tries < UPSERT_RETRIES_MAX
                        && self.finds_rival(collection, selection, &failed.error)? =>
                {
                    tries += 1;
                }
                Some(failed) => return Err(failed.error),
            }
        }
    }

    /// Inserts what an update has made of a document of another partition, which then removes it there. Returns what the update
    /// would.
    pub(crate) fn accept(
        &self,
        collection: &Collection,
        selection: Selection<'_>,
        change: ChangedDocument,
        new_id: &dyn Fn() -> ObjectId,
    ) -> Result<UpdateResult> {
        let after = change.after.as_ref();
        selection.note(change.before.as_ref(), after, change.position);
        let options = InsertOptions {
            ordered: true,
            durability: selection.durability,
            new_id,
            record: selection.record,
        };
        let only = after.map(Document::as_ref).into_iter();
        let outcome = self.insert(collection, only, options, selection.checking())?;
        match outcome.errors.into_iter().next() {
            Some(failed) => Err(failed.error),
            None => Ok(UpdateResult {
                matched: 1,
                modified: 1,
                upserted: None,
                document: Some(change),
            }),
        }
    }

    /// True if another writer may have inserted the document an upsert searched for: by its `_id`, or by
    /// all fields of a unique index.
    fn finds_rival(
        &self,
        collection: &Collection,
        selection: Selection<'_>,
        duplicate: &Error,
    ) -> Result<bool> {
        let pattern = duplicate.details.as_ref().map(|d| d.get("keyPattern"));
        if let Some(ValueRef::Document(pattern)) = pattern
            && !pattern.contains("_id")
        {
            return Ok(asks_for_exactly(selection.filter, pattern));
        }
        let ids = ids_of(selection.filter, &self.state(collection)?.collation).unwrap_or_default();
        let [id] = *ids else {
            return Ok(false);
        };
        match self.find_by_id(collection, id)? {
            Some((_, rival)) => selection.filter.matches(rival.as_ref(), &selection.eval),
            None => Ok(true),
        }
    }

    /// Removes the selected records; returns their number and, unless the selection is `multi`, the document.
    pub fn delete(
        &self,
        collection: &Collection,
        selection: Selection<'_>,
    ) -> Result<(u64, Option<ChangedDocument>)> {
        let mut deleted = 0;
        let mut removed = None;
        self.change(collection, selection, &mut |document, position| {
            deleted += 1;
            if !selection.multi {
                removed = Some(ChangedDocument::removed(document, position));
            }
            selection.note(Some(document), None, position);
            Ok(RecordChange::Remove)
        })?;
        Ok((deleted, removed))
    }

    /// Makes all earlier writes durable.
    pub fn sync(&self) -> Result<()> {
        Ok(self.engine.sync()?)
    }

    /// Calls `decide` for each selected record and performs its decision.
    fn change(
        &self,
        collection: &Collection,
        selection: Selection<'_>,
        decide: &mut DecideChange<'_>,
    ) -> Result<()> {
        if let Some(candidates) = selection.candidates {
            return self.change_candidates(collection, selection, candidates, decide);
        }
        if let Some(ids) = ids_of(selection.filter, &self.state(collection)?.collation)
            && (selection.sort.is_none() || ids.len() == 1)
        {
            return self.change_by_ids(collection, selection, &ids, decide);
        }
        if let Some(pattern) = selection.sort
            && !selection.multi
        {
            return self.change_first(collection, selection, pattern, decide);
        }
        let state = self.state(collection)?;
        let mut scan = self.scan(collection, selection.backward, None)?;
        if selection.multi {
            scan = scan.in_large_chunks();
        }
        loop {
            (selection.check_interrupt)()?;
            let _writing = state.lock();
            let chunk = scan.next_chunk()?;
            if chunk.is_empty() {
                return Ok(());
            }
            if self.change_chunk(&state, collection, selection, chunk, decide)? {
                return Ok(());
            }
        }
    }

    fn change_by_ids(
        &self,
        collection: &Collection,
        selection: Selection<'_>,
        ids: &[ValueRef<'_>],
        decide: &mut DecideChange<'_>,
    ) -> Result<()> {
        let state = self.state(collection)?;
        for some in ids.chunks(IDS_PER_LOCK) {
            (selection.check_interrupt)()?;
            let _writing = state.lock();
            let mut found = Vec::with_capacity(some.len());
            for id in some {
                found.extend(self.find_by_id(collection, *id)?);
            }
            if self.change_chunk(&state, collection, selection, found, decide)? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Changes the first record in the sort order.
    fn change_first(
        &self,
        collection: &Collection,
        selection: Selection<'_>,
        pattern: &SortPattern,
        decide: &mut DecideChange<'_>,
    ) -> Result<()> {
        let state = self.state(collection)?;
        let _writing = state.lock();
        let mut first = FirstMatch::new(selection, pattern);
        let mut scan = self
            .scan(collection, selection.backward, None)?
            .in_large_chunks();
        loop {
            (selection.check_interrupt)()?;
            let chunk = scan.next_chunk()?;
            if chunk.is_empty() {
                break;
            }
            for (key, document) in chunk {
                first.offer(key, document)?;
            }
        }
        let Some(found) = first.into_record() else {
            return Ok(());
        };
        self.change_chunk(&state, collection, selection, vec![found], decide)?;
        Ok(())
    }

    /// Decides about the records of a chunk and commits the changes; true if a selection of one record is
    /// complete. Decisions before an error are committed.
    pub(super) fn change_chunk(
        &self,
        state: &CollectionState,
        collection: &Collection,
        selection: Selection<'_>,
        chunk: Vec<(Vec<u8>, Document)>,
        decide: &mut DecideChange<'_>,
    ) -> Result<bool> {
        let snapshot = self.engine.snapshot()?;
        let mut writer = ChangeBatch {
            state,
            collection,
            keyspaces: keyspaces(collection)?,
            maintenance: IndexMaintenance::of(self, collection)?,
            capped: self.capped_state(collection, state, &*snapshot)?,
            snapshot,
            batch: WriteBatch::new(),
            notes: self.catalog.change_notes(collection),
            size: CollectionSize::default(),
            record: selection.record,
        };
        let mut outcome = Ok(false);
        for (key, document) in chunk {
            match writer.change_record(selection, key, &document, decide) {
                Ok(false) => continue,
                Ok(true) => {}
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
            if !selection.multi {
                outcome = Ok(true);
                break;
            }
            if writer.batch.bytes() > BATCH_BYTES_MAX {
                writer.commit(self, selection.durability)?;
            }
        }
        writer.commit(self, selection.durability)?;
        outcome
    }
}

/// The selected record that comes first in a sort order.
pub(super) struct FirstMatch<'s> {
    selection: Selection<'s>,
    pattern: &'s SortPattern,
    first: Option<(SortKey, (Vec<u8>, Document))>,
}

impl<'s> FirstMatch<'s> {
    pub(super) fn new(selection: Selection<'s>, pattern: &'s SortPattern) -> Self {
        Self {
            selection,
            pattern,
            first: None,
        }
    }

    /// Keeps a record if it is selected and comes before the one found so far.
    pub(super) fn offer(&mut self, key: Vec<u8>, document: Document) -> Result<()> {
        let eval = &self.selection.eval;
        if !self.selection.filter.matches(document.as_ref(), eval)? {
            return Ok(());
        }
        let sort_key = self.pattern.extract(document.as_ref(), eval)?;
        let is_first = self
            .first
            .as_ref()
            .is_none_or(|(first, _)| self.pattern.compare(&sort_key, first).is_lt());
        if is_first {
            self.first = Some((sort_key, (key, document)));
        }
        Ok(())
    }

    /// Returns the record with its key; `None` if none is selected.
    pub(super) fn into_record(self) -> Option<(Vec<u8>, Document)> {
        self.first.map(|(_, record)| record)
    }
}

/// Collects the changes of a chunk in a batch.
struct ChangeBatch<'c> {
    state: &'c CollectionState,
    collection: &'c Collection,
    keyspaces: (KeyspaceId, Option<KeyspaceId>),
    maintenance: IndexMaintenance<'c>,
    /// The state before the batch.
    snapshot: Box<dyn Snapshot>,
    batch: WriteBatch,
    /// What the change log says about the batch.
    notes: ChangeNotes,
    /// The change of size by the batch.
    size: CollectionSize,
    /// The state of a capped collection before the batch.
    capped: Option<CappedState>,
    record: Option<&'c dyn BatchRecord>,
}

impl ChangeBatch<'_> {
    /// Decides about one record. True if it is selected.
    fn change_record(
        &mut self,
        selection: Selection<'_>,
        key: Vec<u8>,
        document: &Document,
        decide: &mut DecideChange<'_>,
    ) -> Result<bool> {
        let (matches, position) = selection
            .filter
            .matches_with_position(document.as_ref(), &selection.eval)?;
        if !matches {
            return Ok(false);
        }
        let (records, id_index) = self.keyspaces;
        match decide(document, position)? {
            RecordChange::Keep => {}
            RecordChange::Update(after) => {
                self.entries(&key, document, Some(&after), &selection.eval)?;
                self.notes.updated(document.as_ref(), after.as_ref());
                self.put(key, document, after);
            }
            RecordChange::Replace(after) => {
                self.entries(&key, document, Some(&after), &selection.eval)?;
                self.notes.replaced(document.as_ref(), after.as_ref());
                self.put(key, document, after);
            }
            RecordChange::Remove => {
                self.entries(&key, document, None, &selection.eval)?;
                if let Some(id_index) = id_index {
                    self.batch
                        .delete(id_index, id_key(document.get("_id"), &self.state.collation));
                }
                self.notes.deleted(document.as_ref());
                self.batch.delete(records, key);
                self.size.remove(document);
            }
        }
        Ok(true)
    }

    /// Puts a changed document into the batch.
    fn put(&mut self, key: Vec<u8>, before: &Document, after: Document) {
        self.size.bytes += bytes_of(&after) - bytes_of(before);
        self.batch.put(self.keyspaces.0, key, after.into_bytes());
    }

    fn entries(
        &mut self,
        key: &[u8],
        before: &Document,
        after: Option<&Document>,
        eval: &EvalContext<'_>,
    ) -> Result<()> {
        let documents = (Some(before.as_ref()), after.map(Document::as_ref));
        let (batch, snapshot) = (&mut self.batch, &*self.snapshot);
        self.maintenance
            .change(batch, snapshot, key, documents, eval.limits)
    }

    /// Commits the collected changes.
    fn commit(&mut self, records: &Records, durability: Durability) -> Result<()> {
        if !self.batch.is_empty() {
            let mut batch = std::mem::take(&mut self.batch);
            let size = std::mem::take(&mut self.size);
            if let Some(known) = &mut self.capped {
                *known = known.after(size);
                let catalog = &records.catalog;
                catalog.put_capped_size(&mut batch, self.collection, known.encode());
            }
            if let Some(record) = self.record {
                record.add_to(&mut batch);
            }
            self.notes.add_to(&mut batch);
            self.maintenance.commit(records, batch, durability)?;
            self.state.size.add(size);
            if let Some(known) = &self.capped {
                self.state.capped.set(known.clone());
            }
            self.snapshot = records.engine.snapshot()?;
        }
        Ok(())
    }
}

/// Returns the document an upsert inserts, with an `_id`.
pub(crate) fn new_document(
    selection: Selection<'_>,
    change: &Update,
    new_id: &dyn Fn() -> ObjectId,
) -> Result<Document> {
    let base = update::document_of_filter(selection.filter, change)?;
    let made = change.apply_to_new(&base, &selection.eval)?;
    update::check::id_unchanged(change, base.as_ref(), &made)?;
    Ok(with_id(made, new_id))
}

/// True if the filter is an equality on each field of `pattern` and nothing else.
fn asks_for_exactly(filter: &MatchExpression, pattern: DocRef<'_>) -> bool {
    let single = std::slice::from_ref(filter);
    let arms = match filter {
        MatchExpression::And(arms) => arms,
        _ => single,
    };
    let asked = |arm: &MatchExpression| match arm {
        MatchExpression::Compare(c) => c.op == CompareOp::Eq && pattern.contains(c.path.as_str()),
        _ => false,
    };
    arms.len() == pattern.iter().count() && arms.iter().all(asked)
}

/// Returns the values that the filter requires of `_id`, each once; `None` if it does not restrict `_id` to
/// values.
///
/// The index can only answer comparisons by its own collation: all values if the collations are equal, else
/// those without text.
pub(crate) fn ids_of<'f>(
    filter: &'f MatchExpression,
    index: &Collation,
) -> Option<Vec<ValueRef<'f>>> {
    match filter {
        MatchExpression::And(arms) => arms.iter().find_map(|arm| ids_of(arm, index)),
        MatchExpression::Compare(comparison)
            if comparison.op == CompareOp::Eq
                && comparison.path.as_str() == "_id"
                && (comparison.collation == *index || !has_text(&comparison.value)) =>
        {
            Some(vec![comparison.value.as_ref()])
        }
        MatchExpression::In(list)
            if list.path.as_str() == "_id"
                && list.patterns().is_empty()
                && (list.collation() == index || !list.values().iter().any(has_text)) =>
        {
            Some(list.values().iter().map(Value::as_ref).collect())
        }
        _ => None,
    }
}

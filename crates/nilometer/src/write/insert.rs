//! Inserting documents into an ordinary collection.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nilometer_bson::{DocRef, Document, DocumentBuilder, ObjectId};
use nilometer_storage::{Snapshot, WriteBatch};

use super::capped::{CappedTrimmer, CollectionSize, NextRemoval};
use super::maintenance::IndexMaintenance;
use super::records::{CollectionState, Records, id_key, keyspaces};
use super::validator::{DocumentChecks, Validator};
use crate::catalog::Collection;
use crate::change_entry::ChangeNotes;
use crate::error::{Error, ErrorCode, Result};
use crate::index::{KEYS_BYTES_MAX, duplicate_id};
use crate::insertion::{InsertOptions, InsertOutcome, WriteError};

/// Largest document, in bytes.
const DOCUMENT_BYTES_MAX: usize = 16 << 20;

/// Returns the document with `_id` first; generates one if there is none.
fn with_id_first(document: DocRef<'_>, new_id: &dyn Fn() -> ObjectId) -> Document {
    if document
        .iter()
        .next()
        .is_some_and(|first| first.name() == "_id")
    {
        return document.to_document();
    }
    let mut out = DocumentBuilder::with_capacity(document.as_bytes().len() + 17);
    match document.iter().find(|element| element.name() == "_id") {
        Some(id) => out.append_element(id),
        None => out.append("_id", new_id()),
    };
    for element in document.iter().filter(|element| element.name() != "_id") {
        out.append_element(element);
    }
    out.finish()
}

/// Returns the document; generates an `_id` and puts it first if there is none.
pub(crate) fn with_id(document: Document, new_id: &dyn Fn() -> ObjectId) -> Document {
    match document.as_ref().contains("_id") {
        true => document,
        false => with_id_first(document.as_ref(), new_id),
    }
}

fn check(document: &Document) -> Result<()> {
    let size = document.as_bytes().len();
    if size > DOCUMENT_BYTES_MAX {
        return Err(Error::new(
            ErrorCode::BSONObjectTooLarge,
            format!(
                "object to insert too large. size in bytes: {size}, max size: {DOCUMENT_BYTES_MAX}"
            ),
        ));
    }
    super::update::check::id(document.get("_id"))
}

/// Longest key of a document in a clustered collection, in bytes: entries of other indexes end with it.
const CLUSTERED_KEY_BYTES_MAX: usize = 8 << 20;

/// Bytes of an engine batch after which the next begins.
const BATCH_BYTES_MAX: u64 = 64 << 20;

fn key_too_long(key: &[u8], at_most: usize) -> Error {
    Error::new(
        ErrorCode::KeyTooLong,
        format!(
            "the '_id' of a document makes a key of {} bytes, at most {at_most} are allowed",
            key.len()
        ),
    )
}

impl Records {
    /// Inserts documents. Accepted documents are stored together, unless they fill a capped collection more
    /// than once or have very many bytes; `Err` means that the last of them were not stored.
    pub fn insert<'a>(
        &self,
        collection: &Collection,
        documents: impl Iterator<Item = DocRef<'a>>,
        options: InsertOptions<'_>,
        checking: DocumentChecks<'_>,
    ) -> Result<InsertOutcome> {
        let state = self.state(collection)?;
        let _writing = state.lock();
        let mut inserting = InsertBatch::begin(self, collection, &state, options, checking)?;
        let mut outcome = InsertOutcome::default();
        for (index, document) in documents.enumerate() {
            let document = with_id_first(document, options.new_id);
            let document = self.with_timestamps(document, checking);
            match inserting.plan(&document) {
                Ok(id_key) => {
                    if let Some(record) = options.record {
                        record.inserted(index);
                    }
                    inserting.put(document, id_key)?;
                    outcome.inserted += 1;
                    if inserting.batch.bytes() > BATCH_BYTES_MAX {
                        inserting.commit()?;
                    }
                }
                // The collection was dropped; the caller may find its successor.
                Err(error) if error.code == ErrorCode::QueryPlanKilled => return Err(error),
                Err(error) => {
                    outcome.errors.push(WriteError { index, error });
                    if options.ordered {
                        break;
                    }
                }
            }
        }
        inserting.commit()?;
        if outcome.inserted > 0 {
            state.arrivals.notify();
        }
        Ok(outcome)
    }
}

/// An insert in flight. The caller holds the write lock of the collection.
struct InsertBatch<'c> {
    records: &'c Records,
    collection: &'c Collection,
    state: &'c CollectionState,
    options: InsertOptions<'c>,
    checking: DocumentChecks<'c>,
    validator: Option<Arc<Validator>>,
    maintenance: IndexMaintenance<'c>,
    /// The state before the batch.
    snapshot: Box<dyn Snapshot>,
    /// The `_id` keys the batch adds, and those it removes.
    added_ids: HashSet<Vec<u8>>,
    removed_ids: HashSet<Vec<u8>>,
    batch: WriteBatch,
    /// What the change log says about the batch.
    notes: ChangeNotes,
    /// The change of size by the batch.
    size: CollectionSize,
    trimmer: Option<CappedTrimmer>,
    last: u64,
}

impl<'c> InsertBatch<'c> {
    fn begin(
        records: &'c Records,
        collection: &'c Collection,
        state: &'c CollectionState,
        options: InsertOptions<'c>,
        checking: DocumentChecks<'c>,
    ) -> Result<Self> {
        let (keyspace, _) = keyspaces(collection)?;
        let snapshot = records.engine.snapshot()?;
        let trimmer = CappedTrimmer::of(records, collection, state, &*snapshot, keyspace)?;
        let removed = trimmer
            .as_ref()
            .and_then(|trimmer| trimmer.removed_up_to.as_deref());
        let last = records.last_id(collection, state, &*snapshot, removed)?;
        Ok(Self {
            records,
            collection,
            state,
            options,
            checking,
            validator: Validator::of(collection)?,
            maintenance: IndexMaintenance::of(records, collection)?,
            trimmer,
            snapshot,
            added_ids: HashSet::new(),
            removed_ids: HashSet::new(),
            batch: WriteBatch::new(),
            notes: records.catalog.change_notes(collection),
            size: CollectionSize::default(),
            last,
        })
    }

    /// Checks a document and puts its index entries into the batch. Returns its key in the `_id` index. On
    /// an error the batch is unchanged.
    fn plan(&mut self, document: &Document) -> Result<Vec<u8>> {
        let (records, id_index) = keyspaces(self.collection)?;
        check(document)?;
        if let Some(trimmer) = &self.trimmer {
            trimmer.check(document)?;
        }
        if let Some(validator) = &self.validator {
            validator.check(self.collection, None, document.as_ref(), self.checking)?;
        }
        let id = document.get("_id");
        let key = id_key(id, &self.state.collation);
        let longest = match id_index {
            Some(_) => KEYS_BYTES_MAX,
            None => CLUSTERED_KEY_BYTES_MAX,
        };
        if key.len() > longest {
            return Err(key_too_long(&key, longest));
        }
        if self.removed_ids.contains(&key) {
            // A batch changes no entry twice.
            self.commit()?;
        }
        if self.added_ids.contains(&key)
            || self
                .snapshot
                .get(id_index.unwrap_or(records), &key)?
                .is_some()
        {
            return Err(duplicate_id(
                &self.collection.namespace,
                id,
                &self.state.collation,
            ));
        }
        let next = (self.last + 1).to_be_bytes();
        let record = match id_index {
            Some(_) => &next[..],
            None => &key,
        };
        let documents = (None, Some(document.as_ref()));
        let (batch, limits) = (&mut self.batch, self.checking.eval.limits);
        self.maintenance
            .change(batch, &*self.snapshot, record, documents, limits)?;
        Ok(key)
    }

    /// Puts a planned document into the batch, and removes the records it displaces.
    fn put(&mut self, document: Document, id_key: Vec<u8>) -> Result<()> {
        let (records, id_index) = keyspaces(self.collection)?;
        let record = match id_index {
            Some(id_index) => {
                self.last += 1;
                let record = self.last.to_be_bytes().to_vec();
                self.batch.put(id_index, id_key.clone(), record.clone());
                record
            }
            None => id_key.clone(),
        };
        self.size.add(&document);
        if let Some(trimmer) = &mut self.trimmer {
            trimmer.add(&document);
        }
        self.notes.inserted(document.as_ref());
        self.batch.put(records, record, document.into_bytes());
        self.added_ids.insert(id_key);
        self.remove_displaced()
    }

    fn remove_displaced(&mut self) -> Result<()> {
        while let Some(trimmer) = &mut self.trimmer {
            match trimmer.next_removal(&*self.snapshot)? {
                NextRemoval::Nothing => break,
                NextRemoval::Record(key, document) => self.remove(key, &document)?,
                NextRemoval::NotInSnapshot if self.batch.is_empty() => break,
                // The record to remove is in this batch: write the batch first.
                NextRemoval::NotInSnapshot => self.commit()?,
            }
        }
        Ok(())
    }

    fn remove(&mut self, key: Vec<u8>, document: &Document) -> Result<()> {
        let (records, id_index) = keyspaces(self.collection)?;
        let documents = (Some(document.as_ref()), None);
        let (batch, limits) = (&mut self.batch, self.checking.eval.limits);
        self.maintenance
            .change(batch, &*self.snapshot, &key, documents, limits)?;
        let id_key = id_key(document.get("_id"), &self.state.collation);
        if let Some(id_index) = id_index {
            self.batch.delete(id_index, id_key.clone());
        }
        self.removed_ids.insert(id_key);
        self.notes.deleted(document.as_ref());
        self.batch.delete(records, key);
        self.size.remove(document);
        Ok(())
    }

    /// Commits the batch.
    fn commit(&mut self) -> Result<()> {
        if self.batch.is_empty() {
            return Ok(());
        }
        // A record id is used once, even if the commit fails.
        self.state.last_id.store(self.last, Ordering::Release);
        let mut batch = std::mem::take(&mut self.batch);
        let known = self.trimmer.as_ref().map(CappedTrimmer::state);
        if let Some(known) = &known {
            let catalog = &self.records.catalog;
            catalog.put_capped_size(&mut batch, self.collection, known.encode());
        }
        if let Some(record) = self.options.record {
            record.add_to(&mut batch);
        }
        self.notes.add_to(&mut batch);
        let durability = self.options.durability;
        self.maintenance.commit(self.records, batch, durability)?;
        let size = std::mem::take(&mut self.size);
        self.state.size.add(size);
        if let Some(known) = known {
            self.state.capped.set(known);
        }
        self.snapshot = self.records.engine.snapshot()?;
        self.added_ids.clear();
        self.removed_ids.clear();
        Ok(())
    }
}

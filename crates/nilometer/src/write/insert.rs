//! Inserting documents into an ordinary collection.

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use nilometer_bson::extjson::value_to_relaxed;
use nilometer_bson::{DocRef, Document, DocumentBuilder, ObjectId, ValueRef, doc};
use nilometer_storage::{Direction, WriteBatch};

use super::maintenance::Maintenance;
use super::records::{Records, id_key, keyspaces};
use crate::catalog::Collection;
use crate::error::{Error, ErrorCode, Result};
use crate::eval::Collation;
use crate::insertion::{InsertOptions, InsertOutcome, WriteError};

/// The largest document, in bytes.
const DOCUMENT_BYTES_MAX: usize = 16 << 20;

/// The document with `_id` in front, made if it has none.
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

/// The document, with an `_id` in front if it has none.
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

fn duplicate(collection: &Collection, id: ValueRef<'_>, collation: &Collation) -> Error {
    let order = collation.to_document();
    let by = collation
        .to_text()
        .map_or_else(String::new, |text| format!("collation: {text} "));
    let shown = value_to_relaxed(id);
    Error::new(
        ErrorCode::DuplicateKey,
        format!(
            "E11000 duplicate key error collection: {} index: _id_ {by}dup key: {{ _id: {shown} }}",
            collection.namespace
        ),
    )
    .with_details(doc! { "keyPattern": doc! { "_id": 1 }, "keyValue": doc! { "_id": id }, "collation": order })
}

impl Records {
    /// Inserts documents. Those that are accepted are stored together; `Err` means none was stored.
    pub fn insert<'a>(
        &self,
        collection: &Collection,
        documents: impl Iterator<Item = DocRef<'a>>,
        options: InsertOptions<'_>,
    ) -> Result<InsertOutcome> {
        let (records, id_index) = keyspaces(collection)?;
        let state = self.state(collection)?;
        let _writing = state.lock();
        let snapshot = self.engine.snapshot()?;
        let mut last = state.last_id.load(Ordering::Acquire);
        if last == 0 {
            let mut scan = snapshot.scan(records, &[], None, Direction::Backward)?;
            if let Some(item) = scan.next() {
                last = item?.0.first_chunk().copied().map_or(0, u64::from_be_bytes);
            }
        }
        let mut outcome = InsertOutcome::default();
        let mut batch = WriteBatch::new();
        let mut fresh: HashSet<Vec<u8>> = HashSet::new();
        let mut maintenance = Maintenance::of(self, collection)?;
        for (index, document) in documents.enumerate() {
            let document = with_id_first(document, options.new_id);
            let id = document.get("_id");
            let key = id_key(id, &state.collation);
            let checked = check(&document).and_then(|()| {
                let taken = fresh.contains(&key) || snapshot.get(id_index, &key)?.is_some();
                if taken {
                    return Err(duplicate(collection, id, &state.collation));
                }
                let record = (last + 1).to_be_bytes();
                let document = Some(document.as_ref());
                maintenance.change(&mut batch, &*snapshot, &record, None, document)
            });
            if let Err(error) = checked {
                outcome.errors.push(WriteError { index, error });
                if options.ordered {
                    break;
                }
                continue;
            }
            last += 1;
            batch.put(id_index, key.clone(), last.to_be_bytes().to_vec());
            batch.put(records, last.to_be_bytes().to_vec(), document.into_bytes());
            fresh.insert(key);
            outcome.inserted += 1;
        }
        if !batch.is_empty() {
            maintenance.commit(self, batch, options.durability)?;
        }
        state.last_id.store(last, Ordering::Release);
        state
            .count
            .add(i64::try_from(outcome.inserted).unwrap_or(i64::MAX));
        Ok(outcome)
    }
}

//! Checks that the records of an ordinary collection and its indexes agree.
//!
//! In both directions: every record has the entries of its document, and every entry leads to a record with
//! that key. Each chunk is checked under one snapshot, so that concurrent writers cause no false reports.

use std::sync::Arc;

use nilometer_bson::Document;
use nilometer_bson::extjson::value_to_relaxed;
use nilometer_storage::{KeyspaceId, Snapshot};

use super::records::{CollectionState, Records, document, id_key, keyspaces};
use super::validator::Validator;
use crate::catalog::Collection;
use crate::error::Result;
use crate::eval::{EvaluationCounters, InterruptCheck};
use crate::index::{DocumentKeys, Index, entry};
use crate::validation::Validation;

/// The context of the check of one collection.
struct CollectionCheck<'c> {
    records: KeyspaceId,
    id_index: Option<KeyspaceId>,
    state: Arc<CollectionState>,
    indexes: Vec<Arc<Index>>,
    validator: Option<Arc<Validator>>,
    check_interrupt: &'c dyn Fn() -> Result<()>,
    counters: EvaluationCounters,
}

/// Processes one key and value, and the snapshot they come from.
type VisitEntry<'e> = dyn FnMut(&dyn Snapshot, &[u8], &[u8]) -> Result<()> + 'e;

impl Records {
    /// Checks every record and every entry of every ready index.
    pub fn validate(
        &self,
        collection: &Collection,
        check_interrupt: &dyn Fn() -> Result<()>,
    ) -> Result<Validation> {
        let (records, id_index) = keyspaces(collection)?;
        let stored = collection.indexes.all();
        let ready = stored.iter().filter(|index| index.is_ready());
        let check = CollectionCheck {
            records,
            id_index,
            state: self.state(collection)?,
            indexes: ready.map(Index::of).collect::<Result<_>>()?,
            validator: Validator::of(collection)?,
            check_interrupt,
            counters: EvaluationCounters::default(),
        };
        let mut found = Validation::default();
        self.for_each_entry(records, &check, &mut |snapshot, key, value| {
            found.non_compliant += u64::from(!check.conforms(value)?);
            found.add(check.record(snapshot, key, value)?);
            Ok(())
        })?;
        if let Some(id_index) = id_index {
            let mut entries = 0;
            self.for_each_entry(id_index, &check, &mut |snapshot, key, record| {
                entries += 1;
                found.add_entry_problem(check.id_entry(snapshot, key, record)?);
                Ok(())
            })?;
            found.keys_per_index.push(("_id_".to_owned(), entries));
        }
        for index in &check.indexes {
            let mut entries = 0;
            self.for_each_entry(index.stored.keyspace, &check, &mut |snapshot, key, bits| {
                entries += 1;
                found.add_entry_problem(check.entry(index, snapshot, key, bits)?);
                Ok(())
            })?;
            let name = index.stored.spec.name.clone();
            found.keys_per_index.push((name, entries));
        }
        Ok(found)
    }

    fn for_each_entry(
        &self,
        keyspace: KeyspaceId,
        check: &CollectionCheck<'_>,
        each: &mut VisitEntry<'_>,
    ) -> Result<()> {
        self.for_each_chunk(keyspace, check.check_interrupt, &mut |snapshot, chunk| {
            let mut entries = chunk.iter();
            entries.try_for_each(|(key, value)| each(snapshot, key, value))
        })
    }
}

impl CollectionCheck<'_> {
    /// True if a record conforms to the validator. A value that is not a document is reported by
    /// [`CollectionCheck::record`].
    fn conforms(&self, value: &[u8]) -> Result<bool> {
        match (&self.validator, document(value)) {
            (Some(validator), Ok(document)) => {
                let interrupt = InterruptCheck(self.check_interrupt);
                validator.accepts(document.as_ref(), self.counters.limits(&interrupt))
            }
            _ => Ok(true),
        }
    }

    /// Returns the problems of a record: not a document, or missing entries.
    fn record(&self, snapshot: &dyn Snapshot, key: &[u8], value: &[u8]) -> Result<Vec<String>> {
        let document = match document(value) {
            Ok(document) => document,
            Err(error) => return Ok(vec![error.message]),
        };
        let id = document.get("_id");
        let mut problems = Vec::new();
        let own = id_key(id, &self.state.collation);
        let leads_here = match self.id_index {
            Some(id_index) => snapshot.get(id_index, &own)?.as_deref() == Some(key),
            None => own == key,
        };
        if !leads_here {
            problems.push(format!(
                "the _id index does not lead to the record with _id {}",
                value_to_relaxed(id)
            ));
        }
        for index in &self.indexes {
            if let Some(problem) = self.missing_entry(index, snapshot, key, &document)? {
                problems.push(format!("{problem} with _id {}", value_to_relaxed(id)));
            }
        }
        Ok(problems)
    }

    fn id_entry(
        &self,
        snapshot: &dyn Snapshot,
        key: &[u8],
        record: &[u8],
    ) -> Result<Option<String>> {
        let found = snapshot.get(self.records, record)?;
        let found = found.and_then(|bytes| document(&bytes).ok());
        let agrees =
            found.is_some_and(|found| id_key(found.get("_id"), &self.state.collation) == key);
        Ok((!agrees).then(|| "the _id index has an entry without a record".to_owned()))
    }

    /// Returns the problem of an entry: it cannot be read, or its record does not have the key.
    fn entry(
        &self,
        index: &Index,
        snapshot: &dyn Snapshot,
        found: &[u8],
        type_bits: &[u8],
    ) -> Result<Option<String>> {
        let name = &index.stored.spec.name;
        let Ok((key, record)) = entry::split(found, index.order(), index.components()) else {
            return Ok(Some(format!("an entry of the index {name} is damaged")));
        };
        let asks = match snapshot.get(self.records, record)? {
            None => {
                return Ok(Some(format!(
                    "the index {name} has an entry without a record"
                )));
            }
            Some(bytes) => match document(&bytes) {
                Ok(document) if !self.selects(index, &document)? => Ok(DocumentKeys::default()),
                Ok(document) => index.keys_of_selected(document.as_ref()),
                Err(error) => Err(error),
            },
        };
        let agrees = asks.is_ok_and(|asks| {
            let mut keys = asks.keys.iter();
            keys.any(|k| k.key == key && k.type_bits == type_bits)
        });
        Ok((!agrees)
            .then(|| format!("the index {name} has an entry that does not belong to its record")))
    }

    /// True if the partial filter of an index selects a record; fails if the check is interrupted.
    fn selects(&self, index: &Index, document: &Document) -> Result<bool> {
        let interrupt = InterruptCheck(self.check_interrupt);
        index.selects(document.as_ref(), Some(self.counters.limits(&interrupt)))
    }

    /// Returns a problem if an index lacks an entry of a record.
    fn missing_entry(
        &self,
        index: &Index,
        snapshot: &dyn Snapshot,
        record: &[u8],
        document: &Document,
    ) -> Result<Option<String>> {
        let name = &index.stored.spec.name;
        if !self.selects(index, document)? {
            return Ok(None);
        }
        let keys = match index.keys_of_selected(document.as_ref()) {
            Ok(keys) => keys,
            Err(error) => {
                return Ok(Some(format!(
                    "the index {name} cannot hold the record ({})",
                    error.message
                )));
            }
        };
        if index.stored.multikey() & keys.multikey != keys.multikey {
            return Ok(Some(format!(
                "the index {name} is not marked as multikey for the record"
            )));
        }
        for key in &keys.keys {
            let stored = snapshot.get(index.stored.keyspace, &entry::key(key, record))?;
            if stored.as_deref() != Some(&key.type_bits[..]) {
                return Ok(Some(format!(
                    "the index {name} lacks an entry of the record"
                )));
            }
        }
        Ok(None)
    }
}

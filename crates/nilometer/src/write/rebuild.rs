//! Repairing the indexes of an ordinary collection (`reIndex`, and `validate` with `repair`).
//!
//! ```text
//! each entry    removed if its record does not have the key
//! each record   its missing entries are written
//! ```
//!
//! Writers wait. Queries proceed: at every moment all entries exist that were right before, so no answer
//! lacks a document. After a crash the indexes are no worse than before.

use nilometer_bson::{DocRef, Document};
use nilometer_storage::{Durability, KeyspaceId, Snapshot, WriteBatch};

use super::records::{Records, document, id_key, keyspaces};
use crate::catalog::Collection;
use crate::error::Result;
use crate::eval::{Collation, EvaluationCounters, InterruptCheck};
use crate::index::{DocumentKeys, Index, duplicate_key, entry};

/// The repairs made.
#[derive(Clone, Copy, Debug, Default)]
pub struct RebuildCounts {
    /// Missing entries written.
    pub added: u64,
    /// Wrong entries removed.
    pub removed: u64,
}

impl Records {
    /// Writes the missing entries of the ready indexes and removes the wrong ones. Fails after all possible
    /// repairs if two records have the same key of a unique index.
    pub fn rebuild_indexes(
        &self,
        collection: &Collection,
        check_interrupt: &dyn Fn() -> Result<()>,
    ) -> Result<RebuildCounts> {
        self.exclusively(collection, || {
            // Indexes in build are completed by their build.
            let held = collection.indexes.lock_shared();
            let complete = held.iter().filter(|index| index.is_ready());
            let indexes = complete.map(Index::of).collect::<Result<Vec<_>>>()?;
            let mut rebuild = IndexRebuild {
                done: RebuildCounts::default(),
                records: self,
                collection,
                collation: Collation::of_stored(collection.options.as_ref())?,
                check_interrupt,
                counters: EvaluationCounters::default(),
            };
            rebuild.ids()?;
            for index in &indexes {
                rebuild.remove(index)?;
                rebuild.add(index)?;
                if index.stored.spec.unique {
                    rebuild.check_unique(index)?;
                }
            }
            self.sync()?;
            Ok(rebuild.done)
        })
    }
}

/// Bytes of an engine batch after which the next begins.
const BATCH_BYTES_MAX: u64 = 32 << 20;

struct IndexRebuild<'r> {
    records: &'r Records,
    collection: &'r Collection,
    collation: Collation,
    check_interrupt: &'r dyn Fn() -> Result<()>,
    /// Counts the steps of partial filters.
    counters: EvaluationCounters,
    done: RebuildCounts,
}

/// Processes one key and value.
type VisitEntry<'e> = dyn FnMut(&dyn Snapshot, &mut WriteBatch, &[u8], &[u8]) -> Result<()> + 'e;

impl IndexRebuild<'_> {
    /// Walks a keyspace; commits the changes of each chunk.
    fn walk(&self, keyspace: KeyspaceId, each: &mut VisitEntry<'_>) -> Result<()> {
        let records = self.records;
        records.for_each_chunk(keyspace, self.check_interrupt, &mut |snapshot, chunk| {
            let mut batch = WriteBatch::new();
            for (key, value) in chunk {
                each(snapshot, &mut batch, key, value)?;
                if batch.bytes() > BATCH_BYTES_MAX {
                    let full = std::mem::take(&mut batch);
                    records.engine.commit(full, Durability::Buffered)?;
                }
            }
            if !batch.is_empty() {
                records.engine.commit(batch, Durability::Buffered)?;
            }
            Ok(())
        })
    }

    /// Repairs the index of `_id`. Of two records with the same `_id` the first keeps it.
    fn ids(&mut self) -> Result<()> {
        let (records, id_index) = keyspaces(self.collection)?;
        let Some(id_index) = id_index else {
            return Ok(());
        };
        let key_of = |found: &Document| id_key(found.get("_id"), &self.collation);
        let has_key = |snapshot: &dyn Snapshot, record: &[u8], key: &[u8]| -> Result<bool> {
            let found = snapshot.get(records, record)?;
            let found = found.map(|bytes| document(&bytes)).transpose()?;
            Ok(found.is_some_and(|found| key_of(&found) == key))
        };
        let mut done = RebuildCounts::default();
        self.walk(records, &mut |snapshot, batch, record, value| {
            let key = key_of(&document(value)?);
            let is_led_to = match snapshot.get(id_index, &key)? {
                Some(known) => known[..] == *record || has_key(snapshot, &known, &key)?,
                None => false,
            };
            if !is_led_to {
                batch.put(id_index, key, record.to_vec());
                done.added += 1;
            }
            Ok(())
        })?;
        self.walk(id_index, &mut |snapshot, batch, key, record| {
            if !has_key(snapshot, record, key)? {
                batch.delete(id_index, key.to_vec());
                done.removed += 1;
            }
            Ok(())
        })?;
        self.note(done);
        Ok(())
    }

    /// Returns the keys of a record in an index; fails if the rebuild is interrupted.
    fn keys(&self, index: &Index, document: DocRef<'_>) -> Result<DocumentKeys> {
        let interrupt = InterruptCheck(self.check_interrupt);
        index.keys_within(document, Some(self.counters.limits(&interrupt)))
    }

    fn note(&mut self, done: RebuildCounts) {
        self.done.added += done.added;
        self.done.removed += done.removed;
    }

    /// Writes the missing entries of all records.
    fn add(&mut self, index: &Index) -> Result<()> {
        let (records, _) = keyspaces(self.collection)?;
        let keyspace = index.stored.keyspace;
        let mut done = RebuildCounts::default();
        self.walk(records, &mut |snapshot, batch, record, value| {
            let keys = self.keys(index, document(value)?.as_ref())?;
            let catalog = &self.records.catalog;
            catalog.mark_multikey(self.collection, &index.stored, keys.multikey)?;
            for key in &keys.keys {
                let place = entry::key(key, record);
                let known = snapshot.get(keyspace, &place)?;
                if known.as_deref() != Some(&key.type_bits[..]) {
                    batch.put(keyspace, place, key.type_bits.clone());
                    done.added += 1;
                }
            }
            Ok(())
        })?;
        self.note(done);
        Ok(())
    }

    /// Fails if two records have the same key of a unique index.
    fn check_unique(&self, index: &Index) -> Result<()> {
        let (records, _) = keyspaces(self.collection)?;
        let (order, components) = (index.order(), index.components());
        let mut last = Vec::new();
        self.walk(index.stored.keyspace, &mut |snapshot, _, found, _| {
            let (key, record) = entry::split(found, order, components)?;
            if key == last {
                let bytes = snapshot.get(records, record)?;
                let found = bytes.map(|bytes| document(&bytes)).transpose()?;
                let found = found.unwrap_or_default();
                let keys = self.keys(index, found.as_ref())?;
                if let Some(twice) = keys.keys.iter().find(|own| own.key == key) {
                    let namespace = &self.collection.namespace;
                    return Err(duplicate_key(namespace, index, twice, Some(found.as_ref())));
                }
            }
            last = key.to_vec();
            Ok(())
        })
    }

    /// Removes the entries no record has.
    fn remove(&mut self, index: &Index) -> Result<()> {
        let (records, _) = keyspaces(self.collection)?;
        let mut done = RebuildCounts::default();
        let keyspace = index.stored.keyspace;
        let (order, components) = (index.order(), index.components());
        self.walk(keyspace, &mut |snapshot, batch, found, _| {
            let is_asked_for = match entry::split(found, order, components) {
                Ok((key, record)) => match snapshot.get(records, record)? {
                    Some(bytes) => {
                        let keys = self.keys(index, document(&bytes)?.as_ref())?;
                        keys.keys.iter().any(|own| own.key == key)
                    }
                    None => false,
                },
                Err(_) => false,
            };
            if !is_asked_for {
                batch.delete(keyspace, found.to_vec());
                done.removed += 1;
            }
            Ok(())
        })?;
        self.note(done);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use nilometer_storage::{Direction, WriteBatch};

    use super::*;
    use crate::Database;
    use crate::catalog::Namespace;

    /// Returns all entries of the indexes of a collection.
    fn contents(database: &Database, collection: &Collection) -> Vec<(Vec<u8>, Vec<u8>)> {
        let snapshot = database.engine().snapshot().unwrap();
        let mut all = Vec::new();
        for keyspace in collection.keyspaces() {
            let entries = snapshot.scan(keyspace, &[], None, Direction::Forward);
            for entry in entries.unwrap() {
                let (key, value) = entry.unwrap();
                all.push((key.to_vec(), value.to_vec()));
            }
        }
        all
    }

    #[test]
    fn repair_restores_damaged_indexes() {
        let database = Database::in_memory().unwrap();
        let plain = database.collection::<bson::Document>("db", "c");
        let made = (0..1000).map(|i| bson::doc! { "_id": i, "a": i % 10, "b": [i, -i] });
        plain.insert_many(made).unwrap();
        let indexes = bson::doc! { "createIndexes": "c", "indexes": [
            { "key": { "a": 1 }, "name": "a_1" },
            { "key": { "b": 1 }, "name": "b_1", "unique": true },
        ] };
        database.command("db", &indexes).unwrap();
        let name = Namespace::new("db", "c").unwrap();
        let collection = database.catalog().collection(&name).unwrap();
        let before = contents(&database, &collection);

        // Remove some entries and add wrong ones.
        let (records, id_index) = keyspaces(&collection).unwrap();
        let mut batch = WriteBatch::new();
        for keyspace in collection.keyspaces().into_iter().filter(|k| *k != records) {
            let snapshot = database.engine().snapshot().unwrap();
            let entries = snapshot
                .scan(keyspace, &[], None, Direction::Forward)
                .unwrap();
            for (at, entry) in entries.enumerate() {
                let (key, value) = entry.unwrap();
                if at % 7 == 0 {
                    batch.delete(keyspace, key.to_vec());
                } else if at % 11 == 0 && Some(keyspace) != id_index {
                    let mut other = key.to_vec();
                    *other.last_mut().unwrap() ^= 1;
                    batch.put(keyspace, other, value.to_vec());
                }
            }
        }
        database
            .engine()
            .commit(batch, Durability::Buffered)
            .unwrap();
        let damaged = contents(&database, &collection);
        assert_ne!(damaged, before);
        let repair = bson::doc! { "validate": "c", "repair": true };
        let reply = database.command("db", &repair).unwrap();
        assert!(reply.get_bool("repaired").unwrap() && reply.get_bool("valid").unwrap());
        let (added, removed) = (
            reply.get_i64("numInsertedMissingIndexEntries").unwrap(),
            reply.get_i64("numRemovedExtraIndexEntries").unwrap(),
        );
        let grown = before.len() as i64 - damaged.len() as i64;
        assert!(added > 300 && removed > 30 && added - removed == grown);
        assert_eq!(contents(&database, &collection), before);
        let reply = database
            .command("db", &bson::doc! { "reIndex": "c" })
            .unwrap();
        assert_eq!(reply.get_i32("nIndexes").unwrap(), 3);
        assert_eq!(contents(&database, &collection), before);
        let checked = database
            .command("db", &bson::doc! { "validate": "c" })
            .unwrap();
        assert!(checked.get_bool("valid").unwrap(), "{checked}");
    }
}

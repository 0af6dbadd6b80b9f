//! Making the indexes of an ordinary collection agree with its records again (`reIndex`).
//!
//! ```text
//! each entry    one that its record does not ask for goes
//! each record   the entries its document asks for are written
//! ```
//!
//! Nobody writes meanwhile. Queries go on: at every moment there are at least the entries that were
//! right before, so no answer lacks a document. What a crash leaves is as right as before.

use nilometer_bson::Document;
use nilometer_storage::{Durability, KeyspaceId, Snapshot, WriteBatch};

use super::records::{Records, document, id_key, keyspaces, read_chunk};
use crate::catalog::Collection;
use crate::error::Result;
use crate::eval::Collation;
use crate::index::{Index, duplicate_key, entry, put_entries};

impl Records {
    /// Writes what is missing in the indexes that are complete, and removes what is wrong. Fails, and
    /// has changed what it could, where two records claim one key of a unique index.
    pub fn rebuild_indexes(
        &self,
        collection: &Collection,
        check_interrupt: &dyn Fn() -> Result<()>,
    ) -> Result<()> {
        self.exclusively(collection, || {
            // What is being built now is looked after by its build.
            let held = collection.indexes.hold();
            let complete = held.iter().filter(|index| index.is_ready());
            let indexes = complete.map(Index::of).collect::<Result<Vec<_>>>()?;
            let rebuild = Rebuild {
                records: self,
                collection,
                collation: Collation::of_stored(collection.options.as_ref())?,
                check_interrupt,
            };
            rebuild.ids()?;
            for index in &indexes {
                rebuild.remove(index)?;
                rebuild.add(index)?;
                if index.stored.spec.unique {
                    rebuild.check_unique(index)?;
                }
            }
            self.sync()
        })
    }
}

struct Rebuild<'r> {
    records: &'r Records,
    collection: &'r Collection,
    collation: Collation,
    check_interrupt: &'r dyn Fn() -> Result<()>,
}

/// What is done with each key and value.
type Each<'e> = dyn FnMut(&dyn Snapshot, &mut WriteBatch, &[u8], &[u8]) -> Result<()> + 'e;

impl Rebuild<'_> {
    /// Walks a keyspace and commits what is asked for, chunk by chunk.
    fn walk(&self, keyspace: KeyspaceId, each: &mut Each<'_>) -> Result<()> {
        let mut after: Option<Vec<u8>> = None;
        loop {
            (self.check_interrupt)()?;
            let snapshot = self.records.engine.snapshot()?;
            let chunk = read_chunk(&*snapshot, keyspace, after.as_deref(), false)?;
            let Some((last, _)) = chunk.last() else {
                return Ok(());
            };
            after = Some(last.to_vec());
            let mut batch = WriteBatch::new();
            for (key, value) in &chunk {
                each(&*snapshot, &mut batch, key, value)?;
            }
            if !batch.is_empty() {
                self.records.engine.commit(batch, Durability::Buffered)?;
            }
        }
    }

    /// The index of `_id`. Of two records with one `_id` the first keeps it.
    fn ids(&self) -> Result<()> {
        let (records, id_index) = keyspaces(self.collection)?;
        let Some(id_index) = id_index else {
            return Ok(());
        };
        let key_of = |found: &Document| id_key(found.get("_id"), &self.collation);
        self.walk(records, &mut |snapshot, batch, record, value| {
            let key = key_of(&document(value)?);
            let leads_to = snapshot.get(id_index, &key)?;
            let is_led_to = match &leads_to {
                Some(other) if other[..] == *record => true,
                Some(other) => snapshot.get(records, other)?.is_some(),
                None => false,
            };
            if !is_led_to {
                batch.put(id_index, key, record.to_vec());
            }
            Ok(())
        })?;
        self.walk(id_index, &mut |snapshot, batch, key, record| {
            let found = snapshot.get(records, record)?;
            let found = found.map(|bytes| document(&bytes)).transpose()?;
            if found.is_none_or(|found| key_of(&found) != key) {
                batch.delete(id_index, key.to_vec());
            }
            Ok(())
        })
    }

    /// The entries records ask for.
    fn add(&self, index: &Index) -> Result<()> {
        let (records, _) = keyspaces(self.collection)?;
        self.walk(records, &mut |_, batch, record, value| {
            let keys = index.keys(document(value)?.as_ref())?;
            let catalog = &self.records.catalog;
            catalog.mark_multikey(self.collection, &index.stored, keys.multikey)?;
            put_entries(batch, index, &keys, record);
            Ok(())
        })
    }

    /// Fails if two records have one key of a unique index.
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
                let keys = index.keys(found.as_ref())?;
                if let Some(twice) = keys.keys.iter().find(|own| own.key == key) {
                    let namespace = &self.collection.namespace;
                    return Err(duplicate_key(namespace, index, twice, Some(found.as_ref())));
                }
            }
            last = key.to_vec();
            Ok(())
        })
    }

    /// The entries nobody asks for.
    fn remove(&self, index: &Index) -> Result<()> {
        let (records, _) = keyspaces(self.collection)?;
        let keyspace = index.stored.keyspace;
        let (order, components) = (index.order(), index.components());
        self.walk(keyspace, &mut |snapshot, batch, found, _| {
            let is_asked_for = match entry::split(found, order, components) {
                Ok((key, record)) => match snapshot.get(records, record)? {
                    Some(bytes) => {
                        let keys = index.keys(document(&bytes)?.as_ref())?;
                        keys.keys.iter().any(|own| own.key == key)
                    }
                    None => false,
                },
                Err(_) => false,
            };
            if !is_asked_for {
                batch.delete(keyspace, found.to_vec());
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use nilometer_storage::{Direction, WriteBatch};

    use super::*;
    use crate::Database;
    use crate::catalog::Namespace;

    /// Everything in the indexes of a collection.
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
    fn what_is_damaged_is_as_it_was() {
        let database = Database::in_memory().unwrap();
        let plain = database.collection::<bson::Document>("db", "c");
        let made = (0..3000).map(|i| bson::doc! { "_id": i, "a": i % 10, "b": [i, -i] });
        plain.insert_many(made).unwrap();
        let indexes = bson::doc! { "createIndexes": "c", "indexes": [
            { "key": { "a": 1 }, "name": "a_1" },
            { "key": { "b": 1 }, "name": "b_1", "unique": true },
        ] };
        database.command("db", &indexes).unwrap();
        let name = Namespace::new("db", "c").unwrap();
        let collection = database.catalog().collection(&name).unwrap();
        let before = contents(&database, &collection);

        // Entries go, and others come.
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
        assert_ne!(contents(&database, &collection), before);
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

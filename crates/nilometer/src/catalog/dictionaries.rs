//! Storage of the dictionaries that the sealed buckets of a collection share.
//!
//! The payload is opaque to this module; the writer identifies each dictionary by a number. A dictionary is
//! durable before any bucket that needs it is written. The dictionaries of a dropped collection are removed
//! when no reader uses them any more, and when the catalog is opened.

use nilometer_storage::{Bytes, Direction, Durability, WriteBatch};

use super::Catalog;
use crate::error::Result;

/// Prefix of the keys of dictionaries; the UUID and the number follow. No namespace starts with the byte FF.
pub(super) const DICTIONARY_PREFIX: &[u8] = b"\xFFdictionary\0";

/// A stored dictionary.
pub struct StoredDictionary {
    /// The UUID of its collection.
    pub collection: [u8; 16],
    /// The number of the dictionary.
    pub number: u64,
    /// The payload.
    pub bytes: Bytes,
}

impl Catalog {
    /// Stores a dictionary of a collection. Durable when it returns.
    pub fn put_dictionary(&self, collection: [u8; 16], number: u64, bytes: &[u8]) -> Result<()> {
        let mut batch = WriteBatch::new();
        batch.put(self.keyspace, key(collection, number), bytes.to_vec());
        self.engine.commit(batch, Durability::Sync)?;
        Ok(())
    }

    /// Removes dictionaries of a dropped collection.
    pub fn remove_dictionaries(&self, collection: [u8; 16], numbers: &[u64]) -> Result<()> {
        let mut batch = WriteBatch::new();
        for number in numbers {
            batch.delete(self.keyspace, key(collection, *number));
        }
        self.engine.commit(batch, Durability::Buffered)?;
        Ok(())
    }

    /// Returns all stored dictionaries.
    pub fn dictionaries(&self) -> Result<Vec<StoredDictionary>> {
        let snapshot = self.engine.snapshot()?;
        let mut kept = Vec::new();
        for item in snapshot.scan(self.keyspace, DICTIONARY_PREFIX, None, Direction::Forward)? {
            let (key, bytes) = item?;
            let Some(key) = key.strip_prefix(DICTIONARY_PREFIX) else {
                break;
            };
            let Some((collection, number)) = key.split_first_chunk() else {
                continue;
            };
            if let Ok(number) = <[u8; 8]>::try_from(number) {
                kept.push(StoredDictionary {
                    collection: *collection,
                    number: u64::from_be_bytes(number),
                    bytes,
                });
            }
        }
        Ok(kept)
    }
}

fn key(collection: [u8; 16], number: u64) -> Vec<u8> {
    [DICTIONARY_PREFIX, &collection, &number.to_be_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use nilometer_bson::Document;
    use nilometer_storage::MemoryEngine;

    use super::*;
    use crate::catalog::Namespace;

    #[test]
    fn dictionaries_are_removed_with_their_collection() {
        let engine = Arc::new(MemoryEngine::new());
        let catalog = Catalog::open(engine.clone()).unwrap();
        let name = Namespace::new("db", "there").unwrap();
        let there = catalog
            .create_collection(name, [1; 16], Document::new(), None)
            .unwrap();
        catalog.put_dictionary(there.uuid, 7, b"seven").unwrap();
        catalog.put_dictionary([9; 16], 8, b"eight").unwrap();
        assert_eq!(catalog.dictionaries().unwrap().len(), 2);
        let catalog = Catalog::open(engine).unwrap();
        let kept = catalog.dictionaries().unwrap();
        let [one] = kept.as_slice() else {
            panic!("one is left, not {}", kept.len())
        };
        assert_eq!((one.collection, one.number), (there.uuid, 7));
        assert_eq!(&one.bytes[..], b"seven");
        catalog.remove_dictionaries(there.uuid, &[7]).unwrap();
        assert!(catalog.dictionaries().unwrap().is_empty());
    }
}

//! The registry of series: the metadata of every series that has buckets.
//!
//! An entry is written with the first bucket of a series, in the batch of the bucket, and removed after the last. So an entry may
//! have no bucket any more, but every bucket has an entry. The metadata is that of the bucket as indexes have it: a bucket that was
//! written as a whole may have the fields in another order than a series.
//!
//! ```text
//! key    1                                     the registry is complete
//! key    2 | type byte, bytes of the value     a series; without metadata nothing follows the 2
//! value  empty
//! ```

use std::cell::OnceCell;

use nilometer_bson::{ValueRef, document};
use nilometer_storage::{Engine, KeyspaceId, Snapshot, WriteBatch};

use crate::error::{Error, ErrorCode, Result};

/// The key that says that every bucket has an entry. Until then there may be buckets that are older than the registry.
pub(crate) const COMPLETE: [u8; 1] = [1];

const SERIES: u8 = 2;

/// The range of the keys of all series.
pub(crate) const ALL: ([u8; 1], [u8; 1]) = ([SERIES], [SERIES + 1]);

/// Returns the key of the series with this metadata.
pub(crate) fn key(meta: ValueRef<'_>) -> Vec<u8> {
    let mut key = vec![SERIES];
    if !meta.is_missing() {
        key.push(meta.type_code());
        document::write_value(&mut key, meta);
    }
    key
}

/// Returns the metadata that a key is of.
pub(crate) fn meta_of(key: &[u8]) -> Result<ValueRef<'_>> {
    let meta = match key {
        [SERIES] => Some(ValueRef::Missing),
        [SERIES, code, bytes @ ..] => document::decode_value(*code, bytes),
        _ => None,
    };
    meta.ok_or_else(|| {
        Error::new(
            ErrorCode::DataCorruptionDetected,
            "an entry of the registry of series cannot be read",
        )
    })
}

/// True once every bucket has an entry.
pub(crate) fn is_complete(snapshot: &dyn Snapshot, registry: KeyspaceId) -> Result<bool> {
    Ok(snapshot.get(registry, &COMPLETE)?.is_some())
}

/// Registers the series of the buckets of one batch. Until the commit of a batch with new buckets no entry must be removed: the
/// writer has locked the list of indexes for as long as this exists.
pub(crate) struct SeriesRegistrar<'e> {
    engine: &'e dyn Engine,
    /// `None` for a collection without a registry.
    registry: Option<KeyspaceId>,
    /// What was registered when the first series was looked for. One that came later is written again, which does no harm.
    snapshot: OnceCell<Box<dyn Snapshot>>,
}

impl<'e> SeriesRegistrar<'e> {
    pub(crate) fn new(engine: &'e dyn Engine, registry: Option<KeyspaceId>) -> Self {
        Self {
            engine,
            registry,
            snapshot: OnceCell::new(),
        }
    }

    /// Writes the entry of a series unless it is there.
    pub(crate) fn register(&self, batch: &mut WriteBatch, meta: ValueRef<'_>) -> Result<()> {
        let Some(registry) = self.registry else {
            return Ok(());
        };
        let snapshot = match self.snapshot.get() {
            Some(snapshot) => snapshot,
            None => {
                let taken = self.engine.snapshot()?;
                self.snapshot.get_or_init(|| taken)
            }
        };
        let key = key(meta);
        if snapshot.get(registry, &key)?.is_none() {
            batch.put(registry, key, Vec::new());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nilometer_bson::{Value, array, doc};

    #[test]
    fn metadata_is_read_from_its_key() {
        let metas = [
            Value::Missing,
            Value::Null,
            Value::from(doc! {}),
            Value::from(doc! { "b": 1, "a": doc! { "y": "x".repeat(300), "x": 2i64 } }),
            array![1, "x"],
            Value::from("x"),
            Value::from(1.5),
        ];
        for meta in &metas {
            let stored = key(meta.as_ref());
            assert!(ALL.0[..] <= stored[..] && stored[..] < ALL.1[..]);
            let found = meta_of(&stored).unwrap();
            assert_eq!(found.type_code(), meta.as_ref().type_code());
            assert_eq!(key(found), stored);
        }
    }

    #[test]
    fn damaged_keys_are_errors() {
        let meta = Value::from(doc! { "a": "x", "b": array![1, 2] });
        let key = key(meta.as_ref());
        for end in (0..key.len()).filter(|end| *end != 1) {
            assert!(meta_of(&key[..end]).is_err(), "{end}");
        }
        for at in 0..key.len() {
            let mut damaged = key.clone();
            damaged[at] ^= 0x40;
            // Other bytes of a text are another text.
            if let Ok(meta) = meta_of(&damaged) {
                let _ = meta.to_value();
            }
        }
    }
}

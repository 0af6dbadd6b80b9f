//! The entries of a bin in the indexes of its rollup.
//!
//! An entry is that of an ordinary collection ([`crate::index::entry`]): the key string of the bin as queries show it, and the
//! record of the bin. Entries change in the engine batch of their bin, so a snapshot has the entries of the bins that it has. That
//! goes for dirty bins, too: a reader drops the entries of bins that it computes.

use std::sync::Arc;

use nilometer_bson::DocRef;
use nilometer_storage::WriteBatch;

use crate::catalog::StoredRollup;
use crate::error::Result;
use crate::index::{DocumentKeys, Index, delete_entries, put_entries};

/// The indexes of a rollup whose lock is held.
#[derive(Debug, Default)]
pub struct BinIndexes(Vec<Arc<Index>>);

/// The keys of a bin, in the order of the indexes.
#[derive(Debug, Default)]
pub struct BinKeys(Vec<DocumentKeys>);

impl BinIndexes {
    /// Returns the indexes of a rollup.
    pub fn of(rollup: &StoredRollup) -> Result<Self> {
        let all = rollup.indexes.all();
        let compiled = all.iter().map(Index::of).collect::<Result<_>>();
        Ok(Self(compiled?))
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the keys of a bin as queries show it. Fails if it cannot be indexed, as with arrays in two parts of a key.
    pub fn keys(&self, shown: DocRef<'_>) -> Result<BinKeys> {
        let keys = self.0.iter().map(|index| index.keys(shown));
        Ok(BinKeys(keys.collect::<Result<_>>()?))
    }

    /// Returns the indexes in which `keys` have arrays where no bin had one, each with one bit per part.
    pub fn new_arrays<'i>(
        &'i self,
        keys: &'i BinKeys,
    ) -> impl Iterator<Item = (&'i Arc<Index>, u32)> {
        let pairs = self.0.iter().zip(&keys.0);
        let pairs = pairs.map(|(index, keys)| (index, keys.multikey));
        pairs.filter(|(index, bits)| index.stored.multikey() & bits != *bits)
    }

    /// Adds the entries of a bin to a batch.
    pub fn put(&self, batch: &mut WriteBatch, keys: &BinKeys, record: &[u8]) {
        for (index, keys) in self.0.iter().zip(&keys.0) {
            put_entries(batch, index, keys, record);
        }
    }

    /// Adds the removal of the entries of a bin to a batch.
    pub fn delete(&self, batch: &mut WriteBatch, keys: &BinKeys, record: &[u8]) {
        for (index, keys) in self.0.iter().zip(&keys.0) {
            delete_entries(batch, index, keys, record);
        }
    }
}

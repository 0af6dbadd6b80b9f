//! The records of an ordinary collection as the source of an index build.

use std::sync::Arc;

use nilometer_storage::Snapshot;

use super::records::{CollectionState, Records, document, keyspaces, read_chunk};
use crate::catalog::Collection;
use crate::error::Result;
use crate::index::{BuildSource, DocumentChunk};

/// Reads the records of a collection in the order of their keys.
pub struct RecordBuildSource<'r> {
    records: &'r Records,
    collection: &'r Collection,
    state: Arc<CollectionState>,
}

impl Records {
    /// Returns the records of `collection` as a build source.
    pub fn build_source<'r>(&'r self, collection: &'r Collection) -> Result<RecordBuildSource<'r>> {
        Ok(RecordBuildSource {
            records: self,
            collection,
            state: self.state(collection)?,
        })
    }
}

impl BuildSource for RecordBuildSource<'_> {
    fn exclusively(&self, work: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        let _writing = self.state.lock();
        work()
    }

    fn documents_after(
        &self,
        snapshot: &dyn Snapshot,
        after: Option<&[u8]>,
    ) -> Result<DocumentChunk> {
        let (records, _) = keyspaces(self.collection)?;
        let chunk = read_chunk(snapshot, records, after, false)?;
        chunk
            .into_iter()
            .map(|(key, value)| Ok((key.to_vec(), document(&value)?)))
            .collect()
    }

    fn document_count(&self) -> Result<u64> {
        self.records.count(self.collection)
    }

    fn has_waiting_writers(&self) -> bool {
        self.state.has_waiting()
    }
}

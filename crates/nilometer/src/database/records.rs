//! An ordinary collection as a source of queries.

use std::sync::Arc;

use nilometer_bson::{Document, Value, ValueRef};

use crate::catalog::{Collection, Storage, StoredIndex};
use crate::error::{Error, ErrorCode, Result};
use crate::eval::Collation;
use crate::index::Index;
use crate::query::planner::access::ID_INDEX;
use crate::query::source::{
    Direction, EntryIter, RecordIter, RecordKey, RecordScanOptions, RecordSource, RecordView,
    names_id_index,
};
use crate::write::{Arrivals, CollectionSnapshot, KeyBounds, Records, clustered_key};

/// An ordinary collection.
pub(super) struct StoredRecordSource {
    pub(super) records: Arc<Records>,
    pub(super) collection: Arc<Collection>,
    pub(super) collation: Collation,
}

/// A consistent view of an ordinary collection.
struct StoredRecordView {
    view: CollectionSnapshot,
    collection: Arc<Collection>,
}

impl RecordView for StoredRecordView {
    fn entries(
        &self,
        index: &Index,
        start: &[u8],
        end: Option<&[u8]>,
        direction: Direction,
    ) -> Result<EntryIter> {
        let name = &index.stored.spec.name;
        let keyspace = index.stored.keyspace;
        let listed = self.collection.indexes.all();
        if name != ID_INDEX && !listed.iter().any(|own| own.keyspace == keyspace) {
            return Err(Error::new(
                ErrorCode::QueryPlanKilled,
                format!("query plan killed :: caused by :: index '{name}' dropped"),
            ));
        }
        let backward = direction == Direction::Backward;
        let entries = self.view.entries(index, start, end, backward)?;
        Ok(Box::new(entries.map(|entry| entry.map(Into::into))))
    }

    fn record(&self, key: &[u8]) -> Result<Option<Document>> {
        self.view.record(key)
    }
}

impl RecordSource for StoredRecordSource {
    fn view(&self) -> Result<Option<Box<dyn RecordView>>> {
        Ok(Some(Box::new(StoredRecordView {
            view: self.records.snapshot(&self.collection)?,
            collection: self.collection.clone(),
        })))
    }

    fn all_indexes(&self) -> Result<Vec<Arc<Index>>> {
        let mut all = Vec::new();
        if let Storage::Records {
            id_index: Some(id_index),
            ..
        } = self.collection.storage
        {
            all.push(Index::of(&Arc::new(StoredIndex::id_index(
                id_index,
                self.collation.to_document(),
                &self.collection.indexes,
            )))?);
        }
        for stored in self.collection.indexes.all().iter() {
            if stored.is_ready() {
                all.push(Index::of(stored)?);
            }
        }
        Ok(all)
    }

    fn scan(&self, scan: &RecordScanOptions) -> Result<RecordIter> {
        let backward = scan.direction == Direction::Backward;
        let bounds = KeyBounds {
            min: scan.min.clone(),
            max: scan.max.clone(),
        };
        if bounds.is_bounded() && self.is_clustered() {
            self.collection.indexes.count_id_use();
        }
        let start_after = scan.start_after.clone();
        let records = self
            .records
            .scan_within(&self.collection, backward, start_after, bounds)?;
        Ok(Box::new(match scan.reads_all {
            true => records.in_large_chunks(),
            false => records,
        }))
    }

    fn key_behind(&self, key: &RecordKey, count: u64) -> Option<RecordKey> {
        let id = key.first_chunk().filter(|_| !self.is_clustered())?;
        let behind = u64::from_be_bytes(*id).saturating_add(count);
        Some(behind.to_be_bytes().to_vec())
    }

    fn arrivals(&self) -> Result<Option<Arc<Arrivals>>> {
        self.records.arrivals(&self.collection)
    }

    fn known_count(&self) -> Result<Option<u64>> {
        self.records.known_count(&self.collection)
    }

    fn count_estimate(&self) -> Result<u64> {
        self.records.count(&self.collection)
    }

    fn has_id_index(&self) -> bool {
        !self.is_clustered()
    }

    fn is_clustered(&self) -> bool {
        self.collection.is_clustered()
    }

    fn clustered_key(&self, id: ValueRef<'_>) -> Option<RecordKey> {
        self.is_clustered()
            .then(|| clustered_key(id, &self.collation))
    }

    fn knows_index(&self, hint: ValueRef<'_>) -> bool {
        let index = self.collection.options.get("clusteredIndex").as_document();
        let name = index.and_then(|index| index.get("name").as_str());
        names_id_index(hint, name.unwrap_or(ID_INDEX))
    }

    fn record_id(&self, key: &[u8]) -> Value {
        match key.first_chunk::<8>() {
            Some(eight) if !self.is_clustered() => Value::Int64(i64::from_be_bytes(*eight)),
            _ => ValueRef::Binary {
                subtype: 0,
                bytes: key,
            }
            .to_value(),
        }
    }

    fn collation(&self) -> Collation {
        self.collation.clone()
    }

    fn find_by_id(&self, id: ValueRef<'_>) -> Option<Result<Option<(RecordKey, Document)>>> {
        self.collection.indexes.count_id_use();
        Some(self.records.find_by_id(&self.collection, id))
    }

    fn indexes(&self) -> Result<Vec<Arc<Index>>> {
        let all = self.collection.indexes.all();
        let usable = all.iter().filter(|index| index.is_usable());
        usable.map(Index::of).collect()
    }
}

//! The partitions of the documents of one command, whose keys repeat.
//!
//! A batch of measurements has few series, and the hash of a key costs more than the rest of its way to a partition. So the
//! partitions of keys are kept while a batch is divided, by the bytes of the values.

use std::collections::HashMap;

use nilometer_bson::path::keys::plain_value;
use nilometer_bson::{DocRef, ValueRef, document::write_value};

use super::Placement;
use crate::error::Result;

/// Keys in the cache; the partitions of others are computed each time.
const KEYS_MAX: usize = 10_000;

/// Finds the partitions of new documents by one placement.
pub(crate) struct PartitionCache<'p> {
    placement: &'p Placement,
    /// False if keys hardly repeat, or cost little.
    is_on: bool,
    known: HashMap<Vec<u8>, usize, foldhash::fast::RandomState>,
    key: Vec<u8>,
}

impl<'p> PartitionCache<'p> {
    /// Begins a batch.
    pub(crate) fn new(placement: &'p Placement) -> Self {
        let sharding = placement.sharding.as_ref();
        let is_on = sharding.is_some_and(|sharding| {
            let key = &sharding.key;
            key.is_timeseries() && key.is_hashed() && !key.has_time()
        });
        Self {
            placement,
            is_on,
            known: HashMap::default(),
            key: Vec::new(),
        }
    }

    /// Returns the partition for a new document.
    pub(crate) fn partition_of(&mut self, document: DocRef<'_>) -> Result<usize> {
        if !self.is_on || !self.read_key(document) {
            return self.placement.partition_of(document);
        }
        if let Some(partition) = self.known.get(&self.key) {
            return Ok(*partition);
        }
        let partition = self.placement.partition_of(document)?;
        if self.known.len() < KEYS_MAX {
            self.known.insert(self.key.clone(), partition);
        }
        Ok(partition)
    }

    /// Reads the bytes of the key of a document. False if there is a value that no key has.
    fn read_key(&mut self, document: DocRef<'_>) -> bool {
        self.key.clear();
        let Some(sharding) = &self.placement.sharding else {
            return false;
        };
        let mut parts = sharding.key.parts().iter();
        parts.all(|part| {
            let Some(value) = plain_value(&part.path, document) else {
                return false;
            };
            match value {
                ValueRef::Missing => self.key.push(0),
                value => {
                    self.key.push(value.type_code());
                    write_value(&mut self.key, value);
                }
            }
            true
        })
    }
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{Document, Value, array, doc};

    use super::*;
    use crate::catalog::TimeseriesOptions;
    use crate::router::{ShardKey, Sharding};

    #[test]
    fn partitions_in_the_cache_are_those_of_the_placement() {
        let options = doc! {"timeField": "t", "metaField": "m"};
        let options = TimeseriesOptions::parse(options.as_ref()).expect("options");
        let metas: Vec<Value> = vec![
            1.into(),
            1_i64.into(),
            1.0.into(),
            1.5.into(),
            "1".into(),
            "".into(),
            Value::Null,
            doc! {}.into(),
            doc! {"a": 1}.into(),
            doc! {"a": 1.0}.into(),
            doc! {"a": "", "b": Value::Null}.into(),
            doc! {"b": "", "a": Value::Null}.into(),
            array![1],
            doc! {"a": array![1]}.into(),
            true.into(),
            Value::DateTime(7),
            7_i64.into(),
        ];
        let mut documents: Vec<Document> = metas.iter().map(|m| doc! {"m": m.clone()}).collect();
        documents.push(Document::new());
        let keys = [
            doc! {"m": "hashed"},
            doc! {"m.a": "hashed"},
            doc! {"m.a": "hashed", "m.b": 1},
            doc! {"m.a": "hashed", "t": 1},
            doc! {"m.b": 1},
        ];
        for key in keys {
            let key = ShardKey::parse(key.as_ref(), Some(&options)).expect("a key");
            let mut placement = Placement::whole(0, [0; 16]);
            let sharding = Sharding::new(key, 0, Some(7), 0);
            placement.sharding = Some(std::sync::Arc::new(sharding));
            let mut cache = PartitionCache::new(&placement);
            for document in documents.iter().chain(&documents) {
                let found = cache.partition_of(document.as_ref());
                let expected = placement.partition_of(document.as_ref());
                assert_eq!(found.is_err(), expected.is_err(), "{document:?}");
                assert_eq!(found.ok(), expected.ok(), "{document:?}");
            }
        }
    }
}

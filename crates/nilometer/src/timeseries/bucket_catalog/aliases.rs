//! Metadata as clients send it, and the series it names.
//!
//! A series is known by its normalised metadata, and a client repeats the same bytes with every
//! measurement. Looking those up spares normalising and hashing them anew in every command. The table
//! has a fixed number of places; metadata takes the place its hash names, whoever had it before.

use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, PoisonError};

use foldhash::quality::RandomState;

use super::series::SeriesKey;

/// Locks the places are spread over.
const SHARDS: usize = 16;

/// Places of one shard.
const PLACES: usize = 1024;

/// Longer metadata is not remembered, in bytes. With all places taken the table holds 32 MiB.
const RAW_BYTES_MAX: usize = 1024;

#[derive(Debug)]
struct Alias {
    raw: Box<[u8]>,
    key: Arc<SeriesKey>,
}

type Shard = Mutex<Vec<Option<Alias>>>;

/// The table.
#[derive(Debug)]
pub(super) struct Aliases {
    /// Their places are made when one is first used.
    shards: Vec<Shard>,
    /// Who finds metadata of equal hashes makes them take each other's place, no more.
    hasher: RandomState,
}

impl Default for Aliases {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            hasher: RandomState::default(),
        }
    }
}

impl Aliases {
    fn place(&self, collection: [u8; 16], raw: &[u8]) -> (Option<&Shard>, usize) {
        let hash = self.hasher.hash_one((collection, raw)) as usize;
        (self.shards.get(hash % SHARDS), hash / SHARDS % PLACES)
    }

    /// The series that metadata with the bytes `raw` names, if it is remembered.
    pub(super) fn get(&self, collection: [u8; 16], raw: &[u8]) -> Option<Arc<SeriesKey>> {
        let (shard, place) = self.place(collection, raw);
        let places = shard?.lock().unwrap_or_else(PoisonError::into_inner);
        let alias = places.get(place)?.as_ref()?;
        let same = alias.key.collection == collection && *alias.raw == *raw;
        same.then(|| alias.key.clone())
    }

    /// Remembers what it names.
    pub(super) fn put(&self, raw: &[u8], key: Arc<SeriesKey>) {
        let (Some(shard), place) = self.place(key.collection, raw) else {
            return;
        };
        if raw.len() > RAW_BYTES_MAX {
            return;
        }
        let mut places = shard.lock().unwrap_or_else(PoisonError::into_inner);
        if places.is_empty() {
            places.resize_with(PLACES, || None);
        }
        if let Some(place) = places.get_mut(place) {
            let raw = raw.into();
            *place = Some(Alias { raw, key });
        }
    }
}

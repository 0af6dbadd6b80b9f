//! Reading records by keys that follow each other closely: by one scan in place of a search for each.
//!
//! ```text
//! keys   7   9   10   12   13   14   90   91
//!        get get get  get  └─ scan ─┘ get get       a scan begins after RUN_MIN keys that were near
//! ```
//!
//! An index whose values grow with the time of insertion (a date, the number of an order) leads to records in such an order. A search costs some
//! microseconds, a step of a scan a fraction of one. Only keys that are record ids (eight bytes) are compared.

use nilometer_storage::{Bytes, Direction, KeyspaceId, Scan, Snapshot};

use crate::error::Result;

/// Largest distance of a key that is near the one before.
const NEAR_MAX: u64 = 12;

/// Near keys in a row after which a scan begins. To begin one costs as much as a few searches.
const RUN_MIN: u32 = 4;

/// The place of the last read, and the scan if one is open.
#[derive(Default)]
pub(super) struct NearReads {
    last: Option<u64>,
    /// Near keys in a row.
    run: u32,
    scan: Option<OpenScan>,
}

/// A scan, and the entry it returned that was not asked for yet.
struct OpenScan {
    entries: Scan,
    ahead: Option<(Bytes, Bytes)>,
}

impl OpenScan {
    /// Returns the entry with this key; no smaller one is asked for afterwards.
    fn find(&mut self, key: &[u8]) -> Result<Option<Bytes>> {
        loop {
            let (found, value) = match self.ahead.take() {
                Some(entry) => entry,
                None => match self.entries.next().transpose()? {
                    Some(entry) => entry,
                    None => return Ok(None),
                },
            };
            match found[..].cmp(key) {
                std::cmp::Ordering::Less => {}
                std::cmp::Ordering::Equal => return Ok(Some(value)),
                std::cmp::Ordering::Greater => {
                    self.ahead = Some((found, value));
                    return Ok(None);
                }
            }
        }
    }
}

impl NearReads {
    /// Returns the value of `key`. Every call must pass the same snapshot and keyspace.
    pub(super) fn read(
        &mut self,
        snapshot: &dyn Snapshot,
        keyspace: KeyspaceId,
        key: &[u8],
    ) -> Result<Option<Bytes>> {
        let id = <[u8; 8]>::try_from(key).ok().map(u64::from_be_bytes);
        let before = std::mem::replace(&mut self.last, id);
        let distance = id
            .zip(before)
            .and_then(|(id, before)| id.checked_sub(before));
        if !distance.is_some_and(|by| (1..=NEAR_MAX).contains(&by)) {
            self.run = 0;
            self.scan = None;
            return Ok(snapshot.get(keyspace, key)?);
        }
        self.run = self.run.saturating_add(1);
        if self.run < RUN_MIN {
            return Ok(snapshot.get(keyspace, key)?);
        }
        if let Some(scan) = &mut self.scan {
            return scan.find(key);
        }
        let entries = snapshot.scan(keyspace, key, None, Direction::Forward)?;
        let scan = self.scan.insert(OpenScan {
            entries,
            ahead: None,
        });
        scan.find(key)
    }
}

#[cfg(test)]
mod tests {
    use nilometer_storage::{Durability, Engine, KeyspaceOptions, MemoryEngine, WriteBatch};

    use super::*;

    #[test]
    fn near_keys_are_read_as_far_ones_are() {
        let engine = MemoryEngine::new();
        let keyspace = engine
            .create_keyspace("records", KeyspaceOptions::default())
            .unwrap();
        let mut batch = WriteBatch::new();
        for id in (0..2_000u64).filter(|id| id % 7 != 3) {
            batch.put(
                keyspace,
                id.to_be_bytes().to_vec(),
                id.to_string().into_bytes(),
            );
        }
        engine.commit(batch, Durability::Buffered).unwrap();
        let snapshot = engine.snapshot().unwrap();
        let mut random = 7u64;
        let (mut near, mut at, mut scanned) = (NearReads::default(), 0u64, 0);
        for step in 0..20_000u64 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let chance = random >> 33;
            // Mostly steps forward, some far away, some to keys of other lengths.
            at = match chance % 50 {
                0 => chance % 2_100,
                1 => at.saturating_sub(chance % 5),
                _ => at + chance % (2 + step % 12),
            };
            let mut key = at.to_be_bytes().to_vec();
            if chance.is_multiple_of(91) {
                key.push(0);
            }
            let read = near.read(&*snapshot, keyspace, &key).unwrap();
            assert_eq!(
                read,
                snapshot.get(keyspace, &key).unwrap(),
                "{at} in step {step}"
            );
            scanned += usize::from(near.scan.is_some());
            at %= 2_100;
        }
        assert!(scanned > 1_000, "{scanned}");
    }
}

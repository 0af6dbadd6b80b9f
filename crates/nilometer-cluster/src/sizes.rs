//! The sizes of keyspaces: how many entries and bytes the tables and the memory have of each.
//!
//! A table says how many entries each of its blocks has, and its index where each block begins and with which key. The
//! blocks in which one keyspace ends and another begins are read. So a table that appears costs a few reads, once; an
//! estimate costs none. Entries are counted with their older versions, until a merge removes them.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, RwLock};

use nilometer_storage::{KeyspaceId, Operation};
use slatedb::manifest::{SsTableHandle, SsTableId, VersionedManifest};
use slatedb::{DbStatus, RowEntry, SstFile, SstReader};
use tokio::sync::watch;

use crate::layout;
use crate::lock::{lock, read, write};

/// Batches whose sizes are kept as one sum, until all of them are in tables.
const BATCHES_OF_A_SUM: u64 = 1024;

/// A number of entries and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) entries: u64,
    /// Marks of deleted entries.
    pub(crate) deletions: u64,
    pub(crate) bytes: u64,
}

impl Share {
    /// Adds an operation.
    pub(crate) fn add(&mut self, key: &[u8], operation: &Operation) {
        self.bytes += key.len() as u64;
        match operation {
            Operation::Put(value) => {
                self.entries += 1;
                self.bytes += value.len() as u64;
            }
            Operation::Delete => self.deletions += 1,
        }
    }

    /// Returns the number of entries and of marks.
    fn rows(&self) -> u64 {
        self.entries + self.deletions
    }

    fn absorb(&mut self, other: Self) {
        self.entries += other.entries;
        self.deletions += other.deletions;
        self.bytes += other.bytes;
    }
}

type Shares = BTreeMap<KeyspaceId, Share>;

/// The sizes of all keyspaces.
pub(crate) struct Sizes {
    reader: SstReader,
    /// The shares of each table, which never change.
    tables: Mutex<HashMap<SsTableId, Arc<Shares>>>,
    in_tables: RwLock<TableSizes>,
    unflushed: Mutex<VecDeque<UnflushedSum>>,
}

#[derive(Default)]
struct TableSizes {
    shares: Shares,
    bytes: u64,
    /// The last batch that is in tables.
    sequence: u64,
}

/// What some batches in a row add.
struct UnflushedSum {
    batches: u64,
    last_sequence: u64,
    shares: Shares,
}

impl Sizes {
    /// Returns the sizes of a database whose tables `reader` reads.
    pub(crate) fn new(reader: SstReader) -> Self {
        Self {
            reader,
            tables: Mutex::default(),
            in_tables: RwLock::default(),
            unflushed: Mutex::default(),
        }
    }

    /// Adds a batch that was written.
    pub(crate) fn add_unflushed(
        &self,
        sequence: u64,
        shares: impl Iterator<Item = (KeyspaceId, Share)>,
    ) {
        let flushed = read(&self.in_tables).sequence;
        let mut sums = lock(&self.unflushed);
        while sums.front().is_some_and(|sum| sum.last_sequence <= flushed) {
            sums.pop_front();
        }
        if sums
            .back()
            .is_none_or(|sum| sum.batches >= BATCHES_OF_A_SUM)
        {
            sums.push_back(UnflushedSum {
                batches: 0,
                last_sequence: 0,
                shares: Shares::new(),
            });
        }
        if let Some(sum) = sums.back_mut() {
            sum.batches += 1;
            sum.last_sequence = sum.last_sequence.max(sequence);
            for (id, share) in shares {
                sum.shares.entry(id).or_default().absorb(share);
            }
        }
    }

    /// Returns what the tables have of a keyspace.
    pub(crate) fn in_tables(&self, id: KeyspaceId) -> Share {
        let tables = read(&self.in_tables);
        tables.shares.get(&id).copied().unwrap_or_default()
    }

    /// Returns the bytes of all tables.
    pub(crate) fn table_bytes(&self) -> u64 {
        read(&self.in_tables).bytes
    }

    /// Returns what is in memory of a keyspace, or of all, and not in tables.
    pub(crate) fn unflushed(&self, id: Option<KeyspaceId>) -> Share {
        let flushed = read(&self.in_tables).sequence;
        let mut share = Share::default();
        for sum in lock(&self.unflushed).iter() {
            if sum.last_sequence <= flushed {
                continue;
            }
            for (of, part) in &sum.shares {
                if id.is_none_or(|id| id == *of) {
                    share.absorb(*part);
                }
            }
        }
        share
    }

    /// Returns how many entries and marks of deleted ones there are of a keyspace; `None` while there may be others: the batches
    /// up to `uncounted` are counted when they are in tables.
    pub(crate) fn entries_max(&self, id: KeyspaceId, uncounted: u64) -> Option<u64> {
        // In this order, so that a memtable that is flushed meanwhile is counted twice rather than not at all.
        let unflushed = self.unflushed(Some(id));
        let is_counted = read(&self.in_tables).sequence >= uncounted;
        let in_tables = self.in_tables(id);
        is_counted.then(|| unflushed.rows() + in_tables.rows())
    }

    /// Follows the tables of a database until it is closed.
    pub(crate) async fn follow(self: Arc<Self>, mut status: watch::Receiver<DbStatus>) {
        loop {
            let manifest = status.borrow_and_update().current_manifest.clone();
            // Tried again with the next table, and when statistics are asked for.
            let _ = self.update(&manifest).await;
            let id = manifest.id();
            if status
                .wait_for(|now| now.current_manifest.id() != id)
                .await
                .is_err()
            {
                return;
            }
        }
    }

    /// Reads the sizes of tables that are new in the manifest.
    pub(crate) async fn update(&self, manifest: &VersionedManifest) -> Result<(), slatedb::Error> {
        let mut known = HashMap::new();
        let mut sizes = TableSizes {
            sequence: manifest.last_l0_seq(),
            ..TableSizes::default()
        };
        for view in manifest.all_sst_views() {
            let table = &view.sst;
            let shares = lock(&self.tables).get(&table.id).cloned();
            let shares = match shares {
                Some(shares) => shares,
                None => Arc::new(self.read_shares(table).await?),
            };
            for (id, share) in shares.iter() {
                sizes.shares.entry(*id).or_default().absorb(*share);
            }
            sizes.bytes += table.estimate_size();
            known.insert(table.id, shares);
        }
        *lock(&self.tables) = known;
        let mut current = write(&self.in_tables);
        // Two updates may run at a time; the tables of the newer manifest count.
        if sizes.sequence >= current.sequence {
            *current = sizes;
        }
        Ok(())
    }

    async fn read_shares(&self, table: &SsTableHandle) -> Result<Shares, slatedb::Error> {
        let table = self.reader.open_with_handle(table.clone())?;
        let index = table.index().await?;
        let stats = table.stats().await?.unwrap_or_default();
        let mut shares = Shares::new();
        let end = table.info().index_offset;
        for block in 0..index.len() {
            let Some((offset, first)) = index.get(block) else {
                break;
            };
            let next = index.get(block + 1);
            let bytes = next.map_or(end, |(next, _)| next).saturating_sub(offset);
            let of = layout::keyspace_of(first);
            let is_whole = match next {
                Some((_, next)) => layout::keyspace_of(next) == of,
                None => {
                    table
                        .info()
                        .last_entry
                        .as_deref()
                        .and_then(layout::keyspace_of)
                        == of
                }
            };
            match (of, stats.block_stats.get(block)) {
                (Some(of), Some(counts)) if is_whole => {
                    shares.entry(of).or_default().absorb(Share {
                        entries: u64::from(counts.num_puts),
                        deletions: u64::from(counts.num_deletes),
                        bytes,
                    });
                }
                _ => share_block(&table, block, bytes, &mut shares).await?,
            }
        }
        Ok(shares)
    }
}

/// Adds the shares of a block with entries of several keyspaces.
async fn share_block(
    table: &SstFile,
    block: usize,
    bytes: u64,
    shares: &mut Shares,
) -> Result<(), slatedb::Error> {
    let rows = table.read_block(block).await?;
    let length = |row: &RowEntry| (row.key.len() + row.value.len()) as u64;
    let all = rows.iter().map(length).sum::<u64>().max(1);
    for row in rows {
        let Some(of) = layout::keyspace_of(&row.key) else {
            continue;
        };
        shares.entry(of).or_default().absorb(Share {
            entries: u64::from(!row.value.is_tombstone()),
            deletions: u64::from(row.value.is_tombstone()),
            bytes: (bytes * length(&row)).div_ceil(all),
        });
    }
    Ok(())
}

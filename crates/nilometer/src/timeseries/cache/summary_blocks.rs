//! Decoded blocks of summaries ([`format::summary`](crate::timeseries::format::summary)) for the next reader. A block has a number
//! that is never used again, so no entry becomes invalid.

use std::collections::HashMap;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use nilometer_bson::{Document, DocumentBuilder, ValueRef};
use nilometer_storage::{Bytes, KeyspaceId};

use super::interner::{ColumnOrder, Interner};
use crate::budget::Budgeted;
use crate::error::Result;
use crate::timeseries::format::key_range::KeyRange;
use crate::timeseries::format::sealed::StoredColumn;
use crate::timeseries::format::summary::keys::ListedBlock;
use crate::timeseries::format::summary::{SummaryBlock, SummaryColumn, SummaryRow};

/// Default limit of all decoded blocks, in bytes: about 300,000 buckets of ten fields.
pub(crate) const SUMMARY_BYTES_MAX: usize = 256 << 20;

/// Buckets that are asked for before their block is read: to look up one costs about as much as an eighth of a block.
const ROWS_MIN: usize = if cfg!(test) { 2 } else { 8 };

/// Blocks of which the number of buckets asked for is known, at most.
const ASKED_MAX: usize = 1 << 13;

/// A decoded block with what readers share.
pub(crate) struct OpenedSummaries {
    block: SummaryBlock,
    /// The columns of each layout.
    orders: Vec<LayoutColumns>,
    /// The ids of the metadata of each row, from the first request on.
    meta_ids: Box<[OnceLock<Option<NonZeroU64>>]>,
    /// The ids of the constant fields of each row, likewise.
    constants_ids: Box<[OnceLock<Option<NonZeroU64>>]>,
    interner: Arc<Interner>,
    was_read: AtomicBool,
    bytes: usize,
}

/// The columns of a layout by place.
struct LayoutColumns {
    order: Arc<ColumnOrder>,
    /// For each place the position in `data`.
    sections: Box<[u32]>,
}

impl OpenedSummaries {
    /// Decodes a block.
    pub(crate) fn open(bytes: Bytes, interner: &Arc<Interner>) -> Result<Self> {
        let block = SummaryBlock::decode(bytes)?;
        let orders = block.layouts.iter().map(|layout| {
            let order = interner.column_order(layout.names.iter().map(|name| &**name));
            let mut sections = vec![0; order.shown.len()].into_boxed_slice();
            for (nth, place) in (0..).zip(&order.shown) {
                sections[*place as usize] = nth;
            }
            LayoutColumns { order, sections }
        });
        let orders = orders.collect();
        let meta_ids: Box<[_]> = block.rows.iter().map(|_| OnceLock::new()).collect();
        let constants_ids: Box<[_]> = block.rows.iter().map(|_| OnceLock::new()).collect();
        let bytes = block.memory_bytes() + 2 * size_of_val(&*meta_ids);
        Ok(Self {
            block,
            orders,
            meta_ids,
            constants_ids,
            interner: Arc::clone(interner),
            was_read: AtomicBool::new(false),
            bytes,
        })
    }

    /// The rows, ids ascending.
    pub(crate) fn rows(&self) -> &[SummaryRow] {
        &self.block.rows
    }

    /// Returns the columns of a row.
    pub(crate) fn order(&self, row: &SummaryRow) -> Option<&Arc<ColumnOrder>> {
        Some(&self.orders.get(row.layout as usize)?.order)
    }

    /// Returns the metadata of a row.
    pub(crate) fn meta(&self, row: &SummaryRow) -> ValueRef<'_> {
        self.block.meta(row)
    }

    /// Returns the id of the metadata of a row, if that is a document.
    pub(crate) fn meta_id(&self, at: usize) -> Option<NonZeroU64> {
        let row = self.block.rows.get(at)?;
        *self
            .meta_ids
            .get(at)?
            .get_or_init(|| match self.block.meta(row) {
                ValueRef::Document(meta) => self.interner.id_of(meta.as_bytes()),
                _ => None,
            })
    }

    /// Returns the fields of a row that have one value in all measurements, in the order of their names.
    pub(crate) fn constants(&self, row: &SummaryRow) -> Result<Document> {
        let mut out = DocumentBuilder::new();
        let names = self.order(row).map(|order| order.names.iter());
        for (at, name) in names.into_iter().flatten().enumerate() {
            if let Some(column) = self.column(row, at)?
                && column.is_constant(row.place as usize)
            {
                out.append_ref(name, column.bounds(row.place as usize).0);
            }
        }
        Ok(out.finish())
    }

    /// Returns the sizes of the stored columns of a row, in the order of `data`; `None` if they are not known.
    pub(crate) fn stored_columns(&self, row: &SummaryRow) -> Option<&[Option<StoredColumn>]> {
        self.block.stored_columns(row)
    }

    /// Returns the position in `data` of the column of a row at a place.
    pub(crate) fn shown_at(&self, row: &SummaryRow, at: usize) -> Option<usize> {
        let sections = &self.orders.get(row.layout as usize)?.sections;
        sections.get(at).map(|shown| *shown as usize)
    }

    /// Returns the id of the constant fields of a row; `None` if there are none.
    pub(crate) fn constants_id(&self, at: usize) -> Option<NonZeroU64> {
        let row = self.block.rows.get(at)?;
        *self.constants_ids.get(at)?.get_or_init(|| {
            let constants = self.constants(row).ok().filter(|found| !found.is_empty())?;
            self.interner.id_of(constants.as_bytes())
        })
    }

    /// Returns the summaries of the column of a row at a place; `None` if there is no such column.
    pub(crate) fn column(&self, row: &SummaryRow, at: usize) -> Result<Option<&SummaryColumn>> {
        let layout = self.orders.get(row.layout as usize);
        match layout.and_then(|layout| layout.sections.get(at)) {
            Some(section) => self.block.column(row.layout, *section as usize).map(Some),
            None => Ok(None),
        }
    }
}

/// The blocks of a range of buckets, and the marks there.
pub(crate) struct SummaryDirectory {
    /// The range.
    pub(crate) range: KeyRange,
    /// Ascending.
    pub(crate) blocks: Vec<ListedBlock>,
    /// The buckets whose summary is out of date, ascending.
    pub(crate) marked: Vec<[u8; 12]>,
}

impl SummaryDirectory {
    /// Returns the blocks with buckets in a range.
    pub(crate) fn blocks_within(&self, range: &KeyRange) -> &[ListedBlock] {
        let from = self
            .blocks
            .partition_point(|block| block.last[..] < range.start[..]);
        let to = self
            .blocks
            .partition_point(|block| range.ends_after(&block.first));
        self.blocks.get(from..to).unwrap_or(&[])
    }

    fn memory_bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.blocks) + size_of_val(&*self.marked)
    }
}

type Blocks = HashMap<(KeyspaceId, u64), Arc<OpenedSummaries>>;

/// The decoded blocks of one database.
pub(crate) struct SummaryBlocks(Budgeted<CachedBlocks>);

#[derive(Default)]
struct CachedBlocks {
    blocks: Blocks,
    /// The directory of each keyspace that was read last.
    directories: HashMap<KeyspaceId, CachedDirectory>,
    /// How many buckets of other blocks were asked for.
    asked: HashMap<(KeyspaceId, u64), usize>,
    bytes: usize,
}

/// A directory at a version of its keyspace.
struct CachedDirectory {
    version: u64,
    directory: Arc<SummaryDirectory>,
    /// The directory of all blocks was asked for at this version.
    asked_all: bool,
}

/// A directory, or what to read.
pub(crate) enum DirectoryAnswer {
    Known(Arc<SummaryDirectory>),
    /// Only the range is to be read.
    ReadRange,
    /// All blocks are to be read, as this is the second range at one version.
    ReadAll,
}

impl Default for SummaryBlocks {
    fn default() -> Self {
        Self(Budgeted::new(SUMMARY_BYTES_MAX))
    }
}

impl SummaryBlocks {
    /// Changes the limit. It takes effect with the next insertion.
    pub(crate) fn set_bytes_max(&self, bytes: usize) {
        self.0.set_bytes_max(bytes);
    }

    /// Returns the memory in use, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.0.lock().bytes
    }

    /// True if more than one part in `parts` of the limit is free.
    pub(crate) fn has_room(&self, parts: usize) -> bool {
        let bytes_max = self.0.bytes_max();
        self.memory_bytes() < bytes_max - bytes_max / parts
    }

    /// True if a block is here.
    pub(crate) fn has(&self, keyspace: KeyspaceId, number: u64) -> bool {
        self.0.lock().blocks.contains_key(&(keyspace, number))
    }

    /// Returns a block.
    pub(crate) fn get(&self, keyspace: KeyspaceId, number: u64) -> Option<Arc<OpenedSummaries>> {
        let cached = self.0.lock();
        let found = cached.blocks.get(&(keyspace, number))?;
        found.was_read.store(true, Ordering::Relaxed);
        Some(Arc::clone(found))
    }

    /// Returns whether a block pays for a reader of `rows` of its buckets: it is here, or so many were asked for that reading it
    /// costs no more than looking them up.
    pub(crate) fn ask(&self, keyspace: KeyspaceId, number: u64, rows: usize) -> bool {
        let mut cached = self.0.lock();
        let CachedBlocks { blocks, asked, .. } = &mut *cached;
        let block = (keyspace, number);
        if blocks.contains_key(&block) {
            return true;
        }
        if rows == 0 {
            return false;
        }
        if asked.len() >= ASKED_MAX {
            asked.clear();
        }
        let all = asked.entry(block).or_default();
        *all += rows;
        *all >= ROWS_MIN
    }

    /// Adds a block. Others that were not read since the last pass are evicted if the limit is exceeded.
    pub(crate) fn insert(&self, keyspace: KeyspaceId, number: u64, block: &Arc<OpenedSummaries>) {
        let most = self.0.bytes_max();
        if block.bytes > most {
            return;
        }
        let mut cached = self.0.lock();
        let CachedBlocks {
            blocks,
            asked,
            bytes,
            ..
        } = &mut *cached;
        while *bytes + block.bytes > most && !blocks.is_empty() {
            blocks.retain(|_, old| {
                let stays =
                    *bytes + block.bytes <= most || old.was_read.swap(false, Ordering::Relaxed);
                if !stays {
                    *bytes -= old.bytes;
                }
                stays
            });
        }
        asked.remove(&(keyspace, number));
        let replaced = blocks.insert((keyspace, number), Arc::clone(block));
        *bytes += block.bytes;
        *bytes -= replaced.map_or(0, |replaced| replaced.bytes);
    }

    /// Returns the directory of a version of a keyspace, if it has all of a range.
    pub(crate) fn directory(
        &self,
        keyspace: KeyspaceId,
        version: Option<u64>,
        range: &KeyRange,
    ) -> Option<Arc<SummaryDirectory>> {
        let cached = self.0.lock();
        let known = cached.directories.get(&keyspace)?;
        let is_valid = Some(known.version) == version && known.directory.range.contains(range);
        is_valid.then(|| Arc::clone(&known.directory))
    }

    /// The same for a reader that reads the directory if it is not here.
    pub(crate) fn ask_directory(
        &self,
        keyspace: KeyspaceId,
        version: Option<u64>,
        range: &KeyRange,
    ) -> DirectoryAnswer {
        if let Some(known) = self.directory(keyspace, version, range) {
            return DirectoryAnswer::Known(known);
        }
        let mut cached = self.0.lock();
        let known = cached.directories.get_mut(&keyspace);
        match known.filter(|known| Some(known.version) == version && !known.asked_all) {
            Some(known) => {
                known.asked_all = true;
                DirectoryAnswer::ReadAll
            }
            None => DirectoryAnswer::ReadRange,
        }
    }

    /// Keeps a directory in the place of the one before.
    pub(crate) fn record_directory(
        &self,
        keyspace: KeyspaceId,
        version: Option<u64>,
        directory: &Arc<SummaryDirectory>,
    ) {
        let Some(version) = version else { return };
        let added = directory.memory_bytes();
        let most = self.0.bytes_max();
        let mut cached = self.0.lock();
        let CachedBlocks {
            directories, bytes, ..
        } = &mut *cached;
        let replaced = directories.remove(&keyspace);
        let asked_all = replaced
            .as_ref()
            .is_some_and(|known| known.version == version && known.asked_all);
        *bytes -= replaced.map_or(0, |known| known.directory.memory_bytes());
        if *bytes + added <= most {
            let directory = Arc::clone(directory);
            let known = CachedDirectory {
                version,
                directory,
                asked_all,
            };
            directories.insert(keyspace, known);
            *bytes += added;
        }
    }

    /// Removes the blocks of a dropped collection.
    pub(crate) fn forget(&self, keyspace: KeyspaceId) {
        let mut cached = self.0.lock();
        let CachedBlocks {
            blocks,
            directories,
            asked,
            bytes,
        } = &mut *cached;
        asked.retain(|(of, _), _| *of != keyspace);
        let removed = directories.remove(&keyspace);
        *bytes -= removed.map_or(0, |known| known.directory.memory_bytes());
        blocks.retain(|(of, _), block| {
            let stays = *of != keyspace;
            if !stays {
                *bytes -= block.bytes;
            }
            stays
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_range_at_one_version_asks_for_all_blocks_once() {
        let cache = SummaryBlocks::default();
        let keyspace = KeyspaceId(7);
        let range = |from: u8, to: u8| KeyRange {
            start: vec![from],
            end: Some(vec![to]),
        };
        let directory = |range: &KeyRange| {
            Arc::new(SummaryDirectory {
                range: range.clone(),
                blocks: Vec::new(),
                marked: Vec::new(),
            })
        };
        let ask = |version, from, to| match cache.ask_directory(keyspace, version, &range(from, to))
        {
            DirectoryAnswer::Known(_) => "known",
            DirectoryAnswer::ReadRange => "range",
            DirectoryAnswer::ReadAll => "all",
        };
        assert_eq!(ask(Some(1), 2, 5), "range");
        cache.record_directory(keyspace, Some(1), &directory(&range(2, 5)));
        assert_eq!((ask(Some(1), 3, 4), ask(None, 3, 4)), ("known", "range"));
        assert_eq!(ask(Some(1), 3, 6), "all");
        // There were too many.
        assert_eq!(ask(Some(1), 3, 6), "range");
        cache.record_directory(keyspace, Some(1), &directory(&range(3, 6)));
        assert_eq!((ask(Some(1), 3, 6), ask(Some(1), 2, 6)), ("known", "range"));
        assert_eq!(ask(Some(2), 3, 6), "range");
        cache.record_directory(keyspace, Some(2), &directory(&range(3, 6)));
        assert_eq!(ask(Some(2), 2, 5), "all");
        cache.record_directory(keyspace, Some(2), &directory(&KeyRange::all()));
        assert_eq!(ask(Some(2), 0, 9), "known");
        cache.forget(keyspace);
        assert_eq!(ask(Some(2), 0, 9), "range");
    }
}

//! Reading a keyspace of summaries: its list of blocks, its blocks, and the marks of buckets whose summary is out of date.

use nilometer_storage::{Bytes, Direction, KeyspaceId, Snapshot};

use crate::error::Result;
use crate::timeseries::cache::summary_blocks::SummaryDirectory;
use crate::timeseries::format::key_range::KeyRange;
use crate::timeseries::format::summary::keys::{self, ListedBlock};
use crate::timeseries::format::summary::{FORM, SummaryBlock};

/// Marks for each block of a range: where more buckets have changed, summaries do not pay.
const MARKS_PER_BLOCK: usize = 16;

/// Blocks of a directory that is read at once, at most.
pub(super) const DIRECTORY_BLOCKS_MAX: usize = 1024;

/// Where blocks and marks are looked up.
pub(super) enum SummaryLookup<'s> {
    /// In memory. Only what is in the range of the directory is found.
    Directory(&'s SummaryDirectory),
    /// In the store.
    Stored(SummaryReader<'s>),
}

impl SummaryLookup<'_> {
    /// Returns the first block with buckets at or after a key.
    pub(super) fn block_after(&self, key: &[u8]) -> Result<Option<ListedBlock>> {
        match self {
            Self::Directory(SummaryDirectory { blocks, .. }) => {
                let before = blocks.partition_point(|block| block.last[..] < *key);
                Ok(blocks.get(before).copied())
            }
            Self::Stored(reader) => reader.block_after(key),
        }
    }

    /// Returns the last block that begins below a key, or of all if there is none.
    pub(super) fn block_below(&self, key: Option<&[u8]>) -> Result<Option<ListedBlock>> {
        match (self, key) {
            (Self::Directory(SummaryDirectory { blocks, .. }), key) => {
                let is_below = |block: &ListedBlock| key.is_none_or(|key| block.first[..] < *key);
                let below = blocks.partition_point(is_below);
                Ok(below.checked_sub(1).and_then(|at| blocks.get(at)).copied())
            }
            (Self::Stored(reader), Some(key)) => reader.block_below(key),
            (Self::Stored(reader), None) => reader.last_block(),
        }
    }

    /// Returns the marked buckets in a range, ascending.
    pub(super) fn marked(&self, range: &KeyRange) -> Result<Vec<[u8; 12]>> {
        match self {
            Self::Directory(SummaryDirectory { marked, .. }) => {
                let from = marked.partition_point(|id| id[..] < range.start[..]);
                let to = marked.partition_point(|id| range.ends_after(id));
                Ok(marked.get(from..to).unwrap_or(&[]).to_vec())
            }
            Self::Stored(reader) => reader.marked(range, usize::MAX),
        }
    }
}

/// A keyspace of summaries at one instant.
#[derive(Clone, Copy)]
pub(crate) struct SummaryReader<'s> {
    pub(crate) snapshot: &'s dyn Snapshot,
    pub(crate) keyspace: KeyspaceId,
}

impl SummaryReader<'_> {
    /// True once every sealed bucket has a summary of this form or a mark.
    pub(crate) fn is_complete(self) -> Result<bool> {
        let form = self.snapshot.get(self.keyspace, &keys::COMPLETE)?;
        Ok(form.is_some_and(|form| *form == [FORM]))
    }

    /// Returns the list of blocks, ascending.
    pub(crate) fn blocks(self) -> Result<impl Iterator<Item = Result<ListedBlock>> + use<>> {
        let (start, end) = (keys::block_key([0; 12]), keys::blocks_end());
        self.listed(&start, &end, Direction::Forward)
    }

    /// Returns the list of blocks, descending.
    pub(super) fn newest_blocks(self) -> Result<impl Iterator<Item = Result<ListedBlock>> + use<>> {
        let (start, end) = (keys::block_key([0; 12]), keys::blocks_end());
        self.listed(&start, &end, Direction::Backward)
    }

    fn listed(
        self,
        start: &[u8],
        end: &[u8],
        direction: Direction,
    ) -> Result<impl Iterator<Item = Result<ListedBlock>> + use<>> {
        let entries = self
            .snapshot
            .scan(self.keyspace, start, Some(end), direction)?;
        Ok(entries.map(|entry| {
            let (key, value) = entry?;
            ListedBlock::decode(&key, &value)
        }))
    }

    /// Returns the last block that begins at or before a bucket.
    pub(crate) fn block_before(self, id: [u8; 12]) -> Result<Option<ListedBlock>> {
        self.block_below(&[&id[..], &[0]].concat())
    }

    /// Returns the last block that begins below a key of buckets.
    pub(crate) fn block_below(self, key: &[u8]) -> Result<Option<ListedBlock>> {
        let (start, end) = (keys::block_key([0; 12]), keys::blocks_from(key));
        let mut blocks = self.listed(&start, &end, Direction::Backward)?;
        blocks.next().transpose()
    }

    /// Returns the last block.
    pub(crate) fn last_block(self) -> Result<Option<ListedBlock>> {
        self.newest_blocks()?.next().transpose()
    }

    /// Returns the first block with buckets at or after a key.
    pub(crate) fn block_after(self, key: &[u8]) -> Result<Option<ListedBlock>> {
        let mut first = [0; 12];
        let length = key.len().min(first.len());
        first[..length].copy_from_slice(&key[..length]);
        // The block that begins before the key may end after it.
        if let Some(block) = self.block_before(first)?
            && block.last[..] >= *key
        {
            return Ok(Some(block));
        }
        let (start, end) = (keys::block_key(first), keys::blocks_end());
        for block in self.listed(&start, &end, Direction::Forward)? {
            let block = block?;
            // Otherwise it is the block before.
            if block.last[..] >= *key {
                return Ok(Some(block));
            }
        }
        Ok(None)
    }

    /// Returns the bytes of a block; `None` if there are none.
    pub(crate) fn block_bytes(self, number: u64) -> Result<Option<Bytes>> {
        let bytes = self.snapshot.get(self.keyspace, &keys::body_key(number))?;
        Ok(bytes)
    }

    /// Returns the bytes of several blocks, in their order.
    pub(crate) fn bytes_of_blocks(self, numbers: &[u64]) -> Result<Vec<Option<Bytes>>> {
        let keys: Vec<_> = numbers.iter().copied().map(keys::body_key).collect();
        let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        Ok(self.snapshot.get_all(self.keyspace, &keys)?)
    }

    /// Returns the blocks with buckets in a range, and the marks there. `None` if not every sealed bucket has a summary or a mark, or
    /// if there are more than `blocks_max` blocks, or too many marks.
    pub(crate) fn directory(
        self,
        range: &KeyRange,
        blocks_max: usize,
    ) -> Result<Option<SummaryDirectory>> {
        if !self.is_complete()? {
            return Ok(None);
        }
        // The block that begins before the range may end in it.
        let mut blocks: Vec<_> = self.block_below(&range.start)?.into_iter().collect();
        let start = keys::blocks_from(&range.start);
        let end = match &range.end {
            Some(end) => keys::blocks_from(end),
            None => keys::blocks_end().to_vec(),
        };
        for block in self.listed(&start, &end, Direction::Forward)? {
            if blocks.len() >= blocks_max {
                return Ok(None);
            }
            blocks.push(block?);
        }
        let marks_max = blocks_max.saturating_mul(MARKS_PER_BLOCK);
        let marked = self.marked(range, marks_max.saturating_add(1))?;
        Ok((marked.len() <= marks_max).then_some(SummaryDirectory {
            range: range.clone(),
            blocks,
            marked,
        }))
    }

    /// Reads a block.
    pub(crate) fn block(self, listed: ListedBlock) -> Result<SummaryBlock> {
        SummaryBlock::decode(self.block_bytes(listed.number)?.unwrap_or_default())
    }

    /// Returns the highest number of a block; 0 if there is none.
    pub(crate) fn highest_number(self) -> Result<u64> {
        let (start, end) = (keys::body_key(0), keys::body_key(u64::MAX));
        let mut blocks =
            self.snapshot
                .scan(self.keyspace, &start, Some(&end), Direction::Backward)?;
        match blocks.next() {
            Some(entry) => keys::body_number(&entry?.0),
            None => Ok(0),
        }
    }

    /// Returns the marked buckets in a range, ascending.
    pub(crate) fn marked(self, range: &KeyRange, at_most: usize) -> Result<Vec<[u8; 12]>> {
        let start = keys::marks_from(&range.start);
        let end = match &range.end {
            Some(end) => keys::marks_from(end),
            None => keys::marks_end().to_vec(),
        };
        let marks = self
            .snapshot
            .scan(self.keyspace, &start, Some(&end), Direction::Forward)?;
        marks
            .take(at_most)
            .map(|entry| keys::marked_bucket(&entry?.0))
            .collect()
    }
}

//! Snapshots and scans: a set of trees and a read sequence.

use std::iter::Peekable;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lsm_tree::{AbstractTree, AnyTree, Guard, IterGuardImpl};

use super::TreeMap;
use super::read_sequences::ReadSequence;
use super::separated_scan::SeparatedScan;
use super::separated_value::unseal;
use super::tree::{Tree, fenced};
use super::write_buffer::WriteBufferScan;
use crate::bytes::Bytes;
use crate::engine::{Direction, KEY_BYTES_MAX, Keyspace, KeyspaceId, Scan, ScanEntries, Snapshot};
use crate::error::{Error, Result};
use crate::long_keys::end_of_prefix;

/// A snapshot of the engine. While it lives, trees keep all versions installed since it was taken, so keep it short.
pub(super) struct LsmSnapshot {
    pub(super) trees: Arc<TreeMap>,
    pub(super) sequence: ReadSequence,
}

impl LsmSnapshot {
    fn tree(&self, id: KeyspaceId) -> Result<&Arc<Tree>> {
        self.trees
            .get(&id)
            .ok_or(Error::UnknownKeyspace { id: id.0 })
    }
}

impl Snapshot for LsmSnapshot {
    fn keyspaces(&self) -> Vec<Keyspace> {
        let trees = self.trees.values();
        trees.map(|tree| tree.keyspace.clone()).collect()
    }

    fn get(&self, keyspace: KeyspaceId, key: &[u8]) -> Result<Option<Bytes>> {
        let tree = self.tree(keyspace)?;
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            return Ok(None);
        }
        for write_buffer in tree.write_buffers_for(self.sequence.at) {
            if let Some(found) = write_buffer.get(key, self.sequence.at) {
                return Ok(found.map(Bytes::from_slice));
            }
        }
        let found = fenced(&tree.path, "read", || tree.inner.get(key, self.sequence.at))?;
        found
            .map(|value| unseal(tree, key, Bytes::from_slice(value)))
            .transpose()
    }

    fn entries_max(&self, keyspace: KeyspaceId) -> Option<u64> {
        Some(self.tree(keyspace).ok()?.entries_estimate())
    }

    fn scan(
        &self,
        keyspace: KeyspaceId,
        start: &[u8],
        end: Option<&[u8]>,
        direction: Direction,
    ) -> Result<Scan> {
        let tree = self.tree(keyspace)?;
        let (lower, upper) = (Bound::of(start), end.map_or(Bound::End, Bound::of));
        let start = match &lower {
            Bound::At(start) => *start,
            Bound::Before(start) => start,
            Bound::End => return Ok(Box::new(std::iter::empty())),
        };
        let end = match &upper {
            Bound::At(end) => Some(*end),
            Bound::Before(end) => Some(&end[..]),
            Bound::End => None,
        };
        if end.is_some_and(|end| end <= start) {
            return Ok(Box::new(std::iter::empty()));
        }
        let at = self.sequence.at;
        let narrowed = tree.empty_ranges.narrowed(start, end, direction, at);
        let (start, end) = match &narrowed {
            None => (start, end),
            Some(Some((start, end))) => (&start[..], end.as_deref()),
            Some(None) => return Ok(Box::new(std::iter::empty())),
        };
        let began = Instant::now();
        // Order matters: entries that leave a write buffer are in the tree before they leave.
        let write_buffers = tree.write_buffers_for(at);
        let search = || FirstSearch {
            start: start.to_vec(),
            end: end.map(<[u8]>::to_vec),
            direction,
            at,
            took: began.elapsed(),
            tree: Arc::clone(tree),
        };
        if let AnyTree::Blob(inner) = &tree.inner {
            let scan = SeparatedScan::open(tree, inner, (start, end), at, direction)?;
            return Ok(Box::new(SearchedScan::new(scan, search())));
        }
        let entries = fenced(&tree.path, "read", || {
            Ok(match end {
                Some(end) => tree.inner.range(start..end, at, None),
                None => tree.inner.range(start.., at, None),
            })
        })?;
        let scan = LsmScan {
            entries,
            direction,
            finished: false,
            tree: Arc::clone(tree),
        };
        if write_buffers.is_empty() {
            return Ok(Box::new(SearchedScan::new(scan, search())));
        }
        let write_buffers = write_buffers.into_iter();
        let write_buffers = write_buffers
            .map(|write_buffer| WriteBufferScan::new(write_buffer, at, start, end, direction));
        let scan = BufferedScan {
            write_buffers: write_buffers.collect(),
            tables: scan.peekable(),
            direction,
            _instant: self.sequence.again(),
        };
        Ok(Box::new(SearchedScan::new(scan, search())))
    }

    /// Returns the sequence number of the last batch applied to the tree, if the snapshot shows it. A batch is noted
    /// before it is published, so no batch between the two can be missing.
    fn version(&self, keyspace: KeyspaceId) -> Option<u64> {
        let applied = self.trees.get(&keyspace)?.applied_through();
        (applied < self.sequence.at).then_some(applied)
    }
}

/// A bound of a scan, no longer than a key may be.
enum Bound<'b> {
    /// As it was given.
    At(&'b [u8]),
    /// Instead of a longer bound: no key lies between the two.
    Before(Vec<u8>),
    /// After all keys.
    End,
}

impl<'b> Bound<'b> {
    fn of(bound: &'b [u8]) -> Self {
        match bound.get(..KEY_BYTES_MAX) {
            // A key that begins with the first bytes of the bound is these bytes, and below it.
            Some(first) if bound.len() > KEY_BYTES_MAX => {
                end_of_prefix(first.to_vec()).map_or(Self::End, Self::Before)
            }
            _ => Self::At(bound),
        }
    }
}

/// The search for the first entry of a scan.
struct FirstSearch {
    start: Vec<u8>,
    end: Option<Vec<u8>>,
    direction: Direction,
    /// The number of the reader.
    at: u64,
    /// Time it took so far.
    took: Duration,
    /// Must be the last field, so that it is dropped last: see `Tree::drop`.
    tree: Arc<Tree>,
}

impl FirstSearch {
    /// Looks for the first entry. If that takes long, notes that there are none before it.
    fn find(
        self,
        next: impl FnOnce() -> Option<Result<(Bytes, Bytes)>>,
    ) -> Option<Result<(Bytes, Bytes)>> {
        let began = Instant::now();
        let first = next();
        if self.took + began.elapsed() < self.tree.slow_search {
            return first;
        }
        let (from, to) = (&self.start[..], self.end.as_deref());
        let ranges = &self.tree.empty_ranges;
        match (&first, self.direction) {
            (None, _) => ranges.note_empty(from, to, self.at),
            (Some(Ok((key, _))), Direction::Forward) => {
                ranges.note_empty(from, Some(key), self.at);
            }
            (Some(Ok((key, _))), Direction::Backward) => {
                ranges.note_empty(&[key, &[0][..]].concat(), to, self.at);
            }
            (Some(Err(_)), _) => {}
        }
        first
    }
}

/// A scan with the search for its first entry.
struct SearchedScan<S> {
    scan: S,
    /// Until the first entry.
    search: Option<FirstSearch>,
}

impl<S> SearchedScan<S> {
    fn new(scan: S, search: FirstSearch) -> Self {
        let search = Some(search);
        Self { scan, search }
    }
}

impl<S: Iterator<Item = Result<(Bytes, Bytes)>> + Send> ScanEntries for SearchedScan<S> {}

impl<S: Iterator<Item = Result<(Bytes, Bytes)>>> Iterator for SearchedScan<S> {
    type Item = Result<(Bytes, Bytes)>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.search.take() {
            Some(search) => search.find(|| self.scan.next()),
            None => self.scan.next(),
        }
    }
}

/// An open scan of a tree without separated values. It holds the version of the tree it reads, so it needs no read sequence.
struct LsmScan {
    entries: Box<dyn DoubleEndedIterator<Item = IterGuardImpl> + Send>,
    direction: Direction,
    finished: bool,
    /// Must be the last field, so that it is dropped last: see `Tree::drop`.
    tree: Arc<Tree>,
}

impl Iterator for LsmScan {
    type Item = Result<(Bytes, Bytes)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.finished {
            return None;
        }
        let entries = &mut self.entries;
        let entry = fenced(&self.tree.path, "read", || {
            let next = match self.direction {
                Direction::Forward => entries.next(),
                Direction::Backward => entries.next_back(),
            };
            next.map(Guard::into_inner).transpose()
        });
        let entry = match entry {
            Ok(Some((key, value))) => Ok((Bytes::from_slice(key), Bytes::from_slice(value))),
            Ok(None) => {
                self.finished = true;
                return None;
            }
            Err(error) => Err(error),
        };
        // After damage the position is unknown, so the scan ends.
        self.finished = entry.is_err();
        Some(entry)
    }
}

/// An open scan of a short-lived keyspace. Of several entries for one key the newest counts. Unlike trees, write
/// buffers release entries that no open read sequence needs, so the scan holds one.
struct BufferedScan {
    /// Newest first.
    write_buffers: Vec<WriteBufferScan>,
    tables: Peekable<LsmScan>,
    direction: Direction,
    _instant: ReadSequence,
}

/// Where the next key of a scan is.
#[derive(Clone, Copy)]
enum KeySource {
    /// In the write buffer with this number, and perhaps in others and in the tables.
    WriteBuffer(usize),
    /// In the tables alone.
    Tables,
}

impl BufferedScan {
    /// Returns where the next key of all sources is; `Err` for damage.
    fn next_source(&mut self) -> std::result::Result<Option<KeySource>, ()> {
        let backward = self.direction == Direction::Backward;
        let comes_first = |key: &[u8], best: &[u8]| match backward {
            true => *key > *best,
            false => *key < *best,
        };
        let mut best: Option<(&[u8], KeySource)> = None;
        for (at, write_buffer) in self.write_buffers.iter_mut().enumerate() {
            if let Some((key, _)) = write_buffer.peek()
                && best.is_none_or(|(best, _)| comes_first(key, best))
            {
                best = Some((key, KeySource::WriteBuffer(at)));
            }
        }
        match self.tables.peek() {
            Some(Ok((key, _))) if best.is_none_or(|(best, _)| comes_first(key, best)) => {
                Ok(Some(KeySource::Tables))
            }
            Some(Err(_)) => Err(()),
            _ => Ok(best.map(|(_, source)| source)),
        }
    }
}

impl Iterator for BufferedScan {
    type Item = Result<(Bytes, Bytes)>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let at = match self.next_source() {
                Ok(None) => return None,
                Ok(Some(KeySource::WriteBuffer(at))) => at,
                Ok(Some(KeySource::Tables)) | Err(()) => return self.tables.next(),
            };
            // Buffers before this one have no entry with the key, or they would have been taken: the first of equal ones is the newest.
            let (newer, others) = self.write_buffers.split_at_mut(at + 1);
            let (key, newest) = newer.last_mut()?.next()?;
            for write_buffer in others {
                if write_buffer.peek().is_some_and(|(other, _)| *other == key) {
                    write_buffer.next();
                }
            }
            let is_it = |entry: &Result<(Bytes, Bytes)>| {
                entry.as_ref().is_ok_and(|(other, _)| other[..] == key[..])
            };
            self.tables.next_if(is_it);
            if let Some(value) = newest {
                return Some(Ok((Bytes::from_slice(key), Bytes::from_slice(value))));
            }
        }
    }
}

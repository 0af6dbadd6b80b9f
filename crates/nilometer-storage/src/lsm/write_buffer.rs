//! The write buffer in front of the memtable of a short-lived keyspace.
//!
//! An entry of such a keyspace is put once, read a few times together with its neighbours, and deleted soon. In a
//! memtable it costs two searches among all entries, and the flush writes the entry and its deletion although nothing
//! reads them any more. Here entries whose keys share a prefix lie in one vector, ordered by key, and an entry that is
//! deleted before a flush leaves nothing behind.
//!
//! ```text
//! first 12 bytes of the key ─► [ key, value, put_at, deleted_at ] [ … ] …      ordered by key;
//!                              a reader at sequence number s sees put_at < s <= deleted_at
//!
//! commit            puts add entries, deletions set `deleted_at`, or leave a mark if the entry is not here
//! release_deleted   drops deleted entries that no reader can see
//! flush             seals the active buffer; its live entries go through the memtable into tables
//! ```
//!
//! [`WriteBuffers`] keeps sealed buffers for readers older than the tables written from them. After a crash the log
//! restores the entries, into the memtable.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, RwLock};

use lsm_tree::Slice;

use crate::engine::Direction;
use crate::lock::{lock, read, write};

/// Bytes of the key prefix that groups entries: the length of an object id.
const PREFIX_BYTES: usize = 12;

/// Memory of an entry besides its key and its value.
const ENTRY_BYTES: u64 = size_of::<VersionedEntry>() as u64 + 16;

/// Memory of a group besides its entries.
const GROUP_OVERHEAD_BYTES: u64 = 64;

/// Entries that a scan copies at a time, rounded up to whole groups.
const CHUNK_ENTRIES: usize = 64;

/// The prefix of a key, padded with zeros. Prefixes order as their keys do.
type Prefix = u128;

fn prefix_of(key: &[u8]) -> Prefix {
    let mut name = [0; 16];
    for (to, put_at) in name.iter_mut().zip(key.iter().take(PREFIX_BYTES)) {
        *to = *put_at;
    }
    u128::from_be_bytes(name)
}

/// An entry, or a mark: the deletion of an entry that is not in this buffer.
struct VersionedEntry {
    key: Slice,
    /// `None` for a mark.
    value: Option<Slice>,
    /// Sequence number of the batch that put it.
    put_at: u64,
    /// Sequence number of the batch that deleted it; `u64::MAX` if none did.
    deleted_at: u64,
}

impl VersionedEntry {
    fn bytes(&self) -> u64 {
        let value = self.value.as_ref().map_or(0, |value| value.len());
        (self.key.len() + value) as u64 + ENTRY_BYTES
    }

    /// True if this is an entry deleted before `watermark`, so that no reader sees it.
    fn is_obsolete(&self, watermark: u64) -> bool {
        self.value.is_some() && self.deleted_at < watermark
    }

    /// Returns the value for a reader at `at`, if it is not deleted at `at`. The caller has checked `put_at`.
    fn visible_at(&self, at: u64) -> Option<&Slice> {
        self.value.as_ref().filter(|_| self.deleted_at >= at)
    }
}

/// Entries with the same prefix, ordered by key, and by `put_at` for one key.
#[derive(Default)]
struct PrefixGroup(Vec<VersionedEntry>);

impl PrefixGroup {
    /// Returns the position after the entries of `key`.
    fn end_of(&self, key: &[u8]) -> usize {
        match self.0.last() {
            Some(last) if last.key[..] > *key => {
                self.0.partition_point(|entry| entry.key[..] <= *key)
            }
            _ => self.0.len(),
        }
    }

    /// Returns the last entry of `key`, if there is one before position `end`.
    fn last_mut(&mut self, key: &[u8], end: usize) -> Option<&mut VersionedEntry> {
        let entry = self.0.get_mut(end.checked_sub(1)?)?;
        (entry.key[..] == *key).then_some(entry)
    }

    /// Applies one operation. Returns the bytes it added and whether it deleted an entry.
    fn apply(&mut self, key: Slice, value: Option<Slice>, sequence: u64) -> (u64, bool) {
        let end = self.end_of(&key);
        let last = self.last_mut(&key, end);
        let ends = last.is_some_and(|last| {
            let lives = last.value.is_some() && last.deleted_at == u64::MAX;
            if lives {
                last.deleted_at = sequence;
            }
            lives
        });
        if ends && value.is_none() {
            return (0, true);
        }
        let entry = VersionedEntry {
            key,
            value,
            put_at: sequence,
            deleted_at: u64::MAX,
        };
        let bytes = entry.bytes();
        if self.0.is_empty() {
            // Most groups have one entry.
            self.0.reserve_exact(1);
        }
        self.0.insert(end, entry);
        (bytes, ends)
    }

    /// Reads the first byte of every value. Cloning a value touches its reference count, a cache miss each time;
    /// reading all of them first lets the misses overlap.
    fn touch_values(&self) {
        let first = |entry: &VersionedEntry| entry.value.as_ref()?.first().copied();
        let read = self.0.iter().filter_map(first);
        std::hint::black_box(read.fold(0, |all, byte| all ^ byte));
    }

    /// Iterates over the keys visible at `at`, with their values, or `None` for deleted ones.
    fn visible(&self, at: u64) -> impl DoubleEndedIterator<Item = (&Slice, Option<&Slice>)> {
        let keys = self.0.chunk_by(|a, b| a.key == b.key);
        keys.filter_map(move |entries| {
            let entry = entries.iter().rev().find(|entry| entry.put_at < at)?;
            Some((&entry.key, entry.visible_at(at)))
        })
    }
}

/// One buffer. The thread that holds the apply lock inserts batches.
#[derive(Default)]
pub(crate) struct WriteBuffer {
    groups: RwLock<BTreeMap<Prefix, PrefixGroup>>,
    /// Groups with deleted entries, and the sequence number of the deletion, oldest first.
    ended: Mutex<VecDeque<(u64, Prefix)>>,
    bytes: AtomicU64,
    entries: AtomicUsize,
}

impl WriteBuffer {
    /// Returns the bytes of its entries.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    /// Returns the number of entries, deleted ones that are not yet released included.
    pub(crate) fn entries(&self) -> usize {
        self.entries.load(Ordering::Acquire)
    }

    /// Applies the operations of a batch, which are ordered by key. Returns the bytes they added.
    pub(crate) fn apply(&self, operations: Vec<(Slice, Option<Slice>)>, sequence: u64) -> u64 {
        let mut ended = lock(&self.ended);
        let mut groups = write(&self.groups);
        let (mut bytes, mut added_entries) = (0, 0);
        let mut operations = operations.into_iter().peekable();
        while let Some((key, value)) = operations.next() {
            let name = prefix_of(&key);
            let group = groups.entry(name).or_default();
            if group.0.is_empty() {
                bytes += GROUP_OVERHEAD_BYTES;
            }
            let mut next = Some((key, value));
            let mut ends = false;
            while let Some((key, value)) = next {
                let (added, deleted) = group.apply(key, value, sequence);
                bytes += added;
                added_entries += usize::from(added > 0);
                ends |= deleted;
                next = operations.next_if(|(key, _)| prefix_of(key) == name);
            }
            if ends {
                ended.push_back((sequence, name));
            }
        }
        self.bytes.fetch_add(bytes, Ordering::AcqRel);
        self.entries.fetch_add(added_entries, Ordering::AcqRel);
        bytes
    }

    /// Releases entries that were deleted before `watermark`. Returns their bytes.
    pub(crate) fn release_deleted(&self, watermark: u64) -> u64 {
        let mut ended = lock(&self.ended);
        let is_due = |ended: &VecDeque<(u64, Prefix)>| {
            ended.front().is_some_and(|(number, _)| *number < watermark)
        };
        if !is_due(&ended) {
            return 0;
        }
        let mut groups = write(&self.groups);
        let (mut bytes, mut entries) = (0, 0);
        while is_due(&ended) {
            let Some((_, name)) = ended.pop_front() else {
                break;
            };
            let Some(group) = groups.get_mut(&name) else {
                continue;
            };
            group.0.retain(|entry| {
                let gone = entry.is_obsolete(watermark);
                if gone {
                    bytes += entry.bytes();
                    entries += 1;
                }
                !gone
            });
            if group.0.is_empty() {
                groups.remove(&name);
                bytes += GROUP_OVERHEAD_BYTES;
            }
        }
        self.bytes.fetch_sub(bytes, Ordering::AcqRel);
        self.entries.fetch_sub(entries, Ordering::AcqRel);
        bytes
    }

    /// Looks up a key at `at`: `None` if this buffer has no entry for it, `Some(None)` if it is deleted.
    pub(crate) fn get(&self, key: &[u8], at: u64) -> Option<Option<Slice>> {
        let groups = read(&self.groups);
        let group = groups.get(&prefix_of(key))?;
        let here = &group.0[..group.end_of(key)];
        let here = here.iter().rev().take_while(|entry| entry.key[..] == *key);
        let entry = { here }.find(|entry| entry.put_at < at)?;
        Some(entry.visible_at(at).cloned())
    }

    /// True if an entry put up to `through` is not deleted, or is a mark.
    pub(crate) fn needs_flush(&self, through: u64) -> bool {
        let is_needed = |entry: &VersionedEntry| {
            entry.put_at <= through && (entry.value.is_none() || entry.deleted_at == u64::MAX)
        };
        read(&self.groups)
            .values()
            .any(|group| group.0.iter().any(is_needed))
    }

    /// Passes every entry still needed to `write`: key, value (`None` for a deletion), sequence number.
    pub(crate) fn write_out(
        &self,
        watermark: u64,
        mut write: impl FnMut(Slice, Option<Slice>, u64),
    ) {
        for group in read(&self.groups).values() {
            for (at, entry) in group.0.iter().enumerate() {
                if entry.is_obsolete(watermark) {
                    continue;
                }
                write(entry.key.clone(), entry.value.clone(), entry.put_at);
                let next = group.0.get(at + 1);
                let put_over =
                    next.is_some_and(|n| n.key == entry.key && n.put_at == entry.deleted_at);
                if entry.value.is_some() && entry.deleted_at != u64::MAX && !put_over {
                    write(entry.key.clone(), None, entry.deleted_at);
                }
            }
        }
    }
}

/// All write buffers of one tree.
#[derive(Default)]
pub(crate) struct WriteBuffers {
    active: Arc<WriteBuffer>,
    /// Oldest first.
    sealed: Vec<SealedBuffer>,
}

struct SealedBuffer {
    buffer: Arc<WriteBuffer>,
    state: FlushState,
}

/// How far the flush of a sealed buffer is.
#[derive(Clone, Copy, PartialEq)]
enum FlushState {
    Waiting,
    /// Its entries are in memtables, which count their bytes.
    InMemtables,
    /// Its entries are in tables: readers at this sequence number or later find them there.
    InTables(u64),
}

impl SealedBuffer {
    fn is_waiting(&self) -> bool {
        self.state == FlushState::Waiting
    }

    fn is_needed_at(&self, at: u64) -> bool {
        match self.state {
            FlushState::InTables(sequence) => at < sequence,
            _ => true,
        }
    }
}

impl WriteBuffers {
    /// Returns the buffer that takes batches.
    pub(crate) fn active(&self) -> &Arc<WriteBuffer> {
        &self.active
    }

    /// Seals the active buffer unless it is empty. True if any sealed buffer waits to be flushed.
    pub(crate) fn seal(&mut self) -> bool {
        if self.active.entries() > 0 {
            let buffer = std::mem::take(&mut self.active);
            self.sealed.push(SealedBuffer {
                buffer,
                state: FlushState::Waiting,
            });
        }
        self.sealed.iter().any(SealedBuffer::is_waiting)
    }

    /// Returns the sealed buffers that wait to be flushed, oldest first.
    pub(crate) fn waiting(&self) -> Vec<Arc<WriteBuffer>> {
        let waiting = self.sealed.iter().filter(|sealed| sealed.is_waiting());
        waiting.map(|sealed| Arc::clone(&sealed.buffer)).collect()
    }

    /// Records that the waiting buffers are in memtables. Returns the bytes they no longer account for.
    pub(crate) fn note_in_memtables(&mut self) -> u64 {
        let waiting = self.sealed.iter_mut().filter(|sealed| sealed.is_waiting());
        let bytes = waiting.map(|sealed| {
            sealed.state = FlushState::InMemtables;
            sealed.buffer.bytes()
        });
        bytes.sum()
    }

    /// Records that buffers in memtables are in tables, for readers at `sequence` or later.
    pub(crate) fn note_in_tables(&mut self, sequence: u64) {
        for sealed in &mut self.sealed {
            if sealed.state == FlushState::InMemtables {
                sealed.state = FlushState::InTables(sequence);
            }
        }
    }

    /// Drops sealed buffers that no reader at `watermark` or later needs. True if none remains for older readers.
    pub(crate) fn remove_unneeded(&mut self, watermark: u64) -> bool {
        self.sealed.retain(|sealed| sealed.is_needed_at(watermark));
        let mut left = self.sealed.iter();
        !left.any(|sealed| matches!(sealed.state, FlushState::InTables(_)))
    }

    /// Returns the buffers that a reader at `at` must search, newest first.
    pub(crate) fn for_reader(&self, at: u64) -> Vec<Arc<WriteBuffer>> {
        let sealed = self
            .sealed
            .iter()
            .rev()
            .filter(|sealed| sealed.is_needed_at(at));
        let sealed = sealed.map(|sealed| &sealed.buffer);
        let all = std::iter::once(&self.active).chain(sealed);
        all.filter(|buffer| buffer.entries() > 0).cloned().collect()
    }

    /// Returns the bytes and entries of buffers that are in neither memtables nor tables.
    pub(crate) fn size(&self) -> (u64, usize) {
        let sealed = self.sealed.iter().filter(|sealed| sealed.is_waiting());
        let sealed = sealed.map(|sealed| &sealed.buffer);
        let all = std::iter::once(&self.active).chain(sealed);
        all.fold((0, 0), |(bytes, entries), buffer| {
            (bytes + buffer.bytes(), entries + buffer.entries())
        })
    }

    /// Returns the bytes of buffers kept only for readers.
    pub(crate) fn pinned_bytes(&self) -> u64 {
        let pinned = self.sealed.iter().filter(|sealed| !sealed.is_waiting());
        pinned.map(|sealed| sealed.buffer.bytes()).sum()
    }
}

/// A scan of one buffer within bounds. Its holder keeps the read sequence open.
pub(super) struct WriteBufferScan {
    buffer: Arc<WriteBuffer>,
    at: u64,
    start: Vec<u8>,
    end: Option<Vec<u8>>,
    direction: Direction,
    /// The last group copied; `None` before the first.
    last: Option<Prefix>,
    taken: VecDeque<(Slice, Option<Slice>)>,
    finished: bool,
}

impl WriteBufferScan {
    pub(super) fn new(
        buffer: Arc<WriteBuffer>,
        at: u64,
        start: &[u8],
        end: Option<&[u8]>,
        direction: Direction,
    ) -> Self {
        Self {
            buffer,
            at,
            start: start.to_vec(),
            end: end.map(<[u8]>::to_vec),
            direction,
            last: None,
            taken: VecDeque::new(),
            finished: false,
        }
    }

    /// Returns the next key and its value, `None` if it is deleted, without consuming it.
    pub(super) fn peek(&mut self) -> Option<&(Slice, Option<Slice>)> {
        if self.taken.is_empty() && !self.finished {
            self.take_more();
        }
        self.taken.front()
    }

    pub(super) fn next(&mut self) -> Option<(Slice, Option<Slice>)> {
        self.peek()?;
        self.taken.pop_front()
    }

    fn take_more(&mut self) {
        let lowest = prefix_of(&self.start);
        let highest = self.end.as_deref().map_or(Prefix::MAX, prefix_of);
        let (mut low, mut high) = (Bound::Included(lowest), Bound::Included(highest));
        let forward = self.direction == Direction::Forward;
        if let Some(last) = self.last {
            let passed = if forward {
                last >= highest
            } else {
                last <= lowest
            };
            if passed {
                self.finished = true;
                return;
            }
            let bound = if forward { &mut low } else { &mut high };
            *bound = Bound::Excluded(last);
        }
        let buffer = Arc::clone(&self.buffer);
        let groups = read(&buffer.groups);
        let mut groups = groups.range((low, high));
        while self.taken.len() < CHUNK_ENTRIES {
            let next = if forward {
                groups.next()
            } else {
                groups.next_back()
            };
            let Some((name, group)) = next else {
                self.finished = true;
                return;
            };
            self.last = Some(*name);
            let (start, end) = (&self.start, self.end.as_deref());
            group.touch_values();
            let visible = group.visible(self.at);
            let within = visible
                .filter(|(key, _)| key[..] >= start[..] && end.is_none_or(|end| key[..] < *end))
                .map(|(key, value)| (key.clone(), value.cloned()));
            if forward {
                self.taken.extend(within);
            } else {
                self.taken.extend(within.rev());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(text: &str) -> Slice {
        Slice::from(text)
    }

    fn put(buffer: &WriteBuffer, sequence: u64, keys: &[&str]) {
        let entries = keys.iter().map(|key| (slice(key), Some(slice(key))));
        buffer.apply(entries.collect(), sequence);
    }

    fn delete(buffer: &WriteBuffer, sequence: u64, keys: &[&str]) {
        let entries = keys.iter().map(|key| (slice(key), None));
        buffer.apply(entries.collect(), sequence);
    }

    fn written(buffer: &WriteBuffer, watermark: u64) -> Vec<(String, bool, u64)> {
        let mut found = Vec::new();
        buffer.write_out(watermark, |key, value, put_at| {
            let key = String::from_utf8(key.to_vec()).unwrap();
            found.push((key, value.is_some(), put_at));
        });
        found
    }

    #[test]
    fn groups_are_in_the_order_of_keys() {
        let mut keys: Vec<Vec<u8>> = vec![
            vec![],
            vec![0],
            vec![0; 12],
            vec![0; 13],
            vec![1],
            vec![1, 0],
            [&[1; 12][..], &[5]].concat(),
            vec![255; 20],
        ];
        keys.sort();
        assert!(keys.is_sorted_by_key(|key| prefix_of(key)));
        assert_eq!(
            prefix_of(&[7; 12]),
            prefix_of(&[&[7; 12][..], &[9]].concat())
        );
    }

    #[test]
    fn entries_deleted_before_a_flush_leave_nothing() {
        let buffer = WriteBuffer::default();
        put(&buffer, 5, &["a bucket's id 1", "a bucket's id 2", "b"]);
        delete(&buffer, 8, &["a bucket's id 1", "a bucket's id 2"]);
        // A reader older than the deletion.
        assert_eq!(buffer.release_deleted(8), 0);
        assert!(buffer.get(b"a bucket's id 1", 8).unwrap().is_some());
        assert!(buffer.get(b"a bucket's id 1", 9).unwrap().is_none());
        assert!(buffer.release_deleted(9) > 0);
        assert_eq!(buffer.entries(), 1);
        assert_eq!(buffer.bytes(), GROUP_OVERHEAD_BYTES + ENTRY_BYTES + 2);
        assert!(buffer.get(b"a bucket's id 1", 9).is_none());
        assert_eq!(written(&buffer, 9), [("b".to_owned(), true, 5)]);
    }

    #[test]
    fn needed_entries_are_written() {
        let buffer = WriteBuffer::default();
        put(&buffer, 5, &["k"]);
        delete(&buffer, 8, &["k", "of tables"]);
        let mark = ("of tables".to_owned(), false, 8);
        let expected = [
            ("k".to_owned(), true, 5),
            ("k".to_owned(), false, 8),
            mark.clone(),
        ];
        assert_eq!(written(&buffer, 8), expected);
        let buffer = WriteBuffer::default();
        put(&buffer, 5, &["k"]);
        delete(&buffer, 8, &["k", "of tables"]);
        assert_eq!(written(&buffer, 9), [mark]);
    }

    #[test]
    fn a_buffer_stays_for_readers_older_than_its_tables() {
        let mut buffers = WriteBuffers::default();
        put(buffers.active(), 5, &["k"]);
        assert!(buffers.seal());
        assert_eq!(buffers.waiting().len(), 1);
        assert!(buffers.note_in_memtables() > 0);
        assert_eq!((buffers.waiting().len(), buffers.size()), (0, (0, 0)));
        // It is in no table yet.
        assert_eq!(buffers.for_reader(100).len(), 1);
        buffers.note_in_tables(9);
        assert_eq!(
            (buffers.for_reader(8).len(), buffers.for_reader(9).len()),
            (1, 0)
        );
        assert!(!buffers.remove_unneeded(8) && buffers.pinned_bytes() > 0);
        assert!(buffers.remove_unneeded(9) && buffers.pinned_bytes() == 0);
    }
}

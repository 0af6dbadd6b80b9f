//! What stands in front of the memtable of a short-lived keyspace.
//!
//! An entry of such a keyspace is put once, read a few times with its neighbours, and deleted soon. In a memtable that
//! costs two searches among all entries there are, and a place in tables for the entry and for its deletion, which
//! nobody reads any more by then. Here entries whose keys begin alike lie in one vector, in the order of their keys,
//! and one that is deleted before it was written out leaves nothing behind.
//!
//! ```text
//! first 12 bytes of the key ─► [ key, value, from, until ] [ … ] …      ordered; a reader at instant s sees
//!                                                                       from < s <= until
//! commit            puts add entries, deletions set `until`; of an entry that is not here they leave a mark
//! forget            entries go whose end no reader stands before
//! flush             the active front is sealed, another begun; what lives of it goes through the memtable into tables
//! ```
//!
//! [`Fronts`] keeps the sealed ones for readers who stand at an instant before those tables: a tree shows each reader its
//! state at the reader's instant. What a crash takes from here is in the log, and is read back into the memtable.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, RwLock};

use lsm_tree::Slice;

use crate::engine::Direction;
use crate::lock::{lock, read, write};

/// Bytes at the beginning of a key by which entries are grouped: those of an object id.
const GROUP_BYTES: usize = 12;

/// Memory of an entry besides its key and its value.
const ITEM_BYTES: u64 = size_of::<Item>() as u64 + 16;

/// Memory of a group besides its entries.
const GROUP_OWN_BYTES: u64 = 64;

/// Entries that a scan takes at a time, and then as many as belong to the same group.
const CHUNK_ITEMS: usize = 64;

/// The first bytes of a key, filled up with zeros: in the order of the keys.
type GroupName = u128;

fn group_of(key: &[u8]) -> GroupName {
    let mut name = [0; 16];
    for (to, from) in name.iter_mut().zip(key.iter().take(GROUP_BYTES)) {
        *to = *from;
    }
    u128::from_be_bytes(name)
}

/// An entry, or the mark that one is deleted which is not here.
struct Item {
    key: Slice,
    /// None for a mark.
    value: Option<Slice>,
    /// The number of the batch that put it.
    from: u64,
    /// The number of the batch that deleted it; of none, the highest there is.
    until: u64,
}

impl Item {
    fn bytes(&self) -> u64 {
        let value = self.value.as_ref().map_or(0, |value| value.len());
        (self.key.len() + value) as u64 + ITEM_BYTES
    }

    /// True if it is an entry that was deleted before `watermark`: nobody needs it.
    fn is_gone(&self, watermark: u64) -> bool {
        self.value.is_some() && self.until < watermark
    }

    /// What a reader at `at` sees of it, if it was there by then.
    fn seen(&self, at: u64) -> Option<&Slice> {
        self.value.as_ref().filter(|_| self.until >= at)
    }
}

/// Entries whose keys begin alike, by key, those of one key in the order they were put.
#[derive(Default)]
struct Group(Vec<Item>);

impl Group {
    /// Where the entries of `key` end, or would stand.
    fn behind(&self, key: &[u8]) -> usize {
        match self.0.last() {
            Some(last) if last.key[..] > *key => {
                self.0.partition_point(|item| item.key[..] <= *key)
            }
            _ => self.0.len(),
        }
    }

    /// The last entry of `key`.
    fn last_mut(&mut self, key: &[u8], behind: usize) -> Option<&mut Item> {
        let item = self.0.get_mut(behind.checked_sub(1)?)?;
        (item.key[..] == *key).then_some(item)
    }

    /// Takes one operation; returns the bytes it added, and whether it ended an entry.
    fn apply(&mut self, key: Slice, value: Option<Slice>, sequence: u64) -> (u64, bool) {
        let behind = self.behind(&key);
        let known = self.last_mut(&key, behind);
        let ends = known.is_some_and(|known| {
            let lives = known.value.is_some() && known.until == u64::MAX;
            if lives {
                known.until = sequence;
            }
            lives
        });
        if ends && value.is_none() {
            return (0, true);
        }
        let item = Item {
            key,
            value,
            from: sequence,
            until: u64::MAX,
        };
        let bytes = item.bytes();
        if self.0.is_empty() {
            // Of a million buckets most have one entry.
            self.0.reserve_exact(1);
        }
        self.0.insert(behind, item);
        (bytes, ends)
    }

    /// Reads the beginning of every value. Taking a value counts who has it, and waits for its memory each time; read like
    /// this, the processor waits for all of them at once.
    fn bring_near(&self) {
        let first = |item: &Item| item.value.as_ref()?.first().copied();
        let read = self.0.iter().filter_map(first);
        std::hint::black_box(read.fold(0, |all, byte| all ^ byte));
    }

    /// What a reader at `at` sees: keys with their values, or without where they are deleted.
    fn visible(&self, at: u64) -> impl DoubleEndedIterator<Item = (&Slice, Option<&Slice>)> {
        let keys = self.0.chunk_by(|a, b| a.key == b.key);
        keys.filter_map(move |items| {
            let item = items.iter().rev().find(|item| item.from < at)?;
            Some((&item.key, item.seen(at)))
        })
    }
}

/// One front. Batches are applied by one thread at a time, the one that has the apply lock.
#[derive(Default)]
pub(crate) struct Front {
    groups: RwLock<BTreeMap<GroupName, Group>>,
    /// Groups in which entries ended, with the number of the batch that ended them.
    ended: Mutex<VecDeque<(u64, GroupName)>>,
    bytes: AtomicU64,
    items: AtomicUsize,
}

impl Front {
    /// Bytes of its entries.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    /// Entries, deleted ones that are not gone yet among them.
    pub(crate) fn items(&self) -> usize {
        self.items.load(Ordering::Acquire)
    }

    /// Applies the operations of a batch, in the order of their keys; returns the bytes they added.
    pub(crate) fn apply(&self, entries: Vec<(Slice, Option<Slice>)>, sequence: u64) -> u64 {
        let mut ended = lock(&self.ended);
        let mut groups = write(&self.groups);
        let (mut bytes, mut items) = (0, 0);
        let mut entries = entries.into_iter().peekable();
        while let Some((key, value)) = entries.next() {
            let name = group_of(&key);
            let group = groups.entry(name).or_default();
            if group.0.is_empty() {
                bytes += GROUP_OWN_BYTES;
            }
            let mut next = Some((key, value));
            let mut ends = false;
            while let Some((key, value)) = next {
                let (added, ended) = group.apply(key, value, sequence);
                bytes += added;
                items += usize::from(added > 0);
                ends |= ended;
                next = entries.next_if(|(key, _)| group_of(key) == name);
            }
            if ends {
                ended.push_back((sequence, name));
            }
        }
        self.bytes.fetch_add(bytes, Ordering::AcqRel);
        self.items.fetch_add(items, Ordering::AcqRel);
        bytes
    }

    /// Lets entries go that ended before every reader; returns their bytes.
    pub(crate) fn forget(&self, watermark: u64) -> u64 {
        let mut ended = lock(&self.ended);
        let is_due = |ended: &VecDeque<(u64, GroupName)>| {
            ended.front().is_some_and(|(number, _)| *number < watermark)
        };
        if !is_due(&ended) {
            return 0;
        }
        let mut groups = write(&self.groups);
        let (mut bytes, mut items) = (0, 0);
        while is_due(&ended) {
            let Some((_, name)) = ended.pop_front() else {
                break;
            };
            let Some(group) = groups.get_mut(&name) else {
                continue;
            };
            group.0.retain(|item| {
                let gone = item.is_gone(watermark);
                if gone {
                    bytes += item.bytes();
                    items += 1;
                }
                !gone
            });
            if group.0.is_empty() {
                groups.remove(&name);
                bytes += GROUP_OWN_BYTES;
            }
        }
        self.bytes.fetch_sub(bytes, Ordering::AcqRel);
        self.items.fetch_sub(items, Ordering::AcqRel);
        bytes
    }

    /// What a reader at `at` sees of a key here: nothing, its value, or that it is deleted.
    pub(crate) fn get(&self, key: &[u8], at: u64) -> Option<Option<Slice>> {
        let groups = read(&self.groups);
        let group = groups.get(&group_of(key))?;
        let here = group.0.get(..group.behind(key)).unwrap_or_default();
        let here = here.iter().rev().take_while(|item| item.key[..] == *key);
        let item = { here }.find(|item| item.from < at)?;
        Some(item.seen(at).cloned())
    }

    /// Gives what is needed of it to `write`: keys, with values or without for marks, and numbers.
    pub(crate) fn write_out(
        &self,
        watermark: u64,
        mut write: impl FnMut(Slice, Option<Slice>, u64),
    ) {
        for group in read(&self.groups).values() {
            for (at, item) in group.0.iter().enumerate() {
                if item.is_gone(watermark) {
                    continue;
                }
                write(item.key.clone(), item.value.clone(), item.from);
                let next = group.0.get(at + 1);
                let put_over = next.is_some_and(|n| n.key == item.key && n.from == item.until);
                if item.value.is_some() && item.until != u64::MAX && !put_over {
                    write(item.key.clone(), None, item.until);
                }
            }
        }
    }
}

/// The fronts of one tree.
#[derive(Default)]
pub(crate) struct Fronts {
    active: Arc<Front>,
    /// Oldest first.
    sealed: Vec<Sealed>,
}

struct Sealed {
    front: Arc<Front>,
    state: State,
}

/// How far a sealed front is on its way into tables.
#[derive(Clone, Copy, PartialEq)]
enum State {
    Waiting,
    /// It is in memtables, which count its bytes now.
    InMemtables,
    /// Readers at this instant and later find in the tree what was in it.
    InTables(u64),
}

impl Sealed {
    fn counts(&self) -> bool {
        self.state == State::Waiting
    }

    fn is_for(&self, at: u64) -> bool {
        match self.state {
            State::InTables(instant) => at < instant,
            _ => true,
        }
    }
}

impl Fronts {
    /// The one that takes batches.
    pub(crate) fn active(&self) -> &Arc<Front> {
        &self.active
    }

    /// Begins another; true if there is one that has to be written out.
    pub(crate) fn seal(&mut self) -> bool {
        if self.active.items() > 0 {
            let front = std::mem::take(&mut self.active);
            self.sealed.push(Sealed {
                front,
                state: State::Waiting,
            });
        }
        self.sealed.iter().any(Sealed::counts)
    }

    /// Those that have to be written out, oldest first.
    pub(crate) fn waiting(&self) -> Vec<Arc<Front>> {
        let waiting = self.sealed.iter().filter(|sealed| sealed.counts());
        waiting.map(|sealed| Arc::clone(&sealed.front)).collect()
    }

    /// Notes that those are in memtables; returns the bytes that they no longer count.
    pub(crate) fn note_in_memtables(&mut self) -> u64 {
        let waiting = self.sealed.iter_mut().filter(|sealed| sealed.counts());
        let bytes = waiting.map(|sealed| {
            sealed.state = State::InMemtables;
            sealed.front.bytes()
        });
        bytes.sum()
    }

    /// Notes that what was in memtables is in tables, for readers at `instant` and later.
    pub(crate) fn note_written(&mut self, instant: u64) {
        for sealed in &mut self.sealed {
            if sealed.state == State::InMemtables {
                sealed.state = State::InTables(instant);
            }
        }
    }

    /// Lets go of those no reader needs; true when none is left over.
    pub(crate) fn tidy(&mut self, watermark: u64) -> bool {
        self.sealed.retain(|sealed| sealed.is_for(watermark));
        let mut left = self.sealed.iter();
        !left.any(|sealed| matches!(sealed.state, State::InTables(_)))
    }

    /// Those a reader at `at` has to look at, the newest first.
    pub(crate) fn for_reader(&self, at: u64) -> Vec<Arc<Front>> {
        let sealed = self.sealed.iter().rev().filter(|sealed| sealed.is_for(at));
        let sealed = sealed.map(|sealed| &sealed.front);
        let all = std::iter::once(&self.active).chain(sealed);
        all.filter(|front| front.items() > 0).cloned().collect()
    }

    /// Bytes and entries of those that are not in memtables or tables.
    pub(crate) fn size(&self) -> (u64, usize) {
        let sealed = self.sealed.iter().filter(|sealed| sealed.counts());
        let sealed = sealed.map(|sealed| &sealed.front);
        let all = std::iter::once(&self.active).chain(sealed);
        all.fold((0, 0), |(bytes, items), front| {
            (bytes + front.bytes(), items + front.items())
        })
    }

    /// Bytes of those that are kept for readers.
    pub(crate) fn pinned_bytes(&self) -> u64 {
        let pinned = self.sealed.iter().filter(|sealed| !sealed.counts());
        pinned.map(|sealed| sealed.front.bytes()).sum()
    }
}

/// The entries of one front that a reader sees within bounds. Whoever holds it keeps the reader's instant open.
pub(super) struct FrontScan {
    front: Arc<Front>,
    at: u64,
    start: Vec<u8>,
    end: Option<Vec<u8>>,
    direction: Direction,
    /// The last group that was taken from; none before the first.
    last: Option<GroupName>,
    taken: VecDeque<(Slice, Option<Slice>)>,
    finished: bool,
}

impl FrontScan {
    pub(super) fn new(
        front: Arc<Front>,
        at: u64,
        start: &[u8],
        end: Option<&[u8]>,
        direction: Direction,
    ) -> Self {
        Self {
            front,
            at,
            start: start.to_vec(),
            end: end.map(<[u8]>::to_vec),
            direction,
            last: None,
            taken: VecDeque::new(),
            finished: false,
        }
    }

    /// The next key, with its value or without where it is deleted.
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
        let lowest = group_of(&self.start);
        let highest = self.end.as_deref().map_or(GroupName::MAX, group_of);
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
        let front = Arc::clone(&self.front);
        let groups = read(&front.groups);
        let mut groups = groups.range((low, high));
        while self.taken.len() < CHUNK_ITEMS {
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
            group.bring_near();
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

    fn put(front: &Front, sequence: u64, keys: &[&str]) {
        let entries = keys.iter().map(|key| (slice(key), Some(slice(key))));
        front.apply(entries.collect(), sequence);
    }

    fn delete(front: &Front, sequence: u64, keys: &[&str]) {
        let entries = keys.iter().map(|key| (slice(key), None));
        front.apply(entries.collect(), sequence);
    }

    fn written(front: &Front, watermark: u64) -> Vec<(String, bool, u64)> {
        let mut found = Vec::new();
        front.write_out(watermark, |key, value, from| {
            let key = String::from_utf8(key.to_vec()).unwrap();
            found.push((key, value.is_some(), from));
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
        assert!(keys.is_sorted_by_key(|key| group_of(key)));
        assert_eq!(group_of(&[7; 12]), group_of(&[&[7; 12][..], &[9]].concat()));
    }

    #[test]
    fn what_is_deleted_before_it_was_written_leaves_nothing() {
        let front = Front::default();
        put(&front, 5, &["a bucket's id 1", "a bucket's id 2", "b"]);
        delete(&front, 8, &["a bucket's id 1", "a bucket's id 2"]);
        // A reader from before the deletion.
        assert_eq!(front.forget(8), 0);
        assert!(front.get(b"a bucket's id 1", 8).unwrap().is_some());
        assert!(front.get(b"a bucket's id 1", 9).unwrap().is_none());
        assert!(front.forget(9) > 0);
        assert_eq!(front.items(), 1);
        assert_eq!(front.bytes(), GROUP_OWN_BYTES + ITEM_BYTES + 2);
        assert!(front.get(b"a bucket's id 1", 9).is_none());
        assert_eq!(written(&front, 9), [("b".to_owned(), true, 5)]);
    }

    #[test]
    fn what_somebody_may_need_is_written() {
        let front = Front::default();
        put(&front, 5, &["k"]);
        delete(&front, 8, &["k", "of tables"]);
        let mark = ("of tables".to_owned(), false, 8);
        let expected = [
            ("k".to_owned(), true, 5),
            ("k".to_owned(), false, 8),
            mark.clone(),
        ];
        assert_eq!(written(&front, 8), expected);
        let front = Front::default();
        put(&front, 5, &["k"]);
        delete(&front, 8, &["k", "of tables"]);
        assert_eq!(written(&front, 9), [mark]);
    }

    #[test]
    fn a_front_stays_for_readers_from_before_its_tables() {
        let mut fronts = Fronts::default();
        put(fronts.active(), 5, &["k"]);
        assert!(fronts.seal());
        assert_eq!(fronts.waiting().len(), 1);
        assert!(fronts.note_in_memtables() > 0);
        assert_eq!((fronts.waiting().len(), fronts.size()), (0, (0, 0)));
        // It is in no table yet.
        assert_eq!(fronts.for_reader(100).len(), 1);
        fronts.note_written(9);
        assert_eq!(
            (fronts.for_reader(8).len(), fronts.for_reader(9).len()),
            (1, 0)
        );
        assert!(!fronts.tidy(8) && fronts.pinned_bytes() > 0);
        assert!(fronts.tidy(9) && fronts.pinned_bytes() == 0);
    }
}

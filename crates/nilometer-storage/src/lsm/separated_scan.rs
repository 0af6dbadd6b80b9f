//! Scans of separated values: values that lie side by side in a file are read together.
//!
//! ```text
//! tree ─► keys and places of the next values ─► ordered by file and offset ─► one read for neighbours ─► order of the scan
//!              1, then 8, then 64                                                └ each value checked and copied
//! ```
//!
//! The library reads each value of a scan by itself, and keeps it in the block cache. A scan of many values would replace what
//! others use, so values of a scan are not kept here. A place is valid while the iterator over the tree lives: it holds the version of the tree,
//! and the version its files.

use std::collections::VecDeque;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use lsm_tree::{AbstractTree, BlobTree, InternalValue, Slice, ValueType};

use super::separated_value::unseal;
use super::tree::{Tree, fenced};
use crate::bytes::Bytes;
use crate::engine::Direction;
use crate::error::{Error, Result};

/// Values of the first read. Many scans look for one entry.
const FIRST_VALUES: usize = 1;

/// Factor by which further reads grow.
const GROWTH: usize = 8;

/// Values of a read, at most.
const VALUES_MAX: usize = 64;

/// Bytes of a read, at most, unless it has one value.
const READ_BYTES_MAX: u64 = 1 << 20;

/// Bytes between two values that are read with them: less than a read by itself costs.
const GAP_BYTES_MAX: u64 = 8 << 10;

/// Length of the header of a value in its file, without the key: magic, checksum, sequence number, three lengths.
const HEADER_BYTES: u64 = 4 + 16 + 8 + 2 + 4 + 4;

/// An open scan of separated values. It holds the version of the tree it reads, so it needs no read sequence.
pub(super) struct SeparatedScan {
    entries: Box<dyn DoubleEndedIterator<Item = lsm_tree::Result<InternalValue>> + Send>,
    direction: Direction,
    /// Values of the next read.
    window: usize,
    ready: VecDeque<Result<(Bytes, Bytes)>>,
    buffer: Vec<u8>,
    finished: bool,
    /// Must be the last field, so that it is dropped last: see `Tree::drop`.
    tree: Arc<Tree>,
}

impl SeparatedScan {
    /// Opens a scan of `inner`, the tree behind `tree`, as a reader with the number `at` sees it.
    pub(super) fn open(
        tree: &Arc<Tree>,
        inner: &BlobTree,
        (start, end): (&[u8], Option<&[u8]>),
        at: u64,
        direction: Direction,
    ) -> Result<Self> {
        use std::ops::Bound::{Excluded, Included, Unbounded};
        let range = (Included(start), end.map_or(Unbounded, Excluded));
        let entries = fenced(&tree.path, "read", || {
            let version = inner
                .get_version_history_lock()
                .get_version_for_snapshot(at);
            let entries =
                lsm_tree::Tree::create_internal_range::<&[u8], _>(version, &range, at, None);
            Ok(Box::new(entries) as Box<_>)
        })?;
        Ok(Self {
            entries,
            direction,
            window: FIRST_VALUES,
            ready: VecDeque::new(),
            buffer: Vec::new(),
            finished: false,
            tree: Arc::clone(tree),
        })
    }

    /// Reads the next entries. After damage the position is unknown, so the scan ends.
    fn fill(&mut self) {
        let mut found = Vec::with_capacity(self.window);
        let pulled = self.pull(&mut found);
        self.window = (self.window * GROWTH).min(VALUES_MAX);
        let values = ValueReader {
            tree: &self.tree,
            buffer: &mut self.buffer,
        }
        .read(&found);
        let entries = found.into_iter().zip(values);
        self.ready.extend(
            entries.map(|(entry, value)| value.map(|value| (Bytes::from_slice(entry.key), value))),
        );
        if let Some(damaged) = self.ready.iter().position(Result::is_err) {
            self.ready.truncate(damaged + 1);
            self.finished = true;
        } else if let Err(error) = pulled {
            self.ready.push_back(Err(error));
            self.finished = true;
        }
    }

    fn pull(&mut self, found: &mut Vec<StoredEntry>) -> Result<()> {
        let Self {
            entries,
            tree,
            finished,
            ..
        } = self;
        let (window, direction) = (self.window, self.direction);
        let mut bytes = 0;
        while found.len() < window && bytes < READ_BYTES_MAX {
            let next = fenced(&tree.path, "read", || {
                let next = match direction {
                    Direction::Forward => entries.next(),
                    Direction::Backward => entries.next_back(),
                };
                next.transpose()
            });
            let Some(next) = next? else {
                *finished = true;
                break;
            };
            let entry = StoredEntry::of(next, &tree.path)?;
            bytes += entry.bytes();
            found.push(entry);
        }
        Ok(())
    }
}

impl Iterator for SeparatedScan {
    type Item = Result<(Bytes, Bytes)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ready.is_empty() && !self.finished {
            self.fill();
        }
        self.ready.pop_front()
    }
}

/// An entry of the tree.
struct StoredEntry {
    key: Slice,
    value: StoredValue,
}

enum StoredValue {
    /// A short value, which the tree has.
    Inline(Slice),
    /// A value in a file.
    Separated(Place),
}

/// The place of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    file: u64,
    /// Where its header begins.
    offset: u64,
    /// The length of header and key.
    head_bytes: u64,
    value_bytes: u32,
}

impl Place {
    /// Decodes what the tree has instead of the value: offset, file and stored length, then the length of the value.
    fn decode(mut stored: &[u8], key_bytes: usize) -> Option<Self> {
        let offset = varint(&mut stored)?;
        let file = varint(&mut stored)?;
        let value_bytes = u32::try_from(varint(&mut stored)?).ok()?;
        let head_bytes = HEADER_BYTES + key_bytes as u64;
        offset.checked_add(head_bytes + u64::from(value_bytes))?;
        Some(Self {
            file,
            offset,
            head_bytes,
            value_bytes,
        })
    }

    fn end(&self) -> u64 {
        self.offset + self.head_bytes + u64::from(self.value_bytes)
    }

    /// Returns where the value is in a read that begins at an offset.
    fn value_in(&self, read_at: u64) -> Range<usize> {
        let end = (self.end() - read_at) as usize;
        end - self.value_bytes as usize..end
    }
}

/// Reads a number of seven bits a byte, the lowest first.
fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..u64::BITS).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(first & 0x7F).checked_shl(shift)?;
        if first & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

impl StoredEntry {
    fn of(entry: InternalValue, tree: &Path) -> Result<Self> {
        let key = entry.key.user_key;
        let value = match entry.key.value_type {
            ValueType::Indirection => {
                let place = Place::decode(&entry.value, key.len()).ok_or_else(|| {
                    let found = format!("{} other bytes", entry.value.len());
                    Error::corruption("tree", tree, 0, "the place of a value", found)
                })?;
                StoredValue::Separated(place)
            }
            _ => StoredValue::Inline(entry.value),
        };
        Ok(Self { key, value })
    }

    fn bytes(&self) -> u64 {
        match &self.value {
            StoredValue::Inline(value) => value.len() as u64,
            StoredValue::Separated(place) => place.end() - place.offset,
        }
    }
}

/// Reads the values of entries.
struct ValueReader<'r> {
    tree: &'r Tree,
    buffer: &'r mut Vec<u8>,
}

impl ValueReader<'_> {
    /// Returns the value of each entry.
    fn read(mut self, entries: &[StoredEntry]) -> Vec<Result<Bytes>> {
        let mut values = Vec::with_capacity(entries.len());
        let mut places = Vec::with_capacity(entries.len());
        for (at, entry) in entries.iter().enumerate() {
            values.push(match &entry.value {
                StoredValue::Inline(value) => {
                    unseal(self.tree, &entry.key, Bytes::from_slice(value.clone()))
                }
                StoredValue::Separated(place) => {
                    places.push((*place, at));
                    Ok(Bytes::default())
                }
            });
        }
        places.sort_unstable_by_key(|(place, _)| (place.file, place.offset));
        for neighbours in places.chunk_by(|(a, _), (b, _)| {
            a.file == b.file && a.end() <= b.offset && b.offset - a.end() <= GAP_BYTES_MAX
        }) {
            self.read_neighbours(entries, neighbours, &mut values);
        }
        values
    }

    /// Reads the values of places in one file, which ascend.
    fn read_neighbours(
        &mut self,
        entries: &[StoredEntry],
        places: &[(Place, usize)],
        values: &mut [Result<Bytes>],
    ) {
        let (Some((first, _)), Some((last, _))) = (places.first(), places.last()) else {
            return;
        };
        let read = self.read_range(first.file, first.offset..last.end());
        for (place, at) in places {
            values[*at] = match &read {
                Ok(()) => {
                    let stored = Bytes::copy_from(&self.buffer[place.value_in(first.offset)]);
                    unseal(self.tree, &entries[*at].key, stored)
                }
                // An error is not cloned: each value is read by itself, and has its own.
                Err(_) => self.read_alone(&entries[*at].key, *place),
            };
        }
    }

    fn read_alone(&mut self, key: &[u8], place: Place) -> Result<Bytes> {
        self.read_range(place.file, place.offset..place.end())?;
        let stored = Bytes::copy_from(&self.buffer[place.value_in(place.offset)]);
        unseal(self.tree, key, stored)
    }

    fn read_range(&mut self, file: u64, range: Range<u64>) -> Result<()> {
        let (tree, buffer) = (self.tree, &mut *self.buffer);
        fenced(&tree.path, "read", || {
            let opened = tree.values_file(file)?;
            // A damaged length must not allocate more than the file has.
            let length = range.end - range.start;
            if length > READ_BYTES_MAX && opened.metadata()?.len() < range.end {
                return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
            }
            buffer.resize(length as usize, 0);
            Ok(opened.read_exact_at(buffer, range.start)?)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_those_that_the_library_writes() {
        // Offset 300, file 5, 1,400 bytes stored, 1,400 bytes.
        let stored = [0xAC, 0x02, 0x05, 0xF8, 0x0A, 0xF8, 0x0A];
        let place = Place::decode(&stored, 12).unwrap();
        assert_eq!(
            place,
            Place {
                file: 5,
                offset: 300,
                head_bytes: 50,
                value_bytes: 1400
            }
        );
        assert_eq!(place.end(), 1750);
        assert_eq!(place.value_in(300), 50..1450);
        assert_eq!(place.value_in(0), 350..1750);
        for end in 0..5 {
            assert_eq!(Place::decode(&stored[..end], 12), None);
        }
        assert_eq!(Place::decode(&[0xFF; 40], 12), None);
        let mut at_the_end = vec![0xFF; 9];
        at_the_end.extend([1, 0, 5, 5]);
        assert_eq!(Place::decode(&at_the_end, 12), None);
    }
}

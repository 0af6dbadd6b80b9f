//! The entries of a bucket's tail, by column: the places of all columns are found once, their values are decoded on request.
//!
//! ```text
//! segment ┬ bytes    columns of entry 0 | columns of entry 1 | …      copied: an entry shares its memory with the log
//!         ├ entries  rows, end of the columns, end of the chunks
//!         └ chunks   (column, offset) of entry 0 | of entry 1 | …
//! ```
//!
//! The next state of a bucket shares the segments and adds one. A few of them are merged into one from time to time.

use std::sync::Arc;

use nilometer_bson::ValueRef;
use nilometer_bson::block::ColumnBlockBuilder;
use nilometer_storage::Bytes;

use crate::error::Result;
use crate::timeseries::format::tail::{self, EntrySink, Header, TailEntry};

/// The columns of a bucket by position, as the entries of a tail refer to them. The first is the time field.
#[derive(Clone)]
pub(super) struct ColumnTable {
    columns: Vec<TableColumn>,
}

#[derive(Clone)]
struct TableColumn {
    name: Arc<str>,
    /// A measurement has a value.
    has_values: bool,
}

impl ColumnTable {
    /// Returns a table of the time field alone.
    pub(super) fn new(time_field: &str) -> Self {
        let mut table = Self {
            columns: Vec::new(),
        };
        table.push(time_field.into(), true);
        table
    }

    /// Adds a column unless one has the name.
    pub(super) fn add(&mut self, name: &Arc<str>, has_values: bool) {
        if self.columns.iter().all(|column| column.name != *name) {
            self.push(Arc::clone(name), has_values);
        }
    }

    fn push(&mut self, name: Arc<str>, has_values: bool) {
        self.columns.push(TableColumn { name, has_values });
    }

    /// Returns positions and names of the columns that have values, and of the time field.
    pub(super) fn with_values(&self) -> impl Iterator<Item = (usize, &Arc<str>)> + Clone {
        let columns = self.columns.iter().enumerate();
        let columns = columns.filter(|(_, column)| column.has_values);
        columns.map(|(id, column)| (id, &column.name))
    }

    /// Returns the memory in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        let names = self.columns.iter().map(|column| column.name.len());
        let names = names.sum::<usize>() + self.columns.len() * 2 * size_of::<usize>();
        names + self.columns.capacity() * size_of::<TableColumn>()
    }

    /// Finds a column of an entry, which is added if the entry names it. Returns whether it has values.
    fn find(&mut self, head: &tail::ChunkHead<'_>) -> Result<bool> {
        if head.id >= self.columns.len() {
            let name = head.name.filter(|_| head.id == self.columns.len());
            let name =
                name.ok_or_else(|| tail::damage("it refers to a column that it does not name"))?;
            self.push(name.into(), false);
        }
        let column = self.columns.get(head.id);
        Ok(column.is_some_and(|column| column.has_values))
    }
}

/// Segments that are merged into one when another is added.
const SEGMENTS_MAX: usize = 8;

#[derive(Clone, Copy)]
struct EntryPlace {
    rows: u32,
    /// The end of its columns.
    bytes_end: u32,
    /// The end of its chunks.
    chunks_end: u32,
}

/// A column of an entry.
#[derive(Clone, Copy)]
struct ChunkPlace {
    /// The position of the column in the bucket.
    id: u32,
    /// The offset of the values.
    at: u32,
}

/// A part of the entries of a tail, by column.
#[derive(Default)]
struct Segment {
    bytes: Bytes,
    entries: Vec<EntryPlace>,
    chunks: Vec<ChunkPlace>,
}

impl Segment {
    /// Reads entries. The columns they name are added to `table`. Returns the header with them if an entry has it.
    fn read(tail: &[(Bytes, Bytes)], table: &mut ColumnTable) -> Result<(Self, Option<Header>)> {
        let length: usize = tail.iter().map(|(_, value)| value.len()).sum();
        let mut bytes = Vec::with_capacity(length);
        let mut entries = Vec::with_capacity(tail.len());
        let mut chunks = Vec::with_capacity(table.columns.len());
        let mut header = None;
        for (_, value) in tail {
            let entry = tail::decode(value)?;
            let start = bytes.len();
            bytes.extend_from_slice(entry.columns());
            let mut with_values = Vec::new();
            entry.visit_chunks(
                |head| {
                    let (id, at) = (short(head.id)?, short(start + head.at)?);
                    chunks.push(ChunkPlace { id, at });
                    Ok(!table.find(head)?)
                },
                |id| with_values.push(id),
            )?;
            for id in with_values {
                if let Some(column) = table.columns.get_mut(id) {
                    column.has_values = true;
                }
            }
            if entries.is_empty() {
                // Most entries have the columns of the first. A chunk takes at least three bytes.
                let most = (length - bytes.len()) / 3 + 1;
                chunks.reserve_exact(most.min(chunks.len() * (tail.len() - 1)));
            }
            entries.push(EntryPlace {
                rows: short(entry.rows)?,
                bytes_end: short(bytes.len())?,
                chunks_end: short(chunks.len())?,
            });
            header = header.or(entry.header);
        }
        let segment = Self {
            bytes: bytes.into(),
            entries,
            chunks,
        };
        Ok((segment, header))
    }

    /// Returns one segment of several.
    fn merged(parts: &[Arc<Self>]) -> Result<Self> {
        let sum = |length: fn(&Self) -> usize| parts.iter().map(|part| length(part)).sum();
        let mut bytes = Vec::with_capacity(sum(|part| part.bytes.len()));
        let mut entries = Vec::with_capacity(sum(|part| part.entries.len()));
        let mut chunks = Vec::with_capacity(sum(|part| part.chunks.len()));
        for part in parts {
            let (start, first) = (short(bytes.len())?, short(chunks.len())?);
            entries.extend(part.entries.iter().map(|entry| EntryPlace {
                rows: entry.rows,
                bytes_end: entry.bytes_end.saturating_add(start),
                chunks_end: entry.chunks_end.saturating_add(first),
            }));
            chunks.extend(part.chunks.iter().map(|chunk| ChunkPlace {
                id: chunk.id,
                at: chunk.at.saturating_add(start),
            }));
            bytes.extend_from_slice(&part.bytes);
            short(bytes.len())?;
        }
        Ok(Self {
            bytes: bytes.into(),
            entries,
            chunks,
        })
    }

    fn memory_bytes(&self) -> usize {
        let entries = self.entries.capacity() * size_of::<EntryPlace>();
        let chunks = self.chunks.capacity() * size_of::<ChunkPlace>();
        size_of::<Self>() + self.bytes.len() + entries + chunks
    }

    /// Passes the values of a column from one of the entries on to `sink`.
    fn visit_column(&self, id: usize, first: usize, sink: &mut impl EntrySink) -> Result<()> {
        let before = first.checked_sub(1).and_then(|at| self.entries.get(at));
        let mut from = before.map_or(0, |entry| entry.chunks_end as usize);
        for entry in self.entries.iter().skip(first) {
            let end = entry.chunks_end as usize;
            let chunks = self.chunks.get(from..end).unwrap_or_default();
            from = end;
            let is_it = |chunk: &&ChunkPlace| chunk.id as usize == id;
            // Most entries have all columns in their order.
            let found = chunks.get(id).filter(is_it);
            let found = found.or_else(|| chunks.iter().find(is_it));
            let values = found.and_then(|chunk| {
                let range = chunk.at as usize..entry.bytes_end as usize;
                self.bytes.get(range)
            });
            match values {
                Some(values) => tail::visit_chunk(values, entry.rows as usize, id, sink)?,
                None => {
                    for _ in 0..entry.rows {
                        sink.value(id, ValueRef::Missing)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn iter(&self) -> impl Iterator<Item = TailEntry> + '_ {
        let mut start = 0;
        self.entries.iter().map(move |entry| {
            let end = entry.bytes_end as usize;
            let columns = std::mem::replace(&mut start, end)..end;
            TailEntry::of_columns(self.bytes.clone(), columns, entry.rows as usize)
        })
    }
}

/// The entries of a tail, by column.
#[derive(Default)]
pub(super) struct TailColumns {
    segments: Vec<Arc<Segment>>,
    entries: usize,
    rows: usize,
}

impl TailColumns {
    /// Reads the keys and values of a tail behind these entries. The columns they name are added to `table`. Returns the header with
    /// them if an entry has it.
    pub(super) fn with_entries(
        &self,
        tail: &[(Bytes, Bytes)],
        table: &mut ColumnTable,
    ) -> Result<(Self, Option<Header>)> {
        let (more, header) = Segment::read(tail, table)?;
        let rows = more.entries.iter().map(|entry| entry.rows as usize);
        let (entries, rows) = (
            self.entries + more.entries.len(),
            self.rows + rows.sum::<usize>(),
        );
        let mut segments = self.segments.clone();
        segments.push(Arc::new(more));
        if segments.len() > SEGMENTS_MAX {
            segments = vec![Arc::new(Segment::merged(&segments)?)];
        }
        let columns = Self {
            segments,
            entries,
            rows,
        };
        Ok((columns, header))
    }

    /// Number of entries.
    pub(super) fn len(&self) -> usize {
        self.entries
    }

    /// Number of measurements.
    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the memory in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        let segments = self.segments.iter();
        segments.map(|segment| segment.memory_bytes()).sum()
    }

    /// Returns the length of all columns in bytes.
    pub(super) fn columns_bytes(&self) -> usize {
        let segments = self.segments.iter();
        segments.map(|segment| segment.bytes.len()).sum()
    }

    /// Returns the entries, without header.
    pub(super) fn iter(&self) -> impl Iterator<Item = TailEntry> + '_ {
        self.segments.iter().flat_map(|segment| segment.iter())
    }

    /// Passes the values of the column at a position to `sink`, missing ones included, from one of the entries on.
    pub(super) fn visit_column(
        &self,
        id: usize,
        first: usize,
        sink: &mut impl EntrySink,
    ) -> Result<()> {
        let mut before = 0;
        for segment in &self.segments {
            segment.visit_column(id, first.saturating_sub(before), sink)?;
            before += segment.entries.len();
        }
        Ok(())
    }
}

fn short(number: usize) -> Result<u32> {
    u32::try_from(number).map_err(|_| tail::damage("it is too long"))
}

/// Appends the values of one column to a block.
pub(super) struct BlockSink<'b>(pub(super) &'b mut ColumnBlockBuilder);

impl EntrySink for BlockSink<'_> {
    fn column(&mut self, _: usize, _: Option<&str>) -> Result<()> {
        Ok(())
    }

    fn value(&mut self, _: usize, value: ValueRef<'_>) -> Result<()> {
        self.0.push(value);
        Ok(())
    }
}

//! Tables are read from the store in aligned parts, which are kept in memory and, if there is a folder, on a local disk.
//!
//! ```text
//! block of a table ─► part in memory ─► part in a file ─► one request for the part, which is then kept in both
//! ```
//!
//! A small read of a store takes as long as one of a part, and the blocks beside the first are often read next. Tables never
//! change, so a part is right for as long as it is kept. A reader of a part that is being read waits for the same request.
//!
//! What a merge reads is not kept: it is read once. What is written goes to the files as well: it is read soon, and its blocks
//! are in memory already. A block whose bytes are damaged is read again past the parts, which are then removed.

mod files;
mod store;
mod upload;

pub(crate) use store::TableStore;

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::path::Path as FolderPath;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use nilometer_storage::Result;
use object_store::path::Path;
use object_store::{Extensions, GetOptions, GetRange, ObjectStore, PutPayload};
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use tokio::runtime::Handle;

use crate::cache::{FixedHasher, bounded};
use crate::lock::lock;
use files::PartFiles;

/// Bytes of a part.
pub(crate) const PART_BYTES: u64 = 1024 * 1024;

/// A part of a table, by its number.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct PartKey {
    table: Path,
    number: u64,
}

/// The bytes of a part, or some of them.
#[derive(Clone)]
struct Part {
    bytes: Bytes,
    /// Bytes of the whole table.
    table_bytes: u64,
}

impl Part {
    /// Returns some of its bytes; `None` if it does not have them.
    fn slice(&self, range: &Range<usize>) -> Option<Self> {
        let has_all = range.start <= range.end && range.end <= self.bytes.len();
        has_all.then(|| Self {
            bytes: self.bytes.slice(range.clone()),
            table_bytes: self.table_bytes,
        })
    }
}

/// The bytes of a part, for the bound of those in memory.
#[derive(Clone)]
struct PartBytes;

impl Weighter<PartKey, Part> for PartBytes {
    fn weight(&self, _: &PartKey, part: &Part) -> u64 {
        (part.bytes.len() as u64).max(1)
    }
}

/// A request for a part, which all who need it wait for. `None` if it failed.
type Fetch = Shared<BoxFuture<'static, Option<Part>>>;

/// The parts that are kept.
pub(crate) struct TableParts {
    memory: Cache<PartKey, Part, PartBytes, FixedHasher>,
    files: Option<Arc<PartFiles>>,
    in_flight: Mutex<HashMap<PartKey, Fetch>>,
}

impl fmt::Debug for TableParts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("TableParts")
    }
}

/// Where a request for a part is made.
struct Source<'a> {
    store: &'a Arc<dyn ObjectStore>,
    runtime: &'a Handle,
    extensions: &'a Extensions,
}

impl TableParts {
    /// Returns parts of which at most `memory_bytes_max` bytes are in memory.
    pub(crate) fn in_memory(memory_bytes_max: u64) -> Self {
        Self {
            memory: bounded(memory_bytes_max, PART_BYTES, PartBytes),
            files: None,
            in_flight: Mutex::default(),
        }
    }

    /// Returns parts that are in the files below `folder`, too, of at most `file_bytes_max` bytes. Those that are there are used.
    pub(crate) fn in_folder(
        memory_bytes_max: u64,
        folder: &FolderPath,
        file_bytes_max: u64,
    ) -> Result<Self> {
        let files = PartFiles::open(folder, file_bytes_max)?;
        Ok(Self {
            files: Some(Arc::new(files)),
            ..Self::in_memory(memory_bytes_max)
        })
    }

    /// Returns bytes of a part that is in memory.
    fn in_memory_part(&self, key: &PartKey, range: &Range<usize>) -> Option<Part> {
        self.memory.get(key)?.slice(range)
    }

    /// Removes a part.
    fn remove(&self, key: &PartKey) {
        self.memory.remove(key);
        if let Some(files) = &self.files {
            files.remove(key);
        }
    }

    /// Returns the request for a part that is in flight, or begins one.
    fn fetch(self: &Arc<Self>, key: &PartKey, source: &Source<'_>) -> Fetch {
        let mut in_flight = lock(&self.in_flight);
        if let Some(fetch) = in_flight.get(key) {
            return fetch.clone();
        }
        let request = InFlight {
            parts: Arc::clone(self),
            key: key.clone(),
        };
        let read = request.read(Arc::clone(source.store), source.extensions.clone());
        let runtime = source.runtime.clone();
        // Spawned when it is awaited, without the lock: a runtime that ends drops the request at once.
        let fetch = async move { runtime.spawn(read).await.ok().flatten() };
        let fetch = fetch.boxed().shared();
        in_flight.insert(key.clone(), fetch.clone());
        fetch
    }

    /// Keeps the parts of a table that was stored.
    async fn keep_written(&self, table: &Path, payload: PutPayload, runtime: &Handle) {
        let Some(files) = &self.files else { return };
        let mut writer = files.writer(table, runtime.clone());
        for bytes in payload {
            for write in writer.add(bytes) {
                // It is not kept if the thread failed.
                let _ = write.await;
            }
        }
        writer.finish().await;
    }
}

/// A request for a part. When it is dropped, the part may be asked for again.
struct InFlight {
    parts: Arc<TableParts>,
    key: PartKey,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        lock(&self.parts.in_flight).remove(&self.key);
    }
}

impl InFlight {
    /// Reads the part and keeps it.
    async fn read(self, store: Arc<dyn ObjectStore>, extensions: Extensions) -> Option<Part> {
        let start = self.key.number.checked_mul(PART_BYTES)?;
        let options = GetOptions {
            range: Some(GetRange::Bounded(start..start.checked_add(PART_BYTES)?)),
            extensions,
            ..GetOptions::default()
        };
        let found = store.get_opts(&self.key.table, options).await.ok()?;
        let table_bytes = found.meta.size;
        let bytes = found.bytes().await.ok()?;
        if bytes.len() as u64 != part_bytes(self.key.number, table_bytes) {
            return None;
        }
        let part = Part { bytes, table_bytes };
        self.parts.memory.insert(self.key.clone(), part.clone());
        if let Some(files) = &self.parts.files {
            // Before the answer, so that a part that is not in memory is in its file.
            files.write(self.key.clone(), part.clone()).await;
        }
        Some(part)
    }
}

/// Returns the bytes that a part of a table of `table_bytes` has.
fn part_bytes(number: u64, table_bytes: u64) -> u64 {
    let start = number.saturating_mul(PART_BYTES);
    table_bytes.saturating_sub(start).min(PART_BYTES)
}

/// Returns the parts in which a range is, each with the range in it.
fn parts_of(range: &Range<u64>) -> impl Iterator<Item = (u64, Range<usize>)> + use<> {
    let range = range.clone();
    let numbers = range.start / PART_BYTES..range.end.div_ceil(PART_BYTES);
    numbers.map(move |number| {
        let start = number * PART_BYTES;
        let within = |position: u64| position.saturating_sub(start).min(PART_BYTES) as usize;
        (number, within(range.start)..within(range.end))
    })
}

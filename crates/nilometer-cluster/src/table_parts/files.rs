//! Parts of tables in files on a local disk, with a bound in bytes.
//!
//! ```text
//! FOLDER/path/of/the/table.sst/000000003.5242880      part 3 of a table of 5,242,880 bytes
//! FOLDER/path/of/the/table.sst/000000003.17.tmp       one that is being written
//! ```
//!
//! A file is renamed when it is complete. It is not synced: a block of one that lost bytes does not match its checksum, and is read
//! from the store. The files that were not used for longest leave first. What cannot be written is not kept.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::path::{Path as FolderPath, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use bytes::{Bytes, BytesMut};
use nilometer_storage::{Error, Result};
use object_store::path::Path;
use quick_cache::UnitWeighter;
use quick_cache::sync::Cache;
use slatedb_common::file_handle_cache::read_exact_at_offset;
use tokio::runtime::Handle;
use tokio::task::{JoinHandle, spawn_blocking};

use super::{PART_BYTES, Part, PartKey, part_bytes};
use crate::cache::{FixedHasher, bounded};
use crate::lock::lock;

/// Files that are open at most.
const OPEN_FILES_MAX: u64 = 512;

/// The ending of a file that is being written.
const TEMPORARY: &str = "tmp";

/// The files.
pub(super) struct PartFiles {
    folder: PathBuf,
    bytes_max: u64,
    known: Mutex<KnownFiles>,
    open: Cache<PartKey, Arc<File>, UnitWeighter, FixedHasher>,
    next_temporary: AtomicU64,
}

/// The files that are there.
#[derive(Default)]
struct KnownFiles {
    by_key: HashMap<PartKey, KnownFile>,
    /// The first was not used for longest.
    by_use: BTreeMap<u64, PartKey>,
    uses: u64,
    /// Bytes of files, and of those that are being written.
    bytes: u64,
}

#[derive(Clone, Copy)]
struct KnownFile {
    table_bytes: u64,
    last_use: u64,
}

impl KnownFiles {
    /// Notes that a file is used, and returns the bytes of its table; `None` if there is no such file.
    fn table_bytes(&mut self, key: &PartKey) -> Option<u64> {
        let file = *self.by_key.get(key)?;
        // Blocks of one part are often read one after the other.
        if file.last_use != self.uses {
            self.used(key, file.table_bytes);
        }
        Some(file.table_bytes)
    }

    /// Adds a file whose bytes are counted, or notes that it was used.
    fn used(&mut self, key: &PartKey, table_bytes: u64) {
        self.uses += 1;
        let file = KnownFile {
            table_bytes,
            last_use: self.uses,
        };
        if let Some(before) = self.by_key.insert(key.clone(), file) {
            self.by_use.remove(&before.last_use);
        }
        self.by_use.insert(self.uses, key.clone());
    }

    /// Removes a file, and returns its bytes.
    fn remove(&mut self, key: &PartKey) -> Option<KnownFile> {
        let file = self.by_key.remove(key)?;
        self.by_use.remove(&file.last_use);
        self.bytes -= part_bytes(key.number, file.table_bytes);
        Some(file)
    }
}

impl fmt::Debug for PartFiles {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("PartFiles")
    }
}

impl PartFiles {
    /// Opens the files below `folder`, of which at most `bytes_max` bytes stay.
    pub(super) fn open(folder: &FolderPath, bytes_max: u64) -> Result<Self> {
        let files = Self {
            folder: folder.to_owned(),
            bytes_max,
            known: Mutex::default(),
            open: bounded(OPEN_FILES_MAX, 1, UnitWeighter),
            next_temporary: AtomicU64::new(0),
        };
        let failed = |source| Error::Io {
            operation: "read the cache in",
            path: folder.to_owned(),
            source: Arc::new(source),
        };
        std::fs::create_dir_all(folder).map_err(failed)?;
        let mut found = Vec::new();
        files.find(folder, &mut found).map_err(failed)?;
        found.sort_by_key(|(modified, ..)| *modified);
        for (_, key, table_bytes) in found {
            files.reserve(part_bytes(key.number, table_bytes));
            lock(&files.known).used(&key, table_bytes);
        }
        Ok(files)
    }

    /// Adds the files in a folder and those below it. Removes those that are not complete.
    fn find(
        &self,
        folder: &FolderPath,
        found: &mut Vec<(SystemTime, PartKey, u64)>,
    ) -> std::io::Result<()> {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            let meta = path.metadata()?;
            if meta.is_dir() {
                self.find(&path, found)?;
                continue;
            }
            match self.key_of(&path) {
                Some((key, table_bytes))
                    if meta.len() == part_bytes(key.number, table_bytes) && meta.len() > 0 =>
                {
                    found.push((meta.modified()?, key, table_bytes));
                }
                Some(_) => std::fs::remove_file(&path)?,
                None if path.extension().is_some_and(|end| end == TEMPORARY) => {
                    std::fs::remove_file(&path)?;
                }
                None => {}
            }
        }
        Ok(())
    }

    /// Returns the part whose name a file has, and the bytes of its table.
    fn key_of(&self, path: &FolderPath) -> Option<(PartKey, u64)> {
        let (number, table_bytes) = path.file_name()?.to_str()?.split_once('.')?;
        let folder = path.parent()?.strip_prefix(&self.folder).ok()?;
        let segments = folder.iter().map(|segment| segment.to_str());
        let key = PartKey {
            table: Path::parse(segments.collect::<Option<Vec<_>>>()?.join("/")).ok()?,
            number: number.parse().ok()?,
        };
        let table_bytes = table_bytes.parse().ok()?;
        (self.path(&key, table_bytes) == path).then_some((key, table_bytes))
    }

    fn table_folder(&self, table: &Path) -> PathBuf {
        let segments = table.as_ref().split('/');
        segments.fold(self.folder.clone(), |folder, segment| folder.join(segment))
    }

    fn path(&self, key: &PartKey, table_bytes: u64) -> PathBuf {
        let name = format!("{:09}.{table_bytes}", key.number);
        self.table_folder(&key.table).join(name)
    }

    fn temporary_path(&self, key: &PartKey) -> PathBuf {
        let unique = self.next_temporary.fetch_add(1, Ordering::Relaxed);
        let process = std::process::id();
        let name = format!("{:09}.{process}-{unique}.{TEMPORARY}", key.number);
        self.table_folder(&key.table).join(name)
    }

    /// Returns bytes of a part; `None` if it has no file. Waits for the disk.
    pub(super) fn read(&self, key: &PartKey, range: &Range<usize>) -> Option<Part> {
        let table_bytes = lock(&self.known).table_bytes(key)?;
        if range.end as u64 > part_bytes(key.number, table_bytes) {
            return None;
        }
        let read = || {
            let file = self.opened(key, table_bytes)?;
            let mut bytes = vec![0; range.len()];
            read_exact_at_offset(&file, &mut bytes, range.start as u64)?;
            Ok::<_, std::io::Error>(Bytes::from(bytes))
        };
        let Ok(bytes) = read() else {
            // Removed by someone, or shorter than it was.
            self.remove(key);
            return None;
        };
        Some(Part { bytes, table_bytes })
    }

    /// Returns the file of a part. One that is open is not compared with what has its name now, which takes longer than to read
    /// a block: a part never changes.
    fn opened(&self, key: &PartKey, table_bytes: u64) -> std::io::Result<Arc<File>> {
        if let Some(file) = self.open.get(key) {
            return Ok(file);
        }
        let file = Arc::new(File::open(self.path(key, table_bytes))?);
        self.open.insert(key.clone(), Arc::clone(&file));
        Ok(file)
    }

    /// Returns bytes of a part, which another thread reads.
    pub(super) async fn read_elsewhere(
        self: &Arc<Self>,
        key: PartKey,
        range: Range<usize>,
    ) -> Option<Part> {
        if !lock(&self.known).by_key.contains_key(&key) {
            return None;
        }
        let files = Arc::clone(self);
        let read = spawn_blocking(move || files.read(&key, &range)).await;
        read.ok().flatten()
    }

    /// Writes a part, on another thread.
    pub(super) async fn write(self: &Arc<Self>, key: PartKey, part: Part) {
        let files = Arc::clone(self);
        let written = spawn_blocking(move || {
            let temporary = files.write_temporary(&key, &part.bytes)?;
            files.complete(&key, part.table_bytes, temporary);
            Some(())
        });
        // It is not kept if the thread failed.
        let _ = written.await;
    }

    /// Writes bytes that belong to a part into a file of their own; `None` if there is no place for them.
    fn write_temporary(&self, key: &PartKey, bytes: &[u8]) -> Option<Temporary> {
        let path = self.temporary_path(key);
        if !self.reserve(bytes.len() as u64) {
            return None;
        }
        let written =
            std::fs::create_dir_all(path.parent()?).and_then(|()| std::fs::write(&path, bytes));
        let temporary = Temporary {
            path,
            bytes: bytes.len() as u64,
        };
        match written {
            Ok(()) => Some(temporary),
            Err(_) => {
                self.discard(temporary);
                None
            }
        }
    }

    /// Makes a file that was written that of its part.
    fn complete(&self, key: &PartKey, table_bytes: u64, temporary: Temporary) {
        self.remove(key);
        // A reader may have opened the one before while it was removed.
        self.open.remove(key);
        let path = self.path(key, table_bytes);
        match std::fs::rename(&temporary.path, path) {
            Ok(()) => lock(&self.known).used(key, table_bytes),
            Err(_) => self.discard(temporary),
        }
    }

    fn discard(&self, temporary: Temporary) {
        // If it cannot be removed, the next opening does.
        let _ = std::fs::remove_file(&temporary.path);
        lock(&self.known).bytes -= temporary.bytes;
    }

    /// Removes old files until there is place for `bytes`, which then count. False if there cannot be.
    fn reserve(&self, bytes: u64) -> bool {
        loop {
            let mut known = lock(&self.known);
            if known.bytes + bytes <= self.bytes_max {
                known.bytes += bytes;
                return true;
            }
            let oldest = known.by_use.first_key_value();
            let Some(key) = oldest.map(|(_, key)| key.clone()) else {
                return false;
            };
            let file = known.remove(&key);
            drop(known);
            if let Some(file) = file {
                self.unlink(&key, file);
            }
        }
    }

    /// Removes a part.
    pub(super) fn remove(&self, key: &PartKey) {
        let removed = lock(&self.known).remove(key);
        if let Some(file) = removed {
            self.unlink(key, file);
        }
    }

    fn unlink(&self, key: &PartKey, file: KnownFile) {
        let path = self.path(key, file.table_bytes);
        self.open.remove(key);
        // What cannot be removed is found by the next opening.
        let _ = std::fs::remove_file(&path);
        if let Some(folder) = path.parent() {
            // Fails while there are others.
            let _ = std::fs::remove_dir(folder);
        }
    }

    /// Returns a writer of the parts of a table that is stored.
    pub(super) fn writer(self: &Arc<Self>, table: &Path, runtime: Handle) -> TableWriter {
        TableWriter {
            files: Arc::clone(self),
            table: table.clone(),
            runtime,
            rest: BytesMut::new(),
            bytes: 0,
            written: Arc::default(),
        }
    }
}

/// A file that no part has yet. Its bytes count.
#[derive(Debug)]
struct Temporary {
    path: PathBuf,
    bytes: u64,
}

/// Writes the parts of a table. They are used after [`Self::finish`].
pub(super) struct TableWriter {
    files: Arc<PartFiles>,
    table: Path,
    runtime: Handle,
    /// Bytes of the part that is not full yet.
    rest: BytesMut,
    /// Bytes of the table until now.
    bytes: u64,
    written: Arc<Mutex<Vec<(PartKey, Temporary)>>>,
}

impl fmt::Debug for TableWriter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "TableWriter of {}", self.table)
    }
}

impl TableWriter {
    /// Adds the next bytes of the table. Returns what is written meanwhile.
    pub(super) fn add(&mut self, mut bytes: Bytes) -> Vec<JoinHandle<()>> {
        let mut writes = Vec::new();
        while !bytes.is_empty() {
            let space = PART_BYTES as usize - self.rest.len();
            let next = bytes.split_to(space.min(bytes.len()));
            self.bytes += next.len() as u64;
            self.rest.extend_from_slice(&next);
            if self.rest.len() as u64 == PART_BYTES {
                writes.push(self.write_rest());
            }
        }
        writes
    }

    /// Begins to write the bytes that were added last.
    fn write_rest(&mut self) -> JoinHandle<()> {
        let bytes = self.rest.split().freeze();
        let key = PartKey {
            table: self.table.clone(),
            number: (self.bytes - 1) / PART_BYTES,
        };
        let (files, written) = (Arc::clone(&self.files), Arc::clone(&self.written));
        self.runtime.spawn_blocking(move || {
            if let Some(temporary) = files.write_temporary(&key, &bytes) {
                lock(&written).push((key, temporary));
            }
        })
    }

    /// Uses the parts: the table is stored.
    pub(super) async fn finish(mut self) {
        if !self.rest.is_empty() {
            // It is not kept if the thread failed.
            let _ = self.write_rest().await;
        }
        let table_bytes = self.bytes;
        let renamed = self.runtime.clone().spawn_blocking(move || {
            for (key, temporary) in std::mem::take(&mut *lock(&self.written)) {
                self.files.complete(&key, table_bytes, temporary);
            }
        });
        let _ = renamed.await;
    }
}

impl Drop for TableWriter {
    fn drop(&mut self) {
        for (_, temporary) in std::mem::take(&mut *lock(&self.written)) {
            self.files.discard(temporary);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(table: &str, number: u64) -> PartKey {
        PartKey {
            table: Path::from(table),
            number,
        }
    }

    fn folder(name: &str) -> PathBuf {
        let name = format!("nilometer-parts-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        drop(std::fs::remove_dir_all(&folder));
        folder
    }

    fn bytes_below(folder: &FolderPath) -> u64 {
        let entries = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap());
        let bytes = |path: PathBuf| match path.is_dir() {
            true => bytes_below(&path),
            false => path.metadata().unwrap().len(),
        };
        entries.map(|entry| bytes(entry.path())).sum()
    }

    fn part(fill: u8) -> Part {
        Part {
            bytes: vec![fill; PART_BYTES as usize].into(),
            table_bytes: 10 * PART_BYTES,
        }
    }

    #[tokio::test]
    async fn files_are_bounded_and_found_again() {
        let folder = folder("bounded");
        let bytes_max = 3 * PART_BYTES;
        let files = Arc::new(PartFiles::open(&folder, bytes_max).unwrap());
        for number in 0..5 {
            files
                .write(key("a b/t.sst", number), part(number as u8))
                .await;
            // The first is used again and again.
            assert!(files.read(&key("a b/t.sst", 0), &(0..1)).is_some());
            assert!(bytes_below(&folder) <= bytes_max);
        }
        let there = |files: &PartFiles| {
            let read = (0..5).map(|number| files.read(&key("a b/t.sst", number), &(7..9)));
            read.map(|part| part.map(|part| (part.bytes.to_vec(), part.table_bytes)))
                .collect::<Vec<_>>()
        };
        let expected = |number: u8| Some((vec![number; 2], 10 * PART_BYTES));
        let all = [expected(0), None, None, expected(3), expected(4)];
        assert_eq!(there(&files), all);
        std::fs::write(folder.join("a b/other"), "theirs").unwrap();
        std::fs::write(folder.join("a%20b.tmp"), "half").unwrap();
        drop(files);
        let files = Arc::new(PartFiles::open(&folder, bytes_max).unwrap());
        assert_eq!(there(&files), all);
        drop(files);
        let files = Arc::new(PartFiles::open(&folder, PART_BYTES).unwrap());
        assert_eq!(there(&files), [None, None, None, None, expected(4)]);
        assert!(folder.join("a b/other").exists() && !folder.join("a%20b.tmp").exists());
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[tokio::test]
    async fn files_that_someone_removed_or_cut_are_not_read() {
        let folder = folder("removed");
        let files = Arc::new(PartFiles::open(&folder, 10 * PART_BYTES).unwrap());
        for number in 0..3 {
            files.write(key("t", number), part(1)).await;
        }
        let path = |number| files.path(&key("t", number), 10 * PART_BYTES);
        std::fs::remove_file(path(0)).unwrap();
        std::fs::write(path(1), "short").unwrap();
        assert!(files.read(&key("t", 0), &(0..1)).is_none());
        assert!(files.read(&key("t", 1), &(0..10)).is_none());
        assert!(
            files
                .read(&key("t", 2), &(0..PART_BYTES as usize))
                .is_some()
        );
        assert!(
            files
                .read(&key("t", 2), &(0..PART_BYTES as usize + 1))
                .is_none()
        );
        assert_eq!(lock(&files.known).bytes, PART_BYTES);
        // One that is open is read on, until it is removed here.
        std::fs::remove_file(path(2)).unwrap();
        assert!(files.read(&key("t", 2), &(0..1)).is_some());
        files.remove(&key("t", 2));
        assert!(files.read(&key("t", 2), &(0..1)).is_none());
        files.write(key("t", 2), part(7)).await;
        let again = files.read(&key("t", 2), &(0..1)).unwrap();
        assert_eq!(again.bytes[0], 7);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[tokio::test]
    async fn a_written_table_is_used_when_it_is_complete() {
        let folder = folder("written");
        let files = Arc::new(PartFiles::open(&folder, 10 * PART_BYTES).unwrap());
        let table = Path::from("db/t.sst");
        let bytes: Bytes = (0..5 * PART_BYTES / 2).map(|n| (n % 251) as u8).collect();
        let mut writer = files.writer(&table, Handle::current());
        for piece in bytes.chunks(100_000) {
            for write in writer.add(Bytes::copy_from_slice(piece)) {
                write.await.unwrap();
            }
        }
        assert!(files.read(&key("db/t.sst", 0), &(0..1)).is_none());
        writer.finish().await;
        for number in 0..3 {
            let start = (number * PART_BYTES) as usize;
            let length = part_bytes(number, bytes.len() as u64) as usize;
            let found = files.read(&key("db/t.sst", number), &(0..length)).unwrap();
            assert_eq!(found.bytes, bytes.slice(start..start + length));
        }
        let mut writer = files.writer(&Path::from("db/u.sst"), Handle::current());
        for write in writer.add(bytes.clone()) {
            write.await.unwrap();
        }
        drop(writer);
        assert_eq!(lock(&files.known).bytes, bytes.len() as u64);
        assert_eq!(bytes_below(&folder), bytes.len() as u64);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

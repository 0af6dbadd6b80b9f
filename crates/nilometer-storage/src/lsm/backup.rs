//! What a backup reads: links to the files of the current database, and the log behind them.
//!
//! The links are in a folder of the database's own directory, so that they are on its file system. The folder is removed
//! with the value, and by the next opening if the process was killed.
//!
//! A [`LogReader`] follows the log from a checkpoint on. It reads only durable batches. Segments that it has still to read
//! are not removed, unless the log is nearly full: writers do not wait for a backup. Then a segment is missing, and the
//! backup begins again with a checkpoint.
//!
//! The log does not show which keyspaces were created and dropped, so these changes are noted while a reader follows it.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::checkpoint::LinkedFiles;
use super::core::Core;
use super::directory::BACKUP_FOLDER;
use super::log::record::{RECORD_HEADER_BYTES, RecordHeader, RecordKind, SEGMENT_HEADER_BYTES};
use super::log::replay::read_header;
use super::log::{Log, segment_path};
use super::log_part::{KeyspaceChange, LogPart, LogPosition};
use crate::checksum::checksum;
use crate::error::{Error, Result};
use crate::file_system::create_private_directory;
use crate::lock::lock;

/// A database of the local engine, as backups read it.
#[derive(Clone)]
pub struct BackupSource {
    core: Arc<Core>,
}

/// One file of a database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupFile {
    /// Its path below the directory, with slashes.
    pub path: String,
    /// Its size.
    pub bytes: u64,
    /// Bytes from the start that a copy needs. What follows may be zeros in a copy.
    pub used_bytes: u64,
}

/// Links to the files of a database at one moment, until the value is dropped. `FORMAT` is not among them.
pub struct BackupFiles {
    folder: PathBuf,
    /// The files, ordered by path.
    pub files: Vec<BackupFile>,
    /// Where their log ends.
    pub end: LogPosition,
    /// The version of the format of the directory.
    pub format_version: u32,
}

impl BackupFiles {
    /// Returns the folder of the links.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Drop for BackupFiles {
    fn drop(&mut self) {
        // What remains is removed by the next opening.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl BackupSource {
    pub(super) fn new(core: Arc<Core>) -> Self {
        Self { core }
    }

    /// Links the files of the current database.
    pub fn files(&self) -> Result<BackupFiles> {
        self.link().map(|(files, _)| files)
    }

    /// Links the files of the current database, and follows the log behind them. One reader can follow a log at a time.
    pub fn follow(&self) -> Result<(BackupFiles, LogReader)> {
        self.core.keyspace_changes.begin()?;
        let mut reader = LogReader {
            core: Arc::clone(&self.core),
            segment: 0,
            offset: SEGMENT_HEADER_BYTES as u64,
            file: None,
            at: LogPosition::default(),
        };
        let log = &self.core.log;
        let unread = log.lock().next_index();
        log.keep_unread(Some(unread));
        let (files, linked) = self.link()?;
        reader.segment = linked.next_segment;
        reader.at = files.end;
        reader.release(files.end.next_index);
        Ok((files, reader))
    }

    fn link(&self) -> Result<(BackupFiles, LinkedFiles)> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        self.core.health.check_writable()?;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let parent = self.core.context.directory.path().join(BACKUP_FOLDER);
        let folder = parent.join(number.to_string());
        create_private_directory(&folder).map_err(|source| Error::io("create", &folder, source))?;
        let mut backup = BackupFiles {
            folder,
            files: Vec::new(),
            end: LogPosition::default(),
            format_version: 0,
        };
        let linked = self.core.link_files(&backup.folder)?;
        backup.end = LogPosition {
            next_index: linked.next_index,
            last_sequence: linked.last_sequence,
        };
        backup.format_version = linked.format_version;
        let mut files = Vec::new();
        list_files(&backup.folder, "", &mut files)?;
        for segment in &linked.segments {
            let name = segment.path.file_name().and_then(|name| name.to_str());
            let path = name.map(|name| format!("wal/{name}"));
            let file = files
                .iter_mut()
                .find(|file| Some(&file.path) == path.as_ref());
            if let Some(file) = file {
                file.used_bytes = segment.used_bytes.min(file.bytes);
            }
        }
        backup.files = files;
        Ok((backup, linked))
    }
}

/// Lists the files below a folder, ordered by path.
fn list_files(folder: &Path, prefix: &str, files: &mut Vec<BackupFile>) -> Result<()> {
    let failed = |source| Error::io("list", folder, source);
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let metadata = entry.metadata().map_err(failed)?;
        entries.push((entry.file_name().to_string_lossy().into_owned(), metadata));
    }
    entries.sort_by(|one, other| one.0.cmp(&other.0));
    for (name, metadata) in entries {
        let path = format!("{prefix}{name}");
        if metadata.is_dir() {
            list_files(&folder.join(&name), &format!("{path}/"), files)?;
        } else {
            files.push(BackupFile {
                path,
                bytes: metadata.len(),
                used_bytes: metadata.len(),
            });
        }
    }
    Ok(())
}

/// The keyspaces that were created and dropped while a reader follows the log.
#[derive(Default)]
pub(crate) struct KeyspaceChanges(Mutex<Option<Vec<(u64, KeyspaceChange)>>>);

impl KeyspaceChanges {
    fn begin(&self) -> Result<()> {
        let mut changes = lock(&self.0);
        if changes.is_some() {
            return Err(Error::Unsupported {
                operation: "a second continuous backup of one database",
            });
        }
        *changes = Some(Vec::new());
        Ok(())
    }

    fn end(&self) {
        *lock(&self.0) = None;
    }

    /// Notes a change that is durable. The caller holds the list of keyspaces.
    pub(crate) fn note(&self, log: &Log, change: impl FnOnce() -> KeyspaceChange) {
        let next = log.lock().next_index();
        if let Some(changes) = &mut *lock(&self.0) {
            changes.push((next, change()));
        }
    }

    /// Takes the changes before batch `next`.
    fn take_before(&self, next: u64) -> Vec<(u64, KeyspaceChange)> {
        let mut changes = lock(&self.0);
        let Some(changes) = &mut *changes else {
            return Vec::new();
        };
        let count = changes.iter().take_while(|(at, _)| *at <= next).count();
        changes.drain(..count).collect()
    }
}

/// Reads the log behind a checkpoint while it grows.
pub struct LogReader {
    core: Arc<Core>,
    segment: u64,
    offset: u64,
    file: Option<File>,
    at: LogPosition,
}

impl LogReader {
    /// Returns the index after the last batch that was written. It need not be durable.
    pub fn written(&self) -> u64 {
        self.core.log.lock().next_index()
    }

    /// Returns where the next part begins.
    pub fn position(&self) -> LogPosition {
        self.at
    }

    /// Makes everything written durable and reads what was not read, about `bytes_max` bytes of it. `None` if there is
    /// nothing. Fails with [`Error::Corruption`] if the log was removed before it was read.
    pub fn read(&mut self, bytes_max: usize) -> Result<Option<LogPart>> {
        self.core.health.check_open()?;
        self.core.log.sync()?;
        let durable = self.core.log.lock().durable_index();
        let first = self.at;
        let mut batches = Vec::new();
        while self.at.next_index <= durable && batches.len() < bytes_max {
            let Some((sequence, payload)) = self.read_batch()? else {
                self.next_segment()?;
                continue;
            };
            LogPart::push_batch(&mut batches, sequence, &payload);
            self.at = LogPosition {
                next_index: self.at.next_index + 1,
                last_sequence: sequence,
            };
        }
        if self.at == first {
            return Ok(None);
        }
        Ok(Some(LogPart {
            begin: first,
            next_index: self.at.next_index,
            moments: Vec::new(),
            changes: (self.core.keyspace_changes).take_before(self.at.next_index),
            batches,
        }))
    }

    /// Lets the log remove the batches before `index`: their parts are stored.
    pub fn release(&self, index: u64) {
        self.core.log.keep_unread(Some(index));
    }

    fn path(&self) -> PathBuf {
        segment_path(&self.core.context.directory.log(), self.segment)
    }

    /// Reads the next record of the segment. `None` if the segment ends before it.
    fn read_batch(&mut self) -> Result<Option<(u64, Vec<u8>)>> {
        let path = self.path();
        if self.file.is_none() {
            let header = read_header(&path, self.segment).map_err(|error| gap(&path, error))?;
            if header.first_index != self.at.next_index
                || header.base_sequence != self.at.last_sequence
            {
                let found = format!("batch {}", header.first_index);
                return Err(missing(&path, self.at.next_index, found));
            }
            let file = File::open(&path).map_err(|source| Error::io("open", &path, source))?;
            self.file = Some(file);
            self.offset = SEGMENT_HEADER_BYTES as u64;
        }
        let Some(file) = &mut self.file else {
            return Ok(None);
        };
        let failed = |source| Error::io("read", &path, source);
        file.seek(SeekFrom::Start(self.offset)).map_err(failed)?;
        let mut start = Vec::with_capacity(RECORD_HEADER_BYTES);
        let read = file
            .take(RECORD_HEADER_BYTES as u64)
            .read_to_end(&mut start);
        read.map_err(failed)?;
        let record = RecordHeader::decode(&start, self.segment).filter(|record| {
            record.kind == RecordKind::Batch
                && record.index == self.at.next_index
                && record.sequence > self.at.last_sequence
        });
        let Some(record) = record else {
            return Ok(None);
        };
        let mut payload = Vec::new();
        let read = file
            .take(u64::from(record.length))
            .read_to_end(&mut payload);
        read.map_err(failed)?;
        if payload.len() != record.length as usize
            || checksum(&payload, 0) != record.payload_checksum
        {
            return Err(missing(&path, self.at.next_index, "other bytes".to_owned()));
        }
        self.offset += record.record_bytes() as u64;
        Ok(Some((record.sequence, payload)))
    }

    /// Goes to the next segment: a durable batch that is not in this one is there.
    fn next_segment(&mut self) -> Result<()> {
        let path = self.path();
        if self.segment >= self.core.log.lock().segment() {
            return Err(missing(&path, self.at.next_index, "the end".to_owned()));
        }
        self.segment += 1;
        self.file = None;
        Ok(())
    }
}

impl Drop for LogReader {
    fn drop(&mut self) {
        self.core.log.keep_unread(None);
        self.core.keyspace_changes.end();
    }
}

/// The error of a segment that cannot be opened.
fn gap(path: &Path, error: Error) -> Error {
    match error {
        Error::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
            Error::corruption("log", path, 0, "a segment that was not read", "no file")
        }
        other => other,
    }
}

fn missing(path: &Path, index: u64, found: String) -> Error {
    Error::corruption("log", path, 0, format!("batch {index}"), found)
}

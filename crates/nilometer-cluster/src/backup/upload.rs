//! Storing the files of a database that are not there yet.

use std::collections::HashMap;
use std::fs::Metadata;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use nilometer_storage::{BackupFile, BackupFiles, Error, Result};

use super::manifest::{FileObject, Manifest, StoredFile, Sum, Summing};
use super::objects::{FilePieces, file_error, in_parallel};
use super::{BackupInfo, BackupProgress, BackupReport, BackupStore, TRANSFERS};

/// Files up to this size share objects, and are read at every backup.
const SMALL_BYTES_MAX: u64 = 64 * 1024;

/// Bytes after which an object of small files ends.
const PACK_BYTES: usize = 8 * 1024 * 1024;

/// The identity of a file whose place on the disk is not known.
const UNKNOWN: &str = "-";

/// What the last backup has.
#[derive(Default)]
struct KnownFiles {
    by_identity: HashMap<(String, u64, String), StoredFile>,
    by_sum: HashMap<(Sum, u64), StoredFile>,
}

impl KnownFiles {
    fn of(manifest: Option<Manifest>) -> Self {
        let mut known = Self::default();
        for file in manifest.into_iter().flat_map(|manifest| manifest.files) {
            let key = (file.path.clone(), file.stored_bytes, file.identity.clone());
            known
                .by_sum
                .insert((file.sum, file.stored_bytes), file.clone());
            known.by_identity.insert(key, file);
        }
        known
    }

    /// Returns the file with the same place on the disk.
    fn by_identity(&self, file: &BackupFile, identity: &str) -> Option<StoredFile> {
        if identity == UNKNOWN || file.used_bytes <= SMALL_BYTES_MAX {
            return None;
        }
        let key = (file.path.clone(), file.used_bytes, identity.to_owned());
        self.by_identity.get(&key).map(|known| StoredFile {
            bytes: file.bytes,
            ..known.clone()
        })
    }

    /// Returns a file with the same contents.
    fn by_sum(&self, sum: Sum, file: &BackupFile, identity: &str) -> Option<StoredFile> {
        let known = self.by_sum.get(&(sum, file.used_bytes))?;
        Some(StoredFile {
            path: file.path.clone(),
            bytes: file.bytes,
            identity: identity.to_owned(),
            ..known.clone()
        })
    }
}

/// A large file that has to be read.
struct LargeFile {
    file: BackupFile,
    path: PathBuf,
    identity: String,
    object: FileObject,
}

impl BackupStore {
    /// Stores the files of a backup whose number was taken, and completes it; if that fails, gives it up.
    pub(super) fn store_files(
        &self,
        number: u64,
        run: Option<u64>,
        time_ms: i64,
        files: &BackupFiles,
        report: &mut BackupReport<'_>,
    ) -> Result<BackupInfo> {
        let stored = self.runtime.block_on(async {
            let stored = self.upload(number, files, report).await?;
            let manifest = Manifest {
                number,
                time_ms,
                format_version: files.format_version,
                end: files.end,
                run,
                files: stored,
            };
            self.catalog.complete(&manifest).await?;
            Ok(manifest.info(None))
        });
        if stored.is_err() {
            // If that fails, too, it is given up later.
            let _ = self.runtime.block_on(self.catalog.abandon(number));
        }
        stored
    }

    async fn upload(
        &self,
        number: u64,
        files: &BackupFiles,
        report: &mut BackupReport<'_>,
    ) -> Result<Vec<StoredFile>> {
        let known = KnownFiles::of(self.catalog.last_manifest().await?);
        let mut progress = BackupProgress {
            files: files.files.len() as u64,
            ..BackupProgress::default()
        };
        let (mut stored, mut large) = (Vec::new(), Vec::new());
        let mut pack = Pack::new(number);
        for file in &files.files {
            let path = files.folder().join(&file.path);
            let metadata = std::fs::metadata(&path);
            let metadata = metadata.map_err(|source| file_error("stat", &path, source))?;
            let identity = identity(&metadata);
            if let Some(file) = known.by_identity(file, &identity) {
                stored.push(file);
            } else if file.used_bytes > SMALL_BYTES_MAX {
                large.push(LargeFile {
                    file: file.clone(),
                    path,
                    identity,
                    object: pack.next_object(),
                });
                continue;
            } else {
                let contents = FilePieces::open(&path, file.used_bytes)?.next()?;
                let sum = Sum::of(&contents);
                let file = match known.by_sum(sum, file, &identity) {
                    Some(file) => file,
                    None => pack.add(file, &contents, sum, identity),
                };
                stored.push(file);
                if pack.contents.len() >= PACK_BYTES {
                    progress.bytes += self.store_pack(&mut pack).await?;
                }
            }
            progress.files_done += 1;
            progress.tell(report)?;
        }
        progress.bytes += self.store_pack(&mut pack).await?;
        let jobs = large.into_iter().map(|file| self.store_large(file, &known));
        let each = |(file, sent): (StoredFile, u64)| {
            stored.push(file);
            progress.files_done += 1;
            progress.bytes += sent;
            progress.tell(report)
        };
        in_parallel(jobs, TRANSFERS, each).await?;
        stored.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(stored)
    }

    /// Stores the gathered small files. Returns the bytes sent.
    async fn store_pack(&self, pack: &mut Pack) -> Result<u64> {
        if pack.contents.is_empty() {
            return Ok(0);
        }
        let contents = Bytes::from(std::mem::take(&mut pack.contents));
        let sent = contents.len() as u64;
        let object = pack.object;
        pack.object = pack.next_object();
        self.catalog.objects.put(&object.name(), contents).await?;
        Ok(sent)
    }

    /// Stores a large file, unless the last backup has its contents. Also returns the bytes sent.
    async fn store_large(&self, large: LargeFile, known: &KnownFiles) -> Result<(StoredFile, u64)> {
        let LargeFile {
            file,
            path,
            identity,
            object,
        } = large;
        let bytes = file.used_bytes;
        let read = {
            let path = path.clone();
            tokio::task::spawn_blocking(move || sum_of_file(&path, bytes))
        };
        let sum = read.await.map_err(|_| Error::Closed)??;
        if let Some(file) = known.by_sum(sum, &file, &identity) {
            return Ok((file, 0));
        }
        let objects = &self.catalog.objects;
        let sent = objects.put_file(&object.name(), &path, bytes).await?;
        if sent != sum {
            return Err(Error::Corruption {
                what: "file",
                file: path,
                offset: 0,
                expected: format!("the SHA-256 {sum}"),
                found: format!("{sent} when it was read again"),
            });
        }
        let stored = StoredFile {
            path: file.path,
            bytes: file.bytes,
            stored_bytes: bytes,
            sum,
            object,
            offset: 0,
            identity,
        };
        Ok((stored, bytes))
    }
}

/// Small files that become one object.
struct Pack {
    number: u64,
    next_part: u64,
    object: FileObject,
    contents: Vec<u8>,
}

impl Pack {
    fn new(number: u64) -> Self {
        Self {
            number,
            next_part: 1,
            object: FileObject { number, part: 0 },
            contents: Vec::new(),
        }
    }

    /// Returns the name of another object.
    fn next_object(&mut self) -> FileObject {
        let part = self.next_part;
        self.next_part += 1;
        FileObject {
            number: self.number,
            part,
        }
    }

    fn add(
        &mut self,
        file: &BackupFile,
        contents: &[u8],
        sum: Sum,
        identity: String,
    ) -> StoredFile {
        let offset = self.contents.len() as u64;
        self.contents.extend(contents);
        StoredFile {
            path: file.path.clone(),
            bytes: file.bytes,
            stored_bytes: contents.len() as u64,
            sum,
            object: self.object,
            offset,
            identity,
        }
    }
}

fn sum_of_file(path: &Path, bytes: u64) -> Result<Sum> {
    let mut pieces = FilePieces::open(path, bytes)?;
    let mut sum = Summing::default();
    loop {
        let piece = pieces.next()?;
        if piece.is_empty() {
            return Ok(sum.finish());
        }
        sum.add(&piece);
    }
}

/// Returns the place of a file on its disk, and when it was written.
#[cfg(unix)]
fn identity(metadata: &Metadata) -> String {
    use std::os::unix::fs::MetadataExt;
    format!(
        "{}-{}-{}.{:09}",
        metadata.dev(),
        metadata.ino(),
        metadata.mtime(),
        metadata.mtime_nsec()
    )
}

/// Files have no number here.
#[cfg(not(unix))]
fn identity(_metadata: &Metadata) -> String {
    UNKNOWN.to_owned()
}

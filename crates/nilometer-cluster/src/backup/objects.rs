//! Requests for objects below one path, repeated when they fail.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use nilometer_storage::{Error, Result};
use object_store::path::Path;
use object_store::{
    Error as StoreError, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload,
};

use super::manifest::{StoredFile, Sum, Summing};
use crate::error::store_error;
use crate::retry::{Outcome, pause_or_fail, repeated};

/// Bytes of one part of an object that is sent in parts.
const PART_BYTES: u64 = 8 * 1024 * 1024;

/// Most bytes of a pack that is read at once.
const PACK_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// The objects below one path.
pub(super) struct Objects {
    store: Arc<dyn ObjectStore>,
    folder: Path,
}

/// Bytes of a pack of files that was read.
pub(super) struct Pack {
    start: u64,
    bytes: Bytes,
}

impl Pack {
    /// Returns the stored bytes of a file.
    pub(super) fn file(&self, file: &StoredFile) -> Option<&[u8]> {
        let start = usize::try_from(file.offset.checked_sub(self.start)?).ok()?;
        let end = start.checked_add(usize::try_from(file.stored_bytes).ok()?)?;
        self.bytes.get(start..end)
    }
}

/// An object of a list.
pub(super) struct Listed {
    /// Its path below the folder that was listed.
    pub(super) name: String,
    /// By the clock of the store.
    pub(super) modified: SystemTime,
}

impl Objects {
    pub(super) fn new(store: Arc<dyn ObjectStore>, path: &str) -> Self {
        let folder = Path::from(path).join("backups");
        Self { store, folder }
    }

    /// Returns the store.
    pub(super) fn store(&self) -> &Arc<dyn ObjectStore> {
        &self.store
    }

    /// Returns the path of an object, for messages and requests.
    pub(super) fn path(&self, name: &str) -> Path {
        let parts = name.split('/');
        parts.fold(self.folder.clone(), |path, part| path.join(part))
    }

    /// Creates an object if it is absent. True if it has these contents now: an earlier attempt may have taken effect
    /// though it failed, so contents must be those of one writer alone.
    pub(super) async fn create(&self, name: &str, contents: &Bytes) -> Result<bool> {
        let path = self.path(name);
        let created = repeated(async || {
            let options = PutOptions::from(PutMode::Create);
            let payload = PutPayload::from(contents.clone());
            match self.store.put_opts(&path, payload, options).await {
                Ok(_) => Ok(true),
                Err(StoreError::AlreadyExists { .. } | StoreError::Precondition { .. }) => {
                    let found = self.store.get(&path).await?.bytes().await?;
                    Ok(found == *contents)
                }
                Err(error) => Err(error),
            }
        });
        created
            .await
            .map_err(|error| failed("create", name, &error))
    }

    /// Stores an object.
    pub(super) async fn put(&self, name: &str, contents: Bytes) -> Result<()> {
        let path = self.path(name);
        let stored = repeated(async || {
            let payload = PutPayload::from(contents.clone());
            self.store.put(&path, payload).await.map(drop)
        });
        stored.await.map_err(|error| failed("store", name, &error))
    }

    /// Reads an object; `None` if it is absent.
    pub(super) async fn get(&self, name: &str) -> Result<Option<Bytes>> {
        let path = self.path(name);
        let read = repeated(async || match self.store.get(&path).await {
            Ok(found) => found.bytes().await.map(Some),
            Err(StoreError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        });
        read.await.map_err(|error| failed("read", name, &error))
    }

    /// Returns the size of an object; `None` if it is absent.
    pub(super) async fn size(&self, name: &str) -> Result<Option<u64>> {
        let path = self.path(name);
        let read = repeated(async || match self.store.head(&path).await {
            Ok(found) => Ok(Some(found.size)),
            Err(StoreError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        });
        read.await.map_err(|error| failed("read", name, &error))
    }

    /// Reads bytes of an object; `None` if it is absent.
    pub(super) async fn get_range(
        &self,
        name: &str,
        range: std::ops::Range<u64>,
    ) -> Result<Option<Bytes>> {
        let path = self.path(name);
        let read = repeated(
            async || match self.store.get_range(&path, range.clone()).await {
                Ok(found) => Ok(Some(found)),
                Err(StoreError::NotFound { .. }) => Ok(None),
                Err(error) => Err(error),
            },
        );
        read.await.map_err(|error| failed("read", name, &error))
    }

    /// Reads the part of an object that has several small files; `None` if it is absent, large or has one file.
    pub(super) async fn read_pack(&self, files: &[&StoredFile]) -> Result<Option<Pack>> {
        let [first, _, ..] = files else {
            return Ok(None);
        };
        let start = files.iter().map(|file| file.offset).min().unwrap_or(0);
        let ends = files
            .iter()
            .map(|file| file.offset.saturating_add(file.stored_bytes));
        let end = ends.max().unwrap_or(0);
        if end <= start || end - start > PACK_BYTES_MAX {
            return Ok(None);
        }
        let bytes = self.get_range(&first.object.name(), start..end).await?;
        Ok(bytes.map(|bytes| Pack { start, bytes }))
    }

    /// Calls `each` with the pieces of a part of an object, in order. False if it is absent. After a failure the read goes
    /// on behind the last piece.
    pub(super) async fn read(
        &self,
        name: &str,
        range: std::ops::Range<u64>,
        mut each: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<bool> {
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min(at + PART_BYTES);
            let Some(bytes) = self.get_range(name, at..end).await? else {
                return Ok(false);
            };
            if bytes.is_empty() {
                return Ok(true);
            }
            at += bytes.len() as u64;
            each(&bytes)?;
        }
        Ok(true)
    }

    /// Lists the objects of a folder, ordered by name.
    pub(super) async fn list(&self, folder: &str) -> Result<Vec<Listed>> {
        let path = self.path(folder);
        let listed = repeated(async || {
            let found = self.store.list(Some(&path));
            let named = found.map_ok(|object| {
                let rest = object.location.prefix_match(&path);
                let rest = rest.map(|parts| {
                    let parts = parts.map(|part| part.as_ref().to_owned());
                    parts.collect::<Vec<_>>().join("/")
                });
                Listed {
                    name: rest.unwrap_or_default(),
                    modified: object.last_modified.into(),
                }
            });
            named.try_collect::<Vec<_>>().await
        });
        let listed = listed.await;
        let mut listed = listed.map_err(|error| failed("list", folder, &error))?;
        listed.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(listed)
    }

    /// Deletes objects. Those that are absent are no error.
    pub(super) async fn delete(&self, names: &[String]) -> Result<()> {
        for name in names {
            let path = self.path(name);
            let deleted = repeated(async || match self.store.delete(&path).await {
                Ok(()) | Err(StoreError::NotFound { .. }) => Ok(()),
                Err(error) => Err(error),
            });
            deleted
                .await
                .map_err(|error| failed("delete", name, &error))?;
        }
        Ok(())
    }

    /// Stores the first `bytes` bytes of a file. Returns their SHA-256.
    pub(super) async fn put_file(&self, name: &str, file: &FilePath, bytes: u64) -> Result<Sum> {
        let mut attempt = 0;
        loop {
            match self.try_put_file(name, file, bytes).await? {
                Ok(sum) => return Ok(sum),
                Err(error) => pause_or_fail(&mut attempt, error)
                    .await
                    .map_err(|error| failed("store", name, &error))?,
            }
        }
    }

    /// The outer error is that of the file, the inner one that of the store.
    async fn try_put_file(&self, name: &str, file: &FilePath, bytes: u64) -> Result<Outcome<Sum>> {
        let path = self.path(name);
        let mut reader = FilePieces::open(file, bytes)?;
        let mut sum = Summing::default();
        if bytes <= PART_BYTES {
            let piece = reader.next()?;
            sum.add(&piece);
            let stored = self.store.put(&path, piece.into()).await;
            return Ok(stored.map(|_| sum.finish()));
        }
        let mut upload = match self.store.put_multipart(&path).await {
            Ok(upload) => upload,
            Err(error) => return Ok(Err(error)),
        };
        let mut outcome = Ok(());
        loop {
            let piece = reader.next()?;
            if piece.is_empty() || outcome.is_err() {
                break;
            }
            sum.add(&piece);
            outcome = upload.put_part(piece.into()).await;
        }
        if outcome.is_ok() {
            outcome = upload.complete().await.map(drop);
        }
        if outcome.is_err() {
            // What remains of it costs space until the store removes it.
            let _ = upload.abort().await;
        }
        Ok(outcome.map(|()| sum.finish()))
    }
}

/// The pieces of the beginning of a file.
pub(super) struct FilePieces {
    file: File,
    path: std::path::PathBuf,
    left: u64,
}

impl FilePieces {
    pub(super) fn open(path: &FilePath, bytes: u64) -> Result<Self> {
        let mut file = File::open(path).map_err(|source| file_error("open", path, source))?;
        let start = file.seek(SeekFrom::Start(0));
        start.map_err(|source| file_error("read", path, source))?;
        Ok(Self {
            file,
            path: path.to_path_buf(),
            left: bytes,
        })
    }

    /// Returns the next piece; an empty one at the end.
    pub(super) fn next(&mut self) -> Result<Vec<u8>> {
        let length = self.left.min(PART_BYTES);
        let mut piece = Vec::new();
        let read = (&mut self.file).take(length).read_to_end(&mut piece);
        read.map_err(|source| file_error("read", &self.path, source))?;
        if piece.len() as u64 != length {
            return Err(Error::Corruption {
                what: "file",
                file: self.path.clone(),
                offset: piece.len() as u64,
                expected: format!("{} more bytes", self.left),
                found: "the end of the file".to_owned(),
            });
        }
        self.left -= length;
        Ok(piece)
    }
}

/// Returns the error of a file.
pub(super) fn file_error(
    operation: &'static str,
    path: &FilePath,
    source: std::io::Error,
) -> Error {
    Error::Io {
        operation,
        path: path.to_path_buf(),
        source: Arc::new(source),
    }
}

fn failed(act: &str, name: &str, error: &StoreError) -> Error {
    store_error(&format!("{act} backups/{name}"), error)
}

/// Runs jobs, several at a time, and returns what they return, in any order.
pub(super) async fn in_parallel<T>(
    jobs: impl Iterator<Item = impl Future<Output = Result<T>>>,
    width: usize,
    mut each: impl FnMut(T) -> Result<()>,
) -> Result<()> {
    let mut running = futures::stream::iter(jobs).buffer_unordered(width);
    while let Some(done) = running.next().await {
        each(done?)?;
    }
    Ok(())
}

//! The write calls to the file system that are in flight.
//!
//! A thread that waits for a disk cannot tell a stuck disk from a slow one. So every call that writes registers itself
//! before it starts and leaves when it returns. Another thread reads the list ([`PendingIo::list`]) and judges by age.
//!
//! Registered are all calls of the log (through [`TrackedFileSystem`]), flushes of memtables, and changes of the list
//! of keyspaces. Merges are not: their duration depends on their size, and a stuck disk blocks the log as well as soon
//! as something is written.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::engine::{DiskWait, DiskWaits};
use crate::file_system::{FileSystem, LogFile};
use crate::lock::lock;

/// The calls in flight.
#[derive(Debug, Default)]
pub(crate) struct PendingIo {
    state: Mutex<PendingIoState>,
}

#[derive(Debug, Default)]
struct PendingIoState {
    next_id: u64,
    in_flight: BTreeMap<u64, PendingCall>,
    longest: Duration,
}

#[derive(Debug)]
struct PendingCall {
    action: &'static str,
    path: Arc<Path>,
    begun: Instant,
}

/// Registers one call for as long as it lives.
pub(crate) struct CallGuard<'a> {
    waits: &'a PendingIo,
    id: u64,
}

impl PendingIo {
    /// Registers a call: its action, and the file or directory.
    pub(crate) fn begin(&self, action: &'static str, path: impl Into<Arc<Path>>) -> CallGuard<'_> {
        let call = PendingCall {
            action,
            path: path.into(),
            begun: Instant::now(),
        };
        let mut state = lock(&self.state);
        let id = state.next_id;
        state.next_id += 1;
        state.in_flight.insert(id, call);
        CallGuard { waits: self, id }
    }

    /// Returns the calls in flight.
    pub(crate) fn list(&self) -> DiskWaits {
        let state = lock(&self.state);
        let waits = state.in_flight.iter().map(|(id, call)| DiskWait {
            id: *id,
            what: format!("{} {}", call.action, call.path.display()),
            age: call.begun.elapsed(),
        });
        let in_flight: Vec<DiskWait> = waits.collect();
        let oldest = in_flight.iter().map(|wait| wait.age).max();
        DiskWaits {
            longest: state.longest.max(oldest.unwrap_or_default()),
            in_flight,
        }
    }
}

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.waits.state);
        let call = state.in_flight.remove(&self.id);
        let call = call.expect("a call in flight is registered");
        state.longest = state.longest.max(call.begun.elapsed());
    }
}

/// A file system that registers its calls.
pub(crate) struct TrackedFileSystem {
    inner: Arc<dyn FileSystem>,
    waits: Arc<PendingIo>,
}

impl TrackedFileSystem {
    pub(crate) fn new(inner: Arc<dyn FileSystem>, waits: Arc<PendingIo>) -> Self {
        Self { inner, waits }
    }

    fn track(&self, path: &Path, file: Box<dyn LogFile>) -> Box<dyn LogFile> {
        Box::new(TrackedFile {
            // A segment is renamed while it is open, so the folder is recorded.
            folder: path.parent().unwrap_or(path).into(),
            file,
            waits: Arc::clone(&self.waits),
        })
    }
}

impl FileSystem for TrackedFileSystem {
    fn create(&self, path: &Path, bytes: u64) -> io::Result<Box<dyn LogFile>> {
        let _wait = self.waits.begin("create", path);
        Ok(self.track(path, self.inner.create(path, bytes)?))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn LogFile>> {
        let _wait = self.waits.begin("open", path);
        Ok(self.track(path, self.inner.open(path)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let _wait = self.waits.begin("rename", from);
        self.inner.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let _wait = self.waits.begin("remove", path);
        self.inner.remove(path)
    }

    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        let _wait = self.waits.begin("sync the directory", directory);
        self.inner.sync_directory(directory)
    }
}

struct TrackedFile {
    folder: Arc<Path>,
    file: Box<dyn LogFile>,
    waits: Arc<PendingIo>,
}

impl LogFile for TrackedFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let _wait = self
            .waits
            .begin("write the log in", Arc::clone(&self.folder));
        self.file.write_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        let _wait = self
            .waits
            .begin("sync the log in", Arc::clone(&self.folder));
        self.file.sync()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_listed_while_it_lasts() {
        let waits = PendingIo::default();
        assert_eq!(waits.list(), DiskWaits::default());
        let first = waits.begin("sync", Path::new("a"));
        let second = waits.begin("write", Path::new("b"));
        let listed = waits.list().in_flight;
        let listed: Vec<&str> = listed.iter().map(|wait| wait.what.as_str()).collect();
        assert_eq!(listed, ["sync a", "write b"]);
        drop(first);
        std::thread::sleep(Duration::from_millis(20));
        let list = waits.list();
        assert_eq!(list.in_flight.len(), 1);
        assert!(list.longest >= Duration::from_millis(20));
        drop(second);
        let after = waits.list();
        assert!(after.in_flight.is_empty() && after.longest >= list.longest);
    }
}

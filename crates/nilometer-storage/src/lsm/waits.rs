//! What the engine waits for the disk for, at this moment.
//!
//! A disk that does not answer cannot be told from one that is slow by whoever waits for it. So every call
//! that writes is entered here before it is made and struck out afterwards; somebody who does not wait
//! looks at the list ([`Waits::now`]) and judges by age.
//!
//! Entered are: all calls of the log (through [`Watched`]), writing a memtable into tables, and changes of
//! the list of keyspaces. Not entered is merging tables: a merge takes as long as it is large, so its age
//! says nothing, and on a disk that is stuck the log is stuck as well as soon as something is written.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::engine::{DiskWait, DiskWaits};
use crate::file_system::{FileSystem, LogFile};
use crate::lock::lock;

/// The calls that are under way.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next_id: u64,
    under_way: BTreeMap<u64, Call>,
    longest: Duration,
}

#[derive(Debug)]
struct Call {
    action: &'static str,
    path: Arc<Path>,
    begun: Instant,
}

/// One call that is under way, for as long as the value lives.
pub(crate) struct Wait<'a> {
    waits: &'a Waits,
    id: u64,
}

impl Waits {
    /// Enters a call: what it does, and to which file or directory.
    pub(crate) fn begin(&self, action: &'static str, path: impl Into<Arc<Path>>) -> Wait<'_> {
        let call = Call {
            action,
            path: path.into(),
            begun: Instant::now(),
        };
        let mut state = lock(&self.state);
        let id = state.next_id;
        state.next_id += 1;
        state.under_way.insert(id, call);
        Wait { waits: self, id }
    }

    /// What is under way now.
    pub(crate) fn now(&self) -> DiskWaits {
        let state = lock(&self.state);
        let waits = state.under_way.iter().map(|(id, call)| DiskWait {
            id: *id,
            what: format!("{} {}", call.action, call.path.display()),
            age: call.begun.elapsed(),
        });
        let under_way: Vec<DiskWait> = waits.collect();
        let oldest = under_way.iter().map(|wait| wait.age).max();
        DiskWaits {
            longest: state.longest.max(oldest.unwrap_or_default()),
            under_way,
        }
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.waits.state);
        if let Some(call) = state.under_way.remove(&self.id) {
            state.longest = state.longest.max(call.begun.elapsed());
        }
    }
}

/// A file system whose calls are entered.
pub(crate) struct Watched {
    inner: Arc<dyn FileSystem>,
    waits: Arc<Waits>,
}

impl Watched {
    pub(crate) fn new(inner: Arc<dyn FileSystem>, waits: Arc<Waits>) -> Self {
        Self { inner, waits }
    }

    fn watch(&self, path: &Path, file: Box<dyn LogFile>) -> Box<dyn LogFile> {
        Box::new(WatchedFile {
            // A segment is renamed while it is open; its folder says enough.
            folder: path.parent().unwrap_or(path).into(),
            file,
            waits: Arc::clone(&self.waits),
        })
    }
}

impl FileSystem for Watched {
    fn create(&self, path: &Path, bytes: u64) -> io::Result<Box<dyn LogFile>> {
        let _wait = self.waits.begin("create", path);
        Ok(self.watch(path, self.inner.create(path, bytes)?))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn LogFile>> {
        let _wait = self.waits.begin("open", path);
        Ok(self.watch(path, self.inner.open(path)?))
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

struct WatchedFile {
    folder: Arc<Path>,
    file: Box<dyn LogFile>,
    waits: Arc<Waits>,
}

impl LogFile for WatchedFile {
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
        let waits = Waits::default();
        assert_eq!(waits.now(), DiskWaits::default());
        let first = waits.begin("sync", Path::new("a"));
        let second = waits.begin("write", Path::new("b"));
        let listed = waits.now().under_way;
        let listed: Vec<&str> = listed.iter().map(|wait| wait.what.as_str()).collect();
        assert_eq!(listed, ["sync a", "write b"]);
        drop(first);
        std::thread::sleep(Duration::from_millis(20));
        let now = waits.now();
        assert_eq!(now.under_way.len(), 1);
        assert!(now.longest >= Duration::from_millis(20));
        drop(second);
        let after = waits.now();
        assert!(after.under_way.is_empty() && after.longest >= now.longest);
    }
}

//! A file system with injected faults and power loss.
//!
//! [`FaultyFileSystem`] forwards to the real file system and records what each unsynced write replaced. While it is
//! [stuck](FaultyFileSystem::set_stuck) no call returns. After [`FaultyFileSystem::cut_power`] nothing is written;
//! [`FaultyFileSystem::lose_unsynced`] then undoes a random half of the sectors of every unsynced write, as a device
//! may that lost its cache.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Error, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::random::Random;
use crate::file_system::{FileSystem, LogFile, RealFileSystem};
use crate::lock::lock;

/// Bytes that a device writes atomically.
const SECTOR_BYTES: usize = 512;

/// The real file system, with faults.
#[derive(Clone, Default)]
pub struct FaultyFileSystem {
    state: Arc<Mutex<FaultState>>,
    gate: Arc<Gate>,
}

/// Blocks calls while the disk is stuck.
#[derive(Default)]
struct Gate {
    stuck: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn pass(&self) {
        let mut stuck = lock(&self.stuck);
        while *stuck {
            stuck = self
                .opened
                .wait(stuck)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[derive(Default)]
struct FaultState {
    full: bool,
    /// Bytes of one write at most, beyond which the disk has no space for it.
    room_per_write: Option<usize>,
    /// The error code with which creating and opening files fails.
    no_files: Option<i32>,
    writes_fail: bool,
    syncs_fail: bool,
    powerless: bool,
    /// Calls until the power fails.
    calls_left: Option<u64>,
    next_file: u64,
    names: BTreeMap<u64, PathBuf>,
    unsynced: BTreeMap<u64, Vec<UnsyncedWrite>>,
}

/// One unsynced write: its offset and the bytes it replaced.
struct UnsyncedWrite {
    offset: u64,
    before: Vec<u8>,
}

impl FaultyFileSystem {
    /// Returns a file system without faults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets whether the disk has no space for new files.
    pub fn set_full(&self, full: bool) {
        self.state().full = full;
    }

    /// Sets how many bytes of a write are written before the disk has no space, as on a file system that copies on write
    /// and so needs space for writes into reserved space. `None`: all.
    pub fn set_room_per_write(&self, bytes: Option<usize>) {
        self.state().room_per_write = bytes;
    }

    /// Makes creating and opening files fail with this error code, or succeed again.
    pub fn set_no_files(&self, code: Option<i32>) {
        self.state().no_files = code;
    }

    /// Sets whether writes fail.
    pub fn set_writes_fail(&self, fail: bool) {
        self.state().writes_fail = fail;
    }

    /// Sets whether syncs fail.
    pub fn set_syncs_fail(&self, fail: bool) {
        self.state().syncs_fail = fail;
    }

    /// Sets whether the disk is stuck: calls wait until it is not.
    pub fn set_stuck(&self, stuck: bool) {
        *lock(&self.gate.stuck) = stuck;
        self.gate.opened.notify_all();
    }

    /// Makes every later call fail without effect.
    pub fn cut_power(&self) {
        self.state().powerless = true;
    }

    /// Cuts the power after this number of further calls.
    pub fn cut_power_after(&self, calls: u64) {
        self.state().calls_left = Some(calls);
    }

    /// True once the power is cut.
    pub fn is_powerless(&self) -> bool {
        self.state().powerless
    }

    /// Undoes a random part of the unsynced writes.
    pub fn lose_unsynced(&self, random: &mut Random) -> io::Result<()> {
        let mut state = self.state();
        let unsynced = std::mem::take(&mut state.unsynced);
        for (file, writes) in unsynced {
            let Some(path) = state.names.get(&file) else {
                continue;
            };
            let Ok(file) = File::options().write(true).open(path) else {
                continue;
            };
            for write in writes.iter().rev() {
                undo_some(&file, write, random)?;
            }
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, FaultState> {
        lock(&self.state)
    }

    fn track(&self, path: &Path, file: Box<dyn LogFile>) -> Box<dyn LogFile> {
        let mut state = self.state();
        // A sync through one handle also covers what was written through another, as to a recycled segment.
        let known = state.names.iter().find(|(_, name)| *name == path);
        let known = known.map(|(id, _)| *id);
        let id = known.unwrap_or(state.next_file);
        state.next_file = state.next_file.max(id + 1);
        state.names.insert(id, path.to_path_buf());
        Box::new(FaultyFile {
            id,
            file,
            state: Arc::clone(&self.state),
            gate: Arc::clone(&self.gate),
        })
    }
}

/// Restores a random choice of the sectors that `write` replaced.
fn undo_some(file: &File, write: &UnsyncedWrite, random: &mut Random) -> io::Result<()> {
    let mut at = 0;
    while at < write.before.len() {
        let offset = write.offset + at as u64;
        let in_sector = SECTOR_BYTES - (offset % SECTOR_BYTES as u64) as usize;
        let end = write.before.len().min(at + in_sector);
        if random.one_in(2) {
            LogFile::write_at(file, &write.before[at..end], offset)?;
        }
        at = end;
    }
    Ok(())
}

impl FaultState {
    /// Counts a call. Fails without power.
    fn call(&mut self) -> io::Result<()> {
        match &mut self.calls_left {
            Some(0) => self.powerless = true,
            Some(left) => *left -= 1,
            None => {}
        }
        match self.powerless {
            true => Err(fault(ErrorKind::Other)),
            false => Ok(()),
        }
    }
}

fn fault(kind: ErrorKind) -> Error {
    Error::new(kind, "an injected fault")
}

impl FileSystem for FaultyFileSystem {
    fn create(&self, path: &Path, bytes: u64) -> io::Result<Box<dyn LogFile>> {
        self.gate.pass();
        let mut state = self.state();
        state.call()?;
        if state.full {
            return Err(fault(ErrorKind::StorageFull));
        }
        if let Some(code) = state.no_files {
            return Err(Error::from_raw_os_error(code));
        }
        drop(state);
        Ok(self.track(path, RealFileSystem.create(path, bytes)?))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn LogFile>> {
        let mut state = self.state();
        state.call()?;
        if let Some(code) = state.no_files {
            return Err(Error::from_raw_os_error(code));
        }
        drop(state);
        Ok(self.track(path, RealFileSystem.open(path)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.gate.pass();
        let mut state = self.state();
        state.call()?;
        RealFileSystem.rename(from, to)?;
        state.names.retain(|_, name| name != to);
        for name in state.names.values_mut() {
            if name == from {
                *name = to.to_path_buf();
            }
        }
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.gate.pass();
        let mut state = self.state();
        state.call()?;
        RealFileSystem.remove(path)?;
        state.names.retain(|_, name| name != path);
        Ok(())
    }

    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        self.gate.pass();
        let mut state = self.state();
        state.call()?;
        if state.syncs_fail {
            return Err(fault(ErrorKind::Other));
        }
        drop(state);
        RealFileSystem.sync_directory(directory)
    }
}

struct FaultyFile {
    id: u64,
    file: Box<dyn LogFile>,
    state: Arc<Mutex<FaultState>>,
    gate: Arc<Gate>,
}

impl LogFile for FaultyFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.gate.pass();
        let mut state = lock(&self.state);
        state.call()?;
        if state.writes_fail {
            return Err(fault(ErrorKind::Other));
        }
        let name = state.names.get(&self.id).cloned();
        let name = name.ok_or_else(|| fault(ErrorKind::NotFound))?;
        let room = state.room_per_write.unwrap_or(usize::MAX);
        let written = bytes.get(..room).unwrap_or(bytes);
        let before = read_at(&name, offset, written.len())?;
        self.file.write_at(written, offset)?;
        let writes = state.unsynced.entry(self.id).or_default();
        writes.push(UnsyncedWrite { offset, before });
        match written.len() < bytes.len() {
            true => Err(fault(ErrorKind::StorageFull)),
            false => Ok(()),
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.gate.pass();
        let mut state = lock(&self.state);
        state.call()?;
        if state.syncs_fail {
            return Err(fault(ErrorKind::Other));
        }
        // Not forwarded: `lose_unsynced` decides what is lost.
        state.unsynced.remove(&self.id);
        Ok(())
    }
}

fn read_at(path: &Path, offset: u64, length: usize) -> io::Result<Vec<u8>> {
    use std::io::{Read, Seek, SeekFrom};
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(offset))?;
    let mut bytes = Vec::with_capacity(length);
    file.take(length as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

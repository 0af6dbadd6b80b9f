//! Damaged files of a database directory: of the log and of tables.
//!
//! A small database is created once. For each input its files are written to a new directory, one of them damaged, and
//! it is opened, read and verified. That may fail with an error, or return less if the end of the log was torn, but
//! never other data. In the corpus an input is the whole file, as lines of hexadecimal digits.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use nilometer_bson::fuzz::Numbers;
use nilometer_storage::{
    Direction, Durability, Engine, KeyspaceId, KeyspaceOptions, LsmEngine, LsmOptions, WriteBatch,
};

use crate::bytes::{damage, hexadecimal, noise};
use crate::runner::Runner;
use crate::scripts::Seeds;

/// Inputs of one seed.
const BATCH: u64 = 10;

/// Keys of each keyspace.
const KEYS: u64 = 60;

/// A directory that is removed when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let name = format!("nilometer-campaign-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a directory");
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// The files of an undamaged database by name, and its content.
struct OriginalDatabase {
    files: BTreeMap<PathBuf, Vec<u8>>,
    keyspaces: [KeyspaceId; 2],
}

fn key(number: u64) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

fn value(keyspace: usize, number: u64) -> Vec<u8> {
    let length = 20 + (number * 37 % 400) as usize;
    vec![number as u8 ^ (keyspace as u8 + 1); length]
}

fn sound() -> &'static OriginalDatabase {
    static SOUND: OnceLock<OriginalDatabase> = OnceLock::new();
    SOUND.get_or_init(|| {
        let scratch = Scratch::new();
        let engine = LsmEngine::open(&scratch.0, LsmOptions::tiny()).expect("an engine");
        let create = |name: &str, separate_values| {
            let options = KeyspaceOptions {
                separate_values,
                ..KeyspaceOptions::default()
            };
            engine.create_keyspace(name, options).expect("a keyspace")
        };
        let keyspaces = [create("together", false), create("apart", true)];
        for number in 0..KEYS {
            let mut batch = WriteBatch::new();
            for (at, keyspace) in keyspaces.iter().enumerate() {
                batch.put(*keyspace, key(number), value(at, number));
            }
            engine.commit(batch, Durability::Sync).expect("a commit");
            if number == KEYS / 2 {
                engine.settle().expect("tables");
            }
        }
        engine.close().expect("an end");
        drop(engine);
        let mut files = BTreeMap::new();
        gather(&scratch.0, Path::new(""), &mut files);
        OriginalDatabase { files, keyspaces }
    })
}

fn gather(root: &Path, inside: &Path, files: &mut BTreeMap<PathBuf, Vec<u8>>) {
    for entry in std::fs::read_dir(root.join(inside))
        .expect("a directory")
        .flatten()
    {
        let path = inside.join(entry.file_name());
        match entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            true => gather(root, &path, files),
            false => drop(files.insert(
                path.clone(),
                std::fs::read(root.join(&path)).expect("a file"),
            )),
        }
    }
}

/// Which files are damaged.
#[derive(Clone, Copy)]
enum DamagedFiles {
    Log,
    Table,
}

impl DamagedFiles {
    fn files(self) -> Vec<&'static PathBuf> {
        let is_one = |path: &&PathBuf| {
            let name = path.to_string_lossy();
            match self {
                Self::Log => name.starts_with("wal/") && name.ends_with(".log"),
                Self::Table => name.contains("/tables/") || name.contains("/blobs/"),
            }
        };
        sound().files.keys().filter(is_one).collect()
    }
}

/// Opens and reads the database with one file replaced by `bytes`. True if no damage was found.
fn open_and_read(place: &Path, bytes: &[u8]) -> bool {
    let sound = sound();
    let scratch = Scratch::new();
    for (path, sound) in &sound.files {
        let target = scratch.0.join(path);
        std::fs::create_dir_all(target.parent().expect("a folder")).expect("a folder");
        let held = if path == place {
            bytes
        } else {
            sound.as_slice()
        };
        std::fs::write(target, held).expect("a file");
    }
    let Ok(engine) = LsmEngine::open(&scratch.0, LsmOptions::tiny()) else {
        return false;
    };
    let mut whole = engine.verify().is_ok();
    let snapshot = engine.snapshot().expect("a snapshot");
    for (at, keyspace) in sound.keyspaces.iter().enumerate() {
        let Ok(scan) = snapshot.scan(*keyspace, &[], None, Direction::Forward) else {
            whole = false;
            continue;
        };
        let mut read = 0;
        for entry in scan {
            let Ok((found_key, found)) = entry else {
                whole = false;
                break;
            };
            let number =
                u64::from_be_bytes(found_key[..].try_into().expect("a key that was stored"));
            assert_eq!(
                &found[..],
                value(at, number),
                "key {number} of keyspace {at}"
            );
            read += 1;
        }
        whole &= read == KEYS;
    }
    drop(snapshot);
    whole & engine.close().is_ok()
}

fn run(kind: DamagedFiles, seed: u64, runner: &mut Runner) {
    let numbers = &mut Numbers::new(seed);
    let files = kind.files();
    for _ in 0..BATCH {
        let place = files[numbers.below(files.len() as u64) as usize];
        let mut bytes = match numbers.below(12) {
            0 => noise(numbers),
            _ => sound().files[place].clone(),
        };
        damage(numbers, &mut bytes);
        runner.one(|| hexadecimal(&bytes), || open_and_read(place, &bytes));
    }
}

/// Runs files of the log.
pub fn log_batch(_: &Seeds, seed: u64, runner: &mut Runner) {
    run(DamagedFiles::Log, seed, runner);
}

/// Runs files of tables and of separated values.
pub fn table_batch(_: &Seeds, seed: u64, runner: &mut Runner) {
    run(DamagedFiles::Table, seed, runner);
}

/// Runs one file of the log.
pub fn log(bytes: &[u8]) -> bool {
    DamagedFiles::Log
        .files()
        .first()
        .is_some_and(|place| open_and_read(place, bytes))
}

/// Runs one file of a table.
pub fn table(bytes: &[u8]) -> bool {
    DamagedFiles::Table
        .files()
        .first()
        .is_some_and(|place| open_and_read(place, bytes))
}

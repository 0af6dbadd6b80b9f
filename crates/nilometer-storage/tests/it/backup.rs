//! Files of a moment and parts of the log behind it make the database of every later moment.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use nilometer_storage::testing::contract::{APART, SHORT_LIVED, TOGETHER, entries, put};
use nilometer_storage::testing::random::Random;
use nilometer_storage::{
    BackupFiles, Direction, Durability, Engine, Error, KeyspaceId, LogPart, LsmEngine, LsmOptions,
    WriteBatch, complete_restore, copy_database,
};

use crate::support::{Scratch, effort};

type Model = BTreeMap<KeyspaceId, BTreeMap<Vec<u8>, Vec<u8>>>;

/// Copies the files as a backup does: without the unused ends.
fn copy_files(files: &BackupFiles, target: &Path) {
    for file in &files.files {
        let to = target.join(&file.path);
        std::fs::create_dir_all(to.parent().expect("a folder")).expect("created");
        let contents = std::fs::read(files.folder().join(&file.path)).expect("readable");
        assert_eq!(contents.len() as u64, file.bytes, "{}", file.path);
        let mut copy = std::fs::File::create(&to).expect("created");
        let used = usize::try_from(file.used_bytes).expect("a size");
        copy.write_all(&contents[..used]).expect("written");
        copy.set_len(file.bytes).expect("extended");
    }
}

fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("created");
    for entry in std::fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        let to = to.join(entry.file_name());
        match entry.path().is_dir() {
            true => copy_folder(&entry.path(), &to),
            false => drop(std::fs::copy(entry.path(), to).expect("copied")),
        }
    }
}

/// Writes random batches and changes keyspaces; keeps what must be there after each batch.
struct Writer {
    engine: LsmEngine,
    random: Random,
    model: Model,
    /// The state by the index of the next batch.
    states: BTreeMap<u64, Model>,
    names: u64,
}

impl Writer {
    fn step(&mut self) {
        match self.random.below(40) {
            0 | 1 => self.create(),
            2 => {
                let known = self.model.keys().copied().collect::<Vec<_>>();
                let id = known[self.random.index(known.len())];
                if known.len() > 1 {
                    self.engine.drop_keyspace(id).expect("drop");
                    self.model.remove(&id);
                }
            }
            3 => self.engine.settle().expect("settle"),
            _ => self.write(),
        }
    }

    fn create(&mut self) {
        self.names += 1;
        let options = [TOGETHER, APART, SHORT_LIVED][self.random.index(3)];
        let id = self
            .engine
            .create_keyspace(&format!("k{}", self.names), options);
        self.model.insert(id.expect("create"), BTreeMap::new());
    }

    fn write(&mut self) {
        let mut batch = WriteBatch::new();
        let known = self.model.keys().copied().collect::<Vec<_>>();
        for _ in 0..=self.random.below(4) {
            let id = known[self.random.index(known.len())];
            let entries = self.model.get_mut(&id).expect("a keyspace");
            let first = entries.keys().next().cloned();
            match first.filter(|_| self.random.one_in(3)) {
                Some(key) => {
                    entries.remove(&key);
                    batch.delete(id, key);
                }
                None => {
                    // No key is put twice, as short-lived entries require.
                    let key = self.random.bytes(12);
                    let length = self.random.index(700);
                    let value = self.random.bytes(length);
                    entries.insert(key.clone(), value.clone());
                    batch.put(id, key, value);
                }
            }
        }
        let durability = match self.random.one_in(2) {
            true => Durability::Sync,
            false => Durability::Buffered,
        };
        let index = self.engine.commit(batch, durability).expect("commit");
        self.states.insert(index + 1, self.model.clone());
    }
}

fn compare(path: &Path, expected: &Model, what: &str) {
    let engine = LsmEngine::open(path, LsmOptions::tiny()).expect("the restored database opens");
    assert_eq!(engine.recovery().cut, None, "{what}");
    engine.verify().expect("nothing is damaged");
    let view = engine.snapshot().expect("snapshot");
    for (id, expected) in expected {
        let found = entries(&*view, *id, &[], None, Direction::Forward);
        let found = found.into_iter().collect::<BTreeMap<_, _>>();
        assert!(found == *expected, "{what}, {id:?}");
    }
    for keyspace in engine.keyspaces() {
        // One may have been created behind the last batch, or dropped there.
        let found = entries(&*view, keyspace.id, &[], None, Direction::Forward);
        assert!(
            expected.contains_key(&keyspace.id) || found.is_empty(),
            "{what}"
        );
    }
}

#[test]
fn a_moment_and_the_log_behind_it_make_every_later_moment() {
    for seed in 0..effort(1, 30, 2000) {
        let scratch = Scratch::new("backup");
        let path = |name: &str| scratch.path().join(name);
        let engine = LsmEngine::open(path("db"), LsmOptions::tiny()).expect("open");
        let mut writer = Writer {
            engine,
            random: Random::new(seed),
            model: Model::new(),
            states: BTreeMap::new(),
            names: 0,
        };
        writer.create();
        for _ in 0..writer.random.below(200) {
            writer.step();
        }
        let (files, mut reader) = writer
            .engine
            .backup_source()
            .expect("a directory")
            .follow()
            .expect("followed");
        assert_eq!(reader.position(), files.end);
        copy_files(&files, &path("base"));
        let (begin, format) = (files.end, files.format_version);
        writer.states.insert(begin.next_index, writer.model.clone());
        drop(files);
        let mut parts = Vec::new();
        let mut read = |reader: &mut nilometer_storage::LogReader, bytes| {
            if let Some(part) = reader.read(bytes).expect("readable") {
                let part = LogPart::decode(&part.encode()).expect("a part");
                reader.release(part.next_index);
                parts.push(part);
            }
        };
        for _ in 0..writer.random.below(300) {
            writer.step();
            if writer.random.one_in(15) {
                let bytes = 1 + writer.random.index(20_000);
                read(&mut reader, bytes);
            }
        }
        while reader.position().next_index < reader.written() {
            read(&mut reader, 5000);
        }
        drop(reader);
        writer.engine.close().expect("close");
        let end = parts
            .last()
            .map_or(begin.next_index, |part| part.next_index);
        let mut moments = vec![begin.next_index, end];
        for _ in 0..2 {
            moments.push(begin.next_index + writer.random.below(end - begin.next_index + 1));
        }
        for (number, until) in moments.into_iter().enumerate() {
            let target = path(&format!("restored-{number}"));
            copy_folder(&path("base"), &target);
            let mut given = parts.iter().cloned().map(Ok);
            let reached = complete_restore(&target, format, begin, &mut given, Some(until));
            let what = format!("seed {seed}, batch {until}");
            assert_eq!(reached.expect("restored").next_index, until, "{what}");
            compare(&target, &writer.states[&until], &what);
        }
    }
}

#[test]
fn writers_do_not_wait_for_a_reader() {
    let scratch = Scratch::new("backup-gap");
    let engine = LsmEngine::open(scratch.path().join("db"), LsmOptions::tiny()).expect("open");
    let id = engine.create_keyspace("k", TOGETHER).expect("create");
    let source = engine.backup_source().expect("a directory");
    let (files, mut reader) = source.follow().expect("followed");
    assert!(
        matches!(source.follow(), Err(Error::Unsupported { .. })),
        "one at a time"
    );
    drop(files);
    let mut number = 0u32;
    let mut write = |bytes: usize| {
        for _ in 0..bytes / 1000 {
            number += 1;
            put(&engine, id, &number.to_be_bytes(), &[7; 1000]);
        }
        engine.settle().expect("settle");
    };
    write(100_000);
    let mut batches = 0;
    while let Some(part) = reader.read(1000).expect("the log is kept for its reader") {
        batches += part.next_index - part.begin.next_index;
    }
    assert_eq!(batches, 100);
    write(1_000_000);
    let lost = loop {
        match reader.read(1000) {
            Ok(Some(_)) => {}
            other => break other.err(),
        }
    };
    assert!(matches!(lost, Some(Error::Corruption { .. })), "{lost:?}");
    drop(reader);
    let (_files, mut reader) = source.follow().expect("it begins again");
    assert_eq!(reader.read(1000).expect("readable"), None);
    write(1000);
    assert!(reader.read(1000).expect("readable").is_some());
    engine.close().expect("close");
    assert!(matches!(reader.read(1000), Err(Error::Closed)));
    assert!(matches!(source.files(), Err(Error::Closed)));
}

#[test]
fn links_of_a_backup_that_was_killed_go_with_the_next_opening() {
    let scratch = Scratch::new("backup-rest");
    let path = |name: &str| scratch.path().join(name);
    let engine = LsmEngine::open(path("db"), LsmOptions::tiny()).expect("open");
    let id = engine.create_keyspace("k", TOGETHER).expect("create");
    put(&engine, id, b"a", b"1");
    let folder = path("db").join("backup");
    let source = engine.backup_source().expect("a directory");
    drop(source.files().expect("linked"));
    assert_eq!(std::fs::read_dir(&folder).expect("a folder").count(), 0);
    std::mem::forget(source.files().expect("linked"));
    engine.close().expect("close");
    assert_eq!(std::fs::read_dir(&folder).expect("a folder").count(), 1);
    copy_database(&path("db"), &path("copy"), &mut |_, _| {}).expect("copied");
    assert!(!path("copy").join("backup").exists());
    LsmEngine::open(path("db"), LsmOptions::tiny()).expect("open");
    assert!(!folder.exists());
}

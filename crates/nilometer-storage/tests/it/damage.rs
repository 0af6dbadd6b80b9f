//! Damage is refused, reported or harmless, never served as data.
//!
//! A database with batches in tables, in files of values and in the log is copied, and one file of the copy is damaged.
//! The copy must then show everything, or an error, or (only with a reported cut of the log) a whole prefix.

use std::fs;
use std::path::{Path, PathBuf};

use nilometer_storage::testing::contract::{APART, TOGETHER};
use nilometer_storage::testing::random::Random;
use nilometer_storage::{
    Direction, Durability, Engine, Error, KeyspaceId, LsmEngine, LsmOptions, SalvageEngine,
    WriteBatch,
};

use crate::support::{Scratch, effort};

pub(crate) const BATCHES: u64 = 260;

pub(crate) fn options() -> LsmOptions {
    LsmOptions {
        memtable_bytes: 1 << 20,
        memory_bytes_max: 4 << 20,
        log_bytes_max: 4 << 20,
        segment_bytes: 48 * 1024,
        ..LsmOptions::tiny()
    }
}

pub(crate) fn value(number: u64, id: KeyspaceId) -> Vec<u8> {
    let mut random = Random::new(number << 8 ^ id.0);
    let length = 20 + random.index(500);
    random.bytes(length)
}

/// Builds the database and copies it as a crash would leave it, some time after the last commit.
pub(crate) fn build(path: &Path) -> [KeyspaceId; 2] {
    let running = path.join("running");
    let engine = LsmEngine::open(&running, options()).expect("open");
    let ids = [
        engine.create_keyspace("t", TOGETHER).expect("create"),
        engine.create_keyspace("a", APART).expect("create"),
    ];
    for number in 0..BATCHES {
        let mut batch = WriteBatch::new();
        for id in ids {
            batch.put(id, number.to_be_bytes().to_vec(), value(number, id));
            batch.put(id, b"newest".to_vec(), number.to_be_bytes().to_vec());
        }
        engine.commit(batch, Durability::Sync).expect("commit");
        if number == 60 || number == 120 {
            engine.settle().expect("settle");
        }
    }
    std::thread::sleep(std::time::Duration::from_millis(200));
    copy(&running, &path.join("image"));
    ids
}

pub(crate) fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory");
    for entry in fs::read_dir(from).expect("list") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_owned();
        if path.is_dir() {
            copy(&path, &to.join(name));
        } else if name != "LOCK" && !name.to_string_lossy().starts_with("spare") {
            fs::copy(&path, to.join(name)).expect("copy");
        }
    }
}

pub(crate) fn files(of: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(of).expect("list") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Damages one file. Returns a description.
pub(crate) fn damage(file: &Path, random: &mut Random) -> String {
    let mut bytes = fs::read(file).expect("read");
    if bytes.is_empty() {
        return "nothing".to_owned();
    }
    // Most of a log file is unused, so damage the used part.
    let used = bytes
        .iter()
        .rposition(|byte| *byte != 0)
        .map_or(1, |last| last + 1);
    let at = random.index(used);
    let what = match random.below(10) {
        0..=4 => {
            let bit = random.below(8);
            bytes[at] ^= 1 << bit;
            format!("bit {bit} of byte {at} flipped")
        }
        5 => {
            bytes.truncate(at);
            format!("cut to {at} bytes")
        }
        6 => {
            let (start, end) = (at / 4096 * 4096, (at / 4096 * 4096 + 4096).min(bytes.len()));
            bytes[start..end].fill(0);
            format!("zeros from {start} to {end}")
        }
        7 => {
            let end = bytes.len().min(at + 1 + random.index(100));
            let garbage = random.bytes(end - at);
            bytes[at..end].copy_from_slice(&garbage);
            format!("garbage from {at} to {end}")
        }
        8 => {
            bytes[at..].fill(0);
            format!("zeros from {at} to the end")
        }
        _ => {
            fs::remove_file(file).expect("remove");
            return "removed".to_owned();
        }
    };
    fs::write(file, bytes).expect("write");
    what
}

#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Refused,
    Reported,
    Cut(u64),
    Intact,
}

fn judge(path: &Path, ids: [KeyspaceId; 2]) -> Outcome {
    let engine = match LsmEngine::open(path, options()) {
        Ok(engine) => engine,
        Err(
            Error::Corruption { .. }
            | Error::ForeignDirectory { .. }
            | Error::UnsupportedFormat { .. },
        ) => return Outcome::Refused,
        Err(error) => panic!("an error that names no damage: {error}"),
    };
    let mut counts = Vec::new();
    let mut reported = false;
    for id in ids {
        match read(&engine, id) {
            Ok(count) => counts.push(count),
            Err(Error::UnknownKeyspace { .. }) => panic!("a keyspace is gone"),
            Err(_) => reported = true,
        }
    }
    // A scrub finds all damage that reads find, and more.
    let scrubbed = engine.verify();
    assert!(!reported || scrubbed.is_err(), "the scrub saw nothing");
    if reported {
        return Outcome::Reported;
    }
    assert_eq!(counts[0], counts[1], "half a batch");
    if counts[0] == BATCHES {
        return if scrubbed.is_err() {
            Outcome::Reported
        } else {
            Outcome::Intact
        };
    }
    assert!(
        engine.recovery().cut.is_some(),
        "{} batches, silently",
        counts[0]
    );
    Outcome::Cut(BATCHES - counts[0])
}

/// Returns the number of batches in a keyspace. They must be the first ones, with the right values.
fn read(engine: &LsmEngine, id: KeyspaceId) -> Result<u64, Error> {
    let view = engine.snapshot()?;
    let mut count = 0u64;
    let mut newest = None;
    for entry in view.scan(id, &[], None, Direction::Forward)? {
        let (key, found) = entry?;
        if key[..] == *b"newest" {
            newest = Some(found.to_vec());
            continue;
        }
        assert_eq!(key[..], count.to_be_bytes(), "a wrong key");
        assert_eq!(found[..], value(count, id), "a wrong value");
        count += 1;
    }
    let expected = count.checked_sub(1).map(|last| last.to_be_bytes().to_vec());
    assert_eq!(newest, expected, "a stale value");
    for number in 0..count {
        let found = view.get(id, &number.to_be_bytes())?;
        assert_eq!(found.as_deref(), Some(&value(number, id)[..]));
    }
    Ok(count)
}

#[test]
fn damage_is_never_served_as_data() {
    let directory = Scratch::new("damage");
    let ids = build(directory.path());
    let image = directory.path().join("image");
    assert_eq!(
        judge_copy(&directory, &image, ids, |_| String::new()),
        Outcome::Intact
    );
    let names = files(&image);
    let mut random = Random::new(11);
    let rounds = effort(4, 24, 200);
    let mut counts = [0u64; 4];
    for name in &names {
        let name = name.strip_prefix(&image).expect("below the image");
        // The log and the tables hold most of the bytes.
        for _ in 0..rounds {
            let outcome = judge_copy(&directory, &image, ids, |copy| {
                format!(
                    "{}: {}",
                    name.display(),
                    damage(&copy.join(name), &mut random)
                )
            });
            counts[match outcome {
                Outcome::Refused => 0,
                Outcome::Reported => 1,
                Outcome::Cut(_) => 2,
                Outcome::Intact => 3,
            }] += 1;
        }
    }
    let [refused, reported, cut, intact] = counts;
    eprintln!(
        "{} files: {refused} refused, {reported} reported, {cut} cut and reported, {intact} intact",
        names.len()
    );
    assert!(refused > 0 && reported > 0);
}

/// Judges a damaged copy. A panic describes the damage.
fn judge_copy(
    directory: &Scratch,
    image: &Path,
    ids: [KeyspaceId; 2],
    damage: impl FnOnce(&Path) -> String,
) -> Outcome {
    let target = directory.path().join("copy");
    let _ = fs::remove_dir_all(&target);
    copy(image, &target);
    let what = damage(&target);
    let judged = std::panic::catch_unwind(|| judge(&target, ids));
    judged.unwrap_or_else(|_| panic!("wrong after: {what}"))
}

#[test]
fn one_flipped_bit_in_the_log_is_refused_once_the_log_is_idle() {
    let directory = Scratch::new("idle");
    let ids = build(directory.path());
    let image = directory.path().join("image");
    let mut segments = files(&image.join("wal"));
    let last = segments.pop().expect("a segment");
    let name = last.strip_prefix(&image).expect("below").to_owned();
    let bytes = fs::read(&last).expect("read");
    let used = bytes.iter().rposition(|byte| *byte != 0).expect("used") + 1;
    let mut random = Random::new(3);
    for _ in 0..effort(6, 36, 500) {
        let outcome = judge_copy(&directory, &image, ids, |copy| {
            // Before the end mark, which proves the damage.
            let at = random.index(used - 64);
            let mut bytes = bytes.clone();
            bytes[at] ^= 1 << random.below(8);
            fs::write(copy.join(&name), bytes).expect("write");
            format!("byte {at} of {used}")
        });
        assert!(
            matches!(outcome, Outcome::Refused | Outcome::Intact),
            "{outcome:?}"
        );
    }
}

#[test]
fn a_log_file_missing_at_either_end_is_refused_and_salvage_goes_on() {
    let directory = Scratch::new("missing");
    let ids = build(directory.path());
    let image = directory.path().join("image");
    let log = files(&image.join("wal"));
    let segments = log.iter().filter(|file| file.extension().is_some());
    let segments: Vec<&PathBuf> = segments.collect();
    assert!(segments.len() > 2, "the log has two ends");
    let (oldest, newest) = (segments[0], segments[segments.len() - 1]);
    let list = &image.join("wal/SEGMENTS");
    let all = segments.clone();
    let cases = [vec![newest], vec![oldest], vec![list], all];
    for gone in cases {
        let target = directory.path().join("copy");
        let _ = fs::remove_dir_all(&target);
        copy(&image, &target);
        for file in &gone {
            fs::remove_file(target.join(file.strip_prefix(&image).expect("below")))
                .expect("remove");
        }
        let error = LsmEngine::open(&target, options()).err();
        let error = error.unwrap_or_else(|| panic!("opens without {gone:?}"));
        let named = if gone.len() > 1 { newest } else { gone[0] };
        let name = named.file_name().and_then(|name| name.to_str());
        assert!(matches!(error, Error::Corruption { .. }), "{error:?}");
        assert!(error.to_string().contains(name.expect("a name")), "{error}");
        // Refusing changes nothing.
        assert!(LsmEngine::open(&target, options()).is_err());
        let salvaged = SalvageEngine::open(&target, options()).expect("salvage continues");
        assert!(!salvaged.losses().is_empty());
        let view = salvaged.snapshot().expect("snapshot");
        for id in ids {
            let scan = view.scan(id, &[], None, Direction::Forward).expect("scan");
            let kept = scan.filter(|entry| entry.is_ok()).count() as u64;
            assert!(kept > 120, "what is in tables is kept: {kept}");
            assert!(gone != [list] || kept == BATCHES + 1, "{kept}");
        }
        drop((view, salvaged));
        let engine = LsmEngine::open(&target, options()).expect("a salvaged copy is whole");
        engine.verify().expect("nothing is damaged");
    }
}

/// Writes batches, the last of them of `last` entries, and copies the files as a kill right after it leaves them.
fn kill_after_last(path: &Path, last: u64) -> KeyspaceId {
    let running = path.join("running");
    let engine = LsmEngine::open(&running, LsmOptions::default()).expect("open");
    let id = engine.create_keyspace("t", TOGETHER).expect("create");
    for (first, count) in [(0, 1), (1, 1), (2, last)] {
        let mut batch = WriteBatch::new();
        for number in first..first + count {
            batch.put(id, number.to_be_bytes().to_vec(), vec![number as u8; 100]);
        }
        engine.commit(batch, Durability::Sync).expect("commit");
    }
    let image = path.join("image");
    let _ = fs::remove_dir_all(&image);
    copy(&running, &image);
    drop(engine);
    fs::remove_dir_all(&running).expect("remove");
    id
}

#[test]
fn a_flipped_byte_in_the_last_record_is_reported_also_by_later_openings() {
    let directory = Scratch::new("last");
    let image = directory.path().join("image");
    // What the keeper writes when the log is idle proves the damage, and a slow machine may give it the time.
    let mut attempts = 0..20;
    for (flip, header_is_whole) in [(48 + 60, true), (20, false)] {
        let (path, offset) = loop {
            attempts.next().expect("a kill right after a commit");
            kill_after_last(directory.path(), 500);
            let path = image.join("wal").join(format!("{:020}.log", 1));
            let mut bytes = fs::read(&path).expect("read");
            let second = crate::salvage::next_record(&bytes, 64);
            let third = crate::salvage::next_record(&bytes, second);
            bytes[third + flip] ^= 1;
            fs::write(&path, bytes).expect("write");
            match LsmEngine::open(&image, LsmOptions::default()) {
                Err(Error::Corruption { .. }) => {}
                other => {
                    let engine = other.expect("open");
                    let cut = engine.recovery().cut.clone().expect("a cut");
                    assert!(cut.may_be_acknowledged() && cut.write_is_complete);
                    assert_eq!(cut.header_is_whole, header_is_whole);
                    assert!(cut.bytes > 500 * 100 && cut.segment == path, "{cut:?}");
                    assert!(cut.to_string().contains("may have been acknowledged"));
                    break (path, third as u64);
                }
            }
        };
        for _ in 0..2 {
            let engine = LsmEngine::open(&image, LsmOptions::default()).expect("open");
            let recovery = engine.recovery();
            assert_eq!(recovery.cut, None);
            let [cut] = &recovery.earlier_cuts[..] else {
                panic!("{recovery:?}");
            };
            assert!(cut.segment == path && cut.offset == offset && cut.write_is_complete);
        }
    }
}

#[test]
fn a_write_torn_before_its_end_was_never_acknowledged() {
    let directory = Scratch::new("torn");
    let image = directory.path().join("image");
    // The kill comes at `kept` bytes of the last write: none of its header, its header, some of its payload.
    for (kept, header_is_whole) in [(0, false), (47, false), (48, true), (5000, true)] {
        kill_after_last(directory.path(), 500);
        let path = image.join("wal").join(format!("{:020}.log", 1));
        let mut bytes = fs::read(&path).expect("read");
        let second = crate::salvage::next_record(&bytes, 64);
        let third = crate::salvage::next_record(&bytes, second);
        bytes[third + kept..].fill(0);
        fs::write(&path, bytes).expect("write");
        let engine = LsmEngine::open(&image, LsmOptions::default()).expect("open");
        let cut = engine.recovery().cut.clone().expect("a cut");
        assert!(!cut.write_is_complete, "{cut:?}");
        assert_eq!(cut.may_be_acknowledged(), header_is_whole, "{cut:?}");
    }
}

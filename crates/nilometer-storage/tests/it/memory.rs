//! An engine counts all memory it keeps.

use nilometer_storage::testing::contract::{SHORT_LIVED, TOGETHER};
use nilometer_storage::{Durability, Engine, LsmEngine, LsmOptions, WriteBatch};

use crate::support::Scratch;

const MIB: u64 = 1 << 20;

/// Bytes of a value that is flushed soon.
const LARGE: usize = 64 << 10;

/// Allowance for other tests of this process and for the allocator.
const SLACK: u64 = 64 * MIB;

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("a status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|text| text.split_whitespace().next());
    kib.expect("a figure").parse::<u64>().expect("a number") << 10
}

/// A batch puts a large value, a small entry, and a short-lived entry. The large value is flushed long before the
/// others, which must not keep it in memory.
#[test]
#[ignore = "measures the memory of its process; the test below runs it in one of its own"]
fn batches_with_large_and_small_entries() {
    let directory = Scratch::new("memory");
    let options = LsmOptions {
        memtable_bytes: 4 * MIB,
        memory_bytes_max: 32 * MIB,
        block_cache_bytes: MIB,
        ..LsmOptions::default()
    };
    let engine = LsmEngine::open(directory.path(), options).expect("open");
    let documents = engine.create_keyspace("d", TOGETHER).expect("create");
    let index = engine.create_keyspace("i", TOGETHER).expect("create");
    let soon_gone = engine.create_keyspace("s", SHORT_LIVED).expect("create");
    let before = resident_bytes();
    for number in 0u64..3200 {
        let key = number.to_be_bytes();
        let long_key = [&key[..], &[7; 40]].concat();
        let mut batch = WriteBatch::new();
        batch.put(documents, key.to_vec(), vec![number as u8; LARGE]);
        batch.put(index, long_key.clone(), Vec::new());
        batch.put(soon_gone, long_key, vec![1; 40]);
        engine.commit(batch, Durability::Buffered).expect("commit");
    }
    let counted = engine.statistics().memory_bytes;
    assert!(counted <= 32 * MIB, "{counted}");
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown <= 32 * MIB + SLACK, "{} MiB", grown / MIB);
}

#[test]
fn small_entries_keep_no_large_ones_of_their_batch() {
    let alone = [
        "--exact",
        "memory::batches_with_large_and_small_entries",
        "--ignored",
    ];
    let program = std::env::current_exe().expect("a program");
    let output = std::process::Command::new(program).args(alone).output();
    let output = output.expect("it runs");
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && told.contains("1 passed"),
        "{told}"
    );
}

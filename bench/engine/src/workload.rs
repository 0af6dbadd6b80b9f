//! The measured workloads, for any store.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::store::{KEYSPACES, Put, Store};

const KEY_BYTES: usize = 24;
const VALUE_BYTES: usize = 120;
const BUCKET_BYTES: usize = 6000;
const INDEX_PUTS: usize = 20;
const INDEX_KEY_BYTES: usize = 32;
const INDEX_VALUE_BYTES: usize = 8;
const BUCKETS_IN_A_BATCH: u64 = 8;
const BUCKET_THREADS: u64 = 4;

/// Commits per second, and their latencies.
pub(crate) struct Figure {
    pub(crate) rate: f64,
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
}

/// SplitMix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns random bytes: `entropy` of every 16, the others zero.
    fn bytes(&mut self, length: usize, entropy: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(length + 16);
        while bytes.len() < length {
            let mut block = [0; 16];
            block[..8].copy_from_slice(&self.bits().to_le_bytes());
            block[8..].copy_from_slice(&self.bits().to_le_bytes());
            block[entropy..].fill(0);
            bytes.extend(block);
        }
        bytes.truncate(length);
        bytes
    }

    /// Returns a batch of small records, spread over the ordinary keyspaces.
    pub(crate) fn records(&mut self, count: usize) -> Vec<Put> {
        let puts = (0..count).map(|number| {
            let keyspace = number * KEYSPACES / count;
            let key = self.bytes(KEY_BYTES, 16);
            (keyspace, key, self.bytes(VALUE_BYTES, 8))
        });
        puts.collect()
    }
}

/// Commits batches of small records for `time`.
pub(crate) fn records(store: &dyn Store, threads: u64, count: usize, time: Duration) -> Figure {
    let start = Instant::now();
    let mut latencies = std::thread::scope(|scope| {
        let workers = (0..threads).map(|thread| {
            scope.spawn(move || {
                let mut random = Random(thread << 32);
                let mut latencies = Vec::new();
                while start.elapsed() < time {
                    let puts = random.records(count);
                    let begun = Instant::now();
                    store.commit(puts);
                    latencies.push(begun.elapsed());
                }
                latencies
            })
        });
        let workers = workers.collect::<Vec<_>>();
        let joined = workers.into_iter().map(|worker| worker.join());
        joined
            .flat_map(|latencies| latencies.expect("a worker"))
            .collect::<Vec<_>>()
    });
    let elapsed = start.elapsed();
    latencies.sort_unstable();
    let at = |share: usize| latencies[latencies.len() * share / 100];
    Figure {
        rate: latencies.len() as f64 / elapsed.as_secs_f64(),
        p50: at(50),
        p99: at(99),
    }
}

/// The write amplification of buckets.
pub(crate) struct BucketReport {
    pub(crate) rate: f64,
    /// Bytes written per byte of keys and values, up to the last commit.
    pub(crate) written: f64,
    /// Bytes written per byte of keys and values, after everything was flushed and merged.
    pub(crate) settled: f64,
}

/// Commits large values with twenty index entries each.
pub(crate) fn buckets(store: &dyn Store, total: u64) -> BucketReport {
    let before = written_bytes();
    let start = Instant::now();
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..BUCKET_THREADS {
            let next = &next;
            scope.spawn(move || {
                let mut random = Random(thread << 40);
                while next.fetch_add(BUCKETS_IN_A_BATCH, Ordering::Relaxed) < total {
                    store.commit(bucket_batch(&mut random, thread));
                }
            });
        }
    });
    let elapsed = start.elapsed();
    let puts = INDEX_PUTS * (INDEX_KEY_BYTES + INDEX_VALUE_BYTES);
    let user = total as f64 * (BUCKET_BYTES + KEY_BYTES + puts) as f64;
    let written = (written_bytes() - before) as f64 / user;
    store.settle();
    BucketReport {
        rate: total as f64 / elapsed.as_secs_f64(),
        written,
        settled: (written_bytes() - before) as f64 / user,
    }
}

fn bucket_batch(random: &mut Random, thread: u64) -> Vec<Put> {
    let mut puts = Vec::new();
    for _ in 0..BUCKETS_IN_A_BATCH {
        let key = random.bytes(KEY_BYTES, 16);
        puts.push((KEYSPACES, key, random.bytes(BUCKET_BYTES, 16)));
        for _ in 0..INDEX_PUTS {
            let keyspace = thread as usize % KEYSPACES;
            let key = random.bytes(INDEX_KEY_BYTES, 12);
            puts.push((keyspace, key, random.bytes(INDEX_VALUE_BYTES, 8)));
        }
    }
    puts
}

/// Returns the bytes written by this process.
fn written_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("wchar: "));
    line.and_then(|text| text.parse().ok()).unwrap_or(0)
}

//! The results of a pattern.

use std::time::Duration;

use nilometer_bson::doc;

use super::Sender;
use crate::options::Options;
use crate::target::{Connection, Outcome, drain, run as call};

/// The results of one pattern.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    pub(crate) rows: usize,
    pub(crate) bson_bytes: u64,
    /// Rows and time of the first half and the second.
    pub(crate) rounds: Vec<(usize, Duration)>,
    pub(crate) catalog_memory: Option<i64>,
    pub(crate) resident_bytes: Option<u64>,
    pub(crate) amplification: Option<Amplification>,
    /// Batches acknowledged, and syncs of the log meanwhile.
    pub(crate) syncs: Option<(i64, i64)>,
    /// Further lines.
    pub(crate) notes: Vec<(&'static str, String)>,
}

/// Bytes written to disk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Amplification {
    pub(crate) written: u64,
    /// Bytes if each commit had rewritten the document of its bucket.
    pub(crate) rewriting: f64,
}

impl Figures {
    pub(crate) fn add_round(&mut self, sent: &Sender<'_>) {
        self.rows += sent.rows;
        self.bson_bytes += sent.bytes;
        self.rounds.push((sent.rows, sent.waiting));
    }

    /// Prints the table of a pattern.
    pub(crate) fn print(&self, name: &str) {
        println!("| {name} | figure |\n|---|---:|");
        println!("| measurements | {} |", self.rows);
        let bson_bytes = self.bson_bytes as f64;
        println!(
            "| bytes of BSON for one | {:.0} |",
            bson_bytes / self.rows.max(1) as f64
        );
        for ((rows, waiting), which) in self.rounds.iter().zip(["first half", "second half"]) {
            let rate = *rows as f64 / waiting.as_secs_f64();
            println!("| {which}, a second while waiting | {rate:.0} |");
        }
        if let Some(bytes) = self.catalog_memory {
            println!(
                "| memory of the bucket catalog, MB | {:.1} |",
                bytes as f64 / 1e6
            );
        }
        if let Some(bytes) = self.resident_bytes {
            println!(
                "| resident, documents of the generator included, MB | {:.0} |",
                bytes as f64 / 1e6
            );
        }
        if let Some((batches, syncs)) = self.syncs {
            let each = batches as f64 / syncs.max(1) as f64;
            println!("| commits for one sync of the log | {each:.1} |");
        }
        if let Some(amplification) = self.amplification {
            let each = amplification.written as f64 / bson_bytes;
            println!("| bytes written to disk for a byte of BSON | {each:.3} |");
            let rewriting = amplification.rewriting / bson_bytes;
            println!("| rewriting the bucket at each commit (derived) | {rewriting:.3} |");
        }
        for (what, figure) in &self.notes {
            println!("| {what} | {figure} |");
        }
        println!();
    }
}

/// Returns the bytes that this process has passed to write calls. (The kernel's count of bytes sent to disk is too high
/// where the page cache uses large folios.)
pub(crate) fn written_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("wchar: "));
    line.and_then(|bytes| bytes.parse().ok()).unwrap_or(0)
}

/// Returns the resident memory of this process.
pub(crate) fn resident_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse().ok()?;
    Some(kilobytes * 1024)
}

/// Returns the bytes that rewriting each bucket's document at each commit would have written, estimated from the
/// buckets: a bucket with `c` commits grows evenly from the size of one measurement to its final size.
pub(crate) fn rewriting_bytes(connection: &mut dyn Connection, options: &Options) -> Outcome<f64> {
    let stats = doc! { "collStats": &options.collection, "$db": &options.database };
    let stats = call(connection, &stats, None)?;
    let timeseries = stats.get("timeseries").as_document();
    let figure = |name| {
        timeseries
            .and_then(|t| t.get(name).as_exact_i64())
            .unwrap_or(0) as f64
    };
    let (buckets, commits) = (figure("bucketCount"), figure("numCommits"));
    if buckets == 0.0 {
        return Ok(0.0);
    }
    let group = doc! {
        "_id": null(),
        "bytes": doc! { "$avg": doc! { "$bsonSize": "$$ROOT" } },
        "rows": doc! { "$avg": "$control.count" },
    };
    let pipeline = nilometer_bson::array![doc! { "$limit": 20_000 }, doc! { "$group": group }];
    let aggregate = doc! {
        "aggregate": format!("system.buckets.{}", options.collection),
        "pipeline": pipeline,
        "cursor": doc! {},
        "$db": &options.database,
    };
    let batches = drain(connection, &aggregate, options)?;
    let found = batches.iter().flat_map(|b| b.documents()).next();
    let average = |name| {
        let value = found.and_then(|f| match f.get(name) {
            nilometer_bson::ValueRef::Double(value) => Some(value),
            other => other.as_exact_i64().map(|v| v as f64),
        });
        value.unwrap_or(0.0)
    };
    let (bytes, rows) = (average("bytes"), average("rows"));
    // Header, bounds and one value of each field: the size of a bucket of this set with one row.
    const FIRST_BYTES: f64 = 1_100.0;
    let per_row = ((bytes - FIRST_BYTES) / (rows - 1.0).max(1.0)).max(0.0);
    let (commits_each, rows_each) = (commits / buckets, rows / (commits / buckets));
    let sum_of_rows = rows_each * commits_each * (commits_each + 1.0) / 2.0;
    Ok(buckets * (commits_each * FIRST_BYTES + per_row * sum_of_rows))
}

fn null() -> nilometer_bson::Value {
    nilometer_bson::Value::Null
}

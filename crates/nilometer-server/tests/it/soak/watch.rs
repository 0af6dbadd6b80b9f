//! Resources of a server during a soak: memory, file descriptors, and the files in its directory.
//!
//! Memory fluctuates: memtables fill and are flushed, queries start and end. A leak raises the floor, the level below
//! which a quarter of the samples are. Memory is flat if the floor of the last third of a watch is about that of the
//! middle third; in the first third the caches, which are small, fill. No sample may exceed the memory limit of the
//! server.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nilometer::database::offline;

/// Interval between samples.
const EVERY: Duration = Duration::from_millis(250);

/// Minimum length of a watch for statements about memory: memtables must be flushed several times in each third.
const WATCH_MIN: Duration = Duration::from_secs(5 * 60);

/// Tolerated growth from one third to the next.
const GROWTH_MAX: f64 = 0.05;
const GROWTH_BYTES_MAX: f64 = 8.0 * MIB;

/// One in this many samples is below the floor.
const FLOOR: usize = 4;

const MIB: f64 = 1024.0 * 1024.0;

/// Time until descriptors of removed files must be closed.
const PATIENCE: Duration = Duration::from_secs(20);

/// Maximum segments of the log and spares: 384 MiB of 64, and those in preparation.
const LOG_FILES_MAX: usize = 10;

/// A watched server.
pub(super) struct Watch {
    process: u32,
    data: PathBuf,
    /// Descriptors that are not files, before clients connected.
    others: Vec<String>,
    /// Samples: seconds and bytes of memory.
    samples: Vec<(f64, f64)>,
}

impl Watch {
    pub(super) fn new(process: u32, data: &Path) -> Self {
        let mut watch = Self {
            process,
            data: data.canonicalize().expect("a directory"),
            others: Vec::new(),
            samples: Vec::new(),
        };
        watch.others = watch.others_settled(0);
        watch
    }

    /// Samples memory until `time` has passed.
    pub(super) fn for_so_long(mut self, time: Duration) -> Self {
        let began = Instant::now();
        while began.elapsed() < time {
            self.samples
                .push((began.elapsed().as_secs_f64(), self.resident()));
            std::thread::sleep(EVERY.min(time));
        }
        self
    }

    fn resident(&self) -> f64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process));
        let status = status.expect("a running server");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line
            .and_then(|text| text.split_whitespace().next())
            .expect("a figure");
        kib.parse::<f64>().expect("a number") * 1024.0
    }

    fn third(&self, number: usize) -> &[(f64, f64)] {
        let length = self.samples.len();
        &self.samples[length * number / 3..length * (number + 1) / 3]
    }

    fn peak(&self, third: usize) -> f64 {
        self.third(third)
            .iter()
            .map(|(_, bytes)| *bytes)
            .fold(0.0, f64::max)
    }

    /// Returns the growth over the last two thirds in bytes per hour, by least squares.
    fn slope(&self) -> f64 {
        let samples = &self.samples[self.samples.len() / 3..];
        let n = samples.len() as f64;
        let mean = |f: fn(&(f64, f64)) -> f64| samples.iter().map(f).sum::<f64>() / n;
        let (x, y) = (mean(|s| s.0), mean(|s| s.1));
        let xy: f64 = samples.iter().map(|s| (s.0 - x) * (s.1 - y)).sum();
        let xx: f64 = samples.iter().map(|s| (s.0 - x).powi(2)).sum();
        3600.0 * xy / xx.max(f64::MIN_POSITIVE)
    }

    /// Returns the floor of memory in a third.
    fn floor(&self, third: usize) -> f64 {
        let mut bytes: Vec<f64> = self.third(third).iter().map(|(_, bytes)| *bytes).collect();
        bytes.sort_by(f64::total_cmp);
        bytes.get(bytes.len() / FLOOR).copied().unwrap_or_default()
    }

    /// True if memory stayed below `bytes_max` and did not grow, or the watch was too short.
    pub(super) fn is_flat(&self, bytes_max: u64) -> bool {
        let peak = (0..3).map(|third| self.peak(third)).fold(0.0, f64::max);
        let seconds = self.samples.last().map_or(0.0, |(seconds, _)| *seconds);
        let too_short = seconds + 1.0 < WATCH_MIN.as_secs_f64();
        let grows = self.floor(2) > self.floor(1) * (1.0 + GROWTH_MAX) + GROWTH_BYTES_MAX;
        peak <= bytes_max as f64 && (too_short || !grows)
    }

    /// Formats the results in one line.
    pub(super) fn memory(&self) -> String {
        let mut line = "memory, MiB, floor and peak of each third:".to_owned();
        for third in 0..3 {
            let (floor, peak) = (self.floor(third) / MIB, self.peak(third) / MIB);
            let _ = write!(line, " {floor:.0}-{peak:.0}");
        }
        let first = self.samples.first().map_or(0.0, |s| s.1 / MIB);
        let last = self.samples.last().map_or(0.0, |s| s.1 / MIB);
        let hour = self.slope() / MIB;
        let _ = write!(
            line,
            "; first {first:.0}, last {last:.0}, slope after the first third {hour:+.0} an hour, over {:.0} s",
            self.samples.last().map_or(0.0, |s| s.0)
        );
        line
    }

    /// Returns the targets of the server's descriptors.
    fn descriptors(&self) -> Vec<String> {
        let folder = format!("/proc/{}/fd", self.process);
        let entries = std::fs::read_dir(folder).expect("a running server");
        let targets = entries.filter_map(|e| std::fs::read_link(e.ok()?.path()).ok());
        targets.map(|target| target.display().to_string()).collect()
    }

    /// Returns the kinds of descriptors outside the data directory, once there are at most `wanted`. Waits for
    /// connections to end and removed files to be closed.
    fn others_settled(&self, wanted: usize) -> Vec<String> {
        let data = self.data.display().to_string();
        let end =
            Instant::now() + PATIENCE.min(Duration::from_secs(if wanted == 0 { 1 } else { 20 }));
        loop {
            let all = self.descriptors().into_iter();
            let is_file =
                |target: &String| target.starts_with(&data) && !target.ends_with(" (deleted)");
            let mut others: Vec<String> = all.filter(|target| !is_file(target)).collect();
            others.sort();
            if others.len() <= wanted || Instant::now() > end {
                return others;
            }
            std::thread::sleep(EVERY);
        }
    }

    /// Checks that after clients have disconnected there are no more descriptors than before, except for existing
    /// files.
    pub(super) fn check_descriptors(&self) {
        let now = self.others_settled(self.others.len());
        assert!(
            now.len() <= self.others.len(),
            "before: {:?}, now: {now:?}",
            self.others
        );
    }
}

/// Checks that every file of a closed directory has a purpose. Returns a summary.
pub(super) fn check_files(data: &Path) -> String {
    let list = offline::describe_file(&data.join("TREES")).expect("a list");
    let trees = list.iter().skip(1).map(|line| {
        let id = line.split_whitespace().next().expect("an id");
        data.join("trees").join(id)
    });
    // The two empty trees open keyspaces without files.
    let empty = ["empty", "empty-separated"].map(|name| data.join("trees").join(name));
    let trees: Vec<PathBuf> = trees.chain(empty).collect();
    let (mut count, mut bytes, mut log) = (0, 0, 0);
    let mut folders = vec![data.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a directory") {
            let entry = entry.expect("an entry");
            let path = entry.path();
            if path.is_dir() {
                let is_tree = folder != data.join("trees") || trees.contains(&path);
                assert!(is_tree, "unknown file {}", path.display());
                folders.push(path);
                continue;
            }
            count += 1;
            bytes += entry.metadata().expect("a file").len();
            if folder == data.join("wal") {
                log += 1;
            }
            check_file(&path, data);
        }
    }
    assert!(log <= LOG_FILES_MAX, "{log} files of the log");
    format!(
        "{count} files with {:.0} MiB, each accounted for",
        bytes as f64 / MIB
    )
}

fn check_file(path: &Path, data: &Path) {
    let name = path
        .file_name()
        .and_then(|name| name.to_str())
        .expect("a name");
    let in_root = path.parent() == Some(data);
    if in_root && ["LOCK", "FORMAT", "TREES"].contains(&name) {
        return;
    }
    // A manifest: the one `current` names.
    if let Some(folder) = path.parent()
        && folder.join("current").exists()
        && name.starts_with('v')
    {
        let told = offline::describe_file(&folder.join("current")).expect("a manifest");
        assert!(
            told[0].ends_with(&path.display().to_string()),
            "{}: {told:?}",
            path.display()
        );
        return;
    }
    let told = offline::describe_file(path).unwrap_or_else(|e| panic!("{}: {e:?}", path.display()));
    let orphaned = told
        .iter()
        .any(|line| line.contains("orphaned") || line.contains("DAMAGED"));
    assert!(!orphaned, "{}: {told:?}", path.display());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a watch of 15 minutes: `steady` bytes after a number of seconds, a memtable that fills in 70 s and is
    /// flushed, and queries.
    fn watch(steady: impl Fn(f64) -> f64) -> Watch {
        let look = |n: u32| {
            let seconds = f64::from(n) / 4.0;
            let memtable = 60.0 * (seconds % 70.0) / 70.0;
            let query = f64::from(n * 7919 % 40);
            (seconds, (steady(seconds) + memtable + query) * MIB)
        };
        Watch {
            process: 0,
            data: PathBuf::new(),
            others: Vec::new(),
            samples: (0..3600).map(look).collect(),
        }
    }

    #[test]
    fn a_cache_that_fills_is_flat_and_a_leak_is_not() {
        let limit = 512 << 20;
        assert!(watch(|_| 100.0).is_flat(limit));
        let fills = |seconds: f64| 60.0 + (seconds / 4.0).min(64.0);
        assert!(watch(fills).is_flat(limit));
        let leaks = |each_minute: f64| move |seconds: f64| 100.0 + each_minute * seconds / 60.0;
        assert!(!watch(leaks(5.0)).is_flat(limit));
        assert!(!watch(leaks(4.0)).is_flat(limit));
        assert!(!watch(|_| 450.0).is_flat(limit), "more than it may have");
    }
}

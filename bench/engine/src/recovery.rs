//! The time of a start after `kill -9`, with the log at its cap and nothing of it flushed.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use nilometer_storage::{Engine, LsmEngine, LsmOptions};

use crate::store::{NilometerStore, Store};
use crate::workload::Random;

/// The argument that runs this program as the process to be killed.
pub(crate) const CHILD: &str = "fill-until-killed";

/// Fills a log up to the default cap without flushing, prints a message, and waits to be killed.
pub(crate) fn child(directory: &Path) {
    let cap = LsmOptions::default().log_bytes_max;
    let options = LsmOptions {
        log_bytes_max: 4 * cap,
        memtable_bytes: 1 << 40,
        memory_bytes_max: 1 << 41,
        ..LsmOptions::default()
    };
    let store = NilometerStore::with(directory, options);
    let mut random = Random(1);
    let mut said = false;
    loop {
        store.commit(random.records(1000));
        if !said && store.engine().statistics().log_bytes > cap {
            println!("full");
            said = true;
            // Commits beyond the cap would stall.
            std::thread::park();
        }
    }
}

/// Fills, kills and opens.
pub(crate) fn measure(directory: &Path) {
    let binary = std::env::current_exe().expect("this program");
    let mut child = Command::new(binary)
        .arg(CHILD)
        .arg(directory)
        .stdout(Stdio::piped())
        .spawn()
        .expect("the child starts");
    let mut line = String::new();
    let output = child.stdout.take().expect("its output");
    let _ = BufReader::new(output).read_line(&mut line);
    child.kill().expect("kill");
    child.wait().expect("wait");
    let (start, cpu) = (Instant::now(), cpu_seconds());
    let engine = LsmEngine::open(directory, LsmOptions::default()).expect("open");
    let opened = start.elapsed();
    let cpu = cpu_seconds() - cpu;
    println!(
        "start after kill -9 with {} MiB of log: {:.2} s, {cpu:.2} s of processor time ({} records of 144 bytes, {} inserted)",
        LsmOptions::default().log_bytes_max >> 20,
        opened.as_secs_f64(),
        engine.recovery().batches * 1000,
        engine.recovery().operations,
    );
}

/// Returns the processor time of this process, in seconds, with a resolution of 10 ms.
fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = text.rsplit(") ").next().unwrap_or_default().split(' ');
    let ticks = fields
        .skip(11)
        .take(2)
        .filter_map(|text| text.parse::<f64>().ok());
    ticks.sum::<f64>() / 100.0
}

//! A campaign: `nilometer-campaign [--inputs N] [--target NAME] [--seed N] [--show]`.
//!
//! With `--inputs` each target gets its share of this many inputs, on as many threads as there are cores. With `--seed`
//! one batch of one target is repeated; `--show` prints its inputs in the format of the corpus. The campaign ends with
//! code 1 if an input panicked, was answered with the code of a bug, took longer than a second twice, or exceeded the
//! memory of the process; an input that never ends is reported and ends the process.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line program talks to its terminal"
)]

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nilometer_campaign::runner::{INPUT_TIME_MAX, Runner, Slot};
use nilometer_campaign::scripts::Seeds;
use nilometer_campaign::{TARGETS, Target};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Default number of inputs.
const INPUTS: u64 = 100_000;

/// Maximum memory of the process.
const MEMORY_BYTES_MAX: u64 = 1 << 30;

/// An input that takes this long is considered endless.
const HANG: Duration = Duration::from_secs(60);

/// Distinct failures reported before a campaign is aborted.
const FAILURES_MAX: usize = 40;

/// Depth of documents is limited; frames of an unoptimised build are large.
const STACK_BYTES: usize = 16 << 20;

/// The options.
struct CampaignOptions {
    inputs: u64,
    target: Option<String>,
    seed: Option<u64>,
    first: u64,
    shows: bool,
}

fn main() -> ExitCode {
    let asked = match asked() {
        Ok(asked) => asked,
        Err(problem) => {
            eprintln!(
                "{problem}\nnilometer-campaign [--inputs N] [--target NAME] [--first SEED] [--seed N [--show]]"
            );
            return ExitCode::from(2);
        }
    };
    let seeds = Seeds::read();
    let is_asked = |target: &&Target| {
        asked
            .target
            .as_deref()
            .is_none_or(|name| name == target.name)
    };
    let targets: Vec<&Target> = TARGETS.iter().filter(is_asked).collect();
    let share: u64 = targets.iter().map(|target| target.share).sum();
    if share == 0 {
        eprintln!("no such target");
        return ExitCode::from(2);
    }
    let began = Instant::now();
    let (mut inputs, mut failures) = (0, 0);
    for target in targets {
        let told = match asked.seed {
            Some(seed) => repeat(target, &seeds, seed, asked.shows),
            None => run(
                target,
                &seeds,
                asked.first,
                asked.inputs * target.share / share,
            ),
        };
        inputs += told.0;
        failures += told.1;
    }
    println!(
        "{inputs} inputs in {} s, peak of memory {} MiB, {failures} failures",
        began.elapsed().as_secs(),
        peak_bytes() >> 20
    );
    ExitCode::from(u8::from(failures > 0))
}

fn asked() -> Result<CampaignOptions, String> {
    let mut asked = CampaignOptions {
        inputs: INPUTS,
        target: None,
        seed: None,
        first: 0,
        shows: false,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        if word == "--show" {
            asked.shows = true;
            continue;
        }
        let value = words.next().ok_or(format!("{word} needs a value"))?;
        let number = || value.parse().map_err(|_| format!("{word} needs a number"));
        match word.as_str() {
            "--inputs" => asked.inputs = number()?,
            "--seed" => asked.seed = Some(number()?),
            "--first" => asked.first = number()?,
            "--target" => asked.target = Some(value),
            other => return Err(format!("unknown argument {other}")),
        }
    }
    Ok(asked)
}

/// Repeats one batch. Returns inputs and failures.
fn repeat(target: &Target, seeds: &Seeds, seed: u64, shows: bool) -> (u64, u64) {
    let mut runner = Runner::new(target.name, seed);
    runner.shows = shows;
    (target.batch)(seeds, seed, &mut runner);
    for failure in &runner.failures {
        println!("FAILED  {failure}");
    }
    for (number, slow) in &runner.slow {
        println!("SLOW  input {number}: {slow}");
    }
    println!("{} seed {seed}: slowest {:?}", target.name, runner.slowest);
    (runner.inputs, runner.failures.len() as u64)
}

/// The state shared by the threads of a target.
struct Campaign<'a> {
    target: &'a Target,
    seeds: &'a Seeds,
    wanted: u64,
    next: AtomicU64,
    inputs: AtomicU64,
    accepted: AtomicU64,
    slowest_us: AtomicU64,
    over: AtomicBool,
    /// Failures by the location of the panic, so that a bug is reported once: count and first message.
    failures: Mutex<BTreeMap<String, (u64, String)>>,
}

impl Campaign<'_> {
    fn fail(&self, told: &str) {
        let key = told.split(": ").nth(1).unwrap_or(told);
        let key: String = key
            .lines()
            .next()
            .unwrap_or_default()
            .chars()
            .take(160)
            .collect();
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = failures.entry(key).or_insert_with(|| (0, told.to_owned()));
        if entry.0 == 0 {
            println!("FAILED  {told}");
        }
        entry.0 += 1;
        if failures.len() >= FAILURES_MAX {
            self.over.store(true, Ordering::Relaxed);
        }
    }

    fn work(&self, slot: &Slot) {
        while self.inputs.load(Ordering::Relaxed) < self.wanted
            && !self.over.load(Ordering::Relaxed)
        {
            let seed = self.next.fetch_add(1, Ordering::Relaxed);
            let runner = self.batch(seed, slot);
            self.inputs.fetch_add(runner.inputs, Ordering::Relaxed);
            self.accepted.fetch_add(runner.accepted, Ordering::Relaxed);
            let us = u64::try_from(runner.slowest.as_micros()).unwrap_or(u64::MAX);
            self.slowest_us.fetch_max(us, Ordering::Relaxed);
            for failure in &runner.failures {
                self.fail(failure);
            }
            // Other work may have slowed it down: a slow input must be slow twice.
            if !runner.slow.is_empty() {
                let again = self.batch(seed, slot);
                for (number, told) in &again.slow {
                    if runner.slow.iter().any(|(slow, _)| slow == number) {
                        let name = self.target.name;
                        self.fail(&format!("{name} seed {seed} input {number}: longer than {INPUT_TIME_MAX:?}: {told}"));
                    }
                }
            }
            if peak_bytes() > MEMORY_BYTES_MAX {
                self.fail(&format!(
                    "{} seed {seed}: memory is over {MEMORY_BYTES_MAX} bytes",
                    self.target.name
                ));
                self.over.store(true, Ordering::Relaxed);
            }
        }
    }

    fn batch(&self, seed: u64, slot: &Slot) -> Runner {
        let mut runner = Runner::new(self.target.name, seed);
        runner.slot = slot.clone();
        (self.target.batch)(self.seeds, seed, &mut runner);
        runner
    }
}

/// Runs all inputs of a target. Returns inputs and failures.
fn run(target: &Target, seeds: &Seeds, first: u64, wanted: u64) -> (u64, u64) {
    let campaign = Campaign {
        target,
        seeds,
        wanted,
        next: AtomicU64::new(first),
        inputs: AtomicU64::new(0),
        accepted: AtomicU64::new(0),
        slowest_us: AtomicU64::new(0),
        over: AtomicBool::new(false),
        failures: Mutex::default(),
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let slots: Vec<Slot> = (0..threads).map(|_| Slot::default()).collect();
    let began = Instant::now();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let campaign = &campaign;
        scope.spawn(|| watch(target.name, &slots, &ended));
        let workers: Vec<_> = slots
            .iter()
            .map(|slot| {
                let work = move || campaign.work(slot);
                let builder = std::thread::Builder::new().stack_size(STACK_BYTES);
                builder.spawn_scoped(scope, work).expect("a thread")
            })
            .collect();
        for worker in workers {
            worker.join().expect("a worker that ends");
        }
        ended.store(true, Ordering::Relaxed);
    });
    let inputs = campaign.inputs.load(Ordering::Relaxed);
    let failures = campaign
        .failures
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let count = failures.values().map(|(count, _)| count).sum();
    println!(
        "{:<10} {inputs:>9} inputs from seed {first} to {}, {} % accepted, {:>7.0} a second, slowest {:.0} ms, {} failures",
        target.name,
        campaign.next.load(Ordering::Relaxed),
        campaign.accepted.load(Ordering::Relaxed) * 100 / inputs.max(1),
        inputs as f64 / began.elapsed().as_secs_f64(),
        campaign.slowest_us.load(Ordering::Relaxed) as f64 / 1000.0,
        failures.len(),
    );
    (inputs, count)
}

/// Ends the process if an input does not end.
fn watch(target: &str, slots: &[Slot], ended: &AtomicBool) {
    while !ended.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(100));
        for slot in slots {
            let now = *slot.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((since, seed, number)) = now
                && since.elapsed() > HANG
            {
                println!("FAILED  {target} seed {seed} input {number}: does not end");
                std::process::exit(1);
            }
        }
    }
}

/// Returns the peak memory of the process; 0 if it is unknown.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next());
    kib.and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) * 1024
}

//! The continuous mode: a backup at the start and at intervals, and the log behind it in parts.
//!
//! ```text
//! link the files, follow the log; take number n
//! one thread     store the files, complete backup n; remove old backups; again after `full_interval`
//! one thread     every `interval`: sync, read what is durable, store it as a part below log/n
//! ```
//!
//! The log is stored while the files still are, so the log need not grow until they are. A part whose request fails is
//! sent again until it is stored. If the store is away so long that the log had to remove what was not stored, there is a
//! gap: a new run begins with a new backup. A new run also begins at each start, because another process may have opened
//! the directory in between.
//!
//! The position of the log is noted several times a second, so that each moment can be restored that is this exact.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use nilometer_storage::{BackupFiles, BackupSource, Error, LogPart, LogReader, Moment, Result};

use super::catalog::PartName;
use super::retention::{Removed, Retention};
use super::{BackupInfo, BackupStore};
use crate::lock::lock;

/// Bytes of batches in one part.
const PART_BYTES: usize = 8 * 1024 * 1024;

/// Positions that wait for their part. The oldest are forgotten beyond that.
const MOMENTS_MAX: usize = 50_000;

/// Longest time until a backup of the files that failed is tried again, in times of the first.
const RETRIES_APART_MAX: u32 = 60;

/// Time for which the end of the log is still sent after the end was asked for.
const LAST_PART_TIMEOUT: Duration = Duration::from_secs(30);

/// Intervals of the continuous mode.
#[derive(Clone, Copy, Debug)]
pub struct ContinuousOptions {
    /// Between two parts of the log. What a lost disk costs at most.
    pub interval: Duration,
    /// Between two backups of the files.
    pub full_interval: Duration,
    /// Between two notes of the position. How exact moments are.
    pub tick: Duration,
    /// Until a backup of the files that failed is tried again, at first.
    pub retry: Duration,
    /// Which backups stay.
    pub retention: Retention,
}

impl Default for ContinuousOptions {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(10),
            full_interval: Duration::from_secs(24 * 60 * 60),
            tick: Duration::from_millis(250),
            retry: Duration::from_secs(5),
            retention: Retention::default(),
        }
    }
}

/// What the continuous mode reports.
#[derive(Clone, Debug)]
pub enum ContinuousEvent {
    /// A backup of the files is complete.
    Completed(BackupInfo),
    /// Old backups were removed.
    Removed(Removed),
    /// The store does not take the log, or a backup failed. It is tried again.
    Failing(Error),
    /// The store takes the log again.
    Recovered,
    /// The log was removed before it was stored. A new backup begins; moments until then cannot be restored.
    Gap(Error),
}

type Observer = dyn Fn(ContinuousEvent) + Send + Sync;

/// Reports, of failures that follow each other the first.
struct Reporter {
    observe: Box<Observer>,
    is_failing: AtomicBool,
}

impl Reporter {
    fn tell(&self, event: ContinuousEvent) {
        (self.observe)(event);
    }

    fn failed(&self, error: Error) {
        if !self.is_failing.swap(true, Ordering::AcqRel) {
            self.tell(ContinuousEvent::Failing(error));
        }
    }

    fn succeeded(&self) {
        if self.is_failing.swap(false, Ordering::AcqRel) {
            self.tell(ContinuousEvent::Recovered);
        }
    }
}

/// The continuous mode of one database, until it is stopped or dropped.
pub struct ContinuousBackup {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ContinuousBackup {
    /// Starts.
    pub fn start(
        store: BackupStore,
        source: BackupSource,
        options: ContinuousOptions,
        observe: Box<Observer>,
    ) -> Result<Self> {
        let (stop, stopped) = channel();
        let worker = Worker {
            store: Arc::new(store),
            source,
            options,
            reporter: Arc::new(Reporter {
                observe,
                is_failing: AtomicBool::new(false),
            }),
            stopped,
        };
        let thread = std::thread::Builder::new().name("backup".to_owned());
        let thread = thread.spawn(move || worker.run());
        let thread = thread.map_err(|source| Error::Io {
            operation: "start a thread for",
            path: "backup".into(),
            source: Arc::new(source),
        })?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Stores what was written so far, and ends. Call it before the database is closed.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // A panic was printed where it happened.
            let _ = thread.join();
        }
    }
}

impl Drop for ContinuousBackup {
    fn drop(&mut self) {
        self.end();
    }
}

/// Why a run ended.
enum RunEnd {
    Stopped,
    Failed(Error),
}

struct Worker {
    store: Arc<BackupStore>,
    source: BackupSource,
    options: ContinuousOptions,
    reporter: Arc<Reporter>,
    /// Closed when the end is asked for.
    stopped: Receiver<()>,
}

impl Worker {
    fn run(self) {
        loop {
            match self.one_run() {
                RunEnd::Stopped | RunEnd::Failed(Error::Closed) => return,
                RunEnd::Failed(error @ Error::Corruption { .. }) => {
                    self.reporter.tell(ContinuousEvent::Gap(error));
                }
                RunEnd::Failed(error) => self.reporter.failed(error),
            }
            if self.is_stopped_within(self.options.retry) {
                return;
            }
        }
    }

    fn is_stopped_within(&self, time: Duration) -> bool {
        let waited = self.stopped.recv_timeout(time);
        !matches!(waited, Err(RecvTimeoutError::Timeout))
    }

    fn one_run(&self) -> RunEnd {
        match self.try_one_run() {
            Ok(()) => RunEnd::Stopped,
            Err(error) => RunEnd::Failed(error),
        }
    }

    fn try_one_run(&self) -> Result<()> {
        self.store.probe()?;
        let (files, reader) = self.source.follow()?;
        let time_ms = (self.store.clock)();
        let run = self.store.runtime.block_on(self.store.catalog.begin())?;
        let full = FullBackups::default();
        std::thread::scope(|scope| {
            let first = FullBackup {
                number: run,
                run,
                time_ms,
                files,
            };
            full.spawn(scope, self, first)?;
            let mut shipper = Shipper {
                worker: self,
                reader,
                run,
                moments: VecDeque::new(),
                pending: None,
            };
            let shipped = shipper.ship_until_stopped(scope, &full);
            full.stop();
            shipped
        })
    }
}

/// A backup of the files that is to be stored.
struct FullBackup {
    number: u64,
    run: u64,
    time_ms: i64,
    files: BackupFiles,
}

/// The backups of files that run beside the log: one at a time.
#[derive(Default)]
struct FullBackups(Mutex<FullState>);

#[derive(Default)]
struct FullState {
    is_running: bool,
    is_stopped: bool,
    /// When the last one began, also if it failed.
    last: Option<Instant>,
    failures: u32,
}

impl FullBackups {
    /// Stores a backup on a thread of its own.
    fn spawn<'scope>(
        &'scope self,
        scope: &'scope std::thread::Scope<'scope, '_>,
        worker: &'scope Worker,
        full: FullBackup,
    ) -> Result<()> {
        {
            let mut state = lock(&self.0);
            state.is_running = true;
            state.last = Some(Instant::now());
        }
        let thread = std::thread::Builder::new().name("backup-files".to_owned());
        let (store, reporter) = (Arc::clone(&worker.store), Arc::clone(&worker.reporter));
        let retention = worker.options.retention;
        let started = thread.spawn_scoped(scope, move || {
            let outcome = self.store(&store, &full, retention, &reporter);
            let mut state = lock(&self.0);
            state.is_running = false;
            match outcome {
                Ok(()) => state.failures = 0,
                Err(error) if !state.is_stopped => {
                    state.failures += 1;
                    drop(state);
                    reporter.failed(error);
                }
                Err(_) => {}
            }
        });
        started.map(drop).map_err(|source| Error::Io {
            operation: "start a thread for",
            path: "backup".into(),
            source: Arc::new(source),
        })
    }

    fn store(
        &self,
        store: &BackupStore,
        full: &FullBackup,
        retention: Retention,
        reporter: &Reporter,
    ) -> Result<()> {
        let mut report = |_: &super::BackupProgress| !lock(&self.0).is_stopped;
        let (number, run) = (full.number, Some(full.run));
        let info = store.store_files(number, run, full.time_ms, &full.files, &mut report)?;
        reporter.tell(ContinuousEvent::Completed(info));
        reporter.succeeded();
        if retention != Retention::default() {
            let removed = store.remove_old(&retention)?;
            if removed != Removed::default() {
                reporter.tell(ContinuousEvent::Removed(removed));
            }
        }
        Ok(())
    }

    /// True if it is time for the next one. One that failed is repeated sooner.
    fn is_due(&self, options: &ContinuousOptions) -> bool {
        let interval = options.full_interval;
        let state = lock(&self.0);
        let interval = match state.failures {
            0 => interval,
            failures => interval.min(options.retry * failures.min(RETRIES_APART_MAX)),
        };
        !state.is_running && state.last.is_none_or(|last| last.elapsed() >= interval)
    }

    fn stop(&self) {
        lock(&self.0).is_stopped = true;
    }
}

/// Stores the log of one run.
struct Shipper<'a> {
    worker: &'a Worker,
    reader: LogReader,
    run: u64,
    /// Positions behind what was read.
    moments: VecDeque<Moment>,
    /// A part that was read and is not stored.
    pending: Option<(PartName, Bytes)>,
}

impl<'a> Shipper<'a> {
    fn ship_until_stopped<'scope>(
        &mut self,
        scope: &'scope std::thread::Scope<'scope, '_>,
        full: &'scope FullBackups,
    ) -> Result<()>
    where
        'a: 'scope,
    {
        let options = self.worker.options;
        let mut last = Instant::now();
        while !self.worker.is_stopped_within(options.tick) {
            self.note_moment();
            if last.elapsed() >= options.interval {
                last = Instant::now();
                self.ship()?;
            }
            if full.is_due(&options) {
                self.begin_full(scope, full)?;
            }
        }
        self.note_moment();
        let end = Instant::now() + LAST_PART_TIMEOUT;
        loop {
            self.ship()?;
            if self.pending.is_none() || Instant::now() >= end {
                return Ok(());
            }
            std::thread::sleep(options.tick);
        }
    }

    /// Begins a further backup of the files, of the same run.
    fn begin_full<'scope>(
        &mut self,
        scope: &'scope std::thread::Scope<'scope, '_>,
        full: &'scope FullBackups,
    ) -> Result<()>
    where
        'a: 'scope,
    {
        let store = &self.worker.store;
        let files = self.worker.source.files()?;
        let time_ms = (store.clock)();
        let number = match store.runtime.block_on(store.catalog.begin()) {
            Ok(number) => number,
            // The next look tries again.
            Err(error) => {
                self.worker.reporter.failed(error);
                return Ok(());
            }
        };
        let next = FullBackup {
            number,
            run: self.run,
            time_ms,
            files,
        };
        full.spawn(scope, self.worker, next)
    }

    /// Notes the position of the log, if it is another one.
    fn note_moment(&mut self) {
        // In this order: what is written at the time, or was a moment before.
        let next_index = self.reader.written();
        let now = (self.worker.store.clock)();
        let last = self.moments.back();
        let known = last.map_or(self.reader.position().next_index, |last| last.next_index);
        if next_index <= known {
            return;
        }
        // The clock may have been set back.
        let time_ms = last.map_or(now, |last| now.max(last.time_ms));
        if self.moments.len() >= MOMENTS_MAX {
            self.moments.pop_front();
        }
        self.moments.push_back(Moment {
            time_ms,
            next_index,
        });
    }

    /// Stores what is durable. An error ends the run.
    fn ship(&mut self) -> Result<()> {
        let store = &self.worker.store;
        loop {
            if self.pending.is_none() {
                let Some(part) = self.reader.read(PART_BYTES)? else {
                    return Ok(());
                };
                self.pending = Some(self.named(part));
            }
            let Some((name, contents)) = &self.pending else {
                return Ok(());
            };
            let object = name.name();
            let created = store.catalog.objects.create(&object, contents);
            match store.runtime.block_on(created) {
                Ok(true) => {
                    self.reader.release(name.next);
                    self.pending = None;
                    self.worker.reporter.succeeded();
                }
                Ok(false) => {
                    return Err(Error::Store {
                        reason: format!("another process stored backups/{}", name.name()),
                    });
                }
                Err(error) => {
                    self.worker.reporter.failed(error);
                    return Ok(());
                }
            }
        }
    }

    /// Adds the moments of a part, and returns its name and its bytes.
    fn named(&mut self, mut part: LogPart) -> (PartName, Bytes) {
        self.note_moment();
        while let Some(moment) = self.moments.front().copied() {
            if moment.next_index > part.next_index {
                // It says when the end of the part was there, too.
                if part.moments.last().map(|last| last.next_index) != Some(part.next_index) {
                    part.moments.push(Moment {
                        next_index: part.next_index,
                        ..moment
                    });
                }
                break;
            }
            self.moments.pop_front();
            part.moments.push(moment);
        }
        let now = (self.worker.store.clock)();
        let last = part.moments.last().copied();
        let last = last.filter(|last| last.next_index == part.next_index);
        let time_ms = last.map_or(now, |last| last.time_ms);
        if last.is_none() {
            part.moments.push(Moment {
                time_ms,
                next_index: part.next_index,
            });
        }
        let name = PartName {
            run: self.run,
            first: part.begin.next_index,
            next: part.next_index,
            time_ms,
        };
        (name, part.encode().into())
    }
}

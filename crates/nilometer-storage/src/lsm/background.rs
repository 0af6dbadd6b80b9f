//! The threads of the engine.
//!
//! | thread | does |
//! |---|---|
//! | keeper | every 50 ms: syncs buffered commits, prepares log segments, drops old versions; lets the log rest |
//! | flusher | flushes memtables: those requested, the largest when memory is short, and those that hold the oldest log segment when the log is long, or longer than at rest while nothing is written |
//! | compactors | merge tables of flushed trees |
//!
//! A thread that fails records it in [`Health`](super::health::Health) and stops working. Closing joins all threads.

use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::core::Core;
use super::tree::{Tree, panic_text};
use crate::engine::KeyspaceId;
use crate::error::{Error, Result};
use crate::lock::lock;

/// Period of the keeper. A buffered commit is durable after at most twice this.
const KEEPER_PERIOD: Duration = Duration::from_millis(50);

/// Period at which the flusher and the compactors check for work without being woken.
const WORKER_PERIOD: Duration = Duration::from_millis(200);

/// Time before a flush is retried that found no space or could not open a file.
const RETRY_PERIOD: Duration = Duration::from_millis(250);

/// The work queues of the threads.
#[derive(Default)]
pub(crate) struct BackgroundWork {
    state: Mutex<BackgroundState>,
    flusher: Condvar,
    compactors: Condvar,
    keeper: Condvar,
    progress: Condvar,
}

#[derive(Default)]
struct BackgroundState {
    flush: BTreeSet<KeyspaceId>,
    compact: BTreeSet<KeyspaceId>,
    tidy: BTreeSet<KeyspaceId>,
    stopping: bool,
}

impl BackgroundWork {
    /// Requests a flush of one keyspace.
    pub(crate) fn request_flush(&self, id: KeyspaceId) {
        if lock(&self.state).flush.insert(id) {
            self.flusher.notify_one();
        }
    }

    /// Makes the flusher check memory and log.
    pub(crate) fn wake_flusher(&self) {
        self.flusher.notify_one();
    }

    /// Requests a merge of one keyspace.
    pub(crate) fn request_compaction(&self, id: KeyspaceId) {
        if lock(&self.state).compact.insert(id) {
            self.compactors.notify_one();
        }
    }

    /// Requests that the keeper drops old versions of one keyspace.
    pub(crate) fn request_tidying(&self, id: KeyspaceId) {
        lock(&self.state).tidy.insert(id);
    }

    /// Wakes stalled writers.
    pub(crate) fn note_progress(&self) {
        self.progress.notify_all();
    }

    /// Waits for progress, or for `timeout`.
    pub(crate) fn wait_for_progress(&self, timeout: Duration) {
        drop(wait(&self.progress, lock(&self.state), timeout));
    }

    /// Stops the threads after their current step.
    pub(crate) fn stop(&self) {
        lock(&self.state).stopping = true;
        for condvar in [
            &self.flusher,
            &self.compactors,
            &self.keeper,
            &self.progress,
        ] {
            condvar.notify_all();
        }
    }

    /// True once [`BackgroundWork::stop`] was called.
    pub(crate) fn is_stopping(&self) -> bool {
        lock(&self.state).stopping
    }

    /// Waits for `timeout`. False if stopping.
    fn pause(&self, condvar: &Condvar, timeout: Duration) -> bool {
        let state = lock(&self.state);
        if state.stopping {
            return false;
        }
        !wait(condvar, state, timeout).stopping
    }

    /// Waits for work, unless there is some. False if stopping.
    fn idle(&self, condvar: &Condvar, nothing: impl Fn(&BackgroundState) -> bool) -> bool {
        let mut state = lock(&self.state);
        if !state.stopping && nothing(&state) {
            state = wait(condvar, state, WORKER_PERIOD);
        }
        !state.stopping
    }
}

fn wait<'a>(
    condvar: &Condvar,
    state: MutexGuard<'a, BackgroundState>,
    timeout: Duration,
) -> MutexGuard<'a, BackgroundState> {
    let waited = condvar.wait_timeout(state, timeout);
    waited.unwrap_or_else(PoisonError::into_inner).0
}

/// Starts the threads of an engine.
pub(crate) fn start(core: &Arc<Core>) -> Result<Vec<JoinHandle<()>>> {
    let mut threads = vec![
        spawn(core, "storage-keeper", keeper)?,
        spawn(core, "storage-flush", flusher)?,
    ];
    for _ in 0..core.context.options.compaction_threads {
        threads.push(spawn(core, "storage-merge", compactor)?);
    }
    Ok(threads)
}

fn spawn(core: &Arc<Core>, name: &str, work: fn(&Core)) -> Result<JoinHandle<()>> {
    let core = Arc::clone(core);
    let thread = std::thread::Builder::new().name(name.to_owned());
    let started = thread.spawn(move || {
        let run = std::panic::AssertUnwindSafe(|| work(&core));
        if let Err(panic) = std::panic::catch_unwind(run) {
            core.health.fail(Error::Failed {
                reason: format!("a background task panicked: {}", panic_text(&*panic)),
            });
            core.work.note_progress();
        }
    });
    started.map_err(|source| Error::io("start a thread for", std::path::Path::new(name), source))
}

/// The last batch written, and since when it is the last.
struct LastWrite {
    index: u64,
    since: Instant,
}

fn keeper(core: &Core) {
    let mut last = LastWrite {
        index: 0,
        since: Instant::now(),
    };
    while core.work.pause(&core.work.keeper, KEEPER_PERIOD) {
        if let Err(error) = keep(core, &mut last) {
            match error {
                // The next operation that needs space fails with the same error.
                Error::Full { .. } => {}
                error => drop(core.health.fail(error)),
            }
        }
    }
}

fn keep(core: &Core, last: &mut LastWrite) -> Result<()> {
    let untidy = std::mem::take(&mut lock(&core.work.state).tidy);
    for id in untidy {
        if let Ok(tree) = core.tree(id) {
            core.tidy(&tree)?;
        }
    }
    if core.health.check_writable().is_err() {
        return Ok(());
    }
    if core.log.is_dirty() {
        core.log.sync()?;
    } else {
        core.log.note_durable()?;
    }
    core.remove_flushed_segments()?;
    rest(core, last)?;
    // Without a spare the commit that needs the next segment creates it, and is refused if that fails. So a failure
    // here is ignored.
    let _ = core.log.prepare_spare();
    core.health.retry_segment(|| core.log.retry_segment());
    Ok(())
}

/// Begins to shrink the log when nothing was written for the rest period, and ends it with the next write.
fn rest(core: &Core, last: &mut LastWrite) -> Result<()> {
    let index = core.log.lock().written_index();
    if index != last.index {
        let since = Instant::now();
        *last = LastWrite { index, since };
        core.log.end_rest();
        return Ok(());
    }
    let options = &core.context.options;
    let is_due = last.since.elapsed() >= options.rest_period && !core.log.is_resting();
    if is_due && core.log.file_bytes() > options.log_rest_bytes {
        core.log.rest()?;
        core.work.wake_flusher();
    }
    Ok(())
}

fn flusher(core: &Core) {
    loop {
        while let Some((tree, log_through)) = next_flush(core) {
            if core.work.is_stopping() {
                return;
            }
            let flushed = match log_through {
                Some(through) => core.free_log(&tree, through),
                None => core.flush_tree(&tree),
            };
            match flushed {
                Ok(()) => core.health.set_flush_blocked(None),
                Err(error) => {
                    if core.may_retry(&tree, error.clone()) {
                        core.health.set_flush_blocked(Some(error));
                        core.work.note_progress();
                        core.work.pause(&core.work.flusher, RETRY_PERIOD);
                        core.work.request_flush(tree.keyspace.id);
                    }
                }
            }
        }
        if !core
            .work
            .idle(&core.work.flusher, |state| state.flush.is_empty())
        {
            return;
        }
    }
}

/// Returns the tree to flush next, if any; if that is for the log alone, also up to which sequence number.
fn next_flush(core: &Core) -> Option<(Arc<Tree>, Option<u64>)> {
    if core.health.failure().is_some() {
        return None;
    }
    loop {
        let asked_for = lock(&core.work.state).flush.pop_first();
        match asked_for {
            Some(id) => match core.tree(id) {
                Ok(tree) => return Some((tree, None)),
                Err(_) => continue,
            },
            None => break,
        }
    }
    let options = &core.context.options;
    if core.memory_bytes() >= options.memory_flush_bytes() {
        let trees = core.trees();
        let largest = trees.values().max_by_key(|tree| tree.memory_bytes());
        let largest = largest.filter(|tree| tree.memory_bytes() > 0);
        if let Some(tree) = largest {
            return Some((Arc::clone(tree), None));
        }
    }
    let (tree, through) = shorten_log(core)?;
    Some((tree, Some(through)))
}

/// If the log is long, returns the next tree that holds its oldest segment, and its highest sequence number there.
fn shorten_log(core: &Core) -> Option<(Arc<Tree>, u64)> {
    let options = &core.context.options;
    if core.log.is_resting() {
        if core.log.bytes() <= options.log_rest_bytes {
            return None;
        }
    } else {
        if core.log.bytes() < options.log_flush_bytes() {
            return None;
        }
        let mut log = core.log.lock();
        // A single segment can only be removed after the next one begins.
        if log.sealed.is_empty() && core.log.begin_segment(&mut log).is_err() {
            return None;
        }
    }
    let blockers = core
        .log
        .blockers(|id, sequence| core.is_flushed(id, sequence));
    let (id, through) = blockers.first()?;
    Some((core.tree(*id).ok()?, *through))
}

fn compactor(core: &Core) {
    loop {
        while core.health.failure().is_none() {
            let Some(id) = lock(&core.work.state).compact.pop_first() else {
                break;
            };
            let Ok(tree) = core.tree(id) else {
                continue;
            };
            if let Err(error) = core.compact_tree(&tree)
                && core.may_retry(&tree, error)
            {
                core.work.pause(&core.work.compactors, RETRY_PERIOD);
                core.work.request_compaction(id);
            }
            if core.work.is_stopping() {
                return;
            }
        }
        if !core
            .work
            .idle(&core.work.compactors, |state| state.compact.is_empty())
        {
            return;
        }
    }
}

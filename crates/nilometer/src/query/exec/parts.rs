//! Parts of the input of a query that several threads process, in order. A cursor may hold them over several commands.

use std::collections::VecDeque;
use std::sync::Arc;

use super::ExecContext;
use super::workers::{QueryThreads, TasksInFlight};
use crate::error::{Error, Result};

/// What a part yielded.
pub(super) struct Processed<T> {
    /// What was found before the end or the error.
    pub(super) found: T,
    /// Why the processing ended early.
    pub(super) failed: Option<Error>,
}

type Process<I, T> = dyn Fn(&I, &ExecContext<'_>) -> Processed<T> + Send + Sync;

/// The parts being processed.
pub(super) struct PartsInFlight<I, T: Send + 'static> {
    process: Arc<Process<I, T>>,
    /// The parts, with the operations whose deadlines and kill switches they obey.
    given: VecDeque<(Arc<I>, i32)>,
    tasks: TasksInFlight<Processed<T>>,
}

impl<I: Send + Sync + 'static, T: Send + 'static> PartsInFlight<I, T> {
    /// Creates an empty queue of parts for `process`.
    pub(super) fn new(
        threads: &QueryThreads,
        process: impl Fn(&I, &ExecContext<'_>) -> Processed<T> + Send + Sync + 'static,
    ) -> Self {
        Self {
            process: Arc::new(process),
            given: VecDeque::new(),
            tasks: TasksInFlight::new(&threads.workers, threads.count),
        }
    }

    /// True if threads take no further part.
    pub(super) fn is_full(&self) -> bool {
        self.tasks.is_full()
    }

    /// Returns the number of parts that are processed, or wait to be returned.
    pub(super) fn len(&self) -> usize {
        self.given.len()
    }

    /// True if the first part is processed.
    pub(super) fn is_first_done(&self) -> bool {
        self.tasks.is_first_done()
    }

    /// Hands out a part. The queue must not be full.
    pub(super) fn push(&mut self, part: I, cx: &ExecContext<'_>) -> Result<()> {
        let part = Arc::new(part);
        self.given.push_back((Arc::clone(&part), cx.operation.id));
        let process = Arc::clone(&self.process);
        let (operation, settings) = cx.for_worker();
        let work = move || Ok(process(&part, &ExecContext::new(&operation, &settings)));
        self.tasks.push(Box::new(work)).map(drop)
    }

    /// Returns what the first part yielded; `None` if there is none. Fails if the operation is interrupted.
    pub(super) fn pop(&mut self, cx: &ExecContext<'_>) -> Result<Option<Processed<T>>> {
        let (Some((part, operation)), Some(processed)) =
            (self.given.pop_front(), self.tasks.pop()?)
        else {
            return Ok(None);
        };
        if processed.failed.is_some() {
            cx.operation.check_interrupt()?;
        }
        // A cursor may have had another operation then, whose end is not that of this one.
        let is_stale = processed.failed.is_some() && operation != cx.operation.id;
        Ok(Some(match is_stale {
            true => self.process(&part, cx),
            false => processed,
        }))
    }

    /// Processes a part on the caller's thread.
    pub(super) fn process(&self, part: &I, cx: &ExecContext<'_>) -> Processed<T> {
        (self.process)(part, cx)
    }
}

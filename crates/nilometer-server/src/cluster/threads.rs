//! Threads that run the commands for the units of this process: an idle one is used again.
//!
//! ```text
//! command ─► the thread that became idle last; a new one without any ─► runs it ─► idle for IDLE_TIME ─► ends
//! ```
//!
//! A part of a query takes a fraction of a millisecond, and a new thread a tenth of that: its stack, its memory, the table of
//! pages that all threads share. There are as many threads as commands run, since each may wait for the disk or for a lock.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::Duration;

/// Threads that wait for a command, at most.
const IDLE_MAX: usize = 64;

/// Time for which a thread waits for a command.
const IDLE_TIME: Duration = Duration::from_secs(10);

type Work = Box<dyn FnOnce() + Send>;

/// The threads of a process.
#[derive(Clone, Default)]
pub(super) struct UnitThreads(Arc<Mutex<IdleThreads>>);

#[derive(Default)]
struct IdleThreads {
    /// By the time at which they became idle.
    waiting: Vec<IdleThread>,
    last_number: u64,
}

struct IdleThread {
    number: u64,
    work: Sender<Work>,
}

impl UnitThreads {
    fn lock(&self) -> MutexGuard<'_, IdleThreads> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `work` on a thread.
    pub(super) fn run(&self, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let mut work: Work = Box::new(work);
        let idle = self.lock().waiting.pop();
        if let Some(idle) = idle {
            match idle.work.send(work) {
                Ok(()) => return Ok(()),
                // It does not end while it is waited for, unless its process ends.
                Err(unsent) => work = unsent.0,
            }
        }
        let threads = self.clone();
        let thread = Builder::new().name("partition".to_owned());
        thread.spawn(move || threads.serve(work)).map(drop)
    }

    /// Runs `work` and what comes next. A panic ends the thread, which is not idle then.
    fn serve(&self, work: Work) {
        let number = {
            let mut threads = self.lock();
            threads.last_number += 1;
            threads.last_number
        };
        let (sender, receiver) = channel();
        work();
        while let Some(next) = self.next(number, &sender, &receiver) {
            next();
        }
    }

    /// Waits for the next command; `None` if the thread is to end.
    fn next(&self, number: u64, sender: &Sender<Work>, receiver: &Receiver<Work>) -> Option<Work> {
        {
            let mut threads = self.lock();
            if threads.waiting.len() >= IDLE_MAX {
                return None;
            }
            threads.waiting.push(IdleThread {
                number,
                work: sender.clone(),
            });
        }
        match receiver.recv_timeout(IDLE_TIME) {
            Ok(next) => return Some(next),
            Err(RecvTimeoutError::Disconnected) => return None,
            Err(RecvTimeoutError::Timeout) => {}
        }
        let mut threads = self.lock();
        let own = threads
            .waiting
            .iter()
            .position(|idle| idle.number == number);
        match own {
            Some(own) => {
                threads.waiting.remove(own);
                None
            }
            // It was taken at the last moment.
            None => {
                drop(threads);
                receiver.recv().ok()
            }
        }
    }

    #[cfg(test)]
    fn idle(&self) -> usize {
        self.lock().waiting.len()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::mpsc::sync_channel;

    use super::*;

    fn until_idle(threads: &UnitThreads, count: usize) {
        while threads.idle() != count {
            std::thread::yield_now();
        }
    }

    #[test]
    fn commands_run_at_once_and_threads_are_used_again() {
        let threads = UnitThreads::default();
        let (sender, receiver) = sync_channel(200);
        let mut seen = std::collections::HashSet::new();
        for _ in 0..10 {
            let all_run = Arc::new(Barrier::new(8));
            for _ in 0..8 {
                let (sender, all_run) = (sender.clone(), Arc::clone(&all_run));
                let work = move || {
                    all_run.wait();
                    sender.send(std::thread::current().id()).expect("received");
                };
                threads.run(work).expect("a thread");
            }
            seen.extend((0..8).map(|_| receiver.recv().expect("it ran")));
            until_idle(&threads, 8);
        }
        assert_eq!(seen.len(), 8);
        // One that panics is not used again, and the others are.
        threads.run(|| panic!("on purpose")).expect("a thread");
        until_idle(&threads, 7);
        threads
            .run(move || sender.send(std::thread::current().id()).expect("received"))
            .expect("a thread");
        assert!(seen.contains(&receiver.recv().expect("it ran")));
    }

    #[test]
    fn few_threads_wait() {
        let threads = UnitThreads::default();
        let all_run = Arc::new(Barrier::new(IDLE_MAX + 10));
        for _ in 0..IDLE_MAX + 10 {
            let all_run = Arc::clone(&all_run);
            let run = move || {
                all_run.wait();
            };
            threads.run(run).expect("a thread");
        }
        until_idle(&threads, IDLE_MAX);
    }
}

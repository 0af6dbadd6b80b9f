//! Runs inputs one by one: counts them, catches panics, measures times.
//!
//! A panic on a thread started by an input counts, too: the panic hook of the process records it. A caller with many
//! runners can watch the [`Slot`] of each to find an endless input.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

/// Maximum time of an input.
pub const INPUT_TIME_MAX: Duration = Duration::from_secs(1);

/// Panics of threads without a runner.
static ELSEWHERE: Mutex<Vec<String>> = Mutex::new(Vec::new());

static HOOK: Once = Once::new();

thread_local! {
    /// `None` if this thread has no runner; else its last panic.
    static HERE: RefCell<Option<String>> = const { RefCell::new(None) };

    /// True on threads that create runners: a panic between two inputs reports the failure of a batch and is not a
    /// failure of another runner.
    static IS_JUDGE: Cell<bool> = const { Cell::new(false) };
}

/// The current input of a runner: start, seed, number.
pub type Slot = Arc<Mutex<Option<(Instant, u64, u64)>>>;

/// Runs the inputs of one batch.
pub struct Runner {
    target: &'static str,
    seed: u64,
    /// Number of inputs.
    pub inputs: u64,
    /// Number of accepted inputs.
    pub accepted: u64,
    /// Failures, each with its input.
    pub failures: Vec<String>,
    /// Numbers and descriptions of inputs that took longer than [`INPUT_TIME_MAX`].
    pub slow: Vec<(u64, String)>,
    /// The longest time of an input.
    pub slowest: Duration,
    /// The current input.
    pub slot: Slot,
    /// True to print every input before it runs.
    pub shows: bool,
}

impl Runner {
    /// Returns a runner for the batch of `seed`.
    pub fn new(target: &'static str, seed: u64) -> Self {
        IS_JUDGE.set(true);
        HOOK.call_once(|| {
            let usual = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                if IS_JUDGE.get() && HERE.with_borrow(Option::is_none) {
                    return usual(panic);
                }
                let told = match std::env::var("RUST_BACKTRACE")
                    .ok()
                    .filter(|asked| asked == "full")
                {
                    None => panic.to_string(),
                    Some(_) => format!("{panic}\n{}", std::backtrace::Backtrace::force_capture()),
                };
                let is_ours = HERE.with_borrow_mut(|here| match here {
                    Some(last) => {
                        last.clone_from(&told);
                        true
                    }
                    None => false,
                });
                if !is_ours {
                    ELSEWHERE
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .push(told);
                }
            }));
        });
        Self {
            target,
            seed,
            inputs: 0,
            accepted: 0,
            failures: Vec::new(),
            slow: Vec::new(),
            slowest: Duration::ZERO,
            slot: Slot::default(),
            shows: false,
        }
    }

    /// Runs one input, which returns whether it was accepted; `describe` formats it if needed.
    #[expect(clippy::print_stdout, reason = "prints inputs on request")]
    pub fn one(&mut self, describe: impl Fn() -> String, run: impl FnOnce() -> bool) {
        let number = self.inputs;
        self.inputs += 1;
        if self.shows {
            println!("{}", describe());
        }
        let started = Instant::now();
        *self.slot.lock().unwrap_or_else(PoisonError::into_inner) =
            Some((started, self.seed, number));
        HERE.set(Some(String::new()));
        let outcome = catch_unwind(AssertUnwindSafe(run));
        let told = HERE.take().unwrap_or_default();
        *self.slot.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let took = started.elapsed();
        self.slowest = self.slowest.max(took);
        if took > INPUT_TIME_MAX {
            self.slow
                .push((number, format!("{took:?} for {}", describe())));
        }
        match outcome {
            Ok(accepted) => self.accepted += u64::from(accepted),
            Err(_) => self.fail(number, &told, &describe()),
        }
        let elsewhere =
            std::mem::take(&mut *ELSEWHERE.lock().unwrap_or_else(PoisonError::into_inner));
        for told in elsewhere {
            self.fail(number, &told, &describe());
        }
    }

    fn fail(&mut self, number: u64, told: &str, input: &str) {
        let place = format!("{} seed {} input {number}", self.target, self.seed);
        self.failures.push(format!("{place}: {told}\n    {input}"));
    }
}

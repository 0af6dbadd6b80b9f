//! Limits of evaluation: work inside one document that can be interrupted, and memory that is counted.
//!
//! ```text
//! operator ── charge(steps) ──▶ steps left ──each 4,096──▶ Interrupt: killOp, maxTimeMS, shutdown, closed socket
//!          ── hold(bytes) ────▶ live bytes ──above 512 KiB──▶ MemoryPool: nilometerQueryMemoryBytes
//! ```
//!
//! A step is at most some hundred nanoseconds of work: one element, one operand, 64 bytes. Every loop of an operator
//! charges its steps before or while it does them, so that an interrupt is noticed after a bounded amount of work.
//!
//! Live bytes are a stack: an operator's arguments count until it returns, then its result counts instead
//! ([`EvalContext::mark`], [`EvalContext::hold`]). The first half MiB of an operation is not taken from the pool.

use std::cmp::Ordering;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering as Memory};
use std::sync::{Arc, OnceLock};

use nilometer_bson::{ArrayRef, Value, ValueRef};

use super::memory::{memory_bytes, value_bytes};
use super::variables::EvalContext;
use crate::budget::MemoryPool;
use crate::error::{Error, ErrorCode, Result};

/// Steps after which an interrupt is looked for.
pub const STEPS_PER_CHECK: u32 = 4096;

/// Bytes of memory or input that count as one step.
const BYTES_PER_STEP: usize = 64;

/// Bytes of a document that a path lookup skips in one step.
const SKIPPED_BYTES_PER_STEP: usize = 256;

/// Live bytes that are not taken from the pool.
const OWN_BYTES: u64 = 512 * 1024;

/// Bytes taken from the pool at a time.
const CHUNK_BYTES: u64 = 1024 * 1024;

/// Elements sorted without a check.
const SORT_CHUNK: usize = 32;

/// Numbers sorted without a check.
const SORTED_NUMBERS: usize = 1 << 16;

/// Ends evaluation from outside.
pub trait Interrupt {
    /// Returns the error the operation ends with, if it must end.
    fn check_interrupt(&self) -> Result<()>;
}

/// The time now, which continues while an operation runs.
pub trait WallClock {
    /// Returns the time in ms since 1970, UTC.
    fn now_ms(&self) -> i64;
}

/// An interrupt that a function checks.
pub struct InterruptCheck<'a>(pub &'a dyn Fn() -> Result<()>);

impl Interrupt for InterruptCheck<'_> {
    fn check_interrupt(&self) -> Result<()> {
        (self.0)()
    }
}

/// The steps and bytes of the evaluations of one operation. Atomic only to be shared with the operation's context; one
/// thread at a time counts.
#[derive(Debug)]
pub struct EvaluationCounters {
    steps_left: AtomicU32,
    live_bytes: AtomicU64,
    /// Bytes taken from the pool.
    reserved_bytes: AtomicU64,
    pool: Arc<MemoryPool>,
}

impl Default for EvaluationCounters {
    /// Makes counters without a limit of memory.
    fn default() -> Self {
        Self::new(Arc::default())
    }
}

impl Clone for EvaluationCounters {
    /// Returns new counters on the same pool.
    fn clone(&self) -> Self {
        Self::new(Arc::clone(&self.pool))
    }
}

impl Drop for EvaluationCounters {
    fn drop(&mut self) {
        self.pool.give_back(*self.reserved_bytes.get_mut());
    }
}

impl EvaluationCounters {
    /// Makes counters of an operation whose memory comes from `pool`.
    pub fn new(pool: Arc<MemoryPool>) -> Self {
        Self {
            steps_left: AtomicU32::new(STEPS_PER_CHECK),
            live_bytes: AtomicU64::new(0),
            reserved_bytes: AtomicU64::new(0),
            pool,
        }
    }

    /// Returns the limits of an operation that ends at the interrupt.
    pub fn limits<'a>(&'a self, interrupt: &'a dyn Interrupt) -> EvaluationLimits<'a> {
        EvaluationLimits {
            counters: self,
            interrupt,
            clock: None,
        }
    }

    /// Sets the live bytes; error 146 if the pool has too few.
    fn set_live(&self, bytes: u64) -> Result<()> {
        self.live_bytes.store(bytes, Memory::Relaxed);
        let reserved = self.reserved_bytes.load(Memory::Relaxed);
        if bytes <= reserved + OWN_BYTES {
            return Ok(());
        }
        let more = (bytes - OWN_BYTES - reserved).next_multiple_of(CHUNK_BYTES);
        if !self.pool.take(more) {
            return Err(Error::new(
                ErrorCode::ExceededMemoryLimit,
                format!(
                    "The values computed for one document need more memory than other queries leave: {bytes} bytes; \
                     together queries may hold {} bytes (nilometerQueryMemoryBytes), and {} are in use",
                    self.pool.most(),
                    self.pool.used()
                ),
            ));
        }
        self.reserved_bytes.store(reserved + more, Memory::Relaxed);
        Ok(())
    }

    /// Sets the live bytes to fewer, and returns memory to the pool if little is left.
    fn release_to(&self, bytes: u64) {
        self.live_bytes.store(bytes, Memory::Relaxed);
        if bytes <= OWN_BYTES && self.reserved_bytes.load(Memory::Relaxed) > 0 {
            self.pool
                .give_back(self.reserved_bytes.swap(0, Memory::Relaxed));
        }
    }
}

/// The limits of the evaluations of one operation.
#[derive(Clone, Copy)]
pub struct EvaluationLimits<'a> {
    /// The counters.
    pub counters: &'a EvaluationCounters,
    /// The operation's end from outside.
    pub interrupt: &'a dyn Interrupt,
    /// The time now; without it, that of the operation's beginning.
    pub clock: Option<&'a dyn WallClock>,
}

impl EvaluationLimits<'_> {
    #[inline]
    fn charge(&self, steps: usize) -> Result<()> {
        let left = self.counters.steps_left.load(Memory::Relaxed);
        match u32::try_from(steps) {
            Ok(steps) if steps < left => {
                self.counters
                    .steps_left
                    .store(left - steps, Memory::Relaxed);
                Ok(())
            }
            _ => self.check(),
        }
    }

    #[cold]
    fn check(&self) -> Result<()> {
        self.counters
            .steps_left
            .store(STEPS_PER_CHECK, Memory::Relaxed);
        self.interrupt.check_interrupt()
    }
}

/// Checks that one fold may use: its steps are [`STEPS_PER_CHECK`] times as many.
const FOLD_CHECKS_MAX: u32 = 16;

/// Checks that all folds of a command may use.
const FOLDS_CHECKS_MAX: u32 = 256;

/// Bytes that the compiled patterns of a command may take.
const PATTERN_BYTES_MAX: u64 = 128 << 20;

/// Bytes of the constants that folding may make for a command.
const FOLDED_BYTES_MAX: u64 = 8 << 20;

/// The work that constant folding may do for a command. What is above it is left to run time, where it can be
/// interrupted and its memory is counted.
#[derive(Default)]
pub(crate) struct FoldBudget {
    checks: AtomicU32,
    bytes: AtomicU64,
    /// The patterns compiled for the command, and their bytes.
    patterns: AtomicU64,
    pattern_bytes: AtomicU64,
    /// The end of the command from outside, while it is parsed.
    interrupt: OnceLock<SharedInterrupt>,
}

/// An interrupt that is checked while a command is parsed.
pub(crate) type SharedInterrupt = Arc<dyn Interrupt + Send + Sync>;

/// One fold.
struct FoldInterrupt<'b> {
    budget: &'b FoldBudget,
    checks: AtomicU32,
}

impl Interrupt for FoldInterrupt<'_> {
    fn check_interrupt(&self) -> Result<()> {
        let own = self.checks.fetch_add(1, Memory::Relaxed);
        let all = self.budget.checks.fetch_add(1, Memory::Relaxed);
        if own < FOLD_CHECKS_MAX && all < FOLDS_CHECKS_MAX {
            return Ok(());
        }
        Err(Error::new(
            ErrorCode::ExceededMemoryLimit,
            "constant folding is over its budget",
        ))
    }
}

impl FoldBudget {
    /// Lets the interrupt end the parsing.
    pub(crate) fn set_interrupt(&self, interrupt: SharedInterrupt) {
        let _ = self.interrupt.set(interrupt);
    }

    /// Fails if the command was interrupted while it was parsed.
    pub(crate) fn check_interrupt(&self) -> Result<()> {
        match self.interrupt.get() {
            Some(interrupt) => interrupt.check_interrupt(),
            None => Ok(()),
        }
    }

    /// Returns the bytes that further patterns may take.
    pub(crate) fn pattern_bytes_left(&self) -> usize {
        let used = self.pattern_bytes.load(Memory::Relaxed);
        usize::try_from(PATTERN_BYTES_MAX.saturating_sub(used)).unwrap_or(usize::MAX)
    }

    /// Returns the number of patterns compiled so far.
    pub(crate) fn patterns(&self) -> u64 {
        self.patterns.load(Memory::Relaxed)
    }

    /// Counts a compiled pattern.
    pub(crate) fn count_pattern(&self, bytes: usize) {
        self.patterns.fetch_add(1, Memory::Relaxed);
        self.pattern_bytes.fetch_add(bytes as u64, Memory::Relaxed);
    }

    /// Computes a constant; `None` if that takes more than the budget.
    pub(crate) fn compute(
        &self,
        evaluate: impl FnOnce(EvaluationLimits<'_>) -> Result<Value>,
    ) -> Result<Option<Value>> {
        let left = FOLDED_BYTES_MAX.saturating_sub(self.bytes.load(Memory::Relaxed));
        if left == 0 || self.checks.load(Memory::Relaxed) >= FOLDS_CHECKS_MAX {
            return Ok(None);
        }
        let pool = Arc::<MemoryPool>::default();
        pool.set_most(CHUNK_BYTES);
        let interrupt = FoldInterrupt {
            budget: self,
            checks: AtomicU32::new(0),
        };
        let counters = EvaluationCounters::new(pool);
        match evaluate(EvaluationLimits {
            counters: &counters,
            interrupt: &interrupt,
            clock: None,
        }) {
            Ok(value) => {
                let bytes = memory_bytes(&value) as u64;
                self.bytes.fetch_add(bytes, Memory::Relaxed);
                Ok(Some(value))
            }
            Err(error) if error.code == ErrorCode::ExceededMemoryLimit => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The live bytes at one moment ([`EvalContext::mark`]).
#[derive(Clone, Copy, Debug)]
pub struct MemoryMark(u64);

impl EvalContext<'_> {
    /// Counts steps; fails if the operation was interrupted.
    #[inline]
    pub fn charge(&self, steps: usize) -> Result<()> {
        match &self.limits {
            None => Ok(()),
            Some(limits) => limits.charge(steps),
        }
    }

    /// Counts the work of reading `bytes`.
    #[inline]
    pub fn charge_bytes(&self, bytes: usize) -> Result<()> {
        self.charge(1 + bytes / BYTES_PER_STEP)
    }

    /// Counts the work of reading a value.
    #[inline]
    pub fn charge_value(&self, value: ValueRef<'_>) -> Result<()> {
        match &self.limits {
            None => Ok(()),
            Some(limits) => limits.charge(1 + value_bytes(value) / BYTES_PER_STEP),
        }
    }

    /// Counts the work of finding a path in a document of `bytes`.
    #[inline]
    pub fn charge_lookup(&self, bytes: usize) -> Result<()> {
        self.charge(1 + bytes / SKIPPED_BYTES_PER_STEP)
    }

    /// Returns the live bytes, to which [`EvalContext::hold`] adds.
    #[inline]
    pub fn mark(&self) -> MemoryMark {
        MemoryMark(match &self.limits {
            None => 0,
            Some(limits) => limits.counters.live_bytes.load(Memory::Relaxed),
        })
    }

    /// Sets the live bytes to `bytes` above the mark and counts the work of writing the growth; error 146 above the limit.
    pub fn hold(&self, mark: MemoryMark, bytes: usize) -> Result<()> {
        let Some(limits) = &self.limits else {
            return Ok(());
        };
        let before = limits.counters.live_bytes.load(Memory::Relaxed);
        let after = mark.0.saturating_add(bytes as u64);
        let growth = usize::try_from(after.saturating_sub(before)).unwrap_or(usize::MAX);
        limits.charge(1 + growth / BYTES_PER_STEP)?;
        limits.counters.set_live(after)
    }

    /// Sets the live bytes to those at the mark.
    #[inline]
    pub fn release(&self, mark: MemoryMark) {
        if let Some(limits) = &self.limits {
            limits.counters.release_to(mark.0);
        }
    }

    /// Returns the elements of an array; their list counts as live memory.
    pub fn elements<'v>(&self, array: ArrayRef<'v>) -> Result<Vec<ValueRef<'v>>> {
        let mark = self.mark();
        let mut elements = Vec::new();
        for element in array.iter() {
            elements.push(element);
            self.hold(mark, size_of_val(elements.as_slice()))?;
        }
        Ok(elements)
    }

    /// Sorts stably. `weight` returns the bytes a comparison of the item may read.
    pub fn sort<T>(
        &self,
        mut items: Vec<T>,
        weight: impl Fn(&T) -> usize,
        compare: impl Fn(&T, &T) -> Ordering,
    ) -> Result<Vec<T>> {
        if self.limits.is_none() || items.len() <= SORT_CHUNK {
            items.sort_by(compare);
            return Ok(items);
        }
        let mut runs = Vec::with_capacity(items.len().div_ceil(SORT_CHUNK));
        let mut items = items.into_iter().peekable();
        while items.peek().is_some() {
            let mut run: Vec<T> = items.by_ref().take(SORT_CHUNK).collect();
            for item in &run {
                self.charge_bytes(weight(item))?;
            }
            run.sort_by(&compare);
            runs.push(run);
        }
        while runs.len() > 1 {
            let mut merged = Vec::with_capacity(runs.len().div_ceil(2));
            let mut pairs = runs.into_iter();
            while let Some(left) = pairs.next() {
                merged.push(match pairs.next() {
                    None => left,
                    Some(right) => self.merge(left, right, &weight, &compare)?,
                });
            }
            runs = merged;
        }
        Ok(runs.pop().unwrap_or_default())
    }

    /// Sorts numbers.
    pub fn sort_numbers(&self, mut numbers: Vec<f64>) -> Result<Vec<f64>> {
        if numbers.len() <= SORTED_NUMBERS {
            self.charge(numbers.len())?;
            numbers.sort_unstable_by(f64::total_cmp);
            return Ok(numbers);
        }
        let mark = self.mark();
        // The runs and the merged numbers.
        self.hold(mark, 2 * size_of_val(numbers.as_slice()))?;
        let mut runs = Vec::new();
        for run in numbers.chunks_mut(SORTED_NUMBERS) {
            self.charge(run.len())?;
            run.sort_unstable_by(f64::total_cmp);
            runs.push(run.to_vec());
        }
        drop(numbers);
        while runs.len() > 1 {
            let mut merged = Vec::with_capacity(runs.len().div_ceil(2));
            let mut pairs = runs.into_iter();
            while let Some(left) = pairs.next() {
                merged.push(match pairs.next() {
                    None => left,
                    Some(right) => self.merge(left, right, &|_| 0, &f64::total_cmp)?,
                });
            }
            runs = merged;
        }
        self.release(mark);
        Ok(runs.pop().unwrap_or_default())
    }

    fn merge<T>(
        &self,
        left: Vec<T>,
        right: Vec<T>,
        weight: &impl Fn(&T) -> usize,
        compare: &impl Fn(&T, &T) -> Ordering,
    ) -> Result<Vec<T>> {
        let mut out = Vec::with_capacity(left.len() + right.len());
        let (mut left, mut right) = (left.into_iter().peekable(), right.into_iter().peekable());
        while let (Some(a), Some(b)) = (left.peek(), right.peek()) {
            self.charge_bytes(weight(a).min(weight(b)))?;
            out.extend(match compare(a, b) {
                Ordering::Greater => right.next(),
                _ => left.next(),
            });
        }
        out.extend(left);
        out.extend(right);
        Ok(out)
    }
}

/// An interrupt for tests.
#[cfg(test)]
pub(crate) mod testing {
    use std::cell::Cell;

    use super::{Error, ErrorCode, Interrupt, Result};

    /// Interrupts at the check after some others.
    pub(crate) struct InterruptAfter(Cell<u32>);

    impl InterruptAfter {
        pub(crate) fn new(checks: u32) -> Self {
            Self(Cell::new(checks))
        }

        /// Returns the checks that may still be made.
        pub(crate) fn left(&self) -> u32 {
            self.0.get()
        }
    }

    impl Interrupt for InterruptAfter {
        fn check_interrupt(&self) -> Result<()> {
            match self.0.get().checked_sub(1) {
                Some(left) => {
                    self.0.set(left);
                    Ok(())
                }
                None => Err(Error::new(ErrorCode::Interrupted, "interrupted")),
            }
        }
    }
}

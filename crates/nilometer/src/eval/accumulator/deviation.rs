//! `$stdDevPop` and `$stdDevSamp`: Welford's running mean and sum of squared differences, in
//! doubles. Values that are not numbers are skipped. For one number the population deviation is 0
//! and the sample deviation null; for none both are null.

use nilometer_bson::number::Number;
use nilometer_bson::{Value, ValueRef, array};

/// Running mean and sum of squared differences.
#[derive(Clone, Copy, Debug, Default)]
pub struct StdDev {
    count: u64,
    mean: f64,
    /// Sum of squared differences from the mean.
    squares: f64,
}

impl StdDev {
    /// Adds a value if it is a number.
    pub fn add(&mut self, value: ValueRef<'_>) {
        if let Some(number) = Number::of(value) {
            self.add_f64(number.to_f64());
        }
    }

    /// Adds a number.
    #[inline]
    pub fn add_f64(&mut self, value: f64) {
        self.count += 1;
        let before = value - self.mean;
        self.mean += before / self.count as f64;
        self.squares += before * (value - self.mean);
    }

    /// Merges a later partial state.
    pub fn merge(&mut self, other: &Self) {
        if other.count == 0 {
            return;
        }
        if self.count == 0 {
            *self = *other;
            return;
        }
        let (here, there) = (self.count as f64, other.count as f64);
        let apart = other.mean - self.mean;
        self.count += other.count;
        let both = self.count as f64;
        self.mean += apart * there / both;
        self.squares += other.squares + apart * apart * here * there / both;
    }

    pub(super) fn save(&self) -> Value {
        let count = i64::try_from(self.count).unwrap_or(i64::MAX);
        array![count, self.mean, self.squares]
    }

    pub(super) fn restore(saved: ValueRef<'_>) -> Option<Self> {
        let parts = saved.as_array()?;
        let number = |at: usize| match parts.get(at) {
            ValueRef::Double(number) => Some(number),
            _ => None,
        };
        Some(Self {
            count: u64::try_from(parts.get(0).as_exact_i64()?).ok()?,
            mean: number(1)?,
            squares: number(2)?,
        })
    }

    /// Returns the number of values added.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the population standard deviation.
    pub fn population(&self) -> Value {
        match self.count {
            0 => Value::Null,
            count => Value::Double((self.squares / count as f64).sqrt()),
        }
    }

    /// Returns the sample standard deviation.
    pub fn sample(&self) -> Value {
        match self.count {
            0 | 1 => Value::Null,
            count => Value::Double((self.squares / (count - 1) as f64).sqrt()),
        }
    }
}

//! Caches the answer of a test for buckets in which the fields of the test are constant.
//!
//! Such fields, for example the name of a metric or a unit, have few values in a collection. A bucket has one id for all of them
//! ([`BucketHeader::known_constants_id`]), so a
//! test that has evaluated an id need not evaluate another bucket with it.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::predicate::{BucketHeader, Truth};
use crate::error::Result;

/// Ids after which a test stops caching: if every bucket has its own values, the cache does not pay.
const MISSES_MAX: u32 = 256;

/// The answer for the last constants.
#[derive(Debug, Default)]
pub struct ConstantAnswer {
    /// The id and, in the lowest two bits, the answer; 0 before the first.
    last: AtomicU64,
    misses: AtomicU32,
}

/// A clone may become another test, so it starts without an answer.
impl Clone for ConstantAnswer {
    fn clone(&self) -> Self {
        Self::default()
    }
}

fn to_bits(answer: Option<bool>) -> u64 {
    match answer {
        Some(true) => 1,
        Some(false) => 2,
        None => 3,
    }
}

impl ConstantAnswer {
    /// Returns the answer of a test of the field `path` for the bucket, which `by_bounds` computes; `None` if the bucket has no id of
    /// constants, its field is none of them, or its value does not decide.
    pub(super) fn truth(
        &self,
        path: &str,
        header: &(impl BucketHeader + ?Sized),
        by_bounds: impl FnOnce() -> Truth,
    ) -> Result<Option<Truth>> {
        let Some(number) = header.known_constants_id() else {
            return Ok(None);
        };
        let answer = self.of(number, || {
            let first = path.split('.').next().unwrap_or("");
            if header.constants()?.get(first).is_missing() {
                return Ok(None);
            }
            Ok(match by_bounds() {
                Truth::True => Some(true),
                Truth::False => Some(false),
                Truth::Unknown => None,
            })
        })?;
        Ok(answer.map(Truth::of))
    }

    /// Returns the answer for the constants with this id. `find` computes it; `None` if it depends on other fields.
    pub fn of(
        &self,
        number: NonZeroU64,
        find: impl FnOnce() -> Result<Option<bool>>,
    ) -> Result<Option<bool>> {
        let last = self.last.load(Ordering::Relaxed);
        if last >> 2 == number.get() {
            #[cfg(test)]
            cov_mark::hit!(constant_answer_reused);
            return Ok(match last & 3 {
                1 => Some(true),
                2 => Some(false),
                _ => None,
            });
        }
        if self.misses.fetch_add(1, Ordering::Relaxed) >= MISSES_MAX {
            #[cfg(test)]
            cov_mark::hit!(constant_answers_given_up);
            self.misses.store(MISSES_MAX, Ordering::Relaxed);
            return Ok(None);
        }
        let answer = find()?;
        if number.leading_zeros() >= 2 {
            let new = number.get() << 2 | to_bits(answer);
            self.last.store(new, Ordering::Relaxed);
        }
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_constants_are_asked_once() {
        cov_mark::check_count!(constant_answer_reused, 3);
        let answer = ConstantAnswer::default();
        let number = |at| NonZeroU64::new(at).unwrap();
        for (at, expected) in [(7, Some(true)), (8, Some(false)), (u64::MAX >> 2, None)] {
            assert_eq!(answer.of(number(at), || Ok(expected)).unwrap(), expected);
            let again = answer.of(number(at), || panic!("asked again"));
            assert_eq!(again.unwrap(), expected);
        }
        // A clone has no answer yet.
        let other = answer.clone();
        assert_eq!(other.of(number(8), || Ok(Some(true))).unwrap(), Some(true));
        // An id that leaves no room for the answer is evaluated each time.
        for expected in [Some(true), Some(false)] {
            let found = answer.of(number(u64::MAX), || Ok(expected));
            assert_eq!(found.unwrap(), expected);
        }
    }

    #[test]
    fn where_each_bucket_has_its_own_nothing_is_remembered() {
        cov_mark::check!(constant_answers_given_up);
        let answer = ConstantAnswer::default();
        let asked = (1..=2 * u64::from(MISSES_MAX)).filter(|at| {
            let number = NonZeroU64::new(*at).unwrap();
            answer.of(number, || Ok(Some(true))).unwrap().is_some()
        });
        assert_eq!(asked.count(), MISSES_MAX as usize);
    }
}

//! Throttling of logins: a delay that grows with the failures of one address.
//!
//! The delay precedes the check, so that disconnecting early gains nothing. It is per address, so that a
//! user cannot be locked out from elsewhere. An address is removed after a quiet time; if there are too
//! many, the one quiet for the longest time is removed first.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Failures without a delay, for typing errors.
pub(super) const FREE_FAILURES: u32 = 3;

/// The first delay; it doubles with each further failure.
pub(super) const DELAY_MIN: Duration = Duration::from_millis(50);

/// The longest delay.
pub(super) const DELAY_MAX: Duration = Duration::from_secs(2);

/// How long a failure counts.
pub(super) const FAILURE_LIFETIME: Duration = Duration::from_secs(60);

/// Most addresses stored at once.
pub(super) const ADDRESSES_MAX: usize = 10_000;

#[derive(Clone, Copy, Debug)]
struct LoginFailures {
    count: u32,
    last: Duration,
}

/// The failures of each address. Times are those of a monotonic clock.
#[derive(Debug, Default)]
pub struct Throttle {
    addresses: Mutex<HashMap<String, LoginFailures>>,
}

impl Throttle {
    /// Returns the current delay of a login from `address`.
    pub fn delay(&self, address: &str, now: Duration) -> Duration {
        let addresses = self
            .addresses
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        match addresses.get(address) {
            Some(known) if now.saturating_sub(known.last) < FAILURE_LIFETIME => {
                match known.count.checked_sub(FREE_FAILURES) {
                    None | Some(0) => Duration::ZERO,
                    Some(n) => DELAY_MIN
                        .saturating_mul(1 << (n - 1).min(16))
                        .min(DELAY_MAX),
                }
            }
            _ => Duration::ZERO,
        }
    }

    /// Records a failed login from `address`.
    pub fn failed(&self, address: &str, now: Duration) {
        let mut addresses = self
            .addresses
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if addresses.len() >= ADDRESSES_MAX && !addresses.contains_key(address) {
            addresses.retain(|_, known| now.saturating_sub(known.last) < FAILURE_LIFETIME);
            if addresses.len() >= ADDRESSES_MAX {
                let oldest = addresses.iter().min_by_key(|(_, known)| known.last);
                if let Some(oldest) = oldest.map(|(address, _)| address.clone()) {
                    addresses.remove(&oldest);
                }
            }
        }
        let known = addresses
            .entry(address.to_owned())
            .or_insert(LoginFailures {
                count: 0,
                last: now,
            });
        if now.saturating_sub(known.last) >= FAILURE_LIFETIME {
            known.count = 0;
        }
        known.count = known.count.saturating_add(1);
        known.last = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delay_grows_to_a_bound_and_expires() {
        let throttle = Throttle::default();
        let now = Duration::from_secs(100);
        let mut delays = Vec::new();
        for _ in 0..12 {
            throttle.failed("a", now);
            delays.push(throttle.delay("a", now).as_millis());
        }
        assert_eq!(
            delays,
            [0, 0, 0, 50, 100, 200, 400, 800, 1600, 2000, 2000, 2000]
        );
        assert_eq!(throttle.delay("b", now), Duration::ZERO);
        assert_eq!(throttle.delay("a", now + FAILURE_LIFETIME), Duration::ZERO);
        throttle.failed("a", now + FAILURE_LIFETIME);
        assert_eq!(throttle.delay("a", now + FAILURE_LIFETIME), Duration::ZERO);
    }

    #[test]
    fn memory_is_bounded() {
        let throttle = Throttle::default();
        for n in 0..ADDRESSES_MAX + 10 {
            let now = Duration::from_millis(u64::try_from(n).unwrap());
            throttle.failed(&n.to_string(), now);
        }
        assert_eq!(throttle.addresses.lock().unwrap().len(), ADDRESSES_MAX);
    }
}

//! Object ids and UUIDs the server makes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use nilometer_bson::ObjectId;

use crate::operation::Clock;
use crate::query::Entropy;

/// Makes ids: five random bytes for the process, and a counter that starts anywhere.
pub struct IdSource {
    clock: Arc<dyn Clock>,
    entropy: Arc<Entropy>,
    process: [u8; 5],
    counter: AtomicU32,
}

impl IdSource {
    /// Draws the process bytes and the counter's start from `entropy`.
    pub fn new(clock: Arc<dyn Clock>, entropy: Arc<Entropy>) -> Self {
        let [a, b, c, d, e, rest @ ..] = entropy.next_u64().to_be_bytes();
        let counter = u32::from_be_bytes([0, rest[0], rest[1], rest[2]]);
        Self {
            clock,
            entropy,
            process: [a, b, c, d, e],
            counter: AtomicU32::new(counter),
        }
    }

    /// A source of ids that all carry the time of now: for one command.
    pub fn batch(&self) -> impl Fn() -> ObjectId + '_ {
        let seconds = (self.clock.now_ms().div_euclid(1000) as u32).to_be_bytes();
        move || {
            let mut id = [0; 12];
            id[..4].copy_from_slice(&seconds);
            id[4..9].copy_from_slice(&self.process);
            let count = self.counter.fetch_add(1, Ordering::Relaxed).to_be_bytes();
            id[9..].copy_from_slice(&count[1..]);
            ObjectId(id)
        }
    }

    /// A random UUID (version 4).
    pub fn uuid(&self) -> [u8; 16] {
        let mut uuid = [0; 16];
        uuid[..8].copy_from_slice(&self.entropy.next_u64().to_be_bytes());
        uuid[8..].copy_from_slice(&self.entropy.next_u64().to_be_bytes());
        uuid[6] = uuid[6] & 0x0F | 0x40;
        uuid[8] = uuid[8] & 0x3F | 0x80;
        uuid
    }

    /// A random number.
    pub fn random(&self) -> u64 {
        self.entropy.next_u64()
    }
}

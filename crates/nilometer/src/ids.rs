//! Generation of identities and random numbers.
//!
//! By default a keyed hash (the standard library's, keyed by the system at the start) of a counter, so that
//! values are not predictable from earlier ones. Not for secrets: the module `auth` reads those from the
//! system. A seeded source repeats the same values, for tests.

use std::cell::Cell;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use nilometer_bson::ObjectId;

#[derive(Debug)]
enum Mixer {
    Keyed(RandomState),
    Seeded(u64),
}

/// A source of identities and random numbers.
#[derive(Debug)]
pub struct IdSource {
    mixer: Mixer,
    drawn: AtomicU64,
    /// Five bytes that identify this source in its object ids.
    origin: [u8; 5],
    object_ids: AtomicU32,
}

impl Default for IdSource {
    fn default() -> Self {
        Self::new(Mixer::Keyed(RandomState::new()))
    }
}

impl IdSource {
    fn new(mixer: Mixer) -> Self {
        let mut source = Self {
            mixer,
            drawn: AtomicU64::new(0),
            origin: [0; 5],
            object_ids: AtomicU32::new(0),
        };
        let [a, b, c, d, e, x, y, z] = source.random().to_le_bytes();
        source.origin = [a, b, c, d, e];
        source.object_ids = AtomicU32::new(u32::from_le_bytes([x, y, z, 0]));
        source
    }

    /// Makes a source that returns the same values for the same `seed`.
    pub fn seeded(seed: u64) -> Self {
        Self::new(Mixer::Seeded(seed))
    }

    /// Returns 64 random bits.
    pub fn random(&self) -> u64 {
        let n = self.drawn.fetch_add(1, Ordering::Relaxed);
        match &self.mixer {
            Mixer::Keyed(keys) => keys.hash_one(n),
            Mixer::Seeded(seed) => split_mix(seed.wrapping_add(n)),
        }
    }

    /// Returns a random UUID (version 4).
    pub fn uuid(&self) -> [u8; 16] {
        let bits = (u128::from(self.random()) << 64) | u128::from(self.random());
        const VERSION: u128 = 0xF << 76;
        const VARIANT: u128 = 0b11 << 62;
        let bits = (bits & !VERSION & !VARIANT) | (4 << 76) | (0b10 << 62);
        bits.to_be_bytes()
    }

    /// Returns an object id for the time `now_ms`: seconds, the five bytes of this source, a counter.
    pub fn object_id(&self, now_ms: i64) -> ObjectId {
        let count = self.object_ids.fetch_add(1, Ordering::Relaxed);
        self.object_id_of(now_ms, count)
    }

    /// Returns a source of object ids for one command, which draws about as many as `expected` returns: their counters
    /// follow each other, also while other commands draw ids. Ids that count up within a bucket take almost no space.
    /// `expected` is called when the first id is drawn.
    pub fn object_ids<E: Fn() -> usize>(&self, now_ms: i64, expected: E) -> ObjectIds<'_, E> {
        ObjectIds {
            source: self,
            now_ms,
            expected,
            reserved: Cell::new(0),
            next: Cell::new(0),
            left: Cell::new(0),
        }
    }

    /// Returns the object id that identifies a process which began at `started_ms`. It does not count as drawn.
    pub fn process_id(&self, started_ms: i64) -> ObjectId {
        self.object_id_of(started_ms, 0)
    }

    fn object_id_of(&self, now_ms: i64, count: u32) -> ObjectId {
        let [a, b, c, d, e] = self.origin;
        // The seconds have 32 bits in this format, and wrap.
        let [.., s0, s1, s2, s3] = now_ms.div_euclid(1000).to_be_bytes();
        let [_, n0, n1, n2] = count.to_be_bytes();
        ObjectId([s0, s1, s2, s3, a, b, c, d, e, n0, n1, n2])
    }
}

/// Object ids reserved at a time, at most: the documents of the largest command. The counter has 16 million numbers for a
/// second, so ids that stay unused are no loss.
const RESERVED_MAX: usize = 100_000;

/// Object ids for one command. See [`IdSource::object_ids`].
#[derive(Debug)]
pub struct ObjectIds<'s, E> {
    source: &'s IdSource,
    now_ms: i64,
    expected: E,
    /// Ids reserved last. If more are drawn than were expected, twice as many are reserved each time.
    reserved: Cell<u32>,
    next: Cell<u32>,
    left: Cell<u32>,
}

impl<E: Fn() -> usize> ObjectIds<'_, E> {
    /// Returns the next id.
    pub fn draw(&self) -> ObjectId {
        if self.left.get() == 0 {
            self.reserve();
        }
        let count = self.next.get();
        self.next.set(count.wrapping_add(1));
        self.left.set(self.left.get() - 1);
        self.source.object_id_of(self.now_ms, count)
    }

    fn reserve(&self) {
        let count = match self.reserved.get() {
            0 => (self.expected)(),
            reserved => reserved as usize * 2,
        };
        let count = count.clamp(1, RESERVED_MAX) as u32;
        let counter = &self.source.object_ids;
        self.next.set(counter.fetch_add(count, Ordering::Relaxed));
        self.left.set(count);
        self.reserved.set(count);
    }
}

/// The output function of the SplitMix64 generator.
fn split_mix(state: u64) -> u64 {
    let mut z = state.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_their_form_and_do_not_repeat() {
        let ids = IdSource::default();
        let first = ids.object_id(1_700_000_000_123);
        let second = ids.object_id(1_700_000_000_999);
        assert_eq!(first.timestamp_seconds(), 1_700_000_000);
        assert_ne!(first, second);
        let uuid = ids.uuid();
        assert_eq!((uuid[6] >> 4, uuid[8] >> 6), (4, 0b10));
        assert_ne!(uuid, ids.uuid());
    }

    #[test]
    fn ids_of_one_command_follow_each_other() {
        let ids = IdSource::default();
        let (a, b, c) = (
            ids.object_ids(0, || 2000),
            ids.object_ids(0, || 700),
            ids.object_ids(0, || 0),
        );
        let mut seen = std::collections::BTreeSet::new();
        let mut breaks = [0; 3];
        let mut last = [None; 3];
        for _ in 0..2000 {
            for (at, id) in [a.draw(), b.draw(), c.draw()].into_iter().enumerate() {
                assert!(seen.insert(id.0));
                let count = u32::from_be_bytes([0, id.0[9], id.0[10], id.0[11]]);
                let before = last[at].replace(count);
                let follows =
                    before.is_some_and(|last: u32| count.wrapping_sub(last) & 0xFF_FFFF == 1);
                breaks[at] += usize::from(!follows);
            }
        }
        // The second one drew more than it expected; the third one did not know.
        assert_eq!(breaks[..2], [1, 2]);
        assert!(breaks[2] <= 11, "{breaks:?}");
    }

    #[test]
    fn a_seeded_source_repeats_itself() {
        let (a, b) = (IdSource::seeded(7), IdSource::seeded(7));
        assert_eq!(a.uuid(), b.uuid());
        assert_eq!(a.object_id(0), b.object_id(0));
        assert_ne!(IdSource::seeded(8).random(), a.random());
    }
}

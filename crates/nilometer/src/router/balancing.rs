//! Where ranges of new measurements should go, so that all partitions are written at the same rate.
//!
//! ```text
//! rates of the partitions ─┐
//! keys and their weights  ─┼──► passages: runs of keys from the partition that is written most to the one that is written least
//! chunks                  ─┘
//! ```
//!
//! The plan is a function of these alone, so tests repeat it from a seed. Bytes decide between partitions with about the same
//! rate: the one with fewer gets the range.

use std::collections::btree_map::{BTreeMap, Entry};
use std::collections::{HashMap, HashSet};

use super::moves::Passage;
use super::placement::Sharding;
use super::shard_key::KeyBound;
use crate::error::{Error, Result};

/// A partition is left alone until its rate is so much above the mean.
const TOLERATED: f64 = 1.25;

/// Two rates are about the same if they differ by less than this share of the mean.
const SAME_RATE: f64 = 0.1;

/// Most passages of one round and collection.
const PASSAGES_MAX: usize = 64;

/// Keys of a partition with their shares of what it is written, by key.
pub(crate) type KeyWeights = Vec<(KeyBound, f64)>;

/// What the partitions of a collection have.
#[derive(Clone, Debug, Default)]
pub(crate) struct Loads {
    /// Measurements in a unit of time.
    pub(crate) rates: Vec<f64>,
    pub(crate) bytes: Vec<i64>,
}

/// What is remembered from one round of the balancer to the next.
#[derive(Debug, Default)]
pub(crate) struct BalancerMemory {
    /// The measurements of each partition in the round before, by the id of the collection.
    pub(crate) counts: HashMap<[u8; 16], Vec<i64>>,
    /// The ids of the time series of which the last round assigned ranges.
    pub(crate) uneven: HashSet<[u8; 16]>,
}

impl Loads {
    fn mean(&self) -> f64 {
        self.rates.iter().sum::<f64>() / self.rates.len().max(1) as f64
    }

    fn heaviest(&self) -> Option<usize> {
        let all = 0..self.rates.len();
        all.max_by(|a, b| self.rates[*a].total_cmp(&self.rates[*b]))
    }

    /// Returns the partition that gets a range: of those that are written least the one with the fewest bytes.
    fn lightest(&self) -> Option<usize> {
        let least = self.rates.iter().copied().fold(f64::INFINITY, f64::min);
        let most = least + self.mean() * SAME_RATE;
        let all = (0..self.rates.len()).filter(|at| self.rates[*at] <= most);
        all.min_by_key(|at| self.bytes.get(*at).copied().unwrap_or(0))
    }
}

/// Plans what goes where, and changes `sharding` so. `weights_of` returns the keys of a partition: what is new with them goes to
/// it, or went there before.
pub(crate) fn plan(
    sharding: &mut Sharding,
    mut loads: Loads,
    now_ms: i64,
    mut weights_of: impl FnMut(usize) -> Result<KeyWeights>,
) -> Result<Vec<Passage>> {
    let mut known: BTreeMap<usize, KeyWeights> = BTreeMap::new();
    let mut out = Vec::new();
    while out.len() < PASSAGES_MAX {
        let (Some(from), Some(to)) = (loads.heaviest(), loads.lightest()) else {
            break;
        };
        let mean = loads.mean();
        if from == to || loads.rates[from] <= mean * TOLERATED {
            break;
        }
        if let Entry::Vacant(place) = known.entry(from) {
            place.insert(weights_of(from)?);
        }
        let (most, least) = (loads.rates[from], loads.rates[to]);
        // Up to the mean at best. If no run is so light, one behind which neither is written more than now.
        let wanted = [(most - mean).min(mean - least), (most - least) / 2.0];
        let weights = known.get(&from).map_or(&[][..], Vec::as_slice);
        let found = |wanted: &f64| run(sharding, weights, (from, to), (most, *wanted));
        let Some((passage, rate)) = wanted.iter().find_map(found) else {
            break;
        };
        let range = (passage.low.clone(), passage.high.clone());
        sharding.assign(range, to, now_ms)?;
        let moved = known.get_mut(&from);
        let moved: KeyWeights = moved.map_or_else(Vec::new, |all| {
            all.extract_if(.., |(key, _)| passage.low <= *key && *key < passage.high)
                .collect()
        });
        known.entry(to).or_default().extend(moved);
        if let Some(keys) = known.get_mut(&to) {
            keys.sort_by(|(a, _), (b, _)| a.cmp(b));
        }
        loads.rates[from] -= rate;
        loads.rates[to] += rate;
        out.push(passage);
    }
    Ok(out)
}

/// Returns the run of keys at the end of one chunk that comes nearest to the wanted rate without exceeding it, and its rate.
fn run(
    sharding: &Sharding,
    weights: &[(KeyBound, f64)],
    (from, to): (usize, usize),
    (rate, wanted): (f64, f64),
) -> Option<(Passage, f64)> {
    let chunks = sharding.chunks.iter().enumerate();
    let own = chunks.filter(|(_, chunk)| chunk.partition == from);
    let parts: Vec<_> = own
        .map(|(at, chunk)| {
            let max = sharding.max_of(at);
            let begin = weights.partition_point(|(key, _)| *key < chunk.min);
            let end = weights.partition_point(|(key, _)| *key < max);
            (chunk.min.clone(), max, &weights[begin..end.max(begin)])
        })
        .collect();
    let total: f64 = parts
        .iter()
        .flat_map(|(.., keys)| keys.iter().map(|(_, weight)| weight))
        .sum();
    let mut best: Option<(Passage, f64)> = None;
    for (min, max, keys) in parts {
        let mut sum = 0.0;
        let mut first = None;
        for (at, (key, weight)) in keys.iter().enumerate().rev() {
            let next = sum + rate * weight / total;
            if next > wanted {
                break;
            }
            sum = next;
            first = Some(match at {
                0 => min.clone(),
                _ => key.clone(),
            });
        }
        let is_better = best.as_ref().is_none_or(|(_, known)| sum > *known);
        if let Some(low) = first.filter(|low| is_better && sum > 0.0 && *low < max) {
            let passage = Passage {
                low,
                high: max,
                from,
                to,
            };
            best = Some((passage, sum));
        }
    }
    best
}

/// When the balancer may run: minutes of the day in UTC, from `start` to `stop`, over midnight if `stop` is before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ActiveWindow {
    start: u32,
    stop: u32,
}

impl ActiveWindow {
    /// Reads two times of the form `HH:MM`.
    pub(crate) fn parse(start: &str, stop: &str) -> Result<Self> {
        let minutes = |text: &str| {
            let (hours, minutes) = text.split_once(':')?;
            let hours = hours.parse::<u32>().ok().filter(|hours| *hours < 24)?;
            let minutes = minutes
                .parse::<u32>()
                .ok()
                .filter(|minutes| *minutes < 60)?;
            Some(hours * 60 + minutes)
        };
        let bad = || Error::bad_value("activeWindow has 'start' and 'stop', each as 'HH:MM'");
        let (start, stop) = (
            minutes(start).ok_or_else(bad)?,
            minutes(stop).ok_or_else(bad)?,
        );
        match start == stop {
            true => Err(bad()),
            false => Ok(Self { start, stop }),
        }
    }

    /// True at a time in ms since 1970.
    pub(crate) fn contains(self, now_ms: i64) -> bool {
        let minute = now_ms.div_euclid(60_000).rem_euclid(24 * 60);
        let minute = u32::try_from(minute).unwrap_or(0);
        match self.start < self.stop {
            true => (self.start..self.stop).contains(&minute),
            false => minute >= self.start || minute < self.stop,
        }
    }
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{Value, doc};

    use super::*;
    use crate::router::shard_key::ShardKey;

    /// A generator of numbers that a seed determines.
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, end: u64) -> u64 {
            self.0 = self
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (self.0 >> 33) % end
        }
    }

    fn key(n: i64) -> KeyBound {
        KeyBound(vec![Value::Int64(n)])
    }

    fn owner(sharding: &Sharding, n: i64) -> usize {
        let at = sharding.chunks.partition_point(|chunk| chunk.min <= key(n));
        sharding.chunks[at - 1].partition
    }

    /// Returns the rates of the partitions when each series is written at its own.
    fn rates(sharding: &Sharding, series: &[(i64, f64)], partitions: usize) -> Vec<f64> {
        let mut out = vec![0.0; partitions];
        for (n, rate) in series {
            out[owner(sharding, *n)] += rate;
        }
        out
    }

    #[test]
    fn new_measurements_are_spread_evenly_and_then_stay() {
        for seed in 1..200 {
            let mut numbers = Numbers(seed);
            let partitions = 2 + numbers.below(9) as usize;
            let count = partitions as u64 * 20 + numbers.below(400);
            let series: Vec<(i64, f64)> = (0..count)
                .map(|n| (n as i64 * 3, 1.0 + numbers.below(4) as f64))
                .collect();
            let shard_key = ShardKey::parse(doc! {"m": 1}.as_ref(), None).unwrap();
            let mut sharding = Sharding::new(shard_key, 0, None, 1);
            let bytes: Vec<i64> = (0..partitions)
                .map(|_| numbers.below(1000) as i64)
                .collect();
            let mut moved = Vec::new();
            for round in 0..4 {
                let before = sharding.clone();
                let loads = Loads {
                    rates: rates(&sharding, &series, partitions),
                    bytes: bytes.clone(),
                };
                let weights = |partition| {
                    let own = series
                        .iter()
                        .filter(|(n, _)| owner(&before, *n) == partition);
                    Ok(own.map(|(n, rate)| (key(*n), *rate)).collect())
                };
                moved.push(plan(&mut sharding, loads, round, weights).unwrap().len());
            }
            let found = rates(&sharding, &series, partitions);
            let mean = found.iter().sum::<f64>() / partitions as f64;
            let most = found.iter().copied().fold(0.0, f64::max);
            assert!(most <= mean * TOLERATED, "{seed}: {found:?}");
            assert!(moved[0] > 0, "{seed}");
            assert_eq!(moved[2..], [0, 0], "{seed}: it goes on");
        }
    }

    #[test]
    fn one_series_that_is_written_most_does_not_wander() {
        let shard_key = ShardKey::parse(doc! {"m": 1}.as_ref(), None).unwrap();
        let mut sharding = Sharding::new(shard_key, 0, None, 1);
        let loads = Loads {
            rates: vec![100.0, 0.0, 0.0],
            bytes: vec![0, 5, 1],
        };
        let moved = plan(&mut sharding, loads, 1, |_| Ok(vec![(key(1), 1.0)])).unwrap();
        assert!(moved.is_empty(), "{moved:?}");
    }

    #[test]
    fn of_partitions_with_one_rate_that_with_fewer_bytes_gets_the_range() {
        let shard_key = ShardKey::parse(doc! {"m": 1}.as_ref(), None).unwrap();
        let mut sharding = Sharding::new(shard_key, 0, None, 1);
        let loads = Loads {
            rates: vec![90.0, 0.0, 0.0],
            bytes: vec![0, 500, 1],
        };
        let keys = |_| Ok((0..9).map(|n| (key(n), 1.0)).collect());
        let moved = plan(&mut sharding, loads, 1, keys).unwrap();
        let first = moved.first().unwrap();
        assert_eq!((first.from, first.to, &first.low), (0, 2, &key(6)));
        assert_eq!(moved.len(), 2);
    }

    #[test]
    fn windows_are_of_a_day() {
        let at = |hours: i64, minutes: i64| (hours * 60 + minutes) * 60_000 + 86_400_000 * 20_000;
        let night = ActiveWindow::parse("23:00", "6:30").unwrap();
        let noon = ActiveWindow::parse("11:00", "13:00").unwrap();
        for (time, by_night, by_noon) in [
            (at(22, 59), false, false),
            (at(23, 0), true, false),
            (at(6, 29), true, false),
            (at(6, 30), false, false),
            (at(12, 0), false, true),
        ] {
            assert_eq!(night.contains(time), by_night);
            assert_eq!(noon.contains(time), by_noon);
        }
        for (start, stop) in [
            ("24:00", "1:00"),
            ("1:60", "2:00"),
            ("1", "2"),
            ("1:00", "1:00"),
        ] {
            assert!(ActiveWindow::parse(start, stop).is_err());
        }
    }
}

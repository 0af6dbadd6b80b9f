//! The data set: hosts with ten tags each, and ten metrics of every host at every tick.
//!
//! The rules of TSBS: tags are drawn once for each host; every metric is a random walk that starts uniform in [0, 100),
//! moves by a standard normal step at each tick, is clamped to [0, 100] and stored truncated to an integer. A value
//! fits a byte, so all of them stay in memory as the reference for answers.

mod document;
mod names;
mod random;

pub(crate) use document::Encoder;
pub(crate) use names::{METRICS, TAGS};
pub(crate) use random::Random;

use crate::options::Options;

/// Regions, each with the letters of its zones.
const REGIONS: [(&str, &str); 9] = [
    ("us-east-1", "abce"),
    ("us-west-1", "ab"),
    ("us-west-2", "abc"),
    ("eu-west-1", "abc"),
    ("eu-central-1", "ab"),
    ("ap-southeast-1", "ab"),
    ("ap-southeast-2", "ab"),
    ("ap-northeast-1", "ac"),
    ("sa-east-1", "abc"),
];
const OS: [&str; 3] = ["Ubuntu16.10", "Ubuntu16.04LTS", "Ubuntu15.10"];
const ARCH: [&str; 2] = ["x64", "x86"];
const TEAM: [&str; 4] = ["SF", "NYC", "LON", "CHI"];
const ENVIRONMENT: [&str; 3] = ["production", "staging", "test"];

/// 2016-01-01, where TSBS starts.
pub(crate) const START_MS: i64 = 1_451_606_400_000;

/// Streams of random numbers, one for each purpose, so that they are independent.
pub(crate) mod stream {
    pub(crate) const HOSTS: u64 = 1;
    pub(crate) const VALUES: u64 = 2;
    pub(crate) const ORDERS: u64 = 3;
    /// Plus the number of the query.
    pub(crate) const PARAMETERS: u64 = 100;
    /// Plus the number of the client.
    pub(crate) const CLIENTS: u64 = 1000;
}

/// The tags of a host, in the order of [`TAGS`].
pub(crate) type Host = [String; 10];

/// All values of all hosts.
pub(crate) struct DataSet {
    pub(crate) hosts: Vec<Host>,
    pub(crate) ticks: usize,
    pub(crate) interval_ms: i64,
    /// By tick, host, metric.
    values: Vec<u8>,
}

impl DataSet {
    /// Generates the data set of the options. The same options give the same data.
    pub(crate) fn generate(options: &Options) -> Self {
        let (scale, ticks) = (options.scale, options.ticks());
        let mut random = Random::new(options.seed, stream::HOSTS);
        let hosts = (0..scale).map(|i| draw_host(i, &mut random)).collect();
        let mut random = Random::new(options.seed, stream::VALUES);
        let mut state: Vec<f64> = (0..scale * METRICS.len())
            .map(|_| random.unit() * 100.0)
            .collect();
        let mut values = Vec::with_capacity(ticks * state.len());
        for _ in 0..ticks {
            for value in &mut state {
                values.push(*value as u8);
                *value = (*value + random.normal()).clamp(0.0, 100.0);
            }
        }
        Self {
            hosts,
            ticks,
            interval_ms: options.interval_s * 1000,
            values,
        }
    }

    /// Truncates the data set to `ticks` ticks.
    pub(crate) fn cut(&mut self, ticks: usize) {
        self.ticks = self.ticks.min(ticks);
    }

    /// Returns the number of measurements.
    pub(crate) fn rows(&self) -> usize {
        self.ticks * self.hosts.len()
    }

    /// Returns the memory of all values.
    pub(crate) fn value_bytes(&self) -> u64 {
        self.values.len() as u64
    }

    /// Returns the time of a tick.
    pub(crate) fn time_ms(&self, tick: usize) -> i64 {
        START_MS + tick as i64 * self.interval_ms
    }

    /// Returns the time after the last tick.
    pub(crate) fn end_ms(&self) -> i64 {
        self.time_ms(self.ticks)
    }

    /// Returns the ten metrics of a host at a tick.
    pub(crate) fn row(&self, tick: usize, host: usize) -> &[u8] {
        let at = (tick * self.hosts.len() + host) * METRICS.len();
        &self.values[at..at + METRICS.len()]
    }

    /// Returns the ticks within the half-open range of time.
    pub(crate) fn ticks_between(&self, from_ms: i64, to_ms: i64) -> std::ops::Range<usize> {
        let first = |ms: i64| {
            let ticks = (ms - START_MS).max(0) as u64;
            (ticks.div_ceil(self.interval_ms as u64) as usize).min(self.ticks)
        };
        first(from_ms)..first(to_ms)
    }

    /// Returns an encoder of rows as documents.
    pub(crate) fn encoder(&self, options: &Options) -> Encoder {
        Encoder::new(&self.hosts, options)
    }
}

fn draw_host(number: usize, random: &mut Random) -> Host {
    let (region, zones) = *random.pick(&REGIONS);
    let zones: Vec<char> = zones.chars().collect();
    let datacenter = format!("{region}{}", random.pick(&zones));
    [
        format!("host_{number}"),
        region.to_string(),
        datacenter,
        random.below(100).to_string(),
        (*random.pick(&OS)).to_string(),
        (*random.pick(&ARCH)).to_string(),
        (*random.pick(&TEAM)).to_string(),
        random.below(20).to_string(),
        random.below(2).to_string(),
        (*random.pick(&ENVIRONMENT)).to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> DataSet {
        DataSet::generate(&Options {
            scale: 7,
            days: 0.25,
            ..Options::default()
        })
    }

    #[test]
    fn the_same_seed_gives_the_same_data() {
        let (a, b) = (small(), small());
        assert_eq!(a.values, b.values);
        assert_eq!(a.hosts, b.hosts);
    }

    #[test]
    fn values_walk_within_their_limits() {
        let data = small();
        let mut steps = Vec::new();
        for tick in 1..data.ticks {
            for (before, after) in data.row(tick - 1, 3).iter().zip(data.row(tick, 3)) {
                assert!(*after <= 100);
                steps.push(f64::from(*after) - f64::from(*before));
            }
        }
        let variance = steps.iter().map(|s| s * s).sum::<f64>() / steps.len() as f64;
        // A step is N(0,1), truncation adds about 1/6; clamping removes a little.
        assert!((0.9..1.3).contains(&variance), "{variance}");
    }

    #[test]
    fn a_range_of_time_is_a_range_of_ticks() {
        let data = small();
        assert_eq!(data.ticks_between(START_MS, START_MS + 10_000), 0..1);
        assert_eq!(data.ticks_between(START_MS + 1, START_MS + 20_001), 1..3);
        assert_eq!(data.ticks_between(0, i64::MAX / 2), 0..data.ticks);
    }
}

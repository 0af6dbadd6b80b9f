//! The order in which measurements arrive.

use crate::data::{DataSet, Random};

/// The stream of random numbers for arrivals.
const STREAM: u64 = 20;

/// When a measurement arrives.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arrival {
    /// By tick, then host.
    InOrder,
    /// Each is late by a random number of ticks.
    Late {
        /// Maximum delay.
        ticks_max: u64,
    },
}

impl Arrival {
    /// Returns tick and host of every measurement, in the order of arrival.
    pub(crate) fn rows(
        self,
        data: &DataSet,
        seed: u64,
    ) -> Box<dyn Iterator<Item = (usize, usize)>> {
        let (ticks, hosts) = (data.ticks, data.hosts.len());
        let in_order = (0..ticks).flat_map(move |tick| (0..hosts).map(move |host| (tick, host)));
        match self {
            Self::InOrder => Box::new(in_order),
            Self::Late { ticks_max } => {
                let mut random = Random::new(seed, STREAM);
                let mut rows: Vec<(u64, (usize, usize))> = in_order
                    .map(|row| (row.0 as u64 + random.below(ticks_max + 1), row))
                    .collect();
                rows.sort_by_key(|(arrival, _)| *arrival);
                Box::new(rows.into_iter().map(|(_, row)| row))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;

    #[test]
    fn late_arrivals_are_all_there_and_not_in_order() {
        let data = DataSet::generate(&Options {
            scale: 5,
            days: 0.02,
            ..Options::default()
        });
        let mut late: Vec<_> = Arrival::Late { ticks_max: 9 }.rows(&data, 1).collect();
        assert!(!late.is_sorted());
        late.sort_unstable();
        assert!(late.into_iter().eq(Arrival::InOrder.rows(&data, 1)));
    }
}

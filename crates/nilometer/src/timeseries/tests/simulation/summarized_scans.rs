//! Scans by summaries, compared with the buckets.

use nilometer_bson::ObjectId;

use super::Simulation;
use crate::timeseries::scan::BucketRange;
use crate::timeseries::scan::summarized::ScannedBucket;

impl Simulation {
    /// Scans by summaries return the same buckets as those without.
    pub(super) fn check_summaries(&self) {
        let expected: Vec<_> = self.buckets().iter().map(|bucket| bucket.id()).collect();
        let third = |n: usize| expected.get(expected.len() * n / 3).map(|id| id.0);
        for backward in [false, true] {
            for (min, max) in [(None, None), (third(1), third(2)), (third(2), None)] {
                let range = BucketRange { min, max, backward };
                let within = expected.iter().filter(|id| range.contains(id.0));
                let mut within: Vec<_> = within.copied().collect();
                if backward {
                    within.reverse();
                }
                assert_eq!(self.ids_by_summaries(range), within, "{range:?}");
            }
        }
    }

    /// Returns the ids of the buckets in a range, in the order of a scan by summaries, after comparing each with its bucket.
    fn ids_by_summaries(&self, range: BucketRange) -> Vec<ObjectId> {
        let reader = &self.timeseries.reader;
        let scan = reader.scan_summarized(&self.collection, range);
        let mut ids = Vec::new();
        for bucket in scan.unwrap().exhaustive() {
            ids.push(match bucket.unwrap() {
                ScannedBucket::Stored(bucket) => bucket.id(),
                ScannedBucket::Summarized(bucket) => {
                    assert_eq!(
                        bucket.difference().unwrap(),
                        None,
                        "{}",
                        bucket.id().to_hex()
                    );
                    bucket.id()
                }
            });
        }
        ids
    }
}

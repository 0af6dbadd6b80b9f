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
            self.check_listed(&expected, backward);
        }
    }

    /// Reads of lists by summaries return the same buckets as those without: all of a list, every third, and one that has ids
    /// without a bucket. Some are outside of the range of buckets that are not cut.
    fn check_listed(&self, all: &[ObjectId], backward: bool) {
        let range = BucketRange {
            backward,
            ..BucketRange::default()
        };
        let middle = |n: usize| all.get(all.len() * n / 5).map(|id| id.0);
        let whole = BucketRange {
            min: middle(1),
            max: middle(4),
            backward: false,
        };
        let reader = &self.timeseries.reader;
        for step in [1, 3] {
            let wanted: Vec<_> = all.iter().step_by(step).map(|id| id.0).collect();
            let mut asked = wanted.clone();
            asked.extend(wanted.iter().step_by(4).map(|id| {
                let mut other = *id;
                other[11] ^= 0x55;
                other
            }));
            asked.sort_unstable();
            for whole in [BucketRange::default(), whole] {
                let listed = reader.scan_listed(&self.collection, asked.clone(), range);
                let listed = listed.unwrap().map(|bucket| bucket.unwrap().id());
                let listed: Vec<_> = listed.collect();
                if whole.min.is_some() {
                    self.timeseries.cache.clear_opened();
                }
                let scan =
                    reader.scan_listed_summarized(&self.collection, asked.clone(), (range, whole));
                let found = scan.unwrap().map(|bucket| match bucket.unwrap() {
                    ScannedBucket::Stored(bucket) => bucket.id(),
                    ScannedBucket::Summarized(bucket) => {
                        assert!(whole.contains(bucket.id().0));
                        assert_eq!(bucket.difference().unwrap(), None);
                        bucket.id()
                    }
                });
                let found: Vec<_> = found.collect();
                assert_eq!(found, listed);
            }
        }
    }

    /// Returns the ids of the buckets in a range, in the order of a scan by summaries, after comparing each with its bucket.
    fn ids_by_summaries(&self, range: BucketRange) -> Vec<ObjectId> {
        let reader = &self.timeseries.reader;
        let scan = reader.scan_summarized(&self.collection, range);
        let mut ids = Vec::new();
        for bucket in scan.unwrap() {
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

//! Counters of the bucket catalog, for one collection and for the server.

use std::sync::atomic::{AtomicI64, Ordering};

use nilometer_bson::DocumentBuilder;

use super::rollover::Rollover;

/// The counter after which the average is shown.
const AVERAGE_BEHIND: &str = "numMeasurementsCommitted";

macro_rules! counters {
    ($($field:ident => $name:literal;)*) => {
        /// Counters of a collection's buckets; names as in `collStats`.
        #[derive(Debug, Default)]
        pub struct BucketCounters {
            $(#[doc = $name] pub(crate) $field: AtomicI64,)*
        }

        impl BucketCounters {
            /// Adds another collection's counters to these.
            pub(crate) fn add(&self, other: &Self) {
                $(self.$field.fetch_add(other.$field.load(Ordering::Relaxed), Ordering::Relaxed);)*
            }

            /// Appends every counter under its name, and the average of measurements per commit
            /// once there was one.
            pub(crate) fn append(&self, out: &mut DocumentBuilder) {
                $(
                    out.append($name, self.$field.load(Ordering::Relaxed));
                    if $name == AVERAGE_BEHIND {
                        out.append(
                            "avgNumMeasurementsPerCommit",
                            self.average_measurements_per_commit(),
                        );
                    }
                )*
            }
        }
    };
}

// Some counters stay 0: inserts append to a bucket side by side, and never wait for each other or share a commit; a bucket
// is compressed from its first measurement; a bucket left for an earlier one is archived; and a series has one open bucket,
// which leaves before another is reopened.
counters! {
    bucket_inserts => "numBucketInserts";
    bucket_updates => "numBucketUpdates";
    opened_due_to_metadata => "numBucketsOpenedDueToMetadata";
    closed_due_to_count => "numBucketsClosedDueToCount";
    closed_due_to_schema_change => "numBucketsClosedDueToSchemaChange";
    closed_due_to_size => "numBucketsClosedDueToSize";
    closed_due_to_time_forward => "numBucketsClosedDueToTimeForward";
    closed_due_to_time_backward => "numBucketsClosedDueToTimeBackward";
    closed_due_to_memory_threshold => "numBucketsClosedDueToMemoryThreshold";
    commits => "numCommits";
    measurements_group_committed => "numMeasurementsGroupCommitted";
    waits => "numWaits";
    measurements_committed => "numMeasurementsCommitted";
    closed_due_to_reopening => "numBucketsClosedDueToReopening";
    archived_due_to_memory_threshold => "numBucketsArchivedDueToMemoryThreshold";
    archived_due_to_time_backward => "numBucketsArchivedDueToTimeBackward";
    reopened => "numBucketsReopened";
    kept_open_due_to_large_measurements => "numBucketsKeptOpenDueToLargeMeasurements";
    closed_due_to_cache_pressure => "numBucketsClosedDueToCachePressure";
    frozen => "numBucketsFrozen";
    converted_to_unsorted => "numCompressedBucketsConvertedToUnsorted";
    fetched => "numBucketsFetched";
    queried => "numBucketsQueried";
    fetches_failed => "numBucketFetchesFailed";
    queries_failed => "numBucketQueriesFailed";
    reopenings_failed => "numBucketReopeningsFailed";
    duplicates_reopened => "numDuplicateBucketsReopened";
    bytes_uncompressed => "numBytesUncompressed";
    bytes_compressed => "numBytesCompressed";
    sub_object_restarts => "numSubObjCompressionRestart";
    compressed_buckets => "numCompressedBuckets";
    uncompressed_buckets => "numUncompressedBuckets";
    failed_decompress_buckets => "numFailedDecompressBuckets";
}

impl BucketCounters {
    /// Counts a bucket that closed.
    pub(crate) fn count_rollover(&self, reason: Rollover) {
        let counter = match reason {
            Rollover::Count => &self.closed_due_to_count,
            Rollover::Size => &self.closed_due_to_size,
            Rollover::CachePressure => &self.closed_due_to_cache_pressure,
            Rollover::TimeForward => &self.closed_due_to_time_forward,
            Rollover::TimeBackward => &self.archived_due_to_time_backward,
            Rollover::SchemaChange => &self.closed_due_to_schema_change,
            // Counted when it was frozen.
            Rollover::Frozen => return,
        };
        increment(counter, 1);
    }

    /// Returns the measurements per commit, rounded down; `None` before the first commit.
    pub(crate) fn average_measurements_per_commit(&self) -> Option<i64> {
        let commits = self.commits.load(Ordering::Relaxed);
        self.measurements_committed
            .load(Ordering::Relaxed)
            .checked_div(commits)
    }
}

/// Adds to a counter.
pub(crate) fn increment(counter: &AtomicI64, by: i64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

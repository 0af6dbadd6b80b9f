//! Counters of the bucket catalog, for one collection and for the server.

use std::sync::atomic::{AtomicI64, Ordering};

use nilometer_bson::DocumentBuilder;

use super::rollover::Rollover;

macro_rules! counters {
    ($($field:ident => $name:literal;)*) => {
        /// What happened to the buckets of a collection; names as in `collStats`.
        #[derive(Debug, Default)]
        pub struct BucketCounters {
            $(#[doc = $name] pub(crate) $field: AtomicI64,)*
        }

        impl BucketCounters {
            /// Adds another collection's counters to these.
            pub(crate) fn add(&self, other: &Self) {
                $(self.$field.fetch_add(other.$field.load(Ordering::Relaxed), Ordering::Relaxed);)*
            }

            /// Appends every counter under its name.
            pub(crate) fn append(&self, out: &mut DocumentBuilder) {
                $(out.append($name, self.$field.load(Ordering::Relaxed));)*
            }
        }
    };
}

counters! {
    bucket_inserts => "numBucketInserts";
    bucket_updates => "numBucketUpdates";
    opened_due_to_metadata => "numBucketsOpenedDueToMetadata";
    closed_due_to_count => "numBucketsClosedDueToCount";
    closed_due_to_schema_change => "numBucketsClosedDueToSchemaChange";
    closed_due_to_size => "numBucketsClosedDueToSize";
    closed_due_to_time_forward => "numBucketsClosedDueToTimeForward";
    archived_due_to_time_backward => "numBucketsArchivedDueToTimeBackward";
    closed_due_to_memory_threshold => "numBucketsClosedDueToMemoryThreshold";
    closed_due_to_reopening => "numBucketsClosedDueToReopening";
    reopened => "numBucketsReopened";
    fetched => "numBucketsFetched";
    fetches_failed => "numBucketFetchesFailed";
    queried => "numBucketsQueried";
    queries_failed => "numBucketQueriesFailed";
    reopenings_failed => "numBucketReopeningsFailed";
    commits => "numCommits";
    measurements_committed => "numMeasurementsCommitted";
    converted_to_unsorted => "numCompressedBucketsConvertedToUnsorted";
    kept_open_due_to_large_measurements => "numBucketsKeptOpenDueToLargeMeasurements";
}

impl BucketCounters {
    /// Counts a bucket that closed.
    pub(crate) fn count_rollover(&self, reason: Rollover) {
        let counter = match reason {
            Rollover::Count => &self.closed_due_to_count,
            Rollover::Size => &self.closed_due_to_size,
            Rollover::TimeForward => &self.closed_due_to_time_forward,
            Rollover::TimeBackward => &self.archived_due_to_time_backward,
            Rollover::SchemaChange => &self.closed_due_to_schema_change,
        };
        increment(counter, 1);
    }

    /// Measurements written per commit, rounded down; `None` before the first commit.
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

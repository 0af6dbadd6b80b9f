//! TODO head of timeseries::cache.

pub(crate) mod bucket_cache;
pub(crate) mod column_names;
pub(crate) mod meta_ids;
pub(crate) mod opened_bucket;
pub(crate) mod prefetch;
pub(crate) mod sealed_bucket_list;

//! TODO head of timeseries::format.

pub(crate) mod bucket_document;
pub(crate) mod min_max;
pub(crate) mod schema;
pub(crate) mod sealed;
pub(crate) mod series_index;
pub(crate) mod series_key;
pub(crate) mod tail;

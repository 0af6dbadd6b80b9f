//! The bytes of buckets in storage.
//!
//! ```text
//! tail            entries that inserts append to an open bucket
//! bucket_document the document of a bucket, as MongoDB describes it     ◄─ min_max, schema: its control fields
//! sealed          the stored form of a bucket that no longer grows      ◄─ dictionary: what buckets share
//! series_key      normalised metadata: names a series
//! series_index    series and time of a bucket ─► its id
//! registry        the metadata of every series
//! summary         headers and totals of many sealed buckets in a block
//! ```
//!
//! Each format is written and read in one module. These modules hold no state and read no storage; the exception is
//! [`sealed::Dictionaries`], which keeps the dictionaries of the collections.

pub(crate) mod bucket_document;
pub(crate) mod key_range;
pub(crate) mod keyspaces;
pub(crate) mod min_max;
pub(crate) mod registry;
pub(crate) mod schema;
pub(crate) mod sealed;
pub(crate) mod series_index;
pub(crate) mod series_key;
pub(crate) mod summary;
pub(crate) mod tail;

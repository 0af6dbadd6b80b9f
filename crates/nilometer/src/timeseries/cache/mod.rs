//! What readers of buckets keep in memory.
//!
//! ```text
//! seal ─► prefetch ──────────────┐
//!                                ▼
//! scan ─► sealed_bucket_list ─► bucket_cache ─► opened_bucket ─► columns of the query
//!                                                  ├─ meta_ids: a number for each metadata value
//!                                                  └─ column_names: the names of the columns of a collection
//! ```
//!
//! [`opened_bucket::StoredBucket`] is a bucket with its columns, decoded as they are read. The other modules save work:
//! each can forget all it holds, and a scan then reads storage again.
//!
//! Does not decide which buckets a query reads: that is [`super::scan`].

pub(crate) mod bucket_cache;
pub(crate) mod column_names;
pub(crate) mod meta_ids;
pub(crate) mod opened_bucket;
pub(crate) mod prefetch;
pub(crate) mod sealed_bucket_list;

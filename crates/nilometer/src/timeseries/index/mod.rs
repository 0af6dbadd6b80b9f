//! Indexes of time-series collections: stored over buckets, specified by users in terms of measurements.
//!
//! ```text
//! createIndexes ─► spec (keys, partial_filter) ─► build ─► entries
//! every change of a bucket ─► maintenance ─► entries, in the engine batch of the change
//! reads of system.buckets by an index ─► view
//! validate ─► validate: entries against buckets
//! ```
//!
//! An entry refers to a bucket, never to a measurement. Does not read entries for queries: that is [`super::scan::index_scan`].

pub(crate) mod build;
pub(crate) mod keys;
pub(crate) mod maintenance;
pub(crate) mod partial_filter;
pub mod spec;
pub(crate) mod validate;
pub(crate) mod view;

use std::sync::Arc;

use super::Timeseries;
use crate::catalog::Collection;
use crate::error::Result;
use build::BucketWalk;
use view::BucketView;

impl Timeseries {
    /// Returns the buckets of a collection, for building indexes over them.
    pub fn walk<'w>(&'w self, collection: &'w Collection) -> BucketWalk<'w> {
        BucketWalk::new(self, collection)
    }

    /// Returns a snapshot of the bucket documents of a collection and of their index entries.
    pub fn view(&self, collection: &Arc<Collection>) -> Result<BucketView> {
        BucketView::open(&*self.engine, collection)
    }
}

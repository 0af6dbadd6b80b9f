//! Update and delete statements: one form for all commands and stages that change documents.
//!
//! ```text
//! update · delete · findAndModify · bulkWrite · $merge
//!            │
//!      ModifyStatement ──► WriteTarget ──► records         write::Records
//!                                     ├──► raw buckets     raw_buckets   (`system.buckets.<name>`)
//!                                     └──► measurements    measurements  (a time-series collection)
//! ```
//!
//! A caller parses its options, builds a [`ModifyStatement`] and runs it with a [`ModifyContext`], the
//! parts of the database that statements read and change. Documents are found as a query would find
//! them: [`candidates`] plans for ordinary collections, [`bucket_access`] for measurements.
//!
//! A statement that fails half-way keeps its earlier changes, as in MongoDB.
//!
//! This module does not parse options, write replies or count operations: commands do. It does not name
//! `database`, which implements [`BucketAccess`] for it.

pub(crate) mod bucket_access;
pub(crate) mod candidates;
pub(crate) mod measurements;
mod raw_buckets;
mod statement;
mod target;

pub(crate) use statement::{
    Modified, ModifyAction, ModifyStatement, Selector, StatementHint, new_document,
};
pub(crate) use target::WriteTarget;

use std::sync::Arc;

use crate::catalog::{Catalog, Collection};
use crate::error::Result;
use crate::ids::IdSource;
use crate::query::source::{BucketIndexScan, BucketSource, ScanCounters};
use crate::timeseries::{BucketRange, StoredBuckets, Timeseries};
use crate::write::Records;

/// The parts of a database that statements read and change.
#[derive(Clone, Copy)]
pub(crate) struct ModifyContext<'a> {
    pub(crate) catalog: &'a Catalog,
    pub(crate) records: &'a Records,
    pub(crate) timeseries: &'a Arc<Timeseries>,
    pub(crate) ids: &'a IdSource,
    pub(crate) buckets: &'a dyn BucketAccess,
}

/// Buckets as queries read them; the sources of queries implement it.
pub(crate) trait BucketAccess {
    /// Returns the buckets of a collection as a source to plan with.
    fn source(&self, collection: &Arc<Collection>) -> Result<Arc<dyn BucketSource>>;

    /// Reads the buckets between two ids that an index leads to.
    fn by_index(
        &self,
        collection: &Arc<Collection>,
        scan: &BucketIndexScan,
        range: BucketRange,
        counters: &Arc<ScanCounters>,
    ) -> Result<StoredBuckets>;
}

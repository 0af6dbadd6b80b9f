//! Queries: from a command's filter or pipeline to batches of results.
//!
//! ```text
//! cursor      a running query, kept between commands        explain   the physical plan in MongoDB's terms, with counters
//! exec        physical plan ─► operators that pull batches: rows, or blocks of columns
//! planner     stages + namespace ─► logical plan ─► physical plan
//! pipeline    documents ─► typed stages; names and arguments are checked here
//! batch       rows, or the measurements of one bucket with their columns and as BSON
//! collector   batches of a cursor for an embedding program
//! outputs     traits of what `$out` and `$merge` write
//! partitions  traits of a collection in several partitions
//! source      traits of stored data
//! ```
//!
//! Each module imports only those below it; tidy checks that.
//!
//! Guarantee: a query on a time-series collection returns exactly the result of the same query on an ordinary
//! collection with the same measurements. Every optimisation is a rule that can be turned off, or a block operator that
//! tests compare with its row operator.

pub mod batch;
pub mod collector;
pub mod cursor;
pub mod exec;
pub mod explain;
pub mod outputs;
pub mod partitions;
pub mod pipeline;
pub mod planner;
pub mod source;

pub(crate) mod number;

use std::path::Path;
use std::sync::Arc;

use crate::eval::Random;
use crate::ids::IdSource;
use cursor::CursorRegistry;
use exec::ExecLimits;
use exec::workers::Workers;
use planner::access::cache::PlanCache;
use source::Collections;

/// The parts of a database that query commands use.
#[derive(Clone)]
pub struct QueryServices {
    /// The stored collections.
    pub collections: Arc<dyn Collections>,
    /// Cursors between commands.
    pub cursors: Arc<CursorRegistry>,
    /// Memory limits of one query.
    pub limits: ExecLimits,
    /// Memory of all queries together.
    pub memory: Arc<exec::memory::MemoryPool>,
    /// The folder for data that does not fit into memory.
    pub spill: Option<Arc<Path>>,
    /// The source of cursor ids and of random numbers for `$sample` and `$rand`.
    pub ids: Arc<IdSource>,
    /// The best index of known query shapes.
    pub plans: Arc<PlanCache>,
    /// Threads that share the work of queries.
    pub workers: Arc<Workers>,
}

impl Random for IdSource {
    fn next_f64(&self) -> f64 {
        // The upper 53 bits: each multiple of 2^-53 in [0, 1) is equally likely.
        (self.random() >> 11) as f64 / (1u64 << 53) as f64
    }
}

//! Queries: from a command's filter or pipeline to batches of answers.
//!
//! ```text
//! pipeline   documents ─► typed stages                      names and arguments are checked here
//! planner    stages + namespace ─► logical plan ─► rules ─► physical plan
//! exec       operators that pull batches: rows, or blocks of columns
//! row_writer measurements of a block as bytes, for whoever wants documents
//! cursor     a query in progress, kept between commands
//! explain    the plan, and what it touched, in MongoDB's words
//! source     what a query may ask of stored data (traits)
//! ```
//!
//! The promise is that of the whole product: a query on a time-series collection answers exactly as
//! on an ordinary collection holding the same measurements. Everything that makes it fast is a rule
//! that can be left out, or a block operator whose answers are held against the row operator's.

pub mod batch;
pub mod cursor;
pub mod exec;
pub mod explain;
pub mod pipeline;
pub mod planner;
pub mod row_writer;
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

/// What query commands need of a database.
#[derive(Clone)]
pub struct QueryServices {
    /// What is stored.
    pub collections: Arc<dyn Collections>,
    /// Cursors between commands.
    pub cursors: Arc<CursorRegistry>,
    /// Memory a query may take.
    pub limits: ExecLimits,
    /// Memory all queries may take together.
    pub memory: Arc<exec::memory::MemoryPool>,
    /// Where queries may write what they cannot hold in memory.
    pub spill: Option<Arc<Path>>,
    /// Where cursor ids, `$sample` and `$rand` draw from.
    pub ids: Arc<IdSource>,
    /// Which indexes served queries of a shape best.
    pub plans: Arc<PlanCache>,
    /// Threads that help with queries.
    pub workers: Arc<Workers>,
}

impl Random for IdSource {
    fn next_f64(&self) -> f64 {
        // The upper 53 bits: every double in [0, 1) that is a multiple of 2^-53, equally likely.
        (self.random() >> 11) as f64 / (1u64 << 53) as f64
    }
}

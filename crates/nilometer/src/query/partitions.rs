//! The interface between queries and a collection whose documents are in several partitions.
//!
//! ```text
//! stages ── planner::cut ──► part: stages that each partition runs on its documents
//!                            rest: stages that run here, over what the partitions return
//! ```
//!
//! Every document is in one partition. The result of a query is that of its stages over the documents of all partitions,
//! one partition after the other in the order of [`PartitionSource::targets`]. Reading them that way and running every
//! stage here is the definition, and the oracle of tests; a cut only moves work to the partitions.
//!
//! A part is text: the documents of its stages, which the partition parses and plans as a client's pipeline. This module
//! knows no network and no placement.

use nilometer_bson::{Document, Value};

use crate::error::Result;
use crate::eval::matcher::MatchExpression;
use crate::operation::{OperationContext, PartMetadata, PartRequest};

/// The part of a pipeline that a partition runs.
#[derive(Clone, Debug)]
pub struct Part {
    /// The stages as a client writes them.
    pub stages: Vec<Document>,
    /// What the partition returns.
    pub form: PartForm,
    /// `$$NOW` of the whole query.
    pub now_ms: i64,
    /// The names and values of the query's variables.
    pub variables: Document,
    /// The collation of the query; `None` for the simple one.
    pub collation: Option<Document>,
    /// The hint of the command; missing if there is none.
    pub hint: Value,
    /// Stages above their memory limit may write to disk.
    pub allows_disk_use: bool,
    /// The metadata that the documents bring.
    pub metadata: PartMetadata,
}

impl Part {
    /// Returns what a router asks of a partition beside the stages.
    pub fn request(&self) -> PartRequest {
        PartRequest {
            returns_states: self.form == PartForm::States,
            now_ms: self.now_ms,
            metadata: self.metadata,
        }
    }
}

/// What a partition returns for a part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PartForm {
    /// The documents of the last stage.
    #[default]
    Documents,
    /// The last stage is a `$group`: its groups with the states of their accumulators, in the form in which groups are
    /// spilled to disk.
    States,
}

/// A collection in several partitions.
pub trait PartitionSource: Send + Sync {
    /// Returns the partitions that may hold documents which pass `filter`, in the order in which they are read.
    fn targets(&self, filter: Option<&MatchExpression>) -> Result<Vec<usize>>;

    /// Returns the name of a partition, for explain.
    fn name(&self, partition: usize) -> String;

    /// Returns where a partition is reached, for explain.
    fn host(&self, partition: usize) -> String;

    /// Asks several partitions at the same time to explain `part`. `verbosity` is that of the command.
    fn explain(
        &self,
        partitions: &[usize],
        part: &Part,
        verbosity: &str,
        operation: &OperationContext,
    ) -> Result<Vec<Document>>;

    /// Starts `part` in a partition. Does not wait for its result, so several partitions work at the same time.
    fn open(
        &self,
        partition: usize,
        part: &Part,
        operation: &OperationContext,
    ) -> Result<Box<dyn PartitionCursor>>;
}

/// The documents that a partition returns for a part. Dropped before its end, it ends the work of the partition.
pub trait PartitionCursor: Send {
    /// Waits until the partition has started the part: no later change of where documents are makes it refuse the part.
    fn wait_for_start(&mut self, operation: &OperationContext) -> Result<()>;

    /// Waits for the next documents and returns them; `None` at the end, and on every later call.
    fn next(&mut self, operation: &OperationContext) -> Result<Option<Vec<Document>>>;
}

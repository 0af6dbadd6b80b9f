//! Rollups: stored groups of a time series by metadata and bins of time, which always answer as their source would.
//!
//! ```text
//! insert, change ──► marks (late and changed bins) ──┐ same engine batch
//!                                                    ▼
//! refresh ──► bins: partial states ───────────► RollupView ──► clean bins from here, others from the source
//! ```
//!
//! - [`definition`] what a rollup computes: its key, bins and accumulators, and what cannot be kept.
//! - [`bins`] the division of time, and which division divides which.
//! - [`marks`] the bins that a write makes dirty.
//! - [`indexes`] the entries of bins in the indexes of their rollup.
//! - [`view`] the stored bytes of marks and bins, in one snapshot.
//!
//! Reading a rollup as a query does is the work of the module `query`, refreshing that of `database`
//! ([decision 0029](../../../../docs/decisions/0029-rollups.md)).

pub mod bins;
pub mod definition;
pub mod indexes;
pub mod marks;
pub mod view;

pub use bins::RollupBins;
pub use definition::{KeyPart, PartSource, RollupDefinition, definition_of};
pub use indexes::{BinIndexes, BinKeys};
pub use marks::RollupMarks;
pub use view::{DirtyMark, RollupView, StoredBin};

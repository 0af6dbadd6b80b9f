//! Ordinary collections: documents under record ids, unique by `_id`.
//!
//! A record id is eight bytes, big-endian, increasing: natural order is insertion order. The `_id` index
//! maps the key string of `_id` to the record id. Both change in one engine batch, together with the
//! entries of all other indexes ([`maintenance`]).
//!
//! [`update`] is the update language on one document and does not know records; `change` joins the two.
//!
//! A clustered collection has no record ids: its documents are stored under the key strings of their `_id`,
//! and entries of other indexes end with those.
//!
//! A capped collection keeps the newest of its documents ([`capped`]).
//!
//! Does not know time series, queries or commands.

mod build;
mod candidates;
mod capped;
mod change;
mod claims;
mod expire;
mod insert;
mod maintenance;
mod near_reads;
mod rebuild;
mod records;
mod timestamps;
mod transaction;
pub mod update;
mod validate;
mod validator;
mod view;

pub use build::RecordBuildSource;
pub use candidates::{CandidateKey, CandidateKeys, Candidates};
pub use capped::{Arrivals, CappedLimits};
pub use change::{ChangedDocument, Selection, UpdateResult};
pub(crate) use change::{ids_of, new_document};
pub(crate) use insert::with_id;
pub use rebuild::RebuildCounts;
pub use records::{KeyBounds, RecordScan, Records, clustered_key};
pub(crate) use transaction::RecordChanges;
pub use validator::{DocumentChecks, Validator};
pub use view::CollectionSnapshot;

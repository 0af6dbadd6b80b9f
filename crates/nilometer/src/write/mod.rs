//! Ordinary collections: documents under record ids, unique by `_id`.
//!
//! A record id is eight bytes, big-endian, counting up: natural order is the order of insertion. The
//! `_id` index maps the key string of `_id` to the record id. Both change in one engine batch, and
//! with them the entries of all other indexes ([`maintenance`]).
//!
//! [`update`] is the update language on one document and knows nothing of records; `change` brings
//! the two together.
//!
//! A clustered collection has no record ids: its documents lie under the key strings of their `_id`,
//! and entries of other indexes end with those.
//!
//! A capped collection keeps the newest of its documents ([`capped`]).
//!
//! Does not know time series, queries or commands.

mod build;
mod candidates;
mod capped;
mod change;
mod expire;
mod insert;
mod maintenance;
mod rebuild;
mod records;
mod timestamps;
pub mod update;
mod validate;
mod validator;
mod view;

pub use build::RecordWalk;
pub use candidates::{CandidateKey, CandidateKeys, Candidates};
pub use capped::{Arrivals, CappedLimits};
pub use change::{Changed, Selection, Updated};
pub(crate) use change::{ids_of, new_document};
pub(crate) use insert::with_id;
pub use rebuild::Rebuilt;
pub use records::{KeyBounds, RecordScan, Records, clustered_key};
pub use validator::{Checking, Validator};
pub use view::{CollectionView, ViewEntry};

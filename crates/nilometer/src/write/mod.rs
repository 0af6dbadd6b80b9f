//! Ordinary collections: documents under record ids, unique by `_id`.
//!
//! A record id is eight bytes, big-endian, counting up: natural order is the order of insertion. The
//! `_id` index maps the key string of `_id` to the record id. Both change in one engine batch, and
//! with them the entries of all other indexes ([`maintenance`]).
//!
//! [`update`] is the update language on one document and knows nothing of records; `change` brings
//! the two together.
//!
//! Does not know time series, queries or commands.

mod build;
mod candidates;
mod change;
mod expire;
mod insert;
mod maintenance;
mod records;
pub mod update;
mod validate;
mod view;

pub use build::RecordWalk;
pub use candidates::{CandidateKey, CandidateKeys, Candidates};
pub use change::{Changed, Selection, Updated};
pub(crate) use change::{ids_of, new_document};
pub(crate) use insert::with_id;
pub use records::{RecordScan, Records};
pub use view::{CollectionView, ViewEntry};

//! The database on object storage: an engine whose only disk is an S3-compatible store, Azure, Google or a directory.
//!
//! [`SlateEngine`] has the contract of [`nilometer_storage::engine`] over [SlateDB](https://slatedb.io), an LSM tree of
//! immutable objects with one writer, which fences its predecessor when it opens. This crate is the only one with an
//! async runtime; its interface is synchronous. SlateDB leaves the following to its user:
//!
//! | | |
//! |---|---|
//! | keyspaces in one ordered space of keys | [`layout`], [`keyspaces`] |
//! | positions, and what readers may see of commits in flight | [`commit`] |
//! | blocking calls; scans with read-ahead | [`core`], [`scan`] |
//! | removing the entries of dropped keyspaces | [`retained`] |
//! | merging everything | [`merge`], [`schedule`] |
//! | sizes of keyspaces | [`sizes`] |
//! | a cache that knows its bytes | [`cache`] |
//! | requests in flight and their count | [`requests`] |
//! | the store of a URL; refusing stores in which two writers could be at work | [`url`], [`mod@probe`] |
//! | reading without disturbing a writer, for copies | [`source`] |
//! | which of several processes writes | [`claim`] |

mod cache;
mod claim;
mod commit;
mod core;
mod engine;
mod error;
mod keyspaces;
mod layout;
mod lock;
mod merge;
mod options;
mod probe;
mod requests;
mod retained;
mod scan;
mod schedule;
mod sizes;
mod snapshot;
mod source;
mod url;
mod verify;

pub use claim::{Claim, ClaimIntervals, Claimant};
pub use engine::SlateEngine;
pub use options::SlateOptions;
pub use probe::{StoreAbilities, probe};
pub use requests::RequestCounts;
pub use source::SlateSource;
pub use url::{InvalidUrl, StorageUrl};

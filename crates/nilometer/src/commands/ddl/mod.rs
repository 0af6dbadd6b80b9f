//! Commands that define collections, views and indexes, rename and drop them, and list them.
//!
//! They check the definition, which has an error text for each mistake, and hand it to `catalog`.
//! [`create`] and [`coll_mod`] share the checks of options; [`create_indexes`], [`drop_indexes`],
//! [`list_indexes`] and [`coll_mod`] share [`indexes`]. The building of an index is done by `index` and
//! `database`.

pub(super) mod capped;
pub(super) mod coll_mod;
pub(super) mod collection_uuid;
pub(super) mod create;
pub(super) mod create_indexes;
pub(super) mod drop;
pub(super) mod drop_indexes;
pub(super) mod indexes;
pub(super) mod list_collections;
pub(super) mod list_indexes;
pub(super) mod refresh_rollup;
pub(super) mod rename_collection;
pub(super) mod rollup_status;
pub(super) mod validation;

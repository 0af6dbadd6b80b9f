//! TODO head of timeseries::index.

pub(crate) mod build;
pub(crate) mod keys;
pub(crate) mod maintenance;
pub(crate) mod partial_filter;
pub mod spec;
pub(crate) mod validate;
pub(crate) mod view;

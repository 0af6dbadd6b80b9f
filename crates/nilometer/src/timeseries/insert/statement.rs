//! The statement that the steps of an insert work for.

use std::sync::Arc;

use crate::catalog::{Catalog, Collection};
use crate::insertion::InsertOptions;
use crate::timeseries::Timeseries;

/// An insert of one command: where it goes, and how.
#[derive(Clone, Copy)]
pub(in crate::timeseries) struct InsertStatement<'i> {
    pub(in crate::timeseries) timeseries: &'i Arc<Timeseries>,
    pub(in crate::timeseries) catalog: &'i Catalog,
    pub(in crate::timeseries) collection: &'i Arc<Collection>,
    pub(in crate::timeseries) options: InsertOptions<'i>,
}

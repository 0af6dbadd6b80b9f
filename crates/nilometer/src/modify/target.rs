//! The collection that a statement writes to, by the kind of its documents.

use std::sync::Arc;

use nilometer_bson::Document;

use super::ModifyContext;
use crate::catalog::{Catalog, CatalogEntry, Collection, Namespace};
use crate::error::{Error, ErrorCode, Result};
use crate::operation::OperationContext;

/// The documents that a namespace holds.
pub(crate) enum WriteTarget {
    /// The collection does not exist.
    Absent,
    /// An ordinary collection.
    Records(Arc<Collection>),
    /// Bucket documents ([`super::raw_buckets`]).
    Buckets(Arc<Collection>),
    /// Measurements of these buckets ([`super::measurements`]).
    Measurements(Arc<Collection>),
}

impl WriteTarget {
    /// Finds the collection; refuses views and system collections that do not exist.
    pub(crate) fn of(catalog: &Catalog, namespace: &Namespace) -> Result<Self> {
        if catalog.is_oplog(namespace) {
            return Err(is_system(namespace));
        }
        if let Some(buckets) = catalog.timeseries(namespace) {
            return Ok(Self::Measurements(buckets));
        }
        match catalog.get(namespace) {
            Some(CatalogEntry::Collection(found)) if found.timeseries.is_some() => {
                Ok(Self::Buckets(found))
            }
            Some(CatalogEntry::Collection(found)) => Ok(Self::Records(found)),
            Some(CatalogEntry::View(_)) => Err(is_a_view(namespace)),
            None if namespace.is_reserved() => Err(is_system(namespace)),
            None => Ok(Self::Absent),
        }
    }
}

impl ModifyContext<'_> {
    /// Returns the ordinary collection to insert into; creates it if it does not exist.
    pub(crate) fn find_or_create(
        &self,
        operation: &OperationContext,
        namespace: &Namespace,
    ) -> Result<Arc<Collection>> {
        match self.catalog.get(namespace) {
            _ if self.catalog.is_oplog(namespace) => Err(is_system(namespace)),
            Some(CatalogEntry::Collection(found)) if found.timeseries.is_some() => Err(Error::new(
                ErrorCode::CommandNotSupported,
                format!("changing bucket documents in {namespace} is not supported yet"),
            )),
            Some(CatalogEntry::Collection(found)) => Ok(found),
            Some(CatalogEntry::View(_)) => Err(is_a_view(namespace)),
            None if namespace.is_reserved() => Err(is_system(namespace)),
            None => {
                let uuid = self.ids.uuid();
                let (collection, is_new) =
                    self.catalog
                        .find_or_create(namespace, uuid, Document::new())?;
                if is_new {
                    operation.usage.record_created(namespace.to_string());
                }
                Ok(collection)
            }
        }
    }
}

fn is_a_view(namespace: &Namespace) -> Error {
    Error::new(
        ErrorCode::CommandNotSupportedOnView,
        format!("Namespace {namespace} is a view, not a collection"),
    )
}

fn is_system(namespace: &Namespace) -> Error {
    Error::new(
        ErrorCode::InvalidNamespace,
        format!("cannot write to '{namespace}'"),
    )
}

//! Where `$out` and `$merge` write: the implementation of [`Outputs`].
//!
//! Ordinary collections only. Time series are refused by name: [`Outputs`] already says which options one
//! would be made with, and [`StoredCollections::writable`] is the place where they part.

use std::sync::Arc;

use nilometer_bson::path::FieldPath;
use nilometer_bson::{DocRef, Document, ObjectId, ValueRef};
use nilometer_storage::Durability;

use super::collections::StoredCollections;
use crate::catalog::{Catalog, CatalogEntry, Collection, IndexSpec, Namespace, TimeseriesOptions};
use crate::error::{Error, ErrorCode, Result};
use crate::eval::Collation;
use crate::insertion::InsertOptions;
use crate::operation::OperationContext;
use crate::query::source::{Change, MergeTarget, Outputs, Replacement};
use crate::services::Services;
use crate::write::{Records, Selection};

/// Options of a time series for a collection that is none.
const NOT_A_TIME_SERIES: i32 = 7_268_700;

impl StoredCollections {
    /// The ordinary collection of that name, if there is one; what `stage` cannot write to is refused.
    fn writable(&self, stage: &str, target: &Namespace) -> Result<Option<Arc<Collection>>> {
        let series = || {
            Error::new(
                ErrorCode::CommandNotSupported,
                format!(
                    "{stage} into the time-series collection {target} is not supported by this version"
                ),
            )
        };
        match self.catalog.get(target) {
            None => Ok(None),
            Some(CatalogEntry::Collection(found)) if found.timeseries.is_none() => Ok(Some(found)),
            Some(CatalogEntry::Collection(_)) => Err(series()),
            Some(CatalogEntry::View(view)) if view.is_timeseries() => Err(series()),
            Some(CatalogEntry::View(_)) => Err(Error::new(
                ErrorCode::CommandNotSupportedOnView,
                format!(
                    "Namespace {target} is a view, not a collection: {stage} cannot write to it"
                ),
            )),
        }
    }
}

impl Outputs for StoredCollections {
    fn check_replaceable(
        &self,
        target: &Namespace,
        timeseries: Option<&TimeseriesOptions>,
    ) -> Result<()> {
        let found = self.writable("$out", target)?;
        match (timeseries, found) {
            (None, _) => Ok(()),
            (Some(_), Some(_)) => Err(Error::location(
                NOT_A_TIME_SERIES,
                format!(
                    "Cannot create a time-series collection from the existing collection {target}"
                ),
            )),
            (Some(_), None) => Err(Error::new(
                ErrorCode::CommandNotSupported,
                "$out with 'timeseries' is not supported by this version",
            )),
        }
    }

    fn replace(
        &self,
        target: &Namespace,
        timeseries: Option<&TimeseriesOptions>,
    ) -> Result<Box<dyn Replacement>> {
        self.check_replaceable(target, timeseries)?;
        let uuid = self.services.ids.uuid();
        let (fresh, replaced) = {
            let now_ms = self.services.clock.now_ms();
            self.catalog.prepare_replacement(target, uuid, now_ms)?
        };
        Ok(Box::new(Fresh {
            services: Arc::clone(&self.services),
            catalog: Arc::clone(&self.catalog),
            records: Arc::clone(&self.records),
            collection: Arc::new(fresh),
            replaced,
            is_installed: false,
        }))
    }

    fn merge_into(&self, target: &Namespace) -> Result<Box<dyn MergeTarget>> {
        Ok(Box::new(Target {
            collection: self.writable("$merge", target)?,
            namespace: target.clone(),
            services: Arc::clone(&self.services),
            catalog: Arc::clone(&self.catalog),
            records: Arc::clone(&self.records),
        }))
    }
}

/// Contents that wait for their name.
struct Fresh {
    services: Arc<Services>,
    catalog: Arc<Catalog>,
    records: Arc<Records>,
    collection: Arc<Collection>,
    replaced: Option<Arc<Collection>>,
    is_installed: bool,
}

impl Replacement for Fresh {
    fn insert(&mut self, documents: &[Document], operation: &OperationContext) -> Result<()> {
        let now_ms = operation.now_ms;
        let documents = documents.iter().map(Document::as_ref);
        insert(&self.records, &self.collection, documents, &|| {
            self.services.ids.object_id(now_ms)
        })
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        self.records.sync()?;
        let replaced = self.replaced.take();
        self.catalog
            .install_replacement(&self.collection, replaced.as_deref())?;
        self.is_installed = true;
        if let Some(old) = replaced {
            self.records.forget(old.uuid);
        }
        Ok(())
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        if !self.is_installed {
            self.records.forget(self.collection.uuid);
            // Keyspaces that stay behind are dropped when the database is opened again.
            drop(self.catalog.discard(&self.collection));
        }
    }
}

/// Inserts documents, all or as many as come before the first that is refused.
fn insert<'a>(
    records: &Records,
    collection: &Collection,
    documents: impl Iterator<Item = DocRef<'a>>,
    new_id: &dyn Fn() -> ObjectId,
) -> Result<()> {
    let options = InsertOptions {
        ordered: true,
        // Whoever needs it on disk waits once, at the end.
        durability: Durability::Buffered,
        new_id,
    };
    let outcome = records.insert(collection, documents, options)?;
    match outcome.errors.into_iter().next() {
        Some(refused) => Err(refused.error),
        None => Ok(()),
    }
}

/// Whether an index of the plain kind forbids two documents with the same values in these fields.
fn is_unique_on(spec: &IndexSpec, fields: &[FieldPath]) -> bool {
    let is_plain = |value: ValueRef<'_>| value.is_number();
    let parts: Vec<_> = spec.key.iter().collect();
    spec.unique
        && spec.partial_filter.is_none()
        && parts.len() == fields.len()
        && parts.iter().all(|part| {
            let is_wanted = fields.iter().any(|field| field.as_str() == part.name());
            is_wanted && is_plain(part.value())
        })
}

fn collation_of(spec: &IndexSpec) -> Result<Collation> {
    match &spec.collation {
        Some(options) => Collation::parse(options.as_ref(), "collation"),
        None => Ok(Collation::SIMPLE),
    }
}

/// An ordinary collection to merge into.
struct Target {
    namespace: Namespace,
    /// None until something is inserted into a collection that was not there.
    collection: Option<Arc<Collection>>,
    services: Arc<Services>,
    catalog: Arc<Catalog>,
    records: Arc<Records>,
}

impl Target {
    fn existing_or_new(&mut self) -> Result<Arc<Collection>> {
        if let Some(collection) = &self.collection {
            return Ok(Arc::clone(collection));
        }
        let uuid = self.services.ids.uuid();
        let name = self.namespace.clone();
        let made = self
            .catalog
            .create_collection(name, uuid, Document::new(), None);
        let collection = match made {
            Ok(made) => made,
            // Somebody else has made it since.
            Err(error) => match self.catalog.collection(&self.namespace) {
                Some(found) if found.timeseries.is_none() => found,
                _ => return Err(error),
            },
        };
        Ok(Arc::clone(self.collection.insert(collection)))
    }
}

impl MergeTarget for Target {
    fn has_unique_index_on(&self, fields: &[FieldPath], collation: &Collation) -> Result<bool> {
        let is_on_id = matches!(fields, [field] if field.as_str() == "_id");
        let Some(collection) = &self.collection else {
            return Ok(is_on_id);
        };
        if is_on_id && Collation::of_stored(collection.options.as_ref())? == *collation {
            return Ok(true);
        }
        for index in collection.indexes.all().iter().filter(|i| i.is_ready()) {
            if is_unique_on(&index.spec, fields) && collation_of(&index.spec)? == *collation {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn new_id(&self, operation: &OperationContext) -> ObjectId {
        self.services.ids.object_id(operation.now_ms)
    }

    fn insert(&mut self, document: DocRef<'_>, operation: &OperationContext) -> Result<()> {
        let collection = self.existing_or_new()?;
        let ids = &self.services.ids;
        insert(
            &self.records,
            &collection,
            std::iter::once(document),
            &|| ids.object_id(operation.now_ms),
        )
    }

    fn change(&mut self, change: Change<'_>, operation: &OperationContext) -> Result<bool> {
        let collection = match (&self.collection, change.otherwise) {
            (Some(collection), _) => Arc::clone(collection),
            (None, None) => return Ok(false),
            (None, Some(_)) => self.existing_or_new()?,
        };
        let selection = Selection {
            filter: change.wanted,
            sort: None,
            multi: false,
            backward: false,
            durability: Durability::Buffered,
            eval: change.eval,
            check_interrupt: &|| operation.check_interrupt(),
        };
        let ids = &self.services.ids;
        let updated = match change.otherwise {
            None => self.records.update(&collection, selection, change.update)?,
            Some(_) => self.records.upsert(
                &collection,
                selection,
                change.update,
                change.otherwise,
                &|| ids.object_id(operation.now_ms),
            )?,
        };
        Ok(updated.matched > 0)
    }

    fn finish(&mut self, operation: &OperationContext) -> Result<()> {
        let concern = operation.write_concern;
        if concern.journaled && concern.acknowledged {
            self.records.sync()?;
        }
        Ok(())
    }
}

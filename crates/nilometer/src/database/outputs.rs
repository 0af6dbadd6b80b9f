//! The targets of `$out` and `$merge`: the implementation of [`Outputs`].
//!
//! Ordinary collections are here; [`WriteTarget`](crate::modify::WriteTarget) tells them from time-series collections
//! ([`series`]). On a router the partitions have them ([`routed`], [`hosted`]). A replaced time-series collection gets new buckets.

pub(super) mod hosted;
pub(super) mod routed;
mod series;

use std::sync::Arc;

use nilometer_bson::path::FieldPath;
use nilometer_bson::{DocRef, Document, ObjectId, ValueRef};
use nilometer_storage::Durability;

use super::collections::StoredCollections;
use crate::catalog::{CatalogEntry, Collection, IndexSpec, Namespace, TimeseriesOptions};
use crate::error::{Error, ErrorCode, Result, location};
use crate::eval::{Collation, EvalContext};
use crate::insertion::InsertOptions;
use crate::modify::{ModifyAction, ModifyStatement, Selector};
use crate::operation::OperationContext;
use crate::query::source::{Change, MergeTarget, Outputs, Replacement};
use crate::write::{CappedLimits, DocumentChecks, Records};

/// The entry behind the name of a target.
enum OutputTarget {
    Nothing,
    Records(Arc<Collection>),
    /// The bucket collection.
    Series(Arc<Collection>),
}

impl StoredCollections {
    /// Returns the entry of a target; fails if `stage` cannot write to it.
    fn output_target(&self, stage: &str, target: &Namespace) -> Result<OutputTarget> {
        if let Some(buckets) = self.catalog.timeseries(target) {
            return Ok(OutputTarget::Series(buckets));
        }
        match self.catalog.get(target) {
            None => Ok(OutputTarget::Nothing),
            Some(CatalogEntry::Collection(found)) if found.timeseries.is_none() => {
                Ok(OutputTarget::Records(found))
            }
            Some(CatalogEntry::Collection(_)) => Err(Error::new(
                ErrorCode::CommandNotSupported,
                format!("{stage} cannot write buckets to {target}"),
            )),
            Some(CatalogEntry::View(_)) => Err(Error::new(
                ErrorCode::CommandNotSupportedOnView,
                format!(
                    "Namespace {target} is a view, not a collection: {stage} cannot write to it"
                ),
            )),
        }
    }

    fn insert_options<'i>(new_id: &'i dyn Fn() -> ObjectId) -> InsertOptions<'i> {
        InsertOptions {
            ordered: true,
            // Durability is established once, at the end.
            durability: Durability::Buffered,
            new_id,
            record: None,
        }
    }
}

impl Outputs for StoredCollections {
    fn check_replaceable(
        &self,
        target: &Namespace,
        timeseries: Option<&TimeseriesOptions>,
    ) -> Result<()> {
        self.catalog.check_has_no_rollups(target, "replace")?;
        match (timeseries, self.output_target("$out", target)?) {
            (_, OutputTarget::Records(found)) if CappedLimits::of(&found).is_some() => {
                Err(Error::location(
                    location::OUT_TO_CAPPED,
                    format!("namespace '{target}' is capped so it can't be used for $out"),
                ))
            }
            (Some(_), OutputTarget::Records(_)) => Err(Error::location(
                location::OUT_NOT_TIMESERIES,
                format!(
                    "Cannot create a time-series collection from the existing collection {target}"
                ),
            )),
            (Some(wanted), OutputTarget::Series(found)) => {
                series::check_options(wanted, &found, target)
            }
            _ => Ok(()),
        }
    }

    fn replace(
        &self,
        target: &Namespace,
        timeseries: Option<&TimeseriesOptions>,
    ) -> Result<Box<dyn Replacement>> {
        self.check_replaceable(target, timeseries)?;
        let uuid = self.services.ids.uuid();
        let now_ms = self.services.clock.now_ms();
        let series = match self.output_target("$out", target)? {
            OutputTarget::Series(found) => found.timeseries.clone(),
            OutputTarget::Records(_) => None,
            OutputTarget::Nothing => timeseries.cloned(),
        };
        let name = match series {
            Some(_) => target.buckets(),
            None => target.clone(),
        };
        let is_series = series.is_some();
        let (fresh, replaced) = self
            .catalog
            .prepare_replacement(&name, uuid, series, now_ms)?;
        Ok(Box::new(PreparedReplacement {
            stored: self.clone(),
            collection: Arc::new(fresh),
            view: is_series.then(|| target.clone()),
            replaced,
            is_installed: false,
        }))
    }

    fn merge_into(&self, target: &Namespace) -> Result<Box<dyn MergeTarget>> {
        let collection = match self.output_target("$merge", target)? {
            OutputTarget::Series(found) => {
                return Ok(Box::new(series::MergeTimeSeries {
                    name: target.clone(),
                    stored: self.clone(),
                    collection: found,
                }));
            }
            OutputTarget::Records(found) => Some(found),
            OutputTarget::Nothing => None,
        };
        Ok(Box::new(MergeCollection {
            collection,
            namespace: target.clone(),
            stored: self.clone(),
        }))
    }
}

/// New contents that do not have their name yet.
struct PreparedReplacement {
    stored: StoredCollections,
    collection: Arc<Collection>,
    /// The name of the time-series collection, if the contents are its buckets.
    view: Option<Namespace>,
    replaced: Option<Arc<Collection>>,
    is_installed: bool,
}

impl PreparedReplacement {
    fn forget(&self, collection: &Collection) {
        self.stored.records.forget(collection.uuid);
        self.stored.timeseries.forget(collection);
    }
}

impl Replacement for PreparedReplacement {
    fn insert(&mut self, documents: &[Document], operation: &OperationContext) -> Result<()> {
        let now_ms = operation.now_ms;
        let documents = documents.iter().map(Document::as_ref);
        let ids = &self.stored.services.ids;
        let new_id = || ids.object_id(now_ms);
        if self.view.is_none() {
            let records = &self.stored.records;
            return insert(records, &self.collection, documents, &new_id, operation);
        }
        let outcome = self.stored.timeseries.insert(
            &self.stored.catalog,
            &self.collection,
            documents,
            StoredCollections::insert_options(&new_id),
        )?;
        outcome.all()
    }

    fn finish(mut self: Box<Self>, operation: &OperationContext) -> Result<()> {
        self.stored.records.sync()?;
        let replaced = self.replaced.take();
        self.stored.catalog.install_replacement(
            &self.collection,
            replaced.as_deref(),
            self.view.as_ref(),
        )?;
        self.is_installed = true;
        match replaced {
            Some(old) => self.forget(&old),
            None => {
                let name = self.view.as_ref().unwrap_or(&self.collection.namespace);
                operation.usage().record_created(name.to_string());
            }
        }
        Ok(())
    }
}

impl Drop for PreparedReplacement {
    fn drop(&mut self) {
        if !self.is_installed {
            self.forget(&self.collection);
            // Keyspaces that remain are dropped when the database is opened again.
            drop(self.stored.catalog.discard(&self.collection));
        }
    }
}

/// Inserts documents in order up to the first that is refused.
fn insert<'a>(
    records: &Records,
    collection: &Collection,
    documents: impl Iterator<Item = DocRef<'a>>,
    new_id: &dyn Fn() -> ObjectId,
    operation: &OperationContext,
) -> Result<()> {
    let options = StoredCollections::insert_options(new_id);
    let checking = DocumentChecks {
        bypass: operation.bypass,
        eval: EvalContext {
            now_ms: operation.now_ms,
            limits: Some(operation.evaluation_limits()),
            ..EvalContext::default()
        },
    };
    let outcome = records.insert(collection, documents, options, checking)?;
    outcome.all()
}

/// True if a plain unique index forbids two documents with the same values in these fields.
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

/// The statement that carries out a change of `$merge`.
fn statement<'a>(
    change: &Change<'a>,
    selector: &'a Selector<'a>,
    namespace: &'a Namespace,
    operation: &'a OperationContext,
) -> ModifyStatement<'a> {
    ModifyStatement {
        operation,
        namespace,
        selector,
        multi: false,
        action: ModifyAction::Update {
            update: change.update,
            upsert: change.otherwise.is_some(),
            supplied: change.otherwise,
        },
        eval: change.eval,
        collator: change.collator,
        durability: Durability::Buffered,
        record: None,
        guard: None,
        candidates: None,
    }
}

/// An ordinary collection to merge into.
struct MergeCollection {
    namespace: Namespace,
    /// `None` until the first insert creates the collection.
    collection: Option<Arc<Collection>>,
    stored: StoredCollections,
}

impl MergeCollection {
    fn existing_or_new(&mut self, operation: &OperationContext) -> Result<Arc<Collection>> {
        if let Some(collection) = &self.collection {
            return Ok(Arc::clone(collection));
        }
        let uuid = self.stored.services.ids.uuid();
        let (collection, is_new) =
            self.stored
                .catalog
                .find_or_create(&self.namespace, uuid, Document::new())?;
        if is_new {
            operation.usage().record_created(self.namespace.to_string());
        }
        Ok(Arc::clone(self.collection.insert(collection)))
    }
}

impl MergeTarget for MergeCollection {
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
        self.stored.services.ids.object_id(operation.now_ms)
    }

    fn insert(&mut self, document: DocRef<'_>, operation: &OperationContext) -> Result<()> {
        let collection = self.existing_or_new(operation)?;
        let ids = &self.stored.services.ids;
        insert(
            &self.stored.records,
            &collection,
            std::iter::once(document),
            &|| ids.object_id(operation.now_ms),
            operation,
        )
    }

    fn change(&mut self, change: Change<'_>, operation: &OperationContext) -> Result<bool> {
        let collection = match (&self.collection, change.otherwise) {
            (Some(collection), _) => Arc::clone(collection),
            (None, None) => return Ok(false),
            (None, Some(_)) => self.existing_or_new(operation)?,
        };
        let selector = Selector::matching(change.wanted);
        let statement = statement(&change, &selector, &self.namespace, operation);
        let modified = statement.run_on_records(self.stored.modify(), &collection)?;
        Ok(modified.matched > 0)
    }

    fn finish(&mut self, operation: &OperationContext) -> Result<()> {
        let concern = operation.write_concern;
        if concern.journaled && concern.acknowledged {
            self.stored.records.sync()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{DocumentBuilder, Value, array, doc};

    use super::*;
    use crate::database::Database;
    use crate::operation::Request;
    use crate::session::ClientSession;

    fn run(database: &Database, command: &Document) -> Document {
        let mut body = DocumentBuilder::new();
        for element in command.iter() {
            body.append_element(element);
        }
        body.append("$db", "db");
        let mut session = ClientSession::embedded();
        database.run_command(&mut session, &Request::new(body.finish()))
    }

    fn code(database: &Database, stages: Value) -> i64 {
        let command = doc! {"aggregate": "c", "pipeline": stages, "cursor": doc! {}};
        let reply = run(database, &command);
        reply.get("code").as_exact_i64().unwrap_or(0)
    }

    #[test]
    fn out_keeps_indexes_and_merge_requires_unique_ones() {
        let database = Database::in_memory().unwrap();
        let catalog = database.catalog();
        let name = Namespace::new("db", "to").unwrap();
        let target = catalog
            .create_collection(name.clone(), [7; 16], doc! {}, None)
            .unwrap();
        let spec = |field: &str, unique| {
            let mut key = DocumentBuilder::new();
            key.append(field, 1);
            IndexSpec {
                key: key.finish(),
                name: field.to_owned(),
                unique,
                ..IndexSpec::default()
            }
        };
        let specs = vec![spec("k", true), spec("tags", false)];
        let added = catalog.add_indexes(&target, 0, |_| Ok(specs)).unwrap();
        for index in &added {
            catalog.finish_index(&target, index).unwrap();
        }
        let documents: Vec<Value> = (0..20)
            .map(|at| doc! {"_id": at, "k": at, "tags": array![at, "x"]}.into())
            .collect();
        run(&database, &doc! {"insert": "c", "documents": documents});

        // The arrays make the index of the new collection multikey.
        assert_eq!(code(&database, array![doc! {"$out": "to"}]), 0);
        let fresh = catalog.collection(&name).unwrap();
        assert_ne!(fresh.uuid, [7; 16]);
        assert_ne!(fresh.indexes.named("tags").unwrap().multikey(), 0);
        assert_eq!(fresh.indexes.all().len(), 2);
        let validated = run(&database, &doc! {"validate": "to"});
        assert_eq!(validated.get("nrecords").as_exact_i64(), Some(20));
        assert!(validated.get("errors").as_array().unwrap().is_empty());

        // A unique violation leaves the target unchanged.
        let same = doc! {"$set": doc! {"k": 1}};
        assert_eq!(code(&database, array![same, doc! {"$out": "to"}]), 11_000);
        assert_eq!(catalog.collection(&name).unwrap().uuid, fresh.uuid);

        // `$merge` requires a unique index on its fields.
        let merged = |field: &str| {
            let key = doc! {"$project": doc! {"_id": 0, "k": 1, "tags.x": 1, "seen": "yes"}};
            let merge = doc! {"$merge": doc! {"into": "to", "on": field}};
            code(&database, array![key, merge])
        };
        assert_eq!(merged("k"), 0);
        let seen = run(
            &database,
            &doc! {"count": "to", "query": doc! {"seen": "yes"}},
        );
        assert_eq!(seen.get("n").as_exact_i64(), Some(20));
        assert_eq!(merged("tags"), 51_183);
    }
}

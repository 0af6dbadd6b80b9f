//! `$listCatalog`: the catalog as documents.
//!
//! A collection shows its options and indexes under `md` and the names of its keyspaces as
//! `ident` and `idxIdent`; a view shows its definition.

use nilometer_bson::{Array, DocRef, Document, DocumentBuilder, Value, doc};
use nilometer_storage::KeyspaceId;

use super::collections::{StoredCollections, view_definition};
use super::indexes::{IndexForm, id_index, listed_indexes};
use crate::catalog::{CatalogEntry, Collection, Namespace, Storage};
use crate::error::{Error, ErrorCode, Result};

impl StoredCollections {
    /// Returns the entries of one namespace, or of all databases.
    pub(super) fn list_catalog(
        &self,
        db: &str,
        coll: Option<&str>,
        argument: DocRef<'_>,
    ) -> Result<Vec<Document>> {
        if !argument.is_empty() {
            return Err(Error::failed_to_parse(
                "The $listCatalog stage specification must be an empty object",
            ));
        }
        let databases = match coll {
            Some(_) => vec![db.to_owned()],
            None if db == "admin" => self.catalog.databases(),
            None => {
                return Err(Error::new(
                    ErrorCode::InvalidNamespace,
                    "Collectionless $listCatalog must be run against the 'admin' database with {aggregate: 1}",
                ));
            }
        };
        let mut listed = Vec::new();
        for database in databases {
            for (namespace, entry) in self.catalog.list(&database) {
                if coll.is_none_or(|name| name == namespace.collection) {
                    listed.push(self.catalog_entry(&namespace, &entry));
                }
            }
        }
        Ok(listed)
    }

    fn catalog_entry(&self, namespace: &Namespace, entry: &CatalogEntry) -> Document {
        let mut out = DocumentBuilder::new();
        out.append("db", namespace.database.as_str());
        out.append("name", namespace.collection.as_str());
        match entry {
            CatalogEntry::Collection(collection) => {
                out.append("type", "collection");
                append_collection(&mut out, collection);
            }
            CatalogEntry::View(view) => {
                let is_timeseries = view.is_timeseries();
                out.append("type", if is_timeseries { "timeseries" } else { "view" });
                out.append("ns", namespace.to_string());
                for element in view_definition(&self.catalog, namespace, view).iter() {
                    out.append_element(element);
                }
            }
        }
        out.finish()
    }
}

fn append_collection(out: &mut DocumentBuilder, collection: &Collection) {
    out.begin_document("md");
    out.append("ns", collection.namespace.to_string());
    let mut options = DocumentBuilder::new();
    options.append("uuid", collection.uuid_value());
    for element in collection.listed_options().iter() {
        options.append_element(element);
    }
    out.append("options", options.finish());
    out.append(
        "indexes",
        indexes(collection).into_iter().collect::<Array>(),
    );
    if collection.timeseries.is_some() {
        out.append(
            "timeseriesBucketsMayHaveMixedSchemaData",
            collection.may_have_mixed_schema(),
        );
    }
    out.end();
    let ident = |kind: &str, id: KeyspaceId| format!("{kind}-{}", id.0);
    let (data, id_index_at) = match collection.storage {
        Storage::Records { records, id_index } => (records, id_index),
        Storage::Buckets { open, .. } => (open, None),
    };
    out.begin_document("idxIdent");
    out.append("_id_", id_index_at.map(|id| ident("index", id)));
    for index in collection.indexes.all().iter() {
        out.append(&index.spec.name, ident("index", index.keyspace));
    }
    out.end();
    out.append("ns", collection.namespace.to_string());
    out.append("ident", ident("collection", data));
}

fn indexes(collection: &Collection) -> Vec<Value> {
    let entry = |spec: Document, ready: bool, multikey: bool| {
        Value::Document(doc! { "spec": spec, "ready": ready, "multikey": multikey })
    };
    let mut out: Vec<Value> = id_index(collection)
        .map(|spec| entry(spec, true, false))
        .into_iter()
        .collect();
    for index in listed_indexes(collection, IndexForm::Stored) {
        let stored = &index.stored;
        let spec = index.spec.to_document();
        out.push(entry(spec, stored.is_ready(), stored.multikey() != 0));
    }
    out
}

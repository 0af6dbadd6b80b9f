//! A catalog entry: a collection with its storage, or a view.
//!
//! An entry is stored as one document:
//!
//! ```text
//! { ns, type: "collection", uuid, shownUuid?, options, keyspaces: {name: id}, indexes: [{spec, keyspace, …}], … }
//! { ns, type: "view", viewOn, pipeline, options }
//! ```

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};

use nilometer_bson::{Array, Binary, DocRef, Document, DocumentBuilder, Value, ValueRef};
use nilometer_storage::KeyspaceId;

use super::CatalogEntry;
use super::compiled::CompiledSlot;
use super::index_spec::IndexSpec;
use super::indexes::{self, IndexList, StoredIndex};
use super::namespace::Namespace;
use super::rollups::{RollupList, StoredRollup};
use super::timeseries_options::{DuplicatePolicy, TimeseriesOptions};
use crate::error::{Error, ErrorCode, Result};

/// The keyspaces of a collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// An ordinary collection.
    Records {
        /// Record id (8 bytes, big-endian) to document; in a clustered collection, key string of `_id` to
        /// document.
        records: KeyspaceId,
        /// Key string of `_id` to record id; `None` in a clustered collection.
        id_index: Option<KeyspaceId>,
    },
    /// The buckets of a time-series collection, by bucket `_id`.
    Buckets {
        /// Documents of open buckets.
        open: KeyspaceId,
        /// Documents of sealed buckets, values stored apart from the keys.
        sealed: KeyspaceId,
        /// Measurements committed since their bucket document was written.
        tail: KeyspaceId,
        /// The buckets of each series, in the order of their start times.
        series: KeyspaceId,
        /// Summaries of sealed buckets; `None` if the collection was made before there were any.
        summaries: Option<KeyspaceId>,
        /// The metadata of every series; `None` if the collection was made before it was kept.
        registry: Option<KeyspaceId>,
    },
}

impl Storage {
    /// Returns all keyspaces of the storage.
    pub fn keyspaces(&self) -> Vec<KeyspaceId> {
        match *self {
            Self::Records { records, id_index } => [records].into_iter().chain(id_index).collect(),
            Self::Buckets {
                open,
                sealed,
                tail,
                series,
                summaries,
                registry,
            } => [open, sealed, tail, series]
                .into_iter()
                .chain(summaries)
                .chain(registry)
                .collect(),
        }
    }
}

/// The policy for an insert that finds a measurement of the same series and time. All versions of a
/// collection share it.
#[derive(Clone, Copy, Debug, Default)]
pub struct DuplicateRule {
    /// The action taken on the second measurement.
    pub policy: DuplicatePolicy,
    /// Upper bound in ms of the width of every bucket, existing or new, while this rule applies.
    pub span_ms: i64,
}

impl DuplicateRule {
    /// Returns the rule set by the options of a collection.
    pub fn of(options: &TimeseriesOptions) -> Self {
        Self {
            policy: options.duplicates.unwrap_or_default(),
            span_ms: options.span_ms(),
        }
    }
}

/// A collection that holds documents.
#[derive(Debug)]
pub struct Collection {
    /// The namespace of the collection.
    pub namespace: Namespace,
    /// An identity that survives renaming and that no other collection, dropped ones included, ever had.
    pub uuid: [u8; 16],
    /// The UUID that clients see: usually the same, after a restore that of the dumped collection.
    pub shown_uuid: [u8; 16],
    /// The `create` options as `listCollections` shows them, without `timeseries`.
    pub options: Document,
    /// The time-series options of a bucket collection.
    pub timeseries: Option<TimeseriesOptions>,
    /// The current duplicates rule. An insert holds it for reading from its lookup to its commit; `collMod`
    /// holds it for writing while it changes the option. So no insert under the old option commits after
    /// the change.
    pub duplicates: Arc<RwLock<DuplicateRule>>,
    /// The keyspaces of its documents.
    pub storage: Storage,
    /// Its indexes, except the index of `_id`.
    pub indexes: Arc<IndexList>,
    /// The rollups that stand on it.
    pub rollups: Arc<RollupList>,
    /// True once a measurement outside 1970..2038 was stored: bucket ids then do not order by time.
    extended_range: Arc<AtomicBool>,
    /// True if the bounds of a field may have different types: raw writes are not checked for mixed types.
    mixed_schema: bool,
    /// True once `collMod` changed the widths of buckets: existing buckets have other widths.
    widths_changed: bool,
    /// The compiled validator, set once by the module `write`.
    validator: CompiledSlot,
}

impl Collection {
    /// Makes a collection with the state `create` gives it.
    pub fn new(
        namespace: Namespace,
        uuid: [u8; 16],
        options: Document,
        timeseries: Option<TimeseriesOptions>,
        storage: Storage,
    ) -> Self {
        let rule = timeseries.as_ref().map(DuplicateRule::of);
        Self {
            duplicates: Arc::new(RwLock::new(rule.unwrap_or_default())),
            namespace,
            uuid,
            shown_uuid: uuid,
            options,
            timeseries,
            storage,
            indexes: Arc::default(),
            rollups: Arc::default(),
            extended_range: Arc::default(),
            mixed_schema: false,
            widths_changed: false,
            validator: CompiledSlot::default(),
        }
    }

    /// Returns the same collection with other options.
    pub(super) fn modified(
        &self,
        options: Document,
        timeseries: Option<TimeseriesOptions>,
        mixed_schema: bool,
    ) -> Self {
        Self {
            mixed_schema,
            namespace: self.namespace.clone(),
            uuid: self.uuid,
            shown_uuid: self.shown_uuid,
            options,
            widths_changed: self.widths_changed || self.has_other_widths(timeseries.as_ref()),
            duplicates: self.duplicates.clone(),
            timeseries,
            storage: self.storage,
            indexes: self.indexes.clone(),
            rollups: self.rollups.clone(),
            // Shared, so that all versions of the collection see a change.
            extended_range: self.extended_range.clone(),
            validator: CompiledSlot::default(),
        }
    }

    /// True if the buckets of `timeseries` would have other widths than those of this collection.
    pub fn has_other_widths(&self, timeseries: Option<&TimeseriesOptions>) -> bool {
        match (&self.timeseries, timeseries) {
            (Some(now), Some(then)) => !now.has_widths_of(then),
            _ => false,
        }
    }

    /// Returns the same collection with other keyspaces.
    pub(super) fn with_storage(&self, storage: Storage) -> Self {
        Self {
            storage,
            ..self.again()
        }
    }

    /// Returns the same collection under another namespace.
    pub(super) fn renamed(&self, namespace: Namespace) -> Self {
        Self {
            namespace,
            ..self.again()
        }
    }

    fn again(&self) -> Self {
        self.modified(
            self.options.clone(),
            self.timeseries.clone(),
            self.mixed_schema,
        )
    }

    /// Returns all keyspaces, including those of its indexes.
    pub fn keyspaces(&self) -> Vec<KeyspaceId> {
        let mut all = self.storage.keyspaces();
        all.extend(self.indexes.keyspaces());
        all
    }

    /// Returns the index that a time-series collection with metadata gets when it is created: metadata and
    /// time, with the collation of the collection.
    fn default_index(&self) -> Option<IndexSpec> {
        let timeseries = self.timeseries.as_ref()?;
        let (meta, time) = (timeseries.meta_field.as_deref()?, &timeseries.time_field);
        let mut key = DocumentBuilder::new();
        key.append("meta", 1);
        key.append(&format!("control.min.{time}"), 1);
        key.append(&format!("control.max.{time}"), 1);
        let collation = self.options.get("collation").as_document();
        Some(IndexSpec {
            key: key.finish(),
            name: format!("{meta}_1_{time}_1"),
            collation: collation.map(DocRef::to_document),
            ..IndexSpec::default()
        })
    }

    /// Gives a new bucket collection its default index, in the keyspace that was made for it; none without metadata.
    pub(super) fn set_default_index(&self, keyspaces: &[KeyspaceId]) {
        if let (Some(spec), Some(keyspace)) = (self.default_index(), keyspaces.first()) {
            self.indexes.set(indexes::complete_list(spec, *keyspace));
        }
    }

    /// True if every bucket starts and ends at a multiple of its span.
    pub fn has_fixed_buckets(&self) -> bool {
        !self.widths_changed
            && self
                .timeseries
                .as_ref()
                .is_some_and(|t| t.has_fixed_buckets())
    }

    /// True for an ordinary collection that stores its documents in the order of `_id`.
    pub fn is_clustered(&self) -> bool {
        matches!(self.storage, Storage::Records { id_index: None, .. })
    }

    /// True if the bounds of a field may have different types (`timeseriesBucketsMayHaveMixedSchemaData`).
    pub fn may_have_mixed_schema(&self) -> bool {
        self.mixed_schema
    }

    /// True once a measurement outside 1970..2038 was stored.
    pub fn has_extended_range(&self) -> bool {
        self.extended_range.load(Ordering::Acquire)
    }

    /// Returns the compiled validator, which `compile` computes the first time.
    pub fn get_or_compile_validator<T: Send + Sync + 'static>(
        &self,
        compile: impl FnOnce() -> Result<T>,
    ) -> Result<Arc<T>> {
        self.validator.get_or_compile(compile)
    }

    /// Records that a measurement outside 1970..2038 exists.
    pub(super) fn set_extended_range(&self) {
        self.extended_range.store(true, Ordering::Release);
    }

    /// Returns the UUID that clients see, as BSON.
    pub fn uuid_value(&self) -> Value {
        uuid_value(self.shown_uuid)
    }

    /// Returns the options as `listCollections` shows them.
    pub fn listed_options(&self) -> Document {
        let mut out = DocumentBuilder::new();
        for element in self.options.iter() {
            out.append_element(element);
        }
        if let Some(timeseries) = &self.timeseries {
            out.append("validator", bucket_validator(&timeseries.time_field));
            out.append("clusteredIndex", true);
            out.append("timeseries", timeseries.to_document());
        }
        out.finish()
    }

    pub(super) fn encode(&self) -> Document {
        self.encode_with(&self.indexes.all())
    }

    /// Encodes the entry with `indexes` in place of the current list.
    pub(super) fn encode_with(&self, indexes: &[Arc<StoredIndex>]) -> Document {
        let mut out = DocumentBuilder::new();
        out.append("ns", self.namespace.to_string());
        out.append("type", "collection");
        out.append("uuid", uuid_value(self.uuid));
        if self.shown_uuid != self.uuid {
            out.append("shownUuid", uuid_value(self.shown_uuid));
        }
        out.append("options", self.options.clone());
        out.append(
            "timeseries",
            self.timeseries.as_ref().map(TimeseriesOptions::to_document),
        );
        out.begin_document("keyspaces");
        match self.storage {
            Storage::Records { records, id_index } => {
                append_keyspace(&mut out, "records", records);
                if let Some(id_index) = id_index {
                    append_keyspace(&mut out, "idIndex", id_index);
                }
            }
            Storage::Buckets {
                open,
                sealed,
                tail,
                series,
                summaries,
                registry,
            } => {
                append_keyspace(&mut out, "series", series);
                append_keyspace(&mut out, "open", open);
                // Builds without summaries would change buckets and leave the summaries as they are, those without a
                // registry would not register series. They find no `sealed` by their name, and refuse the collection.
                let sealed_name = match (summaries, registry) {
                    (_, Some(_)) => "registered",
                    (Some(_), None) => "summarized",
                    (None, None) => "sealed",
                };
                append_keyspace(&mut out, sealed_name, sealed);
                for (name, keyspace) in [("summaries", summaries), ("registry", registry)] {
                    if let Some(keyspace) = keyspace {
                        append_keyspace(&mut out, name, keyspace);
                    }
                }
                append_keyspace(&mut out, "tail", tail);
            }
        }
        out.end();
        out.append("indexes", indexes::encode(indexes));
        out.append("extendedRange", self.has_extended_range());
        out.append("mixedSchema", self.mixed_schema);
        out.append("widthsChanged", self.widths_changed);
        out.finish()
    }
}

fn append_keyspace(out: &mut DocumentBuilder, name: &str, id: KeyspaceId) {
    out.append(name, i64::try_from(id.0).unwrap_or(i64::MAX));
}

/// A named pipeline over another collection.
#[derive(Clone, Debug, PartialEq)]
pub struct View {
    /// The namespace of the view.
    pub namespace: Namespace,
    /// The collection or view it reads, in the same database.
    pub view_on: String,
    /// The stages that run before those of a query.
    pub pipeline: Vec<Document>,
    /// Further `create` options (`collation`).
    pub options: Document,
    /// The stored bins, if it is a rollup.
    pub rollup: Option<Arc<StoredRollup>>,
}

impl View {
    /// Returns the definition as `create` takes it.
    pub fn definition(&self) -> Document {
        let mut out = DocumentBuilder::new();
        match &self.rollup {
            Some(rollup) => {
                out.append("rollup", rollup.to_document());
                let expires = rollup.options().expire_after_seconds;
                out.append("expireAfterSeconds", expires);
            }
            None => {
                out.append("viewOn", self.view_on.as_str());
                out.append("pipeline", pipeline_value(&self.pipeline));
            }
        }
        out.append_all(self.options.as_ref());
        out.finish()
    }

    pub(super) fn encode(&self) -> Document {
        let mut out = DocumentBuilder::new();
        out.append("ns", self.namespace.to_string());
        out.append("type", "view");
        out.append("viewOn", self.view_on.as_str());
        out.append("pipeline", pipeline_value(&self.pipeline));
        out.append("options", self.options.clone());
        out.append("rollup", self.rollup.as_ref().map(|rollup| rollup.encode()));
        out.finish()
    }

    /// True for a view over the bucket collection of its own name. It is listed as a time-series collection
    /// even if the bucket collection does not exist.
    pub fn is_timeseries(&self) -> bool {
        self.view_on == self.namespace.buckets().collection
    }

    /// True for the view that presents a bucket collection as a time-series collection. A view created by a
    /// user with stages of its own reads the buckets as documents.
    pub fn unpacks_buckets(&self) -> bool {
        self.pipeline.is_empty() && self.is_timeseries()
    }
}

/// Returns a UUID as a value.
pub fn uuid_value(uuid: [u8; 16]) -> Value {
    Value::Binary(Binary {
        subtype: 4,
        bytes: uuid.as_slice().into(),
    })
}

/// Returns a pipeline as a BSON array.
pub fn pipeline_value(pipeline: &[Document]) -> Value {
    let stages = pipeline.iter().cloned().map(Value::Document);
    Value::Array(stages.collect::<Array>())
}

/// Returns the own UUID of a stored collection, and the one that clients see.
fn decode_uuids(entry: DocRef<'_>) -> Option<([u8; 16], [u8; 16])> {
    let uuid = |name: &str| -> Option<[u8; 16]> {
        match entry.get(name) {
            ValueRef::Binary { bytes, .. } => bytes.try_into().ok(),
            _ => None,
        }
    };
    let own = uuid("uuid")?;
    match entry.contains("shownUuid") {
        true => Some((own, uuid("shownUuid")?)),
        false => Some((own, own)),
    }
}

/// Decodes a view; `None` if it is damaged.
fn decode_view(namespace: Namespace, entry: DocRef<'_>, options: Document) -> Option<View> {
    let stages = entry.get("pipeline").as_array()?;
    let stages = stages.iter();
    let rollup = match entry.get("rollup") {
        ValueRef::Document(rollup) => Some(Arc::new(StoredRollup::decode(rollup)?)),
        _ => None,
    };
    Some(View {
        namespace,
        view_on: entry.get("viewOn").as_str()?.to_owned(),
        pipeline: stages
            .map(|stage| stage.as_document().map(DocRef::to_document))
            .collect::<Option<Vec<_>>>()?,
        options,
        rollup,
    })
}

/// Decodes a stored entry. Fails with `DataCorruptionDetected` on anything unexpected.
pub(super) fn decode(namespace: Namespace, bytes: &[u8]) -> Result<CatalogEntry> {
    let damaged = || {
        Error::new(
            ErrorCode::DataCorruptionDetected,
            format!("the catalog entry of {namespace} cannot be read"),
        )
    };
    let entry = DocRef::new(bytes).ok_or_else(damaged)?;
    let options = match entry.get("options") {
        ValueRef::Document(options) => options.to_document(),
        _ => Document::new(),
    };
    if entry.get("type").as_str() == Some("view") {
        let view = decode_view(namespace.clone(), entry, options).ok_or_else(damaged)?;
        return Ok(CatalogEntry::View(Arc::new(view)));
    }
    let (own_uuid, shown_uuid) = decode_uuids(entry).ok_or_else(damaged)?;
    let timeseries = match entry.get("timeseries") {
        ValueRef::Document(spec) => Some(TimeseriesOptions::parse(spec)?),
        _ => None,
    };
    let keyspaces = entry.get("keyspaces").as_document().ok_or_else(damaged)?;
    let keyspace = |name: &str| match keyspaces.get(name) {
        ValueRef::Int64(id) => u64::try_from(id).map(KeyspaceId).map_err(|_| damaged()),
        _ => Err(damaged()),
    };
    let storage = if timeseries.is_some() {
        Storage::Buckets {
            open: keyspace("open")?,
            sealed: keyspace("registered")
                .or_else(|_| keyspace("summarized"))
                .or_else(|_| keyspace("sealed"))?,
            tail: keyspace("tail")?,
            series: keyspace("series")?,
            summaries: keyspace("summaries").ok(),
            registry: keyspace("registry").ok(),
        }
    } else {
        Storage::Records {
            records: keyspace("records")?,
            id_index: match keyspaces.contains("idIndex") {
                true => Some(keyspace("idIndex")?),
                false => None,
            },
        }
    };
    let indexes = indexes::decode(entry.get("indexes")).ok_or_else(damaged)?;
    let mut collection = Collection::new(namespace, own_uuid, options, timeseries, storage);
    collection.shown_uuid = shown_uuid;
    collection.indexes = Arc::new(indexes);
    collection.widths_changed = matches!(entry.get("widthsChanged"), ValueRef::Bool(true));
    collection.mixed_schema = matches!(entry.get("mixedSchema"), ValueRef::Bool(true));
    if matches!(entry.get("extendedRange"), ValueRef::Bool(true)) {
        collection.set_extended_range();
    }
    Ok(CatalogEntry::Collection(Arc::new(collection)))
}

/// Returns the `$jsonSchema` every bucket collection has (the shape of MongoDB 8.0).
pub fn bucket_validator(time_field: &str) -> Document {
    use nilometer_bson::{array, doc};
    let mut times = DocumentBuilder::new();
    times.append(time_field, doc! { "bsonType": "date" });
    let bound = doc! {
        "bsonType": "object",
        "required": array![time_field],
        "properties": times.finish(),
    };
    let control = doc! {
        "bsonType": "object",
        "required": array!["version", "min", "max"],
        "properties": doc! {
            "version": doc! { "bsonType": "number" },
            "min": bound.clone(),
            "max": bound,
            "closed": doc! { "bsonType": "bool" },
            "count": doc! { "bsonType": "number", "minimum": 1 },
        },
        "additionalProperties": false,
    };
    doc! { "$jsonSchema": doc! {
        "bsonType": "object",
        "required": array!["_id", "control", "data"],
        "properties": doc! {
            "_id": doc! { "bsonType": "objectId" },
            "control": control,
            "data": doc! { "bsonType": "object" },
            "meta": doc! {},
        },
        "additionalProperties": false,
    } }
}

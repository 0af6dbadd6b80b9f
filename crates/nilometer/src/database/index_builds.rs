//! Index builds: in the command that creates the indexes, and at start those interrupted by a crash.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use nilometer_bson::{Array, Document, Value, doc};
use nilometer_storage::Engine;
use tracing::{info, warn};

use super::Database;
use crate::catalog::{Catalog, Collection, IndexSpec, Storage, StoredIndex};
use crate::error::{ErrorCode, Result};
use crate::index::{BuildSource, IndexBuild};
use crate::operation::{Access, KillSwitch, OperationContext};
use crate::services::{OperationEntry, Services};
use crate::timeseries::Timeseries;
use crate::write::Records;

/// The parts of the database an index build uses.
#[derive(Clone)]
pub(super) struct IndexBuilder {
    pub(super) services: Arc<Services>,
    pub(super) engine: Arc<dyn Engine>,
    pub(super) catalog: Arc<Catalog>,
    pub(super) records: Arc<Records>,
    pub(super) timeseries: Arc<Timeseries>,
}

impl Database {
    /// Adds the indexes that `choose` returns, given the current list, and builds them. On failure none of
    /// them remains.
    pub(crate) fn create_indexes(
        &self,
        collection: &Collection,
        operation: &OperationContext,
        choose: impl FnOnce(&[Arc<StoredIndex>]) -> Result<Vec<IndexSpec>>,
    ) -> Result<Vec<Arc<StoredIndex>>> {
        let added = self
            .catalog
            .add_indexes(collection, self.services.clock.now_ms(), choose)?;
        if !added.is_empty() {
            self.index_builder().build(collection, &added, operation)?;
        }
        Ok(added)
    }

    /// True if an ordinary collection has documents.
    pub(crate) fn has_documents(&self, collection: &Collection) -> Result<bool> {
        let mut documents = self.records.scan(collection, false, None)?;
        Ok(documents.next().transpose()?.is_some())
    }

    fn index_builder(&self) -> IndexBuilder {
        IndexBuilder {
            services: self.services.clone(),
            engine: self.engine.clone(),
            catalog: self.catalog.clone(),
            records: self.records.clone(),
            timeseries: self.timeseries.clone(),
        }
    }
}

impl IndexBuilder {
    fn build(
        &self,
        collection: &Collection,
        indexes: &[Arc<StoredIndex>],
        operation: &OperationContext,
    ) -> Result<()> {
        let (records, buckets);
        let source: &dyn BuildSource = match collection.storage {
            Storage::Records { .. } => {
                records = self.records.build_source(collection)?;
                &records
            }
            Storage::Buckets { .. } => {
                buckets = self.timeseries.walk(collection);
                &buckets
            }
        };
        let names: Vec<&str> = indexes.iter().map(|i| &*i.spec.name).collect();
        let (namespace, names) = (collection.namespace.to_string(), names.join(", "));
        info!(
            c = "INDEX",
            id = 20_438,
            namespace,
            indexes = names,
            "Index build: starting"
        );
        let begun = self.services.clock.monotonic();
        let build = IndexBuild {
            catalog: &self.catalog,
            engine: &*self.engine,
            collection,
            indexes,
            source,
            operation,
        };
        let outcome = build.run();
        let took = self.services.clock.monotonic().saturating_sub(begun);
        let ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        match &outcome {
            Ok(documents) => info!(
                c = "INDEX",
                id = 20_663,
                namespace,
                indexes = names,
                documents,
                durationMillis = ms,
                "Index build: completed"
            ),
            Err(error) => warn!(
                c = "INDEX",
                id = 20_649,
                namespace,
                indexes = names,
                error = %error,
                durationMillis = ms,
                "Index build: failed"
            ),
        }
        outcome.map(drop)
    }

    /// Resumes the interrupted builds of one collection.
    fn resume(&self, collection: &Collection, stop: &StopSignal) -> Result<()> {
        let unfinished = self.catalog.unfinished_indexes(collection);
        let services = &self.services;
        let mut operation =
            OperationContext::internal(services.clock.clone(), &collection.namespace.database);
        operation.id = services.operations.next_id();
        stop.watch(operation.kill_switch());
        let specs = unfinished.iter().map(|i| Value::from(i.spec.to_document()));
        let _running = services.operations.begin(OperationEntry {
            command_name: "createIndexes",
            command: command(collection, specs.collect()),
            access: Access::Write,
            ..OperationEntry::of(&operation, collection.namespace.to_string())
        });
        // Indexes of one command could share one walk, but the command of an index is not stored, and their
        // progress may differ.
        unfinished
            .iter()
            .try_for_each(|index| self.build(collection, std::slice::from_ref(index), &operation))
    }
}

fn command(collection: &Collection, indexes: Array) -> Document {
    doc! {
        "createIndexes": collection.namespace.collection.as_str(),
        "indexes": indexes,
        "$db": collection.namespace.database.as_str(),
    }
}

/// Stops the builds of the thread.
#[derive(Default)]
struct StopSignal {
    stopping: AtomicBool,
    running: Mutex<Option<KillSwitch>>,
}

impl StopSignal {
    fn watch(&self, running: &KillSwitch) {
        let mut slot = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        *slot = Some(running.clone());
        if self.is_stopping() {
            running.kill(ErrorCode::InterruptedAtShutdown);
        }
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    fn stop(&self) {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        self.stopping.store(true, Ordering::Release);
        if let Some(running) = &*running {
            running.kill(ErrorCode::InterruptedAtShutdown);
        }
    }
}

/// The thread that resumes interrupted builds. Dropping it interrupts them again.
pub(super) struct ResumedBuilds {
    stop: Arc<StopSignal>,
    thread: Option<JoinHandle<()>>,
}

impl ResumedBuilds {
    /// Returns no builds.
    pub(super) fn none() -> Self {
        Self {
            stop: Arc::default(),
            thread: None,
        }
    }

    /// Starts the thread, if there are interrupted builds.
    pub(super) fn start(builder: IndexBuilder) -> std::io::Result<Self> {
        let stop = Arc::new(StopSignal::default());
        let mut collections = builder.catalog.collections();
        collections.retain(|c| !builder.catalog.unfinished_indexes(c).is_empty());
        if collections.is_empty() || builder.engine.is_read_only() {
            return Ok(Self { stop, thread: None });
        }
        let work = {
            let stop = stop.clone();
            move || {
                for collection in collections {
                    if stop.is_stopping() {
                        return;
                    }
                    // A failure was logged, and the index was removed.
                    let _ = builder.resume(&collection, &stop);
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("index-builds".into())
            .spawn(work)?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for ResumedBuilds {
    fn drop(&mut self) {
        self.stop.stop();
        if let Some(thread) = self.thread.take() {
            // A panic in the thread was reported when it occurred.
            let _ = thread.join();
        }
    }
}

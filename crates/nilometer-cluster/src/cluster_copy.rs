//! A cluster as the source and as the target of a copy.
//!
//! Every database of the source is read as it was at one moment, each at one of its own. All moments are within a time in
//! which the catalog did not change:
//!
//! ```text
//! open the catalog ─► open the partitions ─► open the catalog again ── the same contents? ─ yes ─► the source
//!        ▲                                                                 └ no: a collection has changed, or documents have moved
//!        └──────────────── the second view of it is the first one now ─────────┘
//! ```
//!
//! A move of documents, and a change of a collection, writes into the catalog before and after it writes into partitions. So
//! none ran from begin to end meanwhile. One that was under way is in the copy as after the end of all processes at that
//! moment, and is undone or finished there as usual.
//!
//! The target is created empty. An object in the place of the description says that the copy is not complete; the description
//! replaces it at the end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{StreamExt, stream};
use nilometer_storage::{Error, Result};
use object_store::ObjectStore;
use tokio::runtime::Runtime;

use crate::description::{self, CATALOG, ClusterDescription};
use crate::engine::{SlateEngine, is_empty, runtime};
use crate::options::SlateOptions;
use crate::source::SlateSource;

/// Partitions that are opened at the same time.
const OPENED_AT_ONCE: usize = 16;

/// Threads that read the databases of a source.
const THREADS: usize = 2;

/// Time for which a source is tried to be opened while the catalog changes again and again.
const CHANGES_MAX: Duration = Duration::from_secs(60);

/// Pause after the catalog has changed.
const PAUSE: Duration = Duration::from_millis(200);

/// All databases of a cluster, to be read.
pub struct ClusterSource {
    description: ClusterDescription,
    databases: Vec<(String, SlateSource)>,
}

impl ClusterSource {
    /// Opens the databases of the cluster at a path. `None` if there is no cluster. Its processes are not disturbed.
    pub(crate) fn open(store: &Arc<dyn ObjectStore>, path: &str) -> Result<Option<Self>> {
        let runtime = Arc::new(runtime(path, THREADS)?);
        let found = runtime.block_on(description::find(store, path))?;
        let Some(description) = found else {
            return Ok(None);
        };
        let until = Instant::now() + CHANGES_MAX;
        let opener = Opener {
            runtime,
            store,
            path,
        };
        let mut catalog = opener.open_all(&[CATALOG.to_owned()])?;
        loop {
            let partitions = opener.open_all(&description.names())?;
            let again = opener.open_all(&[CATALOG.to_owned()])?;
            let sequence = |opened: &[(String, SlateSource)]| {
                let sequences = opened.iter().map(|(_, source)| source.sequence());
                sequences.collect::<Vec<_>>()
            };
            if sequence(&catalog) == sequence(&again) {
                catalog.extend(partitions);
                return Ok(Some(Self {
                    description,
                    databases: catalog,
                }));
            }
            if Instant::now() >= until {
                return Err(Error::Store {
                    reason: format!(
                        "collections change or documents move all the time, for {} s now: stop the balancer and repeat the command",
                        CHANGES_MAX.as_secs()
                    ),
                });
            }
            std::thread::sleep(PAUSE);
            catalog = again;
        }
    }

    /// Returns the number of partitions.
    pub fn partitions(&self) -> u32 {
        self.description.partitions
    }

    /// Returns the databases with their names, the catalog first.
    pub fn into_databases(self) -> Vec<(String, SlateSource)> {
        self.databases
    }
}

/// Opens databases of a cluster.
struct Opener<'o> {
    runtime: Arc<Runtime>,
    store: &'o Arc<dyn ObjectStore>,
    path: &'o str,
}

impl Opener<'_> {
    /// Opens the databases with these names.
    fn open_all(&self, names: &[String]) -> Result<Vec<(String, SlateSource)>> {
        let opened = stream::iter(names.to_vec()).map(|name| async move {
            let path = format!("{}/{name}", self.path);
            let source = SlateSource::open_on(&self.runtime, Arc::clone(self.store), &path);
            Ok((name, source.await?))
        });
        let opened = opened.buffered(OPENED_AT_ONCE).collect::<Vec<_>>();
        // A source is closed outside of the runtime, also after the failure of another one.
        let opened: Vec<Result<_>> = self.runtime.block_on(opened);
        opened.into_iter().collect()
    }
}

/// A new cluster that gets the contents of another one.
pub struct ClusterTarget {
    store: Arc<dyn ObjectStore>,
    path: String,
    options: SlateOptions,
    description: ClusterDescription,
}

impl ClusterTarget {
    /// Creates a cluster at a path, where there is no object. Until [`Self::finish`] returns it cannot be served.
    pub(crate) fn create(
        store: Arc<dyn ObjectStore>,
        path: &str,
        options: SlateOptions,
        partitions: u32,
    ) -> Result<Self> {
        let runtime = runtime(path, 1)?;
        if !runtime.block_on(is_empty(&store, path))? {
            return Err(Error::NotEmpty { path: path.into() });
        }
        runtime.block_on(description::begin_copy(&store, path))?;
        Ok(Self {
            store,
            path: path.to_owned(),
            options,
            description: ClusterDescription::new(partitions)?,
        })
    }

    /// Creates a database of the cluster as the target of a copy: see [`SlateEngine::create_for_copy`].
    pub fn create_database(&self, name: &str) -> Result<SlateEngine> {
        let path = format!("{}/{name}", self.path);
        SlateEngine::create_for_copy(Arc::clone(&self.store), &path, &self.options)
    }

    /// Lets the cluster be served.
    pub fn finish(self) -> Result<()> {
        let done = description::finish_copy(&self.store, &self.path, &self.description);
        runtime(&self.path, 1)?.block_on(done)
    }
}

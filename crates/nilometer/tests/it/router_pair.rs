//! Two routers of one process over the same partitions: one has the catalog, the other reads it.

use std::path::Path;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use nilometer::database::{HostedPartition, LocalPartition};
use nilometer::router::{
    Coordinator, Partition, PartitionMove, PendingReply, RouterReport, Tenure,
};
use nilometer::services::Environment;
use nilometer::session::ClientSession;
use nilometer::{Database, Request};
use nilometer_bson::{Document, ObjectId, doc};
use nilometer_storage::{
    Durability, Engine, Error, KeyspaceId, MemoryEngine, NewKeyspace, Result, WriteBatch,
    forward_engine,
};

use crate::support::show;

/// An engine as a router sees it that does not have the catalog.
struct View(Arc<dyn Engine>);

impl Engine for View {
    forward_engine!(0: keyspaces, snapshot, keyspace_statistics, statistics);

    fn create_keyspaces(&self, _: &[NewKeyspace<'_>]) -> Result<Vec<KeyspaceId>> {
        Err(Error::ReadOnly)
    }

    fn drop_keyspace(&self, _: KeyspaceId) -> Result<()> {
        Err(Error::ReadOnly)
    }

    fn commit(&self, _: WriteBatch, _: Durability) -> Result<u64> {
        Err(Error::ReadOnly)
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn settle(&self) -> Result<()> {
        Ok(())
    }

    fn checkpoint(&self, _: &Path) -> Result<()> {
        Err(Error::ReadOnly)
    }

    fn verify(&self) -> Result<()> {
        Ok(())
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn close(&self) -> Result<()> {
        Ok(())
    }
}

/// The reply of another router of this process.
struct Ready(Option<Document>);

impl PendingReply for Ready {
    fn wait(&mut self, _: Duration) -> nilometer::Result<Option<Document>> {
        Ok(self.0.take())
    }
}

/// Two routers over the same partitions.
pub(crate) struct RouterPair {
    /// Has the catalog.
    pub(crate) first: Arc<Database>,
    second: Arc<Second>,
    pub(crate) partitions: Vec<Arc<HostedPartition>>,
}

/// The router that reads the catalog of the first.
struct Second {
    engine: Arc<dyn Engine>,
    first: Arc<Database>,
    current: OnceLock<RwLock<Arc<Database>>>,
}

impl Second {
    fn current(&self) -> Arc<Database> {
        let current = self.current.get().unwrap().read();
        Arc::clone(&current.unwrap_or_else(PoisonError::into_inner))
    }
}

/// Reaches the first router for the second.
struct ToFirst(Arc<Second>);

impl Coordinator for ToFirst {
    fn send(&self, request: Request) -> Box<dyn PendingReply> {
        Box::new(Ready(Some(self.0.first.run_for_router(&request))))
    }

    fn cluster_id(&self) -> ObjectId {
        ObjectId([9; 12])
    }

    fn routers(&self) -> Vec<RouterReport> {
        let report = |host: &str, seen_ms| RouterReport {
            host: host.to_owned(),
            since_ms: 1,
            seen_ms,
            only_routes: false,
        };
        vec![report("first:1", 5), report("second:2", 6)]
    }

    fn moves(&self) -> Vec<PartitionMove> {
        let tenure = Tenure {
            term: 7,
            since_ms: 3_000,
        };
        vec![PartitionMove {
            partition: "p1".into(),
            from: "first:1".into(),
            to: "second:2".into(),
            tenure,
        }]
    }

    fn catch_up(&self) -> nilometer::Result<()> {
        let view = Arc::new(View(Arc::clone(&self.0.engine)));
        let mut current = self.0.current.get().unwrap().write().unwrap();
        *current = current.router_successor(view)?;
        Ok(())
    }
}

impl RouterPair {
    pub(crate) fn new(count: usize) -> Self {
        Self::over(Arc::new(MemoryEngine::new()), count)
    }

    /// Opens both routers over what is stored in an engine.
    pub(crate) fn over(engine: Arc<dyn Engine>, count: usize) -> Self {
        let hosted = |_| {
            let database = Arc::new(Database::in_memory().unwrap());
            Arc::new(HostedPartition::new(database).unwrap())
        };
        let partitions: Vec<Arc<HostedPartition>> = (0..count).map(hosted).collect();
        let named = || {
            let named = partitions.iter().enumerate().map(|(at, hosted)| {
                let name = format!("p{at:04}");
                Arc::new(LocalPartition::new(&name, Arc::clone(hosted))) as Arc<dyn Partition>
            });
            named.collect::<Vec<_>>()
        };
        let first = Database::router(Arc::clone(&engine), Environment::default(), named());
        let first = Arc::new(first.unwrap());
        let second = Arc::new(Second {
            engine: Arc::clone(&engine),
            first: Arc::clone(&first),
            current: OnceLock::new(),
        });
        let opened = Database::router_among(
            Arc::new(View(engine)),
            Environment::default(),
            std::env::temp_dir(),
            named(),
            Arc::new(ToFirst(Arc::clone(&second))),
        );
        let opened = RwLock::new(Arc::new(opened.unwrap()));
        assert!(second.current.set(opened).is_ok());
        Self {
            first,
            second,
            partitions,
        }
    }

    /// Returns a cluster with a time series, sharded by its host, that both routers know.
    pub(crate) fn sharded(count: usize) -> Self {
        let routers = Self::new(count);
        let timeseries = doc! {"timeField": "t", "metaField": "m"};
        ok(
            &routers.first,
            doc! {"create": "ts", "timeseries": timeseries, "$db": "test"},
        );
        let shard = doc! {"shardCollection": "test.ts", "key": doc! {"m.host": 1}, "$db": "admin"};
        ok(&routers.first, shard);
        routers.catch_up();
        routers
    }

    pub(crate) fn second(&self) -> Arc<Database> {
        self.second.current()
    }

    pub(crate) fn catch_up(&self) {
        ToFirst(Arc::clone(&self.second)).catch_up().unwrap();
    }
}

pub(crate) fn run(database: &Database, command: Document) -> Document {
    database.run_command(&mut ClientSession::embedded(), &Request::new(command))
}

pub(crate) fn ok(database: &Database, command: Document) -> Document {
    let reply = run(database, command.clone());
    let is_done =
        reply.get("ok").as_exact_i64() == Some(1) && reply.get("writeErrors").is_missing();
    assert!(is_done, "{}: {}", show(&command), show(&reply));
    reply
}

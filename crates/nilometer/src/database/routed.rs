//! A database as a router, and as a partition of one.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use nilometer_bson::{DocRef, Document, ValueRef};
use nilometer_storage::Engine;

use super::collections::generated;
use super::{Database, SharedParts};
use crate::catalog::{BUCKETS_PREFIX, CONFIG, Namespace, is_internal_database};
use crate::error::{Error, ErrorCode, Result};
use crate::operation::Request;
use crate::query::source::{Collections, Resolved};
use crate::router::{Partition, PendingReply, RoutedCollection, Router};
use crate::services::Environment;
use crate::session::{ClientSession, UserName};

/// Stages that describe the process, not its data.
const OF_THE_PROCESS: [&str; 3] = ["$currentOp", "$listLocalSessions", "$listSessions"];

impl Database {
    /// Opens a router over `partitions`. Its `engine` has the catalog, the users and the placement of the cluster; the
    /// documents are in the partitions. It answers clients as a MongoDB router does, and refuses what it does not have.
    ///
    /// The same partitions, with the same names, must be there whenever the router is opened. One router changes a
    /// cluster at a time.
    pub fn router(
        engine: Arc<dyn Engine>,
        environment: Environment,
        partitions: Vec<Arc<dyn Partition>>,
    ) -> Result<Self> {
        if environment.replica_set.is_some() {
            return Err(Error::bad_value("a router is no member of a replica set"));
        }
        let mut database = Self::assemble(engine, SharedParts::new(environment), None)?;
        let catalog = database.catalog.clone();
        let options = |namespace: &Namespace| {
            let collection = catalog.timeseries(namespace);
            collection.and_then(|collection| collection.timeseries.clone())
        };
        let (engine, ids) = (database.engine.clone(), database.services.ids.clone());
        let router = Arc::new(Router::open(partitions, engine, ids, options)?);
        database.query.collections = Arc::new(RoutedCollections {
            router: Arc::clone(&router),
            own: database.collections.clone(),
        });
        database.router = Some(router);
        Ok(database)
    }

    /// Returns the router inside; `None` on a server that has its documents itself.
    pub(crate) fn as_router(&self) -> Option<&Arc<Router>> {
        self.router.as_ref()
    }
}

/// The collections of a cluster: the router's own catalog says what there is, partitions have the documents.
struct RoutedCollections {
    router: Arc<Router>,
    own: Arc<dyn Collections>,
}

impl Collections for RoutedCollections {
    fn resolve(&self, db: &str, coll: &str) -> Result<Resolved> {
        if db == CONFIG
            && let Some(documents) = self.router.config_documents(coll)
        {
            return Ok(generated(documents));
        }
        if is_internal_database(db) {
            return self.own.resolve(db, coll);
        }
        if coll.starts_with(BUCKETS_PREFIX) {
            return Err(Error::new(
                ErrorCode::CommandNotSupported,
                "buckets are not read as documents on a router",
            ));
        }
        let own = self.own.resolve(db, coll)?;
        let namespace = match own {
            Resolved::Ordinary(_) | Resolved::TimeSeries(_) => Namespace::new(db, coll)?,
            _ => return Ok(own),
        };
        // What only the process has, such as `system.profile`, is not placed.
        Ok(match self.router.placement(&namespace) {
            None => own,
            Some(_) => {
                let router = Arc::clone(&self.router);
                Resolved::Partitioned(Arc::new(RoutedCollection { router, namespace }))
            }
        })
    }

    fn find_by_id(&self, db: &str, coll: &str, id: ValueRef<'_>) -> Result<Option<Document>> {
        match is_internal_database(db) {
            true => self.own.find_by_id(db, coll, id),
            false => Ok(None),
        }
    }

    fn introspect(
        &self,
        db: &str,
        coll: Option<&str>,
        stage: &str,
        argument: DocRef<'_>,
        user: Option<&UserName>,
    ) -> Result<Vec<Document>> {
        if OF_THE_PROCESS.contains(&stage) {
            return self.own.introspect(db, coll, stage, argument, user);
        }
        Err(Error::new(
            ErrorCode::CommandNotSupported,
            format!("{stage} is not supported on a router"),
        ))
    }
}

/// A database of this process as a partition of a router: for tests, and for programs that embed several.
///
/// Each request runs on a thread of its own.
pub struct LocalPartition {
    name: String,
    database: Arc<Database>,
}

impl LocalPartition {
    /// Calls `database` the partition `name`.
    pub fn new(name: &str, database: Arc<Database>) -> Self {
        Self {
            name: name.to_owned(),
            database,
        }
    }
}

impl Partition for LocalPartition {
    fn name(&self) -> &str {
        &self.name
    }

    fn host(&self) -> String {
        let host = &self.database.services.host;
        format!("{}:{}", host.hostname, host.port)
    }

    fn send(&self, request: Request) -> Box<dyn PendingReply> {
        let (sender, receiver) = sync_channel(1);
        let database = Arc::clone(&self.database);
        let run = move || {
            let mut session = ClientSession::embedded();
            let reply = database.run_command(&mut session, &request);
            // The router may have stopped waiting.
            let _ = sender.send(reply);
        };
        let thread = std::thread::Builder::new().name("partition".to_owned());
        // Without a thread the sender is dropped, and the reply is an error.
        let _ = thread.spawn(run);
        Box::new(LocalReply(receiver))
    }
}

struct LocalReply(Receiver<Document>);

impl PendingReply for LocalReply {
    fn wait(&mut self, at_most: Duration) -> Result<Option<Document>> {
        match self.0.recv_timeout(at_most) {
            Ok(reply) => Ok(Some(reply)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(Error::new(
                ErrorCode::InternalError,
                "the partition did not run the command",
            )),
        }
    }
}

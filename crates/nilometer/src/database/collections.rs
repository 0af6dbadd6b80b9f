//! Stored data as a source of queries: the implementation of [`crate::query::source`].

use std::sync::{Arc, Weak};

use nilometer_bson::{DocRef, Document, DocumentBuilder, Value, ValueRef, doc};
use nilometer_storage::Engine;

use crate::args::Args;
use crate::auth::Authority;
use crate::catalog::{Catalog, CatalogEntry, Collection, Namespace, SYSTEM_VIEWS, StoredRollup};
use crate::change_log::ChangeLog;
use crate::error::{Error, ErrorCode, Result, location};
use crate::eval::Collation;
use crate::modify::{BucketAccess, ModifyContext};
use crate::query::cursor::CursorRegistry;
use crate::query::planner::access::cache::PlanCache;
use crate::query::source::{
    BucketIndexScan, BucketSource, Collections, Direction, Outputs, RecordIter, RecordKey,
    RecordScanOptions, RecordSource, Resolved, RollupSource, ScanCounters, ViewDefinition,
};
use crate::rollup::definition_of;
use crate::services::Services;
use crate::services::describe::{self, OperationFilter};
use crate::session::UserName;
use crate::timeseries::{BucketRange, StoredBuckets, Timeseries};
use crate::write::Records;

use super::buckets::StoredBucketSource;
use super::records::StoredRecordSource;
use super::transactions::Transactions;

/// All collections of a database.
#[derive(Clone)]
pub(crate) struct StoredCollections {
    pub(crate) services: Arc<Services>,
    pub(super) engine: Arc<dyn Engine>,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) timeseries: Arc<Timeseries>,
    pub(crate) records: Arc<Records>,
    pub(super) plans: Arc<PlanCache>,
    pub(super) authority: Arc<Authority>,
    pub(super) cursors: Arc<CursorRegistry>,
    pub(super) change_log: Option<Arc<ChangeLog>>,
    /// The database has them: one that is open holds what it reads, these collections among it.
    pub(super) transactions: Weak<Transactions>,
}

impl Collections for StoredCollections {
    fn resolve(&self, db: &str, coll: &str) -> Result<Resolved> {
        let namespace = Namespace {
            database: db.to_owned(),
            collection: coll.to_owned(),
        };
        self.catalog.check_in_snapshot(db, coll)?;
        if self.catalog.is_oplog(&namespace) {
            return Ok(self.oplog());
        }
        if let Some(buckets) = self.catalog.timeseries(&namespace) {
            return Ok(Resolved::TimeSeries(Arc::new(self.buckets(buckets)?)));
        }
        Ok(match self.catalog.get(&namespace) {
            Some(CatalogEntry::Collection(found)) if found.timeseries.is_some() => {
                Resolved::Ordinary(Arc::new(self.buckets(found)?))
            }
            Some(CatalogEntry::Collection(collection)) => {
                Resolved::Ordinary(Arc::new(StoredRecordSource {
                    records: self.records.clone(),
                    collation: Collation::of_stored(collection.options.as_ref())?,
                    collection,
                }))
            }
            Some(CatalogEntry::View(view)) => match &view.rollup {
                // As a view on a collection that does not exist, it has no documents.
                Some(rollup) if self.catalog.rollup_chain(db, &rollup.source).is_none() => {
                    Resolved::Absent
                }
                Some(rollup) => Resolved::Rollup(self.rollup(&namespace, rollup)?),
                None => Resolved::View(ViewDefinition {
                    on: view.view_on.clone(),
                    pipeline: view.pipeline.clone(),
                    collation: Collation::of_stored(view.options.as_ref())?,
                }),
            },
            None if coll == SYSTEM_VIEWS => self.system_views(db),
            None => match self.generated_documents(db, coll) {
                Some(documents) => generated(documents),
                None => Resolved::Absent,
            },
        })
    }

    fn rollups(&self, db: &str, coll: &str) -> Result<Vec<Arc<RollupSource>>> {
        let namespace = Namespace {
            database: db.to_owned(),
            collection: coll.to_owned(),
        };
        let Some(series) = self.catalog.timeseries(&namespace) else {
            return Ok(Vec::new());
        };
        if series.rollups.lock_shared().is_empty() {
            return Ok(Vec::new());
        }
        let mut found = Vec::new();
        for (name, rollup) in self.catalog.rollups() {
            let chain = self.catalog.rollup_chain(&name.database, &rollup.source);
            if chain.is_some_and(|(_, bottom)| bottom.uuid == series.uuid) {
                // One that was created before the series may not fit to it.
                found.extend(self.rollup(&name, &rollup).ok());
            }
        }
        Ok(found)
    }

    fn find_by_id(&self, db: &str, coll: &str, id: ValueRef<'_>) -> Result<Option<Document>> {
        let namespace = Namespace {
            database: db.to_owned(),
            collection: coll.to_owned(),
        };
        match self.catalog.collection(&namespace) {
            Some(found) if found.timeseries.is_none() => {
                let record = self.records.find_by_id(&found, id)?;
                Ok(record.map(|(_, document)| document))
            }
            Some(found) => {
                let source = self.buckets(found)?;
                let Some(key) = source.clustered_key(id) else {
                    return Ok(None);
                };
                let only = RecordScanOptions {
                    min: Some(key.clone()),
                    max: Some(key),
                    ..RecordScanOptions::default()
                };
                let first = RecordSource::scan(&source, &only)?.next().transpose()?;
                Ok(first.map(|(_, document)| document))
            }
            _ => Ok(None),
        }
    }

    fn outputs(&self) -> Option<&dyn Outputs> {
        Some(self)
    }

    fn introspect(
        &self,
        db: &str,
        coll: Option<&str>,
        stage: &str,
        argument: DocRef<'_>,
        user: Option<&UserName>,
    ) -> Result<Vec<Document>> {
        match (stage, coll) {
            ("$collStats", Some(coll)) => {
                let namespace = Namespace {
                    database: db.to_owned(),
                    collection: coll.to_owned(),
                };
                let host = &self.services.host;
                let host_port = format!("{}:{}", host.hostname, host.port);
                let now_ms = self.services.clock.now_ms();
                Ok(vec![self.coll_stats_stage(
                    &namespace, now_ms, &host_port, argument,
                )?])
            }
            ("$planCacheStats", Some(coll)) => {
                // This server is the only host.
                let args = Args::new("$planCacheStats", argument);
                args.check_names(&["allHosts"])?;
                args.boolean("allHosts")?;
                let host = &self.services.host;
                let host_port = format!("{}:{}", host.hostname, host.port);
                Ok(self.plans.stats(&format!("{db}.{coll}"), &host_port))
            }
            ("$shardedDataDistribution", _) => Err(Error::location(
                location::SHARDED_CLUSTER_ONLY,
                "The $shardedDataDistribution stage can only be run on a sharded cluster",
            )),
            ("$currentOp", None) if db == "admin" => self.current_op(argument, user),
            ("$currentOp", _) => Err(Error::new(
                ErrorCode::InvalidNamespace,
                "$currentOp must be run against the 'admin' database with {aggregate: 1}",
            )),
            ("$indexStats", Some(coll)) => {
                if !argument.is_empty() {
                    return Err(Error::location(
                        location::INDEX_STATS_ARGUMENT,
                        "The $indexStats stage specification must be an empty object",
                    ));
                }
                self.index_stats(&Namespace {
                    database: db.to_owned(),
                    collection: coll.to_owned(),
                })
            }
            ("$listCatalog", coll) => self.list_catalog(db, coll, argument),
            ("$listLocalSessions", None) => sessions(&self.services, stage, argument, user),
            ("$listSessions", Some("system.sessions")) if db == "config" => {
                sessions(&self.services, stage, argument, user)
            }
            ("$listSessions", _) => Err(Error::new(
                ErrorCode::InvalidNamespace,
                "$listSessions may only be run against config.system.sessions",
            )),
            _ => Err(Error::new(
                ErrorCode::CommandNotSupported,
                format!("{stage} is not supported by this version"),
            )),
        }
    }
}

/// Fails if rollups cannot stand on a time series, because its groups would differ.
pub(crate) fn check_collation_of_source(series: &Collection) -> Result<()> {
    match Collation::of_stored(series.options.as_ref())? == Collation::SIMPLE {
        true => Ok(()),
        false => Err(Error::invalid_options(
            "rollup: the source has a collation, by which its groups would differ",
        )),
    }
}

/// Describes the cursors that wait for the next `getMore`.
fn describe_idle(
    services: &Services,
    cursors: &CursorRegistry,
    shown: OperationFilter<'_>,
) -> Vec<Document> {
    let host = &services.host;
    let (now, now_ms) = (services.clock.monotonic(), services.clock.now_ms());
    let described = cursors.idle(|id, cursor, since| {
        if shown.of_user.is_some() && cursor.user.as_ref() != shown.of_user {
            return None;
        }
        let idle_ms = i64::try_from(now.saturating_sub(since).as_millis()).unwrap_or(i64::MAX);
        let mut out = DocumentBuilder::new();
        out.append("cursorId", id)
            .append("lastAccessDate", Value::DateTime(now_ms - idle_ms))
            .append(
                "nDocsReturned",
                i64::try_from(cursor.returned()).unwrap_or(i64::MAX),
            )
            .append("noCursorTimeout", cursor.no_timeout)
            .append("tailable", cursor.tail.is_some())
            .append(
                "awaitData",
                cursor.tail.as_ref().is_some_and(|tail| tail.awaits),
            )
            .append(
                "originatingCommand",
                describe::shown(&cursor.command, shown.truncate),
            )
            .append("planSummary", cursor.plan_summary());
        Some(doc! {
            "type": "idleCursor",
            "host": format!("{}:{}", host.hostname, host.port),
            "ns": cursor.namespace.as_str(),
            "lsid": cursor.lsid.map(|id| id.to_document()),
            "cursor": out.finish(),
        })
    });
    described.into_iter().flatten().collect()
}

/// Answers `$listLocalSessions` and `$listSessions`, which are the same for a single process. They show the
/// caller's sessions, or those of the requested users. Without access control there are no users, and all
/// sessions are shown.
fn sessions(
    services: &Services,
    stage: &str,
    argument: DocRef<'_>,
    user: Option<&UserName>,
) -> Result<Vec<Document>> {
    let options = Args::new(stage, argument);
    options.check_names(&["allUsers", "users"])?;
    let all = options.boolean("allUsers")?.unwrap_or(false);
    let mut named = Vec::new();
    let users = options.array("users")?;
    for one in users.iter().flat_map(|users| users.iter()) {
        named.push(UserName::parse(one, "", &format!("{stage}.users"))?);
    }
    if all && !named.is_empty() {
        return Err(Error::new(
            ErrorCode::UnsupportedFormat,
            format!("{stage} takes allUsers or users, not both"),
        ));
    }
    Ok(describe::sessions(
        services,
        all || !named.is_empty(),
        |of| {
            if named.is_empty() {
                return all || of == user;
            }
            of.is_some_and(|of| named.contains(of))
        },
    ))
}

impl BucketAccess for StoredCollections {
    fn source(&self, collection: &Arc<Collection>) -> Result<Arc<dyn BucketSource>> {
        Ok(Arc::new(self.buckets(Arc::clone(collection))?))
    }

    fn by_index(
        &self,
        collection: &Arc<Collection>,
        scan: &BucketIndexScan,
        range: BucketRange,
        counters: &Arc<ScanCounters>,
    ) -> Result<StoredBuckets> {
        self.buckets(Arc::clone(collection))?
            .by_index(scan, range, counters)
    }
}

impl StoredCollections {
    /// Answers `$currentOp`. Without access control there are no users, and all operations are shown.
    fn current_op(&self, argument: DocRef<'_>, user: Option<&UserName>) -> Result<Vec<Document>> {
        let mut shown = OperationFilter {
            idle_connections: false,
            truncate: false,
            of_user: user,
        };
        let (mut idle_cursors, mut idle_sessions) = (false, true);
        for element in argument {
            let ValueRef::Bool(value) = element.value() else {
                return Err(Error::failed_to_parse(format!(
                    "The '{}' parameter of the $currentOp stage must be a boolean value, but found: {}",
                    element.name(),
                    element.value().type_name()
                )));
            };
            match element.name() {
                "allUsers" if value => shown.of_user = None,
                "allUsers" => {}
                // There are no other servers to include, and no latches to report in backtraces.
                "localOps" | "backtrace" => {}
                "idleSessions" => idle_sessions = value,
                "idleConnections" => shown.idle_connections = value,
                "truncateOps" => shown.truncate = value,
                "idleCursors" => idle_cursors = value,
                other => {
                    return Err(Error::failed_to_parse(format!(
                        "Unrecognized option '{other}' in $currentOp stage."
                    )));
                }
            }
        }
        let mut described = describe::operations(&self.services, shown);
        if idle_sessions && let Some(transactions) = self.transactions.upgrade() {
            described.extend(transactions.describe_idle(&self.services, shown));
        }
        if idle_cursors {
            described.extend(describe_idle(&self.services, &self.cursors, shown));
        }
        Ok(described)
    }

    pub(crate) fn buckets(&self, collection: Arc<Collection>) -> Result<StoredBucketSource> {
        StoredBucketSource::new(self.timeseries.clone(), collection)
    }

    /// Returns a rollup and what it is computed from.
    pub(crate) fn rollup(
        &self,
        namespace: &Namespace,
        rollup: &Arc<StoredRollup>,
    ) -> Result<Arc<RollupSource>> {
        let chain = self
            .catalog
            .rollup_chain(&namespace.database, &rollup.source);
        let Some((below, bottom)) = chain else {
            return Err(Error::new(
                ErrorCode::NamespaceNotFound,
                format!(
                    "the source {} of the rollup {namespace} does not exist",
                    rollup.source
                ),
            ));
        };
        let Some(options) = bottom.timeseries.clone() else {
            return Err(Error::bad_value(
                "a rollup stands on a time-series collection",
            ));
        };
        check_collation_of_source(&bottom)?;
        let series_namespace = bottom.namespace.to_string();
        let series: Arc<dyn BucketSource> = Arc::new(self.buckets(bottom)?);
        let own = (namespace.clone(), Arc::clone(rollup));
        let mut found: Option<Arc<RollupSource>> = None;
        for (name, stored) in below.into_iter().rev().chain([own]) {
            found = Some(Arc::new(RollupSource {
                namespace: name.to_string(),
                definition: definition_of(&stored, &options)?,
                stored,
                engine: Arc::clone(&self.engine),
                parent: found,
                series: Arc::clone(&series),
                series_namespace: series_namespace.clone(),
            }));
        }
        found.ok_or_else(|| Error::bad_value("a rollup has a definition"))
    }

    /// Returns the parts that update and delete statements use.
    pub(crate) fn modify(&self) -> ModifyContext<'_> {
        ModifyContext {
            catalog: &self.catalog,
            records: &self.records,
            timeseries: &self.timeseries,
            ids: &self.services.ids,
            buckets: self,
        }
    }

    /// Returns the definitions of a database's views, as documents.
    fn system_views(&self, db: &str) -> Resolved {
        let mut views = Vec::new();
        for (namespace, entry) in self.catalog.list(db) {
            if let CatalogEntry::View(view) = entry {
                views.push(view_definition(&self.catalog, &namespace, &view));
            }
        }
        generated(views)
    }
}

/// Returns a collection of generated documents; absent if there are none.
pub(super) fn generated(documents: Vec<Document>) -> Resolved {
    if documents.is_empty() {
        Resolved::Absent
    } else {
        Resolved::Ordinary(Arc::new(GeneratedDocuments(documents)))
    }
}

/// Returns a view as `system.views` shows it.
pub(super) fn view_definition(
    catalog: &Catalog,
    namespace: &Namespace,
    view: &crate::catalog::View,
) -> Document {
    use nilometer_bson::doc;
    if view.rollup.is_some() {
        let mut out = nilometer_bson::DocumentBuilder::new();
        out.append("_id", namespace.to_string());
        out.append_all(view.definition().as_ref());
        return out.finish();
    }
    let pipeline = match catalog
        .timeseries(namespace)
        .and_then(|c| c.timeseries.clone())
    {
        Some(options) => vec![doc! { "$_internalUnpackBucket": doc! {
            "timeField": options.time_field.as_str(),
            "metaField": options.meta_field.as_deref(),
            "bucketMaxSpanSeconds": options.span_seconds,
        } }],
        None => view.pipeline.clone(),
    };
    let mut out = nilometer_bson::DocumentBuilder::new();
    out.append("_id", namespace.to_string());
    out.append("viewOn", view.view_on.as_str());
    out.append("pipeline", crate::catalog::pipeline_value(&pipeline));
    for element in view.options.iter() {
        out.append_element(element);
    }
    out.finish()
}

/// A collection of documents in memory.
struct GeneratedDocuments(Vec<Document>);

impl RecordSource for GeneratedDocuments {
    fn scan(&self, scan: &RecordScanOptions) -> Result<RecordIter> {
        let number = |at: usize| (at as u64).to_be_bytes().to_vec();
        let mut found: Vec<(RecordKey, Document)> = self
            .0
            .iter()
            .enumerate()
            .map(|(at, d)| (number(at), d.clone()))
            .collect();
        if scan.direction == Direction::Backward {
            found.reverse();
        }
        if let Some(after) = &scan.start_after {
            found.retain(|(key, _)| match scan.direction {
                Direction::Forward => key > after,
                Direction::Backward => key < after,
            });
        }
        Ok(Box::new(found.into_iter().map(Ok)))
    }

    fn count_estimate(&self) -> Result<u64> {
        Ok(self.0.len() as u64)
    }
}

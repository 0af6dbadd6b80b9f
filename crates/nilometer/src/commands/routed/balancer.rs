//! The balancer of a router: it assigns ranges of new measurements, and moves documents, so that partitions are used evenly.
//!
//! ```text
//! time series            how many measurements each partition got since the round before ──► ranges for new ones
//! ordinary collections   how many bytes each partition has ──► a range of about one chunk with its documents
//! ```
//!
//! It runs where the catalog is, when [`Database::balance`] is called. Its settings are documents of `config.settings`, as in
//! MongoDB; what it did is in `config.actionlog` and, range by range, in `config.changelog`.

use std::sync::Arc;

use nilometer_bson::{DocRef, Document, DocumentBuilder, Value, ValueRef, array, doc};

use super::{first_batch, not_sharded, number, ordinary, router_of, sharding};
use crate::args::Args;
use crate::auth::Action;
use crate::catalog::{CONFIG, Namespace};
use crate::commands::security::authorization::rules;
use crate::commands::{Authorization, CommandContext, CommandSpec, Fields, OnRouter};
use crate::database::Database;
use crate::error::{Error, Result};
use crate::operation::{OperationContext, Request};
use crate::router::{
    ActiveWindow, KeyBound, KeyWeights, Loads, Placement, Router, Sharding, default_settings, plan,
};
use crate::session::ClientSession;

/// The collection of the settings.
pub(super) const SETTINGS: &str = "settings";

/// The collection of the rounds that did something.
const ACTION_LOG: &str = "actionlog";

/// Bytes of the rounds that are remembered.
const ACTION_LOG_BYTES: i64 = 1 << 20;

/// Measurements that a time series gets between two rounds at least, if its ranges are to change.
const MEASUREMENTS_MIN: i64 = 1000;

/// Keys of a partition that are weighed at most.
const KEYS_MAX: i64 = 10_000;

/// Keys are weighed by the measurements of the last hour.
const RECENT_MS: i64 = 60 * 60 * 1000;

/// The size of a chunk in MB, unless `config.settings` has another one.
const CHUNK_MB: i64 = 128;

/// Documents move when two partitions differ by so many chunks, as in MongoDB.
const CHUNKS_APART: i64 = 3;

/// Chunks without documents that are passed over in a round.
const EMPTY_CHUNKS_MAX: usize = 64;

pub(super) const START: CommandSpec = CommandSpec {
    admin_only: true,
    write_concern: true,
    fields: Fields::Only(&["maxTimeMS"]),
    ..CommandSpec::new(
        "balancerStart",
        "Lets the balancer run.",
        Authorization::OnCluster(&[Action::FlushRouterConfig]),
        OnRouter::Catalog,
        start,
    )
};

pub(super) const STATUS: CommandSpec = CommandSpec {
    admin_only: true,
    ..CommandSpec::new(
        "balancerStatus",
        "Says whether the balancer runs, and how often it did.",
        Authorization::LoggedIn,
        OnRouter::Catalog,
        status,
    )
};

pub(super) const COLLECTION_STATUS: CommandSpec = CommandSpec {
    admin_only: true,
    ..CommandSpec::new(
        "balancerCollectionStatus",
        "Says whether the balancer has something to do for a collection.",
        Authorization::ByRule(rules::sharding),
        OnRouter::Catalog,
        collection_status,
    )
};

pub(super) const STOP: CommandSpec = CommandSpec {
    admin_only: true,
    write_concern: true,
    fields: Fields::Only(&["maxTimeMS"]),
    ..CommandSpec::new(
        "balancerStop",
        "Stops the balancer.",
        Authorization::OnCluster(&[Action::FlushRouterConfig]),
        OnRouter::Catalog,
        stop,
    )
};

/// What `config.settings` says.
struct Settings {
    is_on: bool,
    window: Option<ActiveWindow>,
    chunk_bytes: i64,
    /// Neighbouring chunks of a partition become one.
    merges: bool,
}

impl Settings {
    /// Reads the documents of the collection. Fails for what has no meaning here.
    fn parse(documents: &[Document]) -> Result<Self> {
        let mut out = Self {
            is_on: false,
            window: None,
            chunk_bytes: CHUNK_MB << 20,
            merges: false,
        };
        for document in documents {
            match document.get("_id").as_str() {
                Some("balancer") => out.read_balancer(document)?,
                Some("chunksize") => {
                    check_fields(document, &["_id", "value"])?;
                    let mb = document.get("value").as_exact_i64();
                    let mb = mb.filter(|mb| (1..=1024).contains(mb)).ok_or_else(|| {
                        Error::bad_value("the value of 'chunksize' is from 1 to 1024 MB")
                    })?;
                    out.chunk_bytes = mb << 20;
                }
                // Nothing is split by itself, in MongoDB either.
                Some("autosplit") => drop(enabled(document)?),
                Some("automerge") => out.merges = enabled(document)?,
                _ => {
                    return Err(Error::bad_value(
                        "config.settings has the documents 'balancer', 'chunksize', 'automerge' and 'autosplit'",
                    ));
                }
            }
        }
        Ok(out)
    }

    fn read_balancer(&mut self, document: &Document) -> Result<()> {
        check_fields(document, &["_id", "stopped", "mode", "activeWindow"])?;
        let stopped = match document.get("stopped") {
            ValueRef::Missing => false,
            ValueRef::Bool(stopped) => stopped,
            _ => return Err(Error::bad_value("'stopped' is true or false")),
        };
        let mode = document.get("mode");
        let is_off = match mode.as_str() {
            Some("full") => false,
            Some("off") => true,
            _ if mode.is_missing() => stopped,
            _ => return Err(Error::bad_value("'mode' is 'full' or 'off'")),
        };
        self.is_on = !stopped && !is_off;
        self.window = match document.get("activeWindow") {
            ValueRef::Missing => None,
            window => {
                let of = window.as_document().unwrap_or(DocRef::EMPTY);
                let time = |name: &str| of.get(name).as_str().unwrap_or_default();
                Some(ActiveWindow::parse(time("start"), time("stop"))?)
            }
        };
        Ok(())
    }
}

/// Reads a setting that is a switch.
fn enabled(document: &Document) -> Result<bool> {
    check_fields(document, &["_id", "enabled"])?;
    match document.get("enabled") {
        ValueRef::Bool(enabled) => Ok(enabled),
        _ => Err(Error::bad_value("'enabled' is true or false")),
    }
}

/// Fails for a field that has no meaning.
fn check_fields(document: &Document, known: &[&str]) -> Result<()> {
    let mut fields = document.iter();
    match fields.find(|field| !known.contains(&field.name())) {
        None => Ok(()),
        Some(other) => Err(Error::bad_value(format!(
            "'{}' is no setting of the balancer",
            other.name()
        ))),
    }
}

/// Runs a command of one server in the router's own database `config`.
fn in_config(
    database: &Database,
    operation: &OperationContext,
    spec: &'static CommandSpec,
    command: Document,
) -> Result<Document> {
    let mut operation = operation.clone();
    CONFIG.clone_into(&mut operation.database);
    // It is another write than the one that the client has numbered.
    operation.txn_number = None;
    let mut session = ClientSession::embedded();
    let mut own = CommandContext {
        operation,
        session: &mut session,
        spec,
    };
    (spec.handler)(database, &mut own, &Request::new(command))
}

pub(super) fn settings_of(database: &Database) -> Result<Vec<Document>> {
    let namespace = Namespace::new(CONFIG, SETTINGS)?;
    if database.catalog().get(&namespace).is_none() {
        return Ok(Vec::new());
    }
    Ok(first_batch(
        &database.call(CONFIG, doc! {"find": SETTINGS})?,
    ))
}

/// Fails if documents of `config.settings` have no meaning.
pub(super) fn check(documents: &[Document]) -> Result<()> {
    Settings::parse(documents).map(drop)
}

/// Stores the settings that clients would take for others if they were not there.
pub(super) fn store_defaults(database: &Database, operation: &OperationContext) -> Result<()> {
    let upserts = default_settings().map(|setting| {
        let id = setting.get("_id").to_value();
        let rest = super::read(setting.as_ref(), &["_id"]);
        let set = doc! {"$setOnInsert": rest};
        Value::from(doc! {"q": doc! {"_id": id}, "u": set, "upsert": true})
    });
    let upserts: Vec<Value> = upserts.into_iter().collect();
    let update = doc! {"update": SETTINGS, "updates": upserts};
    let spec = &crate::commands::crud::update::SPEC;
    in_config(database, operation, spec, update).map(drop)
}

fn switch(database: &Database, operation: &OperationContext, is_on: bool) -> Result<Document> {
    store_defaults(database, operation)?;
    let mode = if is_on { "full" } else { "off" };
    let set = doc! {"$set": doc! {"stopped": !is_on, "mode": mode}};
    let one = doc! {"q": doc! {"_id": "balancer"}, "u": set, "upsert": true};
    let update = doc! {"update": SETTINGS, "updates": array![one]};
    in_config(
        database,
        operation,
        &crate::commands::crud::update::SPEC,
        update,
    )?;
    Ok(Document::new())
}

fn start(database: &Database, context: &mut CommandContext<'_>, _: &Request) -> Result<Document> {
    switch(database, &context.operation, true)
}

/// Waits for the round that runs.
fn stop(database: &Database, context: &mut CommandContext<'_>, _: &Request) -> Result<Document> {
    let done = switch(database, &context.operation, false)?;
    drop(router_of(database).balancing());
    Ok(done)
}

fn status(database: &Database, _: &mut CommandContext<'_>, _: &Request) -> Result<Document> {
    let settings = Settings::parse(&settings_of(database)?)?;
    let router = router_of(database);
    let mut out = DocumentBuilder::new();
    out.append("mode", if settings.is_on { "full" } else { "off" });
    out.append("inBalancerRound", router.is_balancing());
    out.append("numBalancerRounds", router.balancer_rounds());
    Ok(out.finish())
}

/// Says whether the balancer would assign or move ranges of a collection.
fn collection_status(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let router = router_of(database);
    let args = Args::new("balancerCollectionStatus", request.body.as_ref());
    let namespace = sharding::placed_name(&args, "balancerCollectionStatus")?;
    let placement = router.placement(&namespace);
    let placement = placement.ok_or_else(|| not_sharded(&namespace))?;
    let sharding = placement.sharding.as_ref();
    let sharding = sharding.ok_or_else(|| not_sharded(&namespace))?;
    let chunk_bytes = Settings::parse(&settings_of(database)?)?.chunk_bytes;
    let is_uneven = match sharding.key.is_timeseries() {
        // What is written between two rounds decides.
        true => router.balancing().uneven.contains(&placement.uuid),
        false => {
            let place = (router, &context.operation, &namespace);
            far_apart(&statistics(place)?, chunk_bytes).is_some()
        }
    };
    let is_compliant = sharding.is_exempt || !is_uneven;
    let mut out = DocumentBuilder::new();
    out.append("chunkSize", chunk_bytes >> 20);
    out.append("balancerCompliant", is_compliant);
    if !is_compliant {
        out.append("firstComplianceViolation", "chunksImbalance");
    }
    Ok(out.finish())
}

/// What a round did.
#[derive(Default)]
struct Round {
    /// Ranges that were assigned or moved.
    moved: i64,
    /// Collections that were looked at.
    collections: i64,
    error: Option<Error>,
}

impl Database {
    /// Runs a round of the balancer, if this is a router, has the catalog, and the balancer is on: every ten seconds is often
    /// enough.
    pub fn balance(&self) -> Result<()> {
        let clock = self.services().clock.clone();
        match self.as_router() {
            Some(_) => round(self, &OperationContext::internal(clock, CONFIG)),
            None => Ok(()),
        }
    }
}

/// Runs a round of the balancer, if it is on and this router has the catalog.
fn round(database: &Database, operation: &OperationContext) -> Result<()> {
    let router = router_of(database);
    if router.elsewhere().is_some() {
        return Ok(());
    }
    let settings = Settings::parse(&settings_of(database)?)?;
    let is_open = |window: ActiveWindow| window.contains(operation.now_ms);
    if !settings.is_on || !settings.window.is_none_or(is_open) {
        // What is written meanwhile says nothing of a rate.
        router.balancing().counts.clear();
        return Ok(());
    }
    let mut memory = router.balancing();
    let begin = operation.clock().monotonic();
    let mut round = Round::default();
    for (namespace, placement) in &*router.placements() {
        let sharding = placement.sharding.as_ref();
        let Some(sharding) = sharding.filter(|sharding| !sharding.is_exempt) else {
            memory.counts.remove(&placement.uuid);
            continue;
        };
        round.collections += 1;
        let place = (router, operation, namespace);
        let done = match sharding.key.is_timeseries() {
            true => {
                let before = memory.counts.remove(&placement.uuid);
                let counts = counts(place)?;
                let done = {
                    let series = database.catalog().timeseries(namespace);
                    let options = series.and_then(|series| series.timeseries.clone());
                    let time_field = options.map(|options| options.time_field);
                    let time_field = time_field.unwrap_or_default();
                    balance_series((place, &time_field), placement, before.as_deref(), &counts)
                };
                memory.counts.insert(placement.uuid, counts);
                match &done {
                    Ok(moved) if *moved > 0 => memory.uneven.insert(placement.uuid),
                    _ => memory.uneven.remove(&placement.uuid),
                };
                done
            }
            false => balance_documents(place, sharding, settings.chunk_bytes),
        };
        match done {
            Ok(moved) => round.moved += moved,
            // The others are balanced nevertheless.
            Err(error) => round.error = round.error.or(Some(error)),
        }
        if settings.merges
            && let Err(error) = merge_chunks(place)
        {
            round.error = round.error.or(Some(error));
        }
    }
    router.count_round();
    drop(memory);
    let time = operation.clock().monotonic().saturating_sub(begin);
    log(database, operation, round, time)
}

/// Stores what a round did, if it did something.
fn log(
    database: &Database,
    operation: &OperationContext,
    round: Round,
    time: std::time::Duration,
) -> Result<()> {
    if round.moved == 0 && round.error.is_none() {
        return Ok(());
    }
    let namespace = Namespace::new(CONFIG, ACTION_LOG)?;
    if database.catalog().get(&namespace).is_none() {
        let create = doc! {"create": ACTION_LOG, "capped": true, "size": ACTION_LOG_BYTES};
        let spec = &crate::commands::ddl::create::SPEC;
        in_config(database, operation, spec, create)?;
    }
    let mut details = DocumentBuilder::new();
    details.append(
        "executionTimeMillis",
        i64::try_from(time.as_millis()).unwrap_or(i64::MAX),
    );
    // MongoDB spells it so.
    details.append("errorOccured", round.error.is_some());
    if let Some(error) = &round.error {
        details.append("errmsg", error.message.as_str());
    }
    details.append("candidateCollections", round.collections);
    details.append("chunksMoved", round.moved);
    let host = &database.services().host;
    let entry = doc! {
        "server": format!("{}:{}", host.hostname, host.port), "time": Value::DateTime(operation.now_ms),
        "what": "balancer.round", "ns": "", "details": details.finish(),
    };
    let insert = doc! {"insert": ACTION_LOG, "documents": array![entry]};
    in_config(
        database,
        operation,
        &crate::commands::crud::insert::SPEC,
        insert,
    )?;
    Ok(())
}

/// The router, the operation of the round, and a collection.
type Place<'p> = (&'p Router, &'p OperationContext, &'p Namespace);

/// Asks all partitions.
fn ask((router, operation, namespace): Place<'_>, command: &Document) -> Result<Vec<Document>> {
    let all: Vec<usize> = (0..router.count()).collect();
    router.ask_all(&all, &namespace.database, command, operation)
}

/// Returns the number of measurements in each partition.
fn counts(place: Place<'_>) -> Result<Vec<i64>> {
    let replies = ask(place, &doc! {"count": place.2.collection.as_str()})?;
    Ok(replies.iter().map(|reply| number(reply.get("n"))).collect())
}

/// Assigns ranges of a time series by what its partitions got since the round before. Returns how many.
fn balance_series(
    (place, time_field): (Place<'_>, &str),
    placement: &Placement,
    before: Option<&[i64]>,
    counts: &[i64],
) -> Result<i64> {
    let (router, operation, namespace) = place;
    let Some(before) = before.filter(|before| before.len() == counts.len()) else {
        return Ok(0);
    };
    // What expired may outnumber what is new.
    let new = counts
        .iter()
        .zip(before)
        .map(|(now, then)| (now - then).max(0));
    let new: Vec<i64> = new.collect();
    if new.iter().sum::<i64>() < MEASUREMENTS_MIN {
        return Ok(0);
    }
    let stats = ask(place, &doc! {"collStats": namespace.collection.as_str()})?;
    let loads = Loads {
        rates: new.iter().map(|new| *new as f64).collect(),
        bytes: stats
            .iter()
            .map(|reply| number(reply.get("size")))
            .collect(),
    };
    let Some(sharding) = &placement.sharding else {
        return Ok(0);
    };
    let mut planned = Sharding::clone(sharding);
    let weights = |partition| weights(place, sharding, time_field, partition);
    let moved = plan(&mut planned, loads, operation.now_ms, weights)?;
    if moved.is_empty() {
        return Ok(0);
    }
    let _changes = router.lock_changes();
    router.begin_change(namespace, operation)?;
    let now = router.placement(namespace);
    // Somebody else has changed the ranges: the next round looks again.
    let Some(now) = now.filter(|now| now.version == placement.version) else {
        return Ok(0);
    };
    let mut changed = Placement::clone(&now);
    changed.sharding = Some(Arc::new(planned));
    router.set_placement(namespace, Some(changed))?;
    Ok(i64::try_from(moved.len()).unwrap_or(i64::MAX))
}

/// Returns the keys of a partition, by the measurements that it has of the last hour; of all time if it has none.
fn weights(
    (router, operation, namespace): Place<'_>,
    sharding: &Sharding,
    time_field: &str,
    partition: usize,
) -> Result<KeyWeights> {
    let key = &sharding.key;
    let id = key.without_time();
    if id.is_empty() {
        // What is new has the newest times: its ranges cannot be spread.
        return Ok(Vec::new());
    }
    let since = Value::DateTime(operation.now_ms.saturating_sub(RECENT_MS));
    let mut recent = DocumentBuilder::new();
    recent.append(time_field, doc! {"$gte": since});
    for filter in [recent.finish(), Document::new()] {
        let pipeline = array![
            doc! {"$match": filter},
            doc! {"$group": doc! {"_id": id.clone(), "n": doc! {"$sum": 1}}},
            doc! {"$sort": doc! {"n": -1}},
            doc! {"$limit": KEYS_MAX},
        ];
        let aggregate = doc! {
            "aggregate": namespace.collection.as_str(), "pipeline": pipeline,
            "collation": doc! {"locale": "simple"}, "cursor": doc! {"batchSize": KEYS_MAX},
        };
        let replies = router.ask_all(&[partition], &namespace.database, &aggregate, operation)?;
        let rows = replies.iter().flat_map(first_batch);
        let weights = rows.filter_map(|row| {
            let values = row.get("_id").as_array()?;
            let mut bound: Vec<Value> = values.iter().map(ValueRef::to_value).collect();
            bound.resize(key.parts().len(), Value::MinKey);
            Some((KeyBound(bound), number(row.get("n")) as f64))
        });
        let mut weights: KeyWeights = weights.collect();
        if !weights.is_empty() {
            weights.sort_by(|(a, _), (b, _)| a.cmp(b));
            return Ok(weights);
        }
    }
    Ok(Vec::new())
}

/// Makes one chunk of neighbouring ones of a partition.
fn merge_chunks((router, operation, namespace): Place<'_>) -> Result<()> {
    let sharding = router.sharding(namespace);
    if !sharding.is_some_and(|sharding| sharding.has_mergeable()) {
        return Ok(());
    }
    sharding::change_sharding((router, operation), namespace, |sharding| {
        for partition in 0..router.count() {
            sharding.merge_all(partition, usize::MAX);
        }
        Ok(())
    })
}

/// Returns what each partition says of a collection.
fn statistics(place: Place<'_>) -> Result<Vec<Document>> {
    ask(place, &doc! {"collStats": place.2.collection.as_str()})
}

/// Returns the partitions with the most and the fewest bytes, if they are far apart.
fn far_apart(stats: &[Document], chunk_bytes: i64) -> Option<(usize, usize)> {
    let size = |at: &usize| number(stats[*at].get("size"));
    let all = 0..stats.len();
    let from = all.clone().max_by_key(size)?;
    let to = all.min_by_key(size)?;
    (size(&from) - size(&to) >= CHUNKS_APART * chunk_bytes).then_some((from, to))
}

/// Moves about one chunk from the partition with the most bytes to that with the fewest, if they are far apart. Returns how many
/// ranges have moved.
fn balance_documents(place: Place<'_>, sharding: &Sharding, chunk_bytes: i64) -> Result<i64> {
    let (router, operation, namespace) = place;
    let stats = statistics(place)?;
    let Some((from, to)) = far_apart(&stats, chunk_bytes) else {
        return Ok(0);
    };
    let mean = number(stats[from].get("avgObjSize")).max(1);
    let most = (chunk_bytes / mean).max(1);
    let mut passed = 0;
    for passage in sharding.passages(from, to) {
        let key = &sharding.key;
        let step = router.step_of(namespace, key, &passage, most, operation)?;
        let by = (router, operation);
        let filter = key.between(&step.low, &step.high);
        if ordinary::has_documents(by, namespace, &[from], &filter)? {
            ordinary::move_range(by, namespace, (&step.low, &step.high), to)?;
            return Ok(1);
        }
        passed += 1;
        if passed == EMPTY_CHUNKS_MAX {
            break;
        }
    }
    Ok(0)
}

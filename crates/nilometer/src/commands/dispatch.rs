//! Runs one request: finds the command, reads the options every command takes, runs the handler, counts, and
//! forms the reply.
//!
//! There is always a reply, and it carries `ok`. An error becomes `{ok: 0, errmsg, code, codeName}` with its
//! labels and details.

use std::iter;
use std::sync::atomic::Ordering;
use std::time::Duration;

use std::sync::Arc;

use nilometer_bson::{Document, DocumentBuilder, Value, array};

use super::admin::fail_point;
use super::admin::profile;
use super::admin::profile::FinishedCommand;
use super::generic::{GenericArgs, Numbers};
use super::security::{audit, authorization};
use super::{
    Access, COMMANDS, CommandContext, CommandSpec, OperationCounter, find_command, generic,
    members, routed, snapshots, target, transactions,
};
use crate::catalog::Namespace;
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::eval::EvaluationCounters;
use crate::limits::COMMAND_BYTES_MAX;
use crate::operation::{Bypass, KillSwitch, OperationContext, OperationUsage, Progress, Request};
use crate::router::version_asked;
use crate::services::{CommandFailure, EnteringCommand, OperationEntry, Services};
use crate::session::{ClientSession, SessionId, UserName};
use crate::turns::Turn;

/// The field of a reply that says why the concern of a write was not met.
const CONCERN_ERROR: &str = "writeConcernError";

/// Runs one command and returns its reply.
pub fn run(database: &Database, session: &mut ClientSession, request: &Request) -> Document {
    let services = database.services();
    let name = request.command_name();
    let known = find_command(name).and_then(|at| Some((at, COMMANDS.get(at)?)));
    let of_router = || database.as_router().and_then(|_| routed::find(name));
    // The statistics have no place for commands that only a router has.
    let known = known.or_else(|| Some((COMMANDS.len(), of_router()?)));
    let Some((index, spec)) = known else {
        services.counters.unknown_commands.increment();
        return error_reply(&Error::new(
            ErrorCode::CommandNotFound,
            format!("no such command: '{name}'"),
        ));
    };
    let failure = failure_of(services, session, request, spec);
    let outcome = run_placed(database, session, request, spec, failure.as_ref());
    let outcome = outcome.and_then(check_size);
    let outcome = outcome.map_err(|error| {
        let error = of_taken_over(error, spec);
        let error = members::of_lost_partition(database, request, error);
        members::with_topology(services, request, error)
    });
    count(services, index, spec, outcome.as_ref().err());
    let reply = match outcome {
        Ok(reply) => ok_reply(reply),
        Err(error) => error_reply(&error),
    };
    let reply = members::with_times(database, reply);
    match failure {
        Some(failure) => reply_of_failure(failure, session, (request, reply)),
        None => reply,
    }
}

/// Returns what the fail point does to a command.
fn failure_of(
    services: &Services,
    session: &ClientSession,
    request: &Request,
    spec: &CommandSpec,
) -> Option<CommandFailure> {
    if !services.fail_point.is_on() || spec.name == fail_point::SPEC.name {
        return None;
    }
    let names: Vec<&str> = iter::once(spec.name)
        .chain(spec.aliases.iter().copied())
        .collect();
    let database = request.body.get("$db").as_str().unwrap_or_default();
    let command = EnteringCommand {
        names: &names,
        namespace: &namespace(spec, database, request),
        application: session.client.application_name(),
    };
    services.fail_point.enter(&command, &services.ids)
}

/// Waits as long as the fail point says, and returns the error that it says.
fn fail(failure: &CommandFailure, operation: &OperationContext) -> Result<()> {
    /// Longest wait between two checks for interrupts.
    const CHECK_EVERY: Duration = Duration::from_millis(10);
    let until = operation.clock().monotonic().saturating_add(failure.block);
    loop {
        let left = until.saturating_sub(operation.clock().monotonic());
        if left.is_zero() {
            break;
        }
        operation.check_interrupt()?;
        std::thread::sleep(left.min(CHECK_EVERY));
    }
    let text = "Failing command via 'failCommand' failpoint";
    match failure.code {
        _ if failure.closes_connection => Err(Error::new(ErrorCode::ClientDisconnect, text)),
        Some(code) => Err(Error::new(ErrorCode(code), text)),
        None => Ok(()),
    }
}

/// Gives a reply the labels and the write concern error of the fail point.
fn reply_of_failure(
    failure: CommandFailure,
    session: &mut ClientSession,
    (request, reply): (&Request, Document),
) -> Document {
    session.closes_connection |= failure.closes_connection;
    if failure.labels.is_none() && failure.write_concern_error.is_none() {
        return reply;
    }
    let mut out = DocumentBuilder::new();
    let has_labels = failure.labels.is_some();
    for element in reply.iter() {
        if !(has_labels && element.name() == "errorLabels") {
            out.append_element(element);
        }
    }
    if let Some(error) = failure.write_concern_error {
        if !has_labels && members::is_retryable(request, error.get("code")) {
            out.append("errorLabels", array![members::RETRYABLE]);
        }
        out.append(CONCERN_ERROR, error);
    }
    if let Some(labels) = failure.labels.filter(|labels| !labels.is_empty()) {
        out.append("errorLabels", labels);
    }
    out.finish()
}

/// Gives the error of a database that another process has taken over the code by which drivers retry reads elsewhere.
fn of_taken_over(mut error: Error, spec: &CommandSpec) -> Error {
    if error.is_takeover() && spec.access == Access::Read {
        error.code = ErrorCode::NotPrimaryOrSecondary;
    }
    error
}

/// Returns whether a command reads or writes; [`Access::None`] if it is unknown.
pub(crate) fn access_of(request: &Request) -> Access {
    let spec = find_command(request.command_name()).and_then(|at| COMMANDS.get(at));
    spec.map_or(Access::None, |spec| spec.access)
}

/// How often a read on a router begins again because a placement has changed.
const PLACEMENT_CHANGES_MAX: usize = 100;

/// Runs a command. A read on a router begins again if a partition has refused the placement that it followed, except a `getMore`:
/// it fails.
fn run_placed(
    database: &Database,
    session: &mut ClientSession,
    request: &Request,
    spec: &'static CommandSpec,
    failure: Option<&CommandFailure>,
) -> Result<Document> {
    let mut outcome = run_known(database, session, request, spec, failure);
    let Some(router) = database.as_router().filter(|_| spec.access == Access::Read) else {
        return outcome;
    };
    for _ in 0..PLACEMENT_CHANGES_MAX {
        let Some(wanted) = outcome.as_ref().err().and_then(version_asked) else {
            break;
        };
        let clock = Arc::clone(&database.services().clock);
        let mut operation = OperationContext::internal(clock, "admin");
        let max_time_ms = request.body.get("maxTimeMS").as_exact_i64();
        operation.set_time_limit(max_time_ms.and_then(time_limit));
        router.settle(&wanted, &operation)?;
        if spec.name == "getMore" {
            // Some documents were returned by the earlier placement, and the cursor is gone.
            return Err(Error::new(
                ErrorCode::QueryPlanKilled,
                format!(
                    "the documents of {} moved between partitions while the query ran",
                    wanted.namespace
                ),
            ));
        }
        // The collection may have other options by now.
        let newest = database.newest_router();
        let database = newest.as_deref().unwrap_or(database);
        outcome = run_known(database, session, request, spec, failure);
    }
    outcome
}

fn run_known(
    database: &Database,
    session: &mut ClientSession,
    request: &Request,
    spec: &'static CommandSpec,
    failure: Option<&CommandFailure>,
) -> Result<Document> {
    let set = database.services().replica_set.as_deref();
    let numbers = match set {
        Some(_) => Numbers::All,
        None if database.as_router().is_some() || request.routed.is_some() => Numbers::OfWrites,
        None => Numbers::None,
    };
    let generic = generic::parse(spec, request.body.as_ref(), set, numbers)?;
    check_cluster_time(database, request)?;
    check_sequences(spec, request)?;
    check_database_name(&generic.database)?;
    check_admin_only(spec, &generic.database)?;
    members::check(set, database.is_view(), spec, &generic)?;
    let resolved = target::resolve(database, session, spec, &generic.database, request)?;
    authorization::check(
        database,
        session,
        spec,
        &generic.database,
        &resolved,
        &request.body,
    )?;
    let Some((transaction, lsid)) = generic.transaction.zip(generic.lsid) else {
        if let Some(snapshot) = generic.snapshot {
            let found = snapshots::open(database, &resolved, snapshot)?;
            let both = (&*found.database, database);
            let reply = run_checked(both, session, &resolved, spec, generic, failure)?;
            return Ok(snapshots::with_time(&reply, found.time));
        }
        let both = (database, database);
        return run_checked(both, session, &resolved, spec, generic, failure);
    };
    let owner = (lsid, session.login.user().cloned());
    // What fails on purpose does not reach the transaction.
    let is_kept = failure.is_some_and(CommandFailure::prevents);
    let outcome = match is_kept || transactions::is_end(spec) {
        true => {
            let both = (database, database);
            run_checked(both, session, &resolved, spec, generic, failure)
        }
        false => {
            let by = (&owner, (session.connection_id, session.client.clone()));
            transactions::run_statement(database, by, (spec, &resolved), transaction, |seen| {
                run_checked((seen, database), session, &resolved, spec, generic, failure)
            })
        }
    };
    outcome.map_err(transactions::with_label)
}

/// Runs a command whose form is valid and that the user may run. `noted_in` has its profile: a transaction has none.
// long function: the steps of every command in their order
fn run_checked(
    (database, noted_in): (&Database, &Database),
    session: &mut ClientSession,
    request: &Request,
    spec: &'static CommandSpec,
    generic: GenericArgs,
    failure: Option<&CommandFailure>,
) -> Result<Document> {
    let services = database.services();
    check_memory(services, spec)?;
    let actor = audit::actor(services, session, spec);
    let now_ms = services.clock.now_ms();
    let query_now_ms = request.query_now_ms().unwrap_or(now_ms);
    // That of a router's request is counted by the router. Each part of a query has one of its own.
    let own_session = generic.lsid.filter(|_| request.routed.is_none());
    touch(services, own_session, session.login.user(), now_ms)?;
    let started = services.clock.monotonic();
    let unmet_concern = generic.unmet_concern;
    let turn = match spec.access {
        Access::Read => Turn::new(&services.turns, started),
        Access::None | Access::Write => Turn::default(),
    };
    let _turn = turn.guard();
    let _bulk_write = match spec.access {
        Access::Write => services.turns.begin_write(request.bytes()),
        Access::None | Access::Read => None,
    };
    let transaction = generic.transaction.map(|transaction| transaction.number);
    let mut operation = OperationContext {
        id: services.operations.next_id(),
        database: generic.database,
        now_ms: query_now_ms,
        comment: generic.comment,
        lsid: generic.lsid,
        txn_number: generic.txn_number,
        routed: request.routed.clone(),
        client: session.client.clone(),
        user: session.login.user().cloned(),
        write_concern: generic.write_concern,
        api: generic.api,
        max_time_ms: generic.max_time_ms,
        is_explain: false,
        bypass: bypass(spec, request)?,
        clock: services.clock.clone(),
        deadline: None,
        kill: KillSwitch::new(),
        progress: Progress::default(),
        usage: OperationUsage::default(),
        evaluation: EvaluationCounters::new(Arc::clone(&database.queries().memory)),
        turn,
    };
    operation.set_time_limit(time_limit(generic.max_time_ms));
    let namespace = namespace(spec, &operation.database, request);
    let entry = OperationEntry {
        connection_id: session.connection_id,
        command_name: spec.name,
        command: authorization::shown(spec, &request.body),
        access: spec.access,
        takes_memory: spec.takes_memory,
        transaction,
        started,
        ..OperationEntry::of(&operation, namespace.clone())
    };
    let _running = services.operations.begin(entry);
    let mut context = CommandContext {
        operation,
        session,
        spec,
    };
    let outcome = match failure.map_or(Ok(()), |failure| fail(failure, &context.operation)) {
        Ok(()) => {
            let handler = confirm(database, spec).and_then(|()| match database.as_router() {
                None => Ok(spec.handler),
                Some(_) => routed::handler_of(spec, database.is_view()),
            });
            handler.and_then(|handler| handler(database, &mut context, request))
        }
        Err(error) => Err(error),
    };
    // A fail point of a handler closes the connection, too.
    context.session.closes_connection |= context.operation.kill_switch().disconnects();
    let outcome = match unmet_concern {
        Some(unmet) => with_unmet_concern(outcome, unmet),
        None => outcome,
    };
    note_write(services, spec, &outcome);
    audit::made(services, &context);
    if let Some(actor) = actor {
        audit::ran(services, &actor, &context, request, outcome.as_ref().err());
    }
    note(
        noted_in,
        &FinishedCommand {
            spec,
            request,
            namespace: &namespace,
            operation: &context.operation,
            took: services.clock.monotonic().saturating_sub(started),
            outcome: &outcome,
        },
    );
    outcome
}

/// Refuses to read after a time that has not been assigned: it would be waited for in vain.
fn check_cluster_time(database: &Database, request: &Request) -> Result<()> {
    let (Some(log), Some(time)) = (database.change_log(), request.after_cluster_time()) else {
        return Ok(());
    };
    let current = log.assigned();
    match time > current {
        true => Err(Error::invalid_options(format!(
            "readConcern afterClusterTime value must not be greater than the current clusterTime. Requested clusterTime: {time}; current clusterTime: {current}"
        ))),
        false => Ok(()),
    }
}

/// Says that the concern of a write was not met, also if the write failed.
fn with_unmet_concern(outcome: Result<Document>, unmet: Document) -> Result<Document> {
    match outcome {
        Ok(reply) => {
            let mut out = DocumentBuilder::extending(reply);
            out.append(CONCERN_ERROR, unmet);
            Ok(out.finish())
        }
        Err(error) => Err(error.with_detail(CONCERN_ERROR, unmet)),
    }
}

/// Fails if another process has taken the database over: a server that was paused must not answer from what it has in
/// memory.
fn confirm(database: &Database, spec: &CommandSpec) -> Result<()> {
    match spec.access {
        Access::None => Ok(()),
        Access::Read | Access::Write => Ok(database.engine().confirm()?),
    }
}

/// Notes the time of a write, which a replica set shows.
fn note_write(services: &Services, spec: &CommandSpec, outcome: &Result<Document>) {
    if let Some(set) = &services.replica_set
        && spec.access == Access::Write
        && outcome.is_ok()
    {
        set.note_write(services.clock.now_ms());
    }
}

/// Returns the time limit of a command; none for 0.
fn time_limit(max_time_ms: i64) -> Option<Duration> {
    let limit = u64::try_from(max_time_ms).ok().filter(|limit| *limit > 0);
    limit.map(Duration::from_millis)
}

/// Adds a finished command to the counters, and to the profile if it is wanted there.
fn note(database: &Database, finished: &FinishedCommand<'_>) {
    let services = database.services();
    let (spec, namespace) = (finished.spec, finished.namespace);
    let returned = finished.operation.usage.returned();
    services.counters.documents.returned.add(returned);
    let class = spec.latency;
    services.counters.latencies.of(class).record(finished.took);
    if spec.access != Access::None && namespace.contains('.') {
        let writes = spec.access == Access::Write;
        let kind = spec.counted.top_kind();
        let took = finished.took;
        let exists = || is_there(database, namespace);
        services
            .top
            .record(namespace, kind, writes, class, took, exists);
    }
    profile::finished(database, finished);
}

/// True if a collection or view of that name exists: `top` does not record others.
fn is_there(database: &Database, namespace: &str) -> bool {
    let parts = namespace.split_once('.');
    let name = parts.and_then(|(database, collection)| Namespace::new(database, collection).ok());
    name.is_some_and(|name| database.catalog().get(&name).is_some())
}

/// Refuses a command that takes memory if memory is short and another such command runs. A single command is
/// always served: the memory in use then belongs to caches, idle cursors and the allocator.
fn check_memory(services: &Services, spec: &CommandSpec) -> Result<()> {
    if !services.memory_is_short.load(Ordering::Relaxed) || !spec.takes_memory {
        return Ok(());
    }
    let running = services.operations.list();
    if running.iter().any(|other| other.takes_memory) {
        return Err(Error::new(
            ErrorCode::ExceededMemoryLimit,
            format!(
                "{} was refused: the server has used up nearly all the memory it may have, and others are at work; try again later",
                spec.name
            ),
        ));
    }
    Ok(())
}

/// Refuses a command about the server that is not sent to `admin`.
fn check_admin_only(spec: &CommandSpec, database: &str) -> Result<()> {
    if spec.admin_only && database != "admin" {
        return Err(Error::new(
            ErrorCode::Unauthorized,
            format!("{} may only be run against the admin database.", spec.name),
        ));
    }
    Ok(())
}

/// Marks the logical session as used.
fn touch(
    services: &Services,
    lsid: Option<SessionId>,
    user: Option<&UserName>,
    now_ms: i64,
) -> Result<()> {
    let Some(lsid) = lsid else {
        return Ok(());
    };
    let max = usize::try_from(services.parameters.max_sessions()).unwrap_or(usize::MAX);
    services.sessions.touch(lsid, user, now_ms, max)
}

/// Returns the checks that the command is told to skip for the documents it writes.
fn bypass(spec: &CommandSpec, request: &Request) -> Result<Bypass> {
    let args = crate::args::Args::new(spec.name, request.body.as_ref());
    let takes = |name: &str| match spec.fields {
        super::Fields::Only(known) => known.contains(&name),
        super::Fields::Any => false,
    };
    let mut bypass = Bypass::default();
    if takes("bypassDocumentValidation") {
        bypass.validation = args
            .lenient_boolean("bypassDocumentValidation")?
            .unwrap_or(false);
    }
    if takes("bypassEmptyTsReplacement") {
        bypass.empty_timestamps = args.boolean("bypassEmptyTsReplacement")?.unwrap_or(false);
    }
    Ok(bypass)
}

/// Refuses a reply larger than a document may be.
fn check_size(reply: Document) -> Result<Document> {
    let length = reply.as_bytes().len();
    if length > COMMAND_BYTES_MAX {
        return Err(Error::new(
            ErrorCode::BSONObjectTooLarge,
            format!("the reply has {length} bytes, at most {COMMAND_BYTES_MAX} are allowed"),
        ));
    }
    Ok(reply)
}

/// Checks document sequences as fields: known to the command, and not repeated.
fn check_sequences(spec: &CommandSpec, request: &Request) -> Result<()> {
    for (at, sequence) in request.sequences.iter().enumerate() {
        let args = crate::args::Args::new(spec.name, request.body.as_ref());
        let name = sequence.name();
        if let super::Fields::Only(known) = spec.fields
            && !known.contains(&name)
        {
            return Err(args.unknown(name));
        }
        let repeated = request.sequences.iter().take(at).any(|s| s.name() == name);
        if repeated || request.body.as_ref().contains(name) {
            return Err(args.duplicate(name));
        }
    }
    Ok(())
}

/// The largest size of a database name, in bytes.
const DATABASE_NAME_BYTES_MAX: usize = 63;

fn check_database_name(name: &str) -> Result<()> {
    let forbidden = |c: char| matches!(c, '/' | '\\' | '.' | ' ' | '"' | '$' | '\0');
    let valid = !name.is_empty()
        && name.len() <= DATABASE_NAME_BYTES_MAX
        && (name == "$external" || !name.contains(forbidden));
    if valid {
        Ok(())
    } else {
        Err(Error::new(
            ErrorCode::InvalidNamespace,
            format!("Invalid database name: '{name}'"),
        ))
    }
}

/// Returns `db.collection` if the command's first field names a collection, else `db`.
fn namespace(spec: &CommandSpec, database: &str, request: &Request) -> String {
    let field = match spec.counted {
        OperationCounter::GetMore => request.body.get("collection"),
        _ => request
            .body
            .iter()
            .next()
            .map(|e| e.value())
            .unwrap_or_default(),
    };
    match field.as_str() {
        Some(collection) if spec.access != Access::None => format!("{database}.{collection}"),
        _ => database.to_owned(),
    }
}

fn count(services: &Services, index: usize, spec: &CommandSpec, error: Option<&Error>) {
    let counters = &services.counters;
    match spec.counted {
        OperationCounter::Query => counters.operations.query.increment(),
        OperationCounter::GetMore => counters.operations.getmore.increment(),
        OperationCounter::Command => counters.operations.command.increment(),
        OperationCounter::Insert | OperationCounter::Update | OperationCounter::Delete => {}
    }
    if let Some(command) = counters.commands(COMMANDS.len()).get(index) {
        command.total.increment();
        if error.is_some() {
            command.failed.increment();
        }
    }
    match error.map(|e| e.code) {
        None => {}
        Some(ErrorCode::InternalError) => counters.asserts.regular.increment(),
        Some(code) => {
            counters.asserts.user.increment();
            if code == ErrorCode::MaxTimeMSExpired {
                counters.time_limit_exceeded.increment();
            }
        }
    }
}

/// Adds `ok: 1` at the end of a reply in place, without copying it.
fn ok_reply(reply: Document) -> Document {
    let mut reply = DocumentBuilder::extending(reply);
    reply.append("ok", 1.0);
    reply.finish()
}

/// Returns the reply for an error.
pub fn error_reply(error: &Error) -> Document {
    let mut reply = DocumentBuilder::new();
    reply.append("ok", 0.0);
    reply.append("errmsg", error.message.as_str());
    reply.append("code", error.code.0);
    reply.append("codeName", error.code.name());
    if !error.labels.is_empty() {
        let labels: Vec<Value> = error.labels.iter().map(|l| Value::from(*l)).collect();
        reply.append("errorLabels", labels);
    }
    if let Some(details) = &error.details {
        for element in details.iter() {
            reply.append_element(element);
        }
    }
    reply.finish()
}

//! `update` and `delete` on a router.
//!
//! A statement for many documents runs in every partition that may have one. One for a single document is tried in these
//! partitions one after the other, until one has changed a document. If an upsert has found nothing, its document goes to
//! the partition of its key, as an inserted one does.

use std::sync::Arc;

use nilometer_bson::{Array, DocRef, Document, DocumentBuilder, Value, ValueRef};
use nilometer_storage::Durability;

use super::buffered::BufferedWrites;
use super::config_updates;
use super::insert::{placed, unsettled, with_index};
use super::key_updates::{AllowedKey, KeyStep, StatementPlan, change_key};
use super::{
    PLACEMENT_CHANGES_MAX, compares_by_bytes, forwarded, router_of, statement_number, sum, writable,
};
use crate::args::Args;
use crate::catalog::Namespace;
use crate::commands::CommandContext;
use crate::commands::crud::change::{StatementContext, upserted};
use crate::commands::crud::insert::{write_batch, write_error};
use crate::commands::crud::query::QueryOptions;
use crate::commands::crud::retryable::{append_retried, refuse_many};
use crate::commands::crud::{delete, update};
use crate::database::Database;
use crate::error::{Error, Result};
use crate::eval::ParseContext;
use crate::eval::matcher::MatchExpression;
use crate::operation::{
    AcceptedDocument, GuardedKey, OperationContext, PlacementVersion, Request, RoutedRequest,
};
use crate::router::{
    OPENING_FIELD, OpenRanges, Placement, Router, Sharding, key_change_in, version_asked, wait,
    write_request,
};

/// What a statement does, and where its parts are.
pub(super) struct Kind {
    command: &'static str,
    statements: &'static str,
}

pub(super) const UPDATE: Kind = Kind {
    command: "update",
    statements: "updates",
};

pub(super) const DELETE: Kind = Kind {
    command: "delete",
    statements: "deletes",
};

impl Kind {
    /// Returns true for a statement for many documents, and for an upsert. A field of another type is refused by the
    /// partitions.
    fn flags(&self, statement: DocRef<'_>) -> (bool, bool) {
        let args = Args::new(self.command, statement);
        let flag = |name| matches!(args.lenient_boolean(name), Ok(Some(true)));
        match self.command == UPDATE.command {
            true => (flag("multi"), flag("upsert")),
            false => (!matches!(delete::is_multi(&args), Ok(false)), false),
        }
    }

    /// Returns what a statement changes.
    fn changes<'s>(&self, statement: DocRef<'s>) -> ValueRef<'s> {
        match self.command == UPDATE.command {
            true => statement.get("u"),
            false => ValueRef::Missing,
        }
    }
}

pub(super) fn update(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    update::checked(database, &context.operation, request)?;
    if let Some(done) = config_updates::run(database, context, request) {
        return done;
    }
    change(database, context, request, &UPDATE)
}

pub(super) fn delete(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    delete::checked(database, &context.operation, request)?;
    change(database, context, request, &DELETE)
}

fn change(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
    kind: &Kind,
) -> Result<Document> {
    let router = router_of(database);
    let args = Args::new(kind.command, request.body.as_ref());
    let namespace = writable(context.database_name(), args.required_string(kind.command)?)?;
    let is_ordered = args.boolean("ordered")?.unwrap_or(true);
    let statements: Vec<DocRef<'_>> = write_batch(request, &args, kind.statements)?.collect();
    let operation = &context.operation;
    let without = [kind.statements, "collectionUUID"];
    let body = forwarded(request.body.as_ref(), &without, operation);
    let flags = |statement: &DocRef<'_>| kind.flags(*statement);
    for statement in &statements {
        let option = ["limit=0", "multi=true"][usize::from(kind.command == UPDATE.command)];
        refuse_many(operation, flags(statement).0, option)?;
    }
    if statements.iter().any(|statement| flags(statement).1) {
        placed(database, operation, router, &namespace)?;
    }
    let _write = router.begin_write();
    let Some(placement) = router.placement(&namespace) else {
        // The handler of one server finds nothing in the router's own catalog.
        return (context.spec.handler)(database, context, request);
    };
    let by = Statements {
        database,
        router,
        operation,
        namespace: &namespace,
        body,
        options: &QueryOptions::parse(database, operation, &args, None)?,
        kind,
        count: statements.len(),
    };
    if placement.sharding.is_none() {
        match by.run_whole(&placement, &statements)? {
            Whole::Done(reply) => return Ok(reply),
            Whole::Dropped => {
                // The newest catalog has nothing of the name.
                let newest = database.newest_router();
                let database = newest.as_deref().unwrap_or(database);
                return (context.spec.handler)(database, context, request);
            }
            Whole::Sharded => {}
        }
    }
    let mut buffered = BufferedWrites::new(operation);
    buffered.expect(statements.len());
    let mut all = Vec::new();
    for (at, statement) in statements.into_iter().enumerate() {
        let done = by.run(at, statement, &mut buffered)?;
        let has_failed = done.error.is_some();
        all.push(done);
        if is_ordered && has_failed {
            break;
        }
    }
    buffered.sync(router, operation)?;
    Ok(reply(kind, all))
}

/// Returns the reply of a command by what its statements did.
fn reply(kind: &Kind, all: Vec<Done>) -> Document {
    let int = |n: i64| i32::try_from(n).unwrap_or(i32::MAX);
    let n = all.iter().map(|done| done.n).sum();
    let modified = all.iter().map(|done| done.modified).sum();
    let (mut new, mut errors, mut retried) = (Vec::new(), Vec::new(), Vec::new());
    for (at, done) in all.into_iter().enumerate() {
        new.extend(done.upserted.map(|id| (at, id)));
        let error = done.error.as_ref();
        errors.extend(error.map(|error| Value::from(with_index(error.as_ref(), at))));
        retried.extend(done.was_retried.then_some(at));
    }
    let mut out = DocumentBuilder::new();
    out.append("n", int(n));
    if !new.is_empty() {
        let list = upserted(new).into_iter().map(Value::from);
        out.append("upserted", list.collect::<Vec<_>>());
    }
    if !errors.is_empty() {
        out.append("writeErrors", errors.into_iter().collect::<Array>());
    }
    if kind.command == UPDATE.command {
        out.append("nModified", int(modified));
    }
    append_retried(&mut out, &retried);
    out.finish()
}

/// What a statement did in all partitions.
#[derive(Default)]
pub(super) struct Done {
    pub(super) n: i64,
    pub(super) modified: i64,
    pub(super) upserted: Option<Value>,
    /// True if it ran before.
    pub(super) was_retried: bool,
    /// An entry of `writeErrors`.
    pub(super) error: Option<Document>,
}

impl Done {
    /// Adds up what the partitions have answered to a command with the one statement.
    fn of(replies: &[Document]) -> Self {
        let first = |reply: &Document, field: &str| {
            let list = reply.get(field).as_array();
            let first = list.and_then(|list| list.get(0).as_document());
            first.map(|first| first.to_document())
        };
        let upserted = replies.iter().find_map(|reply| first(reply, "upserted"));
        Self {
            n: sum(replies, "n"),
            modified: sum(replies, "nModified"),
            upserted: upserted.map(|entry| entry.get("_id").to_value()),
            was_retried: replies
                .iter()
                .any(|reply| !reply.get("retriedStmtIds").is_missing()),
            error: replies.iter().find_map(|reply| first(reply, "writeErrors")),
        }
    }

    /// Adds up what partitions have answered.
    pub(super) fn of_all(replies: &[(usize, Document)]) -> Self {
        let replies = replies.iter().map(|(_, reply)| reply.clone());
        Self::of(&replies.collect::<Vec<_>>())
    }

    fn failed(error: &Error) -> Self {
        let error = write_error(0, error);
        Self {
            error: error.as_ref().as_document().map(|e| e.to_document()),
            ..Self::default()
        }
    }

    /// Returns the change of a shard key that its partition has not made.
    fn key_change(&self) -> Option<AcceptedDocument> {
        key_change_in(self.error.as_ref()?.as_ref())
    }

    /// True if nothing more is to be done for one document.
    fn is_done(&self) -> bool {
        self.n > 0 || self.error.is_some()
    }
}

/// The statements of one command on a sharded collection.
pub(super) struct Statements<'c> {
    pub(super) database: &'c Database,
    pub(super) router: &'c Router,
    pub(super) operation: &'c OperationContext,
    pub(super) namespace: &'c Namespace,
    /// The command without statements.
    pub(super) body: Document,
    /// The options of the command.
    pub(super) options: &'c QueryOptions,
    pub(super) kind: &'c Kind,
    /// How many statements the client's command has.
    pub(super) count: usize,
}

/// What became of statements that were sent to the partition of a collection which is not sharded.
enum Whole {
    /// The partition has run them, and this is the reply.
    Done(Document),
    /// The collection is gone: there is nothing to change.
    Dropped,
    /// The collection is sharded by now.
    Sharded,
}

/// A statement, and what its attempts have found so far.
pub(super) struct StatementState<'s> {
    pub(super) statement: DocRef<'s>,
    pub(super) number: u32,
    pub(super) is_multi: bool,
    pub(super) is_upsert: bool,
    /// Of a statement for many documents, what partitions have answered.
    pub(super) replies: Vec<(usize, Document)>,
    /// Of one on a sharded ordinary collection, what it has still to change, once partitions have refused it.
    pub(super) open: Option<OpenRanges>,
    /// The document of an upsert that finds nothing.
    pub(super) new: Option<Document>,
    /// What the shard key of its document may become.
    pub(super) allowed: Option<AllowedKey>,
}

/// What follows when a statement was tried.
enum Next {
    Done(Done),
    Again,
    /// First the placement is to be of this version.
    Settle(PlacementVersion),
}

/// A statement as partitions receive it.
pub(super) struct StatementRequest<'t> {
    pub(super) statement: DocRef<'t>,
    /// The command with the one statement.
    pub(super) body: &'t Document,
    pub(super) number: u32,
    pub(super) guard: Option<GuardedKey>,
}

/// What a statement did, or the placement that a partition asks for.
pub(super) type Answer = std::result::Result<Done, PlacementVersion>;

impl Statements<'_> {
    /// Runs all statements in the partition of a collection that is not sharded.
    fn run_whole(&self, placement: &Placement, statements: &[DocRef<'_>]) -> Result<Whole> {
        let body = with_statements(&self.body, self.kind, statements.iter().copied());
        let mut placement = placement.clone();
        for _ in 0..PLACEMENT_CHANGES_MAX {
            let routed = self.following(&placement);
            let place = (self.router, self.operation, self.namespace);
            match ask_one(place, placement.primary, &body, &routed)? {
                Ok(reply) => return Ok(Whole::Done(without_ok(&reply))),
                Err(wanted) => self.router.settle(&wanted, self.operation)?,
            }
            let now = match self.router.placement(self.namespace) {
                Some(now) => now,
                None if !statements.iter().any(|one| self.kind.flags(*one).1) => {
                    return Ok(Whole::Dropped);
                }
                None => placed(self.database, self.operation, self.router, self.namespace)?,
            };
            if now.sharding.is_some() {
                return Ok(Whole::Sharded);
            }
            placement = Placement::clone(&now);
        }
        Err(unsettled(self.namespace))
    }

    /// Runs a statement. `at` is its position in the command of the client.
    pub(super) fn run(
        &self,
        at: usize,
        statement: DocRef<'_>,
        buffered: &mut BufferedWrites,
    ) -> Result<Done> {
        let (is_multi, is_upsert) = self.kind.flags(statement);
        let mut state = StatementState {
            statement,
            number: statement_number(at),
            is_multi,
            is_upsert,
            replies: Vec::new(),
            open: None,
            new: None,
            allowed: None,
        };
        for _ in 0..PLACEMENT_CHANGES_MAX {
            match self.attempt(&mut state, buffered)? {
                Next::Done(done) => return Ok(done),
                Next::Again => {}
                Next::Settle(wanted) => self.router.settle(&wanted, self.operation)?,
            }
        }
        Err(unsettled(self.namespace))
    }

    /// Tries a statement by the placement of now.
    fn attempt(
        &self,
        state: &mut StatementState<'_>,
        buffered: &mut BufferedWrites,
    ) -> Result<Next> {
        let place = (self.router, self.operation, self.namespace);
        let (original, changes) = (state.statement, self.kind.changes(state.statement));
        let by_bytes = compares_by_bytes(self.database, self.namespace);
        let Some((placement, targets)) = targets(place, original, by_bytes, changes)? else {
            if state.is_upsert {
                placed(self.database, self.operation, self.router, self.namespace)?;
                return Ok(Next::Again);
            }
            return Ok(Next::Done(Done::of_all(&state.replies)));
        };
        if compares_by_bytes(self.database, self.namespace) != by_bytes {
            // The placement is that of another collection of the name.
            return Ok(Next::Again);
        }
        let (named, of) = ((original, "q"), (changes, state.is_multi));
        let targets = (targets, by_bytes);
        let plan = StatementPlan::of(self.database, place, &placement, named, of, targets);
        let plan = match of_statement(plan)? {
            Ok(plan) => plan,
            Err(failed) => return Ok(Next::Done(failed)),
        };
        let statement = plan.statement(original);
        let tried = match state.is_upsert {
            true => without(statement, &["upsert", "upsertSupplied"]),
            false => statement.to_document(),
        };
        let body = self.with_statement(tried.as_ref(), buffered);
        let run = StatementRequest {
            statement: tried.as_ref(),
            body: &body,
            number: state.number,
            guard: plan.guard(&placement, state.allowed.as_ref()),
        };
        let targets = &plan.targets;
        let has_run = state.is_upsert || plan.may_have_run_elsewhere();
        let answer = match state.is_multi {
            true => self.everywhere(&placement, targets, &run, state, buffered)?,
            false => self.somewhere(&placement, (targets, has_run), &run, buffered)?,
        };
        if answer.as_ref().is_ok_and(|done| !done.is_done())
            && let Err(failed) = of_statement(plan.check(self.database, place))?
        {
            return Ok(Next::Done(failed));
        }
        let answer = match answer {
            Ok(done) if state.is_upsert && !done.is_done() => {
                if state.new.is_none() {
                    state.new = match of_statement(self.new_document(original))? {
                        Ok(new) => Some(new),
                        Err(failed) => return Ok(Next::Done(failed)),
                    };
                }
                self.upsert(&placement, (statement, &run), state.new.as_ref(), buffered)?
            }
            answer => answer,
        };
        match answer {
            Err(wanted) => Ok(Next::Settle(wanted)),
            Ok(done) => match done.key_change() {
                None => Ok(Next::Done(done)),
                Some(change) => self.change_key(state, (&placement, &plan), change, &body),
            },
        }
    }

    /// Carries out the change of a shard key.
    fn change_key(
        &self,
        state: &mut StatementState<'_>,
        (placement, plan): (&Placement, &StatementPlan),
        change: AcceptedDocument,
        body: &Document,
    ) -> Result<Next> {
        let place = (self.router, self.operation, self.namespace);
        let of = (body, state.number, self.count == 1);
        Ok(match change_key(place, placement, plan, change, of)? {
            KeyStep::Refused(error) => Next::Done(Done::failed(&error)),
            KeyStep::Allow(key) => {
                state.allowed = Some(key);
                Next::Again
            }
            KeyStep::Done(reply) => match Done::of(&[reply]) {
                done if done.is_done() || !state.is_upsert => Next::Done(done),
                _ => Next::Again,
            },
        })
    }

    /// Runs a statement for one document in one target after the other, until one has changed a document. If it may have run in
    /// any partition before, `is_anywhere` is true.
    fn somewhere(
        &self,
        placement: &Placement,
        (targets, is_anywhere): (&[usize], bool),
        run: &StatementRequest<'_>,
        buffered: &mut BufferedWrites,
    ) -> Result<Answer> {
        for (repeats_only, round) in rounds(
            (self.router, self.operation),
            placement,
            targets,
            is_anywhere,
        ) {
            let routed = self.routed(placement, run, repeats_only);
            let place = (self.router, self.operation, self.namespace);
            for target in round {
                let reply = match ask_one(place, target, run.body, &routed)? {
                    Ok(reply) => reply,
                    Err(wanted) => return Ok(Err(wanted)),
                };
                buffered.note(target, &reply)?;
                let done = Done::of(&[reply]);
                if done.is_done() {
                    return Ok(Ok(done));
                }
            }
        }
        Ok(Ok(Done::default()))
    }

    /// Runs an upsert that has found nothing in the partition of its document.
    fn upsert(
        &self,
        placement: &Placement,
        (statement, run): (DocRef<'_>, &StatementRequest<'_>),
        new: Option<&Document>,
        buffered: &mut BufferedWrites,
    ) -> Result<Answer> {
        let document = new.map_or(DocRef::EMPTY, Document::as_ref);
        let partition = match placement.partition_of(document) {
            Ok(partition) => partition,
            Err(error) => return Ok(Ok(Done::failed(&error))),
        };
        let mut routed = self.routed(placement, run, false);
        routed.upserted = new.cloned();
        let body = self.with_statement(statement, buffered);
        let place = (self.router, self.operation, self.namespace);
        match ask_one(place, partition, &body, &routed)? {
            Ok(reply) => {
                buffered.note(partition, &reply)?;
                Ok(Ok(Done::of(&[reply])))
            }
            Err(wanted) => Ok(Err(wanted)),
        }
    }

    /// Returns the document of an upsert that finds nothing.
    fn new_document(&self, statement: DocRef<'_>) -> Result<Document> {
        let place = StatementContext {
            database: self.database,
            operation: self.operation,
            namespace: self.namespace,
            options: self.options,
            durability: Durability::Buffered,
            record: None,
        };
        update::new_document(place, statement)
    }

    pub(super) fn with_statement(
        &self,
        statement: DocRef<'_>,
        buffered: &BufferedWrites,
    ) -> Document {
        with_statements(
            &buffered.body(&self.body),
            self.kind,
            std::iter::once(statement),
        )
    }

    pub(super) fn routed(
        &self,
        placement: &Placement,
        run: &StatementRequest<'_>,
        repeats_only: bool,
    ) -> RoutedRequest {
        RoutedRequest {
            statements: vec![run.number],
            repeats_only,
            guarded_key: run.guard.clone(),
            ..self.following(placement)
        }
    }

    fn following(&self, placement: &Placement) -> RoutedRequest {
        RoutedRequest {
            placement: Some(placement.version_of(self.namespace)),
            ..RoutedRequest::default()
        }
    }
}

/// Returns an error of a statement as what it did. Fails with an error of the whole command.
fn of_statement<T>(outcome: Result<T>) -> Result<std::result::Result<T, Done>> {
    match outcome {
        Ok(value) => Ok(Ok(value)),
        Err(error) if error.is_of_command() => Err(error),
        Err(error) => Ok(Err(Done::failed(&error))),
    }
}

/// Returns the rounds in which a statement for one document asks partitions: first, if it has a number, those that may have
/// run it before, then its targets. If `is_anywhere` is true, as for an upsert, it may have run in any partition, and so it may if
/// documents have moved.
pub(super) fn rounds(
    (router, operation): (&Router, &OperationContext),
    placement: &Placement,
    targets: &[usize],
    is_anywhere: bool,
) -> Vec<(bool, Vec<usize>)> {
    let before = match is_anywhere || placement.has_moved_documents(operation.now_ms) {
        true => placement.partitions(router.count()),
        false => targets.to_vec(),
    };
    // A repetition has its effect already, in the partition that had it.
    let is_numbered = operation.txn_number.is_some() && before.len() > 1;
    let repeats = is_numbered.then_some((true, before));
    repeats
        .into_iter()
        .chain([(false, targets.to_vec())])
        .collect()
}

/// Sends writes to partitions at the same time, and waits for all.
pub(super) fn ask_parts(
    (router, operation, namespace): (&Router, &OperationContext, &Namespace),
    parts: &[(usize, Document)],
    routed: &RoutedRequest,
) -> Vec<Result<Document>> {
    let pending = parts.iter().map(|(target, body)| {
        let database = &namespace.database;
        let request = write_request(database, body.clone(), operation, routed.clone());
        router.send(*target, request)
    });
    let pending: Vec<_> = pending.collect();
    let replies = pending.into_iter();
    let replies = replies.map(|reply| reply.and_then(|mut reply| wait(&mut *reply, operation)));
    replies.collect()
}

/// Sends a write to one partition. Returns its reply, or the placement that it asks for.
pub(super) fn ask_one(
    place: (&Router, &OperationContext, &Namespace),
    target: usize,
    body: &Document,
    routed: &RoutedRequest,
) -> Result<std::result::Result<Document, PlacementVersion>> {
    match ask_parts(place, &[(target, body.clone())], routed).remove(0) {
        Ok(reply) => Ok(Ok(reply)),
        Err(error) => Ok(Err(version_asked(&error).ok_or(error)?)),
    }
}

/// Where a statement runs: `None` if the collection is gone.
type Targets = Option<(Arc<Placement>, Vec<usize>)>;

/// Returns the partitions that may have documents of a statement. If `changes` may change a shard key,
/// the documents of these may have any key from now on.
pub(super) fn targets(
    (router, operation, namespace): (&Router, &OperationContext, &Namespace),
    statement: DocRef<'_>,
    by_bytes: bool,
    changes: ValueRef<'_>,
) -> Result<Targets> {
    let filter = filter_of(statement, by_bytes);
    for _ in 0..PLACEMENT_CHANGES_MAX {
        let Some(placement) = router.placement(namespace) else {
            return Ok(None);
        };
        let targets = placement.targets(filter.as_ref());
        let is_noted = |sharding: &Sharding| sharding.may_have_any_key(&targets);
        if !may_change_key(&placement, changes)
            || placement.sharding.as_deref().is_some_and(is_noted)
        {
            return Ok(Some((placement, targets)));
        }
        router.note_any_key(namespace, &targets, operation)?;
    }
    Err(unsettled(namespace))
}

/// Returns the partitions that may have the documents of a write that is explained.
pub(super) fn targets_of(placement: &Placement, command: DocRef<'_>, by_bytes: bool) -> Vec<usize> {
    let lists = [UPDATE.statements, DELETE.statements];
    let statements = lists.iter().find_map(|list| command.get(list).as_array());
    let first = statements.map(|statements| statements.get(0).as_document());
    // `findAndModify` is a statement itself.
    let statement = first.map_or(Some(command), |first| first);
    let filter = statement.and_then(|statement| filter_of(statement, by_bytes));
    placement.targets(filter.as_ref())
}

/// Returns the filter of a statement if its text alone says which documents pass; the partitions parse it in any case.
pub(super) fn filter_of(statement: DocRef<'_>, by_bytes: bool) -> Option<MatchExpression> {
    let query = match statement.get("q") {
        ValueRef::Missing => statement.get("query"),
        query => query,
    };
    let is_plain = by_bytes && statement.get("collation").is_missing();
    let query = query.as_document().filter(|_| is_plain)?;
    let parsed = MatchExpression::parse(query, &ParseContext::new()).ok()?;
    Some(parsed.simplify())
}

/// True if an update may change the shard key of a document that exists.
fn may_change_key(placement: &Placement, changes: ValueRef<'_>) -> bool {
    // A document of an ordinary collection never leaves the partition of its key.
    let sharding = placement.sharding.as_ref();
    let Some(sharding) = sharding.filter(|sharding| sharding.key.is_timeseries()) else {
        return false;
    };
    let changes = match changes {
        ValueRef::Missing => return false,
        ValueRef::Document(changes) => changes,
        _ => return true,
    };
    changes.iter().any(|operator| {
        let fields = operator.value().as_document();
        match fields.filter(|_| operator.name().starts_with('$')) {
            None => true,
            Some(_) if operator.name() == "$setOnInsert" => false,
            Some(fields) => fields.iter().any(|field| {
                let first = |path: &str| path.split('.').next().map(str::to_owned);
                // `$rename` names the other field in its value.
                let other = field
                    .value()
                    .as_str()
                    .filter(|_| operator.name() == "$rename");
                let names = [Some(field.name()), other].into_iter().flatten();
                let mut names = names.map(first);
                names.any(|name| {
                    let mut parts = sharding.key.parts().iter();
                    parts.any(|part| name.as_deref() == Some(part.path.first()))
                })
            }),
        }
    })
}

/// Returns a document without some fields.
pub(super) fn without(document: DocRef<'_>, names: &[&str]) -> Document {
    let mut out = DocumentBuilder::with_capacity(document.as_bytes().len());
    for element in document {
        if !names.contains(&element.name()) {
            out.append_element(element);
        }
    }
    out.finish()
}

fn with_statements<'d>(
    body: &Document,
    kind: &Kind,
    statements: impl Iterator<Item = DocRef<'d>>,
) -> Document {
    let mut out = DocumentBuilder::new();
    out.append_all(body.as_ref());
    out.begin_array(kind.statements);
    for (at, statement) in statements.enumerate() {
        out.append_indexed(at, ValueRef::Document(statement));
    }
    out.end();
    out.finish()
}

/// Returns the reply of a partition without what every reply has, and what only routers read.
pub(super) fn without_ok(reply: &Document) -> Document {
    without(reply.as_ref(), &["ok", OPENING_FIELD])
}

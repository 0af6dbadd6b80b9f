//! `update`, `delete` and `findAndModify` on a router.
//!
//! A statement for many documents runs in every partition that may have one. One for a single document is tried in these
//! partitions one after the other, until one has changed a document.

use std::collections::BTreeMap;
use std::sync::Arc;

use nilometer_bson::{Array, DocRef, Document, DocumentBuilder, Value, ValueRef};

use super::insert::{dropped, placed, unsettled, with_index};
use super::{
    PLACEMENT_CHANGES_MAX, compares_by_bytes, elsewhere, forwarded, is_true, number, router_of,
    statement_number, sum, writable,
};
use crate::args::Args;
use crate::catalog::Namespace;
use crate::commands::CommandContext;
use crate::commands::crud::insert::write_batch;
use crate::commands::ddl::collection_uuid;
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::eval::ParseContext;
use crate::eval::matcher::MatchExpression;
use crate::operation::{OperationContext, PlacementVersion, Request, RoutedRequest};
use crate::router::{OPENING_FIELD, Placement, Router, version_asked, wait, write_request};

/// What a statement does, and where its parts are.
struct Kind {
    command: &'static str,
    statements: &'static str,
    /// True if the statement is for many documents.
    is_multi: fn(DocRef<'_>) -> bool,
}

const UPDATE: Kind = Kind {
    command: "update",
    statements: "updates",
    is_multi: |statement| is_true(statement.get("multi")),
};

const DELETE: Kind = Kind {
    command: "delete",
    statements: "deletes",
    is_multi: |statement| statement.get("limit").as_exact_i64() != Some(1),
};

pub(super) fn update(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    change(database, context, request, &UPDATE)
}

pub(super) fn delete(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
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
    collection_uuid::check(database, &args, &namespace)?;
    let is_ordered = args.boolean("ordered")?.unwrap_or(true);
    let statements: Vec<DocRef<'_>> = write_batch(request, &args, kind.statements)?.collect();
    let operation = &context.operation;
    let without = [kind.statements, "collectionUUID"];
    let body = forwarded(request.body.as_ref(), &without, operation);
    let is_upsert = |statement: &DocRef<'_>| is_true(statement.get("upsert"));
    if statements.iter().any(is_upsert) {
        placed(database, operation, router, &namespace)?;
    }
    let write = router.begin_write();
    let Some(placement) = router.placement(&namespace) else {
        // The handler of one server checks the statements, and finds nothing in the router's own catalog.
        return (context.spec.handler)(database, context, request);
    };
    let changes = statements
        .iter()
        .map(|statement| changes_of(kind, *statement));
    if router.elsewhere().is_some() && changes.into_iter().any(|c| may_change_key(&placement, c)) {
        drop(write);
        return elsewhere::write(router, request, operation);
    }
    let by = Statements {
        router,
        operation,
        namespace: &namespace,
        body,
        kind,
        by_bytes: compares_by_bytes(context, database, &namespace.collection),
    };
    if placement.sharding.is_none()
        && let Some(reply) = by.run_whole(&placement, &statements)?
    {
        return Ok(reply);
    }
    let mut replies = Vec::new();
    let mut errors = Vec::new();
    for (at, statement) in statements.into_iter().enumerate() {
        let found = by.run(at, statement)?;
        for reply in &found {
            let failed = reply.get("writeErrors").as_array();
            let first = failed.and_then(|errors| errors.get(0).as_document());
            errors.extend(first.map(|error| Value::from(with_index(error, at))));
        }
        replies.extend(found);
        if is_ordered && !errors.is_empty() {
            break;
        }
    }
    let int = |n: i64| i32::try_from(n).unwrap_or(i32::MAX);
    let mut out = DocumentBuilder::new();
    out.append("n", int(sum(&replies, "n")));
    if kind.command == UPDATE.command {
        out.append("nModified", int(sum(&replies, "nModified")));
    }
    if !errors.is_empty() {
        out.append("writeErrors", errors.into_iter().collect::<Array>());
    }
    Ok(out.finish())
}

/// The statements of one command on a sharded collection.
struct Statements<'c> {
    router: &'c Router,
    operation: &'c OperationContext,
    namespace: &'c Namespace,
    /// The command without statements.
    body: Document,
    kind: &'c Kind,
    by_bytes: bool,
}

/// What the partitions of a statement have answered, or the placement that one asks for.
type Answers = std::result::Result<Vec<Document>, PlacementVersion>;

impl Statements<'_> {
    /// Runs all statements in the partition of a collection that is not sharded. `None` if it is sharded by now.
    fn run_whole(
        &self,
        placement: &Placement,
        statements: &[DocRef<'_>],
    ) -> Result<Option<Document>> {
        let body = with_statements(&self.body, self.kind, statements.iter().copied());
        let mut placement = placement.clone();
        for _ in 0..PLACEMENT_CHANGES_MAX {
            let routed = self.routed(&placement, Vec::new(), false);
            match self.ask(&[placement.primary], &body, &routed).remove(0) {
                Ok(reply) => return Ok(Some(without_ok(&reply))),
                Err(error) => match version_asked(&error) {
                    None => return Err(error),
                    Some(wanted) => self.router.settle(&wanted, self.operation)?,
                },
            }
            let now = self.router.placement(self.namespace);
            let now = now.ok_or_else(|| dropped(self.namespace))?;
            if now.sharding.is_some() {
                return Ok(None);
            }
            placement = Placement::clone(&now);
        }
        Err(unsettled(self.namespace))
    }

    /// Runs a statement and returns the replies of the partitions that it concerned. `at` is its position.
    fn run(&self, at: usize, statement: DocRef<'_>) -> Result<Vec<Document>> {
        if is_true(statement.get("upsert")) {
            return Err(not_sharded("An upsert"));
        }
        let sort = statement.get("sort").as_document();
        if sort.is_some_and(|sort| !sort.is_empty()) {
            return Err(not_sharded("A statement with a sort"));
        }
        let is_multi = (self.kind.is_multi)(statement);
        let body = with_statements(&self.body, self.kind, [statement].into_iter());
        let changes = changes_of(self.kind, statement);
        let mut replies = BTreeMap::new();
        for _ in 0..PLACEMENT_CHANGES_MAX {
            let place = (self.router, self.operation, self.namespace);
            let Some((placement, targets)) = targets(place, statement, self.by_bytes, changes)?
            else {
                return Ok(replies.into_values().collect());
            };
            let number = statement_number(at);
            let refused = match is_multi {
                true => self.everywhere(&placement, &targets, (&body, number), &mut replies)?,
                false => match self.somewhere(&placement, &targets, (&body, number))? {
                    Ok(found) => return Ok(found),
                    Err(wanted) => Some(wanted),
                },
            };
            match refused {
                None => return Ok(replies.into_values().collect()),
                Some(wanted) => self.router.settle(&wanted, self.operation)?,
            }
        }
        Err(unsettled(self.namespace))
    }

    /// Runs a statement in all targets that have not answered yet. Returns the placement that one asks for.
    fn everywhere(
        &self,
        placement: &Placement,
        targets: &[usize],
        (body, number): (&Document, u32),
        replies: &mut BTreeMap<usize, Document>,
    ) -> Result<Option<PlacementVersion>> {
        let open = targets
            .iter()
            .filter(|target| !replies.contains_key(target));
        let open: Vec<usize> = open.copied().collect();
        let routed = self.routed(placement, vec![number], false);
        let answers = self.ask(&open, body, &routed);
        let (mut refused, mut failed) = (None, None);
        for (target, answer) in open.into_iter().zip(answers) {
            match answer {
                Ok(reply) => drop(replies.insert(target, reply)),
                Err(error) => match version_asked(&error) {
                    Some(wanted) => refused = Some(wanted),
                    None => failed = failed.or(Some(error)),
                },
            }
        }
        failed.map_or(Ok(refused), Err)
    }

    /// Runs a statement for one document in one target after the other, until one has changed a document.
    fn somewhere(
        &self,
        placement: &Placement,
        targets: &[usize],
        (body, number): (&Document, u32),
    ) -> Result<Answers> {
        // A repetition has its effect already, in the target that had it.
        let is_numbered = self.operation.txn_number.is_some() && targets.len() > 1;
        let rounds: &[bool] = if is_numbered {
            &[true, false]
        } else {
            &[false]
        };
        for repeats_only in rounds {
            let routed = self.routed(placement, vec![number], *repeats_only);
            for target in targets {
                let reply = match self.ask(&[*target], body, &routed).remove(0) {
                    Ok(reply) => reply,
                    Err(error) => {
                        let wanted = version_asked(&error).ok_or(error)?;
                        return Ok(Err(wanted));
                    }
                };
                let is_done = number_of(&reply) > 0 || !reply.get("writeErrors").is_missing();
                if is_done {
                    return Ok(Ok(vec![reply]));
                }
            }
        }
        Ok(Ok(Vec::new()))
    }

    /// Sends a command to several partitions at the same time, and waits for all.
    fn ask(
        &self,
        targets: &[usize],
        body: &Document,
        routed: &RoutedRequest,
    ) -> Vec<Result<Document>> {
        ask((self.router, self.operation), targets, body, routed)
    }

    fn routed(
        &self,
        placement: &Placement,
        statements: Vec<u32>,
        repeats_only: bool,
    ) -> RoutedRequest {
        RoutedRequest {
            placement: Some(placement.version_of(self.namespace)),
            statements,
            repeats_only,
            ..RoutedRequest::default()
        }
    }
}

/// Sends a write to several partitions at the same time, and waits for all.
fn ask(
    (router, operation): (&Router, &OperationContext),
    targets: &[usize],
    body: &Document,
    routed: &RoutedRequest,
) -> Vec<Result<Document>> {
    let pending = targets.iter().map(|target| {
        let database = &operation.database;
        let request = write_request(database, body.clone(), operation, routed.clone());
        router.send(*target, request)
    });
    let pending: Vec<_> = pending.collect();
    let replies = pending.into_iter();
    let replies = replies.map(|reply| reply.and_then(|mut reply| wait(&mut *reply, operation)));
    replies.collect()
}

fn number_of(reply: &Document) -> i64 {
    number(reply.get("n"))
}

/// Returns what a statement changes.
fn changes_of<'s>(kind: &Kind, statement: DocRef<'s>) -> ValueRef<'s> {
    match kind.command == UPDATE.command {
        true => statement.get("u"),
        false => ValueRef::Missing,
    }
}

/// Where a statement runs: `None` if the collection is gone.
type Targets = Option<(Arc<Placement>, Vec<usize>)>;

/// Returns the partitions that may have documents of a statement with the filter `q`. If `changes` may change a shard key,
/// the documents of these may have any key from now on.
fn targets(
    (router, operation, namespace): (&Router, &OperationContext, &Namespace),
    statement: DocRef<'_>,
    by_bytes: bool,
    changes: ValueRef<'_>,
) -> Result<Targets> {
    let filter = filter_of(statement, by_bytes);
    let Some(placement) = router.placement(namespace) else {
        return Ok(None);
    };
    let targets = placement.targets(filter.as_ref());
    if !may_change_key(&placement, changes) {
        return Ok(Some((placement, targets)));
    }
    if router.elsewhere().is_some() {
        // The collection was sharded while the command ran.
        return Err(unsettled(namespace));
    }
    let _changes = router.lock_changes();
    let Some(placement) = router.placement(namespace) else {
        return Ok(None);
    };
    let targets = placement.targets(filter.as_ref());
    let mut noted = Placement::clone(&placement);
    let is_new = noted
        .sharding
        .as_mut()
        .is_some_and(|sharding| sharding.note_anywhere(&targets));
    if is_new {
        router.begin_change(namespace, operation)?;
        router.set_placement(namespace, Some(noted))?;
    }
    Ok(router
        .placement(namespace)
        .map(|placement| (placement, targets)))
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
fn filter_of(statement: DocRef<'_>, by_bytes: bool) -> Option<MatchExpression> {
    let query = match statement.get("q") {
        ValueRef::Missing => statement.get("query"),
        query => query,
    };
    let is_plain = by_bytes && statement.get("collation").is_missing();
    let query = query.as_document().filter(|_| is_plain)?;
    let parsed = MatchExpression::parse(query, &ParseContext::new()).ok()?;
    Some(parsed.simplify())
}

/// True if an update may change the shard key of a document.
fn may_change_key(placement: &Placement, changes: ValueRef<'_>) -> bool {
    let Some(sharding) = &placement.sharding else {
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

/// `findAndModify`: one document of the partitions that may have it.
pub(super) fn find_and_modify(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let router = router_of(database);
    let body = request.body.as_ref();
    let name = body.iter().next().and_then(|first| first.value().as_str());
    let name = name.ok_or_else(|| {
        Error::new(
            ErrorCode::InvalidNamespace,
            "findAndModify needs the name of a collection",
        )
    })?;
    let namespace = writable(context.database_name(), name)?;
    collection_uuid::check(database, &Args::new("findAndModify", body), &namespace)?;
    let operation = &context.operation;
    let placement = placed(database, operation, router, &namespace)?;
    if router.elsewhere().is_some() && may_change_key(&placement, body.get("update")) {
        return elsewhere::write(router, request, operation);
    }
    let _write = router.begin_write();
    let forwarded = forwarded(body, &["collectionUUID"], operation);
    let by_bytes = compares_by_bytes(context, database, &namespace.collection);
    for _ in 0..PLACEMENT_CHANGES_MAX {
        let place = (router, operation, &namespace);
        let found = targets(place, body, by_bytes, body.get("update"))?;
        let (placement, targets) = found.ok_or_else(|| dropped(&namespace))?;
        if placement.sharding.is_some() {
            check_find_and_modify(body, targets.len())?;
        }
        match find_in(place, &placement, &targets, &forwarded)? {
            Ok(reply) => return Ok(reply),
            Err(wanted) => router.settle(&wanted, operation)?,
        }
    }
    Err(unsettled(&namespace))
}

/// Refuses what is not supported on a sharded collection.
fn check_find_and_modify(body: DocRef<'_>, targets: usize) -> Result<()> {
    if is_true(body.get("upsert")) {
        return Err(not_sharded("An upsert"));
    }
    let sort = body.get("sort").as_document();
    if targets > 1 && sort.is_some_and(|sort| !sort.is_empty()) {
        return Err(not_sharded("findAndModify with a sort"));
    }
    Ok(())
}

/// Runs `findAndModify` in one target after the other, until one has a document. Returns the placement that a target asks
/// for if it has refused this one.
fn find_in(
    (router, operation, namespace): (&Router, &OperationContext, &Namespace),
    placement: &Placement,
    targets: &[usize],
    body: &Document,
) -> Result<std::result::Result<Document, PlacementVersion>> {
    let is_numbered = operation.txn_number.is_some() && targets.len() > 1;
    let rounds: &[bool] = if is_numbered {
        &[true, false]
    } else {
        &[false]
    };
    let mut last = Document::new();
    for repeats_only in rounds {
        let routed = RoutedRequest {
            placement: Some(placement.version_of(namespace)),
            repeats_only: *repeats_only,
            ..RoutedRequest::default()
        };
        for target in targets {
            let reply = match ask((router, operation), &[*target], body, &routed).remove(0) {
                Ok(reply) => reply,
                Err(error) => return Ok(Err(version_asked(&error).ok_or(error)?)),
            };
            last = without_ok(&reply);
            let result = last.get("lastErrorObject").as_document();
            if result.is_some_and(|result| number(result.get("n")) > 0) {
                return Ok(Ok(last));
            }
        }
    }
    Ok(Ok(last))
}

fn not_sharded(what: &str) -> Error {
    Error::new(
        ErrorCode::CommandNotSupported,
        format!("{what} is not supported on a sharded collection"),
    )
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
    let mut out = DocumentBuilder::new();
    let of_request = ["ok", OPENING_FIELD];
    let own = reply
        .iter()
        .filter(|element| !of_request.contains(&element.name()));
    for element in own {
        out.append_element(element);
    }
    out.finish()
}

//! `update`, `delete` and `findAndModify` on a router.
//!
//! A statement for many documents runs in every partition that may have one. One for a single document is tried in these
//! partitions one after the other, until one has changed a document.

use nilometer_bson::{Array, DocRef, Document, DocumentBuilder, Value, ValueRef};

use super::insert::{dropped, placed, with_index};
use super::{compares_by_bytes, forwarded, is_true, number, router_of, sum, writable};
use crate::args::Args;
use crate::catalog::Namespace;
use crate::commands::CommandContext;
use crate::commands::crud::insert::write_batch;
use crate::commands::ddl::collection_uuid;
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::eval::ParseContext;
use crate::eval::matcher::MatchExpression;
use crate::operation::{OperationContext, Request};
use crate::router::{Placement, Router};

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

pub(in crate::commands) fn update(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    change(database, context, request, &UPDATE)
}

pub(in crate::commands) fn delete(
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
    let _write = router.begin_write();
    let Some(placement) = router.placement(&namespace) else {
        // The handler of one server checks the statements, and finds nothing in the router's own catalog.
        return (context.spec.handler)(database, context, request);
    };
    if placement.sharding.is_none() {
        let whole = with_statements(&body, kind, statements.iter().copied());
        let mut replies =
            router.ask_all(&[placement.primary], &operation.database, &whole, operation)?;
        let reply = replies.pop().unwrap_or_default();
        return Ok(without_ok(&reply));
    }
    let statements_of = Statements {
        router,
        operation,
        namespace: &namespace,
        body,
        kind,
        by_bytes: compares_by_bytes(context, database, &namespace.collection),
    };
    let mut replies = Vec::new();
    let mut errors = Vec::new();
    for (at, statement) in statements.into_iter().enumerate() {
        let found = statements_of.run(statement)?;
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

impl Statements<'_> {
    /// Runs a statement and returns the replies of the partitions that it concerned.
    fn run(&self, statement: DocRef<'_>) -> Result<Vec<Document>> {
        if is_true(statement.get("upsert")) {
            return Err(not_sharded("An upsert"));
        }
        let sort = statement.get("sort").as_document();
        if sort.is_some_and(|sort| !sort.is_empty()) {
            return Err(not_sharded("A statement with a sort"));
        }
        let is_update = self.kind.command == UPDATE.command;
        let changes = if is_update {
            statement.get("u")
        } else {
            ValueRef::Missing
        };
        let targets = targets(
            self.router,
            self.namespace,
            statement,
            self.by_bytes,
            changes,
        )?;
        let body = with_statements(&self.body, self.kind, [statement].into_iter());
        let operation = self.operation;
        let database = &operation.database;
        if (self.kind.is_multi)(statement) {
            return self.router.ask_all(&targets, database, &body, operation);
        }
        for target in targets {
            let replies = self.router.ask_all(&[target], database, &body, operation)?;
            let is_done = sum(&replies, "n") > 0
                || replies
                    .iter()
                    .any(|reply| !reply.get("writeErrors").is_missing());
            if is_done {
                return Ok(replies);
            }
        }
        Ok(Vec::new())
    }
}

/// Returns the partitions that may have documents of a statement with the filter `q`. If `changes` may change a shard key,
/// the documents of these may have any key from now on.
fn targets(
    router: &Router,
    namespace: &Namespace,
    statement: DocRef<'_>,
    by_bytes: bool,
    changes: ValueRef<'_>,
) -> Result<Vec<usize>> {
    let filter = filter_of(statement, by_bytes);
    let Some(placement) = router.placement(namespace) else {
        return Ok(Vec::new());
    };
    if !may_change_key(&placement, changes) {
        return Ok(placement.targets(filter.as_ref()));
    }
    let _changes = router.lock_changes();
    let Some(placement) = router.placement(namespace) else {
        return Ok(Vec::new());
    };
    let targets = placement.targets(filter.as_ref());
    let mut noted = Placement::clone(&placement);
    if let Some(sharding) = &mut noted.sharding
        && sharding.note_anywhere(&targets)
    {
        router.set_placement(namespace, Some(noted))?;
    }
    Ok(targets)
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
pub(in crate::commands) fn find_and_modify(
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
    let is_upsert = is_true(body.get("upsert"));
    placed(database, operation, router, &namespace)?;
    let _write = router.begin_write();
    let placement = router
        .placement(&namespace)
        .ok_or_else(|| dropped(&namespace))?;
    let forwarded = forwarded(body, &["collectionUUID"], operation);
    let targets = match placement.sharding {
        None => vec![placement.primary],
        Some(_) if is_upsert => return Err(not_sharded("An upsert")),
        Some(_) => {
            let by_bytes = compares_by_bytes(context, database, &namespace.collection);
            targets(router, &namespace, body, by_bytes, body.get("update"))?
        }
    };
    let has_sort = body
        .get("sort")
        .as_document()
        .is_some_and(|sort| !sort.is_empty());
    if targets.len() > 1 && has_sort {
        return Err(not_sharded("findAndModify with a sort"));
    }
    let mut last = Document::new();
    for target in targets {
        let mut replies = router.ask_all(&[target], &operation.database, &forwarded, operation)?;
        last = without_ok(&replies.pop().unwrap_or_default());
        let result = last.get("lastErrorObject").as_document();
        if result.is_some_and(|result| number(result.get("n")) > 0) {
            break;
        }
    }
    Ok(last)
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

/// Returns the reply of a partition without what every reply has.
pub(super) fn without_ok(reply: &Document) -> Document {
    let mut out = DocumentBuilder::new();
    let own = reply.iter().filter(|element| element.name() != "ok");
    for element in own {
        out.append_element(element);
    }
    out.finish()
}

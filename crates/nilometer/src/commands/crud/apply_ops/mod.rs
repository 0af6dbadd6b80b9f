//! `applyOps`: applies entries of an oplog, as `mongorestore --oplogReplay` sends them.
//!
//! ```text
//! {op, ns, ui?, o, o2?} ─┬─ i, u, d   changes.rs       documents, buckets, views; by `_id`
//!                        ├─ c         definitions.rs   as the command that it stands for
//!                        └─ n         nothing
//! ```
//!
//! Entries are applied in order, each for itself, and an error ends the command. They may be applied to contents that are newer
//! than they are, as those of a dump: an insert replaces a document with the same `_id`, and what is missing is no
//! error. After the last entry the contents are those that the server had then.
//!
//! A client needs the privileges of the commands that entries stand for, and `useUUID` and `forceUUID` for entries with `ui`.

mod changes;
mod definitions;

use nilometer_bson::{DocRef, Document, DocumentBuilder, Value, ValueRef, doc};

use super::{find, query};
use crate::args::Args;
use crate::auth::{Action, Target};
use crate::catalog::Namespace;
use crate::commands::ddl::collection_uuid;
use crate::commands::security::authorization::{AccessRequest, RequiredPrivileges};
use crate::commands::{Access, Authorization, CommandContext, CommandSpec, Fields, OnRouter};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::eval::EvalContext;
use crate::eval::matcher::MatchExpression;
use crate::operation::Request;

/// The database of a command in an oplog entry: `<database>.$cmd`.
const COMMAND_COLLECTION: &str = ".$cmd";

/// Nesting of `applyOps` that entries may have.
const DEPTH_MAX: usize = 10;

pub(crate) const SPEC: CommandSpec = CommandSpec {
    access: Access::Write,
    write_concern: true,
    takes_memory: true,
    fields: Fields::Only(&[
        "alwaysUpsert",
        "bypassDocumentValidation",
        "oplogApplicationMode",
        "preCondition",
    ]),
    ..CommandSpec::new(
        "applyOps",
        "Applies entries of an oplog.",
        Authorization::ByRule(may_apply),
        OnRouter::Refused,
        run,
    )
};

/// The fields of an entry. Those behind the fifth say when and by whom, and change nothing.
const ENTRY: &[&str] = &[
    "op",
    "ns",
    "ui",
    "o",
    "o2",
    "b",
    "ts",
    "t",
    "v",
    "h",
    "wall",
    "lsid",
    "txnNumber",
    "stmtId",
    "prevOpTime",
    "preImageOpTime",
    "postImageOpTime",
    "needsRetryImage",
    "fromMigrate",
    "multiOpType",
];

fn may_apply(asked: &AccessRequest<'_>, needed: &mut RequiredPrivileges) -> Result<()> {
    if let Some(conditions) = asked.body().get("preCondition").as_array() {
        for condition in conditions.iter().filter_map(ValueRef::as_document) {
            let name = condition.get("ns").as_str().unwrap_or_default();
            let (db, collection) = name.split_once('.').unwrap_or((name, ""));
            needed.add(Target::collection(db, collection), &[Action::Find]);
        }
    }
    may_apply_all(asked, asked.body(), needed, 0)
}

fn may_apply_all(
    asked: &AccessRequest<'_>,
    body: DocRef<'_>,
    needed: &mut RequiredPrivileges,
    depth: usize,
) -> Result<()> {
    let entries = body.get("applyOps").as_array();
    let entries = entries.iter().flat_map(|entries| entries.iter());
    for entry in entries.filter_map(ValueRef::as_document) {
        if !entry.get("ui").is_missing() {
            needed.add(Target::Cluster, &[Action::UseUUID, Action::ForceUUID]);
        }
        let ns = entry.get("ns").as_str().unwrap_or_default();
        let inner = entry.get("o").as_document();
        match (entry.get("op").as_str(), inner) {
            (Some("n"), _) => {}
            (Some("c"), Some(inner)) if depth < DEPTH_MAX && is_apply_ops(inner) => {
                may_apply_all(asked, inner, needed, depth + 1)?;
            }
            (Some("c"), Some(inner)) => definitions::privileges(asked, ns, inner, needed)?,
            (Some(op), _) => changes::privileges(asked, (op, ns), needed),
            (None, _) => {}
        }
    }
    Ok(())
}

fn is_apply_ops(command: DocRef<'_>) -> bool {
    let first = command.iter().next();
    first.is_some_and(|first| first.name() == "applyOps")
}

/// An entry of an oplog.
struct OplogEntry<'a> {
    kind: EntryKind,
    ns: &'a str,
    uuid: Option<[u8; 16]>,
    o: DocRef<'a>,
    o2: Option<DocRef<'a>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum EntryKind {
    Insert,
    Update,
    Delete,
    Command,
    Nothing,
}

impl<'a> OplogEntry<'a> {
    fn parse(entry: DocRef<'a>) -> Result<Self> {
        let args = Args::new("applyOps.applyOps", entry);
        args.check_names(ENTRY)?;
        let kind = match args.required_string("op")? {
            "i" => EntryKind::Insert,
            "u" => EntryKind::Update,
            "d" => EntryKind::Delete,
            "c" => EntryKind::Command,
            "n" => EntryKind::Nothing,
            other => {
                return Err(Error::bad_value(format!(
                    "Enumeration value '{other}' for field 'applyOps.applyOps.op' is not a valid value."
                )));
            }
        };
        Ok(Self {
            kind,
            ns: args.required_string("ns")?,
            uuid: collection_uuid::uuid(&args, "ui")?,
            o: args.required_document("o")?,
            o2: args.document("o2")?,
        })
    }

    /// Returns the collection of an insert, update or delete: that with the UUID, if there is one.
    fn namespace(&self, database: &Database) -> Result<Namespace> {
        let known = self
            .uuid
            .and_then(|uuid| database.catalog().by_shown_uuid(uuid));
        if let Some(known) = known {
            return Ok(known.namespace.clone());
        }
        let (db, collection) = self.ns.split_once('.').unwrap_or((self.ns, ""));
        Namespace::new(db, collection)
    }

    /// Returns the database of a command.
    fn command_database(&self) -> Result<&'a str> {
        self.ns.strip_suffix(COMMAND_COLLECTION).ok_or_else(|| {
            Error::new(
                ErrorCode::InvalidNamespace,
                format!(
                    "a command of applyOps has the namespace <database>{COMMAND_COLLECTION}, not '{}'",
                    self.ns
                ),
            )
        })
    }
}

/// Returns the entries of a command.
fn entries_of<'a>(args: &Args<'a>) -> Result<Vec<OplogEntry<'a>>> {
    let entries = args.required_array("applyOps")?;
    let entries = entries.iter().map(|entry| match entry {
        ValueRef::Document(entry) => OplogEntry::parse(entry),
        other => Err(args.wrong_type("applyOps", other, "object")),
    });
    entries.collect()
}

fn run(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let args = Args::new("applyOps", request.body.as_ref());
    let upserts = args.boolean("alwaysUpsert")?.unwrap_or(true);
    args.string("oplogApplicationMode")?;
    let entries = entries_of(&args)?;
    check_conditions(database, context, &args)?;
    context.operation.bypass.empty_timestamps = true;
    let (mut applied, mut results) = (0, Vec::new());
    for entry in &entries {
        context.operation.check_interrupt()?;
        let outcome = apply(database, context, entry, (upserts, 0));
        applied += 1;
        results.push(Value::Bool(outcome.is_ok()));
        if let Err(error) = outcome {
            return Err(error.with_details(doc! {"applied": applied, "results": results}));
        }
    }
    Ok(doc! {"applied": applied, "results": results})
}

/// Applies one entry.
fn apply(
    database: &Database,
    context: &mut CommandContext<'_>,
    entry: &OplogEntry<'_>,
    (upserts, depth): (bool, usize),
) -> Result<()> {
    match entry.kind {
        EntryKind::Nothing => Ok(()),
        EntryKind::Command if is_apply_ops(entry.o) => {
            if depth >= DEPTH_MAX {
                return Err(Error::failed_to_parse(
                    "applyOps is nested too deeply in its entries",
                ));
            }
            for inner in entries_of(&Args::new("applyOps", entry.o))? {
                apply(database, context, &inner, (upserts, depth + 1))?;
            }
            Ok(())
        }
        EntryKind::Command => definitions::apply(database, context, entry),
        EntryKind::Insert | EntryKind::Update | EntryKind::Delete => {
            changes::apply(database, context, entry, upserts)
        }
    }
}

/// Fails unless the first document that `q` finds in `ns` matches `res`, for all conditions.
fn check_conditions(
    database: &Database,
    context: &mut CommandContext<'_>,
    args: &Args<'_>,
) -> Result<()> {
    let Some(conditions) = args.array("preCondition")? else {
        return Ok(());
    };
    for condition in conditions.iter() {
        let Some(condition) = condition.as_document() else {
            return Err(args.wrong_type("preCondition", condition, "object"));
        };
        let fields = Args::new("applyOps.preCondition", condition);
        fields.check_names(&["ns", "q", "res"])?;
        let (db, collection) = fields
            .required_string("ns")?
            .split_once('.')
            .ok_or_else(|| Error::bad_value("the ns of a preCondition is not <db>.<collection>"))?;
        let find = doc! {
            "find": collection,
            "filter": fields.required_document("q")?.to_document(),
            "limit": 1,
            "singleBatch": true
        };
        let reply = with_database(context, db, |context| {
            (find::SPEC.handler)(database, context, &Request::new(find))
        })?;
        let found = first_document(&reply).unwrap_or_default();
        let options = query::QueryOptions::parse(database, &context.operation, &fields, None)?;
        let wanted = fields.required_document("res")?;
        let wanted = MatchExpression::parse(wanted, &options.expressions)?;
        if !wanted.matches(found.as_ref(), &EvalContext::default())? {
            let mut details = DocumentBuilder::new();
            details.append("got", found);
            details.append("whatFailed", condition.to_document());
            let error = Error::bad_value("preCondition failed");
            return Err(error.with_details(details.finish()));
        }
    }
    Ok(())
}

/// Returns the first document in the reply of a `find`.
fn first_document(reply: &Document) -> Option<Document> {
    let cursor = reply.get("cursor").as_document()?;
    let first = cursor.get("firstBatch").as_array()?.iter().next()?;
    Some(first.as_document()?.to_document())
}

/// Runs `work` as on another database.
fn with_database<T>(
    context: &mut CommandContext<'_>,
    db: &str,
    work: impl FnOnce(&mut CommandContext<'_>) -> Result<T>,
) -> Result<T> {
    let outer = std::mem::replace(&mut context.operation.database, db.to_owned());
    let outcome = work(context);
    context.operation.database = outer;
    outcome
}

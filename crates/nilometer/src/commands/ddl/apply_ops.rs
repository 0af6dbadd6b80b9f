//! `applyOps`: creates collections with given UUIDs, as a restore that keeps UUIDs asks for.
//!
//! There is no oplog, so the other operations of one are refused: they have commands of their own. Nothing is
//! done before all operations are checked.

use nilometer_bson::{DocRef, Document, Value, ValueRef, doc};

use super::{collection_uuid, create};
use crate::args::Args;
use crate::auth::{Action, Target};
use crate::commands::security::authorization::{AccessRequest, RequiredPrivileges};
use crate::commands::{Access, Authorization, CommandContext, CommandSpec, Fields};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::operation::Request;

/// The database of a command in an oplog entry: `<database>.$cmd`.
const COMMAND_COLLECTION: &str = ".$cmd";

pub(crate) const SPEC: CommandSpec = CommandSpec {
    access: Access::Write,
    write_concern: true,
    fields: Fields::Only(&[
        // Tools set it for whole restores; a creation writes no documents.
        "bypassDocumentValidation",
        "alwaysUpsert",
        "oplogApplicationMode",
    ]),
    ..CommandSpec::new(
        "applyOps",
        "Creates collections with given UUIDs.",
        Authorization::ByRule(may_apply),
        run,
    )
};

fn may_apply(asked: &AccessRequest<'_>, needed: &mut RequiredPrivileges) -> Result<()> {
    needed.add(Target::Cluster, &[Action::UseUUID, Action::ForceUUID]);
    let Some(operations) = asked.body().get("applyOps").as_array() else {
        return Ok(());
    };
    for operation in operations.iter().filter_map(ValueRef::as_document) {
        let ns = operation.get("ns").as_str().unwrap_or("");
        let db = ns.strip_suffix(COMMAND_COLLECTION).unwrap_or(ns);
        let name = operation.get("o").as_document();
        let name = name.and_then(|o| o.get("create").as_str());
        let target = Target::collection(db, name.unwrap_or(""));
        needed.add(target, &[Action::CreateCollection]);
    }
    Ok(())
}

/// A `create` of an operation.
struct Creation<'a> {
    db: &'a str,
    args: Args<'a>,
    uuid: [u8; 16],
}

fn run(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let args = Args::new("applyOps", request.body.as_ref());
    args.boolean("alwaysUpsert")?;
    args.string("oplogApplicationMode")?;
    let mut creations = Vec::new();
    for operation in args.required_array("applyOps")?.iter() {
        match operation {
            ValueRef::Document(operation) => creations.push(creation(operation)?),
            other => return Err(args.wrong_type("applyOps", other, "object")),
        }
    }
    let (mut applied, mut results) = (0, Vec::new());
    for Creation { db, args, uuid } in &creations {
        let outcome = create::create(database, db, args, Some(*uuid));
        applied += 1;
        results.push(Value::Bool(outcome.is_ok()));
        if let Err(error) = outcome {
            return Err(error.with_details(doc! {"applied": applied, "results": results}));
        }
        let name = args.required_string("create")?;
        let usage = &context.operation.usage;
        usage.record_created(format!("{db}.{name}"));
    }
    Ok(doc! {"applied": applied, "results": results})
}

/// Parses `{op: "c", ns: "<db>.$cmd", ui: <UUID>, o: {create: <name>, …}}`.
fn creation<'a>(operation: DocRef<'a>) -> Result<Creation<'a>> {
    let args = Args::new("applyOps.applyOps", operation);
    args.check_names(&["op", "ns", "ui", "o", "ts", "t", "v", "wall", "h"])?;
    let (kind, ns) = (args.required_string("op")?, args.required_string("ns")?);
    let object = args.required_document("o")?;
    let command = object.iter().next().map_or("", |element| element.name());
    if kind != "c" || command != "create" {
        return Err(Error::new(
            ErrorCode::CommandNotSupported,
            format!("applyOps can only create collections here, not run '{command}' (op '{kind}')"),
        ));
    }
    let Some(db) = ns.strip_suffix(COMMAND_COLLECTION) else {
        return Err(Error::new(
            ErrorCode::InvalidNamespace,
            format!(
                "a command of applyOps has the namespace <database>{COMMAND_COLLECTION}, not '{ns}'"
            ),
        ));
    };
    let uuid = collection_uuid::uuid(&args, "ui")?.ok_or_else(|| args.missing("ui"))?;
    let create = Args::new("create", object);
    create.check_names_with(|name| name == "create" || create::FIELDS.contains(&name))?;
    Ok(Creation {
        db,
        uuid,
        args: create,
    })
}

//! `dropIndexes`: by name, by key, several names, or all but that of `_id`.
//!
//! All named indexes are dropped, or none. The build of an unfinished index is aborted.

use nilometer_bson::{Document, DocumentBuilder, ValueRef};
use nilometer_storage::KeyspaceId;

use super::indexes::IndexOwner;
use super::{collection_uuid, indexes};
use crate::args::Args;
use crate::auth::Action;
use crate::catalog::Namespace;
use crate::commands::generic::RAW_DATA;
use crate::commands::{Access, Authorization, CommandContext, CommandSpec, Fields, OnRouter};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result, location};
use crate::operation::Request;

pub(crate) const SPEC: CommandSpec = CommandSpec {
    aliases: &["deleteIndexes"],
    access: Access::Write,
    write_concern: true,
    in_api_v1: true,
    fields: Fields::Only(&["index", RAW_DATA, collection_uuid::NAME]),
    ..CommandSpec::new(
        "dropIndexes",
        "Removes indexes.",
        Authorization::OnCollection(&[Action::DropIndex]),
        OnRouter::Catalog,
        run,
    )
};

/// Stands for all indexes except that of `_id`.
const ALL: &str = "*";

fn run(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let args = Args::new("dropIndexes", request.body.as_ref());
    let namespace = Namespace::new(context.database_name(), args.command_target("dropIndexes")?)?;
    collection_uuid::check(database, &args, &namespace)?;
    let owner = indexes::owner(database, &namespace, "ns not found")?;
    let mut reply = DocumentBuilder::new();
    reply.append("nIndexesWas", owner.count());
    let doomed = match args.value("index") {
        ValueRef::Missing => return Err(args.missing("index")),
        ValueRef::String(ALL) => {
            reply.append("msg", "non-_id indexes dropped for collection");
            owner.keyspaces()
        }
        which => chosen(&args, &owner, which)?,
    };
    owner.drop(database, &doomed)?;
    Ok(reply.finish())
}

fn chosen(args: &Args<'_>, owner: &IndexOwner, which: ValueRef<'_>) -> Result<Vec<KeyspaceId>> {
    if owner.is_id_index(which) {
        return Err(cannot_drop_id(owner));
    }
    match which {
        ValueRef::String(name) => Ok(vec![owner.named(name)?.stored.keyspace]),
        ValueRef::Document(key) => Ok(vec![owner.with_key(key)?.stored.keyspace]),
        ValueRef::Array(names) => {
            let mut doomed = Vec::new();
            for name in names.iter() {
                let ValueRef::String(text) = name else {
                    return Err(args.wrong_type("index", name, "string"));
                };
                if owner.is_id_index(name) {
                    return Err(cannot_drop_id(owner));
                }
                doomed.push(owner.named(text)?.stored.keyspace);
            }
            Ok(doomed)
        }
        other => Err(args.wrong_type("index", other, "string, object, array")),
    }
}

fn cannot_drop_id(owner: &IndexOwner) -> Error {
    if owner.collection().is_some_and(|c| c.is_clustered()) {
        return Error::location(
            location::CLUSTERED_INDEX_DROPPED,
            "It is illegal to drop the clusteredIndex",
        );
    }
    Error::new(ErrorCode::InvalidOptions, "cannot drop _id index")
}

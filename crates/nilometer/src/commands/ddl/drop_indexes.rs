//! `dropIndexes`: by name, by key, several names, or all but that of `_id`.
//!
//! All named indexes are dropped, or none. The build of an unfinished index is aborted.

use nilometer_bson::{Document, DocumentBuilder, ValueRef};
use nilometer_storage::KeyspaceId;

use super::{collection_uuid, indexes};
use crate::args::Args;
use crate::auth::Action;
use crate::catalog::{Collection, Namespace};
use crate::commands::generic::RAW_DATA;
use crate::commands::{Access, Authorization, CommandContext, CommandSpec, Fields, OnRouter};
use crate::database::Database;
use crate::database::indexes::IndexForm;
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
    let (collection, side) = indexes::collection(database, &namespace, "ns not found")?;
    let before = indexes::count(&collection);
    let mut reply = DocumentBuilder::new();
    reply.append("nIndexesWas", before);
    let doomed = match args.value("index") {
        ValueRef::Missing => return Err(args.missing("index")),
        ValueRef::String(ALL) => {
            reply.append("msg", "non-_id indexes dropped for collection");
            None
        }
        which => Some(chosen(&args, &collection, side, which)?),
    };
    database.catalog().drop_indexes(&collection, |there| {
        let keyspaces = there.iter().map(|index| index.keyspace);
        Ok(match doomed {
            None => keyspaces.collect(),
            // Another command dropped it meanwhile.
            Some(doomed) => keyspaces.filter(|k| doomed.contains(k)).collect(),
        })
    })?;
    Ok(reply.finish())
}

fn chosen(
    args: &Args<'_>,
    collection: &Collection,
    side: IndexForm,
    which: ValueRef<'_>,
) -> Result<Vec<KeyspaceId>> {
    if indexes::is_id_index(collection, which) {
        return Err(cannot_drop_id(collection));
    }
    match which {
        ValueRef::String(name) => Ok(vec![
            indexes::named(collection, side, name)?.stored.keyspace,
        ]),
        ValueRef::Document(key) => Ok(vec![
            indexes::with_key(collection, side, key)?.stored.keyspace,
        ]),
        ValueRef::Array(names) => {
            let mut doomed = Vec::new();
            for name in names.iter() {
                let ValueRef::String(text) = name else {
                    return Err(args.wrong_type("index", name, "string"));
                };
                if indexes::is_id_index(collection, name) {
                    return Err(cannot_drop_id(collection));
                }
                doomed.push(indexes::named(collection, side, text)?.stored.keyspace);
            }
            Ok(doomed)
        }
        other => Err(args.wrong_type("index", other, "string, object, array")),
    }
}

fn cannot_drop_id(collection: &Collection) -> Error {
    if collection.is_clustered() {
        return Error::location(
            location::CLUSTERED_INDEX_DROPPED,
            "It is illegal to drop the clusteredIndex",
        );
    }
    Error::new(ErrorCode::InvalidOptions, "cannot drop _id index")
}

//! `renameCollection`: another name, in the same database or in another one.
//!
//! Only the name changes: documents, indexes and the UUID stay, and nothing is copied. Of the
//! system's own names only buckets may be renamed, and only to buckets; the view of a time-series
//! collection stays behind over nothing.

use nilometer_bson::{Document, ValueRef};

use super::args::Args;
use super::drop::{end_cursors, forget};
use super::{Access, CommandContext, CommandSpec, Fields, collection_uuid};
use crate::catalog::{CatalogEntry, Namespace};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::operation::Request;

pub(super) const SPEC: CommandSpec = CommandSpec {
    access: Access::Write,
    write_concern: true,
    admin_only: true,
    fields: Fields::Only(&["to", "dropTarget", "stayTemp", collection_uuid::NAME]),
    ..CommandSpec::new("renameCollection", "Gives a collection another name.", run)
};

fn run(database: &Database, _: &mut CommandContext<'_>, request: &Request) -> Result<Document> {
    let args = Args::new("renameCollection", request.body.as_ref());
    let from = whole_name(args.required_string("renameCollection")?)?;
    let to = whole_name(args.required_string("to")?)?;
    args.boolean("stayTemp")?;
    // Either "whatever has the name", or the one collection that may go.
    let (drop_target, only) = match args.value("dropTarget") {
        ValueRef::Binary { .. } => (true, collection_uuid::uuid(&args, "dropTarget")?),
        _ => (args.lenient_boolean("dropTarget")?.unwrap_or(false), None),
    };
    collection_uuid::check(database, &args, &from)?;
    let catalog = database.catalog();
    match catalog.get(&from) {
        Some(CatalogEntry::View(_)) => {
            return Err(Error::new(
                ErrorCode::CommandNotSupportedOnView,
                format!("cannot rename view: {from}"),
            ));
        }
        Some(CatalogEntry::Collection(_)) => {}
        None => {
            return Err(Error::new(
                ErrorCode::NamespaceNotFound,
                format!("Source collection {from} does not exist"),
            ));
        }
    }
    if from == to {
        return Err(illegal("Can't rename a collection to itself"));
    }
    let are_buckets = |n: &Namespace| n.view_of_buckets().is_some();
    if are_buckets(&from) != are_buckets(&to) {
        return Err(illegal(
            "buckets of time-series collections can only be renamed to such buckets",
        ));
    }
    if !are_buckets(&from) && (from.is_system() || to.is_system()) {
        return Err(illegal("cannot rename from or to a system collection"));
    }
    let dropped = catalog.rename(&from, &to, &|there| match only {
        Some(uuid) if uuid != there.uuid => Err(Error::new(
            ErrorCode::CommandFailed,
            format!("the UUID in 'dropTarget' is not that of {to}"),
        )),
        _ => Ok(drop_target),
    })?;
    if let Some(dropped) = dropped {
        forget(database, &dropped);
    }
    end_cursors(database, &[from, to]);
    Ok(Document::new())
}

fn whole_name(name: &str) -> Result<Namespace> {
    match name.split_once('.') {
        Some((database, collection)) => Namespace::new(database, collection),
        None => Err(Error::new(
            ErrorCode::InvalidNamespace,
            format!("Invalid namespace specified '{name}'"),
        )),
    }
}

fn illegal(message: &str) -> Error {
    Error::new(ErrorCode::IllegalOperation, message)
}

//! `listIndexes`.

use nilometer_bson::Document;

use super::args::Args;
use super::list_collections::id_index;
use super::query::{listing_batch_size, open_listing};
use super::{Access, CommandContext, CommandSpec, Fields};
use crate::catalog::{CatalogEntry, Namespace, Storage};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::operation::Request;

pub(super) const SPEC: CommandSpec = CommandSpec {
    access: Access::Read,
    in_api_v1: true,
    fields: Fields::Only(&["cursor"]),
    ..CommandSpec::new("listIndexes", "Lists the indexes of a collection.", run)
};

fn run(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let args = Args::new("listIndexes", request.body.as_ref());
    let namespace = Namespace::new(
        context.database_name(),
        args.required_string("listIndexes")?,
    )?;
    let batch_size = listing_batch_size(&args)?;
    let catalog = database.catalog();
    let indexes = match catalog.get(&namespace) {
        Some(CatalogEntry::Collection(found)) => match found.storage {
            Storage::Records { .. } => vec![id_index(&found)],
            // Buckets are clustered by `_id`, which is no index of its own.
            Storage::Buckets { .. } => Vec::new(),
        },
        Some(CatalogEntry::View(view)) if view.is_timeseries() => Vec::new(),
        Some(CatalogEntry::View(_)) => {
            return Err(Error::new(
                ErrorCode::CommandNotSupportedOnView,
                format!("Namespace {namespace} is a view, not a collection"),
            ));
        }
        None => {
            return Err(Error::new(
                ErrorCode::NamespaceNotFound,
                format!("ns does not exist: {namespace}"),
            ));
        }
    };
    let (operation, namespace) = (&context.operation, namespace.to_string());
    open_listing(
        database,
        operation,
        namespace,
        indexes,
        batch_size,
        &request.body,
    )
}

//! `drop` and `dropDatabase`.

use nilometer_bson::{Document, DocumentBuilder, doc};

use super::args::Args;
use super::{Access, CommandContext, CommandSpec};
use crate::catalog::{CatalogEntry, Namespace};
use crate::database::Database;
use crate::error::{Error, Result};
use crate::operation::Request;

pub(super) const DROP: CommandSpec = CommandSpec {
    access: Access::Write,
    write_concern: true,
    in_api_v1: true,
    ..CommandSpec::new("drop", "Removes a collection or a view.", drop_collection)
};

pub(super) const DROP_DATABASE: CommandSpec = CommandSpec {
    access: Access::Write,
    write_concern: true,
    in_api_v1: true,
    ..CommandSpec::new(
        "dropDatabase",
        "Removes a database with everything in it.",
        drop_database,
    )
};

fn drop_collection(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let args = Args::new("drop", request.body.as_ref());
    let namespace = Namespace::new(context.database_name(), args.required_string("drop")?)?;
    let catalog = database.catalog();
    let mut doomed = vec![namespace.clone()];
    let mut has_indexes = true;
    match catalog.get(&namespace) {
        Some(CatalogEntry::View(view)) if view.is_timeseries() => doomed.push(namespace.buckets()),
        Some(CatalogEntry::View(_)) => has_indexes = false,
        Some(_) => {
            // Dropping the buckets takes along the view that makes them a collection.
            if let Some(view) = namespace.view_of_buckets()
                && catalog.timeseries(&view).is_some()
            {
                doomed.push(view);
            }
        }
        None => {
            if catalog.collection(&namespace.buckets()).is_none() {
                return Ok(Document::new());
            }
            doomed.push(namespace.buckets());
        }
    }
    remove(database, &doomed)?;
    let mut reply = DocumentBuilder::new();
    if has_indexes {
        reply.append("nIndexesWas", 1);
    }
    reply.append("ns", namespace.to_string());
    Ok(reply.finish())
}

fn drop_database(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let args = Args::new("dropDatabase", request.body.as_ref());
    if args.integer("dropDatabase")? != Some(1) {
        return Err(Error::bad_value("'dropDatabase' must be 1"));
    }
    let name = context.database_name().to_owned();
    let doomed: Vec<_> = database
        .catalog()
        .list(&name)
        .into_iter()
        .map(|(n, _)| n)
        .collect();
    if doomed.is_empty() {
        return Ok(Document::new());
    }
    remove(database, &doomed)?;
    Ok(doc! { "dropped": name })
}

/// Removes names and what is in memory of their collections; their cursors end.
fn remove(database: &Database, namespaces: &[Namespace]) -> Result<()> {
    let catalog = database.catalog();
    let dropped: Vec<_> = namespaces
        .iter()
        .filter_map(|n| catalog.collection(n))
        .collect();
    catalog.remove(namespaces)?;
    for collection in dropped {
        database.timeseries().forget(collection.uuid);
        database.records().forget(collection.uuid);
    }
    let names: Vec<String> = namespaces.iter().map(Namespace::to_string).collect();
    database
        .queries()
        .cursors
        .kill_where(|ns, _| names.iter().any(|name| name == ns));
    Ok(())
}

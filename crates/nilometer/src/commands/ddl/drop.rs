//! `drop` and `dropDatabase`.

use nilometer_bson::{Document, DocumentBuilder, doc};

use super::{collection_uuid, indexes};
use crate::args::Args;
use crate::auth::Action;
use crate::catalog::{Catalog, CatalogEntry, Collection, LOCAL, Namespace, SYSTEM_VIEWS};
use crate::commands::{Access, Authorization, CommandContext, CommandSpec, Fields, OnRouter};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::operation::Request;

pub(crate) const DROP: CommandSpec = CommandSpec {
    access: Access::Write,
    write_concern: true,
    in_api_v1: true,
    fields: Fields::Only(&[collection_uuid::NAME]),
    ..CommandSpec::new(
        "drop",
        "Removes a collection or a view.",
        Authorization::OnCollection(&[Action::DropCollection]),
        OnRouter::Catalog,
        drop_collection,
    )
};

pub(crate) const DROP_DATABASE: CommandSpec = CommandSpec {
    access: Access::Write,
    write_concern: true,
    in_api_v1: true,
    ..CommandSpec::new(
        "dropDatabase",
        "Removes a database and all its collections.",
        Authorization::OnDatabase(&[Action::DropDatabase]),
        OnRouter::Catalog,
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
    collection_uuid::check(database, &args, &namespace)?;
    let catalog = database.catalog();
    catalog.check_is_not_oplog(&namespace, "drop")?;
    let shown = namespace.timeseries_view();
    catalog.check_has_no_rollups(shown.as_ref().unwrap_or(&namespace), "drop")?;
    let mut doomed = vec![namespace.clone()];
    match catalog.get(&namespace) {
        Some(CatalogEntry::View(view)) if view.is_timeseries() => doomed.push(namespace.buckets()),
        Some(CatalogEntry::View(_)) => {}
        Some(_) => {
            // Dropping the buckets drops their view, too.
            if let Some(view) = namespace.timeseries_view()
                && catalog.timeseries(&view).is_some()
            {
                doomed.push(view);
            }
        }
        None if namespace.collection == SYSTEM_VIEWS => doomed = all_views(database, &namespace)?,
        None if catalog.collection(&namespace.buckets()).is_some() => {
            doomed.push(namespace.buckets());
        }
        None => doomed.clear(),
    }
    if doomed.is_empty() {
        return Ok(Document::new());
    }
    let mut reply = DocumentBuilder::new();
    let collection = doomed.iter().find_map(|n| catalog.collection(n));
    reply.append("nIndexesWas", collection.map(|c| indexes::count(&c)));
    remove(database, &doomed)?;
    reply.append("ns", namespace.to_string());
    Ok(reply.finish())
}

/// Dropping `system.views` drops the views, except those of time-series collections.
fn all_views(database: &Database, namespace: &Namespace) -> Result<Vec<Namespace>> {
    let mut views = Vec::new();
    for (name, entry) in database.catalog().list(&namespace.database) {
        match entry {
            CatalogEntry::View(view) if view.is_timeseries() => {
                return Err(Error::new(
                    ErrorCode::IllegalOperation,
                    format!("cannot drop {namespace} while there are time-series collections"),
                ));
            }
            CatalogEntry::View(_) => views.push(name),
            CatalogEntry::Collection(_) => {}
        }
    }
    Ok(views)
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
    if name == LOCAL && database.change_log().is_some() {
        return Err(Error::new(
            ErrorCode::IllegalOperation,
            "Cannot drop 'local' database while replication is active",
        ));
    }
    let doomed: Vec<_> = database
        .catalog()
        .list(&name)
        .into_iter()
        .map(|(n, _)| n)
        .collect();
    if doomed.is_empty() {
        return Ok(Document::new());
    }
    remove_with(database, &doomed, |catalog| {
        catalog.remove_database(&name, &doomed)
    })?;
    Ok(doc! { "dropped": name })
}

/// Drops names, the memory of their collections, and their cursors.
fn remove(database: &Database, namespaces: &[Namespace]) -> Result<()> {
    remove_with(database, namespaces, |catalog| catalog.remove(namespaces))
}

fn remove_with(
    database: &Database,
    namespaces: &[Namespace],
    remove: impl FnOnce(&Catalog) -> Result<()>,
) -> Result<()> {
    let catalog = database.catalog();
    let dropped: Vec<_> = namespaces
        .iter()
        .filter_map(|n| catalog.collection(n))
        .collect();
    remove(catalog)?;
    for collection in dropped {
        forget(database, &collection);
    }
    for namespace in namespaces {
        database.services().top.forget(&namespace.to_string());
    }
    end_cursors(database, namespaces);
    Ok(())
}

/// Releases the memory of a dropped collection.
pub(crate) fn forget(database: &Database, collection: &Collection) {
    let name = collection.namespace.to_string();
    database.queries().plans.filters().clear(&name, None);
    database.timeseries().forget(collection);
    database.records().forget(collection.uuid);
}

/// Closes the cursors over these names: their next `getMore` fails with 175.
pub(crate) fn end_cursors(database: &Database, namespaces: &[Namespace]) {
    let names: Vec<String> = namespaces.iter().map(Namespace::to_string).collect();
    database
        .queries()
        .cursors
        .close_over(&names, crate::query::cursor::Closing::Dropped);
}

//! `listCollections` and `listDatabases`.

use std::collections::BTreeSet;

use nilometer_bson::{Array, DocRef, Document, DocumentBuilder, Value, ValueRef, doc};

use crate::args::Args;
use crate::auth::{Action, ActionSet, Privileges, Target};
use crate::catalog::{Catalog, CatalogEntry, LOCAL, Namespace, SYSTEM_VIEWS};
use crate::commands::cursor_reply::{listing_batch_size, open_listing};
use crate::commands::generic::RAW_DATA;
use crate::commands::security::authorization::not_authorized;
use crate::commands::security::authorization::rules;
use crate::commands::{Access, Authorization, CommandContext, CommandSpec, Fields, OnRouter};
use crate::database::ADMIN;
use crate::database::Database;
use crate::database::indexes::id_index;
use crate::error::Result;
use crate::eval::matcher::MatchExpression;
use crate::eval::{EvalContext, ParseContext};
use crate::operation::Request;

pub(crate) const COLLECTIONS: CommandSpec = CommandSpec {
    access: Access::Read,
    read_concern: true,
    in_api_v1: true,
    fields: Fields::Only(&[
        "filter",
        "nameOnly",
        "authorizedCollections",
        "cursor",
        RAW_DATA,
    ]),
    ..CommandSpec::new(
        "listCollections",
        "Lists the collections and views of a database.",
        Authorization::ByRule(rules::list_collections),
        OnRouter::Same,
        collections,
    )
};

pub(crate) const DATABASES: CommandSpec = CommandSpec {
    access: Access::Read,
    read_concern: true,
    in_api_v1: true,
    admin_only: true,
    fields: Fields::Only(&["filter", "nameOnly", "authorizedDatabases"]),
    ..CommandSpec::new(
        "listDatabases",
        "Lists the databases.",
        Authorization::LoggedIn,
        OnRouter::Own,
        databases,
    )
};

/// The compiled filter of a listing.
fn filter(args: &Args<'_>) -> Result<Option<MatchExpression>> {
    let Some(filter) = args.document("filter")? else {
        return Ok(None);
    };
    MatchExpression::parse(filter, &ParseContext::default()).map(Some)
}

fn passes(
    filter: Option<&MatchExpression>,
    entry: &Document,
    context: &EvalContext<'_>,
) -> Result<bool> {
    filter.map_or(Ok(true), |filter| filter.matches(entry.as_ref(), context))
}

fn collections(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let args = Args::new("listCollections", request.body.as_ref());
    let name_only = args.lenient_boolean("nameOnly")?.unwrap_or(false);
    args.boolean("authorizedCollections")?;
    let batch_size = listing_batch_size(&args)?;
    let filter = filter(&args)?;
    let privileges = asked_privileges(database, context);
    let evaluation = EvalContext {
        now_ms: context.operation.now_ms,
        limits: Some(context.operation.evaluation_limits()),
        ..EvalContext::default()
    };
    let db = context.database_name().to_owned();
    let catalog = database.catalog();
    let entries = match named(args.document("filter")?) {
        Some(names) => entries_called(catalog, &db, &names),
        None => catalog.list(&db),
    };
    let has_views = entries
        .iter()
        .any(|(_, entry)| matches!(entry, CatalogEntry::View(_)));
    let mut listed = Vec::new();
    let shown = entries.iter().filter(|(n, _)| !catalog.is_oplog(n));
    for (namespace, entry) in shown {
        listed.push(describe(database, namespace, entry, name_only));
    }
    if has_views {
        listed.push(describe_system_views(name_only));
    }
    let collections = database.collections();
    for name in collections.generated_names(&db) {
        listed.push(collections.describe_generated(name, name_only));
    }
    let mut batch = Vec::new();
    for entry in listed {
        let name = entry.get("name").as_str().unwrap_or("");
        if sees(privileges.as_ref(), &db, name) && passes(filter.as_ref(), &entry, &evaluation)? {
            batch.push(entry);
        }
    }
    let namespace = format!("{db}.$cmd.listCollections");
    let operation = &context.operation;
    open_listing(
        database,
        operation,
        namespace,
        batch,
        batch_size,
        &request.body,
    )
}

/// Returns the names to which a filter confines the listing. Clients look for one collection by a listing, also beside
/// thousands of others. `None` if all names must be compared.
fn named(filter: Option<DocRef<'_>>) -> Option<BTreeSet<&str>> {
    let names: BTreeSet<&str> = match filter?.get("name") {
        ValueRef::String(name) => BTreeSet::from([name]),
        ValueRef::Document(condition) => match condition.get("$in") {
            ValueRef::Array(names) => names.iter().map(ValueRef::as_str).collect::<Option<_>>()?,
            _ => return None,
        },
        _ => return None,
    };
    // It is there if there is any view.
    (!names.contains(SYSTEM_VIEWS)).then_some(names)
}

/// Returns the entries with these names, by name.
fn entries_called(
    catalog: &Catalog,
    db: &str,
    names: &BTreeSet<&str>,
) -> Vec<(Namespace, CatalogEntry)> {
    let called = |name: &&str| {
        let namespace = Namespace::new(db, name).ok()?;
        let entry = catalog.get(&namespace)?;
        Some((namespace, entry))
    };
    names.iter().filter_map(called).collect()
}

/// The collections the user may see: all, or those on which an action is allowed.
fn sees(privileges: Option<&Privileges>, db: &str, name: &str) -> bool {
    let list = ActionSet::of(&[Action::ListCollections]);
    privileges.is_none_or(|all| {
        let target = Target::collection(db, name);
        all.allows(&Target::Database(db.to_owned()), list)
            || all.iter().any(|p| p.resource.includes(&target))
    })
}

/// Returns the privileges of the user; `None` without access control.
fn asked_privileges(database: &Database, context: &mut CommandContext<'_>) -> Option<Privileges> {
    let login = &mut context.session.login;
    if !database.services().access_control || login.is_trusted() {
        return None;
    }
    login
        .grants(database.authority())
        .map(|grants| grants.privileges().clone())
}

fn describe(
    database: &Database,
    namespace: &Namespace,
    entry: &CatalogEntry,
    name_only: bool,
) -> Document {
    let mut out = DocumentBuilder::new();
    out.append("name", namespace.collection.as_str());
    match entry {
        CatalogEntry::Collection(collection) => {
            out.append("type", "collection");
            if !name_only {
                out.append("options", collection.listed_options());
                let info = doc! { "readOnly": false, "uuid": collection.uuid_value() };
                out.append("info", info);
                // The clustered index is listed among the options.
                let index = id_index(collection).filter(|_| !collection.is_clustered());
                out.append("idIndex", index);
            }
        }
        CatalogEntry::View(view) if view.is_timeseries() => {
            out.append("type", "timeseries");
            if !name_only {
                out.append("options", timeseries_options(database, namespace));
                out.append("info", doc! { "readOnly": false });
            }
        }
        CatalogEntry::View(view) => {
            out.append("type", "view");
            if !name_only {
                out.append("options", view.definition());
                out.append("info", doc! { "readOnly": true });
            }
        }
    }
    out.finish()
}

fn timeseries_options(database: &Database, namespace: &Namespace) -> Document {
    let mut out = DocumentBuilder::new();
    if let Some(buckets) = database.catalog().timeseries(namespace) {
        for element in buckets.options.iter() {
            out.append_element(element);
        }
        out.append(
            "timeseries",
            buckets.timeseries.as_ref().map(|t| t.to_document()),
        );
    }
    out.finish()
}

fn describe_system_views(name_only: bool) -> Document {
    if name_only {
        return doc! { "name": SYSTEM_VIEWS, "type": "collection" };
    }
    doc! {
        "name": SYSTEM_VIEWS,
        "type": "collection",
        "options": doc! {},
        "info": doc! { "readOnly": false },
    }
}

fn databases(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let args = Args::new("listDatabases", request.body.as_ref());
    let name_only = args.lenient_boolean("nameOnly")?.unwrap_or(false);
    let authorized = args.boolean("authorizedDatabases")?;
    let filter = filter(&args)?;
    let list = ActionSet::of(&[Action::ListDatabases]);
    // Users who may list all see all by default.
    let privileges = asked_privileges(database, context)
        .filter(|p| authorized == Some(true) || !p.allows(&Target::Cluster, list));
    if privileges.is_some() && authorized == Some(false) {
        return Err(not_authorized(&DATABASES, "admin", &request.body));
    }
    let evaluation = EvalContext {
        now_ms: context.operation.now_ms,
        limits: Some(context.operation.evaluation_limits()),
        ..EvalContext::default()
    };
    let mut total = 0;
    let mut listed = Vec::new();
    for name in all_databases(database) {
        if privileges.as_ref().is_some_and(|p| !p.can_read_in(&name)) {
            continue;
        }
        let mut out = DocumentBuilder::new();
        out.append("name", name.as_str());
        let mut size = 0;
        if !name_only {
            size = size_on_disk(database, &name)?;
            out.append("sizeOnDisk", size);
            out.append("empty", false);
        }
        let entry = out.finish();
        if passes(filter.as_ref(), &entry, &evaluation)? {
            total += size;
            listed.push(Value::Document(entry));
        }
    }
    let mut out = DocumentBuilder::new();
    out.append("databases", listed.into_iter().collect::<Array>());
    if !name_only {
        out.append("totalSize", total);
        out.append("totalSizeMb", total / (1 << 20));
    }
    Ok(out.finish())
}

/// Returns the names of all databases. That of users and versions always exists, that of the oplog if there is one.
fn all_databases(database: &Database) -> Vec<String> {
    let mut names = database.catalog().databases();
    let has_log = database.change_log().is_some();
    for own in [ADMIN, LOCAL].into_iter().take(1 + usize::from(has_log)) {
        if let Err(at) = names.binary_search_by(|name| name.as_str().cmp(own)) {
            names.insert(at, own.to_owned());
        }
    }
    names
}

/// Returns the size of the files of a database's collections, in bytes.
pub(crate) fn size_on_disk(database: &Database, name: &str) -> Result<i64> {
    let mut bytes = match name {
        LOCAL => u64::try_from(database.collections().oplog_sizes().0).unwrap_or(0),
        _ => 0,
    };
    for (_, entry) in database.catalog().list(name) {
        if let CatalogEntry::Collection(collection) = entry {
            for keyspace in collection.keyspaces() {
                let sizes = database.engine().keyspace_statistics(keyspace)?;
                bytes += sizes.disk_bytes + sizes.memory_bytes;
            }
        }
    }
    Ok(i64::try_from(bytes).unwrap_or(i64::MAX))
}

//! `createIndexes`: checks the definitions, adds them to the catalog, and builds the indexes.
//!
//! ```text
//! indexes: [{key, name, …}] ── spec::parse ──▶ IndexSpec ── conflict::decide ──▶ new, or there already
//!                               │ key, kinds, text, partial_filter                  │
//!                               └ on time series: converted to buckets              └ build
//! ```
//!
//! All indexes of one command are created, or none if one is refused. A collection that does not exist is
//! created.

mod conflict;
mod key;
mod kinds;
mod partial_filter;
mod spec;
mod text;

use std::sync::Arc;
use std::time::Duration;

use nilometer_bson::{ArrayRef, DocRef, Document, DocumentBuilder, ValueRef};

use super::indexes::IndexOwner;
use super::{collection_uuid, indexes};
use crate::args::Args;
use crate::auth::Action;
use crate::catalog::{
    CatalogEntry, Collection, IndexSpec, Indexes, Namespace, StoredIndex, StoredRollup,
};
use crate::commands::generic::RAW_DATA;
use crate::commands::{Access, Authorization, CommandContext, CommandSpec, Fields, OnRouter};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::operation::{OperationContext, Request};

pub(super) use conflict::equal_documents;

use spec::{IndexPlace, ParsedIndex};

pub(crate) const SPEC: CommandSpec = CommandSpec {
    access: Access::Write,
    takes_memory: true,
    write_concern: true,
    in_api_v1: true,
    fields: Fields::Only(&[
        "indexes",
        "commitQuorum",
        "ignoreUnknownIndexOptions",
        RAW_DATA,
        collection_uuid::NAME,
    ]),
    ..CommandSpec::new(
        "createIndexes",
        "Creates indexes.",
        Authorization::OnCollection(&[Action::CreateIndex]),
        OnRouter::Catalog,
        run,
    )
};

/// The pause between two checks of an index that another command builds.
const WAIT: Duration = Duration::from_millis(5);

/// The documents that an index covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IndexTarget {
    /// The documents of an ordinary collection.
    Ordinary,
    /// Measurements; the index is kept over the buckets.
    Timeseries,
    /// Buckets, addressed by their own name.
    Buckets,
    /// The bins of a rollup.
    Rollup,
}

fn run(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let args = Args::new("createIndexes", request.body.as_ref());
    let namespace = named(database, context, &args)?;
    if let Some(rollup) = database.catalog().rollup(&namespace) {
        return on_rollup(database, context, &args, (&namespace, &rollup));
    }
    let (collection, wanted) = defined(database, &args, &namespace)?;
    let created = collection.is_none();
    let collection = match collection {
        Some(found) => found,
        None => {
            let modify = database.collections().modify();
            modify.find_or_create(&context.operation, &namespace)?
        }
    };
    let before = indexes::count(&collection);
    let made = make(database, context, &collection, &wanted)?;
    let is_changed = made > 0 || created;
    Ok(reply(
        (before, indexes::count(&collection)),
        is_changed.then_some(created),
    ))
}

/// Fails if the command is refused for what it says. Definitions of indexes of a rollup are checked when they are made.
pub(in crate::commands) fn check(
    database: &Database,
    context: &CommandContext<'_>,
    request: &Request,
) -> Result<()> {
    let args = Args::new("createIndexes", request.body.as_ref());
    let namespace = named(database, context, &args)?;
    if database.catalog().rollup(&namespace).is_none() {
        defined(database, &args, &namespace)?;
    }
    Ok(())
}

/// Returns the collection that a command names.
fn named(database: &Database, context: &CommandContext<'_>, args: &Args<'_>) -> Result<Namespace> {
    let namespace = Namespace::new(
        context.database_name(),
        args.required_string("createIndexes")?,
    )?;
    collection_uuid::check(database, args, &namespace)?;
    if !args.value("commitQuorum").is_missing() {
        return Err(Error::bad_value("Standalones cannot specify commitQuorum"));
    }
    Ok(namespace)
}

/// Returns the collection, if there is one, and the indexes that a command defines.
fn defined(
    database: &Database,
    args: &Args<'_>,
    namespace: &Namespace,
) -> Result<(Option<Arc<Collection>>, Vec<IndexSpec>)> {
    let (target, collection) = find(database, namespace)?;
    let place = IndexPlace {
        target,
        collection: collection.as_deref(),
        ignore_unknown: ignores_unknown(args)?,
    };
    let wanted = wanted(descriptions(args)?, &place)?;
    Ok((collection, wanted))
}

/// Returns the reply: the number of indexes before and after; `created` says whether the command has created the collection,
/// `None` that it has changed nothing.
fn reply((before, after): (i32, i32), created: Option<bool>) -> Document {
    let mut reply = DocumentBuilder::new();
    reply.append("numIndexesBefore", before);
    reply.append("numIndexesAfter", after);
    match created {
        None => reply.append("note", "all indexes already exist"),
        Some(created) => reply.append("createdCollectionAutomatically", created),
    };
    reply.finish()
}

fn ignores_unknown(args: &Args<'_>) -> Result<bool> {
    Ok(args.boolean("ignoreUnknownIndexOptions")?.unwrap_or(false))
}

/// Creates indexes of the bins of a rollup.
fn on_rollup(
    database: &Database,
    context: &CommandContext<'_>,
    args: &Args<'_>,
    (namespace, rollup): (&Namespace, &Arc<StoredRollup>),
) -> Result<Document> {
    let wanted = of_rollup(descriptions(args)?, ignores_unknown(args)?)?;
    if database.catalog().is_of_transaction() {
        return Err(not_in_transaction("existing", namespace));
    }
    let owner = IndexOwner::Rollup(namespace.clone(), Arc::clone(rollup));
    let before = owner.count();
    let pace = || context.operation.check_interrupt();
    let made = add_to_rollup(database, (namespace, rollup), &wanted, &pace)?;
    Ok(reply((before, owner.count()), (made > 0).then_some(false)))
}

/// Returns the collection `namespace`, or the buckets behind it.
fn find(
    database: &Database,
    namespace: &Namespace,
) -> Result<(IndexTarget, Option<Arc<Collection>>)> {
    let catalog = database.catalog();
    if let Some(buckets) = catalog.timeseries(namespace) {
        return Ok((IndexTarget::Timeseries, Some(buckets)));
    }
    match catalog.get(namespace) {
        Some(CatalogEntry::Collection(found)) if found.timeseries.is_some() => {
            Ok((IndexTarget::Buckets, Some(found)))
        }
        Some(CatalogEntry::Collection(found)) => Ok((IndexTarget::Ordinary, Some(found))),
        Some(CatalogEntry::View(_)) => Err(Error::new(
            ErrorCode::CommandNotSupportedOnView,
            format!("Namespace {namespace} is a view, not a collection"),
        )),
        None if namespace.is_system() => Err(Error::new(
            ErrorCode::InvalidNamespace,
            format!("cannot create indexes on '{namespace}'"),
        )),
        None => Ok((IndexTarget::Ordinary, None)),
    }
}

/// Reads definitions of indexes of a rollup.
pub(super) fn of_rollup(
    descriptions: ArrayRef<'_>,
    ignore_unknown: bool,
) -> Result<Vec<IndexSpec>> {
    let place = IndexPlace {
        target: IndexTarget::Rollup,
        collection: None,
        ignore_unknown,
    };
    wanted(descriptions, &place)
}

/// Creates the indexes that a rollup does not have; returns their number.
pub(super) fn add_to_rollup(
    database: &Database,
    (namespace, rollup): (&Namespace, &Arc<StoredRollup>),
    wanted: &[IndexSpec],
    pace: &dyn Fn() -> Result<()>,
) -> Result<usize> {
    let choose = |there: &Indexes| Ok(conflict::decide(namespace, there, wanted, 0)?.new);
    let rollups = database.rollups();
    rollups.create_indexes(namespace, rollup, choose, pace)
}

/// Returns the definitions of a command.
fn descriptions<'a>(args: &Args<'a>) -> Result<ArrayRef<'a>> {
    let descriptions = args.required_array("indexes")?;
    if descriptions.is_empty() {
        return Err(Error::bad_value(
            "Must specify at least one index to create",
        ));
    }
    Ok(descriptions)
}

fn wanted(descriptions: ArrayRef<'_>, place: &IndexPlace<'_>) -> Result<Vec<IndexSpec>> {
    let mut wanted = Vec::new();
    for description in descriptions.iter() {
        let ValueRef::Document(description) = description else {
            let args = Args::new("createIndexes", DocRef::EMPTY);
            return Err(args.wrong_type("indexes", description, "object"));
        };
        if let ParsedIndex::Index(spec) = spec::parse(description, place)? {
            wanted.push(spec);
        }
    }
    Ok(wanted)
}

/// Creates the indexes that do not exist; returns the number of indexes before. Waits for indexes that
/// another command builds.
fn make(
    database: &Database,
    context: &CommandContext<'_>,
    collection: &Arc<Collection>,
    wanted: &[IndexSpec],
) -> Result<usize> {
    let operation = &context.operation;
    let mut made = 0;
    // In a transaction only new collections without documents get indexes: statements must see complete ones.
    let refusal = refusal(database, collection)?;
    loop {
        let mut known = Vec::new();
        let others = usize::try_from(indexes::id_indexes(collection)).unwrap_or(0);
        let added = database.create_indexes(collection, operation, |there| {
            let decision = conflict::decide(&collection.namespace, there, wanted, others)?;
            known = decision.known;
            match &refusal {
                Some(refusal) if !decision.new.is_empty() => Err(refusal.clone()),
                _ => Ok(decision.new),
            }
        })?;
        made += added.len();
        if wait(operation, collection, &known)? {
            return Ok(made);
        }
    }
}

/// Returns why a transaction cannot create indexes of the collection; `None` if it can, or if there is no transaction.
fn refusal(database: &Database, collection: &Collection) -> Result<Option<Error>> {
    let catalog = database.catalog();
    let kind = match catalog.has_created(collection) {
        _ if !catalog.is_of_transaction() => return Ok(None),
        false => "existing",
        true if database.has_documents(collection)? => "non-empty",
        true => return Ok(None),
    };
    Ok(Some(not_in_transaction(kind, &collection.namespace)))
}

fn not_in_transaction(kind: &str, namespace: &Namespace) -> Error {
    Error::new(
        ErrorCode::OperationNotSupportedInTransaction,
        format!(
            "Cannot create new indexes on {kind} collection {namespace} in a multi-document transaction."
        ),
    )
}

/// Waits until these indexes are built; false if a build was aborted.
pub(crate) fn wait(
    operation: &OperationContext,
    collection: &Collection,
    known: &[Arc<StoredIndex>],
) -> Result<bool> {
    for index in known {
        while !index.is_ready() {
            operation.check_interrupt()?;
            let there = collection.indexes.all();
            if !there.iter().any(|i| i.keyspace == index.keyspace) {
                return Ok(false);
            }
            std::thread::sleep(WAIT);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use crate::Database;
    use bson::doc;

    fn names(database: &Database) -> Vec<String> {
        let reply = database
            .command("db", &doc! { "listIndexes": "c" })
            .unwrap();
        let listed = reply.get_document("cursor").unwrap();
        let listed = listed.get_array("firstBatch").unwrap().iter();
        listed
            .map(|index| {
                index
                    .as_document()
                    .unwrap()
                    .get_str("name")
                    .unwrap()
                    .to_owned()
            })
            .collect()
    }

    #[test]
    fn commands_that_want_the_same_index_wait_for_one_build() {
        let database = Database::in_memory().unwrap();
        let collection = database.collection::<bson::Document>("db", "c");
        collection
            .insert_many((0..5000).map(|i| doc! { "_id": i, "a": i % 7 }))
            .unwrap();
        let create =
            doc! { "createIndexes": "c", "indexes": [{ "key": { "a": 1 }, "name": "a_1" }] };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    database.command("db", &create).unwrap();
                    let stored = database.catalog().collections();
                    assert!(stored[0].indexes.named("a_1").unwrap().is_ready());
                });
            }
        });
        assert_eq!(names(&database), ["_id_", "a_1"]);
        assert_eq!(database.catalog().collections()[0].keyspaces().len(), 3);
    }

    #[test]
    fn a_collection_has_64_indexes_at_most() {
        let database = Database::in_memory().unwrap();
        let index = |at: i32| doc! { "key": { format!("f{at}"): 1 }, "name": format!("f{at}") };
        let create = |from: i32, to: i32| {
            let indexes: Vec<_> = (from..to).map(index).collect();
            database.command("db", &doc! { "createIndexes": "c", "indexes": indexes })
        };
        assert_eq!(create(0, 64).unwrap_err().code.0, 67);
        assert_eq!(names(&database), ["_id_"]);
        create(0, 63).unwrap();
        assert_eq!(create(63, 64).unwrap_err().code.0, 67);
        create(0, 2).unwrap();
        assert_eq!(names(&database).len(), 64);
    }
}

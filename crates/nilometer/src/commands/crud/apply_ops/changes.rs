//! Entries of an oplog that change documents, buckets and views.

use nilometer_bson::{DocRef, Document, DocumentBuilder, ValueRef, doc};

use super::{EntryKind, OplogEntry, with_database};
use crate::args::Args;
use crate::auth::{Action, Target};
use crate::catalog::{CatalogEntry, Namespace, SYSTEM_VIEWS};
use crate::commands::CommandContext;
use crate::commands::crud::change::{self, StatementContext, eval_context};
use crate::commands::crud::query::{QueryOptions, default_collation};
use crate::commands::ddl::{create, drop};
use crate::commands::security::authorization::{AccessRequest, RequiredPrivileges};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::eval::matcher::MatchExpression;
use crate::modify::{Modified, ModifyAction, Selector};
use crate::operation::Request;
use crate::timeseries::ReplayedBucket;
use crate::write::update::Update;

/// Adds the privileges that an entry of this kind needs.
pub(super) fn privileges(
    asked: &AccessRequest<'_>,
    (op, ns): (&str, &str),
    needed: &mut RequiredPrivileges,
) {
    let (db, collection) = ns.split_once('.').unwrap_or((ns, ""));
    let actions: &[Action] = match op {
        "d" => &[Action::Remove],
        // Inserts replace documents, and updates insert them.
        _ => &[Action::Insert, Action::Update],
    };
    let target = Target::collection(db, collection);
    let bypass = asked.body().get("bypassDocumentValidation");
    if matches!(bypass, ValueRef::Bool(true)) && op != "d" {
        needed.add(target.clone(), &[Action::BypassDocumentValidation]);
    }
    needed.add(target, actions);
}

/// Applies an entry.
pub(super) fn apply(
    database: &Database,
    context: &mut CommandContext<'_>,
    entry: &OplogEntry<'_>,
    upserts: bool,
) -> Result<()> {
    let namespace = entry.namespace(database)?;
    if namespace.collection == SYSTEM_VIEWS {
        return apply_to_view(database, context, &namespace.database, entry);
    }
    if let Some(bucket) = replayed_bucket(entry, &namespace)? {
        return apply_to_bucket(database, &namespace, bucket);
    }
    let id = match (entry.kind, entry.o2) {
        (EntryKind::Update, None) => {
            return Err(Error::missing_field("applyOps.applyOps.o2"));
        }
        (EntryKind::Update, Some(o2)) => o2,
        _ => entry.o,
    };
    let mut filter = DocumentBuilder::new();
    filter.append_ref("_id", id.get("_id"));
    let filter = filter.finish();
    if filter.is_empty() {
        return Err(Error::new(
            ErrorCode::NoSuchKey,
            "an entry of applyOps has no _id",
        ));
    }
    let place = Place {
        database,
        context,
        namespace: &namespace,
    };
    match entry.kind {
        EntryKind::Delete => place.run(&filter, None, false).map(|_| ()),
        EntryKind::Update => {
            let expressions = &place.options(&filter)?.expressions;
            let update = Update::of_oplog(entry.o, expressions)?;
            let upserts = upserts && !update.is_difference();
            let updated = place.run(&filter, Some(&update), upserts)?;
            // With upserts, an entry of a document that was removed since changes nothing.
            match updated.matched == 0 && updated.upserted.is_none() && !update.is_difference() {
                true => Err(Error::new(
                    ErrorCode::UpdateOperationFailed,
                    "Failed to apply update due to missing _id",
                )),
                false => Ok(()),
            }
        }
        _ => {
            let update = Update::replacement(entry.o);
            place.run(&filter, Some(&update), true).map(|_| ())
        }
    }
}

/// The collection that an entry changes.
struct Place<'a, 'c> {
    database: &'a Database,
    context: &'a CommandContext<'c>,
    namespace: &'a Namespace,
}

impl Place<'_, '_> {
    fn options(&self, filter: &Document) -> Result<QueryOptions> {
        let Namespace {
            database,
            collection,
        } = self.namespace;
        let collation = default_collation(self.database, database, collection)?;
        let args = Args::new("applyOps", filter.as_ref());
        QueryOptions::with_collation(&self.context.operation, &args, &collation)
    }

    /// Changes the document that the filter finds, or removes it.
    fn run(&self, filter: &Document, update: Option<&Update>, upsert: bool) -> Result<Modified> {
        let (database, operation) = (self.database, &self.context.operation);
        let options = self.options(filter)?;
        let expressions = &options.expressions;
        let filter = MatchExpression::parse(filter.as_ref(), expressions)?.simplify();
        let selector = Selector::matching(&filter);
        let place = StatementContext {
            database,
            operation,
            namespace: self.namespace,
            options: &options,
            durability: change::durability(operation, true),
            record: None,
        };
        let action = match update {
            None => ModifyAction::Delete,
            Some(update) => ModifyAction::Update {
                update,
                upsert,
                supplied: None,
            },
        };
        let mut statement = place.statement(&selector, false, action, &[], expressions);
        statement.eval = eval_context(database, operation, &[], expressions);
        place.find_candidates(&mut statement)?;
        let modified = statement.run(database.collections().modify())?;
        let counters = &database.services().counters.documents;
        counters.updated.add(modified.modified);
        counters.deleted.add(modified.deleted);
        counters
            .inserted
            .add(u64::from(modified.upserted.is_some()));
        Ok(modified)
    }
}

/// Returns the measurements that an entry adds to a bucket; `None` for another change.
fn replayed_bucket<'a>(
    entry: &OplogEntry<'a>,
    namespace: &Namespace,
) -> Result<Option<ReplayedBucket<'a>>> {
    if namespace.timeseries_view().is_none() {
        return Ok(None);
    }
    match entry.kind {
        EntryKind::Insert => Ok(Some(ReplayedBucket::Inserted(entry.o))),
        EntryKind::Update => {
            let id = entry.o2.map(|o2| o2.get("_id"));
            match (id, entry.o.get("diff").as_document()) {
                (Some(ValueRef::ObjectId(id)), Some(diff)) => ReplayedBucket::of_diff(id.0, diff),
                _ => Ok(None),
            }
        }
        _ => Ok(None),
    }
}

fn apply_to_bucket(
    database: &Database,
    namespace: &Namespace,
    bucket: ReplayedBucket<'_>,
) -> Result<()> {
    let catalog = database.catalog();
    let collection = catalog.collection(namespace);
    let Some(collection) = collection.filter(|found| found.timeseries.is_some()) else {
        return Err(Error::new(
            ErrorCode::NamespaceNotFound,
            format!("there is no time-series collection with the buckets {namespace}"),
        ));
    };
    let timeseries = database.timeseries();
    timeseries.replay_bucket(catalog, &collection, bucket)
}

/// Creates, replaces or drops a view, whose definition is a document of `system.views`.
fn apply_to_view(
    database: &Database,
    context: &mut CommandContext<'_>,
    db: &str,
    entry: &OplogEntry<'_>,
) -> Result<()> {
    let definition = entry.o;
    let id = definition.get("_id").as_str().unwrap_or_default();
    let name = id.strip_prefix(db).and_then(|rest| rest.strip_prefix('.'));
    let name = name.ok_or_else(|| {
        Error::bad_value(format!(
            "'{id}' is not the name of a view of the database {db}"
        ))
    })?;
    let namespace = Namespace::new(db, name)?;
    let known = database.catalog().get(&namespace);
    match known {
        Some(CatalogEntry::View(view)) if view.is_timeseries() => {
            // It comes and goes with its buckets.
            return Ok(());
        }
        Some(CatalogEntry::View(_)) => {
            let request = Request::new(doc! {"drop": name});
            with_database(context, db, |context| {
                (drop::DROP.handler)(database, context, &request)
            })?;
        }
        Some(CatalogEntry::Collection(_)) if entry.kind == EntryKind::Delete => return Ok(()),
        _ => {}
    }
    if entry.kind == EntryKind::Delete {
        return Ok(());
    }
    let command = view_command(database, &namespace, definition)?;
    let args = Args::new("create", command.as_ref());
    create::create(database, db, &args, None)
}

/// Returns the command that creates a view, or a time series over buckets that exist.
fn view_command(
    database: &Database,
    namespace: &Namespace,
    definition: DocRef<'_>,
) -> Result<Document> {
    let mut command = DocumentBuilder::new();
    command.append("create", namespace.collection.as_str());
    // A rollup names what it stands on in its own option.
    let buckets = match definition.get("viewOn").as_str() {
        None => None,
        Some(view_on) => {
            let on = Namespace::new(&namespace.database, view_on)?;
            let buckets = database.catalog().collection(&on);
            buckets.filter(|_| on.timeseries_view().is_some())
        }
    };
    match buckets {
        Some(buckets) => command.append_all(buckets.listed_options().as_ref()),
        None => {
            for element in definition.iter().filter(|element| element.name() != "_id") {
                command.append_element(element);
            }
            &mut command
        }
    };
    Ok(command.finish())
}

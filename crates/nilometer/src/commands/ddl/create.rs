//! `create`: ordinary collections, time-series collections and their bare buckets, views.
//!
//! Creating a collection that exists with the same options succeeds and changes nothing; any other use of an
//! existing name is error 48. The options of each kind are checked in its own file.

mod buckets;
mod clustered;
mod options;
mod ordinary;
mod rollup;
mod timeseries;
mod view;

use nilometer_bson::{DocRef, Document, ValueRef};

use crate::args::Args;
use crate::catalog::{Collection, Namespace, TimeseriesOptions};
use crate::commands::security::authorization::rules;
use crate::commands::{Access, Authorization, CommandContext, CommandSpec, Fields, OnRouter};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::operation::Request;

pub(super) use options::{IMAGES, check_expire_after, images, stored_images};
pub(super) use rollup::changed_options;
pub(super) use view::{check_graph, parse_pipeline};

/// The options of `create`.
const FIELDS: &[&str] = &[
    "timeseries",
    "rollup",
    "expireAfterSeconds",
    "clusteredIndex",
    "viewOn",
    "pipeline",
    "collation",
    "capped",
    "size",
    "max",
    "validator",
    "validationLevel",
    "validationAction",
    "idIndex",
    "storageEngine",
    "indexOptionDefaults",
    "changeStreamPreAndPostImages",
    "encryptedFields",
    "autoIndexId",
    "flags",
    "temp",
];

pub(crate) const SPEC: CommandSpec = CommandSpec {
    access: Access::Write,
    write_concern: true,
    in_api_v1: true,
    fields: Fields::Only(FIELDS),
    ..CommandSpec::new(
        "create",
        "Creates a collection, a time-series collection or a view.",
        Authorization::ByRule(rules::create),
        OnRouter::Catalog,
        run,
    )
};

fn run(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let args = Args::new("create", request.body.as_ref());
    create(database, context.database_name(), &args, None)?;
    Ok(Document::new())
}

/// Runs a `create` on the database `db`. Clients know the new collection by the UUID `uuid` if it is given.
pub(crate) fn create(
    database: &Database,
    db: &str,
    args: &Args<'_>,
    uuid: Option<[u8; 16]>,
) -> Result<()> {
    let namespace = Namespace::new(db, args.required_string("create")?)?;
    let creation = Creation {
        database,
        args,
        body: args.document_ref(),
        namespace,
        uuid,
    };
    let catalog = database.catalog();
    if catalog.is_of_transaction() && catalog.get(&creation.namespace).is_some() {
        return Err(creation.exists());
    }
    // Another command created the same collection meanwhile.
    match creation.create() {
        Err(error) if error.code == ErrorCode::NamespaceExists => creation.create(),
        done => done,
    }
}

/// A `create` in execution.
struct Creation<'a> {
    database: &'a Database,
    args: &'a Args<'a>,
    body: DocRef<'a>,
    namespace: Namespace,
    /// The UUID that clients are to see.
    uuid: Option<[u8; 16]>,
}

impl Creation<'_> {
    fn create(&self) -> Result<()> {
        let is_buckets = self.namespace.timeseries_view().is_some();
        if self.args.document("rollup")?.is_some() {
            return self.create_rollup();
        }
        let timeseries = self.args.document("timeseries")?;
        let is_view = !self.args.value("viewOn").is_missing() || timeseries.is_some();
        if is_view && !is_buckets && self.uuid.is_some() {
            return Err(Error::invalid_options(format!(
                "{} is a view: views have no UUID",
                self.namespace
            )));
        }
        match (timeseries, self.args.string("viewOn")?) {
            (Some(timeseries), _) if is_buckets => self.create_buckets(timeseries),
            (Some(timeseries), _) => self.create_timeseries(timeseries),
            (None, _) if is_buckets => Err(Error::new(
                ErrorCode::IllegalOperation,
                format!(
                    "the name {} is for the buckets of time-series collections",
                    self.namespace.collection
                ),
            )),
            (None, _) if self.namespace.is_reserved() => Err(Error::new(
                ErrorCode::InvalidNamespace,
                format!(
                    "cannot create a collection in the reserved namespace {}",
                    self.namespace
                ),
            )),
            (None, Some(view_on)) => self.create_view(view_on),
            (None, None) if self.args.array("pipeline")?.is_some() => Err(Error::invalid_options(
                "'pipeline' requires 'viewOn' to be specified",
            )),
            (None, None) => self.create_ordinary(),
        }
    }

    /// Returns the first of `names` that is set. Drivers send `capped: false`, which sets nothing.
    fn given<'n>(&self, names: &[&'n str]) -> Option<&'n str> {
        let asks = |name: &&&str| match self.body.get(name) {
            ValueRef::Missing => false,
            ValueRef::Bool(false) => **name == "clusteredIndex",
            _ => true,
        };
        names.iter().find(asks).copied()
    }

    /// Stores the new collection.
    fn store(&self, options: Document, timeseries: Option<TimeseriesOptions>) -> Result<()> {
        let own = self.database.services().ids.uuid();
        let (catalog, namespace) = (self.database.catalog(), self.namespace.clone());
        match self.uuid {
            None => catalog.create_collection(namespace, own, options, timeseries)?,
            Some(uuid) => catalog.create_with_uuid(namespace, (own, uuid), options, timeseries)?,
        };
        Ok(())
    }

    /// True if an existing collection has the UUID that clients are to see.
    fn has_uuid(&self, known: &Collection) -> bool {
        self.uuid.is_none_or(|uuid| uuid == known.shown_uuid)
    }

    /// Error 48.
    fn exists(&self) -> Error {
        Error::new(
            ErrorCode::NamespaceExists,
            format!("Collection {} already exists.", self.namespace),
        )
    }
}

//! `create`: ordinary collections, time-series collections and their bare buckets, views.
//!
//! Creating a collection that exists with the same options succeeds and changes nothing; any other use of an
//! existing name is error 48. The options of each kind are checked in its own file.

mod buckets;
mod clustered;
mod options;
mod ordinary;
mod timeseries;
mod view;

use nilometer_bson::{DocRef, Document, ValueRef};

use crate::args::Args;
use crate::catalog::Namespace;
use crate::commands::security::authorization::rules;
use crate::commands::{Access, Authorization, CommandContext, CommandSpec, Fields};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::operation::Request;

pub(super) use options::{check_expire_after, refuse_images};
pub(super) use view::{check_graph, parse_pipeline};

pub(crate) const SPEC: CommandSpec = CommandSpec {
    access: Access::Write,
    write_concern: true,
    in_api_v1: true,
    fields: Fields::Only(&[
        "timeseries",
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
    ]),
    ..CommandSpec::new(
        "create",
        "Creates a collection, a time-series collection or a view.",
        Authorization::ByRule(rules::create),
        run,
    )
};

fn run(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let body = request.body.as_ref();
    let args = Args::new("create", body);
    let name = args.required_string("create")?;
    let namespace = Namespace::new(context.database_name(), name)?;
    let creation = Creation {
        database,
        args: &args,
        body,
        namespace,
    };
    // Another command created the same collection meanwhile.
    match creation.create() {
        Err(error) if error.code == ErrorCode::NamespaceExists => creation.create()?,
        done => done?,
    }
    Ok(Document::new())
}

/// A `create` in execution.
struct Creation<'a> {
    database: &'a Database,
    args: &'a Args<'a>,
    body: DocRef<'a>,
    namespace: Namespace,
}

impl Creation<'_> {
    fn create(&self) -> Result<()> {
        let is_buckets = self.namespace.timeseries_view().is_some();
        let timeseries = self.args.document("timeseries")?;
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

    /// Error 48.
    fn exists(&self) -> Error {
        Error::new(
            ErrorCode::NamespaceExists,
            format!("Collection {} already exists.", self.namespace),
        )
    }
}

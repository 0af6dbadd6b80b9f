//! `validateDBMetadata`: the stored definitions that the stable API would refuse.
//!
//! Version 1 is the only one, and nothing in it is deprecated. So there are errors for `strict: true` alone: indexes
//! outside version 1, and views with a stage outside it. Filters, as in validators, have nothing outside it.

use nilometer_bson::{Document, Value, doc};

use crate::args::Args;
use crate::catalog::{self, CatalogEntry, Collection, Namespace};
use crate::commands::security::authorization::rules;
use crate::commands::{
    Access, Authorization, CommandContext, CommandSpec, Fields, OnRouter, stable_api,
};
use crate::database::Database;
use crate::database::indexes::{IndexForm, listed_indexes};
use crate::error::{Error, ErrorCode, Result};
use crate::operation::Request;

pub(crate) const SPEC: CommandSpec = CommandSpec {
    access: Access::Read,
    fields: Fields::Only(&["apiParameters", "db", "collection"]),
    ..CommandSpec::new(
        "validateDBMetadata",
        "Checks stored definitions against the stable API.",
        Authorization::ByRule(rules::validate_metadata),
        OnRouter::Refused,
        run,
    )
};

/// Bytes of the errors in a reply; beyond it `hasMoreErrors` is true.
const ERRORS_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Databases of the server. Privileges on all databases leave them out.
const OWN_DATABASES: [&str; 2] = ["config", "local"];

fn run(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let args = Args::new("validateDBMetadata", request.body.as_ref());
    let is_strict = is_strict(&args)?;
    let (db, collection) = (args.string("db")?, args.string("collection")?);
    let databases = match db {
        Some(db) => {
            catalog::check_database_name(db)?;
            vec![db.to_owned()]
        }
        None => {
            let mut all = database.catalog().databases();
            all.retain(|name| !OWN_DATABASES.contains(&name.as_str()));
            all
        }
    };
    let mut errors = Errors::default();
    for db in databases {
        for (namespace, entry) in entries(database, &db, collection) {
            context.operation.check_interrupt()?;
            if is_strict {
                check(database, &namespace, &entry, &mut errors);
            }
        }
    }
    if let (Some(db), Some(collection)) = (db, collection)
        && entries(database, db, Some(collection)).is_empty()
    {
        return Err(Error::new(
            ErrorCode::NamespaceNotFound,
            format!("Collection {db}.{collection} not found"),
        ));
    }
    Ok(doc! {"apiVersionErrors": errors.documents, "hasMoreErrors": errors.has_more})
}

/// Reads `apiParameters`; true if errors of `apiStrict` are to be reported.
fn is_strict(args: &Args<'_>) -> Result<bool> {
    let known = ["version", "strict", "deprecationErrors"];
    let Some(api) = args.nested("apiParameters", &known)? else {
        return Err(args.missing("apiParameters"));
    };
    if api.required_string("version")? != "1" {
        return Err(Error::new(
            ErrorCode::APIVersionError,
            "API version must be \"1\"",
        ));
    }
    let required = |name| api.boolean(name)?.ok_or_else(|| api.missing(name));
    required("deprecationErrors")?;
    required("strict")
}

/// Returns the collections and views of a database: the one of that name, or all but those of the server.
fn entries(
    database: &Database,
    db: &str,
    collection: Option<&str>,
) -> Vec<(Namespace, CatalogEntry)> {
    let mut entries = database.catalog().list(db);
    entries.retain(|(namespace, _)| match collection {
        Some(name) => namespace.collection == name,
        None => !namespace.is_system(),
    });
    entries
}

/// The errors found.
#[derive(Default)]
struct Errors {
    documents: Vec<Value>,
    bytes: usize,
    has_more: bool,
}

impl Errors {
    fn add(&mut self, namespace: &Namespace, error: &Error) {
        let document = doc! {
            "ns": namespace.to_string(),
            "code": error.code.0,
            "codeName": error.code.name(),
            "errmsg": error.message.as_str(),
        };
        let bytes = self.bytes + document.as_bytes().len();
        if bytes > ERRORS_BYTES_MAX {
            self.has_more = true;
            return;
        }
        self.bytes = bytes;
        self.documents.push(document.into());
    }
}

fn check(database: &Database, namespace: &Namespace, entry: &CatalogEntry, errors: &mut Errors) {
    match entry {
        CatalogEntry::Collection(found) => indexes(namespace, found, IndexForm::Stored, errors),
        CatalogEntry::View(view) => {
            // The indexes of a time series are those on its buckets.
            if let Some(buckets) = database.catalog().timeseries(namespace) {
                return indexes(namespace, &buckets, IndexForm::User, errors);
            }
            let stages: Vec<Value> = view.pipeline.iter().cloned().map(Value::from).collect();
            let stages = Value::from(stages);
            if let Err(error) = stable_api::check_pipeline(stages.as_ref()) {
                errors.add(namespace, &error);
            }
        }
    }
}

fn indexes(namespace: &Namespace, collection: &Collection, form: IndexForm, errors: &mut Errors) {
    for index in listed_indexes(collection, form) {
        let spec = index.spec.to_document();
        if stable_api::check_index(spec.as_ref()).is_err() {
            let name = spec.get("name").as_str().unwrap_or("");
            let error = Error::new(
                ErrorCode::APIStrictError,
                format!("The index with name {name} is not allowed in API version 1."),
            );
            errors.add(namespace, &error);
        }
    }
}

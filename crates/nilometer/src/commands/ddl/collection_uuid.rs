//! `collectionUUID`: the caller checks that a name still means the collection it knows.
//!
//! A command with another UUID fails with code 361, whose fields tell the expected name and the actual one.
//! Views, with those of time-series collections, have no UUID, so none matches.

use nilometer_bson::{Binary, DocumentBuilder, Value, ValueRef};

use crate::args::Args;
use crate::catalog::{CatalogEntry, Namespace};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};

/// The name of the option.
pub(crate) const NAME: &str = "collectionUUID";

/// The binary subtype of a UUID.
const UUID_SUBTYPE: u8 = 4;

/// Returns a UUID from a command.
pub(crate) fn uuid(args: &Args<'_>, name: &str) -> Result<Option<[u8; 16]>> {
    match args.value(name) {
        ValueRef::Missing | ValueRef::Null => Ok(None),
        ValueRef::Binary {
            subtype: UUID_SUBTYPE,
            bytes,
        } => match bytes.try_into() {
            Ok(uuid) => Ok(Some(uuid)),
            Err(_) => Err(Error::new(
                ErrorCode::InvalidUUID,
                format!("the UUID in '{name}' must have 16 bytes"),
            )),
        },
        other => Err(args.wrong_type(name, other, "binData (UUID)")),
    }
}

/// Fails unless `namespace` has the UUID in the command, if there is one.
pub(crate) fn check(database: &Database, args: &Args<'_>, namespace: &Namespace) -> Result<()> {
    let Some(given) = uuid(args, NAME)? else {
        return Ok(());
    };
    let catalog = database.catalog();
    if let Some(CatalogEntry::Collection(found)) = catalog.get(namespace)
        && found.shown_uuid == given
    {
        return Ok(());
    }
    let actual = catalog
        .by_shown_uuid(given)
        .filter(|c| c.namespace.database == namespace.database)
        .map(|c| c.namespace.collection.clone());
    let mut details = DocumentBuilder::new();
    details.append("db", namespace.database.as_str());
    details.append(
        NAME,
        Value::Binary(Binary {
            subtype: UUID_SUBTYPE,
            bytes: given.as_slice().into(),
        }),
    );
    details.append("expectedCollection", namespace.collection.as_str());
    details.append("actualCollection", actual.map_or(Value::Null, Value::from));
    Err(Error::new(
        ErrorCode::CollectionUUIDMismatch,
        "Collection UUID does not match that specified",
    )
    .with_details(details.finish()))
}

/// The same check for a command that reads `collection`.
pub(crate) fn check_read(
    stored: &Database,
    args: &Args<'_>,
    database: &str,
    collection: &str,
) -> Result<()> {
    let namespace = Namespace {
        database: database.to_owned(),
        collection: collection.to_owned(),
    };
    check(stored, args, &namespace)
}

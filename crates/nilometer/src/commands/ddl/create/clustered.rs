//! `clusteredIndex`: an ordinary collection with its documents stored in the order of `_id`.

use nilometer_bson::{DocRef, Document, ValueRef, doc};

use crate::args::Args;
use crate::error::{Error, ErrorCode, Result, location};

const INDEX_VERSION: i64 = 2;

/// Returns the stored definition of a clustered index, with its version and a name.
pub(super) fn checked(index: DocRef<'_>) -> Result<Document> {
    let args = Args::new("create.clusteredIndex", index);
    args.check_names(&["v", "key", "name", "unique"])?;
    let key = args.required_document("key")?;
    let mut parts = key.iter();
    let is_id = parts
        .next()
        .is_some_and(|part| part.name() == "_id" && part.value().as_exact_i64() == Some(1))
        && parts.next().is_none();
    if !is_id {
        return Err(invalid(
            "The clusteredIndex option is only supported for key: {_id: 1}",
        ));
    }
    match args.boolean("unique")? {
        None => return Err(args.missing("unique")),
        Some(true) => {}
        Some(false) => {
            return Err(Error::location(
                location::CLUSTERED_INDEX_NOT_UNIQUE,
                "The clusteredIndex option requires unique: true to be specified",
            ));
        }
    }
    match args.value("v") {
        ValueRef::Missing => {}
        version if version.as_exact_i64() == Some(INDEX_VERSION) => {}
        _ => return Err(invalid("The clusteredIndex option is of version 2")),
    }
    let name = match args.string("name")? {
        None => "_id_",
        Some("") => return Err(invalid("The index name cannot be empty")),
        Some("*") => return Err(Error::bad_value("The index name '*' is not valid.")),
        Some(name) => name,
    };
    Ok(doc! { "v": 2, "key": doc! { "_id": 1 }, "name": name, "unique": true })
}

fn invalid(text: &str) -> Error {
    Error::new(ErrorCode::InvalidIndexSpecificationOption, text)
}

//! `renameCollection`, within a database or to another one.
//!
//! Only the name changes: documents, indexes and the UUID stay, and nothing is copied. Of the system's
//! collections only buckets may be renamed, and only to bucket names; their view stays behind without
//! buckets.

use nilometer_bson::{Document, ValueRef};

use super::collection_uuid;
use super::drop::{end_cursors, forget};
use crate::args::Args;
use crate::catalog::{CatalogEntry, Namespace};
use crate::commands::security::authorization::rules;
use crate::commands::{Access, Authorization, CommandContext, CommandSpec, Fields};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::operation::Request;

pub(crate) const SPEC: CommandSpec = CommandSpec {
    access: Access::Write,
    write_concern: true,
    admin_only: true,
    fields: Fields::Only(&["to", "dropTarget", "stayTemp", collection_uuid::NAME]),
    ..CommandSpec::new(
        "renameCollection",
        "Renames a collection.",
        Authorization::ByRule(rules::rename_collection),
        run,
    )
};

fn run(database: &Database, _: &mut CommandContext<'_>, request: &Request) -> Result<Document> {
    let args = Args::new("renameCollection", request.body.as_ref());
    let from = whole_name(args.required_string("renameCollection")?)?;
    let to = whole_name(args.required_string("to")?)?;
    args.boolean("stayTemp")?;
    // Either any collection of the name, or only the one with this UUID.
    let (drop_target, only) = match args.value("dropTarget") {
        ValueRef::Binary { .. } => (true, collection_uuid::uuid(&args, "dropTarget")?),
        _ => (args.lenient_boolean("dropTarget")?.unwrap_or(false), None),
    };
    collection_uuid::check(database, &args, &from)?;
    let catalog = database.catalog();
    match catalog.get(&from) {
        Some(CatalogEntry::View(_)) => {
            return Err(Error::new(
                ErrorCode::CommandNotSupportedOnView,
                format!("cannot rename view: {from}"),
            ));
        }
        Some(CatalogEntry::Collection(_)) => {}
        None => {
            return Err(Error::new(
                ErrorCode::NamespaceNotFound,
                format!("Source collection {from} does not exist"),
            ));
        }
    }
    if from == to {
        return Err(illegal("Can't rename a collection to itself"));
    }
    let are_buckets = |n: &Namespace| n.timeseries_view().is_some();
    if are_buckets(&from) != are_buckets(&to) {
        return Err(illegal(
            "buckets of time-series collections can only be renamed to such buckets",
        ));
    }
    if !are_buckets(&from) && (from.is_system() || to.is_system()) {
        return Err(illegal("cannot rename from or to a system collection"));
    }
    let dropped = catalog.rename(&from, &to, &|there| match only {
        Some(uuid) if uuid != there.uuid => Err(Error::new(
            ErrorCode::CommandFailed,
            format!("the UUID in 'dropTarget' is not that of {to}"),
        )),
        _ => Ok(drop_target),
    })?;
    if let Some(dropped) = dropped {
        forget(database, &dropped);
    }
    database.services().top.forget(&from.to_string());
    end_cursors(database, &[from, to]);
    Ok(Document::new())
}

fn whole_name(name: &str) -> Result<Namespace> {
    match name.split_once('.') {
        Some((database, collection)) => Namespace::new(database, collection),
        None => Err(Error::new(
            ErrorCode::InvalidNamespace,
            format!("Invalid namespace specified '{name}'"),
        )),
    }
}

fn illegal(message: &str) -> Error {
    Error::new(ErrorCode::IllegalOperation, message)
}

#[cfg(test)]
mod tests {
    use crate::Database;
    use bson::{DateTime, doc};

    #[test]
    fn indexes_flags_and_documents_go_along_and_outlive_closing() {
        let folder = std::env::temp_dir().join(format!("nilometer-rename-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        let run = |database: &Database, name: &str, command: bson::Document| {
            database.command(name, &command).unwrap()
        };
        let database = Database::open(&folder).unwrap();
        let plain = database.collection::<bson::Document>("db", "plain");
        plain
            .insert_many((0..10).map(|i| doc! { "_id": i, "a": i }))
            .unwrap();
        let index = doc! { "key": { "a": 1 }, "name": "a_1", "unique": true };
        run(
            &database,
            "db",
            doc! { "createIndexes": "plain", "indexes": [index] },
        );
        let ts = database.collection::<bson::Document>("db", "ts");
        ts.create_timeseries("t", Some("m")).unwrap();
        // This flag of the collection must not be lost.
        let far = DateTime::from_millis(-1_000_000_000_000);
        ts.insert_many([doc! { "t": far, "m": 1 }]).unwrap();
        for (from, to) in [
            ("db.plain", "other.moved"),
            ("db.system.buckets.ts", "other.system.buckets.ts"),
        ] {
            run(
                &database,
                "admin",
                doc! { "renameCollection": from, "to": to },
            );
        }
        database.close().unwrap();
        drop(database);

        let database = Database::open(&folder).unwrap();
        let moved = database.collection::<bson::Document>("other", "moved");
        assert_eq!(moved.count(doc! {}).unwrap(), 10);
        let taken = moved
            .insert_many([doc! { "_id": 100, "a": 5 }])
            .unwrap_err();
        assert_eq!(taken.code.0, 11000);
        let options = doc! { "timeField": "t", "metaField": "m" };
        run(
            &database,
            "other",
            doc! { "create": "ts", "timeseries": options },
        );
        let ts = database.collection::<bson::Document>("other", "ts");
        assert_eq!(
            ts.count(doc! { "t": { "$lt": DateTime::from_millis(0) } })
                .unwrap(),
            1
        );
        let reply = run(&database, "other", doc! { "validate": "moved" });
        assert!(reply.get_bool("valid").unwrap(), "{reply}");
        drop(database);
        let _ = std::fs::remove_dir_all(&folder);
    }
}

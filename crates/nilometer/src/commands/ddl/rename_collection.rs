//! `renameCollection`, within a database or to another one.
//!
//! Only the name changes: documents, indexes and the UUID stay, and nothing is copied. A time series is renamed with
//! its buckets, as MongoDB 8.3 does. Of the system's collections only buckets may be renamed by their own name, and only
//! to bucket names; their view stays behind without buckets.

use nilometer_bson::{Document, ValueRef};

use super::collection_uuid;
use super::drop::{end_cursors, forget};
use crate::args::Args;
use crate::catalog::{CatalogEntry, Collection, Namespace};
use crate::commands::security::authorization::rules;
use crate::commands::{Access, Authorization, CommandContext, CommandSpec, Fields, OnRouter};
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
        OnRouter::Catalog,
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
    for name in [&from, &to] {
        catalog.check_is_not_oplog(name, "rename")?;
        let shown = name.timeseries_view();
        catalog.check_has_no_rollups(shown.as_ref().unwrap_or(name), "rename")?;
    }
    let is_series = catalog.timeseries(&from).is_some();
    match catalog.get(&from) {
        Some(CatalogEntry::View(_)) if is_series => {}
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
    let replaces = |there: &Collection| match only {
        Some(uuid) if uuid != there.shown_uuid => Err(Error::new(
            ErrorCode::CommandFailed,
            format!("the UUID in 'dropTarget' is not that of {to}"),
        )),
        _ => Ok(drop_target),
    };
    let dropped = match is_series {
        true => catalog.rename_timeseries(&from, &to, &replaces)?,
        false => catalog.rename(&from, &to, &replaces)?,
    };
    if let Some(dropped) = dropped {
        forget(database, &dropped);
    }
    database.services().top.forget(&from.to_string());
    let filters = database.queries().plans.filters();
    filters.clear(&from.to_string(), None);
    end_cursors(database, &[from.buckets(), to.buckets(), from, to]);
    Ok(Document::new())
}

pub(in crate::commands) fn whole_name(name: &str) -> Result<Namespace> {
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
    fn a_time_series_is_renamed_with_its_buckets() {
        let folder = std::env::temp_dir().join(format!("nilometer-series-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        let database = Database::open(&folder).unwrap();
        let rename = |from: &str, to: &str, drop: bool| {
            let command = doc! { "renameCollection": from, "to": to, "dropTarget": drop };
            database.command("admin", &command).map_err(|e| e.code.0)
        };
        for (name, count) in [("a", 5), ("b", 3)] {
            let ts = database.collection::<bson::Document>("db", name);
            ts.create_timeseries("t", Some("m")).unwrap();
            let measurement = |i| doc! { "t": DateTime::from_millis(i), "m": i, "of": name };
            ts.insert_many((0..count).map(measurement)).unwrap();
        }
        let view = doc! { "create": "view", "viewOn": "a", "pipeline": [] };
        database.command("db", &view).unwrap();
        assert_eq!(rename("db.a", "db.b", false).unwrap_err(), 48);
        assert_eq!(rename("db.view", "db.c", false).unwrap_err(), 166);
        assert_eq!(rename("db.a", "db.system.x", false).unwrap_err(), 20);
        assert_eq!(rename("db.a", "DB.a", false).unwrap_err(), 13297);
        assert_eq!(
            rename("db.a", "db.system.buckets.x", false).unwrap_err(),
            20
        );
        rename("db.a", "db.b", true).unwrap();
        rename("db.b", "other.c", false).unwrap();
        let plain = database.collection::<bson::Document>("db", "plain");
        plain.insert_many([doc! { "_id": 1 }]).unwrap();
        rename("other.c", "db.plain", true).unwrap();
        database.close().unwrap();
        drop(database);

        let database = Database::open(&folder).unwrap();
        let ts = database.collection::<bson::Document>("db", "plain");
        assert_eq!(ts.count(doc! { "of": "a" }).unwrap(), 5);
        let raw = database.collection::<bson::Document>("db", "system.buckets.plain");
        assert_eq!(raw.count(doc! {}).unwrap(), 5);
        for gone in ["a", "b", "system.buckets.a", "system.buckets.b"] {
            let left = database.collection::<bson::Document>("db", gone);
            assert_eq!(left.count(doc! {}).unwrap(), 0, "{gone}");
        }
        let listed = doc! { "listCollections": 1, "nameOnly": true };
        let reply = database.command("db", &listed).unwrap();
        let listed = reply
            .get_document("cursor")
            .unwrap()
            .get_array("firstBatch")
            .unwrap();
        // The series, its buckets, the view that reads nothing now, and the list of views.
        assert_eq!(listed.len(), 4, "{reply}");
        ts.insert_many([doc! { "t": DateTime::from_millis(9), "m": 9 }])
            .unwrap();
        assert_eq!(ts.count(doc! {}).unwrap(), 6);
        let reply = database
            .command("db", &doc! { "validate": "plain" })
            .unwrap();
        assert!(reply.get_bool("valid").unwrap(), "{reply}");
        drop(database);
        let _ = std::fs::remove_dir_all(&folder);
    }

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

//! `validate`: checks that stored data is consistent.

use std::sync::Arc;

use nilometer_bson::{Array, Document, Value, doc};

use crate::args::Args;
use crate::auth::Action;
use crate::catalog::{CatalogEntry, Collection, Namespace};
use crate::commands::generic::RAW_DATA;
use crate::commands::{Access, Authorization, CommandContext, CommandSpec, Fields, OnRouter};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::operation::Request;
use crate::validation::Validation;
use crate::write::RebuildCounts;

pub(crate) const SPEC: CommandSpec = CommandSpec {
    access: Access::Read,
    takes_memory: true,
    fields: Fields::Only(&[
        "full",
        "scandata",
        "repair",
        "metadata",
        "background",
        "checkBSONConformance",
        RAW_DATA,
    ]),
    ..CommandSpec::new(
        "validate",
        "Checks a collection for damage.",
        Authorization::OnCollection(&[Action::Validate]),
        OnRouter::Own,
        run,
    )
};

/// The warning about documents that violate the validator.
const NON_COMPLIANT: &str = "Detected one or more documents not compliant with the collection's \
                             schema. Check logs for log id 5363500.";

fn run(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let args = Args::new("validate", request.body.as_ref());
    let namespace = Namespace::new(context.database_name(), args.required_string("validate")?)?;
    // Every check always runs.
    for flag in [
        "full",
        "scandata",
        "metadata",
        "background",
        "checkBSONConformance",
    ] {
        args.boolean(flag)?;
    }
    let repair = args.boolean("repair")?.unwrap_or(false);
    let interrupt = || context.operation.check_interrupt();
    if let Some(rollup) = database.catalog().rollup(&namespace) {
        if repair {
            return Err(Error::new(
                ErrorCode::CommandNotSupported,
                "'repair' is for ordinary collections: drop the indexes of a rollup and create them again",
            ));
        }
        let found = database
            .rollups()
            .validate(&namespace, &rollup, &interrupt)?;
        return Ok(reply(&namespace, &found, None));
    }
    let collection = collection(database, &namespace)?;
    let is_bucketed = collection.timeseries.is_some();
    if repair && is_bucketed {
        return Err(Error::new(
            ErrorCode::CommandNotSupported,
            "'repair' is for ordinary collections: damage of buckets is reported, not changed",
        ));
    }
    let look = || database.validate(&collection, &interrupt);
    let mut found = look()?;
    let mut rebuilt = None;
    if repair && found.invalid > 0 {
        let records = database.records();
        rebuilt = Some(records.rebuild_indexes(&collection, &interrupt)?);
        found = look()?;
    }
    if let Some(miscount) = found.miscount {
        database.timeseries().correct_count(&collection, miscount)?;
    }
    Ok(reply(&collection.namespace, &found, rebuilt))
}

/// The data to check.
fn collection(database: &Database, namespace: &Namespace) -> Result<Arc<Collection>> {
    let catalog = database.catalog();
    match (catalog.timeseries(namespace), catalog.get(namespace)) {
        (Some(buckets), _) => Ok(buckets),
        (None, Some(CatalogEntry::Collection(found))) => Ok(found),
        (None, Some(CatalogEntry::View(_))) => Err(Error::new(
            ErrorCode::CommandNotSupportedOnView,
            format!("Namespace {namespace} is a view, not a collection"),
        )),
        (None, None) => Err(Error::new(
            ErrorCode::NamespaceNotFound,
            format!("Collection '{namespace}' does not exist to validate."),
        )),
    }
}

fn reply(namespace: &Namespace, found: &Validation, rebuilt: Option<RebuildCounts>) -> Document {
    let count = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    let errors = found.problems.iter().map(Value::from).collect::<Array>();
    let mut keys = nilometer_bson::DocumentBuilder::new();
    for (name, entries) in &found.keys_per_index {
        keys.append(name, count(*entries));
    }
    let non_compliant = (found.non_compliant > 0).then(|| NON_COMPLIANT.to_owned());
    let miscount = found
        .miscount
        .map(|miscount| format!("{miscount}: corrected"));
    let warnings = non_compliant.into_iter().chain(miscount);
    let reply = doc! {
        "ns": namespace.to_string(),
        "nInvalidDocuments": count(found.invalid),
        "nNonCompliantDocuments": count(found.non_compliant),
        "nrecords": count(found.checked),
        "nIndexes": i32::try_from(found.keys_per_index.len()).unwrap_or(i32::MAX),
        "keysPerIndex": keys.finish(),
        "valid": found.invalid == 0,
        "repaired": rebuilt.is_some(),
        "warnings": warnings.map(Value::from).collect::<Array>(),
        "errors": errors,
    };
    let Some(rebuilt) = rebuilt else {
        return reply;
    };
    let mut out = nilometer_bson::DocumentBuilder::new();
    for element in reply.iter() {
        out.append_element(element);
    }
    out.append("numRemovedExtraIndexEntries", count(rebuilt.removed));
    out.append("numInsertedMissingIndexEntries", count(rebuilt.added));
    out.finish()
}

#[cfg(test)]
mod tests {
    use crate::Database;
    use bson::{DateTime, doc};

    #[test]
    fn what_is_written_validates_and_what_is_wrong_is_named() {
        let database = Database::in_memory().unwrap();
        let ts = database.collection::<bson::Document>("db", "ts");
        ts.create_timeseries("t", Some("m")).unwrap();
        let at = |second: i64| DateTime::from_millis(second * 1000);
        ts.insert_many((0..50).map(|i| doc! { "t": at(i), "m": 1, "v": i, "s": "x" }))
            .unwrap();
        ts.insert_many(
            (0..50)
                .rev()
                .map(|i| doc! { "t": at(i), "m": 2, "v": { "a": i } }),
        )
        .unwrap();
        let plain = database.collection::<bson::Document>("db", "plain");
        plain
            .insert_many((0..10).map(|i| doc! { "_id": i }))
            .unwrap();
        let validate = |name: &str| database.command("db", &doc! { "validate": name }).unwrap();
        for (name, records) in [("ts", 2), ("system.buckets.ts", 2), ("plain", 10)] {
            let reply = validate(name);
            assert!(reply.get_bool("valid").unwrap(), "{reply}");
            assert_eq!(reply.get_i64("nrecords").unwrap(), records);
        }
        // A copy with wrong extremes.
        let buckets = database.collection::<bson::Document>("db", "system.buckets.ts");
        let mut bucket = buckets
            .find(doc! { "meta": 1 })
            .unwrap()
            .next()
            .unwrap()
            .unwrap();
        let control = bucket.get_document_mut("control").unwrap();
        control
            .get_document_mut("max")
            .unwrap()
            .insert("v", 1000i64);
        let id = bson::oid::ObjectId::parse_str("000000000000000000000001").unwrap();
        bucket.insert("_id", id);
        buckets.insert_one(bucket).unwrap();
        let reply = validate("ts");
        assert!(!reply.get_bool("valid").unwrap());
        let errors = reply.get_array("errors").unwrap();
        assert_eq!(errors.len(), 1);
        assert!(
            errors[0].as_str().unwrap().contains("control.max.v"),
            "{errors:?}"
        );
    }

    /// A count that is wrong shows that the counters answer, and `validate` corrects it; without them buckets are read.
    #[test]
    fn measurements_are_counted_by_counters_that_validate_corrects() {
        let database = Database::in_memory().unwrap();
        let ts = database.collection::<bson::Document>("db", "ts");
        ts.create_timeseries("t", Some("m")).unwrap();
        let at = |second: i64| DateTime::from_millis(second * 1000);
        ts.insert_many((0..50).map(|i| doc! { "t": at(i), "m": i % 7 }))
            .unwrap();
        let command = |command| database.command("db", &command).unwrap();
        let counts = || {
            let counted = command(doc! { "count": "ts" }).get_i32("n").unwrap();
            let stages = [
                doc! { "$match": {} },
                doc! { "$group": { "_id": 1, "n": { "$sum": 1 } } },
            ];
            let grouped =
                command(doc! { "aggregate": "ts", "pipeline": stages.to_vec(), "cursor": {} });
            let first = grouped.get_document("cursor").unwrap();
            let first = first.get_array("firstBatch").unwrap();
            let grouped = first.first().map_or(0, |group| {
                group.as_document().unwrap().get_i32("n").unwrap()
            });
            (counted, grouped)
        };
        assert_eq!(counts(), (50, 50));
        let namespace = crate::catalog::Namespace::new("db", "ts").unwrap();
        let uuid = database.catalog().timeseries(&namespace).unwrap().uuid;
        let mut batch = nilometer_storage::WriteBatch::new();
        database.catalog().put_measurement_base(&mut batch, uuid, 7);
        let buffered = nilometer_storage::Durability::Buffered;
        database.engine().commit(batch, buffered).unwrap();
        assert_eq!(counts(), (57, 57));
        let reply = command(doc! { "validate": "ts" });
        assert!(reply.get_bool("valid").unwrap(), "{reply}");
        let warnings = reply.get_array("warnings").unwrap();
        let text = "57 measurements were counted; there are 50: corrected";
        assert_eq!(warnings[0].as_str(), Some(text));
        assert_eq!(counts(), (50, 50));
        let reply = command(doc! { "validate": "ts" });
        assert!(reply.get_array("warnings").unwrap().is_empty());
        command(doc! { "delete": "ts", "deletes": [{ "q": { "m": 3 }, "limit": 0 }] });
        assert_eq!(counts(), (43, 43));

        // As in a directory of a version that did not count.
        database.catalog().remove_measurement_base(uuid).unwrap();
        assert_eq!(counts(), (43, 43));
        ts.insert_one(doc! { "t": at(0), "m": 3 }).unwrap();
        assert_eq!(counts(), (44, 44));
        let reply = command(doc! { "validate": "ts" });
        let warnings = reply.get_array("warnings").unwrap();
        let text = "measurements were not counted; there are 44: corrected";
        assert_eq!(warnings[0].as_str(), Some(text));
        ts.insert_one(doc! { "t": at(0), "m": 3 }).unwrap();
        assert_eq!(counts(), (45, 45));
        let reply = command(doc! { "validate": "ts" });
        assert!(reply.get_array("warnings").unwrap().is_empty());
    }
}

//! The privileges a pipeline needs, from its unparsed text, stage by stage.
//!
//! [`STAGES`] has an entry for every stage of the language (a test checks it); a stage without an entry is
//! refused.

use nilometer_bson::{DocRef, ValueRef};

use super::RequiredPrivileges;
use crate::auth::{Action, Target};

/// The needs of a stage.
#[derive(Clone, Copy, Debug)]
enum StageNeeds {
    /// Nothing beyond its input.
    Nothing,
    /// This action on the collection, instead of `find`.
    InsteadOnCollection(Action),
    /// These actions on the server, and none on the collection.
    InsteadOnCluster(&'static [Action]),
    /// Nothing, not even `find` on the collection.
    InsteadNothing,
    /// The right to read and watch the collection, the database, or all databases.
    Changes,
    /// The right to see other users' entries, if it requests them (`allUsers`, `users`).
    Own(Action),
    /// The right to read the collections in the fields `from`, `coll` and `pipeline`.
    Other,
    /// The needs of the pipelines in its fields.
    Facets,
    /// The right to replace the target collection.
    Out,
    /// The right to merge into the target collection.
    Merge,
}

/// Every stage, by name.
const STAGES: &[(&str, StageNeeds)] = &[
    ("$_internalUnpackBucket", StageNeeds::Nothing),
    ("$_unpackBucket", StageNeeds::Nothing),
    ("$addFields", StageNeeds::Nothing),
    ("$bucket", StageNeeds::Nothing),
    ("$bucketAuto", StageNeeds::Nothing),
    ("$changeStream", StageNeeds::Changes),
    ("$changeStreamSplitLargeEvent", StageNeeds::Nothing),
    (
        "$collStats",
        StageNeeds::InsteadOnCollection(Action::CollStats),
    ),
    ("$count", StageNeeds::Nothing),
    ("$currentOp", StageNeeds::Own(Action::Inprog)),
    ("$densify", StageNeeds::Nothing),
    ("$documents", StageNeeds::InsteadNothing),
    ("$facet", StageNeeds::Facets),
    ("$fill", StageNeeds::Nothing),
    ("$geoNear", StageNeeds::Nothing),
    ("$graphLookup", StageNeeds::Other),
    ("$group", StageNeeds::Nothing),
    (
        "$indexStats",
        StageNeeds::InsteadOnCollection(Action::IndexStats),
    ),
    ("$limit", StageNeeds::Nothing),
    (
        "$listCatalog",
        StageNeeds::InsteadOnCluster(&[Action::ListDatabases, Action::Inprog]),
    ),
    ("$listLocalSessions", StageNeeds::Own(Action::ListSessions)),
    (
        "$listSampledQueries",
        StageNeeds::InsteadOnCluster(&[Action::QueryStatsRead]),
    ),
    (
        "$listSearchIndexes",
        StageNeeds::InsteadOnCollection(Action::ListSearchIndexes),
    ),
    ("$listSessions", StageNeeds::Own(Action::ListSessions)),
    ("$lookup", StageNeeds::Other),
    ("$match", StageNeeds::Nothing),
    ("$merge", StageNeeds::Merge),
    ("$out", StageNeeds::Out),
    (
        "$planCacheStats",
        StageNeeds::InsteadOnCollection(Action::PlanCacheRead),
    ),
    ("$project", StageNeeds::Nothing),
    (
        "$querySettings",
        StageNeeds::InsteadOnCluster(&[Action::QueryStatsRead]),
    ),
    (
        "$queryStats",
        StageNeeds::InsteadOnCluster(&[Action::QueryStatsRead]),
    ),
    ("$redact", StageNeeds::Nothing),
    ("$replaceRoot", StageNeeds::Nothing),
    ("$replaceWith", StageNeeds::Nothing),
    ("$sample", StageNeeds::Nothing),
    ("$search", StageNeeds::Nothing),
    ("$searchMeta", StageNeeds::Nothing),
    ("$set", StageNeeds::Nothing),
    ("$setWindowFields", StageNeeds::Nothing),
    (
        "$shardedDataDistribution",
        StageNeeds::InsteadOnCluster(&[Action::ShardingState]),
    ),
    ("$skip", StageNeeds::Nothing),
    ("$sort", StageNeeds::Nothing),
    ("$sortByCount", StageNeeds::Nothing),
    ("$unionWith", StageNeeds::Other),
    ("$unset", StageNeeds::Nothing),
    ("$unwind", StageNeeds::Nothing),
    ("$vectorSearch", StageNeeds::Nothing),
];

fn asks_of(name: &str) -> Option<StageNeeds> {
    let at = STAGES
        .binary_search_by(|(known, _)| known.cmp(&name))
        .ok()?;
    STAGES.get(at).map(|(_, asks)| *asks)
}

/// Adds the needs of an `aggregate` on the database `db`.
pub(super) fn command(db: &str, body: DocRef<'_>, needed: &mut RequiredPrivileges) {
    let collection = body.iter().next().and_then(|e| e.value().as_str());
    let pipelines: Vec<_> = body.iter().filter(|e| e.name() == "pipeline").collect();
    for element in &pipelines {
        stages(db, collection, element.value(), needed);
    }
    if pipelines.is_empty() {
        read(db, collection, needed);
    }
    let bypass = body
        .iter()
        .find(|e| e.name() == "bypassDocumentValidation")
        .is_some_and(|e| !matches!(e.value(), ValueRef::Bool(false) | ValueRef::Null));
    if bypass {
        let written: Vec<Target> = needed
            .0
            .iter()
            .filter(|(_, actions)| actions.names().contains(&Action::Insert.name()))
            .map(|(target, _)| target.clone())
            .collect();
        for target in written {
            needed.add(target, &[Action::BypassDocumentValidation]);
        }
    }
}

fn read(db: &str, collection: Option<&str>, needed: &mut RequiredPrivileges) {
    if let Some(name) = collection {
        needed.add(Target::collection(db, name), &[Action::Find]);
    }
}

/// Adds the needs of the stages in `value`, which read `collection`; `None` if the input is checked
/// elsewhere.
pub(super) fn stages(
    db: &str,
    collection: Option<&str>,
    value: ValueRef<'_>,
    needed: &mut RequiredPrivileges,
) {
    let Some(array) = value.as_array() else {
        return read(db, collection, needed);
    };
    let mut reads = true;
    for (at, stage) in array.iter().enumerate() {
        for element in stage.as_document().into_iter().flatten() {
            let Some(asks) = asks_of(element.name()) else {
                // The handler refuses it.
                needed.add_everything();
                continue;
            };
            match asks {
                StageNeeds::Nothing => {}
                StageNeeds::InsteadOnCollection(action) => {
                    reads &= at != 0;
                    match collection {
                        Some(name) => needed.add(Target::collection(db, name), &[action]),
                        None => needed.add(Target::Database(db.to_owned()), &[action]),
                    }
                }
                StageNeeds::InsteadOnCluster(actions) => {
                    reads &= at != 0;
                    needed.add(Target::Cluster, actions);
                }
                StageNeeds::InsteadNothing => reads &= at != 0,
                StageNeeds::Changes => {
                    reads &= at != 0;
                    needed.add(watched(db, collection, element.value()), &WATCH);
                }
                StageNeeds::Own(action) => {
                    reads &= at != 0;
                    if sees_others(element.value()) {
                        needed.add(Target::Cluster, &[action]);
                    }
                }
                StageNeeds::Other => other(db, element.value(), needed),
                StageNeeds::Facets => {
                    for facet in element.value().as_document().into_iter().flatten() {
                        stages(db, None, facet.value(), needed);
                    }
                }
                StageNeeds::Out => {
                    let replace = [Action::Insert, Action::Remove];
                    written(db, element.value(), &replace, needed);
                }
                StageNeeds::Merge => merge(db, element.value(), needed),
            }
        }
    }
    if reads {
        read(db, collection, needed);
    }
}

/// What a stream of changes needs on what it watches.
const WATCH: [Action; 2] = [Action::Find, Action::ChangeStream];

/// Returns what a stream of changes watches.
fn watched(db: &str, collection: Option<&str>, options: ValueRef<'_>) -> Target {
    let options = options.as_document();
    let of_cluster = options.is_some_and(|options| {
        // The handler refuses other values.
        !matches!(
            options.get("allChangesForCluster"),
            ValueRef::Missing | ValueRef::Bool(false)
        )
    });
    match collection {
        _ if of_cluster => Target::Databases,
        Some(name) => Target::collection(db, name),
        None => Target::Database(db.to_owned()),
    }
}

/// True if users are named, or `allUsers` is present and not false.
fn sees_others(value: ValueRef<'_>) -> bool {
    let mut options = value.as_document().into_iter().flatten();
    options.any(|e| match e.name() {
        "allUsers" => !matches!(e.value(), ValueRef::Bool(false)),
        "users" => !e.value().as_array().is_some_and(|users| users.is_empty()),
        _ => false,
    })
}

/// `$lookup`, `$graphLookup` and `$unionWith`: another collection, and optionally a pipeline over it.
fn other(db: &str, value: ValueRef<'_>, needed: &mut RequiredPrivileges) {
    let Some(spec) = value.as_document() else {
        return read(db, value.as_str(), needed);
    };
    let named = |name: &str| spec.iter().filter(|e| e.name() == name).collect::<Vec<_>>();
    let mut collections: Vec<&str> = Vec::new();
    for element in named("from").into_iter().chain(named("coll")) {
        match element.value() {
            ValueRef::String(name) => collections.push(name),
            // The handler refuses other forms.
            _ => needed.add_everything(),
        }
    }
    let pipelines = named("pipeline");
    if pipelines.is_empty() {
        for name in collections {
            read(db, Some(name), needed);
        }
    } else if collections.is_empty() {
        for pipeline in pipelines {
            stages(db, None, pipeline.value(), needed);
        }
    } else {
        for name in collections {
            for pipeline in &pipelines {
                stages(db, Some(name), pipeline.value(), needed);
            }
        }
    }
}

/// Returns the target collection of a stage: `"coll"` or `{db, coll}`.
fn written(db: &str, value: ValueRef<'_>, actions: &[Action], needed: &mut RequiredPrivileges) {
    match value {
        ValueRef::String(name) => needed.add(Target::collection(db, name), actions),
        ValueRef::Document(target) => {
            let mut all = target.iter();
            let twice = |name: &str| target.iter().filter(|e| e.name() == name).count() > 1;
            if twice("db") || twice("coll") || all.next().is_none() {
                return needed.add_everything();
            }
            let db = target.get("db").as_str().unwrap_or(db);
            match target.get("coll").as_str() {
                Some(name) => needed.add(Target::collection(db, name), actions),
                None => needed.add_everything(),
            }
        }
        _ => needed.add_everything(),
    }
}

fn merge(db: &str, value: ValueRef<'_>, needed: &mut RequiredPrivileges) {
    // Either may happen, so both are needed.
    let join = [Action::Insert, Action::Update];
    match value {
        ValueRef::Document(spec) => {
            let mut found = false;
            for element in spec.iter().filter(|e| e.name() == "into") {
                found = true;
                written(db, element.value(), &join, needed);
            }
            if !found {
                needed.add_everything();
            }
        }
        other => written(db, other, &join, needed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::pipeline::STAGES as LANGUAGE;
    use nilometer_bson::{array, doc};

    #[test]
    fn every_stage_of_the_language_is_listed() {
        assert!(STAGES.is_sorted_by(|a, b| a.0 < b.0));
        for stage in LANGUAGE {
            assert!(asks_of(stage.name).is_some(), "{}", stage.name);
        }
        assert_eq!(STAGES.len(), LANGUAGE.len());
    }

    fn asked(command_document: nilometer_bson::Document) -> Vec<String> {
        let mut needed = RequiredPrivileges::default();
        command("d", command_document.as_ref(), &mut needed);
        let all = needed.0.iter().map(|(target, actions)| {
            let target = match target {
                Target::Cluster => "cluster".to_owned(),
                Target::Database(db) => db.clone(),
                Target::Collection(db, collection) => format!("{db}.{collection}"),
                Target::Databases => "databases".to_owned(),
                Target::Everything => return "everything".to_owned(),
            };
            format!("{target} {}", actions.names().join("+"))
        });
        all.collect()
    }

    #[test]
    fn what_pipelines_ask_for() {
        let over =
            |stages: nilometer_bson::Value| asked(doc! {"aggregate": "c", "pipeline": stages});
        assert_eq!(over(array![]), ["d.c find"]);
        assert_eq!(
            over(array![doc! {"$collStats": doc! {}}]),
            ["d.c collStats"]
        );
        let lookup = doc! {"$lookup": doc! {"from": "a", "pipeline": array![
            doc! {"$unionWith": "b"},
        ]}};
        assert_eq!(over(array![lookup]), ["d.b find", "d.a find", "d.c find"]);
        let twice = doc! {"$lookup": doc! {"from": "a", "from": "b"}};
        assert_eq!(over(array![twice]), ["d.a find", "d.b find", "d.c find"]);
        let facet = doc! {"$facet": doc! {"x": array![doc! {"$graphLookup": doc! {"from": "g"}}]}};
        assert_eq!(over(array![facet]), ["d.g find", "d.c find"]);
        let out = doc! {"$out": doc! {"db": "e", "coll": "o"}};
        assert_eq!(over(array![out]), ["e.o insert+remove", "d.c find"]);
        let merge = doc! {"$merge": doc! {"into": "m"}};
        assert_eq!(over(array![merge]), ["d.m insert+update", "d.c find"]);
        assert_eq!(over(array![doc! {"$new": 1}]), ["everything", "d.c find"]);
        let operations = |spec: nilometer_bson::Value| {
            let pipeline = array![doc! {"$currentOp": spec}];
            asked(doc! {"aggregate": 1, "pipeline": pipeline})
        };
        assert!(operations(doc! {}.into()).is_empty());
        assert!(operations(doc! {"allUsers": false, "idleCursors": true}.into()).is_empty());
        for others in [
            doc! {"allUsers": true},
            doc! {"allUsers": 1},
            doc! {"allUsers": false, "allUsers": true},
        ] {
            assert_eq!(operations(others.into()), ["cluster inprog"]);
        }
        let none = asked(doc! {"aggregate": 1, "pipeline": array![
            doc! {"$documents": array![]},
            doc! {"$lookup": doc! {"from": "a"}},
        ]});
        assert_eq!(none, ["d.a find"]);
        let inside = doc! {"$unionWith": doc! {"coll": "a", "pipeline": array![
            doc! {"$indexStats": doc! {}},
        ]}};
        assert_eq!(over(array![inside]), ["d.a indexStats", "d.c find"]);
    }
}

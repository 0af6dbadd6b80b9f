//! Users and roles as a dump contains them, and their return by a restore.

use nilometer_bson::{Array, Document, Value, ValueRef, array, doc};

use crate::support::Fixture;

fn is_ok(reply: &Document) -> bool {
    reply.get("ok").as_exact_i64() == Some(1)
}

fn batch(reply: &Document) -> Vec<Document> {
    let cursor = reply.get("cursor").as_document().expect("a cursor");
    let batch = cursor.get("firstBatch").as_array().expect("a batch");
    let documents = batch.iter().filter_map(|value| value.as_document());
    documents.map(|document| document.to_document()).collect()
}

fn names(reply: &Document, of: &str) -> Vec<String> {
    let name = |d: &Document| d.get(of).as_str().map(str::to_owned);
    batch(reply).iter().filter_map(name).collect()
}

fn all(fixture: &mut Fixture, collection: &str) -> Vec<Document> {
    batch(&fixture.reply_on("admin", doc! {"find": collection}))
}

fn with_users() -> Fixture {
    let mut fixture = Fixture::new();
    let role = doc! {
        "createRole": "watcher", "roles": array![],
        "privileges": array![doc! {
            "resource": doc! {"db": "test", "collection": "c"}, "actions": array!["find"],
        }],
    };
    assert!(is_ok(&fixture.reply(role)));
    for (db, user) in [("test", "a"), ("test", "b"), ("other", "a")] {
        let roles: Array = match db {
            "test" => [Value::from("watcher")].into_iter().collect(),
            _ => std::iter::empty::<Value>().collect(),
        };
        let create = doc! {"createUser": user, "pwd": "pencil", "roles": roles};
        assert!(is_ok(&fixture.reply_on(db, create)));
    }
    fixture
}

#[test]
fn admin_is_always_a_database_and_lists_users_roles_and_versions() {
    let mut fixture = Fixture::new();
    let databases = |fixture: &mut Fixture| {
        let reply = fixture.reply_on("admin", doc! {"listDatabases": 1});
        let list = reply.get("databases").as_array().expect("databases");
        let name = |d: ValueRef<'_>| d.as_document()?.get("name").as_str().map(str::to_owned);
        list.iter().filter_map(name).collect::<Vec<_>>()
    };
    let collections = |fixture: &mut Fixture| {
        let mut listed = names(
            &fixture.reply_on("admin", doc! {"listCollections": 1}),
            "name",
        );
        listed.sort();
        listed
    };
    assert_eq!(databases(&mut fixture), ["admin"]);
    assert_eq!(collections(&mut fixture), ["system.version"]);
    assert_eq!(all(&mut fixture, "system.version").len(), 1);
    let mut fixture = with_users();
    fixture.reply(doc! {"create": "c"});
    assert_eq!(databases(&mut fixture), ["admin", "test"]);
    let listed = ["system.roles", "system.users", "system.version"];
    assert_eq!(collections(&mut fixture), listed);
    assert_eq!(all(&mut fixture, "system.users").len(), 3);
    let schema = doc! {"_id": "authSchema", "currentVersion": 5};
    assert!(all(&mut fixture, "system.version").contains(&schema));
    let indexes = fixture.reply_on("admin", doc! {"listIndexes": "system.users"});
    assert_eq!(names(&indexes, "name"), ["_id_"]);
    let version = fixture.reply_on("admin", doc! {"getParameter": 1, "authSchemaVersion": 1});
    assert_eq!(version.get("authSchemaVersion").as_exact_i64(), Some(5));
    let write = doc! {"insert": "system.users", "documents": array![doc! {"_id": 1}]};
    assert!(!is_ok(&fixture.reply_on("admin", write)));
}

#[test]
fn a_dump_of_users_and_roles_is_merged() {
    let mut from = with_users();
    let mut to = Fixture::new();
    assert!(is_ok(&to.reply(
        doc! {"createUser": "a", "pwd": "mine", "roles": array![]}
    )));
    assert!(is_ok(&to.reply(
        doc! {"createUser": "kept", "pwd": "mine", "roles": array![]}
    )));
    let mine = all(&mut to, "system.users");
    for (system, temporary) in [("system.users", "tempusers"), ("system.roles", "temproles")] {
        let documents: Array = all(&mut from, system)
            .into_iter()
            .map(Value::from)
            .collect();
        let insert = doc! {"insert": temporary, "documents": documents};
        assert!(is_ok(&to.reply_on("admin", insert)));
    }
    let merge = |to: &mut Fixture, db: &str, drop: bool| {
        to.reply_on(
            "admin",
            doc! {
                "_mergeAuthzCollections": 1, "db": db, "drop": drop,
                "tempUsersCollection": "admin.tempusers",
                "tempRolesCollection": "admin.temproles",
            },
        )
    };
    // Without `drop` what exists is kept.
    assert!(is_ok(&merge(&mut to, "test", false)));
    let users = all(&mut to, "system.users");
    assert_eq!(users.len(), 3);
    assert!(mine.iter().all(|user| users.contains(user)));
    assert_eq!(all(&mut to, "system.roles"), all(&mut from, "system.roles"));
    // With `drop` the dump takes the place of what is there, in the given database only.
    assert!(is_ok(&to.reply_on(
        "else",
        doc! {"createUser": "e", "pwd": "p", "roles": array![]}
    )));
    assert!(is_ok(&merge(&mut to, "test", true)));
    assert_eq!(all(&mut to, "system.users").len(), 3);
    assert!(is_ok(&merge(&mut to, "", true)));
    assert_eq!(all(&mut to, "system.users"), all(&mut from, "system.users"));
    let neither = to.reply_on("admin", doc! {"_mergeAuthzCollections": 1});
    assert_eq!(neither.get("code").as_exact_i64(), Some(2));
}

#[test]
fn a_document_that_is_no_user_fails_the_merge_and_changes_nothing() {
    let mut fixture = with_users();
    let before = all(&mut fixture, "system.users");
    let user = before.first().expect("a user");
    let without = |name: &str| {
        let mut out = nilometer_bson::DocumentBuilder::new();
        for element in user.iter().filter(|e| e.name() != name) {
            out.append_element(element);
        }
        out.finish()
    };
    let mut system = nilometer_bson::DocumentBuilder::new();
    for element in without("roles").iter() {
        system.append_element(element);
    }
    system.append("roles", array![doc! {"role": "__system", "db": "admin"}]);
    for bad in [
        without("credentials"),
        without("db"),
        system.finish(),
        doc! {"_id": 1},
    ] {
        fixture.reply_on("admin", doc! {"drop": "tempusers"});
        let insert = doc! {"insert": "tempusers", "documents": array![bad.clone()]};
        assert!(is_ok(&fixture.reply_on("admin", insert)));
        let merge = doc! {
            "_mergeAuthzCollections": 1, "drop": true, "tempUsersCollection": "admin.tempusers",
        };
        let reply = fixture.reply_on("admin", merge);
        let code = reply.get("code").as_exact_i64();
        assert_eq!(code, Some(2), "{bad:?} {reply:?}");
        assert_eq!(all(&mut fixture, "system.users"), before);
    }
}

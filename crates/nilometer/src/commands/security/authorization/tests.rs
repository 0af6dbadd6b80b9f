//! Every command before a login, every built-in role against many commands, and what changes mean
//! for those who are connected.

use std::sync::Arc;

use nilometer_bson::{Binary, Document, DocumentBuilder, Value, array, doc};
use nilometer_storage::MemoryEngine;

use crate::auth::{Credentials, Mechanism, Restrictions, RoleName, User};
use crate::commands::{COMMANDS, OperationCounter};
use crate::database::Database;
use crate::operation::Request;
use crate::services::Environment;
use crate::session::{ClientMetadata, ClientSession, UserName};

fn guarded() -> Database {
    let environment = Environment {
        access_control: true,
        ..Environment::default()
    };
    Database::with_engine(Arc::new(MemoryEngine::new()), environment).expect("a database")
}

fn stranger() -> ClientSession {
    ClientSession::new(1, ClientMetadata::default())
}

fn run(database: &Database, session: &mut ClientSession, db: &str, command: &Document) -> Document {
    let mut body = DocumentBuilder::new();
    for element in command.iter() {
        body.append_element(element);
    }
    body.append("$db", db);
    database.run_command(session, &Request::new(body.finish()))
}

/// `{name: value}`.
fn named(name: &str, value: Value) -> Document {
    let mut out = DocumentBuilder::new();
    out.append(name, value);
    out.finish()
}

fn code(reply: &Document) -> i64 {
    match reply.get("code").as_exact_i64() {
        Some(code) => code,
        None => {
            assert_eq!(reply.get("ok").as_exact_i64(), Some(1), "{reply:?}");
            0
        }
    }
}

/// A connection of a new user with these roles.
fn user(database: &Database, name: &str, roles: &[(&str, &str)]) -> ClientSession {
    let name = UserName::new(name, "admin");
    let user = User {
        name: name.clone(),
        id: database.services().ids.uuid(),
        credentials: vec![(
            Mechanism::Sha256,
            Credentials::derive(Mechanism::Sha256, "secret", b"salt", 1),
        )],
        roles: roles.iter().map(|(r, d)| RoleName::new(r, d)).collect(),
        custom_data: None,
        restrictions: Restrictions::default(),
    };
    database.authority().create_user(user).expect("a user");
    let mut session = stranger();
    let grants = database.authority().grants(&name).expect("the user");
    session.login.succeed(Arc::new(grants));
    session
}

#[test]
fn before_a_login_only_these_answer() {
    let database = guarded();
    let open: Vec<&str> = COMMANDS
        .iter()
        .filter(|command| {
            let reply = run(
                &database,
                &mut stranger(),
                "admin",
                &named(command.name, 1.into()),
            );
            let refused = reply.get("errmsg").as_str().is_some_and(|text| {
                text == format!("Command {} requires authentication", command.name)
            });
            assert!(!refused || code(&reply) == 13);
            !refused
        })
        .map(|command| command.name)
        .collect();
    assert_eq!(
        open,
        [
            "authenticate",
            "buildInfo",
            "connectionStatus",
            "hello",
            "isMaster",
            "logout",
            "ping",
            "saslContinue",
            "saslStart",
            "whatsmyuri",
        ]
    );
}

#[test]
fn a_user_without_roles_may_do_nothing_but_ask_who_it_is() {
    let database = guarded();
    let mut session = user(&database, "u", &[]);
    let allowed: Vec<&str> = COMMANDS
        .iter()
        .filter(|command| {
            let text = match command.counted {
                OperationCounter::GetMore => return false,
                _ if command.name == "logout" => return false,
                _ => Value::from("c"),
            };
            let reply = run(&database, &mut session, "admin", &named(command.name, text));
            session.login.user().is_some() && reply.get("code").as_exact_i64() != Some(13)
        })
        .map(|command| command.name)
        .collect();
    for harmless in ["ping", "hello", "listDatabases", "listCommands"] {
        assert!(allowed.contains(&harmless), "{harmless}");
    }
    for guarded in [
        "find",
        "insert",
        "update",
        "delete",
        "aggregate",
        "drop",
        "create",
        "createIndexes",
        "dropDatabase",
        "collMod",
        "createUser",
        "dropUser",
        "createRole",
        "serverStatus",
        "setParameter",
        "getParameter",
        "collStats",
        "listIndexes",
        "listCollections",
    ] {
        assert!(!allowed.contains(&guarded), "{guarded}");
    }
}

/// The commands of the table of roles, by a word.
fn sample(word: &str) -> (&'static str, Document) {
    let privileges = array![doc! {
        "resource": doc! {"db": "a", "collection": ""},
        "actions": array!["find"],
    }];
    match word {
        "find" => ("a", doc! {"find": "c"}),
        "find elsewhere" => ("b", doc! {"find": "c"}),
        "find buckets" => ("a", doc! {"find": "system.buckets.ts"}),
        "find series" => ("a", doc! {"find": "ts"}),
        "find users" => ("admin", doc! {"find": "system.users"}),
        "insert" => ("a", doc! {"insert": "c", "documents": array![doc! {}]}),
        "bypass" => (
            "a",
            doc! {"insert": "c", "documents": array![doc! {}], "bypassDocumentValidation": true},
        ),
        "remove" => (
            "a",
            doc! {"delete": "c", "deletes": array![doc! {"q": doc! {"x": 1}, "limit": 0}]},
        ),
        "index" => (
            "a",
            doc! {"createIndexes": "c", "indexes": array![doc! {"key": doc! {"x": 1}, "name": "x"}]},
        ),
        "collMod" => ("a", doc! {"collMod": "c", "validator": doc! {}}),
        "validate" => ("a", doc! {"validate": "c"}),
        "collStats" => ("a", doc! {"collStats": "c"}),
        "list" => ("a", doc! {"listCollections": 1}),
        "user" => ("a", doc! {"usersInfo": 1}),
        "role" => (
            "a",
            doc! {"createRole": "r", "roles": array![], "privileges": privileges},
        ),
        "status" => ("admin", doc! {"serverStatus": 1}),
        "top" => ("admin", doc! {"top": 1}),
        "parameter" => ("admin", doc! {"setParameter": 1, "quiet": 0}),
        "operations" => ("admin", doc! {"currentOp": 1}),
        "rename" => ("admin", doc! {"renameCollection": "a.n", "to": "a.n2"}),
        "dropDatabase" => ("d", doc! {"dropDatabase": 1}),
        other => panic!("{other}"),
    }
}

const WORDS: [&str; 21] = [
    "find",
    "find elsewhere",
    "find buckets",
    "find series",
    "find users",
    "insert",
    "bypass",
    "remove",
    "index",
    "collMod",
    "validate",
    "collStats",
    "list",
    "user",
    "role",
    "status",
    "top",
    "parameter",
    "operations",
    "rename",
    "dropDatabase",
];

#[test]
fn what_the_builtin_roles_may() {
    const READ: &[&str] = &["find", "find series", "collStats", "list"];
    const WRITE: &[&str] = &["insert", "remove", "index", "rename"];
    const ADMIN: &[&str] = &[
        "bypass-only",
        "index",
        "collMod",
        "validate",
        "collStats",
        "list",
        "rename",
    ];
    const USERS: &[&str] = &["user", "role"];
    const MONITOR: &[&str] = &["collStats", "list", "status", "top", "operations"];
    let table: &[(&str, &str, &[&[&str]])] = &[
        ("read", "a", &[READ]),
        ("readWrite", "a", &[READ, WRITE]),
        ("dbAdmin", "a", &[ADMIN]),
        ("userAdmin", "a", &[USERS]),
        ("dbOwner", "a", &[READ, WRITE, ADMIN, USERS, &["bypass"]]),
        ("readAnyDatabase", "admin", &[READ, &["find elsewhere"]]),
        (
            "readWriteAnyDatabase",
            "admin",
            &[READ, WRITE, &["find elsewhere"]],
        ),
        ("dbAdminAnyDatabase", "admin", &[ADMIN, &["dropDatabase"]]),
        ("userAdminAnyDatabase", "admin", &[USERS, &["find users"]]),
        ("clusterMonitor", "admin", &[MONITOR]),
        ("hostManager", "admin", &[&["parameter"]]),
        ("clusterManager", "admin", &[]),
        (
            "clusterAdmin",
            "admin",
            &[MONITOR, &["parameter", "dropDatabase"]],
        ),
        (
            "backup",
            "admin",
            &[
                READ,
                &["find elsewhere", "find buckets", "find users", "status"],
            ],
        ),
        (
            "restore",
            "admin",
            &[
                USERS,
                &["insert", "bypass", "index", "collMod", "list", "find users"],
            ],
        ),
        ("root", "admin", &[&WORDS]),
    ];
    for (role, db, may) in table {
        let database = guarded();
        let mut session = user(&database, "u", &[(role, db)]);
        for word in WORDS {
            let mut owner = ClientSession::embedded();
            for (db, name) in [("a", "c"), ("b", "c"), ("a", "n"), ("d", "c")] {
                run(&database, &mut owner, db, &doc! {"create": name});
            }
            let series = doc! {"create": "ts", "timeseries": doc! {"timeField": "t"}};
            run(&database, &mut owner, "a", &series);
            let (db, command) = sample(word);
            let reply = run(&database, &mut session, db, &command);
            let allowed = code(&reply) != 13;
            let expected = may.iter().any(|words| words.contains(&word));
            assert_eq!(allowed, expected, "{role}: {word}: {reply:?}");
            if !allowed {
                let text = reply.get("errmsg").as_str().unwrap_or("");
                let begins = format!("not authorized on {db} to execute command {{ ");
                assert!(text.starts_with(&begins), "{text}");
            }
        }
    }
}

#[test]
fn the_first_user_is_created_from_this_machine_and_then_never_again() {
    let database = guarded();
    let create = doc! {"createUser": "a", "pwd": "x", "roles": array!["root"]};
    assert_eq!(code(&run(&database, &mut stranger(), "admin", &create)), 13);
    let here = ClientMetadata {
        same_machine: true,
        ..ClientMetadata::default()
    };
    let mut local = ClientSession::new(1, here);
    assert_eq!(code(&run(&database, &mut local, "test", &create)), 13);
    assert_eq!(
        code(&run(&database, &mut local, "admin", &doc! {"find": "c"})),
        13
    );
    assert_eq!(code(&run(&database, &mut local, "admin", &create)), 0);
    let second = doc! {"createUser": "b", "pwd": "x", "roles": array!["root"]};
    assert_eq!(code(&run(&database, &mut local, "admin", &second)), 13);
}

#[test]
fn a_change_holds_for_the_next_command_of_an_open_connection() {
    let database = guarded();
    let mut session = user(&database, "u", &[]);
    let mut root = user(&database, "root", &[("root", "admin")]);
    let find = doc! {"find": "c"};
    let mut may = |database: &Database| code(&run(database, &mut session, "a", &find));
    assert_eq!(may(&database), 13);
    let grant = doc! {"grantRolesToUser": "u", "roles": array![doc! {"role": "read", "db": "a"}]};
    assert_eq!(code(&run(&database, &mut root, "admin", &grant)), 0);
    assert_eq!(may(&database), 0);
    let revoke =
        doc! {"revokeRolesFromUser": "u", "roles": array![doc! {"role": "read", "db": "a"}]};
    assert_eq!(code(&run(&database, &mut root, "admin", &revoke)), 0);
    assert_eq!(may(&database), 13);
    let drop = doc! {"dropUser": "u"};
    assert_eq!(code(&run(&database, &mut root, "admin", &drop)), 0);
    let reply = run(&database, &mut session, "a", &find);
    let text = reply.get("errmsg").as_str();
    assert_eq!(text, Some("Command find requires authentication"));
}

#[test]
fn cursors_belong_to_their_user() {
    let database = guarded();
    let mut one = user(&database, "one", &[("readWrite", "a")]);
    let mut other = user(&database, "other", &[("readWrite", "a")]);
    let documents = array![doc! {}, doc! {}, doc! {}];
    run(
        &database,
        &mut one,
        "a",
        &doc! {"insert": "c", "documents": documents},
    );
    let reply = run(
        &database,
        &mut one,
        "a",
        &doc! {"find": "c", "batchSize": 1},
    );
    let cursor = reply.get("cursor").as_document().expect("a cursor");
    let id = cursor.get("id").as_exact_i64().expect("an id");
    let more = doc! {"getMore": id, "collection": "c", "batchSize": 1};
    let kill = doc! {"killCursors": "c", "cursors": array![id]};
    assert_eq!(code(&run(&database, &mut other, "a", &more)), 13);
    assert_eq!(code(&run(&database, &mut other, "a", &kill)), 13);
    assert_eq!(code(&run(&database, &mut one, "a", &more)), 0);
    assert_eq!(code(&run(&database, &mut one, "a", &kill)), 0);
}

#[test]
fn nobody_gives_what_is_not_theirs_to_give() {
    let database = guarded();
    let mut admin = user(&database, "admin", &[("userAdmin", "a")]);
    let create = |roles: Value| doc! {"createUser": "x", "pwd": "x", "roles": roles};
    let far = create(array![doc! {"role": "root", "db": "admin"}]);
    assert_eq!(code(&run(&database, &mut admin, "a", &far)), 13);
    assert_eq!(
        code(&run(&database, &mut admin, "b", &create(array![]))),
        13
    );
    let near = create(array!["readWrite"]);
    assert_eq!(code(&run(&database, &mut admin, "a", &near)), 0);
    let raise = doc! {"updateUser": "x", "roles": array![doc! {"role": "read", "db": "b"}]};
    assert_eq!(code(&run(&database, &mut admin, "a", &raise)), 13);
    // A view does not show its creator what it could not read.
    let privileges = array![doc! {
        "resource": doc! {"db": "a", "collection": "v"},
        "actions": array!["find", "createCollection"],
    }];
    let role = doc! {"createRole": "viewer", "roles": array![], "privileges": privileges};
    assert_eq!(code(&run(&database, &mut admin, "a", &role)), 0);
    let mut viewer = user(&database, "viewer", &[("viewer", "a")]);
    let view = doc! {"create": "v", "viewOn": "c", "pipeline": array![]};
    assert_eq!(code(&run(&database, &mut viewer, "a", &view)), 13);
    assert_eq!(
        code(&run(&database, &mut viewer, "a", &doc! {"create": "v"})),
        0
    );
}

#[test]
fn passwords_are_shown_nowhere() {
    let database = guarded();
    let mut session = user(&database, "u", &[]);
    let create = doc! {"createUser": "x", "pwd": "tell nobody", "roles": array![]};
    let reply = run(&database, &mut session, "a", &create);
    let text = reply.get("errmsg").as_str().expect("a refusal");
    assert!(
        text.contains("pwd: \"xxx\"") && !text.contains("tell nobody"),
        "{text}"
    );
}

#[test]
fn without_access_control_users_are_kept_and_nothing_is_asked() {
    let database = Database::in_memory().expect("a database");
    let create = doc! {"createUser": "x", "pwd": "x", "roles": array!["read"]};
    assert_eq!(code(&run(&database, &mut stranger(), "a", &create)), 0);
    let insert = doc! {"insert": "c", "documents": array![doc! {}]};
    assert_eq!(code(&run(&database, &mut stranger(), "a", &insert)), 0);
    let reply = run(&database, &mut stranger(), "a", &doc! {"usersInfo": "x"});
    let users = reply.get("users").as_array().expect("users");
    assert_eq!(users.len(), 1);
    let found = run(
        &database,
        &mut stranger(),
        "admin",
        &doc! {"count": "system.users"},
    );
    assert_eq!(found.get("n").as_exact_i64(), Some(1));
}

/// The users whose sessions the stage shows, and its code if it is refused.
fn sessions_shown(
    database: &Database,
    session: &mut ClientSession,
    options: &Document,
) -> Result<Vec<String>, i64> {
    let stage = doc! {"$listLocalSessions": options.clone()};
    let command = doc! {"aggregate": 1, "pipeline": array![stage], "cursor": doc! {}};
    let reply = run(database, session, "admin", &command);
    if code(&reply) != 0 {
        return Err(code(&reply));
    }
    let cursor = reply.get("cursor").as_document().expect("a cursor");
    let batch = cursor.get("firstBatch").as_array().expect("a batch");
    let shown = batch.iter().map(|told| {
        let told = told.as_document().expect("a session");
        let id = told.get("_id").as_document().expect("an identity");
        assert!(!id.get("uid").is_missing());
        told.get("user").as_str().unwrap_or("").to_owned()
    });
    let mut shown: Vec<String> = shown.collect();
    shown.sort();
    Ok(shown)
}

#[test]
fn sessions_of_others_take_a_privilege() {
    let database = guarded();
    let mut ann = user(&database, "ann", &[("read", "a")]);
    let mut bob = user(&database, "bob", &[("clusterMonitor", "admin")]);
    for session in [&mut ann, &mut bob] {
        let reply = run(&database, session, "admin", &doc! {"startSession": 1});
        assert_eq!(code(&reply), 0);
    }
    let all = doc! {"allUsers": true};
    let bobs = doc! {"users": array![doc! {"user": "bob", "db": "admin"}]};
    let own = [doc! {}, doc! {"allUsers": false}, doc! {"users": array![]}];
    for options in &own {
        let shown = sessions_shown(&database, &mut ann, options);
        assert_eq!(shown, Ok(vec![String::new()]));
    }
    for options in [&all, &bobs] {
        assert_eq!(sessions_shown(&database, &mut ann, options), Err(13));
    }
    let both = vec!["ann@admin".to_owned(), "bob@admin".to_owned()];
    assert_eq!(sessions_shown(&database, &mut bob, &all), Ok(both.clone()));
    assert_eq!(
        sessions_shown(&database, &mut bob, &bobs),
        Ok(both[1..].to_vec())
    );
    // Killing one's own leaves those of others alone; of those of others, only some may.
    let kill = doc! {"killSessions": array![]};
    assert_eq!(code(&run(&database, &mut ann, "admin", &kill)), 0);
    assert_eq!(
        sessions_shown(&database, &mut bob, &all),
        Ok(both[1..].to_vec())
    );
}

#[test]
fn patterns_of_owners_take_the_right_to_impersonate() {
    let database = guarded();
    let mut ann = user(&database, "ann", &[("read", "a")]);
    let mut bob = user(&database, "bob", &[("clusterMonitor", "admin")]);
    let mut root = user(&database, "root", &[("root", "admin")]);
    let actions = array!["killAnySession", "impersonate"];
    let privilege = doc! {"resource": doc! {"cluster": true}, "actions": actions};
    let role = doc! {"createRole": "killer", "privileges": array![privilege], "roles": array![]};
    let owner = &mut ClientSession::embedded();
    assert_eq!(code(&run(&database, owner, "admin", &role)), 0);
    let mut killer = user(&database, "killer", &[("killer", "admin")]);
    for session in [&mut ann, &mut bob] {
        run(&database, session, "admin", &doc! {"startSession": 1});
    }
    let kill = |pattern: Document| doc! {"killAllSessionsByPattern": array![pattern]};
    let of_ann = kill(doc! {"users": array![doc! {"user": "ann", "db": "admin"}]});
    let readers = kill(doc! {"roles": array![doc! {"role": "read", "db": "a"}]});
    for command in [&of_ann, &readers, &kill(doc! {})] {
        assert_eq!(code(&run(&database, &mut bob, "admin", command)), 13);
    }
    let shown = |bob: &mut ClientSession| {
        sessions_shown(&database, bob, &doc! {"allUsers": true}).expect("the sessions")
    };
    assert_eq!(code(&run(&database, &mut root, "admin", &of_ann)), 13);
    assert_eq!(shown(&mut bob).len(), 2);
    assert_eq!(code(&run(&database, &mut killer, "admin", &readers)), 0);
    assert_eq!(shown(&mut bob), ["bob@admin"]);
    run(&database, &mut ann, "admin", &doc! {"startSession": 1});
    assert_eq!(code(&run(&database, &mut killer, "admin", &of_ann)), 0);
    assert_eq!(shown(&mut bob), ["bob@admin"]);
    let by_all = kill(doc! {"lsid": doc! {"id": Value::from(uuid())}});
    assert_eq!(code(&run(&database, &mut root, "admin", &by_all)), 0);
    assert_eq!(shown(&mut bob), ["bob@admin"]);
}

fn uuid() -> Binary {
    Binary {
        subtype: 4,
        bytes: vec![7; 16].into(),
    }
}

#[test]
fn raw_data_takes_the_privileges_on_the_buckets() {
    let database = guarded();
    let mut owner = ClientSession::embedded();
    let series = doc! {"create": "ts", "timeseries": doc! {"timeField": "t"}};
    run(&database, &mut owner, "a", &series);
    run(&database, &mut owner, "a", &doc! {"create": "plain"});
    let mut reader = user(&database, "reader", &[("readWrite", "a")]);
    let mut admin = user(&database, "admin", &[("dbAdmin", "a")]);
    let mut backup = user(&database, "backup", &[("backup", "admin")]);
    let mut nobody = user(&database, "nobody", &[]);
    let raw = |collection: &str| doc! {"find": collection, "rawData": true};
    let find = raw("ts");
    assert_eq!(
        code(&run(&database, &mut reader, "a", &doc! {"find": "ts"})),
        0
    );
    assert_eq!(code(&run(&database, &mut reader, "a", &find)), 13);
    assert_eq!(code(&run(&database, &mut reader, "a", &raw("plain"))), 0);
    assert_eq!(code(&run(&database, &mut backup, "a", &find)), 0);
    assert_eq!(code(&run(&database, &mut admin, "a", &find)), 13);
    let explain = doc! {"explain": find.clone()};
    assert_eq!(code(&run(&database, &mut reader, "a", &explain)), 13);
    assert_eq!(code(&run(&database, &mut backup, "a", &explain)), 0);
    let index = doc! {"key": doc! {"control.count": 1}, "name": "x"};
    let index = doc! {"createIndexes": "ts", "indexes": array![index], "rawData": true};
    assert_eq!(code(&run(&database, &mut reader, "a", &index)), 13);
    assert_eq!(code(&run(&database, &mut admin, "a", &index)), 0);
    let bulk = doc! {
        "bulkWrite": 1, "rawData": true, "nsInfo": array![doc! {"ns": "a.ts"}],
        "ops": array![doc! {"delete": 0, "filter": doc! {}}],
    };
    assert_eq!(code(&run(&database, &mut reader, "admin", &bulk)), 13);
    // A refusal does not say that the collection is a time series.
    let text = |session: &mut ClientSession, command: &Document| {
        let reply = run(&database, session, "a", command);
        assert_eq!(code(&reply), 13);
        reply.get("errmsg").as_str().expect("a text").to_owned()
    };
    assert!(!text(&mut nobody, &find).contains("buckets"));
    let of_plain = text(&mut nobody, &raw("plain")).replace("plain", "ts");
    assert_eq!(text(&mut nobody, &find), of_plain);
}

#[test]
fn entries_of_an_oplog_need_the_privileges_of_what_they_do() {
    let database = guarded();
    let mut writer = user(&database, "writer", &[("readWrite", "test")]);
    let mut reader = user(&database, "reader", &[("read", "test")]);
    let roles = ["restore", "readWriteAnyDatabase"].map(|role| (role, "admin"));
    let mut restorer = user(&database, "restorer", &roles);
    let apply = |session: &mut ClientSession, op: &str, ns: &str, o: &Document, ui: bool| {
        let mut entry = DocumentBuilder::new();
        entry.append("op", op).append("ns", ns);
        entry.append("o", o.clone()).append("o2", doc! {"_id": 1});
        if ui {
            let uuid = nilometer_bson::Binary {
                subtype: 4,
                bytes: vec![9; 16].into(),
            };
            entry.append("ui", Value::from(uuid));
        }
        let command = doc! {"applyOps": array![entry.finish()]};
        code(&run(&database, session, "admin", &command))
    };
    let document = doc! {"_id": 1};
    for (op, o) in [("i", &document), ("u", &document), ("d", &document)] {
        assert_eq!(apply(&mut writer, op, "test.c", o, false), 0);
        assert_eq!(apply(&mut restorer, op, "test.c", o, false), 0);
        assert_eq!(apply(&mut writer, op, "other.c", o, false), 13);
        assert_eq!(apply(&mut reader, op, "test.c", o, false), 13);
    }
    let nested =
        doc! {"applyOps": array![doc! {"op": "i", "ns": "other.c", "o": document.clone()}]};
    assert_eq!(apply(&mut writer, "c", "admin.$cmd", &nested, false), 13);
    for command in [
        doc! {"create": "d"},
        doc! {"createIndexes": "d", "v": 2, "key": doc! {"a": 1}, "name": "a"},
        doc! {"dropIndexes": "d", "index": "a"},
        doc! {"collMod": "d", "validationLevel": "off"},
        doc! {"drop": "d"},
    ] {
        let allowed = match command.get("collMod").is_missing() {
            true => 0,
            // Only administrators of the database may.
            false => 13,
        };
        assert_eq!(
            apply(&mut writer, "c", "test.$cmd", &command, false),
            allowed
        );
        assert_eq!(apply(&mut reader, "c", "test.$cmd", &command, false), 13);
        assert_eq!(apply(&mut writer, "c", "other.$cmd", &command, false), 13);
        assert_eq!(apply(&mut restorer, "c", "test.$cmd", &command, false), 0);
    }
    assert_eq!(
        apply(&mut writer, "c", "test.$cmd", &doc! {"create": "e"}, true),
        13
    );
    assert_eq!(
        apply(&mut restorer, "c", "test.$cmd", &doc! {"create": "e"}, true),
        0
    );
    assert_eq!(
        apply(
            &mut restorer,
            "c",
            "test.$cmd",
            &doc! {"shutdown": 1},
            false
        ),
        13
    );
    assert_eq!(apply(&mut reader, "n", "", &document, false), 0);
    let condition = doc! {"ns": "other.c", "q": doc! {}, "res": doc! {}};
    let guess = doc! {"applyOps": array![], "preCondition": array![condition]};
    assert_eq!(code(&run(&database, &mut writer, "admin", &guess)), 13);
}

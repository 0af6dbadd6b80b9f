//! Commands that clients send to connect and to diagnose, and the fields they read.

use nilometer_bson::{Binary, Document, Value, ValueRef, array, doc};

use crate::client::{code, is_ok};
use crate::server::Server;

/// Returns the value at a path of names.
fn at<'a>(document: &'a Document, path: &str) -> ValueRef<'a> {
    let mut value = ValueRef::Document(document.as_ref());
    for name in path.split('.') {
        value = value
            .as_document()
            .map_or(ValueRef::Missing, |d| d.get(name));
    }
    value
}

#[test]
fn commands_of_the_first_second_are_answered() {
    let server = Server::start();
    let mut client = server.connect();
    let build = client.run(&doc! {"buildInfo": 1});
    assert!(
        at(&build, "version")
            .as_str()
            .is_some_and(|v| v.starts_with("8.0."))
    );
    assert_eq!(
        build.get("versionArray").as_array().map(|a| a.len()),
        Some(4)
    );
    assert!(at(&build, "nilometer.version").as_str().is_some());
    assert!(build.get("ferretdb").is_missing());
    assert!(is_ok(&client.run(&doc! {"buildinfo": 1})));

    let fcv = client.run(&doc! {"getParameter": 1, "featureCompatibilityVersion": 1});
    assert_eq!(
        at(&fcv, "featureCompatibilityVersion.version").as_str(),
        Some("8.0")
    );
    let unknown = client.run(&doc! {"getParameter": "foo"});
    assert_eq!(code(&unknown), 72);
    assert_eq!(
        unknown.get("errmsg").as_str(),
        Some("no option found to get")
    );
    let all = client.run(&doc! {"getParameter": "*"});
    assert!(matches!(
        at(&all, "enableTestCommands"),
        ValueRef::Bool(false)
    ));

    assert_eq!(code(&client.run(&doc! {"atlasVersion": 1})), 59);
    let log = client.run(&doc! {"getLog": "startupWarnings"});
    assert!(log.get("totalLinesWritten").as_exact_i64() >= Some(1));
    let line = log.get("log").as_array().map(|l| l.get(0));
    assert!(
        line.and_then(ValueRef::as_str)
            .is_some_and(|l| l.contains("Access control"))
    );
    let log = client.run(&doc! {"getLog": "global"});
    assert!(log.get("log").as_array().is_some_and(|l| !l.is_empty()));
    assert_eq!(code(&client.run(&doc! {"getLog": "x"})), 96);

    let options = client.run(&doc! {"getCmdLineOpts": 1});
    assert_eq!(at(&options, "parsed.net.port").as_exact_i64(), Some(0));
    assert!(options.get("argv").as_array().is_some_and(|a| a.len() >= 6));

    let status = client.run(&doc! {"connectionStatus": 1, "showPrivileges": true});
    for field in [
        "authenticatedUsers",
        "authenticatedUserRoles",
        "authenticatedUserPrivileges",
    ] {
        let path = format!("authInfo.{field}");
        assert!(at(&status, &path).as_array().is_some_and(|a| a.is_empty()));
    }
    let mine = client.run(&doc! {"whatsmyuri": 1});
    assert!(
        mine.get("you")
            .as_str()
            .is_some_and(|y| y.starts_with("127.0.0.1:"))
    );
    let host = client.run(&doc! {"hostInfo": 1});
    for path in ["system.cpuArch", "os.type", "system.hostname"] {
        assert!(at(&host, path).as_str().is_some(), "{path}");
    }
    assert!(at(&host, "system.numCores").as_exact_i64() >= Some(1));
}

#[test]
fn figures_are_true() {
    let server = Server::start();
    let mut client = server.connect();
    let _other = server.connect();
    for _ in 0..3 {
        client.run(&doc! {"ping": 1});
    }
    client.run(&doc! {"nonsense": 1});
    let status = client.run(&doc! {"serverStatus": 1, "recordStats": 0});
    assert!(at(&status, "connections.current").as_exact_i64() >= Some(1));
    assert_eq!(at(&status, "connections.active").as_exact_i64(), Some(1));
    assert_eq!(
        at(&status, "metrics.commands.ping.total").as_exact_i64(),
        Some(3)
    );
    assert_eq!(at(&status, "network.numRequests").as_exact_i64(), Some(5));
    assert!(at(&status, "network.bytesIn").as_exact_i64() > Some(100));
    assert_eq!(at(&status, "opcounters.command").as_exact_i64(), Some(3));
    assert!(at(&status, "mem.resident").as_exact_i64() >= Some(1));
    for path in [
        "host",
        "version",
        "process",
        "localTime",
        "uptimeMillis",
        "asserts.user",
        "globalLock.activeClients.readers",
        "globalLock.currentQueue.writers",
        "storageEngine.name",
    ] {
        assert!(!at(&status, path).is_missing(), "{path}");
    }
    let less = client.run(&doc! {"serverStatus": 1, "metrics": 0});
    assert!(less.get("metrics").is_missing());
    let only = client.run(&doc! {"serverStatus": 1, "none": 1, "mem": 1});
    assert!(only.get("network").is_missing() && !only.get("mem").is_missing());
    let diagnosis = client.run(&doc! {"getDiagnosticData": 1});
    assert!(!at(&diagnosis, "data.serverStatus.connections.current").is_missing());
    assert!(
        at(&client.run(&doc! {"top": 1}), "totals.note")
            .as_str()
            .is_some()
    );
}

#[test]
fn every_listed_command_is_known_and_described() {
    let server = Server::start();
    let mut client = server.connect();
    let reply = client.run(&doc! {"listCommands": 1});
    let commands = reply.get("commands").as_document().expect("commands");
    assert!(commands.iter().count() > 20);
    for command in commands {
        let entry = command.value().as_document().expect("an entry");
        assert!(entry.get("help").as_str().is_some_and(|h| !h.is_empty()));
    }
}

#[test]
fn options_every_command_takes_are_checked() {
    let server = Server::start();
    let mut client = server.connect();
    let id = Value::from(Binary {
        subtype: 4,
        bytes: [7; 16].as_slice().into(),
    });
    let good = doc! {
        "ping": 1,
        "lsid": doc! {"id": id.clone()},
        "$readPreference": doc! {"mode": "primaryPreferred"},
        "$clusterTime": doc! {},
        "comment": array![1],
        "maxTimeMS": 100,
        "apiVersion": "1",
        "apiStrict": true,
        "apiDeprecationErrors": false,
    };
    assert!(is_ok(&client.run(&good)));
    for (command, expected) in [
        (doc! {"ping": 1, "foo": 1}, 40_415),
        (doc! {"ping": 1, "maxTimeMS": -1}, 2),
        (doc! {"ping": 1, "maxTimeMS": "x"}, 2),
        (doc! {"ping": 1, "lsid": doc! {"id": 1}}, 14),
        (
            doc! {"ping": 1, "lsid": doc! {"id": id}, "txnNumber": 1i64},
            20,
        ),
        (doc! {"ping": 1, "txnNumber": 1i64}, 72),
        (doc! {"ping": 1, "apiVersion": "2"}, 322),
        (doc! {"ping": 1, "apiStrict": true}, 4_886_600),
        (
            doc! {"serverStatus": 1, "apiVersion": "1", "apiStrict": true},
            323,
        ),
        (
            doc! {"ping": 1, "readConcern": doc! {"level": "snapshot"}},
            123,
        ),
        (doc! {"ping": 1, "readConcern": doc! {"level": "odd"}}, 2),
        (doc! {"ping": 1, "writeConcern": doc! {"w": 1}}, 72),
        (
            doc! {"endSessions": array![], "writeConcern": doc! {"w": 2}},
            2,
        ),
        (doc! {"ping": 1, "$readPreference": doc! {"mode": "odd"}}, 9),
        (doc! {"nonsense": 1}, 59),
        (doc! {}, 59),
    ] {
        assert_eq!(code(&client.run(&command)), expected, "{command:?}");
    }
    let unknown = client.run(&doc! {"ping": 1, "foo": 1});
    let text = Some("BSON field 'ping.foo' is an unknown field.");
    assert_eq!(unknown.get("errmsg").as_str(), text);
    let unknown = client.run(&doc! {"nonsense": 1});
    assert_eq!(
        unknown.get("errmsg").as_str(),
        Some("no such command: 'nonsense'")
    );
    assert_eq!(unknown.get("codeName").as_str(), Some("CommandNotFound"));
    let elsewhere = client.run_on("test", &doc! {"getParameter": "*"});
    assert_eq!(code(&elsewhere), 13);
    assert_eq!(code(&client.run_on("a.b", &doc! {"ping": 1})), 73);
}

#[test]
fn parameters_are_set_where_they_may_be() {
    let server = Server::start_with(&["--setParameter", "timeseriesBucketMaxCount=7"]);
    let mut client = server.connect();
    let got = client.run(&doc! {"getParameter": 1, "timeseriesBucketMaxCount": 1});
    assert_eq!(at(&got, "timeseriesBucketMaxCount").as_exact_i64(), Some(7));
    let set = client.run(&doc! {"setParameter": 1, "ttlMonitorSleepSecs": 5});
    assert_eq!(at(&set, "was").as_exact_i64(), Some(60));
    for (command, expected) in [
        (doc! {"setParameter": 1, "timeseriesBucketMaxCount": 5}, 20),
        (doc! {"setParameter": 1, "odd": 5}, 72),
        (doc! {"setParameter": 1, "ttlMonitorSleepSecs": 0}, 2),
        (doc! {"setParameter": 1}, 72),
        (
            doc! {"setParameter": 1, "ttlMonitorSleepSecs": 9, "odd": 1},
            72,
        ),
    ] {
        assert_eq!(code(&client.run(&command)), expected, "{command:?}");
    }
    let got = client.run(&doc! {
        "getParameter": doc! {"showDetails": true},
        "ttlMonitorSleepSecs": 1,
    });
    assert_eq!(
        at(&got, "ttlMonitorSleepSecs.value").as_exact_i64(),
        Some(5)
    );
}

#[test]
fn sessions_are_started_and_ended() {
    let server = Server::start();
    let mut client = server.connect();
    let started = client.run(&doc! {"startSession": 1});
    assert_eq!(started.get("timeoutMinutes").as_exact_i64(), Some(30));
    let id = started.get("id").to_value();
    let open = |client: &mut crate::client::Client| {
        let status = client.run(&doc! {"serverStatus": 1});
        at(&status, "logicalSessionRecordCache.activeSessionsCount").as_exact_i64()
    };
    assert_eq!(open(&mut client), Some(1));
    assert!(is_ok(&client.run(&doc! {"ping": 1, "lsid": id.clone()})));
    assert!(is_ok(
        &client.run(&doc! {"refreshSessions": array![id.clone()]})
    ));
    assert_eq!(open(&mut client), Some(1));
    assert!(is_ok(
        &client.run(&doc! {"endSessions": array![id.clone()]})
    ));
    assert_eq!(open(&mut client), Some(0));
    assert!(is_ok(&client.run(&doc! {"killSessions": array![id]})));
    assert!(is_ok(&client.run(&doc! {"killAllSessions": array![]})));
    assert_eq!(code(&client.run(&doc! {"endSessions": 1})), 14);
}

#[test]
fn running_operations_are_listed() {
    let server = Server::start();
    let mut client = server.connect();
    let listed = client.run(&doc! {"currentOp": 1, "comment": "find me"});
    let running = listed.get("inprog").as_array().expect("a list");
    assert_eq!(running.len(), 1);
    let own = running.get(0).as_document().expect("an operation");
    let command = own.get("command").as_document().expect("a command");
    assert_eq!(command.get("comment").as_str(), Some("find me"));
    assert!(own.get("opid").as_exact_i64().is_some());
    let none = client.run(&doc! {"currentOp": 1, "secs_running": doc! {"$gte": 1000}});
    assert!(none.get("inprog").as_array().is_some_and(|a| a.is_empty()));
    assert!(is_ok(&client.run(&doc! {"killOp": 1, "op": 12345})));
    assert_eq!(code(&client.run(&doc! {"killOp": 1})), 4);
}

#[test]
fn idle_connections_are_listed_when_asked_for() {
    let server = Server::start();
    let mut client = server.connect();
    let mut idle = server.connect();
    let hello = doc! {"hello": 1, "client": doc! {"application": doc! {"name": "idler"}}};
    assert!(is_ok(&idle.run(&hello)));
    let everything = client.run(&doc! {"currentOp": 1, "$all": true});
    let everything = everything.get("inprog").as_array().expect("a list");
    let idlers = everything.iter().filter(|operation| {
        let operation = operation.as_document().expect("an operation");
        operation.get("appName").as_str() == Some("idler")
            && matches!(operation.get("active"), ValueRef::Bool(false))
    });
    assert_eq!(idlers.count(), 1);
    for (idle_connections, expected) in [(true, 2), (false, 1)] {
        let stage = doc! {"$currentOp": doc! {"idleConnections": idle_connections}};
        let command = doc! {"aggregate": 1, "pipeline": array![stage], "cursor": doc! {}};
        let reply = client.run(&command);
        let found = at(&reply, "cursor.firstBatch").as_array().map(|a| a.len());
        assert_eq!(found, Some(expected), "{reply:?}");
    }
    drop(client.run(&doc! {"startSession": 1}));
    let stage = doc! {"$listLocalSessions": doc! {}};
    let command = doc! {"aggregate": 1, "pipeline": array![stage], "cursor": doc! {}};
    let sessions = |reply: &Document| {
        let found = at(reply, "cursor.firstBatch").as_array().expect("a batch");
        let id = |session: ValueRef<'_>| session.as_document().map(|s| s.get("_id").to_value());
        format!("{:?}", found.iter().map(id).collect::<Vec<_>>())
    };
    let reply = client.run(&command);
    let found = at(&reply, "cursor.firstBatch").as_array().map(|a| a.len());
    assert_eq!(found, Some(1), "{reply:?}");
    let local = sessions(&reply);
    // With one process the sessions of the deployment are those of the process.
    let stage = doc! {"$listSessions": doc! {"allUsers": true}};
    let mut command = doc! {
        "aggregate": "system.sessions", "pipeline": array![stage], "cursor": doc! {},
    };
    let reply = client.run_on("config", &command);
    assert_eq!(sessions(&reply), local);
    assert_eq!(code(&client.run_on("test", &command)), 73);
    let stage = doc! {"$listSessions": doc! {"some": 1}};
    command = doc! {"aggregate": "system.sessions", "pipeline": array![stage], "cursor": doc! {}};
    assert_eq!(code(&client.run_on("config", &command)), 40_415);
}

#[test]
fn logins_that_cannot_begin() {
    let server = Server::start();
    let mut client = server.connect();
    let start = doc! {"saslStart": 1, "mechanism": "PLAIN", "payload": "eA=="};
    assert_eq!(code(&client.run(&start)), 334);
    let go_on = doc! {"saslContinue": 1, "conversationId": 1, "payload": "eA=="};
    assert_eq!(code(&client.run(&go_on)), 17);
    assert!(is_ok(&client.run(&doc! {"logout": 1})));
    let users = client.run(&doc! {"usersInfo": 1});
    assert!(users.get("users").as_array().is_some_and(|u| u.is_empty()));
    assert_eq!(code(&client.run(&doc! {"replSetGetStatus": 1})), 76);
}

#[test]
fn a_client_introduces_itself_once() {
    let server = Server::start();
    let mut client = server.connect();
    let hello = doc! {"hello": 1, "client": doc! {"application": doc! {"name": "a"}}};
    assert!(is_ok(&client.run(&hello)));
    assert_eq!(code(&client.run(&hello)), 186);
    let long = doc! {"hello": 1, "client": doc! {"x": "y".repeat(600)}};
    assert_eq!(code(&server.connect().run(&long)), 185);
    let waits = doc! {"hello": 1, "maxAwaitTimeMS": 10};
    assert_eq!(code(&client.run(&waits)), 31_368);
}

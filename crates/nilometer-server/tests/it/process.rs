//! The process: how it starts, refuses to start, and ends.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use nilometer_bson::doc;

use crate::client::is_ok;
use crate::server::{Directory, Server, nilometer};

#[test]
fn a_signal_ends_the_server_cleanly() {
    for signal in ["TERM", "INT"] {
        let mut server = Server::start();
        let mut idle = server.connect();
        assert!(is_ok(&idle.run(&doc! {"ping": 1})));
        let asked = Instant::now();
        server.signal(signal);
        assert!(idle.is_closed());
        assert_eq!(server.wait().code(), Some(0), "{signal}");
        assert!(asked.elapsed() < Duration::from_secs(5));
        server.wait_for_line("Shut down");
    }
}

#[test]
fn the_shutdown_command_ends_the_server() {
    let mut server = Server::start();
    let mut client = server.connect();
    assert!(is_ok(&client.run(&doc! {"shutdown": 1})));
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn a_port_in_use_is_told_plainly() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let directory = Directory::new();
    let path = directory.0.to_str().unwrap();
    let ended = nilometer(&["serve", "--port", &port, "--dbpath", path]).output();
    let ended = ended.expect("the program runs");
    assert_eq!(ended.status.code(), Some(48));
    let told = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(
        told.contains(&format!("cannot listen on 127.0.0.1:{port}")),
        "{told}"
    );
}

#[test]
fn bad_options_are_told_plainly() {
    let directory = Directory::new();
    let config = directory.0.join("config.yaml");
    std::fs::write(&config, "storage:\n  engine: x\n").unwrap();
    let config = config.to_str().unwrap();
    for (arguments, text) in [
        (vec!["serve", "--nonsense"], "--nonsense"),
        (vec!["serve", "--port", "70000"], "70000"),
        (vec!["serve", "--setParameter", "odd=1"], "odd"),
        (
            vec!["serve", "--config", "/nowhere/at/all"],
            "/nowhere/at/all",
        ),
        (vec!["serve", "--config", config], "storage.engine"),
        (vec!["nonsense"], "nonsense"),
    ] {
        let ended = nilometer(&arguments).output().expect("the program runs");
        assert_eq!(ended.status.code(), Some(2), "{arguments:?}");
        let told = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(told.contains(text), "{told}");
    }
}

#[cfg(not(feature = "cluster"))]
#[test]
fn object_storage_that_was_not_built_is_told_plainly() {
    for arguments in [
        &["serve", "--storage", "s3://bucket/prefix"][..],
        &["copy", "data", "s3://bucket/prefix"],
        &["copy", "s3://bucket/prefix", "data"],
    ] {
        let ended = nilometer(arguments).output().expect("the program runs");
        assert_eq!(ended.status.code(), Some(2), "{arguments:?}");
        let told = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(told.contains("s3://bucket/prefix"), "{told}");
        assert!(told.contains("the feature `cluster`"), "{told}");
    }
}

#[test]
fn a_configuration_file_is_checked_without_a_server() {
    let directory = Directory::new();
    let file = directory.0.join("file.yaml");
    let check = |text: &str| {
        std::fs::write(&file, text).unwrap();
        let path = file.to_str().unwrap();
        let ended = nilometer(&["config", "check", path]).output();
        let ended = ended.expect("the program runs");
        let told = [ended.stdout, ended.stderr].concat();
        (
            ended.status.code(),
            String::from_utf8_lossy(&told).into_owned(),
        )
    };
    let sound = "net:\n  port: 1\n  httpPort: 2\noperationProfiling:\n  slowOpThresholdMs: 5\n";
    assert_eq!(check(sound).0, Some(0));
    for (text, part) in [
        ("net:\n  ports: 1\n", "net.ports"),
        ("net:\n  port: x\n", "net.port"),
        ("setParameter:\n  odd: 1\n", "odd"),
    ] {
        let (code, told) = check(text);
        assert_eq!(code, Some(2), "{told}");
        assert!(told.contains(part), "{told}");
    }
}

#[test]
fn the_environment_may_say_what_the_command_line_does_not() {
    let directory = Directory::new();
    let mut command = nilometer(&["serve", "--quiet"]);
    command.env("NILOMETER_PORT", "0");
    command.env("NILOMETER_DBPATH", directory.0.join("data"));
    let server = Server::spawn(&mut command);
    assert!(is_ok(&server.connect().run(&doc! {"ping": 1})));
    assert!(directory.0.join("data/FORMAT").exists());
}

#[test]
fn version_completion_and_manual_are_there() {
    let run = |arguments: &[&str]| {
        let ended = nilometer(arguments).output().expect("the program runs");
        assert!(ended.status.success(), "{arguments:?}");
        String::from_utf8_lossy(&ended.stdout).into_owned()
    };
    let version = run(&["--version"]);
    let commit = version.split(['(', ')']).nth(1).expect("a commit");
    assert!(commit == "unknown" || commit.len() == 12, "{version}");
    for shell in ["bash", "zsh", "fish"] {
        assert!(run(&["completion", shell]).contains("salvage"), "{shell}");
    }
    let directory = Directory::new();
    run(&["man", directory.0.to_str().unwrap()]);
    let page = std::fs::read_to_string(directory.0.join("nilometer-serve.1")).unwrap();
    assert!(page.contains("httpPort"));
}

#[test]
fn a_slow_operation_is_logged_with_what_it_did() {
    let server = Server::start_with(&["--slowms", "-1"]);
    let mut client = server.connect();
    let documents: Vec<_> = (0..5).map(|i| doc! {"_id": i}.into()).collect();
    let insert = doc! {"insert": "c", "documents": documents};
    assert!(is_ok(&client.run_on("db", &insert)));
    let find = doc! {"find": "c", "filter": doc! {"a": 1}};
    assert!(is_ok(&client.run_on("db", &find)));
    let line = server.wait_for_line("\"find\"");
    for part in [
        "\"c\":\"COMMAND\",\"id\":51803",
        "\"msg\":\"Slow query\"",
        "\"ns\":\"db.c\"",
        "\"command\":{\"find\":\"c\"",
        "\"planSummary\":\"COLLSCAN\"",
        "\"docsExamined\":5",
        "\"nreturned\":0",
        "\"durationMillis\":",
    ] {
        assert!(line.contains(part), "{part}: {line}");
    }
}

#[test]
fn help_names_every_option() {
    let help = nilometer(&["serve", "--help"])
        .output()
        .expect("the program runs");
    assert!(help.status.success());
    let text = String::from_utf8_lossy(&help.stdout).into_owned();
    for option in [
        "--dbpath",
        "--port",
        "--bind_ip",
        "--config",
        "--quiet",
        "--setParameter",
        "--httpPort",
        "--slowms",
    ] {
        assert!(text.contains(option), "{option}");
    }
}

#[test]
fn a_configuration_file_is_obeyed() {
    let directory = Directory::new();
    let config = directory.0.join("nilometer.conf");
    let log = directory.0.join("log");
    let data = directory.0.join("data");
    let text = format!(
        "storage:\n  dbPath: {}\nnet:\n  port: 0\n  bindIp: 127.0.0.1\n\
         systemLog:\n  quiet: true\nsetParameter:\n  ttlMonitorSleepSecs: 7\n",
        data.display()
    );
    std::fs::write(&config, text).unwrap();
    let arguments = ["serve", "--config", config.to_str().unwrap()];
    let server = Server::spawn(&mut nilometer(&arguments));
    let mut client = server.connect();
    let got = client.run(&doc! {"getParameter": 1, "ttlMonitorSleepSecs": 1});
    assert_eq!(got.get("ttlMonitorSleepSecs").as_exact_i64(), Some(7));
    let lines = client.run(&doc! {"getLog": "global"});
    let lines = lines
        .get("log")
        .as_array()
        .expect("lines")
        .as_document()
        .as_bytes();
    let lines = String::from_utf8_lossy(lines).into_owned();
    assert!(!lines.contains("Connection accepted"));
    assert!(!log.exists());
}

#[test]
fn the_log_may_go_to_a_file() {
    let directory = Directory::new();
    let log = directory.0.join("log");
    let data = directory.0.join("data");
    let arguments = [
        "serve",
        "--port",
        "0",
        "--dbpath",
        data.to_str().unwrap(),
        "--logpath",
        log.to_str().unwrap(),
    ];
    let mut child = nilometer(&arguments).spawn().expect("the program starts");
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        if text.contains("Waiting for connections") {
            assert!(
                text.lines()
                    .all(|line| line.starts_with("{\"t\":{\"$date\":"))
            );
            break;
        }
        assert!(Instant::now() < end, "{text}");
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn connections_beyond_the_limit_are_turned_away() {
    let server = Server::start_with(&["--maxConns", "2"]);
    let mut first = server.connect();
    let mut second = server.connect();
    assert!(is_ok(&first.run(&doc! {"ping": 1})));
    assert!(is_ok(&second.run(&doc! {"ping": 1})));
    assert!(server.connect().is_closed());
    let status = first.run(&doc! {"serverStatus": 1});
    let connections = status.get("connections").as_document().expect("a section");
    assert_eq!(connections.get("current").as_exact_i64(), Some(2));
    assert_eq!(connections.get("available").as_exact_i64(), Some(0));
    assert_eq!(connections.get("rejected").as_exact_i64(), Some(1));
}

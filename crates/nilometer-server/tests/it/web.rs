//! The web page, with requests of browsers and of attackers.

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use nilometer_bson::fuzz::Numbers;
use nilometer_bson::{Document, array, doc};
use serde_json::{Value, json};

use crate::access::create_root;
use crate::client::is_ok;
use crate::http::{exchange, free_port};
use crate::server::{Directory, Server, with_audit};

/// A server with its web page.
struct Page {
    server: Server,
    port: u16,
}

/// A response: status, head in lower case, body.
#[derive(Debug)]
struct HttpResponse {
    status: u16,
    head: String,
    body: String,
}

impl HttpResponse {
    fn parse(text: &str) -> Self {
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((text, ""));
        let status = head.split(' ').nth(1).and_then(|word| word.parse().ok());
        Self {
            status: status.unwrap_or_else(|| panic!("no status: {text:?}")),
            head: head.to_ascii_lowercase(),
            body: body.to_owned(),
        }
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }

    /// Returns the cookie it sets, without attributes.
    fn cookie(&self) -> String {
        let line = self.head.lines().find(|l| l.starts_with("set-cookie: "));
        let line = line.unwrap_or_else(|| panic!("no cookie: {}", self.head));
        let cookie = line.trim_start_matches("set-cookie: ");
        for attribute in ["httponly", "samesite=strict", "path=/", "max-age="] {
            assert!(cookie.contains(attribute), "{cookie}");
        }
        cookie.split(';').next().expect("a cookie").to_owned()
    }
}

impl Page {
    fn start(more: &[&str]) -> Self {
        let (server, port) = Server::start_with_page(more);
        Self { server, port }
    }

    fn send(&self, text: &str) -> HttpResponse {
        HttpResponse::parse(&exchange(self.port, text.as_bytes()))
    }

    fn get(&self, path: &str) -> HttpResponse {
        self.send(&format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"))
    }

    /// Sends a POST like the page, with more lines in the head.
    fn post(&self, path: &str, body: &str, more: &str) -> HttpResponse {
        let length = body.len();
        let port = self.port;
        self.send(&format!(
            "POST {path} HTTP/1.1\r\nHost: localhost:{port}\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n{more}\r\n{body}"
        ))
    }

    fn command(&self, db: &str, command: &Value, cookie: &str) -> HttpResponse {
        let body = json!({"db": db, "command": command}).to_string();
        let more = format!("Cookie: other=1; {cookie}\r\nSec-Fetch-Site: same-origin\r\n");
        self.post("/api/command", &body, &more)
    }

    /// Returns the reply to a command of a server without logins.
    fn reply(&self, db: &str, command: &Value) -> Value {
        let answer = self.command(db, command, "");
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()["reply"].take()
    }

    fn insert(&self, documents: &[Document]) {
        let documents: Vec<_> = documents.iter().map(|d| d.clone().into()).collect();
        let insert = doc! {"insert": "c", "documents": documents};
        assert!(is_ok(&self.server.connect().run_on("a", &insert)));
    }

    /// Waits until the page runs so many commands.
    fn wait_for_operations(&self, count: usize) {
        let mut client = self.server.connect();
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            let reply = client.run(&doc! {"currentOp": 1});
            let all = reply.get("inprog").as_array().expect("operations");
            let names = all.iter().filter_map(|one| one.as_document());
            let of_page = |one: &nilometer_bson::DocRef<'_>| {
                one.get("appName").as_str() == Some("Nilometer web page")
            };
            if names.filter(of_page).count() == count {
                return;
            }
            assert!(Instant::now() < end, "{count} were expected");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn log_in(&self, user: &str, password: &str) -> HttpResponse {
        let body = json!({"user": user, "password": password, "db": "admin"});
        self.post("/api/login", &body.to_string(), "")
    }
}

#[test]
fn files_are_served_with_a_strict_policy() {
    let page = Page::start(&[]);
    for (path, kind) in [
        ("/", "text/html"),
        ("/app.js", "text/javascript"),
        ("/frame.css", "text/css"),
        ("/icon.svg", "image/svg+xml"),
    ] {
        let answer = page.get(path);
        assert_eq!(answer.status, 200, "{path}");
        for line in [
            &format!("content-type: {kind}"),
            "content-security-policy: default-src 'none'; script-src 'self'; style-src 'self';",
            "x-content-type-options: nosniff",
            "x-frame-options: deny",
            "referrer-policy: no-referrer",
            "cross-origin-opener-policy: same-origin",
            "cross-origin-resource-policy: same-origin",
            "cache-control: no-store",
        ] {
            assert!(
                answer.head.contains(line),
                "{path}: {line}: {}",
                answer.head
            );
        }
        assert!(!answer.head.contains("access-control-allow"), "{path}");
        let length = format!("content-length: {}", answer.body.len());
        assert!(answer.head.contains(&length), "{path}");
    }
    for path in [
        "/../Cargo.toml",
        "/app.js/",
        "//",
        "/%2e%2e/",
        "/api/command",
    ] {
        assert_eq!(page.get(path).status, 404, "{path}");
    }
    let head = page.send("HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!((head.status, head.body.as_str()), (200, ""));
    // The other paths still work.
    assert_eq!(page.get("/healthz").status, 200);
    assert!(page.get("/metrics").body.ends_with("# EOF\n"));
}

#[test]
fn the_page_is_off_unless_asked_for() {
    let port = free_port();
    let text = port.to_string();
    let page = Page {
        server: Server::start_with(&["--httpPort", &text]),
        port,
    };
    assert_eq!(page.get("/").status, 404);
    assert_eq!(page.get("/app.js").status, 404);
    let answer = page.command("a", &json!({"ping": 1}), "");
    assert_eq!(answer.status, 405);
}

#[test]
fn commands_answer_in_canonical_extended_json() {
    let page = Page::start(&[]);
    page.insert(&[doc! {"_id": 1, "x": 1.5, "big": 9_007_199_254_740_993_i64}]);
    let reply = page.reply("a", &json!({"find": "c", "filter": {"x": {"$gt": 1}}}));
    let found = &reply["cursor"]["firstBatch"][0];
    assert_eq!(found["x"]["$numberDouble"], "1.5");
    assert_eq!(found["big"]["$numberLong"], "9007199254740993");
    // The same number as typed: sent as text that JavaScript does not parse.
    let typed = r#"{"db": "a", "command": {"count": "c", "query": {"big": 9007199254740993}}}"#;
    let answer = page.post("/api/command", typed, "");
    assert_eq!(answer.json()["reply"]["n"]["$numberInt"], "1");
    let explain = json!({"explain": {"find": "c"}, "verbosity": "executionStats"});
    let reply = page.reply("a", &explain);
    assert_eq!(
        reply["executionStats"]["nReturned"]["$numberLong"], "1",
        "{reply}"
    );
    let status = page.reply("admin", &json!({"serverStatus": 1}));
    assert!(status["opLatencies"]["writes"]["ops"]["$numberLong"].is_string());
    // An error of a command is an ordinary reply.
    let reply = page.reply("a", &json!({"find": "c", "filter": {"$what": 1}}));
    assert_eq!(reply["ok"]["$numberDouble"], "0.0");
    assert_eq!(reply["code"]["$numberInt"], "2");
}

#[test]
fn the_page_adds_but_changes_nothing() {
    let page = Page::start(&[]);
    page.insert(&[doc! {"_id": 1}]);
    for command in [
        json!({"insert": "system.buckets.c", "documents": [{"_id": 2}]}),
        json!({"create": "d", "capped": true, "size": 1}),
        json!({"update": "c", "updates": []}),
        json!({"delete": "c", "deletes": [{"q": {}, "limit": 0}]}),
        json!({"drop": "c"}),
        json!({"dropDatabase": 1}),
        json!({"shutdown": 1}),
        json!({"createUser": "x", "pwd": "x", "roles": ["root"]}),
        json!({"setParameter": 1, "quiet": 1}),
        json!({"aggregate": "c", "pipeline": [{"$out": "d"}], "cursor": {}}),
        json!({"explain": {"delete": "c", "deletes": [{"q": {}, "limit": 0}]}}),
        json!({}),
    ] {
        let answer = page.command("a", &command, "");
        assert_eq!(answer.status, 403, "{command}: {answer:?}");
        assert!(answer.json()["error"].is_string());
    }
    for internal in ["admin", "config", "local"] {
        let insert = json!({"insert": "c", "documents": [{"_id": 2}]});
        assert_eq!(page.command(internal, &insert, "").status, 403);
    }
    let reply = page.reply("a", &json!({"count": "c"}));
    assert_eq!(reply["n"]["$numberInt"], "1");
    let insert = json!({"insert": "c", "documents": [{"_id": 1}, {"_id": 2}], "ordered": false});
    let reply = page.reply("a", &insert);
    assert_eq!(reply["n"]["$numberInt"], "1");
    assert_eq!(reply["writeErrors"][0]["code"]["$numberInt"], "11000");
    let names = page.reply("a", &json!({"listCollections": 1}));
    assert_eq!(
        names["cursor"]["firstBatch"].as_array().map(Vec::len),
        Some(1)
    );
}

#[test]
fn answers_are_bounded_and_leave_no_cursor() {
    let page = Page::start(&[]);
    let documents: Vec<Document> = (0..6000).map(|i| doc! {"_id": i}).collect();
    page.insert(&documents);
    for command in [
        json!({"find": "c"}),
        json!({"find": "c", "batchSize": 1_000_000}),
        json!({"aggregate": "c", "pipeline": [], "cursor": {"batchSize": 1_000_000}}),
    ] {
        let answer = page.command("a", &command, "").json();
        let batch = &answer["reply"]["cursor"]["firstBatch"];
        assert_eq!(batch.as_array().map(Vec::len), Some(5000), "{command}");
        assert_eq!(answer["more"], true);
    }
    let answer = page.command("a", &json!({"find": "c", "limit": 10}), "");
    assert_eq!(answer.json()["more"], false);
    let status = page.server.connect().run(&doc! {"serverStatus": 1});
    let metrics = status.get("metrics").as_document().expect("metrics");
    let open = metrics
        .get("cursor")
        .as_document()
        .expect("cursors")
        .get("open");
    let open = open
        .as_document()
        .expect("open")
        .get("total")
        .as_exact_i64();
    assert_eq!(open, Some(0));
    // A reply that is too large is refused.
    page.insert(&[doc! {"_id": -1, "x": "y".repeat(5_000_000)}]);
    let answer = page.command("a", &json!({"find": "c", "filter": {"_id": -1}}), "");
    assert_eq!(answer.status, 422);
    assert!(answer.body.contains("$limit"), "{}", answer.body);
}

/// Returns a command that would take hours.
fn endless() -> Value {
    let range = json!({"$range": [0, 1000]});
    json!({"aggregate": 1, "cursor": {}, "pipeline": [
        {"$documents": [{"a": range}]},
        {"$unwind": "$a"},
        {"$set": {"b": range}},
        {"$unwind": "$b"},
        {"$set": {"c": range}},
        {"$unwind": "$c"},
        {"$group": {"_id": null, "n": {"$sum": 1}}},
    ]})
}

#[test]
fn a_command_ends_in_time_or_when_nobody_waits_for_it() {
    let page = Page::start(&[]);
    let mut command = endless();
    command["maxTimeMS"] = json!(50);
    let reply = page.reply("a", &command);
    assert_eq!(reply["codeName"], "MaxTimeMSExpired", "{reply}");
    let body = json!({"db": "a", "command": endless()}).to_string();
    let request = format!(
        "POST /api/command HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(("127.0.0.1", page.port)).expect("a connection");
    stream.write_all(request.as_bytes()).expect("sent");
    page.wait_for_operations(1);
    drop(stream);
    page.wait_for_operations(0);
    // The shutdown does not wait for it, either.
    let mut stream = TcpStream::connect(("127.0.0.1", page.port)).expect("a connection");
    stream.write_all(request.as_bytes()).expect("sent");
    page.wait_for_operations(1);
    let started = Instant::now();
    let Page { mut server, .. } = page;
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
    assert!(started.elapsed() < Duration::from_secs(15));
}

/// Returns a command with work for years inside one document.
fn endless_inside_one_document() -> Value {
    let range = json!({"$range": [0, "$n"]});
    let mut work = range.clone();
    for _ in 0..4 {
        work = json!({"$map": {"input": range, "in": {"$sum": work}}});
    }
    json!({"aggregate": 1, "cursor": {}, "pipeline": [
        {"$documents": [{"n": 100_000}]},
        {"$set": {"x": {"$sum": work}}},
    ]})
}

/// Each slow command has one of twelve turns, until it ends: by its time limit, or because the browser has left.
#[test]
fn slow_expressions_do_not_leave_the_page_without_turns() {
    let page = Page::start(&[]);
    let request = |command: &Value| {
        let body = json!({"db": "a", "command": command}).to_string();
        let length = body.len();
        format!(
            "POST /api/command HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n{body}"
        )
    };
    let mut limited = endless_inside_one_document();
    limited["maxTimeMS"] = json!(50);
    let (limited, port) = (request(&limited), page.port);
    std::thread::scope(|scope| {
        for _ in 0..12 {
            scope.spawn(|| {
                let answer = HttpResponse::parse(&exchange(port, limited.as_bytes()));
                assert_eq!(answer.status, 200, "{answer:?}");
                let name = &answer.json()["reply"]["codeName"];
                assert_eq!(name, "MaxTimeMSExpired", "{answer:?}");
            });
        }
    });
    let endless = request(&endless_inside_one_document());
    let send = || {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
        stream.write_all(endless.as_bytes()).expect("sent");
        stream
    };
    let browsers: Vec<TcpStream> = (0..12).map(|_| send()).collect();
    page.wait_for_operations(12);
    drop(browsers);
    page.wait_for_operations(0);
    let reply = page.reply("a", &json!({"ping": 1}));
    assert_eq!(reply["ok"]["$numberDouble"], "1.0", "{reply}");
}

#[test]
fn other_pages_and_other_names_are_refused() {
    let page = Page::start(&["--webHosts", "meter.example"]);
    let port = page.port;
    let body = r#"{"db": "a", "command": {"ping": 1}}"#;
    let ours = format!("Origin: http://localhost:{port}\r\nSec-Fetch-Site: same-origin\r\n");
    assert_eq!(page.post("/api/command", body, &ours).status, 200);
    for foreign in [
        "Origin: http://evil.example\r\n".to_owned(),
        "Origin: null\r\n".to_owned(),
        format!("Origin: http://localhost:{}\r\n", port ^ 1),
        format!("Origin: http://localhost:{port}.evil.example\r\n"),
        "Sec-Fetch-Site: cross-site\r\n".to_owned(),
        "Sec-Fetch-Site: same-site\r\n".to_owned(),
        "Sec-Fetch-Site: none\r\n".to_owned(),
    ] {
        for path in ["/api/command", "/api/login", "/api/logout", "/api/session"] {
            assert_eq!(page.post(path, body, &foreign).status, 403, "{foreign}");
        }
    }
    for kind in [
        "",
        "Content-Type: text/plain\r\n",
        "Content-Type: application/x-www-form-urlencoded\r\n",
    ] {
        let answer = page.send(&format!(
            "POST /api/command HTTP/1.1\r\nHost: localhost\r\n{kind}Content-Length: {}\r\n\r\n{body}",
            body.len()
        ));
        assert_eq!(answer.status, 415, "{kind}");
    }
    for (host, status) in [
        ("localhost", 200),
        ("127.0.0.1:1", 200),
        ("[::1]", 200),
        ("meter.example:80", 200),
        ("evil.example", 421),
        ("localhost.evil.example", 421),
        ("", 421),
    ] {
        let get = page.send(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        assert_eq!(get.status, status, "{host}");
        let post = page.send(&format!(
            "POST /api/command HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        ));
        assert_eq!(post.status, status, "{host}");
    }
    assert_eq!(page.send("GET / HTTP/1.1\r\n\r\n").status, 421);
    let twice = "GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n";
    assert_eq!(page.send(twice).status, 400);
}

#[test]
fn what_is_no_sound_request_is_refused() {
    let page = Page::start(&[]);
    let long = "x".repeat(300 * 1024);
    assert_eq!(page.post("/api/command", &long, "").status, 413);
    let sent = |more: &str, body: &str| {
        let text = format!(
            "POST /api/command HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{more}\r\n{body}"
        );
        page.send(&text).status
    };
    assert_eq!(sent("Content-Length: 99999999999999999999999\r\n", ""), 413);
    assert_eq!(sent("Content-Length: -1\r\n", ""), 400);
    assert_eq!(
        sent("Content-Length: 2\r\nContent-Length: 3\r\n", "{}"),
        400
    );
    assert_eq!(
        sent("Transfer-Encoding: chunked\r\n", "2\r\n{}\r\n0\r\n\r\n"),
        411
    );
    for method in ["PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"] {
        let text = format!("{method} /api/command HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert_eq!(page.send(&text).status, 405, "{method}");
    }
    assert_eq!(page.post("/", "{}", "").status, 405);
    assert_eq!(page.post("/api/other", "{}", "").status, 404);
    for body in [
        "",
        "[]",
        "{",
        "{}",
        r#"{"db": 1, "command": {"ping": 1}}"#,
        r#"{"db": "a", "command": []}"#,
        r#"{"db": "a"}"#,
        r#"{"db": "a", "command": {"ping": {"$oid": "x"}}}"#,
    ] {
        assert_eq!(page.post("/api/command", body, "").status, 400, "{body}");
    }
    let deep = format!("{}1{}", r#"{"a":"#.repeat(5000), "}".repeat(5000));
    assert_eq!(page.post("/api/command", &deep, "").status, 400);
    // An invalid database name is an error of the command.
    assert_eq!(
        page.reply("a b", &json!({"ping": 1}))["code"]["$numberInt"],
        "73"
    );
}

/// After arbitrary requests the server is alive and nothing has panicked.
#[test]
fn hostile_bytes_harm_nobody() {
    let page = Page::start(&[]);
    let body = r#"{"db": "a", "command": {"find": "c", "filter": {"x": {"$gt": 1}}}}"#;
    let sound = format!(
        "POST /api/command HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    for seed in 0..120 {
        let mut numbers = Numbers::new(seed);
        let mut bytes = sound.clone().into_bytes();
        for _ in 0..=numbers.below(6) {
            let at = usize::try_from(numbers.below(bytes.len() as u64)).expect("small");
            bytes[at] = u8::try_from(numbers.below(256)).expect("a byte");
        }
        let mut stream = TcpStream::connect(("127.0.0.1", page.port)).expect("a connection");
        // It may be refused before everything is sent; the answer is not read.
        drop(stream.write_all(&bytes));
    }
    let end = Instant::now() + Duration::from_secs(20);
    while exchange(page.port, b"GET /healthz HTTP/1.1\r\n\r\n").is_empty() {
        assert!(Instant::now() < end, "the port does not answer any more");
    }
    let status = page.reply("admin", &json!({"serverStatus": 1}));
    assert_eq!(status["asserts"]["regular"]["$numberLong"], "0");
}

#[test]
fn nothing_is_told_before_a_login() {
    let page = Page::start(&["--auth"]);
    // The first user cannot be created here, even from the same machine.
    let create = json!({"createUser": "x", "pwd": "x", "roles": ["root"]});
    assert_eq!(page.command("admin", &create, "").status, 401);
    create_root(&page.server);
    for command in [
        json!({"ping": 1}),
        json!({"find": "c"}),
        json!({"serverStatus": 1}),
    ] {
        let answer = page.command("admin", &command, "");
        assert_eq!(answer.status, 401, "{command}");
    }
    let forged = format!("nilometer_{}={}", page.port, "0".repeat(64));
    assert_eq!(
        page.command("a", &json!({"find": "c"}), &forged).status,
        401
    );
    assert_eq!(page.post("/api/language", "{}", "").status, 401);
    let session = page.post("/api/session", "{}", "").json();
    assert_eq!(session["needsLogin"], true);
    assert!(session.get("user").is_none_or(Value::is_null));
    // The files need no login.
    assert_eq!(page.get("/").status, 200);
    assert_eq!(page.get("/metrics").status, 403);
}

#[test]
fn a_login_lasts_until_the_logout() {
    let directory = Directory::new();
    let audit = directory.0.join("audit.json");
    let page = Page::start(&with_audit(&audit));
    create_root(&page.server);
    let wrong = page.log_in("root", "wrong");
    let unknown = page.log_in("nobody", "wrong");
    assert_eq!((wrong.status, unknown.status), (401, 401));
    assert_eq!(
        wrong.body, unknown.body,
        "an unknown user is not distinguished"
    );
    assert_eq!(page.log_in("root", "pen\u{7}cil").status, 401);
    assert!(!wrong.head.contains("set-cookie"));
    let answer = page.log_in("root", "pencil");
    assert_eq!(answer.status, 200, "{answer:?}");
    let cookie = answer.cookie();
    let find = json!({"find": "c"});
    assert_eq!(page.command("a", &find, &cookie).status, 200);
    assert_eq!(page.command("a", &find, "").status, 401);
    let more = format!("Cookie: {cookie}\r\n");
    let session = page.post("/api/session", "{}", &more).json();
    assert_eq!(
        (&session["user"], &session["db"]),
        (&json!("root"), &json!("admin"))
    );
    // Each login has a new token and ends the previous session.
    let body = json!({"user": "root", "password": "pencil"}).to_string();
    let second = page.post("/api/login", &body, &more).cookie();
    assert_ne!(second, cookie);
    assert_eq!(page.command("a", &find, &cookie).status, 401);
    assert_eq!(page.command("a", &find, &second).status, 200);
    let out = page.post("/api/logout", "{}", &format!("Cookie: {second}\r\n"));
    assert_eq!(out.status, 200);
    assert_eq!(page.command("a", &find, &second).status, 401);
    let written = std::fs::read_to_string(&audit).expect("a log");
    let told: Vec<(String, i64)> = written
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON"))
        .filter(|event| event["atype"] == "authenticate")
        .map(|event| {
            let user = event["param"]["user"].as_str().expect("a user");
            (user.to_owned(), event["result"].as_i64().expect("a code"))
        })
        .collect();
    let expected = [("root", 18), ("nobody", 18), ("root", 0), ("root", 0)];
    assert_eq!(told, expected.map(|(user, code)| (user.to_owned(), code)));
    assert!(!written.contains("pencil") && !written.contains(&cookie));
}

#[test]
fn users_may_do_on_the_page_what_they_may_do() {
    let page = Page::start(&["--auth"]);
    create_root(&page.server);
    let root = page.log_in("root", "pencil").cookie();
    let mut client = page.server.connect();
    let login = |client: &mut crate::client::Client| {
        client.log_in(
            nilometer::auth::Mechanism::Sha256,
            "admin",
            "root",
            "pencil",
        )
    };
    assert!(is_ok(&login(&mut client)));
    for (user, mechanism) in [("old", "SCRAM-SHA-1"), ("new", "SCRAM-SHA-256")] {
        let create = doc! {
            "createUser": user, "pwd": "brush", "mechanisms": array![mechanism],
            "roles": array![doc! {"role": "read", "db": "a"}],
        };
        assert!(is_ok(&client.run(&create)));
        let cookie = page.log_in(user, "brush").cookie();
        let code = |db: &str, command: Value| {
            let answer = page.command(db, &command, &cookie);
            assert_eq!(answer.status, 200, "{answer:?}");
            answer.json()["reply"]["code"]["$numberInt"]
                .as_str()
                .map(str::to_owned)
        };
        assert_eq!(code("a", json!({"find": "c"})), None);
        assert_eq!(code("b", json!({"find": "c"})).as_deref(), Some("13"));
        assert_eq!(
            code("admin", json!({"serverStatus": 1})).as_deref(),
            Some("13")
        );
        // A dropped user has no session.
        assert!(is_ok(&client.run(&doc! {"dropUser": user})));
        assert_eq!(
            page.command("a", &json!({"find": "c"}), &cookie).status,
            401
        );
    }
    assert_eq!(page.command("b", &json!({"find": "c"}), &root).status, 200);
}

#[test]
fn failed_logins_are_slowed_down() {
    let page = Page::start(&["--auth"]);
    create_root(&page.server);
    for _ in 0..6 {
        assert_eq!(page.log_in("root", "wrong").status, 401);
    }
    let started = Instant::now();
    assert_eq!(page.log_in("root", "wrong").status, 401);
    assert!(started.elapsed().as_millis() >= 200);
}

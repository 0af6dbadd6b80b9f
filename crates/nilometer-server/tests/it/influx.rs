//! The port for clients of InfluxDB, through a real server.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::GzEncoder;
use nilometer_bson::extjson::to_relaxed;
use nilometer_bson::{DocRef, ValueRef, array, doc};
use serde_json::Value;

use crate::access::create_root;
use crate::client::{Client, is_ok};
use crate::http::{exchange, free_port};
use crate::server::Server;

/// A server with the port.
struct Influx {
    server: Server,
    port: u16,
}

/// Status, head and body of a response.
#[derive(Debug)]
struct HttpAnswer {
    status: u16,
    head: String,
    body: String,
}

impl HttpAnswer {
    /// Returns the text of the error.
    fn error(&self) -> String {
        let json: Value =
            serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"));
        json["error"].as_str().unwrap_or_default().to_owned()
    }
}

impl Influx {
    fn start(more: &[&str]) -> Self {
        let port = free_port();
        let text = port.to_string();
        let mut arguments = vec!["--influxPort", &text];
        arguments.extend_from_slice(more);
        Self {
            server: Server::start_with(&arguments),
            port,
        }
    }

    /// Creates the user `root`, and returns a client that it has logged in.
    fn log_in_root(&self) -> Client {
        create_root(&self.server);
        let mut client = self.server.connect();
        client.log_in(
            nilometer::auth::Mechanism::Sha256,
            "admin",
            "root",
            "pencil",
        );
        client
    }

    fn send(&self, head: &str, body: &[u8]) -> HttpAnswer {
        let head = head.replacen("\r\n", "\r\nConnection: close\r\n", 1);
        let text = exchange(self.port, &[head.as_bytes(), body].concat());
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head.split(' ').nth(1).and_then(|word| word.parse().ok());
        HttpAnswer {
            status: status.unwrap_or_else(|| panic!("no status: {text:?}")),
            head: head.to_owned(),
            body: body.to_owned(),
        }
    }

    fn get(&self, target: &str) -> HttpAnswer {
        self.send(&format!("GET {target} HTTP/1.1\r\nHost: x\r\n\r\n"), b"")
    }

    fn post(&self, target: &str, more: &str, body: &[u8]) -> HttpAnswer {
        let length = body.len();
        let head =
            format!("POST {target} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n{more}\r\n");
        self.send(&head, body)
    }

    /// Returns the answer to statements, with times in ms.
    fn query(&self, statements: &str, more: &str) -> HttpAnswer {
        let form = format!("epoch=ms&db=d&q={}{more}", escaped(statements));
        self.post(
            "/query",
            "Content-Type: application/x-www-form-urlencoded\r\n",
            form.as_bytes(),
        )
    }

    /// Writes lines with times in ms, which must succeed.
    fn write(&self, lines: &str) {
        let answer = self.post("/write?db=d&precision=ms", "", lines.as_bytes());
        assert_eq!(answer.status, 204, "{answer:?}");
    }

    /// Returns the documents of a collection of `d` by their times, without `_id`.
    fn documents(&self, collection: &str) -> Vec<String> {
        let find = doc! {
            "find": collection, "sort": doc! {"time": 1, "tags": 1}, "projection": doc! {"_id": 0},
        };
        let reply = self.server.connect().run_on("d", &find);
        assert!(is_ok(&reply), "{reply:?}");
        let cursor = reply.get("cursor").as_document().expect("a cursor");
        let batch = cursor.get("firstBatch").as_array().expect("documents");
        let documents = batch.iter().filter_map(ValueRef::as_document);
        documents.map(to_relaxed).collect()
    }
}

fn escaped(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

fn packed(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).expect("memory");
    encoder.finish().expect("memory")
}

/// A client that keeps its connection.
struct KeptConnection(BufReader<TcpStream>);

impl KeptConnection {
    fn open(influx: &Influx) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", influx.port)).expect("a connection");
        let patience = Some(Duration::from_secs(20));
        stream.set_read_timeout(patience).expect("an option");
        Self(BufReader::new(stream))
    }

    fn send(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).expect("bytes are taken");
    }

    /// Returns the head and the body of the next answer.
    fn read(&mut self) -> (String, String) {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            let read = self.0.read_line(&mut head).expect("an answer");
            assert!(read > 0, "the end: {head}");
        }
        let length = head.split("Content-Length: ").nth(1);
        let length = length.and_then(|rest| rest.split("\r\n").next());
        let length = length.map_or(0, |text| text.parse().expect("a number"));
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).expect("a body");
        (head, String::from_utf8(body).expect("text"))
    }

    /// True if the server has closed the connection.
    fn is_at_end(&mut self) -> bool {
        self.0.read(&mut [0]).expect("the end or a byte") == 0
    }
}

fn write_of(line: &str, more: &str) -> Vec<u8> {
    let length = line.len();
    format!("POST /write?db=d&precision=ms HTTP/1.1\r\nHost: x\r\n{more}Content-Length: {length}\r\n\r\n{line}")
        .into_bytes()
}

#[test]
fn a_connection_takes_one_request_after_the_other() {
    let influx = Influx::start(&[]);
    let mut kept = KeptConnection::open(&influx);
    for time in 0..3 {
        kept.send(&write_of(&format!("m,h=a v=1 {time}"), ""));
        let (head, _) = kept.read();
        assert!(head.starts_with("HTTP/1.1 204"), "{head}");
        assert!(!head.contains("Connection: close"), "{head}");
    }
    // Several at once, one in chunks, and one with an error behind which the connection stays.
    let chunks =
        b"POST /write?db=d&precision=ms HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n\
        5\r\nm,h=a\r\n6\r\n v=1 4\r\n0\r\n\r\n";
    let count =
        b"GET /query?db=d&epoch=ms&q=SELECT%20count(v)%20FROM%20m HTTP/1.1\r\nHost: x\r\n\r\n";
    let invalid = write_of("m,h=a v=", "");
    let ping = b"HEAD /ping HTTP/1.1\r\nHost: x\r\n\r\n";
    let together = [
        &write_of("m,h=a v=1 3", "")[..],
        chunks,
        &invalid,
        ping,
        count,
    ];
    kept.send(&together.concat());
    for status in ["204", "204", "400", "204"] {
        let (head, _) = kept.read();
        assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{head}");
    }
    let (head, body) = kept.read();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(body.contains("[[0,5]]"), "{body}");
    kept.send(&write_of("m,h=a v=1 5", "Connection: Close\r\n"));
    assert!(kept.read().0.contains("Connection: close"));
    assert!(kept.is_at_end());
}

#[test]
fn connections_end_where_the_next_request_could_not_be_found() {
    let influx = Influx::start(&[]);
    let with_trailer = "POST /write?db=d HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n\
        9\r\nm,h=a v=1\r\n0\r\nX: y\r\n\r\n";
    let unread = "POST /unknown HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc";
    let older = "GET /ping HTTP/1.0\r\nHost: x\r\n\r\n";
    for request in [with_trailer, unread, older, "no request\r\n\r\n"] {
        let mut kept = KeptConnection::open(&influx);
        kept.send(request.as_bytes());
        let (head, _) = kept.read();
        assert!(head.contains("Connection: close"), "{request}: {head}");
        assert!(kept.is_at_end());
    }
}

#[test]
fn idle_connections_do_not_delay_the_end() {
    let mut influx = Influx::start(&[]);
    let mut kept = KeptConnection::open(&influx);
    kept.send(&write_of("m,h=a v=1 1", ""));
    kept.read();
    let began = Instant::now();
    influx.server.signal("TERM");
    assert_eq!(influx.server.wait().code(), Some(0));
    assert!(began.elapsed() < Duration::from_secs(15));
    assert!(kept.is_at_end());
}

#[test]
fn the_port_says_what_it_is() {
    let influx = Influx::start(&[]);
    let ping = influx.get("/ping");
    assert_eq!((ping.status, ping.body.as_str()), (204, ""));
    assert!(ping.head.contains("X-Influxdb-Version: 1.8"), "{ping:?}");
    let health = influx.get("/health");
    assert_eq!(health.status, 200);
    assert!(health.body.contains("\"status\":\"pass\""), "{health:?}");
    assert_eq!(influx.get("/ping?verbose=true").status, 200);
    assert_eq!(influx.get("/healthz").status, 200);
    assert_eq!(influx.get("/metrics").status, 404);
    assert_eq!(influx.get("/write?db=d").status, 405);
    let of_page = influx.post("/write?db=d", "Origin: http://x\r\n", b"a b=1");
    assert_eq!(of_page.status, 403, "{of_page:?}");
}

#[test]
fn refused_points_of_several_measurements_are_named_by_their_lines() {
    let influx = Influx::start(&[]);
    let options = doc! {
        "timeField": "time", "metaField": "tags", "nilometer": doc! {"duplicates": "error"},
    };
    let mut client = influx.server.connect();
    for name in ["strict", "strict2"] {
        let reply = client.run_on("d", &doc! {"create": name, "timeseries": options.clone()});
        assert!(is_ok(&reply), "{reply:?}");
    }
    let lines = "strict v=1 5\nother v=1 5\nstrict v=2 5\nstrict2 v=1 5\nstrict v=3 6\nstrict2 v=4 5\nother v=2 6";
    let answer = influx.post("/write?db=d&precision=ms", "", lines.as_bytes());
    let error = answer.error();
    assert_eq!(answer.status, 400, "{answer:?}");
    assert!(
        error.starts_with("partial write: line 3, column 1: unable to parse 'strict v=2 5': "),
        "{error}"
    );
    assert!(
        error.contains("; line 6, column 1: unable to parse 'strict2 v=4 5': "),
        "{error}"
    );
    assert!(error.ends_with(" dropped=2"), "{error}");
    for (name, count) in [("strict", 2), ("strict2", 1), ("other", 2)] {
        assert_eq!(influx.documents(name).len(), count, "{name}");
    }
    // All of them: there is no other command that could have failed.
    let again = influx.post(
        "/write?db=d&precision=ms",
        "",
        b"strict v=9 5\nstrict2 v=9 5",
    );
    assert!(again.error().ends_with(" dropped=2"), "{again:?}");
}

#[test]
fn points_are_written_as_time_series() {
    let influx = Influx::start(&[]);
    influx.write("cpu,host=a,region=eu usage=1.5,cores=8i,up=t,name=\"x y\" 1000\ncpu,host=b usage=2 2000\nmem free=1i 5");
    let packed = packed(b"cpu,host=a usage=3 3000000000");
    let answer = influx.post("/write?db=d", "Content-Encoding: gzip\r\n", &packed);
    assert_eq!(answer.status, 204, "{answer:?}");
    let v2 = influx.post(
        "/api/v2/write?org=o&bucket=d/autogen&precision=s",
        "",
        b"cpu,host=a usage=4 4",
    );
    assert_eq!(v2.status, 204, "{v2:?}");
    // Telegraf sends chunks.
    let chunked = influx.send(
        "POST /write?db=d&precision=s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"c\r\ncpu,host=a u\r\n9\r\nsage=5 5\n\r\n0\r\n\r\n",
    );
    assert_eq!(chunked.status, 204, "{chunked:?}");
    assert_eq!(
        influx.documents("cpu"),
        [
            r#"{"time":{"$date":"1970-01-01T00:00:01Z"},"tags":{"host":"a","region":"eu"},"usage":1.5,"cores":8,"up":true,"name":"x y"}"#,
            r#"{"time":{"$date":"1970-01-01T00:00:02Z"},"tags":{"host":"b"},"usage":2.0}"#,
            r#"{"time":{"$date":"1970-01-01T00:00:03Z"},"tags":{"host":"a"},"usage":3.0}"#,
            r#"{"time":{"$date":"1970-01-01T00:00:04Z"},"tags":{"host":"a"},"usage":4.0}"#,
            r#"{"time":{"$date":"1970-01-01T00:00:05Z"},"tags":{"host":"a"},"usage":5.0}"#,
        ]
    );
    let list = doc! {"listCollections": 1, "filter": doc! {"name": "mem"}};
    let reply = influx.server.connect().run_on("d", &list);
    let text = to_relaxed(reply.as_ref());
    assert!(
        text.contains(r#""timeField":"time","metaField":"tags""#)
            && text.contains(r#""duplicates":"merge""#),
        "{text}"
    );
}

#[test]
fn fields_of_one_time_come_together() {
    let influx = Influx::start(&[]);
    influx.write("m,t=x a=1 1\nm,t=y a=7 1\nm,t=x b=2 1\nm,t=x a=3,c=4 1");
    influx.write("m,t=x d=5 1\nm,t=x a=6 1");
    assert_eq!(
        influx.documents("m"),
        [
            r#"{"time":{"$date":"1970-01-01T00:00:00.001Z"},"tags":{"t":"x"},"a":6.0,"b":2.0,"c":4.0,"d":5.0}"#,
            r#"{"time":{"$date":"1970-01-01T00:00:00.001Z"},"tags":{"t":"y"},"a":7.0}"#,
        ]
    );
}

#[test]
fn invalid_lines_are_named_and_the_others_kept() {
    let influx = Influx::start(&[]);
    influx.write("m v=1i 1");
    let body = b"m v=2i 2\nm v=3 3\n\nm v=\nm,t v=1i 4\nm w=1 5";
    let answer = influx.post("/write?db=d&precision=ms", "", body);
    assert_eq!(answer.status, 400);
    assert_eq!(
        answer.error(),
        "partial write: line 2, column 3: unable to parse 'm v=3 3': field type conflict: input field \"v\" on \
         measurement \"m\" is type float, already exists as type integer; line 4, column 5: unable to parse 'm v=': \
         missing field value; line 5, column 4: unable to parse 'm,t v=1i 4': missing tag value dropped=3"
    );
    assert_eq!(
        influx.documents("m"),
        [
            r#"{"time":{"$date":"1970-01-01T00:00:00.001Z"},"v":1}"#,
            r#"{"time":{"$date":"1970-01-01T00:00:00.002Z"},"v":2}"#,
            r#"{"time":{"$date":"1970-01-01T00:00:00.005Z"},"w":1.0}"#,
        ]
    );
    let many = "bad\n".repeat(50);
    let answer = influx.post("/write?db=d", "", many.as_bytes());
    assert!(
        answer.error().ends_with("; and 30 more dropped=50"),
        "{answer:?}"
    );
    // A field of a collection that is dropped is free again.
    let dropped = influx.server.connect().run_on("d", &doc! {"drop": "m"});
    assert!(is_ok(&dropped));
    influx.write("m v=\"text\" 1");
}

#[test]
fn types_are_those_of_the_collection_after_a_restart_and_of_other_clients() {
    let influx = Influx::start(&[]);
    let create = doc! {"create": "x", "timeseries": doc! {"timeField": "t", "metaField": "m"}};
    let mut client = influx.server.connect();
    assert!(is_ok(&client.run_on("d", &create)));
    let point =
        doc! {"t": nilometer_bson::Value::DateTime(1), "m": doc! {"a": "b"}, "v": 5_i64, "s": "x"};
    let insert = doc! {"insert": "x", "documents": array![point]};
    assert!(is_ok(&client.run_on("d", &insert)));
    let refused = influx.post(
        "/write?db=d&precision=ms",
        "",
        b"x v=1.5,s=\"y\" 2\nx,a=b v=6i 2\nx t=1 3\nx s=1i 4",
    );
    let error = refused.error();
    assert!(
        error.contains("line 1, column 3") && error.contains("line 3, column 3"),
        "{error}"
    );
    assert!(
        error.contains("line 4, column 3") && error.ends_with("dropped=3"),
        "{error}"
    );
    let plain = doc! {"create": "plain"};
    assert!(is_ok(&client.run_on("d", &plain)));
    let refused = influx.post("/write?db=d&precision=ms", "", b"plain v=1 1");
    assert!(refused.error().contains("is no time series"), "{refused:?}");
    let find = doc! {"find": "x", "filter": doc! {"v": 6_i64, "m": doc! {"a": "b"}}};
    let reply = client.run_on("d", &find);
    let cursor = reply.get("cursor").as_document().unwrap_or(DocRef::EMPTY);
    assert_eq!(
        cursor.get("firstBatch").as_array().map(|b| b.len()),
        Some(1)
    );
}

#[test]
fn requests_that_ask_for_too_much_are_refused() {
    let influx = Influx::start(&[]);
    for (target, more, body, status) in [
        ("/write", "", &b"a b=1"[..], 400),
        ("/write?db=d&precision=x", "", b"a b=1", 400),
        ("/write?db=d&rp=other", "", b"a b=1", 404),
        ("/write?db=a.b", "", b"a b=1", 400),
        ("/api/v2/write?org=o", "", b"a b=1", 404),
        ("/write?db=d", "Content-Encoding: gzip\r\n", b"a b=1", 400),
        ("/write?db=d", "Content-Encoding: br\r\n", b"a b=1", 415),
        ("/write?db=d", "Transfer-Encoding: gzip\r\n", b"", 501),
        ("/query", "", b"", 400),
    ] {
        let answer = influx.post(target, more, body);
        assert_eq!(answer.status, status, "{target}: {answer:?}");
    }
    let head = "POST /write?db=d HTTP/1.1\r\nHost: x\r\nContent-Length: 25000001\r\n\r\n";
    assert_eq!(influx.send(head, b"").status, 413);
    // A gzip bomb: a gigabyte of line feeds in a megabyte.
    let bomb = packed(&vec![b'\n'; 200_000_000]);
    let answer = influx.post("/write?db=d", "Content-Encoding: gzip\r\n", &bomb);
    assert_eq!(answer.status, 413, "{answer:?}");
    let chunks = "POST /write?db=d HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_eq!(influx.send(chunks, b"zz\r\n").status, 400);
    assert_eq!(influx.send(chunks, b"FFFFFFFFFF\r\n").status, 413);
    assert_eq!(influx.send(chunks, b"2\r\nabcd").status, 400);
    assert_eq!(influx.post("/write?db=d", "", b"").status, 204);
}

#[test]
fn users_log_in_and_need_their_roles() {
    let influx = Influx::start(&["--auth"]);
    let mut client = influx.log_in_root();
    for (user, role) in [("writer", "readWrite"), ("reader", "read")] {
        let roles = array![doc! {"role": role, "db": "d"}];
        let create = doc! {"createUser": user, "pwd": "pw", "roles": roles};
        assert!(is_ok(&client.run(&create)));
    }
    let line = b"m v=1 1000000";
    let status = |target: &str, more: &str| influx.post(target, more, line).status;
    assert_eq!(status("/write?db=d", ""), 401);
    assert_eq!(status("/write?db=d&u=writer&p=pw", ""), 204);
    // Known from before, and with a wrong password all the same refused.
    assert_eq!(status("/write?db=d&u=writer&p=pw", ""), 204);
    assert_eq!(status("/write?db=d&u=writer&p=px", ""), 401);
    assert_eq!(status("/write?db=d&u=writer&p=pw&authSource=d", ""), 401);
    assert_eq!(status("/write?db=e&u=writer&p=pw", ""), 403);
    assert_eq!(status("/write?db=d&u=reader&p=pw", ""), 403);
    let basic = "Authorization: Basic d3JpdGVyOnB3\r\n";
    assert_eq!(status("/write?db=d", basic), 204);
    assert_eq!(
        status(
            "/api/v2/write?bucket=d",
            "Authorization: Token writer:pw\r\n"
        ),
        204
    );
    assert_eq!(status("/write?db=d", "Authorization: Bearer x\r\n"), 401);
    assert_eq!(status("/write?db=d", "Authorization: Basic !\r\n"), 401);
    // A refused write leaves no types.
    assert_eq!(
        influx
            .post("/write?db=d&u=reader&p=pw", "", b"n v=1i 1")
            .status,
        403
    );
    assert_eq!(
        influx
            .post("/write?db=d&u=writer&p=pw", "", b"n v=1.5 1")
            .status,
        204
    );
    assert!(is_ok(&client.run(&doc! {"dropUser": "writer"})));
    assert_eq!(status("/write?db=d&u=writer&p=pw", ""), 401);
}

#[test]
fn queries_are_answered_at_once_and_in_chunks() {
    let influx = Influx::start(&[]);
    influx.write("cpu,host=a usage=1 1000\ncpu,host=a usage=3 2000\ncpu,host=b usage=5 2000");
    let answer = influx.get("/query?db=d&q=SELECT+mean(usage)+FROM+cpu+GROUP+BY+host");
    assert_eq!(answer.status, 200);
    assert_eq!(
        answer.body,
        "{\"results\":[{\"statement_id\":0,\"series\":[{\"name\":\"cpu\",\"tags\":{\"host\":\"a\"},\"columns\":[\"time\",\"mean\"],\
         \"values\":[[\"1970-01-01T00:00:00Z\",2]]},{\"name\":\"cpu\",\"tags\":{\"host\":\"b\"},\"columns\":[\"time\",\"mean\"],\
         \"values\":[[\"1970-01-01T00:00:00Z\",5]]}]}]}\n"
    );
    let answer = influx.query(
        "SELECT usage FROM cpu WHERE host = $host; SHOW TAG KEYS",
        "&params=%7B%22host%22:%22a%22%7D",
    );
    assert!(answer.body.contains("[[1000,1],[2000,3]]"), "{answer:?}");
    assert!(answer.body.contains("[[\"host\"]]"), "{answer:?}");
    let chunked = influx.query("SELECT usage FROM cpu", "&chunked=true&chunk_size=2");
    assert!(
        chunked.head.contains("Transfer-Encoding: chunked"),
        "{chunked:?}"
    );
    assert_eq!(
        chunked.body.matches("\"partial\":true").count(),
        2,
        "{chunked:?}"
    );
    // Fields that another client writes are known soon.
    let tags = doc! {"host": "c", "room": "r"};
    let point = doc! {"time": nilometer_bson::Value::DateTime(5), "tags": tags, "new": 1.0};
    let insert = doc! {"insert": "cpu", "documents": array![point]};
    assert!(is_ok(&influx.server.connect().run_on("d", &insert)));
    let end = Instant::now() + Duration::from_secs(20);
    while !influx
        .query("SELECT new, room FROM cpu", "")
        .body
        .contains("[[5,1,\"r\"]]")
    {
        assert!(Instant::now() < end, "the new field is not found");
        std::thread::sleep(Duration::from_millis(20));
    }
    for (statements, status, expected) in [
        ("SELECT FROM", 400, "error parsing query: found FROM"),
        (
            "SELECT sample(usage, 2) FROM cpu",
            400,
            "the function sample(): it is not supported yet at line 1, char 8",
        ),
        (
            "SELECT max(m) FROM (SELECT mean(usage) AS m FROM cpu GROUP BY host)",
            200,
            "\"columns\":[\"time\",\"max\"]",
        ),
    ] {
        let answer = influx.query(statements, "");
        assert_eq!(answer.status, status, "{answer:?}");
        assert!(answer.body.contains(expected), "{answer:?}");
    }
    let lines: String = (0..30_000)
        .map(|at| format!("many v={at} {at}\n"))
        .collect();
    influx.write(&lines);
    let long = influx.query("SELECT v FROM many", "");
    assert!(
        long.head.contains("Transfer-Encoding: chunked") && long.body.contains("[29999,29999]]")
    );
    assert_eq!(influx.get("/query?q=DROP+DATABASE+d").status, 400);
    let created = influx.query("CREATE DATABASE e WITH DURATION 1h; SHOW DATABASES", "");
    assert!(created.body.contains("[[\"d\"],[\"e\"]]"), "{created:?}");
    assert_eq!(influx.post("/write?db=e", "", b"m v=1").status, 204);
    let list = doc! {"listCollections": 1, "filter": doc! {"name": "m"}};
    let reply = influx.server.connect().run_on("e", &list);
    assert!(
        to_relaxed(reply.as_ref()).contains("\"expireAfterSeconds\":3600"),
        "{reply:?}"
    );
}

#[test]
fn rows_are_written_into_measurements() {
    let influx = Influx::start(&[]);
    let lines: String = (0..25_000)
        .map(|at| format!("m,t=t{} v={at},n={at}i {at}\n", at % 2))
        .collect();
    influx.write(&lines);
    let refused = influx.get("/query?db=d&q=SELECT+v+INTO+o+FROM+m");
    assert_eq!(refused.status, 400, "{refused:?}");
    let written = influx.query("SELECT * INTO e..:MEASUREMENT FROM m GROUP BY *", "");
    assert!(
        written.body.contains(
            "{\"name\":\"result\",\"columns\":[\"time\",\"written\"],\"values\":[[0,25000]]}"
        ),
        "{written:?}"
    );
    let sums = |source: &str| {
        let query = format!("SELECT count(v), sum(n), last(v) FROM {source} GROUP BY t");
        influx.query(&query, "").body
    };
    assert!(sums("e..m").contains("12500"), "{}", sums("e..m"));
    assert_eq!(sums("e..m"), sums("m"));
    // A measurement that exists keeps its types.
    let conflict = influx.query("SELECT v AS n INTO m FROM m", "");
    assert!(
        conflict.body.contains("field type conflict"),
        "{conflict:?}"
    );
    let created = doc! {"listCollections": 1, "filter": doc! {"name": "m"}};
    let reply = influx.server.connect().run_on("e", &created);
    assert!(
        to_relaxed(reply.as_ref()).contains("\"duplicates\":\"merge\""),
        "{reply:?}"
    );
}

#[test]
fn an_answer_that_breaks_ends_with_the_error() {
    let influx = Influx::start(&["--setParameter", "enableTestCommands=1"]);
    let lines: String = (0..30_000)
        .map(|at| format!("many v={at} {at}\n"))
        .collect();
    influx.write(&lines);
    let failure = doc! {"failCommands": array!["getMore"], "errorCode": 96};
    let point = doc! {"configureFailPoint": "failCommand", "mode": "alwaysOn", "data": failure};
    for more in ["", "&chunked=true"] {
        let reply = influx.server.connect().run_on("admin", &point);
        assert!(is_ok(&reply), "{reply:?}");
        let answer = influx.query("SELECT v FROM many", more);
        let end = &answer.body[answer.body.len().saturating_sub(200)..];
        assert!(answer.body.contains("[0,0]"), "{end}");
        assert!(end.contains("\"error\":\""), "{end}");
        assert!(!answer.body.contains("[29999,29999]"));
    }
}

#[test]
fn users_query_what_they_may_read() {
    let influx = Influx::start(&["--auth"]);
    let mut client = influx.log_in_root();
    for (user, role) in [("writer", "readWrite"), ("reader", "read")] {
        let roles = array![doc! {"role": role, "db": "d"}];
        assert!(is_ok(
            &client.run(&doc! {"createUser": user, "pwd": "pw", "roles": roles})
        ));
    }
    assert_eq!(
        influx
            .post("/write?db=d&u=writer&p=pw", "", b"m,t=x v=1 1000000")
            .status,
        204
    );
    assert_eq!(
        influx
            .post("/write?db=e&u=root&p=pencil", "", b"m,t=x v=1 1000000")
            .status,
        204
    );
    let body = |user: &str, db: &str, statement: &str| {
        let form = format!("u={user}&p=pw&db={db}&q={}", escaped(statement));
        influx.post("/query", "", form.as_bytes()).body
    };
    assert_eq!(influx.get("/query?db=d&q=SHOW+DATABASES").status, 401);
    assert!(body("reader", "d", "SELECT v FROM m").contains("\"values\""));
    assert!(body("reader", "d", "SHOW TAG VALUES WITH KEY = t").contains("[[\"t\",\"x\"]]"));
    for statement in [
        "SELECT v FROM m",
        "SELECT w FROM m",
        "SHOW FIELD KEYS FROM m",
        "SHOW TAG KEYS FROM m",
    ] {
        let text = body("reader", "e", statement);
        assert!(
            text.contains("not authorized") && !text.contains("series"),
            "{statement}: {text}"
        );
    }
    assert!(body("reader", "d", "SHOW DATABASES").contains("[[\"d\"]]"));
    assert!(body("reader", "d", "DROP MEASUREMENT m").contains("not authorized"));
    // INTO reads and writes as its user.
    let copy = "SELECT v INTO n FROM m GROUP BY *";
    assert!(body("reader", "d", copy).contains("not authorized"));
    assert!(body("writer", "d", copy).contains("[[\"1970-01-01T00:00:00Z\",1]]"));
    let elsewhere = body("writer", "d", "SELECT v INTO e..n FROM m");
    assert!(elsewhere.contains("not authorized"), "{elsewhere}");
    let elsewhere = body("writer", "d", "SELECT v INTO n FROM e..m");
    assert!(elsewhere.contains("not authorized"), "{elsewhere}");
    assert!(
        body("reader", "d", "SELECT * FROM n").contains("[\"1970-01-01T00:00:00.001Z\",\"x\",1]")
    );
    assert!(!body("writer", "d", "DROP MEASUREMENT m").contains("error"));
}

#[test]
fn a_mapping_shows_a_collection_to_those_who_may_read_it() {
    let influx = Influx::start(&["--auth"]);
    let mut client = influx.log_in_root();
    let written = influx.post("/write?db=d&u=root&p=pencil", "", b"m,t=x v=1,w=2 1000000");
    assert_eq!(written.status, 204);
    let mapping = doc! {"_id": "shown", "collection": "m", "tags": doc! {"name": "tags.t"}, "fields": array!["v"]};
    let insert = doc! {"insert": "nilometer.measurements", "documents": array![mapping]};
    assert!(is_ok(&client.run_on("d", &insert)));
    for (user, collection) in [("allowed", "m"), ("stranger", "other")] {
        let resource = doc! {"db": "d", "collection": collection};
        let privilege = doc! {"resource": resource, "actions": array!["find", "listCollections"]};
        let role = doc! {"createRole": user, "privileges": array![privilege], "roles": array![]};
        assert!(is_ok(&client.run(&role)));
        let create = doc! {"createUser": user, "pwd": "pw", "roles": array![user]};
        assert!(is_ok(&client.run(&create)));
    }
    let body = |user: &str, statement: &str| {
        let form = format!("u={user}&p=pw&db=d&epoch=ms&q={}", escaped(statement));
        influx.post("/query", "", form.as_bytes()).body
    };
    let text = body("allowed", "SELECT * FROM shown");
    assert!(text.contains("[\"time\",\"name\",\"v\"]"), "{text}");
    assert!(text.contains("[[1,\"x\",1]]"), "{text}");
    for statement in [
        "SELECT v FROM shown",
        "SELECT w FROM shown",
        "SHOW TAG KEYS FROM shown",
    ] {
        let text = body("stranger", statement);
        assert!(
            text.contains("not authorized") && !text.contains("series"),
            "{text}"
        );
    }
    // It only shows.
    let refused = influx.post(
        "/write?db=d&u=root&p=pencil",
        "",
        b"shown v=1 1\nm,t=x v=3 2000000",
    );
    assert_eq!(refused.status, 400);
    let error = refused.error();
    assert!(
        error.contains("line 1") && error.contains("cannot be written"),
        "{error}"
    );
    assert!(body("allowed", "SELECT v FROM shown").contains("[[1,1],[2,3]]"));
    let form = format!(
        "u=root&p=pencil&db=d&q={}",
        escaped("DROP MEASUREMENT shown")
    );
    let dropped = influx.post("/query", "", form.as_bytes()).body;
    assert!(
        dropped.contains("delete its document in nilometer.measurements"),
        "{dropped}"
    );
}

#[test]
fn samples_of_prometheus_are_written_and_queried() {
    let influx = Influx::start(&[]);
    // One series, up{job="a"}, with the value 1.5 at 1000 ms, and one without a name.
    let mut body =
        b"\x0a\x2a\x0a\x0e\x0a\x08__name__\x12\x02up\x0a\x08\x0a\x03job\x12\x01a\x12\x0e\x09"
            .to_vec();
    body.extend_from_slice(&1.5_f64.to_le_bytes());
    body.extend_from_slice(b"\x10\xe8\x07\x18\x00");
    let packed = |body: &[u8]| {
        snap::raw::Encoder::new()
            .compress_vec(body)
            .expect("memory")
    };
    let head = "Content-Encoding: snappy\r\nContent-Type: application/x-protobuf\r\nX-Prometheus-Remote-Write-Version: 0.1.0\r\n";
    let answer = influx.post("/api/v1/write?db=d", head, &packed(&body));
    assert_eq!(answer.status, 204, "{answer:?}");
    let found = influx.query("SELECT value FROM up WHERE job = 'a'", "");
    assert!(found.body.contains("[[1000,1.5]]"), "{found:?}");
    body.extend_from_slice(b"\x0a\x00");
    let answer = influx.post("/api/v1/write?db=d", head, &packed(&body));
    assert_eq!(
        answer.error(),
        "partial write: series 2: a series has no __name__ dropped=1"
    );
    assert_eq!(
        influx.post("/api/v1/write?db=d", head, b"\xFF\xFF").status,
        400
    );
    assert_eq!(
        influx
            .post("/api/v1/write?db=d", head, &packed(b"\x0a\x7f"))
            .status,
        400
    );
    // A bomb: the length in front says four gigabytes.
    assert_eq!(
        influx
            .post("/api/v1/write?db=d", head, b"\xFF\xFF\xFF\xFF\x0F")
            .status,
        413
    );
    let v2 = "Content-Encoding: snappy\r\nContent-Type: application/x-protobuf;proto=io.prometheus.write.v2.Request\r\n";
    assert_eq!(influx.post("/api/v1/write?db=d", v2, b"").status, 415);
}

//! Queries over HTTP: documents and columns, against the documents of the same query.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use base64::Engine as _;
use nilometer_bson::extjson::{parse_document, to_canonical};
use nilometer_bson::{Document, Value, array, doc};

use crate::access::create_root;
use crate::client::{Client, is_ok};
use crate::server::Server;

/// A server with its web page, and so with queries over HTTP.
struct Port {
    server: Server,
    port: u16,
}

/// A response. `is_complete` is false if its last chunk is missing.
struct Answer {
    status: u16,
    head: String,
    body: Vec<u8>,
    is_complete: bool,
}

impl Answer {
    fn text(&self) -> String {
        String::from_utf8(self.body.clone()).expect("text")
    }

    fn error(&self) -> String {
        let json: serde_json::Value = serde_json::from_slice(&self.body).expect("JSON");
        json["error"].as_str().expect("an error").to_owned()
    }
}

impl Port {
    fn start(more: &[&str]) -> Self {
        let (server, port) = Server::start_with_page(more);
        Self { server, port }
    }

    fn send(&self, method: &str, target: &str, more: &str, body: &str) -> Answer {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("a connection");
        let patience = Some(Duration::from_secs(20));
        stream.set_read_timeout(patience).expect("an option");
        let length = match method {
            "POST" => format!(
                "Content-Type: application/json\r\nContent-Length: {}\r\n",
                body.len()
            ),
            _ => String::new(),
        };
        let request =
            format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\n{length}{more}\r\n{body}");
        stream
            .write_all(request.as_bytes())
            .expect("bytes are taken");
        let mut bytes = Vec::new();
        drop(stream.read_to_end(&mut bytes));
        let end = bytes.windows(4).position(|part| part == b"\r\n\r\n");
        let (head, rest) = bytes.split_at(end.expect("a head") + 4);
        let head = String::from_utf8(head.to_vec()).expect("text");
        let status = head.split(' ').nth(1).and_then(|word| word.parse().ok());
        let (body, is_complete) = match head.contains("Transfer-Encoding: chunked") {
            true => without_chunks(rest),
            false => (rest.to_vec(), true),
        };
        Answer {
            status: status.expect("a status"),
            head,
            body,
            is_complete,
        }
    }

    fn get(&self, query: &str) -> Answer {
        let escaped: String = query
            .bytes()
            .map(|byte| match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'=' | b'&' => {
                    char::from(byte).to_string()
                }
                byte => format!("%{byte:02X}"),
            })
            .collect();
        self.send("GET", &format!("/api/query?{escaped}"), "", "")
    }

    fn post(&self, body: &str) -> Answer {
        self.send("POST", "/api/query", "", body)
    }

    /// Fills a time series.
    fn fill(&self, count: i32) {
        let mut client = self.server.connect();
        let options = doc! {"timeField": "t", "metaField": "m"};
        assert!(is_ok(
            &client.run_on("d", &doc! {"create": "s", "timeseries": options})
        ));
        let documents: Vec<Value> = (0..count).map(|at| measurement(at).into()).collect();
        for part in documents.chunks(10_000) {
            let insert = doc! {"insert": "s", "documents": part.to_vec()};
            assert!(is_ok(&client.run_on("d", &insert)));
        }
    }
}

fn measurement(at: i32) -> Document {
    let time = Value::DateTime(1_700_000_000_000 + i64::from(at) * 250);
    let meta = doc! {"host": format!("h{}", at % 7), "rack": at % 2};
    let mut out = nilometer_bson::DocumentBuilder::new();
    out.append("t", time).append("m", meta).append("_id", at);
    out.append("load", f64::from(at) / 4.0)
        .append("count", i64::from(at) << 33);
    if at % 3 == 0 {
        out.append("state", ["on", "off, \"x\""][at as usize % 2]);
    }
    out.finish()
}

fn without_chunks(mut rest: &[u8]) -> (Vec<u8>, bool) {
    let mut body = Vec::new();
    loop {
        let Some(end) = rest.windows(2).position(|part| part == b"\r\n") else {
            return (body, false);
        };
        let length = std::str::from_utf8(&rest[..end]).expect("text");
        let length = usize::from_str_radix(length, 16).expect("a length");
        if length == 0 {
            return (body, rest.ends_with(b"0\r\n\r\n"));
        }
        let Some(chunk) = rest.get(end + 2..end + 2 + length) else {
            return (body, false);
        };
        body.extend_from_slice(chunk);
        rest = rest.get(end + 4 + length..).unwrap_or_default();
    }
}

fn found(client: &mut Client, command: &Document) -> Vec<Document> {
    client.find_all("d", command)
}

#[test]
fn documents_of_a_query_come_in_all_text_forms() {
    let port = Port::start(&[]);
    port.fill(3_000);
    let mut client = port.server.connect();
    let expected = found(&mut client, &doc! {"find": "s", "sort": doc! {"_id": 1}});
    let sort = "&sort={\"_id\":1}";
    let answer = port.get(&format!("database=d&collection=s{sort}&canonical=true"));
    assert_eq!(answer.status, 200);
    assert!(answer.is_complete && answer.head.contains("Content-Type: application/json"));
    let list = parse_document(&format!("{{\"v\": {}}}", answer.text())).expect("JSON");
    let list = list.get("v").as_array().expect("an array");
    let list: Vec<Document> = list
        .iter()
        .map(|d| d.as_document().expect("one").to_document())
        .collect();
    assert_eq!(list, expected);
    let answer = port.get(&format!(
        "db=d&collection=s&format=ndjson&canonical=true{sort}"
    ));
    let lines: Vec<String> = answer.text().lines().map(str::to_owned).collect();
    let shown: Vec<String> = expected.iter().map(|d| to_canonical(d.as_ref())).collect();
    assert_eq!(lines, shown);
    // A pipeline in a body, the form by Accept.
    let body = r#"{"database": "d", "collection": "s", "pipeline": [{"$match": {"_id": {"$lt": 4}}}, {"$sort": {"_id": 1}}]}"#;
    let answer = port.send("POST", "/api/query", "Accept: text/csv\r\n", body);
    assert_eq!(answer.status, 200);
    assert!(answer.head.contains("Content-Type: text/csv"));
    assert_eq!(
        answer.text(),
        "t,m.host,m.rack,_id,load,count,state\n\
         2023-11-14T22:13:20Z,h0,0,0,0,0,on\n\
         2023-11-14T22:13:20.250Z,h1,1,1,0.25,8589934592,\n\
         2023-11-14T22:13:20.500Z,h2,0,2,0.5,17179869184,\n\
         2023-11-14T22:13:20.750Z,h3,1,3,0.75,25769803776,\"off, \"\"x\"\"\"\n"
    );
    let answer = port.get(&format!(
        "db=d&collection=s&format=csv&fields=_id,m.host,none{sort}&limit=2"
    ));
    assert_eq!(answer.text(), "_id,m.host,none\n0,h0,\n1,h1,\n");
    for (query, expected) in [
        ("db=d&collection=none", "[]\n"),
        ("db=d&collection=none&format=ndjson", ""),
        (
            "db=d&collection=s&filter={\"_id\":5}&projection={\"load\":1}",
            "[{\"_id\":5,\"load\":1.25}]\n",
        ),
        (
            "db=d&pipeline=[{\"$documents\":[{\"a\":1}]}]",
            "[{\"a\":1}]\n",
        ),
    ] {
        let answer = port.get(query);
        assert_eq!(
            (answer.status, answer.text().as_str()),
            (200, expected),
            "{query}"
        );
    }
    // No cursor stays open.
    let status = client.run(&doc! {"serverStatus": 1});
    let open = status
        .get("metrics")
        .as_document()
        .and_then(|m| m.get("cursor").as_document());
    let open = open
        .and_then(|cursor| cursor.get("open").as_document())
        .expect("counts");
    assert_eq!(open.get("total").as_exact_i64(), Some(0));
}

#[test]
fn wrong_queries_are_refused() {
    let port = Port::start(&[]);
    port.fill(10);
    for (query, status, text) in [
        ("collection=s", 400, "the parameter 'database' is missing"),
        (
            "db=d&collection=s&what=1",
            400,
            "there is no parameter 'what'",
        ),
        (
            "db=d&collection=s&format=xml",
            400,
            "there is no format 'xml'",
        ),
        ("db=d&collection=s&filter={\"a\":}", 400, "line 1 column 6"),
        (
            "db=d&collection=s&filter={\"$bad\":1}",
            400,
            "unknown top level operator: $bad",
        ),
        (
            "db=d&collection=s&pipeline=[{\"$merge\":\"x\"}]",
            403,
            "$merge",
        ),
        (
            "db=d&collection=s&pipeline=[{\"$changeStream\":{}}]",
            400,
            "has no end",
        ),
        (
            "db=d&collection=s&pipeline=[{\"$set\":{\"y\":{\"$divide\":[1,{\"$subtract\":[\"$_id\",\"$_id\"]}]}}}]",
            400,
            "divide",
        ),
    ] {
        let answer = port.get(query);
        let error = answer.error();
        assert_eq!(answer.status, status, "{query}: {error}");
        assert!(error.contains(text), "{query}: {error}");
    }
    let answer = port.post("{\n \"database\": \"d\",\n \"collection\": }");
    assert_eq!(answer.status, 400);
    assert!(
        answer.error().contains("line 3 column 16"),
        "{}",
        answer.error()
    );
    assert_eq!(port.send("PUT", "/api/query", "", "").status, 405);
    let foreign = "Origin: http://evil.example\r\n";
    assert_eq!(
        port.send("GET", "/api/query?db=d&collection=s", foreign, "")
            .status,
        403
    );
}

/// An error behind the first part must not look like the end.
#[test]
fn an_answer_that_breaks_off_is_not_complete() {
    let port = Port::start(&[]);
    let mut client = port.server.connect();
    for part in 0..6 {
        let documents: Vec<Value> = (0..10_000)
            .map(|at| {
                let number = part * 10_000 + at;
                doc! {"_id": number, "v": if number == 59_000 { 0 } else { 1 }, "text": "x".repeat(40)}.into()
            })
            .collect();
        assert!(is_ok(
            &client.run_on("d", &doc! {"insert": "c", "documents": documents})
        ));
    }
    let stages = "[{\"$set\":{\"w\":{\"$divide\":[1,\"$v\"]}}}]";
    for format in ["json", "ndjson"] {
        let answer = port.get(&format!(
            "db=d&collection=c&pipeline={stages}&format={format}"
        ));
        assert_eq!(answer.status, 200);
        assert!(!answer.is_complete && !answer.body.is_empty(), "{format}");
        assert!(!answer.text().ends_with("]\n"), "{format}");
    }
    let answer = port.get("db=d&collection=c&format=ndjson");
    assert!(answer.is_complete);
    assert_eq!(answer.text().lines().count(), 60_000);
}

#[test]
fn queries_are_those_of_a_user() {
    let port = Port::start(&["--auth"]);
    create_root(&port.server);
    let mut root = port.server.connect();
    root.log_in(
        nilometer::auth::Mechanism::Sha256,
        "admin",
        "root",
        "pencil",
    );
    let insert = doc! {"insert": "c", "documents": array![doc! {"_id": 1}]};
    assert!(is_ok(&root.run_on("d", &insert)));
    let user = doc! {"createUser": "reader", "pwd": "pw", "roles": array![doc! {"role": "read", "db": "d"}]};
    assert!(is_ok(&root.run_on("admin", &user)));
    let by = |credentials: &str, query: &str| {
        let encoded = base64::engine::general_purpose::STANDARD.encode(credentials);
        let more = format!("Authorization: Basic {encoded}\r\n");
        port.send("GET", &format!("/api/query?{query}"), &more, "")
    };
    let answer = port.get("db=d&collection=c");
    assert_eq!(answer.status, 401);
    assert!(
        answer.head.contains("WWW-Authenticate: Basic"),
        "{}",
        answer.head
    );
    assert_eq!(by("reader:wrong", "db=d&collection=c").status, 401);
    let answer = by("reader:pw", "db=d&collection=c");
    assert_eq!(
        (answer.status, answer.text().as_str()),
        (200, "[{\"_id\":1}]\n")
    );
    let answer = by("reader:pw", "db=other&collection=c");
    assert_eq!(answer.status, 403, "{}", answer.text());
    assert!(
        answer.error().contains("not authorized"),
        "{}",
        answer.error()
    );
}

#[cfg(not(feature = "arrow"))]
#[test]
fn a_server_without_arrow_says_so() {
    let port = Port::start(&[]);
    for format in ["arrow", "parquet"] {
        let answer = port.get(&format!("db=d&collection=c&format={format}"));
        assert_eq!(answer.status, 501);
        assert!(
            answer.error().contains("the feature 'arrow'"),
            "{}",
            answer.error()
        );
    }
}

#[cfg(feature = "arrow")]
mod with_arrow {
    use super::*;
    use crate::server::Directory;
    use crate::transfer::run_at;

    /// What an import makes of columns are the documents of the query.
    #[test]
    fn columns_of_a_query_are_its_documents() {
        let port = Port::start(&[]);
        port.fill(40_000);
        let mut client = port.server.connect();
        let directory = Directory::new();
        let uri = format!("mongodb://127.0.0.1:{}/d", port.server.port);
        for format in ["arrow", "parquet"] {
            for (name, query, command) in [
                ("all", "", doc! {"find": "s", "sort": doc! {"_id": 1}}),
                (
                    "some",
                    "&filter={\"m.host\":\"h3\",\"state\":{\"$exists\":true}}&projection={\"count\":0}",
                    doc! {
                        "find": "s", "filter": doc! {"m.host": "h3", "state": doc! {"$exists": true}},
                        "projection": doc! {"count": 0}, "sort": doc! {"_id": 1},
                    },
                ),
            ] {
                let answer = port.get(&format!("db=d&collection=s&format={format}{query}"));
                assert_eq!(answer.status, 200);
                assert!(answer.is_complete);
                let file = directory.0.join(format!("{name}.{format}"));
                std::fs::write(&file, &answer.body).expect("a file");
                let collection = format!("{name}_{format}");
                let import = [
                    "import",
                    "--collection",
                    &collection,
                    file.to_str().expect("a path"),
                ];
                let (code, told) = run_at(&uri, &import, &[], "");
                assert_eq!(code, Some(0), "{told}");
                let back = doc! {"find": collection, "sort": doc! {"_id": 1}};
                let (back, expected) = (found(&mut client, &back), found(&mut client, &command));
                assert_eq!(back.len(), expected.len());
                for (back, expected) in back.iter().zip(&expected) {
                    // An ordinary collection has its `_id` in front.
                    assert!(
                        expected.iter().all(|field| {
                            nilometer_bson::order::compare(back.get(field.name()), field.value())
                                .is_eq()
                        }),
                        "{back:?} {expected:?}"
                    );
                    assert_eq!(back.iter().count(), expected.iter().count());
                }
            }
        }
    }

    #[test]
    fn arrow_goes_out_and_comes_back() {
        let port = Port::start(&[]);
        let mut client = port.server.connect();
        let documents: Vec<Value> = (0..5_000)
            .map(|at| {
                doc! {
                    "_id": at, "d": Value::DateTime(at.into()), "x": doc! {"y": f64::from(at), "z": array![at]},
                    "mixed": if at % 2 == 0 { Value::from(at) } else { "text".into() },
                }
                .into()
            })
            .collect();
        let insert = doc! {"insert": "c", "documents": documents.clone()};
        assert!(is_ok(&client.run_on("d", &insert)));
        let directory = Directory::new();
        let uri = format!("mongodb://127.0.0.1:{}/d", port.server.port);
        for name in ["c.arrow", "c.parquet"] {
            let file = directory.0.join(name);
            let file = file.to_str().expect("a path");
            let (code, told) = run_at(&uri, &["export", "--collection", "c", file], &[], "");
            assert_eq!(code, Some(0), "{told}");
            assert!(told.contains("5000 documents in"), "{told}");
            let (code, told) = run_at(&uri, &["import", "--collection", name, file], &[], "");
            assert_eq!(code, Some(0), "{told}");
            let found = found(&mut client, &doc! {"find": name, "sort": doc! {"_id": 1}});
            let found: Vec<Value> = found.into_iter().map(Value::from).collect();
            assert_eq!(doc! {"v": found}, doc! {"v": documents.clone()}, "{name}");
            // Half a file, and bytes that are no file.
            let mut bytes = std::fs::read(file).expect("a file");
            bytes.truncate(bytes.len() / 2);
            let half = directory.0.join(format!("half_{name}"));
            std::fs::write(&half, bytes).expect("a file");
            let half = half.to_str().expect("a path");
            let (code, told) = run_at(&uri, &["import", "--collection", "half", half], &[], "");
            assert_eq!(code, Some(100), "{told}");
            assert!(told.contains("cannot be read"), "{told}");
        }
        let named = directory.0.join("named.arrow");
        let named = named.to_str().expect("a path");
        let export = [
            "export",
            "--collection",
            "c",
            "--fields",
            "_id.double(),x.y,mixed.json()",
            named,
        ];
        let (code, told) = run_at(&uri, &export, &[], "");
        assert_eq!(code, Some(0), "{told}");
        let (code, told) = run_at(&uri, &["import", "--collection", "named", named], &[], "");
        assert_eq!(code, Some(0), "{told}");
        let second = found(
            &mut client,
            &doc! {"find": "named", "filter": doc! {"_id": 1}},
        );
        assert_eq!(
            second,
            [doc! {"_id": 1.0, "x": doc! {"y": 1.0}, "mixed": "text"}]
        );
    }
}

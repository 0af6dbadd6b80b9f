//! The server over object storage: `nilometer serve --storage` and `nilometer copy`, as processes.
//!
//! The program is this test binary again: the ignored test `program` runs the command line of an environment variable.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use bson::{Document, doc};

use crate::members::{is_primary, until};
use crate::s3::s3_url;
use crate::support::Scratch;

/// The arguments of the program, one in a line.
const ARGUMENTS: &str = "NILOMETER_TEST_ARGUMENTS";

/// Time for a server to start or to end.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
#[ignore = "only as the child of the tests below"]
fn program() {
    if let Ok(arguments) = std::env::var(ARGUMENTS) {
        let arguments = arguments.lines().map(OsString::from);
        let code = nilometer_server::cli::run(arguments.collect());
        std::process::exit(code.into());
    }
}

/// Returns the program with a command line.
pub(crate) fn nilometer(arguments: &[&str]) -> Command {
    let mut program = Command::new(std::env::current_exe().expect("this binary"));
    program
        .args(["server::program", "--exact", "--ignored", "--nocapture"])
        .env(ARGUMENTS, [&["nilometer"], arguments].concat().join("\n"))
        .env_remove("NILOMETER_DBPATH")
        .env_remove("NILOMETER_STORAGE");
    program
}

pub(crate) fn run(arguments: &[&str]) -> Output {
    nilometer(arguments).output().expect("the program")
}

/// Runs a command line that must fail with this code. Returns what it reports.
pub(crate) fn refused(arguments: &[&str], code: i32) -> String {
    let ended = run(arguments);
    let told = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(code), "{arguments:?}\n{told}");
    told
}

/// A running server.
pub(crate) struct Server {
    pub(crate) child: Child,
    pub(crate) port: u16,
    lines: Receiver<String>,
}

impl Server {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let all = [&["serve", "--port", "0"], arguments].concat();
        Self::spawn(&mut nilometer(&all))
    }

    fn spawn(command: &mut Command) -> Self {
        Self::begin(command).ready()
    }

    /// Starts one that reads while another writes, and takes over.
    pub(crate) fn stand_by(url: &str) -> Self {
        Self::start(&["--storage", url, "--standby", "--readIntervalMS", "100"])
    }

    pub(crate) fn begin(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("a child");
        let output = child.stdout.take().expect("its output");
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                // The test may ignore the rest.
                drop(sender.send(line));
            }
        });
        Self {
            child,
            port: 0,
            lines,
        }
    }

    /// Waits until it serves clients.
    fn ready(mut self) -> Self {
        let server = &mut self;
        let line = server.line("Waiting for connections");
        let port = line.split("\"port\":").nth(1).expect("a port");
        let digits = port.chars().take_while(char::is_ascii_digit);
        server.port = digits.collect::<String>().parse().expect("a port");
        self
    }

    /// Waits for a line of the log.
    pub(crate) fn line(&self, text: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(PATIENCE);
            let line = line.unwrap_or_else(|_| panic!("no line with {text:?}"));
            if line.contains(text) {
                return line;
            }
        }
    }

    pub(crate) fn connect(&self) -> TcpStream {
        TcpStream::connect(("127.0.0.1", self.port)).expect("a connection")
    }

    /// Sends a signal by name.
    pub(crate) fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &id]).status();
        assert!(sent.expect("kill").success());
    }

    pub(crate) fn stop(mut self) {
        self.signal("TERM");
        assert_eq!(self.child.wait().expect("its end").code(), Some(0));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Sends a command and returns the reply. `None` if the server hangs up.
pub(crate) fn exchange(stream: &mut TcpStream, command: Document) -> Option<Document> {
    send(stream, command)?;
    receive(stream)
}

pub(crate) fn send(stream: &mut TcpStream, command: Document) -> Option<()> {
    let mut command = command;
    command.entry("$db".to_owned()).or_insert("garden".into());
    let body = bson::serialize_to_vec(&command).expect("bytes");
    let length = i32::try_from(body.len() + 21).expect("a message");
    let mut message = Vec::new();
    for field in [length, 1, 0, 2013, 0] {
        message.extend(field.to_le_bytes());
    }
    message.push(0);
    message.extend(body);
    stream.write_all(&message).ok()
}

pub(crate) fn receive(stream: &mut TcpStream) -> Option<Document> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).ok()?;
    let mut rest = vec![0; u32::from_le_bytes(length) as usize - 4];
    stream.read_exact(&mut rest).ok()?;
    Some(bson::deserialize_from_slice(&rest[17..]).expect("a document"))
}

pub(crate) fn command(server: &Server, command: Document) -> Document {
    let reply = exchange(&mut server.connect(), command).expect("a reply");
    assert_eq!(reply.get_f64("ok").ok(), Some(1.0), "{reply}");
    reply
}

pub(crate) fn fill(server: &Server) {
    let timeseries = doc! { "timeField": "time", "metaField": "bed" };
    command(server, doc! { "create": "soil", "timeseries": timeseries });
    for part in 0..5i64 {
        let measurements = (0..100i64).map(|n| {
            let time = bson::DateTime::from_millis((part * 100 + n) * 60_000);
            doc! { "time": time, "bed": n % 4, "moisture": n }
        });
        let documents = measurements.collect::<Vec<_>>();
        let reply = command(server, doc! { "insert": "soil", "documents": documents });
        assert_eq!(reply.get_i32("n").ok(), Some(100), "{reply}");
    }
    let keys = doc! { "key": { "bed": 1 }, "name": "bed" };
    command(server, doc! { "createIndexes": "beds", "indexes": [keys] });
    command(
        server,
        doc! { "insert": "beds", "documents": [{ "_id": 1, "bed": "roses" }] },
    );
}

/// Returns sums over the measurements, and the documents.
pub(crate) fn contents(server: &Server) -> Document {
    let group = doc! { "_id": "$bed", "n": { "$sum": 1 }, "sum": { "$sum": "$moisture" } };
    let pipeline = [doc! { "$group": group }, doc! { "$sort": { "_id": 1 } }];
    let aggregate = doc! { "aggregate": "soil", "pipeline": pipeline.to_vec(), "cursor": {} };
    let soil = command(server, aggregate);
    let beds = command(
        server,
        doc! { "find": "beds", "filter": { "bed": "roses" } },
    );
    let batch = |reply: &Document| {
        let cursor = reply.get_document("cursor").expect("a cursor");
        cursor.get_array("firstBatch").expect("a batch").clone()
    };
    doc! { "soil": batch(&soil), "beds": batch(&beds) }
}

pub(crate) fn url(directory: &Path) -> String {
    format!("file://{}", directory.display())
}

#[test]
fn what_was_acknowledged_is_there_after_a_kill() {
    let directory = Scratch::new("server");
    let (url, cache) = (
        url(&directory.path().join("data")),
        directory.path().join("cache"),
    );
    let cache = cache.to_str().expect("a path");
    let sizes = [
        "--cachePath",
        cache,
        "--cacheSizeGB",
        "0.5",
        "--flushIntervalMS",
        "2",
    ];
    let arguments = [&["--storage", &url], sizes.as_slice()].concat();
    let server = Server::start(&arguments);
    fill(&server);
    let expected = contents(&server);
    let soil = expected.get_array("soil").expect("groups");
    assert_eq!(
        (soil.len(), expected.get_array("beds").map_or(0, Vec::len)),
        (4, 1)
    );
    drop(server);
    let server = Server::start(&arguments);
    assert_eq!(contents(&server), expected);
    let reply = exchange(
        &mut server.connect(),
        doc! { "getCmdLineOpts": 1, "$db": "admin" },
    );
    let reply = reply.expect("a reply");
    let given = reply
        .get_document("parsed")
        .and_then(|parsed| parsed.get_document("storage"));
    let given = given.expect("the options of the storage");
    assert_eq!(given.get_str("url").ok(), Some(url.as_str()));
    assert_eq!(given.get_f64("cacheSizeGB").ok(), Some(0.5));
    server.stop();
    let server = Server::start(&arguments);
    assert_eq!(contents(&server), expected);
}

/// A second server takes the database over. The first one's clients get errors by which drivers look for another server,
/// and its process ends.
#[test]
fn a_server_whose_database_is_taken_over_ends() {
    let directory = Scratch::new("takeover");
    take_over(&url(directory.path()));
}

#[test]
fn a_server_over_s3_whose_database_is_taken_over_ends() {
    if let Some(url) = s3_url("taken-over") {
        take_over(&url);
    }
}

fn take_over(url: &str) {
    let mut first = Server::start(&["--storage", url]);
    fill(&first);
    let expected = contents(&first);
    let (mut writer, mut reader) = (first.connect(), first.connect());
    let second = Server::start(&["--storage", url]);
    // The process may end before it answers.
    for _ in 0..20 {
        let written = exchange(
            &mut writer,
            doc! { "insert": "beds", "documents": [{ "bed": "late" }] },
        );
        let read = exchange(&mut reader, doc! { "find": "beds" });
        let codes = [(written, 10_107), (read, 13_436)];
        for (reply, code) in codes {
            let Some(reply) = reply else { continue };
            assert_eq!(reply.get_f64("ok").ok(), Some(0.0), "{reply}");
            // Or of a process that is ending.
            let given = reply.get_i32("code").expect("a code");
            assert!([code, 11_600, 91].contains(&given), "{reply}");
        }
    }
    first.line("Another process has taken over the database");
    assert_eq!(first.child.wait().expect("its end").code(), Some(102));
    assert_eq!(contents(&second), expected);
    fill_more(&second);
}

/// A server that was paused while another took over answers nothing from what it has in memory, not even commands that it
/// received meanwhile.
#[test]
fn a_paused_server_answers_nothing_old() {
    let directory = Scratch::new("paused");
    let url = url(directory.path());
    let first = Server::stand_by(&url);
    until(&first, "primary", is_primary);
    fill(&first);
    let mut streams = (0..3).map(|_| first.connect()).collect::<Vec<_>>();
    let second = Server::stand_by(&url);
    first.signal("STOP");
    until(&second, "primary", is_primary);
    command(
        &second,
        doc! { "insert": "later", "documents": [{ "_id": 1 }] },
    );
    let commands = [
        doc! { "find": "later" },
        doc! { "count": "beds" },
        doc! { "update": "later", "updates": [{ "q": { "_id": 7 }, "u": { "$set": { "a": 1 } } }] },
    ];
    for (stream, command) in streams.iter_mut().zip(commands) {
        send(stream, command).expect("sent");
    }
    first.signal("CONT");
    for stream in &mut streams {
        if let Some(reply) = receive(stream) {
            assert_eq!(reply.get_f64("ok").ok(), Some(0.0), "{reply}");
        }
    }
    assert_eq!(
        command(&second, doc! { "count": "later" })
            .get_i32("n")
            .ok(),
        Some(1)
    );
}

pub(crate) fn fill_more(server: &Server) {
    let reply = command(
        server,
        doc! { "insert": "beds", "documents": [{ "bed": "herbs" }] },
    );
    assert_eq!(reply.get_i32("n").ok(), Some(1));
    let count = command(server, doc! { "count": "beds" });
    assert_eq!(count.get_i32("n").ok(), Some(2), "{count}");
}

#[test]
fn a_database_is_copied_to_object_storage_and_back() {
    let directory = Scratch::new("copies");
    let path = |name: &str| directory.path().join(name).display().to_string();
    let (first, last) = (path("first"), path("last"));
    let (objects, more) = (
        format!("file://{}", path("objects")),
        format!("file://{}", path("more")),
    );
    let server = Server::start(&["--dbpath", &first]);
    fill(&server);
    let expected = contents(&server);
    let told = refused(&["copy", &first, &objects], 100);
    assert!(told.contains("in use by another process"), "{told}");
    assert!(!Path::new(&path("objects")).exists(), "nothing was created");
    server.stop();
    let copied = |from: &str, to: &str| {
        let ended = run(&["copy", from, to]);
        let told = String::from_utf8_lossy(&ended.stdout).into_owned();
        assert!(ended.status.success(), "{ended:?}");
        assert!(
            told.contains("copied to") && told.contains("counted there"),
            "{told}"
        );
    };
    copied(&first, &objects);
    let server = Server::start(&["--storage", &objects]);
    assert_eq!(contents(&server), expected);
    // While it is served.
    copied(&objects, &last);
    copied(&objects, &more);
    fill_more(&server);
    server.stop();
    let server = Server::start(&["--dbpath", &last]);
    assert_eq!(contents(&server), expected);
    server.stop();
    let verified = run(&["verify", &last]);
    assert!(verified.status.success(), "{verified:?}");
    let told = refused(&["copy", &first, &objects], 100);
    assert!(told.contains("is not empty"), "{told}");
    let told = refused(&["copy", &first, &last], 100);
    assert!(told.contains("is not empty"), "{told}");
    let told = refused(&["copy", &path("nothing"), &path("new")], 100);
    assert!(told.contains("there is no database"), "{told}");
    let told = refused(
        &["copy", &format!("file://{}", path("nothing")), &path("new")],
        100,
    );
    assert!(told.contains("is not a directory"), "{told}");
}

#[test]
fn options_that_cannot_work_are_told_plainly() {
    let directory = Scratch::new("options");
    let url = url(directory.path());
    for (arguments, code, text) in [
        (
            &["serve", "--storage", "ftp://a/b"][..],
            2,
            "the scheme is none of s3, gs, az and file",
        ),
        (
            &["serve", "--storage", &url, "--dbpath", "x"],
            2,
            "--storage and --dbpath name two places",
        ),
        (
            &["serve", "--storage", &url, "--storageRegion", "r"],
            2,
            "only a store with s3://",
        ),
        (
            &["serve", "--storage", &url, "--flushIntervalMS", "0"],
            2,
            "--flushIntervalMS",
        ),
        (
            &["copy", &url, "data", "--storageRegion", "r"],
            2,
            "--storageRegion needs",
        ),
        (&["copy", "ftp://a/b", "data"], 2, "the scheme is none of"),
    ] {
        let told = refused(arguments, code);
        assert!(told.contains(text), "{arguments:?}: {told}");
    }
    // A directory that cannot be created.
    let file = directory.path().join("file");
    std::fs::write(&file, "x").expect("a file");
    let told = refused(
        &[
            "serve",
            "--port",
            "0",
            "--storage",
            &format!("{url}/file/data"),
        ],
        100,
    );
    assert!(told.contains("cannot open file://"), "{told}");
}

/// The place on the command line counts, whatever the environment says: an image has a default there.
#[test]
fn the_command_line_overrides_the_place_of_the_environment() {
    let directory = Scratch::new("environment");
    let (url, data) = (
        url(&directory.path().join("objects")),
        directory.path().join("data"),
    );
    let serve = ["serve", "--port", "0"];
    let mut program = nilometer(&[&serve[..], &["--storage", &url]].concat());
    Server::spawn(program.env("NILOMETER_DBPATH", &data)).stop();
    assert!(!data.exists());
    let path = data.to_str().expect("a path");
    let mut program = nilometer(&[&serve[..], &["--dbpath", path]].concat());
    Server::spawn(program.env("NILOMETER_STORAGE", "s3://b/p")).stop();
    assert!(data.exists());
    let mut program = nilometer(&serve);
    let program = program
        .env("NILOMETER_STORAGE", &url)
        .env("NILOMETER_DBPATH", &data);
    assert_eq!(
        program.output().expect("the program").status.code(),
        Some(2)
    );
}

/// A store that does not answer, and one whose answer is no, without a network.
#[test]
fn an_s3_store_that_cannot_be_used_is_told_plainly() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || refuse_requests(stream));
        }
    });
    let serve = |storage: &str, endpoint: &str| {
        let mut program = nilometer(&[
            "serve",
            "--port",
            "0",
            "--storage",
            storage,
            "--storageEndpoint",
            endpoint,
            "--storageRegion",
            "us-east-1",
        ]);
        let program = program
            .env("AWS_ACCESS_KEY_ID", "key")
            .env("AWS_SECRET_ACCESS_KEY", "secret");
        let ended = program.output().expect("the program");
        assert_eq!(ended.status.code(), Some(100), "{ended:?}");
        String::from_utf8_lossy(&ended.stderr).into_owned()
    };
    let told = serve("s3://forbidden/db", &endpoint);
    assert!(told.contains("the credentials do not permit it"), "{told}");
    let told = serve("s3://missing/db", &endpoint);
    assert!(
        told.contains("the bucket or container does not exist"),
        "{told}"
    );
    let told = serve("s3://unconditional/db", &endpoint);
    assert!(
        told.contains("refuses to create an object only if it is absent"),
        "{told}"
    );
    let unused = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let nobody = format!("http://{}", unused.local_addr().expect("an address"));
    drop(unused);
    let told = serve("s3://bucket/db", &nobody);
    assert!(
        told.contains("cannot create an object that is absent"),
        "{told}"
    );
}

/// Answers each request by the bucket in its path.
fn refuse_requests(stream: TcpStream) {
    let mut reader = BufReader::new(&stream);
    loop {
        let (mut line, mut length, mut path) = (String::new(), 0usize, String::new());
        let mut has_condition = false;
        while reader.read_line(&mut line).is_ok_and(|length| length > 0) {
            if path.is_empty() {
                path.clone_from(&line);
            }
            let name = line
                .split_once(':')
                .map(|(name, _)| name.to_ascii_lowercase());
            if name.as_deref() == Some("content-length") {
                let value = line.split_once(':').map_or("0", |(_, value)| value.trim());
                length = value.parse().unwrap_or(0);
            }
            has_condition |= name.as_deref() == Some("if-none-match");
            if line.trim().is_empty() {
                break;
            }
            line.clear();
        }
        if path.is_empty() {
            return;
        }
        let mut body = vec![0; length];
        if reader.read_exact(&mut body).is_err() {
            return;
        }
        let (status, code) = if path.contains("forbidden") {
            ("403 Forbidden", "AccessDenied")
        } else if path.contains("missing") {
            ("404 Not Found", "NoSuchBucket")
        } else if path.starts_with("PUT") && !has_condition {
            ("200 OK\r\nETag: \"1\"", "")
        } else {
            ("501 Not Implemented", "NotImplemented")
        };
        let body = format!("<Error><Code>{code}</Code></Error>");
        let answer = format!(
            "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        if (&stream).write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

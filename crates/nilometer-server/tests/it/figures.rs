//! The cost of connections, TLS and authorization: benchmarks, which a plain `cargo test` skips.
//!
//! ```sh
//! cargo xtask figures
//! ```
//!
//! Each compares two variants on one machine in one run, alternating, and takes the median of the rounds. The processor
//! time of the server is measured too, because the client shares the machine. They print results, and fail if a promise
//! is missed by more than noise explains.

#![expect(clippy::print_stdout, reason = "benchmarks print their figures")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use nilometer::auth::Mechanism;
use nilometer_bson::{Document, Value, array, doc};

use crate::access;
use crate::client::{Client, body, is_ok, op_msg, sequence};
use crate::encryption::{self, Authority};
use crate::server::Server;

/// Idle connections.
const IDLE: usize = 10_000;

/// Maximum memory of idle connections.
const IDLE_BYTES_MAX: f64 = 1e9;

/// Active connections: few and many.
const ACTIVE: [usize; 2] = [16, 1000];

/// Minimum throughput of many connections, relative to few.
const KEPT_MIN: f64 = 0.8;

/// Time until silent connections are idle.
const REST: Duration = Duration::from_secs(3);

/// Threads of the client, each with a share of the connections.
const CLIENT_THREADS: usize = 2;

/// Rounds of each comparison.
const ROUNDS: usize = 9;

/// Length of a round of active connections.
const ROUND: Duration = Duration::from_secs(2);

/// Documents per insert.
const BATCH: i64 = 10_000;

/// Inserts per round.
const INSERTS: usize = 8;

/// Returns the resident memory of a server, in bytes.
fn resident(server: &Server) -> f64 {
    let path = format!("/proc/{}/status", server.process());
    let status = std::fs::read_to_string(path).expect("a running server");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next());
    kib.and_then(|kib| kib.parse::<f64>().ok())
        .expect("a figure")
        * 1024.0
}

/// Returns the processor time of a server, in hundredths of a second.
fn busy(server: &Server) -> f64 {
    let path = format!("/proc/{}/stat", server.process());
    let stat = std::fs::read_to_string(path).expect("a running server");
    let behind = stat.rsplit(')').next().expect("fields");
    let field = |at: usize| {
        behind
            .split_whitespace()
            .nth(at)
            .and_then(|f| f.parse::<f64>().ok())
    };
    field(11).expect("a figure") + field(12).expect("a figure")
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn message(database: &str, command: Document) -> Vec<u8> {
    let mut with_database = nilometer_bson::DocumentBuilder::new();
    for element in command.iter() {
        with_database.append_element(element);
    }
    with_database.append("$db", database);
    op_msg(0, &[body(&with_database.finish())])
}

fn read_reply(stream: &mut impl Read) -> Vec<u8> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).expect("a reply");
    let length = u32::from_le_bytes(length) as usize;
    let mut rest = vec![0; length - 4];
    stream.read_exact(&mut rest).expect("a reply");
    rest
}

/// Repeatedly sends `message` over every stream before reading the first answer. Returns answers per second.
fn throughput(streams: &mut [TcpStream], message: &[u8]) -> f64 {
    let part = streams.len().div_ceil(CLIENT_THREADS);
    let began = Instant::now();
    let answered: usize = std::thread::scope(|scope| {
        let parts: Vec<_> = streams
            .chunks_mut(part)
            .map(|streams| {
                scope.spawn(move || {
                    let mut answered = 0;
                    for stream in streams.iter_mut() {
                        stream.write_all(message).expect("bytes are taken");
                    }
                    while began.elapsed() < ROUND {
                        for stream in streams.iter_mut() {
                            read_reply(stream);
                            stream.write_all(message).expect("bytes are taken");
                            answered += 1;
                        }
                    }
                    for stream in streams.iter_mut() {
                        read_reply(stream);
                    }
                    answered
                })
            })
            .collect();
        parts
            .into_iter()
            .map(|part| part.join().expect("a client"))
            .sum()
    });
    answered as f64 / began.elapsed().as_secs_f64()
}

fn open(server: &Server, count: usize) -> Vec<TcpStream> {
    let hello = message("admin", doc! {"hello": 1});
    (0..count)
        .map(|_| {
            let mut stream = TcpStream::connect(("127.0.0.1", server.port)).expect("a connection");
            stream.set_nodelay(true).expect("an option");
            stream.write_all(&hello).expect("bytes are taken");
            read_reply(&mut stream);
            stream
        })
        .collect()
}

#[test]
#[ignore = "a benchmark"]
fn idle_connections_take_little_memory() {
    let server = Server::start_with(&["--quiet"]);
    let before = resident(&server);
    let streams = open(&server, IDLE);
    let at_once = resident(&server);
    std::thread::sleep(REST);
    let after = resident(&server);
    let each = (after - before) / IDLE as f64 / 1024.0;
    println!(
        "{IDLE} idle connections: {:.0} MB, {each:.1} KiB each; at once {:.0} MB, before {:.0} MB",
        after / 1e6,
        at_once / 1e6,
        before / 1e6
    );
    let authority = Authority::new();
    let (secure, _directory) = encryption::start(&authority, "requireTLS", &["--quiet"]);
    let before = resident(&secure);
    let count = IDLE / 10;
    let inside: Vec<_> = (0..count)
        .map(|_| encryption::connect_newest(&secure, &authority))
        .collect();
    std::thread::sleep(REST);
    let each_inside = (resident(&secure) - before) / count as f64 / 1024.0;
    println!("{count} idle connections with TLS: {each_inside:.1} KiB each");
    assert!(at_once.max(after) < IDLE_BYTES_MAX);
    assert_eq!((streams.len(), inside.len()), (IDLE, count));
}

#[test]
#[ignore = "a benchmark"]
fn many_active_connections_are_nearly_as_fast_as_few() {
    let server = Server::start_with(&["--quiet"]);
    let mut client = server.connect();
    let documents: Vec<Value> = (0..1000).map(|i| doc! {"_id": i, "v": i}.into()).collect();
    let insert = doc! {"insert": "c", "documents": documents};
    assert!(is_ok(&client.run_on("test", &insert)));
    let series = doc! {"create": "ts", "timeseries": doc! {"timeField": "t", "metaField": "m"}};
    assert!(is_ok(&client.run_on("test", &series)));
    let measurement = doc! {"t": Value::DateTime(1_700_000_000_000), "m": 1, "v": 2.5};
    let works = [
        ("find by _id", doc! {"find": "c", "filter": doc! {"_id": 7}}),
        (
            "insert of one measurement",
            doc! {"insert": "ts", "documents": array![measurement]},
        ),
    ];
    let mut lost = Vec::new();
    let [mut few, mut many] = ACTIVE.map(|count| open(&server, count));
    for (name, command) in works {
        let bytes = message("test", command);
        let (mut rates, mut parts) = ([Vec::new(), Vec::new()], Vec::new());
        for _ in 0..ROUNDS {
            let pair = [throughput(&mut few, &bytes), throughput(&mut many, &bytes)];
            parts.push(pair[1] / pair[0]);
            rates[0].push(pair[0]);
            rates[1].push(pair[1]);
        }
        let [few, many] = rates.map(median);
        let part = median(parts);
        println!(
            "{name}: {few:.0} a second with {} connections, {many:.0} with {}; median of the ratios {part:.2}",
            ACTIVE[0], ACTIVE[1]
        );
        lost.extend((part < KEPT_MIN).then_some(name));
    }
    assert!(lost.is_empty(), "too much is lost: {lost:?}");
}

/// Returns an insert of measurements like machine metrics, the next in time.
fn batch(round: usize) -> Vec<u8> {
    let first = round as i64 * BATCH;
    let documents: Vec<Document> = (first..first + BATCH)
        .map(|at| {
            doc! {
                "t": Value::DateTime(1_700_000_000_000 + at / 100 * 10_000),
                "m": doc! {"host": format!("host_{}", at % 100), "region": "eu"},
                "user": (at % 97) as f64, "system": (at % 31) as f64, "idle": (at % 11) as f64, "nice": 0.0,
            }
        })
        .collect();
    let insert = doc! {"insert": "ts", "$db": "test"};
    op_msg(0, &[body(&insert), sequence("documents", &documents)])
}

/// Measures inserts through two streams, alternating: seconds and processor time of both servers.
fn ingest<A: Read + Write, B: Read + Write>(
    (first, of_first): (&mut A, &Server),
    (second, of_second): (&mut B, &Server),
) -> ([f64; 2], f64) {
    fn time(stream: &mut (impl Read + Write), messages: &[Vec<u8>]) -> f64 {
        let began = Instant::now();
        for message in messages {
            stream.write_all(message).expect("bytes are taken");
            stream.flush().expect("bytes are taken");
            let reply = read_reply(stream);
            let reply = Document::from_bytes(reply[17..].to_vec()).expect("a reply");
            assert!(
                is_ok(&reply) && reply.get("n").as_exact_i64() == Some(BATCH),
                "{reply:?}"
            );
        }
        began.elapsed().as_secs_f64()
    }
    let (mut seconds, mut ratios) = ([Vec::new(), Vec::new()], Vec::new());
    let before = [busy(of_first), busy(of_second)];
    for round in 0..ROUNDS + 1 {
        let messages: Vec<_> = (0..INSERTS).map(|at| batch(round * INSERTS + at)).collect();
        // The second one finds warm caches, so they take turns.
        let pair = match round % 2 {
            0 => {
                let a = time(first, &messages);
                [a, time(second, &messages)]
            }
            _ => {
                let b = time(second, &messages);
                [time(first, &messages), b]
            }
        };
        // The first round warms up.
        if round > 0 {
            ratios.push(pair[1] / pair[0]);
            seconds[0].push(pair[0]);
            seconds[1].push(pair[1]);
        }
    }
    println!(
        "  processor time of the servers, hundredths of a second: {:.0} and {:.0}",
        busy(of_first) - before[0],
        busy(of_second) - before[1]
    );
    (seconds.map(median), median(ratios))
}

fn make_series(client: &mut Client) {
    let series = doc! {"create": "ts", "timeseries": doc! {"timeField": "t", "metaField": "m"}};
    assert!(is_ok(&client.run_on("test", &series)));
}

#[test]
#[ignore = "a benchmark"]
fn tls_costs_little_of_ingest() {
    let authority = Authority::new();
    // Both servers accept both, so that nothing else differs.
    let (plain, _plain) = encryption::start(&authority, "preferTLS", &["--quiet"]);
    let (secure, _secure) = encryption::start(&authority, "preferTLS", &["--quiet"]);
    for server in [&plain, &secure] {
        make_series(&mut server.connect());
    }
    let mut open = TcpStream::connect(("127.0.0.1", plain.port)).expect("a connection");
    open.set_nodelay(true).expect("an option");
    let mut inside = encryption::connect_newest(&secure, &authority);
    println!("{INSERTS} inserts of {BATCH} measurements, plain and with TLS 1.3:");
    let ([a, b], ratio) = ingest((&mut open, &plain), (&mut inside, &secure));
    let rate = |seconds: f64| INSERTS as f64 * BATCH as f64 / seconds;
    println!(
        "  {:.0} and {:.0} measurements a second; median of the ratios of times {ratio:.3}",
        rate(a),
        rate(b)
    );
    assert!(ratio < 1.15 / 0.95, "TLS costs {ratio}");
}

#[test]
#[ignore = "a benchmark"]
fn authorization_costs_next_to_nothing() {
    let open = Server::start_with(&["--quiet"]);
    let checked = Server::start_with(&["--quiet", "--auth"]);
    make_series(&mut open.connect());
    access::create_root(&checked);
    let mut known = checked.connect();
    let logged_in = known.log_in(Mechanism::ALL[0], "admin", "root", "pencil");
    assert!(is_ok(&logged_in));
    // A user of an application, not an administrator.
    make_series(&mut known);
    let user = doc! {"createUser": "gauge", "pwd": "pencil", "roles": array!["readWrite"]};
    assert!(is_ok(&known.run_on("test", &user)));
    let mut known = checked.connect();
    let logged_in = known.log_in(Mechanism::ALL[0], "test", "gauge", "pencil");
    assert!(is_ok(&logged_in));
    let mut unknown = open.connect();
    println!("{INSERTS} inserts of {BATCH} measurements, without and with authorization:");
    let ([a, _], ratio) = ingest((unknown.stream(), &open), (known.stream(), &checked));
    println!("  median of the ratios of times {ratio:.3}");
    // One check is too small a part of such an insert to be measured. A command that does almost nothing shows it.
    let count = message("test", doc! {"count": "none"});
    let mut times = [Vec::new(), Vec::new()];
    for round in 0..4000 {
        for (at, client) in [&mut unknown, &mut known].into_iter().enumerate() {
            let stream = client.stream();
            let began = Instant::now();
            stream.write_all(&count).expect("bytes are taken");
            read_reply(stream);
            if round >= 200 {
                times[at].push(began.elapsed().as_secs_f64());
            }
        }
    }
    let [without, with] = times.map(median);
    let check = with - without;
    let of_insert = check / (a / INSERTS as f64);
    println!(
        "  a small command takes {:.2} µs without, {:.2} with: a check is {:.2} % of an insert of {BATCH}",
        without * 1e6,
        with * 1e6,
        of_insert * 100.0
    );
    assert!(of_insert < 0.01, "a check costs {of_insert}");
}

//! Takeovers under load: three servers with `--standby` over one store, of which one is killed, paused or cut off again
//! and again, while clients write.
//!
//! After every few rounds: each acknowledged measurement is there, none twice; the sum of all accounts is what it was; the
//! register is linearizable; `validate` finds nothing.

use std::collections::BTreeMap;
use std::fs::File;
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bson::{Bson, Document, doc};
use nilometer_storage::testing::random::Random;

use crate::proxy::Proxy;
use crate::register::{Effect, Operation, is_linearizable};
use crate::s3::s3_url;
use crate::server::{exchange, nilometer, url};
use crate::support::{Scratch, effort};

const SERVERS: usize = 3;

/// Rounds between two comparisons, each with a database of its own.
const ROUNDS_OF_A_BATCH: u64 = 6;

/// Time after which a client looks for another server.
const PATIENCE: Duration = Duration::from_secs(2);

/// Time in which the set must answer again.
const RECOVERY_MAX: Duration = Duration::from_secs(60);

const ACCOUNTS: u64 = 8;
const TOTAL: i64 = 800;

/// Returns a free port, another at each call. It lies below those that the system gives to outgoing connections, and apart from
/// those of another campaign at the same time.
fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = 31_000 + (std::process::id() % 64) as u16 * 16;
    // The first call sets it.
    let _ = NEXT.compare_exchange(0, first, Ordering::Relaxed, Ordering::Relaxed);
    let mut ports = std::iter::repeat_with(|| NEXT.fetch_add(1, Ordering::Relaxed));
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    ports.find(is_free).expect("a port")
}

/// The servers.
struct Set {
    directory: Scratch,
    url: String,
    ports: [u16; SERVERS],
    children: [Option<Child>; SERVERS],
    proxies: [Proxy; SERVERS],
    /// Between the servers and a store that speaks S3's protocol.
    store: Option<Proxy>,
}

impl Set {
    fn start() -> Self {
        let directory = Scratch::new("campaign");
        let ports = std::array::from_fn(|_| free_port());
        let s3 = s3_url("campaign");
        let store = s3.as_ref().map(|_| {
            let endpoint = std::env::var("AWS_ENDPOINT_URL").expect("an endpoint");
            let port = endpoint.rsplit(':').next().expect("a port");
            Proxy::start(port.parse().expect("a port"))
        });
        let mut set = Self {
            url: s3.unwrap_or_else(|| url(&directory.path().join("store"))),
            directory,
            children: [None, None, None],
            proxies: std::array::from_fn(|at: usize| Proxy::start(ports[at])),
            ports,
            store,
        };
        for at in 0..SERVERS {
            set.begin(at);
        }
        set
    }

    /// Starts a server, as a supervisor would.
    fn begin(&mut self, at: usize) {
        let port = self.ports[at].to_string();
        let mut command: Command = nilometer(&[
            "serve",
            "--port",
            &port,
            "--storage",
            &self.url,
            "--standby",
            "--flushIntervalMS",
            "5",
        ]);
        if let Some(store) = &self.store {
            let endpoint = format!("http://127.0.0.1:{}", store.port);
            command.env("AWS_ENDPOINT_URL", endpoint);
        }
        let log = self.directory.path().join(format!("log-{at}"));
        let log = File::options()
            .create(true)
            .append(true)
            .open(log)
            .expect("a file");
        let child = command
            .stdout(Stdio::from(log))
            .stderr(Stdio::null())
            .spawn();
        self.children[at] = Some(child.expect("a server"));
    }

    /// Starts the servers again that have ended. None ends because another one has taken over.
    fn supervise(&mut self) {
        for at in 0..SERVERS {
            let child = self.children[at].as_mut().expect("a child");
            if let Some(status) = child.try_wait().expect("its state") {
                assert_ne!(status.code(), Some(102), "server {at} ended");
                self.begin(at);
            }
        }
    }

    fn signal(&self, at: usize, name: &str) {
        let id = self.children[at]
            .as_ref()
            .expect("a child")
            .id()
            .to_string();
        let sent = Command::new("kill").args(["-s", name, &id]).status();
        assert!(sent.expect("kill").success());
    }

    fn kill(&mut self, at: usize) {
        let child = self.children[at].as_mut().expect("a child");
        child.kill().expect("killed");
        child.wait().expect("its end");
    }

    /// Returns the server that takes writes.
    fn writer(&self) -> Option<usize> {
        let ask = |at: &usize| {
            let mut stream = connect(self.ports[*at])?;
            let hello = exchange(&mut stream, doc! { "hello": 1, "$db": "admin" })?;
            hello.get_bool("isWritablePrimary").ok().filter(|is| *is)
        };
        (0..SERVERS).find(|at| ask(at).is_some())
    }

    fn wait_for_writer(&mut self) -> usize {
        let end = Instant::now() + RECOVERY_MAX;
        loop {
            if let Some(at) = self.writer() {
                return at;
            }
            assert!(Instant::now() < end, "no server takes over");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Set {
    fn drop(&mut self) {
        for child in self.children.iter_mut().flatten() {
            // One may be paused.
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            for at in 0..SERVERS {
                let log = std::fs::read_to_string(self.directory.path().join(format!("log-{at}")));
                let log = log.unwrap_or_default();
                // Clients that look for the one that writes fill the rest.
                let telling = |line: &&str| {
                    !["NETWORK", "COMMAND"]
                        .iter()
                        .any(|c| line.contains(&format!("\"c\":\"{c}\"")))
                };
                let last = log.lines().rev().filter(telling).take(24);
                eprintln!("server {at}:\n{}", last.collect::<Vec<_>>().join("\n"));
            }
        }
    }
}

fn connect(port: u16) -> Option<TcpStream> {
    let address = ([127, 0, 0, 1], port).into();
    let stream = TcpStream::connect_timeout(&address, PATIENCE).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.set_nodelay(true).ok()?;
    Some(stream)
}

/// How a command ended.
enum Outcome {
    Done(Document),
    /// The server said that it did nothing.
    Refused,
    Unknown,
}

/// A client that looks for the server that takes writes, as a driver does.
struct Client {
    ports: [u16; SERVERS],
    at: usize,
    stream: Option<TcpStream>,
}

impl Client {
    fn new(ports: [u16; SERVERS]) -> Self {
        Self {
            ports,
            at: 0,
            stream: None,
        }
    }

    fn connected(&mut self) -> Option<&mut TcpStream> {
        if self.stream.is_none() {
            self.at = (self.at + 1) % SERVERS;
            let mut stream = connect(self.ports[self.at])?;
            let hello = exchange(&mut stream, doc! { "hello": 1, "$db": "admin" })?;
            if hello.get_bool("isWritablePrimary").ok() != Some(true) {
                return None;
            }
            self.stream = Some(stream);
        }
        self.stream.as_mut()
    }

    fn run(&mut self, command: Document) -> Outcome {
        let Some(stream) = self.connected() else {
            std::thread::sleep(Duration::from_millis(20));
            return Outcome::Refused;
        };
        let Some(reply) = exchange(stream, command) else {
            self.stream = None;
            return Outcome::Unknown;
        };
        let has_errors =
            reply.contains_key("writeErrors") || reply.contains_key("writeConcernError");
        if reply.get_f64("ok").ok() == Some(1.0) && !has_errors {
            return Outcome::Done(reply);
        }
        self.stream = None;
        // Which of them did something is not told apart.
        Outcome::Unknown
    }

    /// Runs a command that can be repeated until it succeeds.
    fn insist(&mut self, command: &Document) -> Document {
        let end = Instant::now() + RECOVERY_MAX;
        loop {
            if let Outcome::Done(reply) = self.run(command.clone()) {
                return reply;
            }
            assert!(Instant::now() < end, "{command} does not succeed");
        }
    }
}

/// What the clients of one batch of rounds did.
#[derive(Default)]
struct Journal {
    /// Measurements: acknowledged, or unknown.
    acknowledged: Mutex<Vec<(i64, i64)>>,
    unknown: Mutex<Vec<(i64, i64)>>,
    register: Mutex<Vec<Operation>>,
    transfers: AtomicU64,
}

/// The clients of one batch, until it is dropped.
struct Load {
    is_over: Arc<AtomicBool>,
    journal: Arc<Journal>,
    clients: Vec<std::thread::JoinHandle<()>>,
}

impl Load {
    fn start(set: &Set, database: &str, seed: u64) -> Self {
        let ports = std::array::from_fn(|at: usize| set.proxies[at].port);
        let (is_over, journal) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(Journal::default()),
        );
        let begun = Instant::now();
        let mut clients = Vec::new();
        for number in 0..6u64 {
            let (is_over, journal) = (Arc::clone(&is_over), Arc::clone(&journal));
            let database = database.to_owned();
            clients.push(std::thread::spawn(move || {
                let mut client = Client::new(ports);
                let mut random = Random::new(seed << 8 | number);
                for step in 0.. {
                    if is_over.load(Ordering::Acquire) {
                        return;
                    }
                    let number = number as i64;
                    match number {
                        0 | 1 => measure(&mut client, &journal, &database, (number, step)),
                        2 => transfer(&mut client, &journal, &database, &mut random),
                        _ => change(
                            &mut client,
                            &journal,
                            &database,
                            (number, step),
                            begun,
                            &mut random,
                        ),
                    }
                    std::thread::sleep(Duration::from_millis(random.below(15)));
                }
            }));
        }
        Self {
            is_over,
            journal,
            clients,
        }
    }

    fn stop(self) -> Arc<Journal> {
        self.is_over.store(true, Ordering::Release);
        for client in self.clients {
            client.join().expect("no panic");
        }
        self.journal
    }
}

/// Inserts a few measurements.
fn measure(client: &mut Client, journal: &Journal, database: &str, (writer, step): (i64, i64)) {
    let numbers = (step * 3..step * 3 + 3).collect::<Vec<_>>();
    let documents = numbers.iter().map(|number| {
        let time = bson::DateTime::from_millis(number * 1000);
        doc! { "time": time, "bed": { "writer": writer }, "number": number }
    });
    let documents = documents.collect::<Vec<_>>();
    let outcome = client.run(doc! { "insert": "soil", "documents": documents, "$db": database });
    let list = match outcome {
        Outcome::Done(_) => &journal.acknowledged,
        Outcome::Unknown => &journal.unknown,
        Outcome::Refused => return,
    };
    let mut list = list.lock().expect("no panic");
    list.extend(numbers.iter().map(|number| (writer, *number)));
}

/// Moves money between two accounts of one document, and looks at the sum.
fn transfer(client: &mut Client, journal: &Journal, database: &str, random: &mut Random) {
    let (from, to) = (random.below(ACCOUNTS), random.below(ACCOUNTS));
    let sum = random.below(50) as i64;
    let mut change = doc! { format!("account{from}"): -sum };
    if from != to {
        change.insert(format!("account{to}"), sum);
    } else {
        change = doc! { "nothing": 1i64 };
    }
    let update = doc! { "q": { "_id": "bank" }, "u": { "$inc": change } };
    if let Outcome::Done(_) =
        client.run(doc! { "update": "bank", "updates": [update], "$db": database })
    {
        journal.transfers.fetch_add(1, Ordering::Relaxed);
    }
    let find = doc! { "find": "bank", "filter": { "_id": "bank" }, "$db": database };
    if let Outcome::Done(reply) = client.run(find)
        && total(&reply) != Some(TOTAL)
    {
        explain(client, database, &reply);
    }
}

/// Fails because of a wrong total, and says what else is there.
fn explain(client: &mut Client, database: &str, reply: &Document) {
    eprintln!(
        "wrong total from server {} in {database}: {reply}",
        client.at
    );
    for _ in 0..5 {
        for command in [
            doc! { "find": "bank", "$db": database },
            doc! { "listCollections": 1, "nameOnly": true, "$db": database },
            doc! { "listDatabases": 1, "nameOnly": true, "$db": "admin" },
        ] {
            let told = match client.run(command) {
                Outcome::Done(reply) => reply.to_string(),
                Outcome::Refused => "refused".to_owned(),
                Outcome::Unknown => "unknown".to_owned(),
            };
            eprintln!("server {}: {told}", client.at);
        }
        std::thread::sleep(Duration::from_millis(300));
    }
    panic!("the total of {database} is wrong: {reply}");
}

fn total(reply: &Document) -> Option<i64> {
    let found = first(reply)?;
    let accounts = found.iter().filter(|(name, _)| name.starts_with("account"));
    accounts.map(|(_, value)| value.as_i64()).sum()
}

fn first(reply: &Document) -> Option<Document> {
    let batch = reply
        .get_document("cursor")
        .ok()?
        .get_array("firstBatch")
        .ok()?;
    batch.first()?.as_document().cloned()
}

/// Reads, writes or swaps the register.
fn change(
    client: &mut Client,
    journal: &Journal,
    database: &str,
    (number, step): (i64, i64),
    begun: Instant,
    random: &mut Random,
) {
    let value = number << 32 | step;
    let sent = begun.elapsed().as_nanos();
    let kind = random.below(4);
    let read = |reply: &Document| {
        let found = first(reply)?;
        Some(found.get_i64("value").ok().map(i64::cast_unsigned))
    };
    let (command, effect) = match kind {
        0 | 1 => (
            doc! { "find": "register", "filter": { "_id": 1 } },
            Effect::Read(None),
        ),
        2 => {
            let update = doc! { "q": { "_id": 1 }, "u": { "$set": { "value": value } } };
            (
                doc! { "update": "register", "updates": [update] },
                Effect::Write(value as u64),
            )
        }
        _ => {
            let known = journal.register.lock().expect("no panic");
            let last = known.iter().rev().find_map(|known| match known.effect {
                Effect::Write(value) | Effect::Swap(_, value) | Effect::Read(Some(value)) => {
                    Some(value)
                }
                Effect::Read(None) => None,
            });
            let Some(last) = last else { return };
            let find = doc! { "_id": 1, "value": last as i64 };
            let set = doc! { "$set": { "value": value } };
            (
                doc! { "findAndModify": "register", "query": find, "update": set },
                Effect::Swap(last, value as u64),
            )
        }
    };
    let mut command = command;
    command.insert("$db", database);
    let outcome = client.run(command);
    let answered = Some(begun.elapsed().as_nanos());
    let operation = match (outcome, effect) {
        (Outcome::Refused, _) | (Outcome::Unknown, Effect::Read(_)) => return,
        (Outcome::Unknown, effect) => Operation {
            sent,
            answered: None,
            effect,
        },
        (Outcome::Done(reply), Effect::Read(_)) => {
            let Some(seen) = read(&reply) else { return };
            Operation {
                sent,
                answered,
                effect: Effect::Read(seen),
            }
        }
        // A swap that found another value says only that.
        (Outcome::Done(reply), Effect::Swap(..))
            if !matches!(reply.get("value"), Some(Bson::Document(_))) =>
        {
            return;
        }
        (Outcome::Done(_), effect) => Operation {
            sent,
            answered,
            effect,
        },
    };
    journal.register.lock().expect("no panic").push(operation);
}

/// Creates the collections of a batch.
fn prepare(client: &mut Client, database: &str) {
    let timeseries = doc! { "timeField": "time", "metaField": "bed" };
    let create = doc! { "create": "soil", "timeseries": timeseries, "$db": database };
    // It may have been created by a try whose answer was lost.
    let end = Instant::now() + RECOVERY_MAX;
    loop {
        let listed = client.insist(&doc! { "listCollections": 1, "$db": database });
        if first(&listed).is_some() {
            break;
        }
        assert!(Instant::now() < end, "no collection can be created");
        client.run(create.clone());
    }
    let mut accounts = doc! {};
    for account in 0..ACCOUNTS {
        accounts.insert(format!("account{account}"), TOTAL / ACCOUNTS as i64);
    }
    let upsert =
        |id: Bson, set: Document| doc! { "q": { "_id": id }, "u": { "$set": set }, "upsert": true };
    let bank = upsert("bank".into(), accounts);
    client.insist(&doc! { "update": "bank", "updates": [bank], "$db": database });
    let register = upsert(1.into(), doc! { "is": "a register" });
    client.insist(&doc! { "update": "register", "updates": [register], "$db": database });
}

/// Compares what is there with what the clients know.
fn compare(client: &mut Client, journal: &Journal, database: &str) -> usize {
    let group =
        doc! { "_id": { "writer": "$bed.writer", "number": "$number" }, "n": { "$sum": 1 } };
    let pipeline = [doc! { "$group": group }];
    let aggregate = doc! { "aggregate": "soil", "pipeline": pipeline.to_vec(), "cursor": { "batchSize": 1_000_000 }, "$db": database };
    let reply = client.insist(&aggregate);
    let cursor = reply.get_document("cursor").expect("a cursor");
    assert_eq!(cursor.get_i64("id").ok(), Some(0), "all in one batch");
    let mut found = BTreeMap::new();
    for one in cursor.get_array("firstBatch").expect("a batch") {
        let one = one.as_document().expect("a document");
        let id = one.get_document("_id").expect("an id");
        let key = (
            id.get_i64("writer").expect("it"),
            id.get_i64("number").expect("it"),
        );
        found.insert(key, one.get_i32("n").expect("a number"));
    }
    let acknowledged = journal.acknowledged.lock().expect("no panic");
    for key in acknowledged.iter() {
        assert!(
            found.contains_key(key),
            "the acknowledged measurement {key:?} of {database} is lost"
        );
    }
    assert!(
        found.values().all(|count| *count == 1),
        "a measurement is there twice"
    );
    let unknown = journal.unknown.lock().expect("no panic").len();
    assert!(
        found.len() <= acknowledged.len() + unknown,
        "a measurement that was refused is there"
    );
    let bank = client.insist(&doc! { "find": "bank", "$db": database });
    assert_eq!(total(&bank), Some(TOTAL), "{bank}");
    let register = journal.register.lock().expect("no panic");
    assert!(
        is_linearizable(&register),
        "{} operations on the register of {database}",
        register.len()
    );
    for collection in ["soil", "bank", "register"] {
        let valid = client.insist(&doc! { "validate": collection, "$db": database });
        assert_eq!(valid.get_bool("valid").ok(), Some(true), "{valid}");
    }
    acknowledged.len()
}

/// One disturbance. Returns what it was.
fn disturb(set: &mut Set, random: &mut Random) -> &'static str {
    let writer = set.wait_for_writer();
    let pause = |from: u64, to: u64, random: &mut Random| {
        Duration::from_millis(from + random.below(to - from))
    };
    std::thread::sleep(pause(200, 900, random));
    match random.below(if set.store.is_some() { 8 } else { 7 }) {
        0 | 1 => {
            set.kill(writer);
            "kill"
        }
        2 => {
            set.signal(writer, "TERM");
            "stop"
        }
        // Long enough for another to take over, then it continues.
        3 | 4 => {
            set.signal(writer, "STOP");
            std::thread::sleep(pause(5500, 8000, random));
            set.signal(writer, "CONT");
            "long pause"
        }
        5 => {
            set.signal(writer, "STOP");
            std::thread::sleep(pause(100, 3000, random));
            set.signal(writer, "CONT");
            "short pause"
        }
        6 => {
            let proxies = set.proxies.iter();
            proxies.for_each(Proxy::cut);
            std::thread::sleep(pause(10, 500, random));
            set.proxies.iter().for_each(Proxy::mend);
            "cut clients"
        }
        _ => {
            let store = set.store.as_ref().expect("a store");
            store.cut();
            std::thread::sleep(pause(10, 3000, random));
            store.mend();
            "cut store"
        }
    }
}

#[test]
fn takeovers_under_load_take_nothing_that_was_acknowledged() {
    let rounds = effort(0, 24, 300);
    if rounds == 0 {
        return;
    }
    let seed = std::env::var("NILOMETER_FUZZ_SEED").ok();
    let seed = seed.map_or(1, |seed| seed.parse().expect("a seed"));
    let mut random = Random::new(seed);
    let mut set = Set::start();
    let mut acknowledged = 0;
    let mut kinds = BTreeMap::<&str, u64>::new();
    let mut round = 0;
    while round < rounds {
        let database = format!("garden{round}");
        set.wait_for_writer();
        let mut client = Client::new(set.ports);
        prepare(&mut client, &database);
        let load = Load::start(&set, &database, seed << 16 | round);
        for _ in 0..ROUNDS_OF_A_BATCH.min(rounds - round) {
            let kind = disturb(&mut set, &mut random);
            *kinds.entry(kind).or_default() += 1;
            set.wait_for_writer();
            set.supervise();
            round += 1;
        }
        let journal = load.stop();
        acknowledged += compare(&mut client, &journal, &database);
        let operations = journal.register.lock().expect("no panic").len();
        let transfers = journal.transfers.load(Ordering::Relaxed);
        eprintln!(
            "campaign, seed {seed}: {round} rounds {kinds:?}, {acknowledged} measurements acknowledged; last: {transfers} transfers, {operations} operations on the register"
        );
    }
}

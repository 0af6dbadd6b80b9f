//! Nodes of a cluster as processes of this machine: how ingest grows with them, and what asking several partitions costs.
//!
//! ```text
//! cargo build --release -p nilometer-server --features cluster
//! cargo run --release -p nilometer-bench-cluster --bin nodes -- [--program FILE] [--nodes 1,2] [--seconds N] [--writers N]
//! ```
//!
//! The store is a folder. Writers insert batches of measurements through the nodes in turn, into a series that is sharded by a hash of
//! the host, and the number of measurements is compared with what was acknowledged. Then a series with the same measurements in each
//! of four partitions is asked as a whole, and each partition by itself. The processor time of the nodes is printed beside, which
//! says more than the elapsed time where nodes share processors.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a benchmark prints its figures"
)]

use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use nilometer_bench::{Connection, Options, Outcome, Target, TemporaryDirectory};
use nilometer_bson::{Document, Value, ValueRef, array, doc};

#[path = "../../../src/processor.rs"]
#[allow(dead_code, reason = "other programs measure themselves")]
mod processor;

/// The allocator of the server: decision 0012.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Partitions of a cluster.
const PARTITIONS: usize = 4;

/// Measurements of a batch.
const BATCH: i64 = 1000;

/// Hosts that are measured.
const HOSTS: i64 = 100;

/// Measurements in each partition of the series that is asked.
const ASKED: i64 = 5_000;

/// Repetitions of a question; the median counts.
const REPETITIONS: usize = 201;

/// Time for nodes to start, and to divide the partitions.
const START_MAX: Duration = Duration::from_secs(60);

/// The command line.
struct Arguments {
    program: String,
    nodes: Vec<usize>,
    seconds: u64,
    writers: usize,
}

impl Arguments {
    fn parse() -> Outcome<Self> {
        let mut out = Self {
            program: "target/release/nilometer".to_owned(),
            nodes: vec![1, 2],
            seconds: 15,
            writers: 8,
        };
        let mut given = std::env::args().skip(1);
        while let Some(name) = given.next() {
            let value = given.next().ok_or(format!("{name} needs a value"))?;
            let number = || {
                let number = value.parse::<usize>();
                number.map_err(|e| format!("{name} {value}: {e}"))
            };
            match name.as_str() {
                "--program" => out.program.clone_from(&value),
                "--seconds" => out.seconds = number()? as u64,
                "--writers" => out.writers = number()?,
                "--nodes" => {
                    let counts = value.split(',').map(str::parse);
                    out.nodes = counts
                        .collect::<Result<_, _>>()
                        .map_err(|e| format!("{value}: {e}"))?;
                }
                _ => return Err(format!("unknown option {name}")),
            }
        }
        Ok(out)
    }
}

/// A process of the cluster; killed when dropped.
struct Node {
    child: Child,
    address: String,
}

impl Node {
    fn start(program: &str, folder: &Path) -> Outcome<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(|e| e.to_string())?;
        let port = listener.local_addr().map_err(|e| e.to_string())?.port();
        drop(listener);
        let mut command = Command::new(program);
        command
            .args(["serve", "--quiet", "--cluster", "--partitions"])
            .arg(PARTITIONS.to_string())
            .args(["--port", &port.to_string(), "--storage"])
            .arg(format!("file://{}", folder.display()))
            .stdout(Stdio::null());
        let child = command.spawn().map_err(|e| format!("{program}: {e}"))?;
        let node = Self {
            child,
            address: format!("127.0.0.1:{port}"),
        };
        let until = Instant::now() + START_MAX;
        while TcpStream::connect(&node.address).is_err() {
            if Instant::now() > until {
                return Err(format!("{program} does not answer"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(node)
    }

    fn client(&self) -> Outcome<Client> {
        let options = Options {
            address: self.address.clone(),
            connections: 1,
            ..Options::default()
        };
        Target::open(&options).map(Client)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Returns the processor time of all nodes.
fn processor_time(nodes: &[Node]) -> Duration {
    let times = nodes.iter().map(|node| {
        let number = node.child.id().to_string();
        Duration::from_secs_f64(processor::time_of(&number))
    });
    times.sum()
}

/// A connection to a node.
struct Client(Target);

impl Client {
    fn run(&mut self, command: &Document) -> Outcome<Document> {
        let connection: &mut dyn Connection = self.0.first();
        let reply = connection.call(command, None)?;
        let is_right = reply.get("ok").as_exact_i64() == Some(1);
        match is_right && reply.get("writeErrors").is_missing() {
            true => Ok(reply),
            false => Err(format!("{command:?}: {reply:?}")),
        }
    }

    /// Returns the median time of a question, and the mean processor time of the nodes.
    fn time(&mut self, nodes: &[Node], command: &Document) -> Outcome<[Duration; 2]> {
        let used = processor_time(nodes);
        let mut times = Vec::new();
        for _ in 0..REPETITIONS {
            let began = Instant::now();
            self.run(command)?;
            times.push(began.elapsed());
        }
        let used = processor_time(nodes).saturating_sub(used);
        times.sort();
        Ok([times[REPETITIONS / 2], used / REPETITIONS as u32])
    }
}

/// Starts nodes over one folder, and waits until each has its share of the partitions.
fn cluster(program: &str, folder: &Path, count: usize) -> Outcome<Vec<Node>> {
    let nodes = (0..count).map(|_| Node::start(program, folder));
    let nodes = nodes.collect::<Outcome<Vec<Node>>>()?;
    let until = Instant::now() + START_MAX;
    let mut client = nodes[0].client()?;
    loop {
        let reply = client.run(&doc! {"listShards": 1, "$db": "admin"})?;
        let shards = reply.get("shards").as_array();
        let hosts = shards.iter().flat_map(|shards| shards.iter());
        let hosts = hosts.filter_map(|shard| shard.as_document()?.get("host").as_str());
        let mut hosts: Vec<&str> = hosts.filter(|host| !host.is_empty()).collect();
        let is_whole = hosts.len() == PARTITIONS;
        hosts.sort_unstable();
        hosts.dedup();
        if is_whole && hosts.len() == count.min(PARTITIONS) {
            return Ok(nodes);
        }
        if Instant::now() > until {
            return Err(format!("the partitions are at {hosts:?}"));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn create(client: &mut Client, name: &str, key: &Document) -> Outcome {
    let series = doc! {"timeField": "time", "metaField": "tags"};
    client.run(&doc! {"create": name, "timeseries": series, "$db": "bench"})?;
    let of = format!("bench.{name}");
    client.run(&doc! {"shardCollection": of, "key": key.clone(), "$db": "admin"})?;
    Ok(())
}

fn measurement(number: i64, host: i64) -> Value {
    let tags = doc! {"host": host};
    doc! {
        "time": Value::DateTime(1_700_000_000_000 + number / HOSTS * 10_000), "tags": tags,
        "user": number % 97, "system": number % 89, "idle": number % 83,
    }
    .into()
}

fn insert(name: &str, documents: Vec<Value>) -> Document {
    doc! {"insert": name, "documents": documents, "ordered": false, "$db": "bench"}
}

fn count(client: &mut Client, name: &str) -> Outcome<i64> {
    let reply = client.run(&doc! {"count": name, "query": Document::new(), "$db": "bench"})?;
    Ok(reply.get("n").as_exact_i64().unwrap_or(0))
}

/// Returns the acknowledged measurements of a second, and the processor time of the nodes for each.
fn ingest(nodes: &[Node], arguments: &Arguments) -> Outcome<(f64, Duration)> {
    let mut client = nodes[0].client()?;
    create(&mut client, "cpu", &doc! {"tags.host": "hashed"})?;
    let used = processor_time(nodes);
    let next = Arc::new(AtomicI64::new(0));
    let began = Instant::now();
    let until = began + Duration::from_secs(arguments.seconds);
    let mut writers = Vec::new();
    for writer in 0..arguments.writers {
        let mut client = nodes[writer % nodes.len()].client()?;
        let next = Arc::clone(&next);
        writers.push(std::thread::spawn(move || -> Outcome<i64> {
            let mut written = 0;
            while Instant::now() < until {
                let from = next.fetch_add(BATCH, Ordering::Relaxed);
                let documents = (from..from + BATCH).map(|n| measurement(n, n % HOSTS));
                client.run(&insert("cpu", documents.collect()))?;
                written += BATCH;
            }
            Ok(written)
        }));
    }
    let mut written = 0;
    for writer in writers {
        written += writer.join().map_err(|_| "a writer panicked")??;
    }
    let seconds = began.elapsed().as_secs_f64();
    let used = processor_time(nodes).saturating_sub(used);
    let found = count(&mut client, "cpu")?;
    if found != written {
        return Err(format!(
            "{written} measurements were acknowledged, {found} are there"
        ));
    }
    let each = used.div_f64(written.max(1) as f64);
    Ok((written as f64 / seconds, each))
}

/// Prints what asking all partitions costs beside asking each of them.
fn fan_out(nodes: &[Node]) -> Outcome {
    let mut client = nodes[0].client()?;
    create(&mut client, "parts", &doc! {"tags.host": 1})?;
    let share = HOSTS / PARTITIONS as i64;
    for part in 0..PARTITIONS as i64 {
        let host = |at: i64| doc! {"meta.host": at * share};
        client.run(&doc! {
            "moveRange": "bench.parts", "min": host(part), "max": host(part + 1),
            "toShard": format!("p{:04}", part + 1), "$db": "admin",
        })?;
    }
    for from in (0..ASKED * PARTITIONS as i64).step_by(BATCH as usize) {
        let documents = (from..from + BATCH).map(|n| measurement(n, n % HOSTS));
        client.run(&insert("parts", documents.collect()))?;
    }
    let ask = |filter: Document| {
        let group = doc! {"$group": doc! {"_id": "$tags.host", "mean": doc! {"$avg": "$user"}}};
        let pipeline = array![doc! {"$match": filter}, group];
        doc! {"aggregate": "parts", "pipeline": pipeline, "cursor": Document::new(), "$db": "bench"}
    };
    let mut slowest = [Duration::ZERO; 2];
    let hosts = |low: i64, high: i64| doc! {"tags.host": doc! {"$gte": low, "$lt": high}};
    for part in 0..PARTITIONS as i64 {
        let of_part = ask(hosts(part * share, (part + 1) * share));
        slowest = slowest.max(client.time(nodes, &of_part)?);
    }
    let whole = client.time(nodes, &ask(hosts(0, HOSTS)))?;
    let ms = |[elapsed, used]: [Duration; 2]| {
        let ms = |time: Duration| time.as_secs_f64() * 1000.0;
        format!("{:.2} ms ({:.2} of processors)", ms(elapsed), ms(used))
    };
    println!(
        "a mean for each of {HOSTS} hosts: {} of one partition (the slowest), {} of all {PARTITIONS}",
        ms(slowest),
        ms(whole)
    );
    let all = client.time(nodes, &ask(Document::new()))?;
    println!("the same without a condition: {}", ms(all));
    let one = ask(doc! {"tags.host": 3});
    let one = client.time(nodes, &one)?;
    println!("the mean of one host: {}", ms(one));
    // What travels: groups, not measurements.
    let shown = client.run(&doc! {
        "explain": ask(Document::new()), "verbosity": "executionStats", "$db": "bench",
    })?;
    let shards = shown.get("shards").as_document();
    let returned = shards.into_iter().flatten().filter_map(|shard| {
        let stats = shard.value().as_document()?.get("executionStats");
        let ValueRef::Document(stats) = stats else {
            return None;
        };
        stats.get("nReturned").as_exact_i64()
    });
    let returned: Vec<i64> = returned.collect();
    if !returned.is_empty() {
        println!("documents that each partition returned: {returned:?}");
    }
    Ok(())
}

fn run() -> Outcome {
    let arguments = Arguments::parse()?;
    let mut first = None;
    // They stay until the end: a file system may search long for a place among files that were just deleted.
    let mut folders = Vec::new();
    for count in &arguments.nodes {
        folders.push(TemporaryDirectory::new(&format!("nodes-{count}")));
        let folder = folders[folders.len() - 1].path();
        std::fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let nodes = cluster(&arguments.program, folder, *count)?;
        let (rate, used) = ingest(&nodes, &arguments)?;
        let of_first = rate / *first.get_or_insert(rate);
        let used = used.as_secs_f64() * 1e6;
        println!(
            "{count} nodes: {rate:.0} measurements a second, {of_first:.2} of the first, {used:.2} µs of processors for each; all are there"
        );
        fan_out(&nodes)?;
    }
    Ok(())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

//! What a cluster of many nodes costs its routers: `cargo run --release -p nilometer-bench --bin scale [-- PART…]`. Parts:
//!
//! ```text
//! map         the stored placement of a collection with two partitions for each node: bytes, time to read it, time to route by it
//! history     the same placement after many moves of ranges
//! simulation  nodes with one virtual core and disk each, that insert in virtual time with the costs measured here
//! store       requests to the object store by the intervals of the claims and the pages of their list
//! ```
//!
//! Placements, routing and the work of a partition are those of the server, with an engine in memory. The network, the disks and
//! the cores are simulated: the figures say how the work divides, not what a machine does. One seed gives one outcome.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a benchmark prints its figures"
)]

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nilometer::database::HostedPartition;
use nilometer::router::{Partition, PendingReply};
use nilometer::services::Environment;
use nilometer::{ClientSession, Database, Request};
use nilometer_bson::{Document, Value, array, doc};
use nilometer_storage::{Direction, Engine, MemoryEngine};

/// The allocator of the server: decision 0012.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Partitions of each node.
const PARTITIONS: usize = 2;

/// A message between two nodes, in ns.
const NETWORK_NS: u64 = 100_000;

/// The interval at which a virtual disk makes durable what came, in ns.
const FLUSH_NS: u64 = 10_000_000;

/// Clients of each node. Each waits for the answer before it sends again.
const CLIENTS: [usize; 1] = [16];

/// Virtual time of a simulation, in ns; the first tenth is not counted.
const RUN_NS: u64 = 3_000_000_000;

/// The same with so many nodes that it would take long.
const RUN_OF_MANY_NS: u64 = 1_000_000_000;

/// Nodes that are many.
const MANY_NODES: usize = 1000;

/// Seconds between two looks at the claims, for each page of their list.
const LOOK_SECONDS: f64 = 0.4;

/// Objects of a page.
const PAGE_OBJECTS: usize = 1000;

/// Seconds of silence after which a node counts as ended.
const SILENCE_SECONDS: f64 = 5.0;

/// A partition that answers at once.
struct Instantly(String);

struct Ready(Option<Document>);

impl PendingReply for Ready {
    fn wait(&mut self, _: Duration) -> nilometer::Result<Option<Document>> {
        Ok(self.0.take())
    }
}

impl Partition for Instantly {
    fn name(&self) -> &str {
        &self.0
    }

    fn host(&self) -> String {
        "node:27017".to_owned()
    }

    fn send(&self, request: Request) -> Box<dyn PendingReply> {
        let reply = match request.command_name() {
            "aggregate" | "find" | "listIndexes" => {
                let cursor = doc! {"id": 0_i64, "ns": "test.ts", "firstBatch": array![]};
                doc! {"cursor": cursor, "ok": 1.0}
            }
            _ => doc! {"n": 0, "ok": 1.0},
        };
        Box::new(Ready(Some(reply)))
    }
}

fn partitions(count: usize) -> Vec<Arc<dyn Partition>> {
    let name = |at: usize| Arc::new(Instantly(format!("p{at:05}"))) as Arc<dyn Partition>;
    (0..count).map(name).collect()
}

fn run(database: &Database, command: Document) -> Document {
    let reply = database.run_command(&mut ClientSession::embedded(), &Request::new(command));
    assert_eq!(reply.get("ok").as_exact_i64(), Some(1), "{reply:?}");
    reply
}

/// Returns an insert of measurements of several series.
fn insert(count: usize, series: usize) -> Document {
    let one = |at: usize| -> Value {
        let host = format!("host_{}", at % series);
        let time = Value::DateTime(1_451_606_400_000 + (at / series) as i64 * 10_000);
        let load = |n: usize| ((at * 7 + n * 13) % 1000) as f64 / 10.0;
        doc! {
            "t": time, "m": doc! {"host": host}, "a": load(1), "b": load(2), "c": load(3), "d": load(4),
        }
        .into()
    };
    let list: Vec<Value> = (0..count).map(one).collect();
    doc! {"insert": "ts", "documents": list, "ordered": false, "$db": "test"}
}

/// Returns the time of one run in ns: the least of several.
fn timed(times: usize, mut work: impl FnMut()) -> u64 {
    let runs = (0..times).map(|_| {
        let began = Instant::now();
        work();
        u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    });
    runs.min().unwrap_or(0)
}

/// A router with a time series over many partitions.
struct Map {
    engine: Arc<dyn Engine>,
    router: Database,
    count: usize,
}

impl Map {
    fn new(count: usize) -> Self {
        let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
        let router = Database::router(engine.clone(), Environment::default(), partitions(count));
        let router = router.expect("the partitions have names");
        let options = doc! {"timeField": "t", "metaField": "m"};
        run(
            &router,
            doc! {"create": "ts", "timeseries": options, "$db": "test"},
        );
        let key = doc! {"m.host": "hashed"};
        run(
            &router,
            doc! {"shardCollection": "test.ts", "key": key, "$db": "admin"},
        );
        Self {
            engine,
            router,
            count,
        }
    }

    /// Returns the bytes of the stored placements.
    fn bytes(&self) -> usize {
        let all = self.engine.keyspaces();
        let of = all.iter().find(|known| known.name.contains("placement"));
        let snapshot = self.engine.snapshot().expect("an engine in memory");
        let id = of.expect("placements are stored").id;
        let entries = snapshot.scan(id, &[], None, Direction::Forward);
        let entries = entries.expect("an engine in memory");
        let sizes = entries.map(|entry| entry.map_or(0, |(key, value)| key.len() + value.len()));
        sizes.sum()
    }

    /// Moves ranges of the hashed key: each of a quarter of a chunk, to any partition.
    fn move_ranges(&self, count: usize, numbers: &mut Numbers) {
        let parts = self.count * 4;
        let step = i64::MAX / parts as i64 * 2;
        for _ in 0..count {
            // The product alone may be above the largest number; the sum is not.
            let low = i64::MIN.wrapping_add(step.wrapping_mul(numbers.below(parts) as i64));
            let to = format!("p{:05}", numbers.below(self.count));
            let range = doc! {
                "moveRange": "test.ts", "min": doc! {"m.host": low}, "max": doc! {"m.host": low + step},
                "toShard": to, "$db": "admin",
            };
            run(&self.router, range);
        }
    }

    fn open_ns(&self) -> u64 {
        timed(2, || {
            let partitions = partitions(self.count);
            let opened = Database::router(self.engine.clone(), Environment::default(), partitions);
            assert!(opened.is_ok());
        })
    }

    fn insert_ns(&self, count: usize, series: usize) -> u64 {
        let command = insert(count, series);
        // The rows of the simulation have the time of their own router: one that was disturbed would make its row wrong.
        timed(25, || drop(run(&self.router, command.clone())))
    }

    fn find_ns(&self, filter: &Document) -> u64 {
        let find = doc! {"find": "ts", "filter": filter.clone(), "$db": "test"};
        timed(5, || drop(run(&self.router, find.clone())))
    }
}

/// What work costs, in ns.
#[derive(Clone, Copy, Debug)]
struct Costs {
    /// Routing a batch.
    route: u64,
    /// A command at a partition, and each of its measurements.
    command: u64,
    measurement: u64,
}

/// Measures the work of a partition.
fn partition_costs() -> (u64, u64) {
    let time = |count: usize| {
        let database = Database::in_memory().expect("a database in memory");
        let partition = HostedPartition::new(Arc::new(database)).expect("a partition");
        let options = doc! {"timeField": "t", "metaField": "m"};
        let create = doc! {"create": "ts", "timeseries": options, "$db": "test"};
        partition.run(&Request::new(create));
        let command = insert(count, 100);
        timed(9, || drop(partition.run(&Request::new(command.clone()))))
    };
    const MANY: usize = 10_000;
    let (one, many) = (time(1), time(MANY));
    let each = many.saturating_sub(one) / (MANY as u64 - 1);
    (one.saturating_sub(each), each)
}

/// A generator of numbers that a seed determines.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        usize::try_from(self.0 >> 33).unwrap_or(0) % end
    }
}

/// What happens at a virtual time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A client sends a batch to its node.
    Send { client: usize },
    /// A part arrives at the node of its partition.
    Part {
        client: usize,
        node: usize,
        size: usize,
    },
    /// All parts of a batch are durable.
    Done { client: usize },
}

/// Returns the virtual time of a simulation.
fn run_ns(nodes: usize) -> u64 {
    match nodes < MANY_NODES {
        true => RUN_NS,
        false => RUN_OF_MANY_NS,
    }
}

/// Returns the measurements a virtual second that nodes insert, each for so many clients. Each batch has so many measurements of
/// so many series.
fn simulate(
    (nodes, clients): (usize, usize),
    (batch, series): (usize, usize),
    costs: Costs,
    seed: u64,
) -> f64 {
    let count = nodes * PARTITIONS;
    let mut numbers = Numbers(seed);
    // Both are busy until then.
    let mut cores = vec![0_u64; nodes];
    let run_ns = run_ns(nodes);
    // For each client the parts that are on their way, and when the last one that has arrived is durable and answered.
    let mut open = vec![0_usize; nodes * clients];
    let mut answered = vec![0_u64; nodes * clients];
    let mut events = BinaryHeap::new();
    let mut number = 0_u64;
    let mut push = |events: &mut BinaryHeap<_>, at: u64, event: Event| {
        number += 1;
        events.push(Reverse((at, number, event)));
    };
    for client in 0..open.len() {
        let begin = numbers.below(1_000_000) as u64;
        push(&mut events, begin, Event::Send { client });
    }
    let mut inserted = 0_u64;
    while let Some(Reverse((now, _, event))) = events.pop() {
        if now >= run_ns {
            break;
        }
        match event {
            Event::Send { client } => {
                let node = client / clients;
                cores[node] = cores[node].max(now) + costs.route;
                let mut sizes = std::collections::BTreeMap::<usize, usize>::new();
                for at in 0..series {
                    let size = batch / series + usize::from(at < batch % series);
                    *sizes.entry(numbers.below(count)).or_default() += size;
                }
                open[client] = sizes.len();
                for (partition, size) in sizes {
                    let to = partition % nodes;
                    let way = if to == node { 0 } else { NETWORK_NS };
                    let part = Event::Part {
                        client,
                        node: to,
                        size,
                    };
                    push(&mut events, cores[node] + way, part);
                }
            }
            Event::Part { client, node, size } => {
                let work = costs.command + costs.measurement * size as u64;
                cores[node] = cores[node].max(now) + work;
                let durable = cores[node].next_multiple_of(FLUSH_NS);
                answered[client] = answered[client].max(durable + NETWORK_NS);
                open[client] -= 1;
                if open[client] == 0 {
                    push(&mut events, answered[client], Event::Done { client });
                }
            }
            Event::Done { client } => {
                if now > run_ns / 10 {
                    inserted += batch as u64;
                }
                push(&mut events, now, Event::Send { client });
            }
        }
    }
    inserted as f64 / (run_ns as f64 * 0.9 / 1e9)
}

fn print_maps() {
    println!(
        "nodes  partitions  map KiB  open ms  insert of 10,000 ms  find of a series us  find of all us"
    );
    for nodes in [1, 10, 100, 1000, 10_000] {
        let map = Map::new(nodes * PARTITIONS);
        println!(
            "{nodes:>5}  {:>10}  {:>7}  {:>7.1}  {:>19.1}  {:>19.1}  {:>14.1}",
            map.count,
            map.bytes() / 1024,
            map.open_ns() as f64 / 1e6,
            map.insert_ns(10_000, 1000) as f64 / 1e6,
            map.find_ns(&doc! {"m.host": "host_7"}) as f64 / 1e3,
            map.find_ns(&doc! {}) as f64 / 1e3,
        );
    }
}

fn print_histories() {
    println!("nodes  moves  map KiB  open ms  a move ms  find of a series us  find of all us");
    // A move writes the whole map, so there are fewer where it is large.
    for (nodes, steps) in [
        (100, &[0, 1000, 9000][..]),
        (1000, &[0, 1000, 9000]),
        (10_000, &[0, 300]),
    ] {
        let map = Map::new(nodes * PARTITIONS);
        let mut numbers = Numbers(1);
        let mut moved = 0;
        for &moves in steps {
            let began = Instant::now();
            map.move_ranges(moves - moved, &mut numbers);
            let took = began.elapsed().as_secs_f64() * 1e3;
            let of_one = took / (moves - moved).max(1) as f64;
            moved = moves;
            println!(
                "{nodes:>5}  {moves:>5}  {:>7}  {:>7.1}  {of_one:>9.2}  {:>19.1}  {:>14.1}",
                map.bytes() / 1024,
                map.open_ns() as f64 / 1e6,
                map.find_ns(&doc! {"m.host": "host_7"}) as f64 / 1e3,
                map.find_ns(&doc! {}) as f64 / 1e3,
            );
        }
    }
}

fn print_simulation() {
    let (command, measurement) = partition_costs();
    println!("a command at a partition {command} ns, each measurement {measurement} ns");
    for clients in CLIENTS {
        println!("measurements a virtual second, and times one node; {clients} clients of each");
        println!("nodes  10,000 of 1,000 series      10,000 of 10 series");
        let shapes = [(10_000, 1000), (10_000, 10)];
        let mut first = [0.0; 2];
        for nodes in [1, 2, 10, 100, 1000] {
            let map = Map::new(nodes * PARTITIONS);
            print!("{nodes:>5}");
            for (shape, one) in shapes.into_iter().zip(&mut first) {
                let costs = Costs {
                    route: map.insert_ns(shape.0, shape.1),
                    command,
                    measurement,
                };
                let rate = simulate((nodes, clients), shape, costs, 1);
                if nodes == 1 {
                    *one = rate;
                }
                print!("  {rate:>14.0} {:>8.1}", rate / *one);
            }
            println!();
            std::io::Write::flush(&mut std::io::stdout()).expect("a terminal or a file");
        }
    }
}

/// What the claims of a cluster cost: `nilometer_cluster::ClaimBoard` counts its requests in a test.
struct StoreLoad {
    /// Lists a second of one node: it waits longer between two of more pages.
    lists_of_a_node: f64,
    /// Heartbeats a second of one node, for itself and its partitions.
    puts_of_a_node: f64,
    lists: f64,
    puts: f64,
    /// Reads a second of all nodes if each read each heartbeat, as before there were lists.
    reads_one_by_one: f64,
    /// Longest time until a node notices that another one has ended.
    noticed_seconds: f64,
}

fn store_load(nodes: usize) -> StoreLoad {
    let units = nodes * PARTITIONS + 1;
    let pages = (units + nodes).div_ceil(PAGE_OBJECTS) as f64;
    let interval = LOOK_SECONDS * pages;
    let (of_all, units) = (nodes as f64, units as f64);
    StoreLoad {
        lists_of_a_node: pages / interval,
        puts_of_a_node: (units + of_all) / of_all,
        lists: of_all * pages / interval,
        puts: units + of_all,
        reads_one_by_one: units * (of_all - 1.0) / LOOK_SECONDS + of_all * (of_all - 1.0),
        noticed_seconds: SILENCE_SECONDS + interval,
    }
}

fn print_store() {
    println!(
        "nodes  lists a second of a node  heartbeats  of all nodes  heartbeats  each read by each  noticed after s"
    );
    for nodes in [3_usize, 50, 100, 333, 1000, 10_000] {
        let load = store_load(nodes);
        println!(
            "{nodes:>5}  {:>24.1}  {:>10.1}  {:>12.0}  {:>10.0}  {:>17.0}  {:>15.1}",
            load.lists_of_a_node,
            load.puts_of_a_node,
            load.lists,
            load.puts,
            load.reads_one_by_one,
            load.noticed_seconds,
        );
    }
}

/// What the program prints: all without a name, else the parts that are named.
static PARTS: &[(&str, fn())] = &[
    ("store", print_store),
    ("map", print_maps),
    ("history", print_histories),
    ("simulation", print_simulation),
];

fn main() {
    let names: Vec<String> = std::env::args().skip(1).collect();
    let is_known = |name: &String| PARTS.iter().any(|(part, _)| part == name);
    if let Some(unknown) = names.iter().find(|name| !is_known(name)) {
        eprintln!("scale: unknown part '{unknown}': store, map, history or simulation");
        std::process::exit(2);
    }
    for (part, print) in PARTS {
        if names.is_empty() || names.iter().any(|name| name == part) {
            print();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Costs of about the size that was measured.
    const COSTS: Costs = Costs {
        route: 2_000_000,
        command: 20_000,
        measurement: 800,
    };

    #[test]
    fn ten_nodes_insert_more_than_one_and_one_seed_has_one_outcome() {
        let shape = (10_000, 1000);
        let one = simulate((1, 16), shape, COSTS, 1);
        let ten = simulate((10, 16), shape, COSTS, 1);
        assert!(ten > one * 6.0, "{one} {ten}");
        assert_eq!(ten.to_bits(), simulate((10, 16), shape, COSTS, 1).to_bits());
    }

    #[test]
    fn lists_of_a_node_do_not_grow_with_the_cluster() {
        let (few, many) = (store_load(3), store_load(1000));
        assert!((few.lists_of_a_node - many.lists_of_a_node).abs() < 1e-9);
        assert!(many.lists < 2501.0 && many.noticed_seconds < 7.0);
    }

    #[test]
    fn maps_are_routed_by() {
        let map = Map::new(20);
        assert!(map.bytes() > 1000);
        map.move_ranges(10, &mut Numbers(1));
        assert!(map.open_ns() > 0 && map.insert_ns(100, 10) > 0 && map.find_ns(&doc! {}) > 0);
    }
}

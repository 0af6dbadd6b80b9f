//! A soak: everything at once for a while, on one server that is killed and restarted.
//!
//! Writers of a time series and of an ordinary collection know the expected state ([`crate::writer`]). Meanwhile
//! collections and indexes are created and dropped, documents expire, backups are made and verified, and cursors are
//! opened and abandoned ([`clients`]). In the first third the server is repeatedly killed or ended cleanly, and its
//! data is compared with the acknowledged writes; a command in flight may be applied or not. Then it runs undisturbed
//! under the same load, and its memory must stay flat ([`watch`]). At the end contents, files and file descriptors are
//! checked, and a last backup is served and compared, too.
//!
//! A plain `cargo test` does this for a few seconds, `cargo xtask soak --minutes N` for long (it sets
//! `NILOMETER_SOAK_SECONDS`). `NILOMETER_SEED` repeats the choices of a run, but not its timing.

mod clients;
mod watch;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nilometer_bson::{ValueRef, array, doc};
use nilometer_storage::testing::is_long;

use self::clients::{Definer, Expirer, Saver, leave_cursors};
use self::watch::Watch;
use crate::client::{Client, is_ok};
use crate::random::Random;
use crate::server::{Directory, Server, nilometer};
use crate::writer::{Work, Writer};

/// Length of the run with NILOMETER_LONG, in seconds.
const LONG_SECONDS: u64 = 2;

/// Kills and clean shutdowns in the first third of a run.
const ENDS: u32 = 20;

/// Minimum and maximum time between two of them.
const LIFE_MIN: Duration = Duration::from_millis(700);
const LIFE_MAX: Duration = Duration::from_secs(45);

/// One in this many is a clean shutdown.
const CLEAN_END_EVERY: u64 = 4;

/// Maximum pause of a client between two commands.
const REST_MS_MAX: u64 = 8;

/// The work of the writers: small documents that change often, many in batches, and ordinary ones.
const WORKS: [Work; 6] = [
    Work {
        collection: "ts",
        documents_max: 56,
        batch_max: 8,
    },
    Work {
        collection: "ts",
        documents_max: 3000,
        batch_max: 300,
    },
    Work {
        collection: "ts",
        documents_max: 1000,
        batch_max: 1,
    },
    Work {
        collection: "ts",
        documents_max: 6000,
        batch_max: 1000,
    },
    Work {
        collection: "plain",
        documents_max: 56,
        batch_max: 8,
    },
    Work {
        collection: "plain",
        documents_max: 3000,
        batch_max: 300,
    },
];

/// The memory limit of the server.
const MEMORY_BYTES: u64 = 384 << 20;

/// Little memory for memtables and caches, so that they are full before memory is measured.
const SETTINGS: [&str; 8] = [
    "--setParameter",
    "ttlMonitorSleepSecs=1",
    "--setParameter",
    "cursorTimeoutMillis=2000",
    "--setParameter",
    "nilometerBucketCacheBytes=16777216",
    "--setParameter",
    "internalQueryMaxBlockingSortMemoryUsageBytes=1048576",
];

/// State shared by clients: the stop flag, and counters.
#[derive(Default)]
pub(super) struct SoakState {
    stop: AtomicBool,
    commands: AtomicU64,
    slowest_ms: AtomicU64,
}

impl SoakState {
    fn stops(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Repeats `work` until the run stops or it returns false because the connection is lost.
    fn work(&self, random: &mut Random, rest_ms: u64, mut work: impl FnMut() -> bool) {
        while !self.stops() {
            let started = Instant::now();
            if !work() {
                return;
            }
            let took = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
            self.slowest_ms.fetch_max(took, Ordering::Relaxed);
            self.commands.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(random.below(rest_ms)));
        }
    }
}

/// All clients and their expectations.
struct Clients {
    writers: Vec<Writer>,
    definer: Definer,
    expirer: Expirer,
    saver: Saver,
    random: Random,
}

impl Clients {
    fn new(directory: &Directory, random: &mut Random) -> Self {
        let writers = (1..).zip(WORKS);
        Self {
            writers: writers
                .map(|(number, work)| Writer::new(number, random.below(u64::MAX), work))
                .collect(),
            definer: Definer::new(random.below(u64::MAX)),
            expirer: Expirer::new(random.below(u64::MAX)),
            saver: Saver::new(directory),
            random: Random(random.below(u64::MAX)),
        }
    }

    /// Runs all clients while `meanwhile` runs on this thread, then ends them.
    fn run<T>(&mut self, port: u16, shared: &SoakState, meanwhile: impl FnOnce() -> T) -> T {
        shared.stop.store(false, Ordering::Relaxed);
        let seed = self.random.below(u64::MAX);
        std::thread::scope(|scope| {
            for writer in &mut self.writers {
                let mut random = Random(seed ^ self.random.below(u64::MAX));
                scope.spawn(move || {
                    let mut client = Client::connect(port);
                    let mut choice = Random(random.below(u64::MAX));
                    shared.work(&mut random, REST_MS_MAX, || match choice.below(4) {
                        0 => writer.query_one(&mut client),
                        _ => writer.write_one(&mut client),
                    });
                });
            }
            let (definer, expirer, saver) = (&mut self.definer, &mut self.expirer, &mut self.saver);
            scope.spawn(move || definer.work(port, shared));
            scope.spawn(move || expirer.work(port, shared));
            scope.spawn(move || saver.work(port, shared));
            scope.spawn(move || leave_cursors(port, seed, shared));
            let told = meanwhile();
            shared.stop.store(true, Ordering::Relaxed);
            told
        })
    }

    /// Checks that everything acknowledged is stored, and nothing else except a command in flight.
    fn check(&mut self, port: u16) {
        let client = &mut Client::connect(port);
        for writer in &mut self.writers {
            writer.check(client);
        }
        self.definer.check(client);
        self.expirer.check(client);
        for collection in ["ts", "plain", "brief", "fleeting"] {
            let valid = client.run_on("test", &doc! {"validate": collection, "full": true});
            let is_valid = matches!(valid.get("valid"), ValueRef::Bool(true));
            assert!(is_valid, "{valid:?}");
        }
    }
}

/// Returns the length of the run; `None` in the fast suite.
fn length() -> Option<Duration> {
    let seconds = match std::env::var("NILOMETER_SOAK_SECONDS") {
        Ok(text) => text.parse().expect("a number"),
        Err(_) if is_long() => LONG_SECONDS,
        Err(_) => return None,
    };
    Some(Duration::from_secs(seconds))
}

fn start(directory: &Directory, data: &str) -> Server {
    let path = directory.0.join(data);
    let mut arguments = vec!["serve", "--port", "0", "--quiet", "--dbpath"];
    arguments.push(path.to_str().expect("a path"));
    let memory = format!("nilometerMemoryBytes={MEMORY_BYTES}");
    arguments.extend(["--setParameter", &memory]);
    arguments.extend(SETTINGS);
    Server::spawn(&mut nilometer(&arguments))
}

fn create(client: &mut Client) {
    let by = |key: nilometer_bson::Document, name: &str| doc! {"key": key, "name": name};
    let series = doc! {"timeField": "t", "metaField": "m"};
    let twenty_years = 630_720_000i64;
    let fleeting = doc! {"key": doc! {"at": 1}, "name": "at", "expireAfterSeconds": 0};
    for command in [
        doc! {"create": "ts", "timeseries": series.clone()},
        doc! {"createIndexes": "ts", "indexes": array![by(doc! {"m.c": 1, "n": 1}, "cn")]},
        doc! {"createIndexes": "plain", "indexes": array![by(doc! {"m.c": 1, "m.h": 1, "t": 1}, "cht")]},
        doc! {"create": "brief", "timeseries": series, "expireAfterSeconds": twenty_years},
        doc! {"createIndexes": "fleeting", "indexes": array![fleeting]},
    ] {
        let reply = client.run_on("test", &command);
        assert!(is_ok(&reply), "{reply:?}");
    }
}

#[test]
#[expect(clippy::print_stdout, reason = "what a run did")]
fn soak_ends_with_equal_contents_flat_memory_and_no_leaked_files() {
    let Some(length) = length() else {
        return;
    };
    let mut random = Random::of_run(23);
    let directory = Directory::new();
    let shared = SoakState::default();
    let mut server = start(&directory, "data");
    create(&mut server.connect());
    let mut clients = Clients::new(&directory, &mut random);
    let began = Instant::now();
    let (mut kills, mut clean) = (0, 0);
    while began.elapsed() < length / 3 {
        let life = (length / 3 / ENDS).clamp(LIFE_MIN, LIFE_MAX);
        let life = life / 2 + life.mul_f64(random.below(1000) as f64 / 1000.0);
        let is_clean = random.below(CLEAN_END_EVERY) == 0;
        let port = server.port;
        clients.run(port, &shared, || {
            std::thread::sleep(life);
            if is_clean {
                shared.stop.store(true, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(REST_MS_MAX));
            }
            server.signal(if is_clean { "TERM" } else { "KILL" });
            let status = server.wait();
            assert_eq!(status.success(), is_clean, "{status}");
        });
        if is_clean {
            clean += 1;
        } else {
            kills += 1;
        }
        server = start(&directory, "data");
        clients.check(server.port);
    }
    println!("{kills} kills and {clean} clean ends: equal contents after each");
    let watch = Watch::new(server.process(), &directory.0.join("data"));
    let watch = clients.run(server.port, &shared, || {
        let left = length.saturating_sub(began.elapsed());
        watch.for_so_long(left)
    });
    clients.check(server.port);
    let saved = directory.0.join("last");
    clients.saver.save(&mut server.connect(), &saved);
    watch.check_descriptors();
    println!("{}", watch.memory());
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
    let files = watch::check_files(&directory.0.join("data"));
    let other = start(&directory, "last");
    clients.check(other.port);
    drop(other);
    for data in ["data", "last"] {
        clients::verify(&directory.0.join(data));
    }
    let commands = shared.commands.load(Ordering::Relaxed);
    let slowest = shared.slowest_ms.load(Ordering::Relaxed);
    println!(
        "{commands} commands in {} s, slowest {slowest} ms; {} backups verified, {} collections made; {files}; contents are \
         equal, also of the last backup",
        began.elapsed().as_secs(),
        clients.saver.made,
        clients.definer.made,
    );
    assert!(
        watch.is_flat(MEMORY_BYTES),
        "memory is not flat: {}",
        watch.memory()
    );
}

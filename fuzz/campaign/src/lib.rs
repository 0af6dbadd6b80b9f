//! Millions of inputs for every entry point of the database: messages, BSON, extended JSON, columns, commands,
//! pipelines, restored buckets, logins, HTTP, queries over HTTP, configuration, imported files, line protocol, InfluxQL, files of the directory.
//!
//! A [`Target`] makes batches of inputs, each determined by a seed. A [`Runner`] counts inputs, catches panics and
//! measures times. `main.rs` runs campaigns and watches for hangs and memory; the tests in this file run a few seeds of
//! each target and replay inputs that once failed, which are in `corpus/<target>/` as text.

pub mod buckets;
pub mod bytes;
pub mod commands;
pub mod influx;
pub mod logins;
pub mod mutation;
pub mod pipelines;
pub mod runner;
pub mod scripts;
pub mod storage;
pub mod texts;
pub mod tree;

use runner::Runner;
use scripts::Seeds;

/// An entry point.
pub struct Target {
    /// Its name, also the name of its corpus folder and its libFuzzer target.
    pub name: &'static str,
    /// Its share of a campaign's inputs, in thousandths.
    pub share: u64,
    /// Runs the inputs of a seed.
    pub batch: fn(&Seeds, u64, &mut Runner),
    /// Runs inputs from a file of the corpus.
    pub replay: fn(&str, &mut Runner),
    /// Runs bytes as one input, for libFuzzer. True if they were valid.
    pub one: fn(&[u8]) -> bool,
}

/// All targets.
pub const TARGETS: [Target; 16] = [
    Target {
        name: "wire",
        share: 210,
        batch: bytes::wire_batch,
        replay: bytes::wire_replay,
        one: bytes::read_message,
    },
    Target {
        name: "bson",
        share: 170,
        batch: bytes::bson_batch,
        replay: bytes::bson_replay,
        one: bytes::read_bson,
    },
    Target {
        name: "extjson",
        share: 140,
        batch: bytes::extjson_batch,
        replay: bytes::extjson_replay,
        one: bytes::read_extjson,
    },
    Target {
        name: "column",
        share: 140,
        batch: bytes::column_batch,
        replay: bytes::column_replay,
        one: bytes::read_column,
    },
    Target {
        name: "commands",
        share: 98,
        batch: commands::batch,
        replay: commands::replay,
        one: commands::one,
    },
    Target {
        name: "pipelines",
        share: 140,
        batch: pipelines::batch,
        replay: pipelines::replay,
        one: pipelines::one,
    },
    Target {
        name: "buckets",
        share: 10,
        batch: buckets::batch,
        replay: buckets::replay,
        one: buckets::one,
    },
    Target {
        name: "logins",
        share: 10,
        batch: logins::batch,
        replay: logins::replay,
        one: logins::one,
    },
    Target {
        name: "http",
        share: 12,
        batch: texts::http_batch,
        replay: |text, runner| texts::replay(texts::http, text, runner),
        one: texts::http,
    },
    Target {
        name: "query",
        share: 10,
        batch: texts::query_batch,
        replay: |text, runner| texts::replay(texts::query, text, runner),
        one: texts::query,
    },
    Target {
        name: "config",
        share: 10,
        batch: texts::config_batch,
        replay: |text, runner| texts::replay(texts::config, text, runner),
        one: texts::config,
    },
    Target {
        name: "import",
        share: 8,
        batch: texts::import_batch,
        replay: |text, runner| texts::replay(texts::import, text, runner),
        one: texts::import,
    },
    Target {
        name: "lines",
        share: 30,
        batch: influx::lines_batch,
        replay: |text, runner| texts::replay(influx::lines, text, runner),
        one: influx::lines,
    },
    Target {
        name: "influxql",
        share: 10,
        batch: influx::influxql_batch,
        replay: |text, runner| texts::replay(influx::influxql, text, runner),
        one: influx::influxql,
    },
    Target {
        name: "log",
        share: 1,
        batch: storage::log_batch,
        replay: |text, runner| bytes::replay_bytes(text, runner, storage::log),
        one: storage::log,
    },
    Target {
        name: "table",
        share: 1,
        batch: storage::table_batch,
        replay: |text, runner| bytes::replay_bytes(text, runner, storage::table),
        one: storage::table,
    },
];

/// Runs bytes as one input of a target, for the programs in `fuzz/fuzz_targets`.
///
/// # Panics
///
/// If the input shows a bug, or the target does not exist.
pub fn fuzz(name: &str, bytes: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name);
    (target.expect("a target").one)(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Inputs of a seed of `cargo xtask fuzz`.
    const INPUTS_PER_RUN: u64 = 3;

    /// If an input is a directory to open and close, one counts as this many inputs.
    const RUNS_PER_DIRECTORY: u64 = 5;

    fn number(name: &str, default: u64) -> u64 {
        std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
    }

    fn target(name: &str) -> &'static Target {
        let found = TARGETS.iter().find(|target| target.name == name);
        found.expect("a target")
    }

    fn runs() -> u64 {
        number("NILOMETER_FUZZ_RUNS", 200)
    }

    fn run(name: &str) {
        run_inputs(name, INPUTS_PER_RUN * runs());
    }

    fn run_inputs(name: &str, wanted: u64) {
        let seeds = Seeds::read();
        let target = target(name);
        let first = number("NILOMETER_FUZZ_SEED", 0);
        let (mut inputs, mut seed) = (0, first);
        while inputs < wanted {
            let mut runner = Runner::new(target.name, seed);
            (target.batch)(&seeds, seed, &mut runner);
            assert!(runner.failures.is_empty(), "{}", runner.failures.join("\n"));
            assert!(runner.inputs > 0);
            inputs += runner.inputs;
            seed += 1;
        }
    }

    #[test]
    fn fuzz_wire() {
        run("wire");
    }

    #[test]
    fn fuzz_bson() {
        run("bson");
    }

    #[test]
    fn fuzz_lines() {
        run("lines");
    }

    #[test]
    fn fuzz_influxql() {
        run("influxql");
    }

    #[test]
    fn fuzz_extjson() {
        run("extjson");
    }

    #[test]
    fn fuzz_column() {
        run("column");
    }

    #[test]
    fn fuzz_commands() {
        run("commands");
    }

    #[test]
    fn fuzz_pipelines() {
        run("pipelines");
    }

    #[test]
    fn fuzz_buckets() {
        run("buckets");
    }

    #[test]
    fn fuzz_logins() {
        run("logins");
    }

    #[test]
    fn fuzz_http() {
        run("http");
    }

    #[test]
    fn fuzz_query() {
        run("query");
    }

    #[test]
    fn fuzz_config() {
        run("config");
    }

    #[test]
    fn fuzz_import() {
        run("import");
    }

    #[test]
    fn fuzz_log() {
        run_inputs("log", runs() / RUNS_PER_DIRECTORY);
    }

    #[test]
    fn fuzz_table() {
        run_inputs("table", runs() / RUNS_PER_DIRECTORY);
    }

    #[test]
    fn what_once_did_harm_does_none() {
        let mut files = 0;
        for target in &TARGETS {
            for (path, text) in scripts::corpus(target.name) {
                files += 1;
                let mut runner = Runner::new(target.name, 0);
                (target.replay)(&text, &mut runner);
                let path = path.display();
                assert!(runner.inputs > 0, "{path} holds no input");
                assert!(
                    runner.failures.is_empty(),
                    "{path}: {}",
                    runner.failures.join("\n")
                );
            }
        }
        assert!(files > 0);
    }

    #[test]
    fn a_panic_and_a_wrong_answer_are_failures() {
        let mut runner = Runner::new("test", 7);
        runner.one(|| "first".into(), || panic!("on purpose"));
        runner.one(|| "second".into(), || true);
        assert_eq!((runner.inputs, runner.failures.len()), (2, 1));
        let told = &runner.failures[0];
        assert!(
            told.contains("on purpose") && told.contains("seed 7") && told.contains("first"),
            "{told}"
        );
    }

    /// Threads of this process that fold and seal buckets.
    fn folding() -> usize {
        let tasks = std::fs::read_dir("/proc/self/task").expect("tasks");
        let names = tasks.filter_map(|t| std::fs::read_to_string(t.ok()?.path().join("comm")).ok());
        names.filter(|name| name.trim() == "bucket-upkeep").count()
    }

    #[test]
    fn a_database_that_goes_takes_its_threads_along() {
        use nilometer_bson::{Value, doc};
        const DATABASES: usize = 50;
        for _ in 0..DATABASES {
            let mut fixture = commands::Fixture::new();
            let documents: Vec<Value> = (0..9).map(|i| doc! {"_id": i}.into()).collect();
            fixture.run(&doc! {"insert": "c", "documents": documents, "$db": "test"});
            // Its cursor stays open: its source once kept the database alive.
            fixture.run(&doc! {"find": "c", "batchSize": 1, "$db": "test"});
        }
        // Other tests have a few.
        let began = std::time::Instant::now();
        while folding() > DATABASES / 2 {
            assert!(began.elapsed().as_secs() < 20, "{} threads", folding());
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }

    #[test]
    fn shares_make_a_whole() {
        assert_eq!(TARGETS.iter().map(|target| target.share).sum::<u64>(), 1000);
    }

    #[test]
    fn each_has_its_program_for_libfuzzer() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let read = |name: &str| std::fs::read_to_string(folder.join(name)).expect("a file");
        let manifest = read("Cargo.toml");
        let built = manifest
            .lines()
            .filter_map(|line| line.strip_prefix("path = "));
        let mut built: Vec<&str> = built.map(|path| path.trim_matches('"')).collect();
        built.sort_unstable();
        let mut wanted: Vec<String> = TARGETS
            .iter()
            .map(|target| format!("fuzz_targets/{}.rs", target.name))
            .collect();
        wanted.sort_unstable();
        assert_eq!(built, wanted);
        for target in &TARGETS {
            let text = read(&format!("fuzz_targets/{}.rs", target.name));
            let call = format!("nilometer_campaign::fuzz(\"{}\", bytes)", target.name);
            assert!(text.contains(&call), "{text}");
            assert!(manifest.contains(&format!("name = \"{}\"", target.name)));
        }
    }

    // A failure here also counts in other runners: look there first.
    #[test]
    fn bytes_are_inputs_of_every_target() {
        use nilometer_bson::doc;
        let document = doc! {"ping": 1, "$db": "admin"};
        for target in &TARGETS {
            assert!(!(target.one)(b"\xff\xfe\x00"), "{}", target.name);
            (target.one)(document.as_bytes());
        }
        let target = |name: &str| target(name).one;
        assert!(target("bson")(document.as_bytes()));
        assert!(target("commands")(document.as_bytes()));
        let stage = doc! {"$match": doc! {}};
        assert!(target("pipelines")(stage.as_bytes()));
        assert!(target("extjson")(b"{\"a\": 1}"));
        assert!(target("http")(b"GET / HTTP/1.1\r\n\r\n"));
        assert!(target("query")(b"db=d&collection=c\n{\"limit\": 1}"));
        assert!(target("config")(b"net.port: 7"));
        assert!(target("import")(b"a,b\n1,2\n"));
    }
}

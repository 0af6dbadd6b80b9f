//! Inputs by the million against every way into the database: messages, BSON, extended JSON, columns, commands,
//! pipelines.
//!
//! A [`Target`] makes batches of inputs, each batch from a seed alone, so that a seed repeats it. A [`Runner`] counts
//! inputs, catches panics and measures how long each takes. `main.rs` runs campaigns and watches for what never ends and
//! for memory; the tests at the foot run a few seeds of each target, and replay the inputs that once did harm, which lie
//! in `corpus/<target>/` as text.

pub mod bytes;
pub mod commands;
pub mod mutation;
pub mod pipelines;
pub mod runner;
pub mod scripts;
pub mod tree;

use runner::Runner;
use scripts::Seeds;

/// One way in.
pub struct Target {
    /// Its name, also of its folder in the corpus.
    pub name: &'static str,
    /// Its share of a campaign's inputs, in hundredths.
    pub share: u64,
    /// Runs the inputs of a seed.
    pub batch: fn(&Seeds, u64, &mut Runner),
    /// Runs inputs from a file of the corpus.
    pub replay: fn(&str, &mut Runner),
}

/// All of them.
pub const TARGETS: [Target; 6] = [
    Target {
        name: "wire",
        share: 25,
        batch: bytes::wire_batch,
        replay: bytes::wire_replay,
    },
    Target {
        name: "bson",
        share: 20,
        batch: bytes::bson_batch,
        replay: bytes::bson_replay,
    },
    Target {
        name: "extjson",
        share: 15,
        batch: bytes::extjson_batch,
        replay: bytes::extjson_replay,
    },
    Target {
        name: "column",
        share: 15,
        batch: bytes::column_batch,
        replay: bytes::column_replay,
    },
    Target {
        name: "commands",
        share: 10,
        batch: commands::batch,
        replay: commands::replay,
    },
    Target {
        name: "pipelines",
        share: 15,
        batch: pipelines::batch,
        replay: pipelines::replay,
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    /// What a seed of `cargo xtask fuzz` stands for: so many inputs.
    const INPUTS_PER_RUN: u64 = 3;

    fn number(name: &str, default: u64) -> u64 {
        std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
    }

    fn target(name: &str) -> &'static Target {
        let found = TARGETS.iter().find(|target| target.name == name);
        found.expect("a target")
    }

    fn run(name: &str) {
        let seeds = Seeds::read();
        let target = target(name);
        let wanted = INPUTS_PER_RUN * number("NILOMETER_FUZZ_RUNS", 200);
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
        names.filter(|name| name.trim() == "bucket-chores").count()
    }

    #[test]
    fn a_database_that_goes_takes_its_threads_along() {
        use nilometer_bson::{Value, doc};
        const DATABASES: usize = 50;
        for _ in 0..DATABASES {
            let mut fixture = commands::Fixture::new();
            let documents: Vec<Value> = (0..9).map(|i| doc! {"_id": i}.into()).collect();
            fixture.run(&doc! {"insert": "c", "documents": documents, "$db": "test"});
            // Its cursor stays open: what it reads from once held the database.
            fixture.run(&doc! {"find": "c", "batchSize": 1, "$db": "test"});
        }
        // Tests beside this one have a few.
        let began = std::time::Instant::now();
        while folding() > DATABASES / 2 {
            assert!(began.elapsed().as_secs() < 20, "{} threads", folding());
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }

    #[test]
    fn shares_make_a_whole() {
        assert_eq!(TARGETS.iter().map(|target| target.share).sum::<u64>(), 100);
    }
}

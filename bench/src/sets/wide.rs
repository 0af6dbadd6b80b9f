//! Questions that read a column of every measurement, as people ask them of a whole collection: histograms, shares by hour of
//! the day, largest values, computed fields, several pipelines at once.
//!
//! ```text
//! cpu   {time, tags: {hostname, region, rack}, usage_user, usage_system, usage_idle, note?}      a day, every 10 seconds
//! ```
//!
//! `usage_user` and `usage_system` walk at random in whole steps from 0 to 100, as in TSBS. One measurement in a hundred has a
//! note. `cpu` is a time series by tags; the other layout has an ordinary collection instead.

use nilometer_bson::{Document, DocumentBuilder, Value, doc};

use super::document_set::{Collection, DocumentSet, Layout, Receiver};
use super::questions::{self, Question};
use super::{SetOptions, run_command_line};
use crate::data::Random;
use crate::target::Outcome;

/// The questions.
const QUESTIONS: &str = include_str!("../../sets/wide.json");

/// 2016-01-01, the first day of TSBS.
const START_MS: i64 = 1_451_606_400_000;
const INTERVAL_MS: i64 = 10_000;
const TICKS: i64 = 8_640;

/// Streams of random numbers.
const STREAM: u64 = 3_000;

const REGIONS: [&str; 9] = [
    "ap-east-1",
    "ap-south-1",
    "eu-central-1",
    "eu-north-1",
    "eu-west-1",
    "sa-east-1",
    "us-east-1",
    "us-west-1",
    "us-west-2",
];

/// Runs the set from the command line. False if an answer was wrong.
pub fn run(arguments: &[String], print: &mut dyn FnMut(&str)) -> Outcome<bool> {
    let title = "wide: questions that read a column of every measurement of a day";
    run_command_line(
        arguments,
        (title, ("--hosts", 100)),
        |options| Box::new(Day::new(options)),
        print,
    )
}

/// The set.
pub(crate) struct Day {
    hosts: u64,
    seed: u64,
}

/// A host and its values.
struct Host {
    tags: Document,
    random: Random,
    user: i64,
    system: i64,
}

impl Day {
    pub(crate) fn new(options: &SetOptions) -> Self {
        Self {
            hosts: options.size,
            seed: options.common.seed,
        }
    }

    fn host(&self, number: u64) -> Host {
        let seed = self.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut random = Random::new(seed, STREAM);
        Host {
            tags: doc! {
                "hostname": format!("host_{number}"),
                "region": *random.pick(&REGIONS),
                "rack": random.below(100) as i64,
            },
            user: random.below(101) as i64,
            system: random.below(101) as i64,
            random,
        }
    }
}

impl Host {
    /// Returns the next value of a walk.
    fn step(random: &mut Random, value: i64) -> i64 {
        (value + random.below(3) as i64 - 1).clamp(0, 100)
    }

    fn measurement(&mut self, time_ms: i64) -> Document {
        self.user = Self::step(&mut self.random, self.user);
        self.system = Self::step(&mut self.random, self.system);
        let mut out = DocumentBuilder::with_capacity(192);
        out.append("time", Value::DateTime(time_ms));
        out.append("tags", self.tags.clone());
        out.append("usage_user", self.user);
        out.append("usage_system", self.system);
        out.append("usage_idle", (200 - self.user - self.system) as f64 / 2.0);
        if self.random.below(100) == 0 {
            out.append("note", "restarted");
        }
        out.finish()
    }
}

impl DocumentSet for Day {
    fn name(&self) -> &'static str {
        "wide"
    }

    fn layouts(&self) -> Vec<Layout> {
        let series = Collection {
            timeseries: Some(doc! { "timeField": "time", "metaField": "tags" }),
            ..Collection::ordinary("cpu")
        };
        let layout = |name, cpu| Layout {
            name,
            collections: vec![cpu],
        };
        vec![
            layout("time_series", series),
            layout("ordinary", Collection::ordinary("cpu")),
        ]
    }

    fn generate(&self, _: &Layout, _: &str, receive: &mut Receiver<'_>) -> Outcome {
        let mut hosts: Vec<Host> = (0..self.hosts).map(|number| self.host(number)).collect();
        for tick in 0..TICKS {
            for host in &mut hosts {
                receive(&host.measurement(START_MS + tick * INTERVAL_MS))?;
            }
        }
        Ok(())
    }

    fn questions(&self, layout: &str) -> Outcome<Vec<Question>> {
        questions::parse(QUESTIONS, layout)
    }

    fn answer(&self, _: &str) -> Option<Vec<Document>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_series_answers_as_ordinary_documents() {
        let folder = std::env::temp_dir().join(format!("nilometer-wide-{}", std::process::id()));
        let folder = folder.to_string_lossy().into_owned();
        let line = format!("--in-process {folder} --hosts 2 --draws 1");
        let words: Vec<String> = line.split(' ').map(String::from).collect();
        let mut text = String::new();
        let right = run(&words, &mut |told| text.push_str(told));
        drop(std::fs::remove_dir_all(&folder));
        assert_eq!(right, Ok(true), "{text}");
        let asked = questions::parse(QUESTIONS, "ordinary").unwrap().len();
        assert_eq!(text.matches("| right |").count(), 2 * asked, "{text}");
    }
}

//! The options and the command line.

use crate::target::Outcome;

/// The text of `--help`.
pub const HELP: &str = "\
nilometer-bench: the TSBS devops cpu-only set against a MongoDB-speaking server

where
  --uri mongodb://HOST:PORT   the server                          [mongodb://127.0.0.1:27017]
  --in-process DIR            no server: the database in DIR, opened by this program
  --db NAME                   database                            [benchmark]
  --collection NAME           collection                          [cpu]
  --dbpath DIR                the server's data folder, to weigh it (else it is asked)
data
  --scale N                   hosts                               [100]
  --days N                    days, also fractions                [1]
  --interval N                seconds between ticks               [10]
  --seed N                    of values, hosts and parameters     [123]
  --shape plain|fork          fork: with a constant `measurement` field, tags last
  --num-type int64|int32|double
  --shuffle                   fields in one of 16 random orders, in tags too
  --no-id                     leave `_id` to the server
work
  --batch N                   documents in an insert              [10000]
  --connections N             loading at once; a host stays on one [1]
  --points N                  show rate, memory and size of the folder N times while loading [0]
  --no-load | --no-queries    leave a part out
  --whole                     read everything back in the end: `find` without a filter, six times
  --only NAMES                queries, or those whose names begin so; with commas between
  --draws N                   parameters drawn for each query     [20]
  --warm-up N                 draws to run before measuring; 0 shows what is cold [3]
  --granularity WORD          of the collection                   [seconds]
  --duplicates RULE           ignore, replace or error measurements of the same tags and time [keep]
  --index                     create {\"tags.hostname\": 1, time: -1} first
  --sharded                   shard the collection by {\"tags.hostname\": \"hashed\"} first, in a cluster
  --settle SECONDS            before weighing and asking: in process, seal and compact; then wait at
                              most so long for the folder to come to rest; 0 for neither [60]
  --seconds N                 loading at most so long, and all queries together: fewer measurements,
                              fewer draws                         [no limit]
output
  --json FILE                 all figures
  --plot FILE                 the course of loading as a picture (SVG), with --points
  --export DIR                the values and the draws, for other databases
  --beside FILE               figures of another run (its --json), to show how each query has grown
";

/// How numbers are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberType {
    /// As 64-bit integers.
    Int64,
    /// As 32-bit integers.
    Int32,
    /// As doubles.
    Double,
}

/// The layout of documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// `_id`, time, tags, metrics.
    Plain,
    /// `_id`, measurement, time, metrics, tags: as MongoDB's fork of TSBS sends it.
    Fork,
}

/// The options.
#[derive(Clone, Debug)]
pub struct Options {
    /// Address of the server as `host:port`; only text if the database runs in process.
    pub address: String,
    /// Database, dropped and created.
    pub database: String,
    /// Collection.
    pub collection: String,
    /// Folder of a database that runs in this process.
    pub in_process: Option<String>,
    /// Data folder, to measure its size.
    pub dbpath: Option<String>,
    /// Hosts.
    pub scale: usize,
    /// Days, also fractions.
    pub days: f64,
    /// Seconds between two measurements of a host.
    pub interval_s: i64,
    /// Seed of values, hosts and parameters.
    pub seed: u64,
    /// Layout of documents.
    pub shape: Shape,
    /// How numbers are stored.
    pub number: NumberType,
    /// Fields in one of several random orders.
    pub shuffle: bool,
    /// Documents carry their `_id`.
    pub with_id: bool,
    /// Documents per insert.
    pub batch: usize,
    /// Connections that load concurrently.
    pub connections: usize,
    /// Number of points of the course of loading that are shown.
    pub points: usize,
    /// Load data.
    pub load: bool,
    /// Run queries.
    pub queries: bool,
    /// Read everything back at the end.
    pub whole: bool,
    /// Only queries with this prefix of their name.
    pub only: String,
    /// Parameters drawn for each query.
    pub draws: usize,
    /// Draws to run before measuring.
    pub warm_up: usize,
    /// Granularity of the collection.
    pub granularity: String,
    /// The rule for duplicates.
    pub duplicates: Option<String>,
    /// Create an index on host and time first.
    pub index: bool,
    /// Shard the collection by a hash of the host first.
    pub sharded: bool,
    /// Maximum seconds to wait for the data to settle; 0 for none.
    pub settle_s: u64,
    /// File for all results.
    pub json: Option<String>,
    /// File for the picture of the course of loading.
    pub plot: Option<String>,
    /// Folder for values and draws.
    pub export: Option<String>,
    /// File with the results of another run.
    pub beside: Option<String>,
    /// Maximum seconds for loading, and for all queries together.
    pub seconds: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            address: "127.0.0.1:27017".to_string(),
            database: "benchmark".to_string(),
            collection: "cpu".to_string(),
            in_process: None,
            dbpath: None,
            scale: 100,
            days: 1.0,
            interval_s: 10,
            seed: 123,
            shape: Shape::Plain,
            number: NumberType::Int64,
            shuffle: false,
            with_id: true,
            batch: 10_000,
            connections: 1,
            points: 0,
            load: true,
            queries: true,
            whole: false,
            only: String::new(),
            draws: 20,
            warm_up: 3,
            granularity: "seconds".to_string(),
            duplicates: None,
            index: false,
            sharded: false,
            settle_s: 60,
            json: None,
            plot: None,
            export: None,
            beside: None,
            seconds: None,
        }
    }
}

impl Options {
    /// Parses the command line.
    pub fn parse(arguments: &[String]) -> Outcome<Self> {
        let mut options = Self::default();
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            if options.flag(word) {
                continue;
            }
            let value = words
                .next()
                .ok_or_else(|| format!("{word} needs a value"))?;
            options.set(word, value)?;
        }
        if options.scale == 0 || options.batch == 0 || options.connections == 0 {
            return Err("--scale, --batch and --connections are at least 1".to_string());
        }
        if options.ticks() == 0 {
            return Err("--days is shorter than one --interval".to_string());
        }
        Ok(options)
    }

    /// Sets an option without a value. False if the word is not one.
    fn flag(&mut self, word: &str) -> bool {
        match word {
            "--shuffle" => self.shuffle = true,
            "--no-id" => self.with_id = false,
            "--no-load" => self.load = false,
            "--no-queries" => self.queries = false,
            "--whole" => self.whole = true,
            "--index" => self.index = true,
            "--sharded" => self.sharded = true,
            _ => return false,
        }
        true
    }

    fn set(&mut self, word: &str, value: &str) -> Outcome {
        match word {
            "--uri" => self.address = parse_uri(value)?,
            "--in-process" => {
                self.address = "in process".to_string();
                self.in_process = Some(value.to_string());
                self.dbpath = Some(value.to_string());
            }
            "--db" => self.database = value.to_string(),
            "--collection" => self.collection = value.to_string(),
            "--dbpath" => self.dbpath = Some(value.to_string()),
            "--scale" => self.scale = number(word, value)?,
            "--days" => self.days = number(word, value)?,
            "--interval" => self.interval_s = number(word, value)?,
            "--seed" => self.seed = number(word, value)?,
            "--batch" => self.batch = number(word, value)?,
            "--connections" => self.connections = number(word, value)?,
            "--points" => self.points = number(word, value)?,
            "--only" => self.only = value.to_string(),
            "--draws" => self.draws = number(word, value)?,
            "--warm-up" => self.warm_up = number(word, value)?,
            "--granularity" => self.granularity = value.to_string(),
            "--duplicates" => self.duplicates = Some(value.to_string()),
            "--settle" => self.settle_s = number(word, value)?,
            "--seconds" => self.seconds = Some(number(word, value)?),
            "--json" => self.json = Some(value.to_string()),
            "--plot" => self.plot = Some(value.to_string()),
            "--export" => self.export = Some(value.to_string()),
            "--beside" => self.beside = Some(value.to_string()),
            "--shape" => {
                self.shape = match value {
                    "plain" => Shape::Plain,
                    "fork" => Shape::Fork,
                    _ => return Err(format!("--shape is plain or fork, not {value}")),
                }
            }
            "--num-type" => {
                self.number = match value {
                    "int64" => NumberType::Int64,
                    "int32" => NumberType::Int32,
                    "double" => NumberType::Double,
                    _ => return Err(format!("--num-type is int64, int32 or double, not {value}")),
                }
            }
            _ => return Err(format!("unknown option {word} (see --help)")),
        }
        Ok(())
    }

    /// Returns the number of ticks in the data set.
    pub fn ticks(&self) -> usize {
        (self.days * 86_400.0 / self.interval_s.max(1) as f64) as usize
    }
}

fn number<T: std::str::FromStr>(word: &str, value: &str) -> Outcome<T> {
    value
        .parse()
        .map_err(|_| format!("{word} needs a number, not {value}"))
}

/// Parses host and port of a connection string without options.
fn parse_uri(uri: &str) -> Outcome<String> {
    let rest = uri
        .strip_prefix("mongodb://")
        .ok_or_else(|| format!("--uri starts with mongodb://, unlike {uri}"))?;
    let (host, options) = rest.split_once('/').unwrap_or((rest, ""));
    if !options.trim_start_matches('?').is_empty() {
        return Err(format!("options in --uri are not understood: {options}"));
    }
    if host.contains(['@', ',']) {
        return Err("--uri names one host, without user and password".to_string());
    }
    Ok(if host.contains(':') {
        host.to_string()
    } else {
        format!("{host}:27017")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Outcome<Options> {
        let words: Vec<String> = line.split_whitespace().map(String::from).collect();
        Options::parse(&words)
    }

    #[test]
    fn options_are_read() {
        let options = parse("--uri mongodb://db/ --scale 5 --days 0.5 --num-type double").unwrap();
        assert_eq!(options.address, "db:27017");
        assert_eq!((options.scale, options.ticks()), (5, 4320));
        assert_eq!(options.number, NumberType::Double);
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for line in [
            "--unknown 1",
            "--scale",
            "--scale many",
            "--scale 0",
            "--uri http://x",
            "--uri mongodb://a,b",
            "--uri mongodb://a/?compressors=zlib",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}

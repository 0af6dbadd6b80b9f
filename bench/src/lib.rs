//! The load generator: TSBS's devops cpu-only set against any server that speaks the MongoDB wire
//! protocol.
//!
//! It generates documents natively (a Python client saturates long before a database does), loads them in batches,
//! measures the size on disk, runs every query with random parameters, and checks every answer against the generated
//! values: a wrong answer is not a result.
//!
//! Data and queries follow the rules of TSBS with other random numbers: the same distributions, not the same values.
//! Loading is measured from sending a batch to its acknowledgement, without generating documents; a query from sending
//! it to receiving all its batches.
//!
//! [`sets`] are look-alikes of other published benchmarks, each a program of its own.
//!
//! Two programs use the load generator: `nilometer-bench` (`cargo xtask bench`) has all options, a minimal client and the patterns of
//! [`pattern`]; `nilometer bench` is for users and has a client that logs in.

mod course;
mod data;
mod directory;
mod disk;
mod export;
mod growth;
pub mod http_load;
mod load;
pub mod options;
pub mod pattern;
mod plot;
mod queries;
mod reference;
mod report;
pub mod sets;
mod target;
mod whole;

pub use directory::TemporaryDirectory;
pub use growth::growth;
pub use options::Options;
pub use report::Report;
pub use target::{Connection, Outcome, Target};

use data::DataSet;

/// Runs all requested measurements in order. `say` receives progress messages.
pub fn measure(
    options: &Options,
    target: &mut Target,
    say: &mut dyn FnMut(&str),
) -> Outcome<Report> {
    let mut data = DataSet::generate(options);
    say(&format!(
        "{} measurements of {} hosts, {} bytes of BSON each",
        data.rows(),
        data.hosts.len(),
        data.encoder(options).document_length()
    ));
    let mut load = None;
    if options.load {
        load::prepare(target.first(), options)?;
        let (loaded, ticks) = load::run(&mut target.connections, &data, options)?;
        data.cut(ticks);
        load = Some(loaded);
    }
    if let Some(folder) = &options.export {
        export::write(&data, options, std::path::Path::new(folder))?;
    }
    let mut report = Report::new(options, &data);
    report.load = load;
    if options.settle_s > 0 {
        say("loaded; waiting until everything is at rest");
        target.settle()?;
    }
    report.disk = disk::weigh(target.first(), options)?;
    if options.queries {
        say("asking");
        report.queries = queries::run(target.first(), &data, options)?;
    }
    if options.whole {
        say("reading everything");
        report.whole = Some(whole::read(target.first(), &data, options)?);
    }
    Ok(report)
}

/// A data set that is loaded already, and the queries to ask of it. Its values are generated before, so that nothing but queries
/// happens between two of them.
pub struct Questions {
    options: Options,
    data: DataSet,
}

impl Questions {
    /// Generates the values against which answers are checked.
    pub fn new(options: Options) -> Self {
        let data = DataSet::generate(&options);
        Self { options, data }
    }

    /// Asks the queries whose names begin with `only`, with `draws` parameters each and no warm-up.
    pub fn ask(&self, only: &str, draws: usize, target: &mut Target) -> Outcome<Report> {
        let options = Options {
            only: only.to_string(),
            draws,
            warm_up: 0,
            ..self.options.clone()
        };
        let mut report = Report::new(&options, &self.data);
        report.queries = queries::run(target.first(), &self.data, &options)?;
        Ok(report)
    }
}

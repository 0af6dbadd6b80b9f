//! The command line: subcommands, options, exit codes.
//!
//! Parsing has three steps: read the command line and the configuration file ([`args`], [`config`]); merge both, the
//! command line overriding the file; resolve the result into settings with defaults ([`settings`]).

mod args;
mod backups;
mod bench;
mod compactor;
mod config;
mod connect;
mod copy;
mod demo;
mod greeting;
mod object_storage;
mod pages;
mod replica_set;
mod security;
mod serve;
mod settings;
mod storage;
mod transfer;
mod upkeep;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};

pub use backups::ContinuousSettings;
pub use object_storage::{ObjectBackups, ObjectStorage};
pub use security::Security;
pub use settings::Settings;
pub use storage::Storage;

/// Bad command line or configuration file; the code of clap and of mongod.
const EXIT_BAD_OPTIONS: u8 = 2;

/// Damage or data loss was found; the command completed.
const EXIT_DAMAGE: u8 = 3;

/// Listening or connecting failed.
const EXIT_NETWORK: u8 = 48;

/// The database cannot be opened, or failed.
const EXIT_FAILURE: u8 = 100;

/// Another process took over the database. A restart would take it back.
const EXIT_TAKEN_OVER: u8 = 102;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Invalid options.
    #[error("{0}")]
    Options(String),
    /// Listening or connecting failed.
    #[error("{0}")]
    Network(String),
    /// Stored data is damaged.
    #[error("{0}")]
    Damaged(String),
    /// Another process took over the database.
    #[error("{0}")]
    TakenOver(String),
    /// Anything else.
    #[error("{0}")]
    Other(String),
}

impl Failure {
    fn exit_code(&self) -> u8 {
        match self {
            Self::Options(_) => EXIT_BAD_OPTIONS,
            Self::Network(_) => EXIT_NETWORK,
            Self::Damaged(_) => EXIT_DAMAGE,
            Self::TakenOver(_) => EXIT_TAKEN_OVER,
            Self::Other(_) => EXIT_FAILURE,
        }
    }
}

impl From<nilometer::Error> for Failure {
    /// Keeps the message; the code is for programs.
    fn from(error: nilometer::Error) -> Self {
        Self::Other(error.message)
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::Other(error.to_string())
    }
}

/// Runs the program with the command line `argv`.
pub fn main(argv: Vec<OsString>) -> ExitCode {
    ExitCode::from(run(argv))
}

/// Runs the program with the command line `argv` and returns its exit code.
pub fn run(argv: Vec<OsString>) -> u8 {
    let shown = argv
        .iter()
        .map(|arg| arg.to_string_lossy().into_owned())
        .collect();
    let outcome = match parse(argv) {
        Ok(cli) => match cli.command {
            args::Command::Serve(given) => serve::run(*given, shown),
            args::Command::Demo(given) => demo::run(&given.dbpath),
            args::Command::Backup(given) => backups::backup(&given),
            args::Command::Backups(given) => backups::list(&given),
            args::Command::Restore(given) => backups::restore(&given),
            args::Command::Compactor(given) => compactor::run(&given),
            args::Command::Copy(given) => copy::run(&given),
            args::Command::Verify(given) => backups::verify(&given),
            args::Command::Salvage(given) => upkeep::salvage(&given),
            args::Command::Inspect(given) => backups::inspect(&given),
            args::Command::Bench(given) => bench::run(&given),
            args::Command::Import(given) => transfer::import(&given),
            args::Command::Export(given) => transfer::export(&given),
            args::Command::Config(args::Config::Check(given)) => pages::check_config(&given.file),
            args::Command::Completion(given) => pages::completion(given.shell),
            args::Command::Man(given) => pages::manual(&given.directory),
        },
        Err(problem) => {
            // Help and version are reported as errors with code 0. A closed stdout is ignored.
            drop(problem.print());
            return u8::try_from(problem.exit_code()).unwrap_or(EXIT_BAD_OPTIONS);
        }
    };
    match outcome {
        Ok(()) => 0,
        Err(failure) => {
            report(&failure);
            failure.exit_code()
        }
    }
}

/// Parses a command line, with what the environment adds to it.
fn parse(argv: Vec<OsString>) -> Result<args::Cli, clap::Error> {
    let matches = args::Cli::command().try_get_matches_from(argv)?;
    let mut cli = args::Cli::from_arg_matches(&matches)?;
    if let args::Command::Serve(given) = &mut cli.command
        && let Some(matches) = matches.subcommand_matches("serve")
    {
        storage::prefer_command_line(given, matches);
    }
    Ok(cli)
}

/// Parses an arbitrary configuration file and resolves its settings.
pub(crate) fn fuzz_configuration(text: &str) -> bool {
    let given = config::parse(text);
    given.is_ok_and(|given| Settings::resolve(&given).is_ok())
}

pub(crate) use transfer::fuzz_csv;

/// Prints the failure to the standard error stream.
#[expect(
    clippy::print_stderr,
    reason = "the one place where the program reports its failure"
)]
fn report(failure: &Failure) {
    eprintln!("nilometer: {failure}");
}

//! Checks of configuration files, completion scripts, manual pages.

use std::io::Write;
use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;

use super::args::Cli;
use super::{Failure, Settings, config};
use crate::tls::Tls;

/// Checks a configuration file and the certificates it names.
pub(super) fn check_config(file: &Path) -> Result<(), Failure> {
    let settings = Settings::resolve(&config::read(file)?)?;
    if let Some(options) = settings.security.tls {
        Tls::new(options).map_err(|e| Failure::Options(format!("TLS: {e}")))?;
    }
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "{}: every key is known and every value is valid",
        file.display()
    )?;
    Ok(())
}

/// Prints the completion script of a shell.
pub(super) fn completion(shell: Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "nilometer", &mut script);
    std::io::stdout().lock().write_all(&script)?;
    Ok(())
}

/// Writes a page for the program and one for each of its commands.
pub(super) fn manual(directory: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(directory)?;
    clap_mangen::generate_to(Cli::command().disable_help_subcommand(true), directory)?;
    Ok(())
}

//! `nilometer compactor`: merges tables of a database on object storage beside its server.

use std::sync::Arc;

use nilometer::services::LogRing;
use tracing::{error, info};

use super::Failure;
use super::args;
use super::object_storage::run_compactor;
use crate::log;
use crate::log::Sink;
use crate::shutdown::ShutdownSignal;

/// Works until a signal comes. Logs to the standard output, as a server does.
pub(super) fn run(given: &args::Compactor) -> Result<(), Failure> {
    let signal = ShutdownSignal::listen();
    let signal = signal.map_err(|e| Failure::Other(format!("cannot handle signals: {e}")))?;
    let started = log::start(&Sink::StandardOutput, 0, Arc::new(LogRing::default()));
    started.map_err(|e| Failure::Options(format!("cannot start the log: {e}")))?;
    let outcome = run_compactor(given, &|| signal.is_requested());
    match &outcome {
        Ok(()) => info!(c = "CONTROL", id = 23_139, exitCode = 0, "Shut down"),
        Err(failure) => error!(c = "CONTROL", id = 20_558, error = %failure, "Exiting"),
    }
    outcome
}

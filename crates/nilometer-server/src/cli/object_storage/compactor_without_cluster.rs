//! The refusal of a program that was built without object storage.

use super::without_cluster::refusal;
use crate::cli::Failure;
use crate::cli::args;

/// Refuses.
pub(in crate::cli) fn run_compactor(
    given: &args::Compactor,
    _is_ended: &dyn Fn() -> bool,
) -> Result<(), Failure> {
    Err(refusal(&given.storage))
}

//! The compactor of a database on object storage.

use nilometer::ErrorCode;
use nilometer_cluster::{ClaimIntervals, SlateOptions, StorageUrl};
use tracing::{info, warn};

use crate::cli::Failure;
use crate::cli::args;

/// Merges tables until `is_ended` says so.
pub(in crate::cli) fn run_compactor(
    given: &args::Compactor,
    is_ended: &dyn Fn() -> bool,
) -> Result<(), Failure> {
    let (endpoint, region) = (
        given.store.endpoint.as_deref(),
        given.store.region.as_deref(),
    );
    let url = StorageUrl::parse(&given.storage, endpoint, region);
    let url = url.map_err(|error| Failure::Options(error.to_string()))?;
    let failed = |error: nilometer::Error| {
        let text = format!("cannot merge the tables of {url}: {}", error.message);
        match error.code {
            ErrorCode::NotWritablePrimary => Failure::TakenOver(text),
            _ => Failure::Other(text),
        }
    };
    let claim = match given.standby {
        false => None,
        true => {
            let claimant = url.compactor_claimant(ClaimIntervals::default());
            let claimant = claimant.map_err(|error| failed(error.into()))?;
            info!(
                c = "STORAGE",
                id = 22_460,
                "Standing by until no other compactor is at work"
            );
            match claimant.wait(is_ended) {
                None => return Ok(()),
                claim => claim,
            }
        }
    };
    let compactor = url.start_compactor(&SlateOptions::default());
    let compactor = compactor.map_err(|error| failed(error.into()))?;
    if let Some(claim) = &claim {
        claim.note_open();
    }
    info!(
        c = "STORAGE",
        id = 22_461,
        storage = %url,
        "Merging tables beside the server"
    );
    let ended = compactor.run(is_ended);
    ended.map_err(|error| failed(error.into()))?;
    if let Some(claim) = claim
        && let Err(problem) = claim.release()
    {
        warn!(c = "STORAGE", id = 22_462, error = %problem, "Others wait for the silence of this compactor");
    }
    Ok(())
}

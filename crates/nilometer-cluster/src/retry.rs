//! Requests to a store, repeated when they fail.

use std::time::Duration;

use object_store::Error as StoreError;

/// Attempts at a request. The clients of stores have repeated it themselves before.
const ATTEMPTS_MAX: u32 = 6;

/// Time before the second attempt; it doubles with each.
const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// What a request returns.
pub(crate) type Outcome<T> = std::result::Result<T, StoreError>;

/// Sends a request until it succeeds, or fails in a way that repeating does not help, or often.
pub(crate) async fn repeated<T>(mut request: impl AsyncFnMut() -> Outcome<T>) -> Outcome<T> {
    let mut attempt = 0;
    loop {
        match request().await {
            Ok(answer) => return Ok(answer),
            Err(error) => pause_or_fail(&mut attempt, error).await?,
        }
    }
}

/// Counts a failed attempt, and waits before the next one.
pub(crate) async fn pause_or_fail(attempt: &mut u32, error: StoreError) -> Outcome<()> {
    *attempt += 1;
    let passes = matches!(error, StoreError::Generic { .. });
    if !passes || *attempt >= ATTEMPTS_MAX {
        return Err(error);
    }
    tokio::time::sleep(FIRST_PAUSE * 2u32.pow(*attempt)).await;
    Ok(())
}

//! Transactions between two statements, as `$currentOp` and `currentOp` list them.

use std::time::Duration;

use nilometer_bson::civil_date::iso_with_offset;
use nilometer_bson::{Document, DocumentBuilder, Timestamp, Value, doc};

use super::{SessionOwner, Transaction, TransactionState, Transactions};
use crate::services::describe::{self, OperationFilter};
use crate::services::{OpenConnection, Services};

/// Who begins a transaction, and how.
#[derive(Clone)]
pub(crate) struct TransactionStart {
    pub(crate) number: i64,
    /// The read concern of the first statement; empty without one.
    pub(crate) read_concern: Document,
    pub(crate) connection_id: i64,
    pub(crate) connection: OpenConnection,
}

impl TransactionStart {
    /// True with the read concern `snapshot`.
    pub(crate) fn reads_snapshot(&self) -> bool {
        self.read_concern.get("level").as_str() == Some("snapshot")
    }
}

/// When a transaction began, and how long its statements took.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TransactionTimes {
    /// Its begin in ms since 1970.
    pub(super) began_ms: i64,
    /// Its begin by the monotonic clock.
    pub(super) began: Duration,
    /// The time its statements took together.
    pub(super) active: Duration,
    /// The cluster time of what it reads.
    pub(super) read: u64,
}

impl Transactions {
    /// Describes the open transactions that run no statement.
    pub(crate) fn describe_idle(
        &self,
        services: &Services,
        shown: OperationFilter<'_>,
    ) -> Vec<Document> {
        let mut described = Vec::new();
        for (owner, entry) in self.lock().iter() {
            let TransactionState::Open(slot) = &entry.state else {
                continue;
            };
            let is_shown = shown.of_user.is_none() || owner.1.as_ref() == shown.of_user;
            // It is locked while a statement runs, which is listed itself.
            if is_shown
                && let Ok(transaction) = slot.try_lock()
                && let Some(transaction) = &*transaction
            {
                described.push(describe(services, owner, transaction));
            }
        }
        described
    }
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

fn describe(services: &Services, owner: &SessionOwner, transaction: &Transaction) -> Document {
    let (start, times) = (&transaction.start, transaction.times);
    let open = services.clock.monotonic().saturating_sub(times.began);
    let lifetime = services.parameters.transaction_lifetime_limit_seconds();
    let mut parameters = DocumentBuilder::new();
    parameters.append("txnNumber", start.number);
    parameters.append("autocommit", false);
    if !start.read_concern.is_empty() {
        parameters.append("readConcern", start.read_concern.clone());
    }
    let read = match start.reads_snapshot() {
        true => Timestamp::from_u64(times.read),
        false => Timestamp::from_u64(0),
    };
    let shown = doc! {
        "parameters": parameters.finish(),
        "readTimestamp": Value::Timestamp(read),
        "startWallClockTime": iso_with_offset(times.began_ms),
        "timeOpenMicros": micros(open),
        "timeActiveMicros": micros(times.active),
        "timeInactiveMicros": micros(open).saturating_sub(micros(times.active)),
        "expiryTime": iso_with_offset(times.began_ms.saturating_add(lifetime * 1000)),
    };
    let kind = ("idleSession", "inactive transaction".to_owned());
    let mut out = describe::common(
        services,
        kind,
        start.connection_id,
        &start.connection,
        false,
    );
    out.append("lsid", owner.0.with_digest(owner.1.as_ref()))
        .append("transaction", shown)
        .append("waitingForLock", false);
    out.finish()
}

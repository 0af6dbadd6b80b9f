//! New contents for an `$out` of a router, in the partition that has the target.
//!
//! ```text
//! _replaceContents: <id>, target, begin: true, timeseries?, documents …   prepares a hidden collection
//! _replaceContents: <id>, documents …                                     adds to it
//! _replaceContents: <id>, finish: true                                    gives it the name of the target
//! _replaceContents: <id>, abort: true                                     forgets it
//! ```
//!
//! What a router has left behind is forgotten when it was not used for some time and another `$out` begins, or when the
//! partition is opened again.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nilometer_bson::{Document, ValueRef, doc};

use crate::args::Args;
use crate::catalog::{Namespace, TimeseriesOptions};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::operation::{OperationContext, Request};
use crate::query::source::{Outputs, Replacement};

/// A request of a router to the partition of the target of an `$out`. Its argument identifies the `$out`.
pub(crate) const REPLACE_COMMAND: &str = "_replaceContents";

/// Time after which contents that no router has added to are forgotten: as long as an idle session.
const IDLE_MAX: Duration = Duration::from_secs(30 * 60);

/// Most collections that are replaced at the same time.
const REPLACEMENTS_MAX: usize = 1000;

/// The collections of a partition that routers replace.
#[derive(Default)]
pub(in crate::database) struct HostedReplacements {
    open: Mutex<BTreeMap<Vec<u8>, OpenReplacement>>,
}

/// New contents that are not complete.
struct OpenReplacement {
    /// Empty while a request uses it.
    contents: Option<Box<dyn Replacement>>,
    used: Duration,
}

impl HostedReplacements {
    /// Runs a request.
    pub(in crate::database) fn run(
        &self,
        database: &Database,
        request: &Request,
    ) -> Result<Document> {
        let args = Args::new(REPLACE_COMMAND, request.body.as_ref());
        let id = match args.value(REPLACE_COMMAND) {
            ValueRef::Binary { bytes, .. } => bytes.to_vec(),
            _ => return Err(Error::bad_value("what is replaced is missing")),
        };
        if is_set(&args, "abort")? {
            let forgotten = self.lock().remove(&id);
            drop(forgotten);
            return Ok(doc! {"ok": 1.0});
        }
        let now = database.services().clock.monotonic();
        let outcome = match is_set(&args, "begin")? {
            true => {
                self.admit(&id, now)?;
                begin(database, &args).and_then(|new| add(database, new, &args, request))
            }
            false => {
                let contents = self.take(&id)?;
                add(database, contents, &args, request)
            }
        };
        let mut open = self.lock();
        match outcome {
            Ok(Some(contents)) => {
                // Without an entry the router has given up meanwhile.
                if let Some(entry) = open.get_mut(&id) {
                    entry.contents = Some(contents);
                    entry.used = now;
                }
                Ok(doc! {"ok": 1.0})
            }
            Ok(None) => {
                open.remove(&id);
                Ok(doc! {"ok": 1.0})
            }
            Err(error) => {
                open.remove(&id);
                Err(error)
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Vec<u8>, OpenReplacement>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits new contents, and forgets what was left behind; fails if there are too many others.
    fn admit(&self, id: &[u8], now: Duration) -> Result<()> {
        let mut open = self.lock();
        let is_left = |entry: &OpenReplacement| {
            entry.contents.is_some() && now.saturating_sub(entry.used) > IDLE_MAX
        };
        let left: Vec<Vec<u8>> = open
            .iter()
            .filter(|(_, entry)| is_left(entry))
            .map(|(id, _)| id.clone())
            .collect();
        let forgotten: Vec<_> = left.iter().map(|id| open.remove(id)).collect();
        let is_admitted = open.len() < REPLACEMENTS_MAX;
        if is_admitted {
            let entry = OpenReplacement {
                contents: None,
                used: now,
            };
            open.insert(id.to_vec(), entry);
        }
        drop(open);
        drop(forgotten);
        match is_admitted {
            true => Ok(()),
            false => Err(Error::new(
                ErrorCode::ExceededMemoryLimit,
                format!("a partition replaces at most {REPLACEMENTS_MAX} collections at a time"),
            )),
        }
    }

    /// Takes contents to add to them.
    fn take(&self, id: &[u8]) -> Result<Box<dyn Replacement>> {
        let mut open = self.lock();
        let contents = open.get_mut(id).and_then(|entry| entry.contents.take());
        contents.ok_or_else(lost)
    }
}

fn is_set(args: &Args<'_>, name: &str) -> Result<bool> {
    Ok(args.boolean(name)?.unwrap_or(false))
}

/// Prepares new contents.
fn begin(database: &Database, args: &Args<'_>) -> Result<Box<dyn Replacement>> {
    let target = Namespace::new(
        args.required_string("$db")?,
        args.required_string("target")?,
    )?;
    let timeseries = args.document("timeseries")?;
    let timeseries = timeseries.map(TimeseriesOptions::parse).transpose()?;
    database.collections().replace(&target, timeseries.as_ref())
}

/// Adds the documents of a request to new contents. Returns these, unless the request has finished them.
fn add(
    database: &Database,
    mut contents: Box<dyn Replacement>,
    args: &Args<'_>,
    request: &Request,
) -> Result<Option<Box<dyn Replacement>>> {
    let clock = database.services().clock.clone();
    let mut operation = OperationContext::internal(clock, args.required_string("$db")?);
    operation.bypass.validation = is_set(args, "bypassDocumentValidation")?;
    operation.bypass.empty_timestamps = is_set(args, "bypassEmptyTsReplacement")?;
    let limit_ms = args.integer_at_least("maxTimeMS", 0)?;
    let limit_ms = limit_ms.and_then(|limit| u64::try_from(limit).ok());
    operation.set_time_limit(limit_ms.map(Duration::from_millis));
    if let Some(documents) = request.documents(REPLACE_COMMAND, "documents")? {
        let documents: Vec<Document> = documents.map(|d| d.to_document()).collect();
        contents.insert(&documents, &operation)?;
    }
    match is_set(args, "finish")? {
        true => contents.finish(&operation).map(|()| None),
        false => Ok(Some(contents)),
    }
}

fn lost() -> Error {
    Error::new(
        ErrorCode::QueryPlanKilled,
        "the new contents of the collection are lost: repeat the command",
    )
}

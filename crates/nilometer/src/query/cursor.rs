//! Cursors: queries that continue over several commands.
//!
//! ```text
//! find, aggregate ─► Cursor ─ fill ─► first batch ─┬─ exhausted: id 0, nothing is kept
//!                                                  └─ registry.register ─► id
//! getMore id ─► registry.check_out ─► PinnedCursor ─ fill ─► next batch ─┬─ keep: idle again
//!                                                                       └─ dropped: gone
//! ```
//!
//! A cursor owns its executor. Between commands the registry owns the cursor. While a command uses the cursor, the
//! registry keeps a busy slot, so that a second getMore is refused (`CursorInUse`) and a kill reaches the operation. A
//! getMore that ends without [`PinnedCursor::keep`] closes the cursor: after an error within a batch it could only
//! continue with documents missing.
//!
//! Ids are random numbers from the caller's source, so that a client cannot guess another client's id.

mod registry;

use std::sync::Arc;
use std::time::{Duration, Instant};

use nilometer_bson::{DocRef, Document, DocumentBuilder, Value, ValueRef, doc};

pub use self::registry::{
    CURSORS_OPEN_MAX, Closing, CursorCounts, CursorLimits, CursorRegistry, Killed, PinnedCursor,
};
use crate::error::Result;
use crate::operation::OperationContext;
use crate::query::batch::{Batch, Pending};
use crate::query::collector::BatchCollector;
use crate::query::exec::Executor;
use crate::query::exec::change_stream::StreamProgress;
use crate::session::{ApiParameters, SessionId, UserName};
use crate::write::Arrivals;

/// Documents in a first batch if the client specifies no number.
pub const FIRST_BATCH_DEFAULT: u64 = 101;

/// Greatest size in bytes of an array element besides its value: type, index in digits, terminating zero.
const ELEMENT_OVERHEAD_MAX: usize = 12;

/// A batch of this many bytes gets the capacity of a whole reply at once: growing it by doubling would copy it, and touch
/// new pages, several times. Pages that it does not fill stay untouched.
const LONG_BATCH_BYTES: usize = 256 * 1024;

/// Capacity for what follows the batch in a reply.
const REPLY_END_BYTES: usize = 4096;

/// The longest wait for documents between two checks for interrupts.
const AWAIT_SLICE: Duration = Duration::from_millis(50);

/// The same for change streams, of which many may wait.
const STREAM_SLICE: Duration = Duration::from_millis(250);

/// A running query.
pub struct Cursor {
    /// `db.coll` as the client reads it; for a view, the view's name.
    pub namespace: String,
    /// The session that opened the cursor.
    pub lsid: Option<SessionId>,
    /// The user who opened the cursor.
    pub user: Option<UserName>,
    /// True if the idle timeout does not apply.
    pub no_timeout: bool,
    /// Remaining part of the time limit (`maxTimeMS`), for later batches.
    pub time_left: Option<Duration>,
    /// The command that opened the cursor, for `currentOp`.
    pub command: Document,
    /// The stable API of the command that opened the cursor: later batches must ask for the same.
    pub api: ApiParameters,
    /// Set if the cursor stays open at its end and continues when documents arrive.
    pub tail: Option<Tail>,
    /// The position after the last document, if the client asked for it.
    pub resume: Option<ResumePosition>,
    /// The place in the change log, if the cursor is a change stream.
    pub stream: Option<StreamPosition>,
    executor: Executor,
    pending: Pending,
    collector: Option<Arc<BatchCollector>>,
    returned: u64,
}

/// The name under which a scan adds the key of each record.
const RECORD_ID: &str = "$recordId";

/// The position of a scan in record order, by which a later query continues it.
#[derive(Clone, Debug)]
pub struct ResumePosition {
    /// The key of the last record; null before the first.
    pub record_id: Value,
    /// True if the documents show their keys.
    pub shows_record_id: bool,
}

impl ResumePosition {
    /// Records the key of `document`. Returns the document without it, unless documents show it.
    fn pass(&mut self, document: DocRef<'_>) -> Option<Document> {
        self.record_id = document.get(RECORD_ID).to_value();
        if self.shows_record_id {
            return None;
        }
        let mut out = DocumentBuilder::with_capacity(document.as_bytes().len());
        for element in document.iter().filter(|e| e.name() != RECORD_ID) {
            out.append_element(element);
        }
        Some(out.finish())
    }
}

/// The place of a change stream in the change log.
#[derive(Clone, Debug)]
pub struct StreamPosition {
    /// The token behind what was returned.
    token: Document,
    progress: Arc<StreamProgress>,
}

impl StreamPosition {
    /// Returns the place where a stream begins.
    pub fn new(progress: Arc<StreamProgress>) -> Self {
        Self {
            token: progress.token(),
            progress,
        }
    }
}

/// How a cursor continues at the end of a capped collection.
#[derive(Clone, Debug)]
pub struct Tail {
    /// Counts new documents.
    pub arrivals: Arc<Arrivals>,
    /// Whether an empty batch waits for documents.
    pub awaits: bool,
}

/// The limits of one batch for [`Cursor::fill`].
#[derive(Clone, Copy, Debug)]
pub struct BatchRequest {
    /// Greatest number of documents; `None` means limited only by bytes.
    pub documents: Option<u64>,
}

impl Cursor {
    /// Creates a cursor over the output of `executor`.
    pub fn new(namespace: String, executor: Executor, command: Document) -> Self {
        Self {
            namespace,
            lsid: None,
            user: None,
            no_timeout: false,
            time_left: None,
            command,
            api: ApiParameters::default(),
            tail: None,
            resume: None,
            stream: None,
            executor,
            pending: Pending::Nothing,
            collector: None,
            returned: 0,
        }
    }

    /// Appends documents to the array open in `out` until the batch is full or no document is left. Returns true if
    /// more may follow.
    ///
    /// A document that would exceed [`REPLY_BYTES_MAX`](crate::query::exec::REPLY_BYTES_MAX) or the memory limit
    /// ([`crate::query::exec::ExecLimits`]) is kept for the next batch, unless the batch is empty.
    pub fn fill(
        &mut self,
        operation: &OperationContext,
        request: BatchRequest,
        out: &mut DocumentBuilder,
    ) -> Result<bool> {
        if let Some(collector) = self.collector.clone() {
            return self.collect(operation, &collector);
        }
        let mut count = 0usize;
        let start = out.len();
        let bytes_max = self.executor.batch_bytes_max();
        let most = request
            .documents
            .map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX));
        while count < most {
            let Some(document) = self.pending.front() else {
                self.pending = match self.executor.next(operation)? {
                    Some(batch) => Pending::of(batch)?,
                    None => {
                        if let Some(stream) = &mut self.stream {
                            stream.token = stream.progress.token();
                        }
                        return Ok(self.may_go_on());
                    }
                };
                continue;
            };
            let size = document.as_bytes().len() + ELEMENT_OVERHEAD_MAX;
            if count > 0 && out.len() - start + size > bytes_max {
                break;
            }
            let shown = self.resume.as_mut().and_then(|r| r.pass(document));
            let document = shown.as_ref().map_or(document, |shown| shown.as_ref());
            if let Some(stream) = &mut self.stream
                && let Some(token) = document.get("_id").as_document()
            {
                stream.token = token.to_document();
            }
            let used = out.len() - start;
            if used > LONG_BATCH_BYTES {
                out.reserve(bytes_max.saturating_sub(used) + REPLY_END_BYTES);
            }
            out.append_indexed(count, ValueRef::Document(document));
            self.pending.advance();
            count += 1;
            self.returned += 1;
            operation.usage().add_returned(1);
        }
        Ok(!(self.pending.is_empty() && self.executor.is_exhausted()))
    }

    /// Gives `collector` batches until it is full or none is left. Returns true if more may follow.
    fn collect(
        &mut self,
        operation: &OperationContext,
        collector: &BatchCollector,
    ) -> Result<bool> {
        let mut begun = Vec::new();
        while let Some(document) = self.pending.front() {
            begun.push(document.to_document());
            self.pending.advance();
        }
        let mut next = (!begun.is_empty()).then_some(Batch::Rows(begun));
        while !collector.is_full() {
            let batch = match next.take() {
                Some(batch) => Some(batch),
                None => self.executor.next(operation)?,
            };
            let Some(batch) = batch else {
                return Ok(self.may_go_on());
            };
            self.returned += batch.len() as u64;
            operation.usage().add_returned(batch.len() as u64);
            collector.push(batch);
        }
        Ok(!self.executor.is_exhausted())
    }

    /// Appends the token by which a later query continues after this batch, if the client asked for it.
    pub fn append_resume_token(&self, out: &mut DocumentBuilder) {
        if let Some(stream) = &self.stream {
            out.append("postBatchResumeToken", stream.token.clone());
        }
        if let Some(resume) = &self.resume {
            let token = doc! {"$recordId": resume.record_id.clone()};
            out.append("postBatchResumeToken", token);
        }
    }

    /// Makes the cursor wait for further documents at the end of a capped collection.
    pub fn follow(&mut self, tail: Tail) {
        self.executor.tail();
        self.tail = Some(tail);
    }

    /// True if documents may still arrive at the end of the collection.
    fn may_go_on(&self) -> bool {
        self.tail.is_some() && !self.executor.is_exhausted()
    }

    /// Like [`Cursor::fill`]. If there is no document and the cursor awaits documents, waits for them up to `wait`.
    pub fn fill_or_wait(
        &mut self,
        operation: &OperationContext,
        request: BatchRequest,
        wait: Duration,
        out: &mut DocumentBuilder,
    ) -> Result<bool> {
        let until = Instant::now() + wait;
        let before = self.returned;
        loop {
            let tail = self.tail.clone().filter(|tail| tail.awaits);
            let known = tail.as_ref().map_or(0, |tail| tail.arrivals.count());
            let more = self.fill(operation, request, out)?;
            let left = until.saturating_duration_since(Instant::now());
            let Some(tail) = tail.filter(|_| more && self.returned == before) else {
                return Ok(more);
            };
            if left.is_zero() {
                return Ok(more);
            }
            operation.check_interrupt()?;
            operation.turn.pause();
            let slice = match self.stream {
                Some(_) => STREAM_SLICE,
                None => AWAIT_SLICE,
            };
            tail.arrivals.wait(known, left.min(slice));
        }
    }

    /// Returns the plan summary, such as `COLLSCAN`.
    pub fn plan_summary(&self) -> Option<&str> {
        self.executor.plan_summary()
    }

    /// Returns the number of documents returned so far.
    pub fn returned(&self) -> u64 {
        self.returned
    }
}

impl std::fmt::Debug for Cursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cursor")
            .field("namespace", &self.namespace)
            .field("returned", &self.returned)
            .finish_non_exhaustive()
    }
}

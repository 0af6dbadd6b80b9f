//! One operation: its request and its execution context.
//!
//! A [`Request`] is a framed message: the command document and the document sequences sent with it. A
//! sequence of 10,000 documents stays in the buffer it arrived in; only offsets are stored, and each
//! document is borrowed when accessed.
//!
//! An [`OperationContext`] is added by the database: the start time of the operation, its deadline, and the
//! switch that ends it early. Long work calls [`OperationContext::check_interrupt`] once per batch; nothing
//! else stops it.
//!
//! The database has no clock of its own: the program that opens it passes a [`Clock`].

mod routed;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nilometer_bson::document::Elements;
use nilometer_bson::{DocRef, Document, Value, ValueRef};

pub use self::routed::{
    AcceptedDocument, GuardedKey, PartMetadata, PartRequest, PlacementVersion, RoutedRequest,
};
use crate::error::{Error, ErrorCode, Result};
use crate::eval::{EvaluationCounters, EvaluationLimits, Interrupt, WallClock};
use crate::session::{ApiParameters, ClientMetadata, SessionId, UserName};
use crate::turns::Turn;

/// A source of time.
pub trait Clock: Send + Sync {
    /// Returns the time in ms since 1970, UTC.
    fn now_ms(&self) -> i64;

    /// Returns the time since a fixed point in the past; never decreases.
    fn monotonic(&self) -> Duration;
}

/// The system clock.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    started: Instant,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self {
            started: Instant::now(),
        }
    }
}

impl Clock for SystemClock {
    fn now_ms(&self) -> i64 {
        let signed = |d: Duration| i64::try_from(d.as_millis()).unwrap_or(i64::MAX);
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(after) => signed(after),
            Err(before) => -signed(before.duration()),
        }
    }

    fn monotonic(&self) -> Duration {
        self.started.elapsed()
    }
}

/// The field of a read concern that names a time of the set.
pub(crate) const AFTER_CLUSTER_TIME: &str = "afterClusterTime";

/// A command and the document sequences sent with it.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// The command: its first field names it, `$db` names the database.
    pub body: Document,
    /// Fields whose documents were sent outside the body (`documents`, `updates`, `ops`, …).
    pub sequences: Vec<DocumentSequence>,
    /// What a router asks beside the command; no client can.
    pub routed: Option<Arc<RoutedRequest>>,
}

impl Request {
    /// Makes a request without document sequences.
    pub fn new(body: Document) -> Self {
        Self {
            body,
            sequences: Vec::new(),
            routed: None,
        }
    }

    /// Returns what a router asks of a part of a query.
    pub(crate) fn part(&self) -> Option<PartRequest> {
        self.routed.as_ref()?.part
    }

    /// Returns `$$NOW` of what a router asks, if it is not the time at which the command begins.
    pub(crate) fn query_now_ms(&self) -> Option<i64> {
        let routed = self.routed.as_ref()?;
        routed
            .part
            .map_or(routed.merge_now_ms, |part| Some(part.now_ms))
    }

    /// Returns the bytes of the body and the sequences.
    pub(crate) fn bytes(&self) -> usize {
        let sequences = self.sequences.iter().map(DocumentSequence::bytes);
        self.body.as_bytes().len() + sequences.sum::<usize>()
    }

    /// Returns the name of the command: the first field of the body; empty if there is none.
    pub fn command_name(&self) -> &str {
        self.body.iter().next().map_or("", |e| e.name())
    }

    /// Returns the time after which the client wants to read, `readConcern.afterClusterTime`.
    pub fn after_cluster_time(&self) -> Option<u64> {
        let concern = self.body.get("readConcern").as_document()?;
        match concern.get(AFTER_CLUSTER_TIME) {
            ValueRef::Timestamp(time) => Some(time.to_u64()),
            _ => None,
        }
    }

    /// Returns the sequence called `name`.
    pub fn sequence(&self, name: &str) -> Option<&DocumentSequence> {
        self.sequences.iter().find(|s| s.name == name)
    }

    /// Returns the documents of the field `name`, sent as a sequence or as an array in the body; `None` if
    /// the field is missing. An array element that is not a document is error 14, with `command` naming the
    /// field in the message.
    pub fn documents(&self, command: &str, name: &str) -> Result<Option<Documents<'_>>> {
        if let Some(sequence) = self.sequence(name) {
            return Ok(Some(Documents::Sequence(sequence.iter())));
        }
        match self.body.get(name) {
            ValueRef::Missing => Ok(None),
            ValueRef::Array(array) => {
                let elements = array.as_document().iter();
                for (at, element) in elements.clone().enumerate() {
                    let value = element.value();
                    if value.as_document().is_none() {
                        return Err(Error::wrong_field_type(
                            format_args!("{command}.{name}.{at}"),
                            value,
                            "object",
                        ));
                    }
                }
                Ok(Some(Documents::Array(elements)))
            }
            other => Err(Error::wrong_field_type(
                format_args!("{command}.{name}"),
                other,
                "array",
            )),
        }
    }
}

/// Consecutive documents in a shared buffer.
#[derive(Clone, Debug, PartialEq)]
pub struct DocumentSequence {
    name: String,
    buffer: Arc<Vec<u8>>,
    ranges: Vec<Range<u32>>,
}

impl DocumentSequence {
    /// Makes a sequence called `name` of the documents that fill `buffer[span]` without gaps. `None` if the
    /// span does not hold a whole number of framed documents.
    pub fn new(name: String, buffer: Arc<Vec<u8>>, span: Range<usize>) -> Option<Self> {
        let mut ranges = Vec::new();
        let mut at = span.start;
        while at < span.end {
            let document = DocRef::new(buffer.get(at..span.end)?)?;
            let end = at.checked_add(document.as_bytes().len())?;
            ranges.push(u32::try_from(at).ok()?..u32::try_from(end).ok()?);
            at = end;
        }
        Some(Self {
            name,
            buffer,
            ranges,
        })
    }

    /// Returns the bytes of the documents.
    fn bytes(&self) -> usize {
        match (self.ranges.first(), self.ranges.last()) {
            (Some(first), Some(last)) => (last.end - first.start) as usize,
            _ => 0,
        }
    }

    /// Returns the field the documents belong to.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the number of documents.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// True if the sequence is empty.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Returns the document at `index`.
    pub fn get(&self, index: usize) -> Option<DocRef<'_>> {
        document_at(&self.buffer, self.ranges.get(index)?)
    }

    /// Returns an iterator over the documents.
    pub fn iter(&self) -> SequenceIter<'_> {
        SequenceIter {
            buffer: &self.buffer,
            ranges: self.ranges.iter(),
        }
    }
}

fn document_at<'a>(buffer: &'a [u8], range: &Range<u32>) -> Option<DocRef<'a>> {
    let start = usize::try_from(range.start).ok()?;
    let end = usize::try_from(range.end).ok()?;
    DocRef::new(buffer.get(start..end)?)
}

/// Iterates over a [`DocumentSequence`].
#[derive(Clone, Debug)]
pub struct SequenceIter<'a> {
    buffer: &'a [u8],
    ranges: std::slice::Iter<'a, Range<u32>>,
}

impl<'a> Iterator for SequenceIter<'a> {
    type Item = DocRef<'a>;

    fn next(&mut self) -> Option<DocRef<'a>> {
        document_at(self.buffer, self.ranges.next()?)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.ranges.size_hint()
    }
}

/// Iterates over the documents of a field, however they were sent.
#[derive(Clone, Debug)]
pub enum Documents<'a> {
    /// Sent as a document sequence.
    Sequence(SequenceIter<'a>),
    /// Sent as an array of documents in the body.
    Array(Elements<'a>),
}

impl Documents<'_> {
    /// Returns the number of remaining documents; an array is walked to count them.
    pub fn remaining(&self) -> usize {
        match self {
            Self::Sequence(documents) => documents.ranges.len(),
            Self::Array(elements) => elements.clone().count(),
        }
    }
}

impl<'a> Iterator for Documents<'a> {
    type Item = DocRef<'a>;

    fn next(&mut self) -> Option<DocRef<'a>> {
        match self {
            Self::Sequence(documents) => documents.next(),
            Self::Array(elements) => elements.next()?.value().as_document(),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match self {
            Self::Sequence(documents) => documents.size_hint(),
            Self::Array(_) => (0, None),
        }
    }
}

/// Ends an operation from outside: by `killOp`, a killed session, a disconnected client, or the shutdown.
/// Clones share the switch; the first reason is kept.
#[derive(Clone, Debug, Default)]
pub struct KillSwitch(Arc<SwitchState>);

#[derive(Debug, Default)]
struct SwitchState {
    /// The code with which the operation fails; 0 if it is not ended.
    reason: AtomicI32,
    disconnects: AtomicBool,
}

impl KillSwitch {
    /// Makes a switch that is not set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the switch with the code the operation will fail with.
    pub fn kill(&self, reason: ErrorCode) {
        let _ = self
            .0
            .reason
            .compare_exchange(0, reason.0, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Closes the connection behind the operation, which ends as usual.
    pub(crate) fn disconnect(&self) {
        self.0.disconnects.store(true, Ordering::Relaxed);
    }

    /// True if the connection is closed behind the operation.
    pub(crate) fn disconnects(&self) -> bool {
        self.0.disconnects.load(Ordering::Relaxed)
            || self.reason() == Some(ErrorCode::ClientDisconnect)
    }

    /// Returns the reason if the switch is set.
    pub fn reason(&self) -> Option<ErrorCode> {
        match self.0.reason.load(Ordering::Relaxed) {
            0 => None,
            code => Some(ErrorCode(code)),
        }
    }
}

/// The progress of long work, as shown by `currentOp`. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<ProgressState>);

#[derive(Debug, Default)]
struct ProgressState {
    message: OnceLock<String>,
    done: AtomicU64,
    total: AtomicU64,
}

impl Progress {
    /// Sets the name and the total of the work; the first name is kept.
    pub fn begin(&self, message: &str, total: u64) {
        self.0.message.get_or_init(|| message.to_owned());
        self.0.total.store(total, Ordering::Relaxed);
    }

    /// Adds `by` to the completed work.
    pub fn advance(&self, by: u64) {
        self.0.done.fetch_add(by, Ordering::Relaxed);
    }

    /// Returns the name, the completed part and the total of the work; `None` before it begins.
    pub fn now(&self) -> Option<(&str, u64, u64)> {
        let message = self.0.message.get()?;
        let done = self.0.done.load(Ordering::Relaxed);
        Some((message, done, self.0.total.load(Ordering::Relaxed)))
    }
}

/// The keys and documents an operation examined and returned, for the profiler and the slow log. Clones
/// share it.
#[derive(Clone, Debug, Default)]
pub struct OperationUsage(Arc<UsageCounts>);

#[derive(Debug, Default)]
struct UsageCounts {
    plan: OnceLock<Arc<str>>,
    keys: AtomicU64,
    documents: AtomicU64,
    returned: AtomicU64,
    created: Mutex<Vec<String>>,
}

impl OperationUsage {
    /// Records a collection that was created implicitly.
    pub fn record_created(&self, namespace: String) {
        let created = &self.0.created;
        let mut created = created.lock().unwrap_or_else(PoisonError::into_inner);
        created.push(namespace);
    }

    /// Returns the implicitly created collections.
    pub fn created_collections(&self) -> Vec<String> {
        let created = &self.0.created;
        created
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Sets the plan summary; the first is kept.
    pub fn set_plan_summary(&self, plan: &Arc<str>) {
        self.0.plan.get_or_init(|| Arc::clone(plan));
    }

    /// Adds examined index keys and examined records or buckets.
    pub fn examined(&self, keys: u64, documents: u64) {
        self.0.keys.fetch_add(keys, Ordering::Relaxed);
        self.0.documents.fetch_add(documents, Ordering::Relaxed);
    }

    /// Adds documents returned to the client.
    pub fn add_returned(&self, documents: u64) {
        self.0.returned.fetch_add(documents, Ordering::Relaxed);
    }

    /// Returns the plan summary, if there is one.
    pub fn plan(&self) -> Option<&str> {
        self.0.plan.get().map(|plan| &**plan)
    }

    /// Returns the number of examined keys.
    pub fn keys_examined(&self) -> u64 {
        self.0.keys.load(Ordering::Relaxed)
    }

    /// Returns the number of examined records or buckets.
    pub fn documents_examined(&self) -> u64 {
        self.0.documents.load(Ordering::Relaxed)
    }

    /// Returns the number of returned documents.
    pub fn returned(&self) -> u64 {
        self.0.returned.load(Ordering::Relaxed)
    }
}

/// How a command accesses data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Neither reads nor writes collections.
    None,
    /// Reads collections.
    Read,
    /// May change collections.
    Write,
}

/// The durability a write requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteConcern {
    /// False for `w: 0`: the client does not wait for the reply.
    pub acknowledged: bool,
    /// False for `j: false`: the reply need not wait for the journal to be synced.
    pub journaled: bool,
}

impl Default for WriteConcern {
    fn default() -> Self {
        Self {
            acknowledged: true,
            journaled: true,
        }
    }
}

/// Checks that are skipped for written documents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bypass {
    /// Validation is skipped (`bypassDocumentValidation`).
    pub validation: bool,
    /// Empty timestamps are kept (`bypassEmptyTsReplacement`).
    pub empty_timestamps: bool,
}

impl Bypass {
    /// Skips all checks.
    pub const ALL: Self = Self {
        validation: true,
        empty_timestamps: true,
    };
}

/// The execution context of one operation.
#[derive(Clone)]
pub struct OperationContext {
    /// The operation number, as in `currentOp` and `killOp`.
    pub id: i32,
    /// The database named by `$db`.
    pub database: String,
    /// The start time of the operation: `$$NOW`, one value for the whole command.
    pub now_ms: i64,
    /// The `comment` of the command.
    pub comment: Option<Value>,
    /// The logical session.
    pub lsid: Option<SessionId>,
    /// The number of a retryable write within its session.
    pub txn_number: Option<i64>,
    /// What a router asks beside the command.
    pub routed: Option<Arc<RoutedRequest>>,
    /// The client.
    pub client: Arc<ClientMetadata>,
    /// The logged-in user.
    pub user: Option<UserName>,
    /// The write concern.
    pub write_concern: WriteConcern,
    /// The stable API of the command.
    pub api: ApiParameters,
    /// `maxTimeMS` of the command; 0 if none.
    pub max_time_ms: i64,
    /// True for `explain`: the plan cache is not used.
    pub is_explain: bool,
    /// Checks that are skipped for written documents.
    pub bypass: Bypass,
    pub(crate) clock: Arc<dyn Clock>,
    /// The deadline by the monotonic clock.
    pub(crate) deadline: Option<Duration>,
    pub(crate) kill: KillSwitch,
    pub(crate) progress: Progress,
    pub(crate) usage: OperationUsage,
    pub(crate) evaluation: EvaluationCounters,
    pub(crate) turn: Turn,
}

impl Interrupt for OperationContext {
    fn check_interrupt(&self) -> Result<()> {
        Self::check_interrupt(self)
    }
}

impl WallClock for OperationContext {
    fn now_ms(&self) -> i64 {
        self.clock.now_ms()
    }
}

impl OperationContext {
    /// Returns the document that a router has made for an upsert.
    pub(crate) fn upserted(&self) -> Option<DocRef<'_>> {
        let routed = self.routed.as_ref()?;
        routed.upserted.as_ref().map(Document::as_ref)
    }

    /// Returns the shard key that an update must not change.
    pub(crate) fn guarded_key(&self) -> Option<&GuardedKey> {
        self.routed.as_ref()?.guarded_key.as_ref()
    }

    /// Returns the document of another partition that an update gives this one.
    pub(crate) fn accepted(&self) -> Option<&AcceptedDocument> {
        self.routed.as_ref()?.accepted.as_ref()
    }

    /// Makes a context for internal work: no deadline, no session.
    pub fn internal(clock: Arc<dyn Clock>, database: &str) -> Self {
        Self {
            id: 0,
            database: database.to_owned(),
            now_ms: clock.now_ms(),
            comment: None,
            lsid: None,
            txn_number: None,
            routed: None,
            client: Arc::default(),
            user: None,
            write_concern: WriteConcern::default(),
            api: ApiParameters::default(),
            max_time_ms: 0,
            is_explain: false,
            bypass: Bypass::default(),
            clock,
            deadline: None,
            kill: KillSwitch::new(),
            progress: Progress::default(),
            usage: OperationUsage::default(),
            evaluation: EvaluationCounters::default(),
            turn: Turn::default(),
        }
    }

    /// Returns the limits of evaluations inside this operation.
    pub fn evaluation_limits(&self) -> EvaluationLimits<'_> {
        EvaluationLimits {
            counters: &self.evaluation,
            interrupt: self,
            clock: Some(self),
        }
    }

    /// Returns the same operation for a helper thread: both end together.
    #[must_use]
    pub fn for_worker(&self) -> Self {
        Self {
            id: self.id,
            now_ms: self.now_ms,
            deadline: self.deadline,
            kill: self.kill.clone(),
            evaluation: self.evaluation.clone(),
            ..Self::internal(Arc::clone(&self.clock), &self.database)
        }
    }

    /// Fails if the operation was killed (the code of the switch) or has exceeded its time limit (code 50).
    /// Costs about as much as reading the clock: call it once per batch, not per value.
    pub fn check_interrupt(&self) -> Result<()> {
        self.check_killed()?;
        if let Some(deadline) = self.deadline
            && self.clock.monotonic() >= deadline
        {
            return Err(Error::new(
                ErrorCode::MaxTimeMSExpired,
                "operation exceeded time limit",
            ));
        }
        Ok(())
    }

    /// Fails if the operation was killed.
    pub(crate) fn check_killed(&self) -> Result<()> {
        match self.kill.reason() {
            Some(reason) => Err(Error::new(reason, interrupt_text(reason))),
            None => Ok(()),
        }
    }

    /// Checks for interrupts, and waits for a turn if the operation is a long query ([`crate::turns`]). A query calls it
    /// between two batches, without locks that others wait for.
    pub fn pace(&self) -> Result<()> {
        self.check_interrupt()?;
        let clock = || self.clock.monotonic();
        self.turn.pace(&clock, &|| self.check_interrupt())
    }

    /// Returns the switch that ends this operation.
    pub fn kill_switch(&self) -> &KillSwitch {
        &self.kill
    }

    /// Returns the progress of this operation.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Returns the usage counters of this operation.
    pub fn usage(&self) -> &OperationUsage {
        &self.usage
    }

    /// Sets the deadline to `time` from now, or removes it.
    pub fn set_time_limit(&mut self, time: Option<Duration>) {
        self.deadline = time.map(|t| self.clock.monotonic().saturating_add(t));
    }

    /// Returns the time until the deadline; `None` if there is none, zero if it has passed.
    pub fn time_left(&self) -> Option<Duration> {
        self.deadline
            .map(|deadline| deadline.saturating_sub(self.clock.monotonic()))
    }

    /// Returns the clock of the database.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }
}

fn interrupt_text(reason: ErrorCode) -> &'static str {
    match reason {
        ErrorCode::InterruptedAtShutdown => "interrupted at shutdown",
        ErrorCode::ClientDisconnect => "operation was interrupted because a client disconnected",
        ErrorCode::CursorKilled => "operation was interrupted because the cursor was killed",
        _ => "operation was interrupted",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nilometer_bson::{array, doc};

    fn sequence(documents: &[Document]) -> Option<DocumentSequence> {
        let bytes: Vec<u8> = documents
            .iter()
            .flat_map(|d| d.as_bytes())
            .copied()
            .collect();
        let span = 0..bytes.len();
        DocumentSequence::new("documents".into(), Arc::new(bytes), span)
    }

    #[test]
    fn a_sequence_returns_its_documents_in_order() {
        let given = [doc! {"a": 1}, doc! {}, doc! {"b": "x"}];
        let found = sequence(&given).expect("well framed");
        let read: Vec<Document> = found.iter().map(DocRef::to_document).collect();
        assert_eq!(read, given);
        assert_eq!(found.len(), 3);
        assert!(found.get(3).is_none());
    }

    #[test]
    fn a_sequence_with_a_cut_document_is_refused() {
        let bytes = doc! {"a": 1}.into_bytes();
        for end in 1..bytes.len() {
            assert!(DocumentSequence::new("d".into(), Arc::new(bytes.clone()), 0..end).is_none());
        }
        let beyond = bytes.len() + 1;
        assert!(DocumentSequence::new("d".into(), Arc::new(bytes), 0..beyond).is_none());
    }

    #[test]
    fn documents_come_from_the_body_as_well() {
        let body = doc! {"insert": "c", "documents": array![doc! {"a": 1}, doc! {"a": 2}]};
        let request = Request::new(body);
        let found = request.documents("insert", "documents").unwrap().unwrap();
        assert_eq!(found.remaining(), 2);
        assert_eq!(found.count(), 2);
        assert!(request.documents("insert", "updates").unwrap().is_none());
        let request = Request::new(doc! {"insert": "c", "documents": array![1]});
        let error = request.documents("insert", "documents").unwrap_err();
        assert_eq!(error.code, ErrorCode::TypeMismatch);
    }

    #[test]
    fn a_kill_switch_and_a_deadline_interrupt() {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        let mut context = OperationContext::internal(clock, "test");
        assert!(context.check_interrupt().is_ok());
        context.set_time_limit(Some(Duration::ZERO));
        let error = context.check_interrupt().unwrap_err();
        assert_eq!(error.code, ErrorCode::MaxTimeMSExpired);
        context.kill_switch().kill(ErrorCode::Interrupted);
        context.kill_switch().kill(ErrorCode::InterruptedAtShutdown);
        let error = context.check_interrupt().unwrap_err();
        assert_eq!(error.code, ErrorCode::Interrupted);
    }
}

//! One operation: the request that asks for it and the circumstances it runs under.
//!
//! A [`Request`] is what came in, already framed: the command document, and the document sequences
//! that a client may send beside it. A sequence of 10,000 documents stays the one buffer it arrived
//! in; only offsets into it are kept, and each document is borrowed when it is looked at.
//!
//! An [`OperationContext`] is what the database adds: the time at which the operation counts as
//! started, its deadline, and the switch that ends it early. Long work calls
//! [`OperationContext::check_interrupt`] once per batch; nothing else stops it.
//!
//! The database has no clock of its own: whoever opens it passes a [`Clock`].

use std::ops::Range;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nilometer_bson::document::Elements;
use nilometer_bson::{DocRef, Document, Value, ValueRef};

use crate::error::{Error, ErrorCode, Result};
use crate::session::{ClientMetadata, SessionId, UserName};

/// Where the database takes the time from.
pub trait Clock: Send + Sync {
    /// Milliseconds since 1970, UTC.
    fn now_ms(&self) -> i64;

    /// Time since a fixed point in the past; never goes back.
    fn monotonic(&self) -> Duration;
}

/// The machine's clock.
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

/// A command and the document sequences sent beside it.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// The command: its first field names it, `$db` names the database.
    pub body: Document,
    /// Fields whose documents were sent apart from the body (`documents`, `updates`, `ops`, …).
    pub sequences: Vec<DocumentSequence>,
}

impl Request {
    /// A request that is a command document alone.
    pub fn new(body: Document) -> Self {
        Self {
            body,
            sequences: Vec::new(),
        }
    }

    /// The command's name as sent: the first field of the body; empty if there is none.
    pub fn command_name(&self) -> &str {
        self.body.iter().next().map_or("", |e| e.name())
    }

    /// The sequence called `name`, if one was sent.
    pub fn sequence(&self, name: &str) -> Option<&DocumentSequence> {
        self.sequences.iter().find(|s| s.name == name)
    }

    /// The documents of the field `name`, whether they came as a sequence or as an array in the
    /// body. `None` if the field is not there at all. An array that holds anything but documents
    /// is error 14, with `command` naming the field in the text.
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

/// Documents that lie one behind the other in a shared buffer.
#[derive(Clone, Debug)]
pub struct DocumentSequence {
    name: String,
    buffer: Arc<Vec<u8>>,
    ranges: Vec<Range<u32>>,
}

impl DocumentSequence {
    /// A sequence called `name` of the documents that fill `buffer[span]` without gaps.
    /// `None` if the span does not hold a whole number of framed documents.
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

    /// The field the documents belong to.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Number of documents.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The document at `index`.
    pub fn get(&self, index: usize) -> Option<DocRef<'_>> {
        document_at(&self.buffer, self.ranges.get(index)?)
    }

    /// The documents in order.
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

/// Walks a [`DocumentSequence`].
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

/// Walks the documents of a field, wherever they were sent.
#[derive(Clone, Debug)]
pub enum Documents<'a> {
    /// Sent as a document sequence.
    Sequence(SequenceIter<'a>),
    /// Sent as an array of documents in the body.
    Array(Elements<'a>),
}

impl Documents<'_> {
    /// How many documents are left; an array is walked for it.
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

/// Ends an operation from outside: `killOp`, a session that is killed, a client that went away,
/// or the shutdown. Copies share the switch; the first reason given stays.
#[derive(Clone, Debug, Default)]
pub struct KillSwitch(Arc<AtomicI32>);

impl KillSwitch {
    /// A switch that is not thrown.
    pub fn new() -> Self {
        Self::default()
    }

    /// Throws the switch with the code the operation shall fail with.
    pub fn kill(&self, reason: ErrorCode) {
        let _ = self
            .0
            .compare_exchange(0, reason.0, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Why the switch was thrown, if it was.
    pub fn reason(&self) -> Option<ErrorCode> {
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            code => Some(ErrorCode(code)),
        }
    }
}

/// How far long work has come, as `currentOp` shows it. Copies share it.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<ProgressState>);

#[derive(Debug, Default)]
struct ProgressState {
    message: OnceLock<String>,
    done: AtomicU64,
    total: AtomicU64,
}

impl Progress {
    /// Names the work and says how much there is; the first name stays.
    pub fn begin(&self, message: &str, total: u64) {
        self.0.message.get_or_init(|| message.to_owned());
        self.0.total.store(total, Ordering::Relaxed);
    }

    /// So much of it is done.
    pub fn advance(&self, by: u64) {
        self.0.done.fetch_add(by, Ordering::Relaxed);
    }

    /// What the work is called, what of it is done, and how much there is; none if it has not begun.
    pub fn now(&self) -> Option<(&str, u64, u64)> {
        let message = self.0.message.get()?;
        let done = self.0.done.load(Ordering::Relaxed);
        Some((message, done, self.0.total.load(Ordering::Relaxed)))
    }
}

/// What an operation looked at and gave, for the profiler and the log of slow ones. Copies share it.
#[derive(Clone, Debug, Default)]
pub struct Usage(Arc<UsageState>);

#[derive(Debug, Default)]
struct UsageState {
    plan: OnceLock<Arc<str>>,
    keys: AtomicU64,
    documents: AtomicU64,
    returned: AtomicU64,
    made: Mutex<Vec<String>>,
}

impl Usage {
    /// A collection came into being, though no command asked for that by name.
    pub fn made(&self, namespace: String) {
        let made = &self.0.made;
        let mut made = made.lock().unwrap_or_else(PoisonError::into_inner);
        made.push(namespace);
    }

    /// The collections that came into being.
    pub fn all_made(&self) -> Vec<String> {
        let made = &self.0.made;
        made.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Says how documents were found; the first word stays.
    pub fn found_by(&self, plan: &Arc<str>) {
        self.0.plan.get_or_init(|| Arc::clone(plan));
    }

    /// So many keys of indexes and so many records or buckets were looked at.
    pub fn examined(&self, keys: u64, documents: u64) {
        self.0.keys.fetch_add(keys, Ordering::Relaxed);
        self.0.documents.fetch_add(documents, Ordering::Relaxed);
    }

    /// So many documents were given to the client.
    pub fn gave(&self, documents: u64) {
        self.0.returned.fetch_add(documents, Ordering::Relaxed);
    }

    /// How documents were found, if any were looked for.
    pub fn plan(&self) -> Option<&str> {
        self.0.plan.get().map(|plan| &**plan)
    }

    /// Keys looked at.
    pub fn keys_examined(&self) -> u64 {
        self.0.keys.load(Ordering::Relaxed)
    }

    /// Records or buckets looked at.
    pub fn documents_examined(&self) -> u64 {
        self.0.documents.load(Ordering::Relaxed)
    }

    /// Documents given.
    pub fn returned(&self) -> u64 {
        self.0.returned.load(Ordering::Relaxed)
    }
}

/// What a command does to data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Neither reads nor writes collections.
    None,
    /// Reads collections.
    Read,
    /// May change collections.
    Write,
}

/// What level of durability and replication a write asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteConcern {
    /// False for `w: 0`: nobody waits for the answer.
    pub acknowledged: bool,
    /// False for `j: false`: the answer need not wait for the journal to be synced.
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

/// What is not done to documents that are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bypass {
    /// The validator is not asked (`bypassDocumentValidation`).
    pub validation: bool,
    /// Empty timestamps stay as they are (`bypassEmptyTsReplacement`).
    pub empty_timestamps: bool,
}

impl Bypass {
    /// Documents are written as they are.
    pub const ALL: Self = Self {
        validation: true,
        empty_timestamps: true,
    };
}

/// The circumstances of one running operation.
#[derive(Clone)]
pub struct OperationContext {
    /// Number of the operation, as `currentOp` shows it and `killOp` takes it.
    pub id: i32,
    /// The database the command names in `$db`.
    pub database: String,
    /// When the operation counts as started: `$$NOW`, one value for the whole command.
    pub now_ms: i64,
    /// The `comment` of the command.
    pub comment: Option<Value>,
    /// The logical session it belongs to.
    pub lsid: Option<SessionId>,
    /// What the client told about itself.
    pub client: Arc<ClientMetadata>,
    /// Who is logged in.
    pub user: Option<UserName>,
    /// What the client asks of its writes.
    pub write_concern: WriteConcern,
    /// `maxTimeMS` as given; 0 is none.
    pub max_time_ms: i64,
    /// The command only tells how it would be done: nothing is taken from the plan cache.
    pub is_explain: bool,
    /// What documents are written without.
    pub bypass: Bypass,
    pub(crate) clock: Arc<dyn Clock>,
    /// Compared with the clock's monotonic time.
    pub(crate) deadline: Option<Duration>,
    pub(crate) kill: KillSwitch,
    pub(crate) progress: Progress,
    pub(crate) usage: Usage,
}

impl OperationContext {
    /// A context for work nobody asked for over a connection: no deadline, no session.
    pub fn internal(clock: Arc<dyn Clock>, database: &str) -> Self {
        Self {
            id: 0,
            database: database.to_owned(),
            now_ms: clock.now_ms(),
            comment: None,
            lsid: None,
            client: Arc::default(),
            user: None,
            write_concern: WriteConcern::default(),
            max_time_ms: 0,
            is_explain: false,
            bypass: Bypass::default(),
            clock,
            deadline: None,
            kill: KillSwitch::new(),
            progress: Progress::default(),
            usage: Usage::default(),
        }
    }

    /// The same operation for a thread that helps with it: what ends the one ends the other.
    #[must_use]
    pub fn for_helper(&self) -> Self {
        Self {
            id: self.id,
            now_ms: self.now_ms,
            deadline: self.deadline,
            kill: self.kill.clone(),
            ..Self::internal(Arc::clone(&self.clock), &self.database)
        }
    }

    /// Fails if the operation was killed (the switch's code) or its time is over (code 50).
    /// Costs about as much as reading the clock: call it once per batch, not per value.
    pub fn check_interrupt(&self) -> Result<()> {
        if let Some(reason) = self.kill.reason() {
            return Err(Error::new(reason, interrupt_text(reason)));
        }
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

    /// The switch that ends this operation.
    pub fn kill_switch(&self) -> &KillSwitch {
        &self.kill
    }

    /// Where long work says how far it is.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Where it is counted what was looked at.
    pub fn usage(&self) -> &Usage {
        &self.usage
    }

    /// Moves the deadline to `time` from now, or takes it away.
    pub fn set_time_limit(&mut self, time: Option<Duration>) {
        self.deadline = time.map(|t| self.clock.monotonic().saturating_add(t));
    }

    /// How long until the deadline; `None` if there is none, zero if it has passed.
    pub fn time_left(&self) -> Option<Duration> {
        self.deadline
            .map(|deadline| deadline.saturating_sub(self.clock.monotonic()))
    }

    /// The clock of the database.
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
    fn a_sequence_gives_its_documents_in_order() {
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
    fn a_thrown_switch_and_a_passed_deadline_interrupt() {
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

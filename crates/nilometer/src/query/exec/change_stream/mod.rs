//! `$changeStream`: the change log as a source of events, and the stages behind it.
//!
//! ```text
//! ChangeLog ─ page ─► EventSource ─ entry by entry ─► events ─► stages ─► StreamOutput ─► cursor
//!                          └──── tokens, and the place up to which the log was read ───────┘
//! ```
//!
//! The stages pass documents on one by one, in order, and keep none. So an event behind them is the next of those that went in
//! with its token, and when the source has nothing more, all before its place was returned or filtered out.

mod bucket_events;
mod events;
mod split;
mod token;

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nilometer_bson::{DocRef, Document, ValueRef};

use self::events::{EventBuilder, EventSources, EventTime};
use self::token::{ResumeToken, TokenKind};
use super::build::Builder;
use super::{BoxOperator, ExecContext, Operator, ROWS_PER_BATCH};
use crate::change_entry::BucketHeader;
use crate::change_entry::{Entries, Entry, LoggedCollection};
use crate::change_log::{ChangeLog, LoggedBatch, StreamScope};
use crate::error::{Error, ErrorCode, Result};
use crate::query::batch::Batch;
use crate::query::pipeline::Stage;
use crate::query::pipeline::change_stream::{ChangeStreamOptions, StreamStart};
use crate::query::source::Collections;

/// Headers of buckets that a stream keeps; the log keeps others for all streams.
const HEADERS_MAX: usize = 500;

/// What a cursor knows of the progress of its stream.
#[derive(Debug)]
pub struct StreamProgress(Mutex<ProgressState>);

#[derive(Debug)]
struct ProgressState {
    /// The token behind all that was read.
    read: Document,
    /// Tokens of events that are among the stages.
    pending: VecDeque<Document>,
    /// No event follows.
    has_ended: bool,
}

impl StreamProgress {
    fn lock(&self) -> MutexGuard<'_, ProgressState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the token by which the stream continues where it has read up to.
    pub fn token(&self) -> Document {
        self.lock().read.clone()
    }
}

/// Returns the operators of a stream.
pub fn open(
    builder: &Builder,
    log: &Arc<ChangeLog>,
    scope: StreamScope,
    options: &ChangeStreamOptions,
    stages: Vec<Stage>,
) -> Result<(BoxOperator, Arc<StreamProgress>)> {
    let from = StreamPlace::of(log, &scope, options)?;
    let progress = Arc::new(StreamProgress(Mutex::new(ProgressState {
        read: from.token,
        pending: VecDeque::new(),
        has_ended: false,
    })));
    let source = EventSource {
        log: Arc::clone(log),
        collections: Arc::clone(&builder.collections),
        scope,
        options: options.clone(),
        next: from.time,
        first: from.event,
        passes_invalidate: from.passes_invalidate,
        batches: VecDeque::new(),
        current: None,
        headers: RefCell::default(),
        progress: Arc::clone(&progress),
    };
    let output = StreamOutput {
        input: builder.over(Box::new(source), stages)?,
        progress: Arc::clone(&progress),
        splits: options.splits,
        resumed: from.fragment,
    };
    Ok((Box::new(output), progress))
}

/// Where a stream begins: an event, and the token before it.
struct StreamPlace {
    time: u64,
    event: u32,
    token: Document,
    /// The invalidate event after the event before it was returned.
    passes_invalidate: bool,
    /// The fragment of the event that was returned last.
    fragment: Option<ResumeToken>,
}

impl StreamPlace {
    /// The place before all events of a time.
    fn before(time: u64) -> Self {
        Self {
            time,
            event: 0,
            token: ResumeToken::after(time.saturating_sub(1)).to_document(),
            passes_invalidate: false,
            fragment: None,
        }
    }

    fn of(log: &ChangeLog, scope: &StreamScope, options: &ChangeStreamOptions) -> Result<Self> {
        match &options.start {
            StreamStart::Now => Ok(Self::before(log.visible() + 1)),
            StreamStart::AtOperationTime(time) => {
                let time = time.to_u64();
                log.read(time, scope)?;
                Ok(Self::before(time))
            }
            StreamStart::ResumeAfter(document) => {
                let token = ResumeToken::parse(document.as_ref())?;
                if token.kind == TokenKind::Invalidate {
                    return Err(Error::new(
                        ErrorCode::InvalidResumeToken,
                        "Attempting to resume a change stream using 'resumeAfter' is not allowed from an invalidate notification",
                    ));
                }
                Self::behind((log, scope), token, document, options)
            }
            StreamStart::StartAfter(document) => {
                let token = ResumeToken::parse(document.as_ref())?;
                Self::behind((log, scope), token, document, options)
            }
        }
    }

    /// The place behind a token, which must be in the log; that of an event, among the changes of `scope`.
    fn behind(
        (log, scope): (&ChangeLog, &StreamScope),
        token: ResumeToken,
        document: &Document,
        options: &ChangeStreamOptions,
    ) -> Result<Self> {
        if token.fragment > 0 && !options.splits {
            return Err(fatal(
                "To resume from a split event, the $changeStream pipeline must include a $changeStreamSplitLargeEvent stage".to_owned(),
            ));
        }
        let (time, event) = match token.kind {
            TokenKind::Time => (token.time.saturating_add(1), 0),
            // The rest of its fragments follows.
            TokenKind::Event if token.fragment > 0 => (token.time, token.event),
            TokenKind::Event | TokenKind::Invalidate => (token.time, token.event.saturating_add(1)),
        };
        let page = log.read(time, &StreamScope::Cluster)?;
        if token.kind != TokenKind::Time {
            let first = page.batches.first().filter(|first| first.time == time);
            let is_there = first.map(|first| concerns(scope, first)).transpose()?;
            if is_there != Some(true) {
                return Err(not_found());
            }
        }
        Ok(Self {
            time,
            event,
            token: document.clone(),
            passes_invalidate: token.kind == TokenKind::Invalidate,
            fragment: Some(token).filter(|token| token.fragment > 0),
        })
    }
}

/// True if the changes of a batch may have events in a stream.
fn concerns(scope: &StreamScope, batch: &LoggedBatch) -> Result<bool> {
    for entry in Entries::new(batch.entries()) {
        let is_concerned = match entry? {
            Entry::Namespace(collection) => scope.is_concerned(collection.name),
            Entry::Rename { to, .. } => scope.is_concerned(to),
            Entry::DropDatabase(name) => scope.is_concerned(name),
            _ => false,
        };
        if is_concerned {
            return Ok(true);
        }
    }
    Ok(false)
}

fn not_found() -> Error {
    fatal("cannot resume stream; the resume token was not found.".to_owned())
}

/// Returns the error after which a stream cannot continue.
fn fatal(text: String) -> Error {
    let mut error = Error::new(ErrorCode::ChangeStreamFatalError, text);
    error.labels.push("NonResumableChangeStreamError");
    error
}

/// The collection of the entries being read.
#[derive(Clone, Debug, Default)]
struct WatchedCollection {
    uuid: [u8; 16],
    name: String,
    time_field: String,
    meta_field: String,
}

impl WatchedCollection {
    fn of(collection: &LoggedCollection<'_>) -> Self {
        Self {
            uuid: collection.uuid,
            name: collection.name.to_owned(),
            time_field: collection.time_field.to_owned(),
            meta_field: collection.meta_field.to_owned(),
        }
    }

    fn get(&self) -> LoggedCollection<'_> {
        LoggedCollection {
            uuid: self.uuid,
            name: &self.name,
            time_field: &self.time_field,
            meta_field: &self.meta_field,
        }
    }
}

/// A batch of which some entries were read.
struct CurrentBatch {
    batch: LoggedBatch,
    /// Bytes of the entries that were read.
    read: usize,
    /// The number of the next event.
    number: u32,
    collection: WatchedCollection,
    /// `{lsid, txnNumber}`, if it is the commit of a transaction.
    transaction: Option<Document>,
}

/// Headers of buckets by collection and bucket.
type KnownHeaders = HashMap<([u8; 16], [u8; 12]), Arc<BucketHeader>>;

/// Reads the log.
struct EventSource {
    log: Arc<ChangeLog>,
    collections: Arc<dyn Collections>,
    scope: StreamScope,
    options: ChangeStreamOptions,
    /// The time from which to read on.
    next: u64,
    /// The first event to return of the first batch.
    first: u32,
    /// An invalidate event before that was returned already.
    passes_invalidate: bool,
    batches: VecDeque<LoggedBatch>,
    current: Option<CurrentBatch>,
    headers: RefCell<KnownHeaders>,
    progress: Arc<StreamProgress>,
}

/// Answers what the events of one batch need.
struct BatchSources<'s> {
    source: &'s EventSource,
    batch: &'s LoggedBatch,
}

impl EventSources for BatchSources<'_> {
    fn header(
        &self,
        uuid: [u8; 16],
        bucket: [u8; 12],
        columns: usize,
    ) -> Result<Arc<BucketHeader>> {
        let mut known = self.source.headers.borrow_mut();
        if let Some(header) = known.get(&(uuid, bucket))
            && header.names.len() >= columns
        {
            return Ok(Arc::clone(header));
        }
        let header = self
            .source
            .log
            .header(self.batch, (uuid, bucket), columns)?;
        if known.len() >= HEADERS_MAX {
            known.clear();
        }
        known.insert((uuid, bucket), Arc::clone(&header));
        Ok(header)
    }

    fn look_up(&self, name: &str, key: DocRef<'_>) -> Result<Option<Document>> {
        let (database, collection) = name.split_once('.').unwrap_or((name, ""));
        let collections = &self.source.collections;
        collections.find_by_id(database, collection, key.get("_id"))
    }
}

impl EventSource {
    /// Takes the next batch; false if there is none yet.
    fn next_batch(&mut self) -> Result<bool> {
        if self.batches.is_empty() {
            let page = self.log.read(self.next, &self.scope)?;
            self.next = page.up_to.max(self.next - 1) + 1;
            self.batches = page.batches.into();
        }
        let Some(batch) = self.batches.pop_front() else {
            return Ok(false);
        };
        self.current = Some(CurrentBatch {
            batch,
            read: 0,
            number: 0,
            collection: WatchedCollection::default(),
            transaction: None,
        });
        Ok(true)
    }

    /// Reads entries of the current batch until there are enough events. Returns them, and true if the stream ends.
    fn read(&self, current: &mut CurrentBatch) -> Result<(Vec<(Document, Document)>, bool)> {
        let bytes = current.batch.entries();
        let mut entries = Entries::new(bytes.get(current.read..).unwrap_or_default());
        let sources = BatchSources {
            source: self,
            batch: &current.batch,
        };
        let at = EventTime {
            time: current.batch.time,
            wall_ms: current.batch.wall_ms,
        };
        let mut made = EventBuilder::new(&self.scope, &self.options, at, current.number);
        made.first = self.first;
        made.passes_invalidate = self.passes_invalidate;
        made.has_images = self.log.shows_images_of(at.wall_ms);
        made.transaction = current.transaction.take();
        // A document before a change belongs to the entry behind it.
        while (made.events.len() < ROWS_PER_BATCH || made.before.is_some()) && !made.is_invalid {
            let Some(entry) = entries.next().transpose()? else {
                break;
            };
            if let Entry::Namespace(collection) = &entry {
                current.collection = WatchedCollection::of(collection);
            }
            made.entry(&current.collection.get(), &entry, &sources)?;
        }
        current.number = made.number;
        current.transaction = made.transaction.take();
        let (events, is_invalid) = (made.events, made.is_invalid);
        current.read = bytes.len() - entries.rest().len();
        Ok((events, is_invalid))
    }
}

impl Operator for EventSource {
    fn next(&mut self, cx: &ExecContext<'_>) -> Result<Option<Batch>> {
        if self.progress.lock().has_ended {
            return Ok(None);
        }
        cx.operation.check_interrupt()?;
        if self.current.is_none() && !self.next_batch()? {
            let token = ResumeToken::after(self.next - 1);
            self.progress.lock().read = token.to_document();
            return Ok(None);
        }
        let Some(mut current) = self.current.take() else {
            return Ok(None);
        };
        let (events, has_ended) = self.read(&mut current)?;
        match current.read < current.batch.entries().len() {
            true => self.current = Some(current),
            false => (self.first, self.passes_invalidate) = (0, false),
        }
        let mut progress = self.progress.lock();
        progress.has_ended = has_ended;
        let mut rows = Vec::with_capacity(events.len());
        for (token, event) in events {
            progress.read = token.clone();
            progress.pending.push_back(token);
            rows.push(event);
        }
        Ok(Some(Batch::Rows(rows)))
    }

    fn is_exhausted(&self) -> bool {
        self.progress.lock().has_ended
    }
}

/// Checks that the stages have left the tokens of events as they are, and splits events that are too large.
struct StreamOutput {
    input: BoxOperator,
    progress: Arc<StreamProgress>,
    splits: bool,
    /// The fragment up to which the first event was returned.
    resumed: Option<ResumeToken>,
}

impl StreamOutput {
    fn check(&self, rows: &[Document]) -> Result<()> {
        let mut progress = self.progress.lock();
        for row in rows {
            let expected = progress.pending.front().cloned().unwrap_or_default();
            let found = row.get("_id");
            loop {
                let Some(token) = progress.pending.pop_front() else {
                    return Err(modified(&expected, found));
                };
                if found
                    .as_document()
                    .is_some_and(|id| id.as_bytes() == token.as_bytes())
                {
                    break;
                }
            }
        }
        Ok(())
    }
}

fn modified(expected: &Document, found: ValueRef<'_>) -> Error {
    let json = |document: DocRef<'_>| nilometer_bson::extjson::to_relaxed(document);
    let mut shown = nilometer_bson::DocumentBuilder::new();
    shown.append_ref("_id", found);
    fatal(format!(
        "Encountered an event whose _id field, which contains the resume token, was modified by the pipeline. Modifying the _id field of an event makes it impossible to resume the stream from that point. Only transformations that retain the unmodified _id field are allowed. Expected: {} but found: {}",
        json(nilometer_bson::doc! {"_id": expected.clone()}.as_ref()),
        json(shown.finish().as_ref()),
    ))
}

impl Operator for StreamOutput {
    fn next(&mut self, cx: &ExecContext<'_>) -> Result<Option<Batch>> {
        let Some(batch) = self.input.next(cx)? else {
            return Ok(None);
        };
        let rows = batch.into_rows()?;
        self.check(&rows)?;
        let is_large = |row: &Document| row.as_bytes().len() > split::EVENT_BYTES_MAX;
        if self.resumed.is_none() && !rows.iter().any(is_large) {
            return Ok(Some(Batch::Rows(rows)));
        }
        let mut out = Vec::with_capacity(rows.len());
        for row in rows {
            let after = self.resumed.take();
            if after.is_none() && !is_large(&row) {
                out.push(row);
                continue;
            }
            if !self.splits {
                return Err(split::too_large(&row));
            }
            let fragments = split::fragments(&row)?;
            let passed = match after {
                None => 0,
                Some(after) => split::passed(&row, after, fragments.len()).ok_or_else(not_found)?,
            };
            out.extend(fragments.into_iter().skip(passed));
        }
        Ok(Some(Batch::Rows(out)))
    }

    fn is_exhausted(&self) -> bool {
        self.input.is_exhausted()
    }
}

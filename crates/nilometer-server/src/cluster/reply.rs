//! The reply to a command for a unit, which may have to be found first, and may move meanwhile.
//!
//! ```text
//! looking ── the unit is here ──► a thread runs it ─────────────┬──► the reply
//!    ▲   └── at HOST:PORT ──► sent ── reads its connection ─────┤
//!    └───────────── it was not there: nothing has run ──────────┘
//! ```
//!
//! A command of which it is unknown whether it ran is sent again only if it is the begin of a read. Any other fails with code 6;
//! a write with a number then tells its driver to repeat it.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use nilometer::router::{PendingReply, message_to};
use nilometer::{Error, ErrorCode, Request, Result};
use nilometer_bson::{Document, DocumentBuilder};

use super::connection::unreachable;
use super::pool::PooledConnection;
use super::{Nodes, Place, Pool, Unit};

/// Longest wait for a process that has the unit: longer than the silence after which another takes it over, and its opening.
const OWNER_WAIT_MAX: Duration = Duration::from_secs(20);

/// Interval between two looks for the process.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The field of an error that says that nothing has run.
const NOT_HERE: &str = "notHere";

/// Codes of a process that loses a unit, or ends, while it runs a command.
const OF_LOSS: [ErrorCode; 4] = [
    ErrorCode::NotWritablePrimary,
    ErrorCode::NotPrimaryOrSecondary,
    ErrorCode::InterruptedAtShutdown,
    ErrorCode::ShutdownInProgress,
];

/// Returns the details of the error of a process that does not have a unit.
pub(super) fn not_here_details() -> Document {
    let mut out = DocumentBuilder::new();
    out.append(NOT_HERE, true);
    out.finish()
}

/// Sends a command to a unit, wherever it is. Does not wait for the reply.
pub(crate) fn send(nodes: &Arc<Nodes>, unit: &str, request: Request) -> Box<dyn PendingReply> {
    let is_read = request
        .routed
        .as_ref()
        .is_some_and(|routed| routed.part.is_some());
    let mut reply = NodeReply {
        nodes: Arc::clone(nodes),
        unit: unit.to_owned(),
        request: Arc::new(request),
        is_read,
        began: Instant::now(),
        state: State::Looking,
        last_error: None,
    };
    reply.look();
    Box::new(reply)
}

struct NodeReply {
    nodes: Arc<Nodes>,
    unit: String,
    request: Arc<Request>,
    /// True if the command may run twice.
    is_read: bool,
    began: Instant,
    state: State,
    /// Why the last try failed.
    last_error: Option<Error>,
}

enum State {
    Looking,
    Here(Receiver<Document>),
    Sent(Box<PooledConnection>),
}

impl NodeReply {
    /// Sends the command to where the unit is now, if that is known.
    fn look(&mut self) {
        let tried = match self.nodes.directory.place(&self.unit) {
            Place::Here(unit) => self.run_here(unit).map(Some),
            Place::At(address) => self.send_to(&address),
            Place::Unknown => Ok(None),
        };
        match tried {
            Ok(Some(state)) => self.state = state,
            Ok(None) => {}
            Err(error) => self.last_error = Some(error),
        }
    }

    fn run_here(&self, unit: Arc<dyn Unit>) -> Result<State> {
        let (sender, receiver) = sync_channel(1);
        let request = Arc::clone(&self.request);
        let run = move || {
            // The router may have stopped waiting.
            let _ = sender.send(unit.run(&request));
        };
        self.nodes.threads.run(run).map_err(|error| {
            Error::new(
                ErrorCode::InternalError,
                format!("cannot start a thread: {error}"),
            )
        })?;
        Ok(State::Here(receiver))
    }

    fn send_to(&self, address: &str) -> Result<Option<State>> {
        let Some(mut connection) = Pool::take(&self.nodes, address)? else {
            return Ok(None);
        };
        let message = message_to(&self.unit, &self.request);
        let sent = connection.get()?.send(&message, &self.request.sequences);
        match sent {
            Ok(()) => Ok(Some(State::Sent(Box::new(connection)))),
            // A message that is not whole does not run.
            Err(error) => {
                let error = unreachable(address, &error.to_string());
                connection.close();
                Err(error)
            }
        }
    }

    /// Waits a moment for the reply of the present try; `None` if there is none yet.
    fn poll(&mut self, at_most: Duration) -> Result<Option<Document>> {
        let lost = match &mut self.state {
            State::Looking => {
                std::thread::sleep(at_most.min(LOOK_AGAIN));
                self.look();
                return Ok(None);
            }
            State::Here(receiver) => match receiver.recv_timeout(at_most) {
                Ok(reply) => return self.take(reply),
                Err(RecvTimeoutError::Timeout) => return Ok(None),
                Err(RecvTimeoutError::Disconnected) => Error::new(
                    ErrorCode::InternalError,
                    "the partition did not run the command",
                ),
            },
            State::Sent(connection) => match connection.get()?.receive(at_most) {
                Ok(None) => return Ok(None),
                Ok(Some(reply)) => return self.take(reply),
                Err(error) => unreachable(connection.address(), &error.to_string()),
            },
        };
        if let State::Sent(connection) = std::mem::replace(&mut self.state, State::Looking) {
            connection.close();
        }
        self.lose(lost)
    }

    /// Takes a reply, unless it says that another process has the unit.
    fn take(&mut self, reply: Document) -> Result<Option<Document>> {
        // Dropped, the connection is idle again.
        self.state = State::Looking;
        let code = reply.get("code").as_exact_i64();
        let code = code
            .and_then(|code| i32::try_from(code).ok())
            .map(ErrorCode);
        if !code.is_some_and(|code| OF_LOSS.contains(&code)) {
            return Ok(Some(reply));
        }
        let text = reply.get("errmsg").as_str().unwrap_or_default();
        let error = Error::new(ErrorCode::HostUnreachable, format!("{}: {text}", self.unit));
        if !reply.get(NOT_HERE).is_missing() {
            self.last_error = Some(error);
            std::thread::sleep(LOOK_AGAIN / 4);
            return Ok(None);
        }
        self.lose(error)
    }

    /// Begins again if the command may run twice, and fails if not.
    fn lose(&mut self, error: Error) -> Result<Option<Document>> {
        if !self.is_read {
            return Err(error);
        }
        self.last_error = Some(error);
        Ok(None)
    }
}

impl PendingReply for NodeReply {
    fn wait(&mut self, at_most: Duration) -> Result<Option<Document>> {
        let until = Instant::now() + at_most;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if let Some(reply) = self.poll(left)? {
                return Ok(Some(reply));
            }
            let is_looking = matches!(self.state, State::Looking);
            if is_looking && self.began.elapsed() >= OWNER_WAIT_MAX {
                return Err(self.last_error.take().unwrap_or_else(|| {
                    let text = format!("no process has {} at the moment", self.unit);
                    Error::new(ErrorCode::HostUnreachable, text)
                }));
            }
            if Instant::now() >= until {
                return Ok(None);
            }
        }
    }
}

impl Drop for NodeReply {
    fn drop(&mut self) {
        // Its reply would be taken for that of the next command.
        if let State::Sent(connection) = std::mem::replace(&mut self.state, State::Looking) {
            connection.close();
        }
    }
}

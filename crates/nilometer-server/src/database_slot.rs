//! The database that a server serves, which another may replace: a secondary reads newer contents, and becomes primary.
//!
//! A read of a secondary may name a time of the set after which it wants to read (`readConcern.afterClusterTime`): what the client
//! has seen elsewhere must be there. What was acknowledged is durable, so a view shows it if it was opened after the request came.
//! Times of views are not compared with it: writes become durable in another order than that of their times.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use nilometer::services::Services;
use nilometer::{Database, Error, ErrorCode, Request};
use nilometer_bson::Document;

/// Longest wait for a view that shows what a request asks for.
const VIEW_WAIT_MAX: Duration = Duration::from_secs(30);

/// Longest wait between two checks whether the connection ends.
const CHECK_EVERY: Duration = Duration::from_millis(50);

/// The place of the database. Clones share it.
#[derive(Clone)]
pub struct DatabaseSlot {
    current: Arc<RwLock<Arc<Database>>>,
    /// Those of all databases that are ever in the place.
    services: Arc<Services>,
    views: Arc<ViewTimes>,
    /// What other nodes of a cluster ask, if this process belongs to one.
    node: Arc<OnceLock<Box<dyn NodeRequests>>>,
}

/// What a node of a cluster does for its connections.
pub trait NodeRequests: Send + Sync {
    /// Runs a command of another node in a database of this one, by its name. Fails if it is not here; then nothing has run.
    fn run(&self, unit: &str, request: &Request) -> Result<Document, Error>;

    /// Waits until the router shows the catalog of the cluster as it was when the call began.
    fn catch_up(&self) -> Result<(), Error>;
}

/// What is known of the views in the place.
#[derive(Default)]
struct ViewTimes {
    state: Mutex<ViewTimesState>,
    changed: Condvar,
    /// Requests a look for newer contents.
    look: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

#[derive(Default)]
struct ViewTimesState {
    /// The view shows all that was durable then.
    looked_at: Option<Instant>,
    /// Clients that have seen this time have waited for the view.
    shown: u64,
}

impl ViewTimes {
    fn lock(&self) -> MutexGuard<'_, ViewTimesState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl From<Arc<Database>> for DatabaseSlot {
    fn from(database: Arc<Database>) -> Self {
        Self {
            services: Arc::clone(database.services()),
            current: Arc::new(RwLock::new(database)),
            views: Arc::default(),
            node: Arc::default(),
        }
    }
}

impl DatabaseSlot {
    /// Returns the database. A command runs to its end on the one with which it began.
    pub fn current(&self) -> Arc<Database> {
        let current = self.current.read();
        Arc::clone(&current.unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the database for a request: on a secondary a view that shows what the client has seen, for which it waits. Code 262
    /// after 30 seconds, and 50 after the request's `maxTimeMS`. `is_ending` ends the wait.
    pub fn current_for(
        &self,
        request: &Request,
        is_ending: &dyn Fn() -> bool,
    ) -> Result<Arc<Database>, Error> {
        let database = self.current();
        if let Some(node) = self.node()
            && database.asks_for_new_catalog(request)
        {
            node.catch_up()?;
            return Ok(self.current());
        }
        match request.after_cluster_time() {
            Some(time) if database.is_view() => self.wait_for_view(request, time, is_ending),
            _ => Ok(database),
        }
    }

    fn wait_for_view(
        &self,
        request: &Request,
        time: u64,
        is_ending: &dyn Fn() -> bool,
    ) -> Result<Arc<Database>, Error> {
        let asked = Instant::now();
        let limit = request.body.get("maxTimeMS").as_exact_i64();
        let limit = limit.and_then(|ms| u64::try_from(ms).ok());
        let limit = limit.filter(|ms| *ms > 0).map(Duration::from_millis);
        let until = asked + limit.unwrap_or(VIEW_WAIT_MAX).min(VIEW_WAIT_MAX);
        if self.views.lock().shown < time
            && let Some(look) = self.views.look.get()
        {
            look();
        }
        let mut state = self.views.lock();
        loop {
            if state.looked_at.is_some_and(|looked_at| looked_at >= asked) {
                state.shown = state.shown.max(time);
            }
            let database = self.current();
            if state.shown >= time || !database.is_view() || is_ending() {
                return Ok(database);
            }
            if Instant::now() >= until {
                return Err(too_late(limit.is_some_and(|limit| limit <= VIEW_WAIT_MAX)));
            }
            let waited = self.views.changed.wait_timeout(state, CHECK_EVERY);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Returns what other nodes of the cluster ask; `None` if this process belongs to no cluster.
    pub fn node(&self) -> Option<&dyn NodeRequests> {
        self.node.get().map(|node| &**node)
    }

    /// Makes the process a node; only the first call does.
    pub fn set_node(&self, node: impl NodeRequests + 'static) {
        drop(self.node.set(Box::new(node)));
    }

    /// Returns the services.
    pub fn services(&self) -> &Arc<Services> {
        &self.services
    }

    /// Replaces the database by a successor of it.
    pub fn replace(&self, successor: Arc<Database>) {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *current, successor);
        drop(current);
        if before.is_view() {
            return;
        }
        // One that wrote stores what it has in memory when it is dropped. Neither the next views nor a takeover wait for that.
        let thread = std::thread::Builder::new().name("database end".into());
        // Without a thread it is dropped here.
        drop(thread.spawn(move || drop(before)));
    }

    /// Notes that the view in the place shows all that was durable at `began`, when a look for newer contents began.
    pub fn note_look(&self, began: Instant) {
        let mut state = self.views.lock();
        state.looked_at = state.looked_at.max(Some(began));
        drop(state);
        self.views.changed.notify_all();
    }

    /// Sets what requests a look for newer contents; only the first call does.
    pub fn set_look(&self, look: impl Fn() + Send + Sync + 'static) {
        drop(self.views.look.set(Box::new(look)));
    }
}

fn too_late(is_over_limit: bool) -> Error {
    match is_over_limit {
        true => Error::new(ErrorCode::MaxTimeMSExpired, "operation exceeded time limit"),
        false => Error::new(
            ErrorCode::ExceededTimeLimit,
            "what readConcern.afterClusterTime asks for is not readable here yet",
        ),
    }
}

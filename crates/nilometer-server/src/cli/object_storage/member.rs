//! A server among those of one database on object storage: one writes, the others read and stand by.
//!
//! ```text
//! waiting ── its turn to write ──► writing ── step-down, shutdown, another server has taken over ──► waiting
//!    │ a thread replaces the served view when there is a newer one       │ heartbeats
//!    └ the main thread looks at the claims                               └ the main thread updates the members
//! ```
//!
//! The database in the slot is a view while the server waits, and the writer's when it writes. Both have the same services, so
//! clients stay connected. A server that never writes (`--readOnly`) waits all the time. One that was paused while another
//! took over is fenced by the engine; it drops its own and waits again.

use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nilometer::Database;
use nilometer::operation::{Clock, SystemClock};
use nilometer::services::{Environment, MemberRole, OtherMember, ReplicaSet, StepDown};
use nilometer_cluster::{
    Claim, ClaimIntervals, Claimant, Look, MemberReport, Presence, SlateEngine, SlateOptions,
    SlateReader, StorageUrl,
};
use tracing::{info, warn};

use super::with_cluster::prefetch;
use crate::cli::Failure;
use crate::cli::replica_set::{interrupt_writes, no_electable, not_primary};
use crate::database_slot::DatabaseSlot;

/// Interval at which a server says that it is there, and looks for others.
const PRESENCE_INTERVAL: Duration = Duration::from_secs(5);

/// A database on object storage, and how this server takes part in it.
pub(super) struct MemberOptions {
    pub(super) url: StorageUrl,
    pub(super) slate: SlateOptions,
    /// The directory for queries that spill.
    pub(super) spill: PathBuf,
    /// True if the server never writes.
    pub(super) is_passive: bool,
    /// Interval at which newer contents are looked for.
    pub(super) read_interval: Duration,
}

/// A server among those of one database.
pub(in crate::cli) struct Member {
    options: MemberOptions,
    set: Arc<ReplicaSet>,
    slot: DatabaseSlot,
    presence: Presence,
    views: Views,
    turn: Turn,
    /// The last write of the writer, for its heartbeats.
    last_write_ms: Arc<AtomicI64>,
    next_look: Instant,
    /// Until when it does not take over, after a step-down.
    waits_until: Option<Instant>,
}

/// Whose turn it is to write.
enum Turn {
    Other(Claimant),
    Own(Claim, Arc<SlateEngine>),
}

fn claimant(
    options: &MemberOptions,
    host: &str,
    last: &Arc<AtomicI64>,
) -> Result<Claimant, Failure> {
    let claimant = options.url.claimant(ClaimIntervals::default());
    let claimant = claimant.map_err(|error| failure(&options.url, &error))?;
    Ok(claimant.at(host, Arc::clone(last)))
}

fn failure(url: &StorageUrl, error: &dyn std::fmt::Display) -> Failure {
    Failure::Other(format!("cannot open {url}: {error}"))
}

impl Member {
    /// Joins the servers of the database: opens it to write if it is the turn of this server, else to read. `None` if
    /// `is_ended` says so while there is neither.
    // long function: the parts of a member, each from the ones before
    pub(super) fn join(
        mut options: MemberOptions,
        environment: Environment,
        set: Arc<ReplicaSet>,
        is_ended: &dyn Fn() -> bool,
    ) -> Result<Option<(DatabaseSlot, Self)>, Failure> {
        if !options.is_passive {
            let slate = options.url.probed(options.slate.clone());
            options.slate = slate.map_err(|error| failure(&options.url, &error))?;
        }
        let last_write_ms = Arc::<AtomicI64>::default();
        let mut claimant = claimant(&options, set.me(), &last_write_ms)?;
        let reader = options.url.reader(&options.slate);
        let mut reader = reader.map_err(|error| failure(&options.url, &error))?;
        options.slate.disk_cache = reader.disk_cache();
        set.update(|state| {
            state.is_passive = options.is_passive;
            state.read_interval_ms = millis(options.read_interval);
        });
        let (database, turn) = loop {
            if is_ended() {
                return Ok(None);
            }
            let looked = claimant.look(!options.is_passive);
            if let Ok(Look {
                claimed: Some(turn),
                ..
            }) = looked
            {
                let claim = claimant.begin(turn);
                let Some(engine) = open_to_write(&options, &claim)? else {
                    claimant = self::claimant(&options, set.me(), &last_write_ms)?;
                    continue;
                };
                let spill = &options.spill;
                let opened = Database::with_engine_and_spill(engine.clone(), environment, spill);
                let opened = opened.map_err(|error| failure(&options.url, &error.message))?;
                prefetch(&opened, options.slate.cache_path.as_deref());
                claim.note_open();
                become_primary(&set, &opened, engine.epoch());
                break (opened, Turn::Own(claim, engine));
            }
            match reader.refresh() {
                Ok(Some(view)) => {
                    let spill = &options.spill;
                    let opened =
                        Database::with_engine_and_spill(Arc::new(view), environment, spill);
                    let opened = opened.map_err(|error| failure(&options.url, &error.message))?;
                    prefetch(&opened, options.slate.cache_path.as_deref());
                    break (opened, Turn::Other(claimant));
                }
                Ok(None) => {}
                Err(error) if options.is_passive => {
                    return Err(failure(&options.url, &error));
                }
                // Another server has the turn, and creates the database.
                Err(_) => {}
            }
            std::thread::sleep(claimant.look_interval());
        };
        let own = MemberReport {
            host: set.me().to_owned(),
            is_passive: options.is_passive,
            last_write_ms: 0,
            since_ms: SystemClock::default().now_ms(),
        };
        let presence = options.url.presence(own, PRESENCE_INTERVAL);
        let presence = presence.map_err(|error| failure(&options.url, &error))?;
        let slot = DatabaseSlot::from(Arc::new(database));
        let views = Views::start(reader, &options, slot.clone(), set.clone());
        let views = views.map_err(|error| failure(&options.url, &error))?;
        let mut member = Self {
            options,
            set,
            slot: slot.clone(),
            presence,
            views,
            turn,
            last_write_ms,
            next_look: Instant::now(),
            waits_until: None,
        };
        if matches!(member.turn, Turn::Other(_)) {
            info!(
                c = "STORAGE",
                id = 22_433,
                "Standing by: reading what another server writes"
            );
            member.views.resume(false);
            member.tick();
        }
        Ok(Some((slot, member)))
    }

    /// Returns when [`Self::tick`] has something to do.
    pub(in crate::cli) fn due(&self) -> Instant {
        self.next_look
    }

    /// Looks at the other servers, and takes over if it is time.
    pub(in crate::cli) fn tick(&mut self) {
        self.next_look = Instant::now() + ClaimIntervals::default().look;
        let may_claim = !self.options.is_passive
            && self.waits_until.is_none_or(|until| Instant::now() >= until);
        let look = match &mut self.turn {
            Turn::Own(..) => {
                let last = self.set.last_write_ms();
                self.last_write_ms.fetch_max(last, Ordering::Relaxed);
                None
            }
            Turn::Other(claimant) => match claimant.look(may_claim) {
                Ok(look) => Some(look),
                // The store is asked again at the next look.
                Err(_) => return,
            },
        };
        let turn = look.as_ref().and_then(|look| look.claimed);
        self.show_members(look.as_ref());
        if let Some(turn) = turn {
            self.take_over(turn);
        }
    }

    /// Shows clients who is there.
    fn show_members(&self, look: Option<&Look>) {
        let now_ms = self.slot.services().clock.now_ms();
        let writer = look.and_then(|look| look.writer.clone());
        let mut others: Vec<OtherMember> = Vec::new();
        for seen in self.presence.others() {
            let is_primary = writer.as_ref() == Some(&seen.report.host);
            others.push(OtherMember {
                role: match is_primary {
                    true => MemberRole::Primary,
                    false => MemberRole::Secondary,
                },
                host: seen.report.host,
                is_passive: seen.report.is_passive,
                last_write_ms: seen.report.last_write_ms,
                seen_ms: seen.seen_ms,
            });
        }
        if let (Some(look), Some(writer)) = (look, &writer)
            && writer != self.set.me()
        {
            others.retain(|other| other.host != *writer);
            others.push(OtherMember {
                host: writer.clone(),
                role: MemberRole::Primary,
                is_passive: false,
                last_write_ms: look.last_write_ms,
                seen_ms: now_ms,
            });
            self.views.note_writer(look.last_write_ms);
        }
        others.retain(|other| other.host != self.set.me());
        others.sort_by(|a, b| a.host.cmp(&b.host));
        self.set.update(|state| {
            state.others = others;
            if look.is_some() {
                state.primary = writer.filter(|writer| writer != self.set.me());
            }
        });
        self.presence.set_last_write(self.set.state().last_write_ms);
    }

    fn take_over(&mut self, turn: (u64, Instant)) {
        let term = turn.0;
        info!(c = "STORAGE", id = 22_434, term, "Taking over the database");
        let other = match claimant(&self.options, self.set.me(), &self.last_write_ms) {
            Ok(claimant) => Turn::Other(claimant),
            // The term is given up by silence.
            Err(_) => return,
        };
        let Turn::Other(claimant) = std::mem::replace(&mut self.turn, other) else {
            return;
        };
        let claim = claimant.begin(turn);
        self.views.pause();
        match self.open_successor(&claim) {
            Ok((database, engine)) => {
                self.slot.replace(database.clone());
                claim.note_open();
                become_primary(&self.set, &database, engine.epoch());
                self.turn = Turn::Own(claim, engine);
                info!(
                    c = "REPL",
                    id = 21_331,
                    term,
                    "Transition to primary complete"
                );
                // Writers do not wait for it.
                prefetch(&database, self.options.slate.cache_path.as_deref());
            }
            Err(problem) => {
                warn!(c = "STORAGE", id = 22_436, error = %problem, "Taking over failed; standing by again");
                drop(claim);
                self.views.resume(false);
            }
        }
    }

    /// Opens the database to write it in place of the view that is served.
    fn open_successor(&self, claim: &Claim) -> Result<(Arc<Database>, Arc<SlateEngine>), Failure> {
        let url = &self.options.url;
        let engine = open_to_write(&self.options, claim)?;
        let engine = engine.ok_or_else(|| failure(url, &"another server has taken it over"))?;
        let database = self.slot.current().successor(engine.clone());
        let database = database.map_err(|error| failure(url, &error.message))?;
        Ok((Arc::new(database), engine))
    }

    /// Waits again, if another server has taken over the database that this one wrote. False if this server cannot.
    pub(in crate::cli) fn stand_by_again(&mut self) -> bool {
        match &self.turn {
            Turn::Own(_, engine) if engine.is_fenced() => {}
            // A database that was replaced meanwhile has said so.
            Turn::Own(..) | Turn::Other(_) => return true,
        }
        let Ok(next) = claimant(&self.options, self.set.me(), &self.last_write_ms) else {
            return false;
        };
        self.set.update(|state| {
            state.role = MemberRole::Recovering;
            state.primary = None;
        });
        let database = self.slot.current();
        interrupt_writes(&database);
        // They read what this server had in memory, and would keep the engine.
        database.end_cursors();
        self.turn = Turn::Other(next);
        info!(
            c = "REPL",
            id = 21_580,
            "Standing by again: another server writes"
        );
        self.views.resume(true);
        true
    }

    /// Hands over, if another server can write, and reads from now on.
    pub(in crate::cli) fn step_down(&mut self, how: StepDown) -> nilometer::Result<()> {
        if matches!(self.turn, Turn::Other(_)) {
            return Err(not_primary());
        }
        // Every member that may write reads what this one has stored, so it has caught up when it opens the database.
        let can_follow = |other: &OtherMember| !other.is_passive;
        if !how.force && !self.set.state().others.iter().any(can_follow) {
            return Err(no_electable());
        }
        let next = claimant(&self.options, self.set.me(), &self.last_write_ms);
        let next = next.map_err(|problem| {
            nilometer::Error::new(nilometer::ErrorCode::OperationFailed, problem.to_string())
        })?;
        self.hand_over(next);
        self.waits_until = Some(Instant::now() + how.time);
        info!(
            c = "REPL",
            id = 21_579,
            seconds = how.time.as_secs(),
            "Stepped down"
        );
        self.views.resume(true);
        Ok(())
    }

    /// Closes the database and lets another server open it, if this one writes.
    fn hand_over(&mut self, next: Claimant) {
        let turn = std::mem::replace(&mut self.turn, Turn::Other(next));
        let Turn::Own(claim, engine) = turn else {
            return;
        };
        self.set.update(|state| {
            state.role = MemberRole::Recovering;
            state.primary = None;
        });
        let database = self.slot.current();
        interrupt_writes(&database);
        claim.fall_silent();
        let handed_over = database.hand_over();
        drop(engine);
        if let Err(problem) = handed_over {
            warn!(c = "STORAGE", id = 22_430, error = %problem, "Closing the database failed");
        }
        if let Err(problem) = claim.release() {
            warn!(c = "STORAGE", id = 22_435, error = %problem, "Others wait for the silence of this server");
        }
    }

    /// Leaves: another server may write at once.
    pub(in crate::cli) fn end(mut self) {
        if let Ok(next) = claimant(&self.options, self.set.me(), &self.last_write_ms) {
            self.hand_over(next);
        }
        self.views.pause();
        self.presence.end();
    }
}

/// Opens the database to write it; `None` if it is the turn of another server by now.
fn open_to_write(
    options: &MemberOptions,
    claim: &Claim,
) -> Result<Option<Arc<SlateEngine>>, Failure> {
    let engine = options.url.open_in_turn(&options.slate, claim);
    let engine = engine.map_err(|error| failure(&options.url, &error))?;
    Ok(engine.map(Arc::new))
}

fn become_primary(set: &ReplicaSet, database: &Database, term: u64) {
    let now_ms = database.services().clock.now_ms();
    let me = set.me().to_owned();
    set.update(|state| {
        state.role = MemberRole::Primary;
        state.primary = Some(me);
        state.term = term;
        state.elected_ms = now_ms;
        state.last_write_ms = state.last_write_ms.max(now_ms);
    });
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

/// The thread that keeps the served view new, while the server does not write.
struct Views {
    shared: Arc<ViewsState>,
    commands: Sender<ViewsCommand>,
    thread: Option<JoinHandle<()>>,
}

struct ViewsState {
    slot: DatabaseSlot,
    set: Arc<ReplicaSet>,
    interval: Duration,
    /// True while views are served. Locked while one is put into the slot.
    is_active: Mutex<bool>,
    /// The last write of the writer, as its heartbeat said.
    writer_ms: AtomicI64,
}

enum ViewsCommand {
    /// Look at once, for a view even if it is not newer.
    Refresh,
    /// Look soon: a client waits for newer contents.
    Look,
    End,
}

/// The least time between two looks that clients wait for, as a part of the interval of looks.
const LOOKS_PER_INTERVAL: u32 = 10;

impl Views {
    fn start(
        reader: SlateReader,
        options: &MemberOptions,
        slot: DatabaseSlot,
        set: Arc<ReplicaSet>,
    ) -> std::io::Result<Self> {
        let (commands, received) = channel();
        let shared = Arc::new(ViewsState {
            slot,
            set,
            interval: options.read_interval,
            is_active: Mutex::new(false),
            writer_ms: AtomicI64::new(0),
        });
        let looks = commands.clone();
        shared.slot.set_look(move || {
            // The thread has ended with the server.
            drop(looks.send(ViewsCommand::Look));
        });
        let state = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("views".into());
        let thread = thread.spawn(move || state.run(reader, &received))?;
        Ok(Self {
            shared,
            commands,
            thread: Some(thread),
        })
    }

    /// Serves no further view.
    fn pause(&self) {
        *self.shared.active() = false;
    }

    /// Serves views again; `from_writing` if what is served is not one.
    fn resume(&self, from_writing: bool) {
        *self.shared.active() = true;
        match from_writing {
            true => drop(self.commands.send(ViewsCommand::Refresh)),
            false => self.shared.show(),
        }
    }

    /// Notes the last write of the writer.
    fn note_writer(&self, ms: i64) {
        self.shared.writer_ms.fetch_max(ms, Ordering::Relaxed);
    }
}

impl Drop for Views {
    fn drop(&mut self) {
        self.pause();
        // The thread has ended already if it panicked.
        drop(self.commands.send(ViewsCommand::End));
        if let Some(thread) = self.thread.take() {
            // A panic was reported when it occurred.
            drop(thread.join());
        }
    }
}

impl ViewsState {
    fn active(&self) -> std::sync::MutexGuard<'_, bool> {
        self.is_active
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, mut reader: SlateReader, commands: &Receiver<ViewsCommand>) {
        let mut has_failed = false;
        let mut next_look = Instant::now() + self.interval;
        let mut last_look = Instant::now();
        loop {
            let left = next_look.saturating_duration_since(Instant::now());
            match commands.recv_timeout(left) {
                Ok(ViewsCommand::Refresh) => {
                    reader.forget();
                    next_look = Instant::now();
                }
                Ok(ViewsCommand::Look) => {
                    let soonest = last_look + self.interval / LOOKS_PER_INTERVAL;
                    next_look = next_look.min(soonest.max(Instant::now()));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Ok(ViewsCommand::End) | Err(RecvTimeoutError::Disconnected) => return,
            }
            if Instant::now() < next_look {
                continue;
            }
            last_look = Instant::now();
            next_look = last_look + self.interval;
            if !*self.active() {
                continue;
            }
            let outcome = self.refresh(&mut reader);
            if let (Err(problem), false) = (&outcome, has_failed) {
                warn!(c = "STORAGE", id = 22_437, error = %problem, "Newer contents cannot be read; older ones are served");
            }
            has_failed = outcome.is_err();
        }
    }

    /// Looks for newer contents once.
    fn refresh(&self, reader: &mut SlateReader) -> Result<(), String> {
        // What was written before the look is in the view.
        let began = Instant::now();
        let written_ms = self.writer_ms.load(Ordering::Relaxed);
        let view = reader.refresh().map_err(|error| error.to_string())?;
        let opened = match view {
            None => None,
            Some(view) => {
                let successor = self.slot.current().successor(Arc::new(view));
                Some(successor.map_err(|error| {
                    // The next look finds it again.
                    reader.forget();
                    error.message
                })?)
            }
        };
        let is_active = self.active();
        if !*is_active {
            return Ok(());
        }
        if let Some(opened) = opened {
            self.slot.replace(Arc::new(opened));
        }
        self.set.update(|state| {
            state.last_write_ms = state.last_write_ms.max(written_ms);
        });
        self.show();
        drop(is_active);
        self.slot.note_look(began);
        Ok(())
    }

    /// Shows clients that they can read here.
    fn show(&self) {
        self.set.update(|state| state.role = MemberRole::Secondary);
    }
}

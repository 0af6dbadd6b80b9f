//! The claims of all databases of a cluster and its processes, looked at with one list.
//!
//! ```text
//! <path>/<unit>/claims/<term>                          as of one database (`claim`)
//! <path>/heartbeats/<unit>/<term>-<since>-<address>     overwritten by the process that writes the unit
//! <path>/heartbeats/members/<since>-<kind>-<address>    overwritten by the process at that address while it is there
//! ```
//!
//! The names say everything: who writes, since when, by which claim, and which processes there are. The list tells the version
//! of each object, which changes with each heartbeat, and its size, which is that of a released claim only for one. So no object
//! is read. An object whose version has not changed for a while, by the clock of the one that looks, is silent.
//!
//! A list of N objects is N / 1000 requests. The interval grows with them, so the requests of a process do not.
//!
//! As with [`crate::Claimant`], nothing but the time of a takeover rests on what is seen here: who may open a database is decided by the
//! claim that is created, and a writer that is late is fenced. A list that is old, or lacks an object, delays.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::AtomicI64;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt};
use nilometer_storage::Result;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::claim::{ClaimObjects, RELEASED, Says, TERM_DIGITS};
use crate::engine::runtime;
use crate::error::store_error;
use crate::lock::lock;
use crate::presence::{INTERVALS_UNTIL_DELETED, INTERVALS_UNTIL_GONE, now_ms};
use crate::{Claim, ClaimIntervals, MemberReport, SeenMember};

const HEARTBEATS: &str = "heartbeats";

const MEMBERS: &str = "members";

/// Processes of a cluster that have partitions, at most: a list has five pages then, with two partitions for each.
pub const NODES_MAX: usize = 1000;

/// Objects of a page of a list, in all stores.
const PAGE_OBJECTS: usize = 1000;

/// Objects that are looked at. A cluster has fewer than half as many.
const OBJECTS_MAX: usize = 10 * PAGE_OBJECTS;

/// The claims of all databases of a cluster, as one process sees them.
pub struct ClaimBoard {
    store: Arc<dyn ObjectStore>,
    path: Path,
    me: String,
    units: Vec<String>,
    intervals: ClaimIntervals,
    runtime: Runtime,
    seen: SeenUnits,
    members: BTreeMap<Path, SeenObject>,
    own: Option<(Path, JoinHandle<()>)>,
    pages: u32,
}

type SeenUnits = Arc<Mutex<BTreeMap<String, SeenUnit>>>;

/// An object, and since when its version is the same.
struct SeenObject {
    object: ObjectMeta,
    since: Instant,
    seen_ms: i64,
}

/// The last claim of a database that is known.
struct SeenUnit {
    term: u64,
    /// Its heartbeat, if there was one.
    heartbeat: Option<(ObjectMeta, UnitWriter)>,
    since: Instant,
}

/// The process that writes a database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitWriter {
    /// Its address.
    pub host: String,
    /// The number of its claim.
    pub term: u64,
    /// When its turn began, in ms since 1970.
    pub since_ms: i64,
}

/// What a look has found about one database.
pub struct UnitLook {
    /// The name of the database.
    pub unit: String,
    /// The process that writes, if one is known that is not silent.
    pub writer: Option<UnitWriter>,
    /// The way to claim it, if no process writes it.
    pub free: Option<FreeUnit>,
}

/// What a look has found.
pub struct BoardLook {
    /// All databases.
    pub units: Vec<UnitLook>,
    /// The other processes, in the order of their addresses.
    pub members: Vec<SeenMember>,
}

/// A database that no process writes.
pub struct FreeUnit {
    unit: String,
    /// The last term that was seen.
    last: Option<u64>,
    store: Arc<dyn ObjectStore>,
    path: Path,
    me: String,
    intervals: ClaimIntervals,
    seen: SeenUnits,
}

impl ClaimBoard {
    /// Prepares to look at the claims of the databases `units` of the cluster at `path`, as the process at the address `me`.
    pub fn new(
        store: Arc<dyn ObjectStore>,
        path: &str,
        (units, me): (Vec<String>, &str),
        intervals: ClaimIntervals,
    ) -> Result<Self> {
        Ok(Self {
            store,
            path: Path::from(path),
            me: me.to_owned(),
            units,
            intervals,
            runtime: runtime(path, 1)?,
            seen: SeenUnits::default(),
            members: BTreeMap::new(),
            own: None,
            pages: 1,
        })
    }

    /// Lets the others know that this process is there, until [`Self::leave`] or the end of the board.
    pub fn announce(&mut self, own: &MemberReport) {
        let (store, interval) = (Arc::clone(&self.store), self.intervals.heartbeat);
        let object = folder(&self.path).join(MEMBERS).join(member_name(own));
        let to = object.clone();
        let task = self.runtime.spawn(async move {
            for number in 0u64.. {
                // If it fails, the next one follows soon.
                let _ = store.put(&to, format!("{number}\n").into()).await;
                tokio::time::sleep(interval).await;
            }
        });
        if let Some((_, before)) = self.own.replace((object, task)) {
            before.abort();
        }
    }

    /// Lets the others know that this process leaves. A store that fails leaves an object that counts as gone soon.
    pub fn leave(&mut self) {
        let Some((object, task)) = self.own.take() else {
            return;
        };
        task.abort();
        self.runtime.block_on(async {
            // A heartbeat that is in flight could otherwise come after the deletion.
            let _ = task.await;
            let _ = self.store.delete(&object).await;
        });
    }

    /// Returns the time until the next look.
    pub fn look_interval(&self) -> Duration {
        self.intervals.look * self.pages
    }

    /// Looks at everything once.
    pub fn look(&mut self) -> Result<BoardLook> {
        // A process that was paused after the answer must not count its pause as silence.
        let begun = Instant::now();
        let folder = folder(&self.path);
        let listed = self.store.list(Some(&folder)).take(OBJECTS_MAX);
        let listed = self.runtime.block_on(listed.try_collect::<Vec<_>>());
        let listed = listed.map_err(|error| store_error("look at the claims", &error))?;
        self.pages = u32::try_from(listed.len().div_ceil(PAGE_OBJECTS)).map_or(1, |n| n.max(1));
        let mut heartbeats = BTreeMap::<String, (u64, ObjectMeta, UnitWriter)>::new();
        let mut members = Vec::new();
        for object in listed {
            let Some((unit, name)) = name_below(&folder, &object.location) else {
                continue;
            };
            if unit == MEMBERS {
                let report = parse_member(&name);
                members.extend(report.map(|report| (object, report)));
            } else if let Some(writer) = parse_heartbeat(&name) {
                let found = heartbeats.get(&unit);
                if found.is_none_or(|(term, ..)| *term < writer.term) {
                    heartbeats.insert(unit, (writer.term, object, writer));
                }
            }
        }
        let members = self.look_at_members(members);
        let mut seen = lock(&self.seen);
        let units = self.units.iter().map(|unit| {
            let heartbeat = heartbeats.remove(unit);
            let heartbeat = heartbeat.map(|(_, object, writer)| (object, writer));
            note_heartbeat(&mut seen, unit, heartbeat);
            self.unit_look(unit, seen.get(unit), begun)
        });
        let units = units.collect();
        Ok(BoardLook { units, members })
    }

    fn unit_look(&self, unit: &str, seen: Option<&SeenUnit>, begun: Instant) -> UnitLook {
        let free = || FreeUnit {
            unit: unit.to_owned(),
            last: seen.map(|seen| seen.term),
            store: Arc::clone(&self.store),
            path: self.path.clone(),
            me: self.me.clone(),
            intervals: self.intervals,
            seen: Arc::clone(&self.seen),
        };
        let has_writer = seen.is_some_and(|seen| {
            let heartbeat = seen.heartbeat.as_ref();
            let is_released = heartbeat.is_some_and(|(object, _)| is_released(object));
            let silence = begun.saturating_duration_since(seen.since);
            !is_released && silence < self.intervals.silence
        });
        let writer = seen.and_then(|seen| Some(seen.heartbeat.as_ref()?.1.clone()));
        UnitLook {
            unit: unit.to_owned(),
            writer: writer.filter(|_| has_writer),
            free: (!has_writer).then(free),
        }
    }

    /// Returns the other processes that are there. Deletes the objects of those that are gone for long.
    fn look_at_members(&mut self, listed: Vec<(ObjectMeta, MemberReport)>) -> Vec<SeenMember> {
        let beat = self.intervals.heartbeat;
        let until_gone = beat.max(self.look_interval()) * INTERVALS_UNTIL_GONE;
        let mut known = BTreeMap::new();
        let mut seen = BTreeMap::<String, SeenMember>::new();
        for (object, report) in listed {
            let same = self.members.remove(&object.location);
            let same = same.filter(|same| same.object == object);
            let found = same.unwrap_or_else(|| SeenObject {
                object,
                since: Instant::now(),
                seen_ms: now_ms(),
            });
            let age = found.since.elapsed();
            if age >= beat * INTERVALS_UNTIL_DELETED {
                // Another process may do it, or the next look.
                let deleted = self.store.delete(&found.object.location);
                let _ = self.runtime.block_on(deleted);
                continue;
            }
            // A process that was started again at its address has two objects for a moment.
            let is_later = |other: &SeenMember| other.report.since_ms < report.since_ms;
            if age < until_gone
                && report.host != self.me
                && seen.get(&report.host).is_none_or(is_later)
            {
                let member = SeenMember {
                    seen_ms: found.seen_ms,
                    report: report.clone(),
                };
                seen.insert(report.host, member);
            }
            known.insert(found.object.location.clone(), found);
        }
        self.members = known;
        seen.into_values().collect()
    }
}

impl Drop for ClaimBoard {
    fn drop(&mut self) {
        if let Some((_, task)) = self.own.take() {
            task.abort();
        }
    }
}

impl FreeUnit {
    /// Claims the database; `None` if another process was faster.
    pub fn claim(self) -> Result<Option<Claim>> {
        let since_ms = now_ms();
        let suffix = format!("-{since_ms:013}-{}", encode_host(&self.me));
        let heartbeats = folder(&self.path).join(self.unit.as_str());
        let path = self.path.clone().join(self.unit.as_str());
        let store = Arc::clone(&self.store);
        let objects = Arc::new(ClaimObjects::listed(store, &path, (heartbeats, suffix)));
        let runtime = runtime(path.as_ref(), 1)?;
        let begun = Instant::now();
        let claimed = runtime.block_on(async {
            let latest = objects.last_term().await?;
            let next = match (latest, self.last) {
                // Another process has had its turn, of which no heartbeat was listed yet.
                (Some(latest), last) if last.is_none_or(|last| last < latest) => {
                    self.note(latest);
                    return Ok(None);
                }
                (_, last) => last.map_or(1, |last| last + 1),
            };
            let claimed = objects.create(next).await?;
            // Until its heartbeat is listed.
            self.note(next);
            Ok(claimed)
        });
        let claimed: std::result::Result<Option<u64>, object_store::Error> = claimed;
        let claimed = claimed.map_err(|error| store_error("claim a database", &error))?;
        Ok(claimed.map(|term| {
            let says = Says {
                host: self.me,
                last_write_ms: Arc::<AtomicI64>::default(),
                since_ms,
            };
            Claim::begin(objects, runtime, self.intervals, says, (term, begun))
        }))
    }

    /// Notes a claim that was found or created.
    fn note(&self, term: u64) {
        let mut seen = lock(&self.seen);
        if seen.get(&self.unit).is_none_or(|known| known.term < term) {
            let claimed = SeenUnit {
                term,
                heartbeat: None,
                since: Instant::now(),
            };
            seen.insert(self.unit.clone(), claimed);
        }
    }
}

/// Notes the heartbeat of the last claim of a database that is listed.
fn note_heartbeat(
    seen: &mut BTreeMap<String, SeenUnit>,
    unit: &str,
    heartbeat: Option<(ObjectMeta, UnitWriter)>,
) {
    let Some((object, writer)) = heartbeat else {
        return;
    };
    let is_known = seen.get(unit).is_some_and(|seen| {
        let known = seen.heartbeat.as_ref();
        seen.term > writer.term
            || (seen.term == writer.term && known.is_some_and(|(known, _)| *known == object))
    });
    if !is_known {
        let found = SeenUnit {
            term: writer.term,
            heartbeat: Some((object, writer)),
            since: Instant::now(),
        };
        seen.insert(unit.to_owned(), found);
    }
}

/// True for the heartbeat of a process that has closed its database.
fn is_released(heartbeat: &ObjectMeta) -> bool {
    heartbeat.size == RELEASED.len() as u64
}

/// Returns the folder of the heartbeats.
fn folder(path: &Path) -> Path {
    path.clone().join(HEARTBEATS)
}

/// Returns the folder and the name of an object two levels below `folder`.
fn name_below(folder: &Path, object: &Path) -> Option<(String, String)> {
    let mut parts = object.prefix_match(folder)?;
    let (unit, name) = (parts.next()?, parts.next()?);
    let is_last = parts.next().is_none();
    is_last.then(|| (unit.as_ref().to_owned(), name.as_ref().to_owned()))
}

fn parse_heartbeat(name: &str) -> Option<UnitWriter> {
    let mut parts = name.splitn(3, '-');
    let term = parts.next().filter(|term| term.len() == TERM_DIGITS)?;
    Some(UnitWriter {
        term: term.parse().ok()?,
        since_ms: parts.next()?.parse().ok()?,
        host: decode_host(parts.next()?)?,
    })
}

/// What stands for a process without partitions, and for one with them.
const KINDS: [(&str, bool); 2] = [("r", true), ("p", false)];

fn member_name(report: &MemberReport) -> String {
    let kind = KINDS.iter().find(|kind| kind.1 == report.is_passive);
    let kind = kind.map_or("", |kind| kind.0);
    let host = encode_host(&report.host);
    format!("{:013}-{kind}-{host}", report.since_ms)
}

fn parse_member(name: &str) -> Option<MemberReport> {
    let mut parts = name.splitn(3, '-');
    let since_ms = parts.next()?.parse().ok()?;
    let kind = parts.next()?;
    Some(MemberReport {
        host: decode_host(parts.next()?)?,
        is_passive: KINDS.iter().find(|known| known.0 == kind)?.1,
        last_write_ms: 0,
        since_ms,
    })
}

/// Returns an address in characters that the name of an object may have in all stores.
fn encode_host(host: &str) -> String {
    let mut out = String::with_capacity(host.len());
    for byte in host.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b':') {
            out.push(char::from(byte));
        } else {
            // Writing to a string does not fail.
            let _ = write!(out, "={byte:02x}");
        }
    }
    out
}

fn decode_host(name: &str) -> Option<String> {
    let mut out = Vec::with_capacity(name.len());
    let mut rest = name.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first == b'=' {
            let (digits, after) = rest.split_at_checked(2)?;
            let digits = std::str::from_utf8(digits).ok()?;
            out.push(u8::from_str_radix(digits, 16).ok()?);
            rest = after;
        } else {
            out.push(*first);
        }
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;

    use super::*;
    use crate::requests::{ObservedStore, Requests};

    /// The largest cluster: a look reads no object, and the requests of a process do not grow with the nodes.
    #[test]
    fn a_look_is_a_list_at_any_size() {
        let requests = Arc::<Requests>::default();
        let inner: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let store = ObservedStore::new(inner.clone(), requests.clone());
        let names: Vec<String> = (1..=2000).map(|n| format!("p{n:04}")).collect();
        let board = |store| {
            let units = (names.clone(), "n0:1");
            ClaimBoard::new(store, "garden", units, ClaimIntervals::default())
        };
        let mut board = board(Arc::new(store)).expect("threads");
        let stores = runtime("garden", 1).expect("threads");
        let beat = |object: Path, number: u64| {
            let contents = format!("{number}\nhost\n0\n1700000000000\n");
            let put = inner.put(&object, contents.into());
            stores.block_on(put).expect("stored");
        };
        let in_folder = |name: &str| folder(&Path::from("garden")).join(name);
        let beats = |number: u64| {
            for (at, unit) in names.iter().enumerate() {
                let name = format!("{:020}-1700000000000-n{}:1", 3, at / 2);
                beat(in_folder(unit).join(name), number);
            }
            for at in 0..1000 {
                let name = format!("1700000000000-p-n{at}:1");
                beat(in_folder(MEMBERS).join(name), number);
            }
        };
        beats(0);
        for looks in 1..=3 {
            let looked = board.look().expect("the store works");
            assert_eq!(looked.members.len(), 999);
            for (at, look) in looked.units.iter().enumerate() {
                let writer = look.writer.as_ref().expect("a writer");
                assert_eq!(
                    (&*writer.host, writer.term),
                    (&*format!("n{}:1", at / 2), 3)
                );
                assert!(look.free.is_none());
            }
            let counts = requests.counts();
            assert_eq!((counts.lists, counts.gets, counts.puts), (looks, 0, 0));
            beats(looks);
        }
        assert_eq!(board.look_interval(), board.intervals.look * 3);
    }

    #[test]
    fn names_say_who_writes_and_who_is_there() {
        for host in ["a:1", "[::1]:27017", "gärten/1=2:3", ""] {
            assert_eq!(decode_host(&encode_host(host)).as_deref(), Some(host));
            let report = MemberReport {
                host: host.to_owned(),
                is_passive: host.is_empty(),
                last_write_ms: 0,
                since_ms: 1_700_000_000_123,
            };
            let object = folder(&Path::from("a/b")).join(MEMBERS);
            let object = object.join(member_name(&report));
            let object = Path::parse(object.as_ref()).expect("as a store lists it");
            let (unit, name) = name_below(&folder(&Path::from("a/b")), &object).expect("below");
            assert_eq!(unit, MEMBERS);
            assert_eq!(parse_member(&name), Some(report));
        }
        let writer = UnitWriter {
            host: "b-c:2".into(),
            term: 7,
            since_ms: 12,
        };
        let name = "00000000000000000007-0000000000012-b-c:2";
        assert_eq!(parse_heartbeat(name), Some(writer));
        for bad in [
            "",
            "7",
            "7-1-a",
            "x-y-z",
            "00000000000000000007-1",
            "00000000000000000007-1-=",
            "00000000000000000007-1-=zz",
            "00000000000000000007-1-=ff",
        ] {
            assert_eq!(parse_heartbeat(bad), None, "{bad}");
        }
        assert_eq!(parse_member("1-x-host"), None);
    }
}

//! The members of a set: each writes a small object now and then, and reads those of the others.
//!
//! ```text
//! <path>/members/<address>    overwritten by the process at that address while it is there; deleted when it ends
//! ```
//!
//! A member whose object has not changed for a while, by the clock of the one that looks, is gone. Nothing rests on this but
//! what clients are told: who writes is decided by claims ([`crate::Claimant`]).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use futures::TryStreamExt;
use nilometer_storage::Result;
use object_store::path::Path;
use object_store::{Error as StoreError, ObjectStore, ObjectStoreExt};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::engine::runtime;
use crate::lock::lock;

const MEMBERS: &str = "members";

/// Members that are looked at. More are no set of servers that stand by.
const MEMBERS_MAX: usize = 50;

/// Bytes of the object of a member.
const MEMBER_BYTES_MAX: u64 = 4096;

/// Intervals after which an object that has not changed is deleted.
pub(crate) const INTERVALS_UNTIL_DELETED: u32 = 120;

/// Intervals without a change after which a member is gone.
pub(crate) const INTERVALS_UNTIL_GONE: u32 = 3;

/// What a member says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberReport {
    /// Its address.
    pub host: String,
    /// True if it never writes to the database.
    pub is_passive: bool,
    /// The last write that it shows, in ms since 1970; 0 if it knows none.
    pub last_write_ms: i64,
    /// When it began, in ms since 1970.
    pub since_ms: i64,
}

impl MemberReport {
    fn encode(&self, number: u64) -> Vec<u8> {
        let Self {
            host,
            is_passive,
            last_write_ms,
            since_ms,
        } = self;
        format!("{number}\n{host}\n{is_passive}\n{last_write_ms}\n{since_ms}\n").into_bytes()
    }

    fn decode(contents: &[u8]) -> Option<Self> {
        let mut lines = std::str::from_utf8(contents).ok()?.lines().skip(1);
        Some(Self {
            host: lines.next()?.to_owned(),
            is_passive: lines.next()?.parse().ok()?,
            last_write_ms: lines.next()?.parse().ok()?,
            since_ms: lines.next()?.parse().ok()?,
        })
    }
}

/// Another member, and when its object was seen to change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenMember {
    /// What it says of itself.
    pub report: MemberReport,
    /// When it was seen to be there, in ms since 1970.
    pub seen_ms: i64,
}

/// The presence of this process, until it is dropped.
pub struct Presence {
    objects: Arc<MemberObjects>,
    runtime: Option<Runtime>,
    task: JoinHandle<()>,
}

struct MemberObjects {
    store: Arc<dyn ObjectStore>,
    path: Path,
    own: Mutex<MemberReport>,
    seen: Mutex<Vec<SeenMember>>,
}

/// The contents of an object, and since when they are the same.
struct Unchanged {
    contents: bytes::Bytes,
    since: Instant,
    seen_ms: i64,
}

impl Presence {
    /// Makes this process a member of the set at `path` in `store`, and looks for others at intervals.
    pub fn begin(
        store: Arc<dyn ObjectStore>,
        path: &str,
        own: MemberReport,
        interval: Duration,
    ) -> Result<Self> {
        let objects = Arc::new(MemberObjects {
            store,
            path: Path::from(path),
            own: Mutex::new(own),
            seen: Mutex::default(),
        });
        let runtime = runtime(path, 1)?;
        let members = Arc::clone(&objects);
        let task = runtime.spawn(async move {
            let mut known = BTreeMap::new();
            for number in 0u64.. {
                // The next one follows soon.
                let _ = members.report(number).await;
                let _ = members.look(&mut known, interval).await;
                tokio::time::sleep(interval).await;
            }
        });
        Ok(Self {
            objects,
            runtime: Some(runtime),
            task,
        })
    }

    /// Sets the last write that this member shows.
    pub fn set_last_write(&self, ms: i64) {
        lock(&self.objects.own).last_write_ms = ms;
    }

    /// Returns the other members.
    pub fn others(&self) -> Vec<SeenMember> {
        lock(&self.objects.seen).clone()
    }

    /// Leaves the set. A store that fails leaves an object that counts as gone soon.
    pub fn end(mut self) {
        self.task.abort();
        if let Some(runtime) = self.runtime.take() {
            let own = self.objects.own_object();
            let _ = runtime.block_on(self.objects.store.delete(&own));
            runtime.shutdown_background();
        }
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.task.abort();
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl MemberObjects {
    fn own_object(&self) -> Path {
        let host = lock(&self.own).host.clone();
        self.path.clone().join(MEMBERS).join(host)
    }

    async fn report(&self, number: u64) -> std::result::Result<(), StoreError> {
        let contents = lock(&self.own).encode(number);
        let object = self.own_object();
        self.store.put(&object, contents.into()).await.map(drop)
    }

    /// Looks at all members once.
    async fn look(
        &self,
        known: &mut BTreeMap<Path, Unchanged>,
        interval: Duration,
    ) -> std::result::Result<(), StoreError> {
        let folder = self.path.clone().join(MEMBERS);
        let listed = self.store.list(Some(&folder));
        let mut objects: Vec<_> = listed.try_collect().await?;
        objects.retain(|object| object.size <= MEMBER_BYTES_MAX);
        objects.truncate(MEMBERS_MAX);
        let own = self.own_object();
        let mut now_known = BTreeMap::new();
        let mut seen = Vec::new();
        for object in objects {
            if object.location == own {
                continue;
            }
            let contents = match self.store.get(&object.location).await {
                Ok(found) => found.bytes().await?,
                Err(StoreError::NotFound { .. }) => continue,
                Err(error) => return Err(error),
            };
            let same = known.remove(&object.location);
            let same = same.filter(|known| known.contents == contents);
            let unchanged = same.unwrap_or_else(|| Unchanged {
                contents,
                since: Instant::now(),
                seen_ms: now_ms(),
            });
            let age = unchanged.since.elapsed();
            if age >= interval * INTERVALS_UNTIL_DELETED {
                // Another member may do it.
                let _ = self.store.delete(&object.location).await;
                continue;
            }
            if age < interval * INTERVALS_UNTIL_GONE
                && let Some(report) = MemberReport::decode(&unchanged.contents)
            {
                seen.push(SeenMember {
                    report,
                    seen_ms: unchanged.seen_ms,
                });
            }
            now_known.insert(object.location, unchanged);
        }
        *known = now_known;
        *lock(&self.seen) = seen;
        Ok(())
    }
}

/// Returns the time of the system's clock, in ms since 1970.
pub(crate) fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| {
        i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
    })
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;

    use super::*;

    #[test]
    fn members_see_each_other_until_they_end() {
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let interval = Duration::from_millis(50);
        let report = |host: &str| MemberReport {
            host: host.to_owned(),
            is_passive: host.starts_with('p'),
            last_write_ms: 7,
            since_ms: 5,
        };
        let begin = |host: &str| {
            Presence::begin(store.clone(), "garden", report(host), interval).expect("threads")
        };
        let (first, second) = (begin("a:1"), begin("pot:2"));
        let until = Instant::now() + Duration::from_secs(20);
        let wait = |expected: &[&str]| {
            loop {
                let others = first.others();
                let hosts: Vec<_> = others.iter().map(|seen| &*seen.report.host).collect();
                if hosts == expected {
                    return others;
                }
                assert!(Instant::now() < until, "{hosts:?}");
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        assert_eq!(wait(&["pot:2"])[0].report, report("pot:2"));
        let third = begin("[::1]:3");
        wait(&["[::1]:3", "pot:2"]);
        second.end();
        wait(&["[::1]:3"]);
        // Killed: its object stays and does not change.
        drop(third);
        wait(&[]);
        first.end();
    }
}

//! Which sealed buckets there are, remembered from one scan to the next.
//!
//! ```text
//! ids       ────[ covered: every sealed document in here is listed, at one version of their keyspace ]────►
//!               b1   b2   b3        b4   b5   b6             the opened buckets, as long as the cache keeps them
//!           ──────[ quiet: no open document, no tail, at one version of those two ]────────────────────────►
//! ```
//!
//! A scan whose part of the ids is covered takes opened buckets from here, and reads nothing of the store where it is quiet
//! too. Versions come from the snapshot the scan would read ([`Snapshot::version`]): two snapshots with the same number
//! show the same, so what a writer does is noticed by its number and no writer needs to tell anybody. Sealed documents change
//! when a bucket is sealed or changed; tails change with each insert, and are then read again, beside what is
//! listed here.
//!
//! One stretch of ids is known for each collection, the one that was read last; what is read next to it is added.
//! Buckets are held weakly: memory is the cache's to give out ([`super::bucket_cache`]).

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use nilometer_storage::{Direction, KeyspaceId, Snapshot};

use super::opened_bucket::StoredBucket;
use crate::budget::Budgeted;
use crate::timeseries::fold::BucketKeyspaces;
use crate::timeseries::scan::storage_iterator::{Span, behind};

/// What a listed bucket takes: its place, and what stays of a bucket that the cache has let go.
const LISTED_BYTES: usize =
    size_of::<Listed>() + size_of::<StoredBucket>() + 2 * size_of::<usize>();

/// Memory of the buckets listed, of all collections together, if nothing else is said.
pub(crate) const ROSTER_BYTES_MAX: usize = (1 << 17) * LISTED_BYTES;

/// What a snapshot shows of the buckets of a collection: equal versions show the same buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Versions {
    /// The keyspace of sealed documents, which stands for the collection.
    of: KeyspaceId,
    sealed: u64,
    open: u64,
    tail: u64,
}

impl Versions {
    /// Those of a snapshot; none while something is on its way in.
    pub(crate) fn of(snapshot: &dyn Snapshot, keyspaces: BucketKeyspaces) -> Option<Self> {
        Some(Self {
            of: keyspaces.sealed,
            sealed: snapshot.version(keyspaces.sealed)?,
            open: snapshot.version(keyspaces.open)?,
            tail: snapshot.version(keyspaces.tail)?,
        })
    }
}

/// A bucket in its place.
pub(crate) type Listed = ([u8; 12], Weak<StoredBucket>);

/// What is known of one collection.
struct Roster {
    /// The version of the sealed documents.
    sealed: u64,
    covered: Span,
    /// Ascending. One that cannot be had any more is read from the store.
    buckets: Vec<Listed>,
    /// Versions of open documents and tails, and where there are none.
    quiet: Option<((u64, u64), Span)>,
}

/// Sealed buckets a scan need not read.
pub(crate) struct Part {
    /// In the order of the scan.
    pub(crate) buckets: Vec<Arc<StoredBucket>>,
    /// Where these are all the sealed ones there are.
    pub(crate) span: Span,
    /// That is all the scan asked for.
    pub(crate) all: bool,
    /// There is nothing else, no open document and no tail.
    pub(crate) is_quiet: bool,
}

/// What is known of the collections of one database.
pub(crate) struct Rosters(Budgeted<HashMap<KeyspaceId, Roster>>);

impl Default for Rosters {
    fn default() -> Self {
        Self(Budgeted::new(ROSTER_BYTES_MAX))
    }
}

/// Memory of all lists together.
fn listed_bytes(rosters: &HashMap<KeyspaceId, Roster>) -> usize {
    let listed = rosters.values().map(|roster| roster.buckets.capacity());
    listed.sum::<usize>() * LISTED_BYTES
}

impl Rosters {
    /// Changes the memory the lists may take; it shows when the next is made.
    pub(crate) fn set_bytes_max(&self, bytes: usize) {
        self.0.set_bytes_max(bytes);
    }

    /// Memory they take.
    pub(crate) fn memory_bytes(&self) -> usize {
        listed_bytes(&self.0.lock())
    }

    /// The first buckets of a span, `most` at most; none if the store has to be asked.
    pub(crate) fn part(
        &self,
        versions: Versions,
        span: &Span,
        direction: Direction,
        most: usize,
    ) -> Option<Part> {
        let rosters = self.0.lock();
        let roster = rosters.get(&versions.of)?;
        if roster.sealed != versions.sealed {
            return None;
        }
        let mut part = match direction {
            Direction::Forward => roster.first(span, most),
            Direction::Backward => roster.last(span, most),
        }?;
        part.is_quiet = roster.quiet.as_ref().is_some_and(|(of, quiet)| {
            *of == (versions.open, versions.tail) && quiet.holds(&part.span)
        });
        Some(part)
    }

    /// Takes note of all sealed documents there are in a span, ascending.
    pub(crate) fn note(&self, versions: Versions, span: Span, found: Vec<Listed>) {
        let mut rosters = self.0.lock();
        match rosters.get_mut(&versions.of) {
            Some(roster) if roster.sealed == versions.sealed && roster.covered.touches(&span) => {
                roster.add(&span, found);
            }
            known => {
                let quiet = known.and_then(|roster| roster.quiet.take());
                let roster = Roster {
                    sealed: versions.sealed,
                    covered: span,
                    buckets: found,
                    quiet,
                };
                rosters.insert(versions.of, roster);
            }
        }
        let most = self.0.bytes_max();
        if listed_bytes(&rosters) > most {
            rosters.retain(|of, _| *of == versions.of);
        }
        if listed_bytes(&rosters) > most {
            rosters.clear();
        }
    }

    /// Forgets a collection that was dropped, by the keyspace of its sealed documents.
    pub(crate) fn forget(&self, of: KeyspaceId) {
        self.0.lock().remove(&of);
    }

    /// Takes note that there is neither an open document nor a tail in a span.
    pub(crate) fn note_quiet(&self, versions: Versions, span: Span) {
        let mut rosters = self.0.lock();
        let Some(roster) = rosters.get_mut(&versions.of) else {
            return;
        };
        let of = (versions.open, versions.tail);
        match &mut roster.quiet {
            Some((known, quiet)) if *known == of && quiet.touches(&span) => quiet.widen(&span),
            quiet => *quiet = Some((of, span)),
        }
    }
}

impl Roster {
    fn add(&mut self, span: &Span, found: Vec<Listed>) {
        let from = self
            .buckets
            .partition_point(|(id, _)| id[..] < span.start[..]);
        let to = self.buckets.partition_point(|(id, _)| span.ends_behind(id));
        self.buckets.splice(from..to.max(from), found);
        self.covered.widen(span);
    }

    /// The first buckets of a span that begins where all are known.
    fn first(&self, span: &Span, most: usize) -> Option<Part> {
        let is_known = self.covered.start <= span.start && self.covered.ends_behind(&span.start);
        if !is_known {
            return None;
        }
        let known = Span {
            start: span.start.clone(),
            end: span.first_end(&self.covered),
        };
        let from = self
            .buckets
            .partition_point(|(id, _)| id[..] < known.start[..]);
        let listed = self.buckets.get(from..).unwrap_or(&[]).iter();
        let within = listed.take_while(|(id, _)| known.ends_behind(id));
        let (buckets, is_cut) = take(within, most);
        let all = !is_cut && known.end == span.end;
        let end = match all {
            true => span.end.clone(),
            // There has to be a bucket to go on behind.
            false => Some(behind(buckets.last()?.id().0)),
        };
        Some(Part {
            span: Span { end, ..known },
            buckets,
            all,
            is_quiet: false,
        })
    }

    /// The last buckets, from the last on, of a span that ends where all are known.
    fn last(&self, span: &Span, most: usize) -> Option<Part> {
        let is_known = match (&span.end, &self.covered.end) {
            (_, None) => true,
            (None, Some(_)) => false,
            (Some(end), Some(known)) => end <= known,
        };
        if !is_known || !span.ends_behind(&self.covered.start) {
            return None;
        }
        let start = (&span.start).max(&self.covered.start).clone();
        let known = Span {
            start,
            end: span.end.clone(),
        };
        let to = self
            .buckets
            .partition_point(|(id, _)| known.ends_behind(id));
        let listed = self.buckets.get(..to).unwrap_or(&[]).iter().rev();
        let within = listed.take_while(|(id, _)| id[..] >= known.start[..]);
        let (buckets, is_cut) = take(within, most);
        let all = !is_cut && known.start == span.start;
        let start = match all {
            true => span.start.clone(),
            false => buckets.last()?.id().0.to_vec(),
        };
        Some(Part {
            span: Span { start, ..known },
            buckets,
            all,
            is_quiet: false,
        })
    }
}

/// The buckets that can be had, up to `most`; whether there are more.
fn take<'l>(
    listed: impl Iterator<Item = &'l Listed>,
    most: usize,
) -> (Vec<Arc<StoredBucket>>, bool) {
    let mut buckets = Vec::new();
    for (_, held) in listed {
        let held = (buckets.len() < most).then(|| held.upgrade()).flatten();
        let Some(bucket) = held else {
            return (buckets, true);
        };
        bucket.is_wanted_again();
        buckets.push(bucket);
    }
    (buckets, false)
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{Binary, ObjectId, Value, doc};

    use super::*;

    fn bucket(id: u8) -> Arc<StoredBucket> {
        let mut column = nilometer_bson::column::ColumnBuilder::new();
        column.append_datetime(0);
        let column = Binary {
            subtype: 7,
            bytes: column.finish().into(),
        };
        let bounds = || doc! { "t": Value::DateTime(0) };
        let control = doc! { "version": 2, "min": bounds(), "max": bounds(), "count": 1 };
        let document =
            doc! { "_id": ObjectId([id; 12]), "control": control, "data": doc! { "t": column } };
        Arc::new(StoredBucket::from_document(document, "t").unwrap())
    }

    fn span(start: u8, end: Option<u8>) -> Span {
        Span {
            start: vec![start],
            end: end.map(|end| vec![end]),
        }
    }

    fn versions(sealed: u64, tail: u64) -> Versions {
        Versions {
            of: KeyspaceId(7),
            sealed,
            open: 1,
            tail,
        }
    }

    /// The ids a part has, with what it says of itself.
    fn shown(part: Option<Part>) -> Option<(Vec<u8>, bool, bool)> {
        part.map(|part| {
            let ids = part.buckets.iter().map(|bucket| bucket.id().0[0]).collect();
            (ids, part.all, part.is_quiet)
        })
    }

    #[test]
    fn what_was_noted_is_what_is_given() {
        let rosters = Rosters::default();
        let held: Vec<_> = (0..100).map(bucket).collect();
        let listed = |ids: std::ops::Range<usize>| -> Vec<Listed> {
            ids.map(|at| (held[at].id().0, Arc::downgrade(&held[at])))
                .collect()
        };
        let first = |from, to, most| {
            shown(rosters.part(versions(1, 1), &span(from, to), Direction::Forward, most))
        };
        let last = |from, to, most| {
            shown(rosters.part(versions(1, 1), &span(from, to), Direction::Backward, most))
        };
        rosters.note(versions(1, 1), span(20, Some(30)), listed(20..30));
        rosters.note(versions(1, 1), span(30, Some(40)), listed(30..40));
        rosters.note(versions(1, 1), span(10, Some(25)), listed(10..25));
        assert_eq!(
            first(12, Some(15), 9),
            Some((vec![12, 13, 14], true, false))
        );
        assert_eq!(first(12, Some(15), 2), Some((vec![12, 13], false, false)));
        assert_eq!(first(38, Some(50), 9), Some((vec![38, 39], false, false)));
        assert_eq!(first(38, None, 9), Some((vec![38, 39], false, false)));
        assert_eq!(first(9, Some(15), 9), None);
        assert_eq!(first(40, Some(45), 9), None);
        assert_eq!(last(12, Some(15), 2), Some((vec![14, 13], false, false)));
        assert_eq!(last(5, Some(12), 9), Some((vec![11, 10], false, false)));
        assert_eq!(last(10, Some(12), 9), Some((vec![11, 10], true, false)));
        assert_eq!(last(5, Some(41), 9), None);
        assert_eq!(last(5, None, 9), None);
        rosters.note(versions(1, 1), span(40, None), listed(40..100));
        assert_eq!(last(98, None, 9), Some((vec![99, 98], true, false)));
        assert_eq!(first(98, None, 9), Some((vec![98, 99], true, false)));
        // Another version, and a stretch apart.
        assert!(
            rosters
                .part(versions(2, 1), &span(12, None), Direction::Forward, 9)
                .is_none()
        );
        rosters.note(versions(2, 1), span(50, Some(60)), listed(50..60));
        assert_eq!(first(12, Some(15), 9), None);
        rosters.note(versions(2, 1), span(70, Some(75)), listed(70..75));
        let known =
            |start| rosters.part(versions(2, 1), &span(start, None), Direction::Backward, 9);
        assert!(known(50).is_none());
        rosters.note(versions(2, 1), span(75, None), listed(75..100));
        assert!(known(98).is_some());
        rosters.forget(KeyspaceId(7));
        assert!(known(98).is_none());
    }

    #[test]
    fn it_is_quiet_at_one_version_only() {
        let rosters = Rosters::default();
        let held: Vec<_> = (0..10).map(bucket).collect();
        let listed = held.iter().map(|b| (b.id().0, Arc::downgrade(b))).collect();
        rosters.note(versions(1, 1), span(0, None), listed);
        rosters.note_quiet(versions(1, 1), span(2, Some(5)));
        rosters.note_quiet(versions(1, 1), span(5, Some(7)));
        let quiet = |versions, from, to| {
            let part = rosters.part(versions, &span(from, Some(to)), Direction::Forward, 99);
            part.unwrap().is_quiet
        };
        assert!(quiet(versions(1, 1), 2, 7) && quiet(versions(1, 1), 3, 4));
        assert!(!quiet(versions(1, 1), 1, 7) && !quiet(versions(1, 1), 2, 8));
        assert!(!quiet(versions(1, 2), 3, 4));
        rosters.note_quiet(versions(1, 2), span(3, Some(4)));
        assert!(quiet(versions(1, 2), 3, 4) && !quiet(versions(1, 1), 3, 4));
    }

    #[test]
    fn lists_that_take_too_much_are_forgotten() {
        let rosters = Rosters::default();
        let held: Vec<_> = (0..10).map(bucket).collect();
        let note = |of: u64| {
            let listed = held.iter().map(|b| (b.id().0, Arc::downgrade(b))).collect();
            let versions = Versions {
                of: KeyspaceId(of),
                ..versions(1, 1)
            };
            rosters.note(versions, span(0, None), listed);
        };
        rosters.set_bytes_max(15 * LISTED_BYTES);
        note(1);
        let one = rosters.memory_bytes();
        assert!(
            (10 * LISTED_BYTES..=15 * LISTED_BYTES).contains(&one),
            "{one}"
        );
        note(2);
        assert_eq!(rosters.memory_bytes(), one, "the other one is gone");
        rosters.set_bytes_max(5 * LISTED_BYTES);
        note(3);
        assert_eq!(rosters.memory_bytes(), 0);
    }

    #[test]
    fn buckets_the_cache_let_go_are_read_again() {
        let rosters = Rosters::default();
        let mut held: Vec<_> = (0..10).map(bucket).collect();
        let listed = held.iter().map(|b| (b.id().0, Arc::downgrade(b))).collect();
        rosters.note(versions(1, 1), span(0, None), listed);
        held.remove(4);
        let first =
            |from| shown(rosters.part(versions(1, 1), &span(from, None), Direction::Forward, 99));
        assert_eq!(first(2), Some((vec![2, 3], false, false)));
        assert_eq!(first(4), None);
        assert_eq!(first(5), Some((vec![5, 6, 7, 8, 9], true, false)));
    }
}

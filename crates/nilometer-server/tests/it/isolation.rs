//! Looks for anomalies that snapshot isolation forbids, in a history of transactions on lists.
//!
//! Transactions append values to lists, each value once, and read whole lists. The lists at the end say in which order their
//! writers committed, and each read says which of them it saw:
//!
//! ```text
//! list at the end   [1, 5, 2]     1 ─ before ─► 5 ─ before ─► 2       writers in order
//! a read            [1, 5]        5 ─ before ─► read ─ against ─► 2   the read did not see 2
//! ```
//!
//! With the order of time (one ended before another began) these are edges of a graph of transactions. Under snapshot
//! isolation it has no cycle in which each step *against* follows a step *before*. So write skew, whose steps are all
//! *against*, is no anomaly.

use std::collections::{BTreeMap, BTreeSet};

/// A list.
pub(crate) type Key = i32;

/// A transaction that has ended.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ran {
    pub(crate) is_committed: bool,
    /// Moments that all sessions count together: before its first statement, and after its end was acknowledged.
    pub(crate) begun: u64,
    pub(crate) ended: u64,
    /// Lists that it read, without what it had appended itself.
    pub(crate) reads: Vec<(Key, Vec<i32>)>,
    /// What it appended, in order.
    pub(crate) appends: Vec<(Key, i32)>,
}

/// The lists at the end of a history.
pub(crate) type Lists = BTreeMap<Key, Vec<i32>>;

/// Returns the first anomaly of a history.
pub(crate) fn check(history: &[Ran], lists: &Lists) -> Result<(), String> {
    let writers = writers(history, lists)?;
    let mut graph = Graph::new(history.len());
    for (key, list) in lists {
        for pair in list.windows(2) {
            let [one, next] = pair else { continue };
            graph.before(writers[&(*key, *one)], writers[&(*key, *next)]);
        }
    }
    for (at, ran) in history.iter().enumerate() {
        for (key, read) in &ran.reads {
            check_read((at, ran), (*key, read), lists, &writers)?;
            let list = &lists[key];
            if let Some(last) = read.last() {
                graph.before(writers[&(*key, *last)], at);
            }
            if let Some(next) = list.get(read.len()) {
                graph.against(at, writers[&(*key, *next)]);
            }
        }
        for (earlier, other) in history.iter().enumerate() {
            if other.ended < ran.begun {
                graph.before(earlier, at);
            }
        }
    }
    match graph.cycle() {
        None => Ok(()),
        Some(cycle) => {
            let all: Vec<&Ran> = cycle.iter().map(|at| &history[*at]).collect();
            Err(format!("a cycle: {all:?}"))
        }
    }
}

/// Returns the transaction of each value. Each is there once; a committed transaction is there as a whole, others are not.
fn writers(history: &[Ran], lists: &Lists) -> Result<BTreeMap<(Key, i32), usize>, String> {
    let mut all = BTreeMap::new();
    for (at, ran) in history.iter().enumerate() {
        all.extend(ran.appends.iter().map(|append| (*append, at)));
    }
    let mut found = BTreeSet::new();
    for (key, list) in lists {
        for value in list {
            let append = (*key, *value);
            if !found.insert(append) {
                return Err(format!("{append:?} is there twice"));
            }
            match all.get(&append) {
                None => return Err(format!("no one has written {append:?}")),
                Some(at) if !history[*at].is_committed => {
                    return Err(format!("{append:?} of an aborted {:?}", history[*at]));
                }
                Some(_) => {}
            }
        }
    }
    for ran in history.iter().filter(|ran| ran.is_committed) {
        if let Some(append) = ran.appends.iter().find(|append| !found.contains(append)) {
            return Err(format!("{append:?} is lost: {ran:?}"));
        }
    }
    Ok(all)
}

/// Checks that a read saw whole transactions in their order, and that nothing came between it and its own appends.
fn check_read(
    (at, ran): (usize, &Ran),
    (key, read): (Key, &[i32]),
    lists: &Lists,
    writers: &BTreeMap<(Key, i32), usize>,
) -> Result<(), String> {
    let list = lists.get(&key).map_or(&[][..], Vec::as_slice);
    let Some(unseen) = list.strip_prefix(read) else {
        return Err(format!("{read:?} of {key} was never there: {ran:?}"));
    };
    let writer = |value: &i32| writers[&(key, *value)];
    if let (Some(last), Some(next)) = (read.last(), unseen.first())
        && writer(last) == writer(next)
    {
        return Err(format!("{ran:?} saw a part of a transaction in {key}"));
    }
    if ran.is_committed {
        let own = ran.appends.iter().filter(|(of, _)| *of == key);
        let own: Vec<i32> = own.map(|(_, value)| *value).collect();
        if !unseen.starts_with(&own) {
            return Err(format!("a lost update of {key} by {at}: {ran:?}"));
        }
    }
    Ok(())
}

struct Graph {
    before: Vec<BTreeSet<usize>>,
    against: Vec<BTreeSet<usize>>,
}

impl Graph {
    fn new(count: usize) -> Self {
        Self {
            before: vec![BTreeSet::new(); count],
            against: vec![BTreeSet::new(); count],
        }
    }

    fn before(&mut self, one: usize, other: usize) {
        if one != other {
            self.before[one].insert(other);
        }
    }

    fn against(&mut self, one: usize, other: usize) {
        if one != other {
            self.against[one].insert(other);
        }
    }

    /// Returns a cycle of steps *before*, each alone or with a step *against* after it.
    fn cycle(&self) -> Option<Vec<usize>> {
        let steps = self.before.iter().map(|direct| {
            let mut all = direct.clone();
            all.extend(direct.iter().flat_map(|middle| &self.against[*middle]));
            all.into_iter().collect::<Vec<_>>()
        });
        let steps: Vec<Vec<usize>> = steps.collect();
        // Depth first; a node on the path that is reached again closes a cycle.
        let mut is_done = vec![false; steps.len()];
        for start in 0..steps.len() {
            let mut path = vec![(start, 0)];
            while let Some((node, next)) = path.last_mut() {
                let Some(to) = steps[*node].get(*next).copied() else {
                    is_done[*node] = true;
                    path.pop();
                    continue;
                };
                *next += 1;
                if let Some(from) = path.iter().position(|(known, _)| *known == to) {
                    return Some(path.iter().skip(from).map(|(node, _)| *node).collect());
                }
                if !is_done[to] {
                    path.push((to, 0));
                }
            }
        }
        None
    }
}

/// Returns a transaction whose time says nothing.
fn ran(reads: &[(Key, &[i32])], appends: &[(Key, i32)]) -> Ran {
    Ran {
        is_committed: true,
        begun: 0,
        ended: u64::MAX,
        reads: reads
            .iter()
            .map(|(key, list)| (*key, list.to_vec()))
            .collect(),
        appends: appends.to_vec(),
    }
}

fn lists<const N: usize>(all: [(Key, &[i32]); N]) -> Lists {
    all.map(|(key, list)| (key, list.to_vec())).into()
}

#[test]
fn what_snapshot_isolation_allows_is_no_anomaly() {
    // Each sees what the other has not changed: write skew.
    let skew = [
        ran(&[(1, &[]), (2, &[])], &[(1, 10)]),
        ran(&[(1, &[]), (2, &[])], &[(2, 20)]),
    ];
    check(&skew, &lists([(1, &[10]), (2, &[20])])).unwrap();
    let one = ran(&[(1, &[])], &[(1, 10), (1, 11)]);
    let aborted = Ran {
        is_committed: false,
        ..ran(&[(1, &[10, 11])], &[(1, 12)])
    };
    check(&[one, aborted], &lists([(1, &[10, 11])])).unwrap();
}

#[test]
fn anomalies_are_found() {
    let finds = |history: &[Ran], lists: &Lists, text: &str| {
        let found = check(history, lists).unwrap_err();
        assert!(found.contains(text), "{found}");
    };
    let aborted = Ran {
        is_committed: false,
        ..ran(&[], &[(1, 10)])
    };
    let none = lists([(1, &[])]);
    finds(&[ran(&[], &[(1, 10)])], &none, "is lost");
    finds(
        std::slice::from_ref(&aborted),
        &lists([(1, &[10])]),
        "aborted",
    );
    finds(&[aborted, ran(&[(1, &[10])], &[])], &none, "never there");
    finds(&[], &lists([(1, &[10])]), "no one");
    let both = ran(&[], &[(1, 10), (1, 11)]);
    finds(
        std::slice::from_ref(&both),
        &lists([(1, &[10, 11, 10])]),
        "twice",
    );
    finds(
        &[both, ran(&[(1, &[10])], &[])],
        &lists([(1, &[10, 11])]),
        "a part",
    );
    let update = |value| ran(&[(1, &[])], &[(1, value)]);
    finds(
        &[update(10), update(20)],
        &lists([(1, &[10, 20])]),
        "lost update",
    );
    // One list before a transaction, the other after it: read skew.
    let transfer = ran(&[], &[(1, 10), (2, 20)]);
    let skewed = ran(&[(1, &[]), (2, &[20])], &[]);
    let after = lists([(1, &[10]), (2, &[20])]);
    finds(&[transfer.clone(), skewed], &after, "cycle");
    // A read after the end of a transaction that does not see it.
    let early = Ran {
        ended: 5,
        ..transfer
    };
    let stale = Ran {
        begun: 6,
        ..ran(&[(1, &[]), (2, &[])], &[])
    };
    finds(&[early, stale], &after, "cycle");
    // Two readers see two writers in different order.
    let writers = [ran(&[], &[(1, 10)]), ran(&[], &[(2, 20)])];
    let [one, two] = writers;
    let readers = [
        ran(&[(1, &[10]), (2, &[])], &[]),
        ran(&[(1, &[]), (2, &[20])], &[]),
    ];
    let [first, second] = readers;
    finds(&[one, two, first, second], &after, "cycle");
}

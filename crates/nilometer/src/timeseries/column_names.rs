//! Names of columns, held once however many buckets are open.
//!
//! Most buckets of a collection have the same columns, in few orders. Whoever looks for a column in one bucket after
//! another compares names: of each list there is one, and of each name, so that they are at hand.

use std::collections::HashSet;
use std::hash::{BuildHasher, Hash, Hasher};
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use hashbrown::HashTable;

/// Names in all lists together that are known at a time, 16 bytes each; what was known before is forgotten then.
const LISTED_MAX: usize = 1 << 16;

/// Columns of a list of which it is known whether readers ask for them: the first so many.
const ASKED_MAX: usize = u64::BITS as usize;

/// Names in order, and which of them readers asked for.
pub(super) struct Names {
    names: Box<[Arc<str>]>,
    /// A bit for each of the first.
    asked: AtomicU64,
}

pub(super) type NameList = Arc<Names>;

impl Deref for Names {
    type Target = [Arc<str>];

    fn deref(&self) -> &[Arc<str>] {
        &self.names
    }
}

impl Names {
    /// Somebody reads the column at a place.
    pub(super) fn is_asked(&self, at: usize) {
        if at >= ASKED_MAX {
            return;
        }
        // Most were asked for before, and what is written to is slow to read for others.
        if self.asked.load(Ordering::Relaxed) >> at & 1 == 0 {
            self.asked.fetch_or(1 << at, Ordering::Relaxed);
        }
    }

    /// The columns that readers asked for, of any bucket with these; if nobody read one yet, all but the identities, which few
    /// ask for. Of many, the first.
    pub(super) fn asked(&self) -> impl Iterator<Item = usize> + '_ {
        let asked = self.asked.load(Ordering::Relaxed);
        let names = self.names.iter().take(ASKED_MAX).enumerate();
        let asked = names.filter(move |(at, name)| match asked {
            0 => &***name != "_id",
            some => some >> at & 1 == 1,
        });
        asked.map(|(at, _)| at)
    }
}

/// The lists met so far.
#[derive(Default)]
pub(super) struct ColumnNames(Mutex<Known>);

#[derive(Default)]
struct Known {
    hasher: foldhash::fast::RandomState,
    lists: HashTable<NameList>,
    names: HashSet<Arc<str>, foldhash::fast::RandomState>,
    /// Names in the lists.
    listed: usize,
}

fn hash_of<'n>(hasher: &foldhash::fast::RandomState, names: impl Iterator<Item = &'n str>) -> u64 {
    let mut hash = hasher.build_hasher();
    names.for_each(|name| name.hash(&mut hash));
    hash.finish()
}

impl ColumnNames {
    /// The list of these names.
    pub(super) fn list<'n>(&self, names: impl Iterator<Item = &'n str> + Clone) -> NameList {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let hash = hash_of(&known.hasher, names.clone());
        let is_it = |list: &NameList| list.iter().map(|name| &**name).eq(names.clone());
        if let Some(list) = known.lists.find(hash, is_it) {
            return Arc::clone(list);
        }
        if known.listed > LISTED_MAX {
            *known = Known::default();
        }
        let list = Arc::new(Names {
            names: names.map(|name| known.name(name)).collect(),
            asked: AtomicU64::new(0),
        });
        known.listed += list.len();
        known.insert(&list);
        list
    }
}

impl Known {
    fn name(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.names.get(name) {
            return Arc::clone(known);
        }
        let name: Arc<str> = name.into();
        self.names.insert(Arc::clone(&name));
        name
    }

    fn insert(&mut self, list: &NameList) {
        let hasher = &self.hasher;
        let hash = |list: &NameList| hash_of(hasher, list.iter().map(|name| &**name));
        self.lists.insert_unique(hash(list), Arc::clone(list), hash);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_lists_and_names_are_one() {
        let names = ColumnNames::default();
        let first = names.list(["t", "v", "w"].into_iter());
        assert!(Arc::ptr_eq(
            &first,
            &names.list(["t", "v", "w"].into_iter())
        ));
        let turned = names.list(["w", "t", "v"].into_iter());
        assert_eq!(
            turned.iter().map(|n| &**n).collect::<Vec<_>>(),
            ["w", "t", "v"]
        );
        assert!(Arc::ptr_eq(&turned[0], &first[2]));
        // Where one ends and the next begins matters.
        assert_eq!(names.list(["tv", "w"].into_iter()).len(), 2);
        assert_eq!(names.list(std::iter::empty()).len(), 0);
    }

    #[test]
    fn what_was_asked_for_is_known() {
        let names = ColumnNames::default();
        let list = names.list(["t", "v", "w"].into_iter());
        let asked = || list.asked().collect::<Vec<_>>();
        assert_eq!(asked(), [0, 1, 2], "nobody asked");
        list.is_asked(2);
        list.is_asked(2);
        assert_eq!(asked(), [2]);
        list.is_asked(0);
        list.is_asked(ASKED_MAX);
        assert_eq!(asked(), [0, 2]);
        let with_id = names.list(["t", "_id", "v"].into_iter());
        assert_eq!(with_id.asked().collect::<Vec<_>>(), [0, 2]);
        with_id.is_asked(1);
        assert_eq!(with_id.asked().collect::<Vec<_>>(), [1]);
        let many: Vec<String> = (0..100).map(|at| at.to_string()).collect();
        let many = names.list(many.iter().map(String::as_str));
        assert_eq!(many.asked().count(), ASKED_MAX);
    }

    #[test]
    fn what_is_too_much_is_forgotten() {
        let names = ColumnNames::default();
        let first = names.list(["t", "v"].into_iter());
        for at in 0..LISTED_MAX / 2 + 2 {
            let name = at.to_string();
            assert_eq!(names.list(["t", &name].into_iter()).len(), 2);
        }
        assert!(names.0.lock().unwrap().listed < LISTED_MAX);
        assert!(!Arc::ptr_eq(&first, &names.list(["t", "v"].into_iter())));
    }
}

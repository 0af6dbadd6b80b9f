//! Names of columns, held once however many buckets are open.
//!
//! ```text
//! measurements show   t w v   |   t v w         orders: one for each bucket, if writers have none
//! places              t v w   |   t v w         one list for both: a column is at the same place in each
//! ```
//!
//! Most buckets of a collection have the same columns. Whoever looks for a column in one bucket after
//! another compares names: of each list there is one, and of each name, so that they are at hand.

use std::collections::HashSet;
use std::hash::{BuildHasher, Hash, Hasher};
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use hashbrown::HashTable;

/// Names in all lists together that are known at a time, 16 bytes each, and places in all orders; what was known before is
/// forgotten then.
const LISTED_MAX: usize = 1 << 16;

/// Columns of a list of which it is known whether readers ask for them: the first so many.
const ASKED_MAX: usize = u64::BITS as usize;

/// Different names by the places of their columns, ascending, and which of them readers asked for.
pub(crate) struct Names {
    names: Box<[Arc<str>]>,
    /// A bit for each of the first.
    asked: AtomicU64,
}

pub(crate) type NameList = Arc<Names>;

/// The names of a bucket's columns in the order in which its measurements show them.
pub(crate) struct ColumnOrder {
    /// Those names by place.
    pub(crate) names: NameList,
    /// Their places as they are shown.
    pub(crate) shown: Box<[u32]>,
}

impl ColumnOrder {
    fn iter(&self) -> impl Iterator<Item = &str> {
        let places = self.shown.iter();
        places.filter_map(|at| self.names.get(*at as usize).map(|name| &**name))
    }
}

impl Deref for Names {
    type Target = [Arc<str>];

    fn deref(&self) -> &[Arc<str>] {
        &self.names
    }
}

impl Names {
    /// Somebody reads the column at a place.
    pub(crate) fn is_asked(&self, at: usize) {
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
    pub(crate) fn asked(&self) -> impl Iterator<Item = usize> + '_ {
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
pub(crate) struct ColumnNames(Mutex<Known>);

#[derive(Default)]
struct Known {
    hasher: foldhash::fast::RandomState,
    lists: HashTable<NameList>,
    names: HashSet<Arc<str>, foldhash::fast::RandomState>,
    /// Names in the lists.
    listed: usize,
    orders: HashTable<Arc<ColumnOrder>>,
    /// Places in the orders.
    ordered: usize,
}

fn hash_of<'n>(hasher: &foldhash::fast::RandomState, names: impl Iterator<Item = &'n str>) -> u64 {
    let mut hash = hasher.build_hasher();
    names.for_each(|name| name.hash(&mut hash));
    hash.finish()
}

impl ColumnNames {
    /// The order of columns with these names, which measurements show one after the other.
    pub(crate) fn order<'n>(
        &self,
        names: impl Iterator<Item = &'n str> + Clone,
    ) -> Arc<ColumnOrder> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let hash = hash_of(&known.hasher, names.clone());
        let is_it = |order: &Arc<ColumnOrder>| order.iter().eq(names.clone());
        if let Some(order) = known.orders.find(hash, is_it) {
            return Arc::clone(order);
        }
        let mut sorted: Vec<(&str, usize)> = names.zip(0..).collect();
        sorted.sort_unstable();
        let mut shown = vec![0; sorted.len()].into_boxed_slice();
        for (place, (_, nth)) in (0..).zip(&sorted) {
            if let Some(slot) = shown.get_mut(*nth) {
                *slot = place;
            }
        }
        let names = known.list(sorted.iter().map(|(name, _)| *name));
        let order = Arc::new(ColumnOrder { names, shown });
        known.remember(&order);
        order
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

    /// The list of these names, which ascend.
    fn list<'n>(&mut self, names: impl Iterator<Item = &'n str> + Clone) -> NameList {
        let hash = hash_of(&self.hasher, names.clone());
        let is_it = |list: &NameList| list.iter().map(|name| &**name).eq(names.clone());
        if let Some(list) = self.lists.find(hash, is_it) {
            return Arc::clone(list);
        }
        if self.listed > LISTED_MAX {
            *self = Self::default();
        }
        let list = Arc::new(Names {
            names: names.map(|name| self.name(name)).collect(),
            asked: AtomicU64::new(0),
        });
        self.listed += list.len();
        let hasher = &self.hasher;
        let hash = |list: &NameList| hash_of(hasher, list.iter().map(|name| &**name));
        self.lists
            .insert_unique(hash(&list), Arc::clone(&list), hash);
        list
    }

    fn remember(&mut self, order: &Arc<ColumnOrder>) {
        // Where each bucket has an order of its own the lists, which are few, stay.
        if self.ordered > LISTED_MAX {
            self.orders.clear();
            self.ordered = 0;
        }
        self.ordered += order.shown.len();
        let hasher = &self.hasher;
        let hash = |order: &Arc<ColumnOrder>| hash_of(hasher, order.iter());
        self.orders
            .insert_unique(hash(order), Arc::clone(order), hash);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_lists_and_names_are_one() {
        let names = ColumnNames::default();
        let first = names.order(["t", "w", "v"].into_iter());
        assert_eq!(*first.shown, [0, 2, 1]);
        let again = names.order(["t", "w", "v"].into_iter());
        assert!(Arc::ptr_eq(&first, &again));
        let turned = names.order(["w", "t", "v"].into_iter());
        assert!(Arc::ptr_eq(&turned.names, &first.names));
        assert_eq!(turned.iter().collect::<Vec<_>>(), ["w", "t", "v"]);
        let fewer = names.order(["w", "a"].into_iter());
        assert_eq!(fewer.iter().collect::<Vec<_>>(), ["w", "a"]);
        assert!(Arc::ptr_eq(&fewer.names[1], &first.names[2]));
        // Where one ends and the next begins matters.
        assert_eq!(names.order(["tv", "w"].into_iter()).names.len(), 2);
        assert_eq!(names.order(std::iter::empty()).names.len(), 0);
    }

    #[test]
    fn what_was_asked_for_is_known() {
        let names = ColumnNames::default();
        let list = &names.order(["t", "v", "w"].into_iter()).names;
        let asked = || list.asked().collect::<Vec<_>>();
        assert_eq!(asked(), [0, 1, 2], "nobody asked");
        list.is_asked(2);
        list.is_asked(2);
        assert_eq!(asked(), [2]);
        list.is_asked(0);
        list.is_asked(ASKED_MAX);
        assert_eq!(asked(), [0, 2]);
        let with_id = &names.order(["t", "_id", "v"].into_iter()).names;
        assert_eq!(with_id.asked().collect::<Vec<_>>(), [1, 2]);
        with_id.is_asked(0);
        assert_eq!(with_id.asked().collect::<Vec<_>>(), [0]);
        let many: Vec<String> = (0..100).map(|at| at.to_string()).collect();
        let many = names.order(many.iter().map(String::as_str));
        assert_eq!(many.names.asked().count(), ASKED_MAX);
    }

    #[test]
    fn what_is_too_much_is_forgotten() {
        let names = ColumnNames::default();
        let ordered = |list: &[&str]| names.order(list.iter().copied());
        let first = ordered(&["t", "v"]);
        for at in 0..LISTED_MAX / 2 + 2 {
            let order = ordered(&["t", &at.to_string()]);
            assert_eq!(order.names.len(), 2);
        }
        assert!(names.0.lock().unwrap().listed < LISTED_MAX);
        assert!(!Arc::ptr_eq(&first.names, &ordered(&["t", "v"]).names));
    }

    #[test]
    fn orders_are_forgotten_and_the_list_stays() {
        let names = ColumnNames::default();
        let mut of_one_bucket: Vec<String> = (0..64).map(|at| format!("{at:02}")).collect();
        let first = names.order(of_one_bucket.iter().map(String::as_str));
        for at in 0..LISTED_MAX / 64 + 2 {
            of_one_bucket.swap(at % 64, at * 7 % 64);
            let order = names.order(of_one_bucket.iter().map(String::as_str));
            assert!(Arc::ptr_eq(&first.names, &order.names));
            assert!(order.iter().eq(of_one_bucket.iter().map(String::as_str)));
        }
        assert!(names.0.lock().unwrap().ordered < LISTED_MAX);
    }
}

//! One copy of what buckets repeat: ids for metadata and for constant fields, and the names of columns.
//!
//! ```text
//! id of bytes     {host: "a"} -> 17          equal bytes have equal ids, so a comparison of ids replaces one of documents
//! column order    t w v  and  w t v          the order of the columns in a bucket, which a client may vary
//! column names    t v w  for both            a column has the same place in all buckets with the same names
//! ```
//!
//! An id belongs to one byte string for the life of the process: bytes that were evicted get another id when they come
//! back, and no id is used twice. Each of the three tables has a share of the interner's budget and is emptied when it
//! exceeds that. Users of an evicted list keep it alive.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hash, Hasher};
use std::num::NonZeroU64;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::HashTable;

use crate::budget::Budgeted;

/// Default budget of the interner, in bytes.
pub(crate) const INTERNER_BYTES_MAX: usize = 32 << 20;

/// The lists of names, and the orders, may each take one part in this many of the budget; ids take the rest.
const LIST_SHARE: usize = 16;

/// Overhead of one id, with its share of the empty slots of the table, in bytes.
const ID_BYTES: usize = 2 * size_of::<(Box<[u8]>, NonZeroU64)>();

/// Columns of a list whose use is tracked: the first ones.
const TRACKED_COLUMNS_MAX: usize = u64::BITS as usize;

/// The next id. It is shared by all databases of the process, because ids of two of them may meet in one query.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// Column names by place, ascending, and which of the columns readers have requested.
pub(crate) struct ColumnNames {
    names: Box<[Arc<str>]>,
    /// One bit for each of the first [`TRACKED_COLUMNS_MAX`] columns.
    requested: AtomicU64,
}

impl Deref for ColumnNames {
    type Target = [Arc<str>];

    fn deref(&self) -> &[Arc<str>] {
        &self.names
    }
}

impl ColumnNames {
    /// Records that a reader has requested the column at a place.
    pub(crate) fn mark_requested(&self, at: usize) {
        if at >= TRACKED_COLUMNS_MAX {
            return;
        }
        // The bit is set already in most cases, and a write would slow down the readers on other cores.
        if self.requested.load(Ordering::Relaxed) >> at & 1 == 0 {
            self.requested.fetch_or(1 << at, Ordering::Relaxed);
        }
    }

    /// Returns the places of the tracked columns that readers have requested in any bucket with these names. Before the
    /// first request it returns all but `_id`, which few queries read.
    pub(crate) fn requested(&self) -> impl Iterator<Item = usize> + '_ {
        let requested = self.requested.load(Ordering::Relaxed);
        let names = self.names.iter().take(TRACKED_COLUMNS_MAX).enumerate();
        let requested = names.filter(move |(at, name)| match requested {
            0 => &***name != "_id",
            bits => bits >> at & 1 == 1,
        });
        requested.map(|(at, _)| at)
    }
}

/// The columns of a bucket in the order of its `data`.
pub(crate) struct ColumnOrder {
    /// The names by place.
    pub(crate) names: Arc<ColumnNames>,
    /// The place of each column, in the order of `data`.
    pub(crate) shown: Box<[u32]>,
}

impl ColumnOrder {
    /// Returns the places and names of the columns, in the order of `data`.
    pub(crate) fn places(&self) -> impl Iterator<Item = (usize, &Arc<str>)> + Clone {
        let places = self.shown.iter().map(|at| *at as usize);
        places.filter_map(|at| Some((at, self.names.get(at)?)))
    }

    fn iter(&self) -> impl Iterator<Item = &str> {
        self.shown.iter().map(|at| &*self.names[*at as usize])
    }
}

/// Hands out ids and shared lists of column names.
pub(crate) struct Interner(Budgeted<Tables>);

impl Default for Interner {
    fn default() -> Self {
        Self(Budgeted::new(INTERNER_BYTES_MAX))
    }
}

impl Interner {
    /// Changes the budget. It takes effect with the next insertion.
    pub(crate) fn set_bytes_max(&self, bytes: usize) {
        self.0.set_bytes_max(bytes);
    }

    /// Returns the memory in use, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let tables = self.0.lock();
        tables.ids.bytes + tables.lists.bytes + tables.orders.bytes
    }

    /// Returns the id of a byte string. `None` if the process has run out of ids.
    pub(crate) fn id_of(&self, bytes: &[u8]) -> Option<NonZeroU64> {
        let budget = self.0.bytes_max() - 2 * (self.0.bytes_max() / LIST_SHARE);
        self.0.lock().ids.id_of(bytes, budget)
    }

    /// Returns the order of columns with these names.
    pub(crate) fn column_order<'n>(
        &self,
        names: impl Iterator<Item = &'n str> + Clone,
    ) -> Arc<ColumnOrder> {
        let budget = self.0.bytes_max() / LIST_SHARE;
        let mut tables = self.0.lock();
        if let Some(order) = tables.orders.get(names.clone()) {
            return order;
        }
        let mut sorted: Vec<(&str, usize)> = names.zip(0..).collect();
        sorted.sort_unstable();
        let mut shown = vec![0; sorted.len()].into_boxed_slice();
        for (place, (_, nth)) in (0..).zip(&sorted) {
            shown[*nth] = place;
        }
        let names = sorted.iter().map(|(name, _)| *name);
        let names = tables.lists.intern(names, budget);
        let order = Arc::new(ColumnOrder { names, shown });
        tables.orders.insert(&order, budget);
        order
    }
}

#[derive(Default)]
struct Tables {
    ids: IdTable,
    lists: ListTable,
    orders: OrderTable,
}

/// Ids by bytes.
#[derive(Default)]
struct IdTable {
    ids: HashMap<Box<[u8]>, NonZeroU64, foldhash::fast::RandomState>,
    bytes: usize,
}

impl IdTable {
    fn id_of(&mut self, key: &[u8], budget: usize) -> Option<NonZeroU64> {
        if let Some(id) = self.ids.get(key) {
            return Some(*id);
        }
        let bytes = key.len() + ID_BYTES;
        if self.bytes + bytes > budget {
            *self = Self::default();
        }
        let id = NonZeroU64::new(NEXT_ID.fetch_add(1, Ordering::Relaxed))?;
        self.bytes += bytes;
        self.ids.insert(key.into(), id);
        Some(id)
    }
}

fn hash_of<'n>(hasher: &foldhash::fast::RandomState, names: impl Iterator<Item = &'n str>) -> u64 {
    let mut hash = hasher.build_hasher();
    names.for_each(|name| name.hash(&mut hash));
    hash.finish()
}

/// Lists of names, which share equal names.
#[derive(Default)]
struct ListTable {
    hasher: foldhash::fast::RandomState,
    lists: HashTable<Arc<ColumnNames>>,
    names: HashSet<Arc<str>, foldhash::fast::RandomState>,
    bytes: usize,
}

impl ListTable {
    /// Returns the list of these names, which ascend.
    fn intern<'n>(
        &mut self,
        names: impl Iterator<Item = &'n str> + Clone,
        budget: usize,
    ) -> Arc<ColumnNames> {
        let hash = hash_of(&self.hasher, names.clone());
        let is_equal = |list: &Arc<ColumnNames>| list.iter().map(|name| &**name).eq(names.clone());
        if let Some(list) = self.lists.find(hash, is_equal) {
            return Arc::clone(list);
        }
        if self.bytes > budget {
            *self = Self::default();
        }
        let list = Arc::new(ColumnNames {
            names: names.map(|name| self.name(name)).collect(),
            requested: AtomicU64::new(0),
        });
        self.bytes += size_of::<ColumnNames>() + list.len() * size_of::<Arc<str>>();
        let hasher = &self.hasher;
        let hash = |list: &Arc<ColumnNames>| hash_of(hasher, list.iter().map(|name| &**name));
        self.lists
            .insert_unique(hash(&list), Arc::clone(&list), hash);
        list
    }

    fn name(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.names.get(name) {
            return Arc::clone(known);
        }
        self.bytes += size_of::<Arc<str>>() + name.len();
        let name: Arc<str> = name.into();
        self.names.insert(Arc::clone(&name));
        name
    }
}

/// Orders of columns. They have a budget apart from that of the lists: if each bucket has an order of its own, the lists,
/// which are few, stay.
#[derive(Default)]
struct OrderTable {
    hasher: foldhash::fast::RandomState,
    orders: HashTable<Arc<ColumnOrder>>,
    bytes: usize,
}

impl OrderTable {
    fn get<'n>(&self, names: impl Iterator<Item = &'n str> + Clone) -> Option<Arc<ColumnOrder>> {
        let hash = hash_of(&self.hasher, names.clone());
        let is_equal = |order: &Arc<ColumnOrder>| order.iter().eq(names.clone());
        self.orders.find(hash, is_equal).map(Arc::clone)
    }

    fn insert(&mut self, order: &Arc<ColumnOrder>, budget: usize) {
        if self.bytes > budget {
            self.orders.clear();
            self.bytes = 0;
        }
        self.bytes += size_of::<ColumnOrder>() + size_of_val(&*order.shown);
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
    fn an_id_stands_for_the_same_bytes_always() {
        let interner = Interner::default();
        let one = interner.id_of(b"one");
        assert!(one.is_some() && one == interner.id_of(b"one") && one != interner.id_of(b"other"));
        assert_ne!(Interner::default().id_of(b"other"), one);
        let budget = INTERNER_BYTES_MAX - 2 * (INTERNER_BYTES_MAX / LIST_SHARE);
        let large = vec![7; budget - ID_BYTES];
        interner.id_of(&large);
        assert_eq!(interner.memory_bytes(), budget);
        // Evicted, and its id is not used again.
        assert_ne!(interner.id_of(b"one"), one);
    }

    #[test]
    fn equal_lists_and_names_are_one() {
        let interner = Interner::default();
        let first = interner.column_order(["t", "w", "v"].into_iter());
        assert_eq!(*first.shown, [0, 2, 1]);
        let again = interner.column_order(["t", "w", "v"].into_iter());
        assert!(Arc::ptr_eq(&first, &again));
        let turned = interner.column_order(["w", "t", "v"].into_iter());
        assert!(Arc::ptr_eq(&turned.names, &first.names));
        assert_eq!(turned.iter().collect::<Vec<_>>(), ["w", "t", "v"]);
        let fewer = interner.column_order(["w", "a"].into_iter());
        assert_eq!(fewer.iter().collect::<Vec<_>>(), ["w", "a"]);
        assert!(Arc::ptr_eq(&fewer.names[1], &first.names[2]));
        // The boundary between two names matters.
        assert_eq!(
            interner.column_order(["tv", "w"].into_iter()).names.len(),
            2
        );
        assert_eq!(interner.column_order(std::iter::empty()).names.len(), 0);
    }

    #[test]
    fn requested_columns_are_recorded() {
        let interner = Interner::default();
        let list = &interner.column_order(["t", "v", "w"].into_iter()).names;
        let requested = || list.requested().collect::<Vec<_>>();
        assert_eq!(requested(), [0, 1, 2], "no request yet");
        list.mark_requested(2);
        list.mark_requested(2);
        assert_eq!(requested(), [2]);
        list.mark_requested(0);
        list.mark_requested(TRACKED_COLUMNS_MAX);
        assert_eq!(requested(), [0, 2]);
        let with_id = &interner.column_order(["t", "_id", "v"].into_iter()).names;
        assert_eq!(with_id.requested().collect::<Vec<_>>(), [1, 2]);
        with_id.mark_requested(0);
        assert_eq!(with_id.requested().collect::<Vec<_>>(), [0]);
        let many: Vec<String> = (0..100).map(|at| at.to_string()).collect();
        let many = interner.column_order(many.iter().map(String::as_str));
        assert_eq!(many.names.requested().count(), TRACKED_COLUMNS_MAX);
    }

    #[test]
    fn lists_over_the_budget_are_evicted() {
        let interner = Interner::default();
        interner.set_bytes_max(1 << 20);
        let order = |list: &[&str]| interner.column_order(list.iter().copied());
        let first = order(&["t", "v"]);
        for at in 0..(1 << 20) / LIST_SHARE / 16 {
            let order = order(&["t", &at.to_string()]);
            assert_eq!(order.names.len(), 2);
        }
        assert!(interner.memory_bytes() <= 2 * ((1 << 20) / LIST_SHARE) + 1024);
        assert!(!Arc::ptr_eq(&first.names, &order(&["t", "v"]).names));
    }

    #[test]
    fn orders_over_the_budget_are_evicted_and_the_list_stays() {
        let interner = Interner::default();
        interner.set_bytes_max(1 << 20);
        let mut of_one_bucket: Vec<String> = (0..64).map(|at| format!("{at:02}")).collect();
        let first = interner.column_order(of_one_bucket.iter().map(String::as_str));
        for at in 0..(1 << 20) / LIST_SHARE / 64 {
            of_one_bucket.swap(at % 64, at * 7 % 64);
            let order = interner.column_order(of_one_bucket.iter().map(String::as_str));
            assert!(Arc::ptr_eq(&first.names, &order.names));
            assert!(order.iter().eq(of_one_bucket.iter().map(String::as_str)));
        }
        let orders = interner.0.lock().orders.bytes;
        assert!(orders <= (1 << 20) / LIST_SHARE + 1024);
    }
}

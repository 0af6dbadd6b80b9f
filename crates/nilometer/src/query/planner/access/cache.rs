//! The plan cache: trial results by query shape.
//!
//! ```text
//! shape   the filter without its constants, the order, the projection, the collation ─► queryHash
//!         with the indexes the query could use                                        ─► planCacheKey
//! ```
//!
//! An entry holds the winning candidate and the work it took. It begins inactive. A second trial of the same shape
//! that takes no more work activates it; one that takes more doubles the allowed work. An active entry is used
//! without a trial until it takes ten times its work, which starts a new trial. A change of the collection's
//! indexes invalidates it.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;

use nilometer_bson::order::canonical_type;
use nilometer_bson::{Document, Value, doc};

use super::filters::IndexFilters;
use super::{Candidate, KeyPlan};
use crate::budget::Budgeted;
use crate::eval::matcher::MatchExpression;
use crate::index::Index;

/// The maximum number of entries; the least recently used one is evicted.
const ENTRIES_MAX: usize = 5000;

/// The default memory limit of the entries.
pub const PLAN_CACHE_BYTES_MAX: usize = 32 << 20;

/// The size of an entry besides its strings and its query: slots in the table, lengths.
const ENTRY_BYTES: usize = 2 * size_of::<((Arc<str>, u32), CachedPlan)>();

/// The multiple of an entry's work at which its plan is discarded.
pub const WORSE_BEFORE_TRIAL: u64 = 10;

/// Plans by namespace and shape, and the index filters of shapes.
#[derive(Debug)]
pub struct PlanCache(Budgeted<CachedPlans>, Arc<IndexFilters>);

impl Default for PlanCache {
    fn default() -> Self {
        Self(Budgeted::new(PLAN_CACHE_BYTES_MAX), Arc::default())
    }
}

#[derive(Debug, Default)]
struct CachedPlans {
    entries: HashMap<(Arc<str>, u32), CachedPlan>,
    clock: u64,
}

impl CachedPlans {
    fn memory_bytes(&self) -> usize {
        let entries = self.entries.iter();
        entries.map(|(key, entry)| entry.memory_bytes(key)).sum()
    }
}

#[derive(Clone, Debug)]
struct CachedPlan {
    /// The candidate's signature: what it reads, without constants.
    signature: String,
    works: u64,
    active: bool,
    used: u64,
    query_hash: u32,
    created_from: Document,
}

impl CachedPlan {
    fn memory_bytes(&self, (namespace, _): &(Arc<str>, u32)) -> usize {
        let query = self.created_from.as_bytes().len();
        ENTRY_BYTES + namespace.len() + self.signature.len() + query
    }
}

/// A plan from an active entry.
#[derive(Clone, Debug)]
pub struct Known {
    /// The candidate's signature.
    pub signature: String,
    /// The work it took.
    pub works: u64,
}

/// The hashes of a query's shape.
#[derive(Clone, Copy, Debug)]
pub struct ShapeHashes {
    /// Hash of the query alone.
    pub query_hash: u32,
    /// Hash of the query and the indexes.
    pub plan_cache_key: u32,
}

impl PlanCache {
    /// Returns an empty cache with the same index filters: explain always runs a new trial.
    pub fn without_plans(&self) -> Self {
        Self(Budgeted::new(PLAN_CACHE_BYTES_MAX), Arc::clone(&self.1))
    }

    /// Returns the index filters.
    pub fn filters(&self) -> &IndexFilters {
        &self.1
    }

    /// Returns the plan for a shape, if its entry is active.
    pub fn get(&self, namespace: &str, hashes: ShapeHashes) -> Option<Known> {
        let mut state = self.0.lock();
        state.clock += 1;
        let now = state.clock;
        let key = (Arc::from(namespace), hashes.plan_cache_key);
        let entry = state.entries.get_mut(&key)?;
        entry.used = now;
        entry.active.then(|| Known {
            signature: entry.signature.clone(),
            works: entry.works,
        })
    }

    /// Records the result of a trial.
    pub fn put(
        &self,
        namespace: &str,
        hashes: ShapeHashes,
        signature: String,
        works: u64,
        created_from: Document,
    ) {
        let mut state = self.0.lock();
        state.clock += 1;
        let now = state.clock;
        let key = (Arc::from(namespace), hashes.plan_cache_key);
        if let Some(entry) = state.entries.get_mut(&key) {
            entry.used = now;
            if works <= entry.works || entry.active {
                entry.active = true;
                entry.works = works;
                entry.signature = signature;
            } else {
                entry.works = entry.works.saturating_mul(2);
            }
            return;
        }
        let entry = CachedPlan {
            signature,
            works,
            active: false,
            used: now,
            query_hash: hashes.query_hash,
            created_from,
        };
        let mut bytes = state.memory_bytes() + entry.memory_bytes(&key);
        let most = self.0.bytes_max();
        while state.entries.len() >= ENTRIES_MAX || bytes > most {
            let oldest = state.entries.iter().min_by_key(|(_, entry)| entry.used);
            let Some(oldest) = oldest.map(|(key, _)| key.clone()) else {
                // A single entry above the limit.
                return;
            };
            let gone = state.entries.remove(&oldest);
            bytes -= gone.map_or(0, |gone| gone.memory_bytes(&oldest));
        }
        state.entries.insert(key, entry);
    }

    /// Sets the memory limit; it applies from the next insertion.
    pub fn set_bytes_max(&self, bytes: usize) {
        self.0.set_bytes_max(bytes);
    }

    /// Returns the memory of the entries.
    pub fn memory_bytes(&self) -> usize {
        let state = self.0.lock();
        state.memory_bytes()
    }

    /// Deactivates a plan that took far more work than recorded, so that a trial runs again.
    pub fn deactivate(&self, namespace: &str, hashes: ShapeHashes) {
        let mut state = self.0.lock();
        let key = (Arc::from(namespace), hashes.plan_cache_key);
        state.entries.remove(&key);
    }

    /// Removes the plans of a collection, or those of one shape.
    pub fn clear(&self, namespace: &str, query_hash: Option<u32>) {
        let mut state = self.0.lock();
        state.entries.retain(|(own, _), entry| {
            **own != *namespace || query_hash.is_some_and(|hash| entry.query_hash != hash)
        });
    }

    /// Returns the entries of a collection, for `$planCacheStats`.
    pub fn stats(&self, namespace: &str, host: &str) -> Vec<Document> {
        let state = self.0.lock();
        let mut found: Vec<_> = state.entries.iter().collect();
        found.retain(|((own, _), _)| **own == *namespace);
        found.sort_by_key(|((_, key), _)| *key);
        let shown = found.into_iter().map(|((_, key), entry)| {
            doc! {
                "version": "1",
                "queryHash": hex(entry.query_hash),
                "planCacheShapeHash": hex(entry.query_hash),
                "planCacheKey": hex(*key),
                "isActive": entry.active,
                "works": i64::try_from(entry.works).unwrap_or(i64::MAX),
                "createdFromQuery": entry.created_from.clone(),
                "cachedPlan": entry.signature.as_str(),
                "host": host,
            }
        });
        shown.collect()
    }
}

/// Formats a hash for replies.
pub fn hex(hash: u32) -> String {
    format!("{hash:08X}")
}

/// Describes what a candidate reads: indexes, directions and how it joins them. Equal for queries of one shape.
pub fn signature(candidate: &Candidate) -> String {
    let keys = &candidate.access.keys;
    let mut out = String::from(match keys {
        KeyPlan::Scan(_) => "IXSCAN",
        KeyPlan::Union(_) => "OR",
        KeyPlan::Merge(..) => "SORT_MERGE",
    });
    let mut last = String::new();
    for scan in keys.scans() {
        let direction = if scan.backward { "backward" } else { "forward" };
        let mut one = String::new();
        let _ = write!(one, " {} {direction}", scan.index.stored.spec.name);
        if scan.index.is_wildcard()
            && let Some(part) = scan.shape.parts.last()
        {
            let _ = write!(one, " {}", part.path);
        }
        // One scan per value is one plan, however many values there are.
        if one != last {
            out.push_str(&one);
        }
        last = one;
    }
    out
}

/// Returns the hashes of a query's shape; `rest` holds order, projection and collation.
pub fn hashes(filter: Option<&MatchExpression>, rest: &str, indexes: &[Arc<Index>]) -> ShapeHashes {
    let mut shape = String::new();
    if let Some(filter) = filter {
        shape_of(filter, &mut shape);
    }
    shape.push('|');
    shape.push_str(rest);
    let query_hash = hash_of(&shape);
    for index in indexes {
        let stored = &index.stored;
        let _ = write!(
            shape,
            "|{}:{}:{}",
            stored.spec.name,
            stored.keyspace.0,
            stored.multikey()
        );
    }
    ShapeHashes {
        query_hash,
        plan_cache_key: hash_of(&shape),
    }
}

/// FNV-1a: the same in every version, because clients store these hashes.
fn hash_of(text: &str) -> u32 {
    const OFFSET: u32 = 0x811C_9DC5;
    const PRIME: u32 = 0x0100_0193;
    let bytes = text.bytes();
    bytes.fold(OFFSET, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(PRIME)
    })
}

/// Writes a filter without its constants, except properties of them that decide which indexes are usable.
fn shape_of(filter: &MatchExpression, out: &mut String) {
    let arms = |name: &str, arms: &[MatchExpression], out: &mut String| {
        out.push_str(name);
        out.push('(');
        for arm in arms {
            shape_of(arm, out);
            out.push(',');
        }
        out.push(')');
    };
    let kind = |value: &Value| canonical_type(value.as_ref()) as u8;
    match filter {
        MatchExpression::And(list) => arms("and", list, out),
        MatchExpression::Or(list) => arms("or", list, out),
        MatchExpression::Nor(list) => arms("nor", list, out),
        MatchExpression::Not(arm) => arms("not", std::slice::from_ref(arm), out),
        MatchExpression::Compare(c) => {
            let _ = write!(out, "{}{}:{}", c.op.name(), c.path.as_str(), kind(&c.value));
        }
        MatchExpression::ExprCompare(c) => {
            let _ = write!(out, "{}{}", c.op.expr_name(), c.path.as_str());
        }
        MatchExpression::In(list) => {
            let kinds = list.values().iter().map(kind).max().unwrap_or(0);
            let patterns = !list.patterns().is_empty();
            let _ = write!(out, "$in{}:{kinds}:{patterns}", list.path.as_str());
        }
        MatchExpression::Regex { path, pattern } => {
            let rooted = pattern.source().starts_with('^');
            let _ = write!(out, "$regex{}:{rooted}", path.as_str());
        }
        MatchExpression::ElemMatchObject { path, filter } => {
            let _ = write!(out, "$elemMatch{}", path.as_str());
            arms("", std::slice::from_ref(filter), out);
        }
        MatchExpression::ElemMatchValue { path, tests } => {
            let _ = write!(out, "$elemMatch{}", path.as_str());
            arms("", tests, out);
        }
        MatchExpression::AlwaysTrue => out.push_str("true"),
        MatchExpression::AlwaysFalse => out.push_str("false"),
        MatchExpression::Expr(_) => out.push_str("$expr"),
        MatchExpression::JsonSchema(_) => out.push_str("$jsonSchema"),
        MatchExpression::Text(_) => out.push_str("$text"),
        MatchExpression::Exists(path) => {
            let _ = write!(out, "$exists{}", path.as_str());
        }
        MatchExpression::Type { path, .. } => {
            let _ = write!(out, "$type{}", path.as_str());
        }
        MatchExpression::Mod { path, .. } => {
            let _ = write!(out, "$mod{}", path.as_str());
        }
        MatchExpression::Size { path, .. } => {
            let _ = write!(out, "$size{}", path.as_str());
        }
        MatchExpression::Bits { path, .. } => {
            let _ = write!(out, "$bits{}", path.as_str());
        }
        MatchExpression::Geo { path, test } => {
            let _ = write!(out, "{}{}", test.name(), path.as_str());
        }
        // Operators added later.
        other => {
            let _ = write!(out, "{:?}", std::mem::discriminant(other));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::ParseContext;

    const SHAPE: ShapeHashes = ShapeHashes {
        query_hash: 1,
        plan_cache_key: 2,
    };

    fn put(cache: &PlanCache, works: u64) {
        cache.put("d.c", SHAPE, "IXSCAN a_1 forward".into(), works, doc! {});
    }

    #[test]
    fn a_plan_is_believed_in_once_it_did_as_well_again() {
        let cache = PlanCache::default();
        put(&cache, 10);
        assert!(cache.get("d.c", SHAPE).is_none());
        // Worse: the allowed work doubles.
        put(&cache, 15);
        assert!(cache.get("d.c", SHAPE).is_none());
        put(&cache, 15);
        assert_eq!(cache.get("d.c", SHAPE).map(|known| known.works), Some(15));
        assert!(cache.get("d.other", SHAPE).is_none());
        cache.deactivate("d.c", SHAPE);
        assert!(cache.get("d.c", SHAPE).is_none());
    }

    #[test]
    fn what_was_not_used_for_longest_makes_room() {
        let cache = PlanCache::default();
        let put = |key: u32, bytes: usize| {
            let hashes = ShapeHashes {
                plan_cache_key: key,
                ..SHAPE
            };
            cache.put(
                "d.c",
                hashes,
                String::new(),
                1,
                doc! {"f": "x".repeat(bytes)},
            );
        };
        let keys = || -> Vec<String> {
            let shown = cache.stats("d.c", "h");
            let keys = shown
                .iter()
                .map(|entry| entry.get("planCacheKey").as_str().map(str::to_owned));
            keys.collect::<Option<_>>().expect("names")
        };
        cache.set_bytes_max(3 * (1000 + ENTRY_BYTES + 30));
        for key in 0..3 {
            put(key, 1000);
        }
        let full = cache.memory_bytes();
        assert!(
            (3000..=3 * (1000 + ENTRY_BYTES + 30)).contains(&full),
            "{full}"
        );
        put(0, 1000);
        put(3, 1000);
        assert_eq!(keys(), [hex(0), hex(2), hex(3)]);
        put(4, 2000);
        assert_eq!(keys(), [hex(3), hex(4)]);
        put(5, 1 << 20);
        assert!(cache.memory_bytes() <= full);
    }

    #[test]
    fn plans_are_forgotten_by_collection_and_shape() {
        let cache = PlanCache::default();
        put(&cache, 1);
        put(&cache, 1);
        cache.clear("d.c", Some(7));
        cache.clear("d.other", None);
        assert_eq!(cache.stats("d.c", "h").len(), 1);
        cache.clear("d.c", Some(1));
        assert!(cache.stats("d.c", "h").is_empty());
    }

    #[test]
    fn a_shape_has_no_constants() {
        let hash = |filter: Document| {
            let filter = MatchExpression::parse(filter.as_ref(), &ParseContext::new()).unwrap();
            hashes(Some(&filter), "", &[]).query_hash
        };
        assert_eq!(hash(doc! {"a": 1}), hash(doc! {"a": 2.5}));
        assert_ne!(hash(doc! {"a": 1}), hash(doc! {"b": 1}));
        assert_ne!(hash(doc! {"a": 1}), hash(doc! {"a": doc! {"$gt": 1}}));
        // The values an index can answer are part of the shape.
        assert_ne!(hash(doc! {"a": 1}), hash(doc! {"a": Value::Null}));
    }
}

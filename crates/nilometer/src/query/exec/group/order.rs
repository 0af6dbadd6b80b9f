//! The order of groups by their keys, in place of a sort of their rows.
//!
//! ```text
//! {$group: {_id: {hour: …, host: …}, …}}, {$sort: {"_id.hour": 1, "_id.host": 1}}
//!
//! ranks of bins    10:00 → 0   11:00 → 1           each value is compared once, not in every row
//! ranks of series  "a" → 0   "b" → 1
//! groups           sorted by two numbers
//! ```

use std::cmp::Ordering;

use nilometer_bson::order::compare_with;
use nilometer_bson::{Value, ValueRef};

use super::keys::{KeyForm, Keys};
use crate::eval::sort_key::{SortBy, SortPart, SortPattern};

/// A part of keys, and the direction in which it sorts.
struct KeyOrder {
    part: usize,
    descending: bool,
}

/// Returns groups in the order of a pattern; `None` if their keys do not tell it. Equal groups keep their order.
pub(super) fn ordered(groups: &[u32], keys: &Keys, pattern: &SortPattern) -> Option<Vec<u32>> {
    let form = keys.common_form()?;
    let mut parts = Vec::new();
    for part in pattern.parts() {
        match is_whole_key(part, form) {
            true => parts.extend(of_whole_key(part, form, keys)?),
            false => parts.push(of_member(part, form, keys)?),
        }
    }
    let mut ordered = groups.to_vec();
    // From the last parts to the first: each sort keeps the order of the one before. Two ranks at a time.
    for pair in parts.rchunks(2) {
        let ranks: Vec<Ranks> = pair
            .iter()
            .map(|part| Ranks::of(part, form, keys, pattern))
            .collect();
        let rank = |group: u32| {
            ranks.iter().fold(0, |rank, of| {
                rank << u32::BITS | u64::from(of.rank(group, keys))
            })
        };
        let mut ranked: Vec<(u64, u32)> = ordered.iter().map(|at| (rank(*at), *at)).collect();
        ranked.sort_by_key(|(rank, _)| *rank);
        ordered = ranked.into_iter().map(|(_, group)| group).collect();
    }
    #[cfg(test)]
    cov_mark::hit!(groups_in_order);
    Some(ordered)
}

fn is_whole_key(part: &SortPart, form: &KeyForm) -> bool {
    let SortBy::Field(path) = &part.by else {
        return false;
    };
    path.as_str() == "_id" && form.names.is_some()
}

/// Keys that are objects sort member by member if all have the same members.
fn of_whole_key(whole: &SortPart, form: &KeyForm, keys: &Keys) -> Option<Vec<KeyOrder>> {
    let count = form.names.as_ref().map_or(0, Vec::len);
    let mut all = (0..keys.series.len() as u32).flat_map(|series| {
        let values = keys.series.values(series).iter().enumerate();
        values.filter(|(at, _)| Some(*at) != form.bin)
    });
    let is_complete = all.all(|(_, value)| !value.is_missing());
    let order = |part| KeyOrder {
        part,
        descending: whole.descending,
    };
    is_complete.then(|| (0..count).map(order).collect())
}

/// Returns the part of keys that a part of the pattern names. An array is no such part: it sorts by its elements.
fn of_member(part: &SortPart, form: &KeyForm, keys: &Keys) -> Option<KeyOrder> {
    let SortBy::Field(path) = &part.by else {
        return None;
    };
    if path.first() != "_id" {
        return None;
    }
    let at = match (&form.names, path.len()) {
        (None, 1) => 0,
        (Some(names), 2) => names.iter().position(|name| **name == *path.last())?,
        _ => return None,
    };
    let is_array = |series| matches!(keys.series.values(series).get(at), Some(Value::Array(_)));
    let mut all = 0..keys.series.len() as u32;
    (!all.any(is_array)).then_some(KeyOrder {
        part: at,
        descending: part.descending,
    })
}

/// The ranks of a part of keys: equal values have equal ranks.
struct Ranks {
    /// By series; empty for the bin.
    of_series: Vec<u32>,
    /// The bins, ascending.
    bins: Vec<i64>,
    descending: bool,
}

impl Ranks {
    fn of(order: &KeyOrder, form: &KeyForm, keys: &Keys, pattern: &SortPattern) -> Self {
        let mut ranks = Self {
            of_series: Vec::new(),
            bins: Vec::new(),
            descending: order.descending,
        };
        if form.bin == Some(order.part) {
            let bins = (0..keys.len()).filter_map(|group| Some(keys.parts(group)?.1));
            let mut last = None;
            // Neighbours are mostly of one bin.
            ranks.bins = bins
                .filter(|bin| last.replace(*bin) != Some(*bin))
                .collect();
            ranks.bins.sort_unstable();
            ranks.bins.dedup();
            return ranks;
        }
        let value = |series: u32| {
            let value = keys.series.values(series).get(order.part);
            match value.map_or(ValueRef::Missing, Value::as_ref) {
                ValueRef::Missing => ValueRef::Null,
                value => value,
            }
        };
        let compare = |a: &u32, b: &u32| compare_with(value(*a), value(*b), pattern.collator());
        let mut series: Vec<u32> = (0..).take(keys.series.len()).collect();
        series.sort_by(compare);
        ranks.of_series = vec![0; series.len()];
        let (mut rank, mut before) = (0, None);
        for at in series {
            if before.is_some_and(|before| compare(&before, &at) == Ordering::Less) {
                rank += 1;
            }
            ranks.of_series[at as usize] = rank;
            before = Some(at);
        }
        ranks
    }

    fn rank(&self, group: u32, keys: &Keys) -> u32 {
        let Some((series, bin)) = keys.parts(group as usize) else {
            return 0;
        };
        let rank = match self.of_series.get(series as usize) {
            Some(rank) => *rank,
            None => self.bins.partition_point(|other| *other < bin) as u32,
        };
        if self.descending { !rank } else { rank }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use nilometer_bson::{Document, array, doc};

    use super::*;
    use crate::eval::ParseContext;
    use crate::query::exec::testing::{MemoryBuckets, MemoryCollections, executor, in_context};
    use crate::query::source::Resolved;

    fn measurements() -> Vec<Document> {
        let metas = [
            doc! { "h": "b" }.into(),
            doc! { "h": Value::Null }.into(),
            doc! { "h": "a", "r": 2 }.into(),
            Value::Missing,
            doc! { "r": 1 }.into(),
            doc! { "h": 1.0 }.into(),
            doc! { "h": 1, "r": 1 }.into(),
            doc! { "h": doc! { "x": 1 } }.into(),
            doc! { "h": f64::NAN }.into(),
        ];
        let one = |at: usize| {
            let meta: &Value = &metas[at * 5 % metas.len()];
            let time = Value::DateTime(1_600_000_000_000 + at as i64 * 700_000);
            doc! { "t": time, "m": meta.clone(), "v": at as i64 }
        };
        (0..90).map(one).collect()
    }

    fn check(measurements: &[Document], key: Value, pattern: Document, in_order: bool) {
        let buckets = MemoryBuckets::new(measurements, 4);
        let collections = MemoryCollections::of(Resolved::TimeSeries(Arc::new(buckets)));
        let group = doc! { "$group": doc! { "_id": key, "v": doc! { "$sum": "$v" } } };
        let run = |stages: &Value| {
            let mut query = executor(&collections, stages);
            query
                .drain(&crate::query::exec::testing::operation())
                .unwrap()
        };
        let parsed = SortPattern::parse(pattern.as_ref(), &ParseContext::default()).unwrap();
        let mut expected = run(&array![group.clone()]);
        in_context(|cx| {
            let key = |row: &Document| parsed.extract(row.as_ref(), &cx.eval).unwrap();
            expected.sort_by(|a, b| parsed.compare(&key(a), &key(b)));
        });
        let stages = array![group, doc! { "$sort": pattern.clone() }];
        let found = match in_order {
            true => {
                cov_mark::check!(groups_in_order);
                run(&stages)
            }
            false => {
                cov_mark::check_count!(groups_in_order, 0);
                run(&stages)
            }
        };
        assert_eq!(found, expected, "{pattern:?}");
    }

    #[test]
    fn groups_in_the_order_of_their_keys_are_those_of_a_sort() {
        let all = measurements();
        let hour = doc! { "$dateTrunc": doc! { "date": "$t", "unit": "hour" } };
        let both = || doc! { "hour": hour.clone(), "h": "$m.h", "r": "$m.r" };
        for pattern in [
            doc! { "_id.hour": 1, "_id.h": 1 },
            doc! { "_id.h": -1, "_id.hour": 1 },
            doc! { "_id.r": 1 },
            doc! { "_id.hour": -1 },
            doc! { "_id.r": -1, "_id.h": 1, "_id.hour": -1 },
        ] {
            check(&all, both().into(), pattern, true);
        }
        check(&all, hour.clone().into(), doc! { "_id": -1 }, true);
        let whole = || doc! { "h": doc! { "$ifNull": array!["$m.h", 7] }, "hour": hour.clone() };
        check(&all, whole().into(), doc! { "_id": -1 }, true);
        check(
            &all,
            whole().into(),
            doc! { "_id.hour": 1, "_id": -1 },
            true,
        );
        // Members are missing, paths lead elsewhere, keys have no bin.
        check(&all, both().into(), doc! { "_id": 1 }, false);
        check(
            &all,
            both().into(),
            doc! { "_id.h.x": 1, "_id.hour": 1 },
            false,
        );
        check(&all, both().into(), doc! { "v": 1 }, false);
        check(&all, "$m.h".into(), doc! { "_id": 1 }, false);
        // An array sorts by its least element.
        let mut all = all;
        all.push(doc! { "t": Value::DateTime(1_600_000_000_000), "m": doc! { "h": array![9, 0] }, "v": 1i64 });
        check(
            &all,
            both().into(),
            doc! { "_id.h": 1, "_id.hour": 1 },
            false,
        );
    }
}

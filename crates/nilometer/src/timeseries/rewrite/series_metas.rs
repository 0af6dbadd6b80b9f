//! The metadata of all series of a collection, and the series that pass tests of metadata.
//!
//! ```text
//! tests        {"tags.host": {$in: ["a", "c"]}, "tags.rack": 7}
//! tags.host    hash of "a" ─► 17   hash of "b" ─► 18   hash of "c" ─► 4, 19     sorted
//! candidates   17, 4, 19, and series whose host is an array, null, or missing
//! ```
//!
//! A test for equality looks up the series with its values; then all tests are evaluated for these. A field is sorted when it is
//! asked for a second time, since a list may be new for each query while series are added.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use foldhash::fast::FixedState;
use nilometer_bson::order::hash_with;
use nilometer_bson::{Value, ValueRef};

use super::MetaTest;
use crate::error::Result;
use crate::eval::matcher::{CompareOp, MatchExpression, MatchPath};

/// Fields of a list that are sorted, at most.
pub(crate) const FIELDS_MAX: usize = 4;

/// Bytes of a series in a sorted field.
pub(crate) const FIELD_BYTES: usize = size_of::<(u64, u32)>();

/// The metadata of each series. A series without metadata has null.
#[derive(Debug)]
pub struct SeriesMetas {
    metas: Box<[Value]>,
    has_lists: bool,
    /// By the path below the metadata; `None` if the field was asked for once.
    fields: Mutex<BTreeMap<String, Option<Arc<FieldValues>>>>,
}

/// Where the values of a field are.
#[derive(Debug)]
struct FieldValues {
    /// The hash of a value, and a series with it; ascending.
    of_hash: Vec<(u64, u32)>,
    /// Series whose value is none, or none that equality finds by its hash.
    others: Vec<u32>,
}

impl FieldValues {
    fn of(metas: &[Value], path: &MatchPath) -> Self {
        let mut found = Self {
            of_hash: Vec::with_capacity(metas.len()),
            others: Vec::new(),
        };
        for (at, meta) in (0..).zip(metas) {
            match hash_of(value_of(meta.as_ref(), path)) {
                Some(hash) => found.of_hash.push((hash, at)),
                None => found.others.push(at),
            }
        }
        found.of_hash.sort_unstable();
        found
    }

    fn with_hash(&self, hash: u64) -> &[(u64, u32)] {
        let from = self.of_hash.partition_point(|(other, _)| *other < hash);
        let rest = self.of_hash.get(from..).unwrap_or(&[]);
        let count = rest.partition_point(|(other, _)| *other == hash);
        rest.get(..count).unwrap_or(&[])
    }

    /// Returns the series that may have one of the values, ascending.
    fn candidates(&self, hashes: &[u64]) -> Vec<u32> {
        let mut found = self.others.clone();
        for hash in hashes {
            found.extend(self.with_hash(*hash).iter().map(|(_, series)| *series));
        }
        found.sort_unstable();
        found.dedup();
        found
    }
}

/// Returns the value at a path below metadata; missing if the path leads through an array.
fn value_of<'m>(meta: ValueRef<'m>, path: &MatchPath) -> ValueRef<'m> {
    match meta {
        value if path.is_itself() => value,
        ValueRef::Document(meta) => path.value_without_arrays(meta).unwrap_or(ValueRef::Missing),
        _ => ValueRef::Missing,
    }
}

/// Returns the hash of a value; `None` for values that equal others than themselves, or are tested by their elements.
fn hash_of(value: ValueRef<'_>) -> Option<u64> {
    match value {
        ValueRef::Missing
        | ValueRef::Undefined
        | ValueRef::Null
        | ValueRef::Array(_)
        | ValueRef::Regex { .. } => None,
        value => {
            let mut hasher = FixedState::default().build_hasher();
            hash_with(value, None, &mut hasher);
            Some(hasher.finish())
        }
    }
}

/// A test for equality: the path below the metadata, and the hashes of the values.
fn equality(condition: &MatchExpression, field: &str) -> Option<(MatchPath, Vec<u64>)> {
    let (path, collation, values) = match condition {
        MatchExpression::Compare(test) | MatchExpression::ExprCompare(test)
            if test.op == CompareOp::Eq =>
        {
            (
                &test.path,
                &test.collation,
                std::slice::from_ref(&test.value),
            )
        }
        MatchExpression::In(list) if list.patterns().is_empty() => {
            (&list.path, list.collation(), list.values())
        }
        _ => return None,
    };
    let path = match path.as_str() == field {
        true => MatchPath::itself(),
        false => path.below(field).filter(|path| !path.as_str().is_empty())?,
    };
    let hashes = values.iter().map(|value| hash_of(value.as_ref()));
    let hashes = hashes.collect::<Option<Vec<u64>>>()?;
    collation.collator().is_none().then_some((path, hashes))
}

/// Adds the tests for equality that all matches pass.
fn equalities(filter: &MatchExpression, field: &str, into: &mut Vec<(MatchPath, Vec<u64>)>) {
    match filter {
        MatchExpression::And(arms) => arms.iter().for_each(|arm| equalities(arm, field, into)),
        condition => into.extend(equality(condition, field)),
    }
}

impl From<Vec<Value>> for SeriesMetas {
    fn from(metas: Vec<Value>) -> Self {
        let is_list = |meta: &Value| matches!(meta, Value::Array(_) | Value::Regex { .. });
        Self {
            has_lists: metas.iter().any(is_list),
            metas: metas.into(),
            fields: Mutex::default(),
        }
    }
}

impl SeriesMetas {
    /// Returns the number of series.
    pub fn len(&self) -> usize {
        self.metas.len()
    }

    /// True if there are no series.
    pub fn is_empty(&self) -> bool {
        self.metas.is_empty()
    }

    /// True if some metadata is an array or a pattern: an index has elements of arrays, and a list of values has patterns.
    pub fn has_lists(&self) -> bool {
        self.has_lists
    }

    /// Returns the values of a field; `None` if they are not sorted.
    fn field(&self, path: &MatchPath) -> Option<Arc<FieldValues>> {
        let mut fields = self.fields.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = fields.get_mut(path.as_str()) {
            let sorted = known.get_or_insert_with(|| Arc::new(FieldValues::of(&self.metas, path)));
            return Some(Arc::clone(sorted));
        }
        if fields.len() < FIELDS_MAX {
            fields.insert(path.as_str().to_owned(), None);
        }
        None
    }

    /// Returns the series that may pass all tests, ascending; `None` if that may be each.
    fn candidates(&self, tests: &[&MetaTest]) -> Option<Vec<u32>> {
        let mut wanted = Vec::new();
        for test in tests {
            equalities(&test.filter, &test.field, &mut wanted);
        }
        let found = wanted.iter().filter_map(|(path, hashes)| {
            let field = self.field(path)?;
            Some(field.candidates(hashes))
        });
        found.min_by_key(Vec::len)
    }

    /// Returns the metadata that passes all tests. Null passes as well if missing metadata does.
    pub fn passing(&self, tests: &[&MetaTest]) -> Result<Vec<Value>> {
        let passes_all = |meta: ValueRef<'_>| -> Result<bool> {
            for test in tests {
                if !test.test(meta, None)? {
                    return Ok(false);
                }
            }
            Ok(true)
        };
        let passes = |meta: &Value| -> Result<bool> {
            Ok(passes_all(meta.as_ref())?
                || matches!(meta, Value::Null) && passes_all(ValueRef::Missing)?)
        };
        let mut passing = Vec::new();
        let mut add = |meta: &Value| -> Result<()> {
            if passes(meta)? {
                passing.push(meta.clone());
            }
            Ok(())
        };
        match self.candidates(tests) {
            Some(candidates) => {
                let candidates = candidates.iter();
                let mut metas = candidates.filter_map(|at| self.metas.get(*at as usize));
                metas.try_for_each(&mut add)?;
            }
            None => self.metas.iter().try_for_each(&mut add)?,
        }
        Ok(passing)
    }
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{Document, array, doc};

    use super::*;
    use crate::eval::{Collation, ParseContext};
    use crate::timeseries::rewrite::FilterContext;

    fn metas() -> Vec<Value> {
        let mut metas: Vec<Value> = vec![
            Value::Null,
            "a".into(),
            7.into(),
            doc! {}.into(),
            doc! { "h": Value::Null }.into(),
            doc! { "h": array!["a", 3] }.into(),
            doc! { "h": array![doc! { "x": 2 }] }.into(),
            doc! { "h": doc! { "x": 2 } }.into(),
            doc! { "h": doc! { "x": 2i64 }, "r": 1 }.into(),
            doc! { "h": f64::NAN }.into(),
            doc! { "h": -0.0 }.into(),
            doc! { "": "a" }.into(),
        ];
        for at in 0..60i64 {
            let host: Value = match at % 4 {
                0 => at.into(),
                1 => (at as f64).into(),
                2 => format!("h{at}").into(),
                _ => "a".into(),
            };
            metas.push(doc! { "h": host, "r": (at % 5) as i32 }.into());
        }
        metas
    }

    fn filters() -> Vec<Document> {
        let mut filters = vec![
            doc! { "m": "a" },
            doc! { "m": 7.0 },
            doc! { "m": Value::Null },
            doc! { "m": doc! { "h": 4.0, "r": 4 } },
            doc! { "m.": "a" },
            doc! { "m.h": "A" },
            doc! { "m.h.x": 2 },
            doc! { "m.h": doc! { "x": 2.0 } },
            doc! { "m.h": array!["a", 3] },
            doc! { "m.h": Value::Null },
            doc! { "m.h": f64::NAN },
            doc! { "m.h": 0 },
            doc! { "m.h": doc! { "$in": array!["a", 8, Value::Null] } },
            doc! { "m.h": doc! { "$in": array!["h2", 8, 9] }, "m.r": doc! { "$ne": 3 } },
            doc! { "m.h": doc! { "$gt": 5 }, "m.r": 1.0 },
            doc! { "$or": array![doc! { "m.h": 8 }, doc! { "m.r": 2 }] },
            doc! { "$expr": doc! { "$eq": array!["$m.h", "a"] } },
            doc! { "m.none": doc! { "$exists": false }, "m.h": "a" },
        ];
        filters.extend((0..40).map(|at| doc! { "m.h": at }));
        filters
    }

    fn check(collation: &Collation) {
        let metas = metas();
        let series = SeriesMetas::from(metas.clone());
        let context = FilterContext {
            collator: collation.shared(),
            ..FilterContext::default()
        };
        let parse = ParseContext::default().with_collator(collation.shared());
        for filter in filters() {
            let filter = MatchExpression::parse(filter.as_ref(), &parse).unwrap();
            let test = MetaTest::new("m".into(), filter.clone(), context.clone());
            let expected = metas.iter().filter(|meta| {
                let whole = |meta: ValueRef<'_>| {
                    let mut document = nilometer_bson::DocumentBuilder::new();
                    document.append_ref("m", meta);
                    filter
                        .matches(document.finish().as_ref(), &context.eval())
                        .unwrap()
                };
                whole(meta.as_ref()) || (matches!(meta, Value::Null) && whole(ValueRef::Missing))
            });
            let expected: Vec<&Value> = expected.collect();
            // Not sorted yet, then sorted.
            for _ in 0..3 {
                let found = series.passing(&[&test]).unwrap();
                let shown = |metas: Vec<&Value>| -> Vec<Document> {
                    metas
                        .iter()
                        .map(|meta| doc! { "": (*meta).clone() })
                        .collect()
                };
                let found = shown(found.iter().collect());
                assert_eq!(found, shown(expected.clone()), "{filter:?}");
            }
        }
    }

    #[test]
    fn the_series_found_by_their_fields_are_those_that_pass() {
        check(&Collation::SIMPLE);
        let locale = doc! { "locale": "en", "strength": 2 };
        check(&Collation::parse(locale.as_ref(), "collation").unwrap());
    }
}

//! Evaluation of paths for sort and index keys.
//!
//! A document has one key per element of the array its paths meet. Paths that meet the same array
//! expand together, element by element: `{a: [{b: 1, c: 5}, {b: 2}]}` has for `a.b, a.c` the keys
//! `(1, 5)` and `(2, null)`. Paths into two different arrays are an error ([`KeyError`]).
//!
//! ```text
//! missing                                     null
//! empty array at the end of a path            undefined (below null)
//! empty array, or no document, on the way     null
//! array inside the array that is expanded     stays one value at the end, null on the way
//! a.0 with at least one element in array a    that element; an array there expands in turn
//! ```
//!
//! An ascending sort uses the least key, a descending one the greatest.

use std::cmp::Ordering;

use super::FieldPath;
use crate::document::{ArrayRef, DocRef};
use crate::order;
use crate::value::ValueRef;

/// Why a document has no keys for a list of paths.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Two paths lead into different arrays.
    #[error("cannot index parallel arrays [{0}] [{1}]")]
    ParallelArrays(String, String),
    /// A component is both an array position and a field name in that array.
    #[error(
        "Ambiguous field name found in array (do not use numeric field names in embedded elements in an array), field: '{0}'"
    )]
    AmbiguousIndex(String),
}

/// Evaluation state of one path.
#[derive(Clone, Copy)]
enum PathState<'a> {
    /// Finished, with this value.
    Done(ValueRef<'a>),
    /// In a document, with the index of the next component.
    Walking(DocRef<'a>, usize),
}

/// Evaluation that stopped at an array.
#[derive(Clone, Copy)]
struct ArrayStop<'a> {
    array: ArrayRef<'a>,
    /// Components consumed.
    consumed: usize,
}

/// Returns the value a path sorts a document by: the least key, or the greatest if `descending`.
/// Allocates only if an array is met.
pub fn sort_value<'a>(
    path: &FieldPath,
    document: DocRef<'a>,
    descending: bool,
    collator: Option<&dyn order::Collator>,
) -> Result<ValueRef<'a>, KeyError> {
    let step = path.descend(document, 0);
    if !matches!(step.value, ValueRef::Array(_)) {
        return Ok(or_null(step.value));
    }
    let mut best: Option<ValueRef<'a>> = None;
    let wanted = if descending {
        Ordering::Greater
    } else {
        Ordering::Less
    };
    visit_keys(std::slice::from_ref(path), document, &mut |key| {
        let value = key.first().copied().unwrap_or(ValueRef::Null);
        let better = best.is_none_or(|best| order::compare_with(value, best, collator) == wanted);
        if better {
            best = Some(value);
        }
    })?;
    Ok(best.unwrap_or(ValueRef::Null))
}

/// Returns the value of a path that meets no array, [`ValueRef::Missing`] if there is none; `None`
/// if the path meets an array or the value is one. Does not allocate.
pub fn plain_value<'a>(path: &FieldPath, document: DocRef<'a>) -> Option<ValueRef<'a>> {
    plain_value_from(path, 0, document)
}

/// [`plain_value`] of a path whose first component led to `document`. `None` for a path of one
/// component.
pub fn plain_value_below<'a>(path: &FieldPath, document: DocRef<'a>) -> Option<ValueRef<'a>> {
    plain_value_from(path, 1, document)
}

fn plain_value_from<'a>(
    path: &FieldPath,
    from: usize,
    document: DocRef<'a>,
) -> Option<ValueRef<'a>> {
    if from >= path.len() {
        return None;
    }
    match path.descend(document, from).value {
        ValueRef::Array(_) => None,
        value => Some(value),
    }
}

/// Calls `visitor` with every key of the document, in array order and with repetitions. Returns
/// which paths expanded an array: these make an index multikey.
pub fn visit_keys<'a>(
    paths: &[FieldPath],
    document: DocRef<'a>,
    visitor: &mut impl FnMut(&[ValueRef<'a>]),
) -> Result<Vec<bool>, KeyError> {
    visit_keys_with_gaps(paths, document, &mut |key: &mut Vec<ValueRef<'a>>| {
        for value in key.iter_mut() {
            *value = or_null(*value);
        }
        visitor(key);
    })
}

/// [`visit_keys`], with [`ValueRef::Missing`] instead of null for missing values.
pub fn visit_keys_with_gaps<'a>(
    paths: &[FieldPath],
    document: DocRef<'a>,
    visitor: &mut impl FnMut(&mut Vec<ValueRef<'a>>),
) -> Result<Vec<bool>, KeyError> {
    let mut multikey = vec![false; paths.len()];
    let states = vec![PathState::Walking(document, 0); paths.len()];
    expand(paths, states, &mut multikey, visitor)?;
    Ok(multikey)
}

fn expand<'a>(
    paths: &[FieldPath],
    mut states: Vec<PathState<'a>>,
    multikey: &mut [bool],
    visitor: &mut impl FnMut(&mut Vec<ValueRef<'a>>),
) -> Result<(), KeyError> {
    let mut stops: Vec<Option<ArrayStop<'a>>> = Vec::with_capacity(states.len());
    let mut shared: Option<(&FieldPath, ArrayRef<'a>)> = None;
    for (path, state) in paths.iter().zip(states.iter_mut()) {
        let stop = match *state {
            PathState::Done(_) => None,
            PathState::Walking(document, from) => walk(path, document, from, state)?,
        };
        if let Some(stop) = stop {
            match shared {
                Some((first, array)) if !same(array, stop.array) => {
                    return Err(KeyError::ParallelArrays(
                        path.as_str().to_owned(),
                        first.as_str().to_owned(),
                    ));
                }
                _ => shared = Some((path, stop.array)),
            }
        }
        stops.push(stop);
    }
    let Some((_, array)) = shared else {
        let mut key = states.iter().map(|state| state.value()).collect();
        visitor(&mut key);
        return Ok(());
    };
    for (flag, stop) in multikey.iter_mut().zip(&stops) {
        *flag |= stop.is_some();
    }
    let mut each = |element: Option<ValueRef<'a>>| {
        let mut next = states.clone();
        for ((state, stop), path) in next.iter_mut().zip(&stops).zip(paths) {
            if let Some(stop) = stop {
                *state = enter(path, *stop, element);
            }
        }
        expand(paths, next, multikey, visitor)
    };
    if array.is_empty() {
        return each(None);
    }
    array.iter().try_for_each(|element| each(Some(element)))
}

impl<'a> PathState<'a> {
    fn value(&self) -> ValueRef<'a> {
        match self {
            Self::Done(value) => *value,
            Self::Walking(..) => ValueRef::Missing,
        }
    }
}

/// Returns the state of a path after the array it stopped at is narrowed to one element (`None` if
/// it is empty).
fn enter<'a>(
    path: &FieldPath,
    stop: ArrayStop<'a>,
    element: Option<ValueRef<'a>>,
) -> PathState<'a> {
    let at_end = stop.consumed >= path.len();
    match element {
        None if at_end => PathState::Done(ValueRef::Undefined),
        Some(value) if at_end => PathState::Done(value),
        Some(ValueRef::Document(document)) => PathState::Walking(document, stop.consumed),
        _ => PathState::Done(ValueRef::Missing),
    }
}

/// Descends from a document to the end of the path, or to an array that must expand.
fn walk<'a>(
    path: &FieldPath,
    document: DocRef<'a>,
    from: usize,
    state: &mut PathState<'a>,
) -> Result<Option<ArrayStop<'a>>, KeyError> {
    let mut step = path.descend(document, from);
    loop {
        let ValueRef::Array(array) = step.value else {
            *state = PathState::Done(step.value);
            return Ok(None);
        };
        let consumed = step.consumed;
        let Some(index) = path.index(consumed) else {
            return Ok(Some(ArrayStop { array, consumed }));
        };
        let element = array.get(index as usize);
        if element.is_missing() {
            return Ok(Some(ArrayStop { array, consumed }));
        }
        let name = path.name(consumed);
        let ambiguous = |e: ValueRef<'_>| e.as_document().is_some_and(|d| d.contains(name));
        if array.iter().any(ambiguous) {
            return Err(KeyError::AmbiguousIndex(name.to_owned()));
        }
        let named = consumed + 1;
        match element {
            ValueRef::Array(inner) if named >= path.len() => {
                return Ok(Some(ArrayStop {
                    array: inner,
                    consumed: named,
                }));
            }
            _ if named >= path.len() => {
                *state = PathState::Done(element);
                return Ok(None);
            }
            ValueRef::Document(inner) => step = path.descend(inner, named),
            ValueRef::Array(_) => {
                step = super::Descent {
                    value: element,
                    consumed: named,
                };
            }
            _ => {
                *state = PathState::Done(ValueRef::Missing);
                return Ok(None);
            }
        }
    }
}

fn or_null(value: ValueRef<'_>) -> ValueRef<'_> {
    if value.is_missing() {
        ValueRef::Null
    } else {
        value
    }
}

/// True if both are the same array of the same document.
fn same(a: ArrayRef<'_>, b: ArrayRef<'_>) -> bool {
    std::ptr::eq(a.as_document().as_bytes(), b.as_document().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Document, Value, array, doc};

    fn keys(document: &Document, paths: &[&str]) -> Result<Value, KeyError> {
        let paths: Vec<_> = paths.iter().map(|p| FieldPath::parse_lenient(p)).collect();
        let mut all = Vec::new();
        visit_keys(&paths, document.as_ref(), &mut |key| {
            all.push(Value::from(
                key.iter().map(|v| v.to_value()).collect::<Vec<_>>(),
            ));
        })?;
        Ok(all.into())
    }

    fn check(document: Document, paths: &[&str], expected: Value) {
        let got = keys(&document, paths).unwrap();
        assert!(
            order::equal(got.as_ref(), expected.as_ref()),
            "{paths:?}: {got:?} is not {expected:?}"
        );
    }

    #[test]
    fn plain_values_of_a_path_and_below_its_first_name() {
        let document = doc! { "m": doc! { "a": doc! { "b": 1 }, "c": array![2] }, "d": 3 };
        let meta = document.get("m").as_document().unwrap();
        for path in ["m.a.b", "m.a", "m.c", "m.c.0", "m.x", "m.a.x.y", "m.a.b.c"] {
            let path = FieldPath::parse_lenient(path);
            let shown = |value: Option<ValueRef<'_>>| value.map(ValueRef::to_value);
            let (whole, below) = (
                plain_value(&path, document.as_ref()),
                plain_value_below(&path, meta),
            );
            assert_eq!(
                format!("{:?}", shown(whole)),
                format!("{:?}", shown(below)),
                "{path}"
            );
        }
        assert!(plain_value_below(&FieldPath::parse_lenient("d"), meta).is_none());
    }

    #[test]
    fn one_path() {
        let null = Value::Null;
        check(doc! { "a": 1 }, &["a"], array![array![1]]);
        check(doc! {}, &["a"], array![array![null.clone()]]);
        check(
            doc! { "a": array![1, 2] },
            &["a"],
            array![array![1], array![2]],
        );
        check(
            doc! { "a": array![] },
            &["a"],
            array![array![Value::Undefined]],
        );
        check(
            doc! { "a": array![] },
            &["a.b"],
            array![array![null.clone()]],
        );
        check(
            doc! { "a": array![doc! { "b": 1 }, 7, array![doc! { "b": 2 }]] },
            &["a.b"],
            array![array![1], array![null.clone()], array![null]],
        );
        check(
            doc! { "a": array![array![1, 2]] },
            &["a"],
            array![array![array![1, 2]]],
        );
    }

    #[test]
    fn paths_into_one_array_expand_together() {
        check(
            doc! { "a": array![doc! { "b": 1, "c": 5 }, doc! { "b": 2 }], "x": 9 },
            &["a.b", "x", "a.c"],
            array![array![1, 9, 5], array![2, 9, Value::Null]],
        );
        assert_eq!(
            keys(&doc! { "a": array![1], "b": array![2] }, &["a", "b"]).unwrap_err(),
            KeyError::ParallelArrays("b".into(), "a".into())
        );
    }

    #[test]
    fn positions() {
        check(doc! { "a": array![5, 6] }, &["a.1"], array![array![6]]);
        check(
            doc! { "a": array![5] },
            &["a.1"],
            array![array![Value::Null]],
        );
        check(
            doc! { "a": array![array![5, 6]] },
            &["a.0"],
            array![array![5], array![6]],
        );
        check(
            doc! { "a": array![doc! { "b": 5 }] },
            &["a.0.b"],
            array![array![5]],
        );
        check(
            doc! { "a": array![array![doc! { "b": 5 }, doc! { "b": 6 }]] },
            &["a.0.b"],
            array![array![5], array![6]],
        );
        assert!(keys(&doc! { "a": array![doc! { "0": 5 }] }, &["a.0"]).is_err());
    }

    #[test]
    fn sorting_takes_the_least_or_greatest() {
        let document = doc! { "a": array![3, 1, 2] };
        let path = FieldPath::parse("a").unwrap();
        let value = |descending| sort_value(&path, document.as_ref(), descending, None).unwrap();
        assert!(matches!(value(false), ValueRef::Int32(1)));
        assert!(matches!(value(true), ValueRef::Int32(3)));
        let missing = FieldPath::parse("b").unwrap();
        let value = sort_value(&missing, document.as_ref(), false, None).unwrap();
        assert!(matches!(value, ValueRef::Null));
    }
}

//! Paths as filters walk them: every value a path could mean, one after the other.
//!
//! * An array on the way is entered: each document in it is walked with the rest of the path.
//!   Arrays directly inside that array are not entered.
//! * If the next name is a number, the element at that position is walked too, also if it is an
//!   array.
//! * An array at the end gives its elements and then itself ([`LeafArrays::Expand`]), or only
//!   itself ([`LeafArrays::Whole`]: `$size`, `$elemMatch`, `$exists`).
//! * Where documents end before the path does, the candidate is missing. Elements that are no
//!   documents give no candidate at all: `{a: [1]}` has none for `a.b`, so neither `{"a.b": null}`
//!   nor `{"a.b": {$exists: true}}` matches it.

use std::ops::ControlFlow;

use super::FieldPath;
use crate::document::{ArrayRef, DocRef};
use crate::value::ValueRef;

/// What an array at the end of a path gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeafArrays {
    /// Its elements, then the array itself.
    Expand,
    /// Only the array itself.
    Whole,
}

/// One value a path could mean.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// The value; missing if a document on the way ends before the path.
    pub value: ValueRef<'a>,
    /// True for an array at the end whose elements were candidates just before.
    pub after_elements: bool,
    /// Position in the outermost array entered without being named: what the positional `$` updates.
    pub position: Option<usize>,
}

impl FieldPath {
    /// Calls `visitor` for every candidate until it breaks; what it broke with comes back.
    pub fn visit<'a, B>(
        &self,
        document: DocRef<'a>,
        leaf: LeafArrays,
        visitor: &mut impl FnMut(Candidate<'a>) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        self.visit_from(document, 0, None, leaf, visitor)
    }

    /// True when some candidate satisfies `test`.
    pub fn any<'a>(
        &self,
        document: DocRef<'a>,
        leaf: LeafArrays,
        mut test: impl FnMut(Candidate<'a>) -> bool,
    ) -> bool {
        self.visit(document, leaf, &mut |candidate| {
            if test(candidate) {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })
        .is_break()
    }

    fn visit_from<'a, B>(
        &self,
        document: DocRef<'a>,
        from: usize,
        position: Option<usize>,
        leaf: LeafArrays,
        visitor: &mut impl FnMut(Candidate<'a>) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        let step = self.descend(document, from);
        match step.value {
            ValueRef::Array(array) if step.consumed < self.len() => {
                self.visit_array(array, step.consumed, position, leaf, visitor)
            }
            value => visit_leaf(value, position, leaf, visitor),
        }
    }

    /// Enters an array in front of component `from`.
    fn visit_array<'a, B>(
        &self,
        array: ArrayRef<'a>,
        from: usize,
        position: Option<usize>,
        leaf: LeafArrays,
        visitor: &mut impl FnMut(Candidate<'a>) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        let named = self.index(from).map(|index| index as usize);
        for (at, element) in array.iter().enumerate() {
            let here = position.or(Some(at));
            if let ValueRef::Document(document) = element {
                self.visit_from(document, from, here, leaf, visitor)?;
            }
            if named != Some(at) {
                continue;
            }
            // Named by its position, so the position is no implicit one.
            if from + 1 >= self.len() {
                visit_leaf(element, position, leaf, visitor)?;
                continue;
            }
            match element {
                ValueRef::Document(document) => {
                    self.visit_from(document, from + 1, position, leaf, visitor)?;
                }
                ValueRef::Array(inner) => {
                    self.visit_array(inner, from + 1, position, leaf, visitor)?;
                }
                _ => {}
            }
        }
        ControlFlow::Continue(())
    }
}

/// Hands out the value at the end of a path.
fn visit_leaf<'a, B>(
    value: ValueRef<'a>,
    position: Option<usize>,
    leaf: LeafArrays,
    visitor: &mut impl FnMut(Candidate<'a>) -> ControlFlow<B>,
) -> ControlFlow<B> {
    let mut after_elements = false;
    if let (ValueRef::Array(array), LeafArrays::Expand) = (value, leaf) {
        after_elements = true;
        for (at, element) in array.iter().enumerate() {
            visitor(Candidate {
                value: element,
                after_elements: false,
                position: position.or(Some(at)),
            })?;
        }
    }
    visitor(Candidate {
        value,
        after_elements,
        position,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Document, Value, array, doc, order};

    fn check(document: Document, path: &str, expected: Value) {
        let mut got = Vec::new();
        let path = FieldPath::parse_lenient(path);
        let _ = path.visit::<()>(document.as_ref(), LeafArrays::Expand, &mut |candidate| {
            got.push(match candidate.value {
                ValueRef::Missing => Value::from("missing"),
                value => value.to_value(),
            });
            ControlFlow::Continue(())
        });
        let got = Value::from(got);
        assert!(
            order::equal(got.as_ref(), expected.as_ref()),
            "{path}: {got:?} is not {expected:?}"
        );
    }

    #[test]
    fn without_arrays() {
        check(doc! { "a": doc! { "b": 1 } }, "a.b", array![1]);
        check(doc! { "a": 1 }, "a.b", array!["missing"]);
        check(doc! {}, "a.b", array!["missing"]);
        check(doc! { "": 1 }, "", array![1]);
    }

    #[test]
    fn arrays_are_entered_once() {
        check(doc! { "a": array![1, 2] }, "a", array![1, 2, array![1, 2]]);
        check(doc! { "a": array![] }, "a", array![array![]]);
        check(doc! { "a": array![] }, "a.b", array![]);
        check(doc! { "a": array![1] }, "a.b", array![]);
        check(
            doc! { "a": array![array![doc! { "b": 1 }]] },
            "a.b",
            array![],
        );
        check(
            doc! { "a": array![doc! { "b": 1 }, 7, doc! {}, doc! { "b": array![2] }] },
            "a.b",
            array![1, "missing", 2, array![2]],
        );
        check(
            doc! { "a": array![array![1]] },
            "a",
            array![array![1], array![array![1]]],
        );
    }

    #[test]
    fn numbers_are_positions_and_names() {
        check(doc! { "a": array![5, 6] }, "a.1", array![6]);
        check(doc! { "a": array![5] }, "a.1", array![]);
        check(
            doc! { "a": array![doc! { "0": 5 }] },
            "a.0",
            array![5, doc! { "0": 5 }],
        );
        check(
            doc! { "a": array![doc! { "b": 5 }] },
            "a.0.b",
            array!["missing", 5],
        );
        check(doc! { "a": array![array![5]] }, "a.0", array![5, array![5]]);
        check(doc! { "a": array![array![5, 6]] }, "a.0.1", array![6]);
        check(
            doc! { "a": array![array![doc! { "b": 5 }]] },
            "a.0.b",
            array![5],
        );
        check(doc! { "a": array![5] }, "a.00", array![]);
    }

    #[test]
    fn positions_name_the_outermost_array() {
        let document = doc! { "a": array![doc! { "b": array![1] }, doc! { "b": array![2, 3] }] };
        let path = FieldPath::parse("a.b").unwrap();
        let found = path.visit(document.as_ref(), LeafArrays::Expand, &mut |candidate| {
            if order::equal(candidate.value, ValueRef::Int32(3)) {
                ControlFlow::Break(candidate.position)
            } else {
                ControlFlow::Continue(())
            }
        });
        assert_eq!(found, ControlFlow::Break(Some(1)));
        assert!(
            path.any(document.as_ref(), LeafArrays::Whole, |c| !c.after_elements
                && matches!(c.value, ValueRef::Array(_)))
        );
    }
}

//! The order of BSON values, shared by match, sort, group, min and max, indexes and `$expr`.
//!
//! ```text
//! MinKey < missing = undefined < null < numbers < string = symbol < object < array < binData
//!        < ObjectId < bool < date < timestamp < regex < dbPointer < code < codeWithScope < MaxKey
//! ```
//!
//! Types of one rank ([`CanonicalType`]) compare by value. Numbers compare across int, long, double
//! and decimal without rounding; NaN orders below all of them and equals itself, minus zero equals
//! zero. Objects compare field by field: rank of the value's type, then name, then value; the
//! shorter one is less. Arrays compare element by element. Binary data compares by length, then
//! subtype, then bytes. Strings compare as bytes, or by a [`Collator`], also inside objects and
//! arrays; code and field names never use a collation.
//!
//! A caller that sorts a missing field as null converts it before comparing (sort keys and index
//! keys do, see [`crate::path`]). A caller that compares only within one type (`$lt` in a filter)
//! checks [`canonical_type`] first.
//!
//! [`hash`] is consistent: values that compare equal have equal hashes.

use std::cmp::Ordering;
use std::hash::{Hash, Hasher};

use crate::document::{ArrayRef, DocRef};
use crate::number::{self, Number};
use crate::value::{Value, ValueRef};

/// The rank of a type in the order; types of one rank compare by value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum CanonicalType {
    /// MinKey.
    MinKey,
    /// A missing field, or the deprecated undefined.
    Undefined,
    /// Null.
    Null,
    /// Int, long, double and decimal.
    Number,
    /// String and symbol.
    String,
    /// Embedded document.
    Object,
    /// Array.
    Array,
    /// Binary data.
    Binary,
    /// Object id.
    ObjectId,
    /// Boolean.
    Bool,
    /// Date.
    Date,
    /// Timestamp.
    Timestamp,
    /// Regular expression.
    Regex,
    /// DBPointer.
    DbPointer,
    /// Code.
    Code,
    /// Code with scope.
    CodeWithScope,
    /// MaxKey.
    MaxKey,
}

/// Returns the rank of a value's type in the order.
pub fn canonical_type(value: ValueRef<'_>) -> CanonicalType {
    match value {
        ValueRef::MinKey => CanonicalType::MinKey,
        ValueRef::Missing | ValueRef::Undefined => CanonicalType::Undefined,
        ValueRef::Null => CanonicalType::Null,
        ValueRef::Int32(_) | ValueRef::Int64(_) | ValueRef::Double(_) | ValueRef::Decimal128(_) => {
            CanonicalType::Number
        }
        ValueRef::String(_) | ValueRef::Symbol(_) => CanonicalType::String,
        ValueRef::Document(_) => CanonicalType::Object,
        ValueRef::Array(_) => CanonicalType::Array,
        ValueRef::Binary { .. } => CanonicalType::Binary,
        ValueRef::ObjectId(_) => CanonicalType::ObjectId,
        ValueRef::Bool(_) => CanonicalType::Bool,
        ValueRef::DateTime(_) => CanonicalType::Date,
        ValueRef::Timestamp(_) => CanonicalType::Timestamp,
        ValueRef::Regex { .. } => CanonicalType::Regex,
        ValueRef::DbPointer { .. } => CanonicalType::DbPointer,
        ValueRef::Code(_) => CanonicalType::Code,
        ValueRef::CodeWithScope { .. } => CanonicalType::CodeWithScope,
        ValueRef::MaxKey => CanonicalType::MaxKey,
    }
}

/// An order of strings other than by bytes, such as a collation.
pub trait Collator {
    /// Compares two strings.
    fn compare(&self, a: &str, b: &str) -> Ordering;

    /// Appends a byte string whose order is the order of the strings; equal strings give equal
    /// bytes.
    fn sort_key(&self, text: &str, out: &mut Vec<u8>);
}

/// Compares two values, strings by bytes.
pub fn compare(a: ValueRef<'_>, b: ValueRef<'_>) -> Ordering {
    compare_with(a, b, None)
}

/// Compares two values, strings by `collator`.
pub fn compare_with(a: ValueRef<'_>, b: ValueRef<'_>, collator: Option<&dyn Collator>) -> Ordering {
    use ValueRef as V;
    match (a, b) {
        (V::Double(a), V::Double(b)) => number::compare_f64(a, b),
        (V::Int32(a), V::Int32(b)) => a.cmp(&b),
        (V::Int64(a), V::Int64(b)) | (V::DateTime(a), V::DateTime(b)) => a.cmp(&b),
        (V::String(a) | V::Symbol(a), V::String(b) | V::Symbol(b)) => match collator {
            Some(collator) => collator.compare(a, b),
            None => a.cmp(b),
        },
        (V::Document(a), V::Document(b)) => compare_documents(a, b, collator),
        (V::Array(a), V::Array(b)) => compare_arrays(a, b, collator),
        (
            V::Binary {
                subtype: a_subtype,
                bytes: a,
            },
            V::Binary {
                subtype: b_subtype,
                bytes: b,
            },
        ) => (a.len(), a_subtype, a).cmp(&(b.len(), b_subtype, b)),
        (V::ObjectId(a), V::ObjectId(b)) => a.cmp(&b),
        (V::Bool(a), V::Bool(b)) => a.cmp(&b),
        (V::Timestamp(a), V::Timestamp(b)) => a.cmp(&b),
        (
            V::Regex {
                pattern: a,
                options: a_options,
            },
            V::Regex {
                pattern: b,
                options: b_options,
            },
        ) => (a, a_options).cmp(&(b, b_options)),
        (
            V::DbPointer {
                namespace: a,
                id: a_id,
            },
            V::DbPointer {
                namespace: b,
                id: b_id,
            },
        ) => (a.len(), a, a_id).cmp(&(b.len(), b, b_id)),
        (V::Code(a), V::Code(b)) => a.cmp(b),
        (
            V::CodeWithScope {
                code: a,
                scope: a_scope,
            },
            V::CodeWithScope {
                code: b,
                scope: b_scope,
            },
        ) => a
            .cmp(b)
            .then_with(|| compare_documents(a_scope, b_scope, None)),
        _ => match (Number::of(a), Number::of(b)) {
            (Some(a), Some(b)) => a.compare(b),
            _ => canonical_type(a).cmp(&canonical_type(b)),
        },
    }
}

/// Compares two documents field by field: rank of the type, name, value.
pub fn compare_documents(
    a: DocRef<'_>,
    b: DocRef<'_>,
    collator: Option<&dyn Collator>,
) -> Ordering {
    if a.as_bytes() == b.as_bytes() {
        return Ordering::Equal;
    }
    let (mut left, mut right) = (a.iter(), b.iter());
    loop {
        let (x, y) = match (left.next(), right.next()) {
            (None, None) => return Ordering::Equal,
            (None, Some(_)) => return Ordering::Less,
            (Some(_), None) => return Ordering::Greater,
            (Some(x), Some(y)) => (x, y),
        };
        let (value, other) = (x.value(), y.value());
        let order = canonical_type(value)
            .cmp(&canonical_type(other))
            .then_with(|| x.name_bytes().cmp(y.name_bytes()))
            .then_with(|| compare_with(value, other, collator));
        if order != Ordering::Equal {
            return order;
        }
    }
}

/// Compares two arrays element by element; element names are ignored.
pub fn compare_arrays(
    a: ArrayRef<'_>,
    b: ArrayRef<'_>,
    collator: Option<&dyn Collator>,
) -> Ordering {
    let (mut left, mut right) = (a.iter(), b.iter());
    loop {
        let order = match (left.next(), right.next()) {
            (None, None) => return Ordering::Equal,
            (None, Some(_)) => return Ordering::Less,
            (Some(_), None) => return Ordering::Greater,
            (Some(x), Some(y)) => compare_with(x, y, collator),
        };
        if order != Ordering::Equal {
            return order;
        }
    }
}

/// True if two values compare equal, strings by bytes.
pub fn equal(a: ValueRef<'_>, b: ValueRef<'_>) -> bool {
    compare(a, b) == Ordering::Equal
}

/// Hashes a value; values that compare equal have equal hashes.
pub fn hash(value: ValueRef<'_>, state: &mut impl Hasher) {
    hash_with(value, None, state);
}

/// Like [`hash`], with strings compared by a collation.
pub fn hash_with(value: ValueRef<'_>, collator: Option<&dyn Collator>, state: &mut impl Hasher) {
    state.write_u8(canonical_type(value) as u8);
    match value {
        ValueRef::Missing
        | ValueRef::Undefined
        | ValueRef::Null
        | ValueRef::MinKey
        | ValueRef::MaxKey => {}
        ValueRef::Int32(_) | ValueRef::Int64(_) | ValueRef::Double(_) | ValueRef::Decimal128(_) => {
            if let Some(number) = Number::of(value) {
                number.hash(state);
            }
        }
        ValueRef::String(text) | ValueRef::Symbol(text) => match collator {
            Some(collator) => {
                let mut key = Vec::with_capacity(text.len());
                collator.sort_key(text, &mut key);
                key.hash(state);
            }
            None => text.hash(state),
        },
        ValueRef::Code(text) => text.hash(state),
        ValueRef::Document(document) => hash_document(document, collator, state),
        ValueRef::Array(array) => {
            for element in array.iter() {
                hash_with(element, collator, state);
            }
            state.write_u8(u8::MAX);
        }
        ValueRef::Binary { subtype, bytes } => (subtype, bytes).hash(state),
        ValueRef::ObjectId(id) => id.hash(state),
        ValueRef::Bool(bool) => bool.hash(state),
        ValueRef::DateTime(ms) => ms.hash(state),
        ValueRef::Timestamp(timestamp) => timestamp.hash(state),
        ValueRef::Regex { pattern, options } => (pattern, options).hash(state),
        ValueRef::DbPointer { namespace, id } => (namespace, id).hash(state),
        ValueRef::CodeWithScope { code, scope } => {
            code.hash(state);
            hash_document(scope, None, state);
        }
    }
}

fn hash_document(document: DocRef<'_>, collator: Option<&dyn Collator>, state: &mut impl Hasher) {
    for element in document {
        element.name_bytes().hash(state);
        hash_with(element.value(), collator, state);
    }
    state.write_u8(u8::MAX);
}

/// A value as a map key, with equality, order and hash of [`compare`].
#[derive(Clone, Debug, Default)]
pub struct OrdValue(pub Value);

impl PartialEq for OrdValue {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for OrdValue {}

impl PartialOrd for OrdValue {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for OrdValue {
    fn cmp(&self, other: &Self) -> Ordering {
        compare(self.0.as_ref(), other.0.as_ref())
    }
}

impl Hash for OrdValue {
    fn hash<H: Hasher>(&self, state: &mut H) {
        hash(self.0.as_ref(), state);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{awkward_values, strategies};
    use crate::value::Decimal128;
    use crate::{array, doc};

    struct IgnoreCase;

    impl Collator for IgnoreCase {
        fn compare(&self, a: &str, b: &str) -> Ordering {
            a.to_lowercase().cmp(&b.to_lowercase())
        }

        fn sort_key(&self, text: &str, out: &mut Vec<u8>) {
            out.extend_from_slice(text.to_lowercase().as_bytes());
        }
    }

    fn order(a: impl Into<Value>, b: impl Into<Value>) -> Ordering {
        compare(a.into().as_ref(), b.into().as_ref())
    }

    #[test]
    fn objects_compare_type_before_name_before_value() {
        assert_eq!(order(doc! { "b": 1 }, doc! { "a": "x" }), Ordering::Less);
        assert_eq!(order(doc! { "b": 1 }, doc! { "a": 2 }), Ordering::Greater);
        assert_eq!(
            order(doc! { "a": 1 }, doc! { "a": 1, "b": 1 }),
            Ordering::Less
        );
        assert_eq!(order(doc! { "a": 1 }, doc! { "a": 1.0 }), Ordering::Equal);
        assert_eq!(
            order(doc! { "a": 1, "b": 2 }, doc! { "b": 2, "a": 1 }),
            Ordering::Less
        );
    }

    #[test]
    fn arrays_and_binary() {
        assert_eq!(order(array![1, 2], array![1, 2, 0]), Ordering::Less);
        assert_eq!(order(array![2], array![1, 9]), Ordering::Greater);
        let binary = |subtype, bytes: &[u8]| crate::Binary {
            subtype,
            bytes: bytes.into(),
        };
        assert_eq!(order(binary(9, b"a"), binary(0, b"aa")), Ordering::Less);
        assert_eq!(order(binary(1, b"a"), binary(0, b"z")), Ordering::Greater);
    }

    #[test]
    fn a_collation_reaches_nested_strings_but_not_names() {
        let with = |a: Value, b: Value| compare_with(a.as_ref(), b.as_ref(), Some(&IgnoreCase));
        assert_eq!(with("Abc".into(), "aBC".into()), Ordering::Equal);
        assert_eq!(
            with(
                doc! { "x": array!["A"] }.into(),
                doc! { "x": array!["a"] }.into()
            ),
            Ordering::Equal
        );
        assert_ne!(
            with(doc! { "X": 1 }.into(), doc! { "x": 1 }.into()),
            Ordering::Equal
        );
    }

    fn hash_of(value: &Value) -> u64 {
        let mut state = std::hash::DefaultHasher::new();
        hash(value.as_ref(), &mut state);
        state.finish()
    }

    #[test]
    fn the_awkward_values_are_in_order() {
        let values = awkward_values();
        for (a_group, a) in &values {
            for (b_group, b) in &values {
                let order = compare(a.as_ref(), b.as_ref());
                assert_eq!(order, a_group.cmp(b_group), "{a:?} against {b:?}");
                if order == Ordering::Equal {
                    assert_eq!(hash_of(a), hash_of(b), "{a:?} and {b:?}");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn the_order_is_total(
            a in strategies::value(),
            b in strategies::value(),
            c in strategies::value(),
        ) {
            let cmp = |a: &Value, b: &Value| compare(a.as_ref(), b.as_ref());
            prop_assert_eq!(cmp(&a, &a), Ordering::Equal);
            prop_assert_eq!(cmp(&a, &b), cmp(&b, &a).reverse());
            if cmp(&a, &b) == cmp(&b, &c) {
                prop_assert_eq!(cmp(&a, &c), cmp(&a, &b));
            }
            if cmp(&a, &b) == Ordering::Equal {
                prop_assert_eq!(hash_of(&a), hash_of(&b));
            }
        }

        #[test]
        fn numbers_are_totally_ordered(
            a in strategies::number(),
            b in strategies::number(),
            c in strategies::number(),
        ) {
            let cmp = |a: &Value, b: &Value| compare(a.as_ref(), b.as_ref());
            prop_assert_eq!(cmp(&a, &b), cmp(&b, &a).reverse());
            if cmp(&a, &b) == cmp(&b, &c) {
                prop_assert_eq!(cmp(&a, &c), cmp(&a, &b));
            }
        }

        #[test]
        fn equal_numbers_of_other_types_hash_alike(whole in strategies::long()) {
            let mut equals: Vec<Value> = vec![whole.into(), Decimal128::from(whole).into()];
            if let Ok(int) = i32::try_from(whole) {
                equals.push(int.into());
            }
            if (whole as f64) as i64 == whole && whole != i64::MAX {
                equals.push((whole as f64).into());
            }
            for value in &equals {
                prop_assert!(equal(value.as_ref(), ValueRef::Int64(whole)));
                prop_assert_eq!(hash_of(value), hash_of(&whole.into()));
            }
        }

        #[test]
        fn doubles_and_their_decimals_hash_alike(value in strategies::double()) {
            let decimal = Decimal128::from_f64_closest(value);
            let (double, decimal) = (Value::from(value), Value::from(decimal));
            if equal(double.as_ref(), decimal.as_ref()) {
                prop_assert_eq!(hash_of(&double), hash_of(&decimal));
            }
        }
    }
}

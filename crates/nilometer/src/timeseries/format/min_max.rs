//! `control.min` and `control.max`: the extremes of each field of a bucket.
//!
//! Scalars compare in BSON order, strings by the collation of the collection. The extreme keeps its own type; of equal values
//! the first stays. Objects are merged field by field and arrays position by position, so the minimum of `{x:1,y:2}` and
//! `{x:2,y:1}` is `{x:1,y:1}`: a bound of every path, not the least document.

use std::cmp::Ordering;

use nilometer_bson::{Array, DocumentBuilder, Value, ValueRef};

use crate::eval::Collation;

/// The side of the bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// `control.min`.
    Min,
    /// `control.max`.
    Max,
}

impl Side {
    /// True if a value with this order relative to the extreme replaces it.
    fn is_better(self, found: Ordering) -> bool {
        match self {
            Self::Min => found.is_lt(),
            Self::Max => found.is_gt(),
        }
    }
}

/// Returns the order of two scalars of the same plain type, which does not depend on the collation: the common case.
fn order_of_alike(value: ValueRef<'_>, known: &Value) -> Option<Ordering> {
    match (value, known) {
        (ValueRef::Int32(a), Value::Int32(b)) => Some(a.cmp(b)),
        (ValueRef::Int64(a), Value::Int64(b)) => Some(a.cmp(b)),
        (ValueRef::Double(a), Value::Double(b)) => a.partial_cmp(b),
        (ValueRef::DateTime(a), Value::DateTime(b)) => Some(a.cmp(b)),
        (ValueRef::ObjectId(a), Value::ObjectId(b)) => Some(a.cmp(b)),
        // Equal texts are equal under every collation.
        (ValueRef::String(a), Value::String(b)) if *a == **b => Some(Ordering::Equal),
        _ => None,
    }
}

/// The extreme of one path.
#[derive(Clone, Debug)]
pub(crate) enum Extreme {
    /// The extreme of scalars; missing before the first.
    Scalar(Value),
    /// The extremes of objects, by field in order of first appearance.
    Object(Vec<(Box<str>, Extreme)>),
    /// The extremes of arrays, by position.
    Array(Vec<Extreme>),
}

impl Extreme {
    /// Returns the extreme of no value.
    pub(crate) fn none() -> Self {
        Self::Scalar(Value::Missing)
    }

    fn of(value: ValueRef<'_>) -> Self {
        match value {
            ValueRef::Document(fields) => Self::Object(
                fields
                    .iter()
                    .map(|e| (e.name().into(), Self::of(e.value())))
                    .collect(),
            ),
            ValueRef::Array(values) => Self::Array(values.iter().map(Self::of).collect()),
            scalar => Self::Scalar(scalar.to_value()),
        }
    }

    /// Adds a value; a missing one changes nothing.
    pub(crate) fn update(&mut self, value: ValueRef<'_>, side: Side, collation: &Collation) {
        if let Self::Scalar(known) = self
            && let Some(found) = order_of_alike(value, known)
        {
            if side.is_better(found) {
                *known = value.to_value();
            }
            return;
        }
        match (&mut *self, value) {
            (_, ValueRef::Missing) => {}
            (Self::Scalar(Value::Missing), value) => *self = Self::of(value),
            (Self::Object(known), ValueRef::Document(fields)) => {
                for element in fields {
                    match known.iter_mut().find(|(name, _)| **name == *element.name()) {
                        Some((_, extreme)) => extreme.update(element.value(), side, collation),
                        None => known.push((element.name().into(), Self::of(element.value()))),
                    }
                }
            }
            (Self::Array(known), ValueRef::Array(values)) => {
                for (at, value) in values.iter().enumerate() {
                    match known.get_mut(at) {
                        Some(extreme) => extreme.update(value, side, collation),
                        None => known.push(Self::of(value)),
                    }
                }
            }
            (Self::Scalar(known), value) => {
                if side.is_better(collation.compare(value, known.as_ref())) {
                    *self = Self::of(value);
                }
            }
            (known, value) => {
                // Different kinds occur only in raw buckets with a mixed schema.
                let found = collation.compare(value, known.to_value().as_ref());
                if side.is_better(found) {
                    *known = Self::of(value);
                }
            }
        }
    }

    /// Returns the extreme as a BSON value; missing if there was no value.
    pub(crate) fn to_value(&self) -> Value {
        match self {
            Self::Scalar(value) => value.clone(),
            Self::Object(fields) => {
                let mut out = DocumentBuilder::new();
                for (name, extreme) in fields {
                    out.append(name, extreme.to_value());
                }
                Value::Document(out.finish())
            }
            Self::Array(values) => {
                Value::Array(values.iter().map(Self::to_value).collect::<Array>())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nilometer_bson::{array, doc, order};

    fn extremes(values: &[Value]) -> (Value, Value) {
        extremes_by(values, &Collation::SIMPLE)
    }

    fn extremes_by(values: &[Value], collation: &Collation) -> (Value, Value) {
        let (mut min, mut max) = (Extreme::none(), Extreme::none());
        for value in values {
            min.update(value.as_ref(), Side::Min, collation);
            max.update(value.as_ref(), Side::Max, collation);
        }
        (min.to_value(), max.to_value())
    }

    fn same(a: &Value, b: &Value) -> bool {
        order::compare(a.as_ref(), b.as_ref()).is_eq() && a.type_code() == b.type_code()
    }

    #[test]
    fn the_winner_keeps_its_type_and_the_first_of_equals_stays() {
        let (min, max) = extremes(&[3.5.into(), 9i64.into(), 2.into()]);
        assert!(same(&min, &2.into()) && same(&max, &9i64.into()));
        let (min, max) = extremes(&[7i64.into(), 7.into(), 7.0.into()]);
        assert!(same(&min, &7i64.into()) && same(&max, &7i64.into()));
    }

    #[test]
    fn objects_and_arrays_merge_by_path() {
        let (min, max) = extremes(&[
            doc! { "x": 1, "y": 2 }.into(),
            doc! { "x": 2, "y": 1, "z": 5 }.into(),
        ]);
        assert!(same(&min, &doc! { "x": 1, "y": 1, "z": 5 }.into()));
        assert!(same(&max, &doc! { "x": 2, "y": 2, "z": 5 }.into()));
        let (min, max) = extremes(&[array![1, 2], array![2, 1, 9]]);
        assert!(same(&min, &array![1, 1, 9]) && same(&max, &array![2, 2, 9]));
        let (min, _) = extremes(&[doc! {}.into(), doc! { "a": 1 }.into()]);
        assert!(same(&min, &doc! { "a": 1 }.into()));
    }

    #[test]
    fn strings_compare_by_the_collation() {
        let by = |spec: nilometer_bson::Document, values: &[Value]| {
            let collation = Collation::parse(spec.as_ref(), "collation").unwrap();
            extremes_by(values, &collation)
        };
        let numbers = [Value::from("10"), "5".into(), "7".into()];
        let (min, max) = by(doc! { "locale": "en", "numericOrdering": true }, &numbers);
        assert!(same(&min, &"5".into()) && same(&max, &"10".into()));
        let (min, max) = extremes(&numbers);
        assert!(same(&min, &"10".into()) && same(&max, &"7".into()));
        let folded = doc! { "locale": "en", "strength": 1 };
        let (min, max) = by(
            folded,
            &["B".into(), "b".into(), "\u{e1}".into(), "A".into()],
        );
        assert!(same(&min, &"\u{e1}".into()) && same(&max, &"B".into()));
    }

    #[test]
    fn missing_values_change_nothing() {
        let (min, max) = extremes(&[Value::Missing, 1.into(), Value::Missing]);
        assert!(same(&min, &1.into()) && same(&max, &1.into()));
        assert!(extremes(&[]).0.is_missing());
    }
}

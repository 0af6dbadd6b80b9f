//! The schema rule: which measurements may share a bucket.
//!
//! A bucket has one canonical type for every path. A measurement with another canonical type at any path closes the bucket;
//! missing fields and new fields do not. All numbers are one canonical type, and so are string and symbol. Objects are
//! compared by field name and arrays by position. Because of this rule one comparison with `control.min` or `control.max`
//! bounds every value of a field.

use nilometer_bson::{DocRef, ValueRef, type_code};

/// The canonical type of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Schema {
    /// A value that is neither object nor array, by canonical type.
    Scalar(u8),
    /// An object, with the types of its fields.
    Object(Vec<(Box<str>, Schema)>),
    /// An array, with the types of its positions.
    Array(Vec<Schema>),
}

/// The class of a scalar's type; equal classes may share a bucket.
fn class(type_code: u8) -> u8 {
    match type_code {
        type_code::INT32 | type_code::INT64 | type_code::DECIMAL128 => type_code::DOUBLE,
        type_code::SYMBOL => type_code::STRING,
        other => other,
    }
}

impl Schema {
    /// Returns the schema of one value.
    pub(crate) fn of(value: ValueRef<'_>) -> Self {
        match value {
            ValueRef::Document(fields) => Self::Object(
                fields
                    .iter()
                    .map(|e| (e.name().into(), Self::of(e.value())))
                    .collect(),
            ),
            ValueRef::Array(values) => Self::Array(values.iter().map(Self::of).collect()),
            scalar => Self::Scalar(class(scalar.type_code())),
        }
    }

    /// True if a value of this BSON type is a scalar of the same class.
    pub(crate) fn accepts_scalar(&self, type_code: u8) -> bool {
        matches!(self, Self::Scalar(known) if *known == class(type_code))
            && type_code != type_code::DOCUMENT
            && type_code != type_code::ARRAY
    }

    /// True if `value` fits the schema.
    pub(crate) fn accepts(&self, value: ValueRef<'_>) -> bool {
        match (self, value) {
            (Self::Object(known), ValueRef::Document(fields)) => accepts_fields(known, fields),
            (Self::Array(known), ValueRef::Array(values)) => known
                .iter()
                .zip(values.iter())
                .all(|(schema, value)| schema.accepts(value)),
            (Self::Scalar(known), value) => {
                *known == class(value.type_code())
                    && !matches!(value, ValueRef::Document(_) | ValueRef::Array(_))
            }
            _ => false,
        }
    }

    /// Adds the paths of a value that fits.
    pub(crate) fn learn(&mut self, value: ValueRef<'_>) {
        match (self, value) {
            (Self::Object(known), ValueRef::Document(fields)) => {
                for element in fields {
                    match known.iter_mut().find(|(name, _)| **name == *element.name()) {
                        Some((_, schema)) => schema.learn(element.value()),
                        None => known.push((element.name().into(), Self::of(element.value()))),
                    }
                }
            }
            (Self::Array(known), ValueRef::Array(values)) => {
                for (at, value) in values.iter().enumerate() {
                    match known.get_mut(at) {
                        Some(schema) => schema.learn(value),
                        None => known.push(Self::of(value)),
                    }
                }
            }
            _ => {}
        }
    }
}

fn accepts_fields(known: &[(Box<str>, Schema)], fields: DocRef<'_>) -> bool {
    fields.iter().all(|element| {
        known
            .iter()
            .find(|(name, _)| name.as_bytes() == element.name_bytes())
            .is_none_or(|(_, schema)| schema.accepts(element.value()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nilometer_bson::{Decimal128, ObjectId, Value, array, doc};

    #[test]
    fn canonical_types_decide() {
        let accepts = |a: Value, b: Value| Schema::of(a.as_ref()).accepts(b.as_ref());
        let numbers = [
            Value::from(1),
            1i64.into(),
            1.5.into(),
            Decimal128::default().into(),
        ];
        for a in &numbers {
            for b in &numbers {
                assert!(accepts(a.clone(), b.clone()));
            }
            assert!(!accepts(a.clone(), Value::Undefined));
            assert!(!accepts(a.clone(), doc! {}.into()));
            assert!(!accepts(a.clone(), array![1]));
            assert!(!accepts(array![1], a.clone()));
        }
        assert!(accepts("a".into(), Value::Symbol("b".into())));
        assert!(!accepts(Value::Null, Value::Undefined));
        assert!(!accepts(array![], doc! {}.into()));
        assert!(!accepts(ObjectId::default().into(), "a".into()));
        assert!(!accepts(array![1], array!["s"]));
        assert!(accepts(array![1], array![2, "new position"]));
        let nested = |b: Value| Value::from(doc! { "a": doc! { "b": b } });
        assert!(!accepts(nested(1.into()), nested("s".into())));
        assert!(accepts(nested(1.into()), nested(2.5.into())));
    }

    #[test]
    fn new_paths_are_remembered() {
        let mut schema = Schema::of(Value::from(doc! { "a": 1 }).as_ref());
        let second = Value::from(doc! { "b": array!["x"] });
        assert!(schema.accepts(second.as_ref()));
        schema.learn(second.as_ref());
        assert!(!schema.accepts(Value::from(doc! { "b": array![1] }).as_ref()));
        assert!(schema.accepts(Value::from(doc! { "b": array!["y"], "a": 2i64 }).as_ref()));
    }
}

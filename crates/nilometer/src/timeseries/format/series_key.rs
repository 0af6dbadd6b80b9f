//! The identity of a series: its metadata, normalised.
//!
//! Two measurements belong to one series if the normalised bytes of their meta values are equal. Normalising sorts the fields
//! of objects by name at every depth, also within arrays, whose order stays. Nothing else is normalised: int 1 and long 1
//! are two series, and so are null and a missing meta value. The normalised form is stored and returned to clients.

use nilometer_bson::{Array, DocRef, DocumentBuilder, Element, Value, ValueRef, type_code};

/// The normalised meta value of a series; empty when measurements have no meta field.
///
/// One type byte, then the value's bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SeriesMeta(Box<[u8]>);

impl SeriesMeta {
    /// Returns the series of measurements without a meta value.
    pub(crate) fn absent() -> Self {
        Self(Box::default())
    }

    /// Returns the series of a meta value.
    pub(crate) fn of(value: ValueRef<'_>) -> Self {
        if value.is_missing() {
            return Self::absent();
        }
        let mut bytes = vec![value.type_code()];
        nilometer_bson::document::write_value(&mut bytes, normalise(value).as_ref());
        Self(bytes.into())
    }

    /// Returns the series of an element's value.
    pub(crate) fn of_element(element: Option<Element<'_>>) -> Self {
        match element {
            None => Self::absent(),
            Some(element) if needs_no_look(element.type_code()) => {
                let mut bytes = Vec::with_capacity(1 + element.value_bytes().len());
                bytes.push(element.type_code());
                bytes.extend_from_slice(element.value_bytes());
                Self(bytes.into())
            }
            Some(element) => Self::of(element.value()),
        }
    }

    /// Returns the meta value; missing for the series without one.
    pub(crate) fn value(&self) -> ValueRef<'_> {
        match self.0.split_first() {
            None => ValueRef::Missing,
            Some((&code, bytes)) => {
                nilometer_bson::document::decode_value(code, bytes).unwrap_or(ValueRef::Missing)
            }
        }
    }

    /// Returns the normalised bytes, which are equal for equal series.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the size in bytes.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

/// True for scalars, which need no normalising.
fn needs_no_look(code: u8) -> bool {
    code != type_code::DOCUMENT && code != type_code::ARRAY
}

/// True if the fields are sorted at every depth.
fn is_normalised(value: ValueRef<'_>) -> bool {
    match value {
        ValueRef::Document(fields) => sorted(fields),
        ValueRef::Array(values) => values.iter().all(is_normalised),
        _ => true,
    }
}

fn sorted(fields: DocRef<'_>) -> bool {
    let mut last: &[u8] = &[];
    fields.iter().all(|element| {
        let in_order = last <= element.name_bytes();
        last = element.name_bytes();
        in_order && (needs_no_look(element.type_code()) || is_normalised(element.value()))
    })
}

/// True if there is an array anywhere in the value.
pub(crate) fn has_arrays(value: ValueRef<'_>) -> bool {
    match value {
        ValueRef::Array(_) => true,
        // Most types need no decoding.
        ValueRef::Document(inner) => inner.iter().any(|field| match field.type_code() {
            type_code::ARRAY => true,
            type_code::DOCUMENT => has_arrays(field.value()),
            _ => false,
        }),
        _ => false,
    }
}

/// Returns the value with the fields of every object sorted by name. What becomes of a field does not depend on the others.
fn normalise(value: ValueRef<'_>) -> Value {
    match value {
        _ if is_normalised(value) => value.to_value(),
        ValueRef::Document(fields) => {
            let mut elements: Vec<_> = fields.iter().collect();
            elements.sort_by_key(|e| e.name_bytes());
            let mut out = DocumentBuilder::with_capacity(fields.as_bytes().len());
            for element in elements {
                if needs_no_look(element.type_code()) {
                    out.append_element(element);
                } else {
                    out.append(element.name(), normalise(element.value()));
                }
            }
            Value::Document(out.finish())
        }
        ValueRef::Array(values) => Value::Array(values.iter().map(normalise).collect::<Array>()),
        scalar => scalar.to_value(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nilometer_bson::{array, doc};

    fn key(value: impl Into<Value>) -> SeriesMeta {
        SeriesMeta::of(value.into().as_ref())
    }

    #[test]
    fn field_order_does_not_make_a_series() {
        let a = doc! { "b": doc! { "y": 1, "x": 2 }, "a": array![doc! { "d": 1, "c": 2 }] };
        let b = doc! { "a": array![doc! { "c": 2, "d": 1 }], "b": doc! { "x": 2, "y": 1 } };
        assert_eq!(key(a), key(b.clone()));
        assert_eq!(
            key(b.clone()).value().as_document().unwrap().as_bytes(),
            b.as_bytes()
        );
        assert_ne!(key(array![1, 2]), key(array![2, 1]));
    }

    #[test]
    fn names_of_array_elements_do_not_depend_on_the_order_of_fields() {
        let mut array = DocumentBuilder::new();
        array.append("7", 1);
        let array = Value::Array(Array::from_document(array.finish()));
        let one = doc! { "a": array.clone(), "b": 1 };
        let other = doc! { "b": 1, "a": array };
        assert_eq!(key(one), key(other));
    }

    #[test]
    fn comparison_is_binary() {
        let keys = [
            key(1),
            key(1i64),
            key(1.0),
            key("a"),
            key("A"),
            key(Value::Null),
            SeriesMeta::absent(),
            key(doc! {}),
            key(array![]),
        ];
        for (i, a) in keys.iter().enumerate() {
            for (j, b) in keys.iter().enumerate() {
                assert_eq!(a == b, i == j, "{a:?} {b:?}");
            }
        }
    }
}

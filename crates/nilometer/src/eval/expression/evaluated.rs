//! The result of evaluating an expression, borrowed from the document if possible.
//!
//! A field path returns the bytes of the document, a constant those of the expression; only
//! computed values are owned. Numbers, dates and booleans never allocate in either form.

use nilometer_bson::{ArrayRef, DocRef, Value, ValueRef};

use crate::eval::memory_bytes;

/// A value that may be borrowed from the document it was read from.
#[derive(Clone, Debug)]
pub enum Evaluated<'a> {
    /// Borrowed from the document or the expression, or a value without heap data.
    Borrowed(ValueRef<'a>),
    /// Computed.
    Owned(Value),
}

impl<'a> Evaluated<'a> {
    /// A missing value.
    pub const MISSING: Evaluated<'static> = Evaluated::Borrowed(ValueRef::Missing);
    /// Null.
    pub const NULL: Evaluated<'static> = Evaluated::Borrowed(ValueRef::Null);

    /// Returns the value, borrowed from this one.
    pub fn as_ref(&self) -> ValueRef<'_> {
        match self {
            Self::Borrowed(value) => *value,
            Self::Owned(value) => value.as_ref(),
        }
    }

    /// Returns the bytes on the heap; zero if borrowed.
    pub(crate) fn heap_bytes(&self) -> usize {
        match self {
            Self::Borrowed(_) => 0,
            Self::Owned(value) => memory_bytes(value),
        }
    }

    /// Returns the value, owned.
    pub fn into_value(self) -> Value {
        match self {
            Self::Borrowed(value) => value.to_value(),
            Self::Owned(value) => value,
        }
    }

    /// True for missing, null and undefined.
    pub fn is_nullish(&self) -> bool {
        self.as_ref().is_nullish()
    }

    /// True as a condition of `$and`, `$cond` and `$match`: not false, zero, null, undefined or
    /// missing.
    pub fn is_true(&self) -> bool {
        is_true(self.as_ref())
    }

    /// Returns the name of its type, for messages.
    pub fn type_name(&self) -> &'static str {
        self.as_ref().type_name()
    }

    /// Returns the array, if it is one.
    pub fn as_array(&self) -> Option<ArrayRef<'_>> {
        self.as_ref().as_array()
    }

    /// Returns the document, if it is one.
    pub fn as_document(&self) -> Option<DocRef<'_>> {
        self.as_ref().as_document()
    }

    /// Returns the text, if it is a string.
    pub fn as_str(&self) -> Option<&str> {
        self.as_ref().as_str()
    }
}

/// True as a condition: see [`Evaluated::is_true`].
pub fn is_true(value: ValueRef<'_>) -> bool {
    match value {
        ValueRef::Missing | ValueRef::Null | ValueRef::Undefined => false,
        ValueRef::Bool(v) => v,
        ValueRef::Int32(v) => v != 0,
        ValueRef::Int64(v) => v != 0,
        ValueRef::Double(v) => v != 0.0,
        ValueRef::Decimal128(v) => !super::numeric::decimal_is_zero(v),
        _ => true,
    }
}

impl<'a> From<ValueRef<'a>> for Evaluated<'a> {
    fn from(value: ValueRef<'a>) -> Self {
        Self::Borrowed(value)
    }
}

impl From<Value> for Evaluated<'_> {
    fn from(value: Value) -> Self {
        Self::Owned(value)
    }
}

macro_rules! from_scalar {
    ($($from:ty => $variant:ident;)*) => {$(
        impl From<$from> for Evaluated<'_> {
            fn from(value: $from) -> Self {
                Self::Borrowed(ValueRef::$variant(value))
            }
        }
    )*};
}

from_scalar! {
    f64 => Double;
    i32 => Int32;
    i64 => Int64;
    bool => Bool;
    nilometer_bson::value::Decimal128 => Decimal128;
    nilometer_bson::value::ObjectId => ObjectId;
}

impl From<String> for Evaluated<'_> {
    fn from(value: String) -> Self {
        Self::Owned(Value::String(value.into()))
    }
}

impl From<Vec<Value>> for Evaluated<'_> {
    fn from(values: Vec<Value>) -> Self {
        Self::Owned(values.into())
    }
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{array, doc};

    use super::*;

    #[test]
    fn truth() {
        for truthy in [
            Value::from(1),
            Value::from(""),
            array![],
            doc! {}.into(),
            Value::Double(f64::NAN),
            Value::DateTime(0),
            Value::MinKey,
        ] {
            assert!(is_true(truthy.as_ref()), "{truthy:?}");
        }
        for falsy in [
            Value::Missing,
            Value::Null,
            Value::Undefined,
            0.into(),
            0i64.into(),
            Value::Double(-0.0),
            false.into(),
        ] {
            assert!(!is_true(falsy.as_ref()), "{falsy:?}");
        }
    }
}

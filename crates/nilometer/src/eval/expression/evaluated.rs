//! The result of evaluating an expression: borrowed from the document where possible.
//!
//! A field path gives back the very bytes of the document, a constant those of the expression; only
//! what was computed is owned. Numbers, dates and booleans never allocate in either form.

use nilometer_bson::{ArrayRef, DocRef, Value, ValueRef};

/// A value that may still live in the document it was read from.
#[derive(Clone, Debug)]
pub enum Evaluated<'a> {
    /// Lives in the document, in the expression, or is small enough to need no home.
    Borrowed(ValueRef<'a>),
    /// Was computed.
    Owned(Value),
}

impl<'a> Evaluated<'a> {
    /// The absence of a value.
    pub const MISSING: Evaluated<'static> = Evaluated::Borrowed(ValueRef::Missing);
    /// Null.
    pub const NULL: Evaluated<'static> = Evaluated::Borrowed(ValueRef::Null);

    /// The value, borrowed from here.
    pub fn as_ref(&self) -> ValueRef<'_> {
        match self {
            Self::Borrowed(value) => *value,
            Self::Owned(value) => value.as_ref(),
        }
    }

    /// The value, owned.
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

    /// Truth as `$and`, `$cond` and `$match` see it: all but false, zero, null, undefined, missing.
    pub fn is_true(&self) -> bool {
        is_true(self.as_ref())
    }

    /// The name of its type, for messages.
    pub fn type_name(&self) -> &'static str {
        self.as_ref().type_name()
    }

    /// Its array, if it is one.
    pub fn as_array(&self) -> Option<ArrayRef<'_>> {
        self.as_ref().as_array()
    }

    /// Its document, if it is one.
    pub fn as_document(&self) -> Option<DocRef<'_>> {
        self.as_ref().as_document()
    }

    /// Its text, if it is a string.
    pub fn as_str(&self) -> Option<&str> {
        self.as_ref().as_str()
    }
}

/// Truth of a value: see [`Evaluated::is_true`].
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

//! The range of values of one type, within which a typed comparison stays.
//!
//! ```text
//! numbers      [-inf, inf], NaN beside them      dates       [least, greatest]
//! strings      ["", {})                          timestamps  [Timestamp(0, 0), Timestamp(max, max)]
//! objects      [{}, [])                          booleans    [false, true]
//! arrays       [[], BinData(0, ))                object ids  [000…, fff…]
//! others       up to the least value of the next type
//! others       up to the least value of the next type

use std::sync::Arc;

use nilometer_bson::order::{CanonicalType, canonical_type};
use nilometer_bson::{
    Array, Binary, CodeWithScope, DbPointer, Document, ObjectId, Regex, Timestamp, Value, ValueRef,
};

use super::Interval;

/// An end of a bracket: a value and whether it is included.
pub(super) struct End {
    pub(super) value: Value,
    pub(super) inclusive: bool,
}

fn including(value: Value) -> End {
    End {
        value,
        inclusive: true,
    }
}

fn below(of: CanonicalType) -> End {
    End {
        value: least(of).value,
        inclusive: false,
    }
}

/// Returns the least value of a type; for numbers the least that is not NaN.
pub(super) fn least(of: CanonicalType) -> End {
    use CanonicalType as T;
    including(match of {
        T::MinKey => Value::MinKey,
        T::Undefined => Value::Undefined,
        T::Null => Value::Null,
        T::Number => Value::Double(f64::NEG_INFINITY),
        T::String => Value::from(""),
        T::Object => Value::Document(Document::new()),
        T::Array => Value::Array(Array::from_document(Document::new())),
        T::Binary => Value::from(Binary {
            subtype: 0,
            bytes: Arc::from([]),
        }),
        T::ObjectId => Value::ObjectId(ObjectId([0; 12])),
        T::Bool => Value::Bool(false),
        T::Date => Value::DateTime(i64::MIN),
        T::Timestamp => Value::Timestamp(Timestamp::from_u64(0)),
        T::Regex => Value::Regex(Arc::new(Regex {
            pattern: "".into(),
            options: "".into(),
        })),
        T::DbPointer => Value::DbPointer(Arc::new(DbPointer {
            namespace: "".into(),
            id: ObjectId([0; 12]),
        })),
        T::Code => Value::Code("".into()),
        T::CodeWithScope => Value::CodeWithScope(Arc::new(CodeWithScope {
            code: "".into(),
            scope: Document::new(),
        })),
        T::MaxKey => Value::MaxKey,
    })
}

/// Returns the upper end of a type.
pub(super) fn greatest(of: CanonicalType) -> End {
    use CanonicalType as T;
    match of {
        T::MinKey => including(Value::MinKey),
        T::Undefined => including(Value::Undefined),
        T::Null => including(Value::Null),
        T::Number => including(Value::Double(f64::INFINITY)),
        T::String => below(T::Object),
        T::Object => below(T::Array),
        T::Array => below(T::Binary),
        T::Binary => below(T::ObjectId),
        T::ObjectId => including(Value::ObjectId(ObjectId([0xFF; 12]))),
        T::Bool => including(Value::Bool(true)),
        T::Date => including(Value::DateTime(i64::MAX)),
        T::Timestamp => including(Value::Timestamp(Timestamp::from_u64(u64::MAX))),
        T::Regex => below(T::DbPointer),
        T::DbPointer => below(T::Code),
        T::Code => below(T::CodeWithScope),
        T::CodeWithScope => below(T::MaxKey),
        T::MaxKey => including(Value::MaxKey),
    }
}

/// Returns the interval of all values of a type; numbers include NaN.
pub(super) fn whole(of: CanonicalType) -> Interval {
    let low = match of {
        CanonicalType::Number => including(Value::Double(f64::NAN)),
        other => least(other),
    };
    let high = greatest(of);
    Interval::new(low.value, low.inclusive, high.value, high.inclusive)
}

/// True if a collation affects comparisons with the value.
pub(super) fn has_text(value: ValueRef<'_>) -> bool {
    matches!(
        canonical_type(value),
        CanonicalType::String | CanonicalType::Object | CanonicalType::Array
    )
}

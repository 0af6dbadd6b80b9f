//! Sizes in bytes: `$bsonSize` of an object (31393 otherwise), `$binarySize` of a string or binary data
//! (51276 otherwise). Null or missing gives null.

use nilometer_bson::ValueRef;

use super::evaluated::Evaluated;
use super::operation::{CallContext, arg};
use crate::error::{Error, Result, location};

pub(super) fn bson<'s>(values: &[Evaluated<'s>], _: CallContext<'_, 's>) -> Result<Evaluated<'s>> {
    match arg(values, 0).as_ref() {
        ValueRef::Document(doc) => Ok(length(doc.as_bytes().len())),
        value if value.is_nullish() => Ok(Evaluated::NULL),
        other => Err(Error::location(
            location::BSON_SIZE_NOT_OBJECT,
            format!(
                "$bsonSize requires a document input, found: {}",
                other.type_name()
            ),
        )),
    }
}

pub(super) fn binary<'s>(
    values: &[Evaluated<'s>],
    _: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    match arg(values, 0).as_ref() {
        ValueRef::String(text) => Ok(length(text.len())),
        ValueRef::Binary { bytes, .. } => Ok(length(bytes.len())),
        value if value.is_nullish() => Ok(Evaluated::NULL),
        other => Err(Error::location(
            location::BINARY_SIZE_TYPE,
            format!(
                "$binarySize requires a string or BinData argument, found: {}",
                other.type_name()
            ),
        )),
    }
}

fn length<'s>(bytes: usize) -> Evaluated<'s> {
    Evaluated::from(i32::try_from(bytes).unwrap_or(i32::MAX))
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{Value, doc, value};

    use super::super::testing::{check_exact, eval_code};

    #[test]
    fn sizes() {
        let bytes = Value::Binary(value::Binary {
            subtype: 0,
            bytes: [1u8, 2, 3][..].into(),
        });
        let doc = doc! { "o": doc! { "a": 1 }, "b": bytes, "n": Value::Null };
        check_exact(&doc, doc! { "$bsonSize": "$o" }, 12);
        check_exact(&doc, doc! { "$bsonSize": "$n" }, Value::Null);
        check_exact(&doc, doc! { "$binarySize": "$b" }, 3);
        check_exact(&doc, doc! { "$binarySize": "é" }, 2);
        check_exact(&doc, doc! { "$binarySize": "$gone" }, Value::Null);
        assert_eq!(eval_code(&doc, doc! { "$bsonSize": 1 }), 31393);
        assert_eq!(eval_code(&doc, doc! { "$binarySize": 1 }), 51276);
    }
}

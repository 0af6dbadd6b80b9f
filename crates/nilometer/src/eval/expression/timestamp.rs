//! Parts of a timestamp: `$tsSecond` and `$tsIncrement`, both long. Null or missing gives null,
//! other types 5687301 and 5687302.

use nilometer_bson::ValueRef;
use nilometer_bson::value::Timestamp;

use super::evaluated::Evaluated;
use super::operation::{CallContext, arg};
use crate::error::{Error, Result, location};

pub(super) fn second<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    part(
        values,
        call,
        location::TS_SECOND_NOT_TIMESTAMP,
        |timestamp| timestamp.seconds,
    )
}

pub(super) fn increment<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    part(
        values,
        call,
        location::TS_INCREMENT_NOT_TIMESTAMP,
        |timestamp| timestamp.increment,
    )
}

fn part<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
    code: i32,
    part: fn(Timestamp) -> u32,
) -> Result<Evaluated<'s>> {
    match arg(values, 0).as_ref() {
        ValueRef::Timestamp(timestamp) => Ok(Evaluated::from(i64::from(part(timestamp)))),
        value if value.is_nullish() => Ok(Evaluated::NULL),
        other => Err(Error::location(
            code,
            format!(
                "Argument to {} must be a timestamp, but is {}",
                call.name,
                other.type_name()
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{Value, doc};

    use super::super::testing::{check_exact, eval_code};
    use super::*;

    #[test]
    fn parts() {
        let doc = doc! { "t": Timestamp { seconds: u32::MAX, increment: 7 }, "n": Value::Null };
        check_exact(&doc, doc! { "$tsSecond": "$t" }, i64::from(u32::MAX));
        check_exact(&doc, doc! { "$tsIncrement": "$t" }, 7i64);
        check_exact(&doc, doc! { "$tsSecond": "$n" }, Value::Null);
        check_exact(&doc, doc! { "$tsIncrement": "$gone" }, Value::Null);
        assert_eq!(eval_code(&doc, doc! { "$tsSecond": 5 }), 5_687_301);
        assert_eq!(
            eval_code(&doc, doc! { "$tsIncrement": Value::DateTime(0) }),
            5_687_302
        );
    }
}

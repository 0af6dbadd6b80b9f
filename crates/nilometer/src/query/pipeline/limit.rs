//! `$limit` and `$skip`: a whole number, which must be positive for `$limit`.

use nilometer_bson::ValueRef;
use nilometer_bson::number::Number;

use super::{PipelineContext, Stage};
use crate::error::{Error, Result, location};

/// Parses `$limit`.
pub(super) fn parse_limit(
    _: &PipelineContext,
    name: &'static str,
    value: ValueRef<'_>,
    out: &mut Vec<Stage>,
) -> Result<()> {
    let n = non_negative(name, location::LIMIT_INVALID, value)?;
    if n == 0 {
        return Err(Error::location(
            location::LIMIT_NOT_POSITIVE,
            "the limit must be positive",
        ));
    }
    out.push(Stage::Limit(n));
    Ok(())
}

/// Parses `$skip`.
pub(super) fn parse_skip(
    _: &PipelineContext,
    name: &'static str,
    value: ValueRef<'_>,
    out: &mut Vec<Stage>,
) -> Result<()> {
    let n = non_negative(name, location::SKIP_INVALID, value)?;
    out.push(Stage::Skip(n));
    Ok(())
}

fn non_negative(name: &str, code: i32, value: ValueRef<'_>) -> Result<u64> {
    let wrong = |reason: &str| {
        Error::location(
            code,
            format!("invalid argument to {name} stage: {reason} in: {name}"),
        )
    };
    if !value.is_number() {
        return Err(wrong("Expected a number"));
    }
    let Some(n) = Number::of(value).and_then(Number::to_i64_exact) else {
        return Err(wrong("Expected an integer"));
    };
    u64::try_from(n).map_err(|_| wrong("Expected a non-negative number"))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{code, parse};
    use super::*;
    use nilometer_bson::{array, doc};

    #[test]
    fn numbers_of_any_type_are_taken() {
        for value in [nilometer_bson::Value::from(3), 3i64.into(), 3.0.into()] {
            let stages = parse(array![doc! {"$limit": value}]).unwrap();
            assert!(matches!(stages.as_slice(), [Stage::Limit(3)]));
        }
        assert!(parse(array![doc! {"$skip": 0}]).is_ok());
    }

    #[test]
    fn bad_numbers_are_refused() {
        assert_eq!(code(array![doc! {"$limit": 0}]), 15_958);
        assert_eq!(code(array![doc! {"$limit": -1}]), 5_107_201);
        assert_eq!(code(array![doc! {"$limit": 1.5}]), 5_107_201);
        assert_eq!(code(array![doc! {"$limit": "1"}]), 5_107_201);
        assert_eq!(code(array![doc! {"$skip": -1}]), 5_107_200);
        assert_eq!(code(array![doc! {"$skip": f64::NAN}]), 5_107_200);
    }
}

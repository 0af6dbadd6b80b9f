//! `$add`, `$subtract`, `$multiply`, `$divide`, and the remainder `$mod`.
//!
//! | operator | types | errors |
//! |---|---|---|
//! | `$add` | numbers, and at most one date to which milliseconds are added | 14 other types, 16612 two dates |
//! | `$subtract` | numbers; date − number is a date; date − date is milliseconds, long | 14 |
//! | `$multiply` | numbers | 14 |
//! | `$divide` | numbers; double, or decimal if one operand is | 14, 16608 by zero |
//! | `$mod` | numbers; keeps the wider type, sign of the dividend; a whole double divides an int or long as an int | 16611, 16610 by zero |
//!
//! A null or missing operand makes the result null. Ints that overflow become longs, longs doubles.
//! `$add` and `$multiply` combine strictly from left to right; without operands they give 0 and 1.

use nilometer_bson::number::Number;
use nilometer_bson::{Value, ValueRef};

use super::Expression;
use super::evaluated::Evaluated;
use super::operation::{CallContext, arg};
use super::parse::ExpressionParser;
use super::registry::OperatorSpec;
use super::scope::Scope;
use crate::error::{Error, Result, location};

/// The operator of an [`Arithmetic`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArithmeticOperator {
    /// `$add`, any number of operands.
    Add,
    /// `$subtract`, two operands.
    Subtract,
    /// `$multiply`, any number of operands.
    Multiply,
    /// `$divide`, two operands.
    Divide,
}

/// An arithmetic operator with its operands.
#[derive(Clone, Debug)]
pub struct Arithmetic {
    /// The operator.
    pub operator: ArithmeticOperator,
    /// Two for `$subtract` and `$divide`, any number for the others.
    pub operands: Vec<Expression>,
}

impl Arithmetic {
    pub(super) fn evaluate<'s>(&'s self, scope: &Scope<'s>) -> Result<Evaluated<'s>> {
        let mut operands = self.operands.iter();
        let mut result = match operands.next() {
            None => return Ok(Evaluated::from(self.operator.neutral())),
            Some(first) => {
                let first = first.eval(scope)?;
                let first = first.as_ref();
                if first.is_nullish() && self.operator.is_folded() {
                    return Ok(Evaluated::NULL);
                }
                if self.operator.is_folded() {
                    self.operator.check_first(first)?;
                }
                scalar(first)
            }
        };
        for operand in operands {
            let operand = operand.eval(scope)?;
            result = self.operator.apply_ref(result, scalar(operand.as_ref()))?;
            if result.is_nullish() && self.operator.is_folded() {
                break;
            }
        }
        Ok(Evaluated::Borrowed(result))
    }
}

/// A constant number of milliseconds that `$add` adds to a date, or `$subtract` subtracts from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DateShift {
    operator: ArithmeticOperator,
    ms: i64,
}

impl DateShift {
    /// The largest shift, in milliseconds: 285,000 years. With it, dates that collections keep in order never overflow.
    const MAX_MS: u64 = 1 << 53;

    /// Returns the shifted date; an error where the operator has one.
    #[inline]
    pub fn apply(self, date: i64) -> Result<i64> {
        self.checked(date)
            .ok_or_else(|| self.operator.date_overflow())
    }

    /// Returns the shifted date; `None` if it is not representable.
    #[inline]
    pub fn checked(self, date: i64) -> Option<i64> {
        match self.operator {
            ArithmeticOperator::Subtract => date.checked_sub(self.ms),
            _ => date.checked_add(self.ms),
        }
    }
}

impl Arithmetic {
    /// Returns the operand that a constant shifts, and the shift, if dates are shifted by up to
    /// [`DateShift::MAX_MS`].
    pub fn as_date_shift(&self) -> Option<(&Expression, DateShift)> {
        use ArithmeticOperator as Op;
        let (date, constant) = match (self.operator, self.operands.as_slice()) {
            (Op::Add | Op::Subtract, [date, Expression::Constant(constant)])
            | (Op::Add, [Expression::Constant(constant), date]) => (date, constant),
            _ => return None,
        };
        let ms = milliseconds(constant.as_ref())?;
        let shift = DateShift {
            operator: self.operator,
            ms,
        };
        (ms.unsigned_abs() <= DateShift::MAX_MS).then_some((date, shift))
    }
}

/// Detaches a value from its document: numbers, dates and nulls as they are, anything else as an
/// empty value of its type, which is sufficient for error messages.
fn scalar(value: ValueRef<'_>) -> ValueRef<'static> {
    match value {
        ValueRef::Int32(v) => ValueRef::Int32(v),
        ValueRef::Int64(v) => ValueRef::Int64(v),
        ValueRef::Double(v) => ValueRef::Double(v),
        ValueRef::Decimal128(v) => ValueRef::Decimal128(v),
        ValueRef::DateTime(v) => ValueRef::DateTime(v),
        ValueRef::Missing | ValueRef::Null | ValueRef::Undefined => ValueRef::Null,
        ValueRef::String(_) => ValueRef::String(""),
        ValueRef::Document(_) => ValueRef::Document(nilometer_bson::DocRef::EMPTY),
        ValueRef::Array(_) => {
            ValueRef::Array(nilometer_bson::ArrayRef::new(nilometer_bson::DocRef::EMPTY))
        }
        ValueRef::Bool(v) => ValueRef::Bool(v),
        ValueRef::ObjectId(v) => ValueRef::ObjectId(v),
        ValueRef::Timestamp(v) => ValueRef::Timestamp(v),
        ValueRef::Binary { subtype, .. } => ValueRef::Binary {
            subtype,
            bytes: &[],
        },
        ValueRef::Regex { .. } => ValueRef::Regex {
            pattern: "",
            options: "",
        },
        ValueRef::Code(_) | ValueRef::CodeWithScope { .. } => ValueRef::Code(""),
        ValueRef::Symbol(_) => ValueRef::Symbol(""),
        ValueRef::DbPointer { id, .. } => ValueRef::DbPointer { namespace: "", id },
        ValueRef::MinKey => ValueRef::MinKey,
        ValueRef::MaxKey => ValueRef::MaxKey,
    }
}

impl ArithmeticOperator {
    /// Returns the operator's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Add => "$add",
            Self::Subtract => "$subtract",
            Self::Multiply => "$multiply",
            Self::Divide => "$divide",
        }
    }

    /// Returns the result for two operands: the definition that kernels must match.
    pub fn apply(self, left: ValueRef<'_>, right: ValueRef<'_>) -> Result<Value> {
        Ok(self.apply_ref(scalar(left), scalar(right))?.to_value())
    }

    /// True if operands are combined one after the other.
    fn is_folded(self) -> bool {
        matches!(self, Self::Add | Self::Multiply)
    }

    fn neutral(self) -> i32 {
        i32::from(self == Self::Multiply)
    }

    /// Checks the first operand of a folded operator, even if it is the only one.
    fn check_first(self, value: ValueRef<'_>) -> Result<()> {
        match value {
            ValueRef::DateTime(_) if self == Self::Add => Ok(()),
            value if value.is_number() => Ok(()),
            other => Err(self.type_error(other, other)),
        }
    }

    fn apply_ref(
        self,
        left: ValueRef<'static>,
        right: ValueRef<'static>,
    ) -> Result<ValueRef<'static>> {
        if left.is_nullish() || right.is_nullish() {
            return Ok(ValueRef::Null);
        }
        if let (Some(a), Some(b)) = (Number::of(left), Number::of(right)) {
            let number = match self {
                Self::Add => a.add(b),
                Self::Subtract => a.subtract(b),
                Self::Multiply => a.multiply(b),
                Self::Divide => a.divide(b).map_err(|_| {
                    Error::location(location::DIVIDE_BY_ZERO, "can't $divide by zero")
                })?,
            };
            return Ok(number.to_ref());
        }
        match (self, left, right) {
            (Self::Add, ValueRef::DateTime(_), ValueRef::DateTime(_)) => Err(Error::location(
                location::ADD_TWO_DATES,
                "only one date allowed in an $add expression",
            )),
            (Self::Add, ValueRef::DateTime(date), number)
            | (Self::Add, number, ValueRef::DateTime(date))
                if number.is_number() =>
            {
                self.shift_date(date, number, i64::checked_add)
            }
            (Self::Subtract, ValueRef::DateTime(a), ValueRef::DateTime(b)) => a
                .checked_sub(b)
                .map(ValueRef::Int64)
                .ok_or_else(|| self.date_overflow()),
            (Self::Subtract, ValueRef::DateTime(date), number) if number.is_number() => {
                self.shift_date(date, number, i64::checked_sub)
            }
            _ => Err(self.type_error(left, right)),
        }
    }

    fn shift_date(
        self,
        date: i64,
        number: ValueRef<'_>,
        shift: fn(i64, i64) -> Option<i64>,
    ) -> Result<ValueRef<'static>> {
        milliseconds(number)
            .and_then(|ms| shift(date, ms))
            .map(ValueRef::DateTime)
            .ok_or_else(|| self.date_overflow())
    }

    fn date_overflow(self) -> Error {
        Error::new(
            crate::ErrorCode::Overflow,
            format!("date overflow in {}", self.name()),
        )
    }

    fn type_error(self, left: ValueRef<'_>, right: ValueRef<'_>) -> Error {
        let wrong = |value: &ValueRef<'_>| {
            let is_date = matches!(value, ValueRef::DateTime(_));
            !(value.is_number() || is_date && self == Self::Add)
        };
        let culprit = if wrong(&left) { left } else { right };
        Error::type_mismatch(match self {
            Self::Add => format!(
                "$add only supports numeric or date types, not {}",
                culprit.type_name()
            ),
            Self::Subtract => format!(
                "can't $subtract {} from {}",
                right.type_name(),
                left.type_name()
            ),
            Self::Multiply => format!(
                "$multiply only supports numeric types, not {}",
                culprit.type_name()
            ),
            Self::Divide => format!(
                "$divide only supports numeric types, not {} and {}",
                left.type_name(),
                right.type_name()
            ),
        })
    }
}

/// Converts a number to milliseconds: fractions round to the nearest, halves away from zero.
fn milliseconds(number: ValueRef<'_>) -> Option<i64> {
    match Number::of(number)? {
        Number::Double(v) => Number::Double(v.round()).to_i64_exact(),
        Number::Decimal(v) => v.to_i64(nilometer_bson::decimal128::Rounding::HalfEven),
        other => other.to_i64_exact(),
    }
}

pub(super) fn parse(
    parser: &mut ExpressionParser<'_>,
    spec: &'static OperatorSpec,
    value: ValueRef<'_>,
) -> Result<Expression> {
    let operator = match spec.name {
        "$add" => ArithmeticOperator::Add,
        "$subtract" => ArithmeticOperator::Subtract,
        "$multiply" => ArithmeticOperator::Multiply,
        _ => ArithmeticOperator::Divide,
    };
    Ok(Expression::Arithmetic(Arithmetic {
        operator,
        operands: parser.positional(spec, value)?,
    }))
}

/// `$mod`.
pub(super) fn modulo<'s>(
    values: &[Evaluated<'s>],
    _: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    let (left, right) = (arg(values, 0).as_ref(), arg(values, 1).as_ref());
    if left.is_nullish() || right.is_nullish() {
        return Ok(Evaluated::NULL);
    }
    let (Some(a), Some(b)) = (Number::of(left), Number::of(right)) else {
        return Err(Error::location(
            location::MOD_NOT_NUMERIC,
            format!(
                "$mod only supports numeric types, not {} and {}",
                left.type_name(),
                right.type_name()
            ),
        ));
    };
    a.modulo(b)
        .map(Evaluated::from)
        .map_err(|_| Error::location(location::MOD_BY_ZERO, "can't $mod by zero"))
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{Decimal128, array, doc};

    use super::super::testing::{check_exact, decimal, eval_code, parse_code};
    use super::*;

    #[test]
    fn types_widen() {
        let doc =
            doc! { "i": 7, "l": 3i64, "d": 0.5, "m": i32::MAX, "x": i64::MAX, "n": Value::Null };
        let cases: Vec<(&str, Value, Value)> = vec![
            ("$add", array!["$i", "$i"], 14.into()),
            ("$add", array!["$i", "$l"], 10i64.into()),
            ("$add", array!["$i", "$d"], 7.5.into()),
            ("$add", array!["$i", decimal("0.5")], decimal("7.5")),
            ("$add", array!["$m", 1], 2_147_483_648i64.into()),
            ("$add", array!["$x", 1], 9_223_372_036_854_775_808.0.into()),
            ("$add", array![], 0.into()),
            ("$add", array!["$i"], 7.into()),
            ("$add", array!["$i", "$n"], Value::Null),
            ("$add", array!["$gone", "text"], Value::Null),
            ("$multiply", array![], 1.into()),
            ("$multiply", array!["$m", 2], 4_294_967_294i64.into()),
            (
                "$multiply",
                array!["$x", 2],
                18_446_744_073_709_551_616.0.into(),
            ),
            ("$multiply", array!["$i", "$l", "$d"], 10.5.into()),
            ("$subtract", array!["$i", "$l"], 4i64.into()),
            ("$subtract", array![i32::MIN, 1], (-2_147_483_649i64).into()),
            ("$subtract", array!["$n", "text"], Value::Null),
            ("$subtract", array!["text", "$n"], Value::Null),
            ("$divide", array!["$i", 2], 3.5.into()),
            ("$divide", array![6, 3], 2.0.into()),
            ("$divide", array!["$i", "$gone"], Value::Null),
            ("$divide", array![1, decimal("4")], decimal("0.25")),
            ("$mod", array![7, 3], 1.into()),
            ("$mod", array![-7, 3], (-1).into()),
            ("$mod", array![7, 3i64], 1i64.into()),
            ("$mod", array![7, 2.5], 2.0.into()),
            ("$mod", array![7, 3.0], 1.into()),
            ("$mod", array![7i64, 3.0], 1i64.into()),
            ("$mod", array![7.0, 3], 1.0.into()),
            ("$mod", array![i64::MIN, -1], 0i64.into()),
            ("$mod", array![7, decimal("2")], decimal("1")),
            ("$mod", array![7, "$n"], Value::Null),
        ];
        for (operator, operands, expected) in cases {
            let mut call = nilometer_bson::DocumentBuilder::new();
            call.append(operator, operands);
            check_exact(&doc, call.finish(), expected);
        }
    }

    #[test]
    fn strictly_left_to_right() {
        let operands = array![
            2,
            -0.0,
            i64::MIN,
            Value::from(Decimal128::from_f64(1.797_693_134_862_315_7e308))
        ];
        check_exact(&doc! {}, doc! { "$multiply": operands }, decimal("0E+294"));
    }

    #[test]
    fn dates() {
        let doc = doc! { "t": Value::DateTime(1000), "u": Value::DateTime(400) };
        check_exact(
            &doc,
            doc! { "$add": array!["$t", 5] },
            Value::DateTime(1005),
        );
        check_exact(
            &doc,
            doc! { "$add": array![1, "$t", 2.6] },
            Value::DateTime(1004),
        );
        check_exact(&doc, doc! { "$subtract": array!["$t", "$u"] }, 600i64);
        check_exact(
            &doc,
            doc! { "$subtract": array!["$t", 1i64] },
            Value::DateTime(999),
        );
        assert_eq!(eval_code(&doc, doc! { "$add": array!["$t", "$u"] }), 16612);
        assert_eq!(eval_code(&doc, doc! { "$add": array!["$t", i64::MAX] }), 15);
        assert_eq!(eval_code(&doc, doc! { "$subtract": array![5, "$t"] }), 14);
        assert_eq!(eval_code(&doc, doc! { "$multiply": array!["$t", 2] }), 14);
    }

    #[test]
    fn errors() {
        let doc = doc! { "s": "x", "a": array![1], "i": 1 };
        for (expression, code) in [
            (doc! { "$add": array!["$i", "$s"] }, 14),
            (doc! { "$add": array!["$s"] }, 14),
            (doc! { "$subtract": array!["$a", 1] }, 14),
            (doc! { "$multiply": array!["$i", "$a"] }, 14),
            (doc! { "$divide": array!["$i", "$s"] }, 14),
            (doc! { "$divide": array!["$i", 0] }, 16608),
            (doc! { "$divide": array!["$i", 0.0] }, 16608),
            (doc! { "$mod": array!["$i", 0] }, 16610),
            (doc! { "$mod": array!["$i", "$s"] }, 16611),
        ] {
            assert_eq!(eval_code(&doc, expression.clone()), code, "{expression:?}");
        }
        assert_eq!(parse_code(doc! { "$subtract": array![1] }), 16020);
        assert_eq!(parse_code(doc! { "$divide": array![1, 2, 3] }), 16020);
    }
}

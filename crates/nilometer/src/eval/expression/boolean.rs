//! `$and`, `$or`, `$not`.
//!
//! An operand is false if it is false, zero, null, undefined or missing, else true. Evaluation
//! stops at the first operand that determines the result. `{$and: []}` is true, `{$or: []}` is
//! false.

use nilometer_bson::ValueRef;

use super::Expression;
use super::evaluated::Evaluated;
use super::parse::ExpressionParser;
use super::registry::OperatorSpec;
use super::scope::Scope;
use crate::error::Result;

pub(super) fn and<'s>(operands: &'s [Expression], scope: &Scope<'s>) -> Result<Evaluated<'s>> {
    for operand in operands {
        if !operand.holds(scope)? {
            return Ok(Evaluated::from(false));
        }
    }
    Ok(Evaluated::from(true))
}

pub(super) fn or<'s>(operands: &'s [Expression], scope: &Scope<'s>) -> Result<Evaluated<'s>> {
    for operand in operands {
        if operand.holds(scope)? {
            return Ok(Evaluated::from(true));
        }
    }
    Ok(Evaluated::from(false))
}

pub(super) fn parse(
    parser: &mut ExpressionParser<'_>,
    spec: &'static OperatorSpec,
    value: ValueRef<'_>,
) -> Result<Expression> {
    let mut operands = parser.positional(spec, value)?;
    Ok(match spec.name {
        "$and" => Expression::And(operands),
        "$or" => Expression::Or(operands),
        _ => Expression::Not(Box::new(
            operands.pop().unwrap_or_else(super::parse::missing),
        )),
    })
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{Value, array, doc};

    use super::super::testing::{check, eval_code, parse_code};

    #[test]
    fn truth_tables() {
        let doc = doc! { "t": 1, "f": 0, "n": Value::Null, "s": "", "bad": "x" };
        let cases: Vec<(Value, bool)> = vec![
            (doc! { "$and": array![] }.into(), true),
            (doc! { "$and": array!["$t", "$s", array![]] }.into(), true),
            (doc! { "$and": array!["$t", "$f"] }.into(), false),
            (doc! { "$and": array!["$t", "$n"] }.into(), false),
            (doc! { "$and": array!["$t", "$gone"] }.into(), false),
            (doc! { "$and": "$t" }.into(), true),
            (doc! { "$or": array![] }.into(), false),
            (
                doc! { "$or": array!["$f", "$n", "$gone", "$t"] }.into(),
                true,
            ),
            (doc! { "$or": array!["$f", "$n", "$gone"] }.into(), false),
            (doc! { "$not": array!["$t"] }.into(), false),
            (doc! { "$not": array!["$gone"] }.into(), true),
            (doc! { "$not": "$n" }.into(), true),
            (doc! { "$not": array![array![]] }.into(), false),
        ];
        for (expression, expected) in cases {
            check(&doc, expression, expected);
        }
    }

    #[test]
    fn stops_at_the_deciding_operand() {
        let doc = doc! { "bad": "x", "t": true, "f": false };
        let fails = doc! { "$abs": "$bad" };
        check(&doc, doc! { "$and": array!["$f", fails.clone()] }, false);
        check(&doc, doc! { "$or": array!["$t", fails.clone()] }, true);
        assert_eq!(eval_code(&doc, doc! { "$and": array!["$t", fails] }), 28765);
    }

    #[test]
    fn not_takes_one() {
        assert_eq!(parse_code(doc! { "$not": array![1, 2] }), 16020);
        assert_eq!(parse_code(doc! { "$not": array![] }), 16020);
    }
}

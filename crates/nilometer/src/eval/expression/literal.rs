//! `$literal` and its old name `$const`: the argument as a constant, without interpreting dollar
//! signs.

use nilometer_bson::ValueRef;

use super::Expression;
use super::parse::ExpressionParser;
use super::registry::OperatorSpec;
use crate::error::Result;

pub(super) fn parse(
    _: &mut ExpressionParser<'_>,
    _: &'static OperatorSpec,
    value: ValueRef<'_>,
) -> Result<Expression> {
    Ok(Expression::Constant(value.to_value()))
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{array, doc};

    use super::super::testing::check;

    #[test]
    fn taken_as_it_stands() {
        let doc = doc! { "a": 1 };
        check(&doc, doc! { "$literal": "$a" }, "$a");
        check(
            &doc,
            doc! { "$const": doc! { "$add": array![1, 2] } },
            doc! { "$add": array![1, 2] },
        );
        check(&doc, doc! { "$literal": array!["$a"] }, array!["$a"]);
    }
}

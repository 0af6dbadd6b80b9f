//! Comparisons that `$expr` implies.
//!
//! `{$expr: {$eq: ["$a", 5]}}` is true only of documents whose `a` compares so in the order over all types, with arrays
//! compared as a whole. Such comparisons bound parts without arrays; the expression itself is still tested on the document.

use crate::eval::Expression;
use crate::eval::expression::ComparisonOperator;
use crate::eval::matcher::{CompareOp, Comparison, MatchExpression, MatchPath};

/// Returns the comparisons of paths with constants that the conjuncts imply.
pub(super) fn comparisons(conjuncts: &[MatchExpression]) -> Vec<MatchExpression> {
    let mut out = Vec::new();
    for conjunct in conjuncts {
        if let MatchExpression::Expr(test) = conjunct {
            collect(&test.expression, &mut out);
        }
    }
    out
}

fn collect(expression: &Expression, out: &mut Vec<MatchExpression>) {
    match expression {
        Expression::And(operands) => {
            for operand in operands {
                collect(operand, out);
            }
        }
        Expression::Compare(comparison) => {
            let op = match comparison.operator {
                ComparisonOperator::Eq => CompareOp::Eq,
                ComparisonOperator::Gt => CompareOp::Gt,
                ComparisonOperator::Gte => CompareOp::Gte,
                ComparisonOperator::Lt => CompareOp::Lt,
                ComparisonOperator::Lte => CompareOp::Lte,
                _ => return,
            };
            let (path, op, value) = match (&comparison.left, &comparison.right) {
                (Expression::FieldPath(path), Expression::Constant(value)) => (path, op, value),
                (Expression::Constant(value), Expression::FieldPath(path)) => {
                    (path, op.flipped(), value)
                }
                _ => return,
            };
            out.push(MatchExpression::ExprCompare(Comparison {
                path: MatchPath::new(path.as_str()),
                op,
                value: value.clone(),
                // Only the index's part in the order matters here, and it is that of the query.
                collation: crate::eval::Collation::default(),
            }));
        }
        _ => {}
    }
}

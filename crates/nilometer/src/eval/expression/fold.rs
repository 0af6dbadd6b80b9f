//! Constant folding: constant parts are evaluated once, unless that takes more work or memory than a budget.
//!
//! An error in a constant part is raised immediately as an error of the whole expression, as in
//! MongoDB's optimiser. Exception: a part that may not be evaluated (a branch of `$cond` or
//! `$switch`, a later operand of `$and`, `$or`, `$ifNull`) is kept and fails only if it is
//! evaluated.

use nilometer_bson::order::Collator;
use nilometer_bson::{DocRef, Value};

use super::registry::FoldMode;
use super::scope::Scope;
use super::{Expression, conditional};
use crate::error::Result;
use crate::eval::variables::{EvalContext, ParseContext};

pub(super) fn fold(expression: &mut Expression, context: &ParseContext) -> Result<()> {
    match expression {
        Expression::Constant(_) | Expression::FieldPath(_) | Expression::Variable(_) => Ok(()),
        Expression::Conditional(_) => fold_conditional(expression, context),
        Expression::And(operands) => {
            fold_operands(operands, context)?;
            fold_and_or(expression, true);
            Ok(())
        }
        Expression::Or(operands) => {
            fold_operands(operands, context)?;
            fold_and_or(expression, false);
            Ok(())
        }
        Expression::Operation(operation) if operation.spec.fold == FoldMode::Branches => {
            fold_branches(expression, context)
        }
        _ => fold_strict(expression, context),
    }
}

/// Folds an expression whose parts are always evaluated.
fn fold_strict(expression: &mut Expression, context: &ParseContext) -> Result<()> {
    let mut outcome = Ok(());
    let mut constant = true;
    expression.for_each_child_mut(&mut |child| {
        if outcome.is_ok() {
            outcome = fold(child, context);
        }
        constant &= child.as_constant().is_some();
    });
    outcome?;
    if let Expression::Operation(operation) = expression {
        constant &= !operation.spec.random && operation.spec.fold != FoldMode::Never;
    }
    if constant && let Some(value) = evaluate_constant(expression, context)? {
        *expression = Expression::Constant(value);
        return Ok(());
    }
    match expression {
        Expression::Operation(operation) => {
            if let Some(prepare) = operation.spec.prepare {
                // A pattern may be compiled.
                context.folding().check_interrupt()?;
                operation.prepared = prepare(operation, context.folding());
            }
        }
        Expression::DateTrunc(trunc) => trunc.prepare(),
        _ => {}
    }
    Ok(())
}

/// Returns the value of a constant part; `None` if it is left to run time.
fn evaluate_constant(expression: &Expression, context: &ParseContext) -> Result<Option<Value>> {
    context.folding().compute(|limits| {
        let eval = EvalContext {
            collator: context
                .collator()
                .map(|collator| &**collator as &dyn Collator),
            limits: Some(limits),
            ..Default::default()
        };
        let value = expression.eval(&Scope::new(DocRef::EMPTY, &eval))?;
        Ok(value.into_value())
    })
}

/// Folds a part that may not be evaluated: on error it is kept, to fail during evaluation.
fn fold_quietly(part: &mut Expression, context: &ParseContext) {
    let before = part.clone();
    if fold(part, context).is_err() {
        *part = before;
    }
}

fn fold_conditional(expression: &mut Expression, context: &ParseContext) -> Result<()> {
    let Expression::Conditional(conditional) = expression else {
        return Ok(());
    };
    fold(&mut conditional.condition, context)?;
    let Some(decided) = conditional.condition.as_constant() else {
        fold_quietly(&mut conditional.then, context);
        fold_quietly(&mut conditional.otherwise, context);
        return Ok(());
    };
    let taken = if super::is_true(decided.as_ref()) {
        &mut conditional.then
    } else {
        &mut conditional.otherwise
    };
    let mut taken = std::mem::replace(taken, Expression::Constant(Value::Missing));
    fold(&mut taken, context)?;
    *expression = taken;
    Ok(())
}

/// Folds operands of which only the first is always evaluated.
fn fold_operands(operands: &mut [Expression], context: &ParseContext) -> Result<()> {
    for (at, operand) in operands.iter_mut().enumerate() {
        if at == 0 {
            fold(operand, context)?;
        } else {
            fold_quietly(operand, context);
        }
    }
    Ok(())
}

/// Removes constant operands that do not affect the result, and all operands after one that
/// determines it. `neutral` is the value without effect: true for `$and`.
fn fold_and_or(expression: &mut Expression, neutral: bool) {
    let (Expression::And(operands) | Expression::Or(operands)) = expression else {
        return;
    };
    let truth = |operand: &Expression| {
        operand
            .as_constant()
            .map(|value| super::is_true(value.as_ref()))
    };
    if let Some(at) = operands
        .iter()
        .position(|operand| truth(operand) == Some(!neutral))
    {
        // Operands before it may still fail, so they cannot be removed.
        if operands
            .iter()
            .take(at)
            .all(|operand| truth(operand).is_some())
        {
            *expression = Expression::constant(!neutral);
            return;
        }
        operands.truncate(at + 1);
        return;
    }
    operands.retain(|operand| truth(operand).is_none());
    if operands.is_empty() {
        *expression = Expression::constant(neutral);
    }
}

fn fold_branches(expression: &mut Expression, context: &ParseContext) -> Result<()> {
    let Expression::Operation(operation) = expression else {
        return Ok(());
    };
    for (at, part) in operation.arguments.iter_mut().flatten().enumerate() {
        if at == 0 {
            fold(part, context)?;
        } else {
            fold_quietly(part, context);
        }
    }
    match operation.spec.name {
        "$switch" => {
            conditional::simplify_switch(operation);
            if let Some(default) = conditional::collapsed_switch(operation) {
                *expression = default;
            }
        }
        "$ifNull" => fold_if_null(expression),
        _ => {}
    }
    Ok(())
}

/// Removes null constants before the last operand; a constant other than null ends the list.
fn fold_if_null(expression: &mut Expression) {
    let Expression::Operation(operation) = expression else {
        return;
    };
    let last = operation.arguments.len().saturating_sub(1);
    let mut kept = Vec::with_capacity(operation.arguments.len());
    for (at, operand) in std::mem::take(&mut operation.arguments)
        .into_iter()
        .flatten()
        .enumerate()
    {
        let nullish = operand.as_constant().map(Value::is_nullish);
        if nullish == Some(true) && at != last {
            continue;
        }
        kept.push(Some(operand));
        if nullish == Some(false) {
            break;
        }
    }
    match kept.as_mut_slice() {
        [only @ Some(_)] => {
            *expression = only.take().unwrap_or_else(super::parse::missing);
        }
        _ => operation.arguments = kept,
    }
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{Document, array, doc};

    use super::super::testing::parse_code;
    use super::*;

    fn parsed(expression: Document) -> Expression {
        Expression::parse(Value::from(expression).as_ref(), &ParseContext::new()).unwrap()
    }

    #[test]
    fn constant_parts_become_values() {
        for expression in [
            doc! { "$add": array![1, doc! { "$multiply": array![2, 3] }] },
            doc! { "a": array![1, doc! { "$literal": "$x" }] },
            doc! { "$cond": array![true, 1, "$x"] },
            doc! { "$and": array![] },
            doc! { "$and": array![1, 0, "$x"] },
            doc! { "$or": array![0, 1, "$x"] },
            doc! { "$ifNull": array![Value::Null, 3, "$x"] },
            doc! { "$concat": array!["a", "b"] },
            doc! { "$dateTrunc": doc! { "date": Value::DateTime(0), "unit": "day" } },
        ] {
            let folded = parsed(expression.clone());
            assert!(folded.as_constant().is_some(), "{expression:?} {folded:?}");
        }
        for expression in [
            doc! { "$add": array![1, "$x"] },
            doc! { "$rand": doc! {} },
            doc! { "$and": array!["$x", 0] },
            doc! { "$add": array!["$$NOW", 1] },
        ] {
            assert!(parsed(expression).as_constant().is_none());
        }
    }

    #[test]
    fn neutral_constant_operands_are_removed() {
        let Expression::And(operands) = parsed(doc! { "$and": array![1, "$x", true, "$y"] }) else {
            panic!("not an $and");
        };
        assert_eq!(operands.len(), 2);
        assert!(matches!(
            parsed(doc! { "$cond": array![1, "$x", "$y"] }),
            Expression::FieldPath(_)
        ));
    }

    #[test]
    fn constant_errors_come_early_unless_unreachable() {
        let fails = doc! { "$divide": array![1, 0] };
        assert_ne!(parse_code(doc! { "$add": array!["$x", fails.clone()] }), 0);
        parsed(doc! { "$cond": array!["$x", fails.clone(), 1] });
        parsed(doc! { "$and": array!["$x", fails.clone()] });
        parsed(doc! { "$ifNull": array!["$x", fails] });
    }
}

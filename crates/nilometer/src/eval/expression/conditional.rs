//! `$cond`, `$switch`, `$ifNull`: only the selected branch is evaluated.
//!
//! | operator | rule |
//! |---|---|
//! | `$cond: [if, then, else]` or `{if, then, else}` | a false condition is false, 0, null or missing |
//! | `$switch: {branches: [{case, then}…], default?}` | first true case; none and no default: 40066 |
//! | `$ifNull: [a, b, …, z]` | the first that is neither null nor missing, else the last |

use nilometer_bson::{DocRef, ValueRef};

use super::Expression;
use super::evaluated::Evaluated;
use super::operation::Operation;
use super::parse::{ExpressionParser, missing, object};
use super::registry::OperatorSpec;
use super::scope::Scope;
use crate::error::{Error, Result, location};

/// `$cond`.
#[derive(Clone, Debug)]
pub struct Conditional {
    /// The condition.
    pub condition: Expression,
    /// The value if the condition is true.
    pub then: Expression,
    /// The value otherwise.
    pub otherwise: Expression,
}

impl Conditional {
    pub(super) fn evaluate<'s>(&'s self, scope: &Scope<'s>) -> Result<Evaluated<'s>> {
        if self.condition.eval(scope)?.is_true() {
            self.then.eval(scope)
        } else {
            self.otherwise.eval(scope)
        }
    }
}

pub(super) fn parse_cond(
    parser: &mut ExpressionParser<'_>,
    spec: &'static OperatorSpec,
    value: ValueRef<'_>,
) -> Result<Expression> {
    let [condition, then, otherwise] = match value {
        ValueRef::Document(doc) => cond_object(parser, doc)?,
        list => {
            let operands = parser.positional(spec, list)?;
            let count = operands.len();
            operands
                .try_into()
                .map_err(|_| spec.arguments.count_error(spec.name, count))?
        }
    };
    Ok(Expression::Conditional(Box::new(Conditional {
        condition,
        then,
        otherwise,
    })))
}

fn cond_object(parser: &mut ExpressionParser<'_>, doc: DocRef<'_>) -> Result<[Expression; 3]> {
    let (mut condition, mut then, mut otherwise) = (None, None, None);
    for element in doc.iter() {
        let slot = match element.name() {
            "if" => &mut condition,
            "then" => &mut then,
            "else" => &mut otherwise,
            other => {
                return Err(Error::location(
                    location::COND_ARGUMENT_UNKNOWN,
                    format!("Unrecognized parameter to $cond: {other}"),
                ));
            }
        };
        *slot = Some(parser.operand(element.value())?);
    }
    let required = |part: Option<Expression>, name: &str, code: i32| {
        part.ok_or_else(|| Error::location(code, format!("Missing '{name}' parameter to $cond")))
    };
    Ok([
        required(condition, "if", location::COND_IF_MISSING)?,
        required(then, "then", location::COND_THEN_MISSING)?,
        required(otherwise, "else", location::COND_ELSE_MISSING)?,
    ])
}

/// Arguments of the operation: case, then, case, then, …, default (absent if not given).
pub(super) fn parse_switch(
    parser: &mut ExpressionParser<'_>,
    spec: &'static OperatorSpec,
    value: ValueRef<'_>,
) -> Result<Expression> {
    let doc = object(
        value,
        location::SWITCH_NOT_OBJECT,
        "$switch requires an object as an argument",
    )?;
    let mut arguments = Vec::new();
    let mut default = None;
    for element in doc.iter() {
        match (element.name(), element.value()) {
            ("branches", ValueRef::Array(branches)) => {
                for branch in branches.iter() {
                    arguments.extend(switch_branch(parser, branch)?.map(Some));
                }
            }
            ("branches", other) => {
                return Err(Error::location(
                    location::SWITCH_BRANCHES_NOT_ARRAY,
                    format!(
                        "$switch expected an array for 'branches', found: {}",
                        other.type_name()
                    ),
                ));
            }
            ("default", value) => default = Some(parser.operand(value)?),
            (other, _) => {
                return Err(Error::location(
                    location::SWITCH_ARGUMENT_UNKNOWN,
                    format!("$switch found an unknown argument: {other}"),
                ));
            }
        }
    }
    if arguments.is_empty() {
        return Err(Error::location(
            location::SWITCH_BRANCHES_EMPTY,
            "$switch requires at least one branch.",
        ));
    }
    arguments.push(default);
    Ok(Operation::new(spec, arguments).into_expression())
}

fn switch_branch(
    parser: &mut ExpressionParser<'_>,
    branch: ValueRef<'_>,
) -> Result<[Expression; 2]> {
    let ValueRef::Document(doc) = branch else {
        return Err(Error::location(
            location::SWITCH_BRANCH_NOT_OBJECT,
            format!(
                "$switch expected each branch to be an object, found: {}",
                branch.type_name()
            ),
        ));
    };
    let (mut case, mut then) = (None, None);
    for element in doc.iter() {
        let slot = match element.name() {
            "case" => &mut case,
            "then" => &mut then,
            other => {
                return Err(Error::location(
                    location::SWITCH_BRANCH_ARGUMENT_UNKNOWN,
                    format!("$switch found an unknown argument to a branch: {other}"),
                ));
            }
        };
        *slot = Some(parser.operand(element.value())?);
    }
    match (case, then) {
        (Some(case), Some(then)) => Ok([case, then]),
        (None, _) => Err(Error::location(
            location::SWITCH_CASE_MISSING,
            "$switch requires each branch have a 'case' expression",
        )),
        (_, None) => Err(Error::location(
            location::SWITCH_THEN_MISSING,
            "$switch requires each branch have a 'then' expression.",
        )),
    }
}

pub(super) fn switch<'s>(operation: &'s Operation, scope: &Scope<'s>) -> Result<Evaluated<'s>> {
    let Some((default, branches)) = operation.arguments.split_last() else {
        return Ok(Evaluated::MISSING);
    };
    for branch in branches.chunks_exact(2) {
        if let [Some(case), Some(then)] = branch
            && case.holds(scope)?
        {
            return then.eval(scope);
        }
    }
    match default {
        Some(default) => default.eval(scope),
        None => Err(Error::location(
            location::SWITCH_NO_MATCH,
            "$switch could not find a matching branch for an input, and no default was specified.",
        )),
    }
}

pub(super) fn if_null<'s>(operation: &'s Operation, scope: &Scope<'s>) -> Result<Evaluated<'s>> {
    let mut last = Evaluated::MISSING;
    for operand in operation.arguments.iter().flatten() {
        last = operand.eval(scope)?;
        if !last.is_nullish() {
            break;
        }
    }
    Ok(last)
}

pub(super) fn parse_if_null(
    parser: &mut ExpressionParser<'_>,
    spec: &'static OperatorSpec,
    value: ValueRef<'_>,
) -> Result<Expression> {
    let operands = parser.two_or_more(spec, value, location::COMPARISON_ARGUMENT_COUNT)?;
    let arguments = operands.into_iter().map(Some).collect();
    Ok(Operation::new(spec, arguments).into_expression())
}

/// Removes branches excluded by a constant condition. The caller folds the remaining ones.
pub(super) fn simplify_switch(operation: &mut Operation) {
    let Some(default) = operation.arguments.pop() else {
        return;
    };
    let mut kept = Vec::with_capacity(operation.arguments.len() + 1);
    let mut last = default;
    let mut branches = std::mem::take(&mut operation.arguments).into_iter();
    while let (Some(case), Some(then)) = (branches.next(), branches.next()) {
        match case.as_ref().and_then(Expression::as_constant) {
            Some(value) if super::is_true(value.as_ref()) => {
                last = then;
                break;
            }
            Some(_) => {}
            None => kept.extend([case, then]),
        }
    }
    kept.push(last);
    operation.arguments = kept;
}

/// Returns the replacement of a `$switch` without branches: its default, or an operation that
/// fails.
pub(super) fn collapsed_switch(operation: &mut Operation) -> Option<Expression> {
    match operation.arguments.as_mut_slice() {
        [default @ Some(_)] => Some(default.take().unwrap_or_else(missing)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{Value, array, doc};

    use super::super::testing::{check, eval_code, parse_code};

    #[test]
    fn cond() {
        let doc = doc! { "t": 1, "f": 0, "bad": "x" };
        check(&doc, doc! { "$cond": array!["$t", "a", "b"] }, "a");
        check(&doc, doc! { "$cond": array!["$gone", "a", "b"] }, "b");
        check(
            &doc,
            doc! { "$cond": doc! { "else": "b", "if": "$f", "then": "a" } },
            "b",
        );
        check(
            &doc,
            doc! { "$cond": array!["$t", "$gone", "b"] },
            Value::Missing,
        );
        let fails = doc! { "$abs": "$bad" };
        check(&doc, doc! { "$cond": array!["$t", 1, fails] }, 1);
        let constant_fails = doc! { "$divide": array![1, 0] };
        check(&doc, doc! { "$cond": array![true, 1, constant_fails] }, 1);
    }

    #[test]
    fn cond_errors() {
        for (argument, code) in [
            (array![1, 2], 16020),
            (doc! { "then": 1, "else": 2 }.into(), 17080),
            (doc! { "if": 1, "else": 2 }.into(), 17081),
            (doc! { "if": 1, "then": 2 }.into(), 17082),
            (doc! { "if": 1, "then": 2, "else": 3, "x": 1 }.into(), 17083),
        ] {
            assert_eq!(parse_code(doc! { "$cond": argument }), code);
        }
    }

    #[test]
    fn switch() {
        let doc = doc! { "x": 2, "bad": "x" };
        let branch = |case: Value, then: Value| doc! { "case": case, "then": then };
        let eq = |n: i32| Value::from(doc! { "$eq": array!["$x", n] });
        let branches = array![
            branch(eq(1), "one".into()),
            branch(eq(2), "two".into()),
            branch(doc! { "$abs": "$bad" }.into(), "never".into())
        ];
        check(
            &doc,
            doc! { "$switch": doc! { "branches": branches } },
            "two",
        );
        let none = array![branch(eq(9), "nine".into())];
        check(
            &doc,
            doc! { "$switch": doc! { "branches": none.clone(), "default": "$x" } },
            2,
        );
        assert_eq!(
            eval_code(&doc, doc! { "$switch": doc! { "branches": none } }),
            40066
        );
        let constants = array![
            branch(false.into(), 1.into()),
            branch(true.into(), 2.into())
        ];
        check(&doc, doc! { "$switch": doc! { "branches": constants } }, 2);
    }

    #[test]
    fn switch_errors() {
        for (argument, code) in [
            (Value::from(1), 40060),
            (doc! { "branches": 1 }.into(), 40061),
            (doc! { "branches": array![1] }.into(), 40062),
            (
                doc! { "branches": array![doc! { "case": 1, "then": 1, "x": 1 }] }.into(),
                40063,
            ),
            (
                doc! { "branches": array![doc! { "then": 1 }] }.into(),
                40064,
            ),
            (
                doc! { "branches": array![doc! { "case": 1 }] }.into(),
                40065,
            ),
            (doc! { "branches": array![], "x": 1 }.into(), 40067),
            (doc! { "branches": array![] }.into(), 40068),
            (doc! {}.into(), 40068),
        ] {
            assert_eq!(parse_code(doc! { "$switch": argument }), code);
        }
    }

    #[test]
    fn if_null() {
        let doc = doc! { "n": Value::Null, "x": 1, "bad": "s" };
        check(&doc, doc! { "$ifNull": array!["$n", "$x"] }, 1);
        check(&doc, doc! { "$ifNull": array!["$gone", "$n", "d"] }, "d");
        check(
            &doc,
            doc! { "$ifNull": array!["$n", "$gone"] },
            Value::Missing,
        );
        check(&doc, doc! { "$ifNull": array!["$gone", "$n"] }, Value::Null);
        check(
            &doc,
            doc! { "$ifNull": array!["$x", doc! { "$abs": "$bad" }] },
            1,
        );
        assert_eq!(parse_code(doc! { "$ifNull": array![1] }), 1_257_300);
    }
}

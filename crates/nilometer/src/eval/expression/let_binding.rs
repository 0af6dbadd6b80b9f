//! `$let: {vars: {name: expression, …}, in: expression}`.
//!
//! The variables are evaluated in the outer scope and do not see each other; `in` sees all of them.
//! `CURRENT` may be bound, and then `$a` means a field of it.
//!
//! Errors: 16874 not an object, 16875 unknown member, 16876 no vars, 16877 no in, 10065 vars not an
//! object, 9 a name that may not be defined.

use nilometer_bson::ValueRef;

use super::Expression;
use super::evaluated::Evaluated;
use super::operation::Operation;
use super::parse::{ExpressionParser, object};
use super::registry::OperatorSpec;
use super::scope::Scope;
use crate::error::{Error, Result, location};
use crate::eval::variables::check_user_name;

/// Arguments of the operation: the variables in order, then `in`. Bindings: one for each.
pub(super) fn parse(
    parser: &mut ExpressionParser<'_>,
    spec: &'static OperatorSpec,
    value: ValueRef<'_>,
) -> Result<Expression> {
    let doc = object(
        value,
        location::LET_NOT_OBJECT,
        "$let only supports an object as its argument",
    )?;
    for element in doc.iter() {
        if !matches!(element.name(), "vars" | "in") {
            return Err(Error::location(
                location::LET_FIELD_UNKNOWN,
                format!("Unrecognized parameter to $let: {}", element.name()),
            ));
        }
    }
    let vars = match doc.get("vars") {
        ValueRef::Missing => {
            return Err(Error::location(
                location::LET_VARS_MISSING,
                "Missing 'vars' parameter to $let",
            ));
        }
        ValueRef::Document(vars) => vars,
        other => {
            return Err(Error::location(
                location::OBJECT_EXPECTED,
                format!(
                    "invalid parameter: expected an object (vars), found: {}",
                    other.type_name()
                ),
            ));
        }
    };
    let body = match doc.get("in") {
        ValueRef::Missing => {
            return Err(Error::location(
                location::LET_IN_MISSING,
                "Missing 'in' parameter to $let",
            ));
        }
        body => body,
    };
    let mut arguments = Vec::new();
    for variable in vars.iter() {
        check_user_name(variable.name())?;
        arguments.push(Some(parser.operand(variable.value())?));
    }
    let bindings: Vec<usize> = vars
        .iter()
        .map(|variable| parser.bind(variable.name()))
        .collect();
    let body = parser.operand(body);
    parser.unbind(bindings.len());
    arguments.push(Some(body?));
    let mut operation = Operation::new(spec, arguments);
    operation.bindings = bindings;
    Ok(operation.into_expression())
}

pub(super) fn evaluate<'s>(operation: &'s Operation, scope: &Scope<'s>) -> Result<Evaluated<'s>> {
    bind_from(operation, 0, scope, scope)
}

/// Binds the variables from `index` on in `inner`; they are evaluated in `outer`.
fn bind_from<'s, 'o>(
    operation: &'s Operation,
    index: usize,
    inner: &Scope<'s>,
    outer: &Scope<'o>,
) -> Result<Evaluated<'s>>
where
    's: 'o,
{
    if index >= operation.bindings.len() {
        return operation.value(index, inner);
    }
    let value = operation.value(index, outer)?;
    let frame = inner.bind(operation.binding(index), value.as_ref());
    let result = bind_from(operation, index + 1, &inner.within(&frame), outer)?;
    // References to the frame must not outlive it.
    Ok(Evaluated::Owned(result.into_value()))
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{Document, Value, array, doc};

    use super::super::testing::{check_exact, parse_code};

    fn bind(vars: Document, body: impl Into<Value>) -> Document {
        doc! { "$let": doc! { "vars": vars, "in": body.into() } }
    }

    #[test]
    fn scopes() {
        let doc = doc! { "a": 1, "o": doc! { "a": 2 } };
        check_exact(
            &doc,
            bind(doc! { "x": "$a" }, doc! { "$add": array!["$$x", 1] }),
            2,
        );
        // Variables of one $let do not see each other.
        let outer = bind(
            doc! { "x": 10 },
            bind(doc! { "x": 20, "y": "$$x" }, array!["$$x", "$$y"]),
        );
        check_exact(&doc, outer, array![20, 10]);
        check_exact(
            &doc,
            bind(
                doc! { "CURRENT": "$o" },
                array!["$a", "$$CURRENT", "$$ROOT.a"],
            ),
            array![2, doc! { "a": 2 }, 1],
        );
        check_exact(&doc, bind(doc! {}, "$a"), 1);
        check_exact(&doc, bind(doc! { "x": "$gone" }, "$$x"), Value::Missing);
        check_exact(&doc, bind(doc! { "x": "$o" }, "$$x.a"), 2);
        let many = bind(doc! { "p": 1, "q": 2, "r": 3 }, array!["$$r", "$$p", "$$q"]);
        check_exact(&doc, many, array![3, 1, 2]);
    }

    #[test]
    fn errors() {
        for (argument, code) in [
            (Value::from(1), 16874),
            (doc! { "vars": doc! {}, "in": 1, "x": 1 }.into(), 16875),
            (doc! { "in": 1 }.into(), 16876),
            (doc! { "vars": doc! {} }.into(), 16877),
            (doc! { "vars": 5, "in": 1 }.into(), 10065),
            (doc! { "vars": doc! { "X": 1 }, "in": 1 }.into(), 9),
            (doc! { "vars": doc! { "ROOT": 1 }, "in": 1 }.into(), 9),
            (
                doc! { "vars": doc! { "x": "$$y", "y": 1 }, "in": 1 }.into(),
                17276,
            ),
        ] {
            assert_eq!(parse_code(doc! { "$let": argument }), code);
        }
    }
}

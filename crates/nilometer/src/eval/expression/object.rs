//! Objects and their fields: `$getField $setField $unsetField $mergeObjects`.
//!
//! Field names are literal, never paths: dots and dollar signs are ordinary characters (a name with
//! a leading dollar sign is written `{$literal: …}`).
//!
//! | operator | rule |
//! |---|---|
//! | `$getField: name` or `{field, input = $$CURRENT}` | null of a null input; missing of a missing or other input |
//! | `$setField: {field, input, value}` | null of a null input; a missing value removes the field |
//! | `$unsetField: {field, input}` | the same without the field |
//! | `$mergeObjects: [objects]` | later ones win; null and missing are skipped; `{}` of nothing |

use std::collections::HashMap;

use nilometer_bson::{DocRef, DocumentBuilder, Element, ValueRef};

use super::evaluated::Evaluated;
use super::operation::{CallContext, Operation, arg};
use super::parse::ExpressionParser;
use super::registry::{NamedArguments, OperatorSpec, required};
use super::scope::Scope;
use super::{Expression, check_bytes};
use crate::error::{Error, Result, location};

/// Arguments of the operation: field, input.
pub(super) fn parse_get_field(
    parser: &mut ExpressionParser<'_>,
    spec: &'static OperatorSpec,
    value: ValueRef<'_>,
) -> Result<Expression> {
    let full = match value {
        ValueRef::Document(doc) => doc
            .iter()
            .next()
            .is_none_or(|first| !first.name().starts_with('$'))
            .then_some(doc),
        _ => None,
    };
    let (field, input) = match full {
        None => (parser.operand(value)?, parser.dollar_current()),
        Some(doc) => {
            let (mut field, mut input) = (None, None);
            for element in doc.iter() {
                let slot = match element.name() {
                    "field" => &mut field,
                    "input" => &mut input,
                    other => {
                        return Err(Error::location(
                            location::GET_FIELD_ARGUMENT_UNKNOWN,
                            format!("$getField found an unknown argument: {other}"),
                        ));
                    }
                };
                *slot = Some(parser.operand(element.value())?);
            }
            let field = field.ok_or_else(|| {
                Error::location(
                    location::GET_FIELD_FIELD_MISSING,
                    "$getField requires 'field' to be specified",
                )
            })?;
            let input = input.ok_or_else(|| {
                Error::location(
                    location::GET_FIELD_INPUT_MISSING,
                    "$getField requires 'input' to be specified",
                )
            })?;
            (field, input)
        }
    };
    Ok(Operation::new(spec, vec![Some(field), Some(input)]).into_expression())
}

pub(super) fn get_field<'s>(operation: &'s Operation, scope: &Scope<'s>) -> Result<Evaluated<'s>> {
    let field = operation.value(0, scope)?;
    let Some(name) = field.as_str() else {
        return Err(Error::location(
            location::GET_FIELD_FIELD_NOT_STRING,
            format!(
                "$getField requires 'field' to evaluate to type String, but got {}",
                field.type_name()
            ),
        ));
    };
    Ok(match operation.value(1, scope)? {
        Evaluated::Borrowed(ValueRef::Document(doc)) => Evaluated::from(doc.get(name)),
        input => match input.as_ref() {
            ValueRef::Document(doc) => Evaluated::Owned(doc.get(name).to_value()),
            ValueRef::Null | ValueRef::Undefined => Evaluated::NULL,
            _ => Evaluated::MISSING,
        },
    })
}

pub(super) const SET_FIELD: NamedArguments = NamedArguments {
    not_object: location::SET_FIELD_NOT_OBJECT,
    unknown: location::SET_FIELD_ARGUMENT_UNKNOWN,
    fields: &[
        required("field", location::SET_FIELD_FIELD_MISSING),
        required("input", location::SET_FIELD_INPUT_MISSING),
        required("value", location::SET_FIELD_VALUE_MISSING),
    ],
};

pub(super) const UNSET_FIELD: NamedArguments = NamedArguments {
    not_object: location::SET_FIELD_NOT_OBJECT,
    unknown: location::SET_FIELD_ARGUMENT_UNKNOWN,
    fields: &[
        required("field", location::SET_FIELD_FIELD_MISSING),
        required("input", location::SET_FIELD_INPUT_MISSING),
    ],
};

/// Evaluates `$setField` and `$unsetField`, which has no third argument and so sets to missing.
pub(super) fn set_field<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    let (field, input, value) = (arg(values, 0), arg(values, 1), arg(values, 2).as_ref());
    let Some(name) = field.as_str() else {
        return Err(Error::location(
            location::SET_FIELD_FIELD_NOT_STRING,
            format!(
                "{} requires 'field' to evaluate to type String, but got {}",
                call.name,
                field.type_name()
            ),
        ));
    };
    if name.contains('\0') {
        return Err(Error::location(
            location::SET_FIELD_FIELD_NUL,
            format!("{} requires 'field' without null bytes", call.name),
        ));
    }
    if input.is_nullish() {
        return Ok(Evaluated::NULL);
    }
    let Some(doc) = input.as_document() else {
        return Err(Error::location(
            location::SET_FIELD_INPUT_NOT_OBJECT,
            format!(
                "{} requires 'input' to evaluate to type Object, but got {}",
                call.name,
                input.type_name()
            ),
        ));
    };
    let mut out = DocumentBuilder::with_capacity(doc.as_bytes().len() + name.len() + 16);
    let mut found = false;
    for element in doc.iter() {
        if element.name() == name {
            found = true;
            out.append_ref(name, value);
        } else {
            out.append_element(element);
        }
    }
    if !found {
        out.append_ref(name, value);
    }
    Ok(Evaluated::Owned(out.finish().into()))
}

pub(super) fn merge<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    // A single argument that is an array stands for its elements.
    let elements: Vec<ValueRef<'_>> = match values {
        [only] => match only.as_array() {
            Some(array) => call.scope.context.elements(array)?,
            None => vec![only.as_ref()],
        },
        many => many.iter().map(Evaluated::as_ref).collect(),
    };
    let mut objects: Vec<DocRef<'_>> = Vec::with_capacity(elements.len());
    for element in elements {
        call.scope.context.charge(1)?;
        check_element(element, call.name)?;
        objects.extend(element.as_document());
    }
    merged(&objects, call)
}

fn check_element(value: ValueRef<'_>, name: &str) -> Result<()> {
    match value {
        ValueRef::Document(_) => Ok(()),
        value if value.is_nullish() => Ok(()),
        other => Err(Error::location(
            location::MERGE_OBJECTS_NOT_OBJECT,
            format!(
                "{name} requires object inputs, but input is of type {}",
                other.type_name()
            ),
        )),
    }
}

/// Merges objects: fields keep the position of their first occurrence and the value of their last.
fn merged<'s>(objects: &[DocRef<'_>], call: CallContext<'_, 's>) -> Result<Evaluated<'s>> {
    let (context, mark) = (call.scope.context, call.scope.context.mark());
    let mut fields: Vec<Element<'_>> = Vec::new();
    let mut positions: HashMap<&[u8], usize> = HashMap::new();
    for element in objects.iter().flat_map(|object| object.iter()) {
        // The field and its entry in the map of positions.
        context.hold(mark, 2 * size_of_val(fields.as_slice()))?;
        match positions.get(element.name_bytes()) {
            Some(at) => fields[*at] = element,
            None => {
                positions.insert(element.name_bytes(), fields.len());
                fields.push(element);
            }
        }
    }
    let mut out = DocumentBuilder::new();
    for field in fields {
        out.append_element(field);
        check_bytes(out.len(), call.name)?;
        context.charge(1)?;
    }
    Ok(Evaluated::Owned(out.finish().into()))
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{Value, array, doc};

    use super::super::testing::{check_exact, eval_code, parse_code};

    #[test]
    fn get_field() {
        let doc =
            doc! { "a.b": 1, "$c": 2, "o": doc! { "x": 3 }, "n": Value::Null, "s": 5, "k": "x" };
        let cases: Vec<(Value, Value)> = vec![
            ("a.b".into(), 1.into()),
            (doc! { "$literal": "$c" }.into(), 2.into()),
            (doc! { "$concat": array!["a", ".b"] }.into(), 1.into()),
            ("gone".into(), Value::Missing),
            (doc! { "field": "x", "input": "$o" }.into(), 3.into()),
            (doc! { "field": "$k", "input": "$o" }.into(), 3.into()),
            (doc! { "field": "x", "input": "$n" }.into(), Value::Null),
            (
                doc! { "field": "x", "input": "$gone" }.into(),
                Value::Missing,
            ),
            (doc! { "field": "x", "input": "$s" }.into(), Value::Missing),
            (
                doc! { "field": "x", "input": doc! { "x": "$s" } }.into(),
                5.into(),
            ),
        ];
        for (argument, expected) in cases {
            check_exact(&doc, doc! { "$getField": argument }, expected);
        }
        let sum = doc! { "$add": array![doc! { "$getField": "gone" }, 1] };
        check_exact(&doc, sum, Value::Null);
        for (argument, code) in [
            (doc! { "x": 1 }, 3_041_701),
            (doc! { "input": 1 }, 3_041_702),
            (doc! { "field": "a" }, 3_041_703),
        ] {
            assert_eq!(parse_code(doc! { "$getField": argument }), code);
        }
        assert_eq!(eval_code(&doc, doc! { "$getField": 5 }), 3_041_704);
    }

    #[test]
    fn set_and_unset() {
        let doc = doc! { "o": doc! { "a": 1, "b": 2 }, "n": Value::Null };
        let set = |field: &str, input: &str, value: Value| {
            doc! { "$setField": doc! { "field": field, "input": input, "value": value } }
        };
        check_exact(&doc, set("a", "$o", 9.into()), doc! { "a": 9, "b": 2 });
        check_exact(
            &doc,
            set("c.d", "$o", 9.into()),
            doc! { "a": 1, "b": 2, "c.d": 9 },
        );
        check_exact(&doc, set("a", "$o", "$$REMOVE".into()), doc! { "b": 2 });
        check_exact(&doc, set("a", "$n", 1.into()), Value::Null);
        check_exact(&doc, set("a", "$gone", 1.into()), Value::Null);
        let unset = doc! { "$unsetField": doc! { "field": "b", "input": "$o" } };
        check_exact(&doc, unset, doc! { "a": 1 });
        assert_eq!(eval_code(&doc, set("a", "text", 1.into())), 4_161_105);
        let not_text = doc! { "$unsetField": doc! { "field": 5, "input": "$o" } };
        assert_eq!(eval_code(&doc, not_text), 4_161_107);
        for (argument, code) in [
            (Value::from(1), 4_161_100),
            (doc! { "x": 1 }.into(), 4_161_101),
            (doc! { "input": 1, "value": 1 }.into(), 4_161_102),
            (doc! { "field": "a", "value": 1 }.into(), 4_161_109),
            (doc! { "field": "a", "input": 1 }.into(), 4_161_103),
        ] {
            assert_eq!(parse_code(doc! { "$setField": argument }), code);
        }
    }

    #[test]
    fn merge() {
        let doc = doc! {
            "a": doc! { "x": 1, "y": 2 },
            "b": doc! { "y": 3, "z": 4 },
            "l": array![doc! { "p": 1 }, Value::Null, doc! { "p": 2 }],
            "n": Value::Null,
        };
        check_exact(
            &doc,
            doc! { "$mergeObjects": array!["$a", "$n", "$b"] },
            doc! { "x": 1, "y": 3, "z": 4 },
        );
        check_exact(
            &doc,
            doc! { "$mergeObjects": "$a" },
            doc! { "x": 1, "y": 2 },
        );
        check_exact(&doc, doc! { "$mergeObjects": "$l" }, doc! { "p": 2 });
        check_exact(&doc, doc! { "$mergeObjects": array!["$gone"] }, doc! {});
        check_exact(&doc, doc! { "$mergeObjects": array![] }, doc! {});
        assert_eq!(
            eval_code(&doc, doc! { "$mergeObjects": array!["$a", 5] }),
            40400
        );
        assert_eq!(
            eval_code(&doc, doc! { "$mergeObjects": array!["$a", "$l"] }),
            40400
        );
    }
}

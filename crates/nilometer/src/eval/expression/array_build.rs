//! Conversion between arrays and objects, and pairing of arrays: `$arrayToObject $objectToArray
//! $zip`.
//!
//! `$arrayToObject` takes pairs `[name, value]` or `{k, v}`, all of one form; the last value of a
//! repeated name is used. `$objectToArray` returns `{k, v}` pairs. Null gives null.
//!
//! `$zip: {inputs, useLongestLength = false, defaults}` pairs elements by position, up to the
//! shortest input or, filled with defaults or null, the longest. Any null input gives null.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use nilometer_bson::{ArrayRef, DocRef, DocumentBuilder, ValueRef};

use super::Expression;
use super::array::ArrayBuilder;
use super::evaluated::Evaluated;
use super::operation::{CallContext, Operation, arg};
use super::parse::ExpressionParser;
use super::registry::OperatorSpec;
use crate::error::{Error, Result, location};

/// The form of the pairs; the first pair decides.
#[derive(Clone, Copy, PartialEq)]
enum PairForm {
    Arrays,
    Objects,
}

pub(super) fn array_to_object<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    let array = match arg(values, 0).as_ref() {
        ValueRef::Array(array) => array,
        value if value.is_nullish() => return Ok(Evaluated::NULL),
        other => {
            return Err(error(
                location::ARRAY_TO_OBJECT_NOT_ARRAY,
                "requires an array input",
                other.type_name(),
            ));
        }
    };
    let mut form = None;
    let mut fields: Vec<(&str, ValueRef<'_>)> = Vec::new();
    let mut positions: HashMap<&str, usize> = HashMap::new();
    let (context, mark) = (call.scope.context, call.scope.context.mark());
    for element in array.iter() {
        context.charge_value(element)?;
        let (name, value) = match element {
            ValueRef::Array(pair) if form.unwrap_or(PairForm::Arrays) == PairForm::Arrays => {
                form = Some(PairForm::Arrays);
                pair_of_array(pair)?
            }
            ValueRef::Document(pair) if form.unwrap_or(PairForm::Objects) == PairForm::Objects => {
                form = Some(PairForm::Objects);
                pair_of_object(pair)?
            }
            other => {
                return Err(match form {
                    Some(PairForm::Arrays) => error(
                        location::ARRAY_TO_OBJECT_OBJECT_AFTER_PAIR,
                        "requires a consistent input format: after an array all must be arrays",
                        other.type_name(),
                    ),
                    Some(PairForm::Objects) => error(
                        location::ARRAY_TO_OBJECT_PAIR_AFTER_OBJECT,
                        "requires a consistent input format: after an object all must be objects",
                        other.type_name(),
                    ),
                    None => error(
                        location::ARRAY_TO_OBJECT_ELEMENT_TYPE,
                        "requires pairs as arrays or as objects with k and v",
                        other.type_name(),
                    ),
                });
            }
        };
        match positions.entry(name) {
            Entry::Occupied(position) => fields[*position.get()].1 = value,
            Entry::Vacant(new) => {
                new.insert(fields.len());
                fields.push((name, value));
                // The field and its entry in the map of positions.
                context.hold(mark, 2 * size_of_val(fields.as_slice()))?;
            }
        }
    }
    let mut out = DocumentBuilder::new();
    let mark = context.mark();
    for (name, value) in fields {
        out.append_ref(name, value);
        context.hold(mark, out.len())?;
    }
    Ok(Evaluated::Owned(out.finish().into()))
}

fn error(code: i32, what: &str, found: &str) -> Error {
    Error::location(code, format!("$arrayToObject {what}, found: {found}"))
}

fn pair_of_array(pair: ArrayRef<'_>) -> Result<(&str, ValueRef<'_>)> {
    let mut parts = pair.iter();
    match (parts.next(), parts.next(), parts.next()) {
        (Some(ValueRef::String(name)), Some(value), None) => {
            check_name(name, location::ARRAY_TO_OBJECT_FIRST_NUL)?;
            Ok((name, value))
        }
        (Some(other), Some(_), None) => Err(error(
            location::ARRAY_TO_OBJECT_FIRST_NOT_STRING,
            "requires the first of a pair to be a string",
            other.type_name(),
        )),
        _ => Err(error(
            location::ARRAY_TO_OBJECT_PAIR_LENGTH,
            "requires arrays of size 2",
            &format!("array of size {}", pair.len()),
        )),
    }
}

fn pair_of_object(pair: DocRef<'_>) -> Result<(&str, ValueRef<'_>)> {
    let count = pair.iter().count();
    if count != 2 {
        return Err(error(
            location::ARRAY_TO_OBJECT_KEY_COUNT,
            "requires objects with exactly the keys k and v",
            &format!("{count} keys"),
        ));
    }
    match (pair.get("k"), pair.get("v")) {
        (ValueRef::Missing, _) | (_, ValueRef::Missing) => Err(error(
            location::ARRAY_TO_OBJECT_KEYS,
            "requires objects with the keys k and v",
            "other keys",
        )),
        (ValueRef::String(name), value) => {
            check_name(name, location::ARRAY_TO_OBJECT_K_NUL)?;
            Ok((name, value))
        }
        (other, _) => Err(error(
            location::ARRAY_TO_OBJECT_K_NOT_STRING,
            "requires k to be a string",
            other.type_name(),
        )),
    }
}

fn check_name(name: &str, code: i32) -> Result<()> {
    if name.contains('\0') {
        return Err(Error::location(
            code,
            "Key field cannot contain an embedded null byte",
        ));
    }
    Ok(())
}

pub(super) fn object_to_array<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    match arg(values, 0).as_ref() {
        ValueRef::Document(object) => {
            let mut out = ArrayBuilder::new(call.scope);
            for element in object.iter() {
                let mut pair = DocumentBuilder::new();
                pair.append("k", element.name());
                pair.append_renamed("v", element);
                out.push(ValueRef::Document(pair.finish().as_ref()))?;
            }
            Ok(out.finish())
        }
        value if value.is_nullish() => Ok(Evaluated::NULL),
        other => Err(Error::location(
            location::OBJECT_TO_ARRAY_NOT_OBJECT,
            format!(
                "$objectToArray requires an object input, found: {}",
                other.type_name()
            ),
        )),
    }
}

/// The parsed members of `$zip`.
#[derive(Default)]
struct ZipSpec {
    inputs: Vec<Option<Expression>>,
    defaults: Vec<Option<Expression>>,
    longest: bool,
}

fn zip_error(code: i32, what: String) -> Error {
    Error::location(code, format!("$zip {what}"))
}

impl ZipSpec {
    fn parse(parser: &mut ExpressionParser<'_>, doc: DocRef<'_>) -> Result<Self> {
        let mut zip = Self::default();
        for element in doc.iter() {
            match (element.name(), element.value()) {
                ("inputs", list) => {
                    zip.inputs = operands(parser, list, "inputs", location::ZIP_INPUTS_NOT_ARRAY)?
                }
                ("defaults", list) => {
                    zip.defaults =
                        operands(parser, list, "defaults", location::ZIP_DEFAULTS_NOT_ARRAY)?
                }
                ("useLongestLength", ValueRef::Bool(longest)) => zip.longest = longest,
                ("useLongestLength", other) => {
                    return Err(zip_error(
                        location::ZIP_LONGEST_NOT_BOOL,
                        format!(
                            "useLongestLength must be a bool, found {}",
                            other.type_name()
                        ),
                    ));
                }
                (other, _) => {
                    return Err(zip_error(
                        location::ZIP_ARGUMENT_UNKNOWN,
                        format!("found an unknown argument: {other}"),
                    ));
                }
            }
        }
        zip.check()?;
        Ok(zip)
    }

    fn check(&self) -> Result<()> {
        let wrong = if self.inputs.is_empty() {
            (
                location::ZIP_INPUTS_EMPTY,
                "requires at least one input array",
            )
        } else if self.defaults.is_empty() {
            return Ok(());
        } else if !self.longest {
            (
                location::ZIP_DEFAULTS_WITHOUT_LONGEST,
                "cannot specify defaults unless useLongestLength is true",
            )
        } else if self.defaults.len() != self.inputs.len() {
            (
                location::ZIP_DEFAULTS_LENGTH,
                "defaults and inputs must have the same length",
            )
        } else {
            return Ok(());
        };
        Err(zip_error(wrong.0, wrong.1.to_owned()))
    }
}

/// Parses the operands in an array of expressions.
fn operands(
    parser: &mut ExpressionParser<'_>,
    list: ValueRef<'_>,
    name: &str,
    code: i32,
) -> Result<Vec<Option<Expression>>> {
    match list {
        ValueRef::Array(list) => list
            .iter()
            .map(|operand| parser.operand(operand).map(Some))
            .collect(),
        other => Err(zip_error(
            code,
            format!(
                "{name} must be an array of expressions, found {}",
                other.type_name()
            ),
        )),
    }
}

/// Arguments of the operation: longest (constant bool), number of inputs (constant), inputs, defaults.
pub(super) fn parse_zip(
    parser: &mut ExpressionParser<'_>,
    spec: &'static OperatorSpec,
    value: ValueRef<'_>,
) -> Result<Expression> {
    let ValueRef::Document(doc) = value else {
        return Err(zip_error(
            location::ZIP_NOT_OBJECT,
            format!(
                "only supports an object as an argument, found {}",
                value.type_name()
            ),
        ));
    };
    let mut zip = ZipSpec::parse(parser, doc)?;
    let count = i64::try_from(zip.inputs.len()).unwrap_or(i64::MAX);
    let mut arguments = vec![
        Some(Expression::constant(zip.longest)),
        Some(Expression::constant(count)),
    ];
    arguments.append(&mut zip.inputs);
    arguments.append(&mut zip.defaults);
    Ok(Operation::new(spec, arguments).into_expression())
}

pub(super) fn zip<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    let longest = matches!(arg(values, 0).as_ref(), ValueRef::Bool(true));
    let count = match arg(values, 1).as_ref() {
        ValueRef::Int64(count) => usize::try_from(count).unwrap_or_default(),
        _ => 0,
    };
    let (inputs, defaults) = values
        .get(2..)
        .and_then(|rest| rest.split_at_checked(count))
        .unwrap_or_default();
    let mut columns: Vec<Vec<ValueRef<'_>>> = Vec::with_capacity(count);
    for input in inputs {
        match input.as_ref() {
            ValueRef::Array(array) => columns.push(call.scope.context.elements(array)?),
            value if value.is_nullish() => return Ok(Evaluated::NULL),
            other => {
                return Err(Error::location(
                    location::ZIP_INPUT_NOT_ARRAY,
                    format!(
                        "$zip found a non-array expression in input: {}",
                        other.type_name()
                    ),
                ));
            }
        }
    }
    let lengths = columns.iter().map(Vec::len);
    let length = if longest {
        lengths.max()
    } else {
        lengths.min()
    };
    let mut out = ArrayBuilder::new(call.scope);
    for row in 0..length.unwrap_or(0) {
        let mut tuple = ArrayBuilder::new(call.scope);
        for (at, column) in columns.iter().enumerate() {
            let value = match column.get(row) {
                Some(value) => *value,
                None => defaults.get(at).map_or(ValueRef::Null, Evaluated::as_ref),
            };
            tuple.push(value)?;
        }
        out.push(tuple.finish().as_ref())?;
    }
    Ok(out.finish())
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{Value, array, doc};

    use super::super::testing::{check_exact, eval_code, parse_code};

    fn pair(name: &str, value: Value) -> nilometer_bson::Document {
        doc! { "k": name, "v": value }
    }

    #[test]
    fn objects() {
        let doc = doc! { "o": doc! { "a": 1, "b": array![2] }, "n": Value::Null };
        let pairs = array![pair("a", 1.into()), pair("b", array![2])];
        check_exact(&doc, doc! { "$objectToArray": "$o" }, pairs.clone());
        check_exact(&doc, doc! { "$objectToArray": "$gone" }, Value::Null);
        check_exact(
            &doc,
            doc! { "$arrayToObject": doc! { "$literal": pairs } },
            doc! { "a": 1, "b": array![2] },
        );
        let lists = array![array!["a", 1], array!["b", 2], array!["a", 3]];
        check_exact(
            &doc,
            doc! { "$arrayToObject": array![lists] },
            doc! { "a": 3, "b": 2 },
        );
        check_exact(&doc, doc! { "$arrayToObject": "$n" }, Value::Null);
        check_exact(&doc, doc! { "$arrayToObject": array![array![]] }, doc! {});
        assert_eq!(eval_code(&doc, doc! { "$objectToArray": 5 }), 40390);
        for (input, code) in [
            (Value::from(5), 40386),
            (array![array!["a", 1], pair("b", 1.into())], 40396),
            (array![pair("b", 1.into()), array!["a", 1]], 40391),
            (array![5], 40398),
            (array![array!["a"]], 40397),
            (array![array!["a", 1, 2]], 40397),
            (array![array![1, 2]], 40395),
            (array![doc! { "k": "a" }], 40392),
            (array![doc! { "k": "a", "x": 1 }], 40393),
            (array![doc! { "k": 1, "v": 1 }], 40394),
            (array![array!["a\0", 1]], 4_940_400),
            (array![pair("a\0", 1.into())], 4_940_401),
        ] {
            let expression = doc! { "$arrayToObject": doc! { "$literal": input } };
            assert_eq!(eval_code(&doc, expression.clone()), code, "{expression:?}");
        }
    }

    #[test]
    fn zips() {
        let doc = doc! { "a": array![1, 2, 3], "b": array!["x"], "n": Value::Null };
        let zip = |arguments: nilometer_bson::Document| doc! { "$zip": arguments };
        let inputs = array!["$a", "$b"];
        check_exact(
            &doc,
            zip(doc! { "inputs": inputs.clone() }),
            array![array![1, "x"]],
        );
        check_exact(
            &doc,
            zip(doc! { "inputs": inputs.clone(), "useLongestLength": true }),
            array![
                array![1, "x"],
                array![2, Value::Null],
                array![3, Value::Null]
            ],
        );
        check_exact(
            &doc,
            zip(
                doc! { "inputs": inputs.clone(), "useLongestLength": true, "defaults": array![0, "$b"] },
            ),
            array![
                array![1, "x"],
                array![2, array!["x"]],
                array![3, array!["x"]]
            ],
        );
        check_exact(
            &doc,
            zip(doc! { "inputs": array!["$a", "$n"] }),
            Value::Null,
        );
        assert_eq!(
            eval_code(&doc, zip(doc! { "inputs": array!["$a", 5] })),
            34468
        );
        for (argument, code) in [
            (Value::from(1), 34460),
            (doc! { "inputs": 1 }.into(), 34461),
            (
                doc! { "inputs": inputs.clone(), "defaults": 1 }.into(),
                34462,
            ),
            (
                doc! { "inputs": inputs.clone(), "useLongestLength": 1 }.into(),
                34463,
            ),
            (doc! { "inputs": inputs.clone(), "x": 1 }.into(), 34464),
            (doc! { "inputs": array![] }.into(), 34465),
            (
                doc! { "inputs": inputs.clone(), "defaults": array![1, 2] }.into(),
                34466,
            ),
            (
                doc! { "inputs": inputs, "useLongestLength": true, "defaults": array![1] }.into(),
                34467,
            ),
        ] {
            assert_eq!(parse_code(doc! { "$zip": argument }), code);
        }
    }
}

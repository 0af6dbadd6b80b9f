//! `WHERE`: the range of times, and the rest as a filter of documents.
//!
//! Comparisons of the time are joined by `AND` only. Tags are compared as texts; one that a series does not have is the empty
//! text. A field that a document does not have, or that has another type than the constant, matches no comparison.

use std::collections::BTreeMap;

use jiff::tz::TimeZone;
use nilometer_bson::{Document, DocumentBuilder, Value, array, doc};
use regex::Regex;

use super::times::{TimeRange, constant};
use crate::influxql::Expr;
use crate::influxql::ast::{Cast, Operator};
use crate::schema::MeasurementSchema;

/// The name of the time in InfluxQL.
const TIME: &str = "time";

/// Bytes of a compiled pattern.
const REGEX_BYTES_MAX: usize = 1024 * 1024;

/// Returns the range of times of a condition, and its other conjuncts.
pub(super) fn split<'e>(
    condition: Option<&'e Expr>,
    now_ms: i64,
    zone: Option<&TimeZone>,
) -> Result<(TimeRange, Vec<&'e Expr>), String> {
    let mut range = TimeRange::ALL;
    let mut rest = Vec::new();
    let mut open: Vec<&Expr> = condition.into_iter().collect();
    while let Some(expr) = open.pop() {
        match expr {
            Expr::Binary(Operator::And, left, right) => {
                open.push(right);
                open.push(left);
            }
            Expr::Binary(operator, left, right) if is_time(left) => {
                range.narrow(*operator, constant(right, now_ms, zone)?)?;
            }
            Expr::Binary(operator, left, right) if is_time(right) => {
                range.narrow(operator.flipped(), constant(left, now_ms, zone)?)?;
            }
            other => {
                let mut names_time = false;
                other.walk(&mut |one| names_time |= is_time(one));
                if names_time {
                    return Err("conditions on time are joined by AND only".to_owned());
                }
                rest.push(other);
            }
        }
    }
    Ok((range, rest))
}

fn is_time(expr: &Expr) -> bool {
    matches!(expr, Expr::Name(name, _) if name.eq_ignore_ascii_case(TIME))
}

/// Compiles a pattern, with limits.
pub(super) fn compile(pattern: &str) -> Result<Regex, String> {
    regex::RegexBuilder::new(pattern)
        .size_limit(REGEX_BYTES_MAX)
        .build()
        .map_err(|problem| format!("invalid regular expression /{pattern}/: {problem}"))
}

/// Returns the filter of a range and conjuncts; empty if all documents match.
pub(super) fn filter(
    range: TimeRange,
    conjuncts: &[&Expr],
    schema: &MeasurementSchema,
) -> Result<Document, String> {
    let mut parts: Vec<Value> = Vec::new();
    let mut time = DocumentBuilder::new();
    if let Some(from) = range.first_ms() {
        time.append("$gte", Value::DateTime(from));
    }
    if let Some(to) = range.last_ms() {
        time.append("$lte", Value::DateTime(to));
    }
    if !time.is_empty() {
        let mut part = DocumentBuilder::new();
        part.append(&schema.names.time, time.finish());
        parts.push(part.finish().into());
    }
    for conjunct in conjuncts {
        parts.push(part(conjunct, schema)?.into());
    }
    Ok(joined("$and", parts))
}

/// Joins filters; one alone stays as it is.
fn joined(operator: &str, mut parts: Vec<Value>) -> Document {
    match (parts.len(), parts.pop()) {
        (1, Some(Value::Document(only))) => only,
        (_, None) => doc! {},
        (_, Some(last)) => {
            parts.push(last);
            let mut out = DocumentBuilder::new();
            out.append(operator, Value::Array(parts.into_iter().collect()));
            out.finish()
        }
    }
}

fn one(path: &str, value: impl Into<Value>) -> Document {
    let mut out = DocumentBuilder::new();
    out.append(path, value);
    out.finish()
}

/// The filter that nothing, or everything, matches.
fn always(value: bool) -> Document {
    doc! {"$expr": value}
}

/// Returns the filter of an expression.
fn part(expr: &Expr, schema: &MeasurementSchema) -> Result<Document, String> {
    match expr {
        Expr::Boolean(value) => Ok(always(*value)),
        Expr::Binary(operator @ (Operator::And | Operator::Or), left, right) => {
            let name = match operator {
                Operator::And => "$and",
                _ => "$or",
            };
            let (mut parts, mut open) = (Vec::new(), vec![right, left]);
            // A chain is one list, however long.
            while let Some(next) = open.pop() {
                match &**next {
                    Expr::Binary(same, left, right) if same == operator => {
                        open.push(right);
                        open.push(left);
                    }
                    other => parts.push(part(other, schema)?.into()),
                }
            }
            Ok(joined(name, parts))
        }
        Expr::Binary(operator, left, right) if !operator.is_arithmetic() => {
            match (&**left, &**right) {
                (Expr::Name(name, cast), constant) if is_constant(constant) => {
                    comparison(name, *cast, *operator, constant, schema)
                }
                (constant, Expr::Name(name, cast)) if is_constant(constant) => {
                    comparison(name, *cast, operator.flipped(), constant, schema)
                }
                (left, right) => computed(*operator, left, right, schema),
            }
        }
        other => Err(format!("{other} is no condition")),
    }
}

fn is_constant(expr: &Expr) -> bool {
    matches!(
        expr,
        Expr::Integer(_)
            | Expr::Number(_)
            | Expr::String(_)
            | Expr::Boolean(_)
            | Expr::Duration(_)
            | Expr::Regex(_)
    )
}

/// Returns the filter of a comparison of a name with a constant.
fn comparison(
    name: &str,
    cast: Option<Cast>,
    operator: Operator,
    constant: &Expr,
    schema: &MeasurementSchema,
) -> Result<Document, String> {
    let is_field = match cast {
        Some(Cast::Tag) => false,
        None => schema.fields.contains_key(name),
        Some(_) => true,
    };
    if is_field {
        return field_comparison(name, operator, constant);
    }
    match schema.tags.get(name) {
        Some(path) => tag_comparison(path, operator, constant),
        // A name that no series has is an empty text.
        None => match (operator, constant) {
            (Operator::Equal, Expr::String(text)) => Ok(always(text.is_empty())),
            (Operator::NotEqual, Expr::String(text)) => Ok(always(!text.is_empty())),
            (Operator::Matches, Expr::Regex(pattern)) => Ok(always(compile(pattern)?.is_match(""))),
            (Operator::MatchesNot, Expr::Regex(pattern)) => {
                Ok(always(!compile(pattern)?.is_match("")))
            }
            _ => Ok(always(false)),
        },
    }
}

fn field_comparison(path: &str, operator: Operator, constant: &Expr) -> Result<Document, String> {
    let (value, kind) = match constant {
        Expr::Integer(value) => (Value::Int64(*value), "number"),
        Expr::Duration(value) => (Value::Int64(*value), "number"),
        Expr::Number(value) => (Value::Double(*value), "number"),
        Expr::String(text) => (Value::from(text.as_str()), "string"),
        Expr::Boolean(value) => (Value::Bool(*value), "bool"),
        Expr::Regex(pattern) => {
            compile(pattern)?;
            let pattern = doc! {"$regex": pattern.as_str()};
            return match operator {
                Operator::Matches => Ok(one(path, pattern)),
                Operator::MatchesNot => Ok(one(path, doc! {"$not": pattern, "$type": "string"})),
                other => Err(format!("{} takes no regular expression", other.text())),
            };
        }
        other => return Err(format!("{other} is no constant")),
    };
    let name = match operator {
        Operator::Equal => "$eq",
        Operator::Less => "$lt",
        Operator::LessOrEqual => "$lte",
        Operator::Greater => "$gt",
        Operator::GreaterOrEqual => "$gte",
        Operator::NotEqual => {
            return Ok(one(path, doc! {"$ne": value, "$type": kind}));
        }
        other => {
            return Err(format!("{} takes a regular expression", other.text()));
        }
    };
    let mut test = DocumentBuilder::new();
    test.append(name, value);
    Ok(one(path, test.finish()))
}

fn tag_comparison(path: &str, operator: Operator, constant: &Expr) -> Result<Document, String> {
    match (operator, constant) {
        (Operator::Equal, Expr::String(text)) => Ok(one(path, doc! {"$in": tag_values(text)})),
        (Operator::NotEqual, Expr::String(text)) => Ok(one(path, doc! {"$nin": tag_values(text)})),
        (Operator::Matches | Operator::MatchesNot, Expr::Regex(pattern)) => {
            let matches_empty = compile(pattern)?.is_match("");
            let test = doc! {"$regex": pattern.as_str()};
            let found = one(path, test.clone());
            let missing = one(path, Value::Null);
            Ok(match (operator == Operator::Matches, matches_empty) {
                (true, false) => found,
                (true, true) => joined("$or", vec![found.into(), missing.into()]),
                (false, false) => one(path, doc! {"$not": test}),
                (false, true) => one(path, doc! {"$not": test, "$ne": Value::Null}),
            })
        }
        (Operator::Matches | Operator::MatchesNot, _) => {
            Err(format!("{} takes a regular expression", operator.text()))
        }
        (_, Expr::Regex(_)) => Err(format!("{} takes no regular expression", operator.text())),
        (Operator::Equal | Operator::NotEqual, _) => Ok(always(operator == Operator::NotEqual)),
        _ => Err(format!(
            "tags are compared by =, !=, =~ and !~, not by {}",
            operator.text()
        )),
    }
}

/// Returns the values of metadata that have the text: numbers and truth values of other clients, too.
fn tag_values(text: &str) -> Value {
    let mut values = vec![Value::from(text)];
    if text.is_empty() {
        values.push(Value::Null);
    }
    if let Ok(number) = text.parse::<f64>()
        && number.is_finite()
    {
        values.push(Value::Double(number));
    }
    if let Ok(value) = text.parse::<bool>() {
        values.push(Value::Bool(value));
    }
    Value::Array(values.into_iter().collect())
}

/// Returns the filter of a comparison of computed values.
fn computed(
    operator: Operator,
    left: &Expr,
    right: &Expr,
    schema: &MeasurementSchema,
) -> Result<Document, String> {
    let name = match operator {
        Operator::Equal => "$eq",
        Operator::NotEqual => "$ne",
        Operator::Less => "$lt",
        Operator::LessOrEqual => "$lte",
        Operator::Greater => "$gt",
        Operator::GreaterOrEqual => "$gte",
        other => {
            return Err(format!(
                "{} takes a name and a regular expression",
                other.text()
            ));
        }
    };
    let mut read = BTreeMap::new();
    let (left, right) = (
        operand(left, schema, &mut read)?,
        operand(right, schema, &mut read)?,
    );
    let compare = one(name, array![left, right]);
    let mut parts: Vec<Value> = read
        .into_keys()
        .map(|path| is_value(&path).into())
        .collect();
    parts.push(compare.into());
    Ok(doc! {"$expr": doc! {"$and": Value::Array(parts.into_iter().collect())}})
}

/// Returns the expression that is true if a path has a value.
pub(super) fn is_value(path: &str) -> Document {
    doc! {"$gt": array![format!("${path}"), Value::Null]}
}

/// Returns an operand as an expression of documents, and adds the paths it reads.
fn operand(
    expr: &Expr,
    schema: &MeasurementSchema,
    read: &mut BTreeMap<String, ()>,
) -> Result<Value, String> {
    Ok(match expr {
        Expr::Integer(value) | Expr::Duration(value) => Value::Int64(*value),
        Expr::Number(value) => Value::Double(*value),
        Expr::String(text) => doc! {"$literal": text.as_str()}.into(),
        Expr::Boolean(value) => Value::Bool(*value),
        Expr::Name(name, cast) => {
            let tag = schema.tags.get(name);
            let path = match (cast, tag) {
                (Some(Cast::Tag), Some(path)) => path,
                (None, Some(path)) if !schema.fields.contains_key(name) => path,
                _ => name,
            };
            read.insert(path.clone(), ());
            Value::from(format!("${path}"))
        }
        Expr::Binary(operator, left, right) if operator.is_arithmetic() => {
            let name = match operator {
                Operator::Add => "$add",
                Operator::Subtract => "$subtract",
                Operator::Multiply => "$multiply",
                Operator::Divide => "$divide",
                Operator::Modulo => "$mod",
                other => return Err(format!("{} is not supported in WHERE", other.text())),
            };
            let (left, right) = (operand(left, schema, read)?, operand(right, schema, read)?);
            match operator {
                // A division by zero is 0.
                Operator::Divide | Operator::Modulo => {
                    let divide = one(name, array![left, right.clone()]);
                    let is_zero = doc! {"$eq": array![right, 0]};
                    doc! {"$cond": array![is_zero, 0, divide]}.into()
                }
                _ => one(name, array![left, right]).into(),
            }
        }
        other => return Err(format!("{other} is not supported in WHERE")),
    })
}

//! Conversion of a filter to a document for explain. Every operator is explicit: `{a: 1}` becomes
//! `{a: {$eq: 1}}`. Parsing the result gives an equivalent filter.

use nilometer_bson::{Array, Document, DocumentBuilder, Value, ValueRef, doc};

use super::comparison::Comparison;
use super::regex::Pattern;
use super::{InList, MatchExpression, TypeSet};

impl MatchExpression {
    /// Returns the filter as a document.
    pub fn to_document(&self) -> Document {
        let mut out = DocumentBuilder::new();
        match self {
            Self::And(arms) if arms.is_empty() => {}
            Self::And(arms) => {
                out.append("$and", documents(arms));
            }
            Self::Or(arms) if arms.is_empty() => {
                out.append("$alwaysFalse", 1);
            }
            Self::Or(arms) => {
                out.append("$or", documents(arms));
            }
            Self::Nor(arms) if arms.is_empty() => {}
            Self::Nor(arms) => {
                out.append("$nor", documents(arms));
            }
            Self::Not(arm) => return negated(arm),
            Self::AlwaysTrue => {}
            Self::AlwaysFalse => {
                out.append("$alwaysFalse", 1);
            }
            Self::Expr(test) => {
                out.append("$expr", test.source().clone());
            }
            Self::JsonSchema(schema) => {
                out.append("$jsonSchema", schema.source().clone());
            }
            Self::BucketGeo(test) => return test.to_document(),
            Self::Text(test) => {
                out.append("$text", test.to_document());
            }
            Self::ExprCompare(Comparison { path, .. }) => {
                out.append(path.as_str(), self.operators());
            }
            leaf => {
                if let Some(path) = leaf.leaf_path() {
                    out.append(path.as_str(), leaf.operators());
                }
            }
        }
        out.finish()
    }

    /// Returns the operator document of a test of one path: `{$gt: 5}`.
    fn operators(&self) -> Document {
        let mut out = DocumentBuilder::new();
        match self {
            Self::Compare(comparison) => {
                out.append(comparison.op.name(), comparison.value.clone());
            }
            Self::ExprCompare(comparison) => {
                out.append(comparison.op.expr_name(), comparison.value.clone());
            }
            Self::In(list) => {
                out.append("$in", in_values(list));
            }
            Self::Exists(_) => {
                out.append("$exists", true);
            }
            Self::Type { types, .. } => {
                out.append("$type", type_values(*types));
            }
            Self::Regex { pattern, .. } => {
                out.append("$regex", pattern.source());
                if !pattern.options().is_empty() {
                    out.append("$options", pattern.options());
                }
            }
            Self::Mod { test, .. } => {
                out.append("$mod", nilometer_bson::array![test.divisor, test.remainder]);
            }
            Self::Size { size, .. } => {
                out.append("$size", *size);
            }
            Self::ElemMatchObject { filter, .. } => {
                out.append("$elemMatch", filter.to_document());
            }
            Self::ElemMatchValue { tests, .. } => {
                out.append("$elemMatch", joined(tests));
            }
            Self::Bits { test, .. } => {
                let positions = test
                    .positions()
                    .iter()
                    .map(|at| Value::from(i64::from(*at)));
                out.append(test.kind.name(), Value::Array(positions.collect()));
            }
            Self::Geo { test, .. } => {
                out.append(test.name(), test.operand().clone());
            }
            Self::Near { query, .. } => return query.source().clone(),
            Self::Not(arm) => {
                out.append("$not", arm.operators());
            }
            Self::And(arms) => return joined(arms),
            _ => {}
        }
        out.finish()
    }
}

/// Merges the operators of several tests of one value into one document.
fn joined(tests: &[MatchExpression]) -> Document {
    let mut out = DocumentBuilder::new();
    for test in tests {
        for operator in test.operators().iter() {
            out.append_element(operator);
        }
    }
    out.finish()
}

/// Returns `{a: {$not: {…}}}` if possible, else `{$nor: [{…}]}`.
fn negated(arm: &MatchExpression) -> Document {
    let path = match arm {
        MatchExpression::ExprCompare(comparison) => Some(&comparison.path),
        leaf => leaf.leaf_path(),
    };
    let mut out = DocumentBuilder::new();
    match path {
        Some(path) => out.append(path.as_str(), doc! { "$not": arm.operators() }),
        None => out.append("$nor", documents(std::slice::from_ref(arm))),
    };
    out.finish()
}

fn documents(arms: &[MatchExpression]) -> Value {
    let documents = arms.iter().map(|arm| Value::Document(arm.to_document()));
    Value::Array(documents.collect::<Array>())
}

fn in_values(list: &InList) -> Value {
    let pattern = |pattern: &Pattern| {
        ValueRef::Regex {
            pattern: pattern.source(),
            options: pattern.options(),
        }
        .to_value()
    };
    let values = list.values().iter().cloned();
    Value::Array(values.chain(list.patterns().iter().map(pattern)).collect())
}

fn type_values(types: TypeSet) -> Value {
    let number = types.is_number().then(|| Value::from("number"));
    let codes = types
        .codes()
        .filter(|code| !(types.is_number() && TypeSet::is_number_code(*code)))
        .map(|code| Value::from(i32::from(code as i8)));
    Value::Array(number.into_iter().chain(codes).collect())
}

//! Converts partial filters from conditions on measurements to conditions on buckets.
//!
//! The index includes a bucket that may hold a measurement selected by the user's filter, so a comparison becomes one of the
//! deciding bound: `x < 5` is true for some measurement only if `control.min.x < 5`. Conditions that bounds cannot answer
//! (null, arrays, patterns, absence) are refused with 5916301. The time field is bounded from both sides, because no bucket
//! exceeds the collection's span.

use nilometer_bson::{Array, DocRef, Document, DocumentBuilder, Value, ValueRef, doc};

use super::keys::rename_meta;
use crate::catalog::TimeseriesOptions;
use crate::error::{Error, Result, location};
use crate::eval::matcher::{CompareOp, FILTER_DEPTH_MAX};

fn unsupported(what: &str) -> Error {
    Error::location(
        location::BUCKET_INDEX_FILTER_UNSUPPORTED,
        format!("unsupported predicate in the partial filter of a time-series index: {what}"),
    )
}

/// A conjunct.
enum Clause {
    /// A condition on the metadata, as the user wrote it.
    Meta(Document),
    /// One comparison of a bound of the time.
    Time(Document),
    /// A condition on measurements, or an `$or`.
    Rest(Document),
}

/// Converts the user's filter to one on buckets.
pub(crate) fn to_buckets(options: &TimeseriesOptions, filter: DocRef<'_>) -> Result<Document> {
    if reads_only_meta(options, filter) {
        let rename = |path: &str| rename_meta(options, path);
        return renamed(filter, &rename, 0).ok_or_else(|| unsupported("it is nested too deep"));
    }
    let mut clauses = Vec::new();
    convert(options, filter, &mut clauses, 0)?;
    Ok(assemble(clauses))
}

/// Converts a filter on buckets to the user's, if it reads only metadata.
pub(crate) fn to_user(options: &TimeseriesOptions, filter: DocRef<'_>) -> Option<Document> {
    let meta = options.meta_field.as_deref()?;
    let rename = |path: &str| {
        let rest = path.strip_prefix("meta")?;
        (rest.is_empty() || rest.starts_with('.')).then(|| format!("{meta}{rest}"))
    };
    renamed(filter, &rename, 0)
}

/// True if every path of the filter is metadata.
pub(crate) fn reads_only_meta(options: &TimeseriesOptions, filter: DocRef<'_>) -> bool {
    renamed(filter, &|path| rename_meta(options, path), 0).is_some()
}

/// Returns the filter with every path renamed; `None` if a path cannot be renamed or an operator has no path.
fn renamed(
    filter: DocRef<'_>,
    rename: &dyn Fn(&str) -> Option<String>,
    depth: usize,
) -> Option<Document> {
    if depth > FILTER_DEPTH_MAX {
        return None;
    }
    let mut out = DocumentBuilder::new();
    for element in filter {
        match (element.name(), element.value()) {
            (name @ ("$and" | "$or" | "$nor"), ValueRef::Array(arms)) => {
                let arms = arms
                    .iter()
                    .map(|arm| renamed(arm.as_document()?, rename, depth + 1).map(Value::Document));
                out.append(name, Value::Array(arms.collect::<Option<Array>>()?));
            }
            (name, _) if name.starts_with('$') => return None,
            (path, value) => {
                out.append_ref(&rename(path)?, value);
            }
        }
    }
    Some(out.finish())
}

fn convert(
    options: &TimeseriesOptions,
    filter: DocRef<'_>,
    into: &mut Vec<Clause>,
    depth: usize,
) -> Result<()> {
    if depth > FILTER_DEPTH_MAX {
        return Err(unsupported("it is nested too deep"));
    }
    for element in filter {
        let (name, value) = (element.name(), element.value());
        match (name, value) {
            ("$and", ValueRef::Array(arms)) => {
                for arm in arms.iter() {
                    let arm = arm
                        .as_document()
                        .ok_or_else(|| unsupported("an arm of $and is no document"))?;
                    convert(options, arm, into, depth + 1)?;
                }
            }
            ("$or", ValueRef::Array(arms)) => {
                let mut converted = Vec::new();
                for arm in arms.iter() {
                    let arm = arm
                        .as_document()
                        .ok_or_else(|| unsupported("an arm of $or is no document"))?;
                    let mut clauses = Vec::new();
                    convert(options, arm, &mut clauses, depth + 1)?;
                    converted.push(Value::Document(assemble(clauses)));
                }
                into.push(Clause::Rest(doc! { "$or": converted }));
            }
            (operator, _) if operator.starts_with('$') => return Err(unsupported(operator)),
            (path, value) => match rename_meta(options, path) {
                Some(meta) => {
                    let mut out = DocumentBuilder::new();
                    out.append_ref(&meta, value);
                    into.push(Clause::Meta(out.finish()));
                }
                None => convert_field(options, path, value, into)?,
            },
        }
    }
    Ok(())
}

/// Converts the conditions on one field of measurements, or on the time.
fn convert_field(
    options: &TimeseriesOptions,
    path: &str,
    value: ValueRef<'_>,
    into: &mut Vec<Clause>,
) -> Result<()> {
    let field = Field {
        options,
        path,
        is_time: path == options.time_field,
    };
    let operators = match value {
        ValueRef::Document(found)
            if found
                .iter()
                .next()
                .is_some_and(|e| e.name().starts_with('$')) =>
        {
            found
        }
        ValueRef::Regex { .. } => return Err(unsupported("a regular expression")),
        value => return field.compare(CompareOp::Eq, value, into),
    };
    for operator in operators {
        let value = operator.value();
        match operator.name() {
            "$eq" => field.compare(CompareOp::Eq, value, into)?,
            "$gt" => field.compare(CompareOp::Gt, value, into)?,
            "$gte" => field.compare(CompareOp::Gte, value, into)?,
            "$lt" => field.compare(CompareOp::Lt, value, into)?,
            "$lte" => field.compare(CompareOp::Lte, value, into)?,
            "$exists" if is_true(value) => into.push(Clause::Rest(field.exists())),
            "$in" => into.push(Clause::Rest(field.any_of(value)?)),
            other => return Err(unsupported(&format!("{other} on '{path}'"))),
        }
    }
    Ok(())
}

fn is_true(value: ValueRef<'_>) -> bool {
    match value {
        ValueRef::Bool(value) => value,
        ValueRef::Null | ValueRef::Undefined | ValueRef::Missing => false,
        number if number.is_number() => number.as_exact_i64() != Some(0),
        _ => true,
    }
}

/// A field of measurements, or the time field.
struct Field<'a> {
    options: &'a TimeseriesOptions,
    path: &'a str,
    is_time: bool,
}

impl Field<'_> {
    fn bound(&self, side: &str, op: CompareOp, value: ValueRef<'_>) -> Document {
        let mut comparison = DocumentBuilder::new();
        comparison.append_ref(op.expr_name(), value);
        let mut out = DocumentBuilder::new();
        out.append(
            &format!("control.{side}.{}", self.path),
            comparison.finish(),
        );
        out.finish()
    }

    fn exists(&self) -> Document {
        let side = |side: &str| {
            let mut out = DocumentBuilder::new();
            let path = format!("control.{side}.{}", self.path);
            out.append(&path, doc! { "$exists": true });
            Value::Document(out.finish())
        };
        doc! { "$and": vec![side("min"), side("max")] }
    }

    fn any_of(&self, values: ValueRef<'_>) -> Result<Document> {
        let ValueRef::Array(values) = values else {
            return Err(Error::bad_value("$in needs an array"));
        };
        let mut arms = Vec::new();
        for value in values.iter() {
            if matches!(value, ValueRef::Regex { .. }) {
                return Err(unsupported("a regular expression in $in"));
            }
            let mut clauses = Vec::new();
            self.compare(CompareOp::Eq, value, &mut clauses)?;
            arms.push(Value::Document(assemble(clauses)));
        }
        if arms.is_empty() {
            return Ok(doc! { "$alwaysFalse": 1 });
        }
        Ok(doc! { "$or": arms })
    }

    fn compare(&self, op: CompareOp, value: ValueRef<'_>, into: &mut Vec<Clause>) -> Result<()> {
        if self.is_time {
            let ValueRef::DateTime(at) = value else {
                return Err(unsupported(
                    "the time compared with something that is no date",
                ));
            };
            into.extend(self.time_bounds(op, at).into_iter().map(Clause::Time));
            return Ok(());
        }
        match value {
            ValueRef::Null | ValueRef::Undefined | ValueRef::Missing => {
                return Err(unsupported("null"));
            }
            ValueRef::Document(_) => return Err(unsupported("a comparison with a document")),
            ValueRef::Array(_) => return Err(unsupported("a comparison with an array")),
            _ => {}
        }
        into.push(Clause::Rest(match op {
            CompareOp::Gt | CompareOp::Gte => self.bound("max", op, value),
            CompareOp::Lt | CompareOp::Lte => self.bound("min", op, value),
            CompareOp::Eq => {
                let both = [
                    self.bound("min", CompareOp::Lte, value),
                    self.bound("max", CompareOp::Gte, value),
                ];
                doc! { "$and": both.map(Value::Document).to_vec() }
            }
        }));
        Ok(())
    }

    /// Bounds the time from both sides: a bucket spans at most the collection's span.
    fn time_bounds(&self, op: CompareOp, at: i64) -> Vec<Document> {
        let span = self.options.span_ms();
        let date = ValueRef::DateTime;
        let (lower, upper) = (at.saturating_sub(span), at.saturating_add(span));
        match op {
            CompareOp::Lt | CompareOp::Lte => vec![
                self.bound("min", op, date(at)),
                self.bound("max", op, date(upper)),
            ],
            CompareOp::Gt | CompareOp::Gte => vec![
                self.bound("max", op, date(at)),
                self.bound("min", op, date(lower)),
            ],
            CompareOp::Eq => vec![
                self.bound("min", CompareOp::Lte, date(at)),
                self.bound("min", CompareOp::Gte, date(lower)),
                self.bound("max", CompareOp::Gte, date(at)),
                self.bound("max", CompareOp::Lte, date(upper)),
            ],
        }
    }
}

/// Combines the conjuncts: metadata first, as the user wrote it; the rest in one `$and`, with times in an `$and` of their own.
fn assemble(clauses: Vec<Clause>) -> Document {
    let (mut meta, mut times, mut rest) = (Vec::new(), Vec::new(), Vec::new());
    for clause in clauses {
        match clause {
            Clause::Meta(clause) => meta.push(Value::Document(clause)),
            Clause::Time(clause) => times.push(Value::Document(clause)),
            Clause::Rest(clause) => rest.push(clause),
        }
    }
    if !times.is_empty() {
        rest.insert(0, doc! { "$and": times });
    }
    let rest = match rest.len() {
        0 | 1 => rest.pop(),
        _ => Some(doc! { "$and": rest.into_iter().map(Value::Document).collect::<Vec<_>>() }),
    };
    meta.extend(rest.map(Value::Document));
    match meta.as_slice() {
        [] => Document::new(),
        [Value::Document(only)] => only.clone(),
        _ => doc! { "$and": meta },
    }
}

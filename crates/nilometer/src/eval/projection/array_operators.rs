//! Array operators of `find`'s projection: `$slice`, `$elemMatch`, the positional `$`.

use nilometer_bson::{ArrayRef, DocRef, Document, DocumentBuilder, Element, ValueRef};

use crate::error::{Error, Result, location};
use crate::eval::EvalContext;
use crate::eval::matcher::MatchExpression;
use crate::eval::matcher::value_tests::{exact_i64, format_value};

/// The range of array elements to keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Number of elements to skip; from the end if negative.
    skip: i64,
    /// Maximum number of elements to keep.
    limit: i64,
}

impl Slice {
    /// Parses `n` or `[skip, limit]`.
    pub(super) fn parse(operand: ValueRef<'_>) -> Result<Self> {
        if operand.is_number() {
            let count = integer(operand)?;
            return Ok(if count < 0 {
                Self {
                    skip: count,
                    limit: i64::MAX,
                }
            } else {
                Self {
                    skip: 0,
                    limit: count,
                }
            });
        }
        let Some(pair) = operand.as_array() else {
            return Err(Error::location(
                location::PROJECTION_SLICE_OPERAND,
                "$slice only supports numbers and [skip, limit] arrays",
            ));
        };
        let (skip, limit) = (pair.get(0), pair.get(1));
        if pair.len() != 2 || !skip.is_number() || !limit.is_number() {
            return Err(Error::location(
                location::PROJECTION_SLICE_PAIR,
                "$slice array argument should be of form [skip, limit]",
            ));
        }
        let slice = Self {
            skip: integer(skip)?,
            limit: integer(limit)?,
        };
        if slice.limit <= 0 {
            return Err(Error::location(
                location::PROJECTION_SLICE_LIMIT,
                format!("$slice limit must be positive, got {}", format_value(limit)),
            ));
        }
        Ok(slice)
    }

    /// Returns the positions to keep of an array of `length` elements.
    fn range(self, length: usize) -> std::ops::Range<usize> {
        let length = i64::try_from(length).unwrap_or(i64::MAX);
        let start = if self.skip < 0 {
            length.saturating_add(self.skip).max(0)
        } else {
            self.skip.min(length)
        };
        let end = start.saturating_add(self.limit).min(length);
        usize::try_from(start).unwrap_or(0)..usize::try_from(end).unwrap_or(0)
    }

    /// Writes the element, sliced if it is an array.
    pub(super) fn write(self, element: Element<'_>, out: &mut DocumentBuilder) {
        let ValueRef::Array(array) = element.value() else {
            out.append_element(element);
            return;
        };
        let range = self.range(array.len());
        out.begin_array(element.name());
        let kept = array.iter().skip(range.start).take(range.len());
        for (at, value) in kept.enumerate() {
            out.append_indexed(at, value);
        }
        out.end();
    }
}

/// Converts to an integer; fractions are truncated, values out of range are clamped.
fn integer(value: ValueRef<'_>) -> Result<i64> {
    if let Some(whole) = exact_i64(value) {
        return Ok(whole);
    }
    match nilometer_bson::number::Number::of(value) {
        Some(number) if !number.is_nan() => Ok(number.to_f64() as i64),
        _ => Err(Error::location(
            location::PROJECTION_SLICE_OPERAND,
            "$slice only supports numbers and [skip, limit] arrays",
        )),
    }
}

/// Writes an array with the first element of the array `name` that passes; nothing if it is not an
/// array or no element passes.
pub(super) fn write_elem_match(
    name: &str,
    filter: &MatchExpression,
    root: DocRef<'_>,
    ctx: &EvalContext<'_>,
    out: &mut DocumentBuilder,
) -> Result<()> {
    let ValueRef::Array(array) = root.get(name) else {
        return Ok(());
    };
    if let (true, Some(at)) = filter.matches_with_position(root, ctx)? {
        out.begin_array(name);
        out.append_indexed(0, array.get(at));
        out.end();
    }
    Ok(())
}

/// Reduces the first array along `path` to the element that matched.
pub(super) fn apply_positional(
    doc: DocRef<'_>,
    path: &[String],
    position: Option<usize>,
) -> Result<Document> {
    let mut out = DocumentBuilder::with_capacity(doc.as_bytes().len());
    write_positional(doc, path, position, &mut out)?;
    Ok(out.finish())
}

fn write_positional(
    doc: DocRef<'_>,
    path: &[String],
    position: Option<usize>,
    out: &mut DocumentBuilder,
) -> Result<()> {
    let (name, rest) = match path.split_first() {
        Some((name, rest)) => (name.as_str(), rest),
        None => ("", path),
    };
    for element in doc {
        if element.name() != name {
            out.append_element(element);
            continue;
        }
        match element.value() {
            ValueRef::Array(array) => {
                out.begin_array(name);
                out.append_indexed(0, matched_element(array, position)?);
                out.end();
            }
            ValueRef::Document(inner) if !rest.is_empty() => {
                out.begin_document(name);
                write_positional(inner, rest, position, out)?;
                out.end();
            }
            _ => {
                out.append_element(element);
            }
        }
    }
    Ok(())
}

fn matched_element<'a>(array: ArrayRef<'a>, position: Option<usize>) -> Result<ValueRef<'a>> {
    let position = position.ok_or_else(|| {
        Error::location(
            location::POSITIONAL_NO_MATCH,
            "positional operator '.$' couldn't find a matching element in the array",
        )
    })?;
    match array.get(position) {
        ValueRef::Missing => Err(Error::location(
            location::POSITIONAL_OTHER_ARRAY,
            "positional operator '.$' element mismatch",
        )),
        value => Ok(value),
    }
}

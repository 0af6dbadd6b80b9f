//! Decoding of one path of a column of objects.
//!
//! An interleaved section has a stream for each scalar of its objects, so the values of a path are decoded alone and no object is
//! built. Objects outside sections are decoded and searched.

use super::blocks::{PieceAt, Survey, decode_run, walk_section};
use super::error::ColumnError;
use super::interleaved::{PathPlace, Reference};
use super::pieces::{Piece, Pieces};
use super::reference_decoder::Budget;
use crate::block::{BlockData, ColumnBlock, ColumnBlockBuilder};
use crate::value::{Value, ValueRef};

/// Decodes the values at a path below the values of a column, which has at most `max_values`; a value that has no such field is
/// missing.
///
/// Returns `None` if they must be found in whole values: there is an array on the way, or the path leads to objects or arrays.
///
/// ```
/// use nilometer_bson::column::{ColumnBuilder, decode_path};
/// use nilometer_bson::{Value, ValueRef, doc};
///
/// let mut builder = ColumnBuilder::new();
/// for number in [7, 8] {
///     let object = doc! {"a": doc! {"b": number}};
///     builder.append(ValueRef::Document(object.as_ref()))?;
/// }
/// let block = decode_path(&builder.finish(), 2, "a.b")?.expect("one stream");
/// assert_eq!(block.as_i32(), Some(&[7, 8][..]));
/// # Ok::<(), nilometer_bson::column::ColumnError>(())
/// ```
pub fn decode_path(
    bytes: &[u8],
    max_values: usize,
    path: &str,
) -> Result<Option<ColumnBlock>, ColumnError> {
    let mut budget = Budget::new(max_values).same_values_budget();
    let mut pieces = Pieces::new(bytes);
    let mut parts = Vec::new();
    let mut run: Vec<PieceAt<'_>> = Vec::new();
    loop {
        let offset = pieces.offset();
        let piece = pieces.next()?;
        if !matches!(piece, Piece::End | Piece::Section { .. }) {
            if run.is_empty() && !parts.is_empty() && matches!(piece, Piece::Block { .. }) {
                // It continues the last object of a section.
                return Ok(None);
            }
            run.push((offset, piece));
            budget.same_values_budget().take_values(run.len())?;
            continue;
        }
        if !run.is_empty() {
            let survey = Survey::of(&run, &mut budget)?;
            let block = decode_run(run.iter().copied(), None, &survey, &mut budget)?;
            match values_at_path(&block, path) {
                Some(found) => parts.push(found),
                None => return Ok(None),
            }
            run.clear();
        }
        let Piece::Section { kind, reference } = piece else {
            pieces.finish()?;
            return Ok(Some(joined(parts)));
        };
        let reference = Reference::new(kind, reference, offset, &mut budget)?;
        match decode_stream(&reference, offset, &mut pieces, &mut budget, path)? {
            Some(found) => parts.push(found),
            None => return Ok(None),
        }
    }
}

/// Decodes the stream of a path in a section.
fn decode_stream<'a>(
    reference: &Reference<'a>,
    start: usize,
    pieces: &mut Pieces<'a>,
    budget: &mut Budget,
    path: &str,
) -> Result<Option<ColumnBlock>, ColumnError> {
    let wanted = match reference.find(path) {
        PathPlace::Leaf(at) => Some(at),
        PathPlace::Nowhere => None,
        PathPlace::InWhole => return Ok(None),
    };
    let mut stream = Vec::new();
    let give = |at: usize, piece: PieceAt<'a>| {
        if Some(at) == wanted {
            stream.push(piece);
        }
    };
    let streams = reference.leaves().count();
    let count = walk_section(streams, start, pieces, budget, give)?;
    let Some(leaf) = wanted.and_then(|at| reference.leaves().nth(at)) else {
        return Ok(Some(ColumnBlock::missing(count)));
    };
    let survey = Survey::of(&stream, &mut budget.same_values_budget())?;
    let block = decode_run(stream.iter().copied(), Some(leaf), &survey, budget)?;
    // A stream may have values of other types than the reference.
    Ok(Some(block).filter(has_scalars))
}

fn has_scalars(block: &ColumnBlock) -> bool {
    let is_scalar = |value| !matches!(value, ValueRef::Document(_) | ValueRef::Array(_));
    match block.data() {
        BlockData::Constant(value) => is_scalar(value.as_ref()),
        BlockData::Dictionary { values, .. } => values.iter().all(is_scalar),
        BlockData::Mixed(values) => values.iter().map(Value::as_ref).all(is_scalar),
        _ => true,
    }
}

/// Returns the values at a path below those of a block, as [`decode_path`] does.
pub fn values_at_path(block: &ColumnBlock, path: &str) -> Option<ColumnBlock> {
    let mut found = ColumnBlockBuilder::new();
    for value in block.iter() {
        found.push(scalar_at_path(value, path)?);
    }
    Some(found.finish())
}

/// Returns the value at a path below another, missing if there is none. `None` if there is an array on the way, or the path leads to
/// an object or array.
pub fn scalar_at_path<'v>(value: ValueRef<'v>, path: &str) -> Option<ValueRef<'v>> {
    let mut value = value;
    for name in path.split('.') {
        value = match value {
            ValueRef::Document(fields) => fields.get(name),
            ValueRef::Array(_) => return None,
            _ => ValueRef::Missing,
        };
    }
    let is_scalar = !matches!(value, ValueRef::Document(_) | ValueRef::Array(_));
    is_scalar.then_some(value)
}

fn joined(mut parts: Vec<ColumnBlock>) -> ColumnBlock {
    if parts.len() == 1
        && let Some(only) = parts.pop()
    {
        return only;
    }
    let mut all = ColumnBlockBuilder::new();
    for part in &parts {
        all.append(part, 0..part.len());
    }
    all.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::column::{ColumnBuilder, decode_values};
    use crate::{array, doc};

    /// A simple generator of numbers below `n`.
    fn draw(state: &mut u64, n: u64) -> u64 {
        *state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (*state >> 33) % n
    }

    fn scalar(state: &mut u64, kinds: u64) -> Value {
        match draw(state, kinds) {
            0 | 1 => Value::Int32(draw(state, 50) as i32),
            2 => ["a", "b", "a longer text than sixteen bytes"][draw(state, 3) as usize].into(),
            3 => Value::Missing,
            4 => Value::Null,
            5 => (draw(state, 9) as f64 / 4.0).into(),
            6 => doc! {}.into(),
            _ => array![1, doc! {"c": 1}],
        }
    }

    fn value(state: &mut u64, kinds: u64) -> Value {
        match draw(state, 4 * kinds) {
            0 => Value::Missing,
            1 if kinds > 3 => scalar(state, kinds),
            2 if kinds > 5 => doc! {"b": 1, "a": 2}.into(),
            _ => {
                let inner = doc! {"c": scalar(state, kinds), "d": scalar(state, kinds)};
                doc! {"a": scalar(state, kinds), "b": inner, "e": scalar(state, kinds)}.into()
            }
        }
    }

    fn naive(value: &Value, path: &str) -> Value {
        let mut value = value.clone();
        for name in path.split('.') {
            value = match value {
                Value::Document(fields) => fields.get(name).to_value(),
                Value::Array(_) => panic!("an array on the way"),
                _ => Value::Missing,
            };
        }
        value
    }

    #[test]
    fn a_path_has_the_values_that_are_in_the_objects() {
        let (mut decoded, mut in_whole) = (0, 0);
        for seed in 0..3000_u64 {
            let mut state = seed;
            let kinds = 1 + draw(&mut state, 8);
            let count = 1 + draw(&mut state, 40) as usize;
            let mut builder = ColumnBuilder::new();
            let mut last = Value::Missing;
            for _ in 0..count {
                if draw(&mut state, 4) > 0 {
                    last = value(&mut state, kinds);
                }
                match &last {
                    Value::Missing => builder.skip(),
                    value => builder.append(value.as_ref()).unwrap(),
                }
            }
            let bytes = builder.finish();
            let values = decode_values(&bytes, count).unwrap();
            for path in ["a", "b", "b.c", "b.d", "e", "e.c", "b.c.d", "z", "a.b"] {
                let Some(block) = decode_path(&bytes, count, path).unwrap() else {
                    in_whole += 1;
                    continue;
                };
                decoded += 1;
                assert_eq!(block.len(), count, "seed {seed}, {path}");
                for (at, value) in values.iter().enumerate() {
                    let expected = naive(value, path);
                    let found = doc! {"": block.to_value(at)};
                    assert_eq!(found, doc! {"": expected}, "seed {seed}, {path}, {at}");
                }
            }
        }
        assert!(decoded > 10_000 && in_whole > 1000, "{decoded}, {in_whole}");
    }

    #[test]
    fn damaged_columns_are_errors_or_other_values() {
        let mut builder = ColumnBuilder::new();
        for number in 0..50 {
            let object = doc! {"a": number, "b": doc! {"c": "text"}};
            builder.append(ValueRef::Document(object.as_ref())).unwrap();
        }
        let bytes = builder.finish();
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1 << bit;
                // It must not panic, and not have more values than allowed.
                if let Ok(Some(block)) = decode_path(&damaged, 50, "b.c") {
                    assert!(block.len() <= 50);
                }
            }
            assert!(decode_path(&bytes[..at], 50, "b.c").is_err());
        }
    }
}

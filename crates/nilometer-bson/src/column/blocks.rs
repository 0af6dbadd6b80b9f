//! Fast decoding of columns directly into typed vectors.
//!
//! ```text
//! survey    one pass over pieces and selectors: how many values, of which types, do they ever change?
//!             │
//!             ├─ one literal, words of zeros        ─► Constant, nothing decoded
//!             ├─ one type with a vector form        ─► running sums (kernels), for some types mapped word by word
//!             ├─ other types                        ─► codes of a dictionary
//!             └─ several types                           ─► run after run of one type, each as above, then Mixed
//! ```
//!
//! An interleaved section is split into the pieces of its streams, each stream is decoded as a
//! separate column, and rows are assembled from those.
//!
//! [`decode_raw`](super::decode_raw) returns the same values slot by slot; tests compare both on
//! random columns.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::codes;
use super::delta::Scale;
use super::element::tag;
use super::error::ColumnError;
use super::interleaved::{Reference, push_header};
use super::numbers;
use super::pieces::{self, Piece, Pieces};
use super::reference_decoder::Budget;
use super::simple8b;
use super::stream::RawRef;
use crate::block::{BlockData, ColumnBlock};
use crate::document::{Document, decode_value, write_value};
use crate::value::{Array, ObjectId, Value};

/// A piece and its offset.
pub(crate) type PieceAt<'a> = (usize, Piece<'a>);

/// Decodes a column of at most `max_values` values into a block.
pub fn decode_block(bytes: &[u8], max_values: usize) -> Result<ColumnBlock, ColumnError> {
    let mut budget = Budget::new(max_values);
    let mut survey = Survey::default();
    let mut pieces = Pieces::new(bytes);
    loop {
        let offset = pieces.offset();
        match pieces.next()? {
            Piece::End => break,
            Piece::Section { .. } => return decode_segments(bytes, budget),
            piece => survey.add(offset, &piece, &mut budget)?,
        }
    }
    pieces.finish()?;
    decode_run(FlatPieces(Pieces::new(bytes)), None, &survey, &mut budget)
}

/// Decodes a column of at most `max_values` values into a list.
pub fn decode_values(bytes: &[u8], max_values: usize) -> Result<Vec<Value>, ColumnError> {
    decode_block(bytes, max_values).map(|block| block.to_values())
}

/// Validates a whole column; returns how many values it has, at most `max_values`.
pub fn validate(bytes: &[u8], max_values: usize) -> Result<usize, ColumnError> {
    decode_block(bytes, max_values).map(|block| block.len())
}

/// Returns the number of values of a column from its selectors alone.
pub fn count(bytes: &[u8]) -> Result<usize, ColumnError> {
    let mut pieces = Pieces::new(bytes);
    let mut total = 0_usize;
    loop {
        let offset = pieces.offset();
        let now = match pieces.next()? {
            Piece::End => break,
            Piece::Section { kind, reference } => {
                let mut budget = Budget::new(usize::MAX);
                let reference = Reference::new(kind, reference, offset, &mut budget)?;
                let streams = reference.leaves().count();
                walk_section(streams, offset, &mut pieces, &mut budget, |_, _| ())?
            }
            piece => values_in(offset, &piece)?,
        };
        total = total.saturating_add(now);
    }
    pieces.finish()?;
    Ok(total)
}

/// Returns the last value of a column, missing if there is none; decodes from the last literal on.
pub fn last(bytes: &[u8], max_values: usize) -> Result<Value, ColumnError> {
    let (kept, count) = last_restart(bytes, max_values)?;
    let tail = bytes.get(kept..).unwrap_or_default();
    let block = decode_block(tail, max_values - count)?;
    Ok(block.to_value(block.len().wrapping_sub(1)))
}

/// Returns the offset of the last literal of a column and the number of values before it: the bytes
/// from there are a column themselves. Returns the start of a column that has sections.
pub(crate) fn last_restart(bytes: &[u8], max_values: usize) -> Result<(usize, usize), ColumnError> {
    let mut pieces = Pieces::new(bytes);
    let mut budget = Budget::new(max_values);
    let (mut at, mut before, mut count) = (0, 0, 0);
    loop {
        let offset = pieces.offset();
        let piece = pieces.next()?;
        match piece {
            Piece::End => break,
            Piece::Section { .. } => return Ok((0, 0)),
            Piece::Literal(_) => (at, before) = (offset, count),
            Piece::Block { .. } => {}
        }
        let now = values_in(offset, &piece)?;
        budget.take_values(now)?;
        count += now;
    }
    pieces.finish()?;
    Ok((at, before))
}

/// The pieces of a column that was surveyed and has no sections.
#[derive(Debug, Clone)]
struct FlatPieces<'a>(Pieces<'a>);

impl<'a> Iterator for FlatPieces<'a> {
    type Item = PieceAt<'a>;

    #[inline]
    fn next(&mut self) -> Option<PieceAt<'a>> {
        let offset = self.0.offset();
        match self.0.next() {
            Ok(Piece::End) | Err(_) => None,
            Ok(piece) => Some((offset, piece)),
        }
    }
}

/// Returns the number of values of a literal or block. An error if a word has an invalid selector.
#[inline]
fn values_in(offset: usize, piece: &Piece<'_>) -> Result<usize, ColumnError> {
    let Piece::Block { words, .. } = piece else {
        return Ok(1);
    };
    let mut total = 0;
    for (at, word) in pieces::words(words).enumerate() {
        let count = simple8b::value_count(word);
        if count == 0 {
            let [selector, ..] = word.to_le_bytes();
            return Err(ColumnError::InvalidSelector {
                offset: offset + 1 + 8 * at,
                selector,
            });
        }
        total += count;
    }
    Ok(total)
}

/// Properties of a run of pieces, determined before decoding.
#[derive(Debug, Clone, Copy)]
pub(super) struct Survey {
    count: usize,
    literals: usize,
    /// The type of all literals with a vector form, if there is only one.
    vector_type: Option<u8>,
    /// Literals of two such types.
    mixed_vector_types: bool,
    /// Literals of other types.
    has_coded: bool,
    /// All words only repeat.
    repeats_only: bool,
    /// The first piece is a literal.
    starts_with_literal: bool,
}

impl Default for Survey {
    fn default() -> Self {
        Survey {
            count: 0,
            literals: 0,
            vector_type: None,
            mixed_vector_types: false,
            has_coded: false,
            repeats_only: true,
            starts_with_literal: false,
        }
    }
}

impl Survey {
    pub(super) fn of(pieces: &[PieceAt<'_>], budget: &mut Budget) -> Result<Self, ColumnError> {
        let mut survey = Survey::default();
        for (offset, piece) in pieces {
            survey.add(*offset, piece, budget)?;
        }
        Ok(survey)
    }

    #[inline]
    fn add(
        &mut self,
        offset: usize,
        piece: &Piece<'_>,
        budget: &mut Budget,
    ) -> Result<(), ColumnError> {
        let count = values_in(offset, piece)?;
        budget.take_values(count)?;
        match piece {
            Piece::Block { words, .. } => {
                let moves = |word: u64| word >> 4 != 0 && simple8b::repeat_count(word).is_none();
                if self.repeats_only && pieces::words(words).any(moves) {
                    self.repeats_only = false;
                }
            }
            Piece::Literal(value) => {
                self.starts_with_literal |= self.count == 0;
                self.literals += 1;
                self.note(value.tag);
            }
            _ => {}
        }
        self.count += count;
        Ok(())
    }

    fn note(&mut self, tag: u8) {
        if !has_vector(tag) {
            self.has_coded = true;
        } else if self.vector_type.is_none() {
            self.vector_type = Some(tag);
        } else if self.vector_type != Some(tag) {
            self.mixed_vector_types = true;
        }
    }
}

/// True if blocks have a vector form for this type.
fn has_vector(tag: u8) -> bool {
    matches!(
        tag,
        tag::INT32
            | tag::INT64
            | tag::DOUBLE
            | tag::DATE
            | tag::BOOL
            | tag::TIMESTAMP
            | tag::OBJECT_ID
    )
}

/// Decodes literals and blocks after `base`, which is not part of the result.
pub(super) fn decode_run<'a>(
    pieces: impl Iterator<Item = PieceAt<'a>> + Clone,
    base: Option<RawRef<'a>>,
    survey: &Survey,
    budget: &mut Budget,
) -> Result<ColumnBlock, ColumnError> {
    let mut survey = *survey;
    if let Some(base) = base {
        survey.note(base.tag);
    }
    let count = survey.count;
    if survey.repeats_only
        && let Some(block) = decode_repeats(pieces.clone(), base, &survey)?
    {
        return Ok(block);
    }
    let mixed = survey.mixed_vector_types || (survey.has_coded && survey.vector_type.is_some());
    let each = match survey.vector_type {
        Some(_) if !mixed => 8,
        None => 4,
        _ => size_of::<Value>(),
    };
    budget.take_bytes(count.saturating_mul(each))?;
    if mixed {
        return decode_mixed(pieces.collect(), base, budget);
    }
    let Some(tag) = survey.vector_type else {
        return codes::decode(pieces, base, count);
    };
    use numbers::{DoubleMap, IdMap, direct, mapped};
    let (data, presence) = match tag {
        tag::INT32 => {
            let low = |raw: RawRef<'_>| i32::from_le_bytes(raw.array());
            let (values, presence) = direct::<i32, false>(pieces, base, count, low)?;
            (BlockData::Int32(values), presence)
        }
        tag::INT64 => {
            let (values, presence) = direct::<i64, false>(pieces, base, count, RawRef::to_int)?;
            (BlockData::Int64(values), presence)
        }
        tag::DATE => {
            let (values, presence) = direct::<i64, true>(pieces, base, count, RawRef::to_int)?;
            (BlockData::DateTime(values), presence)
        }
        tag::TIMESTAMP => {
            let (values, presence) = mapped::<_, true>(numbers::TimestampMap, pieces, base, count)?;
            (BlockData::Timestamp(values), presence)
        }
        tag::BOOL => {
            let (values, presence) = mapped::<_, false>(numbers::BoolMap, pieces, base, count)?;
            (BlockData::Bool(values), presence)
        }
        tag::OBJECT_ID => {
            let map = IdMap(ObjectId::default());
            let (values, presence) = mapped::<_, true>(map, pieces, base, count)?;
            (BlockData::ObjectId(values), presence)
        }
        _ => {
            let map = DoubleMap(Scale::Memory);
            let (values, presence) = mapped::<_, false>(map, pieces, base, count)?;
            (BlockData::Double(values), presence)
        }
    };
    Ok(ColumnBlock::from_parts(count, data, presence))
}

/// Decodes a run in which every value repeats: one value, or all missing. `None` for other runs.
fn decode_repeats<'a>(
    pieces: impl Iterator<Item = PieceAt<'a>>,
    base: Option<RawRef<'a>>,
    survey: &Survey,
) -> Result<Option<ColumnBlock>, ColumnError> {
    let one = match base {
        None => survey.literals == 0 || (survey.literals == 1 && survey.starts_with_literal),
        Some(_) => survey.literals == 0,
    };
    if !one {
        return Ok(None);
    }
    let mut value = base;
    for (offset, piece) in pieces {
        match piece {
            Piece::Literal(literal) => value = Some(literal),
            Piece::Block { control, .. } => {
                check_scale(control, value, offset)?;
            }
            _ => {}
        }
    }
    Ok(Some(match value {
        None => ColumnBlock::missing(survey.count),
        Some(value) => ColumnBlock::constant(survey.count, to_value(value, 0)?),
    }))
}

/// Returns the scale of a block after `last`; an error if it cannot follow.
fn check_scale(control: u8, last: Option<RawRef<'_>>, offset: usize) -> Result<Scale, ColumnError> {
    let error = ColumnError::InvalidScale { offset };
    let scale = Scale::from_control(control).ok_or(error.clone())?;
    match last {
        Some(last) if last.tag == tag::DOUBLE => {
            let last = f64::from_le_bytes(last.array());
            scale.encode(last).map(|_| scale).ok_or(error)
        }
        _ if scale != Scale::Memory => Err(error),
        _ => Ok(scale),
    }
}

/// Converts a stored value to a [`Value`].
pub(crate) fn to_value(raw: RawRef<'_>, offset: usize) -> Result<Value, ColumnError> {
    let value = decode_value(raw.tag, raw.bytes).ok_or(ColumnError::InvalidUtf8 { offset })?;
    Ok(value.to_value())
}

/// Decodes a run with values of several types: splits it where the type changes.
fn decode_mixed<'a>(
    pieces: Vec<PieceAt<'a>>,
    mut base: Option<RawRef<'a>>,
    budget: &mut Budget,
) -> Result<ColumnBlock, ColumnError> {
    let mut values = Vec::new();
    let mut rest = pieces.as_slice();
    while !rest.is_empty() {
        let mut tag = base.map(|base| base.tag);
        let changes = |(_, piece): &PieceAt<'_>| match piece {
            Piece::Literal(literal) => *tag.get_or_insert(literal.tag) != literal.tag,
            _ => false,
        };
        let len = rest.iter().position(changes).unwrap_or(rest.len());
        let (run, next) = rest.split_at(len);
        if !run.is_empty() {
            let survey = Survey::of(run, &mut budget.same_values_budget())?;
            let block = decode_run(run.iter().copied(), base, &survey, budget)?;
            values.extend(block.to_values());
        }
        base = None;
        rest = next;
    }
    Ok(from_mixed(values))
}

fn from_mixed(values: Vec<Value>) -> ColumnBlock {
    let mut presence = crate::block::PresenceBuilder::new(values.len());
    let mut gaps = 0;
    for (at, value) in values.iter().enumerate() {
        if value.is_missing() {
            presence.clear_bits(at, 1);
            gaps += 1;
        }
    }
    if gaps == values.len() {
        return ColumnBlock::missing(gaps);
    }
    ColumnBlock::from_parts(values.len(), BlockData::Mixed(values), presence.finish())
}

/// Decodes a column with interleaved sections.
fn decode_segments(bytes: &[u8], mut budget: Budget) -> Result<ColumnBlock, ColumnError> {
    budget = budget.same_values_budget();
    let mut pieces = Pieces::new(bytes);
    let mut values = Vec::new();
    let mut run = Vec::new();
    let mut base = Value::Missing;
    loop {
        let offset = pieces.offset();
        let piece = pieces.next()?;
        if !matches!(piece, Piece::End | Piece::Section { .. }) {
            run.push((offset, piece));
            // Each piece holds at least one value.
            budget.same_values_budget().take_values(run.len())?;
            continue;
        }
        if !run.is_empty() {
            let survey = Survey::of(&run, &mut budget)?;
            let mut stored = Vec::new();
            write_value(&mut stored, base.as_ref());
            let last = RawRef {
                tag: base.type_code(),
                bytes: &stored,
            };
            let last = (last.tag != 0).then_some(last);
            let block = decode_run(run.iter().copied(), last, &survey, &mut budget)?;
            values.extend(block.to_values());
            run.clear();
        }
        let Piece::Section { kind, reference } = piece else {
            pieces.finish()?;
            return Ok(from_mixed(values));
        };
        let reference = Reference::new(kind, reference, offset, &mut budget)?;
        decode_section(&reference, offset, &mut pieces, &mut budget, &mut values)?;
        base = values.last().cloned().unwrap_or_default();
    }
}

/// Assigns each piece of a section to its stream: the one with the fewest values so far. Returns
/// the number of values.
pub(super) fn walk_section<'a>(
    streams: usize,
    start: usize,
    pieces: &mut Pieces<'a>,
    budget: &mut Budget,
    mut give: impl FnMut(usize, PieceAt<'a>),
) -> Result<usize, ColumnError> {
    let mut queue: BinaryHeap<_> = (0..streams).map(|at| Reverse((0_usize, at))).collect();
    loop {
        let offset = pieces.offset();
        let piece = pieces.next()?;
        let Some(Reverse((values, at))) = queue.pop() else {
            return Err(ColumnError::NoStreams { offset: start });
        };
        match piece {
            Piece::Section { .. } => return Err(ColumnError::NestedSection { offset }),
            Piece::End => {
                if at > 0 || queue.iter().any(|Reverse((other, _))| *other != values) {
                    return Err(ColumnError::UnevenStreams { offset: start });
                }
                if values == 0 {
                    return Err(ColumnError::EmptySection { offset: start });
                }
                budget.take_values(values)?;
                return Ok(values);
            }
            piece => {
                let count = values.saturating_add(values_in(offset, &piece)?);
                budget.same_values_budget().take_values(count)?;
                budget.take_bytes(size_of::<PieceAt<'_>>())?;
                give(at, (offset, piece));
                queue.push(Reverse((count, at)));
            }
        }
    }
}

fn decode_section<'a>(
    reference: &Reference<'a>,
    start: usize,
    pieces: &mut Pieces<'a>,
    budget: &mut Budget,
    values: &mut Vec<Value>,
) -> Result<(), ColumnError> {
    let leaves: Vec<RawRef<'a>> = reference.leaves().collect();
    let mut streams: Vec<Vec<PieceAt<'a>>> = vec![Vec::new(); leaves.len()];
    let give = |at: usize, piece| {
        let stream = streams.get_mut(at);
        stream.expect("one stream for each leaf").push(piece);
    };
    let count = walk_section(leaves.len(), start, pieces, budget, give)?;
    let mut blocks = Vec::with_capacity(leaves.len());
    for (stream, leaf) in streams.iter().zip(leaves) {
        let survey = Survey::of(stream, &mut budget.same_values_budget())?;
        let run = stream.iter().copied();
        blocks.push(decode_run(run, Some(leaf), &survey, budget)?);
    }
    budget.take_bytes(count.saturating_mul(size_of::<Value>()))?;
    let same = |block: &ColumnBlock| block.as_constant().is_some() && block.is_all_present();
    let all_same = blocks.iter().all(same);
    for at in 0..count {
        if all_same
            && at > 0
            && let Some(last) = values.last().cloned()
        {
            values.push(last);
            continue;
        }
        let mut row = blocks.iter();
        let document = reference.assemble(|name, out| {
            let value = row.next().map(|block| block.value(at)).unwrap_or_default();
            if !value.is_missing() {
                push_header(value.type_code(), name, out);
                write_value(out, value);
            }
        });
        let document = document.and_then(Document::from_bytes);
        budget.take_bytes(
            document
                .as_ref()
                .map_or(0, |document| document.as_bytes().len()),
        )?;
        values.push(match document {
            None => Value::Missing,
            Some(document) if reference.root() == tag::ARRAY => {
                Value::Array(Array::from_document(document))
            }
            Some(document) => Value::Document(document),
        });
    }
    Ok(())
}

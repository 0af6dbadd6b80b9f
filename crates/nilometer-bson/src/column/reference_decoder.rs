//! Reference decoder: reads a column value by value.
//!
//! [`decode_raw`] applies the format's rules one slot at a time and is the reference for the fast
//! decoder ([`blocks`](super::blocks)). It returns values as BSON bytes, so strings that are not
//! UTF-8 are preserved.
//!
//! ```text
//! word slot u ─► missing?            missing, nothing changes
//!             ─► nothing before it?  missing
//!             ─► second order?       step += u; number += step; the value of that number
//!             ─► u = 0?              the last value again
//!             ─► otherwise           number += u; the value of that number
//! ```
//!
//! A few bytes can encode thousands of values, so every decoder takes a limit on their number, and
//! stops at [`MEMORY_MAX`] bytes of values.

use std::collections::VecDeque;
use std::sync::Arc;

use super::delta::{
    Scale, is_second_order, is_wide, object_id_from_int, unzigzag, unzigzag_wide, wide_from_int,
    wide_to_int,
};
use super::element::tag;
use super::error::ColumnError;
use super::interleaved::{Reference, push_header};
use super::pieces;
use super::pieces::{Piece, Pieces};
use super::simple8b;
use super::stream::RawRef;

/// Maximum memory for the values of one column, in bytes.
pub const MEMORY_MAX: usize = 256 << 20;

/// A value in BSON encoding: its type and its value bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RawValue {
    /// BSON type; 0 for a missing value.
    pub tag: u8,
    /// The bytes after type and name.
    pub bytes: Arc<[u8]>,
}

impl RawValue {
    /// Returns a missing value.
    pub fn missing() -> Self {
        Self::default()
    }

    /// True if the value is missing.
    pub fn is_missing(&self) -> bool {
        self.tag == 0
    }

    pub(crate) fn as_raw(&self) -> RawRef<'_> {
        RawRef {
            tag: self.tag,
            bytes: &self.bytes,
        }
    }
}

impl From<RawRef<'_>> for RawValue {
    fn from(raw: RawRef<'_>) -> Self {
        RawValue {
            tag: raw.tag,
            bytes: raw.bytes.into(),
        }
    }
}

/// Remaining limits on a decoder's output.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    values_max: usize,
    values: usize,
    bytes: usize,
}

impl Budget {
    pub(crate) fn new(values_max: usize) -> Self {
        Budget {
            values_max,
            values: values_max,
            bytes: MEMORY_MAX,
        }
    }

    /// Returns a budget for the same number of values, sharing the memory limit.
    pub(crate) fn same_values_budget(self) -> Self {
        Budget {
            values: self.values_max,
            ..self
        }
    }

    pub(crate) fn take_values(&mut self, count: usize) -> Result<(), ColumnError> {
        let limit = self.values_max;
        let left = self.values.checked_sub(count);
        self.values = left.ok_or(ColumnError::TooManyValues { limit })?;
        Ok(())
    }

    pub(crate) fn take_bytes(&mut self, count: usize) -> Result<(), ColumnError> {
        let limit = MEMORY_MAX;
        let left = self.bytes.checked_sub(count);
        self.bytes = left.ok_or(ColumnError::TooLarge { limit })?;
        Ok(())
    }
}

/// Decodes a column of at most `max_values` values, slot by slot.
pub fn decode_raw(bytes: &[u8], max_values: usize) -> Result<Vec<RawValue>, ColumnError> {
    let mut budget = Budget::new(max_values);
    let mut pieces = Pieces::new(bytes);
    let mut stream = StreamReader::default();
    let mut values = Vec::new();
    loop {
        let offset = pieces.offset();
        match pieces.next()? {
            Piece::End => {
                pieces.finish()?;
                return Ok(values);
            }
            Piece::Section { kind, reference } => {
                read_section(
                    kind,
                    reference,
                    offset,
                    &mut pieces,
                    &mut budget,
                    &mut values,
                )?;
                stream = StreamReader::after_section(values.last());
            }
            piece => stream.read(&piece, offset, &mut budget, &mut |value| values.push(value))?,
        }
    }
}

/// Decodes one interleaved section by its definition: value after value, stream after stream; the
/// next piece belongs to the first stream that has no values left.
fn read_section(
    kind: u8,
    reference: &[u8],
    start: usize,
    pieces: &mut Pieces<'_>,
    budget: &mut Budget,
    values: &mut Vec<RawValue>,
) -> Result<(), ColumnError> {
    let reference = Reference::new(kind, reference, start, budget)?;
    let mut streams: Vec<_> = reference
        .leaves()
        .map(|leaf| {
            let queue = VecDeque::<RawValue>::new();
            (
                StreamReader::from_base(leaf),
                queue,
                budget.same_values_budget(),
            )
        })
        .collect();
    let mut any = false;
    loop {
        let mut row = Vec::with_capacity(streams.len());
        for at in 0..streams.len() {
            let dry = |(_, queue, _): &(_, VecDeque<_>, _)| queue.is_empty();
            if streams.get(at).is_some_and(dry) {
                let offset = pieces.offset();
                let piece = pieces.next()?;
                match piece {
                    Piece::End if at == 0 && !any => {
                        return Err(ColumnError::EmptySection { offset: start });
                    }
                    Piece::End if at == 0 && streams.iter().all(dry) => return Ok(()),
                    Piece::End => return Err(ColumnError::UnevenStreams { offset: start }),
                    Piece::Section { .. } => return Err(ColumnError::NestedSection { offset }),
                    _ => {}
                }
                let stream = streams.get_mut(at);
                let (stream, queue, limit) = stream.expect("`at` is below the number of streams");
                let before = limit.bytes;
                stream.read(&piece, offset, limit, &mut |value| queue.push_back(value))?;
                budget.take_bytes(before - limit.bytes)?;
                limit.bytes = budget.bytes;
            }
            let next = streams
                .get_mut(at)
                .and_then(|(_, queue, _)| queue.pop_front());
            row.push(next.unwrap_or_default());
        }
        any = true;
        budget.take_values(1)?;
        let mut row = row.iter();
        let value = reference.assemble(|name, out| {
            if let Some(value) = row.next().filter(|value| !value.is_missing()) {
                push_header(value.tag, name, out);
                out.extend_from_slice(&value.bytes);
            }
        });
        budget.take_bytes(value.as_ref().map_or(0, Vec::len))?;
        values.push(value.map_or_else(RawValue::missing, |bytes| RawValue {
            tag: reference.root(),
            bytes: bytes.into(),
        }));
    }
}

/// Decodes one stream.
#[derive(Debug, Clone)]
struct StreamReader {
    last: RawValue,
    number: i64,
    step: i64,
    wide_number: u128,
    /// The previous slot, which a repeat word repeats.
    repeat: Option<u128>,
    scale: Scale,
}

impl Default for StreamReader {
    fn default() -> Self {
        StreamReader {
            last: RawValue::missing(),
            number: 0,
            step: 0,
            wide_number: 0,
            repeat: Some(0),
            scale: Scale::Memory,
        }
    }
}

impl StreamReader {
    fn from_base(base: RawRef<'_>) -> Self {
        let mut stream = StreamReader::default();
        stream.rebase(base);
        stream
    }

    /// Creates a stream that can only repeat the last value of a section.
    fn after_section(last: Option<&RawValue>) -> Self {
        StreamReader {
            last: last.cloned().unwrap_or_default(),
            ..StreamReader::default()
        }
    }

    fn rebase(&mut self, value: RawRef<'_>) {
        self.number = value.to_int();
        self.step = 0;
        self.wide_number = wide_to_int(value.tag, value.bytes).unwrap_or(0);
        self.repeat = Some(0);
        self.last = value.into();
    }

    fn read(
        &mut self,
        piece: &Piece<'_>,
        offset: usize,
        budget: &mut Budget,
        out: &mut impl FnMut(RawValue),
    ) -> Result<(), ColumnError> {
        match *piece {
            Piece::Literal(value) => {
                budget.take_values(1)?;
                budget.take_bytes(value.bytes.len() + size_of::<RawValue>())?;
                self.rebase(value);
                out(self.last.clone());
            }
            Piece::Block { control, words } => {
                self.set_scale(control, offset)?;
                for (at, word) in pieces::words(words).enumerate() {
                    self.read_word(word, offset + 1 + 8 * at, budget, out)?;
                }
            }
            Piece::Section { .. } | Piece::End => {}
        }
        Ok(())
    }

    fn set_scale(&mut self, control: u8, offset: usize) -> Result<(), ColumnError> {
        let scale = Scale::from_control(control).ok_or(ColumnError::InvalidControl {
            offset,
            byte: control,
        })?;
        if self.last.tag == tag::DOUBLE {
            let last = f64::from_le_bytes(self.last.as_raw().array());
            let number = scale.encode(last);
            self.number = number.ok_or(ColumnError::InvalidScale { offset })?;
        } else if scale != Scale::Memory {
            return Err(ColumnError::InvalidScale { offset });
        }
        self.scale = scale;
        Ok(())
    }

    fn read_word(
        &mut self,
        word: u64,
        offset: usize,
        budget: &mut Budget,
        out: &mut impl FnMut(RawValue),
    ) -> Result<(), ColumnError> {
        budget.take_values(simple8b::value_count(word))?;
        if let Some(count) = simple8b::repeat_count(word) {
            for _ in 0..count {
                out(self.step(self.repeat, offset, budget)?);
            }
            return Ok(());
        }
        let [selector, ..] = word.to_le_bytes();
        let shape =
            simple8b::shape(word).ok_or(ColumnError::InvalidSelector { offset, selector })?;
        for slot in shape.slots(word, is_wide(self.last.tag)) {
            self.repeat = slot;
            out(self.step(slot, offset, budget)?);
        }
        Ok(())
    }

    fn step(
        &mut self,
        slot: Option<u128>,
        offset: usize,
        budget: &mut Budget,
    ) -> Result<RawValue, ColumnError> {
        budget.take_bytes(size_of::<RawValue>())?;
        let tag = self.last.tag;
        let Some(coded) = slot.filter(|_| tag != 0) else {
            return Ok(RawValue::missing());
        };
        if coded == 0 && !is_second_order(tag) {
            return Ok(self.last.clone());
        }
        let bytes = if is_wide(tag) {
            self.wide_step(coded, offset)?
        } else {
            #[expect(clippy::cast_possible_truncation, reason = "narrow slots have 64 bits")]
            self.narrow_step(unzigzag(coded as u64), offset)?
        };
        budget.take_bytes(bytes.len())?;
        self.last.bytes = bytes.into();
        Ok(self.last.clone())
    }

    fn wide_step(&mut self, coded: u128, offset: usize) -> Result<Vec<u8>, ColumnError> {
        let tag = self.last.tag;
        if tag == tag::BINARY && self.last.bytes.len() > 5 + 16 {
            return Err(ColumnError::InvalidDelta { offset, tag });
        }
        let delta = unzigzag_wide(coded).cast_unsigned();
        self.wide_number = self.wide_number.wrapping_add(delta);
        let mut bytes = Vec::new();
        wide_from_int(tag, self.wide_number, &self.last.bytes, &mut bytes);
        Ok(bytes)
    }

    fn narrow_step(&mut self, delta: i64, offset: usize) -> Result<Vec<u8>, ColumnError> {
        let tag = self.last.tag;
        if is_second_order(tag) {
            self.step = self.step.wrapping_add(delta);
            self.number = self.number.wrapping_add(self.step);
        } else {
            self.number = self.number.wrapping_add(delta);
        }
        let bytes = self.number.to_le_bytes();
        Ok(match tag {
            tag::INT64 | tag::DATE | tag::TIMESTAMP => bytes.to_vec(),
            #[expect(clippy::cast_possible_truncation, reason = "int32 sums wrap")]
            tag::INT32 => (self.number as i32).to_le_bytes().to_vec(),
            tag::BOOL => vec![u8::from(self.number != 0)],
            tag::DOUBLE => self.scale.decode(self.number).to_le_bytes().to_vec(),
            tag::OBJECT_ID => object_id_from_int(self.number, &self.last.as_raw().array()).to_vec(),
            tag => return Err(ColumnError::InvalidDelta { offset, tag }),
        })
    }
}

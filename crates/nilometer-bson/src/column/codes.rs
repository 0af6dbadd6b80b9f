//! Dictionary codes from runs of literals and blocks of types without a vector form, mainly
//! strings.
//!
//! ```text
//! words ─► 128-bit sums ─► code of that sum, from a small table ─► codes
//!                              │ not there
//!                              ▼
//!                          bytes of the value ─► dictionary
//! ```
//!
//! Columns of strings repeat few values, so almost every sum was seen before. The table is cleared
//! at each literal, since a literal may change the meaning of sums (type, size, subtype); the
//! dictionary is kept.

use super::blocks::PieceAt;
use super::delta::{is_wide, unzigzag, unzigzag_wide, wide_from_int, wide_to_int};
use super::element::tag;
use super::error::ColumnError;
use super::pieces::{self, Piece};
use super::simple8b::{self, WordShape};
use super::stream::RawRef;
use crate::block::{ColumnBlock, Interner, PresenceBuilder, dictionary};

/// Entries in the table from sums to codes.
const CACHED_SUMS_MAX: usize = 256;

/// Decodes a run of `count` values into codes.
pub(crate) fn decode<'a>(
    pieces: impl Iterator<Item = PieceAt<'a>>,
    base: Option<RawRef<'a>>,
    count: usize,
) -> Result<ColumnBlock, ColumnError> {
    let mut reader = CodeReader {
        last: base,
        number: 0,
        code: None,
        repeat: Some(0),
        seen: Vec::new(),
        interner: Interner::default(),
        codes: Vec::with_capacity(count),
        presence: PresenceBuilder::new(count),
    };
    if let Some(base) = base {
        reader.number = wide_to_int(base.tag, base.bytes).unwrap_or(0);
    }
    for (offset, piece) in pieces {
        match piece {
            Piece::Literal(literal) => reader.literal(literal, offset)?,
            Piece::Block { control, words } => {
                if control & 0xF0 != 0x80 {
                    return Err(ColumnError::InvalidScale { offset });
                }
                for (at, word) in pieces::words(words).enumerate() {
                    reader.word(word, offset + 1 + 8 * at)?;
                }
            }
            _ => {}
        }
    }
    Ok(reader.finish(count))
}

/// A sum and its code.
type CachedCode = Option<(u128, u32)>;

struct CodeReader<'a> {
    /// The last literal, which defines the meaning of sums.
    last: Option<RawRef<'a>>,
    number: u128,
    /// Code of the last value, once it was needed.
    code: Option<u32>,
    repeat: Option<u128>,
    seen: Vec<CachedCode>,
    interner: Interner,
    codes: Vec<u32>,
    presence: PresenceBuilder,
}

impl<'a> CodeReader<'a> {
    fn literal(&mut self, literal: RawRef<'a>, offset: usize) -> Result<(), ColumnError> {
        self.last = Some(literal);
        self.number = wide_to_int(literal.tag, literal.bytes).unwrap_or(0);
        self.repeat = Some(0);
        self.seen.clear();
        self.code = None;
        let code = self.last_code(offset)?;
        self.codes.push(code);
        Ok(())
    }

    /// Returns the code of the last value; that of a literal or base is determined on first use.
    fn last_code(&mut self, offset: usize) -> Result<u32, ColumnError> {
        match (self.code, self.last) {
            (Some(code), _) => Ok(code),
            (None, Some(last)) => {
                let code = self.interner.code_of_bytes(last.tag, last.bytes);
                let code = code.ok_or(ColumnError::InvalidUtf8 { offset })?;
                self.code = Some(code);
                Ok(code)
            }
            (None, None) => Ok(0),
        }
    }

    fn word(&mut self, word: u64, offset: usize) -> Result<(), ColumnError> {
        let Some(last) = self.last else {
            return self.fill_missing(simple8b::value_count(word));
        };
        if let Some(count) = simple8b::repeat_count(word) {
            return match self.repeat {
                None => self.fill_missing(count),
                Some(0) => self.fill(count, offset),
                Some(coded) => (0..count).try_for_each(|_| self.step(coded, last, offset)),
            };
        }
        if word >> 4 == 0 {
            self.repeat = Some(0);
            return self.fill(simple8b::value_count(word), offset);
        }
        let Some(shape) = simple8b::shape(word) else {
            return Ok(());
        };
        if shape.count_bits == 0 {
            return self.plain_word(word, shape, last, offset);
        }
        for slot in shape.slots(word, is_wide(last.tag)) {
            self.repeat = slot;
            match slot {
                None => self.fill_missing(1)?,
                Some(coded) => self.step(coded, last, offset)?,
            }
        }
        Ok(())
    }

    /// Fast path of [`word`](Self::word) for slots of at most 60 bits.
    fn plain_word(
        &mut self,
        word: u64,
        shape: WordShape,
        last: RawRef<'_>,
        offset: usize,
    ) -> Result<(), ColumnError> {
        let mask = u64::MAX >> (64 - u32::from(shape.bits));
        let mut rest = word >> shape.start;
        let mut code = self.last_code(offset)?;
        let mut slot = 0;
        for _ in 0..shape.slots {
            slot = rest & mask;
            rest >>= shape.bits;
            if slot == mask {
                self.fill_missing(1)?;
                continue;
            }
            if slot != 0 {
                let delta = i128::from(unzigzag(slot)).cast_unsigned();
                self.number = self.number.wrapping_add(delta);
                let place = cache_slot(self.number);
                code = match self.seen.get(place) {
                    Some(Some((number, code))) if *number == self.number => *code,
                    _ => self.code_of_number(last, place, offset)?,
                };
            }
            self.codes.push(code);
        }
        self.code = Some(code);
        self.repeat = (slot != mask).then_some(u128::from(slot));
        Ok(())
    }

    fn fill(&mut self, count: usize, offset: usize) -> Result<(), ColumnError> {
        let code = self.last_code(offset)?;
        self.codes.extend(std::iter::repeat_n(code, count));
        Ok(())
    }

    fn fill_missing(&mut self, count: usize) -> Result<(), ColumnError> {
        self.presence.clear_range(self.codes.len(), count);
        self.codes.extend(std::iter::repeat_n(0, count));
        Ok(())
    }

    #[inline]
    fn step(&mut self, coded: u128, last: RawRef<'_>, offset: usize) -> Result<(), ColumnError> {
        let code = if coded == 0 {
            self.last_code(offset)?
        } else {
            let delta = unzigzag_wide(coded).cast_unsigned();
            self.number = self.number.wrapping_add(delta);
            let slot = cache_slot(self.number);
            match self.seen.get(slot) {
                Some(Some((number, code))) if *number == self.number => *code,
                _ => self.code_of_number(last, slot, offset)?,
            }
        };
        self.code = Some(code);
        self.codes.push(code);
        Ok(())
    }

    #[cold]
    fn code_of_number(
        &mut self,
        last: RawRef<'_>,
        slot: usize,
        offset: usize,
    ) -> Result<u32, ColumnError> {
        let tag = last.tag;
        let too_long = tag == tag::BINARY && last.bytes.len() > 5 + 16;
        if !is_wide(tag) || too_long {
            return Err(ColumnError::InvalidDelta { offset, tag });
        }
        let mut bytes = Vec::new();
        wide_from_int(tag, self.number, last.bytes, &mut bytes);
        let code = self.interner.code_of_bytes(tag, &bytes);
        let code = code.ok_or(ColumnError::InvalidUtf8 { offset })?;
        if self.seen.is_empty() {
            self.seen.resize(CACHED_SUMS_MAX, None);
        }
        let cached = self.seen.get_mut(slot);
        *cached.expect("a slot is within the table") = Some((self.number, code));
        Ok(code)
    }

    fn finish(self, count: usize) -> ColumnBlock {
        let presence = self.presence.finish();
        ColumnBlock::from_parts(count, dictionary(self.codes, self.interner), presence)
    }
}

/// Returns the table index of a sum.
#[expect(clippy::cast_possible_truncation, reason = "a hash")]
fn cache_slot(number: u128) -> usize {
    let folded = (number as u64) ^ ((number >> 64) as u64).rotate_left(32);
    (folded.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as usize
}

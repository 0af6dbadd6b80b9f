//! Encoding of one stream of values: literals, deltas, control bytes, and the scale of doubles.
//!
//! A column without objects is one stream; an interleaved section has one for each leaf of its reference.
//!
//! ```text
//! append(value) ── same type, delta fits a word ──► WordBuilder ──► Blocks: control byte, words
//!        │ no
//!        └──► flush, literal ──────────────────────────────────────► Blocks: type, 00, value bytes
//! ```
//!
//! Doubles are stored as integers at a decimal scale, which may change between words: it is raised
//! when a value needs more decimals, and after every word the encoder checks whether the pending
//! values fit a lower scale. Both re-encode the pending values, starting from the value at the end
//! of the last word (`edge`).

use super::delta::{
    Scale, is_wide, object_id_process, object_id_to_int, text_to_int, unzigzag, wide_to_int,
    zigzag, zigzag_wide,
};
use super::element::tag;
use super::words::{Unsigned, WordBuilder, WordCounter, WordSink};

/// No control byte is open.
const CLOSED: usize = usize::MAX;

/// The bytes of a stream, with the control byte that words are added to.
#[derive(Debug, Clone)]
pub(crate) struct Blocks {
    pub(crate) bytes: Vec<u8>,
    /// Offset of the control byte that can take more words, or [`CLOSED`].
    open: usize,
    /// High nibble of the control byte for new words.
    nibble: u8,
}

impl Default for Blocks {
    fn default() -> Self {
        Blocks {
            bytes: Vec::new(),
            open: CLOSED,
            nibble: Scale::Memory.nibble(),
        }
    }
}

impl WordSink for Blocks {
    #[inline]
    fn word(&mut self, word: u64) {
        match self.bytes.get_mut(self.open) {
            Some(control) if *control & 0xF0 == self.nibble => {
                *control += 1;
                if *control & 0x0F == 0x0F {
                    self.open = CLOSED;
                }
            }
            _ => {
                self.open = self.bytes.len();
                self.bytes.push(self.nibble);
            }
        }
        self.bytes.extend_from_slice(&word.to_le_bytes());
    }
}

impl Blocks {
    /// Creates the blocks that follow `bytes`.
    pub(crate) fn after(bytes: Vec<u8>) -> Self {
        Blocks {
            bytes,
            ..Blocks::default()
        }
    }

    /// Sets the scale nibble for the words that follow.
    pub(crate) fn set_nibble(&mut self, nibble: u8) {
        self.nibble = nibble;
    }

    fn close(&mut self) {
        self.open = CLOSED;
    }

    /// Returns the offset of the open control byte.
    pub(crate) fn open(&self) -> Option<usize> {
        (self.open != CLOSED).then_some(self.open)
    }
}

/// A value in BSON encoding: type and value bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RawRef<'a> {
    pub(crate) tag: u8,
    pub(crate) bytes: &'a [u8],
}

impl<'a> RawRef<'a> {
    /// Returns the leading bytes as an array, padded with zeros if a malformed value has fewer.
    pub(crate) fn array<const N: usize>(self) -> [u8; N] {
        self.bytes.first_chunk().copied().unwrap_or([0; N])
    }

    /// Returns the integer a 64-bit stream starts from at this value; 0 if it has none. Doubles:
    /// their bits.
    pub(crate) fn to_int(self) -> i64 {
        match self.tag {
            tag::INT32 => i64::from(i32::from_le_bytes(self.array())),
            tag::BOOL => i64::from(self.array::<1>() != [0]),
            tag::OBJECT_ID => object_id_to_int(&self.array()),
            tag::DOUBLE | tag::DATE | tag::TIMESTAMP | tag::INT64 => {
                i64::from_le_bytes(self.array())
            }
            _ => 0,
        }
    }
}

/// Builds the bytes of one stream. See the module.
#[derive(Debug, Clone, Default)]
pub(crate) struct StreamEncoder {
    pub(crate) blocks: Blocks,
    /// Type of the last present value; 0 before the first.
    tag: u8,
    narrow: WordBuilder<u64>,
    wide: WordBuilder<u128>,
    /// The last value as an integer, for 64-bit types. Doubles: at `scale`.
    number: i64,
    /// The last delta, for dates, timestamps and ObjectIds.
    delta: i64,
    /// The last value of a double stream.
    double: f64,
    /// The value at the end of the last word or literal, at `scale`.
    edge: i64,
    scale: Scale,
    /// The last literal of a stream of ObjectIds.
    id: [u8; 12],
    /// The last value as an integer, for 128-bit types that have one.
    wide_number: Option<u128>,
    /// Bytes of the last value, for types that are not just a number. Text with an integer form is
    /// not kept.
    bytes: Vec<u8>,
}

impl StreamEncoder {
    /// Creates a stream that continues from `base` as if that had been its last literal, without
    /// writing it.
    pub(crate) fn from_base(base: RawRef<'_>) -> Self {
        let mut stream = StreamEncoder::default();
        stream.rebase(base);
        stream
    }

    /// Returns the approximate number of bytes, including those still to be written.
    pub(crate) fn size_bytes(&self) -> usize {
        self.blocks.bytes.len() + self.narrow.pending_bytes() + self.wide.pending_bytes()
    }

    /// Appends a value of any type.
    pub(crate) fn append(&mut self, value: RawRef<'_>) {
        match value.tag {
            tag::INT32 | tag::INT64 | tag::BOOL => self.append_int(value.tag, value.to_int()),
            tag::DATE | tag::TIMESTAMP => self.append_time(value.tag, value.to_int()),
            tag::DOUBLE => self.append_double(f64::from_le_bytes(value.array())),
            tag::OBJECT_ID => self.append_object_id(&value.array()),
            tag::STRING | tag::CODE => {
                let text = value.bytes.get(4..value.bytes.len().saturating_sub(1));
                self.append_text(value.tag, text.unwrap_or_default());
            }
            _ => self.append_bytes(value),
        }
    }

    /// Appends an int32, int64 or bool.
    #[inline]
    pub(crate) fn append_int(&mut self, tag: u8, number: i64) {
        if self.tag == tag {
            let coded = zigzag(number.wrapping_sub(self.number));
            self.number = number;
            if self.narrow.append(coded, &mut self.blocks).is_ok() {
                return;
            }
        }
        self.number_literal(tag, number);
    }

    /// Appends a date or timestamp.
    #[inline]
    pub(crate) fn append_time(&mut self, tag: u8, number: i64) {
        if self.tag == tag && self.append_step(number) {
            return;
        }
        self.number_literal(tag, number);
    }

    /// Appends a second-order difference.
    #[inline]
    fn append_step(&mut self, number: i64) -> bool {
        let delta = number.wrapping_sub(self.number);
        let coded = zigzag(delta.wrapping_sub(self.delta));
        self.delta = delta;
        self.number = number;
        self.narrow.append(coded, &mut self.blocks).is_ok()
    }

    /// Appends an ObjectId.
    #[inline]
    pub(crate) fn append_object_id(&mut self, id: &[u8; 12]) {
        let same_process = object_id_process(&self.id) == object_id_process(id);
        if self.tag == tag::OBJECT_ID && same_process && self.append_step(object_id_to_int(id)) {
            return;
        }
        self.literal(RawRef {
            tag: tag::OBJECT_ID,
            bytes: id,
        });
    }

    /// Appends a double.
    #[inline]
    pub(crate) fn append_double(&mut self, value: f64) {
        if self.tag == tag::DOUBLE {
            let stored = if value.to_bits() == self.double.to_bits() {
                let before = self.blocks.bytes.len();
                let stored = self.narrow.append(0, &mut self.blocks).is_ok();
                if self.blocks.bytes.len() != before {
                    self.find_edge();
                }
                stored
            } else {
                self.append_double_delta(value)
            };
            self.double = value;
            if stored {
                return;
            }
        }
        self.literal(RawRef {
            tag: tag::DOUBLE,
            bytes: &value.to_le_bytes(),
        });
    }

    /// Appends any other value: by its 128-bit integer if it has one, else only as a repeat.
    fn append_bytes(&mut self, value: RawRef<'_>) {
        if self.tag != value.tag || !self.append_bytes_delta(value) {
            self.literal(value);
        }
    }

    /// Appends a string or code.
    pub(crate) fn append_text(&mut self, tag: u8, text: &[u8]) {
        let stored = self.tag == tag
            && match (text_to_int(text), self.wide_number) {
                (Some(number), Some(last)) => {
                    self.wide_number = Some(number);
                    self.append_wide(number.wrapping_sub(last))
                }
                // After text without an integer form the delta counts from 0, but 0 itself would
                // mean "repeat".
                (Some(0), None) => false,
                (Some(number), None) => {
                    self.wide_number = Some(number);
                    self.append_wide(number)
                }
                (None, None) => {
                    let last = self.bytes.get(4..self.bytes.len().saturating_sub(1));
                    last == Some(text) && self.append_wide(0)
                }
                (None, Some(_)) => false,
            };
        if !stored {
            let mut bytes = Vec::with_capacity(text.len() + 5);
            bytes.extend_from_slice(&(text.len() as u32 + 1).to_le_bytes());
            bytes.extend_from_slice(text);
            bytes.push(0);
            self.literal(RawRef { tag, bytes: &bytes });
        }
    }

    #[inline]
    fn append_wide(&mut self, delta: u128) -> bool {
        let coded = zigzag_wide(delta.cast_signed());
        self.wide.append(coded, &mut self.blocks).is_ok()
    }

    fn append_bytes_delta(&mut self, value: RawRef<'_>) -> bool {
        let wide = is_wide(value.tag);
        if value.bytes == self.bytes {
            return if wide {
                self.wide.append(0, &mut self.blocks).is_ok()
            } else {
                self.narrow.append(0, &mut self.blocks).is_ok()
            };
        }
        if !wide {
            return false;
        }
        // Size and subtype of binary data are not part of the integer.
        if value.tag == tag::BINARY
            && (value.bytes.len() != self.bytes.len() || value.bytes.get(4) != self.bytes.get(4))
        {
            return false;
        }
        // Both have integer forms, or the literal had none and only repeats can follow it.
        let (Some(number), Some(last)) = (wide_to_int(value.tag, value.bytes), self.wide_number)
        else {
            return false;
        };
        self.wide_number = Some(number);
        self.remember(value.bytes);
        self.append_wide(number.wrapping_sub(last))
    }

    /// Appends a missing value.
    pub(crate) fn skip(&mut self) {
        if is_wide(self.tag) {
            self.wide.skip(&mut self.blocks);
            return;
        }
        let before = self.blocks.bytes.len();
        self.narrow.skip(&mut self.blocks);
        if self.tag == tag::DOUBLE && self.blocks.bytes.len() != before {
            self.find_edge();
            if self.narrow.held().all(|value| value == u64::MISSING) {
                self.lower_scale();
            }
        }
    }

    /// Writes all pending values.
    #[inline]
    pub(crate) fn flush(&mut self) {
        if self.narrow.is_flushed() && self.wide.is_flushed() {
            return;
        }
        let before = self.blocks.bytes.len();
        self.narrow.flush(&mut self.blocks);
        self.wide.flush(&mut self.blocks);
        if self.tag == tag::DOUBLE && self.blocks.bytes.len() != before {
            self.edge = self.number;
        }
    }

    /// Flushes, ends the control block and resets the last value; the following values start like a
    /// new column.
    pub(crate) fn restart(&mut self) {
        self.flush();
        self.blocks.close();
        self.rebase(RawRef { tag: 0, bytes: &[] });
    }

    /// Returns a copy whose bytes start at `from`, which must not be after an open control byte.
    pub(crate) fn clone_from(&self, from: usize) -> Self {
        StreamEncoder {
            blocks: Blocks {
                bytes: self.blocks.bytes.get(from..).unwrap_or_default().to_vec(),
                open: self.blocks.open().map_or(CLOSED, |open| open - from),
                nibble: self.blocks.nibble,
            },
            bytes: self.bytes.clone(),
            narrow: self.narrow.clone(),
            wide: self.wide.clone(),
            ..*self
        }
    }

    fn remember(&mut self, bytes: &[u8]) {
        self.bytes.clear();
        self.bytes.extend_from_slice(bytes);
    }

    /// Writes a literal of a numeric type.
    #[cold]
    fn number_literal(&mut self, tag: u8, number: i64) {
        let bytes = number.to_le_bytes();
        let len = match tag {
            tag::INT32 => 4,
            tag::BOOL => 1,
            _ => 8,
        };
        let (bytes, _) = bytes.split_at(len);
        self.literal(RawRef { tag, bytes });
    }

    #[cold]
    fn literal(&mut self, value: RawRef<'_>) {
        self.flush();
        self.blocks.close();
        self.blocks.bytes.extend_from_slice(&[value.tag, 0]);
        self.blocks.bytes.extend_from_slice(value.bytes);
        self.rebase(value);
    }

    /// Resets all delta state to `value`.
    fn rebase(&mut self, value: RawRef<'_>) {
        self.tag = value.tag;
        self.narrow.reset();
        self.wide.reset();
        self.delta = 0;
        self.number = value.to_int();
        self.set_scale(Scale::Memory);
        if value.tag == tag::DOUBLE {
            self.double = f64::from_le_bytes(value.array());
            let (number, scale) = Scale::lowest(self.double, Scale::One);
            self.number = number;
            self.edge = number;
            self.set_scale(scale);
        } else if is_wide(value.tag) {
            self.wide_number = wide_to_int(value.tag, value.bytes);
        } else if value.tag == tag::OBJECT_ID {
            self.id = value.array();
        }
        self.remember(match value.tag {
            tag::DOUBLE | tag::INT32 | tag::INT64 | tag::BOOL | tag::DATE | tag::TIMESTAMP => &[],
            _ => value.bytes,
        });
    }

    fn set_scale(&mut self, scale: Scale) {
        self.scale = scale;
        self.blocks.nibble = scale.nibble();
    }

    /// Selects the lowest scale that holds the value at the end of the last word, which becomes the
    /// last value.
    fn lower_scale(&mut self) {
        (self.edge, self.scale) = self.scale.lowest_for(self.edge, Scale::One);
        self.number = self.edge;
        self.blocks.nibble = self.scale.nibble();
    }

    /// Computes the value at the end of the last word: the last value minus all pending deltas.
    fn find_edge(&mut self) {
        let (last, repeats, pending) = self.narrow.held_parts();
        let step = |value: u64| {
            if value == u64::MISSING {
                0
            } else {
                unzigzag(value)
            }
        };
        let repeated = step(last).wrapping_mul(repeats as i64);
        let held = pending
            .iter()
            .fold(repeated, |sum, &value| sum.wrapping_add(step(value)));
        self.edge = self.number.wrapping_sub(held);
    }

    /// Appends a double after `self.double`; changes the scale where that is shorter.
    #[inline]
    fn append_double_delta(&mut self, value: f64) -> bool {
        let number = match self.scale.encode(value) {
            Some(number) => number,
            None => match self.raise_scale(value) {
                Some(number) => number,
                None => return true,
            },
        };
        let before = self.blocks.bytes.len();
        let coded = zigzag(number.wrapping_sub(self.number));
        if self.narrow.append(coded, &mut self.blocks).is_err() {
            return false;
        }
        self.number = number;
        if self.blocks.bytes.len() != before {
            self.find_edge();
            self.rescale_held();
        }
        true
    }

    /// Finds a scale for a value the current one cannot hold. `None` if the value and all pending
    /// values were re-encoded at the new scale; otherwise flushes the pending values and returns
    /// the integer of the value.
    #[cold]
    fn raise_scale(&mut self, value: f64) -> Option<i64> {
        let (mut number, mut scale) = Scale::lowest(value, self.scale);
        if let Some((words, edge)) = self.try_rescale(number, scale) {
            self.narrow = words;
            self.number = number;
            self.edge = edge;
            self.set_scale(scale);
            return None;
        }
        self.narrow.flush(&mut self.blocks);
        self.blocks.close();
        let (mut last, last_scale) = Scale::lowest(self.double, scale);
        if last_scale != scale {
            (number, scale) = Scale::lowest(value, last_scale);
            (last, _) = Scale::lowest(self.double, scale);
        }
        self.number = last;
        self.edge = last;
        self.set_scale(scale);
        Some(number)
    }

    /// Re-encodes all pending values and one more at another scale; `None` if that fails or
    /// completes a word.
    fn try_rescale(&self, number: i64, scale: Scale) -> Option<(WordBuilder<u64>, i64)> {
        let old = self.scale;
        let mut words = WordBuilder::after(self.narrow.repeatable());
        let mut counter = WordCounter::default();
        let mut at = self.edge;
        let edge = scale.encode(old.decode(at))?;
        let mut last = edge;
        for value in self.narrow.held() {
            if value == u64::MISSING {
                words.skip(&mut counter);
            } else {
                at = at.wrapping_add(unzigzag(value));
                let rescaled = scale.encode(old.decode(at))?;
                let coded = zigzag(rescaled.wrapping_sub(last));
                words.append(coded, &mut counter).ok()?;
                last = rescaled;
            }
            if counter.0 > 0 {
                return None;
            }
        }
        let coded = zigzag(number.wrapping_sub(last));
        words.append(coded, &mut counter).ok()?;
        (counter.0 == 0).then_some((words, edge))
    }

    /// After a word: re-encodes the pending values at the lowest scale that holds them.
    fn rescale_held(&mut self) {
        let old = self.scale;
        let mut at = self.edge;
        let (edge, scale) = old.lowest_for(at, Scale::One);
        if scale == old {
            // Re-encoding would give the same words.
            return;
        }
        let held: Vec<u64> = self.narrow.held().collect();
        self.narrow = WordBuilder::after(self.narrow.repeatable());
        self.number = edge;
        self.edge = edge;
        self.double = old.decode(at);
        self.set_scale(scale);
        for value in held {
            if value == u64::MISSING {
                self.narrow.skip(&mut self.blocks);
                continue;
            }
            at = at.wrapping_add(unzigzag(value));
            let double = old.decode(at);
            if !self.append_double_delta(double) {
                self.literal(RawRef {
                    tag: tag::DOUBLE,
                    bytes: &double.to_le_bytes(),
                });
            }
            self.double = double;
        }
    }
}

//! BSONColumn: compressed values of one field (BSON binary, subtype 7).
//!
//! A time-series bucket holds one column per field of its measurements. A column has no header and
//! no count; it is a sequence of pieces and a zero byte.
//!
//! ```text
//! literal    type │ 00 │ value bytes as in any BSON element                      one value
//! block      scale nibble, words − 1 │ 1 to 16 words of 8 bytes                  one value per slot
//! section    F0, F1 or F2 │ reference document │ literals and blocks … │ 00      objects or arrays
//! end        00
//! ```
//!
//! A literal is a complete value. The words of the blocks after it hold differences (second-order
//! differences for dates, timestamps and ObjectIds), zig-zag coded and packed as Simple-8b, and
//! missing values. A change of type, or a difference that fits no word, requires a new literal.
//!
//! ```text
//! 10 00 64 00 00 00   80   0d 00 00 00 08 00 00 00   00          100, 100, 101 (int32)
//! └ literal 100 ───┘  │    └ two slots: 0, +1 ─────┘  └ end
//!                     └ one word of integers
//! ```
//!
//! Objects and arrays are split: the reference defines their shape, and each leaf is a separate
//! stream. The pieces of all streams are stored in the order in which a decoder needs them.
//!
//! Layers from the bottom: `simple8b` and `words` decode and pack words, `delta` converts values to
//! integers, `element` and `pieces` split bytes, `stream`, `objects` and `encoder` write; `blocks` reads
//! (numbers with `numbers`), and `reference_decoder` with `interleaved` is what it is tested against; `packed` stores columns in fewer bytes.
//!
//! The bytes written are those MongoDB writes for the same values, because a server that appends to
//! a stored column undoes its last flush and depends on its exact form. All columns written by
//! MongoDB since 5.2 can be read.
#![deny(clippy::indexing_slicing, clippy::unwrap_used)]
#![cfg_attr(test, allow(clippy::indexing_slicing, clippy::unwrap_used))]

mod blocks;
mod codes;
mod delta;
mod element;
mod encoder;
mod error;
mod interleaved;
mod kernels;
mod numbers;
mod objects;
mod packed;
mod paths;
mod pieces;
mod reference_decoder;
mod simple8b;
mod stream;
mod words;

pub use blocks::{count, decode_block, decode_values, last, validate};
pub use encoder::{ColumnBuilder, ColumnDiff};
pub use error::{BsonCause, ColumnError};
pub use packed::{decode_first, decode_packed, pack, pack_built, pack_numbers, unpack};
pub use paths::{decode_path, scalar_at_path, values_at_path};
pub use reference_decoder::{MEMORY_MAX, RawValue, decode_raw};

/// Access to Simple-8b words for tests.
#[doc(hidden)]
pub mod test_words {
    use super::simple8b;
    use super::words::{Unsigned, WordBuilder};

    /// Packs values into words; `None` if a value does not fit in any word.
    pub fn pack(values: impl IntoIterator<Item = Option<u128>>, wide: bool) -> Option<Vec<u64>> {
        if wide {
            return pack_as(values, |value| value);
        }
        pack_as(values, |value| u64::try_from(value).unwrap_or(u64::MAX))
    }

    fn pack_as<U: Unsigned>(
        values: impl IntoIterator<Item = Option<u128>>,
        narrow: impl Fn(u128) -> U,
    ) -> Option<Vec<u64>> {
        let mut builder = WordBuilder::<U>::default();
        let mut out = Vec::new();
        for value in values {
            match value {
                Some(value) => builder.append(narrow(value), &mut out).ok()?,
                None => builder.skip(&mut out),
            }
        }
        builder.flush(&mut out);
        Some(out)
    }

    /// Decodes the values of words; `None` if a selector is invalid.
    pub fn unpack(words: &[u64], wide: bool) -> Option<Vec<Option<u128>>> {
        let mut values = Vec::new();
        for &word in words {
            if let Some(count) = simple8b::repeat_count(word) {
                let last = values.last().copied().unwrap_or(Some(0));
                values.extend(std::iter::repeat_n(last, count));
            } else {
                values.extend(simple8b::shape(word)?.slots(word, wide));
            }
        }
        Some(values)
    }
}

//! Splitting of a column into its pieces: literals, control blocks, section starts and ends.
//!
//! All decoders use [`Pieces`], which validates framing and BSON but does not decode words.

use super::element::{self, tag};
use super::error::{BsonCause, ColumnError};
use super::stream::RawRef;

/// One piece of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Piece<'a> {
    /// One value with its type.
    Literal(RawRef<'a>),
    /// A control byte and its words, 8 bytes each.
    Block { control: u8, words: &'a [u8] },
    /// The start of an interleaved section: its kind and its reference document.
    Section { kind: u8, reference: &'a [u8] },
    /// A zero byte: the end of a section or of the column.
    End,
}

/// Kinds of interleaved sections.
pub(crate) const SECTION_LEGACY: u8 = 0xF0;
pub(crate) const SECTION_OBJECTS: u8 = 0xF1;
pub(crate) const SECTION_ARRAYS: u8 = 0xF2;

/// Iterates over the pieces.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pieces<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Pieces<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Pieces { bytes, at: 0 }
    }

    /// Returns the offset of the next piece.
    pub(crate) fn offset(&self) -> usize {
        self.at
    }

    /// Returns the bytes between two offsets.
    pub(crate) fn between(&self, from: usize, to: usize) -> &'a [u8] {
        self.bytes.get(from..to).unwrap_or_default()
    }

    /// Reads the next piece.
    #[inline]
    pub(crate) fn next(&mut self) -> Result<Piece<'a>, ColumnError> {
        let offset = self.at;
        let rest = self.bytes.get(offset..).unwrap_or_default();
        let (&byte, after) = rest
            .split_first()
            .ok_or(ColumnError::MissingEnd { offset })?;
        if let Some(bytes) = number_bytes(byte, after) {
            self.at = offset + 2 + bytes.len();
            return Ok(Piece::Literal(RawRef { tag: byte, bytes }));
        }
        let (piece, len) = match byte {
            0 => (Piece::End, 0),
            0x80..=0xDF => {
                let len = 8 * (usize::from(byte & 0x0F) + 1);
                let words = after.get(..len).ok_or(ColumnError::Truncated { offset })?;
                let block = Piece::Block {
                    control: byte,
                    words,
                };
                (block, len)
            }
            SECTION_LEGACY | SECTION_OBJECTS | SECTION_ARRAYS => {
                let len = element::document_len(after).map_err(invalid(offset))?;
                let reference = after.get(..len).unwrap_or_default();
                let section = Piece::Section {
                    kind: byte,
                    reference,
                };
                (section, len)
            }
            0x01..=0x1F | tag::MAX_KEY | tag::MIN_KEY => literal(byte, after, offset)?,
            _ => return Err(ColumnError::InvalidControl { offset, byte }),
        };
        self.at = offset + 1 + len;
        Ok(piece)
    }

    /// Checks that the end byte just read is the last byte.
    pub(crate) fn finish(&self) -> Result<(), ColumnError> {
        if self.at == self.bytes.len() {
            Ok(())
        } else {
            Err(ColumnError::TrailingBytes {
                offset: self.at - 1,
            })
        }
    }
}

/// Fast path of [`literal`]: returns the value bytes of a literal of eight bytes.
#[inline]
fn number_bytes(tag: u8, after: &[u8]) -> Option<&[u8]> {
    let eight = matches!(tag, tag::DOUBLE | tag::INT64 | tag::DATE | tag::TIMESTAMP);
    match after.split_first() {
        Some((0, value)) if eight => value.get(..8),
        _ => None,
    }
}

fn literal(tag: u8, after: &[u8], offset: usize) -> Result<(Piece<'_>, usize), ColumnError> {
    let Some((&name, value)) = after.split_first() else {
        return Err(ColumnError::Truncated { offset });
    };
    if name != 0 {
        return Err(invalid(offset)(BsonCause::NamedLiteral));
    }
    let len = element::value_len(tag, value).map_err(invalid(offset))?;
    let bytes = value.get(..len).unwrap_or_default();
    Ok((Piece::Literal(RawRef { tag, bytes }), 1 + len))
}

fn invalid(offset: usize) -> impl Fn(BsonCause) -> ColumnError {
    move |cause| match cause {
        BsonCause::Truncated => ColumnError::Truncated { offset },
        cause => ColumnError::InvalidBson { offset, cause },
    }
}

/// Returns the words of a block.
pub(crate) fn words(bytes: &[u8]) -> impl ExactSizeIterator<Item = u64> + '_ {
    let (words, _) = bytes.as_chunks::<8>();
    words.iter().map(|word| u64::from_le_bytes(*word))
}

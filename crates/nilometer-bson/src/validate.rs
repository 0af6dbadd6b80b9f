//! Validation of BSON from outside, performed once per document.
//!
//! Checks every length against the available bytes and the enclosing document, every terminator,
//! type bytes, UTF-8 of names and strings, booleans, nesting depth and total size. One pass, no
//! allocation, no recursion.
//!
//! Deliberately not checked, as in MongoDB: that names differ, that the names of array elements
//! count up, the contents of binary data.

/// Maximum nesting of documents in a message, including the outermost.
pub const DEPTH_MAX: usize = 200;
/// Maximum nesting of a stored document.
pub const STORED_DEPTH_MAX: usize = 180;
/// Maximum size of a document stored by a user.
pub const SIZE_MAX: usize = 16 * 1024 * 1024;
/// Maximum size of any document: leaves space for what the server adds to a user's document.
pub const INTERNAL_SIZE_MAX: usize = SIZE_MAX + 16 * 1024;

/// Open documents the validator can track.
const STACK: usize = 256;
/// Bytes of length and terminator.
const DOCUMENT_MIN: usize = 5;
const LENGTH_BYTES: usize = 4;

/// Limits of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum nesting including the outermost document; values above 256 mean 256.
    pub depth_max: usize,
    /// Maximum size in bytes.
    pub size_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            depth_max: DEPTH_MAX,
            size_max: INTERNAL_SIZE_MAX,
        }
    }
}

/// Why bytes are not a document, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{cause} at offset {offset}")]
pub struct BsonError {
    /// What is wrong.
    pub cause: BsonErrorCause,
    /// Byte offset in the outermost document.
    pub offset: usize,
}

/// What is wrong with a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BsonErrorCause {
    /// The bytes end before the document does.
    #[error("document is truncated")]
    Truncated,
    /// A document's length is too small, or exceeds the enclosing document.
    #[error("invalid document length {0}")]
    DocumentLength(i32),
    /// Larger than allowed.
    #[error("document of {0} bytes is too large")]
    TooLarge(usize),
    /// Nested deeper than allowed.
    #[error("document exceeds the maximum nesting depth of {0}")]
    TooDeep(usize),
    /// A document does not end with a zero byte where its length says.
    #[error("document is not terminated where its length says")]
    DocumentEnd,
    /// Bytes follow the document.
    #[error("bytes follow the document")]
    TrailingBytes,
    /// An unknown type byte.
    #[error("unknown BSON type {0:#04x}")]
    UnknownType(u8),
    /// A value runs past the end of its document.
    #[error("value runs past the end of its document")]
    ValueLength,
    /// A name or regular expression has no terminator.
    #[error("unterminated name")]
    UnterminatedName,
    /// A name or regular expression is not UTF-8.
    #[error("name is not UTF-8")]
    NameUtf8,
    /// A string's length is not positive, or does not fit.
    #[error("invalid string length {0}")]
    StringLength(i32),
    /// A string has no terminator where its length says.
    #[error("unterminated string")]
    UnterminatedString,
    /// A string is not UTF-8.
    #[error("string is not UTF-8")]
    StringUtf8,
    /// A boolean is neither 0 nor 1.
    #[error("invalid boolean {0:#04x}")]
    Bool(u8),
    /// A binary's length is negative or does not fit.
    #[error("invalid binary length {0}")]
    BinaryLength(i32),
    /// The length of code with scope does not agree with its parts.
    #[error("invalid length of code with scope")]
    CodeWithScopeLength,
}

/// Checks that `bytes` are exactly one well-formed document within the limits.
pub fn validate_document(bytes: &[u8], limits: &Limits) -> Result<(), BsonError> {
    let length = validate_prefix(bytes, limits)?;
    if length < bytes.len() {
        return Err(BsonError {
            cause: BsonErrorCause::TrailingBytes,
            offset: length,
        });
    }
    Ok(())
}

/// Checks the document at the start of `bytes` and returns its length; more bytes may follow.
pub fn validate_prefix(bytes: &[u8], limits: &Limits) -> Result<usize, BsonError> {
    let at = |cause, offset| BsonError { cause, offset };
    let declared = read_i32(bytes, 0).ok_or(at(BsonErrorCause::Truncated, bytes.len()))?;
    let length = usize::try_from(declared)
        .ok()
        .filter(|n| *n >= DOCUMENT_MIN)
        .ok_or(at(BsonErrorCause::DocumentLength(declared), 0))?;
    if length > limits.size_max {
        return Err(at(BsonErrorCause::TooLarge(length), 0));
    }
    let bytes = bytes
        .get(..length)
        .ok_or(at(BsonErrorCause::Truncated, bytes.len()))?;
    Validator {
        bytes,
        at: LENGTH_BYTES,
        end: length,
        depth: 1,
        depth_max: limits.depth_max.min(STACK),
        ends: [0; STACK],
    }
    .run()?;
    Ok(length)
}

/// Iteration over all elements. Invariant: every end on the stack lies within the one before it,
/// and the outermost within the bytes.
struct Validator<'a> {
    bytes: &'a [u8],
    at: usize,
    /// End of the innermost open document, including its terminator.
    end: usize,
    depth: usize,
    depth_max: usize,
    /// Ends of the enclosing documents.
    ends: [u32; STACK],
}

impl Validator<'_> {
    fn run(&mut self) -> Result<(), BsonError> {
        use crate::value::type_code as t;
        loop {
            let type_code = self.byte(self.at)?;
            let start = self.at;
            self.at += 1;
            if type_code == 0 {
                if self.at != self.end {
                    return Err(fault(BsonErrorCause::DocumentEnd, start));
                }
                self.depth -= 1;
                if self.depth == 0 {
                    return Ok(());
                }
                self.end = self.ends.get(self.depth).map_or(0, |end| *end as usize);
                continue;
            }
            self.c_string()?;
            match type_code {
                t::DOUBLE | t::DATE_TIME | t::TIMESTAMP | t::INT64 => self.pass(8)?,
                t::INT32 => self.pass(4)?,
                t::STRING | t::CODE | t::SYMBOL => self.string()?,
                t::DOCUMENT | t::ARRAY => self.open()?,
                t::BOOL => {
                    let value = self.byte(self.at)?;
                    if value > 1 {
                        return Err(fault(BsonErrorCause::Bool(value), self.at));
                    }
                    self.pass(1)?;
                }
                t::OBJECT_ID => self.pass(12)?,
                t::NULL | t::UNDEFINED | t::MIN_KEY | t::MAX_KEY => {}
                t::BINARY => {
                    let declared = self.i32()?;
                    let length = usize::try_from(declared)
                        .map_err(|_| fault(BsonErrorCause::BinaryLength(declared), self.at))?;
                    self.pass(LENGTH_BYTES + 1 + length)
                        .map_err(|e| fault(BsonErrorCause::BinaryLength(declared), e.offset))?;
                }
                t::DECIMAL128 => self.pass(16)?,
                t::REGEX => {
                    self.c_string()?;
                    self.c_string()?;
                }
                t::DB_POINTER => {
                    self.string()?;
                    self.pass(12)?;
                }
                t::CODE_WITH_SCOPE => self.code_with_scope()?,
                other => return Err(fault(BsonErrorCause::UnknownType(other), start)),
            }
        }
    }

    fn byte(&self, at: usize) -> Result<u8, BsonError> {
        if at >= self.end {
            return Err(fault(BsonErrorCause::DocumentEnd, at));
        }
        let byte = self.bytes.get(at).copied();
        byte.ok_or(fault(BsonErrorCause::Truncated, at))
    }

    fn i32(&self) -> Result<i32, BsonError> {
        let value = read_i32(self.bytes, self.at);
        value.ok_or(fault(BsonErrorCause::ValueLength, self.at))
    }

    /// Advances over `count` bytes, which must leave space for the document's terminator.
    fn pass(&mut self, count: usize) -> Result<(), BsonError> {
        if count >= self.end - self.at {
            return Err(fault(BsonErrorCause::ValueLength, self.at));
        }
        self.at += count;
        Ok(())
    }

    /// Advances over text up to a NUL: a name, or half of a regular expression.
    fn c_string(&mut self) -> Result<(), BsonError> {
        let start = self.at;
        let rest = self.bytes.get(start..self.end).unwrap_or(&[]);
        let (length, ascii) =
            find_nul(rest).ok_or(fault(BsonErrorCause::UnterminatedName, start))?;
        if !ascii {
            let name = rest.get(..length).unwrap_or(&[]);
            std::str::from_utf8(name)
                .map_err(|e| fault(BsonErrorCause::NameUtf8, start + e.valid_up_to()))?;
        }
        self.pass(length + 1)
            .map_err(|_| fault(BsonErrorCause::UnterminatedName, start))
    }

    /// Advances over a string with its length.
    fn string(&mut self) -> Result<(), BsonError> {
        let start = self.at;
        let declared = self.i32()?;
        let length = usize::try_from(declared)
            .ok()
            .filter(|n| *n >= 1)
            .ok_or(fault(BsonErrorCause::StringLength(declared), start))?;
        self.pass(LENGTH_BYTES + length)
            .map_err(|_| fault(BsonErrorCause::StringLength(declared), start))?;
        let content = start + LENGTH_BYTES;
        match self.bytes.get(content..self.at).unwrap_or(&[]) {
            [text @ .., 0] => match std::str::from_utf8(text) {
                Ok(_) => Ok(()),
                Err(e) => Err(fault(BsonErrorCause::StringUtf8, content + e.valid_up_to())),
            },
            _ => Err(fault(BsonErrorCause::UnterminatedString, self.at - 1)),
        }
    }

    /// Enters an embedded document or array.
    fn open(&mut self) -> Result<(), BsonError> {
        let start = self.at;
        let declared = self.i32()?;
        let length = usize::try_from(declared)
            .ok()
            .filter(|n| *n >= DOCUMENT_MIN && *n < self.end - start)
            .ok_or(fault(BsonErrorCause::DocumentLength(declared), start))?;
        if self.depth >= self.depth_max {
            return Err(fault(BsonErrorCause::TooDeep(self.depth_max), start));
        }
        // Documents are far smaller than 4 GiB.
        self.ends[self.depth] = self.end as u32;
        self.depth += 1;
        self.end = start + length;
        self.at = start + LENGTH_BYTES;
        Ok(())
    }

    /// Enters the scope of code with scope.
    fn code_with_scope(&mut self) -> Result<(), BsonError> {
        let start = self.at;
        let declared = self.i32()?;
        self.pass(LENGTH_BYTES)?;
        self.string()?;
        self.open()?;
        if usize::try_from(declared) != Ok(self.end - start) {
            return Err(fault(BsonErrorCause::CodeWithScopeLength, start));
        }
        Ok(())
    }
}

fn fault(cause: BsonErrorCause, offset: usize) -> BsonError {
    BsonError { cause, offset }
}

fn read_i32(bytes: &[u8], at: usize) -> Option<i32> {
    let four = bytes.get(at..)?.first_chunk()?;
    Some(i32::from_le_bytes(*four))
}

const LOW_BITS: u64 = 0x0101_0101_0101_0101;
const HIGH_BITS: u64 = 0x8080_8080_8080_8080;

/// Returns the position of the first NUL, and whether all bytes before it are ASCII. Names are
/// short: compares eight bytes at a time.
pub(crate) fn find_nul(bytes: &[u8]) -> Option<(usize, bool)> {
    let mut at = 0;
    let mut high = 0;
    while let Some(word) = bytes.get(at..).and_then(<[u8]>::first_chunk::<8>) {
        let word = u64::from_le_bytes(*word);
        let zeros = word.wrapping_sub(LOW_BITS) & !word & HIGH_BITS;
        if zeros != 0 {
            // Only the lowest mark is exact.
            let before = zeros.trailing_zeros() / 8;
            let mask = (1u64 << (8 * before)) - 1;
            high |= word & mask & HIGH_BITS;
            return Some((at + before as usize, high == 0));
        }
        high |= word & HIGH_BITS;
        at += 8;
    }
    for (offset, byte) in bytes.get(at..)?.iter().enumerate() {
        if *byte == 0 {
            return Some((at + offset, high == 0));
        }
        high |= u64::from(byte & 0x80);
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::strategies;
    use crate::{Document, DocumentBuilder, Value, array, doc};

    fn cause(bytes: &[u8]) -> (BsonErrorCause, usize) {
        let error = validate_document(bytes, &Limits::default()).unwrap_err();
        (error.cause, error.offset)
    }

    #[test]
    fn framing() {
        assert_eq!(cause(b""), (BsonErrorCause::Truncated, 0));
        assert_eq!(cause(b"\x05\0\0"), (BsonErrorCause::Truncated, 3));
        assert_eq!(
            cause(b"\x04\0\0\0\0"),
            (BsonErrorCause::DocumentLength(4), 0)
        );
        assert_eq!(
            cause(b"\xff\xff\xff\xff\0"),
            (BsonErrorCause::DocumentLength(-1), 0)
        );
        assert_eq!(cause(b"\x06\0\0\0\0"), (BsonErrorCause::Truncated, 5));
        assert_eq!(cause(b"\x05\0\0\0\0\0"), (BsonErrorCause::TrailingBytes, 5));
        assert_eq!(cause(b"\x06\0\0\0\0\0"), (BsonErrorCause::DocumentEnd, 4));
        assert_eq!(
            cause(b"\x05\0\0\0\x0a"),
            (BsonErrorCause::UnterminatedName, 5)
        );
        assert_eq!(
            cause(b"\x07\0\0\0\x0a\0\x0a"),
            (BsonErrorCause::UnterminatedName, 7)
        );
        assert_eq!(
            cause(b"\x07\0\0\0\x0aa\0"),
            (BsonErrorCause::UnterminatedName, 5)
        );
        assert_eq!(
            cause(b"\x08\0\0\0\x1fa\0\0"),
            (BsonErrorCause::UnknownType(0x1F), 4)
        );
        assert_eq!(
            cause(b"\x08\0\0\0\x0a\xff\0\0"),
            (BsonErrorCause::NameUtf8, 5)
        );
        assert_eq!(
            validate_prefix(b"\x05\0\0\0\0more", &Limits::default()),
            Ok(5)
        );
    }

    #[test]
    fn values() {
        let wrap = |type_code: u8, value: &[u8]| {
            let length = (value.len() + 8) as u32;
            [
                &length.to_le_bytes()[..],
                &[type_code, b'a', 0],
                value,
                &[0],
            ]
            .concat()
        };
        let cause = |type_code, value| cause(&wrap(type_code, value)).0;
        assert_eq!(cause(0x08, b"\x02"), BsonErrorCause::Bool(2));
        assert_eq!(cause(0x08, b""), BsonErrorCause::ValueLength);
        assert_eq!(cause(0x10, b"\0\0\0"), BsonErrorCause::ValueLength);
        assert_eq!(cause(0x02, b"\0\0\0\0"), BsonErrorCause::StringLength(0));
        assert_eq!(
            cause(0x02, b"\x03\0\0\0a\0"),
            BsonErrorCause::StringLength(3)
        );
        assert_eq!(
            cause(0x02, b"\x02\0\0\0ab"),
            BsonErrorCause::UnterminatedString
        );
        assert_eq!(cause(0x02, b"\x02\0\0\0\xff\0"), BsonErrorCause::StringUtf8);
        assert_eq!(
            cause(0x05, b"\xff\xff\xff\xff\0"),
            BsonErrorCause::BinaryLength(-1)
        );
        assert_eq!(
            cause(0x05, b"\x02\0\0\0\0a"),
            BsonErrorCause::BinaryLength(2)
        );
        assert_eq!(
            cause(0x03, b"\x06\0\0\0\0"),
            BsonErrorCause::DocumentLength(6)
        );
        assert_eq!(
            cause(0x03, b"\x05\0\0\0\x01"),
            BsonErrorCause::UnterminatedName
        );
        assert_eq!(cause(0x0B, b"a\0b"), BsonErrorCause::UnterminatedName);
        assert_eq!(
            cause(0x0F, b"\x10\0\0\0\x02\0\0\0a\0\x05\0\0\0\0"),
            BsonErrorCause::CodeWithScopeLength
        );
        let good = wrap(0x0F, b"\x0f\0\0\0\x02\0\0\0a\0\x05\0\0\0\0");
        assert!(validate_document(&good, &Limits::default()).is_ok());
    }

    fn nested(depth: usize) -> Document {
        let mut builder = DocumentBuilder::new();
        for level in 1..depth {
            if level % 2 == 0 {
                builder.begin_array("0");
            } else {
                builder.begin_document("0");
            }
        }
        builder.finish()
    }

    #[test]
    fn limits() {
        let check =
            |document: &Document| validate_document(document.as_bytes(), &Limits::default());
        assert_eq!(check(&nested(DEPTH_MAX)), Ok(()));
        let error = check(&nested(DEPTH_MAX + 1)).unwrap_err();
        assert_eq!(error.cause, BsonErrorCause::TooDeep(DEPTH_MAX));
        let limits = Limits {
            size_max: 12,
            ..Limits::default()
        };
        assert!(validate_document(doc! { "a": 1 }.as_bytes(), &limits).is_ok());
        let error = validate_document(doc! { "ab": 1 }.as_bytes(), &limits).unwrap_err();
        assert_eq!(error.cause, BsonErrorCause::TooLarge(13));
        let unbounded = Limits {
            depth_max: usize::MAX,
            size_max: usize::MAX,
        };
        let error = validate_document(nested(1000).as_bytes(), &unbounded).unwrap_err();
        assert_eq!(error.cause, BsonErrorCause::TooDeep(STACK));
    }

    #[test]
    fn names_of_all_lengths() {
        for length in 0..40 {
            let name = "é".repeat(length / 2) + &"x".repeat(length % 2);
            let document = doc! { "first": 1 };
            let mut builder = DocumentBuilder::new();
            for element in document.iter() {
                builder.append_element(element);
            }
            builder.append(&name, array![Value::Null, 1.5]);
            let bytes = builder.finish_bytes();
            assert_eq!(validate_document(&bytes, &Limits::default()), Ok(()));
        }
    }

    /// Iterates over all elements; after validation all must be readable.
    fn count(document: crate::DocRef<'_>) -> usize {
        let mut bytes = DOCUMENT_MIN;
        for element in document {
            let value = element.value();
            assert_eq!(value.type_code(), element.type_code());
            bytes += 2 + element.name_bytes().len() + element.value_bytes().len();
            match value {
                crate::ValueRef::Document(inner) => {
                    assert_eq!(count(inner), inner.as_bytes().len())
                }
                crate::ValueRef::Array(inner) => {
                    let inner = inner.as_document();
                    assert_eq!(count(inner), inner.as_bytes().len());
                }
                crate::ValueRef::CodeWithScope { scope, .. } => {
                    assert_eq!(count(scope), scope.as_bytes().len());
                }
                _ => {}
            }
        }
        bytes
    }

    proptest! {
        #[test]
        fn built_documents_are_valid(document in strategies::document()) {
            prop_assert_eq!(validate_document(document.as_bytes(), &Limits::default()), Ok(()));
            prop_assert_eq!(count(document.as_ref()), document.as_bytes().len());
        }

        #[test]
        fn what_passes_reads_completely(
            document in strategies::document(),
            flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut bytes = document.into_bytes();
            for (at, byte) in flips {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            if validate_document(&bytes, &Limits::default()).is_ok() {
                let document = crate::DocRef::new(&bytes).unwrap();
                prop_assert_eq!(count(document), bytes.len());
            }
            let cut = cut.index(bytes.len());
            prop_assert!(validate_document(&bytes[..cut], &Limits::default()).is_err());
        }
    }
}

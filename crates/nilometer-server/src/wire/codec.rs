//! The reader of wire data: returns checked parts and never reads past the end.

use nilometer_bson::DocRef;

use super::WireError;
use crate::limits::COMMAND_BYTES_MAX;

/// Reads a byte slice from front to back.
#[derive(Clone, Debug)]
pub(super) struct WireReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> WireReader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Returns the number of bytes read.
    pub(super) fn position(&self) -> usize {
        self.at
    }

    /// Returns the number of bytes left.
    pub(super) fn left(&self) -> usize {
        self.bytes.len().saturating_sub(self.at)
    }

    /// Returns the bytes left.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or(&[])
    }

    /// Reads the next `n` bytes.
    pub(super) fn take(&mut self, n: usize, what: &'static str) -> Result<&'a [u8], WireError> {
        let end = self.at.checked_add(n).ok_or(WireError::Truncated(what))?;
        let piece = self
            .bytes
            .get(self.at..end)
            .ok_or(WireError::Truncated(what))?;
        self.at = end;
        Ok(piece)
    }

    /// Returns a reader of the next `n` bytes.
    pub(super) fn sub(
        &mut self,
        n: usize,
        what: &'static str,
    ) -> Result<WireReader<'a>, WireError> {
        self.take(n, what).map(WireReader::new)
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], WireError> {
        let piece = self.take(N, what)?;
        piece.try_into().map_err(|_| WireError::Truncated(what))
    }

    pub(super) fn u8(&mut self, what: &'static str) -> Result<u8, WireError> {
        self.array::<1>(what).map(|[byte]| byte)
    }

    pub(super) fn u32(&mut self, what: &'static str) -> Result<u32, WireError> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(super) fn i32(&mut self, what: &'static str) -> Result<i32, WireError> {
        self.array(what).map(i32::from_le_bytes)
    }

    /// Reads a length that includes its own four bytes. Returns a reader of the rest.
    pub(super) fn counted(&mut self, what: &'static str) -> Result<WireReader<'a>, WireError> {
        let count = self.i32(what)?;
        let rest = usize::try_from(count)
            .ok()
            .and_then(|n| n.checked_sub(4))
            .ok_or(WireError::Truncated(what))?;
        self.sub(rest, what)
    }

    /// Reads a NUL-terminated string.
    pub(super) fn c_string(&mut self, what: &'static str) -> Result<&'a str, WireError> {
        let length = self
            .rest()
            .iter()
            .position(|byte| *byte == 0)
            .ok_or(WireError::Text(what))?;
        let text = self.take(length, what)?;
        self.take(1, what)?;
        std::str::from_utf8(text).map_err(|_| WireError::Text(what))
    }

    /// Reads a framed document of valid size. Does not check its content.
    pub(super) fn document(&mut self, what: &'static str) -> Result<DocRef<'a>, WireError> {
        let announced = self.clone().i32(what)?;
        let length = usize::try_from(announced)
            .ok()
            .filter(|n| *n >= 5)
            .ok_or_else(|| WireError::Bson(format!("{what} has the length {announced}")))?;
        if length > COMMAND_BYTES_MAX {
            return Err(WireError::DocumentTooLarge {
                length,
                max: COMMAND_BYTES_MAX,
            });
        }
        let bytes = self.take(length, what)?;
        DocRef::new(bytes).ok_or_else(|| WireError::Bson(format!("{what} does not end with a NUL")))
    }
}

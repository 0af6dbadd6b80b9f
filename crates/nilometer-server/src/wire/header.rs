//! The 16-byte header of every message.

use super::WireError;
use super::codec::WireReader;
use crate::limits::MESSAGE_BYTES_MAX;

/// Bytes of a header.
pub const HEADER_BYTES: usize = 16;

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpCode {
    /// The answer to a legacy query.
    Reply,
    /// A legacy query; only as a handshake.
    Query,
    /// Another message, compressed.
    Compressed,
    /// A command or its answer.
    Msg,
}

impl OpCode {
    /// Returns the number on the wire.
    pub fn number(self) -> i32 {
        match self {
            Self::Reply => 1,
            Self::Query => 2004,
            Self::Compressed => 2012,
            Self::Msg => 2013,
        }
    }

    /// Returns the opcode with this number, if clients may send it.
    pub fn from_client(number: i32) -> Result<Self, WireError> {
        match number {
            2004 => Ok(Self::Query),
            2012 => Ok(Self::Compressed),
            2013 => Ok(Self::Msg),
            other => Err(WireError::OpCode(other)),
        }
    }
}

/// A header with valid length and opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Bytes of the message, header included.
    pub length: usize,
    /// Id of the message, assigned by its sender.
    pub request_id: i32,
    /// Id of the message that this one answers.
    pub response_to: i32,
    /// The kind of the message.
    pub opcode: OpCode,
}

impl Header {
    /// Parses and checks a header from a client.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Self, WireError> {
        let mut reader = WireReader::new(bytes);
        let announced = reader.i32("header")?;
        let length = usize::try_from(announced)
            .ok()
            .filter(|n| (HEADER_BYTES..=MESSAGE_BYTES_MAX).contains(n))
            .ok_or(WireError::Length {
                length: announced,
                max: MESSAGE_BYTES_MAX,
            })?;
        Ok(Self {
            length,
            request_id: reader.i32("header")?,
            response_to: reader.i32("header")?,
            opcode: OpCode::from_client(reader.i32("header")?)?,
        })
    }
}

/// Writes a header with a placeholder for the length, which [`finish`] fills in.
pub(super) fn begin(out: &mut Vec<u8>, request_id: i32, response_to: i32, opcode: OpCode) {
    for field in [0, request_id, response_to, opcode.number()] {
        out.extend_from_slice(&field.to_le_bytes());
    }
}

/// Writes the length of a message of which `out` holds all but `more` bytes.
pub(super) fn finish(out: &mut [u8], more: usize) {
    let length = u32::try_from(out.len() + more).unwrap_or(u32::MAX);
    #[expect(clippy::indexing_slicing, reason = "`begin` has written the header")]
    out[..4].copy_from_slice(&length.to_le_bytes());
}

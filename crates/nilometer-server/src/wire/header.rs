//! The sixteen bytes in front of every message.

use super::WireError;
use super::codec::WireReader;
use crate::limits::MESSAGE_BYTES_MAX;

/// Bytes of a header.
pub const HEADER_BYTES: usize = 16;

/// What kind of message follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpCode {
    /// Answer to a query of old.
    Reply,
    /// A query of old; only as a handshake.
    Query,
    /// Another message, compressed.
    Compressed,
    /// Everything else.
    Msg,
}

impl OpCode {
    /// The number on the wire.
    pub fn number(self) -> i32 {
        match self {
            Self::Reply => 1,
            Self::Query => 2004,
            Self::Compressed => 2012,
            Self::Msg => 2013,
        }
    }

    /// The opcode a client may send under this number.
    pub fn from_client(number: i32) -> Result<Self, WireError> {
        match number {
            2004 => Ok(Self::Query),
            2012 => Ok(Self::Compressed),
            2013 => Ok(Self::Msg),
            other => Err(WireError::OpCode(other)),
        }
    }
}

/// A header whose length and opcode are sound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Bytes of the message, these sixteen included.
    pub length: usize,
    /// Number the sender gave the message.
    pub request_id: i32,
    /// Number of the message this answers.
    pub response_to: i32,
    /// What follows.
    pub opcode: OpCode,
}

impl Header {
    /// Reads and checks a header from a client.
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

/// Writes a header with room for the length, which [`finish`] fills in.
pub(super) fn begin(out: &mut Vec<u8>, request_id: i32, response_to: i32, opcode: OpCode) {
    for field in [0, request_id, response_to, opcode.number()] {
        out.extend_from_slice(&field.to_le_bytes());
    }
}

/// Writes the length of a message of which `out` holds all but `more` bytes.
pub(super) fn finish(out: &mut [u8], more: usize) {
    let length = u32::try_from(out.len() + more).unwrap_or(u32::MAX);
    if let Some(field) = out.first_chunk_mut::<4>() {
        *field = length.to_le_bytes();
    }
}

//! Errors of messages.

use nilometer::{Error, ErrorCode};

/// Why a message cannot be parsed. Each is the client's fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The announced length is less than a header or more than the maximum.
    #[error("message length {length} is not within 16 to {max}")]
    Length {
        /// The announced length.
        length: i32,
        /// The maximum.
        max: usize,
    },
    /// An unsupported opcode.
    #[error("opcode {0} is not supported")]
    OpCode(i32),
    /// The message is truncated.
    #[error("message ends within {0}")]
    Truncated(&'static str),
    /// Bytes follow the end of the message.
    #[error("{0} bytes follow the end of the message")]
    TrailingBytes(usize),
    /// Unknown required flag bits.
    #[error("message has unknown required flag bits {0:#x}")]
    Flags(u32),
    /// The checksum does not match.
    #[error("message checksum is {expected:#010x} but its bytes give {found:#010x}")]
    Checksum {
        /// The checksum in the message.
        expected: u32,
        /// The checksum of the bytes.
        found: u32,
    },
    /// A section that is neither a body nor a document sequence.
    #[error("unknown section kind {0}")]
    SectionKind(u8),
    /// Not exactly one body section.
    #[error("message has {0} body sections instead of one")]
    BodySections(usize),
    /// More sections than allowed.
    #[error("message has more than {0} sections")]
    Sections(usize),
    /// A string that is not UTF-8 or not terminated.
    #[error("{0} is not a UTF-8 text that ends with a NUL")]
    Text(&'static str),
    /// An invalid document.
    #[error("invalid BSON: {0}")]
    Bson(String),
    /// A document above the maximum size.
    #[error(
        "BSONObj size: {length} ({length:#X}) is invalid. Size must be between 0 and {max}(16MB)"
    )]
    DocumentTooLarge {
        /// Its size in bytes.
        length: usize,
        /// The maximum.
        max: usize,
    },
    /// Nesting above the limit.
    #[error("{0}")]
    TooDeep(String),
    /// An unsupported compressor.
    #[error("compressor {0} is not supported")]
    Compressor(u8),
    /// Decompression failed, or the length does not match.
    #[error("decompression failed: {0}")]
    Decompression(String),
    /// A legacy query that is not a handshake.
    #[error(
        "Unsupported OP_QUERY command: {0}. The client driver may require an upgrade to speak OP_MSG"
    )]
    UnsupportedQuery(String),
}

impl WireError {
    /// True if the framing is lost, so that the connection must be closed. Otherwise the error is answered and the next
    /// message is read.
    pub fn is_fatal(&self) -> bool {
        matches!(
            self,
            Self::Length { .. }
                | Self::OpCode(_)
                | Self::Checksum { .. }
                | Self::Compressor(_)
                | Self::Decompression(_)
        )
    }

    /// Converts to the error sent to the client.
    pub fn to_error(&self) -> Error {
        let code = match self {
            Self::Bson(_) | Self::Text(_) => ErrorCode::InvalidBSON,
            Self::DocumentTooLarge { .. } => ErrorCode::BSONObjectTooLarge,
            Self::TooDeep(_) => ErrorCode::Overflow,
            Self::UnsupportedQuery(_) => ErrorCode::UnsupportedOpQueryCommand,
            _ => ErrorCode::ProtocolError,
        };
        Error::new(code, self.to_string())
    }
}

//! What can be wrong with a message.

use nilometer::{Error, ErrorCode};

/// Why a message could not be read. Each is the client's fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The header announces less than a header, or more than a message may have.
    #[error("message length {length} is not within 16 to {max}")]
    Length {
        /// What the header says.
        length: i32,
        /// What would be allowed.
        max: usize,
    },
    /// An opcode that is not spoken.
    #[error("opcode {0} is not supported")]
    OpCode(i32),
    /// The bytes end before the thing they announce.
    #[error("message ends within {0}")]
    Truncated(&'static str),
    /// Bytes are left over.
    #[error("{0} bytes are left behind the end of the message")]
    TrailingBytes(usize),
    /// Flag bits that must be understood and are not.
    #[error("message has unknown required flag bits {0:#x}")]
    Flags(u32),
    /// The checksum does not fit the bytes.
    #[error("message checksum is {expected:#010x} but its bytes give {found:#010x}")]
    Checksum {
        /// What the message says.
        expected: u32,
        /// What the bytes give.
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
    /// A text that is no UTF-8 or does not end.
    #[error("{0} is not a UTF-8 text that ends with a NUL")]
    Text(&'static str),
    /// A document whose bytes are wrong.
    #[error("invalid BSON: {0}")]
    Bson(String),
    /// A document larger than a document may be.
    #[error(
        "BSONObj size: {length} ({length:#X}) is invalid. Size must be between 0 and {max}(16MB)"
    )]
    DocumentTooLarge {
        /// Bytes it has.
        length: usize,
        /// Bytes it may have.
        max: usize,
    },
    /// Nesting that goes too deep.
    #[error("{0}")]
    TooDeep(String),
    /// A compressor this server does not have.
    #[error("compressor {0} is not supported")]
    Compressor(u8),
    /// Compressed bytes that do not give what they announce.
    #[error("decompression failed: {0}")]
    Decompression(String),
    /// A legacy query that is no handshake.
    #[error(
        "Unsupported OP_QUERY command: {0}. The client driver may require an upgrade to speak OP_MSG"
    )]
    UnsupportedQuery(String),
}

impl WireError {
    /// True if the stream can no longer be trusted: the connection is closed. Else the frame was
    /// sound, the error is answered, and the next message is read.
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

    /// The error a client is answered.
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

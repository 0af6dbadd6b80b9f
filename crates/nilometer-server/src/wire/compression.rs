//! OP_COMPRESSED: another message inside, compressed.
//!
//! ```text
//! int32 original opcode | int32 uncompressed bytes | uint8 compressor | compressed bytes
//! ```
//!
//! The length counts the bytes after the header. It is checked against the maximum message size before anything is
//! allocated, and must match exactly. An answer is compressed like its request.

use std::io::{Read, Write};

use super::WireError;
use super::codec::WireReader;
use super::header::{HEADER_BYTES, Header, OpCode};
use crate::limits::MESSAGE_BYTES_MAX;

/// Level of zlib for answers: its default.
const ZLIB_LEVEL: u32 = 6;

/// Level of zstd for answers: its default, as drivers use it.
const ZSTD_LEVEL: i32 = 3;

/// Returns the bytes that a message announces for its decompressed form, up to the maximum; 0 if it is not compressed.
/// `bytes` is the whole message.
pub fn unpacked_bytes(header: &Header, bytes: &[u8]) -> usize {
    if header.opcode != OpCode::Compressed {
        return 0;
    }
    let mut reader = WireReader::new(bytes.get(HEADER_BYTES..).unwrap_or(&[]));
    let announced = reader
        .i32("the opcode")
        .and_then(|_| reader.i32("the length"));
    let announced = announced.ok().and_then(|n| usize::try_from(n).ok());
    announced.unwrap_or(0).min(MESSAGE_BYTES_MAX)
}

/// A compression algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compressor {
    /// No compression, in the compressed format.
    Noop,
    /// Snappy, block format.
    Snappy,
    /// Zlib.
    Zlib,
    /// Zstandard.
    Zstd,
}

impl Compressor {
    /// The compressors offered to clients by default, in order of preference.
    pub const OFFERED: &'static [Compressor] = &[Self::Snappy, Self::Zstd, Self::Zlib];

    /// Returns the name in `hello` and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Noop => "noop",
            Self::Snappy => "snappy",
            Self::Zlib => "zlib",
            Self::Zstd => "zstd",
        }
    }

    /// Returns the compressor with this name, if it can be offered.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::OFFERED.iter().copied().find(|c| c.name() == name)
    }

    /// Returns the number on the wire.
    pub fn number(self) -> u8 {
        match self {
            Self::Noop => 0,
            Self::Snappy => 1,
            Self::Zlib => 2,
            Self::Zstd => 3,
        }
    }

    fn from_number(number: u8) -> Result<Self, WireError> {
        match number {
            0 => Ok(Self::Noop),
            1 => Ok(Self::Snappy),
            2 => Ok(Self::Zlib),
            3 => Ok(Self::Zstd),
            other => Err(WireError::Compressor(other)),
        }
    }

    /// Compresses `bytes`.
    pub fn compress(self, bytes: &[u8]) -> std::io::Result<Vec<u8>> {
        match self {
            Self::Noop => Ok(bytes.to_vec()),
            Self::Snappy => snap::raw::Encoder::new()
                .compress_vec(bytes)
                .map_err(std::io::Error::other),
            Self::Zlib => {
                let level = flate2::Compression::new(ZLIB_LEVEL);
                let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), level);
                encoder.write_all(bytes)?;
                encoder.finish()
            }
            Self::Zstd => zstd::bulk::compress(bytes, ZSTD_LEVEL),
        }
    }

    /// Decompresses `compressed` to exactly `length` bytes and appends them to `out`.
    fn decompress(
        self,
        compressed: &[u8],
        length: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), WireError> {
        let start = out.len();
        let failed = |why: String| WireError::Decompression(why);
        // Read one byte more than announced to detect excess data.
        let limit = u64::try_from(length).unwrap_or(u64::MAX).saturating_add(1);
        match self {
            Self::Noop => out.extend_from_slice(compressed),
            Self::Snappy => {
                let announced =
                    snap::raw::decompress_len(compressed).map_err(|e| failed(e.to_string()))?;
                if announced != length {
                    return Err(failed(format!("{announced} bytes instead of {length}")));
                }
                let plain = snap::raw::Decoder::new()
                    .decompress_vec(compressed)
                    .map_err(|e| failed(e.to_string()))?;
                out.extend_from_slice(&plain);
            }
            Self::Zlib => {
                flate2::read::ZlibDecoder::new(compressed)
                    .take(limit)
                    .read_to_end(out)
                    .map_err(|e| failed(e.to_string()))?;
            }
            Self::Zstd => {
                zstd::stream::read::Decoder::new(compressed)
                    .and_then(|decoder| decoder.take(limit).read_to_end(out))
                    .map_err(|e| failed(e.to_string()))?;
            }
        }
        let found = out.len() - start;
        if found == length {
            Ok(())
        } else {
            Err(failed(format!("{found} bytes instead of {length}")))
        }
    }
}

/// A decompressed message.
pub(super) struct Decompressed {
    pub(super) opcode: OpCode,
    pub(super) compressor: Compressor,
    /// The message with a header, as if it had been sent uncompressed.
    pub(super) message: Vec<u8>,
}

/// Decompresses the body of an OP_COMPRESSED with this header.
pub(super) fn decompress(header: &[u8], body: &[u8]) -> Result<Decompressed, WireError> {
    let mut reader = WireReader::new(body);
    let number = reader.i32("original opcode")?;
    let opcode = OpCode::from_client(number)?;
    if opcode == OpCode::Compressed {
        return Err(WireError::OpCode(number));
    }
    let announced = reader.i32("uncompressed size")?;
    let length = usize::try_from(announced)
        .ok()
        .filter(|n| *n <= MESSAGE_BYTES_MAX - HEADER_BYTES)
        .ok_or(WireError::Length {
            length: announced,
            max: MESSAGE_BYTES_MAX,
        })?;
    let compressor = Compressor::from_number(reader.u8("compressor")?)?;
    let mut message = Vec::new();
    message.extend_from_slice(header);
    compressor.decompress(reader.rest(), length, &mut message)?;
    #[expect(clippy::indexing_slicing, reason = "the header was written above")]
    message[12..16].copy_from_slice(&opcode.number().to_le_bytes());
    super::header::finish(&mut message, 0);
    Ok(Decompressed {
        opcode,
        compressor,
        message,
    })
}

/// Compresses `body`, the bytes after the header of a message with this opcode.
pub(super) fn compressed_body(
    compressor: Compressor,
    opcode: OpCode,
    body: &[u8],
) -> std::io::Result<Vec<u8>> {
    let compressed = compressor.compress(body)?;
    let mut out = Vec::with_capacity(compressed.len() + 9);
    out.extend_from_slice(&opcode.number().to_le_bytes());
    let length = i32::try_from(body.len()).map_err(std::io::Error::other)?;
    out.extend_from_slice(&length.to_le_bytes());
    out.push(compressor.number());
    out.extend_from_slice(&compressed);
    Ok(out)
}

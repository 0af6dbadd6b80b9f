//! OP_MSG: a command or its answer.
//!
//! ```text
//! uint32 flags | section … | uint32 CRC-32C, if flag 0
//! section      00 | document                                        the body, exactly once
//!              01 | int32 length | name … 00 | document …           a document sequence
//! flags        bit 0 checksum present, bit 1 more to come (no answer), bit 16 exhaust allowed
//! ```
//!
//! A receiver must know bits 0 to 15 and may ignore the others. A `getMore` that allows exhaust is answered by all further
//! batches, and a `hello` that waits by a stream; other commands get a single answer, which the protocol allows. Answers have no checksum.

use std::sync::Arc;

use nilometer::Request;
use nilometer::operation::DocumentSequence;
use nilometer_bson::DocRef;

use super::WireError;
use super::codec::WireReader;
use super::header::HEADER_BYTES;
use crate::limits::SECTIONS_MAX;

/// A checksum follows the sections.
const CHECKSUM_PRESENT: u32 = 1;

/// Another message follows and this one gets no answer.
const MORE_TO_COME: u32 = 1 << 1;

/// The client takes several answers to this message.
const EXHAUST_ALLOWED: u32 = 1 << 16;

/// The bits that a receiver must know.
const REQUIRED_BITS: u32 = 0xFFFF;

const CHECKSUM_BYTES: usize = 4;

/// A command sent as OP_MSG.
#[derive(Clone, Debug)]
pub struct OpMsg {
    /// True if the client expects no answer.
    pub more_to_come: bool,
    /// True if the client takes several answers.
    pub exhaust_allowed: bool,
    /// The command, or why it is invalid.
    pub request: Result<Request, WireError>,
}

/// Parses the body of a message. `message` is the whole uncompressed message. Errors before the flags are known are the
/// outer errors.
pub(super) fn parse(message: &Arc<Vec<u8>>) -> Result<OpMsg, WireError> {
    let body = message.get(HEADER_BYTES..).unwrap_or(&[]);
    let mut reader = WireReader::new(body);
    let flags = reader.u32("flags")?;
    let more_to_come = flags & MORE_TO_COME != 0;
    if flags & CHECKSUM_PRESENT != 0 {
        check_checksum(message)?;
    }
    let request = if flags & REQUIRED_BITS & !(CHECKSUM_PRESENT | MORE_TO_COME) != 0 {
        Err(WireError::Flags(flags))
    } else {
        sections(message, flags & CHECKSUM_PRESENT != 0)
    };
    Ok(OpMsg {
        more_to_come,
        exhaust_allowed: flags & EXHAUST_ALLOWED != 0,
        request,
    })
}

fn check_checksum(message: &[u8]) -> Result<(), WireError> {
    let Some((covered, sum)) = message.split_last_chunk::<CHECKSUM_BYTES>() else {
        return Err(WireError::Truncated("checksum"));
    };
    let (expected, found) = (u32::from_le_bytes(*sum), crc32c::crc32c(covered));
    if expected == found {
        Ok(())
    } else {
        Err(WireError::Checksum { expected, found })
    }
}

fn sections(message: &Arc<Vec<u8>>, with_checksum: bool) -> Result<Request, WireError> {
    let end = message
        .len()
        .checked_sub(if with_checksum { CHECKSUM_BYTES } else { 0 })
        .ok_or(WireError::Truncated("checksum"))?;
    let start = HEADER_BYTES + 4;
    let covered = message
        .get(start..end)
        .ok_or(WireError::Truncated("sections"))?;
    let mut reader = WireReader::new(covered);
    let mut bodies: Vec<DocRef<'_>> = Vec::new();
    let mut sequences = Vec::new();
    while reader.left() > 0 {
        if bodies.len() + sequences.len() == SECTIONS_MAX {
            return Err(WireError::Sections(SECTIONS_MAX));
        }
        match reader.u8("section kind")? {
            0 => bodies.push(reader.document("the command")?),
            1 => {
                let mut section = reader.counted("document sequence")?;
                let section_end = start + reader.position();
                let name = section.c_string("name of a document sequence")?.to_owned();
                let documents_start = section_end - section.left();
                while section.left() > 0 {
                    let document = section.document("a document of a sequence")?;
                    super::message::validate(document)?;
                }
                let span = documents_start..section_end;
                let sequence = DocumentSequence::new(name, message.clone(), span);
                sequences.push(sequence.ok_or(WireError::Truncated("document sequence"))?);
            }
            other => return Err(WireError::SectionKind(other)),
        }
    }
    let [body] = bodies.as_slice() else {
        return Err(WireError::BodySections(bodies.len()));
    };
    super::message::validate(*body)?;
    Ok(Request {
        body: body.to_document(),
        sequences,
        routed: None,
    })
}

/// Returns the bytes between the header and the document of an answer.
pub(super) fn answer_prefix(more_to_come: bool) -> [u8; 5] {
    let flags = if more_to_come { MORE_TO_COME } else { 0 };
    let [a, b, c, d] = flags.to_le_bytes();
    [a, b, c, d, 0]
}

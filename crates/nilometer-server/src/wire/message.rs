//! Parsing whole messages and building whole replies.

use std::sync::Arc;

use nilometer_bson::validate::{BsonErrorCause, DEPTH_MAX, Limits, validate_document};
use nilometer_bson::{DocRef, Document};

use super::header::{self, HEADER_BYTES, Header, OpCode};
use super::{Compressor, OpMsg, OpQuery, WireError, compression, op_msg, op_query};
use crate::limits::COMMAND_BYTES_MAX;

/// A message from a client.
#[derive(Clone, Debug)]
pub enum Message {
    /// A command.
    Msg(OpMsg),
    /// A legacy handshake.
    Query(OpQuery),
}

/// A message and the form of its answer.
#[derive(Clone, Debug)]
pub struct Incoming {
    /// The message.
    pub message: Message,
    /// The form of its answer.
    pub form: ReplyForm,
    /// Bytes of the message before compression.
    pub uncompressed_bytes: usize,
}

/// The form of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyForm {
    /// Id of the request.
    pub response_to: i32,
    /// Kind of the answer.
    pub opcode: OpCode,
    /// Its compression.
    pub compressor: Option<Compressor>,
    /// True if another answer to the same request follows.
    pub more_to_come: bool,
}

/// Parses a message. `bytes` is the whole message, header included.
pub fn parse(header: Header, bytes: Vec<u8>) -> Result<Incoming, WireError> {
    let (head, body) = bytes
        .split_at_checked(HEADER_BYTES)
        .ok_or(WireError::Truncated("header"))?;
    let (opcode, compressor, bytes) = if header.opcode == OpCode::Compressed {
        let inner = compression::decompress(head, body)?;
        (inner.opcode, Some(inner.compressor), inner.message)
    } else {
        (header.opcode, None, bytes)
    };
    let uncompressed_bytes = bytes.len();
    let (message, reply_opcode) = match opcode {
        OpCode::Query => {
            let body = bytes.get(HEADER_BYTES..).unwrap_or(&[]);
            (Message::Query(op_query::parse(body)?), OpCode::Reply)
        }
        _ => (Message::Msg(op_msg::parse(&Arc::new(bytes))?), OpCode::Msg),
    };
    Ok(Incoming {
        message,
        form: ReplyForm {
            response_to: header.request_id,
            opcode: reply_opcode,
            compressor,
            more_to_come: false,
        },
        uncompressed_bytes,
    })
}

/// The first bytes of a reply: the whole reply, or everything before its document, which the caller then sends.
pub struct ReplyFront {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// True if the document must be sent after them.
    pub document_follows: bool,
    /// Bytes of the reply before compression.
    pub uncompressed_bytes: usize,
}

/// Builds a reply. Documents larger than `copied_max` are not copied into it.
pub fn reply(
    request_id: i32,
    form: ReplyForm,
    document: &Document,
    copied_max: usize,
) -> std::io::Result<ReplyFront> {
    let prefix = match form.opcode {
        OpCode::Reply => op_query::answer_prefix(),
        _ => op_msg::answer_prefix(form.more_to_come).to_vec(),
    };
    let body = document.as_bytes();
    let uncompressed_bytes = HEADER_BYTES + prefix.len() + body.len();
    let mut bytes = Vec::with_capacity(HEADER_BYTES + prefix.len() + body.len().min(copied_max));
    if let Some(compressor) = form.compressor {
        let plain = [prefix.as_slice(), body].concat();
        header::begin(&mut bytes, request_id, form.response_to, OpCode::Compressed);
        bytes.extend(compression::compressed_body(
            compressor,
            form.opcode,
            &plain,
        )?);
        header::finish(&mut bytes, 0);
        return Ok(ReplyFront {
            bytes,
            document_follows: false,
            uncompressed_bytes,
        });
    }
    header::begin(&mut bytes, request_id, form.response_to, form.opcode);
    bytes.extend_from_slice(&prefix);
    let document_follows = body.len() > copied_max;
    if document_follows {
        header::finish(&mut bytes, body.len());
    } else {
        bytes.extend_from_slice(body);
        header::finish(&mut bytes, 0);
    }
    Ok(ReplyFront {
        bytes,
        document_follows,
        uncompressed_bytes,
    })
}

/// The limits of documents on the wire.
const LIMITS: Limits = Limits {
    depth_max: DEPTH_MAX,
    size_max: COMMAND_BYTES_MAX,
};

/// Checks a framed document at all levels.
pub(super) fn validate(document: DocRef<'_>) -> Result<(), WireError> {
    validate_document(document.as_bytes(), &LIMITS).map_err(|problem| match problem.cause {
        BsonErrorCause::TooDeep(_) => WireError::TooDeep(problem.to_string()),
        _ => WireError::Bson(problem.to_string()),
    })
}

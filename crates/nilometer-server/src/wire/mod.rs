//! The wire: bytes to messages and back. Pure functions over byte slices, no sockets.
//!
//! ```text
//! message   header | body
//! header    int32 length | int32 request id | int32 response to | int32 opcode
//! ```
//!
//! The promise: bytes from outside never panic and never make the server allocate more than they
//! themselves take up, or, compressed, more than one message may. What cannot be read is a
//! [`WireError`] that says what was wrong; whether the connection survives it is
//! [`WireError::is_fatal`].
//!
//! Spoken are OP_MSG, OP_COMPRESSED around it, and OP_QUERY with OP_REPLY for the handshake.
//! Opcodes of servers before 5.1 (OP_INSERT, OP_GET_MORE, …) are not.

#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::as_conversions
    )
)]

mod codec;
mod compression;
mod error;
mod header;
mod message;
mod op_msg;
mod op_query;

pub use compression::{Compressor, unpacked_bytes};
pub use error::WireError;
pub use header::{HEADER_BYTES, Header, OpCode};
pub use message::{Incoming, Message, ReplyForm, parse, reply};
pub use op_msg::OpMsg;
pub use op_query::OpQuery;

#[cfg(test)]
mod tests;

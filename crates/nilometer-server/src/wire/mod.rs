//! The wire protocol: encoding and decoding of messages. Pure functions over byte slices, without sockets.
//!
//! ```text
//! message   header | body
//! header    int32 length | int32 request id | int32 response to | int32 opcode
//! ```
//!
//! Guarantees: foreign bytes never cause a panic, and never make the server allocate more than their own size or, if
//! compressed, more than one message may have. Invalid input is a [`WireError`]; [`WireError::is_fatal`] decides
//! whether the connection survives it.
//!
//! Supported are OP_MSG, OP_COMPRESSED around it, and OP_QUERY with OP_REPLY for the handshake. The opcodes removed in
//! 5.1 (OP_INSERT, OP_GET_MORE, …) are not.

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

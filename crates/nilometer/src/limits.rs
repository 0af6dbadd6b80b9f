//! Limits that clients are told and that hold for every way in.

/// Bytes of a document a client may store.
pub const DOCUMENT_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Bytes of a command document and of a document the server makes itself: room for a document of
/// full size and what goes around it.
pub const COMMAND_BYTES_MAX: usize = DOCUMENT_BYTES_MAX + 16 * 1024;

/// Bytes of a message on the wire, header included.
pub const MESSAGE_BYTES_MAX: usize = 48_000_000;

/// Writes in one command.
pub const WRITE_BATCH_MAX: usize = 100_000;

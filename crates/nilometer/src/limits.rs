//! Limits reported to clients that apply to every interface.

/// Largest stored document, in bytes.
pub const DOCUMENT_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Largest command document or internal document, in bytes: a document of full size with its envelope.
pub const COMMAND_BYTES_MAX: usize = DOCUMENT_BYTES_MAX + 16 * 1024;

/// Largest message on the wire, in bytes, header included.
pub const MESSAGE_BYTES_MAX: usize = 48_000_000;

/// Most writes per command.
pub const WRITE_BATCH_MAX: usize = 100_000;

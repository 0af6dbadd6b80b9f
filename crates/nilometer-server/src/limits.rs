//! Every limit of the transport, by name.
//!
//! What clients are told in `hello` (document, message and batch size) is the core's and is taken
//! from there; the rest concerns connections only.

use std::time::Duration;

pub use nilometer::limits::{COMMAND_BYTES_MAX, MESSAGE_BYTES_MAX};

/// Connections open at a time, unless `--maxConns` says otherwise.
pub const CONNECTIONS_MAX: u32 = 20_000;

/// Stack of a connection's thread. Address space only: pages count when they are touched.
/// Documents nest up to 200 deep, and each level may cost a few frames in an unoptimised build.
pub const CONNECTION_STACK_BYTES: usize = 4 * 1024 * 1024;

/// Buffer of a connection for small messages; larger ones are read straight to their place.
pub const READ_BUFFER_BYTES: usize = 16 * 1024;

/// How much is allocated for a message on the word of its header alone. More follows as bytes
/// arrive, so that a lying length costs nothing.
pub const TRUSTED_ALLOCATION_BYTES: usize = 256 * 1024;

/// Up to this size a reply is copied behind its header, to be sent in one call.
pub const COPIED_REPLY_BYTES_MAX: usize = 64 * 1024;

/// Sections and sequences in one message. Drivers send at most two.
pub const SECTIONS_MAX: usize = 64;

/// From this size on a message takes its bytes from those all messages may hold together.
pub const LARGE_MESSAGE_BYTES: usize = 256 * 1024;

/// Bytes that large messages may hold together while they arrive, are worked on, or wait for a client to read
/// them; on a small machine less, see [`MESSAGE_MEMORY_SHARE`].
pub const MESSAGE_MEMORY_BYTES: usize = 2 * 1024 * 1024 * 1024;

/// The part of the memory there is that they may hold.
pub const MESSAGE_MEMORY_SHARE: u64 = 8;

/// Bytes of a message before its sender has logged in, where logins are asked for: handshakes and logins are
/// small.
pub const UNAUTHENTICATED_MESSAGE_BYTES_MAX: usize = 64 * 1024;

/// Time a client has, from connecting, for its first message.
pub const FIRST_MESSAGE_TIMEOUT: Duration = Duration::from_secs(30);

/// Silence after which a connection gives up its thread until its client says something.
pub const IDLE_AFTER: Duration = Duration::from_secs(1);

/// Threads up to which each connection keeps its own while it is active. Where more are active they share as many.
/// Many, because commands wait for the disk together.
pub const DEDICATED_THREADS_MAX: usize = 64;

/// How long none of the shared threads may have taken a connection before those that have something to say get
/// threads of their own.
pub const SHARED_THREADS_TIMEOUT: Duration = Duration::from_millis(5);

/// Silence in the middle of a message, or with a full send buffer, that ends a connection.
/// Between messages a connection may be silent for ever. Where all memory for messages is taken, a large one waits as
/// long.
pub const STALL_TIMEOUT: Duration = Duration::from_secs(60);

/// Time a whole message may take to arrive, or to be read by the client.
pub const MESSAGE_TIMEOUT: Duration = Duration::from_secs(600);

/// Time a client has, from connecting, for its first bytes and for the TLS handshake, where TLS may be
/// spoken.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(20);

/// Silence after which the system asks whether the peer is still there.
pub const KEEPALIVE: Duration = Duration::from_secs(300);

/// PauseReason after a failed `accept`, as when the process has no file descriptors left.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How often connections with a running command are asked whether the client is still there.
pub const DISCONNECT_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// How long commands may go on after the shutdown began before they are interrupted.
pub const SHUTDOWN_GRACE: Duration = Duration::from_secs(2);

/// How long connections may take to end after that.
pub const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);

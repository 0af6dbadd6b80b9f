//! The limits of the transport.
//!
//! The limits reported by `hello` (document, message and batch size) belong to the library; the others concern
//! connections only.

use std::time::Duration;

pub use nilometer::limits::{COMMAND_BYTES_MAX, MESSAGE_BYTES_MAX};

/// Open connections, unless `--maxConns` is given.
pub const CONNECTIONS_MAX: u32 = 20_000;

/// Stack of a connection's thread. Address space only: pages count when they are touched.
/// Documents nest up to 200 deep, and each level may cost a few frames in an unoptimised build.
pub const CONNECTION_STACK_BYTES: usize = 4 * 1024 * 1024;

/// Read buffer for small messages. Larger ones are read directly to their destination.
pub const READ_BUFFER_BYTES: usize = 16 * 1024;

/// Bytes allocated for a message from its header alone. More follows as bytes arrive, so a false length costs nothing.
pub const TRUSTED_ALLOCATION_BYTES: usize = 256 * 1024;

/// Replies up to this size are copied after their header and sent in one call.
pub const COPIED_REPLY_BYTES_MAX: usize = 64 * 1024;

/// Sections and sequences in one message. Drivers send at most two.
pub const SECTIONS_MAX: usize = 64;

/// Messages at least this large count against the memory shared by all messages.
pub const LARGE_MESSAGE_BYTES: usize = 256 * 1024;

/// Bytes of all large messages that arrive, are processed, or wait for a client to read them. Less on a small machine,
/// see [`MESSAGE_MEMORY_SHARE`].
pub const MESSAGE_MEMORY_BYTES: usize = 2 * 1024 * 1024 * 1024;

/// Divisor of the available memory for large messages.
pub const MESSAGE_MEMORY_SHARE: u64 = 8;

/// Memory of the process below which the start warns: caches, threads and the allocator take about 100 MiB of it, and
/// ordinary load would often find memory short.
pub const MEMORY_BYTES_RECOMMENDED: u64 = 256 * 1024 * 1024;

/// Bytes of a message before a login, if logins are required: handshakes and logins are small.
pub const UNAUTHENTICATED_MESSAGE_BYTES_MAX: usize = 64 * 1024;

/// Time from connecting to the first message.
pub const FIRST_MESSAGE_TIMEOUT: Duration = Duration::from_secs(30);

/// Silence after which a connection releases its thread until input arrives.
pub const IDLE_AFTER: Duration = Duration::from_secs(1);

/// Active connections that keep a thread each. More active connections share as many threads. The number is large
/// because commands wait for the disk together.
pub const DEDICATED_THREADS_MAX: usize = 64;

/// Time without progress of the shared threads after which connections with input get additional threads.
pub const SHARED_THREADS_TIMEOUT: Duration = Duration::from_millis(5);

/// Bytes of a `hello` that may wait for a change of the topology: drivers send some 300. A larger one is answered at once.
pub const AWAITED_HELLO_BYTES_MAX: usize = 4 * 1024;

/// The longest wait of a `hello`, whatever the client asks for.
pub const HELLO_AWAIT_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// The shortest time between two answers of a stream of `hello`.
pub const HELLO_STREAM_INTERVAL_MIN: Duration = Duration::from_millis(10);

/// Silence within a message, or with a full send buffer, that ends a connection. Between messages a connection may be
/// silent forever. A large message waits as long for memory.
pub const STALL_TIMEOUT: Duration = Duration::from_secs(60);

/// Time for a whole message to arrive, or to be read by the client.
pub const MESSAGE_TIMEOUT: Duration = Duration::from_secs(600);

/// Time from connecting for the first bytes and the TLS handshake, if TLS is enabled.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(20);

/// Silence after which the system probes the peer.
pub const KEEPALIVE: Duration = Duration::from_secs(300);

/// PauseReason after a failed `accept`, as when the process has no file descriptors left.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Interval at which connections with a running command are checked for disconnected clients; commands that run for
/// less are not checked. Twice this time and the time of an interrupt check stay below 100 ms.
pub const DISCONNECT_CHECK_INTERVAL: Duration = Duration::from_millis(40);

/// Time for running commands after the start of a shutdown, before they are interrupted.
pub const SHUTDOWN_GRACE: Duration = Duration::from_secs(2);

/// Time for connections to end after that.
pub const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);

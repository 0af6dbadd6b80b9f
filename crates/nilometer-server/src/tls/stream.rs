//! The streams of connections, with and without TLS.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use rustls::{ServerConnection, StreamOwned};

use crate::registry::SharedStream;

/// Bytes needed to distinguish a handshake from a message.
const FIRST_BYTES: usize = 3;

/// A stream that is ready for messages.
pub(crate) struct AcceptedTls {
    pub(crate) transport: Transport,
    /// The verified subject of the client's certificate.
    pub(crate) subject: Option<String>,
}

/// The stream of a connection.
pub(crate) enum Transport {
    /// Without TLS, preceded by the bytes that were read already.
    Plain(PrefixedStream),
    /// Inside TLS.
    Tls(Box<StreamOwned<ServerConnection, PrefixedStream>>),
    /// No stream: reads find the end, writes are discarded.
    None,
}

impl Transport {
    /// Returns a stream without TLS of which nothing was read.
    pub(crate) fn plain(stream: SharedStream) -> Self {
        Self::Plain(PrefixedStream {
            first: [0; FIRST_BYTES],
            given: FIRST_BYTES,
            until: None,
            stream,
        })
    }

    /// True if bytes were received from the socket but not yet read.
    pub(crate) fn has_read_ahead(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.given < stream.first.len(),
            Self::Tls(stream) => !stream.conn.wants_read(),
            Self::None => false,
        }
    }

    pub(crate) fn is_tls(&self) -> bool {
        matches!(self, Self::Tls(_))
    }
}

impl Read for Transport {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read(buffer),
            Self::Tls(stream) => stream.read(buffer),
            Self::None => Ok(0),
        }
    }
}

impl Write for Transport {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
            Self::None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.flush(),
            Self::Tls(stream) => stream.flush(),
            Self::None => Ok(()),
        }
    }
}

/// A stream whose first bytes were inspected and are read again.
pub(crate) struct PrefixedStream {
    first: [u8; FIRST_BYTES],
    given: usize,
    /// Deadline of the handshake.
    until: Option<Instant>,
    stream: SharedStream,
}

impl PrefixedStream {
    /// Reads the first bytes. They and a handshake may take `time`.
    pub(super) fn begin(stream: SharedStream, time: Duration) -> io::Result<Self> {
        let mut begun = Self {
            first: [0; FIRST_BYTES],
            given: FIRST_BYTES,
            until: Some(Instant::now() + time),
            stream,
        };
        let mut first = [0; FIRST_BYTES];
        begun.read_exact(&mut first)?;
        begun.first = first;
        begun.given = 0;
        Ok(begun)
    }

    /// True if the first bytes are those of a TLS record that begins a handshake.
    pub(super) fn is_handshake(&self) -> bool {
        matches!(self.first, [0x16, 0x03, 1..=4])
    }

    /// Removes the deadline of the handshake.
    pub(super) fn end(mut self) -> Self {
        self.until = None;
        self
    }
}

impl Read for PrefixedStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Some(mut rest) = self.first.get(self.given..).filter(|r| !r.is_empty()) {
            let read = rest.read(buffer)?;
            self.given += read;
            return Ok(read);
        }
        if let Some(until) = self.until {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "the handshake took too long",
                ));
            }
            self.stream.0.stream.set_read_timeout(Some(left))?;
        }
        self.stream.read(buffer)
    }
}

impl Write for PrefixedStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

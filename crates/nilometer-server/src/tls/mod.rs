//! TLS: when a connection speaks it, and the streams that do.
//!
//! ```text
//! accepted ─► three bytes ─┬─ 16 03 0x: a TLS record ─► handshake ─► messages inside
//!                          └─ anything else: the length of a message ─► messages in the open
//! ```
//!
//! Which of both is allowed is the mode's affair. A record begins with 16 03 and a third byte from 1 to 4.
//! A message could only begin so if it were longer than 64 KiB, and the first one of a client never is.
//! Everything is blocking, on the connection's own thread. Certificates may be read anew at any
//! time; connections that are open keep theirs. [`client`] is the other end, for the program's own commands.

mod certificates;
mod client;
mod stream;

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::limits;
use crate::registry::SharedStream;
pub(crate) use client::ClientTls;
pub(crate) use stream::{AcceptedTls, Transport};

/// Which connections speak TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsMode {
    /// None.
    #[default]
    Disabled,
    /// Those whose client does.
    Optional,
    /// All.
    Required,
}

/// How TLS is spoken.
#[derive(Clone, Debug, Default)]
pub struct TlsOptions {
    /// Which connections speak it.
    pub mode: TlsMode,
    /// Certificate, its chain and the private key, in PEM.
    pub certificate_key_file: PathBuf,
    /// The authorities whose client certificates are accepted, in PEM.
    pub ca_file: Option<PathBuf>,
    /// Clients need not show a certificate.
    pub allow_without_certificates: bool,
    /// Protocol version 1.2 is not spoken.
    pub without_tls12: bool,
    /// Protocol version 1.3 is not spoken.
    pub without_tls13: bool,
}

/// TLS, ready to be spoken.
pub struct Tls {
    options: TlsOptions,
    config: RwLock<Arc<ServerConfig>>,
}

impl Tls {
    /// Reads the certificates.
    pub fn new(options: TlsOptions) -> Result<Self, String> {
        let config = certificates::load(&options)?;
        Ok(Self {
            options,
            config: RwLock::new(config),
        })
    }

    /// Reads the certificates anew; if that fails, the old ones stay.
    pub fn rotate(&self) -> Result<(), String> {
        let config = certificates::load(&self.options)?;
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = config;
        Ok(())
    }

    /// Which connections speak TLS.
    pub fn mode(&self) -> TlsMode {
        self.options.mode
    }

    fn config(&self) -> Arc<ServerConfig> {
        let config = self.config.read();
        config.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Looks at the first bytes, and does the handshake if they are one. Who speaks no TLS is turned away
    /// where it is required.
    pub(crate) fn open(&self, stream: SharedStream) -> io::Result<AcceptedTls> {
        let opened = self.open_either(stream, limits::HANDSHAKE_TIMEOUT)?;
        if !opened.transport.is_tls() && self.options.mode == TlsMode::Required {
            return Err(io::Error::new(
                io::ErrorKind::ConnectionAborted,
                "the server is configured to only allow TLS connections",
            ));
        }
        Ok(opened)
    }

    /// The same for a port that tells itself what it gives away in the open. The first bytes and the
    /// handshake may take `time`.
    pub(crate) fn open_either(
        &self,
        stream: SharedStream,
        time: Duration,
    ) -> io::Result<AcceptedTls> {
        let mut replayed = stream::PrefixedStream::begin(stream, time)?;
        if !replayed.is_handshake() {
            return Ok(AcceptedTls {
                transport: Transport::Plain(replayed.end()),
                subject: None,
            });
        }
        let mut connection = ServerConnection::new(self.config()).map_err(io::Error::other)?;
        while connection.is_handshaking() {
            connection.complete_io(&mut replayed)?;
        }
        let shown = connection.peer_certificates().and_then(|all| all.first());
        let subject = shown.and_then(|certificate| certificates::subject(certificate));
        let stream = StreamOwned::new(connection, replayed.end());
        Ok(AcceptedTls {
            transport: Transport::Tls(Box::new(stream)),
            subject,
        })
    }
}

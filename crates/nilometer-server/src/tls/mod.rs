//! TLS: which connections use it, and their streams.
//!
//! ```text
//! accepted ─► three bytes ─┬─ 16 03 0x: a TLS record ─► handshake ─► messages inside
//!                          └─ anything else: the length of a message ─► messages without TLS
//! ```
//!
//! The mode decides which of both are allowed. A TLS record begins with 16 03 and a third byte from 1 to 4. A message
//! could only begin like this if it were longer than 64 KiB, which the first message of a client never is. All I/O
//! blocks, on the connection's own thread. Certificates can be reloaded at any time; open connections keep theirs.
//! [`client`] is the client side, for the program's own commands.

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

/// Which connections use TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsMode {
    /// None.
    #[default]
    Disabled,
    /// Those whose client uses it.
    Optional,
    /// All.
    Required,
}

/// TLS options of a server.
#[derive(Clone, Debug, Default)]
pub struct TlsOptions {
    /// Which connections use TLS.
    pub mode: TlsMode,
    /// Certificate, its chain and the private key, in PEM.
    pub certificate_key_file: PathBuf,
    /// The authorities whose client certificates are accepted, in PEM.
    pub ca_file: Option<PathBuf>,
    /// Clients need not show a certificate.
    pub allow_without_certificates: bool,
    /// Disables protocol version 1.2.
    pub without_tls12: bool,
    /// Disables protocol version 1.3.
    pub without_tls13: bool,
}

impl TlsOptions {
    /// Returns the options by which a node reaches the others, which have the same: it trusts the same authorities, and shows its
    /// certificate.
    pub(crate) fn of_node(&self) -> ClientTls {
        ClientTls {
            ca_file: self.ca_file.clone(),
            certificate_key_file: Some(self.certificate_key_file.clone()),
            ..ClientTls::default()
        }
    }
}

/// The loaded TLS configuration.
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

    /// Reloads the certificates. If that fails, the old ones stay.
    pub fn rotate(&self) -> Result<(), String> {
        let config = certificates::load(&self.options)?;
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = config;
        Ok(())
    }

    /// Which connections use TLS.
    pub fn mode(&self) -> TlsMode {
        self.options.mode
    }

    fn config(&self) -> Arc<ServerConfig> {
        let config = self.config.read();
        config.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads the first bytes and performs the handshake if they begin one. Refuses a client without TLS if the mode
    /// requires TLS.
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

    /// Opens a stream with or without TLS, for a port that decides itself what it serves without TLS. The first bytes
    /// and the handshake may take `time`.
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

//! The client side of TLS.
//!
//! A server is trusted if its certificate chains to a known authority (of `tlsCAFile`, or else of the system) and names
//! the host. Both checks can be disabled separately; the proof that the server owns the certificate's key is always
//! checked.

use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::{
    CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, Error, RootCertStore,
    SignatureScheme, StreamOwned,
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use super::certificates;

/// TLS options of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClientTls {
    /// The trusted authorities, in PEM; those of the system if `None`.
    pub(crate) ca_file: Option<PathBuf>,
    /// The client's own certificate and private key, in PEM.
    pub(crate) certificate_key_file: Option<PathBuf>,
    /// Accept any certificate.
    pub(crate) allow_invalid_certificates: bool,
    /// Accept a certificate of another host.
    pub(crate) allow_invalid_hostnames: bool,
}

impl ClientTls {
    /// Performs the handshake with `host` over `stream`. Errors name the problem and the file.
    pub(crate) fn connect(
        &self,
        host: &str,
        mut stream: TcpStream,
    ) -> Result<StreamOwned<ClientConnection, TcpStream>, String> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| format!("{host} is not a valid name for a certificate"))?;
        let mut connection = ClientConnection::new(Arc::new(self.config()?), name)
            .map_err(|e| format!("TLS cannot be used: {e}"))?;
        while connection.is_handshaking() {
            connection
                .complete_io(&mut stream)
                .map_err(|e| e.to_string())?;
        }
        Ok(StreamOwned::new(connection, stream))
    }

    fn config(&self) -> Result<ClientConfig, String> {
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|e| format!("no protocol version is enabled: {e}"))?;
        let chain = if self.allow_invalid_certificates {
            None
        } else {
            let roots = Arc::new(self.roots()?);
            let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider.clone());
            Some(verifier.build().map_err(|e| e.to_string())?)
        };
        let verifier = Verifier {
            chain,
            any_host: self.allow_invalid_hostnames,
            provider,
        };
        let builder = builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let Some(path) = &self.certificate_key_file else {
            return Ok(builder.with_no_client_auth());
        };
        let (chain, key) = certificates::identity(path)?;
        builder
            .with_client_auth_cert(chain, key)
            .map_err(|e| format!("{} cannot be used: {e}", path.display()))
    }

    fn roots(&self) -> Result<RootCertStore, String> {
        if let Some(path) = &self.ca_file {
            return certificates::authorities(path);
        }
        let mut roots = RootCertStore::empty();
        let found = rustls_native_certs::load_native_certs();
        roots.add_parsable_certificates(found.certs);
        if roots.is_empty() {
            return Err(
                "the system has no list of certificate authorities: use tlsCAFile=FILE".into(),
            );
        }
        Ok(roots)
    }
}

/// Checks certificates as far as configured, and signatures always.
#[derive(Debug)]
struct Verifier {
    /// Checks chain, time and name; `None` if any certificate is accepted.
    chain: Option<Arc<WebPkiServerVerifier>>,
    any_host: bool,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(chain) = &self.chain else {
            return Ok(ServerCertVerified::assertion());
        };
        // The name is checked last, so a wrong name means that all other checks passed.
        match chain.verify_server_cert(certificate, intermediates, name, ocsp, now) {
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if self.any_host => Ok(ServerCertVerified::assertion()),
            verdict => verdict,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let algorithms = &self.provider.signature_verification_algorithms;
        algorithms.supported_schemes()
    }
}

//! Loading certificates from files, and the subject of a certificate.

use std::path::Path;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, SupportedProtocolVersion, version};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use x509_cert::Certificate;
use x509_cert::der::Decode;

use super::TlsOptions;

/// Loads the configuration of rustls from the files. Errors name the file and the problem.
pub(super) fn load(options: &TlsOptions) -> Result<Arc<ServerConfig>, String> {
    let path = &options.certificate_key_file;
    let (chain, key) = identity(path)?;
    let mut versions: Vec<&'static SupportedProtocolVersion> = Vec::new();
    if !options.without_tls13 {
        versions.push(&version::TLS13);
    }
    if !options.without_tls12 {
        versions.push(&version::TLS12);
    }
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&versions)
        .map_err(|e| format!("no protocol version is enabled: {e}"))?;
    let builder = match &options.ca_file {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let roots = authorities(path)?;
            let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider);
            let verifier = if options.allow_without_certificates {
                verifier.allow_unauthenticated()
            } else {
                verifier
            };
            let verifier = verifier
                .build()
                .map_err(|e| format!("{} cannot be used: {e}", path.display()))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let config = builder
        .with_single_cert(chain, key)
        .map_err(|e| format!("{} cannot be used: {e}", path.display()))?;
    Ok(Arc::new(config))
}

/// Loads a certificate with its chain and the private key from one file.
pub(super) fn identity(
    path: &Path,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), String> {
    let chain = certificates(path)?;
    let key = PrivateKeyDer::from_pem_file(path).map_err(|e| {
        format!(
            "{} holds no readable private key (it must not have a password): {e}",
            path.display()
        )
    })?;
    Ok((chain, key))
}

/// Loads the certificate authorities of a file.
pub(super) fn authorities(path: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots
            .add(certificate)
            .map_err(|e| format!("{} holds no certificate authority: {e}", path.display()))?;
    }
    Ok(roots)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let failed = |e: rustls_pki_types::pem::Error| format!("cannot read {}: {e}", path.display());
    let found: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path)
        .map_err(failed)?
        .collect();
    let found = found.map_err(failed)?;
    if found.is_empty() {
        return Err(format!("{} holds no certificate", path.display()));
    }
    Ok(found)
}

/// Returns the subject in the format of RFC 2253: the most specific name first.
pub(super) fn subject(certificate: &CertificateDer<'_>) -> Option<String> {
    let read = Certificate::from_der(certificate).ok()?;
    let subject = read.tbs_certificate.subject.to_string();
    (!subject.is_empty()).then_some(subject)
}

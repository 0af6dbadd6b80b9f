//! The client side of SCRAM, for programs that log in to a server.
//!
//! The server must prove itself too: an answer with a wrong signature is an error, and so is a challenge
//! with so few iterations that an eavesdropper could guess the password.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use subtle::ConstantTimeEq;

use super::super::credentials::Mechanism;
use crate::error::{Error, ErrorCode, Result};

/// Fewest iterations accepted in a challenge; the number of RFC 7677.
const ITERATIONS_MIN: u32 = 4096;

/// Most iterations accepted in a challenge: some seconds of work.
const ITERATIONS_MAX: u32 = 10_000_000;

/// "No channel binding", in base64.
const NO_BINDING: &str = "c=biws";

/// The client's state of a login.
pub struct ScramClient {
    mechanism: Mechanism,
    /// The password in the form the mechanism hashes.
    password: String,
    /// The first message without its header.
    bare: String,
    nonce: String,
    /// The expected answer of the server to the proof.
    signature: Option<Vec<u8>>,
}

impl ScramClient {
    /// Starts a login; returns the first message as the second value. `nonce` must be unguessable.
    pub fn start(
        mechanism: Mechanism,
        user: &str,
        password: &str,
        nonce: &[u8],
    ) -> Result<(Self, String)> {
        let prepared = mechanism.prepare(user, password)?;
        Ok(Self::with(mechanism, user, prepared, BASE64.encode(nonce)))
    }

    pub(super) fn with(
        mechanism: Mechanism,
        user: &str,
        password: String,
        nonce: String,
    ) -> (Self, String) {
        let escaped = user.replace('=', "=3D").replace(',', "=2C");
        let bare = format!("n={escaped},r={nonce}");
        let first = format!("n,,{bare}");
        let prover = Self {
            mechanism,
            password,
            bare,
            nonce,
            signature: None,
        };
        (prover, first)
    }

    /// Returns the proof for the server's challenge.
    pub fn prove(&mut self, challenge: &[u8]) -> Result<String> {
        let text = std::str::from_utf8(challenge).map_err(|_| untrusted_server("is not text"))?;
        let mut parts = text.split(',');
        let mut part = |name| parts.next().and_then(|part| part.strip_prefix(name));
        let (Some(nonce), Some(salt), Some(iterations)) = (part("r="), part("s="), part("i="))
        else {
            return Err(untrusted_server("is not a SCRAM message"));
        };
        if nonce.len() <= self.nonce.len() || !nonce.starts_with(&self.nonce) {
            return Err(untrusted_server("does not answer this login"));
        }
        let salt = BASE64.decode(salt);
        let salt = salt.map_err(|_| untrusted_server("has a salt that is not in base64"))?;
        let iterations: u32 = iterations
            .parse()
            .ok()
            .filter(|n| (ITERATIONS_MIN..=ITERATIONS_MAX).contains(n))
            .ok_or_else(|| untrusted_server("asks for too few or too many iterations"))?;
        let mechanism = self.mechanism;
        let salted = mechanism.salt_password(self.password.as_bytes(), &salt, iterations);
        let unproven = format!("{NO_BINDING},r={nonce}");
        let signed = format!("{},{text},{unproven}", self.bare);
        let key = mechanism.hmac(&salted, b"Client Key");
        let mask = mechanism.hmac(&mechanism.hash(&key), signed.as_bytes());
        let proof: Vec<u8> = key.iter().zip(&mask).map(|(a, b)| a ^ b).collect();
        let server_key = mechanism.hmac(&salted, b"Server Key");
        self.signature = Some(mechanism.hmac(&server_key, signed.as_bytes()));
        Ok(format!("{unproven},p={}", BASE64.encode(proof)))
    }

    /// Verifies that the server knows the keys of the password.
    pub fn check(&self, answer: &[u8]) -> Result<()> {
        let text = std::str::from_utf8(answer).unwrap_or_default();
        let server_signature = text.strip_prefix("v=").and_then(|v| BASE64.decode(v).ok());
        match (server_signature, &self.signature) {
            (Some(server_signature), Some(signature))
                if bool::from(server_signature.ct_eq(signature)) =>
            {
                Ok(())
            }
            _ => Err(untrusted_server("is followed by a wrong proof of its own")),
        }
    }
}

/// Returns the error for a server that fails a check.
fn untrusted_server(what: &str) -> Error {
    Error::new(
        ErrorCode::AuthenticationFailed,
        format!("the server is not trusted: its challenge {what}"),
    )
}

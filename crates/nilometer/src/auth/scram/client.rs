//! The client's half of SCRAM, for a program of ours that logs in by commands as a driver does.
//!
//! It proves a password without sending it, and checks that the other side knows it, too. What comes
//! from there is not trusted: a challenge for another nonce, or one that asks for hours of work, is
//! refused.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use subtle::ConstantTimeEq;

use super::super::credentials::Mechanism;
use crate::error::Result;

/// How often a server may ask for the password to be hashed.
const ITERATIONS_MAX: u32 = 10_000_000;

/// Somebody who is about to prove a password.
pub struct Prover {
    mechanism: Mechanism,
    password: String,
    nonce: String,
    bare: String,
}

/// The answer to a challenge.
pub struct Proof {
    /// What is sent.
    pub message: String,
    /// What a server answers that knows the password.
    signature: String,
}

impl Proof {
    /// True if this is the last message of a server that knows the password.
    pub fn is_answered_by(&self, message: &str) -> bool {
        message.as_bytes().ct_eq(self.signature.as_bytes()).into()
    }
}

impl Prover {
    /// Somebody called `user`. `nonce` is what nobody can guess, without commas.
    pub fn new(mechanism: Mechanism, user: &str, password: &str, nonce: &str) -> Result<Self> {
        let name = user.replace('=', "=3D").replace(',', "=2C");
        Ok(Self {
            mechanism,
            password: mechanism.prepare(user, password)?,
            nonce: nonce.to_owned(),
            bare: format!("n={name},r={nonce}"),
        })
    }

    /// The first message.
    pub fn first(&self) -> String {
        format!("n,,{}", self.bare)
    }

    /// Answers the server's first message; `None` if that is none.
    pub fn prove(&self, challenge: &str) -> Option<Proof> {
        let mut fields = challenge.split(',');
        let nonce = fields.next()?.strip_prefix("r=")?;
        let salt = BASE64.decode(fields.next()?.strip_prefix("s=")?).ok()?;
        let iterations = fields.next()?.strip_prefix("i=")?.parse().ok()?;
        if !nonce.starts_with(&self.nonce) || !(1..=ITERATIONS_MAX).contains(&iterations) {
            return None;
        }
        let mechanism = self.mechanism;
        let salted = mechanism.stretch(self.password.as_bytes(), &salt, iterations);
        let unproven = format!("c=biws,r={nonce}");
        let signed = format!("{},{challenge},{unproven}", self.bare);
        let key = mechanism.hmac(&salted, b"Client Key");
        let signature = mechanism.hmac(&mechanism.hash(&key), signed.as_bytes());
        let proof: Vec<u8> = key.iter().zip(&signature).map(|(a, b)| a ^ b).collect();
        let server_key = mechanism.hmac(&salted, b"Server Key");
        let answer = mechanism.hmac(&server_key, signed.as_bytes());
        Some(Proof {
            message: format!("{unproven},p={}", BASE64.encode(proof)),
            signature: format!("v={}", BASE64.encode(answer)),
        })
    }
}

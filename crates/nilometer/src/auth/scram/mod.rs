//! The server side of SCRAM (RFC 5802, RFC 7677), message by message.
//!
//! ```text
//! client-first   n,,n=user,r=<nonce>
//! server-first   r=<nonce><more nonce>,s=<salt>,i=<iterations>
//! client-final   c=biws,r=<nonce><more nonce>,p=<proof>
//! server-final   v=<signature>
//! (empty)        (empty)                             unless the client asked to skip it
//! ```
//!
//! Every failure has the same answer, and a missing user takes the same steps as a wrong password, to the
//! last comparison. Channel binding is refused: no MongoDB driver offers it. The client side is in
//! [`client`].

mod client;
#[cfg(test)]
mod tests;

pub use client::ScramClient;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use subtle::ConstantTimeEq;

use super::credentials::{Credentials, Mechanism};
use super::{UserName, failed};
use crate::error::Result;

/// Longest client message, in bytes. A name has at most a few hundred; drivers use nonces of 24 to 32.
pub(super) const MESSAGE_BYTES_MAX: usize = 16 * 1024;

/// The first message of a client.
#[derive(Debug, PartialEq, Eq)]
pub struct ClientFirst<'a> {
    /// The header, which states that there is no channel binding.
    header: &'a str,
    /// The rest, which is signed.
    bare: &'a str,
    /// The claimed user.
    pub user: String,
    nonce: &'a str,
}

impl<'a> ClientFirst<'a> {
    /// Parses the first message.
    pub fn parse(payload: &'a [u8]) -> Result<Self> {
        if payload.len() > MESSAGE_BYTES_MAX {
            return Err(failed());
        }
        let text = std::str::from_utf8(payload).map_err(|_| failed())?;
        let (flag, rest) = text.split_once(',').ok_or_else(failed)?;
        let (authorize, bare) = rest.split_once(',').ok_or_else(failed)?;
        if !matches!(flag, "n" | "y") {
            return Err(failed());
        }
        let mut fields = bare.split(',');
        let user = fields.next().and_then(|f| f.strip_prefix("n="));
        let user = unescape(user.ok_or_else(failed)?).ok_or_else(failed)?;
        let nonce = fields.next().and_then(|f| f.strip_prefix("r="));
        let nonce = nonce.filter(|n| !n.is_empty()).ok_or_else(failed)?;
        // Authorization as another user is not supported.
        let other = authorize.strip_prefix("a=").map(unescape);
        if !authorize.is_empty() && other != Some(Some(user.clone())) {
            return Err(failed());
        }
        Ok(Self {
            header: text.get(..text.len() - bare.len()).unwrap_or(""),
            bare,
            user,
            nonce,
        })
    }
}

/// Decodes `=2C` as a comma and `=3D` as an equals sign; `None` for any other escape.
fn unescape(name: &str) -> Option<String> {
    let mut parts = name.split('=');
    let mut out = parts.next()?.to_owned();
    for part in parts {
        let (sign, rest) = if let Some(rest) = part.strip_prefix("2C") {
            (',', rest)
        } else {
            ('=', part.strip_prefix("3D")?)
        };
        out.push(sign);
        out.push_str(rest);
    }
    (!out.is_empty() && !out.contains('\0')).then_some(out)
}

#[derive(Debug)]
enum ConversationState {
    /// The client must send its proof.
    Challenged { channel: String, signed: String },
    /// The proof was right; the client must send an empty message.
    Proven,
    /// The conversation is over.
    Done,
}

/// A login in progress.
#[derive(Debug)]
pub struct Conversation {
    mechanism: Mechanism,
    user: UserName,
    credentials: Credentials,
    /// False if the user does not exist: then no proof is accepted.
    exists: bool,
    nonce: String,
    skip_empty: bool,
    state: ConversationState,
}

impl Conversation {
    /// Answers the first message. `nonce` is the server's part of the nonce; `exists` is false if
    /// `credentials` are those of a missing user.
    pub fn start(
        mechanism: Mechanism,
        first: &ClientFirst<'_>,
        user: UserName,
        (credentials, exists): (Credentials, bool),
        nonce: &str,
        skip_empty: bool,
    ) -> (Self, String) {
        let nonce = format!("{}{nonce}", first.nonce);
        let salt = BASE64.encode(&credentials.salt);
        let answer = format!("r={nonce},s={salt},i={}", credentials.iterations);
        let state = ConversationState::Challenged {
            channel: BASE64.encode(first.header),
            signed: format!("{},{answer}", first.bare),
        };
        let conversation = Self {
            mechanism,
            user,
            credentials,
            exists,
            nonce,
            skip_empty,
            state,
        };
        (conversation, answer)
    }

    /// Returns the user that logs in.
    pub fn user(&self) -> &UserName {
        &self.user
    }

    /// Returns the mechanism.
    pub fn mechanism(&self) -> Mechanism {
        self.mechanism
    }

    /// True if the next message is the proof.
    pub fn awaits_proof(&self) -> bool {
        matches!(self.state, ConversationState::Challenged { .. })
    }

    /// Answers a later message. The second value is true if the user is logged in.
    pub fn step(&mut self, payload: &[u8]) -> Result<(String, bool)> {
        if payload.len() > MESSAGE_BYTES_MAX {
            return Err(failed());
        }
        match std::mem::replace(&mut self.state, ConversationState::Done) {
            ConversationState::Challenged { channel, signed } => {
                let text = std::str::from_utf8(payload).map_err(|_| failed())?;
                let answer = self.check(text, &channel, &signed)?;
                if !self.skip_empty {
                    self.state = ConversationState::Proven;
                }
                Ok((answer, self.skip_empty))
            }
            ConversationState::Proven if payload.is_empty() => Ok((String::new(), true)),
            ConversationState::Proven | ConversationState::Done => Err(failed()),
        }
    }

    /// Verifies the proof and signs the answer.
    fn check(&self, text: &str, channel: &str, signed: &str) -> Result<String> {
        let (unproven, proof) = text.rsplit_once(",p=").ok_or_else(failed)?;
        let mut fields = unproven.split(',');
        let bound = fields.next().and_then(|f| f.strip_prefix("c="));
        let nonce = fields.next().and_then(|f| f.strip_prefix("r="));
        let (Some(bound), Some(nonce)) = (bound, nonce) else {
            return Err(failed());
        };
        let proof = BASE64.decode(proof).map_err(|_| failed())?;
        let mechanism = self.mechanism;
        let message = format!("{signed},{unproven}");
        let signature = mechanism.hmac(&self.credentials.stored_key, message.as_bytes());
        if proof.len() != signature.len() {
            return Err(failed());
        }
        let key: Vec<u8> = proof.iter().zip(&signature).map(|(a, b)| a ^ b).collect();
        let proven = mechanism.hash(&key).ct_eq(&self.credentials.stored_key)
            & bound.as_bytes().ct_eq(channel.as_bytes())
            & nonce.as_bytes().ct_eq(self.nonce.as_bytes());
        let answer = mechanism.hmac(&self.credentials.server_key, message.as_bytes());
        if bool::from(proven) & self.exists {
            Ok(format!("v={}", BASE64.encode(answer)))
        } else {
            Err(failed())
        }
    }
}

//! The server's half of SCRAM (RFC 5802, RFC 7677), message by message.
//!
//! ```text
//! client-first   n,,n=user,r=<nonce>
//! server-first   r=<nonce><more nonce>,s=<salt>,i=<iterations>
//! client-final   c=biws,r=<nonce><more nonce>,p=<proof>
//! server-final   v=<signature>
//! (empty)        (empty)                             unless the client asked to skip it
//! ```
//!
//! Every way to fail has the same answer, and a name nobody has goes the same way as a wrong
//! password, to the last comparison. Channel binding is refused: no driver of MongoDB offers it. The client's half is
//! in [`client`].

mod client;
#[cfg(test)]
mod tests;

pub use client::Prover;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use subtle::ConstantTimeEq;

use super::credentials::{Credentials, Mechanism};
use super::{UserName, failed};
use crate::error::Result;

/// Bytes of a client's message. A name has at most a few hundred, a nonce drivers make 24 to 32.
pub(super) const MESSAGE_BYTES_MAX: usize = 16 * 1024;

/// What a client says first.
#[derive(Debug, PartialEq, Eq)]
pub struct ClientFirst<'a> {
    /// The part that says there is no channel binding.
    header: &'a str,
    /// The rest, which is signed.
    bare: &'a str,
    /// Who it claims to be.
    pub user: String,
    nonce: &'a str,
}

impl<'a> ClientFirst<'a> {
    /// Reads the first message.
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
        // Acting for somebody else is not offered.
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

/// `=2C` is a comma, `=3D` an equals sign; nothing else may follow one.
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
enum State {
    /// The client owes its proof.
    Challenged { channel: String, signed: String },
    /// The client has proven itself and owes an empty message.
    Proven,
    /// Over.
    Done,
}

/// A login in progress.
#[derive(Debug)]
pub struct Conversation {
    mechanism: Mechanism,
    user: UserName,
    credentials: Credentials,
    /// False if nobody has the name: then no proof is good enough.
    exists: bool,
    nonce: String,
    skip_empty: bool,
    state: State,
}

impl Conversation {
    /// Answers the first message. `nonce` is the server's part of the nonce; `exists` says that
    /// `credentials` are a user's and not those of nobody.
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
        let state = State::Challenged {
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

    /// Who logs in.
    pub fn user(&self) -> &UserName {
        &self.user
    }

    /// How.
    pub fn mechanism(&self) -> Mechanism {
        self.mechanism
    }

    /// True if the next message is the one that proves the password.
    pub fn awaits_proof(&self) -> bool {
        matches!(self.state, State::Challenged { .. })
    }

    /// Answers a later message, and says whether the user is logged in now.
    pub fn go_on(&mut self, payload: &[u8]) -> Result<(String, bool)> {
        if payload.len() > MESSAGE_BYTES_MAX {
            return Err(failed());
        }
        match std::mem::replace(&mut self.state, State::Done) {
            State::Challenged { channel, signed } => {
                let text = std::str::from_utf8(payload).map_err(|_| failed())?;
                let answer = self.check(text, &channel, &signed)?;
                if !self.skip_empty {
                    self.state = State::Proven;
                }
                Ok((answer, self.skip_empty))
            }
            State::Proven if payload.is_empty() => Ok((String::new(), true)),
            State::Proven | State::Done => Err(failed()),
        }
    }

    /// Checks the proof and signs the answer.
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

//! Resume tokens: places in the change log.
//!
//! ```text
//! {_data: hex of  time (8) | event (4) | kind (1) | [fragment (2)]}        integers big-endian
//! kind      00 all events of the time    01 an event    02 the invalidate event after it
//! event     its number within its time; FFFFFFFF with kind 00
//! fragment  of an event that is returned in fragments, from 1
//! ```
//!
//! Tokens sort as the places they name.

use std::fmt::Write as _;

use nilometer_bson::{DocRef, Document, ValueRef, doc};

use crate::error::{Error, ErrorCode, Result};

/// What a token names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenKind {
    /// The end of a time.
    Time,
    /// An event.
    Event,
    /// The invalidate event after an event.
    Invalidate,
}

/// A place in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResumeToken {
    /// A cluster time.
    pub(crate) time: u64,
    /// The number of the event within the time.
    pub(crate) event: u32,
    pub(crate) kind: TokenKind,
    /// The fragment of the event; 0 for the whole.
    pub(crate) fragment: u16,
}

/// Bytes of a token without a fragment, and with one.
const BYTES: usize = 13;
const BYTES_OF_FRAGMENT: usize = 15;

impl ResumeToken {
    /// Returns the token behind all events up to a time.
    pub(crate) fn after(time: u64) -> Self {
        Self {
            time,
            event: u32::MAX,
            kind: TokenKind::Time,
            fragment: 0,
        }
    }

    /// Returns the token of a fragment of this event.
    pub(crate) fn with_fragment(self, fragment: u16) -> Self {
        Self { fragment, ..self }
    }

    /// Returns the token as clients see it.
    pub(crate) fn to_document(self) -> Document {
        let kind = match self.kind {
            TokenKind::Time => 0,
            TokenKind::Event => 1,
            TokenKind::Invalidate => 2,
        };
        let time = self.time.to_be_bytes().into_iter();
        let fragment = Some(self.fragment).filter(|fragment| *fragment > 0);
        let fragment = fragment.map(u16::to_be_bytes).into_iter().flatten();
        let bytes = time.chain(self.event.to_be_bytes()).chain([kind]);
        let bytes = bytes.chain(fragment);
        let mut data = String::with_capacity(2 * BYTES_OF_FRAGMENT);
        for byte in bytes {
            // Writing to a string does not fail.
            let _ = write!(data, "{byte:02X}");
        }
        doc! {"_data": data}
    }

    /// Parses a token.
    pub(crate) fn parse(token: DocRef<'_>) -> Result<Self> {
        let ValueRef::String(data) = token.get("_data") else {
            return Err(Error::new(
                ErrorCode::InvalidResumeToken,
                "Bad resume token: _data of missing or of wrong type",
            ));
        };
        let parsed = Self::of_hex(data);
        parsed.filter(|_| token.iter().count() == 1).ok_or_else(|| {
            Error::new(
                ErrorCode::InvalidResumeToken,
                "resume token was not a token of this server",
            )
        })
    }

    fn of_hex(data: &str) -> Option<Self> {
        let is_known = [2 * BYTES, 2 * BYTES_OF_FRAGMENT].contains(&data.len());
        if !is_known || !data.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        let time = u64::from_str_radix(data.get(..16)?, 16).ok()?;
        let event = u32::from_str_radix(data.get(16..24)?, 16).ok()?;
        let fragment = match data.get(2 * BYTES..)? {
            "" => 0,
            fragment => u16::from_str_radix(fragment, 16).ok()?,
        };
        let kind = match data.get(24..26)? {
            "00" if event == u32::MAX => TokenKind::Time,
            "01" => TokenKind::Event,
            "02" => TokenKind::Invalidate,
            _ => return None,
        };
        if data.len() > 2 * BYTES && (fragment == 0 || kind != TokenKind::Event) {
            return None;
        }
        Some(Self {
            time,
            event,
            kind,
            fragment,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_sort_as_their_places() {
        let token = |time, event, kind| ResumeToken {
            time,
            event,
            kind,
            fragment: 0,
        };
        let tokens = [
            token(1, 0, TokenKind::Event),
            token(1, 0, TokenKind::Event).with_fragment(1),
            token(1, 0, TokenKind::Event).with_fragment(2),
            token(1, 0, TokenKind::Invalidate),
            token(1, 1, TokenKind::Event),
            ResumeToken::after(1),
            token(1 << 40, 0, TokenKind::Event),
        ];
        let documents = tokens.map(ResumeToken::to_document);
        let texts: Vec<_> = documents.iter().map(|d| d.get("_data").as_str()).collect();
        assert!(texts.is_sorted());
        for (token, document) in tokens.iter().zip(&documents) {
            assert_eq!(ResumeToken::parse(document.as_ref()).unwrap(), *token);
        }
        assert_eq!(texts[0], Some("00000000000000010000000001"));
        for bad in [
            "",
            "zz",
            "+0000000000000010000000001",
            "é000000000000010000000001",
        ] {
            assert!(ResumeToken::parse(doc! {"_data": bad}.as_ref()).is_err());
        }
        assert!(ResumeToken::parse(doc! {"_data": 1}.as_ref()).is_err());
        assert!(ResumeToken::parse(doc! {}.as_ref()).is_err());
    }
}

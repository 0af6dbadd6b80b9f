//! What a partition does with an update that may change the shard key of a document, and how it tells the router.
//!
//! ```text
//! the key stays, or becomes what the router allows ─► the document changes
//! anything else ─► code 283 with the document before and after; nothing changes
//! ```

use nilometer_bson::{DocRef, Document, DocumentBuilder, ValueRef};

use super::shard_key::{KeyBound, ShardKey};
use crate::error::{Error, ErrorCode, Result};
use crate::insertion::ChangeGuard;
use crate::operation::{AcceptedDocument, GuardedKey};

/// Fields of the error: the document before and after the update, and the array element that its filter matched.
const BEFORE: &str = "preImage";
const AFTER: &str = "postImage";
const POSITION: &str = "position";

/// Refuses updates that change a shard key.
pub(crate) struct KeyGuard {
    key: ShardKey,
    allowed: Option<KeyBound>,
}

impl KeyGuard {
    /// Makes the guard that a router asks for.
    pub(crate) fn of(guarded: &GuardedKey) -> Result<Self> {
        Ok(Self {
            key: ShardKey::parse(guarded.key.as_ref(), None)?,
            allowed: guarded.allowed.as_ref().map(|values| {
                let values = values.iter().map(|part| part.value().to_value());
                KeyBound(values.collect())
            }),
        })
    }
}

impl ChangeGuard for KeyGuard {
    fn check(&self, before: &Document, after: &Document, position: Option<usize>) -> Result<()> {
        let new = self.key.of(after.as_ref())?;
        if new == self.key.of(before.as_ref())? || self.allowed.as_ref() == Some(&new) {
            return Ok(());
        }
        let mut details = DocumentBuilder::new();
        details.append(BEFORE, before.clone());
        details.append(AFTER, after.clone());
        if let Some(position) = position.and_then(|position| i64::try_from(position).ok()) {
            details.append(POSITION, position);
        }
        let error = Error::new(
            ErrorCode::WouldChangeOwningShard,
            "the update changes the shard key of the document",
        );
        Err(error.with_details(details.finish()))
    }
}

/// Returns the change of a shard key that the answer to an update tells of; `None` if it tells of none.
pub(crate) fn key_change(answer: &Result<Document>) -> Option<AcceptedDocument> {
    match answer {
        Ok(reply) => {
            let errors = reply.get("writeErrors").as_array()?;
            key_change_in(errors.get(0).as_document()?)
        }
        Err(error) => key_change_of(error),
    }
}

/// Returns what an error tells.
pub(crate) fn key_change_of(error: &Error) -> Option<AcceptedDocument> {
    let details = error.details.as_ref()?;
    match error.code {
        ErrorCode::WouldChangeOwningShard => read(details.as_ref()),
        _ => None,
    }
}

/// Returns what an entry of `writeErrors` tells.
pub(crate) fn key_change_in(entry: DocRef<'_>) -> Option<AcceptedDocument> {
    let code = i64::from(ErrorCode::WouldChangeOwningShard.0);
    let is_change = entry.get("code").as_exact_i64() == Some(code);
    is_change.then(|| read(entry)).flatten()
}

fn read(details: DocRef<'_>) -> Option<AcceptedDocument> {
    let image = |name| match details.get(name) {
        ValueRef::Document(image) => Some(image.to_document()),
        _ => None,
    };
    let position = details.get(POSITION).as_exact_i64();
    Some(AcceptedDocument {
        before: image(BEFORE)?,
        after: image(AFTER)?,
        position: position.and_then(|position| usize::try_from(position).ok()),
    })
}

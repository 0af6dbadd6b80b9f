//! `$changeStreamSplitLargeEvent`: an event that is too large for one document, in fragments.
//!
//! Each fragment has some of the fields, a token of its own, and `splitEvent: {fragment, of}`. The same event is always split in
//! the same way, so a stream continues between two fragments.

use nilometer_bson::{Document, DocumentBuilder, Element, Value, doc};

use super::token::ResumeToken;
use crate::error::{Error, ErrorCode, Result};

/// Bytes of an event that is not split: those of the largest document and room for the fields of the server.
pub(super) const EVENT_BYTES_MAX: usize = (16 << 20) + (16 << 10);

/// Bytes of the fields of an event in one fragment, unless it has one field alone.
const FIELD_BYTES_MAX: usize = 16 << 20;

/// Returns the error for an event that is too large.
pub(super) fn too_large(event: &Document) -> Error {
    Error::new(
        ErrorCode::BSONObjectTooLarge,
        format!(
            "BSONObj size: {} is invalid. Size must be between 0 and {EVENT_BYTES_MAX}(16MB): a change event, which $changeStreamSplitLargeEvent would split",
            event.as_bytes().len()
        ),
    )
}

/// Returns the fragments of an event.
pub(super) fn fragments(event: &Document) -> Result<Vec<Document>> {
    let token = event.get("_id").as_document();
    let token = ResumeToken::parse(token.unwrap_or_else(|| event.as_ref()))?;
    let mut parts: Vec<Vec<Element<'_>>> = Vec::new();
    let mut bytes = 0;
    for field in event.iter().filter(|field| field.name() != "_id") {
        let length = field.name().len() + field.value_bytes().len() + 2;
        match parts.last_mut() {
            Some(part) if bytes + length <= FIELD_BYTES_MAX => {
                part.push(field);
                bytes += length;
            }
            _ => {
                parts.push(vec![field]);
                bytes = length;
            }
        }
    }
    let count = i32::try_from(parts.len()).unwrap_or(i32::MAX);
    let fragments = (1_u16..).zip(parts).map(|(number, part)| {
        let mut out = DocumentBuilder::with_capacity(FIELD_BYTES_MAX / 2);
        out.append("_id", token.with_fragment(number).to_document());
        let place = doc! {"fragment": i32::from(number), "of": count};
        out.append("splitEvent", Value::from(place));
        for field in part {
            out.append_element(field);
        }
        out.finish()
    });
    Ok(fragments.collect())
}

/// Returns the number of fragments up to `after`; `None` if this is not its event, or it has fewer.
pub(super) fn passed(event: &Document, after: ResumeToken, count: usize) -> Option<usize> {
    let token = ResumeToken::parse(event.get("_id").as_document()?).ok()?;
    let passed = usize::from(after.fragment);
    (token.with_fragment(after.fragment) == after && passed <= count).then_some(passed)
}

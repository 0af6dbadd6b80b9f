//! Empty timestamps: `Timestamp(0, 0)` at the top level of an inserted or replacing document becomes the
//! current timestamp, each greater than the one before. Empty timestamps in `_id` and in nested documents
//! stay.

use std::sync::atomic::Ordering;

use nilometer_bson::{Document, DocumentBuilder, Element, Timestamp, ValueRef};

use super::records::Records;
use super::validator::DocumentChecks;

impl Records {
    /// Returns the document with its empty timestamps replaced.
    pub(super) fn with_timestamps(
        &self,
        document: Document,
        checking: DocumentChecks<'_>,
    ) -> Document {
        let is_empty = |element: &Element<'_>| {
            let value = element.value();
            matches!(value, ValueRef::Timestamp(t) if t.to_u64() == 0) && element.name() != "_id"
        };
        if checking.bypass.empty_timestamps || !document.iter().any(|e| is_empty(&e)) {
            return document;
        }
        let mut out = DocumentBuilder::with_capacity(document.as_bytes().len());
        for element in document.iter() {
            if is_empty(&element) {
                let next = self.next_timestamp(checking.eval.now_ms);
                out.append_ref(element.name(), ValueRef::Timestamp(next));
            } else {
                out.append_element(element);
            }
        }
        out.finish()
    }

    fn next_timestamp(&self, now_ms: i64) -> Timestamp {
        let seconds = u32::try_from(now_ms.div_euclid(1000)).unwrap_or(0);
        let first = Timestamp {
            seconds,
            increment: 1,
        };
        let next = |last: u64| Some(first.to_u64().max(last.saturating_add(1)));
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        let last = self.timestamp.fetch_update(set, fetch, next);
        let last = last.unwrap_or_else(|unchanged| unchanged);
        Timestamp::from_u64(first.to_u64().max(last.saturating_add(1)))
    }
}

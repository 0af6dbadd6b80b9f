//! The labels of the series before, from which those of the next are copied as far as they are the same.
//!
//! ```text
//! series before   cpu="0"  env="prod"  mode="idle"  ─► elements of its tags
//!                   │ =        │ =         │ ≠              │
//! series          cpu="0"  env="prod"  mode="user"      copied, copied, parsed
//! ```
//!
//! Series of one target come one after the other, and differ in their metric and a few labels.

use super::message::Message;

/// A label of a series.
#[derive(Clone, Copy)]
struct Label<'a> {
    /// The field of the message, with its key and its length: the same bytes are the same label.
    field: &'a [u8],
    name: &'a [u8],
    /// Where its element ends among those of the series.
    end: usize,
}

/// The labels of the series before that are tags, and those of the series that is read.
#[derive(Default)]
pub(super) struct LastLabels<'a> {
    before: Vec<Label<'a>>,
    /// The elements of `before`.
    elements: Vec<u8>,
    /// All fields of `before`, if nothing was between them, else nothing: labels that are all the same are compared at once.
    fields: &'a [u8],
    read: Vec<Label<'a>>,
    /// The message from the first label that was read on, and what was left of it behind the last.
    message: (&'a [u8], &'a [u8]),
    /// Those that were read are the first of `before`.
    are_same: bool,
    /// The names of those that were read ascend.
    are_sorted: bool,
}

impl<'a> LastLabels<'a> {
    /// Begins a series.
    pub(super) fn begin(&mut self) {
        self.read.clear();
        (self.are_same, self.are_sorted) = (true, true);
    }

    /// Takes the next field from the message, and appends its element, if it is the label that the series before has at this place.
    #[inline]
    pub(super) fn copy_next(&mut self, message: &mut Message<'a>, out: &mut Vec<u8>) -> bool {
        let at = self.read.len();
        if at == 0 {
            self.message.0 = message.0;
            if !self.fields.is_empty()
                && let Some(rest) = message.0.strip_prefix(self.fields)
            {
                message.0 = rest;
                out.extend_from_slice(&self.elements);
                self.read.extend_from_slice(&self.before);
                return true;
            }
        }
        let Some(known) = self.before.get(at) else {
            return false;
        };
        let Some(rest) = message.0.strip_prefix(known.field) else {
            return false;
        };
        message.0 = rest;
        let start = at.checked_sub(1).map_or(0, |last| self.before[last].end);
        out.extend_from_slice(&self.elements[start..known.end]);
        // Labels that are the same so far are in the same order.
        let (known, length) = (*known, known.end - start);
        let begin = self.read.last().map_or(0, |last| last.end);
        self.are_sorted &= self.are_same || self.follows(known.name);
        self.read.push(Label {
            end: begin + length,
            ..known
        });
        self.message.1 = message.0;
        true
    }

    /// Adds a label that was read from the message, of which `rest` is left. Its element ends at `end` among those of the series.
    pub(super) fn add(&mut self, (field, rest): (&'a [u8], &'a [u8]), name: &'a [u8], end: usize) {
        self.message.1 = rest;
        self.are_sorted &= self.follows(name);
        self.are_same = false;
        self.read.push(Label { field, name, end });
    }

    fn follows(&self, name: &[u8]) -> bool {
        self.read.last().is_none_or(|last| last.name < name)
    }

    /// Returns the number of labels that were read.
    pub(super) fn count(&self) -> usize {
        self.read.len()
    }

    /// True if their names ascend.
    pub(super) fn are_sorted(&self) -> bool {
        self.are_sorted
    }

    /// Ends a series, all of whose elements these are.
    pub(super) fn keep(&mut self, elements: &[u8]) {
        if self.are_same && self.read.len() == self.before.len() {
            return;
        }
        std::mem::swap(&mut self.before, &mut self.read);
        let (start, rest) = self.message;
        let fields = start.strip_suffix(rest).unwrap_or_default();
        let bytes: usize = self.before.iter().map(|label| label.field.len()).sum();
        self.fields = if bytes == fields.len() { fields } else { &[] };
        self.elements.clear();
        self.elements.extend_from_slice(elements);
    }
}

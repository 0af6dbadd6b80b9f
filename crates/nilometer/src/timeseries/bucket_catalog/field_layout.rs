//! The fields of one command's measurements, side by side.
//!
//! Grouping reads every field once; the bucket needs the same fields later, when the documents have left the processor's cache.
//! The layout keeps of each field its name, its type, the bits of a number, and the number of a text that repeats.

use std::sync::Arc;

use nilometer_bson::document::decode_value;
use nilometer_bson::{DocRef, Element, ValueRef, type_code};

use super::field_names::FieldNames;

/// Fields of a layout; the documents of further measurements are read again.
const FIELDS_MAX: usize = 1 << 21;

/// Fields to reserve memory for.
const FIELDS_EXPECTED_MAX: usize = 1 << 18;

/// Bytes of the length of a text.
const LENGTH_BYTES: usize = 4;

/// A field of a measurement: the id of its name, and its value.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LayoutField {
    /// The bytes of a number, which need no look at the document.
    bits: u64,
    /// Offset of the value in its document.
    at: u32,
    /// The id of its name.
    pub(crate) name_id: u16,
    pub(super) type_code: u8,
    /// The number of a text ([`TextNumbers`]); 0 if it has none.
    pub(super) text: u8,
}

impl LayoutField {
    /// The field with a name of this id whose value starts at `at` in its document. A text is numbered.
    #[inline]
    pub(crate) fn new(
        name_id: u16,
        element: &Element<'_>,
        at: usize,
        texts: &mut TextNumbers,
    ) -> Self {
        let (type_code, value) = (element.type_code(), element.value_bytes());
        let bits = value.first_chunk().copied();
        let text = match type_code {
            type_code::STRING => texts.number(name_id, value),
            _ => 0,
        };
        Self {
            bits: bits.map_or(0, u64::from_le_bytes),
            at: at as u32,
            name_id,
            type_code,
            text,
        }
    }

    /// Where in its document the value begins.
    fn at(&self) -> usize {
        self.at as usize
    }

    /// True if the value, a text, is this one.
    #[inline]
    pub(super) fn is_text(&self, document: DocRef<'_>, text: &str) -> bool {
        let length = text.len() as u32 + 1;
        let behind = document.as_bytes().get(self.at() + LENGTH_BYTES..);
        // `bits` starts with the length.
        self.bits as u32 == length && behind.is_some_and(|b| b.starts_with(text.as_bytes()))
    }

    #[inline]
    pub(crate) fn value<'a>(&self, document: DocRef<'a>) -> ValueRef<'a> {
        match self.type_code {
            type_code::DOUBLE => ValueRef::Double(f64::from_bits(self.bits)),
            type_code::INT64 => ValueRef::Int64(self.bits.cast_signed()),
            type_code::DATE_TIME => ValueRef::DateTime(self.bits.cast_signed()),
            code => {
                let value = &document.as_bytes()[self.at()..];
                decode_value(code, value).unwrap_or_default()
            }
        }
    }
}

/// Numbered texts of a command.
const TEXTS_MAX: usize = u8::MAX as usize;

/// Longer texts get no number, in bytes of their values.
const TEXT_BYTES_MAX: usize = 64;

/// Latest texts of a field to compare with.
const LATEST_TEXTS: usize = 4;

/// Numbers of repeated texts: a text with a number needs no look at the document.
#[derive(Debug, Default)]
pub(crate) struct TextNumbers {
    /// By number, from 1: the value.
    texts: Vec<Box<[u8]>>,
    /// By name id, the latest numbers; 0 for none.
    latest_numbers: Vec<[u8; LATEST_TEXTS]>,
}

impl TextNumbers {
    /// Returns the number of the value of a field; 0 if it gets none.
    #[inline]
    fn number(&mut self, name: u16, value: &[u8]) -> u8 {
        let name_id = usize::from(name);
        let is_it = |number: &u8| {
            let text = self.texts.get(usize::from(*number).wrapping_sub(1));
            text.is_some_and(|text| **text == *value)
        };
        let latest = self.latest_numbers.get(name_id);
        match latest.and_then(|latest| latest.iter().copied().find(is_it)) {
            Some(number) => number,
            None => self.add(name_id, value),
        }
    }

    #[inline(never)]
    fn add(&mut self, name_id: usize, value: &[u8]) -> u8 {
        if self.texts.len() == TEXTS_MAX || value.len() > TEXT_BYTES_MAX {
            return 0;
        }
        if self.latest_numbers.len() <= name_id {
            self.latest_numbers.resize(name_id + 1, [0; LATEST_TEXTS]);
        }
        self.texts.push(value.into());
        let number = self.texts.len() as u8;
        let latest = &mut self.latest_numbers[name_id];
        latest.rotate_right(1);
        latest[0] = number;
        number
    }
}

/// The fields of one measurement in a layout, without its metadata.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FieldRange {
    start: u32,
    count: u32,
    /// Bytes of their values.
    pub(super) bytes: u32,
}

/// The fields of many measurements, and their names.
#[derive(Debug)]
pub(crate) struct FieldLayout {
    pub(crate) names: FieldNames,
    /// `_id`.
    pub(super) id_name: Arc<str>,
    /// Its id.
    pub(super) id_name_id: u16,
    fields: Vec<LayoutField>,
}

impl FieldLayout {
    /// An empty layout.
    pub(crate) fn new(mut names: FieldNames) -> Self {
        Self {
            id_name: names.intern(b"_id"),
            // Without an id it is searched among the columns each time.
            id_name_id: names.id_of(b"_id").unwrap_or(u16::MAX),
            names,
            fields: Vec::new(),
        }
    }

    /// Reserves memory for documents like the first.
    pub(crate) fn reserve(&mut self, documents: usize) {
        let expected = documents.saturating_mul(self.fields.len());
        self.fields.reserve(expected.min(FIELDS_EXPECTED_MAX));
    }

    /// Index of the next field.
    pub(crate) fn next(&self) -> usize {
        self.fields.len()
    }

    /// Adds a field; false if the layout is full.
    #[inline]
    pub(crate) fn add(&mut self, field: LayoutField) -> bool {
        if self.fields.len() >= FIELDS_MAX {
            return false;
        }
        self.fields.push(field);
        true
    }

    /// Returns the range of the fields added from `start` on.
    pub(crate) fn range(&self, start: usize, bytes: usize) -> Option<FieldRange> {
        Some(FieldRange {
            start: u32::try_from(start).ok()?,
            count: u32::try_from(self.fields.len() - start).ok()?,
            bytes: u32::try_from(bytes).ok()?,
        })
    }

    /// Returns the fields of a measurement.
    pub(crate) fn fields(&self, range: FieldRange) -> &[LayoutField] {
        let start = range.start as usize;
        &self.fields[start..start + range.count as usize]
    }
}

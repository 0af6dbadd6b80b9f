//! The fields of one command's measurements, walked once.
//!
//! Whoever groups measurements walks their fields, and the bucket they go to needs the same fields again, long after they
//! have left the processor's cache. The plan keeps them side by side: whose name, which type, of numbers the value, and
//! of texts that come again and again a number.

use std::sync::Arc;

use nilometer_bson::document::decode_value;
use nilometer_bson::{DocRef, Element, ValueRef, type_code};

use super::field_names::FieldNames;

/// Fields a plan holds; those of further measurements are walked again.
const FIELDS_MAX: usize = 1 << 21;

/// Fields it makes room for before it has seen them.
const FIELDS_EXPECTED_MAX: usize = 1 << 18;

/// Bytes that say how long a text is.
const LENGTH_BYTES: usize = 4;

/// A field of a measurement: a name of the plan, and a value.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LayoutField {
    /// Of a number its bytes, which are looked at nowhere else.
    bits: u64,
    /// Where in its document the value begins.
    at: u32,
    /// The place of its name.
    pub(crate) name: u16,
    pub(super) type_code: u8,
    /// Of a text its number ([`TextNumbers`]); 0 if it has none.
    pub(super) text: u8,
}

impl LayoutField {
    /// The field with a name of this place whose value begins at `at` in its document.
    #[inline]
    pub(crate) fn new(name: u16, element: &Element<'_>, at: usize) -> Self {
        let value = element.value_bytes().first_chunk();
        Self {
            bits: value.map_or(0, |bytes| u64::from_le_bytes(*bytes)),
            at: at as u32,
            name,
            type_code: element.type_code(),
            text: 0,
        }
    }

    /// Gives the field, which is a text, its number.
    #[inline]
    pub(crate) fn number_text(&mut self, document: DocRef<'_>, texts: &mut TextNumbers) {
        let value = document.as_bytes().get(self.at()..);
        let value = value.and_then(|value| {
            let length = u32::from_le_bytes(*value.first_chunk()?);
            value.get(..LENGTH_BYTES + length as usize)
        });
        self.text = value.map_or(0, |value| texts.number(self.name, value));
    }

    /// Where in its document the value begins.
    pub(crate) fn at(&self) -> usize {
        self.at as usize
    }

    /// True if the value, which is a text, is this one.
    #[inline]
    pub(super) fn is_text(&self, document: DocRef<'_>, text: &str) -> bool {
        let length = text.len() as u32 + 1;
        let behind = document.as_bytes().get(self.at() + LENGTH_BYTES..);
        // The length is a part of what was read from the beginning of the value.
        self.bits as u32 == length && behind.is_some_and(|b| b.starts_with(text.as_bytes()))
    }

    #[inline]
    pub(crate) fn value<'a>(&self, document: DocRef<'a>) -> ValueRef<'a> {
        match self.type_code {
            type_code::DOUBLE => ValueRef::Double(f64::from_bits(self.bits)),
            type_code::INT64 => ValueRef::Int64(self.bits.cast_signed()),
            type_code::DATE_TIME => ValueRef::DateTime(self.bits.cast_signed()),
            code => {
                let value = document.as_bytes().get(self.at as usize..);
                let value = value.and_then(|bytes| decode_value(code, bytes));
                value.unwrap_or_default()
            }
        }
    }
}

/// Texts that have numbers, at most.
const TEXTS_MAX: usize = u8::MAX as usize;

/// Longer texts have no numbers, in bytes of their values.
const TEXT_BYTES_MAX: usize = 64;

/// Texts of a field that are looked at for one that comes again.
const LATEST_TEXTS: usize = 4;

/// Numbers of texts that fields repeat: who has met a number knows the text without a look at the document.
#[derive(Debug, Default)]
pub(crate) struct TextNumbers {
    /// Their values by number, the first of which is 1.
    texts: Vec<Box<[u8]>>,
    /// By the places of names the numbers given last; 0 for none.
    latest_numbers: Vec<[u8; LATEST_TEXTS]>,
}

impl TextNumbers {
    /// The number of the value of a field; 0 if it gets none.
    #[inline]
    fn number(&mut self, name: u16, value: &[u8]) -> u8 {
        let place = usize::from(name);
        let is_it = |number: &u8| {
            let text = self.texts.get(usize::from(*number).wrapping_sub(1));
            text.is_some_and(|text| **text == *value)
        };
        let latest = self.latest_numbers.get(place);
        match latest.and_then(|latest| latest.iter().copied().find(is_it)) {
            Some(number) => number,
            None => self.add(place, value),
        }
    }

    #[inline(never)]
    fn add(&mut self, place: usize, value: &[u8]) -> u8 {
        if self.texts.len() == TEXTS_MAX || value.len() > TEXT_BYTES_MAX {
            return 0;
        }
        if self.latest_numbers.len() <= place {
            self.latest_numbers.resize(place + 1, [0; LATEST_TEXTS]);
        }
        self.texts.push(value.into());
        let number = self.texts.len() as u8;
        let latest = &mut self.latest_numbers[place];
        latest.rotate_right(1);
        latest[0] = number;
        number
    }
}

/// Which fields of a plan are those of a measurement, its metadata left out.
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
    /// What identities are called.
    pub(super) id_name: Arc<str>,
    /// The place of that name.
    pub(super) id_place: u16,
    fields: Vec<LayoutField>,
}

impl FieldLayout {
    /// One without fields.
    pub(crate) fn new(mut names: FieldNames) -> Self {
        Self {
            id_name: names.get(b"_id"),
            // Without a place it is looked for among the columns each time.
            id_place: names.place(b"_id").unwrap_or(u16::MAX),
            names,
            fields: Vec::new(),
        }
    }

    /// Makes room for documents as the one whose fields were added.
    pub(crate) fn reserve(&mut self, documents: usize) {
        let expected = documents.saturating_mul(self.fields.len());
        self.fields.reserve(expected.min(FIELDS_EXPECTED_MAX));
    }

    /// Where the fields of the next measurement begin.
    pub(crate) fn next(&self) -> usize {
        self.fields.len()
    }

    /// Adds a field; false if the plan is full.
    pub(crate) fn add(&mut self, field: LayoutField) -> bool {
        if self.fields.len() >= FIELDS_MAX {
            return false;
        }
        self.fields.push(field);
        true
    }

    /// Adds the fields of these places, given as bits, in their order; false if the plan is full.
    #[inline]
    pub(crate) fn add_places(&mut self, fields: &[LayoutField], mut places: u64) -> bool {
        if self.fields.len() + fields.len() > FIELDS_MAX {
            return false;
        }
        // Most have all places but that of the metadata: neighbours are added together.
        let mut from = 0;
        while places != 0 {
            from += places.trailing_zeros() as usize;
            places >>= places.trailing_zeros();
            let count = places.trailing_ones();
            let run = fields.get(from..from + count as usize);
            self.fields.extend_from_slice(run.unwrap_or_default());
            from += count as usize;
            places = places.checked_shr(count).unwrap_or(0);
        }
        true
    }

    /// What was added from `start` on: the fields of one measurement.
    pub(crate) fn range(&self, start: usize, bytes: usize) -> Option<FieldRange> {
        Some(FieldRange {
            start: u32::try_from(start).ok()?,
            count: u32::try_from(self.fields.len() - start).ok()?,
            bytes: u32::try_from(bytes).ok()?,
        })
    }

    /// The fields of a measurement.
    pub(crate) fn fields(&self, range: FieldRange) -> &[LayoutField] {
        let fields = self.fields.get(range.start as usize..);
        let fields = fields.and_then(|fields| fields.get(..range.count as usize));
        fields.unwrap_or_default()
    }
}

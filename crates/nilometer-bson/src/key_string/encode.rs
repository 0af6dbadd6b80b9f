//! Encoding of values as keys.

use super::number::{self, EncodedNumber};
use super::type_bits::{StoredType, TypeBitsWriter};
use super::{END, ESCAPE, KeyOrder, lead, place_byte};
use crate::document::{ArrayRef, DocRef};
use crate::number::Number;
use crate::order::{Collator, canonical_type};
use crate::value::ValueRef;

/// Lengths from here on are encoded in five bytes.
const SHORT_LENGTH_END: usize = 0xFF;

/// Builds one key, component by component.
pub struct KeyBuilder<'c> {
    bytes: Vec<u8>,
    type_bits: TypeBitsWriter,
    order: KeyOrder,
    components: usize,
    collator: Option<&'c dyn Collator>,
}

impl<'c> KeyBuilder<'c> {
    /// Creates an empty key.
    pub fn new(order: KeyOrder) -> Self {
        Self::with_collator(order, None)
    }

    /// Creates an empty key whose strings are encoded as sort keys of `collator`.
    pub fn with_collator(order: KeyOrder, collator: Option<&'c dyn Collator>) -> Self {
        Self {
            bytes: Vec::with_capacity(32),
            type_bits: TypeBitsWriter::default(),
            order,
            components: 0,
            collator,
        }
    }

    /// Appends the next component.
    pub fn push(&mut self, value: ValueRef<'_>) -> &mut Self {
        let start = self.bytes.len();
        self.value(value);
        if self.order.is_descending(self.components) {
            invert(self.bytes.get_mut(start..));
        }
        self.components += 1;
        self
    }

    /// Appends bytes unchanged after the last component: a record id or `_id`.
    pub fn push_suffix(&mut self, suffix: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(suffix);
        self
    }

    /// Returns the key built so far.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the key and its type bits.
    pub fn finish(self) -> (Vec<u8>, Vec<u8>) {
        (self.bytes, self.type_bits.finish())
    }

    // long function: one arm per type.
    fn value(&mut self, value: ValueRef<'_>) {
        if let Some(number) = Number::of(value) {
            return self.number(number);
        }
        match value {
            ValueRef::MinKey => self.bytes.push(lead::MIN_KEY),
            ValueRef::Missing | ValueRef::Undefined => self.bytes.push(lead::UNDEFINED),
            ValueRef::Null => self.bytes.push(lead::NULL),
            // Handled above.
            ValueRef::Int32(_)
            | ValueRef::Int64(_)
            | ValueRef::Double(_)
            | ValueRef::Decimal128(_) => {}
            ValueRef::String(text) => {
                self.type_bits.push_default();
                self.string(text);
            }
            ValueRef::Symbol(text) => {
                self.type_bits.push(StoredType::Symbol);
                self.string(text);
            }
            ValueRef::Document(document) => {
                self.bytes.push(lead::OBJECT);
                self.object(document);
            }
            ValueRef::Array(array) => self.array(array),
            ValueRef::Binary { subtype, bytes } => {
                self.bytes.push(lead::BINARY);
                match u8::try_from(bytes.len()) {
                    Ok(short) if bytes.len() < SHORT_LENGTH_END => self.bytes.push(short),
                    _ => {
                        self.bytes.push(SHORT_LENGTH_END as u8);
                        self.length(bytes.len());
                    }
                }
                self.bytes.push(subtype);
                self.bytes.extend_from_slice(bytes);
            }
            ValueRef::ObjectId(id) => self.fixed(lead::OBJECT_ID, &id.0),
            ValueRef::Bool(false) => self.bytes.push(lead::FALSE),
            ValueRef::Bool(true) => self.bytes.push(lead::TRUE),
            ValueRef::DateTime(ms) => {
                let ordered = ms as u64 ^ (1 << 63);
                self.fixed(lead::DATE, &ordered.to_be_bytes());
            }
            ValueRef::Timestamp(time) => {
                self.fixed(lead::TIMESTAMP, &time.to_u64().to_be_bytes());
            }
            ValueRef::Regex { pattern, options } => {
                self.bytes.push(lead::REGEX);
                self.escaped(pattern.as_bytes());
                self.escaped(options.as_bytes());
            }
            ValueRef::DbPointer { namespace, id } => {
                self.bytes.push(lead::DB_POINTER);
                self.length(namespace.len());
                self.bytes.extend_from_slice(namespace.as_bytes());
                self.bytes.extend_from_slice(&id.0);
            }
            ValueRef::Code(code) => {
                self.bytes.push(lead::CODE);
                self.escaped(code.as_bytes());
            }
            ValueRef::CodeWithScope { code, scope } => {
                self.bytes.push(lead::CODE_WITH_SCOPE);
                self.escaped(code.as_bytes());
                // The collation does not apply to the scope, as in comparison.
                let collator = self.collator.take();
                self.object(scope);
                self.collator = collator;
            }
            ValueRef::MaxKey => self.bytes.push(lead::MAX_KEY),
        }
    }

    fn fixed(&mut self, lead: u8, body: &[u8]) {
        self.bytes.push(lead);
        self.bytes.extend_from_slice(body);
    }

    /// Appends a length. BSON lengths are below 2^31.
    fn length(&mut self, length: usize) {
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        self.bytes.extend_from_slice(&length.to_be_bytes());
    }

    fn number(&mut self, number: Number) {
        let EncodedNumber {
            negative,
            size,
            kind,
        } = number::take_apart(number);
        match kind {
            Some(kind) => self.type_bits.push(kind),
            None => self.type_bits.push_default(),
        }
        self.bytes.push(number::lead_byte(negative, size));
        let start = self.bytes.len();
        number::write_size(size, &mut self.bytes);
        if negative {
            invert(self.bytes.get_mut(start..));
        }
    }

    fn string(&mut self, text: &str) {
        self.bytes.push(lead::STRING);
        match self.collator {
            Some(collator) => {
                let mut key = Vec::with_capacity(2 * text.len());
                collator.sort_key(text, &mut key);
                self.escaped(&key);
            }
            None => self.escaped(text.as_bytes()),
        }
    }

    fn escaped(&mut self, bytes: &[u8]) {
        let mut parts = bytes.split(|b| *b == END);
        if let Some(first) = parts.next() {
            self.bytes.extend_from_slice(first);
        }
        for part in parts {
            self.bytes.extend_from_slice(&[END, ESCAPE]);
            self.bytes.extend_from_slice(part);
        }
        self.bytes.extend_from_slice(&[END, END]);
    }

    fn object(&mut self, document: DocRef<'_>) {
        for element in document {
            let value = element.value();
            self.bytes.push(place_byte(canonical_type(value)));
            self.bytes.extend_from_slice(element.name_bytes());
            self.bytes.push(END);
            self.value(value);
        }
        self.bytes.push(END);
    }

    fn array(&mut self, array: ArrayRef<'_>) {
        self.bytes.push(lead::ARRAY);
        for element in array.iter() {
            self.value(element);
        }
        self.bytes.push(END);
    }
}

/// Inverts all bits.
fn invert(bytes: Option<&mut [u8]>) {
    for byte in bytes.into_iter().flatten() {
        *byte = !*byte;
    }
}

//! Documents as bytes: zero-copy reading, and building.
//!
//! ```text
//! document  int32 total length | element … | 00
//! element   type byte | name … 00 | value bytes
//! ```

mod length;

use std::sync::Arc;

use length::counted;
pub use length::value_length;

use crate::validate::find_nul;
use crate::value::{Decimal128, ObjectId, Timestamp, Value, ValueRef, type_code as t};

/// The empty document.
const EMPTY: &[u8] = &[5, 0, 0, 0, 0];

/// A document borrowed from bytes.
#[derive(Clone, Copy, Debug)]
pub struct DocRef<'a>(&'a [u8]);

/// An array borrowed from bytes.
#[derive(Clone, Copy, Debug)]
pub struct ArrayRef<'a>(DocRef<'a>);

/// A document that owns its bytes, shared between copies.
#[derive(Clone, Debug)]
pub struct Document {
    bytes: Arc<Vec<u8>>,
}

impl Default for Document {
    fn default() -> Self {
        Self {
            bytes: Arc::new(EMPTY.to_vec()),
        }
    }
}

/// One element of a document. Its value is decoded on request.
#[derive(Clone, Copy, Debug)]
pub struct Element<'a> {
    /// The type byte, widened to a word: a struct without padding is copied in whole words. With
    /// padding it is copied in overlapping parts, and each causes a store-forwarding stall.
    type_code: usize,
    name: &'a [u8],
    value: &'a [u8],
}

impl<'a> Element<'a> {
    /// Returns the BSON type byte.
    #[inline]
    pub fn type_code(&self) -> u8 {
        self.type_code as u8
    }

    /// Returns the field name; empty if it is not UTF-8, which validated documents never contain.
    pub fn name(&self) -> &'a str {
        std::str::from_utf8(self.name).unwrap_or("")
    }

    /// Returns the field name's bytes.
    #[inline]
    pub fn name_bytes(&self) -> &'a [u8] {
        self.name
    }

    /// Returns the bytes of the value, without type and name.
    #[inline]
    pub fn value_bytes(&self) -> &'a [u8] {
        self.value
    }

    /// Returns the value.
    #[inline]
    pub fn value(&self) -> ValueRef<'a> {
        // Fast path without a call for the types that measurements consist of.
        match (self.type_code(), self.value.first_chunk::<8>()) {
            (t::INT64, Some(bytes)) => ValueRef::Int64(i64::from_le_bytes(*bytes)),
            (t::DOUBLE, Some(bytes)) => ValueRef::Double(f64::from_le_bytes(*bytes)),
            _ => decode_value(self.type_code(), self.value).unwrap_or(ValueRef::Missing),
        }
    }
}

/// True if two names of equal length are equal. Names are short: two words usually decide without a
/// call to `memcmp`.
#[inline]
fn equal_names(a: &[u8], b: &[u8]) -> bool {
    let ends = |name: &[u8]| {
        let (first, last) = (name.first_chunk::<8>()?, name.last_chunk::<8>()?);
        Some((u64::from_le_bytes(*first), u64::from_le_bytes(*last)))
    };
    match (ends(a), ends(b)) {
        (Some(of_a), Some(of_b)) if a.len() <= 16 => of_a == of_b,
        (None, None) => a.iter().zip(b).all(|(a, b)| a == b),
        _ => a == b,
    }
}

/// Returns the bytes before the first NUL.
fn c_string(bytes: &[u8]) -> Option<&[u8]> {
    let (end, _) = find_nul(bytes)?;
    bytes.get(..end)
}

/// Decodes a length-prefixed, NUL-terminated string.
fn string(bytes: &[u8]) -> Option<&str> {
    let n = counted(bytes, 1)?;
    std::str::from_utf8(bytes.get(4..4 + n - 1)?).ok()
}

/// Decodes the value whose bytes are `bytes`.
pub fn decode_value(type_code: u8, bytes: &[u8]) -> Option<ValueRef<'_>> {
    let eight = || bytes.first_chunk::<8>().copied();
    Some(match type_code {
        t::DOUBLE => ValueRef::Double(f64::from_le_bytes(eight()?)),
        t::STRING => ValueRef::String(string(bytes)?),
        t::DOCUMENT => ValueRef::Document(DocRef::new(bytes)?),
        t::ARRAY => ValueRef::Array(ArrayRef(DocRef::new(bytes)?)),
        t::BINARY => {
            let n = counted(bytes, 0)?;
            ValueRef::Binary {
                subtype: *bytes.get(4)?,
                bytes: bytes.get(5..5 + n)?,
            }
        }
        t::UNDEFINED => ValueRef::Undefined,
        t::OBJECT_ID => ValueRef::ObjectId(ObjectId(*bytes.first_chunk()?)),
        t::BOOL => ValueRef::Bool(*bytes.first()? != 0),
        t::DATE_TIME => ValueRef::DateTime(i64::from_le_bytes(eight()?)),
        t::NULL => ValueRef::Null,
        t::REGEX => {
            let pattern = c_string(bytes)?;
            let options = c_string(bytes.get(pattern.len() + 1..)?)?;
            ValueRef::Regex {
                pattern: std::str::from_utf8(pattern).ok()?,
                options: std::str::from_utf8(options).ok()?,
            }
        }
        t::DB_POINTER => {
            let namespace = string(bytes)?;
            let id = bytes.get(4 + namespace.len() + 1..)?;
            ValueRef::DbPointer {
                namespace,
                id: ObjectId(*id.first_chunk()?),
            }
        }
        t::CODE => ValueRef::Code(string(bytes)?),
        t::SYMBOL => ValueRef::Symbol(string(bytes)?),
        t::CODE_WITH_SCOPE => {
            let code = string(bytes.get(4..)?)?;
            let scope = DocRef::new(bytes.get(4 + 4 + code.len() + 1..)?)?;
            ValueRef::CodeWithScope { code, scope }
        }
        t::INT32 => ValueRef::Int32(i32::from_le_bytes(*bytes.first_chunk()?)),
        t::TIMESTAMP => ValueRef::Timestamp(Timestamp::from_u64(u64::from_le_bytes(eight()?))),
        t::INT64 => ValueRef::Int64(i64::from_le_bytes(eight()?)),
        t::DECIMAL128 => ValueRef::Decimal128(Decimal128::from_le_bytes(*bytes.first_chunk()?)),
        t::MIN_KEY => ValueRef::MinKey,
        t::MAX_KEY => ValueRef::MaxKey,
        _ => return None,
    })
}

/// Iterates over the elements of a document; ends early on malformed bytes.
#[derive(Clone, Debug)]
pub struct Elements<'a> {
    rest: &'a [u8],
}

impl<'a> Elements<'a> {
    /// Returns the bytes not yet iterated.
    #[inline]
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Returns the next element if its name is `name`; otherwise returns `None` and does not
    /// advance. A caller that predicts the next name saves the search for the end of the name.
    #[inline]
    pub fn next_named(&mut self, name: &[u8]) -> Option<Element<'a>> {
        let (&type_code, after) = self.rest.split_first()?;
        // A longer name differs at the terminator; a shorter one contains a zero byte within this
        // length.
        let (found, rest) = after.split_at_checked(name.len())?;
        if type_code == 0 || rest.first() != Some(&0) || !equal_names(found, name) {
            return None;
        }
        self.step_over(type_code, after, name.len())
    }

    /// Returns the next element and the result of `find` if `find` recognises its name; otherwise
    /// returns `None` and does not advance. `find` receives the bytes that begin with the name and
    /// returns its result with the length of the name, which a zero byte follows.
    #[inline]
    pub fn next_recognized<T>(
        &mut self,
        find: impl FnOnce(&'a [u8]) -> Option<(T, usize)>,
    ) -> Option<(Element<'a>, T)> {
        let (&type_code, after) = self.rest.split_first()?;
        if type_code == 0 {
            return None;
        }
        let (found, length) = find(after)?;
        debug_assert_eq!(after.get(length), Some(&0));
        Some((self.step_over(type_code, after, length)?, found))
    }

    /// Advances over the element of this type whose name has this length.
    #[inline]
    fn step_over(&mut self, type_code: u8, after: &'a [u8], length: usize) -> Option<Element<'a>> {
        let (name, after) = after.split_at_checked(length)?;
        let after = after.get(1..)?;
        let (value, rest) = after.split_at_checked(value_length(type_code, after)?)?;
        self.rest = rest;
        Some(Element {
            type_code: usize::from(type_code),
            name,
            value,
        })
    }
}

impl<'a> Iterator for Elements<'a> {
    type Item = Element<'a>;

    #[inline]
    fn next(&mut self) -> Option<Element<'a>> {
        let (&type_code, after) = self.rest.split_first()?;
        if type_code == 0 {
            return None;
        }
        self.step_over(type_code, after, c_string(after)?.len())
    }
}

impl<'a> DocRef<'a> {
    /// The empty document.
    pub const EMPTY: DocRef<'static> = DocRef(EMPTY);

    /// Wraps the document at the start of `bytes`, if its length fits and its end byte is present.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Option<Self> {
        let n = counted(bytes, 5)?;
        let bytes = bytes.get(..n)?;
        (bytes.last() == Some(&0)).then_some(Self(bytes))
    }

    /// Returns the encoded bytes.
    #[inline]
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    /// Returns the elements in order.
    #[inline]
    pub fn iter(self) -> Elements<'a> {
        Elements {
            rest: self.0.get(4..).unwrap_or(&[]),
        }
    }

    /// Returns the elements from a position returned by [`DocRef::position_of`].
    #[inline]
    pub fn iter_from(self, place: usize) -> Elements<'a> {
        Elements {
            rest: self.0.get(place..).unwrap_or(&[]),
        }
    }

    /// Returns the position of an iterator over this document.
    #[inline]
    pub fn position_of(self, elements: &Elements<'_>) -> usize {
        self.0.len().saturating_sub(elements.rest.len())
    }

    /// True if it has no element.
    pub fn is_empty(self) -> bool {
        self.0.len() <= 5
    }

    /// Returns the value of the first field called `name`; missing if there is none. Names are not
    /// paths.
    pub fn get(self, name: &str) -> ValueRef<'a> {
        self.iter()
            .find(|e| e.name_bytes() == name.as_bytes())
            .map_or(ValueRef::Missing, |e| e.value())
    }

    /// True if a field called `name` is there.
    pub fn contains(self, name: &str) -> bool {
        self.iter().any(|e| e.name_bytes() == name.as_bytes())
    }

    /// Returns a copy that owns its bytes.
    pub fn to_document(self) -> Document {
        Document {
            bytes: Arc::new(self.0.to_vec()),
        }
    }
}

impl<'a> IntoIterator for DocRef<'a> {
    type Item = Element<'a>;
    type IntoIter = Elements<'a>;

    #[inline]
    fn into_iter(self) -> Elements<'a> {
        self.iter()
    }
}

impl<'a> ArrayRef<'a> {
    /// Interprets `document` as an array: its field names are ignored.
    pub fn new(document: DocRef<'a>) -> Self {
        Self(document)
    }

    /// Returns the elements in order.
    pub fn iter(self) -> impl Iterator<Item = ValueRef<'a>> + Clone + use<'a> {
        self.0.iter().map(|e| e.value())
    }

    /// Returns the element at `index`, missing if there are fewer.
    pub fn get(self, index: usize) -> ValueRef<'a> {
        self.0
            .iter()
            .nth(index)
            .map_or(ValueRef::Missing, |e| e.value())
    }

    /// Returns the number of elements. Iterates over all of them.
    pub fn len(self) -> usize {
        self.0.iter().count()
    }

    /// True if it has no element.
    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// Returns the underlying document.
    pub fn as_document(self) -> DocRef<'a> {
        self.0
    }
}

impl Document {
    /// Creates the empty document.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes bytes that are exactly one document with valid length and end byte.
    pub fn from_bytes(bytes: Vec<u8>) -> Option<Self> {
        let n = DocRef::new(&bytes)?.0.len();
        (n == bytes.len()).then(|| Self {
            bytes: Arc::new(bytes),
        })
    }

    /// Returns the document, borrowed.
    pub fn as_ref(&self) -> DocRef<'_> {
        DocRef(&self.bytes)
    }

    /// Returns the encoded bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the bytes, copied only if they are shared.
    pub fn into_bytes(self) -> Vec<u8> {
        Arc::try_unwrap(self.bytes).unwrap_or_else(|shared| shared.as_ref().clone())
    }

    /// Returns the value of the first field called `name`; missing if there is none.
    pub fn get(&self, name: &str) -> ValueRef<'_> {
        self.as_ref().get(name)
    }

    /// Returns the elements in order.
    pub fn iter(&self) -> Elements<'_> {
        self.as_ref().iter()
    }

    /// True if it has no element.
    pub fn is_empty(&self) -> bool {
        self.as_ref().is_empty()
    }
}

impl PartialEq for Document {
    /// Compares the bytes. For equality of values across numeric types see [`crate::order`].
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

/// Writes a document front to back, with nested documents and arrays in place.
#[derive(Clone, Debug)]
pub struct DocumentBuilder {
    bytes: Vec<u8>,
    /// Offsets of the length fields of the open documents inside the outermost, which starts at 0.
    open: Vec<usize>,
}

impl Default for DocumentBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl DocumentBuilder {
    /// Creates an empty document.
    pub fn new() -> Self {
        Self::with_capacity(64)
    }

    /// Creates an empty document with capacity for `capacity` bytes.
    pub fn with_capacity(capacity: usize) -> Self {
        let mut bytes = Vec::with_capacity(capacity.max(5));
        bytes.extend_from_slice(&[0; 4]);
        Self {
            bytes,
            open: Vec::new(),
        }
    }

    /// Continues a finished document. Copies nothing if no one else has it.
    pub fn extending(document: Document) -> Self {
        let mut bytes = document.into_bytes();
        bytes.pop();
        Self {
            bytes,
            open: Vec::new(),
        }
    }

    /// Reserves capacity for `additional` bytes. Does nothing if there is enough.
    pub fn reserve(&mut self, additional: usize) {
        self.bytes.reserve(additional);
    }

    /// Appends a field; a missing value is left out.
    pub fn append(&mut self, name: &str, value: impl Into<Value>) -> &mut Self {
        let value: Value = value.into();
        self.append_ref(name, value.as_ref())
    }

    /// Appends a field from a borrowed value; a missing value is left out.
    pub fn append_ref(&mut self, name: &str, value: ValueRef<'_>) -> &mut Self {
        if !value.is_missing() {
            self.header(value.type_code(), name.as_bytes());
            write_value(&mut self.bytes, value);
        }
        self
    }

    /// Appends a copy of an element of another document.
    pub fn append_element(&mut self, element: Element<'_>) -> &mut Self {
        self.header(element.type_code(), element.name);
        self.bytes.extend_from_slice(element.value);
        self
    }

    /// Appends copies of all elements of a document.
    pub fn append_all(&mut self, document: DocRef<'_>) -> &mut Self {
        let bytes = document.as_bytes();
        let elements = bytes.get(4..bytes.len().saturating_sub(1));
        self.bytes.extend_from_slice(elements.unwrap_or(&[]));
        self
    }

    /// Appends the value of an element under another name.
    pub fn append_renamed(&mut self, name: &str, element: Element<'_>) -> &mut Self {
        self.header(element.type_code(), name.as_bytes());
        self.bytes.extend_from_slice(element.value);
        self
    }

    /// Appends an array element; missing becomes null, since an array has no gaps.
    pub fn append_indexed(&mut self, index: usize, value: ValueRef<'_>) -> &mut Self {
        let value = if value.is_missing() {
            ValueRef::Null
        } else {
            value
        };
        self.bytes.push(value.type_code());
        write_index(&mut self.bytes, index);
        self.bytes.push(0);
        write_value(&mut self.bytes, value);
        self
    }

    /// Opens an embedded document; close it with [`DocumentBuilder::end`].
    pub fn begin_document(&mut self, name: &str) -> &mut Self {
        self.begin(t::DOCUMENT, name)
    }

    /// Opens an array, whose elements are named "0", "1", … ([`DocumentBuilder::append_indexed`]).
    pub fn begin_array(&mut self, name: &str) -> &mut Self {
        self.begin(t::ARRAY, name)
    }

    fn begin(&mut self, type_code: u8, name: &str) -> &mut Self {
        self.header(type_code, name.as_bytes());
        self.open.push(self.bytes.len());
        self.bytes.extend_from_slice(&[0; 4]);
        self
    }

    /// Closes the innermost open document or array. The outermost is closed by `finish`.
    pub fn end(&mut self) -> &mut Self {
        if let Some(start) = self.open.pop() {
            self.close(start);
        }
        self
    }

    fn close(&mut self, start: usize) {
        self.bytes.push(0);
        let length = u32::try_from(self.bytes.len() - start).unwrap_or(u32::MAX);
        self.bytes[start..start + 4].copy_from_slice(&length.to_le_bytes());
    }

    fn header(&mut self, type_code: u8, name: &[u8]) {
        self.bytes.push(type_code);
        self.bytes.extend_from_slice(name);
        self.bytes.push(0);
    }

    /// Returns the number of bytes written so far.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the capacity in bytes.
    pub fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// True if no element was appended.
    pub fn is_empty(&self) -> bool {
        self.bytes.len() == 4
    }

    /// Closes all open documents and returns the outermost.
    pub fn finish(self) -> Document {
        Document {
            bytes: Arc::new(self.finish_bytes()),
        }
    }

    /// Like [`DocumentBuilder::finish`], but returns the bytes.
    pub fn finish_bytes(mut self) -> Vec<u8> {
        while let Some(start) = self.open.pop() {
            self.close(start);
        }
        self.close(0);
        self.bytes
    }
}

/// Writes a decimal array index without allocating.
fn write_index(out: &mut Vec<u8>, index: usize) {
    /// Digits of the largest index.
    const DIGITS_MAX: usize = 20;
    let mut digits = [0; DIGITS_MAX];
    let mut rest = index;
    let mut used = 0;
    for slot in digits.iter_mut().rev() {
        *slot = b'0' + (rest % 10) as u8;
        rest /= 10;
        used += 1;
        if rest == 0 {
            break;
        }
    }
    out.extend_from_slice(digits.get(DIGITS_MAX - used..).unwrap_or(&[]));
}

fn write_string(out: &mut Vec<u8>, text: &str) {
    let length = u32::try_from(text.len() + 1).unwrap_or(u32::MAX);
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(text.as_bytes());
    out.push(0);
}

/// Appends the encoded bytes of a value; nothing for missing.
pub fn write_value(out: &mut Vec<u8>, value: ValueRef<'_>) {
    match value {
        ValueRef::Missing
        | ValueRef::Undefined
        | ValueRef::Null
        | ValueRef::MinKey
        | ValueRef::MaxKey => {}
        ValueRef::Double(v) => out.extend_from_slice(&v.to_le_bytes()),
        ValueRef::String(v) | ValueRef::Code(v) | ValueRef::Symbol(v) => write_string(out, v),
        ValueRef::Document(v) => out.extend_from_slice(v.as_bytes()),
        ValueRef::Array(v) => out.extend_from_slice(v.as_document().as_bytes()),
        ValueRef::Binary { subtype, bytes } => {
            let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
            out.extend_from_slice(&length.to_le_bytes());
            out.push(subtype);
            out.extend_from_slice(bytes);
        }
        ValueRef::ObjectId(v) => out.extend_from_slice(&v.0),
        ValueRef::Bool(v) => out.push(u8::from(v)),
        ValueRef::DateTime(v) | ValueRef::Int64(v) => out.extend_from_slice(&v.to_le_bytes()),
        ValueRef::Regex { pattern, options } => {
            for part in [pattern, options] {
                out.extend_from_slice(part.as_bytes());
                out.push(0);
            }
        }
        ValueRef::DbPointer { namespace, id } => {
            write_string(out, namespace);
            out.extend_from_slice(&id.0);
        }
        ValueRef::CodeWithScope { code, scope } => {
            let length = 4 + 4 + code.len() + 1 + scope.as_bytes().len();
            let length = u32::try_from(length).unwrap_or(u32::MAX);
            out.extend_from_slice(&length.to_le_bytes());
            write_string(out, code);
            out.extend_from_slice(scope.as_bytes());
        }
        ValueRef::Int32(v) => out.extend_from_slice(&v.to_le_bytes()),
        ValueRef::Timestamp(v) => out.extend_from_slice(&v.to_u64().to_le_bytes()),
        ValueRef::Decimal128(v) => out.extend_from_slice(&v.to_le_bytes()),
    }
}

/// Builds a [`Document`]: `doc! { "ok": 1.0, "nested": doc! { "a": 1 } }`.
///
/// Values are anything that converts into [`Value`]; a missing value (or `None`) is left out.
#[macro_export]
macro_rules! doc {
    () => { $crate::Document::new() };
    ($($name:literal : $value:expr),+ $(,)?) => {{
        let mut builder = $crate::DocumentBuilder::new();
        $( builder.append($name, $value); )+
        builder.finish()
    }};
}

/// Builds a [`Value`] array: `array![1, "two", doc! { "three": 3 }]`.
#[macro_export]
macro_rules! array {
    ($($value:expr),* $(,)?) => {
        $crate::Value::from(::std::vec![$($crate::Value::from($value)),*])
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builds_what_it_reads() {
        let inner = doc! { "b": 2i64, "c": array![1, "x", Value::Null] };
        let doc = doc! { "a": 1.5, "d": inner, "none": None::<i32>, "s": "text" };
        assert_eq!(
            doc.iter().map(|e| e.name().to_owned()).collect::<Vec<_>>(),
            ["a", "d", "s"]
        );
        let inner = doc.get("d").as_document().unwrap();
        assert!(matches!(inner.get("b"), ValueRef::Int64(2)));
        let array = inner.get("c").as_array().unwrap();
        assert_eq!(array.len(), 3);
        assert_eq!(array.get(1).as_str(), Some("x"));
        let copy = Document::from_bytes(doc.as_bytes().to_vec()).unwrap();
        assert_eq!(copy, doc);
    }

    #[test]
    fn next_named_advances_only_on_a_match() {
        let document = doc! { "a": 1, "ab": "x", "": 2.5 };
        let mut elements = document.iter();
        for other in [
            "",
            "ab",
            "b",
            "a much longer name than all that is left of this document",
        ] {
            assert!(elements.next_named(other.as_bytes()).is_none(), "{other}");
        }
        for name in ["a", "ab", ""] {
            let plain = elements.clone().next().unwrap();
            let named = elements.next_named(name.as_bytes()).unwrap();
            let parts =
                |e: Element<'_>| (e.type_code(), e.name().to_owned(), e.value_bytes().to_vec());
            assert_eq!(named.name(), name);
            assert_eq!(parts(named), parts(plain));
        }
        assert!(elements.next_named(b"").is_none() && elements.next().is_none());
    }

    #[test]
    fn golden_bytes() {
        assert_eq!(doc! { "a": 1 }.as_bytes(), b"\x0c\0\0\0\x10a\0\x01\0\0\0\0");
    }

    #[test]
    fn indexes_are_decimal() {
        for index in [0, 9, 10, 99, 100, 1_234_567, usize::MAX] {
            let mut out = Vec::new();
            write_index(&mut out, index);
            assert_eq!(out, index.to_string().as_bytes());
        }
    }

    #[test]
    fn iteration_ends_at_malformed_bytes() {
        let bytes = b"\x0c\0\0\0\x02a\0\xff\xff\xff\x7f\0";
        assert_eq!(DocRef::new(bytes).unwrap().iter().count(), 0);
        assert!(DocRef::new(b"\x0c\0\0\0\x02").is_none());
    }
}

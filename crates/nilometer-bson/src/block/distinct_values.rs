//! The distinct values of a dictionary, and their codes while it is built.
//!
//! ```text
//! few strings, repeated often     Values   ["error", "info"]                      shared with every row that reads one
//! most strings of a block once    Strings  text "/a/1/a/2/b", ends [4, 8, 10]     shared by blocks as a whole
//! any other type among them       Values
//! ```

use std::hash::BuildHasher;
use std::ops::Range;
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

use crate::document::{decode_value, write_value};
use crate::value::{Value, ValueRef, type_code};

/// Distinct values of any type, by code.
#[derive(Debug, Clone)]
pub struct DistinctValues(Form);

#[derive(Debug, Clone)]
enum Form {
    Values(Vec<Value>),
    Strings(Arc<Strings>),
}

/// Strings in one text.
#[derive(Debug)]
struct Strings {
    text: Box<str>,
    /// By code.
    ends: Box<[u32]>,
}

impl Strings {
    /// Returns the string with a code.
    fn get(&self, code: usize) -> Option<&str> {
        let place = place_of(&self.ends, code)?;
        self.text.get(place.start as usize..place.end as usize)
    }
}

impl Default for DistinctValues {
    fn default() -> Self {
        Self(Form::Values(Vec::new()))
    }
}

impl From<Vec<Value>> for DistinctValues {
    fn from(values: Vec<Value>) -> Self {
        Self(Form::Values(values))
    }
}

impl DistinctValues {
    /// Returns the number of values.
    pub fn len(&self) -> usize {
        match &self.0 {
            Form::Values(values) => values.len(),
            Form::Strings(strings) => strings.ends.len(),
        }
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the value with a code.
    pub fn get(&self, code: usize) -> Option<ValueRef<'_>> {
        match &self.0 {
            Form::Values(values) => values.get(code).map(Value::as_ref),
            Form::Strings(strings) => strings.get(code).map(ValueRef::String),
        }
    }

    /// Returns the value with a code, owned; shares heap data if the values are stored one by one.
    pub fn to_value(&self, code: usize) -> Option<Value> {
        match &self.0 {
            Form::Values(values) => values.get(code).cloned(),
            Form::Strings(_) => self.get(code).map(ValueRef::to_value),
        }
    }

    /// Returns all values, in the order of codes.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = ValueRef<'_>> + Clone + '_ {
        (0..self.len()).map(|code| self.get(code).unwrap_or(ValueRef::Missing))
    }

    /// Returns the values in the form for a block of `len` positions.
    pub(super) fn for_len(&self, len: usize) -> Self {
        match &self.0 {
            Form::Strings(strings) if repeats(strings.ends.len(), len) => {
                Self(Form::Values(self.iter().map(ValueRef::to_value).collect()))
            }
            _ => self.clone(),
        }
    }

    /// Returns the values, if they are stored one by one.
    pub fn as_values(&self) -> Option<&[Value]> {
        match &self.0 {
            Form::Values(values) => Some(values),
            Form::Strings(_) => None,
        }
    }

    /// Returns the memory of strings that are stored together, in bytes; 0 for other values.
    pub fn text_bytes(&self) -> usize {
        match &self.0 {
            Form::Values(_) => 0,
            Form::Strings(strings) => strings.text.len() + size_of_val(&*strings.ends),
        }
    }
}

/// Assigns equal codes to values with equal bytes, and holds the values meanwhile.
#[derive(Debug, Clone, Default)]
pub(crate) struct Interner {
    hasher: RandomState,
    codes: HashTable<u32>,
    /// The type of each value, by code.
    tags: Vec<u8>,
    /// Where its bytes end.
    ends: Vec<usize>,
    /// The text of strings, and the BSON of other values.
    bytes: Vec<u8>,
    buffer: Vec<u8>,
}

impl Interner {
    /// Returns the code of a value.
    pub(crate) fn code(&mut self, value: ValueRef<'_>) -> u32 {
        if let ValueRef::String(text) = value {
            return self.code_of(value.type_code(), text.as_bytes());
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        write_value(&mut buffer, value);
        let code = self.code_of(value.type_code(), &buffer);
        self.buffer = buffer;
        code
    }

    /// Returns the code of the value with these bytes in BSON; `None` if they are none.
    pub(crate) fn code_of_bytes(&mut self, tag: u8, bytes: &[u8]) -> Option<u32> {
        match decode_value(tag, bytes)? {
            ValueRef::String(text) => Some(self.code_of(tag, text.as_bytes())),
            _ => Some(self.code_of(tag, bytes)),
        }
    }

    fn code_of(&mut self, tag: u8, bytes: &[u8]) -> u32 {
        let Self {
            hasher,
            codes,
            tags,
            ends,
            bytes: known,
            ..
        } = self;
        let hash = hasher.hash_one(bytes);
        let is_this = |code: &u32| {
            tags.get(*code as usize) == Some(&tag) && bytes_of(ends, known, *code) == bytes
        };
        if let Some(code) = codes.find(hash, is_this) {
            return *code;
        }
        let code = u32::try_from(tags.len()).unwrap_or(u32::MAX);
        known.extend_from_slice(bytes);
        tags.push(tag);
        ends.push(known.len());
        codes.insert_unique(hash, code, |code| {
            hasher.hash_one(bytes_of(ends, known, *code))
        });
        code
    }

    /// Returns the values of a block of `len` positions.
    pub(crate) fn finish(self, len: usize) -> DistinctValues {
        let are_strings = self.tags.iter().all(|tag| *tag == type_code::STRING);
        let is_text = are_strings && !repeats(self.tags.len(), len);
        if is_text && u32::try_from(self.bytes.len()).is_ok() {
            let ends = self.ends.iter().map(|end| *end as u32);
            let text = String::from_utf8(self.bytes).expect("the bytes of strings are text");
            return DistinctValues(Form::Strings(Arc::new(Strings {
                text: text.into(),
                ends: ends.collect(),
            })));
        }
        let values = (0..).zip(&self.tags).map(|(code, tag)| {
            let bytes = bytes_of(&self.ends, &self.bytes, code);
            Some(match *tag {
                type_code::STRING => Value::String(std::str::from_utf8(bytes).ok()?.into()),
                tag => decode_value(tag, bytes)?.to_value(),
            })
        });
        DistinctValues(Form::Values(
            values.map(Option::unwrap_or_default).collect(),
        ))
    }
}

/// True if the values of a block of `len` positions are stored one by one: most of them occur more than once.
fn repeats(values: usize, len: usize) -> bool {
    values <= len / 2
}

/// Returns where the bytes of a code begin and end.
fn place_of<T: Copy + Default>(ends: &[T], code: usize) -> Option<Range<T>> {
    let start = match code.checked_sub(1) {
        Some(before) => *ends.get(before)?,
        None => T::default(),
    };
    Some(start..*ends.get(code)?)
}

/// Returns the bytes of a code.
fn bytes_of<'b>(ends: &[usize], bytes: &'b [u8], code: u32) -> &'b [u8] {
    let place = place_of(ends, code as usize);
    place.and_then(|place| bytes.get(place)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::ColumnBlock;

    fn values(block: &ColumnBlock) -> &DistinctValues {
        block.as_dictionary().unwrap().1
    }

    fn shown(block: &ColumnBlock) -> String {
        format!("{:?}", block.to_values())
    }

    #[test]
    fn strings_that_occur_once_share_a_text() {
        let list: Vec<Value> = vec![
            "é".into(),
            "".into(),
            Value::Missing,
            "bc".into(),
            "é".into(),
        ];
        let block = ColumnBlock::from_values(&list);
        assert_eq!(shown(&block), format!("{list:?}"));
        assert!(values(&block).as_values().is_none());
        assert_eq!(values(&block).text_bytes(), 4 + 3 * 4);
        assert!(values(&block).get(3).is_none() && values(&block).to_value(7).is_none());

        let repeated = block.select(&[0, 1, 0, 1, 0, 1, 3]);
        assert_eq!(values(&repeated).as_values().map(<[Value]>::len), Some(3));
        assert!(matches!(repeated.value(6), ValueRef::String("bc")));
        let few = ColumnBlock::from_values(&["a".into(), "b".into(), "a".into(), "b".into()]);
        assert!(values(&few).as_values().is_some());
    }

    #[test]
    fn a_small_selection_has_its_own_values() {
        let list: Vec<Value> = (0..100).map(|at| format!("text {at}").into()).collect();
        let block = ColumnBlock::from_values(&list);
        let selected = block.select(&[70, u32::MAX, 3, 70]);
        assert_eq!(values(&selected).len(), 2);
        let expected = [
            list[70].clone(),
            Value::Missing,
            list[3].clone(),
            list[70].clone(),
        ];
        assert_eq!(shown(&selected), format!("{expected:?}"));
        assert_eq!(values(&block.slice(10..60)).len(), 100);
    }

    #[test]
    fn other_types_are_kept_apart() {
        let list = [
            "1".into(),
            Value::Null,
            ValueRef::Symbol("1").to_value(),
            ValueRef::Code("1").to_value(),
            ValueRef::Binary {
                subtype: 0,
                bytes: b"1",
            }
            .to_value(),
            ValueRef::Undefined.to_value(),
            ValueRef::MinKey.to_value(),
            ValueRef::Regex {
                pattern: "1",
                options: "",
            }
            .to_value(),
            "1".into(),
        ];
        let block = ColumnBlock::from_values(&list);
        assert_eq!(shown(&block), format!("{list:?}"));
        assert_eq!(values(&block).len(), 8);
    }
}

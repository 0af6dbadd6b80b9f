//! Typed access to the options of a command, with MongoDB's errors.
//!
//! An [`Args`] is a document of options and its path, such as `find` or `create.timeseries`. Its methods read
//! one field each: `None` if it is missing or null, its value if the type is accepted, else error 14 with
//! path, found type and expected types in the text.
//!
//! [`Args::check_names`] refuses unknown and repeated names: dispatch calls it for the command itself, with
//! the fields of its table entry; a handler calls it for nested documents.
//!
//! | problem | code |
//! |---|---|
//! | wrong type | 14 TypeMismatch |
//! | required field missing | 40414 IDLFailedToParse |
//! | unknown field | 40415 IDLUnknownField |
//! | field given twice | 40413 |
//! | number out of range | 2 BadValue, or 51024 for a bound of the option itself |

use std::borrow::Cow;
use std::collections::HashSet;

use nilometer_bson::{ArrayRef, DocRef, Element, ValueRef};

use crate::error::{Error, Result, location};

/// The number of fields above which repeated names are found by hashing instead of comparing pairs.
const LOOK_BACK_MAX: usize = 16;

/// A document of options and its path.
#[derive(Clone, Debug)]
pub struct Args<'a> {
    path: Cow<'a, str>,
    document: DocRef<'a>,
}

impl<'a> Args<'a> {
    /// Reads the options in `document`, which errors call `path`.
    pub fn new(path: impl Into<Cow<'a, str>>, document: DocRef<'a>) -> Self {
        Self {
            path: path.into(),
            document,
        }
    }

    /// Returns the document itself.
    pub fn document_ref(&self) -> DocRef<'a> {
        self.document
    }

    /// Returns the path of the document: the command's name, and the fields that lead to it.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Refuses names that are not in `known` (40415) and repeated names (40413).
    pub fn check_names(&self, known: &[&str]) -> Result<()> {
        self.check_names_with(|name| known.contains(&name))
    }

    /// Like [`Args::check_names`], with a predicate for known names.
    pub fn check_names_with(&self, is_known: impl Fn(&str) -> bool) -> Result<()> {
        // Operations of a `bulkWrite` have few fields, and there may be a hundred thousand of them.
        let mut first: [&[u8]; LOOK_BACK_MAX] = [&[]; LOOK_BACK_MAX];
        let mut all: Option<HashSet<&[u8]>> = None;
        for (at, element) in self.document.iter().enumerate() {
            let name = element.name_bytes();
            if !is_known(element.name()) {
                return Err(self.unknown(element.name()));
            }
            let repeated = match first.get_mut(at) {
                Some(place) => {
                    *place = name;
                    first[..at].contains(&name)
                }
                None => !all.get_or_insert_with(|| HashSet::from(first)).insert(name),
            };
            if repeated {
                return Err(self.duplicate(element.name()));
            }
        }
        Ok(())
    }

    /// Error 40413 for the field `name`.
    pub fn duplicate(&self, name: &str) -> Error {
        Error::duplicate_field(format_args!("{}.{name}", self.path))
    }

    /// Error 40415 for the field `name`.
    pub fn unknown(&self, name: &str) -> Error {
        Error::unknown_field(format_args!("{}.{name}", self.path))
    }

    /// Error 40414 for the field `name`.
    pub fn missing(&self, name: &str) -> Error {
        Error::missing_field(format_args!("{}.{name}", self.path))
    }

    /// Error 14 for the field `name` of type `found`, where `expected` is accepted.
    pub fn wrong_type(&self, name: &str, found: ValueRef<'_>, expected: &str) -> Error {
        Error::wrong_field_type(format_args!("{}.{name}", self.path), found, expected)
    }

    /// Error 14 where several types are accepted. (MongoDB writes the quotation mark before the bracket, and
    /// clients compare the text.)
    fn wrong_types(&self, name: &str, found: ValueRef<'_>, expected: &str) -> Error {
        Error::wrong_field_types(format_args!("{}.{name}", self.path), found, expected)
    }

    /// Returns the field as it is; missing if it is absent.
    pub fn value(&self, name: &str) -> ValueRef<'a> {
        self.document.get(name)
    }

    /// Returns the field as it is; `None` if it is absent or null.
    fn present(&self, name: &str) -> Option<ValueRef<'a>> {
        match self.document.get(name) {
            ValueRef::Missing | ValueRef::Null | ValueRef::Undefined => None,
            value => Some(value),
        }
    }

    /// Returns the element `name`, with its raw bytes.
    pub fn element(&self, name: &str) -> Option<Element<'a>> {
        self.document
            .iter()
            .find(|e| e.name_bytes() == name.as_bytes())
    }

    /// Returns a string.
    pub fn string(&self, name: &str) -> Result<Option<&'a str>> {
        match self.present(name) {
            None => Ok(None),
            Some(ValueRef::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong_type(name, other, "string")),
        }
    }

    /// Returns a required string.
    pub fn required_string(&self, name: &str) -> Result<&'a str> {
        match self.value(name) {
            ValueRef::Missing => Err(self.missing(name)),
            ValueRef::String(text) => Ok(text),
            other => Err(self.wrong_type(name, other, "string")),
        }
    }

    /// Returns the string in the first field, which is the command's own under any of its names.
    pub fn command_target(&self, name: &str) -> Result<&'a str> {
        match self.document.iter().next().map(|first| first.value()) {
            Some(ValueRef::String(text)) => Ok(text),
            Some(other) => Err(self.wrong_type(name, other, "string")),
            None => Err(self.missing(name)),
        }
    }

    /// Returns a document.
    pub fn document(&self, name: &str) -> Result<Option<DocRef<'a>>> {
        match self.present(name) {
            None => Ok(None),
            Some(ValueRef::Document(document)) => Ok(Some(document)),
            Some(other) => Err(self.wrong_type(name, other, "object")),
        }
    }

    /// Returns a required document.
    pub fn required_document(&self, name: &str) -> Result<DocRef<'a>> {
        match self.value(name) {
            ValueRef::Missing => Err(self.missing(name)),
            ValueRef::Document(document) => Ok(document),
            other => Err(self.wrong_type(name, other, "object")),
        }
    }

    /// Returns a document of options with names checked against `known`.
    pub fn nested(&self, name: &str, known: &[&str]) -> Result<Option<Args<'a>>> {
        let Some(document) = self.document(name)? else {
            return Ok(None);
        };
        let nested = Args::new(format!("{}.{name}", self.path), document);
        nested.check_names(known)?;
        Ok(Some(nested))
    }

    /// Returns an array.
    pub fn array(&self, name: &str) -> Result<Option<ArrayRef<'a>>> {
        match self.present(name) {
            None => Ok(None),
            Some(ValueRef::Array(array)) => Ok(Some(array)),
            Some(other) => Err(self.wrong_type(name, other, "array")),
        }
    }

    /// Returns a required array.
    pub fn required_array(&self, name: &str) -> Result<ArrayRef<'a>> {
        match self.value(name) {
            ValueRef::Missing => Err(self.missing(name)),
            ValueRef::Array(array) => Ok(array),
            other => Err(self.wrong_type(name, other, "array")),
        }
    }

    /// Returns a boolean; no other type is accepted.
    pub fn boolean(&self, name: &str) -> Result<Option<bool>> {
        match self.present(name) {
            None => Ok(None),
            Some(ValueRef::Bool(value)) => Ok(Some(value)),
            Some(other) => Err(self.wrong_type(name, other, "bool")),
        }
    }

    /// Returns a boolean, or true for a number other than zero. Most boolean options accept both.
    pub fn lenient_boolean(&self, name: &str) -> Result<Option<bool>> {
        match self.present(name) {
            None => Ok(None),
            Some(ValueRef::Bool(value)) => Ok(Some(value)),
            Some(value) if value.is_number() => Ok(Some(is_nonzero(value))),
            Some(other) => Err(self.wrong_types(name, other, "bool, long, int, decimal, double")),
        }
    }

    /// Returns an integer of any numeric type; fractions are truncated and values beyond 64 bits saturate, as
    /// MongoDB reads its numeric options.
    pub fn integer(&self, name: &str) -> Result<Option<i64>> {
        match self.present(name) {
            None => Ok(None),
            Some(value) => match truncated_i64(value) {
                Some(number) => Ok(Some(number)),
                None => Err(self.wrong_types(name, value, "long, int, decimal, double")),
            },
        }
    }

    /// Returns a 64-bit integer; no other type of number is accepted.
    pub fn long(&self, name: &str) -> Result<Option<i64>> {
        match self.present(name) {
            None => Ok(None),
            Some(ValueRef::Int64(number)) => Ok(Some(number)),
            Some(other) => Err(self.wrong_type(name, other, "long")),
        }
    }

    /// Returns an integer not below `min` (error 51024).
    pub fn integer_at_least(&self, name: &str, min: i64) -> Result<Option<i64>> {
        match self.integer(name)? {
            Some(number) if number < min => Err(Error::location(
                location::OPTION_OUT_OF_BOUNDS,
                format!("BSON field '{name}' value must be >= {min}, actual value '{number}'"),
            )),
            other => Ok(other),
        }
    }

    /// Returns an integer within `min..=max` (error 51024).
    pub fn integer_within(&self, name: &str, min: i64, max: i64) -> Result<Option<i64>> {
        match self.integer_at_least(name, min)? {
            Some(number) if number > max => Err(Error::location(
                location::OPTION_OUT_OF_BOUNDS,
                format!("BSON field '{name}' value must be <= {max}, actual value '{number}'"),
            )),
            other => Ok(other),
        }
    }
}

/// True unless the number is zero (NaN is true).
fn is_nonzero(value: ValueRef<'_>) -> bool {
    match value {
        ValueRef::Int32(v) => v != 0,
        ValueRef::Int64(v) => v != 0,
        ValueRef::Double(v) => v != 0.0,
        ValueRef::Decimal128(_) => truncated_i64(value) != Some(0),
        _ => false,
    }
}

/// Returns the number as a 64-bit integer: truncated, NaN as 0, saturated.
pub fn truncated_i64(value: ValueRef<'_>) -> Option<i64> {
    match value {
        ValueRef::Int32(v) => Some(i64::from(v)),
        ValueRef::Int64(v) => Some(v),
        // A cast from a double follows exactly this rule.
        ValueRef::Double(v) => Some(v as i64),
        ValueRef::Decimal128(v) => Some(truncated_decimal(v)),
        _ => None,
    }
}

/// Decimal128 in its binary form: one sign bit, 14 bits of exponent (bias 6176), 113 bits of
/// coefficient; two leading ones behind the sign announce infinity, NaN or a coefficient out of
/// range, which counts as zero.
fn truncated_decimal(decimal: nilometer_bson::Decimal128) -> i64 {
    const BIAS: i32 = 6176;
    let bits = decimal.bits();
    let negative = bits >> 127 == 1;
    let limit = if negative { i64::MIN } else { i64::MAX };
    let special = (bits >> 122) & 0b1_1111;
    if special == 0b1_1110 {
        return limit;
    }
    if special >> 3 == 0b11 {
        return 0;
    }
    let exponent = i32::try_from((bits >> 113) & 0x3FFF).unwrap_or(0) - BIAS;
    let mut magnitude = bits & ((1 << 113) - 1);
    for _ in 0..exponent.unsigned_abs() {
        if magnitude == 0 {
            return 0;
        }
        if exponent < 0 {
            magnitude /= 10;
        } else {
            match magnitude.checked_mul(10) {
                Some(larger) if larger < 1 << 64 => magnitude = larger,
                _ => return limit,
            }
        }
    }
    match i64::try_from(magnitude) {
        Ok(number) if negative => -number,
        Ok(number) => number,
        Err(_) => limit,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nilometer_bson::{Decimal128, Document, array, doc};

    fn code(result: Result<impl std::fmt::Debug>) -> (i32, String) {
        let error = result.unwrap_err();
        (error.code.0, error.message)
    }

    #[test]
    fn errors_carry_the_path_and_both_types() {
        let document = doc! {"limit": "x", "filter": 1, "singleBatch": "y", "hint": "a"};
        let args = Args::new("find", document.as_ref());
        let (number, text) = code(args.integer("limit"));
        assert_eq!(number, 14);
        assert_eq!(
            text,
            "BSON field 'find.limit' is the wrong type 'string', expected types '[long, int, decimal, double']"
        );
        let (number, text) = code(args.document("filter"));
        assert_eq!(number, 14);
        assert_eq!(
            text,
            "BSON field 'find.filter' is the wrong type 'int', expected type 'object'"
        );
        assert_eq!(code(args.lenient_boolean("singleBatch")).0, 14);
        let (number, text) = code(args.required_array("pipeline"));
        assert_eq!(number, 40_414);
        assert_eq!(
            text,
            "BSON field 'find.pipeline' is missing but a required field"
        );
        let (number, text) = code(args.check_names(&["limit", "filter", "singleBatch"]));
        assert_eq!(number, 40_415);
        assert_eq!(text, "BSON field 'find.hint' is an unknown field.");
    }

    #[test]
    fn repeated_names_are_found_in_short_and_long_documents() {
        for count in [2, 5, 15, 16, 17, 40] {
            let mut builder = nilometer_bson::DocumentBuilder::new();
            for at in 0..count {
                builder.append(&format!("f{at}"), 1);
            }
            let fine = builder.clone().finish();
            assert!(
                Args::new("x", fine.as_ref())
                    .check_names_with(|_| true)
                    .is_ok()
            );
            for repeated in [0, count - 1] {
                let mut builder = builder.clone();
                builder.append(&format!("f{repeated}"), 1);
                let document = builder.finish();
                let args = Args::new("x", document.as_ref());
                assert_eq!(code(args.check_names_with(|_| true)).0, 40_413);
            }
        }
    }

    #[test]
    fn null_counts_as_not_there() {
        let document = doc! {"a": nilometer_bson::Value::Null};
        let args = Args::new("x", document.as_ref());
        assert_eq!(args.integer("a").unwrap(), None);
        assert_eq!(args.string("a").unwrap(), None);
        assert!(args.array("a").unwrap().is_none());
    }

    #[test]
    fn numbers_are_cut_and_clamped() {
        let decimal = |coefficient: u128, exponent: i32, negative: bool| {
            let biased = u128::try_from(exponent + 6176).unwrap();
            let bits = coefficient | (biased << 113) | (u128::from(negative) << 127);
            ValueRef::Decimal128(Decimal128::from_le_bytes(bits.to_le_bytes()))
        };
        for (value, expected) in [
            (ValueRef::Int32(-3), -3),
            (ValueRef::Double(2.9), 2),
            (ValueRef::Double(-2.9), -2),
            (ValueRef::Double(f64::NAN), 0),
            (ValueRef::Double(1e300), i64::MAX),
            (decimal(25, -1, false), 2),
            (decimal(25, -1, true), -2),
            (decimal(25, 1, false), 250),
            (decimal(1, 40, false), i64::MAX),
            (decimal(1, 40, true), i64::MIN),
            (decimal(0, 6000, false), 0),
            (decimal(u128::from(u64::MAX), 0, false), i64::MAX),
            (
                ValueRef::Decimal128(Decimal128 {
                    low: 0,
                    high: 0x7800 << 48,
                }),
                i64::MAX,
            ),
            (
                ValueRef::Decimal128(Decimal128 {
                    low: 0,
                    high: 0x7C00 << 48,
                }),
                0,
            ),
        ] {
            assert_eq!(truncated_i64(value), Some(expected), "{value:?}");
        }
        assert_eq!(truncated_i64(ValueRef::Bool(true)), None);
    }

    #[test]
    fn bounds_are_kept() {
        let document = doc! {"skip": -1, "n": 7};
        let args = Args::new("find", document.as_ref());
        let (number, text) = code(args.integer_at_least("skip", 0));
        assert_eq!(number, 51_024);
        assert_eq!(
            text,
            "BSON field 'skip' value must be >= 0, actual value '-1'"
        );
        assert_eq!(args.integer_within("n", 0, 7).unwrap(), Some(7));
        assert_eq!(code(args.integer_within("n", 0, 6)).0, 51_024);
    }

    #[test]
    fn nested_options_extend_the_path() {
        let document: Document = doc! {"timeseries": doc! {"timeField": 1, "what": array![]}};
        let args = Args::new("create", document.as_ref());
        let (number, text) = code(args.nested("timeseries", &["timeField"]).map(|_| ()));
        assert_eq!(number, 40_415);
        assert_eq!(
            text,
            "BSON field 'create.timeseries.what' is an unknown field."
        );
        let nested = args
            .nested("timeseries", &["timeField", "what"])
            .unwrap()
            .unwrap();
        let (_, text) = code(nested.required_string("timeField"));
        assert_eq!(
            text,
            "BSON field 'create.timeseries.timeField' is the wrong type 'int', expected type 'string'"
        );
    }
}

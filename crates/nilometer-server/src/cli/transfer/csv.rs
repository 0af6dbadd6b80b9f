//! CSV: names and types from the first line, documents from the others.
//!
//! ```text
//! time.date(),bed.string(),soil.moisture.double(),count
//! 2024-05-01T06:00:00Z,roses,31.5,12
//! ```
//!
//! A name may have a type: `auto()`, `string()`, `int32()`, `int64()`, `double()`, `decimal()`, `boolean()`, `date()`.
//! The default is `auto()`: a whole number, a number, `true` or `false`, a date in the format above, else text. Dots in
//! names make nested documents. An empty value makes no field.
//!
//! An unclosed quote would make the rest of a file one value. [`QuoteReader`] detects it.

use std::collections::HashSet;
use std::io::{self, Read};

use nilometer_bson::extjson::{parse_date, parse_value};
use nilometer_bson::{DocRef, Document, DocumentBuilder, Value, ValueRef};

/// The type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ColumnType {
    Auto,
    Text,
    Int32,
    Int64,
    Double,
    Decimal,
    Boolean,
    Date,
}

impl ColumnType {
    const NAMES: [(&'static str, Self); 8] = [
        ("auto", Self::Auto),
        ("string", Self::Text),
        ("int32", Self::Int32),
        ("int64", Self::Int64),
        ("double", Self::Double),
        ("decimal", Self::Decimal),
        ("boolean", Self::Boolean),
        ("date", Self::Date),
    ];

    fn name(self) -> &'static str {
        let known = Self::NAMES.iter().find(|(_, kind)| *kind == self);
        known.map_or("auto", |(name, _)| name)
    }

    /// Parses `text` as a value of this type.
    fn read(self, text: &str) -> Option<Value> {
        match self {
            Self::Auto => Some(automatic(text)),
            Self::Text => Some(Value::from(text)),
            Self::Int32 => text.parse().ok().map(Value::Int32),
            Self::Int64 => text.parse().ok().map(Value::Int64),
            Self::Double => text.parse().ok().map(Value::Double),
            Self::Decimal => {
                let quoted = text.replace(['"', '\\'], "");
                parse_value(&format!("{{\"$numberDecimal\": \"{quoted}\"}}")).ok()
            }
            Self::Boolean => match text {
                "true" | "1" => Some(Value::Bool(true)),
                "false" | "0" => Some(Value::Bool(false)),
                _ => None,
            },
            Self::Date => parse_date(text).map(Value::DateTime),
        }
    }
}

fn automatic(text: &str) -> Value {
    if let Ok(whole) = text.parse::<i64>() {
        return match i32::try_from(whole) {
            Ok(small) => Value::Int32(small),
            Err(_) => Value::Int64(whole),
        };
    }
    let looks_like_number = text.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c));
    if let (true, Ok(number)) = (looks_like_number, text.parse::<f64>()) {
        return Value::Double(number);
    }
    match text {
        "true" => Value::Bool(true),
        "false" => Value::Bool(false),
        _ => parse_date(text).map_or_else(|| Value::from(text), Value::DateTime),
    }
}

/// Splits the name of a column into its path and its type, if it has one.
pub(super) fn split_type(name: &str) -> Result<(&str, ColumnType), String> {
    let name = name.trim();
    let typed = name
        .strip_suffix("()")
        .and_then(|typed| typed.rsplit_once('.'));
    let (path, kind) = match typed {
        None => (name, ColumnType::Auto),
        Some((path, kind)) => {
            let known = ColumnType::NAMES.iter().find(|(known, _)| *known == kind);
            let known = known.ok_or_else(|| {
                let names = ColumnType::NAMES.map(|(name, _)| name).join(", ");
                format!("the column '{name}' has the type '{kind}'; there are {names}")
            })?;
            (path, known.1)
        }
    };
    if path.is_empty() || path.split('.').any(str::is_empty) {
        return Err(format!("the column '{name}' has an empty name"));
    }
    Ok((path, kind))
}

/// Returns the value at a path of fields.
pub(super) fn value_at<'a>(document: DocRef<'a>, path: &str) -> ValueRef<'a> {
    let mut at = ValueRef::Document(document);
    for name in path.split('.') {
        at = match at {
            ValueRef::Document(document) => document.get(name),
            _ => ValueRef::Missing,
        };
    }
    at
}

/// The columns of a file.
#[derive(Debug)]
pub(super) struct Columns(Vec<(String, ColumnType)>);

impl Columns {
    /// Parses the first line.
    pub(super) fn parse<'a>(names: impl Iterator<Item = &'a str>) -> Result<Self, String> {
        let mut columns = Vec::new();
        for name in names {
            let (path, kind) = split_type(name)?;
            columns.push((path.to_owned(), kind));
        }
        let mut seen = HashSet::new();
        if let Some((twice, _)) = columns.iter().find(|(path, _)| !seen.insert(path)) {
            return Err(format!("there are two columns '{twice}'"));
        }
        for (path, _) in &columns {
            let ends = path.match_indices('.').map(|(at, _)| at);
            let mut outer = ends.filter_map(|at| path.get(..at));
            if let Some(outer) = outer.find(|outer| seen.contains(&(*outer).to_owned())) {
                return Err(format!(
                    "the columns '{outer}' and '{path}' conflict: one is a value, the other a field of a document"
                ));
            }
        }
        Ok(Self(columns))
    }

    /// Returns the document of one line.
    pub(super) fn document<'a>(
        &self,
        mut values: impl Iterator<Item = &'a str>,
    ) -> Result<Document, String> {
        let mut fields = Vec::new();
        for (path, kind) in &self.0 {
            let Some(text) = values.next() else {
                break;
            };
            if text.is_empty() {
                continue;
            }
            let value = kind.read(text);
            let value = value.ok_or_else(|| {
                format!(
                    "the column '{path}' holds '{text}', which is not a {}",
                    kind.name()
                )
            })?;
            fields.push((path.as_str(), value));
        }
        if values.next().is_some() {
            return Err(format!(
                "there are more values than the {} columns",
                self.0.len()
            ));
        }
        Ok(nested(fields))
    }
}

/// The position of a reader within a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QuoteState {
    Begin,
    Open,
    Quoted,
    /// After a quote within quotes: the end of the value, or the first of two that mean one.
    Closed,
}

/// Maximum bytes of a quoted value: the size that no document can hold.
const QUOTED_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Forwards its input and detects a quote that is open at the end.
pub(super) struct QuoteReader<R> {
    inner: R,
    place: QuoteState,
    /// Bytes since a quote was opened.
    quoted: usize,
    has_ended: bool,
}

impl<R> QuoteReader<R> {
    pub(super) fn new(inner: R) -> Self {
        Self {
            inner,
            place: QuoteState::Begin,
            quoted: 0,
            has_ended: false,
        }
    }

    /// True if everything was read and the last quote is open.
    pub(super) fn is_left_open(&self) -> bool {
        self.has_ended && self.place == QuoteState::Quoted
    }

    fn step(&mut self, byte: u8) {
        self.place = match (self.place, byte) {
            (QuoteState::Quoted, b'"') => QuoteState::Closed,
            (QuoteState::Quoted, _) => {
                self.quoted += 1;
                QuoteState::Quoted
            }
            (QuoteState::Begin, b'"') => {
                self.quoted = 0;
                QuoteState::Quoted
            }
            (QuoteState::Closed, b'"') => QuoteState::Quoted,
            (_, b',' | b'\n' | b'\r') => QuoteState::Begin,
            _ => QuoteState::Open,
        };
    }
}

impl<R: Read> Read for QuoteReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        for byte in buffer.iter().take(read) {
            self.step(*byte);
        }
        self.has_ended = read == 0 && !buffer.is_empty();
        if self.place == QuoteState::Quoted && self.quoted > QUOTED_BYTES_MAX {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a quote is not closed",
            ));
        }
        Ok(read)
    }
}

/// Nests fields whose names have dots, in the order of first appearance.
pub(super) fn nested(mut fields: Vec<(&str, Value)>) -> Document {
    let mut out = DocumentBuilder::new();
    while !fields.is_empty() {
        let (path, value) = fields.remove(0);
        let Some((first, _)) = path.split_once('.') else {
            out.append(path, value);
            continue;
        };
        let mut inside = Vec::new();
        let mut beside = Vec::new();
        for (path, value) in std::iter::once((path, value)).chain(fields) {
            match path.split_once('.') {
                Some((name, rest)) if name == first => inside.push((rest, value)),
                _ => beside.push((path, value)),
            }
        }
        out.append(first, nested(inside));
        fields = beside;
    }
    out.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nilometer_bson::doc;

    fn read(names: &str, line: &str) -> Result<Document, String> {
        Columns::parse(names.split(','))?.document(line.split(','))
    }

    #[test]
    fn types_are_named_or_inferred() {
        let line =
            "2024-05-01T06:00:00Z,7,7,7,1,x7,2.5,9000000000,-3,true,2024-05-01T06:00:00Z,1e3";
        let names = "t.date(),a.string(),b.int64(),c.double(),d.boolean(),e,f,g,h,i,j,k";
        let expected = doc! {
            "t": Value::DateTime(1_714_543_200_000), "a": "7", "b": 7i64, "c": 7.0, "d": true,
            "e": "x7", "f": 2.5, "g": 9_000_000_000i64, "h": -3, "i": true,
            "j": Value::DateTime(1_714_543_200_000), "k": 1000.0,
        };
        assert_eq!(read(names, line).unwrap(), expected);
        assert_eq!(
            read("a,b,c", "infinity,nan,").unwrap(),
            doc! {"a": "infinity", "b": "nan"}
        );
        let decimal = read("a.decimal()", "1.10").unwrap();
        assert!(matches!(decimal.get("a").to_value(), Value::Decimal128(_)));
    }

    #[test]
    fn conflicting_columns_are_refused() {
        for (names, told) in [
            ("a,b,a", "two columns 'a'"),
            ("a.int32(),a.string()", "two columns 'a'"),
            ("a.b.c,x,a.b", "'a.b' and 'a.b.c' conflict"),
            ("a,a.b", "'a' and 'a.b' conflict"),
        ] {
            let error = Columns::parse(names.split(',')).unwrap_err();
            assert!(error.contains(told), "{names}: {error}");
        }
        assert!(Columns::parse("a.b,a.c,ab,b.a".split(',')).is_ok());
    }

    #[test]
    fn open_quotes_are_noticed() {
        for (text, is_open) in [
            ("a,b\n1,\"x\n", true),
            ("\"", true),
            ("a\n\"x\"\"", true),
            ("a,b\n1,\"x\"\n", false),
            ("a\nx\"y\n", false),
            ("a\n\"x\"y\"\n", false),
            ("a\n\"x\"\"y\",\"\"", false),
            ("", false),
        ] {
            // The CSV reader sees the same end.
            let mut reader = csv::ReaderBuilder::new()
                .flexible(true)
                .has_headers(false)
                .buffer_capacity(3)
                .from_reader(QuoteReader::new(text.as_bytes()));
            let mut record = csv::StringRecord::new();
            while reader.read_record(&mut record).unwrap() {}
            assert_eq!(reader.get_ref().is_left_open(), is_open, "{text:?}");
        }
        let long = format!("a\n\"{}", "x".repeat(QUOTED_BYTES_MAX + 10));
        let mut read = Vec::new();
        let error = QuoteReader::new(long.as_bytes()).read_to_end(&mut read);
        assert_eq!(error.unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn dots_make_documents() {
        let found = read("m.a,x,m.b.c,m.b.d.double()", "1,2,3,4").unwrap();
        let expected = doc! {"m": doc! {"a": 1, "b": doc! {"c": 3, "d": 4.0}}, "x": 2};
        assert_eq!(found, expected);
    }

    #[test]
    fn invalid_values_are_reported() {
        for (names, line) in [
            ("a.int32()", "x"),
            ("a.int32()", "9000000000"),
            ("a.date()", "yesterday"),
            ("a.boolean()", "perhaps"),
            ("a.number()", "1"),
            ("a", "1,2"),
            ("a..b", "1"),
            ("", "1"),
        ] {
            assert!(read(names, line).is_err(), "{names}: {line}");
        }
    }
}

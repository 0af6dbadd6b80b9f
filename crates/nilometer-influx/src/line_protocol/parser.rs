//! From bytes to points.

use std::num::NonZeroUsize;

use super::known_heads::KnownHeads;
use super::number::{integer, short_integer, value};
use super::{FIELDS_MAX, FieldValue, Point, Precision, TAGS_MAX, TEXT_BYTES_MAX, Text};

/// Why a line is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineError {
    /// The line in the body, from 1.
    pub line: usize,
    /// The byte in the line, from 1.
    pub column: usize,
    /// What is wrong.
    pub message: String,
}

/// Points with more fields than this are searched for repeated keys by sorting.
const PAIRWISE_MAX: usize = 16;

/// Reads the lines of a body.
#[derive(Debug)]
pub struct Parser<'a> {
    body: &'a [u8],
    /// The whole body is UTF-8, so that lines need no check.
    is_utf8: bool,
    precision: Precision,
    at: usize,
    /// Begin of the line at which the parser is.
    line_start: usize,
    /// Number of that line, from 1.
    line: usize,
    /// The first line after the point that was returned last.
    next_line: usize,
    heads: KnownHeads<'a>,
    tag_keys: DistinctKeys<'a>,
    field_keys: DistinctKeys<'a>,
}

impl<'a> Parser<'a> {
    /// Begins at the start of a body.
    pub fn new(body: &'a [u8], precision: Precision) -> Self {
        Self {
            body,
            is_utf8: std::str::from_utf8(body).is_ok(),
            precision,
            at: 0,
            line_start: 0,
            line: 0,
            next_line: 1,
            heads: KnownHeads::default(),
            tag_keys: DistinctKeys::default(),
            field_keys: DistinctKeys::default(),
        }
    }

    /// Returns the number of the line that was read last, from 1.
    pub fn line(&self) -> usize {
        self.line
    }

    /// Returns the bytes of the line that was read last.
    pub fn line_bytes(&self) -> &'a [u8] {
        let bytes = self.body.get(self.line_start..self.at).unwrap_or_default();
        let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        bytes.strip_suffix(b"\r").unwrap_or(bytes)
    }

    /// Reads the next point. `None` at the end of the body.
    pub fn next_into(&mut self, point: &mut Point<'a>) -> Option<Result<(), LineError>> {
        loop {
            self.line_start = self.at;
            self.line = self.next_line;
            self.skip_spaces();
            match self.peek() {
                None => return None,
                Some(b'\n') => self.end_line(),
                Some(b'\r') if self.byte(1) == Some(b'\n') => {
                    self.at += 1;
                    self.end_line();
                }
                Some(b'#') => self.skip_line(),
                Some(_) => break,
            }
        }
        let read = self.point(point).and_then(|()| self.check_utf8());
        Some(read.map_err(|message| {
            let column = self.at - self.line_start + 1;
            let line = self.line;
            // An open quote may have led into other lines.
            self.at = self.line_start;
            self.next_line = self.line;
            self.skip_line();
            LineError {
                line,
                column,
                message: message.to_owned(),
            }
        }))
    }

    fn peek(&self) -> Option<u8> {
        self.body.get(self.at).copied()
    }

    fn byte(&self, ahead: usize) -> Option<u8> {
        self.body.get(self.at + ahead).copied()
    }

    fn skip_spaces(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | 0)) {
            self.at += 1;
        }
    }

    /// Goes behind the line feed at the position.
    fn end_line(&mut self) {
        self.at += 1;
        self.next_line += 1;
    }

    fn skip_line(&mut self) {
        let rest = self.body.get(self.at..).unwrap_or_default();
        match rest.iter().position(|byte| *byte == b'\n') {
            Some(length) => {
                self.at += length;
                self.end_line();
            }
            None => self.at = self.body.len(),
        }
    }

    fn check_utf8(&mut self) -> Result<(), &'static str> {
        if self.is_utf8 {
            return Ok(());
        }
        let bytes = self.body.get(self.line_start..self.at).unwrap_or_default();
        match std::str::from_utf8(bytes) {
            Ok(_) => Ok(()),
            Err(problem) => {
                self.at = self.line_start + problem.valid_up_to();
                Err("invalid UTF-8")
            }
        }
    }

    /// True at the end of a line or of the body.
    fn is_at_end(&self) -> bool {
        match self.peek() {
            None | Some(b'\n') => true,
            Some(b'\r') => matches!(self.byte(1), None | Some(b'\n')),
            Some(_) => false,
        }
    }

    /// Reads a point and the end of its line.
    fn point(&mut self, point: &mut Point<'a>) -> Result<(), &'static str> {
        self.head(point)?;
        self.skip_spaces();
        if self.is_at_end() {
            return Err("missing fields");
        }
        self.fields(point)?;
        self.skip_spaces();
        point.time_ms = match self.is_at_end() {
            true => None,
            false => Some(self.time()?),
        };
        self.skip_spaces();
        if !self.is_at_end() {
            return Err("unexpected text after the time");
        }
        if self.peek() == Some(b'\r') {
            self.at += 1;
        }
        if self.peek() == Some(b'\n') {
            self.end_line();
        }
        Ok(())
    }

    /// Reads measurement and tags. Those of a head that occurred before are taken from there.
    fn head(&mut self, point: &mut Point<'a>) -> Result<(), &'static str> {
        point.tags.clear();
        let rest = self.body.get(self.at..).unwrap_or_default();
        let found = self.heads.find(rest);
        if let Some((bytes, Some(number))) = found
            && let Some((measurement, tags)) = self.heads.get(number)
        {
            point.measurement = *measurement;
            point.tags.extend_from_slice(tags);
            point.head = Some(number);
            self.at += bytes.len();
            return Ok(());
        }
        let start = self.at;
        point.head = None;
        point.measurement = self.text(false)?;
        if point.measurement.raw.is_empty() {
            return Err("missing measurement");
        }
        while self.peek() == Some(b',') {
            self.at += 1;
            if point.tags.len() == TAGS_MAX {
                return Err("too many tags");
            }
            point.tags.push(self.tag()?);
        }
        if self.tag_keys.repeat(&point.tags) {
            return Err("a tag key occurs twice");
        }
        if self.peek() != Some(b' ') {
            return Err("missing fields");
        }
        // An escaped space is not the end of the head.
        if let Some((bytes, None)) = found
            && self.at == start + bytes.len()
        {
            point.head = self.heads.add(bytes, point.measurement, &point.tags);
        }
        Ok(())
    }

    fn fields(&mut self, point: &mut Point<'a>) -> Result<(), &'static str> {
        point.fields.clear();
        point.field_columns.clear();
        let mut are_known = true;
        loop {
            let number = point.fields.len();
            if number == FIELDS_MAX {
                return Err("too many fields");
            }
            point.field_columns.push(self.at - self.line_start + 1);
            let key = match self.field_keys.expected(number, self.body, self.at) {
                Some(key) => {
                    self.at += key.raw.len();
                    key
                }
                None => {
                    are_known = false;
                    self.text(true)?
                }
            };
            point.fields.push((key, self.field_value(key)?));
            if self.peek() != Some(b',') {
                break;
            }
            self.at += 1;
        }
        are_known &= point.fields.len() == self.field_keys.keys.len();
        if !are_known && self.field_keys.repeat(&point.fields) {
            return Err("a field key occurs twice");
        }
        point.field_keys = self.field_keys.number;
        Ok(())
    }

    /// Reads a name or tag value: up to a comma, a space, or the end of the line; keys also up to an equals sign.
    fn text(&mut self, is_key: bool) -> Result<Text<'a>, &'static str> {
        let rest = self.body.get(self.at..).unwrap_or_default();
        let mut length = 0;
        let mut has_escapes = false;
        while let Some(byte) = rest.get(length) {
            match byte {
                b',' | b' ' | b'\n' => break,
                b'=' if is_key => break,
                b'\r' if matches!(rest.get(length + 1), None | Some(b'\n')) => break,
                b'\\' => {
                    has_escapes = true;
                    let escaped = matches!(rest.get(length + 1), Some(b',' | b'=' | b' '));
                    length += usize::from(escaped);
                }
                // A name in a BSON document ends there.
                0 => {
                    self.at += length;
                    return Err("a zero byte in a name or tag value");
                }
                _ => {}
            }
            length += 1;
        }
        if length > TEXT_BYTES_MAX {
            return Err("a name or tag value is longer than 65535 bytes");
        }
        self.at += length;
        Ok(Text {
            raw: rest.get(..length).unwrap_or_default(),
            has_escapes,
        })
    }

    fn tag(&mut self) -> Result<(Text<'a>, Text<'a>), &'static str> {
        let key = self.text(true)?;
        if key.raw.is_empty() {
            return Err("missing tag key");
        }
        if self.peek() != Some(b'=') {
            return Err("missing tag value");
        }
        self.at += 1;
        let begin = self.at;
        let value = self.text(true)?;
        match (value.raw.is_empty(), self.peek()) {
            (true, _) => Err("missing tag value"),
            (_, Some(b'=')) => Err("an equals sign in a tag value needs a backslash"),
            _ => {
                debug_assert!(self.at > begin);
                Ok((key, value))
            }
        }
    }

    /// Reads the equals sign behind a key, and the value.
    fn field_value(&mut self, key: Text<'a>) -> Result<FieldValue<'a>, &'static str> {
        if key.raw.is_empty() {
            return Err("missing field key");
        }
        if self.peek() != Some(b'=') {
            return Err("missing field value");
        }
        self.at += 1;
        if self.peek() == Some(b'"') {
            return self.quoted();
        }
        let rest = self.body.get(self.at..).unwrap_or_default();
        if let Some((value, length)) = short_integer(rest) {
            self.at += length;
            return Ok(FieldValue::Integer(value));
        }
        let length = rest.iter().position(ends_value).unwrap_or(rest.len());
        let value = value(rest.get(..length).unwrap_or_default())?;
        self.at += length;
        Ok(value)
    }

    fn quoted(&mut self) -> Result<FieldValue<'a>, &'static str> {
        let rest = self.body.get(self.at + 1..).unwrap_or_default();
        let (mut length, mut lines, mut has_escapes) = (0, 0, false);
        loop {
            match rest.get(length) {
                None => return Err("the quoted text does not end"),
                Some(b'"') => break,
                Some(b'\\') => {
                    has_escapes = true;
                    let escaped = matches!(rest.get(length + 1), Some(b'"' | b'\\'));
                    length += usize::from(escaped);
                }
                Some(b'\n') => lines += 1,
                Some(_) => {}
            }
            length += 1;
        }
        self.at += length + 2;
        self.next_line += lines;
        if !(self.is_at_end() || matches!(self.peek(), Some(b',' | b' '))) {
            return Err("unexpected text after the quoted text");
        }
        let bytes = rest.get(..length).unwrap_or_default();
        Ok(FieldValue::String(bytes, has_escapes))
    }

    fn time(&mut self) -> Result<i64, &'static str> {
        let rest = self.body.get(self.at..).unwrap_or_default();
        let ends = |byte: &u8| matches!(byte, b' ' | b'\n' | b'\r');
        let length = rest.iter().position(ends).unwrap_or(rest.len());
        let token = rest.get(..length).unwrap_or_default();
        let time = integer(token).ok_or("invalid time")?;
        let ms = self.precision.to_ms(time).ok_or("time out of range")?;
        self.at += length;
        Ok(ms)
    }
}

/// True of a byte that ends a value without quotes.
pub(super) fn ends_value(byte: &u8) -> bool {
    matches!(byte, b',' | b' ' | b'\n' | b'\r')
}

/// The keys of the last point in which none occurred twice. Most points have those of the one before.
#[derive(Debug, Default)]
struct DistinctKeys<'a> {
    keys: Vec<Text<'a>>,
    /// How often the keys became others.
    number: Option<NonZeroUsize>,
}

impl<'a> DistinctKeys<'a> {
    /// Returns the key with this number if the body has it at `at`, with an equals sign behind it: a key without backslashes ends there.
    #[inline]
    fn expected(&self, number: usize, body: &[u8], at: usize) -> Option<Text<'a>> {
        let key = self.keys.get(number)?;
        let behind = body.get(at..)?.strip_prefix(key.raw)?;
        (!key.has_escapes && behind.first() == Some(&b'=')).then_some(*key)
    }

    /// True if one of the keys occurs twice.
    fn repeat<V>(&mut self, pairs: &[(Text<'a>, V)]) -> bool {
        let keys = pairs.iter().map(|(key, _)| *key);
        if self.keys.iter().copied().eq(keys.clone()) {
            return false;
        }
        let found = repeats(keys.clone(), pairs.len());
        if !found {
            self.keys.clear();
            self.keys.extend(keys);
            let before = self.number.map_or(0, NonZeroUsize::get);
            self.number = NonZeroUsize::new(before + 1);
        }
        found
    }
}

/// True if a key occurs twice. Keys that are written in two forms, one of which escapes what needs no backslash, are found
/// when their document is made.
fn repeats<'a>(keys: impl Iterator<Item = Text<'a>> + Clone, count: usize) -> bool {
    if count > PAIRWISE_MAX {
        let mut sorted: Vec<&[u8]> = keys.map(|key| key.raw).collect();
        sorted.sort_unstable();
        return sorted.windows(2).any(|pair| pair[0] == pair[1]);
    }
    let mut rest = keys;
    while let Some(key) = rest.next() {
        let same = |other: Text<'a>| {
            other.raw.len() == key.raw.len()
                && other.raw.last() == key.raw.last()
                && other.raw == key.raw
        };
        if rest.clone().any(same) {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_occur_twice_are_found_after_any_point() {
        let body = b"m,a=1,b=1 x=1,y=1\nm,a=1,b=1 x=1,y=1\nm,a=1,a=1 x=1,y=1\nm,a=1,b=1 x=1,x=1\n\
            m,b=1,a=1 y=1,x=1\nm,a=1,b=1 x=1,y=1,x=1\nm,b=1 y=1";
        let read = read(body);
        let errors: Vec<&String> = read.iter().filter(|one| one.contains("twice")).collect();
        assert_eq!(
            errors,
            [
                "3:10: a tag key occurs twice",
                "4:18: a field key occurs twice",
                "6:22: a field key occurs twice"
            ]
        );
        assert_eq!(read.len(), 7);
    }

    /// Returns points in a readable form, and errors.
    fn read(body: &[u8]) -> Vec<String> {
        let mut parser = Parser::new(body, Precision::Millisecond);
        let mut out = Vec::new();
        while let Some(read) = next(&mut parser) {
            out.push(read);
        }
        out
    }

    /// Returns the next point, or an error.
    fn next(parser: &mut Parser<'_>) -> Option<String> {
        let mut point = Point::default();
        let read = parser.next_into(&mut point)?;
        let columns = point.field_columns.clone();
        Some(match read {
            Err(e) => format!("{}:{}: {}", e.line, e.column, e.message),
            Ok(()) => {
                let mut text = point.measurement.to_text();
                for (key, value) in &point.tags {
                    text.push_str(&format!("|{}={}", key.to_text(), value.to_text()));
                }
                for (key, value) in &point.fields {
                    text.push_str(&format!("|{}:{value:?}", key.to_text()));
                }
                assert_eq!(columns.len(), point.fields.len());
                format!("{text}|{:?}", point.time_ms)
            }
        })
    }

    /// What is kept of earlier lines changes no point: lines read together are those read alone.
    #[test]
    fn lines_do_not_depend_on_those_before() {
        let heads = [
            "m,a=1,b=2",
            "m,a=1,b=3",
            "m,a=1,a=2",
            "m",
            "n\\ x,a=1",
            "m,a\\,b=1",
            "m,a=1\\",
            "m,a=1,b=2\r",
            "m,a",
            "m,=1",
            ",a=1",
            "m,a=1=2",
            "m,a=\u{e4}",
        ];
        let fields = [
            "x=1i,y=2i",
            "x=1i,y=2",
            "y=1i,x=2i",
            "x=1i",
            "x=-1i,y=t",
            "x=1i,y=2i,x=3i",
            "x=\"a b\",y=1i",
            "x=123456789012345678i,y=1234567890123456789i",
            "x=99999999999999999999i",
            "x=1i2,y=3i",
            "x=i",
            "x=,y=1i",
            "x1=1i,y=2i",
            "x\\=1i=2i,y=2i",
            "",
            "x=1i\r",
            "xy=1i",
        ];
        let times = ["", " 5", " x", "  6 ", " 7\r"];
        let mut seed = 1_u64;
        let mut draw = |of: &[&'static str]| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            of[(seed >> 33) as usize % of.len()]
        };
        let lines: Vec<String> = (0..5000)
            .map(|_| format!("{} {}{}", draw(&heads), draw(&fields), draw(&times)))
            .collect();
        let body = lines.join("\n");
        let mut parser = Parser::new(body.as_bytes(), Precision::Millisecond);
        let mut good = 0;
        for (number, line) in (1..).zip(&lines) {
            let mut alone = Parser::new(line.as_bytes(), Precision::Millisecond);
            let alone = next(&mut alone).map(|text| match text.strip_prefix("1:") {
                Some(error) => format!("{number}:{error}"),
                None => text,
            });
            good += usize::from(alone.as_ref().is_some_and(|text| text.contains('|')));
            assert_eq!(next(&mut parser), alone, "{line:?}");
        }
        assert_eq!(next(&mut parser), None);
        assert!((1000..4000).contains(&good), "{good}");
    }

    #[test]
    fn lines_are_read_with_their_escapes() {
        let body = br#"# a comment

cpu,host=a,region=eu\ west usage=64.5,cores=8i 7
  we\,a\ ther,t\=g=\\x,u=a\b f\ g=t
x s="a \"b\" \\ c, d=e",n=-1u"#;
        assert_eq!(
            read(body),
            [
                "cpu|host=a|region=eu west|usage:Float(64.5)|cores:Integer(8)|Some(7)",
                "we,a ther|t=g=\\\\x|u=a\\b|f g:Boolean(true)|None",
                "5:27: invalid unsigned integer; the largest is 9223372036854775807",
            ]
        );
    }

    #[test]
    fn errors_name_line_and_column_and_the_next_line_is_read() {
        let body = b"a b=1\n\nc,d b=1\r\ne f=\"x\ny\" 5\nq v=1x\nr v=\"open\ns v=1 2\r\n,a=1 b=2\nt \nu v=1 2 3\nw v=1,v=2\nz,a=1,a=2 b=1";
        assert_eq!(
            read(body),
            [
                "a|b:Float(1.0)|None",
                "3:4: missing tag value",
                "e|f:String([120, 10, 121], false)|Some(5)",
                "6:5: invalid boolean or number",
                "7:5: the quoted text does not end",
                "s|v:Float(1.0)|Some(2)",
                "9:1: missing measurement",
                "10:3: missing fields",
                "11:9: unexpected text after the time",
                "12:10: a field key occurs twice",
                "13:10: a tag key occurs twice",
            ]
        );
    }

    #[test]
    fn bytes_that_are_no_text_concern_their_line_only() {
        let body = b"a b=1 1\nc,t=\xFF b=1\nd,t=\0 b=1\ne b=1 99999999999999999999\nf b=1 9223372036855\ng b=1 9223372036854";
        assert_eq!(
            read(body),
            [
                "a|b:Float(1.0)|Some(1)",
                "2:5: invalid UTF-8",
                "3:5: a zero byte in a name or tag value",
                "4:7: invalid time",
                "5:7: time out of range",
                "g|b:Float(1.0)|Some(9223372036854)",
            ]
        );
    }

    #[test]
    fn times_have_units() {
        for (precision, time, expected) in [
            (Precision::Nanosecond, 1_999_999, Some(1)),
            (Precision::Nanosecond, -1, Some(-1)),
            (Precision::Nanosecond, i64::MIN, Some(-9_223_372_036_855)),
            (Precision::Microsecond, 1_999, Some(1)),
            (Precision::Second, 2, Some(2_000)),
            (Precision::Minute, 2, Some(120_000)),
            (Precision::Hour, i64::MAX, None),
            (Precision::Second, 9_223_372_036, Some(9_223_372_036_000)),
            (Precision::Second, 9_223_372_037, None),
        ] {
            assert_eq!(precision.to_ms(time), expected, "{precision:?} {time}");
        }
    }
}

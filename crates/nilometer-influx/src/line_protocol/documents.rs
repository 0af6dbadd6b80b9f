//! From points to documents, one batch for each measurement.
//!
//! ```text
//! cpu,host=a usage=64.2,cores=8i 1590488773254
//!      │           │
//!      ▼           ▼
//! {time: ISODate(…), tags: {host: "a"}, usage: 64.2, cores: Long(8)}
//! ```
//!
//! A field keeps the type of its first value ([`Schema`]): a line with another one is rejected. Documents are written as
//! bytes, in one buffer for each batch, with the number of the line of each.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Arc;

use super::{FieldType, FieldValue, LineError, Parser, Point, Precision, Text};

/// Documents of one batch, as an insert takes them.
const BATCH_DOCUMENTS_MAX: usize = 100_000;

/// Bytes of a batch after which the next one begins.
const BATCH_BYTES: usize = 16 * 1024 * 1024;

/// Bytes of documents to reserve for each byte of the body. Lines have no types and lengths, and those of their numbers are short.
const DOCUMENT_BYTES_PER_BYTE: usize = 2;

/// The largest document of a database.
const DOCUMENT_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The longest measurement: a collection's name and its database's have 255 bytes together.
const MEASUREMENT_BYTES_MAX: usize = 190;

const TYPE_DOUBLE: u8 = 0x01;
const TYPE_STRING: u8 = 0x02;
const TYPE_DOCUMENT: u8 = 0x03;
const TYPE_BOOL: u8 = 0x08;
const TYPE_DATE: u8 = 0x09;
const TYPE_INT64: u8 = 0x12;

/// The fields of a collection that hold times and tags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// The time.
    pub time: String,
    /// The document of the tags, if the collection has one.
    pub tags: Option<String>,
}

impl Default for Names {
    /// Returns the names in collections that a write creates.
    fn default() -> Self {
        Self {
            time: "time".to_owned(),
            tags: Some("tags".to_owned()),
        }
    }
}

/// What is known of a measurement.
#[derive(Clone, Debug, Default)]
pub struct Schema {
    /// The names in its collection.
    pub names: Names,
    /// The types of its fields.
    pub types: HashMap<String, FieldType>,
}

/// Returns, for each of some measurements, what is known of it, or why nothing can be written to it.
pub type SchemasOf<'s> = dyn FnMut(&[&str]) -> Vec<Result<Arc<Schema>, String>> + 's;

/// Documents of one measurement.
#[derive(Debug, Default)]
pub struct Batch {
    /// The measurement.
    pub measurement: String,
    /// The documents, one after the other.
    pub documents: Vec<u8>,
    /// The line of each document, from 1.
    pub lines: Vec<usize>,
}

impl Batch {
    /// Returns an empty batch of a measurement.
    pub(crate) fn of(measurement: &str) -> Self {
        Self {
            measurement: measurement.to_owned(),
            ..Self::default()
        }
    }
}

/// True if the next document begins another batch.
pub(crate) fn is_full(batch: &Batch) -> bool {
    batch.documents.len() >= BATCH_BYTES || batch.lines.len() == BATCH_DOCUMENTS_MAX
}

/// A line that is not written, and why.
pub type Rejection = LineError;

/// All batches of a body.
#[derive(Debug, Default)]
pub struct Batches {
    /// Those with documents.
    pub batches: Vec<Batch>,
    /// Fields that the schemas do not have yet: measurement, field, type.
    pub new_fields: Vec<(String, String, FieldType)>,
    /// Invalid lines, in their order.
    pub rejections: Vec<Rejection>,
}

impl Batches {
    /// Reads a body. `now_ms` is the time of points without one. `schema` returns what is known of a measurement, or why
    /// nothing can be written to it.
    pub fn read(
        body: &[u8],
        precision: Precision,
        now_ms: i64,
        schema: &mut dyn FnMut(&str) -> Result<Arc<Schema>, String>,
    ) -> Self {
        let mut writer = BatchWriter::new(now_ms, schema);
        // Most bodies are of one measurement.
        writer.first_bytes = (body.len() * DOCUMENT_BYTES_PER_BYTE).min(BATCH_BYTES);
        let mut parser = Parser::new(body, precision);
        let mut point = Point::default();
        let mut rejections = Vec::new();
        while let Some(read) = parser.next_into(&mut point) {
            let written = match read {
                Ok(()) => writer.add(&point, parser.line()),
                Err(error) => Err(error),
            };
            rejections.extend(written.err());
        }
        writer.finish(rejections)
    }
}

/// A field that occurred in the body.
struct KnownField {
    /// As it is written.
    raw: Box<[u8]>,
    name: String,
    kind: FieldType,
    /// What precedes its value in a document: type, name and a zero.
    element_head: Box<[u8]>,
    /// The schema does not have it.
    is_new: bool,
}

/// A measurement that occurred in the body.
struct Measurement {
    batch: Batch,
    schema: Arc<Schema>,
    fields: Vec<KnownField>,
    by_raw: HashMap<Box<[u8]>, usize>,
    /// Positions in `fields` of those of the point.
    of_point: Vec<usize>,
    /// The keys of which these are the positions: [`Point::field_keys`].
    keys_of_point: Option<NonZeroUsize>,
}

/// What was written of a head.
#[derive(Clone)]
struct WrittenHead {
    /// Position of the measurement.
    measurement: usize,
    /// The element of the tags in `tags`; empty if there are none.
    tags: Range<usize>,
}

/// Writes points as documents.
pub(crate) struct BatchWriter<'s> {
    schema: &'s mut dyn FnMut(&str) -> Result<Arc<Schema>, String>,
    now_ms: i64,
    measurements: Vec<Measurement>,
    /// Positions by names as they are written; errors are remembered, too.
    by_name: HashMap<Box<[u8]>, Result<usize, String>>,
    /// Bytes to reserve for the first measurement.
    first_bytes: usize,
    /// The last measurement, as it was written.
    last: Option<(Box<[u8]>, usize)>,
    /// By the numbers of heads: [`Point::head`].
    heads: Vec<Option<WrittenHead>>,
    /// The elements of tags of heads.
    tags: Vec<u8>,
    finished: Vec<Batch>,
}

impl<'s> BatchWriter<'s> {
    /// Begins; the arguments are those of [`Batches::read`].
    pub(crate) fn new(
        now_ms: i64,
        schema: &'s mut dyn FnMut(&str) -> Result<Arc<Schema>, String>,
    ) -> Self {
        Self {
            schema,
            now_ms,
            measurements: Vec::new(),
            by_name: HashMap::new(),
            first_bytes: 0,
            last: None,
            heads: Vec::new(),
            tags: Vec::new(),
            finished: Vec::new(),
        }
    }

    /// Returns the batches.
    pub(crate) fn finish(self, rejections: Vec<Rejection>) -> Batches {
        let mut out = Batches {
            batches: self.finished,
            new_fields: Vec::new(),
            rejections,
        };
        for measurement in self.measurements {
            for known in measurement.fields.into_iter().filter(|known| known.is_new) {
                let field = (
                    measurement.batch.measurement.clone(),
                    known.name,
                    known.kind,
                );
                out.new_fields.push(field);
            }
            if !measurement.batch.lines.is_empty() {
                out.batches.push(measurement.batch);
            }
        }
        out
    }

    /// Adds a point, whose line has this number.
    pub(crate) fn add(&mut self, point: &Point<'_>, line: usize) -> Result<(), Rejection> {
        let reject = |column: usize, message: String| LineError {
            line,
            column,
            message,
        };
        let known = point.head.and_then(|head| self.heads.get(head)?.clone());
        let at = match &known {
            Some(known) => known.measurement,
            None => self
                .measurement(point.measurement)
                .map_err(|message| reject(1, message))?,
        };
        let known_tags = known.and_then(|known| self.tags.get(known.tags));
        let measurement = &mut self.measurements[at];
        let known_before = measurement.fields.len();
        let resolved = measurement.resolve(point);
        let written = resolved.and_then(|()| {
            let written = measurement.write(point, self.now_ms, known_tags);
            written.map_err(|message| (1, message))
        });
        let tags = match written {
            Ok(tags) => tags,
            Err((column, message)) => {
                measurement.forget_fields(known_before);
                return Err(reject(column, message));
            }
        };
        if let Some(head) = point.head.filter(|_| known_tags.is_none()) {
            let start = self.tags.len();
            self.tags
                .extend_from_slice(&measurement.batch.documents[tags]);
            if self.heads.len() <= head {
                self.heads.resize(head + 1, None);
            }
            self.heads[head] = Some(WrittenHead {
                measurement: at,
                tags: start..self.tags.len(),
            });
        }
        measurement.batch.lines.push(line);
        let batch = &mut measurement.batch;
        if is_full(batch) {
            let next = Batch::of(&batch.measurement);
            self.finished.push(std::mem::replace(batch, next));
        }
        Ok(())
    }

    /// Returns the position of a measurement.
    fn measurement(&mut self, text: Text<'_>) -> Result<usize, String> {
        if let Some((raw, at)) = &self.last
            && **raw == *text.raw
        {
            return Ok(*at);
        }
        if let Some(known) = self.by_name.get(text.raw) {
            let at = known.clone()?;
            self.last = Some((text.raw.into(), at));
            return Ok(at);
        }
        let name = text.to_text();
        let opened = check_measurement(&name).and_then(|()| (self.schema)(&name));
        let found = opened.map(|schema| {
            self.measurements.push(Measurement {
                batch: Batch {
                    measurement: name,
                    documents: Vec::with_capacity(std::mem::take(&mut self.first_bytes)),
                    ..Batch::default()
                },
                schema,
                fields: Vec::new(),
                by_raw: HashMap::new(),
                of_point: Vec::new(),
                keys_of_point: None,
            });
            self.measurements.len() - 1
        });
        self.by_name.insert(text.raw.into(), found.clone());
        found
    }
}

impl Measurement {
    /// Forgets the fields from the position `from` on, which only a rejected line has.
    fn forget_fields(&mut self, from: usize) {
        self.keys_of_point = None;
        for added in self.fields.drain(from..) {
            self.by_raw.remove(&added.raw);
        }
    }

    /// Finds the fields of a point and checks their types.
    fn resolve(&mut self, point: &Point<'_>) -> Result<(), (usize, String)> {
        let has_type = |(at, (_, value)): (&usize, &(_, FieldValue<'_>))| {
            self.fields[*at].kind == value.field_type()
        };
        if point.field_keys.is_some()
            && point.field_keys == self.keys_of_point
            && self.of_point.iter().zip(&point.fields).all(has_type)
        {
            return Ok(());
        }
        self.keys_of_point = None;
        self.of_point.clear();
        let mut predicted = 0;
        for (number, (key, value)) in point.fields.iter().enumerate() {
            let found = match self.fields.get(predicted) {
                Some(known) if *known.raw == *key.raw => Ok(predicted),
                _ => self.find(*key, value.field_type()),
            };
            let checked = found.and_then(|at| {
                let known = &self.fields[at];
                let given = value.field_type();
                if known.kind == given {
                    return Ok(at);
                }
                Err(format!(
                    "field type conflict: input field \"{}\" on measurement \"{}\" is type {}, already exists as type {}",
                    known.name,
                    self.batch.measurement,
                    given.name(),
                    known.kind.name()
                ))
            });
            match checked {
                Ok(at) => {
                    self.of_point.push(at);
                    predicted = at + 1;
                }
                Err(message) => {
                    let column = point.field_columns.get(number).copied().unwrap_or(1);
                    return Err((column, message));
                }
            }
        }
        self.keys_of_point = point.field_keys;
        Ok(())
    }

    /// Returns the position of a field. Adds one that did not occur yet.
    fn find(&mut self, key: Text<'_>, kind: FieldType) -> Result<usize, String> {
        if let Some(at) = self.by_raw.get(key.raw) {
            return Ok(*at);
        }
        let name = key.to_text();
        let names = &self.schema.names;
        check_key("field", &name)?;
        if name == "time"
            || name == "_id"
            || name == names.time
            || names.tags.as_deref() == Some(&name)
        {
            return Err(format!(
                "input field \"{name}\" on measurement \"{}\" is invalid: the name is reserved",
                self.batch.measurement
            ));
        }
        let stored = self.schema.types.get(&name).copied();
        let kind = stored.unwrap_or(kind);
        let mut element_head = Vec::new();
        begin(&mut element_head, type_code(kind), name.as_bytes());
        self.fields.push(KnownField {
            raw: key.raw.into(),
            name,
            kind,
            element_head: element_head.into(),
            is_new: stored.is_none(),
        });
        let at = self.fields.len() - 1;
        self.by_raw.insert(key.raw.into(), at);
        Ok(at)
    }

    /// Appends the document of a point whose fields were found. `known_tags` is the element of its tags, if it was written before.
    /// Returns the place of that element, which is empty if there are no tags.
    fn write(
        &mut self,
        point: &Point<'_>,
        now_ms: i64,
        known_tags: Option<&[u8]>,
    ) -> Result<Range<usize>, String> {
        let out = &mut self.batch.documents;
        let start = out.len();
        let names = &self.schema.names;
        out.extend_from_slice(&[0; 4]);
        begin(out, TYPE_DATE, names.time.as_bytes());
        out.extend_from_slice(&point.time_ms.unwrap_or(now_ms).to_le_bytes());
        let tags_start = out.len();
        let written = match (known_tags, &names.tags) {
            (Some(known), _) => {
                out.extend_from_slice(known);
                Ok(())
            }
            _ if point.tags.is_empty() => Ok(()),
            (None, Some(name)) => write_tags(out, name, point),
            (None, None) => Err(format!(
                "the collection \"{}\" has no metaField for tags",
                self.batch.measurement
            )),
        };
        let tags = tags_start..out.len();
        for (at, (_, value)) in self.of_point.iter().zip(&point.fields) {
            write_field(out, &self.fields[*at].element_head, value);
        }
        out.push(0);
        let length = out.len() - start;
        let written = written.and(match length <= DOCUMENT_BYTES_MAX {
            true => Ok(()),
            false => Err(format!(
                "the point has {length} bytes as a document, the maximum is {DOCUMENT_BYTES_MAX}"
            )),
        });
        match written {
            Ok(()) => patch_length(out, start),
            Err(_) => out.truncate(start),
        }
        written.map(|()| tags)
    }
}

/// Returns BSON's code of a type.
fn type_code(kind: FieldType) -> u8 {
    match kind {
        FieldType::Float => TYPE_DOUBLE,
        FieldType::Integer => TYPE_INT64,
        FieldType::String => TYPE_STRING,
        FieldType::Boolean => TYPE_BOOL,
    }
}

fn begin(out: &mut Vec<u8>, type_code: u8, name: &[u8]) {
    out.push(type_code);
    out.extend_from_slice(name);
    out.push(0);
}

/// Writes the length of the document or text that begins at `start`, whose four bytes of length are zero.
fn patch_length(out: &mut [u8], start: usize) {
    let length = u32::try_from(out.len() - start).unwrap_or(u32::MAX);
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

fn write_tags(out: &mut Vec<u8>, name: &str, point: &Point<'_>) -> Result<(), String> {
    begin(out, TYPE_DOCUMENT, name.as_bytes());
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    for (key, value) in &point.tags {
        out.push(TYPE_STRING);
        let at = out.len();
        key.append_to(out);
        check_key_bytes("tag", &out[at..])?;
        if &out[at..] == b"time" {
            return Err("input tag \"time\" is invalid: the name is reserved".to_owned());
        }
        out.push(0);
        write_string(out, |out| value.append_to(out));
    }
    out.push(0);
    patch_length(out, start);
    Ok(())
}

/// Writes a text that `append` appends, with its length before and a zero behind it.
fn write_string(out: &mut Vec<u8>, append: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    out.extend_from_slice(&[0; 4]);
    append(out);
    out.push(0);
    let length = u32::try_from(out.len() - at - 4).unwrap_or(u32::MAX);
    out[at..at + 4].copy_from_slice(&length.to_le_bytes());
}

/// Appends a field, given what precedes its value.
fn write_field(out: &mut Vec<u8>, element_head: &[u8], value: &FieldValue<'_>) {
    out.extend_from_slice(element_head);
    match value {
        FieldValue::Float(value) => out.extend_from_slice(&value.to_le_bytes()),
        FieldValue::Integer(value) => out.extend_from_slice(&value.to_le_bytes()),
        FieldValue::Boolean(value) => out.push(u8::from(*value)),
        FieldValue::String(bytes, has_escapes) => {
            write_string(out, |out| append_quoted(out, bytes, *has_escapes));
        }
    }
}

/// Appends a quoted text without the backslashes before quotes and backslashes.
fn append_quoted(out: &mut Vec<u8>, bytes: &[u8], has_escapes: bool) {
    if !has_escapes {
        out.extend_from_slice(bytes);
        return;
    }
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let next = bytes.get(at + 1);
        match (byte, next) {
            (b'\\', Some(escaped @ (b'"' | b'\\'))) => {
                out.push(*escaped);
                at += 2;
            }
            _ => {
                out.push(*byte);
                at += 1;
            }
        }
    }
}

/// Fails unless a collection may have the name.
pub(crate) fn check_measurement(name: &str) -> Result<(), String> {
    let why = match name {
        _ if name.len() > MEASUREMENT_BYTES_MAX => "is longer than 190 bytes",
        _ if name.starts_with("system.") => "begins with 'system.'",
        _ if name.contains('$') => "contains '$'",
        _ if name.starts_with('.') || name.ends_with('.') => "begins or ends with a dot",
        _ => return Ok(()),
    };
    Err(format!(
        "the measurement \"{name}\" {why}, which names of collections must not"
    ))
}

/// Fails unless a path can lead to a field of the name.
pub(crate) fn check_key(what: &str, name: &str) -> Result<(), String> {
    check_key_bytes(what, name.as_bytes())
}

fn check_key_bytes(what: &str, name: &[u8]) -> Result<(), String> {
    let why = match name {
        [b'$', ..] => "begins with '$'",
        _ if name.contains(&b'.') => "contains a dot",
        _ => return Ok(()),
    };
    let name = String::from_utf8_lossy(name);
    Err(format!(
        "the {what} key \"{name}\" {why}, which names of fields must not"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nilometer_bson::DocRef;
    use nilometer_bson::extjson::to_relaxed;
    use nilometer_bson::validate::{Limits, validate_document};

    fn schema() -> Arc<Schema> {
        let types = [("known".to_owned(), FieldType::Integer)];
        Arc::new(Schema {
            names: Names::default(),
            types: types.into(),
        })
    }

    fn documents(batch: &Batch) -> Vec<String> {
        let mut out = Vec::new();
        let mut rest = batch.documents.as_slice();
        while let [a, b, c, d, ..] = rest {
            let length = u32::from_le_bytes([*a, *b, *c, *d]) as usize;
            let (document, after) = rest.split_at(length);
            let document = DocRef::new(document).expect("a document");
            let limits = Limits::default();
            validate_document(document.as_bytes(), &limits).expect("valid");
            out.push(to_relaxed(document));
            rest = after;
        }
        assert_eq!(out.len(), batch.lines.len());
        out
    }

    #[test]
    fn points_become_documents_of_their_measurements() {
        let body = b"m,a=x,b=y\\ z f=1.5,g=2i 1\nn h=t\nm f=2,s=\"q\\\"\\\\\" 2";
        let read = Batches::read(body, Precision::Millisecond, 9, &mut |_| Ok(schema()));
        assert!(read.rejections.is_empty(), "{:?}", read.rejections);
        let [m, n] = &read.batches[..] else {
            panic!("{:?}", read.batches)
        };
        assert_eq!(
            documents(m),
            [
                r#"{"time":{"$date":"1970-01-01T00:00:00.001Z"},"tags":{"a":"x","b":"y z"},"f":1.5,"g":2}"#,
                r#"{"time":{"$date":"1970-01-01T00:00:00.002Z"},"f":2.0,"s":"q\"\\"}"#,
            ]
        );
        assert_eq!(
            documents(n),
            [r#"{"time":{"$date":"1970-01-01T00:00:00.009Z"},"h":true}"#]
        );
        assert_eq!((&m.lines[..], &n.lines[..]), (&[1, 3][..], &[2][..]));
        let new: Vec<_> = read
            .new_fields
            .iter()
            .map(|(_, f, t)| (&f[..], *t))
            .collect();
        assert_eq!(
            new,
            [
                ("f", FieldType::Float),
                ("g", FieldType::Integer),
                ("s", FieldType::String),
                ("h", FieldType::Boolean)
            ]
        );
    }

    /// What is kept of earlier points changes no document: a body read as a whole is as its lines read one by one.
    #[test]
    fn documents_do_not_depend_on_the_points_before() {
        let heads = [
            "m,a=1,b=2",
            "m,a=1",
            "m",
            "n,a=1",
            "n,a=x\\ y",
            "m,t.u=1",
            "refused,a=1",
            "n,time=1",
        ];
        let fields = [
            "x=1i,y=2",
            "x=1i,y=\"s\"",
            "x=1",
            "y=2,x=1i",
            "x=1i,y=2,known=5i",
            "known=5",
            "z=t",
            "x=1i,a.b=1",
        ];
        let mut seed = 1_u64;
        let mut draw = |of: &[&'static str]| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            of[(seed >> 33) as usize % of.len()]
        };
        let lines: Vec<String> = (0..3000)
            .map(|at| format!("{} {} {at}", draw(&heads), draw(&fields)))
            .collect();
        let types = [
            ("x", FieldType::Integer),
            ("y", FieldType::Float),
            ("known", FieldType::Integer),
        ];
        let types = types.map(|(name, kind)| (name.to_owned(), kind));
        let typed = Arc::new(Schema {
            names: Names::default(),
            types: types.into(),
        });
        let mut schema = |name: &str| match name {
            "refused" => Err("no".to_owned()),
            _ => Ok(typed.clone()),
        };
        let mut read =
            |text: &str| Batches::read(text.as_bytes(), Precision::Millisecond, 9, &mut schema);
        let whole = read(&lines.join("\n"));
        let mut alone: HashMap<String, Vec<String>> = HashMap::new();
        let mut rejected = Vec::new();
        for (number, line) in (1..).zip(&lines) {
            let one = read(line);
            rejected.extend(one.rejections.into_iter().map(|one| LineError {
                line: number,
                ..one
            }));
            for batch in &one.batches {
                alone
                    .entry(batch.measurement.clone())
                    .or_default()
                    .extend(documents(batch));
            }
        }
        assert_eq!(whole.rejections, rejected);
        assert!((500..2500).contains(&rejected.len()), "{}", rejected.len());
        for batch in &whole.batches {
            assert_eq!(Some(&documents(batch)), alone.get(&batch.measurement));
        }
        assert_eq!(whole.batches.len(), alone.len());
    }

    #[test]
    fn lines_that_cannot_be_documents_are_rejected_and_leave_nothing() {
        let body = b"m known=1\nm x=1,known=\"a\"\nm x=t\nm x=1\nm time=1\nm _id=1\nm tags=1\nm a.b=1\nm $a=1\n\
            m,t.u=1 a=1\nm,time=1 a=1\nsystem.x a=1\na$b a=1\nrefused a=1\nm known=5i";
        let read = Batches::read(body, Precision::Millisecond, 9, &mut |name| match name {
            "refused" => Err("no".to_owned()),
            _ => Ok(schema()),
        });
        let rejected: Vec<_> = read
            .rejections
            .iter()
            .map(|e| (e.line, e.column, &e.message[..e.message.len().min(40)]))
            .collect();
        assert_eq!(
            rejected,
            [
                (1, 3, "field type conflict: input field \"known\""),
                (2, 7, "field type conflict: input field \"known\""),
                (4, 3, "field type conflict: input field \"x\" on "),
                (5, 3, "input field \"time\" on measurement \"m\" is"),
                (6, 3, "input field \"_id\" on measurement \"m\" is "),
                (7, 3, "input field \"tags\" on measurement \"m\" is"),
                (8, 3, "the field key \"a.b\" contains a dot, whic"),
                (9, 3, "the field key \"$a\" begins with '$', whic"),
                (10, 1, "the tag key \"t.u\" contains a dot, which "),
                (11, 1, "input tag \"time\" is invalid: the name is"),
                (12, 1, "the measurement \"system.x\" begins with '"),
                (13, 1, "the measurement \"a$b\" contains '$', whic"),
                (14, 1, "no"),
            ]
        );
        assert_eq!(read.batches.len(), 1);
        assert_eq!(
            documents(&read.batches[0]),
            [
                r#"{"time":{"$date":"1970-01-01T00:00:00.009Z"},"x":true}"#,
                r#"{"time":{"$date":"1970-01-01T00:00:00.009Z"},"known":5}"#,
            ]
        );
        let new: Vec<_> = read.new_fields.iter().map(|(_, f, _)| &f[..]).collect();
        assert_eq!(new, ["x"]);
    }
}

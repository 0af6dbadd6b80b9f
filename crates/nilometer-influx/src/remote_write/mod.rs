//! Prometheus remote write 1.0: samples as documents.
//!
//! A body is a `WriteRequest` of protocol buffers, after decompression:
//!
//! ```text
//! WriteRequest { 1: TimeSeries*, 3: MetricMetadata* }      TimeSeries { 1: Label*, 2: Sample*, 3: Exemplar*, 4: Histogram* }
//! Label { 1: name, 2: value }                              Sample { 1: value, double; 2: timestamp, ms }
//! ```
//!
//! The metric, the label `__name__`, is the measurement, as InfluxDB does it; the other labels are the tags, and a sample is the field
//! `value`. Metadata and exemplars are skipped. A series with histograms, or with names that a document cannot have, is rejected, and
//! the others are written. A body that is no message is an error as a whole, because its end is unknown.
//!
//! ```text
//! body ─► names of metrics ─► what is known of all of them, by one look-up ─► series: labels and samples as documents
//! ```
//!
//! The labels of a series become BSON once, in its first document; its further samples are copies with another time and value. Labels
//! that the series before had, too, are copied from there.

mod last_labels;
mod message;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;

use crate::line_protocol::{
    Batch, Batches, FieldType, LineError, Names, Schema, SchemasOf, TAGS_MAX, TEXT_BYTES_MAX,
    TIME_MS_MAX, check_key, check_measurement, is_full,
};
use last_labels::LastLabels;
use message::{Message, WireValue, read_label, read_sample};

/// The label of the metric's name.
const NAME: &str = "__name__";

/// The field of samples.
const VALUE: &str = "value";

/// Bytes of the documents of a body. Each sample of a series repeats its labels.
const DOCUMENTS_BYTES_MAX: usize = 256 * 1024 * 1024;

/// Bytes of documents that a metric reserves at once.
const RESERVED_BYTES_MAX: usize = 1024 * 1024;

/// Bytes of a document beside its labels and the names of the time and the tags, at most.
const FRAME_BYTES: usize = 64;

const TYPE_DOUBLE: u8 = 0x01;
const TYPE_STRING: u8 = 0x02;
const TYPE_DOCUMENT: u8 = 0x03;
const TYPE_DATE: u8 = 0x09;

/// Why a series is not written.
#[derive(Debug)]
enum Flaw {
    /// The body is no message.
    Body(&'static str),
    /// Only this series is wrong.
    Series(String),
}

impl From<&'static str> for Flaw {
    fn from(text: &'static str) -> Self {
        Self::Body(text)
    }
}

/// A metric of the body.
struct Metric {
    batch: Batch,
    /// Or why nothing can be written to it.
    schema: Result<Arc<Schema>, String>,
    is_new: bool,
    /// Bytes of its series in the body.
    bytes: usize,
}

/// The metrics of a body, and the series of each.
#[derive(Default)]
struct Metrics<'a> {
    metrics: Vec<Metric>,
    places: HashMap<&'a [u8], usize, foldhash::quality::RandomState>,
    /// The bytes of each series, and the place of its metric; an error if it has no name.
    series: Vec<(&'a [u8], Result<usize, String>)>,
}

impl<'a> Metrics<'a> {
    /// Finds the series of a body and their metrics.
    fn of(body: &'a [u8]) -> Result<Self, &'static str> {
        let mut all = Self::default();
        let mut message = Message(body);
        while let Some(field) = message.next() {
            let (1, WireValue::Bytes(bytes)) = field? else {
                continue;
            };
            let place = all.place(metric_name(bytes)?);
            if let Ok(at) = place {
                all.metrics[at].bytes += bytes.len() + FRAME_BYTES;
            }
            all.series.push((bytes, place));
        }
        Ok(all)
    }

    /// Returns the place of a metric. Adds one that did not occur yet.
    fn place(&mut self, name: Option<&'a [u8]>) -> Result<usize, String> {
        let name = name.ok_or("a series has no __name__")?;
        if let Some(at) = self.places.get(name) {
            return Ok(*at);
        }
        let text = std::str::from_utf8(name).map_err(|_| NOT_UTF8)?;
        self.metrics.push(Metric {
            batch: Batch::of(text),
            schema: check_measurement(text).map(|()| Arc::default()),
            is_new: false,
            bytes: 0,
        });
        let at = self.metrics.len() - 1;
        self.places.insert(name, at);
        Ok(at)
    }

    /// Asks for the schemas of all metrics.
    fn look_up(&mut self, schemas: &mut SchemasOf<'_>) {
        let writable = |metric: &&mut Metric| metric.schema.is_ok();
        let known = {
            let metrics = self.metrics.iter();
            let metrics = metrics.filter(|metric| metric.schema.is_ok());
            let names: Vec<&str> = metrics.map(|one| one.batch.measurement.as_str()).collect();
            match names.is_empty() {
                true => Vec::new(),
                false => schemas(&names),
            }
        };
        let metrics = self.metrics.iter_mut().filter(writable);
        for (metric, schema) in metrics.zip(known) {
            metric.schema = schema.and_then(|schema| {
                match schema.types.get(VALUE) {
                    None => metric.is_new = true,
                    Some(FieldType::Float) => {}
                    Some(other) => {
                        return Err(format!(
                            "field type conflict: input field \"{VALUE}\" on measurement \"{}\" is type float, already exists as type {}",
                            metric.batch.measurement,
                            other.name()
                        ));
                    }
                }
                Ok(schema)
            });
            let reserved = metric.bytes.min(RESERVED_BYTES_MAX);
            metric.batch.documents.reserve(reserved);
        }
    }
}

const NOT_UTF8: &str = "a label is not UTF-8";

/// Returns the metric of a series. Prometheus sends its label first.
fn metric_name(bytes: &[u8]) -> Result<Option<&[u8]>, &'static str> {
    let mut message = Message(bytes);
    while let Some(field) = message.next() {
        if let (1, WireValue::Bytes(label)) = field? {
            let (name, value) = read_label(label)?;
            if name == NAME.as_bytes() {
                return Ok(Some(value));
            }
        }
    }
    Ok(None)
}

/// Reads a body. `schemas` returns what is known of measurements, or why nothing can be written to them. Lines of batches and
/// rejections are numbers of series, from 1.
pub fn read(body: &[u8], schemas: &mut SchemasOf<'_>) -> Result<Batches, String> {
    let mut all = Metrics::of(body)?;
    all.look_up(schemas);
    let mut out = Batches::default();
    let (mut reader, mut documents_bytes) = (SeriesReader::default(), 0);
    for (number, (bytes, place)) in (1..).zip(all.series) {
        let added = place.map_err(Flaw::Series).and_then(|at| {
            let metric = &mut all.metrics[at];
            reader.add(bytes, number, metric, &mut out.batches)
        });
        match added {
            Ok(bytes) => documents_bytes += bytes,
            Err(Flaw::Body(text)) => return Err(text.to_owned()),
            Err(Flaw::Series(message)) => out.rejections.push(LineError {
                line: number,
                column: 1,
                message,
            }),
        }
        if documents_bytes > DOCUMENTS_BYTES_MAX {
            return Err(format!(
                "the samples and their labels have more than {DOCUMENTS_BYTES_MAX} bytes as documents"
            ));
        }
    }
    for metric in all.metrics {
        if metric.is_new {
            let name = metric.batch.measurement.clone();
            out.new_fields
                .push((name, VALUE.to_owned(), FieldType::Float));
        }
        if !metric.batch.lines.is_empty() {
            out.batches.push(metric.batch);
        }
    }
    Ok(out)
}

/// Reads series one after the other.
#[derive(Default)]
struct SeriesReader<'a> {
    /// Times and values of the series.
    samples: Vec<(i64, f64)>,
    labels: LastLabels<'a>,
}

impl<'a> SeriesReader<'a> {
    /// Adds the samples of a series to the batch of its metric. Returns the bytes of its documents.
    fn add(
        &mut self,
        bytes: &'a [u8],
        number: usize,
        metric: &mut Metric,
        finished: &mut Vec<Batch>,
    ) -> Result<usize, Flaw> {
        let schema = metric.schema.as_ref().map_err(|text| text.clone());
        let names = &schema.map_err(Flaw::Series)?.names;
        let batch = &mut metric.batch;
        let start = batch.documents.len();
        let time_at = match self.first_document(bytes, names, &mut batch.documents) {
            Ok(time_at) if !self.samples.is_empty() => time_at - start,
            unwritten => {
                batch.documents.truncate(start);
                return unwritten.map(|_| 0);
            }
        };
        let samples = &self.samples;
        let length = batch.documents.len() - start;
        if length.saturating_mul(samples.len()) > DOCUMENTS_BYTES_MAX {
            batch.documents.truncate(start);
            return Ok(DOCUMENTS_BYTES_MAX + 1);
        }
        let (mut last, mut has_copy) = (start, true);
        for (at, (time, value)) in samples.iter().enumerate() {
            if !std::mem::take(&mut has_copy) {
                let next = batch.documents.len();
                batch.documents.extend_from_within(last..last + length);
                last = next;
            }
            let document = &mut batch.documents[last..];
            document[time_at..time_at + 8].copy_from_slice(&time.to_le_bytes());
            document[length - 9..length - 1].copy_from_slice(&value.to_le_bytes());
            batch.lines.push(number);
            if is_full(batch) {
                let mut next = Batch::of(&batch.measurement);
                if at + 1 < samples.len() {
                    next.documents.extend_from_slice(&batch.documents[last..]);
                    has_copy = true;
                }
                finished.push(std::mem::replace(batch, next));
                last = 0;
            }
        }
        Ok(length * samples.len())
    }

    /// Appends the document of a series, without time and value, which end it. Returns the place of the time, and all samples.
    fn first_document(
        &mut self,
        bytes: &'a [u8],
        names: &Names,
        out: &mut Vec<u8>,
    ) -> Result<usize, Flaw> {
        self.samples.clear();
        let start = out.len();
        out.extend_from_slice(&[0; 4]);
        element(out, TYPE_DATE, &names.time);
        let time_at = out.len();
        out.extend_from_slice(&[0; 8]);
        self.tags(bytes, names.tags.as_deref(), out)?;
        let in_range = |(time, _): &&(i64, f64)| (-TIME_MS_MAX - 1..=TIME_MS_MAX).contains(time);
        if let Some((time, _)) = self.samples.iter().find(|sample| !in_range(sample)) {
            return Err(Flaw::Series(format!("the time {time} is out of range")));
        }
        element(out, TYPE_DOUBLE, VALUE);
        out.extend_from_slice(&[0; 9]);
        set_length(out, start);
        Ok(time_at)
    }

    /// Reads a series: appends the element of its tags, if it has any, and collects its samples.
    fn tags(
        &mut self,
        bytes: &'a [u8],
        field: Option<&str>,
        out: &mut Vec<u8>,
    ) -> Result<(), Flaw> {
        let start = out.len();
        element(out, TYPE_DOCUMENT, field.unwrap_or_default());
        let first = out.len() + 4;
        out.extend_from_slice(&[0; 4]);
        let mut checked = Ok(());
        let mut message = Message(bytes);
        self.labels.begin();
        loop {
            if self.labels.copy_next(&mut message, out) {
                continue;
            }
            let before = message.0;
            let Some(read) = message.next() else { break };
            match read? {
                (1, WireValue::Bytes(label)) => {
                    let (name, value) = read_label(label)?;
                    if is_tag(name, value) {
                        checked = checked.and_then(|()| append_label(out, name, value));
                        let field = &before[..before.len() - message.0.len()];
                        let end = out.len() - first;
                        self.labels.add((field, message.0), name, end);
                    }
                }
                (2, WireValue::Bytes(sample)) => self.samples.push(read_sample(sample)?),
                (4, _) => checked = Err("native histograms are not supported".to_owned()),
                _ => {}
            }
        }
        checked.map_err(Flaw::Series)?;
        let flaw = |text: &str| Err(Flaw::Series(text.to_owned()));
        match (self.labels.count(), field) {
            (0, _) => {
                out.truncate(start);
                return Ok(());
            }
            (_, None) => return flaw("the collection has no metaField for labels"),
            (count, _) if count > TAGS_MAX => return flaw(TOO_LARGE),
            _ => {}
        }
        if self.labels.are_sorted() {
            self.labels.keep(&out[first..]);
        } else {
            out.truncate(first);
            sorted_tags(bytes, out)?;
        }
        // Lengths of short texts are ASCII, too, so most documents are as a whole.
        if !out[first..].is_ascii() {
            check_texts(bytes)?;
        }
        out.push(0);
        set_length(out, first - 4);
        Ok(())
    }
}

const TOO_LARGE: &str = "a series has too many labels, or one that is too long";

/// True if a label is a tag. One without a value is one that is not there.
fn is_tag(name: &[u8], value: &[u8]) -> bool {
    name != NAME.as_bytes() && !value.is_empty()
}

/// Name and value of a label.
type Label<'a> = (&'a [u8], &'a [u8]);

/// Returns the labels of a series that are tags.
fn labels(bytes: &[u8]) -> Result<Vec<Label<'_>>, &'static str> {
    let (mut all, mut message) = (Vec::new(), Message(bytes));
    while let Some(read) = message.next() {
        if let (1, WireValue::Bytes(label)) = read? {
            let (name, value) = read_label(label)?;
            if is_tag(name, value) {
                all.push((name, value));
            }
        }
    }
    Ok(all)
}

/// Appends the labels of a series that are not in the order of their names.
fn sorted_tags(bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Flaw> {
    let mut labels = labels(bytes)?;
    labels.sort_unstable();
    if labels.windows(2).any(|pair| pair[0].0 == pair[1].0) {
        return Err(Flaw::Series("a label occurs twice".to_owned()));
    }
    for (name, value) in labels {
        append_label(out, name, value).map_err(Flaw::Series)?;
    }
    Ok(())
}

/// Fails unless all labels of a series are UTF-8.
fn check_texts(bytes: &[u8]) -> Result<(), Flaw> {
    let is_text = |bytes| std::str::from_utf8(bytes).is_ok();
    match labels(bytes)?
        .into_iter()
        .all(|(name, value)| is_text(name) && is_text(value))
    {
        true => Ok(()),
        false => Err(Flaw::Series(NOT_UTF8.to_owned())),
    }
}

/// Appends a label as a text. Whether it is UTF-8 is checked later.
fn append_label(out: &mut Vec<u8>, name: &[u8], value: &[u8]) -> Result<(), String> {
    if name.len().max(value.len()) > TEXT_BYTES_MAX {
        return Err(TOO_LARGE.to_owned());
    }
    match name {
        [] => return Err(NO_NAME.to_owned()),
        [b'$', ..] => check_key("label", &String::from_utf8_lossy(name))?,
        _ if name.contains(&0) => return Err(NO_NAME.to_owned()),
        _ if name.contains(&b'.') => check_key("label", &String::from_utf8_lossy(name))?,
        _ => {}
    }
    out.push(TYPE_STRING);
    out.extend_from_slice(name);
    out.push(0);
    let length = u32::try_from(value.len() + 1).unwrap_or(u32::MAX);
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(value);
    out.push(0);
    Ok(())
}

const NO_NAME: &str = "a label has no name, or a zero byte in it";

fn element(out: &mut Vec<u8>, type_code: u8, name: &str) {
    out.push(type_code);
    out.extend_from_slice(name.as_bytes());
    out.push(0);
}

/// Writes the length of the document that begins at `start`.
fn set_length(out: &mut [u8], start: usize) {
    let length = u32::try_from(out.len() - start).unwrap_or(u32::MAX);
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

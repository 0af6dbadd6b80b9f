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

use std::collections::HashMap;
use std::sync::Arc;

use crate::line_protocol::{
    Batch, Batches, FieldType, LineError, Schema, TAGS_MAX, TEXT_BYTES_MAX, TIME_MS_MAX, check_key,
    check_measurement, is_full,
};

/// The label of the metric's name.
const NAME: &str = "__name__";

/// The field of samples.
const VALUE: &str = "value";

const TYPE_DOUBLE: u8 = 0x01;
const TYPE_STRING: u8 = 0x02;
const TYPE_DOCUMENT: u8 = 0x03;
const TYPE_DATE: u8 = 0x09;

/// A field of a message: its number and its value.
enum WireValue<'a> {
    Varint(u64),
    Fixed64(u64),
    Fixed32,
    Bytes(&'a [u8]),
}

/// A message that is read field by field.
struct Message<'a>(&'a [u8]);

impl<'a> Message<'a> {
    fn varint(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            let bits = u64::from(byte & 0x7F);
            if shift == 63 && bits > 1 {
                return None;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    /// Reads a field. `None` at the end, an error if the bytes are no field.
    fn next(&mut self) -> Option<Result<(u64, WireValue<'a>), &'static str>> {
        if self.0.is_empty() {
            return None;
        }
        let mut read = || {
            let key = self.varint()?;
            let value = match key & 7 {
                0 => WireValue::Varint(self.varint()?),
                1 => WireValue::Fixed64(u64::from_le_bytes(self.take(8)?.try_into().ok()?)),
                2 => {
                    let length = usize::try_from(self.varint()?).ok()?;
                    WireValue::Bytes(self.take(length)?)
                }
                5 => {
                    self.take(4)?;
                    WireValue::Fixed32
                }
                _ => return None,
            };
            Some((key >> 3, value))
        };
        Some(read().ok_or("the body is no WriteRequest of protocol buffers"))
    }
}

/// The labels and samples of a series.
#[derive(Default)]
struct SeriesMessage<'a> {
    labels: Vec<(&'a [u8], &'a [u8])>,
    /// Time in ms, and value.
    samples: Vec<(i64, f64)>,
    has_histograms: bool,
}

impl<'a> SeriesMessage<'a> {
    fn read(&mut self, bytes: &'a [u8]) -> Result<(), &'static str> {
        self.labels.clear();
        self.samples.clear();
        self.has_histograms = false;
        let mut message = Message(bytes);
        while let Some(field) = message.next() {
            match field? {
                (1, WireValue::Bytes(label)) => self.labels.push(read_label(label)?),
                (2, WireValue::Bytes(sample)) => self.samples.push(read_sample(sample)?),
                (4, _) => self.has_histograms = true,
                _ => {}
            }
        }
        Ok(())
    }
}

fn read_label(bytes: &[u8]) -> Result<(&[u8], &[u8]), &'static str> {
    let (mut name, mut value): (&[u8], &[u8]) = (&[], &[]);
    let mut message = Message(bytes);
    while let Some(field) = message.next() {
        match field? {
            (1, WireValue::Bytes(bytes)) => name = bytes,
            (2, WireValue::Bytes(bytes)) => value = bytes,
            _ => {}
        }
    }
    Ok((name, value))
}

fn read_sample(bytes: &[u8]) -> Result<(i64, f64), &'static str> {
    let (mut value, mut time) = (0.0, 0_u64);
    let mut message = Message(bytes);
    while let Some(field) = message.next() {
        match field? {
            (1, WireValue::Fixed64(bits)) => value = f64::from_bits(bits),
            (2, WireValue::Varint(bits)) => time = bits,
            _ => {}
        }
    }
    Ok((time.cast_signed(), value))
}

/// A metric of the body.
struct Metric {
    batch: Batch,
    schema: Arc<Schema>,
    is_new: bool,
}

/// Reads a body. `schema` returns what is known of a measurement, or why nothing can be written to it. Lines of batches and
/// rejections are numbers of series, from 1.
pub fn read(
    body: &[u8],
    schema: &mut dyn FnMut(&str) -> Result<Arc<Schema>, String>,
) -> Result<Batches, String> {
    let mut out = Batches::default();
    let mut metrics: HashMap<String, Metric> = HashMap::new();
    let mut series = SeriesMessage::default();
    let (mut message, mut number) = (Message(body), 0);
    while let Some(field) = message.next() {
        let (1, WireValue::Bytes(bytes)) = field? else {
            continue;
        };
        number += 1;
        series.read(bytes)?;
        if let Err(text) = add(&series, number, &mut metrics, &mut out.batches, schema) {
            out.rejections.push(LineError {
                line: number,
                column: 1,
                message: text,
            });
        }
    }
    for (name, metric) in metrics {
        if metric.is_new {
            out.new_fields
                .push((name, VALUE.to_owned(), FieldType::Float));
        }
        if !metric.batch.lines.is_empty() {
            out.batches.push(metric.batch);
        }
    }
    Ok(out)
}

/// Adds the samples of a series to the batch of its metric.
fn add(
    series: &SeriesMessage<'_>,
    number: usize,
    metrics: &mut HashMap<String, Metric>,
    finished: &mut Vec<Batch>,
    schema: &mut dyn FnMut(&str) -> Result<Arc<Schema>, String>,
) -> Result<(), String> {
    if series.has_histograms {
        return Err("native histograms are not supported".to_owned());
    }
    let text = |bytes| std::str::from_utf8(bytes).map_err(|_| "a label is not UTF-8".to_owned());
    let name = series
        .labels
        .iter()
        .find(|(name, _)| *name == NAME.as_bytes());
    let name = name.map_or(Err("a series has no __name__".to_owned()), |(_, name)| {
        text(name)
    })?;
    if !metrics.contains_key(name) {
        check_measurement(name)?;
        let schema = schema(name)?;
        let is_new = match schema.types.get(VALUE) {
            None => true,
            Some(FieldType::Float) => false,
            Some(other) => {
                return Err(format!(
                    "field type conflict: input field \"{VALUE}\" on measurement \"{name}\" is type float, already exists as type {}",
                    other.name()
                ));
            }
        };
        let metric = Metric {
            batch: Batch::of(name),
            schema,
            is_new,
        };
        metrics.insert(name.to_owned(), metric);
    }
    let Some(metric) = metrics.get_mut(name) else {
        return Err("the metric is gone".to_owned());
    };
    let names = &metric.schema.names;
    let tags = tags(series, names.tags.as_deref())?;
    let in_range = |(time, _): &&(i64, f64)| (-TIME_MS_MAX - 1..=TIME_MS_MAX).contains(time);
    if let Some((time, _)) = series.samples.iter().find(|sample| !in_range(sample)) {
        return Err(format!("the time {time} is out of range"));
    }
    for (time, value) in &series.samples {
        let out = &mut metric.batch.documents;
        let start = out.len();
        out.extend_from_slice(&[0; 4]);
        element(out, TYPE_DATE, &names.time);
        out.extend_from_slice(&time.to_le_bytes());
        out.extend_from_slice(&tags);
        element(out, TYPE_DOUBLE, VALUE);
        out.extend_from_slice(&value.to_le_bytes());
        out.push(0);
        set_length(out, start);
        metric.batch.lines.push(number);
        if is_full(&metric.batch) {
            let next = Batch::of(name);
            finished.push(std::mem::replace(&mut metric.batch, next));
        }
    }
    Ok(())
}

/// Returns the element of the tags; empty if there are none.
fn tags(series: &SeriesMessage<'_>, field: Option<&str>) -> Result<Vec<u8>, String> {
    let mut out = Vec::new();
    let labels = series.labels.iter().filter(|(name, value)| {
        // A label without a value is one that is not there.
        *name != NAME.as_bytes() && !value.is_empty()
    });
    let mut labels: Vec<_> = labels.collect();
    labels.sort();
    if labels.is_empty() {
        return Ok(out);
    }
    let field = field.ok_or("the collection has no metaField for labels")?;
    if labels.len() > TAGS_MAX
        || labels
            .iter()
            .any(|(name, value)| name.len().max(value.len()) > TEXT_BYTES_MAX)
    {
        return Err("a series has too many labels, or one that is too long".to_owned());
    }
    if labels.windows(2).any(|pair| pair[0].0 == pair[1].0) {
        return Err("a label occurs twice".to_owned());
    }
    element(&mut out, TYPE_DOCUMENT, field);
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    for (name, value) in labels {
        let (Ok(name), Ok(value)) = (std::str::from_utf8(name), std::str::from_utf8(value)) else {
            return Err("a label is not UTF-8".to_owned());
        };
        if name.is_empty() || name.contains('\0') {
            return Err("a label has no name, or a zero byte in it".to_owned());
        }
        check_key("label", name)?;
        element(&mut out, TYPE_STRING, name);
        let length = u32::try_from(value.len() + 1).unwrap_or(u32::MAX);
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(value.as_bytes());
        out.push(0);
    }
    out.push(0);
    set_length(&mut out, start);
    Ok(out)
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use nilometer_bson::extjson::to_relaxed;
    use nilometer_bson::validate::{Limits, validate_prefix};
    use nilometer_bson::{DocRef, fuzz::Numbers};

    fn bytes(number: u8, inside: &[u8]) -> Vec<u8> {
        let mut out = vec![number << 3 | 2, u8::try_from(inside.len()).unwrap()];
        out.extend_from_slice(inside);
        out
    }

    fn series(labels: &[(&str, &str)], samples: &[(i64, f64)]) -> Vec<u8> {
        let mut out = Vec::new();
        for (name, value) in labels {
            let label = [bytes(1, name.as_bytes()), bytes(2, value.as_bytes())].concat();
            out.extend(bytes(1, &label));
        }
        for (time, value) in samples {
            let mut sample = vec![1 << 3 | 1];
            sample.extend_from_slice(&value.to_le_bytes());
            sample.push(2 << 3);
            let mut rest = time.cast_unsigned();
            while rest >= 0x80 {
                sample.push(rest as u8 & 0x7F | 0x80);
                rest >>= 7;
            }
            sample.push(rest as u8);
            out.extend(bytes(2, &sample));
        }
        bytes(1, &out)
    }

    fn documents(batch: &Batch) -> Vec<String> {
        let mut rest = batch.documents.as_slice();
        let mut out = Vec::new();
        for _ in &batch.lines {
            let length = validate_prefix(rest, &Limits::default()).expect("a document");
            out.push(to_relaxed(
                DocRef::new(&rest[..length]).expect("a document"),
            ));
            rest = &rest[length..];
        }
        assert!(rest.is_empty());
        out
    }

    #[test]
    fn samples_become_documents_and_bad_series_are_rejected() {
        let body = [
            series(
                &[
                    ("__name__", "up"),
                    ("job", "a"),
                    ("instance", "b:1"),
                    ("empty", ""),
                ],
                &[(1, 1.0), (-2, 0.5)],
            ),
            bytes(3, b"metadata"),
            series(&[("job", "a")], &[(1, 1.0)]),
            series(&[("__name__", "up"), ("a.b", "x")], &[(1, 1.0)]),
            series(
                &[("__name__", "up"), ("job", "x"), ("job", "y")],
                &[(1, 1.0)],
            ),
            series(&[("__name__", "known")], &[(1, 1.0)]),
            series(&[("__name__", "up")], &[(i64::MAX, 1.0)]),
            series(&[("__name__", "up")], &[(3, f64::NAN)]),
        ]
        .concat();
        let read = read(&body, &mut |name| {
            let mut schema = Schema::default();
            if name == "known" {
                schema.types.insert("value".to_owned(), FieldType::Integer);
            }
            Ok(Arc::new(schema))
        })
        .unwrap();
        let rejected: Vec<usize> = read.rejections.iter().map(|one| one.line).collect();
        assert_eq!(rejected, [2, 3, 4, 5, 6], "{:?}", read.rejections);
        assert_eq!(read.batches.len(), 1);
        assert_eq!(
            documents(&read.batches[0]),
            [
                r#"{"time":{"$date":"1970-01-01T00:00:00.001Z"},"tags":{"instance":"b:1","job":"a"},"value":1.0}"#,
                r#"{"time":{"$date":{"$numberLong":"-2"}},"tags":{"instance":"b:1","job":"a"},"value":0.5}"#,
                r#"{"time":{"$date":"1970-01-01T00:00:00.003Z"},"value":{"$numberDouble":"NaN"}}"#,
            ]
        );
        assert_eq!(read.batches[0].lines, [1, 1, 7]);
    }

    #[test]
    fn fuzz_remote_write() {
        let body = [
            series(&[("__name__", "up"), ("job", "a")], &[(1, 1.0), (2, 2.0)]),
            series(&[("__name__", "down"), ("job", "b")], &[(3, 1.0)]),
        ]
        .concat();
        let setting = |name: &str, default: u64| {
            std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
        };
        let first = setting("NILOMETER_FUZZ_SEED", 0);
        for seed in first..first + setting("NILOMETER_FUZZ_RUNS", 200) {
            let mut numbers = Numbers::new(seed);
            let mut bytes = body.clone();
            for _ in 0..1 + numbers.below(6) {
                let at = numbers.below(bytes.len() as u64) as usize;
                match numbers.below(3) {
                    0 => bytes[at] = numbers.next_u64() as u8,
                    1 => bytes.truncate(at.max(1)),
                    _ => bytes.insert(at, numbers.next_u64() as u8),
                }
            }
            if let Ok(read) = read(&bytes, &mut |_| Ok(Arc::default())) {
                read.batches.iter().for_each(|batch| drop(documents(batch)));
            }
        }
    }
}

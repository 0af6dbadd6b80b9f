//! Stages the measurements of one series, column by column, until they become a tail entry.
//!
//! A [`Stage`] collects the rows that go into one bucket. When the bucket is full, or the rows of the series are at an end, it
//! becomes one tail entry. Rows are sorted by time within an entry, so that a batch that arrives in disorder does not make its
//! bucket unsorted.

use std::collections::HashSet;

use nilometer_bson::{DocRef, Value, ValueRef, type_code};

use super::bucket::{Field, LoggedHeader, Measurement, MemoryUse, OpenBucket};
use super::field_layout::{FieldLayout, LayoutField};
use crate::catalog::TimeseriesOptions;
use crate::error::Result;
use crate::timeseries::format::series_key::SeriesMeta;
use crate::timeseries::format::tail;
use crate::timeseries::format::tail::{ColumnChunk, Header};

/// A staged entry, as the catalog remembers it until the commit.
#[derive(Debug)]
pub(crate) struct StagedEntry {
    pub(crate) bucket: [u8; 12],
    pub(crate) rows: usize,
    /// Columns whose names the entry holds.
    pub(crate) named: Vec<usize>,
    pub(crate) with_header: bool,
    /// True if the bucket had no measurement before.
    pub(crate) opens_bucket: bool,
    /// True if the entry makes the bucket unsorted.
    pub(crate) unsorts: bool,
    /// The header that the change log gets with the entry.
    pub(crate) logged: Option<LoggedHeader>,
}

/// The rows staged for one bucket. It is reused for the next bucket, with its allocated columns.
#[derive(Debug)]
pub(crate) struct Stage<'a> {
    times: Vec<i64>,
    /// Columns beyond those of the current bucket are empty.
    columns: Vec<Vec<ValueRef<'a>>>,
    /// The fields of all measurements of the command, and the names of columns.
    pub(super) layout: FieldLayout,
    /// By name id, the last text: most texts repeat, and need not be validated again.
    latest_texts: Vec<ValueRef<'a>>,
    /// By text number, the text; missing if it has not come yet.
    texts_by_number: Vec<ValueRef<'a>>,
    /// Buffer for measurements off the fast path.
    found: MatchedFields<'a>,
}

/// Bytes of an object id.
const ID_BYTES: usize = 12;

/// Fields of a measurement with their columns, and which columns have a value.
#[derive(Debug, Default)]
pub(super) struct MatchedFields<'a> {
    fields: Vec<(Option<usize>, Field<'a>)>,
    met: Vec<bool>,
}

/// Finds the columns of a measurement's fields; false if one of them does not accept its value. Of a field that occurs
/// twice only the first counts.
pub(super) fn match_fields<'a>(
    bucket: &OpenBucket,
    options: &TimeseriesOptions,
    measurement: &Measurement<'a>,
    found: &mut MatchedFields<'a>,
) -> bool {
    let MatchedFields { fields, met } = found;
    fields.clear();
    met.clear();
    met.resize(bucket.columns.len(), false);
    let mut new = HashSet::new();
    let mut hint = 0;
    for field in measurement.fields(options.meta_field.as_deref()) {
        let column = bucket.find_column(field.name, hint);
        let repeated = match column {
            Some(at) => std::mem::replace(&mut met[at], true),
            None => !new.insert(field.name),
        };
        if repeated {
            continue;
        }
        if let Some(at) = column {
            hint = at + 1;
            if !bucket.accepts(at, &field) {
                return false;
            }
        }
        fields.push((column, field));
    }
    true
}

#[inline]
fn put_value<'a>(
    columns: &mut Vec<Vec<ValueRef<'a>>>,
    column: usize,
    row: usize,
    value: ValueRef<'a>,
) {
    if columns.len() <= column {
        columns.resize_with(column + 1, Vec::new);
    }
    let values = &mut columns[column];
    // Of a field that occurs twice the first counts.
    if values.len() == row {
        values.push(value);
    } else if values.len() < row {
        values.resize(row, ValueRef::Missing);
        values.push(value);
    }
}

/// Returns the text of a field. A text with a number is not read from the document.
#[inline]
fn field_text<'a>(
    latest_texts: &mut Vec<ValueRef<'a>>,
    texts_by_number: &mut Vec<ValueRef<'a>>,
    field: &LayoutField,
    document: DocRef<'a>,
) -> ValueRef<'a> {
    let number = usize::from(field.text);
    if number == 0 {
        return unnumbered_text(latest_texts, field, document);
    }
    if let Some(known) = texts_by_number
        .get(number)
        .filter(|known| !known.is_missing())
    {
        return *known;
    }
    store_text(texts_by_number, number, field.value(document))
}

/// Stores a text at an index.
fn store_text<'a>(
    latest_texts: &mut Vec<ValueRef<'a>>,
    at: usize,
    value: ValueRef<'a>,
) -> ValueRef<'a> {
    if latest_texts.len() <= at {
        latest_texts.resize(at + 1, ValueRef::Missing);
    }
    latest_texts[at] = value;
    value
}

/// Returns the text of a field, after comparing it with the last one.
fn unnumbered_text<'a>(
    latest_texts: &mut Vec<ValueRef<'a>>,
    field: &LayoutField,
    document: DocRef<'a>,
) -> ValueRef<'a> {
    let at = usize::from(field.name_id);
    if let Some(&known) = latest_texts.get(at)
        && let ValueRef::String(text) = known
        && field.is_text(document, text)
    {
        return known;
    }
    store_text(latest_texts, at, field.value(document))
}

impl<'a> Stage<'a> {
    /// An empty stage for measurements of this layout.
    pub(super) fn new(layout: FieldLayout) -> Self {
        Self {
            times: Vec::new(),
            columns: Vec::new(),
            layout,
            latest_texts: Vec::new(),
            texts_by_number: Vec::new(),
            found: MatchedFields::default(),
        }
    }

    /// Number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.times.len()
    }

    /// Adds a measurement to a bucket with space. Returns false, and changes nothing, if a column does not accept its
    /// value.
    pub(crate) fn push(
        &mut self,
        bucket: &mut OpenBucket,
        options: &TimeseriesOptions,
        measurement: &Measurement<'a>,
    ) -> bool {
        if self.push_known(bucket, measurement) {
            return true;
        }
        let mut found = std::mem::take(&mut self.found);
        let accepted = match_fields(bucket, options, measurement, &mut found);
        if accepted {
            let row = self.times.len();
            self.times.push(measurement.time_ms);
            for (column, field) in &found.fields {
                let at = bucket.learn(*column, field, &mut self.layout.names);
                put_value(&mut self.columns, at, row, field.value());
            }
            bucket.count += 1;
        }
        self.found = found;
        accepted
    }

    /// The fast path: the bucket has all the fields, and their values are scalars of its types.
    fn push_known(&mut self, bucket: &mut OpenBucket, measurement: &Measurement<'a>) -> bool {
        let Some(walked) = measurement.layout_range else {
            return false;
        };
        let row = self.times.len();
        let (mut bytes, mut fits) = (walked.bytes as usize, true);
        let layout = &self.layout;
        if let Some(id) = measurement.generated_id {
            match bucket.find_scalar(&layout.id_name, layout.id_name_id, type_code::OBJECT_ID) {
                Some(at) => {
                    put_value(&mut self.columns, at, row, ValueRef::ObjectId(id));
                    bytes += ID_BYTES;
                }
                None => fits = false,
            }
        }
        fits = fits
            && layout.fields(walked).iter().all(|field| {
                let name = layout.names.name(field.name_id);
                let at = bucket.find_scalar(name, field.name_id, field.type_code);
                if let Some(at) = at {
                    let value = match field.type_code {
                        type_code::STRING => {
                            let (latest_texts, texts_by_number) =
                                (&mut self.latest_texts, &mut self.texts_by_number);
                            field_text(latest_texts, texts_by_number, field, measurement.document)
                        }
                        _ => field.value(measurement.document),
                    };
                    put_value(&mut self.columns, at, row, value);
                }
                at.is_some()
            });
        if !fits {
            for values in &mut self.columns {
                values.truncate(row);
            }
            return false;
        }
        self.times.push(measurement.time_ms);
        bucket.unmeasured_bytes += bytes;
        bucket.count += 1;
        true
    }

    /// Opens a bucket for a first measurement at `time_ms`.
    pub(super) fn open(
        &mut self,
        suffix: [u8; 8],
        options: &TimeseriesOptions,
        time_ms: i64,
        meta_bytes: usize,
        memory: MemoryUse,
    ) -> OpenBucket {
        let names = &mut self.layout.names;
        OpenBucket::new(suffix, options, time_ms, meta_bytes, memory, names)
    }

    /// Turns the rows into a tail entry: its key, its value, and its summary. Leaves the stage empty.
    pub(crate) fn take_entry(
        &mut self,
        bucket: &mut OpenBucket,
        meta: &SeriesMeta,
    ) -> Result<(Vec<u8>, Vec<u8>, StagedEntry)> {
        let rows = self.rows();
        self.columns
            .resize_with(self.columns.len().max(bucket.columns.len()), Vec::new);
        for values in &mut self.columns {
            values.resize(rows, ValueRef::Missing);
        }
        self.sort();
        let (first, last) = (self.times.first(), self.times.last());
        let span = (first.copied().unwrap_or(0), last.copied().unwrap_or(0));
        let opens_bucket = bucket.last_ms == i64::MIN;
        let unsorts = bucket.sorted && !opens_bucket && span.0 < bucket.last_ms;
        #[cfg(test)]
        if unsorts {
            cov_mark::hit!(bucket_becomes_unsorted);
        }
        bucket.sorted &= !unsorts;
        bucket.last_ms = bucket.last_ms.max(span.1);

        let with_header = !bucket.header_committed;
        let header = with_header.then(|| Header {
            start_ms: bucket.start_ms,
            meta: Value::from(meta.value()),
        });
        let mut named = Vec::new();
        let mut chunks = Vec::with_capacity(bucket.columns.len());
        for (id, (column, values)) in bucket.columns.iter().zip(&self.columns).enumerate() {
            let name = (!column.committed).then_some(&*column.name);
            if name.is_some() {
                named.push(id);
            }
            if name.is_some() || values.iter().any(|v| !v.is_missing()) {
                chunks.push(ColumnChunk { id, name, values });
            }
        }
        let value = tail::encode(rows, header.as_ref(), &chunks)?;
        self.clear();
        let key = tail::key(bucket.id, bucket.next_sequence);
        bucket.next_sequence += 1;
        bucket.in_flight += 1;
        let entry = StagedEntry {
            bucket: bucket.id,
            rows,
            named,
            with_header,
            opens_bucket,
            unsorts,
            logged: None,
        };
        Ok((key, value, entry))
    }

    /// Removes all rows.
    pub(super) fn clear(&mut self) {
        self.times.clear();
        self.columns.iter_mut().for_each(Vec::clear);
    }

    /// Sorts the rows by time; equal times keep their order.
    fn sort(&mut self) {
        if self.times.is_sorted() {
            return;
        }
        let mut order: Vec<usize> = (0..self.times.len()).collect();
        order.sort_by_key(|&row| self.times[row]);
        for values in &mut self.columns {
            *values = order.iter().map(|row| values[*row]).collect();
        }
        self.times.sort_unstable();
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::tests::Draw;
    use super::*;
    use crate::timeseries::bucket_catalog::field_layout::TextNumbers;
    use nilometer_bson::{Document, doc};

    #[test]
    fn texts_are_those_of_their_documents_whatever_came_before() {
        let mut draw = Draw::new(5);
        let long = "x".repeat(70);
        let known = [
            "", "a", "ab", "abc", "abd", "abcd", "abcdefgh", "abcdefgi", "\u{e4}", &long,
        ];
        let documents: Vec<Document> = (0..3000)
            .map(|at| {
                // Few texts at first, then more than have numbers.
                let text = match draw.below(3000) < at {
                    true => format!("text {}", draw.below(400)),
                    false => known[draw.below(10) as usize].into(),
                };
                doc! { "s": text, "behind": "abcdefgh" }
            })
            .collect();
        let mut numbers = TextNumbers::default();
        let mut fields: Vec<(LayoutField, DocRef<'_>)> = Vec::new();
        for document in &documents {
            let document = document.as_ref();
            let field = document.iter().next().unwrap();
            let at = 4 + 1 + "s".len() + 1;
            let name_id = draw.below(2) as u16;
            let planned = LayoutField::new(name_id, &field, at, &mut numbers);
            fields.push((planned, document));
        }
        let texts_by_number = fields.iter().filter(|(field, _)| field.text > 0).count();
        assert!((500..2900).contains(&texts_by_number), "{texts_by_number}");
        // They come in another order than they were numbered.
        fields.sort_by_key(|(field, document)| (field.name_id, document.as_bytes().len() % 7));
        let (mut latest_texts, mut met) = (Vec::new(), Vec::new());
        for (field, document) in fields {
            let found = field_text(&mut latest_texts, &mut met, &field, document);
            assert_eq!(found.as_str(), document.get("s").as_str());
        }
    }
}

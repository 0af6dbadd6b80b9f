//! Summaries of sealed buckets: what queries read of a bucket before its columns, many buckets in a block.
//!
//! ```text
//! keyspace  01                                     present once every sealed bucket has a summary or a mark
//!           02 | first bucket id ─► last bucket id | block number      the blocks; their ranges of ids are disjoint
//!           03 | block number    ─► block                              a number is never used again
//!           04 | bucket id       ─► nothing                            a mark: the summary is out of date
//!
//! block     form 02 | sum | varint rows | row … | metas | varint layouts | layout …
//! sum       xxh3-64 of what follows, little-endian
//! row       bucket id | flags | varint layout | varint count           ids ascend
//! flags     bit 0: times ascend (version 2) | bit 1: closed | bit 2: the bucket itself must be read
//! metas     varint length | varint length, zstd of: document … of each row, {"": metadata}
//! layout    varint columns | (varint length, name | varint length, section) … | varint length, sizes      in the order of `data`
//! sizes     varint …               for the rows of the layout, each column: 0, or 1 + the stored bytes * 2 + 1 if they are packed
//! section   bounds | total …                       for the rows of the layout, in their order
//! bounds    type: int32, int64, date | (varint zigzag min, varint max - min) …
//!           type: double | (min, max: 8 bytes each) …
//!           00 | (varint length, document {"min", "max"}) …            any other values
//! total     0 none | 1 ints, 2 longs: varint zigzag sum | 3 doubles: varint zigzag sum, which is whole |
//!           4 doubles: sum, rest: 8 bytes each; plus 8 if all measurements have the same value
//! ```
//!
//! Sizes lead to a column in its stored bucket without the bucket's skeleton. The value of the first key is the form: blocks of another form
//! are removed and made again. Summaries are derived from buckets: they may be removed at any time together with the first key. A
//! writer that changes a sealed bucket puts a mark in the same batch, so no summary is used that is out of date.

pub(crate) mod keys;
mod totals;

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use nilometer_bson::{Document, DocumentBuilder, Value, ValueRef, type_code, varint};
use nilometer_storage::Bytes;

use self::totals::{StoredTotals, f64_of, put_total};
use super::sealed::{StoredColumn, dictionary};
use super::tail::{ByteReader, unzigzag, zigzag};
use crate::error::{Error, ErrorCode, Result};
use crate::eval::accumulator::ColumnTotal;

/// The form of the blocks that are written, and read.
pub(crate) const FORM: u8 = 2;

/// Length of form and checksum.
const HEAD_BYTES: usize = 9;

/// Buckets of the largest block that is written. Small in tests, so that they meet the ends of blocks.
pub(crate) const ROWS_MAX: usize = if cfg!(test) { 8 } else { 256 };

/// Buckets that a stored block may have; more is damage.
const STORED_ROWS_MAX: u64 = 1 << 16;

/// The largest metadata of a block, in bytes: larger metadata is left to its bucket.
pub(crate) const META_BYTES_MAX: usize = 16 << 10;

const ZSTD_LEVEL: i32 = 1;

const IS_SORTED: u8 = 1;
const IS_CLOSED: u8 = 2;
const IS_OPAQUE: u8 = 4;

fn damage(what: &str) -> Error {
    Error::new(
        ErrorCode::DataCorruptionDetected,
        format!("summaries of buckets cannot be read: {what}"),
    )
}

/// The summary of a bucket, to be written.
#[derive(Clone, Debug)]
pub(crate) struct BucketSummary {
    /// The bucket.
    pub(crate) id: [u8; 12],
    /// `None` if the bucket itself must be read.
    pub(crate) header: Option<SummaryHeader>,
}

/// The header of a summarized bucket.
#[derive(Clone, Debug)]
pub(crate) struct SummaryHeader {
    /// Version 2; otherwise 3.
    pub(crate) is_sorted: bool,
    /// It takes no more measurements.
    pub(crate) is_closed: bool,
    /// Number of measurements.
    pub(crate) count: u32,
    /// The metadata, missing if there is none.
    pub(crate) meta: Value,
    /// In the order of `data`.
    pub(crate) columns: Vec<ColumnSummary>,
}

/// The summary of a column.
#[derive(Clone, Debug)]
pub(crate) struct ColumnSummary {
    /// The field.
    pub(crate) name: Arc<str>,
    /// `control.min`.
    pub(crate) min: Value,
    /// `control.max`.
    pub(crate) max: Value,
    /// The total, if the column has one.
    pub(crate) total: Option<ColumnTotal>,
    /// All measurements have the same value.
    pub(crate) is_constant: bool,
    /// Its size in the stored bucket, if it is stored by itself.
    pub(crate) stored: Option<StoredColumn>,
}

/// Returns the block of these summaries, whose ids ascend.
pub(crate) fn encode(summaries: &[BucketSummary]) -> Result<Vec<u8>> {
    let mut layouts: Vec<Vec<&SummaryHeader>> = Vec::new();
    let mut out = vec![0; HEAD_BYTES];
    varint::put(&mut out, summaries.len() as u64);
    let mut metas = Vec::new();
    for summary in summaries {
        out.extend_from_slice(&summary.id);
        let mut meta = DocumentBuilder::new();
        if let Some(header) = &summary.header {
            let same = |of: &Vec<&SummaryHeader>| {
                let names = |h: &SummaryHeader| h.columns.iter().map(|c| c.name.clone()).collect();
                let known: Option<Vec<_>> = of.first().map(|first| names(first));
                known.is_some_and(|known| known == names(header))
            };
            let layout = layouts.iter().position(same).unwrap_or_else(|| {
                layouts.push(Vec::new());
                layouts.len() - 1
            });
            layouts[layout].push(header);
            let flags =
                u8::from(header.is_sorted) * IS_SORTED + u8::from(header.is_closed) * IS_CLOSED;
            out.push(flags);
            varint::put(&mut out, layout as u64);
            varint::put(&mut out, u64::from(header.count));
            meta.append_ref("", header.meta.as_ref());
        } else {
            out.push(IS_OPAQUE);
            varint::put(&mut out, 0);
            varint::put(&mut out, 0);
        }
        metas.extend_from_slice(meta.finish().as_bytes());
    }
    let packed = zstd::bulk::compress(&metas, ZSTD_LEVEL);
    let packed = packed.map_err(|e| Error::new(ErrorCode::InternalError, e.to_string()))?;
    varint::put(&mut out, metas.len() as u64);
    put_counted(&mut out, &packed);
    varint::put(&mut out, layouts.len() as u64);
    for headers in &layouts {
        let columns = headers.first().map_or(0, |first| first.columns.len());
        varint::put(&mut out, columns as u64);
        for at in 0..columns {
            let of: Vec<&ColumnSummary> =
                headers.iter().map(|header| &header.columns[at]).collect();
            put_counted(&mut out, of[0].name.as_bytes());
            put_counted(&mut out, &section(&of));
        }
        let mut sizes = Vec::new();
        for column in headers.iter().flat_map(|header| &header.columns) {
            varint::put(&mut sizes, column.stored.map_or(0, size_code));
        }
        put_counted(&mut out, &sizes);
    }
    let sum = xxhash_rust::xxh3::xxh3_64(&out[HEAD_BYTES..]);
    out[0] = FORM;
    out[1..HEAD_BYTES].copy_from_slice(&sum.to_le_bytes());
    Ok(out)
}

fn size_code(column: StoredColumn) -> u64 {
    1 + u64::from(column.bytes) * 2 + u64::from(column.is_packed)
}

fn size_of_code(code: u64) -> Option<Option<StoredColumn>> {
    let Some(code) = code.checked_sub(1) else {
        return Some(None);
    };
    Some(Some(StoredColumn {
        bytes: u32::try_from(code / 2).ok()?,
        is_packed: code % 2 == 1,
    }))
}

fn put_counted(out: &mut Vec<u8>, bytes: &[u8]) {
    varint::put(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Returns an int, a long or a date as a number.
fn whole(value: &Value) -> Option<(u8, i64)> {
    match value {
        Value::Int32(v) => Some((type_code::INT32, i64::from(*v))),
        Value::Int64(v) => Some((type_code::INT64, *v)),
        Value::DateTime(v) => Some((type_code::DATE_TIME, *v)),
        _ => None,
    }
}

/// The type that all bounds of a column have, if numbers of that type are stored as such.
fn common_type(columns: &[&ColumnSummary]) -> Option<u8> {
    let bounds = || columns.iter().flat_map(|column| [&column.min, &column.max]);
    let (of_first, _) = bounds().next().and_then(whole).or_else(|| {
        let all = bounds().all(|bound| matches!(bound, Value::Double(_)));
        all.then_some((type_code::DOUBLE, 0))
    })?;
    let is_same = |bound| {
        of_first == type_code::DOUBLE || whole(bound).is_some_and(|(code, _)| code == of_first)
    };
    bounds().all(is_same).then_some(of_first)
}

fn section(columns: &[&ColumnSummary]) -> Vec<u8> {
    let mut out = Vec::new();
    let common = common_type(columns);
    out.push(common.unwrap_or(0));
    for ColumnSummary { min, max, .. } in columns {
        match (common, min, max) {
            (Some(type_code::DOUBLE), Value::Double(min), Value::Double(max)) => {
                out.extend_from_slice(&min.to_le_bytes());
                out.extend_from_slice(&max.to_le_bytes());
            }
            (Some(_), min, max) => {
                let number = |bound| whole(bound).map_or(0, |(_, number)| number);
                let (min, max) = (number(min), number(max));
                varint::put(&mut out, zigzag(min));
                varint::put(&mut out, max.wrapping_sub(min).cast_unsigned());
            }
            (None, min, max) => {
                let mut both = DocumentBuilder::new();
                both.append_ref("min", min.as_ref());
                both.append_ref("max", max.as_ref());
                put_counted(&mut out, both.finish().as_bytes());
            }
        }
    }
    for column in columns {
        put_total(&mut out, column);
    }
    out
}

/// A bucket in a decoded block.
#[derive(Clone, Debug)]
pub(crate) struct SummaryRow {
    /// The bucket.
    pub(crate) id: [u8; 12],
    flags: u8,
    /// Its layout.
    pub(crate) layout: u32,
    /// Its place among the rows of the layout.
    pub(crate) place: u32,
    /// Number of measurements.
    pub(crate) count: u32,
    meta: Range<u32>,
}

impl SummaryRow {
    /// True if the bucket itself must be read.
    pub(crate) fn is_opaque(&self) -> bool {
        self.flags & IS_OPAQUE != 0
    }

    /// True for version 2.
    pub(crate) fn is_sorted(&self) -> bool {
        self.flags & IS_SORTED != 0
    }

    /// True if the bucket takes no more measurements.
    pub(crate) fn is_closed(&self) -> bool {
        self.flags & IS_CLOSED != 0
    }
}

/// The columns that some buckets of a block have.
#[derive(Debug)]
pub(crate) struct SummaryLayout {
    /// In the order of `data`.
    pub(crate) names: Vec<Arc<str>>,
    /// The sections of the columns.
    sections: Vec<Range<usize>>,
    decoded: Vec<OnceLock<SummaryColumn>>,
    /// The sizes of the stored columns.
    sizes: Range<usize>,
    /// The same for each row and column; `None` if they do not parse.
    decoded_sizes: OnceLock<Option<Box<[Option<StoredColumn>]>>>,
    rows: usize,
}

/// A decoded block. Columns are decoded on request.
#[derive(Debug)]
pub(crate) struct SummaryBlock {
    bytes: Bytes,
    metas: Vec<u8>,
    /// The buckets, ids ascending.
    pub(crate) rows: Vec<SummaryRow>,
    /// The layouts.
    pub(crate) layouts: Vec<SummaryLayout>,
}

#[derive(Debug)]
enum SummaryBounds {
    Whole(u8, Vec<[i64; 2]>),
    Doubles(Vec<[f64; 2]>),
    Values(Vec<Document>),
}

/// The decoded summaries of a column.
#[derive(Debug)]
pub(crate) struct SummaryColumn {
    bounds: SummaryBounds,
    totals: StoredTotals,
}

impl SummaryColumn {
    /// Returns the bounds of a row.
    pub(crate) fn bounds(&self, place: usize) -> (ValueRef<'_>, ValueRef<'_>) {
        match &self.bounds {
            SummaryBounds::Whole(type_code, all) => all.get(place).map_or(MISSING, |[min, max]| {
                (number(*type_code, *min), number(*type_code, *max))
            }),
            SummaryBounds::Doubles(all) => all.get(place).map_or(MISSING, |[min, max]| {
                (ValueRef::Double(*min), ValueRef::Double(*max))
            }),
            SummaryBounds::Values(all) => all
                .get(place)
                .map_or(MISSING, |both| (both.get("min"), both.get("max"))),
        }
    }

    /// Returns the bounds of all rows in milliseconds, if they are dates.
    pub(crate) fn dates(&self) -> Option<&[[i64; 2]]> {
        match &self.bounds {
            SummaryBounds::Whole(type_code::DATE_TIME, all) => Some(all),
            _ => None,
        }
    }

    /// Returns the total of a row with `count` measurements.
    pub(crate) fn total(&self, place: usize, count: u32) -> Option<ColumnTotal> {
        self.totals.total(place, count)
    }

    /// True if all measurements of a row have the same value.
    pub(crate) fn is_constant(&self, place: usize) -> bool {
        self.totals.is_constant(place)
    }
}

const MISSING: (ValueRef<'static>, ValueRef<'static>) = (ValueRef::Missing, ValueRef::Missing);

fn number(type_code: u8, number: i64) -> ValueRef<'static> {
    match type_code {
        type_code::INT32 => ValueRef::Int32(i32::try_from(number).unwrap_or(0)),
        type_code::INT64 => ValueRef::Int64(number),
        _ => ValueRef::DateTime(number),
    }
}

impl SummaryBlock {
    /// Decodes a block, except for its columns.
    pub(crate) fn decode(bytes: Bytes) -> Result<Self> {
        let (head, rest) = bytes
            .split_first_chunk::<HEAD_BYTES>()
            .ok_or_else(|| damage("a block is too short"))?;
        let sum = xxhash_rust::xxh3::xxh3_64(rest).to_le_bytes();
        if head[0] != FORM || head[1..] != sum {
            return Err(damage("the checksum of a block does not fit"));
        }
        let parts = decode_parts(bytes.len(), rest);
        let (metas, rows, layouts) = parts.ok_or_else(|| damage("a block does not parse"))?;
        Ok(Self {
            bytes,
            metas,
            rows,
            layouts,
        })
    }

    /// Returns the metadata of a row, missing if there is none.
    pub(crate) fn meta(&self, row: &SummaryRow) -> ValueRef<'_> {
        let bytes = self
            .metas
            .get(row.meta.start as usize..row.meta.end as usize);
        let document = bytes.and_then(nilometer_bson::DocRef::new);
        let first = document.and_then(|document| document.iter().next());
        first.map_or(ValueRef::Missing, |element| element.value())
    }

    /// Returns the summaries of a column, given its place in the layout.
    pub(crate) fn column(&self, layout: u32, at: usize) -> Result<&SummaryColumn> {
        let parts = || {
            let layout = self.layouts.get(layout as usize)?;
            let section = self.bytes.get(layout.sections.get(at)?.clone())?;
            Some((layout.decoded.get(at)?, section, layout.rows))
        };
        let (decoded, section, rows) =
            parts().ok_or_else(|| damage("a block has no such column"))?;
        if let Some(known) = decoded.get() {
            return Ok(known);
        }
        let found =
            decode_section(section, rows).ok_or_else(|| damage("a column does not parse"))?;
        Ok(decoded.get_or_init(|| found))
    }

    /// Returns the sizes of the stored columns of a row, in the order of `data`. `None` if they do not parse.
    pub(crate) fn stored_columns(&self, row: &SummaryRow) -> Option<&[Option<StoredColumn>]> {
        let layout = self.layouts.get(row.layout as usize)?;
        let columns = layout.names.len();
        let decoded = layout.decoded_sizes.get_or_init(|| {
            let mut reader = ByteReader(self.bytes.get(layout.sizes.clone())?);
            let sizes = (0..layout.rows * columns).map(|_| size_of_code(reader.varint()?));
            let sizes = sizes.collect::<Option<Box<[_]>>>()?;
            reader.0.is_empty().then_some(sizes)
        });
        let start = row.place as usize * columns;
        decoded.as_ref()?.get(start..start + columns)
    }

    /// Returns the summaries that the block was made of.
    pub(crate) fn summaries(&self) -> Result<Vec<BucketSummary>> {
        let mut out = Vec::with_capacity(self.rows.len());
        for row in &self.rows {
            let header = match row.is_opaque() {
                true => None,
                false => Some(self.header(row)?),
            };
            out.push(BucketSummary { id: row.id, header });
        }
        Ok(out)
    }

    fn header(&self, row: &SummaryRow) -> Result<SummaryHeader> {
        let layout = self.layouts.get(row.layout as usize);
        let names = layout.map_or(&[][..], |layout| &layout.names);
        let place = row.place as usize;
        let stored = self.stored_columns(row);
        let stored = stored.ok_or_else(|| damage("the sizes of columns do not parse"))?;
        let mut columns = Vec::with_capacity(names.len());
        for ((at, name), stored) in names.iter().enumerate().zip(stored) {
            let column = self.column(row.layout, at)?;
            let (min, max) = column.bounds(place);
            columns.push(ColumnSummary {
                name: name.clone(),
                min: min.to_value(),
                max: max.to_value(),
                total: column.total(place, row.count),
                is_constant: column.is_constant(place),
                stored: *stored,
            });
        }
        Ok(SummaryHeader {
            is_sorted: row.is_sorted(),
            is_closed: row.is_closed(),
            count: row.count,
            meta: self.meta(row).to_value(),
            columns,
        })
    }

    /// Returns the memory of the block with all its columns, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let columns = self.layouts.iter().map(|layout| {
            let each = size_of::<OnceLock<SummaryColumn>>() + size_of::<Range<usize>>();
            // Bounds, kind and sum of a total, and mostly nothing that it lacks.
            let of_row = 16 + 1 + 8 + size_of::<Option<StoredColumn>>();
            layout.names.len() * (each + layout.rows * of_row)
        });
        let rows = self.rows.len() * size_of::<SummaryRow>();
        size_of::<Self>() + self.bytes.len() + self.metas.len() + rows + columns.sum::<usize>()
    }
}

type Parts = (Vec<u8>, Vec<SummaryRow>, Vec<SummaryLayout>);

fn decode_parts(length: usize, rest: &[u8]) -> Option<Parts> {
    let mut reader = ByteReader(rest);
    let count = reader.varint().filter(|rows| *rows <= STORED_ROWS_MAX)?;
    let mut rows = Vec::with_capacity(count as usize);
    let mut in_layout: Vec<u32> = Vec::new();
    for _ in 0..count {
        let id = reader.take(12)?.try_into().ok()?;
        let flags = *reader.take(1)?.first()?;
        let layout = reader.varint().filter(|layout| *layout < STORED_ROWS_MAX)? as usize;
        let count = u32::try_from(reader.varint()?).ok()?;
        let mut place = 0;
        if flags & IS_OPAQUE == 0 {
            if layout >= in_layout.len() {
                in_layout.resize(layout + 1, 0);
            }
            place = in_layout[layout];
            in_layout[layout] += 1;
        }
        rows.push(SummaryRow {
            id,
            flags,
            layout: layout as u32,
            place,
            count,
            meta: 0..0,
        });
    }
    let length_of_metas = usize::try_from(reader.varint()?).ok()?;
    // Each row has at most the largest metadata and a document around it.
    if length_of_metas > rows.len() * (META_BYTES_MAX + 16) {
        return None;
    }
    let metas = dictionary::decompress_plain(reader.counted()?, length_of_metas).ok()?;
    let mut at = 0usize;
    for row in &mut rows {
        let size = metas.get(at..)?.first_chunk::<4>()?;
        let end = at.checked_add(usize::try_from(i32::from_le_bytes(*size)).ok()?)?;
        nilometer_bson::DocRef::new(metas.get(at..end)?)?;
        row.meta = u32::try_from(at).ok()?..u32::try_from(end).ok()?;
        at = end;
    }
    let layouts = usize::try_from(reader.varint()?).ok()?;
    if layouts != in_layout.len() {
        return None;
    }
    let found = in_layout
        .into_iter()
        .map(|rows| decode_layout(&mut reader, length, rows as usize))
        .collect::<Option<_>>()?;
    reader.0.is_empty().then_some((metas, rows, found))
}

/// Decodes a layout; `length` is that of the block, which the reader reads to its end.
fn decode_layout(reader: &mut ByteReader<'_>, length: usize, rows: usize) -> Option<SummaryLayout> {
    let columns = reader.varint()?;
    if columns > reader.0.len() as u64 {
        return None;
    }
    let mut layout = SummaryLayout {
        names: Vec::new(),
        sections: Vec::new(),
        decoded: Vec::new(),
        sizes: 0..0,
        decoded_sizes: OnceLock::new(),
        rows,
    };
    for _ in 0..columns {
        let name = std::str::from_utf8(reader.counted()?).ok()?;
        layout.names.push(name.into());
        layout.sections.push(counted_range(reader, length)?);
        layout.decoded.push(OnceLock::new());
    }
    layout.sizes = counted_range(reader, length)?;
    Some(layout)
}

/// Returns the place of the next counted bytes.
fn counted_range(reader: &mut ByteReader<'_>, length: usize) -> Option<Range<usize>> {
    let bytes = reader.counted()?.len();
    let end = length - reader.0.len();
    Some(end - bytes..end)
}

fn decode_section(section: &[u8], rows: usize) -> Option<SummaryColumn> {
    let mut reader = ByteReader(section);
    let bounds = match *reader.take(1)?.first()? {
        0 => {
            let one = |_| Document::from_bytes(reader.counted()?.to_vec());
            SummaryBounds::Values((0..rows).map(one).collect::<Option<_>>()?)
        }
        type_code::DOUBLE => {
            let mut all = Vec::with_capacity(rows);
            for _ in 0..rows {
                all.push([f64_of(&mut reader)?, f64_of(&mut reader)?]);
            }
            SummaryBounds::Doubles(all)
        }
        code @ (type_code::INT32 | type_code::INT64 | type_code::DATE_TIME) => {
            let mut all = Vec::with_capacity(rows);
            for _ in 0..rows {
                let min = unzigzag(reader.varint()?);
                all.push([min, min.wrapping_add(reader.varint()?.cast_signed())]);
            }
            SummaryBounds::Whole(code, all)
        }
        _ => return None,
    };
    let totals = StoredTotals::decode(&mut reader, rows)?;
    reader
        .0
        .is_empty()
        .then_some(SummaryColumn { bounds, totals })
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{array, doc};

    use super::*;

    fn column(name: &str, min: Value, max: Value, total: Option<ColumnTotal>) -> ColumnSummary {
        ColumnSummary {
            name: name.into(),
            is_constant: matches!(&min, Value::String(_)),
            stored: total.map(|_| StoredColumn {
                bytes: name.len() as u32 * 300,
                is_packed: name == "d",
            }),
            min,
            max,
            total,
        }
    }

    /// Buckets with all kinds of bounds and totals, in two layouts, one of them opaque.
    fn summaries() -> Vec<BucketSummary> {
        let one = |at: u8| {
            let number = i64::from(at) * 1_000_003 - 5;
            let (count, is_long) = (u32::from(at) + 1, at.is_multiple_of(2));
            let whole = ColumnTotal::Whole {
                count,
                is_long,
                sum: number,
            };
            let doubles = |sum, rest| Some(ColumnTotal::Doubles { count, sum, rest });
            let mut columns = vec![
                column(
                    "t",
                    Value::DateTime(number),
                    Value::DateTime(number + 7),
                    None,
                ),
                column("i", Value::Int32(-3), Value::Int32(at.into()), Some(whole)),
                column("l", Value::Int64(i64::MIN), Value::Int64(i64::MAX), None),
                column(
                    "d",
                    Value::Double(-0.0),
                    Value::Double(0.1),
                    doubles(0.3, 1e-17),
                ),
                column(
                    "e",
                    Value::Double(f64::NAN),
                    Value::Double(2.0),
                    doubles(-7.0, 0.0),
                ),
                column(
                    "z",
                    Value::Double(0.0),
                    Value::Double(0.0),
                    doubles(-0.0, 0.0),
                ),
                column("s", "a".into(), "a".into(), None),
            ];
            if at.is_multiple_of(3) {
                columns.push(column(
                    "x",
                    array![1, "y"],
                    doc! { "q": at as i32 }.into(),
                    None,
                ));
                columns.push(column("y", Value::Int32(1), Value::Int64(2), None));
            }
            let header = SummaryHeader {
                is_sorted: at.is_multiple_of(2),
                is_closed: at.is_multiple_of(5),
                count,
                meta: [Value::Missing, doc! { "h": at as i32 }.into(), "m".into()][at as usize % 3]
                    .clone(),
                columns,
            };
            BucketSummary {
                id: [at; 12],
                header: (at % 7 != 3).then_some(header),
            }
        };
        (0..40).map(one).collect()
    }

    #[test]
    fn a_block_returns_what_it_was_made_of() {
        let all = summaries();
        let block = SummaryBlock::decode(encode(&all).unwrap().into()).unwrap();
        let found = block.summaries().unwrap();
        assert_eq!(format!("{found:?}"), format!("{all:?}"));
        assert!(block.memory_bytes() > 1000);
        let empty = SummaryBlock::decode(encode(&[]).unwrap().into()).unwrap();
        assert!(empty.rows.is_empty());
    }

    #[test]
    fn every_flipped_or_missing_byte_of_a_block_is_damage() {
        let bytes = encode(&summaries()).unwrap();
        for at in 0..bytes.len() {
            assert!(SummaryBlock::decode(bytes[..at].to_vec().into()).is_err());
            let mut flipped = bytes.clone();
            flipped[at] ^= 0x20;
            assert!(SummaryBlock::decode(flipped.into()).is_err(), "byte {at}");
        }
    }

    #[test]
    fn bytes_with_a_right_checksum_are_parsed_or_refused() {
        let bytes = encode(&summaries()).unwrap();
        let step = nilometer_storage::testing::effort(29, 1, 1) as usize;
        for at in (HEAD_BYTES..bytes.len()).step_by(step) {
            for change in [0x01, 0x80, 0xFF] {
                let mut changed = bytes.clone();
                changed[at] ^= change;
                let sum = xxhash_rust::xxh3::xxh3_64(&changed[HEAD_BYTES..]);
                changed[1..HEAD_BYTES].copy_from_slice(&sum.to_le_bytes());
                if let Ok(block) = SummaryBlock::decode(changed.into()) {
                    let _ = block.summaries();
                }
            }
        }
    }
}

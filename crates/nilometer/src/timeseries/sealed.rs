//! How bucket documents lie in storage.
//!
//! Column bytes are packed already; what repeats from bucket to bucket is the rest: field names,
//! meta, control. So the document is stored in two parts, its skeleton compressed with zstd and the
//! columns as they are, and a reader that needs two columns of fourteen touches those two:
//!
//! ```text
//! stored    form 04 | sum | varint length, skeleton | column bytes …      skeleton compressed
//!           form 02 | sum | document                                      anything else
//! sum       lower half of xxh3-64 of what follows, little-endian
//! skeleton  the document with every `data` column BinData(7, bytes) replaced by the length of its bytes
//!           here: int32 if they are as they were, int64 if they are packed
//! ```
//!
//! Columns of buckets that no longer grow are packed ([`column::pack`]) where that pays: a reader unpacks
//! those it decodes. Form 03 is form 04 with no column packed, and is read. Form 02 keeps version 1 buckets
//! and others whose `data` is not all columns. A bit that flips anywhere is damage, never another measurement.

use std::borrow::Cow;
use std::cell::RefCell;
use std::ops::Range;

use nilometer_bson::column;
use nilometer_bson::{DocRef, Document, DocumentBuilder, Element, ValueRef};

use super::bucket_document::{COLUMN_SUBTYPE, MEASUREMENTS_MAX};
use super::tail::{Reader, put_varint};
use crate::error::{Error, ErrorCode, Result};

const FORM_WHOLE: u8 = 2;
const FORM_SPLIT_UNPACKED: u8 = 3;
const FORM_SPLIT: u8 = 4;

/// zstd level: higher ones gain a few per cent on skeletons and cost several times as much.
const ZSTD_LEVEL: i32 = 3;

/// A skeleton may unpack to this many bytes.
const SKELETON_BYTES_MAX: usize = 48 << 20;

/// Built from real skeletons' common parts: what every bucket repeats.
const DICTIONARY: &[u8] = b"\x03control\0\x10version\0\x02\0\0\0\x03min\0\x03max\0\x10count\0\
    \x03meta\0\x03data\0\x07_id\0\x09timestamp\0\x09time\0\x01\x12\x10";

thread_local! {
    static COMPRESSOR: RefCell<Option<zstd::bulk::Compressor<'static>>> = const { RefCell::new(None) };
    static DECOMPRESSOR: RefCell<Option<zstd::bulk::Decompressor<'static>>> = const { RefCell::new(None) };
}

fn damage(what: &str) -> Error {
    Error::new(
        ErrorCode::DataCorruptionDetected,
        format!("a stored bucket cannot be read: {what}"),
    )
}

/// Bytes of form and sum.
const HEAD_BYTES: usize = 5;

/// The checksum of stored bytes.
pub(crate) fn sum(bytes: &[u8]) -> [u8; 4] {
    (xxhash_rust::xxh3::xxh3_64(bytes) as u32).to_le_bytes()
}

/// Puts the sum of what follows it into its place.
fn seal(mut out: Vec<u8>) -> Vec<u8> {
    if let Some((head, rest)) = out.split_first_chunk_mut::<HEAD_BYTES>() {
        head[1..].copy_from_slice(&sum(rest));
    }
    out
}

/// How columns are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Columns {
    /// As they are: the bucket is soon written again.
    AsTheyAre,
    /// In fewer bytes where that pays.
    Packed,
}

/// The stored form of a bucket document.
pub(crate) fn store(document: DocRef<'_>, how: Columns) -> Result<Vec<u8>> {
    let Some((skeleton, columns)) = split(document, how) else {
        let mut out = Vec::with_capacity(HEAD_BYTES + document.as_bytes().len());
        out.extend_from_slice(&[FORM_WHOLE, 0, 0, 0, 0]);
        out.extend_from_slice(document.as_bytes());
        return Ok(seal(out));
    };
    let packed = compress(skeleton.as_bytes())
        .map_err(|e| Error::new(ErrorCode::InternalError, format!("zstd: {e}")))?;
    let mut out = Vec::with_capacity(packed.len() + columns.len() + 15);
    out.extend_from_slice(&[FORM_SPLIT, 0, 0, 0, 0]);
    put_varint(&mut out, skeleton.as_bytes().len() as u64);
    put_varint(&mut out, packed.len() as u64);
    out.extend_from_slice(&packed);
    out.extend_from_slice(&columns);
    Ok(seal(out))
}

fn compress(bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    COMPRESSOR.with_borrow_mut(|slot| {
        let compressor = match slot {
            Some(compressor) => compressor,
            None => slot.insert(zstd::bulk::Compressor::with_dictionary(
                ZSTD_LEVEL, DICTIONARY,
            )?),
        };
        compressor.compress(bytes)
    })
}

fn decompress(bytes: &[u8], capacity: usize) -> std::io::Result<Vec<u8>> {
    DECOMPRESSOR.with_borrow_mut(|slot| {
        let decompressor = match slot {
            Some(decompressor) => decompressor,
            None => slot.insert(zstd::bulk::Decompressor::with_dictionary(DICTIONARY)?),
        };
        decompressor.decompress(bytes, capacity)
    })
}

/// Splits a document whose `data` holds nothing but columns into skeleton and column bytes.
fn split(document: DocRef<'_>, how: Columns) -> Option<(Document, Vec<u8>)> {
    // Without a count the reader has to ask the time column, so that must be in its place.
    document
        .get("control")
        .as_document()?
        .get("count")
        .as_exact_i64()?;
    let mut columns = Vec::with_capacity(document.as_bytes().len());
    let mut out = DocumentBuilder::with_capacity(1024);
    for element in document {
        if element.name() != "data" {
            out.append_element(element);
            continue;
        }
        out.begin_document("data");
        for column in element.value().as_document()? {
            let ValueRef::Binary {
                subtype: COLUMN_SUBTYPE,
                bytes,
            } = column.value()
            else {
                return None;
            };
            let packed = match how {
                Columns::Packed => column::pack(bytes),
                Columns::AsTheyAre => None,
            };
            match packed {
                Some(packed) => {
                    out.append(column.name(), i64::try_from(packed.len()).ok()?);
                    columns.extend_from_slice(&packed);
                }
                None => {
                    out.append(column.name(), i32::try_from(bytes.len()).ok()?);
                    columns.extend_from_slice(bytes);
                }
            }
        }
        out.end();
    }
    Some((out.finish(), columns))
}

/// Where in a stored bucket a column is.
#[derive(Clone, Debug)]
pub(crate) struct ColumnPlace {
    range: Range<usize>,
    packed: bool,
}

impl ColumnPlace {
    /// The bytes of the column; `stored` are those of the bucket.
    pub(crate) fn bytes<'a>(&self, stored: &'a [u8]) -> Result<Cow<'a, [u8]>> {
        let bytes = stored.get(self.range.clone()).unwrap_or(&[]);
        if !self.packed {
            return Ok(Cow::Borrowed(bytes));
        }
        column::unpack(bytes, MEASUREMENTS_MAX).map_err(|e| damage(&e.to_string()))
    }
}

/// A stored bucket, opened: its skeleton at hand, its columns as ranges of the stored bytes.
#[derive(Debug)]
pub(crate) enum Stored {
    /// Kept whole.
    Whole(Document),
    /// Kept in two parts.
    Split {
        /// The document with lengths in place of columns.
        skeleton: Document,
        /// Its columns.
        columns: Vec<(Box<str>, ColumnPlace)>,
    },
}

/// Opens the stored form.
pub(crate) fn open(stored: &[u8]) -> Result<Stored> {
    let ([form, kept @ ..], rest) = stored
        .split_first_chunk::<HEAD_BYTES>()
        .ok_or_else(|| damage("it is too short"))?;
    if matches!(*form, FORM_WHOLE | FORM_SPLIT_UNPACKED | FORM_SPLIT) && *kept != sum(rest) {
        return Err(damage("its checksum does not fit"));
    }
    match *form {
        FORM_WHOLE => Document::from_bytes(rest.to_vec())
            .map(Stored::Whole)
            .ok_or_else(|| damage("it is no document")),
        FORM_SPLIT_UNPACKED | FORM_SPLIT => open_split(stored, rest),
        other => Err(damage(&format!("its form {other} is unknown"))),
    }
}

fn open_split(stored: &[u8], rest: &[u8]) -> Result<Stored> {
    let mut reader = Reader(rest);
    let parts = reader
        .varint()
        .and_then(|n| usize::try_from(n).ok())
        .filter(|n| *n <= SKELETON_BYTES_MAX)
        .and_then(|length| Some((length, reader.counted()?)));
    let (length, packed) = parts.ok_or_else(|| damage("its lengths do not fit"))?;
    let skeleton = decompress(packed, length).map_err(|e| damage(&format!("zstd: {e}")))?;
    let skeleton =
        Document::from_bytes(skeleton).ok_or_else(|| damage("its skeleton is no document"))?;
    let mut at = stored.len() - reader.0.len();
    let mut columns = Vec::new();
    if let ValueRef::Document(data) = skeleton.get("data") {
        for element in data {
            let place =
                column_place(element, at).ok_or_else(|| damage("a column has no length"))?;
            at = place.range.end;
            columns.push((element.name().into(), place));
        }
    }
    if at != stored.len() {
        return Err(damage("its columns do not fill it"));
    }
    Ok(Stored::Split { skeleton, columns })
}

fn column_place(element: Element<'_>, start: usize) -> Option<ColumnPlace> {
    let (length, packed) = match element.value() {
        ValueRef::Int32(length) => (usize::try_from(length).ok()?, false),
        ValueRef::Int64(length) => (usize::try_from(length).ok()?, true),
        _ => return None,
    };
    let range = start..start.checked_add(length)?;
    Some(ColumnPlace { range, packed })
}

impl Stored {
    /// The bucket document; `stored` are the bytes it was opened from.
    pub(crate) fn to_document(&self, stored: &[u8]) -> Result<Document> {
        let (skeleton, columns) = match self {
            Self::Whole(document) => return Ok(document.clone()),
            Self::Split { skeleton, columns } => (skeleton, columns),
        };
        let mut out = DocumentBuilder::with_capacity(stored.len() + 2048);
        for element in skeleton.iter() {
            if element.name() != "data" {
                out.append_element(element);
                continue;
            }
            out.begin_document("data");
            for (name, place) in columns {
                let bytes = ValueRef::Binary {
                    subtype: COLUMN_SUBTYPE,
                    bytes: &place.bytes(stored)?,
                };
                out.append_ref(name, bytes);
            }
            out.end();
        }
        Ok(out.finish())
    }
}

/// Reads the bucket document out of its stored form.
pub(crate) fn load(stored: &[u8]) -> Result<Document> {
    open(stored)?.to_document(stored)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nilometer_bson::{Binary, ObjectId, Value, doc};

    fn column(bytes: &[u8]) -> Value {
        Value::Binary(Binary {
            subtype: COLUMN_SUBTYPE,
            bytes: bytes.into(),
        })
    }

    /// A column that is worth packing.
    fn walk() -> Value {
        let mut builder = column::ColumnBuilder::new();
        let (mut draw, mut value) = (7u64, 0i64);
        for _ in 0..300 {
            draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // Mostly 0 and 1, at times much more.
            value += i64::from((draw >> 32).leading_zeros()) - 32;
            builder.append(ValueRef::Int64(value)).unwrap();
        }
        column(&builder.finish())
    }

    #[test]
    fn packed_columns_take_less() {
        let bucket = doc! { "control": doc! { "count": 300 }, "data": doc! { "v": walk() } };
        let [plain, packed] = [Columns::AsTheyAre, Columns::Packed]
            .map(|how| store(bucket.as_ref(), how).unwrap().len());
        assert!(packed < plain, "{packed} {plain}");
    }

    #[test]
    fn documents_come_back_byte_for_byte() {
        let buckets = [
            doc! {
                "_id": ObjectId::default(),
                "control": doc! { "version": 2, "min": doc! { "t": 1 }, "max": doc! { "t": 2 }, "count": 1 },
                "meta": "m",
                "data": doc! { "t": column(&[0]), "v": column(&[1, 2, 3]) },
            },
            doc! { "control": doc! { "count": 300 }, "data": doc! { "v": walk(), "w": column(&[0x60, 1]) } },
            doc! { "control": doc! { "count": 1 }, "data": doc! {}, "_id": 5 },
            doc! { "data": doc! { "t": column(&[0]) }, "_id": 5 },
            doc! { "data": doc! { "t": doc! { "0": 1 } }, "control": 1 },
            doc! { "data": 7 },
            doc! {},
        ];
        let forms = [Columns::AsTheyAre, Columns::Packed];
        for (bucket, how) in buckets.iter().flat_map(|b| forms.map(|how| (b, how))) {
            let stored = store(bucket.as_ref(), how).unwrap();
            assert_eq!(load(&stored).unwrap(), *bucket);
            for end in 0..stored.len() {
                assert!(load(&stored[..end]).is_err());
                let mut flipped = stored.clone();
                flipped[end] ^= 0x10;
                assert!(load(&flipped).is_err(), "byte {end}");
            }
        }
    }

    #[test]
    fn a_column_cut_short_is_damage() {
        let control = doc! { "count": 1 };
        let bucket = doc! { "control": control, "data": doc! { "t": column(&[1, 2, 3]) } };
        let stored = store(bucket.as_ref(), Columns::Packed).unwrap();
        assert!(load(&stored[..stored.len() - 1]).is_err());
        assert!(load(&[9]).is_err());
    }
}

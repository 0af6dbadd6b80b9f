//! The stored form of bucket documents.
//!
//! Columns are compressed already; the rest of the document (field names, meta, control) repeats from bucket to bucket. So a
//! document is stored in two parts: its skeleton compressed with zstd, and the columns. A reader of two columns out of
//! fourteen decodes those two:
//!
//! ```text
//! stored    form 05 | sum | dictionary | varint length, skeleton | column bytes …      skeleton compressed
//!           form 02 | sum | document                                                   anything else
//! sum       lower half of xxh3-64 of what follows, little-endian
//! dictionary  its number, 8 bytes, little-endian                     0: the built-in one
//! skeleton  the document with every `data` column BinData(7, bytes) replaced by the length of its bytes
//!           in this form: int32 if they are unchanged, int64 if they are packed
//! ```
//!
//! Columns of sealed buckets are packed ([`column::pack`]) where that is smaller; a reader unpacks those it decodes. The common
//! parts of a collection's skeletons are in a [`dictionary`], which [`learning`] trains. Forms 03 and 04 are form 05 with
//! the built-in dictionary, which they do not name, and without packed columns; they are still read. Form 02 holds version 1
//! buckets and others whose `data` has more than columns. The checksum detects every flipped bit.

pub(super) mod dictionary;
mod learning;

use std::borrow::Cow;
use std::ops::Range;

use nilometer_bson::block::ColumnBlock;
use nilometer_bson::column::{self, ColumnError};
use nilometer_bson::{DocRef, Document, DocumentBuilder, Element, ValueRef, varint};

use super::bucket_document::{COLUMN_SUBTYPE, MEASUREMENTS_MAX};
use super::tail::ByteReader;
use crate::error::{Error, ErrorCode, Result};

pub(crate) use learning::{Dictionaries, SAMPLES};

use dictionary::Dictionary;

const FORM_WHOLE: u8 = 2;
const FORM_UNPACKED: u8 = 3;
const FORM_UNNUMBERED: u8 = 4;
const FORM_SPLIT: u8 = 5;

/// The largest skeleton, in bytes.
const SKELETON_BYTES_MAX: usize = 48 << 20;

fn damage(what: &str) -> Error {
    Error::new(
        ErrorCode::DataCorruptionDetected,
        format!("a stored bucket cannot be read: {what}"),
    )
}

/// Length of form and checksum, in bytes.
const HEAD_BYTES: usize = 5;

/// Returns the checksum of stored bytes.
pub(crate) fn sum(bytes: &[u8]) -> [u8; 4] {
    (xxhash_rust::xxh3::xxh3_64(bytes) as u32).to_le_bytes()
}

/// Writes the checksum of the bytes after it.
fn seal(mut out: Vec<u8>) -> Vec<u8> {
    if let Some((head, rest)) = out.split_first_chunk_mut::<HEAD_BYTES>() {
        head[1..].copy_from_slice(&sum(rest));
    }
    out
}

/// How columns are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Columns {
    /// Unchanged: an open bucket is soon written again.
    AsTheyAre,
    /// Packed where that is smaller.
    Packed,
    /// Packed where that is smaller; the columns were just built by this process.
    PackedAsBuilt,
}

/// Returns the stored form of a document that is not split.
fn seal_whole(document: DocRef<'_>) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEAD_BYTES + document.as_bytes().len());
    out.extend_from_slice(&[FORM_WHOLE, 0, 0, 0, 0]);
    out.extend_from_slice(document.as_bytes());
    seal(out)
}

/// A split document.
pub(crate) struct Split {
    skeleton: Document,
    columns: Vec<u8>,
}

/// Collects the columns of a document to split it.
#[derive(Default)]
pub(crate) struct SplitColumns(Vec<u8>);

impl SplitColumns {
    /// Adds a column, and its length to the skeleton.
    pub(crate) fn put(
        &mut self,
        skeleton: &mut DocumentBuilder,
        name: &str,
        bytes: &[u8],
        is_packed: bool,
    ) {
        // No document is as long as this.
        let length = i32::try_from(bytes.len()).unwrap_or(i32::MAX);
        if is_packed {
            skeleton.append(name, i64::from(length));
        } else {
            skeleton.append(name, length);
        }
        self.0.extend_from_slice(bytes);
    }

    /// Returns the two parts.
    pub(crate) fn under(self, skeleton: Document) -> Split {
        let columns = self.0;
        Split { skeleton, columns }
    }
}

impl Split {
    /// Returns the stored form.
    fn seal(&self, dictionary: &Dictionary) -> Result<Vec<u8>> {
        let packed = dictionary
            .compress(self.skeleton.as_bytes())
            .map_err(|e| Error::new(ErrorCode::InternalError, e.to_string()))?;
        let mut out = Vec::with_capacity(packed.len() + self.columns.len() + 23);
        out.extend_from_slice(&[FORM_SPLIT, 0, 0, 0, 0]);
        out.extend_from_slice(&dictionary.number().to_le_bytes());
        varint::put(&mut out, self.skeleton.as_bytes().len() as u64);
        varint::put(&mut out, packed.len() as u64);
        out.extend_from_slice(&packed);
        out.extend_from_slice(&self.columns);
        Ok(seal(out))
    }

    /// Splits a document whose `data` holds only columns into skeleton and column bytes.
    fn of(document: DocRef<'_>, how: Columns) -> Option<Self> {
        // Without a count the reader counts the entries of the time column, which must therefore stay in the document.
        document
            .get("control")
            .as_document()?
            .get("count")
            .as_exact_i64()?;
        let mut columns = SplitColumns(Vec::with_capacity(document.as_bytes().len()));
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
                    Columns::PackedAsBuilt => column::pack_built(bytes),
                    Columns::AsTheyAre => None,
                };
                let stored = packed.as_deref().unwrap_or(bytes);
                columns.put(&mut out, column.name(), stored, packed.is_some());
            }
            out.end();
        }
        Some(columns.under(out.finish()))
    }
}

/// The size of a column that is stored by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoredColumn {
    /// Stored bytes.
    pub(crate) bytes: u32,
    /// They are packed.
    pub(crate) is_packed: bool,
}

/// The place of a column in a stored bucket.
#[derive(Clone, Debug)]
pub(crate) struct ColumnPlace {
    range: Range<usize>,
    packed: bool,
}

impl ColumnPlace {
    /// Returns the stored size in bytes.
    pub(crate) fn stored_bytes(&self) -> usize {
        self.range.len()
    }

    /// Returns the stored size; `None` if it is larger than any bucket.
    pub(crate) fn size(&self) -> Option<StoredColumn> {
        Some(StoredColumn {
            bytes: u32::try_from(self.range.len()).ok()?,
            is_packed: self.packed,
        })
    }

    /// Decodes the column; `stored` is the stored bucket.
    pub(crate) fn decode(&self, stored: &[u8], count: usize) -> Result<ColumnBlock, ColumnError> {
        let bytes = stored.get(self.range.clone()).unwrap_or(&[]);
        match self.packed {
            true => column::decode_packed(bytes, count),
            false => column::decode_block(bytes, count),
        }
    }

    /// Decodes the values at a path below those of the column, as [`column::decode_path`] does.
    pub(crate) fn decode_path(
        &self,
        stored: &[u8],
        count: usize,
        below: &str,
    ) -> Result<Option<ColumnBlock>, ColumnError> {
        let bytes = stored.get(self.range.clone()).unwrap_or(&[]);
        match self.packed {
            // Only numbers are packed, and identifiers.
            true => Ok(None),
            false => column::decode_path(bytes, count, below),
        }
    }

    /// Decodes the first values of the column; `None` if it has fewer, or must be decoded as a whole.
    pub(crate) fn decode_first(
        &self,
        stored: &[u8],
        count: usize,
        first: usize,
    ) -> Result<Option<ColumnBlock>, ColumnError> {
        let bytes = stored.get(self.range.clone()).unwrap_or(&[]);
        match self.packed {
            true => column::decode_first(bytes, count, first),
            false => Ok(None),
        }
    }

    /// Returns the bytes of the column; `stored` is the stored bucket.
    pub(crate) fn bytes<'a>(&self, stored: &'a [u8]) -> Result<Cow<'a, [u8]>> {
        let bytes = stored.get(self.range.clone()).unwrap_or(&[]);
        if !self.packed {
            return Ok(Cow::Borrowed(bytes));
        }
        column::unpack(bytes, MEASUREMENTS_MAX).map_err(|e| damage(&e.to_string()))
    }
}

/// An opened bucket: its skeleton is decompressed, its columns are ranges of the stored bytes.
#[derive(Debug)]
pub(crate) enum Stored {
    /// A document that is not split.
    Whole(Document),
    /// A split document.
    Split {
        /// The document with lengths instead of columns.
        skeleton: Document,
        /// The columns in the order of `data`.
        columns: Vec<ColumnPlace>,
    },
}

/// Opens the stored form.
pub(crate) fn open(stored: &[u8]) -> Result<Stored> {
    let ([form, kept @ ..], rest) = stored
        .split_first_chunk::<HEAD_BYTES>()
        .ok_or_else(|| damage("it is too short"))?;
    if (FORM_WHOLE..=FORM_SPLIT).contains(form) && *kept != sum(rest) {
        return Err(damage("its checksum does not fit"));
    }
    match *form {
        FORM_WHOLE => Document::from_bytes(rest.to_vec())
            .map(Stored::Whole)
            .ok_or_else(|| damage("it is no document")),
        FORM_UNPACKED | FORM_UNNUMBERED => {
            let opened = open_split(stored, rest, &Dictionary::built_in())?;
            match opened.has_packed_columns() {
                true => Err(damage("a column is packed as no release did")),
                false => Ok(opened),
            }
        }
        FORM_SPLIT => {
            let number = rest.split_first_chunk();
            let (number, rest) = number.ok_or_else(|| damage("it is too short"))?;
            let dictionary = Dictionary::with_number(u64::from_le_bytes(*number));
            let dictionary = dictionary.ok_or_else(|| damage("its dictionary is missing"))?;
            open_split(stored, rest, &dictionary)
        }
        other => Err(damage(&format!("its form {other} is unknown"))),
    }
}

/// Returns the places of the columns in a stored bucket, given their sizes, without its skeleton. `None` if the bucket is stored in another
/// form.
pub(crate) fn places(
    stored: &[u8],
    sizes: impl Iterator<Item = StoredColumn>,
) -> Result<Option<Vec<ColumnPlace>>> {
    let ([form, kept @ ..], rest) = stored
        .split_first_chunk::<HEAD_BYTES>()
        .ok_or_else(|| damage("it is too short"))?;
    if *form != FORM_SPLIT {
        return Ok(None);
    }
    if *kept != sum(rest) {
        return Err(damage("its checksum does not fit"));
    }
    let mut reader = ByteReader(rest.get(8..).unwrap_or(&[]));
    let parts = reader.varint().and_then(|_| reader.counted());
    parts.ok_or_else(|| damage("its lengths do not fit"))?;
    let mut at = stored.len() - reader.0.len();
    let mut places = Vec::with_capacity(sizes.size_hint().0);
    for StoredColumn { bytes, is_packed } in sizes {
        let end = at.saturating_add(bytes as usize);
        places.push(ColumnPlace {
            range: at..end,
            packed: is_packed,
        });
        at = end;
    }
    match at == stored.len() {
        true => Ok(Some(places)),
        false => Err(damage("its columns do not fill it")),
    }
}

fn open_split(stored: &[u8], rest: &[u8], dictionary: &Dictionary) -> Result<Stored> {
    let mut reader = ByteReader(rest);
    let parts = reader
        .varint()
        .and_then(|n| usize::try_from(n).ok())
        .filter(|n| *n <= SKELETON_BYTES_MAX)
        .and_then(|length| Some((length, reader.counted()?)));
    let (length, packed) = parts.ok_or_else(|| damage("its lengths do not fit"))?;
    let skeleton = dictionary.decompress(packed, length);
    let skeleton = skeleton.map_err(|e| damage(&e.to_string()))?;
    let skeleton =
        Document::from_bytes(skeleton).ok_or_else(|| damage("its skeleton is no document"))?;
    let mut at = stored.len() - reader.0.len();
    let mut columns = Vec::new();
    if let ValueRef::Document(data) = skeleton.get("data") {
        columns.reserve_exact(data.iter().count());
        for element in data {
            let place =
                column_place(element, at).ok_or_else(|| damage("a column has no length"))?;
            at = place.range.end;
            columns.push(place);
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
    fn has_packed_columns(&self) -> bool {
        match self {
            Self::Whole(_) => false,
            Self::Split { columns, .. } => columns.iter().any(|place| place.packed),
        }
    }

    /// Returns the bucket document; `stored` is what it was opened from.
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
            let data = element.value().as_document();
            let elements = data.iter().flat_map(|data| data.iter());
            for (column, place) in elements.zip(columns) {
                let bytes = ValueRef::Binary {
                    subtype: COLUMN_SUBTYPE,
                    bytes: &place.bytes(stored)?,
                };
                out.append_ref(column.name(), bytes);
            }
            out.end();
        }
        Ok(out.finish())
    }
}

/// Returns the stored form of a split document with the built-in dictionary.
#[cfg(test)]
pub(crate) fn seal_split(split: &Split) -> Vec<u8> {
    split.seal(&Dictionary::built_in()).unwrap()
}

/// Returns the bucket document of a stored bucket.
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

    fn store(document: DocRef<'_>, how: Columns) -> Result<Vec<u8>> {
        match Split::of(document, how) {
            Some(split) => split.seal(&Dictionary::built_in()),
            None => Ok(seal_whole(document)),
        }
    }

    /// A column that becomes smaller by packing.
    fn walk() -> Value {
        let mut builder = column::ColumnBuilder::new();
        let (mut draw, mut value) = (7u64, 0i64);
        for _ in 0..300 {
            draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // Mostly 0 and 1, sometimes much larger.
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

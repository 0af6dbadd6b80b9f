//! Normalising metadata without sorting: fields are copied into the known order of their names.
//!
//! ```text
//! field ─► rank of its name ─► offset and length at that rank ─► copies in the order of ranks
//! ```
//!
//! Clients that shuffle their fields send the same names again and again. The rank of each name is known
//! ([`FieldNames::rank_at_start`]), so fields are ordered in one pass. The result has the bytes of the normalised metadata
//! ([`SeriesMeta`]). There is none if a name occurs twice, if there are too many names, if the metadata is long, or if fields
//! within a value are not in order.
//!
//! [`SeriesMeta`]: crate::timeseries::format::series_key::SeriesMeta

use std::ops::Range;

use nilometer_bson::document::value_length;
use nilometer_bson::{DocRef, type_code};

use crate::timeseries::bucket_catalog::field_names::{FieldNames, WINDOW};
use crate::timeseries::format::series_key::is_normalised;

/// Names with a rank here.
const RANKS: usize = 64;

/// Longer metadata is not normalised here, in bytes.
const META_BYTES_MAX: usize = 1024;

/// Fields up to this length are copied with this length: a copy of a fixed length takes no branch.
const COPY_BYTES: usize = 48;

/// Readable bytes that a copy needs behind a document.
const PADDING: usize = if WINDOW > COPY_BYTES {
    WINDOW
} else {
    COPY_BYTES
} + 16;

/// Bytes of a document before its first field.
const HEAD: usize = 4;

/// Types whose values have fields, as bits.
const NESTED: u32 = 1 << type_code::DOCUMENT | 1 << type_code::ARRAY;

/// Normalised metadata.
#[derive(Clone, Debug)]
pub(crate) struct NormalizedMeta {
    /// Range in the buffer of the normaliser.
    bytes: Range<usize>,
    /// Hash of the order in which the fields came.
    pub(crate) field_order: u64,
}

/// Normalises the metadata of a block of documents, and holds the results.
#[derive(Debug)]
pub(crate) struct MetaNormalizer {
    names: FieldNames,
    /// A copy of metadata with padding, for metadata at the end of a document.
    sent: Vec<u8>,
    /// By rank, offset and length of a field in the current metadata.
    fields: Box<[(u16, u16); RANKS]>,
    /// The results; what is behind them is undefined.
    ordered: Vec<u8>,
    /// Bytes of the results.
    used: usize,
}

impl MetaNormalizer {
    pub(crate) fn new(names: FieldNames) -> Self {
        Self {
            names,
            sent: Vec::new(),
            fields: Box::new([(0, 0); RANKS]),
            ordered: Vec::new(),
            used: 0,
        }
    }

    /// Returns the names learned so far.
    pub(crate) fn names(&self) -> &FieldNames {
        &self.names
    }

    /// Removes all results.
    pub(crate) fn clear(&mut self) {
        self.used = 0;
    }

    /// Returns the bytes of normalised metadata.
    pub(crate) fn bytes(&self, of: &NormalizedMeta) -> &[u8] {
        &self.ordered[of.bytes.clone()]
    }

    /// Normalises metadata. `onward` are its bytes and those behind it in the measurement.
    pub(crate) fn add(&mut self, meta: DocRef<'_>, onward: &[u8]) -> Option<NormalizedMeta> {
        if meta.as_bytes().len() > META_BYTES_MAX {
            return None;
        }
        if let Some(added) = self.add_known(meta, onward) {
            return Some(added);
        }
        let known = self.names.len();
        for element in meta {
            self.names.id_of(element.name_bytes());
        }
        match self.names.len() > known {
            true => self.add_known(meta, onward),
            false => None,
        }
    }

    /// Like [`Self::add`], for known names only.
    fn add_known(&mut self, meta: DocRef<'_>, onward: &[u8]) -> Option<NormalizedMeta> {
        if onward.len() >= meta.as_bytes().len() + PADDING {
            return self.add_padded(meta, onward);
        }
        let mut sent = std::mem::take(&mut self.sent);
        sent.clear();
        sent.extend_from_slice(meta.as_bytes());
        sent.extend_from_slice(&[0; PADDING]);
        let added = self.add_padded(meta, &sent);
        self.sent = sent;
        added
    }

    /// Like [`Self::add_known`], for metadata with enough bytes behind it.
    fn add_padded(&mut self, meta: DocRef<'_>, sent: &[u8]) -> Option<NormalizedMeta> {
        let meta_bytes = meta.as_bytes().len();
        let end = meta_bytes - 1;
        let (mut at, mut field_order) = (HEAD, 0u64);
        let (mut met, mut count, mut types) = (0u64, 0, 0u32);
        while at < end {
            let (&type_code, named) = sent.get(at..)?.split_first()?;
            let (rank, length) = self.names.rank_at_start(named)?;
            let field_bytes = 1 + length + 1 + value_length(type_code, named.get(length + 1..)?)?;
            // Both fit: they are less than the length of all metadata.
            *self.fields.get_mut(usize::from(rank))? = (at as u16, field_bytes as u16);
            field_order = field_order.wrapping_mul(31).wrapping_add(u64::from(rank));
            types |= 1 << (type_code & 0x1F);
            met |= 1 << rank;
            count += 1;
            at += field_bytes;
        }
        if at != end || met.count_ones() != count {
            return None;
        }
        if types & NESTED != 0 && !meta.iter().all(|field| is_normalised(field.value())) {
            return None;
        }
        let bytes = self.copy(sent, met, meta_bytes)?;
        Some(NormalizedMeta { bytes, field_order })
    }

    /// Copies the fields with these ranks, given as bits: a document of this length.
    fn copy(&mut self, sent: &[u8], mut ranks: u64, length: usize) -> Option<Range<usize>> {
        let (start, end) = (self.used, self.used + length);
        if self.ordered.len() < end + PADDING {
            self.ordered.resize(end + PADDING, 0);
        }
        let head = &mut self.ordered[start..start + HEAD];
        head.copy_from_slice(sent.get(..HEAD)?);
        let mut at = start + HEAD;
        while ranks != 0 {
            let rank = ranks.trailing_zeros() as usize;
            ranks &= ranks - 1;
            let (from, bytes) = self.fields[rank];
            let (from, bytes) = (usize::from(from), usize::from(bytes));
            let (field, to) = (sent.get(from..)?, self.ordered.get_mut(at..)?);
            if bytes <= COPY_BYTES {
                // The next field overwrites the excess.
                *to.first_chunk_mut::<COPY_BYTES>()? = *field.first_chunk()?;
            } else {
                to.get_mut(..bytes)?.copy_from_slice(field.get(..bytes)?);
            }
            at += bytes;
        }
        self.ordered[at] = 0;
        self.used = end;
        Some(start..end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeseries::format::series_key::SeriesMeta;
    use crate::timeseries::tests::Draw;
    use nilometer_bson::{Document, DocumentBuilder, Value, ValueRef, array, doc};

    fn normalised(meta: &Document) -> Vec<u8> {
        let meta = SeriesMeta::of(ValueRef::Document(meta.as_ref()));
        meta.as_bytes()[1..].to_vec()
    }

    /// Normalised, whatever is behind it.
    fn ordered(normalizer: &mut MetaNormalizer, meta: &Document) -> Option<Vec<u8>> {
        let mut all = [0, 1, PADDING, 200].into_iter().map(|behind| {
            let onward = [meta.as_bytes(), &vec![2; behind]].concat();
            let added = normalizer.add(meta.as_ref(), &onward)?;
            Some(normalizer.bytes(&added).to_vec())
        });
        let first = all.next()?;
        assert!(all.all(|other| other == first), "{meta:?}");
        first
    }

    #[test]
    fn fields_are_put_in_the_order_of_their_names() {
        let mut normalizer = MetaNormalizer::new(FieldNames::default());
        let long = "x".repeat(200);
        for meta in [
            doc! {},
            doc! { "b": 1, "a": "x" },
            doc! { "a": "x", "b": 1 },
            doc! { "c": doc! { "d": 1, "e": 2 }, "b": array![1, doc! { "x": 1 }], "a": 2i64 },
            doc! { "B": 1, "ab": 2, "a": 3, "": 4, "a name of more than twenty-three bytes": 5 },
            doc! { "b": long.clone(), "a": long.clone(), "c": 1 },
        ] {
            assert_eq!(
                ordered(&mut normalizer, &meta),
                Some(normalised(&meta)),
                "{meta:?}"
            );
        }
    }

    #[test]
    fn metadata_beyond_the_fast_path_is_left() {
        let mut normalizer = MetaNormalizer::new(FieldNames::default());
        let long = "x".repeat(META_BYTES_MAX);
        for meta in [
            doc! { "a": 1, "a": 2 },
            doc! { "a": doc! { "e": 1, "d": 2 } },
            doc! { "a": array![doc! { "e": 1, "d": 2 }] },
            doc! { "a": long },
        ] {
            assert_eq!(ordered(&mut normalizer, &meta), None, "{meta:?}");
        }
        let mut many = DocumentBuilder::new();
        for at in 0..=RANKS {
            many.append(&format!("f{at:02}"), 1);
        }
        assert_eq!(ordered(&mut normalizer, &many.finish()), None);
    }

    #[test]
    fn bytes_that_are_no_document_normalise_to_nothing() {
        let mut normalizer = MetaNormalizer::new(FieldNames::default());
        let whole = doc! { "b": 1, "a": "x", "c": doc! { "d": 1 } };
        assert!(ordered(&mut normalizer, &whole).is_some());
        for at in 4..whole.as_bytes().len() - 1 {
            for byte in [0, 1, 2, 0xFF] {
                let mut bytes = whole.as_bytes().to_vec();
                bytes[at] = byte;
                let broken = DocRef::new(&bytes).unwrap();
                for behind in [0, 200] {
                    let onward = [&bytes[..], &vec![byte; behind]].concat();
                    if let Some(added) = normalizer.add(broken, &onward) {
                        assert_eq!(normalizer.bytes(&added).len(), bytes.len());
                    }
                }
            }
        }
    }

    #[test]
    fn orders_are_distinguished() {
        let mut normalizer = MetaNormalizer::new(FieldNames::default());
        let mut field_order =
            |meta: Document| normalizer.add(meta.as_ref(), &[]).unwrap().field_order;
        let one = field_order(doc! { "a": 1, "b": 2 });
        assert_eq!(one, field_order(doc! { "a": 3, "b": 4 }));
        assert_ne!(one, field_order(doc! { "b": 2, "a": 1 }));
    }

    /// Metadata of few names and values, in any order, some there twice, some of them documents with fields in any order.
    fn generated(draw: &mut Draw, names: &[String]) -> Document {
        let mut out = DocumentBuilder::new();
        let mut left: Vec<&String> = names.iter().collect();
        for _ in 0..draw.below(12) {
            let at = draw.below(left.len() as u64) as usize;
            let name = left[at];
            if draw.below(30) > 0 {
                left.remove(at);
            }
            let value: Value = match draw.below(12) {
                0 if draw.below(2) == 0 => doc! { "x": 1, "y": 2 }.into(),
                0 => array![doc! { "y": 1, "x": 2 }],
                1 => "x".repeat(draw.below(90) as usize).into(),
                2 => Value::Null,
                3 => true.into(),
                4 => (draw.below(2) as f64).into(),
                5 => Value::Int32(draw.below(2) as i32),
                _ => ["x", "production"][draw.below(2) as usize].into(),
            };
            out.append(name, value);
        }
        out.finish()
    }

    #[test]
    fn generated_metadata_is_ordered_as_it_is_normalised() {
        for seed in 0..20 {
            let mut draw = Draw::new(seed);
            let name = |draw: &mut Draw| {
                let letters = (0..draw.below(28)).map(|_| b'a' + draw.below(3) as u8);
                String::from_utf8(letters.collect()).unwrap()
            };
            let mut names: Vec<String> = (0..20).map(|_| name(&mut draw)).collect();
            names.sort();
            names.dedup();
            let mut normalizer = MetaNormalizer::new(FieldNames::default());
            let mut count = 0;
            for round in 0..500 {
                if round % 7 == 0 {
                    normalizer.clear();
                }
                let meta = generated(&mut draw, &names);
                let normal = normalised(&meta);
                let mut found: Vec<&[u8]> = meta.iter().map(|f| f.name_bytes()).collect();
                found.sort_unstable();
                let is_plain = found.windows(2).all(|pair| pair[0] != pair[1])
                    && meta.iter().all(|field| is_normalised(field.value()));
                let expected = (is_plain && normal.len() <= META_BYTES_MAX).then_some(normal);
                assert_eq!(ordered(&mut normalizer, &meta), expected, "{meta:?}");
                count += usize::from(expected.is_some());
            }
            assert!(count > 250, "{count}");
        }
    }
}

//! Puts the fields of metadata in one order, for the lookup of its series.
//!
//! ```text
//! field ─► id of its name ─► place at that id ─► copies in the order of ids
//! ```
//!
//! Clients that shuffle their fields send the same names again and again. Any order of the fields names the same series, so the
//! order need not be that of normalised metadata: that of the ids of the names takes no sorting.

use nilometer_bson::DocRef;

use crate::timeseries::bucket_catalog::FieldNames;

/// Names whose fields are reordered. Metadata with others is left as it is.
const NAMES_MAX: usize = 64;

/// Bytes of a document before its first field.
const HEAD: usize = 4;

/// Fields up to this length are copied with this length: a copy of a fixed length takes no branch.
const COPY_BYTES: usize = 48;

/// Puts the fields of metadata in the order of their names' ids.
#[derive(Debug)]
pub(super) struct MetaReorderer {
    pub(super) names: FieldNames,
    /// By name id, start and end of the field in the current metadata.
    fields: Box<[(usize, usize); NAMES_MAX]>,
}

impl MetaReorderer {
    pub(super) fn new(names: FieldNames) -> Self {
        let fields = Box::new([(0, 0); NAMES_MAX]);
        Self { names, fields }
    }

    /// Returns metadata, with its fields in one order if each has another name. The result is in `buffer`.
    pub(super) fn reorder<'b>(&mut self, meta: DocRef<'b>, buffer: &'b mut Vec<u8>) -> &'b [u8] {
        let sent = meta.as_bytes();
        let Some(mut met) = self.find_fields(meta) else {
            return sent;
        };
        if buffer.len() < sent.len() + COPY_BYTES {
            buffer.resize(sent.len() + COPY_BYTES, 0);
        }
        buffer[..HEAD].copy_from_slice(&sent[..HEAD]);
        let mut at = HEAD;
        while met != 0 {
            let (start, end) = self.fields[met.trailing_zeros() as usize];
            met &= met - 1;
            let length = end - start;
            match sent.get(start..start + COPY_BYTES) {
                // The next field overwrites the excess.
                Some(field) if length <= COPY_BYTES => {
                    buffer[at..at + COPY_BYTES].copy_from_slice(field);
                }
                _ => buffer[at..at + length].copy_from_slice(&sent[start..end]),
            }
            at += length;
        }
        buffer[at] = 0;
        &buffer[..=at]
    }

    /// Finds the places of all fields; returns the ids of their names, as bits.
    fn find_fields(&mut self, meta: DocRef<'_>) -> Option<u64> {
        let (mut met, mut count, mut start) = (0u64, 0, HEAD);
        let mut elements = meta.iter();
        while let Some((_, id)) = self.names.next(&mut elements) {
            let id = usize::from(id?);
            let end = meta.position_of(&elements);
            *self.fields.get_mut(id)? = (start, end);
            met |= 1 << id;
            count += 1;
            start = end;
        }
        (met.count_ones() == count && start + 1 == meta.as_bytes().len()).then_some(met)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeseries::format::series_key::SeriesMeta;
    use crate::timeseries::tests::Draw;
    use nilometer_bson::{Document, DocumentBuilder, Value, ValueRef, array, doc};

    fn series(meta: &Document) -> SeriesMeta {
        SeriesMeta::of(ValueRef::Document(meta.as_ref()))
    }

    fn reordered(reorderer: &mut MetaReorderer, meta: &Document) -> Document {
        let mut buffer = Vec::new();
        let bytes = reorderer.reorder(meta.as_ref(), &mut buffer).to_vec();
        Document::from_bytes(bytes).unwrap()
    }

    #[test]
    fn the_same_fields_in_any_order_become_the_same_bytes() {
        let mut reorderer = MetaReorderer::new(FieldNames::default());
        let first = doc! { "b": 1, "a": "x", "c": doc! { "d": 1, "e": 2 } };
        for other in [
            first.clone(),
            doc! { "c": doc! { "d": 1, "e": 2 }, "b": 1, "a": "x" },
            doc! { "a": "x", "c": doc! { "d": 1, "e": 2 }, "b": 1 },
        ] {
            assert_eq!(
                reordered(&mut reorderer, &first).as_bytes(),
                first.as_bytes()
            );
            assert_eq!(
                reordered(&mut reorderer, &other).as_bytes(),
                first.as_bytes()
            );
        }
        for other in [
            doc! { "a": 2, "b": 1 },
            doc! { "b": 1, "a": "x", "c": doc! { "e": 2, "d": 1 } },
            doc! {},
        ] {
            assert_ne!(
                reordered(&mut reorderer, &other).as_bytes(),
                first.as_bytes()
            );
        }
    }

    #[test]
    fn bytes_that_are_no_document_are_left() {
        let mut reorderer = MetaReorderer::new(FieldNames::default());
        let whole = doc! { "b": 1, "a": "x", "c": doc! { "d": 1 } };
        reordered(&mut reorderer, &whole);
        for at in 4..whole.as_bytes().len() - 1 {
            for byte in [0, 1, 2, 0xFF] {
                let mut bytes = whole.as_bytes().to_vec();
                bytes[at] = byte;
                let mut buffer = Vec::new();
                let found = reorderer.reorder(DocRef::new(&bytes).unwrap(), &mut buffer);
                let sorted = |bytes: &[u8]| {
                    let mut bytes = bytes.to_vec();
                    bytes.sort_unstable();
                    bytes
                };
                assert_eq!(sorted(found), sorted(&bytes));
            }
        }
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
    fn generated_metadata_stays_that_of_its_series_and_has_one_order() {
        let mut draw = Draw::new(7);
        let name = |draw: &mut Draw| {
            let letters = (0..draw.below(28)).map(|_| b'a' + draw.below(3) as u8);
            String::from_utf8(letters.collect()).unwrap()
        };
        let mut names: Vec<String> = (0..20).map(|_| name(&mut draw)).collect();
        names.sort();
        names.dedup();
        let mut reorderer = MetaReorderer::new(FieldNames::default());
        let mut repeated = 0;
        for _ in 0..5000 {
            let meta = generated(&mut draw, &names);
            let found = reordered(&mut reorderer, &meta);
            assert_eq!(series(&found), series(&meta), "{meta:?}");
            let mut backward = DocumentBuilder::new();
            let mut fields: Vec<_> = meta.iter().collect();
            fields.reverse();
            for field in &fields {
                backward.append_element(*field);
            }
            let backward = reordered(&mut reorderer, &backward.finish());
            fields.sort_by_key(|field| field.name_bytes());
            match fields
                .windows(2)
                .any(|pair| pair[0].name_bytes() == pair[1].name_bytes())
            {
                true => repeated += 1,
                false => assert_eq!(backward.as_bytes(), found.as_bytes(), "{meta:?}"),
            }
        }
        assert!((100..2500).contains(&repeated), "{repeated}");
    }
}

//! The field scanner: parses documents into measurements, with their time, their metadata and the positions of their fields.
//!
//! Documents of one command mostly have the same fields. The scanner predicts the name that follows each name, so that a name is
//! compared with one instead of searched; it stops predicting while clients shuffle their fields. Fields are noted in the
//! command's [`FieldLayout`]. The contents of metadata are not read here: grouping looks them up.

use nilometer_bson::document::Elements;
use nilometer_bson::{DocRef, Element, ValueRef, type_code};

use crate::catalog::TimeseriesOptions;
use crate::error::{Error, ErrorCode, Result};
use crate::timeseries::bucket_catalog::{
    FieldLayout, FieldNames, FieldRange, LayoutField, Measurement, TextNumbers,
};
use crate::timeseries::format::bucket_document::COLUMN_SUBTYPE;

/// The largest bucket document, in bytes: the largest BSON document.
const BUCKET_BYTES_MAX: usize = 16 << 20;

/// Parses one document; returns its metadata and its measurement.
pub(crate) fn examine<'a>(
    document: DocRef<'a>,
    options: &TimeseriesOptions,
) -> Result<(Option<Element<'a>>, Measurement<'a>)> {
    let (meta, measurement) =
        FieldScanner::new(options, FieldNames::default()).examine(document)?;
    meta.map_or(Ok(()), refuse_column)?;
    Ok((meta, measurement))
}

/// The role of a field.
#[derive(Clone, Copy)]
enum Role {
    Time,
    Meta,
    Id,
    /// A name that starts with `$`, which a measurement may not have at its top.
    Refused,
    Other,
}

impl Role {
    fn of(name: &[u8], options: &TimeseriesOptions) -> Self {
        let meta_field = options.meta_field.as_deref();
        match name {
            _ if name == options.time_field.as_bytes() => Self::Time,
            _ if meta_field.is_some_and(|meta| meta.as_bytes() == name) => Self::Meta,
            b"_id" => Self::Id,
            [b'$', ..] => Self::Refused,
            _ => Self::Other,
        }
    }
}

/// Scans the fields of documents. A field is recognised by the predicted name, else by the start of its name in the table,
/// and only then by its whole name.
///
/// The fields of a document with known names are laid out in the order of name ids, whatever order they came in: the bucket
/// then meets the same types in the same order, which the processor predicts.
pub(crate) struct FieldScanner<'o> {
    options: &'o TimeseriesOptions,
    pub(crate) layout: FieldLayout,
    /// By name id, its role.
    roles: Vec<Role>,
    /// Name ids by role.
    special_names: SpecialNames,
    /// By name id, the name that followed it last; the first element is that of the first field.
    next_names: Vec<Option<u16>>,
    /// Score of the prediction: it pays while documents repeat the order of their fields.
    prediction_score: u32,
    /// The fields of one document by name id.
    slots: Box<[LayoutField; SLOTS]>,
    texts: TextNumbers,
}

/// Name ids of the time, the metadata and the `_id`, as bits.
#[derive(Clone, Copy, Default)]
struct SpecialNames {
    time: u64,
    meta: u64,
    id: u64,
    /// Names that a measurement may not have.
    refused: u64,
}

/// Names up to which fields are laid out by name id.
const SLOTS: usize = 64;

/// Types whose values may hold a compressed column, as bits.
const MAY_HOLD_COLUMNS: u32 =
    1 << type_code::BINARY | 1 << type_code::DOCUMENT | 1 << type_code::ARRAY;

/// The maximum of the score, in misses until prediction stops.
const PREDICTION_SCORE_MAX: u32 = 256;

/// What a hit adds to the score.
const PREDICTION_STEP: u32 = 2;

/// The scan of one document.
struct ScannedFields<'a> {
    /// The value of the time field.
    time: ValueRef<'a>,
    meta: Option<Element<'a>>,
    has_id: bool,
    range: Option<FieldRange>,
}

impl<'o> FieldScanner<'o> {
    pub(crate) fn new(options: &'o TimeseriesOptions, names: FieldNames) -> Self {
        Self {
            options,
            layout: FieldLayout::new(names),
            roles: Vec::new(),
            special_names: SpecialNames::default(),
            next_names: Vec::new(),
            prediction_score: PREDICTION_SCORE_MAX,
            slots: Box::new([LayoutField::default(); SLOTS]),
            texts: TextNumbers::default(),
        }
    }

    /// Returns the next element and the id of its name, if it has one; `before` is the id of the previous name.
    #[inline]
    fn next_known<'a>(
        &mut self,
        before: Option<u16>,
        elements: &mut Elements<'a>,
    ) -> Option<(Element<'a>, u16)> {
        let Self {
            layout,
            next_names,
            prediction_score,
            ..
        } = self;
        elements.next_recognized(|bytes| {
            if *prediction_score == 0 {
                return layout.names.find_at_start(bytes);
            }
            let link = before.map_or(0, |before| usize::from(before) + 1);
            let expected = next_names.get(link).copied().flatten();
            let known = expected.map(|id| (id, layout.names.prepared(id)));
            if let Some(expected) = known.filter(|(_, known)| known.begins(bytes)) {
                *prediction_score = PREDICTION_SCORE_MAX.min(*prediction_score + PREDICTION_STEP);
                return Some((expected.0, expected.1.len()));
            }
            *prediction_score -= 1;
            let found = layout.names.find_at_start(bytes)?;
            if next_names.len() <= link {
                next_names.resize(link + 1, None);
            }
            next_names[link] = Some(found.0);
            Some(found)
        })
    }

    /// Returns the next element, and the id of its name if it gets one.
    fn next<'a>(
        &mut self,
        before: Option<u16>,
        elements: &mut Elements<'a>,
    ) -> Option<(Element<'a>, Option<u16>)> {
        if let Some((element, id)) = self.next_known(before, elements) {
            return Some((element, Some(id)));
        }
        let element = elements.next()?;
        let id = self.layout.names.id_of(element.name_bytes());
        Some((element, id))
    }

    fn role(&mut self, element: &Element<'_>, id: Option<u16>) -> Role {
        self.update_roles();
        match id {
            Some(id) => self.roles[usize::from(id)],
            None => Role::of(element.name_bytes(), self.options),
        }
    }

    /// Finds the roles of new names.
    #[inline]
    fn update_roles(&mut self) {
        let names = &self.layout.names;
        for id in self.roles.len()..names.len() {
            let name = names.name(id as u16).as_bytes();
            let role = Role::of(name, self.options);
            self.roles.push(role);
            if id < SLOTS {
                match role {
                    Role::Time => self.special_names.time = 1 << id,
                    Role::Meta => self.special_names.meta = 1 << id,
                    Role::Id => self.special_names.id = 1 << id,
                    Role::Refused => self.special_names.refused |= 1 << id,
                    Role::Other => {}
                }
            }
        }
    }

    /// Parses a document and lays out its fields; the contents of the metadata are not read.
    pub(crate) fn examine<'a>(
        &mut self,
        document: DocRef<'a>,
    ) -> Result<(Option<Element<'a>>, Measurement<'a>)> {
        let found = match self.scan_known(document)? {
            Some(found) => found,
            None => self.scan(document)?,
        };
        let ValueRef::DateTime(time_ms) = found.time else {
            return Err(Error::bad_value(format!(
                "'{}' must be present and contain a valid BSON UTC datetime value",
                self.options.time_field
            )));
        };
        let meta_bytes = found.meta.map_or(0, |element| element.value_bytes().len());
        check_size(document.as_bytes().len(), meta_bytes)?;
        let measurement = Measurement {
            index: 0,
            time_ms,
            lacks_id: !found.has_id,
            generated_id: None,
            document,
            layout_range: found.range,
        };
        Ok((found.meta, measurement))
    }

    /// Scans a document whose names all have ids below [`SLOTS`], each once; `None` for other documents.
    ///
    /// No branch in the loop depends on which field comes next.
    fn scan_known<'a>(&mut self, document: DocRef<'a>) -> Result<Option<ScannedFields<'a>>> {
        self.update_roles();
        if self.layout.names.len() > SLOTS {
            return Ok(None);
        }
        let document_bytes = document.as_bytes().len();
        let special_names = self.special_names;
        let (mut met, mut types, mut count, mut value_bytes) = (0u64, 0u32, 0u32, 0);
        let mut texts = 0u64;
        let mut elements = document.iter();
        let mut before = None;
        while let Some((element, id)) = self.next_known(before, &mut elements) {
            before = Some(id);
            let bit = 1 << id;
            let bytes = element.value_bytes().len();
            let at = document_bytes - elements.rest().len() - bytes;
            self.slots[usize::from(id)] = LayoutField::new(id, &element, at);
            let of_meta = bit & special_names.meta != 0;
            value_bytes += if of_meta { 0 } else { bytes };
            // Other types may share a bit with each other, not with those that matter.
            types |= u32::from(!of_meta) << (element.type_code() & 0x1F);
            texts |= u64::from(element.type_code() == type_code::STRING) << id;
            met |= bit;
            count += 1;
        }
        let is_refused = met & special_names.refused != 0;
        if elements.rest() != [0] || met.count_ones() != count || is_refused {
            return Ok(None);
        }
        texts &= !special_names.meta;
        while texts != 0 {
            let slot = &mut self.slots[texts.trailing_zeros() as usize];
            slot.number_text(document, &mut self.texts);
            texts &= texts - 1;
        }
        let start = self.layout.next();
        let is_laid_out = self
            .layout
            .add_ids(&self.slots[..], met & !special_names.meta);
        let range = is_laid_out.then(|| self.layout.range(start, value_bytes));
        let slot = |of: u64| {
            let slot = self.slots.get(of.trailing_zeros() as usize);
            slot.filter(|_| met & of != 0)
        };
        if types & MAY_HOLD_COLUMNS != 0 {
            let names = &self.layout.names;
            let meta = slot(special_names.meta).map(|field| names.name(field.name_id));
            let fields = document.iter();
            fields
                .filter(|field| meta.is_none_or(|meta| meta.as_bytes() != field.name_bytes()))
                .try_for_each(refuse_column)?;
        }
        let meta = slot(special_names.meta).and_then(|field| {
            let name = self.layout.names.prepared(field.name_id);
            let before_value = 1 + name.len() + 1;
            let mut from = document.iter_from(field.at().checked_sub(before_value)?);
            from.next_prepared(name)
        });
        Ok(Some(ScannedFields {
            time: slot(special_names.time).map_or(ValueRef::Missing, |field| field.value(document)),
            meta,
            has_id: met & special_names.id != 0,
            range: range.flatten(),
        }))
    }

    /// Scans any document, and adds its new names.
    fn scan<'a>(&mut self, document: DocRef<'a>) -> Result<ScannedFields<'a>> {
        let (mut time, mut meta, mut has_id) = (None, None, false);
        let (start, mut value_bytes, mut is_laid_out) = (self.layout.next(), 0, true);
        let document_bytes = document.as_bytes().len();
        let mut elements = document.iter();
        let mut before = None;
        while let Some((element, id)) = self.next(before, &mut elements) {
            before = id;
            match self.role(&element, id) {
                Role::Time => time = time.or(Some(element)),
                Role::Meta => {
                    meta = meta.or(Some(element));
                    continue;
                }
                Role::Id => has_id = true,
                Role::Refused => return Err(refused_name(element.name())),
                Role::Other => {}
            }
            refuse_column(element)?;
            let bytes = element.value_bytes().len();
            value_bytes += bytes;
            match id {
                Some(id) => {
                    let at = document_bytes - elements.rest().len() - bytes;
                    is_laid_out &= self.layout.add(LayoutField::new(id, &element, at));
                }
                None => is_laid_out = false,
            }
        }
        let range = is_laid_out.then(|| self.layout.range(start, value_bytes));
        Ok(ScannedFields {
            time: time.map_or(ValueRef::Missing, |element| element.value()),
            meta,
            has_id,
            range: range.flatten(),
        })
    }
}

fn refused_name(name: &str) -> Error {
    Error::new(
        ErrorCode::DollarPrefixedFieldName,
        format!("the field '{name}' of a measurement cannot start with '$'"),
    )
}

/// Rejects a measurement too large for a bucket of its own.
fn check_size(document_bytes: usize, meta_bytes: usize) -> Result<()> {
    // Each value is stored in data, control.min and control.max.
    let bucket_bytes = (document_bytes - meta_bytes) * 3 + meta_bytes;
    if bucket_bytes > BUCKET_BYTES_MAX {
        return Err(Error::new(
            ErrorCode::BSONObjectTooLarge,
            format!(
                "the measurement needs a bucket of {bucket_bytes} bytes; at most {BUCKET_BYTES_MAX} fit"
            ),
        ));
    }
    Ok(())
}

/// Rejects a value with a compressed column anywhere in it: one cannot be compressed again.
#[inline]
pub(crate) fn refuse_column(element: Element<'_>) -> Result<()> {
    // Most types cannot hold one.
    let may_hold = [type_code::BINARY, type_code::DOCUMENT, type_code::ARRAY];
    if may_hold.contains(&element.type_code()) && holds_column(element) {
        return Err(Error::bad_value(
            "a measurement cannot hold binary data of subtype 7, which buckets are made of",
        ));
    }
    Ok(())
}

fn holds_column(element: Element<'_>) -> bool {
    match element.value() {
        ValueRef::Binary { subtype, .. } => subtype == COLUMN_SUBTYPE,
        ValueRef::Document(inner) => inner.iter().any(holds_column),
        ValueRef::Array(inner) => inner.as_document().iter().any(holds_column),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nilometer_bson::{Document, Value, doc};

    fn options() -> TimeseriesOptions {
        let spec = doc! { "timeField": "t", "metaField": "m" };
        TimeseriesOptions::parse(spec.as_ref()).unwrap()
    }

    /// Fields as they are laid out.
    fn laid_out(scanner: &mut FieldScanner<'_>, document: &Document) -> Vec<(String, Value)> {
        let (_, measurement) = scanner.examine(document.as_ref()).unwrap();
        let fields = scanner.layout.fields(measurement.layout_range.unwrap());
        let fields = fields.iter().map(|field| {
            let name = scanner.layout.names.name(field.name_id);
            (name.to_string(), field.value(document.as_ref()).to_value())
        });
        fields.collect()
    }

    #[test]
    fn fields_are_laid_out_whatever_came_before() {
        let options = options();
        let mut scanner = FieldScanner::new(&options, FieldNames::default());
        let time = Value::DateTime(7);
        let documents = [
            doc! { "t": time.clone(), "m": 1, "usage_guest": 1.5, "usage_guest_nice": 2i64, "s": "text" },
            doc! { "t": time.clone(), "m": 1, "usage_guest": 1.5, "usage_guest_nice": 2i64, "s": "text" },
            doc! { "s": "more", "usage_guest_nice": 3, "usage_guest": true, "m": 2, "t": time.clone() },
            doc! { "t": time.clone(), "usage_guest_nice": 3, "a": Value::Null, "s": doc! { "b": 1 } },
            doc! { "t": time.clone(), "s": 1, "s": 2, "": 3, "usage_g": 4, "n": Value::Null },
        ];
        for document in &documents {
            check_laid_out(&mut scanner, document);
        }
    }

    /// The layout has the fields of a plain scan, in some order; of fields given twice the first is in front.
    fn check_laid_out(scanner: &mut FieldScanner<'_>, document: &Document) {
        let fields = document.iter().filter(|field| field.name() != "m");
        let mut expected: Vec<_> = fields
            .map(|field| (field.name().to_owned(), field.value().to_value()))
            .collect();
        let mut found = laid_out(scanner, document);
        expected.sort_by(|a, b| a.0.cmp(&b.0));
        found.sort_by(|a, b| a.0.cmp(&b.0));
        assert_eq!(format!("{found:?}"), format!("{expected:?}"));
    }

    #[test]
    fn generated_documents_are_scanned_as_by_a_plain_iteration() {
        use crate::timeseries::tests::Draw;
        let mut draw = Draw::new(3);
        let options = options();
        let mut scanner = FieldScanner::new(&options, FieldNames::default());
        let mut many = FieldScanner::new(&options, FieldNames::default());
        let long = "x".repeat(30);
        let names = [
            "t",
            "m",
            "_id",
            "a",
            "ab",
            "usage_guest",
            "usage_guest_nice",
            &long,
        ];
        let column = Value::Binary(nilometer_bson::Binary {
            subtype: COLUMN_SUBTYPE,
            bytes: [0].into(),
        });
        for round in 0..3000 {
            let mut out = nilometer_bson::DocumentBuilder::new();
            let mut order: Vec<usize> = (0..names.len()).collect();
            for last in (1..order.len()).rev() {
                order.swap(last, draw.below(last as u64 + 1) as usize);
            }
            for at in order {
                let value = match (names[at], draw.below(40)) {
                    (_, 0) => continue,
                    (_, 1) => column.clone(),
                    (_, 2) => doc! { "x": column.clone() }.into(),
                    (_, 3) => doc! { "x": 1 }.into(),
                    ("t", 4..) => Value::DateTime(draw.below(1000) as i64),
                    (_, 4..15) => (draw.below(90) as f64 / 2.0).into(),
                    (_, 15..25) => Value::Int32(draw.below(90) as i32),
                    (_, 25..30) => Value::Null,
                    _ => "text".into(),
                };
                out.append(names[at], value.clone());
                if draw.below(100) == 0 {
                    out.append(names[at], value);
                }
            }
            let document = out.finish();
            // Sometimes there are more names than slots.
            let mut other = nilometer_bson::DocumentBuilder::new();
            other.append("t", Value::DateTime(1));
            other.append(&format!("n{round}"), 1);
            many.examine(other.finish().as_ref()).unwrap();
            for scanner in [&mut scanner, &mut many] {
                check_examined(scanner, &document);
            }
        }
    }

    fn check_examined(scanner: &mut FieldScanner<'_>, document: &Document) {
        let plain = |name| document.iter().find(|field| field.name() == name);
        let is_column = |value: ValueRef<'_>| matches!(value, ValueRef::Binary { .. });
        let refused = |field: Element<'_>| {
            let within = field.value().as_document();
            let is_within =
                within.is_some_and(|fields| fields.iter().any(|f| is_column(f.value())));
            field.name() != "m" && (is_column(field.value()) || is_within)
        };
        let time = plain("t").map(|field| field.value());
        let is_good = matches!(time, Some(ValueRef::DateTime(_))) && !document.iter().any(refused);
        let examined = scanner.examine(document.as_ref());
        assert_eq!(examined.is_ok(), is_good, "{document:?}");
        let Ok((meta, measurement)) = examined else {
            return;
        };
        let bytes = |field: Element<'_>| (field.name().to_owned(), field.value_bytes().to_vec());
        assert_eq!(meta.map(bytes), plain("m").map(bytes), "{document:?}");
        assert_eq!(measurement.lacks_id, plain("_id").is_none());
        let ms = Value::DateTime(measurement.time_ms).as_ref().to_value();
        assert_eq!(
            format!("{:?}", time.map(|time| time.to_value())),
            format!("{:?}", Some(ms))
        );
        if measurement.layout_range.is_some() {
            check_laid_out(scanner, document);
        }
    }

    #[test]
    fn shuffled_fields_are_laid_out_in_one_order_and_no_longer_predicted() {
        let options = options();
        let mut scanner = FieldScanner::new(&options, FieldNames::default());
        let time = Value::DateTime(7);
        let one = doc! { "t": time.clone(), "a": 1, "b": 2, "c": 3 };
        let other = doc! { "c": 3, "b": 2, "a": 1, "t": time.clone() };
        let names = |found: Vec<(String, Value)>| found.into_iter().map(|(name, _)| name);
        for _ in 0..PREDICTION_SCORE_MAX {
            assert!(names(laid_out(&mut scanner, &one)).eq(["t", "a", "b", "c"]));
            assert!(names(laid_out(&mut scanner, &other)).eq(["t", "a", "b", "c"]));
        }
        assert_eq!(scanner.prediction_score, 0);
        let mut scanner = FieldScanner::new(&options, FieldNames::default());
        for _ in 0..PREDICTION_SCORE_MAX {
            assert!(names(laid_out(&mut scanner, &one)).eq(["t", "a", "b", "c"]));
        }
        // The end of a document is never expected.
        assert!(scanner.prediction_score >= PREDICTION_SCORE_MAX - 1);
    }

    #[test]
    fn time_metadata_and_id_are_found_by_their_names() {
        let options = options();
        let mut scanner = FieldScanner::new(&options, FieldNames::default());
        let document = doc! { "m": "x", "_id": 1, "t": Value::DateTime(7) };
        let (meta, measurement) = scanner.examine(document.as_ref()).unwrap();
        assert!(matches!(meta.unwrap().value(), ValueRef::String("x")));
        assert_eq!((measurement.time_ms, measurement.lacks_id), (7, false));
        for bad in [doc! { "m": 1 }, doc! { "t": 7i64 }] {
            assert!(scanner.examine(bad.as_ref()).is_err());
        }
    }

    #[test]
    fn a_name_that_is_not_utf8_is_not_laid_out() {
        let mut bytes = doc! { "t": Value::DateTime(7), "a": 1 }.as_bytes().to_vec();
        let name = bytes.iter().rposition(|byte| *byte == b'a').unwrap();
        bytes[name] = 0xFF;
        let options = options();
        let mut scanner = FieldScanner::new(&options, FieldNames::default());
        let document = DocRef::new(&bytes).unwrap();
        let (_, measurement) = scanner.examine(document).unwrap();
        assert!(measurement.layout_range.is_none());
    }
}

//! The field scanner: parses documents into measurements, with their time, their metadata and the positions of their fields.
//!
//! Fields are noted in the command's [`FieldLayout`], by the ids of their names. No order of fields is expected: to predict the
//! next name saves nothing beside [`FieldNames::next`]. The contents of metadata are not read here: grouping looks them up.

use nilometer_bson::{DocRef, Element, ValueRef, type_code};

use crate::catalog::TimeseriesOptions;
use crate::error::{Error, ErrorCode, Result};
use crate::timeseries::bucket_catalog::{
    FieldLayout, FieldNames, LayoutField, Measurement, TextNumbers,
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

/// Scans the fields of documents.
pub(crate) struct FieldScanner<'o> {
    options: &'o TimeseriesOptions,
    pub(crate) layout: FieldLayout,
    /// By name id, its role.
    roles: Vec<Role>,
    texts: TextNumbers,
}

impl<'o> FieldScanner<'o> {
    pub(crate) fn new(options: &'o TimeseriesOptions, names: FieldNames) -> Self {
        Self {
            options,
            layout: FieldLayout::new(names),
            roles: Vec::new(),
            texts: TextNumbers::default(),
        }
    }

    #[inline]
    fn role(&mut self, element: &Element<'_>, id: Option<u16>) -> Role {
        match id.map(|id| self.roles.get(usize::from(id))) {
            Some(Some(role)) => *role,
            Some(None) => self.role_of_new(element),
            None => Role::of(element.name_bytes(), self.options),
        }
    }

    /// Finds the roles of new names, and that of this one.
    #[inline(never)]
    fn role_of_new(&mut self, element: &Element<'_>) -> Role {
        let names = &self.layout.names;
        for id in self.roles.len()..names.len() {
            let name = names.name(id as u16).as_bytes();
            self.roles.push(Role::of(name, self.options));
        }
        Role::of(element.name_bytes(), self.options)
    }

    /// Parses a document and lays out its fields; the contents of the metadata are not read.
    pub(crate) fn examine<'a>(
        &mut self,
        document: DocRef<'a>,
    ) -> Result<(Option<Element<'a>>, Measurement<'a>)> {
        let (mut time, mut meta, mut lacks_id) = (None, None, true);
        let (start, mut value_bytes, mut is_laid_out) = (self.layout.next(), 0, true);
        let document_bytes = document.as_bytes().len();
        let mut elements = document.iter();
        while let Some((element, id)) = self.layout.names.next(&mut elements) {
            match self.role(&element, id) {
                Role::Other => {}
                Role::Time => time = time.or(Some(element)),
                Role::Meta => {
                    meta = meta.or(Some(element));
                    continue;
                }
                Role::Id => lacks_id = false,
                Role::Refused => return Err(refused_name(element.name())),
            }
            refuse_column(element)?;
            let bytes = element.value_bytes().len();
            value_bytes += bytes;
            let at = document_bytes - elements.rest().len() - bytes;
            is_laid_out &= id.is_some_and(|id| {
                let field = LayoutField::new(id, &element, at, &mut self.texts);
                self.layout.add(field)
            });
        }
        let Some(ValueRef::DateTime(time_ms)) = time.map(|time| time.value()) else {
            return Err(Error::bad_value(format!(
                "'{}' must be present and contain a valid BSON UTC datetime value",
                self.options.time_field
            )));
        };
        let meta_bytes = meta.map_or(0, |element| element.value_bytes().len());
        check_size(document_bytes, meta_bytes)?;
        let range = is_laid_out.then(|| self.layout.range(start, value_bytes));
        let measurement = Measurement {
            index: 0,
            time_ms,
            lacks_id,
            generated_id: None,
            document,
            layout_range: range.flatten(),
        };
        Ok((meta, measurement))
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
    let may_hold = matches!(
        element.type_code(),
        type_code::BINARY | type_code::DOCUMENT | type_code::ARRAY
    );
    if may_hold && holds_column(element) {
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
    fn fields_in_any_order_have_the_ids_of_their_names() {
        let options = options();
        let mut scanner = FieldScanner::new(&options, FieldNames::default());
        let time = Value::DateTime(7);
        let one = doc! { "_id": 1, "t": time.clone(), "m": 0, "a": 1, "b": 2 };
        let other = doc! { "b": 2, "m": 0, "a": 1, "t": time.clone(), "_id": 1 };
        let mut ids = |document: &Document| {
            let (_, measurement) = scanner.examine(document.as_ref()).unwrap();
            let fields = scanner.layout.fields(measurement.layout_range.unwrap());
            let ids: Vec<u16> = fields.iter().map(|field| field.name_id).collect();
            ids
        };
        assert_eq!(ids(&one), [0, 1, 3, 4]);
        assert_eq!(ids(&other), [4, 3, 1, 0]);
        assert_eq!(ids(&one), [0, 1, 3, 4]);
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

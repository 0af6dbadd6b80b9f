//! A look at documents before they are measurements: their time, their metadata, and where their fields are.
//!
//! Documents of one command mostly have the same fields. The walker remembers what came behind each name, so that names are
//! compared with what is expected, and notes the fields in the command's [`Plan`]; what metadata holds is left for
//! a look at the series it names.

use nilometer_bson::document::Elements;
use nilometer_bson::{DocRef, Element, ValueRef, type_code};

use super::bucket_catalog::{Beginning, Measurement, Names, Plan};
use super::bucket_document::COLUMN_SUBTYPE;
use crate::catalog::TimeseriesOptions;
use crate::error::{Error, ErrorCode, Result};

/// The largest bucket document, in bytes: the largest BSON document.
const BUCKET_BYTES_MAX: usize = 16 << 20;

/// Looks at one document: its time, and the element that names its series.
pub(super) fn examine<'a>(
    document: DocRef<'a>,
    options: &TimeseriesOptions,
) -> Result<(Option<Element<'a>>, Measurement<'a>)> {
    let (meta, measurement) = Walker::new(options, Names::default()).examine(document)?;
    meta.map_or(Ok(()), refuse_column)?;
    Ok((meta, measurement))
}

/// What a field of a measurement is.
#[derive(Clone, Copy)]
enum Role {
    Time,
    Meta,
    Id,
    Other,
}

impl Role {
    fn of(name: &[u8], options: &TimeseriesOptions) -> Self {
        let meta_field = options.meta_field.as_deref();
        match name {
            _ if name == options.time_field.as_bytes() => Self::Time,
            _ if meta_field.is_some_and(|meta| meta.as_bytes() == name) => Self::Meta,
            b"_id" => Self::Id,
            _ => Self::Other,
        }
    }
}

/// Walks the fields of documents, which mostly have the same ones: the next is told by what came behind the one before it the
/// last time, else by how its name begins, and only then is its name read to the end.
pub(super) struct Walker<'o> {
    options: &'o TimeseriesOptions,
    pub(super) plan: Plan,
    /// What the names of the plan stand for.
    roles: Vec<Role>,
    /// The names that came behind them, with that of the first field in front.
    behind: Vec<Option<u16>>,
    /// What expecting a name is worth: it pays as long as documents repeat the order of their fields.
    trust: u32,
}

/// The most that expecting a name is worth, in names that were not those expected.
const TRUST_MAX: u32 = 256;

/// What a name adds that was.
const TRUST_STEP: u32 = 2;

impl<'o> Walker<'o> {
    pub(super) fn new(options: &'o TimeseriesOptions, names: Names) -> Self {
        Self {
            options,
            plan: Plan::new(names),
            roles: Vec::new(),
            behind: Vec::new(),
            trust: TRUST_MAX,
        }
    }

    /// The element at the front, and the place of its name if it has one; `before` is that of the one before it.
    #[inline]
    fn next<'a>(
        &mut self,
        before: Option<u16>,
        elements: &mut Elements<'a>,
    ) -> Option<(Element<'a>, Option<u16>)> {
        let names = &self.plan.names;
        // Behind the type comes the name.
        let name = elements.rest().get(1..);
        let mut take = |place: u16| {
            let element = elements.next_known(names.known(place)?)?;
            Some((element, Some(place)))
        };
        let link = before.map_or(0, |before| usize::from(before) + 1);
        if self.trust > 0 {
            let expected = self.behind.get(link).copied().flatten();
            if let Some(found) = expected.and_then(&mut take) {
                self.trust = TRUST_MAX.min(self.trust + TRUST_STEP);
                return Some(found);
            }
            self.trust -= 1;
        }
        let beginning = name.and_then(Beginning::at);
        let alike = beginning.and_then(|beginning| names.alike(beginning).find_map(&mut take));
        let (element, place) = match alike {
            Some(found) => found,
            None => {
                let element = elements.next()?;
                (element, self.plan.names.place(element.name_bytes()))
            }
        };
        if place.is_some() && self.trust > 0 {
            if self.behind.len() <= link {
                self.behind.resize(link + 1, None);
            }
            if let Some(behind) = self.behind.get_mut(link) {
                *behind = place;
            }
        }
        Some((element, place))
    }

    #[inline]
    fn role(&mut self, element: &Element<'_>, place: Option<u16>) -> Role {
        let known = place.and_then(|place| self.roles.get(usize::from(place)));
        if let Some(role) = known {
            return *role;
        }
        let names = &self.plan.names;
        for place in self.roles.len()..names.len() {
            let name = u16::try_from(place).ok().and_then(|at| names.name(at));
            let name = name.map_or(&[][..], |name| name.as_bytes());
            self.roles.push(Role::of(name, self.options));
        }
        Role::of(element.name_bytes(), self.options)
    }

    /// Looks at a document and plans its fields; what the metadata holds is left for a look at the series.
    pub(super) fn examine<'a>(
        &mut self,
        document: DocRef<'a>,
    ) -> Result<(Option<Element<'a>>, Measurement<'a>)> {
        let (mut time, mut meta, mut has_id) = (None, None, false);
        let (start, mut value_bytes, mut is_planned) = (self.plan.next(), 0, true);
        let document_bytes = document.as_bytes().len();
        let mut elements = document.iter();
        let mut before = None;
        while let Some((element, place)) = self.next(before, &mut elements) {
            before = place;
            match self.role(&element, place) {
                Role::Time => time = time.or(Some(element)),
                Role::Meta => {
                    meta = meta.or(Some(element));
                    continue;
                }
                Role::Id => has_id = true,
                Role::Other => {}
            }
            refuse_column(element)?;
            let bytes = element.value_bytes().len();
            value_bytes += bytes;
            match place {
                Some(place) => {
                    let at = document_bytes - elements.rest().len() - bytes;
                    is_planned &= self.plan.add(place, &element, at);
                }
                None => is_planned = false,
            }
        }
        let Some(ValueRef::DateTime(time_ms)) = time.map(|element| element.value()) else {
            return Err(Error::bad_value(format!(
                "'{}' must be present and contain a valid BSON UTC datetime value",
                self.options.time_field
            )));
        };
        let meta_bytes = meta.map_or(0, |element| element.value_bytes().len());
        check_size(document_bytes, meta_bytes)?;
        let walked = is_planned.then(|| self.plan.walked(start, value_bytes));
        let measurement = Measurement {
            index: 0,
            time_ms,
            lacks_id: !has_id,
            generated_id: None,
            document,
            walked: walked.flatten(),
        };
        Ok((meta, measurement))
    }
}

/// Refuses a measurement that does not fit into a bucket of its own.
fn check_size(document_bytes: usize, meta_bytes: usize) -> Result<()> {
    // There each value stands in data, control.min and control.max.
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

/// Refuses a value with a compressed column anywhere in it: one cannot be compressed again.
#[inline]
pub(super) fn refuse_column(element: Element<'_>) -> Result<()> {
    // Most values need no decoding to be told apart.
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

    /// Fields as they are planned.
    fn planned(walker: &mut Walker<'_>, document: &Document) -> Vec<(String, Value)> {
        let (_, measurement) = walker.examine(document.as_ref()).unwrap();
        let fields = walker.plan.fields(measurement.walked.unwrap());
        let fields = fields.iter().map(|field| {
            let name = walker.plan.names.name(field.name).unwrap();
            (name.to_string(), field.value(document.as_ref()).to_value())
        });
        fields.collect()
    }

    #[test]
    fn fields_are_planned_whatever_came_before() {
        let options = options();
        let mut walker = Walker::new(&options, Names::default());
        let time = Value::DateTime(7);
        let documents = [
            doc! { "t": time.clone(), "m": 1, "usage_guest": 1.5, "usage_guest_nice": 2i64, "s": "text" },
            doc! { "t": time.clone(), "m": 1, "usage_guest": 1.5, "usage_guest_nice": 2i64, "s": "text" },
            doc! { "s": "more", "usage_guest_nice": 3, "usage_guest": true, "m": 2, "t": time.clone() },
            doc! { "t": time.clone(), "usage_guest_nice": 3, "a": Value::Null, "s": doc! { "b": 1 } },
            doc! { "t": time.clone(), "s": 1, "s": 2, "": 3, "usage_g": 4, "n": Value::Null },
        ];
        for document in &documents {
            let fields = document.iter().filter(|field| field.name() != "m");
            let expected: Vec<_> = fields
                .map(|field| (field.name().to_owned(), field.value().to_value()))
                .collect();
            let found = planned(&mut walker, document);
            assert_eq!(format!("{found:?}"), format!("{expected:?}"));
        }
    }

    #[test]
    fn where_fields_come_in_any_order_none_is_expected_any_more() {
        let options = options();
        let mut walker = Walker::new(&options, Names::default());
        let time = Value::DateTime(7);
        let one = doc! { "t": time.clone(), "a": 1, "b": 2, "c": 3 };
        let other = doc! { "c": 3, "b": 2, "a": 1, "t": time.clone() };
        let names = |found: Vec<(String, Value)>| found.into_iter().map(|(name, _)| name);
        for _ in 0..TRUST_MAX {
            assert!(names(planned(&mut walker, &one)).eq(["t", "a", "b", "c"]));
            assert!(names(planned(&mut walker, &other)).eq(["c", "b", "a", "t"]));
        }
        assert_eq!(walker.trust, 0);
        let mut walker = Walker::new(&options, Names::default());
        for _ in 0..TRUST_MAX {
            assert!(names(planned(&mut walker, &one)).eq(["t", "a", "b", "c"]));
        }
        // The end of a document is never expected.
        assert!(walker.trust >= TRUST_MAX - 1);
    }

    #[test]
    fn time_metadata_and_identity_are_told_by_their_names() {
        let options = options();
        let mut walker = Walker::new(&options, Names::default());
        let document = doc! { "m": "x", "_id": 1, "t": Value::DateTime(7) };
        let (meta, measurement) = walker.examine(document.as_ref()).unwrap();
        assert!(matches!(meta.unwrap().value(), ValueRef::String("x")));
        assert_eq!((measurement.time_ms, measurement.lacks_id), (7, false));
        for bad in [doc! { "m": 1 }, doc! { "t": 7i64 }] {
            assert!(walker.examine(bad.as_ref()).is_err());
        }
    }

    #[test]
    fn a_name_that_is_no_text_is_left_to_a_closer_look() {
        let mut bytes = doc! { "t": Value::DateTime(7), "a": 1 }.as_bytes().to_vec();
        let name = bytes.iter().rposition(|byte| *byte == b'a').unwrap();
        bytes[name] = 0xFF;
        let options = options();
        let mut walker = Walker::new(&options, Names::default());
        let document = DocRef::new(&bytes).unwrap();
        let (_, measurement) = walker.examine(document).unwrap();
        assert!(measurement.walked.is_none());
    }
}

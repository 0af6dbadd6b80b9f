//! The `timeseries` document of `create`: fields and bucket widths.
//!
//! Either a granularity determines span and rounding, or both are given and equal. Combinations and their
//! errors follow the public manual and the behaviour of MongoDB 8.0.

use nilometer_bson::{DocRef, Document, DocumentBuilder, ValueRef};

use crate::error::{Error, Result};

/// The widest span a bucket may have: 365 days.
pub const BUCKET_SPAN_SECONDS_MAX: i32 = 31_536_000;

/// The expected distance of the measurements of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Granularity {
    /// Buckets of an hour that start at a full minute.
    Seconds,
    /// Buckets of a day that start at a full hour.
    Minutes,
    /// Buckets of 30 days that start at a full day.
    Hours,
}

impl Granularity {
    /// Returns its name in options.
    pub fn name(self) -> &'static str {
        match self {
            Self::Seconds => "seconds",
            Self::Minutes => "minutes",
            Self::Hours => "hours",
        }
    }

    fn parse(name: &str) -> Option<Self> {
        [Self::Seconds, Self::Minutes, Self::Hours]
            .into_iter()
            .find(|g| g.name() == name)
    }

    /// Returns the widest time between the start of a bucket and a measurement in it, exclusive.
    pub fn span_seconds(self) -> i32 {
        match self {
            Self::Seconds => 3_600,
            Self::Minutes => 86_400,
            Self::Hours => 2_592_000,
        }
    }

    /// Returns the unit to which the start of a bucket is rounded down.
    pub fn rounding_seconds(self) -> i32 {
        match self {
            Self::Seconds => 60,
            Self::Minutes => 3_600,
            Self::Hours => 86_400,
        }
    }
}

/// The action taken on an inserted measurement whose series has one of the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DuplicatePolicy {
    /// Both are kept, as in MongoDB.
    #[default]
    Keep,
    /// The new one is acknowledged and discarded.
    Ignore,
    /// The new one replaces the existing one.
    Replace,
    /// The existing one gets the fields of the new one, and keeps the others.
    Merge,
    /// The new one is refused with code 11000.
    Error,
}

impl DuplicatePolicy {
    /// All actions, in documented order.
    const ALL: [Self; 5] = [
        Self::Keep,
        Self::Ignore,
        Self::Replace,
        Self::Merge,
        Self::Error,
    ];

    /// True if an insert changes the stored measurement.
    pub(crate) fn changes_stored(self) -> bool {
        matches!(self, Self::Replace | Self::Merge)
    }

    /// Returns its name in options.
    pub fn name(self) -> &'static str {
        match self {
            Self::Keep => "keep",
            Self::Ignore => "ignore",
            Self::Replace => "replace",
            Self::Merge => "merge",
            Self::Error => "error",
        }
    }

    /// Parses the field `nilometer` of a command's `timeseries` option, an extension to MongoDB.
    pub(crate) fn parse_extension(command: &str, value: ValueRef<'_>) -> Result<Option<Self>> {
        let place = format!("{command}.timeseries.{EXTENSION}");
        let ValueRef::Document(spec) = value else {
            return Err(Error::wrong_field_type(&place, value, "object"));
        };
        let mut duplicates = None;
        for element in spec {
            let name = format!("{place}.{}", element.name());
            if element.name() != "duplicates" {
                return Err(Error::unknown_field(name));
            }
            let ValueRef::String(text) = element.value() else {
                let found = element.value();
                return Err(Error::wrong_field_type(&name, found, "string"));
            };
            let known = Self::ALL.into_iter().find(|known| known.name() == text);
            duplicates = Some(known.ok_or_else(|| {
                Error::bad_value(format!(
                    "Enumeration value '{text}' for field '{name}' is not a valid value."
                ))
            })?);
        }
        Ok(duplicates)
    }
}

/// The field of the `timeseries` option that holds extensions to MongoDB.
pub const EXTENSION: &str = "nilometer";

/// The options of a time-series collection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimeseriesOptions {
    /// The field that holds the time of a measurement.
    pub time_field: String,
    /// The field that identifies the series.
    pub meta_field: Option<String>,
    /// `None` if span and rounding were given.
    pub granularity: Option<Granularity>,
    /// Widest time between the start of a bucket and its measurements, in seconds, exclusive.
    pub span_seconds: i32,
    /// The unit to which the start of a bucket is rounded down, in seconds.
    pub rounding_seconds: i32,
    /// The duplicates option, if it was set.
    pub duplicates: Option<DuplicatePolicy>,
}

impl TimeseriesOptions {
    /// Parses the `timeseries` option of `create`.
    pub fn parse(spec: DocRef<'_>) -> Result<Self> {
        let mut time_field = None;
        let mut meta_field = None;
        let mut granularity = None;
        let mut span = None;
        let mut rounding = None;
        let mut duplicates = None;
        for element in spec {
            match (element.name(), element.value()) {
                ("timeField", value) => time_field = Some(field_name("timeField", value)?),
                ("metaField", value) => meta_field = Some(field_name("metaField", value)?),
                ("granularity", ValueRef::String(name)) => {
                    granularity = Some(Granularity::parse(name).ok_or_else(|| {
                        Error::bad_value(format!(
                            "Enumeration value '{name}' for field 'create.timeseries.granularity' is not a valid value."
                        ))
                    })?);
                }
                ("granularity", other) => return Err(wrong_type("granularity", other, "string")),
                ("bucketMaxSpanSeconds", value) => {
                    span = Some(seconds("bucketMaxSpanSeconds", value)?);
                }
                ("bucketRoundingSeconds", value) => {
                    rounding = Some(seconds("bucketRoundingSeconds", value)?);
                }
                (EXTENSION, value) => {
                    duplicates = DuplicatePolicy::parse_extension("create", value)?
                }
                (other, _) => {
                    return Err(Error::unknown_field(format_args!(
                        "create.timeseries.{other}"
                    )));
                }
            }
        }
        let time_field =
            time_field.ok_or_else(|| Error::missing_field("create.timeseries.timeField"))?;
        if meta_field.as_ref() == Some(&time_field) {
            return Err(Error::invalid_options(
                "'timeField' and 'metaField' cannot be the same field",
            ));
        }
        if meta_field.as_deref() == Some("_id") || time_field == "_id" {
            return Err(Error::invalid_options(
                "'timeField' and 'metaField' cannot be '_id'",
            ));
        }
        let (granularity, span_seconds, rounding_seconds) = widths(granularity, span, rounding)?;
        Ok(Self {
            time_field,
            meta_field,
            granularity,
            span_seconds,
            rounding_seconds,
            duplicates,
        })
    }

    /// True if a collection with these options satisfies `create` with the options `asked`. A missing
    /// duplicates option accepts any.
    pub fn satisfies(&self, asked: &Self) -> bool {
        let duplicates = asked.duplicates.or(self.duplicates);
        *self
            == Self {
                duplicates,
                ..asked.clone()
            }
    }

    /// True if buckets are as wide as those of `other`.
    pub fn has_widths_of(&self, other: &Self) -> bool {
        self.span_seconds == other.span_seconds && self.rounding_seconds == other.rounding_seconds
    }

    /// Returns the options as `listCollections` shows them.
    pub fn to_document(&self) -> Document {
        let mut out = DocumentBuilder::new();
        out.append("timeField", self.time_field.as_str());
        out.append("metaField", self.meta_field.as_deref());
        out.append("granularity", self.granularity.map(Granularity::name));
        out.append("bucketMaxSpanSeconds", self.span_seconds);
        if self.granularity.is_none() {
            out.append("bucketRoundingSeconds", self.rounding_seconds);
        }
        if let Some(duplicates) = self.duplicates {
            out.begin_document(EXTENSION);
            out.append("duplicates", duplicates.name());
            out.end();
        }
        out.finish()
    }

    /// Returns the span in ms.
    pub fn span_ms(&self) -> i64 {
        i64::from(self.span_seconds) * 1000
    }

    /// True if a bucket that starts at `start_ms` may hold a measurement at `time_ms`.
    pub fn spans(&self, start_ms: i64, time_ms: i64) -> bool {
        // Saturating: the two may lie at both ends of the time range.
        time_ms >= start_ms && time_ms.saturating_sub(start_ms) < self.span_ms()
    }

    /// Returns the start of the bucket that a measurement at `time_ms` opens: rounded down, also before 1970.
    pub fn round_down_ms(&self, time_ms: i64) -> i64 {
        let step = i64::from(self.rounding_seconds) * 1000;
        time_ms.saturating_sub(time_ms.rem_euclid(step))
    }

    /// True if span and rounding are equal, so that buckets neither overlap nor move.
    pub fn has_fixed_buckets(&self) -> bool {
        self.span_seconds == self.rounding_seconds
    }
}

type Widths = (Option<Granularity>, i32, i32);

/// Determines granularity, span and rounding from the options given.
fn widths(
    granularity: Option<Granularity>,
    span: Option<i32>,
    rounding: Option<i32>,
) -> Result<Widths> {
    match (granularity, span, rounding) {
        (None, Some(span), Some(rounding)) if span == rounding => Ok((None, span, rounding)),
        (_, span, None) => {
            let chosen = granularity.unwrap_or(Granularity::Seconds);
            let own = chosen.span_seconds();
            match span {
                Some(_) if granularity.is_none() => Err(Error::invalid_options(
                    "Timeseries 'bucketMaxSpanSeconds' and 'bucketRoundingSeconds' need to be set alongside each other",
                )),
                Some(span) if span != own => Err(Error::invalid_options(format!(
                    "Timeseries 'bucketMaxSpanSeconds' needs to be set to {own} for granularity '{}'",
                    chosen.name()
                ))),
                _ => Ok((Some(chosen), own, chosen.rounding_seconds())),
            }
        }
        (Some(_), _, Some(_)) => Err(Error::invalid_options(
            "Timeseries 'bucketRoundingSeconds' cannot be set with granularity",
        )),
        _ => Err(Error::invalid_options(
            "Timeseries 'bucketMaxSpanSeconds' and 'bucketRoundingSeconds' must be set and equal",
        )),
    }
}

fn field_name(option: &str, value: ValueRef<'_>) -> Result<String> {
    let ValueRef::String(name) = value else {
        return Err(wrong_type(option, value, "string"));
    };
    if name.contains('\0') {
        return Err(Error::bad_value(format!(
            "'{option}' cannot contain a null byte"
        )));
    }
    if name.contains('.') {
        return Err(Error::invalid_options(format!(
            "'{option}' must be a top-level field"
        )));
    }
    Ok(name.to_owned())
}

fn seconds(option: &str, value: ValueRef<'_>) -> Result<i32> {
    let exact = value
        .as_exact_i64()
        .ok_or_else(|| wrong_type(option, value, "int"))?;
    i32::try_from(exact)
        .ok()
        .filter(|n| (1..=BUCKET_SPAN_SECONDS_MAX).contains(n))
        .ok_or_else(|| {
            Error::bad_value(format!(
                "BSON field '{option}' value must be >= 1 and <= {BUCKET_SPAN_SECONDS_MAX}, actual value '{exact}'"
            ))
        })
}

fn wrong_type(option: &str, value: ValueRef<'_>, expected: &str) -> Error {
    Error::wrong_field_type(format_args!("create.timeseries.{option}"), value, expected)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nilometer_bson::{Value, doc};

    fn parse(spec: Document) -> Result<TimeseriesOptions> {
        TimeseriesOptions::parse(spec.as_ref())
    }

    fn code(spec: Document) -> i32 {
        parse(spec).unwrap_err().code.0
    }

    #[test]
    fn granularity_determines_span_and_rounding() {
        for (name, span, rounding) in [
            ("seconds", 3600, 60),
            ("minutes", 86400, 3600),
            ("hours", 2_592_000, 86400),
        ] {
            let own = parse(doc! { "timeField": "t", "granularity": name }).unwrap();
            assert_eq!((own.span_seconds, own.rounding_seconds), (span, rounding));
            let given =
                doc! { "timeField": "t", "granularity": name, "bucketMaxSpanSeconds": span };
            assert_eq!(parse(given).unwrap(), own);
        }
        assert_eq!(parse(doc! { "timeField": "t" }).unwrap().span_seconds, 3600);
    }

    #[test]
    fn invalid_combinations_are_refused() {
        let t = "t";
        assert_eq!(
            code(doc! { "timeField": t, "granularity": "minutes", "bucketMaxSpanSeconds": 3600 }),
            72
        );
        assert_eq!(
            code(
                doc! { "timeField": t, "granularity": "seconds", "bucketMaxSpanSeconds": 3600, "bucketRoundingSeconds": 60 }
            ),
            72
        );
        assert_eq!(
            code(doc! { "timeField": t, "bucketMaxSpanSeconds": 3600 }),
            72
        );
        assert_eq!(
            code(doc! { "timeField": t, "bucketRoundingSeconds": 3600 }),
            72
        );
        assert_eq!(
            code(doc! { "timeField": t, "bucketMaxSpanSeconds": 100, "bucketRoundingSeconds": 50 }),
            72
        );
        assert_eq!(
            code(doc! { "timeField": t, "bucketMaxSpanSeconds": -1, "bucketRoundingSeconds": -1 }),
            2
        );
        assert_eq!(code(doc! { "timeField": t, "granularity": "days" }), 2);
        assert_eq!(code(doc! { "timeField": 5 }), 14);
        assert_eq!(code(doc! { "timeField": "a.b" }), 72);
        assert_eq!(code(doc! { "timeField": "a\0" }), 2);
        assert_eq!(code(doc! { "timeField": t, "metaField": t }), 72);
        assert_eq!(code(doc! { "metaField": t }), 40414);
        assert_eq!(
            code(doc! { "timeField": t, "surprise": Value::Null }),
            40415
        );
    }

    #[test]
    fn the_duplicates_option_is_an_extension_field() {
        let of = |value: Value| doc! { "timeField": "t", "nilometer": value };
        let asked = |name: &str| of(doc! { "duplicates": name }.into());
        for known in DuplicatePolicy::ALL {
            let options = parse(asked(known.name())).unwrap();
            assert_eq!(options.duplicates, Some(known));
            assert_eq!(parse(options.to_document()).unwrap(), options);
        }
        assert_eq!(code(asked("drop")), 2);
        assert_eq!(code(of(1.into())), 14);
        assert_eq!(code(of(doc! { "duplicates": 1 }.into())), 14);
        assert_eq!(code(of(doc! { "duplicate": "keep" }.into())), 40415);
        let without = parse(doc! { "timeField": "t" }).unwrap();
        assert!(without.to_document().get("nilometer").is_missing());
        let ignore = parse(asked("ignore")).unwrap();
        assert!(ignore.satisfies(&without) && ignore.satisfies(&ignore));
        assert!(!without.satisfies(&ignore) && !ignore.satisfies(&parse(asked("keep")).unwrap()));
    }

    #[test]
    fn custom_widths_replace_granularity() {
        let options = parse(
            doc! { "timeField": "t", "bucketMaxSpanSeconds": 200, "bucketRoundingSeconds": 200 },
        )
        .unwrap();
        assert!(options.has_fixed_buckets());
        let shown = options.to_document();
        assert!(shown.get("granularity").is_missing());
        assert_eq!(shown.get("bucketRoundingSeconds").as_exact_i64(), Some(200));
    }

    #[test]
    fn starts_round_down_also_before_1970() {
        let hours = parse(doc! { "timeField": "t", "granularity": "hours" }).unwrap();
        assert_eq!(hours.round_down_ms(-3_600_000), -86_400_000);
        assert_eq!(hours.round_down_ms(3_600_000), 0);
    }
}

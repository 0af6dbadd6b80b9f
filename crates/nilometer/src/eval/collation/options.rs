//! A collation document: its fields, their types and ranges, and the defaults of the locale.
//!
//! | field | values | default |
//! |---|---|---|
//! | `locale` | a locale of MongoDB's list, or `simple` | required |
//! | `caseLevel` | bool | false |
//! | `caseFirst` | `off`, `lower`, `upper` | of the locale |
//! | `strength` | 1 to 5 | 3 |
//! | `numericOrdering` | bool | false |
//! | `alternate` | `non-ignorable`, `shifted` | of the locale |
//! | `maxVariable` | `punct`, `space` | `punct` |
//! | `normalization` | bool; stored and shown, comparison always normalizes | by locale |
//! | `backwards` | bool | of the locale |
//! | `version` | `57.1`, the version of ICU that MongoDB names | |
//!
//! A null counts as an absent field.

use nilometer_bson::extjson::value_to_relaxed;
use nilometer_bson::number::Number;
use nilometer_bson::{DocRef, Document, DocumentBuilder, ValueRef};

use super::locale::{self, LocaleLookup};
use crate::error::{Error, ErrorCode, Result, location};

/// The locale name of the simple collation.
const SIMPLE: &str = "simple";

/// The ICU version that MongoDB reports and that clients may send back.
const VERSION: &str = "57.1";

const STRENGTH_MIN: i64 = 1;
const STRENGTH_MAX: i64 = 5;

const FIELDS: &[&str] = &[
    "locale",
    "caseLevel",
    "caseFirst",
    "strength",
    "numericOrdering",
    "alternate",
    "maxVariable",
    "normalization",
    "backwards",
    "version",
];

const CASE_FIRST: &[(&str, CaseFirst)] = &[
    ("off", CaseFirst::Off),
    ("lower", CaseFirst::Lower),
    ("upper", CaseFirst::Upper),
];
const ALTERNATE: &[(&str, bool)] = &[("non-ignorable", false), ("shifted", true)];
const MAX_VARIABLE: &[(&str, bool)] = &[("punct", false), ("space", true)];

/// Which case sorts first if strings differ only in case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CaseFirst {
    Off,
    Lower,
    Upper,
}

/// The options of a collation, including defaults. Equal options define the same order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollationOptions {
    /// As written by the user.
    pub(super) locale: String,
    /// Name in the Unicode data.
    pub(super) tag: String,
    pub(super) case_level: bool,
    pub(super) case_first: CaseFirst,
    /// 1 to 5.
    pub(super) strength: u8,
    pub(super) numeric_ordering: bool,
    /// `alternate: "shifted"`.
    pub(super) shifted: bool,
    /// `maxVariable: "space"`.
    pub(super) only_space: bool,
    pub(super) normalization: bool,
    pub(super) backwards: bool,
}

impl CollationOptions {
    /// Parses a collation document, named `path` in errors; `None` for `{locale: "simple"}`.
    pub fn parse(spec: DocRef<'_>, path: &str) -> Result<Option<Self>> {
        let fields = OptionFields { spec, path };
        fields.check_names()?;
        let locale = match fields.get("locale") {
            None => return Err(fields.missing("locale")),
            Some(ValueRef::String(locale)) => locale,
            Some(other) => return Err(fields.wrong_type("locale", other, "type 'string'")),
        };
        let defaults = locale::defaults(locale);
        let mut options = Self {
            locale: locale.to_owned(),
            tag: String::new(),
            case_level: fields.boolean("caseLevel")?.unwrap_or(false),
            case_first: fields.one_of("caseFirst", CASE_FIRST)?.unwrap_or(
                match defaults.upper_first {
                    true => CaseFirst::Upper,
                    false => CaseFirst::Off,
                },
            ),
            strength: fields.strength()?,
            numeric_ordering: fields.boolean("numericOrdering")?.unwrap_or(false),
            shifted: fields
                .one_of("alternate", ALTERNATE)?
                .unwrap_or(defaults.shifted),
            only_space: fields.one_of("maxVariable", MAX_VARIABLE)?.unwrap_or(false),
            normalization: fields
                .boolean("normalization")?
                .unwrap_or(defaults.normalization),
            backwards: fields.backwards()?.unwrap_or(defaults.backwards),
        };
        fields.check_version()?;
        if locale == SIMPLE {
            return Ok(None);
        }
        match locale::find(locale) {
            LocaleLookup::Locale(tag) => options.tag = tag,
            LocaleLookup::WithoutData => {
                return Err(Error::new(
                    ErrorCode::CommandNotSupported,
                    format!("the collation '{locale}' is not supported by this version"),
                ));
            }
            LocaleLookup::Unknown(similar_locale) => {
                let hint = similar_locale.map_or_else(String::new, |similar_locale| {
                    format!(". Did you mean '{similar_locale}'?")
                });
                return Err(Error::bad_value(format!(
                    "Field 'locale' is invalid in: {}{hint}",
                    format_document(spec)
                )));
            }
        }
        Ok(Some(options))
    }

    /// Returns all options as shown in listings.
    pub fn to_document(&self) -> Document {
        let mut out = DocumentBuilder::new();
        out.append("locale", self.locale.as_str());
        out.append("caseLevel", self.case_level);
        out.append("caseFirst", name_of(CASE_FIRST, &self.case_first));
        out.append("strength", i32::from(self.strength));
        out.append("numericOrdering", self.numeric_ordering);
        out.append("alternate", name_of(ALTERNATE, &self.shifted));
        out.append("maxVariable", name_of(MAX_VARIABLE, &self.only_space));
        out.append("normalization", self.normalization);
        out.append("backwards", self.backwards);
        out.append("version", VERSION);
        out.finish()
    }
}

fn name_of<T: PartialEq>(names: &[(&'static str, T)], value: &T) -> &'static str {
    let found = names.iter().find(|(_, known)| known == value);
    found.map_or("", |(name, _)| name)
}

/// Formats a flat document as in MongoDB's messages.
pub(super) fn format_document(spec: DocRef<'_>) -> String {
    let fields: Vec<String> = spec
        .iter()
        .map(|e| format!("{}: {}", e.name(), value_to_relaxed(e.value())))
        .collect();
    format!("{{ {} }}", fields.join(", "))
}

/// The document, and its name in errors.
struct OptionFields<'a> {
    spec: DocRef<'a>,
    path: &'a str,
}

impl<'a> OptionFields<'a> {
    fn check_names(&self) -> Result<()> {
        for (at, element) in self.spec.iter().enumerate() {
            let name = element.name();
            if !FIELDS.contains(&name) {
                return Err(Error::unknown_field(format_args!("{}.{name}", self.path)));
            }
            if self.spec.iter().take(at).any(|e| e.name() == name) {
                return Err(Error::duplicate_field(format_args!("{}.{name}", self.path)));
            }
        }
        Ok(())
    }

    fn get(&self, name: &str) -> Option<ValueRef<'a>> {
        match self.spec.get(name) {
            ValueRef::Missing | ValueRef::Null | ValueRef::Undefined => None,
            value => Some(value),
        }
    }

    fn missing(&self, name: &str) -> Error {
        Error::missing_field(format_args!("{}.{name}", self.path))
    }

    fn wrong_type(&self, name: &str, found: ValueRef<'_>, expected: &str) -> Error {
        Error::type_mismatch(format!(
            "BSON field '{}.{name}' is the wrong type '{}', expected {expected}",
            self.path,
            found.type_name()
        ))
    }

    fn no_such_value(&self, name: &str, found: &str) -> Error {
        Error::bad_value(format!(
            "Enumeration value '{found}' for field '{}.{name}' is not a valid value.",
            self.path
        ))
    }

    fn boolean(&self, name: &str) -> Result<Option<bool>> {
        match self.get(name) {
            None => Ok(None),
            Some(ValueRef::Bool(value)) => Ok(Some(value)),
            Some(other) => Err(self.wrong_type(name, other, "type 'bool'")),
        }
    }

    /// Parses `backwards`, which has its own error text.
    fn backwards(&self) -> Result<Option<bool>> {
        match self.get("backwards") {
            None => Ok(None),
            Some(ValueRef::Bool(value)) => Ok(Some(value)),
            Some(other) => Err(Error::type_mismatch(format!(
                "Field 'backwards' should be a boolean value, but found: {}",
                other.type_name()
            ))),
        }
    }

    fn one_of<T: Copy>(&self, name: &str, values: &[(&str, T)]) -> Result<Option<T>> {
        match self.get(name) {
            None => Ok(None),
            Some(ValueRef::String(found)) => match values.iter().find(|(known, _)| *known == found)
            {
                Some((_, value)) => Ok(Some(*value)),
                None => Err(self.no_such_value(name, found)),
            },
            Some(other) => Err(self.wrong_type(name, other, "type 'string'")),
        }
    }

    /// Parses a number of any type, truncated to an integer.
    fn strength(&self) -> Result<u8> {
        const DEFAULT: u8 = 3;
        let Some(value) = self.get("strength") else {
            return Ok(DEFAULT);
        };
        let Some(number) = Number::of(value) else {
            let expected = "types '[double, decimal, long, int]'";
            return Err(self.wrong_type("strength", value, expected));
        };
        let number = number.to_f64() as i64;
        // MongoDB first checks the range from 0 and then that the number is one of its five.
        let out_of_bounds = |bound: &str| {
            let text =
                format!("BSON field 'strength' value must be {bound}, actual value '{number}'");
            Err(Error::location(location::OPTION_OUT_OF_BOUNDS, text))
        };
        match number {
            ..0 => out_of_bounds(">= 0"),
            0 => Err(self.no_such_value("strength", "0")),
            STRENGTH_MIN..=STRENGTH_MAX => Ok(u8::try_from(number).unwrap_or(DEFAULT)),
            _ => out_of_bounds("<= 5"),
        }
    }

    fn check_version(&self) -> Result<()> {
        match self.get("version") {
            None | Some(ValueRef::String(VERSION)) => Ok(()),
            Some(ValueRef::String(other)) => Err(Error::new(
                ErrorCode::IncompatibleCollationVersion,
                format!(
                    "Requested collation version {other} but the only available collator version \
                     was {VERSION}. Requested collation spec: {}",
                    format_document(self.spec)
                ),
            )),
            Some(other) => Err(self.wrong_type("version", other, "type 'string'")),
        }
    }
}

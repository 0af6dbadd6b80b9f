//! The order of strings in a locale, computed by ICU4X from the Unicode data compiled in.
//!
//! ICU4X takes the direction of the second level (`backwards`) from the locale only. If an option
//! differs from it, the collator gets a copy of the locale's data with that one bit changed
//! ([`DirectionProvider`]).

use std::cmp::Ordering;
use std::fmt;

use icu_collator::options::{AlternateHandling, CaseLevel, CollatorOptions, MaxVariable, Strength};
use icu_collator::preferences::{CollationCaseFirst, CollationNumericOrdering};
use icu_collator::provider as collation_data;
use icu_collator::{Collator as IcuCollator, CollatorBorrowed, CollatorPreferences};
use icu_locale_core::Locale;
use icu_normalizer::provider as normalizer_data;
use icu_provider::{DataError, DataPayload, DataProvider, DataRequest, DataResponse};
use nilometer_bson::order::Collator;

use super::locale;
use super::options::{CaseFirst, CollationOptions};
use crate::error::{Error, ErrorCode, Result};

/// The order of strings under the options of a collation.
pub struct LocaleOrder {
    options: CollationOptions,
    icu: IcuCollation,
}

enum IcuCollation {
    /// Uses the compiled-in data.
    Borrowed(CollatorBorrowed<'static>),
    /// Uses changed data.
    DirectionProvider(Box<IcuCollator>),
}

impl LocaleOrder {
    pub(super) fn new(options: CollationOptions) -> Result<Self> {
        let no_data = |error: &dyn fmt::Display| {
            Error::new(
                ErrorCode::InternalError,
                format!(
                    "there is no data for the collation '{}': {error}",
                    options.locale
                ),
            )
        };
        let tag = Locale::try_from_str(&options.tag).map_err(|error| no_data(&error))?;
        let mut preferences = CollatorPreferences::from(&tag);
        preferences.case_first = Some(match options.case_first {
            CaseFirst::Off => CollationCaseFirst::False,
            CaseFirst::Lower => CollationCaseFirst::Lower,
            CaseFirst::Upper => CollationCaseFirst::Upper,
        });
        preferences.numeric_ordering = Some(match options.numeric_ordering {
            true => CollationNumericOrdering::True,
            false => CollationNumericOrdering::False,
        });
        let mut given = CollatorOptions::default();
        given.strength = Some(match options.strength {
            1 => Strength::Primary,
            2 => Strength::Secondary,
            3 => Strength::Tertiary,
            4 => Strength::Quaternary,
            _ => Strength::Identical,
        });
        given.alternate_handling = Some(match options.shifted {
            true => AlternateHandling::Shifted,
            false => AlternateHandling::NonIgnorable,
        });
        given.max_variable = Some(match options.only_space {
            true => MaxVariable::Space,
            false => MaxVariable::Punctuation,
        });
        given.case_level = Some(match options.case_level {
            true => CaseLevel::On,
            false => CaseLevel::Off,
        });
        let icu = if options.backwards == locale::defaults(&options.locale).backwards {
            CollatorBorrowed::try_new(preferences, given).map(IcuCollation::Borrowed)
        } else {
            let data = DirectionProvider {
                backwards: options.backwards,
            };
            IcuCollator::try_new_unstable(&data, preferences, given)
                .map(|icu| IcuCollation::DirectionProvider(Box::new(icu)))
        };
        let icu = icu.map_err(|error| no_data(&error))?;
        Ok(Self { options, icu })
    }

    /// Returns the options, including defaults.
    pub fn options(&self) -> &CollationOptions {
        &self.options
    }
}

impl Collator for LocaleOrder {
    fn compare(&self, a: &str, b: &str) -> Ordering {
        match &self.icu {
            IcuCollation::Borrowed(icu) => icu.compare(a, b),
            IcuCollation::DirectionProvider(icu) => icu.as_borrowed().compare(a, b),
        }
    }

    fn sort_key(&self, text: &str, out: &mut Vec<u8>) {
        // Writing to a vector cannot fail: the error type is empty.
        let Ok(()) = match &self.icu {
            IcuCollation::Borrowed(icu) => icu.write_sort_key_to(text, out),
            IcuCollation::DirectionProvider(icu) => icu.as_borrowed().write_sort_key_to(text, out),
        };
    }
}

impl fmt::Debug for LocaleOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.options.fmt(f)
    }
}

/// Data provider that sets the direction of the second level in the compiled-in data.
struct DirectionProvider {
    backwards: bool,
}

/// The bit of a locale's metadata for a backwards second level. A test fails if a new version of
/// the library moves it.
const BACKWARDS: u32 = 1 << 7;

impl DataProvider<collation_data::CollationMetadataV1> for DirectionProvider {
    fn load(
        &self,
        request: DataRequest<'_>,
    ) -> std::result::Result<DataResponse<collation_data::CollationMetadataV1>, DataError> {
        let mut found: DataResponse<collation_data::CollationMetadataV1> =
            collation_data::Baked.load(request)?;
        let mut metadata = *found.payload.get();
        if self.backwards {
            metadata.bits |= BACKWARDS;
        } else {
            metadata.bits &= !BACKWARDS;
        }
        found.payload = DataPayload::from_owned(metadata);
        Ok(found)
    }
}

macro_rules! as_compiled {
    ($($marker:ty => $data:expr,)*) => {$(
        impl DataProvider<$marker> for DirectionProvider {
            fn load(
                &self,
                request: DataRequest<'_>,
            ) -> std::result::Result<DataResponse<$marker>, DataError> {
                $data.load(request)
            }
        }
    )*};
}

as_compiled! {
    collation_data::CollationSpecialPrimariesV1 => collation_data::Baked,
    collation_data::CollationRootV1 => collation_data::Baked,
    collation_data::CollationTailoringV1 => collation_data::Baked,
    collation_data::CollationDiacriticsV1 => collation_data::Baked,
    collation_data::CollationJamoV1 => collation_data::Baked,
    collation_data::CollationReorderingV1 => collation_data::Baked,
    normalizer_data::NormalizerNfdDataV1 => normalizer_data::Baked,
    normalizer_data::NormalizerNfdTablesV1 => normalizer_data::Baked,
}

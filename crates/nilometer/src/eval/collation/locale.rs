//! The locales a collation may name, as listed in MongoDB's manual, and their names in the Unicode
//! data.
//!
//! A name must match exactly: `en_US` is valid; `en-US` and `EN` are errors that suggest the valid
//! name. A variant is appended as in `de@collation=phonebook`.

/// A variant and its name in the Unicode data, if it exists there.
type Variant = (&'static str, Option<&'static str>);

const SEARCH: Variant = ("search", None);
const TRADITIONAL: Variant = ("traditional", Some("trad"));
const UNIHAN: Variant = ("unihan", Some("unihan"));
const PHONEBOOK: Variant = ("phonebook", Some("phonebk"));

/// Locales without variants.
const PLAIN: &[&str] = &[
    "af",
    "am",
    "as",
    "be",
    "bg",
    "bo",
    "bs_Cyrl",
    "chr",
    "cy",
    "dsb",
    "dz",
    "ee",
    "el",
    "en",
    "en_US",
    "en_US_POSIX",
    "eo",
    "et",
    "fa",
    "fa_AF",
    "fil",
    "fo",
    "fr",
    "fr_CA",
    "ga",
    "gu",
    "ha",
    "haw",
    "hi",
    "hsb",
    "hu",
    "hy",
    "id",
    "ig",
    "it",
    "ka",
    "kk",
    "km",
    "kok",
    "ky",
    "lb",
    "lkt",
    "lo",
    "lt",
    "lv",
    "mk",
    "ml",
    "mn",
    "mr",
    "ms",
    "mt",
    "my",
    "ne",
    "nl",
    "om",
    "or",
    "pa",
    "pl",
    "ps",
    "pt",
    "ro",
    "ru",
    "sl",
    "sq",
    "sr",
    "sw",
    "ta",
    "te",
    "th",
    "to",
    "ug",
    "uk",
    "ur",
    "wae",
    "yo",
    "zu",
];

/// Locales with variants.
const WITH_VARIANTS: &[(&str, &[Variant])] = &[
    ("ar", &[("compat", Some("compat"))]),
    ("az", &[SEARCH]),
    ("bn", &[TRADITIONAL]),
    ("bs", &[SEARCH]),
    ("ca", &[SEARCH]),
    ("cs", &[SEARCH]),
    ("da", &[SEARCH]),
    ("de", &[SEARCH, ("eor", None), PHONEBOOK]),
    ("de_AT", &[PHONEBOOK]),
    ("es", &[SEARCH, TRADITIONAL]),
    ("fi", &[SEARCH, TRADITIONAL]),
    ("gl", &[SEARCH]),
    ("he", &[SEARCH]),
    ("hr", &[SEARCH]),
    ("is", &[SEARCH]),
    ("ja", &[UNIHAN]),
    ("kl", &[SEARCH]),
    ("kn", &[TRADITIONAL]),
    ("ko", &[SEARCH, ("searchjl", None), UNIHAN]),
    ("ln", &[("phonetic", None)]),
    ("nb", &[SEARCH]),
    ("nn", &[SEARCH]),
    ("se", &[SEARCH]),
    ("si", &[("dictionary", Some("dict"))]),
    ("sk", &[SEARCH]),
    ("smn", &[SEARCH]),
    ("sr_Latn", &[SEARCH]),
    ("sv", &[SEARCH]),
    ("tr", &[SEARCH]),
    ("vi", &[TRADITIONAL]),
    ("yi", &[SEARCH]),
    (
        "zh",
        &[
            ("big5han", None),
            ("gb2312han", None),
            ("pinyin", Some("pinyin")),
            ("stroke", Some("stroke")),
            UNIHAN,
            ("zhuyin", Some("zhuyin")),
        ],
    ),
    ("zh_Hant", &[("stroke", Some("stroke"))]),
];

/// Locales whose text needs normalization, for which MongoDB enables it by default.
const NORMALIZED: &[&str] = &[
    "as", "bn", "el", "fa", "fa_AF", "gu", "he", "hi", "km", "kn", "kok", "mr", "ne", "or", "pa",
    "ta", "te", "th", "ur", "vi", "yi", "yo",
];

/// Separator between a locale and its variant.
const VARIANT_MARK: &str = "@collation=";

/// Result of looking up a locale name.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LocaleLookup {
    /// A locale, with its name in the Unicode data (BCP 47).
    Locale(String),
    /// A variant of MongoDB that the Unicode data does not have.
    WithoutData,
    /// An unknown name, with a suggestion if there is one.
    Unknown(Option<String>),
}

/// Finds the locale with a name.
pub(super) fn find(name: &str) -> LocaleLookup {
    let (base, variant) = match name.split_once(VARIANT_MARK) {
        Some((base, variant)) => (base, Some(variant)),
        None => (name, None),
    };
    let variants = WITH_VARIANTS.iter().find(|(known, _)| *known == base);
    let is_known = variants.is_some() || PLAIN.contains(&base);
    if !is_known {
        return LocaleLookup::Unknown(similar_locale(base));
    }
    let tag = base.replace('_', "-");
    let Some(variant) = variant else {
        return LocaleLookup::Locale(tag);
    };
    let known = variants.and_then(|(_, list)| list.iter().find(|(name, _)| *name == variant));
    match known {
        None => LocaleLookup::Unknown(None),
        Some((_, None)) => LocaleLookup::WithoutData,
        Some((_, Some(in_data))) => LocaleLookup::Locale(format!("{tag}-u-co-{in_data}")),
    }
}

/// Returns the locale whose name differs only in case and hyphens.
fn similar_locale(name: &str) -> Option<String> {
    let name = name.replace('-', "_");
    let all = PLAIN
        .iter()
        .chain(WITH_VARIANTS.iter().map(|(name, _)| name));
    all.copied()
        .find(|known| known.eq_ignore_ascii_case(&name))
        .map(str::to_owned)
}

/// Default values of options that depend on the locale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LocaleDefaults {
    pub(super) upper_first: bool,
    pub(super) shifted: bool,
    pub(super) normalization: bool,
    pub(super) backwards: bool,
}

/// Returns the defaults of a locale.
pub(super) fn defaults(name: &str) -> LocaleDefaults {
    let base = name.split('@').next().unwrap_or(name);
    LocaleDefaults {
        upper_first: matches!(base, "da" | "mt"),
        shifted: base == "th",
        normalization: NORMALIZED.contains(&base),
        backwards: base == "fr_CA",
    }
}

/// Returns all names, except variants without data.
#[cfg(test)]
pub(super) fn all() -> Vec<String> {
    let mut names: Vec<String> = PLAIN.iter().map(|name| (*name).to_owned()).collect();
    for (name, variants) in WITH_VARIANTS {
        names.push((*name).to_owned());
        for (variant, data) in *variants {
            if data.is_some() {
                names.push(format!("{name}{VARIANT_MARK}{variant}"));
            }
        }
    }
    names
}

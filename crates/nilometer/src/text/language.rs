//! The languages of text indexes: names and codes, stems, stop words.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::OnceLock;

use rust_stemmers::{Algorithm, Stemmer};

/// Longest word in bytes that is stemmed. Suffix rules are meant for words; their cost grows with the length.
const STEMMED_BYTES_MAX: usize = 1024;

/// A language that decides how words are stemmed and which are stop words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TextLanguage {
    /// `none`: no stems, no stop words.
    None,
    /// Danish.
    Danish,
    /// Dutch.
    Dutch,
    /// English.
    #[default]
    English,
    /// Finnish.
    Finnish,
    /// French.
    French,
    /// German.
    German,
    /// Hungarian.
    Hungarian,
    /// Italian.
    Italian,
    /// Norwegian.
    Norwegian,
    /// Portuguese.
    Portuguese,
    /// Romanian.
    Romanian,
    /// Russian.
    Russian,
    /// Spanish.
    Spanish,
    /// Swedish.
    Swedish,
    /// Turkish.
    Turkish,
}

/// A row of the table of languages.
struct LanguageRow {
    language: TextLanguage,
    name: &'static str,
    /// ISO 639-1.
    code: &'static str,
    stemmer: Option<Algorithm>,
    /// The name of its stop words in the crate `stop-words`.
    stop_words: &'static str,
}

const fn row(
    language: TextLanguage,
    name: &'static str,
    code: &'static str,
    stemmer: Algorithm,
) -> LanguageRow {
    LanguageRow {
        language,
        name,
        code,
        stemmer: Some(stemmer),
        stop_words: code,
    }
}

/// All languages, in the order of the type.
const LANGUAGES: [LanguageRow; 16] = [
    LanguageRow {
        language: TextLanguage::None,
        name: "none",
        code: "none",
        stemmer: None,
        stop_words: "",
    },
    row(TextLanguage::Danish, "danish", "da", Algorithm::Danish),
    row(TextLanguage::Dutch, "dutch", "nl", Algorithm::Dutch),
    row(TextLanguage::English, "english", "en", Algorithm::English),
    row(TextLanguage::Finnish, "finnish", "fi", Algorithm::Finnish),
    row(TextLanguage::French, "french", "fr", Algorithm::French),
    row(TextLanguage::German, "german", "de", Algorithm::German),
    row(
        TextLanguage::Hungarian,
        "hungarian",
        "hu",
        Algorithm::Hungarian,
    ),
    row(TextLanguage::Italian, "italian", "it", Algorithm::Italian),
    LanguageRow {
        stop_words: "no",
        ..row(
            TextLanguage::Norwegian,
            "norwegian",
            "nb",
            Algorithm::Norwegian,
        )
    },
    row(
        TextLanguage::Portuguese,
        "portuguese",
        "pt",
        Algorithm::Portuguese,
    ),
    row(
        TextLanguage::Romanian,
        "romanian",
        "ro",
        Algorithm::Romanian,
    ),
    row(TextLanguage::Russian, "russian", "ru", Algorithm::Russian),
    row(TextLanguage::Spanish, "spanish", "es", Algorithm::Spanish),
    row(TextLanguage::Swedish, "swedish", "sv", Algorithm::Swedish),
    row(TextLanguage::Turkish, "turkish", "tr", Algorithm::Turkish),
];

/// Words that the crate's English list adds to Snowball's: parts of contractions, which are whole words here, and others.
const ENGLISH_WITHOUT: &str = "\
    ain aren can couldn d didn doesn don hadn hasn haven isn it'd it'll just ll m ma mightn mightn't \
    mustn needn needn't now o re s shan should've shouldn t that'll ve wasn weren will won wouldn y";

/// Words of Snowball's English list that the crate's lacks.
const ENGLISH_WITH: &str = "\
    can't cannot could here's how's let's ought that's there's what's when's where's who's why's would";

/// The stop words of each language, filled on first use.
static STOP_WORDS: [OnceLock<HashSet<&'static str>>; LANGUAGES.len()] =
    [const { OnceLock::new() }; LANGUAGES.len()];

impl TextLanguage {
    /// Returns the language with this name or code, in any case.
    pub fn named(name: &str) -> Option<Self> {
        LANGUAGES
            .iter()
            .find(|row| row.name.eq_ignore_ascii_case(name) || row.code.eq_ignore_ascii_case(name))
            .map(|row| row.language)
    }

    /// Returns its name.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    fn row(self) -> &'static LanguageRow {
        &LANGUAGES[self as usize]
    }

    /// True if the word, in lower case, is a stop word.
    pub(super) fn is_stop_word(self, word: &str) -> bool {
        let words = STOP_WORDS[self as usize].get_or_init(|| {
            let words = stop_words::lookup(self.row().stop_words).unwrap_or_default();
            let mut words: HashSet<&str> = words.iter().copied().collect();
            if self == Self::English {
                for word in ENGLISH_WITHOUT.split(' ') {
                    words.remove(word);
                }
                words.extend(ENGLISH_WITH.split(' '));
            }
            words
        });
        words.contains(word)
    }

    /// Returns the stem of a word.
    pub(super) fn stem(self, word: &str) -> Cow<'_, str> {
        match self.row().stemmer {
            Some(algorithm) if word.len() <= STEMMED_BYTES_MAX => {
                Stemmer::create(algorithm).stem(word)
            }
            _ => Cow::Borrowed(word),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn languages_have_names_and_codes() {
        for (at, row) in LANGUAGES.iter().enumerate() {
            assert_eq!(row.language as usize, at);
            assert_eq!(TextLanguage::named(row.name), Some(row.language));
            assert_eq!(TextLanguage::named(row.code), Some(row.language));
        }
        assert_eq!(TextLanguage::named("English"), Some(TextLanguage::English));
        assert_eq!(TextLanguage::named("EN"), Some(TextLanguage::English));
        assert_eq!(TextLanguage::named("klingon"), None);
        assert_eq!(TextLanguage::named(""), None);
    }

    #[test]
    fn every_language_has_stems_and_stop_words() {
        for row in &LANGUAGES[1..] {
            let words = stop_words::lookup(row.stop_words).expect("a list");
            assert!(words.len() > 50, "{}", row.name);
            let lower = |word: &&&str| ***word == word.to_lowercase();
            assert!(words.iter().all(|word| lower(&word)), "{}", row.name);
        }
        for word in ["the", "would", "can't"] {
            assert!(TextLanguage::English.is_stop_word(word));
        }
        for word in ["y", "don", "will"] {
            assert!(!TextLanguage::English.is_stop_word(word));
        }
        assert!(!TextLanguage::None.is_stop_word("the"));
        assert_eq!(TextLanguage::English.stem("running"), "run");
        assert_eq!(TextLanguage::None.stem("running"), "running");
        assert_eq!(TextLanguage::German.stem("häuser"), "haus");
        let long = "s".repeat(STEMMED_BYTES_MAX + 1);
        assert_eq!(TextLanguage::English.stem(&long), long);
    }

    /// The stemmers are generated code of another project: no word may make them panic.
    #[test]
    fn any_word_has_a_stem() {
        let alphabet: Vec<char> =
            "aeiouyäöüåæøéèêıİşğçñßœstnrlcdghkmpvxz'’ăîțабвеиёйостьъыюяー가𝔘e\u{301}"
                .chars()
                .collect();
        let mut seed = 0x9E37_79B9_7F4A_7C15_u64;
        let mut next = |below: usize| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            usize::try_from(seed >> 33).unwrap() % below
        };
        for _ in 0..20_000 {
            let length = 1 + next(12);
            let word: String = (0..length)
                .map(|_| alphabet[next(alphabet.len())])
                .collect();
            for row in &LANGUAGES {
                row.language.stem(&word);
            }
        }
    }
}

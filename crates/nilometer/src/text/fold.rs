//! Delimiters of words, and the folding of case and diacritics.
//!
//! Words end at characters with one of the Unicode properties Dash, Hyphen, Pattern_Syntax, Quotation_Mark,
//! Terminal_Punctuation and White_Space. In English an apostrophe is part of a word.
//!
//! Case folds to lower case, character by character; in Turkish `I` and `İ` fold to `ı` and `i`. Diacritics are removed
//! after canonical decomposition.

use std::borrow::Cow;

use icu_normalizer::{ComposingNormalizerBorrowed, DecomposingNormalizerBorrowed};
use icu_properties::CodePointSetData;
use icu_properties::props::{
    Dash, Diacritic, Hyphen, PatternSyntax, QuotationMark, TerminalPunctuation, WhiteSpace,
};

use super::TextLanguage;

/// True if a word ends at this character.
pub(super) fn is_delimiter(c: char, language: TextLanguage) -> bool {
    if c.is_ascii() {
        let is_apostrophe = c == '\'' && language == TextLanguage::English;
        let is_syntax = c.is_ascii_punctuation() && c != '_' && !is_apostrophe;
        return is_syntax || matches!(c, '\t'..='\r' | ' ');
    }
    // No letter or digit ends a word, except those in blocks of symbols and punctuation. This spares most characters the
    // search below.
    let is_in_symbols = matches!(c, '\u{2190}'..='\u{2BFF}' | '\u{2E00}'..='\u{2E7F}');
    if c.is_alphanumeric() && !is_in_symbols {
        return false;
    }
    has_delimiter_property(c)
}

fn has_delimiter_property(c: char) -> bool {
    CodePointSetData::new::<WhiteSpace>().contains(c)
        || CodePointSetData::new::<PatternSyntax>().contains(c)
        || CodePointSetData::new::<TerminalPunctuation>().contains(c)
        || CodePointSetData::new::<QuotationMark>().contains(c)
        || CodePointSetData::new::<Dash>().contains(c)
        || CodePointSetData::new::<Hyphen>().contains(c)
}

/// Returns the text in lower case.
pub(super) fn lower(text: &str, language: TextLanguage) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            'I' if language == TextLanguage::Turkish => out.push('ı'),
            'İ' if language == TextLanguage::Turkish => out.push('i'),
            c if c.is_ascii() => out.push(c.to_ascii_lowercase()),
            // Forms of a letter that differ by their place or origin.
            'ς' => out.push('σ'),
            'ſ' => out.push('s'),
            c => out.extend(c.to_lowercase()),
        }
    }
    out
}

/// Returns the text without diacritics.
pub(super) fn without_diacritics(text: &str) -> Cow<'_, str> {
    if text.is_ascii() {
        return Cow::Borrowed(text);
    }
    let diacritics = CodePointSetData::new::<Diacritic>();
    let decomposed = DecomposingNormalizerBorrowed::new_nfd().normalize(text);
    // Marks of ASCII are delimiters, and stay in phrases.
    let letters = decomposed
        .chars()
        .filter(|c| c.is_ascii() || !diacritics.contains(*c));
    let folded: String = letters.collect();
    // Syllables that were decomposed, as of Hangul, are one character again.
    let composed = ComposingNormalizerBorrowed::new_nfc().normalize(&folded);
    Cow::Owned(composed.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_end_at_punctuation_and_spaces() {
        for c in " \t\n!\"#$%&()*+,-./:;<=>?@[\\]^`{|}~«»“”„…—\u{a0}\u{3000}、。؟".chars()
        {
            assert!(is_delimiter(c, TextLanguage::English), "{c:?}");
        }
        for c in "azAZ09_éßжあ中가".chars() {
            assert!(!is_delimiter(c, TextLanguage::French), "{c:?}");
        }
        assert!(is_delimiter('\'', TextLanguage::French));
        assert!(!is_delimiter('\'', TextLanguage::English));
    }

    #[test]
    fn letters_and_digits_end_no_word() {
        let step = nilometer_storage::testing::effort(11, 1, 1) as usize;
        for c in ('\u{80}'..=char::MAX).step_by(step) {
            assert_eq!(
                is_delimiter(c, TextLanguage::None),
                has_delimiter_property(c),
                "{c:?}"
            );
        }
    }

    #[test]
    fn case_folds_by_language() {
        assert_eq!(
            lower("ÉCOLE Straße ΟΔΟΣ ς", TextLanguage::French),
            "école straße οδοσ σ"
        );
        assert_eq!(lower("DIŞ İçi", TextLanguage::Turkish), "dış içi");
        assert_eq!(lower("DI", TextLanguage::English), "di");
    }

    #[test]
    fn diacritics_fold() {
        assert_eq!(without_diacritics("école ÉCOLE e\u{301}"), "ecole ECOLE e");
        assert_eq!(without_diacritics("Straße 가 が ^a"), "Straße 가 か ^a");
        assert!(matches!(without_diacritics("plain"), Cow::Borrowed(_)));
    }
}

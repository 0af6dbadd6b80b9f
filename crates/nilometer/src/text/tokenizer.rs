//! The terms of a string.
//!
//! ```text
//! "The Cafés"  ─ words ─►  The, Cafés  ─ lower case ─►  the, cafés  ─ stop words ─►  cafés
//!              ─ stem ─►  café  ─ diacritics ─►  cafe
//! ```

use super::TextLanguage;
use super::fold::{is_delimiter, lower, without_diacritics};
use super::query::TextSensitivity;
use crate::error::Result;

/// Visits the words of a text with their offsets, as written.
pub(super) fn words(text: &str, language: TextLanguage) -> impl Iterator<Item = (usize, &str)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let rest = text.get(at..)?;
        let start = at + rest.find(|c| !is_delimiter(c, language))?;
        let word = text.get(start..)?;
        let end = word.find(|c| is_delimiter(c, language));
        let word = word.get(..end.unwrap_or(word.len()))?;
        at = start + word.len();
        Some((start, word))
    })
}

/// Returns the term of a word; `None` for a stop word.
pub(super) fn term(
    word: &str,
    language: TextLanguage,
    sensitivity: TextSensitivity,
) -> Option<String> {
    let lowered = lower(word, language);
    if language.is_stop_word(&lowered) {
        return None;
    }
    let cased = if sensitivity.case { word } else { &lowered };
    let stem = language.stem(cased);
    let term = if sensitivity.diacritics {
        stem.into_owned()
    } else {
        without_diacritics(&stem).into_owned()
    };
    (!term.is_empty()).then_some(term)
}

/// Visits the words of a text by their terms; stop words have none.
pub(super) fn visit_terms(
    text: &str,
    language: TextLanguage,
    sensitivity: TextSensitivity,
    visit: &mut dyn FnMut(Option<String>) -> Result<()>,
) -> Result<()> {
    for (_, word) in words(text, language) {
        visit(term(word, language, sensitivity))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(text: &str, language: TextLanguage, sensitivity: TextSensitivity) -> Vec<String> {
        let mut out = Vec::new();
        visit_terms(text, language, sensitivity, &mut |term| {
            out.extend(term);
            Ok(())
        })
        .unwrap();
        out
    }

    #[test]
    fn terms_are_stems_without_case_and_diacritics() {
        let folded = TextSensitivity::default();
        let of = |text, language| terms(text, language, folded);
        assert_eq!(
            of("The cats, running!", TextLanguage::English),
            ["cat", "run"]
        );
        assert_eq!(
            of("The cats, running!", TextLanguage::None),
            ["the", "cats", "running"]
        );
        assert_eq!(of("Cafés «CAFÉ»", TextLanguage::French), ["caf", "caf"]);
        assert_eq!(
            of("don't snake_case x-ray", TextLanguage::English),
            ["snake_cas", "x", "ray"]
        );
        assert_eq!(of("", TextLanguage::English), [""; 0]);
        assert_eq!(of(" -- ", TextLanguage::English), [""; 0]);
    }

    #[test]
    fn sensitive_terms_keep_case_or_diacritics() {
        let case = TextSensitivity {
            case: true,
            diacritics: false,
        };
        let both = TextSensitivity {
            case: true,
            diacritics: true,
        };
        assert_eq!(terms("The Éa", TextLanguage::English, case), ["Ea"]);
        assert_eq!(terms("The Éa", TextLanguage::None, both), ["The", "Éa"]);
    }
}

//! Parameters of a request: from its target, and from a form in its body.

use percent_encoding::percent_decode;

/// The most parameters of a request.
const PARAMETERS_MAX: usize = 64;

/// Names and values; of equal names the first counts.
#[derive(Clone, Debug, Default)]
pub(super) struct Parameters(Vec<(String, String)>);

impl Parameters {
    /// Parses what follows the question mark of a target, or a form. Invalid escapes stay as they are.
    pub(super) fn of_query(text: &str) -> Self {
        let pairs = text.split('&').filter(|pair| !pair.is_empty());
        let parsed = pairs.take(PARAMETERS_MAX).map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decoded(name), decoded(value))
        });
        Self(parsed.collect())
    }

    /// Adds the parameters of a form; those of the target count first.
    pub(super) fn add_form(&mut self, text: &str) {
        self.0.extend(Self::of_query(text).0);
    }

    /// Returns all names and values.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Returns the value of a parameter.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Returns the value of a parameter that is not empty.
    pub(super) fn get_text(&self, name: &str) -> Option<&str> {
        self.get(name).filter(|value| !value.is_empty())
    }
}

fn decoded(text: &str) -> String {
    let text = text.replace('+', " ");
    percent_decode(text.as_bytes())
        .decode_utf8_lossy()
        .into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_values_are_decoded() {
        let parameters = Parameters::of_query("db=a%20b&q=SELECT+1%2B1&x&db=c&%zz=1&=&bad=%FF");
        assert_eq!(parameters.get("db"), Some("a b"));
        assert_eq!(parameters.get("q"), Some("SELECT 1+1"));
        assert_eq!(parameters.get("x"), Some(""));
        assert_eq!(parameters.get_text("x"), None);
        assert_eq!(parameters.get("%zz"), Some("1"));
        assert_eq!(parameters.get("bad"), Some("\u{FFFD}"));
        assert_eq!(parameters.get("y"), None);
    }
}

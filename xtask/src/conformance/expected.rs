//! The list of checks that are expected to fail.
//!
//! The file is TOML; this reads the subset it uses: tables `[[failure]]` with string keys.

use crate::process::{Outcome, root};

/// A check of a client that is known to fail.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// The client's name.
    pub(crate) client: String,
    /// The check's name.
    pub(crate) check: String,
}

/// Reads `conformance/expected_failures.toml`.
pub(crate) fn load() -> Outcome<Vec<Failure>> {
    let path = root().join("conformance/expected_failures.toml");
    let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    parse(&text)
}

fn parse(text: &str) -> Outcome<Vec<Failure>> {
    let mut failures = Vec::new();
    let mut open: Vec<(&str, &str)> = Vec::new();
    // One more header closes the last table.
    for line in text.lines().chain(["[[failure]]"]).map(str::trim) {
        if line == "[[failure]]" {
            if !open.is_empty() {
                failures.push(finish(&open)?);
                open.clear();
            }
        } else if !line.is_empty() && !line.starts_with('#') {
            let (key, value) = line
                .split_once('=')
                .ok_or_else(|| format!("not understood: {line}"))?;
            open.push((key.trim(), value.trim().trim_matches('"')));
        }
    }
    Ok(failures)
}

fn finish(fields: &[(&str, &str)]) -> Outcome<Failure> {
    let field = |name: &str| {
        let found = fields.iter().find(|(key, _)| *key == name);
        found
            .map(|(_, value)| (*value).to_string())
            .filter(|value| !value.is_empty())
            .ok_or_else(|| format!("a failure without `{name}`: {fields:?}"))
    };
    field("reason")?;
    Ok(Failure {
        client: field("client")?,
        check: field("check")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ledger_is_readable() {
        load().expect("the project's own ledger");
        let text = "# talk\n[[failure]]\nclient = \"go\"\ncheck = \"drop\"\nreason = \"so\"\n";
        let [failure] = parse(text).expect("well formed").try_into().expect("one");
        assert_eq!(
            (failure.client.as_str(), failure.check.as_str()),
            ("go", "drop")
        );
    }

    #[test]
    fn a_failure_needs_a_reason() {
        assert!(parse("[[failure]]\nclient = \"go\"\ncheck = \"drop\"\n").is_err());
    }
}

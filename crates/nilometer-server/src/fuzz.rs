//! Entry points for fuzzing: each takes bytes or text from anywhere, says whether it was understood, and panics only on
//! a bug.

use nilometer_bson::extjson::parse_document;

use crate::{cli, http};

/// Reads bytes as a request of the HTTP port, and what follows its head as a command of the web page.
pub fn http_request(bytes: &[u8]) -> bool {
    let Some(length) = http::fuzz_head(bytes) else {
        return false;
    };
    let body = bytes.get(length..).unwrap_or_default();
    if let Some(command) = std::str::from_utf8(body)
        .ok()
        .and_then(|text| parse_document(text).ok())
    {
        http::fuzz_command(command.as_ref());
    }
    true
}

/// Reads text as a configuration file, and settles what it asks for.
pub fn configuration(text: &str) -> bool {
    cli::fuzz_configuration(text)
}

/// Reads text as a file between commas, and each line of it as a document.
pub fn csv(text: &str) -> bool {
    cli::fuzz_csv(text)
}

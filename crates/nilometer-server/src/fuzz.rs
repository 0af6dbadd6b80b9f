//! Entry points for fuzzing: each takes arbitrary bytes or text, returns whether it is valid, and panics only on a bug.

use nilometer_bson::extjson::parse_document;

use crate::{cli, http};

/// Parses bytes as a request of the HTTP port, and its body as a command of the web page.
pub fn http_request(bytes: &[u8]) -> bool {
    let Some(length) = http::fuzz_head(bytes) else {
        return false;
    };
    let body = &bytes[length..];
    if let Some(command) = std::str::from_utf8(body)
        .ok()
        .and_then(|text| parse_document(text).ok())
    {
        http::fuzz_command(command.as_ref());
    }
    true
}

/// Parses text as a configuration file and resolves its settings.
pub fn configuration(text: &str) -> bool {
    cli::fuzz_configuration(text)
}

/// Parses text as a CSV file, each line as a document.
pub fn csv(text: &str) -> bool {
    cli::fuzz_csv(text)
}

/// Parses a line as the parameters of `/api/query`, and the text behind it as the body.
pub fn query_request(text: &[u8]) -> bool {
    http::fuzz_query(text)
}

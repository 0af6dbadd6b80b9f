//! Rust source as the checks see it: the text, and the same text with everything that is not code
//! of the product blanked out.
//!
//! This is a scanner, not a parser: it knows comments, strings, characters and braces, which is
//! all the house rules ask about. Blanked bytes become spaces, so that offsets and line numbers
//! agree between the two.

/// One file of Rust.
pub(crate) struct Source {
    /// The file as it is.
    pub(crate) text: String,
    /// Comments, strings and `#[cfg(test)]` items blanked.
    pub(crate) code: String,
}

impl Source {
    pub(crate) fn new(text: &str) -> Self {
        let plain = blank_text(text);
        let mut code = plain.clone().into_bytes();
        for (start, end) in test_items(&plain) {
            blank(&mut code[start..end]);
        }
        Self {
            text: text.to_string(),
            code: String::from_utf8_lossy(&code).into_owned(),
        }
    }

    /// The line number, from 1, of a byte offset.
    pub(crate) fn line_of(&self, offset: usize) -> usize {
        self.code.as_bytes()[..offset]
            .iter()
            .filter(|b| **b == b'\n')
            .count()
            + 1
    }

    /// Functions with a body: offset of `fn`, name, offset just behind the closing brace.
    pub(crate) fn functions(&self) -> Vec<(usize, &str, usize)> {
        let tokens = tokens(&self.code);
        let mut found = Vec::new();
        for (at, pair) in tokens.windows(2).enumerate() {
            let [(offset, "fn"), (_, name)] = pair else {
                continue;
            };
            if is_word(name)
                && let Some(open) = body_of(&tokens[at + 2..])
            {
                found.push((*offset, *name, matching_brace(&self.code, open)));
            }
        }
        found
    }
}

/// Offset of the brace that opens the body of a function, none for one without a body.
fn body_of(tokens: &[(usize, &str)]) -> Option<usize> {
    let mut depth = 0usize;
    for (offset, token) in tokens {
        match *token {
            "(" | "[" => depth += 1,
            ")" | "]" => depth = depth.saturating_sub(1),
            "{" if depth == 0 => return Some(*offset),
            ";" if depth == 0 => return None,
            _ => {}
        }
    }
    None
}

/// True for a file that holds only tests: its length is not limited and it may name anything.
pub(crate) fn is_test_file(path: &str) -> bool {
    path.contains("/tests/") || path.ends_with("/tests.rs") || path.ends_with("_tests.rs")
}

/// True for an identifier or keyword.
pub(crate) fn is_word(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Words, `::` and single characters, with their offsets; white space is left out.
pub(crate) fn tokens(code: &str) -> Vec<(usize, &str)> {
    let mut out = Vec::new();
    let mut rest = code.char_indices().peekable();
    while let Some((start, c)) = rest.next() {
        if c.is_whitespace() {
            continue;
        }
        let mut end = start + c.len_utf8();
        if c.is_alphanumeric() || c == '_' {
            while let Some((at, c)) = rest.next_if(|(_, c)| c.is_alphanumeric() || *c == '_') {
                end = at + c.len_utf8();
            }
        } else if c == ':'
            && let Some((at, _)) = rest.next_if(|(_, c)| *c == ':')
        {
            end = at + 1;
        }
        out.push((start, &code[start..end]));
    }
    out
}

/// Ranges of items marked for tests only.
fn test_items(plain: &str) -> Vec<(usize, usize)> {
    let mut found: Vec<(usize, usize)> = Vec::new();
    for mark in ["#[cfg(test)]", "#[cfg(all(test"] {
        for (start, _) in plain.match_indices(mark) {
            if found.iter().any(|(from, to)| (*from..*to).contains(&start)) {
                continue;
            }
            let item = plain[start..].find(']').map_or(start, |at| start + at + 1);
            let open = plain[item..].find('{').map(|at| item + at);
            let stop = plain[item..].find(';').map(|at| item + at);
            let end = match (open, stop) {
                (Some(open), Some(stop)) if open < stop => matching_brace(plain, open),
                (Some(open), None) => matching_brace(plain, open),
                (_, Some(stop)) => stop + 1,
                (None, None) => plain.len(),
            };
            found.push((start, end));
        }
    }
    found
}

/// Offset just behind the brace that closes the one at `open`.
fn matching_brace(code: &str, open: usize) -> usize {
    let mut depth = 0usize;
    for (at, byte) in code.bytes().enumerate().skip(open) {
        match byte {
            b'{' => depth += 1,
            b'}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return at + 1;
                }
            }
            _ => {}
        }
    }
    code.len()
}

fn blank(bytes: &mut [u8]) {
    for byte in bytes {
        if *byte != b'\n' {
            *byte = b' ';
        }
    }
}

/// The text with comments and the insides of strings and characters blanked.
fn blank_text(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = match bytes[at] {
            b'/' if bytes[at..].starts_with(b"//") => line_end(bytes, at),
            b'/' if bytes[at..].starts_with(b"/*") => comment_end(bytes, at),
            b'"' => string_end(bytes, at),
            b'r' if !follows_word(bytes, at) => raw_string_end(bytes, at).unwrap_or(at),
            b'b' | b'c' if !follows_word(bytes, at) && bytes.get(at + 1) == Some(&b'r') => {
                raw_string_end(bytes, at + 1).unwrap_or(at)
            }
            b'\'' => character_end(text, at),
            _ => at,
        };
        if end > at {
            blank(&mut out[at..end]);
            at = end;
        } else {
            at += 1;
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn follows_word(bytes: &[u8], at: usize) -> bool {
    at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_')
}

fn line_end(bytes: &[u8], at: usize) -> usize {
    let length = bytes[at..].iter().position(|b| *b == b'\n');
    length.map_or(bytes.len(), |length| at + length)
}

fn comment_end(bytes: &[u8], start: usize) -> usize {
    let mut depth = 0usize;
    let mut at = start;
    while at < bytes.len() {
        if bytes[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if bytes[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    at
}

fn string_end(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// The end of `r"…"` or `r#"…"#` at `start`; none where it is a word that starts with r.
fn raw_string_end(bytes: &[u8], start: usize) -> Option<usize> {
    let hashes = bytes[start + 1..]
        .iter()
        .take_while(|b| **b == b'#')
        .count();
    let quote = start + 1 + hashes;
    if bytes.get(quote) != Some(&b'"') {
        return None;
    }
    let mut close = vec![b'"'];
    close.resize(hashes + 1, b'#');
    let found = bytes[quote + 1..]
        .windows(close.len())
        .position(|window| window == close.as_slice());
    Some(found.map_or(bytes.len(), |at| quote + 1 + at + close.len()))
}

/// The end of a character literal; `start` itself for a lifetime.
fn character_end(text: &str, start: usize) -> usize {
    let mut rest = text[start + 1..].char_indices();
    match rest.next() {
        Some((_, '\\')) => {
            // The character behind the backslash may be the quote itself.
            let from = start + 3;
            let close = text.get(from..).and_then(|tail| tail.find('\''));
            close.map_or(start, |at| from + at + 1)
        }
        Some((_, _)) => match rest.next() {
            Some((at, '\'')) => start + 1 + at + 1,
            _ => start,
        },
        None => start,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_strings_and_tests_are_not_code() {
        let source = Source::new(
            "fn a<'x>(v: &'x str) { let q = '\"'; let s = \"fn b() {}\"; } // fn c() {}\n\
             /* fn d() {} /* nested */ */ const R: &str = r#\"fn \"e\"() {}\"#;\n\
             #[cfg(test)]\nmod tests {\n    fn f() {}\n}\nfn g() {}\n",
        );
        let names: Vec<&str> = source
            .functions()
            .iter()
            .map(|(_, name, _)| *name)
            .collect();
        assert_eq!(names, ["a", "g"]);
    }

    #[test]
    fn an_escaped_quote_ends_no_character() {
        let source = Source::new("fn a() { let q = '\\''; let r = b'\\\\'; }\nfn b() {}\n");
        assert_eq!(source.functions().len(), 2);
    }

    #[test]
    fn a_signature_without_body_is_no_function_to_measure() {
        let source = Source::new("trait T { fn a(&self) -> [u8; 3]; fn b() {} }");
        let names: Vec<&str> = source
            .functions()
            .iter()
            .map(|(_, name, _)| *name)
            .collect();
        assert_eq!(names, ["b"]);
    }
}

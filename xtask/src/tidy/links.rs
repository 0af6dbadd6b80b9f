//! Relative links between the project's texts: the file and the heading must exist. Links to the web are not checked.

use std::path::Path;

/// Broken links of a markdown file: line and message.
pub(crate) fn check(file: &Path, text: &str) -> Vec<(usize, String)> {
    let folder = file.parent().unwrap_or(Path::new("."));
    let mut found = Vec::new();
    for (line, target) in links(text) {
        if target.contains("://") || target.starts_with("mailto:") {
            continue;
        }
        let (path, heading) = target.split_once('#').unwrap_or((target, ""));
        let other = if path.is_empty() {
            file.to_path_buf()
        } else {
            folder.join(path)
        };
        if !other.exists() {
            found.push((line, format!("link to `{path}`, which does not exist")));
        } else if !heading.is_empty() && !has_heading(&other, heading) {
            found.push((
                line,
                format!("`{}` has no heading `#{heading}`", other.display()),
            ));
        }
    }
    found
}

/// Line and target of every `[text](target)` outside code.
fn links(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut in_code = false;
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        if in_code {
            continue;
        }
        let mut rest = line;
        while let Some(at) = rest.find("](") {
            rest = &rest[at + 2..];
            let Some(end) = rest.find(')') else {
                break;
            };
            let target = rest[..end].split_whitespace().next().unwrap_or("");
            // `[i](j)` in a code span is an index, not a link.
            let spans = line[..line.len() - rest.len()].matches('`').count();
            if spans % 2 == 0 {
                found.push((index + 1, target));
            }
            rest = &rest[end..];
        }
    }
    found
}

fn has_heading(file: &Path, heading: &str) -> bool {
    let Ok(text) = std::fs::read_to_string(file) else {
        return false;
    };
    text.lines()
        .filter(|line| line.starts_with('#'))
        .any(|line| anchor(line.trim_start_matches('#').trim()) == heading)
}

/// The anchor that renderers give a heading.
fn anchor(heading: &str) -> String {
    heading
        .chars()
        .filter_map(|c| match c {
            ' ' => Some('-'),
            '-' | '_' => Some(c),
            c if c.is_alphanumeric() => Some(c.to_ascii_lowercase()),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_outside_code_only() {
        let text = "[a](b.md) and [c](d.md#e)\n```\n[x](y)\n```\n`v[i](j)` [z](https://w)\n";
        let found: Vec<&str> = links(text).into_iter().map(|(_, target)| target).collect();
        assert_eq!(found, ["b.md", "d.md#e", "https://w"]);
    }

    #[test]
    fn headings_become_anchors() {
        assert_eq!(anchor("Which module? (guess)"), "which-module-guess");
    }
}

//! `cargo xtask tidy`: the rules of the house that the compiler does not check.
//!
//! Most checks are functions from a file to violations; the order of modules is checked for the whole crate. All run
//! as a test, too, so `cargo test` fails as early as `cargo xtask ci`. Rules are data where possible: imports of top
//! modules in [`modules`], the order inside folders in [`layers`], limits as constants here. An exception stands in
//! the code: a function longer than the limit carries `// long function: REASON` in the comment above it.

mod error_codes;
mod layers;
mod links;
mod modules;

use std::path::{Path, PathBuf};

use crate::code::source::{Source, is_test_file};
use crate::code::tree::Crate;
use crate::process::{Outcome, root};

/// Lines of a file, with its tests.
const FILE_LINES_MAX: usize = 800;
/// Lines of a function from its signature to its last brace.
const FUNCTION_LINES_MAX: usize = 70;
/// Bytes of a file, text or not: twice the largest picture. Programs and recordings of profilers are larger.
const FILE_BYTES_MAX: u64 = 512 << 10;
/// The shortest reason worth writing.
const REASON_CHARS_MIN: usize = 15;

/// Folders of built or fetched files.
const NOT_OURS: [&str; 5] = [
    ".git",
    "target",
    "node_modules",
    "nilometer-data",
    "__pycache__",
];
/// Extensions of text files.
const TEXT: [&str; 15] = [
    "rs", "md", "toml", "py", "js", "mjs", "go", "java", "xml", "json", "txt", "csv", "script",
    "yml", "run",
];
/// Files written by tools.
const GENERATED: [&str; 3] = ["Cargo.lock", "package-lock.json", "go.sum"];

/// A line that breaks a rule.
#[derive(Debug)]
pub(crate) struct Violation {
    path: String,
    line: usize,
    message: String,
}

/// Runs every check and prints the violations.
pub(crate) fn run() -> Outcome {
    let files = files(&root(), &is_text)?;
    let violations = check_all(&files)?;
    if violations.is_empty() {
        println!("tidy: {} files, no violations", files.len());
        return Ok(());
    }
    for Violation {
        path,
        line,
        message,
    } in &violations
    {
        println!("{path}:{line}: {message}");
    }
    Err(format!("{} places are not tidy", violations.len()))
}

/// Removes white space at the end of lines and adds the line end at the end of a file.
pub(crate) fn fix() -> Outcome {
    for file in files(&root(), &is_text)? {
        let failed = |e: std::io::Error| format!("{}: {e}", file.display());
        let text = std::fs::read_to_string(&file).map_err(failed)?;
        let fixed = with_clean_line_ends(&text);
        if fixed != text {
            println!("{}", file.display());
            std::fs::write(&file, fixed).map_err(failed)?;
        }
    }
    Ok(())
}

fn with_clean_line_ends(text: &str) -> String {
    text.lines()
        .map(|line| format!("{}\n", line.trim_end_matches([' ', '\t', '\r'])))
        .collect()
}

fn check_all(files: &[PathBuf]) -> Outcome<Vec<Violation>> {
    let base = root();
    let mut violations = Vec::new();
    let table = base.join(error_codes::TABLE);
    let table = std::fs::read_to_string(&table).map_err(|e| format!("{}: {e}", table.display()))?;
    let error_numbers = error_codes::numbers(&table);
    for file in files {
        let path = file
            .strip_prefix(&base)
            .unwrap_or(file)
            .to_string_lossy()
            .replace('\\', "/");
        let text = std::fs::read_to_string(file).map_err(|e| format!("{path}: {e}"))?;
        let mut found = check_text(&path, &text);
        if path.ends_with(".rs") {
            found.extend(check_rust(&path, &text));
            if !is_test_file(&path) {
                found.extend(error_codes::check(
                    &path,
                    &Source::new(&text),
                    &error_numbers,
                ));
            }
        }
        if path.ends_with(".md") {
            found.extend(links::check(file, &text));
        }
        violations.extend(found.into_iter().map(|(line, message)| Violation {
            path: path.clone(),
            line,
            message,
        }));
    }
    violations.extend(large_files(&base)?);
    let sources = "crates/nilometer/src";
    let tree = Crate::load(&base.join(sources))?;
    let found = layers::check(&tree, layers::LAYERED).into_iter();
    violations.extend(found.map(|(file, line, message)| Violation {
        path: format!("{sources}/{file}"),
        line,
        message,
    }));
    Ok(violations)
}

/// The files under `folder` that are too large for a repository.
fn large_files(folder: &Path) -> Outcome<Vec<Violation>> {
    let mut found = Vec::new();
    for path in files(folder, &|_, _| true)? {
        let length = std::fs::metadata(&path).map_or(0, |metadata| metadata.len());
        if length > FILE_BYTES_MAX {
            let path = path.strip_prefix(folder).unwrap_or(&path);
            found.push(Violation {
                path: path.to_string_lossy().replace('\\', "/"),
                line: 1,
                message: format!("{length} bytes, at most {FILE_BYTES_MAX}"),
            });
        }
    }
    Ok(found)
}

/// All files under `folder` that are `wanted` by path and name, sorted, without built and fetched ones.
fn files(folder: &Path, wanted: &dyn Fn(&Path, &str) -> bool) -> Outcome<Vec<PathBuf>> {
    let mut found = Vec::new();
    let entries = std::fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    for entry in entries {
        let path = entry
            .map_err(|e| format!("{}: {e}", folder.display()))?
            .path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if path.is_dir() {
            if !NOT_OURS.contains(&name.as_str()) {
                found.extend(files(&path, wanted)?);
            }
        } else if wanted(&path, &name) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn is_text(path: &Path, name: &str) -> bool {
    let extension = path.extension().unwrap_or_default().to_string_lossy();
    let known = TEXT.contains(&extension.as_ref()) || name == "run" || name == ".gitignore";
    known && !GENERATED.contains(&name)
}

/// Rules for every text: clean line ends, no path of one machine.
fn check_text(path: &str, text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        if line.ends_with([' ', '\t', '\r']) {
            found.push((number, "white space at the end of the line".to_string()));
        }
        if let Some(place) = absolute_home(line) {
            found.push((number, format!("`{place}` exists on one machine only")));
        }
    }
    if !text.is_empty() && !text.ends_with('\n') {
        found.push((
            text.lines().count(),
            "no line end at the end of the file".to_string(),
        ));
    }
    if path.ends_with(".rs") && text.contains("\n\n\n\n") {
        found.push((1, "three blank lines in a row".to_string()));
    }
    found
}

/// The kind of folder that an absolute path in `line` leads into, if it exists on one machine only.
fn absolute_home(line: &str) -> Option<&'static str> {
    // In two parts, so that this file does not break its own rule.
    const PLACES: [(&str, &str); 4] = [
        ("/ho", "me/"),
        ("/ro", "ot/"),
        ("/Us", "ers/"),
        ("/wo", "rk/"),
    ];
    const NAMES: [&str; 4] = [
        "a home folder",
        "a home folder",
        "a home folder",
        "a work folder",
    ];
    PLACES.iter().zip(NAMES).find_map(|((a, b), name)| {
        let place = format!("{a}{b}");
        let at = line.find(&place)?;
        // `docs/home/x` and `https://host/home/` are no absolute paths.
        let before = line[..at].chars().next_back();
        let absolute = before.is_none_or(|c| !c.is_alphanumeric() && !"._-~}".contains(c));
        absolute.then_some(name)
    })
}

/// Rules for Rust files.
fn check_rust(path: &str, text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let source = Source::new(text);
    if !text.trim_start().starts_with("//!") {
        found.push((
            1,
            "no module head: say what this is and what it promises (`//!`)".to_string(),
        ));
    }
    let lines = text.lines().count();
    if lines > FILE_LINES_MAX {
        found.push((1, format!("{lines} lines, at most {FILE_LINES_MAX}")));
    }
    if is_test_file(path) {
        return found;
    }
    found.extend(long_functions(&source));
    if !path.starts_with("xtask/") {
        found.extend(modules::check(path, &source));
    }
    found
}

fn long_functions(source: &Source) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (start, name, end) in source.functions() {
        let (first, last) = (source.line_of(start), source.line_of(end - 1));
        let lines = last - first + 1;
        if lines > FUNCTION_LINES_MAX && !excused(source, first) {
            let message = format!(
                "`{name}` has {lines} lines, at most {FUNCTION_LINES_MAX} without `// long function: REASON`"
            );
            found.push((first, message));
        }
    }
    found
}

/// True when the comments and attributes above the line give a reason for a long function.
fn excused(source: &Source, line: usize) -> bool {
    let lines: Vec<&str> = source.text.lines().take(line - 1).collect();
    lines
        .iter()
        .rev()
        .map(|line| line.trim_start())
        .take_while(|line| {
            line.starts_with("//") || line.starts_with("#[") || line.starts_with(')')
        })
        .any(|line| {
            line.strip_prefix("// long function:")
                .is_some_and(|reason| reason.trim().chars().count() >= REASON_CHARS_MIN)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_house_is_tidy() {
        let files = files(&root(), &is_text).expect("readable");
        let violations = check_all(&files).expect("readable");
        let lines: Vec<String> = violations
            .iter()
            .map(|v| format!("{}:{}: {}", v.path, v.line, v.message))
            .collect();
        assert!(lines.is_empty(), "\n{}\n", lines.join("\n"));
    }

    #[test]
    fn a_long_function_needs_a_reason() {
        let body = "    let x = 1;\n".repeat(FUNCTION_LINES_MAX);
        let long = format!("//! Head.\nfn f() {{\n{body}}}\n");
        assert_eq!(check_rust("crates/x/src/y.rs", &long).len(), 1);
        let excused = long.replace("fn f", "// long function: one arm for each type\nfn f");
        assert_eq!(check_rust("crates/x/src/y.rs", &excused).len(), 0);
        let test = format!("//! Head.\n#[cfg(test)]\nmod tests {{\nfn f() {{\n{body}}}\n}}\n");
        assert_eq!(check_rust("crates/x/src/y.rs", &test).len(), 0);
    }

    #[test]
    fn a_long_file_is_too_long_with_its_tests() {
        let lines = "const X: u8 = 1;\n".repeat(FILE_LINES_MAX - 4);
        let fits = format!("//! Head.\n{lines}#[cfg(test)]\nmod tests {{\n}}\n");
        let more = format!("{fits}// more\n");
        for path in ["crates/x/src/y.rs", "crates/x/tests/it/y.rs"] {
            assert_eq!(check_rust(path, &fits).len(), 0);
            assert_eq!(check_rust(path, &more).len(), 1);
        }
    }

    #[test]
    fn a_program_is_too_large() {
        let folder = std::env::temp_dir().join(format!("tidy-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("target")).expect("writable");
        for (name, bytes) in [
            ("fits", FILE_BYTES_MAX),
            ("program", FILE_BYTES_MAX + 1),
            ("target/built", FILE_BYTES_MAX + 1),
        ] {
            let file = std::fs::File::create(folder.join(name)).expect("writable");
            file.set_len(bytes).expect("writable");
        }
        let found = large_files(&folder).expect("readable");
        std::fs::remove_dir_all(&folder).expect("removable");
        let paths: Vec<&str> = found.iter().map(|found| found.path.as_str()).collect();
        assert_eq!(paths, ["program"]);
    }

    #[test]
    fn line_ends_are_repaired() {
        let fixed = with_clean_line_ends("a  \r\n\tb\t\nc");
        assert_eq!(fixed, "a\n\tb\nc\n");
        assert_eq!(check_text("x.md", &fixed).len(), 0);
        assert_eq!(with_clean_line_ends(""), "");
    }

    #[test]
    fn text_names_no_path_of_one_machine() {
        let bad = format!("see {}somebody/notes\n", concat!("/ho", "me/"));
        assert_eq!(check_text("x.md", &bad).len(), 1);
        assert_eq!(check_text("x.md", "docs/home/ and x \n").len(), 1);
        assert_eq!(check_text("x.md", "https://example.org/home/\n").len(), 0);
    }
}

//! Scripts of commands with their replies, in `testdata/<area>/<name>.script`.
//!
//! A script is a list of steps separated by empty lines. A step is a command in extended JSON (which may
//! span lines), `---`, and its reply; lines that start with `#` are comments. Commands run on the database
//! "test" unless they have a `$db`.
//!
//! With UPDATE_EXPECT=1 the replies are rewritten: review the difference before committing it.
//!
//! Clock and identities are fixed, so replies are deterministic. Cursor ids are random: they are written
//! `"<cursor>"`, in replies and in commands. Longs are spelt out, doubles have a decimal point, and a
//! compressed column shows its values as `$column`.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use nilometer::operation::Clock;
use nilometer::services::{Environment, IdSource};
use nilometer::{ClientSession, Database, Request};
use nilometer_bson::extjson::{parse_document, value_to_relaxed};
use nilometer_bson::{Array, Document, DocumentBuilder, Value, ValueRef, column};
use nilometer_storage::testing::is_long;
use nilometer_storage::{LsmEngine, LsmOptions, MemoryEngine};

use crate::support::{TemporaryDirectory, with_cut_keys};

/// 2024-05-06T07:08:09.010Z.
const NOW_MS: i64 = 1_714_979_289_010;

/// Longest value written on one line, in characters.
const LINE_MAX: usize = 100;

const CURSOR: &str = "<cursor>";

/// More values than any column of a script has.
const COLUMN_LENGTH_MAX: usize = 1000;

struct StoppedClock;

impl Clock for StoppedClock {
    fn now_ms(&self) -> i64 {
        NOW_MS
    }

    fn monotonic(&self) -> Duration {
        Duration::ZERO
    }
}

pub(crate) fn environment() -> Environment {
    Environment {
        clock: Arc::new(StoppedClock),
        ids: IdSource::seeded(1),
        ..Environment::default()
    }
}

/// Runs the steps of one script.
pub(crate) struct Runner {
    database: Database,
    session: ClientSession,
    cursors: Vec<i64>,
    /// What is done to the database after each command.
    after: fn(&Database),
}

impl Runner {
    fn new(database: Database) -> Self {
        Self::with(database, |_| ())
    }

    pub(crate) fn with(database: Database, after: fn(&Database)) -> Self {
        Self {
            database,
            session: ClientSession::embedded(),
            cursors: Vec::new(),
            after,
        }
    }

    /// Returns the reply to a command, as text.
    fn answer(&mut self, command: &str) -> String {
        let command = match parse_document(command) {
            Ok(command) => command,
            Err(error) => panic!("{error} in {command}"),
        };
        let mut body = DocumentBuilder::new();
        for element in command.iter() {
            body.append(element.name(), self.with_cursor(element.value()));
        }
        if command.get("$db").is_missing() {
            body.append("$db", "test");
        }
        let request = Request::new(body.finish());
        let reply = self.database.run_command(&mut self.session, &request);
        (self.after)(&self.database);
        if let Some(cursor) = reply.get("cursor").as_document()
            && let ValueRef::Int64(id @ 1..) = cursor.get("id")
        {
            self.cursors.push(id);
        }
        let mut out = String::new();
        self.print(&mut out, ValueRef::Document(reply.as_ref()), 0);
        out
    }

    /// Returns the value with the last cursor's id in place of its placeholder.
    fn with_cursor(&self, value: ValueRef<'_>) -> Value {
        match value {
            ValueRef::String(CURSOR) => Value::Int64(self.cursors.last().copied().unwrap_or(1)),
            ValueRef::Array(array) => {
                let values = array.iter().map(|v| self.with_cursor(v));
                Value::Array(values.collect::<Array>())
            }
            other => other.to_value(),
        }
    }

    /// Returns the value on one line.
    fn line(&self, value: ValueRef<'_>) -> String {
        match value {
            ValueRef::Int64(id) if self.cursors.contains(&id) => format!("\"{CURSOR}\""),
            ValueRef::Int64(n) => format!("{{\"$numberLong\": \"{n}\"}}"),
            ValueRef::Document(document) => {
                let fields = document
                    .iter()
                    .map(|e| format!("{}: {}", quoted(e.name()), self.line(e.value())));
                format!("{{{}}}", fields.collect::<Vec<_>>().join(", "))
            }
            ValueRef::Array(array) => {
                let values = array.iter().map(|v| self.line(v));
                format!("[{}]", values.collect::<Vec<_>>().join(", "))
            }
            ValueRef::Binary { subtype: 7, bytes } => {
                let values = column::decode_values(bytes, COLUMN_LENGTH_MAX).expect("a column");
                let values = values.iter().map(|v| self.line(v.as_ref()));
                format!(
                    "{{\"$column\": [{}]}}",
                    values.collect::<Vec<_>>().join(", ")
                )
            }
            ValueRef::String(text) => {
                let name = |text: String, id: &i64| text.replace(&id.to_string(), CURSOR);
                quoted(&self.cursors.iter().fold(text.to_owned(), name))
            }
            other => value_to_relaxed(other),
        }
    }

    fn print(&self, out: &mut String, value: ValueRef<'_>, depth: usize) {
        let line = self.line(value);
        let parts: Vec<(String, ValueRef<'_>)> = match value {
            _ if line.len() + 2 * depth <= LINE_MAX => Vec::new(),
            ValueRef::Document(d) => {
                let name = |name: &str| format!("{}: ", quoted(name));
                d.iter().map(|e| (name(e.name()), e.value())).collect()
            }
            ValueRef::Array(a) => a.iter().map(|v| (String::new(), v)).collect(),
            _ => Vec::new(),
        };
        if parts.is_empty() {
            out.push_str(&line);
            return;
        }
        let last = parts.len() - 1;
        out.push_str(&line[..1]);
        for (at, (name, value)) in parts.into_iter().enumerate() {
            write!(out, "\n{:1$}{name}", "", 2 * (depth + 1)).expect("memory");
            self.print(out, value, depth + 1);
            if at < last {
                out.push(',');
            }
        }
        write!(
            out,
            "\n{:1$}{end}",
            "",
            2 * depth,
            end = &line[line.len() - 1..]
        )
        .expect("memory");
    }
}

fn quoted(text: &str) -> String {
    value_to_relaxed(ValueRef::String(text))
}

/// Returns the script with the replies of `runner`.
pub(crate) fn play(script: &str, mut runner: Runner) -> String {
    let mut steps = Vec::new();
    for step in script.split("\n\n").map(|step| step.trim_matches('\n')) {
        let given = step.split_once("\n---").map_or(step, |(given, _)| given);
        let lines = given.lines().filter(|line| !line.starts_with('#'));
        let command = lines.collect::<Vec<_>>().join("\n");
        if command.is_empty() {
            steps.push(given.to_owned());
        } else {
            steps.push(format!("{given}\n---\n{}", runner.answer(&command)));
        }
    }
    steps.retain(|step| !step.is_empty());
    steps.join("\n\n") + "\n"
}

pub(crate) fn scripts() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    let list = |path: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(path).expect("test data");
        entries
            .map(|entry| entry.expect("test data").path())
            .collect()
    };
    let areas = list(&root).into_iter().filter(|path| path.is_dir());
    let mut scripts: Vec<PathBuf> = areas.flat_map(|area| list(&area)).collect();
    scripts.retain(|path| path.extension().is_some_and(|e| e == "script"));
    scripts.sort();
    scripts
}

/// Describes the first difference of two texts and its step.
fn difference(expected: &str, got: &str) -> String {
    let pairs = expected.split("\n\n").zip(got.split("\n\n"));
    let differing = pairs.filter(|(a, b)| a != b).take(3);
    let shown = differing.map(|(a, b)| format!("expected\n{a}\ngot\n{b}\n"));
    shown.collect::<Vec<_>>().join("\n")
}

/// Returns the text without the numbers of keyspaces, which are others where some keyspaces have companions.
pub(crate) fn without_keyspace_numbers(mut text: String) -> String {
    let is_digit = |c: char| c.is_ascii_hexdigit();
    for name in ["\"planCacheKey\": \"", "\"index-", "\"collection-"] {
        let mut parts = text.split(name);
        let mut out = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            out += name;
            out += part.trim_start_matches(is_digit);
        }
        text = out;
    }
    text
}

/// Plays a script in memory, in memory with cut keys, and in a directory; returns the differences from its text and between
/// the three. The fast suite plays a quarter of the scripts with cut keys, and another quarter in a directory.
fn check_script(at: usize, path: &Path) -> Vec<String> {
    let script = fs::read_to_string(path).expect("a script");
    let memory = Arc::new(MemoryEngine::new());
    let database = Database::with_engine(memory, environment()).expect("a database");
    let in_memory = play(&script, Runner::new(database));
    let mut failures = Vec::new();
    if is_long() || at.is_multiple_of(4) {
        let cut = with_cut_keys(Arc::new(MemoryEngine::new()));
        let database = Database::with_engine(cut, environment()).expect("a database");
        let cut = without_keyspace_numbers(play(&script, Runner::new(database)));
        let whole = without_keyspace_numbers(in_memory.clone());
        if whole != cut {
            let parts = difference(&whole, &cut);
            failures.push(format!("{}: cut keys differ\n{parts}", path.display()));
        }
    }
    if is_long() || at % 4 == 1 {
        let directory = TemporaryDirectory::new();
        let stored = LsmEngine::open(&directory.0, LsmOptions::default()).expect("an engine");
        let database = Database::with_engine(Arc::new(stored), environment()).expect("a database");
        let in_directory = play(&script, Runner::new(database));
        if in_memory != in_directory {
            let parts = difference(&in_memory, &in_directory);
            failures.push(format!("{}: engines differ\n{parts}", path.display()));
        }
    }
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        fs::write(path, &in_memory).expect("a script that can be written");
    } else if script != in_memory {
        let parts = difference(&script, &in_memory);
        failures.push(format!("{}\n{parts}", path.display()));
    }
    failures
}

#[test]
fn scripts_get_their_replies() {
    /// Scripts mostly wait for the disk.
    const THREADS: usize = 4;
    let scripts = scripts();
    assert!(!scripts.is_empty());
    let next = AtomicUsize::new(0);
    let check_some = || {
        let mut failures = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(path) = scripts.get(at) else {
                return failures;
            };
            failures.extend(check_script(at, path));
        }
    };
    let failures: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(check_some)).collect();
        let checked = threads.into_iter().map(|thread| thread.join());
        checked
            .flat_map(|failures| failures.expect("a script"))
            .collect()
    });
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn documents_are_written_on_short_lines() {
    let runner = Runner::new(Database::in_memory().expect("a database"));
    let long = "x".repeat(80);
    let mut inner = DocumentBuilder::new();
    inner
        .append("a", long.as_str())
        .append("b", 1i64)
        .append("c", 1.0);
    let mut outer = DocumentBuilder::new();
    outer.append("d", inner.finish()).append("e", 1);
    let document: Document = outer.finish();
    let mut out = String::new();
    runner.print(&mut out, ValueRef::Document(document.as_ref()), 0);
    let expected = format!(
        "{{\n  \"d\": {{\n    \"a\": \"{long}\",\n    \"b\": {{\"$numberLong\": \"1\"}},\n    \
         \"c\": 1.0\n  }},\n  \"e\": 1\n}}"
    );
    assert_eq!(out, expected);
}

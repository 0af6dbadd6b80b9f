//! The log: one JSON object per line, in the format that MongoDB's tools read.
//!
//! ```text
//! {"t":{"$date":"2026-01-02T03:04:05.678+00:00"},"s":"I","c":"NETWORK","id":22943,
//!  "ctx":"listener","msg":"Connection accepted","attr":{"remote":"127.0.0.1:5","connectionId":1}}
//! ```
//!
//! Events come from `tracing`. The fields `c` (component) and `id` of an event move to the top level, all others to
//! `attr`; `ctx` is the name of the thread, or the connection it serves ([`enter_connection`]). Each line goes to the
//! sink and to the ring buffer behind `getLog`; a warning marked with `startup = true` is also shown to every shell
//! that connects. The value of a field named `json.x` is JSON already: it becomes the attribute `x` unchanged.

mod json;

use std::cell::Cell;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use nilometer::services::LogRing;
use nilometer_bson::civil_date::iso_with_offset;
use tracing::field::{Field, Visit};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

use json::{write_number, write_string};

thread_local! {
    /// The connection served by the thread.
    static CONNECTION: Cell<Option<i64>> = const { Cell::new(None) };
}

/// Records that the calling thread serves connection `id`.
pub(crate) fn enter_connection(id: i64) {
    CONNECTION.set(Some(id));
}

/// The destination of lines besides the ring buffer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Sink {
    /// Standard output.
    #[default]
    StandardOutput,
    /// A file, truncated at startup or appended to.
    File {
        /// Its path.
        path: PathBuf,
        /// True to append.
        append: bool,
    },
    /// No destination.
    None,
}

enum Output {
    Standard,
    File(Mutex<File>),
    None,
}

/// Starts logging for the whole process. Fails if the file cannot be opened or logging was started already.
pub fn start(sink: &Sink, verbosity: u8, ring: Arc<LogRing>) -> io::Result<()> {
    let output = match sink {
        Sink::StandardOutput => Output::Standard,
        Sink::None => Output::None,
        Sink::File { path, append } => Output::File(Mutex::new(open(path, *append)?)),
    };
    ring.levels.set_level(i32::from(verbosity));
    let layer = JsonLayer { output, ring };
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(layer))
        .map_err(io::Error::other)
}

fn open(path: &Path, append: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true);
    if append {
        options.append(true);
    } else {
        options.write(true).truncate(true);
    }
    options.open(path)
}

struct JsonLayer {
    output: Output,
    ring: Arc<LogRing>,
}

/// Returns the least verbosity at which events of this level are logged.
fn verbosity_of(level: Level) -> i32 {
    match level {
        Level::ERROR | Level::WARN | Level::INFO => 0,
        Level::DEBUG => 1,
        Level::TRACE => 2,
    }
}

impl<S: Subscriber> Layer<S> for JsonLayer {
    /// The verbosity may change at any time, so a caller must not remember that an event is not logged.
    fn register_callsite(&self, metadata: &'static tracing::Metadata<'static>) -> Interest {
        match verbosity_of(*metadata.level()) {
            0 => Interest::always(),
            _ => Interest::sometimes(),
        }
    }

    fn enabled(&self, metadata: &tracing::Metadata<'_>, _: Context<'_, S>) -> bool {
        let needed = verbosity_of(*metadata.level());
        needed == 0 || needed <= self.ring.levels.greatest()
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let level = *event.metadata().level();
        let needed = verbosity_of(level);
        let component = fields.component.as_deref().unwrap_or_default();
        if needed > 0 && needed > self.ring.levels.of(component) {
            return;
        }
        let line = fields.line(level);
        // The ring buffer first: writing the file may block on a stuck disk, and `getLog` must show the line.
        self.ring.push(&line);
        if fields.startup && level <= Level::WARN {
            self.ring.push_startup_warning(&line);
        }
        match &self.output {
            // A log that cannot be written must not stop the server.
            Output::Standard => drop(writeln!(io::stdout().lock(), "{line}")),
            Output::File(file) => {
                let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
                drop(writeln!(file, "{line}"));
            }
            Output::None => {}
        }
    }
}

/// The fields of an event, sorted by destination.
#[derive(Default)]
struct Fields {
    component: Option<String>,
    id: u64,
    startup: bool,
    message: String,
    /// JSON members, separated by commas.
    attributes: String,
}

impl Fields {
    fn line(&self, level: Level) -> String {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let now_ms = i64::try_from(now.as_millis()).unwrap_or(i64::MAX);
        let mut line = String::with_capacity(160 + self.attributes.len());
        line.push_str("{\"t\":{\"$date\":\"");
        line.push_str(&iso_with_offset(now_ms));
        line.push_str("\"},\"s\":\"");
        line.push_str(severity(level));
        line.push_str("\",\"c\":");
        write_string(&mut line, self.component.as_deref().unwrap_or("-"));
        line.push_str(",\"id\":");
        write_number(&mut line, self.id);
        line.push_str(",\"ctx\":");
        match CONNECTION.get() {
            Some(id) => write_string(&mut line, &format!("conn{id}")),
            None => write_string(&mut line, std::thread::current().name().unwrap_or("-")),
        }
        line.push_str(",\"msg\":");
        write_string(&mut line, &self.message);
        if !self.attributes.is_empty() {
            line.push_str(",\"attr\":{");
            line.push_str(&self.attributes);
            line.push('}');
        }
        line.push('}');
        line
    }

    fn attribute(&mut self, name: &str) -> &mut String {
        if !self.attributes.is_empty() {
            self.attributes.push(',');
        }
        write_string(&mut self.attributes, name);
        self.attributes.push(':');
        &mut self.attributes
    }
}

fn severity(level: Level) -> &'static str {
    match level {
        Level::ERROR => "E",
        Level::WARN => "W",
        Level::INFO => "I",
        Level::DEBUG => "D1",
        Level::TRACE => "D2",
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => value.clone_into(&mut self.message),
            "c" => self.component = Some(value.to_owned()),
            name => match name.strip_prefix("json.") {
                Some(name) => self.attribute(name).push_str(value),
                None => write_string(self.attribute(name), value),
            },
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "id" => self.id = value,
            name => write_number(self.attribute(name), value),
        }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        match (field.name(), u64::try_from(value)) {
            ("id", Ok(id)) => self.id = id,
            (name, _) => write_number(self.attribute(name), value),
        }
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        match field.name() {
            "startup" => self.startup = value,
            name => self
                .attribute(name)
                .push_str(if value { "true" } else { "false" }),
        }
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        let out = self.attribute(field.name());
        if value.is_finite() {
            write_number(out, value);
        } else {
            out.push_str("null");
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}");
        self.record_str(field, &text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_format_tools_read() {
        let mut fields = Fields {
            component: Some("NETWORK".into()),
            id: 22_943,
            message: "Connection \"accepted\"\n".into(),
            ..Fields::default()
        };
        write_number(fields.attribute("connectionId"), 7);
        write_string(fields.attribute("remote"), "::1");
        let line = fields.line(Level::INFO);
        assert!(line.starts_with("{\"t\":{\"$date\":\"2"), "{line}");
        let rest = line.split_once("},").expect("a time").1;
        assert!(
            rest.starts_with("\"s\":\"I\",\"c\":\"NETWORK\",\"id\":22943,\"ctx\":"),
            "{rest}"
        );
        assert!(
            rest.ends_with(
                "\"msg\":\"Connection \\\"accepted\\\"\\n\",\"attr\":{\"connectionId\":7,\"remote\":\"::1\"}}"
            ),
            "{rest}"
        );
    }
}

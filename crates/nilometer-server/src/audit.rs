//! The audit log: one event per line, as JSON, appended to a file.
//!
//! The database decides which events are logged. A failure to write an event is logged in the server's log; the command
//! continues.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use nilometer_bson::extjson::value_to_relaxed;
use nilometer_bson::{Document, ValueRef};
use tracing::error;

/// The open file.
pub(crate) struct AuditLog(Mutex<File>);

impl AuditLog {
    /// Opens the file. Creates it if it is absent, readable by its owner only.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        use std::os::unix::fs::OpenOptionsExt;
        let mut options = OpenOptions::new();
        let file = options.append(true).create(true).mode(0o600).open(path)?;
        Ok(Self(Mutex::new(file)))
    }

    /// Writes an event.
    pub(crate) fn write(&self, event: &Document) {
        let mut line = value_to_relaxed(ValueRef::Document(event.as_ref())).to_string();
        line.push('\n');
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(problem) = file.write_all(line.as_bytes()) {
            error!(c = "ACCESS", id = 6_694_200, error = %problem, "The audit log cannot be written");
        }
    }
}

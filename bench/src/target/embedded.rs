//! The database in this process: the same commands without sockets and messages.

use std::sync::Arc;

use nilometer::operation::DocumentSequence;
use nilometer::{ClientSession, Database, Request};
use nilometer_bson::Document;

use super::{Connection, Outcome};

/// A session with the database.
pub(crate) struct Embedded {
    database: Arc<Database>,
    session: ClientSession,
}

impl Embedded {
    pub(crate) fn new(database: &Arc<Database>) -> Self {
        Self {
            database: database.clone(),
            session: ClientSession::embedded(),
        }
    }
}

impl Connection for Embedded {
    fn call(&mut self, command: &Document, documents: Option<Arc<Vec<u8>>>) -> Outcome<Document> {
        let mut request = Request::new(command.clone());
        if let Some(buffer) = documents {
            let all = 0..buffer.len();
            let sequence = DocumentSequence::new("documents".to_string(), buffer, all);
            request
                .sequences
                .push(sequence.ok_or("documents that are not framed")?);
        }
        Ok(self.database.run_command(&mut self.session, &request))
    }
}

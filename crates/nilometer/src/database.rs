//! The database as a value: what an embedding program opens and the server serves.

use std::sync::Arc;

use nilometer_bson::Document;

use crate::commands;
use crate::operation::Request;
use crate::services::{Environment, Services};
use crate::session::ClientSession;

/// An open database.
pub struct Database {
    services: Arc<Services>,
}

impl Database {
    /// A database without storage, for a server that answers the handshake.
    pub fn new(environment: Environment) -> Self {
        Self {
            services: Arc::new(Services::new(environment)),
        }
    }

    /// What commands share besides data.
    pub fn services(&self) -> &Arc<Services> {
        &self.services
    }

    /// Ends a logical session.
    pub(crate) fn end_session(&self, id: crate::session::SessionId) {
        self.services.sessions.end(id);
    }

    /// Runs one command and answers it; a failure is a reply too (`ok: 0`).
    pub fn run_command(&self, session: &mut ClientSession, request: &Request) -> Document {
        commands::run(self, session, request)
    }
}

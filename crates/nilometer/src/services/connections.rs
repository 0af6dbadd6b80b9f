//! The open connections of the transport, for idle connections in `currentOp`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::session::{ClientMetadata, UserName};

/// The client of a connection.
#[derive(Clone, Debug)]
pub struct OpenConnection {
    /// The metadata the client sent.
    pub client: Arc<ClientMetadata>,
    /// The user logged in on the connection.
    pub user: Option<UserName>,
}

/// All open connections by number.
#[derive(Debug, Default)]
pub struct Connections {
    clients: Mutex<BTreeMap<i64, OpenConnection>>,
}

impl Connections {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<i64, OpenConnection>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds connection `id`.
    pub fn open(&self, id: i64, client: Arc<ClientMetadata>) {
        self.lock()
            .insert(id, OpenConnection { client, user: None });
    }

    /// Updates the client metadata of connection `id`, if it is open.
    pub(crate) fn update(&self, id: i64, client: &Arc<ClientMetadata>) {
        if let Some(known) = self.lock().get_mut(&id) {
            known.client = client.clone();
        }
    }

    /// Sets the user of connection `id`, if it is open.
    pub(crate) fn set_user(&self, id: i64, user: Option<&UserName>) {
        if let Some(known) = self.lock().get_mut(&id) {
            known.user = user.cloned();
        }
    }

    /// Removes connection `id`.
    pub fn close(&self, id: i64) {
        self.lock().remove(&id);
    }

    /// Returns all connections, by number.
    pub fn list(&self) -> Vec<(i64, OpenConnection)> {
        let clients = self.lock();
        clients.iter().map(|(id, c)| (*id, c.clone())).collect()
    }
}

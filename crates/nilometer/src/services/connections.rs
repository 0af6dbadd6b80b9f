//! The connections a transport has open, for `currentOp`: who is connected and asks nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::session::ClientMetadata;

/// All open connections by number.
#[derive(Debug, Default)]
pub struct Connections {
    clients: Mutex<BTreeMap<i64, Arc<ClientMetadata>>>,
}

impl Connections {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<i64, Arc<ClientMetadata>>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters connection `id`.
    pub fn open(&self, id: i64, client: Arc<ClientMetadata>) {
        self.lock().insert(id, client);
    }

    /// Takes over what the client of connection `id`, if it is entered, has told of itself.
    pub(crate) fn update(&self, id: i64, client: &Arc<ClientMetadata>) {
        if let Some(known) = self.lock().get_mut(&id) {
            *known = client.clone();
        }
    }

    /// Takes connection `id` out.
    pub fn close(&self, id: i64) {
        self.lock().remove(&id);
    }

    /// All of them by number.
    pub fn list(&self) -> Vec<(i64, Arc<ClientMetadata>)> {
        let clients = self.lock();
        clients.iter().map(|(id, c)| (*id, c.clone())).collect()
    }
}

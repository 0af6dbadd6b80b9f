//! The connections a transport has open, for `currentOp`: who is connected and asks nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::session::{ClientMetadata, UserName};

/// Who is connected.
#[derive(Clone, Debug)]
pub struct Connected {
    /// What the client told about itself.
    pub client: Arc<ClientMetadata>,
    /// Who is logged in there.
    pub user: Option<UserName>,
}

/// All open connections by number.
#[derive(Debug, Default)]
pub struct Connections {
    clients: Mutex<BTreeMap<i64, Connected>>,
}

impl Connections {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<i64, Connected>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters connection `id`.
    pub fn open(&self, id: i64, client: Arc<ClientMetadata>) {
        self.lock().insert(id, Connected { client, user: None });
    }

    /// Takes over what the client of connection `id`, if it is entered, has told of itself.
    pub(crate) fn update(&self, id: i64, client: &Arc<ClientMetadata>) {
        if let Some(known) = self.lock().get_mut(&id) {
            known.client = client.clone();
        }
    }

    /// Notes who is logged in on connection `id`, if it is entered.
    pub(crate) fn set_user(&self, id: i64, user: Option<&UserName>) {
        if let Some(known) = self.lock().get_mut(&id) {
            known.user = user.cloned();
        }
    }

    /// Takes connection `id` out.
    pub fn close(&self, id: i64) {
        self.lock().remove(&id);
    }

    /// All of them by number.
    pub fn list(&self) -> Vec<(i64, Connected)> {
        let clients = self.lock();
        clients.iter().map(|(id, c)| (*id, c.clone())).collect()
    }
}

//! The login of one connection: its user and the authentication in progress.

use std::sync::Arc;

use super::authority::Authority;
use super::grants::Grants;
use super::names::UserName;
use super::scram::Conversation;

/// The authenticated user of a connection: one at a time; a later login replaces an earlier one.
#[derive(Clone, Debug, Default)]
pub struct Login {
    trusted: bool,
    is_member: bool,
    grants: Option<Arc<Grants>>,
    conversation: Option<(i32, Arc<std::sync::Mutex<Conversation>>)>,
    conversations: i32,
}

impl Login {
    /// Makes the login of an embedded caller, which may do everything.
    pub fn trusted() -> Self {
        Self {
            trusted: true,
            ..Self::default()
        }
    }

    /// True for an embedded caller.
    pub fn is_trusted(&self) -> bool {
        self.trusted
    }

    /// True for another process of the cluster.
    pub fn is_member(&self) -> bool {
        self.is_member
    }

    /// Logs another process of the cluster in.
    pub fn succeed_as_member(&mut self) {
        self.is_member = true;
    }

    /// Stores a new conversation in place of an earlier one; returns its number.
    pub fn begin(&mut self, conversation: Conversation) -> i32 {
        self.conversations = self.conversations.wrapping_add(1);
        let shared = Arc::new(std::sync::Mutex::new(conversation));
        self.conversation = Some((self.conversations, shared));
        self.conversations
    }

    /// Returns the conversation in progress and its number.
    pub fn conversation(&self) -> Option<(i32, Arc<std::sync::Mutex<Conversation>>)> {
        self.conversation.clone()
    }

    /// Ends the conversation.
    pub fn end_conversation(&mut self) {
        self.conversation = None;
    }

    /// Logs the user in.
    pub fn succeed(&mut self, grants: Arc<Grants>) {
        self.grants = Some(grants);
    }

    /// Logs the user out.
    pub fn log_out(&mut self) {
        self.grants = None;
        self.is_member = false;
        self.conversation = None;
    }

    /// Returns the user.
    pub fn user(&self) -> Option<&UserName> {
        self.grants.as_ref().map(|grants| &grants.user.name)
    }

    /// Returns the current grants of the user, recomputed if users or roles have changed. A user that was
    /// dropped, or replaced by another of the same name, is logged out.
    pub fn grants(&mut self, authority: &Authority) -> Option<&Arc<Grants>> {
        let known = self.grants.as_ref()?;
        if known.generation != authority.generation() {
            let now = authority.grants(&known.user.name);
            self.grants = now.filter(|now| now.user.id == known.user.id).map(Arc::new);
        }
        self.grants.as_ref()
    }

    /// Returns the grants at the last command.
    pub fn cached_grants(&self) -> Option<&Arc<Grants>> {
        self.grants.as_ref()
    }
}

//! The login of one connection: who it is, and what is under way.

use std::sync::Arc;

use super::authority::Authority;
use super::grants::Grants;
use super::names::UserName;
use super::scram::Conversation;

/// Who a connection has shown to be. A connection is one user at a time; a later login takes the
/// place of an earlier one.
#[derive(Clone, Debug, Default)]
pub struct Login {
    trusted: bool,
    grants: Option<Arc<Grants>>,
    conversation: Option<(i32, Arc<std::sync::Mutex<Conversation>>)>,
    conversations: i32,
}

impl Login {
    /// The login of a caller in the same process, who holds the database and may do everything.
    pub fn trusted() -> Self {
        Self {
            trusted: true,
            ..Self::default()
        }
    }

    /// True for a caller in the same process.
    pub fn is_trusted(&self) -> bool {
        self.trusted
    }

    /// Notes a conversation that was begun, in place of an earlier one, and gives its number.
    pub fn begin(&mut self, conversation: Conversation) -> i32 {
        self.conversations = self.conversations.wrapping_add(1);
        let shared = Arc::new(std::sync::Mutex::new(conversation));
        self.conversation = Some((self.conversations, shared));
        self.conversations
    }

    /// The conversation under way and its number.
    pub fn conversation(&self) -> Option<(i32, Arc<std::sync::Mutex<Conversation>>)> {
        self.conversation.clone()
    }

    /// The conversation is over.
    pub fn end_conversation(&mut self) {
        self.conversation = None;
    }

    /// The user has shown who it is.
    pub fn succeed(&mut self, grants: Arc<Grants>) {
        self.grants = Some(grants);
    }

    /// Nobody is logged in any more.
    pub fn log_out(&mut self) {
        self.grants = None;
        self.conversation = None;
    }

    /// Who is logged in.
    pub fn user(&self) -> Option<&UserName> {
        self.grants.as_ref().map(|grants| &grants.user.name)
    }

    /// What the user may do, as of now. If something has changed since it is worked out again; a
    /// user who is no more, or is another one of the same name, is logged out.
    pub fn grants(&mut self, authority: &Authority) -> Option<&Arc<Grants>> {
        let known = self.grants.as_ref()?;
        if known.generation != authority.generation() {
            let now = authority.grants(&known.user.name);
            self.grants = now.filter(|now| now.user.id == known.user.id).map(Arc::new);
        }
        self.grants.as_ref()
    }

    /// What was known of the user at the last command.
    pub fn known_grants(&self) -> Option<&Arc<Grants>> {
        self.grants.as_ref()
    }
}

//! Updates of one document that may change its shard key.
//!
//! ```text
//! numbered, and the filter fixes the whole key   the partition runs it, but changes no key: it answers with the document before and after
//!      ├── the new key is in the same partition   ─► the partition is asked again, and may give the document this key
//!      └── in another one                         ─► the document moves (`router/key_moves.rs`)
//! any other                                       only if the key stays as it is; else refused as MongoDB does
//! ```

use nilometer_bson::{DocRef, Document, ValueRef};

use super::change::filter_of;
use super::narrowed::Narrowed;
use crate::catalog::Namespace;
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::eval::matcher::MatchExpression;
use crate::operation::{AcceptedDocument, GuardedKey, OperationContext, RoutedRequest};
use crate::router::{KeyChange, KeyRule, KeyUpdate, Placement, Router, write_request};

/// The router, the command that runs, and its collection.
type Place<'p> = (&'p Router, &'p OperationContext, &'p Namespace);

/// How a statement treats the shard keys of documents.
#[derive(Default)]
pub(super) struct KeyTreatment {
    /// What a document must meet so that the update leaves its key as it is.
    pub(super) conditions: Vec<Document>,
    /// The key that partitions do not change.
    guarded: Option<Document>,
    /// Why the key must stay as it is.
    pub(super) refusal: Option<Error>,
}

impl KeyTreatment {
    /// Decides what an update may do. `filter` is that of its statement, as far as its text alone says which documents pass.
    fn of(
        placement: &Placement,
        operation: &OperationContext,
        (changes, is_multi): (ValueRef<'_>, bool),
        filter: Option<&MatchExpression>,
    ) -> Result<Self> {
        let Some(sharding) = &placement.sharding else {
            return Ok(Self::default());
        };
        let change = sharding.key.change_by(changes, is_multi)?;
        if matches!(change, KeyChange::None) {
            return Ok(Self::default());
        }
        let rule = KeyRule {
            is_numbered: operation.txn_number.is_some(),
            names_key: filter.is_some_and(|filter| sharding.key.is_fixed_by(filter)),
        };
        let refusal = rule.refusal();
        Ok(match change {
            KeyChange::To(conditions) if refusal.is_some() => Self {
                conditions,
                guarded: None,
                refusal,
            },
            _ => Self {
                conditions: Vec::new(),
                guarded: Some(sharding.key.written()),
                refusal,
            },
        })
    }

    fn guard(&self, allowed: Option<&Document>) -> Option<GuardedKey> {
        let key = self.guarded.clone()?;
        Some(GuardedKey {
            key,
            allowed: allowed.cloned(),
        })
    }
}

/// How a statement is tried by one placement.
pub(super) struct StatementPlan {
    treatment: KeyTreatment,
    narrow: Option<Narrowed>,
    /// The partitions that may have its documents.
    pub(super) targets: Vec<usize>,
}

impl StatementPlan {
    /// Plans a statement, whose filter is its field `name`. `targets` are the partitions that may have documents which pass it.
    pub(super) fn of(
        database: &Database,
        place: Place<'_>,
        placement: &Placement,
        (statement, name): (DocRef<'_>, &str),
        of: (ValueRef<'_>, bool),
        (targets, by_bytes): (Vec<usize>, bool),
    ) -> Result<Self> {
        let filter = filter_of(statement, by_bytes);
        let treatment = KeyTreatment::of(placement, place.1, of, filter.as_ref())?;
        let (named, of) = ((statement, name), (of.1, targets.len()));
        let narrow = Narrowed::of(database, place, &treatment, named, of)?;
        let targets = match &narrow {
            None => targets,
            Some(narrow) => placement.targets(narrow.filter(by_bytes).as_ref()),
        };
        Ok(Self {
            treatment,
            narrow,
            targets,
        })
    }

    /// Returns the statement with further conditions, if it has any.
    pub(super) fn statement<'s>(&'s self, original: DocRef<'s>) -> DocRef<'s> {
        self.narrow.as_ref().map_or(original, Narrowed::statement)
    }

    /// Returns the shard key that the partitions check, and the new key that they allow: `allowed`, if its placement is still
    /// `placement`.
    pub(super) fn guard(
        &self,
        placement: &Placement,
        allowed: Option<&AllowedKey>,
    ) -> Option<GuardedKey> {
        let allowed = allowed.filter(|allowed| allowed.version == placement.version);
        self.treatment.guard(allowed.map(|allowed| &allowed.values))
    }

    /// True if the statement may have run in a partition that is no target now: another document may be the first of all, or
    /// its document has moved.
    pub(super) fn may_have_run_elsewhere(&self) -> bool {
        self.narrow.is_some() || self.treatment.guarded.is_some()
    }

    /// Fails if the statement has found nothing, but would change the key of another document.
    pub(super) fn check(&self, database: &Database, place: Place<'_>) -> Result<()> {
        match &self.narrow {
            Some(narrow) => narrow.check(database, place),
            None => Ok(()),
        }
    }
}

/// What the shard key of a document may become, as long as the placement is the one that has it in the same partition.
pub(super) struct AllowedKey {
    version: i64,
    values: Document,
}

/// What follows when an update would change a key.
pub(super) enum KeyStep {
    /// It runs again in the same partition, which may give the document this key.
    Allow(AllowedKey),
    /// It has run, with this reply of a partition.
    Done(Document),
    /// The statement fails with this error.
    Refused(Error),
}

/// Carries out the change of a key. `body` is the command with the one statement of that number; `is_only` is false if the
/// client's command has others.
pub(super) fn change_key(
    (router, operation, namespace): Place<'_>,
    placement: &Placement,
    plan: &StatementPlan,
    change: AcceptedDocument,
    (body, number, is_only): (&Document, u32, bool),
) -> Result<KeyStep> {
    if let Some(refusal) = &plan.treatment.refusal {
        return Ok(KeyStep::Refused(refusal.clone()));
    }
    let from = placement.partition_of(change.before.as_ref())?;
    if placement.partition_of(change.after.as_ref())? == from
        && let Some(sharding) = &placement.sharding
    {
        let key = sharding.key.of(change.after.as_ref())?;
        return Ok(KeyStep::Allow(AllowedKey {
            version: placement.version,
            values: sharding.key.shown(&key),
        }));
    }
    if !is_only {
        return Ok(KeyStep::Refused(Error::invalid_options(
            "Document shard key value updates that cause the doc to move shards must be sent with write batch of size 1",
        )));
    }
    let routed = RoutedRequest::default();
    let request = write_request(&namespace.database, body.clone(), operation, routed);
    let update = KeyUpdate {
        body: request.body,
        statement: number,
        before: change.before,
    };
    match router.move_document(namespace, &update, operation) {
        Err(error) if error.code == ErrorCode::DuplicateKey => Ok(KeyStep::Refused(error)),
        reply => reply.map(KeyStep::Done),
    }
}

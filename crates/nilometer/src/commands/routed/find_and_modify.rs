//! `findAndModify` on a router: one document of the partitions that may have it.

use nilometer_bson::{DocRef, Document};

use super::change::{ask_one, rounds, targets, without, without_ok};
use super::insert::{placed, unsettled};
use super::key_updates::{AllowedKey, KeyStep, StatementPlan, change_key};
use super::{PLACEMENT_CHANGES_MAX, compares_by_bytes, forwarded, number, router_of, writable};
use crate::args::Args;
use crate::catalog::Namespace;
use crate::commands::CommandContext;
use crate::commands::crud::find_and_modify;
use crate::commands::ddl::collection_uuid;
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::operation::{OperationContext, PlacementVersion, Request, RoutedRequest};
use crate::router::{Placement, Router, key_change_of};

pub(super) fn run(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let router = router_of(database);
    let body = request.body.as_ref();
    let name = body.iter().next().and_then(|first| first.value().as_str());
    let name = name.ok_or_else(|| {
        Error::new(
            ErrorCode::InvalidNamespace,
            "findAndModify needs the name of a collection",
        )
    })?;
    let namespace = writable(context.database_name(), name)?;
    let args = Args::new("findAndModify", body);
    collection_uuid::check(database, &args, &namespace)?;
    let is_upsert = args.lenient_boolean("upsert")?.unwrap_or(false);
    let operation = &context.operation;
    placed(database, operation, router, &namespace)?;
    let _write = router.begin_write();
    let original = forwarded(body, &["collectionUUID"], operation);
    let mut modification = Modification {
        database,
        place: (router, operation, &namespace),
        original: original.as_ref(),
        is_upsert,
        new: None,
        allowed: None,
    };
    for _ in 0..PLACEMENT_CHANGES_MAX {
        match modification.attempt()? {
            Some(Ok(reply)) => return Ok(reply),
            Some(Err(wanted)) => router.settle(&wanted, operation)?,
            None => {}
        }
    }
    Err(unsettled(&namespace))
}

/// The command, and what its attempts have found so far.
struct Modification<'m> {
    database: &'m Database,
    place: Place<'m>,
    original: DocRef<'m>,
    is_upsert: bool,
    /// The document of an upsert that finds nothing.
    new: Option<Document>,
    /// What the shard key of its document may become.
    allowed: Option<AllowedKey>,
}

impl Modification<'_> {
    /// Tries the command by the placement of now; `None` if it is to be tried again.
    fn attempt(&mut self) -> Result<Option<Answer>> {
        let (database, place, original) = (self.database, self.place, self.original);
        let namespace = place.2;
        let changes = original.get("update");
        let by_bytes = compares_by_bytes(database, namespace);
        let Some((placement, targets)) = targets(place, original, by_bytes, changes)? else {
            placed(database, place.1, place.0, namespace)?;
            return Ok(None);
        };
        if compares_by_bytes(database, namespace) != by_bytes {
            // The placement is that of another collection of the name.
            return Ok(None);
        }
        let (named, of) = ((original, "query"), (changes, false));
        let targets = (targets, by_bytes);
        let plan = StatementPlan::of(database, place, &placement, named, of, targets)?;
        let whole = plan.statement(original);
        let is_divided = placement.sharding.is_some() && self.is_upsert;
        let tried = match is_divided {
            true => without(whole, &["upsert"]),
            false => whole.to_document(),
        };
        let routed = RoutedRequest {
            placement: Some(placement.version_of(namespace)),
            guarded_key: plan.guard(&placement, self.allowed.as_ref()),
            ..RoutedRequest::default()
        };
        let targets = (&*plan.targets, is_divided || plan.may_have_run_elsewhere());
        let answer = match find_in(place, &placement, targets, (&tried, &routed)) {
            Ok(answer) => answer,
            Err(error) => {
                let change = key_change_of(&error).ok_or(error)?;
                match change_key(place, &placement, &plan, change, (&tried, 0, true))? {
                    KeyStep::Allow(key) => {
                        self.allowed = Some(key);
                        return Ok(None);
                    }
                    KeyStep::Done(reply) => Ok(without_ok(&reply)),
                    KeyStep::Refused(error) => return Err(error),
                }
            }
        };
        let finds_nothing = answer.as_ref().is_ok_and(|reply| !has_document(reply));
        if finds_nothing {
            plan.check(database, place)?;
        }
        match finds_nothing && is_divided {
            true => self.upsert(&placement, &whole.to_document(), routed),
            false => Ok(Some(answer)),
        }
    }

    /// Runs an upsert that has found nothing in the partition of its document.
    fn upsert(
        &mut self,
        placement: &Placement,
        body: &Document,
        routed: RoutedRequest,
    ) -> Result<Option<Answer>> {
        let (_, operation, namespace) = self.place;
        if self.new.is_none() {
            let (database, original) = (self.database, self.original);
            let new = find_and_modify::new_document(database, operation, namespace, original);
            self.new = Some(new?);
        }
        let document = self.new.as_ref();
        let document = document.map_or(DocRef::EMPTY, Document::as_ref);
        let partition = placement.partition_of(document)?;
        let routed = RoutedRequest {
            upserted: self.new.clone(),
            ..routed
        };
        match ask_one(self.place, partition, body, &routed) {
            // A document has come meanwhile.
            Err(error) if key_change_of(&error).is_some() => Ok(None),
            answer => Ok(Some(answer?.map(|reply| without_ok(&reply)))),
        }
    }
}

/// A reply, or the placement that a partition asks for.
type Answer = std::result::Result<Document, PlacementVersion>;

/// The router, the command that runs, and its collection.
type Place<'p> = (&'p Router, &'p OperationContext, &'p Namespace);

/// True if a document was found or inserted.
fn has_document(reply: &Document) -> bool {
    let result = reply.get("lastErrorObject").as_document();
    result.is_some_and(|result| number(result.get("n")) > 0)
}

/// Runs the command in one target after the other, until one has a document. If it may have run in any partition before,
/// `is_anywhere` is true.
fn find_in(
    place: Place<'_>,
    placement: &Placement,
    (targets, is_anywhere): (&[usize], bool),
    (body, routed): (&Document, &RoutedRequest),
) -> Result<Answer> {
    let (router, operation, _) = place;
    let mut last = Document::new();
    for (repeats_only, round) in rounds((router, operation), placement, targets, is_anywhere) {
        let routed = RoutedRequest {
            repeats_only,
            ..routed.clone()
        };
        for target in round {
            last = match ask_one(place, target, body, &routed)? {
                Ok(reply) => without_ok(&reply),
                Err(wanted) => return Ok(Err(wanted)),
            };
            if has_document(&last) {
                return Ok(Ok(last));
            }
        }
    }
    Ok(Ok(last))
}

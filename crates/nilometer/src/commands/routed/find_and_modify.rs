//! `findAndModify` on a router: one document of the partitions that may have it.

use nilometer_bson::{DocRef, Document};

use super::change::{ask_one, rounds, targets, without, without_ok};
use super::insert::{dropped, placed, unsettled};
use super::narrowed::Narrowed;
use super::{PLACEMENT_CHANGES_MAX, compares_by_bytes, forwarded, number, router_of, writable};
use crate::args::Args;
use crate::catalog::Namespace;
use crate::commands::CommandContext;
use crate::commands::crud::find_and_modify;
use crate::commands::ddl::collection_uuid;
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::operation::{OperationContext, PlacementVersion, Request, RoutedRequest};
use crate::router::{Placement, Router};

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
    let by_bytes = compares_by_bytes(database, &namespace);
    let mut new = None;
    for _ in 0..PLACEMENT_CHANGES_MAX {
        let place = (router, operation, &namespace);
        let found = targets(place, body, by_bytes, body.get("update"))?;
        let (placement, mut targets) = found.ok_or_else(|| dropped(&namespace))?;
        let is_divided = placement.sharding.is_some() && is_upsert;
        let statement = (original.as_ref(), "query");
        let of = (body.get("update"), false, targets.len());
        let narrow = Narrowed::of(database, place, &placement, statement, of)?;
        if let Some(narrow) = &narrow {
            targets = placement.targets(narrow.filter(by_bytes).as_ref());
        }
        let whole = narrow
            .as_ref()
            .map_or(original.as_ref(), Narrowed::statement);
        let tried = match is_divided {
            true => without(whole, &["upsert"]),
            false => whole.to_document(),
        };
        // Another document may be the first of all partitions now, in another partition.
        let has_run = is_divided || narrow.is_some();
        let mut answer = find_in(place, &placement, (&targets, has_run), &tried)?;
        if let (Some(narrow), Ok(reply)) = (&narrow, &answer)
            && !has_document(reply)
        {
            narrow.check(database, place)?;
        }
        if is_divided && answer.as_ref().is_ok_and(|reply| !has_document(reply)) {
            if new.is_none() {
                let made = find_and_modify::new_document(
                    database,
                    operation,
                    &namespace,
                    original.as_ref(),
                );
                new = Some(made?);
            }
            answer = upsert(place, &placement, &whole.to_document(), new.as_ref())?;
        }
        match answer {
            Ok(reply) => return Ok(reply),
            Err(wanted) => router.settle(&wanted, operation)?,
        }
    }
    Err(unsettled(&namespace))
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
    body: &Document,
) -> Result<Answer> {
    let (router, operation, namespace) = place;
    let mut last = Document::new();
    for (repeats_only, round) in rounds((router, operation), placement, targets, is_anywhere) {
        let routed = RoutedRequest {
            placement: Some(placement.version_of(namespace)),
            repeats_only,
            ..RoutedRequest::default()
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

/// Runs an upsert that has found nothing in the partition of its document.
fn upsert(
    place: Place<'_>,
    placement: &Placement,
    body: &Document,
    new: Option<&Document>,
) -> Result<Answer> {
    let document = new.map_or(DocRef::EMPTY, Document::as_ref);
    let partition = placement.partition_of(document)?;
    let routed = RoutedRequest {
        placement: Some(placement.version_of(place.2)),
        upserted: new.cloned(),
        ..RoutedRequest::default()
    };
    let answer = ask_one(place, partition, body, &routed)?;
    Ok(answer.map(|reply| without_ok(&reply)))
}

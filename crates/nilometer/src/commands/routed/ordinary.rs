//! Shard keys of ordinary collections.
//!
//! A document is in the partition that has the chunk of its key. So unique indexes begin with the key, and a range that has
//! documents stays where it is.

use nilometer_bson::{DocRef, Document, DocumentBuilder, Value, doc};

use super::{first_batch, is_true};
use crate::catalog::Namespace;
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::eval::Collation;
use crate::operation::OperationContext;
use crate::router::{KeyBound, Placement, Router, ShardKey, Sharding};

/// The router, and the command that runs.
type By<'b> = (&'b Router, &'b OperationContext);

/// Fails if a collection cannot have this shard key.
pub(super) fn check(
    database: &Database,
    by: By<'_>,
    namespace: &Namespace,
    placement: &Placement,
    (key, is_unique): (&ShardKey, bool),
) -> Result<()> {
    let list = doc! {"listIndexes": namespace.collection.as_str()};
    let indexes = first_batch(&database.call(&namespace.database, list)?);
    for index in indexes.iter().map(Document::as_ref) {
        let of = index.get("key").as_document().unwrap_or(DocRef::EMPTY);
        if is_true(index.get("unique")) && !key.allows_unique(of) {
            return Err(Error::invalid_options(format!(
                "can't shard collection '{namespace}': its unique index '{}' does not begin with the shard key",
                index.get("name").as_str().unwrap_or_default()
            )));
        }
    }
    let own = [placement.primary];
    if !has_documents(by, namespace, &own, &Document::new())? {
        return Ok(());
    }
    let mut indexes = indexes.iter().map(Document::as_ref);
    if !indexes.any(|index| supports(index, key, is_unique)) {
        return Err(Error::invalid_options(
            "Please create an index that starts with the proposed shard key before sharding the collection",
        ));
    }
    let arrays = key.parts().iter().flat_map(|part| {
        let path = part.path.as_str();
        let ends = path
            .match_indices('.')
            .map(|(at, _)| at)
            .chain([path.len()]);
        ends.filter_map(|end| path.get(..end))
            .map(|path| {
                let mut out = DocumentBuilder::new();
                out.append(path, doc! {"$type": "array"});
                Value::from(out.finish())
            })
            .collect::<Vec<_>>()
    });
    let arrays = doc! {"$or": arrays.collect::<Vec<_>>()};
    match has_documents(by, namespace, &own, &arrays)? {
        true => Err(Error::invalid_options(
            "a document has an array in the proposed shard key",
        )),
        false => Ok(()),
    }
}

/// True if an index, as it is listed, finds all documents by the shard key.
pub(super) fn supports(index: DocRef<'_>, key: &ShardKey, is_unique: bool) -> bool {
    let of = index.get("key").as_document().unwrap_or(DocRef::EMPTY);
    let is_same = of.iter().count() == key.parts().len();
    let is_id = is_same && key.parts().iter().all(|part| part.path.as_str() == "_id");
    let collation = index.get("collation").as_document();
    let collation = collation.map(|collation| Collation::parse(collation, "collation"));
    let is_simple = collation.is_none_or(|parsed| parsed.is_ok_and(|parsed| parsed.is_simple()));
    let is_whole = index.get("partialFilterExpression").is_missing();
    is_simple
        && is_whole
        && !is_true(index.get("sparse"))
        && key.is_prefix_of(of)
        && (!is_unique || is_id || is_same && is_true(index.get("unique")))
}

/// True if one of the partitions has a document that passes the filter.
pub(super) fn has_documents(
    (router, operation): By<'_>,
    namespace: &Namespace,
    partitions: &[usize],
    filter: &Document,
) -> Result<bool> {
    let find = doc! {
        "find": namespace.collection.as_str(), "filter": filter.clone(), "limit": 1,
        "singleBatch": true, "collation": doc! {"locale": "simple"},
    };
    let found = router.ask_all(partitions, &namespace.database, &find, operation)?;
    Ok(found.iter().any(|reply| !first_batch(reply).is_empty()))
}

/// Fails if a range of an ordinary collection has documents in another partition: these do not move.
pub(super) fn check_move(
    by: By<'_>,
    namespace: &Namespace,
    sharding: &Sharding,
    (low, high, partition): (&KeyBound, &KeyBound, usize),
) -> Result<()> {
    if sharding.key.is_timeseries() {
        return Ok(());
    }
    let owners = sharding.owners_between(low, high).into_iter();
    let owners: Vec<usize> = owners.filter(|owner| *owner != partition).collect();
    let filter = sharding.key.between(low, high);
    match has_documents(by, namespace, &owners, &filter)? {
        true => Err(Error::new(
            ErrorCode::CommandNotSupported,
            "the range has documents, which do not move between partitions: move ranges of an ordinary collection while they are empty",
        )),
        false => Ok(()),
    }
}

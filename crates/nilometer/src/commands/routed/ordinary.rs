//! Shard keys of ordinary collections.
//!
//! A document is in the partition that has the chunk of its key. So unique indexes begin with the key, and a range moves with
//! its documents.

use nilometer_bson::{DocRef, Document, DocumentBuilder, Value, doc};

use super::{first_batch, is_true, not_sharded, sum};
use crate::catalog::Namespace;
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
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
    if !indexes.any(|index| key.is_served_by(index, is_unique)) {
        return Err(Error::invalid_options(
            "Please create an index that starts with the proposed shard key before sharding the collection",
        ));
    }
    match has_documents(by, namespace, &own, &arrays(key))? {
        true => Err(Error::invalid_options(
            "a document has an array in the proposed shard key",
        )),
        false => Ok(()),
    }
}

/// Returns a filter of documents with arrays in a shard key.
pub(super) fn arrays(key: &ShardKey) -> Document {
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
    doc! {"$or": arrays.collect::<Vec<_>>()}
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

/// Returns the key that has as many documents of a chunk below it as above.
pub(super) fn median(
    (router, operation): By<'_>,
    namespace: &Namespace,
    sharding: &Sharding,
    (low, high): (KeyBound, KeyBound),
) -> Result<KeyBound> {
    let none = || {
        Error::new(
            ErrorCode::IllegalOperation,
            "the chunk has no median: all its documents have one key",
        )
    };
    // No partition has this number: the passage is the whole chunk.
    let passage = sharding.first_passage((&low, &high), usize::MAX);
    let passage = passage.ok_or_else(none)?;
    let count = doc! {
        "count": namespace.collection.as_str(), "query": sharding.key.between(&low, &high),
        "collation": doc! {"locale": "simple"},
    };
    let counted = router.ask_all(&[passage.from], &namespace.database, &count, operation)?;
    let half = sum(&counted, "n") / 2;
    let key = &sharding.key;
    let first = router.step_of(namespace, key, &passage, half.max(1), operation)?;
    (first.high < high).then_some(first.high).ok_or_else(none)
}

/// Moves a range of an ordinary collection with its documents, step by step: between two steps others read and write it.
pub(super) fn move_range(
    (router, operation): By<'_>,
    namespace: &Namespace,
    (low, high): (&KeyBound, &KeyBound),
    to: usize,
) -> Result<()> {
    loop {
        operation.check_interrupt()?;
        let _changes = router.lock_changes();
        router.end_move(namespace, operation)?;
        let placement = router.placement(namespace);
        let placement = placement.ok_or_else(|| not_sharded(namespace))?;
        let sharding = placement.sharding.clone();
        let sharding = sharding.ok_or_else(|| not_sharded(namespace))?;
        let Some(passage) = sharding.first_passage((low, high), to) else {
            return Ok(());
        };
        let step = router.first_step(namespace, &sharding.key, &passage, operation)?;
        router.move_documents(namespace, &placement, step, operation)?;
    }
}

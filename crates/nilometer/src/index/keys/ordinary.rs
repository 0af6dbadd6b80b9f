//! Keys of ascending, descending and hashed parts, alone or combined.
//!
//! Most documents have no array on the paths: they have one key, found without searching for more.

use nilometer_bson::path::FieldPath;
use nilometer_bson::path::keys::{plain_value, visit_keys_with_gaps};
use nilometer_bson::{DocRef, Value, ValueRef};

use super::{IndexKey, KeyCollector, finish_key, refused};
use crate::error::{Error, Result, location};
use crate::eval::expression::hashed_index_key;
use crate::index::{Index, IndexPartKind};

/// Adds the keys of `document`, unsorted and possibly repeated.
pub(super) fn keys(index: &Index, document: DocRef<'_>, out: &mut KeyCollector) -> Result<()> {
    let mut hashes: Vec<Option<i64>> = Vec::new();
    if index
        .parts()
        .iter()
        .any(|part| part.kind == IndexPartKind::Hashed)
    {
        hashes = hashes_of(index, document)?;
    }
    let hash = |at: usize| hashes.get(at).copied().flatten().map(ValueRef::Int64);
    let sparse = index.stored.spec.sparse;
    if let Some(key) = plain_key(index, document, &hash) {
        return key?.map_or(Ok(()), |key| out.add(index, key));
    }
    let mut failed = None;
    let expanded = visit_keys_with_gaps(index.paths(), document, &mut |key| {
        if failed.is_some() || sparse && key.iter().all(|value| value.is_missing()) {
            return;
        }
        let values = key.iter().enumerate();
        let values = values.map(|(at, value)| hash(at).unwrap_or(*value));
        let added = index.encode(values).and_then(|key| out.add(index, key));
        failed = added.err();
    });
    let expanded = expanded.map_err(|error| refused(&error))?;
    // With a hashed part no part may lead into an array, as in MongoDB.
    if !hashes.is_empty()
        && let Some(path) = expanded
            .iter()
            .zip(index.paths())
            .find_map(|(expanded, path)| expanded.then_some(path))
    {
        return Err(hashed_array(path));
    }
    for (at, expanded) in expanded.into_iter().enumerate() {
        out.multikey |= u32::from(expanded) << at;
    }
    failed.map_or(Ok(()), Err)
}

/// Returns the one key of a document without arrays on the paths, or `Some(Ok(None))` if a sparse index
/// leaves it out. `None` if there is an array.
fn plain_key<'v>(
    index: &Index,
    document: DocRef<'v>,
    hash: &impl Fn(usize) -> Option<ValueRef<'v>>,
) -> Option<Result<Option<IndexKey>>> {
    let mut found = false;
    let mut builder = index.key_builder();
    for (at, path) in index.paths().iter().enumerate() {
        let value = plain_value(path, document)?;
        found |= !value.is_missing();
        let value = hash(at).unwrap_or(value);
        if let Err(error) = index.push_value(&mut builder, value) {
            return Some(Err(error));
        }
    }
    let is_left_out = index.stored.spec.sparse && !found;
    Some(match is_left_out {
        true => Ok(None),
        false => Ok(Some(finish_key(builder))),
    })
}

/// Returns the hash of each hashed part; `None` for the others.
fn hashes_of(index: &Index, document: DocRef<'_>) -> Result<Vec<Option<i64>>> {
    let hash = |path: &FieldPath| match plain_value(path, document) {
        Some(value) => Ok(Some(hash_of(value, index))),
        None => Err(hashed_array(path)),
    };
    let parts = index.parts().iter().zip(index.paths());
    parts
        .map(|(part, path)| match part.kind {
            IndexPartKind::Hashed => hash(path),
            _ => Ok(None),
        })
        .collect()
}

fn hashed_array(path: &FieldPath) -> Error {
    Error::location(
        location::HASHED_ARRAY,
        format!(
            "hashed indexes do not currently support array values. Found array at path: {}",
            path.as_str()
        ),
    )
}

/// Hashes a value. With a collation, equal strings hash alike.
fn hash_of(value: ValueRef<'_>, index: &Index) -> i64 {
    match (value, index.collation().collator()) {
        (ValueRef::String(text), Some(collator)) => {
            let mut key = Vec::new();
            collator.sort_key(text, &mut key);
            let key = Value::Binary(nilometer_bson::Binary {
                subtype: 0,
                bytes: key.into(),
            });
            hashed_index_key::hash(key.as_ref())
        }
        (value, _) => hashed_index_key::hash(value),
    }
}

//! Reads the distinct metadata from an index without opening buckets.
//!
//! A static index begins with metadata and has an entry for every bucket. So the distinct values of its first components
//! are the distinct values of the metadata, and after each value a seek leads to the next. Every bucket holds a
//! measurement, so each of these values has one.
//!
//! A key tells equal values of different types (1 and 1.0) and all fields of objects, but not a missing value from null.
//! For such a key the buckets are read until both have been found or all have been read. For a string under a collation
//! the key holds only the sort order; one bucket is read for the string.

use std::collections::BTreeSet;

use nilometer_bson::{Document, DocumentBuilder, Value, ValueRef, key_string};
use nilometer_storage::{Direction, Snapshot, seek};

use super::BucketReader;
use super::index_scan::{STEPS_MAX, prefix, split};
use crate::catalog::Collection;
use crate::error::{Error, ErrorCode, Result};
use crate::index::buckets::BucketIndex;
use crate::timeseries::format::keyspaces::BucketKeyspaces;
use crate::timeseries::scan::bucket_parts;

/// A page of distinct values.
#[derive(Debug, Default)]
pub struct MetaPage {
    /// The metadata under the name it has in buckets, as far as the index has it.
    pub metas: Vec<Document>,
    /// The key of the next page; `None` at the end.
    pub next: Option<Vec<u8>>,
    /// Keys examined.
    pub keys_examined: u64,
    /// Buckets examined.
    pub documents_examined: u64,
}

impl BucketReader {
    /// Returns distinct values of the first `components` components of an index between the keys `from` and `end`
    /// (exclusive), at most `at_most`.
    pub fn distinct_metas(
        &self,
        collection: &Collection,
        index: &BucketIndex,
        components: usize,
        (from, end): (&[u8], Option<&[u8]>),
        at_most: usize,
    ) -> Result<MetaPage> {
        let (keyspace, shape) = (index.stored.keyspace, index.index());
        let paths: Vec<&str> = shape
            .parts()
            .iter()
            .take(components)
            .map(|p| p.name())
            .collect();
        let snapshot = self.engine.snapshot()?;
        let mut page = MetaPage::default();
        let mut scan = snapshot.scan(keyspace, from, end, Direction::Forward)?;
        let mut current: Option<Vec<u8>> = None;
        let mut steps = 0;
        while let Some(item) = scan.next() {
            let (entry, type_bits) = item?;
            page.keys_examined += 1;
            let (key, _) = split(&entry)?;
            if let Some(known) = &current
                && key.starts_with(known)
            {
                steps += 1;
                if steps > STEPS_MAX
                    && let Some(behind) = key_string::prefix_end(known.clone())
                {
                    if end.is_some_and(|end| end <= &*behind) {
                        break;
                    }
                    seek(&mut scan, &*snapshot, keyspace, &behind, end)?;
                    steps = 0;
                }
                continue;
            }
            if page.metas.len() >= at_most {
                page.next = Some(entry.to_vec());
                break;
            }
            let values_at = prefix(key, shape.order(), components)?.to_vec();
            if shape.collation().collator().is_some() {
                self.read_buckets(&*snapshot, collection, index, &paths, &values_at, &mut page)?;
                current = Some(values_at);
                steps = 0;
                continue;
            }
            let (values, _) = key_string::decode(key, shape.order(), components, &type_bits)
                .map_err(|error| {
                    let what = format!("an index entry cannot be read: {error}");
                    Error::new(ErrorCode::DataCorruptionDetected, what)
                })?;
            if values.iter().any(|value| matches!(value, Value::Null)) {
                self.read_buckets(&*snapshot, collection, index, &paths, &values_at, &mut page)?;
            } else {
                let parts: Vec<_> = paths
                    .iter()
                    .map(|p| p.split('.').collect())
                    .zip(&values)
                    .collect();
                page.metas.push(nested(&parts, 0));
            }
            current = Some(values_at);
            steps = 0;
        }
        Ok(page)
    }

    /// Adds the metadata of the buckets whose keys begin with `values_at`: one for each combination of present and missing
    /// components.
    fn read_buckets(
        &self,
        snapshot: &dyn Snapshot,
        collection: &Collection,
        index: &BucketIndex,
        paths: &[&str],
        values_at: &[u8],
        page: &mut MetaPage,
    ) -> Result<()> {
        let (Some(keyspaces), Some(options)) =
            (BucketKeyspaces::of(collection), &collection.timeseries)
        else {
            return Ok(());
        };
        let end = key_string::prefix_end(values_at.to_vec());
        let scan = snapshot.scan(
            index.stored.keyspace,
            values_at,
            end.as_deref(),
            Direction::Forward,
        )?;
        let all = 1usize.checked_shl(u32::try_from(paths.len()).unwrap_or(u32::MAX));
        let mut seen = BTreeSet::new();
        for item in scan {
            let (entry, _) = item?;
            page.keys_examined += 1;
            page.documents_examined += 1;
            let (_, id) = split(&entry)?;
            let parts = bucket_parts::read_parts(snapshot, keyspaces, id, None)?;
            let Some((meta, _)) = parts.opened_as(&options.time_field)? else {
                continue;
            };
            let mut document = DocumentBuilder::new();
            document.append("meta", meta);
            let document = document.finish();
            let found: Vec<_> = paths.iter().map(|path| value_at(&document, path)).collect();
            let there: Vec<bool> = found.iter().map(|value| !value.is_missing()).collect();
            // All these buckets have the same values.
            let is_plain = !found.iter().any(|value| value.is_nullish());
            if seen.insert(there) {
                page.metas.push(document.clone());
            }
            if is_plain || all.is_some_and(|all| seen.len() >= all) {
                break;
            }
        }
        Ok(())
    }
}

fn value_at<'d>(document: &'d Document, path: &str) -> ValueRef<'d> {
    let mut value = ValueRef::Document(document.as_ref());
    for part in path.split('.') {
        value = match value {
            ValueRef::Document(inner) => inner.get(part),
            _ => return ValueRef::Missing,
        };
    }
    value
}

/// Returns a document with these values at these paths, none of which is a prefix of another.
fn nested(parts: &[(Vec<&str>, &Value)], depth: usize) -> Document {
    let mut out = DocumentBuilder::new();
    let mut done = BTreeSet::new();
    for (path, value) in parts {
        let Some(name) = path.get(depth) else {
            continue;
        };
        if !done.insert(*name) {
            continue;
        }
        if path.len() == depth + 1 {
            out.append_ref(name, value.as_ref());
            continue;
        }
        let below: Vec<_> = parts
            .iter()
            .filter(|(other, _)| other.get(..=depth) == path.get(..=depth))
            .cloned()
            .collect();
        out.append(name, nested(&below, depth + 1));
    }
    out.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nilometer_bson::doc;

    #[test]
    fn values_are_put_where_they_were() {
        let (one, two, three) = (Value::Int32(1), Value::Int32(2), Value::Int32(3));
        let parts = vec![
            (vec!["meta", "a", "x"], &one),
            (vec!["meta", "b"], &two),
            (vec!["meta", "a", "y"], &three),
        ];
        let expected = doc! { "meta": doc! { "a": doc! { "x": 1, "y": 3 }, "b": 2 } };
        assert_eq!(nested(&parts, 0), expected);
    }
}

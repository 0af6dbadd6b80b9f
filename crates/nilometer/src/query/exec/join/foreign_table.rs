//! Code shared by `$lookup` and `$graphLookup`: documents of the other collection hashed by a field, and the values a local
//! field looks for and a foreign field matches.
//!
//! Equality is that of a filter: a local array stands for its elements, a foreign array
//! for its elements and itself; null and missing match each other.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use nilometer_bson::path::FieldPath;
use nilometer_bson::{Document, Value, ValueRef};

use super::narrowed::narrowed;
use crate::error::Result;
use crate::eval::collation::CollatedValue;
use crate::eval::matcher::{LeafArrays, MatchPath};
use crate::eval::{Collation, memory_bytes};
use crate::query::batch::Batch;
use crate::query::exec::memory::MemoryGauge;
use crate::query::exec::row::unwind::with_value_at;
use crate::query::exec::{BATCH_BYTES_MAX, BoxOperator, ExecContext, RowBatch, next_filled};
use crate::query::planner::physical::FieldNames;

/// Bytes of a hashed value outside its heap: the entry of the table, and the room of its positions.
const INDEXED_VALUE_BYTES: usize =
    size_of::<(CollatedValue, Vec<usize>)>() + 4 * size_of::<usize>();

/// Documents of the other collection, in memory.
pub(crate) struct ForeignTable {
    /// In read order.
    pub(crate) documents: Vec<Document>,
    /// Positions by each value of the field; empty without a field.
    by_value: HashMap<CollatedValue, Vec<usize>>,
    /// String comparison.
    collation: Collation,
    memory: MemoryGauge,
}

impl ForeignTable {
    /// Reads all documents of `pipeline` and hashes them by the values at `path`; `None` if they do not fit into memory. They keep
    /// `fields`, or all.
    pub(crate) fn read(
        mut pipeline: BoxOperator,
        path: Option<&MatchPath>,
        fields: Option<&FieldNames>,
        collation: Collation,
        memory: MemoryGauge,
        cx: &ExecContext<'_>,
    ) -> Result<Option<Self>> {
        let mut kept = Self {
            documents: Vec::new(),
            by_value: HashMap::new(),
            collation,
            memory,
        };
        while let Some(batch) = next_filled(&mut pipeline, cx)? {
            for document in batch.into_rows()? {
                let index_bytes = match path {
                    Some(path) => kept.index(path, &document)?,
                    None => 0,
                };
                let document = match fields {
                    Some(fields) => narrowed(document.as_ref(), fields),
                    None => document,
                };
                if kept
                    .memory
                    .add(document.as_bytes().len() + index_bytes)
                    .is_err()
                {
                    return Ok(None);
                }
                kept.documents.push(document);
            }
        }
        Ok(Some(kept))
    }

    /// Returns a table without documents.
    #[cfg(test)]
    pub(super) fn empty() -> Self {
        Self {
            documents: Vec::new(),
            by_value: HashMap::new(),
            collation: Collation::default(),
            memory: MemoryGauge::new("$lookup", 0),
        }
    }

    /// Hashes the next document by its values; returns the bytes that takes.
    fn index(&mut self, path: &MatchPath, document: &Document) -> Result<usize> {
        let at = self.documents.len();
        let mut bytes = 0;
        for value in foreign_values(path, document)? {
            let value_bytes = memory_bytes(&value);
            let places = self.by_value.entry(self.collation.key(value)).or_default();
            if places.is_empty() {
                bytes += value_bytes + INDEXED_VALUE_BYTES;
            }
            if places.last() != Some(&at) {
                places.push(at);
                bytes += size_of::<usize>();
            }
        }
        Ok(bytes)
    }

    /// Returns the documents that match the field `local` of `row`.
    pub(crate) fn matching(&self, local: &MatchPath, row: &Document) -> Result<Vec<Document>> {
        let mut wanted = local_values(local, row)?;
        if wanted.len() <= 1 {
            let places = wanted
                .pop()
                .and_then(|value| self.by_value.get(&self.collation.key(value)));
            let found = places
                .into_iter()
                .flatten()
                .filter_map(|at| self.documents.get(*at));
            return Ok(found.cloned().collect());
        }
        let wanted: Vec<_> = wanted.into_iter().map(|v| self.collation.key(v)).collect();
        Ok(self.with_any(wanted.iter()))
    }

    /// Returns the documents that have one of the values, each once.
    pub(crate) fn with_any<'a>(
        &self,
        wanted: impl Iterator<Item = &'a CollatedValue>,
    ) -> Vec<Document> {
        let places = wanted.filter_map(|value| self.by_value.get(value));
        let places: BTreeSet<usize> = places.flatten().copied().collect();
        let found = places.into_iter().filter_map(|at| self.documents.get(at));
        found.cloned().collect()
    }
}

/// Returns the values at a path, those of arrays one by one; empty if the path is missing.
pub(crate) fn values_at(path: &MatchPath, row: &Document) -> Result<Vec<Value>> {
    let mut values = Vec::new();
    let root = ValueRef::Document(row.as_ref());
    path.visit(root, LeafArrays::Whole, &mut |value, _| {
        match value {
            ValueRef::Missing => {}
            ValueRef::Array(array) => values.extend(array.iter().map(ValueRef::to_value)),
            other => values.push(other.to_value()),
        }
        Ok(false)
    })?;
    Ok(values)
}

/// Returns the values a local field looks for: elements of arrays, null if missing.
pub(crate) fn local_values(path: &MatchPath, row: &Document) -> Result<Vec<Value>> {
    let mut values = values_at(path, row)?;
    if values.is_empty() {
        values.push(Value::Null);
    }
    Ok(values)
}

/// Returns the values a foreign field matches: its value and the elements of an array; null if missing.
pub(crate) fn foreign_values(path: &MatchPath, document: &Document) -> Result<Vec<Value>> {
    let mut values = Vec::new();
    let root = ValueRef::Document(document.as_ref());
    path.visit(root, LeafArrays::Expand, &mut |value, _| {
        values.push(match value {
            ValueRef::Missing => Value::Null,
            other => other.to_value(),
        });
        Ok(false)
    })?;
    Ok(values)
}

/// Input rows waiting to be joined.
#[derive(Default)]
pub(crate) struct PendingRows {
    rows: std::vec::IntoIter<Document>,
    /// True after the last rows of the input.
    is_last: bool,
    /// Counts the rows returned last.
    memory: Option<MemoryGauge>,
}

impl PendingRows {
    /// True if no rows are pending.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.len() == 0
    }

    /// Reads `at_least` rows if none are pending, or as many as a batch has bytes; false at the end of the input.
    pub(crate) fn fill(
        &mut self,
        input: &mut BoxOperator,
        at_least: usize,
        cx: &ExecContext<'_>,
    ) -> Result<bool> {
        if !self.is_empty() {
            return Ok(true);
        }
        let (mut rows, mut bytes) = (Vec::new(), 0);
        while !self.is_last && rows.len() < at_least && bytes < BATCH_BYTES_MAX {
            match next_filled(input, cx)? {
                Some(batch) => {
                    let first = rows.len();
                    rows.append(&mut batch.into_rows()?);
                    let added = rows.iter().skip(first);
                    bytes += added.map(|row| row.as_bytes().len()).sum::<usize>();
                }
                None => self.is_last = true,
            }
        }
        self.rows = rows.into_iter();
        Ok(!self.is_empty())
    }

    /// Returns the next pending row, and those that follow it.
    pub(crate) fn next(&mut self) -> Option<(Document, &[Document])> {
        self.rows.next().map(|row| (row, self.rows.as_slice()))
    }

    /// Returns a batch of rows, each with `fields` of its own, or all, and the result of `find` at `target`; memory is counted for
    /// `stage`. `find` also sees the rows that follow.
    pub(crate) fn with_found(
        &mut self,
        stage: &'static str,
        target: &FieldPath,
        fields: Option<&BTreeSet<Arc<str>>>,
        cx: &ExecContext<'_>,
        mut find: impl FnMut(&Document, &[Document]) -> Result<Value>,
    ) -> Result<Batch> {
        let mut out = RowBatch::default();
        let memory = self
            .memory
            .get_or_insert_with(|| MemoryGauge::of_results(stage, cx));
        memory.clear();
        while !out.is_full()
            && let Some(row) = self.rows.next()
        {
            let found = find(&row, self.rows.as_slice())?;
            let bytes = memory_bytes(&found);
            // Value and row exist at the same time.
            memory.add(2 * bytes + row.as_bytes().len())?;
            let row = match fields {
                Some(fields) => narrowed(row.as_ref(), fields),
                None => row,
            };
            out.push(with_value_at(row.as_ref(), target, found.as_ref()));
            memory.release(bytes);
        }
        Ok(Batch::Rows(out.into_rows()))
    }
}

#[cfg(test)]
mod tests {
    use nilometer_bson::doc;

    use super::*;

    #[test]
    fn the_values_of_arrays_are_counted_as_they_are_hashed() {
        let mut table = ForeignTable::empty();
        let path = MatchPath::new("k");
        let numbers: Vec<Value> = (0..1000).map(Value::from).collect();
        let document = doc! {"k": numbers};
        let bytes = table.index(&path, &document).unwrap();
        assert!(bytes >= 1000 * size_of::<CollatedValue>(), "{bytes}");
        table.documents.push(document.clone());
        // The values are there; the array itself, too.
        assert_eq!(
            table.index(&path, &document).unwrap(),
            1001 * size_of::<usize>()
        );
        table.documents.push(document.clone());
        assert_eq!(
            table.with_any(table.by_value.keys().take(1)),
            [document.clone(), document]
        );
    }
}

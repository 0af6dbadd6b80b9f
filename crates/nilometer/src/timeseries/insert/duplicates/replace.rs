//! Writing measurements in the place of stored ones of the same series and time (policies `replace` and `merge`).
//!
//! [`take`] picks them out of a group before it is staged; [`write()`] replaces them, under the collection's write lock, once the
//! new measurements are committed. Of several measurements of one time in a command, the last wins.
//!
//! With `merge` the stored measurement keeps its fields, and gets those of the new ones in their order ([`merged`]).
//! [`take_merged`] leaves the first of several new ones of one time in the group. The others have no place yet when they are
//! written, and so go down the road again, where they find the first one stored.

use std::collections::{BTreeMap, HashSet};

use nilometer_bson::{DocRef, Document, DocumentBuilder, Value, ValueRef, doc};

use super::find::{DuplicateMatch, SeriesDuplicates};
use crate::catalog::TimeseriesOptions;
use crate::error::Result;
use crate::eval::EvalContext;
use crate::eval::ParseContext;
use crate::eval::matcher::MatchExpression;
use crate::insertion::InsertOptions;
use crate::timeseries::format::series_key::SeriesMeta;
use crate::timeseries::insert::group_by_series::SeriesGroup;
use crate::timeseries::insert::statement::InsertStatement;
use crate::timeseries::modify::{
    MeasurementAction, MeasurementChange, MeasurementSelection, WriteLockGuard,
};

/// Measurements of one series that replace stored ones.
pub(in crate::timeseries::insert) struct Replacements {
    meta: SeriesMeta,
    /// By their times.
    documents: BTreeMap<i64, Document>,
    /// Buckets with the measurements to be replaced.
    buckets: Vec<[u8; 12]>,
    /// The stored measurements keep fields that the documents lack.
    merges: bool,
}

/// Keeps the last measurement of each time in the group, and takes out those whose time is stored.
pub(super) fn take(
    group: &mut SeriesGroup<'_>,
    duplicates: SeriesDuplicates,
    timeseries: &TimeseriesOptions,
    options: InsertOptions<'_>,
) -> Option<Replacements> {
    let mut replacements = Replacements {
        meta: group.key.meta.clone(),
        documents: BTreeMap::new(),
        buckets: duplicates.buckets,
        merges: false,
    };
    let measurements = std::mem::take(&mut group.measurements);
    let mut rest = measurements.into_iter().zip(duplicates.matches).peekable();
    while let Some((one, matched)) = rest.next() {
        if rest
            .peek()
            .is_some_and(|(next, _)| next.time_ms == one.time_ms)
        {
            continue;
        }
        match matched {
            DuplicateMatch::Stored => {
                let document = stored_form(one.document, &group.key.meta, timeseries, options);
                replacements.documents.insert(one.time_ms, document);
            }
            DuplicateMatch::None | DuplicateMatch::InCommand => group.measurements.push(one),
        }
    }
    (!replacements.documents.is_empty()).then_some(replacements)
}

/// Takes out of the group what is merged into measurements that are stored, or are before it in the group.
pub(super) fn take_merged(
    group: &mut SeriesGroup<'_>,
    duplicates: SeriesDuplicates,
    timeseries: &TimeseriesOptions,
    options: InsertOptions<'_>,
) -> Option<Replacements> {
    let mut replacements = Replacements {
        meta: group.key.meta.clone(),
        documents: BTreeMap::new(),
        buckets: duplicates.buckets,
        merges: true,
    };
    let measurements = std::mem::take(&mut group.measurements);
    for (one, matched) in measurements.into_iter().zip(duplicates.matches) {
        let last = group.measurements.last();
        let follows = last.is_some_and(|last| last.time_ms == one.time_ms);
        if matched != DuplicateMatch::Stored && !follows {
            group.measurements.push(one);
            continue;
        }
        let document = stored_form(one.document, &group.key.meta, timeseries, options);
        match replacements.documents.get_mut(&one.time_ms) {
            Some(before) => *before = merged(before, &document),
            None => drop(replacements.documents.insert(one.time_ms, document)),
        }
    }
    (!replacements.documents.is_empty()).then_some(replacements)
}

/// Returns a document with the values of a new one, and its own where the new one has none. It keeps its `_id`.
fn merged(stored: &Document, new: &Document) -> Document {
    let mut out = DocumentBuilder::with_capacity(stored.as_bytes().len() + new.as_bytes().len());
    for element in stored.iter() {
        match new.get(element.name()) {
            value if element.name() != "_id" && !value.is_missing() => {
                out.append_ref(element.name(), value)
            }
            _ => out.append_element(element),
        };
    }
    for element in new.iter() {
        if stored.get(element.name()).is_missing() {
            out.append_element(element);
        }
    }
    out.finish()
}

/// The measurement with an `_id` and normalised metadata.
fn stored_form(
    document: DocRef<'_>,
    meta: &SeriesMeta,
    timeseries: &TimeseriesOptions,
    options: InsertOptions<'_>,
) -> Document {
    let mut out = DocumentBuilder::with_capacity(document.as_bytes().len() + 24);
    if !document.contains("_id") {
        out.append("_id", (options.new_id)());
    }
    for element in document {
        match timeseries.meta_field.as_deref() == Some(element.name()) {
            true => out.append_ref(element.name(), meta.value()),
            false => out.append_element(element),
        };
    }
    out.finish()
}

/// Replaces the stored measurements, and returns the documents whose place is gone. Takes the write lock unless the
/// statement holds it.
pub(in crate::timeseries::insert) fn write(
    insert: &InsertStatement<'_>,
    replacements: Vec<Replacements>,
    lock: Option<&WriteLockGuard<'_>>,
) -> Result<Vec<Document>> {
    let own_lock;
    let lock = match lock {
        Some(lock) => lock,
        None => {
            // An insert is not interruptible.
            own_lock = insert
                .timeseries
                .lock_writes(insert.collection, &|| Ok(()))?;
            &own_lock
        }
    };
    let mut vanished = Vec::new();
    for series in replacements {
        vanished.extend(write_series(insert, lock, series)?);
    }
    Ok(vanished)
}

fn write_series(
    insert: &InsertStatement<'_>,
    lock: &WriteLockGuard<'_>,
    replacements: Replacements,
) -> Result<Vec<Document>> {
    let (timeseries, collection) = (insert.timeseries, insert.collection);
    let Some(options) = &collection.timeseries else {
        return Ok(Vec::new());
    };
    let times = replacements.documents.keys();
    let times: Vec<Value> = times.map(|at| Value::DateTime(*at)).collect();
    let mut filter = DocumentBuilder::new();
    filter.append(&options.time_field, doc! { "$in": times });
    let filter = MatchExpression::parse(filter.finish().as_ref(), &ParseContext::new())?;
    let mut buckets = replacements.buckets;
    buckets.sort_unstable();
    let find = |range| {
        timeseries
            .reader
            .scan_listed(collection, buckets.clone(), range)
    };
    let selection = MeasurementSelection {
        filter: &filter,
        multi: true,
        backward: false,
        eval: EvalContext::default(),
        collator: None,
        check_interrupt: &|| Ok(()),
        dry: false,
        find: Some(&find),
        closed_too: true,
        record: None,
    };
    let mut replaced = HashSet::new();
    let mut decide = |document: &Document| {
        let meta = options.meta_field.as_ref();
        let meta = meta.map_or(ValueRef::Missing, |name| document.get(name));
        let ValueRef::DateTime(at) = document.get(&options.time_field) else {
            return Ok(MeasurementChange::Keep);
        };
        Ok(match replacements.documents.get(&at) {
            Some(new) if SeriesMeta::of(meta) == replacements.meta => match replaced.insert(at) {
                true if replacements.merges => MeasurementChange::Replace(merged(document, new)),
                true => MeasurementChange::Replace(new.clone()),
                false => MeasurementChange::Remove,
            },
            _ => MeasurementChange::Keep,
        })
    };
    timeseries.modify_measurements(
        lock,
        insert.catalog,
        collection,
        selection,
        MeasurementAction::Decide(&mut decide),
    )?;
    let vanished = replacements.documents.into_iter();
    let vanished = vanished.filter(|(at, _)| !replaced.contains(at));
    Ok(vanished.map(|(_, document)| document).collect())
}

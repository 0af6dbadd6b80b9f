//! Inserting under a rule about duplicates.
//!
//! ```text
//! rule held │ list of indexes held │ series claimed │ look │ entries of what is new │ commit │ all let go
//!   └─► what replaces others, series by series, in its turn; what has gone meanwhile is new again ─┐
//!   ▲──────────────────────────────────────────────────────────────────────────────────────────────┘
//! disk
//! ```

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, PoisonError};

use nilometer_bson::{DocRef, Document, DocumentBuilder, Value, ValueRef, doc, extjson};
use nilometer_storage::Durability;

use super::{Claimed, Screened, Twin};
use crate::catalog::{
    BUCKETS_PREFIX, Catalog, Collection, DuplicatePolicy, DuplicateRule, TimeseriesOptions,
};
use crate::error::{Error, ErrorCode, Result};
use crate::eval::EvalContext;
use crate::eval::ParseContext;
use crate::eval::matcher::MatchExpression;
use crate::insertion::{InsertOptions, InsertOutcome, WriteError};
use crate::timeseries::Timeseries;
use crate::timeseries::format::series_index;
use crate::timeseries::format::series_key::SeriesMeta;
use crate::timeseries::index::maintenance::Maintained;
use crate::timeseries::insert::group_by_series::{Group, Grouped};
use crate::timeseries::modify::{MeasurementAction, MeasurementFate, MeasurementSelection, Turn};

/// How often what was to be replaced may have gone before that could be done.
const ROUNDS_MAX: usize = 100;

/// Measurements of one series that take the place of others.
struct Late {
    meta: SeriesMeta,
    /// By their times.
    documents: BTreeMap<i64, Document>,
    /// Where the others were found.
    buckets: Vec<[u8; 12]>,
}

/// What became of the new ones among measurements.
struct Inserted {
    outcome: InsertOutcome,
    late: Vec<Late>,
    is_durable: bool,
}

impl Timeseries {
    /// Inserts measurements as the collection's rule says. `turn` is that of the statement that inserts,
    /// if it has one.
    pub fn insert_in_turn<'a>(
        self: &Arc<Self>,
        catalog: &Catalog,
        collection: &Arc<Collection>,
        documents: impl Iterator<Item = DocRef<'a>>,
        options: InsertOptions<'_>,
        turn: Option<&Turn<'_>>,
    ) -> Result<InsertOutcome> {
        let Inserted {
            outcome,
            mut late,
            is_durable,
        } = self.insert_new(catalog, collection, documents, options)?;
        let is_durable = is_durable && late.is_empty();
        let mut rounds = 0;
        while !late.is_empty() {
            rounds += 1;
            if rounds > ROUNDS_MAX {
                return Err(Error::new(
                    ErrorCode::WriteConflict,
                    "what is to be replaced is being changed by others again and again",
                ));
            }
            let mut own = None;
            let turn = match turn {
                Some(turn) => turn,
                // Whoever inserts cannot be asked whether it still wants to.
                None => own.insert(self.take_turn(collection, &|| Ok(()))?),
            };
            let mut gone = Vec::new();
            for series in late {
                gone.extend(self.put_in_place(turn, catalog, collection, series)?);
            }
            drop(own);
            let again = gone.iter().map(Document::as_ref);
            late = self.insert_new(catalog, collection, again, options)?.late;
        }
        if options.durability == Durability::Sync && !is_durable {
            self.engine.sync()?;
        }
        Ok(outcome)
    }

    /// Inserts what is new, and tells what would take the place of others.
    fn insert_new<'a>(
        self: &Arc<Self>,
        catalog: &Catalog,
        collection: &Arc<Collection>,
        documents: impl Iterator<Item = DocRef<'a>>,
        options: InsertOptions<'_>,
    ) -> Result<Inserted> {
        let rule = collection.duplicates.read();
        let rule = rule.unwrap_or_else(PoisonError::into_inner);
        let indexes = Maintained::hold(collection)?;
        let mut grouped = self.group(catalog, collection, &indexes, documents, options)?;
        let mut claimed = match rule.policy {
            DuplicatePolicy::Keep => None,
            _ => Some(self.claim_groups(collection, &grouped)),
        };
        let late = match &mut claimed {
            Some(claimed) => self.sort_out(collection, *rule, claimed, &mut grouped, options)?,
            None => Vec::new(),
        };
        let (mut staged, ready) =
            self.stage_grouped(catalog, collection, &indexes, grouped, options);
        // Where others wait for the series, the disk is waited for when they may go on.
        let durability = match claimed.as_ref().is_some_and(Claimed::is_awaited) {
            true => Durability::Buffered,
            false => options.durability,
        };
        // What is left out must be as durable as what is there.
        let is_durable = durability == Durability::Sync && !staged.is_empty();
        let committed = ready.and_then(|()| self.commit_insert(&mut staged, durability));
        if let Some(claimed) = claimed {
            match &committed {
                Ok(()) => claimed.arrived(),
                Err(_) => drop(claimed),
            }
        }
        drop(indexes);
        drop(rule);
        let outcome = self.finish_insert(staged, committed)?;
        Ok(Inserted {
            outcome,
            late,
            is_durable,
        })
    }

    fn claim_groups(&self, collection: &Collection, grouped: &Grouped<'_>) -> Claimed {
        let series = grouped.groups.iter();
        let series = series.map(|group| series_index::hash(&group.key.meta));
        self.claims.claim(collection.uuid, series.collect())
    }

    /// Takes duplicates out of the groups, and does with them what the rule says.
    fn sort_out<'a>(
        self: &Arc<Self>,
        collection: &Arc<Collection>,
        rule: DuplicateRule,
        claimed: &mut Claimed,
        grouped: &mut Grouped<'a>,
        options: InsertOptions<'_>,
    ) -> Result<Vec<Late>> {
        let Some(timeseries) = &collection.timeseries else {
            return Ok(Vec::new());
        };
        let mut late = Vec::new();
        let mut refused = Vec::new();
        for (at, group) in grouped.groups.iter_mut().enumerate() {
            group.measurements.sort_by_key(|one| one.time_ms);
            let times: Vec<i64> = group.measurements.iter().map(|one| one.time_ms).collect();
            let of = (&group.key.meta, &times[..]);
            let Some(found) = self.screen(collection, rule, claimed, at, of)? else {
                continue;
            };
            match rule.policy {
                DuplicatePolicy::Replace => {
                    late.extend(last_ones(group, found, timeseries, options))
                }
                answer => {
                    let mut twins = found.twins.into_iter();
                    group.measurements.retain(|one| {
                        let is_new = twins.next().is_none_or(|twin| twin == Twin::None);
                        if !is_new && answer == DuplicatePolicy::Error {
                            refused.push(WriteError {
                                index: one.index,
                                error: duplicate(
                                    collection,
                                    timeseries,
                                    &group.key.meta,
                                    one.time_ms,
                                ),
                            });
                        }
                        is_new
                    });
                }
            }
        }
        if !refused.is_empty() {
            refuse(grouped, refused, options);
        }
        for (group, memory) in grouped.groups.iter().zip(&mut claimed.memories) {
            if let Some(window) = &mut memory.window {
                let times = group.measurements.iter().map(|one| one.time_ms);
                times.for_each(|time_ms| window.add(time_ms));
            }
        }
        grouped
            .groups
            .retain(|group| !group.measurements.is_empty());
        Ok(late)
    }

    /// Puts measurements in the place of those of their series and time. What finds none of its time
    /// any more comes back.
    fn put_in_place(
        self: &Arc<Self>,
        turn: &Turn<'_>,
        catalog: &Catalog,
        collection: &Arc<Collection>,
        late: Late,
    ) -> Result<Vec<Document>> {
        let Some(timeseries) = &collection.timeseries else {
            return Ok(Vec::new());
        };
        let times: Vec<Value> = late
            .documents
            .keys()
            .map(|at| Value::DateTime(*at))
            .collect();
        let mut filter = DocumentBuilder::new();
        filter.append(&timeseries.time_field, doc! { "$in": times });
        let filter = MatchExpression::parse(filter.finish().as_ref(), &ParseContext::new())?;
        let mut buckets = late.buckets;
        buckets.sort_unstable();
        let find = |range| self.scan_listed(collection, buckets.clone(), range);
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
        };
        let mut placed = HashSet::new();
        let mut decide = |document: &Document| {
            let meta = timeseries.meta_field.as_ref();
            let meta = meta.map_or(ValueRef::Missing, |name| document.get(name));
            let ValueRef::DateTime(at) = document.get(&timeseries.time_field) else {
                return Ok(MeasurementFate::Keep);
            };
            Ok(match late.documents.get(&at) {
                Some(new) if SeriesMeta::of(meta) == late.meta => match placed.insert(at) {
                    true => MeasurementFate::Replace(new.clone()),
                    false => MeasurementFate::Remove,
                },
                _ => MeasurementFate::Keep,
            })
        };
        self.change_measurements(
            turn,
            catalog,
            collection,
            selection,
            MeasurementAction::Decide(&mut decide),
        )?;
        let gone = late.documents.into_iter();
        let gone = gone.filter(|(at, _)| !placed.contains(at));
        Ok(gone.map(|(_, document)| document).collect())
    }
}

/// Keeps the last measurement of each time; those whose time is stored already come back.
fn last_ones(
    group: &mut Group<'_>,
    found: Screened,
    timeseries: &TimeseriesOptions,
    options: InsertOptions<'_>,
) -> Option<Late> {
    let mut late = Late {
        meta: group.key.meta.clone(),
        documents: BTreeMap::new(),
        buckets: found.buckets,
    };
    let measurements = std::mem::take(&mut group.measurements);
    let mut rest = measurements.into_iter().zip(found.twins).peekable();
    while let Some((one, twin)) = rest.next() {
        if rest
            .peek()
            .is_some_and(|(next, _)| next.time_ms == one.time_ms)
        {
            continue;
        }
        match twin {
            Twin::Stored(_) => {
                let document = stored_form(one.document, &group.key.meta, timeseries, options);
                late.documents.insert(one.time_ms, document);
            }
            Twin::None | Twin::Earlier => group.measurements.push(one),
        }
    }
    (!late.documents.is_empty()).then_some(late)
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

/// Tells of what is refused; an ordered insert ends at the first of it.
fn refuse(grouped: &mut Grouped<'_>, refused: Vec<WriteError>, options: InsertOptions<'_>) {
    let outcome = &mut grouped.outcome;
    outcome.inserted -= refused.len();
    outcome.errors.extend(refused);
    outcome.errors.sort_by_key(|error| error.index);
    if !options.ordered {
        return;
    }
    outcome.errors.truncate(1);
    let Some(end) = outcome.errors.first().map(|error| error.index) else {
        return;
    };
    outcome.inserted = end;
    for group in &mut grouped.groups {
        group.measurements.retain(|one| one.index < end);
    }
}

/// Code 11000, as a unique index of metadata and time would say it.
fn duplicate(
    collection: &Collection,
    timeseries: &TimeseriesOptions,
    meta: &SeriesMeta,
    time_ms: i64,
) -> Error {
    let (mut pattern, mut key) = (DocumentBuilder::new(), DocumentBuilder::new());
    let mut name = String::new();
    let meta_value = match meta.value() {
        ValueRef::Missing => Value::Null,
        value => value.to_value(),
    };
    let meta_part = timeseries
        .meta_field
        .as_deref()
        .map(|field| (field, meta_value));
    let time_part = (timeseries.time_field.as_str(), Value::DateTime(time_ms));
    let mut shown = Vec::new();
    for (field, value) in meta_part.into_iter().chain([time_part]) {
        let separator = if name.is_empty() { "" } else { "_" };
        name.push_str(&format!("{separator}{field}_1"));
        shown.push(format!(
            "{field}: {}",
            extjson::value_to_relaxed(value.as_ref())
        ));
        pattern.append(field, 1);
        key.append(field, value);
    }
    let database = &collection.namespace.database;
    let view = collection.namespace.collection.as_str();
    let view = view.strip_prefix(BUCKETS_PREFIX).unwrap_or(view);
    Error::new(
        ErrorCode::DuplicateKey,
        format!(
            "E11000 duplicate key error collection: {database}.{view} index: {name} dup key: {{ {} }}",
            shown.join(", ")
        ),
    )
    .with_details(doc! { "keyPattern": pattern.finish(), "keyValue": key.finish() })
}

//! `$lookup`: adds to each document the matching ones of another collection.
//!
//! ```text
//! large, indexed by the field  one index scan for the values of several documents, until reading it once costs less
//! large, of measurements       one scan of buckets for the values of several documents, until reading it once costs less
//! no variables, fits memory    the other documents are read once (with fields: before the pipeline, hashed by the
//!                              foreign field; without: after it)
//! too large, equal fields      read again for the values of several documents
//! otherwise                    the pipeline runs again for each document, also if it draws at random
//! ```
//!
//! The hashed documents keep the fields that later stages read. If an `$unwind` of the array follows, a row is returned for each joined
//! document, and no array is made ([decision 0028](../../../../../../docs/decisions/0028-hash-joins.md)).
//!
//! Equality of fields is that of a filter: a local array stands for its elements, null and missing match
//! null and missing, a foreign array stands for its elements and itself.

use std::collections::BTreeSet;
use std::sync::Arc;

use nilometer_bson::{Document, Value, ValueRef};

use super::foreign_table::{ForeignTable, PendingRows, foreign_values, local_values};
use super::joined_rows::JoinedRows;
use super::narrowed::narrowed;
use super::rows_ahead::{Part, PartReads, RowsAhead};
use crate::error::Result;
use crate::eval::Collation;
use crate::eval::collation::CollatedValue;
use crate::eval::matcher::{InList, MatchExpression, MatchPath};
use crate::query::batch::Batch;
use crate::query::exec::build::Builder;
use crate::query::exec::memory::MemoryGauge;
use crate::query::exec::row::documents::GivenDocuments;
use crate::query::exec::{BoxOperator, ExecContext, ExecSettings, Operator, RowBatch, next_filled};
use crate::query::pipeline::{LookupEquality, LookupStage, MatchStage, Stage, draws};
use crate::query::planner::physical::{AccessPath, FieldNames, Input, PhysicalLookup};
use crate::query::source::Resolved;

/// The `$lookup` operator.
pub struct Lookup {
    input: BoxOperator,
    stage: Arc<LookupStage>,
    builder: Builder,
    /// The settings of the pipeline, if they are the same for every document.
    settings: Option<Arc<ExecSettings>>,
    /// A filter on the other documents that may be tested before the equality.
    restriction: Option<Stage>,
    /// The fields that rows keep.
    row_fields: Option<FieldNames>,
    /// The fields that joined documents keep.
    joined_fields: Option<FieldNames>,
    /// Rows in place of arrays, if an `$unwind` follows.
    unwound: Option<JoinedRows>,
    /// True if what would be kept is drawn at random: each document gets a draw of its own.
    is_random: bool,
    others: ForeignRows,
    waiting: PendingRows,
}

/// The other collection's documents.
enum ForeignRows {
    /// Not read yet.
    Unread,
    /// In memory.
    ForeignTable(ForeignTable),
    /// Too large for memory: read again, with an equality for several documents at a time.
    TooMany(RowsAhead),
    /// Looked up for several documents at a time: by an index, or among measurements, of which many are not read.
    InParts(RowsAhead),
}

/// Documents in the other collection from which on index lookups are preferred to reading it once.
const INDEXED_MIN: u64 = 1000;

impl Lookup {
    /// Joins `input` as `stage` says.
    pub fn new(input: BoxOperator, lookup: PhysicalLookup, builder: Builder) -> Self {
        let stage = lookup.stage;
        let is_random = stage.equality.is_none() && stage.is_random()
            || draws_in_view(&builder, stage.from.as_deref());
        Self {
            input,
            restriction: restriction(&builder, &stage),
            stage,
            builder,
            settings: None,
            row_fields: lookup.row_fields,
            joined_fields: lookup.joined_fields,
            unwound: lookup.unwind.map(JoinedRows::new),
            is_random,
            others: ForeignRows::Unread,
            waiting: PendingRows::default(),
        }
    }

    /// Returns the documents that join `row`, after which `upcoming` rows follow.
    fn joined(
        &mut self,
        row: &Document,
        upcoming: &[Document],
        cx: &ExecContext<'_>,
    ) -> Result<Vec<Document>> {
        let settings = self.settings_for(row, cx)?;
        let nested = ExecContext::new(cx.operation, &settings);
        // Without an equality the output of the whole pipeline is kept, so it must be the same for every document.
        let may_keep =
            !self.is_random && (self.stage.equality.is_some() || self.stage.variables.is_empty());
        if may_keep {
            self.prepare(row, &settings, &nested)?;
        }
        let (stage, builder, restriction) = (&self.stage, &self.builder, &self.restriction);
        let kept_fields = self.kept_fields();
        let read = |rows: &[&Document], is_large| {
            let fields = kept_fields.as_ref();
            let more = restriction.as_ref();
            read_for_rows(
                stage,
                builder,
                (rows, is_large),
                (fields, more),
                &settings,
                cx,
            )
        };
        let kept = match &mut self.others {
            ForeignRows::ForeignTable(kept) => Some(&*kept),
            ForeignRows::InParts(ahead) => ahead.table(row, upcoming, |rows| read(rows, true))?,
            ForeignRows::TooMany(ahead) => ahead.table(row, upcoming, |rows| read(rows, false))?,
            ForeignRows::Unread => None,
        };
        let builder = || builder.with_settings(Arc::clone(&settings));
        match (kept, &stage.equality) {
            (Some(kept), None) => Ok(kept.documents.clone()),
            (Some(kept), Some(equality)) => {
                let matched = kept.matching(&equality.local, row)?;
                if stage.stages.is_empty() {
                    return Ok(matched);
                }
                let given = Box::new(GivenDocuments::new(matched));
                let mut pipeline = builder().over(given, stage.stages.clone())?;
                drain(&mut pipeline, &nested)
            }
            (None, equality) => {
                let from = stage.from.as_deref();
                let Some(equality) = equality else {
                    let mut pipeline = builder().pipeline(from, stage.stages.clone())?;
                    return drain(&mut pipeline, &nested);
                };
                let mut before = look_up(equality, row, &settings)?;
                before.extend(restriction.clone());
                let builder = builder();
                let input = builder.pipeline(from, before)?;
                let collation = Collation::from(settings.plan.collator.clone());
                let equal = Box::new(Equal::new(input, equality, row, collation)?);
                let mut pipeline = builder.over(equal, stage.stages.clone())?;
                drain(&mut pipeline, &nested)
            }
        }
    }

    /// Chooses how the other documents are read, or reads all of them once many rows were joined.
    fn prepare(
        &mut self,
        row: &Document,
        settings: &Arc<ExecSettings>,
        nested: &ExecContext<'_>,
    ) -> Result<()> {
        if matches!(self.others, ForeignRows::Unread) {
            self.others = match self.in_parts(row, settings)? {
                Some(ahead) => ForeignRows::InParts(ahead),
                None => self.read(nested)?,
            };
        }
        if let ForeignRows::InParts(ahead) = &mut self.others
            && ahead.may_read_all()
            && let all @ ForeignRows::ForeignTable(_) = self.read(nested)?
        {
            self.others = all;
        }
        Ok(())
    }

    /// Returns the state of looking up documents in parts if the other collection is large, and an index supports the equality with
    /// the local field or it has buckets.
    fn in_parts(&self, row: &Document, settings: &Arc<ExecSettings>) -> Result<Option<RowsAhead>> {
        let (Some(equality), Some(from)) = (&self.stage.equality, self.stage.from.as_deref())
        else {
            return Ok(None);
        };
        let before = look_up(equality, row, settings)?;
        let builder = self.builder.with_settings(Arc::clone(settings));
        let input = builder.plan(Some(from), before)?.input;
        let is_indexed = uses_index(&input);
        Ok(match input {
            Input::Records(input) if is_indexed => {
                let count = input.source.count_estimate()?;
                (count >= INDEXED_MIN).then(|| RowsAhead::of_documents(count))
            }
            Input::Buckets(input) if is_indexed || self.bounds_buckets(equality, row, from)? => {
                let buckets = input.source.bucket_count_estimate()?;
                let measurements = input.source.measurement_count()?;
                (buckets >= INDEXED_MIN && (is_indexed || measurements.is_some()))
                    .then(|| RowsAhead::of_buckets(buckets, measurements, is_indexed))
            }
            _ => None,
        })
    }

    /// True if the equality with the local field selects among the buckets of a time series. A view may compute the foreign field.
    fn bounds_buckets(
        &self,
        equality: &LookupEquality,
        row: &Document,
        from: &str,
    ) -> Result<bool> {
        let values = local_values(&equality.local, row)?;
        Ok(is_time_series(&self.builder, from) && values.iter().all(is_bounding))
    }

    /// Reads the rows of a part if none are waiting; false at the end of the input.
    fn fill(&mut self, waiting: &mut PendingRows, cx: &ExecContext<'_>) -> Result<bool> {
        let at_least = match &self.others {
            ForeignRows::InParts(ahead) | ForeignRows::TooMany(ahead) => ahead.rows_wanted(),
            ForeignRows::Unread | ForeignRows::ForeignTable(_) => 1,
        };
        waiting.fill(&mut self.input, at_least, cx)
    }

    /// Returns the settings of the pipeline for one document: its variables follow the outer ones.
    fn settings_for(&mut self, row: &Document, cx: &ExecContext<'_>) -> Result<Arc<ExecSettings>> {
        if let Some(settings) = &self.settings {
            return Ok(Arc::clone(settings));
        }
        let mut variables = cx.eval.variables.to_vec();
        // A view has no access to the variables of the query that reads it.
        variables.truncate(self.stage.outer);
        for expression in &self.stage.variables {
            variables.push(expression.evaluate(row.as_ref(), &cx.eval)?);
        }
        let mut settings = cx.settings.clone();
        settings.plan.variables = variables.into();
        let settings = Arc::new(settings);
        if self.stage.variables.is_empty() {
            self.settings = Some(Arc::clone(&settings));
        }
        Ok(settings)
    }

    /// Returns the fields that hashed documents keep; `None` if a pipeline of its own may read others.
    fn kept_fields(&self) -> Option<FieldNames> {
        let fields = self.joined_fields.as_ref();
        fields.filter(|_| self.stage.stages.is_empty()).cloned()
    }

    /// Returns a batch of rows, one for each joined document.
    fn next_rows(
        &mut self,
        unwound: &mut JoinedRows,
        cx: &ExecContext<'_>,
    ) -> Result<Option<Batch>> {
        let mut out = RowBatch::default();
        loop {
            unwound.fill(&mut out);
            if out.is_full() {
                break;
            }
            let mut waiting = std::mem::take(&mut self.waiting);
            let has_rows = !waiting.is_empty() || out.len() == 0 && self.fill(&mut waiting, cx)?;
            if !has_rows {
                self.waiting = waiting;
                break;
            }
            if let Some((row, upcoming)) = waiting.next() {
                cx.operation.check_interrupt()?;
                let joined = self.joined(&row, upcoming, cx)?;
                let row = match &self.row_fields {
                    Some(fields) => narrowed(row.as_ref(), fields),
                    None => row,
                };
                unwound.begin(row, joined, cx)?;
            }
            self.waiting = waiting;
        }
        Ok(out.into_batch())
    }

    fn read(&self, cx: &ExecContext<'_>) -> Result<ForeignRows> {
        let stages = match self.stage.equality {
            Some(_) => self.restriction.iter().cloned().collect(),
            None => self.stage.stages.clone(),
        };
        let builder = self.builder.with_settings(Arc::new(cx.settings.clone()));
        let pipeline = builder.pipeline(self.stage.from.as_deref(), stages)?;
        let path = self
            .stage
            .equality
            .as_ref()
            .map(|equality| &equality.foreign);
        let collation = Collation::from(cx.settings.plan.collator.clone());
        let memory = MemoryGauge::gather("$lookup", cx);
        let fields = match self.stage.equality {
            Some(_) => self.kept_fields(),
            None => self.joined_fields.clone(),
        };
        let kept = ForeignTable::read(pipeline, path, fields.as_ref(), collation, memory, cx)?;
        Ok(match kept {
            Some(kept) => ForeignRows::ForeignTable(kept),
            None => ForeignRows::TooMany(RowsAhead::in_parts()),
        })
    }
}

/// True if an index leads to the documents or the buckets.
fn uses_index(input: &Input) -> bool {
    match input {
        Input::Records(input) => {
            matches!(input.access, AccessPath::Index(_) | AccessPath::IdLookup(_))
        }
        Input::Buckets(input) => input.buckets.index.is_some(),
        _ => false,
    }
}

/// Reads the documents of the other collection that may equal one of the rows; `None` if they do not fit into memory, or if
/// an index serves one row but not all of them.
fn read_for_rows(
    stage: &LookupStage,
    builder: &Builder,
    (rows, is_large): (&[&Document], bool),
    (fields, restriction): (Option<&FieldNames>, Option<&Stage>),
    settings: &Arc<ExecSettings>,
    cx: &ExecContext<'_>,
) -> Result<Option<Part>> {
    let Some(equality) = &stage.equality else {
        return Ok(None);
    };
    let mut values = Vec::new();
    for row in rows {
        values.extend(local_values(&equality.local, row)?);
    }
    let is_bounded = values.iter().all(is_bounding);
    let mut before = match_any(equality, values, settings);
    if before.is_empty() {
        return Ok(None);
    }
    before.extend(restriction.cloned());
    let builder = builder.with_settings(Arc::clone(settings));
    let plan = builder.plan(stage.from.as_deref(), before)?;
    let is_scan = !uses_index(&plan.input);
    // One scan of buckets by their headers costs less than many, ordinary documents would all be read.
    if is_large && is_scan && !matches!(plan.input, Input::Buckets(_)) {
        return Ok(None);
    }
    let nested = ExecContext::new(cx.operation, settings);
    let collation = Collation::from(settings.plan.collator.clone());
    let memory = MemoryGauge::gather("$lookup", &nested);
    let pipeline = builder.build(plan)?;
    let path = Some(&equality.foreign);
    let table = ForeignTable::read(pipeline, path, fields, collation, memory, &nested)?;
    let reads = match (is_scan, is_bounded) {
        (false, _) => PartReads::Index,
        (true, true) => PartReads::SomeBuckets,
        (true, false) => PartReads::All,
    };
    Ok(table.map(|table| Part { table, reads }))
}

/// True for values that bounds of buckets exclude: these say nothing of missing values, arrays and objects.
fn is_bounding(value: &Value) -> bool {
    !matches!(
        value,
        Value::Missing | Value::Undefined | Value::Null | Value::Array(_) | Value::Document(_)
    )
}

/// Returns the conditions that a `$match` at the front of the pipeline puts on measurements, so that buckets without matches are not read. The
/// pipeline tests them again. An expression may fail on documents that the equality excludes, and is left out.
fn restriction(builder: &Builder, stage: &LookupStage) -> Option<Stage> {
    let (Some(Stage::Match(first)), Some(_)) = (stage.stages.first(), &stage.equality) else {
        return None;
    };
    let from = stage.from.as_deref()?;
    if !is_time_series(builder, from) {
        return None;
    }
    let mut conjuncts = first.filter.clone().into_conjuncts();
    conjuncts.retain(|conjunct| {
        use MatchExpression as M;
        matches!(conjunct, M::Compare(_) | M::In(_) | M::Exists(_))
    });
    (!conjuncts.is_empty()).then(|| Stage::Match(MatchStage::new(MatchExpression::and(conjuncts))))
}

/// True if `from` is a time series itself, not a view of one.
fn is_time_series(builder: &Builder, from: &str) -> bool {
    let resolved = builder.collections.resolve(&builder.database, from);
    matches!(resolved, Ok(Resolved::TimeSeries(_)))
}

/// True if `from` is a view whose documents are drawn at random.
fn draws_in_view(builder: &Builder, from: Option<&str>) -> bool {
    let mut from = from.map(str::to_owned);
    // A chain of views ends: a cycle cannot be created.
    while let Some(name) = from.take() {
        if let Ok(Resolved::View(view)) = builder.collections.resolve(&builder.database, &name) {
            if view
                .pipeline
                .iter()
                .any(|stage| draws(ValueRef::Document(stage.as_ref())))
            {
                return true;
            }
            from = Some(view.on);
        }
    }
    false
}

/// Returns a `$match` for all documents whose foreign field may equal the local one; empty if no filter expresses it.
fn look_up(
    equality: &LookupEquality,
    row: &Document,
    settings: &ExecSettings,
) -> Result<Vec<Stage>> {
    let values = local_values(&equality.local, row)?;
    Ok(match_any(equality, values, settings))
}

/// Returns a `$match` for all documents whose foreign field may equal one of the values; empty if no filter expresses it.
fn match_any(
    equality: &LookupEquality,
    mut values: Vec<Value>,
    settings: &ExecSettings,
) -> Vec<Stage> {
    for value in &mut values {
        match value {
            Value::Undefined => return Vec::new(),
            Value::Missing => *value = Value::Null,
            _ => {}
        }
    }
    let collation = Collation::from(settings.plan.collator.clone());
    let list = InList::new(equality.foreign.clone(), values, Vec::new(), collation);
    vec![Stage::Match(MatchStage::new(MatchExpression::In(list)))]
}

/// Passes documents whose foreign field equals the local one.
struct Equal {
    input: BoxOperator,
    foreign: MatchPath,
    wanted: BTreeSet<CollatedValue>,
    collation: Collation,
}

impl Equal {
    fn new(
        input: BoxOperator,
        equality: &LookupEquality,
        row: &Document,
        collation: Collation,
    ) -> Result<Self> {
        let wanted = local_values(&equality.local, row)?;
        Ok(Self {
            input,
            foreign: equality.foreign.clone(),
            wanted: wanted.into_iter().map(|v| collation.key(v)).collect(),
            collation,
        })
    }
}

impl Operator for Equal {
    fn next(&mut self, cx: &ExecContext<'_>) -> Result<Option<Batch>> {
        let Some(batch) = next_filled(&mut self.input, cx)? else {
            return Ok(None);
        };
        let mut rows = Vec::new();
        for document in batch.into_rows()? {
            let values = foreign_values(&self.foreign, &document)?;
            if values
                .into_iter()
                .any(|v| self.wanted.contains(&self.collation.key(v)))
            {
                rows.push(document);
            }
        }
        Ok(Some(Batch::Rows(rows)))
    }
}

fn drain(pipeline: &mut BoxOperator, cx: &ExecContext<'_>) -> Result<Vec<Document>> {
    let mut memory = MemoryGauge::gather("$lookup", cx);
    let mut all = Vec::new();
    while let Some(batch) = next_filled(pipeline, cx)? {
        for document in batch.into_rows()? {
            memory.add(document.as_bytes().len())?;
            all.push(document);
        }
    }
    Ok(all)
}

impl Operator for Lookup {
    fn next(&mut self, cx: &ExecContext<'_>) -> Result<Option<Batch>> {
        if let Some(mut unwound) = self.unwound.take() {
            let rows = self.next_rows(&mut unwound, cx);
            self.unwound = Some(unwound);
            return rows;
        }
        let mut waiting = std::mem::take(&mut self.waiting);
        if !self.fill(&mut waiting, cx)? {
            return Ok(None);
        }
        let target = self.stage.target.clone();
        let row_fields = self.row_fields.clone();
        let fields = row_fields.as_deref();
        let rows = waiting.with_found("$lookup", &target, fields, cx, |row, upcoming| {
            cx.operation.check_interrupt()?;
            let joined = self.joined(row, upcoming, cx)?;
            let joined: Vec<Value> = joined.into_iter().map(Value::Document).collect();
            Ok(Value::from(joined))
        })?;
        self.waiting = waiting;
        Ok(Some(rows))
    }

    fn is_exhausted(&self) -> bool {
        let is_open = self.unwound.as_ref().is_some_and(JoinedRows::is_open);
        !is_open && self.waiting.is_empty() && self.input.is_exhausted()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use nilometer_bson::{array, doc};

    use super::*;
    use crate::query::exec::ExecLimits;
    use crate::query::exec::testing::{MemoryCollections, MemoryRecords, run_limited};
    use crate::query::planner::settings::PlanOptions;
    use crate::query::source::{Collections, Resolved};

    fn collections(own: Vec<Document>, other: Vec<Document>) -> Arc<dyn Collections> {
        let records = |d| Resolved::Ordinary(Arc::new(MemoryRecords(d)));
        Arc::new(MemoryCollections(BTreeMap::from([
            ("c".to_owned(), records(own)),
            ("other".to_owned(), records(other)),
        ])))
    }

    /// Runs the stages with the other documents kept in memory, and read again for each document.
    fn both_ways(stages: Value, own: &[Document], other: &[Document]) -> Vec<Document> {
        let collections = collections(own.to_vec(), other.to_vec());
        let kept = run_limited(
            &collections,
            &stages,
            PlanOptions::default(),
            ExecLimits::default(),
        )
        .unwrap();
        let bytes: usize = other.iter().map(|d| d.as_bytes().len()).sum();
        let limits = ExecLimits {
            gather_bytes_max: bytes as u64 - 1,
            ..ExecLimits::default()
        };
        let again = run_limited(&collections, &stages, PlanOptions::default(), limits).unwrap();
        assert_eq!(kept, again);
        kept
    }

    #[test]
    fn equality_is_that_of_filters() {
        let other = [
            doc! {"_id": 0, "f": 1},
            doc! {"_id": 1, "f": array![1, 2]},
            doc! {"_id": 2, "f": Value::Null},
            doc! {"_id": 3},
            doc! {"_id": 4, "f": array![array![1, 2], 3]},
            doc! {"_id": 5, "f": "x"},
        ];
        let cases: Vec<(Value, Vec<i32>)> = vec![
            (1.into(), vec![0, 1]),
            (1.0.into(), vec![0, 1]),
            (array![2, "x"], vec![1, 5]),
            (Value::Null, vec![2, 3]),
            (Value::Missing, vec![2, 3]),
            (array![array![1, 2]], vec![1, 4]),
            (array![], vec![2, 3]),
            (9.into(), vec![]),
        ];
        let lookup = doc! {"from": "other", "localField": "l", "foreignField": "f", "as": "x"};
        for (local, expected) in cases {
            let own = [doc! {"l": local.clone()}];
            let rows = both_ways(array![doc! {"$lookup": lookup.clone()}], &own, &other);
            let found = rows[0].get("x").as_array().unwrap();
            let ids: Vec<Value> = found
                .iter()
                .map(|d| d.as_document().unwrap().get("_id").to_value())
                .collect();
            let expected: Vec<Value> = expected.into_iter().map(Value::from).collect();
            assert_eq!(
                doc! {"x": Value::from(ids)},
                doc! {"x": Value::from(expected)},
                "{local:?}"
            );
        }
    }

    #[test]
    fn many_documents_join_a_collection_that_exceeds_memory() {
        let other: Vec<Document> = (0..300)
            .map(|at| doc! {"_id": at, "f": at % 40, "s": "x".repeat(40)})
            .collect();
        let own: Vec<Document> = (0..120).map(|at| doc! {"l": at * 7 % 60}).collect();
        let plain = doc! {"from": "other", "localField": "l", "foreignField": "f", "as": "x"};
        let first = doc! {"$limit": 2};
        let some = doc! {
            "from": "other", "localField": "l", "foreignField": "f", "as": "x",
            "let": doc! {"n": "$l"}, "pipeline": array![first],
        };
        for lookup in [plain, some] {
            let rows = both_ways(array![doc! {"$lookup": lookup}], &own, &other);
            assert_eq!(rows.len(), 120);
        }
    }

    #[test]
    fn pipelines_see_variables() {
        let other = [doc! {"a": 1}, doc! {"a": 2}, doc! {"a": 3}];
        let own = [doc! {"n": 2}, doc! {"n": 9}];
        let matched = doc! {"$match": doc! {"$expr": doc! {"$gte": array!["$a", "$$n"]}}};
        let lookup = doc! {
            "from": "other",
            "let": doc! {"n": "$n"},
            "pipeline": array![matched],
            "as": "found.here",
        };
        let rows = both_ways(array![doc! {"$lookup": lookup}], &own, &other);
        assert_eq!(
            rows,
            [
                doc! {"n": 2, "found": doc! {"here": array![doc! {"a": 2}, doc! {"a": 3}]}},
                doc! {"n": 9, "found": doc! {"here": array![]}},
            ]
        );
    }

    #[test]
    fn an_absent_collection_gives_nothing() {
        let lookup = doc! {"from": "none", "pipeline": array![], "as": "x"};
        let rows = both_ways(array![doc! {"$lookup": lookup}], &[doc! {}], &[doc! {}]);
        assert_eq!(rows, [doc! {"x": array![]}]);
    }
}

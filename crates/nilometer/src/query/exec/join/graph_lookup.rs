//! `$graphLookup`: breadth-first search in another collection, level by level.
//!
//! ```text
//! startWith ──► frontier ── connectToField in frontier ──► documents not seen before   depth 0
//!                  ▲                                            │ connectFromField
//!                  └────────────────────────────────────────────┘                      depth 1 …
//! ```
//!
//! A document is found once, by its `_id` without any collation, at its least depth; a value is looked up once. So cycles end.
//! Equality is that of a filter (see [`super::foreign_table`]): the elements of an array in `startWith` or
//! `connectFromField` are looked up one by one; null matches null and missing. The search does not continue from a document
//! without `connectFromField`.
//!
//! The other collection is read once and hashed by its `connectToField` if it fits the memory limit of the stage;
//! else it is read again for each level. The documents found for one input document must fit: error 40099.

use std::collections::BTreeSet;

use nilometer_bson::{Array, Document, DocumentBuilder, Value, ValueRef};

use super::foreign_table::{ForeignTable, PendingRows, values_at};
use crate::error::{Error, Result, location};
use crate::eval::collation::CollatedValue;
use crate::eval::matcher::{MatchExpression, MatchPath};
use crate::eval::{Collation, ParseContext};
use crate::query::batch::Batch;
use crate::query::exec::build::Builder;
use crate::query::exec::memory::MemoryGauge;
use crate::query::exec::row::unwind::with_value_at;
use crate::query::exec::{BoxOperator, ExecContext, Operator, next_filled};
use crate::query::pipeline::{GraphLookupStage, MatchStage, Stage};

/// Searches another collection from each document of its input.
pub struct GraphLookup {
    input: BoxOperator,
    stage: GraphLookupStage,
    builder: Builder,
    others: ForeignRows,
    waiting: PendingRows,
    /// String comparison.
    collation: Collation,
}

/// The other collection's documents.
enum ForeignRows {
    /// Not read yet.
    Unread,
    /// In memory, by the values of `connectToField`.
    ForeignTable(ForeignTable),
    /// Too large for memory: read again for each level.
    TooMany,
}

impl GraphLookup {
    /// Searches for each document of `input` as `stage` says.
    pub fn new(input: BoxOperator, stage: GraphLookupStage, builder: Builder) -> Self {
        let collation = Collation::from(builder.settings.plan.collator.clone());
        Self {
            input,
            stage,
            builder,
            others: ForeignRows::Unread,
            waiting: PendingRows::default(),
            collation,
        }
    }

    /// Builds a pipeline over the documents of the other collection that pass `filter` and the stage's own filter.
    fn pipeline(&self, filter: Option<MatchStage>) -> Result<BoxOperator> {
        let filters = filter.into_iter().chain(self.stage.restrict.clone());
        let stages = filters.map(Stage::Match).collect();
        self.builder.pipeline(Some(&self.stage.from), stages)
    }

    fn read(&self, cx: &ExecContext<'_>) -> Result<ForeignRows> {
        let memory = MemoryGauge::gather("$graphLookup", cx);
        let path = Some(&self.stage.connect_to);
        let kept = ForeignTable::read(
            self.pipeline(None)?,
            path,
            None,
            self.collation.clone(),
            memory,
            cx,
        )?;
        Ok(kept.map_or(ForeignRows::TooMany, ForeignRows::ForeignTable))
    }

    /// Returns the documents whose `connectToField` is one of `wanted`.
    fn level(
        &self,
        wanted: &BTreeSet<CollatedValue>,
        cx: &ExecContext<'_>,
    ) -> Result<Vec<Document>> {
        if let ForeignRows::ForeignTable(kept) = &self.others {
            return Ok(kept.with_any(wanted.iter()));
        }
        let filter = one_of(&self.stage.connect_to, wanted, &self.collation)?;
        let mut pipeline = self.pipeline(Some(MatchStage::new(filter)))?;
        let mut memory = MemoryGauge::gather("$graphLookup", cx);
        let mut found = Vec::new();
        while let Some(batch) = next_filled(&mut pipeline, cx)? {
            for document in batch.into_rows()? {
                count(&mut memory, document.as_bytes().len())?;
                found.push(document);
            }
        }
        Ok(found)
    }

    /// Returns the documents reachable from one document.
    fn walk(&self, row: &Document, cx: &ExecContext<'_>) -> Result<Value> {
        let start = self.stage.start_with.evaluate(row.as_ref(), &cx.eval)?;
        let mut frontier: BTreeSet<CollatedValue> = match start {
            Value::Array(values) => {
                let keys = values.to_vec().into_iter().map(|v| self.collation.key(v));
                keys.collect()
            }
            Value::Missing => BTreeSet::from([self.collation.key(Value::Null)]),
            value => BTreeSet::from([self.collation.key(value)]),
        };
        let mut asked: BTreeSet<CollatedValue> = BTreeSet::new();
        let mut seen: BTreeSet<CollatedValue> = BTreeSet::new();
        let mut memory = MemoryGauge::gather("$graphLookup", cx);
        let mut found: Vec<Value> = Vec::new();
        let mut depth = 0;
        while !frontier.is_empty() && self.stage.depth_max.is_none_or(|most| depth <= most) {
            cx.operation.check_interrupt()?;
            let mut next = BTreeSet::new();
            for document in self.level(&frontier, cx)? {
                let id = document.get("_id").to_value();
                if id.is_missing() {
                    return Err(Error::location(
                        location::GRAPH_LOOKUP_WITHOUT_ID,
                        format!(
                            "Documents in the '{}' namespace must contain an _id for de-duplication in $graphLookup",
                            self.stage.from
                        ),
                    ));
                }
                let id_bytes = crate::eval::memory_bytes(&id);
                if !seen.insert(Collation::SIMPLE.key(id)) {
                    continue;
                }
                count(
                    &mut memory,
                    id_bytes + document.as_bytes().len() + 2 * size_of::<Value>(),
                )?;
                for value in values_at(&self.stage.connect_from, &document)? {
                    let value = self.collation.key(value);
                    if !asked.contains(&value) && !frontier.contains(&value) {
                        count(
                            &mut memory,
                            crate::eval::memory_bytes(value.value()) + size_of::<Value>(),
                        )?;
                        next.insert(value);
                    }
                }
                found.push(self.with_depth(document, depth));
            }
            asked.append(&mut frontier);
            frontier = next;
            depth += 1;
        }
        Ok(Value::Array(found.into_iter().collect::<Array>()))
    }

    fn with_depth(&self, document: Document, depth: i64) -> Value {
        let document = match &self.stage.depth_field {
            Some(path) => with_value_at(document.as_ref(), path, ValueRef::Int64(depth)),
            None => document,
        };
        Value::Document(document)
    }
}

fn count(memory: &mut MemoryGauge, bytes: usize) -> Result<()> {
    memory.add(bytes).map_err(|_| {
        Error::location(
            location::GRAPH_LOOKUP_TOO_MUCH_FOUND,
            "$graphLookup reached maximum memory consumption",
        )
    })
}

/// Returns a filter for documents in which the path has one of these values.
fn one_of(
    path: &MatchPath,
    wanted: &BTreeSet<CollatedValue>,
    collation: &Collation,
) -> Result<MatchExpression> {
    let arms = wanted.iter().map(|value| {
        // Written as `$eq` terms, because `$in` interprets a regular expression as a pattern.
        let mut equal = DocumentBuilder::new();
        equal.begin_document(path.as_str());
        equal.append("$eq", value.value().clone());
        equal.end();
        Value::Document(equal.finish())
    });
    let mut filter = DocumentBuilder::new();
    filter.append("$or", Value::Array(arms.collect::<Array>()));
    let context = ParseContext::new().with_collator(collation.shared());
    MatchExpression::parse(filter.finish().as_ref(), &context)
}

impl Operator for GraphLookup {
    fn next(&mut self, cx: &ExecContext<'_>) -> Result<Option<Batch>> {
        let mut waiting = std::mem::take(&mut self.waiting);
        if !waiting.fill(&mut self.input, 1, cx)? {
            return Ok(None);
        }
        if matches!(self.others, ForeignRows::Unread) {
            self.others = self.read(cx)?;
        }
        let target = &self.stage.target;
        let rows = waiting.with_found("$graphLookup", target, None, cx, |row, _| {
            self.walk(row, cx)
        })?;
        self.waiting = waiting;
        Ok(Some(rows))
    }

    fn is_exhausted(&self) -> bool {
        self.waiting.is_empty() && self.input.is_exhausted()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use nilometer_bson::{array, doc};

    use super::*;
    use crate::query::exec::ExecLimits;
    use crate::query::exec::testing::{MemoryCollections, MemoryRecords, run_limited};
    use crate::query::planner::settings::PlanOptions;
    use crate::query::source::{Collections, Resolved, ViewDefinition};

    fn collections(own: &[Document], other: &[Document]) -> Arc<dyn Collections> {
        let records = |d: &[Document]| Resolved::Ordinary(Arc::new(MemoryRecords(d.to_vec())));
        let view = Resolved::View(ViewDefinition {
            on: "other".into(),
            pipeline: vec![doc! {"$match": doc! {"hidden": doc! {"$exists": false}}}],
            collation: Collation::SIMPLE,
        });
        Arc::new(MemoryCollections(BTreeMap::from([
            ("c".to_owned(), records(own)),
            ("other".to_owned(), records(other)),
            ("view".to_owned(), view),
        ])))
    }

    /// Returns `_id: depth` of the documents found for each document; the others are kept in memory and, for comparison, read
    /// again.
    fn both_ways(more: Document, own: &[Document], other: &[Document]) -> Vec<Vec<(i64, i64)>> {
        let mut spec = DocumentBuilder::new();
        for (name, value) in [
            ("from", "other"),
            ("startWith", "$start"),
            ("connectFromField", "to"),
        ] {
            if more.get(name).is_missing() {
                spec.append(name, value);
            }
        }
        spec.append("connectToField", "name")
            .append("as", "found")
            .append("depthField", "depth");
        for element in more.iter() {
            spec.append_element(element);
        }
        let stages = array![doc! {"$graphLookup": spec.finish()}];
        let collections = collections(own, other);
        let run = |limits| {
            let found = run_limited(&collections, &stages, PlanOptions::default(), limits).unwrap();
            let of = |d: ValueRef<'_>| {
                let d = d.as_document().unwrap();
                let number = |name: &str| d.get(name).as_exact_i64().unwrap();
                (number("_id"), number("depth"))
            };
            let row = |d: &Document| {
                let mut list: Vec<_> = d.get("found").as_array().unwrap().iter().map(of).collect();
                list.sort_unstable();
                list
            };
            found.iter().map(row).collect::<Vec<_>>()
        };
        let kept = run(ExecLimits::default());
        let bytes: usize = other.iter().map(|d| d.as_bytes().len()).sum();
        let large = doc! {"_id": 1000, "name": "nobody", "pad": "x".repeat(10_000)};
        let padded = [other, &[large]].concat();
        let collections = self::collections(own, &padded);
        let limits = ExecLimits {
            gather_bytes_max: (bytes + 5_000) as u64,
            ..ExecLimits::default()
        };
        let again = run_limited(&collections, &stages, PlanOptions::default(), limits).unwrap();
        assert_eq!(again.len(), kept.len());
        let again = again
            .iter()
            .map(|d| d.get("found").as_array().unwrap().len());
        let sizes = kept.iter().map(Vec::len);
        assert!(again.eq(sizes));
        kept
    }

    #[test]
    fn chains_end_at_cycles() {
        let other = [
            doc! {"_id": 1, "name": "a", "to": "b"},
            doc! {"_id": 2, "name": "b", "to": array!["c", "a"]},
            doc! {"_id": 3, "name": "c", "to": "a"},
            doc! {"_id": 4, "name": "d"},
            doc! {"_id": 5, "name": array!["c", "x"], "to": "d"},
        ];
        let own = [
            doc! {"start": "a"},
            doc! {"start": array!["d", "c"]},
            doc! {"start": "z"},
        ];
        let found = both_ways(doc! {}, &own, &other);
        assert_eq!(found[0], [(1, 0), (2, 1), (3, 2), (4, 3), (5, 2)]);
        assert_eq!(found[1], [(1, 1), (2, 2), (3, 0), (4, 0), (5, 0)]);
        assert!(found[2].is_empty());
        let near = both_ways(doc! {"maxDepth": 1}, &own, &other);
        assert_eq!(near[0], [(1, 0), (2, 1)]);
        let first = both_ways(doc! {"maxDepth": 0}, &own, &other);
        assert_eq!(first[0], [(1, 0)]);
        let restrict = doc! {"restrictSearchWithMatch": doc! {"_id": doc! {"$ne": 3}}};
        assert_eq!(
            both_ways(restrict, &own, &other)[0],
            [(1, 0), (2, 1), (4, 3), (5, 2)]
        );
    }

    #[test]
    fn null_finds_null_and_missing_and_missing_leads_nowhere() {
        let other = [
            doc! {"_id": 1, "name": Value::Null, "to": "a"},
            doc! {"_id": 2},
            doc! {"_id": 3, "name": "a"},
            doc! {"_id": 4, "name": "b", "to": Value::Null},
        ];
        let own = [doc! {}, doc! {"start": "a"}, doc! {"start": "b"}];
        let found = both_ways(doc! {}, &own, &other);
        assert_eq!(found[0], [(1, 0), (2, 0), (3, 1)]);
        assert_eq!(found[1], [(3, 0)]);
        assert_eq!(found[2], [(1, 1), (2, 1), (3, 2), (4, 0)]);
    }

    #[test]
    fn views_and_absent_collections() {
        let other = [
            doc! {"_id": 1, "name": "a"},
            doc! {"_id": 2, "name": "a", "hidden": 1},
        ];
        let own = [doc! {"start": "a"}];
        assert_eq!(both_ways(doc! {"from": "view"}, &own, &other)[0], [(1, 0)]);
        assert!(both_ways(doc! {"from": "none"}, &own, &other)[0].is_empty());
    }

    #[test]
    fn what_is_found_must_fit() {
        let other: Vec<Document> = (0..50)
            .map(|at| doc! {"_id": at, "name": "a", "pad": "x".repeat(100)})
            .collect();
        let collections = collections(&[doc! {"start": "a"}], &other);
        let spec = doc! {"from": "other", "startWith": "$start", "connectFromField": "to", "connectToField": "name", "as": "x"};
        let limits = ExecLimits {
            gather_bytes_max: 1000,
            ..ExecLimits::default()
        };
        let stages = array![doc! {"$graphLookup": spec}];
        let error = run_limited(&collections, &stages, PlanOptions::default(), limits).unwrap_err();
        assert_eq!(error.code.0, location::GRAPH_LOOKUP_TOO_MUCH_FOUND);
    }
}

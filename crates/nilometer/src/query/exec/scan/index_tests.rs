//! Random documents under random indexes: every candidate plan gives the result of the plain collection,
//! in the requested order.

use std::collections::BTreeMap;
use std::sync::Arc;

use nilometer_bson::order::{Collator, compare, compare_with};
use nilometer_bson::testing::awkward_values;
use nilometer_bson::{Document, DocumentBuilder, Value, ValueRef, array, doc};
use nilometer_storage::KeyspaceId;

use crate::catalog::{IndexSpec, StoredIndex};
use crate::error::Result;
use crate::eval::sort_key::SortPattern;
use crate::eval::{Collation, EvalContext, ParseContext};
use crate::index::{Index, entry};
use crate::query::exec::build::Builder;
use crate::query::exec::scan::trial::Trials;
use crate::query::exec::testing::{MemoryCollections, MemoryRecords, operation, settings};
use crate::query::exec::{ExecLimits, ExecSettings, Executor};
use crate::query::pipeline::{PipelineContext, Stage, parse_pipeline_value};
use crate::query::planner::access::choose::{candidates_of, choose, set_limit, take};
use crate::query::planner::access::hint::{Forced, Hint};
use crate::query::planner::access::{Candidate, Choice, IndexScanPlan};
use crate::query::planner::logical::LogicalPlan;
use crate::query::planner::physical::{Input, PhysicalPlan, lower};
use crate::query::planner::resolve::resolve;
use crate::query::planner::rules;
use crate::query::planner::settings::PlanOptions;
use crate::query::source::*;

type Entries = BTreeMap<Vec<u8>, Vec<u8>>;

/// A collection in memory with indexes.
struct Indexed {
    records: MemoryRecords,
    indexes: Vec<(Arc<Index>, Entries)>,
}

struct MemoryView {
    documents: Vec<Document>,
    entries: BTreeMap<u64, Entries>,
}

fn record_key(at: usize) -> Vec<u8> {
    (at as u64 + 1).to_be_bytes().to_vec()
}

impl Indexed {
    /// Creates the collection without the documents that an index rejects.
    fn new(documents: Vec<Document>, specs: Vec<IndexSpec>) -> Self {
        let compile = |spec: &IndexSpec, at: usize, multikey: u32| {
            let keyspace = KeyspaceId(at as u64 + 100);
            let stored = StoredIndex::for_tests(spec.clone(), keyspace, multikey);
            Index::of(&Arc::new(stored)).unwrap()
        };
        let mut multikey = vec![0; specs.len()];
        let mut kept = Vec::new();
        'documents: for document in documents {
            let mut bits = Vec::new();
            for (at, spec) in specs.iter().enumerate() {
                match compile(spec, at, 0).keys(document.as_ref()) {
                    Ok(keys) => bits.push(keys.multikey),
                    Err(_) => continue 'documents,
                }
            }
            for (known, new) in multikey.iter_mut().zip(bits) {
                *known |= new;
            }
            kept.push(document);
        }
        let indexes = specs.iter().enumerate().map(|(at, spec)| {
            let index = compile(spec, at, multikey[at]);
            let mut entries = Entries::new();
            for (at, document) in kept.iter().enumerate() {
                for key in index.keys(document.as_ref()).unwrap().keys {
                    entries.insert(entry::key(&key, &record_key(at)), key.type_bits);
                }
            }
            (index, entries)
        });
        let indexes = indexes.collect();
        Self {
            records: MemoryRecords(kept),
            indexes,
        }
    }
}

impl RecordSource for Indexed {
    fn scan(&self, scan: &RecordScanOptions) -> Result<RecordIter> {
        self.records.scan(scan)
    }

    fn count_estimate(&self) -> Result<u64> {
        self.records.count_estimate()
    }

    fn indexes(&self) -> Result<Vec<Arc<Index>>> {
        Ok(self
            .indexes
            .iter()
            .map(|(index, _)| index.clone())
            .collect())
    }

    fn view(&self) -> Result<Option<Box<dyn RecordView>>> {
        let entries = self.indexes.iter();
        Ok(Some(Box::new(MemoryView {
            documents: self.records.0.clone(),
            entries: entries
                .map(|(index, entries)| (index.stored.keyspace.0, entries.clone()))
                .collect(),
        })))
    }
}

impl RecordView for MemoryView {
    fn entries(
        &self,
        index: &Index,
        start: &[u8],
        end: Option<&[u8]>,
        direction: Direction,
    ) -> Result<EntryIter> {
        let entries = &self.entries[&index.stored.keyspace.0];
        let inside = entries.iter().filter(|(key, _)| {
            key.as_slice() >= start && end.is_none_or(|end| key.as_slice() < end)
        });
        let (order, components) = (index.order(), index.components());
        let mut found: Vec<Result<IndexEntry>> = inside
            .map(|(key, bits)| {
                let (own, record) = entry::split(key, order, components)?;
                Ok(IndexEntry {
                    key: own.to_vec(),
                    type_bits: bits.clone(),
                    record: record.to_vec(),
                })
            })
            .collect();
        if direction == Direction::Backward {
            found.reverse();
        }
        Ok(Box::new(found.into_iter()))
    }

    fn record(&self, key: &[u8]) -> Result<Option<Document>> {
        let at = u64::from_be_bytes(key.try_into().unwrap()) as usize - 1;
        Ok(self.documents.get(at).cloned())
    }
}

/// A small random number generator, the same on every run.
struct Draw(u64, Vec<Value>);

impl Draw {
    fn new(seed: u64) -> Self {
        let awkward = awkward_values().into_iter().map(|(_, value)| value);
        let stored = awkward.filter(|v| !matches!(v, Value::Missing | Value::Undefined));
        Self(seed, stored.collect())
    }

    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }

    fn scalar(&mut self) -> Value {
        match self.below(9) {
            0 => Value::Null,
            1 | 2 => Value::Int32(self.below(4) as i32),
            3 => Value::Double(self.below(4) as f64),
            4 => Value::Int64(self.below(4) as i64),
            5 => (["a", "ab", "b", "B", "9", "25", "100"][self.below(7)]).into(),
            6 => Value::DateTime(self.below(3) as i64),
            7 => Value::Bool(self.below(2) == 0),
            _ => {
                let at = self.below(self.1.len());
                self.1[at].clone()
            }
        }
    }

    fn value(&mut self, arrays: bool) -> Value {
        match self.below(8) {
            0 if arrays => {
                let count = self.below(3);
                (0..count)
                    .map(|_| self.value(false))
                    .collect::<Vec<_>>()
                    .into()
            }
            1 => self.document(arrays, 1).into(),
            _ => self.scalar(),
        }
    }

    fn document(&mut self, arrays: bool, depth: usize) -> Document {
        let mut out = DocumentBuilder::new();
        for name in ["a", "b", "c"] {
            if self.below(5) == 0 {
                continue;
            }
            if depth > 0 {
                out.append(name, self.value(arrays));
            } else {
                out.append(name, self.scalar());
            }
        }
        out.finish()
    }

    fn path(&mut self) -> &'static str {
        ["a", "b", "c", "a.b", "b.c"][self.below(5)]
    }

    fn spec(&mut self, at: usize) -> IndexSpec {
        let mut key = DocumentBuilder::new();
        let kind = self.below(10);
        if kind == 0 {
            key.append("$**", 1);
        } else if kind == 1 {
            key.append(self.path(), "hashed");
        } else {
            let mut used: Vec<&str> = Vec::new();
            for _ in 0..1 + self.below(3) {
                let path = self.path();
                if !used.contains(&path) {
                    used.push(path);
                    key.append(path, if self.below(3) == 0 { -1 } else { 1 });
                }
            }
        }
        let partial_filter = (self.below(3) == 0).then(|| self.partial_filter());
        IndexSpec {
            key: key.finish(),
            name: format!("index_{at}"),
            sparse: partial_filter.is_none() && self.below(4) == 0,
            partial_filter,
            ..IndexSpec::default()
        }
    }

    /// Draws a filter for a partial index.
    fn partial_filter(&mut self) -> Document {
        let path = self.path();
        let test = match self.below(7) {
            0 => doc! {"$exists": true},
            1 => doc! {"$in": array![self.scalar(), self.scalar(), self.scalar()]},
            2 => doc! {"$type": "string"},
            3 => doc! {"$gte": self.scalar()},
            4 => doc! {"$lt": self.scalar()},
            _ => doc! {"$gt": self.below(3) as i32},
        };
        let mut out = DocumentBuilder::new();
        out.append(path, test);
        let other = self.path();
        if other != path && self.below(4) == 0 {
            out.append(other, doc! {"$lte": self.scalar()});
        }
        out.finish()
    }

    /// Draws a collation, mostly none. Some sort strings very differently from their bytes.
    fn collation(&mut self) -> Option<Document> {
        Some(match self.below(6) {
            0 => doc! {"locale": "en", "numericOrdering": true},
            1 => doc! {"locale": "en", "strength": 1},
            2 => doc! {"locale": "en", "caseFirst": "upper"},
            _ => return None,
        })
    }

    fn operators(&mut self) -> Document {
        match self.below(12) {
            0 => doc! {"$gt": self.scalar(), "$lte": self.scalar()},
            1 => doc! {"$gte": self.scalar()},
            2 => doc! {"$lt": self.scalar()},
            3 => doc! {"$in": array![self.scalar(), self.scalar(), self.scalar()]},
            4 => doc! {"$ne": self.scalar()},
            5 => doc! {"$exists": self.below(2) == 0},
            6 => doc! {"$type": "number"},
            7 => doc! {"$nin": array![self.scalar(), self.scalar()]},
            8 => doc! {"$elemMatch": doc! {"$gte": self.scalar(), "$lt": self.scalar()}},
            9 => doc! {"$regex": "^a"},
            _ => doc! {"$eq": self.scalar()},
        }
    }

    fn filter(&mut self, depth: usize) -> Document {
        let mut out = DocumentBuilder::new();
        if depth > 0 && self.below(4) == 0 {
            out.append(
                "$or",
                array![self.filter(depth - 1), self.filter(depth - 1)],
            );
        }
        if depth > 0 && self.below(8) == 0 {
            out.append("a", doc! {"$elemMatch": doc! {"b": self.operators()}});
        }
        for _ in 0..self.below(3) {
            let path = self.path();
            if out.len() < 400 {
                out.append(path, self.operators());
            }
        }
        // A repeated path would be one field: later ones are dropped.
        let built = out.finish();
        let mut seen: Vec<String> = Vec::new();
        let mut out = DocumentBuilder::new();
        for element in built.iter() {
            if !seen.iter().any(|name| name == element.name()) {
                seen.push(element.name().to_owned());
                out.append_element(element);
            }
        }
        out.finish()
    }

    fn order(&mut self) -> Document {
        let mut out = DocumentBuilder::new();
        let first = self.path();
        out.append(first, if self.below(2) == 0 { 1 } else { -1 });
        let second = self.path();
        if second != first && self.below(2) == 0 {
            out.append(second, if self.below(2) == 0 { 1 } else { -1 });
        }
        out.finish()
    }

    /// Draws stages; also returns the order of their output.
    fn stages(&mut self) -> (Value, Option<Document>, bool) {
        let mut stages: Vec<Value> = vec![doc! {"$match": self.filter(2)}.into()];
        let mut order = None;
        let mut limited = false;
        match self.below(6) {
            0 | 1 => {
                let by = self.order();
                stages.push(doc! {"$sort": by.clone()}.into());
                order = Some(by);
                if self.below(3) == 0 {
                    limited = true;
                    stages.push(doc! {"$limit": 5}.into());
                }
            }
            2 => {
                let mut project = DocumentBuilder::new();
                project.append("_id", 0);
                project.append(self.path(), 1);
                stages.push(doc! {"$project": project.finish()}.into());
            }
            3 => {
                if self.below(3) > 0 {
                    stages.clear();
                }
                let by = format!("${}", self.path());
                stages.push(doc! {"$group": doc! {"_id": by}}.into());
            }
            4 => stages.push(doc! {"$count": "n"}.into()),
            _ => {}
        }
        (stages.into(), order, limited)
    }
}

/// Returns the document with its fields sorted by name: keys do not store the order of fields.
fn sorted_fields(value: ValueRef<'_>) -> Value {
    match value {
        ValueRef::Document(document) => {
            let mut fields: Vec<(&str, ValueRef<'_>)> =
                document.iter().map(|e| (e.name(), e.value())).collect();
            fields.sort_by_key(|(name, _)| *name);
            let mut out = DocumentBuilder::new();
            for (name, value) in fields {
                out.append(name, sorted_fields(value));
            }
            out.finish().into()
        }
        other => other.to_value(),
    }
}

fn as_set(rows: &[Document]) -> Vec<Value> {
    let mut values: Vec<Value> = rows
        .iter()
        .map(|row| sorted_fields(ValueRef::Document(row.as_ref())))
        .collect();
    values.sort_by(|a, b| compare(a.as_ref(), b.as_ref()));
    values
}

fn is_same(a: &[Value], b: &[Value]) -> bool {
    a.len() == b.len()
        && a.iter()
            .zip(b)
            .all(|(a, b)| compare(a.as_ref(), b.as_ref()).is_eq())
}

/// Returns the sort keys of rows.
fn sort_keys(rows: &[Document], order: &Document, settings: &ExecSettings) -> Vec<Value> {
    let pattern = SortPattern::parse(order.as_ref(), &parsing(settings)).unwrap();
    let cx = EvalContext {
        collator: settings
            .plan
            .collator
            .as_deref()
            .map(|c| c as &dyn Collator),
        ..EvalContext::default()
    };
    let keys = rows.iter().map(|row| {
        let key = pattern.extract(row.as_ref(), &cx);
        key.unwrap().to_array()
    });
    keys.collect()
}

fn plan_of(builder: &Builder, stages: Vec<Stage>, settings: &ExecSettings) -> PhysicalPlan {
    let cx = PipelineContext::top(parsing(settings));
    let resolved = resolve(&*builder.collections, "test", "c", &cx).unwrap();
    let mut plan = LogicalPlan::new(resolved.source, stages);
    rules::apply_logical(&mut plan, &settings.plan);
    let mut plan = lower(plan, &settings.plan);
    rules::apply_physical(&mut plan, &settings.plan);
    plan
}

/// Returns a parse context with the collation of the settings.
fn parsing(settings: &ExecSettings) -> ParseContext {
    ParseContext::new().with_collator(settings.plan.collator.clone())
}

fn run(builder: &Builder, plan: PhysicalPlan) -> Result<Vec<Document>> {
    let root = builder.build(plan)?;
    Executor::new(root, builder.settings.clone()).drain(&operation())
}

/// A collection, its indexes, and the collation of the query.
struct World {
    source: Arc<Indexed>,
    builder: Builder,
    settings: Arc<ExecSettings>,
}

impl World {
    fn new(source: Indexed, collation: &Collation) -> Self {
        let source = Arc::new(source);
        let mut settings = settings(PlanOptions::default(), ExecLimits::default());
        settings.plan.collator = collation.shared();
        let settings = Arc::new(settings);
        let builder = Builder {
            collections: MemoryCollections::of(Resolved::Ordinary(source.clone())),
            database: "test".into(),
            collection: Some("c".into()),
            settings: settings.clone(),
            depth: 0,
        };
        Self {
            source,
            builder,
            settings,
        }
    }

    /// Draws a world. Half of the indexes, and mostly the query, have its collation.
    fn drawn(draw: &mut Draw, arrays: bool) -> Self {
        let own = draw.collation();
        let documents = (0..40).map(|_| draw.document(arrays, 1)).collect();
        let specs = (0..1 + draw.below(4)).map(|at| {
            let mut spec = draw.spec(at);
            let is_hashed = spec
                .key
                .iter()
                .any(|e| matches!(e.value(), ValueRef::String(_)));
            if draw.below(3) > 0 && !is_hashed {
                spec.collation = own.clone();
            }
            spec
        });
        let specs = specs.collect();
        let collation = match &own {
            Some(own) if draw.below(5) > 0 => Collation::parse(own.as_ref(), "").unwrap(),
            _ => Collation::SIMPLE,
        };
        Self::new(Indexed::new(documents, specs), &collation)
    }

    fn parse(&self, pipeline: &Value) -> Result<Vec<Stage>> {
        let cx = PipelineContext::top(parsing(&self.settings));
        parse_pipeline_value(&cx, "pipeline", pipeline.as_ref())
    }

    fn plan(&self, stages: Vec<Stage>) -> PhysicalPlan {
        plan_of(&self.builder, stages, &self.settings)
    }

    fn candidates(&self, plan: &PhysicalPlan, indexes: &[Arc<Index>]) -> Vec<Candidate> {
        let Input::Records(input) = &plan.input else {
            panic!("records are read");
        };
        candidates_of(plan, input, &self.settings.plan, indexes).unwrap()
    }

    /// Runs a candidate of a plan.
    fn answer(&self, plan: &PhysicalPlan, candidate: Candidate) -> Vec<Document> {
        let mut plan = plan.clone();
        take(&mut plan, candidate, Choice::default());
        set_limit(&mut plan);
        run(&self.builder, plan).unwrap()
    }

    /// Returns the documents an index contains, as a collection without indexes.
    fn held_by(&self, at: usize) -> Self {
        let (_, entries) = &self.source.indexes[at];
        let index = &self.source.indexes[at].0;
        let records = entries.keys().map(|key| {
            let (_, record) = entry::split(key, index.order(), index.components()).unwrap();
            record.to_vec()
        });
        let records: std::collections::BTreeSet<Vec<u8>> = records.collect();
        let all = self.source.records.0.iter().enumerate();
        let held = all.filter(|(at, _)| records.contains(&record_key(*at)));
        let held = held.map(|(_, document)| document.clone()).collect();
        let collation = Collation::from(self.settings.plan.collator.clone());
        Self::new(Indexed::new(held, Vec::new()), &collation)
    }
}

/// A query and its expected result.
struct Expected {
    pipeline: Value,
    order: Option<Document>,
    limited: bool,
    rows: Vec<Document>,
}

impl Expected {
    fn check(&self, answer: &[Document], by: &str, world: &World) {
        let (pipeline, expected) = (&self.pipeline, &self.rows);
        let collation = &world.settings.plan.collator;
        let text = || format!("{pipeline:?} by {by}\n under {collation:?}\n gives {answer:?}");
        if !self.limited {
            assert!(
                is_same(&as_set(answer), &as_set(expected)),
                "{}\n not {expected:?}",
                text()
            );
        }
        if let Some(order) = &self.order {
            let keys = |rows| sort_keys(rows, order, &world.settings);
            // Values equal under the collation count as equal.
            let same = |a: &Value, b: &Value| {
                let collator = collation.as_deref().map(|c| c as &dyn Collator);
                compare_with(a.as_ref(), b.as_ref(), collator).is_eq()
            };
            let (own, wanted) = (keys(answer), keys(expected));
            assert!(
                own.len() == wanted.len() && own.iter().zip(&wanted).all(|(a, b)| same(a, b)),
                "{}\n not {expected:?}",
                text()
            );
        }
    }
}

#[test]
fn every_candidate_answers_like_the_collection() {
    let mut draw = Draw::new(0x2545_F491_4F6C_DD1D);
    let operation = operation();
    let mut used = [0usize; 8];
    let rounds = nilometer_storage::testing::effort(120, 500, 500);
    for round in 0..rounds {
        let world = World::drawn(&mut draw, round % 3 != 0);
        let indexes = world.source.indexes().unwrap();
        for _ in 0..6 {
            let (pipeline, order, limited) = draw.stages();
            let Ok(stages) = world.parse(&pipeline) else {
                continue;
            };
            let plain = world.plan(stages);
            let Ok(rows) = run(&world.builder, plain.clone()) else {
                // Arrays in two parts of an order; an index with that order contains no such document.
                continue;
            };
            // Of strings equal under a collation, a group may show any as its key.
            let by_count = pipeline_groups(&pipeline) && world.settings.plan.collator.is_some();
            let expected = Expected {
                pipeline,
                order,
                limited: limited || by_count,
                rows,
            };
            for candidate in world.candidates(&plain, &indexes) {
                let access = &candidate.access;
                used[0] += 1;
                used[1] += usize::from(access.covering.is_some());
                used[2] += usize::from(access.distinct.is_some());
                used[3] += usize::from(candidate.sorted);
                used[4] += usize::from(access.keys.only().is_none());
                used[5] += usize::from(access.residual.is_none());
                let partial = |scan: &IndexScanPlan| scan.index.partial_filter().is_some();
                used[6] += usize::from(access.keys.scans().iter().any(partial));
                let wild = |scan: &IndexScanPlan| partial(scan) && scan.index.is_wildcard();
                used[7] += usize::from(access.keys.scans().iter().any(wild));
                let by = format!("{access:?}");
                let answer = world.answer(&plain, candidate);
                assert!(!by_count || answer.len() == expected.rows.len(), "{by}");
                expected.check(&answer, &by, &world);
            }
            let mut chosen = plain.clone();
            let trials = Trials {
                settings: &world.settings,
                operation: &operation,
            };
            choose(&mut chosen, world.settings.choice(Some(&trials))).unwrap();
            let answer = run(&world.builder, chosen).unwrap();
            expected.check(&answer, "the choice", &world);
        }
    }
    // Each kind of plan was used often enough: all, covered, distinct, sorted, several scans,
    // no residual filter, partial index, wildcard index.
    let wanted = [1000, 40, 10, 60, 80, 200, 40, 4].map(|least| least * rounds as usize / 500);
    assert!(
        used.iter().zip(wanted).all(|(n, least)| *n >= least),
        "{used:?}"
    );
}

fn pipeline_groups(pipeline: &Value) -> bool {
    let stages = pipeline.as_ref().as_array().unwrap();
    stages.iter().any(|stage| {
        let stage = stage.as_document().unwrap();
        !stage.get("$group").is_missing()
    })
}

#[test]
fn a_hint_answers_like_the_documents_of_its_index() {
    let mut draw = Draw::new(0x9E37_79B9_7F4A_7C15);
    let mut used = [0usize; 2];
    for round in 0..nilometer_storage::testing::effort(90, 300, 300) {
        let world = World::drawn(&mut draw, round % 3 != 0);
        for (at, index) in world.source.indexes().unwrap().iter().enumerate() {
            // A wildcard index holds paths, not whole documents, so the hint must not change the result.
            let of_index = match index.is_wildcard() {
                true => None,
                false => Some(world.held_by(at)),
            };
            let oracle = of_index.as_ref().unwrap_or(&world);
            for _ in 0..4 {
                let (pipeline, order, limited) = draw.stages();
                let Ok(stages) = world.parse(&pipeline) else {
                    continue;
                };
                let Ok(rows) = run(&oracle.builder, oracle.plan(stages.clone())) else {
                    continue;
                };
                let groups = pipeline_groups(&pipeline) && world.settings.plan.collator.is_some();
                let expected = Expected {
                    pipeline,
                    order,
                    limited: limited || groups,
                    rows,
                };
                let mut plan = world.plan(stages);
                if let Input::Records(input) = &mut plan.input {
                    input.forced = Some(Forced {
                        hint: Hint::Name(index.stored.spec.name.as_str().into()),
                        min: None,
                        max: None,
                    });
                }
                for candidate in world.candidates(&plan, std::slice::from_ref(index)) {
                    used[0] += 1;
                    used[1] += usize::from(index.leaves_documents_out());
                    let by = format!("hint {:?}", candidate.access);
                    let answer = world.answer(&plan, candidate);
                    expected.check(&answer, &by, &world);
                }
            }
        }
    }
    assert!(used[0] > 1000 && used[1] > 200, "{used:?}");
}

//! A collection in three partitions gives the answers of one with the same documents.
//!
//! The oracle reads the documents of all partitions, one after the other, from an ordinary collection, without rules and
//! without blocks. Plain concatenation here (no rules) is a second one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nilometer_bson::testing::awkward_values;
use nilometer_bson::{Document, Value, array, doc};

use super::build::Builder;
use super::random_tests::{
    Draw, EPOCHS, difference, is_same, measurements, outcome, pipeline, show,
};
use super::testing::{MemoryBuckets, MemoryCollections, MemoryRecords, run, settings};
use super::{ExecLimits, Executor};
use crate::Result;
use crate::eval::ParseContext;
use crate::eval::matcher::MatchExpression;
use crate::operation::OperationContext;
use crate::query::partitions::{Part, PartForm, PartitionCursor, PartitionSource};
use crate::query::pipeline::{PipelineContext, parse_pipeline};
use crate::query::planner::settings::PlanOptions;
use crate::query::source::{Collections, Resolved};

/// Partitions in memory, which count what they return.
#[derive(Default)]
struct MemoryPartitions {
    partitions: Vec<Arc<dyn Collections>>,
    parts: AtomicU64,
    rows: Arc<AtomicU64>,
    bytes: Arc<AtomicU64>,
}

impl MemoryPartitions {
    fn of(partitions: Vec<Arc<dyn Collections>>) -> Arc<Self> {
        Arc::new(Self {
            partitions,
            ..Self::default()
        })
    }

    /// Returns the number of documents returned since the last call.
    fn rows(&self) -> u64 {
        self.rows.swap(0, Ordering::Relaxed)
    }

    /// Returns the bytes of these documents since the last call.
    fn bytes(&self) -> u64 {
        self.bytes.swap(0, Ordering::Relaxed)
    }
}

/// Plans and builds a part as a partition does.
fn executor_of(collections: &Arc<dyn Collections>, part: &Part) -> Result<Executor> {
    let mut expressions = ParseContext::new();
    let mut settings = settings(PlanOptions::default(), ExecLimits::default());
    let mut values = Vec::new();
    for variable in part.variables.iter() {
        expressions.define(variable.name());
        values.push(variable.value().to_value());
    }
    settings.plan.variables = values.into();
    settings.plan.now_ms = part.now_ms;
    let stages = part.stages.iter().map(Document::as_ref);
    let mut stages = parse_pipeline(&PipelineContext::top(expressions), stages)?;
    crate::query::pipeline::meta::settle_part(&mut stages, part.metadata);
    let settings = Arc::new(settings);
    let builder = Builder {
        collections: Arc::clone(collections),
        database: "test".into(),
        collection: Some("c".into()),
        settings: Arc::clone(&settings),
        depth: 0,
    };
    let mut plan = builder.plan(Some("c"), stages)?;
    if part.form == PartForm::States {
        plan.return_states()?;
    }
    Ok(Executor::new(builder.build(plan)?, settings))
}

impl PartitionSource for MemoryPartitions {
    fn targets(&self, _: Option<&MatchExpression>) -> Result<Vec<usize>> {
        Ok((0..self.partitions.len()).collect())
    }

    fn name(&self, partition: usize) -> String {
        format!("p{partition}")
    }

    fn host(&self, _: usize) -> String {
        String::new()
    }

    fn explain(
        &self,
        _: &[usize],
        _: &Part,
        _: &str,
        _: &OperationContext,
    ) -> Result<Vec<Document>> {
        Ok(Vec::new())
    }

    fn open(
        &self,
        partition: usize,
        part: &Part,
        _: &OperationContext,
    ) -> Result<Box<dyn PartitionCursor>> {
        self.parts.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(MemoryCursor {
            // What a partition cannot plan is known when its answer is read.
            executor: executor_of(&self.partitions[partition], part),
            rows: Arc::clone(&self.rows),
            bytes: Arc::clone(&self.bytes),
        }))
    }
}

struct MemoryCursor {
    executor: Result<Executor>,
    rows: Arc<AtomicU64>,
    bytes: Arc<AtomicU64>,
}

impl PartitionCursor for MemoryCursor {
    fn wait_for_start(&mut self, _: &OperationContext) -> Result<()> {
        Ok(())
    }

    fn next(&mut self, operation: &OperationContext) -> Result<Option<Vec<Document>>> {
        let executor = self.executor.as_mut().map_err(|error| error.clone())?;
        let rows = executor.next_rows(operation)?;
        let count = rows.as_ref().map_or(0, Vec::len) as u64;
        self.rows.fetch_add(count, Ordering::Relaxed);
        let sizes = rows.iter().flatten().map(|row| row.as_bytes().len() as u64);
        self.bytes.fetch_add(sizes.sum(), Ordering::Relaxed);
        Ok(rows)
    }
}

fn ordinary(documents: Vec<Document>) -> Arc<dyn Collections> {
    MemoryCollections::of(Resolved::Ordinary(Arc::new(MemoryRecords(documents))))
}

fn partitioned(
    partitions: Vec<Arc<dyn Collections>>,
) -> (Arc<dyn Collections>, Arc<MemoryPartitions>) {
    let partitions = MemoryPartitions::of(partitions);
    let resolved = Resolved::Partitioned(Arc::clone(&partitions) as Arc<dyn PartitionSource>);
    (MemoryCollections::of(resolved), partitions)
}

fn check(seed: u64, awkward: &[Value]) {
    let mut draw = Draw(seed * 2 + 0x9E37_79B9_7F4A_7C15);
    let draw = &mut draw;
    let epoch = draw.pick(&EPOCHS);
    let unique = draw.chance(50);
    // Empty partitions are drawn, too.
    let count = 1 + draw.below(4);
    let mut lists = vec![Vec::new(); count];
    for measurement in measurements(draw, epoch, unique, awkward) {
        let at = draw.below(count);
        lists[at].push(measurement);
    }
    let most = 1 + draw.below(40);
    let buckets = lists
        .iter()
        .map(|list| Arc::new(MemoryBuckets::new(list, most)));
    let buckets: Vec<Arc<MemoryBuckets>> = buckets.collect();
    let stored: Vec<Vec<Document>> = buckets.iter().map(|b| b.measurements()).collect();
    let whole = ordinary(stored.concat());
    let records = stored.into_iter().map(ordinary).collect();
    let series = buckets.into_iter();
    let series = series.map(|b| MemoryCollections::of(Resolved::TimeSeries(b)));
    let (records, _) = partitioned(records);
    let (series, _) = partitioned(series.collect());
    let naive = PlanOptions {
        force_rows: true,
        no_rules: true,
        ..PlanOptions::default()
    };
    for _ in 0..8 {
        let stages = pipeline(draw, epoch, unique, awkward);
        let expected = outcome(run(&whole, &stages, naive), &stages);
        for options in [PlanOptions::default(), naive] {
            for (kind, collections) in [("records", &records), ("series", &series)] {
                let found = outcome(run(collections, &stages, options), &stages);
                if !is_same(&found, &expected, &stages) {
                    let difference = difference(&found, &expected);
                    panic!(
                        "seed {seed}, {count} {kind}, {options:?}, {}\n{difference}",
                        show(stages.as_ref())
                    );
                }
            }
        }
    }
}

#[test]
fn partitions_give_the_answer_of_one_collection() {
    let awkward: Vec<Value> = awkward_values()
        .into_iter()
        .map(|(_, value)| value)
        .filter(|value| !matches!(value, Value::Missing))
        .collect();
    for seed in 0..nilometer_storage::testing::effort(15, 600, 10_000) {
        check(seed, &awkward);
    }
}

/// Returns three partitions with a hundred documents each.
fn three() -> (Arc<dyn Collections>, Arc<MemoryPartitions>) {
    three_of(100)
}

fn three_of(count: i32) -> (Arc<dyn Collections>, Arc<MemoryPartitions>) {
    let document = |n: i32| doc! {"_id": n, "host": n % 7, "x": n, "y": "text"};
    let partition = |p: i32| ordinary((0..count).map(|n| document(n * 3 + p)).collect());
    partitioned((0..3).map(partition).collect())
}

fn found(collections: &Arc<dyn Collections>, stages: &Value) -> Vec<Document> {
    run(collections, stages, PlanOptions::default()).unwrap()
}

#[test]
fn partitions_return_no_more_than_the_rest_needs() {
    let (collections, partitions) = three();
    let cases = [
        // One state for each group of each partition.
        (
            array![doc! {"$group": doc! {"_id": "$host", "n": doc! {"$sum": "$x"}}}],
            7,
            21,
        ),
        (
            array![doc! {"$match": doc! {"host": 3}}, doc! {"$count": "n"}],
            1,
            3,
        ),
        (
            array![doc! {"$sort": doc! {"x": -1}}, doc! {"$limit": 5}],
            5,
            15,
        ),
        (array![doc! {"$limit": 5}], 5, 15),
        (array![doc! {"$skip": 2}, doc! {"$limit": 3}], 3, 15),
        (
            array![
                doc! {"$sort": doc! {"x": 1}},
                doc! {"$group": doc! {"_id": "$host", "x": doc! {"$last": "$x"}, "y": doc! {"$last": "$y"}}},
            ],
            7,
            21,
        ),
    ];
    for (stages, expected, moved) in cases {
        let text = show(stages.as_ref());
        assert_eq!(found(&collections, &stages).len(), expected, "{text}");
        let rows = partitions.rows();
        // A limit may end the reading of the first partition.
        assert!(rows <= moved, "{text}: {rows} rows");
    }
}

/// A partition sends the states of its groups: as many bytes for ten thousand documents as for a hundred.
#[test]
fn the_bytes_of_groups_do_not_grow_with_the_documents() {
    /// A state of a group has its key and two values or so for each accumulator.
    const STATE_BYTES_MAX: u64 = 200;
    let order = doc! {"x": 1};
    for accumulators in [
        doc! {"n": doc! {"$sum": 1}, "sum": doc! {"$sum": "$x"}},
        doc! {"mean": doc! {"$avg": "$x"}},
        doc! {"least": doc! {"$min": "$x"}, "most": doc! {"$max": "$y"}},
        doc! {"n": doc! {"$count": doc! {}}},
        doc! {"top": doc! {"$top": doc! {"sortBy": order.clone(), "output": "$x"}}},
        doc! {"last": doc! {"$bottom": doc! {"sortBy": order, "output": array!["$x", "$y"]}}},
    ] {
        let mut group = nilometer_bson::DocumentBuilder::new();
        group.append("_id", "$host");
        for accumulator in accumulators.iter() {
            group.append_element(accumulator);
        }
        let stages = array![doc! {"$group": group.finish()}];
        let text = show(stages.as_ref());
        let moved = [100, 10_000].map(|count| {
            let (collections, partitions) = three_of(count);
            assert_eq!(found(&collections, &stages).len(), 7, "{text}");
            (partitions.rows(), partitions.bytes())
        });
        let [(few_rows, few), (many_rows, many)] = moved;
        assert_eq!([few_rows, many_rows], [21; 2], "{text}");
        assert!(many <= 21 * STATE_BYTES_MAX, "{text}: {many} bytes");
        // Greater numbers may take more bytes.
        assert!(many <= few + 21 * 16, "{text}: {few} and {many} bytes");
    }
}

#[test]
fn a_part_has_only_the_fields_that_are_needed() {
    use crate::query::planner::physical::Input;
    let (collections, _) = three();
    let builder = Builder {
        collections,
        database: "test".into(),
        collection: Some("c".into()),
        settings: Arc::new(settings(PlanOptions::default(), ExecLimits::default())),
        depth: 0,
    };
    let part = |stages: Value| {
        let cx = PipelineContext::top(ParseContext::new());
        let parsed = crate::query::pipeline::parse_pipeline_value(&cx, "pipeline", stages.as_ref());
        let plan = builder.plan(Some("c"), parsed.unwrap()).unwrap();
        let Input::Partitions(input) = plan.input else {
            panic!("a cut")
        };
        let stages: Vec<Value> = input.part.stages.into_iter().map(Value::from).collect();
        show(Value::from(stages).as_ref())
    };
    // $stdDevPop does not merge exactly.
    let deviation = doc! {"$group": doc! {"_id": "$host", "d": doc! {"$stdDevPop": "$x"}}};
    let cut = part(array![deviation]);
    assert_eq!(
        cut,
        "[{$project: {_id: Bool(false), host: Bool(true), x: Bool(true)}}]"
    );
    let windows = doc! {"$setWindowFields": doc! {
        "sortBy": doc! {"x": 1}, "output": doc! {"s": doc! {"$sum": "$x"}},
    }};
    let cut = part(array![doc! {"$match": doc! {"x": 1}}, windows]);
    assert_eq!(cut, "[{$match: {x: Int32(1)}}]");
    let looked_up = doc! {"$lookup": doc! {
        "from": "d", "localField": "x", "foreignField": "x", "as": "d",
    }};
    assert_eq!(part(array![looked_up]), "[]");
}

#[test]
fn variables_reach_the_partitions_by_name() {
    let (collections, partitions) = three();
    // In an inner pipeline their names are not known: the stage runs here.
    let outer = ordinary(vec![doc! {"_id": 1, "want": 4}]);
    let both = MemoryCollections(
        [
            ("c".to_owned(), outer.resolve("test", "c").unwrap()),
            ("d".to_owned(), collections.resolve("test", "c").unwrap()),
        ]
        .into(),
    );
    let both: Arc<dyn Collections> = Arc::new(both);
    let condition = doc! {"$expr": doc! {"$eq": array!["$x", "$$w"]}};
    let lookup = doc! {"$lookup": doc! {
        "from": "d", "let": doc! {"w": "$want"}, "pipeline": array![doc! {"$match": condition}],
        "as": "found",
    }};
    let rows = found(&both, &array![lookup]);
    let list = rows[0].get("found").as_array().unwrap();
    assert_eq!(list.iter().count(), 1);
    assert_eq!(partitions.rows(), 300);
}

#[test]
fn damaged_states_are_errors() {
    struct Damaged(Document);
    impl PartitionSource for Damaged {
        fn targets(&self, _: Option<&MatchExpression>) -> Result<Vec<usize>> {
            Ok(vec![0, 1])
        }
        fn name(&self, _: usize) -> String {
            String::new()
        }
        fn host(&self, _: usize) -> String {
            String::new()
        }
        fn explain(
            &self,
            _: &[usize],
            _: &Part,
            _: &str,
            _: &OperationContext,
        ) -> Result<Vec<Document>> {
            Ok(Vec::new())
        }
        fn open(
            &self,
            _: usize,
            _: &Part,
            _: &OperationContext,
        ) -> Result<Box<dyn PartitionCursor>> {
            Ok(Box::new(Once(Some(self.0.clone()))))
        }
    }
    struct Once(Option<Document>);
    impl PartitionCursor for Once {
        fn wait_for_start(&mut self, _: &OperationContext) -> Result<()> {
            Ok(())
        }
        fn next(&mut self, _: &OperationContext) -> Result<Option<Vec<Document>>> {
            Ok(self.0.take().map(|row| vec![row]))
        }
    }
    let group = doc! {"$group": doc! {"_id": "$a", "s": doc! {"$sum": "$b"}, "t": doc! {"$top": doc! {
        "sortBy": doc! {"b": 1}, "output": "$b",
    }}}};
    let stages = array![group];
    let states = [
        doc! {},
        doc! {"k": 1},
        doc! {"k": 1, "s": 1},
        doc! {"k": 1, "s": array![]},
        doc! {"k": 1, "s": array!["x", 1]},
        doc! {"k": 1, "s": array![array![], doc! {}]},
    ];
    for state in states {
        let text = show(nilometer_bson::ValueRef::Document(state.as_ref()));
        let source = Resolved::Partitioned(Arc::new(Damaged(state)));
        let collections = MemoryCollections::of(source);
        let error = run(&collections, &stages, PlanOptions::default()).unwrap_err();
        assert_eq!(error.code, crate::ErrorCode::InternalError, "{text}");
    }
}

//! The promise of a time-series collection: it answers like an ordinary collection of the same documents.
//!
//! Random measurements are inserted into both kinds of collection, in memory and in a directory, sometimes
//! with so little query memory that queries must spill to disk; random filters and pipelines must have
//! equal answers on all four. The ordinary collection in memory is the oracle.
//!
//! Unspecified properties are ignored: the order of documents that are not sorted, the order of top-level
//! fields, and, for grouped values, which of several equal numbers (1, 1.0) represents all. Metadata has
//! sorted fields, as a time series would sort them. Numbers are quarters of small integers, so that sums do
//! not depend on their order.

mod documents;
mod questions;
mod texts;

use nilometer_bson::extjson::value_to_canonical;
use nilometer_bson::{Array, Document, DocumentBuilder, Value, ValueRef, array, doc};
use nilometer_storage::testing::Effort;

pub(crate) use documents::{documents, scalar, time};
pub(crate) use questions::question;
pub(crate) use texts::Fold;
use texts::{FOLDS, text_filter, vary_fields, with_texts};

use crate::random::Random;
use crate::support::{Fixture, TemporaryDirectory, show};

/// Generated databases of a run.
const DATABASES: Effort = Effort {
    fast: 2,
    long: 12,
    soak: 200,
};

/// How answers are compared.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Compare {
    /// As sets of exact documents.
    Set,
    /// As sequences of exact documents.
    Sequence,
    /// As sets in which equal numbers are the same.
    Values,
}

pub(crate) struct Question {
    pub(crate) compare: Compare,
    pub(crate) command: Document,
}

/// Returns a value as text in which equal numbers and strings are the same.
fn plain(value: ValueRef<'_>, fold: Fold) -> String {
    let number = match value {
        ValueRef::Int32(n) => f64::from(n),
        ValueRef::Int64(n) => n as f64,
        ValueRef::Double(n) => n,
        ValueRef::Decimal128(n) => n.to_f64(),
        ValueRef::Document(d) => {
            let fields = d
                .iter()
                .map(|e| format!("{}: {}", e.name(), plain(e.value(), fold)));
            return format!("{{{}}}", fields.collect::<Vec<_>>().join(", "));
        }
        ValueRef::Array(a) => {
            return format!(
                "[{}]",
                a.iter()
                    .map(|v| plain(v, fold))
                    .collect::<Vec<_>>()
                    .join(", ")
            );
        }
        ValueRef::String(text) => return value_to_canonical(ValueRef::String(&fold.fold(text))),
        other => return value_to_canonical(other),
    };
    // Minus zero equals zero.
    format!("{}", number + 0.0)
}

fn canonical(document: &Document, compare: Compare, fold: Fold) -> String {
    let mut fields: Vec<String> = document
        .iter()
        .map(|e| match compare {
            Compare::Values => format!("{}: {}", e.name(), plain(e.value(), fold)),
            _ => format!("{}: {}", e.name(), value_to_canonical(e.value())),
        })
        .collect();
    fields.sort();
    fields.join(", ")
}

/// Returns the answer of a collection as text: documents, values, a number or an error code.
pub(crate) fn answer(
    fixture: &mut Fixture,
    collection: &str,
    question: &Question,
    fold: Fold,
) -> Vec<String> {
    let mut command = DocumentBuilder::new();
    for (at, element) in question.command.iter().enumerate() {
        if at == 0 {
            command.append(element.name(), collection);
        } else {
            command.append_element(element);
        }
    }
    let reply = fixture.reply(command.finish());
    if reply.get("ok").as_exact_i64() != Some(1) {
        return vec![format!("code {}", plain(reply.get("code"), fold))];
    }
    if let Some(values) = reply.get("values").as_array() {
        let mut values: Vec<String> = values.iter().map(|v| plain(v, fold)).collect();
        values.sort();
        return values;
    }
    if !reply.get("n").is_missing() {
        return vec![plain(reply.get("n"), fold)];
    }
    let mut documents: Vec<String> = fixture
        .rest(reply)
        .iter()
        .map(|d| canonical(d, question.compare, fold))
        .collect();
    if question.compare != Compare::Sequence {
        documents.sort();
    }
    documents
}

fn fill(
    fixture: &mut Fixture,
    documents: &[Document],
    random: &mut Random,
    collation: Option<Document>,
) {
    let options = match random.below(7) {
        0 => doc! {"timeField": "t"},
        2 | 3 => doc! {
            "timeField": "t", "metaField": "m", "bucketMaxSpanSeconds": 3600, "bucketRoundingSeconds": 3600,
        },
        1 => doc! {"timeField": "t", "metaField": "m", "granularity": "hours"},
        _ => doc! {"timeField": "t", "metaField": "m"},
    };
    fixture.run(doc! {"create": "ts", "timeseries": options, "collation": collation.clone()});
    fixture.run(doc! {"create": "plain", "collation": collation});
    let mut rest = documents;
    while !rest.is_empty() {
        let size = rest
            .len()
            .min(1 + random.below(1 + documents.len() as u64 / 3) as usize);
        let (batch, left) = rest.split_at(size);
        let batch: Array = batch.iter().cloned().map(Value::from).collect();
        for collection in ["ts", "plain"] {
            let reply =
                fixture.run(doc! {"insert": collection, "documents": Value::Array(batch.clone())});
            assert_eq!(
                reply.get("n").as_exact_i64(),
                Some(size as i64),
                "{}",
                show(&reply)
            );
        }
        rest = left;
    }
    if random.below(3) == 0 {
        for collection in ["ts", "plain"] {
            let deletes = array![doc! {"q": doc! {"_id": doc! {"$mod": array![5, 2]}}, "limit": 0}];
            fixture.run(doc! {"delete": collection, "deletes": deletes});
        }
    }
}

/// Returns the document with its time within three ordinary days, which bucket ids can represent.
fn at_ordinary_times(document: &Document) -> Document {
    const DAYS_MS: i64 = 3 * 86_400_000;
    let mut out = DocumentBuilder::new();
    for element in document.iter() {
        match (element.name(), element.value()) {
            ("t", ValueRef::DateTime(at)) => out.append(
                "t",
                Value::DateTime(1_700_000_000_000 + at.rem_euclid(DAYS_MS)),
            ),
            _ => out.append_element(element),
        };
    }
    out.finish()
}

/// Returns the names of the planner's rules, from the error of a wrong one.
pub(crate) fn known_rules(fixture: &mut Fixture) -> Vec<String> {
    let wrong = doc! {"setParameter": 1, "internalNilometerDisabledRules": array!["?"]};
    let reply = fixture.reply_on("admin", wrong);
    assert_eq!(
        reply.get("code").as_exact_i64(),
        Some(2),
        "{}",
        show(&reply)
    );
    let message = reply.get("errmsg").as_str().unwrap_or_default();
    let names = message
        .split_once("there are ")
        .map_or("", |(_, names)| names);
    names.split(", ").map(str::to_owned).collect()
}

/// Disables no rule, one, all, or all but one.
fn leave_out_rules(fixture: &mut Fixture, random: &mut Random, rules: &[String]) {
    let one = random.pick(rules).clone();
    let names: Vec<Value> = match random.below(4) {
        0 => Vec::new(),
        1 => vec![one.into()],
        2 => rules.iter().map(|rule| rule.as_str().into()).collect(),
        _ => {
            let others = rules.iter().filter(|rule| **rule != one);
            others.map(|rule| rule.as_str().into()).collect()
        }
    };
    let set = doc! {"setParameter": 1, "internalNilometerDisabledRules": names};
    let reply = fixture.reply_on("admin", set);
    assert_eq!(reply.get("ok").as_exact_i64(), Some(1), "{}", show(&reply));
}

/// Queries one database; returns the differences, and adds the first line of every answer to `first_lines`.
///
/// With collations, both collections have one, strings have several forms, and queries use the same
/// collation, another, or none.
fn check_database(seed: u64, collations: bool, first_lines: &mut Vec<String>) -> Vec<String> {
    let mut random = Random::new(seed);
    let mut documents = documents(&mut random);
    if seed % 2 == 1 {
        documents = documents.iter().map(at_ordinary_times).collect();
    }
    let mut own = Fold::Nothing;
    if collations {
        own = *random.pick(&FOLDS);
        let texts = random.below(4) > 0;
        let mut vary = |d| match texts {
            true => with_texts(&mut random, d),
            false => vary_fields(&mut random, d, &[]),
        };
        documents = documents.into_iter().map(&mut vary).collect();
    }
    let directory = TemporaryDirectory::new();
    let mut memory = Fixture::new();
    let mut stored = Fixture::open(&directory.0);
    for fixture in [&mut memory, &mut stored] {
        let collation = collations.then(|| own.collation());
        fill(fixture, &documents, &mut Random::new(seed), collation);
    }
    if seed.is_multiple_of(2) {
        drop(stored);
        stored = Fixture::open(&directory.0);
    }
    if seed.is_multiple_of(3) {
        // Groups and sorts must spill to disk. The database in memory has no directory to spill to.
        for name in [
            "internalDocumentSourceGroupMaxMemoryBytes",
            "internalQueryMaxBlockingSortMemoryUsageBytes",
        ] {
            let mut command = DocumentBuilder::new();
            command.append("setParameter", 1);
            command.append(name, 500 + random.int(5000));
            let reply = stored.reply_on("admin", command.finish());
            assert_eq!(reply.get("ok").as_exact_i64(), Some(1), "{}", show(&reply));
        }
    }
    let rules = known_rules(&mut stored);
    let mut failures = Vec::new();
    for at in 0..60 {
        let mut question = question(&mut random);
        if at % 6 == 0 {
            leave_out_rules(&mut stored, &mut random, &rules);
        }
        let mut fold = own;
        if collations {
            let keep = [
                "find",
                "aggregate",
                "count",
                "distinct",
                "key",
                "projection",
            ];
            let mut command = vary_fields(&mut random, question.command, &keep);
            if random.below(2) == 0 {
                question.compare = Compare::Set;
                command = doc! {"find": "c", "filter": text_filter(&mut random)};
            }
            if random.below(2) == 0 {
                fold = *random.pick(&FOLDS);
                command = with_collation(command, fold.collation());
            }
            question.command = command;
        }
        let expected = answer(&mut memory, "plain", &question, fold);
        first_lines.push(expected.first().cloned().unwrap_or_default());
        let answers = [
            (
                "time series in memory",
                answer(&mut memory, "ts", &question, fold),
            ),
            (
                "ordinary in a directory",
                answer(&mut stored, "plain", &question, fold),
            ),
            (
                "time series in a directory",
                answer(&mut stored, "ts", &question, fold),
            ),
        ];
        for (what, got) in answers {
            if got != expected {
                let extra: Vec<_> = got
                    .iter()
                    .filter(|d| !expected.contains(d))
                    .take(3)
                    .collect();
                let lost: Vec<_> = expected
                    .iter()
                    .filter(|d| !got.contains(d))
                    .take(3)
                    .collect();
                failures.push(format!(
                    "seed {seed}, {what}, {own:?}: {}\n  {} for {} extra {extra:?} lost {lost:?}",
                    show(&question.command),
                    got.len(),
                    expected.len(),
                ));
                break;
            }
        }
    }
    for fixture in [&mut memory, &mut stored] {
        let reply = fixture.run(doc! {"validate": "ts"});
        if !matches!(reply.get("valid"), ValueRef::Bool(true)) {
            failures.push(format!("seed {seed}, {own:?}: {}", show(&reply)));
        }
    }
    failures
}

fn with_collation(command: Document, collation: Document) -> Document {
    let mut out = DocumentBuilder::new();
    for element in command.iter() {
        out.append_element(element);
    }
    out.append("collation", collation);
    out.finish()
}

#[test]
fn a_time_series_answers_as_plain_documents_do() {
    check_databases(false);
}

#[test]
fn a_time_series_answers_as_plain_documents_do_under_collations() {
    check_databases(true);
}

#[expect(clippy::print_stdout, reason = "how much was compared, for who looks")]
fn check_databases(collations: bool) {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>());
    let databases = DATABASES.requested();
    let first = match number("NILOMETER_SEED") {
        Some(seed) => seed.expect("a number"),
        None => 1,
    };
    let mut first_lines = Vec::new();
    let mut failures = Vec::new();
    for seed in first..first + databases {
        let differing = check_database(seed, collations, &mut first_lines);
        // Printed at once: a long run may be stopped early.
        differing.iter().for_each(|failure| println!("{failure}"));
        failures.extend(differing);
    }
    // Queries that are refused or find nothing test little.
    let refused = first_lines
        .iter()
        .filter(|line| line.starts_with("code "))
        .count();
    let empty = first_lines.iter().filter(|line| line.is_empty()).count();
    println!(
        "{} questions, {refused} refused, {empty} without an answer",
        first_lines.len()
    );
    assert!(refused * 10 < first_lines.len() && empty * 2 < first_lines.len());
    assert!(
        failures.is_empty(),
        "{} differ:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

#[test]
fn buckets_of_one_measurement_are_grouped_by_time() {
    let mut fixture = Fixture::new();
    let options = doc! {"timeField": "time"};
    fixture.run(doc! {"create": "flow", "timeseries": options});
    // A year apart: a bucket spans an hour.
    for year in 0..30i64 {
        let time = Value::DateTime(-2_208_988_800_000 + year * 31_557_600_000);
        let document = doc! {"time": time, "flow": year};
        fixture.run(doc! {"insert": "flow", "documents": array![document]});
    }
    let decade = doc! {"$dateTrunc": doc! {"date": "$time", "unit": "year", "binSize": 10}};
    let stages = array![
        doc! {"$group": doc! {"_id": decade, "n": doc! {"$sum": 1}, "max": doc! {"$max": "$flow"}}},
        doc! {"$sort": doc! {"_id": 1}},
    ];
    let found = fixture.all(doc! {"aggregate": "flow", "pipeline": stages, "cursor": doc! {}});
    let figures = |name: &str| -> Vec<i64> {
        found
            .iter()
            .map(|d| d.get(name).as_exact_i64().unwrap())
            .collect()
    };
    assert_eq!(figures("n"), [10, 10, 10]);
    assert_eq!(figures("max"), [9, 19, 29]);
}

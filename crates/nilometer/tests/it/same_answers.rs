//! The promise of a time-series collection: it answers as an ordinary collection of the same
//! documents would.
//!
//! Random measurements go into both kinds of collection, in memory and in a directory, which some of
//! the time has so little memory for queries that they must spill to disk; random
//! filters and pipelines must be answered alike by all four. The ordinary collection in memory is
//! the oracle.
//!
//! What no server promises is taken out of the comparison: the order of documents where nothing
//! sorts them, the order of top-level fields, and, for grouped values, which of several equal
//! numbers (1, 1.0) stands for all. Metadata has its fields in order, as a time series would put
//! them. Numbers are quarters of small integers, so that sums do not
//! depend on their order.

use nilometer_bson::extjson::value_to_canonical;
use nilometer_bson::{Array, Document, DocumentBuilder, Value, ValueRef, array, doc};

use crate::random::Random;
use crate::support::{Fixture, TemporaryDirectory, show};

/// Days that matter, as milliseconds since 1970: long before it, its eve, its first moment, an
/// ordinary one, the end of 32-bit seconds, and after it.
const DAYS: [i64; 7] = [
    -2_208_988_800_000,
    -7_200_000,
    0,
    1_700_000_000_000,
    1_700_003_600_000,
    2_147_483_640_000,
    4_102_444_800_000,
];

/// Generated databases of a run; with NILOMETER_SOAK set, more.
const DATABASES: u64 = 10;
const DATABASES_SOAK: u64 = 200;

fn decimal(text: &str) -> Value {
    let value =
        nilometer_bson::extjson::parse_value(&format!("{{\"$numberDecimal\": \"{text}\"}}"));
    value.expect("a decimal")
}

fn time(random: &mut Random) -> Value {
    let day = *random.pick(&DAYS);
    let offset = match random.below(4) {
        0 => 0,
        1 => random.below(60_000) as i64,
        2 => random.below(3_600_000) as i64,
        _ => random.below(10) as i64 * 86_400_000,
    };
    Value::DateTime(day + offset)
}

fn scalar(random: &mut Random) -> Value {
    match random.below(16) {
        0..=3 => Value::Int32(random.int(7) - 2),
        4..=6 => Value::Double(f64::from(random.int(24) - 8) / 4.0),
        7 => Value::Int64(i64::from(random.int(7) - 2)),
        8 => Value::Null,
        9 => Value::Double(f64::NAN),
        10 => decimal(["1", "1.50", "-2", "0.25"][random.below(4) as usize]),
        11 | 12 => Value::from(*random.pick(&["", "a", "b", "ab", "é"])),
        13 => Value::Bool(random.below(2) == 0),
        14 => time(random),
        _ => Value::Double(*random.pick(&[-0.0, f64::INFINITY, f64::NEG_INFINITY])),
    }
}

fn list(random: &mut Random, depth: u32) -> Value {
    let length = random.below(4);
    let values = (0..length).map(|_| value(random, depth));
    Value::Array(values.collect::<Array>())
}

fn value(random: &mut Random, depth: u32) -> Value {
    match random.below(8) {
        0 if depth > 0 => list(random, depth - 1),
        1 if depth > 0 => {
            let mut inner = DocumentBuilder::new();
            for name in ["x", "y", "z"] {
                if random.below(3) > 0 {
                    inner.append(name, value(random, depth - 1));
                }
            }
            inner.finish().into()
        }
        _ => scalar(random),
    }
}

/// A kind of column: of one type, of few values, of anything.
fn field(random: &mut Random, kind: u64, at: i32) -> Value {
    match kind {
        0 => Value::Int32(random.int(5)),
        1 => Value::Double(f64::from(random.int(40)) / 4.0),
        2 => Value::from(*random.pick(&["a", "b", "c"])),
        3 => Value::Int64(i64::from(at) * 1000),
        4 if random.below(3) == 0 => Value::Missing,
        4 => Value::Int32(at),
        5 => doc! {"x": random.int(3), "y": doc! {"z": random.int(2)}}.into(),
        6 => Value::Int32(7),
        7 => list(random, 1),
        _ if random.below(4) == 0 => Value::Missing,
        _ => value(random, 2),
    }
}

fn meta(random: &mut Random) -> Value {
    match random.below(12) {
        0 => Value::Missing,
        1 => Value::Null,
        2 => Value::from("a"),
        3 => Value::Int32(1),
        4 => Value::Double(1.0),
        5 => doc! {"x": 1, "y": "a"}.into(),
        6 => array![1, "a"],
        _ => doc! {"x": random.int(3)}.into(),
    }
}

pub(crate) fn documents(random: &mut Random) -> Vec<Document> {
    let kinds: Vec<u64> = (0..4).map(|_| random.below(12)).collect();
    let one_day = random.below(3) == 0;
    // Buckets have fields of these names, too.
    let names = match random.below(3) {
        0 => ["a", "meta", "control", "data"],
        _ => ["a", "b", "c", "d"],
    };
    // Sometimes more than a bucket takes.
    let count = if random.below(16) == 0 {
        1200 + random.int(1500)
    } else {
        1 + random.int(120)
    };
    let mut order: Vec<i32> = (0..count).collect();
    if random.below(2) == 0 {
        for at in (1..order.len()).rev() {
            order.swap(at, random.below(at as u64 + 1) as usize);
        }
    }
    let mut documents = Vec::new();
    for at in order {
        let time = if one_day {
            Value::DateTime(1_700_000_000_000 + i64::from(at) * 7_000)
        } else {
            time(random)
        };
        let mut document = DocumentBuilder::new();
        document.append("_id", at).append("t", time);
        let meta = meta(random);
        if !meta.is_missing() {
            document.append("m", meta);
        }
        for (name, kind) in names.into_iter().zip(&kinds) {
            let value = field(random, *kind, at);
            if !value.is_missing() {
                document.append(name, value);
            }
        }
        documents.push(document.finish());
    }
    documents
}

/// How answers are compared.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Compare {
    /// As sets of exact documents.
    Set,
    /// As sequences of exact documents.
    Sequence,
    /// As sets in which equal numbers are one.
    Values,
}

pub(crate) struct Question {
    pub(crate) compare: Compare,
    pub(crate) command: Document,
}

/// Which strings a collation makes equal, of those that [`vary`] makes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fold {
    /// None.
    Nothing,
    /// Numbers with and without zeros in front.
    Zeros,
    /// Lower and upper case.
    Case,
    /// Case and accents.
    Marks,
}

const FOLDS: [Fold; 4] = [Fold::Nothing, Fold::Zeros, Fold::Case, Fold::Marks];

impl Fold {
    /// The collation that does it.
    fn collation(self) -> Document {
        match self {
            Self::Nothing => doc! {"locale": "simple"},
            Self::Zeros => doc! {"locale": "en", "numericOrdering": true},
            Self::Case => doc! {"locale": "en", "strength": 2},
            Self::Marks => doc! {"locale": "en", "strength": 1},
        }
    }

    /// One string for all that are equal.
    fn fold(self, text: &str) -> String {
        match self {
            Self::Nothing => text.to_owned(),
            Self::Zeros => text.replace('0', "").replace('1', "10"),
            Self::Case => text.to_lowercase(),
            Self::Marks => text.to_lowercase().replace('á', "a").replace('é', "e"),
        }
    }
}

/// The value with its plain strings in other forms, some of which are equal under a collation.
fn vary(random: &mut Random, value: ValueRef<'_>) -> Value {
    let forms: &[&str] = match value {
        ValueRef::Document(inner) => return vary_fields(random, inner.to_document(), &[]).into(),
        ValueRef::Array(inner) => {
            let values = inner.iter().map(|v| vary(random, v));
            return Value::Array(values.collect::<Array>());
        }
        ValueRef::String("a") => &["a", "A", "á", "Á"],
        ValueRef::String("b") => &["b", "B"],
        ValueRef::String("c") => &["10", "9", "010", "c", "C"],
        ValueRef::String("ab") => &["ab", "AB", "áb", "a10", "a9", "a09"],
        ValueRef::String("é") => &["é", "e", "E", "É"],
        other => return other.to_value(),
    };
    Value::from(*random.pick(forms))
}

/// Strings of which some are equal under a collation.
const TEXTS: [&str; 20] = [
    "", "a", "A", "á", "Á", "ab", "AB", "áb", "b", "B", "e", "É", "9", "10", "010", "a9", "a10",
    "a09", "Z", "z",
];

/// The document with strings in `a` and in `b.x`, and mostly in its metadata.
fn with_texts(random: &mut Random, document: Document) -> Document {
    let mut out = DocumentBuilder::new();
    for element in document.iter() {
        match element.name() {
            "a" | "b" => {}
            "m" if random.below(4) > 0 => {
                let text = *random.pick(&["a", "A", "á", "b", "9", "09"]);
                out.append("m", text);
            }
            _ => {
                out.append_element(element);
            }
        }
    }
    if random.below(10) > 0 {
        out.append("a", *random.pick(&TEXTS));
    }
    if random.below(10) > 0 {
        out.append("b", doc! {"x": *random.pick(&TEXTS)});
    }
    out.finish()
}

/// A filter that compares strings, which bounds of buckets may rule out.
fn text_filter(random: &mut Random) -> Document {
    let path = *random.pick(&["a", "b.x", "m"]);
    let text = *random.pick(&TEXTS);
    let operator = *random.pick(&["$eq", "$gt", "$gte", "$lt", "$lte"]);
    let mut comparison = DocumentBuilder::new();
    match random.below(4) {
        0 => {
            comparison.append("$in", array![text, *random.pick(&TEXTS)]);
        }
        1 => {
            comparison.append(operator, array![format!("${path}"), text]);
            return doc! {"$expr": comparison.finish()};
        }
        _ => {
            comparison.append(operator, text);
        }
    }
    let mut filter = DocumentBuilder::new();
    filter.append(path, comparison.finish());
    filter.finish()
}

/// The document with its strings varied, but for the fields called `names`.
fn vary_fields(random: &mut Random, document: Document, names: &[&str]) -> Document {
    let mut out = DocumentBuilder::new();
    for element in document.iter() {
        if names.contains(&element.name()) {
            out.append_element(element);
        } else {
            out.append(element.name(), vary(random, element.value()));
        }
    }
    out.finish()
}

fn path(random: &mut Random) -> String {
    let paths = [
        "a", "b", "c", "d", "a.x", "b.x", "c.y.z", "d.0", "m", "m.x", "t", "_id", "none", "meta",
        "meta.x", "control", "data", "data.t",
    ];
    (*random.pick(&paths)).to_owned()
}

fn operand(random: &mut Random, path: &str) -> Value {
    match (path, random.below(5)) {
        ("t", 1..) => time(random),
        ("m", 2..) => match meta(random) {
            Value::Missing => Value::Null,
            found => found,
        },
        (_, 0) => value(random, 2),
        _ => scalar(random),
    }
}

fn field_filter(random: &mut Random) -> Document {
    let path = path(random);
    let given = operand(random, &path);
    let condition: Value = match random.below(14) {
        0 | 1 => given,
        2 => doc! {"$gt": given}.into(),
        3 => doc! {"$gte": given}.into(),
        4 => doc! {"$lt": given}.into(),
        5 => doc! {"$lte": given}.into(),
        6 => doc! {"$ne": given}.into(),
        7 => doc! {"$in": array![given, operand(random, &path)]}.into(),
        8 => doc! {"$nin": array![given, Value::Null]}.into(),
        9 => doc! {"$exists": random.below(2) == 0}.into(),
        10 => {
            doc! {"$type": *random.pick(&["number", "string", "null", "array", "object", "date"])}
                .into()
        }
        11 => doc! {"$not": doc! {"$gte": given}}.into(),
        12 => doc! {"$elemMatch": doc! {"$gte": given}}.into(),
        _ => doc! {"$gte": given, "$lt": operand(random, &path)}.into(),
    };
    let mut filter = DocumentBuilder::new();
    filter.append(&path, condition);
    filter.finish()
}

fn filter(random: &mut Random) -> Document {
    match random.below(9) {
        0 => doc! {},
        1 => doc! {"$and": array![field_filter(random), field_filter(random)]},
        2 => doc! {"$or": array![field_filter(random), field_filter(random)]},
        3 => doc! {"$nor": array![field_filter(random), field_filter(random)]},
        4 => {
            let (a, b) = (format!("${}", path(random)), format!("${}", path(random)));
            let operator = *random.pick(&["$eq", "$gt", "$lte", "$ne"]);
            let mut compared = DocumentBuilder::new();
            compared.append(operator, array![a, b]);
            doc! {"$expr": compared.finish()}
        }
        _ => field_filter(random),
    }
}

fn sort(random: &mut Random) -> Document {
    let mut sort = DocumentBuilder::new();
    let sign = |random: &mut Random| *random.pick(&[1, -1]);
    let first = path(random);
    if first != "_id" {
        let direction = sign(random);
        sort.append(&first, direction);
    }
    let direction = sign(random);
    sort.append("_id", direction);
    sort.finish()
}

fn find(random: &mut Random) -> Question {
    let filter = filter(random);
    match random.below(4) {
        0 | 1 => Question {
            compare: Compare::Set,
            command: doc! {"find": "c", "filter": filter},
        },
        2 => Question {
            compare: Compare::Sequence,
            command: doc! {
                "find": "c", "filter": filter, "sort": sort(random),
                "skip": random.int(3), "limit": random.int(20),
            },
        },
        _ => {
            let projection = match random.below(5) {
                0 => doc! {"a": 1, "t": 1},
                1 => doc! {"a": 0, "m": 0},
                2 => doc! {"_id": 0, "a.x": 1, "m.x": 1},
                3 => doc! {"sum": doc! {"$type": "$a"}, "b": 1},
                _ => doc! {"c.y": 0, "t": 0},
            };
            Question {
                compare: Compare::Set,
                command: doc! {"find": "c", "filter": filter, "projection": projection},
            }
        }
    }
}

fn group_key(random: &mut Random) -> Value {
    let unit = *random.pick(&[
        "second", "minute", "hour", "day", "week", "month", "quarter", "year",
    ]);
    let trunc = doc! {"$dateTrunc": doc! {
        "date": "$t", "unit": unit, "binSize": *random.pick(&[1, 3, 10]),
    }};
    match random.below(9) {
        0 => Value::Null,
        1 => format!("${}", path(random)).into(),
        2 => trunc.into(),
        3 => doc! {"at": trunc, "m": "$m"}.into(),
        4 => doc! {"at": trunc, "x": "$m.x"}.into(),
        5 => doc! {"at": trunc, "a": "$a"}.into(),
        6 => doc! {"$year": "$t"}.into(),
        7 => "$m.x".into(),
        _ => doc! {"a": "$a", "b": "$b.x"}.into(),
    }
}

fn group(random: &mut Random) -> Document {
    let mut group = DocumentBuilder::new();
    group.append("_id", group_key(random));
    for at in 0..1 + random.below(4) {
        let argument: Value = match random.below(4) {
            0 => 1.into(),
            _ => format!("${}", path(random)).into(),
        };
        let operator = *random.pick(&["$sum", "$avg", "$min", "$max", "$count", "$addToSet"]);
        let accumulator = match operator {
            "$count" => doc! {"$count": doc! {}},
            // The order of a set is nobody's promise; its size is.
            "$addToSet" => doc! {"$sum": doc! {"$size": array![array![argument]]}},
            other => {
                let mut accumulator = DocumentBuilder::new();
                accumulator.append(other, argument);
                accumulator.finish()
            }
        };
        group.append(&format!("v{at}"), accumulator);
    }
    doc! {"$group": group.finish()}
}

fn stages(random: &mut Random) -> (Compare, Vec<Value>) {
    let matched: Value = doc! {"$match": filter(random)}.into();
    let by_id: Value = doc! {"$sort": sort(random)}.into();
    let first = path(random);
    match random.below(12) {
        0..=2 => (Compare::Values, vec![group(random).into()]),
        3 | 4 => (Compare::Values, vec![matched, group(random).into()]),
        5 => {
            let ends = doc! {"$group": doc! {
                "_id": group_key(random),
                "first": doc! {"$first": format!("${first}")},
                "last": doc! {"$last": "$a"},
                "all": doc! {"$push": "$b"},
            }};
            (Compare::Values, vec![doc! {"$sort": doc! {"t": 1, "_id": 1}}.into(), ends.into()])
        }
        6 => (
            Compare::Values,
            vec![
                matched,
                doc! {"$unwind": doc! {"path": "$a", "preserveNullAndEmptyArrays": random.below(2) == 0}}.into(),
                group(random).into(),
            ],
        ),
        7 => (
            Compare::Values,
            vec![matched, doc! {"$sortByCount": format!("${first}")}.into()],
        ),
        8 => (
            Compare::Sequence,
            vec![
                matched,
                by_id,
                doc! {"$limit": 1 + random.int(10)}.into(),
                doc! {"$project": doc! {"a": 1, "t": 1, "y": doc! {"$year": "$t"}}}.into(),
            ],
        ),
        9 => (
            Compare::Values,
            vec![
                doc! {"$addFields": doc! {"a": doc! {"$ifNull": array!["$a", "none"]}, "n": 1}}.into(),
                matched,
                group(random).into(),
            ],
        ),
        10 => (
            Compare::Set,
            vec![doc! {"$unset": "m"}.into(), matched, doc! {"$set": doc! {"u": "$b"}}.into()],
        ),
        _ => (Compare::Values, vec![matched, doc! {"$count": "n"}.into()]),
    }
}

pub(crate) fn question(random: &mut Random) -> Question {
    match random.below(10) {
        0..=3 => find(random),
        4 => Question {
            compare: Compare::Values,
            command: doc! {"count": "c", "query": filter(random)},
        },
        5 => Question {
            compare: Compare::Values,
            command: doc! {"distinct": "c", "key": path(random), "query": filter(random)},
        },
        _ => {
            let (compare, stages) = stages(random);
            let stages = Value::Array(stages.into_iter().collect::<Array>());
            Question {
                compare,
                command: doc! {"aggregate": "c", "pipeline": stages, "cursor": doc! {}},
            }
        }
    }
}

/// A value as text in which equal numbers and strings are the same.
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

/// What a collection answers, as text: documents, values, a number or an error code.
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
    let options = match random.below(5) {
        0 => doc! {"timeField": "t"},
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
}

/// Asks one database; gives what differs, and adds the first line of every answer to `told`.
///
/// With collations, both collections have one, strings come in several forms, and questions ask for
/// the same collation, another, or none.
fn check_database(seed: u64, collations: bool, told: &mut Vec<String>) -> Vec<String> {
    let mut random = Random::new(seed);
    let mut documents = documents(&mut random);
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
        // Groups and sorts must write to disk. The database in memory has no place to write to.
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
    let mut failures = Vec::new();
    for _ in 0..60 {
        let mut question = question(&mut random);
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
        told.push(expected.first().cloned().unwrap_or_default());
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
    let databases = match number("NILOMETER_SOAK") {
        Some(_) => DATABASES_SOAK,
        None => DATABASES,
    };
    let first = match number("NILOMETER_SEED") {
        Some(seed) => seed.expect("a number"),
        None => 1,
    };
    let mut told = Vec::new();
    let mut failures = Vec::new();
    for seed in first..first + databases {
        let differing = check_database(seed, collations, &mut told);
        // Told at once: a long run may be ended early.
        differing.iter().for_each(|failure| println!("{failure}"));
        failures.extend(differing);
    }
    // Questions that are refused or find nothing tell little.
    let refused = told.iter().filter(|line| line.starts_with("code ")).count();
    let empty = told.iter().filter(|line| line.is_empty()).count();
    println!(
        "{} questions, {refused} refused, {empty} without an answer",
        told.len()
    );
    assert!(refused * 10 < told.len() && empty * 2 < told.len());
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

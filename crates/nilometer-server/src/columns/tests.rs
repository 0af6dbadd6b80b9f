//! Columns against the documents of the same query, and back again.

use std::sync::Arc;

use arrow_array::{Array, RecordBatch};
use arrow_ipc::reader::StreamReader;
use arrow_schema::DataType;
use nilometer::query::batch::Batch;
use nilometer::query::collector::BatchCollector;
use nilometer::session::ClientMetadata;
use nilometer::{ClientSession, Database, Request};
use nilometer_bson::fuzz::Numbers;
use nilometer_bson::{
    Binary, Decimal128, DocRef, Document, DocumentBuilder, ObjectId, Timestamp, Value, ValueRef,
    array, doc,
};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use super::file::ColumnForm;
use super::layout::{LayoutBuilder, NamedColumns};
use super::read::{document, paths};
use super::stream::ColumnStream;

fn written(form: ColumnForm, fields: &[&str], batches: Vec<Batch>) -> Result<Vec<u8>, String> {
    let named = NamedColumns::parse(fields.iter().copied())?;
    let mut layout = LayoutBuilder::default();
    layout.set_meta("m");
    let mut stream = ColumnStream::new(form, named, layout, Vec::new());
    for batch in batches {
        stream.push(batch)?;
    }
    stream.finish().map(|(out, _)| out)
}

fn arrow_batches(bytes: &[u8]) -> Vec<RecordBatch> {
    let reader = StreamReader::try_new(bytes, None).unwrap();
    reader.collect::<Result<_, _>>().unwrap()
}

fn documents_of(batches: &[RecordBatch]) -> Vec<Document> {
    let mut out = Vec::new();
    for batch in batches {
        let paths = paths(&batch.schema()).unwrap();
        out.extend((0..batch.num_rows()).map(|at| document(batch, &paths, at).unwrap()));
    }
    out
}

/// Returns documents written in a form and read again.
fn there_and_back(form: ColumnForm, documents: &[Document]) -> Vec<Document> {
    let bytes = written(form, &[], vec![Batch::Rows(documents.to_vec())]).unwrap();
    match form {
        ColumnForm::Arrow => documents_of(&arrow_batches(&bytes)),
        ColumnForm::Parquet => {
            let builder = ParquetRecordBatchReaderBuilder::try_new(bytes::Bytes::from(bytes));
            let reader = builder.unwrap().build().unwrap();
            let batches: Vec<RecordBatch> = reader.collect::<Result<_, _>>().unwrap();
            documents_of(&batches)
        }
    }
}

/// A document with a field of each type.
fn every_type(at: i32) -> Document {
    let mut out = DocumentBuilder::new();
    out.append("_id", ObjectId([at as u8; 12]));
    out.append("t", Value::DateTime(i64::from(at) * 1_234_567 - 5));
    out.append(
        "m",
        doc! {"host": format!("h{}", at % 3), "n": doc! {"rack": at % 2, "x": true}},
    );
    out.append("int", at);
    out.append("long", i64::MIN + i64::from(at));
    out.append(
        "double",
        [0.5, f64::NEG_INFINITY, -0.0, 1e300][at as usize % 4],
    );
    out.append("bool", at % 2 == 0);
    out.append("text", format!("é\u{0}\"{at}"));
    out.append("decimal", Decimal128::parse_exact("1.500E-7").unwrap());
    out.append(
        "stamp",
        Timestamp {
            seconds: u32::MAX,
            increment: at as u32,
        },
    );
    out.append(
        "uuid",
        Binary {
            subtype: 4,
            bytes: [7; 16].as_slice().into(),
        },
    );
    out.append(
        "bytes",
        Binary {
            subtype: 0,
            bytes: [1, 2].as_slice().into(),
        },
    );
    out.append("list", array![at, "x", Value::Null, doc! {"k": 2i64}]);
    out.append("empty", Document::new());
    out.append(
        "mixed",
        [Value::from(1), 2i64.into(), 2.5.into(), "2".into()][at as usize % 4].clone(),
    );
    out.append("min", Value::MinKey);
    out.append(
        "pattern",
        Value::Regex(Arc::new(nilometer_bson::Regex {
            pattern: "a.b".into(),
            options: "i".into(),
        })),
    );
    out.append("a.b", doc! {"c": at, "$d": 1});
    if at % 3 > 0 {
        out.append("gap", at);
        out.append("gaps", doc! {"only": 2.5});
    }
    out.finish()
}

#[test]
fn documents_come_back_as_they_were() {
    let documents: Vec<Document> = (0..40).map(every_type).collect();
    for form in [ColumnForm::Arrow, ColumnForm::Parquet] {
        let found = there_and_back(form, &documents);
        assert_eq!(found.len(), documents.len(), "{form:?}");
        for (found, expected) in found.iter().zip(&documents) {
            assert_eq!(found.as_bytes(), expected.as_bytes(), "{form:?}: {found:?}");
        }
    }
    assert!(there_and_back(ColumnForm::Arrow, &[]).is_empty());
    let empty = vec![Document::new(), doc! {"a": 1}, Document::new()];
    assert_eq!(there_and_back(ColumnForm::Arrow, &empty), empty);
}

#[test]
fn fields_have_the_types_of_arrow() {
    let bytes = written(
        ColumnForm::Arrow,
        &[],
        vec![Batch::Rows(vec![every_type(1)])],
    )
    .unwrap();
    let schema = arrow_batches(&bytes)[0].schema();
    let shown = |name: &str| {
        schema
            .field_with_name(name)
            .unwrap()
            .data_type()
            .to_string()
    };
    assert_eq!(shown("t"), "Timestamp(ms, \"UTC\")");
    assert_eq!(shown("m.host"), "Dictionary(Int32, Utf8)");
    assert_eq!(shown("m.n.rack"), "Int32");
    assert_eq!(shown("_id"), "FixedSizeBinary(12)");
    assert_eq!(shown("text"), "Utf8");
    assert_eq!(shown("list"), "Utf8");
    let list = schema.field_with_name("list").unwrap();
    assert_eq!(
        list.metadata().get("nilometer.bson").map(String::as_str),
        Some("json")
    );
}

#[test]
fn numbers_of_several_types_share_a_column_that_holds_them() {
    let documents = [
        doc! {"a": 1, "b": 1, "c": 1i64},
        doc! {"a": 2i64, "b": 0.5, "c": 0.5},
    ];
    let found = there_and_back(ColumnForm::Arrow, &documents);
    assert_eq!(found[0], doc! {"a": 1i64, "b": 1.0, "c": 1i64});
    assert_eq!(found[1], doc! {"a": 2i64, "b": 0.5, "c": 0.5});
}

#[test]
fn later_values_that_have_no_place_are_errors() {
    let many = || vec![doc! {"a": 1, "d": doc! {"x": 1}}; super::OBSERVED_ROWS_MAX];
    let late = |fields: &[&str], last: Document| {
        let batches = vec![Batch::Rows(many()), Batch::Rows(vec![last])];
        written(ColumnForm::Arrow, fields, batches)
            .map(|bytes| documents_of(&arrow_batches(&bytes)))
    };
    let number = super::OBSERVED_ROWS_MAX + 1;
    for (last, expected) in [
        (doc! {"a": "x"}, "the field 'a' has the type 'string'"),
        (doc! {"a": 1i64}, "the field 'a' has the type 'long'"),
        (doc! {"b": 1}, "the field 'b' is new"),
        (doc! {"d": 5}, "the field 'd' is of the type 'int'"),
        (
            doc! {"d": Document::new()},
            "the field 'd' is an empty document",
        ),
        (doc! {"d": doc! {"y": 1}}, "the field 'y' is new"),
    ] {
        let error = late(&[], last).unwrap_err();
        assert!(
            error.starts_with(&format!("document {number}: ")) && error.contains(expected),
            "{error}"
        );
    }
    assert!(late(&[], doc! {"b": Value::Null, "a": Value::Null}).is_ok());
    let found = late(&["a.json()", "d.x", "z"], doc! {"a": "x", "b": 1, "z": 5}).unwrap();
    assert_eq!(found.last(), Some(&doc! {"a": "x", "z": 5}));
}

/// A time series in memory.
struct Series {
    database: Database,
    session: ClientSession,
}

impl Series {
    fn new(documents: Vec<Document>) -> Self {
        let database = Database::in_memory().unwrap();
        let mut series = Self {
            database,
            session: ClientSession::new(1, ClientMetadata::default()),
        };
        let options = doc! {"timeField": "t", "metaField": "m"};
        series.run(doc! {"create": "s", "timeseries": options, "$db": "d"});
        let documents: Vec<Value> = documents.into_iter().map(Value::from).collect();
        if !documents.is_empty() {
            series.run(doc! {"insert": "s", "documents": documents, "$db": "d"});
        }
        series
    }

    fn run(&mut self, body: Document) -> Document {
        let reply = self
            .database
            .run_command(&mut self.session, &Request::new(body));
        assert_eq!(reply.get("ok").as_exact_i64(), Some(1), "{reply:?}");
        reply
    }

    /// Returns the batches of a pipeline.
    fn batches(&mut self, stages: &Value) -> Vec<Batch> {
        let reply = self.run(doc! {
            "aggregate": "s", "pipeline": stages.clone(), "cursor": doc! {"batchSize": 0}, "$db": "d",
        });
        let id = |reply: &Document| {
            let cursor = reply.get("cursor").as_document().unwrap();
            cursor.get("id").as_exact_i64().unwrap()
        };
        let mut cursor = id(&reply);
        let collector = Arc::new(BatchCollector::new(100, 1 << 20));
        let mut out = Vec::new();
        if cursor != 0 {
            assert!(
                self.database
                    .collect_batches(cursor, Arc::clone(&collector))
            );
        }
        while cursor != 0 {
            let reply = self.run(doc! {"getMore": cursor, "collection": "s", "$db": "d"});
            cursor = id(&reply);
            out.extend(collector.take());
        }
        out
    }
}

fn drawn_value(numbers: &mut Numbers, kind: u64) -> Value {
    match kind {
        0 => Value::Int32(numbers.below(100) as i32),
        1 => Value::Int64(numbers.next_u64() as i64),
        2 => Value::Double(numbers.below(1000) as f64 / 8.0),
        3 => Value::Bool(numbers.below(2) == 0),
        4 => ["on", "off", ""][numbers.below(3) as usize].into(),
        5 => Value::DateTime(numbers.next_u64() as i64),
        6 => ObjectId([numbers.below(9) as u8; 12]).into(),
        7 => doc! {"x": numbers.below(5) as i32, "y": "z"}.into(),
        8 => array![numbers.below(5) as i32],
        9 => Value::Null,
        10 => doc! {"x": doc! {"y": 1.5}}.into(),
        11 => Document::new().into(),
        _ => Value::Missing,
    }
}

/// Measurements whose fields have a type each, with gaps, or any type.
fn drawn_series(numbers: &mut Numbers) -> Vec<Document> {
    let kinds: Vec<u64> = (0..5).map(|_| numbers.below(13)).collect();
    let is_wild = numbers.below(3) == 0;
    let has_gaps = numbers.below(2) == 0;
    let metas: Vec<Value> = (0..3)
        .map(|at| match numbers.below(if is_wild { 4 } else { 2 }) {
            0 => doc! {"h": format!("h{at}")}.into(),
            1 => doc! {"h": "x", "r": doc! {"n": at}}.into(),
            2 => "plain".into(),
            _ => Value::Missing,
        })
        .collect();
    let of = |numbers: &mut Numbers, at: u64| {
        let mut out = DocumentBuilder::new();
        out.append("t", Value::DateTime(1_700_000_000_000 + (at * 977) as i64));
        out.append("m", metas[numbers.below(3) as usize].clone());
        out.append("_id", at as i32);
        for (field, kind) in ["a", "b", "c", "d", "e"].iter().zip(&kinds) {
            if has_gaps && numbers.below(5) == 0 {
                continue;
            }
            let kind = if is_wild && numbers.below(9) == 0 {
                numbers.below(13)
            } else {
                *kind
            };
            out.append(field, drawn_value(numbers, kind));
        }
        out.finish()
    };
    let count = numbers.below(400);
    (0..count).map(|at| of(numbers, at)).collect()
}

/// Blocks become the same columns as the documents that they stand for.
#[test]
fn blocks_are_columns_of_their_documents() {
    let mut blocks = 0;
    for seed in 0..60 {
        let mut numbers = Numbers::new(seed);
        let mut series = Series::new(drawn_series(&mut numbers));
        for stages in [
            array![],
            array![doc! {"$match": doc! {"t": doc! {"$gte": Value::DateTime(1_700_000_100_000)}}}],
            array![doc! {"$match": doc! {"_id": doc! {"$mod": array![3, 1]}}}],
            array![doc! {"$project": doc! {"m": 0, "a": 0}}],
            array![doc! {"$project": doc! {"t": 1, "m.h": 1, "b": 1}}],
            array![doc! {"$set": doc! {"f": doc! {"$add": array!["$_id", 1]}, "h": "$m.h"}}],
            array![doc! {"$sort": doc! {"t": -1}}, doc! {"$limit": 70}],
            array![doc! {"$group": doc! {"_id": "$m.h", "n": doc! {"$sum": 1}}}],
        ] {
            let batches = series.batches(&stages);
            blocks += batches
                .iter()
                .filter(|batch| matches!(batch, Batch::Block(_)))
                .count();
            let rows: Vec<Batch> = batches
                .iter()
                .map(|batch| Batch::Rows(batch.clone().into_rows().unwrap()))
                .collect();
            let documents: Vec<Document> = rows
                .iter()
                .flat_map(|batch| batch.clone().into_rows().unwrap())
                .collect();
            let found = written(ColumnForm::Arrow, &[], batches).map(|bytes| arrow_batches(&bytes));
            let expected = written(ColumnForm::Arrow, &[], rows).map(|bytes| arrow_batches(&bytes));
            let (Ok(found), Ok(expected)) = (&found, &expected) else {
                panic!("seed {seed}: {:?} {:?}", found.err(), expected.err());
            };
            // The order of columns may differ: measurements show fields in the order of their columns.
            let shown = |batches: &[RecordBatch]| {
                let fields = batches.iter().take(1).flat_map(|batch| {
                    let schema = batch.schema();
                    let fields = schema.fields().iter().cloned();
                    fields.collect::<Vec<_>>()
                });
                let mut fields: Vec<_> = fields.collect();
                fields.sort_by_key(|field| field.name().clone());
                fields
            };
            assert_eq!(shown(found), shown(expected), "seed {seed} {stages:?}");
            let (found, expected) = (documents_of(found), documents_of(expected));
            let by_name = |documents: &[Document]| -> Vec<Document> {
                documents
                    .iter()
                    .map(|document| sorted(document.as_ref()))
                    .collect()
            };
            assert_eq!(
                by_name(&found),
                by_name(&expected),
                "seed {seed} {stages:?}"
            );
            assert_eq!(found.len(), documents.len());
            for (found, document) in found.iter().zip(&documents) {
                check_same(found, document, &format!("seed {seed} {stages:?}"));
            }
        }
    }
    assert!(blocks > 300, "{blocks}");
}

/// Returns a document with its fields in the order of their names.
fn sorted(document: DocRef<'_>) -> Document {
    let mut fields: Vec<_> = document.iter().collect();
    fields.sort_by_key(|field| field.name());
    let mut out = DocumentBuilder::new();
    for field in fields {
        match field.value() {
            ValueRef::Document(inner) => out.append(field.name(), sorted(inner)),
            value => out.append_ref(field.name(), value),
        };
    }
    out.finish()
}

/// True for what a column turns into no field.
fn is_empty(value: ValueRef<'_>) -> bool {
    value.is_nullish()
}

/// Compares a document with the one it was written as: without nulls, and with numbers of a wider type.
fn check_same(found: &Document, expected: &Document, of: &str) {
    for field in expected.iter() {
        let (a, b) = (found.get(field.name()), field.value());
        match b {
            b if is_empty(b) => assert!(a.is_missing(), "{of}: {}", field.name()),
            ValueRef::Document(b) if b.iter().any(|inner| is_empty(inner.value())) => {}
            b => assert!(
                nilometer_bson::order::compare(a, b).is_eq(),
                "{of}: {} {a:?} {b:?}",
                field.name()
            ),
        }
    }
    let known = |name: &str| expected.as_ref().contains(name);
    assert!(
        found.iter().all(|field| known(field.name())),
        "{of}: {found:?} {expected:?}"
    );
}

#[test]
fn texts_of_metadata_are_dictionaries_that_grow() {
    let documents: Vec<Document> = (0..40_000)
        .map(|at| doc! {"m": doc! {"h": format!("host_{}", at / 9_000)}, "v": at})
        .collect();
    let parts = documents
        .chunks(1_000)
        .map(|part| Batch::Rows(part.to_vec()));
    let parts = parts.collect();
    let bytes = written(ColumnForm::Arrow, &[], parts).unwrap();
    let batches = arrow_batches(&bytes);
    assert!(batches.len() > 1);
    let is_dictionary = |batch: &RecordBatch| {
        matches!(batch.column(0).data_type(), DataType::Dictionary(..))
            && !batch.column(0).is_empty()
    };
    assert!(batches.iter().all(is_dictionary));
    assert_eq!(documents_of(&batches), documents);
}

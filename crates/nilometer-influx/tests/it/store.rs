//! A database in memory behind the languages of InfluxDB.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use nilometer::operation::DocumentSequence;
use nilometer::{ClientSession, Database, Request};
use nilometer_bson::{Document, doc};
use nilometer_influx::influxql::{Bindings, parse};
use nilometer_influx::line_protocol::{
    Batch, Batches, LineError, Names, Precision, Schema, SchemasOf,
};
use nilometer_influx::mapping::{self, Mapping};
use nilometer_influx::query::{Output, OutputOptions, Store, execute};
use nilometer_influx::schema::MeasurementSchema;
use serde_json::Value;

/// The time of all tests: 2024-01-02T00:00:00Z.
pub(crate) const NOW_MS: i64 = 1_704_153_600_000;

pub(crate) struct TestStore {
    database: Database,
    session: RefCell<ClientSession>,
    /// Cursors fail after their first batch.
    pub(crate) breaks: bool,
    /// The points of each write of a statement.
    pub(crate) writes: RefCell<Vec<usize>>,
}

impl Store for TestStore {
    fn run(&self, command: Document) -> Result<Document, String> {
        if self.breaks && !command.get("getMore").is_missing() {
            return Err("the disk broke".to_owned());
        }
        let reply = self
            .database
            .run_command(&mut self.session.borrow_mut(), &Request::new(command));
        match reply.get("ok").as_exact_i64() {
            Some(1) => Ok(reply),
            _ => Err(reply.get("errmsg").as_str().unwrap_or_default().to_owned()),
        }
    }

    fn schema(
        &self,
        db: &str,
        measurement: &str,
        _: bool,
    ) -> Result<Option<Arc<MeasurementSchema>>, String> {
        let read = mapping::read(&mut |command| self.run(command), db, measurement)?;
        Ok(read.map(Arc::new))
    }

    fn mappings(&self, db: &str) -> Result<BTreeMap<String, Mapping>, String> {
        mapping::all(&mut |command| self.run(command), db)
    }

    fn forget(&self, _: &str, _: Option<&str>) {}

    fn write(
        &self,
        db: &str,
        read: &mut dyn FnMut(&mut SchemasOf<'_>) -> Batches,
    ) -> Result<Vec<LineError>, String> {
        let mut known = |names: &[&str]| {
            let schemas = names.iter().map(|name| {
                let schema = self.schema(db, name, true)?.map(|known| Schema {
                    names: known.names.clone(),
                    types: known.fields.clone().into_iter().collect(),
                });
                Ok(Arc::new(schema.unwrap_or_default()))
            });
            schemas.collect()
        };
        let read = read(&mut known);
        self.writes
            .borrow_mut()
            .push(read.batches.iter().map(|one| one.lines.len()).sum());
        let rejections = read.rejections;
        for batch in read.batches {
            self.insert(db, batch);
        }
        Ok(rejections)
    }

    fn now_ms(&self) -> i64 {
        NOW_MS
    }
}

impl TestStore {
    pub(crate) fn new() -> Self {
        Self {
            database: Database::in_memory().expect("a database"),
            session: RefCell::new(ClientSession::embedded()),
            breaks: false,
            writes: RefCell::default(),
        }
    }

    pub(crate) fn command(&mut self, command: Document) -> Document {
        self.run(command).expect("the command succeeds")
    }

    /// Writes lines with times in ms into the database `d`.
    pub(crate) fn write(&mut self, lines: &str) {
        let read = Batches::read(
            lines.as_bytes(),
            Precision::Millisecond,
            NOW_MS,
            &mut |_| Ok(Arc::new(Schema::default())),
        );
        assert!(read.rejections.is_empty(), "{:?}", read.rejections);
        for batch in read.batches {
            self.insert("d", batch);
        }
    }

    /// Inserts documents into a measurement, which is created if it does not exist.
    fn insert(&self, db: &str, batch: Batch) {
        let names = Names::default();
        let timeseries = doc! {
            "timeField": names.time, "metaField": names.tags, "nilometer": doc! {"duplicates": "merge"},
        };
        let name = batch.measurement.as_str();
        let create = doc! {"create": name, "timeseries": timeseries, "$db": db};
        // It may exist.
        let _ = self.run(create);
        let span = 0..batch.documents.len();
        let documents = Arc::new(batch.documents);
        let sequence = DocumentSequence::new("documents".to_owned(), documents, span);
        let insert = doc! {"insert": name, "ordered": false, "$db": db};
        let request = Request {
            sequences: vec![sequence.expect("documents")],
            ..Request::new(insert)
        };
        let reply = self
            .database
            .run_command(&mut self.session.borrow_mut(), &request);
        assert!(
            reply.get("ok").as_exact_i64() == Some(1) && reply.get("writeErrors").is_missing(),
            "{reply:?}"
        );
    }

    /// Returns the answer to statements as text.
    pub(crate) fn text(&mut self, query: &str, options: OutputOptions) -> String {
        let statements = parse(query, &Bindings::new()).unwrap_or_else(|e| panic!("{query}: {e}"));
        let mut bytes = Vec::new();
        let mut write = |part: &[u8]| {
            bytes.extend_from_slice(part);
            Ok(())
        };
        let mut output = Output::new(options, &mut write);
        execute(self, Some("d"), &statements, &mut output).expect("the answer is written");
        output.finish().expect("the answer is written");
        String::from_utf8(bytes).expect("text")
    }

    /// Returns the results of statements, with times in ms.
    pub(crate) fn results(&mut self, query: &str) -> Value {
        let options = OutputOptions {
            epoch: Some(Precision::Millisecond),
            chunk_rows: None,
        };
        let text = self.text(query, options);
        let mut json: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
        json["results"].take()
    }

    /// Returns the series of one statement.
    pub(crate) fn series(&mut self, query: &str) -> Value {
        let mut results = self.results(query);
        assert!(results[0]["error"].is_null(), "{query}: {results}");
        results[0]["series"].take()
    }

    /// Returns the error of one statement.
    pub(crate) fn error(&mut self, query: &str) -> String {
        let results = self.results(query);
        let error = results[0]["error"].as_str();
        error
            .unwrap_or_else(|| panic!("{query}: {results}"))
            .to_owned()
    }
}

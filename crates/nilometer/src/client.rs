//! The Rust API of the database: typed collections over [`Database::run_command`].
//!
//! Everything here sends commands and reads replies, as a driver does over a connection. Documents are any
//! type that `serde` can convert to BSON, such as [`bson::Document`].
//!
//! ```
//! use bson::{DateTime, doc};
//! use nilometer::Database;
//!
//! # fn main() -> nilometer::Result<()> {
//! let database = Database::in_memory()?;
//! let weather = database.collection::<bson::Document>("station", "weather");
//! weather.create_timeseries("time", Some("sensor"))?;
//! weather.insert_many([
//!     doc! { "time": DateTime::from_millis(0), "sensor": "roof", "celsius": 21.5 },
//!     doc! { "time": DateTime::from_millis(60_000), "sensor": "roof", "celsius": 22.5 },
//! ])?;
//! let mean = weather
//!     .aggregate::<bson::Document>([doc! { "$group": { "_id": "$sensor", "mean": { "$avg": "$celsius" } } }])?
//!     .next()
//!     .unwrap()?;
//! assert_eq!(mean, doc! { "_id": "roof", "mean": 22.0 });
//! # Ok(())
//! # }
//! ```

use std::collections::VecDeque;
use std::marker::PhantomData;

use nilometer_bson::{Document, DocumentBuilder, Value, ValueRef, doc};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::operation::Request;
use crate::session::ClientSession;

impl Database {
    /// Runs a command given as a BSON document; `ok: 0` and write errors become [`Error`]s.
    pub fn command(&self, database: &str, command: &bson::Document) -> Result<bson::Document> {
        from_bson(&self.call(database, to_bson(command)?)?)
    }

    /// Returns the collection `database.name`, with documents of type `T`. It need not exist.
    pub fn collection<T>(&self, database: &str, name: &str) -> Collection<'_, T> {
        Collection {
            database: self,
            db: database.to_owned(),
            name: name.to_owned(),
            documents: PhantomData,
        }
    }

    pub(crate) fn call(&self, database: &str, command: Document) -> Result<Document> {
        let mut body = DocumentBuilder::with_capacity(command.as_bytes().len() + 32);
        for element in command.iter() {
            body.append_element(element);
        }
        body.append("$db", database);
        let mut session = ClientSession::embedded();
        let reply = self.run_command(&mut session, &Request::new(body.finish()));
        check(&reply)?;
        Ok(reply)
    }
}

/// Fails with the error a reply reports, if any.
pub(crate) fn check(reply: &Document) -> Result<()> {
    let error = |from: nilometer_bson::DocRef<'_>| {
        let code = from
            .get("code")
            .as_exact_i64()
            .and_then(|code| i32::try_from(code).ok());
        let text = from.get("errmsg").as_str().unwrap_or("the command failed");
        Error::new(code.map_or(ErrorCode::UnknownError, ErrorCode), text)
    };
    if reply.get("ok").as_exact_i64() != Some(1) {
        return Err(error(reply.as_ref()));
    }
    match reply.get("writeErrors") {
        ValueRef::Array(errors) => match errors.get(0) {
            ValueRef::Document(first) => Err(error(first)),
            _ => Ok(()),
        },
        _ => Ok(()),
    }
}

fn to_bson<T: Serialize>(value: &T) -> Result<Document> {
    let bytes = bson::serialize_to_vec(value).map_err(|e| Error::bad_value(e.to_string()))?;
    Document::from_bytes(bytes).ok_or_else(|| Error::bad_value("not a BSON document"))
}

fn from_bson<T: DeserializeOwned>(document: &Document) -> Result<T> {
    bson::deserialize_from_slice(document.as_bytes())
        .map_err(|e| Error::new(ErrorCode::UnsupportedFormat, e.to_string()))
}

/// A collection whose documents are read and written as `T`.
pub struct Collection<'d, T> {
    database: &'d Database,
    db: String,
    name: String,
    documents: PhantomData<fn(T) -> T>,
}

impl<'d, T> Collection<'d, T> {
    /// Creates it as a time-series collection with buckets for measurements seconds to minutes apart. Does
    /// nothing if it exists with these options.
    pub fn create_timeseries(&self, time_field: &str, meta_field: Option<&str>) -> Result<()> {
        self.create_timeseries_with(&bson::doc! {
            "timeField": time_field,
            "metaField": meta_field,
        })
    }

    /// Creates it as a time-series collection with the given `timeseries` option of `create`; null fields
    /// are omitted.
    pub fn create_timeseries_with(&self, timeseries: &bson::Document) -> Result<()> {
        let given = to_bson(timeseries)?;
        let mut options = DocumentBuilder::new();
        for element in given.iter().filter(|e| !e.value().is_nullish()) {
            options.append_element(element);
        }
        let command = doc! { "create": self.name.as_str(), "timeseries": options.finish() };
        self.database.call(&self.db, command).map(drop)
    }

    /// Drops the collection.
    pub fn drop(&self) -> Result<()> {
        self.database
            .call(&self.db, doc! { "drop": self.name.as_str() })
            .map(drop)
    }

    /// Returns the number of documents that match `filter`.
    pub fn count(&self, filter: bson::Document) -> Result<u64> {
        let command = doc! { "count": self.name.as_str(), "query": to_bson(&filter)? };
        let reply = self.database.call(&self.db, command)?;
        Ok(reply
            .get("n")
            .as_exact_i64()
            .and_then(|n| u64::try_from(n).ok())
            .unwrap_or(0))
    }

    /// Runs a pipeline; each result is read as an `R`.
    pub fn aggregate<R: DeserializeOwned>(
        &self,
        pipeline: impl IntoIterator<Item = bson::Document>,
    ) -> Result<Cursor<'d, R>> {
        let mut stages = Vec::new();
        for stage in pipeline {
            stages.push(Value::Document(to_bson(&stage)?));
        }
        let command = doc! {
            "aggregate": self.name.as_str(),
            "pipeline": stages,
            "cursor": doc! {},
        };
        self.open(command)
    }

    fn open<R: DeserializeOwned>(&self, command: Document) -> Result<Cursor<'d, R>> {
        let reply = self.database.call(&self.db, command)?;
        let mut cursor = Cursor {
            database: self.database,
            db: self.db.clone(),
            collection: self.name.clone(),
            id: 0,
            batch: VecDeque::new(),
            documents: PhantomData,
        };
        cursor.receive(&reply, "firstBatch");
        Ok(cursor)
    }
}

impl<'d, T: Serialize> Collection<'d, T> {
    /// Inserts one document.
    pub fn insert_one(&self, document: T) -> Result<()> {
        self.insert_many([document])
    }

    /// Inserts documents in order, in one command (at most 100,000). Durable when it returns.
    pub fn insert_many(&self, documents: impl IntoIterator<Item = T>) -> Result<()> {
        let mut values = Vec::new();
        for document in documents {
            values.push(Value::Document(to_bson(&document)?));
        }
        let command = doc! { "insert": self.name.as_str(), "documents": values };
        self.database.call(&self.db, command).map(drop)
    }
}

impl<'d, T: DeserializeOwned> Collection<'d, T> {
    /// Returns the documents that match `filter`.
    pub fn find(&self, filter: bson::Document) -> Result<Cursor<'d, T>> {
        self.find_with(filter, bson::Document::new())
    }

    /// Like [`Collection::find`] with further options of the `find` command: `sort`, `limit`, `skip`,
    /// `projection`, `hint`, …
    pub fn find_with(
        &self,
        filter: bson::Document,
        options: bson::Document,
    ) -> Result<Cursor<'d, T>> {
        let mut command = DocumentBuilder::new();
        command.append("find", self.name.as_str());
        command.append("filter", to_bson(&filter)?);
        for element in to_bson(&options)?.iter() {
            command.append_element(element);
        }
        self.open(command.finish())
    }
}

/// The results of a query, fetched batch by batch. Dropping it closes the cursor.
pub struct Cursor<'d, R> {
    database: &'d Database,
    db: String,
    collection: String,
    /// 0 after the last batch.
    id: i64,
    batch: VecDeque<Document>,
    documents: PhantomData<fn() -> R>,
}

impl<R> Cursor<'_, R> {
    fn receive(&mut self, reply: &Document, batch: &str) {
        let Some(cursor) = reply.get("cursor").as_document() else {
            return;
        };
        self.id = cursor.get("id").as_exact_i64().unwrap_or(0);
        if let Some(documents) = cursor.get(batch).as_array() {
            let documents = documents.iter().filter_map(ValueRef::as_document);
            self.batch
                .extend(documents.map(|document| document.to_document()));
        }
    }
}

impl<R: DeserializeOwned> Iterator for Cursor<'_, R> {
    type Item = Result<R>;

    fn next(&mut self) -> Option<Result<R>> {
        while self.batch.is_empty() && self.id != 0 {
            let command = doc! { "getMore": self.id, "collection": self.collection.as_str() };
            match self.database.call(&self.db, command) {
                Ok(reply) => self.receive(&reply, "nextBatch"),
                Err(error) => {
                    self.id = 0;
                    return Some(Err(error));
                }
            }
        }
        self.batch.pop_front().map(|document| from_bson(&document))
    }
}

impl<R> Drop for Cursor<'_, R> {
    fn drop(&mut self) {
        if self.id != 0 {
            let cursors = Value::from(vec![Value::from(self.id)]);
            let command = doc! { "killCursors": self.collection.as_str(), "cursors": cursors };
            // The cursor may have timed out; either way it is closed.
            let _ = self.database.call(&self.db, command);
        }
    }
}

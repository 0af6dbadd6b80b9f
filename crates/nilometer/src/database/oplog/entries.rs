//! Entries of the change log as entries of an oplog.
//!
//! ```text
//! batch ─► operations {op, ns, ui, o, o2} ─┬─ each an entry with its own `ts`
//!                                          └─ of a transaction: together in entries of `applyOps`
//! ```
//!
//! Measurements are shown as changes of their buckets, in `system.buckets.<name>`: what a dump of the buckets has, the
//! entries change.

use nilometer_bson::{Array, DocRef, Document, DocumentBuilder, Timestamp, Value, doc};

use super::delta;
use crate::catalog::{Namespace, SYSTEM_VIEWS, uuid_value};
use crate::change_entry::{Entries, Entry, LoggedCollection};
use crate::change_log::{ChangeLog, LoggedBatch};
use crate::error::Result;
use crate::timeseries::unpack::{self, Shown};

/// Bytes of the operations of a transaction in one entry, about; an operation is not divided.
const TRANSACTION_ENTRY_BYTES_MAX: usize = 8 << 20;

/// The version of the form of entries.
const VERSION: i64 = 2;

/// Reads batches of the log as entries.
pub(super) struct EntryReader<'l> {
    pub(super) log: &'l ChangeLog,
    /// The term of the entries.
    pub(super) term: i64,
}

/// The changes of a batch.
#[derive(Default)]
struct BatchOperations {
    /// `{lsid, txnNumber}`, if they are those of a transaction.
    transaction: Option<Document>,
    operations: Vec<Document>,
    /// The document after the update in the next entry.
    after: Option<Document>,
}

impl BatchOperations {
    fn push(
        &mut self,
        op: &str,
        (ns, uuid): (&str, [u8; 16]),
        o: impl Into<Value>,
        o2: Option<Document>,
    ) {
        let mut out = DocumentBuilder::with_capacity(256);
        out.append("op", op);
        out.append("ns", ns);
        if uuid != [0; 16] {
            out.append("ui", uuid_value(uuid));
        }
        out.append("o", o);
        if let Some(o2) = o2 {
            out.append("o2", o2);
        }
        self.operations.push(out.finish());
    }

    /// Adds a command on the database of a collection: `{<name>: <collection>}` and other fields.
    fn push_command(
        &mut self,
        name: &str,
        collection: &LoggedCollection<'_>,
        others: Option<DocRef<'_>>,
        o2: Option<Document>,
    ) {
        let (database, short) = split(collection.name);
        let mut o = DocumentBuilder::with_capacity(128);
        o.append(name, short);
        if let Some(others) = others {
            o.append_all(others);
        }
        let ns = format!("{database}.$cmd");
        self.push("c", (&ns, collection.uuid), o.finish(), o2);
    }
}

/// Splits `db.coll`.
fn split(name: &str) -> (&str, &str) {
    name.split_once('.').unwrap_or((name, ""))
}

fn id_of(document: DocRef<'_>) -> Document {
    let mut key = DocumentBuilder::with_capacity(32);
    key.append_ref("_id", document.get("_id"));
    key.finish()
}

/// Returns the namespace of the buckets of a time-series collection.
fn buckets_of(name: &str) -> String {
    let (database, collection) = split(name);
    let namespace = Namespace {
        database: database.to_owned(),
        collection: collection.to_owned(),
    };
    namespace.buckets().to_string()
}

impl EntryReader<'_> {
    /// Returns the entries of a batch with their times, in order.
    pub(super) fn entries(&self, batch: &LoggedBatch) -> Result<Vec<(u64, Document)>> {
        let BatchOperations {
            transaction,
            mut operations,
            ..
        } = self.operations(batch)?;
        if let Some(transaction) = transaction {
            operations = self.in_transaction(&transaction, operations, batch.time);
        }
        let count = operations.len() as u64;
        let times = (batch.time + 1 - count)..=batch.time;
        let entries = times.zip(operations).map(|(time, operation)| {
            let entry = dated(operation, time, (self.term, batch.wall_ms));
            (time, entry)
        });
        Ok(entries.collect())
    }

    /// Returns the number of entries of a batch.
    pub(super) fn count(&self, batch: &LoggedBatch) -> Result<u64> {
        let (mut count, mut of_series) = (0, false);
        for entry in Entries::new(batch.entries()) {
            let entry = entry?;
            match &entry {
                Entry::Transaction(_) => return Ok(self.entries(batch)?.len() as u64),
                Entry::Namespace(collection) => of_series = !collection.time_field.is_empty(),
                _ => count += entry.operations(of_series) as u64,
            }
        }
        Ok(count)
    }

    fn operations(&self, batch: &LoggedBatch) -> Result<BatchOperations> {
        let mut out = BatchOperations::default();
        let mut collection = LoggedCollection {
            uuid: [0; 16],
            name: "",
            time_field: "",
            meta_field: "",
        };
        for entry in Entries::new(batch.entries()) {
            match entry? {
                Entry::Namespace(next) => collection = next,
                Entry::Transaction(transaction) => {
                    out.transaction = Some(transaction.to_document());
                }
                Entry::Measurements {
                    bucket,
                    rows_before,
                    tail,
                } => {
                    let added = (bucket, rows_before, tail);
                    self.add_measurements(&mut out, batch, &collection, added)?;
                }
                entry if collection.time_field.is_empty() => {
                    add_change(&mut out, &collection, &entry);
                }
                entry => add_change_of_buckets(&mut out, &collection, &entry),
            }
        }
        Ok(out)
    }

    /// Returns the operations of a transaction as operations of `applyOps`, in as few as their size allows.
    fn in_transaction(
        &self,
        transaction: &Document,
        operations: Vec<Document>,
        time: u64,
    ) -> Vec<Document> {
        let count = i64::try_from(operations.len()).unwrap_or(i64::MAX);
        let mut chunks: Vec<Vec<Document>> = Vec::new();
        let mut bytes = usize::MAX;
        for operation in operations {
            let length = operation.as_bytes().len();
            bytes = bytes.saturating_add(length);
            match chunks.last_mut() {
                Some(last) if bytes <= TRANSACTION_ENTRY_BYTES_MAX => last.push(operation),
                _ => {
                    bytes = length;
                    chunks.push(vec![operation]);
                }
            }
        }
        let chunk_count = chunks.len();
        let first = time + 1 - chunk_count as u64;
        let together = chunks.into_iter().enumerate().map(|(at, chunk)| {
            let is_last = at + 1 == chunk_count;
            let mut o = DocumentBuilder::with_capacity(1024);
            let operations = chunk.into_iter().map(Value::from);
            o.append("applyOps", operations.collect::<Array>());
            if !is_last {
                o.append("partialTxn", true);
            } else if chunk_count > 1 {
                o.append("count", count);
            }
            let (before, term) = match at {
                0 => (0, -1_i64),
                _ => (first + at as u64 - 1, self.term),
            };
            let before = Value::Timestamp(Timestamp::from_u64(before));
            let mut out = DocumentBuilder::with_capacity(1024);
            out.append_all(transaction.as_ref());
            out.append("op", "c");
            out.append("ns", "admin.$cmd");
            out.append("o", o.finish());
            out.append("prevOpTime", doc! {"ts": before, "t": term});
            out.finish()
        });
        together.collect()
    }

    /// Adds the insert of a bucket with its first measurements, or the update that adds measurements.
    fn add_measurements(
        &self,
        out: &mut BatchOperations,
        batch: &LoggedBatch,
        collection: &LoggedCollection<'_>,
        (bucket, rows_before, tail): ([u8; 12], u64, &[u8]),
    ) -> Result<()> {
        let ns = buckets_of(collection.name);
        let ns = (&*ns, collection.uuid);
        let id = doc! {"_id": nilometer_bson::ObjectId(bucket)};
        if let Some(document) = unpack::new_bucket(tail, bucket, collection.time_field)? {
            out.push("i", ns, document, Some(id));
            return Ok(());
        }
        let header = |columns| {
            let key = (collection.uuid, bucket);
            self.log.header(batch, key, columns)
        };
        let meta_field = Some(collection.meta_field).filter(|name| !name.is_empty());
        let shown = Shown::new(collection.time_field, meta_field);
        let measurements = unpack::tail_measurements(tail, &shown, header)?;
        let update = delta::of_measurements(&measurements, rows_before, collection.meta_field);
        out.push("u", ns, update, Some(id));
        Ok(())
    }
}

/// Adds the change of a bucket; changes of single measurements are left out.
fn add_change_of_buckets(
    out: &mut BatchOperations,
    collection: &LoggedCollection<'_>,
    entry: &Entry<'_>,
) {
    let ns = buckets_of(collection.name);
    let ns = (&*ns, collection.uuid);
    match entry {
        Entry::BucketAdded(bucket) => {
            let id = id_of(*bucket);
            out.push("i", ns, bucket.to_document(), Some(id));
        }
        Entry::BucketImage(bucket) => {
            let id = id_of(*bucket);
            out.push("u", ns, bucket.to_document(), Some(id));
        }
        Entry::BucketRemoved(bucket) => out.push("d", ns, id_of(*bucket), None),
        Entry::BucketGone(bucket) => {
            let id = doc! {"_id": nilometer_bson::ObjectId(*bucket)};
            out.push("d", ns, id, None);
        }
        Entry::Insert(_) | Entry::Update { .. } | Entry::Replace { .. } | Entry::Delete(_) => {}
        other => add_definition(out, collection, other),
    }
}

/// Adds the change of an ordinary document.
fn add_change(out: &mut BatchOperations, collection: &LoggedCollection<'_>, entry: &Entry<'_>) {
    let ns = (collection.name, collection.uuid);
    let after = out.after.take();
    match entry {
        Entry::Before(_) => out.after = after,
        Entry::After(document) => out.after = Some(document.to_document()),
        Entry::Insert(document) => {
            let id = id_of(*document);
            out.push("i", ns, document.to_document(), Some(id));
        }
        Entry::Update {
            key, description, ..
        } => {
            let o = after.unwrap_or_else(|| delta::of_description(*description));
            out.push("u", ns, o, Some(key.to_document()));
        }
        Entry::Replace { key, after } => {
            out.push("u", ns, after.to_document(), Some(key.to_document()));
        }
        Entry::Delete(key) => out.push("d", ns, key.to_document(), None),
        other => add_definition(out, collection, other),
    }
}

/// Adds the change of a collection, a view, an index or a database.
fn add_definition(out: &mut BatchOperations, collection: &LoggedCollection<'_>, entry: &Entry<'_>) {
    let indexes = |listed: &DocRef<'_>| {
        let listed = listed.get("indexes").as_array();
        let listed = listed.iter().flat_map(|listed| listed.iter());
        let listed = listed.filter_map(|index| index.as_document().map(|d| d.to_document()));
        listed.collect::<Vec<_>>()
    };
    let is_view = collection.uuid == [0; 16];
    let views = format!("{}.{SYSTEM_VIEWS}", split(collection.name).0);
    let view = |definition: DocRef<'_>| {
        let mut out = DocumentBuilder::new();
        out.append("_id", collection.name);
        out.append_all(definition);
        out.finish()
    };
    let id = || doc! {"_id": collection.name};
    match *entry {
        Entry::Create(options) if is_view => {
            out.push("i", (&views, [0; 16]), view(options), Some(id()));
        }
        Entry::ViewChanged(options) => {
            out.push("u", (&views, [0; 16]), view(options), Some(id()));
        }
        Entry::ViewDropped => out.push("d", (&views, [0; 16]), id(), None),
        Entry::Create(options) => out.push_command("create", collection, Some(options), None),
        Entry::Drop => out.push_command("drop", collection, None, None),
        Entry::Rename { to, dropped } => {
            let o = doc! {
                "renameCollection": collection.name,
                "to": to,
                "stayTemp": false,
                "dropTarget": dropped.map(uuid_value)
            };
            let ns = format!("{}.$cmd", split(collection.name).0);
            out.push("c", (&ns, collection.uuid), o, None);
        }
        Entry::DropDatabase(database) => {
            let ns = format!("{database}.$cmd");
            out.push("c", (&ns, [0; 16]), doc! {"dropDatabase": 1}, None);
        }
        Entry::CreateIndexes(listed) => {
            for index in indexes(&listed) {
                out.push_command("createIndexes", collection, Some(index.as_ref()), None);
            }
        }
        Entry::DropIndexes(listed) => {
            for index in indexes(&listed) {
                let name = doc! {"index": index.get("name").to_value()};
                out.push_command("dropIndexes", collection, Some(name.as_ref()), Some(index));
            }
        }
        Entry::Modify { change, before } => {
            out.push_command(
                "collMod",
                collection,
                Some(change),
                Some(before.to_document()),
            );
        }
        _ => {}
    }
}

/// Adds the fields of an entry that say when.
fn dated(operation: Document, time: u64, (term, wall_ms): (i64, i64)) -> Document {
    let mut out = DocumentBuilder::extending(operation);
    out.append("ts", Value::Timestamp(Timestamp::from_u64(time)));
    out.append("t", term);
    out.append("v", VERSION);
    out.append("wall", Value::DateTime(wall_ms));
    out.finish()
}

/// Returns the entry before all others. It says whether entries were removed.
pub(super) fn first_entry(time: u64, is_whole: bool, term: i64) -> Document {
    let message = match is_whole {
        true => "initiating set",
        false => "older entries were removed",
    };
    let operation = doc! {"op": "n", "ns": "", "o": doc! {"msg": message}};
    let wall_ms = i64::try_from(time >> 32).unwrap_or(0).saturating_mul(1000);
    dated(operation, time, (term, wall_ms))
}

//! Loads the layouts of a set and asks its questions.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nilometer_bson::{Document, DocumentBuilder, array, doc, extjson};

use super::SetOptions;
use super::document_set::{Collection, DocumentSet, Layout};
use super::questions::Question;
use super::report::{Asked, LoadedLayout, SetReport};
use crate::options::Options;
use crate::target::{Connection, Outcome, Target, drain, run as call};

/// Loads every layout, then asks every question of each.
pub(super) fn run(
    set: &dyn DocumentSet,
    options: &SetOptions,
    target: &mut Target,
) -> Outcome<SetReport> {
    let mut report = SetReport::new(set.name(), options.size);
    let layouts = chosen(set, options)?;
    if let Some(folder) = &options.export {
        let first = layouts.first().ok_or("a set without layouts")?;
        export(set, first, Path::new(folder))?;
    }
    for layout in &layouts {
        let in_layout = Options {
            database: format!("{}_{}", set.name(), layout.name),
            ..options.common.clone()
        };
        if in_layout.load {
            let loaded = load(set, layout, &in_layout, target)?;
            report.loaded.push(loaded);
        }
        if !in_layout.queries {
            continue;
        }
        for question in set.questions(layout.name)? {
            if !question.name.starts_with(&in_layout.only) {
                continue;
            }
            if question.size_max.is_some_and(|max| options.size > max) {
                report.left_out.insert(question.name);
            } else {
                let asked = ask(set, &question, layout.name, &in_layout, target)?;
                report.add(asked);
            }
        }
    }
    Ok(report)
}

/// Returns the layouts that the options select.
fn chosen(set: &dyn DocumentSet, options: &SetOptions) -> Outcome<Vec<Layout>> {
    let mut layouts = set.layouts();
    if let Some(name) = &options.layout {
        let known: Vec<&str> = layouts.iter().map(|l| l.name).collect();
        if !known.contains(&name.as_str()) {
            return Err(format!("--layout is one of {}", known.join(", ")));
        }
        layouts.retain(|layout| layout.name == name);
    }
    Ok(layouts)
}

/// Creates and loads the collections of a layout.
fn load(
    set: &dyn DocumentSet,
    layout: &Layout,
    options: &Options,
    target: &mut Target,
) -> Outcome<LoadedLayout> {
    let connection = target.first();
    call(
        connection,
        &doc! { "dropDatabase": 1, "$db": &options.database },
        None,
    )?;
    let mut loaded = LoadedLayout::new(layout.name);
    for collection in &layout.collections {
        create(connection, collection, options)?;
        let mut sender = Sender::new(connection, collection.name, options);
        set.generate(layout, collection.name, &mut |document| {
            sender.add(document)
        })?;
        sender.flush()?;
        loaded.rows += sender.rows;
        loaded.bson_bytes += sender.bytes;
        loaded.waiting += sender.waiting;
    }
    if options.settle_s > 0 {
        target.settle()?;
    }
    for collection in &layout.collections {
        loaded.disk_bytes += storage_bytes(target.first(), collection.name, options)?;
    }
    Ok(loaded)
}

fn create(connection: &mut dyn Connection, collection: &Collection, options: &Options) -> Outcome {
    let mut create = DocumentBuilder::new();
    create.append("create", collection.name);
    if let Some(timeseries) = &collection.timeseries {
        create.append("timeseries", timeseries.clone());
    }
    create.append("$db", &options.database);
    call(connection, &create.finish(), None)?;
    for key in &collection.indexes {
        let parts: Vec<&str> = key.iter().map(|e| e.name()).collect();
        let index = doc! { "key": key.clone(), "name": parts.join("_") };
        let command = doc! {
            "createIndexes": collection.name, "indexes": array![index], "$db": &options.database,
        };
        call(connection, &command, None)?;
    }
    Ok(())
}

/// Returns the bytes of a collection and its indexes, as the server reports them.
fn storage_bytes(connection: &mut dyn Connection, name: &str, options: &Options) -> Outcome<u64> {
    let reply = call(
        connection,
        &doc! { "collStats": name, "$db": &options.database },
        None,
    )?;
    let of = |field: &str| {
        let bytes = reply.get(field).as_exact_i64();
        bytes.and_then(|b| u64::try_from(b).ok()).unwrap_or(0)
    };
    Ok(of("totalSize"))
}

/// Collects documents and sends them in batches.
struct Sender<'c> {
    connection: &'c mut dyn Connection,
    command: Document,
    batch: usize,
    documents: Vec<u8>,
    in_batch: usize,
    rows: u64,
    bytes: u64,
    waiting: Duration,
}

impl<'c> Sender<'c> {
    fn new(connection: &'c mut dyn Connection, collection: &str, options: &Options) -> Self {
        Self {
            connection,
            command: doc! { "insert": collection, "ordered": true, "$db": &options.database },
            batch: options.batch,
            documents: Vec::new(),
            in_batch: 0,
            rows: 0,
            bytes: 0,
            waiting: Duration::ZERO,
        }
    }

    fn add(&mut self, document: &Document) -> Outcome {
        self.documents.extend_from_slice(document.as_bytes());
        self.in_batch += 1;
        if self.in_batch == self.batch {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Outcome {
        if self.in_batch == 0 {
            return Ok(());
        }
        let documents = Arc::new(std::mem::take(&mut self.documents));
        self.bytes += documents.len() as u64;
        let start = Instant::now();
        let reply = call(self.connection, &self.command, Some(documents))?;
        self.waiting += start.elapsed();
        if reply.get("n").as_exact_i64() != i64::try_from(self.in_batch).ok() {
            return Err(format!(
                "{} documents sent, the reply says {:?}",
                self.in_batch,
                reply.get("n")
            ));
        }
        self.rows += self.in_batch as u64;
        self.in_batch = 0;
        Ok(())
    }
}

/// Asks a question once unmeasured, then as often as the options say, and checks the answer.
fn ask(
    set: &dyn DocumentSet,
    question: &Question,
    layout: &'static str,
    options: &Options,
    target: &mut Target,
) -> Outcome<Asked> {
    let options = Options {
        collection: question.collection.clone(),
        ..options.clone()
    };
    let command = doc! {
        "aggregate": &question.collection,
        "pipeline": question.pipeline.clone(),
        "cursor": doc! { "batchSize": 1_000_000 },
        "allowDiskUse": true,
        "$db": &options.database,
    };
    let mut asked = Asked::new(question, layout);
    for round in 0..=options.draws {
        let start = Instant::now();
        let batches = drain(target.first(), &command, &options)
            .map_err(|e| format!("{} on {layout}: {e}", question.name))?;
        let took = start.elapsed();
        if round > 0 || options.draws == 0 {
            asked.times.push(took);
        }
        if round == 0 {
            let rows = batches.iter().flat_map(|b| b.documents());
            asked.answer = rows.map(extjson::to_relaxed).collect();
        }
    }
    if let Some(expected) = set.answer(&question.name) {
        let expected: Vec<String> = expected
            .iter()
            .map(|row| extjson::to_relaxed(row.as_ref()))
            .collect();
        asked.check(&expected, "the generator");
    }
    Ok(asked)
}

/// Writes the documents of a layout as JSON lines, one file for each collection.
fn export(set: &dyn DocumentSet, layout: &Layout, folder: &Path) -> Outcome {
    let failed = |e: std::io::Error| format!("{}: {e}", folder.display());
    std::fs::create_dir_all(folder).map_err(failed)?;
    for collection in &layout.collections {
        let path = folder.join(format!("{}.ndjson", collection.name));
        let mut out = BufWriter::new(File::create(path).map_err(failed)?);
        set.generate(layout, collection.name, &mut |document| {
            writeln!(out, "{}", extjson::to_relaxed(document.as_ref())).map_err(failed)
        })?;
        // Now, as writing it back would slow down what is measured.
        let file = out.into_inner().map_err(|e| failed(e.into_error()))?;
        file.sync_all().map_err(failed)?;
    }
    Ok(())
}

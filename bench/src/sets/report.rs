//! The figures of a set: a table for people, JSON for programs.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::time::Duration;

use super::questions::Question;
use crate::report::{machine, millis, quantile, quote};

/// A loaded layout.
pub(crate) struct LoadedLayout {
    pub(crate) name: &'static str,
    pub(crate) rows: u64,
    pub(crate) bson_bytes: u64,
    /// Bytes of collections and indexes.
    pub(crate) disk_bytes: u64,
    /// Time spent waiting for acknowledgements.
    pub(crate) waiting: Duration,
}

impl LoadedLayout {
    pub(crate) fn new(name: &'static str) -> Self {
        Self {
            name,
            rows: 0,
            bson_bytes: 0,
            disk_bytes: 0,
            waiting: Duration::ZERO,
        }
    }
}

/// A question that was asked on one layout.
pub(crate) struct Asked {
    name: String,
    what: String,
    pub(crate) layout: &'static str,
    pub(crate) times: Vec<Duration>,
    /// The rows as extended JSON.
    pub(crate) answer: Vec<String>,
    /// How the answer is wrong.
    pub(crate) wrong: Option<String>,
}

impl Asked {
    pub(crate) fn new(question: &Question, layout: &'static str) -> Self {
        Self {
            name: question.name.clone(),
            what: question.what.clone(),
            layout,
            times: Vec::new(),
            answer: Vec::new(),
            wrong: None,
        }
    }

    /// Compares the answer with the expected one.
    pub(crate) fn check(&mut self, expected: &[String], whose: &str) {
        if self.answer == expected || self.wrong.is_some() {
            return;
        }
        let rows = self.answer.iter().zip(expected).enumerate();
        let first = rows.into_iter().find(|(_, (got, wanted))| got != wanted);
        self.wrong = Some(match first {
            Some((at, (got, wanted))) => format!("row {at} is {got}, of {whose} {wanted}"),
            None => format!("{} rows, of {whose} {}", self.answer.len(), expected.len()),
        });
    }

    /// Returns the shortest time in milliseconds.
    fn least_ms(&self) -> f64 {
        millis(self.times.iter().min().copied().unwrap_or_default())
    }
}

/// The results of a set.
pub struct SetReport {
    set: &'static str,
    size: u64,
    pub(crate) loaded: Vec<LoadedLayout>,
    pub(crate) asked: Vec<Asked>,
    /// Questions that are not asked of a set of this size.
    pub(crate) left_out: BTreeSet<String>,
}

impl SetReport {
    pub(crate) fn new(set: &'static str, size: u64) -> Self {
        Self {
            set,
            size,
            loaded: Vec::new(),
            asked: Vec::new(),
            left_out: BTreeSet::new(),
        }
    }

    /// Adds the result of a question, after comparing it with that of the first layout.
    pub(crate) fn add(&mut self, mut asked: Asked) {
        let first = self.asked.iter().find(|other| other.name == asked.name);
        if let Some(first) = first {
            asked.check(&first.answer, first.layout);
        }
        self.asked.push(asked);
    }

    /// False if an answer was wrong.
    pub fn all_answers_right(&self) -> bool {
        self.asked.iter().all(|asked| asked.wrong.is_none())
    }

    /// Returns the tables.
    pub fn text(&self) -> String {
        let mut out = format!(
            "{}, look-alike, size {}\n{}\n",
            self.set,
            self.size,
            machine()
        );
        if !self.loaded.is_empty() {
            out.push_str("\n| layout | documents | a second | BSON, MB | on disk, MB |\n|---|---:|---:|---:|---:|\n");
        }
        for loaded in &self.loaded {
            let rate = loaded.rows as f64 / loaded.waiting.as_secs_f64().max(1e-9);
            let _ = writeln!(
                out,
                "| {} | {} | {rate:.0} | {:.1} | {:.1} |",
                loaded.name,
                loaded.rows,
                loaded.bson_bytes as f64 / 1e6,
                loaded.disk_bytes as f64 / 1e6,
            );
        }
        if !self.asked.is_empty() {
            out.push_str("\n| question | | layout | least, ms | median, ms | rows | answer |\n|---|---|---|---:|---:|---:|---|\n");
        }
        for asked in &self.asked {
            let _ = writeln!(
                out,
                "| {} | {} | {} | {:.2} | {:.2} | {} | {} |",
                asked.name,
                asked.what,
                asked.layout,
                asked.least_ms(),
                millis(quantile(&asked.times, 0.5)),
                asked.answer.len(),
                asked.wrong.as_deref().unwrap_or("right"),
            );
        }
        for name in &self.left_out {
            let _ = writeln!(out, "\n{name} is not asked of a set of this size.");
        }
        out
    }

    /// Returns the results, with the answers, as one JSON document.
    pub fn to_json(&self) -> String {
        let mut out = format!(
            "{{\n  \"set\": {}, \"size\": {}, \"machine\": {},\n  \"layouts\": [",
            quote(self.set),
            self.size,
            quote(&machine())
        );
        for (at, loaded) in self.loaded.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            let _ = write!(
                out,
                "{comma}\n    {{\"name\": {}, \"rows\": {}, \"bson_bytes\": {}, \"disk_bytes\": {}, \"load_s\": {:.3}}}",
                quote(loaded.name),
                loaded.rows,
                loaded.bson_bytes,
                loaded.disk_bytes,
                loaded.waiting.as_secs_f64()
            );
        }
        out.push_str("\n  ],\n  \"queries\": [");
        for (at, asked) in self.asked.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            let _ = write!(
                out,
                "{comma}\n    {{\"name\": {}, \"layout\": {}, \"least_ms\": {:.4}, \"median_ms\": {:.4}, \"wrong\": {}, \"answer\": [{}]}}",
                quote(&asked.name),
                quote(asked.layout),
                asked.least_ms(),
                millis(quantile(&asked.times, 0.5)),
                asked.wrong.as_deref().map_or("null".to_string(), quote),
                asked.answer.join(", ")
            );
        }
        out.push_str("\n  ]\n}\n");
        out
    }
}

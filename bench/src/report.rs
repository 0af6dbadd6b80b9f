//! The figures: a table for people, JSON for programs.

use std::fmt::Write;
use std::time::Duration;

use crate::data::DataSet;
use crate::disk::Weight;
use crate::load::Loaded;
use crate::options::Options;
use crate::queries::Measured;
use crate::target::Outcome;

/// The part of a data folder that holds the log.
const LOG: &str = "wal";

/// Everything that was measured in one run.
pub(crate) struct Report {
    title: String,
    machine: String,
    rows: usize,
    pub(crate) load: Option<Loaded>,
    pub(crate) disk: Option<Weight>,
    pub(crate) queries: Vec<Measured>,
    /// Medians of another run by name, in ms.
    pub(crate) beside: Vec<(String, f64)>,
}

impl Report {
    pub(crate) fn new(options: &Options, data: &DataSet) -> Self {
        Self {
            title: format!(
                "{} hosts, {} days, seed {}, {:?} {:?}{}{}, batches of {}, {} connections, {}",
                options.scale,
                options.days,
                options.seed,
                options.shape,
                options.number,
                if options.shuffle { " shuffled" } else { "" },
                if options.with_id { "" } else { " without _id" },
                options.batch,
                options.connections,
                options.address,
            ),
            machine: machine(),
            rows: data.rows(),
            load: None,
            disk: None,
            queries: Vec::new(),
            beside: Vec::new(),
        }
    }

    /// Takes the medians of another run from its JSON.
    pub(crate) fn put_beside(&mut self, json: &str) -> Outcome {
        let other = nilometer_bson::extjson::parse_document(json).map_err(|e| e.to_string())?;
        let queries = other.get("queries").as_array();
        for query in queries.iter().flat_map(|list| list.iter()) {
            let query = query.as_document();
            let name = query.and_then(|query| query.get("name").as_str());
            let median = query.map(|query| query.get("median_ms"));
            let (Some(name), Some(nilometer_bson::ValueRef::Double(median))) = (name, median)
            else {
                return Err("a query without a name or a median".to_string());
            };
            self.beside.push((name.to_string(), median));
        }
        Ok(())
    }

    /// How many times as long as in the other run a query takes, as a cell; nothing without another run.
    fn growth(&self, query: &Measured) -> String {
        let mut known = self.beside.iter();
        let before = known.find(|(name, median)| name == query.name && *median > 0.0);
        match before {
            _ if self.beside.is_empty() => String::new(),
            Some((_, before)) => {
                let now = millis(quantile(&query.latencies, 0.5));
                format!(" {before:.3} | {:.2} |", now / before)
            }
            None => " | |".to_string(),
        }
    }

    /// False if a query failed or was answered wrongly.
    pub(crate) fn all_answers_right(&self) -> bool {
        self.queries.iter().all(|q| q.wrong.is_none())
    }

    /// Prints the tables.
    pub(crate) fn print(&self) {
        println!("{}\n{}\n", self.title, self.machine);
        println!("| what | figure |\n|---|---:|");
        if let Some(load) = &self.load {
            let millions = load.bson_bytes as f64 / 1e6;
            println!("| measurements loaded | {} |", load.rows);
            println!("| BSON loaded | {millions:.1} MB |");
            println!(
                "| rate while waiting for the server | {:.0} a second |",
                load.rate()
            );
            let wall = load.rows as f64 / load.wall.as_secs_f64();
            println!("| rate by the wall clock | {wall:.0} a second |");
            println!(
                "| batch, median | {:.2} ms |",
                millis(quantile(&load.latencies, 0.5))
            );
            println!(
                "| batch, 99 % | {:.2} ms |",
                millis(quantile(&load.latencies, 0.99))
            );
        }
        if let Some(disk) = &self.disk {
            let each = disk.bytes as f64 / self.rows as f64;
            println!(
                "| on disk ({}) | {:.2} MB |",
                disk.source,
                disk.bytes as f64 / 1e6
            );
            println!("| on disk for a measurement | {each:.2} bytes |");
            if let Some((_, log)) = disk.parts.iter().find(|(name, _)| name == LOG) {
                let each = (disk.bytes - log) as f64 / self.rows as f64;
                println!("| … outside the log | {each:.2} bytes |");
            }
            for (name, bytes) in disk.parts.iter().take(8) {
                println!("| … of it in `{name}` | {:.2} MB |", *bytes as f64 / 1e6);
            }
        }
        if self.queries.is_empty() {
            return;
        }
        let (head, line) = match self.beside.is_empty() {
            true => ("", ""),
            false => (" the other run, ms | times |", "---:|---:|"),
        };
        println!(
            "\n| query | median, ms | 90 % | rows | KB | answers |{head}\n|---|---:|---:|---:|---:|---|{line}"
        );
        for q in &self.queries {
            println!(
                "| {} | {:.3} | {:.3} | {} | {} | {} |{}",
                q.name,
                millis(quantile(&q.latencies, 0.5)),
                millis(quantile(&q.latencies, 0.9)),
                q.rows,
                q.bytes / 1000,
                q.wrong.as_deref().unwrap_or("right"),
                self.growth(q),
            );
        }
    }

    /// The same as one JSON document.
    pub(crate) fn to_json(&self) -> String {
        let mut out = String::new();
        let _ = write!(
            out,
            "{{\n  \"title\": {},\n  \"machine\": {},\n  \"rows\": {}",
            quote(&self.title),
            quote(&self.machine),
            self.rows
        );
        if let Some(load) = &self.load {
            let _ = write!(
                out,
                ",\n  \"load\": {{\"rows_per_s\": {:.0}, \"wall_s\": {:.3}, \"bson_bytes\": {}, \"batch_median_ms\": {:.3}}}",
                load.rate(),
                load.wall.as_secs_f64(),
                load.bson_bytes,
                millis(quantile(&load.latencies, 0.5))
            );
        }
        if let Some(disk) = &self.disk {
            let _ = write!(
                out,
                ",\n  \"disk\": {{\"bytes\": {}, \"log_bytes\": {}, \"source\": {}}}",
                disk.bytes,
                disk.parts
                    .iter()
                    .find(|(name, _)| name == LOG)
                    .map_or(0, |(_, bytes)| *bytes),
                quote(disk.source)
            );
        }
        out.push_str(",\n  \"queries\": [");
        for (at, q) in self.queries.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            let all: Vec<String> = q
                .latencies
                .iter()
                .map(|l| format!("{:.4}", millis(*l)))
                .collect();
            let _ = write!(
                out,
                "{comma}\n    {{\"name\": {}, \"median_ms\": {:.4}, \"rows\": {}, \"bytes\": {}, \"wrong\": {}, \"all_ms\": [{}]}}",
                quote(q.name),
                millis(quantile(&q.latencies, 0.5)),
                q.rows,
                q.bytes,
                q.wrong.as_deref().map_or("null".to_string(), quote),
                all.join(", ")
            );
        }
        out.push_str("\n  ]\n}\n");
        out
    }
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

/// The value that so large a part of the durations does not exceed; zero of none.
fn quantile(durations: &[Duration], part: f64) -> Duration {
    let mut sorted = durations.to_vec();
    sorted.sort_unstable();
    let at = (sorted.len() as f64 * part) as usize;
    sorted
        .get(at.min(sorted.len().saturating_sub(1)))
        .copied()
        .unwrap_or_default()
}

/// A JSON string.
fn quote(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => {
                out.push('\\');
                out.push(c);
            }
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// The processor, how many threads it has, and how busy the machine was.
fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .map_or("unknown processor", |rest| {
            rest.trim_start_matches([' ', '\t', ':'])
        });
    let threads = std::thread::available_parallelism().map_or(0, usize::from);
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or("unknown");
    format!("{model}, {threads} threads, load average {load} at the start")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_were_measured() {
        let all: Vec<Duration> = (1..=20).map(Duration::from_millis).collect();
        assert_eq!(quantile(&all, 0.5), Duration::from_millis(11));
        assert_eq!(quantile(&all, 1.0), Duration::from_millis(20));
        assert_eq!(quantile(&[], 0.5), Duration::ZERO);
    }

    #[test]
    fn text_is_quoted() {
        assert_eq!(quote("a\"b\\\n"), "\"a\\\"b\\\\\\u000a\"");
    }
}

//! The results: tables for people, JSON for programs.

use std::fmt::Write;
use std::time::Duration;

use crate::course;
use crate::data::DataSet;
use crate::disk::DiskUsage;
use crate::load::LoadResult;
use crate::options::Options;
use crate::plot;
use crate::queries::QueryResult;
use crate::whole::WholeRead;

/// The part of a data folder that holds the log.
const LOG: &str = "wal";

/// The reported quantiles.
const PARTS: [(&str, f64); 3] = [("median", 0.5), ("95 %", 0.95), ("99 %", 0.99)];

/// The results of one run.
pub struct Report {
    title: String,
    machine: String,
    rows: usize,
    pub(crate) load: Option<LoadResult>,
    pub(crate) disk: Option<DiskUsage>,
    pub(crate) queries: Vec<QueryResult>,
    pub(crate) whole: Option<WholeRead>,
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
            whole: None,
        }
    }

    /// False if a query failed or had a wrong answer.
    pub fn all_answers_right(&self) -> bool {
        let of_queries = self.queries.iter().map(|q| &q.wrong);
        let mut all = of_queries.chain(self.whole.iter().map(|w| &w.wrong));
        all.all(Option::is_none)
    }

    /// Returns the name and the median of each query, in milliseconds.
    pub fn medians_ms(&self) -> Vec<(&'static str, f64)> {
        let medians = self
            .queries
            .iter()
            .map(|query| (query.name, median_ms(query)));
        medians.collect()
    }

    /// Returns the measurements loaded in a second of waiting, if any were loaded.
    pub fn load_rate(&self) -> Option<f64> {
        self.load.as_ref().map(LoadResult::rate)
    }

    /// Returns the tables.
    pub fn text(&self) -> String {
        let mut out = format!(
            "{}\n{}\n\n| what | figure |\n|---|---:|\n",
            self.title, self.machine
        );
        let mut line = |what: &str, figure: String| {
            let _ = writeln!(out, "| {what} | {figure} |");
        };
        if let Some(load) = &self.load {
            line("measurements loaded", load.rows.to_string());
            line("BSON loaded", megabytes(load.bson_bytes));
            let a_second = |rate: f64| format!("{rate:.0} a second");
            line("rate while waiting for the server", a_second(load.rate()));
            let wall = load.rows as f64 / load.wall.as_secs_f64();
            line("rate by the wall clock", a_second(wall));
            for (name, part) in PARTS {
                let latency = millis(quantile(&load.latencies, part));
                line(&format!("batch, {name}"), format!("{latency:.2} ms"));
            }
        }
        if let Some(disk) = &self.disk {
            let each = |bytes: u64| format!("{:.2} bytes", bytes as f64 / self.rows as f64);
            line(&format!("on disk ({})", disk.source), megabytes(disk.bytes));
            line("on disk for a measurement", each(disk.bytes));
            if let Some((_, log)) = disk.parts.iter().find(|(name, _)| name == LOG) {
                line("… outside the log", each(disk.bytes - log));
            }
            for (name, bytes) in disk.parts.iter().take(8) {
                line(&format!("… of it in `{name}`"), megabytes(*bytes));
            }
        }
        if let Some(whole) = &self.whole {
            let all = quantile(&whole.all, 0.5);
            let rate = whole.bytes as f64 / 1e6 / all.as_secs_f64().max(f64::EPSILON);
            line("read back, BSON", megabytes(whole.bytes as u64));
            line("… a second, median", format!("{rate:.0} MB"));
            let first = millis(quantile(&whole.first, 0.5));
            line("… first batch, median", format!("{first:.2} ms"));
            line(
                "… answers",
                whole.wrong.clone().unwrap_or_else(|| "right".into()),
            );
        }
        if let Some(load) = self.load.as_ref().filter(|load| !load.course.is_empty()) {
            out.push_str(&course::table(&load.course));
        }
        if !self.queries.is_empty() {
            let names = PARTS.map(|(name, _)| format!("{name}, ms")).join(" | ");
            let _ = writeln!(
                out,
                "\n| query | {names} | runs | rows | KB | answers |\n|---|---:|---:|---:|---:|---:|---:|---|"
            );
        }
        for q in &self.queries {
            let parts =
                PARTS.map(|(_, part)| format!("{:.3}", millis(quantile(&q.latencies, part))));
            let _ = writeln!(
                out,
                "| {} | {} | {} | {} | {} | {} |",
                q.name,
                parts.join(" | "),
                q.latencies.len(),
                q.rows,
                q.bytes / 1000,
                q.wrong.as_deref().unwrap_or("right"),
            );
        }
        out
    }

    /// Returns the picture of the course of loading; `None` if no points were taken.
    pub fn course_svg(&self) -> Option<String> {
        let course = self.load.as_ref().map(|load| &*load.course);
        course.filter(|course| !course.is_empty()).map(plot::svg)
    }

    /// Returns the results as one JSON document.
    pub fn to_json(&self) -> String {
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
                ",\n  \"load\": {{\"rows_per_s\": {:.0}, \"wall_s\": {:.3}, \"bson_bytes\": {}, \"batch_median_ms\": {:.3}, \"course\": {}}}",
                load.rate(),
                load.wall.as_secs_f64(),
                load.bson_bytes,
                millis(quantile(&load.latencies, 0.5)),
                course::json(&load.course)
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
        if let Some(whole) = &self.whole {
            let _ = write!(
                out,
                ",\n  \"whole\": {{\"rows\": {}, \"bytes\": {}, \"median_ms\": {:.3}, \"first_batch_ms\": {:.3}}}",
                whole.rows,
                whole.bytes,
                millis(quantile(&whole.all, 0.5)),
                millis(quantile(&whole.first, 0.5))
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

/// Returns the median of a query's latencies.
pub(crate) fn median_ms(query: &QueryResult) -> f64 {
    millis(quantile(&query.latencies, 0.5))
}

fn megabytes(bytes: u64) -> String {
    format!("{:.2} MB", bytes as f64 / 1e6)
}

pub(crate) fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

/// Returns the quantile `part` of the durations; zero if there are none.
pub(crate) fn quantile(durations: &[Duration], part: f64) -> Duration {
    let mut sorted = durations.to_vec();
    sorted.sort_unstable();
    let at = (sorted.len() as f64 * part) as usize;
    sorted
        .get(at.min(sorted.len().saturating_sub(1)))
        .copied()
        .unwrap_or_default()
}

/// A JSON string.
pub(crate) fn quote(text: &str) -> String {
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

/// Describes the processor, its threads, and the load of the machine.
pub(crate) fn machine() -> String {
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

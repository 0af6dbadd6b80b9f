//! The course of a load: rate, memory and size on disk after each part of the data.

use std::fmt::Write;
use std::time::Duration;

use nilometer_bson::doc;

use crate::data::DataSet;
use crate::disk::folder_bytes;
use crate::options::Options;
use crate::target::{Connection, Outcome, run as call};

/// One point of the course.
#[derive(Clone, Debug)]
pub(crate) struct LoadPoint {
    /// Measurements loaded by all connections, as far as the first one tells.
    pub(crate) rows: usize,
    /// Measurements per second of waiting since the point before, all connections together.
    pub(crate) rate: f64,
    /// Resident memory of the server in bytes, without the generated values if it runs in this process.
    pub(crate) memory: u64,
    /// Bytes of the data folder, if it is accessible.
    pub(crate) disk: Option<u64>,
}

/// Takes the points, on the first connection.
pub(crate) struct Course {
    /// Ticks of a part.
    every: Option<usize>,
    before: (usize, Duration),
    pub(crate) points: Vec<LoadPoint>,
}

impl Course {
    /// Divides the ticks into the parts of the options. Without parts there are no points.
    pub(crate) fn new(data: &DataSet, options: &Options) -> Self {
        let every = (options.points > 0).then(|| data.ticks.div_ceil(options.points));
        Self {
            every,
            before: (0, Duration::ZERO),
            points: Vec::new(),
        }
    }

    /// Takes a point if a part ends in front of this tick, or the data. The first connection has sent `rows` and waited so long.
    pub(crate) fn pass(
        &mut self,
        connection: &mut dyn Connection,
        data: &DataSet,
        options: &Options,
        (tick, rows, waiting): (usize, usize, Duration),
    ) -> Outcome {
        let ends = |every| tick > 0 && (tick % every == 0 || tick == data.ticks);
        if !self.every.is_some_and(ends) {
            return Ok(());
        }
        let (rows_before, waiting_before) = self.before;
        let seconds = (waiting - waiting_before).as_secs_f64();
        self.before = (rows, waiting);
        let memory = match options.in_process {
            Some(_) => resident().saturating_sub(data.value_bytes()),
            None => resident_of_server(connection)?,
        };
        let disk = options.dbpath.as_ref().map(|folder| folder_bytes(folder));
        self.points.push(LoadPoint {
            rows: rows * options.connections,
            rate: ((rows - rows_before) * options.connections) as f64 / seconds.max(f64::EPSILON),
            memory,
            disk: disk.transpose()?,
        });
        Ok(())
    }
}

/// Returns the resident memory of this process in bytes; 0 if it is unknown.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kilobytes.unwrap_or_default() << 10
}

/// Returns what a server tells of its own.
fn resident_of_server(connection: &mut dyn Connection) -> Outcome<u64> {
    let status = doc! { "serverStatus": 1, "$db": "admin" };
    let reply = call(connection, &status, None)?;
    let memory = reply.get("mem").as_document();
    let megabytes = memory.and_then(|memory| memory.get("resident").as_exact_i64());
    Ok(megabytes
        .and_then(|mb| u64::try_from(mb).ok())
        .unwrap_or_default()
        << 20)
}

/// Returns the table of the points.
pub(crate) fn table(points: &[LoadPoint]) -> String {
    let mut out = String::from(
        "\n| million measurements | thousand a second | memory, MB | on disk, MB |\n|---:|---:|---:|---:|\n",
    );
    for point in points {
        let _ = writeln!(
            out,
            "| {:.1} | {:.0} | {} | {} |",
            point.rows as f64 / 1e6,
            point.rate / 1e3,
            point.memory / 1_000_000,
            point
                .disk
                .map_or("unknown".into(), |bytes| (bytes / 1_000_000).to_string()),
        );
    }
    out
}

/// Returns the points as a JSON array.
pub(crate) fn json(points: &[LoadPoint]) -> String {
    let all: Vec<String> = points
        .iter()
        .map(|point| {
            format!(
                "{{\"rows\": {}, \"rows_per_s\": {:.0}, \"memory_bytes\": {}, \"disk_bytes\": {}}}",
                point.rows,
                point.rate,
                point.memory,
                point.disk.map_or("null".into(), |bytes| bytes.to_string()),
            )
        })
        .collect();
    format!("[{}]", all.join(", "))
}

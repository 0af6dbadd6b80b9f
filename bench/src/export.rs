//! The data set and the drawn parameters as files, so that other databases load the same values and answer the same
//! queries.
//!
//! ```text
//! manifest.json  {tags, metrics, hosts: [[tag…]…], start_ms, interval_ms, ticks,
//!                 queries: [{name, kind, unit_ms, draws: [{start_ms, end_ms, hosts: [number…], metrics}…]}…]}
//! values.bin     one byte for each value: by tick, host, metric
//! ```

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;

use crate::data::{DataSet, METRICS, START_MS, TAGS};
use crate::options::Options;
use crate::queries::{self, Draw, QueryKind};
use crate::report::quote;
use crate::target::Outcome;

/// Writes the files into a folder.
pub(crate) fn write(data: &DataSet, options: &Options, folder: &Path) -> Outcome {
    let failed = |e: std::io::Error| format!("{}: {e}", folder.display());
    std::fs::create_dir_all(folder).map_err(failed)?;
    std::fs::write(folder.join("manifest.json"), manifest(data, options)).map_err(failed)?;
    let mut values = BufWriter::new(File::create(folder.join("values.bin")).map_err(failed)?);
    for tick in 0..data.ticks {
        for host in 0..data.hosts.len() {
            values.write_all(data.row(tick, host)).map_err(failed)?;
        }
    }
    values.flush().map_err(failed)
}

fn manifest(data: &DataSet, options: &Options) -> String {
    let words = |words: &[&str]| list(words.iter().map(|word| quote(word)));
    let hosts = data.hosts.iter();
    let hosts = list(hosts.map(|host| list(host.iter().map(|tag| quote(tag)))));
    let queries = queries::drawn(data, options);
    let queries = queries.iter().filter_map(|(query, draws)| {
        let (kind, unit_ms) = match query.kind {
            QueryKind::MaxBy { unit_ms, .. } => ("max", unit_ms),
            QueryKind::MeanByHourAndHost => ("mean", 3_600_000),
            QueryKind::HighCpu => ("high", 0),
            QueryKind::LastPointFirst => ("last", 0),
            QueryKind::NewestMinutes => ("newest", 60_000),
            // Other spellings of the same question.
            QueryKind::LastPointTop | QueryKind::LastPointLast => return None,
        };
        Some(format!(
            "\n  {{\"name\": {}, \"kind\": \"{kind}\", \"unit_ms\": {unit_ms}, \"draws\": {}}}",
            quote(query.name),
            list(draws.iter().map(draw))
        ))
    });
    let mut out = String::new();
    let _ = write!(
        out,
        "{{\"tags\": {}, \"metrics\": {}, \"start_ms\": {START_MS}, \"interval_ms\": {}, \"ticks\": {},\n\"hosts\": {hosts},\n\"queries\": {}}}\n",
        words(&TAGS),
        words(&METRICS),
        data.interval_ms,
        data.ticks,
        list(queries)
    );
    out
}

fn draw(draw: &Draw) -> String {
    format!(
        "{{\"start_ms\": {}, \"end_ms\": {}, \"hosts\": {}, \"metrics\": {}}}",
        draw.start_ms,
        draw.end_ms,
        list(draw.hosts.iter().map(ToString::to_string)),
        draw.metrics
    )
}

fn list(items: impl Iterator<Item = String>) -> String {
    format!("[{}]", items.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use nilometer_bson::extjson;

    use super::*;

    #[test]
    fn the_files_hold_the_values_and_the_draws() {
        let options = Options {
            scale: 3,
            days: 0.01,
            draws: 2,
            ..Options::default()
        };
        let data = DataSet::generate(&options);
        let folder = std::env::temp_dir().join(format!("nilometer-export-{}", std::process::id()));
        write(&data, &options, &folder).unwrap();
        let values = std::fs::read(folder.join("values.bin")).unwrap();
        let text = std::fs::read_to_string(folder.join("manifest.json")).unwrap();
        drop(std::fs::remove_dir_all(&folder));
        assert_eq!(values.len(), data.rows() * METRICS.len());
        assert_eq!(&values[(2 * 3 + 1) * 10..][..10], data.row(2, 1));
        let manifest = extjson::parse_document(&text).unwrap();
        let queries = manifest.get("queries").as_array().unwrap();
        assert_eq!(queries.iter().count(), 16);
        let first = queries.iter().next().unwrap().as_document().unwrap();
        assert_eq!(first.get("name").as_str(), Some("single-groupby-1-1-1"));
        let draws = first.get("draws").as_array().unwrap();
        assert_eq!(draws.iter().count(), 2);
    }
}

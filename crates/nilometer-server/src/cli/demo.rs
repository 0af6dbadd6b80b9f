//! `nilometer demo`: the main job on real data, in a minute, with the embedded engine.
//!
//! Loads two public series into a time-series collection, reports their size on disk, runs three queries and draws the
//! answers. A second run finds its data and only queries.

use std::io::Write;
use std::path::Path;

use bson::{DateTime, Document, doc};
use indicatif::{ProgressBar, ProgressStyle};
use nilometer::client::Collection;
use nilometer::{Database, Result as DatabaseResult};

use super::Failure;
use crate::machine::make_new_files_private;

/// Yearly flow of the Nile at Aswan; source and licence in `data/README.md`.
const NILE: &str = include_str!("../../data/nile_flow.csv");

/// Weekly CO2 at Mauna Loa; source and licence in `data/README.md`.
const CO2: &str = include_str!("../../data/mauna_loa_co2.csv");

const DATABASE: &str = "demo";
const COLLECTION: &str = "measurements";

/// Measurements sent in one insert.
const BATCH: usize = 100;

/// Columns of the longest bar.
const BAR_WIDTH: f64 = 48.0;

/// Runs the demo in the directory `path`.
pub(super) fn run(path: &Path) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    make_new_files_private();
    let database = Database::open(path)?;
    let measurements = database.collection::<Document>(DATABASE, COLLECTION);
    measurements.create_timeseries_with(&doc! {
        "timeField": "time",
        "metaField": "series",
        "bucketMaxSpanSeconds": 31_536_000,
        "bucketRoundingSeconds": 31_536_000,
    })?;
    let given = read("nile", NILE)?
        .into_iter()
        .chain(read("mauna loa", CO2)?);
    let given: Vec<Document> = given.collect();
    let found = measurements.count(doc! {})?;
    if found == given.len() as u64 {
        writeln!(
            out,
            "Found {found} measurements in {}, loaded by an earlier run.",
            path.display()
        )?;
    } else if found > 0 {
        // An interrupted run: its data is incomplete.
        measurements.drop()?;
        drop(database);
        return run(path);
    } else {
        load(&measurements, &given, path)?;
    }
    report_size(&database, &measurements, &given, &mut out)?;
    nile_by_decade(&measurements, &mut out)?;
    co2_by_year(&measurements, &mut out)?;
    co2_by_month(&measurements, &mut out)?;
    database.close()?;
    writeln!(
        out,
        "\nServe it:    cargo run --release -- serve --dbpath {0}\n\
         Connect:     mongosh mongodb://127.0.0.1:27017/{DATABASE}\n\
         and ask:     db.{COLLECTION}.find({{series: \"nile\"}}).sort({{time: -1}}).limit(3)",
        path.display()
    )?;
    Ok(())
}

/// Parses the measurements of one file: a header line, then `date,value`; a year means its first day.
fn read(series: &str, csv: &str) -> Result<Vec<Document>, Failure> {
    let mut measurements = Vec::new();
    for line in csv.lines().skip(1) {
        let bad = || Failure::Other(format!("the demo data has a line '{line}'"));
        let (date, value) = line.split_once(',').ok_or_else(bad)?;
        let date = if date.len() == 4 {
            format!("{date}-01-01")
        } else {
            date.to_owned()
        };
        let time = DateTime::parse_rfc3339_str(format!("{date}T00:00:00Z")).map_err(|_| bad())?;
        let value: f64 = value.parse().map_err(|_| bad())?;
        measurements.push(doc! { "time": time, "series": series, "value": value });
    }
    Ok(measurements)
}

fn load(
    measurements: &Collection<'_, Document>,
    given: &[Document],
    path: &Path,
) -> Result<(), Failure> {
    let style = ProgressStyle::with_template("{msg} [{bar:40}] {pos}/{len} measurements")
        .map_err(|e| Failure::Other(e.to_string()))?
        .progress_chars("=> ");
    let bar = ProgressBar::new(given.len() as u64).with_style(style);
    bar.set_message(format!("Loading into {}", path.display()));
    for batch in given.chunks(BATCH) {
        measurements.insert_many(batch.iter().cloned())?;
        bar.inc(batch.len() as u64);
    }
    bar.finish();
    Ok(())
}

/// Reports the number of buckets and the size of a measurement, compared with plain BSON.
fn report_size(
    database: &Database,
    measurements: &Collection<'_, Document>,
    given: &[Document],
    out: &mut impl Write,
) -> Result<(), Failure> {
    database.settle()?;
    let stats = database.command(DATABASE, &doc! { "collStats": COLLECTION })?;
    let number = |value: Option<&bson::Bson>| match value {
        Some(bson::Bson::Int64(n)) => *n as f64,
        Some(bson::Bson::Int32(n)) => f64::from(*n),
        _ => 0.0,
    };
    let buckets = stats
        .get_document("timeseries")
        .map_or(0.0, |t| number(t.get("bucketCount")));
    let stored = number(stats.get("storageSize"));
    let plain: usize = given
        .iter()
        .filter_map(|document| bson::serialize_to_vec(document).ok())
        // An ordinary collection adds an `_id` of 17 bytes to each.
        .map(|bytes| bytes.len() + 17)
        .sum();
    let count = measurements.count(doc! {})? as f64;
    writeln!(
        out,
        "\n{count} measurements in {buckets} buckets, one for each series and year: \
         {:.1} bytes each on disk, {:.1} as plain BSON.\n\
         (Once-a-year measurements are the worst case for buckets; ten seconds apart they take 7 bytes.)",
        stored / count,
        plain as f64 / count,
    )?;
    Ok(())
}

/// One line of a chart.
struct Row {
    label: String,
    value: f64,
}

fn rows(
    measurements: &Collection<'_, Document>,
    pipeline: Vec<Document>,
    label: impl Fn(&bson::Bson) -> String,
) -> DatabaseResult<Vec<Row>> {
    let mut rows = Vec::new();
    for document in measurements.aggregate::<Document>(pipeline)? {
        let document = document?;
        let value = document.get_f64("mean").unwrap_or(f64::NAN);
        rows.push(Row {
            label: document.get("_id").map(&label).unwrap_or_default(),
            value,
        });
    }
    Ok(rows)
}

/// Draws bars. `from` is the value of an empty bar.
fn draw(
    out: &mut impl Write,
    title: &str,
    unit: &str,
    from: f64,
    rows: &[Row],
) -> std::io::Result<()> {
    writeln!(out, "\n{title}\n")?;
    let most = rows.iter().map(|row| row.value).fold(from, f64::max);
    for row in rows {
        let share = if most > from {
            (row.value - from) / (most - from)
        } else {
            0.0
        };
        let bar = "█".repeat((share * BAR_WIDTH).round().max(0.0) as usize);
        writeln!(out, "  {:>9}  {:>8.2} {unit}  {bar}", row.label, row.value)?;
    }
    Ok(())
}

fn year(value: &bson::Bson) -> String {
    let text = value
        .as_datetime()
        .and_then(|time| time.try_to_rfc3339_string().ok());
    text.and_then(|text| text.split('-').next().map(str::to_owned))
        .unwrap_or_default()
}

fn nile_by_decade(
    measurements: &Collection<'_, Document>,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let decade = doc! { "$dateTrunc": { "date": "$time", "unit": "year", "binSize": 10 } };
    let pipeline = vec![
        doc! { "$match": { "series": "nile" } },
        doc! { "$group": { "_id": decade, "mean": { "$avg": "$value" } } },
        doc! { "$sort": { "_id": 1 } },
    ];
    let rows = rows(measurements, pipeline, |id| format!("{}s", year(id)))?;
    let title = "The flow of the Nile at Aswan, mean of each decade. It fell for good around 1898.";
    Ok(draw(out, title, "10^8 m3", 0.0, &rows)?)
}

fn co2_by_year(
    measurements: &Collection<'_, Document>,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let bin = doc! { "$dateTrunc": { "date": "$time", "unit": "year", "binSize": 4 } };
    let pipeline = vec![
        doc! { "$match": { "series": "mauna loa" } },
        doc! { "$group": { "_id": bin, "mean": { "$avg": "$value" } } },
        doc! { "$sort": { "_id": 1 } },
    ];
    let rows = rows(measurements, pipeline, |id| format!("{}…", year(id)))?;
    Ok(draw(
        out,
        "CO2 in the air at Mauna Loa, mean of four years.",
        "ppm",
        300.0,
        &rows,
    )?)
}

fn co2_by_month(
    measurements: &Collection<'_, Document>,
    out: &mut impl Write,
) -> Result<(), Failure> {
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let span = doc! {
        "$gte": DateTime::from_millis(-157_766_400_000),
        "$lt": DateTime::from_millis(978_307_200_000),
    };
    let pipeline = vec![
        doc! { "$match": { "series": "mauna loa", "time": span } },
        doc! { "$group": { "_id": { "$month": "$time" }, "mean": { "$avg": "$value" } } },
        doc! { "$sort": { "_id": 1 } },
    ];
    let rows = rows(measurements, pipeline, |id| {
        let month = id
            .as_i32()
            .and_then(|month| usize::try_from(month - 1).ok());
        month
            .and_then(|at| MONTHS.get(at))
            .map_or_else(String::new, |name| (*name).to_owned())
    })?;
    let title = "The same by month, 1965 to 2000: forests take CO2 up in summer and give it back.";
    Ok(draw(out, title, "ppm", 338.0, &rows)?)
}

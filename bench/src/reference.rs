//! The expected answers, computed from the generated values with plain loops.

use std::collections::BTreeMap;

use nilometer_bson::{DocRef, ValueRef};

use crate::data::{DataSet, METRICS, START_MS};
use crate::queries::{Draw, QueryKind};
use crate::target::Outcome;

/// Threshold of high cpu usage.
const BUSY: u8 = 90;
const HOUR_MS: i64 = 3_600_000;
const MINUTE_MS: i64 = 60_000;
/// Rows of the query for the newest minutes.
const NEWEST: usize = 5;

/// Compares an answer with the reference. Returns its number of rows.
pub(crate) fn check<'a>(
    kind: QueryKind,
    draw: &Draw,
    data: &DataSet,
    documents: impl Iterator<Item = DocRef<'a>>,
) -> Outcome<usize> {
    match kind {
        QueryKind::MaxBy { unit_ms, .. } => same_maxima(&maxima(draw, data, unit_ms), documents),
        QueryKind::MeanByHourAndHost => same_means(draw, data, documents),
        QueryKind::HighCpu => same_rows(draw, data, documents),
        QueryKind::LastPointFirst => same_last(data, draw, documents, |d, at| field(d, at)),
        QueryKind::LastPointTop => same_last(data, draw, documents, |d, at| {
            d.get("last")
                .as_array()
                .map_or(ValueRef::Missing, |a| a.get(at))
        }),
        QueryKind::LastPointLast => same_last(data, draw, documents, |d, at| {
            d.get("doc")
                .as_document()
                .map_or(ValueRef::Missing, |d| field(d, at))
        }),
        QueryKind::NewestMinutes => {
            // Start near the end: iterating over all earlier ticks would evict the database from the processor's
            // caches. Less may be loaded than the parameters cover, and minutes may be empty.
            let last = data.ticks_between(START_MS, draw.end_ms).last();
            let last = last.unwrap_or_default();
            let minutes_ms = data.time_ms(last) - NEWEST as i64 * MINUTE_MS;
            let ticks_ms = data.time_ms(last.saturating_sub(NEWEST));
            let first_ms = minutes_ms.min(ticks_ms).div_euclid(MINUTE_MS) * MINUTE_MS;
            let last_minutes = Draw {
                start_ms: START_MS.max(first_ms),
                ..draw.clone()
            };
            let all = maxima(&last_minutes, data, MINUTE_MS);
            let newest: Vec<_> = all.into_iter().rev().take(NEWEST).collect();
            same_maxima(&newest, documents)
        }
    }
}

/// Returns a field: 0 is the time, the metrics follow.
fn field<'a>(document: DocRef<'a>, at: usize) -> ValueRef<'a> {
    match at {
        0 => document.get("time"),
        _ => document.get(METRICS[at - 1]),
    }
}

/// Start of a unit of time and the largest values in it.
type Maxima = (i64, Vec<u8>);

fn maxima(draw: &Draw, data: &DataSet, unit_ms: i64) -> Vec<Maxima> {
    let mut found: BTreeMap<i64, Vec<u8>> = BTreeMap::new();
    for tick in data.ticks_between(draw.start_ms, draw.end_ms) {
        let unit = data.time_ms(tick).div_euclid(unit_ms) * unit_ms;
        let largest = found.entry(unit).or_insert_with(|| vec![0; draw.metrics]);
        for host in chosen(draw, data) {
            for (largest, value) in largest.iter_mut().zip(data.row(tick, host)) {
                *largest = (*largest).max(*value);
            }
        }
    }
    found.into_iter().collect()
}

/// Returns the hosts of a draw.
fn chosen(draw: &Draw, data: &DataSet) -> Vec<usize> {
    if draw.hosts.is_empty() {
        (0..data.hosts.len()).collect()
    } else {
        draw.hosts.clone()
    }
}

fn same_maxima<'a>(
    expected: &[Maxima],
    documents: impl Iterator<Item = DocRef<'a>>,
) -> Outcome<usize> {
    let mut rows = expected.iter();
    let mut count = 0;
    for document in documents {
        let (unit, values) = rows.next().ok_or("more rows than expected")?;
        same_time("_id", document.get("_id"), *unit)?;
        for (name, value) in METRICS.iter().zip(values) {
            same_number(
                name,
                document.get(&format!("max_{name}")),
                f64::from(*value),
            )?;
        }
        count += 1;
    }
    complete(count, expected.len())
}

fn same_means<'a>(
    draw: &Draw,
    data: &DataSet,
    documents: impl Iterator<Item = DocRef<'a>>,
) -> Outcome<usize> {
    // Each hour has a row of sums for each host, and the ticks it was given.
    let width = draw.metrics;
    let mut hours: BTreeMap<i64, (Vec<u32>, u32)> = BTreeMap::new();
    for tick in data.ticks_between(draw.start_ms, draw.end_ms) {
        let hour = data.time_ms(tick).div_euclid(HOUR_MS) * HOUR_MS;
        let (sums, ticks) = hours
            .entry(hour)
            .or_insert_with(|| (vec![0; data.hosts.len() * width], 0));
        *ticks += 1;
        for (host, sums) in sums.chunks_exact_mut(width).enumerate() {
            for (sum, value) in sums.iter_mut().zip(data.row(tick, host)) {
                *sum += u32::from(*value);
            }
        }
    }
    let mut hosts: Vec<usize> = (0..data.hosts.len()).collect();
    hosts.sort_by_key(|host| &data.hosts[*host][0]);
    let expected = hours.len() * hosts.len();
    let mut rows = hours.iter().flat_map(|(hour, (sums, ticks))| {
        let row = move |host: &usize| (*hour, *host, &sums[host * width..][..width], *ticks);
        hosts.iter().map(row)
    });
    let mut count = 0;
    for document in documents {
        let (hour, host, sums, n) = rows.next().ok_or("more rows than expected")?;
        let host = data.hosts[host][0].as_str();
        let id = document
            .get("_id")
            .as_document()
            .ok_or("_id is no document")?;
        same_time("_id.hour", id.get("hour"), hour)?;
        if id.get("hostname").as_str() != Some(host) {
            return Err(format!(
                "_id.hostname is {:?}, expected {host}",
                id.get("hostname")
            ));
        }
        for (name, sum) in METRICS.iter().zip(sums) {
            // Sums of small integers are exact, so the quotient is the only rounding.
            let mean = f64::from(*sum) / f64::from(n);
            same_number(name, document.get(&format!("mean_{name}")), mean)?;
        }
        count += 1;
    }
    complete(count, expected)
}

fn same_rows<'a>(
    draw: &Draw,
    data: &DataSet,
    documents: impl Iterator<Item = DocRef<'a>>,
) -> Outcome<usize> {
    let mut expected: BTreeMap<(i64, &str), &[u8]> = BTreeMap::new();
    for tick in data.ticks_between(draw.start_ms, draw.end_ms) {
        for host in chosen(draw, data) {
            let row = data.row(tick, host);
            if row[0] > BUSY {
                expected.insert((data.time_ms(tick), &data.hosts[host][0]), row);
            }
        }
    }
    let wanted = expected.len();
    let mut count = 0;
    for document in documents {
        let tags = document
            .get("tags")
            .as_document()
            .ok_or("a row without tags")?;
        let host = tags
            .get("hostname")
            .as_str()
            .ok_or("a row without hostname")?;
        let ValueRef::DateTime(time) = document.get("time") else {
            return Err("a row without time".to_string());
        };
        // Removed, so that a duplicate row is detected.
        let row = expected
            .remove(&(time, host))
            .ok_or_else(|| format!("{host} at {time} is not wanted, or came twice"))?;
        for (name, value) in METRICS.iter().zip(row) {
            same_number(name, document.get(name), f64::from(*value))?;
        }
        count += 1;
    }
    complete(count, wanted)
}

fn same_last<'a>(
    data: &DataSet,
    draw: &Draw,
    documents: impl Iterator<Item = DocRef<'a>>,
    field: impl Fn(DocRef<'a>, usize) -> ValueRef<'a>,
) -> Outcome<usize> {
    let last = data.ticks - 1;
    let hosts = data.hosts.iter().enumerate();
    let mut expected: BTreeMap<&str, usize> = hosts.map(|(at, h)| (h[0].as_str(), at)).collect();
    let mut count = 0;
    for document in documents {
        let name = document.get("_id").as_str().ok_or("_id is no host")?;
        let host = expected
            .remove(name)
            .ok_or_else(|| format!("{name} is unknown, or came twice"))?;
        same_time("time", field(document, 0), data.time_ms(last))?;
        let row = METRICS.iter().zip(data.row(last, host));
        for (at, (name, value)) in row.enumerate().take(draw.metrics) {
            same_number(name, field(document, at + 1), f64::from(*value))?;
        }
        count += 1;
    }
    complete(count, data.hosts.len())
}

fn complete(count: usize, expected: usize) -> Outcome<usize> {
    if count == expected {
        Ok(count)
    } else {
        Err(format!("{count} rows, expected {expected}"))
    }
}

fn same_time(name: &str, got: ValueRef<'_>, expected_ms: i64) -> Outcome {
    match got {
        ValueRef::DateTime(ms) if ms == expected_ms => Ok(()),
        _ => Err(format!(
            "{name} is {got:?}, expected the time {expected_ms}"
        )),
    }
}

fn same_number(name: &str, got: ValueRef<'_>, expected: f64) -> Outcome {
    let number = match got {
        ValueRef::Double(v) => Some(v),
        other => other.as_exact_i64().map(|v| v as f64),
    };
    if number == Some(expected) {
        Ok(())
    } else {
        Err(format!("{name} is {got:?}, expected {expected}"))
    }
}

//! Random queries over random lines: each answer is that of a naive evaluation of the lines in memory.
//!
//! The evaluation knows no pipeline: for each series and window it gathers the values of a field, sorts them, and computes what the
//! function is defined to be.

use std::collections::BTreeMap;

use nilometer_bson::fuzz::Numbers;
use nilometer_storage::testing::effort;
use serde_json::{Value, json};

use crate::store::TestStore;

const HOSTS: [&str; 4] = ["a", "b", "c", ""];
const ROOMS: [&str; 3] = ["x", "y", ""];
const FUNCTIONS: [&str; 13] = [
    "count",
    "sum",
    "mean",
    "min",
    "max",
    "first",
    "last",
    "median",
    "spread",
    "stddev",
    "count_distinct",
    "percentile",
    "cumulative",
];

/// A point: time in ms, tags, and the fields `f`, `i` and `s`.
#[derive(Clone, Debug)]
struct Point {
    time: i64,
    host: &'static str,
    room: &'static str,
    f: Option<f64>,
    i: Option<i64>,
}

impl Point {
    fn number(&self, field: &str) -> Option<f64> {
        match field {
            "f" => self.f,
            _ => self.i.map(|value| value as f64),
        }
    }

    fn tag(&self, name: &str) -> &'static str {
        if name == "host" { self.host } else { self.room }
    }
}

fn pick<T: Copy>(numbers: &mut Numbers, of: &[T]) -> T {
    of[numbers.below(of.len() as u64) as usize]
}

/// Returns points with different times.
fn points(numbers: &mut Numbers) -> Vec<Point> {
    let count = 1 + numbers.below(300) as i64;
    let spread = 1 + numbers.below(5_000) as i64;
    let base = numbers.below(2) as i64 * 1_000_000_000 - 50_000;
    (0..count)
        .map(|at| Point {
            time: base + at * spread + numbers.below(spread as u64) as i64,
            host: pick(numbers, &HOSTS),
            room: pick(numbers, &ROOMS),
            f: (numbers.below(4) > 0).then(|| numbers.below(2_000) as f64 / 8.0 - 100.0),
            i: (numbers.below(3) > 0).then(|| numbers.below(50) as i64 - 10),
        })
        .filter(|point| point.f.is_some() || point.i.is_some())
        .collect()
}

fn lines(points: &[Point]) -> String {
    let mut out = String::from("m,host=a,room=x f=0.5,i=1i -9000000000000\n");
    for point in points {
        out.push('m');
        for (name, value) in [("host", point.host), ("room", point.room)] {
            if !value.is_empty() {
                out.push_str(&format!(",{name}={value}"));
            }
        }
        let f = point.f.map(|value| format!("f={value}"));
        let i = point.i.map(|value| format!("i={value}i"));
        let fields: Vec<String> = f.into_iter().chain(i).collect();
        out.push_str(&format!(" {} {}\n", fields.join(","), point.time));
    }
    out
}

/// Time and values.
type Row = (i64, Vec<Option<f64>>);

/// A column: a function of a field.
#[derive(Clone, Copy, Debug)]
struct Column {
    function: &'static str,
    field: &'static str,
}

impl Column {
    fn text(self) -> String {
        let field = self.field;
        match self.function {
            "count_distinct" => format!("count(distinct({field}))"),
            "percentile" => format!("percentile({field}, 30)"),
            "cumulative" => format!("cumulative_sum(count({field}))"),
            function => format!("{function}({field})"),
        }
    }
}

#[derive(Debug)]
struct Query {
    columns: Vec<Column>,
    from: i64,
    to: i64,
    host: Option<(&'static str, &'static str)>,
    above: Option<i64>,
    /// Length and shift of windows in ms.
    windows: Option<(i64, i64)>,
    tags: Vec<&'static str>,
    fill: &'static str,
    descending: bool,
    limit: usize,
    offset: usize,
}

impl Query {
    fn random(numbers: &mut Numbers, points: &[Point]) -> Self {
        let first = points.first().map_or(0, |point| point.time);
        let last = points.last().map_or(0, |point| point.time);
        let span = (last - first).max(10);
        let at = |numbers: &mut Numbers| first + numbers.below(span as u64 * 2) as i64 - span / 2;
        let (a, b) = (at(numbers), at(numbers));
        let length = pick(
            numbers,
            &[1_000, 7_000, 10_000, 60_000, 90_500, 3_600_000, 604_800_000],
        );
        let length = length.max(span / 400);
        let windows = (numbers.below(4) > 0).then(|| {
            let shift = if numbers.below(3) == 0 {
                numbers.below(5_000) as i64
            } else {
                0
            };
            (length, shift)
        });
        let most = if windows.is_some() {
            FUNCTIONS.len()
        } else {
            FUNCTIONS.len() - 1
        };
        let count = 1 + numbers.below(3);
        let columns = (0..count).map(|_| Column {
            function: pick(numbers, &FUNCTIONS[..most]),
            field: pick(numbers, &["f", "i"]),
        });
        let columns: Vec<Column> = columns.collect();
        Self {
            columns,
            from: a.min(b),
            to: a.max(b),
            host: (numbers.below(3) == 0).then(|| {
                (
                    pick(numbers, &["=", "!=", "=~", "!~"]),
                    pick(numbers, &HOSTS),
                )
            }),
            above: (numbers.below(4) == 0).then(|| numbers.below(60) as i64 - 20),
            windows,
            tags: pick(numbers, &[&[][..], &["host"], &["room"], &["host", "room"]]).to_vec(),
            fill: pick(numbers, &["null", "none", "previous", "linear", "7"]),
            descending: numbers.below(3) == 0,
            limit: numbers.below(3) as usize * 4,
            offset: numbers.below(3) as usize,
        }
    }

    fn text(&self) -> String {
        let columns: Vec<String> = self.columns.iter().map(|one| one.text()).collect();
        let mut text = format!(
            "SELECT {} FROM m WHERE time >= {}ms AND time <= {}ms",
            columns.join(", "),
            self.from,
            self.to
        );
        if let Some((operator, host)) = self.host {
            match operator {
                "=~" | "!~" => text.push_str(&format!(" AND host {operator} /^{host}$/")),
                _ => text.push_str(&format!(" AND host {operator} '{host}'")),
            }
        }
        if let Some(above) = self.above {
            text.push_str(&format!(" AND i > {above}"));
        }
        let mut groups: Vec<String> = Vec::new();
        if let Some((length, shift)) = self.windows {
            groups.push(format!("time({length}ms, {shift}ms)"));
        }
        groups.extend(self.tags.iter().map(|&tag| tag.to_owned()));
        if !groups.is_empty() {
            text.push_str(&format!(" GROUP BY {}", groups.join(", ")));
            if self.windows.is_some() {
                text.push_str(&format!(" fill({})", self.fill));
            }
        }
        if self.descending {
            text.push_str(" ORDER BY time DESC");
        }
        if self.limit > 0 {
            text.push_str(&format!(" LIMIT {}", self.limit));
        }
        if self.offset > 0 {
            text.push_str(&format!(" OFFSET {}", self.offset));
        }
        text
    }

    fn selects(&self, point: &Point) -> bool {
        let host = self.host.is_none_or(|(operator, host)| match operator {
            "=" | "=~" => point.host == host,
            _ => point.host != host,
        });
        let above = self
            .above
            .is_none_or(|above| point.i.is_some_and(|i| i > above));
        (self.from..=self.to).contains(&point.time) && host && above
    }

    fn window(&self, time: i64) -> i64 {
        match self.windows {
            Some((length, shift)) => time - (time - shift).rem_euclid(length),
            None => self.from,
        }
    }

    /// Returns tags and rows of each series, by definition.
    fn evaluate(&self, points: &[Point]) -> Vec<(Vec<&'static str>, Vec<Row>)> {
        let mut series: BTreeMap<Vec<&'static str>, Vec<&Point>> = BTreeMap::new();
        for point in points.iter().filter(|point| self.selects(point)) {
            let key = self.tags.iter().map(|tag| point.tag(tag)).collect();
            series.entry(key).or_default().push(point);
        }
        let mut out = Vec::new();
        for (key, points) in series {
            let has_value = |point: &&Point| {
                self.columns
                    .iter()
                    .any(|one| point.number(one.field).is_some())
            };
            if !points.iter().any(has_value) {
                continue;
            }
            let starts: Vec<i64> = match self.windows {
                None => vec![self.from],
                Some((length, _)) => {
                    let (first, last) = (self.window(self.from), self.window(self.to));
                    (0..=(last - first) / length)
                        .map(|n| first + n * length)
                        .collect()
                }
            };
            let columns: Vec<Vec<Option<f64>>> = self
                .columns
                .iter()
                .map(|one| self.column(*one, &starts, &points))
                .collect();
            let fills = self.windows.is_some()
                && self.fill != "none"
                && self.columns.iter().any(|one| one.function != "cumulative");
            let mut rows: Vec<Row> = starts
                .iter()
                .enumerate()
                .map(|(at, start)| (*start, columns.iter().map(|column| column[at]).collect()))
                .filter(|(start, row): &Row| {
                    fills
                        || row.iter().any(Option::is_some)
                        || self.has_lone_deviation(*start, &points)
                })
                .collect();
            let one = self.columns[0];
            let is_lone = self
                .columns
                .iter()
                .all(|column| column.text() == one.text());
            if is_lone
                && self.windows.is_none()
                && let Some(time) = selected_time(one, &points)
            {
                // A selector alone keeps the time of its point.
                rows.iter_mut().for_each(|row| row.0 = time);
            }
            if self.descending {
                rows.reverse();
            }
            let limit = if self.limit == 0 {
                usize::MAX
            } else {
                self.limit
            };
            let rows: Vec<_> = rows.into_iter().skip(self.offset).take(limit).collect();
            if !rows.is_empty() {
                out.push((key, rows));
            }
        }
        out
    }

    /// True if a window has one value of which a deviation is asked: it is null, and makes a row.
    fn has_lone_deviation(&self, start: i64, points: &[&Point]) -> bool {
        self.columns.iter().any(|column| {
            let of_window = points.iter().filter(|point| {
                let is_within = self.windows.is_none() || self.window(point.time) == start;
                is_within && point.number(column.field).is_some()
            });
            column.function == "stddev" && of_window.count() == 1
        })
    }

    fn column(&self, column: Column, starts: &[i64], points: &[&Point]) -> Vec<Option<f64>> {
        let mut values: Vec<Option<f64>> = starts
            .iter()
            .map(|start| {
                let mut of_window: Vec<(i64, f64)> = points
                    .iter()
                    .filter(|point| self.windows.is_none() || self.window(point.time) == *start)
                    .filter_map(|point| Some((point.time, point.number(column.field)?)))
                    .collect();
                of_window.sort_by_key(|(time, _)| *time);
                value(
                    column.function,
                    &of_window.iter().map(|(_, v)| *v).collect::<Vec<_>>(),
                )
            })
            .collect();
        let is_count = column.function.starts_with("count") || column.function == "cumulative";
        if self.windows.is_some() {
            self.fill(
                &mut values,
                is_count,
                column.field == "i" && !matches!(column.function, "mean" | "median" | "stddev"),
            );
        }
        if column.function == "cumulative" {
            let mut sum = 0.0;
            for value in values.iter_mut().flatten() {
                sum += *value;
                *value = sum;
            }
        }
        values
    }

    fn fill(&self, values: &mut [Option<f64>], is_count: bool, is_integer: bool) {
        match self.fill {
            "none" => {}
            "null" if is_count => values.iter_mut().for_each(|v| *v = v.or(Some(0.0))),
            "null" => {}
            "previous" => {
                let mut last = None;
                for value in values {
                    *value = value.or(last);
                    last = *value;
                }
            }
            "linear" => {
                let known: Vec<usize> = (0..values.len())
                    .filter(|at| values[*at].is_some())
                    .collect();
                for pair in known.windows(2) {
                    let (a, b) = (pair[0], pair[1]);
                    let (from, to) = (values[a].unwrap(), values[b].unwrap());
                    for (at, slot) in values.iter_mut().enumerate().take(b).skip(a + 1) {
                        let value = from + (to - from) * (at - a) as f64 / (b - a) as f64;
                        let whole = is_integer || is_count;
                        // A value just below a whole one may be cut or not.
                        let near = (value.round() - value).abs() < 1e-9;
                        *slot = Some(if whole && !near { value.trunc() } else { value });
                    }
                }
            }
            number => {
                let number = number.parse().ok();
                values.iter_mut().for_each(|v| *v = v.or(number));
            }
        }
    }
}

/// Returns the time of the point that a selector selects; of equal values the first.
fn selected_time(column: Column, points: &[&Point]) -> Option<i64> {
    let values = points
        .iter()
        .filter_map(|point| Some((point.time, point.number(column.field)?)));
    let by_value = |a: &(i64, f64), b: &(i64, f64)| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0));
    let selected = match column.function {
        "first" => values.min_by_key(|(time, _)| *time),
        "last" => values.max_by_key(|(time, _)| *time),
        "min" => values.min_by(by_value),
        "max" => values.max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0))),
        _ => None,
    };
    selected.map(|(time, _)| time)
}

/// Computes a function of values in order of time, by definition.
fn value(function: &str, values: &[f64]) -> Option<f64> {
    let count = values.len() as f64;
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (least, most) = (*sorted.first()?, *sorted.last()?);
    let mean = values.iter().sum::<f64>() / count;
    Some(match function {
        "count" | "cumulative" => count,
        "sum" => values.iter().sum(),
        "mean" => mean,
        "min" => least,
        "max" => most,
        "first" => values[0],
        "last" => values[values.len() - 1],
        "spread" => most - least,
        "median" => (sorted[(sorted.len() - 1) / 2] + sorted[sorted.len() / 2]) / 2.0,
        "percentile" => sorted[((count * 0.3).ceil() as usize).max(1) - 1],
        "stddev" if values.len() < 2 => return None,
        "stddev" => {
            let squares: f64 = values.iter().map(|v| (v - mean) * (v - mean)).sum();
            (squares / (count - 1.0)).sqrt()
        }
        _ => {
            sorted.dedup();
            sorted.len() as f64
        }
    })
}

fn is_near(found: &Value, expected: Option<f64>) -> bool {
    match (found.as_f64(), expected) {
        (Some(found), Some(expected)) => {
            // A linear fill of integers may be cut at either side of a whole number.
            let whole = found.fract() == 0.0
                && (expected - found).abs() < 1.0 + 1e-9
                && expected.fract().abs() < 1e-8;
            (found - expected).abs() <= 1e-6 * (1.0 + expected.abs())
                || whole && (expected - found).abs() <= 1.0 && expected.round() == found + 1.0
        }
        (None, None) => found.is_null(),
        _ => false,
    }
}

fn check(store: &mut TestStore, query: &Query, points: &[Point], seed: u64) {
    let text = query.text();
    let found = store.series(&text);
    let expected = query.evaluate(points);
    let context = || format!("seed {seed}: {text}\nfound {found}\nexpected {expected:?}");
    let none = Vec::new();
    let all = found.as_array().unwrap_or(&none);
    assert_eq!(all.len(), expected.len(), "{}", context());
    for (found, (key, rows)) in all.iter().zip(&expected) {
        for (tag, value) in query.tags.iter().zip(key) {
            assert_eq!(found["tags"][tag], json!(value), "{}", context());
        }
        let found = found["values"].as_array().expect("rows");
        assert_eq!(found.len(), rows.len(), "{}", context());
        for (found, (time, values)) in found.iter().zip(rows) {
            assert_eq!(found[0], json!(time), "{}", context());
            for (at, expected) in values.iter().enumerate() {
                assert!(
                    is_near(&found[at + 1], *expected),
                    "{} {at} in {}",
                    time,
                    context()
                );
            }
        }
    }
}

#[test]
fn random_queries_give_what_naive_evaluation_gives() {
    for seed in 0..effort(12, 200, 200) {
        let mut numbers = Numbers::new(seed);
        let points = points(&mut numbers);
        let mut store = TestStore::new();
        store.write(&lines(&points));
        for _ in 0..25 {
            let query = Query::random(&mut numbers, &points);
            check(&mut store, &query, &points, seed);
        }
    }
}

#[test]
fn random_values_as_they_are_and_functions_of_them() {
    for seed in 0..20 {
        let mut numbers = Numbers::new(seed);
        let mut points = points(&mut numbers);
        points.retain(|point| point.f.is_some());
        let mut store = TestStore::new();
        store.write(&lines(&points));
        for (function, descending) in [
            ("f", false),
            ("f", true),
            ("difference(f)", false),
            ("moving_average(f, 3)", true),
            ("cumulative_sum(f)", false),
        ] {
            let order = if descending {
                " ORDER BY time DESC"
            } else {
                ""
            };
            let text = format!(
                "SELECT {function} FROM m WHERE time > -9000000000000ms GROUP BY host{order}"
            );
            let found = store.series(&text);
            let mut expected = Vec::new();
            let mut hosts = HOSTS;
            hosts.sort_unstable();
            for host in hosts {
                let of_host: Vec<(i64, f64)> = points
                    .iter()
                    .filter(|p| p.host == host)
                    .map(|p| (p.time, p.f.unwrap()))
                    .collect();
                let mut rows: Vec<(i64, f64)> = (0..of_host.len())
                    .filter_map(|at| {
                        let value = match function {
                            "f" => of_host[at].1,
                            "difference(f)" => of_host[at].1 - of_host[at.checked_sub(1)?].1,
                            "cumulative_sum(f)" => of_host[..=at].iter().map(|(_, v)| v).sum(),
                            _ => {
                                of_host[at.checked_sub(2)?..=at]
                                    .iter()
                                    .map(|(_, v)| v)
                                    .sum::<f64>()
                                    / 3.0
                            }
                        };
                        Some((of_host[at].0, value))
                    })
                    .collect();
                if descending {
                    rows.reverse();
                }
                if !rows.is_empty() {
                    expected.push((host, rows));
                }
            }
            let none = Vec::new();
            let all = found.as_array().unwrap_or(&none);
            assert_eq!(all.len(), expected.len(), "seed {seed}: {text}");
            for (found, (host, rows)) in all.iter().zip(&expected) {
                assert_eq!(found["tags"]["host"], json!(host), "seed {seed}: {text}");
                let found = found["values"].as_array().expect("rows");
                assert_eq!(found.len(), rows.len(), "seed {seed}: {text} {host}");
                for (found, (time, value)) in found.iter().zip(rows) {
                    assert_eq!(found[0], json!(time), "seed {seed}: {text}");
                    assert!(
                        is_near(&found[1], Some(*value)),
                        "seed {seed}: {text} {time}: {found} {value}"
                    );
                }
            }
        }
    }
}

#[test]
fn windows_of_a_zone_are_those_of_its_calendar() {
    let store = &mut TestStore::new();
    // Every three hours over both changes of a year in Berlin: 2024-03-31 and 2024-10-27.
    let start = 1_711_500_000_000_i64 / 10_800_000 * 10_800_000;
    let times: Vec<i64> = (0..2_000).map(|n| start + n * 10_800_000).collect();
    let lines: String = times
        .iter()
        .map(|time| format!("m,host=a v=1 {time}\n"))
        .collect();
    store.write(&lines);
    let zone = jiff::tz::TimeZone::get("Europe/Berlin").expect("a zone");
    for (interval, hours) in [("1d", 24), ("6h", 6), ("1h", 1), ("12h", 12)] {
        let mut expected: BTreeMap<i64, i64> = BTreeMap::new();
        for time in &times {
            let local = jiff::Timestamp::from_millisecond(*time)
                .expect("a time")
                .to_zoned(zone.clone());
            let civil = local.datetime();
            let hour = civil.hour() / hours * hours;
            let begin = civil
                .date()
                .at(hour, 0, 0, 0)
                .to_zoned(zone.clone())
                .expect("a time");
            let begin = begin.timestamp().as_millisecond();
            *expected.entry(begin).or_insert(0) += 1;
        }
        let text = format!(
            "SELECT count(v), last(v) FROM m WHERE time >= {}ms AND time <= {}ms GROUP BY time({interval}) fill(none) tz('Europe/Berlin')",
            times[0],
            times[times.len() - 1]
        );
        let found = store.series(&text);
        let found: Vec<(i64, i64)> = found[0]["values"]
            .as_array()
            .expect("rows")
            .iter()
            .map(|row| {
                (
                    row[0].as_i64().expect("a time"),
                    row[1].as_i64().expect("a count"),
                )
            })
            .collect();
        // Only the repeated hour may begin twice.
        let expected: Vec<(i64, i64)> = expected.into_iter().collect();
        assert_eq!(found.len(), expected.len(), "{interval}");
        assert_eq!(found, expected, "{interval}");
    }
}

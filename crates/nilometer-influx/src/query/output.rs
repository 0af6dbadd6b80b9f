//! Answers as InfluxDB's JSON, at once or in chunks.
//!
//! ```text
//! {"results":[{"statement_id":0,"series":[{"name":"cpu","tags":{"host":"a"},"columns":["time","mean"],"values":[[0,1.5]]}]}]}
//! ```
//!
//! In chunks each line is such an object with rows of one series, and `"partial":true` if rows, or series, follow. The text is
//! given to a function in parts of bounded size.

use jiff::tz::TimeZone;

use super::cell::{Cell, write_json_text};
use super::times::{NS_PER_MS, format_time};
use crate::line_protocol::Precision;

/// Bytes of buffered text after which it is written to the client.
const PART_BYTES: usize = 64 * 1024;

/// Rows of a chunk, unless the request names another number.
pub const CHUNK_ROWS: usize = 10_000;

/// How an answer is written.
#[derive(Clone, Copy, Debug, Default)]
pub struct OutputOptions {
    /// The unit of times; RFC 3339 if there is none.
    pub epoch: Option<Precision>,
    /// Rows of a chunk, if the answer comes in chunks.
    pub chunk_rows: Option<usize>,
}

/// A series of an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SeriesHead {
    /// The measurement; empty if there is none.
    pub name: String,
    /// The tags by which it was grouped.
    pub tags: Vec<(String, String)>,
    /// The columns.
    pub columns: Vec<String>,
}

/// Takes the rows of a statement, series by series.
pub(super) trait Rows {
    /// Begins a series.
    fn begin_series(&mut self, head: SeriesHead) -> Result<(), String>;

    /// Takes a row of the series: its time, and the values of the other columns.
    fn row(&mut self, cells: &[Cell]) -> Result<(), String>;
}

impl Rows for Output<'_> {
    fn begin_series(&mut self, head: SeriesHead) -> Result<(), String> {
        Output::begin_series(self, head)
    }

    fn row(&mut self, cells: &[Cell]) -> Result<(), String> {
        Output::row(self, cells)
    }
}

/// Takes the results of statements and writes them.
pub struct Output<'w> {
    write: &'w mut dyn FnMut(&[u8]) -> Result<(), String>,
    options: OutputOptions,
    text: String,
    /// Results that were begun.
    results: usize,
    zone: Option<TimeZone>,
    series: Option<OpenSeries>,
    /// Series of the statement that were written.
    series_written: usize,
    /// Why a part could not be written. Nothing is written after it, so that no end follows a gap.
    failure: Option<String>,
}

/// The series that is written.
struct OpenSeries {
    head: SeriesHead,
    /// Rows in the object that is written.
    rows: usize,
}

impl<'w> Output<'w> {
    /// Begins an answer.
    pub fn new(
        options: OutputOptions,
        write: &'w mut dyn FnMut(&[u8]) -> Result<(), String>,
    ) -> Self {
        Self {
            write,
            options,
            text: String::new(),
            results: 0,
            zone: None,
            series: None,
            series_written: 0,
            failure: None,
        }
    }

    fn is_chunked(&self) -> bool {
        self.options.chunk_rows.is_some()
    }

    /// Begins the result of a statement. Times are written in the zone.
    pub fn begin_statement(&mut self, zone: Option<TimeZone>) -> Result<(), String> {
        self.zone = zone;
        self.series_written = 0;
        if !self.is_chunked() {
            self.text.push_str(match self.results {
                0 => "{\"results\":[",
                _ => ",",
            });
            self.begin_result();
        }
        self.results += 1;
        self.flush_part()
    }

    fn begin_result(&mut self) {
        let number = match self.is_chunked() {
            true => self.results - 1,
            false => self.results,
        };
        self.text.push_str(&format!("{{\"statement_id\":{number}"));
    }

    /// Begins a series.
    pub fn begin_series(&mut self, head: SeriesHead) -> Result<(), String> {
        self.end_series(true)?;
        match self.is_chunked() {
            true => {
                self.text.push_str("{\"results\":[");
                self.begin_result();
                self.text.push_str(",\"series\":[");
            }
            false => self.text.push_str(match self.series_written {
                0 => ",\"series\":[",
                _ => ",",
            }),
        }
        self.series_written += 1;
        self.write_head(&head);
        self.series = Some(OpenSeries { head, rows: 0 });
        Ok(())
    }

    fn write_head(&mut self, head: &SeriesHead) {
        let out = &mut self.text;
        out.push('{');
        if !head.name.is_empty() {
            out.push_str("\"name\":");
            write_json_text(out, &head.name);
            out.push(',');
        }
        if !head.tags.is_empty() {
            out.push_str("\"tags\":{");
            for (number, (name, value)) in head.tags.iter().enumerate() {
                if number > 0 {
                    out.push(',');
                }
                write_json_text(out, name);
                out.push(':');
                write_json_text(out, value);
            }
            out.push_str("},");
        }
        out.push_str("\"columns\":[");
        for (number, name) in head.columns.iter().enumerate() {
            if number > 0 {
                out.push(',');
            }
            write_json_text(out, name);
        }
        out.push_str("],\"values\":[");
    }

    /// Writes a row of the series.
    pub fn row(&mut self, cells: &[Cell]) -> Result<(), String> {
        let Some(mut series) = self.series.take() else {
            return Err("a row outside of a series".to_owned());
        };
        if self
            .options
            .chunk_rows
            .is_some_and(|most| series.rows >= most)
        {
            // The rows that follow are those of a new object.
            self.text
                .push_str("],\"partial\":true}],\"partial\":true}]}\n");
            self.text.push_str("{\"results\":[");
            self.begin_result();
            self.text.push_str(",\"series\":[");
            self.write_head(&series.head);
            series.rows = 0;
        }
        self.text
            .push_str(if series.rows == 0 { "[" } else { ",[" });
        series.rows += 1;
        self.series = Some(series);
        for (number, cell) in cells.iter().enumerate() {
            if number > 0 {
                self.text.push(',');
            }
            match cell {
                Cell::Time(ns) => self.write_time(*ns),
                other => other.write_json(&mut self.text),
            }
        }
        self.text.push(']');
        self.flush_part()
    }

    fn write_time(&mut self, ns: i64) {
        let Some(unit) = self.options.epoch else {
            let text = format_time(ns, self.zone.as_ref());
            write_json_text(&mut self.text, &text);
            return;
        };
        let value = match unit {
            Precision::Nanosecond => ns,
            Precision::Microsecond => ns.div_euclid(1_000),
            unit => unit.of_ms(ns.div_euclid(NS_PER_MS)),
        };
        self.text.push_str(&value.to_string());
    }

    fn end_series(&mut self, more: bool) -> Result<(), String> {
        if self.series.take().is_none() {
            return Ok(());
        }
        self.text.push_str("]}");
        if self.is_chunked() {
            self.text.push_str(match more {
                true => "],\"partial\":true}]}\n",
                false => "]}]}\n",
            });
        }
        self.flush_part()
    }

    /// Ends the result of a statement, with an error if it failed.
    pub fn end_statement(&mut self, error: Option<&str>) -> Result<(), String> {
        let had_series = self.series_written > 0;
        self.end_series(error.is_some())?;
        if self.is_chunked() {
            if had_series && error.is_none() {
                return Ok(());
            }
            self.text.push_str("{\"results\":[");
            self.begin_result();
        } else if had_series {
            self.text.push(']');
        }
        if let Some(error) = error {
            self.text.push_str(",\"error\":");
            write_json_text(&mut self.text, error);
        }
        self.text.push('}');
        if self.is_chunked() {
            self.text.push_str("]}\n");
        }
        self.flush_part()
    }

    /// Ends the answer. Fails if a part of it could not be written.
    pub fn finish(mut self) -> Result<(), String> {
        if self.results == 0 {
            self.text.push_str("{\"results\":[");
        }
        if self.results == 0 || !self.is_chunked() {
            self.text.push_str("]}\n");
        }
        self.write_part()
    }

    fn flush_part(&mut self) -> Result<(), String> {
        if self.text.len() < PART_BYTES {
            return Ok(());
        }
        self.write_part()
    }

    fn write_part(&mut self) -> Result<(), String> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        let written = (self.write)(self.text.as_bytes());
        self.text.clear();
        self.failure = written.clone().err();
        written
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(options: OutputOptions) -> String {
        let mut bytes = Vec::new();
        let mut write = |part: &[u8]| {
            bytes.extend_from_slice(part);
            Ok(())
        };
        let mut output = Output::new(options, &mut write);
        output.begin_statement(None).unwrap();
        for (host, rows) in [("a", 3), ("b\"", 1)] {
            let head = SeriesHead {
                name: "m".into(),
                tags: vec![("host".into(), host.into())],
                columns: vec!["time".into(), "v".into()],
            };
            output.begin_series(head).unwrap();
            for row in 0..rows {
                output
                    .row(&[Cell::Time(row * 1_500_000_000), Cell::Integer(row)])
                    .unwrap();
            }
        }
        output.end_statement(None).unwrap();
        output.begin_statement(None).unwrap();
        output.end_statement(None).unwrap();
        output.begin_statement(None).unwrap();
        output.end_statement(Some("no")).unwrap();
        output.finish().unwrap();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn at_once() {
        assert_eq!(
            answer(OutputOptions::default()),
            concat!(
                r#"{"results":[{"statement_id":0,"series":["#,
                r#"{"name":"m","tags":{"host":"a"},"columns":["time","v"],"values":[["1970-01-01T00:00:00Z",0],"#,
                r#"["1970-01-01T00:00:01.5Z",1],["1970-01-01T00:00:03Z",2]]},"#,
                r#"{"name":"m","tags":{"host":"b\""},"columns":["time","v"],"values":[["1970-01-01T00:00:00Z",0]]}]},"#,
                r#"{"statement_id":1},{"statement_id":2,"error":"no"}]}"#,
                "\n"
            )
        );
    }

    #[test]
    fn nothing_follows_a_part_that_could_not_be_written() {
        let mut calls = 0;
        let mut write = |_: &[u8]| {
            calls += 1;
            match calls {
                2 => Err("gone".to_owned()),
                _ => Ok(()),
            }
        };
        let mut output = Output::new(OutputOptions::default(), &mut write);
        output.begin_statement(None).unwrap();
        let columns = vec!["v".to_owned()];
        output
            .begin_series(SeriesHead {
                columns,
                ..SeriesHead::default()
            })
            .unwrap();
        let long = [Cell::String("x".repeat(PART_BYTES))];
        output.row(&long).unwrap();
        assert_eq!(output.row(&long), Err("gone".to_owned()));
        // As the executor does it with a statement that failed.
        output.end_statement(Some("gone")).unwrap();
        assert_eq!(output.finish(), Err("gone".to_owned()));
        assert_eq!(calls, 2);
    }

    #[test]
    fn in_chunks() {
        let options = OutputOptions {
            epoch: Some(Precision::Millisecond),
            chunk_rows: Some(2),
        };
        assert_eq!(
            answer(options),
            concat!(
                r#"{"results":[{"statement_id":0,"series":[{"name":"m","tags":{"host":"a"},"columns":["time","v"],"values":[[0,0],[1500,1]],"partial":true}],"partial":true}]}"#,
                "\n",
                r#"{"results":[{"statement_id":0,"series":[{"name":"m","tags":{"host":"a"},"columns":["time","v"],"values":[[3000,2]]}],"partial":true}]}"#,
                "\n",
                r#"{"results":[{"statement_id":0,"series":[{"name":"m","tags":{"host":"b\""},"columns":["time","v"],"values":[[0,0]]}]}]}"#,
                "\n",
                r#"{"results":[{"statement_id":1}]}"#,
                "\n",
                r#"{"results":[{"statement_id":2,"error":"no"}]}"#,
                "\n"
            )
        );
    }
}

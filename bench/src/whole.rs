//! Reading everything back: `find` without a filter, all batches, each dropped before the next is read.

use std::time::{Duration, Instant};

use nilometer_bson::doc;

use crate::data::DataSet;
use crate::options::Options;
use crate::target::{Connection, Outcome, each_batch};

/// Measured runs, after one warm-up run.
const ROUNDS: usize = 5;

/// The results of reading everything.
#[derive(Clone, Debug)]
pub(crate) struct WholeRead {
    /// Documents of the last run.
    pub(crate) rows: usize,
    /// Bytes of its batches.
    pub(crate) bytes: usize,
    /// Time to the first batch, of each run.
    pub(crate) first: Vec<Duration>,
    /// Time to the last batch, of each run.
    pub(crate) all: Vec<Duration>,
    /// The first wrong answer.
    pub(crate) wrong: Option<String>,
}

/// Reads everything repeatedly.
pub(crate) fn read(
    connection: &mut dyn Connection,
    data: &DataSet,
    options: &Options,
) -> Outcome<WholeRead> {
    let mut whole = WholeRead {
        rows: 0,
        bytes: 0,
        first: Vec::new(),
        all: Vec::new(),
        wrong: None,
    };
    for round in 0..=ROUNDS {
        let command = doc! { "find": &options.collection, "$db": &options.database };
        let start = Instant::now();
        let mut first = None;
        (whole.rows, whole.bytes) = (0, 0);
        each_batch(connection, &command, options, |batch| {
            first.get_or_insert_with(|| start.elapsed());
            whole.rows += batch.documents().count();
            whole.bytes += batch.bytes();
        })?;
        if round > 0 {
            whole.first.extend(first);
            whole.all.push(start.elapsed());
        }
        if whole.rows != data.rows() {
            whole.wrong = Some(format!("{} of {} documents", whole.rows, data.rows()));
        }
    }
    Ok(whole)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use nilometer_bson::{Document, array};

    use super::*;

    /// Answers in two batches; the second can lack documents.
    struct TwoBatches {
        rows: i32,
    }

    impl Connection for TwoBatches {
        fn call(&mut self, command: &Document, _: Option<Arc<Vec<u8>>>) -> Outcome<Document> {
            let name = command.iter().next().map_or("", |e| e.name());
            Ok(match name {
                "find" => {
                    let rows = array![doc! { "a": 1 }];
                    doc! { "ok": 1, "cursor": doc! { "firstBatch": rows, "id": 7_i64 } }
                }
                _ => {
                    let rows: Vec<_> = (1..self.rows).map(|a| doc! { "a": a }.into()).collect();
                    let rows = nilometer_bson::Value::from(rows);
                    doc! { "ok": 1, "cursor": doc! { "nextBatch": rows, "id": 0_i64 } }
                }
            })
        }
    }

    #[test]
    fn all_batches_are_read_and_what_is_missing_is_told() {
        let options = Options {
            scale: 2,
            days: 0.001,
            ..Options::default()
        };
        let data = DataSet::generate(&options);
        let rows = i32::try_from(data.rows()).unwrap();
        let whole = read(&mut TwoBatches { rows }, &data, &options).unwrap();
        assert_eq!((whole.rows, whole.wrong), (data.rows(), None));
        assert_eq!((whole.first.len(), whole.all.len()), (ROUNDS, ROUNDS));
        let whole = read(&mut TwoBatches { rows: rows - 1 }, &data, &options).unwrap();
        assert!(whole.wrong.is_some_and(|wrong| wrong.contains(" of ")));
    }
}

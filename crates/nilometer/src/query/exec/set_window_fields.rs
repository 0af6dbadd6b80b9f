//! `$setWindowFields`: gathers its input, sorts it by partition and then as asked, and computes
//! partition by partition.

use std::collections::VecDeque;
use std::sync::Arc;

use nilometer_bson::order::compare_with;
use nilometer_bson::{Document, Value};

use super::memory::MemoryGauge;
use super::{BoxOperator, ExecContext, Operator, ROWS_PER_BATCH, next_filled};
use crate::error::Result;
use crate::eval::memory_bytes;
use crate::eval::sort_key::SortKey;
use crate::eval::window::SetWindowFields;
use crate::query::batch::Batch;

/// A gathered document with what it is sorted by.
struct Row {
    partition: Value,
    key: Option<SortKey>,
    document: Document,
}

/// Computes fields over windows.
pub struct WindowFields {
    input: Option<BoxOperator>,
    spec: Arc<SetWindowFields>,
    /// Sorted rows of the partitions to come.
    rows: VecDeque<Row>,
    /// Finished documents of the partition at work.
    done: VecDeque<Document>,
}

impl WindowFields {
    /// Computes `spec` over what `input` gives.
    pub fn new(input: BoxOperator, spec: Arc<SetWindowFields>) -> Self {
        Self {
            input: Some(input),
            spec,
            rows: VecDeque::new(),
            done: VecDeque::new(),
        }
    }

    fn gather(&self, mut input: BoxOperator, cx: &ExecContext<'_>) -> Result<VecDeque<Row>> {
        let mut memory = MemoryGauge::gather("$setWindowFields", cx);
        let mut rows = Vec::new();
        while let Some(batch) = next_filled(&mut input, cx)? {
            for document in batch.into_rows()? {
                let partition = self.spec.partition_key(&document, &cx.eval)?;
                let sort_by = self.spec.sort_by();
                let key = sort_by
                    .map(|by| by.extract(document.as_ref(), &cx.eval))
                    .transpose()?;
                let keys = memory_bytes(&partition) + key.as_ref().map_or(0, SortKey::memory_bytes);
                memory.add(keys + document.as_bytes().len() + size_of::<Row>())?;
                rows.push(Row {
                    partition,
                    key,
                    document,
                });
            }
        }
        rows.sort_by(|a, b| {
            let order = compare_with(a.partition.as_ref(), b.partition.as_ref(), cx.eval.collator);
            order.then_with(|| match (self.spec.sort_by(), &a.key, &b.key) {
                (Some(by), Some(a), Some(b)) => by.compare(a, b),
                _ => std::cmp::Ordering::Equal,
            })
        });
        Ok(rows.into())
    }

    /// Takes the next partition off the rows and computes it.
    fn next_partition(&mut self, cx: &ExecContext<'_>) -> Result<()> {
        let Some(first) = self.rows.pop_front() else {
            return Ok(());
        };
        let mut documents = vec![first.document];
        while let Some(row) = self.rows.front() {
            let same = compare_with(
                row.partition.as_ref(),
                first.partition.as_ref(),
                cx.eval.collator,
            );
            if same.is_ne() {
                break;
            }
            documents.extend(self.rows.pop_front().map(|row| row.document));
        }
        self.done = self.spec.evaluate_partition(&documents, &cx.eval)?.into();
        Ok(())
    }
}

impl Operator for WindowFields {
    fn next(&mut self, cx: &ExecContext<'_>) -> Result<Option<Batch>> {
        if let Some(input) = self.input.take() {
            self.rows = self.gather(input, cx)?;
        }
        if self.done.is_empty() {
            self.next_partition(cx)?;
        }
        let count = self.done.len().min(ROWS_PER_BATCH);
        let rows: Vec<Document> = self.done.drain(..count).collect();
        Ok((!rows.is_empty()).then_some(Batch::Rows(rows)))
    }

    fn is_exhausted(&self) -> bool {
        self.input.is_none() && self.rows.is_empty() && self.done.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use crate::query::exec::testing::run_stages;
    use nilometer_bson::{Document, Value, array, doc};

    fn run(spec: Document, documents: Vec<Document>) -> Vec<Document> {
        run_stages(array![doc! {"$setWindowFields": spec}], documents).unwrap()
    }

    #[test]
    fn a_running_sum_starts_anew_in_each_partition() {
        let documents = [(2, "b", 10), (1, "b", 1), (3, "a", 5), (1, "a", 7)];
        let documents = documents
            .map(|(t, p, v)| doc! {"t": t, "p": p, "v": v})
            .to_vec();
        let window = doc! {"documents": array!["unbounded", "current"]};
        let found = run(
            doc! {
                "partitionBy": "$p",
                "sortBy": doc! {"t": 1},
                "output": doc! {"sum": doc! {"$sum": "$v", "window": window}},
            },
            documents,
        );
        let shown: Vec<_> = found
            .iter()
            .map(|d| {
                let number = |name: &str| d.get(name).as_exact_i64().unwrap();
                (d.get("p").as_str().unwrap(), number("t"), number("sum"))
            })
            .collect();
        assert_eq!(
            shown,
            [("a", 1, 7), ("a", 3, 12), ("b", 1, 1), ("b", 2, 11)]
        );
    }

    #[test]
    fn neighbours_are_shifted_and_ranked() {
        let documents = (0..5).rev().map(|t| doc! {"t": t, "v": t * t}).collect();
        let shift = doc! {"$shift": doc! {"output": "$v", "by": 1, "default": -1}};
        let rank = doc! {"$documentNumber": doc! {}};
        let output = doc! {"next": shift, "n": rank};
        let found = run(doc! {"sortBy": doc! {"t": 1}, "output": output}, documents);
        let next: Vec<_> = found
            .iter()
            .map(|d| d.get("next").as_exact_i64().unwrap())
            .collect();
        assert_eq!(next, [1, 4, 9, 16, -1]);
        assert_eq!(found[4].get("n").as_exact_i64(), Some(5));
    }

    #[test]
    fn null_and_missing_partitions_are_one_and_arrays_none() {
        let documents = vec![doc! {"p": Value::Null}, doc! {}, doc! {"p": 1}];
        let output = doc! {"n": doc! {"$count": doc! {}}};
        let spec = doc! {"partitionBy": "$p", "output": output};
        let counts: Vec<_> = run(spec.clone(), documents)
            .iter()
            .map(|d| d.get("n").as_exact_i64().unwrap())
            .collect();
        assert_eq!(counts, [2, 2, 1]);
        let stage = array![doc! {"$setWindowFields": spec}];
        let error = run_stages(stage, vec![doc! {"p": array![1]}]).unwrap_err();
        assert_eq!(error.code.0, 14);
    }
}

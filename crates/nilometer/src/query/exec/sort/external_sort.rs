//! External sort: sorts any number of documents in bounded memory.
//!
//! ```text
//! add ──► entries in memory ── above the limit: sort, write out ──► runs on disk
//! next ◄── merge of the runs and the entries in memory
//! ```
//!
//! A merge holds one document and one buffer per run. They are counted, but refused only where documents are very
//! large: without them nothing could be returned.
//!
//! The sort is stable. Keys are not written out: they are computed again when a document is read back, so a key must be the
//! same each time. Where a query may not write to disk, the limit is error 292.
//!
//! Used by every stage that needs sorted input: `$sort`, `$setWindowFields`, `$bucketAuto`,
//! `$densify`, and, for its partial results, `$group`.

use std::cmp::Ordering;

use nilometer_bson::Document;

use super::spill::{BUFFER_BYTES, RUNS_MAX, RunWriter, SpilledRun};
use crate::error::Result;
use crate::query::exec::ExecContext;
use crate::query::exec::memory::MemoryGauge;

/// Bytes counted for an entry in addition to its key and document.
pub(crate) const ENTRY_OVERHEAD: usize = 64;

/// A sort order of documents.
pub(crate) trait RowOrder: Send {
    /// The sort key.
    type Key: Send;

    /// Returns the key of a document; must be the same on every call.
    fn key(&self, row: &Document, cx: &ExecContext<'_>) -> Result<Self::Key>;

    /// Compares two keys.
    fn compare(&self, a: &Self::Key, b: &Self::Key, cx: &ExecContext<'_>) -> Ordering;

    /// Returns the approximate memory size of a key.
    fn key_bytes(&self, key: &Self::Key) -> usize;
}

/// Collects documents in any order and sorts them.
pub(crate) struct Sorter<O: RowOrder> {
    order: O,
    memory: MemoryGauge,
    entries: Vec<(O::Key, Document)>,
    runs: Vec<SpilledRun>,
    /// Only so many of the first documents are wanted.
    limit: usize,
}

impl<O: RowOrder> Sorter<O> {
    /// Creates a sorter that holds no more than `memory` allows.
    pub(crate) fn new(order: O, memory: MemoryGauge) -> Self {
        Self {
            order,
            memory,
            entries: Vec::new(),
            runs: Vec::new(),
            limit: usize::MAX,
        }
    }

    /// Promises that no more than `limit` documents will be read: runs are cut there.
    pub(crate) fn with_limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    /// Adds a document.
    pub(crate) fn add(&mut self, row: Document, cx: &ExecContext<'_>) -> Result<()> {
        let key = self.order.key(&row, cx)?;
        let entry = (key, row);
        let bytes = heap_bytes(&self.order, &entry) + ENTRY_OVERHEAD;
        self.entries.push(entry);
        match self.memory.add(bytes) {
            Ok(()) => Ok(()),
            Err(_) if cx.settings.spill.is_some() => self.spill(cx),
            Err(exceeded) => Err(exceeded),
        }
    }

    /// Writes the entries in memory to disk, if there are any.
    pub(crate) fn flush(&mut self, cx: &ExecContext<'_>) -> Result<()> {
        if self.entries.is_empty() {
            return Ok(());
        }
        self.spill(cx)
    }

    /// Writes the entries in memory to disk.
    fn spill(&mut self, cx: &ExecContext<'_>) -> Result<()> {
        cx.operation.check_interrupt()?;
        let Some(folder) = cx.settings.spill.as_deref() else {
            return Err(self.memory.exceeded());
        };
        if self.runs.len() >= RUNS_MAX {
            let runs = std::mem::take(&mut self.runs);
            let mut reading = Reading {
                order: &self.order,
                memory: &mut self.memory,
                cx,
            };
            let mut merge = Merge::new(runs, Vec::new(), &mut reading)?;
            let mut writer = RunWriter::new(folder)?;
            let mut left = self.limit;
            while left > 0
                && let Some((_, row)) = merge.next(&mut reading)?
            {
                writer.push(&row)?;
                left -= 1;
            }
            self.runs.push(writer.finish()?);
        }
        self.sort(cx);
        let mut writer = RunWriter::new(folder)?;
        for (_, row) in self.entries.drain(..).take(self.limit) {
            writer.push(&row)?;
        }
        self.runs.push(writer.finish()?);
        self.memory.clear();
        Ok(())
    }

    fn sort(&mut self, cx: &ExecContext<'_>) {
        let order = &self.order;
        self.entries.sort_by(|a, b| order.compare(&a.0, &b.0, cx));
    }

    /// Returns an iterator over the documents in sort order.
    pub(crate) fn finish(mut self, cx: &ExecContext<'_>) -> Result<Sorted<O>> {
        self.sort(cx);
        let source = if self.runs.is_empty() {
            Source::Memory(self.entries.into_iter())
        } else {
            let mut reading = Reading {
                order: &self.order,
                memory: &mut self.memory,
                cx,
            };
            Source::Merge(Merge::new(self.runs, self.entries, &mut reading)?)
        };
        Ok(Sorted {
            order: self.order,
            source,
            memory: self.memory,
        })
    }
}

/// Iterator over the sorted documents.
pub(crate) struct Sorted<O: RowOrder> {
    order: O,
    source: Source<O>,
    /// Counts the remaining entries.
    memory: MemoryGauge,
}

enum Source<O: RowOrder> {
    Memory(std::vec::IntoIter<(O::Key, Document)>),
    Merge(Merge<O>),
}

impl<O: RowOrder> Sorted<O> {
    /// Returns the next document with its key.
    pub(crate) fn next(&mut self, cx: &ExecContext<'_>) -> Result<Option<(O::Key, Document)>> {
        match &mut self.source {
            Source::Memory(entries) => {
                let next = entries.next();
                match &next {
                    Some(entry) => self.memory.release(heap_bytes(&self.order, entry)),
                    None => self.memory.clear(),
                }
                Ok(next)
            }
            Source::Merge(merge) => merge.next(&mut Reading {
                order: &self.order,
                memory: &mut self.memory,
                cx,
            }),
        }
    }

    /// True if no documents remain.
    pub(crate) fn is_exhausted(&self) -> bool {
        match &self.source {
            Source::Memory(entries) => entries.len() == 0,
            Source::Merge(merge) => merge.runs.is_empty(),
        }
    }
}

enum RunSource<O: RowOrder> {
    File(SpilledRun),
    Memory(std::vec::IntoIter<(O::Key, Document)>),
}

/// A document with its key.
type KeyedRow<O> = (<O as RowOrder>::Key, Document);

/// Returns the heap bytes of an entry.
fn heap_bytes<O: RowOrder>(order: &O, (key, row): &KeyedRow<O>) -> usize {
    order.key_bytes(key) + row.as_bytes().len()
}

/// Context for reading runs.
struct Reading<'r, 'c, O> {
    order: &'r O,
    /// Counts entries read but not yet returned.
    memory: &'r mut MemoryGauge,
    cx: &'r ExecContext<'c>,
}

impl<O: RowOrder> RunSource<O> {
    /// Returns the next entry. An entry read from a file is counted here; one in memory is already counted.
    fn next(&mut self, with: &mut Reading<'_, '_, O>) -> Result<Option<KeyedRow<O>>> {
        match self {
            Self::Memory(entries) => Ok(entries.next()),
            Self::File(run) => match run.next()? {
                Some(row) => {
                    let entry = (with.order.key(&row, with.cx)?, row);
                    with.memory.hold(heap_bytes(with.order, &entry))?;
                    Ok(Some(entry))
                }
                None => {
                    with.memory.release(BUFFER_BYTES);
                    Ok(None)
                }
            },
        }
    }
}

/// A run that is merged.
struct MergedRun<O: RowOrder> {
    /// Its next document.
    next: KeyedRow<O>,
    source: RunSource<O>,
    /// Its place in the input.
    place: usize,
}

/// Merges sorted runs while reading them. Equal keys are returned in run order, which is input order.
struct Merge<O: RowOrder> {
    /// Ordered by their next documents, the least at the end; exhausted runs are removed.
    runs: Vec<MergedRun<O>>,
}

impl<O: RowOrder> Merge<O> {
    fn new(
        runs: Vec<SpilledRun>,
        rest: Vec<KeyedRow<O>>,
        with: &mut Reading<'_, '_, O>,
    ) -> Result<Self> {
        with.memory.hold(runs.len() * BUFFER_BYTES)?;
        let sources = runs.into_iter().map(RunSource::File);
        let sources = sources.chain([RunSource::Memory(rest.into_iter())]);
        let mut merge = Self { runs: Vec::new() };
        for (place, mut source) in sources.enumerate() {
            if let Some(next) = source.next(with)? {
                let run = MergedRun {
                    next,
                    source,
                    place,
                };
                merge.insert(run, with);
            }
        }
        Ok(merge)
    }

    /// Inserts a run in order: the number of comparisons grows with the logarithm of that of the runs.
    fn insert(&mut self, run: MergedRun<O>, with: &Reading<'_, '_, O>) {
        let at = self.runs.partition_point(|other| {
            let by_key = with.order.compare(&other.next.0, &run.next.0, with.cx);
            by_key.then(other.place.cmp(&run.place)).is_gt()
        });
        self.runs.insert(at, run);
    }

    fn next(&mut self, with: &mut Reading<'_, '_, O>) -> Result<Option<KeyedRow<O>>> {
        let Some(mut run) = self.runs.pop() else {
            return Ok(None);
        };
        let given = match run.source.next(with)? {
            Some(next) => {
                let given = std::mem::replace(&mut run.next, next);
                self.insert(run, with);
                given
            }
            None => run.next,
        };
        with.memory.release(heap_bytes(with.order, &given));
        Ok(Some(given))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::exec::ExecLimits;
    use crate::query::exec::testing::{operation, settings};
    use crate::query::planner::settings::PlanOptions;
    use nilometer_bson::doc;

    struct ByK;

    impl RowOrder for ByK {
        type Key = i64;

        fn key(&self, row: &Document, _: &ExecContext<'_>) -> Result<i64> {
            Ok(row.get("k").as_exact_i64().unwrap_or(0))
        }

        fn compare(&self, a: &i64, b: &i64, _: &ExecContext<'_>) -> Ordering {
            a.cmp(b)
        }

        fn key_bytes(&self, _: &i64) -> usize {
            8
        }
    }

    #[test]
    fn more_runs_than_files_are_merged_on_the_way() {
        let folder = tempfile::tempdir().unwrap();
        let mut settings = settings(PlanOptions::default(), ExecLimits::default());
        settings.spill = Some(folder.path().into());
        let operation = operation();
        let cx = ExecContext::new(&operation, &settings);
        // Each document is a run by itself.
        let mut sorter = Sorter::new(ByK, MemoryGauge::new("test", 1));
        let count = 2 * RUNS_MAX as i64 + 10;
        for i in 0..count {
            sorter.add(doc! {"k": i * 7919 % 50, "i": i}, &cx).unwrap();
        }
        let mut sorted = sorter.finish(&cx).unwrap();
        let mut found = Vec::new();
        while let Some((key, row)) = sorted.next(&cx).unwrap() {
            found.push((key, row.get("i").as_exact_i64().unwrap()));
        }
        assert!(sorted.is_exhausted());
        assert_eq!(found.len(), count as usize);
        assert!(found.is_sorted());
    }

    #[test]
    fn without_a_place_to_write_the_limit_is_an_error() {
        let settings = settings(PlanOptions::default(), ExecLimits::default());
        let operation = operation();
        let cx = ExecContext::new(&operation, &settings);
        let mut sorter = Sorter::new(ByK, MemoryGauge::new("test", 100));
        sorter.add(doc! {"k": 1}, &cx).unwrap();
        let error = sorter.add(doc! {"k": 1}, &cx).unwrap_err();
        assert_eq!(error.code.0, 292);
    }
}

//! Sorting any number of documents in a bounded amount of memory.
//!
//! ```text
//! add ──► entries in memory ── above the limit: sort, write out ──► runs on disk
//! next ◄── merge of the runs and what is left in memory
//! ```
//!
//! A merge holds a document and a buffer of each run. That is counted, and refused only where documents are very
//! large: without it nothing would come out.
//!
//! Documents that compare equal come out in the order in which they came in. Keys are not written out:
//! they are computed again when a document is read back, so what a key is made of must not change
//! from one look to the next. Where a query may not write to disk, the limit is error 292.
//!
//! Used by every stage that needs its input in order: `$sort`, `$setWindowFields`, `$bucketAuto`,
//! `$densify`, and, for its partial results, `$group`.

use std::cmp::Ordering;

use nilometer_bson::Document;

use super::spill::{BUFFER_BYTES, RUNS_MAX, Run, RunWriter};
use crate::error::Result;
use crate::query::exec::ExecContext;
use crate::query::exec::memory::MemoryGauge;

/// Bytes counted for an entry beside its key and document.
pub(crate) const ENTRY_OVERHEAD: usize = 64;

/// What documents are sorted by.
pub(crate) trait RowOrder: Send {
    /// What is compared.
    type Key: Send;

    /// The key of a document: the same each time it is asked for.
    fn key(&self, row: &Document, cx: &ExecContext<'_>) -> Result<Self::Key>;

    /// The order of two keys.
    fn compare(&self, a: &Self::Key, b: &Self::Key, cx: &ExecContext<'_>) -> Ordering;

    /// Roughly how much memory a key holds.
    fn key_bytes(&self, key: &Self::Key) -> usize;
}

/// Takes documents in any order.
pub(crate) struct Sorter<O: RowOrder> {
    order: O,
    memory: MemoryGauge,
    entries: Vec<(O::Key, Document)>,
    runs: Vec<Run>,
}

impl<O: RowOrder> Sorter<O> {
    /// A sorter that holds no more than `memory` allows.
    pub(crate) fn new(order: O, memory: MemoryGauge) -> Self {
        Self {
            order,
            memory,
            entries: Vec::new(),
            runs: Vec::new(),
        }
    }

    /// Takes a document.
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

    /// Writes what is in memory to disk, if there is anything.
    pub(crate) fn flush(&mut self, cx: &ExecContext<'_>) -> Result<()> {
        if self.entries.is_empty() {
            return Ok(());
        }
        self.spill(cx)
    }

    /// Writes what is in memory to disk.
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
            while let Some((_, row)) = merge.next(&mut reading)? {
                writer.push(&row)?;
            }
            self.runs.push(writer.finish()?);
        }
        self.sort(cx);
        let mut writer = RunWriter::new(folder)?;
        for (_, row) in self.entries.drain(..) {
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

    /// Gives the documents in order.
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

/// Gives documents in order.
pub(crate) struct Sorted<O: RowOrder> {
    order: O,
    source: Source<O>,
    /// What is left.
    memory: MemoryGauge,
}

enum Source<O: RowOrder> {
    Memory(std::vec::IntoIter<(O::Key, Document)>),
    Merge(Merge<O>),
}

impl<O: RowOrder> Sorted<O> {
    /// The next document with its key.
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

    /// True if nothing is left.
    pub(crate) fn is_exhausted(&self) -> bool {
        match &self.source {
            Source::Memory(entries) => entries.len() == 0,
            Source::Merge(merge) => merge.runs.is_empty(),
        }
    }
}

enum RunSource<O: RowOrder> {
    File(Run),
    Memory(std::vec::IntoIter<(O::Key, Document)>),
}

/// A document with its key.
type Entry<O> = (<O as RowOrder>::Key, Document);

/// Bytes an entry holds elsewhere.
fn heap_bytes<O: RowOrder>(order: &O, (key, row): &Entry<O>) -> usize {
    order.key_bytes(key) + row.as_bytes().len()
}

/// What reading runs takes.
struct Reading<'r, 'c, O> {
    order: &'r O,
    /// Counts what was read and not given.
    memory: &'r mut MemoryGauge,
    cx: &'r ExecContext<'c>,
}

impl<O: RowOrder> RunSource<O> {
    /// The next entry. What comes from a file is counted; what was in memory is.
    fn next(&mut self, with: &mut Reading<'_, '_, O>) -> Result<Option<Entry<O>>> {
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

/// Sorted runs, merged as they are read. Of equal keys the one of the earlier run comes first: it
/// came first.
struct Merge<O: RowOrder> {
    /// Each run with its next document; a run without one is gone.
    runs: Vec<(Entry<O>, RunSource<O>)>,
}

impl<O: RowOrder> Merge<O> {
    fn new(runs: Vec<Run>, rest: Vec<Entry<O>>, with: &mut Reading<'_, '_, O>) -> Result<Self> {
        with.memory.hold(runs.len() * BUFFER_BYTES)?;
        let sources = runs.into_iter().map(RunSource::File);
        let sources = sources.chain([RunSource::Memory(rest.into_iter())]);
        let mut runs = Vec::new();
        for mut source in sources {
            if let Some(first) = source.next(with)? {
                runs.push((first, source));
            }
        }
        Ok(Self { runs })
    }

    fn next(&mut self, with: &mut Reading<'_, '_, O>) -> Result<Option<Entry<O>>> {
        let least = self.runs.iter().enumerate().reduce(|best, candidate| {
            match with.order.compare(&candidate.1.0.0, &best.1.0.0, with.cx) {
                Ordering::Less => candidate,
                _ => best,
            }
        });
        let Some(at) = least.map(|(at, _)| at) else {
            return Ok(None);
        };
        let Some((entry, source)) = self.runs.get_mut(at) else {
            return Ok(None);
        };
        let given = match source.next(with)? {
            Some(next) => std::mem::replace(entry, next),
            None => self.runs.remove(at).0,
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
        // Each document is a run of its own.
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

//! Making the indexes of a rollup, and checking its bins and their entries.
//!
//! Refreshes wait while an index is made, so it is complete when the catalog gets it. Queries go on: they compute what no refresh
//! has stored.

use std::sync::Arc;

use nilometer_bson::DocRef;
use nilometer_storage::{Direction, WriteBatch};

use super::{BATCH_BYTES_MAX, Pace, RefreshRun, RollupRefresher};
use crate::catalog::{IndexSpec, Indexes, Namespace, StoredIndex, StoredRollup};
use crate::error::Result;
use crate::index::entry;
use crate::index::{Index, put_entries};
use crate::rollup::view::{BIN_TIMES, KEY_FIELD, bin_record};
use crate::validation::Validation;

/// Bins whose entries are in one engine batch.
const BINS_PER_BATCH: usize = 4_096;

/// Entries that are read in one snapshot.
const ENTRIES_PER_VIEW: usize = 4_096;

impl RollupRefresher {
    /// Makes the indexes that `choose` returns, given the current list. Returns their number. On failure none of them remains.
    pub(crate) fn create_indexes(
        &self,
        namespace: &Namespace,
        rollup: &Arc<StoredRollup>,
        choose: impl FnOnce(&Indexes) -> Result<Vec<IndexSpec>>,
        pace: Pace<'_>,
    ) -> Result<usize> {
        let _refreshing = rollup.lock_refresh();
        let specs = choose(&rollup.indexes.all())?;
        if specs.is_empty() {
            return Ok(0);
        }
        let catalog = self.catalog();
        let now_ms = self.services.clock.now_ms();
        let new = catalog.prepare_rollup_indexes(rollup, specs, now_ms)?;
        // One that waits for its source has no bins.
        let has_bins = rollup.progress().closed_ms != i64::MIN;
        let filled = match has_bins {
            true => self
                .run(namespace, rollup, pace)
                .and_then(|run| run.fill(&new)),
            false => Ok(()),
        };
        let added = filled.and_then(|()| catalog.add_rollup_indexes(namespace, rollup, &new));
        if let Err(error) = added {
            catalog.discard_rollup_indexes(&new)?;
            return Err(error);
        }
        Ok(new.len())
    }

    /// Checks the stored bins of a rollup and the entries of its indexes. Refreshes wait.
    pub(crate) fn validate(
        &self,
        namespace: &Namespace,
        rollup: &Arc<StoredRollup>,
        pace: Pace<'_>,
    ) -> Result<Validation> {
        let _refreshing = rollup.lock_refresh();
        let mut found = Validation::default();
        match rollup.progress().closed_ms {
            // No bin was stored yet.
            i64::MIN => {
                let all = rollup.indexes.all();
                let names = all.iter().map(|index| (index.spec.name.clone(), 0));
                found.keys_per_index = names.collect();
            }
            _ => self.run(namespace, rollup, pace)?.validate(&mut found)?,
        }
        Ok(found)
    }
}

impl RefreshRun<'_> {
    /// Writes the entries of all stored bins into new indexes.
    fn fill(&self, new: &[Arc<StoredIndex>]) -> Result<()> {
        let indexes = new.iter().map(Index::of).collect::<Result<Vec<_>>>()?;
        let mut after = None::<Vec<u8>>;
        loop {
            (self.pace)()?;
            let view = self.view()?;
            let mut batch = WriteBatch::new();
            let records = view.records(BIN_TIMES, after.as_deref())?;
            let mut read = 0;
            for item in records.take(BINS_PER_BATCH) {
                let (record, bin) = item?;
                let shown = self.shown(bin.as_doc())?;
                for index in &indexes {
                    let keys = index.keys(shown.as_ref())?;
                    index.stored.note_arrays(keys.multikey);
                    put_entries(&mut batch, index, &keys, &record);
                }
                after = Some(record);
                read += 1;
                if batch.bytes() > BATCH_BYTES_MAX {
                    break;
                }
            }
            // A partial index may have no entries of many bins.
            if read == 0 {
                return Ok(());
            }
            self.commit_batch(batch)?;
        }
    }

    fn validate(&self, found: &mut Validation) -> Result<()> {
        let indexes = self.rollup.indexes.all();
        let indexes = indexes.iter().map(Index::of).collect::<Result<Vec<_>>>()?;
        let mut expected = vec![0; indexes.len()];
        let mut after = None::<Vec<u8>>;
        loop {
            (self.pace)()?;
            let view = self.view()?;
            let before = found.checked;
            for item in view
                .records(BIN_TIMES, after.as_deref())?
                .take(BINS_PER_BATCH)
            {
                let (record, bin) = item?;
                let mut problems = Vec::new();
                self.check_record(&record, bin.as_doc(), &mut problems);
                let shown = self.shown(bin.as_doc());
                match &shown {
                    Err(error) => problems.push(format!("a bin cannot be read: {error}")),
                    Ok(shown) => {
                        for (index, count) in indexes.iter().zip(&mut expected) {
                            for key in &index.keys(shown.as_ref())?.keys {
                                *count += 1;
                                let bits = view.entry(index, &entry::key(key, &record))?;
                                if bits.as_deref() != Some(&key.type_bits) {
                                    let name = &index.stored.spec.name;
                                    problems
                                        .push(format!("the index '{name}' does not lead to a bin"));
                                }
                            }
                        }
                    }
                }
                found.add(problems);
                after = Some(record);
            }
            if found.checked == before {
                break;
            }
        }
        for (index, expected) in indexes.iter().zip(expected) {
            let (name, entries) = (&index.stored.spec.name, self.count_entries(index)?);
            if entries > expected {
                let more = entries - expected;
                found.note(format!(
                    "the index '{name}' has {more} entries that lead to no bin"
                ));
            }
            found.keys_per_index.push((name.clone(), entries));
        }
        Ok(())
    }

    /// Adds a problem if a bin is not where its key says.
    fn check_record(&self, record: &[u8], bin: DocRef<'_>, problems: &mut Vec<String>) {
        let key = bin.get(KEY_FIELD).as_document().unwrap_or(DocRef::EMPTY);
        let start = self.source.definition.time_of(key);
        if start.is_none_or(|start| bin_record(start, key) != record) {
            problems.push("a bin is stored under another key".to_owned());
        }
    }

    fn count_entries(&self, index: &Index) -> Result<u64> {
        let (mut from, mut count) = (Vec::new(), 0);
        loop {
            (self.pace)()?;
            let view = self.view()?;
            let before = count;
            let entries = view.entries(index, &from, None, Direction::Forward)?;
            for item in entries.take(ENTRIES_PER_VIEW) {
                let (key, _, record) = item?;
                from = [&key[..], &record, &[0]].concat();
                count += 1;
            }
            if count == before {
                return Ok(count);
            }
        }
    }
}

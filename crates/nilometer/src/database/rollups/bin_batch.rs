//! A batch of changes of bins and of their entries in indexes, and what the change log says about them.
//!
//! Streams show a bin when a refresh stores it: as inserted, replaced or deleted. `local.oplog.rs` shows no bins: a
//! server that applies the oplog computes them itself. Expired bins, and what a refresh that did not end has left, are removed without an event.
//!
//! A batch may remove a bin and then store it again, so the entries of what is stored are always written: there is no difference
//! to the bin before the batch that could be relied on.

use nilometer_bson::{DocRef, Document};
use nilometer_storage::WriteBatch;

use super::{BATCH_BYTES_MAX, RefreshRun};
use crate::change_entry::ChangeNotes;
use crate::error::Result;
use crate::eval::EvalContext;
use crate::query::exec::bin_document;
use crate::rollup::view::{KEY_FIELD, TimeSpan, bin_record, delete_bin, delete_record, put_bin};
use crate::rollup::{BinIndexes, BinKeys, RollupView};

/// Bins deleted in one batch.
const DELETED_BINS_MAX: usize = 16_384;

/// Changes of bins that are committed together.
pub(super) struct BinBatch {
    pub(super) batch: WriteBatch,
    notes: ChangeNotes,
    indexes: BinIndexes,
    /// The bins before the batch, if changes are noted or if there are indexes.
    before: Option<RollupView>,
}

/// A bin as queries show it, and its keys; nothing if the batch needs neither.
pub(super) struct ShownBin(Option<(Document, BinKeys)>);

impl RefreshRun<'_> {
    /// Returns an empty batch.
    pub(super) fn new_batch(&self) -> Result<BinBatch> {
        let (name, uuid) = (&self.source.namespace, self.rollup.uuid);
        let time_name = &self.source.definition.time_name;
        let notes = self.catalog().notes_of_rollup(name, uuid, time_name);
        let indexes = BinIndexes::of(self.rollup)?;
        let before = match notes.are_kept() || !indexes.is_empty() {
            true => Some(self.view()?),
            false => None,
        };
        Ok(BinBatch {
            batch: WriteBatch::new(),
            notes,
            indexes,
            before,
        })
    }

    /// Returns what [`RefreshRun::put`] needs of a bin; `None` if it cannot be indexed.
    pub(super) fn indexed(&self, out: &BinBatch, bin: DocRef<'_>) -> Result<Option<ShownBin>> {
        if out.before.is_none() {
            return Ok(Some(ShownBin(None)));
        }
        let shown = self.shown(bin)?;
        let keys = out.indexes.keys(shown.as_ref()).ok();
        Ok(keys.map(|keys| ShownBin(Some((shown, keys)))))
    }

    /// Adds a bin.
    pub(super) fn put(
        &self,
        out: &mut BinBatch,
        start: i64,
        bin: Document,
        shown: ShownBin,
    ) -> Result<()> {
        if let (Some(before), ShownBin(Some((shown, keys)))) = (&out.before, shown) {
            let key = bin.get(KEY_FIELD).as_document().unwrap_or(DocRef::EMPTY);
            let record = bin_record(start, key);
            match before.bin(start, key)? {
                None => out.notes.inserted(shown.as_ref()),
                // A mark may name bins that did not change.
                Some(known) if known.as_bytes() == bin.as_bytes() => {}
                Some(known) => {
                    let known = self.shown(known.as_ref())?;
                    let gone = out.indexes.keys(known.as_ref())?;
                    out.indexes.delete(&mut out.batch, &gone, &record);
                    out.notes.replaced(known.as_ref(), shown.as_ref());
                }
            }
            for (index, bits) in out.indexes.new_arrays(&keys) {
                let (namespace, stored) = (&self.namespace, &index.stored);
                self.catalog()
                    .mark_rollup_multikey(namespace, self.rollup, stored, bits)?;
            }
            out.indexes.put(&mut out.batch, &keys, &record);
        }
        put_bin(&mut out.batch, self.rollup, start, bin);
        Ok(())
    }

    /// Removes the bin with this key, if there is one.
    pub(super) fn delete(&self, out: &mut BinBatch, start: i64, key: DocRef<'_>) -> Result<()> {
        if let Some(before) = &out.before
            && let Some(known) = before.bin(start, key)?
        {
            let known = self.shown(known.as_ref())?;
            let gone = out.indexes.keys(known.as_ref())?;
            out.indexes
                .delete(&mut out.batch, &gone, &bin_record(start, key));
            out.notes.deleted(known.as_ref());
        }
        delete_bin(&mut out.batch, self.rollup, start, key);
        Ok(())
    }

    /// Commits a batch.
    pub(super) fn commit(&self, mut out: BinBatch) -> Result<()> {
        if !out.batch.is_empty() {
            out.notes.add_to(&mut out.batch);
            self.commit_bins(out.batch)?;
        }
        Ok(())
    }

    /// Removes the bins that start within `span`, without events.
    pub(super) fn delete_bins(&self, span: TimeSpan) -> Result<()> {
        let indexes = BinIndexes::of(self.rollup)?;
        loop {
            let mut batch = WriteBatch::new();
            let mut deleted = 0;
            for item in self.view()?.records(span, None)?.take(DELETED_BINS_MAX) {
                let (record, bin) = item?;
                if !indexes.is_empty() {
                    let shown = self.shown(bin.as_doc())?;
                    let gone = indexes.keys(shown.as_ref())?;
                    indexes.delete(&mut batch, &gone, &record);
                }
                delete_record(&mut batch, self.rollup, &record);
                deleted += 1;
                if batch.bytes() > BATCH_BYTES_MAX {
                    break;
                }
            }
            self.commit_bins(batch)?;
            if deleted == 0 {
                return Ok(());
            }
        }
    }

    /// Returns a bin as queries show it.
    pub(super) fn shown(&self, bin: DocRef<'_>) -> Result<Document> {
        bin_document(&self.source.definition, bin, &EvalContext::default())
    }
}

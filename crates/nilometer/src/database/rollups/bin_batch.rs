//! A batch of changes of bins, and what the change log says about them.
//!
//! Streams show a bin when a refresh stores it: as inserted, replaced or deleted. `local.oplog.rs` shows no bins: a
//! server that applies the oplog computes them itself. Expired bins, and what a refresh that did not end has left, are removed without an event.

use nilometer_bson::{DocRef, Document};
use nilometer_storage::WriteBatch;

use super::RefreshRun;
use crate::change_entry::ChangeNotes;
use crate::error::Result;
use crate::eval::EvalContext;
use crate::query::exec::bin_document;
use crate::rollup::RollupView;
use crate::rollup::view::{KEY_FIELD, delete_bin, put_bin};

/// Changes of bins that are committed together.
pub(super) struct BinBatch {
    pub(super) batch: WriteBatch,
    notes: ChangeNotes,
    /// The bins before the batch, if changes are noted.
    before: Option<RollupView>,
}

impl RefreshRun<'_> {
    /// Returns an empty batch.
    pub(super) fn new_batch(&self) -> Result<BinBatch> {
        let (name, uuid) = (&self.source.namespace, self.rollup.uuid);
        let time_name = &self.source.definition.time_name;
        let notes = self.catalog().notes_of_rollup(name, uuid, time_name);
        let before = match notes.are_kept() {
            true => Some(self.view()?),
            false => None,
        };
        Ok(BinBatch {
            batch: WriteBatch::new(),
            notes,
            before,
        })
    }

    /// Adds a bin.
    pub(super) fn put(&self, out: &mut BinBatch, start: i64, bin: Document) -> Result<()> {
        if let Some(before) = &out.before {
            let key = bin.get(KEY_FIELD).as_document().unwrap_or(DocRef::EMPTY);
            let known = before.bin(start, key)?;
            let shown = self.shown(&bin)?;
            match known {
                None => out.notes.inserted(shown.as_ref()),
                // A mark may name bins that did not change.
                Some(known) if known.as_bytes() == bin.as_bytes() => {}
                Some(known) => {
                    let known = self.shown(&known)?;
                    out.notes.replaced(known.as_ref(), shown.as_ref());
                }
            }
        }
        put_bin(&mut out.batch, self.rollup, start, bin);
        Ok(())
    }

    /// Removes the bin with this key, if there is one.
    pub(super) fn delete(&self, out: &mut BinBatch, start: i64, key: DocRef<'_>) -> Result<()> {
        if let Some(before) = &out.before
            && let Some(known) = before.bin(start, key)?
        {
            out.notes.deleted(self.shown(&known)?.as_ref());
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

    /// Returns a bin as queries show it.
    fn shown(&self, bin: &Document) -> Result<Document> {
        bin_document(
            &self.source.definition,
            bin.as_ref(),
            &EvalContext::default(),
        )
    }
}

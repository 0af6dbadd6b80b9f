//! Reads records by index: `FETCH`, or rows built from keys alone (`PROJECTION_COVERED`, `COUNT_SCAN`,
//! `DISTINCT_SCAN`).
//!
//! ```text
//! KeyStream ─ entry ─► covered? ─ yes ─► row built from the key
//!                          └─ no ──► document of the same view ─► residual filter ─► row
//! ```
//!
//! Each call works in one view and releases it, so that no stored data is retained between calls. Entry and document are of
//! one view, so a document is never returned for a key it no longer has, and a condition that the bounds
//! express completely need not be tested again. Between two calls a document may get a key further on and be returned
//! again, as in MongoDB.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nilometer_bson::{Document, DocumentBuilder, key_string};

use super::index_scan::{IndexScan, KeyStats, KeyStream, Next, ViewAt, unreadable};
use super::index_union::IndexUnion;
use super::rest_by_scan::{Rest, RestByScan};
use super::sort_merge::SortMerge;
use super::with_field;
use crate::error::Result;
use crate::eval::projection::MetaField;
use crate::query::batch::Batch;
use crate::query::exec::{ExecContext, Operator, RowBatch};
use crate::query::planner::access::{IndexAccess, IndexScanPlan, KeyPlan, text};
use crate::query::planner::physical::RecordInput;
use crate::query::source::{IndexEntry, RecordKey, ScanCounters};

/// Steps in one view.
const STEPS_PER_VIEW: usize = 1024;

/// Counters of the parts of a read by index.
#[derive(Clone, Debug, Default)]
pub struct AccessStats {
    /// The operator that joins the scans, if there are several.
    pub joined: Arc<KeyStats>,
    /// The scans, in order.
    pub scans: Vec<Arc<KeyStats>>,
    /// Documents fetched.
    pub fetched: Arc<AtomicU64>,
    /// Rows returned.
    pub returned: Arc<AtomicU64>,
}

impl AccessStats {
    /// Returns zeroed counters for `access`.
    pub fn of(access: &IndexAccess) -> Self {
        Self {
            scans: access.keys.scans().iter().map(|_| Arc::default()).collect(),
            ..Self::default()
        }
    }

    /// Returns the number of keys examined.
    pub fn keys(&self) -> u64 {
        let keys = self.scans.iter().map(|s| s.keys.load(Ordering::Relaxed));
        keys.sum()
    }
}

/// Result of one step.
pub(crate) enum Step {
    /// A row, and the key of its record.
    Row(RecordKey, Document),
    /// No row yet.
    Nothing,
    /// The end.
    Done,
}

/// Reads records by index.
pub struct IndexRead {
    input: RecordInput,
    access: IndexAccess,
    keys: Box<dyn KeyStream>,
    counters: Arc<ScanCounters>,
    stats: AccessStats,
    views: u64,
    /// What the rest of the read by a scan needs to know; `None` if it may not end so.
    rest: Option<RestByScan>,
    /// The scan of the rest.
    scan: Option<Rest>,
    /// Rows still to return.
    left: u64,
    done: bool,
    /// True once a call has found no record.
    is_ended: bool,
}

impl IndexRead {
    /// Reads `input` by `access` and counts what it examines.
    pub fn new(
        input: RecordInput,
        access: IndexAccess,
        counters: Arc<ScanCounters>,
        stats: AccessStats,
    ) -> Self {
        let keys = stream(&access.keys, &stats);
        Self {
            left: input.limit.unwrap_or(u64::MAX),
            input,
            access,
            keys,
            counters,
            stats,
            views: 0,
            rest: None,
            scan: None,
            done: false,
            is_ended: false,
        }
    }

    /// Makes one step within a view.
    pub(crate) fn step(&mut self, at: ViewAt<'_>, cx: &ExecContext<'_>) -> Result<Step> {
        let before = self.stats.keys();
        let next = self.keys.next(at)?;
        let looked = self.stats.keys() - before;
        self.counters.keys.fetch_add(looked, Ordering::Relaxed);
        let (entry, scan) = match next {
            Next::Entry(entry, scan) => (entry, scan),
            Next::NotYet => return Ok(Step::Nothing),
            Next::End => return Ok(Step::Done),
        };
        let covered = self.covered_row(&entry, scan)?;
        let is_covered = covered.is_some();
        let document = match covered {
            Some(row) => row,
            None => {
                self.counters.documents.fetch_add(1, Ordering::Relaxed);
                self.stats.fetched.fetch_add(1, Ordering::Relaxed);
                if let Some(rest) = &mut self.rest {
                    rest.note_fetched(&entry.record);
                }
                match at.view.record(&entry.record)? {
                    Some(document) => document,
                    // Entry and record are of one view; `validate` reports an inconsistent index.
                    None => return Ok(Step::Nothing),
                }
            }
        };
        if let Some(parts) = self.access.distinct
            && self.settles(is_covered, &document)
        {
            self.keys.skip_equal(parts)?;
        }
        let scans = self.access.keys.scans();
        let filter = if scans.get(scan).is_some_and(IndexScanPlan::has_new_arrays) {
            // With several keys per document, bounds on one key do not replace the conditions on the document.
            &self.input.filter
        } else {
            &self.access.residual
        };
        if let Some(filter) = filter
            && !filter.matches(document.as_ref(), &cx.eval)?
        {
            return Ok(Step::Nothing);
        }
        self.stats.returned.fetch_add(1, Ordering::Relaxed);
        let row = if self.access.adds_keys {
            let key = self.key_document(&entry, scan);
            with_field(&document, MetaField::IndexKey.carrier(), key.into())
        } else {
            document
        };
        Ok(Step::Row(entry.record, row))
    }

    /// Returns the rows of the next records of the scan.
    fn next_of_scan(&mut self, cx: &ExecContext<'_>) -> Result<Option<Batch>> {
        let Some(mut scan) = self.scan.take() else {
            return Ok(None);
        };
        let mut rows = RowBatch::default();
        let mut examined = 0;
        while self.left > 0 && !rows.is_full() && examined < STEPS_PER_VIEW as u64 {
            let Some(record) = scan.next(&self.input, cx)? else {
                self.done = true;
                break;
            };
            examined += 1;
            if let Some((record, document)) = record {
                self.left -= 1;
                self.stats.returned.fetch_add(1, Ordering::Relaxed);
                rows.push(self.shown(&record, document));
            }
        }
        self.counters
            .documents
            .fetch_add(examined, Ordering::Relaxed);
        self.stats.fetched.fetch_add(examined, Ordering::Relaxed);
        self.done |= self.left == 0;
        self.scan = Some(scan);
        Ok(Some(Batch::Rows(rows.into_rows())))
    }

    /// Returns the row of a record.
    fn shown(&self, record: &RecordKey, document: Document) -> Document {
        if !self.input.show_record_id {
            return document;
        }
        let id = self.input.source.record_id(record);
        with_field(&document, MetaField::RecordId.carrier(), id)
    }

    /// Returns a key as a document: its values under the paths of the index; empty where a collation makes keys
    /// undecodable.
    fn key_document(&self, entry: &IndexEntry, scan: usize) -> Document {
        let Some(plan) = self.access.keys.scans().get(scan) else {
            return Document::new();
        };
        let (order, parts) = (plan.shape.order(), &plan.shape.parts);
        if plan.shape.collation.collator().is_some() {
            return Document::new();
        }
        let decoded = key_string::decode(&entry.key, order, parts.len(), &entry.type_bits);
        let mut out = DocumentBuilder::new();
        for (part, value) in parts
            .iter()
            .zip(decoded.map(|(v, _)| v).unwrap_or_default())
        {
            out.append(text::shown_name(&part.path), value);
        }
        out.finish()
    }

    fn covered_row(&self, entry: &IndexEntry, scan: usize) -> Result<Option<Document>> {
        let (Some(covering), None) = (&self.access.covering, &self.access.residual) else {
            return Ok(None);
        };
        let Some(plan) = self.access.keys.scans().get(scan) else {
            return Ok(None);
        };
        // Keys with elements of an array cannot be rows.
        if plan.has_new_arrays() {
            return Ok(None);
        }
        if covering.is_empty() {
            return Ok(Some(Document::new()));
        }
        let parts = plan.shape.parts.len();
        let order = plan.shape.order();
        let (values, _) =
            key_string::decode(&entry.key, order, parts, &entry.type_bits).map_err(unreadable)?;
        Ok(covering.row(&values))
    }

    /// True if further entries with the same values add nothing. A document fetched because of its null
    /// may lack the field, while another with the same key may have it.
    fn settles(&self, is_covered: bool, document: &Document) -> bool {
        is_covered
            || self
                .access
                .covering
                .as_ref()
                .is_some_and(|covering| covering.is_found_in(document))
    }
}

pub(crate) fn stream(keys: &KeyPlan, stats: &AccessStats) -> Box<dyn KeyStream> {
    let mut each = stats.scans.iter();
    let mut scan = |plan: &IndexScanPlan| {
        let stats = each.next().map(Arc::clone).unwrap_or_default();
        IndexScan::new(plan.clone(), stats)
    };
    match keys {
        KeyPlan::Scan(plan) => Box::new(scan(plan)),
        KeyPlan::Union(plans) => {
            let scans = plans.iter().map(scan).collect();
            Box::new(IndexUnion::new(scans, Arc::clone(&stats.joined)))
        }
        KeyPlan::Merge(plans, order) => {
            let scans = plans
                .iter()
                .map(|plan| (plan.clone(), scan(plan)))
                .collect();
            Box::new(SortMerge::new(scans, order, Arc::clone(&stats.joined)))
        }
    }
}

impl Operator for IndexRead {
    fn next(&mut self, cx: &ExecContext<'_>) -> Result<Option<Batch>> {
        if self.done {
            self.is_ended = true;
            return Ok(None);
        }
        if self.scan.is_some() {
            return self.next_of_scan(cx);
        }
        let Some(view) = self.input.source.view()? else {
            self.done = true;
            self.is_ended = true;
            return Ok(None);
        };
        self.views += 1;
        let at = ViewAt {
            view: &*view,
            number: self.views,
            memory: &cx.settings.memory,
        };
        if self.views == 1 {
            self.rest = RestByScan::new(&self.input, &self.access, &cx.settings.memory);
            for scan in self.access.keys.scans() {
                scan.index.stored.count_use();
            }
        }
        let mut rows = RowBatch::default();
        for _ in 0..STEPS_PER_VIEW {
            if self.left == 0 {
                self.done = true;
            }
            if self.done || rows.is_full() {
                break;
            }
            match self.step(at, cx)? {
                Step::Done => self.done = true,
                Step::Nothing => {}
                Step::Row(record, document) => {
                    self.left -= 1;
                    if self
                        .rest
                        .as_mut()
                        .is_some_and(|rest| !rest.note_returned(&record))
                    {
                        self.rest = None;
                    }
                    rows.push(self.shown(&record, document));
                }
            }
        }
        self.done |= self.left == 0;
        if !self.done
            && let Some(mut rest) = self.rest.take()
        {
            match rest.is_due(&self.input)? {
                true => self.scan = Some(rest.begin(&self.input)?),
                false => self.rest = Some(rest),
            }
        }
        Ok(Some(Batch::Rows(rows.into_rows())))
    }

    fn is_exhausted(&self) -> bool {
        self.left == 0 || self.is_ended
    }
}

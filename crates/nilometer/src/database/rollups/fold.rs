//! Folding marks: the bins that they name are computed again and stored, and the marks removed in the same batch.
//!
//! Marks are taken series by series. Bins of a series that are near each other are computed together. What a computation
//! returns for other series is dropped: the condition on the metadata may select more than the series.

use std::collections::{BTreeMap, BTreeSet};

use nilometer_bson::{Document, DocumentBuilder, Value, doc};

use super::*;
use crate::eval::matcher::MatchExpression;
use crate::rollup::view::{DirtyMark, key_string};

/// Marks read at once, and bins that those may name.
const MARKS_MAX: usize = 4_096;
const BINS_MAX: usize = 16_384;

/// Clean bins between dirty ones that are computed with them.
const GAP_BINS_MAX: usize = 4;

/// The marks of a series, and the spans they cover, in order and not adjacent.
#[derive(Default)]
struct SeriesMarks {
    /// A key of the series.
    key: Option<Document>,
    spans: Vec<TimeSpan>,
    marks: Vec<Vec<u8>>,
    /// Marks of what does not fit into this pass.
    rest: Vec<(u64, TimeSpan)>,
}

impl RefreshRun<'_> {
    /// Folds the marks of all generations but `current`.
    pub(super) fn fold(&self, current: u64) -> Result<()> {
        loop {
            let gathered = self.gather(current)?;
            if gathered.is_empty() {
                return Ok(());
            }
            for series in gathered.into_values() {
                (self.pace)()?;
                self.fold_series(&series)?;
                let folded = &self.refresher.counters.marks_folded;
                folded.fetch_add(series.marks.len() as u64, Ordering::Relaxed);
            }
        }
    }

    /// Returns marks by series; those of all series come first.
    fn gather(&self, current: u64) -> Result<BTreeMap<Vec<u8>, SeriesMarks>> {
        let view = self.view()?;
        let definition = &self.source.definition;
        let from = view.progress.changeable_from_ms();
        let (mut marks, mut bins) = (0, 0);
        let mut found = BTreeMap::<Vec<u8>, SeriesMarks>::new();
        for mark in view.marks()? {
            let DirtyMark {
                stored_at,
                span,
                generation,
                key,
            } = mark?;
            if generation == current {
                continue;
            }
            if marks >= MARKS_MAX || bins >= BINS_MAX {
                break;
            }
            marks += 1;
            let name = key
                .as_ref()
                .map(|key| key_string(definition.at_time(key.as_ref(), 0).as_ref()));
            let series = found.entry(name.unwrap_or_default()).or_default();
            series.key = key;
            series.marks.push(stored_at);
            // Later bins are open: their marks are not needed.
            let end = span.1.min(view.progress.closed_ms);
            let mut at = span.0.max(from);
            let first = at;
            while at < end && bins < BINS_MAX {
                at = definition.bins.next(at);
                bins += 1;
            }
            if at < end {
                series.rest.push((generation, (at, end)));
            }
            let end = at.min(end);
            match series.spans.last_mut() {
                _ if first >= end => {}
                Some(last) if first <= last.1 => last.1 = last.1.max(end),
                _ => series.spans.push((first, end)),
            }
        }
        Ok(found)
    }

    /// Computes the bins of a series again, and removes its marks.
    fn fold_series(&self, series: &SeriesMarks) -> Result<()> {
        let mut out = self.new_batch()?;
        for spans in self.neighbours(&series.spans) {
            self.fold_spans(series, spans, &mut out)?;
        }
        for mark in &series.marks {
            out.batch.delete(self.rollup.keyspace, mark.clone());
        }
        for (generation, span) in &series.rest {
            let definition = &self.source.definition;
            let key = series.key.as_ref();
            let key = key.map(|key| definition.at_time(key.as_ref(), span.0));
            put_mark(
                &mut out.batch,
                self.rollup,
                *generation,
                *span,
                key.as_ref(),
            );
        }
        self.commit(out)
    }

    /// Returns runs of spans with few bins between them.
    fn neighbours<'s>(&self, spans: &'s [TimeSpan]) -> Vec<&'s [TimeSpan]> {
        let bins = &self.source.definition.bins;
        spans
            .chunk_by(|(_, end), (start, _)| {
                let mut at = *end;
                for _ in 0..GAP_BINS_MAX {
                    at = bins.next(at);
                }
                at >= *start
            })
            .collect()
    }

    fn fold_spans(
        &self,
        series: &SeriesMarks,
        spans: &[TimeSpan],
        out: &mut BinBatch,
    ) -> Result<()> {
        let (Some((from, _)), Some((_, to))) = (spans.first(), spans.last()) else {
            return Ok(());
        };
        let definition = &self.source.definition;
        let own = series
            .key
            .as_ref()
            .map(|key| key_string(definition.at_time(key.as_ref(), 0).as_ref()));
        let filter = series.key.as_ref().map(|key| self.filter_of(key));
        let filter = filter.transpose()?.flatten();
        if series.key.is_none() {
            for span in spans {
                let view = self.view()?;
                for bin in view.bins(*span)? {
                    let bin = bin?;
                    let key = bin
                        .as_doc()
                        .get(KEY_FIELD)
                        .as_document()
                        .unwrap_or(DocRef::EMPTY);
                    let start = definition.time_of(key).unwrap_or(i64::MIN);
                    self.delete(out, start, key)?;
                }
            }
        }
        let mut stored = BTreeSet::new();
        let span = (*from, *to);
        let operator = live_bins(
            &self.builder,
            &self.source,
            span,
            filter.as_ref(),
            None,
            false,
        )?;
        self.each_row(operator, &mut |bin| {
            let key = bin.get(KEY_FIELD).as_document().unwrap_or(DocRef::EMPTY);
            let start = definition.time_of(key).unwrap_or(i64::MIN);
            let is_own = own
                .as_ref()
                .is_none_or(|own| *own == key_string(definition.at_time(key, 0).as_ref()));
            if is_own && spans.iter().any(|(from, to)| (*from..*to).contains(&start)) {
                stored.insert(start);
                self.store(out, bin)?;
            }
            Ok(())
        })?;
        self.count_stored(stored.len());
        let Some(key) = &series.key else {
            return Ok(());
        };
        for (from, to) in spans {
            let mut at = *from;
            while at < *to {
                if !stored.contains(&at) {
                    let gone = definition.at_time(key.as_ref(), at);
                    self.delete(out, at, gone.as_ref())?;
                }
                at = definition.bins.next(at);
            }
        }
        Ok(())
    }

    /// Returns a condition on measurements that selects those of a key, at least.
    fn filter_of(&self, key: &Document) -> Result<Option<MatchExpression>> {
        let mut filter = DocumentBuilder::new();
        for part in &self.source.definition.parts {
            let value = key.get(&part.name);
            let is_plain = matches!(
                value,
                ValueRef::String(_)
                    | ValueRef::Int32(_)
                    | ValueRef::Int64(_)
                    | ValueRef::Double(_)
                    | ValueRef::Bool(_)
                    | ValueRef::ObjectId(_)
            );
            if is_plain && let Some(path) = part.expression.as_field_path() {
                filter.append(path.as_str(), Value::from(doc! {"$eq": value.to_value()}));
            }
        }
        match filter.is_empty() {
            true => Ok(None),
            false => {
                let filter = filter.finish();
                Ok(Some(MatchExpression::parse(
                    filter.as_ref(),
                    &ParseContext::new(),
                )?))
            }
        }
    }
}

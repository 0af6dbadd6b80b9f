//! `$geoNear`: measures each document, leaves out those without a distance of interest.

use std::vec::IntoIter;

use nilometer_bson::{Document, Value, ValueRef};

use super::memory::MemoryGauge;
use super::{BoxOperator, ExecContext, Operator, ROWS_PER_BATCH, next_filled};
use crate::error::Result;
use crate::eval::matcher::geo::near_distance;
use crate::eval::projection::FieldWriter;
use crate::query::batch::Batch;
use crate::query::pipeline::GeoDistanceStage;

/// Writes the distance into documents, or puts them in its order.
pub struct GeoDistance {
    input: BoxOperator,
    stage: GeoDistanceStage,
    /// Writes the distance and, if asked for, the place; none if neither is.
    writer: Option<FieldWriter>,
    /// Where the operator orders: what is left to give, once everything has been read.
    ordered: Option<IntoIter<Document>>,
}

impl GeoDistance {
    /// Measures what `input` gives.
    pub fn new(input: BoxOperator, stage: GeoDistanceStage) -> Result<Self> {
        let output = &stage.output;
        let paths = output.distance_field.iter().chain(&output.include_locs);
        let paths: Vec<&str> = paths.map(|path| &**path).collect();
        let writer = if paths.is_empty() {
            None
        } else {
            Some(FieldWriter::new(paths)?)
        };
        Ok(Self {
            input,
            stage,
            writer,
            ordered: None,
        })
    }

    /// The distance and the document to give on; none if it is left out.
    fn measure(&self, row: Document, cx: &ExecContext<'_>) -> Result<Option<(f64, Document)>> {
        let root = ValueRef::Document(row.as_ref());
        let Some((distance, place)) = near_distance(&self.stage.path, &self.stage.query, root)?
        else {
            return Ok(None);
        };
        let Some(writer) = &self.writer else {
            return Ok(Some((distance, row)));
        };
        let shown = distance * self.stage.output.multiplier;
        let mut values = Vec::with_capacity(2);
        if self.stage.output.distance_field.is_some() {
            values.push(Value::Double(shown));
        }
        if self.stage.output.include_locs.is_some() {
            values.push(place);
        }
        Ok(Some((
            distance,
            writer.apply(row.as_ref(), &values, &cx.eval)?,
        )))
    }

    fn next_measured(&mut self, cx: &ExecContext<'_>) -> Result<Option<Vec<(f64, Document)>>> {
        let Some(batch) = next_filled(&mut self.input, cx)? else {
            return Ok(None);
        };
        let mut rows = Vec::new();
        for row in batch.into_rows()? {
            rows.extend(self.measure(row, cx)?);
        }
        Ok(Some(rows))
    }

    fn in_order(&mut self, cx: &ExecContext<'_>) -> Result<IntoIter<Document>> {
        let mut memory = MemoryGauge::gather("$geoNear", cx);
        let mut all = Vec::new();
        while let Some(rows) = self.next_measured(cx)? {
            for row in rows {
                memory.add(row.1.as_bytes().len() + size_of_val(&row))?;
                all.push(row);
            }
        }
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        let documents: Vec<Document> = all.into_iter().map(|(_, document)| document).collect();
        Ok(documents.into_iter())
    }
}

impl Operator for GeoDistance {
    fn next(&mut self, cx: &ExecContext<'_>) -> Result<Option<Batch>> {
        if self.stage.output.is_ordered {
            let mut rest = match self.ordered.take() {
                Some(rest) => rest,
                None => self.in_order(cx)?,
            };
            let rows: Vec<Document> = rest.by_ref().take(ROWS_PER_BATCH).collect();
            self.ordered = Some(rest);
            return Ok((!rows.is_empty()).then_some(Batch::Rows(rows)));
        }
        let measured = self.next_measured(cx)?;
        let rows = measured.map(|rows| rows.into_iter().map(|(_, document)| document));
        Ok(rows.map(|rows| Batch::Rows(rows.collect())))
    }

    fn is_exhausted(&self) -> bool {
        match &self.ordered {
            Some(rest) => rest.len() == 0,
            None => self.input.is_exhausted(),
        }
    }
}

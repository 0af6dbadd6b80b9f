//! `$sample`: a random choice without repetition, in one pass (reservoir sampling), then shuffled.
//!
//! Measurements in blocks are drawn as positions; only those in the final sample are unpacked.

use std::sync::Arc;

use nilometer_bson::Document;

use crate::error::Result;
use crate::query::batch::Batch;
use crate::query::exec::memory::MemoryGauge;
use crate::query::exec::row::documents::GivenDocuments;
use crate::query::exec::sort::external_sort::ENTRY_OVERHEAD;
use crate::query::exec::sort::first_rows::{LATE_ROWS_MAX, Row};
use crate::query::exec::{BoxOperator, ExecContext, Operator};

/// Draws `size` documents of its input.
pub struct Sample {
    input: Option<BoxOperator>,
    size: u64,
    drawn: GivenDocuments,
    /// Counts the sample until all of it is returned.
    memory: Option<MemoryGauge>,
}

impl Sample {
    /// Draws `size` documents of `input`.
    pub fn new(input: BoxOperator, size: u64) -> Self {
        Self {
            input: Some(input),
            size,
            drawn: GivenDocuments::new(Vec::new()),
            memory: None,
        }
    }
}

impl Operator for Sample {
    fn next(&mut self, cx: &ExecContext<'_>) -> Result<Option<Batch>> {
        if let Some(mut input) = self.input.take() {
            let (drawn, memory) = draw(&mut input, self.size, cx)?;
            self.drawn = GivenDocuments::new(drawn);
            self.memory = Some(memory);
        }
        let batch = self.drawn.next(cx)?;
        if self.drawn.is_exhausted() {
            self.memory = None;
        }
        Ok(batch)
    }

    fn is_exhausted(&self) -> bool {
        self.input.is_none() && self.drawn.is_exhausted()
    }
}

/// Returns the sample and the gauge that counts it.
fn draw(
    input: &mut BoxOperator,
    size: u64,
    cx: &ExecContext<'_>,
) -> Result<(Vec<Document>, MemoryGauge)> {
    let mut draw = Draw {
        size,
        seen: 0,
        drawn: Vec::new(),
        memory: MemoryGauge::gather("$sample", cx),
    };
    while let Some(batch) = crate::query::exec::next_filled(input, cx)? {
        match batch {
            Batch::Block(block) if size <= LATE_ROWS_MAX as u64 => {
                let rows = block.selection.to_vec();
                let block = Arc::new(block);
                for row in rows {
                    draw.offer(cx, || Row::InBlock(Arc::clone(&block), row))?;
                }
            }
            other => {
                for document in other.into_rows()? {
                    draw.offer(cx, || Row::Document(document))?;
                }
            }
        }
    }
    let mut drawn = draw.drawn;
    for at in (1..drawn.len()).rev() {
        let other = usize::try_from(below(at as u64 + 1, cx)).unwrap_or(at);
        drawn.swap(at, other);
    }
    let mut memory = draw.memory;
    let mut documents = Vec::with_capacity(drawn.len());
    for row in drawn {
        let before = row.memory_bytes();
        let document = row.into_document()?;
        let after = document.as_bytes().len() + ENTRY_OVERHEAD;
        memory.add(after)?;
        memory.release(before);
        documents.push(document);
    }
    Ok((documents, memory))
}

fn below(n: u64, cx: &ExecContext<'_>) -> u64 {
    cx.settings.ids.random() % n.max(1)
}

/// The rows drawn so far.
struct Draw {
    size: u64,
    seen: u64,
    drawn: Vec<Row>,
    memory: MemoryGauge,
}

impl Draw {
    /// Offers one more row to the reservoir.
    fn offer(&mut self, cx: &ExecContext<'_>, row: impl FnOnce() -> Row) -> Result<()> {
        self.seen += 1;
        if (self.drawn.len() as u64) < self.size {
            let row = row();
            self.memory.add(row.memory_bytes())?;
            self.drawn.push(row);
            return Ok(());
        }
        let at = usize::try_from(below(self.seen, cx)).ok();
        if let Some(slot) = at.and_then(|at| self.drawn.get_mut(at)) {
            let row = row();
            self.memory.add(row.memory_bytes())?;
            self.memory.release(slot.memory_bytes());
            *slot = row;
        }
        Ok(())
    }
}

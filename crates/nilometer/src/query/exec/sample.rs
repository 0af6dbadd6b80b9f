//! `$sample`: a random choice without repetition, in one pass (a reservoir), then shuffled.

use nilometer_bson::Document;

use super::documents::GivenDocuments;
use super::memory::MemoryGauge;
use super::{BoxOperator, ExecContext, Operator};
use crate::error::Result;
use crate::query::batch::Batch;

/// Draws `size` documents of its input.
pub struct Sample {
    input: Option<BoxOperator>,
    size: u64,
    drawn: GivenDocuments,
}

impl Sample {
    /// Draws `size` documents of `input`.
    pub fn new(input: BoxOperator, size: u64) -> Self {
        Self {
            input: Some(input),
            size,
            drawn: GivenDocuments::new(Vec::new()),
        }
    }
}

impl Operator for Sample {
    fn next(&mut self, cx: &ExecContext<'_>) -> Result<Option<Batch>> {
        if let Some(mut input) = self.input.take() {
            let drawn = draw(&mut input, self.size, cx)?;
            self.drawn = GivenDocuments::new(drawn);
        }
        self.drawn.next(cx)
    }

    fn is_exhausted(&self) -> bool {
        self.input.is_none() && self.drawn.is_exhausted()
    }
}

fn draw(input: &mut BoxOperator, size: u64, cx: &ExecContext<'_>) -> Result<Vec<Document>> {
    let ids = &cx.settings.ids;
    let below = |n: u64| ids.random() % n.max(1);
    let mut memory = MemoryGauge::gather("$sample", cx);
    let mut seen = 0u64;
    let mut drawn: Vec<Document> = Vec::new();
    while let Some(batch) = super::next_filled(input, cx)? {
        for document in batch.into_rows()? {
            seen += 1;
            if (drawn.len() as u64) < size {
                memory.add(document.as_bytes().len())?;
                drawn.push(document);
            } else {
                let at = below(seen);
                let slot = usize::try_from(at).ok().and_then(|at| drawn.get_mut(at));
                if let Some(slot) = slot {
                    memory.add(document.as_bytes().len())?;
                    memory.release(slot.as_bytes().len());
                    *slot = document;
                }
            }
        }
    }
    for at in (1..drawn.len()).rev() {
        let other = usize::try_from(below(at as u64 + 1)).unwrap_or(at);
        drawn.swap(at, other);
    }
    Ok(drawn)
}

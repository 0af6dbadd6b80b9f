//! `$limit` and `$skip`: count rows and cut batches where the count ends. Blocks stay blocks.

use crate::error::Result;
use crate::query::batch::Batch;
use crate::query::exec::{BoxOperator, ExecContext, Operator, next_filled};

/// Passes the first `left` documents, then stops reading.
pub struct Limit {
    input: Option<BoxOperator>,
    left: u64,
}

impl Limit {
    /// Passes `count` documents.
    pub fn new(input: BoxOperator, count: u64) -> Self {
        Self {
            input: (count > 0).then_some(input),
            left: count,
        }
    }
}

impl Operator for Limit {
    fn next(&mut self, cx: &ExecContext<'_>) -> Result<Option<Batch>> {
        let Some(input) = &mut self.input else {
            return Ok(None);
        };
        let Some(mut batch) = next_filled(input, cx)? else {
            // A tailable scan may return more later.
            return Ok(None);
        };
        if batch.len() as u64 >= self.left {
            batch.truncate(usize::try_from(self.left).unwrap_or(usize::MAX));
            // Frees the memory of the operators below.
            self.input = None;
        } else {
            self.left -= batch.len() as u64;
        }
        Ok(Some(batch))
    }

    fn is_exhausted(&self) -> bool {
        self.input.as_ref().is_none_or(|input| input.is_exhausted())
    }
}

/// Drops the first documents.
pub struct Skip {
    input: BoxOperator,
    left: u64,
}

impl Skip {
    /// Drops `count` documents.
    pub fn new(input: BoxOperator, count: u64) -> Self {
        Self { input, left: count }
    }
}

impl Operator for Skip {
    fn next(&mut self, cx: &ExecContext<'_>) -> Result<Option<Batch>> {
        loop {
            let Some(mut batch) = next_filled(&mut self.input, cx)? else {
                return Ok(None);
            };
            if self.left >= batch.len() as u64 {
                self.left -= batch.len() as u64;
                continue;
            }
            batch.skip(usize::try_from(self.left).unwrap_or(usize::MAX));
            self.left = 0;
            return Ok(Some(batch));
        }
    }

    fn is_exhausted(&self) -> bool {
        self.input.is_exhausted()
    }
}

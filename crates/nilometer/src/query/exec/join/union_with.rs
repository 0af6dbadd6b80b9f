//! `$unionWith`: returns the first input, then the second.

use crate::error::Result;
use crate::query::batch::Batch;
use crate::query::exec::{BoxOperator, ExecContext, Operator};

/// Concatenates two inputs.
pub struct UnionWith {
    first: Option<BoxOperator>,
    second: BoxOperator,
}

impl UnionWith {
    /// Returns `first`, then `second`.
    pub fn new(first: BoxOperator, second: BoxOperator) -> Self {
        Self {
            first: Some(first),
            second,
        }
    }
}

impl Operator for UnionWith {
    fn next(&mut self, cx: &ExecContext<'_>) -> Result<Option<Batch>> {
        if let Some(first) = &mut self.first {
            if let Some(batch) = first.next(cx)? {
                return Ok(Some(batch));
            }
            self.first = None;
        }
        self.second.next(cx)
    }

    fn is_exhausted(&self) -> bool {
        self.first.is_none() && self.second.is_exhausted()
    }
}

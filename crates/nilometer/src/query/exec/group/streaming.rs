//! `$_internalStreamingGroup`: groups whose key follows the input order are returned as soon as they are complete.
//!
//! ```text
//! sorted by time   09:58 09:59 │ 10:00 10:01 …      key {hour: {$dateTrunc: …}, host: "$m.host"}
//!                   these groups are complete as soon as the hour changes
//! ```
//!
//! The input is cut into segments in which the ordered key parts stay the same. An ordinary [`Group`] processes each segment,
//! spilling included, so groups are returned in order of first occurrence.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nilometer_bson::{Document, Value};

use super::Group;
use crate::error::Result;
use crate::eval::Expression;
use crate::query::batch::Batch;
use crate::query::exec::{BoxOperator, ExecContext, Operator, next_filled};
use crate::query::planner::physical::PhysicalGroup;

/// Groups an input that is ordered by parts of the key.
pub struct StreamingGroup {
    input: Arc<Mutex<Segments>>,
    plan: PhysicalGroup,
    group: Option<Group>,
}

/// The input, cut where an ordered part of the key changes.
struct Segments {
    input: BoxOperator,
    /// The ordered parts of the key.
    parts: Arc<[Expression]>,
    rows: VecDeque<Document>,
    /// Values of the ordered parts in the current segment.
    current: Option<Vec<Value>>,
    done: bool,
}

impl StreamingGroup {
    /// Groups `input`, which is ordered by `parts`, ascending or descending.
    pub fn new(input: BoxOperator, plan: PhysicalGroup, parts: Arc<[Expression]>) -> Self {
        Self {
            input: Arc::new(Mutex::new(Segments {
                input,
                parts,
                rows: VecDeque::new(),
                current: None,
                done: false,
            })),
            plan,
            group: None,
        }
    }

    fn segments(&self) -> MutexGuard<'_, Segments> {
        self.input.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Segments {
    /// Reads until a row is buffered; false at the end of the input.
    fn fill(&mut self, cx: &ExecContext<'_>) -> Result<bool> {
        if self.rows.is_empty() && !self.done {
            match next_filled(&mut self.input, cx)? {
                Some(batch) => self.rows.extend(batch.into_rows()?),
                None => self.done = true,
            }
        }
        Ok(!self.rows.is_empty())
    }

    /// Takes the buffered rows of the segment; none at its end.
    fn take(&mut self, cx: &ExecContext<'_>) -> Result<Vec<Document>> {
        let mut taken = Vec::new();
        if !self.fill(cx)? {
            return Ok(taken);
        }
        while let Some(row) = self.rows.front() {
            let parts = self.parts.iter();
            let values = parts.map(|part| part.evaluate(row.as_ref(), &cx.eval));
            let values = values.collect::<Result<Vec<Value>>>()?;
            let current = self.current.get_or_insert_with(|| values.clone());
            let is_same = current.iter().zip(&values).all(|(a, b)| {
                nilometer_bson::order::compare_with(a.as_ref(), b.as_ref(), cx.eval.collator)
                    .is_eq()
            });
            if !is_same {
                break;
            }
            taken.extend(self.rows.pop_front());
        }
        Ok(taken)
    }
}

/// One segment as an operator.
struct Segment(Arc<Mutex<Segments>>);

impl Operator for Segment {
    fn next(&mut self, cx: &ExecContext<'_>) -> Result<Option<Batch>> {
        let mut segments = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let rows = segments.take(cx)?;
        Ok((!rows.is_empty()).then_some(Batch::Rows(rows)))
    }
}

impl Operator for StreamingGroup {
    fn next(&mut self, cx: &ExecContext<'_>) -> Result<Option<Batch>> {
        loop {
            cx.operation.check_interrupt()?;
            let group = match &mut self.group {
                Some(group) => group,
                None => {
                    let mut segments = self.segments();
                    segments.current = None;
                    if !segments.fill(cx)? {
                        return Ok(None);
                    }
                    drop(segments);
                    let segment = Box::new(Segment(Arc::clone(&self.input)));
                    self.group.insert(Group::new(segment, self.plan.clone()))
                }
            };
            match group.next(cx)? {
                Some(batch) => return Ok(Some(batch)),
                None => self.group = None,
            }
        }
    }

    fn is_exhausted(&self) -> bool {
        let segments = self.segments();
        let no_more = segments.done || segments.input.is_exhausted();
        let given = self.group.as_ref().is_none_or(Operator::is_exhausted);
        no_more && segments.rows.is_empty() && given
    }
}

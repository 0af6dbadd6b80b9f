//! stub
use super::{BoxOperator, ExecContext, Operator};
use crate::error::Result;
use crate::query::batch::Batch;
use crate::query::pipeline::GroupStage;
/// x
pub struct Group {
    input: BoxOperator,
}
impl Group {
    pub fn new(input: BoxOperator, _: GroupStage) -> Self {
        Self { input }
    }
}
impl Operator for Group {
    fn next(&mut self, cx: &ExecContext<'_>) -> Result<Option<Batch>> {
        self.input.next(cx)
    }
}

//! An access path as a write follows it: keys of records, which the writer tests itself.

use crate::error::Result;
use crate::query::exec::index_read::{AccessStats, stream};
use crate::query::exec::index_scan::{KeyStream, Next, ViewAt};
use crate::query::pipeline::Stage;
use crate::query::planner::access::IndexAccess;
use crate::query::planner::logical::{AccessPath, Input, LogicalPlan, RecordInput};
use crate::write::{CandidateKey, CandidateKeys, Candidates};

/// The records an access path leads to.
pub struct Targets {
    input: RecordInput,
    access: IndexAccess,
    in_order: bool,
}

impl Targets {
    /// Those of a plan that reads by index; `None` for one that does not.
    pub fn of(plan: &LogicalPlan) -> Option<Self> {
        let Input::Records(input) = &plan.input else {
            return None;
        };
        let AccessPath::Index(access) = &input.access else {
            return None;
        };
        Some(Self {
            input: (**input).clone(),
            access: (**access).clone(),
            in_order: !plan
                .stages
                .iter()
                .any(|stage| matches!(stage, Stage::Sort(_))),
        })
    }
}

impl Candidates for Targets {
    fn begin(&self) -> Box<dyn CandidateKeys + '_> {
        for scan in self.access.keys.scans() {
            scan.index.stored.count_use();
        }
        Box::new(TargetKeys {
            targets: self,
            keys: stream(&self.access.keys, &AccessStats::of(&self.access)),
            views: 0,
        })
    }

    fn is_in_order(&self) -> bool {
        self.in_order
    }
}

struct TargetKeys<'a> {
    targets: &'a Targets,
    keys: Box<dyn KeyStream>,
    views: u64,
}

impl CandidateKeys for TargetKeys<'_> {
    fn next(&mut self, most: usize) -> Result<Option<Vec<CandidateKey>>> {
        let mut found = Vec::new();
        let Some(view) = self.targets.input.source.view()? else {
            return Ok(None);
        };
        self.views += 1;
        let at = ViewAt {
            view: &*view,
            number: self.views,
        };
        while found.len() < most {
            match self.keys.next(at)? {
                Next::Entry(entry, _) => found.push(entry.record),
                Next::NotYet => break,
                Next::End if found.is_empty() => return Ok(None),
                Next::End => break,
            }
        }
        Ok(Some(found))
    }
}

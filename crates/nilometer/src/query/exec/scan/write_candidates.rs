//! The record keys of an access path, for writes, which test the records themselves.

use std::sync::Arc;

use crate::error::Result;
use crate::query::exec::memory::MemoryPool;
use crate::query::exec::scan::index_fetch::{AccessStats, stream};
use crate::query::exec::scan::index_scan::{KeyStream, Next, ViewAt};
use crate::query::planner::access::IndexAccess;
use crate::query::planner::access::cluster::ClusterBound;
use crate::query::planner::physical::{
    AccessPath, Input, PhysicalPlan, PhysicalStage, RecordInput,
};
use crate::query::source::{RecordKey, RecordScanOptions};
use crate::write::{CandidateKey, CandidateKeys, Candidates};

/// The records an access path leads to.
pub struct Targets {
    input: RecordInput,
    way: Way,
    in_order: bool,
    /// The memory of queries.
    memory: Arc<MemoryPool>,
}

/// The access path.
enum Way {
    Index(Box<IndexAccess>),
    /// Records of a clustered collection between two keys.
    Clustered {
        min: Option<RecordKey>,
        max: Option<RecordKey>,
    },
}

impl Targets {
    /// Returns the targets of a plan that reads by index or a part of a clustered collection; `None` for
    /// others.
    pub fn of(plan: &PhysicalPlan, memory: &Arc<MemoryPool>) -> Option<Self> {
        let Input::Records(input) = &plan.input else {
            return None;
        };
        let way = match &input.access {
            AccessPath::Index(access) => Way::Index(access.clone()),
            AccessPath::ClusteredScan { min, max } => {
                let key = |bound: &Option<ClusterBound>| bound.as_ref().map(|b| b.key.clone());
                Way::Clustered {
                    min: key(min),
                    max: key(max),
                }
            }
            _ => return None,
        };
        Some(Self {
            input: (**input).clone(),
            way,
            in_order: !plan
                .stages
                .iter()
                .any(|stage| matches!(stage, PhysicalStage::Sort(_))),
            memory: Arc::clone(memory),
        })
    }
}

impl Candidates for Targets {
    fn begin(&self) -> Box<dyn CandidateKeys + '_> {
        match &self.way {
            Way::Index(access) => {
                for scan in access.keys.scans() {
                    scan.index.stored.count_use();
                }
                Box::new(TargetKeys {
                    targets: self,
                    keys: stream(&access.keys, &AccessStats::of(access)),
                    views: 0,
                })
            }
            Way::Clustered { min, max } => Box::new(ClusteredKeys {
                input: &self.input,
                rest: RecordScanOptions {
                    direction: self.input.direction,
                    min: min.clone(),
                    max: max.clone(),
                    ..RecordScanOptions::default()
                },
            }),
        }
    }

    fn is_in_order(&self) -> bool {
        self.in_order
    }
}

/// Record keys in key order, read in steps.
struct ClusteredKeys<'a> {
    input: &'a RecordInput,
    rest: RecordScanOptions,
}

impl CandidateKeys for ClusteredKeys<'_> {
    fn next(&mut self, most: usize) -> Result<Option<Vec<CandidateKey>>> {
        let mut found = Vec::new();
        for record in self.input.source.scan(&self.rest)?.take(most) {
            found.push(record?.0);
        }
        if let Some(last) = found.last() {
            self.rest.start_after = Some(last.clone());
        }
        Ok((!found.is_empty()).then_some(found))
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
            memory: &self.targets.memory,
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

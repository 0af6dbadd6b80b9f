//! Which merges run: SlateDB's policy, and complete merges when somebody asks for one.
//!
//! A complete merge is proposed from within, as the policy's are, and while no other runs. SlateDB also takes merges from
//! outside, but a merge that is stored by somebody else at the same moment as one of the policy ends its compactor: the
//! ids of merges must not go back in time, and no two may write the same run.

use std::sync::{Arc, Mutex};

use slatedb::Error;
use slatedb::compactor::{
    CompactionScheduler, CompactionSchedulerSupplier, CompactionSpec, CompactionStatus,
    CompactorStateView, SizeTieredCompactionSchedulerSupplier, SourceId,
};
use slatedb::config::CompactorOptions;
use slatedb::manifest::VersionedManifest;

use crate::lock::lock;

/// The complete merges that were asked for.
#[derive(Default)]
pub(crate) struct CompleteMerges(Mutex<MergeRequests>);

#[derive(Default)]
struct MergeRequests {
    /// The last request.
    asked: u64,
    /// The manifest whose tables it merges, or a later one.
    manifest: u64,
    /// The merge that was proposed, and the last request that it serves.
    proposed: Option<(CompactionSpec, u64)>,
    /// The last request that was served.
    served: u64,
    /// Merges that failed.
    failures: u64,
}

impl CompleteMerges {
    /// Asks for a merge of all tables of this manifest. Returns the number of the request.
    pub(crate) fn ask(&self, manifest: u64) -> u64 {
        let mut requests = lock(&self.0);
        requests.asked += 1;
        requests.manifest = requests.manifest.max(manifest);
        requests.asked
    }

    /// True if a request was served.
    pub(crate) fn is_served(&self, request: u64) -> bool {
        lock(&self.0).served >= request
    }

    /// Returns how many complete merges failed.
    pub(crate) fn failures(&self) -> u64 {
        lock(&self.0).failures
    }

    /// Returns the merge that starts now for a request, or none while it must wait; `None` if no request waits.
    fn propose(&self, state: &CompactorStateView) -> Option<Vec<CompactionSpec>> {
        let mut requests = lock(&self.0);
        let known = || {
            let known = state.compactions().into_iter();
            known.flat_map(|known| known.recent_compactions())
        };
        let is_active = |status| {
            !matches!(
                status,
                CompactionStatus::Completed | CompactionStatus::Failed
            )
        };
        if let Some((spec, request)) = requests.proposed.clone() {
            let same = known().filter(|merge| *merge.spec() == spec);
            match same
                .max_by_key(|merge| merge.id())
                .map(|merge| merge.status())
            {
                Some(status) if is_active(status) => return Some(Vec::new()),
                Some(CompactionStatus::Completed) => requests.served = request,
                // Also if it is not known, because it did not become a merge.
                _ => requests.failures += 1,
            }
            requests.proposed = None;
        }
        if requests.served == requests.asked {
            return None;
        }
        let is_old = state.manifest().id() < requests.manifest;
        if is_old || known().any(|merge| is_active(merge.status())) {
            return Some(Vec::new());
        }
        let Some(spec) = everything(state.manifest()) else {
            requests.served = requests.asked;
            return None;
        };
        requests.proposed = Some((spec.clone(), requests.asked));
        Some(vec![spec])
    }
}

/// Returns the merge of all tables; `None` if there are none.
fn everything(manifest: &VersionedManifest) -> Option<CompactionSpec> {
    let young = manifest.l0().iter().map(|view| SourceId::SstView(view.id));
    let merged = manifest.compacted().iter();
    let merged = merged.map(|run| SourceId::SortedRun(run.id));
    let sources = young.chain(merged).collect::<Vec<_>>();
    let oldest = manifest.compacted().iter().map(|run| run.id).min();
    (!sources.is_empty()).then(|| CompactionSpec::new(sources, oldest.unwrap_or_default()))
}

/// Makes the policy.
pub(crate) struct MergeSchedule(pub(crate) Arc<CompleteMerges>);

impl CompactionSchedulerSupplier for MergeSchedule {
    fn compaction_scheduler(
        &self,
        options: &CompactorOptions,
    ) -> Box<dyn CompactionScheduler + Send + Sync> {
        let by_size = SizeTieredCompactionSchedulerSupplier::new();
        Box::new(MergeScheduler {
            by_size: by_size.compaction_scheduler(options),
            complete: Arc::clone(&self.0),
        })
    }
}

struct MergeScheduler {
    by_size: Box<dyn CompactionScheduler + Send + Sync>,
    complete: Arc<CompleteMerges>,
}

impl CompactionScheduler for MergeScheduler {
    fn propose(&self, state: &CompactorStateView) -> Vec<CompactionSpec> {
        let complete = self.complete.propose(state);
        complete.unwrap_or_else(|| self.by_size.propose(state))
    }

    fn validate(
        &self,
        state: &CompactorStateView,
        spec: &CompactionSpec,
    ) -> std::result::Result<(), Error> {
        self.by_size.validate(state, spec)
    }
}

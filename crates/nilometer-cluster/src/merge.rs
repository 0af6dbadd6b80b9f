//! Merging everything: one table for each key, no older versions, no deleted entries, no dropped keyspaces.
//!
//! SlateDB merges by itself what has about the same size. A complete merge is asked for as a compaction of all tables and
//! runs where the others run; one that comes between takes some of the tables away, and the next attempt takes the rest.

use std::time::Duration;

use nilometer_storage::{Error, Result};
use slatedb::ErrorKind;
use slatedb::admin::Admin;
use slatedb::compactor::{CompactionSpec, CompactionStatus, SourceId};
use slatedb::config::{FlushOptions, FlushType};
use slatedb::manifest::VersionedManifest;

use crate::core::Core;

/// Attempts until a complete merge is given up.
const ATTEMPTS_MAX: usize = 100;

/// Time between looks at a merge that runs.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

impl Core {
    /// Flushes the memtable and merges all tables.
    pub(crate) fn settle(&self) -> Result<()> {
        self.check_open()?;
        let flush = FlushOptions {
            flush_type: FlushType::MemTable,
        };
        self.wait_for(self.db.flush_with_options(flush))?;
        let admin = Admin::builder(self.path.clone(), self.store.clone())
            .with_system_clock(self.clock.clone())
            .build();
        for _ in 0..ATTEMPTS_MAX {
            self.wait_for(self.db.refresh_manifest())?;
            let Some(spec) = everything(&self.db.manifest()) else {
                return Ok(());
            };
            if self.wait_for(merge(&admin, spec))? {
                return self.wait_for(self.db.refresh_manifest());
            }
            self.check_open()?;
            std::thread::sleep(LOOK_INTERVAL);
        }
        Err(Error::Store {
            reason: "other merges did not let a complete one run".to_owned(),
        })
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

/// Asks for a merge and waits for its end. True if it is complete.
async fn merge(admin: &Admin, spec: CompactionSpec) -> std::result::Result<bool, slatedb::Error> {
    let asked = match admin.submit_compaction(spec).await {
        Ok(asked) => asked,
        // The compactor stored its state in between, with a later time.
        Err(error) if error.kind() == ErrorKind::Invalid => return Ok(false),
        Err(error) => return Err(error),
    };
    loop {
        // A merge that is no longer listed has ended; whether it was complete is not known.
        let now = admin.read_compaction(asked.id(), None).await?;
        match now.map(|merge| merge.status()) {
            Some(CompactionStatus::Completed) => return Ok(true),
            Some(CompactionStatus::Failed) | None => return Ok(false),
            Some(_) => tokio::time::sleep(LOOK_INTERVAL).await,
        }
    }
}

//! Merging everything: one table for each key, no older versions, no deleted entries, no dropped keyspaces.
//!
//! SlateDB merges by itself what has about the same size. A complete merge is one of all tables; it waits until no other
//! runs, and none begins meanwhile (see [`crate::schedule`]).

use std::time::Duration;

use nilometer_storage::{Error, Result};
use slatedb::config::{FlushOptions, FlushType};

use crate::core::Core;

/// Failures until a complete merge is given up.
const FAILURES_MAX: u64 = 100;

/// Time between looks at a merge that runs.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

impl Core {
    /// Flushes the memtable and merges all tables; leaves merging to a separate compactor, if one does it.
    pub(crate) fn settle(&self) -> Result<()> {
        self.check_open()?;
        let flush = FlushOptions {
            flush_type: FlushType::MemTable,
        };
        self.wait_for(self.db.flush_with_options(flush))?;
        self.wait_for(self.db.refresh_manifest())?;
        if !self.merges_itself {
            return Ok(());
        }
        let failures_before = self.merges.failures();
        let request = self.merges.ask(self.db.manifest().id());
        while !self.merges.is_served(request) {
            self.check_open()?;
            if self.merges.failures() - failures_before >= FAILURES_MAX {
                return Err(Error::Store {
                    reason: "a complete merge failed again and again".to_owned(),
                });
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
        self.wait_for(self.db.refresh_manifest())
    }
}

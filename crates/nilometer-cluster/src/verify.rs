//! Verification: every stored block is read from the store, past all caches.
//!
//! Blocks, indexes and the log have checksums, which SlateDB compares when it reads them. So a reader of its own, without
//! caches, that scans all keys reads and compares every byte that is referred to.

use nilometer_storage::Result;
use slatedb::config::{DbReaderOptions, ScanOptions};
use slatedb::{DbReader, DbReaderMode};

use crate::core::Core;

/// Bytes of one read of the store.
const READ_BYTES: usize = 1024 * 1024;

/// Reads of the store in flight for one table.
const READS: usize = 4;

impl Core {
    /// Reads everything and returns the first damage.
    pub(crate) fn verify(&self) -> Result<()> {
        self.check_open()?;
        self.flush_log()?;
        self.wait_for(self.read_everything())
    }

    async fn read_everything(&self) -> std::result::Result<(), slatedb::Error> {
        let reader = DbReader::builder(self.path.to_string(), self.store.clone())
            // Writes nothing. What is read is kept for as long as garbage is, see `options`.
            .with_reader_mode(DbReaderMode::FollowLatest)
            .with_options(DbReaderOptions::default())
            .with_db_cache_disabled()
            .build()
            .await?;
        let options = ScanOptions::default()
            .with_read_ahead_bytes(READ_BYTES)
            .with_max_fetch_tasks(READS);
        let mut entries = reader
            .scan_with_options::<std::ops::RangeFull>(.., &options)
            .await?;
        while entries.next().await?.is_some() {}
        reader.close().await
    }
}

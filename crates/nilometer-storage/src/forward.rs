//! Engines over another engine: methods that only pass a call on.

/// Implements methods of [`Engine`](crate::Engine) by those of a field. The other methods are written beside the invocation.
///
/// ```
/// use nilometer_storage::{Durability, Engine, KeyspaceId, MemoryEngine, NewKeyspace, Result, WriteBatch, forward_engine};
///
/// /// An engine that makes every commit durable.
/// struct Durable {
///     inner: MemoryEngine,
/// }
///
/// impl Engine for Durable {
///     forward_engine!(inner: create_keyspaces, keyspaces, drop_keyspace, snapshot, sync, settle, checkpoint, verify);
///     forward_engine!(inner: keyspace_statistics, statistics, close);
///
///     fn commit(&self, batch: WriteBatch, _: Durability) -> Result<u64> {
///         self.inner.commit(batch, Durability::Sync)
///     }
/// }
/// ```
#[macro_export]
macro_rules! forward_engine {
    ($inner:tt: $($method:ident),+) => {
        $($crate::forward_engine!(@one $inner $method);)+
    };
    (@one $inner:tt create_keyspaces) => {
        fn create_keyspaces(
            &self,
            new: &[$crate::NewKeyspace<'_>],
        ) -> $crate::Result<Vec<$crate::KeyspaceId>> {
            self.$inner.create_keyspaces(new)
        }
    };
    (@one $inner:tt import_keyspace) => {
        fn import_keyspace(&self, keyspace: &$crate::Keyspace) -> $crate::Result<()> {
            self.$inner.import_keyspace(keyspace)
        }
    };
    (@one $inner:tt keyspaces) => {
        fn keyspaces(&self) -> Vec<$crate::Keyspace> {
            self.$inner.keyspaces()
        }
    };
    (@one $inner:tt drop_keyspace) => {
        fn drop_keyspace(&self, id: $crate::KeyspaceId) -> $crate::Result<()> {
            self.$inner.drop_keyspace(id)
        }
    };
    (@one $inner:tt confirm) => {
        fn confirm(&self) -> $crate::Result<()> {
            self.$inner.confirm()
        }
    };
    (@one $inner:tt snapshot) => {
        fn snapshot(&self) -> $crate::Result<Box<dyn $crate::Snapshot>> {
            self.$inner.snapshot()
        }
    };
    (@one $inner:tt sync) => {
        fn sync(&self) -> $crate::Result<()> {
            self.$inner.sync()
        }
    };
    (@one $inner:tt settle) => {
        fn settle(&self) -> $crate::Result<()> {
            self.$inner.settle()
        }
    };
    (@one $inner:tt settle_keyspace) => {
        fn settle_keyspace(&self, id: $crate::KeyspaceId) -> $crate::Result<()> {
            self.$inner.settle_keyspace(id)
        }
    };
    (@one $inner:tt checkpoint) => {
        fn checkpoint(&self, target: &::std::path::Path) -> $crate::Result<()> {
            self.$inner.checkpoint(target)
        }
    };
    (@one $inner:tt backup_source) => {
        fn backup_source(&self) -> Option<$crate::BackupSource> {
            self.$inner.backup_source()
        }
    };
    (@one $inner:tt verify) => {
        fn verify(&self) -> $crate::Result<()> {
            self.$inner.verify()
        }
    };
    (@one $inner:tt keyspace_statistics) => {
        fn keyspace_statistics(
            &self,
            id: $crate::KeyspaceId,
        ) -> $crate::Result<$crate::KeyspaceStatistics> {
            self.$inner.keyspace_statistics(id)
        }
    };
    (@one $inner:tt keys_estimate) => {
        fn keys_estimate(&self, id: $crate::KeyspaceId) -> $crate::Result<u64> {
            self.$inner.keys_estimate(id)
        }
    };
    (@one $inner:tt key_bytes_max) => {
        fn key_bytes_max(&self) -> usize {
            self.$inner.key_bytes_max()
        }
    };
    (@one $inner:tt statistics) => {
        fn statistics(&self) -> $crate::EngineStatistics {
            self.$inner.statistics()
        }
    };
    (@one $inner:tt is_read_only) => {
        fn is_read_only(&self) -> bool {
            self.$inner.is_read_only()
        }
    };
    (@one $inner:tt check_writable) => {
        fn check_writable(&self) -> $crate::Result<()> {
            self.$inner.check_writable()
        }
    };
    (@one $inner:tt disk_waits) => {
        fn disk_waits(&self) -> $crate::DiskWaits {
            self.$inner.disk_waits()
        }
    };
    (@one $inner:tt close) => {
        fn close(&self) -> $crate::Result<()> {
            self.$inner.close()
        }
    };
}

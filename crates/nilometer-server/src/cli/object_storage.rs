//! Databases on object storage, behind the Cargo feature `cluster`. Without it the same functions refuse.

#[cfg(feature = "cluster")]
mod backups_with_cluster;
#[cfg(not(feature = "cluster"))]
mod backups_without_cluster;
#[cfg(feature = "cluster")]
mod cluster;
#[cfg(feature = "cluster")]
mod compactor_with_cluster;
#[cfg(not(feature = "cluster"))]
mod compactor_without_cluster;
#[cfg(feature = "cluster")]
mod member;
#[cfg(feature = "cluster")]
mod with_cluster;
#[cfg(not(feature = "cluster"))]
mod without_cluster;

#[cfg(feature = "cluster")]
pub use backups_with_cluster::ObjectBackups;
#[cfg(feature = "cluster")]
pub(super) use backups_with_cluster::RunningBackup;
#[cfg(not(feature = "cluster"))]
pub use backups_without_cluster::ObjectBackups;
#[cfg(not(feature = "cluster"))]
pub(super) use backups_without_cluster::RunningBackup;
#[cfg(feature = "cluster")]
pub(super) use cluster::Node;
#[cfg(feature = "cluster")]
pub(super) use compactor_with_cluster::run_compactor;
#[cfg(not(feature = "cluster"))]
pub(super) use compactor_without_cluster::run_compactor;
#[cfg(feature = "cluster")]
pub(super) use member::Member;
#[cfg(feature = "cluster")]
pub use with_cluster::ObjectStorage;
#[cfg(feature = "cluster")]
pub(super) use with_cluster::StoredDatabase;
#[cfg(not(feature = "cluster"))]
pub use without_cluster::ObjectStorage;
#[cfg(not(feature = "cluster"))]
pub(super) use without_cluster::{Member, Node, StoredDatabase};

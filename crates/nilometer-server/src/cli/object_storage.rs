//! Databases on object storage, behind the Cargo feature `cluster`. Without it the same functions refuse.

#[cfg(feature = "cluster")]
mod with_cluster;
#[cfg(not(feature = "cluster"))]
mod without_cluster;

#[cfg(feature = "cluster")]
pub use with_cluster::ObjectStorage;
#[cfg(not(feature = "cluster"))]
pub use without_cluster::ObjectStorage;

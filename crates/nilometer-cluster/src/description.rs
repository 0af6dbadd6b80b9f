//! What all processes of a cluster know of it: an object that is created once.
//!
//! ```text
//! <path>/cluster        number of the form, identity, partitions, key: each in a line
//! <path>/config         the database with the catalog, the users and the placements
//! <path>/p0001, …       a database for each partition
//! <path>/heartbeats     those of the databases and of the processes (`board`)
//! ```
//!
//! The key is random. Processes use it to authenticate to each other. It is stored beside the data: a client that can read
//! the key can read all data of the cluster as well.

use std::fmt::Write;
use std::sync::Arc;

use futures::TryStreamExt;
use nilometer_storage::{Error, Result};
use object_store::path::Path;
use object_store::{Error as StoreError, ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use ring::rand::{SecureRandom, SystemRandom};

use crate::error::store_error;

/// The name of the database with the catalog.
pub(crate) const CATALOG: &str = "config";

/// The name of the object.
const CLUSTER: &str = "cluster";

/// The number of the form of the object.
const FORM: &str = "nilometer cluster 1";

/// The object while a copy of another cluster is not complete.
const UNFINISHED: &str = "nilometer cluster, unfinished copy\n";

/// Most partitions of a cluster: every process lists the heartbeats of all, in at most five pages with those of the nodes.
const PARTITIONS_MAX: u32 = 2000;

/// Partitions of a cluster if their number is not given.
const PARTITIONS_DEFAULT: u32 = 4;

/// Bytes of the key.
const KEY_BYTES: usize = 32;

/// Bytes of the identity: those of an ObjectId.
const ID_BYTES: usize = 12;

/// What all processes of a cluster know of it.
#[derive(Clone, PartialEq, Eq)]
pub struct ClusterDescription {
    /// Identifies the cluster.
    pub id: [u8; ID_BYTES],
    /// The number of its partitions.
    pub partitions: u32,
    /// The secret of its processes.
    pub key: String,
}

/// The key is never printed.
impl std::fmt::Debug for ClusterDescription {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClusterDescription")
            .field("id", &self.id)
            .field("partitions", &self.partitions)
            .finish_non_exhaustive()
    }
}

impl ClusterDescription {
    /// Returns the description of a new cluster.
    pub(crate) fn new(partitions: u32) -> Result<Self> {
        Ok(Self {
            id: random()?,
            partitions,
            key: hexadecimal(&random::<KEY_BYTES>()?),
        })
    }

    /// True if a database of the cluster has this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        name == CATALOG || self.names().iter().any(|known| known == name)
    }

    /// Returns the names of the partitions.
    pub fn names(&self) -> Vec<String> {
        (1..=self.partitions).map(|n| format!("p{n:04}")).collect()
    }

    fn encode(&self) -> Vec<u8> {
        let Self {
            id,
            partitions,
            key,
        } = self;
        let id = hexadecimal(id);
        format!("{FORM}\n{id}\n{partitions}\n{key}\n").into_bytes()
    }

    fn decode(contents: &[u8]) -> Option<Self> {
        let mut lines = std::str::from_utf8(contents).ok()?.lines();
        if lines.next()? != FORM {
            return None;
        }
        let is_hex = |text: &&str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let id = lines.next().filter(is_hex);
        let id = id.filter(|id| id.len() == 2 * ID_BYTES)?;
        let digits = |at: usize| u8::from_str_radix(id.get(2 * at..2 * at + 2)?, 16).ok();
        let partitions: u32 = lines.next()?.parse().ok()?;
        let key = lines.next().filter(|key| key.len() == 2 * KEY_BYTES);
        let mut bytes = [0; ID_BYTES];
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = digits(at)?;
        }
        let found = Self {
            id: bytes,
            partitions,
            key: key.filter(is_hex)?.to_owned(),
        };
        (1..=PARTITIONS_MAX).contains(&partitions).then_some(found)
    }
}

fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| refused("the system gives no random bytes"))?;
    Ok(bytes)
}

fn hexadecimal(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

fn refused(reason: &str) -> Error {
    Error::Store {
        reason: reason.to_owned(),
    }
}

/// Returns the description of the cluster at a path, which is created if there is none. `partitions` must be its number of
/// partitions, if it is given.
pub(crate) async fn find_or_create(
    store: &Arc<dyn ObjectStore>,
    path: &str,
    partitions: Option<u32>,
) -> Result<ClusterDescription> {
    let found = match find(store, path).await? {
        Some(found) => found,
        None => {
            check_unused(store, path).await?;
            let new = ClusterDescription::new(partitions.unwrap_or(PARTITIONS_DEFAULT))?;
            let object = Path::from(path).join(CLUSTER);
            let options = PutOptions::from(PutMode::Create);
            match store.put_opts(&object, new.encode().into(), options).await {
                Ok(_) => new,
                // Another process was faster, or a repeated request was: the object says.
                Err(StoreError::AlreadyExists { .. } | StoreError::Precondition { .. }) => {
                    let found = find(store, path).await?;
                    found.ok_or_else(|| refused("the description of the cluster is gone"))?
                }
                Err(error) => return Err(store_error("create the cluster", &error)),
            }
        }
    };
    match partitions.filter(|given| *given != found.partitions) {
        None => Ok(found),
        Some(given) => Err(refused(&format!(
            "the cluster has {} partitions, not {given}; their number is set when it is created",
            found.partitions
        ))),
    }
}

/// Returns the description of the cluster at a path, if there is one.
pub(crate) async fn find(
    store: &Arc<dyn ObjectStore>,
    path: &str,
) -> Result<Option<ClusterDescription>> {
    let failed = |error: &StoreError| store_error("read the description of the cluster", error);
    let found = match store.get(&Path::from(path).join(CLUSTER)).await {
        Ok(found) => found,
        Err(StoreError::NotFound { .. }) => return Ok(None),
        Err(error) => return Err(failed(&error)),
    };
    let contents = found.bytes().await.map_err(|error| failed(&error))?;
    if contents == UNFINISHED.as_bytes() {
        return Err(refused(
            "a copy of a cluster is not complete: delete what is there, and copy again",
        ));
    }
    let description = ClusterDescription::decode(&contents);
    let description = description
        .ok_or_else(|| refused("the object `cluster` is not one of this version, or is damaged"))?;
    Ok(Some(description))
}

/// Marks a path as that of a cluster whose databases are not there yet. Fails if another process has one there.
pub(crate) async fn begin_copy(store: &Arc<dyn ObjectStore>, path: &str) -> Result<()> {
    let object = Path::from(path).join(CLUSTER);
    let options = PutOptions::from(PutMode::Create);
    let put = store.put_opts(&object, UNFINISHED.into(), options).await;
    put.map_err(|error| store_error("create the cluster", &error))?;
    Ok(())
}

/// Describes a cluster whose databases are complete now.
pub(crate) async fn finish_copy(
    store: &Arc<dyn ObjectStore>,
    path: &str,
    description: &ClusterDescription,
) -> Result<()> {
    let object = Path::from(path).join(CLUSTER);
    let put = store.put(&object, description.encode().into()).await;
    put.map_err(|error| store_error("describe the cluster", &error))?;
    Ok(())
}

/// Refuses a path with a database that no cluster has made.
async fn check_unused(store: &Arc<dyn ObjectStore>, path: &str) -> Result<()> {
    match has_database(store, path).await? {
        false => Ok(()),
        true => Err(refused(
            "there is a database of a single server; a cluster begins in an empty place",
        )),
    }
}

/// True if there is a database at a path, not a cluster of them.
pub(crate) async fn has_database(store: &Arc<dyn ObjectStore>, path: &str) -> Result<bool> {
    let manifests = Path::from(path).join("manifest");
    let first = store.list(Some(&manifests)).try_next().await;
    let first = first.map_err(|error| store_error("look for a database", &error))?;
    Ok(first.is_some())
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;

    use super::*;
    use crate::engine::runtime;

    #[test]
    fn all_processes_find_the_same_cluster() {
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let runtime = runtime("garden", 1).expect("threads");
        let open = |partitions| runtime.block_on(find_or_create(&store, "garden", partitions));
        let first = open(Some(3)).expect("created");
        assert_eq!(first.names(), ["p0001", "p0002", "p0003"]);
        assert_eq!(open(None).expect("found"), first);
        assert_eq!(open(Some(3)).expect("found"), first);
        let other = open(Some(4)).expect_err("another number").to_string();
        assert!(other.contains("has 3 partitions, not 4"), "{other}");
        assert!(!format!("{first:?}").contains(&first.key));
        let elsewhere = runtime.block_on(find_or_create(&store, "other", None));
        let elsewhere = elsewhere.expect("created");
        assert_eq!(elsewhere.partitions, PARTITIONS_DEFAULT);
        assert_ne!((&elsewhere.id, &elsewhere.key), (&first.id, &first.key));
    }

    #[test]
    fn a_damaged_description_and_a_database_are_refused() {
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let runtime = runtime("garden", 1).expect("threads");
        let put = |path: &str, text: &str| {
            let text = text.to_owned().into();
            runtime
                .block_on(store.put(&Path::from(path), text))
                .expect("stored");
        };
        put("single/manifest/1", "x");
        let taken = runtime.block_on(find_or_create(&store, "single", None));
        assert!(
            taken
                .expect_err("a database")
                .to_string()
                .contains("single server")
        );
        let good = ClusterDescription::new(2).expect("random").encode();
        let good = String::from_utf8(good).expect("text");
        for bad in [
            String::new(),
            good.replace(" 1\n", " 2\n"),
            good.replace("\n2\n", "\n0\n"),
            good.replace("\n2\n", "\n2001\n"),
            good[..good.len() - 3].to_owned(),
        ] {
            put("damaged/cluster", &bad);
            let found = runtime.block_on(find(&store, "damaged"));
            assert!(found.is_err(), "{bad}");
        }
    }
}

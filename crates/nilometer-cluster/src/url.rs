//! The store that a URL names.
//!
//! | URL | store | credentials, endpoint |
//! |---|---|---|
//! | `s3://bucket/prefix` | S3 and what speaks its protocol | the environment: `AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`, … |
//! | `gs://bucket/prefix` | Google Cloud Storage | `GOOGLE_SERVICE_ACCOUNT`, `GOOGLE_BASE_URL`, … |
//! | `az://container/prefix` | Azure Blob Storage | `AZURE_STORAGE_ACCOUNT_NAME`, … |
//! | `file:///directory` | files, synced | |
//!
//! The variables are those of the crate `object_store`. A store is probed before it is used (see [`crate::probe()`]).

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nilometer_storage::{Error, Result};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::local::LocalFileSystem;
use object_store::{ClientConfigKey, ObjectStore, RetryConfig};

use crate::cluster_copy::{ClusterSource, ClusterTarget};
use crate::description::{self, CATALOG, ClusterDescription, find_or_create};
use crate::engine::runtime;
use crate::error::store_error;
use crate::probe::{StoreAbilities, probe};
use crate::{
    BackupStore, Claim, ClaimBoard, ClaimIntervals, Claimant, MemberReport, Presence,
    SlateCompactor, SlateEngine, SlateOptions, SlateReader, SlateSource,
};

/// The path of the database below the directory of a `file` URL.
const PATH_IN_DIRECTORY: &str = "nilometer";

/// Time after which a store that does not answer the probe, or a heartbeat, is given up.
const SHORT_RETRY_TIMEOUT: Duration = Duration::from_secs(10);

/// Retries of such a request.
const SHORT_RETRIES_MAX: usize = 3;

/// A URL of a database, and how its store is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorageUrl {
    text: String,
    place: Place,
    /// The path of the database in the store.
    path: String,
    endpoint: Option<String>,
    region: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    S3(String),
    Google(String),
    Azure(String),
    Directory(PathBuf),
}

/// Why a URL is not one of a database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidUrl(String);

impl fmt::Display for InvalidUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for InvalidUrl {}

impl fmt::Display for StorageUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

/// Returns the retries of requests whose failure is reported, or that are repeated otherwise.
fn impatient() -> RetryConfig {
    RetryConfig {
        max_retries: SHORT_RETRIES_MAX,
        retry_timeout: SHORT_RETRY_TIMEOUT,
        ..RetryConfig::default()
    }
}

impl StorageUrl {
    /// Parses a URL, with the endpoint and the region of its store if they are not those of the environment.
    pub fn parse(
        text: &str,
        endpoint: Option<&str>,
        region: Option<&str>,
    ) -> std::result::Result<Self, InvalidUrl> {
        let refused = |why: &str| InvalidUrl(format!("{text}: {why}"));
        let Some((scheme, rest)) = text.split_once("://") else {
            return Err(refused("not a URL such as s3://bucket/prefix"));
        };
        let (bucket, path) = rest.split_once('/').unwrap_or((rest, ""));
        let path = path.trim_matches('/').to_owned();
        let bucket = bucket.to_owned();
        let place = match scheme {
            "s3" => Place::S3(bucket),
            "gs" => Place::Google(bucket),
            "az" => Place::Azure(bucket),
            "file" if rest.starts_with('/') => Place::Directory(PathBuf::from(rest)),
            "file" => return Err(refused("the directory must begin with a slash: file:///…")),
            _ => {
                return Err(refused(
                    "the scheme is none of s3, gs, az and file; for a directory of the local engine use --dbpath",
                ));
            }
        };
        let path = match &place {
            Place::Directory(_) => PATH_IN_DIRECTORY.to_owned(),
            Place::S3(bucket) | Place::Google(bucket) | Place::Azure(bucket) => {
                if bucket.is_empty() || path.is_empty() {
                    return Err(refused("it must name a bucket and a prefix"));
                }
                if object_store::path::Path::parse(&path).is_err() {
                    return Err(refused("its prefix is not a path of an object"));
                }
                path
            }
        };
        let is_s3 = matches!(place, Place::S3(_));
        if region.is_some() && !is_s3 {
            return Err(refused("only a store with s3:// has a region"));
        }
        if endpoint.is_some() && matches!(place, Place::Directory(_)) {
            return Err(refused("a directory has no endpoint"));
        }
        Ok(Self {
            text: text.to_owned(),
            place,
            path,
            endpoint: endpoint.map(str::to_owned),
            region: region.map(str::to_owned),
        })
    }

    /// Probes the store and opens the database for reading and writing. A writer that has it open is fenced.
    pub fn open(&self, options: SlateOptions) -> Result<SlateEngine> {
        let options = self.probed(options)?;
        let (store, path) = self.connect()?;
        SlateEngine::open(store, path, &options)
    }

    /// Opens the database as [`Self::open`], in a store that was probed.
    pub fn open_probed(&self, options: &SlateOptions) -> Result<SlateEngine> {
        let (store, path) = self.connect()?;
        SlateEngine::open(store, path, options)
    }

    /// Opens the database as [`Self::open_probed`] when this process has its turn. `None` if it is the turn of another one by
    /// now: one that was paused before it opened must not serve, because the writer that it has fenced trusts its own lease.
    pub fn open_in_turn(
        &self,
        options: &SlateOptions,
        claim: &Claim,
    ) -> Result<Option<SlateEngine>> {
        let options = SlateOptions {
            lease: Some(claim.lease()),
            ..options.clone()
        };
        match self.open_probed(&options) {
            Ok(engine) => Ok(claim.is_held().then_some(engine)),
            Err(Error::Fenced { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Prepares to read the database while another process writes to it.
    pub fn reader(&self, options: &SlateOptions) -> Result<SlateReader> {
        let (store, path) = self.connect()?;
        SlateReader::new(store, path, options)
    }

    /// Makes this process a member of the set of those that have the database open.
    pub fn presence(&self, own: MemberReport, interval: Duration) -> Result<Presence> {
        let store = self.store(impatient())?;
        Presence::begin(store, &self.path, own, interval)
    }

    /// Probes the store and creates a database as the target of a copy: see [`SlateEngine::create_for_copy`].
    pub fn create_for_copy(&self, options: SlateOptions) -> Result<SlateEngine> {
        let options = self.probed(options)?;
        let (store, path) = self.connect()?;
        SlateEngine::create_for_copy(store, path, &options)
    }

    /// Opens the database for reading. A writer that has it open is not disturbed.
    pub fn open_source(&self) -> Result<SlateSource> {
        self.check_exists()?;
        let (store, path) = self.connect()?;
        SlateSource::open(store, path)
    }

    /// Opens all databases of the cluster at the URL for reading, with one state of its catalog. `None` if there is no cluster.
    pub fn open_cluster_source(&self) -> Result<Option<ClusterSource>> {
        self.check_exists()?;
        let (store, path) = self.connect()?;
        ClusterSource::open(&store, path)
    }

    /// Probes the store and creates a cluster as the target of a copy. There must be nothing at the URL.
    pub fn create_cluster_for_copy(
        &self,
        options: SlateOptions,
        partitions: u32,
    ) -> Result<ClusterTarget> {
        let options = self.probed(options)?;
        let (store, path) = self.connect()?;
        ClusterTarget::create(store, path, options, partitions)
    }

    /// Fails if a directory is absent: connecting would create it.
    fn check_exists(&self) -> Result<()> {
        match &self.place {
            Place::Directory(directory) if !directory.is_dir() => Err(Error::Store {
                reason: format!("{} is not a directory", directory.display()),
            }),
            _ => Ok(()),
        }
    }

    /// Returns the backups at the URL, to make some. The store is probed when one is made.
    pub fn backups(&self) -> Result<BackupStore> {
        let (store, path) = self.connect()?;
        BackupStore::new(store, path)
    }

    /// Returns the backups at the URL, to be read.
    pub fn existing_backups(&self) -> Result<BackupStore> {
        self.check_exists()?;
        let (store, path) = self.connect()?;
        BackupStore::new(store, path)
    }

    /// Starts a compactor of the database beside its writer: see [`SlateCompactor::start`].
    pub fn start_compactor(&self, options: &SlateOptions) -> Result<SlateCompactor> {
        self.check_exists()?;
        let (store, path) = self.connect()?;
        SlateCompactor::start(store, path, options)
    }

    /// Returns a process that waits for its turn to be the compactor of the database.
    pub fn compactor_claimant(&self, intervals: ClaimIntervals) -> Result<Claimant> {
        self.check_exists()?;
        let store = self.store(impatient())?;
        let path = format!("{}/{}", self.path, crate::compactor::FOLDER);
        Claimant::new(store, &path, intervals)
    }

    /// Returns a process that waits for its turn to write to the database.
    pub fn claimant(&self, intervals: ClaimIntervals) -> Result<Claimant> {
        let store = self.store(impatient())?;
        Claimant::new(store, &self.path, intervals)
    }

    /// Prepares to look at the claims of the databases `units` of the cluster at the URL, as the process at the address `me`.
    pub fn claim_board(
        &self,
        (units, me): (Vec<String>, &str),
        intervals: ClaimIntervals,
    ) -> Result<ClaimBoard> {
        let store = self.store(impatient())?;
        ClaimBoard::new(store, &self.path, (units, me), intervals)
    }

    /// Returns the description of the cluster at the URL, which is created if there is none, with that number of partitions.
    /// Fails if it has another number, and if there is a database of a single server.
    pub fn cluster(&self, partitions: Option<u32>) -> Result<ClusterDescription> {
        let store = self.store(impatient())?;
        let found = find_or_create(&store, &self.path, partitions);
        runtime(&self.path, 1)?.block_on(found)
    }

    /// True if there is a cluster at the URL.
    pub fn is_cluster(&self) -> Result<bool> {
        let store = self.store(impatient())?;
        let found = runtime(&self.path, 1)?.block_on(description::find(&store, &self.path))?;
        Ok(found.is_some())
    }

    /// Returns the names and the URLs of the databases of the cluster at the URL, the catalog first; without a cluster that of the
    /// one database, without a name. Empty if there is neither.
    pub fn databases(&self) -> Result<Vec<(Option<String>, Self)>> {
        self.check_exists()?;
        let store = self.store(impatient())?;
        let runtime = runtime(&self.path, 1)?;
        if let Some(cluster) = runtime.block_on(description::find(&store, &self.path))? {
            let names = std::iter::once(CATALOG.to_owned()).chain(cluster.names());
            let named = names.map(|name| (Some(name.clone()), self.part(&name)));
            return Ok(named.collect());
        }
        match runtime.block_on(description::has_database(&store, &self.path))? {
            true => Ok(vec![(None, self.clone())]),
            false => Ok(Vec::new()),
        }
    }

    /// Returns the URL of an existing database: the one at the URL, or the one of the cluster there with that name, `config` or a
    /// partition.
    pub fn database(&self, name: Option<&str>) -> Result<Self> {
        self.check_exists()?;
        let store = self.store(impatient())?;
        let cluster = runtime(&self.path, 1)?.block_on(description::find(&store, &self.path))?;
        let refused = |reason: String| Err(Error::Store { reason });
        match (cluster, name) {
            (None, None) => Ok(self.clone()),
            (None, Some(_)) => refused("there is no cluster, so it has no partitions".to_owned()),
            (Some(cluster), Some(name)) if cluster.has(name) => Ok(self.part(name)),
            (Some(cluster), _) => refused(format!(
                "there is a cluster: name one of its databases, which are {CATALOG} and p0001 to p{:04}, or copy all of it to a URL",
                cluster.partitions
            )),
        }
    }

    /// Returns the URL of a database of the cluster at the URL.
    #[must_use]
    pub fn part(&self, name: &str) -> Self {
        Self {
            text: format!("{}/{name}", self.text.trim_end_matches('/')),
            path: format!("{}/{name}", self.path),
            ..self.clone()
        }
    }

    /// Returns the store and the path of the database in it, without a probe.
    pub fn connect(&self) -> Result<(Arc<dyn ObjectStore>, &str)> {
        Ok((self.store(RetryConfig::default())?, &self.path))
    }

    /// Probes the store, and returns the options with what it cannot do, for [`Self::open_probed`].
    pub fn probed(&self, options: SlateOptions) -> Result<SlateOptions> {
        let abilities = self.probe()?;
        Ok(SlateOptions {
            has_conditional_overwrites: options.has_conditional_overwrites
                && abilities.has_conditional_overwrites,
            ..options
        })
    }

    fn probe(&self) -> Result<StoreAbilities> {
        let store = self.store(impatient())?;
        runtime(&self.path, 1)?.block_on(probe(&store, &self.path))
    }

    fn store(&self, retry: RetryConfig) -> Result<Arc<dyn ObjectStore>> {
        install_cryptography();
        let failed = |error| store_error("use this store", &error);
        Ok(match &self.place {
            Place::S3(bucket) => {
                let mut builder = AmazonS3Builder::from_env().with_bucket_name(bucket);
                if let Some(endpoint) = &self.endpoint {
                    builder = builder.with_endpoint(endpoint);
                }
                if let Some(region) = &self.region {
                    builder = builder.with_region(region);
                }
                let endpoint = builder.get_config_value(&AmazonS3ConfigKey::Endpoint);
                let builder = builder.with_allow_http(is_plain(endpoint.as_deref()));
                Arc::new(builder.with_retry(retry).build().map_err(failed)?)
            }
            Place::Google(bucket) => {
                let mut builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(bucket);
                if let Some(endpoint) = &self.endpoint {
                    builder = builder.with_base_url(endpoint);
                }
                let endpoint = builder.get_config_value(&GoogleConfigKey::BaseUrl);
                if is_plain(endpoint.as_deref()) {
                    builder = builder
                        .with_config(GoogleConfigKey::Client(ClientConfigKey::AllowHttp), "true");
                }
                Arc::new(builder.with_retry(retry).build().map_err(failed)?)
            }
            Place::Azure(container) => {
                let mut builder = MicrosoftAzureBuilder::from_env().with_container_name(container);
                if let Some(endpoint) = &self.endpoint {
                    builder = builder.with_endpoint(endpoint.clone());
                }
                let endpoint = builder.get_config_value(&AzureConfigKey::Endpoint);
                let builder = builder.with_allow_http(is_plain(endpoint.as_deref()));
                Arc::new(builder.with_retry(retry).build().map_err(failed)?)
            }
            Place::Directory(directory) => {
                create_directory(directory)?;
                let store = LocalFileSystem::new_with_prefix(directory).map_err(failed)?;
                Arc::new(store.with_fsync(true))
            }
        })
    }
}

/// True if an endpoint was given that does not encrypt: the user has chosen it.
fn is_plain(endpoint: Option<&str>) -> bool {
    endpoint.is_some_and(|endpoint| endpoint.starts_with("http://"))
}

/// Creates the directory of a store.
fn create_directory(directory: &Path) -> Result<()> {
    std::fs::create_dir_all(directory).map_err(|source| Error::Io {
        operation: "create",
        path: directory.to_path_buf(),
        source: Arc::new(source),
    })
}

/// Sets the cryptography of TLS, once: that of the server.
fn install_cryptography() {
    // Fails if another part of the process has set it, which is as good.
    drop(rustls::crypto::ring::default_provider().install_default());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_a_store_and_a_path() {
        let parse = |text| StorageUrl::parse(text, None, None).expect("a URL");
        let s3 = parse("s3://garden/databases/soil/");
        assert_eq!(s3.place, Place::S3("garden".to_owned()));
        assert_eq!(s3.path, "databases/soil");
        assert_eq!(s3.to_string(), "s3://garden/databases/soil/");
        assert_eq!(parse("gs://b/p").place, Place::Google("b".to_owned()));
        assert_eq!(parse("az://b/p").place, Place::Azure("b".to_owned()));
        let files = parse("file:///var/lib/soil");
        assert_eq!(files.place, Place::Directory("/var/lib/soil".into()));
        assert_eq!(files.path, PATH_IN_DIRECTORY);
    }

    #[test]
    fn other_urls_are_refused() {
        let refusal = |text: &str, endpoint, region| {
            let parsed = StorageUrl::parse(text, endpoint, region);
            parsed.expect_err("refused").to_string()
        };
        for (text, why) in [
            ("data", "not a URL"),
            (
                "http://host/path",
                "the scheme is none of s3, gs, az and file",
            ),
            ("file://data", "must begin with a slash"),
            ("s3://bucket", "a bucket and a prefix"),
            ("s3:///prefix", "a bucket and a prefix"),
            ("gs://b/a//c", "not a path"),
        ] {
            let refusal = refusal(text, None, None);
            assert!(
                refusal.starts_with(text) && refusal.contains(why),
                "{refusal}"
            );
        }
        assert!(refusal("gs://b/p", None, Some("us")).contains("region"));
        assert!(refusal("file:///d", Some("http://h"), None).contains("endpoint"));
    }
}
